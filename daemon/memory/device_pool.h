/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of device memory: free blocks, kept because a device takes long to allocate and to map memory.
 *
 * The rule is that of host memory: a handle that has left the daemon cannot be taken back. A block that never left the
 * daemon may serve any client; the caller zeroes it if its bytes belong to another owner or if the new region must be
 * zero. A block that only one client ever had serves that client, while it is connected. A block in which readers of one
 * owner had a snapshot, or what a client of theirs wrote once and published, serves the next of these of that owner: a
 * process that reads it after its release sees only bytes that its owner may read. All other memory is freed.
 *
 * Readers may keep the last of these mapped (mapped.h), and then have the next region in it mapped already. Such a block is
 * not free before they have unmapped it.
 *
 * Blocks count as used memory of their device. They are bounded for each device (pool_max_bytes) and for each client and
 * owner on it (half of that, or one block). A block is freed when nobody took it for idle_ns, when its client, its memory kind
 * or a transport that it is registered with goes, and before a request is refused for lack of memory on the device.
 *
 * All calls are made in the loop thread.
 */
#ifndef DAEMON_DEVICE_POOL_H
#define DAEMON_DEVICE_POOL_H

#include "daemon/base/owner.h"
#include "daemon/memory/pool.h"

struct device_pool {
    struct list blocks; /* struct pool_block, free ones of all devices, the oldest first */
    uint64_t idle_ns;   /* 0: nothing is pooled */
    /* Frees the memory, takes off its charge and frees the struct. It must only begin that: up to all blocks go at once. */
    void (*release)(struct pool_block *block);
};

struct device_block_wish {
    struct memory_device *device;
    uint64_t bytes;            /* as the kind rounds them */
    uint64_t client;           /* a block that only this client had will do, too; 0: none */
    const struct owner *owner; /* the same for processes of this owner; NULL: none */
};

/* Initialises a pool that accepts no blocks. */
void device_pool_init(struct device_pool *pool, void (*release)(struct pool_block *block));

/* From now on blocks are pooled for idle_ns; 0: no more blocks are accepted. */
void device_pool_set_idle(struct device_pool *pool, uint64_t idle_ns);

/* Takes over a block with its charge. The caller has set owner, serves and client. May free older blocks. Returns false if the
 * pool has no use for it: the block is still the caller's. */
bool device_pool_give(struct device_pool *pool, struct pool_block *block);

/* Takes a block of at least wish->bytes with its charge; NULL: there is none. Only whom block->serves names may have it. */
struct pool_block *device_pool_take(struct device_pool *pool, const struct device_block_wish *wish);

/* Moves blocks of that device of at least `bytes` bytes, or all if there are fewer, to `victims`, the oldest first, but none
 * that a reader has mapped. They no longer count as pooled. The caller takes off their charge and frees them. */
void device_pool_evict(struct device_pool *pool, const struct memory_device *device, uint64_t bytes, struct list *victims);

/* The bytes of the device in blocks that readers have mapped. device_pool_unmap releases such blocks of at least `bytes` bytes,
 * or all: they are freed when their readers have unmapped them. Returns whether there were any. */
uint64_t device_pool_mapped_bytes(const struct device_pool *pool, const struct memory_device *device);
bool device_pool_unmap(struct device_pool *pool, const struct memory_device *device, uint64_t bytes);

/* Frees the blocks that were free for idle_ns. Returns false if the pool is empty. */
bool device_pool_sweep(struct device_pool *pool, uint64_t now_ns);

/* These free the blocks that only that client ever had, of that kind, or registered with that transport. */
void device_pool_forget_client(struct device_pool *pool, uint64_t client);
void device_pool_forget_kind(struct device_pool *pool, const struct memory_kind *kind);
void device_pool_forget_transport(struct device_pool *pool, const struct transport *transport);

/* The number of blocks of that kind. */
unsigned device_pool_blocks(const struct device_pool *pool, const struct memory_kind *kind);

#endif
