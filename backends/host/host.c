/* The memory kind "host": memfds.
 *
 * Owns the descriptors and mappings of its blocks. What it allocates has all pages reserved and cannot shrink or
 * grow, so no reader meets SIGBUS; what it imports must be sealed against shrinking. Holes that a client punches into
 * its own memory are not its business: the core copies under a guard from memory whose pages may be missing.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "backends/host/copy.h"
#include "backends/host/huge.h"
#include "backends/rdt_backend.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* since Linux 6.3 */
#endif

/* block->priv */
struct host_block {
    uint64_t offset;       /* of the block in its file; a multiple of the page size */
    uint64_t mapped_bytes; /* length of the mapping: bytes, rounded up for huge pages */
    uint64_t page_bytes;   /* of huge pages; 0: of others */
    bool imported;
    bool read_only;
    bool taken; /* imported, for ever unwritable, by a descriptor of our own for reading */
    bool never_shared;
    void *addr; /* mapped when it was allocated */
};

static struct huge huge; /* the one instance */

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

/* The kernel files new pages in batches, one for each processor, and what waits in another processor's counts
 * as in use: who seals the memory sleeps until every processor has filed its own, which takes milliseconds
 * where they are busy. What this one still has is filed at once by any advice that has to look at pages, here
 * on one that is not worth a thought. */
static void file_pages(void)
{
#ifdef MADV_COLD
    static _Alignas(65536) uint8_t page[65536]; /* one, whatever their size here */

    (void)madvise(page, sizeof page, MADV_COLD);
#endif
}

/* A signal undoes fallocate halfway: start again. */
static int reserve(int fd, uint64_t bytes)
{
    while (fallocate(fd, 0, 0, (off_t)bytes))
        if (errno != EINTR)
            return errno;
    file_pages();
    return 0;
}

static enum rdt_status host_alloc(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p,
                                  struct rdt_error *err)
{
    struct host_block values = {.mapped_bytes = bytes};
    int fd, error;
    enum rdt_status status;

    (void)device;
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
        values.addr = huge_map(memory, fd, bytes);
    }
    error = fchmod(fd, 0600) ? errno : 0;
    if (!error && !values.page_bytes && !values.addr)
        error = reserve(fd, bytes);
    if (!error && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)) /* more may follow: host_seal */
        error = errno;
    if (!error)
        return block_fill(block_p, fd, bytes, &values, err);

    if (values.addr)
        (void)munmap(values.addr, bytes);
    (void)close(fd);
    if (error == ENOMEM || error == ENOSPC || error == EFBIG)
        return out_of_memory(err, bytes);
    return rdt_error_sys(err, error, "reserving %llu bytes of host memory", (unsigned long long)bytes);
}

static uint64_t host_round(void *memory, uint64_t bytes)
{
    return huge_round(memory, bytes);
}

static enum rdt_status host_alloc_private(void *memory, uint64_t bytes, struct rdt_block *block_p, struct rdt_error *err)
{
    struct host_block values = {.mapped_bytes = bytes, .never_shared = true};
    int fd = huge_tmpfs(memory, bytes);

    if (fd < 0)
        return rdt_error_set(err, RDT_UNSUPPORTED, "there is no huge_tmpfs, or no room on it");
    return block_fill(block_p, fd, bytes, &values, err);
}

/* ---- importing ----
 * A client's descriptor may belong to a file of any kind, and a file system may be a process that never answers. The
 * kernel itself answers what seals a file has. So the seals are asked for first, and only a file that knows seals is
 * looked at further.
 */

static enum rdt_status check_file(int fd, struct stat *stat_p, struct rdt_error *err)
{
    struct statfs fs;

    if (fstat(fd, stat_p) || fstatfs(fd, &fs))
        return rdt_error_sys(err, errno, "looking at the descriptor to import");
    if (!S_ISREG(stat_p->st_mode) || (fs.f_type != TMPFS_MAGIC && fs.f_type != HUGETLBFS_MAGIC))
        return rdt_error_set(err, RDT_INVALID, "the descriptor to import is not a memfd: create it with memfd_create");
    return RDT_OK;
}

static enum rdt_status check_seals(int fd, int *seals_p, struct rdt_error *err)
{
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0)
        return rdt_error_set(err, RDT_INVALID,
                             "the descriptor to import is not a memfd (it knows no seals): create it with memfd_create");
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
            err, RDT_INVALID, "the memory to import holds %llu bytes, fewer than the %llu at offset %llu asked for",
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
    struct host_block values = {.offset = import->offset, .mapped_bytes = import->bytes, .imported = true};
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
        return rdt_error_sys(err, errno, "looking at the descriptor to import");
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

/* ---- taking what nobody can write any more ---- */

static enum rdt_status check_for_ever(int fd, struct rdt_error *err)
{
    static const struct {
        int seal;
        const char *name;
    } wanted[] = {{F_SEAL_WRITE, "F_SEAL_WRITE"}, {F_SEAL_SHRINK, "F_SEAL_SHRINK"}, {F_SEAL_GROW, "F_SEAL_GROW"}};
    int flags = fcntl(fd, F_GETFL), seals;

    if (flags < 0)
        return rdt_error_sys(err, errno, "looking at the memory made for a snapshot");
    if ((flags & O_ACCMODE) == O_WRONLY || (flags & O_PATH)) /* nor may the daemon read it for somebody who may not */
        return rdt_error_set(err, RDT_INVALID, "the descriptor of the memory made for a snapshot cannot be read");
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0)
        return rdt_error_set(err, RDT_INVALID, "the memory made for a snapshot is not a memfd");
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (!(seals & wanted[i].seal))
            return rdt_error_set(err, RDT_INVALID, "the memory made for a snapshot lacks %s", wanted[i].name);
    return RDT_OK;
}

/* With those seals its size and its pages stay what they are now. */
static enum rdt_status check_whole(int fd, uint64_t bytes, struct rdt_error *err)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), pages, there;
    struct statfs fs;
    struct stat st;

    if (fstat(fd, &st) || fstatfs(fd, &fs))
        return rdt_error_sys(err, errno, "looking at the memory made for a snapshot");
    if (fs.f_type != TMPFS_MAGIC)
        return rdt_error_set(err, RDT_INVALID, "the memory made for a snapshot lies on huge pages");
    pages = round_up(bytes, page);
    if ((uint64_t)st.st_size != pages) /* who maps it maps them whole */
        return rdt_error_set(err, RDT_INVALID,
                             "the memory made for a snapshot has %llu bytes, not the %llu of whole pages for %llu",
                             (unsigned long long)st.st_size, (unsigned long long)pages, (unsigned long long)bytes);
    there = (uint64_t)st.st_blocks * 512;
    if (there != pages)
        return rdt_error_set(err, RDT_INVALID, "the memory made for a snapshot has pages of %llu bytes %s",
                             (unsigned long long)there, there < pages ? "and else holes" : "and is shorter");
    return RDT_OK;
}

/* Opened anew: the client's own may be one for writing, which older kernels do not map shared once it is
 * sealed. Later nothing is: who owns the file may change its mode, and who has a lease on it makes others
 * wait, hence O_NONBLOCK. */
static enum rdt_status host_take(void *memory, int fd, uint64_t bytes, struct rdt_block *block_p, struct rdt_error *err)
{
    struct host_block values = {.mapped_bytes = bytes, .imported = true, .read_only = true, .taken = true};
    char path[32];
    int own;
    enum rdt_status status;

    (void)memory;
    if (!bytes || bytes > INT64_MAX)
        return rdt_error_set(err, RDT_INVALID, "cannot take %llu bytes made for a snapshot", (unsigned long long)bytes);
    status = check_for_ever(fd, err);
    if (status == RDT_OK)
        status = check_whole(fd, bytes, err);
    if (status != RDT_OK)
        return status;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    own = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (own < 0 && errno == EACCES)
        return rdt_error_set(err, RDT_INVALID, "the memory made for a snapshot may not be read by others: leave its mode as "
                                               "memfd_create makes it");
    if (own < 0 && errno == EAGAIN)
        return rdt_error_set(err, RDT_INVALID, "somebody has a lease on the memory made for a snapshot");
    if (own < 0 && (errno == EMFILE || errno == ENFILE))
        return rdt_error_set(err, RDT_LIMIT, "no descriptor is left for the memory made for a snapshot");
    if (own < 0)
        return rdt_error_sys(err, errno, "opening the memory made for a snapshot by %s", path);
    if (lseek(own, 0, SEEK_HOLE) < (off_t)bytes) { /* pages may lie behind its end */
        (void)close(own);
        return rdt_error_set(err, RDT_INVALID, "the memory made for a snapshot has holes");
    }
    return block_fill(block_p, own, bytes, &values, err);
}

/* ---- a block's life ---- */

/* Warm: with its pages, which costs a pool thread now rather than a fault per page on the first copy or
 * receive. Never imported memory: it may have holes, which populating would fill at somebody's expense. */
static enum rdt_status host_map(void *memory, struct rdt_block *block, bool warm, struct rdt_error *err)
{
    struct host_block *priv = block->priv;
    int protection = priv->read_only ? PROT_READ : PROT_READ | PROT_WRITE;
    int flags = MAP_SHARED | (warm && !priv->imported ? MAP_POPULATE : 0);
    void *addr = priv->addr;

    (void)memory;
    priv->addr = NULL;
    if (!addr)
        addr = mmap(NULL, priv->mapped_bytes, protection, flags, block->fd, (off_t)priv->offset);
    /* Before Linux 6.7 memory with F_SEAL_WRITE had no shared mapping through a writable descriptor; nobody can
     * change it, so a private one shows the same. */
    if (addr == MAP_FAILED && errno == EPERM && priv->read_only)
        addr = mmap(NULL, priv->mapped_bytes, PROT_READ, MAP_PRIVATE, block->fd, (off_t)priv->offset);
    if (addr == MAP_FAILED) {
        if (errno == ENOMEM)
            return rdt_error_set(err, RDT_NO_MEMORY, "no address space or mapping left for %llu bytes of host memory",
                                 (unsigned long long)block->bytes);
        return rdt_error_sys(err, errno, "mapping %llu bytes of host memory", (unsigned long long)block->bytes);
    }
    block->addr = addr;
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
    if (priv->never_shared)
        return rdt_error_set(err, RDT_UNSUPPORTED, "this memory lies on huge_tmpfs, which knows no seals: it is never shared");
    if (!writable && priv->imported && !priv->taken)
        return rdt_error_set(err, RDT_UNSUPPORTED, "imported memory belongs to its client and cannot be made read-only");
    if (writable && priv->taken)
        return rdt_error_set(err, RDT_UNSUPPORTED, "memory made for a snapshot is for reading only");
    if (writable || priv->taken) {
        fd = fcntl(block->fd, F_DUPFD_CLOEXEC, 0);
        if (fd < 0)
            return rdt_error_sys(err, errno, "duplicating a descriptor of host memory");
    } else {
        /* A duplicate would share the open file and its write access; opening anew asks the file's mode,
         * 0600. Not kept: a second descriptor for every region would halve how many there can be. */
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", block->fd);
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a client of the same uid may have a lease on it */
        if (fd < 0)
            return rdt_error_sys(err, errno, "opening host memory read-only by %s", path);
    }
    *fd_p = fd;
    return RDT_OK;
}

/* The kernel refuses F_SEAL_WRITE while a writable mapping exists anywhere, or while a device or a system
 * call is at the pages; once it stands, no descriptor writes, no hole is punched and no mapping becomes
 * writable, root's included. */
static enum rdt_status host_seal(void *memory, struct rdt_block *block, bool proof, struct rdt_error *err)
{
    struct host_block *priv = block->priv;

    (void)memory;
    if (priv->imported)
        return rdt_error_set(err, RDT_UNSUPPORTED, "imported memory belongs to its client and is not sealed");
    if (proof && (block->addr || priv->addr)) {
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
     "memory of 2 MiB and more on huge pages (hugetlb, else transparent): no, try (small ones where there are none), require"},
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
    .take = host_take,
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
