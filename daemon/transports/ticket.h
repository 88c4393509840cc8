/* SPDX-License-Identifier: Apache-2.0 */
/* Queue tickets, for transports with ordered queues.
 *
 * In an ordered queue an operation may block all later ones until its counterpart on the other node is posted
 * (NCCL has one queue for each device). If A's send to B, B's to C and C's to A were at the heads of three
 * queues, nothing would ever move, whatever the order between any two of them. So transfers post one after the
 * other, in an order that is the same in all queues:
 *
 *   A transfer takes a ticket for its queues on one node, the node with the smaller uuid, and then one for its
 *   queues on the other node. It posts when it has both tickets, and gives each one up when it has posted all
 *   operations there.
 *
 * A transfer that waits holds tickets of smaller nodes only, so there is no cycle of waiting. Everything that is
 * posted had all its tickets, and is behind transfers that had theirs before, so there is no cycle at the heads
 * of the queues. On one node a transfer joins the ends of all its queues at once. Its ticket comes up when it is
 * the first in each of them that has not posted; at most TICKET_DEPTH transfers that have posted may still be
 * under way before it, so that a stuck one blocks few. A transfer that waits has posted nothing that would have
 * to be cancelled.
 *
 * A struct ticket is one end of one transfer (rdt_peer.proto has the messages). The table in ticket.c has exactly
 * these moves:
 *
 *   IDLE -----> QUEUED -----> HELD -----> POSTING -----> POSTED
 *     |   (1)     |     (2)     |    (3)     |     give     |
 *     |           |             |            |              |
 *     +-----------+-------------+------------+--------------+-- leave --> GONE
 *
 *   (1) of the first node: the owner begins, or the reader receives READY; of the second: it receives TAKEN
 *   (2) it comes up in all its queues
 *   (3) both ends have their tickets
 *
 * This file knows no link, no clock and no transfer. It reports by callbacks what must be sent and posted. All calls are
 * made in the loop thread.
 */
#ifndef DAEMON_TICKET_H
#define DAEMON_TICKET_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/sm.h"
#include "proto/list.h"
#include "rdt_status.h"

#define TICKET_DEPTH 2u
#define TICKET_MAX_QUEUES 16u /* queues of one transfer on one node */

struct tickets { /* all tickets of this node */
    struct list queues;
    struct list all; /* struct ticket.link: in every state but GONE */
    void (*on_ready)(struct tickets *);
};

enum ticket_state { TICKET_IDLE, TICKET_QUEUED, TICKET_HELD, TICKET_POSTING, TICKET_POSTED, TICKET_GONE };

/* The messages between the ends, numbered as on the wire. READY: the owner is the second node, and has its memory, so
 * the reader may begin. TAKEN: the sender's ticket has come up. RECEIVES: the reader's receives are posted. WAITING:
 * the sender is behind other transfers, which the text of the message names. */
enum ticket_message { TICKET_READY, TICKET_TAKEN, TICKET_RECEIVES, TICKET_WAITING };

struct ticket;

struct ticket_events {
    void (*send)(struct ticket *, enum ticket_message); /* sends the message to the other node */
    /* Both ends have their tickets. The reader posts all its receives and calls ticket_receives_posted. The
     * owner, which knows that they are posted, posts its sends in order. Both call ticket_give when they have
     * posted. May be called inside ticket_begin, ticket_receive and tickets_run. */
    void (*post)(struct ticket *);
};

struct ticket_place;

struct ticket {
    struct tickets *tickets;
    struct list link;
    struct sm sm;
    const struct ticket_events *events;
    bool owner, first;
    bool begun; /* the owner has called ticket_begin */
    struct ticket_place *places;
    unsigned n_places;
};

/* on_ready reports that a ticket may have come up: the caller then calls tickets_run, but not inside the callback. */
void tickets_init(struct tickets *tickets, void (*on_ready)(struct tickets *));
void tickets_fini(struct tickets *tickets); /* all tickets must be GONE */
void tickets_run(struct tickets *tickets);  /* moves on every ticket that has come up */

/* Returns whether, of a transfer between these two nodes, `here` takes its ticket first. */
bool ticket_is_first(const uint8_t here[16], const uint8_t there[16]);

/* Initialises a ticket. queues: [n], of this node, each once; n is 0 if the operations of this end are in no
 * ordered queue. The ticket ends with ticket_leave. NO_MEMORY. */
enum rdt_status ticket_init(struct ticket *ticket, struct tickets *tickets, const struct ticket_events *events, bool owner,
                            bool first, const char *transport, const char *const *queues, unsigned n, struct rdt_error *err);

/* The owner calls it when its memory is ready. */
void ticket_begin(struct ticket *ticket);

/* A message about the ticket has come. PROTOCOL: it is not expected now. */
enum rdt_status ticket_receive(struct ticket *ticket, enum ticket_message message, struct rdt_error *err);

/* The reader calls it when all its receives are posted. */
void ticket_receives_posted(struct ticket *ticket);

/* Gives the ticket up: all operations of this end are posted. Does nothing in another state than POSTING. */
void ticket_give(struct ticket *ticket);

/* Ends the ticket: its operations have ended, or none were posted. Does nothing if it is GONE. */
void ticket_leave(struct ticket *ticket);

/* Returns whether it may have posted operations. */
bool ticket_has_posted(const struct ticket *ticket);

/* Returns whether it has come up or has posted, and another transfer waits behind it. */
bool ticket_blocks_others(const struct ticket *ticket);

/* Returns the ticket at the head of a queue in which this one waits, and the queue's name in *queue_p. NULL: no
 * other ticket is before it. */
const struct ticket *ticket_find_blocker(const struct ticket *ticket, const char **queue_p);

#endif
