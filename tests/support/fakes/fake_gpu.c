/* SPDX-License-Identifier: Apache-2.0 */
/* See fake_gpu.h. */
#include "tests/support/fakes/fake_gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/check.h"
#include "tests/support/rdtd.h"

bool fake_gpu_built(void)
{
    return access(build_path("backends/rdt_nccl.so"), F_OK) == 0;
}

static void *load(const char *relative)
{
    void *library = dlopen(build_path(relative), RTLD_NOW | RTLD_LOCAL);

    must_say(library, "%s", dlerror());
    return library;
}

void *fake_gpu_load(void)
{
    return load("tests/fake_cuda/libcuda.so.1");
}

void fake_nccl_load(void)
{
    (void)fake_gpu_load();
    (void)load("tests/fake_nccl/libnccl.so.2");
}

bool fake_gpu_is_unkind(const char *name)
{
    const char *one = getenv(name), *all = getenv("FAKE_CUDA_UNKIND");

    return one ? atoi(one) != 0 : all && atoi(all) != 0;
}

struct traced {
    int pid, thread;
    char name[80];
    size_t bytes;
};

static bool read_traced(FILE *trace, struct traced *traced_p)
{
    char line[140];

    if (!trace || !fgets(line, sizeof line, trace))
        return false;
    must(sscanf(line, "%d %d %79s %zu", &traced_p->pid, &traced_p->thread, traced_p->name, &traced_p->bytes) == 4);
    traced_p->name[strcspn(traced_p->name, "_")] = '\0'; /* cuMemFree_v2 */
    return true;
}

unsigned fake_gpu_calls(int pid, int thread, const char *function)
{
    FILE *trace = fopen(getenv("FAKE_CUDA_TRACE"), "re");
    struct traced traced;
    unsigned n = 0;

    while (read_traced(trace, &traced))
        n += traced.pid == pid && (thread == 0 || traced.thread == thread) && (!function || strcmp(traced.name, function) == 0);
    if (trace)
        (void)fclose(trace);
    return n;
}

unsigned fake_gpu_calls_before(int pid, const char *function, const char *first)
{
    FILE *trace = fopen(getenv("FAKE_CUDA_TRACE"), "re");
    struct traced traced;
    unsigned n = 0;
    bool came = false;

    while (!came && read_traced(trace, &traced)) {
        came = traced.pid == pid && strcmp(traced.name, first) == 0;
        n += traced.pid == pid && strcmp(traced.name, function) == 0;
    }
    if (trace)
        (void)fclose(trace);
    return n;
}

uint64_t fake_gpu_copied(int pid)
{
    FILE *trace = fopen(getenv("FAKE_CUDA_TRACE"), "re");
    struct traced traced;
    uint64_t bytes = 0;

    while (read_traced(trace, &traced))
        bytes += traced.pid == pid ? traced.bytes : 0;
    if (trace)
        (void)fclose(trace);
    return bytes;
}

unsigned fake_gpu_threads(int pid, const char *function, int *threads_p, unsigned max)
{
    FILE *trace = fopen(getenv("FAKE_CUDA_TRACE"), "re");
    struct traced traced;
    unsigned n = 0;

    while (read_traced(trace, &traced)) {
        bool known = traced.pid != pid || strcmp(traced.name, function) != 0;
        for (unsigned i = 0; i < n && !known; i++)
            known = threads_p[i] == traced.thread;
        must(known || n < max);
        if (!known)
            threads_p[n++] = traced.thread;
    }
    if (trace)
        (void)fclose(trace);
    return n;
}

void fake_gpu_trace_clear(void)
{
    must(truncate(getenv("FAKE_CUDA_TRACE"), 0) == 0);
}

static const char *path_env(const char *first, const char *second)
{
    static char text[4][512];
    static unsigned turn;
    const char *before = getenv("LD_LIBRARY_PATH");
    char *to = text[turn++ % 4];

    (void)snprintf(to, sizeof text[0], "LD_LIBRARY_PATH=%s%s%s%s%s", build_path(first), second ? ":" : "",
                   second ? build_path(second) : "", before ? ":" : "", before ? before : "");
    return to;
}

const char *fake_gpu_env(void)
{
    return path_env("tests/fake_cuda", NULL);
}

const char *fake_nccl_env(void)
{
    return path_env("tests/fake_cuda", "tests/fake_nccl");
}

const char *stub_cuda_env(void)
{
    return path_env("tests/stub_cuda", NULL);
}
