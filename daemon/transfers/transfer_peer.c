/* The peer link as transfers see it: what comes in goes to the reader's or the owner's side. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/transfers/transfer_broadcast.h"
#include "daemon/transfers/transfer_impl.h"

struct peer_work *peer_work_get(struct transfers *transfers, struct peer *peer)
{
    struct peer_work *work = peer->upper;

    if (work)
        return work;
    work = calloc(1, sizeof *work);
    if (!work)
        return NULL;
    work->transfers = transfers;
    work->peer = peer;
    list_init(&work->pending);
    list_init(&work->incoming);
    list_init(&work->transports);
    list_init(&work->in_groups);
    list_init(&work->parts);
    list_init(&work->keeps);
    list_init(&work->kept_before);
    map_init(&work->outgoing);
    peer->upper = work;
    list_append(&transfers->works, &work->link);
    return work;
}

enum rdt_status work_send(struct peer_work *work, enum rdt_peer_message type, const ProtobufCMessage *message,
                          struct rdt_error *err)
{
    if (work->transfers->closing)
        return rdt_error_set(err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    return peer_send(work->peer, type, message, err);
}

/* Takes the first transfer of `from` over into `to`; NULL: none is left. Lists of transfers are walked so where the end of one may
 * end others: what is left is never one that is gone. */
static struct transfer *take_over(struct list *from, struct list *to)
{
    struct list *node = list_first(from);

    if (!node)
        return NULL;
    list_remove(node);
    list_append(to, node);
    return container_of(node, struct transfer, by_peer);
}

/* The link is up. What is queued behind a question has its turn when that is answered. */
static void ask_pending(struct peer_work *work)
{
    struct list now;
    struct transfer *transfer;

    list_init(&now);
    list_splice(&now, &work->pending);
    while ((transfer = take_over(&now, &work->pending))) {
        if (transfer->sm.state != TRANSFER_LINK)
            continue;
        list_remove(&transfer->by_peer);
        list_append(&work->incoming, &transfer->by_peer);
        transfer_in_ask(transfer);
    }
}

void transfers_peer_up(struct transfers *transfers, struct peer *peer)
{
    struct peer_work *work = peer_work_get(transfers, peer);

    if (!work || transfers->closing)
        return;
    peer_transports_up(work);
    keepers_link_up(work);
    replicas_peer_up(&transfers->replicas, work);
    broadcasts_peer_up(work);
    ask_pending(work);
}

bool transfers_believe(const struct transfers *transfers, const Rdt__Pb__Requester *requester, struct owner *owner_p,
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

/* What waits for the link of one waits for the other's: one node, known by two addresses. */
void transfers_peer_merged(struct transfers *transfers, struct peer *from, struct peer *into)
{
    struct peer_work *old = from->upper, *work = old ? peer_work_get(transfers, into) : NULL;

    while (work && !list_empty(&old->pending)) {
        struct transfer *transfer = container_of(list_first(&old->pending), struct transfer, by_peer);
        list_remove(&transfer->by_peer);
        list_append(&work->pending, &transfer->by_peer);
        transfer->peer = work;
        if (transfer->origin == old)
            transfer->origin = work;
        (void)snprintf(transfer->record.peer, sizeof transfer->record.peer, "%s", into->name);
        old->n_in--;
        work->n_in++;
    }
    if (work)
        broadcasts_peer_merged(old, work);
    if (work && into->state == PEER_UP)
        ask_pending(work);
}

/* Those first that wait for the rest of their batch: the end of the rest would let them go on. */
static void fail_each(struct list *transfers, const struct rdt_error *why)
{
    for (unsigned pass = 0; pass < 2; pass++) {
        struct list now;
        struct transfer *transfer;

        list_init(&now);
        list_splice(&now, transfers);
        while ((transfer = take_over(&now, transfers)))
            if (pass == 1 || !list_empty(&transfer->by_group))
                transfer_fail_err(transfer, why);
    }
}

/* One question at a time: who comes while it is under way needs the next, for the node may have gone since it answered. */
static void ask(struct peer_work *work)
{
    work->asked++;
    work->answer_due = true;
    peer_ask(work->peer);
}

void peer_work_doubt(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;
    struct peer_work *work = transfer->peer;
    int64_t patience_ns = 2 * (int64_t)transfers->options->peer_timeout_ns;

    if (work->answer_due) {
        transfer->asked = work->asked + 1;
    } else {
        ask(work);
        transfer->asked = work->asked;
    }
    (void)deadline_set(transfers->deadlines, &transfer->stall,
                       patience_ns); /* for a node that says this and that, but no pong */
}

void transfers_peer_answer(struct transfers *transfers, struct peer *peer)
{
    struct peer_work *work = peer->upper;
    struct transfer *transfer;
    bool again = false;
    struct list now;

    if (!work || transfers->closing)
        return;
    work->answer_due = false;
    list_init(&now);
    list_splice(&now, &work->incoming);
    while ((transfer = take_over(&now, &work->incoming))) {
        if (transfer->asked == 0)
            continue;
        if (transfer->asked > work->asked)
            again = true;
        else
            transfer_in_judge(transfer);
    }
    if (again && !work->answer_due)
        ask(work);
}

void peer_work_connected(struct peer_transport *pt)
{
    struct peer_work *work = pt->work;
    struct transfer *transfer;
    struct list now;

    list_init(&now);
    list_splice(&now, &work->incoming);
    while ((transfer = take_over(&now, &work->incoming)))
        transfer_in_connected(transfer, pt);
}

void peer_work_refused(struct peer_transport *pt)
{
    struct peer_work *work = pt->work;
    struct transfer *transfer;
    struct list now;

    list_init(&now);
    list_splice(&now, &work->incoming);
    while ((transfer = take_over(&now, &work->incoming)))
        transfer_in_refused(transfer, pt);
}

static void work_fail(struct peer_work *work, const struct rdt_error *why)
{
    work->answer_due = false;
    peer_transports_down(work);
    fail_each(&work->pending, why);
    fail_each(&work->incoming, why);
    transfer_parts_link_down(work, why);
    broadcasts_link_down(work, why);
    outgoing_link_down(work);
    keepers_link_down(work);
}

void transfers_peer_down(struct transfers *transfers, struct peer *peer, const struct rdt_error *why)
{
    struct peer_work *work = peer->upper;

    (void)transfers;
    if (work)
        work_fail(work, why);
}

void transfers_check_closed(struct transfers *transfers)
{
    void (*on_closed)(void *arg);

    if (!transfers->closing || !transfers->on_closed)
        return;
    list_for_each (node, &transfers->works) {
        if (!peer_transports_closed(container_of(node, struct peer_work, link)))
            return;
    }
    on_closed = transfers->on_closed;
    transfers->on_closed = NULL;
    on_closed(transfers->closed_arg);
}

void transfers_close(struct transfers *transfers, void (*on_closed)(void *arg), void *arg)
{
    struct rdt_error err;

    (void)rdt_error_set(&err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    outgoing_shut_down(transfers, &err);
    broadcasts_close(transfers, &err);
    transfers->closing = true;
    transfers->on_closed = on_closed;
    transfers->closed_arg = arg;
    list_for_each (node, &transfers->works)
        work_fail(container_of(node, struct peer_work, link), &err);
    replicas_close(&transfers->replicas);
    transfers_check_closed(transfers);
}

typedef enum rdt_status (*handler)(struct peer_work *work, const void *message, struct rdt_error *err);

static enum rdt_status on_offer(struct peer_work *work, const void *message, struct rdt_error *err)
{
    return peer_transport_on_offer(work, message, err);
}

static enum rdt_status on_pull(struct peer_work *work, const void *message, struct rdt_error *err)
{
    return outgoing_on_pull(work, message, err);
}

static enum rdt_status on_meta(struct peer_work *work, const void *message, struct rdt_error *err)
{
    (void)err;
    transfer_in_on_meta(work, message);
    return RDT_OK;
}

static enum rdt_status on_parked(struct peer_work *work, const void *message, struct rdt_error *err)
{
    (void)err;
    transfer_in_on_parked(work, message);
    return RDT_OK;
}

static enum rdt_status on_credit(struct peer_work *work, const void *message, struct rdt_error *err)
{
    (void)err;
    outgoing_on_credit(work, message);
    return RDT_OK;
}

static enum rdt_status on_start(struct peer_work *work, const void *message, struct rdt_error *err)
{
    (void)err;
    outgoing_on_start(work, message);
    return RDT_OK;
}

static enum rdt_status on_turn(struct peer_work *work, const void *message, struct rdt_error *err)
{
    (void)err;
    order_on_turn(work, message);
    return RDT_OK;
}

static enum rdt_status on_keys(struct peer_work *work, const void *message, struct rdt_error *err)
{
    (void)err;
    transfer_in_on_keys(work, message);
    return RDT_OK;
}

static enum rdt_status on_end(struct peer_work *work, const void *message, struct rdt_error *err)
{
    const Rdt__Pb__PullEnd *end = message;

    (void)err;
    if (end->from_owner)
        transfer_in_on_end(work, end);
    else
        outgoing_on_end(work, end);
    return RDT_OK;
}

static enum rdt_status on_abort(struct peer_work *work, const void *message, struct rdt_error *err)
{
    (void)err;
    outgoing_on_abort(work, message);
    return RDT_OK;
}

static enum rdt_status on_aborted(struct peer_work *work, const void *message, struct rdt_error *err)
{
    (void)work; /* the reader's memory waits for its own engine, not for this */
    (void)message;
    (void)err;
    return RDT_OK;
}

static enum rdt_status on_copies(struct peer_work *work, const void *message, struct rdt_error *err)
{
    (void)err;
    keepers_on_news(&work->transfers->keepers, work, message);
    replicas_on_news(&work->transfers->replicas, work, message);
    return RDT_OK;
}

static enum rdt_status on_broadcast(struct peer_work *work, const void *message, struct rdt_error *err)
{
    return transfer_part_on_ask(work, message, err);
}

static enum rdt_status on_broadcast_word(struct peer_work *work, const void *message, struct rdt_error *err)
{
    const Rdt__Pb__BroadcastWord *word = message;

    (void)err;
    if (word->from_root)
        transfer_part_on_over(work, word);
    else
        broadcast_on_word(work, word);
    return RDT_OK;
}

static const struct {
    enum rdt_peer_message type;
    const ProtobufCMessageDescriptor *descriptor;
    handler on_message;
} handlers[] = {
    {RDT_PEER_OFFER, &rdt__pb__offer__descriptor, on_offer},
    {RDT_PEER_PULL, &rdt__pb__pull__descriptor, on_pull},
    {RDT_PEER_PULL_META, &rdt__pb__pull_meta__descriptor, on_meta},
    {RDT_PEER_PULL_PARKED, &rdt__pb__pull_parked__descriptor, on_parked},
    {RDT_PEER_PULL_CREDIT, &rdt__pb__pull_credit__descriptor, on_credit},
    {RDT_PEER_PULL_START, &rdt__pb__pull_start__descriptor, on_start},
    {RDT_PEER_PULL_TURN, &rdt__pb__pull_turn__descriptor, on_turn},
    {RDT_PEER_PULL_KEYS, &rdt__pb__pull_keys__descriptor, on_keys},
    {RDT_PEER_PULL_END, &rdt__pb__pull_end__descriptor, on_end},
    {RDT_PEER_PULL_ABORT, &rdt__pb__pull_abort__descriptor, on_abort},
    {RDT_PEER_PULL_ABORTED, &rdt__pb__pull_aborted__descriptor, on_aborted},
    {RDT_PEER_COPIES, &rdt__pb__copies__descriptor, on_copies},
    {RDT_PEER_BROADCAST, &rdt__pb__group_broadcast__descriptor, on_broadcast},
    {RDT_PEER_BROADCAST_WORD, &rdt__pb__broadcast_word__descriptor, on_broadcast_word},
};

enum rdt_status transfers_peer_frame(struct transfers *transfers, struct peer *peer, const struct frame *frame,
                                     struct rdt_error *err)
{
    struct peer_work *work = peer_work_get(transfers, peer);

    if (!work)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for node %s", peer->name);
    if (transfers->closing)
        return RDT_OK;
    for (size_t i = 0; i < sizeof handlers / sizeof handlers[0]; i++) {
        enum rdt_status status;
        ProtobufCMessage *message;
        struct arena arena;

        if (handlers[i].type != frame->type)
            continue;
        arena_init(&arena, RDT_MAX_DECODED_BYTES);
        status = arena_unpack(&arena, handlers[i].descriptor, frame->payload, frame->length, handlers[i].descriptor->short_name,
                              &message, err);
        if (status == RDT_OK)
            status = handlers[i].on_message(work, message, err);
        else
            rdt_error_prefix(err, "node %s", peer->name);
        arena_fini(&arena);
        return status;
    }
    return rdt_error_set(err, RDT_PROTOCOL, "a message of unknown type %u from node %s", frame->type, peer->name);
}

void transfers_peer_summary(const struct peer *peer, struct peer_summary *summary)
{
    const struct peer_work *work = peer->upper;

    *summary = (struct peer_summary){0};
    if (!work)
        return;
    summary->transfers_in = work->n_in;
    summary->transfers_out = work->n_out;
    summary->bytes_in = work->bytes_in;
    summary->bytes_out = work->bytes_out;
    summary->fell_back = work->fell_back;
    list_for_each (node, &work->transports) {
        const struct peer_transport *pt = container_of(node, struct peer_transport, link);
        if (pt->sm.state != PT_CONNECTED) {
            if (peer->state == PEER_UP && summary->n_unusable < PATH_MAX_CANDIDATES) {
                peer_transport_why_not(pt, summary->unusable[summary->n_unusable], sizeof summary->unusable[0]);
                summary->n_unusable += summary->unusable[summary->n_unusable][0] != '\0';
            }
            continue;
        }
        if (summary->n_transports == PATH_MAX_CANDIDATES)
            continue;
        plugin_conn_describe(&pt->conn, summary->lanes[summary->n_transports], sizeof summary->lanes[0]);
        summary->transports[summary->n_transports++] = pt->transport->name;
    }
}
