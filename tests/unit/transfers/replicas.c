/* SPDX-License-Identifier: Apache-2.0 */
/* What this node does with very many replicas takes no longer than with few. Nothing here measures time in seconds: what is
 * done often is compared with what it takes to create the replicas once. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/transfers/remote.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_impl.h"
#include "tests/support/check.h"

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
static struct remote *remote;
static struct account *account;
static struct layout *layout;
static struct replica *replicas[N];
static struct serve serves[N];
static unsigned n_found, n_arrived, n_failed;

static void on_found(struct serve *serve, struct object *object)
{
    n_found++;
}

static void on_arrived(struct serve *serve)
{
    n_arrived++;
}

static void on_failed(struct serve *serve, const struct rdt_error *err)
{
    n_failed++;
}

static void on_unwanted(struct transfer *filling) {}

static const struct replica_events counted = {
    .on_found = on_found, .on_arrived = on_arrived, .on_failed = on_failed, .on_unwanted = on_unwanted};

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
    remote = remote_get(transfers, &peer);
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
    transfers->closing = true;
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
    struct rdt_ref ref = {.id = "r", .id_bytes = 1, .uid = 1000, .generation = i + 1u};

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
    transfer.pull.origin = remote;
    meta.sum_follows = sum_follows;
    cr_assert(replica_create(&transfer, &meta));
    return transfer.pull.replica;
}

/* As if its bytes had come, and the transfer that brought them had ended. */
static void complete(struct replica *replica)
{
    struct transfer transfer = {.transfers = transfers, .pull.replica = replica};

    replica->placed = true;
    replica->room = replica->bytes;
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

Test(replicas, checksum_that_comes_is_not_looked_for_among_all_that_are_awaited)
{
    uint64_t began_ns = cpu_ns(), created_ns, generations[REPLICAS_MAX_SINGLE], sums[REPLICAS_MAX_SINGLE];
    Rdt__Pb__Replicas message = RDT__PB__REPLICAS__INIT;

    for (uint32_t i = 0; i < N; i++) {
        replicas[i] = create(i, true);
        complete(replicas[i]);
    }
    created_ns = cpu_ns() - began_ns;
    message.summed = generations;
    message.sums = sums;
    message.n_summed = message.n_sums = REPLICAS_MAX_SINGLE;
    began_ns = cpu_ns();
    for (uint32_t i = N; i > N - 100 * REPLICAS_MAX_SINGLE;) {
        for (unsigned at = 0; at < REPLICAS_MAX_SINGLE; at++, i--) {
            generations[at] = replicas[i - 1]->ref.generation;
            sums[at] = i;
        }
        replicas_on_message(&transfers->replicas, remote, &message);
    }
    cr_assert_lt(cpu_ns() - began_ns, created_ns, "each checksum was looked for among all");
    cr_assert(replicas[N - 1]->sum == N && replicas[N - 100]->sum == N - 99 && replicas[0]->sum == 0);
    replicas_link_down(remote);
    cr_assert_eq(map_count(&transfers->replicas.summing), 0u);
}

static void pull(uint32_t i)
{
    serves[i] = (struct serve){.transfers = transfers, .remote = remote, .epoch = 1, .account = account, .ref = ref_of(0)};
    list_init(&serves[i].by_replica);
    replica_serve(&transfers->replicas, &serves[i]);
}

static void turn_until(const unsigned *counter, unsigned n)
{
    cr_assert(*counter > 0 && *counter < N, "%u of %u in one turn", *counter, N);
    while (*counter < n)
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

/* Another node may send as many pulls of one replica as the limits allow, all for the same object. */
Test(replicas, pulls_of_a_replica_are_served_and_told_in_slices)
{
    struct transfer filling = {.transfers = transfers};
    const struct chunk_plan plan = {0};

    transfers->closing = false;
    transfers->replicas.events = &counted;
    n_found = n_arrived = n_failed = 0;
    for (uint32_t i = 0; i < N; i++)
        pull(i);
    cr_assert_eq(n_found, 0u, "there is no replica yet");
    struct replica *replica = create(0, false);
    replica->filling = &filling;
    filling.pull.replica = replica;
    turn_until(&n_found, N);
    cr_assert_eq(n_found, N);
    deadline_unset(&deadlines, &replica->pulls.beat); /* from now on they are told only what this test causes */
    while (!list_empty(&replica->pulls.woken))
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    n_arrived = 0;
    cr_assert_eq(replica_plan(replica, &plan, NULL), RDT_OK);
    turn_until(&n_arrived, N);
    cr_assert_eq(n_arrived, N);
    replica_unserve(&serves[1]);
    peer.boot_id[0]++; /* the node need not be told */
    replica_end_filling(&filling);
    for (uint32_t i = 0; i < N; i++)
        cr_assert(!serves[i].replica || !replica_has(serves[i].replica, 0, BYTES), "the bytes will not come");
    replica_unserve(&serves[N - 1]); /* it ends before it is told */
    turn_until(&n_failed, N - 2);
    cr_assert_eq(n_failed, N - 2u);
    for (uint32_t i = 0; i < N; i++)
        if (serves[i].replica)
            replica_unserve(&serves[i]);
}

static unsigned n_slow(void)
{
    unsigned n = 0;

    for (uint64_t generation = 1; generation <= N; generation++) {
        struct list *cursor = NULL;
        const struct replica_entry *entry = replica_directory_next(&transfers->directory, generation, &cursor);
        n += entry && strstr(replica_entry_pace(entry), "SLOW") != NULL;
    }
    return n;
}

/* A verdict about a node is for all that the node receives. */
Test(replicas, slow_node_is_known_for_all_that_it_receives_in_slices)
{
    struct object object = {.bytes = BYTES};
    struct replica_entry *again;
    bool is_new;

    transfers->closing = false;
    options.chunk_bytes = BYTES;
    for (object.generation = 1; object.generation <= N; object.generation++)
        cr_assert(replica_entry_add(&transfers->directory, remote, &object, &is_new));
    replica_directory_reader_took(&transfers->directory, N, remote, 0, FANOUT_SLOW);
    cr_assert(n_slow() > 1 && n_slow() < N / 2, "%u in one turn", n_slow());
    cr_assert_eq(map_count(&transfers->directory.by_generation), N);
    replica_directory_reader_took(&transfers->directory, 1, remote, 0, FANOUT_LAGS); /* a second one meanwhile */
    object.generation = N - 1;
    again = replica_entry_add(&transfers->directory, remote, &object, &is_new);
    cr_assert(!is_new);
    replica_entry_serve_here(again); /* it asks again meanwhile */
    while (!list_empty(&remote->entries.judged))
        (void)uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_eq(n_slow(), N);
    transfers->closing = true;
    replica_directory_link_down(remote);
    cr_assert_eq(map_count(&transfers->directory.by_generation), 0);
}
