/* SPDX-License-Identifier: Apache-2.0 */
/* Groups as transfers use them. The connection to each other node's rank of a group is a struct
 * peer_transport that lives as long as the group. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_impl.h"

static const struct sm_state states[] = {
    [PT_NONE] = {"none", 1u << PT_CONNECTED},
    [PT_OFFERED] = {"offered", 0},
    [PT_CONNECTED] = {"connected", 1u << PT_CLOSING},
    [PT_CLOSING] = {"closing", 1u << PT_NONE},
};

/* ---- sides ---- */

static bool in_use(const struct peer_transport *pt)
{
    return pt->group || pt->pumping || pt->cut_off.running > 0 || pt->n_users > 0;
}

/* Frees the sides of groups that are gone and have no users any more. */
static void sweep(struct remote *remote)
{
    list_each_safe (struct peer_transport, pt, &remote->in_groups, link) {
        if (in_use(pt))
            continue;
        list_remove(&pt->link);
        cut_off_stop(&pt->cut_off);
        free(pt);
    }
}

bool transfer_groups_use(const struct transfers *transfers, const struct transport *transport, struct rdt_error *err)
{
    list_each (const struct group, group, &transfers->groups->all, link) {
        if (group->transport != transport)
            continue;
        (void)rdt_error_set(err, RDT_BUSY, "transport %s is in use: group \"%s\" of uid %u; rdtctl groups destroy ends it",
                            transport->name, group->name, group->owner.uid);
        return true;
    }
    list_each (struct remote, remote, &transfers->remotes, link) {
        sweep(remote);
        list_for_each (pt_node, &remote->in_groups)
            if (container_of(pt_node, struct peer_transport, link)->transport == transport) {
                (void)rdt_error_set(err, RDT_BUSY,
                                    "transport %s is in use: transfers of a group that was destroyed have not ended",
                                    transport->name);
                return true;
            }
    }
    return false;
}

static void connect_side(struct peer_transport *pt)
{
    struct group *group = pt->group;
    struct group_rank *here = &group->ranks[pt->rank_here];

    if (!group->attempt.connected || pt->sm.state != PT_NONE || !here->open)
        return;
    plugin_group_conn(&here->vendor, pt->rank_there, &pt->conn);
    pt->epoch = pt->remote_epoch = group->epoch;
    pt->broken[0] = '\0';
    sm_move(&pt->sm, PT_CONNECTED);
}

/* The connection between two ranks of the group, created if necessary. NULL: no memory. */
static struct peer_transport *connection_of(struct remote *remote, struct group *group, const struct group_rank *here,
                                            const struct group_rank *there)
{
    uint32_t rank_here = (uint32_t)(here - group->ranks), rank_there = (uint32_t)(there - group->ranks);
    struct peer_transport *pt;

    list_for_each (node, &group->connections) {
        pt = container_of(node, struct peer_transport, by_group);
        if (pt->remote == remote && pt->rank_here == rank_here && pt->rank_there == rank_there)
            return pt;
    }
    sweep(remote);
    pt = calloc(1, sizeof *pt);
    if (!pt)
        return NULL;
    pt->remote = remote;
    pt->group = group;
    pt->rank_here = rank_here;
    pt->rank_there = rank_there;
    pt->transport = group->transport;
    sm_init(&pt->sm, states, sizeof states / sizeof states[0], PT_NONE);
    list_init(&pt->pulls);
    list_init(&pt->serves);
    list_init(&pt->sending);
    cut_off_init(&pt->cut_off);
    list_append(&remote->in_groups, &pt->link);
    list_append(&group->connections, &pt->by_group);
    connect_side(pt);
    return pt;
}

bool transfer_group_is_open(const struct peer_transport *pt)
{
    return !pt->group || pt->group->sm.state == GROUP_READY;
}

bool transfer_group_is_gone(const struct peer_transport *pt)
{
    return transport_is_grouped(pt->transport) && !pt->group;
}

bool transfer_group_joins(const struct transfers *transfers, const struct owner *owner, const uint8_t a[16],
                          const uint8_t b[16])
{
    list_each (const struct group, group, &transfers->groups->all, link) {
        struct group_rank *here = group_rank_here(group);
        struct plugin_conn conn;
        if (group->sm.state != GROUP_READY || !here || !here->open || !owner_equal(&group->owner, owner) ||
            !transport_moves(group->transport, "host") || !group_has(group, a, NULL, NULL) || !group_has(group, b, NULL, NULL))
            continue;
        plugin_group_conn(&here->vendor, here == group->ranks ? 1 : 0, &conn);
        if (!plugin_conn_queue(&conn, "host", ""))
            return true;
    }
    return false;
}

/* ---- changes of the group ---- */

static void broken(struct peer_transport *pt)
{
    if (pt->sm.state == PT_CONNECTED)
        sm_move(&pt->sm, PT_CLOSING);
    pt->remote->transfers->connections->on_broken(pt);
}

/* The group is destroyed: transfers that wait for it will not be served. */
static void gone(struct peer_transport *pt)
{
    list_remove(&pt->by_group);
    pt->group = NULL;
    pt->remote->transfers->connections->on_group_gone(pt);
}

static void closed(struct peer_transport *pt)
{
    sm_move(&pt->sm, PT_NONE);
    pt->conn.handle = NULL; /* The handle belongs to the group, which is destroyed next. */
    pt->remote_epoch = 0;
    pt->remote->transfers->connections->on_closed(pt);
}

/* Tells every transfer that waits for the group, whether it has a side of it or not yet. */
static void wake(struct transfers *transfers, struct group *group)
{
    const struct group_rank *here = group_rank_here(group);

    list_each_safe (struct remote, remote, &transfers->remotes, link) {
        const struct group_rank *there = group_rank_for(group, remote->peer->uuid, "", NULL);
        if (here && there)
            (void)connection_of(remote, group, here, there);
    }
    list_for_each_safe (node, &group->connections)
        transfers->connections->on_connected(container_of(node, struct peer_transport, by_group));
}

void transfer_groups_on_change(struct transfers *transfers, struct group *group, enum group_change change)
{
    list_each_safe (struct peer_transport, pt, &group->connections, by_group) {
        switch (change) {
        case GROUP_CONNECTED:
            connect_side(pt);
            break;
        case GROUP_OPENED:
            break;
        case GROUP_BROKEN:
            (void)snprintf(pt->broken, sizeof pt->broken, "group %s was taken down: %.90s", group->name,
                           group->why[0] ? group->why : "it is destroyed");
            broken(pt);
            break;
        case GROUP_CLOSED:
            if (pt->sm.state == PT_CLOSING)
                closed(pt);
            break;
        case GROUP_GONE:
            gone(pt);
            break;
        }
    }
    if (change == GROUP_OPENED && !transfers->closing)
        wake(transfers, group);
}

/* ---- the reader's side ---- */

/* Finds the ranks of the memory that the transfer moves. Returns false if one of the nodes has none; then
 * why_p says which. */
static bool ranks_of(const struct transfer *transfer, const struct group *group, const struct group_rank **here_p,
                     const struct group_rank **there_p, char why_p[192])
{
    const struct peer *peer = transfer->pull.peer->peer;
    const struct client *client = transfer->pull.subpull.parent ? transfer->pull.subpull.parent->client : transfer->client;
    /* "": the memory is staged */
    const char *from = transport_moves(group->transport, transfer->pull.answer.memory) ? transfer_source_device(transfer) : "";
    const char *to =
        transport_moves(group->transport, transfer_target_memory(transfer)) ? transfer_target_device(transfer) : "";

    *here_p = group_rank_for(group, transfer->transfers->node->uuid, to, client ? client->name : NULL);
    *there_p =
        group_rank_for(group, peer->uuid, from, transfer->pull.answer.producer[0] ? transfer->pull.answer.producer : NULL);
    if (*here_p && *there_p)
        return true;
    if (why_p && !*here_p)
        (void)snprintf(why_p, 192, "no member of group %.40s is on device %.64s here", group->name, to);
    else if (why_p)
        (void)snprintf(why_p, 192, "no member of group %.40s is on device %.64s of node %.40s", group->name, from, peer->name);
    return false;
}

/* The group that moves the transfer: one with members on its devices, READY if possible. NULL: why_p, if
 * given, says what to do. */
struct group *transfer_group_of(const struct transfer *transfer, const struct transport *transport, char why_p[192])
{
    const struct transfers *transfers = transfer->transfers;
    const struct client *client = transfer->pull.subpull.parent ? transfer->pull.subpull.parent->client : transfer->client;
    bool for_node = transfer->pull.broadcast; /* Both nodes must have members; which ones does not matter. */
    const char *reader = client && !for_node ? client->name : NULL;
    /* A replica serves on behalf of its node, and so does a node whose producing client has ended. */
    const char *producer = transfer->pull.answer.producer[0] && transfer->pull.peer == transfer->pull.origin && !for_node
                               ? transfer->pull.answer.producer
                               : NULL;
    const struct group_rank *here, *there;
    struct group *shared = NULL;
    bool shared_will_do = false;
    char from[40] = "the producer";

    list_each (struct group, group, &transfers->groups->all, link) {
        bool fits;
        if (group->transport != transport || group->sm.state == GROUP_ENDING || !(reader || for_node) ||
            !owner_equal(&group->owner, &transfer->account->owner) ||
            (transfer->wish.group[0] && strcmp(transfer->wish.group, group->name) != 0))
            continue;
        if (!group_has(group, transfers->node->uuid, reader, NULL) ||
            !group_has(group, transfer->pull.peer->peer->uuid, producer, NULL))
            continue;
        fits = !group->ranks || ranks_of(transfer, group, &here, &there, NULL);
        if (fits && group->sm.state == GROUP_READY)
            return group;
        if (shared && (shared_will_do || !fits || !group_will_be_ready(group)))
            continue;
        shared = group;
        shared_will_do = fits && group_will_be_ready(group);
    }
    /* The owner's node names the producer only if it lives and some group is there. */
    if (producer)
        (void)snprintf(from, sizeof from, "client \"%.24s\"", producer);
    if (!shared && why_p && transfer->wish.group[0])
        (void)snprintf(why_p, 192, "%s of node %.40s is not in group %.40s", from, transfer->pull.peer->peer->name,
                       transfer->wish.group);
    else if (!shared && why_p)
        (void)snprintf(why_p, 192,
                       "client \"%.24s\" here and %s of node %.24s share no %.12s group: rdt_group_create (rdtctl groups "
                       "create) makes one",
                       reader ? reader : "", from, transfer->pull.peer->peer->name, transport->name);
    return shared;
}

struct peer_transport *transfer_group_side(const struct transfer *transfer, struct group *group)
{
    const struct group_rank *here, *there;

    return ranks_of(transfer, group, &here, &there, NULL) ? connection_of(transfer->pull.peer, group, here, there) : NULL;
}

static struct path_end path_end_of(const struct transport *transport, const char *memory)
{
    return (struct path_end){.moves = transport_moves(transport, memory),
                             .stages = strcmp(memory, "host") != 0 && transport_moves(transport, "host")};
}

void transfer_group_offer(const struct transfer *transfer, struct transport *transport, struct path_offer *offer,
                          char why_p[192])
{
    struct group *group = transport->available ? transfer_group_of(transfer, transport, why_p) : NULL;
    const char *target = transfer_target_memory(transfer);
    const struct group_rank *here, *there;
    struct peer_transport *pt = NULL;

    /* A group of different versions could not have been formed. */
    *offer = (struct path_offer){.name = transport->name,
                                 .speed = transport->speed,
                                 .here_version = transport->version,
                                 .there_version = transport->version,
                                 .source = path_end_of(transport, transfer->pull.answer.memory),
                                 .target = path_end_of(transport, target)};
    if (!transport->available) {
        offer->here_why_not = transport->why_not;
        return;
    }
    if (!group) {
        offer->group_why_not = why_p;
        return;
    }
    if (group->ranks && !ranks_of(transfer, group, &here, &there, why_p)) {
        offer->group_why_not = why_p;
        return;
    }
    offer->group = group->name;
    if (group->sm.state == GROUP_READY)
        pt = connection_of(transfer->pull.peer, group, here, there);
    if (pt && pt->sm.state == PT_CONNECTED) {
        offer->connected = true;
        offer->sides = transport->ops.sides(pt->conn.handle, offer->target.moves ? target : "host");
    } else if (!group_will_be_ready(group)) {
        (void)snprintf(why_p, 192, "group %s is down: %.100s", group->name, group->why);
        offer->group_why_not = why_p;
    }
    if (!offer->connected)
        offer->sides = RDT_TWO_SIDED;
}

bool transfer_group_is_local(const struct transfer *transfer, const struct object *object)
{
    const struct transfers *transfers = transfer->transfers;
    const struct transport *transport =
        transfer->wish.transport[0] ? plugins_transport(transfers->plugins, transfer->wish.transport) : NULL;
    const char *producer = object->producer ? object->producer->name : NULL;

    if (!transport || !transport_is_grouped(transport) || !transfer->client)
        return false;
    list_each (const struct group, group, &transfers->groups->all, link)
        if (group->transport == transport && group->sm.state != GROUP_ENDING &&
            owner_equal(&group->owner, &transfer->account->owner) &&
            (!transfer->wish.group[0] || strcmp(transfer->wish.group, group->name) == 0) &&
            group_has(group, transfers->node->uuid, transfer->client->name, NULL) &&
            group_has(group, transfers->node->uuid, producer, NULL))
            return true;
    return false;
}

/* ---- the owner's side ---- */

enum rdt_status transfer_group_start(struct serve *serve, const Rdt__Pb__PullStart *start, struct peer_transport **pt_p,
                                     struct rdt_error *err)
{
    struct transfers *transfers = serve->transfers;
    struct group *group = group_by_token(transfers->groups, start->group.data, start->group.len);
    const char *producer = serve->object->producer && !serve->replica ? serve->object->producer->name : NULL;
    const struct group_rank *here;

    if (!group || group->sm.state == GROUP_ENDING)
        return rdt_error_set(err, RDT_TRANSPORT, "%.64s: the group has ended", start->transport);
    /* The object's owner may broadcast what no member has produced. */
    if (!owner_equal(&group->owner, &serve->account->owner) || !group_has(group, serve->remote->peer->uuid, NULL, NULL) ||
        !group_has(group, transfers->node->uuid, start->broadcast ? NULL : producer, NULL))
        return rdt_error_set(err, RDT_DENIED,
                             "the reader's node and the producer of object \"%s\" are not both in group \"%s\"", serve->ref.id,
                             group->name);
    if (!group->ranks || start->reader_rank >= group->n_ranks || start->owner_rank >= group->n_ranks ||
        memcmp(group->ranks[start->reader_rank].node, serve->remote->peer->uuid, 16) != 0 ||
        !group->ranks[start->owner_rank].here)
        return rdt_error_set(err, RDT_PROTOCOL, "ranks %u and %u of group \"%s\" are not on these two nodes",
                             start->reader_rank, start->owner_rank, group->name);
    here = &group->ranks[start->owner_rank];
    for (uint32_t i = 0; i < serve->source->count; i++) {
        uint32_t place = serve->source->region[i];
        const struct region *region;
        if (layout_bytes(serve->source, i) == 0 || place >= object_n_places(serve->object))
            continue; /* a replica that is being filled may have no memory yet */
        region = object_region(serve->object, place);
        if (transport_moves(group->transport, region->kind->name) && !group_rank_serves(here, region_device_uuid(region)))
            return rdt_error_set(err, RDT_PROTOCOL, "rank %u of group \"%s\" is on device \"%s\", and object \"%s\" lies on %s",
                                 start->owner_rank, group->name, here->device, serve->ref.id, region_device_uuid(region));
    }
    *pt_p = connection_of(serve->remote, group, here, &group->ranks[start->reader_rank]);
    return *pt_p ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory to send in group \"%s\"", group->name);
}

unsigned transfers_of_group_side(const struct list *connection)
{
    return container_of(connection, struct peer_transport, by_group)->n_users;
}
