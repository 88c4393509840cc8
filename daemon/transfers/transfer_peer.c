/* SPDX-License-Identifier: Apache-2.0 */
/* The events of peers, groups and connections: passes them on to the pulls, serves, replicas and broadcasts
 * that they concern. */
#include <stdio.h>
#include <string.h>

#include "daemon/transfers/broadcast/transfer_broadcast.h"
#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/replica_directory.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_order.h"

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
        list_append(&session->incoming, &transfer->pull.by_peer);
        transfer_in_ask(transfer);
    }
}

void transfers_peer_up(struct transfers *transfers, struct peer *peer)
{
    struct peer_session *session = peer_session_get(transfers, peer);

    if (!session || transfers->closing)
        return;
    peer_transports_up(session);
    replica_directory_link_up(session);
    replicas_peer_up(&transfers->replicas, session);
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
            transfer->pull.origin = session;
        (void)snprintf(transfer->record.peer, sizeof transfer->record.peer, "%s", into->name);
        old_session->n_in--;
        session->n_in++;
    }
    if (session && !from_is_known) /* The nodes of a group are known by their uuids. */
        broadcasts_peer_merged(old_session, session);
    if (session && into->state == PEER_UP)
        ask_pending(session);
}

/* Fails all transfers. Those that wait for the rest of their reservation group fail first, because the end of
 * the rest would let them go on. */
static void fail_each(struct list *transfers, const struct rdt_error *why)
{
    for (unsigned pass = 0; pass < 2; pass++) {
        struct list now;
        struct transfer *transfer;

        list_init(&now);
        list_splice(&now, transfers);
        while ((transfer = take_over(&now, transfers)))
            if (pass == 1 || !list_empty(&transfer->reserve.link))
                transfer_fail_err(transfer, why);
    }
}

void transfers_peer_answer(struct transfers *transfers, struct peer *peer)
{
    struct peer_session *session = peer->session;
    struct transfer *transfer;
    bool again = false;
    struct list now;

    if (!session || transfers->closing)
        return;
    session->answer_due = false;
    list_init(&now);
    list_splice(&now, &session->incoming);
    while ((transfer = take_over(&now, &session->incoming))) {
        if (transfer->pull.ping == 0)
            continue;
        if (transfer->pull.ping > session->asked)
            again = true;
        else
            transfer_in_fail_noted(transfer);
    }
    if (again && !session->answer_due)
        peer_session_ping(session);
}

static void tell_incoming(struct peer_transport *pt, void (*tell)(struct transfer *, const struct peer_transport *))
{
    struct peer_session *session = pt->session;
    struct transfer *transfer;
    struct list now;

    list_init(&now);
    list_splice(&now, &session->incoming);
    while ((transfer = take_over(&now, &session->incoming)))
        tell(transfer, pt);
}

static void tell_connected(struct peer_transport *pt)
{
    tell_incoming(pt, transfer_in_connected);
}

static void tell_refused(struct peer_transport *pt)
{
    tell_incoming(pt, transfer_in_refused);
}

static void tell_broken(struct peer_transport *pt)
{
    struct rdt_error err;

    transfer_in_connection_failed(pt);
    (void)rdt_error_set(&err, RDT_TRANSPORT, "%s: %s", pt->transport->name, pt->broken);
    list_for_each_safe (node, &pt->users_out)
        serve_fail(container_of(node, struct serve, by_connection), &err);
}

static void check_closed(struct transfers *transfers)
{
    void (*on_closed)(void *arg);

    if (!transfers->closing || !transfers->on_closed)
        return;
    list_for_each (node, &transfers->sessions) {
        if (!peer_transports_closed(container_of(node, struct peer_session, link)))
            return;
    }
    on_closed = transfers->on_closed;
    transfers->on_closed = NULL;
    on_closed(transfers->closed_arg);
}

static void tell_closed(struct peer_transport *pt)
{
    transfer_in_connection_failed(pt);
    serve_connection_closed(pt);
    check_closed(pt->session->transfers);
}

/* The transfers that wait for the group to be formed anew will not be served. */
static void tell_gone(struct peer_transport *pt)
{
    list_each_safe (struct transfer, transfer, &pt->users_in, pull.by_connection)
        if (transfer->sm.state == TRANSFER_CONNECT)
            transfer_fail(transfer, RDT_TRANSPORT, "%s: the group is destroyed", pt->transport->name);
}

const struct connection_events transfers_connection_events = {.on_connected = tell_connected,
                                                              .on_refused = tell_refused,
                                                              .on_broken = tell_broken,
                                                              .on_closed = tell_closed,
                                                              .on_group_gone = tell_gone};

static void session_fail(struct peer_session *session, const struct rdt_error *why)
{
    session->answer_due = false;
    peer_transports_down(session);
    fail_each(&session->pending, why);
    fail_each(&session->incoming, why);
    transfer_members_link_down(session, why);
    broadcasts_link_down(session, why);
    serve_link_down(session);
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
    if (transfers->closing || session->n_in > 0 || session->n_out > 0 || session->n_replicas > 0 ||
        map_count(&session->serves) > 0 || !list_empty(&session->pending) || !list_empty(&session->incoming) ||
        !list_empty(&session->in_groups) || !list_empty(&session->members) || !list_empty(&session->replica_entries) ||
        !list_empty(&session->lost_entries) || !peer_transports_closed(session) || broadcasts_name_session(session))
        return false;
    list_each (const struct transfer, transfer, &transfers->active, record.link)
        if (transfer->pull.origin == session || transfer->pull.read_from == session)
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
    transfers->on_closed = on_closed;
    transfers->closed_arg = arg;
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
HANDLER(on_meta, transfer_in_on_meta)
HANDLER(on_parked, transfer_in_on_parked)
HANDLER(on_credit, serve_on_credit)
HANDLER(on_start, serve_on_start)
HANDLER(on_turn, order_on_message)
HANDLER(on_keys, transfer_in_on_keys)
HANDLER(on_abort, serve_on_abort)

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
        transfer_in_on_end(session, end);
    else
        serve_on_end(session, end);
    return RDT_OK;
}

static enum rdt_status on_aborted(struct peer_session *session, const void *message, struct rdt_error *err)
{
    /* The reader's memory depends on its own operations only. */
    return RDT_OK;
}

static enum rdt_status on_copies(struct peer_session *session, const void *message, struct rdt_error *err)
{
    replica_directory_on_message(&session->transfers->directory, session, message);
    replicas_on_message(&session->transfers->replicas, session, message);
    return RDT_OK;
}

static enum rdt_status on_broadcast(struct peer_session *session, const void *message, struct rdt_error *err)
{
    return transfer_member_on_ask(session, message, err);
}

static enum rdt_status on_broadcast_word(struct peer_session *session, const void *message, struct rdt_error *err)
{
    const Rdt__Pb__BroadcastResult *word = message;

    if (word->from_root)
        transfer_member_on_over(session, word);
    else
        broadcast_on_word(session, word);
    return RDT_OK;
}

static const struct {
    enum rdt_peer_message type;
    const ProtobufCMessageDescriptor *descriptor;
    handler on_message;
} handlers[] = {
    {RDT_PEER_OFFER, &rdt__pb__offer__descriptor, on_offer},
    {RDT_PEER_PULL, &rdt__pb__pull__descriptor, on_pull},
    {RDT_PEER_PULL_META, &rdt__pb__pull_meta__descriptor, on_meta},
    {RDT_PEER_PULL_PARKED, &rdt__pb__pull_parked__descriptor, on_parked},
    {RDT_PEER_PULL_CREDIT, &rdt__pb__pull_credit__descriptor, on_credit},
    {RDT_PEER_PULL_START, &rdt__pb__pull_start__descriptor, on_start},
    {RDT_PEER_PULL_TICKET, &rdt__pb__pull_ticket__descriptor, on_turn},
    {RDT_PEER_PULL_KEYS, &rdt__pb__pull_keys__descriptor, on_keys},
    {RDT_PEER_PULL_END, &rdt__pb__pull_end__descriptor, on_end},
    {RDT_PEER_PULL_ABORT, &rdt__pb__pull_abort__descriptor, on_abort},
    {RDT_PEER_PULL_ABORTED, &rdt__pb__pull_aborted__descriptor, on_aborted},
    {RDT_PEER_REPLICAS, &rdt__pb__replicas__descriptor, on_copies},
    {RDT_PEER_BROADCAST, &rdt__pb__group_broadcast__descriptor, on_broadcast},
    {RDT_PEER_BROADCAST_RESULT, &rdt__pb__broadcast_result__descriptor, on_broadcast_word},
};

enum rdt_status transfers_peer_frame(struct transfers *transfers, struct peer *peer, const struct frame *frame,
                                     struct rdt_error *err)
{
    struct peer_session *session = peer_session_get(transfers, peer);

    if (!session)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for node %s", peer->name);
    if (transfers->closing)
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
