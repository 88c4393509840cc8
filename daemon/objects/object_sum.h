/* SPDX-License-Identifier: Apache-2.0 */
/* The checksum of an object (proto/layout.h): given by the client that put it, read from its stored file, or computed here
 * when somebody first asks for that of a snapshot. Before that nobody pays for it.
 *
 * All calls are made in the loop thread. */
#ifndef DAEMON_OBJECT_SUM_H
#define DAEMON_OBJECT_SUM_H

#include "daemon/objects/object.h"

struct object_sum_waiter {
    struct list link; /* list_remove ends the wait */
    /* Called once, after removal. sum 0: there is none, and err says why. */
    void (*on_sum)(struct object_sum_waiter *, uint64_t sum, const struct rdt_error *err);
};

/* Finds the checksum of a live object. OK: it is object->sum. AGAIN: the worker pool computes it, and the waiter is told.
 * UNSUPPORTED: it has none, because it may change, because it lies on a device, or because its memory is the client's own;
 * NO_MEMORY. */
enum rdt_status object_sum(struct object *object, struct object_sum_waiter *waiter, struct rdt_error *err);

#endif
