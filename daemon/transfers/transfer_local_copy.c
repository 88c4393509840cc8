/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of objects on this node into other memory of this node: memory for the copy, the threads of the pool
 * and the copies of devices, and their end. transfer_local.c decides what is copied. */
#include <stdlib.h>

#include "daemon/memory/copy.h"
#include "daemon/memory/device_copy.h"
#include "daemon/memory/region_fill.h"
#include "daemon/transfers/reservation.h"
#include "daemon/transfers/staged_copy.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_record.h"

#define STEPS_PER_TURN 16 /* after which a thread returns to the loop, which notes the progress */

struct copy_job { /* one work item of the pool: it does the copy's next step as long as there is one */
    struct work work;
    struct local_copy *local;
    unsigned steps;
};

struct local_copy {
    struct transfer *transfer;
    struct copy copy;
    struct rdt_error failure; /* status RDT_OK: no failure */
    uint64_t on_pool_bytes;   /* counted in transfers->load.copying_bytes; 0: none */
    unsigned n_jobs;          /* work items that have not ended */
    struct copy_job *jobs;
    struct device_copy *device; /* copies from or to devices; NULL: they have ended, or there are none */
    struct staged_copy *staged; /* the same, of imported memory */
    struct device_place *from, *to;
    uint64_t device_bytes; /* bytes that copies from or to devices have copied, which have ended */
};

static void copy_free(struct local_copy *local)
{
    local->transfer->local.copy = NULL;
    local->transfer->transfers->load.copying_bytes -= local->on_pool_bytes;
    copy_fini(&local->copy);
    free(local->from);
    free(local->to);
    free(local->jobs);
    free(local);
}

static void run_job(struct work *work)
{
    struct copy_job *job = (struct copy_job *)work;
    bool more = copy_turn(&job->local->copy);

    if (!job->local->copy.owner)
        work->again = more && ++job->steps % STEPS_PER_TURN != 0 && !copy_must_be_checked(&job->local->copy);
}

/* Checks that no memory that the copy read or wrote was missing. */
static enum rdt_status check_regions(const struct transfer *transfer, struct rdt_error *err)
{
    const struct object *object = transfer->local.object;
    enum rdt_status status = target_check(transfer->move.target, err);

    for (uint32_t i = 0; status == RDT_OK && i < object->memory.n_regions; i++)
        status = region_check(object->memory.uses[i].region, err);
    return status;
}

static void half_ended(struct local_copy *local);

static uint64_t copied(const struct local_copy *local)
{
    return atomic_load(&local->copy.copied) + local->device_bytes + (local->device ? device_copy_bytes(local->device) : 0) +
           (local->staged ? staged_copy_bytes(local->staged) : 0);
}

static struct region *target_region(void *arg, uint32_t index)
{
    const struct transfer *transfer = arg;

    return transfer->move.target ? transfer->move.target->uses[index].region : transfer->move.received;
}

static void stop_devices(struct local_copy *local)
{
    if (local->device)
        device_copy_stop(local->device);
    if (local->staged)
        staged_copy_stop(local->staged);
}

static void job_done(struct work *work)
{
    struct local_copy *local = ((struct copy_job *)work)->local;
    struct transfer *transfer = local->transfer;

    transfer->record.bytes_done = copied(local);
    if (transfer->sm.state == TRANSFER_MOVE && local->failure.status == RDT_OK)
        (void)check_regions(transfer, &local->failure);
    if (local->failure.status == RDT_OK)
        (void)copy_check(&local->copy, target_region, transfer, &local->failure);
    if (transfer->sm.state == TRANSFER_MOVE && local->failure.status == RDT_OK && !copy_ended(&local->copy)) {
        copy_submit(&local->copy, transfer->transfers->regions, work);
        return;
    }
    if (local->failure.status != RDT_OK)
        stop_devices(local);
    transfer->move.n_ops--;
    if (--local->n_jobs > 0)
        atomic_store(&local->copy.stop, true); /* No step is left, or nobody wants the copy any more. */
    else
        half_ended(local);
}

/* The pool's or the devices' half of the copy has ended. The copy ends when both have. */
static void half_ended(struct local_copy *local)
{
    struct transfer *transfer = local->transfer;
    struct rdt_error failure = local->failure;

    if (local->n_jobs > 0 || local->device || local->staged)
        return;
    transfer->record.bytes_done = copied(local);
    copy_free(local);
    if (transfer->sm.state == TRANSFER_MOVE && failure.status != RDT_OK) {
        transfer_fail_err(transfer, &failure); /* This ends the transfer. */
        return;
    }
    if (transfer->sm.state == TRANSFER_MOVE) {
        transfer->transfers->counts->bytes_local += transfer->record.bytes_done;
        transfer_deliver_received(transfer);
    }
    transfer_end(transfer);
}

/* Returns the region of place i: of the object, then of the targets. NULL: there is none. */
static struct region *place_region(const struct local_copy *local, uint32_t i)
{
    const struct transfer *transfer = local->transfer;
    const struct object *object = transfer->local.object;
    uint32_t n_from = object->memory.chunk ? 0 : object->memory.n_regions;

    if (i < n_from)
        return object->memory.uses[i].region;
    if (transfer->move.target)
        return i - n_from < transfer->move.target->n ? transfer->move.target->uses[i - n_from].region : NULL;
    return i == n_from ? transfer->move.received : NULL;
}

static struct memory_kind *kind_of_devices(const struct local_copy *local)
{
    struct region *region;

    for (uint32_t i = 0; (region = place_region(local, i)); i++)
        if (!region_is_host(region))
            return region->kind;
    return NULL;
}

/* Whether all host memory of the copy is pinned for the devices. */
static bool is_pinned(const struct local_copy *local)
{
    const struct memory_kind *kind = kind_of_devices(local);
    const struct region *region;

    for (uint32_t i = 0; (region = place_region(local, i)); i++)
        if (region_is_host(region) && !region_is_pinned_for(region, kind))
            return false;
    return kind && !local->transfer->local.object->memory.chunk;
}

static void note_device_copy(const struct local_copy *local)
{
    struct memory_kind *kind = kind_of_devices(local);
    struct region *region;

    for (uint32_t i = 0; kind && (region = place_region(local, i)); i++)
        region_note_device_copy(region, kind);
}

/* Between two GPUs the bytes may have gone through host memory, many times slower, so the record says which route they took. */
static void note_path(const struct local_copy *local)
{
    const struct layout *source = local->transfer->move.source, *target = local->copy.target;

    for (uint32_t i = 0; i < source->count; i++) {
        const struct region *from = local->from[source->region[i]].region, *to = local->to[target->region[i]].region;
        if (layout_bytes(source, i) == 0 || !from || !to || !from->device || !to->device || from->device == to->device)
            continue;
        record_devices(&local->transfer->record, from->device, to->device);
        return;
    }
}

static void note_device_failure(struct local_copy *local, const struct rdt_error *err)
{
    if (!err || local->failure.status != RDT_OK || local->transfer->sm.state != TRANSFER_MOVE)
        return;
    local->failure = *err;
    atomic_store(&local->copy.stop, true);
    stop_devices(local);
}

static void on_staged_copied(void *arg, const struct rdt_error *err)
{
    struct local_copy *local = arg;

    local->device_bytes += staged_copy_bytes(local->staged);
    local->staged = NULL;
    note_device_failure(local, err);
    local->transfer->move.n_ops--;
    half_ended(local);
}

static void on_device_copied(void *arg, const struct rdt_error *err)
{
    struct local_copy *local = arg;

    if (!err) {
        note_device_copy(local);
        note_path(local);
    }
    local->device_bytes += device_copy_bytes(local->device);
    local->device = NULL;
    note_device_failure(local, err);
    local->transfer->move.n_ops--;
    half_ended(local);
}

static struct memory_place *source_memory(void *arg, uint32_t index)
{
    return &((struct local_copy *)arg)->copy.from[index].at;
}

static struct memory_place *target_memory(void *arg, uint32_t index)
{
    return &((struct local_copy *)arg)->copy.to[index].at;
}

/* Imported memory, which a device cannot reach, is copied by way of other memory. */
static enum rdt_status start_staged_copy(struct local_copy *local, struct rdt_error *err)
{
    struct transfer *transfer = local->transfer;
    const struct staged_end from = {transfer->move.source, local->from, source_memory},
                            to = {local->copy.target, local->to, target_memory};
    enum rdt_status status =
        staged_copy_start(transfer->transfers, &from, &to, transfer->account, on_staged_copied, local, &local->staged, err);

    if (local->staged)
        transfer->move.n_ops++;
    return status;
}

/* Starts the copies from and to devices. */
static enum rdt_status start_device_copy(struct local_copy *local, struct rdt_error *err)
{
    struct transfer *transfer = local->transfer;
    struct object *object = transfer->local.object;
    struct target *target = transfer->move.target;
    uint32_t n_from = object_n_places(object), n_to = target ? target->n : 1;
    enum rdt_status status;

    local->from = calloc(n_from + 1u, sizeof *local->from);
    local->to = calloc(n_to + 1u, sizeof *local->to);
    if (!local->from || !local->to)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the copy");
    for (uint32_t i = 0; i < n_from; i++)
        local->from[i] = object->memory.chunk ? (struct device_place){.base = local->copy.from[i].at.base}
                                              : (struct device_place){.region = object->memory.uses[i].region};
    for (uint32_t i = 0; i < n_to; i++)
        local->to[i].region = target ? target->uses[i].region : transfer->move.received;
    status = device_copy_start(transfer->move.source, local->from, local->copy.target, local->to, NULL, is_pinned(local),
                               on_device_copied, local, &local->device, err);
    if (status == RDT_OK && local->device)
        transfer->move.n_ops++;
    return status;
}

static enum rdt_status fill_places(struct transfer *transfer, struct copy *copy, struct rdt_error *err)
{
    struct object *object = transfer->local.object;
    struct target *target = transfer->move.target;
    enum rdt_status status = RDT_OK;

    if (object->memory.chunk)
        copy->from[0] = (struct copy_place){.at.base = object_base(object, 0, err), .kind = object_region(object, 0)->kind};
    for (uint32_t i = 0; i < object->memory.n_regions && status == RDT_OK; i++)
        if (region_is_host(object->memory.uses[i].region)) /* Devices copy the rest. */
            status = copy_from(copy, i, object->memory.uses[i].region, err);
    for (uint32_t i = 0; target && i < target->n && status == RDT_OK; i++)
        if (region_is_host(target->uses[i].region))
            status = copy_to(copy, i, target->uses[i].region, err);
    if (!target && transfer->move.received && status == RDT_OK)
        status = copy_to(copy, 0, transfer->move.received, err);
    return status;
}

static struct local_copy *copy_create(struct transfer *transfer)
{
    struct target *target = transfer->move.target;
    struct local_copy *local = calloc(1, sizeof *local);

    if (!local || !copy_init(&local->copy, transfer->move.source, object_n_places(transfer->local.object),
                             target ? target->layout : transfer->move.packed, target ? target->n : 1)) {
        free(local);
        return NULL;
    }
    transfer->local.copy = local;
    local->transfer = transfer;
    local->n_jobs = copy_threads(&local->copy, transfer->transfers->options->worker_threads);
    local->jobs = calloc(local->n_jobs, sizeof *local->jobs);
    if (!local->jobs) {
        copy_free(local);
        return NULL;
    }
    for (unsigned i = 0; i < local->n_jobs; i++)
        local->jobs[i] =
            (struct copy_job){.work = {.run = run_job, .done = job_done, .lane = transfer->record.client}, .local = local};
    return local;
}

static void start_copy(struct transfer *transfer)
{
    struct local_copy *local = copy_create(transfer);
    struct rdt_error err = {0};

    if (!local) {
        transfer_fail(transfer, RDT_NO_MEMORY, "no memory for the copy");
        return;
    }
    if (fill_places(transfer, &local->copy, &err) != RDT_OK || start_device_copy(local, &err) != RDT_OK) {
        copy_free(local);
        transfer_fail_err(transfer, &err);
        return;
    }
    transfer_set_state(transfer, TRANSFER_MOVE);
    transfer->move.n_ops += local->n_jobs;
    if (start_staged_copy(local, &err) != RDT_OK)
        note_device_failure(local, &err);
    if (transfer->move.stream_bytes <= COPY_SMALL_BYTES && !local->copy.owner) {
        run_job(&local->jobs[0].work);
        job_done(&local->jobs[0].work);
        return;
    }
    local->on_pool_bytes = transfer->move.stream_bytes;
    transfer->transfers->load.copying_bytes += local->on_pool_bytes;
    /* No work item ends before the next loop iteration. */
    for (unsigned i = 0, n = local->n_jobs; i < n; i++)
        copy_submit(&local->copy, transfer->transfers->regions, &local->jobs[i].work);
}

/* A step of preparing memory was started. AGAIN: step_ended follows later. OK: the step has ended; does the next one. */
static void step_started(struct transfer *transfer, enum rdt_status status, const struct rdt_error *err,
                         void (*next)(struct transfer *))
{
    if (status == RDT_AGAIN)
        transfer->move.n_ops++;
    else if (status == RDT_OK)
        next(transfer);
    else
        transfer_fail_err(transfer, err);
}

static void step_ended(struct transfer *transfer, const struct rdt_error *err, void (*next)(struct transfer *))
{
    if (transfer_op_ended(transfer))
        return;
    if (err)
        transfer_fail_err(transfer, err);
    else
        next(transfer);
}

static void fill(struct transfer *transfer);

static void on_filled(void *arg, struct region *region, const struct rdt_error *err)
{
    step_ended(arg, err, fill);
}

/* The memory is allocated. Charges for pages that imported targets lack, then copies. */
static void fill(struct transfer *transfer)
{
    struct target *target = transfer->move.target;
    struct rdt_error err = {0};
    enum rdt_status status = RDT_OK;

    if (target)
        status = region_fill(target->uses, target->n, target->layout, &transfer->move.filled_to, on_filled, transfer, &err);
    step_started(transfer, status, &err, start_copy);
}

static void reserve_devices(struct transfer *transfer);

static void on_devices_reserved(void *arg, struct region *region, const struct rdt_error *err)
{
    destination_take(arg, region);
    step_ended(arg, err, reserve_devices);
}

static void reserve_devices(struct transfer *transfer)
{
    struct rdt_error err = {0};
    enum rdt_status status = destination_reserve(transfer, on_devices_reserved, &err);

    step_started(transfer, status, &err, fill);
}

static void on_reserved(void *arg, struct region *region, const struct rdt_error *err)
{
    ((struct transfer *)arg)->move.received = region;
    step_ended(arg, err, fill);
}

static void reserve(struct transfer *transfer)
{
    struct rdt_error err = {0};
    enum rdt_status status = transfer_reserve(transfer, false, on_reserved, &err);

    step_started(transfer, status, &err, fill);
}

static void on_room(struct transfer *transfer, const struct rdt_error *err)
{
    if (err)
        transfer_fail_err(transfer, err);
    else
        reserve(transfer);
}

void transfer_local_copy(struct transfer *transfer, struct object *object)
{
    struct rdt_error err = {0};
    enum rdt_status status;

    if (transfer->move.target || transfer->move.destination) /* The target says where each tensor goes. */
        status = layout_packed_bytes(transfer->move.source, &transfer->move.stream_bytes, &err);
    else
        status = layout_packed(transfer->move.source, &transfer->move.packed, &transfer->move.stream_bytes, &err);
    if (status == RDT_OK && transfer->move.target)
        status = layout_same_shape(transfer->move.source, transfer->move.target->layout, &err);
    if (status != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    transfer->record.bytes = transfer->move.stream_bytes;
    transfer_use_metadata(transfer, object);
    object_hold(object);
    object_pin(object);
    transfer->local.object = object;
    transfer_set_state(transfer, TRANSFER_RESERVE);
    if (transfer->move.destination) {
        reservation_leave(transfer);
        reserve_devices(transfer);
        return;
    }
    if (transfer->move.target || transfer->move.stream_bytes == 0) {
        fill(transfer);
        return;
    }
    if (!reservation_wait(transfer, on_room))
        reserve(transfer);
}

void transfer_local_abort(struct transfer *transfer)
{
    if (transfer->local.copy)
        atomic_store(&transfer->local.copy->copy.stop, true);
    if (transfer->local.copy)
        stop_devices(transfer->local.copy);
    transfer_set_state(transfer, TRANSFER_ABORT);
    transfer_settle(transfer);
}
