/* Queue tickets for transports with ordered queues. In such a queue an operation may block all later ones until its counterpart on the other node
 * is posted (NCCL has one queue for each device). If A's send to B, B's to C and C's to A stood at the heads of three queues, nothing would ever
 * move, whatever the order between any two. So transfers post one after the other, in an order that is the same in all queues:
 *
 *   A transfer takes a ticket for its queues on one node, the node with the smaller uuid, and then for those on the other node. It posts when it
 *   has both tickets, and gives each one up when it has posted all operations there.
 *
 * A transfer that waits holds tickets of smaller nodes only, so there is no cycle of waiting. Everything that is posted had all its tickets and
 * stands behind transfers that had theirs before, so there is no cycle at the heads of the queues. On one node, a transfer joins the ends of all
 * its queues at once, and its ticket comes up when it is the first in each of them that has not posted. At most TICKET_DEPTH transfers that have
 * posted may still be under way before it, so that a stuck one blocks few. A waiting transfer has posted nothing that would have to be cancelled.
 *
 * A struct ticket is one end of one transfer (rdt_peer.proto has the messages):
 *
 *   IDLE --owner, first: begin; reader, first: READY; second: TAKEN--> QUEUED --comes up--> HELD --both ends have theirs--> POSTING
 *     |                                                                   |                  |                               |
 *     +------------------------------- leave -----------------------------+------------------+------------ leave ------------+
 *                                        v                                                                                   | give
 *                                       GONE <------------------------------ leave ---------------------------------------POSTED
 *
 * This file knows no link, no clock and no transfer: what must be sent and posted it reports by callbacks.
 */
#ifndef DAEMON_TURN_H
#define DAEMON_TURN_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/list.h"
#include "daemon/base/sm.h"
#include "rdt_status.h"

#define TICKET_DEPTH 2u
#define TICKET_MAX_QUEUES 16u /* queues of one transfer on one node */

struct tickets { /* all tickets of this node */
    struct list queues;
    struct list all; /* struct ticket.link: in every state but GONE */
    void (*on_ready)(struct tickets *);
};

enum ticket_state { TICKET_IDLE, TICKET_QUEUED, TICKET_HELD, TICKET_POSTING, TICKET_POSTED, TICKET_GONE };

/* As on the wire. READY: the owner, which is second, has its memory, so the reader may begin. TAKEN: the sender's ticket has come up. RECEIVES: the
 * reader's receives are posted. WAITING: the sender is behind other transfers, which its text names. */
enum ticket_word { TICKET_READY, TICKET_TAKEN, TICKET_RECEIVES, TICKET_WAITING };

struct ticket;

struct ticket_events {
    void (*say)(struct ticket *, enum ticket_word);
    /* Both ends have their tickets. The reader posts all receives and calls ticket_receives_stand; the owner, whose receives stand, posts the sends
     * in order. Both call ticket_give when they have posted. May be called inside ticket_begin and ticket_hear. */
    void (*post)(struct ticket *);
};

struct ticket_place;

struct ticket {
    struct tickets *tickets;
    struct list link;
    struct sm sm;
    const struct ticket_events *events;
    bool owner, first;
    bool begun; /* owner */
    struct ticket_place *places;
    unsigned n_places;
};

/* on_ready: a ticket may have come up; call tickets_run, but not from inside the callback. */
void tickets_init(struct tickets *tickets, void (*on_ready)(struct tickets *));
void tickets_fini(struct tickets *tickets); /* all tickets are gone */
void tickets_run(struct tickets *tickets);

/* Whether, of a transfer between these two nodes, `here` takes its ticket first. */
bool ticket_is_first(const uint8_t here[16], const uint8_t there[16]);

/* names: [n] queues of this node, each once; n is 0 if this end's operations stand in no queue. End it with ticket_leave. NO_MEMORY. */
enum rdt_status ticket_init(struct ticket *ticket, struct tickets *tickets, const struct ticket_events *events, bool owner, bool first,
                          const char *transport, const char *const *names, unsigned n, struct rdt_error *err);

void ticket_begin(struct ticket *ticket); /* called by the owner when its memory is ready */
enum rdt_status ticket_hear(struct ticket *ticket, enum ticket_word word, struct rdt_error *err); /* a message has come; PROTOCOL: not expected now */
void ticket_receives_stand(struct ticket *ticket);                                              /* called by the reader */
void ticket_give(struct ticket *ticket);                                                        /* does nothing if it was given up */

/* Its operations have ended, or none were posted. Does nothing if it is gone. */
void ticket_leave(struct ticket *ticket);

bool ticket_has_posted(const struct ticket *ticket); /* at least one operation */
bool ticket_holds_up(const struct ticket *ticket);   /* its ticket came up or it has posted, and another transfer is behind it */

/* The ticket at the head of a queue that this one stands in; NULL: no other ticket is before it. */
const struct ticket *ticket_behind(const struct ticket *ticket, const char **queue_p);

#endif
