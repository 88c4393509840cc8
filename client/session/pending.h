/* SPDX-License-Identifier: Apache-2.0 */
/* What waits for the daemon: a table by id, for request ids and fetch handles alike, and a heap of deadlines. Both only
 * refer to their entries, which belong to whoever added them. Under the connection's lock. */
#ifndef CLIENT_PENDING_H
#define CLIENT_PENDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/rdt.h"
#include "proto/frame.h"

struct pending;

struct pending_ops {
    /* Handles the answer. `pending` is no longer in the table, and may be freed. Fds that are not taken are closed. */
    void (*on_frame)(rdt *conn, struct pending *pending, struct frame *frame);
    /* The connection is lost, so no answer will come. `pending` is as above. */
    void (*on_lost)(rdt *conn, struct pending *pending, const struct rdt_error *why);
    /* Another daemon goes on with the session, and the answer has not come: sends the request again and adds `pending` to the
     * table, or ends what waits. `pending` is as above. */
    void (*on_resumed)(rdt *conn, struct pending *pending);
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
struct pending *pending_find(const struct pending_table *table, uint64_t id); /* NULL: nothing waits for this id */
struct pending *pending_take(struct pending_table *table, uint64_t id);       /* the same, and out of the table */
struct pending *pending_take_all(struct pending_table *table);                /* linked by next; NULL: there are none */

/* ---- deadlines ---- */

struct expiry { /* embedded in what has a deadline */
    int64_t at_ns;
    size_t place; /* in the heap, from 1; 0: it is not in the heap */
};

struct expiry_heap {
    struct expiry **at; /* [room + 1], place 0 unused */
    size_t count, room;
};

/* Makes room for the next `more` calls of expiry_add. False: there is no memory. */
bool expiry_reserve(struct expiry_heap *heap, size_t more);
void expiry_fini(struct expiry_heap *heap);
void expiry_add(struct expiry_heap *heap, struct expiry *expiry);
void expiry_remove(struct expiry_heap *heap, struct expiry *expiry); /* does nothing if it is not in the heap */
int64_t expiry_next_ns(const struct expiry_heap *heap);              /* CLOCK_NEVER: none */

#endif
