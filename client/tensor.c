/* SPDX-License-Identifier: Apache-2.0 */
/* Checks what the caller says about a tensor, before anything is computed from it. */
#include "tensor.h"

#include <stdlib.h>

#include "proto/wire_limits.h"

/* *bytes_p receives the bytes of all elements. */
static enum rdt_status check(const struct rdt_tensor *tensor, uint64_t *bytes_p, struct rdt_error *err)
{
    uint64_t bytes = layout_item_bytes((uint32_t)tensor->dtype);
    bool empty = false;

    if (bytes == 0)
        return rdt_error_set(err, RDT_INVALID, "its dtype %d is unknown", (int)tensor->dtype);
    if (tensor->ndim > RDT_MAX_NDIM)
        return rdt_error_set(err, RDT_INVALID, "it has %d dimensions, and the limit is %u", (int)tensor->ndim, RDT_MAX_NDIM);
    if (tensor->ndim > 0 && !tensor->shape)
        return rdt_error_set(err, RDT_INVALID, "it has %u dimensions but no shape", tensor->ndim);
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        int64_t size = tensor->shape[d];

        if (size < 0)
            return rdt_error_set(err, RDT_INVALID, "dimension %u has the size %lld", d, (long long)size);
        if (size == 0)
            empty = true;
        /* The product of the other sizes must not overflow even if one dimension is empty: slicing and packing compute it. */
        else if (__builtin_mul_overflow(bytes, (uint64_t)size, &bytes) || bytes > INT64_MAX)
            return rdt_error_set(err, RDT_INVALID, "its size in bytes overflows");
    }
    *bytes_p = empty ? 0 : bytes;
    return RDT_OK;
}

enum rdt_status rdt_tensor_bytes(const struct rdt_tensor *tensor, size_t *bytes_p, struct rdt_error *err)
{
    uint64_t bytes;
    enum rdt_status status;

    if (!tensor || !bytes_p)
        return rdt_error_set(err, RDT_INVALID, "tensor or bytes_p is NULL");
    status = check(tensor, &bytes, err);
    if (status == RDT_OK)
        *bytes_p = bytes;
    else
        rdt_error_prefix(err, "the tensor");
    return status;
}

static void fill(struct layout *layout, uint32_t i, uint32_t first_dim, const struct rdt_tensor *tensor)
{
    layout->dtype[i] = tensor->dtype;
    layout->ndim[i] = tensor->ndim;
    layout->first_dim[i] = first_dim;
    layout->region[i] = 0;
    layout->offset[i] = (uintptr_t)tensor->data;
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        layout->shape[first_dim + d] = (uint64_t)tensor->shape[d];
        if (tensor->strides)
            layout->strides[first_dim + d] = tensor->strides[d];
    }
    if (!tensor->strides)
        layout_set_row_major(layout, i);
}

static enum rdt_status check_all(const struct rdt_tensor *tensors, size_t count, uint32_t *n_dims_p, struct rdt_error *err)
{
    uint32_t n_dims = 0;
    uint64_t total = 0;

    if (count > RDT_MAX_TENSORS)
        return rdt_error_set(err, RDT_LIMIT, "there are %zu tensors, but an object has at most %u", count, RDT_MAX_TENSORS);
    if (count > 0 && !tensors)
        return rdt_error_set(err, RDT_INVALID, "tensors is NULL, and count is %zu", count);
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes;
        enum rdt_status status = check(&tensors[i], &bytes, err);

        if (status == RDT_OK && bytes > 0 && !tensors[i].data)
            status = rdt_error_set(err, RDT_INVALID, "it has %llu bytes but no data", (unsigned long long)bytes);
        if (status == RDT_OK && (total += bytes) > INT64_MAX)
            status = rdt_error_set(err, RDT_INVALID, "the tensors up to this one have 2^63 bytes or more");
        if (status != RDT_OK) {
            rdt_error_prefix(err, "tensor %zu", i);
            return status;
        }
        n_dims += tensors[i].ndim;
    }
    *n_dims_p = n_dims;
    return RDT_OK;
}

enum rdt_status tensor_layout(const struct rdt_tensor *tensors, size_t count, struct layout **layout_p, struct rdt_error *err)
{
    struct layout *layout;
    uint32_t n_dims = 0, first_dim = 0;
    enum rdt_status status = check_all(tensors, count, &n_dims, err);

    if (status != RDT_OK)
        return status;
    layout = layout_create((uint32_t)count, n_dims);
    if (!layout)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the layout of %zu tensors", count);
    for (uint32_t i = 0; i < count; i++) {
        fill(layout, i, first_dim, &tensors[i]);
        first_dim += tensors[i].ndim;
    }
    *layout_p = layout;
    return RDT_OK;
}

enum rdt_status tensor_sum(const struct layout *layout, void *const *data, const void *metadata, size_t metadata_bytes,
                           uint64_t *sum_p, struct rdt_error *err)
{
    struct layout *own = layout_dup(layout);
    const uint8_t **bases = calloc(layout->count + 1u, sizeof *bases);
    struct tensor_sums sums = {0};
    bool fits = own && bases;

    for (uint32_t i = 0; fits && i < own->count; i++) {
        own->region[i] = i;
        own->offset[i] = 0;
        bases[i] = data[i];
    }
    fits = fits && tensor_sums_init(&sums, own, bases);
    if (fits) {
        (void)tensor_sums_step(&sums, UINT64_MAX);
        *sum_p = tensor_sum_object(layout, sums.sums, metadata, metadata_bytes);
    }
    tensor_sums_fini(&sums);
    free(bases);
    free(own);
    return fits ? RDT_OK
                : rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the checksums of %u tensors", layout->count);
}
