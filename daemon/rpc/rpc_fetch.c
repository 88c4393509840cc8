/* SPDX-License-Identifier: Apache-2.0 */
/* FETCH, CANCEL and RELEASE. Each item of a FETCH is answered by its own FETCH_DONE. Items of the same object may share a
 * transfer, so all items are started before any is served. Only items at the front that can share with no other item are
 * served at once. */
#include <stdlib.h>
#include <string.h>

#include "daemon/calls/call.h"
#include "daemon/transfers/reservation.h"

#define AT_ONCE 8u /* a message with at most this many items is served in the turn in which it has arrived */
/* the most items that share one transfer of a local object, because one step answers all of them */
#define SHARERS_MAX 16
/* each item is compared with at most this many earlier ones, because a message may fetch thousands of slices of an object */
#define SHARERS_TRIED 16

enum phase {
    BATCH_FIND_REPEATED, /* finds the items of the same object, which may share a transfer */
    BATCH_START,         /* starts each item, and serves local items before the first one that is repeated or remote */
    BATCH_SERVE,         /* serves the other items */
};

struct item {
    uint64_t transfer; /* number of the transfer that the item has started; 0: none */
    uint32_t first;    /* index of the first item with its id */
    /* Of the first item with an id: index + 1 of the latest item with that id that started a transfer; 0: none */
    uint32_t last;
    uint32_t earlier; /* index + 1 of the item with that id that started a transfer before this one; 0: none */
    bool repeated;    /* other items have the same id */
    bool served;
};

/* A fetch of many items, served in several of the client's turns. Its transfers may end between two turns, so they
 * are looked up by number. */
struct batch {
    struct client_task task;
    struct rpc *rpc;
    struct client *client;
    struct arena arena; /* of the message */
    const Rdt__Pb__Fetch *message;
    enum phase phase;
    size_t next;                     /* index of the next item of the phase */
    bool serves_later;               /* an item must wait for BATCH_SERVE, and so all items after it do */
    struct map by_id;                /* FIND_REPEATED: id bytes -> index + 1 of the first item with it */
    struct item *items;              /* [message->n_items] */
    struct reservation *reservation; /* memory for all items; NULL: there is only one item */
    struct rdt_error refused;        /* not OK: no item is started, and each is answered with this */
};

static struct transfer *transfer_of(const struct batch *batch, size_t i)
{
    return batch->items[i].transfer ? transfers_find(batch->rpc->transfers, batch->items[i].transfer) : NULL;
}

static void find_repeated(struct batch *batch, size_t i)
{
    const Rdt__Pb__Ref *ref = batch->message->items[i]->ref;
    struct item *item = &batch->items[i];
    size_t first;

    item->first = (uint32_t)i;
    if (!ref || ref->id.len == 0)
        return;
    first = (size_t)map_get(&batch->by_id, ref->id.data, ref->id.len);
    if (first == 0) {
        /* if there is no memory for the entry, the items share no transfer */
        (void)map_put(&batch->by_id, ref->id.data, ref->id.len, (void *)(i + 1));
        return;
    }
    item->first = (uint32_t)(first - 1);
    item->repeated = batch->items[item->first].repeated = true;
}

/* A second transfer of a local object costs nothing extra, because no bytes move. */
static bool has_room(const struct transfer *shared)
{
    return transfer_fetch_count(shared) < SHARERS_MAX || !transfer_is_local(shared);
}

/* Returns the transfer of an earlier item that this item may join; NULL: there is none. */
static struct transfer *find_joinable(struct batch *batch, size_t i)
{
    const Rdt__Pb__Fetch *message = batch->message;
    const struct item *item = &batch->items[i];
    unsigned tries = 0;

    for (size_t at = batch->items[item->first].last; at != 0 && tries < SHARERS_TRIED;
         at = batch->items[at - 1].earlier, tries++) {
        struct transfer *shared = transfer_of(batch, at - 1);
        if (shared && fetch_joinable(message, message->items[i], message->items[at - 1]) && has_room(shared))
            return shared;
    }
    return NULL;
}

static void serve(struct batch *batch, size_t i, struct transfer *transfer)
{
    batch->items[i].served = true;
    transfer_go(transfer, batch->reservation);
}

static void start_item(struct batch *batch, size_t i)
{
    const Rdt__Pb__FetchItem *message = batch->message->items[i];
    struct item *item = &batch->items[i], *first = &batch->items[item->first];
    struct transfer *transfer = NULL;
    struct rdt_error why = {0};

    if (fetch_start(batch->rpc->transfers, batch->client, batch->message, message, find_joinable(batch, i), &transfer, &why) !=
        RDT_OK)
        fetch_answer_error(batch->client, message->handle, &why);
    if (!transfer) /* the item failed, or shares the transfer of another item */
        return;
    item->transfer = transfer_id(transfer);
    item->earlier = first->last;
    first->last = (uint32_t)i + 1;
    batch->serves_later = batch->serves_later || item->repeated || !transfer_is_local(transfer);
    if (!batch->serves_later)
        serve(batch, i, transfer);
}

static bool batch_end(struct batch *batch)
{
    reservation_seal(batch->reservation);
    map_fini(&batch->by_id);
    free(batch->items);
    work_free_arena(batch->rpc->regions->pool, &batch->arena);
    free(batch);
    return true;
}

static bool batch_step(struct client_task *task, uint64_t until_ns)
{
    struct batch *batch = (struct batch *)task;
    size_t n = batch->message->n_items;

    do {
        if (batch->next == n && (batch->phase == BATCH_SERVE || batch->refused.status != RDT_OK))
            return batch_end(batch);
        if (batch->refused.status != RDT_OK) {
            fetch_answer_error(batch->client, batch->message->items[batch->next++]->handle, &batch->refused);
            continue;
        }
        if (batch->next == n) {
            batch->phase++;
            batch->next = 0;
        } else if (batch->phase == BATCH_FIND_REPEATED) {
            find_repeated(batch, batch->next++);
        } else if (batch->phase == BATCH_START) {
            start_item(batch, batch->next++);
        } else {
            struct transfer *transfer = batch->items[batch->next].served ? NULL : transfer_of(batch, batch->next);
            if (transfer)
                serve(batch, batch->next, transfer);
            batch->next++;
        }
    } while (uv_hrtime() < until_ns);
    return false;
}

static bool batch_drop(struct client_task *task)
{
    return batch_end((struct batch *)task);
}

/* Limits the number of tensors that lists of targets stand for: a few bytes of runs can stand for millions. */
static enum rdt_status check_runs(const Rdt__Pb__Fetch *message, struct rdt_error *err)
{
    uint64_t n = 0;

    for (size_t i = 0; i < message->n_items; i++)
        if (message->items[i]->targets)
            n += layout_run_tensors(message->items[i]->targets);
    if (n > RDT_MAX_RUN_TENSORS)
        return rdt_error_set(err, RDT_LIMIT, "a fetch with targets of %llu tensors in runs: at most %u in one message",
                             (unsigned long long)n, RDT_MAX_RUN_TENSORS);
    return RDT_OK;
}

/* Why no item is started. */
static enum rdt_status check(const struct rpc *rpc, const Rdt__Pb__Fetch *message, struct rdt_error *err)
{
    if (rpc->intake.draining)
        return rdt_error_set(err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    if (message->n_items > RDT_MAX_FETCH_REFS)
        return rdt_error_set(err, RDT_LIMIT, "the fetch has %zu refs: one message may have at most %u", message->n_items,
                             RDT_MAX_FETCH_REFS);
    return check_runs(message, err);
}

enum rdt_status rpc_fetch(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Fetch *message = request;
    struct client *client = call->client;
    struct batch *batch = calloc(1, sizeof *batch);
    size_t n = message->n_items;

    if (batch && check(call->rpc, message, &batch->refused) == RDT_OK && !(batch->items = calloc(n + 1, sizeof *batch->items)))
        (void)rdt_error_set(&batch->refused, RDT_NO_MEMORY, "no memory for the fetch");
    if (!batch) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the fetch");
        for (size_t i = 0; i < n; i++)
            fetch_answer_error(client, message->items[i]->handle, err);
        call_reply_empty(call);
        return RDT_OK;
    }
    map_init(&batch->by_id);
    batch->task = (struct client_task){.step = batch_step, .drop = batch_drop};
    batch->rpc = call->rpc;
    batch->client = client;
    batch->message = message;
    batch->phase = n > 1 ? BATCH_FIND_REPEATED : BATCH_START;
    if (batch->refused.status == RDT_OK) {
        client->transfers.n_fetch_messages++;
        batch->reservation = n > 1 ? reservation_create(call->rpc->regions) : NULL;
    }
    call_take_request(call, &batch->arena);
    call_reply_empty(call); /* the items are answered one by one */
    if (n > AT_ONCE || !batch_step(&batch->task, UINT64_MAX))
        client->task = &batch->task;
    return RDT_OK;
}

/* Records which of the object's regions stay mapped at the client. Both lists have the same order. */
static void note_mappings_kept(struct client *client, const struct object *object, const Rdt__Pb__Release *message)
{
    size_t at = 0;

    for (uint32_t i = 0; i < object->memory.n_regions; i++) {
        struct region *region = object->memory.uses[i].region;
        if (at < message->n_keep_mapped_regions && message->keep_mapped_regions[at] == region->id) {
            at++;
            mapped_keep(&client->mapped, region, message->gone_events == client->n_region_gone_events);
        } else {
            (void)mapped_drop(&client->mapped, region);
        }
    }
}

/* The client has not read the answer that brought the hold, and perhaps never will: it is told to unmap what it has mapped. */
static void let_go(struct client *client, struct hold *hold)
{
    static const Rdt__Pb__Release keeps_nothing = RDT__PB__RELEASE__INIT;

    if (hold->object)
        note_mappings_kept(client, hold->object, &keeps_nothing);
    else if (hold->region)
        client->cache.ops->on_drop(&client->cache, hold->region->id);
    for (uint32_t i = 0; i < hold->n_regions; i++)
        client->cache.ops->on_drop(&client->cache, hold->regions[i]->id);
    client_release(hold);
}

enum rdt_status rpc_cancel(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Cancel *message = request;
    struct fetch *fetch = map_get_u64(&call->client->transfers.fetches, message->handle);
    struct hold *hold = fetch ? NULL : client_hold_of_fetch(call->client, message->handle);
    struct rdt_error why;

    if (fetch) {
        (void)rdt_error_set(&why, RDT_CANCELLED, "the fetch was cancelled");
        fetch_fail(fetch, &why);
    } else if (hold) {
        let_go(call->client, hold);
    }
    call_reply_empty(call);
    return RDT_OK;
}

/* ---- releases ---- */

/* A RELEASE of many holds, in several of the client's turns. */
struct releasing {
    struct client_task task;
    struct client *client;
    uint64_t gone_events; /* this and what follows as in the message */
    size_t n_kept, n_holds, next;
    uint64_t kept[RDT_MAX_RELEASED_REGIONS], holds[]; /* holds [n_holds] */
};

static bool is_kept(const struct releasing *releasing, uint64_t region)
{
    for (size_t i = 0; i < releasing->n_kept; i++)
        if (releasing->kept[i] == region)
            return true;
    return false;
}

static void release_one(const struct releasing *releasing, uint64_t id)
{
    struct client *client = releasing->client;
    struct hold *hold = map_get_u64(&client->holds.by_id, id);

    if (!hold)
        return;
    for (uint32_t i = 0; hold->object && i < hold->object->memory.n_regions; i++) {
        struct region *region = hold->object->memory.uses[i].region;
        if (is_kept(releasing, region->id))
            mapped_keep(&client->mapped, region, releasing->gone_events == client->n_region_gone_events);
        else
            (void)mapped_drop(&client->mapped, region);
    }
    client_release(hold);
}

static bool releasing_end(struct client_task *task)
{
    free(task);
    return true;
}

static bool release_some(struct client_task *task, uint64_t until_ns)
{
    struct releasing *releasing = (struct releasing *)task;

    while (releasing->next < releasing->n_holds) {
        release_one(releasing, releasing->holds[releasing->next++]);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return releasing_end(task);
}

static enum rdt_status release_many(struct call *call, const Rdt__Pb__Release *message, struct rdt_error *err)
{
    struct releasing *releasing;

    if (message->hold != 0 || message->keep_mapped || message->n_holds > RDT_MAX_RELEASED_HOLDS ||
        message->n_keep_mapped_regions > RDT_MAX_RELEASED_REGIONS)
        return rdt_error_set(err, RDT_INVALID,
                             "a release of many holds has at most %u of them, and %u regions that stay mapped",
                             RDT_MAX_RELEASED_HOLDS, RDT_MAX_RELEASED_REGIONS);
    releasing = malloc(sizeof *releasing + message->n_holds * sizeof releasing->holds[0]);
    if (!releasing)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to release %zu holds", message->n_holds);
    *releasing = (struct releasing){.task = {.step = release_some, .drop = releasing_end},
                                    .client = call->client,
                                    .gone_events = message->gone_events,
                                    .n_kept = message->n_keep_mapped_regions,
                                    .n_holds = message->n_holds};
    memcpy(releasing->holds, message->holds, message->n_holds * sizeof releasing->holds[0]);
    if (releasing->n_kept > 0)
        memcpy(releasing->kept, message->keep_mapped_regions, releasing->n_kept * sizeof releasing->kept[0]);
    call_reply_empty(call);
    releasing->client->task = &releasing->task;
    return RDT_OK;
}
enum rdt_status rpc_release(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Release *message = request;
    struct hold *hold = map_get_u64(&call->client->holds.by_id, message->hold);

    mapped_unmapped(&call->client->mapped, message->gone_events);
    if (message->n_holds > 0)
        return release_many(call, message, err);
    if (message->hold == 0) { /* it says only that */
        call_reply_empty(call);
        return RDT_OK;
    }
    if (!hold)
        return rdt_error_set(err, RDT_NOT_FOUND, "this client has no hold %llu", (unsigned long long)message->hold);
    if (message->keep_mapped && hold->region) {
        if (region_may_be_cached(hold->region, call->client->id))
            hold->region->reuse.keep_mapped = true;
        else
            call->client->cache.ops->on_drop(&call->client->cache, hold->region->id); /* the client has not been told yet */
    }
    if (hold->object)
        note_mappings_kept(call->client, hold->object, message);
    client_release(hold);
    call_reply_empty(call);
    return RDT_OK;
}
