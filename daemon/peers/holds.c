/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/peers/holds_impl.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/node.h"
#include "daemon/base/text.h"
#include "daemon/objects/transit.h"

#define EARLIER_HOLDS 64u /* of one object that are looked at when a ref is taken over */

struct far_hold {
    struct holds_node *node;
    struct remote_hold *hold;
    uint64_t number;
    bool lost; /* the owner's node has dropped it */
};

void holds_init(struct holds *holds, struct deadlines *deadlines, struct recovery *recovery, uint64_t grace_ns)
{
    *holds = (struct holds){.deadlines = deadlines, .recovery = recovery, .grace_ns = grace_ns};
    list_init(&holds->nodes);
}

static void on_grace_over(struct deadline *deadline);
static void on_linger_over(struct deadline *deadline);
static bool drop_some(struct slice *slice, uint64_t until_ns);
static bool sort_some(struct slice *slice, uint64_t until_ns);
static void on_notify(struct deadline *deadline);

struct holds_node *holds_node_create(struct holds *holds, const uint8_t uuid[16])
{
    struct holds_node *node = calloc(1, sizeof *node);

    if (!node)
        return NULL;
    node->holds = holds;
    memcpy(node->uuid, uuid, sizeof node->uuid);
    map_init(&node->here);
    map_init(&node->there);
    list_init(&node->taken);
    list_init(&node->unlisted);
    list_init(&node->unsorted);
    list_init(&node->dropping);
    list_init(&node->stale);
    node->linger.on_passed = on_linger_over;
    node->grace.on_passed = on_grace_over;
    node->drop.run = drop_some;
    node->sort.run = sort_some;
    node->notify.on_passed = on_notify;
    list_append(&holds->nodes, &node->link);
    return node;
}

static struct holds_node *node_get(struct holds *holds, struct peer *peer)
{
    if (!peer->holds) {
        peer->holds = holds_node_create(holds, peer->uuid);
        if (peer->holds)
            peer->holds->peer = peer;
    }
    return peer->holds;
}

static void send_holds(struct holds_node *node, const Rdt__Pb__Holds *message)
{
    /* if the link is down, the next list has the same effect */
    if (node->peer)
        (void)peer_send(node->peer, RDT_PEER_HOLDS, &message->base, NULL);
}

/* ---- the owner's side ---- */

static bool is_stale(const struct node_hold *hold)
{
    return memcmp(hold->boot_id, hold->node->peer->boot_id, sizeof hold->boot_id) != 0;
}

/* Whether nobody knows of the hold. A daemon that goes on with the sessions of the earlier one repeats the requests that took
 * its holds. */
static bool is_unseen(const struct node_hold *hold)
{
    const struct holds_node *node = hold->node;

    return !hold->seen && !node->holds->closing && !(node->returns && node->peer && is_stale(hold));
}

static void node_hold_end(struct node_hold *hold)
{
    struct holds *holds = hold->node->holds;

    if (map_get_u64(&hold->node->here, hold->number) == hold)
        (void)map_remove_u64(&hold->node->here, hold->number);
    if (is_unseen(hold)) /* first: a daemon that is killed in between leaves the record of one of them */
        transit_returned(hold->object, hold->transit_until_ns);
    if (holds->recovery)
        recovery_end_node_hold(holds->recovery, hold->account, hold->record);
    list_remove(&hold->by_node);
    account_give(hold->account, USAGE_HOLDS, 1);
    account_unref(hold->account);
    object_drop_by(hold->object, HOLDER_NODE, &hold->by_object);
    free(hold);
}

static bool drop_some(struct slice *slice, uint64_t until_ns)
{
    struct holds_node *node = container_of(slice, struct holds_node, drop);

    list_drain (struct node_hold, hold, &node->dropping, by_node) {
        node_hold_end(hold);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

/* Drops the holds, the first of them at once. */
static void drop_later(struct holds_node *node, struct list *holds)
{
    list_splice(&node->dropping, holds);
    slice_begin(&node->holds->deadlines->slices, &node->drop);
}

/* Moves all holds of that node's present daemon, or of one that it may have had before this daemon's start, to this list. Later
 * holds may have the same numbers. */
static void move_all(struct holds_node *node, struct list *to)
{
    map_fini(&node->here);
    map_init(&node->here);
    slice_stop(&node->sort);
    list_splice(to, &node->unsorted);
    list_splice(to, &node->unlisted);
    list_splice(to, &node->taken);
}

static void drop_all(struct holds_node *node)
{
    struct list all;

    list_init(&all);
    move_all(node, &all);
    drop_later(node, &all);
}

static void on_linger_over(struct deadline *deadline)
{
    struct holds_node *node = container_of(deadline, struct holds_node, linger);

    drop_later(node, &node->stale);
}

/* That node's daemon has restarted, and takes the holds of its clients again. */
static void let_linger(struct holds_node *node)
{
    move_all(node, &node->stale);
    if (!list_empty(&node->stale) && !deadline_set(node->holds->deadlines, &node->linger, (int64_t)node->holds->grace_ns))
        drop_later(node, &node->stale);
}

void holds_give_up(struct holds_node *node)
{
    size_t n = map_count(&node->here);

    if (node->peer)
        log_warn("node %s has been away for longer than hold_grace: its %zu hold%s on this node end", node->peer->name, n,
                 n == 1 ? "" : "s");
    else
        log_warn("node %s has not come back within restart_grace after this daemon's restart: its holds on this node end",
                 node->name);
    drop_all(node);
    drop_later(node, &node->stale);
}

static void on_grace_over(struct deadline *deadline)
{
    holds_give_up(container_of(deadline, struct holds_node, grace));
}

/* The hold of that number that the node's present daemon has taken. */
static struct node_hold *find_here(const struct holds_node *node, uint64_t number)
{
    struct node_hold *hold = map_get_u64(&node->here, number);

    return hold && !is_stale(hold) ? hold : NULL;
}

static void keep(struct node_hold *hold)
{
    const struct peer *peer = hold->node->peer;
    struct node_hold_image image = {.address = peer->address,
                                    .number = hold->number,
                                    .transit_until_ns = hold->transit_until_ns,
                                    .owner = hold->account->owner};

    memcpy(image.node, peer->uuid, sizeof image.node);
    memcpy(image.boot_id, hold->boot_id, sizeof image.boot_id);
    if (hold->node->holds->recovery)
        hold->record = recovery_keep_node_hold(hold->node->holds->recovery, hold->account, &image, hold->object);
}

static void note_seen(struct node_hold *hold)
{
    if (hold->seen || hold->transit_until_ns == 0)
        return;
    hold->seen = true;
    if (hold->node->holds->recovery)
        recovery_node_hold_seen(hold->node->holds->recovery, hold->record);
}

/* Its ref is somewhere else from now on, also for a later daemon. */
static void give_up_ref(struct node_hold *hold)
{
    note_seen(hold);
    hold->transit_until_ns = 0;
}

/* A hold of an earlier link of that node that has a ref of the object, and that the node does not have: the request that took
 * it was sent again. NULL: none of the latest holds is one. */
static struct node_hold *find_earlier(const struct holds_node *node, const struct object *object)
{
    const struct list *holders = object_holders(object, HOLDER_NODE), *at = holders->prev;

    for (unsigned i = 0; i < EARLIER_HOLDS && at != holders; i++, at = at->prev) {
        struct node_hold *hold = container_of(at, struct node_hold, by_object);
        if (hold->node == node && hold->epoch != node->peer->epoch && !hold->seen && hold->transit_until_ns > 0)
            return hold;
    }
    return NULL;
}

enum rdt_status holds_take(struct holds *holds, struct peer *peer, uint64_t number, struct account *account,
                           struct object *object, bool takes_over, struct rdt_error *err)
{
    struct holds_node *node = holds->closing ? NULL : node_get(holds, peer);
    struct node_hold *hold = node ? calloc(1, sizeof *hold) : NULL;
    struct node_hold *earlier = NULL;
    enum rdt_status status = RDT_OK;

    if (!hold)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a hold");
    if (map_count(&node->here) >= NODE_HOLDS_MAX)
        status = rdt_error_set(err, RDT_LIMIT, "node %s already has %u holds on this node, which is the limit", peer->name,
                               NODE_HOLDS_MAX);
    else if (find_here(node, number))
        status = rdt_error_set(err, RDT_INVALID, "node %s already has hold %llu here", peer->name, (unsigned long long)number);
    if (status == RDT_OK)
        status = account_take(account, USAGE_HOLDS, 1, err);
    if (status == RDT_OK) /* a hold of an earlier daemon of that node has lost its number */
        (void)map_remove_u64(&node->here, number);
    if (status == RDT_OK && !map_put_u64(&node->here, number, hold)) {
        account_give(account, USAGE_HOLDS, 1);
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a hold");
    } else if (status == RDT_OK && !object_hold_by(object, HOLDER_NODE, &hold->by_object)) {
        (void)map_remove_u64(&node->here, number);
        account_give(account, USAGE_HOLDS, 1);
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a hold");
    }
    if (status != RDT_OK) {
        free(hold);
        return status;
    }
    hold->node = node;
    hold->object = object;
    hold->account = account_ref(account);
    hold->number = number;
    hold->epoch = peer->epoch;
    hold->transit_until_ns = takes_over ? transit_until(object) : 0;
    if (takes_over && hold->transit_until_ns == 0 && (earlier = find_earlier(node, object)))
        hold->transit_until_ns = earlier->transit_until_ns;
    memcpy(hold->boot_id, peer->boot_id, sizeof hold->boot_id);
    list_append(&node->taken, &hold->by_node);
    keep(hold);
    if (earlier)
        give_up_ref(earlier);
    return RDT_OK;
}

void holds_unseen(struct holds *holds, struct peer *peer, uint64_t number)
{
    struct node_hold *hold = peer->holds && !holds->closing ? find_here(peer->holds, number) : NULL;

    if (!hold)
        return;
    transit_returned(hold->object, hold->transit_until_ns);
    give_up_ref(hold);
}

bool holds_object_freed(struct object *object, uint64_t until_ns)
{
    struct list *first;

    while ((first = list_first(object_holders(object, HOLDER_NODE)))) {
        struct node_hold *hold = container_of(first, struct node_hold, by_object);
        struct holds_node *node = hold->node;
        Rdt__Pb__Holds lost = RDT__PB__HOLDS__INIT;

        lost.lost = &hold->number;
        lost.n_lost = 1;
        if (map_get_u64(&node->here, hold->number) == hold) /* otherwise it is of an earlier daemon of that node */
            send_holds(node, &lost);
        node_hold_end(hold);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

const uint8_t *node_hold_uuid(const struct node_hold *hold)
{
    return hold->node->uuid;
}

const char *node_hold_name(const struct node_hold *hold)
{
    return hold->node->peer ? hold->node->peer->name : hold->node->name;
}

const void *node_hold_node(const struct node_hold *hold)
{
    return hold->node;
}

/* Handles one message of the node's list of what it still holds. */
static void compare_list(struct holds_node *node, const Rdt__Pb__Holds *message)
{
    Rdt__Pb__Holds answer = RDT__PB__HOLDS__INIT;
    uint64_t lost[HOLDS_BATCH];

    if (message->first) {
        list_splice(&node->unlisted, &node->taken);
        node->list_ended = false;
    }
    answer.lost = lost;
    for (size_t i = 0; i < message->n_current; i++) {
        struct node_hold *hold = find_here(node, message->current[i]);
        if (hold) {
            note_seen(hold);
            list_remove(&hold->by_node);
            list_append(&node->taken, &hold->by_node);
        } else {
            lost[answer.n_lost++] = message->current[i];
        }
        if (answer.n_lost == HOLDS_BATCH || (answer.n_lost > 0 && i + 1 == message->n_current)) {
            send_holds(node, &answer);
            answer.n_lost = 0;
        }
    }
    node->list_ended |= message->last;
    if (node->list_ended && list_empty(&node->unsorted))
        drop_later(node, &node->unlisted);
}

/* ---- the holder's side ---- */

enum rdt_status holds_prepare(struct holds *holds, struct peer *peer, struct rdt_error *err)
{
    struct holds_node *node = node_get(holds, peer);

    if (!node)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a hold");
    if (map_count(&node->there) >= NODE_HOLDS_MAX)
        return rdt_error_set(err, RDT_LIMIT, "this node already has %u holds on node %s, which is the limit", NODE_HOLDS_MAX,
                             peer->name);
    node->asked = true;
    return RDT_OK;
}

static void send_dropped(struct holds_node *node)
{
    Rdt__Pb__Holds message = RDT__PB__HOLDS__INIT;

    message.dropped = node->unnotified;
    message.n_dropped = node->n_unnotified;
    node->n_unnotified = 0;
    if (message.n_dropped > 0)
        send_holds(node, &message);
}

static void on_notify(struct deadline *deadline)
{
    send_dropped(container_of(deadline, struct holds_node, notify));
}

static void drop_there(struct holds_node *node, uint64_t number)
{
    if (node->holds->recovery && recovery_is_frozen(node->holds->recovery))
        return; /* the next daemon takes it again */
    if (node->peer->state != PEER_UP || node->holds->closing)
        return; /* so that it is not in the next list */
    node->unnotified[node->n_unnotified++] = number;
    if (node->n_unnotified == HOLDS_BATCH ||
        (node->n_unnotified == 1 && !deadline_set(node->holds->deadlines, &node->notify, 0)))
        send_dropped(node);
}

static void release_far(void *far)
{
    struct far_hold *hold = far;

    (void)map_remove_u64(&hold->node->there, hold->number);
    if (!hold->lost)
        drop_there(hold->node, hold->number);
    free(hold);
}

enum rdt_status holds_taken(struct holds *holds, struct peer *peer, uint64_t number, struct client *client, uint64_t request_id,
                            struct rdt_error *err)
{
    struct holds_node *node = node_get(holds, peer); /* created by holds_prepare */
    struct far_hold *far = node ? calloc(1, sizeof *far) : NULL;
    struct remote_hold *held = remote_hold_find(client, request_id);
    bool again = held && !held->far && !held->object; /* of an earlier daemon */
    enum rdt_status status = RDT_OK;

    if (!far)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a hold");
    else if (!again)
        status = remote_hold_take(client, request_id, NULL, &held, err);
    if (status == RDT_OK && !map_put_u64(&node->there, number, far)) {
        if (!again)
            remote_hold_end(held);
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a hold");
    }
    if (status != RDT_OK) {
        free(far);
        holds_unwanted(holds, peer, number);
        return status;
    }
    far->node = node;
    far->hold = held;
    far->number = number;
    held->far = far;
    held->release_far = release_far;
    return RDT_OK;
}

void holds_taken_unseen(const struct remote_hold *hold)
{
    const struct far_hold *far = hold->release_far == release_far ? hold->far : NULL;
    Rdt__Pb__Call message = RDT__PB__CALL__INIT;
    Rdt__Pb__Requester requester = RDT__PB__REQUESTER__INIT;

    if (!far || far->lost || !far->node->peer)
        return;
    message.call = far->number;
    message.type = RDT_MSG_CANCEL_REQUEST;
    message.requester = &requester;
    (void)peer_send(far->node->peer, RDT_PEER_CALL, &message.base, NULL);
}

void holds_seen(struct holds *holds, struct peer *peer, uint64_t number)
{
    Rdt__Pb__Holds message = RDT__PB__HOLDS__INIT;

    message.seen = &number;
    message.n_seen = 1;
    if (!holds->closing)
        (void)peer_send(peer, RDT_PEER_HOLDS, &message.base, NULL); /* if the link is down, the next list says it */
}

void holds_unwanted(struct holds *holds, struct peer *peer, uint64_t number)
{
    struct holds_node *node = node_get(holds, peer);

    if (node)
        drop_there(node, number);
}

void holds_settled(struct holds *holds, struct peer *peer)
{
    Rdt__Pb__Holds message = RDT__PB__HOLDS__INIT;

    message.settled = true;
    /* The next daemon may take further holds again. Holds that are never reported as settled stay for hold_grace. */
    if (!holds->closing && !(holds->recovery && recovery_is_frozen(holds->recovery)))
        (void)peer_send(peer, RDT_PEER_HOLDS, &message.base, NULL);
}

/* Sends the list of all holds on that node, in several messages. If one cannot be sent, the owner's node keeps all holds. */
static void send_list(struct holds_node *node)
{
    uint64_t *numbers = malloc(LIST_HOLDS * sizeof *numbers);
    Rdt__Pb__Holds message = RDT__PB__HOLDS__INIT;
    struct far_hold *far;
    size_t cursor = 0;

    message.first = true;
    message.current = numbers;
    while (numbers && !message.last) {
        do {
            far = map_next(&node->there, &cursor);
            if (far && !far->lost)
                numbers[message.n_current++] = far->number;
        } while (far && message.n_current < LIST_HOLDS);
        message.last = !far;
        if (peer_send(node->peer, RDT_PEER_HOLDS, &message.base, NULL) != RDT_OK)
            break;
        message.first = false;
        message.n_current = 0;
    }
    free(numbers);
}

/* ---- the link ---- */

struct holds_node *holds_awaited(struct holds *holds, const uint8_t uuid[16])
{
    list_each (struct holds_node, node, &holds->nodes, link)
        if (!node->peer && memcmp(node->uuid, uuid, sizeof node->uuid) == 0)
            return node;
    return NULL;
}

void holds_dial(const struct holds_node *node)
{
    struct peer *peer;

    (void)peers_find(node->holds->peers, node->uuid, node->address, NULL, &peer, NULL);
}

/* Sorts what was held before this daemon's start by the daemon of the node that took it: its present one, or an earlier one. */
static bool sort_some(struct slice *slice, uint64_t until_ns)
{
    struct holds_node *node = container_of(slice, struct holds_node, sort);

    list_drain (struct node_hold, hold, &node->unsorted, by_node) {
        list_remove(&hold->by_node);
        list_append(is_stale(hold) ? &node->stale : &node->unlisted, &hold->by_node);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    if (node->linger.index == 0)
        drop_later(node, &node->stale);
    if (node->list_ended)
        drop_later(node, &node->unlisted);
    return true;
}

/* The node is back: its holds are as if only the link had been cut, except those of an earlier daemon of that node, which
 * that node takes again under other numbers, if it can (returns). */
static void adopt(struct holds_node *node, struct peer *peer, bool returns)
{
    struct holds *holds = node->holds;

    node->peer = peer;
    peer->holds = node;
    if (!returns || !deadline_set(holds->deadlines, &node->linger, (int64_t)holds->grace_ns))
        drop_later(node, &node->stale);
    list_splice(&node->unsorted, &node->taken);
    slice_begin(&holds->deadlines->slices, &node->sort);
}

void holds_peer_up(struct holds *holds, struct peer *peer, bool boot_changed, bool returns)
{
    struct holds_node *awaited = holds->closing || peer->holds ? NULL : holds_awaited(holds, peer->uuid), *node;

    if (awaited)
        adopt(awaited, peer, returns);
    node = peer->holds;
    if (!node || holds->closing)
        return;
    deadline_unset(holds->deadlines, &node->grace);
    if (boot_changed || awaited)
        node->returns = returns;
    if (boot_changed && returns)
        let_linger(node);
    else if (boot_changed)
        drop_all(node);
    if (node->asked) /* a restarted owner may have the holds of its earlier daemon, or reports that they are lost */
        send_list(node);
}

void holds_peer_down(struct holds *holds, struct peer *peer)
{
    struct holds_node *node = peer->holds, *awaited = node || holds->closing ? NULL : holds_awaited(holds, peer->uuid);
    struct peer *same;

    if (awaited)
        holds_dial(awaited);
    if (!node || holds->closing)
        return;
    node->n_unnotified = 0;
    deadline_unset(holds->deadlines, &node->notify);
    if (map_count(&node->here) > 0 && node->grace.index == 0 &&
        !deadline_set(holds->deadlines, &node->grace, (int64_t)holds->grace_ns))
        drop_all(node);
    if (map_count(&node->here) + map_count(&node->there) >
        0) /* dials now, because perhaps no request needs the link before the grace period ends */
        (void)peers_find(peer->peers, peer->uuid, "", NULL, &same, NULL);
}

static void handle_message(struct holds_node *node, const Rdt__Pb__Holds *message)
{
    struct list dropped;

    list_init(&dropped);
    for (size_t i = 0; i < message->n_seen; i++) {
        struct node_hold *hold = find_here(node, message->seen[i]);
        if (hold)
            note_seen(hold);
    }
    for (size_t i = 0; i < message->n_dropped; i++) {
        struct node_hold *hold = find_here(node, message->dropped[i]);
        if (hold) {
            note_seen(hold); /* otherwise it was cancelled (holds_unseen) */
            list_remove(&hold->by_node);
            list_append(&dropped, &hold->by_node);
        }
    }
    drop_later(node, &dropped);
    for (size_t i = 0; i < message->n_lost; i++) {
        struct far_hold *far = map_get_u64(&node->there, message->lost[i]);
        if (far) {
            far->lost = true;
            far->hold->client->holds.freed = far->hold->request_id;
        }
    }
    if (message->first || message->last || message->n_current > 0)
        compare_list(node, message);
    if (message->settled) {
        deadline_unset(node->holds->deadlines, &node->linger);
        drop_later(node, &node->stale);
    }
}

enum rdt_status holds_on_message(struct holds *holds, struct peer *peer, const Rdt__Pb__Holds *message, struct rdt_error *err)
{
    struct holds_node *node = holds->closing ? NULL : peer->holds;
    size_t n = message->n_dropped + message->n_lost + message->n_current + message->n_seen;

    if (n > LIST_HOLDS)
        return rdt_error_set(err, RDT_PROTOCOL, "a message about %zu holds: at most %u in one", n, LIST_HOLDS);
    if (!node && message->n_current > 0 && !holds->closing)
        node =
            node_get(holds, peer); /* the node lists holds that are unknown here, and compare_list answers that they are lost */
    if (node)
        handle_message(node, message);
    return RDT_OK;
}

static void node_free(struct holds_node *node)
{
    struct deadlines *deadlines = node->holds->deadlines;

    deadline_unset(deadlines, &node->grace);
    slice_stop(&node->drop);
    deadline_unset(deadlines, &node->notify);
    deadline_unset(deadlines, &node->linger);
    list_splice(&node->dropping, &node->stale);
    move_all(node, &node->dropping);
    (void)drop_some(&node->drop, UINT64_MAX);
    map_fini(&node->here);
    map_fini(&node->there);
    list_remove(&node->link);
    if (node->peer)
        node->peer->holds = NULL;
    free(node);
}

bool holds_forget_peer(struct holds *holds, struct peer *peer)
{
    struct holds_node *node = peer->holds;

    if (!node)
        return true;
    if (holds->closing || map_count(&node->here) + map_count(&node->there) > 0 || !list_empty(&node->stale) ||
        !list_empty(&node->dropping))
        return false;
    node_free(node);
    return true;
}

void holds_clear(struct holds *holds)
{
    holds->closing = true;
    while (!list_empty(&holds->nodes))
        node_free(container_of(list_first(&holds->nodes), struct holds_node, link));
}
