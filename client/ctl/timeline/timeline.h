/* SPDX-License-Identifier: Apache-2.0 */
/* A time line of transfers on one node or several: events in order of time, each of which begins a stage of a transfer or ends
 * the transfer. It comes from a daemon (ctl_trace.c) or from a file that chrome.c has written. */
#ifndef CLIENT_CTL_TIMELINE_H
#define CLIENT_CTL_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "client/rdt.h"

#define TIMELINE_NODES 64u /* of one file */

struct timeline_clock { /* of another node */
    char node[33];      /* uuid in hex */
    int64_t offset_ns;  /* its clock minus that of the node whose list this is */
    uint64_t rtt_ns;
};

struct timeline_node {
    char uuid[33], name[65];
    struct timeline_clock *clocks;
    size_t n_clocks;
};

struct timeline_event {
    uint64_t at_ns; /* of the clock of the first node */
    uint64_t transfer;
    uint64_t flow;      /* the same for all transfers of one object, on all nodes; 0: not known at that time */
    uint64_t bytes, ns; /* ns: how long the stage took; 0 and `last`: the transfer ended here */
    unsigned node;
    bool first, last; /* of this transfer's events */
    bool flows;       /* the first event of the transfer with a flow */
    char stage[16], direction[8], path[17], peer[17], id[33];
};

struct timeline {
    struct timeline_node nodes[TIMELINE_NODES];
    unsigned n_nodes;
    struct timeline_event *events;
    size_t n, size;
};

void timeline_fini(struct timeline *timeline);

/* Adds a copy. NO_MEMORY. */
enum rdt_status timeline_add(struct timeline *timeline, const struct timeline_event *event, struct rdt_error *err);
enum rdt_status timeline_add_clock(struct timeline_node *node, const struct timeline_clock *clock, struct rdt_error *err);

/* Sorts the events, and fills in ns, first, last and flows. Once, when all are added. */
void timeline_finish(struct timeline *timeline);

/* Adds the nodes and events of `other`, in the time of this time line's first node. INVALID: no file says how their clocks
 * differ. */
enum rdt_status timeline_merge(struct timeline *timeline, const struct timeline *other, struct rdt_error *err);

/* Reads a file that timeline_write has written. INVALID, SYSTEM. */
enum rdt_status timeline_read(struct timeline *timeline, const char *path, struct rdt_error *err);

/* Writes the whole file. NO_MEMORY; whether the bytes were written is for the caller to ask of `out`. */
enum rdt_status timeline_write(const struct timeline *timeline, FILE *out, struct rdt_error *err);

#endif
