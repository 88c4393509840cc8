/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl explain: which path a transfer took, and why others were rejected. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/ctl/timeline/timeline.h"
#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"
#include "wire_ref.h"

static void print_where(const Rdt__Pb__TransferInfo *t)
{
    const char *peer = *t->peer ? t->peer : "another node";

    if (strcmp(t->direction, "in") == 0)
        printf("fetched from ");
    else if (strcmp(t->direction, "out") == 0)
        printf("sent to ");
    else
        peer = "handed over within this node";
    ctl_print_plain(peer, stdout);
}

static void print_candidates(const Rdt__Pb__TransferInfo *t)
{
    for (int chosen = 1; chosen >= 0; chosen--) {
        for (size_t i = 0; i < t->n_candidates; i++) {
            const Rdt__Pb__Candidate *c = t->candidates[i];

            if (c->chosen != chosen)
                continue;
            ctl_line("  %s %s%s%s", chosen ? "taken:    " : "not taken:", c->path, *c->reason ? ", " : "", c->reason);
        }
    }
    if (t->n_candidates == 0 && strchr(t->path, '/') && strcmp(t->direction, "in") == 0)
        printf("  moved by one sub-pull for each kind of memory: explain each of these transfers\n");
    else if (t->n_candidates == 0)
        printf("  the choice was not recorded on this node\n");
}

/* Who sent which bytes, in order. Bytes that came twice, because they were under way when their node was left, count twice. */
static void print_sources(const Rdt__Pb__TransferInfo *t)
{
    char bytes[CTL_HUMAN_BYTES];
    uint64_t sum = 0;

    for (size_t i = 0; i < t->n_sources; i++)
        sum += t->sources[i]->bytes;
    for (size_t i = 0; i < t->n_sources; i++)
        ctl_line("  from:      %s, %s (%.0f %%)%s%s", t->sources[i]->peer, ctl_human_bytes(t->sources[i]->bytes, bytes),
                 sum ? 100.0 * (double)t->sources[i]->bytes / (double)sum : 0, *t->sources[i]->left ? ", left: " : "",
                 t->sources[i]->left);
    if (*t->reader)
        ctl_line("  reader:    %s, with less than a third of the bytes that it could have had",
                 strcmp(t->reader, "slow") == 0 ? "SLOW for half a second" : "LAGS for several chunks");
}

/* How long each stage took, as `rdtctl trace` records them; "moving" says how fast. The trace forgets old transfers. */
static void print_stages(const Rdt__Pb__TransferInfo *t, const struct timeline *timeline)
{
    char took[CTL_HUMAN_BYTES], rate[CTL_HUMAN_BYTES];
    bool any = false;

    for (size_t i = 0; i < timeline->n; i++) {
        const struct timeline_event *stage = &timeline->events[i];
        bool moves = strcmp(stage->stage, "moving") == 0 || strcmp(stage->stage, "sending") == 0;

        if (stage->transfer != t->transfer || stage->ns == 0)
            continue;
        printf("%s%s %s", any ? ", " : "  stages:    ", stage->stage, ctl_human_duration((int64_t)stage->ns, took));
        if (moves && t->bytes_done > 0)
            printf(" (%s)", ctl_human_rate(t->bytes_done, (int64_t)stage->ns, rate));
        any = true;
    }
    if (any)
        putchar('\n');
}

static json_t *stages_json(const Rdt__Pb__TransferInfo *t, const struct timeline *timeline)
{
    json_t *array = json_array();

    for (size_t i = 0; i < timeline->n; i++)
        if (timeline->events[i].transfer == t->transfer && timeline->events[i].ns > 0)
            json_array_append_new(
                array, json_pack("{s:s, s:I}", "stage", timeline->events[i].stage, "ns", (json_int_t)timeline->events[i].ns));
    return array;
}

static void print(const Rdt__Pb__TransferInfo *t, const struct timeline *timeline)
{
    char id[160], state[32];
    char done[CTL_HUMAN_BYTES], total[CTL_HUMAN_BYTES], took[CTL_HUMAN_BYTES], rate[CTL_HUMAN_BYTES];
    int64_t ns = t->elapsed_ns > 0 ? t->elapsed_ns : t->age_ns;

    printf("transfer %" PRIu64 ": \"%s\" ", t->transfer, ctl_id_of(t->ref, id, sizeof id));
    print_where(t);
    printf(", %s\n", ctl_plain(t->state, state, sizeof state));
    ctl_line("  moved:     %s of %s in %s (%s)%s%s%s%s", ctl_human_bytes(t->bytes_done, done), ctl_human_bytes(t->bytes, total),
             ctl_human_duration(ns, took), ctl_human_rate(t->bytes_done, ns, rate), *t->path ? " by " : "", t->path,
             *t->route ? " over " : "", t->route);
    print_stages(t, timeline);
    if (*t->from_memory || t->parent)
        ctl_line("  sub-pull:  of transfer %" PRIu64 ", %s memory there to %s memory here", t->parent, t->from_memory,
                 t->to_memory);
    if (*t->waits)
        ctl_line("  waits:     %s", t->waits);
    print_sources(t);
    print_candidates(t);
    if (*t->error)
        ctl_line("  failed:    %s", t->error);
}

/* Why the object's tensors are no memory of its producer. All transfers of the list are of one object. */
static void print_refusal(struct ctl *ctl, const Rdt__Pb__ListReply *list)
{
    Rdt__Pb__Stat request = RDT__PB__STAT__INIT;
    Rdt__Pb__Ref wire = RDT__PB__REF__INIT;
    ProtobufCMessage *reply;
    struct rdt_error ignored;
    struct rdt_ref ref;

    if (list->n_transfers == 0 || strcmp(list->transfers[0]->direction, "in") == 0 ||
        rdt_ref_from_text(list->transfers[0]->ref, &ref, NULL) != RDT_OK)
        return;
    wire_ref_from(&ref, &wire);
    request.ref = &wire;
    if (ctl_call(ctl, RDT_MSG_STAT, &request.base, &reply, &ignored) != RDT_OK)
        return; /* it has ended */
    ctl_print_refusal((const Rdt__Pb__ObjectInfo *)reply, "  not shared: ");
    ctl_reply_free(reply);
}

int ctl_explain(struct ctl *ctl, int argc, char **argv)
{
    Rdt__Pb__Explain request = RDT__PB__EXPLAIN__INIT;
    Rdt__Pb__Ref ref_msg = RDT__PB__REF__INIT;
    const Rdt__Pb__ListReply *list;
    struct timeline timeline = {0};
    ProtobufCMessage *reply;
    struct rdt_error err = {0};
    struct rdt_ref ref;
    char **operands;
    int code = ctl_parse(ctl, NULL, argc, argv, 1, 1, &operands, NULL);

    if (code != CTL_GO)
        return code;
    if (!ctl_transfer(operands[0], &request.transfer)) {
        code = ctl_ref(ctl, operands[0], &ref);
        if (code != CTL_GO)
            return code;
        wire_ref_from(&ref, &ref_msg);
        request.ref = &ref_msg;
    }
    if (ctl_call(ctl, RDT_MSG_EXPLAIN, &request.base, &reply, &err))
        return ctl_fail(ctl, &err);
    list = (const Rdt__Pb__ListReply *)reply;
    if (ctl_stages(ctl, request.transfer, &timeline, &err)) {
        timeline_fini(&timeline);
        ctl_reply_free(reply);
        return ctl_fail(ctl, &err);
    }
    if (ctl->json) {
        json_t *array = json_array();

        for (size_t i = 0; i < list->n_transfers; i++) {
            json_t *row = ctl_json(&list->transfers[i]->base);

            json_object_set_new(row, "stages", stages_json(list->transfers[i], &timeline));
            json_array_append_new(array, row);
        }
        code = ctl_print_json(json_pack("{s:o}", "transfers", array));
    } else {
        for (size_t i = 0; i < list->n_transfers; i++)
            print(list->transfers[i], &timeline);
        print_refusal(ctl, list);
        if (list->n_transfers == 0)
            printf("this node has no record of a transfer of it\n");
        code = CTL_OK;
    }
    timeline_fini(&timeline);
    ctl_reply_free(reply);
    return code;
}
