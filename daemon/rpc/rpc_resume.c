/* SPDX-License-Identifier: Apache-2.0 */
/* RESUME and CLOSE. RESUME: the client of a session that survived an earlier daemon lists what it still has. Everything else
 * of the session is released here: the release, or the answer that granted it, was lost with the old connection. The client
 * may have a hundred thousand holds, so this takes several turns. CLOSE: the session ends with its connection, even if the
 * daemon restarts. */
#include <stdlib.h>

#include "daemon/calls/call.h"
#include "daemon/memory/region_cache.h"
#include "daemon/persist/recovery.h"

enum kind { HOLDS, REMOTE_HOLDS, REGIONS, KINDS };

struct resuming {
    struct client_task task;
    struct rpc *rpc;
    struct client *client;
    uint64_t request_id;
    struct arena arena; /* of the message */
    const Rdt__Pb__Resume *message;
    enum kind kind;
    size_t next; /* index of the next id of `kind` to note; after the last one: `cursor` walks what the daemon has. KINDS: index
                     * of the next abandoned put */
    size_t cursor, next_write;
    struct map listed;        /* of `kind`: id -> the message */
    uint64_t *missing[KINDS]; /* [n_missing] */
    size_t n_missing[KINDS];
};

static const uint64_t *ids_of(const struct resuming *resuming, enum kind kind, size_t *n_p)
{
    const Rdt__Pb__Resume *message = resuming->message;

    *n_p = kind == HOLDS ? message->n_holds : kind == REMOTE_HOLDS ? message->n_remote_holds : message->n_regions;
    return kind == HOLDS ? message->holds : kind == REMOTE_HOLDS ? message->remote_holds : message->regions;
}

static struct map *map_of(struct client *client, enum kind kind)
{
    return kind == HOLDS ? &client->holds.by_id : kind == REMOTE_HOLDS ? &client->holds.remote : &client->regions;
}

static void release_region(struct client *client, struct region *region)
{
    if (region->state == REGION_RETURNED) {
        region_cache_release(&client->cache, region);
        return;
    }
    client_forget_region(client, region);
    region_unref(region);
}

/* Ends the next item of the kind that the client did not list. false: there are no more. */
static bool end_next(struct resuming *resuming)
{
    void *entry = map_next(map_of(resuming->client, resuming->kind), &resuming->cursor);
    struct hold *hold = entry;
    struct remote_hold *remote_hold = entry;
    struct region *region = entry;

    if (!entry)
        return false;
    if (resuming->kind == HOLDS && !map_get_u64(&resuming->listed, hold->id))
        client_release(hold);
    else if (resuming->kind == REMOTE_HOLDS && !map_get_u64(&resuming->listed, remote_hold->request_id))
        remote_hold_end(remote_hold);
    else if (resuming->kind == REGIONS && !map_get_u64(&resuming->listed, region->id))
        release_region(resuming->client, region);
    return true;
}

/* Notes an id that the client listed. false: no memory. */
static bool note(struct resuming *resuming, uint64_t id)
{
    enum kind kind = resuming->kind;

    if (!map_get_u64(map_of(resuming->client, kind), id)) {
        resuming->missing[kind][resuming->n_missing[kind]++] = id;
        return true;
    }
    return map_get_u64(&resuming->listed, id) || map_put_u64(&resuming->listed, id, (void *)resuming->message);
}

/* Frees the object of the next put that the client gave up. false: there are no more. */
static bool free_next_abandoned(struct resuming *resuming)
{
    const Rdt__Pb__Resume *message = resuming->message;
    uint64_t generation;
    struct object *object;

    if (resuming->next == message->n_abandoned_puts)
        return false;
    generation = (uintptr_t)map_get_u64(&resuming->client->session.answers, message->abandoned_puts[resuming->next++]);
    object = index_get(&resuming->rpc->objects->by_generation, generation);
    if (object && object->producer == resuming->client && !object->access.took_key) /* as in rpc_cancel_request */
        object_free(object, false, OBJECT_END_FREED);
    return true;
}

/* Pins what the client still writes, unless it has no more of that, or no room for the note. false: there is no more. */
static bool note_next_write(struct resuming *resuming)
{
    const Rdt__Pb__Resume *message = resuming->message;
    const struct client *client = resuming->client;
    size_t i = resuming->next_write++;
    struct hold *hold;
    struct region *region;

    if (i >= message->n_write_holds || i >= message->n_write_regions || i >= message->n_write_from || i >= message->n_write_to)
        return false;
    hold = map_get_u64(&client->holds.by_id, message->write_holds[i]);
    region = map_get_u64(&client->regions, message->write_regions[i]);
    if (hold && region && message->write_from[i] < message->write_to[i] && message->write_to[i] <= region->bytes)
        (void)client_note_write(hold, region, message->write_from[i], message->write_to[i], NULL);
    return true;
}

static void resuming_end(struct resuming *resuming)
{
    for (unsigned kind = 0; kind < KINDS; kind++)
        free(resuming->missing[kind]);
    map_fini(&resuming->listed);
    work_free_arena(resuming->rpc->regions->pool, &resuming->arena);
    free(resuming);
}

static void answer(struct resuming *resuming)
{
    Rdt__Pb__ResumeReply reply = RDT__PB__RESUME_REPLY__INIT;
    struct client *client = resuming->client;

    reply.holds = resuming->missing[HOLDS];
    reply.n_holds = resuming->n_missing[HOLDS];
    reply.remote_holds = resuming->missing[REMOTE_HOLDS];
    reply.n_remote_holds = resuming->n_missing[REMOTE_HOLDS];
    reply.regions = resuming->missing[REGIONS];
    reply.n_regions = resuming->n_missing[REGIONS];
    client->conn.send(client, RDT_MSG_RESUME, FRAME_REPLY, resuming->request_id, &reply.base, NULL, 0);
}

static bool fail(struct resuming *resuming)
{
    struct rdt_error err;

    (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory to compare what the session has");
    client_send_error(resuming->client, RDT_MSG_RESUME, resuming->request_id, &err);
    resuming_end(resuming);
    return true;
}

/* Returns true when nothing is left of the kind. */
static bool step_kind(struct resuming *resuming, bool *failed_p)
{
    size_t n;
    const uint64_t *ids = ids_of(resuming, resuming->kind, &n);

    if (resuming->next < n) {
        *failed_p = !note(resuming, ids[resuming->next++]);
        return false;
    }
    return !end_next(resuming);
}

static bool step(struct client_task *task, uint64_t until_ns)
{
    struct resuming *resuming = (struct resuming *)task;
    bool failed = false;

    do {
        if (resuming->kind == KINDS && (free_next_abandoned(resuming) || note_next_write(resuming)))
            continue;
        if (resuming->kind == KINDS) {
            answer(resuming);
            remote_holds_tell_lost(resuming->client);
            resuming_end(resuming);
            return true;
        }
        if (step_kind(resuming, &failed)) {
            resuming->kind++;
            resuming->next = resuming->cursor = 0;
            map_fini(&resuming->listed);
            map_init(&resuming->listed);
        }
        if (failed)
            return fail(resuming);
    } while (uv_hrtime() < until_ns);
    return false;
}

static bool drop(struct client_task *task)
{
    resuming_end((struct resuming *)task);
    return true;
}

enum rdt_status rpc_resume(struct call *call, const void *request, struct rdt_error *err)
{
    struct client *client = call->client;
    struct resuming *resuming;
    bool room = true;

    if (client->session.state != CLIENT_SESSION_RETURNED)
        return rdt_error_set(err, RDT_INVALID,
                             "this connection has not just resumed a session, so there is nothing to compare");
    resuming = calloc(1, sizeof *resuming);
    if (!resuming)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to compare what the session has");
    *resuming = (struct resuming){.task = {.step = step, .drop = drop},
                                  .rpc = call->rpc,
                                  .client = client,
                                  .request_id = call->request_id,
                                  .message = request};
    for (enum kind kind = 0; kind < KINDS; kind++) {
        size_t n;
        (void)ids_of(resuming, kind, &n);
        resuming->missing[kind] = calloc(n + 1, sizeof(uint64_t));
        room = room && resuming->missing[kind];
    }
    map_init(&resuming->listed);
    call_take_request(call, &resuming->arena);
    client_move_session(client, CLIENT_SESSION_RESUMED);
    if (!room) {
        (void)fail(resuming);
    } else {
        client->task = &resuming->task;
        client->conn.want_turn(client);
    }
    call_drop(call); /* the task answers */
    return RDT_OK;
}

enum rdt_status rpc_close(struct call *call, const void *request, struct rdt_error *err)
{
    recovery_end_session(call->rpc->recovery, call->client);
    call_reply_empty(call);
    return RDT_OK;
}
