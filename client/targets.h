/* The caller's memory that a fetch shall fill. */
#ifndef CLIENT_TARGETS_H
#define CLIENT_TARGETS_H

#include "connection.h"
#include "proto/layout.h"

struct targets {
    struct layout *layout;     /* row-major; offsets and regions are valid if direct */
    void **data;               /* [count] addresses */
    bool direct;               /* all of it is memory that the daemon knows: it writes there itself */
    bool on_device;            /* some of it is */
    struct mapping **mappings; /* [n_mappings] if direct, one reference each, by region index */
    uint32_t n_mappings;
};

/* Checks all that can be known before the object is: INVALID or MISMATCH (not contiguous) names the tensor. Takes
 * the lock. */
enum rdt_status targets_create(rdt *conn, const struct rdt_tensor *tensors, size_t count, struct targets **targets_p,
                               struct rdt_error *err);

void targets_destroy(rdt *conn, struct targets *targets); /* with the lock; NULL is fine */

#endif
