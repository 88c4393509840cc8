/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/busy_poll.h"

/* Yields the processor once, to the client perhaps, before each look at the sockets. */
static void on_idle(uv_idle_t *idle)
{
    struct busy_poll *poll = idle->data;
    int64_t now_ns;
    bool crowded;

    if (poll->received)
        return; /* busy_poll_wait will start a new period */
    crowded = !poll_rule_yield(&now_ns);
    if (crowded)
        poll_rule_crowded(&poll->rule, now_ns);
    if (crowded || now_ns >= poll->until_ns)
        (void)uv_idle_stop(idle);
}

void busy_poll_wait(struct busy_poll *poll)
{
    int64_t now_ns, look_ns;

    if (!poll->received)
        return;
    poll->received = false;
    now_ns = (int64_t)uv_hrtime();
    look_ns = poll_rule_begin(&poll->rule, now_ns);
    poll->until_ns = now_ns + look_ns;
    if (look_ns > 0) {
        (void)uv_idle_start(&poll->idle, on_idle);
        on_idle(&poll->idle);
    } else {
        (void)uv_idle_stop(&poll->idle);
    }
}

void busy_poll_init(struct busy_poll *poll, uv_loop_t *loop, uint64_t max_ns)
{
    poll_rule_init(&poll->rule, (int64_t)max_ns);
    poll->received = false;
    (void)uv_idle_init(loop, &poll->idle);
    poll->idle.data = poll;
    uv_unref((uv_handle_t *)&poll->idle);
}

void busy_poll_close(struct busy_poll *poll)
{
    uv_close((uv_handle_t *)&poll->idle, NULL);
}

void busy_poll_received(struct busy_poll *poll)
{
    if (poll->received || poll->rule.max_ns == 0)
        return;
    poll->received = true;
    poll_rule_end(&poll->rule, (int64_t)uv_hrtime());
}
