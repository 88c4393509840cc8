/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/transit.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"

#define HEAP_BYTES 256u /* for one: its struct, and its places in the table and among the deadlines */
#define MARKS 8u

struct transit {
    struct deadline deadline;
    struct object *object; /* held */
    unsigned count;        /* of refs and leases */
    unsigned leases;
    unsigned n_marks;
    uint64_t marks[MARKS]; /* of the last requests that other nodes' sessions may repeat, a ring (number_of); 0: none */
};

_Static_assert(sizeof(struct transit) <= HEAP_BYTES / 2, "a hold in transit is charged what it takes");

static struct transit *transit_of(const struct object *object)
{
    return object->survives.in_transit ? map_get_u64(&object->table->transit, object->generation) : NULL;
}

static void end(struct transit *transit)
{
    struct object *object = transit->object;

    (void)map_remove_u64(&object->table->transit, object->generation);
    if (object->table->deadlines)
        deadline_unset(object->table->deadlines, &transit->deadline);
    free(transit);
    account_give(account_owner(object->account), USAGE_HEAP, HEAP_BYTES);
    object->survives.in_transit = false;
    object_lasting_changed(object);
    object_drop(object);
}

static void on_passed(struct deadline *deadline)
{
    struct transit *transit = container_of(deadline, struct transit, deadline);

    log_debug("obj %016llx: %u refs in transit did not arrive in time, and %u leases were not ended",
              (unsigned long long)transit->object->generation, transit->count - transit->leases, transit->leases);
    end(transit);
}

static enum rdt_status no_memory(struct rdt_error *err)
{
    return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a hold in transit");
}

/* again: of a ref that was in transit before. Its object would end if a limit refused it. */
static enum rdt_status add(struct object *object, bool again, struct transit **transit_p, struct rdt_error *err)
{
    struct account *owner = account_owner(object->account);
    enum rdt_status status = again ? RDT_OK : account_check(owner, USAGE_HEAP, HEAP_BYTES, err);
    struct transit *transit;

    if (status != RDT_OK)
        return status;
    account_add(owner, USAGE_HEAP, HEAP_BYTES);
    transit = calloc(1, sizeof *transit);
    if (!transit || !map_put_u64(&object->table->transit, object->generation, transit)) {
        free(transit);
        account_give(owner, USAGE_HEAP, HEAP_BYTES);
        return no_memory(err);
    }
    transit->object = object;
    transit->deadline.on_passed = on_passed;
    object->survives.in_transit = true;
    object_hold(object);
    *transit_p = transit;
    return RDT_OK;
}

static enum rdt_status begin(struct object *object, bool again, int64_t ttl_ns, struct rdt_error *err)
{
    struct transit *transit = transit_of(object);
    bool had = transit;
    enum rdt_status status = had ? RDT_OK : add(object, again, &transit, err);

    if (status != RDT_OK)
        return status;
    if ((!had || deadline_left_ns(&transit->deadline) <= ttl_ns) &&
        !deadline_set(object->table->deadlines, &transit->deadline, ttl_ns)) {
        end(transit);
        return no_memory(err);
    }
    transit->count++;
    object_lasting_changed(object);
    return RDT_OK;
}

enum rdt_status transit_begin(struct object *object, int64_t ttl_ns, struct rdt_error *err)
{
    return begin(object, false, ttl_ns, err);
}

enum rdt_status transit_lease(struct object *object, int64_t ttl_ns, struct rdt_error *err)
{
    enum rdt_status status = transit_begin(object, ttl_ns, err);

    if (status != RDT_OK)
        return status;
    transit_of(object)->leases++;
    object_lasting_changed(object);
    return RDT_OK;
}

/* What stands for the mark: no two are the same by chance, since the id of a session is a hash. */
static uint64_t number_of(const uint8_t *mark)
{
    uint64_t session, request;

    memcpy(&session, mark, sizeof session);
    memcpy(&request, mark + REPEAT_BYTES - sizeof request, sizeof request);
    return session + request ? session + request : 1;
}

void transit_mark(struct object *object, const uint8_t *mark)
{
    struct transit *transit = transit_of(object);

    if (mark)
        transit->marks[transit->n_marks++ % MARKS] = number_of(mark);
}

bool transit_has_mark(const struct object *object, const uint8_t *mark)
{
    const struct transit *transit = mark ? transit_of(object) : NULL;
    bool has = false;

    for (unsigned i = 0; transit && i < MARKS; i++)
        has |= transit->marks[i] == number_of(mark);
    return has;
}

void transit_restore(struct object *object, uint32_t count, uint32_t leases, int64_t ttl_ns)
{
    struct transit *transit;

    if (count == 0 || transit_begin(object, ttl_ns, NULL) != RDT_OK)
        return;
    transit = transit_of(object);
    transit->count = count;
    transit->leases = leases < count ? leases : count;
    object_lasting_changed(object);
}

uint64_t transit_until(const struct object *object)
{
    const struct transit *transit = transit_of(object);

    return transit && transit->count > transit->leases ? uv_hrtime() + (uint64_t)deadline_left_ns(&transit->deadline) : 0;
}

void transit_returned(struct object *object, uint64_t until_ns)
{
    uint64_t now_ns = uv_hrtime();

    if (until_ns > now_ns && object->state == OBJECT_LIVE) /* without memory it ends now */
        (void)begin(object, true, (int64_t)(until_ns - now_ns), NULL);
}

static void one_less(struct transit *transit)
{
    if (--transit->count == 0)
        end(transit);
    else
        object_lasting_changed(transit->object);
}

void transit_arrived(struct object *object)
{
    struct transit *transit = transit_of(object);

    if (transit && transit->count > transit->leases)
        one_less(transit);
}

void transit_lease_ended(struct object *object)
{
    struct transit *transit = transit_of(object);

    if (!transit || transit->leases == 0)
        return;
    transit->leases--;
    one_less(transit);
}

void transit_end(struct object *object)
{
    struct transit *transit = transit_of(object);

    if (transit)
        end(transit);
}

void transit_end_all(struct object_table *table)
{
    struct transit *transit;
    size_t cursor = 0;

    /* map_next allows removing the entry that it returned */
    while ((transit = map_next(&table->transit, &cursor)))
        end(transit);
}

unsigned transit_count(const struct object *object, unsigned *leases_p, int64_t *left_ns_p)
{
    const struct transit *transit = transit_of(object);

    *left_ns_p = transit ? deadline_left_ns(&transit->deadline) : 0;
    *leases_p = transit ? transit->leases : 0;
    return transit ? transit->count : 0;
}
