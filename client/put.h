/* SPDX-License-Identifier: Apache-2.0 */
/* A put that rdt.h does not offer, for rdtctl, which links librdt statically. */
#ifndef CLIENT_PUT_H
#define CLIENT_PUT_H

#include "session/connection.h"

/* As rdt_put of a snapshot all of whose tensors lie in take_addr, which is memory of rdt_alloc. The daemon seals that memory
 * instead of copying it, so no room for a second copy is needed. take_addr is taken, also on an error: nothing may be read or
 * written there any more. No other thread may use it during the call. options->flags has RDT_PUT_SNAPSHOT. Errors: those of
 * rdt_put; INVALID if a tensor lies elsewhere. */
enum rdt_status put_snapshot_of(rdt *conn, void *take_addr, const struct rdt_tensor *tensors, size_t count,
                                const struct rdt_put_options *options, struct rdt_ref *ref_p, struct rdt_error *err);

#endif
