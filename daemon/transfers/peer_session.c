/* SPDX-License-Identifier: Apache-2.0 */
/* The sessions of peers: what transfers know of each node that was ever asked or served, and sending to it. */
#include <stdlib.h>
#include <string.h>

#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/transfer_impl.h"

#define LINES_NS UINT64_C(10000000000) /* between two lines of the log of one kind about one node */

struct peer_session *peer_session_get(struct transfers *transfers, struct peer *peer)
{
    struct peer_session *session = peer->session;

    if (session)
        return session;
    session = calloc(1, sizeof *session);
    if (!session)
        return NULL;
    session->transfers = transfers;
    session->peer = peer;
    session->fell_back.lines.every_ns = session->rebuilt_lines.every_ns = LINES_NS;
    list_init(&session->pending);
    list_init(&session->pulls);
    list_init(&session->looked);
    list_init(&session->failing[0]);
    list_init(&session->failing[1]);
    list_init(&session->serves);
    list_init(&session->lost_serves);
    list_init(&session->transports);
    list_init(&session->in_groups);
    list_init(&session->members);
    list_init(&session->replicas.listed);
    list_init(&session->replicas.to_report);
    list_init(&session->replicas.sums_awaited);
    list_init(&session->replicas.sums_lost);
    list_init(&session->entries.receiving);
    list_init(&session->entries.judged);
    list_init(&session->entries.whole);
    list_init(&session->entries.lost);
    list_init(&session->entries.ending);
    list_init(&session->entries.sums_due);
    list_init(&session->entries.sums_ending);
    map_init(&session->by_number);
    peer->session = session;
    list_append(&transfers->sessions, &session->link);
    return session;
}

struct slices *session_slices(const struct peer_session *session)
{
    return session->transfers->closing ? NULL : &session->transfers->deadlines->slices;
}

void peer_session_name(struct peer_session **at_p, struct peer_session *session)
{
    if (*at_p)
        (*at_p)->n_named--;
    if (session)
        session->n_named++;
    *at_p = session;
}

enum rdt_status peer_session_send(struct peer_session *session, enum rdt_peer_message type, const ProtobufCMessage *message,
                                  struct rdt_error *err)
{
    if (session->transfers->closing)
        return rdt_error_set(err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    return peer_send(session->peer, type, message, err);
}

enum rdt_status peer_session_send_over(struct peer_session *session, unsigned epoch, enum rdt_peer_message type,
                                       const ProtobufCMessage *message, struct rdt_error *err)
{
    if (!session->transfers->closing && epoch != session->peer->epoch)
        return rdt_error_set(err, RDT_PEER_LOST, "the link to that node was down meanwhile");
    return peer_session_send(session, type, message, err);
}

void peer_session_free(struct peer_session *session)
{
    list_remove(&session->link);
    slice_stop(&session->fail);
    slice_stop(&session->stop);
    slice_stop(&session->look);
    slice_stop(&session->replicas.report);
    slice_stop(&session->replicas.lose_sums);
    slice_stop(&session->entries.end);
    slice_stop(&session->entries.judge);
    list_each_safe (struct peer_transport, pt, &session->transports, link) {
        cut_off_stop(&pt->cut_off);
        free(pt);
    }
    list_each_safe (struct peer_transport, pt, &session->in_groups, link) {
        cut_off_stop(&pt->cut_off);
        free(pt);
    }
    map_fini(&session->by_number);
    free(session);
}

bool transfers_check_requester(const struct transfers *transfers, const Rdt__Pb__Requester *requester, struct owner *owner_p,
                               struct rdt_error *err)
{
    const char *shared = transfers->options->share_tenants;
    const char *tenant = requester ? requester->tenant : "";
    size_t length = strlen(tenant);
    bool found = strcmp(shared, "*") == 0 || (length == 0 && shared[0] == '\0');

    for (const char *at = shared; !found && *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
        found = strcspn(at, ",") == length && strncmp(at, tenant, length) == 0;
    if (!requester || length > RDT_MAX_TENANT_BYTES || !found) {
        (void)rdt_error_set(err, RDT_DENIED, "tenant \"%.32s\" is not shared with other nodes here (share_tenants)", tenant);
        return false;
    }
    *owner_p = (struct owner){.uid = requester->uid};
    memcpy(owner_p->tenant, tenant, length + 1);
    return true;
}

bool session_pickles_trusted(const struct peer_session *session)
{
    return peer_is_one_of(session->peer, session->transfers->options->trusted_pickles);
}

void peer_session_ping(struct peer_session *session)
{
    session->ping.asked++;
    session->ping.due = true;
    peer_probe(session->peer);
}

void peer_session_verify(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;
    struct peer_session *session = transfer->pull.peer;
    int64_t patience_ns = 2 * (int64_t)transfers->options->peer_timeout_ns;

    if (session->ping.due) {
        transfer->pull.failure.ping = session->ping.asked + 1;
        session->ping.ask_again = true;
    } else {
        peer_session_ping(session);
        transfer->pull.failure.ping = session->ping.asked;
    }
    /* This is for a node that sends other messages, but never answers the ping. */
    (void)deadline_set(transfers->deadlines, &transfer->pull.stall, patience_ns);
}
