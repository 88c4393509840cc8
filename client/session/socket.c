/* SPDX-License-Identifier: Apache-2.0 */
#include "socket.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"
#include "proto/std_fds.h"
#include "server.h"

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
        conn->session.away_ns = clock_now_ns();
        conn->session.dial_delay_ns = FIRST_DELAY_NS;
        conn->session.dial_ns = conn->session.away_ns;
    } else {
        conn->session.dial_ns = clock_now_ns() + conn->session.dial_delay_ns;
    }
    socket_move(conn, CONNECTION_AWAY);
    if (fds_have_socket(conn)) {
        (void)epoll_ctl(conn->loop.epoll_fd, EPOLL_CTL_DEL, conn->socket.fd, NULL);
        (void)shutdown(conn->socket.fd, SHUT_RDWR); /* wakes a leader that polls it */
        if (conn->waiters.polling) {
            conn->socket.stale = conn->socket.fd; /* its number must not be used again yet */
            conn->socket.stale_mark = conn->socket.mark;
        } else {
            (void)close(conn->socket.fd);
        }
    }
    conn->socket.fd = -1;
    conn->loop.wants_out = conn->sending.blocked = conn->sending.not_read = false;
    memset(&conn->why.unsent, 0, sizeof conn->why.unsent);
    frame_writer_fini(&conn->sending.writer);
    frame_writer_init(&conn->sending.writer);
    frame_writer_fini(&conn->sending.later);
    frame_writer_init(&conn->sending.later);
    frame_reader_fini(&conn->reader);
    frame_reader_init(&conn->reader, RDT_MAX_FRAME_BYTES);
}

void socket_close_stale(rdt *conn)
{
    if (conn->socket.stale < 0)
        return;
    fd_mark_close(&conn->socket.stale_mark, conn->socket.stale);
    conn->socket.stale = -1;
}

int64_t socket_due_ns(const rdt *conn)
{
    int64_t end_ns;

    if (conn->state == CONNECTION_UP || conn->state == CONNECTION_ENDED)
        return CLOCK_NEVER;
    end_ns = conn->session.away_ns + conn->session.grace_ns;
    return conn->state == CONNECTION_AWAY && conn->session.dial_ns < end_ns ? conn->session.dial_ns : end_ns;
}

static bool look(const rdt *conn, struct stat *st_p)
{
    return conn->path[0] != '\0' && stat(conn->path, st_p) == 0 && S_ISSOCK(st_p->st_mode);
}

void socket_note_file(rdt *conn)
{
    struct stat st;

    conn->socket.inode = 0;
    if (!look(conn, &st))
        return;
    conn->socket.device = st.st_dev;
    conn->socket.inode = st.st_ino;
}

/* The number of the file is not used again while the process that the kernel keeps has its socket bound there. */
bool socket_is_superseded(const rdt *conn)
{
    struct stat st;

    return conn->socket.inode != 0 && look(conn, &st) && (st.st_dev != conn->socket.device || st.st_ino != conn->socket.inode);
}

/* Returns the new socket; -1: nobody accepts, or the wrong one does, and dial_err says why. The connect does not block: if the
 * backlog is full, it fails with EAGAIN. */
static int dial(rdt *conn)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock = std_fds_avoid(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));

    memcpy(address.sun_path, conn->path, sizeof address.sun_path);
    socket_note_file(conn);
    if (sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof address) != 0 || !fds_watch(conn, sock, EPOLLIN))
        (void)rdt_error_sys(&conn->session.dial_err, errno, "connect");
    else if (server_check(sock, conn->path, conn->daemon_uid, &conn->session.dial_err) == RDT_OK)
        return sock;
    if (sock >= 0)
        (void)close(sock);
    return -1;
}

bool socket_dial(rdt *conn, int64_t now_ns)
{
    /* A leader still polls the socket that was lost. It dials itself when it returns, which is at once. */
    if (conn->state != CONNECTION_AWAY || now_ns < conn->session.dial_ns || conn->waiters.polling)
        return false;
    conn->socket.fd = dial(conn);
    conn->session.dial_delay_ns =
        2 * conn->session.dial_delay_ns < MOST_DELAY_NS ? 2 * conn->session.dial_delay_ns : MOST_DELAY_NS;
    if (conn->socket.fd < 0) {
        conn->session.dial_ns = now_ns + conn->session.dial_delay_ns / 2;
        return false;
    }
    fd_mark_set(&conn->socket.mark, conn->socket.fd);
    conn->socket.n++;
    socket_move(conn, CONNECTION_GREETING);
    return true;
}
