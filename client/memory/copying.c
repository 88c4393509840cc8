/* SPDX-License-Identifier: Apache-2.0 */
#include "copying.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/session/clock.h"
#include "proto/list.h"

#define STEP_TENSORS 1024u         /* that a step queues, in a few milliseconds */
#define TURN_NS (INT64_C(1000000)) /* for so long a step waits */
#define SPIN_NS 50000              /* the first part of it without a pause: most copies are about to end */
#define PAUSE_NS 20000

struct copying {
    struct list link; /* conn->calls.copies */
    const struct rdt_copier *copier;
    void *arg;          /* the mapper's */
    const char *device; /* uuid, of a mapping of the object */
    void *work;         /* the copier's; NULL: the device copies nothing */
    rdt_object *object;
    struct targets *targets;
    uint32_t next; /* the tensor that is queued next */
    bool left;     /* it owns the object and the targets */
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

enum rdt_status copying_create(rdt_object *object, struct targets *targets, struct copying **copying_p, struct rdt_error *err)
{
    const struct layout *layout = object->layout;
    const struct mapping *first = NULL;
    struct copying *copying = calloc(1, sizeof *copying);
    bool can = targets->direct;

    if (!copying)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a copy");
    copying->object = object;
    copying->targets = targets;
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
    (void)copying_look(object->conn);
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
        if (more == 0)
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

/* AGAIN: the device copies. OK, or its error: it does so no more. */
static enum rdt_status ask(struct copying *copying, struct rdt_error *err)
{
    enum rdt_status status = copying->copier->ended(copying->work, err);

    if (status == RDT_AGAIN)
        return status;
    copying->copier->end(copying->work);
    copying->work = NULL;
    return status;
}

static void pause_for(int64_t ns)
{
    struct timespec pause = {.tv_nsec = ns};

    (void)nanosleep(&pause, NULL);
}

enum rdt_status copying_step(struct copying *copying, struct rdt_error *err)
{
    int64_t began_ns = clock_now_ns();
    enum rdt_status status = RDT_OK;

    if (!copying->work)
        status = copying->copier->begin(copying->arg, copying->device, &copying->work, err);
    if (status == RDT_OK)
        status = queue_some(copying, err);
    if (status != RDT_OK || copying->next < copying->object->layout->count)
        return status == RDT_OK ? RDT_AGAIN : status;
    for (;;) {
        int64_t waited_ns = clock_now_ns() - began_ns;
        status = ask(copying, err);
        if (status != RDT_AGAIN || waited_ns >= TURN_NS)
            return status;
        if (waited_ns >= SPIN_NS)
            pause_for(PAUSE_NS);
    }
}

/* ---- its end ---- */

void copying_end(struct copying *take_copying)
{
    list_remove(&take_copying->link);
    free(take_copying);
}

/* Whether the device still copies. The contexts of a parent do not exist in its forked child. */
static bool goes_on(struct copying *copying)
{
    return copying->work && !connection_is_forked(copying->object->conn) && ask(copying, NULL) == RDT_AGAIN;
}

bool copying_leave(struct copying *take_copying)
{
    if (!goes_on(take_copying)) {
        copying_end(take_copying);
        return false;
    }
    take_copying->left = true;
    return true;
}

bool copying_look(rdt *conn)
{
    bool any = false;

    list_each_safe (struct copying, copying, &conn->calls.copies, link) {
        if (!copying->left)
            continue;
        if (goes_on(copying)) {
            any = true;
            continue;
        }
        fetched_destroy(copying->object);
        targets_destroy(conn, copying->targets);
        copying_end(copying);
    }
    return any;
}

void copying_await(rdt *conn)
{
    list_each (struct copying, copying, &conn->calls.copies, link)
        while (goes_on(copying))
            pause_for(TURN_NS);
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
    (void)copying_look(conn);
    *mapped_p = memory_has_fetched_on_devices(&conn->memory);
    connection_unlock(conn);
    return RDT_OK;
}
