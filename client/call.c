/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for one reply, and giving back what a late reply brings. */
#include "call.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "note.h"
#include "options.h"
#include "proto/verb.h"
#include "proto/wire_ref.h"
#include "repeat.h"
#include "session/clock.h"
#include "session/connection.h"
#include "session/events.h"

struct waiting { /* of a call: in the table until its frame has come */
    struct pending pending;
    const struct verb *verb;
    const ProtobufCMessage *request; /* with send_fds the caller's, which is there as long as it waits */
    const int *send_fds;
    unsigned n_send;
    unsigned n_ids; /* request ids that it has, from pending.id on: PUT_MANY has one for each object */
    int64_t start_ns;
    uint64_t sent_on; /* number of the socket; 0: it has not been sent yet */
    bool repeated;    /* it was sent to an earlier daemon too */
    ProtobufCMessage *reply;
    struct call_got got;
    bool done;
    struct rdt_error err; /* status: how it ended */
};

/* Remembers what the session has from now on, before the caller can look at the reply. False: no memory. */
static bool remember_reply(rdt *conn, const struct waiting *waiting)
{
    if (waiting->verb->type == RDT_MSG_WATCH) {
        conn->watch.kinds = ((const Rdt__Pb__Watch *)waiting->request)->kinds;
        events_begin(conn); /* now, because the first events may follow in the same read */
    }
    if ((waiting->verb->type == RDT_MSG_ALLOC || waiting->verb->type == RDT_MSG_IMPORT) &&
        ((const Rdt__Pb__RegionReply *)waiting->reply)->region != 0)
        return ids_append(&conn->memory.unmapped, ((const Rdt__Pb__RegionReply *)waiting->reply)->region);
    return true;
}

static void read_reply(rdt *conn, struct waiting *waiting, struct frame *frame)
{
    waiting->reply = protobuf_c_message_unpack(waiting->verb->reply, NULL, frame->length, frame->payload);
    if (!waiting->reply || !remember_reply(conn, waiting)) {
        (void)rdt_error_set(&waiting->err, waiting->reply ? RDT_NO_MEMORY : RDT_PROTOCOL, "rdtd's answer to %s cannot be read",
                            waiting->verb->name);
        return;
    }
    for (unsigned i = 0; i < frame->nfds; i++)
        waiting->got.fds[waiting->got.n_fds++] = frame_take_fd(frame, i);
}

static bool is_put(const struct waiting *waiting)
{
    return waiting->verb->type == RDT_MSG_PUT || waiting->verb->type == RDT_MSG_PUT_MANY;
}

/* Whether this node's daemon alone carries it out, and not while it is about to end. The next one does. */
static bool waits_for_next(const struct waiting *waiting)
{
    return is_put(waiting) || waiting->verb->type == RDT_MSG_PUBLISH_MANY;
}

/* The request asked an earlier daemon for the end of something that is not there any more: it has had its effect. */
static bool has_ended_it(const struct waiting *waiting)
{
    uint16_t type = waiting->verb->type;

    if (!waiting->repeated || (waiting->err.status != RDT_NOT_FOUND && waiting->err.status != RDT_FREED))
        return false;
    return type == RDT_MSG_FREE || type == RDT_MSG_UNPUBLISH || type == RDT_MSG_WAIT_FREED;
}

static void on_frame(rdt *conn, struct pending *pending, struct frame *frame)
{
    struct waiting *waiting = container_of(pending, struct waiting, pending);

    if (frame->flags & FRAME_ERROR) {
        (void)connection_error_reply(frame, &waiting->err);
        if (waiting->err.status == RDT_SHUTTING_DOWN && conn->session.kept && waits_for_next(waiting)) {
            waiting->err.status = RDT_OK;
            pending_add(&conn->calls.pending, pending);
            return;
        }
        if (has_ended_it(waiting)) {
            waiting->err.status = RDT_OK;
            waiting->reply = protobuf_c_message_unpack(waiting->verb->reply, NULL, 0, NULL);
        }
    } else {
        read_reply(conn, waiting, frame);
    }
    waiting->done = true;
    connection_notify(conn);
}

static void on_resumed(rdt *conn, struct pending *pending)
{
    struct waiting *waiting = container_of(pending, struct waiting, pending);
    bool in_many = waiting->verb->type == RDT_MSG_IMPORT && ((const Rdt__Pb__Import *)waiting->request)->number != 0;
    enum rdt_status status = repeat_allowed(waiting->verb, waiting->sent_on, &waiting->err);

    if (status == RDT_OK && in_many) /* the messages before it have ended with the daemon */
        status = rdt_error_set(&waiting->err, RDT_RESTARTED, "rdtd restarted while memory was imported in several messages");
    if (status == RDT_OK)
        status = repeat_message(conn, waiting->verb->type, pending->id, waiting->request, waiting->start_ns, waiting->send_fds,
                                waiting->n_send, &waiting->err);
    if (status == RDT_OK) {
        waiting->repeated |= waiting->sent_on != 0;
        waiting->sent_on = conn->socket.n;
        pending_add(&conn->calls.pending, pending);
        return;
    }
    waiting->done = true;
    connection_notify(conn);
}

static void on_lost(rdt *conn, struct pending *pending, const struct rdt_error *why)
{
    struct waiting *waiting = container_of(pending, struct waiting, pending);

    /* The reason of a loss during HELLO is the daemon's answer to it, for example DENIED. Later it only explains the loss. */
    if (waiting->verb->type == RDT_MSG_HELLO)
        waiting->err = *why;
    else
        (void)connection_lost_error(conn, &waiting->err);
    if (why->status == RDT_LIMIT) /* this process's own limit on fds ended the connection */
        waiting->err.status = RDT_LIMIT;
    waiting->done = true;
    connection_notify(conn);
}

static const struct pending_ops ops = {on_frame, on_lost, on_resumed};

/* ---- calls that nobody waits for any more ---- */

struct release { /* a RELEASE_REGION of a region whose mapping is cached */
    struct pending pending;
    uint64_t region;
};

static void end_release(rdt *conn, struct pending *pending, bool kept)
{
    struct release *release = container_of(pending, struct release, pending);

    if (!kept)
        memory_uncache(&conn->memory, release->region);
    free(release);
}

static void on_release_answered(rdt *conn, struct pending *pending, struct frame *frame)
{
    Rdt__Pb__RegionReleased *reply =
        frame->flags & FRAME_ERROR ? NULL : rdt__pb__region_released__unpack(NULL, frame->length, frame->payload);
    bool kept = reply && reply->keep_mapped;

    if (reply)
        rdt__pb__region_released__free_unpacked(reply, NULL);
    end_release(conn, pending, kept);
}

static void on_release_lost(rdt *conn, struct pending *pending, const struct rdt_error *why)
{
    end_release(conn, pending, false);
}

/* RESUME did not name the region, which ended it. */
static void on_release_resumed(rdt *conn, struct pending *pending)
{
    end_release(conn, pending, false);
}

static const struct pending_ops release_ops = {on_release_answered, on_release_lost, on_release_resumed};

/* The daemon may have kept the region for this process, so its mapping stays unless the late answer says otherwise. */
static void await_release(rdt *conn, uint64_t id, const Rdt__Pb__ReleaseRegion *request)
{
    struct release *release = request->keep_mapped ? malloc(sizeof *release) : NULL;

    if (!release)
        return; /* without memory the mapping may stay until the session ends */
    *release = (struct release){{.id = id, .ops = &release_ops}, request->region};
    pending_add(&conn->calls.pending, &release->pending);
}

/* A LOOKUP with leases, which nobody else would end before their time. */
static void on_leases_answered(rdt *conn, struct pending *pending, struct frame *frame)
{
    Rdt__Pb__LookupReply *reply =
        frame->flags & FRAME_ERROR ? NULL : rdt__pb__lookup_reply__unpack(NULL, frame->length, frame->payload);
    Rdt__Pb__LeaseEnd request = RDT__PB__LEASE_END__INIT;

    request.nodes = reply ? calloc(reply->n_nodes + 1, sizeof *request.nodes) : NULL;
    if (request.nodes) {
        for (; request.n_nodes < reply->n_nodes; request.n_nodes++)
            request.nodes[request.n_nodes] = reply->nodes[request.n_nodes]->node;
        request.generation = reply->generation;
        request.n_generation = reply->n_generation;
        request.at = reply->at;
        request.n_at = reply->n_at;
        call_end_leases(conn, &request);
    }
    free(request.nodes);
    if (reply)
        rdt__pb__lookup_reply__free_unpacked(reply, NULL);
    free(pending);
}

static void on_leases_lost(rdt *conn, struct pending *pending, const struct rdt_error *why)
{
    free(pending);
}

static void on_leases_resumed(rdt *conn, struct pending *pending)
{
    free(pending);
}

static const struct pending_ops lease_ops = {on_leases_answered, on_leases_lost, on_leases_resumed};

void call_end_leases(rdt *conn, const Rdt__Pb__LeaseEnd *request)
{
    (void)connection_send(conn, RDT_MSG_LEASE_END, connection_id(conn), &request->base, true, NULL);
}

static void await_leases(rdt *conn, uint64_t id)
{
    struct pending *pending = malloc(sizeof *pending);

    if (!pending)
        return;
    *pending = (struct pending){.id = id, .ops = &lease_ops};
    pending_add(&conn->calls.pending, pending);
}

/* Tells the daemon to end the request, because nobody waits for its answer any more. */
static void cancel(rdt *conn, const struct waiting *waiting)
{
    Rdt__Pb__CancelRequest request = RDT__PB__CANCEL_REQUEST__INIT;

    if (is_put(waiting) && conn->session.kept && waiting->sent_on != 0)
        for (unsigned i = 0; i < waiting->n_ids; i++) /* without memory the object may stay until the session ends */
            (void)ids_append(&conn->calls.abandoned, waiting->pending.id + i);
    if (waiting->verb->type == RDT_MSG_RELEASE_REGION)
        await_release(conn, waiting->pending.id, (const Rdt__Pb__ReleaseRegion *)waiting->request);
    if (waiting->verb->type == RDT_MSG_LOOKUP && ((const Rdt__Pb__Lookup *)waiting->request)->lease_ns > 0)
        await_leases(conn, waiting->pending.id);
    if (!(waiting->verb->properties & VERB_CANCELLABLE))
        return;
    request.request_id = waiting->pending.id;
    (void)connection_send(conn, RDT_MSG_CANCEL_REQUEST, 0, &request.base, true, NULL);
}

/* Says what a call waited for in vain. */
static void set_timed_out(const rdt *conn, struct waiting *waiting)
{
    double seconds = (double)(clock_now_ns() - waiting->start_ns) / 1e9;

    if (conn->state != CONNECTION_UP)
        (void)rdt_error_set(&waiting->err, RDT_TIMED_OUT,
                            "rdtd did not answer %s within %.3f s: it ended, and has not come back yet", waiting->verb->name,
                            seconds);
    else if (waiting->verb->properties & VERB_WAITS)
        (void)rdt_error_set(&waiting->err, RDT_TIMED_OUT, "%s within %.3f s, and rdtd has not said why" CALL_ADVICE,
                            waiting->verb->unmet, seconds);
    else
        (void)rdt_error_set(&waiting->err, RDT_TIMED_OUT, "rdtd did not answer %s within %.3f s" CALL_ADVICE,
                            waiting->verb->name, seconds);
}

/* With the lock. */
static void wait_for(rdt *conn, struct waiting *waiting, int64_t deadline_ns)
{
    enum rdt_status status = RDT_OK;

    while (!waiting->done && status != RDT_TIMED_OUT && status != RDT_CANCELLED)
        status = connection_step(conn, deadline_ns);
    if (waiting->done)
        return;
    (void)pending_take(&conn->calls.pending, waiting->pending.id);
    cancel(conn, waiting);
    if (status == RDT_CANCELLED)
        (void)rdt_error_set(&waiting->err, RDT_CANCELLED, "the call was interrupted while it waited for the answer to %s",
                            waiting->verb->name);
    else
        set_timed_out(conn, waiting);
}

void call_got_close(struct call_got *got)
{
    while (got->n_fds > 0)
        (void)close(got->fds[--got->n_fds]);
}

/* Sends the request. It must be the last call of its thread until wait_for that can move `waiting`. */
static enum rdt_status begin(rdt *conn, struct waiting *waiting, struct rdt_error *err)
{
    enum rdt_status status;

    connection_lock(conn);
    waiting->pending.id = connection_ids(conn, waiting->n_ids);
    waiting->start_ns = clock_now_ns();
    waiting->sent_on = repeat_socket(conn);
    if (waiting->verb->type == RDT_MSG_WATCH)
        conn->watch.asked = waiting->pending.id;
    status = connection_send_fds(conn, waiting->verb->type, waiting->pending.id, waiting->request, waiting->send_fds,
                                 waiting->n_send, err);
    if (status == RDT_OK)
        pending_add(&conn->calls.pending, &waiting->pending);
    connection_unlock(conn);
    return status;
}

/* The result of a request that has ended. */
static enum rdt_status result_of(struct waiting *waiting, ProtobufCMessage **reply_p, struct call_got *got_p,
                                 struct rdt_error *err)
{
    if (waiting->err.status != RDT_OK) {
        call_got_close(&waiting->got);
        protobuf_c_message_free_unpacked(waiting->reply, NULL);
        if (err)
            *err = waiting->err;
        return waiting->err.status;
    }
    *got_p = waiting->got;
    if (reply_p)
        *reply_p = waiting->reply;
    else
        protobuf_c_message_free_unpacked(waiting->reply, NULL);
    return RDT_OK;
}

enum rdt_status call_many(rdt *conn, enum rdt_message type, const ProtobufCMessage *request, const int *send_fds,
                          unsigned n_send, int64_t deadline_ns, ProtobufCMessage **reply_p, struct call_got *got_p,
                          struct rdt_error *err)
{
    struct waiting waiting = {
        .pending.ops = &ops, .verb = verb_find(type), .request = request, .send_fds = send_fds, .n_send = n_send, .n_ids = 1};
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK)
        status = begin(conn, &waiting, err);
    if (status != RDT_OK)
        return status;
    connection_lock(conn);
    wait_for(conn, &waiting, deadline_ns);
    connection_unlock(conn);
    return result_of(&waiting, reply_p, got_p, err);
}

enum rdt_status call_begin(rdt *conn, enum rdt_message type, const ProtobufCMessage *request, const int *send_fds,
                           unsigned n_send, unsigned n_ids, struct waiting **waiting_p, struct rdt_error *err)
{
    struct waiting *waiting = calloc(1, sizeof *waiting);
    enum rdt_status status;

    if (!waiting)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a call");
    *waiting = (struct waiting){.pending.ops = &ops,
                                .verb = verb_find(type),
                                .request = request,
                                .send_fds = send_fds,
                                .n_send = n_send,
                                .n_ids = n_ids};
    status = begin(conn, waiting, err);
    if (status == RDT_OK)
        *waiting_p = waiting;
    else
        free(waiting);
    return status;
}

enum rdt_status call_end(rdt *conn, struct waiting *take_waiting, int64_t deadline_ns, ProtobufCMessage **reply_p,
                         struct rdt_error *err)
{
    struct call_got got = {.n_fds = 0};
    enum rdt_status status;

    connection_lock(conn);
    wait_for(conn, take_waiting, deadline_ns);
    connection_unlock(conn);
    status = result_of(take_waiting, reply_p, &got, err);
    if (status == RDT_OK)
        call_got_close(&got);
    free(take_waiting);
    return status;
}

enum rdt_status call_fds(rdt *conn, enum rdt_message type, const ProtobufCMessage *request, int send_fd, int64_t deadline_ns,
                         ProtobufCMessage **reply_p, int *fd_p, struct rdt_error *err)
{
    struct call_got got;
    enum rdt_status status = call_many(conn, type, request, &send_fd, send_fd >= 0 ? 1 : 0, deadline_ns, reply_p, &got, err);

    if (status != RDT_OK)
        return status;
    if (fd_p)
        *fd_p = got.n_fds > 0 ? got.fds[0] : -1;
    for (unsigned i = fd_p ? 1 : 0; i < got.n_fds; i++)
        (void)close(got.fds[i]);
    return RDT_OK;
}

enum rdt_status call(rdt *conn, enum rdt_message type, const ProtobufCMessage *request, int64_t timeout_ns,
                     ProtobufCMessage **reply_p, struct rdt_error *err)
{
    return call_fds(conn, type, request, -1, clock_deadline_ns(timeout_ns), reply_p, NULL, err);
}

enum rdt_status call_list(rdt *conn, Rdt__Pb__List *request, int64_t timeout_ns, Rdt__Pb__ListReply **page_p,
                          struct rdt_error *err)
{
    ProtobufCMessage *reply;
    Rdt__Pb__ListReply *page;
    enum rdt_status status = call(conn, RDT_MSG_LIST, &request->base, timeout_ns, &reply, err);

    if (status != RDT_OK)
        return status;
    page = (Rdt__Pb__ListReply *)reply;
    if (page->next && page->next == request->after) {
        rdt__pb__list_reply__free_unpacked(page, NULL);
        return rdt_error_set(err, RDT_PROTOCOL, "rdtd answered LIST with the same next page twice");
    }
    request->after = page->next;
    *page_p = page;
    return RDT_OK;
}

/* ---- late replies ---- */

static void give_back_region(rdt *conn, const struct frame *frame)
{
    Rdt__Pb__RegionReply *reply = rdt__pb__region_reply__unpack(NULL, frame->length, frame->payload);
    Rdt__Pb__ReleaseRegion release = RDT__PB__RELEASE_REGION__INIT;

    if (!reply)
        return;
    release.region = reply->region;
    release.keep_mapped = memory_is_cached(&conn->memory, reply->region);
    (void)connection_send(conn, RDT_MSG_RELEASE_REGION, 0, &release.base, true, NULL);
    rdt__pb__region_reply__free_unpacked(reply, NULL);
}

static void give_back_object(rdt *conn, const struct frame *frame)
{
    Rdt__Pb__PutReply *reply = rdt__pb__put_reply__unpack(NULL, frame->length, frame->payload);
    Rdt__Pb__Free request = RDT__PB__FREE__INIT;

    if (!reply)
        return;
    request.ref = reply->ref;
    request.unseen = true;
    if (request.ref)
        (void)note_send(conn, RDT_MSG_FREE, &request.base, false, NULL);
    rdt__pb__put_reply__free_unpacked(reply, NULL);
}

static void give_back_objects(rdt *conn, const struct frame *frame)
{
    Rdt__Pb__PutManyReply *reply = rdt__pb__put_many_reply__unpack(NULL, frame->length, frame->payload);
    Rdt__Pb__Free request = RDT__PB__FREE__INIT;
    Rdt__Pb__Ref ref = RDT__PB__REF__INIT;
    size_t at = 0;

    for (size_t i = 0; reply && i < reply->n_generation; i++) {
        size_t bytes = i < reply->n_id_bytes ? reply->id_bytes[i] : 0;
        char id[WIRE_REF_GENERATED_BYTES];

        ids_remove(&conn->calls.abandoned, frame->request_id + i);
        if (bytes > reply->ids.len - at)
            break;
        ref.id = (ProtobufCBinaryData){bytes, reply->ids.data + at};
        at += bytes;
        if (reply->generation[i] == 0)
            continue;
        if (bytes == 0)
            ref.id = (ProtobufCBinaryData){wire_ref_generated_id(reply->generation[i], id), (uint8_t *)id};
        ref.generation = reply->generation[i];
        ref.any_owner = true;
        request.ref = &ref;
        request.unseen = true;
        (void)note_send(conn, RDT_MSG_FREE, &request.base, false, NULL);
    }
    if (reply)
        rdt__pb__put_many_reply__free_unpacked(reply, NULL);
}

static void end_watch(rdt *conn)
{
    Rdt__Pb__Watch request = RDT__PB__WATCH__INIT;

    conn->watch.kinds = 0;
    events_begin(conn);
    (void)connection_send(conn, RDT_MSG_WATCH, 0, &request.base, true, NULL);
}

/* Most of these frames answer messages that were sent without waiting, and need nothing. The others answer calls that ended
 * at their deadline. Their callers were told that they got nothing, so what the reply brings is given back. */
void call_on_late_reply(rdt *conn, struct frame *frame)
{
    ids_remove(&conn->calls.abandoned, frame->request_id);
    if (frame->flags & FRAME_ERROR)
        return;
    switch (frame->type) {
    case RDT_MSG_ALLOC:
    case RDT_MSG_IMPORT:
        give_back_region(conn, frame);
        break;
    case RDT_MSG_PUT:
        give_back_object(conn, frame);
        break;
    case RDT_MSG_PUT_MANY:
        give_back_objects(conn, frame);
        break;
    case RDT_MSG_WATCH:
        if (frame->request_id == conn->watch.asked) /* otherwise a later one has taken its place in the daemon */
            end_watch(conn);
        break;
    default:
        break;
    }
}

enum rdt_status call_wire_ref(const rdt *conn, const struct rdt_ref *ref, Rdt__Pb__Ref *message_p, struct rdt_error *err)
{
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK)
        status = options_check_ref(ref, err);
    if (status == RDT_OK)
        wire_ref_from(ref, message_p);
    return status;
}

void call_free_unseen(rdt *conn, const struct rdt_ref *ref)
{
    Rdt__Pb__Free request = RDT__PB__FREE__INIT;
    Rdt__Pb__Ref message;

    if (call_wire_ref(conn, ref, &message, NULL) != RDT_OK)
        return;
    request.ref = &message;
    request.unseen = true;
    connection_lock(conn);
    (void)note_send(conn, RDT_MSG_FREE, &request.base, true, NULL);
    connection_drain(conn);
    connection_unlock(conn);
}
