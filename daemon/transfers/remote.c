/* SPDX-License-Identifier: Apache-2.0 */
/* Remotes: what transfers know of each other node that was ever asked or served, and sending to it. */
#include <stdlib.h>
#include <string.h>

#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/transfer_impl.h"

#define LINES_NS UINT64_C(10000000000) /* between two lines of the log of one kind about one node */

struct remote *remote_get(struct transfers *transfers, struct peer *peer)
{
    struct remote *remote = peer->remote;

    if (remote)
        return remote;
    remote = calloc(1, sizeof *remote);
    if (!remote)
        return NULL;
    remote->transfers = transfers;
    remote->peer = peer;
    remote->fell_back.lines.every_ns = remote->rebuilt_lines.every_ns = LINES_NS;
    list_init(&remote->pending);
    list_init(&remote->pulls);
    list_init(&remote->looked);
    list_init(&remote->failing[0]);
    list_init(&remote->failing[1]);
    list_init(&remote->serves);
    list_init(&remote->answers.held);
    list_init(&remote->lost_serves);
    list_init(&remote->transports);
    list_init(&remote->in_groups);
    list_init(&remote->members);
    list_init(&remote->replicas.listed);
    list_init(&remote->replicas.to_report);
    list_init(&remote->replicas.sums_awaited);
    list_init(&remote->replicas.sums_lost);
    list_init(&remote->entries.receiving);
    list_init(&remote->entries.judged);
    list_init(&remote->entries.whole);
    list_init(&remote->entries.lost);
    list_init(&remote->entries.ending);
    list_init(&remote->entries.sums_due);
    list_init(&remote->entries.sums_ending);
    map_init(&remote->by_number);
    peer->remote = remote;
    list_append(&transfers->remotes, &remote->link);
    return remote;
}

struct slices *remote_slices(const struct remote *remote)
{
    return remote->transfers->closing ? NULL : &remote->transfers->deadlines->slices;
}

void remote_use(struct remote **at_p, struct remote *remote)
{
    if (*at_p)
        (*at_p)->n_users--;
    if (remote)
        remote->n_users++;
    *at_p = remote;
}

enum rdt_status remote_send(struct remote *remote, enum rdt_peer_message type, const ProtobufCMessage *message,
                            struct rdt_error *err)
{
    if (remote->transfers->closing)
        return rdt_error_set(err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    return peer_send(remote->peer, type, message, err);
}

enum rdt_status remote_send_over(struct remote *remote, unsigned epoch, enum rdt_peer_message type,
                                 const ProtobufCMessage *message, struct rdt_error *err)
{
    if (!remote->transfers->closing && epoch != remote->peer->epoch)
        return rdt_error_set(err, RDT_PEER_LOST, "the link to that node was down meanwhile");
    return remote_send(remote, type, message, err);
}

void remote_free(struct remote *remote)
{
    list_remove(&remote->link);
    slice_stop(&remote->fail);
    slice_stop(&remote->stop);
    slice_stop(&remote->look);
    slice_stop(&remote->answers.slice);
    slice_stop(&remote->replicas.report);
    slice_stop(&remote->replicas.lose_sums);
    slice_stop(&remote->entries.end);
    slice_stop(&remote->entries.judge);
    list_each_safe (struct peer_transport, pt, &remote->transports, link) {
        cut_off_stop(&pt->cut_off);
        free(pt);
    }
    list_each_safe (struct peer_transport, pt, &remote->in_groups, link) {
        cut_off_stop(&pt->cut_off);
        free(pt);
    }
    map_fini(&remote->by_number);
    free(remote);
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

bool remote_pickles_trusted(const struct remote *remote)
{
    return peer_is_one_of(remote->peer, remote->transfers->options->trusted_pickles);
}

void remote_ping(struct remote *remote)
{
    remote->ping.asked++;
    remote->ping.due =
        remote->peer->state == PEER_UP; /* otherwise nobody answers it, and it would keep later ones from being sent */
    peer_probe(remote->peer);
}

void remote_verify(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;
    struct remote *remote = transfer->pull.peer;
    int64_t patience_ns = 2 * (int64_t)transfers->options->peer_timeout_ns;

    if (remote->ping.due) {
        transfer->pull.failure.ping = remote->ping.asked + 1;
        remote->ping.ask_again = true;
    } else {
        remote_ping(remote);
        transfer->pull.failure.ping = remote->ping.asked;
    }
    /* This is for a node that sends other messages, but never answers the ping. */
    (void)deadline_set(transfers->deadlines, &transfer->pull.stall, patience_ns);
}
