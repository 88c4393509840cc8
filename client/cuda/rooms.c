/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h. All tensors of a put that must be copied from one GPU go into one room, there or in host memory: one request to
 * the daemon, one block of memory, and one wait. Each begins at a multiple of 512 bytes, as cudaMalloc's memory does.
 */
#include <stdlib.h>

#include "client/cuda/gpu.h"

#define ALIGN ((size_t)512)
#define POLL_NS 20000 /* between two queries whether a copy has ended */

static const char *copying(const struct rooms *rooms)
{
    return rooms->to_host ? "copying a tensor to host memory" : "copying a tensor that cannot be exported";
}

static size_t rounded(const struct copied *copied)
{
    return (copied->extent.to - copied->extent.from + ALIGN - 1) / ALIGN * ALIGN;
}

enum rdt_status rooms_init(struct rooms *rooms, struct handle *handle, size_t count, struct rdt_error *err)
{
    *rooms = (struct rooms){.handle = handle, .count = count};
    rooms->copied = calloc(count + 1, sizeof *rooms->copied);
    rooms->gpus = calloc(handle->cuda.driver->n_gpus + 1, sizeof(struct cuda_gpu *));
    rooms->buffers = calloc(handle->cuda.driver->n_gpus + 1, sizeof *rooms->buffers);
    return rooms->copied && rooms->gpus && rooms->buffers
               ? RDT_OK
               : rdt_error_set(err, RDT_NO_MEMORY, "no memory to put %zu tensors", count);
}

/* ---- the end ---- */

/* Has buffers released when the stream no longer copies into them. Takes the array on success only. */
static enum rdt_status hand_over(struct rooms *rooms, CUstream stream, void **take_buffers, size_t n_buffers)
{
    struct completion *completion;
    enum rdt_status status = completion_create(&rooms->handle->streams, 1, &completion, NULL);

    return status == RDT_OK ? completion_enqueue(completion, stream, NULL, take_buffers, n_buffers, NULL) : status;
}

/* Hands one buffer over, or waits for the stream. */
static void abandon_one(struct rooms *rooms, size_t i, CUstream stream)
{
    struct cuda_driver *driver = rooms->handle->cuda.driver;
    struct entered entered;
    void **buffers;

    if (!rooms->buffers[i] || gpu_enter(driver, rooms->gpus[i], &entered, NULL) != RDT_OK)
        return;
    buffers = malloc(sizeof *buffers);
    if (buffers)
        buffers[0] = rooms->buffers[i];
    if (buffers && hand_over(rooms, stream, buffers, 1) == RDT_OK) {
        rooms->buffers[i] = NULL;
    } else {
        free(buffers);
        (void)driver->cuStreamSynchronize(stream);
    }
    gpu_leave(driver, &entered);
}

void rooms_abandon(struct rooms *rooms, CUstream stream)
{
    if (rooms->n_buffers == 0)
        return;
    if (stream_is_default(stream)) {
        for (size_t i = 0; i < rooms->n_buffers; i++)
            abandon_one(rooms, i, stream);
        return;
    }
    if (hand_over(rooms, stream, rooms->buffers, rooms->n_buffers) != RDT_OK) {
        (void)rooms->handle->cuda.driver->cuStreamSynchronize(stream);
        return;
    }
    rooms_taken(rooms);
}

void rooms_taken(struct rooms *rooms)
{
    rooms->buffers = NULL;
    rooms->n_buffers = 0;
}

void rooms_fini(struct rooms *rooms)
{
    for (size_t i = 0; i < rooms->n_buffers; i++)
        if (rooms->buffers[i])
            buffer_release(rooms->handle->cuda.conn, rooms->buffers[i]);
    free(rooms->buffers);
    free(rooms->gpus);
    free(rooms->copied);
}

/* ---- waiting ---- */

/* Waits until the thread's stream has copied into the room. Afterwards a room into which it still copies is no longer the
 * put's. The GPU is entered. */
static enum rdt_status await_room(struct rooms *rooms, size_t i, int64_t deadline_ns, struct rdt_error *err)
{
    struct cuda_driver *driver = rooms->handle->cuda.driver;
    CUresult result = deadline_ns == CLOCK_NEVER ? driver->cuStreamSynchronize(CU_STREAM_PER_THREAD)
                                                 : driver->cuStreamQuery(CU_STREAM_PER_THREAD);
    void **buffers;

    while (result == CUDA_ERROR_NOT_READY && clock_now_ns() < deadline_ns) {
        struct timespec pause = clock_timespec(POLL_NS);
        (void)nanosleep(&pause, NULL);
        result = driver->cuStreamQuery(CU_STREAM_PER_THREAD);
    }
    if (result != CUDA_ERROR_NOT_READY)
        return result == CUDA_SUCCESS ? RDT_OK : cuda_gpu_failed(driver, rooms->gpus[i], result, err, copying(rooms));
    buffers = malloc(sizeof *buffers);
    if (buffers)
        buffers[0] = rooms->buffers[i];
    if (buffers && hand_over(rooms, CU_STREAM_PER_THREAD, buffers, 1) == RDT_OK) {
        rooms->buffers[i] = NULL;
    } else {
        free(buffers);
        (void)driver->cuStreamSynchronize(
            CU_STREAM_PER_THREAD); /* the put ends late, but no copy writes into memory of others */
    }
    return rdt_error_set(err, RDT_TIMED_OUT, "%s: %s had not ended when the deadline passed", rooms->gpus[i]->uuid,
                         copying(rooms));
}

/* Waits for every room, whatever happens to the others. */
static enum rdt_status await_rooms(struct rooms *rooms, int64_t deadline_ns, struct rdt_error *err)
{
    struct cuda_driver *driver = rooms->handle->cuda.driver;
    enum rdt_status first = RDT_OK;

    for (size_t i = 0; i < rooms->n_buffers; i++) {
        struct rdt_error *own = first == RDT_OK ? err : NULL;
        struct entered entered;
        enum rdt_status status = gpu_enter(driver, rooms->gpus[i], &entered, own);
        if (status == RDT_OK) {
            status = await_room(rooms, i, deadline_ns, own);
            gpu_leave(driver, &entered);
        }
        first = first == RDT_OK ? status : first;
    }
    return first;
}

enum rdt_status rooms_await(struct rooms *rooms, CUstream stream, int64_t deadline_ns, struct rdt_error *err)
{
    struct cuda_driver *driver = rooms->handle->cuda.driver;
    enum rdt_status status = RDT_OK;

    for (size_t i = 0; status == RDT_OK && i < rooms->n_buffers; i++) {
        struct entered entered;
        status = gpu_enter(driver, rooms->gpus[i], &entered, err);
        if (status != RDT_OK)
            break;
        status = stream_await(driver, rooms->gpus[i], stream, deadline_ns, err);
        gpu_leave(driver, &entered);
    }
    return status;
}

/* ---- copying ---- */

/* Tensors that lie one behind the other at both ends, which one copy takes. */
struct run {
    size_t first; /* tensor */
    uintptr_t from;
    size_t at, bytes; /* in the room */
};

static enum rdt_status copy_run(struct rooms *rooms, const struct run *run, CUdeviceptr room, CUstream stream,
                                struct rdt_error *err)
{
    struct cuda_driver *driver = rooms->handle->cuda.driver;
    CUresult result = run->bytes > 0 ? driver->cuMemcpyAsync(room + run->at, run->from, run->bytes, stream) : CUDA_SUCCESS;
    enum rdt_status status;

    if (result == CUDA_SUCCESS)
        return RDT_OK;
    status = cuda_gpu_failed(driver, rooms->copied[run->first].gpu, result, err, copying(rooms));
    rdt_error_prefix(err, "tensor %zu", run->first);
    return status;
}

static enum rdt_status copy_on(struct rooms *rooms, struct cuda_gpu *gpu, struct rdt_tensor *tensors, CUstream stream,
                               int64_t deadline_ns, struct rdt_error *err)
{
    size_t bytes = 0, at = 0;
    struct run run = {0};
    enum rdt_status status;
    CUdeviceptr room;
    void *buffer;

    for (size_t i = 0; i < rooms->count; i++)
        bytes += rooms->copied[i].gpu == gpu ? rounded(&rooms->copied[i]) : 0;
    if (rooms->to_host && bytes < rooms->buffer_bytes)
        bytes = rooms->buffer_bytes;
    status = rooms->to_host ? pinned_take(&rooms->handle->cuda, gpu, bytes, deadline_ns, &buffer, err)
                            : gpu_memory_alloc(&rooms->handle->cuda, gpu->uuid, bytes,
                                               gpu_call_ns(clock_remaining_ns(deadline_ns)), true, &buffer, err);
    if (status != RDT_OK)
        return status;
    room = (CUdeviceptr)(uintptr_t)buffer;
    rooms->gpus[rooms->n_buffers] = gpu;
    rooms->buffers[rooms->n_buffers++] = buffer;
    for (size_t i = 0; i < rooms->count && status == RDT_OK; i++) {
        const struct copied *copied = &rooms->copied[i];
        if (copied->gpu != gpu)
            continue;
        if (copied->extent.from != run.from + run.bytes || at != run.at + run.bytes) {
            status = copy_run(rooms, &run, room, stream, err);
            run = (struct run){i, copied->extent.from, at, 0};
        }
        run.bytes += copied->extent.to - copied->extent.from;
        tensors[i].data = (char *)buffer + at + ((uintptr_t)tensors[i].data - copied->extent.from);
        at += rounded(copied);
    }
    return status == RDT_OK ? copy_run(rooms, &run, room, stream, err) : status;
}

static bool has_room(const struct rooms *rooms, const struct cuda_gpu *gpu)
{
    for (size_t i = 0; i < rooms->n_buffers; i++)
        if (rooms->gpus[i] == gpu)
            return true;
    return false;
}

enum rdt_status rooms_copy(struct rooms *rooms, struct rdt_tensor *tensors, const CUstream *stream, int64_t deadline_ns,
                           struct rdt_error *err)
{
    struct cuda_driver *driver = rooms->handle->cuda.driver;
    enum rdt_status status = RDT_OK, waited;

    for (size_t i = 0; status == RDT_OK && i < rooms->count; i++) {
        struct cuda_gpu *gpu = rooms->copied[i].gpu;
        struct entered entered;
        if (!gpu || has_room(rooms, gpu))
            continue;
        status = gpu_enter(driver, gpu, &entered, err);
        if (status != RDT_OK)
            break;
        status = copy_on(rooms, gpu, tensors, stream ? *stream : CU_STREAM_PER_THREAD, deadline_ns, err);
        gpu_leave(driver, &entered);
    }
    if (stream)
        return status;
    waited = await_rooms(rooms, deadline_ns, status == RDT_OK ? err : NULL);
    return status == RDT_OK ? waited : status;
}
