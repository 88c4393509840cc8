/* SPDX-License-Identifier: Apache-2.0 */
/* LOAD_MANY: copies the tensors of many objects of the caller into regions of its own, as one copy. The regions lie in host
 * memory or on devices, and so do the tensors. Without a region it hands them out (rpc_hand_out.c).
 *
 *   read     a thread reads the list of targets, and checks that they lie in the regions
 *   find     in slices, each object is found, held and pinned; its tensors become rows of one list
 *   place    in slices, the memory of each is mapped, and the rows of one region are brought together
 *   copy     one copy of all rows: from host memory to host memory on the threads of the pool or of the owner (copy.h), and all
 *            others by the device's plug-in, some hundred rows at a time (device_copy.h)
 *   end      in slices, the regions are checked and the objects let go; then the answer, and the regions are let go
 *
 * What cannot be loaded like this, for whatever reason, is left out: the client fetches it, and learns why. */
#include <stdlib.h>
#include <string.h>

#include "daemon/calls/call.h"
#include "daemon/memory/copy.h"
#include "daemon/memory/device_copy.h"
#include "daemon/rpc/rpc.h"

#define LEFT_OUT RDT_UNSUPPORTED
#define NOWHERE 0u         /* the place of what is left out */
#define STEPS_PER_TURN 16u /* as of other copies (transfer_local_copy.c) */
#define OBJECT_HEAP_BYTES 32u
#define ORDER_COLUMNS 5u /* of a layout */
#define ORDER_ROWS 1024u /* between two looks at the time */
#define REGION_HEAP_BYTES (2 * sizeof(struct region *) + sizeof(struct copy_place) + sizeof(struct device_place))

struct loading;

struct load_job {
    struct work work;
    struct loading *loading;
    unsigned steps;
};

struct load_devices {            /* rows of which one end, or both, lie on a device */
    struct memory_kind *kind;    /* of all these devices; NULL: there are none */
    struct device_place *from;   /* [n_places] */
    struct device_place *to;     /* [n_regions] */
    struct device_copy *copying; /* NULL: it has ended, or not begun */
    bool unpinned;               /* some of the host memory is not pinned for the kind */
    bool failed;
};

struct loading {
    struct work work;
    struct slice slice;
    struct call *call; /* NULL: it has ended */
    struct rpc *rpc;
    struct account *account; /* a reference */
    struct arena arena;      /* of the message */
    const Rdt__Pb__LoadMany *message;
    struct region **regions; /* [n_regions] a reference and a pin each; as the targets number them */
    struct region **sorted;  /* the same, by address */
    uint32_t n_regions;
    uint32_t *order;                 /* [targets->count] in which the rows are copied; NULL: as they are */
    void *spare;                     /* [targets->count] a column of them, up to 8 bytes each; NULL until they are ordered */
    bool on_device;                  /* the regions are */
    bool broken;                     /* at the end: the copy has failed, or memory was missing */
    struct layout *targets, *source; /* of all objects, row by row */
    struct object **objects;         /* [n] held and pinned; NULL: left out */
    int32_t *status;                 /* [n] */
    uint32_t n, next;
    uint32_t row;      /* the first of object `next` */
    uint32_t n_places; /* in copy.from */
    struct copy copy;
    struct load_job *jobs;
    unsigned n_jobs; /* that run, the device's copy and the reading thread */
    struct load_devices devices;
    uint64_t copied; /* bytes */
    uint64_t heap;
    struct rdt_error failed; /* not OK: the answer */
};

static uint32_t rows_of(const struct loading *loading, uint32_t i)
{
    return loading->message->n_count ? loading->message->count[i] : 1;
}

/* ---- the end ---- */

static void answer(struct loading *loading)
{
    Rdt__Pb__LoadManyReply reply = RDT__PB__LOAD_MANY_REPLY__INIT;
    struct call *call = loading->call;

    if (!call)
        return;
    loading->call = NULL;
    call->on_end = NULL;
    if (loading->failed.status != RDT_OK) {
        call_fail(call, &loading->failed);
        return;
    }
    for (uint32_t i = 0; i < loading->n && reply.n_status == 0; i++)
        reply.n_status = loading->status[i] != RDT_OK ? loading->n : 0;
    reply.status = loading->status;
    call_reply(call, &reply.base, NULL, 0);
}

static void loading_free(struct loading *loading) /* which has no regions */
{
    struct rpc *rpc = loading->rpc;

    free(loading->regions);
    free(loading->sorted);
    free(loading->order);
    free(loading->spare);
    copy_fini(&loading->copy);
    free(loading->devices.from);
    free(loading->devices.to);
    account_give(loading->account, USAGE_HEAP, loading->heap);
    account_unref(loading->account);
    work_free_arena(rpc->regions->pool, &loading->arena);
    if (loading->targets)
        work_free(rpc->regions->pool, loading->targets, layout_heap_bytes(loading->targets));
    if (loading->source)
        work_free(rpc->regions->pool, loading->source, layout_heap_bytes(loading->source));
    free(loading->objects);
    free(loading->status);
    free(loading->jobs);
    free(loading);
}

/* false: until_ns has passed; call again. */
static bool let_regions_go(struct loading *loading, uint64_t until_ns)
{
    while (loading->n_regions > 0) {
        struct region *region = loading->regions[--loading->n_regions];
        region_unpin(region);
        region_unref(region);
        if (uv_hrtime() >= until_ns)
            return loading->n_regions == 0;
    }
    return true;
}

static bool end_some(struct slice *slice, uint64_t until_ns)
{
    struct loading *loading = container_of(slice, struct loading, slice);

    while (loading->next < loading->n) {
        struct object *object = loading->objects[loading->next];
        loading->objects[loading->next++] = NULL;
        if (!object)
            continue;
        for (uint32_t r = 0; loading->on_device && r < object->memory.n_regions; r++)
            region_note_device_copy(object->memory.uses[r].region, loading->devices.kind);
        object_unpin(object);
        object_drop(object);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    answer(loading); /* once: it forgets the call */
    if (!let_regions_go(loading, until_ns))
        return false;
    loading_free(loading);
    return true;
}

/* From the first one on; when the daemon ends, at once. */
static void begin_slice(struct loading *loading, bool (*run)(struct slice *, uint64_t))
{
    slice_stop(&loading->slice);
    loading->next = 0;
    loading->slice.run = run;
    slice_begin(loading->rpc->regions->ending ? NULL : &loading->rpc->deadlines->slices, &loading->slice);
}

static void end(struct loading *loading)
{
    begin_slice(loading, end_some);
}

/* The same from inside the slice. */
static bool end_at(struct loading *loading, uint64_t until_ns)
{
    loading->next = 0;
    loading->slice.run = end_some;
    return end_some(&loading->slice, until_ns);
}

/* The caller has gone, or does not wait any more. */
static void on_end(struct call *call)
{
    struct loading *loading = call->waiting;

    loading->call = NULL;
    atomic_store(&loading->copy.stop, true);
    if (loading->devices.copying)
        device_copy_stop(loading->devices.copying);
    if (loading->n_jobs == 0)
        end(loading);
}

/* ---- copying ---- */

static void leave_out(struct loading *loading, uint32_t i, uint32_t row)
{
    loading->status[i] = LEFT_OUT;
    for (uint32_t t = row; t < row + rows_of(loading, i); t++)
        loading->source->region[t] = NOWHERE;
}

static void run_job(struct work *work)
{
    struct load_job *job = container_of(work, struct load_job, work);
    bool more = copy_turn(&job->loading->copy);

    if (!job->loading->copy.owner)
        work->again = more && ++job->steps % STEPS_PER_TURN != 0 && atomic_load(&job->loading->copy.failed) == 0;
}

/* Memory that was missing or could not be read makes all of them doubtful. */
static bool check_some(struct slice *slice, uint64_t until_ns)
{
    struct loading *loading = container_of(slice, struct loading, slice);

    while (loading->next < loading->n_regions) {
        struct region *region = loading->regions[loading->next++];
        if (loading->devices.kind)
            region_note_device_copy(region, loading->devices.kind);
        loading->broken |= region_check(region, NULL) != RDT_OK;
        if (uv_hrtime() >= until_ns)
            return false;
    }
    for (uint32_t i = 0; loading->broken && i < loading->n; i++)
        loading->status[i] = LEFT_OUT;
    if (!loading->broken && loading->call)
        loading->call->client->transfers.fetched_bytes += loading->copied;
    loading->rpc->transfers->counts->bytes_local += loading->copied;
    end(loading);
    return true;
}

static void all_ended(struct loading *loading)
{
    loading->copied += atomic_load(&loading->copy.copied);
    loading->broken = atomic_load(&loading->copy.failed) != 0 || loading->devices.failed;
    begin_slice(loading, check_some);
}

static void job_done(struct work *work)
{
    struct loading *loading = container_of(work, struct load_job, work)->loading;
    bool failed = atomic_load(&loading->copy.failed) != 0;

    if (loading->call && !failed && !loading->devices.failed && !copy_ended(&loading->copy)) {
        copy_submit(&loading->copy, loading->rpc->regions, work);
        return;
    }
    atomic_store(&loading->copy.stop, true); /* no step is left, or nobody wants the copy any more */
    if (failed && loading->devices.copying)
        device_copy_stop(loading->devices.copying);
    if (--loading->n_jobs == 0)
        all_ended(loading);
}

static void on_device_copied(void *arg, const struct rdt_error *err)
{
    struct loading *loading = arg;

    loading->copied += device_copy_bytes(loading->devices.copying);
    loading->devices.copying = NULL;
    loading->devices.failed = err;
    if (--loading->n_jobs == 0)
        all_ended(loading);
}

/* The device's copy, if there is something for it. */
static void start_device_copy(struct loading *loading)
{
    struct load_devices *devices = &loading->devices;

    if (!devices->kind)
        return;
    devices->failed = device_copy_start(loading->source, devices->from, loading->targets, devices->to, NULL, !devices->unpinned,
                                        on_device_copied, loading, &devices->copying, NULL) != RDT_OK;
    loading->n_jobs += devices->copying != NULL;
}

static void start_copy(struct loading *loading)
{
    unsigned n = !loading->on_device ? copy_threads(&loading->copy, loading->rpc->options->worker_threads) : 0;

    loading->jobs = calloc(n + 1u, sizeof *loading->jobs);
    if (!loading->jobs) {
        (void)rdt_error_set(&loading->failed, RDT_NO_MEMORY, "no memory for the copy");
        end(loading);
        return;
    }
    loading->n_jobs = n;
    start_device_copy(loading);
    for (unsigned i = 0; i < n; i++) {
        loading->jobs[i] = (struct load_job){.work = {.run = run_job, .done = job_done, .lane = loading->call->client->id},
                                             .loading = loading};
        copy_submit(&loading->copy, loading->rpc->regions, &loading->jobs[i].work);
    }
    if (loading->n_jobs == 0)
        all_ended(loading);
}

/* ---- the order of the rows ---- */

/* Column c of the rows: those of the targets come first, then those of the objects' tensors. */
static void *column_of(const struct loading *loading, uint32_t c)
{
    const struct layout *layout = c < ORDER_COLUMNS ? loading->targets : loading->source;
    void *const columns[ORDER_COLUMNS] = {layout->offset, layout->dtype, layout->ndim, layout->first_dim, layout->region};

    return columns[c % ORDER_COLUMNS];
}

static bool is_wide(uint32_t c)
{
    return c % ORDER_COLUMNS == 0;
}

static void order_rows(struct loading *loading, uint32_t c, uint32_t from, uint32_t to)
{
    const uint32_t *order = loading->order, *narrow = column_of(loading, c);
    const uint64_t *wide = column_of(loading, c);

    for (uint32_t t = from; t < to; t++)
        if (is_wide(c))
            ((uint64_t *)loading->spare)[t] = wide[order[t]];
        else
            ((uint32_t *)loading->spare)[t] = narrow[order[t]];
}

static bool order_some(struct slice *slice, uint64_t until_ns)
{
    struct loading *loading = container_of(slice, struct loading, slice);
    uint32_t n = loading->targets->count;

    while (loading->next < 2 * ORDER_COLUMNS) {
        uint32_t c = loading->next, to = n - loading->row < ORDER_ROWS ? n : loading->row + ORDER_ROWS;
        order_rows(loading, c, loading->row, to);
        loading->row = to;
        if (to == n) {
            memcpy(column_of(loading, c), loading->spare, n * (is_wide(c) ? sizeof(uint64_t) : sizeof(uint32_t)));
            loading->next++;
            loading->row = 0;
        }
        if (loading->next < 2 * ORDER_COLUMNS && uv_hrtime() >= until_ns)
            return false;
    }
    start_copy(loading);
    return true;
}

/* A device copies between one pair of blocks at a time, and an object may have a tensor in each of many, so the rows of one
 * region come to follow one another. False: they stay as they are, which takes longer, if there is no memory. */
static bool begin_order(struct loading *loading)
{
    loading->spare = loading->order ? malloc((loading->targets->count + 1u) * sizeof(uint64_t)) : NULL;
    if (!loading->spare)
        return false;
    loading->next = loading->row = 0;
    loading->slice.run = order_some;
    return true;
}

/* ---- the objects ---- */

/* Finds the place of a region of an object, and maps it if the processor can. */
static enum rdt_status place_region(struct loading *loading, uint32_t at, struct region *region)
{
    struct load_devices *devices = &loading->devices;
    struct rdt_error err;

    if (devices->from)
        devices->from[at].region = region;
    if (!region_is_host(region))
        return RDT_OK;
    devices->unpinned |= loading->on_device && !region_is_pinned_for(region, devices->kind);
    return copy_from(&loading->copy, at, region, &err);
}

/* Maps the memory of object i, whose places begin at *place_p. */
static enum rdt_status place_object(struct loading *loading, uint32_t i, uint32_t *place_p)
{
    struct object *object = loading->objects[i];
    enum rdt_status status = RDT_OK;
    struct rdt_error err;

    if (object->memory.chunk) {
        struct copy_place *place = &loading->copy.from[*place_p];
        *place = (struct copy_place){.at.base = object_base(object, 0, &err), .kind = object_region(object, 0)->kind};
        if (loading->devices.from)
            loading->devices.from[*place_p].base = place->at.base;
        loading->devices.unpinned |= loading->on_device;
        ++*place_p;
        return place->at.base ? RDT_OK : LEFT_OUT;
    }
    for (uint32_t r = 0; r < object->memory.n_regions; r++, ++*place_p)
        if (status == RDT_OK)
            status = place_region(loading, *place_p, object->memory.uses[r].region);
    return status;
}

static bool place_some(struct slice *slice, uint64_t until_ns)
{
    struct loading *loading = container_of(slice, struct loading, slice);

    while (loading->next < loading->n) {
        uint32_t i = loading->next++, row = loading->row;
        loading->row += rows_of(loading, i);
        if (loading->objects[i] && place_object(loading, i, &loading->n_places) != RDT_OK)
            leave_out(loading, i, row);
        if (loading->next < loading->n && uv_hrtime() >= until_ns)
            return false;
    }
    if (begin_order(loading))
        return false;
    start_copy(loading);
    return true;
}

/* The region as an end of the copies. */
static enum rdt_status place_target(struct loading *loading, uint32_t r)
{
    struct load_devices *devices = &loading->devices;
    struct region *region = loading->regions[r];

    if (devices->kind) {
        devices->to[r].region = region;
        devices->unpinned |= !loading->on_device && !region_is_pinned_for(region, devices->kind);
    }
    return loading->on_device ? RDT_OK : copy_to(&loading->copy, r, region, &loading->failed);
}

static bool place_targets(struct slice *slice, uint64_t until_ns)
{
    struct loading *loading = container_of(slice, struct loading, slice);

    while (loading->next < loading->n_regions) {
        if (place_target(loading, loading->next++) != RDT_OK)
            return end_at(loading, until_ns);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    loading->next = 0;
    loading->slice.run = place_some;
    return place_some(slice, until_ns);
}

static bool start_places(struct loading *loading, struct rdt_error *err)
{
    struct load_devices *devices = &loading->devices;
    bool there = copy_init(&loading->copy, loading->source, loading->n_places, loading->targets, loading->n_regions);

    if (devices->kind) {
        devices->from = calloc(loading->n_places + 1u, sizeof *devices->from);
        devices->to = calloc(loading->n_regions, sizeof *devices->to);
    }
    if (!there || (devices->kind && (!devices->from || !devices->to))) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the copy");
        return false;
    }
    loading->next = loading->row = 0;
    loading->n_places = NOWHERE + 1;
    loading->slice.run = place_targets;
    return true;
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (struct region *const *)a, y = (uintptr_t) * (struct region *const *)b;

    return x < y ? -1 : x > y;
}

/* Whether the region of an object is copied by this message. A device copies only memory of its kind, and no memory that the
 * daemon does not map. */
static bool may_load_from(const struct loading *loading, const struct region *region)
{
    if (region_may_fault(region) || /* and one tensor may lie where another one is written to */
        bsearch(&region, loading->sorted, loading->n_regions, sizeof(struct region *), by_address))
        return false;
    if (region_is_host(region))
        return !loading->on_device || !region_is_by_fd(region);
    return !loading->devices.kind || region->kind == loading->devices.kind;
}

static bool may_load(const struct loading *loading, struct object *object, uint32_t rows)
{
    if (!object || object_n_places(object) > rows || object->state != OBJECT_LIVE || object->kind != OBJECT_PLAIN ||
        object->file.unchecked || !owner_equal(&object->account->owner, &loading->account->owner))
        return false;
    for (uint32_t r = 0; r < object->memory.n_regions; r++)
        if (!may_load_from(loading, object->memory.uses[r].region))
            return false;
    return true;
}

/* The rows of one object among all targets. */
static struct layout target_of(const struct loading *loading, uint32_t i)
{
    const struct layout *all = loading->targets;
    struct layout one = {.count = rows_of(loading, i),
                         .dtype = all->dtype + loading->row,
                         .ndim = all->ndim + loading->row,
                         .first_dim = all->first_dim + loading->row,
                         .region = all->region + loading->row,
                         .offset = all->offset + loading->row,
                         .shape = all->shape,
                         .strides = all->strides};

    return one;
}

/* Finds object i, and makes its tensors the rows from loading->row on. */
static enum rdt_status find_object(struct loading *loading, uint32_t i)
{
    struct object *object = index_get(&loading->rpc->objects->by_generation, loading->message->generation[i]);
    struct layout *all = loading->source, target = target_of(loading, i), *layout;
    enum rdt_status status;

    if (!may_load(loading, object, target.count) || object_layout(object, NULL, &layout, NULL) != RDT_OK)
        return LEFT_OUT;
    status = layout_same_shape(layout, &target, NULL);
    for (uint32_t t = 0; status == RDT_OK && t < layout->count; t++) {
        uint32_t row = loading->row + t, dim = all->first_dim[row];
        all->region[row] = loading->n_places + (object->memory.chunk ? 0 : layout->region[t]);
        all->offset[row] = layout->offset[t];
        for (uint32_t d = 0; d < layout->ndim[t]; d++)
            all->strides[dim + d] = layout->strides[layout->first_dim[t] + d];
    }
    free(layout);
    if (status != RDT_OK)
        return LEFT_OUT;
    object_hold(object);
    object_pin(object);
    for (uint32_t r = 0; r < object->memory.n_regions; r++)
        if (!region_is_host(object->memory.uses[r].region))
            loading->devices.kind = object->memory.uses[r].region->kind;
    loading->objects[i] = object;
    loading->n_places += object_n_places(object);
    if (object->cached)
        cache_found(object, false);
    return RDT_OK;
}

static bool find_some(struct slice *slice, uint64_t until_ns)
{
    struct loading *loading = container_of(slice, struct loading, slice);

    while (loading->next < loading->n) {
        uint32_t i = loading->next++;
        if (find_object(loading, i) != RDT_OK)
            leave_out(loading, i, loading->row);
        loading->row += rows_of(loading, i);
        if (loading->next < loading->n && uv_hrtime() >= until_ns)
            return false;
    }
    return start_places(loading, &loading->failed) ? place_targets(slice, until_ns) : end_at(loading, until_ns);
}

/* ---- the list, on a thread ---- */

/* Notes the order of the rows in which those of one region follow one another. */
static bool find_order(struct loading *loading)
{
    const struct layout *targets = loading->targets;
    uint32_t *next;

    if (loading->n_regions < 2)
        return true;
    next = calloc(loading->n_regions + 1u, sizeof *next);
    loading->order = malloc((targets->count + 1u) * sizeof *loading->order);
    for (uint32_t t = 0; next && loading->order && t < targets->count; t++)
        next[targets->region[t] + 1]++;
    for (uint32_t r = 1; next && r < loading->n_regions; r++)
        next[r] += next[r - 1];
    for (uint32_t t = 0; next && loading->order && t < targets->count; t++)
        loading->order[next[targets->region[t]]++] = t;
    free(next);
    return next && loading->order;
}

static enum rdt_status read_targets(struct loading *loading, struct rdt_error *err)
{
    const struct layout *targets;
    uint64_t lo, hi, rows = 0;
    enum rdt_status status = layout_from_wire(loading->message->targets, &loading->targets, err);

    for (uint32_t i = 0; i < loading->n; i++)
        rows += rows_of(loading, i);
    if (status != RDT_OK)
        return status;
    targets = loading->targets;
    if (rows != targets->count)
        return rdt_error_set(err, RDT_INVALID, "the message has %u targets, and its objects have %llu", targets->count,
                             (unsigned long long)rows);
    for (uint32_t t = 0; t < targets->count; t++) {
        uint32_t r = targets->region[t];
        status = layout_extent(targets, t, &lo, &hi, err);
        if (status != RDT_OK)
            return status;
        if (lo < hi && (r >= loading->n_regions || hi > loading->regions[r]->bytes || !layout_is_contiguous(targets, t)))
            return rdt_error_set(
                err, RDT_INVALID, "target %u ends at byte %llu of region %u, which has %llu, or is not contiguous", t,
                (unsigned long long)hi, r, (unsigned long long)(r < loading->n_regions ? loading->regions[r]->bytes : 0));
        if (lo == hi)
            targets->region[t] = 0; /* it has no bytes, and may have named any */
    }
    loading->source = layout_dup(targets);
    return loading->source && find_order(loading)
               ? RDT_OK
               : rdt_error_set(err, RDT_NO_MEMORY, "no memory for %u targets", targets->count);
}

static void run_read(struct work *work)
{
    struct loading *loading = container_of(work, struct loading, work);

    qsort(loading->sorted, loading->n_regions, sizeof(struct region *), by_address);
    (void)read_targets(loading, &loading->failed);
}

static void done_read(struct work *work)
{
    struct loading *loading = container_of(work, struct loading, work);
    uint64_t heap = 0;

    if (loading->targets) /* and no object has more places than rows */
        heap = 2 * layout_heap_bytes(loading->targets) +
               loading->targets->count * (uint64_t)(sizeof(struct copy_place) + sizeof(struct device_place) +
                                                    sizeof *loading->order + sizeof(uint64_t));
    loading->n_jobs = 0;
    if (loading->call && loading->failed.status == RDT_OK &&
        account_take(loading->account, USAGE_HEAP, heap, &loading->failed) == RDT_OK) {
        loading->heap += heap;
        loading->n_places = NOWHERE + 1;
        loading->slice.run = find_some;
        slice_begin(&loading->rpc->deadlines->slices, &loading->slice);
        return;
    }
    end(loading);
}

/* ---- the request ---- */

static enum rdt_status add_region(struct loading *loading, const Rdt__Pb__RegionUse *use, struct rdt_error *err)
{
    struct region *region;
    enum rdt_status status = client_region(loading->call->client, use->region, use->generation, &region, err);

    if (status != RDT_OK)
        return status;
    if (region_is_host(region) && region->origin != REGION_ALLOCATED)
        return rdt_error_set(err, RDT_INVALID,
                             "nothing is loaded into region %llu: only into host memory from ALLOC, and memory of a device",
                             (unsigned long long)region->id);
    if (loading->n_regions > 0 && region->kind != loading->regions[0]->kind)
        return rdt_error_set(err, RDT_INVALID, "a message loads into %s memory, and region %llu is %s memory",
                             loading->regions[0]->kind->name, (unsigned long long)region->id, region->kind->name);
    loading->regions[loading->n_regions] = loading->sorted[loading->n_regions] = region_ref(region);
    loading->n_regions++;
    region_pin(region);
    return RDT_OK;
}

static enum rdt_status begin(struct loading *loading, struct rdt_error *err)
{
    const Rdt__Pb__LoadMany *message = loading->message;
    enum rdt_status status;

    if (message->n_more_regions >= RDT_MAX_TARGET_REGIONS)
        return rdt_error_set(err, RDT_LIMIT, "the targets are in %zu regions: at most %u are possible",
                             message->n_more_regions + 1, RDT_MAX_TARGET_REGIONS);
    loading->objects = calloc(loading->n + 1u, sizeof *loading->objects);
    loading->status = calloc(loading->n + 1u, sizeof *loading->status);
    loading->regions = calloc(message->n_more_regions + 1, sizeof(struct region *));
    loading->sorted = calloc(message->n_more_regions + 1, sizeof(struct region *));
    if (!loading->objects || !loading->status || !loading->regions || !loading->sorted)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to load %u objects", loading->n);
    status = add_region(loading, message->region, err);
    for (size_t i = 0; status == RDT_OK && i < message->n_more_regions; i++)
        status = add_region(loading, message->more_regions[i], err);
    if (status != RDT_OK)
        return status;
    loading->on_device = !region_is_host(loading->regions[0]);
    loading->devices.kind = loading->on_device ? loading->regions[0]->kind : NULL;
    return call_defer(loading->call, -1, on_end, err);
}

enum rdt_status rpc_load_many(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__LoadMany *message = request;
    size_t n = message->n_generation;
    uint64_t heap = call->request.arena->used_bytes + n * (uint64_t)OBJECT_HEAP_BYTES +
                    message->n_more_regions * (uint64_t)REGION_HEAP_BYTES;
    struct loading *loading;
    enum rdt_status status;

    if (!message->region)
        return rpc_hand_out(call, message, err);
    if (!call->client)
        return rdt_error_set(err, RDT_DENIED, "another node has no region here into which objects could be loaded");
    if (n > RDT_MAX_FETCH_REFS)
        return rdt_error_set(err, RDT_LIMIT, "the message loads %zu objects: at most %u are possible", n, RDT_MAX_FETCH_REFS);
    if (message->n_count && message->n_count != n)
        return rdt_error_set(err, RDT_INVALID, "the columns of a message that loads %zu objects do not belong together", n);
    status = account_take(call->account, USAGE_HEAP, heap, err);
    if (status != RDT_OK)
        return status;
    loading = calloc(1, sizeof *loading);
    if (!loading) {
        account_give(call->account, USAGE_HEAP, heap);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to load %zu objects", n);
    }
    loading->call = call;
    loading->rpc = call->rpc;
    loading->account = account_ref(call->account);
    loading->heap = heap;
    loading->message = message;
    loading->n = (uint32_t)n;
    arena_init(&loading->arena, 0);
    status = begin(loading, err);
    if (status != RDT_OK) {
        call->on_end = NULL;
        (void)let_regions_go(loading, UINT64_MAX);
        loading_free(loading);
        return status;
    }
    call_take_request(call, &loading->arena);
    call->waiting = loading;
    loading->n_jobs = 1;
    loading->work = (struct work){.run = run_read, .done = done_read, .lane = call->client->id};
    work_submit(call->rpc->regions->pool, &loading->work);
    return RDT_OK;
}
