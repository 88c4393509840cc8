/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/device_pool.h"

#include "daemon/base/account.h"

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

/* Whether both serve the same client, or the same owner. */
static bool serve_the_same(const struct pool_block *a, const struct pool_block *b)
{
    return a->serves == b->serves && a->client == b->client &&
           (a->serves != POOL_SERVES_OWNER || owner_equal(&a->owner, &b->owner));
}

static uint64_t bytes_like(const struct device_pool *pool, const struct pool_block *like)
{
    uint64_t bytes = 0;

    list_each (const struct pool_block, block, &pool->blocks, link)
        bytes += block->device == like->device && serve_the_same(block, like) ? block->bytes : 0;
    return bytes;
}

/* The oldest block on the device. like: one that serves the same; NULL: any. */
static struct pool_block *oldest(const struct device_pool *pool, const struct memory_device *device,
                                 const struct pool_block *like)
{
    list_each (struct pool_block, block, &pool->blocks, link)
        if (block->device == device && (!like || serve_the_same(block, like)))
            return block;
    return NULL;
}

bool device_pool_give(struct device_pool *pool, struct pool_block *block)
{
    struct memory_device *device = block->device;
    bool for_all = block->serves == POOL_SERVES_ANYONE;
    uint64_t max = device->memory.pool_max_bytes, own_max = for_all ? max : max / 2; /* no client fills the pool, */

    if (block->bytes > own_max) /* except by one block: that of a model is often larger than half of the pool */
        own_max = block->bytes;
    if (pool->idle_ns == 0 || block->bytes == 0 || block->bytes > max || !block->kind->available || !block->block.addr)
        return false;
    for (unsigned i = 0; i < block->n_registrations; i++)
        if (block->registrations[i].transport->unloading)
            return false;
    for (uint64_t like = for_all ? 0 : bytes_like(pool, block); like > own_max - block->bytes;) {
        struct pool_block *first = oldest(pool, device, block);
        like -= first->bytes;
        drop(pool, first);
    }
    while (device->memory.pooled_bytes > max - block->bytes || device->memory.n_pooled >= MAX_BLOCKS)
        drop(pool, oldest(pool, device, NULL));
    block->since_ns = uv_hrtime();
    list_append(&pool->blocks, &block->link);
    device->memory.pooled_bytes += block->bytes;
    device->memory.n_pooled++;
    return true;
}

static bool may_serve(const struct pool_block *block, const struct device_block_wish *wish)
{
    if (block->serves == POOL_SERVES_OWNER)
        return wish->owner && owner_equal(&block->owner, wish->owner);
    return block->serves == POOL_SERVES_ANYONE || block->client == wish->client;
}

/* Blocks that serve nobody else come first: if a client's put took the memory of an older snapshot, which may serve anybody,
 * the next snapshot would need new memory. */
static bool is_better(const struct pool_block *block, const struct pool_block *best)
{
    return block->serves != best->serves ? block->serves > best->serves : block->bytes <= best->bytes;
}

/* Memory on devices is short, so a block serves no request that it exceeds by more than a quarter. Of those that fit, the
 * smallest is taken, and of equal ones the latest. */
struct pool_block *device_pool_take(struct device_pool *pool, const struct device_block_wish *wish)
{
    struct pool_block *best = NULL;

    if (pool->idle_ns == 0)
        return NULL;
    list_each (struct pool_block, block, &pool->blocks, link) {
        if (block->device != wish->device || !may_serve(block, wish))
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
    uint64_t given = 0;

    list_each_safe (struct pool_block, block, &pool->blocks, link) {
        if (given >= bytes)
            return;
        if (block->device != device || !list_empty(&block->readers))
            continue;
        unlist(block);
        account_unref(block->slowed_by);
        block->slowed_by = NULL;
        list_append(victims, &block->link);
        given += block->bytes;
    }
}

uint64_t device_pool_mapped_bytes(const struct device_pool *pool, const struct memory_device *device)
{
    uint64_t bytes = 0;

    list_each (const struct pool_block, block, &pool->blocks, link)
        bytes += block->device == device && !list_empty(&block->readers) ? block->bytes : 0;
    return bytes;
}

bool device_pool_unmap(struct device_pool *pool, const struct memory_device *device, uint64_t bytes)
{
    uint64_t given = 0;

    list_each_safe (struct pool_block, block, &pool->blocks, link) {
        if (given >= bytes)
            break;
        if (block->device != device || list_empty(&block->readers))
            continue;
        given += block->bytes;
        drop(pool, block);
    }
    return given > 0;
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
