#include "daemon/snapshot.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>

#include "daemon/copy.h"
#include "daemon/log.h"

enum step { STEP_PROVE, STEP_RESERVE, STEP_COPY, STEP_HEAR, STEP_END };

struct snapshot {
    struct work work;
    struct regions *table;
    struct object *object; /* held; pinned while COPY */
    snapshot_done on_done; /* NULL: nobody wants to know */
    void *arg;
    enum step step;
    bool *given; /* [n_regions]; still true after PROVE: it is taken as it is */
    struct layout *layout;
    struct region *
        *regions; /* [n_taken + 1] of layout: those taken, borrowed from the object; then fresh, if anything is copied */
    uint32_t n_taken;
    struct region *fresh;
    struct copy copy;
    bool copying; /* copy is to be finished */
    struct client *impatient;
    struct client_hearing hearing; /* in its list while HEAR */
};

bool snapshot_may_take(const struct region *region)
{
    return region->origin == REGION_ALLOCATED && region->refs == 1 && region->pins == 0 && region->n_registrations == 0 &&
           list_empty(&region->uses) && region->kind->ops.seal && region->block.page_bytes == 0; /* huge pages may have holes */
}

static void snapshot_free(struct snapshot *snapshot)
{
    copy_fini(&snapshot->copy);
    free(snapshot->layout);
    free(snapshot->regions);
    free(snapshot->given);
    free(snapshot);
}

static void go_on(struct snapshot *snapshot, enum rdt_status status, struct rdt_error *err);

/* ---- proving that nobody can write what was given ---- */

static void run_prove(struct work *work)
{
    struct snapshot *snapshot = (struct snapshot *)work;

    for (uint32_t i = 0; i < snapshot->object->n_regions; i++) {
        struct region *region = snapshot->object->uses[i].region;
        if (snapshot->given[i]) /* refused: it is copied like any other */
            snapshot->given[i] = region->kind->ops.seal(region->kind->instance, &region->block, true, NULL) == RDT_OK;
    }
}

static void done_prove(struct work *work)
{
    struct snapshot *snapshot = (struct snapshot *)work;

    go_on(snapshot, RDT_OK, NULL);
}

/* AGAIN: the pool does it. */
static enum rdt_status prove(struct snapshot *snapshot)
{
    struct object *object = snapshot->object;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < object->n_regions; i++)
        bytes += snapshot->given[i] ? object->uses[i].region->bytes : 0;
    if (bytes == 0)
        return RDT_OK;
    if (bytes <= COPY_SMALL_BYTES) {
        run_prove(&snapshot->work);
        return RDT_OK;
    }
    snapshot->work = (struct work){.run = run_prove, .done = done_prove, .lane = object->producer_id};
    work_submit(snapshot->table->pool, &snapshot->work);
    return RDT_AGAIN;
}

/* ---- what will be where ---- */

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + LAYOUT_ALIGN_BYTES - 1) & ~(uint64_t)(LAYOUT_ALIGN_BYTES - 1);
}

/* Tensors in regions that were taken stay as they are; the others come packed into the last region. */
static enum rdt_status plan(struct snapshot *snapshot, uint64_t *bytes_p, struct rdt_error *err)
{
    struct object *object = snapshot->object;
    const struct layout *source = object->layout;
    uint32_t *place = calloc(object->n_regions + 1u, sizeof *place); /* 1 + index of a region that was taken */
    struct layout *layout = NULL;
    enum rdt_status status = RDT_OK;
    uint64_t ignored, at = 0;

    snapshot->regions = calloc(object->n_regions + 1u, sizeof(struct region *));
    if (!place || !snapshot->regions)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the snapshot");
    if (status == RDT_OK)
        status = layout_packed(source, &layout, &ignored, err);
    for (uint32_t i = 0; i < object->n_regions && status == RDT_OK; i++) {
        struct region *region = object->uses[i].region;
        if (!snapshot->given[i])
            continue;
        region->origin = REGION_SNAPSHOT;
        region->sealed = true;
        region->writable_outside = region->had_life = region->kept = false; /* whoever had it cannot write it any more */
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
            layout->region[i] = snapshot->n_taken;
            layout->offset[i] = align_up(at);
            at = layout->offset[i] + layout_bytes(source, i);
        }
    }
    free(place);
    snapshot->layout = layout;
    *bytes_p = at;
    return status;
}

/* ---- memory for it ---- */

static void on_reserved(void *arg, struct region *region, const struct rdt_error *err)
{
    struct snapshot *snapshot = arg;
    struct rdt_error why = {0};

    if (err)
        why = *err;
    snapshot->fresh = region;
    go_on(snapshot, why.status, &why);
}

static enum rdt_status reserve(struct snapshot *snapshot, struct rdt_error *err)
{
    struct object *object = snapshot->object;
    uint64_t bytes;
    enum rdt_status status = plan(snapshot, &bytes, err);

    if (status != RDT_OK || bytes == 0)
        return status;
    return region_alloc(snapshot->table, "host", "", bytes, REGION_SNAPSHOT, object->account, 0, &snapshot->fresh, on_reserved,
                        snapshot, err);
}

/* ---- the copy ---- */

static void run_copy(struct work *work)
{
    (void)copy_step(&((struct snapshot *)work)->copy);
}

/* What was read was all there. */
static enum rdt_status check_regions(const struct object *object, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (uint32_t i = 0; i < object->n_regions && status == RDT_OK; i++)
        status = region_check(object->uses[i].region, err);
    return status;
}

static void done_copy(struct work *work)
{
    struct snapshot *snapshot = (struct snapshot *)work;
    struct rdt_error err = {0};
    enum rdt_status status = check_regions(snapshot->object, &err);

    if (status == RDT_OK && !copy_ended(&snapshot->copy) && snapshot->object->state == OBJECT_FILLING)
        work_submit(snapshot->table->pool, &snapshot->work);
    else
        go_on(snapshot, status, &err);
}

static enum rdt_status copy(struct snapshot *snapshot, struct rdt_error *err)
{
    struct object *object = snapshot->object;
    enum rdt_status status = RDT_OK;

    if (!snapshot->fresh)
        return RDT_OK;
    snapshot->regions[snapshot->n_taken] = snapshot->fresh;
    if (!copy_init(&snapshot->copy, object->layout, object->n_regions, snapshot->layout, snapshot->n_taken + 1))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the copy");
    for (uint32_t i = 0; i < object->n_regions && status == RDT_OK; i++)
        if (!snapshot->given[i])
            status = copy_place(&snapshot->copy.from[i], object->uses[i].region, err);
    if (status == RDT_OK)
        status = copy_place(&snapshot->copy.to[snapshot->n_taken], snapshot->fresh, err);
    if (status != RDT_OK)
        return status;
    object_pin(object);
    snapshot->copying = true;
    if (snapshot->fresh->bytes <= COPY_SMALL_BYTES) {
        run_copy(&snapshot->work);
        return check_regions(object, err);
    }
    snapshot->work = (struct work){.run = run_copy, .done = done_copy, .lane = object->producer_id};
    work_submit(snapshot->table->pool, &snapshot->work);
    return RDT_AGAIN;
}

/* ---- was it given up meanwhile? ---- */

static void on_heard(struct client_hearing *hearing)
{
    go_on((struct snapshot *)((char *)hearing - offsetof(struct snapshot, hearing)), RDT_OK, NULL);
}

static enum rdt_status hear(struct snapshot *snapshot)
{
    if (!snapshot->impatient)
        return RDT_OK;
    snapshot->hearing.run = on_heard;
    return client_hear(snapshot->impatient, &snapshot->hearing);
}

/* ---- from step to step ---- */

/* AGAIN: it goes on later; else how it ended: the object is live, or it must fail. */
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
            snapshot->step = STEP_HEAR;
            status = copy(snapshot, err);
            break;
        default:
            snapshot->step = STEP_END;
            status = hear(snapshot);
            break;
        }
    }
    if (status == RDT_OK && snapshot->object->state != OBJECT_FILLING)
        return object_why_ended(snapshot->object, err);
    return status;
}

/* It has come to an end: live, or failed. at_once: the put has not been deferred yet. */
static enum rdt_status finish(struct snapshot *snapshot, enum rdt_status status, bool at_once, struct rdt_error *err)
{
    struct object *object = snapshot->object;

    if (snapshot->copying)
        object_unpin(object);
    if (status == RDT_OK)
        status = object_fill(object, snapshot->layout, snapshot->regions, snapshot->n_taken + (snapshot->fresh != NULL), err);
    if (status == RDT_OK)
        snapshot->layout = NULL; /* taken */
    else if (at_once)
        object_table_withdraw(object, err);
    else
        object_fail(object, err);
    region_unref(snapshot->fresh); /* the object has its own */
    return status;
}

static void go_on(struct snapshot *snapshot, enum rdt_status status, struct rdt_error *given_err)
{
    struct object *object = snapshot->object;
    struct rdt_error err = {0};

    if (given_err)
        err = *given_err;
    status = advance(snapshot, status, &err);
    if (status == RDT_AGAIN)
        return;
    status = finish(snapshot, status, false, &err);
    if (snapshot->on_done)
        snapshot->on_done(snapshot->arg, object, status == RDT_OK ? NULL : &err);
    snapshot_free(snapshot);
    object_drop(object);
}

enum rdt_status snapshot_start(struct regions *table, struct object *object, const bool *given, struct client *impatient,
                               snapshot_done on_done, void *arg, struct snapshot **snapshot_p, struct rdt_error *err)
{
    struct snapshot *snapshot = calloc(1, sizeof *snapshot);
    enum rdt_status status;

    if (!snapshot || !(snapshot->given = calloc(object->n_regions + 1u, sizeof(bool)))) {
        free(snapshot);
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the snapshot");
        object_table_withdraw(object, err);
        return RDT_NO_MEMORY;
    }
    for (uint32_t i = 0; given && i < object->n_regions; i++)
        snapshot->given[i] = given[i];
    snapshot->table = table;
    snapshot->object = object;
    snapshot->impatient = impatient;
    list_init(&snapshot->hearing.link);
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
    bool hearing = !list_empty(&snapshot->hearing.link);
    struct rdt_error why = {0};

    (void)rdt_error_set(&why, RDT_CANCELLED, "its put was given up");
    snapshot->on_done = NULL;
    snapshot->impatient = NULL;
    list_remove(&snapshot->hearing.link);
    if (end == OBJECT_END_OWNER_DIED)
        object_free(snapshot->object, false, end);
    else
        object_table_withdraw(snapshot->object, &why); /* it was never put: who waits for its id waits on */
    if (hearing)
        go_on(snapshot, RDT_OK, NULL);
}
