/* SPDX-License-Identifier: Apache-2.0 */
/* WATCH: sends every change of the daemon's tables to the clients that watch them, as the rows that LIST shows. The log of
 * events (event_log.h) serves them in turn.
 *
 * A client that does not read loses events: while it has more than UNREAD_MAX unread bytes, it is sent none, and the next one
 * that is sent says how many were lost. So a slow watcher neither delays others nor takes their memory.
 */
#include <stdlib.h>

#include "daemon/rpc/rpc.h"
#include "daemon/view/view.h"

#define UNREAD_MAX ((size_t)1 << 20) /* of events and other answers */

struct watch {
    struct event_watcher base;
    struct client *client;
};

static struct client *client_of(struct event_watcher *watcher)
{
    return container_of(watcher, struct watch, base)->client;
}

static bool has_room(struct event_watcher *watcher)
{
    struct client *client = client_of(watcher);

    return client->conn.queued_bytes(client) <= UNREAD_MAX;
}

static void send_event(struct event_watcher *watcher, const uint8_t *rest, size_t bytes)
{
    struct client *client = client_of(watcher);
    Rdt__Pb__Event numbers = RDT__PB__EVENT__INIT;
    uint8_t packed[32];

    numbers.sequence = watcher->sequence;
    numbers.lost = watcher->lost;
    client->conn.send_event(client, RDT_EVENT_WATCHED, packed, rdt__pb__event__pack(&numbers, packed), rest, bytes);
}

void watch_end(struct rpc *rpc, struct client *client)
{
    if (!client->rpc.watch)
        return;
    event_watcher_stop(&client->rpc.watch->base);
    free(client->rpc.watch);
    client->rpc.watch = NULL;
    rpc->events.watched = event_log_watched(&rpc->event_log);
}

void watch_on_room(struct client *client)
{
    event_watcher_unblock(&client->rpc.watch->base);
}

bool watch_catch_up(struct client *client, uint64_t until_ns)
{
    return event_watcher_serve(&client->rpc.watch->base, until_ns);
}

/* Sets the row of the event. Returns false if there is no memory. */
static bool set_row(struct arena *arena, Rdt__Pb__ListKind kind, const void *thing, Rdt__Pb__Event *message)
{
    switch (kind) {
    case RDT__PB__LIST_KIND__LIST_KIND_OBJECTS:
        return (message->object = row_object(arena, (struct object *)thing)) != NULL;
    case RDT__PB__LIST_KIND__LIST_KIND_REGIONS:
        return (message->region = row_region(arena, thing)) != NULL;
    case RDT__PB__LIST_KIND__LIST_KIND_CLIENTS:
        return (message->client = row_client(arena, thing)) != NULL;
    case RDT__PB__LIST_KIND__LIST_KIND_PEERS:
        return (message->peer = row_peer(arena, thing, false)) != NULL; /* one row for all who watch */
    case RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS:
        return (message->transfer = row_transfer(arena, thing)) != NULL;
    case RDT__PB__LIST_KIND__LIST_KIND_NAMES:
        return (message->name = row_name(arena, thing)) != NULL;
    case RDT__PB__LIST_KIND__LIST_KIND_BACKENDS:
        return (message->backend = row_role(arena, thing)) != NULL;
    case RDT__PB__LIST_KIND__LIST_KIND_OWNERS:
        return (message->owner = row_owner(arena, thing)) != NULL;
    case RDT__PB__LIST_KIND__LIST_KIND_GROUPS:
        return (message->group = row_group(arena, thing)) != NULL;
    default:
        return false;
    }
}

static void emit(void *arg, Rdt__Pb__ListKind kind, const char *what, const void *thing)
{
    const struct row_audience audience = row_audience(kind, thing);
    Rdt__Pb__Event message = RDT__PB__EVENT__INIT;
    struct rpc *rpc = arg;
    struct arena arena;

    if (!event_log_wanted(&rpc->event_log, kind, &audience))
        return;
    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    message.what = (char *)what;
    message.kind = kind;
    event_log_add(&rpc->event_log, kind, &audience, set_row(&arena, kind, thing, &message) ? &message : NULL);
    arena_fini(&arena);
}

void watches_init(struct rpc *rpc)
{
    event_log_init(&rpc->event_log, &rpc->deadlines->slices);
    rpc->events = (struct events){.emit = emit, .arg = rpc};
}

void watches_fini(struct rpc *rpc)
{
    event_log_fini(&rpc->event_log);
}

enum rdt_status rpc_watch(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Watch *message = request;
    struct client *client = call->client;
    struct rpc *rpc = call->rpc;
    struct watch *watch = NULL;

    if (message->kinds & ~WATCH_KINDS)
        return rdt_error_set(err, RDT_UNSUPPORTED, "kinds %#x cannot be watched: only %#x can", message->kinds & ~WATCH_KINDS,
                             WATCH_KINDS);
    if (message->kinds != 0) {
        watch = calloc(1, sizeof *watch);
        if (!watch)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a watch");
        watch->client = client;
        watch->base = (struct event_watcher){.owner = &client->account->owner,
                                             .admin = client->admin,
                                             .kinds = message->kinds,
                                             .has_room = has_room,
                                             .send = send_event};
        if (event_watcher_start(&rpc->event_log, &watch->base, err) != RDT_OK) {
            free(watch);
            return err->status;
        }
    }
    watch_end(rpc, client);
    client->rpc.watch = watch;
    rpc->events.watched = event_log_watched(&rpc->event_log);
    call_reply_empty(call); /* before the first event */
    return RDT_OK;
}
