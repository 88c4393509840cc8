/* SPDX-License-Identifier: Apache-2.0 */
/* The events of a connection, and the beginning of fetches. */
#ifndef CLIENT_FETCH_H
#define CLIENT_FETCH_H

#include "session/connection.h"

/* struct rdt's on.event. Unknown events are of later versions, and ignored. */
void fetch_on_event(rdt *conn, struct frame *frame);

/* How long a fetch may take until librdt ends it by itself. */
int64_t fetch_patience_ns(const struct rdt_fetch_options *options);

/* Checks what does not depend on a ref, and copies the options, with their defaults. Errors: INVALID, UNSUPPORTED, FORKED. */
enum rdt_status fetch_check(const rdt *conn, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *given,
                            struct rdt_fetch_options *options_p, struct rdt_error *err);

/* `may`: whether the call can verify. *verifies_p: whether it is to. Errors: INVALID. */
enum rdt_status fetch_check_verify(const struct rdt_fetch_options *options, bool may, bool *verifies_p, struct rdt_error *err);

/* Starts the fetches, with options that fetch_check has copied. requests [count] is all NULL, and after an error again. */
enum rdt_status fetch_begin(rdt *conn, const struct rdt_ref *refs, size_t count, const struct rdt_fetch_options *options,
                            int64_t deadline_ns, rdt_request **requests, struct rdt_error *err);

#endif
