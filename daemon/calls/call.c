/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a call: creation, answer, deferral, deadline. */
#include "daemon/calls/call.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "wire_ref.h"

#define CALL_REPLY_BYTES 64u /* the most that a CallReply has besides the answer that it contains */

#define X(number, NAME, request, reply, properties, unmet) _Static_assert((number) < RPC_VERBS, #NAME);
RDT_REQUEST_MAP(X)
#undef X
#define X(number, name, sentence) _Static_assert(-(number) < (int)RPC_STATUSES, #name);
RDT_STATUS_MAP(X)
#undef X

struct call *call_create(struct rpc *rpc, struct client *client, struct peer *peer, uint16_t type, uint64_t request_id)
{
    struct call *call = calloc(1, sizeof *call);

    if (!call)
        return NULL;
    call->rpc = rpc;
    call->client = client;
    call->peer = peer;
    call->peer_epoch = peer ? peer->epoch : 0;
    call->type = type;
    call->verb = verb_find(type);
    call->request_id = request_id;
    call->began_ns = uv_hrtime();
    if (client) {
        call->account = account_ref(client->account);
        call->admin = client->admin;
    }
    list_init(&call->link);
    list_init(&call->forwarded.by_peer);
    list_init(&call->waits.wake.link);
    list_init(&call->waits.object.link);
    list_init(&call->waits.range.link);
    list_init(&call->waits.claim.link);
    return call;
}

/* Questions that were held back until this one ends are sent (call_ask). */
static void leave_node(struct call *call)
{
    struct peer_calls *calls = &call->forwarded.to->calls;

    calls->n_there--;
    calls->asked_bytes -= call->forwarded.asked_bytes;
    if (call->forwarded.asked_bytes > 0 && !list_empty(&calls->held_back) && !call->rpc->calls.no_links)
        slice_start(&call->rpc->deadlines->slices, &calls->send);
}

static void call_free(struct call *call)
{
    deadline_unset(call->rpc->deadlines, &call->deadline);
    if (!list_empty(&call->link) && call->client)
        call->client->rpc.n_calls--;
    if (!list_empty(&call->link) && call->peer)
        call->peer->calls.n_here--;
    list_remove(&call->link);
    list_remove(&call->forwarded.by_peer);
    if (call->indexed)
        (void)map_remove(&call->rpc->calls.deferred, &call->key, sizeof call->key);
    list_remove(&call->waits.wake.link);
    if (call->forwarded.number) {
        (void)map_remove_u64(&call->rpc->calls.forwarded, call->forwarded.number);
        leave_node(call);
    }
    if (call->waits.woken)
        object_drop(call->waits.woken);
    account_wait_end(call->rpc->objects->accounts, &call->waits.room);
    account_give(call->account, USAGE_WAITERS, call->deferred ? 1 : 0);
    account_give(call->account, USAGE_HEAP, call->copy.heap_bytes);
    if (call->waits.number)
        (void)index_remove(&call->rpc->calls.waiting, call->waits.number);
    object_waiter_remove(&call->waits.object);
    name_waiter_remove(&call->waits.named);
    name_seeker_remove(&call->waits.seeker);
    claim_waiter_remove(&call->waits.claim);
    growth_waiter_remove(&call->waits.growth);
    list_remove(&call->waits.range.link);
    region_unref(call->waits.region);
    account_unref(call->account);
    free(call->why);
    free(call->copy.packed);
    free(call);
}

static void count(const struct call *call, enum rdt_status status)
{
    struct request_metrics *metrics = call->verb ? &call->rpc->meters.requests[call->type] : NULL;

    if (!metrics)
        return;
    histogram_add(&metrics->duration, uv_hrtime() - call->began_ns);
    metrics->failures[-status]++;
}

bool call_is_cut_off(const struct call *call)
{
    return call->peer && (call->peer->state != PEER_UP || call->peer->epoch != call->peer_epoch);
}

static void send_to_peer(struct call *call, const struct rdt_error *err, const ProtobufCMessage *reply)
{
    Rdt__Pb__CallReply message = RDT__PB__CALL_REPLY__INIT;
    uint8_t *packed = NULL;
    char text[128];

    if (call_is_cut_off(call))
        return;
    message.call = call->request_id;
    if (err) {
        message.status = err->status;
        message.sys_errno = err->sys_errno;
        message.message = (char *)err->msg;
    } else {
        size_t bytes = protobuf_c_message_get_packed_size(reply);
        packed = bytes + CALL_REPLY_BYTES <= RDT_MAX_FRAME_BYTES ? malloc(bytes ? bytes : 1) : NULL;
        if (bytes + CALL_REPLY_BYTES > RDT_MAX_FRAME_BYTES) {
            (void)snprintf(text, sizeof text, "the answer has %zu bytes: at most %u can be sent to another node in one message",
                           bytes, RDT_MAX_FRAME_BYTES);
            message.status = RDT_LIMIT;
            message.message = text;
        } else if (packed) {
            protobuf_c_message_pack(reply, packed);
            message.reply = (ProtobufCBinaryData){bytes, packed};
        } else {
            message.status = RDT_NO_MEMORY;
        }
    }
    (void)peer_send(call->peer, RDT_PEER_CALL_REPLY, &message.base, NULL);
    free(packed);
}

/* Tells whoever has created the call. */
static void tell_asker(struct call *call, const ProtobufCMessage *reply, const struct rdt_error *err)
{
    *call->question_p = NULL;
    call->on_answer(call, reply, err);
    call_free(call);
}

void call_reply(struct call *call, const ProtobufCMessage *reply, const int *take_fds, unsigned n_fds)
{
    if (call->on_answer) {
        tell_asker(call, reply, NULL);
        return;
    }
    if (call->client && call->request_id != 0) {
        call->client->conn.send(call->client, call->type, FRAME_REPLY, call->request_id, reply, take_fds, n_fds);
    } else {
        for (unsigned i = 0; i < n_fds; i++)
            (void)close(take_fds[i]);
        if (call->peer)
            send_to_peer(call, NULL, reply);
    }
    count(call, RDT_OK);
    call_free(call);
}

void call_reply_reserved(struct call *call, const ProtobufCMessage *reply, uint64_t heap)
{
    struct client *client = call->client;

    if (client)
        client->conn.reserved = heap;
    call_reply(call, reply, NULL, 0);
    if (client)
        client->conn.reserved = 0;
}

void call_reply_empty(struct call *call)
{
    Rdt__Pb__Empty empty = RDT__PB__EMPTY__INIT;

    call_reply(call, &empty.base, NULL, 0);
}

static void fail(struct call *call, const struct rdt_error *err, bool unread)
{
    if (call->on_answer) {
        tell_asker(call, NULL, err);
        return;
    }
    if (call->hold.retakes)
        call->rpc->retakes.events->on_failure(call, err);
    if (call->client && call->request_id == 0 && !unread) {
        log_debug("client %llu: request %u, which needs no answer, failed: %s", (unsigned long long)call->client->id,
                  call->type, err->msg);
    } else if (call->client && !client_returns(call->client, err)) {
        client_send_error(call->client, call->type, call->request_id, err);
    } else if (!call->client) {
        send_to_peer(call, err, NULL);
    }
    count(call, err->status);
    call_free(call);
}

void call_fail(struct call *call, const struct rdt_error *err)
{
    fail(call, err, err->status == RDT_PROTOCOL);
}

void call_fail_unread(struct call *call, const struct rdt_error *err)
{
    fail(call, err, true);
}

static void on_deadline(struct deadline *deadline)
{
    struct call *call = container_of(deadline, struct call, deadline);
    struct rdt_error err;

    if (call->on_end)
        call->on_end(call);
    if (call->waits.room.at)
        (void)rdt_error_set(&err, RDT_TIMED_OUT, "there was no room in time: %s", call->why ? call->why : "");
    else if (call->why)
        (void)rdt_error_set(&err, RDT_TIMED_OUT, "%s", call->why);
    else if (call->explain)
        call->explain(call, &err);
    else if (call->forwarded.number && !call_waits(call))
        (void)rdt_error_set(&err, RDT_TIMED_OUT, "node %s has not answered", call->forwarded.to->name);
    else
        (void)rdt_error_set(&err, RDT_TIMED_OUT, "%s in time", call->verb->unmet);
    call_fail(call, &err);
}

/* A node's later link counts its calls anew. */
static struct call_key key_of(const struct client *client, const struct peer *peer, uint64_t number)
{
    return client ? (struct call_key){client, 0, number} : (struct call_key){peer, peer->epoch, number};
}

enum rdt_status call_defer(struct call *call, int64_t timeout_ns, void (*on_end)(struct call *), struct rdt_error *err)
{
    int64_t left_ns = deadline_left_ns(&call->deadline);

    if (left_ns >= 0 && (timeout_ns < 0 || left_ns < timeout_ns))
        timeout_ns = left_ns;
    account_wait_end(call->rpc->objects->accounts, &call->waits.room); /* there is room now, if it waited for that */
    free(call->why);
    call->why = NULL;
    if (!call->deferred && account_take(call->account, USAGE_WAITERS, 1, err) != RDT_OK)
        return RDT_LIMIT;
    call->deferred = true;
    call->deadline.on_passed = on_deadline;
    if (!deadline_set(call->rpc->deadlines, &call->deadline, timeout_ns))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the deadline");
    call->on_end = on_end;
    if (!list_empty(&call->link))
        return RDT_OK;
    call->key = key_of(call->client, call->peer, call->request_id);
    if (call->request_id != 0 && !map_get(&call->rpc->calls.deferred, &call->key, sizeof call->key)) {
        if (!map_put(&call->rpc->calls.deferred, &call->key, sizeof call->key, call))
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a request that waits");
        call->indexed = true;
    }
    if (call->client) {
        list_append(&call->client->rpc.calls, &call->link);
        call->client->rpc.n_calls++;
    } else {
        list_append(&call->peer->calls.here, &call->link);
        call->peer->calls.n_here++;
    }
    return RDT_OK;
}

void call_list_waiting(struct call *call)
{
    struct rpc_calls *calls = &call->rpc->calls;

    if (!call->waits.number && index_put(&calls->waiting, ++calls->last_waiting, call))
        call->waits.number = calls->last_waiting;
}

void call_note_answer(struct call *call, uint64_t generation, uint64_t region, uint64_t group)
{
    struct client_rpc *rpc = call->client ? &call->client->rpc : NULL;

    if (rpc && call->request_id != 0)
        rpc->answered[rpc->n_answered++ % CLIENT_ANSWERED] = (struct client_answered){
            .request_id = call->request_id, .generation = generation, .region = region, .group = group};
}

const struct client_answered *call_take_answer(struct client *client, uint64_t request_id)
{
    for (unsigned i = 0; request_id != 0 && i < CLIENT_ANSWERED; i++) {
        struct client_answered *answered = &client->rpc.answered[i];

        if (answered->request_id != request_id)
            continue;
        answered->request_id = 0;
        return answered;
    }
    return NULL;
}

bool call_waits(const struct call *call)
{
    return (call->verb->properties & VERB_WAITS) && !call->hold.begins_transit;
}

bool call_may_wait(struct call *call, struct rdt_error *err)
{
    return call->deferred || account_check(call->account, USAGE_WAITERS, 1, err) == RDT_OK;
}

void call_take_request(struct call *call, struct arena *to)
{
    assert(!call->request.arena->given);
    *to = *call->request.arena; /* the old arena must not be used for allocations any more */
    arena_init(call->request.arena, call->request.arena->max_bytes);
}

void call_drop(struct call *call)
{
    struct rdt_error err;

    if (call->on_end)
        call->on_end(call);
    if (call->on_answer)
        tell_asker(call, NULL, (rdt_error_set(&err, RDT_CANCELLED, "the request has ended"), &err));
    else
        call_free(call);
}

bool calls_client_gone(struct rpc *rpc, struct client *client, uint64_t until_ns)
{
    while (!list_empty(&client->rpc.calls)) {
        call_drop(container_of(list_first(&client->rpc.calls), struct call, link));
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

struct call *call_find(const struct rpc *rpc, const struct client *client, const struct peer *peer, uint64_t number)
{
    struct call_key key = key_of(client, peer, number);

    return map_get(&rpc->calls.deferred, &key, sizeof key);
}

ProtobufCBinaryData call_mark(const struct call *call, uint8_t mark[REPEAT_BYTES])
{
    const struct client *client = call->client;

    if (!client || !client->session.lasting || call->request_id == 0)
        return (ProtobufCBinaryData){0, NULL};
    memcpy(mark, client->session.id, sizeof client->session.id);
    memcpy(mark + sizeof client->session.id, &call->request_id, sizeof call->request_id);
    return (ProtobufCBinaryData){REPEAT_BYTES, mark};
}

const uint8_t *call_mark_of(const struct call *call, const ProtobufCBinaryData *mark)
{
    return call->peer && mark->len == REPEAT_BYTES ? mark->data : NULL;
}

enum rdt_status call_ref(const Rdt__Pb__Ref *msg, struct rdt_ref *ref_p, struct rdt_error *err)
{
    return wire_ref_to(msg, ref_p, err);
}

enum rdt_status call_object_ref(const Rdt__Pb__Ref *msg, struct rdt_ref *ref_p, struct rdt_error *err)
{
    enum rdt_status status = call_ref(msg, ref_p, err);

    if (status == RDT_OK && ref_p->is_name)
        status = rdt_error_set(err, RDT_INVALID, "\"%s\" is a name: this request needs the ref of an object", ref_p->id);
    return status;
}

bool call_is_remote(const struct call *call, const struct rdt_ref *ref)
{
    static const uint8_t nobody[16];

    if (!call->client && memcmp(ref->node, nobody, sizeof nobody) == 0)
        return false; /* the other node means the node at the address that it has dialled, which is this one */
    return !node_is_here(call->rpc->node, ref->node, ref->address);
}

bool call_may_see(const struct call *call, const struct owner *owner)
{
    return call->admin || owner_equal(&call->account->owner, owner);
}
