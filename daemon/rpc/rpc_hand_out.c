/* SPDX-License-Identifier: Apache-2.0 */
/* LOAD_MANY without a region: many objects of one node are handed out in one answer, as columns.
 *
 *   look      in slices, each object is found. One in the arena is copied into the answer, as FETCH does; any other one is
 *             held, and the client maps its region for reading
 *   answer    when all have been looked at, or the answer is full: those that are left are AGAIN
 *
 * Objects of another node: that node is asked by the same message, and hands out what is in its arena.
 *
 *   client             its node                             the other node
 *     | LOAD_MANY ------> |  nothing of it is here             |
 *     |                   | CALL (LOAD_MANY) ----------------> |  look, as above
 *     | <---------------- | <---------------------- CALL_REPLY |  answer
 *     |                   |  the answer is checked             |
 *
 * What cannot be handed out like this, for whatever reason, is left out: the client fetches it, and learns why. So this waits
 * for nothing but the other node, and copies only what is small. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/calls/call.h"
#include "daemon/rpc/rpc.h"
#include "wire_ref.h"

#define LEFT_OUT RDT_UNSUPPORTED
#define NO_HANDLE UINT64_MAX /* the hold gets an id of its own */

/* The most of one answer, which is packed in one turn of the loop. */
#define MOST_OBJECTS 256u
#define MOST_TENSORS 1024u
#define MOST_DIMS 2048u
#define MOST_DATA_BYTES (128u << 10)
#define MOST_TEXT_BYTES (64u << 10)
#define MOST_FDS 4u             /* a reader without so many free descriptors would lose its connection */
#define MOST_OBJECT_TENSORS 64u /* more of them are fetched */

#define NODE_BYTES 16u            /* of a node's uuid */
#define ANSWER_BYTES (256u << 10) /* at most, with the columns */

enum way { IN_ANSWER, SHARED, WAYS };

/* Each column is [n_given], [n_tensors], [n_dims] or [n_regions]. */
struct columns {
    uint32_t count[MOST_OBJECTS], inline_bytes[MOST_OBJECTS], text_bytes[MOST_OBJECTS], noticed[MOST_OBJECTS];
    uint64_t hold[MOST_OBJECTS], generation[MOST_OBJECTS];
    uint32_t dtype[MOST_TENSORS], ndim[MOST_TENSORS], first_dim[MOST_TENSORS], region[MOST_TENSORS];
    uint64_t offset[MOST_TENSORS];
    uint64_t shape[MOST_DIMS];
    int64_t strides[MOST_DIMS];
    struct region *regions[RDT_MAX_FRAME_FDS]; /* references: the client may release holds that it guesses */
    Rdt__Pb__SharedRegion shared[RDT_MAX_FRAME_FDS], *list[RDT_MAX_FRAME_FDS];
    int fds[RDT_MAX_FRAME_FDS];
    uint8_t data[MOST_DATA_BYTES], text[MOST_TEXT_BYTES];
};

struct filled { /* of the columns */
    uint32_t objects, tensors, dims, regions, fds, noticed;
    uint32_t data_bytes, text_bytes;
};

struct handed {                     /* in one way */
    struct transfer_record *record; /* NULL: nothing yet */
    uint32_t n;
    uint64_t bytes;
};

struct handing {
    struct slice slice;
    struct call *call; /* of a client, or of another node on behalf of one */
    struct rpc *rpc;
    struct account *account; /* a reference */
    struct arena arena;      /* of the message */
    const Rdt__Pb__LoadMany *message;
    uint32_t n, next;
    size_t id_at;    /* where the id of object `next` begins */
    int32_t *status; /* [n] */
    struct columns *columns;
    struct filled filled;
    struct handed handed[WAYS];
    uint64_t heap, began_ns;
};

/* ---- the end ---- */

static uint64_t end_record(struct handing *handing, enum way way, const struct rdt_error *why)
{
    struct handed *handed = &handing->handed[way];
    struct transfer_record *record = handed->record;

    handed->record = NULL;
    return record ? transfers_handed_out(handing->rpc->transfers, record, handing->call->peer, handed->n, handed->bytes, why)
                  : 0;
}

static void handing_free(struct handing *handing)
{
    slice_stop(&handing->slice);
    account_give(handing->account, USAGE_HEAP, handing->heap);
    account_unref(handing->account);
    while (handing->filled.fds > 0)
        (void)close(handing->columns->fds[--handing->filled.fds]);
    while (handing->filled.regions > 0)
        region_unref(handing->columns->regions[--handing->filled.regions]);
    work_free_arena(handing->rpc->regions->pool, &handing->arena);
    free(handing->columns);
    free(handing->status);
    free(handing);
}

/* Nothing is handed out. */
static void take_back(struct handing *handing, const struct rdt_error *why)
{
    struct client *client = handing->call->client;

    for (uint32_t i = 0; client && i < handing->filled.objects; i++) {
        struct hold *hold = map_get_u64(&client->holds.by_id, handing->columns->hold[i]);
        if (hold)
            client_release(hold);
    }
    for (enum way way = 0; way < WAYS; way++)
        (void)end_record(handing, way, why);
}

static void on_end(struct call *call)
{
    struct rdt_error why;

    (void)rdt_error_set(&why, RDT_CANCELLED, "the fetch was cancelled");
    take_back(call->waiting, &why);
    handing_free(call->waiting);
}

/* ---- the answer ---- */

static enum rdt_status open_region(struct handing *handing, uint32_t i, struct rdt_error *err)
{
    struct columns *columns = handing->columns;
    struct region *region = columns->regions[i];
    bool imported = region->origin == REGION_IMPORTED; /* which has no read-only fd */
    enum rdt_status status =
        region_export_to(region, handing->call->client->id, imported, &columns->fds[handing->filled.fds], err);

    if (status == RDT_OK)
        columns->shared[i].fd_index = (int32_t)handing->filled.fds++;
    return status;
}

/* A client may have been told since to unmap what it had. */
static enum rdt_status open_unmapped(struct handing *handing, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (uint32_t i = 0; status == RDT_OK && i < handing->filled.regions; i++)
        if (handing->columns->shared[i].fd_index < 0 &&
            !mapped_has(&handing->call->client->mapped, handing->columns->regions[i]))
            status = open_region(handing, i, err);
    return status;
}

static bool takes_runs(const struct call *call)
{
    return call->client ? call->client->tensor_runs : call->peer->tensor_runs;
}

static void fill_reply(struct handing *handing, Rdt__Pb__LoadManyReply *reply, Rdt__Pb__TensorList *tensors,
                       struct layout_rows *rows)
{
    struct columns *columns = handing->columns;
    const struct filled *filled = &handing->filled;
    const struct layout layout = {.count = filled->tensors,
                                  .n_dims = filled->dims,
                                  .dtype = columns->dtype,
                                  .ndim = columns->ndim,
                                  .first_dim = columns->first_dim,
                                  .region = columns->region,
                                  .offset = columns->offset,
                                  .shape = columns->shape,
                                  .strides = columns->strides};

    layout_to_wire(&layout, true, takes_runs(handing->call) ? rows : NULL, tensors);
    reply->tensors = tensors;
    reply->n_status = filled->objects < handing->n ? handing->n : 0;
    reply->status = handing->status;
    reply->n_count = reply->n_inline_bytes = reply->n_hold = reply->n_generation = filled->objects;
    reply->count = columns->count;
    reply->inline_bytes = columns->inline_bytes;
    reply->hold = columns->hold;
    reply->generation = columns->generation;
    reply->inline_data = (ProtobufCBinaryData){filled->data_bytes, columns->data};
    reply->n_metadata_bytes = filled->text_bytes > 0 ? filled->objects : 0;
    reply->metadata_bytes = columns->text_bytes;
    reply->metadata = (ProtobufCBinaryData){filled->text_bytes, columns->text};
    reply->n_mutable_shared = filled->noticed;
    reply->mutable_shared = columns->noticed;
    reply->n_regions = filled->regions;
    reply->regions = columns->list;
    reply->elapsed_ns = (int64_t)(uv_hrtime() - handing->began_ns);
}

static void answer(struct handing *handing)
{
    Rdt__Pb__LoadManyReply reply = RDT__PB__LOAD_MANY_REPLY__INIT;
    Rdt__Pb__TensorList tensors;
    struct layout_rows rows;
    struct call *call = handing->call;
    struct rdt_error err;
    unsigned n_fds;
    enum rdt_status status = open_unmapped(handing, &err);
    size_t bytes;

    fill_reply(handing, &reply, &tensors, &rows);
    bytes = protobuf_c_message_get_packed_size(&reply.base);
    account_give(handing->account, USAGE_HEAP, handing->heap); /* the answer takes its place */
    handing->heap = 0;
    if (status == RDT_OK && bytes > account_uncounted_bytes(handing->account))
        status = account_check(handing->account, USAGE_HEAP, bytes, &err);
    call->on_end = NULL;
    if (status != RDT_OK) {
        take_back(handing, &err);
        handing_free(handing);
        call_fail(call, &err);
        return;
    }
    if (call->client)
        call->client->transfers.fetched_bytes += handing->handed[IN_ANSWER].bytes + handing->handed[SHARED].bytes;
    reply.inline_transfer = end_record(handing, IN_ANSWER, NULL);
    reply.shared_transfer = end_record(handing, SHARED, NULL);
    n_fds = handing->filled.fds;
    handing->filled.fds = 0; /* call_reply takes them */
    call_reply(call, &reply.base, handing->columns->fds, n_fds);
    handing_free(handing);
}

/* ---- the objects ---- */

/* As a FETCH of the client would share it. */
static bool may_share(const struct client *client, struct object *object)
{
    const char *why_not;
    const struct region *region;

    if (object->memory.n_regions == 0)
        return true; /* it has no bytes */
    region = object->memory.uses[0].region;
    if (object->memory.n_regions > 1 || !region_is_host(region) || region->reuse.keep_mapped)
        return false;
    if (region->client == client->id && region->origin != REGION_RECEIVED && region->state != REGION_LOANED)
        return false; /* it gets its own memory, which it may write */
    return object_may_show(object, &client->account->owner, &why_not);
}

static bool may_hand_out(const struct handing *handing, struct object *object)
{
    Rdt__Pb__FetchMode mode = handing->message->mode;

    if (!object || object->state != OBJECT_LIVE || object->kind != OBJECT_PLAIN || object->file.unchecked ||
        object->tail.box_bytes > 0 || object->tail.metadata_bytes > MOST_TEXT_BYTES ||
        object_n_tensors(object) > MOST_OBJECT_TENSORS)
        return false;
    if (object->memory.chunk)
        return mode != RDT__PB__FETCH_MODE__FETCH_MODE_SHARE;
    return handing->call->client &&
           (mode == RDT__PB__FETCH_MODE__FETCH_MODE_AUTO || mode == RDT__PB__FETCH_MODE__FETCH_MODE_SHARE) &&
           may_share(handing->call->client, object);
}

/* The place of the region among those of the answer. AGAIN: they are too many. */
static enum rdt_status place_region(struct handing *handing, struct region *region, uint32_t *place_p)
{
    struct columns *columns = handing->columns;
    struct filled *filled = &handing->filled;
    Rdt__Pb__SharedRegion *entry = &columns->shared[filled->regions];

    for (uint32_t i = filled->regions; i-- > 0;)
        if (columns->regions[i] == region) {
            *place_p = i;
            return RDT_OK;
        }
    if (filled->regions == RDT_MAX_FRAME_FDS ||
        (filled->fds == MOST_FDS && !mapped_has(&handing->call->client->mapped, region)))
        return RDT_AGAIN;
    rdt__pb__shared_region__init(entry);
    entry->region = region->id;
    entry->generation = region->generation;
    entry->bytes = region->room;
    entry->fd_index = -1;
    entry->cacheable = mapped_may_keep(region);
    columns->list[filled->regions] = entry;
    columns->regions[filled->regions] = region;
    if (!mapped_has(&handing->call->client->mapped, region) && open_region(handing, filled->regions, NULL) != RDT_OK)
        return LEFT_OUT;
    (void)region_ref(region);
    *place_p = filled->regions++;
    return RDT_OK;
}

static bool has_room(const struct handing *handing, const struct layout *layout, uint32_t text_bytes, uint64_t data_bytes)
{
    const struct filled *filled = &handing->filled;

    return filled->objects < MOST_OBJECTS && filled->tensors + layout->count <= MOST_TENSORS &&
           filled->dims + layout->n_dims <= MOST_DIMS && filled->text_bytes + text_bytes <= MOST_TEXT_BYTES &&
           filled->data_bytes + data_bytes <= MOST_DATA_BYTES;
}

static void add_tensors(struct handing *handing, const struct layout *layout, uint32_t place)
{
    struct columns *columns = handing->columns;
    struct filled *filled = &handing->filled;

    for (uint32_t t = 0; t < layout->count; t++) {
        uint32_t row = filled->tensors++, from = layout->first_dim[t];
        columns->dtype[row] = layout->dtype[t];
        columns->ndim[row] = layout->ndim[t];
        columns->first_dim[row] = filled->dims;
        columns->region[row] = place;
        columns->offset[row] = layout->offset[t];
        for (uint32_t d = 0; d < layout->ndim[t]; d++, filled->dims++) {
            columns->shape[filled->dims] = layout->shape[from + d];
            columns->strides[filled->dims] = layout->strides[from + d];
        }
    }
}

/* Holds the object, or copies its bytes. */
static enum rdt_status add_memory(struct handing *handing, struct object *object, uint64_t data_bytes, uint32_t *place_p)
{
    struct columns *columns = handing->columns;
    struct filled *filled = &handing->filled;
    struct client *client = handing->call->client;
    uint64_t aligned = (data_bytes + LAYOUT_ALIGN_BYTES - 1) & ~(uint64_t)(LAYOUT_ALIGN_BYTES - 1);
    struct hold *hold;
    enum rdt_status status = RDT_OK;

    columns->inline_bytes[filled->objects] = (uint32_t)data_bytes;
    columns->hold[filled->objects] = 0;
    if (object->memory.chunk) {
        memcpy(columns->data + filled->data_bytes, slab_addr(object_piece(object)), data_bytes);
        memset(columns->data + filled->data_bytes + data_bytes, 0, aligned - data_bytes);
        filled->data_bytes += (uint32_t)aligned;
        handing->rpc->counts->bytes_local += client ? data_bytes : 0;
        return RDT_OK;
    }
    if (object->memory.n_regions > 0)
        status = place_region(handing, object->memory.uses[0].region, place_p);
    hold = status == RDT_OK ? client_hold_object(client, NO_HANDLE, object) : NULL;
    if (!hold)
        return status == RDT_OK ? LEFT_OUT : status;
    columns->hold[filled->objects] = hold->id;
    return RDT_OK;
}

static struct transfer_record *begin_serve(const struct handing *handing, const struct object *object)
{
    struct rdt_ref ref;

    object_ref(object, &ref);
    return transfers_hand_over(handing->rpc->transfers, NULL, handing->account, handing->call->peer, &ref);
}

static void add_object(struct handing *handing, struct object *object, const struct layout *layout, uint32_t place)
{
    struct columns *columns = handing->columns;
    struct filled *filled = &handing->filled;
    uint32_t i = filled->objects++, text_bytes = object->tail.metadata_bytes;
    enum way way = object->memory.chunk ? IN_ANSWER : SHARED;
    struct handed *handed = &handing->handed[way];

    add_tensors(handing, layout, place);
    columns->count[i] = layout->count;
    columns->generation[i] = object->generation;
    columns->text_bytes[i] = text_bytes;
    if (text_bytes > 0)
        memcpy(columns->text + filled->text_bytes, object_metadata(object), text_bytes);
    filled->text_bytes += text_bytes;
    if (way == SHARED && fetch_notice(handing->call->client, object))
        columns->noticed[filled->noticed++] = i;
    if (!handed->record && handing->call->client)
        handed->record = transfers_hand_out(handing->rpc->transfers, handing->call->client, object, handing->message->mode);
    else if (!handed->record)
        handed->record = begin_serve(handing, object);
    handed->n++;
    handed->bytes += way == IN_ANSWER ? columns->inline_bytes[i] : object->bytes;
}

/* AGAIN: it does not fit into the answer. */
static enum rdt_status hand_out(struct handing *handing, struct object *object)
{
    struct layout *layout;
    uint64_t data_bytes = 0;
    uint32_t place = 0;
    enum rdt_status status;

    if (object_layout(object, NULL, &layout, NULL) != RDT_OK)
        return LEFT_OUT;
    if (object->memory.chunk && layout->count > 0)
        data_bytes = layout->offset[layout->count - 1] + layout_bytes(layout, layout->count - 1);
    if (object->memory.chunk && (data_bytes == 0 || data_bytes > MOST_DATA_BYTES - LAYOUT_ALIGN_BYTES))
        status = LEFT_OUT;
    else if (!has_room(handing, layout, object->tail.metadata_bytes, data_bytes + LAYOUT_ALIGN_BYTES))
        status = handing->filled.objects > 0 ? RDT_AGAIN : LEFT_OUT;
    else
        status = add_memory(handing, object, data_bytes, &place);
    if (status == RDT_OK)
        add_object(handing, object, layout, place);
    free(layout);
    return status;
}

static enum rdt_status look(struct handing *handing, uint32_t i)
{
    struct call *call = handing->call;
    struct object *object = NULL;
    struct owner owner;
    struct rdt_ref ref;
    enum rdt_status status = ref_list_get(handing->message->refs, i, handing->id_at, &ref, NULL);

    if (status != RDT_OK || ref.is_name || !node_is_here(call->rpc->node, ref.node, ref.address) ||
        object_table_find_any(call->rpc->objects, &ref, &call->account->owner, false, &object, NULL) != RDT_OK ||
        !may_hand_out(handing, object))
        return LEFT_OUT;
    owner = owner_of_ref(&ref, &call->account->owner);
    if (!owner_equal(&owner, &object->account->owner)) /* the answer has no owner: the client takes the ref's */
        return LEFT_OUT;
    status = hand_out(handing, object);
    if (status == RDT_OK && object->cached)
        cache_found(object, ref.generation == 0);
    return status;
}

static bool look_some(struct slice *slice, uint64_t until_ns)
{
    struct handing *handing = container_of(slice, struct handing, slice);
    bool full = false;

    while (handing->next < handing->n && !full) {
        uint32_t i = handing->next;
        handing->status[i] = look(handing, i);
        full = handing->status[i] == RDT_AGAIN;
        handing->id_at += handing->message->refs->id_bytes[i];
        handing->next++;
        if (handing->next < handing->n && !full && uv_hrtime() >= until_ns)
            return false;
    }
    while (handing->next < handing->n)
        handing->status[handing->next++] = RDT_AGAIN;
    answer(handing);
    return true;
}

/* ---- objects of another node ---- */

struct far { /* a client's message, while the other node is asked */
    struct call *call;
    struct call *question;
    struct arena arena; /* of the message */
    const Rdt__Pb__LoadMany *message;
    uint32_t n;
    uint64_t heap;
};

static void far_free(struct far *far)
{
    account_give(far->call->account, USAGE_HEAP, far->heap);
    work_free_arena(far->call->rpc->regions->pool, &far->arena);
    free(far);
}

static void on_far_end(struct call *call)
{
    struct far *far = call->waiting;

    call_forget(far->question);
    far_free(far);
}

/* The client fetches each of them. */
static void leave_all(struct call *call, uint32_t n)
{
    Rdt__Pb__LoadManyReply reply = RDT__PB__LOAD_MANY_REPLY__INIT;
    int32_t status[MOST_OBJECTS];

    for (uint32_t i = 0; i < n; i++)
        status[i] = LEFT_OUT;
    reply.status = status;
    reply.n_status = n;
    call_reply(call, &reply.base, NULL, 0);
}

/* Whether the columns that the other node has sent belong together, and have no more than an answer may have. */
static bool is_whole(const struct far *far, const Rdt__Pb__LoadManyReply *reply, const struct layout *tensors)
{
    size_t n = 0, n_tensors = 0;
    uint64_t data_bytes = 0, text_bytes = 0;

    if (tensors->count > MOST_TENSORS || tensors->n_dims > MOST_DIMS)
        return false;
    if (reply->n_status != 0 && reply->n_status != far->n)
        return false;
    for (uint32_t i = 0; i < far->n; i++)
        n += reply->n_status == 0 || reply->status[i] == RDT_OK;
    if (reply->n_count != n || reply->n_inline_bytes != n || reply->n_hold != n || reply->n_generation != n ||
        (reply->n_metadata_bytes != 0 && reply->n_metadata_bytes != n) || reply->inline_data.len > MOST_DATA_BYTES ||
        reply->metadata.len > MOST_TEXT_BYTES)
        return false;
    for (size_t i = 0; i < n; i++) {
        n_tensors += reply->count[i];
        data_bytes += ((uint64_t)reply->inline_bytes[i] + LAYOUT_ALIGN_BYTES - 1) & ~(uint64_t)(LAYOUT_ALIGN_BYTES - 1);
        text_bytes += reply->n_metadata_bytes ? reply->metadata_bytes[i] : 0;
    }
    return n_tensors == tensors->count && data_bytes == reply->inline_data.len && text_bytes == reply->metadata.len;
}

/* Whether object `given` of the answer is the one of the ref, and has its bytes there. */
static bool is_object(const Rdt__Pb__LoadManyReply *reply, size_t given, const struct layout *tensors, uint32_t first,
                      const struct rdt_ref *ref)
{
    uint64_t lo, hi;

    if (reply->inline_bytes[given] == 0 || reply->generation[given] == 0 ||
        (ref->generation != 0 && reply->generation[given] != ref->generation))
        return false;
    for (uint32_t t = first; t < first + reply->count[given]; t++)
        if (layout_extent(tensors, t, &lo, &hi, NULL) != RDT_OK || hi > reply->inline_bytes[given])
            return false;
    return true;
}

/* Whether the client may get the answer. first_p: the ref of the first object that it has. */
static bool is_good(const struct far *far, const Rdt__Pb__LoadManyReply *reply, const struct layout *tensors,
                    struct rdt_ref *first_p)
{
    const Rdt__Pb__RefList *refs = far->message->refs;
    uint32_t first = 0;
    size_t at = 0, given = 0;
    struct rdt_ref ref;

    if (!is_whole(far, reply, tensors))
        return false;
    for (uint32_t i = 0; i < far->n; at += refs->id_bytes[i++]) {
        if (reply->n_status != 0 && reply->status[i] != RDT_OK)
            continue;
        if (ref_list_get(refs, i, at, &ref, NULL) != RDT_OK || !is_object(reply, given, tensors, first, &ref))
            return false;
        if (given == 0)
            *first_p = ref;
        first += reply->count[given++];
    }
    return true;
}

/* Tells the client nothing but what was checked: no hold, memory or number of the other node is one of this node's. */
static void pass_on(struct call *call, struct peer *peer, const Rdt__Pb__LoadManyReply *reply, const struct layout *tensors,
                    const struct rdt_ref *first)
{
    static uint64_t no_hold[MOST_OBJECTS];
    Rdt__Pb__LoadManyReply answer = RDT__PB__LOAD_MANY_REPLY__INIT;
    struct transfers *transfers = call->rpc->transfers;
    struct transfer_record *record = NULL;
    Rdt__Pb__TensorList list;
    struct layout_rows rows;
    uint64_t bytes = 0;

    for (size_t i = 0; i < reply->n_status; i++)
        if (reply->status[i] != RDT_OK && reply->status[i] != RDT_AGAIN)
            reply->status[i] = LEFT_OUT;
    for (size_t i = 0; i < reply->n_inline_bytes; i++)
        bytes += reply->inline_bytes[i];
    if (reply->n_count > 0)
        record = transfers_hand_over(transfers, call->client, call->account, peer, first);
    if (record) {
        record->began_ns = call->began_ns;
        answer.inline_transfer = transfers_handed_out(transfers, record, peer, (uint32_t)reply->n_count, bytes, NULL);
    }
    call->client->transfers.fetched_bytes += bytes;
    layout_to_wire(tensors, true, takes_runs(call) ? &rows : NULL, &list);
    answer.tensors = &list;
    answer.n_status = reply->n_status;
    answer.status = reply->status;
    answer.n_count = answer.n_inline_bytes = answer.n_hold = answer.n_generation = reply->n_count;
    answer.count = reply->count;
    answer.inline_bytes = reply->inline_bytes;
    answer.hold = no_hold;
    answer.generation = reply->generation;
    answer.n_metadata_bytes = reply->n_metadata_bytes;
    answer.metadata_bytes = reply->metadata_bytes;
    answer.metadata = reply->metadata;
    answer.elapsed_ns = (int64_t)(uv_hrtime() - call->began_ns);
    answer.inline_data = reply->inline_data;
    answer.pickles_trusted = peer_is_one_of(peer, call->rpc->options->trusted_pickles);
    call_reply(call, &answer.base, NULL, 0);
}

static void on_far_answer(struct call *question, const ProtobufCMessage *message, const struct rdt_error *err)
{
    struct far *far = question->asker;
    struct call *call = far->call;
    const Rdt__Pb__LoadManyReply *reply = (const Rdt__Pb__LoadManyReply *)message;
    struct layout *tensors = NULL;
    struct rdt_ref first;
    uint32_t n = far->n;
    bool good;

    call->on_end = NULL;
    good = reply && layout_from_wire(reply->tensors, &tensors, NULL) == RDT_OK && is_good(far, reply, tensors, &first);
    far_free(far);
    if (good)
        pass_on(call, question->forwarded.to, reply, tensors, &first);
    else
        leave_all(call, n);
    free(tensors);
}

/* Whether the message is about objects of another node, whose refs then have its uuid. */
static bool is_far(const struct call *call, const Rdt__Pb__LoadMany *message, struct rdt_ref *at_p)
{
    static const uint8_t nobody[NODE_BYTES];

    return call->client && message->refs->n_id_bytes > 0 && ref_list_get(message->refs, 0, 0, at_p, NULL) == RDT_OK &&
           memcmp(at_p->node, nobody, sizeof nobody) != 0 && call_is_remote(call, at_p);
}

/* Whether the node is to be asked: it has all of them, and this node has none, in a replica or a version that it follows. */
static bool may_ask(const struct call *call, const Rdt__Pb__LoadMany *message, const struct rdt_ref *at)
{
    size_t id_at = 0;
    struct rdt_ref ref;

    for (size_t i = 0; i < message->refs->n_id_bytes; id_at += message->refs->id_bytes[i++])
        if (ref_list_get(message->refs, i, id_at, &ref, NULL) != RDT_OK || ref.is_name ||
            memcmp(ref.node, at->node, sizeof ref.node) != 0 || transfers_has(call->rpc->transfers, call->client, &ref))
            return false;
    return message->mode != RDT__PB__FETCH_MODE__FETCH_MODE_SHARE;
}

static enum rdt_status ask_node(struct call *call, const Rdt__Pb__LoadMany *message, const struct rdt_ref *at,
                                struct rdt_error *err)
{
    Rdt__Pb__LoadMany request = RDT__PB__LOAD_MANY__INIT;
    Rdt__Pb__RefList *refs = message->refs;
    uint64_t heap = call->request.arena->used_bytes + sizeof(struct far);
    struct far *far;
    enum rdt_status status;

    if (refs->n_id_bytes > MOST_OBJECTS)
        return rdt_error_set(err, RDT_LIMIT, "the message asks another node for %zu objects: at most %u are possible",
                             refs->n_id_bytes, MOST_OBJECTS);
    if (!may_ask(call, message, at)) {
        leave_all(call, (uint32_t)refs->n_id_bytes);
        return RDT_OK;
    }
    status = account_take(call->account, USAGE_HEAP, heap, err);
    if (status != RDT_OK)
        return status;
    far = calloc(1, sizeof *far);
    if (!far) {
        account_give(call->account, USAGE_HEAP, heap);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to ask another node for %zu objects", refs->n_id_bytes);
    }
    far->call = call;
    far->message = message;
    far->n = (uint32_t)refs->n_id_bytes;
    far->heap = heap;
    arena_init(&far->arena, 0);
    status = call_defer(call, -1, on_far_end, err);
    if (status != RDT_OK) {
        call->on_end = NULL;
        far_free(far);
        return status;
    }
    call->waiting = far;
    call_take_request(call, &far->arena);
    request.refs = refs;
    request.mode = message->mode;
    for (size_t i = 0; i < refs->n_like; i++) /* the client's address of the node is nothing to that node */
        refs->like[i]->address = (char *)"";
    if (call_ask(call, at, &request.base, ANSWER_BYTES, on_far_answer, far, &far->question, err) != RDT_OK) {
        uint32_t n = far->n;
        call->on_end = NULL;
        far_free(far);
        leave_all(call, n);
    }
    return RDT_OK;
}

/* ---- the request ---- */

static enum rdt_status check(const struct call *call, const Rdt__Pb__LoadMany *message, struct rdt_error *err)
{
    if (call->rpc->intake.draining)
        return rdt_error_set(err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    if (!message->refs || message->n_generation > 0 || message->n_count > 0 || message->targets || message->n_more_regions > 0)
        return rdt_error_set(err, RDT_INVALID,
                             "the columns of a message that hands out objects do not belong together: "
                             "it has refs, and no targets");
    if ((unsigned)message->mode > RDT__PB__FETCH_MODE__FETCH_MODE_COW)
        return rdt_error_set(err, RDT_INVALID, "fetch mode %d is unknown", (int)message->mode);
    return ref_list_check(message->refs, err);
}

enum rdt_status rpc_hand_out(struct call *call, const Rdt__Pb__LoadMany *message, struct rdt_error *err)
{
    struct handing *handing;
    struct rdt_ref at;
    uint64_t heap;
    size_t n;
    enum rdt_status status = check(call, message, err);

    if (status != RDT_OK)
        return status;
    if (is_far(call, message, &at))
        return ask_node(call, message, &at, err);
    n = message->refs->n_id_bytes;
    heap = call->request.arena->used_bytes + n * sizeof *handing->status + sizeof *handing->columns;
    status = account_take(call->account, USAGE_HEAP, heap, err);
    if (status != RDT_OK)
        return status;
    handing = calloc(1, sizeof *handing);
    if (handing) {
        handing->status = malloc((n + 1) * sizeof *handing->status);
        handing->columns = malloc(sizeof *handing->columns);
    }
    if (!handing || !handing->status || !handing->columns) {
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to hand out %zu objects", n);
    } else {
        call->waiting = handing;
        status = call_defer(call, -1, on_end, err);
    }
    if (status != RDT_OK) {
        account_give(call->account, USAGE_HEAP, heap);
        free(handing ? handing->status : NULL);
        free(handing ? handing->columns : NULL);
        free(handing);
        return status;
    }
    handing->call = call;
    handing->rpc = call->rpc;
    handing->account = account_ref(call->account);
    handing->message = message;
    handing->n = (uint32_t)n;
    handing->heap = heap;
    handing->began_ns = uv_hrtime();
    handing->slice.run = look_some;
    arena_init(&handing->arena, 0);
    call_take_request(call, &handing->arena);
    slice_begin(&call->rpc->deadlines->slices, &handing->slice);
    return RDT_OK;
}
