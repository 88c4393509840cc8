/* SPDX-License-Identifier: Apache-2.0 */
/* See rdt_cuda.h: GPU memory that the daemon allocates for this process, or that this process makes known to it. */
#include <stdlib.h>

#include "client/cuda/gpu.h"

enum rdt_status gpu_memory_alloc(rdt_cuda *cuda, const char *device, size_t bytes, int64_t timeout_ns, bool written_whole,
                                 void **addr_p, struct rdt_error *err)
{
    struct rdt_alloc_options options = RDT_INIT(options);

    options.memory = "cuda";
    options.device = !device && cuda->driver->n_gpus == 1 ? cuda->driver->gpu[0].uuid : device;
    options.call_timeout_ns = timeout_ns;
    options.written_whole = written_whole;
    return rdt_alloc_with(cuda->conn, bytes, &options, addr_p, err);
}

enum rdt_status rdt_cuda_alloc(rdt_cuda *cuda, const char *device, size_t bytes, void **addr_p, struct rdt_error *err)
{
    enum rdt_status status = cuda_check(cuda, err);

    return status == RDT_OK ? gpu_memory_alloc(cuda, device, bytes, 0, false, addr_p, err) : status;
}

enum rdt_status rdt_cuda_offer(rdt_cuda *cuda, void *addr, size_t bytes, void **base_p, enum rdt_cuda_how *how_p,
                               struct rdt_error *err)
{
    struct cuda_gpu *gpu = NULL;
    enum rdt_cuda_how how;
    struct entered entered;
    size_t all;
    enum rdt_status status = cuda_check(cuda, err);

    if (status == RDT_OK && !base_p)
        status = rdt_error_set(err, RDT_INVALID, "base_p is NULL, so there is no place for the start of the memory");
    if (status == RDT_OK)
        status = gpu_find(cuda->driver, addr, &gpu, err);
    if (status != RDT_OK)
        return status;
    if (!gpu)
        return rdt_error_set(err, RDT_INVALID, "%p is not memory of a GPU", addr);
    status = gpu_enter(cuda->driver, gpu, &entered, err);
    if (status != RDT_OK)
        return status;
    status = offers_import(cuda, gpu, addr, bytes, 0, base_p, &all, &how, err);
    gpu_leave(cuda->driver, &entered);
    if (status == RDT_OK && how_p)
        *how_p = how;
    return status;
}

/* ---- many tensors ---- */

#define MOST_FDS 64u /* of exported chunks, which stay open until they are imported */

struct offering {
    rdt_cuda *cuda;
    struct places places;
    struct address_range *tensors, *chunks; /* [count] the bytes, and what to offer for them; 0, 0: nothing */
    struct cuda_gpu **gpus;                 /* [count] */
    void **bases;                           /* [n_bases] */
    size_t n_bases;
};

static enum rdt_status find_places(struct offering *offering, const struct rdt_tensor *tensors, size_t count,
                                   enum rdt_cuda_how *how, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (size_t i = 0; status == RDT_OK && i < count; i++) {
        struct address_range *tensor = &offering->tensors[i];
        bool known = false;
        size_t bytes;

        how[i] = RDT_CUDA_HOST;
        status = rdt_tensor_bytes(&tensors[i], &bytes, err);
        if (status != RDT_OK || bytes == 0)
            continue;
        *tensor = (struct address_range){(uintptr_t)tensors[i].data, (uintptr_t)tensors[i].data + bytes};
        status = places_find(&offering->places, *tensor, &offering->gpus[i], &offering->chunks[i], err);
        if (status != RDT_OK || !offering->gpus[i])
            continue;
        how[i] = RDT_CUDA_COPIED;
        if (rdt_known(offering->cuda->conn, tensors[i].data, bytes, &known, NULL, NULL, NULL) != RDT_OK)
            offering->chunks[i] = (struct address_range){0}; /* a part of it is known */
        else if (known)
            how[i] = RDT_CUDA_KNOWN;
        if (known)
            offering->chunks[i] = (struct address_range){0};
    }
    return status == RDT_OK ? offers_join_ranges(offering->chunks, count, err) : status;
}

/* What is exported, and not imported yet. */
struct batch {
    struct exported exported[OFFERS_MAX_IMPORTS];
    size_t tensor[OFFERS_MAX_IMPORTS]; /* for which it was exported */
    size_t n, n_fds;
};

static enum rdt_status import_batch(struct offering *offering, struct batch *batch, enum rdt_cuda_how *how,
                                    struct rdt_error *err)
{
    enum rdt_status statuses[OFFERS_MAX_IMPORTS], status;
    enum rdt_cuda_how as[OFFERS_MAX_IMPORTS];
    void *bases[OFFERS_MAX_IMPORTS];

    for (size_t i = 0; i < batch->n; i++) {
        as[i] = batch->exported[i].shared.kind == RDT_SHARED_VMM ? RDT_CUDA_CHUNKS : RDT_CUDA_HANDLE;
        bases[i] = batch->exported[i].base;
    }
    status = offers_import_many(offering->cuda, batch->exported, batch->n, statuses, err);
    for (size_t i = 0; i < batch->n; i++) {
        struct allocation *allocation = places_at(&offering->places, offering->chunks[batch->tensor[i]].from);

        allocation->offered = statuses[i] == RDT_OK;
        allocation->refused = statuses[i] != RDT_OK;
        if (statuses[i] != RDT_OK)
            continue;
        how[batch->tensor[i]] = as[i];
        offering->bases[offering->n_bases++] = bases[i];
    }
    batch->n = batch->n_fds = 0;
    return status;
}

/* Exports what the tensor lies in, unless that was done for another one. */
static enum rdt_status export_one(struct offering *offering, size_t i, struct batch *batch, struct rdt_error *err)
{
    struct address_range chunks = offering->chunks[i];
    struct allocation *allocation = places_at(&offering->places, chunks.from);
    struct exported *exported = &batch->exported[batch->n];
    bool known = false;
    enum rdt_status status;

    if (!allocation || allocation->refused || allocation->offered)
        return RDT_OK;
    /* Another call may have offered a part of it. */
    if (rdt_known(offering->cuda->conn, (void *)chunks.from, chunks.to - chunks.from, &known, NULL, NULL, NULL) != RDT_OK) {
        allocation->refused = true;
        return RDT_OK;
    }
    status = places_enter(&offering->places, offering->gpus[i], err);
    if (status == RDT_OK)
        status = offers_export(offering->cuda, offering->gpus[i], (void *)chunks.from, chunks.to - chunks.from, exported, err);
    allocation->offered = status == RDT_OK; /* until the daemon says no */
    allocation->refused = status == RDT_UNSUPPORTED;
    if (status == RDT_OK) {
        batch->n_fds += exported->shared.n_fds;
        batch->tensor[batch->n++] = i;
    }
    return status == RDT_UNSUPPORTED ? RDT_OK : status;
}

/* Makes known what find_places has found. */
static enum rdt_status offer_all(struct offering *offering, size_t count, enum rdt_cuda_how *how, struct rdt_error *err)
{
    struct batch *batch = calloc(1, sizeof *batch);
    enum rdt_status status = batch ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory to offer %zu tensors", count);

    for (size_t i = 0; status == RDT_OK && i < count; i++) {
        if (offering->chunks[i].to != 0)
            status = export_one(offering, i, batch, err);
        if (status == RDT_OK && (batch->n == OFFERS_MAX_IMPORTS || batch->n_fds >= MOST_FDS))
            status = import_batch(offering, batch, how, err);
    }
    if (status == RDT_OK && batch->n > 0)
        status = import_batch(offering, batch, how, err);
    for (size_t i = 0; status != RDT_OK && batch && i < batch->n; i++)
        exported_free(&batch->exported[i]);
    free(batch);
    for (size_t i = 0; status == RDT_OK && i < count; i++) {
        const struct allocation *allocation =
            offering->chunks[i].to != 0 ? places_at(&offering->places, offering->chunks[i].from) : NULL;

        if (allocation && allocation->offered && how[i] == RDT_CUDA_COPIED)
            how[i] = RDT_CUDA_KNOWN; /* by another tensor */
    }
    return status;
}

enum rdt_status rdt_cuda_offer_tensors(rdt_cuda *cuda, const struct rdt_tensor *tensors, size_t count, void **bases,
                                       size_t *n_bases_p, enum rdt_cuda_how *how, struct rdt_error *err)
{
    struct offering offering = {.cuda = cuda, .bases = bases};
    enum rdt_status status = cuda_check(cuda, err);

    if (status == RDT_OK && ((count > 0 && (!tensors || !bases || !how)) || !n_bases_p))
        status = rdt_error_set(err, RDT_INVALID, "tensors, bases, n_bases_p or how is NULL");
    if (status != RDT_OK)
        return status;
    offering.places.driver = cuda->driver;
    offering.tensors = calloc(count + 1, sizeof *offering.tensors);
    offering.chunks = calloc(count + 1, sizeof *offering.chunks);
    offering.gpus = calloc(count + 1, sizeof(struct cuda_gpu *));
    if (!offering.tensors || !offering.chunks || !offering.gpus)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to offer %zu tensors", count);
    if (status == RDT_OK)
        status = find_places(&offering, tensors, count, how, err);
    if (status == RDT_OK)
        status = offer_all(&offering, count, how, err);
    places_fini(&offering.places);
    for (size_t i = 0; status != RDT_OK && i < offering.n_bases; i++)
        (void)rdt_dealloc_soon(cuda->conn, bases[i], NULL);
    *n_bases_p = status == RDT_OK ? offering.n_bases : 0;
    free(offering.tensors);
    free(offering.chunks);
    free(offering.gpus);
    return status;
}

/* Copies to memory of that GPU, which is entered, also from one to which it has no peer access: the driver then goes through
 * host memory, which it does only if it is told both contexts. */
static CUresult copy_to(struct cuda_driver *driver, const struct cuda_gpu *gpu, void *to, const void *buffer, size_t bytes,
                        CUstream stream)
{
    struct cuda_gpu *from = NULL;
    CUdeviceptr to_ptr = (CUdeviceptr)(uintptr_t)to, from_ptr = (CUdeviceptr)(uintptr_t)buffer;

    if (gpu_find(driver, buffer, &from, NULL) != RDT_OK || !from || from == gpu || !from->context)
        return driver->cuMemcpyAsync(to_ptr, from_ptr, bytes, stream);
    return driver->cuMemcpyPeerAsync(to_ptr, gpu->context, from_ptr, from->context, bytes, stream);
}

enum rdt_status rdt_cuda_deliver(rdt_cuda *cuda, void *take_buffer, void *to, size_t bytes, void *stream, struct rdt_error *err)
{
    void **buffers = malloc(sizeof *buffers);
    struct completion *completion = NULL;
    struct cuda_gpu *gpu = NULL;
    struct entered entered;
    CUresult result;
    enum rdt_status status = buffers ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory to deliver a tensor");

    if (status == RDT_OK)
        status = cuda_check(cuda, err);
    if (status == RDT_OK)
        status = gpu_find(cuda->driver, to, &gpu, err);
    if (status == RDT_OK && !gpu)
        status = rdt_error_set(err, RDT_INVALID, "%p is not memory of a GPU", to);
    if (status == RDT_OK)
        status = gpu_enter(cuda->driver, gpu, &entered, err);
    if (status == RDT_OK && stream_is_captured(cuda->driver, stream)) { /* of the default stream the GPU's context decides */
        gpu_leave(cuda->driver, &entered);
        status =
            rdt_error_set(err, RDT_INVALID, "the stream is being captured into a CUDA graph: deliver before or after that");
    }
    if (status != RDT_OK) {
        free(buffers);
        return status;
    }
    status = completion_create(&((struct handle *)cuda)->streams, 1, &completion, err);
    if (status != RDT_OK) {
        gpu_leave(cuda->driver, &entered);
        free(buffers);
        return status;
    }
    buffers[0] = take_buffer;
    result = copy_to(cuda->driver, gpu, to, take_buffer, bytes, stream);
    if (result != CUDA_SUCCESS) {
        status = cuda_gpu_failed(cuda->driver, gpu, result, err, "copying a tensor to its target");
        completion_destroy(completion);
        free(buffers);
    } else if (completion_enqueue(completion, stream, NULL, buffers, 1, NULL) != RDT_OK) {
        (void)cuda->driver->cuStreamSynchronize(stream);
        (void)rdt_dealloc_soon(cuda->conn, take_buffer, NULL);
        free(buffers);
    }
    gpu_leave(cuda->driver, &entered);
    return status;
}
