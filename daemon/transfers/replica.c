/* SPDX-License-Identifier: Apache-2.0 */
/* See replica.h. */
#include <assert.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/memory/region_cache.h"
#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_impl.h"

/* How long a pull waits for the answer that creates the replica. */
#define EXPECT_NS 5000000000ll
#define STILL_BEATS 16u       /* for so long no chunk may move although there is one: the reader stays */
#define MAX_GENERATIONS 1000u /* of one message */

void replicas_init(struct replicas *replicas, struct transfers *transfers, const struct replica_events *events)
{
    *replicas = (struct replicas){.transfers = transfers, .events = events};
    map_init(&replicas->by_origin);
    list_init(&replicas->listed);
    list_init(&replicas->expected);
}

static void make_key(const uint8_t node[16], uint64_t generation, uint8_t key[24])
{
    memcpy(key, node, 16);
    memcpy(key + 16, &generation, 8);
}

struct replica *replica_find(const struct replicas *replicas, const uint8_t node[16], uint64_t generation)
{
    uint8_t key[24];

    make_key(node, generation, key);
    return generation ? map_get(&replicas->by_origin, key, sizeof key) : NULL;
}

/* ---- messages to the owner's node ---- */

static void send_copies(struct peer_session *origin, uint64_t *whole, size_t n_whole, uint64_t *dropped, uint64_t *invalidated,
                        size_t n_invalidated)
{
    Rdt__Pb__Replicas copies = RDT__PB__REPLICAS__INIT;

    copies.whole = whole;
    copies.n_whole = n_whole;
    copies.dropped = dropped;
    copies.n_dropped = dropped ? 1 : 0;
    copies.invalidated = invalidated;
    copies.n_invalidated = n_invalidated;
    /* Link down: the owner's node has dropped its entry already. */
    (void)peer_session_send(origin, RDT_PEER_REPLICAS, &copies.base, NULL);
}

void replica_decline(struct peer_session *origin, uint64_t generation)
{
    send_copies(origin, NULL, 0, &generation, NULL, 0);
}

/* ---- life ---- */

static void replica_unref(struct replica *replica)
{
    assert(replica->refs > 0);
    if (--replica->refs > 0)
        return;
    assert(list_empty(&replica->pulls) && list_empty(&replica->waiters) && !replica->listed);
    deadline_unset(replica->replicas->transfers->deadlines, &replica->beat);
    if (replica->object)
        object_drop(replica->object); /* Fetches that hold the object keep it. */
    account_unref(replica->account);
    replica->origin->n_replicas--;
    free(replica->arrived);
    free(replica);
}

/* Makes sure that no later fetch finds the replica. */
static void unlist(struct replica *replica)
{
    if (!replica->listed)
        return;
    replica->listed = false;
    map_remove(&replica->replicas->by_origin, replica->key, sizeof replica->key);
    list_remove(&replica->link);
    if (replica->placed)
        replica->replicas->bytes -= replica->bytes;
    replica_unref(replica);
}

static void drop(struct replica *replica)
{
    replica_decline(replica->origin, replica->ref.generation);
    unlist(replica);
}

void replicas_close(struct replicas *replicas)
{
    while (!list_empty(&replicas->listed))
        unlist(container_of(list_first(&replicas->listed), struct replica, link));
}

void replicas_fini(struct replicas *replicas)
{
    assert(list_empty(&replicas->listed));
    map_fini(&replicas->by_origin);
}

/* Creates the replica's object, still without memory. */
static bool adopt(struct replica *replica, const struct transfer *transfer)
{
    struct object_put put = {.account = replica->account,
                             .id = (const uint8_t *)replica->ref.id,
                             .id_bytes = replica->ref.id_bytes,
                             .metadata = transfer->metadata,
                             .metadata_bytes = transfer->metadata_bytes,
                             .box_bytes = transfer->box_bytes,
                             .visibility = replica->visibility,
                             .transport = "",
                             .snapshot = true};

    if (layout_packed(transfer->source, &put.layout, &replica->bytes, NULL) != RDT_OK)
        return false;
    if (object_table_adopt(replica->replicas->transfers->objects, &put, &replica->object, NULL) == RDT_OK)
        return true;
    free(put.layout);
    return false;
}

static void wake_expected(struct replica *replica)
{
    list_each_safe (struct serve, out, &replica->replicas->expected, by_replica)
        if (out->ref.generation == replica->ref.generation && memcmp(out->ref.node, replica->ref.node, 16) == 0)
            replica_serve(replica->replicas, out);
}

bool replica_create(struct transfer *transfer, const Rdt__Pb__PullMeta *meta)
{
    struct replicas *replicas = &transfer->transfers->replicas;
    const struct rdt_ref *ref = &transfer->ref;
    struct owner owner = {.uid = ref->uid};
    struct replica *replica = calloc(1, sizeof *replica);

    assert(!transfer->pull.replica);
    if (!replica)
        return false;
    memcpy(owner.tenant, ref->tenant, sizeof owner.tenant);
    make_key(ref->node, ref->generation, replica->key);
    replica->replicas = replicas;
    replica->ref = *ref;
    replica->origin = transfer->pull.origin;
    memcpy(replica->boot_id, transfer->pull.origin->peer->boot_id, sizeof replica->boot_id);
    replica->epoch = transfer->pull.origin->peer->epoch;
    memcpy(replica->tenant, transfer->account->owner.tenant, sizeof replica->tenant);
    replica->account = account_get(replicas->transfers->objects->accounts, &owner);
    replica->visibility = (Rdt__Pb__Visibility)meta->visibility;
    list_init(&replica->pulls);
    list_init(&replica->waiters);
    if (!replica->account || !adopt(replica, transfer) ||
        !map_put(&replicas->by_origin, replica->key, sizeof replica->key, replica)) {
        if (replica->object)
            object_drop(replica->object);
        account_unref(replica->account);
        free(replica);
        return false;
    }
    replica->origin->n_replicas++;
    list_append(&replicas->listed, &replica->link);
    replica->listed = true;
    replica->filling = transfer;
    replica->refs = 2;
    transfer->pull.replica = replica;
    wake_expected(replica);
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
    if (!replica->listed)
        return;
    list_remove(&replica->link);
    list_append(&replica->replicas->listed, &replica->link);
}

/* ---- being filled ---- */

enum rdt_status replica_place(struct replica *replica, struct transfer *transfer, struct rdt_error *err)
{
    enum rdt_status status = object_attach(replica->object, &transfer->received, 1, err);

    if (status != RDT_OK)
        return status;
    region_clear_gaps(transfer->received, replica->object->layout, 0);
    transfer->received->origin = REGION_COPY;
    transfer->received->client = 0;
    event(replica->replicas->transfers->events, RDT__PB__LIST_KIND__LIST_KIND_REGIONS, "kept", transfer->received);
    replica->placed = true;
    if (replica->listed)
        replica->replicas->bytes += replica->bytes;
    return RDT_OK;
}

static void wake_pulls(struct replica *replica)
{
    list_for_each_safe (node, &replica->pulls)
        replica->replicas->events->on_arrived(container_of(node, struct serve, by_replica));
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
    wake_pulls(replica); /* Readers may begin: there is memory to send from, though no bytes yet. */
    replica_unref(replica);
    return RDT_OK;
}

void replica_unplan(struct replica *replica)
{
    replica->plan = NULL;
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
    replica->refs++; /* A pull that fails may be the last that wanted the replica. */
    wake_pulls(replica);
    replica_unref(replica);
}

static bool idle(const struct replica *replica)
{
    return replica->placed && !replica->filling && list_empty(&replica->pulls) && replica->object->holds == 1 &&
           replica->object->pins == 0;
}

/* Drops idle replicas, least recently used first, until replicas_max_bytes is met. */
static void make_room(struct replicas *replicas)
{
    list_each_safe (struct replica, replica, &replicas->listed, link) {
        if (replicas->bytes <= replicas->transfers->options->replicas_max_bytes)
            return;
        if (idle(replica))
            drop(replica);
    }
}

static void tell_waiters(struct replica *replica)
{
    list_drain (struct replica_waiter, waiter, &replica->waiters, link) {
        list_remove(&waiter->link);
        waiter->on_end(waiter);
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
    wake_pulls(replica);
    if (replica->listed) {
        replica_used(replica);
        send_copies(replica->origin, &replica->ref.generation, 1, NULL, NULL, 0);
        make_room(replicas);
        if (replicas->bytes > replicas->transfers->options->replicas_max_bytes)
            drop(replica);
        else /* Every fetch shares the memory now, so it is charged to no user's limit. */
            region_make_common(replica->object->uses[0].region);
    }
    tell_waiters(replica);
    replica_unref(replica);
}

void replica_end_filling(struct transfer *transfer)
{
    struct replica *replica = transfer->pull.replica;

    if (!replica)
        return;
    transfer->pull.replica = NULL;
    if (replica->filling) {
        struct rdt_error err;
        replica->filling = NULL;
        replica->plan = NULL;
        (void)rdt_error_set(&err, RDT_PEER_LOST, "the replica of object \"%s\" on this node will not become complete",
                            replica->ref.id);
        list_drain (struct serve, out, &replica->pulls, by_replica) {
            list_remove(&out->by_replica); /* Its operations may have to end first. */
            replica->replicas->events->on_failed(out, &err);
        }
        if (replica->listed)
            drop(replica);
        tell_waiters(replica);
    }
    replica_unref(replica);
}

bool replica_in_demand(const struct replica *replica)
{
    return replica && (!list_empty(&replica->pulls) || !list_empty(&replica->waiters) ||
                       (replica->filling && replica->filling->pull.member));
}

/* ---- pulls of other nodes ---- */

static bool has_next(const struct serve *out)
{
    return out->sm.state == SERVE_SENDING && out->plan &&
           (out->next_chunk >= out->plan->n ||
            replica_has(out->replica, out->plan->chunks[out->next_chunk].offset, out->plan->chunks[out->next_chunk].bytes));
}

/* Whether this node can say that it serves the pull: it waits for bytes itself, or chunks have moved lately. */
static bool can_vouch(struct serve *out)
{
    if (!has_next(out) || out->chunks_done != out->chunks_at_beat)
        out->beats = 0;
    out->chunks_at_beat = out->chunks_done;
    return out->beats++ < STILL_BEATS;
}

/* Readers leave a node that is silent. This one may have no bytes for them, or a slow way, but is alive. */
static void on_beat(struct deadline *deadline)
{
    struct replica *replica = container_of(deadline, struct replica, beat);

    if (list_empty(&replica->pulls))
        return;
    list_each (struct serve, out, &replica->pulls, by_replica) {
        Rdt__Pb__PullParked parked = RDT__PB__PULL_PARKED__INIT;
        parked.transfer = out->number;
        if (can_vouch(out))
            (void)peer_session_send(out->session, RDT_PEER_PULL_PARKED, &parked.base, NULL);
    }
    (void)deadline_set(replica->replicas->transfers->deadlines, &replica->beat, FANOUT_BEAT_NS);
}

void replica_reader_is_slow(const struct replica *replica, const struct peer_session *reader, enum fanout_verdict verdict)
{
    Rdt__Pb__Replicas message = RDT__PB__REPLICAS__INIT;
    Rdt__Pb__SlowReader slow = RDT__PB__SLOW_READER__INIT, *list = &slow;

    slow.generation = replica->ref.generation;
    slow.node = (ProtobufCBinaryData){sizeof reader->peer->uuid, (uint8_t *)reader->peer->uuid};
    slow.lags = verdict == FANOUT_LAGS;
    message.slow = &list;
    message.n_slow = 1;
    (void)peer_session_send(replica->origin, RDT_PEER_REPLICAS, &message.base, NULL);
}

void replica_serve(struct replicas *replicas, struct serve *out)
{
    struct replica *replica = replica_find(replicas, out->ref.node, out->ref.generation);
    struct rdt_error err;

    list_remove(&out->by_replica);
    if (!replica) {
        list_append(&replicas->expected, &out->by_replica);
        (void)deadline_set(replicas->transfers->deadlines, &out->deadline, EXPECT_NS);
        return;
    }
    deadline_unset(replicas->transfers->deadlines, &out->deadline); /* The reader watches the time. */
    if (!visible_to(replica, &out->account->owner)) {
        (void)rdt_error_set(&err, RDT_DENIED, "the replica of object \"%s\" is not visible to uid %u", out->ref.id,
                            out->account->owner.uid);
        replicas->events->on_refused(out, &err);
        return;
    }
    replica_used(replica);
    replica->refs++;
    out->replica = replica;
    list_append(&replica->pulls, &out->by_replica);
    replica->beat.on_passed = on_beat;
    if (deadline_left_ns(&replica->beat) < 0) /* Without memory for it, readers may leave early. */
        (void)deadline_set(replicas->transfers->deadlines, &replica->beat, FANOUT_BEAT_NS);
    replicas->events->on_found(out, replica->object);
}

void replica_unserve(struct serve *out)
{
    struct replica *replica = out->replica;

    list_remove(&out->by_replica);
    out->replica = NULL;
    if (!replica)
        return;
    if (replica->filling && list_empty(&replica->pulls))
        replica->replicas->events->on_unwanted(replica->filling);
    replica_unref(replica);
}

bool replica_reaches(const struct replica *replica, uint64_t offset)
{
    return !replica->filling || offset < replica->arrived_to;
}

bool replica_has(const struct replica *replica, uint64_t offset, uint64_t bytes)
{
    const struct chunk_plan *plan = replica->plan;
    uint32_t lo = 0, hi;

    if (!replica->filling)
        return true; /* All bytes are there; or the filling has failed, and with it all pulls. */
    if (!plan)
        return false;
    for (hi = plan->n; lo < hi;) { /* Finds the first chunk that ends after `offset`. */
        uint32_t middle = lo + (hi - lo) / 2;
        if (plan->chunks[middle].offset + plan->chunks[middle].bytes > offset)
            hi = middle;
        else
            lo = middle + 1;
    }
    for (; lo < plan->n && plan->chunks[lo].offset < offset + bytes; lo++)
        if (!replica->arrived[lo])
            return false;
    return true;
}

/* ---- messages from the owner's node ---- */

void replicas_peer_up(struct replicas *replicas, struct peer_session *session)
{
    uint64_t generations[MAX_GENERATIONS];
    size_t n = 0;

    list_each_safe (struct replica, replica, &replicas->listed, link) {
        if (replica->origin != session)
            continue;
        if (memcmp(replica->boot_id, session->peer->boot_id, sizeof replica->boot_id) != 0) {
            unlist(replica); /* The node has restarted, so its objects are gone. */
            continue;
        }
        if (replica->filling) /* it is reported when it is complete */
            continue;
        generations[n++] = replica->ref.generation;
        if (n == MAX_GENERATIONS) {
            send_copies(session, generations, n, NULL, NULL, 0);
            n = 0;
        }
    }
    if (n > 0)
        send_copies(session, generations, n, NULL, NULL, 0);
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

void replicas_on_message(struct replicas *replicas, struct peer_session *session, const Rdt__Pb__Replicas *message)
{
    for (size_t i = 0; i < message->n_valid; i++) {
        struct replica *replica = replica_find(replicas, session->peer->uuid, message->valid[i]);
        if (replica)
            replica->epoch = session->peer->epoch;
        else /* The replica was dropped while the message was under way. */
            replica_decline(session, message->valid[i]);
    }
    for (size_t i = 0; i < message->n_invalid; i++) {
        struct replica *replica = replica_find(replicas, session->peer->uuid, message->invalid[i]);
        if (replica)
            unlist(replica);
    }
    for (size_t i = 0; i < message->n_ask_again; i++) {
        struct replica *replica = replica_find(replicas, session->peer->uuid, message->ask_again[i]);
        if (replica && replica->filling)
            replicas->events->on_ask_again(replica->filling,
                                           why_again(i < message->n_ask_again_why ? message->ask_again_why[i] : 0));
    }
    if (message->n_invalid > 0)
        send_copies(session, NULL, 0, NULL, message->invalid, message->n_invalid);
}

/* ---- memory ---- */

uint64_t replicas_evict(struct replicas *replicas, uint64_t bytes)
{
    uint64_t idle_bytes = 0, evicted_bytes = 0;

    list_each (const struct replica, replica, &replicas->listed, link)
        idle_bytes += idle(replica) ? replica->bytes : 0;
    if (idle_bytes < bytes)
        return idle_bytes; /* Evicting all idle replicas would not free enough memory. */
    list_each_safe (struct replica, replica, &replicas->listed, link) {
        if (evicted_bytes >= bytes)
            break;
        if (!idle(replica))
            continue;
        evicted_bytes += replica->bytes;
        log_debug("obj %016llx: evicting its replica", (unsigned long long)replica->ref.generation);
        drop(replica);
    }
    return idle_bytes;
}
