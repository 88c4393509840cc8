/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rpc/rpc.h"

#include <stddef.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/rpc/rpc_read.h"
#include "proto/layout.h"

#define SMALL_MESSAGE_BYTES 2048
#define EVICTION_NS INT64_C(10000000000) /* more than evictions take */

typedef enum rdt_status (*rpc_handler)(struct call *call, const void *request, struct rdt_error *err);

/* By type number. HELLO has no handler here, because daemon/conn_hello.c handles it before there is a client. */
static const rpc_handler handlers[] = {
#define X(number, NAME, request, reply, properties, unmet) [number] = rpc_##request,
    RDT_REQUEST_MAP(X)
#undef X
};

static rpc_handler handler_of(unsigned type)
{
    return type < sizeof handlers / sizeof handlers[0] ? handlers[type] : NULL;
}

/* Checks the caller's rights that the row of the table requires. */
static enum rdt_status check_row(const struct call *call, struct rdt_error *err)
{
    if (call->verb->properties & VERB_ADMIN && !call->admin)
        return rdt_error_set(err, RDT_DENIED, "only root or the daemon's own user may send %s, not uid %u", call->verb->name,
                             call->account->owner.uid);
    if (call->verb->properties & VERB_NOT_DRAINING && call->rpc->intake.draining)
        return rdt_error_set(err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    if (call->verb->properties & VERB_NOT_DRAINING && !(call->verb->properties & VERB_ADMIN) && call->rpc->intake.drained)
        return rpc_refuse_drained(err);
    return RDT_OK;
}

/* How long the request may wait for room under a limit; 0: it may not wait. All wait for evictions, which take a moment. */
static int64_t wait_limit_ns(struct call *call, const void *request)
{
    int64_t limit_ns = call->type == RDT_MSG_ALLOC ? ((const Rdt__Pb__Alloc *)request)->timeout_ns
                       : call->type == RDT_MSG_PUT ? ((const Rdt__Pb__Put *)request)->timeout_ns
                                                   : 0;

    call->waits.room.evicting = cache_make_room(&call->rpc->objects->cache);
    return call->waits.room.evicting && limit_ns == 0 ? EVICTION_NS : limit_ns;
}

/* Whether the request, which a limit has refused, may be tried again. Memory that was handed over belongs to the daemon, so
 * that put cannot. */
static bool may_try_again(const struct call *call)
{
    return call->client && (call->type == RDT_MSG_ALLOC || call->type == RDT_MSG_STORE ||
                            (call->type == RDT_MSG_PUT && !call->put.handed_over));
}

static void on_try_again(struct client_wake *wake)
{
    struct call *call = container_of(wake, struct call, waits.wake);

    rpc_dispatch(call, call->copy.packed, call->copy.packed_bytes);
}

static void on_room(struct account_wait *room)
{
    struct call *call = container_of(room, struct call, waits.room);

    call->waits.wake.run = on_try_again;
    client_wake(call->client, &call->waits.wake);
}

/* Defers a request that a limit refused and that may wait. It keeps only its packed bytes, and is
 * dispatched again when there is room. */
static enum rdt_status wait_for_room(struct call *call, const uint8_t *payload, size_t bytes, int64_t timeout_ns,
                                     struct rdt_error *err)
{
    struct accounts *accounts = call->rpc->objects->accounts;
    struct account *full = accounts->full;
    enum usage full_of = accounts->full_of;
    struct rdt_error why = *err;
    enum rdt_status status;

    if (!call->copy.packed) {
        status = account_take(call->account, USAGE_HEAP, bytes, err);
        if (status != RDT_OK)
            return status;
        call->copy.heap_bytes = bytes;
        call->copy.packed = malloc(bytes ? bytes : 1);
        if (!call->copy.packed)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for room");
        memcpy(call->copy.packed, payload, bytes);
        call->copy.packed_bytes = bytes;
        call->request.frame = NULL;
        call->waits.room.on_room = on_room;
        status = call_defer(call, timeout_ns, NULL, err);
        if (status != RDT_OK)
            return status;
    }
    free(call->why);
    call->why = strdup(why.msg);
    accounts->full = full;
    accounts->full_of = full_of;
    account_request_end(accounts, &call->waits.room);
    return RDT_OK;
}

void rpc_postpone_waits(struct client *client)
{
    list_for_each (node, &client->wakes) { /* the loop also reaches wakes that are appended during it */
        struct client_wake *wake = container_of(node, struct client_wake, link);
        if (wake->run == on_try_again)
            account_wait_postpone(&container_of(wake, struct call, waits.wake)->waits.room);
    }
}

/* Runs the handler of a decoded request. If err is set, the request could not be decoded, and err is the answer. */
static void run_handler(struct call *call, const ProtobufCMessage *request, struct rdt_error *err, const uint8_t *payload,
                        size_t bytes)
{
    struct accounts *accounts = call->rpc->objects->accounts;
    bool unread = err->status != RDT_OK;
    enum rdt_status status = err->status;

    call->request.payload = payload;
    call->request.payload_bytes = bytes;
    account_request_begin(accounts, &call->waits.room);
    if (!unread) {
        log_trace("%s from client %llu, %zu bytes", call->verb->name,
                  call->client ? (unsigned long long)call->client->id : 0ull, bytes);
        status = check_row(call, err);
        if (status == RDT_OK)
            status = handler_of(call->type)(call, request, err);
    }
    if (!unread && status != RDT_OK && accounts->full && may_try_again(call)) {
        int64_t limit_ns = wait_limit_ns(call, request);
        if (limit_ns != 0)
            status = wait_for_room(call, payload, bytes, limit_ns, err);
    }
    account_request_end(accounts, NULL);
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
    struct rdt_error err = {0};
    _Alignas(max_align_t) uint8_t buffer[SMALL_MESSAGE_BYTES]; /* so that RELEASE and CANCEL need no heap */
    ProtobufCMessage *request = NULL;
    struct arena arena;

    if (!handler_of(call->type)) {
        if (call->type == RDT_MSG_HELLO)
            (void)rdt_error_set(&err, RDT_PROTOCOL, "HELLO is only for the first request of a connection");
        else
            (void)rdt_error_set(&err, RDT_UNSUPPORTED, "request %u is unknown to this daemon", call->type);
        call_fail(call, &err);
        return;
    }
    if (call->verb->properties & VERB_KEEPS_REQUEST) /* so its memory must not be on the stack */
        arena_init(&arena, RDT_MAX_DECODED_BYTES);
    else
        arena_init_with(&arena, RDT_MAX_DECODED_BYTES, buffer, sizeof buffer);
    call->request.arena = &arena;
    call->request.digest = NULL;
    (void)arena_unpack(&arena, call->verb->request, payload, bytes, call->verb->name, &request, &err);
    run_handler(call, request, &err, payload, bytes);
    arena_fini(&arena);
}

static void on_read(struct reading *reading)
{
    struct call *call = reading->call;

    run_handler(call, reading->message, &reading->err, reading->frame.payload, reading->frame.length);
}

enum rdt_status rpc_handle(struct rpc *rpc, struct client *client, struct frame *frame, void *take_buffer,
                           struct rdt_error *err)
{
    struct call *call = frame->flags == 0 ? call_create(rpc, client, NULL, frame->type, frame->request_id) : NULL;
    enum rdt_status status = RDT_OK;

    if (frame->flags != 0) {
        status = rdt_error_set(err, RDT_PROTOCOL, "a frame with flags %u is not a request", frame->flags);
    } else if (!call) {
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a request");
    } else if (handler_of(frame->type) && frame->length > RPC_AT_ONCE_BYTES &&
               reading_start(call, frame, take_buffer, on_read, NULL) == RDT_OK) {
        return RDT_OK;
    } else {
        client->rpc.n_requests++;
        call->request.frame = frame;
        rpc_dispatch(call, frame->payload, frame->length);
    }
    frame_close_fds(frame);
    free(take_buffer);
    return status;
}
