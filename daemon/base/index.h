/* SPDX-License-Identifier: Apache-2.0 */
/* An ordered table (radix tree) from numbers that are assigned in ascending order to pointers. Dense
 * numbers cost 9 bytes each, growing moves nothing, and the next number above any other is found in a few
 * steps, so a long list can be read in pieces while it changes. Not thread-safe. */
#ifndef DAEMON_INDEX_H
#define DAEMON_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct index_node;

struct index {
    struct index_node *root;
    unsigned height; /* number of levels; 0: empty */
    uint64_t base;   /* the least number that it can store */
    size_t used;
};

void index_init(struct index *index, uint64_t base);
void index_fini(struct index *index); /* the values belong to the caller */

void *index_get(const struct index *index, uint64_t number); /* NULL: no such number */
/* false: out of memory. The number must not be there. */
bool index_put(struct index *index, uint64_t number, void *value);
void *index_remove(struct index *index, uint64_t number); /* returns the value, or NULL */

/* Returns the value of the least number >= from, and sets *number_p to that number. NULL: there is none. */
void *index_next(const struct index *index, uint64_t from, uint64_t *number_p);

#endif
