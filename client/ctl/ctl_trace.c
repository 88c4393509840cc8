/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl trace: a time line of transfers as a file, from the daemon or merged from the files of several nodes. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/timeline/timeline.h"
#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"

struct wanted {                /* which transfers */
    uint64_t transfer;         /* 0: all, or those of `ref` */
    const struct rdt_ref *ref; /* NULL: of all objects */
};

/* The same number on all nodes; 0 as long as the object is not known. */
static uint64_t flow_of(const Rdt__Pb__TraceRecord *record)
{
    return record->node && record->generation ? record->node ^ record->generation * UINT64_C(0x9e3779b97f4a7c15) : 0;
}

static bool is_wanted(const struct wanted *wanted, const Rdt__Pb__TraceRecord *record)
{
    size_t length = record->id.len;

    if (wanted->transfer)
        return record->transfer == wanted->transfer;
    if (!wanted->ref)
        return true;
    return length <= wanted->ref->id_bytes && memcmp(record->id.data, wanted->ref->id, length) == 0 &&
           (length == wanted->ref->id_bytes || length == 32) && /* records have the beginning of a longer id */
           (wanted->ref->generation == 0 || record->generation == 0 || wanted->ref->generation == record->generation);
}

static enum rdt_status add_record(struct timeline *timeline, const Rdt__Pb__TraceRecord *record, struct rdt_error *err)
{
    struct timeline_event event = {
        .at_ns = record->at_ns, .transfer = record->transfer, .flow = flow_of(record), .bytes = record->bytes};

    ctl_plain(record->stage, event.stage, sizeof event.stage);
    ctl_plain(record->direction, event.direction, sizeof event.direction);
    ctl_plain(record->path, event.path, sizeof event.path);
    ctl_plain(record->peer, event.peer, sizeof event.peer);
    (void)snprintf(event.id, sizeof event.id, "%.*s", (int)record->id.len, (const char *)record->id.data);
    return timeline_add(timeline, &event, err);
}

static enum rdt_status add_page(struct timeline *timeline, const Rdt__Pb__TraceReply *page, const struct wanted *wanted,
                                struct rdt_error *err)
{
    struct timeline_node *node = &timeline->nodes[0];
    enum rdt_status status = RDT_OK;

    if (timeline->n_nodes == 0) {
        timeline->n_nodes = 1;
        ctl_plain(page->node, node->uuid, sizeof node->uuid);
        ctl_plain(page->name, node->name, sizeof node->name);
    }
    for (size_t i = 0; i < page->n_clocks && status == RDT_OK; i++) {
        struct timeline_clock clock = {.offset_ns = page->clocks[i]->offset_ns, .rtt_ns = page->clocks[i]->rtt_ns};
        ctl_plain(page->clocks[i]->node, clock.node, sizeof clock.node);
        status = timeline_add_clock(node, &clock, err);
    }
    for (size_t i = 0; i < page->n_records && status == RDT_OK; i++)
        if (is_wanted(wanted, page->records[i]))
            status = add_record(timeline, page->records[i], err);
    return status;
}

static enum rdt_status ask(struct ctl *ctl, int64_t last_ns, const struct wanted *wanted, struct timeline *timeline,
                           struct rdt_error *err)
{
    Rdt__Pb__Trace request = RDT__PB__TRACE__INIT;
    enum rdt_status status;
    uint64_t next;

    request.last_ns = (uint64_t)last_ns;
    do {
        ProtobufCMessage *reply;
        status = ctl_call(ctl, RDT_MSG_TRACE, &request.base, &reply, err);
        if (status != RDT_OK)
            return status;
        status = add_page(timeline, (const Rdt__Pb__TraceReply *)reply, wanted, err);
        next = ((const Rdt__Pb__TraceReply *)reply)->next;
        ctl_reply_free(reply);
        if (next <= request.after)
            return status;
        request.after = next;
    } while (status == RDT_OK);
    return status;
}

enum rdt_status ctl_stages(struct ctl *ctl, uint64_t transfer, struct timeline *timeline, struct rdt_error *err)
{
    const struct wanted wanted = {.transfer = transfer};
    enum rdt_status status = ask(ctl, 0, &wanted, timeline, err);

    if (status == RDT_OK)
        timeline_finish(timeline);
    return status;
}

static enum rdt_status merge(char **files, int n, struct timeline *timeline, struct rdt_error *err)
{
    enum rdt_status status = timeline_read(timeline, files[0], err);

    for (int i = 1; i < n && status == RDT_OK; i++) {
        struct timeline other = {0};
        status = timeline_read(&other, files[i], err);
        if (status == RDT_OK)
            status = timeline_merge(timeline, &other, err);
        timeline_fini(&other);
    }
    return status;
}

static enum rdt_status save(struct timeline *timeline, const char *path, struct rdt_error *err)
{
    FILE *out = fopen(path, "we");
    enum rdt_status status;

    if (!out)
        return rdt_error_sys(err, errno, "cannot write %s", path);
    timeline_finish(timeline);
    status = timeline_write(timeline, out, err);
    if ((ferror(out) | fclose(out)) && status == RDT_OK)
        status = rdt_error_sys(err, errno, "cannot write %s", path);
    return status;
}

static int report(const struct ctl *ctl, const struct timeline *timeline, const char *path)
{
    size_t transfers = 0;

    for (size_t i = 0; i < timeline->n; i++)
        transfers += timeline->events[i].first;
    if (ctl->json)
        return ctl_print_json(json_pack("{s:o, s:I, s:I, s:i}", "file", ctl_json_text(path), "transfers", (json_int_t)transfers,
                                        "events", (json_int_t)timeline->n, "nodes", (int)timeline->n_nodes));
    if (!ctl->quiet)
        printf("%zu transfer%s (%zu event%s) of %u node%s\n", transfers, transfers == 1 ? "" : "s", timeline->n,
               timeline->n == 1 ? "" : "s", timeline->n_nodes, timeline->n_nodes == 1 ? "" : "s");
    return CTL_OK;
}

/* Reads TRANSFER or REF. */
static int parse_wanted(struct ctl *ctl, const char *text, struct wanted *wanted, struct rdt_ref *ref)
{
    if (ctl_transfer(text, &wanted->transfer))
        return CTL_GO;
    wanted->ref = ref;
    return ctl_ref(ctl, text, ref);
}

int ctl_trace(struct ctl *ctl, int argc, char **argv)
{
    const char *path = NULL, *format = "chrome";
    int64_t last_ns = 0;
    int n, code;
    bool merges = false;
    const struct ctl_option options[] = {
        {'o', "output", CTL_TEXT, "FILE", "the file to write", &path},
        {'l', "last", CTL_DURATION, "TIME", "only stages that began at most so long ago (all that are remembered)", &last_ns},
        {'f', "format", CTL_TEXT, "chrome", "Chrome's JSON, the only format", &format},
        {'m', "merge", CTL_FLAG, NULL, "merge files of several nodes", &merges},
        {0},
    };
    struct timeline timeline = {0};
    struct wanted wanted = {0};
    struct rdt_error err = {0};
    struct rdt_ref ref;
    char **operands;

    code = ctl_parse(ctl, options, argc, argv, 0, (int)TIMELINE_NODES, &operands, &n);
    if (code != CTL_GO)
        return code;
    if (strcmp(format, "chrome") != 0)
        return ctl_usage_error(ctl, "--format: the only format is chrome, which ui.perfetto.dev and chrome://tracing open");
    if (!path)
        return ctl_usage_error(ctl, "needs -o FILE");
    if (merges ? n < 2 : n > 1)
        return ctl_usage_error(ctl, merges ? "--merge needs two files or more" : "unexpected argument '%s'", operands[n > 1]);
    if (!merges && n == 1 && (code = parse_wanted(ctl, operands[0], &wanted, &ref)) != CTL_GO)
        return code;
    if ((merges ? merge(operands, n, &timeline, &err) : ask(ctl, last_ns < 0 ? 0 : last_ns, &wanted, &timeline, &err)) ||
        save(&timeline, path, &err))
        code = ctl_fail(ctl, &err);
    else
        code = report(ctl, &timeline, path);
    timeline_fini(&timeline);
    return code;
}
