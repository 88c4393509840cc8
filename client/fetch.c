/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_fetch_start: builds FETCH messages from the caller's lists, and handles the events that answer them. */
#include "fetch.h"

#include <stddef.h>
#include <stdlib.h>

#include "fetched.h"
#include "memory/alloc.h"
#include "memory/batch.h"
#include "memory/loans.h"
#include "memory/mappers.h"
#include "memory/overlap.h"
#include "memory/room.h"
#include "options.h"
#include "proto/messages.h"
#include "proto/wire_limits.h"
#include "proto/wire_ref.h"
#include "rdt.pb-c.h"

#include "request.h"
#include "session/clock.h"
#include "session/events.h"

#define ITEM_OVERHEAD_BYTES 24u /* of an item in its message: tag, length, and the handle, which is not known yet */
#define FRAME_ROOM_BYTES 4096u  /* of a FETCH beside its items */

/* The daemon may share an object of this node up to this size although a copy was asked for. This process then copies it into
 * the targets itself, which takes one round trip instead of three. */
#define SELF_COPY_BYTES (4u << 20)

/* ---- events ---- */

static enum rdt_status arrive(rdt_request *request, const Rdt__Pb__FetchDone *done, const struct answer_fds *fds,
                              rdt_object **object_p, struct rdt_error *err)
{
    enum fetched_content content = FETCHED_TENSORS;
    rdt_object *object;
    enum rdt_status status;

    if (done->status != RDT_OK)
        return wire_error(done->status, done->sys_errno, done->message, err);
    if (request->kind == REQUEST_METADATA)
        content = FETCHED_METADATA;
    else if (request->targets && request->targets->direct && !done->to_copy)
        content = FETCHED_IN_TARGETS;
    status = fetched_create(request->conn, done, fds, content, request->kind == REQUEST_SLICES, &object, err);
    if (status != RDT_OK) {
        rdt_error_prefix(err, "fetch of %s", request->label);
        return status;
    }
    *object_p = object;
    return RDT_OK;
}

static void on_fetch_fds(rdt *conn, struct frame *frame)
{
    Rdt__Pb__FetchFds *message = rdt__pb__fetch_fds__unpack(NULL, frame->length, frame->payload);
    struct rdt_error err;
    enum rdt_status status = message ? fetched_fds_early(conn, message->handle, frame, &err)
                                     : rdt_error_set(&err, RDT_PROTOCOL, "rdtd sent a FETCH_FDS that cannot be read");

    rdt__pb__fetch_fds__free_unpacked(message, NULL);
    if (status != RDT_OK)
        connection_lose(conn, &err);
}

void fetch_on_event(rdt *conn, struct frame *frame)
{
    struct arena arena;
    struct rdt_error err;
    struct answer_fds fds;
    Rdt__Pb__FetchDone *done;
    rdt_request *request;

    if (frame->type == RDT_EVENT_REGION_GONE)
        alloc_on_region_gone(conn, frame);
    if (frame->type == RDT_EVENT_REGION_BACK)
        loans_on_back(conn, frame);
    if (frame->type == RDT_EVENT_HOLD_LOST)
        request_on_hold_lost(conn, frame);
    if (frame->type == RDT_EVENT_WATCHED)
        events_add(conn, frame);
    if (frame->type == RDT_EVENT_FETCH_FDS)
        on_fetch_fds(conn, frame);
    if (frame->type != RDT_EVENT_FETCH_DONE)
        return;
    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    done = rdt__pb__fetch_done__unpack(&arena.allocator, frame->length, frame->payload);
    for (size_t i = 0; done && i < done->n_regions; i++) /* whoever waits for the answer: the daemon counts on it */
        if (done->regions[i]->mapped_as != 0)
            memory_move(&conn->memory, done->regions[i]->mapped_as, done->regions[i]->region, done->regions[i]->generation);
    if (!done) {
        (void)rdt_error_set(&err, RDT_PROTOCOL, "rdtd sent a FETCH_DONE that cannot be read");
        connection_lose(conn, &err);
    } else if (fetched_fds_all(conn, done->handle, frame, &fds, &err) != RDT_OK) {
        connection_lose(conn, &err);
    } else {
        rdt_object *object = NULL;
        enum rdt_status status = RDT_CANCELLED; /* without a request: cancelled here, or past its deadline */
        bool asks_again = false;

        request = request_find(conn, done->handle);
        if (request)
            status = arrive(request, done, &fds, &object, &err);
        if (request && status != RDT_OK && room_await(conn, done, frame, &err)) {
            arena_fini(&arena);
            return;
        }
        if (request && status != RDT_OK && done->to_copy && request->targets && request->targets->on_device)
            asks_again = repeat_uncopied(conn, request); /* this process cannot map the object: the daemon copies it */
        batch_on_answer(conn, done, &fds, object, asks_again);
        if (object)
            request_arrive(request, object);
        else
            fetched_release_unseen(conn, done);
        if (request && status != RDT_OK && !asks_again)
            request_fail(request, &err);
        connection_close_early(&conn->calls.early);
    }
    arena_fini(&arena);
}

/* ---- building the items ---- */

struct fetch { /* one rdt_fetch_start, until it has been sent */
    rdt *conn;
    const struct rdt_fetch_options *options;
    struct arena arena;         /* items and what they point to */
    Rdt__Pb__FetchItem **items; /* [count] */
    rdt_request **requests;     /* [count], created, not started */
    size_t count;
    int64_t deadline_ns;
    enum rdt_fetch_mode mode;
    bool in_runs; /* lists of targets are sent in runs: the daemon understands them, and all fit into one message */
};

static enum rdt_status no_memory(struct rdt_error *err, size_t count)
{
    return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a fetch of %zu objects", count);
}

/* *n_dims_p receives the dimensions of all slices together. INVALID names the tensor. */
static enum rdt_status check_slices(const struct rdt_slice *slices, size_t count, size_t *n_dims_p, struct rdt_error *err)
{
    size_t n_dims = 0;

    if (count > RDT_MAX_TENSORS)
        return rdt_error_set(err, RDT_LIMIT, "there are %zu slices, but an object has at most %u tensors", count,
                             RDT_MAX_TENSORS);
    for (size_t i = 0; i < count; i++) {
        const struct rdt_slice *slice = &slices[i];

        if (slice->ndim > RDT_MAX_NDIM)
            return rdt_error_set(err, RDT_INVALID, "the slice of tensor %zu has %u dimensions, and the limit is %u", i,
                                 slice->ndim, RDT_MAX_NDIM);
        if (slice->ndim > 0 && (!slice->start || !slice->count))
            return rdt_error_set(err, RDT_INVALID, "start or count of the slice of tensor %zu is NULL", i);
        for (uint32_t d = 0; d < slice->ndim; d++) {
            if (slice->start[d] < 0 || slice->count[d] < 0)
                return rdt_error_set(err, RDT_INVALID,
                                     "in the slice of tensor %zu, dimension %u takes %lld elements from %lld on", i, d,
                                     (long long)slice->count[d], (long long)slice->start[d]);
        }
        n_dims += slice->ndim;
    }
    *n_dims_p = n_dims;
    return RDT_OK;
}

static enum rdt_status build_slice(struct arena *arena, const struct rdt_slice *slices, size_t count, Rdt__Pb__FetchItem *item,
                                   struct rdt_error *err)
{
    Rdt__Pb__Slice *message;
    size_t n_dims = 0, at = 0;
    enum rdt_status status = check_slices(slices, count, &n_dims, err);

    if (status != RDT_OK)
        return status;
    message = arena_message(arena, &rdt__pb__slice__descriptor);
    if (!message)
        return no_memory(err, 1);
    message->ndim = arena_alloc(arena, (count + 1) * sizeof *message->ndim);
    message->start = arena_alloc(arena, (n_dims + 1) * sizeof *message->start);
    message->count = arena_alloc(arena, (n_dims + 1) * sizeof *message->count);
    if (!message->ndim || !message->start || !message->count)
        return no_memory(err, 1);
    message->n_ndim = count;
    message->n_start = message->n_count = n_dims;
    for (size_t i = 0; i < count; i++) {
        message->ndim[i] = slices[i].ndim;
        for (uint32_t d = 0; d < slices[i].ndim; d++, at++) {
            message->start[at] = (uint64_t)slices[i].start[d];
            message->count[at] = (uint64_t)slices[i].count[d];
        }
    }
    item->slice = message;
    return RDT_OK;
}

/* Adds the regions of direct targets, into which the daemon writes itself. */
static enum rdt_status build_targets(struct arena *arena, const struct targets *targets, bool in_runs, Rdt__Pb__FetchItem *item,
                                     struct rdt_error *err)
{
    struct layout_rows *rows = NULL;

    item->targets = arena_alloc(arena, sizeof *item->targets);
    item->target_regions = arena_messages(arena, &rdt__pb__region_use__descriptor, targets->n_mappings);
    if (!item->targets || !item->target_regions)
        return no_memory(err, 1);
    if (in_runs && targets->layout->count >= LAYOUT_RUNS_LEAST)
        rows = arena_alloc(arena, sizeof *rows); /* NULL: the list is sent without runs */
    layout_to_wire(targets->layout, true, rows, item->targets);
    for (uint32_t i = 0; i < targets->n_mappings; i++) {
        item->target_regions[i]->region = targets->mappings[i]->region;
        item->target_regions[i]->generation = targets->mappings[i]->generation;
    }
    item->n_target_regions = targets->n_mappings;
    return RDT_OK;
}

static enum rdt_status create_request(struct fetch *fetch, size_t i, const struct rdt_ref *ref, struct rdt_error *err)
{
    const struct rdt_fetch_options *options = fetch->options;
    struct targets *targets = NULL;
    enum rdt_status status = RDT_OK;

    if (options->targets && options->targets[i]) {
        if (options->mode == RDT_FETCH_SHARE)
            return rdt_error_set(err, RDT_INVALID, "RDT_FETCH_SHARE does not write into targets: use another mode");
        if (!options->target_counts)
            return rdt_error_set(err, RDT_INVALID, "targets is set, but target_counts is NULL");
        status = targets_create(fetch->conn, options->targets[i], options->target_counts[i], &targets, err);
        if (status != RDT_OK)
            return status;
    }
    fetch->requests[i] = request_create(fetch->conn, ref, fetch_patience_ns(options), targets);
    if (!fetch->requests[i]) {
        connection_lock(fetch->conn);
        targets_destroy(fetch->conn, targets);
        connection_unlock(fetch->conn);
        return no_memory(err, fetch->count);
    }
    if (options->metadata_only)
        fetch->requests[i]->kind = REQUEST_METADATA;
    return RDT_OK;
}

static enum rdt_status build_item(struct fetch *fetch, size_t i, const struct rdt_ref *ref, struct rdt_error *err)
{
    const struct rdt_fetch_options *options = fetch->options;
    Rdt__Pb__FetchItem *item = arena_alloc(&fetch->arena, sizeof *item);
    Rdt__Pb__Ref *message = arena_alloc(&fetch->arena, sizeof *message);
    enum rdt_status status;

    if (!item || !message)
        return no_memory(err, fetch->count);
    status = options_check_ref(ref, err);
    if (status != RDT_OK)
        return status;
    rdt__pb__fetch_item__init(item);
    wire_ref_from(ref, message);
    item->ref = message;
    fetch->items[i] = item;
    status = create_request(fetch, i, ref, err);
    if (status == RDT_OK && options->slices && options->slices[i]) {
        fetch->requests[i]->kind = REQUEST_SLICES;
        if (options->slice_counts)
            status = build_slice(&fetch->arena, options->slices[i], options->slice_counts[i], item, err);
        else
            status = rdt_error_set(err, RDT_INVALID, "slices is set, but slice_counts is NULL");
    }
    item->to_host = fetch->requests[i] && fetch->requests[i]->targets && !fetch->requests[i]->targets->direct;
    if (status == RDT_OK && fetch->requests[i]->targets && fetch->requests[i]->targets->direct)
        status = build_targets(&fetch->arena, fetch->requests[i]->targets, fetch->in_runs, item, err);
    return status;
}

static bool targets_fit_runs(const struct fetch *fetch)
{
    size_t n = 0;

    for (size_t i = 0; fetch->options->targets && fetch->options->target_counts && i < fetch->count && n <= RDT_MAX_RUN_TENSORS;
         i++)
        if (fetch->options->targets[i])
            n += fetch->options->target_counts[i] < RDT_MAX_TENSORS ? fetch->options->target_counts[i] : RDT_MAX_TENSORS;
    return n <= RDT_MAX_RUN_TENSORS;
}

/* If librdt copies the bytes into the targets itself, the daemon need not make a private copy first: sharing is enough. The
 * mode applies to the whole fetch, so this must hold for all its objects. */
static enum rdt_fetch_mode choose_mode(const struct fetch *fetch)
{
    if (fetch->options->mode != RDT_FETCH_COPY && fetch->options->mode != RDT_FETCH_COW)
        return fetch->options->mode;
    for (size_t i = 0; i < fetch->count; i++) {
        if (!fetch->requests[i]->targets || fetch->requests[i]->targets->direct)
            return fetch->options->mode;
    }
    return RDT_FETCH_AUTO;
}

/* The object and the tensor that target i of all is for. */
static size_t owner_of(const struct fetch *fetch, size_t i, size_t *tensor_p)
{
    size_t ref = 0;

    for (; !fetch->requests[ref]->targets || i >= fetch->options->target_counts[ref]; ref++)
        i -= fetch->requests[ref]->targets ? fetch->options->target_counts[ref] : 0;
    *tensor_p = i;
    return ref;
}

static enum rdt_status refuse_overlap(const struct fetch *fetch, const struct overlap *overlap, struct rdt_error *err)
{
    size_t first, second, ref = owner_of(fetch, overlap->first, &first), other = owner_of(fetch, overlap->second, &second);

    if (ref == other)
        return rdt_error_set(
            err, RDT_INVALID,
            "ref %zu: target tensor %zu shares memory with target tensor %zu, so one would overwrite the other", ref, second,
            first);
    return rdt_error_set(
        err, RDT_INVALID,
        "ref %zu: target tensor %zu shares memory with target tensor %zu of ref %zu, so one would overwrite the other", other,
        second, first, ref);
}

/* Two targets in the same memory would leave what comes last. */
static enum rdt_status check_overlap(const struct fetch *fetch, struct rdt_error *err)
{
    const struct rdt_fetch_options *options = fetch->options;
    struct overlap overlap;
    struct rdt_tensor *all;
    enum rdt_status status;
    size_t count = 0, n = 0;

    for (size_t i = 0; options->targets && i < fetch->count; i++)
        count += options->targets[i] ? options->target_counts[i] : 0;
    if (count < 2)
        return RDT_OK;
    all = malloc(count * sizeof *all);
    if (!all)
        return no_memory(err, fetch->count);
    for (size_t i = 0; i < fetch->count; i++)
        for (size_t t = 0; options->targets[i] && t < options->target_counts[i]; t++)
            all[n++] = options->targets[i][t];
    status = overlap_find(all, count, NULL, &overlap);
    free(all);
    return status == RDT_OK          ? RDT_OK
           : status == RDT_NO_MEMORY ? no_memory(err, fetch->count)
                                     : refuse_overlap(fetch, &overlap, err);
}

static enum rdt_status build(struct fetch *fetch, const struct rdt_ref *refs, struct rdt_error *err)
{
    fetch->items = arena_alloc(&fetch->arena, (fetch->count + 1) * sizeof *fetch->items);
    if (!fetch->items)
        return no_memory(err, fetch->count);
    fetch->in_runs = fetch->conn->can.tensor_runs && targets_fit_runs(fetch);
    for (size_t i = 0; i < fetch->count; i++) {
        enum rdt_status status = build_item(fetch, i, &refs[i], err);

        if (status != RDT_OK) {
            rdt_error_prefix(err, "ref %zu", i);
            return status;
        }
    }
    fetch->mode = choose_mode(fetch);
    return check_overlap(fetch, err);
}

/* ---- sending: all functions here need the lock ---- */

/* Returns how many items from `first` on fit into one message. */
static size_t batch(const struct fetch *fetch, size_t first)
{
    size_t bytes = FRAME_ROOM_BYTES, n = 0;

    if (first + 1 == fetch->count)
        return 1; /* connection_send computes its size and refuses it if it is too large */
    while (first + n < fetch->count && n < RDT_MAX_FETCH_REFS) {
        bytes += protobuf_c_message_get_packed_size(&fetch->items[first + n]->base) + ITEM_OVERHEAD_BYTES;
        if (bytes > RDT_MAX_FRAME_BYTES && n > 0)
            break; /* with n == 0 the item is alone in its message, and connection_send refuses it */
        n++;
    }
    return n;
}

static bool has_device_targets(const struct fetch *fetch)
{
    for (size_t i = 0; i < fetch->count; i++)
        if (fetch->requests[i]->targets && fetch->requests[i]->targets->on_device)
            return true;
    return false;
}

static enum rdt_status send_batch(struct fetch *fetch, size_t first, size_t n, struct rdt_error *err)
{
    const struct rdt_fetch_options *options = fetch->options;
    Rdt__Pb__Fetch request = RDT__PB__FETCH__INIT;
    struct repeat *repeat;
    enum rdt_status status;
    char *maps[8], *devices[2 * MAPPER_MAX_DEVICES];

    for (size_t i = first; i < first + n; i++) {
        request_start(fetch->requests[i], clock_after_answer_ns(fetch->deadline_ns, fetch_patience_ns(options)));
        fetch->items[i]->handle = fetch->requests[i]->pending.id;
    }
    request.items = fetch->items + first;
    request.n_items = n;
    request.mode = (Rdt__Pb__FetchMode)fetch->mode;
    if (options->transport)
        request.transport = (char *)options->transport;
    if (options->least_path)
        request.least_path = (char *)options->least_path;
    if (options->group)
        request.group = (char *)options->group;
    request.memory = (char *)(options->memory ? options->memory : "");
    request.device = (char *)(options->device ? options->device : "");
    request.host_stays = options->host_stays;
    request.meta_only = options->metadata_only;
    request.maps = maps;
    request.n_maps = mapper_kinds(fetch->conn, maps, sizeof maps / sizeof maps[0]);
    request.mapped_devices = devices;
    request.n_mapped_devices =
        mapper_devices(fetch->conn, request.memory, request.device, devices, sizeof devices / sizeof devices[0]);
    request.self_copy_bytes = SELF_COPY_BYTES;
    request.copies_on_devices = mapper_copies(fetch->conn);
    request.moves_mappings = true;
    request.timeout_ns = options->timeout_ns == RDT_NO_WAIT ? 0 : clock_remaining_ns(fetch->deadline_ns);
    repeat = repeat_create(fetch->conn, RDT_MSG_FETCH, &request.base, request.copies_on_devices && has_device_targets(fetch));
    for (size_t i = first; i < first + n; i++)
        request_keep(fetch->requests[i], repeat);
    repeat_unref(repeat);
    request.fds_once = n > 1 && fetch->conn->state == CONNECTION_UP && batch_begin(fetch->conn, fetch->items[first]->handle, n);
    status = connection_send(fetch->conn, RDT_MSG_FETCH, 0, &request.base, false,
                             err); /* id 0: each item has a handle and an answer of its own */
    if (status == RDT_OK)
        mapper_devices_told(fetch->conn);
    if (status != RDT_OK && request.fds_once)
        batch_drop(fetch->conn, fetch->items[first]->handle);
    return status;
}

static enum rdt_status send_all(struct fetch *fetch, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    if (connection_has_ended(fetch->conn))
        return connection_lost_error(fetch->conn, err);
    if (!expiry_reserve(&fetch->conn->calls.expiries, fetch->count))
        return no_memory(err, fetch->count);
    for (size_t first = 0; first < fetch->count && status == RDT_OK;) {
        size_t n = batch(fetch, first);

        status = send_batch(fetch, first, n, err);
        first += n;
    }
    return status;
}

/* ---- the public calls ---- */

static enum rdt_status check_options(struct rdt_fetch_options *options, struct rdt_error *err)
{
    enum rdt_status status;

    if ((unsigned)options->mode > RDT_FETCH_COW)
        return rdt_error_set(err, RDT_INVALID, "fetch mode %d is unknown", (int)options->mode);
    if (options->timeout_ns <= 0)
        options->timeout_ns = RDT_FOREVER;
    status = options_check_text(options->transport, RDT_MAX_NAME_BYTES, "transport", err);
    if (status == RDT_OK)
        status = options_check_text(options->least_path, RDT_MAX_NAME_BYTES, "least_path", err);
    if (status == RDT_OK)
        status = options_check_text(options->group, RDT_MAX_NAME_BYTES, "group", err);
    if (status == RDT_OK)
        status = options_check_text(options->memory, RDT_MAX_NAME_BYTES, "memory", err);
    if (status == RDT_OK)
        status = options_check_text(options->device, 64, "device", err);
    if (status == RDT_OK && options->device && !options->memory)
        status = rdt_error_set(err, RDT_INVALID, "device is set, but memory is NULL: give the device's kind of memory");
    if (status == RDT_OK && options->metadata_only && (options->slices || options->targets))
        status = rdt_error_set(err, RDT_INVALID, "metadata_only fetches no bytes: slices and targets must be NULL");
    return status;
}

int64_t fetch_patience_ns(const struct rdt_fetch_options *options)
{
    return options->timeout_ns == RDT_NO_WAIT ? CLOCK_NO_WAIT_NS : options->timeout_ns;
}

enum rdt_status fetch_check(const rdt *conn, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *given,
                            struct rdt_fetch_options *options_p, struct rdt_error *err)
{
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK)
        status = options_copy(options_p, sizeof *options_p, given, err);
    if (status == RDT_OK)
        status = check_options(options_p, err);
    if (status == RDT_OK && count > 0 && !refs)
        status = rdt_error_set(err, RDT_INVALID, "refs is NULL, and count is %zu", count);
    return status;
}

/* options may be those of an earlier version. */
enum rdt_status fetch_check_verify(const struct rdt_fetch_options *options, bool may, bool *verifies_p, struct rdt_error *err)
{
    const size_t end = offsetof(struct rdt_fetch_options, verify) + sizeof options->verify;

    *verifies_p = options && options->struct_size >= end && options->verify;
    if (*verifies_p && !may)
        return rdt_error_set(err, RDT_INVALID, "rdt_fetch_start cannot verify: call rdt_verify when the request has ended");
    if (*verifies_p && (options->slices || options->metadata_only))
        return rdt_error_set(err, RDT_INVALID,
                             "only whole objects can be verified: slices must be NULL, and metadata_only false");
    return RDT_OK;
}

enum rdt_status fetch_begin(rdt *conn, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *options,
                            int64_t deadline_ns, rdt_request **requests, struct rdt_error *err)
{
    struct fetch fetch = {.conn = conn, .options = options, .requests = requests, .count = count, .deadline_ns = deadline_ns};
    enum rdt_status status;

    arena_init(&fetch.arena, SIZE_MAX / 2);
    status = build(&fetch, refs, err);
    connection_lock(conn);
    if (status == RDT_OK)
        status = send_all(&fetch, err);
    for (size_t i = 0; i < count && status != RDT_OK; i++) {
        if (requests[i])
            request_undo(requests[i]);
        requests[i] = NULL;
    }
    connection_unlock(conn);
    arena_fini(&fetch.arena);
    return status;
}

/* requests_p is written only on success, and the list is built before. */
enum rdt_status rdt_fetch_start(rdt *conn, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *options,
                                rdt_request **requests_p, struct rdt_error *err)
{
    struct rdt_fetch_options own;
    rdt_request **requests = NULL;
    bool verifies;
    enum rdt_status status = fetch_check_verify(options, false, &verifies, err);

    if (status == RDT_OK && count > 0)
        status = options_check_out(requests_p, "requests_p", err);
    if (status == RDT_OK)
        status = fetch_check(conn, refs, count, options, &own, err);
    if (status == RDT_OK && !(requests = calloc(count + 1, sizeof(rdt_request *))))
        status = no_memory(err, count);
    if (status != RDT_OK)
        return status;
    status = fetch_begin(conn, refs, count, &own, clock_deadline_ns(fetch_patience_ns(&own)), requests, err);
    for (size_t i = 0; status == RDT_OK && i < count; i++)
        requests_p[i] = requests[i];
    free(requests);
    return status;
}
