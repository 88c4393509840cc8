/* SPDX-License-Identifier: Apache-2.0 */
/* The life of the owner's side of a pull: creation, states, failure, end. serve.h draws the states. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_order.h"
#include "daemon/transfers/transfer_record.h"

static const struct sm_state states[] = {
    [SERVE_PARKED] = {"parked", 1u << SERVE_OFFERED | 1u << SERVE_ENDED},
    [SERVE_OFFERED] = {"offered", 1u << SERVE_PREPARE | 1u << SERVE_ENDED},
    [SERVE_PREPARE] = {"preparing", 1u << SERVE_TICKET | 1u << SERVE_SENDING | 1u << SERVE_ABORT | 1u << SERVE_ENDED},
    [SERVE_TICKET] = {"ticket", 1u << SERVE_SENDING | 1u << SERVE_ABORT | 1u << SERVE_ENDED},
    [SERVE_SENDING] = {"sending", 1u << SERVE_ABORT | 1u << SERVE_ENDED},
    [SERVE_ABORT] = {"aborting", 1u << SERVE_ENDED},
    [SERVE_ENDED] = {"ended", 0},
};

/* The reader ends its transfer at its deadline and says what was missing. The owner ends its side later, so that the two do not
 * race for the sentence, and only if the reader has not said that it gave up. */
#define USUAL_MIN_BYTES (UINT64_C(16) << 20)
#define READER_LATE_NS INT64_C(2000000000)

void serve_shares(struct serve *out, bool shares)
{
    if (out->shares != shares)
        out->transfers->n_sharing += shares ? 1 : -1u;
    out->shares = shares;
}

void serve_set_state(struct serve *out, enum serve_state state)
{
    sm_move(&out->sm, state);
    out->record.state = sm_name(&out->sm);
    serve_shares(out, state == SERVE_SENDING);
    if (state != SERVE_SENDING)
        list_remove(&out->by_pace);
    else if (out->object->snapshot && !out->ordered && !out->staged && out->plan && out->plan->n > FANOUT_RATE_CHUNKS)
        list_append(&out->transfers->paced, &out->by_pace);
    if (state != SERVE_ENDED) /* how it ended follows */
        record_stage(out->transfers, &out->record);
}

static void drop_expected(struct serve *out)
{
    account_give(out->account, USAGE_HEAP, out->expect_bytes);
    free(out->expect);
    out->expect = NULL;
    out->expect_bytes = 0;
}

/* A send that is long enough shows how fast a reader can take bytes. */
static void note_usual(const struct serve *out)
{
    struct transfers *transfers = out->transfers;
    uint64_t took_ns = uv_hrtime() - out->record.began_ns, rate;

    if (out->record.began_ns == 0 || out->replica || out->record.bytes_done < USUAL_MIN_BYTES || took_ns == 0)
        return;
    rate = (uint64_t)((double)out->record.bytes_done * 1e9 / (double)took_ns);
    transfers->usual_rate = rate > transfers->usual_rate ? rate : transfers->usual_rate - transfers->usual_rate / 8 + rate / 8;
}

void serve_end(struct serve *out)
{
    struct transfers *transfers = out->transfers;

    assert(out->n_ops == 0);
    if (out->connection)
        transfers->last_sent_ns = uv_hrtime();
    if (out->sm.state == SERVE_SENDING)
        note_usual(out);
    serve_set_state(out, SERVE_ENDED);
    record_finish(transfers, &out->record);
    deadline_unset(transfers->deadlines, &out->deadline);
    object_waiter_remove(&out->waiter);
    name_waiter_remove(&out->named);
    if (out->broadcast)
        transfers->serve->on_end(out->broadcast, out);
    if (map_get_u64(&out->session->serves, out->number) == out)
        map_remove_u64(&out->session->serves, out->number);
    list_remove(&out->record.link);
    list_remove(&out->by_connection);
    list_remove(&out->in_turn);
    order_leave(&out->record);
    out->session->n_out--;
    if (out->pinned)
        object_unpin(out->object);
    if (out->object)
        object_peer_drop(out->object);
    replica_unserve(out);
    if (out->slice)
        rdt__pb__slice__free_unpacked(out->slice, NULL);
    free(out->source);
    free(out->packed);
    drop_expected(out);
    free(out->plan);
    free(out->is_posted);
    free(out->bases);
    free(out->select);
    free(out->places);
    stage_destroy(out->stage);
    account_give(out->account, USAGE_TRANSFERS, 1);
    account_unref(out->account);
    free(out);
    if (transfers->on_idle && list_empty(&transfers->active) && list_empty(&transfers->serves))
        transfers->on_idle(transfers);
}

enum rdt_status serve_map(struct serve *out, struct rdt_error *err)
{
    struct object *object = out->object;

    if (!out->bases)
        out->bases = calloc(object_n_places(object) + 1u, sizeof *out->bases);
    if (!out->bases)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to send object \"%s\"", out->ref.id);
    for (uint32_t i = 0; i < object_n_places(object); i++)
        if (!(out->bases[i] = object_base(object, i, err)))
            return err->status;
    return RDT_OK;
}

enum rdt_status serve_check(const struct serve *out, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (uint32_t i = 0; status == RDT_OK && i < out->object->n_regions; i++)
        status = region_check(out->object->uses[i].region, err);
    return status;
}

void serve_answer_error(struct peer_session *session, uint64_t number, const struct rdt_error *err)
{
    Rdt__Pb__PullMeta meta = RDT__PB__PULL_META__INIT;

    meta.transfer = number;
    meta.status = err->status;
    meta.sys_errno = err->sys_errno;
    meta.message = (char *)err->msg;
    (void)peer_session_send(session, RDT_PEER_PULL_META, &meta.base, NULL);
}

static void send_end(struct serve *out, const struct rdt_error *err)
{
    Rdt__Pb__PullEnd end = RDT__PB__PULL_END__INIT;

    end.transfer = out->number;
    end.status = err->status;
    end.message = (char *)err->msg;
    end.from_owner = true;
    (void)peer_session_send(out->session, RDT_PEER_PULL_END, &end.base, NULL);
}

static void send_aborted(struct serve *out)
{
    Rdt__Pb__PullAborted aborted = RDT__PB__PULL_ABORTED__INIT;

    aborted.transfer = out->number;
    (void)peer_session_send(out->session, RDT_PEER_PULL_ABORTED, &aborted.base, NULL);
}

static void begin_grace(struct serve *out)
{
    out->n_ops_left = out->n_ops;
    (void)deadline_set(out->transfers->deadlines, &out->deadline, (int64_t)out->transfers->options->quiesce_grace_ns);
}

/* Sends that the transport has not begun end at once; the others when their bytes have moved. */
static void cancel_sends(struct serve *out)
{
    if (!out->connection || out->connection->sm.state != PT_CONNECTED)
        return; /* The disconnect ends them. */
    list_for_each (node, &out->posted)
        plugin_op_cancel(&out->connection->conn, &container_of(node, struct chunk_op, posted)->base);
}

void serve_stop(struct serve *out)
{
    if (out->sm.state == SERVE_ABORT)
        return;
    list_remove(&out->in_turn);
    if (out->sm.state == SERVE_PARKED || out->sm.state == SERVE_OFFERED) {
        serve_end(out);
        return;
    }
    serve_set_state(out, SERVE_ABORT);
    cancel_sends(out);
    if (out->n_ops > 0 || (out->one_sided && !out->reader_done))
        begin_grace(out);
    serve_settle(out);
}

void serve_settle(struct serve *out)
{
    bool readable = out->one_sided && !out->reader_done && out->connection && out->connection->sm.state != PT_NONE;

    if (out->sm.state != SERVE_ABORT || out->n_ops > 0 || readable)
        return; /* One-sided: the reader, or the end of its connection, tells when nobody reads any more. */
    send_aborted(out);
    serve_end(out);
}

void serve_fail(struct serve *out, const struct rdt_error *err)
{
    if (out->sm.state == SERVE_ABORT)
        return;
    record_fail(&out->record, err);
    send_end(out, err);
    serve_stop(out);
}

void serve_refuse(struct serve *out, const struct rdt_error *err)
{
    serve_answer_error(out->session, out->number, err);
    record_fail(&out->record, err);
    serve_end(out);
}

static void on_deadline(struct deadline *deadline)
{
    struct serve *out = container_of(deadline, struct serve, deadline);
    struct rdt_error err;

    if (out->sm.state == SERVE_ABORT) {
        /* Sends that have begun cannot be called back. While they end one by one, on a slow network or behind others, the
         * connection works, and other transfers use it: the reader's next fetch of this object, for instance. */
        if (out->n_ops < out->n_ops_left)
            begin_grace(out);
        else if (out->connection && out->connection->sm.state != PT_NONE)
            peer_transport_isolate(out->connection, "the sends of an aborted transfer do not end");
        return;
    }
    if (out->sm.state == SERVE_SENDING) {
        order_out_on_stall(out);
        return;
    }
    if (out->sm.state == SERVE_TICKET)
        (void)rdt_error_set(&err, RDT_TRANSPORT,
                            "%s at the owner: the reader has said nothing about its queue ticket for %.1f s (stall_timeout)",
                            out->connection->transport->name, (double)out->transfers->options->stall_timeout_ns / 1e9);
    else
        (void)rdt_error_set(&err, RDT_TIMED_OUT, "object \"%s\" was not %s in time", out->ref.id,
                            out->sm.state == SERVE_PARKED ? "put" : "fetched");
    if (out->sm.state == SERVE_PARKED) {
        serve_refuse(out, &err);
        return;
    }
    serve_fail(out, &err);
}

/* Notes the layout that the reader expects. It is charged to the account if the size of the message does not
 * bound it. */
static bool take_expected(struct serve *out, const Rdt__Pb__TensorList *expect)
{
    uint64_t bytes;

    if (layout_from_wire(expect, &out->expect, NULL) != RDT_OK)
        return false;
    bytes = layout_run_tensors(expect) > 0 ? layout_heap_bytes(out->expect) : 0;
    if (bytes == 0 || account_take(out->account, USAGE_HEAP, bytes, NULL) == RDT_OK) {
        out->expect_bytes = bytes;
        return true;
    }
    free(out->expect);
    out->expect = NULL;
    return false;
}

struct serve *serve_new(struct peer_session *session, const Rdt__Pb__Pull *pull, const struct rdt_ref *ref,
                        const struct owner *requester, struct rdt_error *err)
{
    struct transfers *transfers = session->transfers;
    struct serve *out = calloc(1, sizeof *out);

    if (!out || !(out->account = account_get(transfers->objects->accounts, requester))) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory to serve object \"%s\"", ref->id);
        free(out);
        return NULL;
    }
    if (account_take(out->account, USAGE_TRANSFERS, 1, err) != RDT_OK) {
        account_unref(out->account);
        free(out);
        return NULL;
    }
    out->transfers = transfers;
    out->session = session;
    out->number = pull->transfer;
    out->ref = *ref;
    out->meta_only = pull->meta_only;
    out->keep = pull->keep_replica;
    out->no_redirect = pull->no_redirect;
    out->came_back = pull->left_node.len == sizeof out->left;
    if (out->came_back)
        memcpy(out->left, pull->left_node.data, sizeof out->left);
    out->inline_max_bytes =
        pull->inline_max_bytes < RDT_PEER_INLINE_MAX_BYTES ? pull->inline_max_bytes : RDT_PEER_INLINE_MAX_BYTES;
    out->credit = UINT32_MAX;
    out->deadline.on_passed = on_deadline;
    list_init(&out->by_connection);
    list_init(&out->in_turn);
    list_init(&out->posted);
    list_init(&out->by_replica);
    list_init(&out->by_pace);
    sm_init(&out->sm, states, sizeof states / sizeof states[0], SERVE_PARKED);
    record_start(&out->record, transfers->next_id++, requester, ref, "out", "parked");
    text_copy(out->record.peer, sizeof out->record.peer, session->peer->name);
    record_stage_at(transfers, &out->record, out->record.since_ns);
    if (pull->start && pull->expect && strlen(pull->start->transport) < sizeof out->start_transport &&
        take_expected(out, pull->expect)) { /* Without an expected layout, the reader sends PULL_START. */
        memcpy(out->start_transport, pull->start->transport, strlen(pull->start->transport) + 1);
        out->start_chunk_bytes = pull->start->chunk_bytes;
        out->start_epoch = pull->start->epoch;
    }
    if ((pull->slice && !(out->slice = slice_dup(pull->slice))) || !map_put_u64(&session->serves, out->number, out)) {
        if (out->slice)
            rdt__pb__slice__free_unpacked(out->slice, NULL);
        drop_expected(out);
        account_give(out->account, USAGE_TRANSFERS, 1);
        account_unref(out->account);
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory to serve object \"%s\"", ref->id);
        free(out);
        return NULL;
    }
    list_append(&transfers->serves, &out->record.link);
    session->n_out++;
    event(transfers->events, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "began", &out->record);
    (void)deadline_set(transfers->deadlines, &out->deadline,
                       pull->timeout_ns < 0 || pull->timeout_ns > INT64_MAX - READER_LATE_NS
                           ? pull->timeout_ns
                           : pull->timeout_ns + READER_LATE_NS);
    return out;
}
