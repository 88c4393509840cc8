/* SPDX-License-Identifier: Apache-2.0 */
/* What every memory kind must do. The processor may be unable to reach such memory, so the checks read and write it through
 * the plug-in's own copy operation: copy, or copy_start of a kind with devices. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/conformance/check.h"
#include "tests/support/backend_host.h"

#define MIB ((uint64_t)1 << 20)
#define COPY_MS 20000

static struct backend_host host;
static const struct rdt_memory_ops *ops;
static void *memory;
static const char *device; /* that the checks allocate on; "" for a kind without devices */
static struct rdt_error err;

/* Opens no device; the first one serves the checks. */
static void choose_device(void)
{
    struct rdt_device first = {0};

    device = "";
    if (!HAS_OP(ops, devices))
        return;
    if (ops->devices(memory, &first, 1) == 0)
        check_skip("it has no device here");
    must(first.uuid && *first.uuid, "its first device has no uuid");
    device = first.uuid;
}

static void setup(void)
{
    must_eq(backend_host_load(&host, check_so, &err), RDT_OK, "%s", err.msg);
    ops = host.backend->memory;
    if (!ops)
        check_skip("it has no memory kind");
    must(ops->name && *ops->name && ops->open && ops->close && ops->alloc && ops->free && ops->map,
         "the table lacks a name, or one of open, close, alloc, free and map");
    if (HAS_OP(ops, devices))
        must(HAS_OP(ops, export_block) && HAS_OP(ops, copy_start) && HAS_OP(ops, zero),
             "the table has devices, and lacks one of export_block, copy_start and zero");
    else
        must(ops->copy, "the table has neither copy nor devices");
    host.opening = true;
    switch (ops->open(&host.table, &memory, &err)) {
    case RDT_OK:
        break;
    case RDT_UNSUPPORTED:
        must(err.msg[0], "it is not available, and does not say why");
        check_skip("it is not available here: %s", err.msg);
    default:
        must(false, "open fails: %s", err.msg);
    }
    host.opening = false;
    choose_device();
}

static void teardown(void)
{
    ops->close(memory);
    must_eq(host.n_errors, 0, "it logged errors");
    backend_host_close(&host);
}

#define MEMORY_CHECK(name) CHECK_WITH(memory, name, setup, teardown)

static void alloc(struct rdt_block *block, uint64_t bytes)
{
    *block = (struct rdt_block){.fd = -1};
    must_eq(ops->alloc(memory, device, bytes, block, &err), RDT_OK, "allocating %llu bytes: %s", (unsigned long long)bytes,
            err.msg);
    must_null(block->addr, "it is mapped before anybody asked");
    must_eq(ops->map(memory, block, true, &err), RDT_OK, "mapping it: %s", err.msg);
    must_not_null(block->addr, "map gives no address");
}

/* Copies between host memory and a mapped block; into_block says which end is the block's. */
static void copy_bytes(const struct rdt_block *block, void *to, const void *from, uint64_t bytes, bool into_block)
{
    struct rdt_copy_piece piece = {.to = to, .from = from, .bytes = bytes, .rows = 1};
    struct host_copy copy = {
        .copy = {.to = into_block ? block : NULL, .from = into_block ? NULL : block, .pieces = &piece, .n_pieces = bytes > 0}};
    enum rdt_status status;

    if (!HAS_OP(ops, devices)) {
        status = ops->copy(memory, to, from, bytes, &err);
        must_eq(status, RDT_OK, "copying: %s", err.msg);
        return;
    }
    if (bytes == 0)
        return;
    status = ops->copy_start(memory, &copy.copy, &err);
    must_eq(status, RDT_OK, "starting a copy: %s", err.msg);
    must(host_copy_wait(&copy, COPY_MS), "a copy does not end");
    must_eq(copy.status, RDT_OK, "copying: %s", copy.msg);
}

static void copy_in(const struct rdt_block *block, uint64_t at, const void *from, uint64_t bytes)
{
    copy_bytes(block, (uint8_t *)block->addr + at, from, bytes, true);
}

static uint8_t *copied_out(const struct rdt_block *block, uint64_t bytes)
{
    uint8_t *out = malloc(bytes);

    must_not_null(out);
    copy_bytes(block, out, block->addr, bytes, false);
    return out;
}

MEMORY_CHECK(allocations_of_all_sizes_are_zeroed)
{
    static const uint64_t sizes[] = {1, 4095, 4096, 4097, MIB, 33 * MIB + 5};

    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct rdt_block block;
        uint64_t dirty = 0;

        alloc(&block, sizes[i]);
        must_eq(block.bytes, sizes[i], "the block says that it has %llu bytes", (unsigned long long)block.bytes);
        must_not(block.read_only, "memory that was allocated is said to be read-only");
        uint8_t *out = copied_out(&block, sizes[i]);
        for (uint64_t k = 0; k < sizes[i]; k++)
            dirty += out[k] != 0;
        must_eq(dirty, 0, "%llu of %llu bytes were not zero", (unsigned long long)dirty, (unsigned long long)sizes[i]);
        free(out);
        ops->free(memory, &block);
    }
}

MEMORY_CHECK(part_of_a_block_is_zeroed_alone)
{
    struct rdt_block block = {.fd = -1};
    uint8_t *bytes = malloc(MIB), *out;

    if (!HAS_OP(ops, alloc_unzeroed))
        check_skip("it has no alloc_unzeroed");
    must(HAS_OP(ops, zero_part), "it has alloc_unzeroed, and lacks zero_part");
    must_not_null(bytes);
    memset(bytes, 0x5a, MIB);
    must_eq(ops->alloc_unzeroed(memory, device, MIB, &block, &err), RDT_OK, "allocating memory: %s", err.msg);
    must_eq(ops->map(memory, &block, true, &err), RDT_OK, "mapping it: %s", err.msg);
    copy_in(&block, 0, bytes, MIB);
    must_eq(ops->zero_part(memory, &block, 4099, 63, &err), RDT_OK, "clearing a part: %s", err.msg);
    memset(bytes + 4099, 0, 63);
    out = copied_out(&block, MIB);
    must(memcmp(out, bytes, MIB) == 0, "more or less than the part was cleared");
    free(out);
    free(bytes);
    ops->free(memory, &block);
}

MEMORY_CHECK(memory_that_was_used_comes_back_zeroed)
{
    struct rdt_block block;
    uint8_t *dirt = malloc(MIB), *out;

    must_not_null(dirt);
    memset(dirt, 0x5a, MIB);
    for (unsigned i = 0; i < 20; i++) {
        alloc(&block, MIB);
        out = copied_out(&block, MIB);
        must(out[0] == 0 && memcmp(out, out + 1, MIB - 1) == 0, "it shows what somebody else had there");
        copy_in(&block, 0, dirt, MIB);
        free(out);
        ops->free(memory, &block);
    }
    free(dirt);
}

MEMORY_CHECK(copies_of_all_sizes_and_alignments_are_exact)
{
    static const uint64_t sizes[] = {0, 1, 127, 4096, MIB + 77, 16 * MIB, 17 * MIB + 1};
    struct rdt_block block;
    uint8_t *from = malloc(18 * MIB);

    must_not_null(from);
    alloc(&block, 18 * MIB);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (unsigned shift = 0; shift < 3; shift++) {
            memset(from, CANARY, 18 * MIB);
            copy_in(&block, 0, from, 18 * MIB);
            pattern_fill(from + shift * 7, sizes[i], i);
            copy_in(&block, 4096 + shift * 13, from + shift * 7, sizes[i]);
            uint8_t *out = copied_out(&block, 18 * MIB);
            must(pattern_holds(out + 4096 + shift * 13, sizes[i], i), "a copy of %llu bytes is wrong",
                 (unsigned long long)sizes[i]);
            must(out[4095] == CANARY && out[4096 + shift * 13 + sizes[i]] == CANARY,
                 "a copy of %llu bytes wrote beside its place", (unsigned long long)sizes[i]);
            free(out);
        }
    ops->free(memory, &block);
    free(from);
}

MEMORY_CHECK(nothing_and_too_much_are_refused)
{
    static const uint64_t sizes[] = {0, (uint64_t)1 << 62, (uint64_t)INT64_MAX, UINT64_MAX - 4095, UINT64_MAX};
    unsigned before = count_fds();

    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct rdt_block block = {.fd = -1};

        err = (struct rdt_error){0};
        must_neq(ops->alloc(memory, device, sizes[i], &block, &err), RDT_OK, "%llu bytes are given out",
                 (unsigned long long)sizes[i]);
        must(err.msg[0], "%llu bytes are refused without a word", (unsigned long long)sizes[i]);
    }
    must_eq(count_fds(), before, "a refusal leaves a descriptor");
}

MEMORY_CHECK(free_takes_what_was_never_mapped)
{
    for (unsigned i = 0; i < 50; i++) {
        struct rdt_block block = {.fd = -1};

        must_eq(ops->alloc(memory, device, MIB, &block, &err), RDT_OK, "%s", err.msg);
        ops->free(memory, &block);
    }
}

MEMORY_CHECK(cycles_leave_no_descriptors)
{
    struct rdt_block block;

    alloc(&block, MIB);
    ops->free(memory, &block);
    unsigned before = count_fds();
    for (unsigned i = 0; i < 100; i++) {
        alloc(&block, MIB);
        ops->free(memory, &block);
    }
    must_leq(count_fds(), before, "100 blocks left %u descriptors", count_fds() - before);
}

MEMORY_CHECK(zero_clears_a_used_block)
{
    uint8_t *dirt = malloc(MIB), *out;
    struct rdt_block block;

    if (!HAS_OP(ops, devices))
        check_skip("its memory is not on devices");
    must_not_null(dirt);
    memset(dirt, 0x5a, MIB);
    alloc(&block, MIB);
    copy_in(&block, 0, dirt, MIB);
    must_eq(ops->zero(memory, &block, &err), RDT_OK, "%s", err.msg);
    out = copied_out(&block, MIB);
    must(out[0] == 0 && memcmp(out, out + 1, MIB - 1) == 0, "zero leaves bytes that are not zero");
    free(out);
    free(dirt);
    ops->free(memory, &block);
}

MEMORY_CHECK(export_names_the_block_in_constant_form)
{
    struct rdt_export first = {0}, second = {0};
    struct rdt_block block;
    uint64_t bytes = 0;

    if (!HAS_OP(ops, devices))
        check_skip("its memory is not on devices");
    alloc(&block, MIB);
    enum rdt_status status = ops->export_block(memory, &block, &first, &err);
    if (status == RDT_UNSUPPORTED)
        check_skip("its memory cannot be exported: %s", err.msg);
    must_eq(status, RDT_OK, "%s", err.msg);
    must_eq(ops->export_block(memory, &block, &second, &err), RDT_OK, "the second export: %s", err.msg);
    must(first.kind == second.kind && first.offset == second.offset && first.fds == second.fds &&
             first.handle_bytes == second.handle_bytes && memcmp(first.handle, second.handle, first.handle_bytes) == 0,
         "two exports of a block differ");
    if (first.kind == RDT_IMPORT_VMM) {
        must(first.n_fds >= 1 && first.n_fds <= RDT_EXPORT_MAX_FDS, "it exports %u descriptors", first.n_fds);
        for (uint32_t i = 0; i < first.n_fds; i++)
            bytes += first.chunk_bytes[i];
        must(first.offset <= bytes && bytes - first.offset >= MIB, "its chunks are shorter than the block");
    }
    ops->free(memory, &block);
}

static int shared(const struct rdt_block *block, bool writable)
{
    int fd = -1;

    if (!ops->share)
        check_skip("its memory cannot be shared");
    enum rdt_status status = ops->share(memory, block, writable, &fd, &err);
    if (status == RDT_UNSUPPORTED && !writable)
        check_skip("it knows no read-only right: %s", err.msg);
    must_eq(status, RDT_OK, "sharing: %s", err.msg);
    must_geq(fd, 0, "share gives no descriptor");
    must(fcntl(fd, F_GETFD) & FD_CLOEXEC, "the descriptor would be inherited by what the daemon starts");
    must_neq(fd, block->fd, "the descriptor is the plug-in's own, not one for the caller to close");
    return fd;
}

MEMORY_CHECK(shared_memory_is_the_same_memory)
{
    struct rdt_block block;

    alloc(&block, MIB);
    int fd = shared(&block, true);
    uint8_t *there = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (there == MAP_FAILED)
        check_skip("what it shares is no memory that mmap knows");
    pattern_fill(there, MIB, 3);
    uint8_t *out = copied_out(&block, MIB);
    must(pattern_holds(out, MIB, 3), "what another process writes is not seen here");
    free(out);
    (void)munmap(there, MIB);
    (void)close(fd);
    ops->free(memory, &block);
}

MEMORY_CHECK(read_only_share_stays_read_only)
{
    struct rdt_block block;

    alloc(&block, MIB);
    int fd = shared(&block, false);
    void *there = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must_eq(there, MAP_FAILED, "a descriptor for reading is mapped writable");
    there = mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0);
    must(there == MAP_FAILED || mprotect(there, MIB, PROT_READ | PROT_WRITE) != 0, "a mapping for reading is made writable");
    must(write(fd, "x", 1) < 0, "a descriptor for reading is written");
    (void)close(fd);
    ops->free(memory, &block);
}

MEMORY_CHECK(seal_ends_every_right_to_write)
{
    struct rdt_block block;

    if (!HAS_OP(ops, seal))
        check_skip("its memory cannot be sealed");
    alloc(&block, MIB);
    int fd = shared(&block, true);
    must_eq(ops->seal(memory, &block, false, &err), RDT_OK, "%s", err.msg);
    must_eq(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED, "sealed memory is mapped writable");
    must(write(fd, "x", 1) < 0, "sealed memory is written");
    (void)close(fd);
    ops->free(memory, &block);
}

/* ---- imports from clients that are not trusted ---- */

static enum rdt_status import(const struct rdt_import *import, struct rdt_block *block)
{
    if (!ops->import)
        check_skip("it cannot import");
    *block = (struct rdt_block){.fd = -1};
    err = (struct rdt_error){0};
    return ops->import(memory, device, import, block, &err);
}

static int memfd(uint64_t bytes, int seals)
{
    int fd = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    must(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && (seals == 0 || fcntl(fd, F_ADD_SEALS, seals) == 0));
    return fd;
}

MEMORY_CHECK(imported_memory_is_the_clients)
{
    int fd = memfd(MIB, F_SEAL_SHRINK);
    struct rdt_import request = {.kind = RDT_IMPORT_MEMFD, .bytes = MIB, .fds = &fd, .n_fds = 1};
    struct rdt_block block;
    uint8_t *there = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), *out;
    void *part = NULL;
    enum rdt_status status = import(&request, &block);

    if (status == RDT_UNSUPPORTED || HAS_OP(ops, devices)) {
        must_neq(status, RDT_OK, "host memory of a client is imported as memory of a device");
        check_skip("it imports no memfd: %s", err.msg);
    }
    must_eq(status, RDT_OK, "%s", err.msg);
    (void)close(fd); /* the descriptor is still the caller's */
    must_eq(ops->map(memory, &block, false, &err), RDT_OK, "%s", err.msg);
    pattern_fill(there, MIB, 5);
    out = copied_out(&block, MIB);
    must(pattern_holds(out, MIB, 5), "what the client writes is not seen");
    free(out);
    if (HAS_OP(ops, map_part)) {
        must(HAS_OP(ops, unmap_part), "it has map_part, and lacks unmap_part");
        must_eq(ops->map_part(memory, &block, MIB / 2, MIB / 4, &part, &err), RDT_OK, "mapping a part: %s", err.msg);
        must(memcmp(part, there + MIB / 2, MIB / 4) == 0, "a part of the memory shows something else");
        ops->unmap_part(memory, part, MIB / 4);
    }
    ops->free(memory, &block);
}

MEMORY_CHECK(hostile_imports_are_refused)
{
    static const struct {
        const char *what;
        uint64_t bytes, offset;
        uint32_t n_fds;
        int seals;
    } bad[] = {
        {"memory that its client can cut off", MIB, 0, 1, 0},
        {"more than there is", MIB + 1, 0, 1, F_SEAL_SHRINK},
        {"what lies behind the end", MIB, MIB, 1, F_SEAL_SHRINK},
        {"a range that wraps around", MIB, UINT64_MAX - 4095, 1, F_SEAL_SHRINK},
        {"all there could ever be", UINT64_MAX, 0, 1, F_SEAL_SHRINK},
        {"no descriptor", MIB, 0, 0, F_SEAL_SHRINK},
        {"half a page on", 4096, 2048, 1, F_SEAL_SHRINK},
    };
    unsigned before = count_fds();

    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        int fds[2] = {memfd(MIB, bad[i].seals), -1};
        struct rdt_import request = {
            .kind = RDT_IMPORT_MEMFD, .bytes = bad[i].bytes, .offset = bad[i].offset, .fds = fds, .n_fds = bad[i].n_fds};
        struct rdt_block block;

        must_neq(import(&request, &block), RDT_OK, "%s is imported", bad[i].what);
        must(err.msg[0], "%s is refused without a word", bad[i].what);
        (void)close(fds[0]);
    }
    for (int kind = RDT_IMPORT_VMM; kind < 9; kind++) {
        int pipes[2];
        struct rdt_block block;
        struct rdt_import request = {
            .kind = (enum rdt_import_kind)kind, .bytes = MIB, .fds = pipes, .n_fds = 2, .chunk_bytes = (uint64_t[]){MIB, MIB}};

        must_eq(pipe2(pipes, O_CLOEXEC), 0);
        must_neq(import(&request, &block), RDT_OK, "two ends of a pipe are imported as memory of kind %d", kind);
        (void)close(pipes[0]);
        (void)close(pipes[1]);
    }
    must_eq(count_fds(), before, "a refusal leaves a descriptor");
}
