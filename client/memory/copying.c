/* SPDX-License-Identifier: Apache-2.0 */
#include "copying.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/memory/mappers.h"
#include "client/session/clock.h"
#include "proto/list.h"

#define STEP_TENSORS 1024u     /* that a step queues, in a few milliseconds */
#define SPIN_NS INT64_C(50000) /* for so long the last step waits: most copies are about to end */
#define PAUSE_MIN_NS SPIN_NS   /* between two looks: a quarter of the time that the copy has taken so far */
#define PAUSE_MAX_NS INT64_C(1000000)

enum copying_state { COPYING_STEPPED, COPYING_WATCHED, COPYING_LEFT /* it owns the object and the targets */ };

struct copying {
    struct list link; /* conn->calls.copies */
    const struct rdt_copier *copier;
    void *arg;          /* the mapper's */
    const char *device; /* uuid, of a mapping of the object */
    void *work;         /* the copier's; NULL: the device copies nothing */
    rdt_object *object;
    struct targets *targets;
    uint32_t next; /* the tensor that is queued next */
    enum copying_state state;
    int64_t watched_ns; /* since when */
    void (*on_end)(void *arg, enum rdt_status status, const struct rdt_error *why);
    void *on_end_arg;
};

/* ---- making a copy ---- */

static struct mapping *mapping_of(const rdt_object *object, uint32_t i)
{
    uint32_t region = object->layout->region[i];

    return region < object->n_mappings ? object->mappings[region] : NULL;
}

bool copying_is_needed(const rdt_object *object)
{
    for (uint32_t i = 0; i < object->n_mappings; i++)
        if (object->mappings[i] && object->mappings[i]->mapper)
            return true;
    return false;
}

/* Whether the copier of the device can copy the tensor as it lies. */
static bool can_copy(const struct copying *copying, uint32_t i, const struct mapping *first)
{
    const struct targets *targets = copying->targets;
    const struct mapping *from = mapping_of(copying->object, i);
    uint32_t region = targets->layout->region[i];
    const struct mapping *to = region < targets->n_mappings ? targets->mappings[region] : NULL;

    return from && to && from->mapper == first->mapper && to->mapper == first->mapper &&
           strcmp(from->device, first->device) == 0 && strcmp(to->device, first->device) == 0 &&
           layout_is_contiguous(copying->object->layout, i);
}

enum rdt_status copying_create(rdt_object *object, struct targets *targets,
                               void (*on_end)(void *arg, enum rdt_status status, const struct rdt_error *why), void *arg,
                               struct copying **copying_p, struct rdt_error *err)
{
    const struct layout *layout = object->layout;
    const struct mapping *first = NULL;
    struct copying *copying = calloc(1, sizeof *copying);
    bool can = targets->direct;

    if (!copying)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a copy");
    copying->object = object;
    copying->targets = targets;
    copying->on_end = on_end;
    copying->on_end_arg = arg;
    for (uint32_t i = 0; i < layout->count && can; i++) {
        if (layout_bytes(layout, i) == 0)
            continue;
        first = first ? first : mapping_of(object, i);
        can = first && first->mapper && first->mapper->ops.copier && can_copy(copying, i, first);
    }
    if (!can || !first) {
        free(copying);
        return rdt_error_set(err, RDT_PROTOCOL,
                             "rdtd left the copy of an object on a device to this process, which cannot copy it");
    }
    copying->copier = first->mapper->ops.copier;
    copying->arg = first->mapper->ops.arg;
    copying->device = first->device;
    copying_look(object->conn);
    list_append(&object->conn->calls.copies, &copying->link);
    *copying_p = copying;
    return RDT_OK;
}

/* Tensors that follow one another without a gap, at both ends, take one copy. */
static enum rdt_status queue_some(struct copying *copying, struct rdt_error *err)
{
    const struct layout *layout = copying->object->layout;
    uint32_t until = layout->count - copying->next > STEP_TENSORS ? copying->next + STEP_TENSORS : layout->count;
    const uint8_t *from = NULL;
    uint8_t *to = NULL;
    size_t bytes = 0;
    enum rdt_status status = RDT_OK;

    for (; copying->next < until && status == RDT_OK; copying->next++) {
        const uint8_t *next_from = copying->object->data[copying->next];
        uint8_t *next_to = copying->targets->data[copying->next];
        size_t more = (size_t)layout_bytes(layout, copying->next);
        if (more == 0 || next_from == next_to)
            continue;
        if (bytes > 0 && (next_from != from + bytes || next_to != to + bytes)) {
            status = copying->copier->copy(copying->work, from, to, bytes, err);
            bytes = 0;
        }
        from = bytes > 0 ? from : next_from;
        to = bytes > 0 ? to : next_to;
        bytes += more;
    }
    return status == RDT_OK && bytes > 0 ? copying->copier->copy(copying->work, from, to, bytes, err) : status;
}

/* AGAIN: the device copies. OK, or its error: it does so no more. The contexts of a parent do not exist in its forked child. */
static enum rdt_status ask(struct copying *copying, struct rdt_error *err)
{
    enum rdt_status status;

    if (!copying->work || connection_is_forked(copying->object->conn))
        return RDT_OK;
    status = copying->copier->ended(copying->work, err);
    if (status == RDT_AGAIN)
        return status;
    copying->copier->end(copying->work);
    copying->work = NULL;
    return status;
}

enum rdt_status copying_step(struct copying *copying, struct rdt_error *err)
{
    int64_t until_ns;
    enum rdt_status status = RDT_OK;

    if (!copying->work)
        status = copying->copier->begin(copying->arg, copying->device, &copying->work, err);
    if (status == RDT_OK)
        status = queue_some(copying, err);
    if (status != RDT_OK || copying->next < copying->object->layout->count)
        return status == RDT_OK ? RDT_AGAIN : status;
    until_ns = clock_now_ns() + SPIN_NS;
    do
        status = ask(copying, err);
    while (status == RDT_AGAIN && clock_now_ns() < until_ns);
    return status;
}

bool copying_has_begun(const struct copying *copying)
{
    return copying->work;
}

/* ---- its end ---- */

static void look_in(rdt *conn, int64_t ns)
{
    int64_t look_ns = clock_now_ns() + (ns < PAUSE_MIN_NS ? PAUSE_MIN_NS : ns < PAUSE_MAX_NS ? ns : PAUSE_MAX_NS);

    if (look_ns < conn->calls.look_ns)
        conn->calls.look_ns = look_ns;
}

/* Those that copying_look asks about are in the order in which they end, as far as that is known. */
static void move_last(struct copying *copying)
{
    list_remove(&copying->link);
    list_append(&copying->object->conn->calls.copies, &copying->link);
}

bool copying_watch(struct copying *copying)
{
    rdt *conn = copying->object->conn;

    if (copying->next < copying->object->layout->count)
        return false;
    copying->state = COPYING_WATCHED;
    copying->watched_ns = clock_now_ns();
    move_last(copying);
    look_in(conn, 0);
    return true;
}

void copying_end(struct copying *take_copying)
{
    list_remove(&take_copying->link);
    free(take_copying);
}

bool copying_leave(struct copying *take_copying)
{
    if (ask(take_copying, NULL) != RDT_AGAIN) {
        copying_end(take_copying);
        return false;
    }
    take_copying->state = COPYING_LEFT;
    move_last(take_copying);
    return true;
}

static void on_ended(rdt *conn, struct copying *copying, enum rdt_status status, const struct rdt_error *why)
{
    if (copying->state == COPYING_WATCHED) {
        copying->on_end(copying->on_end_arg, status, why);
        return;
    }
    fetched_destroy(copying->object);
    targets_destroy(conn, copying->targets);
    copying_end(copying);
}

/* Whether one of the copies before it, which ends earlier, goes on. */
static bool is_behind(const struct copying *copying, const char *const *busy, unsigned n_busy)
{
    while (n_busy > 0)
        if (strcmp(busy[--n_busy], copying->device) == 0)
            return true;
    return false;
}

void copying_look(rdt *conn)
{
    const char *busy[MAPPER_MAX_DEVICES];
    unsigned n_busy = 0;
    int64_t now_ns = clock_now_ns();

    conn->calls.look_ns = CLOCK_NEVER;
    list_each_safe (struct copying, copying, &conn->calls.copies, link) {
        bool behind = is_behind(copying, busy, n_busy);
        struct rdt_error err;
        enum rdt_status status = RDT_AGAIN;
        if (copying->state == COPYING_STEPPED)
            continue;
        if (!behind)
            status = ask(copying, &err);
        if (status != RDT_AGAIN) {
            on_ended(conn, copying, status, &err);
            continue;
        }
        if (!behind && n_busy < MAPPER_MAX_DEVICES)
            busy[n_busy++] = copying->device;
        if (copying->state == COPYING_WATCHED)
            look_in(conn, (now_ns - copying->watched_ns) / 4);
    }
}

static bool list_writes(const struct copying *copying, struct copying_writes *all, uint64_t *lo, uint64_t *hi)
{
    const struct targets *targets = copying->targets;
    const struct layout *layout = targets->layout;
    bool ok = true;

    for (uint32_t i = 0; i < layout->count; i++) {
        uint64_t from = layout->offset[i], to = from + layout_bytes(layout, i);
        uint32_t region = layout->region[i];
        if (from == to)
            continue;
        lo[region] = hi[region] == 0 || from < lo[region] ? from : lo[region];
        hi[region] = to > hi[region] ? to : hi[region];
    }
    for (uint32_t i = 0; i < targets->n_mappings && ok; i++)
        if (!targets->mappings[i]->released) /* one that was released before is no region of the session any more */
            ok = ids_append(&all->holds, copying->object->hold) && ids_append(&all->regions, targets->mappings[i]->region) &&
                 ids_append(&all->from, lo[i]) && ids_append(&all->to, hi[i]);
    return ok;
}

bool copying_list_writes(const rdt *conn, struct copying_writes *all)
{
    bool ok = true;

    list_each (const struct copying, copying, &conn->calls.copies, link) {
        uint32_t n = copying->targets->n_mappings;
        uint64_t *bounds = ok ? calloc(2 * (n + 1u), sizeof *bounds) : NULL;
        ok = bounds && list_writes(copying, all, bounds, bounds + n);
        free(bounds);
    }
    return ok;
}

bool copying_reads(const rdt_object *object)
{
    list_each (const struct copying, copying, &object->conn->calls.copies, link)
        if (copying->object == object)
            return true;
    return false;
}

static bool is_busy(const rdt *conn)
{
    list_each (struct copying, copying, &conn->calls.copies, link)
        if (ask(copying, NULL) == RDT_AGAIN)
            return true;
    return mapper_is_busy(conn);
}

bool copying_await(rdt *conn, int64_t deadline_ns)
{
    const struct timespec pause = {.tv_nsec = PAUSE_MAX_NS};

    while (is_busy(conn)) {
        if (clock_now_ns() >= deadline_ns)
            return false;
        connection_unlock(conn); /* the library that is busy may need it */
        (void)nanosleep(&pause, NULL);
        connection_lock(conn);
    }
    return true;
}

/* ---- public calls ---- */

enum rdt_status rdt_trim(rdt *conn, bool *mapped_p, struct rdt_error *err)
{
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && !mapped_p)
        status = rdt_error_set(err, RDT_INVALID, "mapped_p is NULL");
    if (status != RDT_OK)
        return status;
    connection_lock(conn);
    if (conn->state == CONNECTION_UP && !conn->waiters.polling) /* otherwise another thread reads, or will */
        connection_poll(conn);
    copying_look(conn);
    *mapped_p = memory_has_fetched_on_devices(&conn->memory) || !list_empty(&conn->calls.copies);
    connection_unlock(conn);
    return RDT_OK;
}
