/* One client's connection: its socket, its pidfd, its frames. It is the lease: with its end goes what the client held.
 *
 *   accepted -- HELLO --> serving -- end of file, pidfd, broken frame --> closing (freed in the last close callback)
 *
 * Connections take turns: each may keep the loop for CONN_TURN_NS, then all others come first. What it could not do in its turn (frames
 * that have come, a request of many parts, what happened for it, at last the release of what it held) waits for its next one.
 */
#ifndef DAEMON_CONN_H
#define DAEMON_CONN_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/objects/client.h"
#include "daemon/base/deadline.h"
#include "daemon/base/list.h"
#include "daemon/rpc/rpc.h"
#include "proto/frame.h"

#define CONN_TURN_NS 25000 /* one indivisible step may take it beyond */

struct conn {
    struct client client;
    struct rpc *rpc;
    struct list link;      /* in conns->all */
    struct list unflushed; /* in conns->unflushed: answers are queued that no event will send */
    struct conns *conns;
    int sock, pidfd; /* pidfd -1: the kernel gave none */
    uv_poll_t sock_poll, pid_poll;
    uv_idle_t turn;        /* active while there is work for a turn */
    unsigned open_handles; /* freed at zero */
    int events;            /* what sock_poll waits for */
    struct frame_reader reader;
    uint64_t received_bytes; /* by the reader, in all */
    struct frame_writer writer;
    struct deadline hello; /* by then it must have said who it is; of one that broke the protocol: have read that it did */
    struct deadline retry; /* the kernel takes no fds: tries again */
    size_t frame_heap;     /* charged for a large message, from when it is received until nobody reads it any more */
    bool frame_taken;      /* ... and it has come whole: it is being handled */
    size_t queue_heap;     /* charged for answers that are not read */
    unsigned gathered;     /* turns of its task since its answers were sent */
    bool counted;          /* as a session of its owner; false: refused */
    bool greeted, in_read, closing;
    bool more;                /* its reader may hold whole frames */
    bool held;                /* its work waits for its answers to be read */
    bool draining;            /* broken: closes when the queue has gone */
    struct rdt_error refusal; /* status not 0: HELLO is answered with it */
};

struct conns {
    struct rpc *rpc;
    struct list all, unflushed;
    uv_prepare_t prepare; /* sends what the turn has queued */
    unsigned n, n_refused;
    uint64_t next_id;
    unsigned overflow_uid;       /* what the kernel shows for users it cannot map */
    void (*on_empty)(void *arg); /* told when the last one is freed */
    void *arg;
};

void conns_init(struct conns *conns, struct rpc *rpc);

/* Takes sock. Closes it if there is no memory. */
void conn_start(struct conns *conns, int sock);

/* Ends every connection; on_empty when the last is freed (from the loop, unless there is none: then now). */
void conns_close(struct conns *conns, void (*on_empty)(void *arg), void *arg);

#endif
