/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about objects of another node: this node sends them there over the peer link, and serves those of other nodes. */
#include <stdlib.h>
#include <string.h>

#include "daemon/calls/call.h"
#include "wire_ref.h"

#define MAX_CALLS 16384u              /* the most calls of one node that are deferred here */
#define ASKED_BYTES ((size_t)4 << 20) /* of questions (call_ask), and their answers, that one node owes; see call_tell, too */
#define POLL_NS 200000000ll /* the timeout of a call with timeout 0, because it needs a round trip to the other node */

/* ---- forwarding a client's request ---- */

/* Whether the answer gives the client a hold. */
static bool gives_hold(const struct call *call)
{
    return call->type == RDT_MSG_HOLD && !call->hold.begins_transit;
}

/* What a question and its answer take in the queues of the link. */
static size_t question_bytes(const struct call *call)
{
    return call->copy.packed_bytes + call->forwarded.answer_bytes;
}

static void send_call(struct call *call)
{
    Rdt__Pb__Call message = RDT__PB__CALL__INIT;
    Rdt__Pb__Requester requester = RDT__PB__REQUESTER__INIT;
    struct rdt_error err = {0};

    requester.tenant = call->account->owner.tenant;
    requester.uid = call->account->owner.uid;
    message.call = call->forwarded.number;
    message.type = call->type;
    message.requester = &requester;
    message.request = (ProtobufCBinaryData){call->copy.packed_bytes, call->copy.packed};
    if (gives_hold(call) && holds_prepare(call->rpc->holds, call->forwarded.to, &err) != RDT_OK) {
        call_fail(call, &err);
        return;
    }
    call->forwarded.sent = true;
    if (call->on_answer) {
        call->forwarded.asked_bytes = question_bytes(call);
        call->forwarded.to->calls.asked_bytes += call->forwarded.asked_bytes;
    }
    list_remove(&call->forwarded.by_peer);
    list_append(&call->forwarded.to->calls.there, &call->forwarded.by_peer);
    if (peer_send(call->forwarded.to, RDT_PEER_CALL, &message.base, &err) != RDT_OK)
        call_fail(call, &err);
}

/* Questions are large, or their answers are. They may not fill the queues of a link on which the calls of others wait. */
static bool may_send(const struct call *call)
{
    size_t asked = call->forwarded.to->calls.asked_bytes;

    return !call->on_answer || asked == 0 || asked + question_bytes(call) <= ASKED_BYTES;
}

static void send_or_hold_back(struct call *call)
{
    if (may_send(call)) {
        send_call(call);
    } else {
        list_remove(&call->forwarded.by_peer);
        list_append(&call->forwarded.to->calls.held_back, &call->forwarded.by_peer);
    }
}

/* The call ends before its answer: the other node is told to end it, too. */
static void cancel_forwarded(struct call *call)
{
    Rdt__Pb__Call message = RDT__PB__CALL__INIT;
    Rdt__Pb__Requester requester = RDT__PB__REQUESTER__INIT;

    if (!call->forwarded.sent)
        return;
    message.call = call->forwarded.number;
    message.type = RDT_MSG_CANCEL_REQUEST;
    message.requester = &requester;
    (void)peer_send(call->forwarded.to, RDT_PEER_CALL, &message.base, NULL);
    if (gives_hold(call)) /* the other node may have taken the hold meanwhile */
        holds_unwanted(call->rpc->holds, call->forwarded.to, call->forwarded.number);
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
    call->forwarded.to_uuid = memcmp(ref->node, nobody, sizeof nobody) != 0;
    status = peers_find(rpc->peers, ref->node, ref->address, call->account, &call->forwarded.to, err);
    if (status != RDT_OK)
        return status;
    if (call->forwarded.to->state == PEER_BACKOFF && !call->forwarded.patient)
        return peer_away(call->forwarded.to, call->account, err);
    free(call->copy.packed); /* it may have been kept while the name was looked for */
    account_give(call->account, USAGE_HEAP, call->copy.heap_bytes);
    call->copy.packed = NULL;
    call->copy.heap_bytes = 0;
    call->copy.packed_bytes = protobuf_c_message_get_packed_size(request);
    status = account_take(call->account, USAGE_HEAP, call->copy.packed_bytes, err);
    if (status != RDT_OK)
        return status;
    call->copy.heap_bytes = call->copy.packed_bytes;
    call->copy.packed = malloc(call->copy.packed_bytes ? call->copy.packed_bytes : 1);
    if (!call->copy.packed)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to ask node %s", call->forwarded.to->name);
    protobuf_c_message_pack(request, call->copy.packed);
    if (!call_waits(call))
        timeout_ns = answer_ns(rpc);
    if (!map_put_u64(&rpc->calls.forwarded, rpc->calls.next_forward, call))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to ask node %s", call->forwarded.to->name);
    call->forwarded.number = rpc->calls.next_forward++;
    list_append(&call->forwarded.to->calls.unsent, &call->forwarded.by_peer);
    call->forwarded.to->calls.n_there++;
    status = call_defer(call, timeout_ns == 0 ? POLL_NS : with_answer_ns(timeout_ns), cancel_forwarded, err);
    if (status != RDT_OK)
        return status;
    if (call->forwarded.to->state == PEER_UP && list_first(&call->forwarded.to->calls.unsent) == &call->forwarded.by_peer)
        send_or_hold_back(call); /* otherwise after those before it, to which it may belong */
    return RDT_OK;
}

enum rdt_status call_ask(struct call *call, const struct rdt_ref *ref, const ProtobufCMessage *request, size_t answer_bytes,
                         call_on_answer on_answer, void *asker, struct call **question_p, struct rdt_error *err)
{
    struct call *question = call_create(call->rpc, call->client, NULL, call->type, 0);
    enum rdt_status status;

    if (!question)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to ask another node");
    question->on_answer = on_answer;
    question->question_p = question_p;
    question->asker = asker;
    question->forwarded.answer_bytes = answer_bytes;
    *question_p = question;
    status = call_forward(question, ref, request, -1, err); /* the question may have been answered */
    if (status == RDT_OK)
        return RDT_OK;
    question->on_end = NULL;
    call_forget(question);
    *question_p = NULL;
    return status;
}

void call_forget(struct call *question)
{
    if (!question)
        return;
    question->on_answer = NULL;
    call_drop(question);
}

void call_tell(const struct call *call, struct peer *peer, uint16_t type, const ProtobufCMessage *request)
{
    Rdt__Pb__Call message = RDT__PB__CALL__INIT;
    Rdt__Pb__Requester requester = RDT__PB__REQUESTER__INIT;
    size_t bytes = protobuf_c_message_get_packed_size(request);
    uint8_t *packed = peer->state == PEER_UP && peer_queued_bytes(peer) < ASKED_BYTES ? malloc(bytes ? bytes : 1) : NULL;

    if (!packed)
        return;
    protobuf_c_message_pack(request, packed);
    requester.tenant = call->account->owner.tenant;
    requester.uid = call->account->owner.uid;
    message.call = call->rpc->calls.next_forward++; /* no call has it, so on_reply passes the answer over */
    message.type = type;
    message.requester = &requester;
    message.request = (ProtobufCBinaryData){bytes, packed};
    (void)peer_send(peer, RDT_PEER_CALL, &message.base, NULL);
    free(packed);
}

/* ---- the beginning and the end of a link, in slices: very many calls may wait for it ---- */

static struct peer *peer_of(struct peer_calls *calls)
{
    return container_of(calls, struct peer, calls);
}

static bool send_unsent(struct slice *slice, uint64_t until_ns)
{
    struct peer_calls *calls = container_of(slice, struct peer_calls, send);

    while (peer_of(calls)->state == PEER_UP) {
        if (!list_empty(&calls->unsent))
            send_or_hold_back(container_of(list_first(&calls->unsent), struct call, forwarded.by_peer));
        else if (!list_empty(&calls->held_back) &&
                 may_send(container_of(list_first(&calls->held_back), struct call, forwarded.by_peer)))
            send_call(container_of(list_first(&calls->held_back), struct call, forwarded.by_peer));
        else
            break;
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

void calls_peer_up(struct rpc *rpc, struct peer *peer)
{
    peer->calls.send.run = send_unsent;
    if (!list_empty(&peer->calls.unsent))
        slice_begin(&rpc->deadlines->slices, &peer->calls.send);
    if (rpc->retakes.events)
        rpc->retakes.events->on_peer_up(rpc, peer);
}

void calls_peer_merged(struct rpc *rpc, struct peer *from, struct peer *into)
{
    static const uint8_t nobody[16];
    bool from_is_known = memcmp(from->uuid, nobody, sizeof nobody) != 0; /* then another node has taken its address */

    list_splice(&from->calls.unsent, &from->calls.held_back);
    list_each_safe (struct call, call, &from->calls.unsent, forwarded.by_peer) {
        if (call->forwarded.to_uuid && from_is_known)
            continue;
        list_remove(&call->forwarded.by_peer);
        list_append(&into->calls.unsent, &call->forwarded.by_peer);
        call->forwarded.to = into;
        from->calls.n_there--;
        into->calls.n_there++;
    }
    if (into->state == PEER_UP)
        calls_peer_up(rpc, into);
}

bool calls_name_peer(const struct rpc *rpc, const struct peer *peer)
{
    return peer->calls.n_here + peer->calls.n_there > 0 || slice_waits(&peer->calls.send) || slice_waits(&peer->calls.end);
}

/* The call is sent when there is a link again, perhaps for the second time. */
static void await_link(struct call *call)
{
    struct peer *peer = call->forwarded.to;

    call->forwarded.sent = false;
    list_remove(&call->forwarded.by_peer);
    list_append(&peer->calls.unsent, &call->forwarded.by_peer);
    if (peer->state == PEER_UP)
        slice_begin(&call->rpc->deadlines->slices, &peer->calls.send);
}

static bool end_some(struct slice *slice, uint64_t until_ns)
{
    struct peer_calls *calls = container_of(slice, struct peer_calls, end);

    while (!list_empty(&calls->failing)) {
        struct call *call = container_of(list_first(&calls->failing), struct call, forwarded.by_peer);

        if (call->forwarded.patient && !call->rpc->calls.no_links)
            await_link(call);
        else
            call_fail(call, &calls->why);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    while (!list_empty(&calls->dropping)) { /* the end of one may end others: publishers of one version */
        call_drop(container_of(list_first(&calls->dropping), struct call, link));
        if (uv_hrtime() >= until_ns)
            return false;
    }
    list_remove(&calls->ending);
    return true;
}

void calls_peer_down(struct rpc *rpc, struct peer *peer, const struct rdt_error *why)
{
    struct peer_calls *calls = &peer->calls;

    list_splice(&calls->failing, &calls->unsent);
    list_splice(&calls->failing, &calls->held_back);
    list_splice(&calls->failing, &calls->there);
    list_splice(&calls->dropping, &calls->here);
    if (list_empty(&calls->failing) && list_empty(&calls->dropping))
        return;
    calls->why = *why;
    calls->end.run = end_some;
    if (list_empty(&calls->ending))
        list_append(&rpc->calls.link_ends, &calls->ending);
    slice_begin(rpc->calls.no_links ? NULL : &rpc->deadlines->slices, &calls->end);
}

void calls_close(struct rpc *rpc)
{
    rpc->calls.no_links = true;
    list_drain (struct peer_calls, calls, &rpc->calls.link_ends, ending) {
        slice_stop(&calls->end);
        (void)end_some(&calls->end, UINT64_MAX);
    }
    if (rpc->peers)
        list_each (struct peer, peer, peers_all(rpc->peers), link)
            slice_stop(&peer->calls.send);
}

/* The other node has taken the hold of a client's HOLD call. */
static enum rdt_status take_hold(struct call *call, struct peer *peer, const Rdt__Pb__Ref *ref, struct rdt_error *err)
{
    uint64_t id = call->hold.retakes ? call->hold.retakes : call->request_id;
    struct client *client = call->client;
    enum rdt_status status;

    if (call->hold.retakes && !call->rpc->retakes.events->on_answer(call)) {
        holds_unwanted(call->rpc->holds, peer, call->forwarded.number);
        return rdt_error_set(err, RDT_CANCELLED, "the client has ended its hold meanwhile");
    }
    status = holds_taken(call->rpc->holds, peer, call->forwarded.number, client, id, err);
    if (status == RDT_OK && call->hold.takes_over)
        holds_seen(call->rpc->holds, peer, call->forwarded.number);
    if (status == RDT_OK && client->session.lasting && ref)
        client->session.lasting->on_far_hold(client->session.lasting->arg, remote_hold_find(client, id), ref);
    return status;
}

#define MAY_NOT_SEND "another node may not send request"

static void take_failure(struct call *call, const struct peer *peer, const Rdt__Pb__CallReply *reply, struct rdt_error *err)
{
    (void)wire_error(reply->status, reply->sys_errno, reply->message, err);
    if (reply->status == RDT_DENIED && strncmp(reply->message, MAY_NOT_SEND, strlen(MAY_NOT_SEND)) == 0)
        (void)rdt_error_set(err, RDT_UNSUPPORTED, "node %s has an older version of rdtd, which %s: update it", peer->name,
                            call->type == RDT_MSG_SUM ? "computes no checksums" : "does not serve this request");
}

static void on_reply(struct rpc *rpc, struct peer *peer, const Rdt__Pb__CallReply *reply, struct arena *arena)
{
    struct call *call = map_get_u64(&rpc->calls.forwarded, reply->call);
    ProtobufCMessage *message;
    struct rdt_error err = {0};

    if (!call || call->forwarded.to != peer)
        return; /* the call has ended meanwhile */
    if (reply->status == RDT_SHUTTING_DOWN && call->forwarded.patient)
        return; /* it is sent to the next daemon when the link has ended */
    if (reply->status != RDT_OK) {
        take_failure(call, peer, reply, &err);
        call_fail(call, &err);
        return;
    }
    if (arena_unpack(arena, call->verb->reply, reply->reply.data, reply->reply.len, "its answer", &message, &err) != RDT_OK) {
        rdt_error_prefix(&err, "node %s", peer->name);
        if (gives_hold(call))
            holds_unwanted(rpc->holds, peer, call->forwarded.number);
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
        call = call_find(rpc, NULL, peer, message->call);
        if (call)
            call_drop(call);
        holds_unseen(rpc->holds, peer, message->call);
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
        (void)rdt_error_set(&err, RDT_DENIED, MAY_NOT_SEND " %u", message->type);
    else if (peer->calls.n_here >= MAX_CALLS)
        (void)rdt_error_set(&err, RDT_LIMIT, "%u calls of that node wait here already, which is the limit", peer->calls.n_here);
    else if (transfers_check_requester(rpc->transfers, message->requester, &requester, &err) &&
             !(call->account = account_get(rpc->objects->accounts, &requester)))
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory for the call");
    if (err.status != RDT_OK)
        call_fail(call, &err);
    else
        rpc->above.dispatch(call, message->request.data, message->request.len);
}

void calls_on_message(struct rpc *rpc, struct peer *peer, const struct peer_message *message)
{
    if (message->type == RDT_PEER_CALL)
        on_call(rpc, peer, message->body);
    else
        on_reply(rpc, peer, message->body, message->arena);
}
