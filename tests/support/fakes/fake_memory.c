/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/fakes/fake_memory.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config/options.h"

struct fake_memory fake;

static enum rdt_status fake_alloc(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p,
                                  struct rdt_error *err)
{
    if (fake.fail_alloc)
        return rdt_error_set(err, RDT_NO_MEMORY, "as asked");
    block_p->addr = calloc(1, bytes <= 1 << 20 ? bytes : 64); /* nobody looks into large ones */
    return RDT_OK;
}

static void fake_free(void *memory, struct rdt_block *block)
{
    free(block->addr);
    fake.n_freed++;
}

static enum rdt_status fake_map(void *memory, struct rdt_block *block, bool warm, struct rdt_error *err)
{
    return RDT_OK;
}

static enum rdt_status fake_register(void *transport, void *addr, uint64_t bytes, const char *memory_kind,
                                     void **registration_p, struct rdt_error *err)
{
    *registration_p = malloc(1);
    fake.n_registered++;
    return RDT_OK;
}

static void fake_unregister(void *transport, void *registration)
{
    free(registration);
    fake.n_registered--;
}

static enum rdt_status fake_import(void *memory, const char *device, const struct rdt_import *import, struct rdt_block *block_p,
                                   struct rdt_error *err)
{
    return rdt_error_set(err, RDT_INVALID, "no import is good enough");
}

static enum rdt_status fake_seal(void *memory, struct rdt_block *block, bool proof, struct rdt_error *err)
{
    block->read_only = true;
    return proof ? RDT_UNSUPPORTED : RDT_OK;
}

static enum rdt_status fake_share(void *memory, const struct rdt_block *block, bool writable, int *fd_p, struct rdt_error *err)
{
    *fd_p = -1;
    return RDT_OK;
}

void fake_setup(void)
{
    struct options options = {.backend_dir = (char *)"", .backends = (char *)"", .interfaces = (char *)""};
    struct rdt_error err = {0};

    memset(&fake, 0, sizeof fake);
    cr_assert_eq(uv_loop_init(&fake.loop), 0);
    cr_assert_eq(plugins_create(&fake.loop, &options, &fake.plugins, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(work_pool_create(&fake.loop, 2, &fake.pool, &err), RDT_OK, "%s", err.msg);
    fake.kind = (struct memory_kind){.ops = {.alloc = fake_alloc,
                                             .free = fake_free,
                                             .map = fake_map,
                                             .share = fake_share,
                                             .seal = fake_seal,
                                             .import = fake_import},
                                     .name = "fake",
                                     .path = "",
                                     .available = true};
    fake.transport = (struct transport){.ops = {.register_memory = fake_register, .unregister_memory = fake_unregister},
                                        .name = "fake",
                                        .path = "",
                                        .version = "",
                                        .available = true};
    list_append(plugins_memory_kinds(fake.plugins), &fake.kind.link);
    regions_init(&fake.regions, fake.plugins, fake.pool, UINT64_C(1) << 40);
}

static void on_closed(void *arg) {}

static void close_plugins(void *arg)
{
    plugins_close(fake.plugins, on_closed, NULL);
}

void fake_teardown(void)
{
    cr_assert_eq(fake.regions.by_id.used, 0u, "regions are left");
    cr_assert_eq(fake.regions.bytes, 0u);
    list_remove(&fake.kind.link);
    work_pool_close(fake.pool, close_plugins, NULL);
    (void)uv_run(&fake.loop, UV_RUN_DEFAULT);
    regions_fini(&fake.regions);
    cr_assert_eq(uv_loop_close(&fake.loop), 0, "a handle was left open");
    cr_assert_eq(fake.n_registered, 0u, "a registration is left");
}

/* ---- turning the loop ---- */

struct marker {
    struct work work;
    pthread_barrier_t *both;
    bool done;
};

/* Both threads must be here at once: what they had to do before is done. */
static void run_marker(struct work *work)
{
    (void)pthread_barrier_wait(((struct marker *)work)->both);
}

static void done_marker(struct work *work)
{
    ((struct marker *)work)->done = true;
}

/* Work that is done may begin more: each round sees to what the one before began. */
void fake_run(void)
{
    pthread_barrier_t both;

    (void)pthread_barrier_init(&both, NULL, 2);
    for (unsigned round = 0; round < 4; round++) {
        struct marker markers[2] = {{.both = &both}, {.both = &both}};
        for (unsigned i = 0; i < 2; i++) {
            markers[i].work = (struct work){.run = run_marker, .done = done_marker};
            work_submit(fake.pool, &markers[i].work);
        }
        while (!markers[0].done || !markers[1].done)
            (void)uv_run(&fake.loop, UV_RUN_ONCE);
    }
    (void)pthread_barrier_destroy(&both);
}

static void on_ready(void *arg, struct region *region, const struct rdt_error *err)
{
    *(struct region **)arg = region;
}

struct region *fake_region(uint64_t bytes, uint64_t client)
{
    static struct account owner = {.owner = {.uid = 1000}, .refs = 1};
    struct region *region = NULL;
    struct rdt_error err = {0};
    enum rdt_status status =
        region_alloc(&fake.regions, "fake", "", bytes, REGION_ALLOCATED, &owner, client, &region, on_ready, &region, &err);

    if (status == RDT_AGAIN)
        fake_run();
    cr_assert_not_null(region, "%s", err.msg);
    return region;
}

struct region *fake_find(uint64_t id, uint64_t generation)
{
    struct region *region = index_get(&fake.regions.by_id, id);

    return region && region->generation == generation ? region : NULL;
}
