/* SPDX-License-Identifier: Apache-2.0 */
/* ALLOC, IMPORT, RELEASE_REGION and DROP_CACHED: regions that a client allocates, imports and releases. */
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#include "daemon/calls/call.h"
#include "daemon/memory/handle.h"

/* Answers with the region and, if the client must still map it, with an fd or what the plug-in exports. Takes the caller's
 * reference. */
static void reply_region(struct call *call, struct region *region, bool to_map)
{
    Rdt__Pb__RegionReply reply = RDT__PB__REGION_REPLY__INIT;
    struct region_share share;
    struct rdt_error err = {0};
    int fds[RDT_MAX_FRAME_FDS];
    unsigned n_fds = 0;

    reply.region = region->id;
    reply.generation = region->generation;
    reply.bytes = region->room;
    reply.device = (char *)region_device_uuid(region);
    if (region->reuse.keep_mapped) {
        region->reuse.keep_mapped = false;
        reply.cacheable = true;
    } else if (to_map && !region_is_host(region)) {
        reply.share = &share.message;
        (void)region_share(region, call->client->id, &share, fds, RDT_MAX_FRAME_FDS, &n_fds, &err);
    } else if (to_map) {
        (void)region_export_to(region, call->client->id, true, &fds[0], &err);
        reply.cacheable = region_may_be_cached(region, call->client->id);
        n_fds = err.status == RDT_OK;
    }
    if (err.status != RDT_OK) {
        region_unref(region);
        call_fail(call, &err);
        return;
    }
    if (!client_add_region(call->client, region)) {
        while (n_fds > 0)
            (void)close(fds[--n_fds]);
        region_unref(region);
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory for a region");
        call_fail(call, &err);
        return;
    }
    if (n_fds > 0) /* memory that the client has mapped already is in its cache, from which it releases it itself */
        call_note_answer(call, 0, region->id, 0);
    call_reply(call, &reply.base, fds, n_fds);
}

struct alloc_wait {
    struct call *call; /* NULL: the call has ended */
    bool imported;     /* the client has the memory mapped */
};

/* An allocation or import that has started cannot be cancelled. If its call has ended, the region is released when it is
 * ready. */
static void on_allocated(void *arg, struct region *region, const struct rdt_error *err)
{
    struct alloc_wait *wait = arg;
    struct call *call = wait->call;
    bool to_map = !wait->imported;

    if (call && wait->imported)
        client_note_import(call->client, err);
    free(wait);
    if (!call)
        region_unref(region);
    else if (err)
        call_fail(call, err);
    else
        reply_region(call, region, to_map);
}

static void on_end(struct call *call)
{
    struct alloc_wait *wait = call->waiting;

    wait->call = NULL;
}

/* A region that the client has back is in use again. */
static enum rdt_status use_again(struct call *call, const Rdt__Pb__RegionUse *use, struct rdt_error *err)
{
    Rdt__Pb__RegionReply reply = RDT__PB__REGION_REPLY__INIT;
    struct region *region;
    enum rdt_status status = client_region(call->client, use->region, use->generation, &region, err);

    if (status != RDT_OK)
        return status;
    reply.region = region->id;
    reply.generation = region->generation;
    reply.bytes = region->room;
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}

enum rdt_status rpc_alloc(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Alloc *alloc = request;
    struct alloc_wait *wait;
    struct region *region;
    enum rdt_status status;
    bool host = alloc->memory[0] == '\0' || strcasecmp(alloc->memory, "host") == 0;

    if (alloc->again)
        return use_again(call, alloc->again, err);
    if (host && alloc->device[0] != '\0' && strcmp(alloc->device, "cpu") != 0)
        return rdt_error_set(err, RDT_UNSUPPORTED, "this daemon has no device \"%.64s\"", alloc->device);
    if (!call_may_wait(call, err))
        return RDT_LIMIT;
    wait = calloc(1, sizeof *wait);
    if (!wait)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the request");
    wait->call = call;
    region = host ? region_cache_take(&call->client->cache, alloc->bytes, REGION_ALLOCATED) : NULL;
    if (region) {
        status = region_scrub(region, on_allocated, wait, err);
        if (status != RDT_OK)
            region_unref(region);
        else
            status = RDT_AGAIN;
    } else {
        status = region_alloc(call->rpc->regions, alloc->memory, host ? "" : alloc->device, alloc->bytes,
                              alloc->written_whole && !host ? REGION_WRITTEN : REGION_ALLOCATED, call->account,
                              call->client->id, &region, on_allocated, wait, err);
    }
    if (status == RDT_AGAIN) {
        call->waiting = wait;
        status = call_defer(call, -1, on_end, err);
        if (status != RDT_OK)
            wait->call = NULL;
        return status;
    }
    free(wait);
    if (status == RDT_OK)
        reply_region(call, region, true);
    return status;
}

/* ---- imports ---- */

static bool comes_in_chunks(const Rdt__Pb__Import *message)
{
    const struct handle_kind *handle = handle_kind((int)message->kind);

    return handle && handle->in_chunks;
}

/* Stores the chunks of one message of an import that has more chunks than one frame can carry fds. The last message has the
 * rest of the request. A client has one such import at a time, and a message that does not continue it ends it. */
static enum rdt_status gather_chunks(struct call *call, const Rdt__Pb__Import *message, struct rdt_error *err)
{
    struct client *client = call->client;
    struct import_chunks *chunks;
    uint32_t n = call->request.frame->nfds;

    if (message->first_chunk == 0)
        client_drop_import(client);
    if (message->first_chunk == 0 && message->more && n == 0)
        return RDT_OK;
    chunks = client->import;
    if (!comes_in_chunks(message) || n == 0)
        return rdt_error_set(err, RDT_INVALID,
                             "a message with %u fds continues an import: only memory in chunks may come in several messages",
                             n);
    if (message->first_chunk != (chunks ? chunks->n : 0) || (chunks && chunks->number != message->number))
        return rdt_error_set(err, RDT_INVALID, "chunk %u of import %llu does not follow the chunks that have arrived",
                             message->first_chunk, (unsigned long long)message->number);
    if ((chunks ? chunks->n : 0) + n > RDT_EXPORT_MAX_FDS)
        return rdt_error_set(err, RDT_LIMIT, "an import may have at most %u chunks", RDT_EXPORT_MAX_FDS);
    if (!chunks && !(chunks = client->import = calloc(1, sizeof *chunks)))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for an import");
    if (account_take(client->account, USAGE_FDS, n, err) != RDT_OK)
        return RDT_LIMIT;
    chunks->number = message->number;
    chunks->charged += n;
    for (uint32_t i = 0; i < n; i++, chunks->n++) {
        chunks->fds[chunks->n] = frame_take_fd(call->request.frame, i);
        chunks->chunk_bytes[chunks->n] = message->chunk_bytes[i];
    }
    return RDT_OK;
}

static enum rdt_status import_device(struct call *call, const Rdt__Pb__Import *message, struct rdt_import *import,
                                     struct rdt_error *err)
{
    bool has_more = message->more || message->first_chunk > 0;
    struct import_chunks *chunks;
    struct alloc_wait *wait;
    enum rdt_status status = RDT_OK;

    if (!call_may_wait(call, err))
        return RDT_LIMIT;
    if (message->n_chunk_bytes != call->request.frame->nfds)
        status =
            rdt_error_set(err, RDT_INVALID, "%zu chunk sizes for %u fds", message->n_chunk_bytes, call->request.frame->nfds);
    else if (has_more)
        status = gather_chunks(call, message, err);
    if (status == RDT_OK && message->more) {
        Rdt__Pb__RegionReply reply = RDT__PB__REGION_REPLY__INIT;
        call_reply(call, &reply.base, NULL, 0);
        return RDT_OK;
    }
    chunks = has_more ? call->client->import : NULL;
    wait = status == RDT_OK ? calloc(1, sizeof *wait) : NULL;
    if (status == RDT_OK && !wait)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the request");
    if (status == RDT_OK && chunks) {
        import->fds = chunks->fds;
        import->n_fds = chunks->n;
        import->chunk_bytes = chunks->chunk_bytes;
        /* from now on the region is charged for the fds */
        account_give(call->client->account, USAGE_FDS, chunks->charged);
        chunks->charged = 0;
    }
    if (status == RDT_OK) {
        *wait = (struct alloc_wait){.call = call, .imported = true};
        status = region_import_device(call->rpc->regions, message->memory, message->device, import, call->account,
                                      call->client->id, on_allocated, wait, err);
    }
    if (has_more)
        client_drop_import(call->client);
    if (status != RDT_AGAIN) {
        client_note_import(call->client, err);
        free(wait);
        return status;
    }
    call->waiting = wait;
    status = call_defer(call, -1, on_end, err);
    if (status != RDT_OK)
        wait->call = NULL;
    return status;
}

enum rdt_status rpc_import(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Import *message = request;
    struct rdt_import import = {.kind = (enum rdt_import_kind)message->kind,
                                .bytes = message->bytes,
                                .offset = message->offset,
                                .fds = call->request.frame->fds,
                                .n_fds = call->request.frame->nfds,
                                .chunk_bytes = message->chunk_bytes,
                                .handle = message->handle.data,
                                .handle_bytes = message->handle.len};
    const struct memory_kind *kind = plugins_memory_kind(call->rpc->plugins, message->memory);
    struct region *region;
    enum rdt_status status;

    if (message->kind == RDT__PB__REGION_KIND__REGION_KIND_MEMFD && call->request.frame->nfds != 1)
        return rdt_error_set(err, RDT_INVALID, "an import of a memfd carries one fd, not %u", call->request.frame->nfds);
    if (comes_in_chunks(message) && message->n_chunk_bytes != call->request.frame->nfds)
        return rdt_error_set(err, RDT_INVALID, "%zu chunk sizes for %u fds", message->n_chunk_bytes, call->request.frame->nfds);
    if (kind && !memory_kind_is_host(kind))
        return import_device(call, message, &import, err);
    status = region_import(call->rpc->regions, message->memory, &import, call->account, call->client->id, &region, err);
    if (status == RDT_OK)
        reply_region(call, region, false);
    return status;
}

enum rdt_status rpc_release_region(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__ReleaseRegion *message = request;
    struct region *region = map_get_u64(&call->client->regions, message->region);
    Rdt__Pb__RegionReleased reply = RDT__PB__REGION_RELEASED__INIT;

    if (!region)
        return rdt_error_set(err, RDT_NOT_FOUND, "this client has no region %llu", (unsigned long long)message->region);
    if (region->state == REGION_RETURNED) {
        region_cache_release(&call->client->cache, region);
        call_reply(call, &reply.base, NULL, 0);
        return RDT_OK;
    }
    client_forget_region(call->client, region);
    /* A region that an object or a transfer uses is not cached, because others may still read it. */
    region->reuse.keep_mapped = message->keep_mapped && region->refs == 1 && region_may_be_cached(region, call->client->id);
    reply.keep_mapped = region->reuse.keep_mapped;
    region_unref(region);
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}

/* Both lists are short, see MAX_REGIONS of region_cache.c and mapped.c. */
enum rdt_status rpc_drop_cached(struct call *call, const void *request, struct rdt_error *err)
{
    region_cache_drop_all(&call->client->cache);
    mapped_drop_all(&call->client->mapped);
    call_reply_empty(call);
    return RDT_OK;
}
