/* SPDX-License-Identifier: Apache-2.0 */
/* The bounded queue of received events. */
#include "events.h"

#include <stdlib.h>
#include <string.h>

#define MOST_BYTES ((size_t)4 << 20)

struct watched {
    struct chain link;
    size_t bytes;
    uint8_t payload[];
};

static void forget_all(rdt *conn)
{
    while (!chain_is_empty(&conn->events)) {
        struct watched *watched = container_of(conn->events.next, struct watched, link);

        chain_remove(&watched->link);
        free(watched);
    }
    conn->event_bytes = 0;
}

void events_begin(rdt *conn)
{
    forget_all(conn);
    conn->event_sequence = 0;
}

void events_fini(rdt *conn)
{
    forget_all(conn);
}

void events_add(rdt *conn, struct frame *frame)
{
    struct watched *watched;

    if (conn->event_bytes + frame->length > MOST_BYTES)
        return; /* events_take sees the gap in the numbers */
    watched = malloc(sizeof *watched + frame->length);
    if (!watched)
        return;
    watched->bytes = frame->length;
    if (frame->length > 0)
        memcpy(watched->payload, frame->payload, frame->length);
    conn->event_bytes += frame->length;
    chain_append(&conn->events, &watched->link);
    connection_notify(conn);
}

Rdt__Pb__Event *events_take(rdt *conn, struct rdt_error *err)
{
    err->status = RDT_OK;
    while (!chain_is_empty(&conn->events)) {
        struct watched *watched = container_of(conn->events.next, struct watched, link);
        Rdt__Pb__Event *event = rdt__pb__event__unpack(NULL, watched->bytes, watched->payload);
        bool is_row;

        chain_remove(&watched->link);
        conn->event_bytes -= watched->bytes;
        free(watched);
        is_row = event && strcmp(event->what, "lost") != 0;
        if (!event || event->sequence < conn->event_sequence + is_row) {
            if (event)
                rdt__pb__event__free_unpacked(event, NULL);
            (void)rdt_error_set(err, RDT_PROTOCOL, "rdtd sent an event that cannot be read");
            return NULL;
        }
        event->lost = event->sequence - conn->event_sequence - is_row;
        conn->event_sequence = event->sequence;
        if (is_row || event->lost > 0)
            return event;
        rdt__pb__event__free_unpacked(event, NULL); /* a "lost" whose events an earlier one has counted already */
    }
    return NULL;
}
