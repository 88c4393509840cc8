/* SPDX-License-Identifier: Apache-2.0 */
/* See group_world.h. */
#include "tests/support/group_world.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/peers/peer_link.h"
#include "daemon/plugins/plugin_impl.h"
#include "proto/frame.h"

#define MANY 10000u /* steps after which it does not come to rest */
#define TURNS 60u   /* deadlines of a node that gw_settle lets pass: more than any row of failures needs */

const struct owner gw_owner = {.uid = 7};

/* ---- the fake transport ---- */

static enum rdt_status fake_create(void *arg, const struct rdt_group_desc *desc, void *ctx, void **group_p,
                                   struct rdt_error *err)
{
    struct gw_node *node = arg;

    if (node->refuses_create)
        return rdt_error_set(err, RDT_TRANSPORT, "a refusal was asked for");
    for (unsigned i = 0; i < GW_RANKS; i++)
        if (!node->ranks[i]) {
            node->ranks[i] = calloc(1, sizeof *node->ranks[i]);
            cr_assert_not_null(node->ranks[i]);
            *node->ranks[i] = (struct gw_rank){.ctx = ctx, .node = node};
            *group_p = node->ranks[i];
            return RDT_OK;
        }
    return rdt_error_set(err, RDT_LIMIT, "no more ranks");
}

static enum rdt_status fake_offer(void *arg, uint8_t *blob, size_t *bytes_p, struct rdt_error *err)
{
    const struct gw_rank *rank = arg;

    blob[0] = (uint8_t)rank->node->index;
    *bytes_p = 1;
    return RDT_OK;
}

static enum rdt_status fake_connect(void *arg, const void *const *blobs, const size_t *bytes, struct rdt_error *err)
{
    struct gw_rank *rank = arg;

    for (unsigned i = 0; i < GW_NODES; i++)
        cr_assert(bytes[i] == 1 && *(const uint8_t *)blobs[i] == i, "the offer of rank %u is another's", i);
    if (rank->node->refuses_connect)
        return rdt_error_set(err, RDT_TRANSPORT, "a refusal was asked for");
    rank->connecting = true;
    return RDT_OK;
}

static void fake_close(void *arg)
{
    struct gw_rank *rank = arg;

    rank->connecting = false;
    rank->closing = true;
}

static void fake_destroy(void *arg)
{
    struct gw_rank *rank = arg;

    for (unsigned i = 0; i < GW_RANKS; i++)
        if (rank->node->ranks[i] == rank)
            rank->node->ranks[i] = NULL;
    free(rank);
}

bool gw_vendor_one(struct gw_node *node)
{
    for (unsigned i = 0; i < GW_RANKS; i++) {
        struct gw_rank *rank = node->ranks[i];
        if (rank && rank->closing && !node->never_closes) {
            rank->ctx->on_closed(rank->ctx);
            return true;
        }
        if (rank && rank->connecting && !node->hangs) {
            rank->connecting = false;
            rank->ctx->on_ready(rank->ctx);
            return true;
        }
    }
    return false;
}

void gw_vendor_fails(struct gw_node *node, const char *why)
{
    for (unsigned i = 0; i < GW_RANKS; i++)
        if (node->ranks[i] && !node->ranks[i]->closing)
            node->ranks[i]->ctx->on_failed(node->ranks[i]->ctx, RDT_TRANSPORT, why);
}

/* ---- what groups need of the rest ---- */

static enum rdt_status send_letter(void *arg, struct peer *peer, enum rdt_peer_message type, const ProtobufCMessage *message,
                                   struct rdt_error *err)
{
    struct gw_node *node = arg;
    unsigned to = (unsigned)(peer - node->peers);
    size_t bytes = protobuf_c_message_get_packed_size(message);
    struct gw_letter *letter;

    cr_assert(to < GW_NODES && to != node->index);
    if (peer->state != PEER_UP)
        return rdt_error_set(err, RDT_PEER_LOST, "node %s is not connected", peer->name);
    if (node->world->mute[node->index][to])
        return RDT_OK;
    letter = malloc(sizeof *letter + bytes);
    cr_assert_not_null(letter);
    *letter = (struct gw_letter){.from = node->index, .to = to, .type = type, .bytes = (uint32_t)bytes};
    (void)protobuf_c_message_pack(message, letter->payload);
    list_init(&letter->link);
    list_append(&node->world->letters, &letter->link);
    return RDT_OK;
}

static enum rdt_status find_peer(void *arg, const uint8_t uuid[16], const char *address, struct account *account,
                                 struct peer **peer_p, struct rdt_error *err)
{
    struct gw_node *node = arg;

    for (unsigned i = 0; i < GW_NODES; i++) {
        const struct gw_node *other = &node->world->nodes[i];
        if (memcmp(other->node.uuid, uuid, 16) != 0 && strcmp(other->node.address, address) != 0)
            continue;
        *peer_p = i == node->index ? NULL : &node->peers[i];
        return RDT_OK;
    }
    return rdt_error_set(err, RDT_NOT_FOUND, "no such node");
}

static bool check_requester(void *arg, const Rdt__Pb__Requester *requester, struct owner *owner_p, struct rdt_error *err)
{
    *owner_p = (struct owner){.uid = requester->uid};
    return true;
}

static bool has_client(void *arg, const struct owner *owner, const char *name)
{
    const struct gw_node *node = arg;

    return owner_equal(owner, &gw_owner) && name[0] == 'c' && name[1] == (char)('0' + node->index) && !node->client_away;
}

static struct gw_seen *seen_of(struct gw_node *node, const struct group *group)
{
    struct gw_seen *free_one = NULL;

    for (unsigned i = 0; i < GW_RANKS; i++) {
        if (node->seen[i].group == group)
            return &node->seen[i];
        if (!node->seen[i].group)
            free_one = &node->seen[i];
    }
    cr_assert_not_null(free_one);
    *free_one = (struct gw_seen){.group = group};
    return free_one;
}

/* Checks what transfers rely on: a group serves before it opens, opens only where all nodes serve, and breaks before it is
 * closed. */
static void on_change(void *arg, struct group *group, enum group_change change)
{
    struct gw_node *node = arg;
    struct gw_seen *seen = seen_of(node, group);

    switch (change) {
    case GROUP_CONNECTED:
        cr_assert(!seen->connected);
        seen->connected = true;
        break;
    case GROUP_OPENED:
        cr_assert(seen->connected && !seen->open);
        for (unsigned i = 0; i < GW_NODES; i++) {
            const struct groups *groups = &node->world->nodes[i].groups;
            const struct group *other =
                node->world->nodes[i].running ? group_by_token(groups, group->token, sizeof group->token) : NULL;
            cr_assert(!other || other->epoch != group->epoch || other->sm.state != GROUP_FORMING || other->attempt.connected,
                      "node %u opens epoch %u before node %u is connected", node->index, group->epoch, i);
        }
        seen->open = true;
        break;
    case GROUP_BROKEN:
        cr_assert(seen->connected);
        seen->open = false;
        break;
    case GROUP_CLOSED:
        cr_assert(seen->connected && !seen->open);
        seen->connected = false;
        break;
    case GROUP_GONE:
        cr_assert(!seen->connected);
        seen->group = NULL;
        break;
    }
}

/* ---- nodes ---- */

static void start(struct gw_node *node)
{
    char *argv[] = {(char *)"rdtd", (char *)"--config=", (char *)"--backend-dir=", NULL};
    struct rdt_error err = {0};

    cr_assert_eq(uv_loop_init(&node->loop), 0);
    deadlines_init(&node->deadlines, &node->loop);
    accounts_init(&node->accounts);
    cr_assert_eq(options_load(3, argv, &node->options, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(plugins_create(&node->loop, &node->options, &node->plugins, &err), RDT_OK, "%s", err.msg);
    node->transport = (struct transport){
        .ops = {.name = "fake",
                .group_create = fake_create,
                .group_offer = fake_offer,
                .group_connect = fake_connect,
                .group_close = fake_close,
                .group_destroy = fake_destroy},
        .instance = node,
        .name = "fake",
        .version = "1",
        .available = true,
        .plugins = node->plugins,
        .events = &node->plugins->events,
    };
    list_append(plugins_transports(node->plugins), &node->transport.link);
    node->groups = (struct groups){
        .options = &node->options,
        .node = &node->node,
        .plugins = node->plugins,
        .deadlines = &node->deadlines,
        .accounts = &node->accounts,
        .callbacks = {.arg = node,
                      .send = send_letter,
                      .find = find_peer,
                      .check_requester = check_requester,
                      .has_client = has_client,
                      .on_change = on_change},
    };
    groups_init(&node->groups);
    for (unsigned i = 0; i < GW_NODES; i++) {
        struct peer *peer = &node->peers[i];
        *peer = (struct peer){.state = PEER_IDLE};
        memset(peer->uuid, (int)i + 1, sizeof peer->uuid);
        (void)snprintf(peer->name, sizeof peer->name, "n%u", i);
        (void)snprintf(peer->address, sizeof peer->address, "n%u:1", i);
        node->met[i] = false;
    }
    node->running = true;
}

static void on_gone(void *arg)
{
    ((struct gw_node *)arg)->went = true;
}

static void on_plugins_closed(void *arg)
{
    ((struct gw_node *)arg)->plugins = NULL;
}

static void stop(struct gw_node *node)
{
    node->went = false;
    node->never_closes = false;
    groups_close(&node->groups, on_gone, node);
    while (gw_vendor_one(node))
        ;
    cr_assert(node->went, "node %u keeps a group", node->index);
    cr_assert(list_empty(&node->groups.all) && node->groups.n == 0);
    for (unsigned i = 0; i < GW_RANKS; i++)
        cr_assert_null(node->ranks[i], "node %u keeps a rank", node->index);
    cr_assert_eq(node->deadlines.count, 0);
    cr_assert_eq(node->accounts.node.used[USAGE_GROUPS], 0);
    list_remove(&node->transport.link);
    plugins_close(node->plugins, on_plugins_closed, node);
    while (node->plugins)
        (void)uv_run(&node->loop, UV_RUN_ONCE);
    deadlines_close(&node->deadlines, NULL);
    (void)uv_run(&node->loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&node->loop), 0);
    accounts_fini(&node->accounts);
    options_fini(&node->options);
    node->running = false;
}

void gw_init(struct gw_world *world)
{
    memset(world, 0, sizeof *world);
    log_threshold = LOG_LEVEL_ERROR;
    list_init(&world->letters);
    for (unsigned i = 0; i < GW_NODES; i++) {
        struct gw_node *node = &world->nodes[i];
        node->world = world;
        node->index = i;
        memset(node->node.uuid, (int)i + 1, sizeof node->node.uuid);
        (void)snprintf(node->node.address, sizeof node->node.address, "n%u:1", i);
        start(node);
    }
    for (unsigned i = 0; i < GW_NODES; i++)
        for (unsigned k = 0; k < i; k++)
            gw_mend(world, i, k);
}

static void drop_letters(struct gw_world *world, unsigned a, unsigned b)
{
    list_for_each_safe (node, &world->letters) {
        struct gw_letter *letter = container_of(node, struct gw_letter, link);
        if ((letter->from != a || letter->to != b) && (letter->from != b || letter->to != a))
            continue;
        list_remove(&letter->link);
        free(letter);
    }
}

void gw_fini(struct gw_world *world)
{
    for (unsigned i = 0; i < GW_NODES; i++)
        if (world->nodes[i].running)
            gw_kill(world, i);
    cr_assert(list_empty(&world->letters));
}

/* ---- what happens ---- */

void gw_dial(struct gw_world *world, unsigned a, unsigned b)
{
    world->linked[a][b] = world->linked[b][a] = false;
    world->nodes[a].peers[b].state = world->nodes[b].peers[a].state = PEER_CONNECTING;
}

static void hear_of_end(struct gw_node *node, unsigned other)
{
    struct peer *peer = &node->peers[other];
    struct rdt_error why;

    peer->state = PEER_BACKOFF;
    (void)rdt_error_set(&why, RDT_PEER_LOST, "link to %s is lost: it was cut", peer->name);
    (void)snprintf(peer->last_error, sizeof peer->last_error, "it was cut");
    if (node->running)
        groups_peer_down(&node->groups, peer, &why);
}

void gw_cut(struct gw_world *world, unsigned a, unsigned b)
{
    if (!world->linked[a][b])
        return;
    world->linked[a][b] = world->linked[b][a] = false;
    drop_letters(world, a, b);
    hear_of_end(&world->nodes[a], b);
    hear_of_end(&world->nodes[b], a);
    drop_letters(world, a, b);
}

static void hear_of_link(struct gw_node *node, unsigned other, bool boot_changed)
{
    struct peer *peer = &node->peers[other];

    peer->state = PEER_UP;
    peer->last_error[0] = '\0';
    node->met[other] = true;
    groups_peer_up(&node->groups, peer, boot_changed);
}

void gw_mend(struct gw_world *world, unsigned a, unsigned b)
{
    struct gw_node *one = &world->nodes[a], *two = &world->nodes[b];
    bool one_is_new = !one->met[b], two_is_new = !two->met[a];

    if (world->linked[a][b] || !one->running || !two->running)
        return;
    world->linked[a][b] = world->linked[b][a] = true;
    one->peers[b].state = two->peers[a].state = PEER_UP;
    hear_of_link(one, b, !one_is_new && two_is_new);
    hear_of_link(two, a, !two_is_new && one_is_new);
}

void gw_kill(struct gw_world *world, unsigned index)
{
    struct gw_node *node = &world->nodes[index];

    /* The node receives nothing, and nobody receives what it sends. */
    for (unsigned i = 0; i < GW_NODES; i++)
        node->peers[i].state = PEER_BACKOFF;
    stop(node);
    for (unsigned i = 0; i < GW_NODES; i++)
        if (i != index)
            gw_cut(world, index, i);
}

void gw_restart(struct gw_world *world, unsigned index)
{
    start(&world->nodes[index]);
    for (unsigned i = 0; i < GW_NODES; i++)
        if (i != index)
            gw_mend(world, index, i);
}

bool gw_deliver_one(struct gw_world *world, unsigned from, unsigned to)
{
    list_for_each_safe (node, &world->letters) {
        struct gw_letter *letter = container_of(node, struct gw_letter, link);
        struct gw_node *receiver = &world->nodes[letter->to];
        struct frame frame = {.type = letter->type, .length = letter->bytes, .payload = letter->payload};
        struct peer_message message;
        struct rdt_error err = {0};
        struct arena arena;
        if (letter->from != from || letter->to != to)
            continue;
        list_remove(&letter->link);
        arena_init(&arena, RDT_MAX_DECODED_BYTES);
        cr_assert_eq(peer_link_decode(&frame, &arena, &message, &err), RDT_OK, "%s", err.msg);
        cr_assert(groups_message_is_ours(message.type));
        cr_assert_eq(groups_on_message(&receiver->groups, &receiver->peers[from], &message, &err), RDT_OK, "%s", err.msg);
        arena_fini(&arena);
        free(letter);
        return true;
    }
    return false;
}

bool gw_pass_one(struct gw_node *node)
{
    struct deadline *due = node->deadlines.count > 0 ? node->deadlines.heap[1] : NULL;

    if (!due)
        return false;
    deadline_unset(&node->deadlines, due);
    due->on_passed(due);
    return true;
}

bool gw_turn(struct gw_node *node)
{
    return node->deadlines.count > 0 && node->deadlines.heap[1]->at_ns <= uv_hrtime() && gw_pass_one(node);
}

void gw_quiet(struct gw_world *world)
{
    bool more = true;

    for (unsigned n = 0; more; n++) {
        cr_assert_lt(n, MANY, "it does not come to rest");
        more = false;
        for (unsigned i = 0; i < GW_NODES; i++) {
            struct gw_node *node = &world->nodes[i];
            more |= node->running && (gw_turn(node) || gw_vendor_one(node));
            for (unsigned k = 0; k < GW_NODES; k++)
                more |= gw_deliver_one(world, i, k);
        }
    }
}

void gw_settle(struct gw_world *world)
{
    gw_quiet(world);
    for (unsigned n = 0; n < TURNS; n++) {
        struct gw_node *next = NULL;
        for (unsigned i = 0; i < GW_NODES; i++) {
            struct gw_node *node = &world->nodes[i];
            if (node->running && node->deadlines.count > 0 &&
                (!next || node->deadlines.heap[1]->at_ns < next->deadlines.heap[1]->at_ns))
                next = node;
        }
        if (!next || !gw_pass_one(next))
            break;
        gw_quiet(world);
    }
}

/* ---- the group ---- */

static void on_done(struct group_waiter *waiter, const struct rdt_error *err)
{
    struct gw_waiter *one = container_of(waiter, struct gw_waiter, waiter);

    cr_assert(!one->told);
    one->told = true;
    one->err = err ? *err : (struct rdt_error){.status = RDT_OK};
}

static void waiter_init(struct gw_waiter *waiter)
{
    *waiter = (struct gw_waiter){.waiter.on_done = on_done, .set = true};
    list_init(&waiter->waiter.link);
}

enum rdt_status gw_create(struct gw_world *world, unsigned on, struct gw_waiter *waiter, struct group **group_p,
                          struct rdt_error *err)
{
    static const char *const names[] = {"c0", "c1", "c2"};
    Rdt__Pb__GroupMember member[GW_NODES], *members[GW_NODES];
    Rdt__Pb__GroupCreate message = RDT__PB__GROUP_CREATE__INIT;

    for (unsigned i = 0; i < GW_NODES; i++) {
        rdt__pb__group_member__init(&member[i]);
        member[i].client = (char *)(uintptr_t)names[i];
        member[i].node = (ProtobufCBinaryData){16, world->nodes[i].node.uuid};
        members[i] = &member[i];
    }
    message.name = (char *)"g";
    message.transport = (char *)"fake";
    message.members = members;
    message.n_members = GW_NODES;
    waiter_init(waiter);
    return group_create(&world->nodes[on].groups, &gw_owner, &message, &waiter->waiter, group_p, err);
}

void gw_end(struct group *group, struct gw_waiter *waiter)
{
    waiter_init(waiter);
    group_end(group, &waiter->waiter);
}

void gw_leave(struct group *group, struct gw_waiter *waiter)
{
    waiter->set = false;
    group_waiter_remove(group, &waiter->waiter);
}

struct group *gw_group(struct gw_world *world, unsigned index)
{
    const struct list *all = &world->nodes[index].groups.all;

    if (!world->nodes[index].running || list_empty(all))
        return NULL;
    return container_of(list_first(all), struct group, link);
}

const char *gw_state(struct gw_world *world, unsigned index)
{
    const struct group *group = gw_group(world, index);

    return group ? sm_name(&group->sm) : "-";
}

void gw_describe(struct gw_world *world, char text[128])
{
    size_t used = 0;

    for (unsigned i = 0; i < GW_NODES; i++) {
        const struct group *group = gw_group(world, i);
        const char *state = group ? sm_name(&group->sm) : world->nodes[i].running ? "-" : "dead";
        used += (size_t)snprintf(text + used, 128 - used, group ? "%s%s %u" : "%s%s", i > 0 ? ", " : "", state,
                                 group ? group->epoch : 0);
    }
}
