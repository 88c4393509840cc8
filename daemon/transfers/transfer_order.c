/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers in the ordered queues of a transport. Transfers whose operations share a queue get tickets (ticket.h), and both
 * ends agree on them by PULL_TICKET.
 *
 * An end that waits in a queue reports this from time to time, and the other end waits for it: for at most MAX_WAIT times
 * stall_timeout while nothing moves, or MAX_BLOCKING_WAIT times if this holds up other transfers here. An end that sends
 * nothing for stall_timeout has failed. The owner waits a quarter longer for a reader that takes nothing, because the reader
 * has the same timeout and should report it first. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/text.h"
#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_order.h"
#include "daemon/transports/ticket.h"

#define TICK_NS 1000000000ll
#define QUEUE_BYTES 64u
#define MAX_BLOCKING_WAIT 20u
#define MAX_WAIT 30u

struct order {
    struct ticket ticket;
    struct transfer *in; /* either `in` or `out` is set */
    struct serve *out;
    char there[112];         /* what the other end waits for, by its last message; "": nothing */
    uint64_t told_ns;        /* when that message came */
    uint64_t waits_since_ns; /* since when it has only reported that it waits, and nothing has moved; 0: it does not wait */
    uint64_t holds_since_ns; /* since when that wait holds up other transfers here; 0: it does not */
    uint64_t bytes_seen;     /* bytes done when waits_since_ns was set, or when the owner last saw progress */
};

static struct order *order_of(const struct ticket *ticket)
{
    return container_of(ticket, struct order, ticket);
}

static struct transfers *transfers_of(const struct order *order)
{
    return order->in ? order->in->transfers : order->out->transfers;
}

static const struct transfer_record *record_of(const struct order *order)
{
    return order->in ? &order->in->record : &order->out->record;
}

/* ---- queues ---- */

struct queue_names {
    const char *name[TICKET_MAX_QUEUES];
    unsigned n;
    bool too_many;
};

static void names_add(struct queue_names *names, const struct peer_transport *pt, const struct region *region)
{
    const char *name = region ? plugin_conn_queue(&pt->conn, region->kind->name, region_device_uuid(region)) : NULL;

    if (!name)
        return;
    for (unsigned i = 0; i < names->n; i++)
        if (strcmp(names->name[i], name) == 0)
            return;
    if (names->n == TICKET_MAX_QUEUES || strlen(name) > QUEUE_BYTES)
        names->too_many = true;
    else
        names->name[names->n++] = name;
}

/* transfer->received is NULL before it is allocated, and with a target. */
static void names_of_reader(struct queue_names *names, const struct transfer *transfer, const struct peer_transport *pt)
{
    const struct target *target = transfer->target;

    for (uint32_t i = 0; target && i < target->n; i++)
        names_add(names, pt, target->uses[i].region);
    names_add(names, pt, target ? NULL : transfer->received);
}

bool order_wanted(const struct transfer *transfer, const struct peer_transport *pt)
{
    struct queue_names names = {.n = 0};

    names_of_reader(&names, transfer, pt);
    return names.n > 0 || names.too_many || plugin_conn_queue(&pt->conn, transfer->pull.answer.memory, "");
}

static void names_of_owner(struct queue_names *names, const struct serve *out, const struct peer_transport *pt)
{
    for (uint32_t i = 0; i < object_n_places(out->object); i++)
        names_add(names, pt, object_region(out->object, i));
}

bool order_needed(const struct serve *out, const struct peer_transport *pt)
{
    struct queue_names names = {.n = 0};

    names_of_owner(&names, out, pt);
    return names.n > 0 || names.too_many;
}

/* ---- the exchange ---- */

static void describe(const struct order *order, char *text, size_t size)
{
    const char *queue;
    const struct ticket *ahead = ticket_find_blocker(&order->ticket, &queue);
    const struct transfer_record *record = ahead ? record_of(order_of(ahead)) : NULL;

    text[0] = '\0';
    if (record)
        (void)snprintf(text, size, "behind transfer %llu (%s %.40s) in queue %.40s", (unsigned long long)record->id,
                       order_of(ahead)->in ? "from" : "to", record->peer, queue);
}

static bool stands_behind(const struct ticket *ticket)
{
    const char *queue;

    return (ticket->sm.state == TICKET_QUEUED || ticket_has_posted(ticket)) && ticket_find_blocker(ticket, &queue);
}

/* Waits stall_timeout for a message that the other end must send. */
static void watch(struct order *order)
{
    struct transfers *transfers = transfers_of(order);

    (void)deadline_set(transfers->deadlines, order->in ? &order->in->pull.stall : &order->out->deadline,
                       (int64_t)transfers->options->stall_timeout_ns);
}

static void send_turn(struct order *order, enum ticket_message word, const char *behind)
{
    Rdt__Pb__PullTicket message = RDT__PB__PULL_TICKET__INIT;
    struct rdt_error err;
    enum rdt_status status;

    message.transfer = order->in ? order->in->id : order->out->number;
    message.from_owner = order->ticket.owner;
    message.state = (Rdt__Pb__TicketState)word;
    message.behind = (char *)behind;
    if (word == TICKET_READY || word == TICKET_TAKEN)
        watch(order);
    status =
        peer_session_send(order->in ? order->in->pull.peer : order->out->session, RDT_PEER_PULL_TICKET, &message.base, &err);
    if (status == RDT_OK || status == RDT_PEER_LOST || word == TICKET_WAITING)
        return; /* If the link is down, it ends the transfer soon. */
    if (order->in)
        transfer_fail_err(order->in, &err);
    else
        transfers_of(order)->order->fail_serve(order->out, &err);
}

static void send_plain_turn(struct ticket *ticket, enum ticket_message word)
{
    send_turn(order_of(ticket), word, "");
}

/* The owner waits somewhat longer for the reader to take its sends than the reader would. */
static void watch_sends(struct order *order)
{
    int64_t timeout_ns = (int64_t)order->out->transfers->options->stall_timeout_ns;

    order->bytes_seen = order->out->record.bytes_done;
    (void)deadline_set(order->out->transfers->deadlines, &order->out->deadline, timeout_ns + timeout_ns / 4);
}

void order_out_on_stall(struct serve *out)
{
    struct order *order = out->record.order;
    struct rdt_error err;

    if (out->record.bytes_done != order->bytes_seen || stands_behind(&order->ticket)) {
        order->waits_since_ns = 0;
        watch_sends(order);
        return;
    }
    (void)rdt_error_set(&err, RDT_TRANSPORT,
                        "%s at the owner: the reader took nothing for %.1f s (stall_timeout) after %llu of %llu bytes",
                        out->connection->transport->name, (double)out->transfers->options->stall_timeout_ns / 1e9,
                        (unsigned long long)out->record.bytes_done, (unsigned long long)out->stream_bytes);
    out->transfers->order->fail_serve(out, &err);
}

static void post(struct ticket *ticket)
{
    struct order *order = order_of(ticket);

    if (order->in) {
        order->in->transfers->order->receive(order->in);
        return;
    }
    watch_sends(order);
    order->out->transfers->order->send(order->out);
}

static const struct ticket_events events = {.send = send_plain_turn, .post = post};

static void on_ready(struct deadline *deadline)
{
    struct transfers *transfers = container_of(deadline, struct transfers, tickets_ready);

    tickets_run(&transfers->tickets);
}

static void on_some_ready(struct tickets *tickets)
{
    struct transfers *transfers = container_of(tickets, struct transfers, tickets);

    /* In the next loop iteration, because the caller may be in the middle of a transfer's end. */
    (void)deadline_set(transfers->deadlines, &transfers->tickets_ready, 0);
}

static void tick_later(struct transfers *transfers)
{
    int64_t often = (int64_t)transfers->options->stall_timeout_ns / 4;

    (void)deadline_set(transfers->deadlines, &transfers->tickets_tick, often < TICK_NS ? often : TICK_NS);
}

/* Whether the transfer has neither failed nor been aborted. */
static bool is_active(const struct order *order)
{
    const struct transfer *in = order->in;

    if (!in)
        return order->out->sm.state == SERVE_TICKET || order->out->sm.state == SERVE_SENDING;
    return in->pull.failed == RDT_OK && (in->sm.state == TRANSFER_TICKET || in->sm.state == TRANSFER_MOVE);
}

static void on_tick(struct deadline *deadline)
{
    struct transfers *transfers = container_of(deadline, struct transfers, tickets_tick);

    tickets_run(&transfers->tickets); /* An earlier run may have been skipped, because there was no memory. */
    list_for_each (node, &transfers->tickets.all) {
        struct order *order = order_of(container_of(node, struct ticket, link));
        char text[sizeof order->there];
        if (!stands_behind(&order->ticket) || !is_active(order))
            continue;
        describe(order, text, sizeof text);
        send_turn(order, TICKET_WAITING, text);
        if (order->in)
            order->in->transfers->order->waits(order->in); /* The replica that sends does not stand still. */
    }
    if (!list_empty(&transfers->tickets.all))
        tick_later(transfers);
}

void orders_init(struct transfers *transfers)
{
    tickets_init(&transfers->tickets, on_some_ready);
    transfers->tickets_ready.on_passed = on_ready;
    transfers->tickets_tick.on_passed = on_tick;
}

void order_leave(struct transfer_record *record)
{
    struct order *order = record->order;

    record->order = NULL;
    if (!order)
        return;
    ticket_leave(&order->ticket);
    free(order);
}

static enum rdt_status begin(struct order **order_p, struct transfer *in, struct serve *out, const struct peer_transport *pt,
                             const struct queue_names *names, struct rdt_error *err)
{
    struct transfers *transfers = pt->session->transfers;
    struct order *order;
    enum rdt_status status;

    if (names->too_many)
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "%s: the memory is in more than %u ordered queues, or the name of one is too long",
                             pt->transport->name, TICKET_MAX_QUEUES);
    order = calloc(1, sizeof *order);
    if (!order)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a queue ticket of %s", pt->transport->name);
    order->in = in;
    order->out = out;
    status = ticket_init(&order->ticket, &transfers->tickets, &events, out,
                         ticket_is_first(transfers->node->uuid, pt->session->peer->uuid), pt->transport->name, names->name,
                         names->n, err);
    if (status != RDT_OK) {
        free(order);
        return status;
    }
    *order_p = order;
    if (deadline_left_ns(&transfers->tickets_tick) < 0)
        tick_later(transfers);
    return RDT_OK;
}

enum rdt_status order_in_begin(struct transfer *transfer, struct rdt_error *err)
{
    struct queue_names names = {.n = 0};

    names_of_reader(&names, transfer, transfer->pull.connection);
    return begin(&transfer->record.order, transfer, NULL, transfer->pull.connection, &names, err);
}

enum rdt_status order_out_begin(struct serve *out, struct rdt_error *err)
{
    struct queue_names names = {.n = 0};

    names_of_owner(&names, out, out->connection);
    return begin(&out->record.order, NULL, out, out->connection, &names, err);
}

void order_out_queue(struct serve *out)
{
    ticket_begin(&out->record.order->ticket);
}

void order_receives_posted(struct transfer *transfer)
{
    ticket_receives_posted(&transfer->record.order->ticket);
}

void order_pass_on(const struct transfer_record *record)
{
    if (record->order)
        ticket_give(&record->order->ticket);
}

bool order_waits_behind(const struct transfer_record *record)
{
    return record->order && stands_behind(&record->order->ticket);
}

static void fail(struct order *order, struct rdt_error *err)
{
    rdt_error_prefix(err, "node %s", record_of(order)->peer);
    if (order->in)
        transfer_fail_err(order->in, err);
    else
        transfers_of(order)->order->fail_serve(order->out, err);
}

/* The other end waits behind other transfers there. False: it has waited too long, and the transfer has failed. */
static bool check_wait(struct order *order)
{
    uint64_t now_ns = uv_hrtime(), stall_ns = transfers_of(order)->options->stall_timeout_ns,
             bytes = record_of(order)->bytes_done;
    struct rdt_error err;
    bool alone;

    if (!order->waits_since_ns || bytes != order->bytes_seen) {
        order->waits_since_ns = now_ns;
        order->holds_since_ns = 0;
        order->bytes_seen = bytes;
    }
    if (!ticket_blocks_others(&order->ticket))
        order->holds_since_ns = 0;
    else if (!order->holds_since_ns)
        order->holds_since_ns = now_ns;
    alone = !order->holds_since_ns || now_ns - order->holds_since_ns < MAX_BLOCKING_WAIT * stall_ns;
    if (alone && now_ns - order->waits_since_ns < MAX_WAIT * stall_ns)
        return true;
    (void)rdt_error_set(&err, RDT_TRANSPORT, "it has been %s for %.1f s (%u times stall_timeout)%s",
                        order->there[0] ? order->there : "behind others",
                        (double)(now_ns - (alone ? order->waits_since_ns : order->holds_since_ns)) / 1e9,
                        alone ? MAX_WAIT : MAX_BLOCKING_WAIT, alone ? ", and nothing has moved" : ", and holds up others here");
    fail(order, &err);
    return false;
}

static void receive_turn(struct order *order, const Rdt__Pb__PullTicket *message)
{
    struct deadline *deadline = order->in ? &order->in->pull.stall : &order->out->deadline;
    bool waited_for = order->in || order->out->sm.state == SERVE_SENDING || order->ticket.sm.state != TICKET_QUEUED;
    struct rdt_error err;

    text_copy(order->there, sizeof order->there, message->behind);
    order->told_ns = uv_hrtime();
    if (message->state == RDT__PB__TICKET_STATE__TICKET_WAITING) {
        if (!waited_for || !check_wait(order))
            return;
        watch(order);
        if (order->in)
            order->in->transfers->order->waits(order->in);
        return;
    }
    order->waits_since_ns = 0;
    deadline_unset(transfers_of(order)->deadlines, deadline);
    if (ticket_receive(&order->ticket, (enum ticket_message)message->state, &err) != RDT_OK)
        fail(order, &err); /* Otherwise the transfer may have ended. */
}

void order_on_message(struct peer_session *session, const Rdt__Pb__PullTicket *message)
{
    struct transfer *in = message->from_owner ? map_get_u64(&session->transfers->by_id, message->transfer) : NULL;
    struct serve *out = message->from_owner ? NULL : map_get_u64(&session->serves, message->transfer);
    struct order *order = in && in->pull.peer == session ? in->record.order : out ? out->record.order : NULL;

    if (order && is_active(order))
        receive_turn(order, message);
}

/* ---- for people ---- */

void record_waits_for(const struct transfer_record *record, char text_p[RECORD_WAITS_BYTES])
{
    const struct order *order = record->order;

    text_p[0] = '\0';
    if (!order)
        return;
    if (stands_behind(&order->ticket))
        describe(order, text_p, RECORD_WAITS_BYTES);
    else if (order->there[0] != '\0' && uv_hrtime() - order->told_ns < 3 * (uint64_t)TICK_NS)
        (void)snprintf(text_p, RECORD_WAITS_BYTES, "on node %.64s it is %s", record->peer, order->there);
    else if (!ticket_has_posted(&order->ticket))
        (void)snprintf(text_p, RECORD_WAITS_BYTES, "for the queue ticket of node %.64s", record->peer);
}
