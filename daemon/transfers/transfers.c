/* SPDX-License-Identifier: Apache-2.0 */
/* The room as a whole: start and end, statistics, and what rdtctl shows. */
#include <stdlib.h>
#include <string.h>

#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/replica_directory.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_record.h"
#include "daemon/transfers/transfer_ticket.h"

/* The tables by which lower files of the room call higher ones. */
static const struct replica_events replica_events = {.on_found = serve_answer,
                                                     .on_refused = serve_refuse,
                                                     .on_arrived = serve_go_on,
                                                     .on_failed = serve_fail,
                                                     .on_ask_again = pull_replica_ask_again,
                                                     .on_checked = pull_checked,
                                                     .on_unwanted = pull_replica_unwanted};
static const struct transfer_ticket_events transfer_ticket_events = {
    .receive = pull_receive, .waits = pull_heard, .send = serve_send_in_order, .fail_serve = serve_fail};

void transfers_init(struct transfers *transfers)
{
    list_init(&transfers->under_way.active);
    list_init(&transfers->under_way.serves);
    list_init(&transfers->load.paced);
    list_init(&transfers->remotes);
    list_init(&transfers->broadcasts);
    index_init(&transfers->under_way.by_id, 1);
    map_init(&transfers->coalesced_requests);
    replicas_init(&transfers->replicas, transfers, &replica_events);
    replica_directory_init(&transfers->directory, transfers);
    transfer_tickets_init(transfers);
    transfers->connections = &transfers_connection_events;
    transfers->tickets.events = &transfer_ticket_events;
    ids_init(&transfers->ids, IDS_TRANSFERS, IDS_HALF_BITS, IDS_FIRST);
}

void transfers_fini(struct transfers *transfers)
{
    tickets_fini(&transfers->tickets.all);
    replica_directory_fini(&transfers->directory);
    replicas_fini(&transfers->replicas);
    list_for_each_safe (node, &transfers->remotes)
        remote_free(container_of(node, struct remote, link));
    index_fini(&transfers->under_way.by_id);
    map_fini(&transfers->coalesced_requests);
    for (unsigned i = 0; i < TRANSFER_HISTORY; i++) {
        record_drop_decision(transfers->past.records[i].decision);
        free(transfers->past.records[i].sources);
    }
    record_drop_decision(transfers->decided.decision);
}

unsigned transfers_active(const struct transfers *transfers)
{
    return transfers->under_way.n;
}

void transfers_set_on_idle(struct transfers *transfers, void (*on_idle)(struct transfers *))
{
    transfers->ends.on_idle = on_idle;
}

uint64_t transfers_quiet_ns(const struct transfers *transfers)
{
    return transfers->load.last_sent_ns ? uv_hrtime() - transfers->load.last_sent_ns : UINT64_MAX;
}

void transfers_status(const struct transfers *transfers, Rdt__Pb__StatusReply *reply_p)
{
    uint64_t *const ended[TRANSFER_OUTCOMES] = {&reply_p->transfers_done, &reply_p->transfers_failed,
                                                &reply_p->transfers_cancelled, &reply_p->transfers_timed_out};

    reply_p->transfers_active = transfers_active(transfers);
    reply_p->replicas = map_count(&transfers->replicas.by_origin);
    reply_p->replica_bytes = transfers->replicas.bytes;
    for (unsigned i = 0; i < TRANSFER_PATHS; i++)
        for (unsigned outcome = 0; outcome < TRANSFER_OUTCOMES; outcome++)
            *ended[outcome] += transfers->past.paths[i].ended[outcome];
}

const struct transfer_record *transfers_history(const struct transfers *transfers, uint64_t n)
{
    if (n >= TRANSFER_HISTORY || n >= transfers->past.n)
        return NULL;
    return &transfers->past.records[(transfers->past.n - 1 - n) % TRANSFER_HISTORY];
}

void transfers_object_ended(struct transfers *transfers, const struct object *object)
{
    replica_directory_object_ended(&transfers->directory, object);
}

uint64_t transfers_evict_replicas(struct transfers *transfers, uint64_t bytes)
{
    return replicas_evict(&transfers->replicas, bytes);
}

void transfers_refuse_parked(struct transfers *transfers)
{
    transfers->refuse_parked = true;
    list_each_safe (struct transfer, transfer, &transfers->under_way.active, record.link)
        if (transfer->sm.state == TRANSFER_PARKED)
            transfer_fail(transfer, RDT_SHUTTING_DOWN, "object \"%s\" cannot be put any more: the daemon is shutting down",
                          transfer->ref.id);
    serve_refuse_parked(transfers);
}

/* ---- transports that are unloaded ---- */

enum rdt_status transfers_transport_idle(const struct transfers *transfers, const struct transport *transport,
                                         struct rdt_error *err)
{
    list_each (struct remote, remote, &transfers->remotes, link) {
        const struct peer_transport *pt = peer_transport_find(remote, transport->name);
        if (!pt || pt->n_users == 0)
            continue;
        const struct list *pull = list_first(&pt->pulls) ? list_first(&pt->pulls) : list_first(&pt->cut_off.pulls);
        if (pull)
            return rdt_error_set(err, RDT_BUSY, "transport %s is in use: transfer %llu from node %s uses it", transport->name,
                                 (unsigned long long)container_of(pull, struct transfer, pull.path.by_connection)->id,
                                 remote->peer->name);
        return rdt_error_set(err, RDT_BUSY, "transport %s is in use: a transfer to node %s uses it", transport->name,
                             remote->peer->name);
    }
    if (transfers->groups && transfer_groups_use(transfers, transport, err))
        return RDT_BUSY;
    if (transport->ops_active > 0)
        return rdt_error_set(err, RDT_BUSY, "transport %s is in use: %llu of its operations have not ended", transport->name,
                             (unsigned long long)transport->ops_active);
    return RDT_OK;
}

bool transfers_transport_gone(const struct transfers *transfers, const struct transport *transport)
{
    list_each (struct remote, remote, &transfers->remotes, link) {
        const struct peer_transport *pt = peer_transport_find(remote, transport->name);
        if (pt && (pt->sm.state != PT_NONE || pt->n_users > 0))
            return false;
    }
    return transport->ops_active == 0 && !(transfers->groups && transfer_groups_use(transfers, transport, NULL));
}

/* ---- for rdtctl ---- */

const struct transfer_record *transfers_next_active(const struct transfers *transfers, uint64_t after)
{
    uint64_t id;

    return index_next(&transfers->under_way.by_id, after + 1, &id);
}

const struct transfer_record *transfers_active_record(const struct transfers *transfers, uint64_t id)
{
    return index_get(&transfers->under_way.by_id, id);
}

void transfer_record_to_wire(const struct transfer_record *record, Rdt__Pb__TransferInfo *info,
                             char ref_text[RDT_REF_TEXT_BYTES], char waits[RECORD_WAITS_BYTES])
{
    rdt__pb__transfer_info__init(info);
    rdt_ref_to_text(&record->ref, ref_text);
    record_waits_for(record, waits);
    info->waits = waits;
    info->awaits_put = record->awaits_put;
    info->transfer = record->id;
    info->ref = ref_text;
    info->direction = (char *)record->direction;
    info->peer = (char *)record->peer;
    info->state = (char *)record->state;
    info->path = (char *)record->path;
    info->route = (char *)record->route;
    info->bytes = record->bytes;
    info->bytes_done = record->bytes_done;
    info->age_ns = (int64_t)(uv_hrtime() - record->since_ns);
    info->elapsed_ns = (int64_t)record->elapsed_ns;
    info->error = (char *)record->error;
    info->client = record->client;
    info->parent = record->parent;
    info->reader = (char *)(record->reader ? record->reader : "");
    info->from_memory = (char *)record->from;
    info->to_memory = (char *)record->to;
}

void transfers_peer_summary(const struct peer *peer, struct peer_summary *summary)
{
    const struct remote *remote = peer->remote;
    char text[192];

    *summary = (struct peer_summary){0};
    if (!remote)
        return;
    summary->n_pulls = remote->counts.n_pulls;
    summary->n_serves = remote->counts.n_serves;
    summary->bytes_pulled = remote->counts.bytes_pulled;
    summary->bytes_served = remote->counts.bytes_served;
    summary->fell_back = remote->fell_back.n;
    list_each (const struct peer_transport, pt, &remote->transports, link) {
        if (pt->remote_known && summary->n_versions < PATH_MAX_CANDIDATES &&
            strcmp(pt->transport->version, pt->remote_version) != 0)
            (void)snprintf(summary->versions[summary->n_versions++], sizeof summary->versions[0], "%s %.64s here, %s there",
                           pt->transport->name, pt->transport->version, pt->remote_version);
        if (pt->sm.state != PT_CONNECTED) {
            if (peer->state == PEER_UP && summary->n_unusable < PATH_MAX_CANDIDATES) {
                peer_transport_why_not(pt, summary->unusable[summary->n_unusable], sizeof summary->unusable[0]);
                summary->n_unusable += summary->unusable[summary->n_unusable][0] != '\0';
            }
            continue;
        }
        if (summary->n_transports == PATH_MAX_CANDIDATES)
            continue;
        plugin_conn_describe(&pt->conn, summary->routes[summary->n_transports], sizeof summary->routes[0]);
        if (plugin_conn_trouble(&pt->conn, text, sizeof text) == RDT_PEER_LOST)
            (void)snprintf(summary->trouble[summary->n_troubles++], sizeof summary->trouble[0], "%.20s: %s",
                           pt->transport->name, text);
        summary->transports[summary->n_transports++] = pt->transport->name;
    }
}
