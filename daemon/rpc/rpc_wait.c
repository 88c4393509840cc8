/* SPDX-License-Identifier: Apache-2.0 */
/* WAIT and HOLD: both wait until an object is live. WAIT then describes it, and HOLD takes a hold on it. */
#include <stdio.h>

#include "daemon/calls/call.h"
#include "daemon/objects/transit.h"
#include "daemon/view/view.h"
#include "wire_ref.h"

static void answer_view(struct call *call, struct object *object)
{
    struct object_view view;

    object_view_fill(&view, object);
    call_reply(call, &view.info.base, NULL, 0);
}

static enum rdt_status hold(struct call *call, struct object *object, struct rdt_error *err)
{
    struct remote_hold *held;
    enum rdt_status status;

    if (object->state != OBJECT_LIVE) /* it was freed after the wait had ended */
        return object_why_ended(object, err);
    if (call_is_cut_off(call)) /* the node's list of its holds may have come over the next link, and would not end this one */
        return rdt_error_set(err, RDT_PEER_LOST, "the link on which the request came has ended");
    if (!call->client)
        return holds_take(call->rpc->holds, call->peer, call->request_id, call->account, object, call->hold.takes_over, err);
    status = remote_hold_take(call->client, call->request_id, object, &held, err);
    if (status == RDT_OK && call->hold.takes_over)
        held->transit_until_ns = transit_until(object);
    return status;
}

static void answer_held(struct call *call, const struct object *object)
{
    Rdt__Pb__HoldReply reply = RDT__PB__HOLD_REPLY__INIT;
    Rdt__Pb__Ref message;
    struct rdt_ref ref;

    object_ref(object, &ref);
    wire_ref_from(&ref, &message);
    reply.ref = &message;
    reply.version = call->hold.version;
    call_reply(call, &reply.base, NULL, 0);
}

static void answer_hold(struct call *call, struct object *object)
{
    struct rdt_error err;

    if (hold(call, object, &err) != RDT_OK) {
        call_fail(call, &err);
        return;
    }
    if (call->hold.takes_over)
        transit_arrived(object);
    answer_held(call, object);
}

/* Answers with a live object, which the caller may see. */
static void answer_live(struct call *call, struct object *object)
{
    if (call->type == RDT_MSG_HOLD)
        answer_hold(call, object);
    else
        answer_view(call, object);
}

static void on_wake_put(struct client_wake *wake)
{
    struct call *call = container_of(wake, struct call, waits.wake);
    struct object *object = call->waits.woken;

    call->waits.woken = NULL;
    answer_live(call, object);
    object_drop(object);
}

static void on_put(struct object_waiter *waiter, struct object *object, const struct rdt_error *why)
{
    struct call *call = container_of(waiter, struct call, waits.object);

    if (why) {
        call_fail(call, why);
        return;
    }
    if (!call->client) {
        answer_live(call, object);
        return;
    }
    object_hold(object);
    call->waits.woken = object;
    call->waits.wake.run = on_wake_put;
    client_wake(call->client, &call->waits.wake);
}

static void on_published(struct name_waiter *waiter, struct object *object, uint64_t version, const struct rdt_error *err)
{
    struct call *call = container_of(waiter, struct call, waits.named);

    call->hold.version = version;
    if (object)
        answer_live(call, object);
    else
        call_fail(call, err);
}

/* Writes the TIMED_OUT error of a call that waits for an object or a name. If that belongs to another owner, it adds that
 * the owner may not show it to the caller. */
static void explain_wait(const struct call *call, struct rdt_error *err)
{
    const struct owner *requester = &call->account->owner;
    const struct name *name = call->waits.named.name;
    const struct object *object = call->waits.object.object;
    const struct owner *owner = name ? &name->account->owner : object ? &object->account->owner : requester;
    char missing[200] = "", hidden[80] = "", away[120] = "";

    if (call->forwarded.number) {
        (void)rdt_error_set(err, RDT_TIMED_OUT, "node %s has not answered in time: %s", call->forwarded.to->name,
                            call->verb->unmet);
        return;
    }

    if (!owner_equal(owner, requester))
        (void)snprintf(hidden, sizeof hidden, ", or uid %u does not show it to uid %u", owner->uid, requester->uid);
    if (name)
        names_explain_name(call->rpc->names, call->rpc->objects, owner, name_id(name), name->id_bytes, requester, missing,
                           sizeof missing);
    else if (object)
        names_explain_object(call->rpc->names, owner, object_id(object), object->tail.id_bytes, requester, missing,
                             sizeof missing);
    if (name && call->waits.seeker.seek)
        directory_names_explain(call->rpc->directory_names, owner, name_id(name), name->id_bytes, away, sizeof away);
    (void)rdt_error_set(err, RDT_TIMED_OUT, "%s in time%s%s%s",
                        name ? "nobody has published such a version of the name" : call->verb->unmet, hidden, missing, away);
}

/* The same for a call that does not wait. NOT_PUT, if this node knows that nobody has put it. */
static void explain_no_wait(const struct call *call, struct rdt_error *err)
{
    explain_wait(call, err);
    if (!call->forwarded.number && !call->waits.seeker.seek)
        err->status = RDT_NOT_PUT;
}

static enum rdt_status defer(struct call *call, int64_t timeout_ns, struct rdt_error *err)
{
    enum rdt_status status;

    call->explain = timeout_ns == 0 ? explain_no_wait : explain_wait;
    status = call_defer(call, timeout_ns, NULL, err);
    if (status == RDT_OK)
        call_list_waiting(call);
    return status;
}

static enum rdt_status wait_name(struct call *call, const struct rdt_ref *ref, int64_t timeout_ns, struct rdt_error *err)
{
    struct object *object;
    uint64_t version;
    enum rdt_status status = names_find(call->rpc->names, ref, &call->account->owner, &object, &version, err);

    if (status == RDT_OK) {
        call->hold.version = version;
        answer_live(call, object);
    }
    if (status != RDT_AGAIN)
        return status;
    call->waits.named.on_event = on_published;
    status = names_wait(call->rpc->names, ref, &call->account->owner, &call->waits.named, err);
    if (status == RDT_OK)
        status = defer(call, timeout_ns, err);
    return status == RDT_OK ? call_seek_name(call, ref, err) : status;
}

/* Answers the call when the object, or the name, is there. `request` is forwarded if it belongs to another node. */
static enum rdt_status wait_live(struct call *call, const Rdt__Pb__Ref *wire, const ProtobufCMessage *request,
                                 int64_t timeout_ns, struct rdt_error *err)
{
    struct object *object;
    struct rdt_ref ref;
    enum rdt_status status = call_ref(wire, &ref, err);

    if (status != RDT_OK)
        return status;
    (void)call_place_known(call, &ref);
    if (call_is_remote(call, &ref))
        return call_forward(call, &ref, request, timeout_ns, err);
    if (ref.is_name)
        return wait_name(call, &ref, timeout_ns, err);
    status = object_table_find(call->rpc->objects, &ref, &call->account->owner, &object, err);
    if (status == RDT_OK) {
        answer_live(call, object);
        return RDT_OK;
    }
    if (status != RDT_AGAIN)
        return status;
    call->waits.object.on_event = on_put;
    status = object_table_wait(call->rpc->objects, &ref, &call->account->owner, &call->waits.object, err);
    return status == RDT_OK ? defer(call, timeout_ns, err) : status;
}

enum rdt_status rpc_wait(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Wait *message = request;

    return wait_live(call, message->ref, &message->base, message->timeout_ns, err);
}

static enum rdt_status forward_transit(struct call *call, const Rdt__Pb__Hold *message, const struct rdt_ref *ref,
                                       struct rdt_error *err)
{
    Rdt__Pb__Hold marked = *message;
    uint8_t mark[REPEAT_BYTES];

    marked.repeat = call_mark(call, mark);
    return call_forward(call, ref, &marked.base, 0, err);
}

/* Whether this HOLD has begun a hold in transit already: an earlier daemon recorded that, or another node's session repeats
 * it. */
static bool is_in_transit(const struct call *call, const struct object *object, const uint8_t *mark)
{
    const struct client *client = call->client;

    return client ? (uintptr_t)map_get_u64(&client->session.answers, call->request_id) == object->generation
                  : transit_has_mark(object, mark);
}

/* Begins a hold in transit, which belongs to no session. */
static enum rdt_status begin_transit(struct call *call, const Rdt__Pb__Hold *message, struct rdt_error *err)
{
    const uint8_t *mark = call_mark_of(call, &message->repeat);
    const struct client_session *session = call->client ? &call->client->session : NULL;
    int64_t most_ns = (int64_t)call->rpc->options->detached_max_ns;
    struct object *object;
    struct rdt_ref ref;
    enum rdt_status status = call_object_ref(message->ref, &ref, err);

    if (status != RDT_OK)
        return status;
    call->hold.begins_transit = true;
    if (call_is_remote(call, &ref))
        return forward_transit(call, message, &ref, err);
    status = object_table_find_any(call->rpc->objects, &ref, &call->account->owner, false, &object, err);
    if (status == RDT_AGAIN || (status == RDT_OK && object->state != OBJECT_FILLING && object->state != OBJECT_LIVE))
        return object_table_not_put(&ref, &call->account->owner, err);
    if (status != RDT_OK)
        return status;
    if (!owner_equal(&object->account->owner, &call->account->owner))
        return rdt_error_set(err, RDT_DENIED, "object \"%s\" belongs to another user: only its owner can hold it in transit",
                             ref.id);
    if (!is_in_transit(call, object, mark)) {
        status = transit_begin(object, message->transit_ns < most_ns ? message->transit_ns : most_ns, err);
        if (status != RDT_OK)
            return status;
        transit_mark(object, mark);
        if (session && session->lasting && call->request_id != 0)
            session->lasting->on_request(session->lasting->arg, call->client, call->request_id, object->generation);
    }
    answer_held(call, object);
    return RDT_OK;
}

/* Answers a HOLD that an earlier daemon recorded, but whose answer was lost with that daemon. false: it is another. */
static bool answer_hold_again(struct call *call, const Rdt__Pb__Hold *message)
{
    struct remote_hold *hold = remote_hold_find(call->client, call->request_id);
    const struct lasting *lasting = call->client->session.lasting;
    Rdt__Pb__HoldReply reply = RDT__PB__HOLD_REPLY__INIT;
    struct rdt_error err;
    struct rdt_ref ref;
    Rdt__Pb__Ref held;

    if (!hold || !client_has_returned(call->client))
        return false;
    if (lasting && lasting->far_ref(lasting->arg, hold, &ref)) { /* on another node */
        wire_ref_from(&ref, &held);
        reply.ref = &held;
    } else {
        reply.ref = message->ref;
    }
    if (hold->lost != RDT_OK) {
        (void)remote_hold_why_lost(hold, &err);
        remote_hold_end(hold);
        call_fail(call, &err);
    } else if (hold->object) {
        answer_held(call, hold->object);
    } else {
        call_reply(call, &reply.base, NULL, 0);
    }
    return true;
}

enum rdt_status rpc_hold(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Hold *message = request;

    if (message->transit_ns > 0)
        return begin_transit(call, message, err);
    if (call->client && answer_hold_again(call, message))
        return RDT_OK;
    call->hold.takes_over = message->takes_over;
    return wait_live(call, message->ref, &message->base, message->timeout_ns, err);
}
