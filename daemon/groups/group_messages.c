/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between the nodes of a group, except those of forming it, and what happens when a node does not
 * answer. */
#include <stdio.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "daemon/groups/group_impl.h"
#include "wire_ref.h"

#define SUSPECT_NS 100000000ll
#define RETRY_MIN_NS 50000000ll
#define RETRY_MAX_NS 5000000000ll

/* The failure may be a consequence of the end of the group or of a node, so the message about that gets SUSPECT_NS to
 * arrive. */
static void failed_here(struct group *group, enum rdt_status status, const char *why)
{
    if ((group->sm.state != GROUP_FORMING && group->sm.state != GROUP_READY) || group->attempt.suspicion.status != RDT_OK)
        return;
    (void)rdt_error_set(&group->attempt.suspicion, status == RDT_OK ? RDT_TRANSPORT : status, "%s", why);
    if (!group->coordinator || list_empty(&group->ending)) /* otherwise others have closed it because it ends */
        group_set_deadline(group, SUSPECT_NS);
}

static void went_down(struct group *group)
{
    int64_t wait_ns = RETRY_MIN_NS << (group->attempt.failures < 8 ? group->attempt.failures : 8);

    if (group->groups->closing)
        return;
    if (group->coordinator) {
        uint32_t epoch = group->attempt.next_epoch;
        group->attempt.next_epoch = 0;
        if (epoch > group->epoch)
            group_form_here(group, epoch);
        else if (group->attempt.will_retry || !list_empty(&group->ending))
            group_set_deadline(group, (list_empty(&group->ending) ? 1 : 2) * group_patience_ns(group));
    } else if (group->attempt.failures <= 1 && !group_missing(group)) {
        group_begin(group);
    } else {
        group_set_deadline(group, wait_ns < RETRY_MAX_NS ? wait_ns : RETRY_MAX_NS);
    }
}

static void connected_here(struct group *group)
{
    if (group->coordinator)
        group_send_word_all(group, RDT_PEER_GROUP_READY, RDT_OK, "", false);
    else
        group_check_ready(group);
}

static enum rdt_status on_ready(struct groups *groups, struct peer *peer, const void *from, struct rdt_error *err)
{
    const Rdt__Pb__GroupStatus *word = from;
    struct group *group = group_by_token(groups, word->token.data, word->token.len);
    struct group_node *node;

    if (!group || group->sm.state != GROUP_FORMING || group->epoch != word->epoch)
        return RDT_OK;
    if (group->coordinator == peer && group->attempt.connected && group->attempt.suspicion.status == RDT_OK) {
        deadline_unset(groups->deadlines, &group->deadline);
        group->attempt.failures = 0;
        group_set_state(group, GROUP_READY);
    } else if (!group->coordinator && (node = group_node_of(group, peer)) != NULL && node->accepted) {
        node->ready = true;
        group_check_ready(group);
    }
    return RDT_OK;
}

/* The group is down here for a reason noticed here. The coordinator knows the real reason, and whether the
 * group will be formed again soon. */
static void set_reason(struct group *group, const char *why, bool again)
{
    text_copy(group->why, sizeof group->why, why);
    if (again && !group->attempt.will_retry && group->sm.state == GROUP_DOWN && list_empty(&group->ending))
        group_set_deadline(group, group_patience_ns(group));
    group->attempt.will_retry = again;
}

static enum rdt_status on_failed(struct groups *groups, struct peer *peer, const void *from, struct rdt_error *err)
{
    const Rdt__Pb__GroupStatus *word = from;
    struct group *group = group_by_token(groups, word->token.data, word->token.len);
    struct rdt_error why = {0};

    if (word->token.len != sizeof group->token)
        return rdt_error_set(err, RDT_PROTOCOL, "a group's token has %zu bytes, not 16", word->token.len);
    if (!group) /* the sender has not learned that the group has ended */
        group_send_word(groups, peer, RDT_PEER_GROUP_ENDED, word->token.data, word->epoch, RDT_OK, "", false);
    if (!group || group->epoch != word->epoch)
        return RDT_OK;
    (void)wire_error(word->status == RDT_OK ? RDT_TRANSPORT : word->status, 0, word->message, &why);
    if (group->sm.state != GROUP_FORMING && group->sm.state != GROUP_READY) {
        if (group->coordinator == peer && group->sm.state != GROUP_ENDING)
            set_reason(group, why.msg, word->again);
    } else if (group->coordinator == peer) {
        log_at(group->sm.state == GROUP_READY ? LOG_LEVEL_WARN : LOG_LEVEL_DEBUG,
               "group %s (%s, epoch %u) is taken down and rebuilt: %s", group->name, group->transport->name, group->epoch,
               why.msg);
        group->attempt.will_retry = word->again;
        group_take_down(group, why.msg);
    } else if (!group->coordinator && group_node_of(group, peer)) {
        group_fail(group, why.status, "node %s: %s", peer->name, why.msg);
    }
    return RDT_OK;
}

static void closed_here(struct group *group)
{
    if (!group->coordinator) {
        group_set_deadline(group, group_patience_ns(group));
        group_check_end(group);
        return;
    }
    if (!group->groups->closing)
        group_send_word_all(group, RDT_PEER_GROUP_ENDED, RDT_OK, "", false);
    if (group_waits_for_coordinator(group))
        group_set_deadline(group, group_patience_ns(group));
    else
        group_free(group);
}

static enum rdt_status on_end(struct groups *groups, struct peer *peer, const void *from, struct rdt_error *err)
{
    const Rdt__Pb__GroupStatus *word = from;
    struct group *group = group_by_token(groups, word->token.data, word->token.len);

    if (word->token.len != sizeof group->token)
        return rdt_error_set(err, RDT_PROTOCOL, "a group's token has %zu bytes, not 16", word->token.len);
    if (!group)
        group_send_word(groups, peer, RDT_PEER_GROUP_ENDED, word->token.data, word->epoch, RDT_OK, "", false);
    else if (group->sm.state == GROUP_ENDING)
        return RDT_OK; /* the answer is on its way */
    else if (group->coordinator == peer)
        group_begin_end(group);
    else if (!group->coordinator && group_node_of(group, peer))
        group_end(group, NULL);
    return RDT_OK;
}

static enum rdt_status on_ended(struct groups *groups, struct peer *peer, const void *from, struct rdt_error *err)
{
    const Rdt__Pb__GroupStatus *word = from;
    struct group *group = group_by_token(groups, word->token.data, word->token.len);
    struct group_node *node = group && !group->coordinator ? group_node_of(group, peer) : NULL;

    if (node) {
        node->ended = true;
        if (group->epoch == word->epoch && (group->sm.state == GROUP_FORMING || group->sm.state == GROUP_READY))
            group_fail(group, RDT_TRANSPORT, "node %s has ended it", peer->name);
        else
            group_check_end(group);
    } else if (group && group->coordinator == peer) {
        if (group->sm.state != GROUP_ENDING)
            group_begin_end(group); /* the coordinator did not know the group */
        else if (group->n_open == 0)
            group_free(group);
    }
    return RDT_OK;
}

/* FORMING: the error names the node that is missing. */
static void on_form_timeout(struct group *group)
{
    double seconds = (double)(uv_hrtime() - group->since_ns) / 1e9;
    const struct group_member *away = group_missing(group);
    const struct group_node *late = NULL;

    if (away) {
        group_fail(group, RDT_TIMED_OUT, "node %s could not be reached within %.1f s", away->peer->name, seconds);
        return;
    }
    if (group->coordinator && (group->attempt.proposed || group->attempt.connected)) {
        group_fail(group, RDT_TIMED_OUT, "node %s, which coordinates it, has not reported within %.1f s that all %s",
                   group->coordinator->name, seconds, group->attempt.connected ? "are connected" : "take part");
        return;
    }
    for (uint32_t i = 0; i < group->n_nodes; i++)
        if (!late || (late->accepted && (!group->nodes[i].accepted || (late->ready && !group->nodes[i].ready))))
            late = &group->nodes[i]; /* a node that has not answered prevents the others from connecting */
    if (late && !late->ready) {
        group_fail(group, RDT_TIMED_OUT, "node %s did not %s within %.1f s", late->peer->name,
                   late->accepted ? "connect" : "answer", seconds);
        return;
    }
    group_fail(group, RDT_TIMED_OUT, "%s did not connect within %.1f s", group->transport->name, seconds);
}

/* ENDING: notifies the waiters. The group exists until its transport has closed it. */
static void on_end_timeout(struct group *group)
{
    double seconds = (double)(uv_hrtime() - group->since_ns) / 1e9;
    struct rdt_error why = {.status = RDT_OK};

    if (group->n_open > 0)
        (void)rdt_error_set(&why, RDT_TIMED_OUT, "%s has not closed group \"%s\" here within %.1f s", group->transport->name,
                            group->name, seconds);
    else if (group->coordinator)
        (void)rdt_error_set(
            &why, RDT_TIMED_OUT,
            "group \"%s\" has ended here, but node %s has not reported within %.1f s that it has ended elsewhere", group->name,
            group->coordinator->name, seconds);
    for (uint32_t i = 0; i < group->n_nodes; i++) {
        if (why.status == RDT_OK && !group->nodes[i].ended)
            (void)rdt_error_set(&why, RDT_TIMED_OUT, "group \"%s\" has ended here, but node %s has not closed it within %.1f s",
                                group->name, group->nodes[i].peer->name, seconds);
        group->nodes[i].ended = true; /* nobody waits for it any longer */
    }
    group_notify_waiters(&group->ending, why.status != RDT_OK ? &why : NULL);
    if (group->coordinator && group->n_open == 0)
        group_free(group);
    else if (!group->coordinator)
        group_check_end(group);
}

/* A client of this node destroys the group, and the coordinator, whose link is up, does not. */
static void on_coordinator_timeout(struct group *group)
{
    struct rdt_error why;

    (void)rdt_error_set(&why, RDT_TIMED_OUT,
                        "node %s, where group \"%s\" was created, did not destroy it within %.1f s: it ends here",
                        group->coordinator->name, group->name, 2 * (double)group_patience_ns(group) / 1e9);
    group_notify_waiters(&group->ending, &why);
    group_begin_end(group);
}

static void on_deadline(struct deadline *deadline)
{
    struct group *group = container_of(deadline, struct group, deadline);

    if (group->coordinator && !list_empty(&group->ending) && group->sm.state != GROUP_ENDING) {
        on_coordinator_timeout(group);
        return;
    }
    if (group->attempt.suspicion.status != RDT_OK && (group->sm.state == GROUP_FORMING || group->sm.state == GROUP_READY)) {
        group_fail(group, group->attempt.suspicion.status, "%s", group->attempt.suspicion.msg);
        return;
    }
    switch ((enum group_state)group->sm.state) {
    case GROUP_FORMING:
        if (group->epoch == 0)
            group_begin(group);
        else
            on_form_timeout(group);
        return;
    case GROUP_DOWN:
        if (group->coordinator && group->attempt.will_retry)
            (void)snprintf(group->why, sizeof group->why,
                           "node %s, which coordinates it, has not begun to form it again within %.1f s",
                           group->coordinator->name, (double)group_patience_ns(group) / 1e9);
        group->attempt.will_retry = false;
        if (!group->coordinator)
            group_begin(group);
        return;
    case GROUP_CLOSING: /* it continues when the transport has closed the group, if ever */
        (void)snprintf(group->why, sizeof group->why, "%s has not closed epoch %u within %.1f s", group->transport->name,
                       group->epoch, (double)group_patience_ns(group) / 1e9);
        log_warn("group %s is stuck: %s", group->name, group->why);
        group->end.stuck = true;
        return;
    case GROUP_ENDING:
        on_end_timeout(group);
        return;
    case GROUP_READY:
        return;
    }
}

static bool has_node(const struct group *group, const struct peer *peer)
{
    for (uint32_t i = 0; i < group->n_members; i++)
        if (group->members[i].peer == peer)
            return true;
    return false;
}

void groups_peer_up(struct groups *groups, struct peer *peer, bool boot_changed)
{
    list_each_safe (struct group, group, &groups->all, link) {
        if (group->coordinator == peer && boot_changed && group->sm.state != GROUP_ENDING) {
            group->orphan = true;
            group->attempt.will_retry = false;
            (void)snprintf(group->why, sizeof group->why,
                           "node %s, where it was created, has restarted: destroy it and create it again", peer->name);
        } else if (group->coordinator == peer && group->sm.state != GROUP_ENDING) {
            /* The coordinator may have ended the group while the link was down; if so, it answers that. */
            group_send_word_all(group, RDT_PEER_GROUP_FAILED, RDT_PEER_LOST, "the link was down", false);
        }
        if (group->coordinator || !(has_node(group, peer) || group->restored))
            continue;
        if (group->sm.state == GROUP_FORMING && group->epoch > 0) {
            group_propose(group);
        } else if (group->sm.state == GROUP_DOWN) {
            group->attempt.failures = 0;
            group_begin(group);
        }
    }
}

static void coordinator_lost(struct group *group, const struct rdt_error *why)
{
    char text[256];

    group->attempt.will_retry = false;
    group->attempt.next_epoch = 0;
    (void)snprintf(text, sizeof text, "its coordinator's %.230s", why->msg);
    if (group->sm.state != GROUP_FORMING && group->sm.state != GROUP_READY) {
        text_copy(group->why, sizeof group->why, text);
    } else {
        log_at(group->sm.state == GROUP_READY ? LOG_LEVEL_WARN : LOG_LEVEL_DEBUG, "group %s (%s, epoch %u) is down: %s",
               group->name, group->transport->name, group->epoch, text);
        group_take_down(group, text);
    }
    if (list_empty(&group->ending) && group->formed)
        return;
    if (group->sm.state != GROUP_ENDING)
        group_begin_end(group); /* it ends on this node at least; a group that was never formed will not be */
    else if (group->n_open == 0)
        group_free(group);
}

void groups_peer_down(struct groups *groups, struct peer *peer, const struct rdt_error *why)
{
    list_each_safe (struct group, group, &groups->all, link) {
        struct group_node *there = group->coordinator ? NULL : group_node_of(group, peer);
        if (group->coordinator == peer) {
            coordinator_lost(group, why);
        } else if (group->sm.state == GROUP_ENDING) {
            if (there)
                there->ended = true;
            if (!group->coordinator) /* otherwise the coordinator reports the end */
                group_check_end(group);
        } else if (!group->coordinator && has_node(group, peer) &&
                   (group->sm.state == GROUP_FORMING || group->sm.state == GROUP_READY)) {
            group_fail(group, RDT_PEER_LOST, "%s", why->msg);
        } else if (!group->coordinator && has_node(group, peer)) { /* the real reason, whatever was noticed first */
            text_copy(group->why, sizeof group->why, why->msg);
            group->attempt.will_retry = false;
            group_send_word_all(group, RDT_PEER_GROUP_FAILED, RDT_PEER_LOST, why->msg, false);
        }
    }
}

/* A member whose node was given by uuid stays on that node. */
static bool may_move(const struct group_member *member, const struct peer *from)
{
    static const uint8_t no_uuid[16];

    return member->peer == from && (memcmp(from->uuid, no_uuid, 16) == 0 || memcmp(member->node, no_uuid, 16) == 0);
}

void groups_peer_merged(struct groups *groups, struct peer *from, struct peer *into)
{
    list_each_safe (struct group, group, &groups->all, link) {
        bool changed = false;
        for (uint32_t i = 0; i < group->n_members; i++)
            if (may_move(&group->members[i], from)) {
                group->members[i].peer = into;
                changed = true;
            }
        if (changed && group->sm.state == GROUP_FORMING && group->epoch > 0)
            group_propose(group);
    }
}

bool groups_name_peer(const struct groups *groups, const struct peer *peer)
{
    list_each (const struct group, group, &groups->all, link)
        if (group->coordinator == peer || has_node(group, peer) || group_node_of(group, peer))
            return true;
    return false;
}

typedef enum rdt_status (*handler)(struct groups *groups, struct peer *peer, const void *message, struct rdt_error *err);

static const handler handlers[] = {
    [RDT_PEER_GROUP_PROPOSE] = group_on_propose, [RDT_PEER_GROUP_ACCEPT] = group_on_accept,
    [RDT_PEER_GROUP_COMMIT] = group_on_commit,   [RDT_PEER_GROUP_READY] = on_ready,
    [RDT_PEER_GROUP_FAILED] = on_failed,         [RDT_PEER_GROUP_END] = on_end,
    [RDT_PEER_GROUP_ENDED] = on_ended,
};

bool groups_message_is_ours(enum rdt_peer_message type)
{
    return type < sizeof handlers / sizeof handlers[0] && handlers[type];
}

enum rdt_status groups_on_message(struct groups *groups, struct peer *peer, const struct peer_message *message,
                                  struct rdt_error *err)
{
    return groups->closing ? RDT_OK : handlers[message->type](groups, peer, message->body, err);
}

/* ---- the course of a group ---- */

static const struct group_course course = {.on_connected = connected_here,
                                           .on_failed = failed_here,
                                           .on_down = went_down,
                                           .on_closed = closed_here,
                                           .on_deadline = on_deadline};

void groups_init(struct groups *groups)
{
    list_init(&groups->all);
    groups->next_number = 1;
    groups->course = &course;
}
