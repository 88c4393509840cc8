#include "daemon/rpc/rpc.h"

#include <stddef.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/rpc/rpc_read.h"
#include "proto/layout.h"

#define SMALL_MESSAGE_BYTES 2048

/* HELLO is conn.c's: it comes first and makes the client. */
static const struct verb {
    enum rdt_message type;
    const char *name;
    const ProtobufCMessageDescriptor *request;
    enum rdt_status (*handle)(struct call *call, const void *request, struct rdt_error *err);
} table[] = {
    {RDT_MSG_PING, "PING", &rdt__pb__ping__descriptor, rpc_ping},
    {RDT_MSG_STATUS, "STATUS", &rdt__pb__empty__descriptor, rpc_status},
    {RDT_MSG_ALLOC, "ALLOC", &rdt__pb__alloc__descriptor, rpc_alloc},
    {RDT_MSG_IMPORT, "IMPORT", &rdt__pb__import__descriptor, rpc_import},
    {RDT_MSG_RELEASE_REGION, "RELEASE_REGION", &rdt__pb__release_region__descriptor, rpc_release_region},
    {RDT_MSG_PUT, "PUT", &rdt__pb__put__descriptor, rpc_put},
    {RDT_MSG_READY, "READY", &rdt__pb__ready__descriptor, rpc_ready},
    {RDT_MSG_FETCH, "FETCH", &rdt__pb__fetch__descriptor, rpc_fetch},
    {RDT_MSG_CANCEL, "CANCEL", &rdt__pb__cancel__descriptor, rpc_cancel},
    {RDT_MSG_RELEASE, "RELEASE", &rdt__pb__release__descriptor, rpc_release},
    {RDT_MSG_FREE, "FREE", &rdt__pb__free__descriptor, rpc_free},
    {RDT_MSG_WAIT, "WAIT", &rdt__pb__wait__descriptor, rpc_wait},
    {RDT_MSG_HOLD, "HOLD", &rdt__pb__hold__descriptor, rpc_hold},
    {RDT_MSG_WAIT_FREED, "WAIT_FREED", &rdt__pb__wait_freed__descriptor, rpc_wait_freed},
    {RDT_MSG_CANCEL_REQUEST, "CANCEL_REQUEST", &rdt__pb__cancel_request__descriptor, rpc_cancel_request},
    {RDT_MSG_STAT, "STAT", &rdt__pb__stat__descriptor, rpc_stat},
    {RDT_MSG_LIST, "LIST", &rdt__pb__list__descriptor, rpc_list},
    {RDT_MSG_EXPLAIN, "EXPLAIN", &rdt__pb__explain__descriptor, rpc_explain},
    {RDT_MSG_PUBLISH, "PUBLISH", &rdt__pb__publish__descriptor, rpc_publish},
    {RDT_MSG_UNPUBLISH, "UNPUBLISH", &rdt__pb__unpublish__descriptor, rpc_unpublish},
    {RDT_MSG_WATCH, "WATCH", &rdt__pb__watch__descriptor, rpc_watch},
    {RDT_MSG_BACKEND_LOAD, "BACKEND_LOAD", &rdt__pb__backend_load__descriptor, rpc_backend_load},
    {RDT_MSG_BACKEND_UNLOAD, "BACKEND_UNLOAD", &rdt__pb__backend_unload__descriptor, rpc_backend_unload},
    {RDT_MSG_GROUP_CREATE, "GROUP_CREATE", &rdt__pb__group_create__descriptor, rpc_group_create},
    {RDT_MSG_GROUP_DESTROY, "GROUP_DESTROY", &rdt__pb__group_destroy__descriptor, rpc_group_destroy},
    {RDT_MSG_BROADCAST, "BROADCAST", &rdt__pb__broadcast__descriptor, rpc_broadcast},
};

static const struct verb *find_verb(unsigned type)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].type == type)
            return &table[i];
    return NULL;
}

bool rpc_handles(enum rdt_message type)
{
    return find_verb(type);
}

/* How long a request wants to wait for room; 0: not at all. */
static int64_t patience(const struct call *call, const void *request)
{
    const Rdt__Pb__Put *put = request;

    if (!call->client)
        return 0;
    if (call->type == RDT_MSG_ALLOC)
        return ((const Rdt__Pb__Alloc *)request)->timeout_ns;
    if (call->type != RDT_MSG_PUT || call->gave || put->made_bytes > 0) /* what came with it goes with its answer */
        return 0;
    return put->timeout_ns;
}

static void on_turn_to_try(struct client_wake *wake);

static void on_room(struct account_wait *room)
{
    struct call *call = container_of(room, struct call, room);

    call->wake.run = on_turn_to_try;
    client_wake(call->client, &call->wake);
}

/* There was no room, and the request may wait for it: nothing is held meanwhile but its bytes. */
static enum rdt_status park(struct call *call, const uint8_t *payload, size_t bytes, int64_t timeout_ns, struct rdt_error *err)
{
    struct accounts *accounts = call->rpc->objects->accounts;
    struct account *full = accounts->full;
    enum usage full_of = accounts->full_of;
    struct rdt_error why = *err;
    enum rdt_status status;

    if (!call->packed) {
        status = account_take(call->account, USAGE_HEAP, bytes, err);
        if (status != RDT_OK)
            return status;
        call->heap_bytes = bytes;
        call->packed = malloc(bytes ? bytes : 1);
        if (!call->packed)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for room");
        memcpy(call->packed, payload, bytes);
        call->packed_bytes = bytes;
        call->frame = NULL;
        call->room.on_room = on_room;
        status = call_defer(call, timeout_ns, NULL, err);
        if (status != RDT_OK)
            return status;
    }
    free(call->why);
    call->why = strdup(why.msg);
    accounts->full = full;
    accounts->full_of = full_of;
    account_tried(accounts, &call->room);
    return RDT_OK;
}

static void on_turn_to_try(struct client_wake *wake)
{
    struct call *call = container_of(wake, struct call, wake);

    rpc_dispatch(call, call->packed, call->packed_bytes);
}

void rpc_pass(struct client *client)
{
    list_for_each (node, &client->wakes) { /* more may come meanwhile, behind them */
        struct client_wake *wake = container_of(node, struct client_wake, link);
        if (wake->run == on_turn_to_try)
            account_pass(&container_of(wake, struct call, wake)->room);
    }
}

/* The request, decoded, or with why it could not be. */
static void act(struct call *call, const struct verb *verb, const ProtobufCMessage *request, struct rdt_error *err,
                const uint8_t *payload, size_t bytes)
{
    struct accounts *accounts = call->rpc->objects->accounts;
    bool unread = err->status != RDT_OK;
    enum rdt_status status = err->status;

    account_try(accounts, &call->room);
    if (!unread) {
        log_trace("%s from client %llu, %zu bytes", verb->name, call->client ? (unsigned long long)call->client->id : 0ull, bytes);
        status = verb->handle(call, request, err);
    }
    if (!unread && status != RDT_OK && accounts->full && patience(call, request) != 0)
        status = park(call, payload, bytes, patience(call, request), err);
    account_tried(accounts, NULL);
    if (status == RDT_OK)
        return;
    if (err->status == RDT_OK)
        (void)rdt_error_set(err, status, "%s", rdt_status_sentence(status));
    if (unread)
        call_fail_unread(call, err);
    else
        call_fail(call, err);
}

void rpc_dispatch(struct call *call, const uint8_t *payload, size_t bytes)
{
    const struct verb *verb = find_verb(call->type);
    struct rdt_error err = {0};
    _Alignas(max_align_t) uint8_t buffer[SMALL_MESSAGE_BYTES]; /* RELEASE and CANCEL are heard however short memory is */
    ProtobufCMessage *request = NULL;
    struct arena arena;

    if (!verb) {
        if (call->type == RDT_MSG_HELLO)
            (void)rdt_error_set(&err, RDT_PROTOCOL, "HELLO is the first request of a connection, and comes once");
        else
            (void)rdt_error_set(&err, RDT_UNSUPPORTED, "this daemon knows no request %u", call->type);
        call_fail(call, &err);
        return;
    }
    if (call->type == RDT_MSG_FETCH) /* keeps its message for longer */
        arena_init(&arena, RDT_MAX_DECODED_BYTES);
    else
        arena_init_with(&arena, RDT_MAX_DECODED_BYTES, buffer, sizeof buffer);
    call->arena = &arena;
    call->digest = NULL;
    (void)arena_unpack(&arena, verb->request, payload, bytes, verb->name, &request, &err);
    act(call, verb, request, &err, payload, bytes);
    arena_fini(&arena);
}

static void on_read(struct reading *reading)
{
    struct call *call = reading->call;

    act(call, find_verb(call->type), reading->message, &reading->err, reading->frame.payload, reading->frame.length);
}

enum rdt_status rpc_handle(struct rpc *rpc, struct client *client, struct frame *frame, void *take_buffer, struct rdt_error *err)
{
    const struct verb *verb = find_verb(frame->type);
    struct call *call = frame->flags == 0 ? call_create(rpc, client, NULL, frame->type, frame->request_id) : NULL;
    enum rdt_status status = RDT_OK;

    if (frame->flags != 0) {
        status = rdt_error_set(err, RDT_PROTOCOL, "a frame with flags %u is no request", frame->flags);
    } else if (!call) {
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a request");
    } else if (verb && frame->length > RPC_AT_ONCE_BYTES &&
               reading_start(call, frame, take_buffer, verb->name, verb->request, on_read, NULL) == RDT_OK) {
        return RDT_OK;
    } else {
        call->frame = frame;
        rpc_dispatch(call, frame->payload, frame->length);
    }
    frame_close_fds(frame);
    free(take_buffer);
    return status;
}
