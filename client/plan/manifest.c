/* SPDX-License-Identifier: Apache-2.0 */
#include "client/plan/manifest.h"

#include <stdlib.h>
#include <string.h>

#include "client/options.h"
#include "client/request.h"
#include "client/session/clock.h"
#include "proto/wire_ref.h"

static enum rdt_status no_memory(struct rdt_error *err)
{
    return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the manifest of a version");
}

/* Whether the tensor is as the daemon makes it. Anybody may publish another one: its bytes need not be one after the other, and
 * they may lie on a device. */
static bool is_message(const rdt_object *object, const struct rdt_tensor *tensor)
{
    const char *memory = "";

    return tensor->dtype == RDT_U8 && tensor->ndim == 1 && tensor->shape[0] <= (int64_t)MANIFEST_MAX_TENSOR &&
           (tensor->shape[0] == 0 || (tensor->data && tensor->strides[0] == 1)) &&
           rdt_object_place(object, 0, &memory, NULL, NULL) == RDT_OK && strcmp(memory, "host") == 0;
}

/* The message of a manifest with a tensor: that, and behind it the metadata. */
static enum rdt_status read_large(rdt_manifest *manifest, const rdt_object *object, const uint8_t *fields, size_t bytes,
                                  struct rdt_error *err)
{
    struct rdt_tensor tensor = {0};
    enum rdt_status status = rdt_object_tensor(object, 0, &tensor, err);
    uint8_t *message;
    size_t n;

    if (status != RDT_OK)
        return status;
    if (!is_message(object, &tensor))
        return rdt_error_set(err, RDT_INVALID, "its tensor is not one of bytes in host memory");
    n = (size_t)tensor.shape[0];
    message = malloc(n + bytes + 1);
    if (!message)
        return no_memory(err);
    if (n > 0)
        memcpy(message, tensor.data, n);
    memcpy(message + n, fields, bytes);
    status = manifest_unpack(&manifest->arena, message, n + bytes, &manifest->message, err);
    free(message);
    return status;
}

static enum rdt_status read_object(rdt_manifest *manifest, const rdt_object *object, const struct rdt_ref *name,
                                   struct rdt_error *err)
{
    size_t bytes;
    const uint8_t *metadata = rdt_object_metadata(object, &bytes);
    enum rdt_status status = RDT_OK;

    if (!manifest_has_magic(metadata, bytes))
        return rdt_error_set(err, RDT_INVALID, "\"%s\" is published as one object, not in parts: fetch it by rdt_fetch",
                             name->id);
    metadata += MANIFEST_MAGIC_BYTES;
    bytes -= MANIFEST_MAGIC_BYTES;
    if (memcmp(metadata - MANIFEST_MAGIC_BYTES, MANIFEST_LARGE, MANIFEST_MAGIC_BYTES) == 0)
        status = read_large(manifest, object, metadata, bytes, err);
    else if (memcmp(metadata - MANIFEST_MAGIC_BYTES, MANIFEST_MAGIC, MANIFEST_MAGIC_BYTES) == 0)
        status = manifest_unpack(&manifest->arena, metadata, bytes, &manifest->message, err);
    else
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "the manifest of \"%s\" has the format of another release: use the librdt of the daemon's release",
                             name->id);
    if (status != RDT_OK)
        rdt_error_prefix(err, "the manifest of \"%s\" cannot be read", name->id);
    if (status == RDT_OK)
        status = manifest_open(manifest->message, &manifest->checked, err);
    if (status != RDT_OK)
        return status;
    manifest->parts = calloc(manifest->message->n_parts + 1, sizeof *manifest->parts);
    if (!manifest->parts)
        return no_memory(err);
    for (size_t i = 0; i < manifest->message->n_parts && status == RDT_OK; i++) {
        struct manifest_part *part = &manifest->parts[i];

        part->layout = manifest_part(&manifest->checked, i, &part->boxes);
        part->bytes = manifest->message->parts[i]->bytes;
        status = wire_ref_to(manifest->message->parts[i]->ref, &part->ref, err);
    }
    return status;
}

enum rdt_status manifest_read(rdt *conn, const rdt_object *object, const struct rdt_ref *name, rdt_manifest **manifest_p,
                              struct rdt_error *err)
{
    rdt_manifest *manifest = calloc(1, sizeof *manifest);
    enum rdt_status status = manifest ? read_object(manifest, object, name, err) : no_memory(err);

    if (status == RDT_OK) {
        manifest->conn = conn;
        *manifest_p = manifest;
    } else {
        rdt_manifest_release(manifest);
    }
    return status;
}

bool rdt_object_is_manifest(const rdt_object *object)
{
    size_t bytes;
    const void *metadata = rdt_object_metadata(object, &bytes);

    return rdt_object_count(object) <= 1 && manifest_has_magic(metadata, bytes);
}

/* The rest of a time-out, in the form of rdt.h. */
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
    enum rdt_status status = manifest ? options_check_out(manifest_p, "manifest_p", err) : no_memory(err);

    if (status == RDT_OK && !name)
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
    if (status == RDT_OK && manifest->hold->version > 0) /* it may be published under another name than its first, too */
        manifest->message->version = manifest->hold->version;
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
    manifest_close(&manifest->checked);
    free(manifest->parts);
    arena_fini(&manifest->arena);
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

    if (status == RDT_OK)
        status = options_check_out(box_p, "box_p", err);
    if (status == RDT_OK && tensor >= tensors)
        status = rdt_error_set(err, RDT_INVALID, "part %zu of the version has no tensor %zu", part, tensor);
    if (status != RDT_OK)
        return status;
    of = &manifest->parts[part];
    layout = of->layout;
    *box_p = (struct rdt_box){.key = of->boxes.key[tensor],
                              .dtype = (enum rdt_dtype)layout->dtype[tensor],
                              .ndim = layout->ndim[tensor],
                              .global_shape = (const int64_t *)of->boxes.global_shape + layout->first_dim[tensor],
                              .start = (const int64_t *)of->boxes.start + layout->first_dim[tensor],
                              .count = (const int64_t *)layout->shape + layout->first_dim[tensor]};
    return RDT_OK;
}

struct source *manifest_sources(const rdt_manifest *manifest, size_t *n_p)
{
    const Rdt__Pb__Manifest *message = manifest->message;
    size_t *next = calloc(message->n_key + 1, sizeof *next); /* of each key, behind a 0: where its next source goes */
    struct source *sources = NULL;

    *n_p = 0;
    for (size_t i = 0; next && i < message->n_parts; i++) {
        const Rdt__Pb__ManifestLayout *layout = message->layouts[message->parts[i]->layout];
        for (size_t t = 0; t < layout->n_key; t++)
            next[layout->key[t] + 1]++;
        *n_p += layout->n_key;
    }
    for (size_t k = 0; next && k < message->n_key; k++)
        next[k + 1] += next[k];
    if (next)
        sources = malloc((*n_p + 1) * sizeof *sources);
    for (size_t i = 0; sources && i < message->n_parts; i++) {
        const Rdt__Pb__ManifestLayout *layout = message->layouts[message->parts[i]->layout];
        const struct manifest_part *part = &manifest->parts[i];
        for (uint32_t t = 0; t < part->layout->count; t++)
            sources[next[layout->key[t]]++] =
                (struct source){.key = part->boxes.key[t],
                                .part = (uint32_t)i,
                                .tensor = t,
                                .dtype = (enum rdt_dtype)part->layout->dtype[t],
                                .ndim = part->layout->ndim[t],
                                .global_shape = part->boxes.global_shape + part->layout->first_dim[t],
                                .start = part->boxes.start + part->layout->first_dim[t],
                                .count = part->layout->shape + part->layout->first_dim[t]};
    }
    free(next);
    return sources;
}

static bool same(const void *a, size_t n_a, const void *b, size_t n_b, size_t item_bytes)
{
    return n_a == n_b && (n_a == 0 || memcmp(a, b, n_a * item_bytes) == 0);
}

static bool same_tensors(const struct manifest_layout *a, const struct manifest_layout *b)
{
    const struct layout *one = a->layout, *other = b->layout;

    if (!same(one->dtype, one->count, other->dtype, other->count, sizeof *one->dtype) ||
        !same(one->ndim, one->count, other->ndim, other->count, sizeof *one->ndim) ||
        !same(one->shape, one->n_dims, other->shape, other->n_dims, sizeof *one->shape) ||
        !same(a->global_shape, one->n_dims, b->global_shape, other->n_dims, sizeof *a->global_shape))
        return false;
    for (uint32_t t = 0; t < one->count; t++)
        if (strcmp(a->key[t], b->key[t]) != 0)
            return false;
    return true;
}

bool manifest_same_layout(const rdt_manifest *a, const rdt_manifest *b)
{
    if (a->message->n_parts != b->message->n_parts || a->checked.n_layouts != b->checked.n_layouts)
        return false;
    for (size_t i = 0; i < a->checked.n_layouts; i++)
        if (!same_tensors(&a->checked.layouts[i], &b->checked.layouts[i]))
            return false;
    for (size_t i = 0; i < a->message->n_parts; i++) {
        const Rdt__Pb__ManifestPart *one = a->message->parts[i], *other = b->message->parts[i];
        size_t n_dims = a->checked.layouts[one->layout].layout->n_dims;

        if (one->layout != other->layout ||
            !same(a->checked.start[i], n_dims, b->checked.start[i], n_dims, sizeof **a->checked.start))
            return false;
    }
    return true;
}
