/* SPDX-License-Identifier: Apache-2.0 */
/* One client's connection: its socket, its pidfd, its frames. The connection is the client's lease: when it ends,
 * the daemon releases all that the client held.
 *
 *   GREETING ── HELLO ──► SERVED ◄── a session that waits after a restart of the daemon (conn_session.h)
 *      │                    │    │
 *      │ refused            │    │ a frame that breaks the protocol, or no memory for an answer
 *      ▼                    │    ▼
 *   REFUSED                 │  BROKEN      nothing more is read from these two; they close when the answers have been sent
 *      │                    │    │
 *      └────────────────────┴────┴──► CLOSING   end of file, pidfd, a time-out; freed in the last close callback
 *
 * Connections take turns: each may use the loop for CONN_TURN_NS, then all others run first. Those of one owner share
 * what the owner gets of a turn of the loop (conn_share.h). Work that does not fit into a turn continues in the next one:
 * received frames, a request with many items, events for the client, and at last the release of what it held.
 *
 * conn_hello.c is above conn_session.c, and that above conn.c, which calls them by conns->on_hello and on_end. conn_identity.c
 * and conn_heap.c are below.
 */
#ifndef DAEMON_CONN_H
#define DAEMON_CONN_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/base/deadline.h"
#include "daemon/base/ids.h"
#include "daemon/base/log.h"
#include "daemon/base/owner_work.h"
#include "daemon/base/sm.h"
#include "daemon/objects/client.h"
#include "daemon/rpc/rpc.h"
#include "proto/frame.h"
#include "proto/list.h"

#define FRAME_FDS_AT_ONCE 253u /* SCM_MAX_FD: the most descriptors that one recvmsg may bring */
#define HELLO_TIMEOUT_NS 10000000000ll
#define CONN_TURN_NS 25000 /* checked between the steps of a turn */

/* Its turns of the loop, which it takes when its person has room in one (conn_share.h). */
struct conn_turn {
    uv_idle_t idle;      /* active while there is work for a turn */
    struct list waiting; /* in account_share.waiting, until its person has room */
    bool readable;       /* it waits with bytes in the socket */
    bool in_read;        /* inside a turn, whose end sends the answers */
    bool held;           /* no requests are handled until the client has read some answers */
    unsigned gathered;   /* turns of the client's task since answers were last sent */
};

/* The descriptors on their way to and from the client. */
struct conn_fds {
    struct fd_sink sink;   /* of reader and writer: rpc->owner_work closes the descriptors that nobody takes */
    unsigned charged;      /* to the account, for descriptors that the reader and the queue of answers contain */
    unsigned sent_n;       /* in answers that the client may not have read yet */
    struct list sent;      /* in conns->sent, if there are any */
    bool behind;           /* it is not read until rpc->owner_work has closed more descriptors of its owner */
    struct deadline retry; /* sends again after too many fds were on their way; closing: looks whether they have arrived */
    unsigned retries;      /* in a row */
};

/* What is charged for its messages. */
struct conn_heap {
    size_t frame;     /* for a large message, from its header until it has been handled */
    bool frame_taken; /* that message is complete and is being handled */
    size_t queue;     /* for unread answers */
};

struct conn_greeting {
    struct deadline deadline;  /* until HELLO must have come; after a refusal: until the client must have read the answer */
    struct rdt_error *refusal; /* HELLO is answered with it; NULL: the client may be served */
    bool counted;              /* charged as a session of its owner; false: above that limit, so it is refused */
};

/* A session that outlasts the daemon, or the socket. */
struct conn_session {
    uint8_t token_hash[32]; /* its key in conns->tokens */
    struct deadline grace;  /* of a waiting session whose process cannot be watched */
    bool process_ended;     /* a waiting session whose process has ended */
    bool moved;             /* its socket serves another connection now */
};

enum conn_state { CONN_GREETING, CONN_SERVED, CONN_REFUSED, CONN_BROKEN, CONN_CLOSING };

struct conn {
    struct client client;
    struct sm sm; /* enum conn_state */
    struct rpc *rpc;
    struct list link;      /* in conns->all */
    struct list unflushed; /* in conns->unflushed, while answers are queued that on_prepare sends */
    struct list ending;    /* in conns->ending, until it is closed */
    const char *why_ending;
    struct conns *conns;
    int sock, pidfd; /* sock: -1 while it waits; pidfd: -1 if the kernel provides none */
    uv_poll_t sock_poll, pid_poll;
    struct conn_turn turn;
    unsigned open_handles; /* the struct is freed when none is left */
    int events;            /* what sock_poll waits for */
    struct frame_reader reader;
    uint64_t received_bytes; /* of all frames so far */
    struct frame_writer writer;
    struct conn_fds fds;
    struct conn_heap heap;
    struct conn_greeting greeting;
    struct conn_session session;
    bool more; /* the reader may contain whole frames */
};

/* The persons whose connections wait for their turn; conn_share.c. */
struct conn_shares {
    struct list persons; /* struct account.share.link */
    unsigned n_persons;
    uint64_t used_turn, used_ns; /* what all persons together have used in this turn */
    uv_idle_t idle;              /* active while there are any */
    uint64_t turn;               /* number of the loop's turn */
    void (*take_turn)(struct conn *conn, bool readable);
};

struct conns {
    struct rpc *rpc;
    struct list all, unflushed;
    struct list ending; /* many connections have ended at once: these are closed in slices */
    struct slice close;
    struct conn_shares shares;
    unsigned n_ended;     /* closed in this turn of the loop because the other end has gone */
    uv_prepare_t prepare; /* sends the answers that were queued in this iteration */
    struct map tokens;    /* hash -> struct conn: the sessions that outlast the daemon */
    unsigned n, n_refused, n_behind;
    uint64_t open_files; /* the most that this process may have open, and on their way in answers that nobody has read */
    uint64_t sent_fds;   /* on their way, of all connections */
    struct list sent;    /* struct conn.fds.sent */
    struct slice settle; /* looks which of them have arrived */
    unsigned n_settle;   /* of them still to look at */
    struct log_rare refusals;
    struct ids ids;                                           /* of sessions */
    bool stopped;                                             /* no request is handled any more */
    void (*on_hello)(struct conn *conn, struct frame *frame); /* the first frame; closes its descriptors */
    void (*on_end)(struct conn *conn);                        /* a connection ends that was served */
    unsigned overflow_uid;                                    /* the uid that the kernel shows for users that it cannot map */
    void (*on_empty)(void *arg);                              /* called when the last connection is freed */
    void *arg;
};

/* The caller sets on_hello and on_end. */
void conns_init(struct conns *conns, struct rpc *rpc, uint64_t open_files);

/* Serves a new client. Takes the socket, and closes it if the client cannot be served. */
void conn_start(struct conns *conns, int take_sock);

/* From now on no request is handled, and nothing is answered but what was before. */
void conns_stop(struct conns *conns);

/* Session ids are never used twice, also by the daemons before and after this one: next_p is where they are counted. */
void conns_save_ids(struct conns *conns, uint64_t *next_p);

/* ---- for conn_identity.c and conn_heap.c ---- */

static inline bool conn_drains(const struct conn *conn)
{
    return conn->sm.state == CONN_REFUSED || conn->sm.state == CONN_BROKEN;
}

/* It closes when the answers have been sent. */
static inline void conn_stop_reading(struct conn *conn)
{
    if (conn->sm.state == CONN_GREETING || conn->sm.state == CONN_SERVED)
        sm_move(&conn->sm, conn->sm.state == CONN_SERVED ? CONN_BROKEN : CONN_REFUSED);
}

/* ---- for conn_session.c ---- */

/* A connection without a socket that is in no list, whose client the caller initialises. NULL: no memory. */
struct conn *conn_new(struct conns *conns);
void conn_list(struct conn *conn);                             /* puts it into conns->all, and watches its pidfd */
void conn_serve(struct conn *conn);                            /* its client is one that the daemon serves */
void conn_attach(struct conn *conn, int take_sock, int pidfd); /* pidfd: taken, -1: none, or it has one */
void conn_close(struct conn *conn, const char *why);

/* Ends every connection. on_empty(arg) runs once, when the last one has been freed, or inside this call if there is none. */
void conns_close(struct conns *conns, void (*on_empty)(void *arg), void *arg);

#endif
