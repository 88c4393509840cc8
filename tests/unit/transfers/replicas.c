/* SPDX-License-Identifier: Apache-2.0 */
/* What this node does with very many replicas takes no longer than with few. Nothing here measures time in seconds: what is
 * done often is compared with what it takes to create the replicas once. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/transfer_impl.h"

enum { N = 50000, BYTES = 64 };

static uv_loop_t loop;
static struct deadlines deadlines;
static struct accounts accounts;
static struct regions regions;
static struct slabs slabs;
static struct object_table objects;
static struct options options;
static struct peer peer;
static struct transfers *transfers;
static struct peer_session *session;
static struct account *account;
static struct layout *layout;
static struct replica *replicas[N];

static uint64_t cpu_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void setup(void)
{
    const struct owner me = {.uid = 1000};

    cr_assert_eq(uv_loop_init(&loop), 0);
    deadlines_init(&deadlines, &loop);
    accounts_init(&accounts);
    slabs.regions = &regions;
    objects = (struct object_table){.accounts = &accounts, .slabs = &slabs, .on_adopted = replica_settle};
    options.replicas_max_bytes = UINT64_MAX;
    transfers = calloc(1, sizeof *transfers);
    transfers->counts = calloc(1, sizeof *transfers->counts);
    transfers->deadlines = &deadlines;
    transfers->options = &options;
    transfers->objects = &objects;
    transfers_init(transfers);
    transfers->closing = true; /* nothing is sent: there is no link */
    session = peer_session_get(transfers, &peer);
    account = account_get(&accounts, &me);
    layout = layout_create(1, 1);
    layout->dtype[0] = RDT_U8;
    layout->ndim[0] = 1;
    layout->first_dim[0] = layout->region[0] = 0;
    layout->offset[0] = 0;
    layout->shape[0] = BYTES;
    layout_set_row_major(layout, 0);
}

static void teardown(void)
{
    replicas_close(&transfers->replicas);
    transfers_fini(transfers);
    free(layout);
    free(transfers->counts);
    free(transfers);
    account_unref(account);
    accounts_fini(&accounts);
    deadlines_close(&deadlines, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
}

TestSuite(replicas, .init = setup, .fini = teardown, .timeout = 60);

static struct rdt_ref ref_of(uint32_t i)
{
    struct rdt_ref ref = {.id = "r", .id_bytes = 1, .generation = i + 1u};

    return ref;
}

static struct replica *create(uint32_t i, bool sum_follows)
{
    static struct transfer transfer;
    Rdt__Pb__PullMeta meta = RDT__PB__PULL_META__INIT;

    memset(&transfer, 0, sizeof transfer);
    transfer.transfers = transfers;
    transfer.account = account;
    transfer.ref = ref_of(i);
    transfer.move.source = layout;
    transfer.pull.origin = session;
    meta.sum_follows = sum_follows;
    cr_assert(replica_create(&transfer, &meta));
    return transfer.pull.replica;
}

/* As if its bytes had come, and the transfer that brought them had ended. */
static void complete(struct replica *replica)
{
    struct transfer transfer = {.transfers = transfers, .pull.replica = replica};

    replica->placed = true;
    transfers->replicas.bytes += replica->bytes;
    replica->filling = NULL;
    replica_settle(replica);
    replica_end_filling(&transfer);
}

Test(replicas, eviction_looks_at_none_that_are_in_use)
{
    uint64_t began_ns = cpu_ns(), created_ns;

    for (uint32_t i = 0; i < N; i++) {
        replicas[i] = create(i, false);
        complete(replicas[i]);
        object_hold(replicas[i]->object);
    }
    created_ns = cpu_ns() - began_ns;
    began_ns = cpu_ns();
    for (unsigned i = 0; i < 1000; i++)
        cr_assert_eq(replicas_evict(&transfers->replicas, BYTES), 0u, "it is in use");
    cr_assert_lt(cpu_ns() - began_ns, created_ns, "each search has walked the replicas that are in use");
    object_pin(replicas[7]->object);
    object_drop(replicas[7]->object);
    object_drop(replicas[9]->object);
    object_drop(replicas[8]->object);
    cr_assert_eq(replicas_evict(&transfers->replicas, 3 * BYTES), 2u * BYTES, "three are not idle, so none is evicted");
    cr_assert_eq(replicas_evict(&transfers->replicas, BYTES), 2u * BYTES);
    cr_assert(!replica_find(&transfers->replicas, peer.uuid, 10), "the one that was used last before the others goes first");
    cr_assert(replica_find(&transfers->replicas, peer.uuid, 9) == replicas[8]);
    object_unpin(replicas[7]->object);
    cr_assert_eq(replicas_evict(&transfers->replicas, 2 * BYTES), 2u * BYTES);
    for (uint32_t i = 0; i < N; i++)
        if (i < 7 || i > 9)
            object_drop(replicas[i]->object);
}
