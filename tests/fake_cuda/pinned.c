/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that was registered with the fake driver. See fake_memory.h. */
#include "tests/fake_cuda/fake_memory.h"

#include <stdio.h>
#include <stdlib.h>

struct pinned {
    char *base;
    size_t bytes;
    CUdevice device; /* -1: for all */
    struct pinned *next;
};

#define KNOWN_FLAGS \
    (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)

static struct pinned *pins;

/* Whether every page of the range is mapped, and can be written or, with read_only, read. */
static bool is_mapped(uintptr_t from, size_t bytes, bool read_only)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    uintptr_t at = from, begin, end;
    char line[512], rights[5];

    while (maps && at < from + bytes && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %4s", &begin, &end, rights) == 3 && begin <= at && at < end &&
            (rights[1] == 'w' || (read_only && rights[0] == 'r')))
            at = end;
    if (maps)
        (void)fclose(maps);
    return at >= from + bytes;
}

static bool is_refused(void)
{
    static unsigned calls;

    pthread_mutex_lock(&fake_mutex);
    bool refused = ++calls % 3 == 0 && fake_unkind("FAKE_CUDA_REGISTER_REFUSED");
    pthread_mutex_unlock(&fake_mutex);
    return refused;
}

static CUresult check(uintptr_t address, size_t bytes, unsigned flags)
{
    if (fake_is_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (fake_current() < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_broken() != CUDA_SUCCESS)
        return fake_broken();
    if (!bytes || (flags & ~(unsigned)KNOWN_FLAGS) || !is_mapped(address, bytes, flags & CU_MEMHOSTREGISTER_READ_ONLY))
        return CUDA_ERROR_INVALID_VALUE;
    return is_refused() ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void *address, size_t bytes, unsigned flags)
{
    CUdevice device = flags & CU_MEMHOSTREGISTER_PORTABLE ? -1 : fake_current();
    struct pinned *pin;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    CUresult result = check((uintptr_t)address, bytes, flags);
    if (result != CUDA_SUCCESS)
        return result;
    if (fake_unkind("FAKE_CUDA_SLOW_REGISTER"))
        fake_take_us(1000 + (long)(bytes >> 24) * 1000);
    pin = malloc(sizeof *pin);
    if (!pin)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_mutex);
    *pin = (struct pinned){address, bytes, device, pins};
    for (const struct pinned *at = pins; at; at = at->next)
        if ((char *)address < at->base + at->bytes && at->base < (char *)address + bytes) {
            pthread_mutex_unlock(&fake_mutex);
            free(pin);
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        }
    pins = pin;
    pthread_mutex_unlock(&fake_mutex);
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *address)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    CUresult result = fake_no_context_or(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    fake_await_kernels(fake_current());
    pthread_mutex_lock(&fake_mutex);
    for (struct pinned **at = &pins; *at; at = &(*at)->next)
        if ((*at)->base == address) {
            struct pinned *pin = *at;
            *at = pin->next;
            free(pin);
            result = CUDA_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&fake_mutex);
    return result;
}

bool fake_host_registered(const void *address, size_t bytes)
{
    CUdevice device = fake_current();
    bool found = false;

    pthread_mutex_lock(&fake_mutex);
    for (const struct pinned *at = pins; at && !found; at = at->next)
        found = (at->device < 0 || at->device == device) && (const char *)address >= at->base &&
                (const char *)address + bytes <= at->base + at->bytes;
    pthread_mutex_unlock(&fake_mutex);
    return found;
}
