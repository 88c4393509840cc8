/* SPDX-License-Identifier: Apache-2.0 */
/* BROADCAST: answered when every other node of the group has a replica, or with the reason why one has none. */
#include <stdlib.h>
#include <string.h>

#include "daemon/rpc/rpc_call.h"
#include "daemon/transfers/broadcast/transfer_broadcast.h"

static void on_done(void *arg, const struct rdt_error *err)
{
    struct call *call = arg;

    call->on_end = NULL;
    if (err)
        call_fail(call, err);
    else
        call_reply_empty(call);
}

/* The call ends before the broadcast: its deadline has passed, it was cancelled, or its client has gone. */
static void on_end(struct call *call)
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
    status = broadcast_start(call->rpc->transfers, call->account, &ref, message->group, on_done, call, &broadcast, err);
    if (status != RDT_OK)
        return status;
    if (!broadcast) {
        call_reply_empty(call);
        return RDT_OK;
    }
    call->waiting = broadcast;
    status = call_defer(call, message->timeout_ns, on_end, err);
    if (status != RDT_OK)
        broadcast_leave(broadcast, (char[192]){0});
    return status;
}
