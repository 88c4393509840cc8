/* SPDX-License-Identifier: Apache-2.0 */
/* See replica.h. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/memory/region_cache.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/replica_pulls.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_impl.h"

/* How long a pull waits for the answer that creates the replica. */
#define EXPECT_NS 5000000000ll
#define CHECK_STEP_BYTES (UINT64_C(8) << 20)  /* in one turn of the pool */
#define CHECK_BATCH_BYTES (UINT64_C(2) << 20) /* that have arrived before the pool is woken */

void replicas_init(struct replicas *replicas, struct transfers *transfers, const struct replica_events *events)
{
    *replicas = (struct replicas){.transfers = transfers, .events = events};
    map_init(&replicas->by_origin);
    list_init(&replicas->idle);
    map_init(&replicas->summing);
    replica_expected_init(replicas);
}

/* The node has restarted since, so its objects are gone. The replica is dropped soon. */
static bool is_stale(const struct replica *replica)
{
    return memcmp(replica->boot_id, replica->origin->peer->boot_id, sizeof replica->boot_id) != 0;
}

struct replica *replica_find(const struct replicas *replicas, const uint8_t node[16], uint64_t generation)
{
    struct replica *replica;
    uint8_t key[24];

    replica_key(node, generation, key);
    replica = generation ? map_get(&replicas->by_origin, key, sizeof key) : NULL;
    return replica && !is_stale(replica) ? replica : NULL;
}

/* ---- messages to the owner's node ---- */

static void send_replicas(struct remote *origin, uint64_t *whole, size_t n_whole, uint64_t *dropped, uint64_t *invalidated,
                          size_t n_invalidated)
{
    Rdt__Pb__Replicas replicas = RDT__PB__REPLICAS__INIT;

    replicas.whole = whole;
    replicas.n_whole = n_whole;
    replicas.dropped = dropped;
    replicas.n_dropped = dropped ? 1 : 0;
    replicas.next_note = dropped ? origin->replicas.noted + 1 : 0;
    replicas.invalidated = invalidated;
    replicas.n_invalidated = n_invalidated;
    /* Link down: the owner's node has dropped its entry already. */
    (void)remote_send(origin, RDT_PEER_REPLICAS, &replicas.base, NULL);
}

void replica_decline(struct remote *origin, uint64_t generation)
{
    send_replicas(origin, NULL, 0, &generation, NULL, 0);
}

/* ---- life ---- */

static bool is_idle(const struct replica *replica)
{
    return replica->listed && replica->placed && !replica->filling && !replica_has_pulls(replica) &&
           replica->object->holds == 1 && replica->object->pins == 0;
}

void replica_settle(void *arg)
{
    struct replica *replica = arg;
    struct replicas *replicas = replica->replicas;
    bool was_idle = !list_empty(&replica->link), idle = is_idle(replica);

    if (idle == was_idle)
        return;
    if (idle)
        list_append(&replicas->idle, &replica->link);
    else
        list_remove(&replica->link);
    replicas->idle_room += idle ? replica->room : -replica->room;
}

/* ---- checksums that are promised ---- */

/* Writes promised->key. */
static void name_sum(struct replica_sum *promised, const struct remote *origin, uint64_t generation)
{
    replica_key(origin->peer->uuid, generation, promised->key);
    memcpy(promised->key + sizeof promised->key - sizeof origin->peer->epoch, &origin->peer->epoch, sizeof origin->peer->epoch);
}

/* Without memory the replica stays unchecked. */
static void await_sum(struct replica *replica)
{
    struct map *summing = &replica->replicas->summing;
    struct replica_sum *promised = &replica->promised;
    struct replica *other;

    name_sum(promised, replica->origin, replica->ref.generation);
    other = map_get(summing, promised->key, sizeof promised->key);
    if (other)
        list_append(&other->promised.same, &promised->same);
    else if (!map_put(summing, promised->key, sizeof promised->key, replica))
        return;
    list_append(&replica->origin->replicas.sums_awaited, &replica->by_sum);
}

static void await_no_sum(struct replica *replica)
{
    struct map *summing = &replica->replicas->summing;
    struct replica_sum *promised = &replica->promised;
    struct list *next = list_first(&promised->same);

    if (list_empty(&replica->by_sum))
        return;
    list_remove(&replica->by_sum);
    list_remove(&promised->same);
    if (map_get(summing, promised->key, sizeof promised->key) != replica)
        return;
    if (next) {
        struct replica *other = container_of(next, struct replica, promised.same);
        map_replace(summing, other->promised.key, sizeof promised->key, other);
    } else {
        (void)map_remove(summing, promised->key, sizeof promised->key);
    }
}

/* ---- the end of a replica ---- */

static void replica_unref(struct replica *replica)
{
    assert(replica->refs > 0);
    if (--replica->refs > 0)
        return;
    assert(!replica->listed);
    replica_pulls_fini(replica);
    replica->object->record = NULL;
    object_drop(replica->object); /* Fetches that hold the object keep it. */
    account_unref(replica->account);
    replica->origin->replicas.n--;
    await_no_sum(replica);
    free(replica->arrived);
    free(replica);
}

/* Makes sure that no later fetch finds the replica. */
static void unlist(struct replica *replica)
{
    if (!replica->listed)
        return;
    replica->listed = false;
    replica_settle(replica);
    map_remove(&replica->replicas->by_origin, replica->key, sizeof replica->key);
    list_remove(&replica->by_remote);
    if (replica->placed)
        replica->replicas->bytes -= replica->bytes;
    replica_unref(replica);
}

static void drop(struct replica *replica)
{
    if (!is_stale(replica))
        replica_decline(replica->origin, replica->ref.generation);
    unlist(replica);
}

void replicas_close(struct replicas *replicas)
{
    struct replica *replica;
    size_t cursor = 0;

    while ((replica = map_next(&replicas->by_origin, &cursor)))
        unlist(replica);
}

void replicas_fini(struct replicas *replicas)
{
    assert(list_empty(&replicas->idle) && map_count(&replicas->by_origin) == 0);
    replica_expected_fini(replicas);
    map_fini(&replicas->by_origin);
    map_fini(&replicas->summing);
}

/* ---- the check ---- */

/* Compares the bytes of a replica with its publisher's checksum before anybody on this node gets them. The checksum comes in
 * the owner's answer or, if the owner computes it while it sends, in a message. Whatever is last, that or what this node
 * computes while bytes arrive, ends the check. */
struct replica_check {
    struct work work;        /* first */
    struct replica *replica; /* a reference, by which its memory stays */
    const uint8_t *base;
    struct tensor_sums sums;
    bool at_work;             /* the pool has it */
    uint32_t next;            /* the first chunk that has not arrived */
    _Atomic uint64_t arrived; /* where that chunk begins: all bytes before are there */
    uint64_t taken;           /* what the pool was last told */
    bool all;                 /* every chunk has arrived */
    uint64_t found;           /* 0: not computed yet */
    _Atomic bool stop;
};

static void check_free(struct replica_check *check)
{
    tensor_sums_fini(&check->sums);
    free(check);
}

static void run_check(struct work *work)
{
    struct replica_check *check = (struct replica_check *)work;
    const struct object *object = check->replica->object;
    uint64_t arrived = check->arrived;

    work->again = !check->stop && tensor_sums_step_to(&check->sums, CHECK_STEP_BYTES, arrived);
    if (!check->stop && check->sums.at == object->memory.layout->count && check->found == 0)
        check->found = tensor_sum_object(object->memory.layout, check->sums.sums, object_metadata(object),
                                         object->tail.metadata_bytes - object->tail.box_bytes);
}

static void end_check(struct replica *replica, const struct rdt_error *err)
{
    struct replica_check *check = replica->check;

    replica->check = NULL;
    check_free(check);
    if (replica->filling)
        replica->replicas->events->on_checked(replica->filling, err);
    replica_unref(replica);
}

static bool sum_follows(const struct replica *replica)
{
    return !list_empty(&replica->by_sum);
}

bool replica_has_sum(const struct replica *replica)
{
    return replica->sum != 0 || sum_follows(replica);
}

/* The bytes are wrong: says so, and counts it. */
static void set_damaged(const struct replica *replica, uint64_t found, struct rdt_error *err)
{
    Rdt__Pb__StatusReply *counts = replica->replicas->transfers->counts;

    if (replica->filling && replica->filling->pull.delta == DELTA_MADE) {
        (void)rdt_error_set(
            err, RDT_DAMAGED,
            "the bytes of object \"%s\" of node %s that were made here of an earlier version and a delta are not "
            "those that were put: their checksum is %016" PRIx64 ", and should be %016" PRIx64,
            replica->ref.id, replica->origin->peer->name, found, replica->sum);
        return;
    }
    counts->replicas_damaged++;
    (void)rdt_error_set(err, RDT_DAMAGED,
                        "the bytes of object \"%s\" that came from node %s are not those that were put on node %s: their "
                        "checksum is %016" PRIx64 ", and should be %016" PRIx64,
                        replica->ref.id, replica->filling ? replica->filling->record.peer : "?", replica->origin->peer->name,
                        found, replica->sum);
}

/* Ends the check if both checksums are there, or if none will come. */
static void compare_sums(struct replica *replica)
{
    Rdt__Pb__StatusReply *counts = replica->replicas->transfers->counts;
    const struct replica_check *check = replica->check;
    struct rdt_error err = {0};

    if (!check->all || check->at_work || check->found == 0 || sum_follows(replica))
        return;
    if (replica->sum == 0) {
        counts->replicas_unchecked++;
    } else if (replica->sum == check->found) {
        counts->replicas_checked++;
        replica->object->sum = replica->sum;
    } else {
        set_damaged(replica, check->found, &err);
        log_warn("%s", err.msg);
    }
    end_check(replica, err.status == RDT_OK ? NULL : &err);
}

static void done_check(struct work *work);

static void go_on_checking(struct replica_check *check)
{
    struct replica *replica = check->replica;

    check->at_work = true;
    check->taken = check->arrived;
    check->work = (struct work){.run = run_check, .done = done_check, .lane = replica->filling->record.client};
    work_submit(replica->replicas->transfers->pool, &check->work);
}

static void done_check(struct work *work)
{
    struct replica_check *check = (struct replica_check *)work;
    struct replica *replica = check->replica;

    check->at_work = false;
    if (replica->check != check) { /* its transfer has ended, or starts again */
        check_free(check);
        replica_unref(replica);
    } else if (check->found == 0 && (check->all || check->arrived - check->taken >= CHECK_BATCH_BYTES)) {
        go_on_checking(check);
    } else {
        compare_sums(replica);
    }
}

static bool begin_check(struct replica *replica)
{
    struct object *object = replica->object;
    struct replica_check *check;

    if ((replica->sum == 0 && !sum_follows(replica)) || object->memory.n_regions != 1)
        return false;
    check = calloc(1, sizeof *check);
    if (!check || !(check->base = region_addr(object->memory.uses[0].region, NULL)) ||
        !tensor_sums_init(&check->sums, object->memory.layout, &check->base)) {
        if (check)
            check_free(check);
        return false;
    }
    check->replica = replica;
    replica->refs++;
    replica->check = check;
    return true;
}

/* Computes while bytes arrive, when they are still in the processor's caches. */
void replica_check_more(struct replica *replica)
{
    const struct chunk_plan *plan = replica->plan;
    struct replica_check *check;

    if (!replica->check && !begin_check(replica))
        return;
    check = replica->check;
    while (check->next < plan->n && replica->arrived[check->next])
        check->next++;
    check->arrived = check->next < plan->n ? plan->chunks[check->next].offset : UINT64_MAX;
    if (!check->at_work && check->arrived - check->taken >= CHECK_BATCH_BYTES && check->found == 0)
        go_on_checking(check);
}

void replica_check(struct replica *replica)
{
    struct replica_check *check;

    if (!replica->check && !begin_check(replica)) {
        replica->replicas->transfers->counts->replicas_unchecked++;
        replica->replicas->events->on_checked(replica->filling, NULL);
        return;
    }
    check = replica->check;
    check->arrived = UINT64_MAX;
    check->all = true;
    if (!check->at_work && check->found == 0)
        go_on_checking(check);
    else
        compare_sums(replica);
}

void replica_take_sum(struct replica *replica, uint64_t sum, bool follows)
{
    if (replica->sum == 0) {
        replica->sum = sum;
        await_no_sum(replica);
        if (sum == 0 && follows)
            await_sum(replica);
    }
    if (replica->check)
        compare_sums(replica);
}

static void stop_check(struct replica *replica)
{
    struct replica_check *check = replica->check;

    if (!check)
        return;
    replica->check = NULL;
    if (check->at_work) {
        check->stop = true;
        return;
    }
    check_free(check);
    replica_unref(replica);
}

static bool lose_some_sums(struct slice *slice, uint64_t until_ns)
{
    struct remote_replicas *replicas = container_of(slice, struct remote_replicas, lose_sums);

    list_drain (struct replica, replica, &replicas->sums_lost, by_sum) {
        replica_take_sum(replica, 0, false); /* the end of a check may drop this replica and others */
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

void replicas_link_down(struct remote *remote)
{
    struct remote_replicas *replicas = &remote->replicas;

    replicas->noted = 0;
    slice_stop(&replicas->report);
    list_splice(&replicas->listed, &replicas->to_report);
    list_splice(&replicas->sums_lost, &replicas->sums_awaited);
    replicas->lose_sums.run = lose_some_sums;
    slice_begin(remote_slices(remote), &replicas->lose_sums);
}

/* ---- filling ---- */

/* Creates the replica's object, still without memory. */
static bool adopt(struct replica *replica, const struct transfer *transfer)
{
    struct object_put put = {.account = replica->account,
                             .id = (const uint8_t *)replica->ref.id,
                             .id_bytes = replica->ref.id_bytes,
                             .metadata = transfer->metadata.bytes,
                             .metadata_bytes = transfer->metadata.n_bytes,
                             .box_bytes = transfer->metadata.box_bytes,
                             .visibility = replica->visibility,
                             .transport = "",
                             .promise = OBJECT_SEALED};

    if (layout_packed(transfer->move.source, &put.layout, &replica->bytes, NULL) != RDT_OK)
        return false;
    if (object_table_adopt(replica->replicas->transfers->objects, &put, &replica->object, NULL) == RDT_OK)
        return true;
    free(put.layout);
    return false;
}

static bool serve_some(struct slice *slice, uint64_t until_ns)
{
    struct replicas *replicas = container_of(slice, struct replicas, serve);

    list_drain (struct serve, serve, &replicas->arrived, by_replica) {
        list_remove(&serve->by_replica);
        replica_serve(replicas, serve); /* if the replica has ended meanwhile, the pull waits for the next one */
        if (uv_hrtime() >= until_ns)
            return list_empty(&replicas->arrived);
    }
    return true;
}

static bool tell_some(struct slice *slice, uint64_t until_ns)
{
    struct replica *replica = container_of(slice, struct replica, pulls.tell);
    bool none_left;

    replica->refs++; /* A pull that fails may be the last that wanted the replica. */
    none_left = replica_pulls_tell(replica, until_ns);
    replica_unref(replica);
    return none_left;
}

bool replica_create(struct transfer *transfer, const Rdt__Pb__PullMeta *meta)
{
    struct replicas *replicas = &transfer->transfers->replicas;
    const struct rdt_ref *ref = &transfer->ref;
    struct owner owner = {.uid = ref->uid};
    struct replica *replica = calloc(1, sizeof *replica), *stale;

    assert(!transfer->pull.replica);
    if (!replica)
        return false;
    memcpy(owner.tenant, ref->tenant, sizeof owner.tenant);
    replica_key(ref->node, ref->generation, replica->key);
    replica->replicas = replicas;
    replica->ref = *ref;
    replica->origin = transfer->pull.origin;
    memcpy(replica->boot_id, transfer->pull.origin->peer->boot_id, sizeof replica->boot_id);
    replica->epoch = transfer->pull.origin->peer->epoch;
    memcpy(replica->tenant, transfer->account->owner.tenant, sizeof replica->tenant);
    replica->account = account_get(replicas->transfers->objects->accounts, &owner);
    replica->visibility = (Rdt__Pb__Visibility)meta->visibility;
    list_init(&replica->by_sum);
    list_init(&replica->promised.same);
    list_init(&replica->link);
    replica->untrusted = transfer->pull.untrusted;
    if ((stale = map_get(&replicas->by_origin, replica->key, sizeof replica->key)))
        unlist(stale);
    replica_pulls_init(replica);
    replica->pulls.tell.run = tell_some;
    if (!replica->account || !adopt(replica, transfer) ||
        !map_put(&replicas->by_origin, replica->key, sizeof replica->key, replica)) {
        if (replica->object)
            object_drop(replica->object);
        account_unref(replica->account);
        free(replica);
        return false;
    }
    replica->object->record = replica;
    replica->origin->replicas.n++;
    list_append(&replica->origin->replicas.listed, &replica->by_remote);
    replica->listed = true;
    replica->filling = transfer;
    replica->refs = 2;
    transfer->pull.replica = replica;
    replica_take_sum(replica, meta->sum, meta->sum_follows);
    replicas->serve.run = serve_some;
    if (replica_expected_take(replica))
        slice_begin(replica_slices(replicas), &replicas->serve);
    return true;
}

/* ---- readers ---- */

static bool visible_to(const struct replica *replica, const struct owner *requester)
{
    const struct owner *owner = &replica->account->owner;

    if (replica->visibility == RDT__PB__VISIBILITY__VISIBILITY_ALL || owner_equal(owner, requester))
        return true;
    return replica->visibility == RDT__PB__VISIBILITY__VISIBILITY_TENANT && strcmp(owner->tenant, requester->tenant) == 0;
}

/* True: this node cannot have missed a message that the object has ended. If the owner's node cannot deliver that message, it
 * waits for this node until its own timeout after the last message from here, which is not older than the ping that it
 * answered. A quarter of that time is left for clocks that differ. */
bool replica_is_fresh(const struct replica *replica)
{
    const struct peer *peer = replica->origin->peer;
    uint64_t patience = replica->replicas->transfers->options->peer_timeout_ns;

    if (peer->patience_ns < patience)
        patience = peer->patience_ns;
    return peer->state == PEER_UP && peer->epoch == replica->epoch && peer->confirmed_ns != 0 &&
           uv_hrtime() - peer->confirmed_ns < patience / 4 * 3;
}

struct replica *replica_for(const struct replicas *replicas, const struct rdt_ref *ref, const struct owner *requester)
{
    struct replica *replica = replica_find(replicas, ref->node, ref->generation);

    if (!replica || replica->ref.id_bytes != ref->id_bytes || memcmp(replica->ref.id, ref->id, ref->id_bytes) != 0)
        return NULL; /* The owner's node says what is wrong with the ref. */
    if (strcmp(replica->tenant, requester->tenant) != 0 || !visible_to(replica, requester))
        return NULL;
    return replica_is_fresh(replica) ? replica : NULL;
}

void replica_used(struct replica *replica)
{
    if (list_empty(&replica->link))
        return;
    list_remove(&replica->link);
    list_append(&replica->replicas->idle, &replica->link);
}

/* ---- being filled ---- */

enum rdt_status replica_place(struct replica *replica, struct transfer *transfer, struct rdt_error *err)
{
    enum rdt_status status = object_attach(replica->object, &transfer->move.received, 1, err);

    if (status != RDT_OK)
        return status;
    region_clear_gaps(transfer->move.received, replica->object->memory.layout, 0);
    transfer->move.received->origin = REGION_REPLICA;
    transfer->move.received->client = 0;
    event(replica->replicas->transfers->events, RDT__PB__LIST_KIND__LIST_KIND_REGIONS, "kept", transfer->move.received);
    replica->room = transfer->move.received->room;
    replica->placed = true;
    if (replica->listed)
        replica->replicas->bytes += replica->bytes;
    return RDT_OK;
}

enum rdt_status replica_plan(struct replica *replica, const struct chunk_plan *plan, struct rdt_error *err)
{
    /* The stream is cut differently than before, so all chunks must come again. */
    if (replica->arrived && replica->plan_n != plan->n) {
        free(replica->arrived);
        replica->arrived = NULL;
        replica->arrived_to = 0;
    }
    if (!replica->arrived && !(replica->arrived = calloc(plan->n + 1u, sizeof *replica->arrived)))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for %u chunks", plan->n);
    replica->plan = plan;
    replica->plan_n = plan->n;
    replica->refs++;
    replica_pulls_wake(replica); /* Readers may begin: there is memory to send from, though no bytes yet. */
    replica_unref(replica);
    return RDT_OK;
}

void replica_unplan(struct replica *replica)
{
    replica->plan = NULL;
    stop_check(replica);
}

void replica_forget_bytes(struct replica *replica)
{
    if (replica->arrived)
        memset(replica->arrived, 0, replica->plan_n * sizeof *replica->arrived);
    replica->arrived_to = 0;
}

bool replica_wants(const struct replica *replica, uint32_t chunk)
{
    return !replica->arrived[chunk];
}

void replica_arrived(struct replica *replica, uint32_t chunk)
{
    const struct chunk *at = &replica->plan->chunks[chunk];

    replica->arrived[chunk] = true;
    if (at->offset + at->bytes > replica->arrived_to)
        replica->arrived_to = at->offset + at->bytes;
    replica_check_more(replica);
    replica->refs++; /* A pull that fails may be the last that wanted the replica. */
    replica_pulls_wake(replica);
    replica_unref(replica);
}

/* Drops idle replicas, least recently used first, until replicas_max_bytes is met. */
static void make_room(struct replicas *replicas)
{
    list_drain (struct replica, replica, &replicas->idle, link) {
        if (replicas->bytes <= replicas->transfers->options->replicas_max_bytes)
            return;
        drop(replica);
    }
}

void replica_whole(struct replica *replica)
{
    struct replicas *replicas = replica->replicas;
    uint64_t took_ns = uv_hrtime() - replica->filling->record.began_ns;

    replica->rate = (uint64_t)((double)replica->bytes * 1e9 / (double)(took_ns > 0 ? took_ns : 1));
    replica->refs++;
    replica->filling = NULL;
    replica->plan = NULL;
    replica_pulls_wake(replica);
    if (replica->listed) {
        send_replicas(replica->origin, &replica->ref.generation, 1, NULL, NULL, 0);
        make_room(replicas);
        if (replicas->bytes > replicas->transfers->options->replicas_max_bytes)
            drop(replica);
        else /* Every fetch shares the memory now, so it is charged to no user's limit. */
            region_make_common(replica->object->memory.uses[0].region);
    }
    replica_settle(replica);
    replica_unref(replica);
}

void replica_end_filling(struct transfer *transfer)
{
    struct replica *replica = transfer->pull.replica;

    if (!replica)
        return;
    transfer->pull.replica = NULL;
    stop_check(replica);
    if (replica->filling) {
        replica->filling = NULL;
        replica->plan = NULL;
        replica_pulls_fail(replica);
        if (replica->listed)
            drop(replica);
    }
    replica_unref(replica);
}

/* ---- pulls of other nodes ---- */

void replica_serve(struct replicas *replicas, struct serve *serve)
{
    struct replica *replica = replica_find(replicas, serve->ref.node, serve->ref.generation);
    struct rdt_error err;

    replica_leave(replicas, serve);
    if (!replica && !replica_expect(replicas, serve)) {
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory to wait for the replica of object \"%s\"", serve->ref.id);
        replicas->events->on_refused(serve, &err);
        return;
    }
    if (!replica) {
        (void)deadline_set(replicas->transfers->deadlines, &serve->deadline, EXPECT_NS);
        return;
    }
    deadline_unset(replicas->transfers->deadlines, &serve->deadline); /* The reader watches the time. */
    if (!visible_to(replica, &serve->account->owner)) {
        (void)rdt_error_set(&err, RDT_DENIED, "the replica of object \"%s\" is not visible to uid %u", serve->ref.id,
                            serve->account->owner.uid);
        replicas->events->on_refused(serve, &err);
        return;
    }
    replica->refs++;
    serve->replica = replica;
    replica_pulls_join(replica, serve);
    replica_settle(replica);
    replicas->events->on_found(serve, replica->object);
}

void replica_unserve(struct serve *serve)
{
    struct replica *replica = serve->replica;

    replica_leave(&serve->transfers->replicas, serve);
    serve->replica = NULL;
    if (!replica)
        return;
    if (replica->filling && !replica_has_pulls(replica))
        replica->replicas->events->on_unwanted(replica->filling);
    replica_settle(replica);
    replica_unref(replica);
}

/* ---- messages from the owner's node ---- */

/* Reports replicas, and drops those of an earlier daemon. */
static bool report_some(struct slice *slice, uint64_t until_ns)
{
    struct remote_replicas *replicas = container_of(slice, struct remote_replicas, report);
    struct remote *remote = container_of(replicas, struct remote, replicas);
    uint64_t generations[REPLICAS_MAX_GENERATIONS];
    size_t n = 0;

    while (!list_empty(&replicas->to_report) && n < REPLICAS_MAX_GENERATIONS) {
        struct replica *replica = container_of(list_first(&replicas->to_report), struct replica, by_remote);
        list_remove(&replica->by_remote);
        list_append(&replicas->listed, &replica->by_remote);
        if (is_stale(replica))
            unlist(replica);
        else if (!replica->filling) /* it is reported when it is complete */
            generations[n++] = replica->ref.generation;
        if (uv_hrtime() >= until_ns)
            break;
    }
    if (n > 0)
        send_replicas(remote, generations, n, NULL, NULL, 0);
    return list_empty(&replicas->to_report);
}

void replicas_peer_up(struct remote *remote)
{
    struct remote_replicas *replicas = &remote->replicas;

    list_splice(&replicas->to_report, &replicas->listed);
    replicas->report.run = report_some;
    slice_begin(remote_slices(remote), &replicas->report);
}

static const char *why_again(Rdt__Pb__AskAgainWhy why)
{
    switch (why) {
    case RDT__PB__ASK_AGAIN_WHY__ASK_AGAIN_WHY_SOURCE:
        return "that node was found to lag behind others, and got a place at the end";
    case RDT__PB__ASK_AGAIN_WHY__ASK_AGAIN_WHY_READER:
        return "that node found that this one lags behind others, and one of the two must be slow";
    case RDT__PB__ASK_AGAIN_WHY__ASK_AGAIN_WHY_COMPARE:
        return "the owner's node compared this one with another reader";
    default:
        return "the owner's node had a better source";
    }
}

/* The object may have been freed by force meanwhile: then its replica is not listed. */
static void take_due_sum(struct remote *origin, uint64_t generation, uint64_t sum)
{
    struct replica_sum promised;
    struct replica *replica;

    name_sum(&promised, origin, generation);
    replica = map_get(&origin->transfers->replicas.summing, promised.key, sizeof promised.key);
    if (replica)
        replica_take_sum(replica, sum, false);
}

void replicas_on_message(struct replicas *replicas, struct remote *remote, const Rdt__Pb__Replicas *message)
{
    for (size_t i = 0; i < message->n_valid; i++) {
        struct replica *replica = replica_find(replicas, remote->peer->uuid, message->valid[i]);
        if (replica)
            replica->epoch = remote->peer->epoch;
        else /* The replica was dropped while the message was under way. */
            replica_decline(remote, message->valid[i]);
    }
    for (size_t i = 0; i < message->n_forced; i++) {
        struct replica *replica = replica_find(replicas, remote->peer->uuid, message->forced[i]);
        if (replica)
            replica->object->access.forced = true;
    }
    for (size_t i = 0; i < message->n_invalid; i++) {
        struct replica *replica = replica_find(replicas, remote->peer->uuid, message->invalid[i]);
        if (replica)
            unlist(replica);
    }
    for (size_t i = 0; i < message->n_summed && i < message->n_sums; i++)
        take_due_sum(remote, message->summed[i], message->sums[i]);
    for (size_t i = 0; i < message->n_ask_again; i++) {
        struct replica *replica = replica_find(replicas, remote->peer->uuid, message->ask_again[i]);
        if (replica && replica->filling)
            replicas->events->on_ask_again(replica->filling,
                                           why_again(i < message->n_ask_again_why ? message->ask_again_why[i] : 0));
    }
    if (message->n_invalid > 0)
        send_replicas(remote, NULL, 0, NULL, message->invalid, message->n_invalid);
}

/* ---- memory ---- */

uint64_t replicas_evict(struct replicas *replicas, uint64_t bytes)
{
    uint64_t idle_room = replicas->idle_room, evicted = 0;

    if (idle_room < bytes)
        return idle_room; /* Evicting all idle replicas would not free enough memory. */
    list_drain (struct replica, replica, &replicas->idle, link) {
        if (evicted >= bytes)
            break;
        evicted += replica->room;
        log_debug("obj %016llx: evicting its replica", (unsigned long long)replica->ref.generation);
        drop(replica);
    }
    return idle_room;
}
