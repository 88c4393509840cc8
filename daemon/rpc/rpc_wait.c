/* WAIT and HOLD: both wait until an object is live. WAIT then describes it, and HOLD takes a hold on it. */
#include <string.h>

#include "daemon/objects/transit.h"
#include "daemon/rpc/rpc_view.h"
#include "wire_ref.h"

static void answer_view(struct call *call, struct object *object)
{
    struct object_view view;

    object_view_fill(&view, call->rpc, object, false);
    call_reply(call, &view.info.base, NULL, 0);
    object_view_fini(&view);
}

static enum rdt_status hold(struct call *call, struct object *object, struct rdt_error *err)
{
    if (object->state != OBJECT_LIVE) /* it was freed after the wait had ended */
        return object_why_ended(object, err);
    if (!call->client)
        return holds_take(&call->rpc->holds, call->peer, call->request_id, call->account, object, err);
    return remote_hold_take(call->client, call->request_id, object, &(struct remote_hold *){NULL}, err);
}

static void answer_held(struct call *call, const struct object *object)
{
    Rdt__Pb__HoldReply reply = RDT__PB__HOLD_REPLY__INIT;
    Rdt__Pb__Ref message;
    struct rdt_ref ref;

    object_ref(object, &ref);
    wire_ref_from(&ref, &message);
    reply.ref = &message;
    call_reply(call, &reply.base, NULL, 0);
}

static void answer_hold(struct call *call, struct object *object)
{
    struct rdt_error err;

    if (hold(call, object, &err) != RDT_OK) {
        call_fail(call, &err);
        return;
    }
    if (call->takes_over)
        transit_arrived(object);
    answer_held(call, object);
}

/* The caller may see it. */
static void answer_live(struct call *call, struct object *object)
{
    if (call->type == RDT_MSG_HOLD)
        answer_hold(call, object);
    else
        answer_view(call, object);
}

static void tell_put(struct call *call, struct object *object)
{
    struct rdt_error err;

    if (object_visible_to(object, &call->account->owner)) {
        answer_live(call, object);
    } else {
        (void)rdt_error_set(&err, RDT_DENIED, "the object was put, but is not visible to uid %u", call->account->owner.uid);
        call_fail(call, &err);
    }
}

static void on_wake_put(struct client_wake *wake)
{
    struct call *call = container_of(wake, struct call, wake);
    struct object *object = call->woken;

    call->woken = NULL;
    tell_put(call, object);
    object_drop(object);
}

static void on_put(struct object_waiter *waiter, struct object *object, const struct rdt_error *why)
{
    struct call *call = container_of(waiter, struct call, object);

    if (why) {
        call_fail(call, why);
        return;
    }
    if (!call->client) {
        tell_put(call, object);
        return;
    }
    object_hold(object);
    call->woken = object;
    call->wake.run = on_wake_put;
    client_wake(call->client, &call->wake);
}

static void on_published(struct name_waiter *waiter, struct object *object, uint64_t version, const struct rdt_error *err)
{
    struct call *call = container_of(waiter, struct call, named);

    (void)version;
    if (object)
        answer_live(call, object);
    else
        call_fail(call, err);
}

static enum rdt_status wait_name(struct call *call, const struct rdt_ref *ref, int64_t timeout_ns, struct rdt_error *err)
{
    struct object *object;
    uint64_t version;
    enum rdt_status status = names_find(call->rpc->names, ref, &call->account->owner, &object, &version, err);

    if (status == RDT_OK)
        answer_live(call, object);
    if (status != RDT_AGAIN)
        return status;
    call->named.on_event = on_published;
    status = names_wait(call->rpc->names, ref, &call->account->owner, &call->named, err);
    if (status == RDT_OK)
        status = call_defer(call, timeout_ns, NULL, err);
    if (status == RDT_OK)
        call->why = strdup("nobody has published such a version of the name in time");
    return status;
}

/* request: the message to forward if the object is on another node. */
static enum rdt_status wait_live(struct call *call, const Rdt__Pb__Ref *wire, const ProtobufCMessage *request, int64_t timeout_ns,
                                 struct rdt_error *err)
{
    struct object *object;
    struct rdt_ref ref;
    enum rdt_status status = call_ref(wire, &ref, err);

    if (status != RDT_OK)
        return status;
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
    call->object.on_event = on_put;
    status = object_table_wait(call->rpc->objects, &ref, &call->account->owner, &call->object, err);
    return status == RDT_OK ? call_defer(call, timeout_ns, NULL, err) : status;
}

enum rdt_status rpc_wait(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Wait *message = request;

    return wait_live(call, message->ref, &message->base, message->timeout_ns, err);
}

/* A hold in transit, which belongs to no session. */
static enum rdt_status begin_transit(struct call *call, const Rdt__Pb__Hold *message, struct rdt_error *err)
{
    int64_t most_ns = (int64_t)call->rpc->options->detached_max_ns;
    struct object *object;
    struct rdt_ref ref;
    enum rdt_status status = call_object_ref(message->ref, &ref, err);

    if (status != RDT_OK)
        return status;
    if (!call->client || call_is_remote(call, &ref))
        return rdt_error_set(err, RDT_UNSUPPORTED, "object \"%s\" is on another node: only its own node holds it in transit", ref.id);
    status = object_table_find_any(call->rpc->objects, &ref, &call->account->owner, &object, err);
    if (status == RDT_AGAIN || (status == RDT_OK && object->state != OBJECT_FILLING && object->state != OBJECT_LIVE))
        return rdt_error_set(err, RDT_NOT_FOUND, "nobody has put object \"%s\", or it has ended", ref.id);
    if (status != RDT_OK)
        return status;
    if (!owner_equal(&object->account->owner, &call->account->owner))
        return rdt_error_set(err, RDT_DENIED, "object \"%s\" belongs to another user: only its own can hold it in transit", ref.id);
    if (!transit_begin(object, message->transit_ns < most_ns ? message->transit_ns : most_ns))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a hold in transit");
    answer_held(call, object);
    return RDT_OK;
}

enum rdt_status rpc_hold(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Hold *message = request;

    if (message->transit_ns > 0)
        return begin_transit(call, message, err);
    call->takes_over = message->takes_over;
    return wait_live(call, message->ref, &message->base, message->timeout_ns, err);
}
