/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_put_many: packs small values into loaned regions, and puts those of a region with one message. While the daemon puts
 * one batch, the next is packed into another region. Larger snapshots are put by a message each, many at a time: the daemon
 * copies them out of memory that it knows, into which this thread has copied those that lie elsewhere (a stage). In the same
 * way values are put that stay in the memory that the daemon knows.
 *
 *     batch 0   pack ── PUT_MANY ─────────────► answer
 *     batch 1              pack ── PUT_MANY ───────────────► answer
 *     batch 2                         (waits for 0)  pack ── PUT_MANY ──►
 */
#include <stdlib.h>
#include <string.h>

#include "client/call.h"
#include "client/memory/loans.h"
#include "client/options.h"
#include "client/put.h"
#include "client/rdt_many.h"
#include "client/session/clock.h"
#include "client/session/connection.h"
#include "client/session/interrupt.h"
#include "client/tensor.h"
#include "proto/wire_limits.h"
#include "proto/wire_ref.h"

#define BATCH_BYTES ((uint64_t)1 << 20) /* of a region: what is packed next is still in the processor's cache when it is read */
#define BATCH_MOST 1024u                /* objects in a message */
#define BATCHES 2u                      /* at a time */
#define TOGETHER_LEAST 4u               /* fewer are put one by one, which takes no region */
#define FLYING_MOST 32u                 /* larger ones that are being put */
#define FLYING_BYTES ((uint64_t)12 << 20) /* of these: what they replace leaves memory for the next ones */
#define STAGE_BYTES ((uint64_t)4 << 20)
#define STAGES 3u
#define NO_STAGE STAGES
#define SILENT_NS INT64_C(5000000000)                          /* how long a daemon may take for a sign of life */
#define SILENT_LEAST_NS INT64_C(1000000000)                    /* the same, where time-outs are shorter */
#define SILENT "it was not sent, because rdtd does not answer" /* the value */
#define WIRE_FLAGS ((uint32_t)(RDT_PUT_SNAPSHOT | RDT_PUT_IMMUTABLE | RDT_PUT_DETACHED | RDT_PUT_REPLACE | RDT_PUT_EVICTABLE))
#define FLAGS (WIRE_FLAGS | RDT_PUT_UNSEALED | RDT_PUT_SUM)

struct batch { /* values that are put with one message */
    struct arena arena;
    Rdt__Pb__PutMany message;
    Rdt__Pb__RegionUse use;
    Rdt__Pb__TensorList list;
    struct layout_rows rows;
    struct layout *layout;
    struct loan *loan;
    size_t *values; /* [n] */
    unsigned n;
    struct waiting *waiting; /* NULL: it has not been sent */
};

struct flying { /* a larger value that is being put */
    struct put_on_its_way *put;
    size_t value;
    uint64_t bytes;
    unsigned stage; /* where its bytes lie; NO_STAGE: in the caller's memory */
};

struct stage {
    uint8_t *addr;     /* [STAGE_BYTES] of rdt_alloc; NULL: not needed yet */
    unsigned n_flying; /* values that the daemon copies out of it */
};

struct larger {                        /* what put_many does with larger values */
    struct flying flying[FLYING_MOST]; /* a ring */
    unsigned first, n;
    uint64_t bytes; /* of all that fly */
    struct stage stages[STAGES];
    unsigned stage; /* that is being filled */
    uint64_t used;  /* bytes of it */
    bool no_stage;  /* there is no memory for one, or it must not be written */
};

struct putting {
    rdt *conn;
    const struct rdt_value *values;
    size_t count;
    const struct rdt_put_options *options;
    struct rdt_ref *refs;
    enum rdt_status *statuses;
    struct rdt_error why; /* of the failed value with the lowest number */
    size_t why_at;
    struct rdt_node_info node;
    bool one_by_one;    /* the daemon knows no PUT_MANY */
    bool silent;        /* the daemon does not answer: what is left is not sent */
    struct batch *sent; /* NULL: none waits for its answer */
    struct larger larger;
};

/* When memory must be there, or why there is none. */
static int64_t room_answer_ns(const struct putting *putting, uint64_t bytes)
{
    int64_t timeout_ns = putting->options->timeout_ns;

    return timeout_ns > 0 ? clock_after_answer_ns(clock_deadline_ns(timeout_ns), timeout_ns)
                          : clock_deadline_ns(clock_default_ns(bytes));
}

/* Asks the daemon for a sign of life, once a value has timed out: it may have had no room for that one only. */
static bool is_silent(struct putting *putting)
{
    int64_t timeout_ns = putting->options->timeout_ns, patience_ns = SILENT_NS;

    if (timeout_ns > 0 && timeout_ns < SILENT_NS)
        patience_ns = timeout_ns < SILENT_LEAST_NS ? SILENT_LEAST_NS : timeout_ns;
    if (!putting->silent)
        putting->silent = rdt_ping(putting->conn, patience_ns, NULL) != RDT_OK;
    return putting->silent;
}

static void set(struct putting *putting, size_t i, enum rdt_status status, const struct rdt_error *why)
{
    putting->statuses[i] = status;
    if (status == RDT_OK || (putting->why.status != RDT_OK && putting->why_at < i))
        return;
    putting->why = *why;
    putting->why_at = i;
    rdt_error_prefix(&putting->why, "value %zu", i);
}

static struct rdt_put_options options_of(const struct putting *putting, const struct rdt_value *value)
{
    struct rdt_put_options options = *putting->options;

    options.struct_size = sizeof options; /* 0: the caller gave no options */
    options.id = value->id;
    options.id_bytes = value->id_bytes;
    options.metadata = value->metadata;
    options.metadata_bytes = value->metadata_bytes;
    return options;
}

static enum rdt_status put_alone(struct putting *putting, size_t i, struct rdt_error *why_p)
{
    const struct rdt_value *value = &putting->values[i];
    struct rdt_put_options options = options_of(putting, value);
    struct rdt_error why = {0};
    enum rdt_status status;

    if (putting->silent)
        status = rdt_error_set(&why, RDT_TIMED_OUT, SILENT);
    else
        status = rdt_put(putting->conn, value->tensors, value->count, &options, &putting->refs[i], &why);
    set(putting, i, status, &why);
    if (status == RDT_TIMED_OUT)
        (void)is_silent(putting);
    if (why_p)
        *why_p = why;
    return status;
}

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + LAYOUT_ALIGN_BYTES - 1) & ~(uint64_t)(LAYOUT_ALIGN_BYTES - 1);
}

/* ---- where the tensors lie ---- */

/* The memory that the daemon knows in which some byte of the tensor is. NULL: there is none. With the lock. */
static struct mapping *memory_of(rdt *conn, const struct rdt_tensor *tensor)
{
    uint64_t lo = (uintptr_t)tensor->data, hi = lo, row = rdt_dtype_bytes(tensor->dtype);
    const uint64_t item = row;

    for (uint32_t d = tensor->ndim; d-- > 0;) {
        int64_t step = tensor->strides ? tensor->strides[d] * (int64_t)item : (int64_t)row;
        if (tensor->shape[d] == 0)
            return NULL;
        row *= (uint64_t)tensor->shape[d];
        if (step < 0)
            lo += (uint64_t)(step * (tensor->shape[d] - 1));
        else
            hi += (uint64_t)(step * (tensor->shape[d] - 1));
    }
    return memory_at(&conn->memory, lo, hi + item);
}

static bool is_snapshot(const struct putting *putting)
{
    return putting->options->flags & RDT_PUT_SNAPSHOT;
}

/* Whether the tensor is not copied in this process: it lies on a device, or is put where it lies. With the lock. */
static bool stays(const struct putting *putting, const struct rdt_tensor *tensor)
{
    const struct mapping *at = memory_of(putting->conn, tensor);

    return at && (at->mapper || !is_snapshot(putting));
}

/* ---- larger values ---- */

/* Waits until the value that was sent first has been put. */
static void land(struct putting *putting)
{
    struct larger *larger = &putting->larger;
    struct flying *flying = &larger->flying[larger->first];
    struct rdt_error why = {0};
    enum rdt_status status = put_end(flying->put, &putting->refs[flying->value], &why);

    set(putting, flying->value, status, &why);
    if (status == RDT_TIMED_OUT || status == RDT_CANCELLED) /* the daemon may still read its bytes: nothing is written there */
        larger->no_stage = true;
    if (flying->stage != NO_STAGE)
        larger->stages[flying->stage].n_flying--;
    larger->bytes -= flying->bytes;
    larger->first = (larger->first + 1) % FLYING_MOST;
    larger->n--;
    if (status == RDT_TIMED_OUT)
        (void)is_silent(putting);
}

static void land_all(struct putting *putting)
{
    while (putting->larger.n > 0)
        land(putting);
}

/* Objects of one id follow each other in the order of the values. */
static bool is_flying(const struct putting *putting, const struct rdt_value *value)
{
    const struct larger *larger = &putting->larger;

    for (unsigned i = 0; value->id && i < larger->n; i++) {
        const struct rdt_value *other = &putting->values[larger->flying[(larger->first + i) % FLYING_MOST].value];
        if (other->id && other->id_bytes == value->id_bytes && memcmp(other->id, value->id, value->id_bytes) == 0)
            return true;
    }
    return false;
}

/* Room for so many bytes in a stage. NULL: there is none. */
static uint8_t *stage_room(struct putting *putting, uint64_t bytes)
{
    struct larger *larger = &putting->larger;
    struct stage *stage = &larger->stages[larger->stage];
    struct rdt_alloc_options options = RDT_INIT(options);
    uint8_t *at;

    if (bytes > STAGE_BYTES || larger->no_stage)
        return NULL;
    if (larger->used + bytes > STAGE_BYTES) {
        larger->stage = (larger->stage + 1) % STAGES;
        larger->used = 0;
        stage = &larger->stages[larger->stage];
        while (stage->n_flying > 0)
            land(putting);
    }
    if (larger->no_stage)
        return NULL;
    options.call_timeout_ns = putting->options->timeout_ns;
    if (!stage->addr && rdt_alloc_with(putting->conn, STAGE_BYTES, &options, (void **)&stage->addr, NULL) != RDT_OK) {
        larger->no_stage = true;
        return NULL;
    }
    at = stage->addr + larger->used;
    larger->used += align_up(bytes);
    return at;
}

/* Copies the tensors of a value into a stage, where staged_p [value->count] find them. AGAIN: there is no room for that. */
static enum rdt_status stage_value(struct putting *putting, const struct rdt_value *value, struct rdt_tensor *staged_p,
                                   struct rdt_error *err)
{
    struct layout *layout;
    uint64_t bytes = 0;
    uint8_t *at;
    enum rdt_status status = tensor_layout(value->tensors, value->count, &layout, err);

    for (uint32_t t = 0; status == RDT_OK && t < layout->count; t++)
        bytes = align_up(bytes) + layout_bytes(layout, t);
    at = status == RDT_OK ? stage_room(putting, bytes) : NULL;
    for (uint32_t t = 0; at && t < layout->count; t++) {
        bytes = layout_bytes(layout, t);
        layout->offset[t] = 0;
        if (bytes > 0)
            layout_gather(layout, t, value->tensors[t].data, 0, bytes, at);
        staged_p[t] = value->tensors[t];
        staged_p[t].data = at;
        staged_p[t].strides = NULL;
        at += align_up(bytes);
    }
    if (status != RDT_OK)
        return status;
    free(layout);
    return at ? RDT_OK : RDT_AGAIN;
}

static uint64_t value_bytes(const struct rdt_value *value)
{
    uint64_t all = 0;
    size_t bytes;

    for (size_t t = 0; t < value->count; t++)
        all += rdt_tensor_bytes(&value->tensors[t], &bytes, NULL) == RDT_OK ? bytes : 0;
    return all;
}

static enum rdt_status send_larger(struct putting *putting, size_t i, struct rdt_error *why)
{
    struct larger *larger = &putting->larger;
    const struct rdt_value *value = &putting->values[i];
    uint64_t bytes = is_snapshot(putting) ? value_bytes(value) : 0; /* that the daemon copies */
    struct rdt_put_options options = options_of(putting, value);
    struct flying *flying;
    struct rdt_tensor *staged;
    enum rdt_status status;

    while (larger->n > 0 && larger->bytes + bytes > FLYING_BYTES)
        land(putting);
    flying = &larger->flying[(larger->first + larger->n) % FLYING_MOST];
    status = put_begin(putting->conn, value->tensors, value->count, &options, &flying->put, why);

    flying->stage = NO_STAGE;
    if (status == RDT_AGAIN && is_snapshot(putting)) {
        staged = calloc(value->count + 1, sizeof *staged);
        status = staged ? stage_value(putting, value, staged, why)
                        : rdt_error_set(why, RDT_NO_MEMORY, "there is no memory for a list of tensors");
        flying = &larger->flying[(larger->first + larger->n) % FLYING_MOST]; /* some may have landed */
        flying->stage = larger->stage;
        if (status == RDT_OK)
            status = put_begin(putting->conn, staged, value->count, &options, &flying->put, why);
        free(staged);
    }
    if (status != RDT_OK)
        return status;
    if (flying->stage != NO_STAGE)
        larger->stages[flying->stage].n_flying++;
    flying->value = i;
    flying->bytes = bytes;
    larger->bytes += bytes;
    larger->n++;
    return RDT_OK;
}

/* Whether the value is put while others are: it is a snapshot, or lies in memory that the daemon knows. */
static bool may_fly(const struct putting *putting, const struct rdt_value *value)
{
    uint32_t flags = putting->options->flags & (RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED | RDT_PUT_PENDING);
    size_t bytes;
    bool known;

    if (putting->silent || putting->count < TOGETHER_LEAST || value->count == 0 || !value->tensors)
        return false;
    if (flags != 0)
        return flags == RDT_PUT_SNAPSHOT;
    if (rdt_tensor_bytes(&value->tensors[0], &bytes, NULL) != RDT_OK)
        return false;
    connection_lock(putting->conn);
    known = memory_of(putting->conn, &value->tensors[0]);
    connection_unlock(putting->conn);
    return known;
}

/* Puts a value that does not travel with others. */
static void put_larger(struct putting *putting, size_t i)
{
    const struct rdt_value *value = &putting->values[i];
    struct rdt_error why = {0};
    enum rdt_status status = RDT_AGAIN;

    if (interrupt_ask())
        status = rdt_error_set(&why, RDT_CANCELLED, "the put was interrupted");
    while (putting->larger.n == FLYING_MOST || is_flying(putting, value))
        land(putting);
    if (status == RDT_AGAIN && may_fly(putting, value))
        status = send_larger(putting, i, &why);
    if (status == RDT_AGAIN) {
        land_all(putting);
        (void)put_alone(putting, i, NULL);
    } else if (status != RDT_OK) {
        set(putting, i, status, &why);
    }
}

static void end_larger(struct putting *putting)
{
    land_all(putting);
    for (unsigned i = 0; i < STAGES; i++)
        if (putting->larger.stages[i].addr)
            (void)(putting->silent ? rdt_dealloc_soon : rdt_dealloc)(putting->conn, putting->larger.stages[i].addr, NULL);
}

/* ---- which values travel together ---- */

/* The bytes that the value takes in a region; 0: it does not travel with others, or is wrong, which rdt_put will say. With the
 * lock. */
static uint64_t bytes_of(const struct putting *putting, const struct rdt_value *value)
{
    uint64_t end = 0;

    if (putting->one_by_one || (value->count > 0 && !value->tensors) || (value->id && value->id_bytes == 0) ||
        value->id_bytes > RDT_MAX_ID_BYTES || (value->metadata_bytes > 0 && !value->metadata))
        return 0;
    for (size_t t = 0; t < value->count; t++) {
        size_t bytes;
        if (rdt_tensor_bytes(&value->tensors[t], &bytes, NULL) != RDT_OK || bytes > putting->conn->can.inline_max_bytes ||
            (bytes > 0 && (!value->tensors[t].data || stays(putting, &value->tensors[t]))))
            return 0;
        end = align_up(end) + bytes;
        if (end > putting->conn->can.inline_max_bytes)
            return 0;
    }
    return end + value->metadata_bytes + 1;
}

/* ---- a batch ---- */

static void batch_free(rdt *conn, struct batch *batch, bool done)
{
    if (batch->loan) {
        connection_lock(conn);
        loans_end(conn, batch->loan, done);
        connection_unlock(conn);
    }
    free(batch->layout);
    arena_fini(&batch->arena);
    free(batch);
}

/* The columns of ids, metadata and checksums. */
static enum rdt_status add_texts(const struct putting *putting, struct batch *batch, struct rdt_error *err)
{
    Rdt__Pb__PutMany *message = &batch->message;
    size_t ids = 0, texts = 0;

    for (unsigned i = 0; i < batch->n; i++) {
        ids += putting->values[batch->values[i]].id ? putting->values[batch->values[i]].id_bytes : 0;
        texts += putting->values[batch->values[i]].metadata_bytes;
    }
    message->count = arena_alloc(&batch->arena, (batch->n + 1) * sizeof *message->count);
    message->id_bytes = arena_alloc(&batch->arena, (batch->n + 1) * sizeof *message->id_bytes);
    message->metadata_bytes = arena_alloc(&batch->arena, (batch->n + 1) * sizeof *message->metadata_bytes);
    message->ids.data = arena_alloc(&batch->arena, ids + 1);
    message->metadata.data = arena_alloc(&batch->arena, texts + 1);
    if (!message->count || !message->id_bytes || !message->metadata_bytes || !message->ids.data || !message->metadata.data)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory to put %u objects", batch->n);
    for (unsigned i = 0; i < batch->n; i++) {
        const struct rdt_value *value = &putting->values[batch->values[i]];
        message->count[i] = (uint32_t)value->count;
        message->id_bytes[i] = value->id ? (uint32_t)value->id_bytes : 0;
        message->metadata_bytes[i] = (uint32_t)value->metadata_bytes;
        if (message->id_bytes[i] > 0)
            memcpy(message->ids.data + message->ids.len, value->id, value->id_bytes);
        if (value->metadata_bytes > 0)
            memcpy(message->metadata.data + message->metadata.len, value->metadata, value->metadata_bytes);
        message->ids.len += message->id_bytes[i];
        message->metadata.len += value->metadata_bytes;
    }
    message->n_count = batch->n;
    message->n_id_bytes = ids > 0 ? batch->n : 0;
    message->n_metadata_bytes = texts > 0 ? batch->n : 0;
    return RDT_OK;
}

static enum rdt_status add_sums(const struct putting *putting, struct batch *batch, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    batch->message.sum = arena_alloc(&batch->arena, (batch->n + 1) * sizeof *batch->message.sum);
    if (!batch->message.sum)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for checksums");
    batch->message.n_sum = batch->n;
    for (unsigned i = 0; status == RDT_OK && i < batch->n; i++) {
        const struct rdt_value *value = &putting->values[batch->values[i]];
        void **data = calloc(value->count + 1, sizeof *data);
        struct layout *layout = NULL;

        status = data ? tensor_layout(value->tensors, value->count, &layout, err)
                      : rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for checksums");
        for (size_t t = 0; status == RDT_OK && t < value->count; t++)
            data[t] = value->tensors[t].data;
        if (status == RDT_OK)
            status = tensor_sum(layout, data, value->metadata, value->metadata_bytes, &batch->message.sum[i], err);
        free(layout);
        free(data);
    }
    return status;
}

/* Copies the tensors into the region, one behind the other, and makes the layout say where they lie there. */
static void pack(struct batch *batch)
{
    struct layout *layout = batch->layout;
    uint8_t *base = batch->loan->mapping->addr;
    uint64_t at = 0;

    for (uint32_t t = 0; t < layout->count; t++) {
        const uint8_t *data = (const uint8_t *)(uintptr_t)layout->offset[t];
        uint64_t bytes = layout_bytes(layout, t);

        layout->offset[t] = 0;
        layout->region[t] = 0;
        at = align_up(at);
        if (bytes > 0 && layout_is_contiguous(layout, t))
            memcpy(base + at, data, bytes);
        else if (bytes > 0)
            layout_gather(layout, t, data, 0, bytes, base + at);
        layout_set_row_major(layout, t);
        layout->offset[t] = at;
        at += bytes;
    }
}

static enum rdt_status prepare(struct putting *putting, struct batch *batch, uint64_t region_bytes, struct rdt_error *err)
{
    const struct rdt_put_options *options = putting->options;
    Rdt__Pb__PutMany *message = &batch->message;
    struct rdt_tensor *tensors;
    size_t n = 0, at = 0;
    enum rdt_status status;

    for (unsigned i = 0; i < batch->n; i++)
        n += putting->values[batch->values[i]].count;
    tensors = arena_alloc(&batch->arena, (n + 1) * sizeof *tensors);
    if (!tensors)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory to put %u objects", batch->n);
    for (unsigned i = 0; i < batch->n; i++) {
        const struct rdt_value *value = &putting->values[batch->values[i]];
        if (value->count > 0)
            memcpy(tensors + at, value->tensors, value->count * sizeof *tensors);
        at += value->count;
    }
    status = tensor_layout(tensors, n, &batch->layout, err);
    if (status == RDT_OK)
        status = add_texts(putting, batch, err);
    if (status == RDT_OK && options->flags & RDT_PUT_SUM)
        status = add_sums(putting, batch, err);
    if (status == RDT_OK)
        status = loans_take(putting->conn, region_bytes, false, options->timeout_ns > 0 ? options->timeout_ns : 0,
                            room_answer_ns(putting, region_bytes), &batch->loan, err);
    if (status != RDT_OK)
        return status;
    pack(batch);
    batch->use.region = batch->loan->mapping->region;
    batch->use.generation = batch->loan->mapping->generation;
    layout_to_wire(batch->layout, true, putting->conn->can.tensor_runs ? &batch->rows : NULL, &batch->list);
    message->tensors = &batch->list;
    message->region = &batch->use;
    message->flags = options->flags & WIRE_FLAGS;
    message->transport = (char *)(options->transport ? options->transport : "");
    message->visibility = (Rdt__Pb__Visibility)options->visibility;
    message->ttl_ns = options->ttl_ns;
    message->priority = options->priority;
    return RDT_OK;
}

static void make_ref(const struct putting *putting, size_t i, uint64_t generation)
{
    const struct rdt_value *value = &putting->values[i];
    struct rdt_ref *ref = &putting->refs[i];

    memset(ref, 0, sizeof *ref);
    memcpy(ref->node, putting->node.node, sizeof ref->node);
    memcpy(ref->address, putting->node.address, sizeof ref->address);
    memcpy(ref->tenant, putting->node.tenant, sizeof ref->tenant);
    ref->uid = putting->node.uid;
    ref->generation = generation;
    ref->id_bytes = (uint8_t)(value->id ? value->id_bytes : wire_ref_generated_id(generation, ref->id));
    if (value->id)
        memcpy(ref->id, value->id, value->id_bytes);
}

/* Sets what the message answers for its objects. */
static enum rdt_status take_answer(struct putting *putting, const struct batch *batch, const Rdt__Pb__PutManyReply *reply,
                                   struct rdt_error *err)
{
    if (reply->n_generation != batch->n || (reply->n_status != 0 && reply->n_status != batch->n))
        return rdt_error_set(err, RDT_PROTOCOL, "rdtd answered PUT_MANY of %u objects for %zu", batch->n, reply->n_generation);
    for (unsigned i = 0; i < batch->n; i++) {
        struct rdt_error why = {0};
        enum rdt_status status = RDT_OK;

        if (reply->n_status != 0 && reply->status[i] != RDT_OK)
            status = wire_error(reply->status[i], 0, reply->why, &why);
        if (status == RDT_OK)
            make_ref(putting, batch->values[i], reply->generation[i]);
        set(putting, batch->values[i], status, &why);
    }
    return RDT_OK;
}

static void set_all(struct putting *putting, const struct batch *batch, const struct rdt_error *why)
{
    for (unsigned i = 0; i < batch->n; i++)
        set(putting, batch->values[i], why->status, why);
}

/* Puts each value by itself, so that one that cannot be put, or a region that there is not, does not fail the others. What
 * would make each of them wait in vain fails all that are left. */
static void put_each(struct putting *putting, const struct batch *batch)
{
    enum rdt_status status = RDT_OK;
    struct rdt_error why;

    for (unsigned i = 0; i < batch->n; i++) {
        if (status == RDT_TIMED_OUT || status == RDT_CANCELLED || status == RDT_DISCONNECTED)
            set(putting, batch->values[i], status, &why);
        else
            status = put_alone(putting, batch->values[i], &why);
    }
}

static int64_t answer_ns(const struct putting *putting)
{
    int64_t timeout_ns = putting->options->timeout_ns;

    return clock_deadline_ns(timeout_ns == 0 ? clock_default_ns(BATCH_BYTES) : timeout_ns);
}

/* Waits for the answer of a batch that was sent. One that the daemon does not understand, or whose region it has dropped, is
 * put in another way. */
static void finish(struct putting *putting, struct batch *take_batch)
{
    struct rdt_error why = {0};
    ProtobufCMessage *reply = NULL;
    bool reused = take_batch->loan->reused;
    enum rdt_status status = call_end(putting->conn, take_batch->waiting, answer_ns(putting), &reply, &why);

    if (status == RDT_OK)
        status = take_answer(putting, take_batch, (const Rdt__Pb__PutManyReply *)reply, &why);
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
    putting->one_by_one |= status == RDT_UNSUPPORTED;
    if (status == RDT_UNSUPPORTED || (reused && (status == RDT_NOT_FOUND || status == RDT_LIMIT)))
        put_each(putting, take_batch);
    else if (status != RDT_OK)
        set_all(putting, take_batch, &why);
    if (status == RDT_TIMED_OUT)
        (void)is_silent(putting);
    batch_free(putting->conn, take_batch, status == RDT_OK);
}

/* Sends a batch, and finishes the one before. */
static void put_batch(struct putting *putting, struct batch *take_batch, uint64_t region_bytes)
{
    struct batch *before;
    struct rdt_error why = {0};
    enum rdt_status status =
        putting->silent ? rdt_error_set(&why, RDT_TIMED_OUT, SILENT) : prepare(putting, take_batch, region_bytes, &why);
    bool alone = status != RDT_OK && status != RDT_CANCELLED && (status != RDT_TIMED_OUT || !is_silent(putting));

    if (status == RDT_OK && interrupt_ask())
        status = rdt_error_set(&why, RDT_CANCELLED, "the put was interrupted");
    if (status == RDT_OK)
        status = call_begin(putting->conn, RDT_MSG_PUT_MANY, &take_batch->message.base, NULL, 0, take_batch->n,
                            &take_batch->waiting, &why);
    before = putting->sent;
    putting->sent = status == RDT_OK ? take_batch : NULL;
    if (before)
        finish(putting, before);
    if (status == RDT_OK)
        return;
    if (alone)
        put_each(putting, take_batch);
    else
        set_all(putting, take_batch, &why);
    batch_free(putting->conn, take_batch, false);
}

/* ---- the call ---- */

/* The next batch: values from *next_p on that travel together. Others are put on the way. NULL: there is none. */
static struct batch *next_batch(struct putting *putting, size_t *next_p, uint64_t *bytes_p)
{
    struct batch *batch = calloc(1, sizeof *batch);
    uint64_t bytes;

    *bytes_p = 0;
    if (!batch)
        return NULL;
    arena_init(&batch->arena, SIZE_MAX / 2);
    rdt__pb__put_many__init(&batch->message);
    rdt__pb__region_use__init(&batch->use);
    batch->values = arena_alloc(&batch->arena, BATCH_MOST * sizeof *batch->values);
    for (; batch->values && *next_p < putting->count && batch->n < BATCH_MOST; ++*next_p) {
        connection_lock(putting->conn);
        bytes = bytes_of(putting, &putting->values[*next_p]);
        connection_unlock(putting->conn);
        if (bytes == 0)
            put_larger(putting, *next_p);
        else if (*bytes_p + align_up(bytes) > BATCH_BYTES)
            break;
        else
            batch->values[batch->n++] = *next_p;
        *bytes_p += bytes == 0 ? 0 : align_up(bytes);
    }
    return batch;
}

static void put_all(struct putting *putting)
{
    uint64_t bytes;

    for (size_t next = 0; next < putting->count;) {
        size_t first = next;
        struct batch *batch = next_batch(putting, &next, &bytes);
        bool together = batch && batch->n >= TOGETHER_LEAST;

        if (together) {
            put_batch(putting, batch, next < putting->count ? BATCH_BYTES : bytes);
            continue;
        }
        for (unsigned i = 0; batch && i < batch->n; i++)
            (void)put_alone(putting, batch->values[i], NULL);
        if (batch)
            batch_free(putting->conn, batch, false);
        if (next == first) /* there is no memory for a batch, or the value is larger than one */
            (void)put_alone(putting, next++, NULL);
    }
    if (putting->sent)
        finish(putting, putting->sent);
    end_larger(putting);
}

static enum rdt_status check(const rdt *conn, const struct rdt_value *values, size_t count,
                             const struct rdt_put_options *options, struct rdt_put_options *own_p, const struct rdt_ref *refs_p,
                             struct rdt_error *err)
{
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && count > 0 && (!values || !refs_p))
        status = rdt_error_set(err, RDT_INVALID, "%s is NULL, and count is %zu", values ? "refs_p" : "values", count);
    if (status == RDT_OK)
        status = options_copy(own_p, sizeof *own_p, options, err);
    if (status == RDT_OK && (own_p->id || own_p->metadata || own_p->how || own_p->shards))
        status = rdt_error_set(err, RDT_INVALID,
                               "id, metadata, how and shards of the options are for one object: give id and metadata in each "
                               "rdt_value");
    return status;
}

enum rdt_status rdt_put_many(rdt *conn, const struct rdt_value *values, size_t count, const struct rdt_put_options *options,
                             struct rdt_ref *refs_p, enum rdt_status *statuses_p, struct rdt_error *err)
{
    struct rdt_put_options own;
    struct putting putting = {.conn = conn, .values = values, .count = count, .options = &own, .refs = refs_p};
    enum rdt_status status = check(conn, values, count, options, &own, refs_p, err);

    if (status != RDT_OK)
        return status;
    putting.statuses = statuses_p ? statuses_p : calloc(count + 1, sizeof *putting.statuses);
    if (!putting.statuses)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for %zu statuses", count);
    connection_copy_node(conn, &putting.node);
    putting.one_by_one = (own.flags & ~FLAGS) != 0;
    put_all(&putting);
    for (size_t i = 0; !statuses_p && putting.why.status != RDT_OK && i < count; i++)
        if (putting.statuses[i] == RDT_OK)
            call_free_unseen(conn, &refs_p[i]);
    if (!statuses_p)
        free(putting.statuses);
    if (putting.why.status != RDT_OK && err)
        *err = putting.why;
    return putting.why.status;
}
