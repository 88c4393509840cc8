/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that was registered with the fake driver. See fake_memory.h. */
#include "tests/fake_cuda/fake_memory.h"

#include <stdlib.h>

struct pinned {
    char *base;
    size_t bytes;
    struct pinned *next;
};

static struct pinned *pins;

CUresult cuMemHostRegister(void *address, size_t bytes, unsigned flags)
{
    struct pinned *pin = malloc(sizeof *pin);

    if (fake_is_unsafe()) {
        free(pin);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    (void)flags;
    if (!pin || fake_current() < 0) {
        free(pin);
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *pin = (struct pinned){address, bytes, NULL};
    pthread_mutex_lock(&fake_mutex);
    for (const struct pinned *at = pins; at; at = at->next)
        if ((char *)address < at->base + at->bytes && at->base < (char *)address + bytes) {
            pthread_mutex_unlock(&fake_mutex);
            free(pin);
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        }
    pin->next = pins;
    pins = pin;
    pthread_mutex_unlock(&fake_mutex);
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *address)
{
    CUresult result = fake_no_context_or(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);

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
    bool found = false;

    pthread_mutex_lock(&fake_mutex);
    for (const struct pinned *at = pins; at && !found; at = at->next)
        found = (const char *)address >= at->base && (const char *)address + bytes <= at->base + at->bytes;
    pthread_mutex_unlock(&fake_mutex);
    return found;
}
