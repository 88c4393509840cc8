/* SPDX-License-Identifier: Apache-2.0 */
/* The memory kind "host": memfds.
 *
 * It owns the descriptors and mappings of its blocks. Memory that it allocates has all pages reserved and cannot shrink or
 * grow, so that no reader meets SIGBUS; memory that it imports must be sealed against shrinking. It does not deal with the
 * holes that a client may punch into its own memory: the core copies under a SIGBUS guard where pages may be missing.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "backends/host/copy.h"
#include "backends/host/huge.h"
#include "backends/rdt_backend.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* since Linux 6.3 */
#endif

enum origin {
    ALLOCATED,
    ALLOCATED_PRIVATE, /* on huge_tmpfs, and never shared */
    IMPORTED,          /* a client's */
    TAKEN,             /* restored: nobody can write it any more, and its descriptor is our own */
};

/* block->priv */
struct host_block {
    uint64_t offset;       /* of the block in its file; a multiple of the page size */
    uint64_t mapped_bytes; /* length of the mapping: the block's bytes, rounded up for huge pages */
    uint64_t page_bytes;   /* size of its huge pages; 0: ordinary pages */
    enum origin origin;
    bool read_only;
    void *addr; /* a mapping that the allocation created, until host_map hands it out; or NULL */
};

static bool imported(const struct host_block *block)
{
    return block->origin == IMPORTED || block->origin == TAKEN;
}

static struct huge huge; /* the kind is opened once */

static enum rdt_status host_open(const struct rdt_host *host, void **memory_p, struct rdt_error *err)
{
    enum rdt_status status = huge_open(&huge, host, err);

    if (status == RDT_OK)
        *memory_p = &huge;
    return status;
}

static void host_close(void *memory)
{
    (void)memory;
}

static enum rdt_status out_of_memory(struct rdt_error *err, uint64_t bytes)
{
    return rdt_error_set(err, RDT_NO_MEMORY, "the system has no memory for %llu more bytes", (unsigned long long)bytes);
}

static enum rdt_status block_fill(struct rdt_block *block, int take_fd, uint64_t bytes, const struct host_block *values,
                                  struct rdt_error *err)
{
    struct host_block *priv = malloc(sizeof *priv);

    if (!priv) {
        (void)close(take_fd);
        return out_of_memory(err, bytes);
    }
    *priv = *values;
    block->addr = NULL;
    block->bytes = bytes;
    block->fd = take_fd;
    block->priv = priv;
    block->read_only = values->read_only;
    block->page_bytes = values->page_bytes;
    return RDT_OK;
}

/* ---- allocating ---- */

static int create_memfd(void)
{
    int fd = memfd_create("rdtd", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

    if (fd < 0 && errno == EINVAL)
        fd = memfd_create("rdtd", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd;
}

/* The kernel adds new pages to its page lists in batches, one per processor. F_SEAL_WRITE regards a page that waits in a
 * batch as in use, and sleeps until every processor has drained its batch, which takes milliseconds on busy processors.
 * Any madvise that examines pages drains this processor's batch at once, so it is called here, on a page of no
 * importance. */
static void drain_page_batch(void)
{
#ifdef MADV_COLD
    static _Alignas(65536) uint8_t page[65536]; /* one page of any size */

    (void)madvise(page, sizeof page, MADV_COLD);
#endif
}

/* A signal makes fallocate undo its work and return EINTR. */
static int reserve(int fd, uint64_t bytes)
{
    while (fallocate(fd, 0, 0, (off_t)bytes))
        if (errno != EINTR)
            return errno;
    drain_page_batch();
    return 0;
}

#define MAX_NODES 64u

/* Lets the file's pages come from that NUMA node as long as it has free ones. The kernel keeps this with the file, but not for
 * hugetlb pages. Where it is not permitted (in some containers) they come from anywhere. */
static void prefer_node(int fd, uint64_t bytes, const char *device)
{
    unsigned long node = strncmp(device, "node", 4) == 0 ? strtoul(device + 4, NULL, 10) : MAX_NODES, mask;
    void *addr = node < MAX_NODES ? mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0) : MAP_FAILED;

    if (addr == MAP_FAILED)
        return;
    mask = 1ul << node;
    (void)syscall(SYS_mbind, addr, bytes, MPOL_PREFERRED, &mask, (unsigned long)MAX_NODES + 1, 0);
    (void)munmap(addr, bytes);
}

static enum rdt_status host_alloc(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p,
                                  struct rdt_error *err)
{
    struct host_block values = {.mapped_bytes = bytes};
    int fd, error;
    enum rdt_status status;

    if (!bytes || bytes > INT64_MAX)
        return rdt_error_set(err, RDT_INVALID, "cannot allocate %llu bytes of host memory", (unsigned long long)bytes);
    if (bytes / (uint64_t)sysconf(_SC_PAGESIZE) >= (uint64_t)sysconf(_SC_PHYS_PAGES))
        return out_of_memory(err, bytes); /* fallocate would take every page of the machine before it fails */
    status = huge_memfd(memory, bytes, &fd, err);
    if (status != RDT_OK)
        return status;
    if (fd >= 0) {
        values.mapped_bytes = huge_round(memory, bytes);
        values.page_bytes = huge.page_bytes;
    } else {
        fd = create_memfd();
        if (fd < 0)
            return rdt_error_sys(err, errno, "memfd_create for %llu bytes", (unsigned long long)bytes);
        prefer_node(fd, bytes, device);
        values.addr = huge_map(memory, fd, bytes);
    }
    error = fchmod(fd, 0600) ? errno : 0;
    if (!error && !values.page_bytes && !values.addr)
        error = reserve(fd, bytes);
    if (!error && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)) /* without F_SEAL_SEAL: host_seal adds more */
        error = errno;
    if (!error)
        return block_fill(block_p, fd, bytes, &values, err);

    if (values.addr)
        (void)munmap(values.addr, bytes);
    (void)close(fd);
    if (error == ENOMEM || error == ENOSPC)
        return out_of_memory(err, bytes);
    return rdt_error_sys(err, error, "reserving %llu bytes of host memory", (unsigned long long)bytes);
}

static uint64_t host_round(void *memory, uint64_t bytes)
{
    return huge_round(memory, bytes);
}

static enum rdt_status host_alloc_private(void *memory, uint64_t bytes, struct rdt_block *block_p, struct rdt_error *err)
{
    struct host_block values = {.mapped_bytes = bytes, .origin = ALLOCATED_PRIVATE};
    int fd = huge_tmpfs(memory, bytes);

    if (fd < 0)
        return rdt_error_set(err, RDT_UNSUPPORTED, "there is no huge_tmpfs, or no room on it");
    return block_fill(block_p, fd, bytes, &values, err);
}

/* ---- importing ----
 * A client's descriptor may belong to a file of any kind, and its file system may be a process that never answers. The
 * kernel itself knows which seals a file has. So import asks for the seals first, and examines further only a file that
 * supports them.
 */

static enum rdt_status check_file(int fd, struct stat *stat_p, struct rdt_error *err)
{
    struct statfs fs;

    if (fstat(fd, stat_p) || fstatfs(fd, &fs))
        return rdt_error_sys(err, errno, "examining the descriptor to import");
    if (!S_ISREG(stat_p->st_mode) || (fs.f_type != TMPFS_MAGIC && fs.f_type != HUGETLBFS_MAGIC))
        return rdt_error_set(err, RDT_INVALID, "the descriptor to import is not a memfd: create it with memfd_create");
    return RDT_OK;
}

static enum rdt_status check_seals(int fd, int *seals_p, struct rdt_error *err)
{
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0)
        return rdt_error_set(err, RDT_INVALID,
                             "the descriptor to import is not a memfd (it supports no seals): create it with memfd_create");
    if (seals & F_SEAL_SHRINK) {
        *seals_p = seals;
        return RDT_OK;
    }
    if (seals & F_SEAL_SEAL)
        return rdt_error_set(err, RDT_INVALID,
                             "the memory to import lacks F_SEAL_SHRINK and takes no more seals: create it with "
                             "memfd_create(..., MFD_ALLOW_SEALING), then fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)");
    return rdt_error_set(err, RDT_INVALID,
                         "the memory to import lacks F_SEAL_SHRINK: call fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) once it has "
                         "its size");
}

static enum rdt_status check_range(const struct rdt_import *import, const struct stat *st, struct rdt_error *err)
{
    long page = sysconf(_SC_PAGESIZE);
    uint64_t unit = st->st_blksize > page ? (uint64_t)st->st_blksize : (uint64_t)page;

    if (!import->bytes || import->bytes > INT64_MAX || import->offset > INT64_MAX)
        return rdt_error_set(err, RDT_INVALID, "cannot import %llu bytes at offset %llu", (unsigned long long)import->bytes,
                             (unsigned long long)import->offset);
    if (import->offset % unit)
        return rdt_error_set(err, RDT_INVALID, "offset %llu of the memory to import is not a multiple of its page size %llu",
                             (unsigned long long)import->offset, (unsigned long long)unit);
    if ((uint64_t)st->st_size < import->offset || (uint64_t)st->st_size - import->offset < import->bytes)
        return rdt_error_set(
            err, RDT_INVALID, "the memory to import has %llu bytes, fewer than the %llu at offset %llu that were asked for",
            (unsigned long long)st->st_size, (unsigned long long)import->bytes, (unsigned long long)import->offset);
    return RDT_OK;
}

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static enum rdt_status host_import(void *memory, const char *device, const struct rdt_import *import, struct rdt_block *block_p,
                                   struct rdt_error *err)
{
    struct host_block values = {.offset = import->offset, .mapped_bytes = import->bytes, .origin = IMPORTED};
    struct stat st;
    enum rdt_status status;
    int fd, flags, seals = 0;

    (void)memory;
    (void)device;
    if (import->kind != RDT_IMPORT_MEMFD)
        return rdt_error_set(err, RDT_UNSUPPORTED, "host memory is imported as a memfd only");
    if (import->n_fds != 1)
        return rdt_error_set(err, RDT_INVALID, "an import of host memory takes one descriptor, not %u", import->n_fds);

    status = check_seals(import->fds[0], &seals, err);
    if (status == RDT_OK)
        status = check_file(import->fds[0], &st, err);
    if (status == RDT_OK)
        status = check_range(import, &st, err);
    if (status != RDT_OK)
        return status;

    flags = fcntl(import->fds[0], F_GETFL);
    if (flags < 0)
        return rdt_error_sys(err, errno, "examining the descriptor to import");
    if ((flags & O_ACCMODE) == O_WRONLY || (flags & O_PATH))
        return rdt_error_set(err, RDT_INVALID, "the descriptor to import cannot be read");
    values.read_only = (flags & O_ACCMODE) == O_RDONLY || (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE));

    fd = fcntl(import->fds[0], F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return rdt_error_sys(err, errno, "duplicating the descriptor to import");
    if (st.st_blksize > sysconf(_SC_PAGESIZE)) {
        values.page_bytes = (uint64_t)st.st_blksize;
        values.mapped_bytes = round_up(import->bytes, values.page_bytes);
    }
    return block_fill(block_p, fd, import->bytes, &values, err);
}

/* ---- restoring blocks of an earlier daemon ---- */

/* A file of the daemon's own, such as a stored object. Its pages are in the page cache, and come from the disk. */
static enum rdt_status restore_file(int take_fd, uint64_t offset, uint64_t bytes, struct rdt_block *block_p,
                                    struct rdt_error *err)
{
    struct host_block values = {.offset = offset,
                                .mapped_bytes = bytes,
                                .page_bytes = (uint64_t)sysconf(_SC_PAGESIZE),
                                .origin = TAKEN,
                                .read_only = true};
    int flags = fcntl(take_fd, F_GETFL);
    struct stat st;

    if (flags < 0 || fstat(take_fd, &st))
        return rdt_error_sys(err, errno, "examining a file of stored tensors");
    if (!S_ISREG(st.st_mode) || (flags & O_ACCMODE) != O_RDONLY || (flags & O_PATH))
        return rdt_error_set(err, RDT_INVALID,
                             "the descriptor of stored tensors is no regular file that was opened for reading");
    if (bytes == 0 || offset % values.page_bytes || (uint64_t)st.st_size < offset || (uint64_t)st.st_size - offset < bytes)
        return rdt_error_set(err, RDT_INVALID, "the file of stored tensors has %llu bytes, fewer than %llu at offset %llu",
                             (unsigned long long)st.st_size, (unsigned long long)bytes, (unsigned long long)offset);
    return block_fill(block_p, take_fd, bytes, &values, err);
}

static enum rdt_status host_restore(void *memory, enum rdt_restore from, int take_fd, uint64_t offset, uint64_t bytes,
                                    struct rdt_block *block_p, struct rdt_error *err)
{
    struct rdt_import import = {.kind = RDT_IMPORT_MEMFD, .bytes = bytes, .offset = offset, .fds = &take_fd, .n_fds = 1};
    struct host_block values = {.offset = offset,
                                .mapped_bytes = bytes,
                                .origin = from == RDT_RESTORE_ALLOCATED ? ALLOCATED
                                          : from == RDT_RESTORE_TAKEN   ? TAKEN
                                                                        : IMPORTED};
    int seals = 0, flags = fcntl(take_fd, F_GETFL);
    struct stat st;
    enum rdt_status status;

    (void)memory;
    if (from == RDT_RESTORE_FILE)
        return restore_file(take_fd, offset, bytes, block_p, err);
    status = check_seals(take_fd, &seals, err);
    if (status == RDT_OK)
        status = check_file(take_fd, &st, err);
    if (status == RDT_OK)
        status = check_range(&import, &st, err);
    if (status != RDT_OK)
        return status;
    values.read_only = (flags & O_ACCMODE) == O_RDONLY || (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE));
    if (st.st_blksize > sysconf(_SC_PAGESIZE)) {
        values.page_bytes = (uint64_t)st.st_blksize;
        values.mapped_bytes = round_up(bytes, values.page_bytes);
    }
    return block_fill(block_p, take_fd, bytes, &values, err);
}

/* ---- mapping, sharing and sealing blocks ---- */

/* With `warm` the mapping is populated here, on a pool thread, which saves the first copy or receive a fault per page.
 * Imported memory is never populated: it may have holes, and populating would allocate pages for them. */
static enum rdt_status map_block(struct rdt_block *block, int flags, struct rdt_error *err)
{
    const struct host_block *priv = block->priv;
    int protection = priv->read_only ? PROT_READ : PROT_READ | PROT_WRITE;
    uint64_t bytes = priv->mapped_bytes;
    off_t at = (off_t)priv->offset;
    void *addr = mmap(NULL, bytes, protection, flags, block->fd, at);

    /* Before Linux 6.7 a writable descriptor of memory with F_SEAL_WRITE cannot be mapped shared. Since nobody can change
     * the memory, a private mapping shows the same bytes. */
    if (addr == MAP_FAILED && errno == EPERM && priv->read_only)
        addr = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, block->fd, at);
    if (addr == MAP_FAILED && errno == ENOMEM)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no address space or mapping left for %llu bytes of host memory",
                             (unsigned long long)bytes);
    if (addr == MAP_FAILED)
        return rdt_error_sys(err, errno, "mapping %llu bytes of host memory", (unsigned long long)bytes);
    block->addr = addr;
    return RDT_OK;
}

static enum rdt_status host_map(void *memory, struct rdt_block *block, bool warm, struct rdt_error *err)
{
    struct host_block *priv = block->priv;

    (void)memory;
    if (!priv->addr)
        return map_block(block, MAP_SHARED | (warm && !imported(priv) ? MAP_POPULATE : 0), err);
    block->addr = priv->addr;
    priv->addr = NULL;
    return RDT_OK;
}

static void host_free(void *memory, struct rdt_block *block)
{
    struct host_block *priv = block->priv;

    (void)memory;
    if (block->addr || priv->addr)
        (void)munmap(block->addr ? block->addr : priv->addr, priv->mapped_bytes);
    if (block->fd >= 0)
        (void)close(block->fd);
    free(priv);
    block->addr = NULL;
    block->fd = -1;
    block->priv = NULL;
}

static void host_discard(void *memory, struct rdt_block *block)
{
    struct stat st;

    (void)memory;
    if (fstat(block->fd, &st) == 0)
        (void)fallocate(block->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, st.st_size);
}

static enum rdt_status host_share(void *memory, const struct rdt_block *block, bool writable, int *fd_p, struct rdt_error *err)
{
    const struct host_block *priv = block->priv;
    char path[32];
    int fd;

    (void)memory;
    if (priv->origin == ALLOCATED_PRIVATE)
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "this memory lies on huge_tmpfs, which supports no seals, and is never shared");
    if (!writable && priv->origin == IMPORTED)
        return rdt_error_set(err, RDT_UNSUPPORTED, "imported memory belongs to its client and cannot be made read-only");
    if (writable && priv->origin == TAKEN)
        return rdt_error_set(err, RDT_UNSUPPORTED, "memory created for a snapshot is read-only");
    if (imported(priv)) {
        fd = fcntl(block->fd, F_DUPFD_CLOEXEC, 0);
        if (fd < 0)
            return rdt_error_sys(err, errno, "duplicating a descriptor of host memory");
    } else {
        /* A duplicate would share the open file: its write access, and what the kernel knows of who has it (is_alone in
         * daemon/memory/pool.c). So the file is opened anew, which its mode 0600 permits to the daemon alone. The descriptor
         * is not kept: a second one for every region would halve the number of regions that there can be. */
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", block->fd);
        fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK); /* a client of this uid may have a lease */
        if (fd < 0)
            return rdt_error_sys(err, errno, "opening host memory again, %s", path);
    }
    *fd_p = fd;
    return RDT_OK;
}

/* The kernel refuses F_SEAL_WRITE while a writable mapping exists anywhere, or while a device or a system call uses the
 * pages. Once the seal is set, nobody, root included, can write by a descriptor, punch a hole or make a mapping
 * writable. */
static enum rdt_status host_seal(void *memory, struct rdt_block *block, bool proof, struct rdt_error *err)
{
    struct host_block *priv = block->priv;

    (void)memory;
    if (imported(priv))
        return rdt_error_set(err, RDT_UNSUPPORTED, "imported memory belongs to its client and is not sealed");
    if (proof && (block->addr || priv->addr)) {
        /* From here on nobody can remove pages. To unmap them is to wait for whoever does. */
        if (fcntl(block->fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE))
            return rdt_error_sys(err, errno, "sealing %llu bytes of host memory", (unsigned long long)block->bytes);
        priv->read_only = block->read_only = true;
        (void)munmap(block->addr ? block->addr : priv->addr, priv->mapped_bytes);
        block->addr = priv->addr = NULL;
    }
    if (fcntl(block->fd, F_ADD_SEALS, (proof ? F_SEAL_WRITE : F_SEAL_FUTURE_WRITE) | F_SEAL_SEAL)) {
        if (errno == EBUSY)
            return rdt_error_set(err, RDT_BUSY, "somebody may still write the memory to be sealed");
        return rdt_error_sys(err, errno, "sealing %llu bytes of host memory", (unsigned long long)block->bytes);
    }
    priv->read_only = block->read_only = true;
    return RDT_OK;
}

static enum rdt_status host_copy(void *memory, void *dst, const void *src, uint64_t bytes, struct rdt_error *err)
{
    (void)memory;
    (void)err;
    copy_bytes(dst, src, bytes);
    return RDT_OK;
}

/* ---- the backend ---- */

static const struct rdt_config_key config_keys[] = {
    {"huge_pages", "no",
     "huge pages (hugetlb, else transparent) for memory of 2 MiB and more: no, try (ordinary pages if there are none), "
     "require"},
    {"huge_tmpfs", "", "folder on a tmpfs mounted with huge=always, for memory that never leaves the daemon; empty: none"},
    {NULL, NULL, NULL},
};

static const struct rdt_memory_ops memory_ops = {
    .struct_size = sizeof memory_ops,
    .name = "host",
    .open = host_open,
    .close = host_close,
    .alloc = host_alloc,
    .import = host_import,
    .free = host_free,
    .map = host_map,
    .share = host_share,
    .copy = host_copy,
    .discard = host_discard,
    .seal = host_seal,
    .round = host_round,
    .alloc_private = host_alloc_private,
    .restore = host_restore,
};

static const struct rdt_backend backend = {
    .abi_version = RDT_BACKEND_ABI,
    .struct_size = sizeof backend,
    .name = "host",
    .version = "0.1.0",
    .config_keys = config_keys,
    .memory = &memory_ops,
};

const struct rdt_backend *rdt_backend_init(void)
{
    return &backend;
}
