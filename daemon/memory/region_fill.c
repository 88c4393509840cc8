/* SPDX-License-Identifier: Apache-2.0 */
/* See region_fill.h. Missing pages are counted on the threads of the memory's owner. */
#include "daemon/memory/region_fill.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/memory/region_impl.h"

#define STEP_BYTES ((uint64_t)64 << 20) /* after which a daemon that ends stops counting */

struct range { /* bytes [lo, hi) of a region: whole pages */
    uint64_t lo, hi;
};

struct filling {
    struct work work;      /* first */
    struct region *region; /* a pin */
    region_ready on_ready;
    void *arg;
    struct range *ranges; /* [n] */
    uint32_t n;
    uint64_t missing; /* bytes: of the whole file, then of the ranges */
    struct rdt_error err;
};

static uint64_t page_bytes(const struct region *region)
{
    return region->block.page_bytes ? region->block.page_bytes : (uint64_t)sysconf(_SC_PAGESIZE);
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

/* Returns how many bytes of [lo, hi) of a file have no page. *data_p is 0 at first: calls in ascending order pass over what
 * earlier ones have found. */
static uint64_t missing_in_file(int fd, uint64_t lo, uint64_t hi, uint64_t *data_p)
{
    uint64_t missing = 0;

    for (uint64_t at = lo; at < hi;) {
        off_t next;
        if (at < *data_p) { /* there is data up to *data_p */
            at = *data_p;
            continue;
        }
        next = lseek(fd, (off_t)at, SEEK_DATA);
        if (next < 0 || (uint64_t)next >= hi) /* none follows, or it cannot be found out */
            return missing + (hi - at);
        missing += (uint64_t)next - at;
        at = (uint64_t)next;
        next = lseek(fd, (off_t)at, SEEK_HOLE);
        if (next <= (off_t)at)
            return missing + (hi - at);
        *data_p = (uint64_t)next;
    }
    return missing;
}

/* Returns how many bytes of the ranges have no page. Owner's thread. The client's own descriptor cannot be used: its client
 * would see the position move. Where its client has forbidden to open the file, at most as many as the whole file lacks. */
static uint64_t count_missing(const struct region *region, const struct range *ranges, uint32_t n, uint64_t most)
{
    uint64_t missing = 0, data = 0;
    char path[32];
    int fd;

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", region->block.fd);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return ranges_bytes(ranges, n) < most ? ranges_bytes(ranges, n) : most;
    for (uint32_t i = 0; i < n; i++)
        for (uint64_t lo = ranges[i].lo, hi; lo < ranges[i].hi && !atomic_load(&region->regions->ending); lo = hi) {
            hi = ranges[i].hi - lo > STEP_BYTES ? lo + STEP_BYTES : ranges[i].hi;
            missing += missing_in_file(fd, region->imported.offset + lo, region->imported.offset + hi, &data);
        }
    (void)close(fd);
    return missing;
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

    /* the rest has been charged for a transfer that touches the same pages now */
    if (bytes > all - region->imported.filled_bytes)
        bytes = all - region->imported.filled_bytes;
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
        region->imported.filled_bytes += bytes;
    else
        prefix_cause(region, err);
    return status;
}

enum rdt_status region_fill_charge(struct region *region, uint64_t bytes, struct rdt_error *err)
{
    uint64_t expected = bytes < region->imported.unmade_bytes ? bytes : region->imported.unmade_bytes;

    region->imported.unmade_bytes -= expected;
    return charge(region, bytes - expected, err);
}

/* ---- on the threads of the owner ---- */

static void run_fill(struct work *work)
{
    struct filling *filling = (struct filling *)work;
    struct region *region = filling->region;
    struct memory_room *room = &region->regions->room;

    filling->n = merge(filling->ranges, filling->n);
    filling->missing = count_missing(region, filling->ranges, filling->n, filling->missing);
    if (filling->missing > 0 && memory_room_take(room, filling->missing, true, &filling->err) == RDT_OK)
        memory_room_taken(room, filling->missing); /* the pages are created later, or never, and nobody says when */
    else if (filling->missing > 0)
        prefix_cause(region, &filling->err);
}

static void done_fill(struct work *work)
{
    struct filling *filling = (struct filling *)work;
    struct region *region = filling->region;
    const struct rdt_error *err = NULL;

    if (filling->err.status == RDT_OK && charge(region, filling->missing, &filling->err) == RDT_OK)
        region->imported.unmade_bytes += filling->missing;
    if (filling->err.status != RDT_OK)
        err = &filling->err;
    filling->on_ready(filling->arg, err ? NULL : region, err);
    region_unpin(region); /* the caller may have given up, so that nobody touches the pages */
    free(filling->ranges);
    free(filling);
}

static enum rdt_status fill_one(struct region *region, const struct layout *layout, uint32_t index, region_ready on_ready,
                                void *arg, struct rdt_error *err)
{
    struct filling *filling;
    struct stat st;
    uint64_t missing = 0;
    enum rdt_status status = look_at_file(region, &st, &missing, err);

    if (status != RDT_OK)
        return status;
    if (region->block.page_bytes > 0)
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "region %llu lies in huge pages, and the system writes these only where they are mapped: receive "
                             "into ordinary memory, or into memory of rdt_alloc",
                             (unsigned long long)region->id);
    if (missing > 0 && region->pins <= 1) /* only the caller's pin: earlier transfers have created their pages, or never will */
        region_settle(region, &st);
    if (missing == 0)
        return RDT_OK;
    filling = calloc(1, sizeof *filling);
    if (filling)
        filling->ranges = malloc((layout->count + 1u) * sizeof *filling->ranges);
    if (!filling || !filling->ranges) {
        free(filling);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to count the pages of region %llu", (unsigned long long)region->id);
    }
    filling->n = find_ranges(region, layout, index, filling->ranges);
    if (filling->n == 0) {
        free(filling->ranges);
        free(filling);
        return RDT_OK;
    }
    filling->work = (struct work){.run = run_fill, .done = done_fill};
    filling->region = region;
    filling->on_ready = on_ready;
    filling->arg = arg;
    filling->missing = missing;
    region_pin(region);
    owner_work_submit(region->regions->owner_work, &filling->work, region->account, true);
    return RDT_AGAIN;
}

enum rdt_status region_fill(struct region_use *uses, uint32_t n, const struct layout *layout, uint32_t *next_p,
                            region_ready on_ready, void *arg, struct rdt_error *err)
{
    while (*next_p < n) {
        enum rdt_status status = RDT_OK;
        if (uses[*next_p].region && region_is_by_fd(uses[*next_p].region))
            status = fill_one(uses[*next_p].region, layout, *next_p, on_ready, arg, err);
        if (status != RDT_OK && status != RDT_AGAIN)
            return status;
        (*next_p)++;
        if (status == RDT_AGAIN)
            return status;
    }
    return RDT_OK;
}
