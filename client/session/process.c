/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the pid in a page that the kernel zeroes in the child of a fork. */
#include "process.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

static _Atomic pid_t *_Atomic cached; /* NULL: not mapped yet, or this kernel has no such pages */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void map_page(void)
{
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED)
        return;
    if (madvise(page, bytes, MADV_WIPEONFORK) == 0)
        atomic_store_explicit(&cached, page, memory_order_release);
    else
        (void)munmap(page, bytes);
}

pid_t process_pid(void)
{
    _Atomic pid_t *page = atomic_load_explicit(&cached, memory_order_acquire);
    pid_t pid;

    if (!page) {
        (void)pthread_once(&once, map_page);
        page = atomic_load_explicit(&cached, memory_order_acquire);
    }
    if (!page)
        return getpid();
    pid = atomic_load_explicit(page, memory_order_relaxed);
    if (pid == 0) {
        pid = getpid();
        atomic_store_explicit(page, pid, memory_order_relaxed);
    }
    return pid;
}
