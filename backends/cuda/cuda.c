/* SPDX-License-Identifier: Apache-2.0 */
/* See cuda.h. */
#include "backends/cuda/cuda.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define DEFAULT_IDLE_NS INT64_C(10000000000)

struct cuda_card *cuda_card_of(struct cuda *cuda, const char *uuid, struct rdt_error *err)
{
    struct cuda_gpu *gpu;

    if (cuda_gpu_find(cuda->driver, uuid, &gpu, err) != RDT_OK)
        return NULL;
    return &cuda->cards[gpu - cuda->driver->gpu];
}

static enum rdt_status open_first(struct cuda_card *card, struct rdt_error *err)
{
    struct gpu_usage before, after;
    enum rdt_status status;

    (void)pthread_mutex_lock(&card->opening);
    if (cuda_gpu_is_open(card->gpu)) {
        (void)pthread_mutex_unlock(&card->opening);
        return cuda_gpu_enter(card->cuda->driver, card->gpu, err);
    }
    before = gpu_usage_now(card->gpu->uuid);
    status = cuda_gpu_enter(card->cuda->driver, card->gpu, err);
    if (status == RDT_OK) {
        after = gpu_usage_now(card->gpu->uuid);
        card->overhead_bytes = gpu_usage_growth(&before, &after);
    }
    (void)pthread_mutex_unlock(&card->opening);
    return status;
}

enum rdt_status cuda_enter(struct cuda_card *card, struct rdt_error *err)
{
    return cuda_gpu_is_open(card->gpu) ? cuda_gpu_enter(card->cuda->driver, card->gpu, err) : open_first(card, err);
}

/* ---- contexts that nobody uses ---- */

static int64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* The GPU's context is current in the thread, and no copy is under way. */
static void destroy_streams(struct cuda_card *card)
{
    for (unsigned i = 0; i < N_WAYS * CUDA_TURNS; i++) {
        CUstream *stream = &card->stream[i / CUDA_TURNS][i % CUDA_TURNS];
        if (*stream)
            (void)card->cuda->driver->cuStreamDestroy(*stream);
        *stream = NULL;
    }
    for (unsigned i = 0; i < N_LANES; i++)
        cuda_lane_forget_events(&card->lanes[i]);
}

/* The caller holds card->opening, and the card has no users: no copy is under way. */
static void leave(struct cuda_card *card)
{
    struct cuda *cuda = card->cuda;
    uint64_t bit = UINT64_C(1) << (card->gpu - cuda->driver->gpu);

    if (cuda_gpu_enter(cuda->driver, card->gpu, NULL) == RDT_OK)
        destroy_streams(card);
    (void)cuda->driver->cuCtxSetCurrent(NULL);
    cuda_gpu_leave(cuda->driver, card->gpu);
    for (unsigned i = 0; i < cuda->driver->n_gpus; i++) { /* peer access ends with the context */
        (void)atomic_fetch_and(&cuda->cards[i].asked, ~bit);
        (void)atomic_fetch_and(&cuda->cards[i].reached, ~bit);
    }
    atomic_store(&card->asked, 0);
    atomic_store(&card->reached, 0);
}

/* Returns whether the context is one that nobody uses and that will be left later. */
static bool leave_if_idle(struct cuda_card *card)
{
    bool idle;

    (void)pthread_mutex_lock(&card->opening);
    idle = card->users == 0 && cuda_gpu_is_open(card->gpu);
    if (idle && now_ns() - card->idle_since_ns >= card->cuda->idle_ns) {
        leave(card);
        idle = false;
    }
    (void)pthread_mutex_unlock(&card->opening);
    return idle;
}

static void *watch(void *arg)
{
    struct cuda *cuda = arg;

    (void)pthread_mutex_lock(&cuda->watch);
    while (!cuda->end) {
        int64_t until_ns = now_ns() + cuda->idle_ns / 4 + 1000000;
        const struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
        bool any = false;
        if (cuda->any_idle)
            (void)pthread_cond_timedwait(&cuda->more, &cuda->watch, &until);
        else
            (void)pthread_cond_wait(&cuda->more, &cuda->watch);
        cuda->any_idle = false;
        (void)pthread_mutex_unlock(&cuda->watch);
        for (unsigned i = 0; i < cuda->driver->n_gpus; i++)
            any |= leave_if_idle(&cuda->cards[i]);
        (void)pthread_mutex_lock(&cuda->watch);
        cuda->any_idle |= any;
    }
    (void)pthread_mutex_unlock(&cuda->watch);
    return NULL;
}

/* Without a thread the context stays until the kind is closed. */
static void begin_to_watch(struct cuda *cuda)
{
    sigset_t all, before;

    (void)pthread_mutex_lock(&cuda->watch);
    if (!cuda->watching) {
        (void)sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &before);
        cuda->watching = pthread_create(&cuda->watcher, NULL, watch, cuda) == 0;
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    cuda->any_idle = true;
    (void)pthread_cond_signal(&cuda->more);
    (void)pthread_mutex_unlock(&cuda->watch);
}

static void end_watching(struct cuda *cuda)
{
    (void)pthread_mutex_lock(&cuda->watch);
    cuda->end = true;
    (void)pthread_cond_signal(&cuda->more);
    (void)pthread_mutex_unlock(&cuda->watch);
    if (cuda->watching)
        (void)pthread_join(cuda->watcher, NULL);
    (void)pthread_cond_destroy(&cuda->more);
    (void)pthread_mutex_destroy(&cuda->watch);
}

void cuda_use(struct cuda_card *card)
{
    (void)pthread_mutex_lock(&card->opening);
    card->users++;
    (void)pthread_mutex_unlock(&card->opening);
}

static bool use_if_open(struct cuda_card *card)
{
    bool is_open;

    (void)pthread_mutex_lock(&card->opening);
    is_open = cuda_gpu_is_open(card->gpu);
    card->users += is_open;
    (void)pthread_mutex_unlock(&card->opening);
    return is_open;
}

void cuda_unuse(struct cuda_card *card)
{
    bool idle;

    (void)pthread_mutex_lock(&card->opening);
    idle = --card->users == 0;
    if (idle)
        card->idle_since_ns = now_ns();
    (void)pthread_mutex_unlock(&card->opening);
    if (idle)
        begin_to_watch(card->cuda);
}

CUstream cuda_stream(struct cuda_card *card, enum cuda_way way, unsigned turn, CUresult *result_p)
{
    CUstream stream;

    (void)pthread_mutex_lock(&card->mutex);
    *result_p = CUDA_SUCCESS;
    if (!card->stream[way][turn])
        *result_p = card->cuda->driver->cuStreamCreate(&card->stream[way][turn], CU_STREAM_NON_BLOCKING);
    stream = card->stream[way][turn];
    (void)pthread_mutex_unlock(&card->mutex);
    return stream;
}

/* ---- GPUs ---- */

static int attribute_of(const struct cuda_driver *driver, CUdevice_attribute attribute, CUdevice device)
{
    int value = 0;

    return driver->cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

static void card_init(struct cuda_card *card, struct cuda *cuda, struct cuda_gpu *gpu)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};

    card->cuda = cuda;
    card->gpu = gpu;
    card->vmm = attribute_of(cuda->driver, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, gpu->device) &&
                attribute_of(cuda->driver, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, gpu->device);
    card->rdma = attribute_of(cuda->driver, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, gpu->device);
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = gpu->device;
    if (!card->vmm || cuda->driver->cuMemGetAllocationGranularity(&card->granule, &prop,
                                                                  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) != CUDA_SUCCESS)
        card->granule = (size_t)2 << 20;
    (void)pthread_mutex_init(&card->opening, NULL);
    (void)pthread_mutex_init(&card->mutex, NULL);
    for (unsigned i = 0; i < N_LANES; i++)
        cuda_lane_init(&card->lanes[i], card);
}

static uint32_t devices(void *memory, struct rdt_device *devices_p, uint32_t max)
{
    const struct cuda *cuda = memory;

    for (uint32_t i = 0; i < cuda->driver->n_gpus && i < max; i++)
        devices_p[i] =
            (struct rdt_device){.uuid = cuda->driver->gpu[i].uuid,
                                .name = cuda->driver->gpu[i].name,
                                .bytes = cuda->driver->gpu[i].bytes,
                                .opened = cuda_gpu_is_open(&cuda->driver->gpu[i]),
                                .overhead_bytes = cuda_gpu_is_open(&cuda->driver->gpu[i]) ? cuda->cards[i].overhead_bytes : 0};
    return cuda->driver->n_gpus;
}

/* Whether the first GPU has asked in vain for access to the memory of the second, although the driver says that it can. */
static bool was_refused(const struct cuda *cuda, const struct cuda_gpu *gpu, const struct cuda_gpu *other)
{
    const struct cuda_card *card = &cuda->cards[gpu - cuda->driver->gpu];
    uint64_t bit = UINT64_C(1) << (other - cuda->driver->gpu);
    int can = 0;

    return (card->asked & ~card->reached & bit) &&
           cuda->driver->cuDeviceCanAccessPeer(&can, gpu->device, other->device) == CUDA_SUCCESS && can;
}

static void describe_copy(void *memory, const char *from, const char *to, char *text_p, size_t size)
{
    const struct cuda *cuda = memory;
    struct cuda_gpu *a, *b;
    int can = 0;

    text_p[0] = '\0';
    if (cuda_gpu_find(cuda->driver, from, &a, NULL) != RDT_OK || cuda_gpu_find(cuda->driver, to, &b, NULL) != RDT_OK)
        return;
    if (a == b)
        (void)snprintf(text_p, size, "within %s", a->name);
    else if (was_refused(cuda, a, b) || was_refused(cuda, b, a))
        (void)snprintf(text_p, size, "through the driver's host memory: it refused peer access");
    else if (cuda->driver->cuDeviceCanAccessPeer(&can, a->device, b->device) == CUDA_SUCCESS && can)
        (void)snprintf(text_p, size, "peer access");
    else
        (void)snprintf(text_p, size, "through the driver's host memory: the GPUs have no peer access");
}

/* ---- pinned host memory ---- */

struct pin {
    void *addr;
    struct cuda_card *card;
};

/* Pins the memory for all GPUs through the first one that is in use. Pinning must not be what opens a GPU. */
static enum rdt_status pin(void *memory, void *addr, uint64_t bytes, void **pin_p, struct rdt_error *err)
{
    struct cuda *cuda = memory;
    struct pin *pinned;
    enum rdt_status status;
    CUresult result;

    for (unsigned i = 0; i < cuda->driver->n_gpus; i++) {
        if (!use_if_open(&cuda->cards[i]))
            continue;
        pinned = malloc(sizeof *pinned);
        if (!pinned) {
            cuda_unuse(&cuda->cards[i]);
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the record of pinned memory");
        }
        *pinned = (struct pin){addr, &cuda->cards[i]};
        status = cuda_enter(pinned->card, err);
        if (status == RDT_OK) {
            result = cuda->driver->cuMemHostRegister(addr, bytes, CU_MEMHOSTREGISTER_PORTABLE);
            if (result != CUDA_SUCCESS)
                status = cuda_failed(cuda->driver, result, err, "pinning host memory for copies");
        }
        if (status == RDT_OK) {
            *pin_p = pinned;
        } else {
            cuda_unuse(pinned->card);
            free(pinned);
        }
        return status;
    }
    return rdt_error_set(err, RDT_UNSUPPORTED, "no GPU is in use");
}

static void unpin(void *memory, void *pin_of_core)
{
    struct cuda *cuda = memory;
    struct pin *pinned = pin_of_core;

    if (cuda_enter(pinned->card, NULL) == RDT_OK)
        (void)cuda->driver->cuMemHostUnregister(pinned->addr);
    cuda_unuse(pinned->card);
    free(pinned);
}

/* ---- the kind ---- */

static enum rdt_status memory_open(const struct rdt_host *host, void **memory_p, struct rdt_error *err)
{
    const char *enabled = host->config(host->ctx, "enabled"), *idle = host->config(host->ctx, "pool_idle");
    pthread_condattr_t monotonic;
    struct cuda_driver *driver;
    struct cuda *cuda;
    enum rdt_status status;

    if (enabled && strcasecmp(enabled, "no") == 0)
        return rdt_error_set(err, RDT_UNSUPPORTED, "it is switched off by enabled = no in [cuda]");
    if (enabled && strcasecmp(enabled, "yes") != 0)
        return rdt_error_set(err, RDT_INVALID, "[cuda] enabled = %.32s: expected yes or no", enabled);
    status = cuda_driver_await(&driver, CUDA_WAIT_S, err);
    if (status != RDT_OK)
        return status;
    cuda = calloc(1, sizeof *cuda);
    if (cuda)
        cuda->cards = calloc(driver->n_gpus, sizeof *cuda->cards);
    if (!cuda || !cuda->cards) {
        free(cuda);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for %u GPUs", driver->n_gpus);
    }
    cuda->host = *host;
    cuda->driver = driver;
    cuda_handles_init(&cuda->handles);
    cuda->idle_ns = idle ? strtoll(idle, NULL, 10) : DEFAULT_IDLE_NS;
    (void)pthread_mutex_init(&cuda->watch, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&cuda->more, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    for (unsigned i = 0; i < driver->n_gpus; i++)
        card_init(&cuda->cards[i], cuda, &driver->gpu[i]);
    *memory_p = cuda;
    return RDT_OK;
}

static void memory_close(void *memory)
{
    struct cuda *cuda = memory;

    end_watching(cuda);
    for (unsigned i = 0; i < cuda->driver->n_gpus; i++) {
        struct cuda_card *card = &cuda->cards[i];
        for (unsigned k = 0; k < N_LANES; k++)
            cuda_lane_fini(&card->lanes[k]);
        if (cuda_gpu_is_open(card->gpu) && cuda_enter(card, NULL) == RDT_OK)
            destroy_streams(card);
        cuda_gpu_leave(cuda->driver, card->gpu);
        (void)pthread_mutex_destroy(&card->mutex);
        (void)pthread_mutex_destroy(&card->opening);
    }
    (void)pthread_mutex_destroy(&cuda->handles.mutex);
    free(cuda->cards);
    free(cuda);
}

static const struct rdt_config_key config_keys[] = {
    {"enabled", "yes", "no: the daemon uses no GPU memory, and does not load NVIDIA's driver for it"},
    {NULL, NULL, NULL},
};

static const struct rdt_memory_ops memory_ops = {
    .struct_size = sizeof memory_ops,
    .name = "cuda",
    .open = memory_open,
    .close = memory_close,
    .alloc = cuda_alloc,
    .import = cuda_import,
    .free = cuda_free,
    .map = cuda_map,
    .round = cuda_round,
    .devices = devices,
    .export_block = cuda_export,
    .copy_start = cuda_copy_start,
    .zero = cuda_zero,
    .pin = pin,
    .unpin = unpin,
    .describe_copy = describe_copy,
    .alloc_unzeroed = cuda_alloc_unzeroed,
    .zero_part = cuda_zero_part,
};

static const struct rdt_backend backend = {
    .abi_version = RDT_BACKEND_ABI,
    .struct_size = sizeof backend,
    .name = "cuda",
    .version = "0.1.0",
    .config_keys = config_keys,
    .memory = &memory_ops,
};

const struct rdt_backend *rdt_backend_init(void)
{
    return &backend;
}
