#include "daemon/memory/region_fill.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/memory/region_impl.h"

#define LITTLE_RANGES 64u  /* so much is counted on the loop */
#define LITTLE_PAGES 256u
#define STEP_PAGES 4096u   /* at once, and so many times before others have their turn */
#define STEPS 16u

struct range { /* pages of a region: [lo, hi) */
    uint64_t lo, hi;
};

struct counting {
    struct work work; /* first */
    struct region *region; /* a reference */
    region_ready on_ready;
    void *arg;
    struct range *ranges;
    uint32_t n, at;
    uint64_t missing; /* bytes */
    bool sorted;
    enum rdt_status status;
    struct rdt_error err;
};

static uint64_t page_bytes(const struct region *region)
{
    return region->block.page_bytes ? region->block.page_bytes : (uint64_t)sysconf(_SC_PAGESIZE);
}

static bool may_lack(const struct region *region)
{
    return region->origin == REGION_IMPORTED && region_is_host(region) && region->block.fd >= 0;
}

/* How many bytes of its file have no page: anywhere in it. */
static enum rdt_status look(const struct region *region, struct stat *st_p, uint64_t *missing_p, struct rdt_error *err)
{
    uint64_t page = page_bytes(region), all, there;

    if (fstat(region->block.fd, st_p))
        return rdt_error_sys(err, errno, "looking at the pages of region %llu", (unsigned long long)region->id);
    all = ((uint64_t)st_p->st_size + page - 1) / page * page;
    there = (uint64_t)st_p->st_blocks * 512;
    *missing_p = there < all ? all - there : 0;
    return RDT_OK;
}

/* ---- which pages ---- */

static int by_place(const void *a, const void *b)
{
    const struct range *x = a, *y = b;

    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* No page twice. Those that come in order, as nearly all do, need no sorting. */
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

static void add_range(struct range *ranges, uint32_t *n_p, uint64_t lo, uint64_t hi)
{
    struct range *last = *n_p > 0 ? &ranges[*n_p - 1] : NULL;

    if (last && lo >= last->lo && lo <= last->hi)
        last->hi = hi > last->hi ? hi : last->hi;
    else
        ranges[(*n_p)++] = (struct range){lo, hi};
}

/* [layout->count] of ranges: what it touches of the region of that index. */
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

/* Of at most STEP_PAGES pages; any thread. Where the kernel would not tell us it calls them all present: who may not ask takes the
 * most that it can be. */
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

/* mincore tells of ordinary pages, of a file that it may write. */
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

static void say_what_lacks(const struct region *region, struct rdt_error *err)
{
    rdt_error_prefix(err, "region %llu of uid %u (client %llu) was imported without all of its pages, and the daemon would have to make them",
                     (unsigned long long)region->id, region->account->owner.uid, (unsigned long long)region->creator);
}

static enum rdt_status charge(struct region *region, uint64_t bytes, struct rdt_error *err)
{
    uint64_t want[USAGE_COUNT] = {0}, page = page_bytes(region), all = (region->room + page - 1) / page * page;
    enum rdt_status status;

    if (bytes > all - region->filled_bytes)
        bytes = all - region->filled_bytes; /* the rest has been charged, by whoever touches the same pages now */
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
        say_what_lacks(region, err);
    return status;
}

/* There are so many pages in all: no more of them can be ours. */
static void settle(struct region *region, const struct stat *st)
{
    uint64_t there = (uint64_t)st->st_blocks * 512;

    if (there >= region->filled_bytes)
        return;
    account_give(region->account, USAGE_BYTES, region->filled_bytes - there);
    regions_uncharge(region->regions, region->filled_bytes - there);
    region->filled_bytes = there;
}

void region_fill_settle(struct region *region)
{
    struct stat st;

    if (region->filled_bytes > 0 && region->pins == 0 && fstat(region->block.fd, &st) == 0)
        settle(region, &st);
}

/* ---- counting on the pool ---- */

static void run_count(struct work *work)
{
    struct counting *counting = (struct counting *)work;
    struct memory_room *room = &counting->region->regions->room;

    if (!counting->sorted)
        counting->n = merge(counting->ranges, counting->n);
    counting->sorted = true;
    for (unsigned i = 0; i < STEPS && counting->at < counting->n; i++) {
        struct range *range = &counting->ranges[counting->at];
        uint64_t most = STEP_PAGES * page_bytes(counting->region), hi = range->hi - range->lo > most ? range->lo + most : range->hi;
        counting->missing += count_missing(counting->region, range->lo, hi);
        range->lo = hi;
        counting->at += range->lo == range->hi;
    }
    work->again = counting->at < counting->n;
    if (work->again || counting->missing == 0)
        return;
    counting->status = memory_room_take(room, counting->missing, true, &counting->err);
    if (counting->status == RDT_OK) /* the pages come later, or never: nobody waits for them */
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
        say_what_lacks(region, &counting->err);
    counting->on_ready(counting->arg, status == RDT_OK ? region : NULL, status == RDT_OK ? NULL : &counting->err);
    region_fill_settle(region); /* nobody may have wanted it any more */
    region_unref(region);
    free(counting->ranges);
    free(counting);
}

static enum rdt_status start_counting(struct region *region, struct range *take_ranges, uint32_t n, region_ready on_ready, void *arg,
                                      struct rdt_error *err)
{
    struct counting *counting = calloc(1, sizeof *counting);

    if (!counting) {
        free(take_ranges);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to look at the pages of region %llu", (unsigned long long)region->id);
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

static enum rdt_status fill_one(struct region *region, const struct layout *layout, uint32_t index, region_ready on_ready, void *arg,
                                struct rdt_error *err)
{
    struct range *ranges;
    struct stat st;
    uint64_t missing, bytes;
    uint32_t n;
    enum rdt_status status = look(region, &st, &missing, err);

    if (status != RDT_OK || missing == 0)
        return status;
    if (region->pins <= 1) /* the caller's: what was charged before has been made by now, or never will be */
        settle(region, &st);
    if (!region_addr(region, err))
        return err ? err->status : RDT_SYSTEM;
    ranges = malloc((layout->count + 1u) * sizeof *ranges);
    if (!ranges)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to look at the pages of region %llu", (unsigned long long)region->id);
    n = find_ranges(region, layout, index, ranges);
    if (n <= LITTLE_RANGES)
        n = merge(ranges, n);
    bytes = ranges_bytes(ranges, n);
    if (may_count(region, &st)) {
        if (on_ready && (n > LITTLE_RANGES || bytes > LITTLE_PAGES * page_bytes(region)))
            return start_counting(region, ranges, n, on_ready, arg, err);
        if (n <= LITTLE_RANGES && bytes <= LITTLE_PAGES * page_bytes(region)) {
            bytes = 0;
            for (uint32_t i = 0; i < n; i++)
                bytes += count_missing(region, ranges[i].lo, ranges[i].hi);
        }
    }
    free(ranges);
    return charge(region, bytes < missing ? bytes : missing, err);
}

enum rdt_status region_fill(struct region_use *uses, uint32_t n, const struct layout *layout, uint32_t *next_p,
                            region_ready on_ready, void *arg, struct rdt_error *err)
{
    while (*next_p < n) {
        enum rdt_status status = RDT_OK;
        if (may_lack(uses[*next_p].region))
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
        if (may_lack(uses[i].region) && (look(uses[i].region, &st, &missing, NULL) != RDT_OK || missing > 0))
            return true;
    return false;
}
