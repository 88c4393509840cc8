/* SPDX-License-Identifier: Apache-2.0 */
/* The actors of the fault matrix: clients that do one thing at a time when they are told, and report how it went. They
 * check the memory of a fetch again later, so that a late write is seen: margins must keep their canaries, memory of a
 * failed fetch its poison, and delivered memory its bytes. */
#ifndef TESTS_SUPPORT_FAULT_AGENT_H
#define TESTS_SUPPORT_FAULT_AGENT_H

#include "tests/support/rdtd.h"

enum agent_verb {
    AGENT_PUT,        /* bytes of the pattern `seed` under ref.id */
    AGENT_FETCH,      /* three at once: daemon's memory, malloc'ed target, target in a region */
    AGENT_PREPARE,    /* the targets of the next FETCH, which must have as many bytes */
    AGENT_HOARD,      /* all the memory that it can get; RELEASE gives it back. report: the status of the last try */
    AGENT_WAIT_PUT,   /* of ref */
    AGENT_WAIT_FREED, /* of ref */
    AGENT_FREE,       /* of ref, by force if `force` */
    AGENT_PUBLISH,    /* ref under `name` */
    AGENT_UNPUBLISH,  /* the name that ref is */
    AGENT_RELEASE,    /* releases what the agent fetched and put; report.right: all bytes were right */
    AGENT_LOOK,       /* the same without releasing */
    AGENT_LEAVE,
};

struct agent_order {
    enum agent_verb verb;
    struct rdt_ref ref;
    size_t bytes;
    uint32_t seed;
    bool force, snapshot;
    int64_t timeout_ns;      /* of the call */
    int64_t cancel_after_ns; /* FETCH: cancelled after so long; negative: never */
    char name[129], transport[16];
};

#define AGENT_ITEMS 3

struct agent_report {
    enum rdt_status status[AGENT_ITEMS]; /* FETCH: of each; others: [0] */
    char msg[AGENT_ITEMS][sizeof((struct rdt_error *)0)->msg];
    bool right; /* no byte is wrong: neither of what came nor around it nor where nobody may write any more */
    char wrong[128];
    struct rdt_ref ref; /* PUT */
    int64_t elapsed_ns;
};

struct agent {
    struct actor actor;
    const char *name;
    bool alive, frozen, busy; /* busy: an order has not been reported */
};

void agent_start(struct agent *agent, const struct test_node *node, const char *name);

/* Returns when the call has begun. The agent is alive, not frozen and not busy. */
void agent_order(struct agent *agent, const struct agent_order *order);

/* Waits for the report of the order. */
void agent_report(struct agent *agent, struct agent_report *report_p);

void agent_kill(struct agent *agent);
void agent_freeze(struct agent *agent);
void agent_thaw(struct agent *agent);
void agent_leave(struct agent *agent); /* nothing if it is not alive */

/* A stranger's connection to the node, with bytes that are no message. */
void agent_send_garbage(const struct test_node *node);

#endif
