/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into a daemon by tests: fails the n-th allocation that the daemon's own code, one of our plug-ins or protobuf-c
 * makes. Allocations of other libraries (the transport's, OpenSSL's) never fail, because their error handling is not ours
 * to mend. */
#include "tests/preload/fail_alloc.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_SPANS 32

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);

static struct fail_alloc *control;
static struct {
    uintptr_t lo, hi;
} spans[MAX_SPANS];
static _Atomic unsigned n_spans;
static atomic_flag looking = ATOMIC_FLAG_INIT;
static _Atomic bool looked;

static int on_object(struct dl_phdr_info *info, size_t size, void *arg)
{
    bool first = *(bool *)arg;

    *(bool *)arg = false; /* the program itself comes first */
    if (!first && !strstr(info->dlpi_name, "/rdt_") && !strstr(info->dlpi_name, "libprotobuf-c"))
        return 0;
    if (strstr(info->dlpi_name, "/fail_alloc.so"))
        return 0;
    for (unsigned i = 0; i < info->dlpi_phnum && n_spans < MAX_SPANS; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X)) {
            spans[n_spans].lo = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            spans[n_spans].hi = spans[n_spans].lo + info->dlpi_phdr[i].p_memsz;
            n_spans++;
        }
    return 0;
}

static void attach(void) __attribute__((constructor));
static void attach(void)
{
    const char *path = getenv("RDT_FAIL_ALLOC");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

    if (fd < 0)
        return;
    void *memory = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (memory != MAP_FAILED)
        control = memory;
}

static bool fails(const void *caller)
{
    uintptr_t at = (uintptr_t)caller;
    bool ours = false;

    if (!control || !atomic_load(&control->armed))
        return false;
    if (!atomic_load(&looked)) {
        bool first = true;
        if (atomic_flag_test_and_set(&looking))
            return false;
        (void)dl_iterate_phdr(on_object, &first);
        atomic_store(&looked, true);
    }
    for (unsigned i = 0; i < n_spans && !ours; i++)
        ours = at >= spans[i].lo && at < spans[i].hi;
    if (!ours || atomic_fetch_add(&control->count, 1) + 1 != atomic_load(&control->nth))
        return false;
    atomic_fetch_add(&control->failed, 1);
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(memory, bytes);
}
