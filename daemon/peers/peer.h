/* SPDX-License-Identifier: Apache-2.0 */
/* The other nodes: who they are, and one TLS 1.3 link to each.
 *
 * Owns: the listener for other nodes, the links, their pings and their back-off; every struct peer, from the
 * moment it becomes known until peers_close; and the holds that clients of one node have on objects of
 * another (holds.h).
 *
 * Public headers: peer.h and holds.h. All other headers are private. Two fields of struct peer, remote and calls, belong
 * to rooms above.
 *
 * Refuses: to believe anything before both ends have proved that they hold the key (tls.h), and a first frame
 * that is not a hello (peer_link.h). It knows no object, transfer or group: decoded messages, and changes of the link,
 * are reported by the callbacks given at start.
 *
 *                 dial                both hellos are exchanged
 *      IDLE ---------------> CONNECTING -----------------------> UP
 *       ^  ^                  |     |                             |
 *       |  | (1)              |     | the dial fails              | end of file, an error, a ping timeout, a goodbye
 *       |  +------------------+     v                             |
 *       +----------------------- BACKOFF <------------------------+
 *         the delay has passed
 *
 *   IDLE and BACKOFF also become UP, when a link that the peer dialled comes up.
 *   (1) The dial is given up: the entry turned out to be another peer, or this node itself.
 *
 * An address is not an identity. The uuid of a peer comes from the nodes file, from a hello, or from a ref. Only a uuid of
 * the nodes file is enforced. A uuid from a hello is valid until another node answers at the address: that node then has the
 * name and the address, and requests that name the old uuid fail. A uuid from a ref only says which node that request wants,
 * and no look-up by address uses it. Further addresses at which a node has answered lead to it only while the link to that
 * same daemon is up; after that they are dialled again.
 *
 *                          met                          another node answers there
 *   named by a request ----------> met (or listed) -----------------------------> without an address
 *         |                              |                                              |
 *         | idle for a minute, or        | 4096 others exist, and it is away and unused |
 *         | room is needed               v                                              |
 *         +------------------------> forgotten <----------------------------------------+
 *
 * Everything here runs on the loop thread.
 */
#ifndef DAEMON_PEER_H
#define DAEMON_PEER_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/base/account.h"
#include "daemon/base/events.h"
#include "daemon/base/owner_work.h"
#include "daemon/base/slices.h"
#include "proto/frame.h"
#include "proto/list.h"
#include "proto/messages.h"
#include "rdt_peer.pb-c.h"

struct options;
struct node;
struct node_entry;
struct peers;
struct remote;
struct holds_node;
struct tls_context;
struct arena;

enum peer_state { PEER_IDLE, PEER_CONNECTING, PEER_UP, PEER_BACKOFF };

/* Requests between this node and the peer (struct call of the room calls). */
struct peer_calls {
    struct list here;          /* of that node: they wait here for their answer */
    struct list unsent, there; /* of clients of this node: they wait for the link, or for that node's answer */
    struct list held_back;     /* questions that wait for the answers to others */
    size_t asked_bytes;        /* of the questions in `there` */
    unsigned n_here, n_there;  /* those, and those below */
    /* The link is up, and slices send `unsent` and `held_back`; or it has ended, and slices end what it had. */
    struct slice send, end;
    struct list failing, dropping; /* of clients of this node; of that node */
    struct rdt_error why;
    struct list ending; /* in rpc->calls.link_ends, while `end` waits */
};

struct peer {
    struct list link; /* in the list of peers_all */
    uint64_t number;  /* peers_next */
    struct peers *peers;
    uint8_t uuid[16];    /* all zero: not met yet, known only by its address */
    uint8_t boot_id[16]; /* of the daemon at the other end of the last link */
    char name[65];       /* from the nodes file, else the address */
    char address[65];    /* where to dial; "": only the peer dials */
    char version[32];
    char identity[256]; /* of the last link: the URI or DNS name in its certificate; "": the link used the key */
    enum peer_state state;
    uint64_t since_ns;    /* uv_hrtime() of the last change of state */
    uint64_t retry_at_ns; /* BACKOFF: when the next dial is due */
    uint64_t rtt_ns;      /* of the last ping */
    /* Its monotonic clock minus this node's, measured by the fastest recent pong, and the round trip of that pong, which
     * bounds the error; clock_rtt_ns is 0 if the offset is not known. */
    int64_t clock_offset_ns;
    uint64_t clock_rtt_ns, clock_ns; /* clock_ns: when that was */
    /* when the last ping that it answered was sent; 0: it has answered none on this link */
    uint64_t confirmed_ns;
    uint64_t patience_ns; /* how long the peer waits without hearing from this node before it ends the link */
    /* when this node last answered a ping of the peer; 0: never on this link, or the link has ended */
    uint64_t answered_ns;
    char last_error[192];      /* why it is not up: peer_why_away */
    bool last_error_secret;    /* it is about an address that only requests named */
    bool tensor_runs;          /* of the last link: the node understands lists of tensors in runs */
    bool names;                /* of the last link: the node understands RDT_PEER_NAME */
    unsigned epoch;            /* number of links that came up */
    struct peer_calls calls;   /* for calls/call_remote.c */
    struct remote *remote;     /* for transfers/, which owns it; it survives links */
    struct holds_node *holds;  /* for holds.c, which owns it: struct holds_node that survives links */
    struct peer_link *link_up; /* private to peer*.c: the link in use; NULL unless UP */
    struct peer_dial *dial;    /* private to peer*.c: what is known for dialling */
};

/* A decoded message of another node. It is borrowed, and what a handler decodes of it may go into its arena, too. */
struct peer_message {
    enum rdt_peer_message type;
    const void *body; /* of the type that RDT_PEER_MESSAGE_MAP names */
    struct arena *arena;
};

struct peers_callbacks {
    void *arg;
    /* Fills in the fields of this node's hello that belong to the rooms above, such as the version. What
     * the fields point to must stay valid until the next call. peer is NULL if the node is not known yet. */
    void (*fill_hello)(void *arg, struct peer *peer, Rdt__Pb__LinkHello *hello);
    /* The link is up. hello is the peer's, borrowed. boot_changed: its daemon has restarted since the last link. */
    void (*on_up)(void *arg, struct peer *peer, const Rdt__Pb__LinkHello *hello, bool boot_changed);
    /* The link has ended (was_up), or a dial has failed. No message that was sent before will be answered. */
    void (*on_down)(void *arg, struct peer *peer, bool was_up, const struct rdt_error *why);
    /* A message has come that is not HELLO, PING, PONG or GOODBYE. An error ends the link, and its sentence is sent behind the
     * name of the node. */
    enum rdt_status (*on_message)(void *arg, struct peer *peer, const struct peer_message *message, struct rdt_error *err);
    /* The node `from`, of which only the address was known, is the same node as `into`, or this node
     * itself (into is NULL). Requests that wait for the link of `from` must now wait for that of `into`. If
     * the uuid of `from` is known, another node has taken its address: then only requests that name no uuid
     * move to `into`, and on_down follows for the others. May be NULL. */
    void (*on_merged)(void *arg, struct peer *from, struct peer *into);
    /* Whether nothing above refers to the peer any more. If so, the rooms above have freed what they keep
     * for it (remote, holds), and the peer is freed. NULL: peers are never forgotten. */
    bool (*may_forget)(void *arg, struct peer *peer);
    /* The node has answered the last peer_probe. May be NULL. */
    void (*on_answer)(void *arg, struct peer *peer);
    const struct events *events;   /* where changes are reported; NULL: nowhere */
    struct owner_work *owner_work; /* looks up host names */
    struct slices *slices;         /* for long node tables; NULL: they are taken over at once */
    struct busy_poll *busy_poll;   /* is told when bytes of a node have come; NULL: nothing is */
};

/* Reads the key, listens on options->listen (with port 0, node->address receives the real port) and dials the
 * nodes of the nodes file. Without a key_file there are no peers, and peers_find returns UNSUPPORTED. loop,
 * options and node are borrowed until on_closed of peers_close. */
enum rdt_status peers_create(uv_loop_t *loop, const struct options *options, struct node *node,
                             const struct peers_callbacks *callbacks, struct peers **peers_p, struct rdt_error *err);

/* Checks everything that peers_create would refuse, without creating anything: mode and length of the key
 * file, and that `listen` can be bound. The port may be in use by the running daemon. Any thread.
 * Errors: INVALID, SYSTEM. */
enum rdt_status peers_check(const struct options *options, struct rdt_error *err);

/* The address of the loopback interface to which this machine leads the host name that refs carry; "": it does not. */
const char *peers_loopback(const struct peers *peers);

/* Whether no interface has the address of `listen` now. Any thread. */
bool peers_listen_is_away(const struct options *options);

/* Whether this machine lacks a part of its network now, as at boot: an interface of `interfaces` that is up, or an address for
 * other nodes. what_p names it. Any thread. */
bool peers_network_is_away(const struct options *options, char *what_p, size_t size);

/* The key or the certificates have changed: links that begin from now on use take_key (NULL: nothing has changed). Links that
 * are up stay up, unless the certificate of the other end is no longer accepted. */
void peers_reload(struct peers *peers, struct tls_context *take_key);

/* Sets the nodes that are listed from now on; NULL: none. They are taken over in slices, so they must stay until the next call
 * or the end of the room. Nodes that are new or have another address are dialled; nodes that are no longer listed stay known,
 * like nodes that have connected by themselves. */
void peers_set_nodes(struct peers *peers, const struct node_entry *entries);

/* Reads the key and the certificates of the configuration; any thread. The context is the caller's. early_p and errors: as
 * tls_context_create. */
enum rdt_status peers_open_tls(const struct options *options, struct tls_context **context_p, bool *early_p,
                               struct rdt_error *err);

/* Whether the context, of peers_open_tls, differs from what peers_reload was given last. */
bool peers_is_new_key(const struct peers *peers, const struct tls_context *key);

/* Seconds since 1970 when this node's certificate and its list of revoked certificates end; 0: it has none. */
void peers_certificate_expires(const struct peers *peers, int64_t *certificate_p, int64_t *crl_p);

void peers_drop_key(struct tls_context *take_key); /* NULL is allowed */

/* Says goodbye and closes every link; on_down is called for each that was up. Then calls on_closed, once,
 * when the memory of everything is freed. */
void peers_close(struct peers *peers, void (*on_closed)(void *arg), void *arg);

/* INVALID: peers_find would refuse the address as malformed. Adds and dials nothing. */
enum rdt_status peers_check_address(struct peers *peers, const uint8_t uuid[16], const char *address, struct rdt_error *err);

/* Whether the link to that node is up: which daemon is at its other end. */
bool peers_boot(const struct peers *peers, const uint8_t uuid[16], uint8_t boot_id_p[16]);

/* Finds the node that a ref names, or adds it if address is not "". If uuid is all zero, it is the node at
 * that address (the one that is there now, if any is), or the one of that name in the nodes file. Starts to dial it
 * unless its link is up, connecting or in back-off. account is the requester's, borrowed; NULL: the daemon itself or
 * another node asks. NOT_FOUND: the node is not known and there is no address; UNSUPPORTED: this daemon has no peer link
 * because key_file is not set; LIMIT: the user's requests name too many nodes that nobody has met, or name them too fast;
 * DENIED: the option dial forbids it; INVALID: the address is malformed. */
enum rdt_status peers_find(struct peers *peers, const uint8_t uuid[16], const char *address, struct account *account,
                           struct peer **peer_p, struct rdt_error *err);

/* Another node reports that it can reach this one now. If that node is in back-off here, it is dialled at once;
 * otherwise nothing happens. */
void peers_hear_of(struct peers *peers, const uint8_t uuid[16], const char *address);

struct list *peers_all(struct peers *peers);
/* The peer with the least number above that one, for pages; NULL: there is none. Numbers are never used twice. */
struct peer *peers_next(const struct peers *peers, uint64_t after);
struct peer *peers_known(const struct peers *peers, const uint8_t uuid[16]); /* NULL: no such node is known */
int peer_listed_by(const struct peer *peer); /* its node_entry.source in the node table; -1: the table does not name it */
/* Whether one of the words, separated by commas, is the node's name in the node table, its uuid as 32 hex digits, with or
 * without dashes, or the name in its certificate. */
bool peer_is_one_of(const struct peer *peer, const char *words);
const char *peer_state_name(enum peer_state state);

/* Return a sentence about another daemon that has the uuid of this peer, or of this node itself, and was seen in the last ten
 * minutes; "": none was. */
const char *peer_twin(const struct peer *peer);
const char *peers_twin(const struct peers *peers);
#define PEER_TWIN_REMEDY "Stop rdtd on one of the two, remove node_uuid from its state_dir, and start it again."

/* Writes "node n2 (7f3a...)" for use in sentences; text_p has 128 bytes. */
void peer_describe(const struct peer *peer, char *text_p);

/* Returns why the peer is not up, or "". Users other than administrators do not learn what was found at an address that only
 * requests have named. */
const char *peer_why_away(const struct peer *peer, bool admin);

/* For a peer in back-off: returns PEER_LOST, with a sentence for this requester (as in peers_find) that names the
 * node, why it cannot be reached and when it is dialled next. */
enum rdt_status peer_away(const struct peer *peer, const struct account *account, struct rdt_error *err);

/* Queues a message on the link. The queue is written once per turn of the loop, several messages in one TLS
 * record where possible. PEER_LOST: the link is not up; NO_MEMORY; LIMIT: the message is too large. */
enum rdt_status peer_send(struct peer *peer, enum rdt_peer_message type, const ProtobufCMessage *message,
                          struct rdt_error *err);

/* What it has queued there. 0: the link is not up. */
size_t peer_queued_bytes(const struct peer *peer);

/* Writes the numeric address of this node's end of the link, where the node can be expected to reach this one; "" if the link
 * is not up, or if that address means nothing elsewhere (link-local). */
void peer_own_address(const struct peer *peer, char *text_p, size_t size);

/* Pings the node to check that it is reachable: on_answer follows, or on_down. */
void peer_probe(struct peer *peer);

#endif
