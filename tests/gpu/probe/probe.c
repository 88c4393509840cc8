/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the questions and prints the table. See probe.h.
 *
 *     probe [TEXT]      those whose name contains TEXT
 */
#include "tests/gpu/probe/probe.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ALL_SECONDS 110.0
#define TAKE_MS 5000

struct driver cu;

/* ---- output ---- */

void say(const char *question, const char *fmt, ...)
{
    char answer[512], line[640];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(answer, sizeof answer, fmt, args);
    va_end(args);
    int n = snprintf(line, sizeof line, "%-46s | %s\n", question, answer);
    if (n > 0 && write(1, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1) < 0) /* one write: processes share it */
        _exit(1);
}

const char *name_of(CUresult result)
{
    static _Thread_local char text[32];
    const char *name = NULL;

    if (result == CUDA_SUCCESS)
        return "ok";
    if (result == LACKS)
        return "(this driver lacks the function)";
    if (CU(cuGetErrorName, result, &name) == CUDA_SUCCESS && name)
        return name;
    (void)snprintf(text, sizeof text, "error %d", (int)result);
    return text;
}

bool went_well(const char *question, const char *what, CUresult result)
{
    if (result != CUDA_SUCCESS)
        say(question, "not answered: %s: %s", what, name_of(result));
    return result == CUDA_SUCCESS;
}

/* ---- time, descriptors ---- */

double now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

void pause_ms(unsigned ms)
{
    (void)poll(NULL, 0, (int)ms);
}

unsigned count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    while (dir && readdir(dir))
        n++;
    if (dir)
        (void)closedir(dir);
    return n;
}

/* ---- the driver ---- */

static bool driver_load(const char *question)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (!library) {
        say(question, "not answered: %s", dlerror());
        return false;
    }
#define TEXT_(name) #name
#define TEXT(name) TEXT_(name)
#define LOAD(name) *(void **)(void *)&cu.name = dlsym(library, TEXT(name));
    FUNCTIONS(LOAD)
#define LOAD_PLAIN(name) /* the fake driver has the names of an older header */ \
    if (!cu.name)                                                               \
        *(void **)(void *)&cu.name = dlsym(library, #name);
    FUNCTIONS(LOAD_PLAIN)
    return true;
}

bool driver_open(const char *question, int gpu)
{
    CUcontext context;
    CUdevice device;

    if (!driver_load(question) || !went_well(question, "cuInit", CU(cuInit, 0)))
        return false;
    if (gpu == NO_CONTEXT)
        return true;
    return went_well(question, "cuDeviceGet", CU(cuDeviceGet, &device, gpu)) &&
           went_well(question, "cuDevicePrimaryCtxRetain", CU(cuDevicePrimaryCtxRetain, &context, device)) &&
           went_well(question, "cuCtxSetCurrent", CU(cuCtxSetCurrent, context));
}

int gpu_count(void)
{
    int n = 0;

    return CU(cuDeviceGetCount, &n) == CUDA_SUCCESS ? n : 0;
}

/* ---- a second process ---- */

bool other_start(struct other *other, const char *question, const struct other_options *options, void (*run)(int link))
{
    int links[2];

    if ((options->uid || options->new_pids) && geteuid() != 0) {
        say(question, "not asked: needs root");
        return false;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, links) || (other->pid = fork()) < 0) {
        say(question, "not asked: %s", strerror(errno));
        return false;
    }
    other->link = links[0];
    if (other->pid > 0) {
        (void)close(links[1]);
        return true;
    }
    (void)close(links[0]);
    if (options->visible)
        (void)setenv("CUDA_VISIBLE_DEVICES", options->visible, 1);
    if (options->new_pids) {
        pid_t inner;
        if (unshare(CLONE_NEWPID) || (inner = fork()) < 0) {
            say(question, "not asked: a PID namespace: %s", strerror(errno));
            _exit(1);
        }
        if (inner > 0) {
            (void)waitpid(inner, NULL, 0);
            _exit(0);
        }
    }
    if (options->uid && (setgid(options->uid) || setuid(options->uid))) {
        say(question, "not asked: setuid: %s", strerror(errno));
        _exit(1);
    }
    run(links[1]);
    _exit(0);
}

void other_kill(struct other *other)
{
    (void)kill(other->pid, SIGKILL);
    (void)waitpid(other->pid, NULL, 0);
}

void other_end(struct other *other)
{
    (void)close(other->link);
    (void)waitpid(other->pid, NULL, 0);
}

union control {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int))];
};

bool give(int link, const void *data, size_t bytes, int fd)
{
    struct iovec part = {(void *)data, bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    union control control = {.head = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))}};

    if (fd >= 0) {
        memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
    }
    return sendmsg(link, &message, MSG_NOSIGNAL) == (ssize_t)bytes;
}

bool take(int link, void *data, size_t bytes, int *fd_p)
{
    struct pollfd waits = {.fd = link, .events = POLLIN};
    struct iovec part = {data, bytes};
    union control control = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};

    if (fd_p)
        *fd_p = -1;
    if (poll(&waits, 1, TAKE_MS) != 1 || recvmsg(link, &message, MSG_CMSG_CLOEXEC) != (ssize_t)bytes)
        return false;
    if (fd_p && message.msg_controllen >= CMSG_LEN(sizeof(int)) && control.head.cmsg_type == SCM_RIGHTS)
        memcpy(fd_p, CMSG_DATA(&control.head), sizeof *fd_p);
    return true;
}

/* ---- memory ---- */

CUmemAllocationProp chunk_kind(int gpu, bool rdma)
{
    CUmemAllocationProp kind = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu}};

    kind.allocFlags.gpuDirectRDMACapable = rdma;
    return kind;
}

CUresult chunk_map(struct chunk *chunk, int gpu)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result = CU(cuMemAddressReserve, &chunk->address, chunk->bytes, 0, 0, 0);

    if (result == CUDA_SUCCESS)
        result = CU(cuMemMap, chunk->address, chunk->bytes, 0, chunk->handle, 0);
    return result == CUDA_SUCCESS ? CU(cuMemSetAccess, chunk->address, chunk->bytes, &access, 1) : result;
}

CUresult chunk_make(struct chunk *chunk, int gpu, size_t bytes)
{
    CUmemAllocationProp kind = chunk_kind(gpu, false);

    chunk->bytes = bytes;
    CUresult result = CU(cuMemCreate, &chunk->handle, bytes, &kind, 0);
    return result == CUDA_SUCCESS ? chunk_map(chunk, gpu) : result;
}

CUresult fill(CUdeviceptr address, unsigned char value, size_t bytes)
{
    CUresult result = CU(cuMemsetD8Async, address, value, bytes, NULL);

    return result == CUDA_SUCCESS ? CU(cuStreamSynchronize, NULL) : result;
}

CUresult peek(CUdeviceptr address, unsigned char *value_p)
{
    CUresult result = CU(cuMemcpyAsync, (CUdeviceptr)(uintptr_t)value_p, address, 1, NULL);

    return result == CUDA_SUCCESS ? CU(cuStreamSynchronize, NULL) : result;
}

/* ---- asking ---- */

static void ask(const struct question *question, double all_until)
{
    double limit = now_ms() + question->seconds * 1e3;
    int status = 0;

    if (now_ms() > all_until) {
        say(question->name, "not asked: two minutes are over; probe '%s' asks it", question->name);
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        (void)setpgid(0, 0);
        question->ask();
        _exit(0);
    }
    (void)setpgid(pid, pid);
    while (pid > 0 && waitpid(pid, &status, WNOHANG) == 0) {
        if (now_ms() > limit) {
            say(question->name, "NO END within %u s", question->seconds);
            (void)kill(-pid, SIGKILL);
            (void)waitpid(pid, &status, 0);
            return;
        }
        pause_ms(5);
    }
    (void)kill(-pid, SIGKILL); /* what it started */
    if (pid < 0)
        say(question->name, "not asked: %s", strerror(errno));
    else if (WIFSIGNALED(status))
        say(question->name, "DIED of signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
}

int main(int argc, char **argv)
{
    static const struct question *const subjects[] = {device_questions, share_questions, stream_questions, nccl_questions};
    double all_until = now_ms() + ALL_SECONDS * 1e3;
    unsigned asked = 0;

    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
        for (const struct question *question = subjects[i]; question->name; question++)
            if (argc < 2 || strstr(question->name, argv[1])) {
                ask(question, all_until);
                asked++;
            }
    if (!asked)
        (void)fprintf(stderr, "probe: no question has '%s' in its name\n", argv[1]);
    return asked ? 0 : 2;
}
