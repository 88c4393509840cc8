/* SPDX-License-Identifier: Apache-2.0 */
/* An array, which is searched from its end: what was added last is removed first, as a rule. */
#include "ids.h"

#include <stdlib.h>

#include "proto/grow.h"

/* Returns the place of the id plus 1; 0: it is not in the list. */
static size_t find(const struct id_list *list, uint64_t id)
{
    size_t place = list->count;

    while (place > 0 && list->ids[place - 1] != id)
        place--;
    return place;
}

bool ids_append(struct id_list *list, uint64_t id)
{
    uint64_t *ids = array_grow(list->ids, list->count, &list->room, sizeof *ids);

    if (!ids)
        return false;
    list->ids = ids;
    list->ids[list->count++] = id;
    return true;
}

void ids_remove(struct id_list *list, uint64_t id)
{
    size_t place = find(list, id);

    if (place)
        list->ids[place - 1] = list->ids[--list->count];
}

void ids_fini(struct id_list *list)
{
    free(list->ids);
    list->ids = NULL;
    list->count = list->room = 0;
}
