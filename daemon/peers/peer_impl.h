/* SPDX-License-Identifier: Apache-2.0 */
/* What peer.c (states and back-off), peer_table.c (identities), peer_meet.c (hellos, which of two connections stays) and
 * peer_listen.c (listening) share. Private to them. */
#ifndef DAEMON_PEER_IMPL_H
#define DAEMON_PEER_IMPL_H

#include "daemon/base/index.h"
#include "daemon/base/log.h"
#include "daemon/base/map.h"
#include "daemon/base/node.h"
#include "daemon/config/options.h"
#include "daemon/peers/peer.h"
#include "daemon/peers/peer_link.h"

/* Where the uuid of an entry comes from. A uuid from a ref only says which node that request wants, and gives
 * an address no identity. A uuid from a hello is valid for the address until another node answers there. Only
 * a uuid of the nodes file is enforced. */
enum peer_proof { PROOF_NONE, PROOF_REF, PROOF_HELLO, PROOF_FILE };

#define DIAL_SOURCES 8u

/* In the table of the addresses and names of peers. */
struct peer_word {
    struct peer *peer;
    const char *text; /* peer->address or peer->name */
    struct list same; /* struct peer_word.same: those with the same text; one of them is in peers->by_word */
};

struct peer_source;

struct peer_hint {
    char text[65];      /* the node's address in the last request, if that differs from peer.address */
    struct account *by; /* the owner who last named it in a request, one reference; NULL: the daemon or another node */
    bool dialled;       /* the last dial went there */
    unsigned n_dials;   /* in a row that went there */
    bool secret;        /* the user who gave it may not learn why the node cannot be reached there */
};

struct peer_listed {
    bool listed;           /* in the node table, so it is dialled until the daemon ends */
    uint8_t source;        /* with `listed`: as in struct node_entry */
    struct list by_listed; /* with `listed`: in peers->table.listed or .unlisting */
};

struct peer_where {
    bool numeric;                      /* peer.address is that of a host, and no name: */
    uint8_t host[16];                  /* as in `sources` */
    uint8_t sources[DIAL_SOURCES][16]; /* listed by a host name: its addresses at the last look-up (strangers.h) */
    unsigned n_sources;
    struct peer_source *counted[DIAL_SOURCES + 1]; /* [n_counted] those of `host` and `sources` that peers->by_source counts */
    unsigned n_counted;
};

/* Two daemons that have one uuid and live at the same time, because a machine was copied with its state_dir. */
struct peer_twin {
    uint8_t former_boot_id[16]; /* of the daemon before that of peer.boot_id: that one does not come back, unless both live */
    char text[240];             /* "": none was seen */
    uint64_t seen_ns;
};

struct peer_dial {
    struct peer peer; /* first member */
    enum peer_proof proof;
    struct account *account; /* of the user whose request added the entry, one reference; NULL: no request did */
    struct account
        *address_by; /* the owner who last named peer.address in a request, one reference; NULL: the daemon or another node */
    struct peer_hint hint;
    bool secret; /* not met, and requested by users who may not learn why it cannot be reached */
    bool hidden; /* in peers->hidden */
    struct peer_word by_address, by_name;
    char logged[192];       /* the last failure in the log */
    uv_timer_t timer;       /* for the back-off */
    struct list to_dial;    /* in peers->to_dial after it */
    struct peer_link *link; /* the link that this node dialled and that is not up yet */
    unsigned failures;      /* consecutive */
    struct peer_listed table;
    struct peer_where where;
    struct peer_twin twin;
    bool wanted;       /* peers_find was called during the back-off: dial again after it */
    struct peer *same; /* hidden: the peer whose daemon of peer.boot_id answered there; NULL: this node itself */
};

/* The node table, which is taken over in slices. */
struct peers_table {
    struct slice take;
    const struct node_entry *next_entry; /* the next one to be taken over; NULL: none */
    struct list listed, unlisting;       /* struct peer_dial.table.by_listed: and those that the table has not named yet */
};

/* Where other nodes connect. */
struct peers_door {
    uv_tcp_t listener, turned_away; /* turned_away accepts a connection only to close it */
    bool turning_away, left_waiting;
    char loopback[46];          /* "": unless this node's own name leads there */
    struct strangers strangers; /* accepted links that are not up */
    struct log_rare stranger_warnings;
};

struct peers {
    uv_loop_t *loop;
    const struct options *options;
    struct node *node;
    struct peers_callbacks callbacks;
    struct tls_context *tls;   /* NULL: no key and so no peers */
    struct late_key *late_key; /* NULL: no file of the key is awaited */
    struct peer_link_config config;
    struct peer_link_queues queues;
    uint8_t *read_buf;
    struct list all;        /* struct peer */
    struct list hidden;     /* struct peer: entries that turned out to be another entry's node, or this node itself */
    struct map by_uuid;     /* of all */
    struct index by_number; /* of all */
    uint64_t last_number;
    struct map by_word;   /* of all: struct peer_word, one of those with the same text */
    struct map by_source; /* struct peer_source: where nodes of the table are, or are met now */
    unsigned n_peers;     /* in both lists */
    uint64_t swept_ns;    /* when unmet entries that no request needs were last looked for */

    /* Nodes are dialled in slices after their back-off, because that ends for many at the same time. */
    struct slice dial;
    struct list to_dial; /* struct peer_dial.to_dial */

    struct peers_table table;
    struct list links; /* struct peer_link: those that have not ended */
    unsigned n_open;   /* handles and links whose memory libuv still uses */

    struct peers_door door;
    char hello_address[65];
    struct log_rare unmet_warnings;
    struct peer_twin twin; /* of this node */

    bool closing;
    void (*on_closed)(void *arg);
    void *on_closed_arg;
};

/* The files of peers, the upper ones first: an object uses symbols of lower rows only.
 *
 *   peers                       start and end
 *   peer_reload, peer_listen
 *   peer_meet                   the identity of the node at the other end of a link
 *   peer_table                  the entries of the nodes
 *   peer                        the state of each, and when it is dialled
 *   peer_link                   the hellos, frames and pings of one connection
 *   peer_wire                   its socket, TLS and bytes
 *   peer_entry
 */

/* ---- peer_entry.c ---- */

bool peer_is_known(const struct peer *peer);          /* returns whether its uuid is known */
bool account_is_admin(const struct account *account); /* NULL: the daemon itself or another node asks, so yes */
bool peer_has_been_met(const struct peer *peer);      /* or the nodes file lists it */
bool peer_can_be_dialled(const struct peer *peer);    /* returns whether an address of it is known */

/* Reports a change of the peer as an event. */
void peer_emit(const struct peer *peer, const char *what);

/* Counts where the peer is in peers->by_source. Call when it is listed, up, or not any more, or is somewhere else. */
void peer_settle_sources(struct peer *peer);

/* Whether the source is an address of the node table, or one where a node is met now. */
bool peers_know_source(const struct peers *peers, const uint8_t source[16]);

/* ---- peer_table.c ---- */

/* Adds a peer; uuid NULL: not known yet. With less proof than PROOF_HELLO, account is that of the user
 * whose request names the node (a reference is taken; NULL: no user), and LIMIT means that there are too
 * many such nodes. Error: NO_MEMORY. */
enum rdt_status peer_add(struct peers *peers, const uint8_t *uuid, enum peer_proof proof, const char *name, const char *address,
                         struct account *account, struct peer **peer_p, struct rdt_error *err);

/* Change the address or the name of a peer, which may be the text of another one. Without memory, no look-up by it finds the
 * peer: a request adds an entry, which becomes this one when the node has answered. */
void peer_set_address(struct peer *peer, const char *address);
void peer_set_name(struct peer *peer, const char *name);

/* A word of a peer in `all` with that text, and the next one after `at`; NULL: there is no further one. */
struct peer_word *peers_word(const struct peers *peers, const char *text);
struct peer_word *peers_next_word(const struct peers *peers, struct peer_word *at);

/* Whether the node table names it. */
void peer_set_listed(struct peer *peer, bool listed);

/* Sets the uuid of a peer that was known only by its address. Error: NO_MEMORY. */
enum rdt_status peer_identify(struct peer *peer, const uint8_t uuid[16], enum peer_proof proof, struct rdt_error *err);

/* Hides an entry that turned out to be the same node as `same`, or this node (NULL). It is never dialled again. */
void peer_hide(struct peer *peer, struct peer *same);

/* An entry of which only the address was known turns out to be another one, which gets its name, address
 * and dial. false: the other entry's own dial has progressed further, and this one is closed. */
bool peer_merge(struct peer *from, struct peer *into);

/* The node has answered at the peer's address. The entry that the node table has for this address, and of which nothing else is
 * known, turns out to be this one, which gets its name and its place in the table. Returns that entry, or NULL. */
struct peer *peer_take_listed(struct peer *peer, const uint8_t boot_id[16]);

/* Another node answers at the address of `from`, and gets its name, address and dial. `from` is left without an
 * address, and the caller ends its dial by peer_failed. false: as above. */
bool peer_replace(struct peer *from, struct peer *into);

/* Decrements n_open: a handle was closed or a link freed. The last one of a room that closes frees all entries. */
void peers_handle_closed(struct peers *peers);

/* ---- peer.c ---- */

void peer_move(struct peer *peer, enum peer_state to);
void peer_back_off(struct peer *peer);

bool peers_dial_some(struct slice *slice, uint64_t until_ns); /* peers->dial.run */

/* Ends the back-off and dials. */
void peer_dial_now(struct peer *peer);

/* Returns the account on whose threads the host name of the present dial is looked up. A user's hint, and an address where no
 * node was met, are looked up on the threads of the user who named it last; all others on those of the daemon (NULL). */
struct account *peer_look_up_account(const struct peer *peer);

/* Starts to connect. NO_MEMORY, INVALID. */
enum rdt_status peer_start_dial(struct peer *peer, struct rdt_error *err);

/* Ends CONNECTING after a failure: the peer goes into back-off, and on_down is called. */
void peer_failed(struct peer *peer, const struct rdt_error *cause);

/* Takes the link out of the lists and closes it. */
void peer_drop_link(struct peers *peers, struct peer_link *link, const char *reason);

/* Makes the link the one in use. A link that was in use is closed, and on_down is called for it with
 * `why_old`. */
void peer_take_link(struct peer *peer, struct peer_link *link, const struct rdt_error *why_old);

/* The link in use has ended, and peer->link_up is NULL. */
void peer_lost(struct peer *peer, const struct rdt_error *why);

/* ---- peer_meet.c ---- */

extern const struct peer_link_events peer_meet_events;

/* Logs a warning, at a limited rate, about a connection from an unknown node. */
void peers_warn_of_stranger(struct peers *peers, const char *remote, const char *text);

/* ---- peer_reload.c ---- */

/* Adds a node of the node table and dials it, unless it is this node itself. */
/* Looks for the files of the key, one of which is missing, until they are there. */
void peers_await_key(struct peers *peers);
void peers_stop_awaiting_key(struct peers *peers);

void peer_add_listed(struct peers *peers, const struct node_entry *entry);
bool peers_set_some(struct slice *slice, uint64_t until_ns); /* peers->table.take.run */

/* ---- peer_listen.c ---- */

/* Fails with SYSTEM, and says what to do about an address where this node cannot listen. */
enum rdt_status peer_listen_error(const char *listen, int sys_errno, struct rdt_error *err);

/* Creates a socket that listens at options->listen, and writes this node's address as refs and as its
 * hello have it, 65 bytes each. shares: an earlier daemon that is dying may still have the port. Errors: INVALID, SYSTEM. */
enum rdt_status peer_listen_bind(const struct options *options, bool shares, char *address_p, char *hello_address_p, int *fd_p,
                                 struct rdt_error *err);

/* Starts to accept connections. Takes the fd. */
void peer_listen(struct peers *peers, int take_fd);

#endif
