/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/reserve.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <uv.h>

#define RESERVE_BYTES ((size_t)16 << 20)

static _Atomic(void *) reserve; /* NULL: it is not held */

bool reserve_hold(void)
{
    void *none = NULL, *addr;

    if (atomic_load(&reserve))
        return true;
    addr = mmap(NULL, RESERVE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (addr == MAP_FAILED)
        return false;
    if (!atomic_compare_exchange_strong(&reserve, &none, addr))
        (void)munmap(addr, RESERVE_BYTES); /* another thread was quicker */
    return true;
}

/* Returns false if there is nothing to release. */
static bool release(void)
{
    void *addr = atomic_exchange(&reserve, NULL);

    return addr && munmap(addr, RESERVE_BYTES) == 0;
}

void *reserve_realloc(void *memory, size_t bytes)
{
    void *moved = realloc(memory, bytes);

    if (!moved && bytes > 0 && release())
        moved = realloc(memory, bytes);
    return moved;
}

static void *allocate(size_t bytes)
{
    return reserve_realloc(NULL, bytes);
}

static void *allocate_zeroed(size_t n, size_t bytes)
{
    void *memory = calloc(n, bytes);

    return !memory && release() ? calloc(n, bytes) : memory;
}

void reserve_install(void)
{
    (void)reserve_hold();
    (void)uv_replace_allocator(allocate, reserve_realloc, allocate_zeroed, free);
}
