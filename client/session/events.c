/* SPDX-License-Identifier: Apache-2.0 */
/* The bounded queue of received events. */
#include "events.h"

#include <stdlib.h>
#include <string.h>

#define MOST_BYTES ((size_t)4 << 20)

struct watched {
    struct list link;
    size_t bytes;
    uint64_t base; /* what the daemon's number is above */
    uint8_t payload[];
};

static void forget_all(rdt *conn)
{
    list_drain (struct watched, watched, &conn->watch.events, link) {
        list_remove(&watched->link);
        free(watched);
    }
    conn->watch.event_bytes = 0;
}

void events_begin(rdt *conn)
{
    forget_all(conn);
    conn->watch.event_sequence = conn->watch.event_base = 0;
}

void events_fini(rdt *conn)
{
    forget_all(conn);
}

static struct watched *create(size_t bytes, uint64_t base)
{
    struct watched *watched = malloc(sizeof *watched + bytes);

    if (!watched)
        return NULL;
    watched->bytes = bytes;
    watched->base = base;
    return watched;
}

static void add(rdt *conn, struct watched *watched)
{
    conn->watch.event_bytes += watched->bytes;
    list_append(&conn->watch.events, &watched->link);
    connection_notify(conn);
}

void events_add(rdt *conn, struct frame *frame)
{
    struct watched *watched;

    if (conn->watch.event_bytes + frame->length > MOST_BYTES)
        return; /* events_take sees the gap in the numbers */
    watched = create(frame->length, conn->watch.event_base);
    if (!watched)
        return;
    if (frame->length > 0)
        memcpy(watched->payload, frame->payload, frame->length);
    add(conn, watched);
}

static uint64_t last_sequence(const rdt *conn)
{
    const struct watched *last = container_of(conn->watch.events.prev, struct watched, link);
    uint64_t sequence = conn->watch.event_sequence;
    Rdt__Pb__Event *event;

    if (list_empty(&conn->watch.events))
        return sequence;
    event = rdt__pb__event__unpack(NULL, last->bytes, last->payload);
    if (event) {
        sequence = event->sequence + last->base;
        rdt__pb__event__free_unpacked(event, NULL);
    }
    return sequence;
}

void events_go_on(rdt *conn)
{
    Rdt__Pb__Event event = RDT__PB__EVENT__INIT;
    uint64_t last = last_sequence(conn);
    struct watched *watched;

    event.what = (char *)"lost";
    event.sequence = 1;
    watched = create(rdt__pb__event__get_packed_size(&event), last);
    if (watched) {
        (void)rdt__pb__event__pack(&event, watched->payload);
        add(conn, watched);
    }
    conn->watch.event_base = last + 1;
}

Rdt__Pb__Event *events_take(rdt *conn, struct rdt_error *err)
{
    err->status = RDT_OK;
    list_drain (struct watched, watched, &conn->watch.events, link) {
        Rdt__Pb__Event *event = rdt__pb__event__unpack(NULL, watched->bytes, watched->payload);
        bool is_row;

        list_remove(&watched->link);
        conn->watch.event_bytes -= watched->bytes;
        if (event)
            event->sequence += watched->base;
        free(watched);
        is_row = event && strcmp(event->what, "lost") != 0;
        if (!event || event->sequence < conn->watch.event_sequence + is_row) {
            if (event)
                rdt__pb__event__free_unpacked(event, NULL);
            (void)rdt_error_set(err, RDT_PROTOCOL, "rdtd sent an event that cannot be read");
            return NULL;
        }
        event->lost = event->sequence - conn->watch.event_sequence - is_row;
        conn->watch.event_sequence = event->sequence;
        if (is_row || event->lost > 0)
            return event;
        rdt__pb__event__free_unpacked(event, NULL); /* a "lost" whose events an earlier one has counted already */
    }
    return NULL;
}
