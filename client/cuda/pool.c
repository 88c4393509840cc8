/* SPDX-License-Identifier: Apache-2.0 */
/* See rdt_cuda.h. An allocator for libraries that take one as two functions without an argument of their own, so the connection
 * that serves them is state of this process. Blocks are few and large: torch divides them by itself.
 *
 * A block is identified by its address alone when it is freed, so no address may be given out again before that. When a
 * connection is closed, its blocks lose their memory, but their addresses stay reserved (retained.c) until they are freed.
 */
#include <stdlib.h>

#include "client/cuda/gpu.h"
#include "proto/container_of.h"

struct block {
    void *addr;
    size_t bytes;
    int device;
    rdt_cuda *cuda;
    struct retained retained; /* in use once the connection is closed */
    struct block *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* not held in calls to the daemon or the driver */
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER;
static rdt_cuda *current;
static unsigned calls;       /* that use a connection now; pool_forget waits for them */
static struct block *blocks; /* of connections that are open */
static struct rdt_cuda_pool_info info;

/* The parent's other threads may have held the mutex. Its blocks are addresses of a GPU, which mean nothing here. */
void pool_after_fork(void)
{
    mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    idle = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    current = NULL;
    calls = 0;
    blocks = NULL;
    info = (struct rdt_cuda_pool_info){0};
}

void rdt_cuda_pool_use(rdt_cuda *cuda)
{
    (void)pthread_mutex_lock(&mutex);
    current = cuda;
    (void)pthread_mutex_unlock(&mutex);
}

static void end_call(void)
{
    (void)pthread_mutex_lock(&mutex);
    if (--calls == 0)
        (void)pthread_cond_broadcast(&idle);
    (void)pthread_mutex_unlock(&mutex);
}

static void count_failure(const struct rdt_error *err)
{
    (void)pthread_mutex_lock(&mutex);
    info.failures++;
    info.last = *err;
    (void)pthread_mutex_unlock(&mutex);
}

/* Takes the block at that address out of the list, or returns NULL. The mutex is held. */
static struct block *remove_block(const void *addr)
{
    struct block **at = &blocks, *block;

    while (*at && (*at)->addr != addr)
        at = &(*at)->next;
    block = *at;
    if (block) {
        *at = block->next;
        info.blocks--;
        info.bytes -= block->bytes;
    }
    return block;
}

static enum rdt_status fill(struct block *block, ptrdiff_t bytes, int device, struct rdt_error *err)
{
    const char *uuid;
    enum rdt_status status = RDT_OK;

    if (!block->cuda)
        status = rdt_error_set(err, RDT_INVALID,
                               "no connection serves this process's pool of GPU memory; rdt_cuda_pool_use sets one");
    else if (bytes <= 0)
        status = rdt_error_set(err, RDT_INVALID, "cannot allocate %td bytes of GPU memory", bytes);
    if (status == RDT_OK)
        status = rdt_cuda_uuid(block->cuda, device, &uuid, err);
    if (status != RDT_OK)
        return status;
    block->bytes = (size_t)bytes;
    block->device = device;
    return rdt_cuda_alloc(block->cuda, uuid, block->bytes, &block->addr, err);
}

void *rdt_cuda_pool_alloc(ptrdiff_t bytes, int device, void *stream)
{
    struct block *block = calloc(1, sizeof *block);
    struct rdt_error err;

    if (!block) {
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory to allocate a block of GPU memory");
        count_failure(&err);
        return NULL;
    }
    (void)pthread_mutex_lock(&mutex);
    block->cuda = current;
    calls++;
    (void)pthread_mutex_unlock(&mutex);
    if (fill(block, bytes, device, &err) != RDT_OK) {
        count_failure(&err);
        end_call();
        free(block);
        return NULL;
    }
    (void)pthread_mutex_lock(&mutex);
    block->next = blocks;
    blocks = block;
    info.blocks++;
    info.bytes += block->bytes;
    (void)pthread_mutex_unlock(&mutex);
    end_call();
    return block->addr;
}

/* Frees a block whose connection is open. */
static void give_back(struct block *take_block)
{
    (void)rdt_cuda_wait_all(take_block->cuda, take_block->device, NULL);
    (void)rdt_dealloc_soon(take_block->cuda->conn, take_block->addr, NULL);
    free(take_block);
}

/* Frees a block whose connection was closed: only its addresses are left. */
static void free_addresses(struct block *take_block)
{
    const struct retained *retained = &take_block->retained;
    struct cuda_driver *driver;

    if (retained->bytes > 0 && cuda_driver_open(&driver, NULL) == RDT_OK)
        (void)driver->cuMemAddressFree(retained->base, retained->bytes);
    free(take_block);
}

void rdt_cuda_pool_free(void *addr, ptrdiff_t bytes, int device, void *stream)
{
    struct retained *retained;
    struct block *block;

    if (!addr)
        return;
    (void)pthread_mutex_lock(&mutex);
    retained = retained_take(addr);
    block = retained ? NULL : remove_block(addr);
    calls++;
    (void)pthread_mutex_unlock(&mutex);
    if (block)
        give_back(block);
    if (retained)
        free_addresses(container_of(retained, struct block, retained));
    end_call();
}

void rdt_cuda_pool_info(struct rdt_cuda_pool_info *info_p)
{
    (void)pthread_mutex_lock(&mutex);
    *info_p = info;
    (void)pthread_mutex_unlock(&mutex);
}

void pool_forget(const rdt_cuda *cuda)
{
    struct block **at = &blocks;

    (void)pthread_mutex_lock(&mutex);
    if (current == cuda)
        current = NULL;
    while (calls > 0)
        (void)pthread_cond_wait(&idle, &mutex);
    while (*at) {
        struct block *block = *at;
        if (block->cuda != cuda) {
            at = &block->next;
            continue;
        }
        *at = block->next;
        info.blocks--;
        info.bytes -= block->bytes;
        retained_add(&block->retained, block->addr);
    }
    (void)pthread_mutex_unlock(&mutex);
}
