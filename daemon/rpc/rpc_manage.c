/* SPDX-License-Identifier: Apache-2.0 */
/* LOG_LEVEL: what an administrator changes in the running daemon. */
#include "daemon/base/log.h"
#include "daemon/rpc/rpc_call.h"

enum rdt_status rpc_log_level(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__LogLevel *message = request;
    Rdt__Pb__LogLevelReply reply = RDT__PB__LOG_LEVEL_REPLY__INIT;
    enum log_level before = log_threshold, level = before;

    if (message->level[0] != '\0' && !log_level_parse(message->level, &level))
        return rdt_error_set(err, RDT_INVALID, "'%.32s' is no log level: expected error, warn, info, debug or trace",
                             message->level);
    if (level != before) {
        log_threshold = level;
        /* whatever the level, because it explains what the log has from here on, and what it lacks */
        log_write(LOG_LEVEL_INFO, "uid %u has changed the log level from %s to %s", call->account->owner.uid,
                  log_level_name(before), log_level_name(level));
    }
    reply.level = (char *)log_level_name(level);
    reply.before = (char *)log_level_name(before);
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}
