/* SPDX-License-Identifier: Apache-2.0 */
/* The events of peers, groups and connections: passes them on to the pulls, serves, replicas and broadcasts
 * that they concern. */
#include <stdio.h>
#include <string.h>

#include "daemon/transfers/broadcast.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/replica_directory.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_ticket.h"

/* Moves the first transfer of `from` to `to` and returns it; NULL: none is left. The end of one transfer may
 * end others of the list, so a loop over a list must not remember the next one. */
static struct transfer *take_over(struct list *from, struct list *to)
{
    struct list *node = list_first(from);

    if (!node)
        return NULL;
    list_remove(node);
    list_append(to, node);
    return container_of(node, struct transfer, pull.by_peer);
}

/* The link is up: asks for every transfer that waits for it. A transfer that is queued behind another one
 * goes on when that one has been answered. */
static void ask_pending(struct remote *remote)
{
    struct list now;
    struct transfer *transfer;

    list_init(&now);
    list_splice(&now, &remote->pending);
    while ((transfer = take_over(&now, &remote->pending))) {
        if (transfer->sm.state != TRANSFER_LINK)
            continue;
        list_remove(&transfer->pull.by_peer);
        list_append(&remote->pulls, &transfer->pull.by_peer);
        pull_ask(transfer);
    }
}

void transfers_peer_up(struct transfers *transfers, struct peer *peer)
{
    struct remote *remote = remote_get(transfers, peer);

    if (!remote || transfers->closing)
        return;
    peer_transports_up(remote);
    replica_directory_link_up(remote);
    replicas_peer_up(remote);
    broadcasts_peer_up(remote);
    ask_pending(remote);
}

/* Two addresses have turned out to be one node: transfers that wait for the link of `from` wait for the link
 * of `into` instead. */
void transfers_peer_merged(struct transfers *transfers, struct peer *from, struct peer *into)
{
    static const uint8_t nobody[16];
    /* false: another node has taken its address */
    bool from_is_known = memcmp(from->uuid, nobody, sizeof nobody) != 0;
    struct remote *old_remote = from->remote, *remote = old_remote ? remote_get(transfers, into) : NULL;
    struct list none;

    list_init(&none);
    list_each_safe (struct transfer, transfer, remote ? &old_remote->pending : &none, pull.by_peer) {
        if (from_is_known && memcmp(transfer->ref.node, nobody, sizeof nobody) != 0)
            continue; /* The transfer wants that node, whoever has its address now. */
        list_remove(&transfer->pull.by_peer);
        list_append(&remote->pending, &transfer->pull.by_peer);
        transfer->pull.peer = remote;
        if (transfer->pull.origin == old_remote)
            remote_use(&transfer->pull.origin, remote);
        (void)snprintf(transfer->record.peer, sizeof transfer->record.peer, "%s", into->name);
        old_remote->counts.n_pulls--;
        remote->counts.n_pulls++;
    }
    if (remote && !from_is_known) /* The nodes of a group are known by their uuids. */
        broadcasts_peer_merged(old_remote, remote);
    if (remote && into->state == PEER_UP)
        ask_pending(remote);
}

/* Fails transfers after the end of the link. Those that wait for the rest of their reservation group fail first, because the
 * end of the rest would let them go on. */
static bool fail_some(struct slice *slice, uint64_t until_ns)
{
    struct remote *remote = container_of(slice, struct remote, fail);
    struct transfer *transfer;

    while ((transfer = take_over(&remote->failing[0], &remote->failing[1]))) {
        if (!list_empty(&transfer->move.reserve.link))
            transfer_fail_err(transfer, &remote->why_lost);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    while ((transfer = take_over(&remote->failing[1], &remote->pulls))) { /* it may have operations that must end */
        if (remote->transfers->closing || !pull_is_checked(transfer))     /* otherwise it needs nothing of that node */
            transfer_fail_err(transfer, &remote->why_lost);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

/* A connection has changed, or a ping was answered, since the transfer was looked at last. */
static void look(struct remote *remote, struct transfer *transfer)
{
    const struct peer_transport *pt = transfer->pull.path.connection;

    if (transfer->pull.failure.ping != 0 && transfer->pull.failure.ping <= remote->ping.answered)
        pull_fail_noted(transfer);
    else if (transfer->sm.state == TRANSFER_CONNECT && (pt ? pt->sm.state == PT_CONNECTED : remote->connected))
        pull_connected(transfer, pt);
    else if (transfer->sm.state == TRANSFER_CONNECT && (pt ? pt->remote_why_not[0] != '\0' : remote->refused))
        pull_refused(transfer, pt);
}

static bool look_some(struct slice *slice, uint64_t until_ns)
{
    struct remote *remote = container_of(slice, struct remote, look);
    struct transfer *transfer;

    while ((transfer = take_over(&remote->looked, &remote->pulls))) {
        look(remote, transfer);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    remote->connected = remote->refused = false;
    return true;
}

static void look_again(struct remote *remote)
{
    list_splice(&remote->looked, &remote->pulls);
    remote->look.run = look_some;
    slice_begin(remote_slices(remote), &remote->look);
}

void transfers_peer_answer(struct transfers *transfers, struct peer *peer)
{
    struct remote *remote = peer->remote;

    if (!remote || transfers->closing)
        return;
    remote->ping.due = false;
    remote->ping.answered = remote->ping.asked;
    if (remote->ping.ask_again) { /* for the failures that were noted meanwhile */
        remote->ping.ask_again = false;
        remote_ping(remote);
    }
    look_again(remote);
    serve_answer_held(remote);
}

static void tell_connected(struct peer_transport *pt)
{
    pt->remote->connected = true;
    look_again(pt->remote);
}

static void tell_refused(struct peer_transport *pt)
{
    pt->remote->refused = true;
    look_again(pt->remote);
}

static void tell_broken(struct peer_transport *pt)
{
    pull_connection_failed(pt);
    serve_connection_failed(pt);
}

static void check_closed(struct transfers *transfers)
{
    void (*on_closed)(void *arg);

    if (!transfers->closing || !transfers->ends.on_closed)
        return;
    list_for_each (node, &transfers->remotes) {
        if (!peer_transports_closed(container_of(node, struct remote, link)))
            return;
    }
    on_closed = transfers->ends.on_closed;
    transfers->ends.on_closed = NULL;
    on_closed(transfers->ends.closed_arg);
}

static void tell_closed(struct peer_transport *pt)
{
    pt->sends_in_flight = 0;
    pull_connection_failed(pt);
    serve_connection_failed(pt);
    check_closed(pt->remote->transfers);
}

const struct connection_events transfers_connection_events = {.on_connected = tell_connected,
                                                              .on_refused = tell_refused,
                                                              .on_broken = tell_broken,
                                                              .on_closed = tell_closed,
                                                              .on_group_gone = pull_connection_failed};

static void remote_fail(struct remote *remote, const struct rdt_error *why)
{
    remote->ping.due = remote->ping.ask_again = false;
    peer_transports_down(remote);
    list_splice(&remote->failing[0], &remote->pending);
    list_splice(&remote->failing[0], &remote->looked);
    list_splice(&remote->failing[0], &remote->pulls);
    remote->why_lost = *why;
    remote->fail.run = fail_some;
    slice_begin(remote_slices(remote), &remote->fail);
    broadcasts_link_down(remote, why);
    serve_link_down(remote);
    replicas_link_down(remote);
    replica_directory_link_down(remote);
}

void transfers_peer_down(struct transfers *transfers, struct peer *peer, const struct rdt_error *why)
{
    struct remote *remote = peer->remote;

    if (remote)
        remote_fail(remote, why);
}

bool transfers_forget_peer(struct transfers *transfers, struct peer *peer)
{
    struct remote *remote = peer->remote;

    if (!remote)
        return true;
    if (transfers->closing || remote->n_users > 0 || remote->counts.n_pulls > 0 || remote->counts.n_serves > 0 ||
        remote->replicas.n > 0 || map_count(&remote->by_number) > 0 || !list_empty(&remote->pending) ||
        !list_empty(&remote->pulls) || !list_empty(&remote->looked) || !list_empty(&remote->in_groups) ||
        !list_empty(&remote->members) || !replica_directory_may_forget(remote) || !peer_transports_closed(remote) ||
        broadcasts_use_remote(remote))
        return false;
    remote_free(remote);
    peer->remote = NULL;
    return true;
}

void transfers_close(struct transfers *transfers, void (*on_closed)(void *arg), void *arg)
{
    struct rdt_error err;

    (void)rdt_error_set(&err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    serve_shut_down(transfers, &err);
    broadcasts_close(transfers, &err);
    transfers->closing = true;
    transfers->ends.on_closed = on_closed;
    transfers->ends.closed_arg = arg;
    list_for_each (node, &transfers->remotes)
        remote_fail(container_of(node, struct remote, link), &err);
    replicas_close(&transfers->replicas);
    check_closed(transfers);
}

typedef enum rdt_status (*handler)(struct remote *remote, const void *message, struct rdt_error *err);

/* Defines the handler of a message that cannot be refused. */
#define HANDLER(name, take)                                                                        \
    static enum rdt_status name(struct remote *remote, const void *message, struct rdt_error *err) \
    {                                                                                              \
        (void)err;                                                                                 \
        take(remote, message);                                                                     \
        return RDT_OK;                                                                             \
    }
HANDLER(on_meta, pull_on_meta)
HANDLER(on_alive, pull_on_alive)
HANDLER(on_credit, serve_on_credit)
HANDLER(on_start, serve_on_start)
HANDLER(on_ticket, transfer_ticket_on_message)
HANDLER(on_keys, pull_on_keys)
HANDLER(on_abort, serve_on_abort)
HANDLER(on_broadcast_result, broadcast_on_result)

static enum rdt_status on_offer(struct remote *remote, const void *message, struct rdt_error *err)
{
    return peer_transport_on_offer(remote, message, err);
}

static enum rdt_status on_pull(struct remote *remote, const void *message, struct rdt_error *err)
{
    return serve_on_pull(remote, message, err);
}

static enum rdt_status on_end(struct remote *remote, const void *message, struct rdt_error *err)
{
    const Rdt__Pb__PullEnd *end = message;

    if (end->from_owner)
        pull_on_end(remote, end);
    else
        serve_on_end(remote, end);
    return RDT_OK;
}

static enum rdt_status on_replicas(struct remote *remote, const void *message, struct rdt_error *err)
{
    const Rdt__Pb__Replicas *replicas = message;
    const struct {
        size_t n;
        unsigned most;
    } lists[] = {{replicas->n_whole, REPLICAS_MAX_GENERATIONS},
                 {replicas->n_dropped, REPLICAS_MAX_GENERATIONS},
                 {replicas->n_invalidated, REPLICAS_MAX_GENERATIONS},
                 {replicas->n_valid, REPLICAS_MAX_GENERATIONS},
                 {replicas->n_invalid, REPLICAS_MAX_GENERATIONS},
                 {replicas->n_forced, REPLICAS_MAX_GENERATIONS},
                 {replicas->n_slow, REPLICAS_MAX_SINGLE},
                 {replicas->n_ask_again, REPLICAS_MAX_SINGLE},
                 {replicas->n_summed, REPLICAS_MAX_SINGLE}};

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        if (lists[i].n > lists[i].most)
            return rdt_error_set(err, RDT_PROTOCOL, "it names %zu replicas in a list of a message: at most %u are allowed",
                                 lists[i].n, lists[i].most);
    replica_directory_on_message(&remote->transfers->directory, remote, message);
    replicas_on_message(&remote->transfers->replicas, remote, message);
    return RDT_OK;
}

static enum rdt_status on_broadcast(struct remote *remote, const void *message, struct rdt_error *err)
{
    return broadcast_on_ask(remote, message, err);
}

static const handler handlers[] = {
    [RDT_PEER_OFFER] = on_offer,
    [RDT_PEER_PULL] = on_pull,
    [RDT_PEER_PULL_META] = on_meta,
    [RDT_PEER_PULL_ALIVE] = on_alive,
    [RDT_PEER_PULL_CREDIT] = on_credit,
    [RDT_PEER_PULL_START] = on_start,
    [RDT_PEER_PULL_TICKET] = on_ticket,
    [RDT_PEER_PULL_KEYS] = on_keys,
    [RDT_PEER_PULL_END] = on_end,
    [RDT_PEER_PULL_ABORT] = on_abort,
    [RDT_PEER_REPLICAS] = on_replicas,
    [RDT_PEER_BROADCAST] = on_broadcast,
    [RDT_PEER_BROADCAST_RESULT] = on_broadcast_result,
};

enum rdt_status transfers_on_message(struct transfers *transfers, struct peer *peer, const struct peer_message *message,
                                     struct rdt_error *err)
{
    struct remote *remote = remote_get(transfers, peer);

    if (!remote)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the node");
    if (transfers->closing)
        return RDT_OK;
    if (message->type >= sizeof handlers / sizeof handlers[0] || !handlers[message->type])
        return rdt_error_set(err, RDT_PROTOCOL, "a message of type %u, which no part of this daemon takes", message->type);
    return handlers[message->type](remote, message->body, err);
}

/* ---- groups ---- */

/* The coordinator says that all nodes of the group are there, so links to them are tried again at once. */
static void reach_all(const struct transfers *transfers, const struct group *group)
{
    for (uint32_t i = 0; transfers->peers && i < group->n_members; i++)
        peers_hear_of(transfers->peers, group->members[i].node, group->members[i].address);
}

void transfers_on_group(struct transfers *transfers, struct group *group, enum group_change change)
{
    if (change == GROUP_OPENED && !transfers->closing)
        reach_all(transfers, group);
    broadcasts_on_group(transfers, group, change);
    transfer_groups_on_change(transfers, group, change);
}
