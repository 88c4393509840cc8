/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl drain: makes the daemon refuse new objects, and waits until a stop would lose nothing. */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_progress.h"
#include "proto/plain_text.h"
#include "rdt.pb-c.h"

#define DRAIN_TIMEOUT_NS (INT64_C(30) * 1000000000)
#define LOOK_MS 100

struct work_left { /* what a stop would lose */
    uint32_t transfers, clients;
    uint64_t objects, kept;
};

static enum rdt_status look(struct ctl *ctl, struct work_left *left_p, struct rdt_error *err)
{
    Rdt__Pb__Status request = RDT__PB__STATUS__INIT;
    const Rdt__Pb__StatusReply *status;
    ProtobufCMessage *reply;
    /* --timeout is for the work that is left, not for the question. */
    enum rdt_status result = ctl_call_within(ctl, CTL_DEFAULT_TIMEOUT_NS, RDT_MSG_STATUS, &request.base, &reply, err);

    if (result != RDT_OK)
        return result;
    status = (const Rdt__Pb__StatusReply *)reply;
    *left_p = (struct work_left){.transfers = status->transfers_active,
                                 .clients = status->clients > 0 ? status->clients - 1 : 0,
                                 .objects = status->objects > status->kept_objects ? status->objects - status->kept_objects : 0,
                                 .kept = status->kept_objects};
    ctl_reply_free(reply);
    return RDT_OK;
}

static int report(struct ctl *ctl, const struct work_left *left, bool done)
{
    if (ctl->json)
        return ctl_print_json(json_pack("{s:b, s:I, s:I, s:I, s:I}", "drained", done, "transfers", (json_int_t)left->transfers,
                                        "objects", (json_int_t)left->objects, "kept_objects", (json_int_t)left->kept, "clients",
                                        (json_int_t)left->clients));
    if (!ctl->quiet && done)
        printf("drained: a stop loses nothing; %" PRIu64 " object%s survive%s it, %" PRIu32 " client%s connected\n", left->kept,
               text_plural(left->kept), left->kept == 1 ? "s" : "", left->clients, left->clients == 1 ? " is" : "s are");
    return CTL_OK;
}

int ctl_drain(struct ctl *ctl, int argc, char **argv)
{
    bool undo = false;
    const struct ctl_option options[] = {
        {0, "undo", CTL_FLAG, NULL, "take new objects again", &undo},
        {0},
    };
    Rdt__Pb__Drain request = RDT__PB__DRAIN__INIT;
    struct work_left left = {0};
    struct rdt_error err = {0};
    ProtobufCMessage *reply;
    int64_t deadline_ns;
    int code = ctl_parse(ctl, options, argc, argv, 0, 0, NULL, NULL);

    if (code != CTL_GO)
        return code;
    request.undo = undo;
    if (ctl_call_within(ctl, CTL_DEFAULT_TIMEOUT_NS, RDT_MSG_DRAIN, &request.base, &reply, &err))
        return ctl_fail(ctl, &err);
    ctl_reply_free(reply);
    if (undo) {
        if (!ctl->json && !ctl->quiet)
            printf("the daemon takes new objects again\n");
        return CTL_OK;
    }
    deadline_ns = ctl_timeout(ctl, DRAIN_TIMEOUT_NS);
    deadline_ns = deadline_ns < 0 ? INT64_MAX : ctl_now_ns() + deadline_ns;
    while (look(ctl, &left, &err) == RDT_OK) {
        if (left.transfers == 0 && left.objects == 0)
            return report(ctl, &left, true);
        if (ctl->timeout == CTL_NO_WAIT || ctl_now_ns() >= deadline_ns) {
            code = report(ctl, &left, false);
            rdt_error_set(&err, RDT_TIMED_OUT,
                          "%" PRIu32 " transfer%s, and a stop would lose %" PRIu64
                          " object%s: `rdtctl objects` shows whose. The daemon still takes no new ones",
                          left.transfers, left.transfers == 1 ? " runs" : "s run", left.objects, text_plural(left.objects));
            return code == CTL_OK && !ctl->json ? ctl_fail(ctl, &err) : CTL_TIMED_OUT;
        }
        (void)poll(NULL, 0, LOOK_MS);
    }
    return ctl_fail(ctl, &err);
}
