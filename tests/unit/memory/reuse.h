/* SPDX-License-Identifier: Apache-2.0 */
/* Fake memory that is pooled and cached, for tests of the pool and of the region cache. */
#ifndef TESTS_UNIT_MEMORY_REUSE_H
#define TESTS_UNIT_MEMORY_REUSE_H

#include <criterion/criterion.h>
#include <string.h>

#include "daemon/memory/region.h"
#include "tests/support/fakes/fake_memory.h"

#define KIB ((uint64_t)1 << 10)
#define SIZE (256 * KIB) /* the size of a class */

static struct deadlines deadlines;

static inline void reuse_setup(void)
{
    fake_setup();
    deadlines_init(&deadlines, &fake.loop);
    regions_set_reuse(&fake.regions, &deadlines, 8 * SIZE, 4 * SIZE, UINT64_C(3600000000000));
    fake.regions.free_pool.kind = &fake.kind;
}

static inline void reuse_teardown(void)
{
    regions_close(&fake.regions);
    fake_run();
    deadlines_close(&deadlines, NULL);
    fake_teardown();
}

static inline void on_ready(void *arg, struct region *region, const struct rdt_error *err)
{
    (void)err;
    *(struct region **)arg = region;
}

static struct account account = {.owner = {.uid = 1000}, .refs = 1};

static inline enum rdt_status try_receive(uint64_t bytes, uint64_t client, struct region **region_p, struct rdt_error *err)
{
    enum rdt_status status =
        region_alloc(&fake.regions, "fake", "", bytes, REGION_RECEIVED, &account, client, region_p, on_ready, region_p, err);

    if (status == RDT_AGAIN)
        fake_run();
    return status;
}

/* Allocates a region for the bytes of a fetch. */
static inline struct region *receive(uint64_t bytes, uint64_t client)
{
    struct region *region = NULL;
    struct rdt_error err = {0};

    (void)try_receive(bytes, client, &region, &err);
    cr_assert_not_null(region, "%s", err.msg);
    return region;
}

static inline void drop(struct region *region)
{
    region_unref(region);
    fake_run();
}

#endif
