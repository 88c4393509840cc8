/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/fakes/fake_device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static _Atomic unsigned mappings;

void fake_device_init(struct fake_devices *gpu, const char *name, const char *const *settings)
{
    const char *tmp = getenv("TMPDIR");
    unsigned n = 0;

    memset(gpu, 0, sizeof *gpu);
    (void)snprintf(gpu->path, sizeof gpu->path, "%s/fake-%s-%d", tmp ? tmp : "/tmp", name, getpid());
    int fd = open(gpu->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    must(fd >= 0 && ftruncate(fd, sizeof *gpu->control) == 0);
    gpu->control = mmap(NULL, sizeof *gpu->control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(gpu->control != MAP_FAILED);
    (void)close(fd);
    (void)snprintf(gpu->text[n++], sizeof gpu->text[0], "--backend=%s", build_path("tests/rdt_fake.so"));
    (void)snprintf(gpu->text[n++], sizeof gpu->text[0], "--set=fake.control=%s", gpu->path);
    (void)snprintf(gpu->text[n++], sizeof gpu->text[0], "--pool-idle=%lldms",
                   (long long)(patience(200 * MSEC) / MSEC)); /* what is kept goes soon, unless the settings say otherwise */
    for (; settings && *settings; settings++)
        (void)snprintf(gpu->text[n++], sizeof gpu->text[0], "%s%s", strncmp(*settings, "--", 2) == 0 ? "" : "--set=fake.",
                       *settings);
    for (unsigned i = 0; i < n; i++)
        gpu->flags[i] = gpu->text[i];
}

void fake_device_fini(struct fake_devices *gpu)
{
    (void)munmap(gpu->control, sizeof *gpu->control);
    (void)unlink(gpu->path);
}

/* ---- mapping ---- */

struct span {
    uint8_t *base;
    uint64_t bytes;
};

static uint8_t *map_chunks(const int *fds, const uint64_t *chunk_bytes, size_t n, uint64_t *bytes_p)
{
    uint64_t bytes = 0, at = 0;

    for (size_t i = 0; i < n; i++)
        bytes += chunk_bytes[i];
    uint8_t *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (size_t i = 0; base != MAP_FAILED && i < n; at += chunk_bytes[i++])
        if (mmap(base + at, chunk_bytes[i], PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fds[i], 0) == MAP_FAILED)
            return NULL;
    *bytes_p = bytes;
    return base == MAP_FAILED ? NULL : base;
}

static enum rdt_status map(void *arg, const struct rdt_shared *shared, void **addr_p, void **mapping_p, struct rdt_error *err)
{
    struct span *span = calloc(1, sizeof *span);
    struct fake_handle handle;
    char path[64];
    int fd;

    if (!span)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    if (shared->kind == RDT_SHARED_VMM) {
        span->base = map_chunks(shared->fds, shared->chunk_bytes, shared->n_fds, &span->bytes);
    } else if (shared->handle_bytes == sizeof handle) {
        memcpy(&handle, shared->handle, sizeof handle);
        (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.fd);
        fd = handle.pid == getpid() ? -1 : open(path, O_RDWR | O_CLOEXEC);
        if (fd >= 0)
            span->base = map_chunks(&fd, &handle.bytes, 1, &span->bytes);
        if (fd >= 0)
            (void)close(fd);
    }
    if (!span->base) {
        free(span);
        return rdt_error_sys(err, errno, "mapping memory of the fake device");
    }
    mappings++;
    *addr_p = span->base + shared->offset;
    *mapping_p = span;
    return RDT_OK;
}

static void unmap(void *arg, void *addr, void *mapping)
{
    struct span *span = mapping;

    (void)munmap(span->base, span->bytes);
    free(span);
    mappings--;
}

void fake_device_use(rdt *conn)
{
    struct rdt_mapper mapper = {.struct_size = sizeof mapper, .memory = "fake", .map = map, .unmap = unmap};
    must_ok(rdt_map_by(conn, &mapper, &err));
}

unsigned fake_device_mappings(void)
{
    return mappings;
}

void *fake_device_alloc(rdt *conn, const char *device, size_t bytes)
{
    void *addr = NULL;
    struct rdt_alloc_options options = {.struct_size = sizeof options, .memory = "fake", .device = device};

    must_ok(rdt_alloc_with(conn, bytes, &options, &addr, &err));
    return addr;
}

/* ---- a process's own ---- */

void fake_device_malloc(struct fake_memory_own *own, unsigned n, uint64_t chunk_bytes)
{
    static uint64_t unique;

    memset(own, 0, sizeof *own);
    must(n <= sizeof own->fds / sizeof own->fds[0]);
    for (own->n = 0; own->n < n; own->n++) {
        own->fds[own->n] = memfd_create("own", MFD_CLOEXEC);
        own->chunk_bytes[own->n] = chunk_bytes;
        must(own->fds[own->n] >= 0 && ftruncate(own->fds[own->n], (off_t)chunk_bytes) == 0);
    }
    own->addr = map_chunks(own->fds, own->chunk_bytes, n, &own->bytes);
    must(own->addr);
    own->handle =
        (struct fake_handle){.magic = "fakeipc", .pid = getpid(), .fd = own->fds[0], .bytes = chunk_bytes, .unique = ++unique};
}

void fake_device_free(struct fake_memory_own *own)
{
    (void)munmap(own->addr, own->bytes);
    for (unsigned i = 0; i < own->n; i++)
        (void)close(own->fds[i]);
}

struct rdt_shared fake_device_chunks(const struct fake_memory_own *own, const char *device)
{
    struct rdt_shared shared = {.struct_size = sizeof shared,
                                .memory = "fake",
                                .device = device,
                                .kind = RDT_SHARED_VMM,
                                .bytes = own->bytes,
                                .fds = own->fds,
                                .chunk_bytes = own->chunk_bytes,
                                .n_fds = own->n};
    return shared;
}

struct rdt_shared fake_device_handle(const struct fake_memory_own *own, const char *device)
{
    struct rdt_shared shared = {.struct_size = sizeof shared,
                                .memory = "fake",
                                .device = device,
                                .kind = RDT_SHARED_LEGACY_IPC,
                                .bytes = own->chunk_bytes[0],
                                .handle = &own->handle,
                                .handle_bytes = sizeof own->handle};
    return shared;
}
