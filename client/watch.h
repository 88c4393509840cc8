/* Events that came and nobody has taken yet. Under the connection's lock unless it says otherwise. */
#ifndef CLIENT_WATCH_H
#define CLIENT_WATCH_H

#include "connection.h"
#include "rdt.pb-c.h"

/* The answer to WATCH came: what came before was of an earlier watch. */
void watch_begin(rdt *conn);

void watch_on_event(rdt *conn, struct frame *frame);
void watch_fini(rdt *conn);

/* Without the lock: the next event, the caller's to free; its `lost` counts what the library dropped too. As rdt_next_event. */
enum rdt_status watch_next(rdt *conn, int64_t timeout_ns, Rdt__Pb__Event **event_p, struct rdt_error *err);

#endif
