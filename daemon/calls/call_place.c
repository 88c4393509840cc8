/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/calls/call.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"

static const char silence[] = "the nodes that would know the name have not answered";

/* Keeps the packed request, so that the call can be dispatched again. Errors: LIMIT, NO_MEMORY. */
static enum rdt_status keep_packed(struct call *call, struct rdt_error *err)
{
    enum rdt_status status =
        call->copy.packed ? RDT_OK : account_take(call->account, USAGE_HEAP, call->request.payload_bytes, err);

    if (call->copy.packed || status != RDT_OK)
        return status;
    call->copy.heap_bytes = call->request.payload_bytes;
    call->copy.packed = malloc(call->request.payload_bytes ? call->request.payload_bytes : 1);
    if (!call->copy.packed)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to keep a request");
    memcpy(call->copy.packed, call->request.payload, call->request.payload_bytes);
    call->copy.packed_bytes = call->request.payload_bytes;
    call->request.frame = NULL;
    return RDT_OK;
}

static void dispatch_again(struct call *call)
{
    call->rpc->above.dispatch(call, call->copy.packed, call->copy.packed_bytes);
}

static void on_found(struct name_seeker *seeker, const uint8_t node[16], const char *address)
{
    struct call *call = container_of(seeker, struct call, waits.seeker);

    name_waiter_remove(&call->waits.named);
    name_seeker_remove(seeker);
    call->place.known = true;
    memcpy(call->place.node, node, sizeof call->place.node);
    text_copy(call->place.address, sizeof call->place.address, address);
    dispatch_again(call);
}

/* It is answered as if the name were only looked for here, or at the node that has claimed it. */
static void on_missing(struct name_seeker *seeker, const uint8_t node[16], const char *address)
{
    struct call *call = container_of(seeker, struct call, waits.seeker);

    if (node) {
        on_found(seeker, node, address);
        return;
    }
    name_seeker_remove(seeker);
    call->place.known = true;
    dispatch_again(call);
}

bool call_place_known(struct call *call, struct rdt_ref *ref)
{
    struct owner owner = owner_of_ref(ref, &call->account->owner);

    if (!call->client || !ref_is_unplaced(ref))
        return false;
    if (call->place.known) {
        memcpy(ref->node, call->place.node, sizeof ref->node);
        text_copy(ref->address, sizeof ref->address, call->place.address);
        return true;
    }
    return directory_names_find(call->rpc->directory_names, &owner, (const uint8_t *)ref->id, ref->id_bytes, ref->node,
                                ref->address) == RDT_OK;
}

static enum rdt_status seek(struct call *call, const struct rdt_ref *ref, struct rdt_error *err)
{
    struct owner owner = owner_of_ref(ref, &call->account->owner);

    call->waits.seeker.on_found = on_found;
    return directory_names_seek(call->rpc->directory_names, &owner, (const uint8_t *)ref->id, ref->id_bytes,
                                &call->waits.seeker, err);
}

enum rdt_status call_place_name(struct call *call, struct rdt_ref *ref, struct rdt_error *err)
{
    struct owner owner = owner_of_ref(ref, &call->account->owner);
    enum rdt_status status;

    if (!call->client || !ref_is_unplaced(ref) || call_place_known(call, ref) ||
        directory_names_find(call->rpc->directory_names, &owner, (const uint8_t *)ref->id, ref->id_bytes, ref->node,
                             ref->address) != RDT_AGAIN)
        return RDT_OK;
    status = keep_packed(call, err);
    if (status == RDT_OK)
        status = call_defer(call, (int64_t)call->rpc->options->connect_timeout_ns, NULL, err);
    if (status != RDT_OK)
        return status;
    free(call->why);
    call->why = strdup(silence);
    call->waits.seeker.on_missing = on_missing;
    status = seek(call, ref, err);
    return status == RDT_OK ? RDT_AGAIN : status;
}

enum rdt_status call_seek_name(struct call *call, const struct rdt_ref *ref, struct rdt_error *err)
{
    enum rdt_status status;

    if (!call->client || call->place.known || !ref_is_unplaced(ref) || !directory_names_active(call->rpc->directory_names))
        return RDT_OK;
    status = keep_packed(call, err);
    return status == RDT_OK ? seek(call, ref, err) : status;
}

enum rdt_status call_wait_for_claim(struct call *call, int64_t timeout_ns, struct rdt_error *err)
{
    enum rdt_status status = keep_packed(call, err);

    if (timeout_ns < 0 || timeout_ns > 2 * NAMES_CLAIM_NS)
        timeout_ns = 2 * NAMES_CLAIM_NS;
    if (status == RDT_OK)
        status = call_defer(call, timeout_ns, NULL, err);
    if (status != RDT_OK)
        return status;
    free(call->why);
    call->why = strdup(silence);
    return RDT_OK;
}

void call_on_claim(struct claim_waiter *waiter)
{
    struct call *call = container_of(waiter, struct call, waits.claim);

    deadline_unset(call->rpc->deadlines, &call->deadline); /* it was for the homes only */
    dispatch_again(call);
}

/* ---- a publish of an object whose bytes are still being written ---- */

static void on_wake_live(struct client_wake *wake)
{
    struct call *call = container_of(wake, struct call, waits.wake);
    struct object *object = call->waits.woken;

    call->waits.woken = NULL;
    dispatch_again(call);
    object_drop(object);
}

static void on_put(struct object_waiter *waiter, struct object *object, const struct rdt_error *why)
{
    struct call *call = container_of(waiter, struct call, waits.object);

    deadline_unset(call->rpc->deadlines, &call->deadline);
    if (why) {
        call_fail(call, why);
    } else if (call->client) {
        object_hold(object); /* until the turn of the client: its id must mean the same object then */
        call->waits.woken = object;
        call->waits.wake.run = on_wake_live;
        client_wake(call->client, &call->waits.wake);
    } else {
        dispatch_again(call);
    }
}

enum rdt_status call_wait_for_put(struct call *call, struct object *object, int64_t timeout_ns, struct rdt_error *err)
{
    enum rdt_status status = keep_packed(call, err);

    if (status == RDT_OK)
        status = call_defer(call, timeout_ns, NULL, err);
    if (status != RDT_OK)
        return status;
    call->why = strdup("the object is still being put: it can be published when its producer's stream, or rdt_ready, has said "
                       "that its bytes are there");
    call->waits.object.on_event = on_put;
    return object_wait_live(object, &call->waits.object) ? RDT_OK
                                                         : rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for a put");
}
