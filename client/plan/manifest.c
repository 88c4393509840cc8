/* SPDX-License-Identifier: Apache-2.0 */
#include "client/plan/manifest.h"

#include <stdlib.h>
#include <string.h>

#include "client/session/clock.h"
#include "proto/boxes.h"
#include "proto/wire_limits.h"
#include "proto/wire_ref.h"

#define MAGIC "rdtshrd1"
#define MAGIC_BYTES 8u

static enum rdt_status no_memory(struct rdt_error *err)
{
    return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the manifest of a version");
}

static enum rdt_status pack_shape(struct manifest_part *part, const Rdt__Pb__ManifestPart *message, struct rdt_error *err)
{
    size_t tensors = protobuf_c_message_get_packed_size(&message->tensors->base);

    part->shape_bytes = tensors + protobuf_c_message_get_packed_size(&message->boxes->base);
    part->shape = malloc(part->shape_bytes + 1);
    if (!part->shape)
        return no_memory(err);
    protobuf_c_message_pack(&message->tensors->base, part->shape);
    protobuf_c_message_pack(&message->boxes->base, part->shape + tensors);
    return RDT_OK;
}

static enum rdt_status read_part(struct manifest_part *part, const Rdt__Pb__ManifestPart *message, struct rdt_error *err)
{
    size_t tensors = 0;
    uint32_t at = 0;
    enum rdt_status status;

    if (!message->ref || !message->tensors || !message->boxes)
        return rdt_error_set(err, RDT_INVALID, "a part of the manifest is incomplete");
    tensors = protobuf_c_message_get_packed_size(&message->tensors->base);
    status = wire_ref_to(message->ref, &part->ref, err);
    if (status == RDT_OK)
        status = layout_from_wire(message->tensors, &part->layout, err);
    if (status == RDT_OK)
        status = pack_shape(part, message, err);
    if (status == RDT_OK) /* the manifest may be anybody's metadata */
        status = boxes_check(part->shape + tensors, part->shape_bytes - tensors, part->layout, err);
    if (status != RDT_OK)
        return status;
    part->bytes = message->bytes;
    part->boxes = message->boxes;
    part->first_box_dim = malloc((part->layout->count + 1) * sizeof *part->first_box_dim);
    if (!part->first_box_dim)
        return no_memory(err);
    for (uint32_t i = 0; i < part->layout->count; i++) {
        part->first_box_dim[i] = at;
        if (part->boxes->key[i][0] == '\0')
            return rdt_error_set(err, RDT_INVALID, "a tensor of the manifest has no key");
        at += part->layout->ndim[i];
    }
    return RDT_OK;
}

static enum rdt_status read_object(rdt_manifest *manifest, const rdt_object *object, const struct rdt_ref *name,
                                   struct rdt_error *err)
{
    size_t bytes;
    const uint8_t *metadata = rdt_object_metadata(object, &bytes);
    enum rdt_status status = RDT_OK;

    if (bytes < MAGIC_BYTES || memcmp(metadata, MAGIC, MAGIC_BYTES) != 0)
        return rdt_error_set(err, RDT_INVALID, "\"%s\" is published as one object, not in parts: fetch it by rdt_fetch",
                             name->id);
    manifest->message = rdt__pb__manifest__unpack(NULL, bytes - MAGIC_BYTES, metadata + MAGIC_BYTES);
    if (!manifest->message)
        return rdt_error_set(err, RDT_INVALID, "the manifest of \"%s\" cannot be read", name->id);
    manifest->parts = calloc(manifest->message->n_parts + 1, sizeof *manifest->parts);
    if (!manifest->parts)
        return no_memory(err);
    for (size_t i = 0; i < manifest->message->n_parts && status == RDT_OK; i++)
        status = read_part(&manifest->parts[i], manifest->message->parts[i], err);
    return status;
}

/* What is left of a time-out, as rdt.h has it. */
static int64_t left_ns(int64_t deadline_ns)
{
    int64_t left = clock_remaining_ns(deadline_ns);

    return left < 0 ? RDT_FOREVER : left == 0 ? 1 : left;
}

enum rdt_status rdt_manifest_fetch(rdt *conn, const struct rdt_ref *name, int64_t timeout_ns, rdt_manifest **manifest_p,
                                   struct rdt_error *err)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    int64_t deadline_ns = clock_deadline_ns(timeout_ns == 0 ? CLOCK_NO_WAIT_NS : timeout_ns);
    rdt_manifest *manifest = calloc(1, sizeof *manifest);
    rdt_object *object = NULL;
    struct rdt_ref ref;
    enum rdt_status status = manifest ? RDT_OK : no_memory(err);

    if (status == RDT_OK && (!name || !name->is_name))
        status = rdt_error_set(err, RDT_INVALID, "a manifest is read by a name: make its ref with rdt_ref_from_name");
    if (status != RDT_OK) {
        free(manifest);
        return status;
    }
    manifest->conn = conn;
    status = rdt_hold(conn, name, timeout_ns, &manifest->hold, err);
    if (status == RDT_OK)
        status = rdt_hold_ref(manifest->hold, &ref, err);
    if (status == RDT_OK) { /* it stays as long as the hold, and with it all its parts */
        if (ref.address[0] == '\0')
            memcpy(ref.address, name->address, sizeof ref.address);
        options.timeout_ns = left_ns(deadline_ns);
        status = rdt_fetch(conn, &ref, 1, &options, &object, err);
    }
    if (status == RDT_OK)
        status = read_object(manifest, object, name, err);
    rdt_release(object);
    if (status == RDT_OK)
        *manifest_p = manifest;
    else
        rdt_manifest_release(manifest);
    return status;
}

void rdt_manifest_release(rdt_manifest *manifest)
{
    if (!manifest)
        return;
    rdt_request_destroy(manifest->hold);
    for (size_t i = 0; manifest->parts && i < manifest->message->n_parts; i++) {
        free(manifest->parts[i].layout);
        free(manifest->parts[i].first_box_dim);
        free(manifest->parts[i].shape);
    }
    free(manifest->parts);
    if (manifest->message)
        rdt__pb__manifest__free_unpacked(manifest->message, NULL);
    free(manifest);
}

void rdt_manifest_info(const rdt_manifest *manifest, struct rdt_manifest_info *info_p)
{
    *info_p = (struct rdt_manifest_info){manifest->message->version, manifest->message->step, manifest->message->n_parts};
}

enum rdt_status rdt_manifest_part(const rdt_manifest *manifest, size_t i, struct rdt_ref *ref_p, size_t *tensors_p,
                                  struct rdt_error *err)
{
    if (!manifest || i >= manifest->message->n_parts)
        return rdt_error_set(err, RDT_INVALID, "the version has no part %zu", i);
    if (ref_p)
        *ref_p = manifest->parts[i].ref;
    if (tensors_p)
        *tensors_p = manifest->parts[i].layout->count;
    return RDT_OK;
}

enum rdt_status rdt_manifest_box(const rdt_manifest *manifest, size_t part, size_t tensor, struct rdt_box *box_p,
                                 struct rdt_error *err)
{
    const struct manifest_part *of;
    const struct layout *layout;
    size_t tensors = 0;
    enum rdt_status status = rdt_manifest_part(manifest, part, NULL, &tensors, err);

    if (status == RDT_OK && tensor >= tensors)
        status = rdt_error_set(err, RDT_INVALID, "part %zu of the version has no tensor %zu", part, tensor);
    if (status != RDT_OK)
        return status;
    of = &manifest->parts[part];
    layout = of->layout;
    *box_p = (struct rdt_box){.key = of->boxes->key[tensor],
                              .dtype = (enum rdt_dtype)layout->dtype[tensor],
                              .ndim = layout->ndim[tensor],
                              .global_shape = (const int64_t *)of->boxes->global_shape + of->first_box_dim[tensor],
                              .start = (const int64_t *)of->boxes->start + of->first_box_dim[tensor],
                              .count = (const int64_t *)layout->shape + layout->first_dim[tensor]};
    return RDT_OK;
}

struct source *manifest_sources(const rdt_manifest *manifest, size_t *n_p)
{
    struct source *sources;
    size_t n = 0;

    for (size_t i = 0; i < manifest->message->n_parts; i++)
        n += manifest->parts[i].layout->count;
    sources = malloc((n + 1) * sizeof *sources);
    n = 0;
    for (size_t i = 0; sources && i < manifest->message->n_parts; i++) {
        const struct manifest_part *part = &manifest->parts[i];
        for (uint32_t t = 0; t < part->layout->count; t++)
            sources[n++] = (struct source){.key = part->boxes->key[t],
                                           .part = (uint32_t)i,
                                           .tensor = t,
                                           .dtype = (enum rdt_dtype)part->layout->dtype[t],
                                           .ndim = part->layout->ndim[t],
                                           .global_shape = part->boxes->global_shape + part->first_box_dim[t],
                                           .start = part->boxes->start + part->first_box_dim[t],
                                           .count = part->layout->shape + part->layout->first_dim[t]};
    }
    *n_p = n;
    return sources;
}

bool manifest_same_layout(const rdt_manifest *a, const rdt_manifest *b)
{
    if (a->message->n_parts != b->message->n_parts)
        return false;
    for (size_t i = 0; i < a->message->n_parts; i++)
        if (a->parts[i].shape_bytes != b->parts[i].shape_bytes ||
            memcmp(a->parts[i].shape, b->parts[i].shape, a->parts[i].shape_bytes) != 0)
            return false;
    return true;
}
