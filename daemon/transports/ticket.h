/* Turns in the ordered queues of a transport: there an operation may hold up those posted after it until its counterpart on the other
 * node is posted (NCCL: one queue per device). With A's send to B, B's to C and C's to A at the heads of three queues nothing would ever
 * move, whatever the order between any two. So transfers post one after the other, in an order that is the same in all queues:
 *
 *   a transfer takes the turn of its queues on one node, that with the smaller uuid, then of those on the other; it posts when it has
 *   both, and gives each up when it has posted all there.
 *
 * Who waits holds turns of smaller nodes only: no cycle of waiting. What is posted had all its turns, and stands behind such as had
 * theirs before: no cycle at the heads. On one node a transfer joins the ends of all its queues at once, and has its turn when it is the
 * first in each that has not posted; at most TURN_DEPTH that have posted may still be under way before it, so that one that is stuck
 * holds up few, and what waits has nothing posted that would have to be cancelled.
 *
 * A struct ticket is one end of one transfer (the words are in rdt_peer.proto):
 *
 *   IDLE --owner, first: begin; reader, first: READY; second: TAKEN--> QUEUED --granted--> HELD --both have theirs--> POSTING
 *     |                                                                   |                  |                          |
 *     +------------------------------- leave -----------------------------+------------------+--------- leave ----------+
 *                                        v                                                                              | give
 *                                       GONE <------------------------------ leave ----------------------------------POSTED
 *
 * Knows no link, no clock and no transfer: what is to be said and posted it tells by callbacks.
 */
#ifndef DAEMON_TURN_H
#define DAEMON_TURN_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/list.h"
#include "daemon/base/sm.h"
#include "rdt_status.h"

#define TICKET_DEPTH 2u
#define TICKET_MAX_QUEUES 16u /* of one transfer on one node */

struct tickets { /* a node's */
    struct list queues;
    struct list all; /* struct ticket.link: not gone */
    void (*on_ready)(struct tickets *);
};

enum ticket_state { TICKET_IDLE, TICKET_QUEUED, TICKET_HELD, TICKET_POSTING, TICKET_POSTED, TICKET_GONE };

/* As on the wire. READY: the owner, which is second, has its memory: the reader may begin. TAKEN: it has its turn. POSTED: the reader's
 * receives stand. WAITING: it is behind others, as its text says. */
enum ticket_word { TICKET_READY, TICKET_TAKEN, TICKET_RECEIVES, TICKET_WAITING };

struct ticket;

struct ticket_events {
    void (*say)(struct ticket *, enum ticket_word);
    /* Both ends have their turns. Reader: post all receives, then turn_receives_stand. Owner: the receives stand, post the sends in
     * order. Either: turn_give when it has. May be called inside turn_begin and turn_hear. */
    void (*post)(struct ticket *);
};

struct ticket_place;

struct ticket {
    struct tickets *turns;
    struct list link;
    struct sm sm;
    const struct ticket_events *events;
    bool owner, first;
    bool begun; /* owner */
    struct ticket_place *places;
    unsigned n_places;
};

/* on_ready: somebody's turn may have come: call turns_run, but not from there. */
void tickets_init(struct tickets *turns, void (*on_ready)(struct tickets *));
void tickets_fini(struct tickets *turns); /* all have gone */
void tickets_run(struct tickets *turns);

/* Of a transfer between these two nodes, the first one takes its turn first. */
bool ticket_is_first(const uint8_t here[16], const uint8_t there[16]);

/* names: [n] of this node's queues, each once; n may be 0 (this end's operations stand in none). To be left. NO_MEMORY. */
enum rdt_status ticket_init(struct ticket *turn, struct tickets *turns, const struct ticket_events *events, bool owner, bool first,
                          const char *transport, const char *const *names, unsigned n, struct rdt_error *err);

void ticket_begin(struct ticket *turn); /* the owner, when its memory is ready */
enum rdt_status ticket_hear(struct ticket *turn, enum ticket_word word, struct rdt_error *err); /* PROTOCOL: not that now */
void ticket_receives_stand(struct ticket *turn);                                              /* the reader */
void ticket_give(struct ticket *turn);                                                        /* nothing if it has */

/* Its operations have ended, or none were posted. Nothing if it has left. */
void ticket_leave(struct ticket *turn);

bool ticket_has_posted(const struct ticket *turn); /* some, perhaps not all */
bool ticket_holds_up(const struct ticket *turn);   /* it has its turn, or has posted, and somebody stands behind it */

/* Who is at the head of a queue that it stands in, if that is another one; NULL: nobody is before it. */
const struct ticket *ticket_behind(const struct ticket *turn, const char **queue_p);

#endif
