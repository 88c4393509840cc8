/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/timeline/timeline.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/grow.h"

void timeline_fini(struct timeline *timeline)
{
    for (unsigned i = 0; i < timeline->n_nodes; i++)
        free(timeline->nodes[i].clocks);
    free(timeline->events);
    *timeline = (struct timeline){0};
}

enum rdt_status timeline_add(struct timeline *timeline, const struct timeline_event *event, struct rdt_error *err)
{
    struct timeline_event *events = array_grow(timeline->events, timeline->n, &timeline->size, sizeof *events);

    if (!events)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for %zu events", timeline->n + 1);
    timeline->events = events;
    timeline->events[timeline->n++] = *event;
    return RDT_OK;
}

enum rdt_status timeline_add_clock(struct timeline_node *node, const struct timeline_clock *clock, struct rdt_error *err)
{
    struct timeline_clock *clocks = realloc(node->clocks, (node->n_clocks + 1) * sizeof *clocks);

    if (!clocks)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for %zu clocks", node->n_clocks + 1);
    node->clocks = clocks;
    clocks[node->n_clocks++] = *clock;
    return RDT_OK;
}

/* Whether the event's stage is how a transfer ended. */
static bool is_end(const char *stage)
{
    static const char *const ends[] = {"done", "failed", "cancelled", "timed_out", "joined"};

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (strcmp(stage, ends[i]) == 0)
            return true;
    return false;
}

/* By transfer, then by time. */
static int by_transfer(const void *left, const void *right)
{
    const struct timeline_event *a = left, *b = right;

    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    if (a->transfer != b->transfer)
        return a->transfer < b->transfer ? -1 : 1;
    if (a->at_ns != b->at_ns)
        return a->at_ns < b->at_ns ? -1 : 1;
    return is_end(a->stage) - is_end(b->stage);
}

static int by_time(const void *left, const void *right)
{
    const struct timeline_event *a = left, *b = right;

    return a->at_ns != b->at_ns ? (a->at_ns < b->at_ns ? -1 : 1) : by_transfer(a, b);
}

void timeline_finish(struct timeline *timeline)
{
    bool flows = false;

    if (timeline->n == 0)
        return;
    qsort(timeline->events, timeline->n, sizeof *timeline->events, by_transfer);
    for (size_t i = 0; i < timeline->n; i++) {
        struct timeline_event *event = &timeline->events[i], *next = i + 1 < timeline->n ? event + 1 : NULL;
        const struct timeline_event *before = i > 0 ? event - 1 : NULL;

        event->first = !before || before->node != event->node || before->transfer != event->transfer;
        event->last = is_end(event->stage);
        event->ns = !event->last && next && next->node == event->node && next->transfer == event->transfer
                        ? next->at_ns - event->at_ns
                        : 0;
        event->flows = event->flow != 0 && (event->first || !flows);
        flows = event->flows || (flows && !event->first);
    }
    qsort(timeline->events, timeline->n, sizeof *timeline->events, by_time);
}

/* What to add to a time of the node `of` to have it in the time of the node `to`. False: neither list says it. */
static bool find_offset(const struct timeline_node *to, const struct timeline_node *of, int64_t *add_ns_p)
{
    uint64_t best_ns = UINT64_MAX;

    if (strcmp(to->uuid, of->uuid) == 0) {
        *add_ns_p = 0;
        return true;
    }
    for (size_t i = 0; i < to->n_clocks; i++)
        if (strcmp(to->clocks[i].node, of->uuid) == 0 && to->clocks[i].rtt_ns < best_ns) {
            best_ns = to->clocks[i].rtt_ns;
            *add_ns_p = -to->clocks[i].offset_ns;
        }
    for (size_t i = 0; i < of->n_clocks; i++)
        if (strcmp(of->clocks[i].node, to->uuid) == 0 && of->clocks[i].rtt_ns < best_ns) {
            best_ns = of->clocks[i].rtt_ns;
            *add_ns_p = of->clocks[i].offset_ns;
        }
    return best_ns != UINT64_MAX;
}

/* The place of the node in the time line; a new one if it has none. */
static enum rdt_status place_node(struct timeline *timeline, const struct timeline_node *node, unsigned *place_p,
                                  struct rdt_error *err)
{
    for (*place_p = 0; *place_p < timeline->n_nodes; ++*place_p)
        if (strcmp(timeline->nodes[*place_p].uuid, node->uuid) == 0)
            return RDT_OK;
    if (timeline->n_nodes == TIMELINE_NODES)
        return rdt_error_set(err, RDT_LIMIT, "one time line has at most %u nodes", TIMELINE_NODES);
    timeline->nodes[*place_p] = *node;
    timeline->nodes[*place_p].clocks = NULL;
    timeline->nodes[*place_p].n_clocks = 0; /* a list of clocks is about the time of its own node */
    timeline->n_nodes++;
    return RDT_OK;
}

enum rdt_status timeline_merge(struct timeline *timeline, const struct timeline *other, struct rdt_error *err)
{
    unsigned places[TIMELINE_NODES];
    int64_t add_ns = 0;
    enum rdt_status status = RDT_OK;

    if (!find_offset(&timeline->nodes[0], &other->nodes[0], &add_ns))
        return rdt_error_set(err, RDT_INVALID,
                             "neither file says how the clocks of %s and %s differ: trace again while their link is up",
                             timeline->nodes[0].name, other->nodes[0].name);
    for (unsigned i = 0; i < other->n_nodes && status == RDT_OK; i++)
        status = place_node(timeline, &other->nodes[i], &places[i], err);
    for (size_t i = 0; i < other->n && status == RDT_OK; i++) {
        struct timeline_event event = other->events[i];
        event.at_ns += (uint64_t)add_ns;
        event.node = places[event.node];
        status = timeline_add(timeline, &event, err);
    }
    return status;
}
