/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_put: finds out where each tensor's bytes are, copies those that the daemon cannot reach, and creates the object.
 *
 * Tensors in memory that the daemon knows (rdt_alloc, rdt_import) are put where they lie. The bytes of all others,
 * n in total, are copied once. choose() says where to, by the first row that fits:
 *
 *     n                 the put is                     method     copied into                            messages
 *     0                                                NOTHING                                           PUT
 *     <= 32 KiB                                        INLINE     the message PUT                        PUT
 *     any               a snapshot                     GIVEN      a region that this process unmaps,     ALLOC, PUT
 *                                                                 so that the daemon can seal it
 *     any               without flags but DETACHED     LOANED     a region that the next such put        PUT (ALLOC before,
 *                       and REPLACE, for its owner                uses again                             if none is idle)
 *     any               any other                      RELEASED   a region of this put alone             ALLOC, PUT,
 *                                                                                                        RELEASE_REGION
 *
 * LOANED tries once more with a new region if the daemon has dropped the idle one meanwhile.
 */
#include "put.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "call.h"
#include "memory/alloc.h"
#include "memory/loans.h"
#include "options.h"
#include "proto/grow.h"
#include "proto/wire_limits.h"
#include "proto/wire_ref.h"
#include "rdt.pb-c.h"
#include "session/clock.h"
#include "session/interrupt.h"
#include "shards.h"
#include "tensor.h"

#define COPY_BYTES ((uint64_t)64 << 20) /* what is copied between two looks at the clock */
#define WRITE_MIN_BYTES 65536
#define BESIDE_LOANS (RDT_PUT_DETACHED | RDT_PUT_REPLACE) /* flags that do not prevent that a region is loaned */

enum method { NOTHING, INLINE, GIVEN, LOANED, RELEASED };

struct put {
    rdt *conn;
    const struct rdt_put_options *options;
    int64_t deadline_ns;   /* until when the daemon waits for room and copies */
    int64_t answer_ns;     /* until when its answers may come */
    struct layout *layout; /* an offset is an address until the tensor's place is known */
    struct shards_packed shards;
    enum rdt_memory *how; /* [count] */
    Rdt__Pb__RegionUse *regions;
    uint32_t n_regions;
    size_t room;

    bool device;  /* a tensor lies on a device */
    uint64_t sum; /* with RDT_PUT_SUM */
    enum method method;
    uint64_t copied_bytes; /* packed, with padding between tensors */
    uint32_t copy_index;   /* the copy's region in the message; n_regions for INLINE, which has none */
    uint8_t *inline_data;  /* INLINE */
    int fd;                /* GIVEN: the region's fd if nobody has mapped it before; else -1 */
    struct mapping *copy;  /* GIVEN, RELEASED: one reference, until the put ends or the region is given */
    struct loan *loan;     /* LOANED */
    bool given;            /* regions[copy_index] is unmapped, and becomes the snapshot */
};

static void put_fini(struct put *put, bool done)
{
    if (put->loan || put->copy) {
        connection_lock(put->conn);
        if (put->loan)
            loans_end(put->conn, put->loan, done);
        else
            alloc_release(put->conn, put->copy); /* the object keeps the bytes alive */
        connection_unlock(put->conn);
    }
    if (put->given && !done) {
        alloc_release_unmapped(put->conn, put->regions[put->copy_index].region);
    } else if (put->given) {
        connection_lock(put->conn);
        ids_remove(&put->conn->memory.unmapped, put->regions[put->copy_index].region);
        connection_unlock(put->conn);
    }
    if (put->fd >= 0)
        (void)close(put->fd);
    shards_packed_fini(&put->shards);
    free(put->inline_data);
    free(put->how);
    free(put->regions);
    free(put->layout);
}

static enum rdt_status add_region(struct put *put, const struct mapping *mapping, uint32_t *index_p, struct rdt_error *err)
{
    Rdt__Pb__RegionUse *regions = array_grow(put->regions, put->n_regions, &put->room, sizeof *regions), *use;

    if (!regions)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a list of %u regions", put->n_regions + 1);
    put->regions = regions;
    use = &put->regions[put->n_regions];
    rdt__pb__region_use__init(use);
    use->region = mapping->region;
    use->generation = mapping->generation;
    *index_p = put->n_regions++;
    return RDT_OK;
}

/* ---- finding the bytes ---- */

static enum rdt_status place_in(struct put *put, uint32_t i, struct mapping *mapping, uint64_t mark, struct rdt_error *err)
{
    enum rdt_status status;

    if (mapping->mark != mark) {
        status = add_region(put, mapping, &mapping->index, err);
        if (status != RDT_OK)
            return status;
        mapping->mark = mark;
    }
    put->device |= mapping->mapper != NULL;
    put->layout->region[i] = mapping->index;
    put->layout->offset[i] -= (uintptr_t)mapping->addr;
    put->how[i] = mapping->origin == MAPPING_IMPORTED ? RDT_MEMORY_IMPORTED : RDT_MEMORY_DAEMON;
    return RDT_OK;
}

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + LAYOUT_ALIGN_BYTES - 1) & ~(uint64_t)(LAYOUT_ALIGN_BYTES - 1);
}

/* With the lock. *near is the mapping of the previous tensor; the next one often lies there too. */
static enum rdt_status place(struct put *put, uint32_t i, uint64_t mark, struct mapping **near, struct rdt_error *err)
{
    struct layout *layout = put->layout;
    uint64_t lo, hi;
    enum rdt_status status;

    if (layout_elems(layout, i) == 0) {
        layout->offset[i] = 0;
        put->how[i] = RDT_MEMORY_COPIED; /* a tensor without elements has no bytes to refer to */
        layout_set_row_major(layout, i);
        return RDT_OK;
    }
    status = layout_extent(layout, i, &lo, &hi, err);
    if (status != RDT_OK)
        return status;
    if (*near && memory_contains(*near, lo, hi))
        return place_in(put, i, *near, mark, err);
    *near = memory_at(&put->conn->memory, lo, hi);
    if (!*near) {
        put->how[i] = RDT_MEMORY_COPIED;
        put->copied_bytes = align_up(put->copied_bytes) + layout_bytes(layout, i);
        return RDT_OK;
    }
    if (!memory_contains(*near, lo, hi))
        return rdt_error_set(err, RDT_INVALID, "tensor %u: its bytes [%p, +%llu) lie partly in [%p, +%zu), partly outside", i,
                             (void *)(uintptr_t)lo, (unsigned long long)(hi - lo), (void *)(*near)->addr, (*near)->bytes);
    return place_in(put, i, *near, mark, err);
}

static enum rdt_status place_all(struct put *put, struct rdt_error *err)
{
    struct mapping *near = NULL;
    enum rdt_status status = RDT_OK;
    uint64_t mark;

    connection_lock(put->conn);
    mark = memory_mark(&put->conn->memory);
    for (uint32_t i = 0; i < put->layout->count && status == RDT_OK; i++)
        status = place(put, i, mark, &near, err);
    connection_unlock(put->conn);
    if (status == RDT_OK && put->options->flags & RDT_PUT_PENDING && put->copied_bytes > 0)
        status = rdt_error_set(err, RDT_INVALID,
                               "a PENDING put has tensors in memory that the daemon does not know: rdt_alloc or rdt_import it");
    return status;
}

static bool is_copied(const struct put *put, uint32_t i)
{
    return put->how[i] == RDT_MEMORY_COPIED && layout_elems(put->layout, i) > 0;
}

/* ---- choosing the method ---- */

/* A loaned region is used again, so only its owner may have seen it. If this session ends before a detached object does, the
 * region is the object's alone. */
static bool may_loan(const struct put *put)
{
    return put->options->visibility == RDT_VISIBLE_TO_OWNER && put->conn->can.loans &&
           !(put->options->flags & ~put->conn->can.loan_flags);
}

static enum method choose(const struct put *put)
{
    const struct rdt_put_options *options = put->options;

    if (put->copied_bytes == 0)
        return NOTHING;
    if (put->copied_bytes <= put->conn->can.inline_max_bytes)
        return INLINE;
    if (options->flags & RDT_PUT_SNAPSHOT)
        return GIVEN;
    return may_loan(put) ? LOANED : RELEASED;
}

/* Chooses the flags that are sent, in put->options, which is `own`. If librdt copies all tensors, nobody writes its copies: the
 * object is immutable in a loaned region, and otherwise a snapshot. */
static void choose_flags(const struct put *put, struct rdt_put_options *own)
{
    uint32_t flags, beside;

    own->flags &= ~(uint32_t)RDT_PUT_SUM; /* put->sum */
    beside = own->flags & BESIDE_LOANS;
    flags = own->flags & ~beside;
    if ((flags == (RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED) || flags == RDT_PUT_IMMUTABLE) && put->n_regions == 0) {
        own->flags = RDT_PUT_IMMUTABLE | beside;
        if (choose(put) == LOANED)
            return;
        own->flags = RDT_PUT_SNAPSHOT | beside;
    }
    own->flags &= ~(uint32_t)RDT_PUT_UNSEALED;
    if (own->flags & RDT_PUT_IMMUTABLE && put->n_regions == 0)
        own->flags |= RDT_PUT_SNAPSHOT;
}

/* ---- copying ---- */

/* Whether RLIMIT_FSIZE lets this process write a file of `bytes`. Writing more would raise SIGXFSZ. */
static bool may_write(uint64_t bytes)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && (limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur);
}

/* Writing by pwrite takes half the time of writing through a mapping that has no pages yet, since there is no fault for
 * each page. False if the kernel refuses it, as it does for huge pages: then the bytes are copied. */
static bool write_in(int fd, const uint8_t *data, uint64_t bytes, uint64_t at)
{
    while (bytes > 0) {
        ssize_t written = pwrite(fd, data, bytes, (off_t)at);

        if (written <= 0)
            return false;
        data += written;
        at += (uint64_t)written;
        bytes -= (uint64_t)written;
    }
    return true;
}

/* Makes tensor i a row-major one at offset `at` of the copy. */
static void set_place(struct put *put, uint32_t i, uint64_t at)
{
    put->layout->region[i] = put->copy_index;
    put->layout->offset[i] = at;
    layout_set_row_major(put->layout, i);
}

/* Copies tensor i to *at of the memory at base, and moves *at behind it. */
static enum rdt_status copy_in(struct put *put, uint32_t i, uint8_t *base, uint64_t *at, struct rdt_error *err)
{
    struct layout *layout = put->layout;
    uint64_t bytes = layout_bytes(layout, i);
    const uint8_t *data = (const uint8_t *)(uintptr_t)layout->offset[i];

    *at = align_up(*at);
    layout->offset[i] = 0;
    for (uint64_t from = 0; from < bytes; from += COPY_BYTES) {
        uint64_t part = bytes - from < COPY_BYTES ? bytes - from : COPY_BYTES;

        if (put->deadline_ns != CLOCK_NEVER && clock_now_ns() >= put->deadline_ns)
            return rdt_error_set(err, RDT_TIMED_OUT, "the deadline passed while tensor %u was copied", i);
        if (interrupt_ask())
            return rdt_error_set(err, RDT_CANCELLED, "the put was interrupted while tensor %u was copied", i);
        if (put->fd < 0 || bytes < WRITE_MIN_BYTES || !layout_is_contiguous(layout, i) ||
            !write_in(put->fd, data + from, part, *at + from))
            layout_gather(layout, i, data, from, part, base + *at + from);
    }
    set_place(put, i, *at);
    *at += bytes;
    return RDT_OK;
}

/* How long a request of this put may wait for room in the daemon. INT64_MAX: its time-out is so long that no clock reaches
 * it. */
static int64_t room_ns(const struct put *put)
{
    if (put->options->timeout_ns <= 0)
        return 0;
    return put->deadline_ns == CLOCK_NEVER ? INT64_MAX : clock_remaining_ns(put->deadline_ns);
}

/* Creates the memory for the chosen method. *base_p is its address. */
static enum rdt_status make_room(struct put *put, bool fresh, uint8_t **base_p, struct rdt_error *err)
{
    bool write = put->method == GIVEN && may_write(put->copied_bytes);
    struct mapping *mapping = NULL;
    enum rdt_status status;

    put->copy_index = put->n_regions;
    if (put->method == INLINE) {
        *base_p = put->inline_data = calloc(1, put->copied_bytes); /* zeroes: the padding is sent too */
        return put->inline_data ? RDT_OK
                                : rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for %llu bytes of tensors",
                                                (unsigned long long)put->copied_bytes);
    }
    if (put->method == LOANED) {
        status = loans_take(put->conn, put->copied_bytes, fresh, room_ns(put), put->answer_ns, &put->loan, err);
        mapping = status == RDT_OK ? put->loan->mapping : NULL;
    } else {
        status =
            alloc_region(put->conn, put->copied_bytes, room_ns(put), put->answer_ns, &put->copy, write ? &put->fd : NULL, err);
        mapping = put->copy;
    }
    if (status != RDT_OK)
        return status;
    *base_p = mapping->addr;
    return add_region(put, mapping, &put->copy_index, err);
}

/* Unmaps regions[copy_index] and hands it to the daemon, which seals it: a mapping that can be written would prevent that. */
static void give(struct put *put, struct mapping *take_mapping)
{
    connection_lock(put->conn);
    (void)ids_append(&put->conn->memory.unmapped, take_mapping->region); /* without memory a restart now would fail the put */
    take_mapping->released = true;
    memory_withdraw(&put->conn->memory, take_mapping);
    memory_unref(&put->conn->memory, take_mapping);
    connection_unlock(put->conn);
    put->given = true;
}

static enum rdt_status copy_all(struct put *put, bool fresh, struct rdt_error *err)
{
    uint8_t *base = NULL;
    uint64_t at = 0;
    enum rdt_status status = put->method == NOTHING ? RDT_OK : make_room(put, fresh, &base, err);

    for (uint32_t i = 0; i < put->layout->count && status == RDT_OK; i++)
        if (is_copied(put, i))
            status = copy_in(put, i, base, &at, err);
    if (status == RDT_OK && put->method == GIVEN) {
        give(put, put->copy);
        put->copy = NULL;
    }
    return status;
}

/* ---- the request ---- */

/* What a PUT is sent from. */
struct put_request {
    Rdt__Pb__Put message;
    Rdt__Pb__TensorList list;
    Rdt__Pb__RegionUse **regions;
    struct layout_rows rows;
};

/* Fills a message that points into the put. The caller frees request->regions. */
static enum rdt_status make_request(const struct put *put, struct put_request *request, struct rdt_error *err)
{
    const struct rdt_put_options *options = put->options;
    Rdt__Pb__Put *message = &request->message;

    rdt__pb__put__init(message);
    rdt__pb__tensor_list__init(&request->list);
    message->id.data = (uint8_t *)options->id;
    message->id.len = options->id ? options->id_bytes : 0;
    message->metadata.data = (uint8_t *)options->metadata;
    message->metadata.len = options->metadata_bytes;
    if (put->shards.metadata)
        message->metadata = (ProtobufCBinaryData){put->shards.metadata_bytes, put->shards.metadata};
    message->box_bytes = put->shards.box_bytes;
    message->flags = options->flags;
    message->sum = put->sum;
    message->ttl_ns = options->ttl_ns;
    message->priority = options->priority;
    if (options->transport)
        message->transport = (char *)options->transport;
    message->visibility = (Rdt__Pb__Visibility)options->visibility;
    layout_to_wire(put->layout, true, put->conn->can.tensor_runs ? &request->rows : NULL, &request->list);
    message->tensors = &request->list;
    if (put->inline_data)
        message->inline_data = (ProtobufCBinaryData){put->copied_bytes, put->inline_data};
    message->regions = request->regions = calloc((size_t)put->n_regions + 1, sizeof *message->regions);
    if (!message->regions)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a list of %u regions", put->n_regions);
    message->n_regions = put->n_regions;
    for (uint32_t i = 0; i < put->n_regions; i++)
        message->regions[i] = &put->regions[i];
    if (put->given) {
        message->given = (uint32_t *)&put->copy_index;
        message->n_given = 1;
    }
    if (put->loan) {
        message->loaned = (uint32_t *)&put->copy_index;
        message->n_loaned = 1;
    }
    /* 0 lets the daemon wait for a snapshot's copy without end, and not at all for room. A live object in a region that is
     * loaned again does not wait for room either: a new region may need less. */
    if (put->options->timeout_ns > 0 && !(put->loan && put->loan->reused && !(options->flags & RDT_PUT_IMMUTABLE)))
        message->timeout_ns = room_ns(put) > 0 ? room_ns(put) : 1;
    return RDT_OK;
}

static enum rdt_status read_answer(ProtobufCMessage *take_answer, struct rdt_ref *ref_p, struct rdt_error *err)
{
    enum rdt_status status = wire_ref_to(((Rdt__Pb__PutReply *)take_answer)->ref, ref_p, err);

    if (status != RDT_OK) {
        rdt_error_prefix(err, "rdtd's answer to PUT");
        status = err ? (err->status = RDT_PROTOCOL) : RDT_PROTOCOL;
    }
    protobuf_c_message_free_unpacked(take_answer, NULL);
    return status;
}

static enum rdt_status send_put(const struct put *put, struct rdt_ref *ref_p, struct rdt_error *err)
{
    struct put_request request;
    ProtobufCMessage *answer;
    enum rdt_status status = make_request(put, &request, err);

    if (status != RDT_OK)
        return status;
    status = call_fds(put->conn, RDT_MSG_PUT, &request.message.base, -1, put->answer_ns, &answer, NULL, err);
    free(request.regions);
    return status == RDT_OK ? read_answer(answer, ref_p, err) : status;
}

/* ---- public calls ---- */

static enum rdt_status check_options(const struct rdt_put_options *options, struct rdt_error *err)
{
    if (options->id && (options->id_bytes == 0 || options->id_bytes > RDT_MAX_ID_BYTES))
        return rdt_error_set(err, RDT_INVALID, "the id has %zu bytes, not 1 to %u", options->id_bytes, RDT_MAX_ID_BYTES);
    if (options->metadata_bytes > RDT_MAX_METADATA_BYTES)
        return rdt_error_set(err, RDT_LIMIT, "there are %zu bytes of metadata, and the limit is %u", options->metadata_bytes,
                             RDT_MAX_METADATA_BYTES);
    if (options->metadata_bytes > 0 && !options->metadata)
        return rdt_error_set(err, RDT_INVALID, "metadata is NULL, and metadata_bytes is %zu", options->metadata_bytes);
    if ((unsigned)options->visibility > RDT_VISIBLE_TO_ALL)
        return rdt_error_set(err, RDT_INVALID, "visibility %d is unknown", (int)options->visibility);
    if (options->flags & ~(uint32_t)(RDT_PUT_FLAGS_ALL | RDT_PUT_FLAGS_LOCAL))
        return rdt_error_set(err, RDT_UNSUPPORTED, "librdt %s knows no put flags 0x%x", RDT_VERSION,
                             options->flags & ~(uint32_t)(RDT_PUT_FLAGS_ALL | RDT_PUT_FLAGS_LOCAL));
    if (options->priority > RDT_PRIORITY_MOST || (options->priority > 0 && !(options->flags & RDT_PUT_EVICTABLE)))
        return rdt_error_set(err, RDT_INVALID, "priority is %u: it is 0 to %u, and above 0 only with RDT_PUT_EVICTABLE",
                             options->priority, RDT_PRIORITY_MOST);
    if ((options->flags & (RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED)) == RDT_PUT_UNSEALED)
        return rdt_error_set(err, RDT_INVALID, "only a SNAPSHOT can be UNSEALED");
    if (options->flags & RDT_PUT_SUM && options->flags & RDT_PUT_PENDING)
        return rdt_error_set(err, RDT_INVALID, "a PENDING put has no bytes yet that could have a checksum (SUM)");
    return options_check_text(options->transport, RDT_MAX_NAME_BYTES, "transport", err);
}

/* The checksum of the caller's tensors. */
static enum rdt_status add_sum(struct put *put, const struct rdt_tensor *tensors, struct rdt_error *err)
{
    void **data = calloc(put->layout->count + 1u, sizeof *data);
    enum rdt_status status = data ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a checksum");

    for (uint32_t i = 0; status == RDT_OK && i < put->layout->count; i++) {
        data[i] = tensors[i].data;
        if (put->device)
            status =
                rdt_error_set(err, RDT_UNSUPPORTED,
                              "a tensor lies on a device, where librdt computes no checksum (RDT_PUT_SUM): copy it to host "
                              "memory before the put");
    }
    if (status == RDT_OK)
        status = tensor_sum(put->layout, data, put->options->metadata, put->options->metadata_bytes, &put->sum, err);
    free(data);
    return status;
}

static enum rdt_status put_init(struct put *put, const struct rdt_tensor *tensors, size_t count, struct rdt_error *err)
{
    enum rdt_status status = tensor_layout(tensors, count, &put->layout, err);

    if (status != RDT_OK)
        return status;
    if (put->options->shards)
        status = shards_pack(put->options, put->layout, &put->shards, err);
    if (status != RDT_OK)
        return status;
    put->how = malloc((count + 1) * sizeof *put->how);
    if (!put->how)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a list of %zu tensors", count);
    status = place_all(put, err);
    if (status == RDT_OK && put->options->flags & RDT_PUT_SUM)
        status = add_sum(put, tensors, err);
    return status;
}

static int64_t put_deadline_ns(const struct rdt_put_options *options)
{
    return clock_deadline_ns(options->timeout_ns > 0 ? options->timeout_ns : RDT_FOREVER);
}

/* Until when the daemon's answers may come. */
static int64_t answer_ns(const struct put *put, int64_t timeout_ns)
{
    if (timeout_ns < 0)
        return CLOCK_NEVER;
    if (timeout_ns == 0)
        return clock_deadline_ns(clock_default_ns(layout_total_bytes(put->layout)));
    return clock_after_answer_ns(put->deadline_ns, timeout_ns);
}

/* With `fresh` no idle loan is reused. AGAIN: the daemon has dropped the loan that was reused, or the region is too large for
 * a limit; the caller tries again with fresh. */
static enum rdt_status put_once(rdt *conn, const struct rdt_tensor *tensors, size_t count,
                                const struct rdt_put_options *options, int64_t deadline_ns, bool fresh, struct rdt_ref *ref_p,
                                struct rdt_error *err)
{
    struct rdt_put_options own = *options;
    struct put put = {.conn = conn, .options = &own, .deadline_ns = deadline_ns, .fd = -1};
    enum rdt_status status = put_init(&put, tensors, count, err);

    if (status == RDT_OK) {
        put.answer_ns = answer_ns(&put, options->timeout_ns);
        choose_flags(&put, &own);
        put.method = choose(&put);
        status = copy_all(&put, fresh, err);
    }
    if (status == RDT_OK &&
        options->timeout_ns == 0) /* the default is for the daemon: copies from a slow file may take longer */
        put.answer_ns = answer_ns(&put, 0);
    if (status == RDT_OK)
        status = send_put(&put, ref_p, err);
    if (status == RDT_OK && options->how)
        memcpy(options->how, put.how, count * sizeof *options->how);
    if ((status == RDT_NOT_FOUND || status == RDT_LIMIT) && put.loan && put.loan->reused)
        status = RDT_AGAIN;
    put_fini(&put, status == RDT_OK);
    return status;
}

static enum rdt_status check(const rdt *conn, const struct rdt_put_options *options, struct rdt_put_options *own_p,
                             const struct rdt_ref *ref_p, struct rdt_error *err)
{
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK)
        status = options_copy(own_p, sizeof *own_p, options, err);
    if (status == RDT_OK)
        status = check_options(own_p, err);
    if (status == RDT_OK && !ref_p)
        status = rdt_error_set(err, RDT_INVALID, "ref_p is NULL");
    return status;
}

enum rdt_status rdt_put(rdt *conn, const struct rdt_tensor *tensors, size_t count, const struct rdt_put_options *options,
                        struct rdt_ref *ref_p, struct rdt_error *err)
{
    struct rdt_put_options own;
    struct rdt_error why = {0};
    int64_t deadline_ns;
    enum rdt_status status = check(conn, options, &own, ref_p, err);

    if (status != RDT_OK)
        return status;
    deadline_ns = put_deadline_ns(&own);
    status = put_once(conn, tensors, count, &own, deadline_ns, false, ref_p, &why);
    if (status == RDT_AGAIN)
        status = put_once(conn, tensors, count, &own, deadline_ns, true, ref_p, &why);
    if (status != RDT_OK && err)
        *err = why;
    return status;
}

/* ---- several at a time ---- */

struct put_on_its_way {
    struct put put;
    struct rdt_put_options options;
    struct put_request request;
    struct waiting *waiting;
};

static enum rdt_status begin(struct put_on_its_way *way, const struct rdt_tensor *tensors, size_t count, struct rdt_error *err)
{
    struct put *put = &way->put;
    enum rdt_status status = check_options(&way->options, err);

    if (status == RDT_OK)
        status = put_init(put, tensors, count, err);
    if (status == RDT_OK && put->copied_bytes > 0)
        status = RDT_AGAIN;
    if (status != RDT_OK)
        return status;
    put->deadline_ns = put_deadline_ns(&way->options);
    choose_flags(put, &way->options);
    put->method = NOTHING;
    status = make_request(put, &way->request, err);
    if (status == RDT_OK)
        status = call_begin(put->conn, RDT_MSG_PUT, &way->request.message.base, NULL, 0, 1, &way->waiting, err);
    return status;
}

static void way_free(struct put_on_its_way *way, bool done)
{
    put_fini(&way->put, done);
    free(way->request.regions);
    free(way);
}

enum rdt_status put_begin(rdt *conn, const struct rdt_tensor *tensors, size_t count, const struct rdt_put_options *options,
                          struct put_on_its_way **way_p, struct rdt_error *err)
{
    struct put_on_its_way *way = calloc(1, sizeof *way);
    enum rdt_status status;

    if (!way)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a put");
    way->options = *options;
    way->put = (struct put){.conn = conn, .options = &way->options, .fd = -1};
    status = begin(way, tensors, count, err);
    if (status == RDT_OK)
        *way_p = way;
    else
        way_free(way, false);
    return status;
}

enum rdt_status put_end(struct put_on_its_way *take_way, struct rdt_ref *ref_p, struct rdt_error *err)
{
    const struct put *put = &take_way->put;
    ProtobufCMessage *answer;
    enum rdt_status status = call_end(put->conn, take_way->waiting, answer_ns(put, take_way->options.timeout_ns), &answer, err);

    if (status == RDT_OK)
        status = read_answer(answer, ref_p, err);
    way_free(take_way, status == RDT_OK);
    return status;
}

enum rdt_status put_snapshot_of(rdt *conn, void *take_addr, const struct rdt_tensor *tensors, size_t count,
                                const struct rdt_put_options *options, struct rdt_ref *ref_p, struct rdt_error *err)
{
    struct rdt_put_options own = {0};
    struct put put = {.conn = conn, .options = &own, .fd = -1};
    struct mapping *mapping;
    enum rdt_status status = check(conn, options, &own, ref_p, err);

    if (status == RDT_FORKED)
        return status;
    if (status == RDT_OK)
        status = put_init(&put, tensors, count, err);
    put.deadline_ns = put_deadline_ns(&own);
    if (status == RDT_OK)
        put.answer_ns = answer_ns(&put, own.timeout_ns);
    connection_lock(conn);
    mapping = memory_at(&conn->memory, (uintptr_t)take_addr, (uintptr_t)take_addr + 1);
    if (status == RDT_OK &&
        (put.copied_bytes > 0 || put.n_regions != 1 || !mapping || put.regions[0].region != mapping->region))
        status = rdt_error_set(err, RDT_INVALID, "the tensors of a snapshot lie outside the memory that becomes the snapshot");
    if (status != RDT_OK && mapping) {
        memory_withdraw(&conn->memory, mapping);
        alloc_release(conn, mapping);
    }
    connection_unlock(conn);
    if (status == RDT_OK) {
        give(&put, mapping); /* copy_index is 0 */
        status = send_put(&put, ref_p, err);
    }
    put_fini(&put, status == RDT_OK);
    return status;
}

/* ---- memory that is filled before the put ---- */

/* Takes memory that was loaned before, which the daemon must then not drop. AGAIN: there is none. */
static enum rdt_status take_loan(rdt *conn, uint64_t bytes, bool fresh, int64_t room_ns, int64_t answer_ns,
                                 struct loan **loan_p, struct rdt_error *err)
{
    struct loan *loan = NULL;
    enum rdt_status status = loans_take(conn, bytes, fresh, room_ns, answer_ns, &loan, err);

    if (status == RDT_OK && loan->reused)
        status = loans_claim(conn, loan, answer_ns, err);
    if (status == RDT_OK) {
        *loan_p = loan;
    } else if (loan) {
        connection_lock(conn);
        loans_end(conn, loan, false);
        connection_unlock(conn);
        status = status == RDT_NOT_FOUND || status == RDT_LIMIT ? RDT_AGAIN : status;
    }
    return status;
}

enum rdt_status put_room_take(rdt *conn, enum rdt_visibility visibility, uint64_t bytes, int64_t timeout_ns,
                              struct put_room *room_p, struct rdt_error *err)
{
    struct rdt_put_options own = {.flags = RDT_PUT_IMMUTABLE, .visibility = visibility};
    const struct put put = {.conn = conn, .options = &own};
    int64_t room_ns = timeout_ns < 0 ? INT64_MAX : timeout_ns, answer_ns = CLOCK_NEVER;
    struct put_room room = {.bytes = bytes};
    enum rdt_status status;

    if (timeout_ns >= 0 && timeout_ns < INT64_MAX / 2)
        answer_ns = clock_deadline_ns(timeout_ns + clock_default_ns(bytes));
    if (may_loan(&put)) {
        status = take_loan(conn, bytes, false, room_ns, answer_ns, &room.loan, err);
        if (status == RDT_AGAIN) /* the daemon has dropped the region, or a new one may need less */
            status = take_loan(conn, bytes, true, room_ns, answer_ns, &room.loan, err);
    } else {
        status = alloc_region(conn, bytes, room_ns, answer_ns, &room.mapping, NULL, err);
    }
    if (status != RDT_OK)
        return status;
    room.addr = room.loan ? room.loan->mapping->addr : room.mapping->addr;
    *room_p = room;
    return RDT_OK;
}

void put_room_drop(rdt *conn, struct put_room *room)
{
    connection_lock(conn);
    if (room->loan)
        loans_end(conn, room->loan, false);
    else if (room->mapping)
        alloc_release(conn, room->mapping);
    connection_unlock(conn);
    *room = (struct put_room){0};
}

enum rdt_status put_room_put(rdt *conn, struct put_room *take_room, const struct layout *layout,
                             const struct rdt_put_options *options, struct rdt_ref *ref_p, struct rdt_error *err)
{
    struct rdt_put_options own = *options;
    struct put put = {.conn = conn, .options = &own, .loan = take_room->loan, .copy = take_room->mapping, .fd = -1};
    enum rdt_status status = RDT_OK;

    *take_room = (struct put_room){0};
    own.flags = put.loan ? RDT_PUT_IMMUTABLE : RDT_PUT_SNAPSHOT;
    put.method = put.loan ? LOANED : GIVEN;
    put.deadline_ns = put_deadline_ns(&own);
    put.layout = layout_dup(layout);
    if (!put.layout)
        status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a list of tensors");
    if (status == RDT_OK && own.shards)
        status = shards_pack(&own, put.layout, &put.shards, err);
    if (status == RDT_OK)
        status = add_region(&put, put.loan ? put.loan->mapping : put.copy, &put.copy_index, err);
    if (status == RDT_OK) {
        put.answer_ns = answer_ns(&put, own.timeout_ns);
        for (uint32_t i = 0; i < put.layout->count; i++)
            set_place(&put, i, put.layout->offset[i]);
        if (put.copy)
            give(&put, put.copy);
        put.copy = NULL;
        status = send_put(&put, ref_p, err);
    }
    put_fini(&put, status == RDT_OK);
    return status;
}
