/* SPDX-License-Identifier: Apache-2.0 */
/* See cuda_driver.h. */
#include "backends/common/cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)

static struct cuda_driver loaded_driver;
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* protects the next four */
static bool is_open, is_over;                               /* is_over: it never will be */
static void *library;
static struct rdt_error open_failure;

enum rdt_status cuda_failed(const struct cuda_driver *driver, CUresult result, struct rdt_error *err, const char *what)
{
    const char *name = NULL, *text = NULL;
    enum rdt_status status = RDT_SYSTEM;

    (void)driver->cuGetErrorName(result, &name);
    (void)driver->cuGetErrorString(result, &text);
    switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        status = RDT_NO_MEMORY;
        break;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
        status = RDT_INVALID;
        break;
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
        status = RDT_UNSUPPORTED;
        break;
    default:
        break;
    }
    return rdt_error_set(err, status, "%s: %s (%s, %d)", what, text ? text : "the driver failed", name ? name : "unknown",
                         (int)result);
}

/* ---- opening ---- */

#define RETRY_NS 200000000

static bool load_functions(void)
{
    const char *missing = NULL;

#define CUDA_LOAD(function)                                                     \
    *(void **)(void *)&loaded_driver.function = dlsym(library, TEXT(function)); \
    if (!loaded_driver.function)                                                \
        missing = TEXT(function);
    CUDA_FUNCTIONS(CUDA_LOAD)
#undef CUDA_LOAD
    if (missing)
        (void)rdt_error_set(&open_failure, RDT_UNSUPPORTED, "the NVIDIA driver is too old: libcuda.so.1 has no %s", missing);
    return !missing;
}

/* At boot the driver is not ready before its services are: the fabric manager (SYSTEM_NOT_READY), the creation of the device
 * files (NO_DEVICE) and the loading of its modules (UNKNOWN). */
static bool may_come(CUresult result)
{
    return result == CUDA_ERROR_SYSTEM_NOT_READY || result == CUDA_ERROR_UNKNOWN ||
           (result == CUDA_ERROR_NO_DEVICE && access("/proc/driver/nvidia/version", F_OK) == 0);
}

static bool init_driver(void)
{
    CUresult result = loaded_driver.cuInit(0);

    is_over = !may_come(result);

    if (result == CUDA_SUCCESS)
        result = loaded_driver.cuDriverGetVersion(&loaded_driver.version);
    if (result == CUDA_SUCCESS)
        return true;
    if (result == CUDA_ERROR_STUB_LIBRARY)
        (void)rdt_error_set(&open_failure, RDT_UNSUPPORTED,
                            "the libcuda.so.1 that was found is the CUDA toolkit's stub, not a driver: remove its folder from "
                            "the library path");
    else if (result == CUDA_ERROR_NO_DEVICE)
        (void)rdt_error_set(&open_failure, RDT_UNSUPPORTED, "the NVIDIA driver sees no GPU");
    else
        (void)cuda_failed(&loaded_driver, result, &open_failure, "the NVIDIA driver does not start: cuInit");
    return false;
}

static CUresult add_gpu(int ordinal)
{
    struct cuda_gpu *gpu = &loaded_driver.gpu[loaded_driver.n_gpus];
    CUuuid uuid;
    CUresult result = loaded_driver.cuDeviceGet(&gpu->device, ordinal);
    size_t used = 4;

    if (result == CUDA_SUCCESS)
        result = loaded_driver.cuDeviceGetUuid(&uuid, gpu->device);
    if (result == CUDA_SUCCESS)
        result = loaded_driver.cuDeviceGetName(gpu->name, sizeof gpu->name, gpu->device);
    if (result == CUDA_SUCCESS)
        result = loaded_driver.cuDeviceTotalMem(&gpu->bytes, gpu->device);
    if (result != CUDA_SUCCESS)
        return result;
    /* A part of a GPU has a uuid of its own, which nvidia-smi shows so, and is known by its name only: "... MIG 1g.10gb". */
    memcpy(gpu->uuid, strstr(gpu->name, " MIG ") ? "MIG-" : "GPU-", used);
    for (unsigned i = 0; i < sizeof uuid.bytes; i++)
        used += (size_t)snprintf(gpu->uuid + used, sizeof gpu->uuid - used, "%s%02x",
                                 i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned)(unsigned char)uuid.bytes[i]);
    (void)pthread_mutex_init(&gpu->mutex, NULL);
    loaded_driver.n_gpus++;
    return CUDA_SUCCESS;
}

/* Tries to open the driver. The mutex is held. */
static void try_open(void)
{
    CUresult result;
    int count = 0;

    open_failure = (struct rdt_error){.status = RDT_OK};
    is_over = true;
    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        (void)rdt_error_set(&open_failure, RDT_UNSUPPORTED, "there is no NVIDIA driver: %s", dlerror());
        return;
    }
    if (!load_functions() || !init_driver()) {
        open_failure.status = RDT_UNSUPPORTED;
        if (is_over)
            (void)dlclose(library);
        return;
    }
    is_over = true;
    result = loaded_driver.cuDeviceGetCount(&count);
    for (int i = 0; result == CUDA_SUCCESS && i < count && i < CUDA_MAX_GPUS; i++)
        result = add_gpu(i);
    if (result != CUDA_SUCCESS)
        (void)cuda_failed(&loaded_driver, result, &open_failure, "the NVIDIA driver does not list its GPUs");
    else if (loaded_driver.n_gpus == 0)
        (void)rdt_error_set(&open_failure, RDT_UNSUPPORTED, "the NVIDIA driver sees no GPU");
    is_open = open_failure.status == RDT_OK;
    if (!is_open)
        open_failure.status = RDT_UNSUPPORTED;
}

enum rdt_status cuda_driver_open(struct cuda_driver **driver_p, struct rdt_error *err)
{
    enum rdt_status status;

    (void)pthread_mutex_lock(&opening);
    if (!is_open && !is_over)
        try_open();
    status = is_open ? RDT_OK : open_failure.status;
    if (!is_open && err)
        *err = open_failure;
    (void)pthread_mutex_unlock(&opening);
    if (status == RDT_OK)
        *driver_p = &loaded_driver;
    return status;
}

void cuda_driver_after_fork(void)
{
    opening = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    for (unsigned i = 0; i < loaded_driver.n_gpus; i++)
        loaded_driver.gpu[i].mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

enum rdt_status cuda_driver_await(struct cuda_driver **driver_p, unsigned wait_s, struct rdt_error *err)
{
    const struct timespec pause = {.tv_nsec = RETRY_NS};
    enum rdt_status status = cuda_driver_open(driver_p, err);

    for (uint64_t left_ns = wait_s * UINT64_C(1000000000); status != RDT_OK && left_ns > 0; left_ns -= RETRY_NS) {
        bool over;
        (void)pthread_mutex_lock(&opening);
        over = is_over;
        (void)pthread_mutex_unlock(&opening);
        if (over)
            break;
        (void)nanosleep(&pause, NULL);
        status = cuda_driver_open(driver_p, err);
    }
    return status;
}

/* ---- GPUs ---- */

enum rdt_status cuda_gpu_find(struct cuda_driver *driver, const char *uuid, struct cuda_gpu **gpu_p, struct rdt_error *err)
{
    char available[160] = "";
    size_t used = 0;

    for (unsigned i = 0; i < driver->n_gpus; i++) {
        if (strcasecmp(driver->gpu[i].uuid, uuid) == 0) { /* a client may write it in upper case */
            *gpu_p = &driver->gpu[i];
            return RDT_OK;
        }
        if (used + CUDA_UUID_TEXT + 2 < sizeof available)
            used += (size_t)snprintf(available + used, sizeof available - used, "%s%s", used ? ", " : "", driver->gpu[i].uuid);
    }
    return rdt_error_set(err, RDT_NOT_FOUND, "there is no GPU \"%.48s\" here, but %s%s", uuid, available,
                         driver->n_gpus > 3 ? ", ..." : "");
}

enum rdt_status cuda_gpu_enter(struct cuda_driver *driver, struct cuda_gpu *gpu, struct rdt_error *err)
{
    CUresult result = CUDA_SUCCESS;
    CUcontext context;

    (void)pthread_mutex_lock(&gpu->mutex);
    context = gpu->context;
    if (!context)
        result = driver->cuDevicePrimaryCtxRetain(&context, gpu->device);
    if (result == CUDA_SUCCESS)
        __atomic_store_n(&gpu->context, context, __ATOMIC_RELEASE);
    (void)pthread_mutex_unlock(&gpu->mutex);
    if (result == CUDA_SUCCESS)
        result = driver->cuCtxSetCurrent(context);
    return result == CUDA_SUCCESS ? RDT_OK : cuda_failed(driver, result, err, gpu->uuid);
}

bool cuda_gpu_is_open(const struct cuda_gpu *gpu)
{
    return __atomic_load_n(&gpu->context, __ATOMIC_ACQUIRE);
}

void cuda_gpu_leave(struct cuda_driver *driver, struct cuda_gpu *gpu)
{
    (void)pthread_mutex_lock(&gpu->mutex);
    if (gpu->context)
        (void)driver->cuDevicePrimaryCtxRelease(gpu->device);
    __atomic_store_n(&gpu->context, NULL, __ATOMIC_RELEASE);
    (void)pthread_mutex_unlock(&gpu->mutex);
}
