/* SPDX-License-Identifier: Apache-2.0 */
/* The cells of the fault matrix: the list of all cells, their names, and which statuses a call may return in each. */
#include "tests/support/fault_matrix.h"

#include <stdio.h>

#include "client/rdt.h"

static const char *const event_names[] = {
#define X(name, text) text,
    FAULT_EVENTS(X)
#undef X
};
static const char *const step_names[] = {
#define X(name, text) text,
    FAULT_STEPS(X)
#undef X
};
static const char *const place_names[] = {
#define X(name, text) text,
    FAULT_PLACES(X)
#undef X
};

static bool is_at(enum fault_event event, enum fault_event first, enum fault_event last)
{
    return event >= first && event <= last;
}

bool fault_hits_consumers_node(enum fault_event event)
{
    return is_at(event, FAULT_CONSUMERS_NODE_KILLED, FAULT_CONSUMERS_NODE_STOPPED);
}

bool fault_hits_owners_node(enum fault_event event)
{
    return is_at(event, FAULT_OWNERS_NODE_KILLED, FAULT_OWNERS_NODE_STOPPED);
}

bool fault_hits_cable(enum fault_event event)
{
    return is_at(event, FAULT_CABLE_CUT, FAULT_HALF_OPEN_IN);
}

bool fault_wants_cable(enum fault_event event)
{
    return fault_hits_cable(event) || event == FAULT_LOSSY;
}

bool fault_wants_badcable(enum fault_event event)
{
    return is_at(event, FAULT_HALF_OPEN_OUT, FAULT_LOSSY);
}

bool fault_hits_memory(enum fault_event event)
{
    return is_at(event, FAULT_NO_MEMORY, FAULT_OVER_LIMIT);
}

bool fault_restarts(enum fault_event event)
{
    return is_at(event, FAULT_CONSUMERS_NODE_RESTARTED, FAULT_OWNERS_NODE_RESTARTED);
}

bool fault_cell_exists(const struct fault_cell *cell)
{
    enum fault_event event = cell->event;
    enum fault_step step = cell->step;
    enum fault_place place = cell->place;
    bool fetches = step <= FAULT_HELD || step == FAULT_NAME_PARKED;

    if (place == FAULT_SAME &&
        (fault_hits_consumers_node(event) || event == FAULT_CONSUMERS_NODE_RESTARTED || fault_wants_cable(event)))
        return false; /* there is one node, the owner's */
    if (fault_wants_cable(event) && place != FAULT_INLINE && place != FAULT_UCX && place != FAULT_STREAM)
        return false; /* the test transport has no cable */
    if (event == FAULT_TRANSPORT_FAILS)
        return step == FAULT_MOVING && (place == FAULT_TWO_SIDED || place == FAULT_ONE_SIDED || place == FAULT_ORDERED);
    if (event == FAULT_DEADLINE)
        return step != FAULT_HELD && step != FAULT_FREEING;
    if (fault_hits_memory(event))
        return fetches && step != FAULT_HELD && place != FAULT_INLINE;
    if (event == FAULT_CANCEL)
        return fetches && step != FAULT_HELD;
    if (event == FAULT_FORCED_FREE)
        return step == FAULT_MOVING || step == FAULT_HELD || step == FAULT_WAITING_FREED;
    if (step == FAULT_FREEING) { /* it has no deadline of its own, and ends after a minute if its daemon is frozen */
        if (event == FAULT_CONSUMER_FROZEN || event == FAULT_CONSUMERS_NODE_FROZEN)
            return false;
        return !(event == FAULT_OWNERS_NODE_FROZEN && place == FAULT_SAME);
    }
    /* Steps without bytes are the same whatever would carry them. */
    if ((step == FAULT_WAITING || step == FAULT_FREEING) && place != FAULT_SAME && place != FAULT_INLINE)
        return false;
    return true;
}

bool fault_cell_needs_root(const struct fault_cell *cell)
{
    return fault_wants_cable(cell->event);
}

bool fault_cell_waits(const struct fault_cell *cell)
{
    enum fault_event event = cell->event;

    return event == FAULT_CONSUMERS_NODE_FROZEN || event == FAULT_OWNERS_NODE_FROZEN || fault_hits_cable(event);
}

void fault_cell_name(const struct fault_cell *cell, char name_p[96])
{
    (void)snprintf(name_p, 96, "%s/%s/%s", event_names[cell->event], step_names[cell->step], place_names[cell->place]);
}

uint64_t fault_cell_explains(const struct fault_cell *cell, bool producer)
{
    bool at_owner = producer || cell->place == FAULT_SAME; /* its own daemon is the owner's */
    enum fault_event event = cell->event;
    uint64_t may = FAULT_MAY(RDT_OK);

    if (!producer && cell->step == FAULT_WAITING_FREED)
        may |= FAULT_MAY(RDT_FREED); /* the object was freed before the fetch arrived */
    switch (event) {
    case FAULT_PRODUCER_KILLED:
        return may | FAULT_MAY(RDT_OWNER_DIED);
    case FAULT_OWNERS_NODE_KILLED:
        return may | (at_owner ? FAULT_MAY(RDT_DISCONNECTED) : FAULT_MAY(RDT_PEER_LOST));
    case FAULT_OWNERS_NODE_FROZEN:
        return may | (at_owner ? FAULT_MAY(RDT_TIMED_OUT) : FAULT_MAY(RDT_PEER_LOST));
    case FAULT_OWNERS_NODE_STOPPED: /* the daemon drains, and the producer's session may end first */
        return may | FAULT_MAY(RDT_SHUTTING_DOWN) | FAULT_MAY(RDT_OWNER_DIED) |
               (at_owner ? FAULT_MAY(RDT_DISCONNECTED) : FAULT_MAY(RDT_PEER_LOST));
    case FAULT_OWNERS_NODE_RESTARTED: /* whose own daemon it is notices nothing */
        return at_owner ? may : may | FAULT_MAY(RDT_PEER_LOST);
    case FAULT_DEADLINE:
        return may | FAULT_MAY(RDT_TIMED_OUT);
    case FAULT_TRANSPORT_FAILS:
        return may | FAULT_MAY(RDT_TRANSPORT);
    case FAULT_NO_MEMORY: /* a put waits for room until its deadline */
        return may | FAULT_MAY(RDT_NO_MEMORY) | (producer ? FAULT_MAY(RDT_TIMED_OUT) : 0);
    case FAULT_OVER_LIMIT:
        return may | FAULT_MAY(RDT_LIMIT) | (producer ? FAULT_MAY(RDT_TIMED_OUT) : 0);
    default:
        break;
    }
    if (producer) /* the others do not concern it */
        return may;
    switch (event) {
    case FAULT_CONSUMERS_NODE_KILLED:
        return may | FAULT_MAY(RDT_DISCONNECTED);
    case FAULT_CONSUMERS_NODE_FROZEN:
        return may | FAULT_MAY(RDT_TIMED_OUT);
    case FAULT_CONSUMERS_NODE_STOPPED:
        return may | FAULT_MAY(RDT_DISCONNECTED) | FAULT_MAY(RDT_SHUTTING_DOWN);
    case FAULT_CABLE_CUT:
    case FAULT_CABLE_UNPLUGGED:
    case FAULT_HALF_OPEN_OUT:
    case FAULT_HALF_OPEN_IN:
        return may | FAULT_MAY(RDT_PEER_LOST);
    case FAULT_CANCEL:
        return may | FAULT_MAY(RDT_CANCELLED);
    case FAULT_FORCED_FREE:
        return may | FAULT_MAY(RDT_FREED);
    default:
        return may;
    }
}
