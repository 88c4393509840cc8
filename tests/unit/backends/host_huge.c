/* SPDX-License-Identifier: Apache-2.0 */
/* The memory kind "host" on huge pages. The tests reserve huge pages of the machine for a moment, and are skipped where that
 * is not allowed. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/backend_host.h"

#define MIB ((uint64_t)1 << 20)
#define HUGE_BYTES (2 * MIB)
#define POOL "/proc/sys/vm/nr_hugepages"
#define ADVICE "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

static struct backend_host host;
static const struct rdt_memory_ops *ops;
static void *memory;
static struct rdt_error err;

static enum rdt_status open_with(const struct config_pair *config)
{
    const char *build = getenv("RDT_BUILD_DIR");
    char so[256];

    (void)snprintf(so, sizeof so, "%s/backends/rdt_host.so", build ? build : "build/release");
    cr_assert_eq(backend_host_load(&host, so, &err), RDT_OK, "%s", err.msg);
    ops = host.backend->memory;
    host.config = config;
    host.opening = true;
    enum rdt_status status = ops->open(&host.table, &memory, &err);
    host.opening = false;
    return status;
}

static const struct config_pair try_pages[] = {{"huge_pages", "try"}, {NULL, NULL}};
static const struct config_pair require_pages[] = {{"huge_pages", "require"}, {NULL, NULL}};

static bool write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "we");
    bool ok = file && fputs(text, file) >= 0;

    if (file)
        ok = fclose(file) == 0 && ok;
    return ok;
}

static void first_line(const char *path, char text_p[128])
{
    FILE *file = fopen(path, "re");

    text_p[0] = '\0';
    if (file && !fgets(text_p, 128, file))
        text_p[0] = '\0';
    if (file)
        (void)fclose(file);
}

static void no_pages(void)
{
    (void)write_text(POOL, "0\n");
}

static void borrow_pages(unsigned n)
{
    char text[128], number[16];

    first_line(POOL, text);
    if (geteuid() != 0 || strcmp(text, "0\n") != 0)
        cr_skip("the machine's huge pages are in use, or not ours to set");
    (void)snprintf(number, sizeof number, "%u\n", n);
    (void)write_text(POOL, number);
    (void)atexit(no_pages);
    first_line(POOL, text);
    if (strcmp(text, number) != 0) {
        no_pages();
        cr_skip("no %u huge pages to be had", n);
    }
}

/* Returns the KiB that the given field of /proc/self/smaps counts for the mapping at addr. */
static unsigned long huge_kib(const void *addr, const char *field)
{
    unsigned long lo, hi, kib = 0, found = 0;
    bool there = false;
    FILE *smaps = fopen("/proc/self/smaps", "re");
    char line[512];

    cr_assert_not_null(smaps);
    while (fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx ", &lo, &hi) == 2)
            there = lo <= (uintptr_t)addr && (uintptr_t)addr < hi;
        else if (there && strncmp(line, field, strlen(field)) == 0 && sscanf(line + strlen(field), ": %lu kB", &kib) == 1)
            found = kib;
    }
    (void)fclose(smaps);
    return found;
}

static void alloc(struct rdt_block *block, uint64_t bytes)
{
    memset(block, 0, sizeof *block);
    cr_assert_eq(ops->alloc(memory, "", bytes, block, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(ops->map(memory, block, true, &err), RDT_OK, "%s", err.msg);
}

TestSuite(memory_huge, .timeout = 60);

Test(memory_huge, hugetlb_pages_are_taken_and_sealed)
{
    struct rdt_block block;
    struct stat st;

    borrow_pages(4);
    cr_assert_eq(open_with(try_pages), RDT_OK, "%s", err.msg);
    cr_expect_eq(ops->round(memory, 5 * MIB), 6 * MIB);
    cr_expect_eq(ops->round(memory, 100), 100u);
    alloc(&block, 5 * MIB);
    cr_assert_eq(fstat(block.fd, &st), 0);
    cr_expect_eq((uint64_t)st.st_blksize, HUGE_BYTES);
    cr_expect_eq((uint64_t)st.st_size, 6 * MIB);
    cr_expect_eq(block.page_bytes, HUGE_BYTES);
    int seals = fcntl(block.fd, F_GET_SEALS);
    cr_expect_eq(seals & (F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_SHRINK | F_SEAL_GROW);
    memset(block.addr, 1, 6 * MIB);
    ops->discard(memory, &block);
    cr_expect_eq(((uint8_t *)block.addr)[3 * MIB], 0, "discarded");
    ops->free(memory, &block);
    alloc(&block, 64 << 10);
    cr_expect_eq(block.page_bytes, 0u, "little memory is no huge page");
    ops->free(memory, &block);
    ops->close(memory);
    no_pages();
}

Test(memory_huge, small_pages_where_there_are_no_huge_ones)
{
    struct rdt_block block;
    char text[128];

    first_line(POOL, text);
    if (strcmp(text, "0\n") != 0)
        cr_skip("the machine has huge pages");
    cr_assert_eq(open_with(try_pages), RDT_OK, "%s", err.msg);
    for (unsigned i = 0; i < 3; i++) {
        alloc(&block, 4 * MIB);
        cr_expect_eq(block.page_bytes, 0u);
        memset(block.addr, 1, 4 * MIB);
        ops->free(memory, &block);
    }
    ops->close(memory);
}

Test(memory_huge, required_pages_that_are_not_there_are_an_error)
{
    struct rdt_block block = {0};
    char text[128];

    first_line(POOL, text);
    if (strcmp(text, "0\n") != 0)
        cr_skip("the machine has huge pages");
    cr_assert_eq(open_with(require_pages), RDT_OK, "%s", err.msg);
    cr_expect_eq(ops->alloc(memory, "", 4 * MIB, &block, &err), RDT_NO_MEMORY);
    cr_expect(strstr(err.msg, "nr_hugepages"), "%s", err.msg);
    ops->close(memory);
}

static char advice_before[32];

static void restore_advice(void)
{
    (void)write_text(ADVICE, advice_before);
}

Test(memory_huge, transparent_pages_where_they_are_given_on_advice)
{
    char text[128], *begin, *end;
    struct rdt_block block;

    first_line(ADVICE, text);
    begin = strchr(text, '[');
    end = begin ? strchr(begin, ']') : NULL;
    if (geteuid() != 0 || !end)
        cr_skip("the machine's transparent huge pages are not ours to set");
    (void)snprintf(advice_before, sizeof advice_before, "%.*s\n", (int)(end - begin - 1), begin + 1);
    (void)atexit(restore_advice);
    if (!write_text(ADVICE, "advise\n"))
        cr_skip("the machine's transparent huge pages are not ours to set");
    cr_assert_eq(open_with(try_pages), RDT_OK, "%s", err.msg);
    alloc(&block, 8 * MIB);
    cr_expect_eq(block.page_bytes, 0u);
    cr_expect_gt(huge_kib(block.addr, "ShmemPmdMapped"), 0u);
    memset(block.addr, 1, 8 * MIB);
    ops->free(memory, &block);
    alloc(&block, 8 * MIB);
    for (unsigned i = 0; i < 8; i++)
        cr_expect_eq(((uint8_t *)block.addr)[i * MIB], 0);
    ops->free(memory, &block);
    ops->close(memory);
    restore_advice();
}

Test(memory_huge, private_memory_lies_on_the_tmpfs)
{
    static struct config_pair config[] = {{"huge_tmpfs", NULL}, {NULL, NULL}};
    struct rdt_block block = {0};
    char dir[] = "/tmp/rdt-huge.XXXXXX";
    int fd;

    cr_assert_not_null(mkdtemp(dir));
    config[0].value = dir;
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("t", dir, "tmpfs", 0, "huge=always,size=16m,mode=0700") != 0) {
        (void)rmdir(dir);
        cr_skip("no mounts of our own here");
    }
    cr_assert_eq(open_with(config), RDT_OK, "%s", err.msg);
    cr_assert_eq(ops->alloc_private(memory, 8 * MIB, &block, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(ops->map(memory, &block, true, &err), RDT_OK, "%s", err.msg);
    cr_expect_gt(huge_kib(block.addr, "ShmemPmdMapped"), 0u);
    memset(block.addr, 1, 8 * MIB);
    cr_expect_eq(ops->share(memory, &block, false, &fd, &err), RDT_UNSUPPORTED, "a tmpfs with huge pages supports no seals");
    cr_expect_eq(ops->alloc_private(memory, 32 * MIB, &(struct rdt_block){0}, &err), RDT_UNSUPPORTED, "no room there");
    ops->free(memory, &block);
    ops->close(memory);
    (void)umount(dir);
    (void)rmdir(dir);
}

Test(memory_huge, wrong_values_are_refused)
{
    static const struct config_pair mode[] = {{"huge_pages", "maybe"}, {NULL, NULL}},
                                    dir[] = {{"huge_tmpfs", "/proc"}, {NULL, NULL}},
                                    none[] = {{"huge_tmpfs", "/no/such"}, {NULL, NULL}};

    cr_expect_eq(open_with(mode), RDT_INVALID);
    cr_expect(strstr(err.msg, "try"), "%s", err.msg);
    cr_expect_eq(open_with(dir), RDT_INVALID);
    cr_expect(strstr(err.msg, "is not on a tmpfs"), "%s", err.msg);
    cr_expect_neq(open_with(none), RDT_OK);
    cr_expect(strstr(err.msg, "/no/such"), "%s", err.msg);
}
