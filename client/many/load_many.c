/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_load_many: the objects of a message are copied by the daemon into the regions where their targets lie, or into one of
 * this call, out of which this thread copies them while the daemon fills another. The rest is fetched. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "client/call.h"
#include "client/memory/overlap.h"
#include "client/options.h"
#include "client/rdt_many.h"
#include "client/request.h"
#include "client/session/clock.h"
#include "client/session/connection.h"
#include "client/session/interrupt.h"
#include "client/tensor.h"
#include "proto/grow.h"
#include "proto/layout.h"
#include "proto/wire_limits.h"

#define DIRECT_BYTES ((uint64_t)64 << 20) /* of a message: while the daemon copies, it finds the objects of the next one */
#define STAGED_MOST ((uint64_t)4 << 20)   /* of an object that is copied twice: the bytes are still in the processor's cache */
#define STAGED_BYTES ((uint64_t)1 << 20)  /* of a message with several of these */
#define BATCH_MOST 512u                   /* objects in a message */
#define BATCHES 4u                        /* at a time */

struct batch { /* what one message loads */
    Rdt__Pb__LoadMany message;
    Rdt__Pb__RegionUse *uses, **use_list; /* [n_into], or one */
    Rdt__Pb__TensorList list;
    struct layout *layout; /* of the targets, in their regions */
    void **data;           /* [layout->count] where they are */
    bool direct;           /* else into stages[stage] */
    struct mapper *mapper; /* of all regions, if direct; NULL: host memory */
    struct mapping **into; /* [n_into] a reference each, by the number of the region */
    size_t n_into, into_room;
    uint32_t *regions; /* [n_targets] the numbers of the regions of the targets, if direct */
    size_t regions_room;
    unsigned stage;
    unsigned n;
    size_t n_targets;
    uint64_t bytes;
    struct waiting *waiting;
    size_t which[BATCH_MOST]; /* [n] of the objects; these are uninitialised behind that */
    uint64_t generation[BATCH_MOST];
    uint32_t counts[BATCH_MOST];
    struct layout_rows rows;
};

struct loading {
    rdt *conn;
    const struct rdt_ref *refs;
    const struct rdt_tensor *const *targets;
    const size_t *target_counts;
    size_t count;
    enum rdt_status *statuses;
    struct rdt_node_info node;
    int64_t deadline_ns;
    void *stages[BATCHES]; /* [stage_bytes] of rdt_alloc; NULL: not needed yet */
    uint64_t stage_bytes;
    unsigned n_batches;
    struct batch *sent[BATCHES]; /* a ring of those that wait for their answers */
    unsigned first, n_sent;
    enum rdt_status over; /* not OK: TIMED_OUT, CANCELLED, DISCONNECTED: nothing more is sent */
    struct rdt_error over_why;
    bool refused; /* a message was: everything that is left is fetched */
};

static uint64_t align_up(uint64_t bytes)
{
    return (bytes + LAYOUT_ALIGN_BYTES - 1) & ~(uint64_t)(LAYOUT_ALIGN_BYTES - 1);
}

static bool is_row_major(const struct rdt_tensor *tensor)
{
    int64_t stride = 1;

    for (uint32_t d = tensor->ndim; tensor->strides && d-- > 0; stride *= tensor->shape[d])
        if (tensor->shape[d] > 1 && tensor->strides[d] != stride)
            return false;
    return true;
}

/* Whether the daemon copies into this memory, which the caller has made known to it. */
static bool may_be_loaded_into(const struct mapping *at)
{
    return (at->origin == MAPPING_ALLOCATED || (at->origin == MAPPING_IMPORTED && at->mapper)) && !at->loan;
}

/* Where the targets of an object lie. */
struct sight {
    bool direct; /* in memory that the daemon knows, all of it of this mapper's kind */
    struct mapper *mapper;
    uint64_t bytes;
};

/* The memory of a target, and its bytes. *at_p NULL: ordinary memory. false: the object is fetched. With the lock. */
static bool find_memory(const struct loading *loading, const struct rdt_tensor *target, struct mapping **at_p, size_t *bytes_p)
{
    uintptr_t lo = (uintptr_t)target->data;

    if (rdt_tensor_bytes(target, bytes_p, NULL) != RDT_OK || !target->data || *bytes_p == 0 || !is_row_major(target))
        return false;
    *at_p = memory_at(&loading->conn->memory, lo, lo + *bytes_p);
    return !*at_p || (may_be_loaded_into(*at_p) && memory_contains(*at_p, lo, lo + *bytes_p));
}

/* false: object i is fetched. With the lock. */
static bool look(const struct loading *loading, size_t i, struct sight *sight_p)
{
    const struct rdt_ref *ref = &loading->refs[i];
    struct sight sight = {.bytes = 0};

    if (ref->generation == 0 || ref->is_name || memcmp(ref->node, loading->node.node, sizeof ref->node) != 0)
        return false;
    for (size_t t = 0; t < loading->target_counts[i]; t++) {
        struct mapping *at;
        size_t bytes;

        if (!find_memory(loading, &loading->targets[i][t], &at, &bytes) ||
            (t > 0 && (sight.direct != (at != NULL) || (at && at->mapper != sight.mapper))))
            return false;
        sight.direct = at;
        sight.mapper = at ? at->mapper : NULL;
        sight.bytes = align_up(sight.bytes) + bytes;
    }
    *sight_p = sight;
    return sight.bytes > 0 && (sight.direct || sight.bytes <= STAGED_MOST);
}

/* ---- a batch ---- */

/* With the lock. */
static void forget_regions(struct loading *loading, struct batch *batch)
{
    while (batch->n_into > 0)
        memory_unref(&loading->conn->memory, batch->into[--batch->n_into]);
}

static void batch_free(struct loading *loading, struct batch *batch)
{
    if (!batch)
        return;
    connection_lock(loading->conn);
    forget_regions(loading, batch);
    connection_unlock(loading->conn);
    free(batch->into);
    free(batch->regions);
    free(batch->uses);
    free(batch->use_list);
    free(batch->layout);
    free(batch->data);
    free(batch);
}

/* Gives the region of a target a number in the message. LIMIT: there are too many. With the lock. */
static enum rdt_status number_region(struct loading *loading, struct batch *batch, const struct rdt_tensor *target,
                                     uint64_t mark, uint32_t *number_p)
{
    struct mapping *at = NULL, **into;
    size_t bytes;

    (void)find_memory(loading, target, &at, &bytes);
    if (at->mark != mark) {
        if (batch->n_into == RDT_MAX_TARGET_REGIONS)
            return RDT_LIMIT;
        into = array_grow(batch->into, batch->n_into, &batch->into_room, sizeof(struct mapping *));
        if (!into)
            return RDT_NO_MEMORY;
        batch->into = into;
        at->mark = mark;
        at->index = (uint32_t)batch->n_into;
        memory_ref(at);
        batch->into[batch->n_into++] = at;
    }
    *number_p = at->index;
    return RDT_OK;
}

/* Adds the regions of an object's targets. After an error those that were added are of no use, and do no harm. */
static enum rdt_status number_regions(struct loading *loading, struct batch *batch, size_t i, uint64_t mark)
{
    enum rdt_status status = RDT_OK;

    for (size_t t = 0; status == RDT_OK && t < loading->target_counts[i]; t++) {
        uint32_t *regions = array_grow(batch->regions, batch->n_targets + t, &batch->regions_room, sizeof *regions);
        if (!regions)
            return RDT_NO_MEMORY;
        batch->regions = regions;
        status = number_region(loading, batch, &loading->targets[i][t], mark, &regions[batch->n_targets + t]);
    }
    return status;
}

static bool fits(const struct loading *loading, const struct batch *batch, const struct sight *sight)
{
    return sight->direct == batch->direct && sight->mapper == batch->mapper &&
           align_up(batch->bytes) + sight->bytes <= (batch->direct ? DIRECT_BYTES : loading->stage_bytes);
}

/* The objects from *next_p on that one message loads. Passes over those that are fetched. NULL: there are none, or there is no
 * memory. */
static struct batch *next_batch(struct loading *loading, size_t *next_p)
{
    struct batch *batch = malloc(sizeof *batch);
    enum rdt_status status = RDT_OK;
    struct sight sight;
    uint64_t mark;

    if (!batch)
        return NULL;
    memset(batch, 0, offsetof(struct batch, which));
    connection_lock(loading->conn);
    mark = memory_mark(&loading->conn->memory);
    for (; *next_p < loading->count && batch->n < BATCH_MOST; ++*next_p) {
        if (!look(loading, *next_p, &sight))
            continue;
        if (batch->n > 0 && !fits(loading, batch, &sight))
            break;
        batch->direct = sight.direct;
        batch->mapper = sight.mapper;
        status = sight.direct ? number_regions(loading, batch, *next_p, mark) : RDT_OK;
        if (status == RDT_LIMIT && batch->n == 0) { /* it is fetched */
            forget_regions(loading, batch);
            mark = memory_mark(&loading->conn->memory);
            continue;
        }
        if (status != RDT_OK)
            break;
        batch->generation[batch->n] = loading->refs[*next_p].generation;
        batch->counts[batch->n] = (uint32_t)loading->target_counts[*next_p];
        batch->which[batch->n++] = *next_p;
        batch->n_targets += loading->target_counts[*next_p];
        batch->bytes = align_up(batch->bytes) + sight.bytes;
    }
    connection_unlock(loading->conn);
    if (batch->n > 0)
        return batch;
    batch_free(loading, batch);
    return NULL;
}

/* Names the regions into which the batch goes. */
static enum rdt_status set_regions(struct loading *loading, struct batch *batch, struct rdt_error *err)
{
    size_t n = batch->direct ? batch->n_into : 1;
    void **stage = &loading->stages[batch->stage];
    enum rdt_status status = RDT_OK;

    batch->uses = calloc(n, sizeof *batch->uses);
    batch->use_list = calloc(n, sizeof(Rdt__Pb__RegionUse *));
    if (!batch->uses || !batch->use_list)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory to load %u objects", batch->n);
    if (!batch->direct) {
        batch->stage = loading->n_batches++ % BATCHES;
        stage = &loading->stages[batch->stage];
        status = *stage ? RDT_OK : rdt_alloc(loading->conn, loading->stage_bytes, stage, err);
    }
    if (status != RDT_OK)
        return status;
    connection_lock(loading->conn);
    for (size_t i = 0; i < n; i++) {
        const struct mapping *region = batch->direct ? batch->into[i] : NULL;
        if (!region)
            region = memory_at(&loading->conn->memory, (uintptr_t)*stage, (uintptr_t)*stage + 1);
        rdt__pb__region_use__init(&batch->uses[i]);
        batch->uses[i].region = region->region;
        batch->uses[i].generation = region->generation;
        batch->use_list[i] = &batch->uses[i];
    }
    connection_unlock(loading->conn);
    batch->message.region = batch->use_list[0];
    batch->message.more_regions = batch->use_list + 1;
    batch->message.n_more_regions = n - 1;
    return RDT_OK;
}

/* Makes the list of targets, and says where each lies in its region. */
static enum rdt_status place(struct loading *loading, struct batch *batch, struct rdt_error *err)
{
    struct rdt_tensor *all = malloc((batch->n_targets + 1) * sizeof *all);
    uint64_t at = 0;
    size_t n = 0;
    enum rdt_status status = RDT_OK;

    batch->data = malloc((batch->n_targets + 1) * sizeof *batch->data);
    if (!all || !batch->data)
        status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory to load %u objects", batch->n);
    for (unsigned i = 0; status == RDT_OK && i < batch->n; i++)
        for (uint32_t t = 0; t < batch->counts[i]; t++)
            all[n++] = loading->targets[batch->which[i]][t];
    if (status == RDT_OK)
        status = tensor_layout(all, n, &batch->layout, err);
    for (uint32_t t = 0; status == RDT_OK && t < batch->layout->count; t++) {
        batch->data[t] = all[t].data;
        batch->layout->region[t] = batch->direct ? batch->regions[t] : 0;
        at = align_up(at);
        batch->layout->offset[t] =
            batch->direct ? (uint64_t)((uint8_t *)all[t].data - batch->into[batch->regions[t]]->addr) : at;
        at += layout_bytes(batch->layout, t);
    }
    free(all);
    return status;
}

static enum rdt_status send_batch(struct loading *loading, struct batch *batch, struct rdt_error *err)
{
    Rdt__Pb__LoadMany *message = &batch->message;
    enum rdt_status status;

    rdt__pb__load_many__init(message);
    status = set_regions(loading, batch, err);
    if (status == RDT_OK)
        status = place(loading, batch, err);
    if (status != RDT_OK)
        return status;
    layout_to_wire(batch->layout, true, loading->conn->can.tensor_runs ? &batch->rows : NULL, &batch->list);
    message->generation = batch->generation;
    message->n_generation = batch->n;
    message->count = batch->counts;
    message->n_count = batch->n_targets == batch->n ? 0 : batch->n;
    message->targets = &batch->list;
    return call_begin(loading->conn, RDT_MSG_LOAD_MANY, &message->base, NULL, 0, 1, &batch->waiting, err);
}

/* Copies what has come into a region of this call. */
static void copy_out(const struct loading *loading, const struct batch *batch)
{
    const uint8_t *from = batch->direct ? NULL : loading->stages[batch->stage];
    uint32_t t = 0;

    for (unsigned i = 0; from && i < batch->n; i++)
        for (uint32_t end = t + batch->counts[i]; t < end; t++)
            if (loading->statuses[batch->which[i]] == RDT_OK)
                memcpy(batch->data[t], from + batch->layout->offset[t], layout_bytes(batch->layout, t));
}

/* Waits for the answer of the batch that was sent first. What it has not loaded stays AGAIN. */
static void finish(struct loading *loading)
{
    struct batch *batch = loading->sent[loading->first];
    struct rdt_error why = {0};
    ProtobufCMessage *answer = NULL;
    const Rdt__Pb__LoadManyReply *reply;
    enum rdt_status status = call_end(loading->conn, batch->waiting, loading->deadline_ns, &answer, &why);

    loading->first = (loading->first + 1) % BATCHES;
    loading->n_sent--;
    reply = (const Rdt__Pb__LoadManyReply *)answer;
    if (status == RDT_TIMED_OUT || status == RDT_CANCELLED || status == RDT_DISCONNECTED) {
        loading->over = status;
        loading->over_why = why;
    } else if (status != RDT_OK) {
        loading->refused = true;
    }
    if (status == RDT_OK && (reply->n_status == 0 || reply->n_status == batch->n)) {
        for (unsigned i = 0; i < batch->n; i++)
            if (reply->n_status == 0 || reply->status[i] == RDT_OK)
                loading->statuses[batch->which[i]] = RDT_OK;
        copy_out(loading, batch);
    }
    if (answer)
        protobuf_c_message_free_unpacked(answer, NULL);
    batch_free(loading, batch);
}

/* A stage has room for the largest object that needs one. */
static void size_stages(struct loading *loading)
{
    struct sight sight;

    loading->stage_bytes = STAGED_BYTES;
    connection_lock(loading->conn);
    for (size_t i = 0; i < loading->count; i++)
        if (look(loading, i, &sight) && !sight.direct && sight.bytes > loading->stage_bytes)
            loading->stage_bytes = sight.bytes;
    connection_unlock(loading->conn);
}

/* Sends one batch after the other, before the answers to those before. */
static void load_batches(struct loading *loading)
{
    struct batch *batch;
    struct rdt_error why = {0};
    enum rdt_status status;

    size_stages(loading);
    for (size_t next = 0; loading->over == RDT_OK && !loading->refused && (batch = next_batch(loading, &next));) {
        if (loading->n_sent == BATCHES) /* its stage is the next one */
            finish(loading);
        if (loading->over != RDT_OK || loading->refused) {
            batch_free(loading, batch);
            break;
        }
        status = interrupt_ask() ? rdt_error_set(&why, RDT_CANCELLED, "the load was interrupted") : RDT_OK;
        if (status == RDT_OK)
            status = send_batch(loading, batch, &why);
        if (status == RDT_OK) {
            loading->sent[(loading->first + loading->n_sent++) % BATCHES] = batch;
            continue;
        }
        batch_free(loading, batch);
        loading->refused = true;
        if (status == RDT_CANCELLED) {
            loading->over = status;
            loading->over_why = why;
        }
    }
    while (loading->n_sent > 0)
        finish(loading);
    for (unsigned i = 0; i < BATCHES; i++)
        if (loading->stages[i])
            (void)rdt_dealloc(loading->conn, loading->stages[i], NULL);
}

/* ---- the rest ---- */

struct rest { /* what is fetched; each list is [n] */
    size_t n, *which, *counts;
    struct rdt_ref *refs;
    const struct rdt_tensor **targets;
    rdt_object **objects;
    enum rdt_status *statuses;
};

static void rest_fini(struct rest *rest)
{
    free(rest->which);
    free(rest->counts);
    free(rest->refs);
    free(rest->targets);
    free(rest->objects);
    free(rest->statuses);
}

static bool rest_init(const struct loading *loading, struct rest *rest)
{
    for (size_t i = 0; i < loading->count; i++)
        rest->n += loading->statuses[i] == RDT_AGAIN;
    rest->which = calloc(rest->n + 1, sizeof *rest->which);
    rest->counts = calloc(rest->n + 1, sizeof *rest->counts);
    rest->refs = calloc(rest->n + 1, sizeof *rest->refs);
    rest->targets = calloc(rest->n + 1, sizeof(const struct rdt_tensor *));
    rest->objects = calloc(rest->n + 1, sizeof(rdt_object *));
    rest->statuses = calloc(rest->n + 1, sizeof *rest->statuses);
    if (!rest->which || !rest->counts || !rest->refs || !rest->targets || !rest->objects || !rest->statuses)
        return false;
    for (size_t i = 0, n = 0; i < loading->count; i++) {
        if (loading->statuses[i] != RDT_AGAIN)
            continue;
        rest->which[n] = i;
        rest->counts[n] = loading->target_counts[i];
        rest->refs[n] = loading->refs[i];
        rest->targets[n++] = loading->targets[i];
    }
    return true;
}

/* Fetches what no message has loaded. */
static enum rdt_status fetch_rest(const struct loading *loading, struct rdt_error *err)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rest rest = {.n = 0};
    enum rdt_status status = RDT_OK;

    if (!rest_init(loading, &rest)) {
        rest_fini(&rest);
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory to fetch %zu objects", rest.n);
    }
    options.targets = rest.targets;
    options.target_counts = rest.counts;
    if (loading->deadline_ns != CLOCK_NEVER)
        options.timeout_ns = clock_remaining_ns(loading->deadline_ns) > 0 ? clock_remaining_ns(loading->deadline_ns) : 1;
    if (rest.n > 0)
        status = rdt_fetch_each(loading->conn, rest.refs, rest.n, &options, rest.objects, rest.statuses, err);
    for (size_t i = 0; i < rest.n; i++) {
        loading->statuses[rest.which[i]] = rest.statuses[i];
        rdt_release(rest.objects[i]);
    }
    rest_fini(&rest);
    return status;
}

/* Two targets in the same memory would leave what comes last. */
static enum rdt_status check_overlap(const struct loading *loading, struct rdt_error *err)
{
    struct overlap overlap;
    struct rdt_tensor *all;
    size_t n = 0;
    enum rdt_status status;

    for (size_t i = 0; i < loading->count; i++)
        n += loading->target_counts[i];
    all = malloc((n + 1) * sizeof *all);
    if (!all)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a list of %zu targets", n);
    n = 0;
    for (size_t i = 0; i < loading->count; i++)
        for (size_t t = 0; t < loading->target_counts[i]; t++)
            all[n++] = loading->targets[i][t];
    status = overlap_find(all, n, NULL, &overlap);
    free(all);
    if (status == RDT_EXISTS || status == RDT_LIMIT)
        return rdt_error_set(
            err, RDT_INVALID,
            "targets %zu and %zu of all share memory, so one would overwrite the other: load one after the other",
            overlap.first, overlap.second);
    return status == RDT_OK ? RDT_OK : rdt_error_set(err, status, "there is no memory to compare %zu targets", n);
}

static enum rdt_status check(const struct loading *loading, struct rdt_error *err)
{
    enum rdt_status status = connection_check(loading->conn, err);

    if (status == RDT_OK && loading->count > 0 && (!loading->refs || !loading->targets || !loading->target_counts))
        status = rdt_error_set(err, RDT_INVALID, "refs, targets or target_counts is NULL, and count is %zu", loading->count);
    for (size_t i = 0; status == RDT_OK && i < loading->count; i++) {
        status = options_check_ref(&loading->refs[i], err);
        if (status == RDT_OK && loading->target_counts[i] > 0 && !loading->targets[i])
            status = rdt_error_set(err, RDT_INVALID, "targets[%zu] is NULL", i);
        else if (status != RDT_OK)
            rdt_error_prefix(err, "ref %zu", i);
        for (size_t t = 0; status == RDT_OK && t < loading->target_counts[i]; t++) {
            size_t bytes;
            status = rdt_tensor_bytes(&loading->targets[i][t], &bytes, err);
            if (status != RDT_OK)
                rdt_error_prefix(err, "target %zu of ref %zu", t, i);
        }
    }
    return status == RDT_OK ? check_overlap(loading, err) : status;
}

enum rdt_status rdt_load_many(rdt *conn, const struct rdt_ref *refs, size_t count, const struct rdt_tensor *const *targets,
                              const size_t *target_counts, int64_t timeout_ns, enum rdt_status *statuses_p,
                              struct rdt_error *err)
{
    struct loading loading = {.conn = conn, .refs = refs, .targets = targets, .target_counts = target_counts, .count = count};
    enum rdt_status status = check(&loading, err);

    if (status != RDT_OK)
        return status;
    loading.statuses = statuses_p ? statuses_p : calloc(count + 1, sizeof *loading.statuses);
    if (!loading.statuses)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for %zu statuses", count);
    loading.deadline_ns = clock_deadline_ns(timeout_ns > 0 ? timeout_ns : RDT_FOREVER);
    connection_copy_node(conn, &loading.node);
    (void)request_statuses(loading.statuses, count, RDT_AGAIN);
    load_batches(&loading);
    if (loading.over == RDT_OK)
        status = fetch_rest(&loading, err);
    else if (err)
        *err = loading.over_why;
    for (size_t i = 0; loading.over != RDT_OK && i < count; i++)
        if (loading.statuses[i] == RDT_AGAIN)
            status = loading.statuses[i] = loading.over;
    if (!statuses_p)
        free(loading.statuses);
    return status;
}
