/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a transfer, whatever moves its bytes: creation, memory, failure, end. transfer_result.c answers
 * its fetches. */

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/reservation.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_record.h"

#define BIT(state) (1u << (state))
#define AT_ONCE 16u /* fetches that are answered before the first look at the clock */

/* Every allowed move. transfer.h draws them. */
static const struct sm_state states[] = {
    [TRANSFER_NEW] = {"new", BIT(TRANSFER_PARKED) | BIT(TRANSFER_LINK) | BIT(TRANSFER_QUEUED) | BIT(TRANSFER_ASKED) |
                                 BIT(TRANSFER_RESERVE) | BIT(TRANSFER_ENDED)},
    [TRANSFER_PARKED] = {"parked", BIT(TRANSFER_NEW) | BIT(TRANSFER_ENDED)},
    [TRANSFER_LINK] = {"link", BIT(TRANSFER_LINK) | BIT(TRANSFER_ASKED) | BIT(TRANSFER_REWIND) | BIT(TRANSFER_ENDED)},
    [TRANSFER_QUEUED] = {"queued", BIT(TRANSFER_LINK) | BIT(TRANSFER_ASKED) | BIT(TRANSFER_RESERVE) | BIT(TRANSFER_ENDED)},
    [TRANSFER_ASKED] = {"asked", BIT(TRANSFER_LINK) | BIT(TRANSFER_ASKED) | BIT(TRANSFER_RESERVE) | BIT(TRANSFER_REWIND) |
                                     BIT(TRANSFER_ABORT) | BIT(TRANSFER_ENDED)},
    [TRANSFER_RESERVE] = {"reserving", BIT(TRANSFER_CONNECT) | BIT(TRANSFER_TICKET) | BIT(TRANSFER_MOVE) |
                                           BIT(TRANSFER_REWIND) | BIT(TRANSFER_ABORT) | BIT(TRANSFER_ENDED)},
    [TRANSFER_CONNECT] = {"connecting", BIT(TRANSFER_RESERVE) | BIT(TRANSFER_REWIND) | BIT(TRANSFER_ABORT)},
    [TRANSFER_TICKET] = {"ticket", BIT(TRANSFER_MOVE) | BIT(TRANSFER_REWIND) | BIT(TRANSFER_ABORT)},
    [TRANSFER_MOVE] = {"moving", BIT(TRANSFER_REWIND) | BIT(TRANSFER_ABORT) | BIT(TRANSFER_ENDED)},
    [TRANSFER_REWIND] = {"rewinding", BIT(TRANSFER_LINK) | BIT(TRANSFER_ASKED) | BIT(TRANSFER_RESERVE) | BIT(TRANSFER_ABORT)},
    [TRANSFER_ABORT] = {"aborting", BIT(TRANSFER_ENDED)},
    [TRANSFER_ENDED] = {"ended", 0},
};

struct transfer *transfers_find(const struct transfers *transfers, uint64_t id)
{
    struct transfer_record *record = index_get(&transfers->under_way.by_id, id);

    return record && strcmp(record->direction, "out") != 0 ? container_of(record, struct transfer, record) : NULL;
}

void transfer_set_state(struct transfer *transfer, enum transfer_state state)
{
    sm_move(&transfer->sm, state);
    transfer->record.state = sm_name(&transfer->sm);
    if (state != TRANSFER_ENDED) /* how it ended follows */
        record_stage(transfer->transfers, &transfer->record);
}

uint64_t transfer_id(const struct transfer *transfer)
{
    return transfer->id;
}

unsigned transfer_fetch_count(const struct transfer *transfer)
{
    return transfer->n_fetches;
}

bool transfer_is_local(const struct transfer *transfer)
{
    return node_is_here(transfer->transfers->node, transfer->ref.node, transfer->ref.address);
}

struct transfer *transfer_new(struct transfers *transfers, const struct transfer_kind *kind, struct client *client,
                              struct account *account, const struct rdt_ref *ref)
{
    struct transfer *transfer = calloc(1, sizeof *transfer);

    if (!transfer)
        return NULL;
    transfer->transfers = transfers;
    transfer->kind = kind;
    transfer->id = ids_next(&transfers->ids, account);
    transfer->client = client;
    transfer->account = account_ref(account);
    transfer->ref = *ref;
    list_init(&transfer->fetches);
    list_init(&transfer->move.reserve.link);
    kind->init(transfer);
    sm_init(&transfer->sm, states, sizeof states / sizeof states[0], TRANSFER_NEW);
    transfer->record.client = client ? client->id : 0;
    record_start(&transfer->record, transfer->id, &account->owner, ref, "local", "new");
    if (!index_put(&transfers->under_way.by_id, transfer->id, &transfer->record)) {
        account_unref(transfer->account);
        free(transfer);
        return NULL;
    }
    list_append(&transfers->under_way.active, &transfer->record.link);
    transfers->under_way.n++;
    record_stage_at(transfers, &transfer->record, transfer->record.since_ns);
    event(transfers->events, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "began", &transfer->record);
    return transfer;
}

void transfer_become(struct transfer *transfer, const struct transfer_kind *kind)
{
    transfer->kind->release(transfer);
    transfer->kind = kind;
    memset(&transfer->pull, 0, sizeof transfer->pull); /* and what `local` left there */
    kind->init(transfer);
}

enum rdt_status transfer_reserve(struct transfer *transfer, bool shared, region_ready on_ready, struct rdt_error *err)
{
    bool own = transfer->client && transfer->n_fetches == 1 && !shared;

    if (own)
        transfer->move.received = region_cache_take(&transfer->client->cache, transfer->move.stream_bytes, REGION_RECEIVED);
    if (transfer->move.received)
        return RDT_OK;
    return region_alloc(transfer->transfers->regions, "host", "", transfer->move.stream_bytes,
                        shared ? REGION_REPLICA : REGION_RECEIVED, transfer->account, own ? transfer->client->id : 0,
                        &transfer->move.received, on_ready, transfer, err);
}

static void target_free(struct target *target, struct account *account)
{
    if (!target)
        return;
    account_give(account, USAGE_HEAP, target->heap_bytes);
    for (uint32_t i = 0; i < target->n; i++) {
        struct region *region = target->uses[i].region;
        if (!region)
            continue;
        region_use_remove(&target->uses[i]);
        region_unpin(region);
    }
    free(target->layout);
    free(target->uses);
    free(target);
}

struct account *target_slow_owner(const struct target *target)
{
    for (uint32_t i = 0; target && i < target->n; i++)
        if (target->uses[i].region && region_may_wait(target->uses[i].region))
            return target->uses[i].region->account;
    return NULL;
}

bool target_is_imported(const struct target *target)
{
    for (uint32_t i = 0; target && i < target->n; i++)
        if (target->uses[i].region && region_is_by_fd(target->uses[i].region))
            return true;
    return false;
}

enum rdt_status target_check(const struct target *target, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (uint32_t i = 0; target && status == RDT_OK && i < target->n; i++)
        if (target->uses[i].region)
            status = region_check(target->uses[i].region, err);
    return status;
}

static void finish_record(struct transfer *transfer)
{
    if (transfer->merged) {
        transfer->record.state = "joined";
        record_stage(transfer->transfers, &transfer->record);
        event(transfer->transfers->events, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "ended", &transfer->record);
        record_drop_decision(transfer->record.decision);
        free(transfer->record.sources);
    } else {
        record_finish(transfer->transfers, &transfer->record);
    }
    log_debug("xfer %llu ended: %s %s", (unsigned long long)transfer->id, transfer->record.path, transfer->record.error);
}

void transfer_free_layouts(struct transfer *transfer)
{
    if (transfer->move.packed != transfer->move.source)
        free(transfer->move.packed);
    free(transfer->move.source);
    transfer->move.source = transfer->move.packed = NULL;
}

void transfer_free_metadata(struct transfer *transfer)
{
    if (transfer->metadata.own)
        account_give(transfer->account, USAGE_HEAP, transfer->metadata.n_bytes);
    free(transfer->metadata.own);
    transfer->metadata = (struct metadata){0};
}

/* ENDED: all its fetches have their answers. */
static void transfer_free(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;

    region_unref(transfer->move.received);
    target_free(transfer->move.target, transfer->account);
    destination_free(transfer);
    if (transfer->wish.slice)
        rdt__pb__slice__free_unpacked(transfer->wish.slice, NULL);
    transfer_free_layouts(transfer);
    transfer_free_metadata(transfer);
    free(transfer->move.own_inline);
    if (transfer->answers.object)
        object_drop(transfer->answers.object);
    free(transfer->answers.why);
    account_unref(transfer->account);
    free(transfer);
    transfers->under_way.n--;
    if (transfers->ends.on_idle && transfers->under_way.n == 0)
        transfers->ends.on_idle(transfers);
}

/* ---- answers ---- */

static void answer_one(struct fetch *fetch)
{
    struct transfer *transfer = fetch->transfer;

    if (fetch->client || transfer->answers.why)
        transfer->answers.one(fetch);
    else
        fetch_done_here(fetch); /* this node itself, for a broadcast, wants the replica and no answer */
}

static void answer_some(struct transfer *transfer, unsigned at_least, uint64_t until_ns)
{
    unsigned n = 0;

    list_drain (struct fetch, fetch, &transfer->fetches, by_transfer) {
        answer_one(fetch);
        if (++n >= at_least && uv_hrtime() >= until_ns)
            return;
    }
}

static bool answer_more(struct slice *slice, uint64_t until_ns)
{
    struct transfer *transfer = container_of(slice, struct transfer, answers.slice);

    answer_some(transfer, 1, until_ns);
    if (!list_empty(&transfer->fetches))
        return false;
    transfer_free(transfer);
    return true;
}

/* ENDED: answers the fetches that are left, in slices, and frees the transfer. */
static void answer_rest(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;

    transfer->answers.slice.run = answer_more;
    slice_start(transfers->closing ? NULL : &transfers->deadlines->slices, &transfer->answers.slice);
}

void transfer_answer(struct transfer *transfer, void (*one)(struct fetch *))
{
    transfer->answers.one = one;
    answer_some(transfer, AT_ONCE, uv_hrtime() + SLICES_TURN_NS);
}

bool fetch_answer_now(struct fetch *fetch)
{
    struct transfer *transfer = fetch->transfer;

    if (!transfer->answers.one)
        return false;
    answer_one(fetch);
    if (list_empty(&transfer->fetches)) {
        slice_stop(&transfer->answers.slice);
        transfer_free(transfer);
    }
    return true;
}

void transfer_end(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;

    assert((list_empty(&transfer->fetches) || transfer->answers.one) && transfer->move.n_ops == 0);
    transfer_set_state(transfer, TRANSFER_ENDED);
    finish_record(transfer);
    (void)index_remove(&transfers->under_way.by_id, transfer->id);
    list_remove(&transfer->record.link);
    reservation_leave(transfer);
    transfer->kind->release(transfer);
    if (list_empty(&transfer->fetches))
        transfer_free(transfer);
    else
        answer_rest(transfer);
}

/* ---- fetches ---- */

void fetch_detach(struct fetch *fetch)
{
    struct transfer *transfer = fetch->transfer;

    deadline_unset(transfer->transfers->deadlines, &fetch->deadline);
    if (fetch->client) {
        map_remove_u64(&fetch->client->transfers.fetches, fetch->handle);
        account_give(fetch->client->account, USAGE_TRANSFERS, 1);
    }
    list_remove(&fetch->by_transfer);
    if (!list_empty(&transfer->fetches))
        transfer_find_client(transfer);
    free(fetch);
}

void fetch_done_here(struct fetch *fetch)
{
    fetch->on_done(fetch->arg, NULL);
    fetch_detach(fetch);
}

/* Fetches of several clients join. */
void transfer_find_client(struct transfer *transfer)
{
    transfer->client = NULL;
    list_each (const struct fetch, fetch, &transfer->fetches, by_transfer)
        if ((transfer->client = fetch->client))
            return;
}

void fetch_answer_error(struct client *client, uint64_t handle, const struct rdt_error *err)
{
    Rdt__Pb__FetchDone done = RDT__PB__FETCH_DONE__INIT;

    if (client_returns(client, err))
        return;
    done.handle = handle;
    done.status = err->status;
    done.sys_errno = err->sys_errno;
    done.message = (char *)err->msg;
    client->conn.send(client, RDT_EVENT_FETCH_DONE, FRAME_EVENT, handle, &done.base, NULL, 0);
}

/* Answers the fetch, and frees it. */
static void end_with_error(struct fetch *fetch, const struct rdt_error *err)
{
    if (fetch->client)
        fetch_answer_error(fetch->client, fetch->handle, err);
    else
        fetch->on_done(fetch->arg, err);
    fetch_detach(fetch);
}

/* Other nodes may want the replica that the transfer fills, even if no fetch waits for it. */
static bool still_wanted(const struct transfer *transfer)
{
    return transfer->kind->wanted && transfer->kind->wanted(transfer);
}

/* The last fetch has left the transfer. */
static void nobody_waits(struct transfer *transfer, const struct rdt_error *why)
{
    transfer->client = NULL;
    if (transfer->sm.state == TRANSFER_ENDED) {
        slice_stop(&transfer->answers.slice);
        transfer_free(transfer);
    } else if (!still_wanted(transfer)) {
        record_fail(&transfer->record, why);
        transfer_abort(transfer);
    }
}

void fetch_fail(struct fetch *fetch, const struct rdt_error *err)
{
    struct transfer *transfer = fetch->transfer;

    end_with_error(fetch, err);
    if (list_empty(&transfer->fetches))
        nobody_waits(transfer, err);
}

bool transfers_client_gone(struct transfers *transfers, struct client *client, uint64_t until_ns)
{
    struct rdt_error why;
    struct fetch *fetch;

    (void)rdt_error_set(&why, RDT_CANCELLED, "the client has ended");
    while ((fetch = map_next(&client->transfers.fetches, &client->transfers.reaped_fetches))) {
        struct transfer *transfer = fetch->transfer;
        fetch_detach(fetch);
        if (list_empty(&transfer->fetches))
            nobody_waits(transfer, &why);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

static void answer_failed(struct fetch *fetch)
{
    end_with_error(fetch, fetch->transfer->answers.why);
}

/* Its fetches wait for their errors in a transfer of their own, which has ended already. NULL: there is no memory. */
static struct transfer *leave_failed(struct transfer *transfer, const struct rdt_error *err)
{
    struct transfer *rest = calloc(1, sizeof *rest);
    struct rdt_error *why = malloc(sizeof *why);

    if (!rest || !why) {
        free(rest);
        free(why);
        return NULL;
    }
    *why = *err;
    rest->transfers = transfer->transfers;
    rest->id = transfer->id;
    rest->ref = transfer->ref;
    rest->account = account_ref(transfer->account);
    rest->answers.one = answer_failed;
    rest->answers.why = why;
    sm_init(&rest->sm, states, sizeof states / sizeof states[0], TRANSFER_ENDED);
    list_init(&rest->fetches);
    list_splice(&rest->fetches, &transfer->fetches);
    list_each (struct fetch, fetch, &rest->fetches, by_transfer)
        fetch->transfer = rest;
    rest->transfers->under_way.n++;
    return rest;
}

static void fail_fetches(struct transfer *transfer, const struct rdt_error *err)
{
    uint64_t until_ns = uv_hrtime() + SLICES_TURN_NS;
    unsigned n = 0;

    list_drain (struct fetch, fetch, &transfer->fetches, by_transfer) {
        struct transfer *rest = n++ >= AT_ONCE && uv_hrtime() >= until_ns ? leave_failed(transfer, err) : NULL;
        if (rest) {
            answer_rest(rest);
            return;
        }
        end_with_error(fetch, err);
    }
}

void transfer_fail_err(struct transfer *transfer, const struct rdt_error *err)
{
    if (transfer->kind->recover && transfer->kind->recover(transfer, err))
        return;
    if (list_empty(&transfer->fetches)) {
        /* Other nodes wanted the replica, which will not be complete. */
        if (transfer->sm.state != TRANSFER_ABORT) {
            record_fail(&transfer->record, err);
            transfer_abort(transfer);
        }
        return;
    }
    record_fail(&transfer->record, err);
    fail_fetches(transfer, err);
    transfer_abort(transfer); /* Other nodes that wanted the replica will not get it. */
}

void transfer_fail(struct transfer *transfer, enum rdt_status status, const char *fmt, ...)
{
    struct rdt_error err = {.status = status};
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(err.msg, sizeof err.msg, fmt, args);
    va_end(args);
    transfer_fail_err(transfer, &err);
}

bool transfer_op_ended(struct transfer *transfer)
{
    transfer->move.n_ops--;
    if (transfer->sm.state != TRANSFER_ABORT && transfer->sm.state != TRANSFER_REWIND)
        return false;
    transfer_settle(transfer);
    return true;
}

void transfer_settle(struct transfer *transfer)
{
    if (transfer->move.n_ops == 0)
        transfer->kind->settled(transfer);
}

/* No fetch waits any more: stops the operations. The memory is freed when they have ended. */
void transfer_abort(struct transfer *transfer)
{
    transfer->client = NULL;
    reservation_leave(transfer);
    switch ((enum transfer_state)transfer->sm.state) {
    case TRANSFER_NEW:
    case TRANSFER_PARKED:
    case TRANSFER_LINK:
    case TRANSFER_QUEUED:
        transfer_end(transfer);
        break;
    case TRANSFER_ASKED:
    case TRANSFER_RESERVE:
    case TRANSFER_CONNECT:
    case TRANSFER_TICKET:
    case TRANSFER_MOVE:
    case TRANSFER_REWIND:
        transfer->kind->abort(transfer);
        break;
    case TRANSFER_ABORT:
    case TRANSFER_ENDED:
        break;
    }
}
