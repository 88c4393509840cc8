/* SPDX-License-Identifier: Apache-2.0 */
/* Pulls of snapshots that say of which other snapshot they are a change (proto/delta.h). If this node has a replica of that
 * one, it fetches the deltas, which are an object of their own, and makes the bytes of both in the memory that the pull has
 * reserved:
 *
 *   memory is reserved --> the deltas are fetched --> a worker copies the base and applies them --> the checksum is compared
 *                                  `-- any failure --> the bytes are moved as without a delta <------------ wrong --'
 *
 * Nobody gets bytes that do not have the publisher's checksum, so neither a wrong delta nor a wrong base makes a wrong tensor.
 * The deltas are always moved: nothing that waits for deltas is waited for as one, so a publisher whose snapshots are deltas of
 * themselves or of each other makes no node wait for itself.
 * Both must be replicas, because the daemon alone writes their memory. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/transfer_impl.h"
#include "proto/delta.h"
#include "wire_ref.h"

#define STEP_BYTES (UINT64_C(8) << 20)   /* copied in one turn of the pool */
#define STEP_CHANGES (UINT64_C(1) << 20) /* elements that are changed in one */

struct making {
    struct work work;          /* first */
    struct transfer *transfer; /* NULL: it is not wanted any more */
    struct fetch *fetch;       /* of the deltas; NULL: it has ended */
    struct deadline patience;  /* with the fetch: it must have moved something by then */
    uint64_t fetched;          /* bytes that it had moved when `patience` was set */
    struct rdt_ref changes;
    struct object *base, *deltas; /* each held */
    const uint8_t *from, *changed;
    uint8_t *to;
    uint64_t changed_bytes, applied; /* applied: of changed_bytes */
    uint32_t tensor;                 /* the one that is being made, and how many of its bytes were copied: */
    uint64_t copied;
    bool open; /* its delta has been begun */
    struct delta delta;
    struct rdt_error why; /* status OK: nothing has failed */
    _Atomic bool stop;
};

static void making_free(struct making *making)
{
    if (making->base)
        object_drop(making->base);
    if (making->deltas)
        object_drop(making->deltas);
    free(making);
}

/* ---- on the worker pool ---- */

static enum rdt_status apply_some(struct making *making, const struct layout *to, uint64_t bytes)
{
    uint64_t elem_bytes = layout_item_bytes(to->dtype[making->tensor]);
    enum rdt_status status = RDT_OK;

    if (elem_bytes > 8) /* a complex number is two */
        elem_bytes /= 2;
    if (!making->open)
        status = delta_open(making->changed + making->applied, making->changed_bytes - making->applied, bytes / elem_bytes,
                            elem_bytes, &making->delta, &making->why);
    if (status == RDT_OK) {
        making->open = true;
        status = delta_apply_some(&making->delta, making->to + to->offset[making->tensor], STEP_CHANGES);
        if (status == RDT_INVALID)
            (void)rdt_error_set(&making->why, RDT_INVALID, "the delta names elements that the tensor does not have");
    }
    if (status == RDT_INVALID)
        rdt_error_prefix(&making->why, "tensor %u", making->tensor);
    if (status != RDT_OK)
        return status;
    making->applied += making->delta.bytes;
    making->open = false;
    making->copied = 0;
    making->tensor++;
    return RDT_OK;
}

static void run(struct work *work)
{
    struct making *making = (struct making *)work;
    const struct layout *to = making->why.status == RDT_OK ? making->transfer->move.packed : NULL;
    uint64_t left = STEP_BYTES;
    enum rdt_status status = RDT_OK;

    while (to && status == RDT_OK && left > 0 && !making->stop && making->tensor < to->count) {
        uint64_t bytes = layout_bytes(to, making->tensor), n = bytes - making->copied;

        n = n < left ? n : left;
        if (n > 0)
            memcpy(making->to + to->offset[making->tensor] + making->copied,
                   making->from + making->base->memory.layout->offset[making->tensor] + making->copied, n);
        making->copied += n;
        left -= n;
        if (bytes == 0)
            making->tensor++;
        else if (making->copied == bytes)
            status = apply_some(making, to, bytes);
    }
    work->again = to && !making->stop && making->why.status == RDT_OK && making->tensor < to->count;
    if (to && !work->again && making->why.status == RDT_OK && making->applied != making->changed_bytes)
        (void)rdt_error_set(&making->why, RDT_INVALID, "%llu bytes are behind the delta of the last tensor",
                            (unsigned long long)(making->changed_bytes - making->applied));
}

/* ---- in the loop thread ---- */

static void leave(struct transfer *transfer, const struct rdt_ref *changes, const struct rdt_error *why)
{
    bool is_wrong = why->status == RDT_INVALID; /* otherwise it has ended, or could not be had, which happens to late readers */

    pull_move_delta(transfer, DELTA_LEFT);
    transfer->transfers->counts->deltas_failed++;
    log_at(is_wrong ? LOG_LEVEL_WARN : LOG_LEVEL_DEBUG,
           "obj %016llx: all of it is moved, because its delta \"%s\" cannot be used: %s",
           (unsigned long long)transfer->ref.generation, changes->id, why->msg);
}

static void done(struct work *work)
{
    struct making *making = (struct making *)work;
    struct transfer *transfer = making->transfer;
    struct rdt_ref changes = making->changes;
    struct rdt_error why = making->why;
    uint64_t moved = making->changed_bytes;

    transfer->pull.making = NULL;
    making_free(making);
    if (transfer_op_ended(transfer))
        return;
    if (why.status == RDT_OK)
        (void)region_check(transfer->move.received, &why);
    if (why.status != RDT_OK) {
        leave(transfer, &changes, &why);
        pull_move(transfer);
        return;
    }
    pull_move_delta(transfer, DELTA_MADE);
    pull_made(transfer, moved);
}

/* The replica that is whole, with its bytes in one region. */
static bool is_usable(const struct replica *replica)
{
    return replica && !replica->filling && replica->placed && replica->object->memory.n_regions == 1;
}

static const uint8_t *bytes_of(const struct object *object, struct rdt_error *err)
{
    return region_addr(object->memory.uses[0].region, err);
}

/* The deltas are one tensor of bytes. Holds them. */
static enum rdt_status take_deltas(struct making *making, const struct replica *replica, struct rdt_error *err)
{
    const struct layout *layout = is_usable(replica) ? replica->object->memory.layout : NULL;

    if (!layout)
        return rdt_error_set(err, RDT_NO_MEMORY, "no replica of it could be kept here");
    if (replica->account != making->transfer->pull.replica->account)
        return rdt_error_set(err, RDT_INVALID, "it belongs to another user");
    if (layout->count != 1 || layout->dtype[0] != RDT_U8 || !layout_is_contiguous(layout, 0))
        return rdt_error_set(err, RDT_INVALID, "it is not one tensor of bytes");
    making->changed = bytes_of(replica->object, err);
    if (!making->changed)
        return err->status;
    making->changed += layout->offset[0];
    making->changed_bytes = layout_bytes(layout, 0);
    making->deltas = replica->object;
    object_hold(making->deltas);
    return RDT_OK;
}

static void begin_work(struct making *making)
{
    making->work = (struct work){.run = run, .done = done, .lane = making->transfer->record.client};
    work_submit(making->transfer->transfers->pool, &making->work);
}

/* The deltas are here. Whoever calls may be in the middle of a transfer's end, so even a failure goes through the pool. */
static void on_deltas(void *arg, const struct rdt_error *err)
{
    struct making *making = arg;
    struct transfers *transfers;

    making->fetch = NULL;
    if (!making->transfer) {
        making_free(making);
        return;
    }
    transfers = making->transfer->transfers;
    deadline_unset(transfers->deadlines, &making->patience);
    if (err)
        making->why = *err;
    else
        (void)take_deltas(making, replica_find(&transfers->replicas, making->changes.node, making->changes.generation),
                          &making->why);
    begin_work(making);
}

/* Reads the note; false: there is none that can be used. */
static bool read_note(const struct transfer *transfer, struct rdt_ref *base_p, struct rdt_ref *changes_p)
{
    const struct metadata *metadata = &transfer->metadata;
    size_t bytes = metadata->n_bytes - metadata->box_bytes;
    Rdt__Pb__Delta *note;
    bool is_read;

    if (bytes <= DELTA_NOTE_BYTES || bytes > DELTA_NOTE_MAX_BYTES || memcmp(metadata->bytes, DELTA_NOTE, DELTA_NOTE_BYTES) != 0)
        return false;
    note = rdt__pb__delta__unpack(NULL, bytes - DELTA_NOTE_BYTES, metadata->bytes + DELTA_NOTE_BYTES);
    is_read = note && note->from && note->changes && wire_ref_to(note->from, base_p, NULL) == RDT_OK &&
              wire_ref_to(note->changes, changes_p, NULL) == RDT_OK && !changes_p->is_name && changes_p->generation != 0;
    if (note)
        rdt__pb__delta__free_unpacked(note, NULL);
    /* The publisher's refs may leave its node open. */
    memcpy(base_p->node, transfer->ref.node, sizeof base_p->node);
    memcpy(changes_p->node, transfer->ref.node, sizeof changes_p->node);
    return is_read;
}

/* Whether the bytes go into a replica that is empty so far and will be compared with its checksum. */
static bool may_be_made(const struct transfer *transfer)
{
    const struct pull *pull = &transfer->pull;

    return pull->replica && pull->replica->arrived_to == 0 && replica_has_sum(pull->replica) && !transfer->move.target &&
           transfer->move.received && pull->redirect.bytes == BYTES_FIRST && !pull->subpull.parent && !pull->broadcast;
}

static struct making *making_create(struct transfer *transfer, const struct replica *base, const struct rdt_ref *changes)
{
    struct making *making = calloc(1, sizeof *making);

    if (!making)
        return NULL;
    making->transfer = transfer;
    making->changes = *changes;
    making->base = base->object;
    object_hold(making->base);
    making->from = bytes_of(making->base, NULL);
    making->to = region_addr(transfer->move.received, NULL);
    if (making->from && making->to)
        return making;
    making_free(making);
    return NULL;
}

/* The replica of the snapshot that this one is a change of; NULL: there is none. *changes_p: the deltas. */
static const struct replica *find_base(const struct transfer *transfer, struct rdt_ref *changes_p)
{
    const struct replica *base;
    struct rdt_ref ref;

    if (!may_be_made(transfer) || !read_note(transfer, &ref, changes_p))
        return NULL;
    base = replica_find(&transfer->transfers->replicas, ref.node, ref.generation);
    if (!is_usable(base) || base->account != transfer->pull.replica->account ||
        layout_same_shape(base->object->memory.layout, transfer->move.packed, NULL) != RDT_OK)
        return NULL;
    return base;
}

static void be_patient(struct making *making)
{
    const struct transfers *transfers = making->transfer->transfers;

    making->fetched = making->fetch->transfer->record.bytes_done;
    (void)deadline_set(transfers->deadlines, &making->patience, (int64_t)transfers->options->stall_timeout_ns);
}

/* They may be PENDING for ever, or more than the snapshot itself. */
static void on_late(struct deadline *patience)
{
    struct making *making = container_of(patience, struct making, patience);
    const struct transfer *from = making->fetch->transfer;
    struct rdt_error why;

    if (from->record.bytes_done > making->fetched && from->move.stream_bytes <= making->transfer->move.stream_bytes) {
        be_patient(making);
        return;
    }
    (void)rdt_error_set(&why, RDT_TIMED_OUT, "it did not come within stall_timeout, or is larger than the snapshot");
    fetch_fail(making->fetch, &why);
}

/* Has the deltas fetched, or joins the transfer that fetches them. */
static enum rdt_status fetch_deltas(struct making *making, const struct replica *here, struct rdt_error *err)
{
    const struct transfer *filling = here ? here->filling : NULL;
    struct transfer *transfer = making->transfer;
    enum rdt_status status;

    if (filling && filling->pull.delta == DELTA_MAKING)
        return rdt_error_set(err, RDT_INVALID, "it is itself being made of a delta");
    status = pull_for_node(transfer->kind, transfer->pull.origin, transfer->account, &making->changes, "", 0, on_deltas, making,
                           &making->fetch, err);
    if (status != RDT_OK || !making->fetch)
        return status;
    if (making->fetch->transfer->pull.delta == DELTA_NONE)
        pull_move_delta(making->fetch->transfer, DELTA_LEFT);
    making->patience.on_passed = on_late;
    be_patient(making);
    return RDT_OK;
}

bool pull_delta_begins(struct transfer *transfer)
{
    const struct replicas *replicas = &transfer->transfers->replicas;
    const struct replica *base, *here;
    struct rdt_ref changes;
    struct making *making;
    struct rdt_error err;

    if (transfer->pull.delta != DELTA_NONE)
        return false;
    base = find_base(transfer, &changes);
    making = base ? making_create(transfer, base, &changes) : NULL;
    if (!making) {
        pull_move_delta(transfer, DELTA_LEFT);
        return false;
    }
    pull_move_delta(transfer, DELTA_MAKING);
    transfer->pull.making = making;
    transfer->move.n_ops++;
    here = replica_find(replicas, changes.node, changes.generation);
    if (is_usable(here)) {
        on_deltas(making, NULL);
    } else if (fetch_deltas(making, here, &err) != RDT_OK) {
        transfer->pull.making = NULL;
        transfer->move.n_ops--;
        making_free(making);
        leave(transfer, &changes, &err);
        return false;
    }
    return true;
}

void pull_delta_stop(struct transfer *transfer)
{
    struct making *making = transfer->pull.making;
    struct rdt_error why;

    if (!making)
        return;
    pull_move_delta(transfer, DELTA_LEFT);
    making->stop = true;
    if (!making->fetch)
        return; /* the pool has it */
    deadline_unset(transfer->transfers->deadlines, &making->patience);
    transfer->pull.making = NULL;
    transfer->move.n_ops--;
    making->transfer = NULL;
    (void)rdt_error_set(&why, RDT_CANCELLED, "the snapshot that the delta is for is not wanted any more");
    fetch_fail(making->fetch, &why); /* on_deltas frees it */
}
