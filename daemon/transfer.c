/* The life of a transfer, whatever moves its bytes: records, results, failure, end. */
#include "daemon/transfer_impl.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/reservation.h"
#include "wire_ref.h"

#define BIT(state) (1u << (state))

static const struct sm_state states[] = {
    [TRANSFER_NEW] = {"new", BIT(TRANSFER_PARKED) | BIT(TRANSFER_LINK) | BIT(TRANSFER_QUEUED) | BIT(TRANSFER_ASKED) |
                                 BIT(TRANSFER_RESERVE) | BIT(TRANSFER_ENDED)},
    [TRANSFER_PARKED] = {"parked", BIT(TRANSFER_NEW) | BIT(TRANSFER_ENDED)},
    [TRANSFER_LINK] = {"link", BIT(TRANSFER_LINK) | BIT(TRANSFER_ASKED) | BIT(TRANSFER_ENDED)},
    [TRANSFER_QUEUED] = {"queued", BIT(TRANSFER_LINK) | BIT(TRANSFER_ASKED) | BIT(TRANSFER_RESERVE) | BIT(TRANSFER_ENDED)},
    [TRANSFER_ASKED] = {"asked", BIT(TRANSFER_LINK) | BIT(TRANSFER_ASKED) | BIT(TRANSFER_RESERVE) | BIT(TRANSFER_MOVE) |
                                     BIT(TRANSFER_ABORT) | BIT(TRANSFER_ENDED)},
    [TRANSFER_RESERVE] = {"reserving", BIT(TRANSFER_LINK) | BIT(TRANSFER_ASKED) | BIT(TRANSFER_TURN) | BIT(TRANSFER_MOVE) |
                                           BIT(TRANSFER_ABORT) | BIT(TRANSFER_ENDED)},
    [TRANSFER_TURN] = {"turn", BIT(TRANSFER_LINK) | BIT(TRANSFER_ASKED) | BIT(TRANSFER_RESERVE) | BIT(TRANSFER_MOVE) |
                                   BIT(TRANSFER_ABORT) | BIT(TRANSFER_ENDED)},
    [TRANSFER_MOVE] = {"moving", BIT(TRANSFER_LINK) | BIT(TRANSFER_ASKED) | BIT(TRANSFER_RESERVE) | BIT(TRANSFER_ABORT) |
                                     BIT(TRANSFER_ENDED)},
    [TRANSFER_ABORT] = {"aborting", BIT(TRANSFER_ENDED)},
    [TRANSFER_ENDED] = {"ended", 0},
};

void transfers_init(struct transfers *transfers)
{
    list_init(&transfers->active);
    list_init(&transfers->outgoing);
    list_init(&transfers->works);
    map_init(&transfers->by_id);
    map_init(&transfers->questions);
    replicas_init(&transfers->replicas, transfers);
    keepers_init(&transfers->keepers, transfers);
    transfers_init_turns(transfers);
    transfers->next_id = 1;
}

void transfers_fini(struct transfers *transfers)
{
    turns_fini(&transfers->turns);
    keepers_fini(&transfers->keepers);
    replicas_fini(&transfers->replicas);
    list_for_each_safe (node, &transfers->works) {
        struct peer_work *work = list_entry(node, struct peer_work, link);
        list_for_each_safe (pt_node, &work->transports)
            free(list_entry(pt_node, struct peer_transport, link));
        transfer_groups_free(work);
        map_fini(&work->outgoing);
        free(work);
    }
    map_fini(&transfers->by_id);
    map_fini(&transfers->questions);
    for (unsigned i = 0; i < TRANSFER_HISTORY; i++)
        free(transfers->history[i].decision);
}

unsigned transfers_active(const struct transfers *transfers)
{
    unsigned n = 0;

    list_for_each (node, &transfers->active)
        n++;
    list_for_each (node, &transfers->outgoing)
        n++;
    return n;
}

void transfers_refuse_parked(struct transfers *transfers)
{
    transfers->refuse_parked = true;
    list_for_each_safe (node, &transfers->active) {
        struct transfer *transfer = list_entry(node, struct transfer, record.link);
        if (transfer->sm.state == TRANSFER_PARKED)
            transfer_fail(transfer, RDT_SHUTTING_DOWN, "object \"%s\" cannot be put any more: the daemon is shutting down",
                          transfer->ref.id);
    }
    outgoing_refuse_parked(transfers);
}

void transfer_set_state(struct transfer *transfer, enum transfer_state state)
{
    sm_move(&transfer->sm, state);
    transfer->record.state = sm_name(&transfer->sm);
}

struct transfer *transfer_new(struct transfers *transfers, struct client *client, const struct rdt_ref *ref)
{
    struct transfer *transfer = calloc(1, sizeof *transfer);

    if (!transfer)
        return NULL;
    transfer->transfers = transfers;
    transfer->id = transfers->next_id++;
    transfer->client = client;
    transfer->account = account_ref(client->account);
    transfer->ref = *ref;
    list_init(&transfer->fetches);
    list_init(&transfer->by_peer);
    list_init(&transfer->by_via);
    list_init(&transfer->by_group);
    list_init(&transfer->wake.link);
    sm_init(&transfer->sm, states, sizeof states / sizeof states[0], TRANSFER_NEW);
    transfer->record.client = client->id;
    record_start(&transfer->record, transfer->id, &client->account->owner, ref, "local", "new");
    if (!map_put_u64(&transfers->by_id, transfer->id, transfer)) {
        account_unref(transfer->account);
        free(transfer);
        return NULL;
    }
    list_append(&transfers->active, &transfer->record.link);
    event(transfers->events, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "began", &transfer->record);
    return transfer;
}

enum rdt_status transfer_reserve(struct transfer *transfer, region_ready on_ready, struct rdt_error *err)
{
    bool own = transfer->n_fetches == 1 && !transfer->replica; /* what several share is nobody's again */

    if (own)
        transfer->received = warm_take(&transfer->client->warm, transfer->stream_bytes, REGION_RECEIVED);
    if (transfer->received)
        return RDT_OK;
    return region_alloc(transfer->transfers->regions, "host", "", transfer->stream_bytes, REGION_RECEIVED, transfer->account,
                        own ? transfer->client->id : 0, &transfer->received, on_ready, transfer, err);
}

static void target_free(struct target *target)
{
    if (!target)
        return;
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

void transfer_end(struct transfer *transfer)
{
    struct transfers *transfers = transfer->transfers;

    assert(list_empty(&transfer->fetches) && transfer->n_ops == 0);
    transfer_set_state(transfer, TRANSFER_ENDED);
    if (transfer->merged) {
        transfer->record.state = "joined";
        event(transfers->events, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "ended", &transfer->record);
        free(transfer->record.decision);
    } else {
        record_finish(transfers, &transfer->record, transfer->record.error[0] ? "failed" : "done", NULL);
    }
    log_debug("xfer %llu ended: %s %s", (unsigned long long)transfer->id, transfer->record.path, transfer->record.error);
    deadline_unset(transfers->deadlines, &transfer->stall);
    deadline_unset(transfers->deadlines, &transfer->turn);
    deadline_unset(transfers->deadlines, &transfer->unwanted);
    transfer_in_leave_question(transfer);
    reservation_leave(transfer);
    object_waiter_remove(&transfer->waiter);
    name_waiter_remove(&transfer->named);
    map_remove_u64(&transfers->by_id, transfer->id);
    list_remove(&transfer->record.link);
    list_remove(&transfer->by_via);
    list_remove(&transfer->wake.link);
    if (transfer->woken)
        object_drop(transfer->woken);
    transfer_in_leave_peer(transfer);
    order_leave(&transfer->record);
    replica_end_filling(transfer);
    if (transfer->object) {
        object_unpin(transfer->object);
        object_drop(transfer->object);
    }
    region_unref(transfer->received);
    transfer_free_staging(transfer);
    target_free(transfer->target);
    if (transfer->slice)
        rdt__pb__slice__free_unpacked(transfer->slice, NULL);
    free(transfer->remote);
    free(transfer->keys);
    free(transfer->key_bytes);
    if (transfer->packed != transfer->source)
        free(transfer->packed);
    free(transfer->source);
    free(transfer->plan);
    free(transfer->ops);
    free(transfer->metadata);
    free(transfer->inline_data);
    account_unref(transfer->account);
    free(transfer);
    if (transfers->on_idle && list_empty(&transfers->active) && list_empty(&transfers->outgoing))
        transfers->on_idle(transfers);
}

/* ---- fetches ---- */

static void fetch_detach(struct fetch *fetch)
{
    struct transfer *transfer = fetch->transfer;

    deadline_unset(transfer->transfers->deadlines, &fetch->deadline);
    map_remove_u64(&fetch->client->fetches, fetch->handle);
    account_give(fetch->client->account, USAGE_TRANSFERS, 1);
    list_remove(&fetch->by_transfer);
    if (!list_empty(&transfer->fetches)) /* whose client is left may differ: they joined */
        transfer->client = list_entry(list_first(&transfer->fetches), struct fetch, by_transfer)->client;
    free(fetch);
}

void fetch_answer_error(struct client *client, uint64_t handle, const struct rdt_error *err)
{
    Rdt__Pb__FetchDone done = RDT__PB__FETCH_DONE__INIT;

    done.handle = handle;
    done.status = err->status;
    done.sys_errno = err->sys_errno;
    done.message = (char *)err->msg;
    client->send(client, RDT_EVENT_FETCH_DONE, FRAME_EVENT, handle, &done.base, NULL, 0);
}

void fetch_fail(struct fetch *fetch, const struct rdt_error *err)
{
    struct transfer *transfer = fetch->transfer;

    fetch_answer_error(fetch->client, fetch->handle, err);
    fetch_detach(fetch);
    if (list_empty(&transfer->fetches)) {
        transfer->client = NULL;
        if (replica_in_demand(transfer->replica))
            return;
        if (!transfer->record.error[0])
            (void)snprintf(transfer->record.error, sizeof transfer->record.error, "%s: %s", rdt_status_name(err->status),
                           err->msg);
        transfer_abort(transfer);
    }
}

bool transfers_client_gone(struct transfers *transfers, struct client *client, uint64_t until_ns)
{
    struct fetch *fetch;

    (void)transfers;
    while ((fetch = map_next(&client->fetches, &client->reaped_fetches))) {
        struct transfer *transfer = fetch->transfer;
        fetch_detach(fetch);
        if (list_empty(&transfer->fetches)) {
            transfer->client = NULL;
            if (!replica_in_demand(transfer->replica)) {
                if (!transfer->record.error[0])
                    (void)snprintf(transfer->record.error, sizeof transfer->record.error, "the client that asked is gone");
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
    if (transfer_copy_comes_back(transfer, err))
        return;
    if (list_empty(&transfer->fetches)) {
        if (transfer->replica) { /* other nodes had wanted the copy; else it ends already */
            (void)snprintf(transfer->record.error, sizeof transfer->record.error, "%s", err->msg);
            transfer_abort(transfer);
        }
        return;
    }
    if (!transfer->record.error[0])
        (void)snprintf(transfer->record.error, sizeof transfer->record.error, "%s: %s", rdt_status_name(err->status), err->msg);
    for (;;) {
        struct list *node = list_first(&transfer->fetches);
        bool last = node->next == &transfer->fetches;
        fetch_fail(list_entry(node, struct fetch, by_transfer), err);
        if (last)
            return; /* the transfer may be freed by now */
    }
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

/* Nobody waits for it any more: stops what runs; memory goes when it has stopped. */
void transfer_abort(struct transfer *transfer)
{
    transfer->client = NULL;
    transfer_in_leave_question(transfer);
    reservation_leave(transfer);
    replica_end_filling(transfer);
    deadline_unset(transfer->transfers->deadlines, &transfer->turn);
    switch ((enum transfer_state)transfer->sm.state) {
    case TRANSFER_NEW:
    case TRANSFER_PARKED:
    case TRANSFER_LINK:
    case TRANSFER_QUEUED:
        transfer_end(transfer);
        break;
    case TRANSFER_ASKED:
    case TRANSFER_RESERVE:
    case TRANSFER_TURN:
    case TRANSFER_MOVE:
        if (transfer->origin)
            transfer_in_abort(transfer);
        else
            transfer_local_abort(transfer);
        break;
    case TRANSFER_ABORT:
    case TRANSFER_ENDED:
        break;
    }
}

/* ---- results ---- */

struct result {
    Rdt__Pb__FetchDone done;
    Rdt__Pb__Ref ref;
    Rdt__Pb__TensorList tensors;
    Rdt__Pb__SharedRegion *regions, **region_list;
    int fds[RDT_MAX_FRAME_FDS];
    unsigned n_fds;
};

static void result_init(struct result *result, const struct transfer *transfer, const struct rdt_ref *ref)
{
    rdt__pb__fetch_done__init(&result->done);
    wire_ref_from(ref, &result->ref);
    result->done.ref = &result->ref;
    result->done.transfer = transfer->id;
    result->done.version = transfer->version;
    result->done.path = (char *)transfer->record.path;
    result->done.elapsed_ns = (int64_t)(uv_hrtime() - transfer->record.began_ns);
    result->done.bytes_moved = transfer->record.bytes_done;
    result->regions = NULL;
    result->region_list = NULL;
    result->n_fds = 0;
}

static void result_drop_fds(struct result *result)
{
    while (result->n_fds > 0)
        (void)close(result->fds[--result->n_fds]);
}

enum share { SHARE_READ, SHARE_WRITE, SHARE_COW };

static enum rdt_status result_add_region(struct result *result, struct region *region, uint64_t client, enum share how,
                                         bool with_fd, struct rdt_error *err)
{
    size_t n = result->done.n_regions;
    Rdt__Pb__SharedRegion *entry = &result->regions[n];
    bool writable_fd = how == SHARE_WRITE || region->origin == REGION_IMPORTED; /* imported memory knows no read-only fd */

    rdt__pb__shared_region__init(entry);
    entry->region = region->id;
    entry->generation = region->generation;
    entry->bytes = region->room;
    entry->writable = how == SHARE_WRITE;
    entry->cow = how == SHARE_COW;
    entry->fd_index = -1;
    if (with_fd && region->kept && region->exported_to == client) {
        region->kept = false; /* it has it mapped since it last had it */
        entry->comes_again = true;
    } else if (with_fd) {
        enum rdt_status status = region_export_to(region, client, writable_fd, &result->fds[result->n_fds], err);
        if (status != RDT_OK)
            return status;
        entry->fd_index = (int32_t)result->n_fds++;
        entry->comes_again = entry->writable && region->origin == REGION_RECEIVED && region_may_come_again(region, client);
    }
    result->region_list[n] = entry;
    result->done.n_regions++;
    result->done.regions = result->region_list;
    return RDT_OK;
}

/* The client has the region mapped by an earlier answer to the same message. */
static bool has_fd(const struct fetch *fetch, const struct region *region)
{
    const struct client_fd *out = &fetch->client->fds_out[region->id % CLIENT_FDS_OUT];

    return fetch->message != 0 && out->message == fetch->message && out->region == region->id &&
           out->generation == region->generation;
}

static void note_fds(const struct fetch *fetch, const struct result *result)
{
    for (size_t i = 0; i < result->done.n_regions; i++) {
        const Rdt__Pb__SharedRegion *entry = &result->regions[i];
        if (fetch->message != 0 && entry->fd_index >= 0 && !entry->writable && !entry->cow)
            fetch->client->fds_out[entry->region % CLIENT_FDS_OUT] =
                (struct client_fd){entry->region, entry->generation, fetch->message};
    }
}

static bool result_make_regions(struct result *result, uint32_t n)
{
    result->regions = calloc(n ? n : 1, sizeof *result->regions);
    result->region_list = calloc(n ? n : 1, sizeof *result->region_list);
    return result->regions && result->region_list;
}

static void result_fini(struct result *result)
{
    result_drop_fds(result);
    free(result->regions);
    free(result->region_list);
}

/* Sends one result to one fetch, with its own hold; detaches the fetch. */
static void result_send(struct result *result, struct fetch *fetch, struct hold *hold)
{
    struct client *client = fetch->client;
    unsigned n_fds = result->n_fds;
    size_t bytes;

    result->done.handle = fetch->handle;
    result->done.hold = hold ? hold->id : 0;
    if (fetch->merged)
        result->done.version = fetch->version;
    bytes = protobuf_c_message_get_packed_size(&result->done.base);
    if (bytes > RDT_MAX_FRAME_BYTES) {
        struct rdt_error err;
        struct transfer *transfer = fetch->transfer;
        (void)rdt_error_set(
            &err, RDT_LIMIT,
            "the answer to the fetch of \"%s\" has %zu bytes, with %zu dimensions of %zu tensors and %zu bytes of "
            "metadata: at most %u fit into one message",
            transfer->ref.id, bytes, result->tensors.n_shape, result->tensors.n_dtype, result->done.metadata.len,
            RDT_MAX_FRAME_BYTES);
        (void)snprintf(transfer->record.error, sizeof transfer->record.error, "LIMIT: %s", err.msg);
        if (hold)
            client_release(hold);
        fetch_answer_error(client, fetch->handle, &err);
        fetch_detach(fetch);
        return; /* its fds go with the result */
    }
    result->n_fds = 0; /* send takes them */
    note_fds(fetch, result);
    client->send(client, RDT_EVENT_FETCH_DONE, FRAME_EVENT, fetch->handle, &result->done.base, result->fds, n_fds);
    fetch_detach(fetch);
}

void transfer_deliver_object(struct transfer *transfer, struct object *object, struct layout *layout, enum path_kind how)
{
    struct rdt_ref ref;
    bool notice = how == PATH_SHARE && !object->snapshot && !object->notice_given && object->producer &&
                  object->producer != transfer->client;

    if (notice) { /* only while the producer can still write what it put */
        notice = false;
        for (uint32_t i = 0; i < object->n_regions; i++)
            notice =
                notice || (object->uses[i].region->client == object->producer_id && object->uses[i].region->writable_outside);
    }
    if (notice) {
        object->notice_given = true;
        log_info("obj %016llx is shared with client %llu while its producer, client %llu, may still write it",
                 (unsigned long long)object->generation, (unsigned long long)transfer->client->id,
                 (unsigned long long)object->producer_id);
    }
    if (transfer->from_copy || transfer->replica)
        ref = transfer->ref;
    else
        object_ref(object, &ref);
    object_hold(object); /* while we are at it */
    while (!list_empty(&transfer->fetches)) {
        struct fetch *fetch = list_entry(list_first(&transfer->fetches), struct fetch, by_transfer);
        struct rdt_error err = {0};
        enum rdt_status status = RDT_OK;
        struct hold *hold = NULL;
        struct result result;

        result_init(&result, transfer, &ref);
        layout_to_wire(layout, true, &result.tensors);
        result.done.tensors = &result.tensors;
        result.done.metadata = (ProtobufCBinaryData){object->metadata_bytes, (uint8_t *)object_metadata(object)};
        result.done.mutable_shared = notice;
        notice = false;
        if (!result_make_regions(&result, object->n_regions) || !(hold = client_hold_object(fetch->client, object)))
            status = rdt_error_set(&err, RDT_NO_MEMORY, "no memory to share object \"%s\"", ref.id);
        for (uint32_t i = 0; i < object->n_regions && status == RDT_OK; i++) {
            struct region *region = object->uses[i].region;
            enum share share = how == PATH_SAME ? SHARE_WRITE : how == PATH_COW || fetch->cow ? SHARE_COW : SHARE_READ;

            status = result_add_region(&result, region, fetch->client->id, share, share != SHARE_READ || !has_fd(fetch, region),
                                       &err);
        }
        if (status == RDT_OK) {
            result_send(&result, fetch, hold);
        } else {
            bool last = list_first(&transfer->fetches)->next == &transfer->fetches;
            if (hold)
                client_release(hold);
            fetch_answer_error(fetch->client, fetch->handle, &err);
            fetch_detach(fetch);
            if (last)
                (void)snprintf(transfer->record.error, sizeof transfer->record.error, "%s", err.msg);
        }
        result_fini(&result);
    }
    object_drop(object);
}

static enum rdt_status fill_received(struct result *result, struct transfer *transfer, struct client *client,
                                     struct hold **hold_p, struct rdt_error *err)
{
    if (transfer->target) {
        if (!result_make_regions(result, transfer->target->n))
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the answer");
        result->done.tensors = NULL; /* they are where their reader said */
        for (uint32_t i = 0; i < transfer->target->n; i++)
            (void)result_add_region(result, transfer->target->uses[i].region, client->id, SHARE_WRITE, false, err);
        return RDT_OK;
    }
    layout_to_wire(transfer->packed, true, &result->tensors);
    if (transfer->is_inline) {
        result->done.inline_data = (ProtobufCBinaryData){transfer->stream_bytes, transfer->inline_data};
        return RDT_OK;
    }
    if (!transfer->received) /* nothing but empty tensors */
        return RDT_OK;
    if (transfer->n_fetches > 1) /* several read the same: none may write it, the same uid's others included */
        (void)region_seal(transfer->received, NULL);
    if (!result_make_regions(result, 1) || !(*hold_p = client_hold_region(client, transfer->received)))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the answer");
    return result_add_region(result, transfer->received, client->id,
                             transfer->n_fetches == 1                                ? SHARE_WRITE
                             : transfer->mode == RDT__PB__FETCH_MODE__FETCH_MODE_COW ? SHARE_COW
                                                                                     : SHARE_READ,
                             true, err);
}

void transfer_deliver_received(struct transfer *transfer)
{
    while (!list_empty(&transfer->fetches)) {
        struct fetch *fetch = list_entry(list_first(&transfer->fetches), struct fetch, by_transfer);
        struct rdt_error err = {0};
        struct hold *hold = NULL;
        struct result result;

        result_init(&result, transfer, &transfer->ref);
        result.done.tensors = &result.tensors;
        result.done.metadata = (ProtobufCBinaryData){transfer->metadata_bytes, transfer->metadata};
        if (fill_received(&result, transfer, fetch->client, &hold, &err) == RDT_OK) {
            result_send(&result, fetch, hold);
        } else {
            if (hold)
                client_release(hold);
            fetch_answer_error(fetch->client, fetch->handle, &err);
            fetch_detach(fetch);
            (void)snprintf(transfer->record.error, sizeof transfer->record.error, "%s", err.msg);
        }
        result_fini(&result);
    }
}

void transfer_deliver_meta(struct transfer *transfer)
{
    while (!list_empty(&transfer->fetches)) {
        struct fetch *fetch = list_entry(list_first(&transfer->fetches), struct fetch, by_transfer);
        struct result result;

        result_init(&result, transfer, &transfer->ref);
        if (transfer->source) {
            layout_to_wire(transfer->source, false, &result.tensors);
            result.done.tensors = &result.tensors;
        }
        result.done.metadata = (ProtobufCBinaryData){transfer->metadata_bytes, transfer->metadata};
        result_send(&result, fetch, NULL);
    }
}

/* ---- records on the wire ---- */

void transfer_record_to_wire(const struct transfer_record *record, Rdt__Pb__TransferInfo *info,
                             char ref_text[RDT_REF_TEXT_BYTES], char waits[RECORD_WAITS_BYTES])
{
    rdt__pb__transfer_info__init(info);
    rdt_ref_to_text(&record->ref, ref_text);
    record_waits_for(record, waits);
    info->waits = waits;
    info->transfer = record->id;
    info->ref = ref_text;
    info->direction = (char *)record->direction;
    info->peer = (char *)record->peer;
    info->state = (char *)record->state;
    info->path = (char *)record->path;
    info->lanes = (char *)record->lanes;
    info->bytes = record->bytes;
    info->bytes_done = record->bytes_done;
    info->age_ns = (int64_t)(uv_hrtime() - record->since_ns);
    info->elapsed_ns = (int64_t)record->elapsed_ns;
    info->error = (char *)record->error;
    info->client = record->client;
}
