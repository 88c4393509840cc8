/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a request. fetch.c builds fetches and reads the events that answer them; calls.c starts waits and holds. */
#include "request.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "call.h"
#include "fetched.h"
#include "options.h"
#include "proto/messages.h"
#include "proto/wire_ref.h"
#include "rdt.pb-c.h"
#include "session/clock.h"

/* What is copied between two looks at the clock and at cancellation; it takes a few milliseconds. */
#define COPY_BYTES ((uint64_t)8 << 20)

/* Allowed moves, as [from][to]; request.h draws them. */
static const bool moves[3][3] = {
    [REQUEST_RUNNING] = {[REQUEST_ARRIVED] = true, [REQUEST_ENDED] = true},
    [REQUEST_ARRIVED] = {[REQUEST_ENDED] = true},
};

void request_label(const struct rdt_ref *ref, char *label_p)
{
    bool text = true;

    for (size_t i = 0; i < ref->id_bytes; i++)
        text = text && ref->id[i] >= ' ' && ref->id[i] <= '~';
    if (text) {
        (void)snprintf(label_p, REQUEST_LABEL_BYTES, "\"%.*s%s\"", ref->id_bytes < 58 ? (int)ref->id_bytes : 56, ref->id,
                       ref->id_bytes < 58 ? "" : "...");
        return;
    }
    for (size_t i = 0; i < ref->id_bytes && 2 * i + 2 < REQUEST_LABEL_BYTES; i++)
        (void)snprintf(label_p + 2 * i, 3, "%02x", (unsigned char)ref->id[i]);
}

static void move(rdt_request *request, enum request_state to)
{
    assert(moves[request->state][to]);
    request->state = to;
}

/* ---- starting ---- */

static void on_frame(rdt *conn, struct pending *pending, struct frame *frame)
{
    rdt_request *request = container_of(pending, rdt_request, pending);
    struct rdt_error err;

    (void)rdt_error_set(&err, RDT_PROTOCOL, "%s %s: rdtd answered the handle with a frame of type %u", request->what,
                        request->label, frame->type);
    request_fail(request, &err);
}

static void on_lost(rdt *conn, struct pending *pending, const struct rdt_error *why)
{
    rdt_request *request = container_of(pending, rdt_request, pending);
    struct rdt_error err;

    (void)connection_lost_error(conn, &err);
    if (why->status == RDT_LIMIT) /* this process's own limit on fds ended the connection */
        err.status = RDT_LIMIT;
    rdt_error_prefix(&err, "%s %s", request->what, request->label);
    request_fail(request, &err);
}

/* The request runs, so it is sent again under the same handle or id, and the daemon gets the time that is left. */
static void go_on(rdt_request *request, enum rdt_status status, struct rdt_error *err)
{
    if (status == RDT_OK) {
        request->repeated |= request->sent_on != 0;
        request->sent_on = request->conn->socket.n;
        pending_add(&request->conn->calls.pending, &request->pending);
        return;
    }
    rdt_error_prefix(err, "%s %s", request->what, request->label);
    request_fail(request, err);
}

static void on_resumed(rdt *conn, struct pending *pending)
{
    rdt_request *request = container_of(pending, rdt_request, pending);
    struct rdt_error err;

    go_on(request, request->sent_on == conn->socket.n ? RDT_OK : repeat_fetch(conn, request, &err), &err);
}

static const struct pending_ops ops = {on_frame, on_lost, on_resumed};

static bool is_wait(const rdt_request *request)
{
    return request->kind == REQUEST_WAIT || request->kind == REQUEST_HOLD || request->kind == REQUEST_PART;
}

static void end(rdt_request *request);

static void send_cancel(const rdt_request *request)
{
    Rdt__Pb__Cancel message = RDT__PB__CANCEL__INIT;
    Rdt__Pb__CancelRequest wait = RDT__PB__CANCEL_REQUEST__INIT;

    if (is_wait(request)) {
        wait.request_id = request->pending.id;
        wait.unseen = !request->holds;
        (void)connection_release(request->conn, RDT_MSG_CANCEL_REQUEST, 0, &wait.base, NULL);
        return;
    }
    message.handle = request->pending.id;
    (void)connection_release(request->conn, RDT_MSG_CANCEL, 0, &message.base, NULL);
}

/* on_frame of a wait. */
static void on_answer(rdt *conn, struct pending *pending, struct frame *frame)
{
    rdt_request *request = container_of(pending, rdt_request, pending);
    struct rdt_error err;

    if (frame->flags & FRAME_ERROR) {
        (void)connection_error_reply(frame, &err);
        if (err.status == RDT_NOT_FOUND && request->repeated && frame->type == RDT_MSG_WAIT_FREED) {
            end(request); /* it ended while no daemon ran */
            return;
        }
        if (err.status == RDT_TIMED_OUT ||
            err.status == RDT_NOT_PUT) /* the sentences of other errors name the object already */
            rdt_error_prefix(&err, "%s %s", request->what, request->label);
        request_fail(request, &err);
    } else {
        end(request);
    }
}

static void on_wait_resumed(rdt *conn, struct pending *pending)
{
    rdt_request *request = container_of(pending, rdt_request, pending);
    enum rdt_status status = RDT_OK;
    struct rdt_error err;

    if (request->repeat)
        status = repeat_allowed(verb_find(request->repeat->type), request->sent_on, &err);
    if (status == RDT_OK)
        status = repeat_send(conn, request->repeat, pending->id, false, &err);
    go_on(request, status, &err);
}

static const struct pending_ops wait_ops = {on_answer, on_lost, on_wait_resumed};

void request_make_wait(rdt_request *request, const char *what)
{
    request->what = what;
    request->kind = REQUEST_WAIT;
    request->pending.ops = &wait_ops;
}

/* on_frame of a hold. */
static void on_held(rdt *conn, struct pending *pending, struct frame *frame)
{
    rdt_request *request = container_of(pending, rdt_request, pending);
    Rdt__Pb__HoldReply *reply = NULL;
    struct rdt_error err;

    if (frame->flags & FRAME_ERROR) {
        on_answer(conn, pending, frame);
        return;
    }
    reply = rdt__pb__hold_reply__unpack(NULL, frame->length, frame->payload);
    if (reply && reply->ref && wire_ref_to(reply->ref, &request->held, &err) == RDT_OK) {
        request->holds = true;
        request->version = reply->version;
        end(request);
    } else {
        send_cancel(request);
        (void)rdt_error_set(&err, RDT_PROTOCOL, "%s %s: rdtd's answer cannot be read", request->what, request->label);
        request_fail(request, &err);
    }
    if (reply)
        rdt__pb__hold_reply__free_unpacked(reply, NULL);
}

static const struct pending_ops hold_ops = {on_held, on_lost, on_wait_resumed};

void request_make_hold(rdt_request *request)
{
    request_make_wait(request, "hold of");
    request->kind = REQUEST_HOLD;
    request->pending.ops = &hold_ops;
}

/* on_frame of a publish of a part. */
static void on_part(rdt *conn, struct pending *pending, struct frame *frame)
{
    rdt_request *request = container_of(pending, rdt_request, pending);
    Rdt__Pb__PublishPartReply *reply =
        frame->flags & FRAME_ERROR ? NULL : rdt__pb__publish_part_reply__unpack(NULL, frame->length, frame->payload);

    if (reply) {
        request->version = reply->version;
        rdt__pb__publish_part_reply__free_unpacked(reply, NULL);
    }
    on_answer(conn, pending, frame);
}

/* Of a whole part: the earlier daemon may have completed the version. */
static void on_part_resumed(rdt *conn, struct pending *pending)
{
    rdt_request *request = container_of(pending, rdt_request, pending);
    struct rdt_error err;

    go_on(request, repeat_send(conn, request->repeat, pending->id, request->sent_on != 0, &err), &err);
}

static const struct pending_ops part_ops = {on_part, on_lost, on_part_resumed};
static const struct pending_ops growing_ops = {on_part, on_lost, on_wait_resumed};

void request_make_part(rdt_request *request, bool grows)
{
    request_make_wait(request, "part of");
    request->kind = REQUEST_PART;
    request->pending.ops = grows ? &growing_ops : &part_ops;
}

rdt_request *request_create(rdt *conn, const struct rdt_ref *ref, int64_t timeout_ns, struct targets *take_targets)
{
    rdt_request *request = calloc(1, sizeof *request);

    if (!request)
        return NULL;
    request->conn = conn;
    request->pending.ops = &ops;
    request->what = "fetch of";
    request->timeout_ns = timeout_ns;
    request->targets = take_targets;
    list_init(&request->link);
    list_init(&request->arrived);
    request_label(ref, request->label);
    return request;
}

void request_start(rdt_request *request, int64_t deadline_ns)
{
    rdt *conn = request->conn;

    request->pending.id = connection_id(conn);
    pending_add(&conn->calls.pending, &request->pending);
    list_append(&conn->requests, &request->link);
    request->expiry.at_ns = deadline_ns;
    if (deadline_ns != CLOCK_NEVER)
        expiry_add(&conn->calls.expiries, &request->expiry);
}

void request_keep(rdt_request *request, struct repeat *repeat)
{
    repeat_ref(repeat);
    request->repeat = repeat;
    request->sent_on = repeat_socket(request->conn);
}

rdt_request *request_find(rdt *conn, uint64_t handle)
{
    struct pending *pending = pending_find(&conn->calls.pending, handle);

    return pending && pending->ops == &ops ? container_of(pending, rdt_request, pending) : NULL;
}

/* ---- ending ---- */

/* Stops expecting an answer: it has come, or is no longer of interest. */
static void forget(rdt_request *request)
{
    (void)pending_take(&request->conn->calls.pending, request->pending.id);
    repeat_unref(request->repeat);
    request->repeat = NULL;
}

static void end(rdt_request *request)
{
    forget(request);
    expiry_remove(&request->conn->calls.expiries, &request->expiry);
    list_remove(&request->arrived);
    move(request, REQUEST_ENDED);
    request->conn->loop.unseen++;
    connection_notify(request->conn);
}

static void drop_object(rdt_request *request)
{
    if (request->on_device && copying_leave(request->on_device))
        request->targets = NULL;
    else
        fetched_destroy(request->object);
    request->on_device = NULL;
    request->object = NULL;
}

void request_fail(rdt_request *request, const struct rdt_error *err)
{
    request->err = *err;
    end(request);
    if (!request->copying)
        drop_object(request);
}

/* Drops the hold of a request that holds an object. */
static void drop_hold(rdt_request *request)
{
    if (request->holds)
        send_cancel(request);
    request->holds = false;
}

/* Ends the request with CANCELLED unless it has ended. */
static void request_cancel(rdt_request *request)
{
    struct rdt_error err;

    (void)rdt_error_set(&err, RDT_CANCELLED, "the %s %s was cancelled", request->what, request->label);
    if (request->state == REQUEST_ENDED && request->holds) {
        drop_hold(request);
        request->err = err;
    }
    if (request->state == REQUEST_ENDED)
        return;
    if (request->state == REQUEST_RUNNING)
        send_cancel(request);
    request_fail(request, &err);
}

void request_on_expired(rdt *conn, struct expiry *expiry)
{
    rdt_request *request = container_of(expiry, rdt_request, expiry);
    struct rdt_error err;

    if (request->state == REQUEST_ARRIVED && !request->copying && !copying_has_begun(request->on_device))
        return; /* begin_copy */
    if (request->state == REQUEST_ARRIVED) {
        (void)rdt_error_set(&err, RDT_TIMED_OUT,
                            "%s %s: the device did not copy it into the targets within %.3f s: it still has other work",
                            request->what, request->label, (double)request->timeout_ns / 1e9);
        request_fail(request, &err);
        return;
    }
    send_cancel(request);
    (void)rdt_error_set(&err, RDT_TIMED_OUT, "%s %s: rdtd did not say how it ended within %.3f s%s", request->what,
                        request->label, (double)request->timeout_ns / 1e9,
                        conn->state == CONNECTION_UP ? CALL_ADVICE : ": it ended itself, and has not come back yet");
    request_fail(request, &err);
}

void request_on_hold_lost(rdt *conn, struct frame *frame)
{
    struct rdt_error err;

    (void)connection_error_reply(frame, &err);
    list_each (rdt_request, request, &conn->requests, link) {
        if (request->pending.id != frame->request_id || !request->holds)
            continue;
        drop_hold(request); /* the daemon need not remember it any more */
        request->err = err;
        rdt_error_prefix(&request->err, "%s %s", request->what, request->label);
        connection_notify(conn);
        return;
    }
}

/* ---- arriving ---- */

/* Ends a request whose bytes are in its targets. */
static void end_in_targets(rdt_request *request, bool later)
{
    if (request->on_device)
        copying_end(request->on_device);
    request->on_device = NULL;
    fetched_move_to(request->object, request->targets, later);
    request->targets = NULL;
    end(request);
}

/* on_end of the copy that a device makes. */
static void on_copied(void *arg, enum rdt_status status, const struct rdt_error *why)
{
    rdt_request *request = arg;
    struct rdt_error err;

    if (status == RDT_OK) {
        end_in_targets(request, false);
        return;
    }
    err = *why;
    rdt_error_prefix(&err, "%s %s", request->what, request->label);
    request_fail(request, &err);
}

void request_arrive(rdt_request *request, rdt_object *take_object)
{
    struct rdt_error err;

    request->object = take_object;
    if (!request->targets) {
        end(request);
    } else if (request->targets->direct && !take_object->to_copy) {
        end_in_targets(request, false);
    } else if (layout_same_shape(take_object->layout, request->targets->layout, &err) != RDT_OK) {
        rdt_error_prefix(&err, "%s %s", request->what, request->label);
        request_fail(request, &err);
    } else if (layout_total_bytes(take_object->layout) == 0) {
        end_in_targets(request, false);
    } else if (copying_is_needed(take_object) &&
               copying_create(take_object, request->targets, on_copied, request, &request->on_device, &err) != RDT_OK) {
        rdt_error_prefix(&err, "%s %s", request->what, request->label);
        request_fail(request, &err);
    } else {
        forget(request);
        if (!request->on_device) /* The daemon has met the deadline. Whoever waits for the request limits the copy's time. */
            expiry_remove(&request->conn->calls.expiries, &request->expiry);
        move(request, REQUEST_ARRIVED);
        list_append(&request->conn->arrived, &request->arrived);
        connection_notify(request->conn);
    }
}

/* Copies up to COPY_BYTES more. False: that was the last part. */
static bool copy_some(rdt_request *request)
{
    const rdt_object *object = request->object;
    const struct layout *layout = object->layout;
    uint64_t budget = COPY_BYTES;

    while (budget > 0 && request->copy_tensor < layout->count) {
        uint32_t i = request->copy_tensor;
        uint64_t left = layout_bytes(layout, i) - request->copy_from, part = left < budget ? left : budget;

        if (part > 0)
            layout_gather(layout, i, (const uint8_t *)object->data[i] - layout->offset[i], request->copy_from, part,
                          (uint8_t *)request->targets->data[i] + request->copy_from);
        request->copy_from += part;
        budget -= part;
        if (part == left) {
            request->copy_tensor++;
            request->copy_from = 0;
        }
    }
    return request->copy_tensor < layout->count;
}

/* The daemon has met the deadline, but this program may have been busy since: then the copy has the same time anew. */
static void begin_copy(rdt_request *request)
{
    struct expiry_heap *expiries = &request->conn->calls.expiries;

    if (copying_has_begun(request->on_device) || request->expiry.at_ns > clock_now_ns())
        return;
    expiry_remove(expiries, &request->expiry);
    request->expiry.at_ns = clock_deadline_ns(request->timeout_ns == RDT_NO_WAIT ? CLOCK_NO_WAIT_NS : request->timeout_ns);
    if (expiry_reserve(expiries, 1))
        expiry_add(expiries, &request->expiry);
}

void request_copy_some(rdt_request *request)
{
    rdt *conn = request->conn;
    struct rdt_error err;
    enum rdt_status status;

    if (request->on_device)
        begin_copy(request);
    request->copying = true;
    list_remove(&request->arrived);
    connection_unlock(conn);
    if (request->on_device)
        status = copying_step(request->on_device, &err);
    else
        status = copy_some(request) ? RDT_AGAIN : RDT_OK;
    connection_lock(conn);
    request->copying = false;
    (void)pthread_cond_broadcast(&conn->copied);
    if (request->state == REQUEST_ENDED) {
        drop_object(request);
    } else if (status == RDT_OK) {
        end_in_targets(request, true);
    } else if (status != RDT_AGAIN) {
        on_copied(request, status, &err);
    } else {
        if (!request->on_device || !copying_watch(request->on_device))
            list_append(&conn->arrived, &request->arrived);
        connection_notify(conn); /* this thread may not return to it, so any thread that waits may go on */
    }
}

void request_undo(rdt_request *request)
{
    if (request->state == REQUEST_ENDED)
        request->conn->loop.unseen--;
    request_destroy(request);
}

/* ---- public calls ---- */

void request_destroy(rdt_request *request)
{
    bool started = request->pending.id != 0;

    if (started && request->state != REQUEST_ENDED) {
        request_cancel(request);
        request->conn->loop.unseen--; /* rdt_dispatch need not report a request that its owner destroys */
    }
    while (request->copying)
        (void)pthread_cond_wait(&request->conn->copied, &request->conn->lock);
    drop_hold(request);
    drop_object(request);
    targets_destroy(request->conn, request->targets);
    list_remove(&request->link);
    free(request);
}

/* Errors: INVALID (NULL), FORKED. */
static enum rdt_status check(const rdt_request *request, struct rdt_error *err)
{
    if (!request)
        return rdt_error_set(err, RDT_INVALID, "request is NULL");
    return connection_check(request->conn, err);
}

/* With the lock. */
static enum rdt_status status_of(const rdt_request *request, struct rdt_error *err)
{
    if (request->state != REQUEST_ENDED)
        return rdt_error_set(err, RDT_AGAIN, "the %s %s has not ended", request->what, request->label);
    if (err && request->err.status != RDT_OK)
        *err = request->err;
    return request->err.status;
}

enum rdt_status rdt_request_status(const rdt_request *request, struct rdt_error *err)
{
    enum rdt_status status = check(request, err);

    if (status != RDT_OK)
        return status;
    connection_lock(request->conn);
    status = status_of(request, err);
    connection_unlock(request->conn);
    return status;
}

enum rdt_status rdt_request_take_object(rdt_request *request, rdt_object **object_p, struct rdt_error *err)
{
    enum rdt_status status = check(request, err);

    if (status == RDT_OK)
        status = options_check_out(object_p, "object_p", err);
    if (status != RDT_OK)
        return status;
    connection_lock(request->conn);
    status = status_of(request, err);
    if (status == RDT_OK && is_wait(request))
        status = rdt_error_set(err, RDT_INVALID, "the %s %s brings no object", request->what, request->label);
    if (status == RDT_OK && !request->object)
        status = rdt_error_set(err, RDT_INVALID, "the object of the fetch of %s has been taken already", request->label);
    if (status == RDT_OK) {
        *object_p = request->object;
        request->object = NULL;
    }
    connection_unlock(request->conn);
    return status;
}

void rdt_cancel(rdt_request *request)
{
    rdt *conn;

    if (check(request, NULL) != RDT_OK)
        return;
    conn = request->conn;
    connection_lock(conn);
    request_cancel(request);
    connection_drain(conn);
    connection_unlock(conn);
}

void rdt_request_destroy(rdt_request *request)
{
    rdt *conn = request ? request->conn : NULL;

    if (!conn || connection_is_forked(conn))
        return;
    connection_lock(conn);
    request_destroy(request);
    connection_drain(conn);
    connection_unlock(conn);
}

enum rdt_status rdt_hold_ref(const rdt_request *request, struct rdt_ref *ref_p, struct rdt_error *err)
{
    enum rdt_status status = check(request, err);

    if (status == RDT_OK)
        status = options_check_out(ref_p, "ref_p", err);
    if (status != RDT_OK)
        return status;
    connection_lock(request->conn);
    status = status_of(request, err);
    if (status == RDT_OK && request->kind != REQUEST_HOLD)
        status = rdt_error_set(err, RDT_INVALID, "the %s %s holds nothing", request->what, request->label);
    if (status == RDT_OK)
        *ref_p = request->held;
    connection_unlock(request->conn);
    return status;
}
