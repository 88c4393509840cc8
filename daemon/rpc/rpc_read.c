/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of large requests that the work pool decodes. */
#include "daemon/rpc/rpc_read.h"

#include <sched.h>
#include <stdlib.h>

static struct work_pool *pool_of(const struct rpc *rpc)
{
    return rpc->regions->pool;
}

void readings_init(struct rpc *rpc)
{
    list_init(&rpc->calls.readings);
}

/* ---- on a pool thread ---- */

static void run_read(struct work *work)
{
    struct reading *reading = container_of(work, struct reading, work);
    const struct verb *verb = reading->call->verb;

    if (arena_unpack(&reading->arena, verb->request, reading->frame.payload, reading->frame.length, verb->name,
                     &reading->message, &reading->err) != RDT_OK)
        return;
    (void)sched_yield();
    if (reading->frame.type == RDT_MSG_PUT)
        put_digest_make(&reading->digest, (const Rdt__Pb__Put *)reading->message);
}

/* Frees up to RDT_MAX_DECODED_BYTES, which takes too long for the loop. */
static void run_end(struct work *work)
{
    struct reading *reading = container_of(work, struct reading, work);

    put_digest_fini(&reading->digest);
    arena_fini(&reading->arena);
    (void)sched_yield();
    free(reading->buffer);
    free(reading);
}

/* ---- on the loop ---- */

static void done_read(struct work *work);

static void start_first(struct rpc *rpc)
{
    struct reading *first;

    if (list_empty(&rpc->calls.readings))
        return;
    first = container_of(list_first(&rpc->calls.readings), struct reading, link);
    if (first->runs)
        return;
    first->runs = true;
    first->work = (struct work){.run = run_read, .done = done_read, .lane = first->call->client->id};
    work_submit(pool_of(rpc), &first->work);
}

/* The call has been answered or dropped: the worker pool frees its memory, and the next reading starts. */
static void reading_end(struct reading *reading, struct rpc *rpc)
{
    list_remove(&reading->link);
    account_give(reading->account, USAGE_FDS, reading->n_fds);
    account_unref(reading->account);
    frame_close_fds(&reading->frame);
    reading->work = (struct work){.run = run_end};
    work_submit(pool_of(rpc), &reading->work);
    start_first(rpc);
}

/* Handles the request now and not in a turn of its client, because the next reading waits until its memory is free. */
static void done_read(struct work *work)
{
    struct reading *reading = container_of(work, struct reading, work);
    struct call *call = reading->call;
    struct client *client = call->client;
    struct rpc *rpc = call->rpc;

    client->task = NULL; /* the handler may set another task */
    call->request.frame = &reading->frame;
    call->request.arena = &reading->arena;
    call->request.digest = reading->err.status == RDT_OK && call->type == RDT_MSG_PUT ? &reading->digest : NULL;
    if (client->conn.gone)
        call_drop(call);
    else
        reading->on_read(reading);
    reading_end(reading, rpc);
    client->conn.want_turn(client);
}

/* The client's turns have nothing to do for it, because done_read continues. */
static bool reading_step(struct client_task *task, uint64_t until_ns)
{
    return false;
}

static bool reading_drop(struct client_task *task)
{
    struct reading *reading = container_of(task, struct reading, task);
    struct rpc *rpc = reading->call->rpc;

    if (reading->runs)
        return false; /* done_read drops it */
    call_drop(reading->call);
    reading_end(reading, rpc);
    return true;
}

enum rdt_status reading_start(struct call *call, struct frame *frame, void *buffer, void (*on_read)(struct reading *),
                              struct rdt_error *err)
{
    struct reading *reading = calloc(1, sizeof *reading);

    if (!reading)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to read %s", call->verb->name);
    reading->task = (struct client_task){.waits = true, .step = reading_step, .drop = reading_drop};
    reading->call = call;
    reading->frame = *frame;
    reading->account = account_ref(call->client->account);
    reading->n_fds = frame->nfds;
    account_add(reading->account, USAGE_FDS, reading->n_fds);
    frame->nfds = 0;
    reading->buffer = buffer;
    reading->on_read = on_read;
    arena_init(&reading->arena, RDT_MAX_DECODED_BYTES);
    reading->arena.on_block = work_touch;
    list_append(&call->rpc->calls.readings, &reading->link);
    call->client->task = &reading->task;
    start_first(call->rpc);
    return RDT_OK;
}
