/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whether a file may be loaded. Whoever can write the file, or replace it, could act as the
 * daemon. Names are not trusted: each directory is opened inside the one before, the file inside the last,
 * and the open descriptors are checked. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/plugins/plugin_load.h"

static enum rdt_status check_writers(const struct stat *st, const char *what, struct rdt_error *err)
{
    /* others cannot replace entries of such a directory */
    bool sticky = S_ISDIR(st->st_mode) && (st->st_mode & S_ISVTX);
    if (st->st_uid != 0 && st->st_uid != geteuid())
        return rdt_error_set(err, RDT_DENIED, "%sbelongs to uid %u, not to root or the daemon's user: chown it", what,
                             (unsigned)st->st_uid);
    if ((st->st_mode & (S_IWGRP | S_IWOTH)) && !sticky)
        return rdt_error_set(err, RDT_DENIED, "%scan be written by others: chmod go-w", what);
    return RDT_OK;
}

static enum rdt_status check_directory(int fd, const char *path, size_t path_bytes, struct rdt_error *err)
{
    char what[300];
    struct stat st;
    if (fstat(fd, &st) != 0)
        return rdt_error_sys(err, errno, "cannot examine its directory");
    snprintf(what, sizeof what, "its directory %.*s ", (int)path_bytes, path);
    return check_writers(&st, what, err);
}

/* Opens the directories from the root to the one of the file. The path is a real path without links or
 * dots. */
static enum rdt_status open_directory(const char *path, bool guarded, int *dir_p, const char **name_p, struct rdt_error *err)
{
    int dir = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    const char *at = path + 1, *slash;
    enum rdt_status status = dir < 0 ? rdt_error_sys(err, errno, "cannot open /") : RDT_OK;
    if (status == RDT_OK && guarded)
        status = check_directory(dir, path, 1, err);
    while (status == RDT_OK && (slash = strchr(at, '/')) != NULL) {
        char name[NAME_MAX + 1];
        snprintf(name, sizeof name, "%.*s", (int)(slash - at), at);
        int next = openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0)
            status = rdt_error_sys(err, errno, "cannot open its directory %.*s", (int)(slash - path), path);
        close(dir);
        dir = next;
        if (status == RDT_OK && guarded)
            status = check_directory(dir, path, (size_t)(slash - path), err);
        at = slash + 1;
    }
    if (status != RDT_OK) {
        if (dir >= 0)
            close(dir);
        return status;
    }
    *dir_p = dir;
    *name_p = at;
    return RDT_OK;
}

static bool read_at(int fd, void *to, size_t bytes, uint64_t at)
{
    return pread(fd, to, bytes, (off_t)at) == (ssize_t)bytes;
}

/* A truncated library, perhaps one that is still being copied, would crash the daemon when the loader
 * touches missing pages. The loader itself refuses files that are no library of this machine. */
static enum rdt_status check_whole(int fd, uint64_t file_bytes, struct rdt_error *err)
{
    Elf64_Ehdr head;
    if (!read_at(fd, &head, sizeof head, 0) || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
        head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_phentsize != sizeof(Elf64_Phdr))
        return RDT_OK;
    for (unsigned i = 0; i < head.e_phnum; i++) {
        Elf64_Phdr segment;
        bool readable = head.e_phoff <= file_bytes && read_at(fd, &segment, sizeof segment, head.e_phoff + i * sizeof segment);
        if (!readable || segment.p_offset > file_bytes || segment.p_filesz > file_bytes - segment.p_offset)
            return rdt_error_set(err, RDT_INVALID, "is truncated: it has %llu bytes, fewer than its headers say",
                                 (unsigned long long)file_bytes);
    }
    return RDT_OK;
}

static enum rdt_status check_file(int fd, struct rdt_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return rdt_error_sys(err, errno, "cannot be examined");
    if (!S_ISREG(st.st_mode))
        return rdt_error_set(err, RDT_INVALID, "is not a regular file");
    enum rdt_status status = check_writers(&st, "", err);
    return status == RDT_OK ? check_whole(fd, (uint64_t)st.st_size, err) : status;
}

enum rdt_status plugin_file_open(const char *path, bool guarded, int *fd_p, struct rdt_error *err)
{
    const char *name;
    int dir;
    enum rdt_status status = open_directory(path, guarded, &dir, &name, err);
    if (status != RDT_OK)
        return status;
    if (name[0] == 0)
        name = "."; /* the path is that of the root, which is not a regular file */
    /* O_NONBLOCK: opening a fifo must not block */
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int failed = errno;
    close(dir);
    if (fd < 0)
        return rdt_error_sys(err, failed, "cannot open");
    status = check_file(fd, err);
    if (status != RDT_OK) {
        close(fd);
        return status;
    }
    *fd_p = fd;
    return RDT_OK;
}

bool plugin_file_is(const char *path, int fd)
{
    struct stat now, then;
    return stat(path, &now) == 0 && fstat(fd, &then) == 0 && now.st_dev == then.st_dev && now.st_ino == then.st_ino;
}
