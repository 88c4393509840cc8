/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/snapshot.h"

#include <stddef.h>
#include <stdlib.h>

#include "daemon/memory/copy.h"
#include "daemon/memory/device_copy.h"
#include "daemon/memory/placing.h"
#include "daemon/memory/region_cache.h"

enum step { STEP_PROVE, STEP_RESERVE, STEP_COPY, STEP_BARRIER, STEP_END };

struct snapshot {
    struct work work;
    struct regions *table;
    struct object *object; /* held; also pinned once memory is reserved */
    snapshot_done on_done; /* NULL: nobody waits for the result */
    void *arg;
    enum step step;
    bool *handed_over; /* [n_regions]; those still true after PROVE become part of the snapshot without a copy */
    struct layout *layout;
    /* Of `layout`: the regions taken over, borrowed from the object, then the new ones. */
    struct region **regions;
    uint32_t n_taken, n_fresh;
    struct placing placing; /* what must be allocated on each device and in host memory */
    struct region *fresh[PLACING_MAX];
    struct copy copy;
    struct device_copy *device; /* NULL: it has ended, or nothing is on a device */
    struct device_place *from, *to;
    bool on_host;             /* the worker pool is copying */
    struct rdt_error failure; /* the first error of either copy */
    bool copying;             /* the object is pinned */
    /* The object was pending: its waiters have a ref with its generation, and cannot wait for another
     * object. */
    bool was_pending;
    struct client *client;
    struct client_read_barrier barrier; /* in the client's list while at STEP_BARRIER */
};

bool snapshot_may_take_over(const struct region *region)
{
    /* a region in huge pages may have pages that are missing; memory that somebody has pinned cannot be sealed */
    return region->origin == REGION_ALLOCATED && region->refs == 1 && region->pins == 0 && region->n_registrations == 0 &&
           !region->pinned.kind && list_empty(&region->uses) && region->kind->ops.seal && region->block.page_bytes == 0;
}

static void snapshot_free(struct snapshot *snapshot)
{
    copy_fini(&snapshot->copy);
    free(snapshot->from);
    free(snapshot->to);
    free(snapshot->layout);
    free(snapshot->regions);
    free(snapshot->handed_over);
    free(snapshot);
}

static void resume(struct snapshot *snapshot, enum rdt_status status, struct rdt_error *err);

/* ---- proving that nobody can write the regions handed over ---- */

static void run_prove(struct work *work)
{
    struct snapshot *snapshot = (struct snapshot *)work;

    for (uint32_t i = 0; i < snapshot->object->memory.n_regions; i++) {
        struct region *region = snapshot->object->memory.uses[i].region;
        /* if the memory kind refuses, the region is copied like any other */
        if (snapshot->handed_over[i] && !region_is_sealed(region))
            snapshot->handed_over[i] = region->kind->ops.seal(region->kind->instance, &region->block, true, NULL) == RDT_OK;
    }
}

static void done_prove(struct work *work)
{
    struct snapshot *snapshot = (struct snapshot *)work;

    resume(snapshot, RDT_OK, NULL);
}

/* AGAIN: a thread of the owner continues. */
static enum rdt_status prove(struct snapshot *snapshot)
{
    struct object *object = snapshot->object;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < object->memory.n_regions; i++)
        bytes += snapshot->handed_over[i] && !region_is_sealed(object->memory.uses[i].region)
                     ? object->memory.uses[i].region->bytes
                     : 0;
    if (bytes == 0 || object->changes.loaned)
        return RDT_OK;
    /* Never on the loop, however few the bytes are: the kernel waits up to 155 ms for a page that somebody may still write,
     * and a client can cause that with vmsplice. */
    snapshot->work = (struct work){.run = run_prove, .done = done_prove};
    owner_work_submit(snapshot->table->owner_work, &snapshot->work, object->account, true);
    return RDT_AGAIN;
}

/* ---- the layout of the snapshot ---- */

/* Nobody can write the region any more. */
static void take_over(struct snapshot *snapshot, struct region *region)
{
    region->origin = REGION_SNAPSHOT;
    if (!region_is_sealed(region)) {
        event(snapshot->table->events, RDT__PB__LIST_KIND__LIST_KIND_REGIONS, "sealed", region);
        region->reach.seal = REGION_SEALED;
    }
    region->reach.writable_outside = region->reuse.keep_mapped = false;
    if (region->reach.exposure == REGION_BOUND)
        region->reach.exposure = REGION_EXPOSED;
}

/* Tensors in regions that are taken over, or loaned, stay where they are. The others are packed into new regions, one
 * for each device and one for host memory. */
static enum rdt_status plan(struct snapshot *snapshot, struct rdt_error *err)
{
    struct object *object = snapshot->object;
    const struct layout *source = object->memory.layout;
    /* 1 + the index of a region that is taken over; 0: copied */
    uint32_t *place = calloc(object->memory.n_regions + 1u, sizeof *place);
    struct layout *layout = NULL;
    enum rdt_status status = RDT_OK;
    uint64_t ignored;

    snapshot->regions = calloc(object->memory.n_regions + PLACING_MAX, sizeof(struct region *));
    if (!place || !snapshot->regions)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the snapshot");
    if (status == RDT_OK)
        status = layout_packed(source, &layout, &ignored, err);
    for (uint32_t i = 0; i < object->memory.n_regions && status == RDT_OK; i++) {
        struct region *region = object->memory.uses[i].region;
        if (!snapshot->handed_over[i])
            continue;
        if (!object->changes.loaned)
            take_over(snapshot, region);
        snapshot->regions[snapshot->n_taken++] = region;
        place[i] = snapshot->n_taken;
    }
    for (uint32_t i = 0; i < source->count && status == RDT_OK; i++) {
        layout->region[i] = 0;
        layout->offset[i] = 0;
        if (layout_elems(source, i) == 0)
            continue;
        if (place[source->region[i]] > 0) {
            layout->region[i] = place[source->region[i]] - 1;
            layout->offset[i] = source->offset[i];
            for (uint32_t d = 0; d < source->ndim[i]; d++)
                layout->strides[layout->first_dim[i] + d] = source->strides[source->first_dim[i] + d];
        } else {
            uint32_t fresh;
            if (!placing_add(&snapshot->placing, object->memory.uses[source->region[i]].region->device, layout_bytes(source, i),
                             &fresh, &layout->offset[i])) {
                status = rdt_error_set(err, RDT_LIMIT, "the tensors of a snapshot may lie on at most %u devices", PLACING_MAX);
                break;
            }
            layout->region[i] = snapshot->n_taken + fresh;
        }
    }
    free(place);
    snapshot->layout = layout;
    return status;
}

/* ---- memory for the new regions ---- */

static void on_reserved(void *arg, struct region *region, const struct rdt_error *err)
{
    struct snapshot *snapshot = arg;
    struct rdt_error why = {0};

    if (err)
        why = *err;
    else
        snapshot->fresh[snapshot->n_fresh++] = region;
    snapshot->step = STEP_RESERVE; /* there may be more to reserve */
    resume(snapshot, why.status, &why);
}

/* Nothing on a device can be sealed. Its owner's processes may map a snapshot there, because librdt's word is enough for them;
 * others are not to depend on it, so a snapshot that they may see never leaves the daemon. */
static enum region_origin origin_on_device(const struct object *object)
{
    return object->access.visibility == RDT__PB__VISIBILITY__VISIBILITY_OWNER ? REGION_WRITTEN : REGION_SNAPSHOT;
}

static enum rdt_status reserve(struct snapshot *snapshot, struct rdt_error *err)
{
    enum rdt_status status = snapshot->layout ? RDT_OK : plan(snapshot, err);

    while (status == RDT_OK && snapshot->n_fresh < snapshot->placing.n) {
        struct memory_device *device = snapshot->placing.at[snapshot->n_fresh].device;
        uint64_t bytes = snapshot->placing.at[snapshot->n_fresh].bytes;
        struct region **fresh = &snapshot->fresh[snapshot->n_fresh];
        if (device)
            status = region_alloc_to_write(snapshot->table, device, bytes, &snapshot->placing.at[snapshot->n_fresh].gaps,
                                           origin_on_device(snapshot->object), snapshot->object->account, 0, fresh, on_reserved,
                                           snapshot, err);
        else
            status = region_alloc(snapshot->table, "host", "", bytes, REGION_SNAPSHOT, snapshot->object->account, 0, fresh,
                                  on_reserved, snapshot, err);
        snapshot->n_fresh += status == RDT_OK;
    }
    if (status == RDT_OK && snapshot->n_fresh > 0 && !snapshot->copying) {
        object_pin(snapshot->object);
        snapshot->copying = true;
    }
    return status;
}

/* ---- the copy ---- */

static void run_copy(struct work *work)
{
    (void)copy_turn(&((struct snapshot *)work)->copy);
}

/* Checks that all memory that was read existed. */
static enum rdt_status check_regions(struct snapshot *snapshot, struct rdt_error *err)
{
    const struct object *object = snapshot->object;
    enum rdt_status status = copy_check(&snapshot->copy, NULL, NULL, err); /* the daemon's own memory has all its pages */

    for (uint32_t i = 0; i < object->memory.n_regions && status == RDT_OK; i++)
        status = region_check(object->memory.uses[i].region, err);
    return status;
}

/* Continues when both the copy by the worker pool and the one on devices have ended. */
static void on_copy_ended(struct snapshot *snapshot)
{
    if (snapshot->on_host || snapshot->device)
        return;
    resume(snapshot, snapshot->failure.status, &snapshot->failure);
}

static void done_copy(struct work *work)
{
    struct snapshot *snapshot = (struct snapshot *)work;

    if (snapshot->failure.status == RDT_OK)
        (void)check_regions(snapshot, &snapshot->failure);
    if (snapshot->failure.status == RDT_OK && !copy_ended(&snapshot->copy) && snapshot->object->state == OBJECT_FILLING) {
        copy_submit(&snapshot->copy, snapshot->table, &snapshot->work);
        return;
    }
    snapshot->on_host = false;
    on_copy_ended(snapshot);
}

static void on_device_copied(void *arg, const struct rdt_error *err)
{
    struct snapshot *snapshot = arg;

    snapshot->device = NULL;
    if (err && snapshot->failure.status == RDT_OK)
        snapshot->failure = *err;
    on_copy_ended(snapshot);
}

/* Whether the object is still wanted, and the copy in host memory has not failed. */
static bool is_wanted(void *arg)
{
    const struct snapshot *snapshot = arg;

    return snapshot->object->state == OBJECT_FILLING && snapshot->failure.status == RDT_OK;
}

static enum rdt_status fill_places(struct snapshot *snapshot, struct rdt_error *err)
{
    struct object *object = snapshot->object;
    uint32_t n_to = snapshot->n_taken + snapshot->n_fresh;
    enum rdt_status status = RDT_OK;

    snapshot->from = calloc(object->memory.n_regions + 1u, sizeof *snapshot->from);
    snapshot->to = calloc(n_to + 1u, sizeof *snapshot->to);
    if (!snapshot->from || !snapshot->to ||
        !copy_init(&snapshot->copy, object->memory.layout, object->memory.n_regions, snapshot->layout, n_to))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the copy");
    for (uint32_t i = 0; i < object->memory.n_regions && status == RDT_OK; i++) {
        struct region *region = object->memory.uses[i].region;
        if (snapshot->handed_over[i])
            continue;
        snapshot->from[i].region = region;
        if (region_is_host(region))
            status = copy_from(&snapshot->copy, i, region, err);
    }
    for (uint32_t i = 0; i < snapshot->n_fresh && status == RDT_OK; i++) {
        snapshot->to[snapshot->n_taken + i].region = snapshot->fresh[i];
        if (region_is_host(snapshot->fresh[i]))
            status = copy_to(&snapshot->copy, snapshot->n_taken + i, snapshot->fresh[i], err);
    }
    return status;
}

static enum rdt_status copy(struct snapshot *snapshot, struct rdt_error *err)
{
    struct object *object = snapshot->object;
    uint64_t host_bytes = 0;
    enum rdt_status status;

    for (uint32_t i = 0; i < snapshot->n_fresh; i++) {
        snapshot->regions[snapshot->n_taken + i] = snapshot->fresh[i];
        region_clear_gaps(snapshot->fresh[i], snapshot->layout, snapshot->n_taken + i);
        host_bytes += region_is_host(snapshot->fresh[i]) ? snapshot->fresh[i]->bytes : 0;
    }
    if (snapshot->n_fresh == 0)
        return RDT_OK;
    status = fill_places(snapshot, err);
    if (status == RDT_OK)
        status = device_copy_start(object->memory.layout, snapshot->from, snapshot->layout, snapshot->to, NULL, false,
                                   on_device_copied, snapshot, &snapshot->device, err);
    if (status != RDT_OK)
        return status;
    if (snapshot->device)
        device_copy_set_wanted(snapshot->device, is_wanted);
    if (host_bytes <= COPY_SMALL_BYTES && !snapshot->copy.owner) {
        if (host_bytes > 0)
            run_copy(&snapshot->work);
        (void)check_regions(snapshot, &snapshot->failure);
        if (!snapshot->device && err && snapshot->failure.status != RDT_OK)
            *err = snapshot->failure;
        return snapshot->device ? RDT_AGAIN : snapshot->failure.status;
    }
    snapshot->on_host = true;
    snapshot->work = (struct work){.run = run_copy, .done = done_copy, .lane = object_producer_id(object)};
    copy_submit(&snapshot->copy, snapshot->table, &snapshot->work);
    return RDT_AGAIN;
}

/* ---- the last check for a cancel of the client ---- */

static void on_barrier(struct client_read_barrier *barrier)
{
    resume(container_of(barrier, struct snapshot, barrier), RDT_OK, NULL);
}

static enum rdt_status add_barrier(struct snapshot *snapshot)
{
    if (!snapshot->client)
        return RDT_OK;
    snapshot->barrier.run = on_barrier;
    return client_read_barrier_add(snapshot->client, &snapshot->barrier);
}

/* ---- the steps ---- */

/* AGAIN: a callback continues the snapshot. OK: the object can become live. Any other status: the object must fail. */
static enum rdt_status advance(struct snapshot *snapshot, enum rdt_status status, struct rdt_error *err)
{
    while (status == RDT_OK && snapshot->step != STEP_END) {
        if (snapshot->object->state != OBJECT_FILLING)
            return object_why_ended(snapshot->object, err);
        switch (snapshot->step) {
        case STEP_PROVE:
            snapshot->step = STEP_RESERVE;
            status = prove(snapshot);
            break;
        case STEP_RESERVE:
            snapshot->step = STEP_COPY;
            status = reserve(snapshot, err);
            break;
        case STEP_COPY:
            snapshot->step = STEP_BARRIER;
            status = copy(snapshot, err);
            break;
        default:
            snapshot->step = STEP_END;
            status = add_barrier(snapshot);
            break;
        }
    }
    if (status == RDT_OK && snapshot->object->state != OBJECT_FILLING)
        return object_why_ended(snapshot->object, err);
    return status;
}

/* Makes the object live or fails it. at_once: snapshot_start has not returned yet. */
static enum rdt_status finish(struct snapshot *snapshot, enum rdt_status status, bool at_once, struct rdt_error *err)
{
    struct object *object = snapshot->object;

    if (snapshot->copying)
        object_unpin(object);
    for (uint32_t i = 0; i < snapshot->n_fresh && status == RDT_OK; i++)
        region_written(snapshot->fresh[i]);
    if (status == RDT_OK)
        status = object_prepare_id(object, err);
    if (status == RDT_OK)
        status = object_fill(object, snapshot->layout, snapshot->regions, snapshot->n_taken + snapshot->n_fresh, err);
    if (status == RDT_OK) {
        snapshot->layout = NULL; /* object_fill took it */
        object_take_id(object);
    } else if (at_once && !snapshot->was_pending) {
        object_table_withdraw(object, err);
    } else {
        object_fail(object, err);
    }
    for (uint32_t i = 0; i < snapshot->n_fresh; i++)
        region_unref(snapshot->fresh[i]); /* the object has its own reference */
    return status;
}

static void resume(struct snapshot *snapshot, enum rdt_status status, struct rdt_error *failure)
{
    struct object *object = snapshot->object;
    struct rdt_error err = {0};

    if (failure)
        err = *failure;
    status = advance(snapshot, status, &err);
    if (status == RDT_AGAIN)
        return;
    status = finish(snapshot, status, false, &err);
    if (snapshot->on_done)
        snapshot->on_done(snapshot->arg, object, status == RDT_OK ? NULL : &err);
    snapshot_free(snapshot);
    object_drop(object);
}

enum rdt_status snapshot_start(struct regions *table, struct object *object, const bool *handed_over, struct client *client,
                               snapshot_done on_done, void *arg, struct snapshot **snapshot_p, struct rdt_error *err)
{
    struct snapshot *snapshot = calloc(1, sizeof *snapshot);
    bool was_pending = object->pending;
    enum rdt_status status;

    object->pending = false;
    if (!snapshot || !(snapshot->handed_over = calloc(object->memory.n_regions + 1u, sizeof(bool)))) {
        free(snapshot);
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the snapshot");
        if (was_pending)
            object_fail(object, err);
        else
            object_table_withdraw(object, err);
        return RDT_NO_MEMORY;
    }
    snapshot->was_pending = was_pending;
    for (uint32_t i = 0; handed_over && i < object->memory.n_regions; i++)
        snapshot->handed_over[i] = handed_over[i] || object->changes.loaned;
    snapshot->table = table;
    snapshot->object = object;
    snapshot->client = client;
    list_init(&snapshot->barrier.link);
    object_hold(object);
    status = advance(snapshot, RDT_OK, err);
    if (status == RDT_AGAIN) {
        snapshot->on_done = on_done;
        snapshot->arg = arg;
        *snapshot_p = snapshot;
        return status;
    }
    status = finish(snapshot, status, true, err);
    snapshot_free(snapshot);
    object_drop(object);
    return status;
}

void snapshot_abandon(struct snapshot *snapshot, enum object_end end)
{
    bool barrier = !list_empty(&snapshot->barrier.link);
    struct rdt_error why = {0};

    (void)rdt_error_set(&why, RDT_CANCELLED, "its put was cancelled");
    snapshot->on_done = NULL;
    snapshot->client = NULL;
    list_remove(&snapshot->barrier.link);
    if (end == OBJECT_END_OWNER_DIED)
        object_free(snapshot->object, false, end);
    else /* as if there had been no put: waiters for the id continue to wait */
        object_table_withdraw(snapshot->object, &why);
    if (barrier)
        resume(snapshot, RDT_OK, NULL);
}
