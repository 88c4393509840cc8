/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_watch and rdt_next_event. */
#include "watch.h"

#include <stdio.h>
#include <string.h>

#include "call.h"
#include "session/clock.h"
#include "session/events.h"

enum rdt_status watch_next(rdt *conn, int64_t timeout_ns, Rdt__Pb__Event **event_p, struct rdt_error *err)
{
    int64_t deadline_ns = clock_deadline_ns(timeout_ns);
    struct rdt_error why;
    enum rdt_status status = connection_check(conn, err);

    if (status != RDT_OK)
        return status;
    connection_lock(conn);
    while (!(*event_p = events_take(conn, &why))) {
        if (why.status != RDT_OK)
            break;
        if (connection_has_ended(conn))
            (void)connection_lost_error(conn, &why);
        else if (conn->watch.kinds == 0)
            (void)rdt_error_set(&why, RDT_INVALID, "nothing is watched: call rdt_watch first");
        else if (status == RDT_CANCELLED)
            (void)rdt_error_set(&why, RDT_CANCELLED, "the wait for an event was interrupted");
        else if (status == RDT_TIMED_OUT)
            (void)rdt_error_set(&why, RDT_TIMED_OUT, "there was no event within %.3f s", (double)timeout_ns / 1e9);
        if (why.status != RDT_OK)
            break;
        status = connection_step(conn, deadline_ns);
    }
    connection_unlock(conn);
    if (why.status != RDT_OK && err)
        *err = why;
    return why.status;
}

enum rdt_status rdt_watch(rdt *conn, uint32_t kinds, struct rdt_error *err)
{
    Rdt__Pb__Watch request = RDT__PB__WATCH__INIT;

    request.kinds = kinds;
    return call(conn, RDT_MSG_WATCH, &request.base, CALL_TIMEOUT_NS, NULL, err);
}

/* ---- events as rdt.h describes them ---- */

static void fill_ref(struct rdt_event *event, const char *text)
{
    if (text && text[0])
        (void)rdt_ref_from_text(text, &event->ref, NULL); /* on an error it stays empty */
}

static void fill_text(char *to, size_t room, const char *from)
{
    (void)snprintf(to, room, "%s", from ? from : "");
}

static void fill_owner(struct rdt_event *event, const char *tenant, uint32_t uid)
{
    event->uid = uid;
    fill_text(event->tenant, sizeof event->tenant, tenant);
}

static void fill_row(struct rdt_event *event, const Rdt__Pb__Event *message)
{
    if (message->object) {
        event->kind = RDT_KIND_OBJECTS;
        event->id = message->object->generation;
        event->bytes = message->object->bytes;
        fill_ref(event, message->object->ref);
        fill_text(event->name, sizeof event->name, message->object->id);
        fill_text(event->state, sizeof event->state, message->object->state);
        fill_owner(event, message->object->tenant, message->object->uid);
    } else if (message->region) {
        event->kind = RDT_KIND_REGIONS;
        event->id = message->region->region;
        event->bytes = message->region->bytes;
        fill_text(event->state, sizeof event->state, message->region->origin);
        fill_owner(event, message->region->tenant, message->region->uid);
    } else if (message->client) {
        event->kind = RDT_KIND_CLIENTS;
        event->id = message->client->client;
        fill_text(event->name, sizeof event->name, message->client->name);
        fill_owner(event, message->client->tenant, message->client->uid);
    } else if (message->peer) {
        event->kind = RDT_KIND_PEERS;
        fill_text(event->name, sizeof event->name, message->peer->name);
        fill_text(event->state, sizeof event->state, message->peer->state);
    } else if (message->transfer) {
        event->kind = RDT_KIND_TRANSFERS;
        event->id = message->transfer->transfer;
        event->bytes = message->transfer->bytes;
        fill_ref(event, message->transfer->ref);
        fill_text(event->name, sizeof event->name, message->transfer->path);
        fill_text(event->state, sizeof event->state, message->transfer->state);
    } else if (message->name) {
        event->kind = RDT_KIND_NAMES;
        event->id = message->name->version;
        event->bytes = message->name->bytes;
        fill_ref(event, message->name->ref);
        fill_text(event->name, sizeof event->name, message->name->name);
        fill_owner(event, message->name->tenant, message->name->uid);
    } else if (message->group) {
        event->kind = RDT_KIND_GROUPS;
        event->id = message->group->epoch;
        fill_text(event->name, sizeof event->name, message->group->name);
        fill_text(event->state, sizeof event->state, message->group->state);
        fill_owner(event, message->group->tenant, message->group->uid);
    } else if (message->backend) {
        event->kind = RDT_KIND_BACKENDS;
        fill_text(event->name, sizeof event->name, message->backend->name);
        fill_text(event->state, sizeof event->state, message->backend->kind);
    } else if (message->owner) {
        event->kind = RDT_KIND_OWNERS;
        fill_owner(event, message->owner->tenant, message->owner->uid);
    }
}

enum rdt_status rdt_next_event(rdt *conn, int64_t timeout_ns, struct rdt_event *event_p, struct rdt_error *err)
{
    Rdt__Pb__Event *message = NULL;
    struct rdt_event event;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && !event_p)
        status = rdt_error_set(err, RDT_INVALID, "event_p is NULL");
    if (status == RDT_OK)
        status = watch_next(conn, timeout_ns, &message, err);
    if (status != RDT_OK)
        return status;
    memset(&event, 0, sizeof event);
    event.sequence = message->sequence;
    event.lost = message->lost;
    fill_text(event.what, sizeof event.what, message->what);
    fill_row(&event, message);
    rdt__pb__event__free_unpacked(message, NULL);
    *event_p = event;
    return RDT_OK;
}
