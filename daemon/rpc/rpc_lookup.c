/* SPDX-License-Identifier: Apache-2.0 */
/* LOOKUP and LEASE_END: which of many ids of the caller there are, leased from the moment in which each was found; and the ends
 * of such leases. A lease is a hold in transit (daemon/objects/transit.h): it belongs to no session, and ends by itself.
 *
 *   LOOKUP     find ── lease ── find ── lease ── … in slices ──► answer: nothing of it is evicted until the lease ends
 *              │          if a lease is refused: the end of those before it, in slices ──► the error
 *              └─► with nodes_ns, and some are not here: every node of the table gets one LOOKUP of these, all at once ──►
 *                  answer: of what several have, the first to answer counts. The leases of the others and those behind the
 *                  prefix end
 *   LEASE_END  the same walk, by generations; those of other nodes are sent there
 *
 * The answer names the nodes that did not answer in time, and those that cannot be asked. Leases that they take later end by
 * themselves. Who has what is written down nowhere, so there is nothing that can be wrong. */
#include <stdlib.h>

#include "daemon/base/text.h"
#include "daemon/calls/questions.h"
#include "daemon/objects/transit.h"
#include "daemon/rpc/rpc.h"

#define NODES_MOST_NS INT64_C(60000000000)
#define KEY_HEAP_BYTES 8u
#define FAR_KEY_HEAP_BYTES (KEY_HEAP_BYTES + 16u) /* with its place in `far` and in the answer */
#define NODE_HEAP_BYTES (sizeof(struct far_node) + 64u)

struct far_node { /* that is asked */
    struct question question;
    struct list link; /* in far.nodes */
    char name[65], address[65], why[200];
    uint8_t uuid[16];
    enum rdt_status status; /* not OK: it has not answered, and `why` says why */
    uint32_t index;         /* in the answer, from 1; 0: it has none of the keys */
};

struct far { /* other nodes */
    bool asked;
    struct questions questions;
    Rdt__Pb__Lookup request; /* its ids and id_bytes are those of the client's message that are not here, moved together */
    uint32_t *missing;       /* [request.n_id_bytes] the numbers of these keys */
    struct far_node **at;    /* [n] NULL: the key is here, or nowhere */
    struct list nodes;       /* struct far_node.link */
    uint64_t last_peer;      /* peers_next */
    uint32_t n_indexed, n_unasked;
};

struct lookup {
    struct slice slice;
    struct call *call;
    struct arena arena; /* of the message and of the nodes */
    const Rdt__Pb__Lookup *message;
    const Rdt__Pb__LeaseEnd *ends; /* NULL: it looks */
    uint64_t *generation;          /* [n] */
    uint32_t n, next;
    uint64_t id_at;        /* of the next id, in the message's ids */
    uint32_t kept, ending; /* the leases from `kept` to `ending` must still end */
    uint64_t heap;
    struct rdt_error refused; /* a lease was */
    struct far far;
};

static void lookup_free(struct lookup *lookup)
{
    struct call *call = lookup->call;

    slice_stop(&lookup->slice);
    questions_end(&lookup->far.questions);
    account_give(call->account, USAGE_HEAP, lookup->heap);
    work_free_arena(call->rpc->regions->pool, &lookup->arena);
    free(lookup->generation);
    free(lookup->far.missing);
    free(lookup->far.at);
    free(lookup);
}

static void on_end(struct call *call)
{
    lookup_free(call->waiting);
}

static void fail(struct lookup *lookup, const struct rdt_error *err)
{
    struct call *call = lookup->call;

    lookup_free(lookup);
    call->on_end = NULL;
    call_fail(call, err);
}

/* ---- the answer ---- */

/* false: no memory. */
static bool describe_nodes(struct lookup *lookup, Rdt__Pb__LookupReply *reply)
{
    struct far *far = &lookup->far;

    for (uint32_t i = 0; i < lookup->kept; i++)
        if (far->at[i] && far->at[i]->index == 0)
            far->at[i]->index = ++far->n_indexed;
    reply->at = arena_alloc(&lookup->arena, (lookup->kept + 1u) * sizeof *reply->at);
    reply->nodes = (Rdt__Pb__LookupNode **)arena_messages(&lookup->arena, &rdt__pb__lookup_node__descriptor, far->n_indexed);
    reply->unasked =
        (Rdt__Pb__LookupUnasked **)arena_messages(&lookup->arena, &rdt__pb__lookup_unasked__descriptor, far->n_unasked);
    if (!reply->at || !reply->nodes || !reply->unasked)
        return false;
    reply->n_at = far->n_indexed > 0 ? lookup->kept : 0;
    reply->n_nodes = far->n_indexed;
    for (uint32_t i = 0; i < lookup->kept; i++)
        reply->at[i] = far->at[i] ? far->at[i]->index : 0;
    list_each (struct far_node, node, &far->nodes, link) {
        if (node->index > 0) {
            reply->nodes[node->index - 1]->node = (ProtobufCBinaryData){sizeof node->uuid, node->uuid};
            reply->nodes[node->index - 1]->address = node->address;
        }
        if (node->status != RDT_OK) {
            reply->unasked[reply->n_unasked]->name = node->name;
            reply->unasked[reply->n_unasked]->status = node->status;
            reply->unasked[reply->n_unasked++]->why = node->why;
        }
    }
    return true;
}

static void answer(struct lookup *lookup)
{
    Rdt__Pb__LookupReply reply = RDT__PB__LOOKUP_REPLY__INIT;
    struct call *call = lookup->call;
    struct account *account = account_ref(call->account);
    uint64_t heap = lookup->heap;
    struct work_pool *pool = call->rpc->regions->pool;
    uint64_t *generation = lookup->generation;
    struct rdt_error refused = lookup->refused;
    bool looks = !lookup->ends;
    struct arena arena;
    struct rdt_error err;

    if (refused.status == RDT_OK && lookup->far.asked && !describe_nodes(lookup, &reply)) {
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory to say where %u ids are", lookup->n);
        fail(lookup, &err);
        account_unref(account);
        return;
    }
    reply.generation = generation;
    reply.n_generation = lookup->kept;
    lookup->generation = NULL;
    lookup->heap = 0;
    arena = lookup->arena;
    arena_init(&lookup->arena, RDT_MAX_DECODED_BYTES);
    lookup_free(lookup);
    call->on_end = NULL;
    if (refused.status != RDT_OK)
        call_fail(call, &refused);
    else if (looks)
        call_reply_reserved(call, &reply.base, heap); /* there are leases: the answer needs less than its request had */
    else
        call_reply_empty(call);
    account_give(account, USAGE_HEAP, heap);
    account_unref(account);
    work_free_arena(pool, &arena);
    free(generation);
}

/* ---- ends of leases ---- */

static void end_here(struct lookup *lookup, uint64_t generation)
{
    struct object *object = index_get(&lookup->call->rpc->objects->by_generation, generation);

    if (!object || !owner_equal(&object->account->owner, &lookup->call->account->owner))
        return;
    object_hold(object);
    transit_lease_ended(object);
    object_drop(object);
}

static void end_there(struct lookup *lookup, const uint8_t uuid[16], uint64_t *generation, uint32_t n)
{
    const struct rpc *rpc = lookup->call->rpc;
    struct peer *peer = rpc->peers ? peers_known(rpc->peers, uuid) : NULL;
    Rdt__Pb__LeaseEnd message = RDT__PB__LEASE_END__INIT;

    message.generation = generation;
    message.n_generation = n;
    if (peer && n > 0)
        call_tell(lookup->call, peer, RDT_MSG_LEASE_END, &message.base);
}

/* NULL: this one. */
static const uint8_t *node_of(const struct lookup *lookup, uint32_t i)
{
    const Rdt__Pb__LeaseEnd *ends = lookup->ends;

    if (ends)
        return ends->n_at > 0 && ends->at[i] > 0 ? ends->nodes[ends->at[i] - 1].data : NULL;
    return lookup->far.at && lookup->far.at[i] ? lookup->far.at[i]->uuid : NULL;
}

/* The last one first: the beginning of a prefix is then what was used last, and stays longest. */
static bool end_some(struct slice *slice, uint64_t until_ns)
{
    struct lookup *lookup = container_of(slice, struct lookup, slice);
    uint64_t *generation = lookup->ends ? lookup->ends->generation : lookup->generation;

    while (lookup->ending > lookup->kept) {
        uint32_t last = lookup->ending--;
        const uint8_t *node = node_of(lookup, last - 1);
        while (node && lookup->ending > lookup->kept && node_of(lookup, lookup->ending - 1) == node)
            lookup->ending--; /* one message for those of one node */
        if (node)
            end_there(lookup, node, generation + lookup->ending, last - lookup->ending);
        else
            end_here(lookup, generation[last - 1]);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    answer(lookup);
    return true;
}

/* ---- other nodes ---- */

static struct lookup *lookup_of(const struct question *question)
{
    return container_of(question->of, struct lookup, far.questions);
}

static struct far_node *node_of_question(struct question *question)
{
    return container_of(question, struct far_node, question);
}

static const ProtobufCMessage *make(struct question *question, struct arena *arena)
{
    (void)arena;
    return &lookup_of(question)->far.request.base;
}

static void note_unasked(struct lookup *lookup, struct far_node *node, const struct rdt_error *why)
{
    node->status = why->status;
    text_copy(node->why, sizeof node->why, why->msg);
    lookup->far.n_unasked++;
}

static void on_failure(struct question *question, const struct rdt_error *why)
{
    note_unasked(lookup_of(question), node_of_question(question), why);
}

static void on_reply(struct question *question, const ProtobufCMessage *message, const struct peer *from)
{
    const Rdt__Pb__LookupReply *reply = (const Rdt__Pb__LookupReply *)message;
    struct lookup *lookup = lookup_of(question);
    struct far_node *node = node_of_question(question);
    struct far *far = &lookup->far;
    struct rdt_error why;
    uint32_t n_twice = 0, n_found = 0;

    if (reply->n_generation != far->request.n_id_bytes) {
        (void)rdt_error_set(&why, RDT_PROTOCOL, "node %s answered for %zu of %zu ids", from->name, reply->n_generation,
                            far->request.n_id_bytes);
        on_failure(question, &why);
        return;
    }
    memcpy(node->uuid, from->uuid, sizeof node->uuid);
    text_copy(node->address, sizeof node->address, from->address);
    for (uint32_t k = 0; k < reply->n_generation; k++) {
        uint32_t i = far->missing[k];
        if (reply->generation[k] != 0 && lookup->generation[i] == 0) {
            lookup->generation[i] = reply->generation[k];
            far->at[i] = node;
            n_found++;
        } else if (reply->generation[k] != 0) {
            reply->generation[n_twice++] = reply->generation[k];
        }
    }
    cache_found_far(&lookup->call->rpc->objects->cache, &lookup->call->account->owner, n_found);
    if (far->request.lease_ns > 0)
        end_there(lookup, node->uuid, reply->generation, n_twice);
}

static void go_on(struct questions *questions)
{
    struct lookup *lookup = container_of(questions, struct lookup, far.questions);

    slice_start(&lookup->call->rpc->deadlines->slices, &lookup->slice);
}

static const struct questions_events asks_nodes = {make, on_reply, on_failure, go_on};

/* Why the node is not asked. A node that was not met yet may be there in a moment. */
static enum rdt_status check_node(const struct call *call, const struct peer *peer, struct rdt_error *err)
{
    Rdt__Pb__Requester requester = RDT__PB__REQUESTER__INIT;
    struct owner same;

    requester.uid = call->account->owner.uid;
    requester.tenant = call->account->owner.tenant;
    if (!transfers_check_requester(call->rpc->transfers, &requester, &same, err))
        return err->status;
    if (peer->state != PEER_UP && (peer->epoch > 0 || peer->last_error[0] != '\0'))
        return rdt_error_set(err, RDT_PEER_LOST, "node %s is not connected: %s", peer->name, peer_why_away(peer, call->admin));
    return RDT_OK;
}

static enum rdt_status add_node(struct lookup *lookup, const struct peer *peer, struct rdt_error *err)
{
    enum rdt_status status = account_take(lookup->call->account, USAGE_HEAP, NODE_HEAP_BYTES, err);
    struct rdt_ref at = {.generation = 0};
    struct far_node *node;
    struct rdt_error why;

    if (status != RDT_OK)
        return status;
    lookup->heap += NODE_HEAP_BYTES;
    node = arena_alloc(&lookup->arena, sizeof *node);
    if (!node)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to ask another node");
    *node = (struct far_node){.status = RDT_OK};
    text_copy(node->name, sizeof node->name, peer->name);
    list_append(&lookup->far.nodes, &node->link);
    memcpy(at.node, peer->uuid, sizeof at.node);
    text_copy(at.address, sizeof at.address, peer->address);
    if (check_node(lookup->call, peer, &why) == RDT_OK)
        questions_add(&lookup->far.questions, &node->question, &at);
    else
        note_unasked(lookup, node, &why);
    return RDT_OK;
}

/* The leases behind the prefix end, and then the answer follows. */
static bool end_rest(struct lookup *lookup, uint64_t until_ns)
{
    if (lookup->message->prefix)
        for (lookup->kept = 0; lookup->kept < lookup->next && lookup->generation[lookup->kept] != 0; lookup->kept++)
            ;
    else
        lookup->kept = lookup->next;
    lookup->ending = lookup->message->lease_ns > 0 ? lookup->next : lookup->kept;
    lookup->slice.run = end_some;
    return end_some(&lookup->slice, until_ns);
}

/* All leases end, and then the error follows. */
static bool refuse(struct lookup *lookup, uint64_t until_ns)
{
    questions_end(&lookup->far.questions);
    lookup->kept = 0;
    lookup->ending = lookup->message->lease_ns > 0 ? lookup->next : 0;
    lookup->slice.run = end_some;
    return end_some(&lookup->slice, until_ns);
}

static bool ask_some(struct lookup *lookup, uint64_t until_ns)
{
    const struct rpc *rpc = lookup->call->rpc;
    struct far *far = &lookup->far;
    const struct peer *peer;

    while (far->request.n_id_bytes > 0 && rpc->peers && (peer = peers_next(rpc->peers, far->last_peer))) {
        far->last_peer = peer->number;
        if (peer_listed_by(peer) >= 0 && !node_is_here(rpc->node, peer->uuid, peer->address) &&
            add_node(lookup, peer, &lookup->refused) != RDT_OK)
            return refuse(lookup, until_ns);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    if (!questions_ask(&far->questions, until_ns))
        return false;
    return far->questions.n_asked > 0 || end_rest(lookup, until_ns);
}

/* ---- this node ---- */

/* 0: there is none. */
static uint64_t find(struct lookup *lookup, const uint8_t *id, uint32_t id_bytes)
{
    struct object_table *objects = lookup->call->rpc->objects;
    const struct owner *owner = &lookup->call->account->owner;
    struct object *object = object_table_of_id(objects, owner, id, id_bytes);

    if (!object || object->state != OBJECT_LIVE) {
        if (lookup->call->client) /* what other nodes miss says nothing of this one */
            cache_missed(&objects->cache, owner);
        return 0;
    }
    if (lookup->message->lease_ns > 0 && transit_lease(object, lookup->message->lease_ns, &lookup->refused) != RDT_OK)
        return 0;
    if (object->cached)
        cache_found(object, true);
    return object->generation;
}

/* The id, which is the next one, is not here. */
static void ask_later(struct lookup *lookup, uint8_t *id, uint32_t id_bytes)
{
    Rdt__Pb__Lookup *request = &lookup->far.request;

    memmove(lookup->message->ids.data + request->ids.len, id, id_bytes);
    request->ids.len += id_bytes;
    lookup->far.missing[request->n_id_bytes] = lookup->next;
    lookup->message->id_bytes[request->n_id_bytes++] = id_bytes;
}

static bool look_some(struct slice *slice, uint64_t until_ns)
{
    struct lookup *lookup = container_of(slice, struct lookup, slice);
    const Rdt__Pb__Lookup *message = lookup->message;

    while (lookup->next < lookup->n) {
        uint32_t id_bytes = message->id_bytes[lookup->next];
        uint8_t *id = message->ids.data + lookup->id_at;
        uint64_t generation = find(lookup, id, id_bytes);
        if (lookup->refused.status != RDT_OK)
            return refuse(lookup, until_ns);
        if (generation == 0 && lookup->far.asked)
            ask_later(lookup, id, id_bytes);
        else if (generation == 0 && message->prefix)
            break;
        lookup->generation[lookup->next++] = generation;
        lookup->id_at += id_bytes;
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return lookup->far.asked ? ask_some(lookup, until_ns) : end_rest(lookup, until_ns);
}

/* ---- the requests ---- */

/* NULL: no memory. */
static struct lookup *lookup_create(struct call *call, uint32_t n, const Rdt__Pb__Lookup *message,
                                    const Rdt__Pb__LeaseEnd *ends)
{
    struct lookup *lookup = calloc(1, sizeof *lookup);
    bool asks = message && message->nodes_ns > 0;

    if (!lookup)
        return NULL;
    lookup->call = call;
    lookup->message = message;
    lookup->ends = ends;
    lookup->n = n;
    lookup->ending = n;
    lookup->slice.run = ends ? end_some : look_some;
    arena_init(&lookup->arena, RDT_MAX_DECODED_BYTES);
    questions_init(&lookup->far.questions, &asks_nodes);
    list_init(&lookup->far.nodes);
    lookup->far.asked = asks;
    lookup->generation = calloc(ends ? 1 : n + 1u, sizeof *lookup->generation);
    if (asks) {
        rdt__pb__lookup__init(&lookup->far.request);
        lookup->far.request.ids.data = message->ids.data;
        lookup->far.request.id_bytes = message->id_bytes;
        lookup->far.request.lease_ns = message->lease_ns;
        lookup->far.missing = calloc(n + 1u, sizeof *lookup->far.missing);
        lookup->far.at = calloc(n + 1u, sizeof(struct far_node *));
    }
    if (lookup->generation && (!asks || (lookup->far.missing && lookup->far.at)))
        return lookup;
    lookup_free(lookup);
    return NULL;
}

static enum rdt_status start(struct call *call, uint32_t n, const Rdt__Pb__Lookup *message, const Rdt__Pb__LeaseEnd *ends,
                             struct rdt_error *err)
{
    bool asks = message && message->nodes_ns > 0;
    uint64_t heap = call->request.arena->used_bytes + (uint64_t)n * (asks ? FAR_KEY_HEAP_BYTES : KEY_HEAP_BYTES);
    enum rdt_status status = account_take(call->account, USAGE_HEAP, heap, err);
    struct lookup *lookup;

    if (status != RDT_OK)
        return status;
    lookup = lookup_create(call, n, message, ends);
    if (!lookup) {
        account_give(call->account, USAGE_HEAP, heap);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to look for %u ids", n);
    }
    lookup->heap = heap;
    status = call_defer(call, -1, on_end, err);
    if (status == RDT_OK && asks && !questions_begin(&lookup->far.questions, call, message->nodes_ns))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to look for %u ids", n);
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
    if (message->nodes_ns != 0 && !call->client)
        return rdt_error_set(err, RDT_DENIED, "a node that asks this one cannot have others asked");
    if (message->nodes_ns < 0 || message->nodes_ns > NODES_MOST_NS)
        return rdt_error_set(err, RDT_INVALID, "other nodes may be asked for 0 to 60 s, not for %.3f s",
                             (double)message->nodes_ns / 1e9);
    if (message->nodes_ns > 0 && message->n_id_bytes > QUESTION_REFS_MAX)
        return rdt_error_set(err, RDT_LIMIT, "the message asks other nodes for %zu ids: at most %u are possible",
                             message->n_id_bytes, QUESTION_REFS_MAX);
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
    if (message->n_at != 0 && (message->n_at != message->n_generation || !call->client))
        return rdt_error_set(err, RDT_INVALID, "the message gives nodes for %zu of %zu leases", message->n_at,
                             message->n_generation);
    for (size_t i = 0; i < message->n_at; i++)
        if (message->at[i] > message->n_nodes || (message->at[i] > 0 && message->nodes[message->at[i] - 1].len != 16))
            return rdt_error_set(err, RDT_INVALID, "the node of lease %zu is none of the message", i);
    return start(call, (uint32_t)message->n_generation, NULL, message, err);
}
