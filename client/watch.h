/* SPDX-License-Identifier: Apache-2.0 */
/* Events with their whole rows, for rdtctl watch; rdt_next_event gives programs a flat struct of them. */
#ifndef CLIENT_WATCH_H
#define CLIENT_WATCH_H

#include "rdt.h"
#include "rdt.pb-c.h"

/* Waits until timeout_ns (0: not at all, negative: without end) for the next event. The caller frees *event_p; its
 * `lost` counts the events before it that the daemon or the library dropped. Takes the lock. Errors: TIMED_OUT,
 * INVALID (nothing is watched), DISCONNECTED, PROTOCOL. */
enum rdt_status watch_next(rdt *conn, int64_t timeout_ns, Rdt__Pb__Event **event_p, struct rdt_error *err);

#endif
