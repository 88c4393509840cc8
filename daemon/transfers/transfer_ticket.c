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
#include "daemon/transfers/remote.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_ticket.h"
#include "daemon/transports/ticket.h"

#define TICK_NS 1000000000ll
#define QUEUE_BYTES 64u
#define MAX_BLOCKING_WAIT 20u
#define MAX_WAIT 30u

struct transfer_ticket {
    struct ticket ticket;
    struct transfer *transfer; /* either it or `serve` is set */
    struct serve *serve;
    char there[112];         /* what the other end waits for, by its last message; "": nothing */
    uint64_t told_ns;        /* when that message came */
    uint64_t waits_since_ns; /* since when it has only reported that it waits, and nothing has moved; 0: it does not wait */
    uint64_t holds_since_ns; /* since when that wait holds up other transfers here; 0: it does not */
    uint64_t bytes_seen;     /* bytes done when waits_since_ns was set, or when the owner last saw progress */
};

static struct transfer_ticket *end_of(const struct ticket *ticket)
{
    return container_of(ticket, struct transfer_ticket, ticket);
}

static struct transfers *transfers_of(const struct transfer_ticket *end)
{
    return end->transfer ? end->transfer->transfers : end->serve->transfers;
}

static const struct transfer_record *record_of(const struct transfer_ticket *end)
{
    return end->transfer ? &end->transfer->record : &end->serve->record;
}

/* ---- queues ---- */

struct queue_list {
    const char *name[TICKET_MAX_QUEUES];
    unsigned n;
    bool too_many;
};

static void queues_add(struct queue_list *queues, const struct peer_transport *pt, const struct region *region)
{
    const char *name = region ? plugin_conn_queue(&pt->conn, region->kind->name, region_device_uuid(region)) : NULL;

    if (!name)
        return;
    for (unsigned i = 0; i < queues->n; i++)
        if (strcmp(queues->name[i], name) == 0)
            return;
    if (queues->n == TICKET_MAX_QUEUES || strlen(name) > QUEUE_BYTES)
        queues->too_many = true;
    else
        queues->name[queues->n++] = name;
}

/* transfer->move.received is NULL before it is allocated, and with a target. */
static void queues_of_reader(struct queue_list *queues, const struct transfer *transfer, const struct peer_transport *pt)
{
    const struct target *target = transfer->move.target;

    for (uint32_t i = 0; target && i < target->n; i++)
        queues_add(queues, pt, target->uses[i].region);
    queues_add(queues, pt, target ? NULL : transfer->move.received);
}

bool transfer_ticket_wanted(const struct transfer *transfer, const struct peer_transport *pt)
{
    struct queue_list queues = {.n = 0};

    queues_of_reader(&queues, transfer, pt);
    return queues.n > 0 || queues.too_many || plugin_conn_queue(&pt->conn, transfer->pull.answer.memory, "");
}

static void queues_of_owner(struct queue_list *queues, const struct serve *serve, const struct peer_transport *pt)
{
    for (uint32_t i = 0; i < object_n_places(serve->object); i++)
        queues_add(queues, pt, object_region(serve->object, i));
}

bool transfer_ticket_needed(const struct serve *serve, const struct peer_transport *pt)
{
    struct queue_list queues = {.n = 0};

    queues_of_owner(&queues, serve, pt);
    return queues.n > 0 || queues.too_many;
}

/* ---- the exchange ---- */

static void describe(const struct transfer_ticket *end, char *text, size_t size)
{
    const char *queue;
    const struct ticket *ahead = ticket_find_blocker(&end->ticket, &queue);
    const struct transfer_record *record = ahead ? record_of(end_of(ahead)) : NULL;

    text[0] = '\0';
    if (record)
        (void)snprintf(text, size, "behind transfer %llu (%s %.40s) in queue %.40s", (unsigned long long)record->id,
                       end_of(ahead)->transfer ? "from" : "to", record->peer, queue);
}

static bool stands_behind(const struct ticket *ticket)
{
    const char *queue;

    return (ticket->sm.state == TICKET_QUEUED || ticket_has_posted(ticket)) && ticket_find_blocker(ticket, &queue);
}

/* Waits stall_timeout for a message that the other end must send. */
static void watch(struct transfer_ticket *end)
{
    struct transfers *transfers = transfers_of(end);

    (void)deadline_set(transfers->deadlines, end->transfer ? &end->transfer->pull.stall : &end->serve->deadline,
                       (int64_t)transfers->options->stall_timeout_ns);
}

static void send_ticket(struct transfer_ticket *end, enum ticket_message word, const char *behind)
{
    Rdt__Pb__PullTicket message = RDT__PB__PULL_TICKET__INIT;
    struct rdt_error err;
    enum rdt_status status;

    message.transfer = end->transfer ? end->transfer->id : end->serve->number;
    message.from_owner = end->ticket.owner;
    message.state = (Rdt__Pb__TicketState)word;
    message.behind = (char *)behind;
    if (word == TICKET_READY || word == TICKET_TAKEN)
        watch(end);
    if (end->transfer)
        status = remote_send(end->transfer->pull.peer, RDT_PEER_PULL_TICKET, &message.base, &err);
    else
        status = remote_send_over(end->serve->remote, end->serve->epoch, RDT_PEER_PULL_TICKET, &message.base, &err);
    if (status == RDT_OK || status == RDT_PEER_LOST || word == TICKET_WAITING)
        return; /* If the link is down, it ends the transfer soon. */
    if (end->transfer)
        transfer_fail_err(end->transfer, &err);
    else
        transfers_of(end)->tickets.events->fail_serve(end->serve, &err);
}

static void send_plain_turn(struct ticket *ticket, enum ticket_message word)
{
    send_ticket(end_of(ticket), word, "");
}

/* The owner waits somewhat longer for the reader to take its sends than the reader would. */
static void watch_sends(struct transfer_ticket *end)
{
    int64_t timeout_ns = (int64_t)end->serve->transfers->options->stall_timeout_ns;

    end->bytes_seen = end->serve->record.bytes_done;
    (void)deadline_set(end->serve->transfers->deadlines, &end->serve->deadline, timeout_ns + timeout_ns / 4);
}

void transfer_ticket_serve_stalled(struct serve *serve)
{
    struct transfer_ticket *end = serve->record.ticket;
    struct rdt_error err;

    if (serve->record.bytes_done != end->bytes_seen || stands_behind(&end->ticket)) {
        end->waits_since_ns = 0;
        watch_sends(end);
        return;
    }
    (void)rdt_error_set(&err, RDT_TRANSPORT,
                        "%s at the owner: the reader took nothing for %.1f s (stall_timeout) after %llu of %llu bytes",
                        serve->sending.connection->transport->name, (double)serve->transfers->options->stall_timeout_ns / 1e9,
                        (unsigned long long)serve->record.bytes_done, (unsigned long long)serve->stream_bytes);
    serve->transfers->tickets.events->fail_serve(serve, &err);
}

static void post(struct ticket *ticket)
{
    struct transfer_ticket *end = end_of(ticket);

    if (end->transfer) {
        end->transfer->transfers->tickets.events->receive(end->transfer);
        return;
    }
    watch_sends(end);
    end->serve->transfers->tickets.events->send(end->serve);
}

static const struct ticket_events events = {.send = send_plain_turn, .post = post};

static void on_ready(struct deadline *deadline)
{
    struct transfers *transfers = container_of(deadline, struct transfers, tickets.ready);

    tickets_run(&transfers->tickets.all);
}

static void on_some_ready(struct tickets *tickets)
{
    struct transfers *transfers = container_of(tickets, struct transfers, tickets.all);

    /* In the next loop iteration, because the caller may be in the middle of a transfer's end. */
    (void)deadline_set(transfers->deadlines, &transfers->tickets.ready, 0);
}

static void tick_later(struct transfers *transfers)
{
    int64_t often = (int64_t)transfers->options->stall_timeout_ns / 4;

    (void)deadline_set(transfers->deadlines, &transfers->tickets.tick, often < TICK_NS ? often : TICK_NS);
}

/* Whether the transfer has neither failed nor been aborted. */
static bool is_active(const struct transfer_ticket *end)
{
    const struct transfer *transfer = end->transfer;

    if (!transfer)
        return end->serve->sm.state == SERVE_TICKET || end->serve->sm.state == SERVE_SENDING;
    return transfer->pull.failure.status == RDT_OK &&
           (transfer->sm.state == TRANSFER_TICKET || transfer->sm.state == TRANSFER_MOVE);
}

static void on_tick(struct deadline *deadline)
{
    struct transfers *transfers = container_of(deadline, struct transfers, tickets.tick);

    tickets_run(&transfers->tickets.all); /* An earlier run may have been skipped, because there was no memory. */
    list_for_each (node, &transfers->tickets.all.all) {
        struct transfer_ticket *end = end_of(container_of(node, struct ticket, link));
        char text[sizeof end->there];
        if (!stands_behind(&end->ticket) || !is_active(end))
            continue;
        describe(end, text, sizeof text);
        send_ticket(end, TICKET_WAITING, text);
        if (end->transfer)
            end->transfer->transfers->tickets.events->waits(end->transfer); /* The replica that sends does not stand still. */
    }
    if (!list_empty(&transfers->tickets.all.all))
        tick_later(transfers);
}

void transfer_tickets_init(struct transfers *transfers)
{
    tickets_init(&transfers->tickets.all, on_some_ready);
    transfers->tickets.ready.on_passed = on_ready;
    transfers->tickets.tick.on_passed = on_tick;
}

void transfer_ticket_leave(struct transfer_record *record)
{
    struct transfer_ticket *end = record->ticket;

    record->ticket = NULL;
    if (!end)
        return;
    ticket_leave(&end->ticket);
    free(end);
}

static enum rdt_status begin(struct transfer_ticket **end_p, struct transfer *transfer, struct serve *serve,
                             const struct peer_transport *pt, const struct queue_list *queues, struct rdt_error *err)
{
    struct transfers *transfers = pt->remote->transfers;
    struct transfer_ticket *end;
    enum rdt_status status;

    if (queues->too_many)
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "%s: the memory is in more than %u ordered queues, or the name of one is too long",
                             pt->transport->name, TICKET_MAX_QUEUES);
    end = calloc(1, sizeof *end);
    if (!end)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a queue ticket of %s", pt->transport->name);
    end->transfer = transfer;
    end->serve = serve;
    status = ticket_init(&end->ticket, &transfers->tickets.all, &events, serve,
                         ticket_is_first(transfers->node->uuid, pt->remote->peer->uuid), pt->transport->name, queues->name,
                         queues->n, err);
    if (status != RDT_OK) {
        free(end);
        return status;
    }
    *end_p = end;
    if (deadline_left_ns(&transfers->tickets.tick) < 0)
        tick_later(transfers);
    return RDT_OK;
}

enum rdt_status transfer_ticket_begin_pull(struct transfer *transfer, struct rdt_error *err)
{
    struct queue_list queues = {.n = 0};

    queues_of_reader(&queues, transfer, transfer->pull.path.connection);
    return begin(&transfer->record.ticket, transfer, NULL, transfer->pull.path.connection, &queues, err);
}

enum rdt_status transfer_ticket_begin_serve(struct serve *serve, struct rdt_error *err)
{
    struct queue_list queues = {.n = 0};

    queues_of_owner(&queues, serve, serve->sending.connection);
    return begin(&serve->record.ticket, NULL, serve, serve->sending.connection, &queues, err);
}

void transfer_ticket_queue_serve(struct serve *serve)
{
    ticket_begin(&serve->record.ticket->ticket);
}

void transfer_ticket_receives_posted(struct transfer *transfer)
{
    ticket_receives_posted(&transfer->record.ticket->ticket);
}

void transfer_ticket_pass_on(const struct transfer_record *record)
{
    if (record->ticket)
        ticket_give(&record->ticket->ticket);
}

bool transfer_ticket_waits_behind(const struct transfer_record *record)
{
    return record->ticket && stands_behind(&record->ticket->ticket);
}

static void fail(struct transfer_ticket *end, struct rdt_error *err)
{
    rdt_error_prefix(err, "node %s", record_of(end)->peer);
    if (end->transfer)
        transfer_fail_err(end->transfer, err);
    else
        transfers_of(end)->tickets.events->fail_serve(end->serve, err);
}

/* The other end waits behind other transfers there. False: it has waited too long, and the transfer has failed. */
static bool check_wait(struct transfer_ticket *end)
{
    uint64_t now_ns = uv_hrtime(), stall_ns = transfers_of(end)->options->stall_timeout_ns, bytes = record_of(end)->bytes_done;
    struct rdt_error err;
    bool alone;

    if (!end->waits_since_ns || bytes != end->bytes_seen) {
        end->waits_since_ns = now_ns;
        end->holds_since_ns = 0;
        end->bytes_seen = bytes;
    }
    if (!ticket_blocks_others(&end->ticket))
        end->holds_since_ns = 0;
    else if (!end->holds_since_ns)
        end->holds_since_ns = now_ns;
    alone = !end->holds_since_ns || now_ns - end->holds_since_ns < MAX_BLOCKING_WAIT * stall_ns;
    if (alone && now_ns - end->waits_since_ns < MAX_WAIT * stall_ns)
        return true;
    (void)rdt_error_set(&err, RDT_TRANSPORT, "it has been %s for %.1f s (%u times stall_timeout)%s",
                        end->there[0] ? end->there : "behind others",
                        (double)(now_ns - (alone ? end->waits_since_ns : end->holds_since_ns)) / 1e9,
                        alone ? MAX_WAIT : MAX_BLOCKING_WAIT, alone ? ", and nothing has moved" : ", and holds up others here");
    fail(end, &err);
    return false;
}

static void receive_turn(struct transfer_ticket *end, const Rdt__Pb__PullTicket *message)
{
    struct deadline *deadline = end->transfer ? &end->transfer->pull.stall : &end->serve->deadline;
    bool waited_for = end->transfer || end->serve->sm.state == SERVE_SENDING || end->ticket.sm.state != TICKET_QUEUED;
    struct rdt_error err;

    text_copy(end->there, sizeof end->there, message->behind);
    end->told_ns = uv_hrtime();
    if (message->state == RDT__PB__TICKET_STATE__TICKET_WAITING) {
        if (!waited_for || !check_wait(end))
            return;
        watch(end);
        if (end->transfer)
            end->transfer->transfers->tickets.events->waits(end->transfer);
        return;
    }
    end->waits_since_ns = 0;
    deadline_unset(transfers_of(end)->deadlines, deadline);
    if (ticket_receive(&end->ticket, (enum ticket_message)message->state, &err) != RDT_OK)
        fail(end, &err); /* Otherwise the transfer may have ended. */
}

void transfer_ticket_on_message(struct remote *remote, const Rdt__Pb__PullTicket *message)
{
    struct transfer *transfer = message->from_owner ? transfers_find(remote->transfers, message->transfer) : NULL;
    struct serve *serve = message->from_owner ? NULL : map_get_u64(&remote->by_number, message->transfer);
    struct transfer_ticket *end = transfer && transfer->kind->pulls && transfer->pull.peer == remote ? transfer->record.ticket
                                  : serve                                                            ? serve->record.ticket
                                                                                                     : NULL;

    if (end && is_active(end))
        receive_turn(end, message);
}

/* ---- for people ---- */

static void say_awaited(const struct transfer_record *record, char text_p[RECORD_WAITS_BYTES])
{
    bool there = strcmp(record->direction, "in") == 0;
    char above[48] = "";

    if (record->ref.is_name && record->ref.after > 0)
        (void)snprintf(above, sizeof above, " in a version above %llu", (unsigned long long)record->ref.after);
    (void)snprintf(text_p, RECORD_WAITS_BYTES, "for somebody to %s%s%s%.64s",
                   record->ref.is_name ? "publish the name" : "put it", above, there ? " on node " : "",
                   there ? record->peer : "");
}

void record_waits_for(const struct transfer_record *record, char text_p[RECORD_WAITS_BYTES])
{
    const struct transfer_ticket *end = record->ticket;

    text_p[0] = '\0';
    if (record->awaits_put)
        say_awaited(record, text_p);
    if (!end)
        return;
    if (stands_behind(&end->ticket))
        describe(end, text_p, RECORD_WAITS_BYTES);
    else if (end->there[0] != '\0' && uv_hrtime() - end->told_ns < 3 * (uint64_t)TICK_NS)
        (void)snprintf(text_p, RECORD_WAITS_BYTES, "on node %.64s it is %s", record->peer, end->there);
    else if (!ticket_has_posted(&end->ticket))
        (void)snprintf(text_p, RECORD_WAITS_BYTES, "for the queue ticket of node %.64s", record->peer);
}
