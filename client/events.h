/* Events that arrived and have not been taken, up to a bound of bytes: later ones are dropped, and the gap in the
 * numbers of those that are taken says how many. Under the connection's lock.
 */
#ifndef CLIENT_EVENTS_H
#define CLIENT_EVENTS_H

#include "connection.h"
#include "rdt.pb-c.h"

/* WATCH was answered: drops the events of an earlier watch, and numbers start anew. */
void events_begin(rdt *conn);

/* Handles RDT_EVENT_WATCHED: copies the event into the queue. */
void events_add(rdt *conn, struct frame *frame);

/* Takes the next event, which the caller frees; its `lost` counts what the library and the daemon dropped before it.
 * NULL with err->status RDT_OK: there is none. NULL with PROTOCOL: the next event cannot be read. */
Rdt__Pb__Event *events_take(rdt *conn, struct rdt_error *err);

void events_fini(rdt *conn);

#endif
