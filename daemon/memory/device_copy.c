/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/device_copy.h"

#include <stdlib.h>

#define ROWS_AT_ONCE 256u /* tensors between two looks at the time */

struct batch {
    struct plugin_copy base; /* first */
    struct device_copy *copy;
    uint64_t bytes;
    const struct device_place *from, *to; /* of its first piece; NULL: it has none yet */
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
    struct batch *next; /* is being filled; NULL: none is */
    unsigned running;
    uint64_t copied;
    bool stop;
    struct rdt_error failure; /* status OK: none */
    struct slice slice;       /* looks at the tensors */
    struct regions *regions;  /* of one of the places; NULL: none was seen yet */
};

/* NULL: the copy looks at all tensors at once. */
static struct slices *slices_of(const struct device_copy *copy)
{
    const struct regions *regions = copy->regions;

    return regions && regions->deadlines && !regions->ending ? &regions->deadlines->slices : NULL;
}

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

static void note_failure(struct device_copy *copy, enum rdt_status status, const struct memory_kind *kind, const char *msg)
{
    if (copy->failure.status == RDT_OK)
        (void)rdt_error_set(&copy->failure, status, "a copy of %s memory failed: %s", kind->name, msg);
}

/* Adds up to `bytes` bytes of the next tensor, which lies at these places. */
static void add_tensor(struct device_copy *copy, struct batch *batch, const struct device_place *from,
                       const struct device_place *to, uint64_t bytes)
{
    uint64_t had = batch->bytes;
    struct filling filling = {.batch = batch,
                              .from = base_of(from),
                              .to = (uint8_t *)(uintptr_t)base_of(to) + copy->target->offset[copy->tensor] + copy->at};

    batch->from = from;
    batch->to = to;
    (void)layout_runs(copy->source, copy->tensor, copy->at, bytes, on_runs, &filling);
    copy->at += batch->bytes - had;
    copy->remaining -= batch->bytes - had;
}

static bool kinds_differ(const struct device_copy *copy, struct rdt_error *err)
{
    const struct region *from = copy->from[copy->source->region[copy->tensor]].region;
    const struct region *to = copy->to[copy->target->region[copy->tensor]].region;

    if (!from || !to || !from->device || !to->device || from->kind == to->kind)
        return false;
    (void)rdt_error_set(err, RDT_UNSUPPORTED, "tensor %u: no memory kind copies from %s to %s memory", copy->tensor,
                        from->kind->name, to->kind->name);
    return true;
}

/* The next tensor. false: it does not belong to this batch, or nobody copies it. */
static bool fill_tensor(struct device_copy *copy, struct batch *batch)
{
    const struct layout *source = copy->source;
    uint32_t i = copy->tensor;
    const struct device_place *from = &copy->from[source->region[i]], *to = &copy->to[copy->target->region[i]];
    uint64_t bytes = layout_bytes(source, i) - copy->at;

    if (bytes > copy->remaining)
        bytes = copy->remaining;
    if (!copy->regions)
        copy->regions = from->region ? from->region->regions : to->region ? to->region->regions : NULL;
    if (!is_copied(copy, i)) {
        copy->remaining -= bytes;
        copy->at = layout_bytes(source, i);
    } else if (kinds_differ(copy, &copy->failure) || (batch->from && !same_ends(batch->from, batch->to, from, to))) {
        return false;
    } else {
        add_tensor(copy, batch, from, to,
                   bytes > DEVICE_COPY_BATCH_BYTES - batch->bytes ? DEVICE_COPY_BATCH_BYTES - batch->bytes : bytes);
    }
    if (copy->at == layout_bytes(source, i)) {
        copy->tensor++;
        copy->at = 0;
    }
    return true;
}

/* Fills the batch with pieces between one block of a device and host memory, or between two blocks. Returns false if until_ns
 * has passed before it is full: call again. Without pieces nothing is left. */
static bool fill(struct device_copy *copy, struct batch *batch, uint64_t until_ns)
{
    uint32_t n = 0;

    while (copy->remaining > 0 && copy->tensor < copy->source->count && batch->bytes < DEVICE_COPY_BATCH_BYTES &&
           batch->base.copy.n_pieces < DEVICE_COPY_BATCH_PIECES && fill_tensor(copy, batch))
        if (++n % ROWS_AT_ONCE == 0 && slices_of(copy) && uv_hrtime() >= until_ns)
            return false;
    if (batch->from) {
        batch->base.copy.from = block_of(batch->from);
        batch->base.copy.to = block_of(batch->to);
        batch->base.copy.pieces = batch->pieces;
        batch->base.copy.host_pinned = copy->pinned;
        batch->base.kind = kind_of(batch->from, batch->to);
    }
    return true;
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

/* false: no memory */
static bool begin_batch(struct device_copy *copy)
{
    copy->next = malloc(sizeof *copy->next);
    if (!copy->next)
        return false;
    copy->next->base.copy = (struct rdt_memory_copy){0};
    copy->next->base.on_done = on_batch;
    copy->next->copy = copy;
    copy->next->bytes = 0;
    copy->next->from = copy->next->to = NULL;
    return true;
}

static void start_batch(struct device_copy *copy)
{
    struct batch *batch = copy->next;
    struct rdt_error err = {0};

    copy->next = NULL;
    copy->running++;
    if (plugin_copy_start(batch->base.kind, &batch->base, &err) == RDT_OK)
        return;
    copy->running--;
    note_failure(copy, err.status, batch->base.kind, err.msg);
    free(batch);
}

/* false: until_ns has passed; call again, from a slice. */
static bool start_more(struct device_copy *copy, uint64_t until_ns)
{
    while (copy->running < DEVICE_COPY_AT_ONCE && copy->failure.status == RDT_OK && !copy->stop) {
        if (!copy->next && !begin_batch(copy)) {
            (void)rdt_error_set(&copy->failure, RDT_NO_MEMORY, "no memory for a copy");
            return true;
        }
        if (!fill(copy, copy->next, until_ns))
            return false;
        if (!copy->next->from || copy->failure.status != RDT_OK)
            return true;
        start_batch(copy);
    }
    return true;
}

static void copy_free(struct device_copy *copy)
{
    free(copy->next);
    free(copy);
}

static bool go_on_some(struct slice *slice, uint64_t until_ns)
{
    struct device_copy *copy = container_of(slice, struct device_copy, slice);
    struct rdt_error failure;
    bool is_left;

    if (!start_more(copy, until_ns))
        return false;
    if (copy->running > 0)
        return true;
    failure = copy->failure;
    is_left = (copy->remaining > 0 && copy->tensor < copy->source->count) || (copy->next && copy->next->from);
    if (failure.status == RDT_OK && is_left)
        (void)rdt_error_set(&failure, RDT_CANCELLED, "the copy was cancelled before its end");
    copy->on_done(copy->arg, failure.status == RDT_OK ? NULL : &failure);
    copy_free(copy);
    return true;
}

/* A batch has ended: starts more, or ends the copy. */
static void go_on(struct device_copy *copy)
{
    if (copy->wanted && !copy->wanted(copy->arg))
        copy->stop = true;
    slice_begin(slices_of(copy), &copy->slice);
}

enum rdt_status device_copy_start(const struct layout *source, const struct device_place *from, const struct layout *target,
                                  const struct device_place *to, const struct device_range *range, bool pinned,
                                  device_copy_done on_done, void *arg, struct device_copy **copy_p, struct rdt_error *err)
{
    struct device_copy *copy = calloc(1, sizeof *copy);
    enum rdt_status status;

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
                                 .pinned = pinned,
                                 .slice.run = go_on_some};
    if (range) {
        copy->tensor = range->first;
        copy->at = range->at;
        copy->remaining = range->bytes;
    }
    if (!start_more(copy, uv_hrtime() + SLICES_TURN_NS)) {
        slice_start(slices_of(copy), &copy->slice);
        *copy_p = copy;
        return RDT_OK;
    }
    if (copy->running > 0) {
        *copy_p = copy;
        return RDT_OK;
    }
    /* Either the range has no tensor to copy, or the first batch failed to start. */
    status = copy->failure.status == RDT_OK ? RDT_OK : rdt_error_set(err, copy->failure.status, "%s", copy->failure.msg);
    copy_free(copy);
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
