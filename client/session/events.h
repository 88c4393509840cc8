/* SPDX-License-Identifier: Apache-2.0 */
/* Events that have been received and not yet taken. Their bytes are bounded: further events are dropped, and the gap in the
 * sequence numbers says how many. Under the connection's lock. */
#ifndef CLIENT_EVENTS_H
#define CLIENT_EVENTS_H

#include "connection.h"
#include "rdt.pb-c.h"

/* Handles the answer to WATCH: drops the events of an earlier watch. Sequence numbers start again at 1. */
void events_begin(rdt *conn);

/* Another daemon goes on with the session, and numbers its events from 1 again. Nobody knows what happened before it did: that
 * counts as one lost event. */
void events_go_on(rdt *conn);

/* Handles RDT_EVENT_WATCHED: copies the event into the queue. */
void events_add(rdt *conn, struct frame *frame);

/* Takes the next event, which the caller frees. Its `lost` counts the events that the library and the daemon dropped before
 * it. NULL with err->status RDT_OK: there is none. NULL with PROTOCOL: the next event cannot be read. */
Rdt__Pb__Event *events_take(rdt *conn, struct rdt_error *err);

void events_fini(rdt *conn);

#endif
