/* SPDX-License-Identifier: Apache-2.0 */
/* PUT_MANY: many small objects, whose bytes lie in one region that the client loans for the message.
 *
 *   pack      a thread of the client's owner reads the list of tensors, packs them out of the region (region_may_wait), and
 *             copies long metadata and shapes
 *   put       in slices, each object is put as if its bytes had come in a message of its own: so it has a piece of the arena,
 *             which is free again when it ends
 *   answer    the region goes back to its client */
#include <stdlib.h>
#include <string.h>

#include "daemon/calls/call.h"
#include "daemon/memory/imported.h"
#include "daemon/objects/object_content.h"
#include "daemon/rpc/rpc.h"
#include "rdt_put_flags.h"
#include "wire_ref.h"

#define FLAGS ((uint32_t)(RDT_PUT_SNAPSHOT | RDT_PUT_IMMUTABLE | RDT_PUT_DETACHED | RDT_PUT_REPLACE | RDT_PUT_EVICTABLE))
#define EVICTION_NS UINT64_C(10000000000) /* more than the evictions for one message take */
#define OBJECT_HEAP_BYTES (64u + sizeof(struct object_content))

struct item {
    uint32_t first;     /* tensor */
    uint32_t id_at;     /* in the message's ids */
    uint32_t text_at;   /* in its metadata */
    uint32_t n_dims;    /* of its tensors */
    uint64_t at, bytes; /* of its packed tensors */
};

struct putting {
    struct work work;
    struct slice slice;
    struct call *call; /* NULL: it has ended while a thread was packing */
    struct rpc *rpc;
    struct account *account; /* a reference */
    struct arena arena;      /* of the message */
    const Rdt__Pb__PutMany *message;
    struct region *region; /* a reference */
    struct memory_place place;
    bool packing;
    struct layout *layout;           /* of all tensors */
    struct item *items;              /* [n] */
    struct object_content *contents; /* [n]; NULL: nothing has been packed */
    uint8_t *packed;
    uint64_t packed_bytes;
    int32_t *status;
    uint64_t *generation;
    uint32_t n, next;
    uint64_t heap;
    bool took_file;          /* an object has replaced one that had a file */
    uint64_t tries_until_ns; /* the next object waits for evictions until then; 0: it has not been tried */
    const char *transport;
    int64_t ttl_ns;
    struct rdt_error failed; /* not OK: nothing is put */
    struct rdt_error why;    /* of the first object that was not put */
};

static void putting_free(struct putting *putting)
{
    struct rpc *rpc = putting->rpc;

    slice_stop(&putting->slice);
    if (putting->region)
        region_unref(putting->region);
    account_give(putting->account, USAGE_HEAP, putting->heap);
    account_unref(putting->account);
    work_free_arena(rpc->regions->pool, &putting->arena);
    if (putting->layout)
        work_free(rpc->regions->pool, putting->layout, layout_heap_bytes(putting->layout));
    for (uint32_t i = 0; putting->contents && i < putting->n; i++)
        object_content_fini(&putting->contents[i]);
    if (putting->contents)
        work_free(rpc->regions->pool, putting->contents, putting->n * sizeof *putting->contents);
    if (putting->packed)
        work_free(rpc->regions->pool, putting->packed, putting->packed_bytes);
    free(putting->items);
    free(putting->status);
    free(putting->generation);
    free(putting);
}

/* ---- what an object is put from ---- */

/* The tensors of one object among those of all. */
static struct layout layout_of(const struct putting *putting, uint32_t i)
{
    const struct layout *all = putting->layout;
    const struct item *item = &putting->items[i];

    return (struct layout){.count = putting->message->count[i],
                           .n_dims = item->n_dims,
                           .dtype = all->dtype + item->first,
                           .ndim = all->ndim + item->first,
                           .first_dim = all->first_dim + item->first,
                           .region = all->region + item->first,
                           .offset = all->offset + item->first,
                           .shape = all->shape,
                           .strides = all->strides};
}

/* Its texts and tensors. */
static struct object_put put_of(const struct putting *putting, uint32_t i, struct layout *layout)
{
    const Rdt__Pb__PutMany *message = putting->message;

    return (struct object_put){.id = message->ids.data + putting->items[i].id_at,
                               .id_bytes = message->n_id_bytes ? message->id_bytes[i] : 0,
                               .metadata = message->metadata.data + putting->items[i].text_at,
                               .metadata_bytes = message->n_metadata_bytes ? message->metadata_bytes[i] : 0,
                               .layout = layout};
}

/* ---- packing, on a thread of the owner ---- */

/* Finds the tensors of object i, and where they are packed, behind *at. */
static enum rdt_status place_item(struct putting *putting, uint32_t i, uint32_t first, uint64_t *at, struct rdt_error *err)
{
    const struct layout *layout = putting->layout;
    struct item *item = &putting->items[i];
    uint64_t end = 0;

    item->first = first;
    for (uint32_t t = first; t < first + putting->message->count[i]; t++) {
        uint64_t lo, hi, bytes = layout_bytes(layout, t);
        enum rdt_status status = layout_extent(layout, t, &lo, &hi, err);
        if (status != RDT_OK)
            return status;
        if (bytes > 0 && (layout->region[t] != 0 || hi > putting->region->bytes))
            return rdt_error_set(err, RDT_INVALID, "tensor %u ends at byte %llu of region %u, and the region has %llu", t,
                                 (unsigned long long)hi, layout->region[t], (unsigned long long)putting->region->bytes);
        item->n_dims += layout->ndim[t];
        end = ((end + LAYOUT_ALIGN_BYTES - 1) & ~(uint64_t)(LAYOUT_ALIGN_BYTES - 1)) + bytes;
        if (end > RDT_INLINE_MAX_BYTES)
            return rdt_error_set(err, RDT_LIMIT, "object %u of the message has more than %u bytes of tensors", i,
                                 RDT_INLINE_MAX_BYTES);
    }
    item->at = *at;
    item->bytes = end;
    *at += (end + LAYOUT_ALIGN_BYTES - 1) & ~(uint64_t)(LAYOUT_ALIGN_BYTES - 1);
    if (*at > RDT_MAX_MANY_BYTES)
        return rdt_error_set(err, RDT_LIMIT, "the objects of one message have more than %u bytes of tensors",
                             RDT_MAX_MANY_BYTES);
    return RDT_OK;
}

static enum rdt_status make_contents(struct putting *putting, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    putting->contents = calloc(putting->n + 1u, sizeof *putting->contents);
    if (!putting->contents)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to put %u objects", putting->n);
    for (uint32_t i = 0; status == RDT_OK && i < putting->n; i++) {
        const struct item *item = &putting->items[i];
        struct layout layout = layout_of(putting, i);
        struct object_put put = put_of(putting, i, &layout);
        status = object_content_of_packed(&putting->contents[i], &put, putting->packed + item->at, item->bytes, err);
    }
    return status;
}

static enum rdt_status pack(struct putting *putting, struct rdt_error *err)
{
    const Rdt__Pb__PutMany *message = putting->message;
    uint64_t first = 0, at = 0;
    enum rdt_status status = layout_from_wire(message->tensors, &putting->layout, err);

    for (uint32_t i = 0; status == RDT_OK && i < putting->n; i++) {
        if (message->count[i] > putting->layout->count - first)
            return rdt_error_set(err, RDT_INVALID, "the message has %u tensors, and its objects have more",
                                 putting->layout->count);
        status = place_item(putting, i, (uint32_t)first, &at, err);
        first += message->count[i];
    }
    if (status != RDT_OK)
        return status;
    putting->packed_bytes = at + 1;
    putting->packed = malloc(at + 1);
    if (!putting->packed)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the tensors");
    for (uint32_t i = 0; i < putting->n; i++) {
        uint8_t *to = putting->packed + putting->items[i].at;
        uint64_t end = 0;
        for (uint32_t t = putting->items[i].first; t < putting->items[i].first + message->count[i]; t++) {
            uint64_t bytes = layout_bytes(putting->layout, t);
            uint64_t gap = -end & (LAYOUT_ALIGN_BYTES - 1);
            int failed;
            memset(to + end, 0, gap); /* readers see the gaps, too */
            end += gap;
            failed = bytes > 0 ? memory_place_gather(&putting->place, putting->layout, t, 0, bytes, to + end) : 0;
            if (failed)
                return rdt_error_sys(err, failed, "reading tensor %u", t);
            end += bytes;
        }
    }
    return make_contents(putting, err);
}

static void run_pack(struct work *work)
{
    struct putting *putting = container_of(work, struct putting, work);

    (void)pack(putting, &putting->failed);
}

/* ---- putting ---- */

/* The object that an earlier daemon recorded for this item, and whose answer was lost with that daemon. 0: none. */
static uint64_t put_before(const struct putting *putting, uint32_t i)
{
    const struct client *client = putting->call->client;

    return map_count(&client->session.answers) > 0
               ? (uintptr_t)map_get_u64(&client->session.answers, putting->call->request_id + i)
               : 0;
}

static enum rdt_status put_one(struct putting *putting, uint32_t i, uint64_t *generation_p, struct rdt_error *err)
{
    const Rdt__Pb__PutMany *message = putting->message;
    struct layout layout = layout_of(putting, i);
    struct object_put put = put_of(putting, i, &layout);
    struct object *object;
    enum rdt_status status;

    put.eviction = message->flags & RDT_PUT_EVICTABLE ? EVICTION_ALLOWED : EVICTION_NEVER;
    put.priority = message->priority;
    put.account = put.eviction == EVICTION_ALLOWED ? account_owner(putting->account) : putting->account;
    put.id_use = message->flags & RDT_PUT_REPLACE ? ID_IS_TAKEN : ID_MUST_BE_FREE;
    put.visibility = message->visibility;
    put.transport = putting->transport;
    put.producer = putting->call->client;
    put.ttl_ns = putting->ttl_ns;
    put.promise = object_promise_of(message->flags);
    put.request_id = putting->call->request_id + i;
    put.sum = message->n_sum ? message->sum[i] : 0;
    put.content = &putting->contents[i];
    status = object_table_put(putting->rpc->objects, &put, &object, err);
    if (status != RDT_OK)
        return status;
    putting->call->client->rpc.put_bytes += object->bytes;
    putting->took_file |= object->access.took_file;
    *generation_p = object->generation;
    return RDT_OK;
}

/* Whether the object that was refused is tried again when objects of the cache have been evicted for it. */
static bool waits_for_evictions(struct putting *putting, enum rdt_status status)
{
    uint64_t now_ns = uv_hrtime();

    if (status == RDT_OK || !putting->rpc->objects->accounts->full || !cache_make_room(&putting->rpc->objects->cache)) {
        putting->tries_until_ns = 0;
        return false;
    }
    if (putting->tries_until_ns == 0)
        putting->tries_until_ns = now_ns + EVICTION_NS;
    return now_ns < putting->tries_until_ns;
}

/* An earlier daemon has put everything, and its region went back to the client before that daemon ended: it has no region
 * here. */
static bool was_put_before(struct putting *putting)
{
    for (uint32_t i = 0; i < putting->n; i++)
        if ((putting->generation[i] = put_before(putting, i)) == 0)
            return false;
    return putting->n > 0;
}

/* Tells the client that it may write to the region again, or that the region has ended. */
static void return_region(struct putting *putting)
{
    struct region_cache *cache = &putting->call->client->cache;
    struct region *region = putting->region;

    putting->region = NULL;
    if (!region && cache->ops) {
        cache->ops->on_returned(cache, putting->message->region->region, true);
    } else if (region) {
        if (region->state == REGION_USED)
            region_set_state(region, REGION_LOANED);
        region_unref(region);
    }
}

static void answer(struct putting *putting)
{
    Rdt__Pb__PutManyReply reply = RDT__PB__PUT_MANY_REPLY__INIT;
    struct call *call = putting->call;

    reply.n_status = putting->why.status == RDT_OK ? 0 : putting->n;
    reply.status = putting->status;
    reply.n_generation = putting->n;
    reply.generation = putting->generation;
    reply.why = putting->why.msg;
    reply.ids = putting->message->ids;
    reply.n_id_bytes = putting->message->n_id_bytes;
    reply.id_bytes = putting->message->id_bytes;
    return_region(putting); /* before the answer */
    call->on_end = NULL;
    call_reply_reserved(call, &reply.base, putting->heap); /* the answer needs less than its request had */
    putting_free(putting);
}

static void on_removed(struct call *call, void *of)
{
    struct putting *putting = of;

    if (call)
        answer(putting);
    else
        putting_free(putting);
}

static bool put_some(struct slice *slice, uint64_t until_ns)
{
    struct putting *putting = container_of(slice, struct putting, slice);

    while (putting->next < putting->n) {
        uint32_t i = putting->next;
        struct rdt_error err = {0};
        uint64_t before = put_before(putting, i);
        enum rdt_status status = RDT_OK;

        account_request_begin(putting->rpc->objects->accounts, NULL);
        if (before)
            putting->generation[i] = before;
        else
            status = put_one(putting, i, &putting->generation[i], &err);
        account_request_end(putting->rpc->objects->accounts, NULL);
        if (waits_for_evictions(putting, status))
            return false;
        putting->next++;
        putting->status[i] = status;
        if (status != RDT_OK && putting->why.status == RDT_OK)
            putting->why = err;
        if (putting->next < putting->n && uv_hrtime() >= until_ns)
            return false;
    }
    if (!putting->took_file || !call_await_removals(putting->call, 0, on_removed, putting)) /* as the answer to a PUT */
        answer(putting);
    return true;
}

static void done_pack(struct work *work)
{
    struct putting *putting = container_of(work, struct putting, work);
    struct call *call = putting->call;
    struct rdt_error failed = putting->failed;

    putting->packing = false;
    if (!call) {
        putting_free(putting);
    } else if (failed.status != RDT_OK) {
        call->on_end = NULL;
        putting_free(putting);
        call_fail(call, &failed);
    } else {
        slice_begin(&putting->rpc->deadlines->slices, &putting->slice);
    }
}

/* The client has gone: what was put ends with its session. */
static void on_end(struct call *call)
{
    struct putting *putting = call->waiting;

    putting->call = NULL;
    if (!putting->packing)
        putting_free(putting);
}

/* ---- the request ---- */

/* Where the ids and the metadata of the objects begin. */
static enum rdt_status place_texts(struct putting *putting, struct rdt_error *err)
{
    const Rdt__Pb__PutMany *message = putting->message;
    uint64_t ids = 0, texts = 0;

    for (uint32_t i = 0; i < putting->n; i++) {
        uint32_t id_bytes = message->n_id_bytes ? message->id_bytes[i] : 0;
        uint32_t text_bytes = message->n_metadata_bytes ? message->metadata_bytes[i] : 0;
        if (id_bytes > RDT_MAX_ID_BYTES)
            return rdt_error_set(err, RDT_INVALID, "the id of object %u has %u bytes: at most %u are allowed", i, id_bytes,
                                 RDT_MAX_ID_BYTES);
        if (text_bytes > RDT_MAX_METADATA_BYTES)
            return rdt_error_set(err, RDT_LIMIT, "the metadata of object %u has %u bytes: at most %u are allowed", i,
                                 text_bytes, RDT_MAX_METADATA_BYTES);
        putting->items[i].id_at = (uint32_t)ids;
        putting->items[i].text_at = (uint32_t)texts;
        ids += id_bytes;
        texts += text_bytes;
        if (ids > message->ids.len || texts > message->metadata.len)
            return rdt_error_set(err, RDT_INVALID, "the ids or the metadata of %u objects are longer than the message says",
                                 putting->n);
    }
    return RDT_OK;
}

static enum rdt_status check(const struct call *call, const Rdt__Pb__PutMany *message, const char **transport_p,
                             struct rdt_error *err)
{
    size_t n = message->n_count;
    struct transport *transport = NULL;
    char loaded[192];

    *transport_p = "";
    if (n > RDT_MAX_FETCH_REFS)
        return rdt_error_set(err, RDT_LIMIT, "the message puts %zu objects: at most %u are possible", n, RDT_MAX_FETCH_REFS);
    if (!message->region || (message->n_id_bytes && message->n_id_bytes != n) ||
        (message->n_metadata_bytes && message->n_metadata_bytes != n) || (message->n_sum && message->n_sum != n))
        return rdt_error_set(err, RDT_INVALID, "the columns of a message that puts %zu objects do not belong together", n);
    if (message->flags & ~FLAGS || (unsigned)message->visibility > RDT__PB__VISIBILITY__VISIBILITY_ALL)
        return rdt_error_set(err, RDT_INVALID, "unknown flags %u or visibility %d", message->flags, (int)message->visibility);
    if (message->transport[0] != '\0') {
        transport = plugins_transport(call->rpc->plugins, message->transport);
        if (!transport)
            plugins_transport_names(call->rpc->plugins, loaded, sizeof loaded);
        if (!transport)
            return rdt_error_set(err, RDT_UNSUPPORTED, "transport \"%.64s\" is not loaded; loaded: %s", message->transport,
                                 loaded);
        if (!transport_moves(transport, "host"))
            return rdt_error_set(err, RDT_UNSUPPORTED, "transport %s does not move host memory", transport->name);
        *transport_p = transport->name;
    }
    for (size_t i = 0; message->flags & RDT_PUT_REPLACE && i < n; i++)
        if (message->n_id_bytes == 0 || message->id_bytes[i] == 0)
            return rdt_error_set(err, RDT_INVALID, "object %zu of the message REPLACEs an object, and has no id", i);
    if (put_check_evictable(message->flags, message->priority, err) != RDT_OK)
        return RDT_INVALID;
    return put_check_ttl(call, message->flags, message->ttl_ns, err);
}

static enum rdt_status find_region(struct call *call, const Rdt__Pb__PutMany *message, struct region **region_p,
                                   struct rdt_error *err)
{
    struct region *region;
    enum rdt_status status = client_region(call->client, message->region->region, message->region->generation, &region, err);

    if (status != RDT_OK)
        return status;
    if (region->origin != REGION_ALLOCATED || !region_is_host(region))
        return rdt_error_set(err, RDT_INVALID, "region %llu cannot be loaned: only host memory from ALLOC can be",
                             (unsigned long long)region->id);
    *region_p = region_ref(region);
    return RDT_OK;
}

static enum rdt_status begin(struct putting *putting, struct rdt_error *err)
{
    struct call *call = putting->call;
    enum rdt_status status;

    putting->items = calloc(putting->n + 1u, sizeof *putting->items);
    putting->status = calloc(putting->n + 1u, sizeof *putting->status);
    putting->generation = calloc(putting->n + 1u, sizeof *putting->generation);
    if (!putting->items || !putting->status || !putting->generation)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to put %u objects", putting->n);
    status = place_texts(putting, err);
    if (status != RDT_OK)
        return status;
    status = find_region(call, putting->message, &putting->region, err);
    if (status != RDT_OK && was_put_before(putting))
        return RDT_OK;
    if (status == RDT_OK)
        status = memory_place_of(putting->region, &putting->place, err);
    return status == RDT_OK ? call_defer(call, -1, on_end, err) : status;
}

enum rdt_status rpc_put_many(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__PutMany *message = request;
    uint64_t heap = call->request.payload_bytes + message->n_count * (uint64_t)OBJECT_HEAP_BYTES + RDT_MAX_MANY_BYTES;
    struct putting *putting;
    const char *transport;
    enum rdt_status status = check(call, message, &transport, err);

    if (status == RDT_OK)
        status = account_take(call->account, USAGE_HEAP, heap, err);
    if (status != RDT_OK)
        return status;
    putting = calloc(1, sizeof *putting);
    if (!putting) {
        account_give(call->account, USAGE_HEAP, heap);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to put %zu objects", message->n_count);
    }
    putting->call = call;
    putting->rpc = call->rpc;
    putting->account = account_ref(call->account);
    putting->heap = heap;
    putting->message = message;
    putting->n = (uint32_t)message->n_count;
    putting->transport = transport;
    putting->ttl_ns = put_ttl_of(call, message->flags, message->ttl_ns);
    putting->slice.run = put_some;
    arena_init(&putting->arena, 0);
    status = begin(putting, err);
    if (status != RDT_OK) {
        call->on_end = NULL;
        putting_free(putting);
        return status;
    }
    call_take_request(call, &putting->arena);
    if (!putting->region) {
        answer(putting);
        return RDT_OK;
    }
    call->waiting = putting;
    putting->packing = true;
    putting->work = (struct work){.run = run_pack, .done = done_pack, .lane = call->client->id};
    if (region_may_wait(putting->region))
        owner_work_submit(call->rpc->owner_work, &putting->work, call->account, true);
    else
        work_submit(call->rpc->regions->pool, &putting->work);
    return RDT_OK;
}
