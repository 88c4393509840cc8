/* SPDX-License-Identifier: Apache-2.0 */
/* Objects whose tensors lie, or are wanted, in several kinds of memory. The reader asks once for the whole
 * object and reserves memory. Then it pulls all tensors with the same source and target memory by a transfer
 * of its own, a sub-pull. A sub-pull finds its own path, and goes through host memory where no transport
 * moves the kinds. The whole ends with the last sub-pull, or with the first that fails.
 *
 *   whole:      ASKED -> RESERVE -> MOVE (while sub-pulls run) -> ENDED
 *   sub-pull:   NEW -> ASKED -> ... as any pull, into memory of the whole
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/base/text.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/reservation.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_record.h"

struct subpulls {
    struct transfer *parent;
    struct list list; /* struct transfer.pull.subpull.link */
    struct rdt_error failure;
    struct deadline failing;
};

/* ---- what the answer says ---- */

enum rdt_status subpulls_read_places(struct transfer *transfer, const Rdt__Pb__PullMeta *meta, struct rdt_error *err)
{
    struct memory_placement *places;

    free(transfer->pull.placement);
    transfer->pull.placement = NULL;
    if (meta->n_places == 0)
        return RDT_OK;
    if (meta->n_places > PLACING_MAX || (meta->n_place != 0 && meta->n_place != transfer->move.source->count))
        return rdt_error_set(err, RDT_PROTOCOL, "the answer names %zu kinds of memory and %zu places of tensors",
                             meta->n_places, meta->n_place);
    places = calloc(1, sizeof *places + (transfer->move.source->count + 1u) * sizeof places->of[0]);
    if (!places)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the tensors' placement");
    for (size_t i = 0; i < meta->n_places; i++) {
        text_copy(places->memory[i], sizeof places->memory[i], meta->places[i]->memory);
        text_copy(places->device[i], sizeof places->device[i], meta->places[i]->device);
    }
    for (size_t i = 0; i < meta->n_place; i++) {
        if (meta->place[i] >= meta->n_places) {
            free(places);
            return rdt_error_set(err, RDT_PROTOCOL, "a tensor is in memory %u of %zu", meta->place[i], meta->n_places);
        }
        places->of[i] = meta->place[i];
    }
    transfer->pull.placement = places;
    return RDT_OK;
}

static bool target_on_device(const struct target *target)
{
    for (uint32_t i = 0; target && i < target->n; i++)
        if (target->uses[i].region && !region_is_host(target->uses[i].region))
            return true;
    return false;
}

bool subpulls_wanted_here(const struct transfer *transfer)
{
    return !transfer->pull.subpull.parent &&
           (target_on_device(transfer->move.target) ||
            (!transfer->move.target && transfer->wish.memory[0] && strcasecmp(transfer->wish.memory, "host") != 0));
}

bool subpulls_needed(const struct transfer *transfer)
{
    return transfer->kind->subpull && !transfer->pull.subpulls && transfer->move.source &&
           layout_total_bytes(transfer->move.source) > 0 && (transfer->pull.placement || subpulls_wanted_here(transfer));
}

/* ---- ends ---- */

static void on_failing(struct deadline *deadline)
{
    struct subpulls *subpulls = container_of(deadline, struct subpulls, failing);

    transfer_fail_err(subpulls->parent, &subpulls->failure);
}

/* The whole fails in the next loop iteration, because the caller may be walking a list that contains it. */
bool subpull_failed(struct transfer *child, const struct rdt_error *err)
{
    struct subpulls *subpulls = child->pull.subpull.parent->pull.subpulls;
    struct transfers *transfers = child->transfers;

    record_fail(&child->record, err);
    if (subpulls->failure.status == RDT_OK) {
        subpulls->failure = *err;
        if (child->pull.subpull.parent->sm.state == TRANSFER_MOVE)
            (void)deadline_set(transfers->deadlines, &subpulls->failing, 0);
    }
    transfer_abort(child);
    return true;
}

static void join_paths(struct transfer *whole, const struct transfer *child)
{
    char *path = whole->record.path;
    size_t used = strlen(path), bytes = strlen(child->record.path);

    if (bytes == 0)
        return;
    for (const char *at = path; (at = strstr(at, child->record.path)) != NULL; at += bytes)
        if (at[bytes] == '\0' || at[bytes] == ',') /* The match must not be the beginning of another name. */
            return;
    (void)snprintf(path + used, sizeof whole->record.path - used, "%s%s", used ? ", " : "", child->record.path);
}

static void finish(struct transfer *whole)
{
    Rdt__Pb__PullEnd end = RDT__PB__PULL_END__INIT;

    end.transfer = whole->id;
    (void)remote_send(whole->pull.peer, RDT_PEER_PULL_END, &end.base, NULL);
    if (!whole->record.path[0])
        text_copy(whole->record.path, sizeof whole->record.path, "metadata");
    transfer_deliver_received(whole);
    transfer_end(whole);
}

/* One operation of the whole has ended: a sub-pull, or their start. */
static void op_ended(struct transfer *whole)
{
    if (!transfer_op_ended(whole) && whole->move.n_ops == 0 && whole->pull.subpulls->failure.status == RDT_OK)
        finish(whole);
}

void subpull_ended(struct transfer *child)
{
    struct transfer *whole = child->pull.subpull.parent;

    list_remove(&child->pull.subpull.link);
    if (child->pull.subpull.done) {
        whole->record.bytes_done += child->record.bytes;
        join_paths(whole, child);
    } else if (whole->pull.subpulls->failure.status == RDT_OK && whole->sm.state == TRANSFER_MOVE) {
        (void)rdt_error_set(&whole->pull.subpulls->failure, RDT_TRANSPORT, "a sub-pull was cancelled");
        (void)deadline_set(whole->transfers->deadlines, &whole->pull.subpulls->failing, 0);
    }
    op_ended(whole);
}

void subpull_complete(struct transfer *child)
{
    child->pull.subpull.done = true;
}

void subpulls_abort(struct transfer *whole)
{
    whole->move.n_ops++; /* The whole must not end meanwhile. */
    deadline_unset(whole->transfers->deadlines, &whole->pull.subpulls->failing);
    list_drain (struct transfer, child, &whole->pull.subpulls->list, pull.subpull.link) {
        list_remove(&child->pull.subpull.link); /* A sub-pull whose memory is in use ends later. */
        transfer_abort(child);
    }
    whole->move.n_ops--;
}

void subpulls_free(struct transfer *transfer)
{
    if (transfer->pull.subpulls)
        deadline_unset(transfer->transfers->deadlines, &transfer->pull.subpulls->failing);
    free(transfer->pull.subpulls);
    free(transfer->pull.placement);
    free(transfer->pull.subpull.select);
    free(transfer->pull.chunks.to_places);
    free(transfer->pull.chunks.memory);
    stage_destroy(transfer->pull.chunks.stage);
    transfer->pull.subpulls = NULL;
    transfer->pull.placement = NULL;
    transfer->pull.subpull.select = NULL;
    transfer->pull.chunks.to_places = NULL;
    transfer->pull.chunks.memory = NULL;
    transfer->pull.chunks.stage = NULL;
}

/* ---- beginnings ---- */

static struct memory_device *device_of(const struct transfer *whole, uint32_t i)
{
    const struct region *region = whole->move.target->uses[whole->move.target->layout->region[i]].region;

    return region->device;
}

static bool alike(const struct transfer *whole, uint32_t i, uint32_t k)
{
    return device_of(whole, i) == device_of(whole, k) &&
           (!whole->pull.placement || whole->pull.placement->of[i] == whole->pull.placement->of[k]);
}

/* The regions of the whole's target that the selected tensors need, as a target of their own that uses the
 * same memory. */
static enum rdt_status target_of_tensors(const struct transfer *whole, const uint32_t *select, uint32_t n,
                                         struct target **target_p, struct rdt_error *err)
{
    struct target *from = whole->move.target, *target = calloc(1, sizeof *target);
    uint32_t *index = calloc(from->n + 1u, sizeof *index); /* 1 + index in the new target */
    enum rdt_status status = RDT_OK;

    if (!target || !index || !(target->uses = calloc(from->n + 1u, sizeof *target->uses)))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a sub-pull");
    if (status == RDT_OK)
        status = layout_select(from->layout, select, n, &target->layout, err);
    for (uint32_t k = 0; status == RDT_OK && k < n; k++) {
        uint32_t region = target->layout->region[k];
        if (index[region] == 0) {
            target->uses[target->n].region = from->uses[region].region;
            region_pin(from->uses[region].region);
            index[region] = ++target->n;
        }
        target->layout->region[k] = index[region] - 1;
    }
    free(index);
    if (status == RDT_OK) {
        region_uses_add(target->uses, target->n, target->layout, NULL);
        *target_p = target;
        return status;
    }
    if (target)
        free(target->uses);
    free(target);
    return status;
}

static enum rdt_status create(struct transfer *whole, const uint32_t *select, uint32_t n, struct rdt_error *err)
{
    struct transfer *child = transfer_new(whole->transfers, whole->kind->subpull, whole->client, whole->account, &whole->ref);
    enum rdt_status status;

    if (!child)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a sub-pull");
    child->client = NULL; /* The parent's client may change. */
    child->pull.subpull.parent = whole;
    child->pull.subpull.select = calloc(n, sizeof *child->pull.subpull.select);
    child->pull.subpull.n_select = n;
    child->wish.mode = whole->wish.mode;
    child->pull.redirect.refused = true;
    child->record.direction = "in";
    child->record.parent = whole->id;
    text_copy(child->wish.transport, sizeof child->wish.transport, whole->wish.transport);
    text_copy(child->wish.least, sizeof child->wish.least, whole->wish.least);
    text_copy(child->wish.group, sizeof child->wish.group, whole->wish.group);
    text_copy(child->record.peer, sizeof child->record.peer, whole->record.peer);
    remote_use(&child->pull.origin, whole->pull.origin);
    list_init(&child->pull.subpull.link);
    list_append(&whole->pull.subpulls->list, &child->pull.subpull.link);
    whole->move.n_ops++;
    status = child->pull.subpull.select ? target_of_tensors(whole, select, n, &child->move.target, err)
                                        : rdt_error_set(err, RDT_NO_MEMORY, "no memory for a sub-pull");
    if (child->pull.subpull.select)
        memcpy(child->pull.subpull.select, select, n * sizeof *select);
    if (status == RDT_OK && whole->wish.slice && !(child->wish.slice = slice_dup(whole->wish.slice)))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a sub-pull");
    if (status == RDT_OK)
        child->kind->start(child);
    else
        (void)subpull_failed(child, err);
    return status;
}

static void start(struct transfer *whole)
{
    const struct layout *layout = whole->move.source;
    uint32_t *select = calloc(layout->count + 1u, sizeof *select);
    bool *done = calloc(layout->count + 1u, sizeof *done);
    struct rdt_error err = {0};
    enum rdt_status status = RDT_OK;

    transfer_set_state(whole, TRANSFER_MOVE);
    whole->move.n_ops++; /* The whole must not end meanwhile. */
    if (!select || !done)
        status = rdt_error_set(&whole->pull.subpulls->failure, RDT_NO_MEMORY, "no memory for the sub-pulls");
    for (uint32_t i = 0; status == RDT_OK && i < layout->count && whole->pull.subpulls->failure.status == RDT_OK; i++) {
        uint32_t n = 0;
        if (done[i] || layout_bytes(layout, i) == 0)
            continue;
        for (uint32_t k = i; k < layout->count; k++)
            if (!done[k] && layout_bytes(layout, k) > 0 && alike(whole, i, k)) {
                done[k] = true;
                select[n++] = k;
            }
        status = create(whole, select, n, &err);
    }
    free(select);
    free(done);
    if (whole->pull.subpulls->failure.status != RDT_OK)
        (void)deadline_set(whole->transfers->deadlines, &whole->pull.subpulls->failing, 0);
    op_ended(whole);
}

static void on_devices_reserved(void *arg, struct region *region, const struct rdt_error *err);

static void reserve_devices(struct transfer *whole)
{
    struct rdt_error err = {0};
    enum rdt_status status = whole->move.target ? RDT_OK : destination_reserve(whole, on_devices_reserved, &err);

    if (status == RDT_AGAIN)
        whole->move.n_ops++;
    else if (status == RDT_OK)
        start(whole);
    else
        transfer_fail_err(whole, &err);
}

static void on_devices_reserved(void *arg, struct region *region, const struct rdt_error *err)
{
    struct transfer *whole = arg;

    destination_take(whole, region);
    if (transfer_op_ended(whole))
        return;
    if (err)
        transfer_fail_err(whole, err);
    else
        reserve_devices(whole);
}

void subpulls_begin(struct transfer *whole)
{
    struct rdt_error err = {0};
    enum rdt_status status = RDT_OK;
    bool ignored;

    reservation_leave(whole);
    whole->pull.subpulls = calloc(1, sizeof *whole->pull.subpulls);
    if (!whole->pull.subpulls) {
        status = rdt_error_set(&err, RDT_NO_MEMORY, "no memory for the sub-pulls");
    } else {
        whole->pull.subpulls->parent = whole;
        list_init(&whole->pull.subpulls->list);
        whole->pull.subpulls->failing.on_passed = on_failing;
        status = whole->move.target ? RDT_OK : destination_plan(whole, NULL, true, &ignored, &err);
    }
    if (status == RDT_OK)
        reserve_devices(whole);
    else
        transfer_fail_err(whole, &err);
}

static void on_stage(void *arg, struct stage *stage, const struct rdt_error *err)
{
    struct transfer *transfer = arg;

    transfer->pull.chunks.stage = stage;
    transfer->pull.chunks.stage_ready(transfer, NULL, err);
}

enum rdt_status pull_reserve_stage(struct transfer *transfer, region_ready on_ready, struct rdt_error *err)
{
    struct transfers *transfers = transfer->transfers;
    struct target *target = transfer->move.target;
    uint32_t slots = transfer->pull.chunks.plan->n < transfers->options->chunks_in_flight
                         ? transfer->pull.chunks.plan->n
                         : transfers->options->chunks_in_flight;
    uint64_t max_bytes = 0;

    if (!transfer->pull.path.staged)
        return RDT_OK;
    for (uint32_t i = 0; i < transfer->pull.chunks.plan->n; i++)
        max_bytes =
            transfer->pull.chunks.plan->chunks[i].bytes > max_bytes ? transfer->pull.chunks.plan->chunks[i].bytes : max_bytes;
    if (transfer->pull.chunks.stage && transfer->pull.chunks.stage->slot_bytes >= max_bytes)
        return RDT_OK;
    stage_destroy(transfer->pull.chunks.stage); /* an earlier attempt had smaller chunks, and has ended */
    transfer->pull.chunks.stage = NULL;
    if (target_on_device(target) && !transfer->pull.chunks.to_places) {
        transfer->pull.chunks.to_places = calloc(target->n + 1u, sizeof *transfer->pull.chunks.to_places);
        if (!transfer->pull.chunks.to_places)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a sub-pull");
        for (uint32_t i = 0; i < target->n; i++)
            transfer->pull.chunks.to_places[i].region = target->uses[i].region;
    }
    transfer->pull.chunks.stage_ready = on_ready;
    return stage_create(transfers->regions, target->uses[0].region, slots, (max_bytes + 4095) & ~UINT64_C(4095),
                        transfer->account, on_stage, transfer, err);
}

bool pull_has_slot(const struct transfer *transfer)
{
    return !transfer->pull.path.staged || stage_free_slots(transfer->pull.chunks.stage) > 0;
}
