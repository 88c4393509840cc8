/* An allocator of the daemon's memory for libraries that take one as two functions: see rdt_cuda.h. They come with no argument of the
 * user's, so whose memory it is, is this process's state. Blocks are few and large: torch cuts them up by itself. */
#include <stdlib.h>

#include "client/cuda/gpu.h"

struct block {
    void *addr;
    size_t bytes;
    int device;
    rdt_cuda *cuda;
    struct block *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* not held in calls to the daemon or the driver */
static pthread_cond_t idle = PTHREAD_COND_INITIALIZER;
static rdt_cuda *current;
static unsigned calls; /* that use a connection now: pool_forget waits for them */
static struct block *blocks;
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

void *rdt_cuda_pool_alloc(ptrdiff_t bytes, int device, void *stream)
{
    struct block *block = calloc(1, sizeof *block);
    enum rdt_status status = RDT_OK;
    struct rdt_error err;
    const char *uuid;

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
    if (!block->cuda)
        status = rdt_error_set(&err, RDT_INVALID, "no connection serves this process's pool of GPU memory: rdt_cuda_pool_use");
    else if (bytes <= 0)
        status = rdt_error_set(&err, RDT_INVALID, "%td bytes of GPU memory", bytes);
    if (status == RDT_OK)
        status = rdt_cuda_uuid(block->cuda, device, &uuid, &err);
    if (status == RDT_OK)
        status = rdt_cuda_alloc(block->cuda, uuid, (size_t)bytes, &block->addr, &err);
    if (status != RDT_OK) {
        failed(&err);
        end_call();
        free(block);
        return NULL;
    }
    block->bytes = (size_t)bytes;
    block->device = device;
    (void)pthread_mutex_lock(&mutex);
    block->next = blocks;
    blocks = block;
    info.blocks++;
    info.bytes += block->bytes;
    (void)pthread_mutex_unlock(&mutex);
    end_call();
    return block->addr;
}

/* Both under the mutex. */
static struct block *take(struct block **at)
{
    struct block *block = *at;

    *at = block->next;
    info.blocks--;
    info.bytes -= block->bytes;
    return block;
}

static struct block *find(void *addr)
{
    for (struct block **at = &blocks; *at; at = &(*at)->next)
        if ((*at)->addr == addr)
            return take(at);
    return NULL; /* its connection was closed, and the memory went with it */
}

void rdt_cuda_pool_free(void *addr, ptrdiff_t bytes, int device, void *stream)
{
    struct block *block;

    (void)bytes, (void)device, (void)stream;
    if (!addr)
        return;
    (void)pthread_mutex_lock(&mutex);
    block = find(addr);
    calls++;
    (void)pthread_mutex_unlock(&mutex);
    if (block) {
        (void)rdt_cuda_wait_all(block->cuda, block->device, NULL);
        (void)rdt_dealloc(block->cuda->conn, block->addr, NULL);
        free(block);
    }
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
        if ((*at)->cuda == cuda)
            free(take(at));
        else
            at = &(*at)->next;
    }
    (void)pthread_mutex_unlock(&mutex);
}
