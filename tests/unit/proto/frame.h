/* SPDX-License-Identifier: Apache-2.0 */
/* Frames over a real Unix socket: pairs of sockets, descriptors that their size tells apart, and bytes that no writer would
 * send. */
#ifndef TESTS_UNIT_FRAME_H
#define TESTS_UNIT_FRAME_H

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/frame.h"

static inline unsigned open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static inline int fd_with_size(off_t size)
{
    int fd = memfd_create("test", MFD_CLOEXEC);

    cr_assert_geq(fd, 0);
    cr_assert_eq(ftruncate(fd, size), 0);
    return fd;
}

static inline off_t size_of_fd(int fd)
{
    struct stat st;

    cr_assert_eq(fstat(fd, &st), 0);
    return st.st_size;
}

static inline void make_pair(int socks[2])
{
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socks), 0);
}

static inline void close_pair(const int socks[2])
{
    close(socks[0]);
    close(socks[1]);
}

/* Sends bytes with fds attached, whatever the frame says. */
static inline void send_raw(int sock, const void *bytes, size_t n, const int *fds, unsigned n_fds)
{
    char control[CMSG_SPACE(253 * sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec iov = {(void *)bytes, n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n_fds) {
        struct cmsghdr *cmsg = (struct cmsghdr *)(void *)control;

        msg.msg_control = control;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
    }
    cr_assert_eq(sendmsg(sock, &msg, MSG_NOSIGNAL), (ssize_t)n);
}

static inline void send_header(int sock, uint32_t length, uint8_t nfds, const int *fds, unsigned n_fds)
{
    uint8_t header[FRAME_HEADER_BYTES];

    frame_header_encode(header, length, 9, nfds, FRAME_EVENT, 77);
    send_raw(sock, header, sizeof header, fds, n_fds);
}

#endif
