#include "daemon/base/busy_poll.h"

/* First somebody else, the client maybe, and then the sockets: once for each time that they are asked. */
static void on_turn(uv_idle_t *turns)
{
    struct busy_poll *poll = turns->data;
    int64_t now_ns;
    bool crowded;

    if (poll->heard)
        return; /* busy_poll_wait is about to begin anew */
    crowded = !poll_rule_yield(&now_ns);
    if (crowded)
        poll_rule_crowded(&poll->rule, now_ns);
    if (crowded || now_ns >= poll->until_ns)
        (void)uv_idle_stop(turns);
}

void busy_poll_wait(struct busy_poll *poll)
{
    int64_t now_ns, look_ns;

    if (!poll->heard)
        return;
    poll->heard = false;
    now_ns = (int64_t)uv_hrtime();
    look_ns = poll_rule_begin(&poll->rule, now_ns);
    poll->until_ns = now_ns + look_ns;
    if (look_ns > 0) {
        (void)uv_idle_start(&poll->turns, on_turn);
        on_turn(&poll->turns);
    } else {
        (void)uv_idle_stop(&poll->turns);
    }
}

void busy_poll_init(struct busy_poll *poll, uv_loop_t *loop, uint64_t max_ns)
{
    poll_rule_init(&poll->rule, (int64_t)max_ns);
    poll->heard = false;
    (void)uv_idle_init(loop, &poll->turns);
    poll->turns.data = poll;
    uv_unref((uv_handle_t *)&poll->turns);
}

void busy_poll_close(struct busy_poll *poll)
{
    uv_close((uv_handle_t *)&poll->turns, NULL);
}

void busy_poll_heard(struct busy_poll *poll)
{
    if (poll->heard || poll->rule.max_ns == 0)
        return;
    poll->heard = true;
    poll_rule_end(&poll->rule, (int64_t)uv_hrtime());
}
