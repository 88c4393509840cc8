/* SPDX-License-Identifier: Apache-2.0 */
/* See huge.h. */
#include "backends/host/huge.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* since Linux 5.14 */
#endif

#define SHMEM_ENABLED "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

static uint64_t hugetlb_page_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    unsigned long long kib = 0;
    char line[128];

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Hugepagesize: %llu kB", &kib) == 1)
            break;
    if (file)
        (void)fclose(file);
    return kib * 1024;
}

static bool shmem_huge_on_advice(void)
{
    FILE *file = fopen(SHMEM_ENABLED, "re");
    char line[128] = "";

    if (file) {
        (void)!fgets(line, sizeof line, file);
        (void)fclose(file);
    }
    return strstr(line, "[advise]") || strstr(line, "[within_size]") || strstr(line, "[always]") || strstr(line, "[force]");
}

static enum rdt_status check_tmpfs(const struct huge *huge, struct rdt_error *err)
{
    struct statfs fs;

    if (huge->tmpfs[0] == '\0')
        return RDT_OK;
    if (statfs(huge->tmpfs, &fs))
        return rdt_error_sys(err, errno, "huge_tmpfs = %s", huge->tmpfs);
    if (fs.f_type != TMPFS_MAGIC)
        return rdt_error_set(err, RDT_INVALID,
                             "huge_tmpfs = %s is not on a tmpfs: mount one with mount -t tmpfs -o huge=always,mode=0700 ...",
                             huge->tmpfs);
    return RDT_OK;
}

enum rdt_status huge_open(struct huge *huge, const struct rdt_host *host, struct rdt_error *err)
{
    const char *mode = host->config(host->ctx, "huge_pages"), *tmpfs = host->config(host->ctx, "huge_tmpfs");

    *huge = (struct huge){.host = host, .logged_pool = ATOMIC_FLAG_INIT, .logged_tmpfs = ATOMIC_FLAG_INIT};
    if (!mode || strcasecmp(mode, "no") == 0)
        huge->mode = HUGE_NO;
    else if (strcasecmp(mode, "try") == 0)
        huge->mode = HUGE_TRY;
    else if (strcasecmp(mode, "require") == 0)
        huge->mode = HUGE_REQUIRE;
    else
        return rdt_error_set(err, RDT_INVALID, "huge_pages = %s: expected no, try or require", mode);
    if (tmpfs && strlen(tmpfs) >= sizeof huge->tmpfs)
        return rdt_error_set(err, RDT_INVALID, "huge_tmpfs has %zu characters; at most %zu are possible", strlen(tmpfs),
                             sizeof huge->tmpfs - 1);
    if (tmpfs)
        memcpy(huge->tmpfs, tmpfs, strlen(tmpfs) + 1);
    if (huge->mode != HUGE_NO) {
        huge->page_bytes = hugetlb_page_bytes();
        huge->advise = huge->mode == HUGE_TRY && shmem_huge_on_advice();
    }
    if (huge->mode == HUGE_REQUIRE && huge->page_bytes == 0)
        return rdt_error_set(err, RDT_UNSUPPORTED, "huge_pages = require, but this system has no hugetlb pages");
    return check_tmpfs(huge, err);
}

uint64_t huge_round(const struct huge *huge, uint64_t bytes)
{
    uint64_t page = huge->page_bytes, up;

    if (page == 0 || bytes < page)
        return bytes;
    up = (bytes + page - 1) / page * page;
    return up < bytes ? bytes : up;
}

static int reserve(int fd, uint64_t bytes)
{
    if (ftruncate(fd, (off_t)bytes))
        return errno;
    while (fallocate(fd, 0, 0, (off_t)bytes))
        if (errno != EINTR)
            return errno;
    return 0;
}

enum rdt_status huge_memfd(struct huge *huge, uint64_t bytes, int *fd_p, struct rdt_error *err)
{
    int fd, error;

    *fd_p = -1;
    if (huge->page_bytes == 0 || bytes < huge->page_bytes)
        return RDT_OK;
    fd = memfd_create("rdtd", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    error = fd < 0 ? errno : reserve(fd, huge_round(huge, bytes));
    if (error == 0) {
        *fd_p = fd;
        return RDT_OK;
    }
    if (fd >= 0)
        (void)close(fd);
    if (huge->mode == HUGE_REQUIRE)
        return rdt_error_set(err, RDT_NO_MEMORY,
                             "there are no huge pages for %llu bytes (%s), and huge_pages = require: raise vm.nr_hugepages",
                             (unsigned long long)bytes, strerror(error));
    if (!atomic_flag_test_and_set(&huge->logged_pool))
        huge->host->log(huge->host->ctx, RDT_LOG_WARN,
                        "there are no hugetlb pages for %llu bytes (%s): whenever there are none, %s are used instead",
                        (unsigned long long)bytes, strerror(error), huge->advise ? "transparent huge pages" : "small pages");
    return RDT_OK;
}

int huge_tmpfs(struct huge *huge, uint64_t bytes)
{
    int fd, error;

    if (huge->tmpfs[0] == '\0')
        return -1;
    fd = open(huge->tmpfs, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    error = fd < 0 ? errno : reserve(fd, bytes);
    if (error == 0)
        return fd;
    if (fd >= 0)
        (void)close(fd);
    if (!atomic_flag_test_and_set(&huge->logged_tmpfs))
        huge->host->log(huge->host->ctx, RDT_LOG_WARN,
                        "huge_tmpfs %s has no room for %llu bytes (%s): ordinary memory is used instead", huge->tmpfs,
                        (unsigned long long)bytes, strerror(error));
    return -1;
}

void *huge_map(const struct huge *huge, int fd, uint64_t bytes)
{
    void *addr;

    if (!huge->advise || bytes < huge->page_bytes || ftruncate(fd, (off_t)bytes))
        return NULL;
    addr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (addr == MAP_FAILED)
        return NULL;
    if (madvise(addr, bytes, MADV_HUGEPAGE) == 0 && madvise(addr, bytes, MADV_POPULATE_WRITE) == 0)
        return addr;
    (void)munmap(addr, bytes);
    return NULL;
}
