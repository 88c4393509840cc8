/* SPDX-License-Identifier: Apache-2.0 */
/* CACHE_FLUSH: evicts what nobody holds. */
#include <stdlib.h>

#include "daemon/calls/call.h"
#include "daemon/objects/cache.h"
#include "daemon/rpc/rpc.h"

struct flushing {
    struct cache_flush flush;
    struct account *account; /* a reference */
    struct call *call;       /* NULL: it has ended, and the walk goes on */
};

static void end(struct call *call, void *of)
{
    struct flushing *flushing = of;
    Rdt__Pb__CacheFlushReply reply = RDT__PB__CACHE_FLUSH_REPLY__INIT;

    reply.objects = flushing->flush.n;
    reply.bytes = flushing->flush.bytes;
    account_unref(flushing->account);
    free(flushing);
    if (!call)
        return;
    call->on_end = NULL;
    call_reply(call, &reply.base, NULL, 0);
}

static void on_done(struct cache_flush *flush)
{
    struct flushing *flushing = container_of(flush, struct flushing, flush);

    if (!flushing->call || !call_await_removals(flushing->call, 0, end, flushing))
        end(flushing->call, flushing);
}

static void on_end(struct call *call)
{
    struct flushing *flushing = call->waiting;

    flushing->call = NULL;
}

enum rdt_status rpc_cache_flush(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__CacheFlush *message = request;
    struct flushing *flushing;
    enum rdt_status status;

    if (message->all && !call->admin)
        return rdt_error_set(err, RDT_DENIED,
                             "only root or the daemon's own user may evict the objects of other users, not uid %u",
                             call->account->owner.uid);
    flushing = calloc(1, sizeof *flushing);
    if (!flushing)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the request");
    call->waiting = flushing;
    status = call_defer(call, -1, on_end, err);
    if (status != RDT_OK) {
        call->on_end = NULL;
        free(flushing);
        return status;
    }
    flushing->call = call;
    flushing->account = account_ref(account_owner(call->account));
    cache_flush_start(&flushing->flush, &call->rpc->objects->cache, message->all ? NULL : flushing->account, on_done);
    return RDT_OK;
}
