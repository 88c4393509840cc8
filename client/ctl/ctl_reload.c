/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl reload: makes the daemon read its configuration again, and shows what that changes. */
#include <stdio.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"

static void print(const struct ctl *ctl, const Rdt__Pb__ReloadReply *reply, bool check)
{
    for (size_t i = 0; i < reply->n_changes; i++) {
        const Rdt__Pb__OptionChange *change = reply->changes[i];

        ctl_line("[%s] %s: %s -> %s%s", change->section, change->key, *change->before ? change->before : "(empty)",
                 *change->after ? change->after : "(empty)", change->applied ? "" : "   (at the next start of the daemon)");
    }
    if (reply->n_changes == 0 && !ctl->quiet)
        printf(check ? "a reload would change nothing\n" : "the configuration was reloaded; it has not changed\n");
}

int ctl_reload(struct ctl *ctl, int argc, char **argv)
{
    Rdt__Pb__Reload request = RDT__PB__RELOAD__INIT;
    struct rdt_error err = {0};
    ProtobufCMessage *reply;
    bool check = false;
    const struct ctl_option options[] = {
        {'n', "check", CTL_FLAG, NULL, "show what would change, and change nothing", &check},
        {0},
    };
    int code = ctl_parse(ctl, options, argc, argv, 0, 0, NULL, NULL);

    if (code != CTL_GO)
        return code;
    request.check = check;
    if (ctl_call(ctl, RDT_MSG_RELOAD, &request.base, &reply, &err))
        return ctl_fail(ctl, &err);
    if (ctl->json) {
        code = ctl_print_json(ctl_json(reply));
    } else {
        print(ctl, (const Rdt__Pb__ReloadReply *)reply, check);
        code = CTL_OK;
    }
    ctl_reply_free(reply);
    return code;
}
