/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/detached.h"

#include <stdlib.h>

#include "daemon/base/deadline.h"
#include "daemon/base/log.h"

struct detached {
    struct deadline deadline; /* set once the object is live */
    struct object *object;
    int64_t ttl_ns;
    void (*on_over)(struct object *object);
};

bool detached_add(struct object_table *table, uint64_t generation, int64_t ttl_ns)
{
    struct detached *detached = calloc(1, sizeof *detached);

    if (!detached || !map_put_u64(&table->detached, generation, detached)) {
        free(detached);
        return false;
    }
    detached->ttl_ns = ttl_ns;
    return true;
}

void detached_remove(struct object_table *table, uint64_t generation)
{
    struct detached *detached = map_remove_u64(&table->detached, generation);

    if (detached && table->deadlines)
        deadline_unset(table->deadlines, &detached->deadline);
    free(detached);
}

static void on_passed(struct deadline *deadline)
{
    const struct detached *detached = (struct detached *)deadline;

    log_debug("obj %016llx is freed: its time to live has passed", (unsigned long long)detached->object->generation);
    detached->on_over(detached->object);
}

bool detached_begin(struct object *object, void (*on_over)(struct object *object))
{
    struct detached *detached = map_get_u64(&object->table->detached, object->generation);

    if (detached->object)
        return true;
    if (!object->table->deadlines || !deadline_set(object->table->deadlines, &detached->deadline, detached->ttl_ns))
        return false;
    detached->object = object;
    detached->on_over = on_over;
    detached->deadline.on_passed = on_passed;
    return true;
}

int64_t detached_ttl_ns(const struct object *object)
{
    const struct detached *detached = map_get_u64(&object->table->detached, object->generation);

    return detached ? detached->ttl_ns : 0;
}

int64_t detached_left_ns(const struct object *object)
{
    const struct detached *detached = map_get_u64(&object->table->detached, object->generation);

    return detached ? deadline_left_ns(&detached->deadline) : -1;
}

void detached_end_all(struct object_table *table)
{
    struct detached *detached;
    size_t cursor = 0;

    /* map_next allows removing the entry that it returned */
    while ((detached = map_next(&table->detached, &cursor)))
        if (detached->object && !detached->object->producer)
            detached->on_over(detached->object);
}
