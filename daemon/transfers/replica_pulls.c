/* SPDX-License-Identifier: Apache-2.0 */
/* What other nodes pull from the replicas of this node. A node may send very many pulls, so they are served, told that more has
 * arrived, and failed in slices of the loop. */
#include <assert.h>
#include <stdlib.h>

#include "daemon/transfers/remote.h"
#include "daemon/transfers/replica_pulls.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer.h"

#define STILL_BEATS 16u /* for so long no chunk may move although there is one: the reader stays */

struct slices *replica_slices(const struct replicas *replicas)
{
    return replicas->transfers->closing ? NULL : &replicas->transfers->deadlines->slices;
}

/* ---- pulls that are earlier than their replica ---- */

void replica_expected_init(struct replicas *replicas)
{
    map_init(&replicas->expected);
    list_init(&replicas->arrived);
}

void replica_expected_fini(struct replicas *replicas)
{
    slice_stop(&replicas->serve);
    map_fini(&replicas->expected);
}

struct expected {
    struct list pulls;   /* struct serve.by_replica; never empty */
    uint8_t key[16 + 8]; /* as in struct replica */
};

static struct expected *find_expected(const struct replicas *replicas, const struct serve *serve)
{
    uint8_t key[16 + 8];

    replica_key(serve->ref.node, serve->ref.generation, key);
    return map_get(&replicas->expected, key, sizeof key);
}

static void drop_expected(struct replicas *replicas, struct expected *expected)
{
    map_remove(&replicas->expected, expected->key, sizeof expected->key);
    free(expected);
}

bool replica_expect(struct replicas *replicas, struct serve *serve)
{
    struct expected *expected = find_expected(replicas, serve);

    if (!expected) {
        expected = calloc(1, sizeof *expected);
        if (!expected)
            return false;
        list_init(&expected->pulls);
        replica_key(serve->ref.node, serve->ref.generation, expected->key);
        if (!map_put(&replicas->expected, expected->key, sizeof expected->key, expected)) {
            free(expected);
            return false;
        }
    }
    list_append(&expected->pulls, &serve->by_replica);
    return true;
}

void replica_leave(struct replicas *replicas, struct serve *serve)
{
    struct expected *expected = serve->replica || list_empty(&serve->by_replica) ? NULL : find_expected(replicas, serve);

    list_remove(&serve->by_replica);
    if (expected && list_empty(&expected->pulls))
        drop_expected(replicas, expected);
}

bool replica_expected_take(struct replica *replica)
{
    struct replicas *replicas = replica->replicas;
    struct expected *expected = map_get(&replicas->expected, replica->key, sizeof replica->key);

    if (!expected)
        return false;
    list_splice(&replicas->arrived, &expected->pulls);
    drop_expected(replicas, expected);
    return true;
}

/* ---- pulls of a replica ---- */

void replica_pulls_init(struct replica *replica)
{
    list_init(&replica->pulls.told);
    list_init(&replica->pulls.woken);
    list_init(&replica->pulls.failing);
}

void replica_pulls_fini(struct replica *replica)
{
    assert(!replica_has_pulls(replica));
    slice_stop(&replica->pulls.tell);
    deadline_unset(replica->replicas->transfers->deadlines, &replica->pulls.beat);
}

bool replica_has_pulls(const struct replica *replica)
{
    return !list_empty(&replica->pulls.told) || !list_empty(&replica->pulls.woken) || !list_empty(&replica->pulls.failing);
}

static bool has_next(const struct serve *serve)
{
    return serve->sm.state == SERVE_SENDING && serve->sending.plan &&
           (serve->sending.next >= serve->sending.plan->n ||
            replica_has(serve->replica, serve->sending.plan->chunks[serve->sending.next].offset,
                        serve->sending.plan->chunks[serve->sending.next].bytes));
}

/* Whether this node can say that it serves the pull: it waits for bytes itself, or chunks have moved lately. */
static bool can_vouch(struct serve *serve)
{
    if (!has_next(serve) || serve->sending.n_done != serve->chunks_at_beat)
        serve->beats = 0;
    serve->chunks_at_beat = serve->sending.n_done;
    return serve->beats++ < STILL_BEATS;
}

/* Readers leave a node that is silent. This one may have no bytes for them, or a slow way, but is alive. */
static void beat(struct serve *serve)
{
    Rdt__Pb__PullAlive alive = RDT__PB__PULL_ALIVE__INIT;

    serve->beat = serve->replica->pulls.n_beats;
    alive.transfer = serve->number;
    if (can_vouch(serve))
        (void)remote_send_over(serve->remote, serve->epoch, RDT_PEER_PULL_ALIVE, &alive.base, NULL);
}

static void fail_pull(const struct replica *replica, struct serve *serve)
{
    struct rdt_error err;

    list_remove(&serve->by_replica); /* Its operations may have to end first. */
    (void)rdt_error_set(&err, RDT_PEER_LOST, "the replica of object \"%s\" on this node will not become complete",
                        replica->ref.id);
    replica->replicas->events->on_failed(serve, &err);
}

static void tell_pull(struct replica *replica, struct serve *serve)
{
    list_remove(&serve->by_replica);
    list_append(&replica->pulls.told, &serve->by_replica);
    if (serve->beat != replica->pulls.n_beats)
        beat(serve);
    replica->replicas->events->on_arrived(serve);
}

bool replica_pulls_tell(struct replica *replica, uint64_t until_ns)
{
    for (;;) {
        if (!list_empty(&replica->pulls.failing))
            fail_pull(replica, container_of(list_first(&replica->pulls.failing), struct serve, by_replica));
        else if (!list_empty(&replica->pulls.woken))
            tell_pull(replica, container_of(list_first(&replica->pulls.woken), struct serve, by_replica));
        else
            return true;
        if (uv_hrtime() >= until_ns)
            return list_empty(&replica->pulls.failing) && list_empty(&replica->pulls.woken);
    }
}

static void begin_telling(struct replica *replica)
{
    if (!list_empty(&replica->pulls.failing) || !list_empty(&replica->pulls.woken))
        slice_begin(replica_slices(replica->replicas), &replica->pulls.tell);
}

void replica_pulls_wake(struct replica *replica)
{
    list_splice(&replica->pulls.woken, &replica->pulls.told);
    begin_telling(replica);
}

void replica_pulls_fail(struct replica *replica)
{
    list_splice(&replica->pulls.failing, &replica->pulls.told);
    list_splice(&replica->pulls.failing, &replica->pulls.woken);
    begin_telling(replica);
}

bool replica_in_demand(const struct replica *replica)
{
    return replica && replica_has_pulls(replica);
}

static void on_beat(struct deadline *deadline)
{
    struct replica *replica = container_of(deadline, struct replica, pulls.beat);

    if (!replica_has_pulls(replica))
        return;
    replica->pulls.n_beats++;
    (void)deadline_set(replica->replicas->transfers->deadlines, deadline, FANOUT_BEAT_NS);
    replica_pulls_wake(replica);
}

void replica_pulls_join(struct replica *replica, struct serve *serve)
{
    serve->beat = replica->pulls.n_beats;
    list_append(&replica->pulls.told, &serve->by_replica);
    replica->pulls.beat.on_passed = on_beat;
    if (deadline_left_ns(&replica->pulls.beat) < 0) /* Without memory for it, readers may leave early. */
        (void)deadline_set(replica->replicas->transfers->deadlines, &replica->pulls.beat, FANOUT_BEAT_NS);
}

void replica_reader_is_slow(const struct replica *replica, const struct remote *reader, enum fanout_verdict verdict)
{
    Rdt__Pb__Replicas message = RDT__PB__REPLICAS__INIT;
    Rdt__Pb__SlowReader slow = RDT__PB__SLOW_READER__INIT, *list = &slow;

    slow.generation = replica->ref.generation;
    slow.node = (ProtobufCBinaryData){sizeof reader->peer->uuid, (uint8_t *)reader->peer->uuid};
    slow.lags = verdict == FANOUT_LAGS;
    message.slow = &list;
    message.n_slow = 1;
    (void)remote_send(replica->origin, RDT_PEER_REPLICAS, &message.base, NULL);
}

bool replica_reaches(const struct replica *replica, uint64_t offset)
{
    return (!replica->filling && list_empty(&replica->pulls.failing)) || offset < replica->arrived_to;
}

bool replica_has(const struct replica *replica, uint64_t offset, uint64_t bytes)
{
    const struct chunk_plan *plan = replica->plan;
    uint32_t lo = 0, hi;

    if (!replica->filling && list_empty(&replica->pulls.failing))
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
