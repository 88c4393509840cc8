/* SPDX-License-Identifier: Apache-2.0 */
/* WATCH: sends every change of the daemon's tables to the clients that watch them, as the rows that LIST shows.
 *
 * A client that does not read loses events: while it has more than UNREAD_MAX unread bytes, events are only counted, and
 * the next one that is sent says how many were lost. So a slow watcher neither delays others nor takes their memory.
 */
#include <stdlib.h>

#include "daemon/rpc/rpc_row.h"
#include "daemon/rpc/rpc_watch.h"

#define UNREAD_MAX ((size_t)1 << 20) /* of events and other answers */

struct watch {
    struct list link; /* rpc->watches */
    struct client *client;
    uint32_t kinds;
    uint64_t sequence; /* of the latest event, whether sent or lost */
    uint64_t lost;     /* events lost since the last one that was sent */
};

static void update_watched(struct rpc *rpc)
{
    rpc->events.watched = 0;
    list_for_each (node, &rpc->watches)
        rpc->events.watched |= container_of(node, struct watch, link)->kinds;
}

void watch_end(struct rpc *rpc, struct client *client)
{
    if (!client->rpc.watch)
        return;
    list_remove(&client->rpc.watch->link);
    free(client->rpc.watch);
    client->rpc.watch = NULL;
    update_watched(rpc);
}

static void send_event(struct watch *watch, Rdt__Pb__Event *message)
{
    message->sequence = watch->sequence;
    message->lost = watch->lost;
    watch->lost = 0;
    watch->client->send(watch->client, RDT_EVENT_WATCHED, FRAME_EVENT, 0, &message->base, NULL, 0);
}

void watch_on_room(struct client *client)
{
    Rdt__Pb__Event message = RDT__PB__EVENT__INIT;

    if (client->rpc.watch->lost == 0)
        return;
    message.what = (char *)"lost";
    send_event(client->rpc.watch, &message);
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
        return (message->backend = row_part(arena, thing)) != NULL;
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
    struct rpc *rpc = arg;
    Rdt__Pb__Event message = RDT__PB__EVENT__INIT;
    struct arena arena;
    bool have_row = false, failed = false;

    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    message.what = (char *)what;
    message.kind = kind;
    list_each (struct watch, watch, &rpc->watches, link) {
        const struct client *client = watch->client;
        if (!(watch->kinds & 1u << kind) || !row_is_for(kind, thing, &client->account->owner, client->admin))
            continue;
        watch->sequence++;
        if (!have_row && !failed && client->queued_bytes(client) <= UNREAD_MAX) {
            have_row = set_row(&arena, kind, thing, &message);
            failed = !have_row;
        }
        if (have_row && client->queued_bytes(client) <= UNREAD_MAX)
            send_event(watch, &message);
        else
            watch->lost++;
    }
    arena_fini(&arena);
}

void watches_init(struct rpc *rpc)
{
    list_init(&rpc->watches);
    rpc->events = (struct events){.emit = emit, .arg = rpc};
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
    if (message->kinds != 0 && !(watch = calloc(1, sizeof *watch)))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a watch");
    watch_end(rpc, client);
    call_reply_empty(call); /* before the first event */
    if (!watch)
        return RDT_OK;
    watch->client = client;
    watch->kinds = message->kinds;
    list_append(&rpc->watches, &watch->link);
    client->rpc.watch = watch;
    update_watched(rpc);
    return RDT_OK;
}
