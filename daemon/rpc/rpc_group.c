/* SPDX-License-Identifier: Apache-2.0 */
/* GROUP_CREATE and GROUP_DESTROY: answered when the group is ready, or has ended, on every node. BROADCAST: answered when every
 * other node of the group has a replica, or with the reason why one has none. */
#include <stdlib.h>
#include <string.h>

#include "daemon/calls/call.h"
#include "daemon/transfers/broadcast.h"

/* The wait of a call for its group. It is freed when the wait ends. */
struct waiting {
    struct group_waiter waiter;
    struct call *call;
    struct group *group;
    bool creates; /* of GROUP_CREATE; false: of GROUP_DESTROY */
};

static void on_done(struct group_waiter *waiter, const struct rdt_error *err)
{
    struct waiting *waiting = container_of(waiter, struct waiting, waiter);
    struct call *call = waiting->call;

    if (waiting->creates && !err)
        call_note_answer(call, 0, 0, waiting->group->number);
    free(waiting);
    call->on_end = NULL;
    if (err)
        call_fail(call, err);
    else
        call_reply_empty(call);
}

/* The call ends before the group is ready or has ended. A group that it creates is not created then. */
static void on_end(struct call *call)
{
    struct waiting *waiting = call->waiting;

    if (waiting->creates)
        group_waiter_remove(waiting->group, &waiting->waiter);
    else
        list_remove(&waiting->waiter.link);
    free(waiting);
}

static struct waiting *waiting_new(struct call *call, bool creates, struct rdt_error *err)
{
    struct waiting *waiting = calloc(1, sizeof *waiting);

    if (!waiting) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for a group");
        return NULL;
    }
    list_init(&waiting->waiter.link);
    waiting->waiter.on_done = on_done;
    waiting->call = call;
    waiting->creates = creates;
    call->waiting = waiting;
    return waiting;
}

enum rdt_status rpc_group_create(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__GroupCreate *message = request;
    struct waiting *waiting;
    enum rdt_status status;

    waiting = waiting_new(call, true, err);
    if (!waiting)
        return err->status;
    status = group_create(call->rpc->groups, &call->account->owner, message, &waiting->waiter, &waiting->group, err);
    if (status != RDT_OK) {
        free(waiting);
        return status;
    }
    status = call_defer(call, message->timeout_ns > 0 ? message->timeout_ns : -1, on_end, err);
    if (status != RDT_OK) {
        group_waiter_remove(waiting->group, &waiting->waiter);
        free(waiting);
    }
    return status;
}

enum rdt_status rpc_group_destroy(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__GroupDestroy *message = request;
    struct group *group = group_find(call->rpc->groups, &call->account->owner, message->name);
    struct waiting *waiting;
    enum rdt_status status;

    if (!group)
        return rdt_error_set(err, RDT_NOT_FOUND, "there is no group \"%.64s\" of uid %u on this node", message->name,
                             call->account->owner.uid);
    waiting = waiting_new(call, false, err);
    if (!waiting)
        return err->status;
    status = call_defer(call, -1, on_end, err);
    if (status != RDT_OK) {
        free(waiting);
        return status;
    }
    waiting->group = group;
    group_end(group, &waiting->waiter); /* may answer the call at once */
    return RDT_OK;
}

/* ---- broadcasts ---- */

static void on_broadcast_done(void *arg, const struct rdt_error *err)
{
    struct call *call = arg;

    call->on_end = NULL;
    if (err)
        call_fail(call, err);
    else
        call_reply_empty(call);
}

/* The call ends before the broadcast: its deadline has passed, it was cancelled, or its client has gone. */
static void on_broadcast_end(struct call *call)
{
    char what[192];

    call->on_end = NULL;
    broadcast_leave(call->waiting, what);
    free(call->why);
    call->why = strdup(what);
}

enum rdt_status rpc_broadcast(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Broadcast *message = request;
    struct broadcast *broadcast;
    struct rdt_ref ref;
    enum rdt_status status = call_object_ref(message->ref, &ref, err);

    if (status != RDT_OK)
        return status;
    if (call_is_remote(call, &ref))
        return rdt_error_set(err, RDT_UNSUPPORTED, "object \"%s\" is on another node: start the broadcast there", ref.id);
    status =
        broadcast_start(call->rpc->transfers, call->account, &ref, message->group, on_broadcast_done, call, &broadcast, err);
    if (status != RDT_OK)
        return status;
    if (!broadcast) {
        call_reply_empty(call);
        return RDT_OK;
    }
    call->waiting = broadcast;
    status = call_defer(call, message->timeout_ns, on_broadcast_end, err);
    if (status != RDT_OK)
        broadcast_leave(broadcast, (char[192]){0});
    return status;
}
