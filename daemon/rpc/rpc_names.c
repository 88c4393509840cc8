/* SPDX-License-Identifier: Apache-2.0 */
/* PUBLISH and UNPUBLISH: names for objects of this node. */

#include "daemon/calls/call.h"
#include "daemon/rpc/rpc.h"
#include "proto/wire_limits.h"

/* How long a publish of another node waits for its put: less than the time in which that node expects an answer. */
#define PEERS_PUT_WAIT_NS INT64_C(5000000000)

enum rdt_status publish_check_object(const struct call *call, const struct rdt_ref *ref, const struct object *object,
                                     struct rdt_error *err)
{
    if (!call_may_see(call, &object->account->owner))
        return rdt_error_set(err, RDT_DENIED, "object \"%s\" belongs to uid %u: only that user or root may publish it", ref->id,
                             object->account->owner.uid);
    if (object->state != OBJECT_LIVE && object->state != OBJECT_FILLING)
        return rdt_error_set(err, object->end == OBJECT_END_OWNER_DIED ? RDT_OWNER_DIED : RDT_FREED,
                             "object \"%s\" was freed: there is nothing to publish", ref->id);
    return RDT_OK;
}

/* The name is on another node. If this daemon ends before the answer has come, its successor sends the request again. */
static enum rdt_status forward(struct call *call, const Rdt__Pb__Publish *message, const struct rdt_ref *ref,
                               struct rdt_error *err)
{
    Rdt__Pb__Publish marked = *message;
    uint8_t mark[REPEAT_BYTES];

    marked.repeat = call_mark(call, mark);
    return call_forward(call, ref, &marked.base, -1, err);
}

/* Answers with the version, or waits for the nodes that say who has the name. */
static enum rdt_status publish_live(struct call *call, const struct name_publish *publish, struct rdt_error *err)
{
    Rdt__Pb__PublishReply reply = RDT__PB__PUBLISH_REPLY__INIT;
    enum rdt_status status = RDT_OK;

    reply.version = names_repeated(call->rpc->names, publish);
    if (reply.version == 0) {
        call->waits.claim.on_decided = call_on_claim;
        status = directory_names_claim(call->rpc->directory_names, &publish->object->account->owner, publish->id,
                                       publish->id_bytes, &call->waits.claim, err);
        if (status == RDT_AGAIN)
            return call_wait_for_claim(call, -1, err);
    }
    if (status == RDT_OK && reply.version == 0)
        status = names_publish(call->rpc->names, publish, &reply.version, err);
    if (status == RDT_OK)
        call_reply(call, &reply.base, NULL, 0);
    return status;
}

enum rdt_status rpc_publish(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Publish *message = request;
    Rdt__Pb__PublishReply reply = RDT__PB__PUBLISH_REPLY__INIT;
    struct name_publish publish = {.id = message->name.data,
                                   .id_bytes = message->name.len,
                                   .visibility = message->visibility,
                                   .lease = message->lease ? call->client : NULL,
                                   .ttl_ns = message->ttl_ns,
                                   .repeat = call_mark_of(call, &message->repeat),
                                   .session = call->client && call->client->session.lasting ? call->client->id : 0,
                                   .request = call->client && call->client->session.lasting ? call->request_id : 0};
    struct rdt_ref ref;
    enum rdt_status status;

    /* an earlier daemon recorded this version, and its answer was lost with that daemon */
    reply.version = call->client ? (uintptr_t)map_get_u64(&call->client->session.answers, call->request_id) : 0;
    if (reply.version != 0) {
        call_reply(call, &reply.base, NULL, 0);
        return RDT_OK;
    }
    if (message->name.len == 0 || message->name.len > RDT_MAX_ID_BYTES)
        return rdt_error_set(err, RDT_INVALID, "the name has %zu bytes: it must have 1 to %u", message->name.len,
                             RDT_MAX_ID_BYTES);
    if ((unsigned)message->visibility > RDT__PB__VISIBILITY__VISIBILITY_ALL)
        return rdt_error_set(err, RDT_INVALID, "unknown visibility %d", (int)message->visibility);
    if (message->ttl_ns < 0)
        return rdt_error_set(err, RDT_INVALID, "the time to live is %lld ns: it must not be negative",
                             (long long)message->ttl_ns);
    status = call_object_ref(message->ref, &ref, err);
    if (status != RDT_OK)
        return status;
    if (call_is_remote(call, &ref)) /* a name belongs to the node of its objects */
        return forward(call, message, &ref, err);
    if (call->rpc->intake.draining)
        return rdt_error_set(err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    if (call->rpc->intake.drained)
        return rpc_refuse_drained(err);
    if (message->lease && !call->client)
        return rdt_error_set(
            err, RDT_UNSUPPORTED,
            "object \"%s\" is on another node, so this session cannot be the lease of its name: publish it from a "
            "client there, or give the name a time to live",
            ref.id);
    status = object_table_find_any(call->rpc->objects, &ref, &call->account->owner, call->admin, &publish.object, err);
    if (status == RDT_AGAIN)
        return object_table_not_put(&ref, &call->account->owner, err);
    if (status == RDT_OK)
        status = publish_check_object(call, &ref, publish.object, err);
    if (status == RDT_OK && publish.object->state == OBJECT_FILLING)
        return call_wait_for_put(call, publish.object, call->client ? PUT_WAIT_NS : PEERS_PUT_WAIT_NS, err);
    if (status != RDT_OK)
        return status;
    object_hold(publish.object); /* the end of another name may drop the last hold: that of a client that has just gone */
    status = publish_live(call, &publish, err);
    object_drop(publish.object);
    return status;
}

enum rdt_status rpc_unpublish(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Unpublish *message = request;
    struct rdt_ref ref;
    enum rdt_status status = call_ref(message->name, &ref, err);

    if (status != RDT_OK)
        return status;
    if (!ref.is_name)
        return rdt_error_set(err, RDT_INVALID, "\"%s\" is the ref of an object, not of a name", ref.id);
    status = call_place_name(call, &ref, err);
    if (status != RDT_OK)
        return status == RDT_AGAIN ? RDT_OK : status;
    if (call_is_remote(call, &ref))
        return call_forward(call, &ref, &message->base, -1, err);
    status = names_unpublish(call->rpc->names, &ref, &call->account->owner, call->admin, message->age_ns, err);
    if (status == RDT_OK)
        call_reply_removed(call, 0);
    return status;
}
