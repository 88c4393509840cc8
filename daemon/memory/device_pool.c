/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/device_pool.h"

#define MAX_BLOCKS 256u /* on one device: each takes a mapping there and a descriptor */

void device_pool_init(struct device_pool *pool, void (*release)(struct pool_block *block))
{
    *pool = (struct device_pool){.release = release};
    list_init(&pool->blocks);
}

void device_pool_set_idle(struct device_pool *pool, uint64_t idle_ns)
{
    pool->idle_ns = idle_ns;
}

static void unlist(struct pool_block *block)
{
    list_remove(&block->link);
    block->device->memory.pooled_bytes -= block->bytes;
    block->device->memory.n_pooled--;
}

static void drop(struct device_pool *pool, struct pool_block *block)
{
    unlist(block);
    pool->release(block);
}

/* ---- giving and taking ---- */

static uint64_t bytes_of(const struct device_pool *pool, const struct memory_device *device, uint64_t client)
{
    uint64_t bytes = 0;

    list_each (const struct pool_block, block, &pool->blocks, link)
        bytes += block->device == device && block->client == client ? block->bytes : 0;
    return bytes;
}

/* The oldest block on the device that only that client had; any: whoever had it. */
static struct pool_block *oldest(const struct device_pool *pool, const struct memory_device *device, uint64_t client, bool any)
{
    list_each (struct pool_block, block, &pool->blocks, link)
        if (block->device == device && (any || block->client == client))
            return block;
    return NULL;
}

bool device_pool_give(struct device_pool *pool, struct pool_block *block, const struct owner *owner, uint64_t client)
{
    struct memory_device *device = block->device;
    uint64_t max = device->memory.pool_max_bytes, own_max = client != 0 ? max / 2 : max; /* no client fills the pool, */

    if (block->bytes > own_max) /* except by one block: that of a model is often larger than half of the pool */
        own_max = block->bytes;
    if (pool->idle_ns == 0 || block->bytes == 0 || block->bytes > max || !block->kind->available || !block->block.addr)
        return false;
    for (unsigned i = 0; i < block->n_registrations; i++)
        if (block->registrations[i].transport->unloading)
            return false;
    while (client != 0 && bytes_of(pool, device, client) > own_max - block->bytes)
        drop(pool, oldest(pool, device, client, false));
    while (device->memory.pooled_bytes > max - block->bytes || device->memory.n_pooled >= MAX_BLOCKS)
        drop(pool, oldest(pool, device, 0, true));
    block->owner = *owner;
    block->client = client;
    block->since_ns = uv_hrtime();
    list_append(&pool->blocks, &block->link);
    device->memory.pooled_bytes += block->bytes;
    device->memory.n_pooled++;
    return true;
}

/* Blocks that only this client had come first, because they serve nobody else: if a client's put took the memory of an older
 * snapshot, which may serve anybody, the next snapshot would need new memory. */
static bool is_better(const struct pool_block *block, const struct pool_block *best)
{
    if ((block->client != 0) != (best->client != 0))
        return block->client != 0;
    return block->bytes <= best->bytes;
}

/* Memory on devices is short, so a block serves no request that it exceeds by more than a quarter. Of those that fit, the
 * smallest is taken, and of equal ones the latest. */
struct pool_block *device_pool_take(struct device_pool *pool, const struct device_block_wish *wish)
{
    struct pool_block *best = NULL;

    if (pool->idle_ns == 0)
        return NULL;
    list_each (struct pool_block, block, &pool->blocks, link) {
        if (block->device != wish->device || (block->client != 0 && block->client != wish->client))
            continue;
        if (block->bytes < wish->bytes || block->bytes - wish->bytes > wish->bytes / 4)
            continue;
        if (!best || is_better(block, best))
            best = block;
    }
    if (!best) {
        wish->device->memory.pool_misses++;
        return NULL;
    }
    wish->device->memory.pool_hits++;
    unlist(best);
    return best;
}

void device_pool_evict(struct device_pool *pool, const struct memory_device *device, uint64_t bytes, struct list *victims)
{
    struct pool_block *block;

    for (uint64_t given = 0; given < bytes && (block = oldest(pool, device, 0, true)); given += block->bytes) {
        unlist(block);
        list_append(victims, &block->link);
    }
}

/* ---- freeing unused blocks ---- */

bool device_pool_sweep(struct device_pool *pool, uint64_t now_ns)
{
    list_drain (struct pool_block, block, &pool->blocks, link) {
        if (now_ns - block->since_ns < pool->idle_ns)
            return true;
        drop(pool, block);
    }
    return false;
}

void device_pool_forget_client(struct device_pool *pool, uint64_t client)
{
    list_each_safe (struct pool_block, block, &pool->blocks, link)
        if (block->client == client)
            drop(pool, block);
}

void device_pool_forget_kind(struct device_pool *pool, const struct memory_kind *kind)
{
    list_each_safe (struct pool_block, block, &pool->blocks, link)
        if (block->kind == kind)
            drop(pool, block);
}

void device_pool_forget_transport(struct device_pool *pool, const struct transport *transport)
{
    list_each_safe (struct pool_block, block, &pool->blocks, link) {
        bool registered = false;
        for (unsigned i = 0; i < block->n_registrations; i++)
            registered |= block->registrations[i].transport == transport;
        if (registered)
            drop(pool, block);
    }
}

unsigned device_pool_blocks(const struct device_pool *pool, const struct memory_kind *kind)
{
    unsigned n = 0;

    list_for_each (node, &pool->blocks)
        n += container_of(node, struct pool_block, link)->kind == kind;
    return n;
}
