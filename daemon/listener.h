/* SPDX-License-Identifier: Apache-2.0 */
/* The Unix sockets where clients connect: one that the daemon creates, or those that the service manager has passed. */
#ifndef DAEMON_LISTENER_H
#define DAEMON_LISTENER_H

#include <uv.h>

#include "daemon/base/log.h"
#include "daemon/conn.h"

#define LISTENER_MAX_SOCKETS 8

struct listener_socket {
    uv_poll_t poll;
    int fd;
    struct listener *listener;
};

struct listener {
    struct conns *conns;
    struct listener_socket sockets[LISTENER_MAX_SOCKETS];
    unsigned n, open;
    char path[108];        /* the socket file that the daemon has created and removes at its end; "": none */
    struct deadline pause; /* after accept4 has failed for lack of fds or memory: until clients are accepted again */
    struct log_rare failures;
    void (*on_closed)(void *arg);
    void *arg;
};

/* Serves the sockets that the service manager has passed; if there are none, creates options->socket and replaces
 * a stale socket file. EXISTS: another daemon serves that socket. */
enum rdt_status listener_start(struct listener *listener, struct conns *conns, struct rdt_error *err);

/* Stops accepting, and removes the socket file if the daemon created it. on_closed(arg) runs once, from the loop. */
void listener_close(struct listener *listener, void (*on_closed)(void *arg), void *arg);

#endif
