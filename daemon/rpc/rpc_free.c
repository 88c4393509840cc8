/* SPDX-License-Identifier: Apache-2.0 */
/* FREE, WAIT_FREED and CANCEL_REQUEST: the end of objects, and of waits for them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/objects/transit.h"
#include "daemon/rpc/rpc.h"
#include "daemon/view/view.h"
#include "wire_ref.h"

/* ---- freeing ---- */

/* A forced free is answered when no other node gives its replica to new readers any more: when each node has confirmed
 * that, has lost its link to this node, or has heard nothing from this node for peer_timeout, because a node uses a
 * replica only if it has heard from the owner since. */
struct freeing {
    struct replica_directory_waiter waiter;
    struct deadline deadline;
    struct call *call;
    uint64_t generation;
};

static void freeing_end(struct call *call)
{
    struct freeing *freeing = call->waiting;

    list_remove(&freeing->waiter.link);
    deadline_unset(call->rpc->deadlines, &freeing->deadline);
    free(freeing);
    call->waiting = NULL;
}

static void freeing_done(struct freeing *freeing)
{
    struct call *call = freeing->call;
    uint64_t generation = freeing->generation;

    freeing_end(call);
    call->on_end = NULL;
    call_reply_removed(call, generation);
}

static void on_settled(struct replica_directory_waiter *waiter)
{
    freeing_done(container_of(waiter, struct freeing, waiter));
}

static void on_silence(struct deadline *deadline)
{
    freeing_done(container_of(deadline, struct freeing, deadline));
}

/* Answers the call when no replica is served any more. NO_MEMORY: the object is freed anyway, and the call
 * is answered at once. */
static enum rdt_status answer_forced(struct call *call, uint64_t generation, struct rdt_error *err)
{
    struct freeing *freeing = calloc(1, sizeof *freeing);
    enum rdt_status status;

    if (!freeing)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for the other nodes that have replicas");
    freeing->waiter.on_settled = on_settled;
    freeing->deadline.on_passed = on_silence;
    freeing->call = call;
    freeing->generation = generation;
    list_init(&freeing->waiter.link);
    if (!replica_directory_wait(&call->rpc->transfers->directory, generation, &freeing->waiter)) {
        free(freeing);
        call_reply_removed(call, generation);
        return RDT_OK;
    }
    call->waiting = freeing;
    status = call_defer(call, -1, freeing_end, err);
    if (status == RDT_OK &&
        !deadline_set(call->rpc->deadlines, &freeing->deadline, (int64_t)call->rpc->options->peer_timeout_ns))
        freeing_done(freeing);
    else if (status != RDT_OK)
        freeing_end(call);
    return status;
}

/* Says who holds an object that has no hold of a producer. */
static enum rdt_status freed_before(const struct call *call, const struct object *object, const char *id, struct rdt_error *err)
{
    struct list *cursor = NULL;
    const struct name *name;

    while ((name = names_of_object(call->rpc->names, object, &cursor)))
        if (name_visible_to(name, &call->account->owner))
            return rdt_error_set(
                err, RDT_FREED,
                "object \"%s\" has no hold of its producer any more; the name \"%.*s\" holds it until you unpublish "
                "the name (rdtctl unpublish), or free the object by force",
                id, name->id_bytes, (const char *)name_id(name));
    return rdt_error_set(err, RDT_FREED, "object \"%s\" was freed before", id);
}

/* A user may mix up an object's id and a name. */
static enum rdt_status not_put(const struct call *call, const struct rdt_ref *ref, struct rdt_error *err)
{
    const struct owner *requester = &call->account->owner;
    struct owner owner = owner_of_ref(ref, requester);
    enum rdt_status status = object_table_not_put(ref, requester, err);
    size_t length = strlen(err->msg);
    char hint[200];

    names_explain_object(call->rpc->names, &owner, (const uint8_t *)ref->id, ref->id_bytes, requester, hint, sizeof hint);
    if (hint[0])
        (void)snprintf(err->msg + length, sizeof err->msg - length, "; there is a name \"%s\": unpublish it (rdtctl unpublish)",
                       ref->id);
    return status;
}

/* Whether the object was put under the id after the client had first sent the request, which then means the object before it.
 * Objects of an earlier daemon are older than any request that is sent to this one again. */
static bool is_another(const struct object *object, const struct rdt_ref *ref, int64_t age_ns)
{
    return ref->generation == 0 && age_ns > 0 && object->generation >= object->table->first_generation &&
           (int64_t)(uv_hrtime() - object->since_ns) < age_ns;
}

enum rdt_status rpc_free(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Free *message = request;
    struct object *object;
    struct rdt_ref ref;
    enum rdt_status status = call_ref(message->ref, &ref, err);

    if (status != RDT_OK)
        return status;
    if (ref.is_name)
        return rdt_error_set(err, RDT_INVALID,
                             "\"%s\" is a name: unpublish it (rdtctl unpublish), or free an object by the object's own ref",
                             ref.id);
    if (call_is_remote(call, &ref))
        return call_forward(call, &ref, &message->base, -1, err);
    status = object_table_find_any(call->rpc->objects, &ref, &call->account->owner, call->admin, &object, err);
    if (status == RDT_AGAIN)
        return not_put(call, &ref, err);
    if (status != RDT_OK)
        return status;
    if (is_another(object, &ref, message->age_ns)) {
        call_reply_empty(call);
        return RDT_OK;
    }
    if (!call_may_see(call, &object->account->owner))
        return rdt_error_set(err, RDT_DENIED, "object \"%s\" belongs to uid %u: only that user or root may free it", ref.id,
                             object->account->owner.uid);
    if (!message->force && !object_has_producer_hold(object))
        return freed_before(call, object, ref.id, err);
    if (!message->force && object->producer != call->client && !object_outlives_session(object))
        return rdt_error_set(err, RDT_DENIED,
                             "object \"%s\" is held by its producer, client %llu: only that client may release it; "
                             "other clients of the same user may free it by force",
                             ref.id, (unsigned long long)object_producer_id(object));
    if (message->unseen && object->access.took_key) {
        call_reply_empty(call);
        return RDT_OK;
    }
    if (message->force && !call_may_wait(call, err)) /* answer_forced waits for the nodes that have replicas */
        return RDT_LIMIT;
    ref.generation = object->generation;
    object_free(object, message->force, call->request_id == 0 && !message->force ? OBJECT_END_DROPPED : OBJECT_END_FREED);
    if (message->force)
        return answer_forced(call, ref.generation, err);
    call_reply_removed(call, ref.generation);
    return RDT_OK;
}

/* ---- waiting for the end ---- */

static void on_wake_freed(struct client_wake *wake)
{
    call_reply_empty(container_of(wake, struct call, waits.wake));
}

static void wake_freed(struct call *call)
{
    if (!call->client) {
        call_reply_empty(call);
        return;
    }
    call->waits.wake.run = on_wake_freed;
    client_wake(call->client, &call->waits.wake);
}

static void on_gone(struct object_waiter *waiter, struct object *object, const struct rdt_error *why)
{
    wake_freed(container_of(waiter, struct call, waits.object));
}

/* Writes who holds the object. NULL: the object has ended, and the client has had no turn since; writes "". */
static void say_holders(const struct call *call, const struct object *object, char *text, size_t room)
{
    struct holders *holders = object ? holders_create(call->rpc, object, &call->account->owner, call->admin) : NULL;

    text[0] = '\0';
    if (holders)
        holders_say(holders, text, room);
    holders_destroy(holders);
}

static void explain_freed(const struct call *call, struct rdt_error *err)
{
    char who[320];

    say_holders(call, call->waits.object.object, who, sizeof who);
    (void)rdt_error_set(err, RDT_TIMED_OUT, "%s in time%s%s", call->verb->unmet, who[0] ? ": " : "", who);
}

/* Names the first object that overlaps the range, and who holds that. A range can have many objects. */
static void explain_range(const struct call *call, struct rdt_error *err)
{
    const struct region_use *use = region_first_use(call->waits.region, call->waits.range.lo, call->waits.range.hi);
    const struct object *object = use ? use->object : NULL;
    char id[3 * RDT_MAX_ID_BYTES + 1], who[320];

    if (use && !object) {
        (void)rdt_error_set(err, RDT_TIMED_OUT, "%s in time: a transfer still touches it", call->verb->unmet);
    } else if (object && call_may_see(call, &object->account->owner)) {
        wire_ref_id_text(object_id(object), object->tail.id_bytes, id);
        say_holders(call, object, who, sizeof who);
        (void)rdt_error_set(err, RDT_TIMED_OUT, "%s in time: object \"%s\"%s%s", call->verb->unmet, id, who[0] ? ": " : "",
                            who);
    } else {
        (void)rdt_error_set(err, RDT_TIMED_OUT, "%s in time", call->verb->unmet);
    }
}

static void on_idle(struct region_waiter *waiter)
{
    wake_freed(container_of(waiter, struct call, waits.range));
}

static enum rdt_status wait_range(struct call *call, const Rdt__Pb__WaitFreed *message, struct rdt_error *err)
{
    struct region *region;
    enum rdt_status status;

    if (!call->client)
        return rdt_error_set(err, RDT_DENIED, "only a client of this node may wait for a range of memory");
    region = map_get_u64(&call->client->regions, message->region);
    if (!region || region->generation != message->generation)
        return rdt_error_set(err, RDT_NOT_FOUND, "this client has no region %llu", (unsigned long long)message->region);
    if (message->offset > region->bytes || message->bytes > region->bytes - message->offset)
        return rdt_error_set(err, RDT_INVALID, "the range ends beyond region %llu", (unsigned long long)region->id);
    call->waits.range.lo = message->offset;
    call->waits.range.hi = message->offset + message->bytes;
    call->waits.range.on_idle = on_idle;
    status = region_wait_idle(region, &call->waits.range, err);
    if (status == RDT_OK)
        call_reply_empty(call);
    if (status != RDT_AGAIN)
        return status;
    call->waits.region = region_ref(region);
    call->explain = explain_range;
    return call_defer(call, message->timeout_ns, NULL, err);
}

enum rdt_status rpc_wait_freed(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__WaitFreed *message = request;
    struct object *object;
    struct rdt_ref ref;
    enum rdt_status status;

    if (message->region != 0)
        return wait_range(call, message, err);
    status = call_object_ref(message->ref, &ref, err);
    if (status != RDT_OK)
        return status;
    if (call_is_remote(call, &ref))
        return call_forward(call, &ref, &message->base, message->timeout_ns, err);
    status = object_table_find_any(call->rpc->objects, &ref, &call->account->owner, call->admin, &object, err);
    if (status == RDT_FREED || status == RDT_OWNER_DIED || (status == RDT_OK && is_another(object, &ref, message->age_ns))) {
        call_reply_empty(call);
        return RDT_OK;
    }
    if (status == RDT_AGAIN)
        return object_table_not_put(&ref, &call->account->owner, err);
    if (status != RDT_OK)
        return status;
    call->waits.object.on_event = on_gone;
    call->explain = explain_freed;
    if (!object_wait_freed(object, &call->waits.object))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for the end of \"%s\"", ref.id);
    return call_defer(call, message->timeout_ns, NULL, err);
}

/* Ends what the client does not know of, because it stopped waiting before the answer had come. An object that has replaced
 * another one stays: without both of them the id would have lost its value. */
static void undo(struct call *call, const struct client_answered *answered)
{
    struct groups *groups = call->rpc->groups;
    struct object *object = answered->generation ? index_get(&call->rpc->objects->by_generation, answered->generation) : NULL;
    struct region *region = answered->region ? map_get_u64(&call->client->regions, answered->region) : NULL;

    if (object && object_has_producer_hold(object) && !object->access.took_key)
        object_free(object, false, OBJECT_END_FREED);
    if (region && region->state != REGION_RETURNED) {
        client_forget_region(call->client, region);
        region_unref(region);
    }
    if (answered->group == 0)
        return;
    list_each (struct group, group, &groups->all, link)
        if (group->number == answered->group) {
            group_end(group, NULL);
            return;
        }
}

enum rdt_status rpc_cancel_request(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__CancelRequest *message = request;
    const struct client_answered *answered = call->client ? call_take_answer(call->client, message->request_id) : NULL;
    struct call *other = call->client ? call_find(call->rpc, call->client, NULL, message->request_id) : NULL;
    struct remote_hold *hold = call->client ? remote_hold_find(call->client, message->request_id) : NULL;
    struct rdt_error why;

    if (other) {
        if (other->on_end)
            other->on_end(other);
        (void)rdt_error_set(&why, RDT_CANCELLED, "the request was cancelled");
        call_fail(other, &why);
    }
    if (hold && hold->object && message->unseen)
        transit_returned(hold->object, hold->transit_until_ns);
    else if (hold && message->unseen)
        holds_taken_unseen(hold);
    if (hold) /* the request was a HOLD, and has been answered with the hold */
        remote_hold_end(hold);
    if (answered)
        undo(call, answered);
    call_reply_empty(call);
    return RDT_OK;
}
