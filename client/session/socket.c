/* SPDX-License-Identifier: Apache-2.0 */
#include "socket.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"

#define FIRST_DELAY_NS INT64_C(1000000)
#define MOST_DELAY_NS INT64_C(100000000)

/* Allowed moves, as [from][to]; connection.h draws them. */
static const bool moves[5][5] = {
    [CONNECTION_UP] = {[CONNECTION_AWAY] = true, [CONNECTION_ENDED] = true},
    [CONNECTION_AWAY] = {[CONNECTION_GREETING] = true, [CONNECTION_ENDED] = true},
    [CONNECTION_GREETING] = {[CONNECTION_AWAY] = true, [CONNECTION_RESUMING] = true, [CONNECTION_ENDED] = true},
    [CONNECTION_RESUMING] = {[CONNECTION_AWAY] = true, [CONNECTION_UP] = true, [CONNECTION_ENDED] = true},
};

void socket_move(rdt *conn, enum connection_state to)
{
    assert(moves[conn->state][to]);
    conn->state = to;
}

void socket_leave(rdt *conn)
{
    if (conn->state == CONNECTION_UP) {
        conn->away_ns = clock_now_ns();
        conn->dial_delay_ns = FIRST_DELAY_NS;
        conn->dial_ns = conn->away_ns;
    } else {
        conn->dial_ns = clock_now_ns() + conn->dial_delay_ns;
    }
    socket_move(conn, CONNECTION_AWAY);
    (void)epoll_ctl(conn->epoll_fd, EPOLL_CTL_DEL, conn->sock, NULL);
    (void)shutdown(conn->sock, SHUT_RDWR); /* wakes a leader that polls it */
    if (conn->polling)
        conn->stale_sock = conn->sock; /* its number must not be used again yet */
    else
        (void)close(conn->sock);
    conn->sock = -1;
    conn->fd_wants_out = conn->blocked = conn->not_read = false;
    memset(&conn->why_unsent, 0, sizeof conn->why_unsent);
    frame_writer_fini(&conn->writer);
    frame_writer_init(&conn->writer);
    frame_writer_fini(&conn->later);
    frame_writer_init(&conn->later);
    frame_reader_fini(&conn->reader);
    frame_reader_init(&conn->reader, RDT_MAX_FRAME_BYTES);
}

void socket_close_stale(rdt *conn)
{
    if (conn->stale_sock < 0)
        return;
    (void)close(conn->stale_sock);
    conn->stale_sock = -1;
}

int64_t socket_due_ns(const rdt *conn)
{
    int64_t end_ns;

    if (conn->state == CONNECTION_UP || conn->state == CONNECTION_ENDED)
        return CLOCK_NEVER;
    end_ns = conn->away_ns + conn->grace_ns;
    return conn->state == CONNECTION_AWAY && conn->dial_ns < end_ns ? conn->dial_ns : end_ns;
}

/* Returns the new socket; -1: nobody accepts, and errno says why. The connect does not block: if the backlog is full, it fails
 * with EAGAIN. */
static int dial(const rdt *conn)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct epoll_event event = {.events = EPOLLIN};
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), sys_errno;

    if (sock < 0)
        return -1;
    memcpy(address.sun_path, conn->path, sizeof address.sun_path);
    if (connect(sock, (struct sockaddr *)&address, sizeof address) == 0 &&
        epoll_ctl(conn->epoll_fd, EPOLL_CTL_ADD, sock, &event) == 0)
        return sock;
    sys_errno = errno;
    (void)close(sock);
    errno = sys_errno;
    return -1;
}

bool socket_dial(rdt *conn, int64_t now_ns)
{
    /* A leader still polls the socket that was lost. It dials itself when it returns, which is at once. */
    if (conn->state != CONNECTION_AWAY || now_ns < conn->dial_ns || conn->polling)
        return false;
    conn->sock = dial(conn);
    conn->dial_delay_ns = 2 * conn->dial_delay_ns < MOST_DELAY_NS ? 2 * conn->dial_delay_ns : MOST_DELAY_NS;
    if (conn->sock < 0) {
        conn->dial_errno = errno;
        conn->dial_ns = now_ns + conn->dial_delay_ns / 2;
        return false;
    }
    conn->n_sockets++;
    socket_move(conn, CONNECTION_GREETING);
    return true;
}
