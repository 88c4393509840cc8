/* SPDX-License-Identifier: Apache-2.0 */
/* One node's view of its groups: states, members, and this node's ranks in the plug-in. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/random.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "daemon/groups/group_impl.h"

#define BIT(state) (1u << (state))

static const struct sm_state states[] = {
    [GROUP_FORMING] = {"forming", BIT(GROUP_READY) | BIT(GROUP_CLOSING) | BIT(GROUP_DOWN) | BIT(GROUP_ENDING)},
    [GROUP_READY] = {"ready", BIT(GROUP_CLOSING) | BIT(GROUP_DOWN) | BIT(GROUP_ENDING)},
    [GROUP_CLOSING] = {"closing", BIT(GROUP_DOWN) | BIT(GROUP_ENDING)},
    [GROUP_DOWN] = {"down", BIT(GROUP_FORMING) | BIT(GROUP_ENDING)},
    [GROUP_ENDING] = {"ending", 0},
};

/* ---- look-ups ---- */

struct group *group_find(const struct groups *groups, const struct owner *owner, const char *name)
{
    list_each (struct group, group, &groups->all, link)
        if (group->sm.state != GROUP_ENDING && strcmp(group->name, name) == 0 && owner_equal(&group->owner, owner))
            return group;
    return NULL;
}

struct group *group_by_token(const struct groups *groups, const uint8_t *token, size_t bytes)
{
    list_each (struct group, group, &groups->all, link)
        if (bytes == sizeof group->token && memcmp(group->token, token, bytes) == 0)
            return group;
    return NULL;
}

struct group *group_forming_now(struct groups *groups, const ProtobufCBinaryData *token, uint32_t epoch)
{
    struct group *group = group_by_token(groups, token->data, token->len);

    return group && group->sm.state == GROUP_FORMING && group->attempt.proposed && group->epoch == epoch ? group : NULL;
}

bool group_has(const struct group *group, const uint8_t node[16], const char *client, uint32_t *rank_p)
{
    for (uint32_t i = 0; i < group->n_members; i++) {
        const struct group_member *member = &group->members[i];
        if (memcmp(member->node, node, 16) != 0 || (client && strcmp(member->client, client) != 0))
            continue;
        if (rank_p)
            *rank_p = member->rank;
        return true;
    }
    return false;
}

struct group_rank *group_rank_here(const struct group *group)
{
    for (uint32_t i = 0; i < group->n_ranks; i++)
        if (group->ranks[i].here)
            return &group->ranks[i];
    return NULL;
}

struct group_rank *group_rank_for(const struct group *group, const uint8_t node[16], const char *device, const char *client)
{
    uint32_t rank;

    if (!group->ranks)
        return NULL;
    if (device[0] == '\0')
        return (client && group_has(group, node, client, &rank)) || group_has(group, node, NULL, &rank) ? &group->ranks[rank]
                                                                                                        : NULL;
    for (rank = 0; rank < group->n_ranks; rank++)
        if (memcmp(group->ranks[rank].node, node, 16) == 0 && group_rank_serves(&group->ranks[rank], device))
            return &group->ranks[rank];
    return NULL;
}

bool group_will_be_ready(const struct group *group)
{
    return group->sm.state == GROUP_FORMING || (group->sm.state == GROUP_CLOSING && !group->end.stuck) ||
           (group->sm.state == GROUP_DOWN && group->attempt.will_retry);
}

const char *group_state_name(const struct group *group)
{
    return group->formed && group_will_be_ready(group) ? "rebuilding" : sm_name(&group->sm);
}

/* ---- life ---- */

static void change(struct group *group, enum group_change what)
{
    if (group->groups->callbacks.on_change)
        group->groups->callbacks.on_change(group->groups->callbacks.arg, group, what);
}

void group_set_state(struct group *group, enum group_state state)
{
    sm_move(&group->sm, state);
    group->since_ns = uv_hrtime();
    group->end.stuck = false;
    if (state == GROUP_READY) {
        /* Users may form any number of groups, so only a group that comes back after a loss gets a line. */
        log_at(group->formed ? LOG_LEVEL_INFO : LOG_LEVEL_DEBUG, "group %s (%s, epoch %u) is ready: %u members, %u ranks",
               group->name, group->transport->name, group->epoch, group->n_members, group->n_ranks);
        group->why[0] = '\0';
        group->formed = true;
        group_keep(group);
        change(group, GROUP_OPENED);
    }
    event(group->groups->events, RDT__PB__LIST_KIND__LIST_KIND_GROUPS,
          state == GROUP_CLOSING  ? "broken"
          : state == GROUP_ENDING ? "ending"
                                  : sm_name(&group->sm),
          group);
}

/* Ends a group whose coordinator has restarted and so does not know it. owner NULL: of any owner. */
static void drop_orphan(struct groups *groups, const struct owner *owner)
{
    list_each_safe (struct group, group, &groups->all, link) {
        if (group->orphan && group->sm.state == GROUP_DOWN && (!owner || owner_equal(&group->owner, owner))) {
            group_begin_end(group);
            return;
        }
    }
}

struct group *group_new(struct groups *groups, const struct owner *owner, const char *name, struct transport *transport,
                        uint32_t n_members, struct rdt_error *err)
{
    struct account *account;
    struct group *group;

    if (groups->n >= GROUPS_MAX)
        drop_orphan(groups, NULL);
    if (groups->n >= GROUPS_MAX) {
        (void)rdt_error_set(err, RDT_LIMIT, "this node has %u groups, which is the limit: destroy one", GROUPS_MAX);
        return NULL;
    }
    account = account_get(groups->accounts, owner);
    if (!account) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for group \"%s\"", name);
        return NULL;
    }
    if (account_check(account, USAGE_GROUPS, 1, NULL) != RDT_OK)
        drop_orphan(groups, owner);
    if (account_take(account, USAGE_GROUPS, 1, err) != RDT_OK) {
        account_unref(account);
        return NULL;
    }
    group = calloc(1, sizeof *group);
    if (group)
        group->members = calloc(n_members, sizeof *group->members);
    if (!group || !group->members || getrandom(group->token, sizeof group->token, 0) != (ssize_t)sizeof group->token) {
        if (group)
            free(group->members);
        free(group);
        account_give(account, USAGE_GROUPS, 1);
        account_unref(account);
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for group \"%s\"", name);
        return NULL;
    }
    group->groups = groups;
    group->number = groups->next_number++;
    group->owner = *owner;
    group->account = account;
    text_copy(group->name, sizeof group->name, name);
    group->transport = transport;
    group->n_members = n_members;
    group->since_ns = uv_hrtime();
    sm_init(&group->sm, states, sizeof states / sizeof states[0], GROUP_FORMING);
    list_init(&group->forming);
    list_init(&group->ending);
    list_init(&group->connections);
    list_append(&groups->all, &group->link);
    groups->n++;
    return group;
}

void group_notify_waiters(struct list *waiters, const struct rdt_error *err)
{
    list_drain (struct group_waiter, waiter, waiters, link) {
        list_remove(&waiter->link);
        waiter->on_done(waiter, err);
    }
}

static void free_offers(struct group *group)
{
    for (uint32_t i = 0; i < group->n_ranks; i++) {
        free(group->ranks[i].blob);
        group->ranks[i].blob = NULL;
        group->ranks[i].blob_bytes = 0;
    }
}

void group_free(struct group *group)
{
    struct groups *groups = group->groups;
    struct rdt_error why = group->end.reason;

    assert(group->n_open == 0);
    if (why.status == RDT_OK)
        (void)rdt_error_set(&why, RDT_CANCELLED, "group \"%s\" was destroyed before it was formed", group->name);
    log_debug("group %s is gone", group->name);
    event(groups->events, RDT__PB__LIST_KIND__LIST_KIND_GROUPS, "gone", group);
    change(group, GROUP_GONE);
    list_remove(&group->link);
    groups->n--;
    deadline_unset(groups->deadlines, &group->deadline);
    group_notify_waiters(&group->forming, &why);
    group_notify_waiters(&group->ending, NULL);
    free_offers(group);
    account_give(group->account, USAGE_GROUPS, 1);
    account_unref(group->account);
    free(group->ranks);
    free(group->nodes);
    free(group->members);
    free(group);
    if (groups->closing && list_empty(&groups->all) && groups->on_closed) {
        void (*on_closed)(void *) = groups->on_closed;
        groups->on_closed = NULL;
        on_closed(groups->closed_arg);
    }
}

void groups_close(struct groups *groups, void (*on_closed)(void *arg), void *arg)
{
    groups->closing = true;
    groups->on_closed = on_closed;
    groups->closed_arg = arg;
    if (list_empty(&groups->all)) {
        groups->on_closed = NULL;
        on_closed(arg);
        return;
    }
    list_each_safe (struct group, group, &groups->all, link) {
        if (group->sm.state != GROUP_ENDING)
            group_begin_end(group);
        else if (group->n_open == 0)
            group_free(group); /* it was waiting for other nodes */
    }
}

/* ---- ranks ---- */

static uint32_t rank_of(struct group *group, const struct group_member *member)
{
    uint32_t rank = 0;

    for (; rank < group->n_ranks; rank++)
        if (memcmp(group->ranks[rank].node, member->node, 16) == 0 &&
            strcasecmp(group->ranks[rank].device, member->device) == 0)
            return rank;
    group->ranks[rank].group = group;
    memcpy(group->ranks[rank].node, member->node, 16);
    group->ranks[rank].device = member->device;
    group->ranks[rank].here = memcmp(member->node, group->groups->node->uuid, 16) == 0;
    return group->n_ranks++;
}

enum rdt_status group_make_ranks(struct group *group, struct rdt_error *err)
{
    if (group->ranks)
        return RDT_OK; /* they stay the same in all epochs */
    for (uint32_t i = 0; i < group->n_members; i++)
        for (uint32_t k = 0; k < i; k++)
            if (memcmp(group->members[i].node, group->members[k].node, 16) == 0 &&
                strcmp(group->members[i].client, group->members[k].client) == 0)
                return rdt_error_set(err, RDT_INVALID,
                                     "members %u and %u of group \"%s\" are the same: client \"%s\" of one node", k, i,
                                     group->name, group->members[i].client);
    group->ranks = calloc(group->n_members, sizeof *group->ranks);
    if (!group->ranks)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for group \"%s\"", group->name);
    for (uint32_t i = 0; i < group->n_members; i++)
        group->members[i].rank = rank_of(group, &group->members[i]);
    return RDT_OK;
}

bool group_rank_serves(const struct group_rank *rank, const char *device)
{
    return device[0] == '\0' || strcasecmp(rank->device, device) == 0;
}

void group_set_connected(struct group *group)
{
    group->attempt.connected = true;
    change(group, GROUP_CONNECTED);
    group->groups->course->on_connected(group);
}

static void on_ready(struct plugin_group *vendor)
{
    struct group_rank *rank = container_of(vendor, struct group_rank, vendor);
    struct group *group = rank->group;

    rank->ready = true;
    for (uint32_t i = 0; i < group->n_ranks; i++)
        if (group->ranks[i].open && !group->ranks[i].ready)
            return;
    group_set_connected(group);
}

static void on_failed(struct plugin_group *vendor, enum rdt_status status, const char *msg)
{
    struct group *group = container_of(vendor, struct group_rank, vendor)->group;
    char why[256];

    (void)snprintf(why, sizeof why, "%s: %s", group->transport->name, msg);
    group->groups->course->on_failed(group, status, why);
}

static void stop_serving(struct group *group)
{
    if (!group->attempt.connected)
        return;
    group->attempt.connected = false;
    change(group, GROUP_CLOSED);
}

static void all_closed(struct group *group)
{
    stop_serving(group);
    if (group->sm.state == GROUP_ENDING) {
        group->groups->course->on_closed(group);
        return;
    }
    deadline_unset(group->groups->deadlines, &group->deadline);
    group_set_state(group, GROUP_DOWN);
    group->groups->course->on_down(group);
}

static void on_closed(struct plugin_group *vendor)
{
    struct group_rank *rank = container_of(vendor, struct group_rank, vendor);
    struct group *group = rank->group;

    plugin_group_destroy(vendor);
    rank->open = rank->ready = false;
    if (--group->n_open == 0)
        all_closed(group);
}

static enum rdt_status open_rank(struct group *group, uint32_t index, const struct rdt_group_member *members,
                                 struct rdt_error *err)
{
    struct group_rank *rank = &group->ranks[index];
    struct rdt_group_desc desc = {.struct_size = sizeof desc,
                                  .name = group->name,
                                  .epoch = group->epoch,
                                  .rank = index,
                                  .size = group->n_ranks,
                                  .members = members};
    uint8_t *blob = malloc(RDT_GROUP_OFFER_MAX_BYTES);
    enum rdt_status status;

    memcpy(desc.token, group->token, sizeof desc.token);
    if (!blob)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for group \"%s\"", group->name);
    rank->vendor = (struct plugin_group){.on_ready = on_ready, .on_failed = on_failed, .on_closed = on_closed};
    status = plugin_group_create(&rank->vendor, group->transport, &desc, err);
    if (status == RDT_OK) {
        status = group->transport->ops.group_offer(rank->vendor.handle, blob, &rank->blob_bytes, err);
        if (status != RDT_OK)
            plugin_group_destroy(&rank->vendor);
    }
    if (status != RDT_OK) {
        free(blob);
        return status;
    }
    rank->blob = blob;
    rank->open = true;
    group->n_open++;
    return RDT_OK;
}

enum rdt_status group_open(struct group *group, struct rdt_error *err)
{
    struct rdt_group_member *members = calloc(group->n_ranks, sizeof *members);
    enum rdt_status status = members ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory for group \"%s\"", group->name);

    free_offers(group);
    for (uint32_t i = 0; status == RDT_OK && i < group->n_ranks; i++) {
        memcpy(members[i].node_uuid, group->ranks[i].node, 16);
        members[i].device = group->ranks[i].device;
    }
    for (uint32_t i = 0; status == RDT_OK && group->n_ranks > 1 && i < group->n_ranks; i++)
        if (group->ranks[i].here)
            status = open_rank(group, i, members, err);
    free(members);
    return status;
}

enum rdt_status group_connect(struct group *group, struct rdt_error *err)
{
    const void **blobs = calloc(group->n_ranks, sizeof *blobs);
    size_t *bytes = calloc(group->n_ranks, sizeof *bytes);
    enum rdt_status status =
        blobs && bytes ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory for group \"%s\"", group->name);

    for (uint32_t i = 0; status == RDT_OK && i < group->n_ranks; i++) {
        blobs[i] = group->ranks[i].blob;
        bytes[i] = group->ranks[i].blob_bytes;
    }
    for (uint32_t i = 0; status == RDT_OK && i < group->n_ranks; i++)
        if (group->ranks[i].open)
            status = group->transport->ops.group_connect(group->ranks[i].vendor.handle, blobs, bytes, err);
    free(blobs);
    free(bytes);
    free_offers(group);
    return status;
}

/* ---- the end of an epoch ---- */

static void close_ranks(struct group *group)
{
    if (group->attempt.connected)
        change(group, GROUP_BROKEN);
    for (uint32_t i = 0; i < group->n_ranks; i++)
        if (group->ranks[i].open)
            plugin_group_close(&group->ranks[i].vendor);
}

void group_take_down(struct group *group, const char *why)
{
    text_copy(group->why, sizeof group->why, why);
    deadline_unset(group->groups->deadlines, &group->deadline);
    group->attempt.proposed = false;
    if (group->n_open > 0) {
        group_set_state(group, GROUP_CLOSING);
        group_set_deadline(group, group_patience_ns(group));
        close_ranks(group);
        return;
    }
    close_ranks(group);
    stop_serving(group);
    group_set_state(group, GROUP_DOWN);
    group->groups->course->on_down(group);
}

void group_begin_end(struct group *group)
{
    bool closing = group->sm.state == GROUP_CLOSING;

    deadline_unset(group->groups->deadlines, &group->deadline);
    group_unkeep(group);
    group_set_state(group, GROUP_ENDING);
    if (!closing)
        close_ranks(group);
    if (group->n_open > 0) {
        group_set_deadline(group, group_patience_ns(group));
        return;
    }
    stop_serving(group);
    group->groups->course->on_closed(group);
}
