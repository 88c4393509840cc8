/* SPDX-License-Identifier: Apache-2.0 */
/* Chrome's JSON, which Perfetto's and Chrome's viewers open. Its arguments and otherData have everything exactly, so that a
 * file can be read again to be merged with another node's. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/ctl_json.h"
#include "client/ctl/timeline/timeline.h"

/* ---- writing ---- */

static json_t *node_json(const struct timeline_node *node)
{
    json_t *clocks = json_array();

    for (size_t i = 0; i < node->n_clocks; i++)
        json_array_append_new(clocks,
                              json_pack("{s:s, s:I, s:I}", "node", node->clocks[i].node, "offset_ns",
                                        (json_int_t)node->clocks[i].offset_ns, "rtt_ns", (json_int_t)node->clocks[i].rtt_ns));
    return json_pack("{s:s, s:o, s:o}", "uuid", node->uuid, "name", ctl_json_text(node->name), "clocks", clocks);
}

static json_t *event_json(const struct timeline_event *event)
{
    json_t *json = json_pack("{s:s, s:s, s:s, s:i, s:I, s:f}", "name", event->stage, "cat", event->direction, "ph",
                             event->last ? "i" : "X", "pid", (int)event->node + 1, "tid", (json_int_t)event->transfer, "ts",
                             (double)event->at_ns / 1e3);
    char flow[17];

    (void)snprintf(flow, sizeof flow, "%016" PRIx64, event->flow);
    if (event->last)
        json_object_set_new(json, "s", json_string("t"));
    else
        json_object_set_new(json, "dur", json_real((double)event->ns / 1e3));
    json_object_set_new(json, "args",
                        json_pack("{s:o, s:o, s:o, s:I, s:I, s:s}", "object", ctl_json_text(event->id), "path",
                                  ctl_json_text(event->path), "peer", ctl_json_text(event->peer), "bytes",
                                  (json_int_t)event->bytes, "at_ns", (json_int_t)event->at_ns, "flow", flow));
    return json;
}

/* An arrow from transfer to transfer of the same object: the first begins it, the others continue it. */
static json_t *flow_json(const struct timeline *timeline, const struct timeline_event *event)
{
    bool begins = true;
    char flow[17];

    for (const struct timeline_event *e = timeline->events; e < event && begins; e++)
        begins = !e->flows || e->flow != event->flow;
    (void)snprintf(flow, sizeof flow, "%016" PRIx64, event->flow);
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:I, s:f, s:s}", "name", "object", "cat", "object", "ph", begins ? "s" : "t",
                     "id", flow, "pid", (int)event->node + 1, "tid", (json_int_t)event->transfer, "ts",
                     (double)event->at_ns / 1e3, "bp", "e");
}

enum rdt_status timeline_write(const struct timeline *timeline, FILE *out, struct rdt_error *err)
{
    json_t *events = json_array(), *nodes = json_array(), *all;
    int failed;

    for (unsigned i = 0; i < timeline->n_nodes; i++) {
        json_array_append_new(nodes, node_json(&timeline->nodes[i]));
        json_array_append_new(events, json_pack("{s:s, s:s, s:i, s:{s:o}}", "name", "process_name", "ph", "M", "pid",
                                                (int)i + 1, "args", "name", ctl_json_text(timeline->nodes[i].name)));
    }
    for (size_t i = 0; i < timeline->n; i++) {
        const struct timeline_event *event = &timeline->events[i];
        if (event->first) {
            char name[96];
            (void)snprintf(name, sizeof name, "%" PRIu64 " %s %s", event->transfer, event->direction, event->id);
            json_array_append_new(events, json_pack("{s:s, s:s, s:i, s:I, s:{s:o}}", "name", "thread_name", "ph", "M", "pid",
                                                    (int)event->node + 1, "tid", (json_int_t)event->transfer, "args", "name",
                                                    ctl_json_text(name)));
        }
        json_array_append_new(events, event_json(event));
        if (event->flows)
            json_array_append_new(events, flow_json(timeline, event));
    }
    all = json_pack("{s:s, s:{s:i, s:o}, s:o}", "displayTimeUnit", "ns", "otherData", "rdtd_trace", 1, "nodes", nodes,
                    "traceEvents", events);
    failed = !all || json_dumpf(all, out, JSON_COMPACT | JSON_ENSURE_ASCII) < 0;
    json_decref(all);
    return failed ? rdt_error_set(err, RDT_NO_MEMORY, "there is no memory or room for the JSON") : RDT_OK;
}

/* ---- reading ---- */

static void copy_text(char *text_p, size_t size, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    (void)snprintf(text_p, size, "%s", text ? text : "");
}

static uint64_t number(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static enum rdt_status read_node(struct timeline *timeline, const json_t *json, struct rdt_error *err)
{
    struct timeline_node *node = &timeline->nodes[timeline->n_nodes];
    const json_t *clocks = json_object_get(json, "clocks");
    enum rdt_status status = RDT_OK;

    if (timeline->n_nodes == TIMELINE_NODES)
        return rdt_error_set(err, RDT_LIMIT, "one time line has at most %u nodes", TIMELINE_NODES);
    timeline->n_nodes++;
    copy_text(node->uuid, sizeof node->uuid, json, "uuid");
    copy_text(node->name, sizeof node->name, json, "name");
    for (size_t i = 0; i < json_array_size(clocks) && status == RDT_OK; i++) {
        struct timeline_clock clock = {.offset_ns = (int64_t)number(json_array_get(clocks, i), "offset_ns"),
                                       .rtt_ns = number(json_array_get(clocks, i), "rtt_ns")};
        copy_text(clock.node, sizeof clock.node, json_array_get(clocks, i), "node");
        status = timeline_add_clock(node, &clock, err);
    }
    return status;
}

static enum rdt_status read_event(struct timeline *timeline, const json_t *json, struct rdt_error *err)
{
    const json_t *args = json_object_get(json, "args");
    const char *phase = json_string_value(json_object_get(json, "ph"));
    const char *flow = json_string_value(json_object_get(args, "flow"));
    uint64_t pid = number(json, "pid");
    struct timeline_event event = {.at_ns = number(args, "at_ns"),
                                   .transfer = number(json, "tid"),
                                   .bytes = number(args, "bytes"),
                                   .flow = flow ? strtoull(flow, NULL, 16) : 0};

    if (!phase || (strcmp(phase, "X") != 0 && strcmp(phase, "i") != 0))
        return RDT_OK;
    if (pid == 0 || pid > timeline->n_nodes || !json_object_get(args, "at_ns"))
        return rdt_error_set(err, RDT_INVALID, "an event names a node that the file does not have, or no time");
    event.node = (unsigned)pid - 1;
    copy_text(event.stage, sizeof event.stage, json, "name");
    copy_text(event.direction, sizeof event.direction, json, "cat");
    copy_text(event.id, sizeof event.id, args, "object");
    copy_text(event.path, sizeof event.path, args, "path");
    copy_text(event.peer, sizeof event.peer, args, "peer");
    return timeline_add(timeline, &event, err);
}

enum rdt_status timeline_read(struct timeline *timeline, const char *path, struct rdt_error *err)
{
    json_error_t why;
    json_t *file = json_load_file(path, 0, &why);
    const json_t *other = json_object_get(file, "otherData"), *nodes = json_object_get(other, "nodes"),
                 *events = json_object_get(file, "traceEvents");
    enum rdt_status status = RDT_OK;

    if (!file)
        return rdt_error_set(err, RDT_INVALID, "%s: %s", path, why.text);
    if (!json_object_get(other, "rdtd_trace") || json_array_size(nodes) == 0)
        status = rdt_error_set(err, RDT_INVALID, "%s was not written by rdtctl trace", path);
    for (size_t i = 0; i < json_array_size(nodes) && status == RDT_OK; i++)
        status = read_node(timeline, json_array_get(nodes, i), err);
    for (size_t i = 0; i < json_array_size(events) && status == RDT_OK; i++)
        status = read_event(timeline, json_array_get(events, i), err);
    json_decref(file);
    return status;
}
