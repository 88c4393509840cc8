/* SPDX-License-Identifier: Apache-2.0 */
/* One connection to another node: TCP, TLS in it, frames in that; its deadline, its pings. Private to peer*.c.
 *
 *       dialled                                   accepted
 *          |                                         |
 *     CONNECTING --------> SECURING <----------------+
 *          |                  | both hold the key: on_secure
 *          |                  v
 *          |               MEETING   hellos; on_hello, and for the end that dialled on_confirmed
 *          |                  | peer_link_up()
 *          |                  v
 *          |                 UP      pings
 *          v                  v
 *     any of them ---------> ENDED   on_end, unless peer_link_close() was called; then on_freed
 *
 * The end that accepted sends its hello first, so that the end that dialled knows which node it has reached before it commits
 * itself with its own hello. The end that accepted then keeps the connection, and sends its first ping, which confirms it, or
 * closes it. peer_meet.c has the rules.
 */
#ifndef DAEMON_PEER_LINK_H
#define DAEMON_PEER_LINK_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/base/sm.h"
#include "daemon/peers/peer.h"
#include "daemon/peers/tls.h"
#include "layout.h"
#include "proto/list.h"
#include "strangers.h"

#define PEER_LINK_READ_BYTES (64u << 10)

struct peer_link;

enum peer_link_state { LINK_CONNECTING, LINK_SECURING, LINK_MEETING, LINK_UP, LINK_ENDED };

struct peer_link_events {
    /* Dialled links: the host name has been looked up, and link->dialling.found has its addresses. */
    void (*on_looked_up)(struct peer_link *link);
    /* The other end has proved that it holds the key. */
    void (*on_secure)(struct peer_link *link);
    /* The first frame of the other end has arrived, decoded into link->meeting.hello. An error ends the link, and
     * its sentence is sent. */
    enum rdt_status (*on_hello)(struct peer_link *link, struct rdt_error *err);
    /* Dialled links: the first frame after both hellos has arrived. The callback must call peer_link_up or
     * peer_link_close. */
    void (*on_confirmed)(struct peer_link *link);
    /* UP: a frame has arrived that is not hello, ping, pong or goodbye. An error ends the link, and its
     * sentence is sent. */
    enum rdt_status (*on_frame)(struct peer_link *link, const struct frame *frame, struct rdt_error *err);
    /* The node has answered the ping of the last peer_link_probe. */
    void (*on_answer)(struct peer_link *link);
    /* The link has ended by itself: once, never inside a call of this header, never after peer_link_close. */
    void (*on_end)(struct peer_link *link, const struct rdt_error *why);
    /* All handles of the link are closed. Its memory is freed when the call returns. */
    void (*on_freed)(void *arg);
};

/* What all links together have queued. */
struct peer_link_queues {
    struct list links; /* struct peer_link.queue */
    size_t bytes, max_bytes;
    struct list young; /* struct peer_link.young: links that are not up and have something to do, in slices */
    struct slice turn; /* of `young` */
};

struct peer_link_config { /* shared by all links, and outlives them */
    uv_loop_t *loop;
    struct slices *slices; /* NULL: there are few links */
    struct owner_work *owner_work;
    struct busy_poll *busy_poll;
    struct tls_context *tls;
    struct peer_link_queues *queues;
    uint64_t ping_interval_ns, peer_timeout_ns, connect_timeout_ns;
    const struct peer_link_events *events;
    void *arg;
    uint8_t *read_buf; /* PEER_LINK_READ_BYTES: libuv fills it, and one call empties it */
};

struct peer_meeting { /* for peer_meet.c */
    bool hello_sent, hello_seen, held;
    const Rdt__Pb__LinkHello *hello; /* of the peer; in the arena */
    struct arena arena;
    uint64_t accepted_ns;     /* 0: dialled */
    struct stranger stranger; /* in peers->door.strangers until it is up */
};

struct peer_dialling {   /* for peer_wire.c */
    struct list lookups; /* of the host name, each on the threads of another owner */
    struct addrinfo *found, *next_found;
    uv_connect_t connect;
    bool again;
};

struct peer_sending {
    uv_write_t write;
    bool busy;
    uint8_t *out; /* ciphertext being written */
    size_t out_size, out_bytes;
    struct list queue;        /* config->queues->links */
    size_t queued_bytes;      /* counted in config->queues */
    size_t unsent_bytes;      /* of the write under way, when the socket last accepted some of it */
    uint64_t unsent_since_ns; /* and when that was */
};

struct peer_receiving {
    struct frame_reader reader;
    bool more; /* frames remain for the next iteration, and nothing is read meanwhile */
    bool stopped;
};

struct peer_ping {
    uint64_t next_ns, sequence, sent_ns;
    uint64_t asked; /* number of the ping of the last peer_link_probe; 0: it was answered */
};

struct peer_link {
    /* for peer_meet.c */
    struct list node;
    struct peer *peer; /* borrowed; NULL until known */
    struct peer_meeting meeting;

    const struct peer_link_config *config;
    const struct peer_wire_events *upper; /* for peer_wire.c */
    char remote[65];                      /* "10.0.0.7:7070" */
    char host[65];
    uint16_t port;
    struct sm sm;
    unsigned n_handles; /* not yet closed */

    uv_tcp_t tcp;
    uv_timer_t timer;  /* before UP: the deadline; then the next ping, or the end of the wait for an answer */
    uv_idle_t turn;    /* active while work waits for the next iteration of the loop */
    struct list young; /* the same before it is up: in config->queues->young */
    struct peer_dialling dialling;

    struct tls tls;
    struct frame_writer writer;
    struct peer_sending sending;
    struct peer_receiving receiving;
    bool failed; /* the link ends in the next iteration, because of `why` */
    struct rdt_error failure;
    bool ended_there; /* the other end has closed it, as that end or its kernel reported */

    uint64_t last_byte_ns, timer_due_ns;
    struct peer_ping ping;
};

/* Starts to connect. A host name is looked up first, on the threads of that account's owner (NULL: of the
 * daemon). Error: NO_MEMORY; all others are reported by on_end. */
enum rdt_status peer_link_dial(const struct peer_link_config *config, const char *host, uint16_t port, struct account *account,
                               struct peer_link **link_p, struct rdt_error *err);

/* Accepts the connection that waits at the listener. After an error (NO_MEMORY, SYSTEM) it is closed. */
enum rdt_status peer_link_accept(const struct peer_link_config *config, uv_stream_t *listener, struct peer_link **link_p,
                                 struct rdt_error *err);

/* While the host name of a dialled link is being looked up: looks it up on the threads of that account's owner too, unless
 * that is under way. The first result counts. At any other time, nothing happens. */
void peer_link_look_up_too(struct peer_link *link, struct account *account);

static inline enum peer_link_state peer_link_state(const struct peer_link *link)
{
    return (enum peer_link_state)link->sm.state;
}

/* Ends the link because of what was received, and tells the other end. */
void peer_link_refuse(struct peer_link *link, const struct rdt_error *why);

/* Decodes a frame as RDT_PEER_MESSAGE_MAP says: every message of another node is decoded by this function. PROTOCOL: its type
 * is not known, or it is malformed; LIMIT: it takes more memory than the arena allows; NO_MEMORY. */
enum rdt_status peer_link_decode(const struct frame *frame, struct arena *arena, struct peer_message *message_p,
                                 struct rdt_error *err);

/* Queues a message, which is sent in this iteration of the loop. LIMIT: it is too large, or the other end
 * does not read and the link ends. */
enum rdt_status peer_link_send(struct peer_link *link, enum rdt_peer_message type, const ProtobufCMessage *message,
                               struct rdt_error *err);

/* MEETING to UP: the deadline no longer counts, and pings begin at once. */
void peer_link_up(struct peer_link *link);

/* UP: sends a ping now; on_answer reports the answer. */
void peer_link_probe(struct peer_link *link);

/* Frees the hello. */
void peer_link_forget_hello(struct peer_link *link);

/* Closes the link. No event but on_freed follows. With a reason, a goodbye is sent first as far as the
 * socket accepts it. */
void peer_link_close(struct peer_link *link, const char *reason);

size_t peer_link_queued_bytes(const struct peer_link *link);

#endif
