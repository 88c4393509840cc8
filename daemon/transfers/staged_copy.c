/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/transfers/staged_copy.h"

#include <stdlib.h>

#include "daemon/transfers/peer_transport.h"
#include "daemon/transports/chunk.h"
#include "daemon/transports/stage.h"

struct staged_copy {
    struct transfers *transfers;
    struct staged_end from, to;
    struct layout *packed;
    struct chunk_plan *plan;
    struct stage *stage;
    void (*on_done)(void *arg, const struct rdt_error *err);
    void *arg;
    uint32_t next; /* chunk */
    unsigned running;
    uint64_t copied;
    bool stop;
    struct rdt_error failure; /* status OK: none */
};

struct staged_chunk {
    struct work work; /* first */
    struct staged_copy *copy;
    const struct chunk *chunk;
    uint8_t *slot;
    struct device_place place;  /* the slot as one end of a device's copy */
    struct device_copy *device; /* which nobody stops */
    int failed;                 /* an errno; 0: none */
};

static struct region *region_of(const struct staged_end *end, uint32_t tensor)
{
    return end->regions[end->layout->region[tensor]].region;
}

static bool is_imported(const struct staged_end *end, uint32_t tensor)
{
    const struct region *region = region_of(end, tensor);

    return region && region_is_by_fd(region);
}

static bool is_on_device(const struct staged_end *end, uint32_t tensor)
{
    const struct region *region = region_of(end, tensor);

    return region && region->device;
}

static bool is_copied(const struct staged_copy *copy, uint32_t tensor)
{
    return (is_imported(&copy->from, tensor) && is_on_device(&copy->to, tensor)) ||
           (is_on_device(&copy->from, tensor) && is_imported(&copy->to, tensor));
}

static void copy_free(struct staged_copy *copy)
{
    stage_destroy(copy->stage);
    free(copy->packed);
    free(copy->plan);
    free(copy);
}

static void note_failure(struct staged_copy *copy, const struct rdt_error *err)
{
    if (copy->failure.status == RDT_OK)
        copy->failure = *err;
}

static void go_on(struct staged_copy *copy);

static void chunk_ended(struct staged_chunk *chunk, const struct rdt_error *err)
{
    struct staged_copy *copy = chunk->copy;

    if (err)
        note_failure(copy, err);
    else
        copy->copied += chunk->chunk->bytes;
    stage_return_slot(copy->stage, chunk->slot);
    copy->running--;
    free(chunk);
    go_on(copy);
}

/* ---- between the slot and imported memory ---- */

static struct memory_place *memory_of(const struct staged_copy *copy, const struct staged_end *end, uint32_t tensor)
{
    return end->memory_at(copy->arg, end->layout->region[tensor]);
}

static void run_read(struct work *work)
{
    struct staged_chunk *chunk = (struct staged_chunk *)work;
    const struct staged_copy *copy = chunk->copy;
    struct device_range range = chunk_range(chunk->chunk, copy->packed);

    chunk->failed = memory_place_gather(memory_of(copy, &copy->from, range.first), copy->from.layout, range.first, range.at,
                                        range.bytes, chunk->slot);
}

static void run_write(struct work *work)
{
    struct staged_chunk *chunk = (struct staged_chunk *)work;
    const struct staged_copy *copy = chunk->copy;
    struct device_range range = chunk_range(chunk->chunk, copy->packed);

    chunk->failed = memory_place_scatter(memory_of(copy, &copy->to, range.first), copy->to.layout, range.first, range.at,
                                         range.bytes, chunk->slot);
}

static void done_write(struct work *work)
{
    struct staged_chunk *chunk = (struct staged_chunk *)work;
    const struct staged_copy *copy = chunk->copy;
    uint32_t tensor = chunk->chunk->first;
    struct rdt_error err = {0};

    if (chunk->failed)
        (void)rdt_error_sys(&err, chunk->failed, "writing imported memory");
    else
        (void)memory_place_charge(memory_of(copy, &copy->to, tensor), region_of(&copy->to, tensor), &err);
    chunk_ended(chunk, err.status == RDT_OK ? NULL : &err);
}

static void submit(struct staged_chunk *chunk, const struct staged_end *end, void (*run)(struct work *),
                   void (*done)(struct work *))
{
    chunk->work = (struct work){.run = run, .done = done};
    owner_work_submit(chunk->copy->transfers->regions->owner_work, &chunk->work, region_of(end, chunk->chunk->first)->account,
                      true);
}

/* ---- between the slot and the device ---- */

static void on_device_written(void *arg, const struct rdt_error *err)
{
    chunk_ended(arg, err);
}

static void on_device_read(void *arg, const struct rdt_error *err)
{
    struct staged_chunk *chunk = arg;

    if (err)
        chunk_ended(chunk, err);
    else
        submit(chunk, &chunk->copy->to, run_write, done_write);
}

static void start_device(struct staged_chunk *chunk, bool to_device)
{
    struct staged_copy *copy = chunk->copy;
    struct device_range range = chunk_range(chunk->chunk, copy->packed);
    bool pinned = stage_is_pinned(copy->stage);
    struct rdt_error err = {0};
    enum rdt_status status;

    chunk->place.base = chunk->slot - chunk->chunk->offset;
    if (to_device)
        status = device_copy_start(copy->packed, &chunk->place, copy->to.layout, copy->to.regions, &range, pinned,
                                   on_device_written, chunk, &chunk->device, &err);
    else
        status = device_copy_start(copy->from.layout, copy->from.regions, copy->packed, &chunk->place, &range, pinned,
                                   on_device_read, chunk, &chunk->device, &err);
    if (status == RDT_OK && !chunk->device)
        status = rdt_error_set(&err, RDT_INTERNAL, "a chunk has no bytes");
    if (status != RDT_OK)
        chunk_ended(chunk, &err);
}

static void done_read(struct work *work)
{
    struct staged_chunk *chunk = (struct staged_chunk *)work;
    struct rdt_error err;

    if (!chunk->failed) {
        start_device(chunk, true);
        return;
    }
    (void)rdt_error_sys(&err, chunk->failed, "reading imported memory");
    chunk_ended(chunk, &err);
}

/* ---- the chunks ---- */

static bool start_next(struct staged_copy *copy)
{
    const struct chunk *chunk = &copy->plan->chunks[copy->next];
    struct staged_chunk *started = calloc(1, sizeof *started);
    struct rdt_error err;

    if (!started) {
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory for a copy");
        note_failure(copy, &err);
        return false;
    }
    *started = (struct staged_chunk){.copy = copy, .chunk = chunk, .slot = stage_take_slot(copy->stage)};
    copy->next++;
    copy->running++;
    if (is_imported(&copy->from, chunk->first))
        submit(started, &copy->from, run_read, done_read);
    else
        start_device(started, false);
    return true;
}

static void go_on(struct staged_copy *copy)
{
    struct rdt_error failure;

    copy->running++; /* the copy must not end meanwhile */
    while (!copy->stop && copy->failure.status == RDT_OK && copy->next < copy->plan->n && stage_free_slots(copy->stage) > 0)
        if (!is_copied(copy, copy->plan->chunks[copy->next].first))
            copy->next++;
        else if (!start_next(copy))
            break;
    if (--copy->running > 0)
        return;
    failure = copy->failure;
    if (failure.status == RDT_OK && copy->next < copy->plan->n)
        (void)rdt_error_set(&failure, RDT_CANCELLED, "the copy was cancelled before its end");
    copy->on_done(copy->arg, failure.status == RDT_OK ? NULL : &failure);
    copy_free(copy);
}

static void on_stage(void *arg, struct stage *stage, const struct rdt_error *err)
{
    struct staged_copy *copy = arg;

    if (err) {
        copy->on_done(copy->arg, err);
        copy_free(copy);
        return;
    }
    copy->stage = stage;
    go_on(copy);
}

/* Memory on one of the devices, and how many chunks of which size there are at most. NULL: nothing is to be copied. */
static const struct region *measure(const struct staged_copy *copy, uint32_t *n_p, uint64_t *most_p)
{
    const struct region *region = NULL;

    for (uint32_t i = 0; i < copy->plan->n; i++) {
        const struct chunk *chunk = &copy->plan->chunks[i];
        if (!is_copied(copy, chunk->first))
            continue;
        region = region_of(is_imported(&copy->from, chunk->first) ? &copy->to : &copy->from, chunk->first);
        *most_p = chunk->bytes > *most_p ? chunk->bytes : *most_p;
        ++*n_p;
    }
    return region;
}

static bool has_imports(const struct staged_end *end)
{
    for (uint32_t i = 0; i < end->layout->count; i++)
        if (layout_bytes(end->layout, i) > 0 && is_imported(end, i))
            return true;
    return false;
}

enum rdt_status staged_copy_start(struct transfers *transfers, const struct staged_end *from, const struct staged_end *to,
                                  struct account *account, void (*on_done)(void *arg, const struct rdt_error *err), void *arg,
                                  struct staged_copy **copy_p, struct rdt_error *err)
{
    const struct options *options = transfers->options;
    struct staged_copy *copy;
    const struct region *region = NULL;
    uint64_t bytes, most = 0;
    uint32_t n = 0;
    enum rdt_status status;

    *copy_p = NULL;
    if (!has_imports(from) && !has_imports(to))
        return RDT_OK;
    copy = calloc(1, sizeof *copy);
    if (!copy)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a copy");
    *copy = (struct staged_copy){.transfers = transfers, .from = *from, .to = *to, .on_done = on_done, .arg = arg};
    status = layout_packed(from->layout, &copy->packed, &bytes, err);
    if (status == RDT_OK)
        status = chunk_plan_create_single(copy->packed, bytes, options->chunk_bytes, &copy->plan, err);
    if (status == RDT_OK && (region = measure(copy, &n, &most)))
        status = stage_create(transfers->regions, region, n < options->chunks_in_flight ? n : options->chunks_in_flight,
                              (most + 4095) & ~UINT64_C(4095), account, on_stage, copy, err);
    if (status == RDT_AGAIN) {
        *copy_p = copy;
        return RDT_OK;
    }
    copy_free(copy);
    return status;
}

void staged_copy_stop(struct staged_copy *copy)
{
    copy->stop = true;
}

uint64_t staged_copy_bytes(const struct staged_copy *copy)
{
    return copy->copied;
}
