/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptors 0 to 2, which a process may have been started without or have closed. What it then prints or reads must meet
 * neither a socket nor somebody's memory: programs of rdtd open them at their start, and the library, which cannot, keeps its
 * own descriptors away from them. */
#ifndef PROTO_STD_FDS_H
#define PROTO_STD_FDS_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* For main, before anything else. Output to a descriptor that was closed goes nowhere. */
static inline void std_fds_open(void)
{
    int fd;

    do {
        fd = open("/dev/null", O_RDWR); // NOLINT(android-cloexec-open): children inherit them
        if (fd < 0)
            fd = open("/", O_PATH); // NOLINT(android-cloexec-open): without /dev, a descriptor that refuses to read and write
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        (void)close(fd);
}

/* Takes the fd and returns one above 2 for the same file; -1, with errno: it was -1, or there is no other. */
static inline int std_fds_avoid(int take_fd)
{
    int fd, sys_errno;

    if (take_fd < 0 || take_fd > STDERR_FILENO)
        return take_fd;
    fd = fcntl(take_fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    sys_errno = errno;
    (void)close(take_fd);
    errno = sys_errno;
    return fd;
}

#endif
