/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/persist/keeper_packet.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

union control {
    struct cmsghdr header;
    char space[CMSG_SPACE(KEEPER_MAX_IDS * sizeof(int))];
};

int keeper_packet_send(int fd, const struct keeper_message *message, const int *fds)
{
    union control control;
    struct iovec data = {(void *)message, keeper_message_bytes(message->n)};
    struct msghdr header = {.msg_iov = &data, .msg_iovlen = 1};

    if (fds && message->n > 0) {
        memset(&control.header, 0, sizeof control.header);
        header.msg_control = &control;
        header.msg_controllen = CMSG_SPACE(message->n * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(message->n * sizeof(int));
        memcpy(CMSG_DATA(&control.header), fds, message->n * sizeof(int));
    }
    while (sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        if (errno != EINTR)
            return errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS ? EAGAIN : errno;
    return 0;
}

static bool is_message(const struct keeper_message *message, size_t bytes, int flags, int n_fds)
{
    return bytes >= keeper_message_bytes(0) && message->n <= KEEPER_MAX_IDS && bytes == keeper_message_bytes(message->n) &&
           !(flags & (MSG_TRUNC | MSG_CTRUNC)) && (n_fds == 0 || n_fds == message->n);
}

int keeper_packet_receive(int fd, struct keeper_message *message_p, int *fds_p)
{
    union control control;
    struct iovec data = {message_p, sizeof *message_p};
    struct msghdr header = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t bytes;
    int n = 0;

    do {
        bytes = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (bytes < 0 && errno == EINTR);
    if (bytes < 0)
        return -1;
    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(&header); cmsg; cmsg = CMSG_NXTHDR(&header, cmsg))
        if (cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS) {
            n = (int)((cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(fds_p, CMSG_DATA(cmsg), (size_t)n * sizeof(int));
        }
    if (is_message(message_p, (size_t)bytes, header.msg_flags, n))
        return n;
    while (n > 0)
        (void)close(fds_p[--n]);
    errno = bytes == 0 ? EPIPE : EPROTO;
    return -1;
}
