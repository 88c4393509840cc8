/* Fetches of this node's own objects: the very memory, a read-only share, or a copy on the pool. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/log.h"
#include "daemon/transfer_impl.h"

#define STEP_BYTES (4ull << 20)   /* then others' work has its turn, and the copy sees whether anybody still wants it */
#define SMALL_COPY (256ull << 10) /* copied on the loop: quicker than the way to the pool */

struct local_copy {
    struct work work;
    struct transfer *transfer;
    const struct layout *source, *target;
    uint8_t **source_bases, **target_bases;
    uint32_t tensor;
    uint64_t from;   /* next byte of that tensor */
    uint64_t copied; /* in this step */
};

static void copy_free(struct local_copy *copy)
{
    free(copy->source_bases);
    free(copy->target_bases);
    free(copy);
}

static void copy_piece(const struct local_copy *copy, uint32_t i, uint64_t bytes)
{
    const struct memory_kind *kind = copy->transfer->object->uses[copy->source->region[i]].region->kind;
    const uint8_t *base = copy->source_bases[copy->source->region[i]];
    uint8_t *to = copy->target_bases[copy->target->region[i]] + copy->target->offset[i] + copy->from;

    if (layout_is_contiguous(copy->source, i)) /* the memory's own way is the fastest */
        (void)kind->ops.copy(kind->instance, to, base + copy->source->offset[i] + copy->from, bytes, NULL);
    else
        layout_gather(copy->source, i, base, copy->from, bytes, to);
}

/* At most one step; on a pool thread, or on the loop if it is little. */
static void run_copy(struct work *work)
{
    struct local_copy *copy = (struct local_copy *)work;

    copy->copied = 0;
    while (copy->tensor < copy->source->count && copy->copied < STEP_BYTES) {
        uint32_t i = copy->tensor;
        uint64_t left = layout_bytes(copy->source, i) - copy->from;
        uint64_t now = left < STEP_BYTES - copy->copied ? left : STEP_BYTES - copy->copied;
        if (now > 0)
            copy_piece(copy, i, now);
        copy->copied += now;
        copy->from += now;
        if (now == left) {
            copy->tensor++;
            copy->from = 0;
        }
    }
}

/* What a copy reads and writes was all there. */
static enum rdt_status check_regions(const struct transfer *transfer, struct rdt_error *err)
{
    const struct object *object = transfer->object;
    enum rdt_status status = target_check(transfer->target, err);

    for (uint32_t i = 0; status == RDT_OK && i < object->n_regions; i++)
        status = region_check(object->uses[i].region, err);
    return status;
}

static void done_copy(struct work *work)
{
    struct local_copy *copy = (struct local_copy *)work;
    struct transfer *transfer = copy->transfer;
    struct rdt_error err = {0};

    transfer->record.bytes_done += copy->copied;
    if (transfer->sm.state == TRANSFER_MOVE && check_regions(transfer, &err) != RDT_OK) {
        transfer->n_ops--; /* the failure may end it */
        copy_free(copy);
        transfer_fail_err(transfer, &err);
        return;
    }
    if (transfer->sm.state == TRANSFER_MOVE && copy->tensor < copy->source->count) {
        work_submit(transfer->transfers->pool, &copy->work);
        return;
    }
    transfer->n_ops--;
    copy_free(copy);
    if (transfer->sm.state == TRANSFER_MOVE) {
        transfer->transfers->bytes_local += transfer->record.bytes_done;
        transfer_deliver_received(transfer);
    }
    transfer_end(transfer);
}

static uint8_t **map_object(struct object *object, struct rdt_error *err)
{
    uint8_t **bases = calloc(object->n_regions + 1u, sizeof *bases);

    if (!bases) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the copy");
        return NULL;
    }
    for (uint32_t i = 0; i < object->n_regions; i++)
        if (!(bases[i] = region_addr(object->uses[i].region, err))) {
            free(bases);
            return NULL;
        }
    return bases;
}

static uint8_t **map_destination(struct transfer *transfer, struct rdt_error *err)
{
    struct target *target = transfer->target;
    uint8_t **bases = calloc((target ? target->n : 1) + 1u, sizeof *bases);

    if (!bases) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the copy");
        return NULL;
    }
    for (uint32_t i = 0; i < (target ? target->n : 1); i++) {
        struct region *region = target ? target->uses[i].region : transfer->received;
        if (region && !(bases[i] = region_addr(region, err))) {
            free(bases);
            return NULL;
        }
    }
    return bases;
}

static void start_copy(struct transfer *transfer)
{
    struct local_copy *copy = calloc(1, sizeof *copy);
    struct rdt_error err = {0};

    if (!copy) {
        transfer_fail(transfer, RDT_NO_MEMORY, "no memory for the copy");
        return;
    }
    copy->work = (struct work){.run = run_copy, .done = done_copy, .lane = transfer->record.client};
    copy->transfer = transfer;
    copy->source = transfer->source;
    copy->target = transfer->target ? transfer->target->layout : transfer->packed;
    copy->source_bases = map_object(transfer->object, &err);
    copy->target_bases = copy->source_bases ? map_destination(transfer, &err) : NULL;
    if (!copy->target_bases) {
        copy_free(copy);
        transfer_fail_err(transfer, &err);
        return;
    }
    transfer_set_state(transfer, TRANSFER_MOVE);
    transfer->n_ops++;
    if (transfer->stream_bytes <= SMALL_COPY) {
        run_copy(&copy->work);
        done_copy(&copy->work);
    } else {
        work_submit(transfer->transfers->pool, &copy->work);
    }
}

static void on_reserved(void *arg, struct region *region, const struct rdt_error *err)
{
    struct transfer *transfer = arg;

    transfer->n_ops--;
    transfer->received = region;
    if (transfer->sm.state == TRANSFER_ABORT) {
        transfer_end(transfer);
        return;
    }
    if (err) {
        transfer_fail_err(transfer, err);
        return;
    }
    start_copy(transfer);
}

static enum rdt_status copy_metadata(struct transfer *transfer, const struct object *object, struct rdt_error *err)
{
    if (object->metadata_bytes == 0)
        return RDT_OK;
    transfer->metadata = malloc(object->metadata_bytes);
    if (!transfer->metadata)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the metadata");
    memcpy(transfer->metadata, object_metadata(object), object->metadata_bytes);
    transfer->metadata_bytes = object->metadata_bytes;
    return RDT_OK;
}

/* The object is pinned; memory for the copy comes next. */
static void reserve(struct transfer *transfer, struct object *object)
{
    struct rdt_error err = {0};
    enum rdt_status status;

    status = copy_metadata(transfer, object, &err);
    if (status == RDT_OK)
        status = layout_packed(transfer->source, &transfer->packed, &transfer->stream_bytes, &err);
    if (status == RDT_OK && transfer->target)
        status = layout_same_shape(transfer->source, transfer->target->layout, &err);
    if (status != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    transfer->record.bytes = transfer->stream_bytes;
    object_hold(object);
    object_pin(object);
    transfer->object = object;
    transfer_set_state(transfer, TRANSFER_RESERVE);
    if (transfer->target || transfer->stream_bytes == 0) {
        start_copy(transfer);
        return;
    }
    status = transfer_reserve(transfer, on_reserved, &err);
    if (status == RDT_AGAIN)
        transfer->n_ops++;
    else if (status == RDT_OK)
        start_copy(transfer);
    else
        transfer_fail_err(transfer, &err);
}

static void serve(struct transfer *transfer, struct object *object)
{
    struct path_query query = {.same_node = true,
                               .mode = transfer->mode,
                               .transport = transfer->wish_transport,
                               .least = transfer->wish_least,
                               .preferred = "",
                               .has_target = transfer->target != NULL};
    struct rdt_error err = {0};
    const char *why_not = NULL;
    const struct path_candidate *chosen;

    transfer->record.began_ns = uv_hrtime();
    object_ref(object, &transfer->ref);
    transfer->record.ref = transfer->ref;
    if (layout_slice(object->layout, transfer->slice, &transfer->source, &err) != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    if (transfer->meta_only) {
        if (copy_metadata(transfer, object, &err) != RDT_OK) {
            transfer_fail_err(transfer, &err);
            return;
        }
        (void)snprintf(transfer->record.path, sizeof transfer->record.path, "metadata");
        transfer_deliver_meta(transfer);
        transfer_end(transfer);
        return;
    }
    if (!object_may_show(object, &transfer->account->owner, &why_not))
        query.show_why_not = why_not;
    query.too_many_regions = object->n_regions > RDT_MAX_FRAME_FDS;
    query.same_client = !query.too_many_regions && object->n_regions > 0;
    for (uint32_t i = 0; i < object->n_regions; i++)
        query.same_client = query.same_client && object->uses[i].region->client == transfer->client->id &&
                            object->uses[i].region->origin != REGION_RECEIVED;
    if (path_choose(&query, &transfer->record.decision, &err) != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    chosen = &transfer->record.decision.candidates[transfer->record.decision.chosen];
    memcpy(transfer->record.path, chosen->name, sizeof chosen->name);
    if (chosen->kind == PATH_COPY) {
        reserve(transfer, object);
        return;
    }
    transfer->record.bytes = layout_total_bytes(transfer->source);
    transfer_deliver_object(transfer, object, transfer->source, chosen->kind == PATH_SAME);
    transfer->record.bytes_done = transfer->record.bytes; /* all there, none moved */
    transfer_end(transfer);
}

static void on_wake(struct client_wake *wake)
{
    struct transfer *transfer = (struct transfer *)((char *)wake - offsetof(struct transfer, wake));
    struct object *object = transfer->woken;

    transfer->woken = NULL;
    if (object_visible_to(object, &transfer->account->owner))
        serve(transfer, object);
    else
        transfer_fail(transfer, RDT_DENIED, "object \"%s\" was put, but is not visible to uid %u", transfer->ref.id,
                      transfer->account->owner.uid);
    object_drop(object);
}

static void on_put(struct object_waiter *waiter, struct object *object)
{
    struct transfer *transfer = (struct transfer *)((char *)waiter - offsetof(struct transfer, waiter));

    transfer_set_state(transfer, TRANSFER_NEW); /* as if it had only now been asked for */
    object_hold(object);
    transfer->woken = object;
    transfer->wake.run = on_wake;
    client_wake(transfer->client, &transfer->wake);
}

static void on_published(struct name_waiter *waiter, struct object *object, uint64_t version, const struct rdt_error *err)
{
    struct transfer *transfer = (struct transfer *)((char *)waiter - offsetof(struct transfer, named));

    transfer_set_state(transfer, TRANSFER_NEW);
    transfer->version = version;
    if (object)
        serve(transfer, object);
    else
        transfer_fail_err(transfer, err);
}

static void start_named(struct transfer *transfer)
{
    struct names *names = transfer->transfers->names;
    struct rdt_error err = {0};
    struct object *object;
    enum rdt_status status = names_find(names, &transfer->ref, &transfer->account->owner, &object, &transfer->version, &err);

    if (status == RDT_AGAIN) {
        transfer->named.on_event = on_published;
        status = names_wait(names, &transfer->ref, &transfer->account->owner, &transfer->named, &err);
        if (status == RDT_OK) {
            transfer_set_state(transfer, TRANSFER_PARKED);
            return;
        }
    }
    if (status == RDT_OK)
        serve(transfer, object);
    else
        transfer_fail_err(transfer, &err);
}

void transfer_local_start(struct transfer *transfer)
{
    struct object_table *objects = transfer->transfers->objects;
    struct rdt_error err = {0};
    struct object *object;
    enum rdt_status status;

    if (transfer->ref.is_name) {
        start_named(transfer);
        return;
    }
    status = object_table_find(objects, &transfer->ref, &transfer->account->owner, &object, &err);
    if (status == RDT_AGAIN) {
        transfer->waiter.on_event = on_put;
        status = object_table_wait(objects, &transfer->ref, &transfer->account->owner, &transfer->waiter, &err);
        if (status == RDT_OK) {
            transfer_set_state(transfer, TRANSFER_PARKED);
            return;
        }
    }
    if (status != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    serve(transfer, object);
}

void transfer_local_abort(struct transfer *transfer)
{
    transfer_set_state(transfer, TRANSFER_ABORT);
    if (transfer->n_ops == 0)
        transfer_end(transfer);
}
