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
    session->fell_back_lines.every_ns = session->rebuilt_lines.every_ns = LINES_NS;
    list_init(&session->pending);
    list_init(&session->incoming);
    list_init(&session->transports);
    list_init(&session->in_groups);
    list_init(&session->members);
    list_init(&session->replica_entries);
    list_init(&session->lost_entries);
    map_init(&session->serves);
    peer->session = session;
    list_append(&transfers->sessions, &session->link);
    return session;
}

enum rdt_status peer_session_send(struct peer_session *session, enum rdt_peer_message type, const ProtobufCMessage *message,
                                  struct rdt_error *err)
{
    if (session->transfers->closing)
        return rdt_error_set(err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    return peer_send(session->peer, type, message, err);
}

void peer_session_free(struct peer_session *session)
{
    list_remove(&session->link);
    list_for_each_safe (node, &session->transports)
        free(container_of(node, struct peer_transport, link));
    list_for_each_safe (node, &session->in_groups)
        free(container_of(node, struct peer_transport, link));
    map_fini(&session->serves);
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

void peer_session_ping(struct peer_session *session)
{
    session->asked++;
    session->answer_due = true;
    peer_probe(session->peer);
}

void peer_session_verify(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;
    struct peer_session *session = transfer->pull.peer;
    int64_t patience_ns = 2 * (int64_t)transfers->options->peer_timeout_ns;

    if (session->answer_due) {
        transfer->pull.ping = session->asked + 1;
    } else {
        peer_session_ping(session);
        transfer->pull.ping = session->asked;
    }
    /* This is for a node that sends other messages, but never answers the ping. */
    (void)deadline_set(transfers->deadlines, &transfer->pull.stall, patience_ns);
}
