/* What waits for the daemon: a table of ids, from which request ids and fetch handles both come, and an order of
 * deadlines. Both only refer to what they hold; who put it there owns it. Under the connection's lock.
 */
#ifndef CLIENT_PENDING_H
#define CLIENT_PENDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/frame.h"
#include "rdt.h"

struct pending;

struct pending_ops {
    /* The frame that answers. `pending` is no longer in the table; it may be freed. Fds that are not taken are
     * closed. */
    void (*on_frame)(rdt *conn, struct pending *pending, struct frame *frame);
    /* The connection is gone, and nothing will come. As above. */
    void (*on_lost)(rdt *conn, struct pending *pending, const struct rdt_error *why);
};

struct pending { /* embedded in what waits */
    uint64_t id;
    const struct pending_ops *ops;
    struct pending *next; /* in its bucket */
};

struct pending_table {
    struct pending **buckets;
    size_t n_buckets; /* a power of two */
    size_t count;
};

bool pending_init(struct pending_table *table); /* false: no memory */
void pending_fini(struct pending_table *table); /* forgets what is still in it */
void pending_add(struct pending_table *table, struct pending *pending);
struct pending *pending_find(const struct pending_table *table, uint64_t id); /* NULL: nobody waits for that */
struct pending *pending_take(struct pending_table *table, uint64_t id);       /* the same, and out of the table */
struct pending *pending_take_all(struct pending_table *table);                /* linked by next; NULL: there are none */

/* ---- deadlines ---- */

struct expiry { /* embedded in what has a deadline */
    int64_t at_ns;
    size_t place; /* in the heap, from 1; 0: not in it */
};

struct expiry_heap {
    struct expiry **at; /* [room + 1], place 0 unused */
    size_t count, room;
};

bool expiry_reserve(struct expiry_heap *heap, size_t more); /* so that the next `more` adds have room; false: no memory */
void expiry_fini(struct expiry_heap *heap);
void expiry_add(struct expiry_heap *heap, struct expiry *expiry);
void expiry_remove(struct expiry_heap *heap, struct expiry *expiry); /* fine if it is not in it */
int64_t expiry_next_ns(const struct expiry_heap *heap);              /* CLOCK_NEVER: none */

#endif
