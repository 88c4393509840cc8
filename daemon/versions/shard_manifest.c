/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest of a complete version: an object that lists the parts (proto/manifest.h). */
#include <stdlib.h>
#include <string.h>

#include "daemon/memory/region.h"
#include "daemon/versions/shards_impl.h"
#include "proto/grow.h"
#include "proto/manifest.h"
#include "wire_ref.h"

/* Fields of Manifest. A repeated field is its messages one after the other, each behind its tag and length; fields may come in
 * any order. */
#define PARTS_FIELD 3u
#define LAYOUTS_FIELD 8u
#define MOVES_FIELD 9u

/* A message that parts refer to by its number, because many of them have the same. */
struct shared {
    struct shared *next;
    uint64_t *start; /* of a layout: where the last part with it starts */
    uint32_t number;
    uint8_t packed[];
};

struct shared_field {
    struct map messages; /* packed -> struct shared */
    struct shared *list; /* all of them */
};

struct packed {
    uint8_t *to; /* [room] */
    size_t n, room;
};

struct packer {
    struct packed parts, rest; /* fields of the manifest */
    struct shared_field layouts, moves;
    /* Of the keys that have been met, in order. */
    struct shard_tensor **tensors; /* [n_tensors] */
    uint32_t n_tensors;
    size_t room_tensors;
    uint32_t *dtype, *ndim, *key; /* of one part: columns */
    uint64_t *shape, *start;
    int64_t *by;
};

static enum rdt_status no_memory(struct rdt_error *err)
{
    return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the manifest");
}

/* Makes room for so many bytes behind `n`, and for the tail. */
static enum rdt_status make_room(struct packed *packed, size_t bytes, struct rdt_error *err)
{
    size_t room = packed->room;
    uint8_t *to;

    if (packed->n + bytes > MANIFEST_MAX_TENSOR)
        return rdt_error_set(err, RDT_LIMIT,
                             "its manifest has more than the limit of %u bytes: publish fewer or larger tensors",
                             MANIFEST_MAX_TENSOR);
    while (room < packed->n + bytes + MANIFEST_TAIL_BYTES)
        room = room ? 2 * room : 4096;
    if (room == packed->room)
        return RDT_OK;
    to = realloc(packed->to, room);
    if (!to)
        return no_memory(err);
    packed->to = to;
    packed->room = room;
    return RDT_OK;
}

static enum rdt_status append(struct packed *packed, const void *from, size_t bytes, struct rdt_error *err)
{
    enum rdt_status status = make_room(packed, bytes, err);

    if (status == RDT_OK && bytes > 0)
        memcpy(packed->to + packed->n, from, bytes);
    packed->n += status == RDT_OK ? bytes : 0;
    return status;
}

/* Appends the message as a field. */
static enum rdt_status put_field(struct packed *packed, unsigned field, const ProtobufCMessage *message, struct rdt_error *err)
{
    size_t bytes = protobuf_c_message_get_packed_size(message), left = bytes;
    enum rdt_status status = make_room(packed, bytes + 16, err);

    if (status != RDT_OK)
        return status;
    packed->to[packed->n++] = (uint8_t)(field << 3 | 2);
    for (; left >= 0x80; left >>= 7)
        packed->to[packed->n++] = (uint8_t)(left | 0x80);
    packed->to[packed->n++] = (uint8_t)left;
    packed->n += protobuf_c_message_pack(message, packed->to + packed->n);
    return RDT_OK;
}

static enum rdt_status number_tensor(struct packer *packer, struct shard_tensor *tensor, struct rdt_error *err)
{
    struct shard_tensor **tensors;

    if (tensor->number != UINT32_MAX)
        return RDT_OK;
    tensors = array_grow(packer->tensors, packer->n_tensors, &packer->room_tensors, sizeof *tensors);
    if (!tensors)
        return no_memory(err);
    packer->tensors = tensors;
    tensor->number = packer->n_tensors;
    packer->tensors[packer->n_tensors++] = tensor;
    return RDT_OK;
}

/* Appends the message if no earlier part has the same. */
static enum rdt_status share(struct packer *packer, struct shared_field *of, unsigned field, const ProtobufCMessage *message,
                             struct shared **shared_p, struct rdt_error *err)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    struct shared *new = malloc(sizeof *new + bytes), *known;

    if (!new)
        return no_memory(err);
    *new = (struct shared){.next = of->list, .number = (uint32_t)map_count(&of->messages)};
    (void)protobuf_c_message_pack(message, new->packed);
    known = map_get(&of->messages, new->packed, bytes);
    if (known || !map_put(&of->messages, new->packed, bytes, new)) {
        free(new);
        *shared_p = known;
        return known ? RDT_OK : no_memory(err);
    }
    of->list = *shared_p = new;
    return put_field(&packer->rest, field, message, err);
}

static void shared_field_fini(struct shared_field *of)
{
    while (of->list) {
        struct shared *next = of->list->next;
        free(of->list->start);
        free(of->list);
        of->list = next;
    }
    map_fini(&of->messages);
}

/* How far the part, which starts at packer->start, is from the last part with the same layout. */
static enum rdt_status put_move(struct packer *packer, struct shared *layout, size_t n_dims, struct shared **move_p,
                                struct rdt_error *err)
{
    Rdt__Pb__ManifestMove move = RDT__PB__MANIFEST_MOVE__INIT;

    if (!layout->start)
        layout->start = calloc(n_dims + 1, sizeof *layout->start);
    if (!layout->start)
        return no_memory(err);
    for (size_t d = 0; d < n_dims; d++)
        packer->by[d] = (int64_t)(packer->start[d] - layout->start[d]);
    memcpy(layout->start, packer->start, n_dims * sizeof *layout->start);
    move.by = packer->by;
    move.n_by = n_dims;
    return share(packer, &packer->moves, MOVES_FIELD, &move.base, move_p, err);
}

static enum rdt_status put_part(struct packer *packer, const struct shard_boxes *boxes, const struct shard_row *row,
                                struct rdt_error *err)
{
    Rdt__Pb__ManifestLayout layout = RDT__PB__MANIFEST_LAYOUT__INIT;
    Rdt__Pb__ManifestPart part = RDT__PB__MANIFEST_PART__INIT;
    Rdt__Pb__TensorList tensors = RDT__PB__TENSOR_LIST__INIT;
    struct shared *shared_layout = NULL, *shared_move = NULL;
    const uint64_t *dims = boxes->dims;
    Rdt__Pb__Ref wire;
    size_t at = 0;
    enum rdt_status status = RDT_OK;

    for (uint32_t i = 0; i < boxes->n && status == RDT_OK; i++) {
        struct shard_tensor *tensor = boxes->tensors[i];

        status = number_tensor(packer, tensor, err);
        packer->dtype[i] = tensor->dtype;
        packer->ndim[i] = tensor->ndim;
        packer->key[i] = tensor->number;
        memcpy(packer->start + at, dims, tensor->ndim * sizeof *dims);
        memcpy(packer->shape + at, dims + tensor->ndim, tensor->ndim * sizeof *dims);
        dims += 2 * (size_t)tensor->ndim;
        at += tensor->ndim;
    }
    tensors.dtype = packer->dtype;
    tensors.ndim = packer->ndim;
    tensors.shape = packer->shape;
    layout.tensors = &tensors;
    layout.key = packer->key;
    tensors.n_dtype = tensors.n_ndim = layout.n_key = boxes->n;
    tensors.n_shape = at;
    wire_ref_from(&row->ref, &wire);
    part.ref = &wire;
    part.rank = row->rank;
    part.bytes = row->bytes;
    if (status == RDT_OK)
        status = share(packer, &packer->layouts, LAYOUTS_FIELD, &layout.base, &shared_layout, err);
    if (status == RDT_OK)
        status = put_move(packer, shared_layout, at, &shared_move, err);
    if (status != RDT_OK)
        return status;
    part.layout = shared_layout->number;
    part.move = shared_move->number;
    return put_field(&packer->parts, PARTS_FIELD, &part.base, err);
}

/* Appends the columns about the keys. */
static enum rdt_status put_keys(struct packer *packer, struct rdt_error *err)
{
    Rdt__Pb__Manifest manifest = RDT__PB__MANIFEST__INIT;
    size_t n = packer->n_tensors, n_dims = 0;
    enum rdt_status status;

    for (size_t i = 0; i < n; i++)
        n_dims += packer->tensors[i]->ndim;
    manifest.key = malloc((n + 1) * sizeof *manifest.key);
    manifest.ndim = malloc((n + 1) * sizeof *manifest.ndim);
    manifest.global_shape = malloc((n_dims + 1) * sizeof *manifest.global_shape);
    status = manifest.key && manifest.ndim && manifest.global_shape ? RDT_OK : no_memory(err);
    for (size_t i = 0; status == RDT_OK && i < n; i++) {
        struct shard_tensor *tensor = packer->tensors[i];

        manifest.key[i] = tensor->key;
        manifest.ndim[i] = tensor->ndim;
        memcpy(manifest.global_shape + manifest.n_global_shape, tensor->shape, tensor->ndim * sizeof *tensor->shape);
        manifest.n_global_shape += tensor->ndim;
    }
    manifest.n_key = manifest.n_ndim = n;
    if (status == RDT_OK)
        status = make_room(&packer->rest, protobuf_c_message_get_packed_size(&manifest.base), err);
    if (status == RDT_OK)
        packer->rest.n += protobuf_c_message_pack(&manifest.base, packer->rest.to + packer->rest.n);
    free(manifest.key);
    free(manifest.ndim);
    free(manifest.global_shape);
    return status;
}

/* Allocates columns that are long enough for each of the parts. */
static enum rdt_status make_columns(struct packer *packer, const struct shard_cover *cover, struct rdt_error *err)
{
    size_t n = 1, n_dims = 1;

    for (const struct shard_boxes *boxes = cover->boxes; boxes; boxes = boxes->next) {
        n = boxes->n > n ? boxes->n : n;
        n_dims = boxes->n_dims > n_dims ? boxes->n_dims : n_dims;
    }
    packer->dtype = malloc(n * sizeof *packer->dtype);
    packer->ndim = malloc(n * sizeof *packer->ndim);
    packer->key = malloc(n * sizeof *packer->key);
    packer->shape = malloc(n_dims * sizeof *packer->shape);
    packer->start = malloc(n_dims * sizeof *packer->start);
    packer->by = malloc(n_dims * sizeof *packer->by);
    return packer->dtype && packer->ndim && packer->key && packer->shape && packer->start && packer->by ? RDT_OK
                                                                                                        : no_memory(err);
}

static void packer_fini(struct packer *packer)
{
    shared_field_fini(&packer->layouts);
    shared_field_fini(&packer->moves);
    free(packer->parts.to);
    free(packer->rest.to);
    free(packer->tensors);
    free(packer->dtype);
    free(packer->ndim);
    free(packer->key);
    free(packer->shape);
    free(packer->start);
    free(packer->by);
}

/* One form or the other. */
static enum rdt_status take_packed(struct packer *packer, struct shard_manifest *manifest_p, struct rdt_error *err)
{
    struct packed *parts = &packer->parts, *rest = &packer->rest;
    bool large = parts->n + rest->n > MANIFEST_MAX_METADATA - MANIFEST_TAIL_BYTES;
    enum rdt_status status = large ? RDT_OK : append(parts, rest->to, rest->n, err);

    if (status != RDT_OK)
        return status;
    memcpy(parts->to, large ? MANIFEST_LARGE : MANIFEST_MAGIC, MANIFEST_MAGIC_BYTES);
    *manifest_p = (struct shard_manifest){.metadata = parts->to, .metadata_bytes = parts->n};
    parts->to = NULL;
    if (large) {
        manifest_p->tensor = rest->to;
        manifest_p->tensor_bytes = rest->n;
        rest->to = NULL;
    }
    return RDT_OK;
}

struct numbered { /* a part */
    const struct shard_row *row;
    const struct shard_boxes *boxes;
};

static int in_order(const void *a, const void *b)
{
    const struct shard_row *one = ((const struct numbered *)a)->row, *other = ((const struct numbered *)b)->row;

    if (one->rank != other->rank)
        return one->rank < other->rank ? -1 : 1;
    return one->piece < other->piece ? -1 : one->piece > other->piece;
}

enum rdt_status shard_manifest_pack(const struct shard_cover *cover, const struct shard_row *rows, uint32_t n,
                                    struct shard_manifest *manifest_p, struct rdt_error *err)
{
    struct numbered *parts = calloc(n + 1u, sizeof *parts);
    struct packer packer = {0};
    enum rdt_status status;

    map_init(&packer.layouts.messages);
    map_init(&packer.moves.messages);
    status = parts ? make_columns(&packer, cover, err) : no_memory(err);
    if (status == RDT_OK)
        status = append(&packer.parts, MANIFEST_MAGIC, MANIFEST_MAGIC_BYTES, err);
    for (const struct shard_boxes *boxes = cover->boxes; boxes && parts; boxes = boxes->next)
        parts[boxes->number] = (struct numbered){&rows[boxes->number], boxes};
    if (parts)
        qsort(parts, n, sizeof *parts, in_order);
    for (uint32_t i = 0; i < n && status == RDT_OK; i++)
        status = put_part(&packer, parts[i].boxes, parts[i].row, err);
    if (status == RDT_OK)
        status = put_keys(&packer, err);
    if (status == RDT_OK)
        status = take_packed(&packer, manifest_p, err);
    packer_fini(&packer);
    free(parts);
    return status;
}

/* Writes the fields about the version, which only the loop knows. Returns their length. */
static size_t put_tail(const struct version *version, uint64_t number, uint8_t *to)
{
    Rdt__Pb__Manifest tail = RDT__PB__MANIFEST__INIT;

    tail.step = version->step;
    tail.version = number;
    tail.name = (ProtobufCBinaryData){version->name->id_bytes, (uint8_t *)shard_name_id(version->name)};
    return rdt__pb__manifest__pack(&tail, to);
}

/* Of the object: without a tensor, or with the one that fills the region. */
static struct layout *object_layout_of(const struct shard_manifest *manifest)
{
    struct layout *layout = manifest->region ? layout_create(1, 1) : layout_create(0, 0);

    if (!layout || !manifest->region)
        return layout;
    layout->dtype[0] = RDT_U8;
    layout->ndim[0] = 1;
    layout->first_dim[0] = layout->region[0] = 0;
    layout->offset[0] = 0;
    layout->shape[0] = manifest->tensor_bytes;
    layout_set_row_major(layout, 0);
    return layout;
}

enum rdt_status version_publish(struct version *version, const struct shard_manifest *manifest, uint64_t *number_p,
                                struct rdt_error *err)
{
    struct shard_name *name = version->name;
    struct shards *shards = name->shards;
    struct name_publish next = {
        .id = (const uint8_t *)shard_name_id(name), .id_bytes = name->id_bytes, .visibility = version->visibility};
    struct region *region = manifest->region;
    struct object_put put = {.account = version->account,
                             .metadata = manifest->metadata,
                             .regions = &region,
                             .n_regions = region ? 1 : 0,
                             .visibility = version->visibility,
                             .transport = "",
                             .promise = OBJECT_SEALED,
                             .kept = true};
    uint64_t number = names_next_version(shards->published, &version->account->owner, next.id, next.id_bytes);
    enum rdt_status status = RDT_OK;

    put.metadata_bytes = manifest->metadata_bytes + put_tail(version, number, manifest->metadata + manifest->metadata_bytes);
    if (!(put.layout = object_layout_of(manifest)))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the manifest");
    if (status == RDT_OK)
        status = object_table_put(shards->objects, &put, &next.object, err);
    if (status != RDT_OK) {
        free(put.layout);
    } else {
        next.object->kind = OBJECT_MANIFEST;
        status = names_publish(shards->published, &next, number_p, err);
        if (status == RDT_OK && !object_wait_freed(next.object, &version->manifest))
            status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the manifest");
        if (status != RDT_OK)
            object_free(next.object, true, OBJECT_END_FREED);
        object_drop(next.object); /* the name has a hold of its own */
    }
    return status;
}
