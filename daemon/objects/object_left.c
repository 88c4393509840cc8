/* SPDX-License-Identifier: Apache-2.0 */
/* The end of objects that no client keeps, in imported memory that its client has left behind and that does not fit. */
#include "daemon/objects/object_table.h"

static bool has_no_room(const struct object *object)
{
    for (uint32_t i = 0; i < object->memory.n_regions; i++)
        if (region_has_no_room(object->memory.uses[i].region))
            return true;
    return false;
}

static bool end_some(struct slice *slice, uint64_t until_ns)
{
    struct left_walk *walk = container_of(slice, struct left_walk, slice);
    struct object_table *table = container_of(walk, struct object_table, left_walk);
    struct object *object;

    while ((object = index_next(&table->by_generation, walk->next, &walk->next))) {
        walk->next++;
        if (!object->producer && !object->access.forced && object_is_reachable(object) && has_no_room(object)) {
            object->end = OBJECT_END_NO_ROOM;
            object_free(object, true, OBJECT_END_NO_ROOM);
        }
        if (uv_hrtime() >= until_ns)
            return false;
    }
    walk->next = 0;
    if (!walk->again)
        return true;
    walk->again = false;
    return false;
}

void objects_end_without_room(void *table)
{
    struct left_walk *walk = &((struct object_table *)table)->left_walk;

    walk->again |= walk->next > 0;
    walk->slice.run = end_some;
    slice_start(&((struct object_table *)table)->deadlines->slices, &walk->slice);
}
