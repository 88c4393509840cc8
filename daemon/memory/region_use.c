/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/region_use.h"

#include <stdlib.h>

enum rdt_status region_spans(const struct layout *layout, struct region_span *spans, uint32_t n, struct rdt_error *err)
{
    for (uint32_t i = 0; i < n; i++)
        spans[i] = (struct region_span){.lo = UINT64_MAX};
    for (uint32_t i = 0; i < layout->count; i++) {
        struct region_span *span;
        uint64_t lo, hi;
        enum rdt_status status = layout_extent(layout, i, &lo, &hi, err);
        if (status != RDT_OK)
            return status;
        if (lo == hi)
            continue; /* a tensor without elements needs no memory */
        if (layout->region[i] >= n)
            return rdt_error_set(err, RDT_INVALID, "tensor %u names region %u of %u", i, layout->region[i], n);
        span = &spans[layout->region[i]];
        region_span_add(span, i, lo, hi);
    }
    return RDT_OK;
}

void region_uses_add(struct region_use *uses, uint32_t n, const struct layout *layout, const struct region_span *spans)
{
    uint64_t lo, hi;

    for (uint32_t i = 0; i < n; i++) {
        uses[i].layout = layout;
        uses[i].index = i;
        uses[i].lo = spans ? spans[i].lo : uses[i].region->bytes;
        uses[i].hi = spans ? spans[i].hi : 0;
        uses[i].covered = false;
        list_init(&uses[i].waiters);
        list_append(&uses[i].region->uses, &uses[i].link);
    }
    for (uint32_t i = 0; i < layout->count && !spans; i++) {
        struct region_use *use = layout->region[i] < n ? &uses[layout->region[i]] : NULL;
        if (!use || layout_extent(layout, i, &lo, &hi, NULL) != RDT_OK || lo == hi)
            continue;
        use->lo = lo < use->lo ? lo : use->lo;
        use->hi = hi > use->hi ? hi : use->hi;
    }
}

static bool overlaps(const struct region_use *use, uint64_t lo, uint64_t hi)
{
    uint64_t tensor_lo, tensor_hi;

    if (use->lo >= hi || lo >= use->hi)
        return false;
    for (uint32_t i = 0; i < use->layout->count; i++)
        if (use->layout->region[i] == use->index && layout_extent(use->layout, i, &tensor_lo, &tensor_hi, NULL) == RDT_OK &&
            tensor_lo < hi && lo < tensor_hi && tensor_lo < tensor_hi)
            return true;
    return false;
}

/* Lists the waiter at the first use from `from` on that overlaps its range. Returns false if there is none. */
static bool wait_at(struct region *region, struct list *from, struct region_waiter *waiter)
{
    for (struct list *node = from; node != &region->uses; node = node->next) {
        struct region_use *use = container_of(node, struct region_use, link);
        if (overlaps(use, waiter->lo, waiter->hi)) {
            list_append(&use->waiters, &waiter->link);
            waiter->use = use;
            return true;
        }
    }
    waiter->use = NULL;
    return false;
}

bool region_wait_idle(struct region *region, struct region_waiter *waiter)
{
    return wait_at(region, region->uses.next, waiter);
}

void region_use_remove(struct region_use *use)
{
    struct region *region = use->region;
    struct list *next = use->link.next, idle;

    if (!region)
        return;
    list_remove(&use->link);
    use->region = NULL;
    if (list_empty(&use->waiters))
        return;
    list_init(&idle);
    list_each_safe (struct region_waiter, waiter, &use->waiters, link) {
        list_remove(&waiter->link);
        if (!wait_at(region, next, waiter))
            list_append(&idle, &waiter->link);
    }
    region_ref(region); /* a waiter may hold the last reference */
    list_drain (struct region_waiter, waiter, &idle, link) {
        list_remove(&waiter->link);
        waiter->on_idle(waiter);
    }
    region_unref(region);
}

/* ---- covering ---- */

struct span {
    uint64_t lo, hi;
    uint32_t index;
};

static int by_place(const void *a, const void *b)
{
    const struct span *x = a, *y = b;

    if (x->index != y->index)
        return x->index < y->index ? -1 : 1;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

bool region_uses_cover(struct region_use *uses, uint32_t n, const struct layout *layout)
{
    struct span *spans = malloc((layout->count + 1u) * sizeof *spans);
    uint32_t count = 0;
    bool sorted = true;

    if (!spans)
        return false;
    for (uint32_t i = 0; i < layout->count; i++) {
        struct span *span = &spans[count];
        if (layout->region[i] >= n || !layout_is_contiguous(layout, i) ||
            layout_extent(layout, i, &span->lo, &span->hi, NULL) != RDT_OK || span->lo == span->hi)
            continue;
        span->index = layout->region[i];
        sorted = sorted && (count == 0 || by_place(span - 1, span) <= 0);
        count++;
    }
    if (!sorted)
        qsort(spans, count, sizeof *spans, by_place);
    for (uint32_t i = 0; i < count;) {
        uint32_t index = spans[i].index;
        uint64_t end = 0;
        for (; i < count && spans[i].index == index && spans[i].lo <= end; i++)
            end = spans[i].hi > end ? spans[i].hi : end;
        uses[index].covered = end >= uses[index].region->bytes;
        while (i < count && spans[i].index == index)
            i++;
    }
    free(spans);
    return true;
}
