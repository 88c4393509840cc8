/* SPDX-License-Identifier: Apache-2.0 */
/* Allocating memory on devices. */
#ifndef CLIENT_DEVICE_H
#define CLIENT_DEVICE_H

#include "client/session/connection.h"

/* As alloc_region, on the device that the options name. UNSUPPORTED: this process has no mapper for the kind. */
enum rdt_status device_alloc(rdt *conn, size_t bytes, const struct rdt_alloc_options *options, int64_t deadline_ns,
                             struct mapping **mapping_p, struct rdt_error *err);

#endif
