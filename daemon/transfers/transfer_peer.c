/* SPDX-License-Identifier: Apache-2.0 */
/* The events of peers, groups and connections: passes them on to the pulls, serves, replicas and broadcasts
 * that they concern. */
#include <stdio.h>
#include <string.h>

#include "daemon/transfers/broadcast.h"
#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/peer_transport.h"
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
static void ask_pending(struct peer_session *session)
{
    struct list now;
    struct transfer *transfer;

    list_init(&now);
    list_splice(&now, &session->pending);
    while ((transfer = take_over(&now, &session->pending))) {
        if (transfer->sm.state != TRANSFER_LINK)
            continue;
        list_remove(&transfer->pull.by_peer);
        list_append(&session->pulls, &transfer->pull.by_peer);
        pull_ask(transfer);
    }
}

void transfers_peer_up(struct transfers *transfers, struct peer *peer)
{
    struct peer_session *session = peer_session_get(transfers, peer);

    if (!session || transfers->closing)
        return;
    peer_transports_up(session);
    replica_directory_link_up(session);
    replicas_peer_up(session);
    broadcasts_peer_up(session);
    ask_pending(session);
}

/* Two addresses have turned out to be one node: transfers that wait for the link of `from` wait for the link
 * of `into` instead. */
void transfers_peer_merged(struct transfers *transfers, struct peer *from, struct peer *into)
{
    static const uint8_t nobody[16];
    /* false: another node has taken its address */
    bool from_is_known = memcmp(from->uuid, nobody, sizeof nobody) != 0;
    struct peer_session *old_session = from->session, *session = old_session ? peer_session_get(transfers, into) : NULL;
    struct list none;

    list_init(&none);
    list_each_safe (struct transfer, transfer, session ? &old_session->pending : &none, pull.by_peer) {
        if (from_is_known && memcmp(transfer->ref.node, nobody, sizeof nobody) != 0)
            continue; /* The transfer wants that node, whoever has its address now. */
        list_remove(&transfer->pull.by_peer);
        list_append(&session->pending, &transfer->pull.by_peer);
        transfer->pull.peer = session;
        if (transfer->pull.origin == old_session)
            peer_session_name(&transfer->pull.origin, session);
        (void)snprintf(transfer->record.peer, sizeof transfer->record.peer, "%s", into->name);
        old_session->counts.n_pulls--;
        session->counts.n_pulls++;
    }
    if (session && !from_is_known) /* The nodes of a group are known by their uuids. */
        broadcasts_peer_merged(old_session, session);
    if (session && into->state == PEER_UP)
        ask_pending(session);
}

/* Fails transfers after the end of the link. Those that wait for the rest of their reservation group fail first, because the
 * end of the rest would let them go on. */
static bool fail_some(struct slice *slice, uint64_t until_ns)
{
    struct peer_session *session = container_of(slice, struct peer_session, fail);
    struct transfer *transfer;

    while ((transfer = take_over(&session->failing[0], &session->failing[1]))) {
        if (!list_empty(&transfer->move.reserve.link))
            transfer_fail_err(transfer, &session->why_lost);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    while ((transfer = take_over(&session->failing[1], &session->pulls))) { /* it may have operations that must end */
        if (session->transfers->closing || !pull_is_checked(transfer))      /* otherwise it needs nothing of that node */
            transfer_fail_err(transfer, &session->why_lost);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

/* A connection has changed, or a ping was answered, since the transfer was looked at last. */
static void look(struct peer_session *session, struct transfer *transfer)
{
    const struct peer_transport *pt = transfer->pull.path.connection;

    if (transfer->pull.failure.ping != 0 && transfer->pull.failure.ping <= session->ping.answered)
        pull_fail_noted(transfer);
    else if (transfer->sm.state == TRANSFER_CONNECT && (pt ? pt->sm.state == PT_CONNECTED : session->connected))
        pull_connected(transfer, pt);
    else if (transfer->sm.state == TRANSFER_CONNECT && (pt ? pt->remote_why_not[0] != '\0' : session->refused))
        pull_refused(transfer, pt);
}

static bool look_some(struct slice *slice, uint64_t until_ns)
{
    struct peer_session *session = container_of(slice, struct peer_session, look);
    struct transfer *transfer;

    while ((transfer = take_over(&session->looked, &session->pulls))) {
        look(session, transfer);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    session->connected = session->refused = false;
    return true;
}

static void look_again(struct peer_session *session)
{
    list_splice(&session->looked, &session->pulls);
    session->look.run = look_some;
    slice_begin(session_slices(session), &session->look);
}

void transfers_peer_answer(struct transfers *transfers, struct peer *peer)
{
    struct peer_session *session = peer->session;

    if (!session || transfers->closing)
        return;
    session->ping.due = false;
    session->ping.answered = session->ping.asked;
    if (session->ping.ask_again) { /* for the failures that were noted meanwhile */
        session->ping.ask_again = false;
        peer_session_ping(session);
    }
    look_again(session);
}

static void tell_connected(struct peer_transport *pt)
{
    pt->session->connected = true;
    look_again(pt->session);
}

static void tell_refused(struct peer_transport *pt)
{
    pt->session->refused = true;
    look_again(pt->session);
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
    list_for_each (node, &transfers->sessions) {
        if (!peer_transports_closed(container_of(node, struct peer_session, link)))
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
    check_closed(pt->session->transfers);
}

const struct connection_events transfers_connection_events = {.on_connected = tell_connected,
                                                              .on_refused = tell_refused,
                                                              .on_broken = tell_broken,
                                                              .on_closed = tell_closed,
                                                              .on_group_gone = pull_connection_failed};

static void session_fail(struct peer_session *session, const struct rdt_error *why)
{
    session->ping.due = session->ping.ask_again = false;
    peer_transports_down(session);
    list_splice(&session->failing[0], &session->pending);
    list_splice(&session->failing[0], &session->looked);
    list_splice(&session->failing[0], &session->pulls);
    session->why_lost = *why;
    session->fail.run = fail_some;
    slice_begin(session_slices(session), &session->fail);
    broadcasts_link_down(session, why);
    serve_link_down(session);
    replicas_link_down(session);
    replica_directory_link_down(session);
}

void transfers_peer_down(struct transfers *transfers, struct peer *peer, const struct rdt_error *why)
{
    struct peer_session *session = peer->session;

    if (session)
        session_fail(session, why);
}

bool transfers_forget_peer(struct transfers *transfers, struct peer *peer)
{
    struct peer_session *session = peer->session;

    if (!session)
        return true;
    if (transfers->closing || session->n_named > 0 || session->counts.n_pulls > 0 || session->counts.n_serves > 0 ||
        session->replicas.n > 0 || map_count(&session->by_number) > 0 || !list_empty(&session->pending) ||
        !list_empty(&session->pulls) || !list_empty(&session->looked) || !list_empty(&session->in_groups) ||
        !list_empty(&session->members) || !replica_directory_may_forget(session) || !peer_transports_closed(session) ||
        broadcasts_name_session(session))
        return false;
    peer_session_free(session);
    peer->session = NULL;
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
    list_for_each (node, &transfers->sessions)
        session_fail(container_of(node, struct peer_session, link), &err);
    replicas_close(&transfers->replicas);
    check_closed(transfers);
}

typedef enum rdt_status (*handler)(struct peer_session *session, const void *message, struct rdt_error *err);

/* Defines the handler of a message that cannot be refused. */
#define HANDLER(name, take)                                                                               \
    static enum rdt_status name(struct peer_session *session, const void *message, struct rdt_error *err) \
    {                                                                                                     \
        (void)err;                                                                                        \
        take(session, message);                                                                           \
        return RDT_OK;                                                                                    \
    }
HANDLER(on_meta, pull_on_meta)
HANDLER(on_alive, pull_on_alive)
HANDLER(on_credit, serve_on_credit)
HANDLER(on_start, serve_on_start)
HANDLER(on_ticket, transfer_ticket_on_message)
HANDLER(on_keys, pull_on_keys)
HANDLER(on_abort, serve_on_abort)
HANDLER(on_broadcast_result, broadcast_on_result)

static enum rdt_status on_offer(struct peer_session *session, const void *message, struct rdt_error *err)
{
    return peer_transport_on_offer(session, message, err);
}

static enum rdt_status on_pull(struct peer_session *session, const void *message, struct rdt_error *err)
{
    return serve_on_pull(session, message, err);
}

static enum rdt_status on_end(struct peer_session *session, const void *message, struct rdt_error *err)
{
    const Rdt__Pb__PullEnd *end = message;

    if (end->from_owner)
        pull_on_end(session, end);
    else
        serve_on_end(session, end);
    return RDT_OK;
}

static enum rdt_status on_copies(struct peer_session *session, const void *message, struct rdt_error *err)
{
    const Rdt__Pb__Replicas *copies = message;
    const struct {
        size_t n;
        unsigned most;
    } lists[] = {{copies->n_whole, REPLICAS_MAX_GENERATIONS},       {copies->n_dropped, REPLICAS_MAX_GENERATIONS},
                 {copies->n_invalidated, REPLICAS_MAX_GENERATIONS}, {copies->n_valid, REPLICAS_MAX_GENERATIONS},
                 {copies->n_invalid, REPLICAS_MAX_GENERATIONS},     {copies->n_slow, REPLICAS_MAX_SINGLE},
                 {copies->n_ask_again, REPLICAS_MAX_SINGLE},        {copies->n_summed, REPLICAS_MAX_SINGLE}};

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        if (lists[i].n > lists[i].most)
            return rdt_error_set(err, RDT_PROTOCOL, "node %s names %zu replicas in a list of a message: at most %u are allowed",
                                 session->peer->name, lists[i].n, lists[i].most);
    replica_directory_on_message(&session->transfers->directory, session, message);
    replicas_on_message(&session->transfers->replicas, session, message);
    return RDT_OK;
}

static enum rdt_status on_broadcast(struct peer_session *session, const void *message, struct rdt_error *err)
{
    return broadcast_on_ask(session, message, err);
}

static const struct {
    enum rdt_peer_message type;
    const ProtobufCMessageDescriptor *descriptor;
    handler on_message;
} handlers[] = {
    {RDT_PEER_OFFER, &rdt__pb__offer__descriptor, on_offer},
    {RDT_PEER_PULL, &rdt__pb__pull__descriptor, on_pull},
    {RDT_PEER_PULL_META, &rdt__pb__pull_meta__descriptor, on_meta},
    {RDT_PEER_PULL_ALIVE, &rdt__pb__pull_alive__descriptor, on_alive},
    {RDT_PEER_PULL_CREDIT, &rdt__pb__pull_credit__descriptor, on_credit},
    {RDT_PEER_PULL_START, &rdt__pb__pull_start__descriptor, on_start},
    {RDT_PEER_PULL_TICKET, &rdt__pb__pull_ticket__descriptor, on_ticket},
    {RDT_PEER_PULL_KEYS, &rdt__pb__pull_keys__descriptor, on_keys},
    {RDT_PEER_PULL_END, &rdt__pb__pull_end__descriptor, on_end},
    {RDT_PEER_PULL_ABORT, &rdt__pb__pull_abort__descriptor, on_abort},
    {RDT_PEER_REPLICAS, &rdt__pb__replicas__descriptor, on_copies},
    {RDT_PEER_BROADCAST, &rdt__pb__group_broadcast__descriptor, on_broadcast},
    {RDT_PEER_BROADCAST_RESULT, &rdt__pb__broadcast_result__descriptor, on_broadcast_result},
};

enum rdt_status transfers_peer_frame(struct transfers *transfers, struct peer *peer, const struct frame *frame,
                                     struct rdt_error *err)
{
    struct peer_session *session = peer_session_get(transfers, peer);

    if (!session)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for node %s", peer->name);
    if (transfers->closing || frame->type == RDT_PEER_PULL_ABORTED)
        return RDT_OK;
    for (size_t i = 0; i < sizeof handlers / sizeof handlers[0]; i++) {
        enum rdt_status status;
        ProtobufCMessage *message;
        struct arena arena;

        if (handlers[i].type != frame->type)
            continue;
        arena_init(&arena, RDT_MAX_DECODED_BYTES);
        status = arena_unpack(&arena, handlers[i].descriptor, frame->payload, frame->length, handlers[i].descriptor->short_name,
                              &message, err);
        if (status == RDT_OK)
            status = handlers[i].on_message(session, message, err);
        else
            rdt_error_prefix(err, "node %s", peer->name);
        arena_fini(&arena);
        return status;
    }
    return rdt_error_set(err, RDT_PROTOCOL, "a message of unknown type %u from node %s", frame->type, peer->name);
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
