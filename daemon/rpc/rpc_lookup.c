/* SPDX-License-Identifier: Apache-2.0 */
/* LOOKUP and LEASE_END: which of many ids of the caller there are, leased from the moment in which each was found; and the ends
 * of such leases. A lease is a hold in transit (daemon/objects/transit.h): it belongs to no session, and ends by itself.
 *
 *   LOOKUP     find ── lease ── find ── lease ── … in slices ──► answer: nothing of it is evicted until the lease ends
 *              if a lease is refused: the end of those before it, in slices ──► the error
 *   LEASE_END  the same walk, by generations */
#include <stdlib.h>

#include "daemon/calls/call.h"
#include "daemon/objects/transit.h"
#include "daemon/rpc/rpc.h"

#define KEY_HEAP_BYTES 8u

struct lookup {
    struct slice slice;
    struct call *call;
    struct arena arena; /* of the message */
    const Rdt__Pb__Lookup *message;
    const Rdt__Pb__LeaseEnd *ends; /* NULL: it looks */
    uint64_t *generation;          /* [n] */
    uint32_t n, next;
    uint64_t id_at; /* of the next id, in the message's ids */
    uint64_t heap;
    struct rdt_error refused; /* a lease was */
};

static void lookup_free(struct lookup *lookup)
{
    struct call *call = lookup->call;

    slice_stop(&lookup->slice);
    account_give(call->account, USAGE_HEAP, lookup->heap);
    work_free_arena(call->rpc->regions->pool, &lookup->arena);
    free(lookup->generation);
    free(lookup);
}

static void on_end(struct call *call)
{
    lookup_free(call->waiting);
}

static void answer(struct lookup *lookup)
{
    Rdt__Pb__LookupReply reply = RDT__PB__LOOKUP_REPLY__INIT;
    struct call *call = lookup->call;
    uint64_t *generation = lookup->generation;
    struct rdt_error refused = lookup->refused;
    bool looks = !lookup->ends;

    reply.generation = generation;
    reply.n_generation = lookup->next;
    lookup->generation = NULL;
    lookup_free(lookup);
    call->on_end = NULL;
    if (refused.status != RDT_OK)
        call_fail(call, &refused);
    else if (looks)
        call_reply(call, &reply.base, NULL, 0);
    else
        call_reply_empty(call);
    free(generation);
}

/* 0: there is none. */
static uint64_t find(struct lookup *lookup, const uint8_t *id, uint32_t id_bytes)
{
    struct object_table *objects = lookup->call->rpc->objects;
    const struct owner *owner = &lookup->call->account->owner;
    struct object *object = object_table_of_id(objects, owner, id, id_bytes);

    if (!object || object->state != OBJECT_LIVE) {
        cache_missed(&objects->cache, owner);
        return 0;
    }
    if (lookup->message->lease_ns > 0 && transit_begin(object, lookup->message->lease_ns, &lookup->refused) != RDT_OK)
        return 0;
    if (object->cached)
        cache_found(object, true);
    return object->generation;
}

/* The last one first: the beginning of a prefix is then what was used last, and stays longest. */
static bool end_some(struct slice *slice, uint64_t until_ns)
{
    struct lookup *lookup = container_of(slice, struct lookup, slice);
    const uint64_t *generations = lookup->ends ? lookup->ends->generation : lookup->generation;

    while (lookup->next < lookup->n) {
        uint64_t generation = generations[lookup->n - ++lookup->next];
        struct object *object = index_get(&lookup->call->rpc->objects->by_generation, generation);
        if (object && owner_equal(&object->account->owner, &lookup->call->account->owner)) {
            object_hold(object);
            transit_arrived(object);
            object_drop(object);
        }
        if (uv_hrtime() >= until_ns)
            return false;
    }
    answer(lookup);
    return true;
}

static bool look_some(struct slice *slice, uint64_t until_ns)
{
    struct lookup *lookup = container_of(slice, struct lookup, slice);
    const Rdt__Pb__Lookup *message = lookup->message;

    while (lookup->next < lookup->n) {
        uint32_t id_bytes = message->id_bytes[lookup->next];
        uint64_t generation = find(lookup, message->ids.data + lookup->id_at, id_bytes);
        if (lookup->refused.status != RDT_OK) { /* ends the leases that it has begun */
            lookup->n = lookup->next;
            lookup->next = 0;
            lookup->slice.run = end_some;
            return end_some(slice, until_ns);
        }
        if (generation == 0 && message->prefix)
            break;
        lookup->generation[lookup->next++] = generation;
        lookup->id_at += id_bytes;
        if (uv_hrtime() >= until_ns)
            return false;
    }
    answer(lookup);
    return true;
}

static enum rdt_status start(struct call *call, uint32_t n, const Rdt__Pb__Lookup *message, const Rdt__Pb__LeaseEnd *ends,
                             struct rdt_error *err)
{
    uint64_t heap = call->request.arena->used_bytes + (uint64_t)n * KEY_HEAP_BYTES;
    enum rdt_status status = account_take(call->account, USAGE_HEAP, heap, err);
    struct lookup *lookup;

    if (status != RDT_OK)
        return status;
    lookup = calloc(1, sizeof *lookup);
    if (lookup)
        lookup->generation = calloc(n + 1u, sizeof *lookup->generation);
    if (!lookup || !lookup->generation) {
        free(lookup);
        account_give(call->account, USAGE_HEAP, heap);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to look for %u ids", n);
    }
    lookup->call = call;
    lookup->message = message;
    lookup->ends = ends;
    lookup->n = n;
    lookup->heap = heap;
    lookup->slice.run = ends ? end_some : look_some;
    arena_init(&lookup->arena, RDT_MAX_DECODED_BYTES);
    status = call_defer(call, -1, on_end, err);
    if (status != RDT_OK) {
        call->on_end = NULL;
        lookup_free(lookup);
        return status;
    }
    call_take_request(call, &lookup->arena);
    lookup->arena.on_block = NULL; /* it was for the pool's threads */
    call->waiting = lookup;
    slice_begin(&call->rpc->deadlines->slices, &lookup->slice);
    return RDT_OK;
}

enum rdt_status rpc_lookup(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Lookup *message = request;
    uint64_t bytes = 0;

    if (message->n_id_bytes > RDT_MAX_FETCH_REFS)
        return rdt_error_set(err, RDT_LIMIT, "the message looks for %zu ids: at most %u are possible", message->n_id_bytes,
                             RDT_MAX_FETCH_REFS);
    if (message->lease_ns < 0 || (uint64_t)message->lease_ns > call->rpc->options->detached_max_ns)
        return rdt_error_set(err, RDT_LIMIT, "a lease of %.3f s is below 0 or above detached_ttl_max, %.3f s",
                             (double)message->lease_ns / 1e9, (double)call->rpc->options->detached_max_ns / 1e9);
    for (size_t i = 0; i < message->n_id_bytes; i++) {
        if (message->id_bytes[i] == 0 || message->id_bytes[i] > RDT_MAX_ID_BYTES)
            return rdt_error_set(err, RDT_INVALID, "id %zu has %u bytes, not 1 to %u", i, message->id_bytes[i],
                                 RDT_MAX_ID_BYTES);
        bytes += message->id_bytes[i];
    }
    if (bytes != message->ids.len)
        return rdt_error_set(err, RDT_INVALID, "the ids have %zu bytes, and %llu are said", message->ids.len,
                             (unsigned long long)bytes);
    return start(call, (uint32_t)message->n_id_bytes, message, NULL, err);
}

enum rdt_status rpc_lease_end(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__LeaseEnd *message = request;

    if (message->n_generation > RDT_MAX_FETCH_REFS)
        return rdt_error_set(err, RDT_LIMIT, "the message ends %zu leases: at most %u are possible", message->n_generation,
                             RDT_MAX_FETCH_REFS);
    return start(call, (uint32_t)message->n_generation, NULL, message, err);
}
