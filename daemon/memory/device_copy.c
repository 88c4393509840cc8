/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/device_copy.h"

#include <stdlib.h>

struct batch {
    struct plugin_copy base; /* first */
    struct device_copy *copy;
    uint64_t bytes;
    struct rdt_copy_piece pieces[DEVICE_COPY_BATCH_PIECES];
};

struct device_copy {
    const struct layout *source, *target;
    const struct device_place *from, *to;
    device_copy_done on_done;
    bool (*wanted)(void *arg); /* NULL: it goes on until it is stopped */
    void *arg;
    uint32_t tensor;    /* the next batch begins here, ... */
    uint64_t at;        /* ... at this byte of its packed stream, ... */
    uint64_t remaining; /* ... and this many bytes remain, those of ignored tensors included */
    bool pinned;
    unsigned running;
    uint64_t copied;
    bool stop;
    struct rdt_error failure; /* status OK: none */
};

/* ---- which tensors ---- */

static bool is_there(const struct device_place *place)
{
    return place->region ? !region_is_by_fd(place->region) : place->base != NULL;
}

/* Whether tensor i has an end on a device, and a place at both. */
static bool is_copied(const struct device_copy *copy, uint32_t i)
{
    const struct device_place *from, *to;

    if (layout_bytes(copy->source, i) == 0)
        return false;
    from = &copy->from[copy->source->region[i]];
    to = &copy->to[copy->target->region[i]];
    return is_there(from) && is_there(to) && ((from->region && from->region->device) || (to->region && to->region->device));
}

static const uint8_t *base_of(const struct device_place *place)
{
    return place->region ? place->region->block.addr : place->base;
}

static struct memory_kind *kind_of(const struct device_place *from, const struct device_place *to)
{
    return to->region && to->region->device ? to->region->kind : from->region->kind;
}

static enum rdt_status check(const struct device_copy *copy, bool *any_p, struct rdt_error *err)
{
    *any_p = false;
    for (uint32_t i = 0; i < copy->source->count; i++) {
        const struct region *from, *to;
        if (!is_copied(copy, i))
            continue;
        from = copy->from[copy->source->region[i]].region;
        to = copy->to[copy->target->region[i]].region;
        *any_p = true;
        if (from && to && from->device && to->device && from->kind != to->kind)
            return rdt_error_set(err, RDT_UNSUPPORTED, "tensor %u: no memory kind copies from %s to %s memory", i,
                                 from->kind->name, to->kind->name);
    }
    return RDT_OK;
}

/* ---- batches ---- */

struct filling {
    struct batch *batch;
    const uint8_t *from;
    uint8_t *to;
};

/* Tensors that lie one behind the other at both ends are one piece, and so one call of the device's driver. */
static bool extend_last(struct batch *batch, const uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    struct rdt_copy_piece *last = batch->base.copy.n_pieces > 0 ? &batch->pieces[batch->base.copy.n_pieces - 1] : NULL;

    if (!last || last->rows != 1 || (uint8_t *)last->to + last->bytes != to ||
        (const uint8_t *)last->from + last->bytes != from)
        return false;
    last->bytes += bytes;
    last->to_step = last->from_step = last->bytes;
    batch->bytes += bytes;
    return true;
}

static bool add_piece(struct batch *batch, uint8_t *to, const uint8_t *from, uint64_t bytes, uint64_t rows, uint64_t from_step)
{
    if (rows == 1 && extend_last(batch, to, from, bytes))
        return true;
    if (batch->base.copy.n_pieces == DEVICE_COPY_BATCH_PIECES)
        return false;
    batch->pieces[batch->base.copy.n_pieces++] =
        (struct rdt_copy_piece){.to = to, .from = from, .bytes = bytes, .rows = rows, .to_step = bytes, .from_step = from_step};
    batch->bytes += bytes * rows;
    return true;
}

/* Adds runs of contiguous bytes at one step from each other, as one piece if a piece can describe them. */
static bool on_runs(void *arg, uint64_t place, int64_t step, uint64_t run, uint64_t runs)
{
    struct filling *filling = arg;

    if (runs == 1 || step >= (int64_t)run) {
        if (!add_piece(filling->batch, filling->to, filling->from + place, run, runs, runs == 1 ? run : (uint64_t)step))
            return false;
        filling->to += run * runs;
        return true;
    }
    for (uint64_t k = 0; k < runs; k++) { /* the runs go backwards or overlap */
        if (!add_piece(filling->batch, filling->to, filling->from + (int64_t)place + (int64_t)k * step, run, 1, run))
            return false;
        filling->to += run;
    }
    return true;
}

static const struct rdt_block *block_of(const struct device_place *place)
{
    return place->region && place->region->device ? &place->region->block : NULL;
}

/* Whether one call of the plug-in copies between both pairs of places. Host memory may be of any region. */
static bool same_ends(const struct device_place *from, const struct device_place *to, const struct device_place *other_from,
                      const struct device_place *other_to)
{
    return block_of(from) == block_of(other_from) && block_of(to) == block_of(other_to);
}

/* Fills a batch with pieces between one block of a device and host memory, or between two blocks. Returns false if nothing is
 * left. */
static bool fill(struct device_copy *copy, struct batch *batch)
{
    const struct device_place *from = NULL, *to = NULL;
    const struct layout *source = copy->source, *target = copy->target;

    while (copy->remaining > 0 && copy->tensor < source->count && batch->bytes < DEVICE_COPY_BATCH_BYTES &&
           batch->base.copy.n_pieces < DEVICE_COPY_BATCH_PIECES) {
        uint32_t i = copy->tensor;
        uint64_t bytes = layout_bytes(source, i) - copy->at, had = batch->bytes;
        struct filling filling = {.batch = batch};

        if (bytes > copy->remaining)
            bytes = copy->remaining;
        if (!is_copied(copy, i)) {
            copy->remaining -= bytes;
            copy->tensor++;
            copy->at = 0;
            continue;
        }
        if (from && !same_ends(from, to, &copy->from[source->region[i]], &copy->to[target->region[i]]))
            break;
        from = &copy->from[source->region[i]];
        to = &copy->to[target->region[i]];
        if (bytes > DEVICE_COPY_BATCH_BYTES - batch->bytes)
            bytes = DEVICE_COPY_BATCH_BYTES - batch->bytes;
        filling.from = base_of(from);
        filling.to = (uint8_t *)(uintptr_t)base_of(to) + target->offset[i] + copy->at;
        (void)layout_runs(source, i, copy->at, bytes, on_runs, &filling);
        copy->at += batch->bytes - had;
        copy->remaining -= batch->bytes - had;
        if (copy->at == layout_bytes(source, i)) {
            copy->tensor++;
            copy->at = 0;
        }
    }
    if (!from)
        return false;
    batch->base.copy.from = block_of(from);
    batch->base.copy.to = block_of(to);
    batch->base.copy.pieces = batch->pieces;
    batch->base.copy.host_pinned = copy->pinned;
    batch->base.kind = kind_of(from, to);
    return true;
}

static void note_failure(struct device_copy *copy, enum rdt_status status, const struct memory_kind *kind, const char *msg)
{
    if (copy->failure.status == RDT_OK)
        (void)rdt_error_set(&copy->failure, status, "a copy of %s memory failed: %s", kind->name, msg);
}

static void go_on(struct device_copy *copy);

static void on_batch(struct plugin_copy *base, enum rdt_status status, const char *msg)
{
    struct batch *batch = (struct batch *)base;
    struct device_copy *copy = batch->copy;

    copy->running--;
    if (status == RDT_OK)
        copy->copied += batch->bytes;
    else
        note_failure(copy, status, base->kind, msg);
    free(batch);
    go_on(copy);
}

static void start_more(struct device_copy *copy)
{
    while (copy->running < DEVICE_COPY_AT_ONCE && copy->failure.status == RDT_OK && !copy->stop) {
        struct batch *batch = malloc(sizeof *batch);
        struct rdt_error err = {0};

        if (!batch) {
            (void)rdt_error_set(&copy->failure, RDT_NO_MEMORY, "no memory for a copy");
            return;
        }
        batch->base.copy = (struct rdt_memory_copy){0};
        batch->base.on_done = on_batch;
        batch->copy = copy;
        batch->bytes = 0;
        if (!fill(copy, batch)) {
            free(batch);
            return;
        }
        copy->running++;
        if (plugin_copy_start(batch->base.kind, &batch->base, &err) != RDT_OK) {
            copy->running--;
            note_failure(copy, err.status, batch->base.kind, err.msg);
            free(batch);
        }
    }
}

/* A batch has ended: starts more, or ends the copy. */
static void go_on(struct device_copy *copy)
{
    struct rdt_error failure;

    if (copy->wanted && !copy->wanted(copy->arg))
        copy->stop = true;
    start_more(copy);
    if (copy->running > 0)
        return;
    failure = copy->failure;
    if (failure.status == RDT_OK && copy->remaining > 0 && copy->tensor < copy->source->count)
        (void)rdt_error_set(&failure, RDT_CANCELLED, "the copy was cancelled before its end");
    copy->on_done(copy->arg, failure.status == RDT_OK ? NULL : &failure);
    free(copy);
}

enum rdt_status device_copy_start(const struct layout *source, const struct device_place *from, const struct layout *target,
                                  const struct device_place *to, const struct device_range *range, bool pinned,
                                  device_copy_done on_done, void *arg, struct device_copy **copy_p, struct rdt_error *err)
{
    struct device_copy *copy = calloc(1, sizeof *copy);
    enum rdt_status status;
    bool any;

    *copy_p = NULL;
    if (!copy)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a copy");
    *copy = (struct device_copy){.source = source,
                                 .target = target,
                                 .from = from,
                                 .to = to,
                                 .on_done = on_done,
                                 .arg = arg,
                                 .remaining = UINT64_MAX,
                                 .pinned = pinned};
    if (range) {
        copy->tensor = range->first;
        copy->at = range->at;
        copy->remaining = range->bytes;
    }
    status = check(copy, &any, err);
    if (status != RDT_OK || !any) {
        free(copy);
        return status;
    }
    start_more(copy);
    if (copy->running > 0) {
        *copy_p = copy;
        return RDT_OK;
    }
    /* Either the range has no tensor to copy, or the first batch failed to start. */
    status = copy->failure.status == RDT_OK ? RDT_OK : rdt_error_set(err, copy->failure.status, "%s", copy->failure.msg);
    free(copy);
    return status;
}

void device_copy_stop(struct device_copy *copy)
{
    copy->stop = true;
}

void device_copy_set_wanted(struct device_copy *copy, bool (*wanted)(void *arg))
{
    copy->wanted = wanted;
}

uint64_t device_copy_bytes(const struct device_copy *copy)
{
    return copy->copied;
}
