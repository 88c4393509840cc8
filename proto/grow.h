/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays that double when they are full. */
#ifndef RDT_GROW_H
#define RDT_GROW_H

#include <stddef.h>
#include <stdlib.h>

/* Returns the array with room for one more element than n. NULL: no memory, and the caller's array is unchanged. */
static inline void *array_grow(void *array, size_t n, size_t *room_p, size_t elem_bytes)
{
    size_t room = *room_p ? 2 * *room_p : 16;

    if (n < *room_p)
        return array;
    array = realloc(array, room * elem_bytes);
    if (array)
        *room_p = room;
    return array;
}

#endif
