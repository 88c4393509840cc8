/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h: the work that librdt does on GPUs, in streams of this library, which no work of the program holds up.
 *
 * Writing (struct rdt_writer). The bytes go through a ring of pinned slots, which stays for the next writing: while the GPU
 * copies from one slot, librdt fills the next.
 *
 *     librdt    fill 0 | fill 1 | fill 2 | fill 3 | wait for copy 0, fill 0 | ...
 *     stream            copy 0 | copy 1 | copy 2 | ...
 *
 * Copies within a GPU (struct rdt_copier). All those of one GPU are in one stream, each with an event behind it, so they end in
 * order, and a thousand of them take no more streams than one.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "client/cuda/gpu.h"

#define SLOT_BYTES ((size_t)4 << 20)
#define SLOTS 4u
#define ALIGN ((size_t)64)

struct write_ring { /* of one writing at a time */
    struct write_ring *next;
    struct cuda_driver *driver;
    struct cuda_gpu *gpu;
    CUstream stream;
    CUevent copied[SLOTS]; /* recorded in the stream when the slot was full */
    uint8_t *memory;       /* [SLOTS * SLOT_BYTES] */
    bool pinned;           /* else each copy waits for the one before, and all is still right */
    unsigned slot;
    size_t used; /* bytes of the slot */
};

struct copies { /* of one user at a time */
    struct cuda_driver *driver;
    struct cuda_gpu *gpu;
    CUstream stream; /* the lane's */
    CUevent copied;
    bool recorded; /* behind the last copy */
    bool failed;
};

struct lane { /* the stream for all copies within a GPU */
    CUstream stream;
    unsigned users;
    bool failed; /* with the GPU's context */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects all below, and is held while streams of lanes are made */
static struct write_ring *idle;
static struct lane lanes[CUDA_MAX_GPUS]; /* by the driver's number of the GPU */
static unsigned connections;             /* with GPU memory. Work of one may end after rdt_cuda_close */

static void ring_free(struct write_ring *ring)
{
    struct cuda_driver *driver = ring->driver;

    for (unsigned i = 0; i < SLOTS; i++)
        if (ring->copied[i])
            (void)driver->cuEventDestroy(ring->copied[i]);
    if (ring->stream)
        (void)driver->cuStreamDestroy(ring->stream);
    if (ring->pinned)
        (void)driver->cuMemHostUnregister(ring->memory);
    if (ring->memory)
        (void)munmap(ring->memory, SLOTS * SLOT_BYTES);
    free(ring);
}

/* The GPU is entered. */
static enum rdt_status ring_new(struct cuda_driver *driver, struct cuda_gpu *gpu, struct write_ring **ring_p,
                                struct rdt_error *err)
{
    struct write_ring *ring = calloc(1, sizeof *ring);
    void *memory = mmap(NULL, SLOTS * SLOT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUresult result = CUDA_SUCCESS;

    if (!ring || memory == MAP_FAILED) {
        if (memory != MAP_FAILED)
            (void)munmap(memory, SLOTS * SLOT_BYTES);
        free(ring);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to write memory of a GPU");
    }
    (void)madvise(memory, SLOTS * SLOT_BYTES, MADV_DONTFORK); /* the GPU copies from these very pages */
    *ring = (struct write_ring){.driver = driver, .gpu = gpu, .memory = memory};
    ring->pinned = driver->cuMemHostRegister(memory, SLOTS * SLOT_BYTES, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
    result = driver->cuStreamCreate(&ring->stream, CU_STREAM_NON_BLOCKING);
    for (unsigned i = 0; result == CUDA_SUCCESS && i < SLOTS; i++)
        result = driver->cuEventCreate(&ring->copied[i], CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) {
        ring_free(ring);
        return cuda_gpu_failed(driver, gpu, result, err, "creating a stream to write memory of a GPU");
    }
    *ring_p = ring;
    return RDT_OK;
}

/* With the mutex: ends the stream of a lane without users. */
static void lane_close(struct cuda_driver *driver, unsigned i)
{
    struct entered entered;

    if (lanes[i].users > 0 || !lanes[i].stream)
        return;
    if (gpu_enter(driver, &driver->gpu[i], &entered, NULL) == RDT_OK) { /* otherwise the stream ended with its context */
        (void)driver->cuStreamDestroy(lanes[i].stream);
        gpu_leave(driver, &entered);
    }
    lanes[i] = (struct lane){0};
}

void work_begin(void)
{
    (void)pthread_mutex_lock(&mutex);
    connections++;
    (void)pthread_mutex_unlock(&mutex);
}

void work_forget(struct cuda_driver *driver)
{
    struct entered entered;
    struct write_ring *rings;

    (void)pthread_mutex_lock(&mutex);
    connections--;
    rings = idle;
    idle = NULL;
    for (unsigned i = 0; i < driver->n_gpus; i++)
        lane_close(driver, i);
    (void)pthread_mutex_unlock(&mutex);
    for (struct write_ring *ring = rings, *next; ring; ring = next) {
        next = ring->next;
        if (gpu_enter(driver, ring->gpu, &entered, NULL) != RDT_OK)
            continue; /* the driver has ended */
        ring_free(ring);
        gpu_leave(driver, &entered);
    }
}

void work_after_fork(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    idle = NULL;
    memset(lanes, 0, sizeof lanes);
    connections = 0;
}

/* ---- writing ---- */

/* Whether the processor can read the memory, as it cannot that of a GPU. Asks the kernel, not the driver. */
static bool is_host(const void *addr)
{
    char byte;
    struct iovec to = {&byte, 1}, from = {(void *)(uintptr_t)addr, 1};

    return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

/* The driver answers no question of a process one of whose contexts has failed. Host memory needs no GPU. */
static enum rdt_status find(void *arg, const void *addr, const char **device_p, struct rdt_error *err)
{
    struct cuda_driver *driver;
    struct cuda_gpu *gpu = NULL;
    enum rdt_status status = cuda_driver_open(&driver, err);

    (void)arg;
    if (status == RDT_OK)
        status = gpu_find(driver, addr, &gpu, err);
    if (status == RDT_SYSTEM && is_host(addr))
        status = RDT_OK;
    if (status == RDT_OK)
        *device_p = gpu ? gpu->uuid : NULL;
    return status;
}

static enum rdt_status begin_writing(void *arg, const char *device, void **writing_p, struct rdt_error *err)
{
    struct cuda_driver *driver;
    struct cuda_gpu *gpu = NULL;
    struct entered entered;
    struct write_ring *ring = NULL;
    enum rdt_status status = cuda_driver_open(&driver, err);

    (void)arg;
    if (status == RDT_OK)
        status = cuda_gpu_find(driver, device, &gpu, err);
    if (status != RDT_OK)
        return status;
    (void)pthread_mutex_lock(&mutex);
    for (struct write_ring **at = &idle; *at && !ring;) {
        if ((*at)->gpu != gpu) {
            at = &(*at)->next;
            continue;
        }
        ring = *at;
        *at = ring->next;
    }
    (void)pthread_mutex_unlock(&mutex);
    if (!ring) {
        status = gpu_enter(driver, gpu, &entered, err);
        if (status != RDT_OK)
            return status;
        status = ring_new(driver, gpu, &ring, err);
        gpu_leave(driver, &entered);
    }
    if (status == RDT_OK)
        *writing_p = ring;
    return status;
}

static enum rdt_status await(void *writing, void *const *streams, size_t n, int64_t timeout_ns, struct rdt_error *err)
{
    struct write_ring *ring = writing;
    int64_t deadline_ns = clock_deadline_ns(timeout_ns);
    struct entered entered;
    enum rdt_status status = gpu_enter(ring->driver, ring->gpu, &entered, err);

    if (status != RDT_OK)
        return status;
    for (size_t i = 0; i < n && status == RDT_OK; i++)
        status = stream_await(ring->driver, ring->gpu, streams[i], deadline_ns, err);
    gpu_leave(ring->driver, &entered);
    return status;
}

/* Ends the slot, and begins the next one when it is empty. The GPU is entered. */
static CUresult next_slot(struct write_ring *ring)
{
    CUresult result = ring->driver->cuEventRecord(ring->copied[ring->slot], ring->stream);

    ring->slot = (ring->slot + 1) % SLOTS;
    ring->used = 0;
    return result == CUDA_SUCCESS ? ring->driver->cuEventSynchronize(ring->copied[ring->slot]) : result;
}

static enum rdt_status room(void *writing, size_t bytes, void **room_p, struct rdt_error *err)
{
    struct write_ring *ring = writing;
    struct entered entered;
    CUresult result;
    enum rdt_status status;

    if (bytes > SLOT_BYTES)
        return rdt_error_set(err, RDT_INVALID, "room for %zu bytes of a GPU's memory: at most %zu are written at a time", bytes,
                             SLOT_BYTES);
    if (bytes > SLOT_BYTES - ring->used) {
        status = gpu_enter(ring->driver, ring->gpu, &entered, err);
        if (status != RDT_OK)
            return status;
        result = next_slot(ring);
        gpu_leave(ring->driver, &entered);
        if (result != CUDA_SUCCESS)
            return cuda_gpu_failed(ring->driver, ring->gpu, result, err, "writing memory of a GPU");
    }
    *room_p = ring->memory + ring->slot * SLOT_BYTES + ring->used;
    ring->used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return RDT_OK;
}

static enum rdt_status write_rows(void *writing, const void *from, void *to, size_t row_bytes, size_t rows, size_t pitch,
                                  struct rdt_error *err)
{
    struct write_ring *ring = writing;
    struct entered entered;
    CUresult result;
    CUDA_MEMCPY2D plane = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = from,
                           .srcPitch = row_bytes,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = (CUdeviceptr)(uintptr_t)to,
                           .dstPitch = pitch,
                           .WidthInBytes = row_bytes,
                           .Height = rows};
    enum rdt_status status = gpu_enter(ring->driver, ring->gpu, &entered, err);

    if (status != RDT_OK)
        return status;
    result = rows > 1 ? ring->driver->cuMemcpy2DAsync(&plane, ring->stream)
                      : ring->driver->cuMemcpyAsync(plane.dstDevice, (CUdeviceptr)(uintptr_t)from, row_bytes, ring->stream);
    gpu_leave(ring->driver, &entered);
    return result == CUDA_SUCCESS ? RDT_OK : cuda_gpu_failed(ring->driver, ring->gpu, result, err, "writing memory of a GPU");
}

static enum rdt_status end_writing(void *writing, struct rdt_error *err)
{
    struct write_ring *ring = writing;
    struct cuda_driver *driver = ring->driver;
    struct entered entered;
    CUresult result;
    enum rdt_status status = gpu_enter(driver, ring->gpu, &entered, err);

    if (status != RDT_OK)
        return status; /* of a GPU that has failed: the ring is lost */
    result = driver->cuEventRecord(ring->copied[ring->slot], ring->stream);
    if (result == CUDA_SUCCESS)
        result = driver->cuEventSynchronize(ring->copied[ring->slot]);
    if (result != CUDA_SUCCESS) {
        status = cuda_gpu_failed(driver, ring->gpu, result, err, "writing memory of a GPU");
        ring_free(ring);
    } else {
        ring->used = 0;
        (void)pthread_mutex_lock(&mutex);
        ring->next = idle;
        idle = ring;
        (void)pthread_mutex_unlock(&mutex);
    }
    gpu_leave(driver, &entered);
    return status;
}

const struct rdt_writer cuda_writer = {.struct_size = sizeof cuda_writer,
                                       .find = find,
                                       .begin = begin_writing,
                                       .await = await,
                                       .room = room,
                                       .copy = write_rows,
                                       .end = end_writing,
                                       .room_bytes = SLOT_BYTES};

/* ---- copies within a GPU ---- */

/* Adds a user to the lane of the GPU, which is entered. */
static CUresult lane_take(struct cuda_driver *driver, const struct cuda_gpu *gpu, CUstream *stream_p)
{
    struct lane *lane = &lanes[gpu - driver->gpu];
    CUresult result = CUDA_SUCCESS;

    (void)pthread_mutex_lock(&mutex);
    if (!lane->stream)
        result = driver->cuStreamCreate(&lane->stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS) {
        lane->users++;
        *stream_p = lane->stream;
    }
    (void)pthread_mutex_unlock(&mutex);
    return result;
}

static void lane_give(struct cuda_driver *driver, const struct cuda_gpu *gpu, bool failed)
{
    struct lane *lane = &lanes[gpu - driver->gpu];

    (void)pthread_mutex_lock(&mutex);
    lane->users--;
    lane->failed |= failed;
    if (connections == 0 || lane->failed)
        lane_close(driver, (unsigned)(gpu - driver->gpu));
    (void)pthread_mutex_unlock(&mutex);
}

static enum rdt_status begin_copying(void *arg, const char *device, void **copying_p, struct rdt_error *err)
{
    struct cuda_driver *driver;
    struct cuda_gpu *gpu = NULL;
    struct copies *copies;
    struct entered entered;
    CUresult result;
    enum rdt_status status = cuda_driver_open(&driver, err);

    (void)arg;
    if (status == RDT_OK)
        status = cuda_gpu_find(driver, device, &gpu, err);
    if (status == RDT_OK)
        status = gpu_enter(driver, gpu, &entered, err);
    if (status != RDT_OK)
        return status;
    copies = calloc(1, sizeof *copies);
    result = copies ? driver->cuEventCreate(&copies->copied, CU_EVENT_DISABLE_TIMING) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        copies->driver = driver;
        copies->gpu = gpu;
        result = lane_take(driver, gpu, &copies->stream);
        if (result != CUDA_SUCCESS)
            (void)driver->cuEventDestroy(copies->copied);
    }
    gpu_leave(driver, &entered);
    if (result != CUDA_SUCCESS) {
        free(copies);
        return cuda_gpu_failed(driver, gpu, result, err, "creating a stream to copy on a GPU");
    }
    closing_look(); /* its thread looks after copies that nobody waits for any more */
    *copying_p = copies;
    return RDT_OK;
}

static enum rdt_status copy(void *copying, const void *from, void *to, size_t bytes, struct rdt_error *err)
{
    struct copies *copies = copying;
    struct entered entered;
    CUresult result;
    enum rdt_status status = gpu_enter(copies->driver, copies->gpu, &entered, err);

    if (status != RDT_OK)
        return status;
    result = copies->driver->cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, copies->stream);
    copies->recorded = false;
    gpu_leave(copies->driver, &entered);
    return result == CUDA_SUCCESS ? RDT_OK : cuda_gpu_failed(copies->driver, copies->gpu, result, err, "copying on a GPU");
}

/* A driver that has no memory to record the event still copies: then the whole stream is asked. */
static enum rdt_status ended(void *copying, struct rdt_error *err)
{
    struct copies *copies = copying;
    struct cuda_driver *driver = copies->driver;
    struct entered entered;
    CUresult result;
    enum rdt_status status = gpu_enter(driver, copies->gpu, &entered, err);

    copies->failed = status != RDT_OK;
    if (status != RDT_OK)
        return status;
    copies->recorded = copies->recorded || driver->cuEventRecord(copies->copied, copies->stream) == CUDA_SUCCESS;
    result = copies->recorded ? driver->cuEventQuery(copies->copied) : driver->cuStreamQuery(copies->stream);
    gpu_leave(driver, &entered);
    if (result == CUDA_ERROR_NOT_READY)
        return RDT_AGAIN;
    copies->failed = result != CUDA_SUCCESS;
    return result == CUDA_SUCCESS ? RDT_OK : cuda_gpu_failed(driver, copies->gpu, result, err, "copying on a GPU");
}

static void end_copying(void *copying)
{
    struct copies *copies = copying;
    struct entered entered;

    if (gpu_enter(copies->driver, copies->gpu, &entered, NULL) == RDT_OK) {
        (void)copies->driver->cuEventDestroy(copies->copied);
        gpu_leave(copies->driver, &entered);
    }
    lane_give(copies->driver, copies->gpu, copies->failed);
    free(copies);
}

const struct rdt_copier cuda_copier = {
    .struct_size = sizeof cuda_copier, .begin = begin_copying, .copy = copy, .ended = ended, .end = end_copying};
