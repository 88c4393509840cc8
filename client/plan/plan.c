/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: which boxes of which parts a reader fetches, computed once for each layout, and run for each version.
 *
 *   rdt_plan_run    hold and read the manifest ──► another layout than last time: pieces_plan
 *                   fetch: whole parts, or slices ──► all are on this node ──► copy, or cast, into the wants' memory
 *
 * A fetch brings shared mappings on the same node, and on another one either a replica of the part, which all readers of this
 * node share, or a copy of slices. Casts read from there, so the published bytes cross the network and not the wider ones. */
#include "client/plan/plan.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "client/call.h"
#include "client/memory/overlap.h"
#include "client/options.h"
#include "client/plan/devices.h"
#include "client/plan/manifest.h"
#include "client/plan/strided.h"
#include "client/session/clock.h"
#include "client/session/connection.h"
#include "proto/cover.h"
#include "proto/wire_limits.h"

struct want {
    struct wanted box;
    uint8_t *data;
    int device;       /* of plan->devices, or PLAN_HOST */
    int64_t *strides; /* [ndim] */
    char *key;
    uint64_t *dims; /* start, count and the larger tensor's shape */
    size_t twin;    /* the first want with the same memory, often this one */
};

/* A piece of a want whose memory another want has, too. */
struct twin_piece {
    size_t twin;  /* of the want */
    size_t load;  /* that brings the piece */
    size_t piece; /* index */
};

/* One fetch: a whole part, or one slice of each of its tensors. */
struct load {
    uint32_t part;
    bool whole;
    size_t first, n;          /* of plan->order: the pieces that it brings */
    struct rdt_slice *slices; /* [tensors of the part], unless whole */
    int64_t *dims;            /* what the slices point to */
};

struct rdt_plan {
    rdt *conn;
    struct rdt_ref name;
    struct rdt_plan_options options;
    char transport[RDT_MAX_NAME_BYTES + 1];
    size_t n_wants;
    struct want *wants;
    struct plan_devices devices;

    bool all_here;        /* the parts are all on this node, whatever their refs say */
    rdt_manifest *layout; /* of the version that the pieces were computed for, without a hold; NULL: there are none yet */
    uint8_t *near_parts;  /* [parts]: whether each was on this node then */
    struct pieces pieces;
    size_t *order; /* [pieces.n]: indices of pieces, in the order of the loads */
    size_t n_loads;
    struct load *loads;
    size_t n_twin_pieces;
    struct twin_piece *twin_pieces; /* in order of twin */
};

static enum rdt_status no_memory(struct rdt_error *err)
{
    return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a plan");
}

/* ---- wants ---- */

/* Whether each stride, from the shortest one on, goes beyond what the shorter ones reach: then no two elements have one
 * address. Views of memory that has each element once are like this. */
static bool is_apart(const struct rdt_want *want)
{
    uint64_t reach = 0;

    for (uint32_t done = 0, next;;) {
        uint64_t shortest = 0, length;
        next = RDT_MAX_NDIM;
        for (uint32_t d = 0; d < want->ndim; d++) {
            uint64_t stride = want->strides[d] < 0 ? 0 - (uint64_t)want->strides[d] : (uint64_t)want->strides[d];
            if (want->count[d] > 1 && !(done >> d & 1) && (next == RDT_MAX_NDIM || stride < shortest)) {
                next = d;
                shortest = stride;
            }
        }
        if (next == RDT_MAX_NDIM)
            return true;
        if (shortest <= reach || __builtin_mul_overflow(shortest, (uint64_t)want->count[next] - 1, &length) ||
            __builtin_add_overflow(reach, length, &reach))
            return false;
        done |= UINT32_C(1) << next;
    }
}

static enum rdt_status check_want(const struct rdt_want *want, size_t i, struct rdt_error *err)
{
    uint64_t elems = 1;

    if (!want->key || !want->key[0])
        return rdt_error_set(err, RDT_INVALID, "want %zu has no key", i);
    if (want->ndim > RDT_MAX_NDIM)
        return rdt_error_set(err, RDT_INVALID, "want %zu (\"%s\") has %u dimensions, and the limit is %u", i, want->key,
                             want->ndim, RDT_MAX_NDIM);
    if (rdt_dtype_bytes(want->dtype) == 0)
        return rdt_error_set(err, RDT_INVALID, "want %zu (\"%s\") has the unknown dtype %d", i, want->key, (int)want->dtype);
    if (want->ndim > 0 && !want->count)
        return rdt_error_set(err, RDT_INVALID, "count of want %zu (\"%s\") is NULL", i, want->key);
    for (uint32_t d = 0; d < want->ndim; d++) {
        if (want->count[d] < 0 || (want->start && want->start[d] < 0))
            return rdt_error_set(err, RDT_INVALID, "want %zu (\"%s\") takes %lld elements from %lld on in dimension %u", i,
                                 want->key, (long long)want->count[d], want->start ? (long long)want->start[d] : 0, d);
        if (want->count[d] > 0 && elems > (uint64_t)INT64_MAX / 16 / (uint64_t)want->count[d])
            return rdt_error_set(err, RDT_INVALID, "want %zu (\"%s\") has too many elements", i, want->key);
        elems *= (uint64_t)want->count[d];
    }
    if (want->strides && elems > 0 && !is_apart(want))
        return rdt_error_set(err, RDT_INVALID,
                             "want %zu (\"%s\") overlaps itself: by its strides several elements would be written to one "
                             "address, as in a view by expand or as_strided",
                             i, want->key);
    if (!want->data && elems > 0)
        return rdt_error_set(err, RDT_INVALID, "data of want %zu (\"%s\") is NULL", i, want->key);
    return RDT_OK;
}

static enum rdt_status check_shape(const struct rdt_want *want, const struct rdt_plan_options *options, size_t i,
                                   struct rdt_error *err)
{
    const int64_t *shape = options->global_shapes ? options->global_shapes[i] : NULL;
    int32_t padded = options->padded ? options->padded[i] : -1;

    for (uint32_t d = 0; shape && d < want->ndim; d++)
        if (shape[d] < 0)
            return rdt_error_set(err, RDT_INVALID, "the tensor of want %zu (\"%s\") has %lld elements in dimension %u", i,
                                 want->key, (long long)shape[d], d);
    if (padded < -1 || (padded >= 0 && (uint32_t)padded >= want->ndim))
        return rdt_error_set(err, RDT_INVALID, "want %zu (\"%s\") is padded in dimension %d, but has %u dimensions", i,
                             want->key, padded, want->ndim);
    if (padded >= 0 && !shape && want->start)
        return rdt_error_set(err, RDT_INVALID,
                             "want %zu (\"%s\") is padded, so global_shapes must say the shape of the reader's own tensor", i,
                             want->key);
    return RDT_OK;
}

/* Finds the wants that have the same memory, and refuses those that share some of it. */
static enum rdt_status check_memory(const struct rdt_want *wants, size_t count, size_t *twins, struct rdt_error *err)
{
    struct rdt_tensor *tensors = malloc((count + 1) * sizeof *tensors);
    struct overlap found;
    enum rdt_status status;

    if (!tensors)
        return no_memory(err);
    for (size_t i = 0; i < count; i++)
        tensors[i] = (struct rdt_tensor){wants[i].dtype, wants[i].ndim, wants[i].count, wants[i].strides, wants[i].data};
    status = overlap_find(tensors, count, twins, &found);
    free(tensors);
    if (status == RDT_EXISTS)
        return rdt_error_set(err, RDT_INVALID,
                             "want %zu (\"%s\") shares memory with want %zu (\"%s\"), so one would overwrite the other: give "
                             "each memory of its own, or both the same memory with the same shape and strides",
                             found.second, wants[found.second].key, found.first, wants[found.first].key);
    if (status == RDT_LIMIT)
        return rdt_error_set(
            err, RDT_LIMIT,
            "so many wants lie between each other, as want %zu (\"%s\") and want %zu (\"%s\") do, that it takes "
            "too long to find out whether they share memory: give them contiguous memory",
            found.first, wants[found.first].key, found.second, wants[found.second].key);
    return status == RDT_OK ? RDT_OK : no_memory(err);
}

/* Finds in which device's memory each want lies. */
static enum rdt_status find_devices(rdt_plan *plan, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (size_t i = 0; i < plan->n_wants && status == RDT_OK; i++) {
        struct want *want = &plan->wants[i];

        want->device = PLAN_HOST;
        if (want->data)
            status = devices_find(&plan->devices, plan->conn, want->data, &want->device, err);
        if (status != RDT_OK)
            rdt_error_prefix(err, "data of want %zu (\"%s\")", i, want->key);
    }
    return status;
}

static bool copy_want(struct want *to, const struct rdt_want *from, const int64_t *global_shape, int32_t padded, size_t twin)
{
    int64_t stride = 1;

    if (!global_shape && !from->start)
        global_shape = from->count;
    to->key = strdup(from->key);
    to->dims = calloc(3 * (size_t)from->ndim + 1, sizeof *to->dims);
    to->strides = calloc(from->ndim + 1u, sizeof *to->strides);
    if (!to->key || !to->dims || !to->strides)
        return false;
    for (uint32_t d = from->ndim; d-- > 0;) {
        to->dims[d] = from->start ? (uint64_t)from->start[d] : 0;
        to->dims[from->ndim + d] = (uint64_t)from->count[d];
        to->dims[2 * from->ndim + d] = global_shape ? (uint64_t)global_shape[d] : 0;
        to->strides[d] = from->strides ? from->strides[d] : stride;
        stride *= from->count[d];
    }
    to->box = (struct wanted){.key = to->key,
                              .dtype = from->dtype,
                              .ndim = from->ndim,
                              .start = to->dims,
                              .count = to->dims + from->ndim,
                              .global_shape = global_shape || from->ndim == 0 ? to->dims + 2 * (size_t)from->ndim : NULL,
                              .padded = padded};
    to->data = from->data;
    to->twin = twin;
    return true;
}

enum rdt_status rdt_plan_create(rdt *conn, const struct rdt_ref *name, const struct rdt_want *wants, size_t count,
                                const struct rdt_plan_options *options, rdt_plan **plan_p, struct rdt_error *err)
{
    struct rdt_plan_options own;
    rdt_plan *plan;
    size_t *twins;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK)
        status = options_check_out(plan_p, "plan_p", err);
    if (status == RDT_OK)
        status = options_copy(&own, sizeof own, options, err);
    if (status == RDT_OK && !name)
        status = rdt_error_set(err, RDT_INVALID, "a plan reads versions of a name: make its ref with rdt_ref_from_name");
    if (status == RDT_OK && ((unsigned)own.move > RDT_PLAN_SLICES || (count > 0 && !wants) || count > UINT32_MAX))
        status = rdt_error_set(err, RDT_INVALID, "move %d is unknown, or the wants are NULL", (int)own.move);
    if (status == RDT_OK && own.verify && own.move == RDT_PLAN_SLICES)
        status = rdt_error_set(err, RDT_INVALID, "only whole parts have checksums: verify needs another move than slices");
    if (status == RDT_OK)
        status = options_check_text(own.transport, RDT_MAX_NAME_BYTES, "transport", err);
    for (size_t i = 0; i < count && status == RDT_OK; i++)
        if ((status = check_want(&wants[i], i, err)) == RDT_OK)
            status = check_shape(&wants[i], &own, i, err);
    if (status != RDT_OK)
        return status;
    plan = calloc(1, sizeof *plan);
    twins = malloc((count + 1) * sizeof *twins);
    status = plan && twins ? check_memory(wants, count, twins, err) : no_memory(err);
    if (status != RDT_OK) {
        free(twins);
        free(plan);
        return status;
    }
    plan->conn = conn;
    plan->name = *name;
    plan->options = own;
    plan->options.global_shapes = NULL; /* the wants have them */
    plan->options.padded = NULL;
    if (own.transport)
        memcpy(plan->transport, own.transport, strlen(own.transport) + 1);
    plan->wants = calloc(count + 1, sizeof *plan->wants);
    for (size_t i = 0; i < count && plan->wants; i++, plan->n_wants++)
        if (!copy_want(&plan->wants[i], &wants[i], own.global_shapes ? own.global_shapes[i] : NULL,
                       own.padded ? own.padded[i] : -1, twins[i]))
            break;
    free(twins);
    if (!plan->wants || plan->n_wants < count) {
        plan->n_wants = plan->wants ? count : 0; /* frees the half-copied one, too */
        rdt_plan_destroy(plan);
        return no_memory(err);
    }
    status = find_devices(plan, err);
    if (status == RDT_OK)
        *plan_p = plan;
    else
        rdt_plan_destroy(plan);
    return status;
}

enum rdt_status rdt_plan_order(rdt_plan *plan, const struct rdt_plan_stream *streams, size_t n, struct rdt_error *err)
{
    struct plan_device *device;

    if (!plan || (n > 0 && !streams))
        return rdt_error_set(err, RDT_INVALID, "plan or streams is NULL");
    for (size_t i = 0; i < n; i++)
        if (!streams[i].device)
            return rdt_error_set(err, RDT_INVALID, "the device of stream %zu is NULL", i);
    for (device = plan->devices.list; device && device < plan->devices.list + plan->devices.n; device++) {
        void *of_device[PLAN_MAX_STREAMS];
        size_t n_streams = 0;

        for (size_t i = 0; i < n; i++) {
            if (strcasecmp(streams[i].device, device->uuid) != 0)
                continue;
            if (n_streams == PLAN_MAX_STREAMS)
                return rdt_error_set(err, RDT_INVALID, "a plan takes at most %u streams of a device", PLAN_MAX_STREAMS);
            of_device[n_streams++] = streams[i].stream;
        }
        memcpy(device->streams, of_device, n_streams * sizeof *of_device);
        device->n_streams = n_streams;
    }
    return RDT_OK;
}

static void forget_layout(rdt_plan *plan)
{
    pieces_fini(&plan->pieces);
    for (size_t i = 0; i < plan->n_loads; i++) {
        free(plan->loads[i].slices);
        free(plan->loads[i].dims);
    }
    free(plan->loads);
    free(plan->twin_pieces);
    free(plan->order);
    free(plan->near_parts);
    rdt_manifest_release(plan->layout);
    plan->loads = NULL;
    plan->twin_pieces = NULL;
    plan->n_twin_pieces = 0;
    plan->order = NULL;
    plan->near_parts = NULL;
    plan->layout = NULL;
    plan->n_loads = 0;
}

void rdt_plan_destroy(rdt_plan *plan)
{
    if (!plan)
        return;
    forget_layout(plan);
    for (size_t i = 0; i < plan->n_wants; i++) {
        free(plan->wants[i].key);
        free(plan->wants[i].dims);
        free(plan->wants[i].strides);
    }
    free(plan->wants);
    devices_fini(&plan->devices);
    free(plan);
}

/* ---- planning ---- */

static uint64_t piece_bytes(const rdt_plan *plan, const rdt_manifest *manifest, const struct piece *piece)
{
    const struct layout *layout = manifest->parts[piece->part].layout;
    uint64_t bytes = rdt_dtype_bytes((enum rdt_dtype)layout->dtype[piece->tensor]);

    for (uint32_t d = 0; d < plan->wants[piece->want].box.ndim; d++)
        bytes *= piece->count[d];
    return bytes;
}

static bool is_near(const rdt_plan *plan, const struct rdt_ref *ref)
{
    struct rdt_node_info node;

    if (plan->all_here)
        return true;
    connection_copy_node(plan->conn, &node);
    return memcmp(ref->node, node.node, sizeof node.node) == 0;
}

static bool take_whole(const rdt_plan *plan, const rdt_manifest *manifest, uint32_t part, uint64_t wanted_bytes)
{
    if (plan->options.move == RDT_PLAN_WHOLE || plan->options.verify || is_near(plan, &manifest->parts[part].ref))
        return true;
    return plan->options.move == RDT_PLAN_AUTO && wanted_bytes >= manifest->parts[part].bytes / 2;
}

/* Fills in the slices of a load whose pieces are of different tensors. */
static bool make_slices(const rdt_plan *plan, const rdt_manifest *manifest, struct load *load)
{
    const struct layout *layout = manifest->parts[load->part].layout;

    load->slices = calloc(layout->count + 1u, sizeof *load->slices);
    load->dims = calloc(2 * (size_t)layout->n_dims + 1, sizeof *load->dims);
    if (!load->slices || !load->dims)
        return false;
    for (uint32_t t = 0; t < layout->count; t++) { /* tensors of which no piece is wanted: nothing */
        load->slices[t].ndim = layout->ndim[t];
        load->slices[t].start = load->dims + layout->first_dim[t];
        load->slices[t].count = load->dims + layout->n_dims + layout->first_dim[t];
    }
    for (size_t i = load->first; i < load->first + load->n; i++) {
        const struct piece *piece = &plan->pieces.list[plan->order[i]];
        size_t at = layout->first_dim[piece->tensor];
        for (uint32_t d = 0; d < layout->ndim[piece->tensor]; d++) {
            load->dims[at + d] = (int64_t)piece->from[d];
            load->dims[layout->n_dims + at + d] = (int64_t)piece->count[d];
        }
    }
    return true;
}

static bool add_load(rdt_plan *plan, const rdt_manifest *manifest, uint32_t part, bool whole, size_t first, size_t n)
{
    struct load *loads = realloc(plan->loads, (plan->n_loads + 1) * sizeof *loads);

    if (!loads)
        return false;
    plan->loads = loads;
    loads[plan->n_loads] = (struct load){.part = part, .whole = whole, .first = first, .n = n};
    return whole ? (plan->n_loads++, true) : make_slices(plan, manifest, &loads[plan->n_loads++]);
}

/* Orders pieces [from, to), which are of one part, into loads: one for a whole part, else as many as the tensor with most
 * pieces has, since a fetch takes one slice of each tensor. */
static bool plan_part(rdt_plan *plan, const rdt_manifest *manifest, size_t from, size_t to)
{
    const struct piece *list = plan->pieces.list;
    uint64_t bytes = 0;
    bool left = true;

    for (size_t i = from; i < to; i++)
        bytes += piece_bytes(plan, manifest, &list[i]);
    if (take_whole(plan, manifest, list[from].part, bytes)) {
        for (size_t i = from; i < to; i++)
            plan->order[i] = i;
        return add_load(plan, manifest, list[from].part, true, from, to - from);
    }
    for (size_t round = 0, at = from; left; round++) {
        size_t first = at, same = 0;

        left = false;
        for (size_t i = from; i < to; i++) {
            same = i > from && list[i].tensor == list[i - 1].tensor ? same + 1 : 0;
            if (same == round)
                plan->order[at++] = i;
            left = left || same > round;
        }
        if (at > first && !add_load(plan, manifest, list[from].part, false, first, at - first))
            return false;
    }
    return true;
}

static int by_twin(const void *a, const void *b)
{
    const struct twin_piece *one = a, *other = b;

    return one->twin < other->twin ? -1 : one->twin > other->twin;
}

/* Lists the pieces of wants that have the same memory. */
static bool list_twins(rdt_plan *plan)
{
    bool *has_twin = calloc(plan->n_wants + 1, sizeof *has_twin); /* [wants]: by the first of them */

    plan->twin_pieces = malloc((plan->pieces.n + 1) * sizeof *plan->twin_pieces);
    for (size_t i = 0; i < plan->n_wants && has_twin; i++)
        has_twin[plan->wants[i].twin] |= plan->wants[i].twin != i;
    for (size_t load = 0; load < plan->n_loads && has_twin && plan->twin_pieces; load++) {
        for (size_t at = plan->loads[load].first; at < plan->loads[load].first + plan->loads[load].n; at++) {
            size_t piece = plan->order[at], twin = plan->wants[plan->pieces.list[piece].want].twin;

            if (has_twin[twin])
                plan->twin_pieces[plan->n_twin_pieces++] = (struct twin_piece){twin, load, piece};
        }
    }
    if (plan->n_twin_pieces > 0)
        qsort(plan->twin_pieces, plan->n_twin_pieces, sizeof *plan->twin_pieces, by_twin);
    free(has_twin);
    return has_twin && plan->twin_pieces;
}

static enum rdt_status make_plan(rdt_plan *plan, const rdt_manifest *manifest, struct rdt_error *err)
{
    size_t n_sources, n_parts = manifest->message->n_parts;
    struct source *sources = manifest_sources(manifest, &n_sources);
    struct wanted *wants = malloc((plan->n_wants + 1) * sizeof *wants);
    bool made = true;
    enum rdt_status status = sources && wants ? RDT_OK : no_memory(err);

    forget_layout(plan);
    for (size_t i = 0; i < plan->n_wants && status == RDT_OK; i++)
        wants[i] = plan->wants[i].box;
    if (status == RDT_OK)
        status = pieces_plan(sources, n_sources, wants, plan->n_wants, plan->options.strict, &plan->pieces, err);
    free(sources);
    free(wants);
    if (status != RDT_OK)
        return status;
    plan->order = malloc((plan->pieces.n + 1) * sizeof *plan->order);
    plan->near_parts = malloc(n_parts + 1);
    made = plan->order && plan->near_parts;
    for (size_t i = 0; made && i < n_parts; i++)
        plan->near_parts[i] = is_near(plan, &manifest->parts[i].ref);
    for (size_t i = 0, to; made && i < plan->pieces.n; i = to) {
        for (to = i + 1; to < plan->pieces.n && plan->pieces.list[to].part == plan->pieces.list[i].part; to++)
            continue;
        made = plan_part(plan, manifest, i, to);
    }
    if (made && list_twins(plan))
        return RDT_OK;
    forget_layout(plan);
    return no_memory(err);
}

/* A part that has moved to another node may have to be fetched in another way. */
static bool is_planned(const rdt_plan *plan, const rdt_manifest *manifest)
{
    if (!plan->layout || !manifest_same_layout(plan->layout, manifest))
        return false;
    for (size_t i = 0; i < manifest->message->n_parts; i++)
        if (plan->near_parts[i] != is_near(plan, &manifest->parts[i].ref))
            return false;
    return true;
}

/* ---- running ---- */

static int64_t left_ns(int64_t deadline_ns)
{
    int64_t left = clock_remaining_ns(deadline_ns);

    return left < 0 ? RDT_FOREVER : left == 0 ? 1 : left;
}

static enum rdt_status fetch_loads(const rdt_plan *plan, const rdt_manifest *manifest, int64_t deadline_ns,
                                   rdt_object **objects, struct rdt_error *err)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref *refs = malloc((plan->n_loads + 1) * sizeof *refs);
    const struct rdt_slice **slices = malloc((plan->n_loads + 1) * sizeof *slices);
    size_t *counts = malloc((plan->n_loads + 1) * sizeof *counts);
    enum rdt_status status = refs && slices && counts ? RDT_OK : no_memory(err);

    for (size_t i = 0; i < plan->n_loads && status == RDT_OK; i++) {
        const struct load *load = &plan->loads[i];
        refs[i] = manifest->parts[load->part].ref;
        slices[i] = load->whole ? NULL : load->slices;
        counts[i] = load->whole ? 0 : manifest->parts[load->part].layout->count;
    }
    options.timeout_ns = left_ns(deadline_ns);
    options.slices = slices;
    options.slice_counts = counts;
    options.memory = "host";
    options.transport = plan->transport[0] ? plan->transport : NULL;
    if (status == RDT_OK)
        status = rdt_fetch(plan->conn, refs, plan->n_loads, &options, objects, err);
    free(refs);
    free(slices);
    free(counts);
    return status;
}

/* Checks that the object has the tensors that the manifest promised. */
static enum rdt_status check_object(const rdt_manifest *manifest, const struct load *load, const rdt_object *object,
                                    struct rdt_error *err)
{
    const struct layout *layout = manifest->parts[load->part].layout;
    struct rdt_tensor tensor;

    if (rdt_object_count(object) != layout->count)
        return rdt_error_set(err, RDT_MISMATCH, "part %u has %zu tensors, and the manifest says %u", load->part,
                             rdt_object_count(object), layout->count);
    for (uint32_t t = 0; t < layout->count; t++) {
        const int64_t *count = load->whole ? (const int64_t *)layout->shape + layout->first_dim[t] : load->slices[t].count;
        enum rdt_status status = rdt_object_tensor(object, t, &tensor, err);

        if (status != RDT_OK)
            return status;
        if ((uint32_t)tensor.dtype != layout->dtype[t] || tensor.ndim != layout->ndim[t] ||
            memcmp(tensor.shape ? tensor.shape : count, count, tensor.ndim * sizeof *count) != 0)
            return rdt_error_set(err, RDT_MISMATCH, "tensor %u of part %u is not what the manifest says", t, load->part);
    }
    return RDT_OK;
}

/* Where the part of a piece from `skip` [ndim] on lies. false: the tensor has no elements, as check_object has found. */
static bool find_source(const struct load *load, const struct piece *piece, const uint64_t *skip, const rdt_object *object,
                        struct strided *source_p)
{
    struct rdt_tensor tensor;
    int64_t at = 0;

    if (rdt_object_tensor(object, piece->tensor, &tensor, NULL) != RDT_OK || !tensor.data)
        return false;
    for (uint32_t d = 0; d < tensor.ndim; d++)
        at += (int64_t)((load->whole ? piece->from[d] : 0) + skip[d]) * tensor.strides[d];
    *source_p =
        (struct strided){tensor.dtype, (uint8_t *)tensor.data + at * (int64_t)rdt_dtype_bytes(tensor.dtype), tensor.strides};
    return true;
}

static enum rdt_status check_load(const rdt_plan *plan, const rdt_manifest *manifest, size_t load, const rdt_object *object,
                                  int64_t deadline_ns, struct rdt_error *err)
{
    enum rdt_status status = check_object(manifest, &plan->loads[load], object, err);

    return status == RDT_OK && plan->options.verify ? rdt_verify(object, left_ns(deadline_ns), err) : status;
}

static enum rdt_status copy_piece(rdt_plan *plan, const struct load *load, const struct piece *piece, const rdt_object *object,
                                  struct rdt_error *err)
{
    static const uint64_t nothing[RDT_MAX_NDIM];
    const struct want *want = &plan->wants[piece->want];
    int64_t at = 0;
    struct strided from, to;

    if (!find_source(load, piece, nothing, object, &from))
        return RDT_OK;
    for (uint32_t d = 0; d < want->box.ndim; d++)
        at += (int64_t)piece->to[d] * want->strides[d];
    to = (struct strided){want->box.dtype, want->data + at * (int64_t)rdt_dtype_bytes(want->box.dtype), want->strides};
    if (want->device != PLAN_HOST)
        return devices_copy(&plan->devices, want->device, want->box.ndim, piece->count, &from, &to, err);
    strided_copy(want->box.ndim, piece->count, &from, &to);
    return RDT_OK;
}

/* Whether both pieces, which two wants have in the same memory, bring the same bytes there. */
static bool bring_the_same(const rdt_plan *plan, const struct twin_piece *a, const struct twin_piece *b,
                           rdt_object *const *objects)
{
    const struct piece *one = &plan->pieces.list[a->piece], *other = &plan->pieces.list[b->piece];
    const struct wanted *want = &plan->wants[one->want].box;
    uint64_t start[RDT_MAX_NDIM], count[RDT_MAX_NDIM], skip_one[RDT_MAX_NDIM], skip_other[RDT_MAX_NDIM];
    struct strided from_one, from_other;

    if (!box_intersect(want->ndim, one->to, one->count, other->to, other->count, start, count))
        return true;
    for (uint32_t d = 0; d < want->ndim; d++) {
        skip_one[d] = start[d] - one->to[d];
        skip_other[d] = start[d] - other->to[d];
    }
    return !find_source(&plan->loads[a->load], one, skip_one, objects[a->load], &from_one) ||
           !find_source(&plan->loads[b->load], other, skip_other, objects[b->load], &from_other) ||
           strided_equal(want->ndim, count, &from_one, &from_other, want->dtype);
}

/* Tied weights are two tensors in the same memory. A version in which they differ would leave the one that is written last. */
static enum rdt_status check_twins(const rdt_plan *plan, rdt_object *const *objects, struct rdt_error *err)
{
    const struct twin_piece *list = plan->twin_pieces;

    for (size_t i = 0; i < plan->n_twin_pieces; i++) {
        for (size_t k = i + 1; k < plan->n_twin_pieces && list[k].twin == list[i].twin; k++) {
            uint32_t one = plan->pieces.list[list[i].piece].want, other = plan->pieces.list[list[k].piece].want;

            if (one != other && !bring_the_same(plan, &list[i], &list[k], objects))
                return rdt_error_set(err, RDT_MISMATCH,
                                     "tensors \"%s\" and \"%s\" differ, but the reader has both in the same memory",
                                     plan->wants[one < other ? one : other].key, plan->wants[one < other ? other : one].key);
        }
    }
    return RDT_OK;
}

static enum rdt_status copy_load(rdt_plan *plan, const struct load *load, const rdt_object *object, uint64_t *bytes_p,
                                 struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (size_t at = load->first; at < load->first + load->n && status == RDT_OK; at++) {
        const struct piece *piece = &plan->pieces.list[plan->order[at]];
        uint64_t bytes = rdt_dtype_bytes(plan->wants[piece->want].box.dtype);

        status = copy_piece(plan, load, piece, object, err);
        for (uint32_t d = 0; d < plan->wants[piece->want].box.ndim; d++)
            bytes *= piece->count[d];
        *bytes_p += bytes;
    }
    return status;
}

/* Writes the wants from the objects of the loads. Only a device can fail, and only its streams are waited for. */
static enum rdt_status write_wants(rdt_plan *plan, rdt_object *const *objects, int64_t deadline_ns, uint64_t *bytes_p,
                                   struct rdt_error *err)
{
    enum rdt_status status = devices_begin(&plan->devices, deadline_ns, err);

    if (status != RDT_OK)
        return status;
    for (size_t i = 0; i < plan->n_loads && status == RDT_OK; i++)
        status = copy_load(plan, &plan->loads[i], objects[i], bytes_p, err);
    status = devices_end(&plan->devices, status, err);
    if (status != RDT_OK)
        rdt_error_prefix(err, "the wants may have a part of the version");
    return status;
}

/* The objects that the loads bring, of the parts. NULL: no memory. */
static rdt_object **objects_of_loads(const rdt_plan *plan, rdt_object *const *parts)
{
    rdt_object **objects = calloc(plan->n_loads + 1, sizeof(rdt_object *));

    for (size_t i = 0; i < plan->n_loads && objects; i++)
        objects[i] = parts[plan->loads[i].part];
    return objects;
}

static void keep_layout(rdt_plan *plan, rdt_manifest *manifest)
{
    rdt_request_destroy(manifest->hold);
    manifest->hold = NULL;
    plan->layout = manifest;
}

enum rdt_status plan_fit(rdt_plan *plan, const rdt_manifest *manifest, rdt_object *const *parts, bool *planned_p,
                         struct rdt_error *err)
{
    int64_t deadline_ns = clock_deadline_ns(CALL_TIMEOUT_NS); /* of `verify`: nothing else waits */
    rdt_object **objects;
    enum rdt_status status = RDT_OK;

    plan->all_here = true;
    *planned_p = !is_planned(plan, manifest);
    if (*planned_p)
        status = make_plan(plan, manifest, err);
    plan->all_here = false;
    if (status != RDT_OK)
        return status;
    objects = objects_of_loads(plan, parts);
    status = objects ? RDT_OK : no_memory(err);
    for (size_t i = 0; i < plan->n_loads && status == RDT_OK; i++)
        status = check_load(plan, manifest, i, objects[i], deadline_ns, err);
    if (status == RDT_OK)
        status = check_twins(plan, objects, err);
    free(objects);
    return status;
}

enum rdt_status plan_write(rdt_plan *plan, rdt_object *const *parts, uint64_t *bytes_p, struct rdt_error *err)
{
    rdt_object **objects = objects_of_loads(plan, parts);
    enum rdt_status status = objects ? write_wants(plan, objects, CLOCK_NEVER, bytes_p, err) : no_memory(err);

    free(objects);
    return status;
}

void plan_keep(rdt_plan *plan, rdt_manifest *take_manifest)
{
    keep_layout(plan, take_manifest);
}

static uint64_t moved_from_others(const rdt_object *object)
{
    struct rdt_object_info info;

    rdt_object_info(object, &info);
    return strncmp(info.path, "local/", 6) == 0 ? 0 : info.bytes_moved;
}

static enum rdt_status run_version(rdt_plan *plan, const rdt_manifest *manifest, int64_t deadline_ns, struct rdt_plan_run *run,
                                   struct rdt_error *err)
{
    rdt_object **objects = calloc(plan->n_loads + 1, sizeof(rdt_object *));
    int64_t began_ns = clock_now_ns();
    enum rdt_status status = objects ? fetch_loads(plan, manifest, deadline_ns, objects, err) : no_memory(err);
    bool fetched = status == RDT_OK;

    for (size_t i = 0; i < plan->n_loads && status == RDT_OK; i++) {
        status = check_load(plan, manifest, i, objects[i], deadline_ns, err);
        if (!plan->near_parts[plan->loads[i].part])
            run->bytes_moved += moved_from_others(objects[i]);
    }
    run->fetch_ns = clock_now_ns() - began_ns;
    if (status == RDT_OK)
        status = check_twins(plan, objects, err);
    if (status == RDT_OK) {
        began_ns = clock_now_ns();
        status = write_wants(plan, objects, deadline_ns, &run->bytes, err);
        run->copy_ns = clock_now_ns() - began_ns;
    }
    rdt_cork(plan->conn);
    for (size_t i = 0; fetched && i < plan->n_loads; i++)
        rdt_release(objects[i]);
    rdt_uncork(plan->conn);
    free(objects);
    return status;
}

static size_t count_parts(const rdt_plan *plan)
{
    size_t n = 0;

    for (size_t i = 0; i < plan->n_loads; i++)
        n += i == 0 || plan->loads[i].part != plan->loads[i - 1].part;
    return n;
}

enum rdt_status rdt_plan_run(rdt_plan *plan, uint64_t after, int64_t timeout_ns, struct rdt_plan_run *run_p,
                             struct rdt_error *err)
{
    struct rdt_plan_run run = {0};
    int64_t deadline_ns = clock_deadline_ns(timeout_ns == 0 ? CLOCK_NO_WAIT_NS : timeout_ns), began_ns = clock_now_ns();
    rdt_manifest *manifest = NULL;
    enum rdt_status status;

    if (!plan)
        return rdt_error_set(err, RDT_INVALID, "plan is NULL");
    plan->name.after = plan->name.is_name ? after : 0;
    status = rdt_manifest_fetch(plan->conn, &plan->name, timeout_ns, &manifest, err);
    if (status != RDT_OK)
        return status;
    run.wait_ns = clock_now_ns() - began_ns;
    run.version = manifest->message->version;
    run.step = manifest->message->step;
    if (!is_planned(plan, manifest)) {
        run.planned = true;
        status = make_plan(plan, manifest, err);
    }
    if (status == RDT_OK)
        status = run_version(plan, manifest, deadline_ns, &run, err);
    if (status != RDT_OK && plan->name.is_name)
        rdt_error_prefix(err, "version %llu of \"%s\"", (unsigned long long)run.version, plan->name.id);
    else if (status != RDT_OK)
        rdt_error_prefix(err, "version %llu", (unsigned long long)run.version);
    run.parts = count_parts(plan);
    run.pieces = plan->pieces.n;
    if (run.planned && plan->order) /* the layout of the sources is kept for a comparison; the hold is dropped */
        keep_layout(plan, manifest);
    else
        rdt_manifest_release(manifest);
    if (status == RDT_OK && run_p)
        *run_p = run;
    return status;
}
