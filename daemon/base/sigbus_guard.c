/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/sigbus_guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A free slot has lo and hi 0. hi is written last and cleared first, so the handler never sees a range
 * wider than the one entered. */
struct slot {
    atomic_uintptr_t lo, hi;
    atomic_uint_fast64_t page_bytes;
    atomic_bool broken;
};

static struct slot slots[GUARD_MAX];
static atomic_int n_slots; /* slots that were ever in use */
static struct sigaction before;

/* Taken by enter and leave, not by the handler. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int next_free[GUARD_MAX]; /* for each free slot the next one */
static int first_free = GUARD_NONE;

static struct slot *find(uintptr_t addr)
{
    int n = atomic_load(&n_slots);

    for (int i = 0; i < n; i++)
        if (addr < atomic_load(&slots[i].hi) && addr >= atomic_load(&slots[i].lo))
            return &slots[i];
    return NULL;
}

/* Calls the kernel directly: libraries wrap mmap with code that a signal handler must not run. */
static bool put_zeros(uintptr_t page, uint64_t bytes)
{
    return syscall(SYS_mmap, page, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                   0) == (long)page;
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    int saved = errno;
    uintptr_t addr = (uintptr_t)info->si_addr;
    struct slot *slot = info->si_code > 0 ? find(addr) : NULL; /* otherwise a process sent the signal */
    uint64_t page_bytes = slot ? atomic_load(&slot->page_bytes) : 0;

    if (slot && put_zeros(addr & ~(uintptr_t)(page_bytes - 1), page_bytes))
        atomic_store(&slot->broken, true);
    else
        (void)sigaction(SIGBUS, &before, NULL); /* the instruction faults again, with the previous handler */
    errno = saved;
}

void sigbus_guard_install(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};

    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGBUS, &action, &before);
}

int sigbus_guard_enter(const void *addr, uint64_t bytes, uint64_t page_bytes)
{
    int at;

    (void)pthread_mutex_lock(&mutex);
    at = first_free;
    if (at != GUARD_NONE) {
        first_free = next_free[at];
    } else if (atomic_load(&n_slots) < GUARD_MAX) {
        at = atomic_load(&n_slots);
        atomic_store(&n_slots, at + 1);
    }
    (void)pthread_mutex_unlock(&mutex);
    if (at == GUARD_NONE)
        return GUARD_NONE;
    atomic_store(&slots[at].broken, false);
    atomic_store(&slots[at].page_bytes, page_bytes);
    atomic_store(&slots[at].lo, (uintptr_t)addr);
    atomic_store(&slots[at].hi, (uintptr_t)addr + bytes);
    return at;
}

void sigbus_guard_leave(int slot)
{
    if (slot == GUARD_NONE)
        return;
    atomic_store(&slots[slot].hi, 0);
    atomic_store(&slots[slot].lo, 0);
    (void)pthread_mutex_lock(&mutex);
    next_free[slot] = first_free;
    first_free = slot;
    (void)pthread_mutex_unlock(&mutex);
}

bool sigbus_guard_is_broken(int slot)
{
    return slot != GUARD_NONE && atomic_load(&slots[slot].broken);
}
