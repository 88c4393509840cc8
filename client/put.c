/* rdt_put: finds where each tensor's bytes are, copies in what the daemon cannot reach, and makes the object. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc.h"
#include "call.h"
#include "clock.h"
#include "loans.h"
#include "options.h"
#include "proto/wire_limits.h"
#include "proto/wire_ref.h"
#include "rdt.pb-c.h"
#include "sealed_memfd.h"
#include "tensor.h"

#define ROOM_MARGIN_NS 100000000
#define COPY_BYTES ((uint64_t)64 << 20) /* between two looks at the clock */
#define WRITE_MIN_BYTES 65536

struct placed { /* the tensors of one put: layout's offsets are addresses until their place is known */
    struct layout *layout;
    enum rdt_memory *how; /* [count] */
    Rdt__Pb__RegionUse *regions;
    uint32_t n_regions, room;
    uint64_t copied_bytes; /* packed */
    struct mapping *copy;  /* what they are copied into, with its reference or as its room's; NULL: nothing is copied */
    struct copy_room *loan; /* NULL: the copy is this put's only */
    bool lends, fresh;     /* it is to have a room; fresh: one that was not lent before */
    uint32_t copy_index;   /* in regions */
    int copy_fd;           /* its, if it is new and nobody here looks at it; -1 */
    bool given;            /* it is unmapped, and becomes the snapshot as it is if nobody else can write it */
    uint8_t *inline_data;  /* or this, which goes with the message; its tensors' region is n_regions */
    int sealed_fd;           /* or this, likewise; -1 */
    bool not_taken;        /* the daemon did not want it, for another reason than room */
};

static void placed_fini(rdt *conn, struct placed *placed, bool put)
{
    if (placed->loan) {
        connection_lock(conn);
        loans_end(conn, placed->loan, put);
        connection_unlock(conn);
    }
    if (placed->copy && !placed->loan) {
        /* The object keeps the bytes alive. */
        connection_lock(conn);
        alloc_give_back(conn, placed->copy);
        connection_unlock(conn);
    }
    if (placed->copy_fd >= 0)
        (void)close(placed->copy_fd);
    if (placed->sealed_fd >= 0)
        (void)close(placed->sealed_fd);
    free(placed->inline_data);
    free(placed->how);
    free(placed->regions);
    free(placed->layout);
}

static enum rdt_status add_region(struct placed *placed, const struct mapping *mapping, uint32_t *index_p,
                                  struct rdt_error *err)
{
    Rdt__Pb__RegionUse *use;

    if (placed->n_regions == placed->room) {
        uint32_t room = placed->room ? 2 * placed->room : 8;
        Rdt__Pb__RegionUse *regions = realloc(placed->regions, room * sizeof *regions);

        if (!regions)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for %u regions", room);
        placed->regions = regions;
        placed->room = room;
    }
    use = &placed->regions[placed->n_regions];
    rdt__pb__region_use__init(use);
    use->region = mapping->region;
    use->generation = mapping->generation;
    *index_p = placed->n_regions++;
    return RDT_OK;
}

/* ---- where the bytes are ---- */

static enum rdt_status place_in(struct placed *placed, uint32_t i, struct mapping *mapping, uint64_t mark,
                                struct rdt_error *err)
{
    enum rdt_status status;

    if (mapping->mark != mark) {
        status = add_region(placed, mapping, &mapping->index, err);
        if (status != RDT_OK)
            return status;
        mapping->mark = mark;
    }
    placed->layout->region[i] = mapping->index;
    placed->layout->offset[i] -= (uintptr_t)mapping->addr;
    placed->how[i] = mapping->origin == MAPPING_IMPORTED ? RDT_MEMORY_IMPORTED : RDT_MEMORY_DAEMON;
    return RDT_OK;
}

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + LAYOUT_ALIGN_BYTES - 1) & ~(uint64_t)(LAYOUT_ALIGN_BYTES - 1);
}

/* With the lock. *near is the mapping of the tensor before, where the next one often is too. */
static enum rdt_status place(rdt *conn, struct placed *placed, uint32_t i, uint64_t mark, struct mapping **near,
                             struct rdt_error *err)
{
    struct layout *layout = placed->layout;
    uint64_t lo, hi;
    enum rdt_status status;

    if (layout_elems(layout, i) == 0) {
        layout->offset[i] = 0;
        placed->how[i] = RDT_MEMORY_COPIED; /* all of its nothing */
        layout_set_row_major(layout, i);
        return RDT_OK;
    }
    status = layout_extent(layout, i, &lo, &hi, err);
    if (status != RDT_OK)
        return status;
    if (*near && memory_contains(*near, lo, hi))
        return place_in(placed, i, *near, mark, err);
    *near = memory_at(&conn->memory, lo, hi);
    if (!*near) {
        placed->how[i] = RDT_MEMORY_COPIED;
        placed->copied_bytes = align_up(placed->copied_bytes) + layout_bytes(layout, i);
        return RDT_OK;
    }
    if (!memory_contains(*near, lo, hi))
        return rdt_error_set(err, RDT_INVALID, "tensor %u: its bytes [%p, +%llu) lie partly in [%p, +%zu), partly outside", i,
                             (void *)(uintptr_t)lo, (unsigned long long)(hi - lo), (void *)(*near)->addr, (*near)->bytes);
    return place_in(placed, i, *near, mark, err);
}

static enum rdt_status place_all(rdt *conn, struct placed *placed, struct rdt_error *err)
{
    struct mapping *near = NULL;
    enum rdt_status status = RDT_OK;
    uint64_t mark;

    connection_lock(conn);
    mark = memory_mark(&conn->memory);
    for (uint32_t i = 0; i < placed->layout->count && status == RDT_OK; i++)
        status = place(conn, placed, i, mark, &near, err);
    connection_unlock(conn);
    return status;
}

/* ---- copying in ---- */

/* By write() the kernel fills pages that nobody has mapped at half of what mapping them, a fault each, costs. False: it is to be copied
 * (huge pages cannot be written so). */
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

/* Tensor i, now at *at of the region that starts at base, row-major; *at moves behind it. fd: the region's, if it is new and this process
 * will not look at it, else -1. */
static enum rdt_status copy_in(struct placed *placed, uint32_t i, uint8_t *base, int fd, uint32_t region, uint64_t *at,
                               int64_t deadline_ns, struct rdt_error *err)
{
    struct layout *layout = placed->layout;
    uint64_t bytes = layout_bytes(layout, i);
    const uint8_t *data = (const uint8_t *)(uintptr_t)layout->offset[i];

    *at = align_up(*at);
    layout->offset[i] = 0;
    for (uint64_t from = 0; from < bytes; from += COPY_BYTES) {
        uint64_t part = bytes - from < COPY_BYTES ? bytes - from : COPY_BYTES;

        if (deadline_ns != CLOCK_NEVER && clock_now_ns() >= deadline_ns)
            return rdt_error_set(err, RDT_TIMED_OUT, "the deadline passed while tensor %u was copied in", i);
        if (fd < 0 || bytes < WRITE_MIN_BYTES || !layout_is_contiguous(layout, i) || !write_in(fd, data + from, part, *at + from))
            layout_gather(layout, i, data, from, part, base + *at + from);
    }
    layout->region[i] = region;
    layout->offset[i] = *at;
    layout_set_row_major(layout, i);
    *at += bytes;
    return RDT_OK;
}

/* How long the daemon may let a request of this put wait for room: a little less than the put has, so that its word of what it waited
 * for comes in time. */
static int64_t room_ns(int64_t deadline_ns)
{
    int64_t left_ns = clock_remaining_ns(deadline_ns), margin_ns = left_ns / 8;

    if (left_ns < 0)
        return 0;
    return left_ns - (margin_ns < ROOM_MARGIN_NS ? margin_ns : ROOM_MARGIN_NS);
}

/* unseen: nobody in this process looks at the copy. */
static enum rdt_status copy_all_in(rdt *conn, struct placed *placed, bool unseen, int64_t deadline_ns, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;
    uint8_t *base = NULL;
    uint64_t at = 0;

    if (placed->copied_bytes == 0)
        return RDT_OK;
    if (placed->copied_bytes <= conn->inline_max_bytes) {
        base = placed->inline_data = calloc(1, placed->copied_bytes); /* what lies between tensors is sent too */
        if (!base)
            status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for %llu bytes", (unsigned long long)placed->copied_bytes);
    } else {
        if (placed->lends) {
            status = loans_take(conn, placed->copied_bytes, placed->fresh, room_ns(deadline_ns), deadline_ns, &placed->loan, err);
            placed->copy = status == RDT_OK ? placed->loan->mapping : NULL;
        } else {
            status = alloc_region(conn, placed->copied_bytes, room_ns(deadline_ns), deadline_ns, &placed->copy,
                                  unseen && sealed_may_write(placed->copied_bytes) ? &placed->copy_fd : NULL, err);
        }
        if (status == RDT_OK) {
            base = placed->copy->addr;
            status = add_region(placed, placed->copy, &placed->copy_index, err);
        }
    }
    for (uint32_t i = 0; i < placed->layout->count && status == RDT_OK; i++) {
        if (placed->how[i] == RDT_MEMORY_COPIED && layout_elems(placed->layout, i) > 0)
            status = copy_in(placed, i, base, placed->copy_fd, placed->inline_data ? placed->n_regions : placed->copy_index, &at,
                             deadline_ns, err);
    }
    return status;
}

/* A snapshot need not be copied again: nobody maps its bytes any more, so that the daemon can seal them. They are sealed here before: the
 * kernel waits, two ticks of its clock, until no processor has pages in hand that it is still to file; those of this one it files at
 * once, and here they were filled. What the daemon seals again costs nothing; where this fails, it does. */
static void give_up_copy(rdt *conn, struct placed *placed)
{
    connection_lock(conn);
    memory_unref(&conn->memory, placed->copy);
    connection_unlock(conn);
    placed->copy = NULL;
    placed->given = true;
    if (placed->copy_fd >= 0)
        (void)fcntl(placed->copy_fd, F_ADD_SEALS, F_SEAL_WRITE);
}

/* ---- the request ---- */

static enum rdt_status send_put(rdt *conn, const struct placed *placed, const struct rdt_put_options *options,
                                int64_t deadline_ns, struct rdt_ref *ref_p, struct rdt_error *err)
{
    Rdt__Pb__Put request = RDT__PB__PUT__INIT;
    Rdt__Pb__TensorList list = RDT__PB__TENSOR_LIST__INIT;
    struct layout_rows rows;
    ProtobufCMessage *answer;
    enum rdt_status status;

    request.id.data = (uint8_t *)options->id;
    request.id.len = options->id ? options->id_bytes : 0;
    request.metadata.data = (uint8_t *)options->metadata;
    request.metadata.len = options->metadata_bytes;
    request.flags = options->flags;
    request.ttl_ns = options->ttl_ns;
    if (options->transport)
        request.transport = (char *)options->transport;
    request.visibility = (Rdt__Pb__Visibility)options->visibility;
    layout_to_wire(placed->layout, true, conn->tensor_runs ? &rows : NULL, &list);
    request.tensors = &list;
    if (placed->inline_data)
        request.inline_data = (ProtobufCBinaryData){placed->copied_bytes, placed->inline_data};
    request.regions = calloc((size_t)placed->n_regions + 1, sizeof *request.regions);
    if (!request.regions)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for %u regions", placed->n_regions);
    request.n_regions = placed->n_regions;
    for (uint32_t i = 0; i < placed->n_regions; i++)
        request.regions[i] = &placed->regions[i];
    if (placed->given) {
        request.given = (uint32_t *)&placed->copy_index;
        request.n_given = 1;
    }
    if (placed->loan) {
        request.loaned = (uint32_t *)&placed->copy_index;
        request.n_loaned = 1;
    }
    if (placed->sealed_fd >= 0)
        request.sealed_bytes = placed->copied_bytes;
    /* 0: a snapshot's copy is waited for without end, room not at all. Nor does what is lent again wait for room: fresh memory may take less. */
    if (deadline_ns != CLOCK_NEVER && !(placed->loan && placed->loan->again))
        request.timeout_ns = room_ns(deadline_ns) > 0 ? room_ns(deadline_ns) : 1;
    status = call_fds(conn, RDT_MSG_PUT, &request.base, placed->sealed_fd, deadline_ns, &answer, NULL, err);
    free(request.regions);
    if (status != RDT_OK)
        return status;
    status = wire_ref_to(((Rdt__Pb__PutReply *)answer)->ref, ref_p, err);
    if (status != RDT_OK) {
        rdt_error_prefix(err, "rdtd's answer to PUT");
        status = err ? (err->status = RDT_PROTOCOL) : RDT_PROTOCOL;
    }
    protobuf_c_message_free_unpacked(answer, NULL);
    return status;
}

/* ---- what is copied into memory that is made here, and comes with the request ---- */

static bool is_copied(const struct placed *placed, uint32_t i)
{
    return placed->how[i] == RDT_MEMORY_COPIED && layout_elems(placed->layout, i) > 0;
}

static bool fits_made(const rdt *conn, const struct placed *placed)
{
    if (placed->copied_bytes <= conn->inline_max_bytes || placed->copied_bytes > conn->sealed_max_bytes ||
        atomic_load_explicit(&conn->takes_none, memory_order_relaxed))
        return false;
    for (uint32_t i = 0; i < placed->layout->count; i++)
        if (is_copied(placed, i) && !layout_is_contiguous(placed->layout, i))
            return false;
    return true;
}

static void place_made(struct placed *placed)
{
    struct layout *layout = placed->layout;
    uint64_t at = 0;

    for (uint32_t i = 0; i < layout->count; i++) {
        if (!is_copied(placed, i))
            continue;
        at = align_up(at);
        layout->region[i] = placed->n_regions;
        layout->offset[i] = at;
        layout_set_row_major(layout, i);
        at += layout_bytes(layout, i);
    }
}

static void unplace_made(struct placed *placed, const struct rdt_tensor *tensors)
{
    (void)close(placed->sealed_fd);
    placed->sealed_fd = -1;
    for (uint32_t i = 0; i < placed->layout->count; i++)
        if (is_copied(placed, i))
            placed->layout->offset[i] = (uintptr_t)tensors[i].data;
}

/* AGAIN: it is to be put in the daemon's own memory, for which it can wait, and nothing has changed: none could be made here, or there is
 * no room for it, or the daemon cannot take it from here. */
static enum rdt_status put_made(rdt *conn, struct placed *placed, const struct rdt_tensor *tensors, const struct rdt_put_options *options,
                                int64_t deadline_ns, struct rdt_ref *ref_p, struct rdt_error *err)
{
    struct rdt_error why = {0};
    enum rdt_status status;

    if (!fits_made(conn, placed))
        return RDT_AGAIN;
    placed->sealed_fd = sealed_memory(placed->layout, placed->how, placed->copied_bytes);
    if (placed->sealed_fd < 0)
        return RDT_AGAIN;
    place_made(placed);
    status = send_put(conn, placed, options, deadline_ns, ref_p, &why);
    if (status == RDT_LIMIT || status == RDT_NO_MEMORY || status == RDT_INVALID || status == RDT_UNSUPPORTED || status == RDT_SYSTEM) {
        unplace_made(placed, tensors);
        placed->not_taken = status != RDT_LIMIT && status != RDT_NO_MEMORY;
        return RDT_AGAIN;
    }
    if (status != RDT_OK && err)
        *err = why;
    return status;
}

static enum rdt_status put_copied(rdt *conn, struct placed *placed, const struct rdt_put_options *options, int64_t deadline_ns,
                                  struct rdt_ref *ref_p, struct rdt_error *err)
{
    bool snapshot = (options->flags & RDT_PUT_SNAPSHOT) != 0;
    enum rdt_status status = copy_all_in(conn, placed, snapshot, deadline_ns, err);

    if (status == RDT_OK && placed->copy && snapshot)
        give_up_copy(conn, placed);
    if (status == RDT_OK)
        status = send_put(conn, placed, options, deadline_ns, ref_p, err);
    if (status != RDT_OK && placed->given)
        alloc_release(conn, placed->regions[placed->copy_index].region);
    if (status == RDT_OK && placed->not_taken)
        atomic_store_explicit(&conn->takes_none, true, memory_order_relaxed);
    return status;
}

/* Of memory that comes back only, when the object has ended, and that nobody of another owner has seen. */
static bool may_lend(const rdt *conn, const struct rdt_put_options *options)
{
    return conn->lends && options->flags == 0 && options->visibility == RDT_VISIBLE_TO_OWNER;
}

static enum rdt_status check_options(const struct rdt_put_options *options, struct rdt_error *err)
{
    if (options->id && (options->id_bytes == 0 || options->id_bytes > RDT_MAX_ID_BYTES))
        return rdt_error_set(err, RDT_INVALID, "the id has %zu bytes, not 1 to %u", options->id_bytes, RDT_MAX_ID_BYTES);
    if (options->metadata_bytes > RDT_MAX_METADATA_BYTES)
        return rdt_error_set(err, RDT_LIMIT, "%zu bytes of metadata, the most is %u", options->metadata_bytes,
                             RDT_MAX_METADATA_BYTES);
    if (options->metadata_bytes > 0 && !options->metadata)
        return rdt_error_set(err, RDT_INVALID, "metadata is NULL, metadata_bytes %zu", options->metadata_bytes);
    if ((unsigned)options->visibility > RDT_VISIBLE_TO_ALL)
        return rdt_error_set(err, RDT_INVALID, "visibility %d is unknown", (int)options->visibility);
    if (options->flags & ~(uint32_t)RDT_PUT_FLAGS_ALL)
        return rdt_error_set(err, RDT_UNSUPPORTED, "librdt %s knows no put flags 0x%x", RDT_VERSION,
                             options->flags & ~(uint32_t)RDT_PUT_FLAGS_ALL);
    return options_check_text(options->transport, RDT_MAX_NAME_BYTES, "transport", err);
}

/* AGAIN: what was to be lent again is gone, or larger than there may be; it is put in memory of its own. */
static enum rdt_status put_once(rdt *conn, const struct rdt_tensor *tensors, size_t count, const struct rdt_put_options *options,
                                int64_t deadline_ns, bool fresh, struct rdt_ref *ref_p, struct rdt_error *err)
{
    struct placed placed = {.copy_fd = -1, .sealed_fd = -1, .lends = may_lend(conn, options), .fresh = fresh};
    enum rdt_status status = tensor_layout(tensors, count, &placed.layout, err);

    if (status != RDT_OK)
        return status;
    placed.how = malloc((count + 1) * sizeof *placed.how);
    if (!placed.how)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for %zu tensors", count);
    if (status == RDT_OK)
        status = place_all(conn, &placed, err);
    if (status == RDT_OK && options->flags & RDT_PUT_PENDING && placed.copied_bytes > 0)
        status = rdt_error_set(err, RDT_INVALID,
                               "a PENDING put has tensors in memory that the daemon does not know: rdt_alloc or rdt_import it");
    if (status == RDT_OK) {
        bool made = options->flags & RDT_PUT_SNAPSHOT && !(options->flags & RDT_PUT_PENDING);
        status = made ? put_made(conn, &placed, tensors, options, deadline_ns, ref_p, err) : RDT_AGAIN;
        if (status == RDT_AGAIN)
            status = put_copied(conn, &placed, options, deadline_ns, ref_p, err);
    }
    if (status == RDT_OK && options->how)
        memcpy(options->how, placed.how, count * sizeof *options->how);
    if ((status == RDT_NOT_FOUND || status == RDT_LIMIT) && placed.loan && placed.loan->again)
        status = RDT_AGAIN;
    placed_fini(conn, &placed, status == RDT_OK);
    return status;
}

enum rdt_status rdt_put(rdt *conn, const struct rdt_tensor *tensors, size_t count, const struct rdt_put_options *options,
                        struct rdt_ref *ref_p, struct rdt_error *err)
{
    struct rdt_put_options own;
    struct rdt_error why = {0};
    int64_t deadline_ns;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK)
        status = options_copy(&own, sizeof own, options, err);
    if (status == RDT_OK)
        status = check_options(&own, err);
    if (status == RDT_OK && !ref_p)
        status = rdt_error_set(err, RDT_INVALID, "ref_p is NULL");
    if (status != RDT_OK)
        return status;
    deadline_ns = clock_deadline_ns(own.timeout_ns > 0 ? own.timeout_ns : RDT_FOREVER);
    status = put_once(conn, tensors, count, &own, deadline_ns, false, ref_p, &why);
    if (status == RDT_AGAIN)
        status = put_once(conn, tensors, count, &own, deadline_ns, true, ref_p, &why);
    if (status != RDT_OK && err)
        *err = why;
    return status;
}

/* ---- puts that are pending ---- */

static enum rdt_status send_ready(rdt *conn, const struct rdt_ref *ref, enum rdt_status how, const char *sentence,
                                  struct rdt_error *err)
{
    Rdt__Pb__Ready request = RDT__PB__READY__INIT;
    Rdt__Pb__Ref message;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && (!ref || ref->is_name || ref->id_bytes == 0 || ref->id_bytes > RDT_MAX_ID_BYTES))
        status = rdt_error_set(err, RDT_INVALID, "this is not the ref of an object that was put here");
    if (status != RDT_OK)
        return status;
    wire_ref_from(ref, &message);
    request.ref = &message;
    request.status = how;
    request.message = (char *)(sentence ? sentence : "");
    connection_lock(conn);
    status = connection_send(conn, RDT_MSG_READY, 0, &request.base, -1, true, err);
    connection_unlock(conn);
    return status;
}

enum rdt_status rdt_ready(rdt *conn, const struct rdt_ref *ref, struct rdt_error *err)
{
    return send_ready(conn, ref, RDT_OK, NULL, err);
}

enum rdt_status rdt_fail(rdt *conn, const struct rdt_ref *ref, enum rdt_status why, const char *sentence, struct rdt_error *err)
{
    return send_ready(conn, ref, why == RDT_OK ? RDT_OWNER_DIED : why, sentence, err);
}
