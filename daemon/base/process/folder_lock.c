/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/process/folder_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/process/process.h"

#define HOLDER_BYTES 48
/* A process that is ending well gives its memory back before its locks: a second for 100 GB that it has mapped. */
#define WAITS 40
#define WAIT_NS 50000000

struct holder {
    int pid;
    uint64_t started;
};

static struct holder read_holder(int fd)
{
    char text[HOLDER_BYTES] = "";
    struct holder holder = {0};

    if (pread(fd, text, sizeof text - 1, 0) <= 0 || sscanf(text, "%d %" SCNu64, &holder.pid, &holder.started) != 2)
        return (struct holder){0}; /* a daemon of an earlier version */
    return holder;
}

/* In the place of the earlier holder's, so that a restart needs no room on the disk. Where there is no room for the first one,
 * the lock holds as well, and only a process that is dying cannot be told from one that is not. */
static void write_holder(int fd)
{
    char text[HOLDER_BYTES];
    int n = snprintf(text, sizeof text, "%-11d %-32" PRIu64 "\n", (int)getpid(), process_started(getpid()));

    if (pwrite(fd, text, (size_t)n, 0) != n && ftruncate(fd, 0) != 0)
        return;
}

static enum rdt_status taken(struct rdt_error *err, const struct holder *holder)
{
    if (holder->pid == 0)
        return rdt_error_set(err, RDT_EXISTS, "another process has it");
    return rdt_error_set(err, RDT_EXISTS, "process %d has it", holder->pid);
}

/* false: another process still has the lock. */
static bool lock_soon(int fd, const struct holder *holder, pid_t not_for)
{
    const struct timespec wait = {.tv_nsec = WAIT_NS};

    for (unsigned i = 0; i < WAITS && holder->pid != not_for; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return true;
        if (errno != EWOULDBLOCK || !process_is_dying(holder->pid, holder->started))
            break;
        (void)nanosleep(&wait, NULL);
    }
    return flock(fd, LOCK_EX | LOCK_NB) == 0;
}

/* Puts a new file in the place of the one whose lock cannot be had. */
static enum rdt_status replace(int dir, const char *file, int *fd_p, struct rdt_error *err)
{
    char fresh[NAME_MAX + 1];
    int fd;

    if (snprintf(fresh, sizeof fresh, "%s.new", file) >= (int)sizeof fresh)
        return rdt_error_set(err, RDT_INVALID, "its name is too long");
    fd = openat(dir, fresh, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return rdt_error_sys(err, errno, "creating %s", fresh);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 || renameat(dir, fresh, dir, file) != 0) {
        (void)rdt_error_sys(err, errno, "replacing %s", file);
        (void)close(fd);
        return err ? err->status : RDT_SYSTEM;
    }
    *fd_p = fd;
    return RDT_OK;
}

/* Nobody else locks, replaces or writes the file meanwhile: the folder itself is locked, where the file system can do so. */
static enum rdt_status take_alone(int dir, const char *file, int *fd_p, pid_t *dying_p, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;
    struct holder holder;
    pid_t dying = 0;
    int fd = openat(dir, file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600), fresh;

    if (fd < 0)
        return rdt_error_sys(err, errno, "opening %s", file);
    holder = read_holder(fd);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK)
            status = rdt_error_sys(err, errno, "locking %s", file);
        else if (!process_is_dying(holder.pid, holder.started))
            status = taken(err, &holder);
        else if (!lock_soon(fd, &holder, *dying_p) && (status = replace(dir, file, &fresh, err)) == RDT_OK) {
            (void)close(fd);
            fd = fresh;
            dying = holder.pid;
        }
    }
    if (status != RDT_OK) {
        (void)close(fd);
        return status;
    }
    write_holder(fd);
    *fd_p = fd;
    *dying_p = dying;
    return RDT_OK;
}

enum rdt_status folder_lock_take(const char *folder, const char *file, int *fd_p, pid_t *dying_p, struct rdt_error *err)
{
    enum rdt_status status;
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (dir < 0)
        return rdt_error_sys(err, errno, "opening %s", folder);
    if (flock(dir, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) /* NFS locks no folders, only files */
        status = take_alone(dir, file, fd_p, dying_p, err);
    else
        status = rdt_error_set(err, RDT_EXISTS, "another process is taking it");
    (void)close(dir);
    return status;
}
