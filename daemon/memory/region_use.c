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
        uses[i].wait = NULL;
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

void region_use_add(struct region_use *use, uint64_t lo, uint64_t hi)
{
    *use = (struct region_use){.region = use->region, .lo = lo, .hi = hi};
    list_append(&use->region->uses, &use->link);
}

/* ---- waiting ---- */

#define STEPS_PER_LOOK 128u /* at the clock */
#define USES_FOR_PEOPLE 256u

/* Compares uses and their tensors with a range, from a place on, until about until_ns. */
struct search {
    uint64_t lo, hi, until_ns;
    uint32_t tensor; /* of the present use: the next one to compare */
    unsigned steps;
};

static bool is_over(struct search *search)
{
    return ++search->steps % STEPS_PER_LOOK == 0 && search->until_ns != UINT64_MAX && uv_hrtime() >= search->until_ns;
}

/* OK: the use overlaps the range. NOT_FOUND: it does not. AGAIN: the time is over; search->tensor says how far it came. */
static enum rdt_status compare(const struct region_use *use, struct search *search)
{
    uint64_t lo, hi;

    if (use->lo >= search->hi || search->lo >= use->hi)
        return RDT_NOT_FOUND;
    if (!use->layout)
        return RDT_OK;
    for (; search->tensor < use->layout->count; search->tensor++) {
        uint32_t i = search->tensor;
        if (use->layout->region[i] == use->index && layout_extent(use->layout, i, &lo, &hi, NULL) == RDT_OK &&
            lo < search->hi && search->lo < hi && lo < hi)
            return RDT_OK;
        if (is_over(search))
            return RDT_AGAIN;
    }
    return RDT_NOT_FOUND;
}

/* Goes to the first use from *use_p on that overlaps the range. NOT_FOUND: there is none. AGAIN: *use_p is where to go on. */
static enum rdt_status look(const struct region *region, struct region_use **use_p, struct search *search)
{
    enum rdt_status status = compare(*use_p, search);

    while (status == RDT_NOT_FOUND) {
        struct list *next = (*use_p)->link.next;
        search->tensor = 0;
        if (next == &region->uses)
            return RDT_NOT_FOUND;
        *use_p = container_of(next, struct region_use, link);
        status = is_over(search) ? RDT_AGAIN : compare(*use_p, search);
    }
    return status;
}

static struct region_wait *wait_at(struct region_use *use)
{
    if (!use->wait)
        use->wait = calloc(1, sizeof *use->wait);
    if (use->wait && !use->wait->use) {
        use->wait->use = use;
        list_init(&use->wait->link);
        list_init(&use->wait->settled);
        list_init(&use->wait->searching);
    }
    return use->wait;
}

/* Lists the waiter at the use where its search has come to. false: no memory. */
static bool place(struct region_use *use, struct region_waiter *waiter, const struct search *search, enum rdt_status found)
{
    struct region_wait *wait = wait_at(use);
    struct regions *regions = use->region->regions;

    if (!wait)
        return false;
    list_remove(&waiter->link);
    if (found == RDT_OK) {
        list_append(&wait->settled, &waiter->link);
        return true;
    }
    list_prepend(&wait->searching, &waiter->link);
    wait->lo = waiter->lo;
    wait->hi = waiter->hi;
    wait->tensor = search->tensor;
    if (list_empty(&wait->link))
        list_append(&regions->searches.waits, &wait->link);
    return true;
}

static void wait_free(struct region_wait *wait)
{
    if (wait->use)
        wait->use->wait = NULL;
    list_remove(&wait->link);
    free(wait);
}

/* The first searching waiter looks further, or is told that its range is idle. Returns false if the time is over. */
static bool search_one(struct region_wait *wait, uint64_t until_ns)
{
    struct region_waiter *waiter = container_of(list_first(&wait->searching), struct region_waiter, link);
    struct search search = {.lo = waiter->lo, .hi = waiter->hi, .until_ns = until_ns};
    struct region_use *use = wait->use;
    enum rdt_status found = RDT_NOT_FOUND;

    if (wait->lo == waiter->lo && wait->hi == waiter->hi)
        search.tensor = wait->tensor;
    if (use)
        found = look(use->region, &use, &search);
    if (found != RDT_NOT_FOUND)
        return place(use, waiter, &search, found) && found == RDT_OK; /* without memory it looks again in another turn */
    list_remove(&waiter->link);
    waiter->on_idle(waiter);
    return true;
}

static bool search_some(struct slice *slice, uint64_t until_ns)
{
    struct regions *regions = container_of(slice, struct regions, searches.slice);

    while (!list_empty(&regions->searches.waits)) {
        struct region_wait *wait = container_of(list_first(&regions->searches.waits), struct region_wait, link);
        if (!list_empty(&wait->searching)) {
            if (search_one(wait, until_ns) && uv_hrtime() < until_ns)
                continue;
            list_remove(&wait->link); /* others may belong to other clients: they come first in the next turn */
            list_append(&regions->searches.waits, &wait->link);
            return false;
        }
        list_remove(&wait->link);
        if (list_empty(&wait->settled))
            wait_free(wait);
    }
    return true;
}

static struct slices *slices_of(const struct regions *regions)
{
    return regions->deadlines ? &regions->deadlines->slices : NULL;
}

enum rdt_status region_wait_idle(struct region *region, struct region_waiter *waiter, struct rdt_error *err)
{
    struct regions *regions = region->regions;
    struct slices *slices = slices_of(regions);
    struct search search = {.lo = waiter->lo, .hi = waiter->hi, .until_ns = slices ? uv_hrtime() + SLICES_TURN_NS : UINT64_MAX};
    struct region_use *use;
    enum rdt_status found;

    list_init(&waiter->link);
    if (list_empty(&region->uses))
        return RDT_OK;
    use = container_of(list_first(&region->uses), struct region_use, link);
    found = look(region, &use, &search);
    if (found == RDT_NOT_FOUND)
        return RDT_OK;
    if (!place(use, waiter, &search, found))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for a range of region %llu",
                             (unsigned long long)region->id);
    regions->searches.slice.run = search_some;
    if (found == RDT_AGAIN)
        slice_start(slices, &regions->searches.slice);
    return RDT_AGAIN;
}

const struct region_use *region_first_use(const struct region *region, uint64_t lo, uint64_t hi)
{
    unsigned n = 0;

    list_each (const struct region_use, use, &region->uses, link) {
        struct search search = {.lo = lo, .hi = hi, .until_ns = 0}; /* gives up at the first look at the clock */
        if (n++ == USES_FOR_PEOPLE)
            return NULL;
        if (compare(use, &search) == RDT_OK)
            return use;
    }
    return NULL;
}

void region_use_remove(struct region_use *use)
{
    struct region *region = use->region;
    struct region_wait *wait = use->wait, *after;
    struct regions *regions;
    struct list *next = use->link.next;

    if (!region)
        return;
    list_remove(&use->link);
    use->region = NULL;
    use->wait = NULL;
    if (!wait)
        return;
    regions = region->regions;
    list_splice(&wait->searching, &wait->settled);
    wait->use = next == &region->uses ? NULL : container_of(next, struct region_use, link);
    wait->tensor = 0;
    after = wait->use ? wait->use->wait : NULL;
    if (after) { /* they wait together from now on */
        after->tensor = 0;
        list_splice(&after->searching, &wait->searching);
        wait->use = NULL;
        wait_free(wait);
        wait = after;
    } else if (wait->use) {
        wait->use->wait = wait;
    }
    if (list_empty(&wait->link))
        list_append(&regions->searches.waits, &wait->link);
    region_ref(region); /* a waiter may hold the last reference */
    regions->searches.slice.run = search_some;
    slice_begin(slices_of(regions), &regions->searches.slice);
    region_unref(region);
}

void region_waits_end(struct regions *regions)
{
    regions->searches.slice.run = search_some;
    slice_start(NULL, &regions->searches.slice);
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
