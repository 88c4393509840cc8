/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/object_content.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/shapes.h"

/* Packs the tensors whose bytes came with the message as the arena stores them. From then on the shapes
 * describe them. */
static enum rdt_status pack(struct object_content *content, const struct object_put *put, struct rdt_error *err)
{
    struct layout *packed = NULL;
    enum rdt_status status;

    if (put->inline_bytes == 0)
        return RDT_OK; /* no tensor has elements, since each would lie in the inline bytes */
    status = layout_packed(put->layout, &packed, &content->packed_bytes, err);
    if (status != RDT_OK)
        return status;
    if (content->packed_bytes > SLAB_MAX_BYTES)
        status = rdt_error_set(err, RDT_LIMIT, "the message carries tensors of %llu bytes; the limit is %u bytes",
                               (unsigned long long)content->packed_bytes, SLAB_MAX_BYTES);
    /* zeroed, gaps between tensors included */
    else if (content->packed_bytes > 0 && !(content->packed = calloc(1, content->packed_bytes)))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the tensors");
    for (uint32_t i = 0; status == RDT_OK && i < packed->count; i++)
        if (layout_elems(packed, i) > 0)
            layout_gather(put->layout, i, put->inline_data, 0, layout_bytes(packed, i), content->packed + packed->offset[i]);
    free(packed);
    return status;
}

static enum rdt_status find_spans(struct object_content *content, const struct object_put *put, struct rdt_error *err)
{
    uint32_t n = put->n_regions + (put->inline_bytes > 0);
    const struct region_span *inline_span;
    enum rdt_status status;

    content->spans =
        n <= sizeof content->few_spans / sizeof content->few_spans[0] ? content->few_spans : calloc(n, sizeof *content->spans);
    if (!content->spans)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the tensors");
    status = region_spans(put->layout, content->spans, n, err);
    inline_span = &content->spans[put->n_regions];
    if (status == RDT_OK && put->inline_bytes > 0 && inline_span->hi > put->inline_bytes)
        status = rdt_error_set(err, RDT_INVALID, "tensor %u ends at byte %llu of the message's data, which has %zu",
                               inline_span->last, (unsigned long long)inline_span->hi, put->inline_bytes);
    return status;
}

/* Metadata and shapes that are too long to be in the object itself. */
static enum rdt_status separate(struct object_content *content, const struct object_put *put, struct rdt_error *err)
{
    if (put->metadata_bytes + content->shapes_bytes <= OBJECT_SEPARATE_BYTES)
        return RDT_OK;
    content->separate = malloc(put->metadata_bytes + content->shapes_bytes);
    if (!content->separate)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");
    work_touch(content->separate, put->metadata_bytes + content->shapes_bytes);
    if (put->metadata_bytes > 0)
        memcpy(content->separate, put->metadata, put->metadata_bytes);
    if (content->shapes_bytes > 0)
        shapes_pack(put->layout, content->separate + put->metadata_bytes);
    return RDT_OK;
}

enum rdt_status object_content_of_packed(struct object_content *content, const struct object_put *put, const uint8_t *packed,
                                         uint64_t bytes, struct rdt_error *err)
{
    *content = (struct object_content){.bytes = layout_total_bytes(put->layout),
                                       .packed = (uint8_t *)packed,
                                       .packed_bytes = bytes,
                                       .borrowed = true,
                                       .shapes_bytes = shapes_bytes(put->layout)};
    return separate(content, put, err);
}

enum rdt_status object_content_init(struct object_content *content, const struct object_put *put, struct rdt_error *err)
{
    enum rdt_status status;

    *content = (struct object_content){.bytes = layout_total_bytes(put->layout)};
    status = find_spans(content, put, err);
    if (status == RDT_OK && put->n_regions == 0) {
        content->shapes_bytes = shapes_bytes(put->layout);
        status = pack(content, put, err);
    }
    if (status == RDT_OK)
        status = separate(content, put, err);
    if (status != RDT_OK)
        object_content_fini(content);
    return status;
}

void object_content_fini(struct object_content *content)
{
    if (content->spans != content->few_spans)
        free(content->spans);
    if (!content->borrowed)
        free(content->packed);
    free(content->separate);
    *content = (struct object_content){0};
}
