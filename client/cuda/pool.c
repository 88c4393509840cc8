/* An allocator of the daemon's memory for libraries that take one as two functions: see rdt_cuda.h. They come with no argument of the
 * user's, so whose memory it is, is this process's state. Blocks are few and large: torch cuts them up by itself.
 *
 * Only its address says which block is freed. So no address is given anew before that: of blocks whose connection was closed, and whose memory
 * is gone with it, the addresses stay reserved. */
#include <stdlib.h>

#include "client/cuda/gpu.h"

struct block {
    void *addr;
    size_t bytes;
    int device;
    rdt_cuda *cuda;
    CUdeviceptr reserved; /* of one that is gone: what is still reserved of it, */
    size_t reserved_bytes; /* 0: nothing, or not yet */
    struct block *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* not held in calls to the daemon or the driver */
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER;
static rdt_cuda *current;
static unsigned calls; /* that use a connection now: pool_forget waits for them */
static struct block *blocks;
static struct block *gone; /* their connections are closed, and their users have not freed them yet */
static struct rdt_cuda_pool_info info;

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

static void failed(const struct rdt_error *err)
{
    (void)pthread_mutex_lock(&mutex);
    info.failures++;
    info.last = *err;
    (void)pthread_mutex_unlock(&mutex);
}

/* Both under the mutex. Where the one at that address hangs; where NULL does: there is none. */
static struct block **find(struct block **list, const void *addr)
{
    while (*list && (*list)->addr != addr)
        list = &(*list)->next;
    return list;
}

static struct block *take(struct block **at)
{
    struct block *block = *at;

    if (block)
        *at = block->next;
    return block;
}

static enum rdt_status fill(struct block *block, ptrdiff_t bytes, int device, struct rdt_error *err)
{
    const char *uuid;
    enum rdt_status status = RDT_OK;

    if (!block->cuda)
        status = rdt_error_set(err, RDT_INVALID, "no connection serves this process's pool of GPU memory: rdt_cuda_pool_use");
    else if (bytes <= 0)
        status = rdt_error_set(err, RDT_INVALID, "%td bytes of GPU memory", bytes);
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

    (void)stream;
    if (!block) {
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory to note a block of GPU memory");
        failed(&err);
        return NULL;
    }
    (void)pthread_mutex_lock(&mutex);
    block->cuda = current;
    calls++;
    (void)pthread_mutex_unlock(&mutex);
    if (fill(block, bytes, device, &err) != RDT_OK) {
        failed(&err);
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

bool pool_keeps(CUdeviceptr base, size_t bytes)
{
    struct block *block;

    (void)pthread_mutex_lock(&mutex);
    block = gone;
    while (block && ((uintptr_t)block->addr < base || (uintptr_t)block->addr - base >= bytes))
        block = block->next;
    if (block) {
        block->reserved = base;
        block->reserved_bytes = bytes;
    }
    (void)pthread_mutex_unlock(&mutex);
    return block;
}

static void forget(struct block *take_block)
{
    struct cuda_driver *driver;

    if (take_block->reserved_bytes > 0 && cuda_driver_open(&driver, NULL) == RDT_OK)
        (void)driver->cuMemAddressFree(take_block->reserved, take_block->reserved_bytes);
    free(take_block);
}

static void give_back(struct block *take_block)
{
    (void)rdt_cuda_wait_all(take_block->cuda, take_block->device, NULL);
    (void)rdt_dealloc_soon(take_block->cuda->conn, take_block->addr, NULL);
    free(take_block);
}

void rdt_cuda_pool_free(void *addr, ptrdiff_t bytes, int device, void *stream)
{
    struct block *block, *old;

    (void)bytes, (void)device, (void)stream;
    if (!addr)
        return;
    (void)pthread_mutex_lock(&mutex);
    old = take(find(&gone, addr));
    block = old ? NULL : take(find(&blocks, addr));
    if (block) {
        info.blocks--;
        info.bytes -= block->bytes;
    }
    calls++;
    (void)pthread_mutex_unlock(&mutex);
    if (block)
        give_back(block);
    if (old)
        forget(old);
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
        (void)take(at);
        info.blocks--;
        info.bytes -= block->bytes;
        block->next = gone;
        gone = block;
    }
    (void)pthread_mutex_unlock(&mutex);
}
