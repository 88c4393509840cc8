/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's memory that a fetch fills. */
#ifndef CLIENT_TARGETS_H
#define CLIENT_TARGETS_H

#include "proto/layout.h"
#include "session/connection.h"

struct targets {
    struct layout *layout;     /* row-major; offsets and regions are valid if direct */
    void **data;               /* [count] addresses */
    bool direct;               /* all of it is memory that the daemon knows, so the daemon writes there itself */
    bool on_device;            /* some of it is on a device */
    struct mapping **mappings; /* [n_mappings] if direct, one reference each, by region index */
    uint32_t n_mappings;
};

/* Checks everything that can be checked before the object is known. Takes the lock. Errors: INVALID and MISMATCH (a tensor is
 * not contiguous), which name the tensor; LIMIT, NO_MEMORY. */
enum rdt_status targets_create(rdt *conn, const struct rdt_tensor *tensors, size_t count, struct targets **targets_p,
                               struct rdt_error *err);

void targets_destroy(rdt *conn, struct targets *targets); /* with the lock; targets may be NULL */

#endif
