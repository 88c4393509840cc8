/* SPDX-License-Identifier: Apache-2.0 */
/* The life of the owner's side of a pull: creation, states, failure, end. serve.h draws the states. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_record.h"
#include "daemon/transfers/transfer_ticket.h"

static const struct sm_state states[] = {
    [SERVE_PARKED] = {"parked", 1u << SERVE_OFFERED | 1u << SERVE_ENDED},
    [SERVE_OFFERED] = {"offered", 1u << SERVE_PREPARE | 1u << SERVE_ABORT | 1u << SERVE_ENDED},
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

/* Every allowed move. serve.h draws them. */
static const struct sm_state modes[] = {
    [SENDING_IN_ROTATION] = {"in rotation", 1u << SENDING_IN_ORDER | 1u << SENDING_READ},
    [SENDING_IN_ORDER] = {"in order", 0},
    [SENDING_READ] = {"read", 1u << SENDING_READ_ENDED},
    [SENDING_READ_ENDED] = {"read ended", 0},
};

void serve_set_mode(struct serve *serve, enum sending_mode mode)
{
    sm_move_byte(modes, sizeof modes / sizeof modes[0], &serve->sending.mode, mode);
}

bool serve_is_one_sided(const struct serve *serve)
{
    return serve->sending.mode == SENDING_READ || serve->sending.mode == SENDING_READ_ENDED;
}

void serve_reader_ended(struct serve *serve)
{
    if (serve->sending.mode == SENDING_READ)
        serve_set_mode(serve, SENDING_READ_ENDED);
}

void serve_shares(struct serve *serve, bool shares)
{
    if (serve->shares != shares)
        serve->transfers->load.n_sharing += shares ? 1 : -1u;
    serve->shares = shares;
}

void serve_set_state(struct serve *serve, enum serve_state state)
{
    sm_move(&serve->sm, state);
    serve->record.state = sm_name(&serve->sm);
    serve_shares(serve, state == SERVE_SENDING);
    if (state != SERVE_SENDING)
        list_remove(&serve->by_pace);
    else if (object_is_constant(serve->object) && serve->sending.mode != SENDING_IN_ORDER && !serve->sending.staged &&
             serve->sending.plan && serve->sending.plan->n > FANOUT_RATE_CHUNKS)
        list_append(&serve->transfers->load.paced, &serve->by_pace);
    if (state != SERVE_ENDED) /* how it ended follows */
        record_stage(serve->transfers, &serve->record);
}

/* A send that is long enough shows how fast a reader can take bytes. */
static void note_usual(const struct serve *serve)
{
    struct transfers *transfers = serve->transfers;
    uint64_t took_ns = uv_hrtime() - serve->record.began_ns, rate;

    if (serve->record.began_ns == 0 || serve->replica || serve->record.bytes_done < USUAL_MIN_BYTES || took_ns == 0)
        return;
    rate = (uint64_t)((double)serve->record.bytes_done * 1e9 / (double)took_ns);
    transfers->load.usual_rate =
        rate > transfers->load.usual_rate ? rate : transfers->load.usual_rate - transfers->load.usual_rate / 8 + rate / 8;
}

void serve_end(struct serve *serve)
{
    struct transfers *transfers = serve->transfers;

    assert(serve->sending.n_ops == 0);
    if (serve->sending.connection)
        transfers->load.last_sent_ns = uv_hrtime();
    if (serve->sm.state == SERVE_SENDING)
        note_usual(serve);
    serve_set_state(serve, SERVE_ENDED);
    record_finish(transfers, &serve->record);
    deadline_unset(transfers->deadlines, &serve->deadline);
    object_waiter_remove(&serve->waiter);
    name_waiter_remove(&serve->named);
    if (map_get_u64(&serve->remote->by_number, serve->number) == serve)
        map_remove_u64(&serve->remote->by_number, serve->number);
    (void)index_remove(&transfers->under_way.by_id, serve->record.id);
    list_remove(&serve->record.link);
    transfers->under_way.n--;
    transfers->load.serving_bytes -= serve->stream_bytes;
    list_remove(&serve->by_remote);
    list_remove(&serve->held);
    list_remove(&serve->sending.by_connection);
    list_remove(&serve->sending.by_sending);
    transfer_ticket_leave(&serve->record);
    serve->remote->counts.n_serves--;
    if (serve->sending.connection)
        object_unpin(serve->object);
    peer_transport_use(&serve->sending.connection, NULL);
    peer_transport_use(&serve->awaits_memory, NULL);
    if (serve->object)
        object_peer_drop(serve->object);
    replica_unserve(serve);
    if (serve->request.slice)
        rdt__pb__slice__free_unpacked(serve->request.slice, NULL);
    free(serve->source);
    free(serve->packed);
    free(serve->sending.plan);
    free(serve->sending.is_posted);
    free(serve->sending.memory);
    free(serve->request.select);
    free(serve->sending.places);
    stage_destroy(serve->sending.stage);
    account_give(serve->account, USAGE_TRANSFERS, 1);
    account_unref(serve->account);
    free(serve);
    if (transfers->ends.on_idle && transfers->under_way.n == 0)
        transfers->ends.on_idle(transfers);
}

enum rdt_status serve_map(struct serve *serve, struct rdt_error *err)
{
    struct object *object = serve->object;

    enum rdt_status status = RDT_OK;

    if (!serve->sending.memory)
        serve->sending.memory = calloc(object_n_places(object) + 1u, sizeof *serve->sending.memory);
    if (!serve->sending.memory)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to send object \"%s\"", serve->ref.id);
    for (uint32_t i = 0; i < object_n_places(object) && status == RDT_OK; i++)
        status = object_place(object, i, &serve->sending.memory[i], err);
    return status;
}

enum rdt_status serve_check(const struct serve *serve, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (uint32_t i = 0; status == RDT_OK && i < serve->object->memory.n_regions; i++)
        status = region_check(serve->object->memory.uses[i].region, err);
    return status;
}

static Rdt__Pb__PullMeta refusal(uint64_t number, const struct rdt_error *err)
{
    Rdt__Pb__PullMeta meta = RDT__PB__PULL_META__INIT;

    meta.transfer = number;
    meta.status = err->status;
    meta.sys_errno = err->sys_errno;
    meta.message = (char *)err->msg;
    return meta;
}

void serve_answer_error(struct remote *remote, uint64_t number, const struct rdt_error *err)
{
    Rdt__Pb__PullMeta meta = refusal(number, err);

    (void)remote_send(remote, RDT_PEER_PULL_META, &meta.base, NULL);
}

enum rdt_status serve_send(struct serve *serve, enum rdt_peer_message type, const ProtobufCMessage *message,
                           struct rdt_error *err)
{
    return remote_send_over(serve->remote, serve->epoch, type, message, err);
}

/* What the reader may do about the end of a transfer. */
enum end_remedy {
    END_FOR_GOOD,
    END_UNREGISTERED, /* ask for the bytes to be sent */
    END_REBUILDING,   /* take another transport */
};

static void send_end(struct serve *serve, const struct rdt_error *err, enum end_remedy remedy)
{
    Rdt__Pb__PullEnd end = RDT__PB__PULL_END__INIT;

    end.transfer = serve->number;
    end.status = err->status;
    end.message = (char *)err->msg;
    end.from_owner = true;
    end.unregistered = remedy == END_UNREGISTERED;
    end.rebuilding = remedy == END_REBUILDING;
    (void)serve_send(serve, RDT_PEER_PULL_END, &end.base, NULL);
}

static void begin_grace(struct serve *serve)
{
    serve->sending.n_ops_left = serve->sending.n_ops;
    (void)deadline_set(serve->transfers->deadlines, &serve->deadline, (int64_t)serve->transfers->options->quiesce_grace_ns);
}

/* Sends that the transport has not begun end at once; the others when their bytes have moved. */
static void cancel_sends(struct serve *serve)
{
    if (!serve->sending.connection || serve->sending.connection->sm.state != PT_CONNECTED)
        return; /* The disconnect ends them. */
    list_for_each (node, &serve->sending.posted)
        plugin_op_cancel(&serve->sending.connection->conn, &container_of(node, struct chunk_op, posted)->base);
}

void serve_stop(struct serve *serve)
{
    if (serve->sm.state == SERVE_ABORT)
        return;
    list_remove(&serve->sending.by_sending);
    if (serve->sm.state == SERVE_PARKED || (serve->sm.state == SERVE_OFFERED && !serve->gathering)) {
        serve_end(serve);
        return;
    }
    serve_set_state(serve, SERVE_ABORT);
    cancel_sends(serve);
    if (serve->sending.n_ops > 0 || serve->sending.mode == SENDING_READ)
        begin_grace(serve);
    serve_settle(serve);
}

void serve_settle(struct serve *serve)
{
    bool readable =
        serve->sending.mode == SENDING_READ && serve->sending.connection && serve->sending.connection->sm.state != PT_NONE;

    if (serve->sm.state == SERVE_ABORT && serve->sending.n_ops == 0 && !readable)
        serve_end(serve); /* One-sided: the reader, or the end of its connection, tells when nobody reads any more. */
}

static void end_with(struct serve *serve, const struct rdt_error *err, enum end_remedy remedy)
{
    if (serve->sm.state == SERVE_ABORT)
        return;
    record_fail(&serve->record, err);
    send_end(serve, err, remedy);
    serve_stop(serve);
}

void serve_fail(struct serve *serve, const struct rdt_error *err)
{
    end_with(serve, err, END_FOR_GOOD);
}

void serve_fail_unregistered(struct serve *serve, const struct rdt_error *err)
{
    end_with(serve, err, END_UNREGISTERED);
}

void serve_fail_rebuilding(struct serve *serve, const struct transport *transport)
{
    struct rdt_error err;

    (void)rdt_error_set(&err, RDT_TRANSPORT, "%s: the owner's connection is being rebuilt", transport->name);
    end_with(serve, &err, END_REBUILDING);
}

void serve_refuse(struct serve *serve, const struct rdt_error *err)
{
    Rdt__Pb__PullMeta meta = refusal(serve->number, err);

    (void)serve_send(serve, RDT_PEER_PULL_META, &meta.base, NULL);
    record_fail(&serve->record, err);
    serve_end(serve);
}

static void on_deadline(struct deadline *deadline)
{
    struct serve *serve = container_of(deadline, struct serve, deadline);
    struct rdt_error err;

    if (serve->sm.state == SERVE_ABORT) {
        /* Sends that have begun cannot be called back. While they end one by one, on a slow network or behind others, the
         * connection works, and other transfers use it: the reader's next fetch of this object, for instance. It does not
         * matter to the connection how long a client holds up reads of its own memory. */
        if (serve->sending.n_ops < serve->sending.n_ops_left ||
            (list_empty(&serve->sending.posted) && !serve_is_one_sided(serve)))
            begin_grace(serve);
        else if (serve->sending.connection && serve->sending.connection->sm.state != PT_NONE)
            peer_transport_isolate(serve->sending.connection, "the sends of an aborted transfer do not end");
        return;
    }
    if (serve->sm.state == SERVE_SENDING) {
        transfer_ticket_serve_stalled(serve);
        return;
    }
    if (serve->sm.state == SERVE_TICKET)
        (void)rdt_error_set(&err, RDT_TRANSPORT,
                            "%s at the owner: the reader has said nothing about its queue ticket for %.1f s (stall_timeout)",
                            serve->sending.connection->transport->name,
                            (double)serve->transfers->options->stall_timeout_ns / 1e9);
    else
        (void)rdt_error_set(&err, RDT_TIMED_OUT, "object \"%s\" was not %s in time", serve->ref.id,
                            serve->sm.state == SERVE_PARKED ? "put"
                            : serve->gathering              ? "read from its owner's memory"
                                                            : "fetched");
    if (serve->sm.state == SERVE_PARKED) {
        serve_refuse(serve, &err);
        return;
    }
    serve_fail(serve, &err);
}

struct serve *serve_new(struct remote *remote, const Rdt__Pb__Pull *pull, const struct rdt_ref *ref,
                        const struct owner *requester, struct rdt_error *err)
{
    struct transfers *transfers = remote->transfers;
    struct serve *serve = calloc(1, sizeof *serve);

    if (!serve || !(serve->account = account_get(transfers->objects->accounts, requester))) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory to serve object \"%s\"", ref->id);
        free(serve);
        return NULL;
    }
    if (account_take(serve->account, USAGE_TRANSFERS, 1, err) != RDT_OK) {
        account_unref(serve->account);
        free(serve);
        return NULL;
    }
    serve->transfers = transfers;
    serve->remote = remote;
    serve->epoch = remote->peer->epoch;
    serve->number = pull->transfer;
    serve->ref = *ref;
    serve->request.wish = pull->meta_only ? WISH_METADATA : pull->keep_replica ? WISH_REPLICA : WISH_BYTES;
    serve->request.no_redirect = pull->no_redirect;
    serve->request.came_back = pull->left_node.len == sizeof serve->request.left;
    if (serve->request.came_back)
        memcpy(serve->request.left, pull->left_node.data, sizeof serve->request.left);
    serve->request.inline_max_bytes =
        pull->inline_max_bytes < RDT_PEER_INLINE_MAX_BYTES ? pull->inline_max_bytes : RDT_PEER_INLINE_MAX_BYTES;
    serve->sending.credit = UINT32_MAX;
    serve->deadline.on_passed = on_deadline;
    list_init(&serve->held);
    list_init(&serve->sending.by_connection);
    list_init(&serve->sending.by_sending);
    list_init(&serve->sending.posted);
    list_init(&serve->by_replica);
    list_init(&serve->by_pace);
    sm_init(&serve->sm, states, sizeof states / sizeof states[0], SERVE_PARKED);
    record_start(&serve->record, ids_next(&transfers->ids, serve->account), requester, ref, "out", "parked");
    text_copy(serve->record.peer, sizeof serve->record.peer, remote->peer->name);
    record_stage_at(transfers, &serve->record, serve->record.since_ns);
    if ((pull->slice && !(serve->request.slice = slice_dup(pull->slice))) ||
        !index_put(&transfers->under_way.by_id, serve->record.id, &serve->record) ||
        !map_put_u64(&remote->by_number, serve->number, serve)) {
        if (index_get(&transfers->under_way.by_id, serve->record.id) == &serve->record)
            (void)index_remove(&transfers->under_way.by_id, serve->record.id);
        if (serve->request.slice)
            rdt__pb__slice__free_unpacked(serve->request.slice, NULL);
        account_give(serve->account, USAGE_TRANSFERS, 1);
        account_unref(serve->account);
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory to serve object \"%s\"", ref->id);
        free(serve);
        return NULL;
    }
    list_append(&transfers->under_way.serves, &serve->record.link);
    transfers->under_way.n++;
    list_append(&remote->serves, &serve->by_remote);
    remote->counts.n_serves++;
    event(transfers->events, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "began", &serve->record);
    (void)deadline_set(transfers->deadlines, &serve->deadline,
                       pull->timeout_ns < 0 || pull->timeout_ns > INT64_MAX - READER_LATE_NS
                           ? pull->timeout_ns
                           : pull->timeout_ns + READER_LATE_NS);
    return serve;
}
