/* SPDX-License-Identifier: Apache-2.0 */
/* Regions for unit tests: a table of them over a memory kind made of calloc, a pool of real threads, and a transport that
 * only registers memory. There is one at a time; its functions serve as a suite's init and fini. */
#ifndef TESTS_SUPPORT_FAKE_MEMORY_H
#define TESTS_SUPPORT_FAKE_MEMORY_H

#include <stdatomic.h>

#include "daemon/memory/region.h"

struct fake_memory {
    uv_loop_t loop;
    struct plugins *plugins;
    struct work_pool *pool;
    struct regions regions;
    struct memory_kind kind;    /* "fake" */
    struct transport transport; /* "fake" */
    atomic_bool fail_alloc;
    atomic_uint n_freed, n_registered; /* blocks given back; registrations that stand */
    unsigned n_ready;                  /* the test's */
};

extern struct fake_memory fake;

void fake_setup(void);
void fake_teardown(void); /* all regions must be gone */

/* Turns the loop until the pool has nothing to do. */
void fake_run(void);

/* A region of this client and of uid 1000, made at once or by turning the loop; the caller's is the only reference. */
struct region *fake_region(uint64_t bytes, uint64_t client);

/* Borrowed. NULL: there is no such region, or it has another generation. */
struct region *fake_find(uint64_t id, uint64_t generation);

#endif
