/* The Unix sockets that clients connect to: our own, or those the service manager passed. */
#ifndef DAEMON_LISTENER_H
#define DAEMON_LISTENER_H

#include <uv.h>

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
    char path[108];        /* of a socket we made, to be unlinked; "" none */
    struct deadline pause; /* out of fds: accepts again when it has passed */
    void (*on_closed)(void *arg);
    void *arg;
};

/* Serves the sockets passed by the manager, else makes options->socket. RDT_EXISTS: another daemon serves it. A stale socket file is
 * replaced. */
enum rdt_status listener_start(struct listener *listener, struct conns *conns, struct rdt_error *err);

/* Accepts no more; removes the socket file if it is ours. */
void listener_close(struct listener *listener, void (*on_closed)(void *arg), void *arg);

#endif
