/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/boxes.h"

#include <string.h>

#include "proto/wire_limits.h"

static enum rdt_status check_one(const Rdt__Pb__Boxes *boxes, const struct layout *layout, uint32_t i, size_t at,
                                 struct rdt_error *err)
{
    const uint64_t *shape = layout->shape + layout->first_dim[i];
    uint64_t elems = 1;

    for (uint32_t d = 0; d < layout->ndim[i]; d++) {
        uint64_t global = boxes->global_shape[at + d], start = boxes->start[at + d];

        if (global > INT64_MAX || start > global || shape[d] > global - start)
            return rdt_error_set(err, RDT_INVALID,
                                 "tensor %u is a box of \"%s\" that ends outside it: dimension %u begins at %llu and has %llu "
                                 "elements, but \"%s\" has %llu there",
                                 i, boxes->key[i], d, (unsigned long long)start, (unsigned long long)shape[d], boxes->key[i],
                                 (unsigned long long)global);
        if (global > 0 && elems > (uint64_t)INT64_MAX / global)
            return rdt_error_set(err, RDT_INVALID,
                                 "the tensor \"%s\", of which tensor %u is a box, has more than 2^63 elements", boxes->key[i],
                                 i);
        elems *= global;
    }
    return RDT_OK;
}

enum rdt_status boxes_fit(const Rdt__Pb__Boxes *boxes, const struct layout *layout, struct rdt_error *err)
{
    size_t at = 0;
    enum rdt_status status = RDT_OK;

    if (boxes->n_key != layout->count || boxes->n_start != boxes->n_global_shape)
        return rdt_error_set(err, RDT_INVALID, "there are %zu boxes for %u tensors", boxes->n_key, layout->count);
    for (uint32_t i = 0; i < layout->count && status == RDT_OK; i++) {
        if (strlen(boxes->key[i]) > RDT_MAX_KEY_BYTES)
            return rdt_error_set(err, RDT_INVALID, "the key of tensor %u has %zu bytes: at most %u are allowed", i,
                                 strlen(boxes->key[i]), RDT_MAX_KEY_BYTES);
        if (boxes->key[i][0] == '\0')
            continue;
        if (layout->ndim[i] > boxes->n_start - at)
            return rdt_error_set(err, RDT_INVALID, "the box of tensor %u has too few dimensions", i);
        status = check_one(boxes, layout, i, at, err);
        at += layout->ndim[i];
    }
    if (status == RDT_OK && at != boxes->n_start)
        status =
            rdt_error_set(err, RDT_INVALID, "the boxes have %zu dimensions, but their tensors have %zu", boxes->n_start, at);
    return status;
}

enum rdt_status boxes_read(struct arena *arena, const void *packed, size_t bytes, const struct layout *layout,
                           const Rdt__Pb__Boxes **boxes_p, struct rdt_error *err)
{
    ProtobufCMessage *message;
    enum rdt_status status = arena_unpack(arena, &rdt__pb__boxes__descriptor, packed, bytes, "Boxes", &message, err);

    if (status == RDT_PROTOCOL)
        status = rdt_error_set(err, RDT_INVALID, "the boxes of the tensors cannot be read");
    if (status == RDT_OK)
        status = boxes_fit((const Rdt__Pb__Boxes *)message, layout, err);
    if (status == RDT_OK)
        *boxes_p = (const Rdt__Pb__Boxes *)message;
    return status;
}

enum rdt_status boxes_check(const void *packed, size_t bytes, const struct layout *layout, struct rdt_error *err)
{
    const Rdt__Pb__Boxes *boxes;
    struct arena arena;
    enum rdt_status status;

    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    status = boxes_read(&arena, packed, bytes, layout, &boxes, err);
    arena_fini(&arena);
    return status;
}
