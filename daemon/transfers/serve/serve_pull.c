/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's side of a pull, driven by the messages of the reader and the events of its node: a pull is
 * looked up, waits until its object has been put, is answered (serve_answer.c) and sent (serve_send.c). */
#include <stdlib.h>
#include <string.h>

#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_record.h"
#include "wire_ref.h"

#define MAX_PULLS 65536u /* of one peer at a time */

void serve_refuse_parked(struct transfers *transfers)
{
    list_each_safe (struct serve, out, &transfers->serves, record.link) {
        struct rdt_error err;
        if (out->sm.state != SERVE_PARKED)
            continue;
        (void)rdt_error_set(&err, RDT_SHUTTING_DOWN, "object \"%s\" cannot be put any more: its daemon is shutting down",
                            out->ref.id);
        serve_refuse(out, &err);
    }
}

static void on_put(struct object_waiter *waiter, struct object *object, const struct rdt_error *why)
{
    struct serve *out = container_of(waiter, struct serve, waiter);

    if (why)
        serve_refuse(out, why);
    else
        serve_answer(out, object);
}

static void on_published(struct name_waiter *waiter, struct object *object, uint64_t version, const struct rdt_error *err)
{
    struct serve *out = container_of(waiter, struct serve, named);

    out->version = version;
    if (object)
        serve_answer(out, object);
    else
        serve_refuse(out, err);
}

/* Finds the requested object by its own ref, or the newest version of a name. AGAIN: the object is not there
 * yet, and may be waited for. */
static enum rdt_status find_object(struct transfers *transfers, const struct rdt_ref *ref, const struct owner *requester,
                                   struct object **object_p, uint64_t *version_p, struct rdt_error *err)
{
    *version_p = 0;
    return ref->is_name ? names_find(transfers->names, ref, requester, object_p, version_p, err)
                        : object_table_find(transfers->objects, ref, requester, object_p, err);
}

static enum rdt_status park(struct serve *out, struct rdt_error *err)
{
    return out->ref.is_name ? names_wait(out->transfers->names, &out->ref, &out->account->owner, &out->named, err)
                            : object_table_wait(out->transfers->objects, &out->ref, &out->account->owner, &out->waiter, err);
}

static bool take_selection(struct serve *out, const Rdt__Pb__Pull *pull)
{
    out->select = calloc(pull->n_tensors + 1, sizeof *out->select);
    if (!out->select)
        return false;
    if (pull->n_tensors > 0)
        memcpy(out->select, pull->tensors, pull->n_tensors * sizeof *out->select);
    out->n_select = (uint32_t)pull->n_tensors;
    return true;
}

/* Finds the object of a sub-pull: another pull has been answered about the whole object, and holds it for its
 * sub-pulls. */
static enum rdt_status find_whole(struct peer_session *session, const Rdt__Pb__Pull *pull, const struct owner *requester,
                                  struct object **object_p, uint64_t *version_p, struct rdt_error *err)
{
    const struct serve *whole = map_get_u64(&session->serves, pull->part_of);

    *version_p = 0;
    if (!whole || whole->sm.state != SERVE_OFFERED || !whole->object || whole->replica)
        return rdt_error_set(err, RDT_NOT_FOUND, "the pull of the whole object has ended");
    if (!owner_equal(&whole->account->owner, requester))
        return rdt_error_set(err, RDT_DENIED, "the pull of the whole object has another requester");
    *object_p = whole->object;
    return RDT_OK;
}

enum rdt_status serve_on_pull(struct peer_session *session, const Rdt__Pb__Pull *pull, struct rdt_error *err)
{
    struct transfers *transfers = session->transfers;
    struct rdt_error why = {0};
    struct owner requester;
    struct object *object;
    struct serve *out;
    struct rdt_ref ref;
    uint64_t version;
    enum rdt_status status;

    if (map_get_u64(&session->serves, pull->transfer))
        return rdt_error_set(err, RDT_PROTOCOL, "node %s uses transfer number %llu twice", session->peer->name,
                             (unsigned long long)pull->transfer);
    status = wire_ref_to(pull->ref, &ref, &why);
    if (status == RDT_OK && !transfers_check_requester(transfers, pull->requester, &requester, &why))
        status = why.status;
    if (status == RDT_OK && map_count(&session->serves) >= MAX_PULLS)
        status = rdt_error_set(&why, RDT_LIMIT, "node %s already has %u transfers under way from this node",
                               session->peer->name, MAX_PULLS);
    if (status == RDT_OK && pull->from_replica && (pull->slice || pull->meta_only || ref.generation == 0))
        status = rdt_error_set(&why, RDT_UNSUPPORTED, "a replica serves the whole object only, not a slice or its metadata");
    else if (status == RDT_OK && pull->part_of != 0)
        status = find_whole(session, pull, &requester, &object, &version, &why);
    else if (status == RDT_OK && !pull->from_replica)
        status = find_object(transfers, &ref, &requester, &object, &version, &why);
    if (status == RDT_AGAIN && transfers->refuse_parked)
        status =
            rdt_error_set(&why, RDT_SHUTTING_DOWN, "object \"%s\" cannot be put any more: its daemon is shutting down", ref.id);
    if (status != RDT_OK && status != RDT_AGAIN) {
        serve_answer_error(session, pull->transfer, &why);
        return RDT_OK;
    }
    out = serve_new(session, pull, &ref, &requester, &why);
    if (!out) {
        serve_answer_error(session, pull->transfer, &why);
        return RDT_OK;
    }
    out->waiter.on_event = on_put;
    out->named.on_event = on_published;
    if (pull->part_of != 0 && !take_selection(out, pull)) {
        (void)rdt_error_set(&why, RDT_NO_MEMORY, "no memory to serve tensors of object \"%s\"", ref.id);
        serve_refuse(out, &why);
    } else if (pull->from_replica) {
        replica_serve(&transfers->replicas, out);
    } else if (status == RDT_OK) {
        out->version = version;
        serve_answer(out, object);
    } else if (park(out, &why) != RDT_OK) {
        serve_answer_error(session, pull->transfer, &why);
        serve_end(out);
    } else if (pull->tell_parked) {
        Rdt__Pb__PullParked parked = RDT__PB__PULL_PARKED__INIT;
        parked.transfer = pull->transfer;
        (void)peer_session_send(session, RDT_PEER_PULL_PARKED, &parked.base, NULL);
    }
    return RDT_OK;
}

/* ---- later messages of the reader ---- */

void serve_on_end(struct peer_session *session, const Rdt__Pb__PullEnd *end)
{
    struct serve *out = map_get_u64(&session->serves, end->transfer);

    if (!out)
        return;
    out->reader_done = true;
    if (out->sm.state == SERVE_SENDING && out->one_sided && end->status == RDT_OK) {
        out->record.bytes_done = out->stream_bytes;
        out->transfers->counts->bytes_out += out->stream_bytes;
        session->bytes_out += out->stream_bytes;
        if (out->connection)
            record_lanes(&out->record, &out->connection->conn);
        serve_end(out);
        return;
    }
    if (out->sm.state == SERVE_ABORT)
        serve_settle(out); /* Only the reader was still missing. */
    else
        serve_stop(out);
}

void serve_on_credit(struct peer_session *session, const Rdt__Pb__PullCredit *credit)
{
    struct serve *out = map_get_u64(&session->serves, credit->transfer);

    if (out && credit->over_ns > 0)
        serve_take_answer(out, credit);
    if (!out || out->sm.state == SERVE_ABORT || credit->chunks <= out->credit)
        return;
    out->credit = credit->chunks;
    if (out->sm.state == SERVE_SENDING)
        serve_go_on(out);
}

void serve_on_abort(struct peer_session *session, const Rdt__Pb__PullAbort *message)
{
    struct serve *out = map_get_u64(&session->serves, message->transfer);
    struct rdt_error why;

    if (!out)
        return;
    out->reader_done = true;
    (void)rdt_error_set(&why, RDT_CANCELLED, "the reader has cancelled the transfer");
    record_fail(&out->record, &why);
    if (out->sm.state == SERVE_ABORT)
        serve_settle(out);
    else
        serve_stop(out);
}

void serve_shut_down(struct transfers *transfers, const struct rdt_error *why)
{
    list_for_each_safe (node, &transfers->serves)
        serve_fail(container_of(node, struct serve, record.link), why);
}

void serve_link_down(struct peer_session *session)
{
    struct rdt_error why;
    struct serve *out;
    size_t cursor = 0;

    (void)rdt_error_set(&why, RDT_PEER_LOST, "the link to the reader's node is down");
    while ((out = map_next(&session->serves, &cursor))) {
        /* The reader's node may come back and count from one again. */
        map_remove_u64(&session->serves, out->number);
        record_fail(&out->record, &why);
        serve_stop(out);
    }
}

void serve_connection_closed(struct peer_transport *pt)
{
    pt->sends_in_flight = 0;
    list_each_safe (struct serve, out, &pt->users_out, by_connection) {
        struct rdt_error err;
        out->reader_done = true;
        if (out->sm.state == SERVE_ABORT) {
            serve_settle(out);
        } else {
            (void)rdt_error_set(&err, RDT_TRANSPORT, "%s at the owner: %s", pt->transport->name,
                                pt->broken[0] ? pt->broken : "the connection was taken down");
            serve_fail(out, &err);
        }
    }
}
