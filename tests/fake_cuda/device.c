/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and contexts of the fake driver. */
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_stream.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INIT_US 200000 /* what cuInit and a context take, if they are slow */
#define INIT_FDS 20
#define CONTEXT_US 100000
#define CONTEXT_FDS 10
#define MEETING_S 10
#define HOST_NUMA_ID 134 /* CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, which older headers lack */

struct fake_gpu fake_gpu[FAKE_MAX_GPUS];
int fake_gpus;
pthread_mutex_t fake_mutex = PTHREAD_MUTEX_INITIALIZER;

static bool started;
static int context_fds[FAKE_MAX_GPUS][CONTEXT_FDS];
static pthread_mutex_t creating[FAKE_MAX_GPUS] = {[0 ... FAKE_MAX_GPUS - 1] = PTHREAD_MUTEX_INITIALIZER};
static struct fake_meeting contexts = FAKE_MEETING;
static _Thread_local int current = -1;

long fake_setting(const char *name, long fallback)
{
    const char *text = getenv(name);

    return text && text[0] ? strtol(text, NULL, 0) : fallback;
}

bool fake_unkind(const char *name)
{
    return fake_setting(name, fake_setting("FAKE_CUDA_UNKIND", 0)) != 0;
}

void fake_meet(struct fake_meeting *meeting, const char *setting)
{
    long all = fake_setting(setting, 0), met;
    struct timespec until;
    int over = 0;

    if (all == 0)
        return;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += MEETING_S;
    pthread_mutex_lock(&meeting->mutex);
    met = meeting->met;
    if (++meeting->waiting == all) {
        meeting->waiting = 0;
        meeting->met++;
        pthread_cond_broadcast(&meeting->came);
    }
    while (meeting->met == met && !meeting->missed && over == 0)
        over = pthread_cond_timedwait(&meeting->came, &meeting->mutex, &until);
    if (meeting->met == met) {
        meeting->waiting--;
        meeting->missed = true;
        pthread_cond_broadcast(&meeting->came);
        (void)fake_call("alone");
    }
    pthread_mutex_unlock(&meeting->mutex);
}

static int trace_fd = -1;

static void open_trace(void)
{
    const char *path = getenv("FAKE_CUDA_TRACE");

    if (path && path[0] && (trace_fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600)) < 0)
        abort();
}

bool fake_call_of(const char *name, size_t bytes)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char line[120];
    int n;

    (void)pthread_once(&once, open_trace);
    if (trace_fd >= 0) {
        n = snprintf(line, sizeof line, "%d %ld %s %zu\n", (int)getpid(), syscall(SYS_gettid), name, bytes);
        if (write(trace_fd, line, (size_t)n) != n)
            abort();
    }
    return !fake_in_call();
}

bool fake_call(const char *name)
{
    return fake_call_of(name, 0);
}

static char refused[40]; /* fake_refuse; protected by the mutex */
static int refused_with;

void fake_refuse(const char *function, int result)
{
    pthread_mutex_lock(&fake_mutex);
    (void)snprintf(refused, sizeof refused, "%s", function);
    refused_with = result;
    pthread_mutex_unlock(&fake_mutex);
}

CUresult fake_refused(const char *function)
{
    pthread_mutex_lock(&fake_mutex);
    CUresult result = strcmp(refused, function) == 0 ? (CUresult)refused_with : CUDA_SUCCESS;
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

static atomic_bool broken;

static bool is_there(const char *path)
{
    return path && path[0] && access(path, F_OK) == 0;
}

static bool may_break(int device)
{
    const char *only = getenv("FAKE_CUDA_BREAK_ONLY");

    return !only || (device >= 0 && fake_gpu[device].number == atoi(only));
}

CUresult fake_broken(void)
{
    if (!broken && is_there(getenv("FAKE_CUDA_BREAK")))
        broken = true;
    return broken && may_break(current) ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

/* The last context that could break is gone. The mutex is held. */
static void heal(void)
{
    for (int i = 0; i < fake_gpus; i++)
        if (fake_gpu[i].retained > 0 && may_break(i))
            return;
    broken = is_there(getenv("FAKE_CUDA_BREAK"));
}

/* They are recognised by their name (fds_of in tests/support). */
static void open_fds(int *fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        fds[i] = memfd_create("fake-nvidia", MFD_CLOEXEC);
}

static CUcontext context_of(CUdevice device)
{
    return (CUcontext)&fake_gpu[device];
}

static int device_of(CUcontext context)
{
    return (int)((struct fake_gpu *)context - fake_gpu);
}

bool fake_has_context(CUdevice device)
{
    pthread_mutex_lock(&fake_mutex);
    bool has = device >= 0 && fake_gpu[device].retained > 0;
    pthread_mutex_unlock(&fake_mutex);
    return has;
}

CUdevice fake_numbered(int number)
{
    for (int i = 0; i < fake_gpus; i++)
        if (fake_gpu[i].number == number)
            return i;
    return -1;
}

size_t fake_cuda_held(int number)
{
    CUdevice device = fake_numbered(number);

    if (device < 0)
        return 0;
    pthread_mutex_lock(&fake_mutex);
    size_t bytes = fake_gpu[device].used;
    if (fake_gpu[device].retained > 0)
        bytes += (size_t)fake_setting("FAKE_CUDA_CONTEXT_MIB", 256) << 20;
    pthread_mutex_unlock(&fake_mutex);
    return bytes;
}

CUdevice fake_current(void)
{
    return current >= 0 && fake_has_context(current) ? current : -1;
}

/* Adds a GPU to those that the process sees. */
static void see(int number)
{
    fake_gpu[fake_gpus].number = number;
    fake_gpu[fake_gpus++].total = (size_t)fake_setting("FAKE_CUDA_MIB", 1024) << 20;
}

static int machine_gpus(void)
{
    int n = (int)fake_setting("FAKE_CUDA_GPUS", 2);

    return n < FAKE_MAX_GPUS ? n : FAKE_MAX_GPUS;
}

/* As the driver does, sees the GPUs of CUDA_VISIBLE_DEVICES up to the first that is none. */
static void see_gpus(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int n = machine_gpus();

    if (!visible)
        for (int i = 0; i < n; i++)
            see(i);
    for (const char *at = visible; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        size_t length = strcspn(at, ",");
        int number = strncmp(at, "GPU-", 4) == 0 ? at[length - 1] - '1' : atoi(at); /* FAKE_GPU_0 is ...1 */
        if (number < 0 || number >= n || fake_numbered(number) >= 0 || fake_gpus == FAKE_MAX_GPUS)
            break;
        see(number);
    }
}

CUresult cuInit(unsigned flags)
{
    static atomic_long calls;
    long answer = fake_setting("FAKE_CUDA_INIT", 0);

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (answer && getenv("FAKE_CUDA_INIT_TIMES") && calls++ >= fake_setting("FAKE_CUDA_INIT_TIMES", 0))
        answer = 0;
    if (flags || answer)
        return flags ? CUDA_ERROR_INVALID_VALUE : (CUresult)answer;
    pthread_mutex_lock(&fake_mutex);
    if (!started) {
        static int fds[INIT_FDS];
        if (fake_unkind("FAKE_CUDA_SLOW_INIT")) {
            open_fds(fds, INIT_FDS);
            fake_take_us(INIT_US);
        }
        see_gpus();
    }
    started = fake_gpus > 0;
    pthread_mutex_unlock(&fake_mutex);
    return fake_gpus > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

static bool is_gpu(CUdevice device)
{
    return started && device >= 0 && device < fake_gpus;
}

CUresult cuDriverGetVersion(int *version_p)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    *version_p = (int)fake_setting("FAKE_CUDA_VERSION", 13000);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **text_p)
{
    static _Thread_local char text[40];

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    (void)snprintf(text, sizeof text, "FAKE_CUDA_ERROR_%d", (int)error);
    *text_p = text;
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text_p)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    *text_p = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory (of the fake)" : "an error of the fake driver";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count_p)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!started)
        return CUDA_ERROR_NOT_INITIALIZED;
    *count_p = fake_gpus;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device_p, int ordinal)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!is_gpu(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device_p = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid_p, CUdevice device)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!is_gpu(device))
        return CUDA_ERROR_INVALID_DEVICE;
    memset(uuid_p, 0, sizeof *uuid_p);
    memcpy(uuid_p->bytes, "fake", 4);
    uuid_p->bytes[15] = (char)(fake_gpu[device].number + 1);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!is_gpu(device))
        return CUDA_ERROR_INVALID_DEVICE;
    (void)snprintf(name, (size_t)size, "FAKE GPU %d (memfd)%s", fake_gpu[device].number,
                   getenv("FAKE_CUDA_MIG") ? " MIG 1g.10gb" : "");
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes_p, CUdevice device)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!is_gpu(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes_p = fake_gpu[device].total;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value_p, CUdevice_attribute attribute, CUdevice device)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!is_gpu(device))
        return CUDA_ERROR_INVALID_DEVICE;
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        *value_p = !getenv("FAKE_CUDA_NO_VMM");
        break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        *value_p = 1;
        break;
    case HOST_NUMA_ID:
        *value_p = -1;
        if (getenv("FAKE_CUDA_SOCKETS"))
            *value_p = fake_gpu[device].number * (int)fake_setting("FAKE_CUDA_SOCKETS", 1) / machine_gpus();
        break;
    default:
        *value_p = 0;
        break;
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can_p, CUdevice device, CUdevice peer)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!is_gpu(device) || !is_gpu(peer))
        return CUDA_ERROR_INVALID_DEVICE;
    *can_p = device != peer && !getenv("FAKE_CUDA_NO_PEER");
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context_p, CUdevice device)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!is_gpu(device))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&creating[device]); /* contexts of several GPUs are created at once */
    if (!fake_has_context(device)) {
        fake_meet(&contexts, "FAKE_CUDA_CONTEXTS_MEET");
        if (fake_unkind("FAKE_CUDA_SLOW_INIT")) {
            open_fds(context_fds[device], CONTEXT_FDS);
            fake_take_us(CONTEXT_US);
        }
    }
    pthread_mutex_lock(&fake_mutex);
    fake_gpu[device].retained++;
    pthread_mutex_unlock(&fake_mutex);
    pthread_mutex_unlock(&creating[device]);
    *context_p = context_of(device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    CUresult result = CUDA_ERROR_INVALID_CONTEXT;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!is_gpu(device))
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&fake_mutex);
    if (fake_gpu[device].retained > 0) {
        if (--fake_gpu[device].retained == 0) { /* peer access ends with the context */
            for (unsigned i = 0; i < CONTEXT_FDS && context_fds[device][i] > 0; i++) {
                (void)close(context_fds[device][i]);
                context_fds[device][i] = 0;
            }
            fake_gpu[device].peers = 0;
            for (int i = 0; i < fake_gpus; i++)
                fake_gpu[i].peers &= ~(1u << device);
            heal();
        }
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags_p, int *active_p)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!is_gpu(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *flags_p = 0;
    *active_p = fake_has_context(device);
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!started)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (context && !fake_has_context(device_of(context)))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    current = context ? device_of(context) : -1;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context_p)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    *context_p = current >= 0 ? context_of(current) : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device_p)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (fake_current() < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device_p = current;
    return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    CUdevice device = fake_current();

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (device < 0 || !peer || device_of(peer) == device)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (getenv("FAKE_CUDA_NO_PEER"))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    unsigned bit = 1u << device_of(peer);
    pthread_mutex_lock(&fake_mutex);
    bool again = fake_gpu[device].peers & bit;
    fake_gpu[device].peers |= bit;
    pthread_mutex_unlock(&fake_mutex);
    return again ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_SUCCESS;
}

CUresult cuMemGetInfo(size_t *free_p, size_t *total_p)
{
    CUdevice device = fake_current();

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (device < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&fake_mutex);
    *total_p = fake_gpu[device].total;
    *free_p = fake_gpu[device].total - fake_gpu[device].used;
    pthread_mutex_unlock(&fake_mutex);
    return CUDA_SUCCESS;
}
