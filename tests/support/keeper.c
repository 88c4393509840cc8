/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/keeper.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/check.h"

static int try_dial(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    must(fd >= 0 && strlen(path) < sizeof address.sun_path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

void keeper_start(struct test_keeper *keeper)
{
    static unsigned number;
    int fd;

    if (keeper->socket[0] == '\0')
        (void)snprintf(keeper->socket, sizeof keeper->socket, "%s/keeper-%d-%u", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp",
                       (int)getpid(), number++);
    program_start(&keeper->program, (const char *[]){"rdtd-keeper", "--socket", keeper->socket, NULL}, NULL);
    wait_until(LONG, (fd = try_dial(keeper->socket)) >= 0);
    close(fd);
}

void keeper_stop(struct test_keeper *keeper, int signal)
{
    must(keeper->program.pid > 0 && kill(keeper->program.pid, signal) == 0);
    program_wait(&keeper->program);
    must_say(signal == SIGKILL || keeper->program.status == 0, "the keeper ended with %d", keeper->program.status);
    program_free(&keeper->program);
}

int keeper_dial(const struct test_keeper *keeper)
{
    int fd = try_dial(keeper->socket);

    must(fd >= 0);
    return fd;
}

void keeper_send(int fd, enum keeper_type type, const uint64_t *ids, const int *fds, unsigned n)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(KEEPER_MAX_IDS * sizeof(int))];
    } control = {0};
    struct keeper_message message = {.type = (uint16_t)type, .n = (uint16_t)n, .value = KEEPER_VERSION};
    struct iovec data = {&message, keeper_message_bytes(n)};
    struct msghdr header = {.msg_iov = &data, .msg_iovlen = 1};

    if (n > 0)
        memcpy(message.ids, ids, n * sizeof *ids);
    if (fds && n > 0) {
        header.msg_control = &control;
        header.msg_controllen = CMSG_SPACE(n * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(n * sizeof(int));
        memcpy(CMSG_DATA(&control.header), fds, n * sizeof(int));
    }
    must(sendmsg(fd, &header, MSG_NOSIGNAL) == (ssize_t)data.iov_len);
}

bool keeper_recv(int fd, struct keeper_message *message_p, int *fds_p, unsigned *n_p)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(KEEPER_MAX_IDS * sizeof(int))];
    } control;
    struct iovec data = {message_p, sizeof *message_p};
    struct msghdr header = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct pollfd readable = {.fd = fd, .events = POLLIN};

    must_say(poll(&readable, 1, (int)(LONG / MSEC)) == 1, "the keeper does not answer");
    ssize_t bytes = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
    *n_p = 0;
    if (bytes <= 0)
        return false;
    must((size_t)bytes == keeper_message_bytes(message_p->n));
    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(&header); cmsg; cmsg = CMSG_NXTHDR(&header, cmsg)) {
        *n_p = (unsigned)((cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds_p, CMSG_DATA(cmsg), *n_p * sizeof(int));
    }
    return true;
}

enum keeper_type keeper_greet(int fd, struct keeper_message *reply_p)
{
    int fds[KEEPER_MAX_IDS];
    unsigned n;

    keeper_send(fd, KEEPER_HELLO, NULL, NULL, 0);
    must(keeper_recv(fd, reply_p, fds, &n) && n == 0);
    return (enum keeper_type)reply_p->type;
}

int keeper_look(const struct test_keeper *keeper, uint64_t id, unsigned *n_p)
{
    struct keeper_message message;
    int fd = keeper_dial(keeper), fds[KEEPER_MAX_IDS], found = -1;
    unsigned n, total = 0;

    must(keeper_greet(fd, &message) == KEEPER_READY);
    keeper_send(fd, KEEPER_FETCH, NULL, NULL, 0);
    do {
        must(keeper_recv(fd, &message, fds, &n) && message.type == KEEPER_FDS && message.n == n);
        for (unsigned i = 0; i < n; i++) {
            if (message.ids[i] == id)
                found = fds[i];
            else
                close(fds[i]);
        }
        total += n;
    } while (n > 0);
    close(fd);
    if (n_p)
        *n_p = total;
    return found;
}
