/* SPDX-License-Identifier: Apache-2.0 */
/* Setup and checks of the tests of memory on devices between two nodes: each node has two fake devices and a client that maps
 * their memory. Only those tests include this header. */
#ifndef TESTS_DEVICE_NODES_FIXTURE_H
#define TESTS_DEVICE_NODES_FIXTURE_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cluster.h"
#include "tests/support/fakes/fake_device.h"
#include "tests/support/program.h"

#define KIB ((size_t)1024)
#define BYTES (1000 * KIB + 24)
#define LARGE (10 * 1024 * KIB + 512)

static struct cluster c;
static struct fake_devices gpu[2];
static rdt *owner, *reader; /* clients of node 0 and of node 1, both with the mapper */

static inline void begin_with(const struct cluster_options *options)
{
    struct cluster_options all = *options;

    fake_device_init(&gpu[0], "n0", (const char *const[]){"prefix=HERE", "--chunk=256KiB", NULL});
    fake_device_init(&gpu[1], "n1", (const char *const[]){"prefix=THERE", "--chunk=256KiB", NULL});
    all.flags_of[0] = gpu[0].flags;
    all.flags_of[1] = gpu[1].flags;
    cluster_start(&c, 2, &all);
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
    fake_device_use(owner);
    fake_device_use(reader);
}

static inline void begin(void)
{
    begin_with(&(struct cluster_options){.stream = true, .no_ucx = true});
}

static inline void end(const char *const *declared)
{
    rdt_close(owner);
    rdt_close(reader);
    for (unsigned i = 0; i < 2; i++) {
        wait_until(LONG, atomic_load(&gpu[i].control->blocks) == 0);
        must(atomic_load(&gpu[i].control->allocated[0]) == 0 && atomic_load(&gpu[i].control->allocated[1]) == 0);
    }
    cluster_end(&c, declared);
    for (unsigned i = 0; i < 2; i++) {
        must(atomic_load(&gpu[i].control->pinned) == 0);
        fake_device_fini(&gpu[i]);
    }
}

static inline struct rdt_ref put_on(const char *device, size_t bytes, uint32_t seed)
{
    void *addr = fake_device_alloc(owner, device, bytes);
    struct rdt_tensor tensor = bytes_at(addr, bytes);

    fill_pattern(addr, bytes, seed);
    return put_one(owner, &tensor, NULL);
}

#endif
