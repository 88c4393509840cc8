/* One client's connection: its socket, its pidfd, its frames. The connection is the client's lease: when it ends,
 * the daemon releases all that the client held.
 *
 *   accepted -- HELLO --> serving -- end of file, pidfd, broken frame --> closing (freed in the last close callback)
 *
 * Connections take turns: each may use the loop for CONN_TURN_NS, then all others run first. Work that does not
 * fit into a turn continues in the next one: received frames, a request with many items, events for the client,
 * and at last the release of what it held.
 */
#ifndef DAEMON_CONN_H
#define DAEMON_CONN_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/objects/client.h"
#include "daemon/base/owner_work.h"
#include "daemon/base/deadline.h"
#include "daemon/base/list.h"
#include "daemon/base/log.h"
#include "daemon/rpc/rpc.h"
#include "proto/frame.h"

#define FRAME_FDS_AT_ONCE 253u /* SCM_MAX_FD: one recvmsg may bring so many */
#define CONN_TURN_NS 25000 /* a single step may exceed it */

struct conn {
    struct client client;
    struct rpc *rpc;
    struct list link;      /* in conns->all */
    struct list unflushed; /* in conns->unflushed: has queued answers that no socket event will send */
    struct conns *conns;
    int sock, pidfd; /* pidfd -1: the kernel gave none */
    uv_poll_t sock_poll, pid_poll;
    uv_idle_t turn;        /* active while there is work for a turn */
    unsigned open_handles; /* freed at zero */
    int events;            /* what sock_poll waits for */
    struct frame_reader reader;
    uint64_t received_bytes; /* by the reader, in all */
    struct frame_writer writer;
    struct fd_sink sink;   /* of both: rpc->owner_work closes what nobody takes */
    unsigned fds_charged;  /* for fds in the reader */
    bool behind;           /* it is not read until rpc->owner_work has closed more descriptors of its owner */
    struct deadline hello; /* when HELLO must have come; after a protocol error: when the client must have read the answer */
    struct deadline retry; /* the kernel takes no more fds now: sends again */
    size_t frame_heap;     /* charged for a large message, from its first bytes until it has been handled */
    bool frame_taken;      /* ... which is complete and being handled */
    size_t queue_heap;     /* charged for unread answers */
    unsigned gathered;     /* turns of the client's task since answers were last sent */
    bool counted;          /* as a session of its owner; false: refused */
    bool greeted, in_read, closing;
    bool more;                /* the reader may contain whole frames */
    bool held;                /* its work waits until the client reads its answers */
    bool draining;            /* after a protocol error: closes when the queue is empty */
    struct rdt_error refusal; /* status not 0: HELLO is answered with it */
};

struct conns {
    struct rpc *rpc;
    struct list all, unflushed;
    uv_prepare_t prepare; /* sends the answers that were queued in this iteration */
    unsigned n, n_refused, n_behind;
    uint64_t open_files; /* the most that this process may have */
    struct log_rare refusals;
    uint64_t next_id;
    unsigned overflow_uid;       /* the uid that the kernel shows for users that it cannot map */
    void (*on_empty)(void *arg); /* called when the last connection is freed */
    void *arg;
};

void conns_init(struct conns *conns, struct rpc *rpc, uint64_t open_files);

/* Serves a new client on sock, which is taken, and closed if there is no memory. */
void conn_start(struct conns *conns, int sock);

/* Ends every connection. on_empty(arg) runs when the last one is freed: from the loop, or at once if there is none. */
void conns_close(struct conns *conns, void (*on_empty)(void *arg), void *arg);

#endif
