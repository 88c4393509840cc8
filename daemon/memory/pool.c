/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/pool.h"

#include <assert.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/log.h"

#define PINNED_MIN_BYTES (UINT64_C(1) << 20)
#define MAX_AHEAD 4 /* free blocks of one class: no pool can foresee a burst of more requests than a few at a time */

void pool_init(struct pool *pool, struct work_pool *work, uint64_t max_bytes, uint64_t idle_ns)
{
    *pool = (struct pool){.work = work, .max_bytes = max_bytes, .idle_ns = idle_ns};
    for (unsigned i = 0; i < POOL_CLASSES; i++)
        list_init(&pool->classes[i].free);
}

/* ---- size classes ---- */

static uint64_t page_bytes(void)
{
    static uint64_t bytes;

    if (bytes == 0)
        bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    return bytes;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    uint64_t up = (bytes + unit - 1) / unit * unit;

    return up < bytes ? bytes : up;
}

/* With 2^k < bytes <= 2^(k+1), the class is given by k and by the number of quarters of 2^k above it. *bytes_p is the
 * size of the class. */
static unsigned class_of(uint64_t bytes, uint64_t *bytes_p)
{
    unsigned k = 63 - (unsigned)__builtin_clzll(bytes - 1);
    uint64_t quarter = UINT64_C(1) << (k - 2), up = round_up(bytes, quarter);

    if (bytes_p)
        *bytes_p = up;
    return 4 * k + (unsigned)((up - (UINT64_C(1) << k)) / quarter) - 1;
}

/* Whether the pool keeps blocks of this kind and size. */
static bool keeps(const struct pool *pool, const struct memory_kind *kind, uint64_t bytes)
{
    return kind == pool->kind && bytes > POOL_MIN_BYTES && bytes <= pool->max_bytes / 2;
}

uint64_t pool_pages_bytes(const struct memory_kind *kind, uint64_t bytes)
{
    bytes = round_up(bytes, page_bytes());
    return kind && kind->ops.round ? kind->ops.round(kind->instance, bytes) : bytes;
}

uint64_t pool_room_bytes(const struct pool *pool, const struct memory_kind *kind, uint64_t bytes)
{
    uint64_t pages = pool_pages_bytes(kind, bytes), room;

    if (!keeps(pool, kind, pages))
        return pages;
    (void)class_of(pages, &room);
    return room;
}

/* ---- NUMA nodes ---- */

const char *home_text(unsigned home, char text_p[HOME_TEXT_BYTES])
{
    text_p[0] = '\0';
    if (home > 0)
        (void)snprintf(text_p, HOME_TEXT_BYTES, "node%u", home - 1);
    return text_p;
}

unsigned home_of(const char *text)
{
    return strncmp(text, "node", 4) == 0 ? (unsigned)strtoul(text + 4, NULL, 10) + 1 : 0;
}

/* ---- freeing a block ---- */

void registration_end(const struct registration *registration)
{
    struct transport *transport = registration->transport;

    if (registration->handle)
        transport->ops.unregister_memory(transport->instance, registration->handle);
    atomic_fetch_sub(&transport->registered, 1);
}

static void note_unpinned(struct memory_kind *kind, const struct rdt_error *err)
{
    char *none = NULL, *why = err->status == RDT_UNSUPPORTED || atomic_load(&kind->why_unpinned) ? NULL : strdup(err->msg);

    if (!why || !atomic_compare_exchange_strong(&kind->why_unpinned, &none, why)) {
        free(why); /* another thread was first */
        return;
    }
    log_info("host memory could not be pinned for %s memory, so copies to and from it are slower (logged once): %s", kind->name,
             err->msg);
}

bool pinned_begin(struct pinned *pinned, void *addr, uint64_t bytes, bool notes)
{
    struct memory_kind *kind = pinned->kind;
    struct rdt_error err = {0};

    if (kind->ops.pin(kind->instance, addr, bytes, &pinned->handle, &err) == RDT_OK)
        return true;
    if (notes)
        note_unpinned(kind, &err);
    atomic_fetch_sub(&kind->pinned, 1);
    return false;
}

void pinned_end(const struct pinned *pinned)
{
    if (!pinned->kind)
        return;
    pinned->kind->ops.unpin(pinned->kind->instance, pinned->handle);
    atomic_fetch_sub(&pinned->kind->pinned, 1);
}

/* A client that had a writable descriptor may have sealed the memory, and the kernel removes no page of sealed memory. Then the
 * caller must know the file, to charge its pages as long as there are any. */
static void discard(struct pool_block *block)
{
    struct stat st;

    block->kind->ops.discard(block->kind->instance, &block->block);
    if (!block->slowed_by || block->block.fd < 0 || fstat(block->block.fd, &st) || st.st_blocks == 0)
        return;
    block->kept_fd = fcntl(block->block.fd, F_DUPFD_CLOEXEC, 0);
}

/* Whether no other process has the file open or mapped. Every client has opened it anew (host_share of the host plug-in), and
 * the kernel gives a lease for writing only where nobody else has. */
static bool is_alone(int fd)
{
    char path[32];
    bool alone;
    int again;

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    again = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    alone = again >= 0 && fcntl(again, F_SETLEASE, F_WRLCK) == 0;
    if (again >= 0)
        (void)close(again);
    return alone;
}

/* Whoever unmaps memory waits, with the lock of the daemon's address space, for those who remove its pages. The seal ends that.
 * A client that had a writable descriptor may have sealed the memory against seals. */
static bool may_unmap(struct pool_block *block)
{
    struct memory_kind *kind = block->kind;
    int seals;

    if (!block->slowed_by || block->to_be_mapped || !block->block.addr || !kind->ops.seal ||
        kind->ops.seal(kind->instance, &block->block, false, NULL) == RDT_OK)
        return true;
    seals = fcntl(block->block.fd, F_GET_SEALS);
    return seals < 0 || (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) || is_alone(block->block.fd);
}

void pool_block_free(struct pool_block *block)
{
    struct memory_kind *kind = block->kind;

    pinned_end(&block->pinned);
    block->pinned.kind = NULL;
    for (unsigned i = 0; i < block->n_registrations; i++)
        registration_end(&block->registrations[i]);
    block->n_registrations = 0;
    sigbus_guard_leave(block->guard);
    block->guard = GUARD_NONE;
    block->kept_fd = -1;
    if (block->discard && kind->ops.discard)
        discard(block);
    if (!may_unmap(block))
        return;
    kind->ops.free(kind->instance, &block->block);
    block->block.addr = NULL;
    if (!block->device)
        memory_kind_unuse(kind);
}

static void run_free(struct work *work)
{
    pool_block_free(container_of(work, struct pool_block, work));
}

static void uncharge(struct pool *pool, uint64_t bytes)
{
    pool->bytes -= bytes;
    pool->unreserve(pool->arg, bytes);
}

static void done_free(struct work *work)
{
    struct pool_block *block = container_of(work, struct pool_block, work);
    struct pool *pool = block->pool;

    uncharge(pool, block->bytes); /* only now are its pages free */
    free(block);
    pool->on_change(pool->arg);
}

/* Frees a free block on the work pool. */
static void release(struct pool_block *block)
{
    block->work = (struct work){.run = run_free, .done = done_free};
    work_submit(block->pool->work, &block->work);
}

/* ---- allocating ahead ---- */

/* Registers the block with the transports that make_ahead noted in it. */
static void register_all(struct pool_block *block)
{
    unsigned n = block->n_registrations;

    block->n_registrations = 0;
    for (unsigned i = 0; i < n; i++) {
        struct transport *transport = block->registrations[i].transport;
        void *handle = NULL;
        if (transport->ops.register_memory(transport->instance, block->block.addr, block->bytes, block->kind->name, &handle,
                                           NULL) == RDT_OK)
            block->registrations[block->n_registrations++] = (struct registration){transport, handle};
        else
            atomic_fetch_sub(&transport->registered, 1);
    }
}

static void run_make(struct work *work)
{
    struct pool_block *block = container_of(work, struct pool_block, work);
    struct memory_kind *kind = block->kind;
    struct memory_room *room = block->pool->room;
    char home[HOME_TEXT_BYTES];

    block->status = memory_room_take(room, block->bytes, true, NULL);
    if (block->status != RDT_OK)
        return;
    block->status = kind->ops.alloc(kind->instance, home_text(block->pinned.home, home), block->bytes, &block->block, NULL);
    memory_room_taken(room, block->bytes);
    if (block->status != RDT_OK)
        return;
    block->status = kind->ops.map(kind->instance, &block->block, true, NULL);
    if (block->status != RDT_OK) {
        kind->ops.free(kind->instance, &block->block);
        return;
    }
    register_all(block);
    if (block->pinned.kind && !pinned_begin(&block->pinned, block->block.addr, block->bytes, true))
        block->pinned.kind = NULL;
}

/* Whether it is registered with a transport, or pinned for a memory kind, that is being unloaded. */
static bool is_with_unloading_plugin(const struct pool_block *block)
{
    if (block->pinned.kind && !block->pinned.kind->available)
        return true;
    for (unsigned i = 0; i < block->n_registrations; i++)
        if (block->registrations[i].transport->unloading)
            return true;
    return false;
}

/* A pending block is zeroed and mapped: it is free now, unless nobody may have it any more. */
static void add_free(struct pool_block *block)
{
    struct pool *pool = block->pool;
    struct pool_class *class = &pool->classes[class_of(block->bytes, NULL)];

    class->n_pending--;
    if (pool->closed || is_with_unloading_plugin(block)) {
        release(block);
        return;
    }
    list_append(&class->free, &block->link);
    class->n_free++;
    pool->on_change(pool->arg);
}

static void done_make(struct work *work)
{
    struct pool_block *block = container_of(work, struct pool_block, work);
    struct pool *pool = block->pool;

    if (block->status == RDT_OK) {
        add_free(block);
        return;
    }
    for (unsigned i = 0; i < block->n_registrations; i++)
        atomic_fetch_sub(&block->registrations[i].transport->registered, 1);
    if (block->pinned.kind)
        atomic_fetch_sub(&block->pinned.kind->pinned, 1);
    memory_kind_unuse(block->kind);
    pool->classes[class_of(block->bytes, NULL)].n_pending--;
    uncharge(pool, block->bytes); /* no error: a request that needs memory now will fail and say why */
    free(block);
    pool->on_change(pool->arg);
}

static struct pool_block *block_new(struct pool *pool, uint64_t bytes)
{
    struct pool_block *block = calloc(1, sizeof *block);

    if (!block)
        return NULL;
    list_init(&block->link);
    block->pool = pool;
    block->kind = pool->kind;
    memory_kind_use(pool->kind);
    block->bytes = bytes;
    block->block.fd = -1;
    block->guard = GUARD_NONE;
    return block;
}

/* Allocates blocks of a class until there are as many as the demand calls for. */
static void make_ahead(struct pool *pool, struct pool_class *class, uint64_t bytes)
{
    unsigned target = class->n_wanted < 2 ? 0 : class->n_wanted - 1;

    if (target > MAX_AHEAD)
        target = MAX_AHEAD;
    if (target > 1 && target * bytes > pool->max_bytes / 4)
        target = (unsigned)(pool->max_bytes / 4 / bytes) + 1;
    while (!pool->closed && class->n_free + class->n_pending < target && pool->bytes + bytes <= pool->max_bytes) {
        struct pool_block *block;
        if (!pool->reserve(pool->arg, bytes))
            return;
        block = block_new(pool, bytes);
        if (!block) {
            pool->unreserve(pool->arg, bytes);
            return;
        }
        pool->bytes += bytes;
        class->n_pending++;
        for (unsigned i = 0; i < pool->n_transports; i++) {
            atomic_fetch_add(&pool->transports[i]->registered, 1);
            block->registrations[block->n_registrations++] = (struct registration){.transport = pool->transports[i]};
        }
        if (pool->pinned_for && bytes >= PINNED_MIN_BYTES) {
            atomic_fetch_add(&pool->pinned_for->pinned, 1);
            block->pinned.kind = pool->pinned_for;
        }
        block->pinned.home = class->last_home;
        block->work = (struct work){.run = run_make, .done = done_make};
        work_submit(pool->work, &block->work);
    }
}

/* home 0: of any. */
static struct pool_block *take_newest(struct pool_class *class, unsigned home)
{
    struct list *at = class->free.prev;

    while (home != 0 && at != &class->free && container_of(at, struct pool_block, link)->pinned.home != home)
        at = at->prev;
    if (at == &class->free)
        return NULL;
    list_remove(at);
    class->n_free--;
    return container_of(at, struct pool_block, link);
}

struct pool_block *pool_take(struct pool *pool, const struct memory_kind *kind, uint64_t bytes, unsigned home)
{
    struct pool_class *class;
    struct pool_block *block;
    uint64_t room, now = uv_hrtime();

    bytes = pool_pages_bytes(kind, bytes);
    if (!keeps(pool, kind, bytes))
        return NULL;
    class = &pool->classes[class_of(bytes, &room)];
    if (class->last_wanted_ns == 0 || now - class->last_wanted_ns > pool->idle_ns)
        class->n_wanted = 0;
    class->last_wanted_ns = now;
    class->n_wanted++;
    class->last_home = home;
    block = take_newest(class, home);
    if (block) {
        pool->hits++;
        pool->bytes -= block->bytes;
    } else {
        pool->misses++;
    }
    make_ahead(pool, class, room);
    return block;
}

/* ---- returning a block ---- */

static void run_scrub(struct work *work)
{
    struct pool_block *block = container_of(work, struct pool_block, work);

    work_zero(block->block.addr, block->bytes);
}

static void done_scrub(struct work *work)
{
    add_free(container_of(work, struct pool_block, work));
}

bool pool_give(struct pool *pool, struct pool_block *block)
{
    struct pool_class *class;
    uint64_t room;

    assert(block->guard == GUARD_NONE);
    if (pool->closed || !keeps(pool, block->kind, block->bytes) || !block->block.addr ||
        pool->bytes + block->bytes > pool->max_bytes)
        return false;
    class = &pool->classes[class_of(block->bytes, &room)];
    if (room != block->bytes)
        return false;
    block->pool = pool;
    pool->bytes += block->bytes;
    class->n_pending++;
    class->last_wanted_ns = uv_hrtime(); /* it was in use until now */
    block->work = (struct work){.run = run_scrub, .done = done_scrub};
    work_submit(pool->work, &block->work);
    return true;
}

/* ---- freeing unused blocks ---- */

void pool_evict(struct pool *pool, uint64_t bytes, struct list *victims)
{
    uint64_t given = 0;

    while (given < bytes) {
        struct pool_class *oldest = NULL;
        struct pool_block *block;
        for (unsigned i = 0; i < POOL_CLASSES; i++) {
            struct pool_class *class = &pool->classes[i];
            if (class->n_free > 0 && (!oldest || class->last_wanted_ns < oldest->last_wanted_ns))
                oldest = class;
        }
        if (!oldest)
            return;
        oldest->n_wanted = 0; /* memory is short, so none is allocated ahead */
        block = take_newest(oldest, 0);
        given += block->bytes;
        uncharge(pool, block->bytes);
        list_append(victims, &block->link);
    }
}

static void release_free(struct pool_class *class)
{
    struct pool_block *block;

    while ((block = take_newest(class, 0)))
        release(block);
}

bool pool_sweep(struct pool *pool, uint64_t now_ns)
{
    for (unsigned i = 0; i < POOL_CLASSES; i++)
        if (pool->classes[i].n_free > 0 && now_ns - pool->classes[i].last_wanted_ns >= pool->idle_ns)
            release_free(&pool->classes[i]);
    return pool->bytes > 0;
}

void pool_note_registration(struct pool *pool, struct transport *transport)
{
    for (unsigned i = 0; i < pool->n_transports; i++)
        if (pool->transports[i] == transport)
            return;
    if (pool->n_transports < BLOCK_MAX_REGISTRATIONS)
        pool->transports[pool->n_transports++] = transport;
}

void pool_forget_transport(struct pool *pool, const struct transport *transport)
{
    unsigned n = 0;

    for (unsigned i = 0; i < pool->n_transports; i++)
        if (pool->transports[i] != transport)
            pool->transports[n++] = pool->transports[i];
    pool->n_transports = n;
    for (unsigned i = 0; i < POOL_CLASSES; i++)
        list_each_safe (struct pool_block, block, &pool->classes[i].free, link) {
            if (!is_with_unloading_plugin(block))
                continue;
            list_remove(&block->link);
            pool->classes[i].n_free--;
            release(block);
        }
}

void pool_forget_pins(struct pool *pool, const struct memory_kind *kind)
{
    if (pool->pinned_for == kind)
        pool->pinned_for = NULL;
    for (unsigned i = 0; i < POOL_CLASSES; i++)
        list_each_safe (struct pool_block, block, &pool->classes[i].free, link) {
            if (block->pinned.kind != kind)
                continue;
            list_remove(&block->link);
            pool->classes[i].n_free--;
            release(block);
        }
}

void pool_close(struct pool *pool)
{
    pool->closed = true;
    for (unsigned i = 0; i < POOL_CLASSES; i++)
        release_free(&pool->classes[i]);
}
