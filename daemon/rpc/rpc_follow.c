/* SPDX-License-Identifier: Apache-2.0 */
/* FOLLOW, PREPARE, COMMIT and UNFOLLOW: followed names (daemon/follows). */
#include "daemon/calls/call.h"
#include "daemon/rpc/rpc.h"
#include "wire_ref.h"

static enum rdt_status find(const struct call *call, uint64_t number, struct follower **follower_p, struct rdt_error *err)
{
    *follower_p = follower_find(call->client, number);
    return *follower_p ? RDT_OK
                       : rdt_error_set(err, RDT_NOT_FOUND, "this client has no follower %llu", (unsigned long long)number);
}

/* Of another node: it may be away, but it must be possible to reach it. */
static enum rdt_status check_node(const struct rpc *rpc, const struct rdt_ref *name, struct rdt_error *err)
{
    if (!rpc->peers)
        return rdt_error_set(
            err, RDT_UNSUPPORTED,
            "name \"%s\" is on another node, and this daemon has no peer link: set listen, and key_file or peer_cert",
            name->id);
    return peers_check_address(rpc->peers, name->node, name->address, err);
}

enum rdt_status rpc_follow(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Follow *message = request;
    struct rdt_ref name, committed;
    enum rdt_status status = call_ref(message->name, &name, err);

    if (status == RDT_OK && !name.is_name)
        status = rdt_error_set(err, RDT_INVALID, "\"%s\" is the ref of an object, not of a name", name.id);
    if (status == RDT_OK && !ref_is_unplaced(&name) && !node_is_here(call->rpc->node, name.node, name.address))
        status = check_node(call->rpc, &name, err);
    if (status == RDT_OK && message->committed_ref)
        status = call_object_ref(message->committed_ref, &committed, err);
    if (status == RDT_OK)
        status = follower_start(call->rpc->transfers->held.follows, call->client, message->follower, &name, message->committed,
                                message->committed_ref ? &committed : NULL, err);
    if (status == RDT_OK)
        call_reply_empty(call);
    return status;
}

static void answer(struct call *call, const struct prepared *prepared)
{
    Rdt__Pb__PrepareReply reply = RDT__PB__PREPARE_REPLY__INIT;
    Rdt__Pb__Ref ref;

    wire_ref_from(prepared->ref, &ref);
    reply.version = prepared->version;
    reply.ref = &ref;
    reply.objects = prepared->objects;
    reply.bytes = prepared->bytes;
    reply.bytes_moved = prepared->bytes_moved;
    reply.fetch_ns = (int64_t)prepared->fetch_ns;
    call_reply(call, &reply.base, NULL, 0);
}

static void on_event(struct prepare_waiter *waiter, const struct rdt_error *why)
{
    struct call *call = container_of(waiter, struct call, waits.prepare);
    struct prepared prepared;
    struct rdt_error err;
    enum rdt_status status;

    if (why) {
        call_fail(call, why);
        return;
    }
    status = follower_prepare(call->waiting, waiter, &prepared, &err);
    if (status == RDT_OK)
        answer(call, &prepared);
    else if (status != RDT_AGAIN) /* otherwise it goes on waiting */
        call_fail(call, &err);
}

static void on_end(struct call *call)
{
    prepare_waiter_remove(&call->waits.prepare);
}

static void explain(const struct call *call, struct rdt_error *err)
{
    char text[sizeof err->msg];

    follower_explain(call->waiting, text, sizeof text);
    (void)rdt_error_set(err, RDT_TIMED_OUT, "%s: %.600s", call->verb->unmet, text);
}

enum rdt_status rpc_prepare(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Prepare *message = request;
    struct prepared prepared;
    struct follower *follower;
    enum rdt_status status = find(call, message->follower, &follower, err);

    if (status != RDT_OK)
        return status;
    call->waiting = follower;
    call->waits.prepare.on_event = on_event;
    call->explain = explain;
    status = follower_prepare(follower, message->timeout_ns != 0 ? &call->waits.prepare : NULL, &prepared, err);
    if (status == RDT_OK)
        answer(call, &prepared);
    if (status != RDT_AGAIN)
        return status;
    if (message->timeout_ns == 0) {
        explain(call, err);
        return err->status;
    }
    status = call_defer(call, message->timeout_ns, on_end, err);
    if (status != RDT_OK)
        on_end(call);
    return status;
}

enum rdt_status rpc_commit(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Commit *message = request;
    struct follower *follower;
    struct rdt_ref ref;
    enum rdt_status status = find(call, message->follower, &follower, err);

    if (status == RDT_OK)
        status = call_object_ref(message->ref, &ref, err);
    if (status != RDT_OK)
        return status;
    follower_commit(follower, message->version, &ref);
    call_reply_empty(call);
    return RDT_OK;
}

enum rdt_status rpc_unfollow(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Unfollow *message = request;
    struct follower *follower;

    if (find(call, message->follower, &follower, NULL) == RDT_OK) /* an earlier daemon may have had it */
        follower_end(follower);
    call_reply_empty(call);
    return RDT_OK;
}
