/* Host memory: memfds. Has what a memory kind must have, and import and share; none of what came since 1.1. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "plugin.h"

static int instance;

static enum rdt_status memory_open(const struct rdt_host *host, void **memory_p, struct rdt_error *err)
{
    (void)err;
    host->log(host->ctx, RDT_LOG_DEBUG, "memory of interface version %u", RDT_BACKEND_ABI);
    *memory_p = &instance;
    return RDT_OK;
}

static void memory_close(void *memory)
{
    (void)memory;
}

static enum rdt_status memory_alloc(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p,
                                    struct rdt_error *err)
{
    struct sysinfo system;
    int fd, error;

    (void)memory;
    (void)device;
    if (bytes == 0 || bytes > INT64_MAX)
        return frozen_error(err, RDT_INVALID, 0, "no such memory");
    if (sysinfo(&system) || bytes / system.mem_unit >= system.totalram) /* trying it out would end other processes first */
        return frozen_error(err, RDT_NO_MEMORY, 0, "the system has no memory for this");
    fd = memfd_create("frozen", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    error = fd < 0 || fchmod(fd, 0600) ? errno : 0;
    while (error == 0 && fallocate(fd, 0, 0, (off_t)bytes))
        error = errno == EINTR ? 0 : errno;
    if (error == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
        error = errno;
    if (error == 0) {
        *block_p = (struct rdt_block){.bytes = bytes, .fd = fd};
        return RDT_OK;
    }
    if (fd >= 0)
        (void)close(fd);
    if (error == ENOMEM || error == ENOSPC || error == EFBIG)
        return frozen_error(err, RDT_NO_MEMORY, 0, "the system has no memory for this");
    return frozen_error(err, RDT_SYSTEM, error, "making memory");
}

static enum rdt_status memory_import(void *memory, const char *device, const struct rdt_import *import,
                                     struct rdt_block *block_p, struct rdt_error *err)
{
    struct stat st;
    int fd, seals;

    (void)memory;
    (void)device;
    if (import->kind != RDT_IMPORT_MEMFD || import->n_fds != 1 || import->offset != 0)
        return frozen_error(err, RDT_INVALID, 0, "only a whole memfd is imported");
    seals = fcntl(import->fds[0], F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(import->fds[0], &st) || (uint64_t)st.st_size < import->bytes)
        return frozen_error(err, RDT_INVALID, 0, "the memfd to import is too short or lacks F_SEAL_SHRINK");
    fd = fcntl(import->fds[0], F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return frozen_error(err, RDT_SYSTEM, errno, "keeping the memory to import");
    *block_p = (struct rdt_block){.bytes = import->bytes,
                                  .fd = fd,
                                  .read_only = (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR ||
                                               (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))};
    return RDT_OK;
}

static enum rdt_status memory_map(void *memory, struct rdt_block *block, bool warm, struct rdt_error *err)
{
    void *addr = mmap(NULL, block->bytes, PROT_READ | (block->read_only ? 0 : PROT_WRITE),
                      MAP_SHARED | (warm ? MAP_POPULATE : 0), block->fd, 0);

    (void)memory;
    if (addr == MAP_FAILED)
        return frozen_error(err, RDT_SYSTEM, errno, "mapping memory");
    block->addr = addr;
    return RDT_OK;
}

static void memory_free(void *memory, struct rdt_block *block)
{
    (void)memory;
    if (block->addr)
        (void)munmap(block->addr, block->bytes);
    (void)close(block->fd);
}

static enum rdt_status memory_share(void *memory, const struct rdt_block *block, bool writable, int *fd_p,
                                    struct rdt_error *err)
{
    char path[40];

    (void)memory;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", block->fd);
    *fd_p = writable ? fcntl(block->fd, F_DUPFD_CLOEXEC, 0) : open(path, O_RDONLY | O_CLOEXEC);
    return *fd_p < 0 ? frozen_error(err, RDT_SYSTEM, errno, "sharing memory") : RDT_OK;
}

static enum rdt_status memory_copy(void *memory, void *dst, const void *src, uint64_t bytes, struct rdt_error *err)
{
    (void)memory;
    (void)err;
    memcpy(dst, src, bytes);
    return RDT_OK;
}

const struct rdt_memory_ops frozen_memory = {
    .struct_size = offsetof(struct rdt_memory_ops, discard), /* as before 1.1 */
    .name = "host",
    .open = memory_open,
    .close = memory_close,
    .alloc = memory_alloc,
    .import = memory_import,
    .free = memory_free,
    .map = memory_map,
    .share = memory_share,
    .copy = memory_copy,
};
