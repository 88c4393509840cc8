/* SPDX-License-Identifier: Apache-2.0 */
#include "shards.h"

#include <stdlib.h>
#include <string.h>

#include "proto/boxes.h"
#include "proto/wire_limits.h"

/* Fills the columns, which have room for every tensor and dimension. */
static void fill(const struct rdt_shard *shards, const struct layout *layout, Rdt__Pb__Boxes *boxes)
{
    for (uint32_t i = 0; i < layout->count; i++) {
        const uint64_t *shape = layout->shape + layout->first_dim[i];

        boxes->key[boxes->n_key++] = (char *)(shards[i].key ? shards[i].key : "");
        for (uint32_t d = 0; d < layout->ndim[i] && shards[i].key; d++) {
            boxes->global_shape[boxes->n_global_shape++] =
                shards[i].global_shape ? (uint64_t)shards[i].global_shape[d] : shape[d];
            boxes->start[boxes->n_start++] = shards[i].start ? (uint64_t)shards[i].start[d] : 0;
        }
    }
}

static enum rdt_status pack(const struct rdt_put_options *options, const Rdt__Pb__Boxes *boxes, struct shards_packed *packed_p,
                            struct rdt_error *err)
{
    size_t box_bytes = protobuf_c_message_get_packed_size(&boxes->base), bytes = options->metadata_bytes + box_bytes;

    if (bytes > RDT_MAX_METADATA_BYTES)
        return rdt_error_set(err, RDT_LIMIT, "%zu bytes of metadata and %zu of boxes are more than the limit of %u",
                             options->metadata_bytes, box_bytes, RDT_MAX_METADATA_BYTES);
    packed_p->metadata = malloc(bytes + 1);
    if (!packed_p->metadata)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the boxes of %zu tensors", boxes->n_key);
    if (options->metadata_bytes > 0)
        memcpy(packed_p->metadata, options->metadata, options->metadata_bytes);
    protobuf_c_message_pack(&boxes->base, packed_p->metadata + options->metadata_bytes);
    packed_p->metadata_bytes = bytes;
    packed_p->box_bytes = (uint32_t)box_bytes;
    return RDT_OK;
}

enum rdt_status shards_pack(const struct rdt_put_options *options, const struct layout *layout, struct shards_packed *packed_p,
                            struct rdt_error *err)
{
    Rdt__Pb__Boxes boxes = RDT__PB__BOXES__INIT;
    enum rdt_status status = RDT_OK;

    boxes.key = calloc(layout->count + 1, sizeof *boxes.key);
    boxes.global_shape = calloc(layout->n_dims + 1, sizeof *boxes.global_shape);
    boxes.start = calloc(layout->n_dims + 1, sizeof *boxes.start);
    if (!boxes.key || !boxes.global_shape || !boxes.start)
        status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the boxes of %u tensors", layout->count);
    for (uint32_t i = 0; i < layout->count && status == RDT_OK; i++)
        if (options->shards[i].key && options->shards[i].key[0] == '\0')
            status = rdt_error_set(err, RDT_INVALID, "the key of the shard of tensor %u is empty", i);
    if (status == RDT_OK) {
        fill(options->shards, layout, &boxes);
        status = pack(options, &boxes, packed_p, err);
    }
    if (status == RDT_OK) /* says here what the daemon would say */
        status = boxes_check(packed_p->metadata + options->metadata_bytes, packed_p->box_bytes, layout, err);
    free(boxes.key);
    free(boxes.global_shape);
    free(boxes.start);
    return status;
}

void shards_packed_fini(struct shards_packed *packed)
{
    free(packed->metadata);
    *packed = (struct shards_packed){0};
}
