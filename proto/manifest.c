/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/manifest.h"

#include <stdlib.h>
#include <string.h>

#include "proto/boxes.h"

bool manifest_has_magic(const void *metadata, size_t bytes)
{
    return bytes >= MANIFEST_MAGIC_BYTES && memcmp(metadata, MANIFEST_MAGIC, MANIFEST_MAGIC_BYTES - 1) == 0;
}

static enum rdt_status no_memory(struct rdt_error *err)
{
    return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the manifest of a version");
}

enum rdt_status manifest_unpack(struct arena *arena, const void *packed, size_t bytes, Rdt__Pb__Manifest **message_p,
                                struct rdt_error *err)
{
    const size_t least = (size_t)1 << 20; /* the arena's blocks need it */
    size_t room = least + MANIFEST_ROOM * bytes, most = MANIFEST_MORE_BYTES + 2 * bytes;
    ProtobufCMessage *message = NULL;
    enum rdt_status status;

    arena_init(arena, room < most ? room : most);
    status = arena_unpack(arena, &rdt__pb__manifest__descriptor, packed, bytes, "the manifest of a version", &message, err);
    *message_p = (Rdt__Pb__Manifest *)message;
    if (status == RDT_OK || status == RDT_NO_MEMORY)
        return status;
    if (err)
        err->status = RDT_INVALID;
    return RDT_INVALID;
}

/* first_dim: [message->n_key], of each key in message->global_shape. */
static enum rdt_status read_layout(const Rdt__Pb__Manifest *message, const size_t *first_dim,
                                   const Rdt__Pb__ManifestLayout *from, struct manifest_layout *to, struct rdt_error *err)
{
    struct layout *layout;
    enum rdt_status status;

    if (from->tensors && from->tensors->n_run > 0) /* a few bytes could stand for gigabytes */
        return rdt_error_set(err, RDT_INVALID, "a layout of the manifest has runs of tensors");
    status = layout_from_wire(from->tensors, &to->layout, err);
    if (status != RDT_OK)
        return status;
    layout = to->layout;
    to->key = malloc((layout->count + 1u) * sizeof *to->key);
    to->global_shape = malloc((layout->n_dims + 1u) * sizeof *to->global_shape);
    if (!to->key || !to->global_shape)
        return no_memory(err);
    if (from->n_key != layout->count)
        return rdt_error_set(err, RDT_INVALID, "a layout of the manifest has %zu keys for %u tensors", from->n_key,
                             layout->count);
    for (uint32_t t = 0; t < layout->count; t++) {
        uint32_t key = from->key[t];

        if (key >= message->n_key || message->key[key][0] == '\0')
            return rdt_error_set(err, RDT_INVALID, "a tensor of the manifest has no key");
        if (layout->ndim[t] != message->ndim[key])
            return rdt_error_set(err, RDT_INVALID, "a box of tensor \"%s\" has %u dimensions, but the tensor has %u",
                                 message->key[key], layout->ndim[t], message->ndim[key]);
        to->key[t] = message->key[key];
        memcpy(to->global_shape + layout->first_dim[t], message->global_shape + first_dim[key],
               layout->ndim[t] * sizeof *to->global_shape);
    }
    return RDT_OK;
}

static enum rdt_status read_layouts(const Rdt__Pb__Manifest *message, struct manifest *manifest, struct rdt_error *err)
{
    size_t *first_dim = malloc((message->n_key + 1) * sizeof *first_dim), at = 0;
    enum rdt_status status = RDT_OK;

    manifest->layouts = calloc(message->n_layouts + 1, sizeof *manifest->layouts);
    if (!first_dim || !manifest->layouts)
        status = no_memory(err);
    else
        manifest->n_layouts = message->n_layouts;
    for (size_t i = 0; status == RDT_OK && i < message->n_key && i < message->n_ndim; i++) {
        first_dim[i] = at;
        at += message->ndim[i];
    }
    if (status == RDT_OK && (message->n_ndim != message->n_key || at != message->n_global_shape))
        status = rdt_error_set(err, RDT_INVALID, "the keys of the manifest have too few or too many dimensions");
    for (size_t i = 0; i < message->n_layouts && status == RDT_OK; i++)
        status = read_layout(message, first_dim, message->layouts[i], &manifest->layouts[i], err);
    free(first_dim);
    return status;
}

/* Checks the indices of the parts and makes room for their starts. A few bytes of a part may stand for many boxes. */
static enum rdt_status make_starts(struct manifest *manifest, struct rdt_error *err)
{
    const Rdt__Pb__Manifest *message = manifest->message;
    uint64_t n_boxes = 0, n_dims = 0;

    for (size_t i = 0; i < message->n_parts; i++) {
        const Rdt__Pb__ManifestPart *part = message->parts[i];
        const struct layout *layout;

        if (!part->ref || part->layout >= manifest->n_layouts || part->move >= message->n_moves)
            return rdt_error_set(err, RDT_INVALID, "a part of the manifest is incomplete");
        layout = manifest->layouts[part->layout].layout;
        if (message->moves[part->move]->n_by != layout->n_dims)
            return rdt_error_set(err, RDT_INVALID,
                                 "a part of the manifest has starts in %zu dimensions, but its tensors have %u",
                                 message->moves[part->move]->n_by, layout->n_dims);
        n_boxes += layout->count;
        n_dims += layout->n_dims;
        if (n_boxes > MANIFEST_MAX_BOXES || n_dims > MANIFEST_MAX_DIMS)
            return rdt_error_set(err, RDT_LIMIT, "the manifest has more than %u boxes, or they have more than %u dimensions",
                                 MANIFEST_MAX_BOXES, MANIFEST_MAX_DIMS);
    }
    manifest->start = malloc((message->n_parts + 1) * sizeof *manifest->start);
    manifest->starts = malloc((n_dims + 1) * sizeof *manifest->starts);
    return manifest->start && manifest->starts ? RDT_OK : no_memory(err);
}

static bool lies_within(const struct manifest_layout *of, const uint64_t *start)
{
    const struct layout *layout = of->layout;
    bool within = true;

    for (uint32_t d = 0; d < layout->n_dims; d++)
        within = within && start[d] <= of->global_shape[d] && layout->shape[d] <= of->global_shape[d] - start[d];
    return within;
}

enum rdt_status manifest_open(const Rdt__Pb__Manifest *message, struct manifest *manifest_p, struct rdt_error *err)
{
    struct manifest *manifest = manifest_p;
    uint64_t *start;
    enum rdt_status status;

    *manifest = (struct manifest){.message = message};
    /* Each belongs to a part, so more of them would only take memory. */
    if (message->n_layouts > message->n_parts || message->n_moves > message->n_parts)
        return rdt_error_set(err, RDT_INVALID, "the manifest has %zu layouts and %zu moves for %zu parts", message->n_layouts,
                             message->n_moves, message->n_parts);
    status = read_layouts(message, manifest, err);
    if (status == RDT_OK)
        status = make_starts(manifest, err);
    start = manifest->starts;
    for (size_t i = 0; i < message->n_parts && status == RDT_OK; i++) {
        const Rdt__Pb__ManifestPart *part = message->parts[i];
        const int64_t *by = message->moves[part->move]->by;
        struct manifest_layout *of = &manifest->layouts[part->layout];
        bool first = !of->start;
        Rdt__Pb__Boxes boxes;

        for (uint32_t d = 0; d < of->layout->n_dims; d++)
            start[d] = (first ? 0 : of->start[d]) + (uint64_t)by[d];
        manifest->start[i] = of->start = start;
        start += of->layout->n_dims;
        (void)manifest_part(manifest, i, &boxes);
        if (first || !lies_within(of, of->start)) /* for the later parts, all but the starts has been checked */
            status = boxes_fit(&boxes, of->layout, err);
    }
    return status;
}

void manifest_close(struct manifest *manifest)
{
    for (size_t i = 0; i < manifest->n_layouts; i++) {
        free(manifest->layouts[i].layout);
        free(manifest->layouts[i].key);
        free(manifest->layouts[i].global_shape);
    }
    free(manifest->layouts);
    free(manifest->start);
    free(manifest->starts);
    *manifest = (struct manifest){0};
}

const struct layout *manifest_part(const struct manifest *manifest, size_t i, Rdt__Pb__Boxes *boxes_p)
{
    const struct manifest_layout *of = &manifest->layouts[manifest->message->parts[i]->layout];

    rdt__pb__boxes__init(boxes_p);
    boxes_p->key = of->key;
    boxes_p->n_key = of->layout->count;
    boxes_p->global_shape = of->global_shape;
    boxes_p->n_global_shape = of->layout->n_dims;
    boxes_p->start = manifest->start[i];
    boxes_p->n_start = of->layout->n_dims;
    return of->layout;
}
