/* Holds, pins and the end of an object. */
#include "daemon/object.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/client.h"
#include "daemon/log.h"
#include "daemon/object_table.h"

bool object_visible_to(const struct object *object, const struct owner *requester)
{
    if (owner_equal(&object->owner, requester))
        return true;
    switch (object->visibility) {
    case RDT__PB__VISIBILITY__VISIBILITY_ALL:
        return true;
    case RDT__PB__VISIBILITY__VISIBILITY_TENANT:
        return strcmp(object->owner.tenant, requester->tenant) == 0;
    default:
        return false;
    }
}

static void object_destroy(struct object *object)
{
    object_table_forget(object->table, object);
    sm_move(&object->sm, OBJECT_GONE);
    log_debug("obj %016llx is gone", (unsigned long long)object->generation);
    for (uint32_t i = 0; i < object->n_regions; i++) {
        struct region *region = object->uses[i].region;
        region_use_remove(&object->uses[i]);
        region_unref(region);
    }
    while (!list_empty(&object->freed_waiters)) {
        struct object_waiter *waiter = list_entry(list_first(&object->freed_waiters), struct object_waiter, link);
        object_waiter_remove(waiter);
        waiter->on_event(waiter, NULL);
    }
    assert(list_empty(&object->waiters) && list_empty(&object->holders));
    free(object->uses);
    free(object->layout);
    free(object->metadata);
    free(object);
}

static void settle(struct object *object)
{
    if (object->holds > 0 || object->sm.state == OBJECT_AWAITED)
        return;
    if (object->pins == 0) {
        object_destroy(object);
    } else if (object->sm.state == OBJECT_LIVE) {
        object_table_unname(object->table, object);
        sm_move(&object->sm, OBJECT_DRAINING);
    }
}

void object_hold(struct object *object)
{
    assert(object->sm.state == OBJECT_LIVE || object->sm.state == OBJECT_DRAINING);
    object->holds++;
}

void object_drop(struct object *object)
{
    assert(object->holds > 0);
    object->holds--;
    settle(object);
}

void object_pin(struct object *object)
{
    object->pins++;
    for (uint32_t i = 0; i < object->n_regions; i++)
        region_pin(object->uses[i].region);
}

void object_unpin(struct object *object)
{
    assert(object->pins > 0);
    object->pins--;
    for (uint32_t i = 0; i < object->n_regions; i++)
        region_unpin(object->uses[i].region);
    settle(object);
}

void object_free(struct object *object, bool force, enum object_end end)
{
    if (force && !object->forced) {
        object->forced = true;
        if (object->sm.state == OBJECT_LIVE) {
            object_table_unname(object->table, object);
            sm_move(&object->sm, OBJECT_DRAINING);
        }
    }
    if (object->producer) {
        object->end = end;
        object->producer->n_objects--;
        object->producer = NULL;
        list_remove(&object->by_producer);
        object_drop(object);
    }
}

const char *object_state_name(const struct object *object)
{
    return sm_name(&object->sm);
}

struct span {
    uint64_t lo, hi;
};

static int by_lo(const void *a, const void *b)
{
    const struct span *x = a, *y = b;

    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Do the object's tensors cover every byte of the region? Only contiguous tensors count: others may have holes. */
static bool covers(const struct object *object, uint32_t index)
{
    const struct layout *layout = object->layout;
    struct span *spans = malloc((layout->count + 1u) * sizeof *spans);
    uint32_t n = 0;
    uint64_t end = 0;

    if (!spans)
        return false;
    for (uint32_t i = 0; i < layout->count; i++) {
        uint64_t lo, hi;
        if (layout->region[i] != index || !layout_is_contiguous(layout, i))
            continue;
        if (layout_extent(layout, i, &lo, &hi, NULL) == RDT_OK && lo < hi)
            spans[n++] = (struct span){lo, hi};
    }
    qsort(spans, n, sizeof *spans, by_lo);
    for (uint32_t i = 0; i < n && spans[i].lo <= end; i++)
        if (spans[i].hi > end)
            end = spans[i].hi;
    free(spans);
    return end >= object->uses[index].region->bytes;
}

bool object_may_show(const struct object *object, const struct owner *requester, const char **why_not_p)
{
    for (uint32_t i = 0; i < object->n_regions; i++) {
        const struct region *region = object->uses[i].region;
        if (owner_equal(&region->owner, requester))
            continue;
        if (region->origin == REGION_IMPORTED) {
            *why_not_p = "it lies in imported memory, which knows no read-only right, and belongs to another owner";
            return false;
        }
        if (!covers(object, i)) {
            *why_not_p = "its region holds other bytes of another owner, and sharing would show the whole region";
            return false;
        }
    }
    return true;
}
