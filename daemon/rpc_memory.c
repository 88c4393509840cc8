/* ALLOC, IMPORT, RELEASE_REGION: memory that a client asks for, offers, gives back. */
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#include "daemon/rpc_call.h"

/* The fd of memory that its client has mapped since it last had it need not be sent. */
static void reply_region(struct call *call, struct region *region, bool with_fd)
{
    Rdt__Pb__RegionReply reply = RDT__PB__REGION_REPLY__INIT;
    struct rdt_error err = {0};
    int fd = -1;

    reply.region = region->id;
    reply.generation = region->generation;
    reply.bytes = region->room;
    if (region->kept) {
        region->kept = false;
        reply.comes_again = true;
        with_fd = false;
    } else if (with_fd) {
        (void)region_export_to(region, call->client->id, true, &fd, &err);
        reply.comes_again = region_may_come_again(region, call->client->id);
    }
    if (err.status != RDT_OK) {
        region_unref(region);
        call_fail(call, &err);
        return;
    }
    if (!map_put_u64(&call->client->regions, region->id, region)) { /* the map's reference is the one we were given */
        if (fd >= 0)
            (void)close(fd);
        region_unref(region);
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory for a region");
        call_fail(call, &err);
        return;
    }
    call_reply(call, &reply.base, &fd, with_fd ? 1 : 0);
}

struct alloc_wait {
    struct call *call; /* NULL: the client has left */
};

/* Memory that is being made cannot be recalled: whoever asked may leave, the region is then given back when it is ready. */
static void on_allocated(void *arg, struct region *region, const struct rdt_error *err)
{
    struct alloc_wait *wait = arg;
    struct call *call = wait->call;

    free(wait);
    if (!call)
        region_unref(region);
    else if (err)
        call_fail(call, err);
    else
        reply_region(call, region, true);
}

static void leave(struct call *call)
{
    struct alloc_wait *wait = call->waiting;

    wait->call = NULL;
}

enum rdt_status rpc_alloc(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Alloc *alloc = request;
    struct alloc_wait *wait;
    struct region *region;
    enum rdt_status status;

    if (alloc->device[0] != '\0' && strcmp(alloc->device, "cpu") != 0)
        return rdt_error_set(err, RDT_UNSUPPORTED, "this daemon has no device \"%.64s\"", alloc->device);
    if (account_check(call->account, USAGE_WAITERS, call->deferred ? 0 : 1, err) != RDT_OK)
        return RDT_LIMIT;
    wait = calloc(1, sizeof *wait);
    if (!wait)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the request");
    wait->call = call;
    region = alloc->memory[0] == '\0' || strcasecmp(alloc->memory, "host") == 0
                 ? warm_take(&call->client->warm, alloc->bytes, REGION_ALLOCATED)
                 : NULL;
    if (region) {
        status = region_scrub(region, on_allocated, wait, err);
        if (status != RDT_OK)
            region_unref(region);
        else
            status = RDT_AGAIN;
    } else {
        status = region_alloc(call->rpc->regions, alloc->memory, "", alloc->bytes, REGION_ALLOCATED, call->account,
                              call->client->id, &region, on_allocated, wait, err);
    }
    if (status == RDT_AGAIN) {
        call->waiting = wait;
        status = call_defer(call, -1, leave, err);
        if (status != RDT_OK)
            wait->call = NULL;
        return status;
    }
    free(wait);
    if (status == RDT_OK)
        reply_region(call, region, true);
    return status;
}

enum rdt_status rpc_import(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Import *message = request;
    struct rdt_import import = {.kind = (enum rdt_import_kind)message->kind,
                                .bytes = message->bytes,
                                .offset = message->offset,
                                .fds = call->frame->fds,
                                .n_fds = call->frame->nfds,
                                .chunk_bytes = message->chunk_bytes,
                                .handle = message->handle.data,
                                .handle_bytes = message->handle.len};
    struct region *region;
    enum rdt_status status;

    if (message->kind == RDT__PB__REGION_KIND__REGION_KIND_MEMFD && call->frame->nfds != 1)
        return rdt_error_set(err, RDT_INVALID, "an import of a memfd carries one fd, not %u", call->frame->nfds);
    if (message->kind == RDT__PB__REGION_KIND__REGION_KIND_VMM && message->n_chunk_bytes != call->frame->nfds)
        return rdt_error_set(err, RDT_INVALID, "%zu chunk sizes for %u fds", message->n_chunk_bytes, call->frame->nfds);
    status = region_import(call->rpc->regions, message->memory, message->device, &import, call->account, call->client->id,
                           &region, err);
    if (status == RDT_OK)
        reply_region(call, region, false);
    return status;
}

enum rdt_status rpc_release_region(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__ReleaseRegion *message = request;
    struct region *region = map_remove_u64(&call->client->regions, message->region);
    Rdt__Pb__RegionKept reply = RDT__PB__REGION_KEPT__INIT;

    if (!region)
        return rdt_error_set(err, RDT_NOT_FOUND, "this client has no region %llu", (unsigned long long)message->region);
    region->client = 0; /* it cannot write there any more, as far as we know */
    /* Not if an object or a transfer lies over it: they may show it to others yet. */
    region->kept = message->keep && region->refs == 1 && region_may_come_again(region, call->client->id);
    reply.kept = region->kept;
    region_unref(region);
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}
