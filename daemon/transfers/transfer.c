/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a transfer, whatever moves its bytes: creation, memory, failure, end. transfer_result.c answers
 * its fetches. */

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/transfers/reservation.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_record.h"

#define BIT(state) (1u << (state))

/* Every allowed move. transfer.h draws them. */
static const struct sm_state states[] = {
    [TRANSFER_NEW] = {"new", BIT(TRANSFER_PARKED) | BIT(TRANSFER_LINK) | BIT(TRANSFER_QUEUED) | BIT(TRANSFER_ASKED) |
                                 BIT(TRANSFER_RESERVE) | BIT(TRANSFER_ENDED)},
    [TRANSFER_PARKED] = {"parked", BIT(TRANSFER_NEW) | BIT(TRANSFER_ENDED)},
    [TRANSFER_LINK] = {"link", BIT(TRANSFER_LINK) | BIT(TRANSFER_ASKED) | BIT(TRANSFER_REWIND) | BIT(TRANSFER_ENDED)},
    [TRANSFER_QUEUED] = {"queued", BIT(TRANSFER_LINK) | BIT(TRANSFER_ASKED) | BIT(TRANSFER_RESERVE) | BIT(TRANSFER_ENDED)},
    [TRANSFER_ASKED] = {"asked", BIT(TRANSFER_LINK) | BIT(TRANSFER_ASKED) | BIT(TRANSFER_RESERVE) | BIT(TRANSFER_EARLY) |
                                     BIT(TRANSFER_REWIND) | BIT(TRANSFER_ABORT) | BIT(TRANSFER_ENDED)},
    [TRANSFER_EARLY] = {"early", BIT(TRANSFER_MOVE) | BIT(TRANSFER_REWIND) | BIT(TRANSFER_ABORT)},
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
    return map_get_u64(&transfers->by_id, id);
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
    transfer->id = transfers->next_id++;
    transfer->client = client;
    transfer->account = account_ref(account);
    transfer->ref = *ref;
    list_init(&transfer->fetches);
    list_init(&transfer->pull.by_peer);
    list_init(&transfer->pull.by_connection);
    list_init(&transfer->reserve.link);
    list_init(&transfer->local.wake.link);
    sm_init(&transfer->sm, states, sizeof states / sizeof states[0], TRANSFER_NEW);
    transfer->record.client = client ? client->id : 0;
    record_start(&transfer->record, transfer->id, &account->owner, ref, "local", "new");
    if (!map_put_u64(&transfers->by_id, transfer->id, transfer)) {
        account_unref(transfer->account);
        free(transfer);
        return NULL;
    }
    list_append(&transfers->active, &transfer->record.link);
    record_stage_at(transfers, &transfer->record, transfer->record.since_ns);
    event(transfers->events, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "began", &transfer->record);
    return transfer;
}

enum rdt_status transfer_reserve(struct transfer *transfer, bool shared, region_ready on_ready, struct rdt_error *err)
{
    bool own = transfer->n_fetches == 1 && !shared;

    if (own)
        transfer->received = region_cache_take(&transfer->client->cache, transfer->stream_bytes, REGION_RECEIVED);
    if (transfer->received)
        return RDT_OK;
    return region_alloc(transfer->transfers->regions, "host", "", transfer->stream_bytes,
                        shared ? REGION_COPY : REGION_RECEIVED, transfer->account, own ? transfer->client->id : 0,
                        &transfer->received, on_ready, transfer, err);
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
    if (transfer->packed != transfer->source)
        free(transfer->packed);
    free(transfer->source);
    transfer->source = transfer->packed = NULL;
}

void transfer_end(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;

    assert(list_empty(&transfer->fetches) && transfer->n_ops == 0);
    transfer_set_state(transfer, TRANSFER_ENDED);
    finish_record(transfer);
    map_remove_u64(&transfers->by_id, transfer->id);
    list_remove(&transfer->record.link);
    reservation_leave(transfer);
    transfer->kind->release(transfer);
    region_unref(transfer->received);
    target_free(transfer->target, transfer->account);
    destination_free(transfer);
    if (transfer->wish.slice)
        rdt__pb__slice__free_unpacked(transfer->wish.slice, NULL);
    transfer_free_layouts(transfer);
    free(transfer->inline_data);
    account_unref(transfer->account);
    free(transfer);
    if (transfers->on_idle && list_empty(&transfers->active) && list_empty(&transfers->serves))
        transfers->on_idle(transfers);
}

/* ---- fetches ---- */

void fetch_detach(struct fetch *fetch)
{
    struct transfer *transfer = fetch->transfer;

    deadline_unset(transfer->transfers->deadlines, &fetch->deadline);
    map_remove_u64(&fetch->client->transfers.fetches, fetch->handle);
    account_give(fetch->client->account, USAGE_TRANSFERS, 1);
    list_remove(&fetch->by_transfer);
    /* The first fetch of the list may be of another client, because fetches join. */
    if (!list_empty(&transfer->fetches))
        transfer->client = container_of(list_first(&transfer->fetches), struct fetch, by_transfer)->client;
    free(fetch);
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
    client->send(client, RDT_EVENT_FETCH_DONE, FRAME_EVENT, handle, &done.base, NULL, 0);
}

/* Other nodes may want the replica that the transfer fills, even if no fetch waits for it. */
static bool still_wanted(const struct transfer *transfer)
{
    return transfer->kind->wanted && transfer->kind->wanted(transfer);
}

void fetch_fail(struct fetch *fetch, const struct rdt_error *err)
{
    struct transfer *transfer = fetch->transfer;

    fetch_answer_error(fetch->client, fetch->handle, err);
    fetch_detach(fetch);
    if (list_empty(&transfer->fetches)) {
        transfer->client = NULL;
        if (still_wanted(transfer))
            return;
        record_fail(&transfer->record, err);
        transfer_abort(transfer);
    }
}

bool transfers_client_gone(struct transfers *transfers, struct client *client, uint64_t until_ns)
{
    struct rdt_error why;
    struct fetch *fetch;

    (void)rdt_error_set(&why, RDT_CANCELLED, "the client has ended");
    while ((fetch = map_next(&client->transfers.fetches, &client->transfers.reaped_fetches))) {
        struct transfer *transfer = fetch->transfer;
        fetch_detach(fetch);
        if (list_empty(&transfer->fetches)) {
            transfer->client = NULL;
            if (!still_wanted(transfer)) {
                record_fail(&transfer->record, &why);
                transfer_abort(transfer);
            }
        }
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

void transfer_fail_err(struct transfer *transfer, const struct rdt_error *err)
{
    struct transfers *transfers = transfer->transfers;
    uint64_t id = transfer->id;
    bool last = false;

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
    while (!last) {
        struct list *node = list_first(&transfer->fetches);
        last = node->next == &transfer->fetches;
        fetch_fail(container_of(node, struct fetch, by_transfer), err);
    }
    /* Other nodes wanted the replica and will not get it. */
    if (map_get_u64(&transfers->by_id, id) == transfer)
        transfer_abort(transfer);
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
    transfer->n_ops--;
    if (transfer->sm.state != TRANSFER_ABORT && transfer->sm.state != TRANSFER_REWIND)
        return false;
    transfer_settle(transfer);
    return true;
}

void transfer_settle(struct transfer *transfer)
{
    if (transfer->n_ops == 0)
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
    case TRANSFER_EARLY:
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
