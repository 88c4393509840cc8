/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h. The pool adds and takes addresses; the mapper, which unmaps memory under librdt's lock, asks about them. */
#include "client/cuda/gpu.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct retained *first;

void retained_add(struct retained *retained, void *addr)
{
    *retained = (struct retained){.addr = addr};
    (void)pthread_mutex_lock(&mutex);
    retained->next = first;
    first = retained;
    (void)pthread_mutex_unlock(&mutex);
}

void retained_after_fork(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    first = NULL;
}

struct retained *retained_take(const void *addr)
{
    struct retained **at = &first, *retained;

    (void)pthread_mutex_lock(&mutex);
    while (*at && (*at)->addr != addr)
        at = &(*at)->next;
    retained = *at;
    if (retained)
        *at = retained->next;
    (void)pthread_mutex_unlock(&mutex);
    return retained;
}

bool retained_claim(CUdeviceptr base, size_t bytes)
{
    struct retained *retained;

    (void)pthread_mutex_lock(&mutex);
    retained = first;
    while (retained && ((uintptr_t)retained->addr < base || (uintptr_t)retained->addr - base >= bytes))
        retained = retained->next;
    if (retained) {
        retained->base = base;
        retained->bytes = bytes;
    }
    (void)pthread_mutex_unlock(&mutex);
    return retained;
}
