/* The other nodes: one TLS 1.3 link each, its pings, its back-off, and who they are. Knows no transfer: what arrives and what
 * happens goes up by callbacks given at start.
 *
 *                    dial / accept             hello exchanged
 *      +--> IDLE ------------------> CONNECTING ---------------> UP ----+
 *      |     ^                           | fails                        | end of file, error, ping timeout, goodbye
 *      |     | time over                 v                              |
 *      |     +----------------------- BACKOFF <-------------------------+
 *      +-- (a connection that the peer dialled can come up in any state)
 *
 * All on the loop thread.
 */
#ifndef DAEMON_PEER_H
#define DAEMON_PEER_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/base/events.h"
#include "daemon/base/list.h"
#include "proto/frame.h"
#include "proto/messages.h"
#include "rdt_peer.pb-c.h"

struct options;
struct node;
struct peers;

enum peer_state { PEER_IDLE, PEER_CONNECTING, PEER_UP, PEER_BACKOFF };

struct peer {
    struct list link; /* in peers_all() */
    struct peers *peers;
    uint8_t uuid[16];    /* all zero: never met, known by address only */
    uint8_t boot_id[16]; /* of the link that is or was up */
    char name[65];       /* from the nodes file, else the address */
    char address[65];    /* where to dial; "" if it only ever dials us */
    char version[32];
    enum peer_state state;
    uint64_t since_ns;         /* uv_hrtime() of the last change of state */
    uint64_t retry_at_ns;      /* BACKOFF: when the next dial is due */
    uint64_t rtt_ns;           /* of the last ping */
    uint64_t confirmed_ns;     /* when the last ping that it answered was sent; 0: none on this link */
    uint64_t patience_ns;      /* how long it hears nothing from us before it gives us up */
    uint64_t answered_ns;      /* when its last ping was answered; 0: none on the latest link, or it knows that that is no more */
    char last_error[192];      /* why it is not up */
    bool tensor_runs;          /* of the link that is or was up: it reads lists of tensors in runs */
    unsigned epoch;            /* grows with each link that comes up */
    unsigned n_calls;          /* of it, that wait here for their answer (rpc_remote.c) */
    void *session;             /* struct peer_session of daemon/transfers, which owns it; it survives links */
    void *holds;               /* the same, of holds.c */
    struct peer_link *link_up; /* private to peer*.c: the connection in use; NULL unless UP */
    struct peer_dial *dial;    /* private to peer*.c */
};

struct peers_callbacks {
    void *arg;
    /* What the layer above says of itself in our hello (version); what it points to lives until the next call. */
    void (*fill_hello)(void *arg, struct peer *peer /* NULL if not known yet */, Rdt__Pb__LinkHello *hello);
    /* The link is up; hello is the peer's, borrowed. boot_changed: it restarted since we last met. */
    void (*on_up)(void *arg, struct peer *peer, const Rdt__Pb__LinkHello *hello, bool boot_changed);
    /* It was up and is no more, or a dial failed (was_up false): nothing sent since will be answered. */
    void (*on_down)(void *arg, struct peer *peer, bool was_up, const struct rdt_error *why);
    /* A frame of any type that peer.c does not handle itself (HELLO, PING, PONG, GOODBYE). RDT_OK, or an error that ends the link. */
    enum rdt_status (*on_frame)(void *arg, struct peer *peer, const struct frame *frame, struct rdt_error *err);
    /* What was known by an address only turned out to be `into`, or (NULL) this node itself: whoever waits for its link goes on there.
     * NULL: nobody waits for such. */
    void (*on_merged)(void *arg, struct peer *from, struct peer *into);
    /* The answer to the latest peer_ask. NULL: nobody asks. */
    void (*on_answer)(void *arg, struct peer *peer);
    const struct events *events; /* NULL: nobody watches */
};

/* Reads the key, binds options->listen (port 0: node->address receives the real one), dials the nodes of the nodes file. Without a
 * key_file there are no peers: peers_find then says so. */
enum rdt_status peers_create(uv_loop_t *loop, const struct options *options, struct node *node,
                             const struct peers_callbacks *callbacks, struct peers **peers_p, struct rdt_error *err);

/* Says goodbye, closes every link (on_down is called for those that were up), then on_closed. */
void peers_close(struct peers *peers, void (*on_closed)(void *arg), void *arg);

/* The node that a ref names (uuid all zero: the one at that address, or of that name in the nodes file), made known if it is not yet and address is not "". Starts dialling unless it is up, connecting or in
 * back-off. NOT_FOUND: unknown and no address; UNSUPPORTED: this daemon has no peer link (no key_file); LIMIT: too many peers;
 * INVALID: bad address. */
enum rdt_status peers_find(struct peers *peers, const uint8_t uuid[16], const char *address, struct peer **peer_p,
                           struct rdt_error *err);

/* Others reach the node at this moment: if this one is in back-off it is dialled now. Nothing else, whatever is not known or cannot be done. */
void peers_hear_of(struct peers *peers, const uint8_t uuid[16], const char *address);

struct list *peers_all(struct peers *peers);
const char *peer_state_name(enum peer_state state);

/* "node n2 (7f3a...)" for sentences. Static thread-local-free: text_p has 128 bytes. */
void peer_describe(const struct peer *peer, char *text_p);

/* For a peer in back-off: PEER_LOST, naming the node, what keeps it away and when it is dialled next. */
enum rdt_status peer_away(const struct peer *peer, struct rdt_error *err);

/* Queues a message on the link; written when the loop turns (several in one TLS record where possible). PEER_LOST unless UP;
 * NO_MEMORY; LIMIT: too large. */
enum rdt_status peer_send(struct peer *peer, enum rdt_peer_message type, const ProtobufCMessage *message,
                          struct rdt_error *err);

/* Is the node still there? A ping at once: on_answer when the node has answered it, or on_down. */
void peer_ask(struct peer *peer);

/* Bytes queued and not yet written: back-pressure for whoever asks. */
size_t peer_queued_bytes(const struct peer *peer);

#endif
