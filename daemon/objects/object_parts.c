/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/object_parts.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/shapes.h"

/* Packs the tensors whose bytes came with the message as the arena stores them. From then on the shapes
 * describe them. */
static enum rdt_status pack(struct object_parts *parts, const struct object_put *put, struct rdt_error *err)
{
    struct layout *packed = NULL;
    enum rdt_status status;

    if (put->inline_bytes == 0)
        return RDT_OK; /* no tensor has elements, since each would lie in the inline bytes */
    status = layout_packed(put->layout, &packed, &parts->packed_bytes, err);
    if (status != RDT_OK)
        return status;
    if (parts->packed_bytes > SLAB_MAX_BYTES)
        status = rdt_error_set(err, RDT_LIMIT, "the message carries tensors of %llu bytes; the limit is %u bytes",
                               (unsigned long long)parts->packed_bytes, SLAB_MAX_BYTES);
    /* zeroed, gaps between tensors included */
    else if (parts->packed_bytes > 0 && !(parts->packed = calloc(1, parts->packed_bytes)))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the tensors");
    for (uint32_t i = 0; status == RDT_OK && i < packed->count; i++)
        if (layout_elems(packed, i) > 0)
            layout_gather(put->layout, i, put->inline_data, 0, layout_bytes(packed, i), parts->packed + packed->offset[i]);
    free(packed);
    return status;
}

static enum rdt_status find_spans(struct object_parts *parts, const struct object_put *put, struct rdt_error *err)
{
    uint32_t n = put->n_regions + (put->inline_bytes > 0);
    const struct region_span *inline_span;
    enum rdt_status status;

    parts->spans =
        n <= sizeof parts->few_spans / sizeof parts->few_spans[0] ? parts->few_spans : calloc(n, sizeof *parts->spans);
    if (!parts->spans)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the tensors");
    status = region_spans(put->layout, parts->spans, n, err);
    inline_span = &parts->spans[put->n_regions];
    if (status == RDT_OK && put->inline_bytes > 0 && inline_span->hi > put->inline_bytes)
        status = rdt_error_set(err, RDT_INVALID, "tensor %u ends at byte %llu of the message's data, which has %zu",
                               inline_span->last, (unsigned long long)inline_span->hi, put->inline_bytes);
    return status;
}

enum rdt_status object_parts_init(struct object_parts *parts, const struct object_put *put, struct rdt_error *err)
{
    enum rdt_status status;

    *parts = (struct object_parts){.bytes = layout_total_bytes(put->layout)};
    status = find_spans(parts, put, err);
    if (status == RDT_OK && put->n_regions == 0) {
        parts->shapes_bytes = shapes_bytes(put->layout);
        status = pack(parts, put, err);
    }
    if (status == RDT_OK && put->metadata_bytes + parts->shapes_bytes > OBJECT_SEPARATE_BYTES) {
        parts->separate = malloc(put->metadata_bytes + parts->shapes_bytes);
        if (!parts->separate)
            status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
        else
            work_touch(parts->separate, put->metadata_bytes + parts->shapes_bytes);
        if (parts->separate && put->metadata_bytes > 0)
            memcpy(parts->separate, put->metadata, put->metadata_bytes);
    }
    if (status == RDT_OK && parts->separate && parts->shapes_bytes > 0)
        shapes_pack(put->layout, parts->separate + put->metadata_bytes);
    if (status != RDT_OK)
        object_parts_fini(parts);
    return status;
}

void object_parts_fini(struct object_parts *parts)
{
    if (parts->spans != parts->few_spans)
        free(parts->spans);
    free(parts->packed);
    free(parts->separate);
    *parts = (struct object_parts){0};
}
