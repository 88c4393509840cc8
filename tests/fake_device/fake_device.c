/* SPDX-License-Identifier: Apache-2.0 */
/* The memory kind "fake": devices that are memfds, for the daemon's device memory where there is no device.
 *
 * What it calls a device's address lies in a range that nobody may touch: a daemon that reads or writes it by
 * itself dies at once. The plug-in's own mapping of the same pages is known to its copy engine alone, one
 * thread that works off a queue, as slowly as a test wants.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/rdt_backend.h"
#include "tests/fake_device/control.h"
#include "tests/fake_device/fake_device.h"

struct handle { /* opened once, however often it is imported */
    struct handle *next;
    struct fake_handle key;
    int fd;
    unsigned users;
};

struct fake {
    const struct rdt_host *host;
    struct fake_control *control, own;
    unsigned n_devices;
    uint64_t device_bytes, granule, chunk_bytes;
    char uuids[FAKE_DEVICES][16];
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct handle *handles;
    struct fake_block *blocks; /* mapped */
    struct rdt_memory_copy *first, *last;
    bool stop;
    pthread_t engine;
};

static struct fake fake;

/* ---- devices ---- */

static unsigned index_of(const char *uuid)
{
    for (unsigned i = 0; i < fake.n_devices; i++)
        if (strcmp(fake.uuids[i], uuid) == 0)
            return i;
    return 0;
}

static uint32_t fake_devices(void *memory, struct rdt_device *devices, uint32_t max)
{
    (void)memory;
    for (uint32_t i = 0; i < fake.n_devices && i < max; i++)
        devices[i] = (struct rdt_device){.uuid = fake.uuids[i],
                                         .name = "Fake Device",
                                         .bytes = fake.device_bytes,
                                         .opened = atomic_load(&fake.control->opened[i]) > 0,
                                         .overhead_bytes = atomic_load(&fake.control->opened[i]) ? 4096 : 0};
    return fake.n_devices;
}

/* ---- blocks ---- */

struct fake_block {
    struct fake_block *next; /* of those that are mapped */
    unsigned device;
    bool imported;
    struct handle *handle;
    uint64_t offset; /* of the block in its chunks */
    uint64_t span;   /* of all chunks */
    uint32_t n_fds;
    int *fds;
    uint64_t *chunk_bytes;
    uint8_t *real;  /* the chunks, one after another */
    uint8_t *fence; /* what the daemon takes for addresses */
};

static void drop_handle(struct handle *handle)
{
    if (!handle)
        return;
    pthread_mutex_lock(&fake.mutex);
    if (--handle->users == 0) {
        for (struct handle **at = &fake.handles; *at; at = &(*at)->next)
            if (*at == handle) {
                *at = handle->next;
                break;
            }
        (void)close(handle->fd);
        free(handle);
        atomic_fetch_sub(&fake.control->handles, 1);
    }
    pthread_mutex_unlock(&fake.mutex);
}

static void block_free(struct fake_block *block)
{
    pthread_mutex_lock(&fake.mutex);
    for (struct fake_block **at = &fake.blocks; *at; at = &(*at)->next)
        if (*at == block) {
            *at = block->next;
            break;
        }
    pthread_mutex_unlock(&fake.mutex);
    if (block->real)
        (void)munmap(block->real, block->span);
    if (block->fence)
        (void)munmap(block->fence, block->span);
    for (uint32_t i = 0; i < block->n_fds && !block->handle; i++)
        if (block->fds[i] >= 0)
            (void)close(block->fds[i]);
    drop_handle(block->handle);
    free(block->fds);
    free(block->chunk_bytes);
    free(block);
}

static struct fake_block *block_new(const char *device, uint32_t n_chunks)
{
    struct fake_block *block = calloc(1, sizeof *block);

    if (!block)
        return NULL;
    block->fds = malloc((n_chunks + 1) * sizeof *block->fds);
    block->chunk_bytes = calloc(n_chunks + 1, sizeof *block->chunk_bytes);
    block->device = index_of(device);
    if (block->fds && block->chunk_bytes)
        return block;
    block_free(block);
    return NULL;
}

static bool take(_Atomic uint32_t *count)
{
    uint32_t n = atomic_load(count);

    while (n > 0)
        if (atomic_compare_exchange_weak(count, &n, n - 1))
            return true;
    return false;
}

static void publish(struct rdt_block *block_p, struct fake_block *block, uint64_t bytes)
{
    block_p->addr = NULL;
    block_p->bytes = bytes;
    block_p->fd = -1;
    block_p->priv = block;
    atomic_fetch_add(&fake.control->opened[block->device], 1);
    atomic_fetch_add(&fake.control->blocks, 1);
}

static enum rdt_status fake_alloc(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p,
                                  struct rdt_error *err)
{
    uint64_t chunk = fake.chunk_bytes ? fake.chunk_bytes : bytes, left = bytes;
    struct fake_block *block;
    uint32_t n;

    (void)memory;
    if (take(&fake.control->fail_allocs))
        return rdt_error_set(err, RDT_NO_MEMORY, "%s: out of memory, as the test wants it", device);
    if (bytes == 0 || bytes > fake.device_bytes)
        return rdt_error_set(err, RDT_NO_MEMORY, "%s cannot allocate %llu bytes", device, (unsigned long long)bytes);
    if (atomic_fetch_add(&fake.control->allocated[index_of(device)], bytes) + bytes > fake.device_bytes) {
        atomic_fetch_sub(&fake.control->allocated[index_of(device)], bytes);
        return rdt_error_set(err, RDT_NO_MEMORY, "%s has no %llu bytes left", device, (unsigned long long)bytes);
    }
    n = (uint32_t)((bytes + chunk - 1) / chunk);
    block = block_new(device, n);
    for (; block && block->n_fds < n; left -= block->chunk_bytes[block->n_fds++]) {
        int fd = memfd_create("fake", MFD_CLOEXEC);
        block->chunk_bytes[block->n_fds] = left < chunk ? left : chunk;
        if (fd >= 0 && ftruncate(fd, (off_t)block->chunk_bytes[block->n_fds]) != 0) {
            (void)close(fd);
            fd = -1;
        }
        block->fds[block->n_fds] = fd;
        if (fd < 0) {
            block_free(block);
            block = NULL;
            break;
        }
    }
    if (!block) {
        atomic_fetch_sub(&fake.control->allocated[index_of(device)], bytes);
        return rdt_error_set(err, RDT_SYSTEM, "no memfd");
    }
    block->span = bytes;
    atomic_fetch_add(&fake.control->made, 1);
    publish(block_p, block, bytes);
    return RDT_OK;
}

/* ---- importing ---- */

static struct handle *open_handle(const struct rdt_import *import, struct rdt_error *err)
{
    struct fake_handle key;
    struct handle *handle;
    char path[64];

    if (import->handle_bytes != sizeof key || memcmp(import->handle, "fakeipc", 8) != 0) {
        (void)rdt_error_set(err, RDT_INVALID, "this is no handle of a fake device");
        return NULL;
    }
    memcpy(&key, import->handle, sizeof key);
    if (key.pid == getpid()) {
        (void)rdt_error_set(err, RDT_INVALID, "a process cannot open its own handle");
        return NULL;
    }
    pthread_mutex_lock(&fake.mutex);
    for (handle = fake.handles; handle; handle = handle->next)
        if (memcmp(&handle->key, &key, sizeof key) == 0)
            break;
    if (!handle && (handle = calloc(1, sizeof *handle))) {
        (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", key.pid, key.fd);
        handle->key = key;
        handle->fd = open(path, O_RDWR | O_CLOEXEC);
        if (handle->fd < 0) {
            (void)rdt_error_sys(err, errno, "opening a handle of process %d", key.pid);
            free(handle);
            handle = NULL;
        } else {
            handle->next = fake.handles;
            fake.handles = handle;
            atomic_fetch_add(&fake.control->handles, 1);
        }
    }
    if (handle)
        handle->users++;
    pthread_mutex_unlock(&fake.mutex);
    return handle;
}

static enum rdt_status fake_import(void *memory, const char *device, const struct rdt_import *import, struct rdt_block *block_p,
                                   struct rdt_error *err)
{
    struct fake_block *block;

    (void)memory;
    atomic_fetch_add(&fake.control->importing, 1);
    fake_await_zero(&fake.control->hold_imports);
    atomic_fetch_sub(&fake.control->importing, 1);
    if (take(&fake.control->fail_imports))
        return rdt_error_set(err, RDT_SYSTEM, "refused, as the test wants it");
    block = block_new(device, import->kind == RDT_IMPORT_VMM ? import->n_fds : 1);
    if (!block)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    block->imported = true;
    block->offset = import->offset;
    if (import->kind == RDT_IMPORT_VMM) {
        for (; block->n_fds < import->n_fds; block->n_fds++) {
            struct stat st;
            block->fds[block->n_fds] = fcntl(import->fds[block->n_fds], F_DUPFD_CLOEXEC, 0);
            block->chunk_bytes[block->n_fds] = import->chunk_bytes[block->n_fds];
            block->span += import->chunk_bytes[block->n_fds];
            if (fstat(block->fds[block->n_fds], &st) != 0 || (uint64_t)st.st_size < import->chunk_bytes[block->n_fds] ||
                import->chunk_bytes[block->n_fds] % 4096 != 0) {
                enum rdt_status status = rdt_error_set(
                    err, RDT_INVALID, "chunk %u is no memory of a fake device, or shorter than it says", block->n_fds);
                block->n_fds++;
                block_free(block);
                return status;
            }
        }
    } else {
        block->handle = open_handle(import, err);
        if (!block->handle) {
            block_free(block);
            return RDT_INVALID;
        }
        block->fds[0] = block->handle->fd;
        block->chunk_bytes[0] = block->span = block->handle->key.bytes;
        block->n_fds = 1;
        if (import->offset > block->span || import->bytes > block->span - import->offset) {
            block_free(block);
            return rdt_error_set(err, RDT_INVALID, "%llu bytes at %llu of an allocation of fewer",
                                 (unsigned long long)import->bytes, (unsigned long long)import->offset);
        }
    }
    publish(block_p, block, import->bytes);
    atomic_fetch_add(&fake.control->imports, 1);
    return RDT_OK;
}

static enum rdt_status fake_map(void *memory, struct rdt_block *block_p, bool warm, struct rdt_error *err)
{
    struct fake_block *block = block_p->priv;
    uint64_t at = 0;

    (void)memory;
    (void)warm;
    block->real = mmap(NULL, block->span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    block->fence = mmap(NULL, block->span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (uint32_t i = 0; i < block->n_fds; at += block->chunk_bytes[i++])
        if (mmap(block->real + at, block->chunk_bytes[i], PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, block->fds[i], 0) ==
            MAP_FAILED)
            return rdt_error_sys(err, errno, "mapping chunk %u", i);
    block_p->addr = block->fence + block->offset;
    pthread_mutex_lock(&fake.mutex);
    block->next = fake.blocks;
    fake.blocks = block;
    pthread_mutex_unlock(&fake.mutex);
    return RDT_OK;
}

/* ---- memory that shows bytes of others ---- */

static enum rdt_status fake_alloc_unzeroed(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p,
                                           struct rdt_error *err)
{
    enum rdt_status status = fake_alloc(memory, device, bytes, block_p, err);
    struct fake_block *block = status == RDT_OK ? block_p->priv : NULL;
    uint8_t dirt[4096];

    memset(dirt, FAKE_DIRT, sizeof dirt);
    for (uint32_t i = 0; block && i < block->n_fds; i++)
        for (uint64_t at = 0; at < block->chunk_bytes[i]; at += sizeof dirt) {
            uint64_t left = block->chunk_bytes[i] - at;
            if (pwrite(block->fds[i], dirt, left < sizeof dirt ? left : sizeof dirt, (off_t)at) < 0)
                abort();
        }
    if (block)
        atomic_fetch_add(&fake.control->dirty, 1);
    return status;
}

static enum rdt_status fake_zero_part(void *memory, struct rdt_block *block_p, uint64_t offset, uint64_t bytes,
                                      struct rdt_error *err)
{
    struct fake_block *block = block_p->priv;

    (void)memory;
    if (take(&fake.control->fail_zeros))
        return rdt_error_set(err, RDT_SYSTEM, "it cannot be cleared, as the test wants it");
    atomic_fetch_add(&fake.control->cleared_bytes, bytes);
    memset(block->real + block->offset + offset, 0, bytes);
    return RDT_OK;
}

/* The counts go last: who waits for them finds the memory gone. */
static void fake_free(void *memory, struct rdt_block *block_p)
{
    struct fake_block *block = block_p->priv;
    bool imported = block->imported;
    unsigned device = block->device;

    (void)memory;
    block_free(block);
    if (!imported)
        atomic_fetch_sub(&fake.control->allocated[device], block_p->bytes);
    else
        atomic_fetch_sub(&fake.control->imports, 1);
    atomic_fetch_sub(&fake.control->blocks, 1);
}

static uint64_t fake_round(void *memory, uint64_t bytes)
{
    (void)memory;
    return (bytes + fake.granule - 1) / fake.granule * fake.granule;
}

static enum rdt_status fake_zero(void *memory, struct rdt_block *block_p, struct rdt_error *err)
{
    struct fake_block *block = block_p->priv;

    (void)memory;
    if (take(&fake.control->fail_zeros))
        return rdt_error_set(err, RDT_SYSTEM, "it cannot be cleared, as the test wants it");
    atomic_fetch_add(&fake.control->zeroed, 1);
    memset(block->real + block->offset, 0, block_p->bytes);
    return RDT_OK;
}

static enum rdt_status fake_export(void *memory, const struct rdt_block *block_p, struct rdt_export *export_p,
                                   struct rdt_error *err)
{
    const struct fake_block *block = block_p->priv;

    (void)memory;
    if (block->imported && atomic_load(&fake.control->no_export))
        return rdt_error_set(err, RDT_UNSUPPORTED, "what was imported cannot be exported, as the test wants it");
    *export_p = (struct rdt_export){.kind = block->handle ? RDT_IMPORT_LEGACY_IPC : RDT_IMPORT_VMM, .offset = block->offset};
    if (block->handle) {
        memcpy(export_p->handle, &block->handle->key, sizeof block->handle->key);
        export_p->handle_bytes = sizeof block->handle->key;
        return RDT_OK;
    }
    export_p->n_fds = block->n_fds;
    export_p->fds = block->fds;
    export_p->chunk_bytes = block->chunk_bytes;
    return RDT_OK;
}

/* ---- the engine ---- */

uint8_t *fake_real_address(const struct rdt_block *block_p, const void *addr)
{
    const struct fake_block *block = block_p->priv;

    return block->real + ((const uint8_t *)addr - block->fence);
}

/* For a transport that moves fake memory (RDT_FAKE_DEVICE_REAL): where it really lies. NULL: nowhere. */
static void *real_of(const void *addr)
{
    const uint8_t *at = addr;
    void *real = NULL;

    pthread_mutex_lock(&fake.mutex);
    for (const struct fake_block *block = fake.blocks; block && !real; block = block->next)
        if (at >= block->fence && at < block->fence + block->span)
            real = block->real + (at - block->fence);
    pthread_mutex_unlock(&fake.mutex);
    if (real)
        atomic_fetch_add(&fake.control->direct, 1);
    return real;
}

static void copy_now(const struct rdt_memory_copy *copy)
{
    for (uint32_t i = 0; i < copy->n_pieces; i++) {
        const struct rdt_copy_piece *piece = &copy->pieces[i];
        uint8_t *to = copy->to ? fake_real_address(copy->to, piece->to) : piece->to;
        const uint8_t *from = copy->from ? fake_real_address(copy->from, piece->from) : piece->from;

        for (uint64_t row = 0; row < piece->rows; row++)
            memcpy(to + row * piece->to_step, from + row * piece->from_step, piece->bytes);
        if ((!copy->to || !copy->from) && !copy->host_pinned)
            atomic_fetch_add(&fake.control->unpinned_bytes, piece->bytes * piece->rows);
    }
}

static void *engine(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&fake.mutex);
    while (!fake.stop || fake.first) {
        struct rdt_memory_copy *copy = fake.first;
        if (!copy) {
            pthread_cond_wait(&fake.changed, &fake.mutex);
            continue;
        }
        pthread_mutex_unlock(&fake.mutex);
        fake_await(fake.control); /* the device is slow: a test says for how long */
        pthread_mutex_lock(&fake.mutex);
        fake.first = copy->priv[0];
        if (!fake.first)
            fake.last = NULL;
        pthread_mutex_unlock(&fake.mutex);
        if (take(&fake.control->fail_copies)) {
            fake.host->copy_done(copy, RDT_SYSTEM, "the device has fallen off the bus, as the test wants it");
        } else {
            copy_now(copy);
            atomic_fetch_add(&fake.control->done, 1);
            fake.host->copy_done(copy, RDT_OK, NULL);
        }
        pthread_mutex_lock(&fake.mutex);
    }
    pthread_mutex_unlock(&fake.mutex);
    return NULL;
}

static enum rdt_status fake_copy_start(void *memory, struct rdt_memory_copy *copy, struct rdt_error *err)
{
    (void)memory;
    if (!copy->to && !copy->from)
        return rdt_error_set(err, RDT_INVALID, "neither end is on a device");
    copy->priv[0] = NULL;
    pthread_mutex_lock(&fake.mutex);
    if (fake.last)
        fake.last->priv[0] = copy;
    else
        fake.first = copy;
    fake.last = copy;
    pthread_cond_signal(&fake.changed);
    pthread_mutex_unlock(&fake.mutex);
    atomic_fetch_add(&fake.control->started, 1);
    return RDT_OK;
}

static enum rdt_status fake_pin(void *memory, void *addr, uint64_t bytes, void **pin_p, struct rdt_error *err)
{
    uint64_t *pin = malloc(sizeof *pin);

    (void)memory;
    (void)addr;
    if (!pin)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    *pin = bytes;
    atomic_fetch_add(&fake.control->pin_calls, 1);
    atomic_fetch_add(&fake.control->pinned, bytes);
    *pin_p = pin;
    return RDT_OK;
}

static void fake_unpin(void *memory, void *pin)
{
    (void)memory;
    atomic_fetch_sub(&fake.control->pinned, *(uint64_t *)pin);
    free(pin);
}

/* ---- the backend ---- */

static uint64_t number(const struct rdt_host *host, const char *key)
{
    const char *text = host->config(host->ctx, key);

    return text ? strtoull(text, NULL, 0) : 0;
}

static enum rdt_status fake_open(const struct rdt_host *host, void **memory_p, struct rdt_error *err)
{
    const char *path = host->config(host->ctx, "control"), *prefix = host->config(host->ctx, "prefix");
    char pointer[32];

    if (host->struct_size < offsetof(struct rdt_host, copy_done) + sizeof host->copy_done)
        return rdt_error_set(err, RDT_UNSUPPORTED, "this rdtd knows no memory on devices");
    fake.host = host;
    fake.control = &fake.own;
    (void)snprintf(pointer, sizeof pointer, "%p", (void *)(uintptr_t)real_of);
    (void)setenv("RDT_FAKE_DEVICE_REAL", pointer, 1);
    if (path && path[0]) {
        int fd = open(path, O_RDWR | O_CLOEXEC);
        void *addr = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof fake.own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (fd >= 0)
            (void)close(fd);
        if (addr == MAP_FAILED)
            return rdt_error_sys(err, errno, "control %s", path);
        fake.control = addr;
    }
    fake.n_devices = (unsigned)number(host, "devices");
    if (fake.n_devices > FAKE_DEVICES)
        return rdt_error_set(err, RDT_INVALID, "devices: at most %d", FAKE_DEVICES);
    if (fake.n_devices == 0)
        return rdt_error_set(err, RDT_UNSUPPORTED, "there is no fake device");
    fake.device_bytes = number(host, "device_bytes");
    fake.granule = number(host, "granule");
    fake.chunk_bytes = number(host, "chunk");
    for (unsigned i = 0; i < fake.n_devices; i++)
        (void)snprintf(fake.uuids[i], sizeof fake.uuids[i], "%.8s-%u", prefix && prefix[0] ? prefix : "FAKE", i % 10);
    fake.stop = false;
    pthread_mutex_init(&fake.mutex, NULL);
    pthread_cond_init(&fake.changed, NULL);
    if (pthread_create(&fake.engine, NULL, engine, NULL) != 0)
        return rdt_error_set(err, RDT_SYSTEM, "no thread");
    *memory_p = &fake;
    return RDT_OK;
}

static void fake_close(void *memory)
{
    (void)memory;
    pthread_mutex_lock(&fake.mutex);
    fake.stop = true;
    pthread_cond_signal(&fake.changed);
    pthread_mutex_unlock(&fake.mutex);
    (void)pthread_join(fake.engine, NULL);
    pthread_mutex_destroy(&fake.mutex);
    pthread_cond_destroy(&fake.changed);
    if (fake.control != &fake.own)
        (void)munmap(fake.control, sizeof fake.own);
}

static const struct rdt_config_key config_keys[] = {
    {"control", "", "file with a page that tests share"},
    {"devices", "2", "how many there are"},
    {"device_bytes", "67108864", "memory of each"},
    {"granule", "65536", "what memory is made of"},
    {"chunk", "0", "an allocation is made of pieces of so many bytes; 0: of one"},
    {"prefix", "FAKE", "of their uuids"},
    {NULL, NULL, NULL},
};

static const struct rdt_memory_ops memory_ops = {
    .struct_size = sizeof memory_ops,
    .name = "fake",
    .open = fake_open,
    .close = fake_close,
    .alloc = fake_alloc,
    .import = fake_import,
    .free = fake_free,
    .map = fake_map,
    .round = fake_round,
    .devices = fake_devices,
    .export_block = fake_export,
    .copy_start = fake_copy_start,
    .zero = fake_zero,
    .pin = fake_pin,
    .unpin = fake_unpin,
    .alloc_unzeroed = fake_alloc_unzeroed,
    .zero_part = fake_zero_part,
};

static const struct rdt_backend backend = {
    .abi_version = RDT_BACKEND_ABI,
    .struct_size = sizeof backend,
    .name = "fake",
    .version = "1",
    .config_keys = config_keys,
    .memory = &memory_ops,
};

const struct rdt_backend *rdt_backend_init(void)
{
    return &backend;
}
