/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h: copies within a GPU for librdt (struct rdt_copier), in a stream of this library, which no work of the program
 * holds up. The stream stays for the next copies. */
#include <stdlib.h>

#include "client/cuda/gpu.h"

struct copies { /* of one user at a time */
    struct copies *next;
    struct cuda_driver *driver;
    struct cuda_gpu *gpu;
    CUstream stream;
    CUevent copied; /* recorded behind the last copy */
    bool recorded;
    bool failed;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct copies *idle;  /* protected by the mutex, as the next one is */
static unsigned connections; /* with GPU memory. Copies of one may end after rdt_cuda_close */

/* The GPU is entered. */
static void copies_free(struct copies *copies)
{
    if (copies->copied)
        (void)copies->driver->cuEventDestroy(copies->copied);
    if (copies->stream)
        (void)copies->driver->cuStreamDestroy(copies->stream);
    free(copies);
}

void copier_begin(void)
{
    (void)pthread_mutex_lock(&mutex);
    connections++;
    (void)pthread_mutex_unlock(&mutex);
}

void copier_forget(void)
{
    struct entered entered;
    struct copies *all;

    (void)pthread_mutex_lock(&mutex);
    all = idle;
    idle = NULL;
    connections--;
    (void)pthread_mutex_unlock(&mutex);
    for (struct copies *copies = all, *next; copies; copies = next) {
        struct cuda_driver *driver = copies->driver;
        next = copies->next;
        if (gpu_enter(driver, copies->gpu, &entered, NULL) != RDT_OK)
            continue; /* the driver has ended */
        copies_free(copies);
        gpu_leave(driver, &entered);
    }
}

void copier_after_fork(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    idle = NULL;
    connections = 0;
}

static struct copies *take_idle(const struct cuda_gpu *gpu)
{
    struct copies **at = &idle, *copies;

    (void)pthread_mutex_lock(&mutex);
    while (*at && (*at)->gpu != gpu)
        at = &(*at)->next;
    copies = *at;
    if (copies)
        *at = copies->next;
    (void)pthread_mutex_unlock(&mutex);
    return copies;
}

/* ---- the operations ---- */

static enum rdt_status begin(void *arg, const char *device, void **copying_p, struct rdt_error *err)
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
    if (status != RDT_OK)
        return status;
    if ((*copying_p = take_idle(gpu)))
        return RDT_OK;
    copies = calloc(1, sizeof *copies);
    if (!copies)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to copy on a GPU");
    copies->driver = driver;
    copies->gpu = gpu;
    status = gpu_enter(driver, gpu, &entered, err);
    if (status != RDT_OK) {
        free(copies);
        return status;
    }
    result = driver->cuStreamCreate(&copies->stream, CU_STREAM_NON_BLOCKING);
    if (result == CUDA_SUCCESS)
        result = driver->cuEventCreate(&copies->copied, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) {
        copies_free(copies);
        status = cuda_gpu_failed(driver, gpu, result, err, "creating a stream to copy on a GPU");
    } else {
        *copying_p = copies;
    }
    gpu_leave(driver, &entered);
    return status;
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

static enum rdt_status ended(void *copying, struct rdt_error *err)
{
    struct copies *copies = copying;
    struct cuda_driver *driver = copies->driver;
    struct entered entered;
    CUresult result = CUDA_SUCCESS;
    enum rdt_status status = gpu_enter(driver, copies->gpu, &entered, err);

    copies->failed = status != RDT_OK;
    if (status != RDT_OK)
        return status;
    if (!copies->recorded)
        result = driver->cuEventRecord(copies->copied, copies->stream);
    copies->recorded = result == CUDA_SUCCESS;
    if (result == CUDA_SUCCESS)
        result = driver->cuEventQuery(copies->copied);
    gpu_leave(driver, &entered);
    if (result == CUDA_ERROR_NOT_READY)
        return RDT_AGAIN;
    copies->failed = result != CUDA_SUCCESS;
    return result == CUDA_SUCCESS ? RDT_OK : cuda_gpu_failed(driver, copies->gpu, result, err, "copying on a GPU");
}

static void end(void *copying)
{
    struct copies *copies = copying;
    struct cuda_driver *driver = copies->driver;
    struct entered entered;
    bool stays;

    copies->recorded = false;
    (void)pthread_mutex_lock(&mutex);
    stays = !copies->failed && connections > 0;
    copies->next = idle;
    if (stays)
        idle = copies;
    (void)pthread_mutex_unlock(&mutex);
    if (stays || gpu_enter(driver, copies->gpu, &entered, NULL) != RDT_OK) /* the stream is lost with its context */
        return;
    copies_free(copies);
    gpu_leave(driver, &entered);
}

const struct rdt_copier cuda_copier = {
    .struct_size = sizeof cuda_copier, .begin = begin, .copy = copy, .ended = ended, .end = end};
