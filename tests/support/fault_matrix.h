/* SPDX-License-Identifier: Apache-2.0 */
/* The fault matrix combines each event with each step of each call, for each place of the object and each path of its
 * bytes. A cell is one combination. A round of a cell brings real daemons and real processes to the step, causes the event
 * at a random moment, and then checks that
 *   - every call ended by its deadline, with a status that the event explains, and with every byte right if it succeeded;
 *   - nothing is written after a call has ended: margins, poisoned targets and delivered bytes are checked again later;
 *   - others were not disturbed, and what the event hit works again when it is back;
 *   - nothing is left: objects, holds, pins, transfers, and at the end of the cell memory and descriptors.
 *
 * make fault-matrix runs every cell a hundred times; the tests take some rounds of each.
 */
#ifndef TESTS_SUPPORT_FAULT_MATRIX_H
#define TESTS_SUPPORT_FAULT_MATRIX_H

#include <stdbool.h>
#include <stdint.h>

/* X(NAME, text) */
#define FAULT_EVENTS(X)                                                                             \
    X(CONSUMER_KILLED, "consumer-killed")                                                           \
    X(CONSUMER_FROZEN, "consumer-frozen")                                                           \
    X(PRODUCER_KILLED, "producer-killed")                                                           \
    X(PRODUCER_FROZEN, "producer-frozen")                                                           \
    X(CONSUMERS_NODE_KILLED, "consumers-node-killed")                                               \
    X(CONSUMERS_NODE_FROZEN, "consumers-node-frozen")                                               \
    X(CONSUMERS_NODE_STOPPED, "consumers-node-stopped")                                             \
    X(OWNERS_NODE_KILLED, "owners-node-killed")                                                     \
    X(OWNERS_NODE_FROZEN, "owners-node-frozen")                                                     \
    X(OWNERS_NODE_STOPPED, "owners-node-stopped")                                                   \
    X(CABLE_CUT, "cable-cut")                                                                       \
    X(CABLE_UNPLUGGED, "cable-unplugged")                                                           \
    X(HALF_OPEN_OUT, "half-open-out") /* nothing that the owner's node sends arrives */             \
    X(HALF_OPEN_IN, "half-open-in")   /* nothing arrives at the owner's node */                     \
    X(LOSSY, "lossy")                 /* frames are lost, doubled and disordered: nobody notices */ \
    X(DEADLINE, "deadline")                                                                         \
    X(CANCEL, "cancel")                                                                             \
    X(FORCED_FREE, "forced-free")                                                                   \
    X(TRANSPORT_FAILS, "transport-fails")                                                           \
    X(GARBAGE, "garbage")                                                                           \
    X(NO_MEMORY, "no-memory")   /* somebody takes all that is left under memory_limit */            \
    X(OVER_LIMIT, "over-limit") /* of his user's share: the others are the same user's */           \
    /* a daemon with a keeper is killed, and the next one starts at once */                         \
    X(CONSUMERS_NODE_RESTARTED, "consumers-node-restarted")                                         \
    X(OWNERS_NODE_RESTARTED, "owners-node-restarted")

#define FAULT_STEPS(X)                                                                      \
    X(PUTTING, "put")              /* a snapshot is being put, and somebody waits for it */ \
    X(PARKED, "fetch-parked")      /* a fetch of what nobody has put */                     \
    X(MOVING, "fetch-moving")      /* its bytes are on their way */                         \
    X(HELD, "fetch-held")          /* it has ended and its object is held */                \
    X(WAITING, "wait")             /* wait_put */                                           \
    X(WAITING_FREED, "wait-freed") /* the producer waits for its readers */                 \
    X(FREEING, "free")             /* a forced free by the consumer */                      \
    X(NAME_PARKED, "publish")      /* a fetch of a name's next version */

#define FAULT_PLACES(X)                \
    X(SAME, "same-node")               \
    X(INLINE, "inline")                \
    X(UCX, "ucx")                      \
    X(STREAM, "stream")                \
    X(TWO_SIDED, "loopback-two-sided") \
    X(ONE_SIDED, "loopback-one-sided") \
    X(ORDERED, "loopback-ordered") /* two-sided, in one queue per node */

#define X(name, text) FAULT_##name,
enum fault_event { FAULT_EVENTS(X) FAULT_N_EVENTS };
enum fault_step { FAULT_STEPS(X) FAULT_N_STEPS };
enum fault_place { FAULT_PLACES(X) FAULT_N_PLACES };
#undef X

struct fault_cell {
    enum fault_event event;
    enum fault_step step;
    enum fault_place place;
};

/* Combinations that mean something. */
bool fault_cell_exists(const struct fault_cell *cell);
bool fault_cell_needs_root(const struct fault_cell *cell); /* network namespaces */
bool fault_cell_waits(const struct fault_cell *cell);      /* most of the time, for somebody's silence to be noticed */
void fault_cell_name(const struct fault_cell *cell, char name_p[96]); /* "owners-node-killed/fetch-moving/ucx" */

/* What an event hits. Cells with cables need namespaces, and those with bad cables badcable.h. */
bool fault_hits_consumers_node(enum fault_event event);
bool fault_hits_owners_node(enum fault_event event);
bool fault_hits_cable(enum fault_event event); /* which breaks */
bool fault_wants_cable(enum fault_event event);
bool fault_wants_badcable(enum fault_event event);
bool fault_hits_memory(enum fault_event event); /* where the next allocation is made */
bool fault_restarts(enum fault_event event);

/* The statuses, as bits, that a call of the consumer (or, in PUTTING and WAITING_FREED, of the producer) may end with. */
#define FAULT_MAY(status) (1ull << -(status))
uint64_t fault_cell_explains(const struct fault_cell *cell, bool producer);

/* Starts daemons, runs the rounds, ends the daemons. Fails the test (in an actor: ends it) if anything is wrong. */
void fault_cell_run(const struct fault_cell *cell, unsigned rounds, uint64_t seed);

#endif
