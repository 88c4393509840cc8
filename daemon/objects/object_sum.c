/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/object_sum.h"

#include <stdlib.h>

#include "daemon/objects/object_table.h"

#define STEP_BYTES (UINT64_C(8) << 20) /* in one turn of the pool */
#define STEPS_PER_TURN 8               /* after which the loop looks whether the object is still wanted */
#define LITTLE_BYTES (UINT64_C(256) << 10)
#define LITTLE_TENSORS 64u /* up to both, the loop computes it */

struct summing {
    struct work work;           /* first */
    struct object *object;      /* held and pinned; in table->summing */
    struct account *slow_owner; /* whose threads compute it, because its client can hold them up; NULL: any may */
    struct list waiters;
    struct layout *own_layout; /* NULL: layout is the object's */
    const uint8_t **bases;     /* [n_places] */
    struct tensor_sums sums;
    unsigned steps;
    bool more;
    uint64_t sum;
};

static void summing_free(struct summing *summing)
{
    tensor_sums_fini(&summing->sums);
    free(summing->own_layout);
    free(summing->bases);
    free(summing);
}

static uint64_t whole_sum(const struct summing *summing)
{
    const struct object *object = summing->object;

    return tensor_sum_object(summing->sums.layout, summing->sums.sums, object_metadata(object),
                             object->tail.metadata_bytes - object->tail.box_bytes);
}

static void run_step(struct work *work)
{
    struct summing *summing = (struct summing *)work;

    summing->more = tensor_sums_step(&summing->sums, STEP_BYTES);
    if (!summing->slow_owner)
        work->again = summing->more && ++summing->steps % STEPS_PER_TURN != 0;
    if (!summing->more)
        summing->sum = whole_sum(summing);
}

static enum rdt_status check_regions(const struct object *object, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (uint32_t i = 0; i < object->memory.n_regions && status == RDT_OK; i++)
        status = region_check(object->memory.uses[i].region, err);
    return status;
}

static void submit(struct summing *summing)
{
    struct regions *regions = summing->object->table->slabs->regions;

    if (summing->slow_owner)
        owner_work_submit(regions->owner_work, &summing->work, summing->slow_owner, true);
    else
        work_submit(regions->pool, &summing->work);
}

static void done_step(struct work *work)
{
    struct summing *summing = (struct summing *)work;
    struct object *object = summing->object;
    struct rdt_error err = {0};
    bool wanted = object->state == OBJECT_LIVE || !list_empty(&summing->waiters);

    if (check_regions(object, &err) == RDT_OK && summing->more && wanted) {
        submit(summing);
        return;
    }
    if (err.status == RDT_OK && !summing->more)
        object->sum = summing->sum;
    (void)map_remove_u64(&object->table->summing, object->generation);
    list_drain (struct object_sum_waiter, waiter, &summing->waiters, link) {
        list_remove(&waiter->link);
        waiter->on_sum(waiter, err.status == RDT_OK ? summing->sum : 0, &err);
    }
    summing_free(summing);
    object_unpin(object);
    object_drop(object);
}

static enum rdt_status check(const struct object *object, struct rdt_error *err)
{
    if (object->memory.n_regions > 0 && !object_is_constant(object) && !object->changes.loaned)
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "object \"%.*s\" may change and has no checksum: put it as a snapshot, or with RDT_PUT_SUM "
                             "(in Python checksum=True)",
                             (int)object->tail.id_bytes, (const char *)object_id(object));
    for (uint32_t i = 0; i < object->memory.n_regions; i++) {
        const struct region *region = object->memory.uses[i].region;
        if (!region_is_host(region))
            return rdt_error_set(err, RDT_UNSUPPORTED, "object \"%.*s\" lies on a device, and has no checksum",
                                 (int)object->tail.id_bytes, (const char *)object_id(object));
        if (region->origin == REGION_IMPORTED && !region_is_sealed(region))
            return rdt_error_set(err, RDT_UNSUPPORTED,
                                 "object \"%.*s\" lies in memory of its client and has no checksum: put it with RDT_PUT_SUM "
                                 "(in Python checksum=True)",
                                 (int)object->tail.id_bytes, (const char *)object_id(object));
    }
    return RDT_OK;
}

static enum rdt_status prepare(struct summing *summing, struct object *object, struct rdt_error *err)
{
    const struct layout *layout = object->memory.layout;
    uint32_t n = object_n_places(object);

    summing->object = object;
    list_init(&summing->waiters);
    if (!layout && object_layout(object, NULL, &summing->own_layout, err) != RDT_OK)
        return err->status;
    layout = layout ? layout : summing->own_layout;
    summing->bases = calloc(n + 1u, sizeof *summing->bases);
    if (!summing->bases || !tensor_sums_init(&summing->sums, layout, summing->bases))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the checksum of an object");
    for (uint32_t i = 0; i < n; i++)
        if (!(summing->bases[i] = object_base(object, i, err)))
            return err->status;
    summing->slow_owner = object_reads_owner(object);
    return RDT_OK;
}

enum rdt_status object_sum(struct object *object, struct object_sum_waiter *waiter, struct rdt_error *err)
{
    struct object_table *table = object->table;
    struct summing *summing;
    struct rdt_error why = {0};

    if (object->sum)
        return RDT_OK;
    summing = map_get_u64(&table->summing, object->generation);
    if (summing) {
        list_append(&summing->waiters, &waiter->link);
        return RDT_AGAIN;
    }
    if (check(object, &why) != RDT_OK)
        return rdt_error_set(err, why.status, "%s", why.msg);
    summing = calloc(1, sizeof *summing);
    if (!summing)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the checksum of an object");
    if (prepare(summing, object, &why) != RDT_OK) {
        summing_free(summing);
        return rdt_error_set(err, why.status, "%s", why.msg);
    }
    if (!summing->slow_owner && object->bytes <= LITTLE_BYTES && summing->sums.layout->count <= LITTLE_TENSORS) {
        (void)tensor_sums_step(&summing->sums, UINT64_MAX);
        object->sum = whole_sum(summing);
        summing_free(summing);
        return RDT_OK;
    }
    if (!map_put_u64(&table->summing, object->generation, summing)) {
        summing_free(summing);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the checksum of an object");
    }
    list_append(&summing->waiters, &waiter->link);
    object_hold(object);
    object_pin(object);
    summing->work = (struct work){.run = run_step, .done = done_step, .lane = object_producer_id(object)};
    submit(summing);
    return RDT_AGAIN;
}
