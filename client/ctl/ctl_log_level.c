/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl log-level: shows or changes what the running daemon logs. */
#include <stdio.h>

#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"
#include "rdt.pb-c.h"

int ctl_log_level(struct ctl *ctl, int argc, char **argv)
{
    Rdt__Pb__LogLevel request = RDT__PB__LOG_LEVEL__INIT;
    const Rdt__Pb__LogLevelReply *levels;
    struct rdt_error err = {0};
    ProtobufCMessage *reply;
    char now[16], before[16], **words;
    int count, code = ctl_parse(ctl, NULL, argc, argv, 0, 1, &words, &count);

    if (code != CTL_GO)
        return code;
    if (count == 1 && words[0][0] == '\0')
        return ctl_usage_error(ctl, "the level is empty");
    if (count == 1)
        request.level = words[0];
    if (ctl_call(ctl, RDT_MSG_LOG_LEVEL, &request.base, &reply, &err))
        return ctl_fail(ctl, &err);
    levels = (const Rdt__Pb__LogLevelReply *)reply;
    (void)ctl_plain(levels->level, now, sizeof now);
    (void)ctl_plain(levels->before, before, sizeof before);
    if (ctl->json)
        code = ctl_print_json(ctl_json(reply));
    else
        code = CTL_OK;
    if (!ctl->json && count == 0)
        printf("the log level is %s\n", now);
    else if (!ctl->json && !ctl->quiet)
        printf("the log level is %s now; it was %s\n", now, before);
    ctl_reply_free(reply);
    return code;
}
