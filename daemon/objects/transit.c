/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/transit.h"

#include <stdlib.h>

#include "daemon/base/log.h"

struct transit {
    struct deadline deadline;
    struct object *object; /* held */
    unsigned count;
};

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
    object->survives.in_transit = false;
    object_lasting_changed(object);
    object_drop(object);
}

static void on_passed(struct deadline *deadline)
{
    struct transit *transit = container_of(deadline, struct transit, deadline);

    log_debug("obj %016llx: %u refs in transit did not arrive in time", (unsigned long long)transit->object->generation,
              transit->count);
    end(transit);
}

static struct transit *add(struct object *object)
{
    struct transit *transit = calloc(1, sizeof *transit);

    if (!transit || !map_put_u64(&object->table->transit, object->generation, transit)) {
        free(transit);
        return NULL;
    }
    transit->object = object;
    transit->deadline.on_passed = on_passed;
    object->survives.in_transit = true;
    object_hold(object);
    return transit;
}

bool transit_begin(struct object *object, int64_t ttl_ns)
{
    struct transit *transit = transit_of(object);
    bool had = transit;

    if (!had)
        transit = add(object);
    if (!transit)
        return false;
    if (had && deadline_left_ns(&transit->deadline) > ttl_ns) {
        transit->count++;
        object_lasting_changed(object);
        return true;
    }
    if (!deadline_set(object->table->deadlines, &transit->deadline, ttl_ns)) {
        end(transit);
        return false;
    }
    transit->count++;
    object_lasting_changed(object);
    return true;
}

void transit_arrived(struct object *object)
{
    struct transit *transit = transit_of(object);

    if (transit && --transit->count == 0)
        end(transit);
    else if (transit)
        object_lasting_changed(object);
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

unsigned transit_count(const struct object *object, int64_t *left_ns_p)
{
    const struct transit *transit = transit_of(object);

    *left_ns_p = transit ? deadline_left_ns(&transit->deadline) : 0;
    return transit ? transit->count : 0;
}
