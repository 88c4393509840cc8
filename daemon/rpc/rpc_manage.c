/* SPDX-License-Identifier: Apache-2.0 */
/* LOG_LEVEL, DRAIN, RELOAD, END_CLIENT: what an administrator changes in the running daemon. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/config/options.h"
#include "daemon/rpc/rpc.h"

enum rdt_status rpc_log_level(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__LogLevel *message = request;
    Rdt__Pb__LogLevelReply reply = RDT__PB__LOG_LEVEL_REPLY__INIT;
    enum log_level before = log_threshold, level = before;

    if (message->level[0] != '\0' && !log_level_parse(message->level, &level))
        return rdt_error_set(err, RDT_INVALID, "'%.32s' is no log level: expected error, warn, info, debug or trace",
                             message->level);
    if (level != before) {
        log_threshold = level;
        /* at every level, because it explains which messages the log has from here on */
        log_write(LOG_LEVEL_INFO, "uid %u has changed the log level from %s to %s", call->account->owner.uid,
                  log_level_name(before), log_level_name(level));
    }
    reply.level = (char *)log_level_name(level);
    reply.before = (char *)log_level_name(before);
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}

/* ---- DRAIN ---- */

enum rdt_status rpc_refuse_drained(struct rdt_error *err)
{
    return rdt_error_set(err, RDT_BUSY,
                         "this node is being drained and takes no new objects: put them on another node, or end it by "
                         "rdtctl drain --undo");
}

enum rdt_status rpc_drain(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Drain *message = request;
    Rdt__Pb__Empty reply = RDT__PB__EMPTY__INIT;

    if (call->rpc->intake.drained == message->undo)
        log_info("uid %u %s", call->account->owner.uid,
                 message->undo ? "has ended the draining: new objects are taken again"
                               : "drains this node: no new objects are taken");
    call->rpc->intake.drained = !message->undo;
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}

/* ---- END_CLIENT ---- */

enum rdt_status rpc_end_client(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__EndClient *message = request;
    Rdt__Pb__Empty reply = RDT__PB__EMPTY__INIT;

    if (call->client && call->client->id == message->client)
        return rdt_error_set(err, RDT_INVALID, "client %llu is the one that asks", (unsigned long long)message->client);
    list_each (struct client, client, &call->rpc->clients.all, link) {
        if (client->id != message->client || !call_may_see(call, &client->account->owner))
            continue;
        /* a user may do this to the own clients any number of times */
        log_at(owner_equal(&call->account->owner, &client->account->owner) ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO,
               "uid %u ends client %llu (%s, pid %d, uid %u)", call->account->owner.uid, (unsigned long long)client->id,
               client->name, (int)client->pid, client->account->owner.uid);
        client->conn.end(client, "another client of its user, or an administrator, ended it");
        call_reply(call, &reply.base, NULL, 0);
        return RDT_OK;
    }
    return rdt_error_set(err, RDT_NOT_FOUND, "there is no client %llu, or it is not one of uid %u",
                         (unsigned long long)message->client, call->account->owner.uid);
}

/* ---- RELOAD ---- */

#define MAX_CHANGES 256u
#define PATIENCE_NS INT64_C(3000000000) /* with the files of the configuration */

struct changes {
    struct arena *arena;
    Rdt__Pb__OptionChange *rows[MAX_CHANGES];
    size_t n;
};

static void on_change(void *arg, const char *section, const char *key, const char *before, const char *after, bool reloads)
{
    struct changes *changes = arg;
    Rdt__Pb__OptionChange *change =
        changes->n < MAX_CHANGES ? arena_message(changes->arena, &rdt__pb__option_change__descriptor) : NULL;

    if (!change)
        return; /* the log has all of them */
    change->section = arena_text(changes->arena, section, SIZE_MAX);
    change->key = arena_text(changes->arena, key, SIZE_MAX);
    change->before = arena_text(changes->arena, before, SIZE_MAX);
    change->after = arena_text(changes->arena, after, SIZE_MAX);
    change->applied = reloads;
    if (change->section && change->key && change->before && change->after)
        changes->rows[changes->n++] = change;
}

/* A RELOAD that waits for the files. Without its call, which has ended, it changes nothing. */
struct waiting_reload {
    struct call *call;
    bool check;
};

static enum rdt_status adopt(struct call *call, struct fresh_config *config, bool check, struct arena *arena,
                             struct rdt_error *err)
{
    Rdt__Pb__ReloadReply reply = RDT__PB__RELOAD_REPLY__INIT;
    struct changes *changes = arena_alloc(arena, sizeof *changes);
    const struct rpc_above *above = &call->rpc->above;
    enum rdt_status status;

    if (!changes)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the answer");
    *changes = (struct changes){.arena = arena};
    status = above->adopt(above->arg, config, check, on_change, changes, err);
    if (status != RDT_OK)
        return status;
    reply.changes = changes->rows;
    reply.n_changes = changes->n;
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}

static void on_read(void *arg, struct fresh_config *config)
{
    struct waiting_reload *waiting = arg;
    struct call *call = waiting->call;
    struct rdt_error err;
    struct arena arena;

    if (call)
        call->waiting = NULL;
    if (call && config) {
        arena_init(&arena, RDT_MAX_DECODED_BYTES);
        if (adopt(call, config, waiting->check, &arena, &err) != RDT_OK)
            call_fail(call, &err);
        arena_fini(&arena);
    }
    free(waiting);
}

static void on_reload_ends(struct call *call)
{
    struct waiting_reload *waiting = call->waiting;

    if (waiting)
        waiting->call = NULL;
}

enum rdt_status rpc_reload(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Reload *message = request;
    const struct rpc_above *above = &call->rpc->above;
    struct waiting_reload *waiting = malloc(sizeof *waiting);
    enum rdt_status status;

    if (!waiting)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to reload the configuration");
    *waiting = (struct waiting_reload){.call = call, .check = message->check};
    call->waiting = waiting;
    status = call_defer(call, PATIENCE_NS, on_reload_ends, err);
    if (status == RDT_OK)
        status = above->read_again(above->arg, on_read, waiting, err);
    if (status != RDT_OK) {
        call->waiting = NULL;
        free(waiting);
        return status;
    }
    call->why = strdup("the file system of the configuration, key or certificates does not answer, and nothing has changed");
    return RDT_OK;
}
