/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the fake device. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fake_device/fake_device.h"

struct handle { /* opened once, however often it is imported */
    struct handle *next;
    struct fake_handle key;
    int fd;
    unsigned users;
};

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

/* ---- records of blocks ---- */

static unsigned index_of(const char *uuid)
{
    for (unsigned i = 0; i < fake.n_devices; i++)
        if (strcmp(fake.uuids[i], uuid) == 0)
            return i;
    return 0;
}

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

/* ---- allocating ---- */

static void publish(struct rdt_block *block_p, struct fake_block *block, uint64_t bytes)
{
    block_p->addr = NULL;
    block_p->bytes = bytes;
    block_p->fd = -1;
    block_p->priv = block;
    atomic_fetch_add(&fake.control->opened[block->device], 1);
    atomic_fetch_add(&fake.control->blocks, 1);
}

enum rdt_status fake_alloc(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p, struct rdt_error *err)
{
    uint64_t chunk = fake.chunk_bytes ? fake.chunk_bytes : bytes, left = bytes;

    if (fake_take(&fake.control->fail_allocs))
        return rdt_error_set(err, RDT_NO_MEMORY, "%s: out of memory, as the test wants it", device);
    if (bytes == 0 || bytes > fake.device_bytes)
        return rdt_error_set(err, RDT_NO_MEMORY, "%s cannot allocate %llu bytes", device, (unsigned long long)bytes);
    if (atomic_fetch_add(&fake.control->allocated[index_of(device)], bytes) + bytes > fake.device_bytes) {
        atomic_fetch_sub(&fake.control->allocated[index_of(device)], bytes);
        return rdt_error_set(err, RDT_NO_MEMORY, "%s has no %llu bytes left", device, (unsigned long long)bytes);
    }
    uint32_t n = (uint32_t)((bytes + chunk - 1) / chunk);
    struct fake_block *block = block_new(device, n);
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

enum rdt_status fake_import(void *memory, const char *device, const struct rdt_import *import, struct rdt_block *block_p,
                            struct rdt_error *err)
{
    atomic_fetch_add(&fake.control->importing, 1);
    fake_await_zero(&fake.control->hold_imports);
    atomic_fetch_sub(&fake.control->importing, 1);
    if (fake_take(&fake.control->fail_imports))
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory, as the test wants it");
    struct fake_block *block = block_new(device, import->kind == RDT_IMPORT_VMM ? import->n_fds : 1);
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

enum rdt_status fake_map(void *memory, struct rdt_block *block_p, bool warm, struct rdt_error *err)
{
    struct fake_block *block = block_p->priv;
    uint64_t at = 0;

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

enum rdt_status fake_alloc_unzeroed(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p,
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

enum rdt_status fake_zero_part(void *memory, struct rdt_block *block_p, uint64_t offset, uint64_t bytes, struct rdt_error *err)
{
    struct fake_block *block = block_p->priv;

    if (fake_take(&fake.control->fail_zeros))
        return rdt_error_set(err, RDT_SYSTEM, "it cannot be cleared, as the test wants it");
    atomic_fetch_add(&fake.control->cleared_bytes, bytes);
    memset(block->real + block->offset + offset, 0, bytes);
    return RDT_OK;
}

/* The counts go last: who waits for them finds the memory gone. */
void fake_free(void *memory, struct rdt_block *block_p)
{
    struct fake_block *block = block_p->priv;
    bool imported = block->imported;
    unsigned device = block->device;

    block_free(block);
    if (!imported)
        atomic_fetch_sub(&fake.control->allocated[device], block_p->bytes);
    else
        atomic_fetch_sub(&fake.control->imports, 1);
    atomic_fetch_sub(&fake.control->blocks, 1);
}

uint64_t fake_round(void *memory, uint64_t bytes)
{
    return (bytes + fake.granule - 1) / fake.granule * fake.granule;
}

enum rdt_status fake_zero(void *memory, struct rdt_block *block_p, struct rdt_error *err)
{
    struct fake_block *block = block_p->priv;

    if (fake_take(&fake.control->fail_zeros))
        return rdt_error_set(err, RDT_SYSTEM, "it cannot be cleared, as the test wants it");
    atomic_fetch_add(&fake.control->zeroed, 1);
    memset(block->real + block->offset, 0, block_p->bytes);
    return RDT_OK;
}

enum rdt_status fake_export(void *memory, const struct rdt_block *block_p, struct rdt_export *export_p, struct rdt_error *err)
{
    const struct fake_block *block = block_p->priv;

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

/* ---- addresses ---- */

uint8_t *fake_real_address(const struct rdt_block *block_p, const void *addr)
{
    const struct fake_block *block = block_p->priv;

    return block->real + ((const uint8_t *)addr - block->fence);
}

void *fake_real_anywhere(const void *addr)
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
