/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about objects of another node: this node sends them there over the peer link, and serves those of other nodes. */
#include <stdlib.h>

#include "daemon/rpc/rpc_call.h"
#include "wire_error.h"

#define MAX_CALLS 16384u    /* the most calls of one node that are deferred here */
#define POLL_NS 200000000ll /* the timeout of a call with timeout 0, because it needs a round trip to the other node */

/* ---- forwarding a client's request ---- */

/* Whether the answer gives the client a hold. */
static bool gives_hold(const struct call *call)
{
    return call->type == RDT_MSG_HOLD && !call->begins_transit;
}

static void send_call(struct call *call)
{
    Rdt__Pb__Call message = RDT__PB__CALL__INIT;
    Rdt__Pb__Requester requester = RDT__PB__REQUESTER__INIT;
    struct rdt_error err = {0};

    requester.tenant = call->account->owner.tenant;
    requester.uid = call->account->owner.uid;
    message.call = call->forward;
    message.type = call->type;
    message.requester = &requester;
    message.request = (ProtobufCBinaryData){call->packed_bytes, call->packed};
    if (gives_hold(call) && holds_prepare(&call->rpc->holds, call->to, &err) != RDT_OK) {
        call_fail(call, &err);
        return;
    }
    call->sent = true;
    if (peer_send(call->to, RDT_PEER_CALL, &message.base, &err) != RDT_OK)
        call_fail(call, &err);
}

/* The call ends before its answer: the other node is told to end it, too. */
static void cancel_forwarded(struct call *call)
{
    Rdt__Pb__Call message = RDT__PB__CALL__INIT;
    Rdt__Pb__Requester requester = RDT__PB__REQUESTER__INIT;

    if (!call->sent)
        return;
    message.call = call->forward;
    message.type = RDT_MSG_CANCEL_REQUEST;
    message.requester = &requester;
    (void)peer_send(call->to, RDT_PEER_CALL, &message.base, NULL);
    if (gives_hold(call)) /* the other node may have taken the hold meanwhile */
        holds_unwanted(&call->rpc->holds, call->to, call->forward);
}

/* The time that another node has to answer a request that waits for no event. */
static int64_t answer_ns(const struct rpc *rpc)
{
    return (int64_t)(rpc->options->connect_timeout_ns + 2 * rpc->options->peer_timeout_ns);
}

/* Adds the time that the answer needs to arrive: the other node ends the request after timeout_ns, and its TIMED_OUT says
 * what was missing. The addition is half of what librdt allows this daemon (clock_after_answer_ns). */
static int64_t with_answer_ns(int64_t timeout_ns)
{
    int64_t most_ns = 25000000, more_ns = timeout_ns / 8 < most_ns ? timeout_ns / 8 : most_ns;

    return timeout_ns < 0 || timeout_ns > INT64_MAX - most_ns ? timeout_ns : timeout_ns + more_ns;
}

enum rdt_status call_forward(struct call *call, const struct rdt_ref *ref, const ProtobufCMessage *request, int64_t timeout_ns,
                             struct rdt_error *err)
{
    static const uint8_t nobody[16];
    struct rpc *rpc = call->rpc;
    enum rdt_status status;

    if (!call->client)
        return rdt_error_set(err, RDT_NOT_FOUND, "object \"%s\" is not on this node", ref->id);
    if (!rpc->peers)
        return rdt_error_set(
            err, RDT_UNSUPPORTED,
            "object \"%s\" is on another node, and this daemon has no peer link: set listen, and key_file or peer_cert",
            ref->id);
    call->to_uuid = memcmp(ref->node, nobody, sizeof nobody) != 0;
    status = peers_find(rpc->peers, ref->node, ref->address, call->account, &call->to, err);
    if (status != RDT_OK)
        return status;
    if (call->to->state == PEER_BACKOFF)
        return peer_away(call->to, call->account, err);
    free(call->packed); /* it may have been kept while the name was looked for */
    account_give(call->account, USAGE_HEAP, call->heap_bytes);
    call->packed = NULL;
    call->heap_bytes = 0;
    call->packed_bytes = protobuf_c_message_get_packed_size(request);
    status = account_take(call->account, USAGE_HEAP, call->packed_bytes, err);
    if (status != RDT_OK)
        return status;
    call->heap_bytes = call->packed_bytes;
    call->packed = malloc(call->packed_bytes ? call->packed_bytes : 1);
    if (!call->packed)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to ask node %s", call->to->name);
    protobuf_c_message_pack(request, call->packed);
    if (!call_waits(call))
        timeout_ns = answer_ns(rpc);
    if (!map_put_u64(&rpc->forwarded, rpc->next_forward, call))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to ask node %s", call->to->name);
    call->forward = rpc->next_forward++;
    status = call_defer(call, timeout_ns == 0 ? POLL_NS : with_answer_ns(timeout_ns), cancel_forwarded, err);
    if (status != RDT_OK)
        return status;
    if (call->to->state == PEER_UP)
        send_call(call);
    return RDT_OK;
}

void calls_peer_up(struct rpc *rpc, struct peer *peer)
{
    struct call *call;
    size_t cursor = 0;

    while ((call = map_next(&rpc->forwarded, &cursor)))
        if (call->to == peer && !call->sent)
            send_call(call);
    if (rpc->retake_events)
        rpc->retake_events->on_peer_up(rpc, peer);
}

void calls_peer_merged(struct rpc *rpc, struct peer *from, struct peer *into)
{
    static const uint8_t nobody[16];
    bool from_is_known = memcmp(from->uuid, nobody, sizeof nobody) != 0; /* then another node has taken its address */
    struct call *call;
    size_t cursor = 0;

    while ((call = map_next(&rpc->forwarded, &cursor)))
        if (call->to == from && (!call->to_uuid || !from_is_known))
            call->to = into;
    if (into->state == PEER_UP)
        calls_peer_up(rpc, into);
}

bool calls_name_peer(const struct rpc *rpc, const struct peer *peer)
{
    const struct call *call;
    size_t cursor = 0;

    while ((call = map_next(&rpc->forwarded, &cursor)))
        if (call->to == peer)
            return true;
    list_for_each (node, &rpc->remote) {
        call = container_of(node, struct call, link);
        if (call->peer == peer)
            return true;
    }
    return false;
}

void calls_peer_down(struct rpc *rpc, struct peer *peer, const struct rdt_error *why)
{
    struct call *call;
    struct list dropped;
    size_t cursor = 0;

    while ((call = map_next(&rpc->forwarded, &cursor)))
        if (call->to == peer)
            call_fail(call, why);
    list_init(&dropped);
    list_for_each_safe (node, &rpc->remote)
        if (container_of(node, struct call, link)->peer == peer) {
            list_remove(node);
            list_append(&dropped, node);
        }
    while (!list_empty(&dropped)) /* the end of one may end others: publishers of one version */
        call_drop(container_of(list_first(&dropped), struct call, link));
}

/* The other node has taken the hold of a client's HOLD call. */
static enum rdt_status take_hold(struct call *call, struct peer *peer, const Rdt__Pb__Ref *ref, struct rdt_error *err)
{
    uint64_t id = call->retakes ? call->retakes : call->request_id;
    struct client *client = call->client;
    enum rdt_status status;

    if (call->retakes && !call->rpc->retake_events->on_answer(call)) {
        holds_unwanted(&call->rpc->holds, peer, call->forward);
        return rdt_error_set(err, RDT_CANCELLED, "the client has ended its hold meanwhile");
    }
    status = holds_taken(&call->rpc->holds, peer, call->forward, client, id, err);
    if (status == RDT_OK && client->lasting && ref)
        client->lasting->on_far_hold(client->lasting->arg, remote_hold_find(client, id), ref);
    return status;
}

static void on_reply(struct rpc *rpc, struct peer *peer, const Rdt__Pb__CallReply *reply, struct arena *arena)
{
    struct call *call = map_get_u64(&rpc->forwarded, reply->call);
    ProtobufCMessage *message;
    struct rdt_error err = {0};

    if (!call || call->to != peer)
        return; /* the call has ended meanwhile */
    if (reply->status != RDT_OK) {
        (void)wire_error(reply->status, reply->sys_errno, reply->message, &err);
        call_fail(call, &err);
        return;
    }
    if (arena_unpack(arena, call->verb->reply, reply->reply.data, reply->reply.len, "its answer", &message, &err) != RDT_OK) {
        rdt_error_prefix(&err, "node %s", peer->name);
        if (gives_hold(call))
            holds_unwanted(&rpc->holds, peer, call->forward);
        call_fail(call, &err);
    } else if (gives_hold(call) && take_hold(call, peer, ((const Rdt__Pb__HoldReply *)message)->ref, &err) != RDT_OK) {
        call_fail(call, &err);
    } else {
        call_reply(call, message, NULL, 0);
    }
}

/* ---- serving another node's request ---- */

static void on_call(struct rpc *rpc, struct peer *peer, const Rdt__Pb__Call *message)
{
    struct rdt_error err = {0};
    struct owner requester;
    struct call *call;

    if (message->type == RDT_MSG_CANCEL_REQUEST) {
        list_for_each (node, &rpc->remote) {
            call = container_of(node, struct call, link);
            if (call->peer == peer && call->request_id == message->call) {
                call_drop(call);
                return;
            }
        }
        return;
    }
    call = call_create(rpc, NULL, peer, (uint16_t)message->type, message->call);
    if (!call) {
        Rdt__Pb__CallReply refusal = RDT__PB__CALL_REPLY__INIT;
        refusal.call = message->call;
        refusal.status = RDT_NO_MEMORY;
        refusal.message = (char *)"the owner's daemon has no memory for the call";
        (void)peer_send(peer, RDT_PEER_CALL_REPLY, &refusal.base, NULL);
        return;
    }
    if (!call->verb || !(call->verb->properties & VERB_FOR_PEERS))
        (void)rdt_error_set(&err, RDT_DENIED, "another node may not send request %u", message->type);
    else if (peer->n_calls >= MAX_CALLS)
        (void)rdt_error_set(&err, RDT_LIMIT, "%u calls of that node wait here already, which is the limit", peer->n_calls);
    else if (transfers_check_requester(rpc->transfers, message->requester, &requester, &err) &&
             !(call->account = account_get(rpc->objects->accounts, &requester)))
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory for the call");
    if (err.status != RDT_OK)
        call_fail(call, &err);
    else
        rpc->dispatch(call, message->request.data, message->request.len);
}

enum rdt_status calls_peer_frame(struct rpc *rpc, struct peer *peer, const struct frame *frame, struct rdt_error *err)
{
    ProtobufCMessage *message;
    enum rdt_status status;
    struct arena arena;

    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    if (frame->type == RDT_PEER_CALL) {
        status = arena_unpack(&arena, &rdt__pb__call__descriptor, frame->payload, frame->length, "Call", &message, err);
        if (status == RDT_OK)
            on_call(rpc, peer, (const Rdt__Pb__Call *)message);
    } else {
        status =
            arena_unpack(&arena, &rdt__pb__call_reply__descriptor, frame->payload, frame->length, "CallReply", &message, err);
        if (status == RDT_OK)
            on_reply(rpc, peer, (Rdt__Pb__CallReply *)message, &arena);
    }
    if (status != RDT_OK)
        rdt_error_prefix(err, "node %s", peer->name);
    arena_fini(&arena);
    return status;
}
