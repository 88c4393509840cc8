/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h. A put asks the driver once about each allocation, not about each tensor: a state dict has thousands of tensors in
 * a few allocations. Nothing is remembered from one put to the next, because an allocator may put other memory at an
 * address. */
#include <stdlib.h>
#include <string.h>

#include "client/cuda/gpu.h"
#include "proto/grow.h"

/* The index of the first allocation that ends behind the address. */
static size_t first_behind(const struct places *places, uintptr_t at)
{
    size_t low = 0, high = places->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (places->all[middle].range.to > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

struct allocation *places_at(struct places *places, uintptr_t at)
{
    size_t i = first_behind(places, at);

    return i < places->n && places->all[i].range.from <= at ? &places->all[i] : NULL;
}

static enum rdt_status remember(struct places *places, const struct allocation *allocation, struct rdt_error *err)
{
    size_t before = first_behind(places, allocation->range.from);
    struct allocation *all = array_grow(places->all, places->n, &places->room, sizeof *all);

    if (!all)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to find where %zu allocations lie", places->n + 1);
    places->all = all;
    memmove(&places->all[before + 1], &places->all[before], (places->n - before) * sizeof *places->all);
    places->all[before] = *allocation;
    places->n++;
    return RDT_OK;
}

/* Finds the allocation of GPU memory, or the chunk, at the address. gpu NULL: there is none; range 0, 0: the driver does not
 * know its bounds. */
static enum rdt_status find(struct places *places, uintptr_t at, struct allocation *found_p, struct rdt_error *err)
{
    const struct allocation *there = places_at(places, at);
    CUdeviceptr base;
    size_t bytes;
    enum rdt_status status;

    if (there) {
        *found_p = *there;
        return RDT_OK;
    }
    *found_p = (struct allocation){0};
    status = gpu_find(places->driver, (void *)at, &found_p->gpu, err);
    if (status == RDT_OK && found_p->gpu)
        status = places_enter(places, found_p->gpu, err);
    if (status != RDT_OK || !found_p->gpu || places->driver->cuMemGetAddressRange(&base, &bytes, at) != CUDA_SUCCESS)
        return status;
    found_p->range = (struct address_range){(uintptr_t)base, (uintptr_t)base + bytes};
    return remember(places, found_p, err);
}

enum rdt_status places_find(struct places *places, struct address_range bytes, struct cuda_gpu **gpu_p,
                            struct address_range *chunks_p, struct rdt_error *err)
{
    struct allocation first, last;
    enum rdt_status status = find(places, bytes.from, &first, err);

    if (status != RDT_OK)
        return status;
    *gpu_p = first.gpu;
    if (first.range.to == 0)
        return RDT_OK;
    if (bytes.to <= first.range.to)
        last = first;
    else if (find(places, bytes.to - 1, &last, NULL) != RDT_OK || last.range.to == 0)
        return RDT_OK;
    *chunks_p = (struct address_range){first.range.from, last.range.to};
    return RDT_OK;
}

enum rdt_status places_enter(struct places *places, struct cuda_gpu *gpu, struct rdt_error *err)
{
    enum rdt_status status;

    if (places->gpu == gpu)
        return RDT_OK;
    places_leave(places);
    status = gpu_enter(places->driver, gpu, &places->entered, err);
    if (status == RDT_OK)
        places->gpu = gpu;
    return status;
}

void places_leave(struct places *places)
{
    if (places->gpu)
        gpu_leave(places->driver, &places->entered);
    places->gpu = NULL;
}

void places_fini(struct places *places)
{
    places_leave(places);
    free(places->all);
    places->all = NULL;
}
