/* SPDX-License-Identifier: Apache-2.0 */
/* See region_fill.h. Missing pages are counted with mincore: a few in the loop, many on the work pool. */
#include "daemon/memory/region_fill.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/memory/region_impl.h"

#define LITTLE_RANGES 64u /* up to this many ranges and pages are counted in the loop */
#define LITTLE_PAGES 256u
#define STEP_PAGES 4096u /* counted by one call of mincore */
#define STEPS 16u        /* before the work pool takes work of other clients */

struct range { /* bytes [lo, hi) of a region: whole pages */
    uint64_t lo, hi;
};

struct counting {
    struct work work;      /* first */
    struct region *region; /* a reference */
    region_ready on_ready;
    void *arg;
    struct range *ranges; /* [n] */
    uint32_t n, next;     /* next: the first range that has not been counted yet */
    uint64_t missing;     /* bytes, so far */
    bool sorted;
    enum rdt_status status;
    struct rdt_error err;
};

static uint64_t page_bytes(const struct region *region)
{
    return region->block.page_bytes ? region->block.page_bytes : (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Whether pages of the region can be missing at all. */
static bool may_lack_pages(const struct region *region)
{
    return region->origin == REGION_IMPORTED && region_is_host(region) && region->block.fd >= 0;
}

/* How many bytes of the whole file have no page. */
static enum rdt_status look_at_file(const struct region *region, struct stat *st_p, uint64_t *missing_p, struct rdt_error *err)
{
    uint64_t page = page_bytes(region), all, there;

    if (fstat(region->block.fd, st_p))
        return rdt_error_sys(err, errno, "counting the pages of region %llu", (unsigned long long)region->id);
    all = ((uint64_t)st_p->st_size + page - 1) / page * page;
    there = (uint64_t)st_p->st_blocks * 512;
    *missing_p = there < all ? all - there : 0;
    return RDT_OK;
}

/* ---- counting pages ---- */

static int by_place(const void *a, const void *b)
{
    const struct range *x = a, *y = b;

    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Sorts the ranges and joins those that overlap, so that no page is counted twice. Returns how many are left. */
static uint32_t merge(struct range *ranges, uint32_t n)
{
    uint32_t last = 0;

    qsort(ranges, n, sizeof *ranges, by_place);
    for (uint32_t i = 1; i < n; i++) {
        if (ranges[i].lo > ranges[last].hi)
            ranges[++last] = ranges[i];
        else if (ranges[i].hi > ranges[last].hi)
            ranges[last].hi = ranges[i].hi;
    }
    return n > 0 ? last + 1 : 0;
}

/* Appends a range, or extends the last one: nearly all tensors come in the order of their addresses. */
static void add_range(struct range *ranges, uint32_t *n_p, uint64_t lo, uint64_t hi)
{
    struct range *last = *n_p > 0 ? &ranges[*n_p - 1] : NULL;

    if (last && lo >= last->lo && lo <= last->hi)
        last->hi = hi > last->hi ? hi : last->hi;
    else
        ranges[(*n_p)++] = (struct range){lo, hi};
}

/* Finds the pages that a layout touches in the region of that index. ranges: [layout->count]. Returns how many there are. */
static uint32_t find_ranges(const struct region *region, const struct layout *layout, uint32_t index, struct range *ranges)
{
    uint64_t page = page_bytes(region), lo, hi;
    uint32_t n = 0;

    for (uint32_t i = 0; i < layout->count; i++)
        if (layout->region[i] == index && layout_extent(layout, i, &lo, &hi, NULL) == RDT_OK && lo < hi)
            add_range(ranges, &n, lo / page * page, (hi + page - 1) / page * page);
    return n;
}

static uint64_t ranges_bytes(const struct range *ranges, uint32_t n)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < n; i++)
        bytes += ranges[i].hi - ranges[i].lo;
    return bytes;
}

/* Returns how many bytes of [lo, hi), at most STEP_PAGES pages, have no page. Any thread. May be called only if may_count says
 * so: otherwise the kernel reports all pages as present. */
static uint64_t count_missing(const struct region *region, uint64_t lo, uint64_t hi)
{
    uint64_t page = page_bytes(region), n = (hi - lo) / page, missing = 0;
    unsigned char there[STEP_PAGES];

    if (mincore((uint8_t *)region->block.addr + lo, hi - lo, there))
        return hi - lo;
    for (uint64_t i = 0; i < n; i++)
        missing += there[i] & 1 ? 0 : page;
    return missing;
}

/* Whether mincore can tell: it knows ordinary pages, of files that this process may write. */
static bool may_count(const struct region *region, const struct stat *st)
{
    char path[32];

    if (region->block.page_bytes > 0)
        return false;
    if (st->st_uid == geteuid())
        return true;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", region->block.fd);
    return faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0;
}

/* ---- the charge ---- */

static void prefix_cause(const struct region *region, struct rdt_error *err)
{
    rdt_error_prefix(err,
                     "region %llu of uid %u (client %llu) was imported without all of its pages, and the daemon would have "
                     "to create them",
                     (unsigned long long)region->id, region->account->owner.uid, (unsigned long long)region->creator);
}

static enum rdt_status charge(struct region *region, uint64_t bytes, struct rdt_error *err)
{
    uint64_t want[USAGE_COUNT] = {0}, page = page_bytes(region), all = (region->room + page - 1) / page * page;
    enum rdt_status status;

    if (bytes > all - region->filled_bytes)
        bytes = all - region->filled_bytes; /* the rest has been charged for a transfer that touches the same pages now */
    if (bytes == 0)
        return RDT_OK;
    want[USAGE_BYTES] = bytes;
    status = account_take_all(region->account, want, err);
    if (status == RDT_OK) {
        status = regions_charge(region->regions, bytes, err);
        if (status != RDT_OK)
            account_undo(region->account, want);
    }
    if (status == RDT_OK)
        region->filled_bytes += bytes;
    else
        prefix_cause(region, err);
    return status;
}

/* ---- counting on the work pool ---- */

static void run_count(struct work *work)
{
    struct counting *counting = (struct counting *)work;
    struct memory_room *room = &counting->region->regions->room;

    if (!counting->sorted)
        counting->n = merge(counting->ranges, counting->n);
    counting->sorted = true;
    for (unsigned i = 0; i < STEPS && counting->next < counting->n; i++) {
        struct range *range = &counting->ranges[counting->next];
        uint64_t most = STEP_PAGES * page_bytes(counting->region);
        uint64_t hi = range->hi - range->lo > most ? range->lo + most : range->hi;
        counting->missing += count_missing(counting->region, range->lo, hi);
        range->lo = hi;
        counting->next += range->lo == range->hi;
    }
    work->again = counting->next < counting->n;
    if (work->again || counting->missing == 0)
        return;
    counting->status = memory_room_take(room, counting->missing, true, &counting->err);
    if (counting->status == RDT_OK) /* the pages are created later, or never, and nobody says when */
        memory_room_taken(room, counting->missing);
}

static void done_count(struct work *work)
{
    struct counting *counting = (struct counting *)work;
    struct region *region = counting->region;
    enum rdt_status status = counting->status;

    if (status == RDT_OK)
        status = charge(region, counting->missing, &counting->err);
    else
        prefix_cause(region, &counting->err);
    counting->on_ready(counting->arg, status == RDT_OK ? region : NULL, status == RDT_OK ? NULL : &counting->err);
    region_settle_idle(region); /* the caller may have given up, so that nobody touches the pages */
    region_unref(region);
    free(counting->ranges);
    free(counting);
}

static enum rdt_status start_counting(struct region *region, struct range *take_ranges, uint32_t n, region_ready on_ready,
                                      void *arg, struct rdt_error *err)
{
    struct counting *counting = calloc(1, sizeof *counting);

    if (!counting) {
        free(take_ranges);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to count the pages of region %llu", (unsigned long long)region->id);
    }
    *counting = (struct counting){.work = {.run = run_count, .done = done_count, .lane = region->creator},
                                  .region = region_ref(region),
                                  .on_ready = on_ready,
                                  .arg = arg,
                                  .ranges = take_ranges,
                                  .n = n};
    work_submit(region->regions->pool, &counting->work);
    return RDT_AGAIN;
}

static enum rdt_status fill_one(struct region *region, const struct layout *layout, uint32_t index, region_ready on_ready,
                                void *arg, struct rdt_error *err)
{
    struct range *ranges;
    struct stat st;
    uint64_t missing, bytes;
    uint32_t n;
    bool little;
    enum rdt_status status = look_at_file(region, &st, &missing, err);

    if (status != RDT_OK || missing == 0)
        return status;
    if (region->pins <= 1) /* only the caller's pin: earlier transfers have created their pages, or never will */
        region_settle(region, &st);
    if (!region_addr(region, err))
        return err ? err->status : RDT_SYSTEM;
    ranges = malloc((layout->count + 1u) * sizeof *ranges);
    if (!ranges)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to count the pages of region %llu", (unsigned long long)region->id);
    n = find_ranges(region, layout, index, ranges);
    if (n <= LITTLE_RANGES)
        n = merge(ranges, n);
    bytes = ranges_bytes(ranges, n);
    little = n <= LITTLE_RANGES && bytes <= LITTLE_PAGES * page_bytes(region);
    if (!little && on_ready && may_count(region, &st))
        return start_counting(region, ranges, n, on_ready, arg, err);
    if (little && may_count(region, &st)) {
        bytes = 0;
        for (uint32_t i = 0; i < n; i++)
            bytes += count_missing(region, ranges[i].lo, ranges[i].hi);
    }
    free(ranges);
    return charge(region, bytes < missing ? bytes : missing, err);
}

enum rdt_status region_fill(struct region_use *uses, uint32_t n, const struct layout *layout, uint32_t *next_p,
                            region_ready on_ready, void *arg, struct rdt_error *err)
{
    while (*next_p < n) {
        enum rdt_status status = RDT_OK;
        if (may_lack_pages(uses[*next_p].region))
            status = fill_one(uses[*next_p].region, layout, *next_p, on_ready, arg, err);
        if (status != RDT_OK && status != RDT_AGAIN)
            return status;
        (*next_p)++;
        if (status == RDT_AGAIN)
            return status;
    }
    return RDT_OK;
}

bool region_fill_is_needed(const struct region_use *uses, uint32_t n)
{
    struct stat st;
    uint64_t missing;

    for (uint32_t i = 0; i < n; i++)
        if (may_lack_pages(uses[i].region) && (look_at_file(uses[i].region, &st, &missing, NULL) != RDT_OK || missing > 0))
            return true;
    return false;
}
