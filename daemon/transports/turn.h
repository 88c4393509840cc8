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
 * A struct turn is one end of one transfer (the words are in rdt_peer.proto):
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

#define TURN_DEPTH 2u
#define TURN_MAX_QUEUES 16u /* of one transfer on one node */

struct turns { /* a node's */
    struct list queues;
    struct list all; /* struct turn.link: not gone */
    void (*on_ready)(struct turns *);
};

enum turn_state { TURN_IDLE, TURN_QUEUED, TURN_HELD, TURN_POSTING, TURN_POSTED, TURN_GONE };

/* As on the wire. READY: the owner, which is second, has its memory: the reader may begin. TAKEN: it has its turn. POSTED: the reader's
 * receives stand. WAITING: it is behind others, as its text says. */
enum turn_word { TURN_READY, TURN_TAKEN, TURN_RECEIVES, TURN_WAITING };

struct turn;

struct turn_events {
    void (*say)(struct turn *, enum turn_word);
    /* Both ends have their turns. Reader: post all receives, then turn_receives_stand. Owner: the receives stand, post the sends in
     * order. Either: turn_give when it has. May be called inside turn_begin and turn_hear. */
    void (*post)(struct turn *);
};

struct turn_place;

struct turn {
    struct turns *turns;
    struct list link;
    struct sm sm;
    const struct turn_events *events;
    bool owner, first;
    bool begun; /* owner */
    struct turn_place *places;
    unsigned n_places;
};

/* on_ready: somebody's turn may have come: call turns_run, but not from there. */
void turns_init(struct turns *turns, void (*on_ready)(struct turns *));
void turns_fini(struct turns *turns); /* all have gone */
void turns_run(struct turns *turns);

/* Of a transfer between these two nodes, the first one takes its turn first. */
bool turn_is_first(const uint8_t here[16], const uint8_t there[16]);

/* names: [n] of this node's queues, each once; n may be 0 (this end's operations stand in none). To be left. NO_MEMORY. */
enum rdt_status turn_init(struct turn *turn, struct turns *turns, const struct turn_events *events, bool owner, bool first,
                          const char *transport, const char *const *names, unsigned n, struct rdt_error *err);

void turn_begin(struct turn *turn); /* the owner, when its memory is ready */
enum rdt_status turn_hear(struct turn *turn, enum turn_word word, struct rdt_error *err); /* PROTOCOL: not that now */
void turn_receives_stand(struct turn *turn);                                              /* the reader */
void turn_give(struct turn *turn);                                                        /* nothing if it has */

/* Its operations have ended, or none were posted. Nothing if it has left. */
void turn_leave(struct turn *turn);

bool turn_has_posted(const struct turn *turn); /* some, perhaps not all */
bool turn_holds_up(const struct turn *turn);   /* it has its turn, or has posted, and somebody stands behind it */

/* Who is at the head of a queue that it stands in, if that is another one; NULL: nobody is before it. */
const struct turn *turn_behind(const struct turn *turn, const char **queue_p);

#endif
