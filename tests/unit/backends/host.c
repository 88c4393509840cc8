/* SPDX-License-Identifier: Apache-2.0 */
/* The memory kind "host": what is particular to it, beyond the conformance tests of every kind
 * (tests/conformance/memory.c). */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/backend_host.h"

#define MIB ((uint64_t)1 << 20)
#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

static struct backend_host host;
static const struct rdt_memory_ops *ops;
static void *memory;
static struct rdt_error err;

static void setup(void)
{
    const char *given = getenv("RDT_MEMORY_SO"), *build = getenv("RDT_BUILD_DIR");
    char so[256];

    (void)snprintf(so, sizeof so, "%s/backends/rdt_host.so", build ? build : "build/release");
    cr_assert_eq(backend_host_load(&host, given ? given : so, &err), RDT_OK, "%s", err.msg);
    ops = host.backend->memory;
    cr_assert_not_null(ops);
    cr_assert_eq(ops->open(&host.table, &memory, &err), RDT_OK);
}

static void teardown(void)
{
    ops->close(memory);
    backend_host_close(&host);
}

TestSuite(memory, .init = setup, .fini = teardown);

static void alloc(struct rdt_block *block, uint64_t bytes)
{
    memset(block, 0, sizeof *block);
    cr_assert_eq(ops->alloc(memory, "", bytes, block, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(ops->map(memory, block, true, &err), RDT_OK, "%s", err.msg);
}

static int sealed_memfd(uint64_t bytes, int seals)
{
    int fd = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    cr_assert_geq(fd, 0);
    cr_assert_eq(ftruncate(fd, (off_t)bytes), 0);
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static enum rdt_status import(int fd, uint64_t offset, uint64_t bytes, struct rdt_block *block)
{
    const struct rdt_import import = {.kind = RDT_IMPORT_MEMFD, .bytes = bytes, .offset = offset, .fds = &fd, .n_fds = 1};

    memset(block, 0, sizeof *block);
    memset(&err, 0, sizeof err);
    return ops->import(memory, "", &import, block, &err);
}

/* ---- allocating ---- */

Test(memory, allocation_is_zeroed_reserved_and_sealed)
{
    struct rdt_block block;
    struct stat st;

    alloc(&block, 3 * MIB + 5);
    cr_assert_eq(block.bytes, 3 * MIB + 5);
    cr_assert_not(block.read_only);
    cr_assert_eq(fstat(block.fd, &st), 0);
    cr_assert_eq((uint64_t)st.st_size, 3 * MIB + 5);
    cr_assert_geq((uint64_t)st.st_blocks * 512, 3 * MIB + 5, "not all pages are reserved");
    cr_assert_eq(st.st_mode & 0777, 0600);
    int seals = fcntl(block.fd, F_GET_SEALS);
    cr_assert_eq(seals & ALL_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
    cr_assert(ftruncate(block.fd, 1) && errno == EPERM);
    cr_assert(ftruncate(block.fd, (off_t)(4 * MIB)) && errno == EPERM);
    for (uint64_t i = 0; i < block.bytes; i++)
        cr_assert_eq(((uint8_t *)block.addr)[i], 0);
    cr_assert(fcntl(block.fd, F_GETFD) & FD_CLOEXEC);
    ops->free(memory, &block);
}

Test(memory, allocation_of_nothing_or_too_much_fails)
{
    struct rdt_block block;
    unsigned before = count_fds();

    cr_assert_eq(ops->alloc(memory, "", 0, &block, &err), RDT_INVALID);
    cr_assert_eq(ops->alloc(memory, "", UINT64_MAX, &block, &err), RDT_INVALID);
    cr_assert_eq(ops->alloc(memory, "", (uint64_t)1 << 62, &block, &err), RDT_NO_MEMORY, "%s", err.msg);
    cr_assert_eq(count_fds(), before);
}

Test(memory, free_takes_a_block_that_was_never_mapped)
{
    struct rdt_block block = {0};
    unsigned before = count_fds();

    cr_assert_eq(ops->alloc(memory, "", MIB, &block, &err), RDT_OK);
    cr_assert_null(block.addr);
    ops->free(memory, &block);
    cr_assert_eq(count_fds(), before);
}

/* ---- exporting ---- */

Test(memory, writable_export_is_the_same_memory)
{
    struct rdt_block block;
    int fd;

    alloc(&block, MIB);
    cr_assert_eq(ops->share(memory, &block, true, &fd, &err), RDT_OK);
    cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    uint8_t *other = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_neq(other, MAP_FAILED);
    pattern_fill(other, MIB, 3);
    cr_assert(pattern_holds(block.addr, MIB, 3));
    (void)munmap(other, MIB);
    (void)close(fd);
    ops->free(memory, &block);
}

Test(memory, read_only_export_cannot_be_mapped_writable)
{
    struct rdt_block block;
    int fd;

    alloc(&block, MIB);
    pattern_fill(block.addr, MIB, 4);
    cr_assert_eq(ops->share(memory, &block, false, &fd, &err), RDT_OK, "%s", err.msg);
    cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    cr_assert_eq(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
    cr_assert(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EACCES);
    cr_assert(write(fd, "x", 1) < 0);
    uint8_t *other = mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0);
    cr_assert_neq(other, MAP_FAILED);
    cr_assert(pattern_holds(other, MIB, 4));
    cr_assert(mprotect(other, MIB, PROT_READ | PROT_WRITE) && errno == EACCES, "a read-only mapping was made writable");
    (void)munmap(other, MIB);
    (void)close(fd);
    ops->free(memory, &block);
}

/* ---- sealing ---- */

static void expect_unwritable(int fd)
{
    cr_assert(write(fd, "x", 1) < 0 && errno == EPERM);
    cr_assert(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EPERM);
    cr_assert(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) && errno == EPERM);
    cr_assert(fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) && errno == EPERM);
}

Test(memory, sealed_memory_is_written_by_no_descriptor)
{
    struct rdt_block block;
    int fd;

    if (!ops->seal)
        cr_skip_test("this memory cannot be sealed");
    alloc(&block, MIB);
    pattern_fill(block.addr, MIB, 4);
    cr_assert_eq(ops->share(memory, &block, true, &fd, &err), RDT_OK);
    cr_assert_eq(ops->seal(memory, &block, false, &err), RDT_OK, "%s", err.msg);
    expect_unwritable(fd);
    cr_assert(block.read_only);
    cr_assert(pattern_holds(block.addr, MIB, 4), "our own mapping stays");
    (void)close(fd);
    ops->free(memory, &block);
}

Test(memory, seal_with_proof_is_refused_while_somebody_may_write)
{
    struct rdt_block block;
    int fd;

    if (!ops->seal)
        cr_skip_test("this memory cannot be sealed");
    alloc(&block, MIB);
    pattern_fill(block.addr, MIB, 4);
    cr_assert_eq(ops->share(memory, &block, true, &fd, &err), RDT_OK);
    char *other = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_neq(other, MAP_FAILED);
    cr_assert_eq(ops->seal(memory, &block, true, &err), RDT_BUSY);
    cr_assert_null(block.addr);
    cr_assert(block.read_only, "no new writer comes, and nobody removes pages");
    cr_assert_eq(ops->map(memory, &block, false, &err), RDT_OK);
    cr_assert(pattern_holds(block.addr, MIB, 4));
    (void)munmap(other, MIB);
    cr_assert_eq(ops->seal(memory, &block, true, &err), RDT_OK, "%s", err.msg);
    expect_unwritable(fd);
    cr_assert_eq(ops->map(memory, &block, false, &err), RDT_OK, "%s", err.msg);
    cr_assert(pattern_holds(block.addr, MIB, 4));
    (void)close(fd);
    ops->free(memory, &block);
}

/* ---- importing ---- */

Test(memory, import_shares_the_clients_memory)
{
    int fd = sealed_memfd(2 * MIB, F_SEAL_SHRINK);
    struct rdt_block block;
    uint8_t *client = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int out;

    cr_assert_neq(client, MAP_FAILED);
    cr_assert_eq(import(fd, MIB, MIB, &block), RDT_OK, "%s", err.msg);
    (void)close(fd); /* it was borrowed */
    cr_assert_eq(ops->map(memory, &block, false, &err), RDT_OK);
    cr_assert_not(block.read_only);
    pattern_fill(client + MIB, MIB, 5);
    cr_assert(pattern_holds(block.addr, MIB, 5));
    pattern_fill(block.addr, MIB, 6);
    cr_assert(pattern_holds(client + MIB, MIB, 6));
    cr_assert_eq(ops->share(memory, &block, false, &out, &err), RDT_UNSUPPORTED);
    cr_assert_eq(ops->share(memory, &block, true, &out, &err), RDT_OK);
    (void)close(out);
    (void)munmap(client, 2 * MIB);
    ops->free(memory, &block);
}

Test(memory, import_of_read_only_memory_says_so)
{
    static const int seals[] = {F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_WRITE, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE};

    for (unsigned i = 0; i < 3; i++) {
        int fd = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING), given = fd;
        struct rdt_block block;
        char path[32];

        cr_assert_eq(write(fd, "tensor", 6), 6);
        cr_assert_eq(fcntl(fd, F_ADD_SEALS, seals[i]), 0);
        if (i == 0) { /* this one is read-only by its descriptor, the others by their seals */
            (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            given = open(path, O_RDONLY | O_CLOEXEC);
        }
        cr_assert_eq(import(given, 0, 6, &block), RDT_OK, "seals %d: %s", seals[i], err.msg);
        cr_assert(block.read_only);
        cr_assert_eq(ops->map(memory, &block, false, &err), RDT_OK, "seals %d: %s", seals[i], err.msg);
        cr_assert_arr_eq((char *)block.addr, "tensor", 6);
        ops->free(memory, &block);
        if (given != fd)
            (void)close(given);
        (void)close(fd);
    }
}

static void expect_refusal(int fd, uint64_t offset, uint64_t bytes, const char *word)
{
    struct rdt_block block;

    cr_assert_eq(import(fd, offset, bytes, &block), RDT_INVALID, "it was taken, though %s", word);
    cr_assert(strstr(err.msg, word), "'%s' does not speak of %s", err.msg, word);
}

Test(memory, import_refusals_name_what_is_missing)
{
    int fd = sealed_memfd(MIB, 0), pipes[2], file;
    char path[] = "/tmp/rdt-memory-XXXXXX";

    cr_assert_eq(pipe2(pipes, O_CLOEXEC), 0);
    unsigned before = count_fds();
    expect_refusal(fd, 0, MIB, "F_SEAL_SHRINK");
    expect_refusal(pipes[0], 0, MIB, "memfd");
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    expect_refusal(fd, 0, MIB + 1, "fewer");
    expect_refusal(fd, MIB, 1, "fewer");
    expect_refusal(fd, 2 * MIB, 1, "fewer");
    expect_refusal(fd, 1, 10, "page size");
    expect_refusal(fd, 0, 0, "0 bytes");
    expect_refusal(fd, 0, UINT64_MAX, "bytes");
    expect_refusal(fd, UINT64_MAX - 4095, MIB, "bytes");

    cr_assert_eq(count_fds(), before);
    (void)close(fd);

    fd = memfd_create("client", MFD_CLOEXEC); /* takes no seals */
    cr_assert_eq(ftruncate(fd, (off_t)MIB), 0);
    expect_refusal(fd, 0, MIB, "MFD_ALLOW_SEALING");
    (void)close(fd);
    file = mkostemp(path, O_CLOEXEC);
    cr_assert_eq(unlink(path), 0);
    expect_refusal(file, 0, MIB, "memfd");
    (void)close(file);
    file = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    expect_refusal(file, 0, MIB, "memfd");
    (void)close(file);
    file = open("/dev/zero", O_RDWR | O_CLOEXEC);
    expect_refusal(file, 0, MIB, "memfd");
    (void)close(file);
    (void)close(pipes[0]);
    (void)close(pipes[1]);
}

Test(memory, import_takes_one_memfd_only)
{
    int fds[2] = {sealed_memfd(MIB, F_SEAL_SHRINK), sealed_memfd(MIB, F_SEAL_SHRINK)};
    struct rdt_import import = {.kind = RDT_IMPORT_MEMFD, .bytes = MIB, .fds = fds, .n_fds = 2};
    struct rdt_block block;

    cr_assert_eq(ops->import(memory, "", &import, &block, &err), RDT_INVALID);
    import.n_fds = 0;
    cr_assert_eq(ops->import(memory, "", &import, &block, &err), RDT_INVALID);
    import.n_fds = 1;
    import.kind = RDT_IMPORT_VMM;
    cr_assert_eq(ops->import(memory, "", &import, &block, &err), RDT_UNSUPPORTED);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

/* ---- copying ---- */

Test(memory, copies_of_all_sizes_and_alignments_are_exact)
{
    static const uint64_t sizes[] = {0, 1, 127, 4096, 16 * MIB - 1, 16 * MIB, 16 * MIB + 77, 33 * MIB + 1};

    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (unsigned shift = 0; shift < 3; shift++) {
            uint8_t *from = malloc(sizes[i] + 64);
            struct guarded to;

            cr_assert(from && guarded_create(&to, sizes[i] + shift * 13));
            pattern_fill(from + shift * 7, sizes[i], i);
            cr_assert_eq(ops->copy(memory, to.addr + shift * 13, from + shift * 7, sizes[i], &err), RDT_OK);
            cr_assert(pattern_holds(to.addr + shift * 13, sizes[i], i), "%llu bytes", (unsigned long long)sizes[i]);
            for (unsigned k = 0; k < shift * 13; k++)
                cr_assert_eq(to.addr[k], CANARY);
            cr_assert(guarded_margins_hold(&to));
            guarded_destroy(&to);
            free(from);
        }
}

Test(memory, cycles_leave_no_descriptors_or_mappings)
{
    struct rdt_block block;

    alloc(&block, MIB);
    ops->free(memory, &block);
    unsigned before = count_fds();
    for (unsigned i = 0; i < 100; i++) {
        alloc(&block, MIB);
        ops->free(memory, &block);
        cr_assert_eq(block.fd, -1);
        cr_assert_null(block.addr);
    }
    cr_assert_eq(count_fds(), before);
}
