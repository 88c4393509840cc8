/* SPDX-License-Identifier: Apache-2.0 */
#include "resume.h"

#include <stdio.h>
#include <string.h>

#include "fetched.h"
#include "memory/batch.h"
#include "memory/loans.h"
#include "memory/mappers.h"
#include "memory/room.h"
#include "note.h"
#include "request.h"
#include "session/events.h"
#include "session/socket.h"

/* ---- HELLO ---- */

void resume_fill_hello(const rdt *conn, Rdt__Pb__Hello *request_p)
{
    rdt__pb__hello__init(request_p);
    request_p->protocol_min = RDT_PROTOCOL_MIN;
    request_p->protocol_max = RDT_PROTOCOL_MAX;
    request_p->client_name = (char *)conn->name;
    request_p->library_version = (char *)RDT_VERSION;
    request_p->tensor_runs = true;
    request_p->answer_fds = room_most_fds();
}

enum rdt_status resume_read_hello(rdt *conn, const Rdt__Pb__HelloReply *reply, struct rdt_error *err)
{
    struct rdt_node_info *node = &conn->node;

    if (reply->protocol < RDT_PROTOCOL_MIN || reply->protocol > RDT_PROTOCOL_MAX)
        return rdt_error_set(err, RDT_PROTOCOL, "rdtd %s speaks protocol %u, librdt %s speaks %u to %u", reply->daemon_version,
                             reply->protocol, RDT_VERSION, RDT_PROTOCOL_MIN, RDT_PROTOCOL_MAX);
    if (reply->node_uuid.len != sizeof node->node || reply->boot_id.len != sizeof node->boot_id)
        return rdt_error_set(err, RDT_PROTOCOL, "rdtd's node uuid has %zu bytes, its boot id %zu", reply->node_uuid.len,
                             reply->boot_id.len);
    memcpy(node->node, reply->node_uuid.data, sizeof node->node);
    memcpy(node->boot_id, reply->boot_id.data, sizeof node->boot_id);
    (void)snprintf(node->address, sizeof node->address, "%s", reply->node_address);
    (void)snprintf(node->daemon_version, sizeof node->daemon_version, "%s", reply->daemon_version);
    (void)snprintf(node->tenant, sizeof node->tenant, "%s", reply->tenant);
    node->session = reply->session_id;
    node->uid = reply->uid;
    conn->can.loan_flags =
        (reply->immutable_loans ? RDT_PUT_IMMUTABLE : 0) | (reply->detached_loans ? RDT_PUT_DETACHED | RDT_PUT_REPLACE : 0);
    conn->can.abilities = (reply->growing_parts ? CONNECTION_GROWS_PARTS : 0) | (reply->hands_out ? CONNECTION_HANDS_OUT : 0);
    conn->session.kept = reply->session_token.len == sizeof conn->session.token && reply->restart_grace_ns > 0;
    if (conn->session.kept) {
        memcpy(conn->session.token, reply->session_token.data, sizeof conn->session.token);
        conn->session.grace_ns = reply->restart_grace_ns;
    }
    return RDT_OK;
}

/* ---- RESUME ---- */

struct belongings { /* what this process still has of the session */
    struct id_list holds, remote_holds, regions;
    struct copying_writes writes;
};

static void belongings_fini(struct belongings *all)
{
    ids_fini(&all->holds);
    ids_fini(&all->remote_holds);
    ids_fini(&all->regions);
    ids_fini(&all->writes.holds);
    ids_fini(&all->writes.regions);
    ids_fini(&all->writes.from);
    ids_fini(&all->writes.to);
}

static bool list_belongings(rdt *conn, struct belongings *all_p)
{
    bool ok = memory_list_own(&conn->memory, &all_p->regions) && copying_list_writes(conn, &all_p->writes);

    list_each (const rdt_object, object, &conn->objects, link)
        ok = ok && (object->hold == 0 || ids_append(&all_p->holds, object->hold));
    list_each (const rdt_request, request, &conn->requests, link)
        if (request->kind == REQUEST_HOLD && (request->holds || request->state == REQUEST_RUNNING))
            ok = ok && ids_append(&all_p->remote_holds, request->pending.id);
    return ok;
}

static void lose(rdt *conn, const char *what, const struct rdt_error *why)
{
    struct rdt_error err;

    (void)rdt_error_set(&err, RDT_RESTARTED, "rdtd at %s restarted, and %s%s%s", conn->path, what, why ? ": " : "",
                        why ? why->msg : "");
    connection_lose(conn, &err);
}

static bool has_hold(const rdt *conn, uint64_t hold)
{
    list_each (const rdt_object, object, &conn->objects, link)
        if (object->hold == hold)
            return true;
    return false;
}

static bool has_remote_hold(const rdt *conn, uint64_t id)
{
    list_each (const rdt_request, request, &conn->requests, link)
        if (request->pending.id == id && request->holds)
            return true;
    return false;
}

/* What was given back while RESUME was on its way is not missed. Neither are regions of puts without an answer, which may
 * belong to their objects, and loans whose objects have ended. */
static bool misses_nothing(rdt *conn, const Rdt__Pb__ResumeReply *reply)
{
    for (size_t i = 0; i < reply->n_holds; i++)
        if (has_hold(conn, reply->holds[i]))
            return false;
    for (size_t i = 0; i < reply->n_remote_holds; i++)
        if (has_remote_hold(conn, reply->remote_holds[i]))
            return false;
    for (size_t i = 0; i < reply->n_regions; i++)
        if (!loans_on_missing(conn, reply->regions[i]) && memory_has_own(&conn->memory, reply->regions[i]))
            return false;
    return true;
}

static void watch_again(rdt *conn)
{
    Rdt__Pb__Watch request = RDT__PB__WATCH__INIT;

    if (conn->watch.kinds == 0)
        return;
    events_go_on(conn);
    request.kinds = conn->watch.kinds;
    (void)note_send(conn, RDT_MSG_WATCH, &request.base, false, NULL); /* without memory for it there are no more events */
}

static void on_lost(rdt *conn, struct pending *pending, const struct rdt_error *why) {}

static void on_resume_answer(rdt *conn, struct pending *pending, struct frame *frame)
{
    Rdt__Pb__ResumeReply *reply;
    struct rdt_error err;

    if (frame->flags & FRAME_ERROR) {
        (void)connection_error_reply(frame, &err);
        lose(conn, "did not continue this session", &err);
        return;
    }
    reply = rdt__pb__resume_reply__unpack(NULL, frame->length, frame->payload);
    if (!reply) {
        lose(conn, "its answer to RESUME cannot be read", NULL);
    } else if (!misses_nothing(conn, reply)) {
        lose(conn, "lost a part of what this session had", NULL);
    } else {
        conn->calls.abandoned.count = 0;
        connection_up(conn);
        watch_again(conn);
    }
    if (reply)
        rdt__pb__resume_reply__free_unpacked(reply, NULL);
}

static void send_resume(rdt *conn)
{
    static const struct pending_ops ops = {on_resume_answer, on_lost, NULL};
    Rdt__Pb__Resume request = RDT__PB__RESUME__INIT;
    struct belongings all = {0};
    struct rdt_error err = {.status = RDT_NO_MEMORY, .msg = "there is no memory for the list"};
    enum rdt_status status = RDT_NO_MEMORY;

    if (list_belongings(conn, &all)) {
        request.holds = all.holds.ids;
        request.n_holds = all.holds.count;
        request.remote_holds = all.remote_holds.ids;
        request.n_remote_holds = all.remote_holds.count;
        request.regions = all.regions.ids;
        request.n_regions = all.regions.count;
        request.abandoned_puts = conn->calls.abandoned.ids;
        request.n_abandoned_puts = conn->calls.abandoned.count;
        request.write_holds = all.writes.holds.ids;
        request.n_write_holds = all.writes.holds.count;
        request.write_regions = all.writes.regions.ids;
        request.n_write_regions = all.writes.regions.count;
        request.write_from = all.writes.from.ids;
        request.n_write_from = all.writes.from.count;
        request.write_to = all.writes.to.ids;
        request.n_write_to = all.writes.to.count;
        status = connection_shake(conn, RDT_MSG_RESUME, &request.base, &ops, &err);
    }
    belongings_fini(&all);
    if (status != RDT_OK)
        lose(conn, "this process could not say what it has", &err);
}

/* ---- the way back to the session ---- */

static void on_welcome(rdt *conn, const Rdt__Pb__HelloReply *reply)
{
    bool same_daemon = reply->boot_id.len == sizeof conn->node.boot_id &&
                       memcmp(reply->boot_id.data, conn->node.boot_id, sizeof conn->node.boot_id) == 0;
    struct rdt_error err;

    if (!reply->resumed && same_daemon) {
        (void)rdt_error_set(&err, RDT_DISCONNECTED, "the daemon closed the connection");
        connection_lose(conn, &err);
    } else if (!reply->resumed || reply->session_id != conn->node.session) {
        lose(conn, "no longer has this session", NULL);
    } else if (resume_read_hello(conn, reply, &err) != RDT_OK) {
        lose(conn, "did not continue this session", &err);
    } else {
        mapper_devices_untold(conn);
        socket_move(conn, CONNECTION_RESUMING);
        send_resume(conn);
    }
}

static void on_hello_answer(rdt *conn, struct pending *pending, struct frame *frame)
{
    Rdt__Pb__HelloReply *reply;
    struct rdt_error err;

    if (frame->flags & FRAME_ERROR) {
        (void)connection_error_reply(frame, &err);
        if (err.status == RDT_SHUTTING_DOWN || err.status == RDT_AGAIN)
            connection_hang_up(conn, &err); /* the one after it may take the session */
        else
            lose(conn, "did not continue this session", &err);
        return;
    }
    reply = rdt__pb__hello_reply__unpack(NULL, frame->length, frame->payload);
    if (!reply) {
        lose(conn, "its answer to HELLO cannot be read", NULL);
        return;
    }
    on_welcome(conn, reply);
    rdt__pb__hello_reply__free_unpacked(reply, NULL);
}

void resume_on_dialled(rdt *conn)
{
    static const struct pending_ops ops = {on_hello_answer, on_lost, NULL};
    Rdt__Pb__Hello request;
    struct rdt_error err;

    resume_fill_hello(conn, &request);
    request.session_token = (ProtobufCBinaryData){sizeof conn->session.token, conn->session.token};
    if (connection_shake(conn, RDT_MSG_HELLO, &request.base, &ops, &err) != RDT_OK)
        lose(conn, "this process could not greet it", &err);
}

void resume_on_away(rdt *conn)
{
    room_forget(conn);
    memory_uncache_all(&conn->memory);
    loans_drop_idle(conn);
    batches_fini(conn);
    connection_close_early(&conn->calls.early);
    conn->memory.n_gones = 0;
    connection_forget_released(conn);
}
