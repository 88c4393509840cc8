/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl explain: which path a transfer took, and why others were rejected. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

static void print(const Rdt__Pb__TransferInfo *t)
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

int ctl_explain(struct ctl *ctl, int argc, char **argv)
{
    Rdt__Pb__Explain request = RDT__PB__EXPLAIN__INIT;
    Rdt__Pb__Ref ref_msg = RDT__PB__REF__INIT;
    const Rdt__Pb__ListReply *list;
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
    if (ctl->json) {
        json_t *array = json_array();

        for (size_t i = 0; i < list->n_transfers; i++)
            json_array_append_new(array, ctl_json(&list->transfers[i]->base));
        code = ctl_print_json(json_pack("{s:o}", "transfers", array));
    } else {
        for (size_t i = 0; i < list->n_transfers; i++)
            print(list->transfers[i]);
        if (list->n_transfers == 0)
            printf("this node has no record of a transfer of it\n");
        code = CTL_OK;
    }
    ctl_reply_free(reply);
    return code;
}
