/* SPDX-License-Identifier: Apache-2.0 */
/* See rdt_cuda.h. The daemon knows an exported allocation by this connection only while the put is under way (offers.c). From
 * then on the object holds it, and the next put looks anew at what lies at the address.
 *
 * All parts of a put keep its one deadline. Tensors that must be copied are copied at last, together (rooms.c). If the library
 * copies all of them, nobody writes the copies, and the daemon need not copy them again for a snapshot.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cuda/gpu.h"
#include "client/rdt_many.h"

#define MAX_OFFERED \
    1024u /* ranges of one put: tensors in others are copied, because an object has at most 4096 ranges of memory */

struct place { /* of a tensor */
    struct address_range extent;
    struct cuda_gpu *gpu; /* NULL: it is in host memory, or has no elements */
};

struct put_call {
    struct handle *handle;
    const struct rdt_cuda_put_options *options;
    int64_t deadline_ns;
    size_t count;
    struct rdt_tensor *tensors;           /* [count] a copy; data of a copied tensor points to the copy */
    struct cuda_gpu *gpus[CUDA_MAX_GPUS]; /* [n_gpus] that tensors are on */
    unsigned n_gpus;
    struct places places;
    struct place *at;             /* [count] */
    struct address_range *chunks; /* [count] of tensors on GPUs: the allocations that hold them */
    struct offer **offers;        /* [n_offers] one for each tensor, released when the put is over */
    size_t n_offers;
    unsigned n_offered; /* about as many ranges of memory */
    struct rooms rooms;
};

/* Returns the bytes that the tensor's elements touch, of all its strides. from == to: it has no elements. */
static enum rdt_status find_extent(const struct rdt_tensor *tensor, size_t i, struct address_range *extent_p,
                                   struct rdt_error *err)
{
    struct rdt_tensor one = *tensor;
    __int128 lo = 0, hi;
    size_t bytes, item;
    enum rdt_status status = rdt_tensor_bytes(tensor, &bytes, err);

    if (status == RDT_OK) {
        one.ndim = 0;
        status = rdt_tensor_bytes(&one, &item, err);
    }
    if (status != RDT_OK) {
        rdt_error_prefix(err, "tensor %zu", i);
        return status;
    }
    if (bytes == 0) {
        *extent_p = (struct address_range){(uintptr_t)tensor->data, (uintptr_t)tensor->data};
        return RDT_OK;
    }
    hi = tensor->strides ? item : bytes;
    for (uint32_t d = 0; tensor->strides && d < tensor->ndim; d++)
        *(tensor->strides[d] < 0 ? &lo : &hi) += (__int128)(tensor->shape[d] - 1) * tensor->strides[d] * (__int128)item;
    lo += (__int128)(uintptr_t)tensor->data;
    hi += (__int128)(uintptr_t)tensor->data;
    if (lo < 0 || hi > (__int128)UINTPTR_MAX)
        return rdt_error_set(err, RDT_INVALID, "tensor %zu: its strides lead outside the address space", i);
    *extent_p = (struct address_range){(uintptr_t)lo, (uintptr_t)hi};
    return RDT_OK;
}

/* What is left of the put's time, as librdt's calls take it: never 0, which means a default. */
static int64_t remaining_ns(const struct put_call *call)
{
    int64_t left_ns = clock_remaining_ns(call->deadline_ns);

    return left_ns != 0 ? left_ns : 1;
}

/* ---- taking tensors ---- */

/* Notes that a tensor uses the offer. Tensors in one allocation use the same one. */
static void add_offer(struct put_call *call, struct offer *offer, struct allocation *allocation)
{
    bool counted = (allocation && allocation->offered) || (call->n_offers > 0 && call->offers[call->n_offers - 1] == offer);

    call->offers[call->n_offers++] = offer;
    call->n_offered += !counted;
    if (allocation)
        allocation->offered = true;
}

static enum rdt_status take_on_gpu(struct put_call *call, struct cuda_gpu *gpu, size_t i, struct address_range extent,
                                   enum rdt_cuda_how *how_p, struct rdt_error *err)
{
    rdt_cuda *cuda = &call->handle->cuda;
    struct allocation *allocation = places_at(&call->places, extent.from);
    bool full = call->n_offered >= MAX_OFFERED && !(allocation && allocation->offered);
    bool copy = call->options->copy || full || (allocation && allocation->refused);
    struct offer_request request = {extent, call->chunks[i], copy, call->deadline_ns};
    struct offer *offer;
    enum rdt_status status = places_enter(&call->places, gpu, err);

    if (status != RDT_OK)
        return status;
    if (call->options->to_host) {
        *how_p = RDT_CUDA_TO_HOST;
        call->rooms.copied[i] = (struct copied){gpu, extent};
        return RDT_OK;
    }
    status = offers_acquire(&call->handle->offers, cuda, gpu, &request, &offer, how_p, err);
    if (status == RDT_OK && offer) {
        add_offer(call, offer, allocation);
    } else if (status == RDT_UNSUPPORTED) {
        *how_p = RDT_CUDA_COPIED;
        if (allocation)
            allocation->refused = true;
        call->rooms.copied[i] = (struct copied){gpu, extent};
        status = RDT_OK;
    }
    return status;
}

static void add_gpu(struct put_call *call, struct cuda_gpu *gpu)
{
    for (unsigned i = 0; i < call->n_gpus; i++)
        if (call->gpus[i] == gpu)
            return;
    call->gpus[call->n_gpus++] = gpu;
}

/* Host memory that the daemon knows needs no GPU; of all other memory the driver is asked. */
static enum rdt_status find_place(struct put_call *call, size_t i, struct rdt_error *err)
{
    rdt_cuda *cuda = &call->handle->cuda;
    struct place *place = &call->at[i];
    bool known = false;
    const char *memory = "host";
    enum rdt_status status = find_extent(&call->tensors[i], i, &place->extent, err);

    if (status != RDT_OK || place->extent.from == place->extent.to)
        return status;
    if (rdt_known(cuda->conn, (void *)place->extent.from, place->extent.to - place->extent.from, &known, &memory, NULL, NULL) ==
            RDT_OK &&
        known && strcmp(memory, "host") == 0)
        return RDT_OK;
    status = places_find(&call->places, place->extent, &place->gpu, &call->chunks[i], err);
    if (status != RDT_OK)
        rdt_error_prefix(err, "tensor %zu", i);
    if (place->gpu)
        add_gpu(call, place->gpu);
    return status;
}

/* Finds where all tensors lie, and which share chunks. Must come before the first offer, because those are offered together. */
static enum rdt_status find_places(struct put_call *call, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (size_t i = 0; status == RDT_OK && i < call->count; i++)
        status = find_place(call, i, err);
    return status == RDT_OK ? offers_join_ranges(call->chunks, call->count, err) : status;
}

static enum rdt_status take_tensor(struct put_call *call, size_t i, enum rdt_cuda_how *how_p, struct rdt_error *err)
{
    const struct place *place = &call->at[i];
    bool known = false;
    enum rdt_status status = RDT_OK;

    *how_p = RDT_CUDA_HOST;
    if (place->extent.from == place->extent.to)
        return RDT_OK;
    if (place->gpu) /* also when the daemon knows only a part of it, or knows it by another put */
        status = take_on_gpu(call, place->gpu, i, place->extent, how_p, err);
    else
        status = rdt_known(call->handle->cuda.conn, (void *)place->extent.from, place->extent.to - place->extent.from, &known,
                           NULL, NULL, err);
    if (status == RDT_OK && !place->gpu && !known && call->options->has_stream)
        status = rdt_error_set(err, RDT_INVALID,
                               "it lies in host memory that rdtd does not know, which no stream can write after the put");
    if (status != RDT_OK)
        rdt_error_prefix(err, "tensor %zu", i);
    return status;
}

static enum rdt_status refuse_captured(struct rdt_error *err)
{
    return rdt_error_set(err, RDT_INVALID,
                         "the stream is being captured into a CUDA graph, and its work has not begun: put before or after the "
                         "capture");
}

/* Each GPU has default streams of its own. None of them may be used while a stream that it waits for is captured. */
static enum rdt_status check_default_streams(struct put_call *call, struct rdt_error *err)
{
    struct cuda_driver *driver = call->handle->cuda.driver;
    enum rdt_status status = RDT_OK;

    if (!call->options->has_stream || !stream_is_default(call->options->stream))
        return RDT_OK;
    for (unsigned i = 0; status == RDT_OK && i < call->n_gpus; i++) {
        struct entered entered;
        status = gpu_enter(driver, call->gpus[i], &entered, err);
        if (status != RDT_OK)
            break;
        if (stream_is_captured(driver, call->options->stream))
            status = refuse_captured(err);
        gpu_leave(driver, &entered);
    }
    return status;
}

static enum rdt_status take_tensors(struct put_call *call, struct rdt_error *err)
{
    const CUstream stream = call->options->stream;
    enum rdt_status status = find_places(call, err);

    if (status == RDT_OK)
        status = check_default_streams(call, err);

    for (size_t i = 0; status == RDT_OK && i < call->count; i++) {
        enum rdt_cuda_how how;
        status = take_tensor(call, i, &how, err);
        if (call->options->how)
            call->options->how[i] = how;
    }
    places_leave(&call->places);
    if (status == RDT_OK)
        status = rooms_copy(&call->rooms, call->tensors, call->options->has_stream ? &stream : NULL, call->deadline_ns, err);
    return status;
}

/* ---- put ---- */

/* Whether every tensor that has elements lies in memory of this put alone. */
static bool all_copied(const struct put_call *call)
{
    for (size_t i = 0; i < call->count; i++)
        if (call->at[i].extent.from != call->at[i].extent.to && !call->rooms.copied[i].gpu)
            return false;
    return call->rooms.n_buffers > 0;
}

/* The library writes its copies no more, and uses memory on a GPU for nothing else, and pinned memory when no object lies there
 * any more. So the object need not be copied again to be constant, unless it is to be sealed, or others than its owner may read
 * it: they are not to depend on the library's word. */
static void choose_flags(const struct put_call *call, struct rdt_put_options *put)
{
    const uint32_t unsealed = RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED;
    uint32_t others = put->flags & ~(unsealed | RDT_PUT_DETACHED | RDT_PUT_REPLACE | RDT_PUT_SUM);
    bool live_in_host_memory = call->options->to_host && (put->flags & unsealed) == 0;

    if (put->visibility != RDT_VISIBLE_TO_OWNER || others != 0 || !all_copied(call))
        return;
    if ((put->flags & unsealed) == unsealed || live_in_host_memory)
        put->flags = (put->flags & ~unsealed) | RDT_PUT_IMMUTABLE;
}

/* Each GPU has default streams of its own, and the producer's work on all of them must have ended. A stream that was made
 * belongs to one GPU, and work on others that it does not follow is the caller's to order. */
static enum rdt_status wait_for_all_gpus(struct put_call *call, struct completion *completion, struct rdt_error *err)
{
    struct cuda_driver *driver = call->handle->cuda.driver;
    enum rdt_status status = RDT_OK;

    if (!stream_is_default(call->options->stream))
        return RDT_OK;
    for (unsigned i = 1; status == RDT_OK && i < call->n_gpus; i++) {
        struct entered entered;
        status = gpu_enter(driver, call->gpus[i], &entered, err);
        if (status != RDT_OK)
            break;
        status = completion_add_gpu(completion, err);
        gpu_leave(driver, &entered);
    }
    return status;
}

/* Puts an object that becomes ready when the stream has come to it. On an error the buffers are still the call's. */
static enum rdt_status put_pending(struct put_call *call, struct rdt_put_options *options, struct rdt_ref *ref_p,
                                   struct rdt_error *err)
{
    struct handle *handle = call->handle;
    struct completion *completion;
    struct rdt_ref ref;
    enum rdt_status status = completion_create(&handle->streams, 1, &completion, err);

    if (status != RDT_OK)
        return status;
    options->flags |= RDT_PUT_PENDING;
    status = wait_for_all_gpus(call, completion, err);
    if (status == RDT_OK)
        status = rdt_put(handle->cuda.conn, call->tensors, call->count, options, &ref, err);
    if (status != RDT_OK) {
        completion_destroy(completion);
        return status;
    }
    status = completion_enqueue(completion, call->options->stream, &ref, call->rooms.buffers, call->rooms.n_buffers, err);
    if (status != RDT_OK) {
        (void)rdt_fail(handle->cuda.conn, &ref, RDT_SYSTEM, "the library could not wait for the producer's stream", NULL);
        return status;
    }
    *ref_p = ref;
    rooms_taken(&call->rooms);
    return RDT_OK;
}

/* The put itself, once its tensors are taken with `status`. The GPU is entered for what uses the stream: the caller's thread
 * need not have a context, and a default stream belongs to one. */
static enum rdt_status put_taken(struct put_call *call, enum rdt_status status, struct rdt_put_options *options,
                                 struct rdt_ref *ref_p, struct rdt_error *err)
{
    rdt_cuda *cuda = &call->handle->cuda;
    struct entered entered;
    bool in_gpu = false;

    if (call->n_gpus > 0 && call->options->has_stream && (status == RDT_OK || call->rooms.n_buffers > 0)) {
        enum rdt_status why = gpu_enter(cuda->driver, call->gpus[0], &entered, status == RDT_OK ? err : NULL);
        in_gpu = why == RDT_OK;
        if (status == RDT_OK)
            status = why;
    }
    if (status == RDT_OK)
        status = call->options->has_stream ? put_pending(call, options, ref_p, err)
                                           : rdt_put(cuda->conn, call->tensors, call->count, options, ref_p, err);
    for (size_t i = 0; i < call->n_offers; i++) /* if there is an object, it holds the memory now */
        offers_release(&call->handle->offers, cuda, call->offers[i]);
    if (call->options->has_stream)
        rooms_abandon(&call->rooms, call->options->stream);
    if (in_gpu)
        gpu_leave(cuda->driver, &entered);
    return status;
}

enum rdt_status rdt_cuda_put(rdt_cuda *cuda, const struct rdt_tensor *tensors, size_t count,
                             const struct rdt_cuda_put_options *given, struct rdt_ref *ref_p, struct rdt_error *err)
{
    struct rdt_cuda_put_options options = {.struct_size = sizeof options};
    struct rdt_put_options put = RDT_INIT(put);
    struct put_call call = {.handle = (struct handle *)cuda, .options = &options, .count = count};
    enum rdt_status status;

    status = cuda_check(cuda, err);
    if (status == RDT_OK && (!ref_p || (count > 0 && !tensors)))
        status = rdt_error_set(err, RDT_INVALID, "tensors or ref_p is NULL");
    if (status != RDT_OK)
        return status;
    if (given)
        memcpy(&options, given, given->struct_size < sizeof options ? given->struct_size : sizeof options);
    if (options.has_stream && !stream_is_default(options.stream) && stream_is_captured(cuda->driver, options.stream))
        return refuse_captured(err);
    if (options.put)
        memcpy(&put, options.put, options.put->struct_size < sizeof put ? options.put->struct_size : sizeof put);
    put.struct_size = sizeof put;
    call.deadline_ns = clock_deadline_ns(put.timeout_ns > 0 ? put.timeout_ns : RDT_FOREVER);
    call.tensors = calloc(count + 1, sizeof *call.tensors);
    call.places.driver = cuda->driver;
    call.at = calloc(count + 1, sizeof *call.at);
    call.chunks = calloc(count + 1, sizeof *call.chunks);
    call.offers = calloc(count + 1, sizeof(struct offer *));
    status = rooms_init(&call.rooms, call.handle, count, err);
    call.rooms.to_host = options.to_host;
    if (status == RDT_OK && (!call.tensors || !call.at || !call.chunks || !call.offers))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to put %zu tensors", count);
    if (status == RDT_OK) {
        for (size_t i = 0; i < count; i++)
            call.tensors[i] = tensors[i];
        status = take_tensors(&call, err);
    }
    if (put.timeout_ns > 0)
        put.timeout_ns = remaining_ns(&call);
    if (status == RDT_OK)
        choose_flags(&call, &put);
    status = put_taken(&call, status, &put, ref_p, err);
    places_fini(&call.places);
    free(call.tensors);
    free(call.at);
    free(call.chunks);
    free(call.offers);
    rooms_fini(&call.rooms);
    return status;
}

/* ---- many objects in host memory ----
 *
 *     GPU      copy group 0 | copy group 1 | copy group 2 | ...
 *     daemon                | put group 0  | put group 1  | ...
 */

#define GROUP_BYTES ((size_t)16 << 20) /* of the tensors of a group, unless one value has more */

struct group {             /* values that are copied, and then put, together */
    size_t first, n;       /* of the call's values */
    struct rdt_value *own; /* [n] copies of them, whose tensors lie in host memory */
    struct rdt_tensor *tensors;
    struct rooms rooms;
    int64_t deadline_ns;
    enum rdt_status status; /* of the copy, so far */
    struct rdt_error why;
};

struct many {
    struct handle *handle;
    const struct rdt_value *values;
    size_t count;
    struct rdt_put_options put;
    struct rdt_ref *refs;
    enum rdt_status *statuses;
    struct places places;
    enum rdt_status over;   /* TIMED_OUT, CANCELLED: what is left is not copied */
    struct rdt_error first; /* the sentence of the first value that was not put */
};

static uint64_t bytes_of_value(const struct rdt_value *value)
{
    uint64_t all = 0;
    size_t bytes;

    for (size_t t = 0; value->tensors && t < value->count; t++)
        all += rdt_tensor_bytes(&value->tensors[t], &bytes, NULL) == RDT_OK ? bytes : 0;
    return all;
}

/* Makes the group of the values from `first` on, with room for their tensors. */
static enum rdt_status group_init(struct many *many, size_t first, struct group *group_p, struct rdt_error *err)
{
    size_t n_tensors = 0;
    uint64_t bytes = 0;
    enum rdt_status status;

    *group_p = (struct group){.first = first};
    for (size_t i = first; i < many->count; i++) {
        const struct rdt_value *value = &many->values[i];
        uint64_t more = bytes_of_value(value);
        if (group_p->n > 0 && (bytes > GROUP_BYTES || more > GROUP_BYTES - bytes))
            break;
        bytes += more;
        n_tensors += value->tensors ? value->count : 0;
        group_p->n++;
    }
    group_p->own = calloc(group_p->n + 1, sizeof *group_p->own);
    group_p->tensors = calloc(n_tensors + 1, sizeof *group_p->tensors);
    status = rooms_init(&group_p->rooms, many->handle, n_tensors, err);
    group_p->rooms.to_host = true;
    group_p->rooms.buffer_bytes = GROUP_BYTES;
    if (status == RDT_OK && (!group_p->own || !group_p->tensors))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to put %zu values", group_p->n);
    return status;
}

static enum rdt_status find_tensors(struct many *many, struct group *group, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;
    size_t at = 0;

    for (size_t i = 0; status == RDT_OK && i < group->n; i++) {
        const struct rdt_value *value = &many->values[group->first + i];
        group->own[i] = *value;
        if (value->tensors)
            group->own[i].tensors = &group->tensors[at];
        for (size_t t = 0; status == RDT_OK && value->tensors && t < value->count; t++, at++) {
            struct copied *copied = &group->rooms.copied[at];
            struct address_range ignored;
            group->tensors[at] = value->tensors[t];
            status = find_extent(&value->tensors[t], t, &copied->extent, err);
            if (status == RDT_OK && copied->extent.from != copied->extent.to)
                status = places_find(&many->places, copied->extent, &copied->gpu, &ignored, err);
        }
    }
    places_leave(&many->places);
    return status;
}

/* Begins to copy the tensors of the group to host memory. */
static void group_begin(struct many *many, size_t first, struct group *group_p)
{
    const CUstream stream = CU_STREAM_PER_THREAD;
    struct rdt_error *why = &group_p->why;
    enum rdt_status status = group_init(many, first, group_p, why);

    group_p->deadline_ns = clock_deadline_ns(many->put.timeout_ns > 0 ? many->put.timeout_ns : RDT_FOREVER);
    if (status == RDT_OK && many->over != RDT_OK)
        status = rdt_error_set(why, many->over, "it was not copied, because the copy of another value has not ended");
    if (status == RDT_OK)
        status = find_tensors(many, group_p, why);
    if (status == RDT_OK)
        status = rooms_copy(&group_p->rooms, group_p->tensors, &stream, group_p->deadline_ns, why);
    group_p->status = status;
}

static void note_first(struct many *many, size_t i, const struct rdt_error *why)
{
    if (many->first.status != RDT_OK)
        return;
    many->first = *why;
    rdt_error_prefix(&many->first, "value %zu", i);
}

/* rdt_put_many has named the value by its number in the group. */
static void note_put(struct many *many, const struct group *group, struct rdt_error *why)
{
    char number[32];
    size_t i = 0;

    while (i < group->n && many->statuses[group->first + i] == RDT_OK)
        i++;
    (void)snprintf(number, sizeof number, "value %zu: ", i);
    if (strncmp(why->msg, number, strlen(number)) == 0)
        memmove(why->msg, why->msg + strlen(number), strlen(why->msg + strlen(number)) + 1);
    note_first(many, group->first + i, why);
}

/* Waits until the tensors of the group have been copied. */
static void group_await(struct many *many, struct group *group)
{
    if (group->status == RDT_OK)
        group->status = rooms_await(&group->rooms, CU_STREAM_PER_THREAD, group->deadline_ns, &group->why);
    if (group->status == RDT_TIMED_OUT || group->status == RDT_CANCELLED)
        many->over = group->status;
}

/* Puts the values of a group whose tensors have been copied, and frees it. */
static void group_end(struct many *many, struct group *group)
{
    enum rdt_status *statuses = many->statuses + group->first, status = group->status;
    struct rdt_error *why = &group->why;

    if (status != RDT_OK) {
        rooms_abandon(&group->rooms, CU_STREAM_PER_THREAD);
        note_first(many, group->first, why);
    } else {
        status =
            rdt_put_many(many->handle->cuda.conn, group->own, group->n, &many->put, many->refs + group->first, statuses, why);
        if (status != RDT_OK)
            note_put(many, group, why);
    }
    for (size_t i = 0; i < group->n; i++) {
        if (statuses[i] == RDT_AGAIN)
            statuses[i] = status;
        if (statuses[i] == RDT_CANCELLED)
            many->over = RDT_CANCELLED;
    }
    rooms_fini(&group->rooms);
    free(group->own);
    free(group->tensors);
}

static void put_groups(struct many *many)
{
    struct group groups[2];
    unsigned now = 0;

    group_begin(many, 0, &groups[now]);
    while (groups[now].first < many->count) {
        size_t next = groups[now].first + groups[now].n;
        group_await(many, &groups[now]); /* first: it waits for all that is in the stream */
        if (next < many->count)
            group_begin(many, next, &groups[!now]);
        group_end(many, &groups[now]);
        now = !now;
        if (next == many->count)
            break;
    }
}

static enum rdt_status check_many(struct many *many, const struct rdt_put_options *options, struct rdt_error *err)
{
    const uint32_t kinds = RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED | RDT_PUT_IMMUTABLE;

    if (many->count > 0 && (!many->values || !many->refs))
        return rdt_error_set(err, RDT_INVALID, "values or refs_p is NULL, and count is %zu", many->count);
    if (options)
        memcpy(&many->put, options, options->struct_size < sizeof many->put ? options->struct_size : sizeof many->put);
    many->put.struct_size = sizeof many->put;
    if (many->put.flags & RDT_PUT_PENDING)
        return rdt_error_set(err, RDT_INVALID, "values that are copied to host memory are not put as PENDING");
    many->put.flags = (many->put.flags & ~kinds) | RDT_PUT_SNAPSHOT;
    return RDT_OK;
}

enum rdt_status rdt_cuda_put_many(rdt_cuda *cuda, const struct rdt_value *values, size_t count,
                                  const struct rdt_put_options *options, struct rdt_ref *refs_p, enum rdt_status *statuses_p,
                                  struct rdt_error *err)
{
    struct many many = {.handle = (struct handle *)cuda, .values = values, .count = count, .refs = refs_p};
    bool frees;
    enum rdt_status status = cuda_check(cuda, err);

    if (status == RDT_OK)
        status = check_many(&many, options, err);
    if (status != RDT_OK || count == 0)
        return status;
    many.statuses = statuses_p ? statuses_p : calloc(count, sizeof *many.statuses);
    if (!many.statuses)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to put %zu values", count);
    for (size_t i = 0; i < count; i++)
        many.statuses[i] = RDT_AGAIN;
    many.places.driver = cuda->driver;
    put_groups(&many);
    places_fini(&many.places);
    frees = !statuses_p && many.first.status != RDT_OK && !(many.put.flags & RDT_PUT_REPLACE); /* what was replaced has gone */
    for (size_t i = 0; frees && i < count; i++)
        if (many.statuses[i] == RDT_OK)
            (void)rdt_drop(cuda->conn, &refs_p[i], NULL);
    if (!statuses_p)
        free(many.statuses);
    if (many.first.status != RDT_OK && err)
        *err = many.first;
    return many.first.status;
}
