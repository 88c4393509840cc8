/* SPDX-License-Identifier: Apache-2.0 */
/* The replica directory: which other nodes have replicas of this node's snapshots, or are receiving one.
 *
 * A node gets an entry when its PULL with `keep` is answered, before it has any bytes. It reports when its
 * replica is complete and when it drops it. When the link to a node goes down, its entries end, because that
 * node may not serve a replica before it has asked again. If this node gave the link up, the other one may
 * not know yet. Its entries are then LOST: it may still serve the replica, and no message reaches it. It
 * stops when enough time has passed since the last ping that this node answered (replica_is_fresh), or when
 * its link is up again.
 *
 * A node may drop its replica, or want none, while another answer that says that it is noted is on its way to it; it may keep
 * a replica because of that one. So the answers of a link are counted, the node says which it has read (Replicas.next_note),
 * and the entry stays while there is a later one.
 *
 * When an object ends, each node with an entry is told, and confirms that it serves the replica to no new
 * reader. A forced free waits for these confirmations and for LOST entries.
 *
 *   PULL, keep         Replicas.whole         the object ends            Replicas.invalidated
 *   ----------> RECEIVING --------> WHOLE -----------------------> TOLD ----------------------> removed
 *                   |------ Replicas.dropped; the link goes down and the node knows -----------------^
 *                   `------ the link goes down -------> LOST ------ time passes, or the link is up --'
 *
 * Fan-out: if several nodes want one large snapshot at the same time, a later one is redirected to a node that has it or is
 * receiving it. fanout.h decides to which, for new readers and for those that come back because that node has ended,
 * stood still or become slow.
 *
 * All calls are made in the loop thread. */
#ifndef DAEMON_REPLICA_DIRECTORY_H
#define DAEMON_REPLICA_DIRECTORY_H

#include "daemon/base/deadline.h"
#include "daemon/base/map.h"
#include "daemon/objects/object.h"
#include "daemon/transfers/fanout.h"
#include "proto/list.h"
#include "rdt_peer.pb-c.h"

struct replica_directory;
struct object;
struct peer;
struct remote;
struct transfers;

struct replicated_object { /* an object of this node that has entries */
    uint64_t generation;
    struct replica_directory *directory;
    struct fanout fanout;
    struct list nodes;   /* struct replica_entry.link */
    struct list lost;    /* struct replica_entry.link: entries that are LOST */
    struct list waiters; /* struct replica_directory_waiter.link; after the object has ended */
    bool ended;
};

struct replica_entry {
    struct list link;    /* in replicated->nodes; LOST: in replicated->lost */
    struct list by_node; /* in remote->entries: .receiving, .judged, .whole, .ending or, LOST, .lost */
    struct replicated_object *replicated;
    struct remote *remote;
    unsigned epoch;            /* of the link on which it was made; an earlier one: it will be removed or LOST in a moment */
    uint64_t note;             /* PullMeta.replica_note of the latest answer that says that it is there */
    struct fanout_place place; /* LOST: in no fan-out */
    struct deadline over;      /* LOST */
};

struct replica_directory_waiter {
    struct list link;
    void (*on_settled)(struct replica_directory_waiter *); /* called once, after removal */
};

struct replica_directory {
    struct transfers *transfers;
    struct map by_generation; /* struct replicated_object */
};

void replica_directory_init(struct replica_directory *directory, struct transfers *transfers);
void replica_directory_fini(struct replica_directory *directory);

/* The node is about to be answered that the entry is there. Returns PullMeta.replica_note. */
uint64_t replica_entry_noted(struct replica_entry *entry);

/* Adds an entry: the node will keep a replica of what it pulls. NULL: no memory. */
struct replica_entry *replica_entry_add(struct replica_directory *directory, struct remote *remote, const struct object *object,
                                        bool *is_new_p);

/* Whether the checksum of the object, which that node compares its replica with, is known: *sum_p. Otherwise the node gets it
 * in a message later, if *follows_p. */
void replica_directory_sum(struct remote *remote, struct object *object, uint64_t *sum_p, bool *follows_p);

/* The node that the entry's node should pull from for this user, noted in the entry; NULL: this one. `left` is the uuid of the
 * node that it has come back from; NULL: it is new. */
struct remote *replica_entry_redirect(struct replica_entry *entry, const struct owner *requester, const uint8_t *left);

/* The number of nodes between this entry's node and this one. */
unsigned replica_entry_depth(const struct replica_entry *entry);

/* This node serves the object to the reader, has sent so many bytes of it, and has found how fast the reader takes them. */
void replica_directory_reader_took(struct replica_directory *directory, uint64_t generation, struct remote *reader,
                                   uint64_t sent, enum fanout_verdict verdict);

/* Notes that the entry's node receives from this one. */
void replica_entry_serve_here(struct replica_entry *entry);

void replica_directory_on_message(struct replica_directory *directory, struct remote *remote, const Rdt__Pb__Replicas *message);
void replica_directory_link_down(struct remote *remote);
void replica_directory_link_up(struct remote *remote);
bool replica_directory_may_forget(const struct remote *remote); /* nothing refers to the remote */

/* The object has ended: tells the nodes that have entries. */
void replica_directory_object_ended(struct replica_directory *directory, const struct object *object);

/* Calls the waiter when every entry of the object has settled. false: there is none to wait for. */
bool replica_directory_wait(struct replica_directory *directory, uint64_t generation, struct replica_directory_waiter *waiter);

const struct peer *replica_entry_peer(const struct replica_entry *entry);
const struct peer *
replica_entry_source(const struct replica_entry *entry);           /* it receives from that node; NULL: from this one */
const char *replica_entry_pace(const struct replica_entry *entry); /* words for people; "": it is not slow */

/* For stat: *cursor starts NULL; NULL at the end. */
const struct replica_entry *replica_directory_next(const struct replica_directory *directory, uint64_t generation,
                                                   struct list **cursor);

#endif
