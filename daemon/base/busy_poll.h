/* SPDX-License-Identifier: Apache-2.0 */
/* Busy polling: before the loop sleeps, it looks for the next messages of clients and nodes for a while where that
 * pays (proto/poll_rule.h). The loop iterates without sleeping meanwhile, so timers, other sockets and threads are served as
 * usual.
 *
 *   sleeping -- messages were answered, and the rule says poll --> polling -- next message, or time over --> sleeping
 *
 * Everything here runs on the loop thread.
 */
#ifndef DAEMON_BUSY_POLL_H
#define DAEMON_BUSY_POLL_H

#include <stdbool.h>
#include <uv.h>

#include "poll_rule.h"

struct busy_poll {
    struct poll_rule rule;
    uv_idle_t idle; /* active: the loop does not sleep */
    int64_t until_ns;
    bool received; /* a message has arrived in this iteration */
};

/* max_ns 0: never polls. The handle does not keep the loop alive. */
void busy_poll_init(struct busy_poll *poll, uv_loop_t *loop, uint64_t max_ns);
void busy_poll_close(struct busy_poll *poll);

/* A message of a client or of another node has arrived. */
void busy_poll_received(struct busy_poll *poll);

/* Called from a prepare handle when the answers of this iteration have been sent and the loop is about to
 * sleep. */
void busy_poll_wait(struct busy_poll *poll);

#endif
