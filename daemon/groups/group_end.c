/* SPDX-License-Identifier: Apache-2.0 */
/* The end of an epoch of a group, and of the group itself: the nodes that are told, and the waits for them. */
#include <stdarg.h>
#include <stdio.h>

#include "daemon/base/log.h"
#include "daemon/groups/group_impl.h"

#define STEADY_NS 10000000000ull /* an epoch that lasts longer than this ends a series of failures */

static void end_everywhere(struct group *group)
{
    for (uint32_t i = 0; i < group->n_nodes; i++) {
        struct group_node *node = &group->nodes[i];
        node->ended = node->peer->state != PEER_UP;
        if (!node->ended)
            group_send_word(group->groups, node->peer, RDT_PEER_GROUP_END, group->token, group->epoch, RDT_OK, "", false);
    }
    /* they need not wait for the end on the other nodes */
    if (group->end.reason.status != RDT_OK)
        group_notify_waiters(&group->forming, &group->end.reason);
    group_begin_end(group);
}

void group_fail(struct group *group, enum rdt_status status, const char *fmt, ...)
{
    struct rdt_error err = {.status = status};
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(err.msg, sizeof err.msg, fmt, args);
    va_end(args);
    if (!group->coordinator && !group->formed) {
        log_debug("group %s is not formed: %s", group->name, err.msg);
        group->end.reason = err;
        rdt_error_prefix(&group->end.reason, "group \"%s\" cannot be formed", group->name);
        end_everywhere(group);
        return;
    }
    if (group->sm.state == GROUP_READY && uv_hrtime() - group->since_ns > STEADY_NS)
        group->attempt.failures = 0;
    log_at(group->sm.state == GROUP_READY ? LOG_LEVEL_WARN : LOG_LEVEL_DEBUG,
           "group %s (%s, epoch %u) is taken down and rebuilt: %s", group->name, group->transport->name, group->epoch, err.msg);
    group->attempt.failures++;
    group->attempt.will_retry =
        !group->coordinator ? group->attempt.failures < 3 && !group_missing(group) : group->coordinator->state == PEER_UP;
    group_send_word_all(group, RDT_PEER_GROUP_FAILED, status, err.msg, group->attempt.will_retry);
    group_take_down(group, err.msg);
}

void group_break(struct group *group, const char *why)
{
    if (group->sm.state == GROUP_READY || group->sm.state == GROUP_FORMING)
        group_fail(group, RDT_TRANSPORT, "%s", why);
}

void group_check_end(struct group *group)
{
    if (group->sm.state != GROUP_ENDING || group->n_open > 0)
        return;
    for (uint32_t i = 0; i < group->n_nodes && !group->groups->closing; i++)
        if (!group->nodes[i].ended)
            return;
    if (!group->groups->closing)
        group_send_word_all(group, RDT_PEER_GROUP_ENDED, RDT_OK, "", false);
    group_free(group);
}

bool group_waits_for_coordinator(const struct group *group)
{
    return group->coordinator && !group->orphan && !list_empty(&group->ending) && group->coordinator->state == PEER_UP &&
           !group->groups->closing;
}

void group_end(struct group *group, struct group_waiter *waiter)
{
    if (waiter)
        list_append(&group->ending, &waiter->link);
    if (group->sm.state == GROUP_ENDING)
        return;
    if (!group->coordinator)
        end_everywhere(group);
    else if (group_waits_for_coordinator(group)) {
        group_send_word_all(group, RDT_PEER_GROUP_END, RDT_OK, "", false);
        group_set_deadline(group, 2 * group_patience_ns(group)); /* the coordinator's own deadline passes first */
    } else {
        group_begin_end(group);
    }
}

void group_waiter_remove(struct group *group, struct group_waiter *waiter)
{
    list_remove(&waiter->link);
    if (!group->formed && list_empty(&group->forming) && !group->coordinator)
        group_end(group, NULL);
}
