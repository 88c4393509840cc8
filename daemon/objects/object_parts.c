#include "daemon/objects/object_parts.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/shapes.h"

/* The tensors whose bytes came with the message, as the arena has them: from then on their shapes say all. */
static enum rdt_status pack(struct object_parts *parts, const struct object_put *put, struct rdt_error *err)
{
    struct layout *packed = NULL;
    enum rdt_status status;

    if (put->inline_bytes == 0)
        return RDT_OK; /* none has elements: each would lie somewhere */
    status = layout_packed(put->layout, &packed, &parts->packed_bytes, err);
    if (status != RDT_OK)
        return status;
    if (parts->packed_bytes > SLAB_MAX_BYTES)
        status = rdt_error_set(err, RDT_LIMIT, "tensors of %llu bytes in the message: at most %u",
                               (unsigned long long)parts->packed_bytes, SLAB_MAX_BYTES);
    else if (parts->packed_bytes > 0 && !(parts->packed = calloc(1, parts->packed_bytes))) /* between tensors too */
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
    const struct region_span *came;
    enum rdt_status status;

    parts->spans = n <= sizeof parts->few / sizeof parts->few[0] ? parts->few : calloc(n, sizeof *parts->spans);
    if (!parts->spans)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the tensors");
    status = region_spans(put->layout, parts->spans, n, err);
    came = &parts->spans[put->n_regions];
    if (status == RDT_OK && put->inline_bytes > 0 && came->hi > put->inline_bytes)
        status = rdt_error_set(err, RDT_INVALID, "tensor %u ends at byte %llu of the message's data, which has %zu", came->last,
                               (unsigned long long)came->hi, put->inline_bytes);
    return status;
}

enum rdt_status object_parts_make(struct object_parts *parts, const struct object_put *put, struct rdt_error *err)
{
    enum rdt_status status;

    *parts = (struct object_parts){.bytes = layout_total_bytes(put->layout)};
    status = find_spans(parts, put, err);
    if (status == RDT_OK && put->n_regions == 0) {
        parts->shapes_bytes = shapes_bytes(put->layout);
        status = pack(parts, put, err);
    }
    if (status == RDT_OK && put->metadata_bytes + parts->shapes_bytes > OBJECT_APART_BYTES) {
        parts->apart = malloc(put->metadata_bytes + parts->shapes_bytes);
        if (!parts->apart)
            status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
        else
            work_touch(parts->apart, put->metadata_bytes + parts->shapes_bytes);
        if (parts->apart && put->metadata_bytes > 0)
            memcpy(parts->apart, put->metadata, put->metadata_bytes);
    }
    if (status == RDT_OK && parts->apart && parts->shapes_bytes > 0)
        shapes_pack(put->layout, parts->apart + put->metadata_bytes);
    if (status != RDT_OK)
        object_parts_fini(parts);
    return status;
}

void object_parts_fini(struct object_parts *parts)
{
    if (parts->spans != parts->few)
        free(parts->spans);
    free(parts->packed);
    free(parts->apart);
    *parts = (struct object_parts){0};
}
