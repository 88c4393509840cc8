/* The loop looks for its clients' next messages before it sleeps, where that pays (proto/poll_rule.h): meanwhile it turns without waiting, so
 * that timers, other sockets and threads that wake it are served as ever.
 *
 *   sleeps -- a turn's messages are answered, and the rule wants to look --> turns -- the next message, the time is over --> sleeps
 *
 * Loop thread only.
 */
#ifndef DAEMON_BUSY_POLL_H
#define DAEMON_BUSY_POLL_H

#include <stdbool.h>
#include <uv.h>

#include "poll_rule.h"

struct busy_poll {
    struct poll_rule rule;
    uv_idle_t turns; /* active: the loop does not wait */
    int64_t until_ns;
    bool heard; /* in this turn */
};

/* max_ns 0: it never looks. It keeps no loop alive. */
void busy_poll_init(struct busy_poll *poll, uv_loop_t *loop, uint64_t max_ns);
void busy_poll_close(struct busy_poll *poll);

/* A client said something. */
void busy_poll_heard(struct busy_poll *poll);

/* In a prepare handle, when the answers of the turn are on their way: the loop is about to wait. */
void busy_poll_wait(struct busy_poll *poll);

#endif
