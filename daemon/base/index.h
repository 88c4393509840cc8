/* An ordered table from numbers that are given out in order to pointers: a radix tree. Dense numbers cost 9 bytes each, growing moves
 * nothing, and the next number above any is found in a few steps, so that a long list can be read in pieces while it changes.
 */
#ifndef DAEMON_INDEX_H
#define DAEMON_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct index_node;

struct index {
    struct index_node *root;
    unsigned height; /* levels below and including root; 0: empty */
    uint64_t base;   /* the least number it takes */
    size_t used;
};

void index_init(struct index *index, uint64_t base);
void index_fini(struct index *index); /* values are the caller's */

void *index_get(const struct index *index, uint64_t number);       /* NULL: not there */
bool index_put(struct index *index, uint64_t number, void *value); /* false: no memory. The number must not be there yet. */
void *index_remove(struct index *index, uint64_t number);          /* what was there, or NULL */

/* The value of the least number >= from, which *number_p then is. NULL: there is none. */
void *index_next(const struct index *index, uint64_t from, uint64_t *number_p);

#endif
