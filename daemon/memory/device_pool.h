/* Memory on devices that nobody uses any more, kept for who wants such next: what a device takes long to make and to map is there already.
 *
 * The rule is that of host memory: a handle that has left the daemon cannot be taken back. So what never left it may serve anyone, zeroed
 * first where it would show one owner the bytes of another (or was to be zero), and what only one client ever had may serve that client
 * alone, while it is connected. Everything else goes back to the device.
 *
 * What is kept counts as used on its device, is bounded for each device and for each client on it, goes when nobody wanted it for idle_ns,
 * with its client, its kind or a transport that it is registered with, and is given up before anyone is refused room there.
 *
 * Loop thread only.
 */
#ifndef DAEMON_DEVICE_POOL_H
#define DAEMON_DEVICE_POOL_H

#include "daemon/base/owner.h"
#include "daemon/memory/pool.h"

struct device_pool {
    struct list kept; /* struct pool_block, of all devices, the oldest first */
    uint64_t idle_ns;
    void (*release)(struct pool_block *block); /* gives it back to its device; the struct, too */
};

struct device_block_wish {
    struct memory_device *device;
    uint64_t bytes;  /* as the kind rounds them */
    uint64_t client; /* whose own will do, too; 0: nobody's */
};

void device_pool_init(struct device_pool *pool, void (*release)(struct pool_block *block));

/* From now on memory is kept: on each device as its ready_max_bytes says. */
void device_pool_keep(struct device_pool *pool, uint64_t idle_ns);

/* Takes a block over, with its charge, of whose bytes `owner` knows. client: the only one that ever had it; 0: nobody had. false: it is
 * not wanted here. */
bool device_pool_give(struct device_pool *pool, struct pool_block *block, const struct owner *owner, uint64_t client);

/* A block of about so many bytes, the caller's with its charge; NULL: there is none. block->client: only that one may ever have it. */
struct pool_block *device_pool_take(struct device_pool *pool, const struct device_block_wish *wish);

/* Moves blocks of at least so many bytes on that device (or all there are) to victims, the oldest first. They are no longer counted as
 * kept; their charge is the caller's. */
void device_pool_give_up(struct device_pool *pool, const struct memory_device *device, uint64_t bytes, struct list *victims);

bool device_pool_sweep(struct device_pool *pool, uint64_t now_ns); /* false: nothing is left to grow old */
void device_pool_forget_client(struct device_pool *pool, uint64_t client);
void device_pool_forget_kind(struct device_pool *pool, const struct memory_kind *kind);
void device_pool_forget_transport(struct device_pool *pool, const struct transport *transport); /* what is registered with it */
unsigned device_pool_blocks(const struct device_pool *pool, const struct memory_kind *kind);

#endif
