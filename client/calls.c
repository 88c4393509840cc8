/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that consist of one message, and of its reply if it has one: ping, free, the ends of pending puts, waits, holds and
 * broadcasts, loading and unloading a backend. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "note.h"
#include "options.h"
#include "proto/boxes.h"
#include "proto/wire_limits.h"
#include "proto/wire_ref.h"
#include "rdt.pb-c.h"
#include "rdt_plan.h"
#include "request.h"
#include "session/clock.h"
#include "session/connection.h"

static int64_t round_trip_deadline_ns(int64_t timeout_ns)
{
    return timeout_ns == 0 ? clock_deadline_ns(CLOCK_NO_WAIT_NS)
                           : clock_after_answer_ns(clock_deadline_ns(timeout_ns), timeout_ns);
}

/* Returns the time-out as messages carry it: -1 is without end. */
static int64_t wire_timeout_ns(int64_t timeout_ns)
{
    return timeout_ns < 0 ? -1 : timeout_ns;
}

/* Sends the request, and waits for its reply until timeout_ns as rdt.h has it. */
static enum rdt_status round_trip(rdt *conn, enum rdt_message type, const ProtobufCMessage *request, int64_t timeout_ns,
                                  ProtobufCMessage **reply_p, struct rdt_error *err)
{
    return call_fds(conn, type, request, -1, round_trip_deadline_ns(timeout_ns), reply_p, NULL, err);
}

enum rdt_status rdt_ping(rdt *conn, int64_t timeout_ns, struct rdt_error *err)
{
    Rdt__Pb__Ping request = RDT__PB__PING__INIT;

    return round_trip(conn, RDT_MSG_PING, &request.base, timeout_ns, NULL, err);
}

enum rdt_status rdt_free(rdt *conn, const struct rdt_ref *ref, bool force, struct rdt_error *err)
{
    Rdt__Pb__Free request = RDT__PB__FREE__INIT;
    Rdt__Pb__Ref message;
    enum rdt_status status = call_wire_ref(conn, ref, &message, err);

    if (status != RDT_OK)
        return status;
    request.ref = &message;
    request.force = force;
    return call(conn, RDT_MSG_FREE, &request.base, CALL_TIMEOUT_NS, NULL, err);
}

enum rdt_status rdt_drop(rdt *conn, const struct rdt_ref *ref, struct rdt_error *err)
{
    Rdt__Pb__Free request = RDT__PB__FREE__INIT;
    Rdt__Pb__Ref message;
    enum rdt_status status = call_wire_ref(conn, ref, &message, err);

    if (status != RDT_OK)
        return status;
    request.ref = &message;
    connection_lock(conn);
    status = note_send(conn, RDT_MSG_FREE, &request.base, true, err);
    connection_drain(conn);
    connection_unlock(conn);
    return status;
}

enum rdt_status rdt_store(rdt *conn, const struct rdt_ref *ref, int64_t timeout_ns, char *file_p, size_t file_bytes,
                          struct rdt_error *err)
{
    Rdt__Pb__Store request = RDT__PB__STORE__INIT;
    Rdt__Pb__Ref message;
    ProtobufCMessage *reply;
    enum rdt_status status = call_wire_ref(conn, ref, &message, err);

    if (status != RDT_OK)
        return status;
    request.ref = &message;
    request.timeout_ns = wire_timeout_ns(timeout_ns);
    status = round_trip(conn, RDT_MSG_STORE, &request.base, timeout_ns, &reply, err);
    if (status == RDT_OK && file_p && file_bytes > 0)
        (void)snprintf(file_p, file_bytes, "%s", ((const Rdt__Pb__StoreReply *)reply)->file);
    if (status == RDT_OK)
        protobuf_c_message_free_unpacked(reply, NULL);
    return status;
}

/* ---- pending puts ---- */

static enum rdt_status send_ready(rdt *conn, const struct rdt_ref *ref, enum rdt_status how, const char *sentence,
                                  struct rdt_error *err)
{
    Rdt__Pb__Ready request = RDT__PB__READY__INIT;
    Rdt__Pb__Ref message;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && (!ref || ref->is_name || ref->id_bytes == 0 || ref->id_bytes > RDT_MAX_ID_BYTES))
        status = rdt_error_set(err, RDT_INVALID, "this is not the ref of an object that was put on this node");
    if (status != RDT_OK)
        return status;
    wire_ref_from(ref, &message);
    request.ref = &message;
    request.status = how;
    request.message = (char *)(sentence ? sentence : "");
    connection_lock(conn);
    status = note_send(conn, RDT_MSG_READY, &request.base, false, err);
    connection_return(conn);
    if (status == RDT_OK && connection_has_ended(conn))
        status = connection_lost_error(conn, err);
    connection_unlock(conn);
    return status;
}

enum rdt_status rdt_ready(rdt *conn, const struct rdt_ref *ref, struct rdt_error *err)
{
    return send_ready(conn, ref, RDT_OK, NULL, err);
}

enum rdt_status rdt_fail(rdt *conn, const struct rdt_ref *ref, enum rdt_status why, const char *sentence, struct rdt_error *err)
{
    return send_ready(conn, ref, why == RDT_OK ? RDT_OWNER_DIED : why, sentence, err);
}

/* ---- waiting ---- */

/* Adds to a TIMED_OUT what was waited for. The daemon's sentences of other errors name the object themselves. */
static void prefix_timed_out(enum rdt_status status, const char *what, const struct rdt_ref *ref, struct rdt_error *err)
{
    char label[REQUEST_LABEL_BYTES];

    if (status != RDT_TIMED_OUT || !err)
        return;
    request_label(ref, label);
    rdt_error_prefix(err, "waiting for %s %s", label, what);
}

static enum rdt_status wait_freed(rdt *conn, Rdt__Pb__WaitFreed *request, int64_t timeout_ns, struct rdt_error *err)
{
    request->timeout_ns = wire_timeout_ns(timeout_ns);
    return round_trip(conn, RDT_MSG_WAIT_FREED, &request->base, timeout_ns, NULL, err);
}

enum rdt_status rdt_wait_put(rdt *conn, const struct rdt_ref *ref, int64_t timeout_ns, struct rdt_error *err)
{
    Rdt__Pb__Wait request = RDT__PB__WAIT__INIT;
    Rdt__Pb__Ref message;
    enum rdt_status status = call_wire_ref(conn, ref, &message, err);

    if (status != RDT_OK)
        return status;
    request.ref = &message;
    request.timeout_ns = wire_timeout_ns(timeout_ns);
    status = round_trip(conn, RDT_MSG_WAIT, &request.base, timeout_ns, NULL, err);
    prefix_timed_out(status, ref->is_name ? "to be published" : "to be put", ref, err);
    return status;
}

enum rdt_status rdt_wait_freed(rdt *conn, const struct rdt_ref *ref, int64_t timeout_ns, struct rdt_error *err)
{
    Rdt__Pb__WaitFreed request = RDT__PB__WAIT_FREED__INIT;
    Rdt__Pb__Ref message;
    enum rdt_status status = call_wire_ref(conn, ref, &message, err);

    if (status != RDT_OK)
        return status;
    request.ref = &message;
    status = wait_freed(conn, &request, timeout_ns, err);
    prefix_timed_out(status, "to be freed", ref, err);
    return status;
}

/* With the lock: names the range by its region. */
static enum rdt_status find_range(rdt *conn, const void *addr, size_t bytes, Rdt__Pb__WaitFreed *request_p,
                                  struct rdt_error *err)
{
    uintptr_t lo = (uintptr_t)addr;
    const struct mapping *mapping = bytes <= UINTPTR_MAX - lo ? memory_at(&conn->memory, lo, lo + bytes) : NULL;

    if (!mapping || lo < (uintptr_t)mapping->addr || bytes > mapping->bytes - (lo - (uintptr_t)mapping->addr))
        return rdt_error_set(err, RDT_INVALID, "[%p, +%zu) is not within memory from rdt_alloc or rdt_import", addr, bytes);
    request_p->region = mapping->region;
    request_p->generation = mapping->generation;
    request_p->offset = lo - (uintptr_t)mapping->addr;
    request_p->bytes = bytes;
    return RDT_OK;
}

enum rdt_status rdt_wait_freed_range(rdt *conn, const void *addr, size_t bytes, int64_t timeout_ns, struct rdt_error *err)
{
    Rdt__Pb__WaitFreed request = RDT__PB__WAIT_FREED__INIT;
    enum rdt_status status = connection_check(conn, err);

    if (status != RDT_OK)
        return status;
    if (bytes == 0)
        return RDT_OK; /* no object overlaps an empty range */
    connection_lock(conn);
    status = find_range(conn, addr, bytes, &request, err);
    connection_unlock(conn);
    if (status != RDT_OK)
        return status;
    status = wait_freed(conn, &request, timeout_ns, err);
    if (status == RDT_TIMED_OUT)
        rdt_error_prefix(err, "waiting for [%p, +%zu) to be free", addr, bytes);
    return status;
}

/* ---- starting to wait: a request that the daemon's reply ends ---- */

/* Sends the message and starts the request. Frees the request on an error; NULL: there was no memory for it. Takes the lock. */
static enum rdt_status start_wait(rdt_request *take_request, enum rdt_message type, const ProtobufCMessage *message,
                                  rdt_request **request_p, struct rdt_error *err)
{
    struct repeat *repeat;
    enum rdt_status status;
    rdt *conn;

    if (!take_request)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a request");
    conn = take_request->conn;
    status = options_check_out(request_p, take_request->kind == REQUEST_HOLD ? "hold_p" : "request_p", err);
    connection_lock(conn);
    if (status == RDT_OK && !expiry_reserve(&conn->calls.expiries, 1))
        status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a request");
    if (status == RDT_OK) {
        request_start(take_request, round_trip_deadline_ns(take_request->timeout_ns));
        repeat = repeat_create(conn, (uint16_t)type, message, false);
        request_keep(take_request, repeat);
        repeat_unref(repeat);
        status = connection_send(conn, type, take_request->pending.id, message, false, err);
    }
    if (status == RDT_OK)
        *request_p = take_request;
    else
        request_destroy(take_request);
    connection_unlock(conn);
    return status;
}

/* NULL: no memory. */
static rdt_request *create_wait(rdt *conn, const struct rdt_ref *ref, const char *what, int64_t timeout_ns)
{
    rdt_request *request = request_create(conn, ref, timeout_ns, NULL);

    if (request)
        request_make_wait(request, what);
    return request;
}

enum rdt_status rdt_wait_put_start(rdt *conn, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **request_p,
                                   struct rdt_error *err)
{
    Rdt__Pb__Wait message = RDT__PB__WAIT__INIT;
    Rdt__Pb__Ref wire;
    enum rdt_status status = call_wire_ref(conn, ref, &wire, err);

    if (status != RDT_OK)
        return status;
    message.ref = &wire;
    message.timeout_ns = wire_timeout_ns(timeout_ns);
    return start_wait(create_wait(conn, ref, ref->is_name ? "wait for a version of" : "wait for the put of", timeout_ns),
                      RDT_MSG_WAIT, &message.base, request_p, err);
}

enum rdt_status rdt_wait_freed_start(rdt *conn, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **request_p,
                                     struct rdt_error *err)
{
    Rdt__Pb__WaitFreed message = RDT__PB__WAIT_FREED__INIT;
    Rdt__Pb__Ref wire;
    enum rdt_status status = call_wire_ref(conn, ref, &wire, err);

    if (status != RDT_OK)
        return status;
    message.ref = &wire;
    message.timeout_ns = wire_timeout_ns(timeout_ns);
    return start_wait(create_wait(conn, ref, "wait for the end of", timeout_ns), RDT_MSG_WAIT_FREED, &message.base, request_p,
                      err);
}

enum rdt_status rdt_wait_freed_range_start(rdt *conn, const void *addr, size_t bytes, int64_t timeout_ns,
                                           rdt_request **request_p, struct rdt_error *err)
{
    Rdt__Pb__WaitFreed message = RDT__PB__WAIT_FREED__INIT;
    struct rdt_ref none = {0};
    rdt_request *request;
    enum rdt_status status = connection_check(conn, err);

    if (status != RDT_OK)
        return status;
    if (bytes == 0)
        return rdt_error_set(err, RDT_INVALID, "the range has no bytes");
    connection_lock(conn);
    status = find_range(conn, addr, bytes, &message, err);
    connection_unlock(conn);
    if (status != RDT_OK)
        return status;
    request = create_wait(conn, &none, "wait for the end of what is in", timeout_ns);
    if (request)
        (void)snprintf(request->label, sizeof request->label, "[%p, +%zu)", addr, bytes);
    message.timeout_ns = wire_timeout_ns(timeout_ns);
    return start_wait(request, RDT_MSG_WAIT_FREED, &message.base, request_p, err);
}

/* ---- holds ---- */

enum rdt_status rdt_hand_on(rdt *conn, const struct rdt_ref *ref, int64_t grace_ns, struct rdt_error *err)
{
    Rdt__Pb__Hold message = RDT__PB__HOLD__INIT;
    Rdt__Pb__Ref wire;
    enum rdt_status status = call_wire_ref(conn, ref, &wire, err);

    if (status == RDT_OK && (ref->is_name || ref->generation == 0 || grace_ns <= 0))
        status = rdt_error_set(err, RDT_INVALID, "rdt_hand_on needs the ref of one object, and a grace period above 0");
    if (status != RDT_OK)
        return status;
    message.ref = &wire;
    message.transit_ns = grace_ns;
    return call(conn, RDT_MSG_HOLD, &message.base, CALL_TIMEOUT_NS, NULL, err);
}

static enum rdt_status start_hold(rdt *conn, const struct rdt_ref *ref, int64_t timeout_ns, bool takes_over,
                                  rdt_request **hold_p, struct rdt_error *err)
{
    Rdt__Pb__Hold message = RDT__PB__HOLD__INIT;
    Rdt__Pb__Ref wire;
    rdt_request *request;
    enum rdt_status status = call_wire_ref(conn, ref, &wire, err);

    if (status != RDT_OK)
        return status;
    request = create_wait(conn, ref, "hold of", timeout_ns);
    if (request)
        request_make_hold(request);
    message.ref = &wire;
    message.timeout_ns = wire_timeout_ns(timeout_ns);
    message.takes_over = takes_over;
    return start_wait(request, RDT_MSG_HOLD, &message.base, hold_p, err);
}

enum rdt_status rdt_hold_start(rdt *conn, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **hold_p,
                               struct rdt_error *err)
{
    return start_hold(conn, ref, timeout_ns, false, hold_p, err);
}

enum rdt_status rdt_take_over_start(rdt *conn, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **hold_p,
                                    struct rdt_error *err)
{
    return start_hold(conn, ref, timeout_ns, true, hold_p, err);
}

enum rdt_status rdt_hold(rdt *conn, const struct rdt_ref *ref, int64_t timeout_ns, rdt_request **hold_p, struct rdt_error *err)
{
    rdt_request *request;
    enum rdt_status status = options_check_out(hold_p, "hold_p", err);

    if (status == RDT_OK)
        status = rdt_hold_start(conn, ref, timeout_ns, &request, err);
    if (status != RDT_OK)
        return status;
    status = rdt_wait(conn, &request, 1, 1, RDT_FOREVER, NULL, NULL, err);
    if (status == RDT_OK)
        *hold_p = request;
    else
        rdt_request_destroy(request);
    return status;
}

/* ---- broadcast ---- */

static enum rdt_status fill_broadcast(const rdt *conn, const struct rdt_ref *ref, const char *group, int64_t timeout_ns,
                                      Rdt__Pb__Ref *wire, Rdt__Pb__Broadcast *message, struct rdt_error *err)
{
    enum rdt_status status = call_wire_ref(conn, ref, wire, err);

    if (status == RDT_OK && (!group || !group[0]))
        status = rdt_error_set(err, RDT_INVALID, "a broadcast needs the name of a group");
    if (status == RDT_OK)
        status = options_check_text(group, RDT_MAX_NAME_BYTES, "the group's name", err);
    if (status != RDT_OK)
        return status;
    rdt__pb__broadcast__init(message);
    message->ref = wire;
    message->group = (char *)(uintptr_t)group;
    message->timeout_ns = wire_timeout_ns(timeout_ns);
    return RDT_OK;
}

enum rdt_status rdt_broadcast(rdt *conn, const struct rdt_ref *ref, const char *group, int64_t timeout_ns,
                              struct rdt_error *err)
{
    Rdt__Pb__Broadcast message;
    Rdt__Pb__Ref wire;
    enum rdt_status status = fill_broadcast(conn, ref, group, timeout_ns, &wire, &message, err);

    if (status != RDT_OK)
        return status;
    return round_trip(conn, RDT_MSG_BROADCAST, &message.base, timeout_ns, NULL, err);
}

enum rdt_status rdt_broadcast_start(rdt *conn, const struct rdt_ref *ref, const char *group, int64_t timeout_ns,
                                    rdt_request **request_p, struct rdt_error *err)
{
    Rdt__Pb__Broadcast message;
    Rdt__Pb__Ref wire;
    enum rdt_status status = fill_broadcast(conn, ref, group, timeout_ns, &wire, &message, err);

    if (status != RDT_OK)
        return status;
    return start_wait(create_wait(conn, ref, "broadcast of", timeout_ns), RDT_MSG_BROADCAST, &message.base, request_p, err);
}

/* ---- parts of a version ---- */

static enum rdt_status fill_name(const rdt *conn, const struct rdt_ref *name, Rdt__Pb__Ref *wire, Rdt__Pb__PublishPart *message,
                                 struct rdt_error *err)
{
    enum rdt_status status = call_wire_ref(conn, name, wire, err);

    if (status == RDT_OK && !name->is_name)
        status = rdt_error_set(err, RDT_INVALID, "a part is published under a name: make its ref with rdt_ref_from_name");
    message->name = wire;
    return status;
}

enum rdt_status request_publish_part(rdt *conn, const struct rdt_ref *name, const Rdt__Pb__PublishPart *message,
                                     int64_t timeout_ns, rdt_request **request_p, struct rdt_error *err)
{
    Rdt__Pb__PublishPart filled = *message;
    Rdt__Pb__Ref wire;
    rdt_request *request;
    enum rdt_status status = fill_name(conn, name, &wire, &filled, err);

    if (status != RDT_OK)
        return status;
    request = create_wait(conn, name, "part of", timeout_ns);
    if (request)
        request_make_part(request, message->growing > 0);
    filled.timeout_ns = wire_timeout_ns(timeout_ns);
    return start_wait(request, RDT_MSG_PUBLISH_PART, &filled.base, request_p, err);
}

#define GIVE_UP_NS (INT64_C(60) * 1000000000) /* how long the daemon may look for the name's node, which may restart */

enum rdt_status request_give_up_part(rdt *conn, const struct rdt_ref *name, const Rdt__Pb__PublishPart *message,
                                     enum rdt_status why, const char *sentence, struct rdt_error *err)
{
    Rdt__Pb__PublishPart filled = *message;
    Rdt__Pb__Ref wire;
    enum rdt_status status = fill_name(conn, name, &wire, &filled, err);

    if (status != RDT_OK)
        return status;
    filled.timeout_ns = GIVE_UP_NS;
    filled.gave_up = why == RDT_OK ? RDT_OWNER_DIED : why;
    filled.why = (char *)(sentence ? sentence : "");
    connection_lock(conn);
    status = note_send(conn, RDT_MSG_PUBLISH_PART, &filled.base, false, err);
    connection_unlock(conn);
    return status;
}

static enum rdt_status fill_part(const rdt *conn, const struct rdt_ref *object, const struct rdt_part_options *options,
                                 Rdt__Pb__Ref *wire, Rdt__Pb__PublishPart *message, struct rdt_error *err)
{
    struct rdt_part_options own;
    enum rdt_status status = call_wire_ref(conn, object, wire, err);

    if (status == RDT_OK)
        status = options_copy(&own, sizeof own, options, err);
    if (status == RDT_OK && object->is_name)
        status = rdt_error_set(err, RDT_INVALID, "the part of a version is an object, not a name");
    if (status == RDT_OK && (unsigned)own.visibility > RDT_VISIBLE_TO_ALL)
        status = rdt_error_set(err, RDT_INVALID, "visibility %d is unknown", (int)own.visibility);
    if (status == RDT_OK && own.n_others > 0 && !own.others)
        status = rdt_error_set(err, RDT_INVALID, "others is NULL");
    for (size_t i = 0; i < own.n_others && status == RDT_OK; i++)
        if (!own.others[i] || own.others[i][0] == '\0' || strnlen(own.others[i], RDT_MAX_KEY_BYTES + 1) > RDT_MAX_KEY_BYTES)
            status =
                rdt_error_set(err, RDT_INVALID, "key %zu of others is empty or longer than %u bytes", i, RDT_MAX_KEY_BYTES);
    if (status != RDT_OK)
        return status;
    message->object = wire;
    message->visibility = (Rdt__Pb__Visibility)own.visibility;
    message->others = (char **)own.others;
    message->n_others = own.n_others;
    return RDT_OK;
}

enum rdt_status rdt_publish_part_start(rdt *conn, const struct rdt_ref *name, uint64_t step, uint32_t rank, uint32_t of,
                                       const struct rdt_ref *object, const struct rdt_part_options *options, int64_t timeout_ns,
                                       rdt_request **request_p, struct rdt_error *err)
{
    Rdt__Pb__PublishPart message = RDT__PB__PUBLISH_PART__INIT;
    Rdt__Pb__Ref wire;
    enum rdt_status status = fill_part(conn, object, options, &wire, &message, err);

    if (status != RDT_OK)
        return status;
    message.step = step;
    message.rank = rank;
    message.of = of;
    return request_publish_part(conn, name, &message, timeout_ns, request_p, err);
}

enum rdt_status rdt_part_give_up(rdt *conn, const struct rdt_ref *name, uint64_t step, uint32_t rank, uint32_t of,
                                 enum rdt_status why, const char *sentence, struct rdt_error *err)
{
    Rdt__Pb__PublishPart message = RDT__PB__PUBLISH_PART__INIT;

    message.step = step;
    message.rank = rank;
    message.of = of;
    return request_give_up_part(conn, name, &message, why, sentence, err);
}

enum rdt_status rdt_part_version(const rdt_request *request, uint64_t *version_p, struct rdt_error *err)
{
    enum rdt_status status = rdt_request_status(request, err);

    if (status == RDT_OK && request->kind != REQUEST_PART)
        status = rdt_error_set(err, RDT_INVALID, "the request is not of rdt_publish_part_start");
    if (status == RDT_OK)
        status = options_check_out(version_p, "version_p", err);
    if (status == RDT_OK)
        *version_p = request->version;
    return status;
}

enum rdt_status rdt_publish_part(rdt *conn, const struct rdt_ref *name, uint64_t step, uint32_t rank, uint32_t of,
                                 const struct rdt_ref *object, const struct rdt_part_options *options, int64_t timeout_ns,
                                 uint64_t *version_p, struct rdt_error *err)
{
    rdt_request *request = NULL;
    uint64_t version;
    enum rdt_status status = rdt_publish_part_start(conn, name, step, rank, of, object, options, timeout_ns, &request, err);

    if (status == RDT_OK)
        status = rdt_wait(conn, &request, 1, 1, RDT_FOREVER, NULL, NULL, err);
    if (status == RDT_OK)
        status = rdt_part_version(request, version_p ? version_p : &version, err);
    rdt_request_destroy(request);
    return status;
}

/* ---- backends ---- */

/* The daemon ends the request at its deadline and says what was missing. librdt waits a little longer for that answer. */
#define SLACK_NS INT64_C(2000000000)

static int64_t answer_ns(int64_t timeout_ns)
{
    return timeout_ns < 0 || timeout_ns > INT64_MAX - SLACK_NS ? -1 : timeout_ns + SLACK_NS;
}

enum rdt_status rdt_backend_load(rdt *conn, const char *path, const char *const *settings, int64_t timeout_ns,
                                 struct rdt_error *err)
{
    Rdt__Pb__BackendLoad request = RDT__PB__BACKEND_LOAD__INIT;
    enum rdt_status status = connection_check(conn, err);
    char *real;

    if (status == RDT_OK && !path)
        status = rdt_error_set(err, RDT_INVALID, "the path is NULL");
    if (status != RDT_OK)
        return status;
    real = realpath(path, NULL); /* NULL: this process does not see the file, but the daemon may */
    request.path = real ? real : (char *)path;
    request.settings = (char **)settings;
    while (settings && settings[request.n_settings])
        request.n_settings++;
    request.timeout_ns = timeout_ns;
    status = call(conn, RDT_MSG_BACKEND_LOAD, &request.base, answer_ns(timeout_ns), NULL, err);
    free(real);
    return status;
}

enum rdt_status rdt_backend_unload(rdt *conn, const char *name, int64_t timeout_ns, struct rdt_error *err)
{
    Rdt__Pb__BackendUnload request = RDT__PB__BACKEND_UNLOAD__INIT;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && !name)
        status = rdt_error_set(err, RDT_INVALID, "the name is NULL");
    if (status != RDT_OK)
        return status;
    request.name = (char *)name;
    request.timeout_ns = timeout_ns;
    return call(conn, RDT_MSG_BACKEND_UNLOAD, &request.base, answer_ns(timeout_ns), NULL, err);
}
