/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's side of a pull, driven by the messages of the reader and the events of its node: a pull is
 * looked up, waits until its object has been put, is answered (serve_answer.c) and sent (serve_send.c). */
#include <stdlib.h>
#include <string.h>

#include "daemon/transfers/remote.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_record.h"
#include "wire_ref.h"

#define MAX_PULLS 65536u /* of one peer at a time */

void serve_refuse_parked(struct transfers *transfers)
{
    list_each_safe (struct serve, serve, &transfers->under_way.serves, record.link) {
        struct rdt_error err;
        if (serve->sm.state != SERVE_PARKED)
            continue;
        (void)rdt_error_set(&err, RDT_SHUTTING_DOWN, "object \"%s\" cannot be put any more: its daemon is shutting down",
                            serve->ref.id);
        serve_refuse(serve, &err);
    }
}

static void on_put(struct object_waiter *waiter, struct object *object, const struct rdt_error *why)
{
    struct serve *serve = container_of(waiter, struct serve, waiter);

    serve->record.awaits_put = false;
    if (why)
        serve_refuse(serve, why);
    else
        serve_answer(serve, object);
}

static void on_published(struct name_waiter *waiter, struct object *object, uint64_t version, const struct rdt_error *err)
{
    struct serve *serve = container_of(waiter, struct serve, named);

    serve->record.awaits_put = false;
    serve->version = version;
    if (object)
        serve_answer(serve, object);
    else
        serve_refuse(serve, err);
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

static enum rdt_status park(struct serve *serve, struct rdt_error *err)
{
    serve->record.awaits_put = true;
    return serve->ref.is_name
               ? names_wait(serve->transfers->names, &serve->ref, &serve->account->owner, &serve->named, err)
               : object_table_wait(serve->transfers->objects, &serve->ref, &serve->account->owner, &serve->waiter, err);
}

static bool take_selection(struct serve *serve, const Rdt__Pb__Pull *pull)
{
    serve->request.select = calloc(pull->n_tensors + 1, sizeof *serve->request.select);
    if (!serve->request.select)
        return false;
    if (pull->n_tensors > 0)
        memcpy(serve->request.select, pull->tensors, pull->n_tensors * sizeof *serve->request.select);
    serve->request.n_select = (uint32_t)pull->n_tensors;
    return true;
}

/* Finds the object of a sub-pull: another pull has been answered about the whole object, and holds it for its
 * sub-pulls. */
static enum rdt_status find_whole(struct remote *remote, const Rdt__Pb__Pull *pull, const struct owner *requester,
                                  struct object **object_p, uint64_t *version_p, struct rdt_error *err)
{
    const struct serve *whole = map_get_u64(&remote->by_number, pull->parent);

    *version_p = 0;
    if (!whole || whole->sm.state != SERVE_OFFERED || !whole->object || whole->replica)
        return rdt_error_set(err, RDT_NOT_FOUND, "the pull of the whole object has ended");
    if (!owner_equal(&whole->account->owner, requester))
        return rdt_error_set(err, RDT_DENIED, "the pull of the whole object has another requester");
    *object_p = whole->object;
    return RDT_OK;
}

enum rdt_status serve_on_pull(struct remote *remote, const Rdt__Pb__Pull *pull, struct rdt_error *err)
{
    struct transfers *transfers = remote->transfers;
    struct rdt_error why = {0};
    struct owner requester;
    struct object *object;
    struct serve *serve;
    struct rdt_ref ref;
    uint64_t version;
    enum rdt_status status;

    if (map_get_u64(&remote->by_number, pull->transfer))
        return rdt_error_set(err, RDT_PROTOCOL, "it uses transfer number %llu twice", (unsigned long long)pull->transfer);
    status = wire_ref_to(pull->ref, &ref, &why);
    if (status == RDT_OK && !transfers_check_requester(transfers, pull->requester, &requester, &why))
        status = why.status;
    if (status == RDT_OK && map_count(&remote->by_number) >= MAX_PULLS)
        status = rdt_error_set(&why, RDT_LIMIT, "node %s already has %u transfers under way from this node", remote->peer->name,
                               MAX_PULLS);
    if (status == RDT_OK && pull->from_replica && (pull->slice || pull->meta_only || ref.generation == 0))
        status = rdt_error_set(&why, RDT_UNSUPPORTED, "a replica serves the whole object only, not a slice or its metadata");
    else if (status == RDT_OK && pull->parent != 0)
        status = find_whole(remote, pull, &requester, &object, &version, &why);
    else if (status == RDT_OK && !pull->from_replica)
        status = find_object(transfers, &ref, &requester, &object, &version, &why);
    if (status == RDT_AGAIN && transfers->refuse_parked)
        status =
            rdt_error_set(&why, RDT_SHUTTING_DOWN, "object \"%s\" cannot be put any more: its daemon is shutting down", ref.id);
    if (status != RDT_OK && status != RDT_AGAIN) {
        serve_answer_error(remote, pull->transfer, &why);
        return RDT_OK;
    }
    serve = serve_new(remote, pull, &ref, &requester, &why);
    if (!serve) {
        serve_answer_error(remote, pull->transfer, &why);
        return RDT_OK;
    }
    serve->waiter.on_event = on_put;
    serve->named.on_event = on_published;
    if (pull->parent != 0 && !take_selection(serve, pull)) {
        (void)rdt_error_set(&why, RDT_NO_MEMORY, "no memory to serve tensors of object \"%s\"", ref.id);
        serve_refuse(serve, &why);
    } else if (pull->from_replica) {
        replica_serve(&transfers->replicas, serve);
    } else if (status == RDT_OK) {
        serve->version = version;
        serve_answer(serve, object);
    } else if (park(serve, &why) != RDT_OK) {
        serve_answer_error(remote, pull->transfer, &why);
        serve_end(serve);
    } else if (pull->tell_alive) {
        Rdt__Pb__PullAlive alive = RDT__PB__PULL_ALIVE__INIT;
        alive.transfer = pull->transfer;
        (void)remote_send(remote, RDT_PEER_PULL_ALIVE, &alive.base, NULL);
    }
    return RDT_OK;
}

/* ---- later messages of the reader ---- */

void serve_on_end(struct remote *remote, const Rdt__Pb__PullEnd *end)
{
    struct serve *serve = map_get_u64(&remote->by_number, end->transfer);

    if (!serve)
        return;
    serve_reader_ended(serve);
    if (serve->sm.state == SERVE_SENDING && serve_is_one_sided(serve) && end->status == RDT_OK) {
        serve->record.bytes_done = serve->stream_bytes;
        serve->transfers->counts->bytes_out += serve->stream_bytes;
        remote->counts.bytes_served += serve->stream_bytes;
        if (serve->sending.connection)
            record_route(&serve->record, &serve->sending.connection->conn);
        serve_end(serve);
        return;
    }
    if (serve->sm.state == SERVE_ABORT)
        serve_settle(serve); /* Only the reader was still missing. */
    else
        serve_stop(serve);
}

void serve_on_credit(struct remote *remote, const Rdt__Pb__PullCredit *credit)
{
    struct serve *serve = map_get_u64(&remote->by_number, credit->transfer);

    if (serve && credit->over_ns > 0)
        serve_take_answer(serve, credit);
    if (!serve || serve->sm.state == SERVE_ABORT || credit->chunks <= serve->sending.credit)
        return;
    serve->sending.credit = credit->chunks;
    if (serve->sm.state == SERVE_SENDING)
        serve_go_on(serve);
}

void serve_on_abort(struct remote *remote, const Rdt__Pb__PullAbort *message)
{
    struct serve *serve = map_get_u64(&remote->by_number, message->transfer);
    struct rdt_error why;

    if (!serve)
        return;
    serve_reader_ended(serve);
    (void)rdt_error_set(&why, RDT_CANCELLED, "the reader has cancelled the transfer");
    record_fail(&serve->record, &why);
    if (serve->sm.state == SERVE_ABORT)
        serve_settle(serve);
    else
        serve_stop(serve);
}

void serve_shut_down(struct transfers *transfers, const struct rdt_error *why)
{
    list_for_each_safe (node, &transfers->under_way.serves)
        serve_fail(container_of(node, struct serve, record.link), why);
}

static bool stop_some(struct slice *slice, uint64_t until_ns)
{
    struct remote *remote = container_of(slice, struct remote, stop);
    struct rdt_error why;

    (void)rdt_error_set(&why, RDT_PEER_LOST, "the link to the reader's node is down");
    while (!list_empty(&remote->lost_serves)) {
        struct serve *serve = container_of(list_first(&remote->lost_serves), struct serve, by_remote);
        list_remove(&serve->by_remote);
        record_fail(&serve->record, &why);
        serve_stop(serve);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

void serve_link_down(struct remote *remote)
{
    /* The reader's node may come back and count from one again. */
    map_fini(&remote->by_number);
    map_init(&remote->by_number);
    list_splice(&remote->lost_serves, &remote->serves);
    remote->stop.run = stop_some;
    slice_begin(remote_slices(remote), &remote->stop);
}

static void stop_serve(struct peer_transport *pt, struct serve *serve)
{
    bool may_be_read = pt->sm.state == PT_CLOSING && pt->remote_epoch == serve->sending.start_epoch;
    struct rdt_error err;

    list_remove(&serve->sending.by_connection);
    if (may_be_read) /* until the connection has closed, when it is told again */
        list_append(&pt->serves, &serve->sending.by_connection);
    else
        serve_reader_ended(serve);
    if (serve->sm.state == SERVE_ABORT) {
        serve_settle(serve);
        return;
    }
    (void)rdt_error_set(&err, RDT_TRANSPORT, "%s at the owner: %s", pt->transport->name,
                        pt->cut_off.why[0] ? pt->cut_off.why : "the connection was taken down");
    serve_fail(serve, &err);
}

static bool stop_cut_off(struct slice *slice, uint64_t until_ns)
{
    struct peer_transport *pt = container_of(slice, struct peer_transport, cut_off.stop);

    pt->cut_off.running++; /* the connection of a group that is gone ends with its last user */
    list_drain (struct serve, serve, &pt->cut_off.serves, sending.by_connection) {
        stop_serve(pt, serve);
        if (uv_hrtime() >= until_ns)
            break;
    }
    pt->cut_off.running--;
    return list_empty(&pt->cut_off.serves);
}

void serve_connection_failed(struct peer_transport *pt)
{
    list_splice(&pt->cut_off.serves, &pt->serves);
    list_splice(&pt->cut_off.sending, &pt->sending);
    pt->cut_off.stop.run = stop_cut_off;
    slice_begin(remote_slices(pt->remote), &pt->cut_off.stop);
}
