/* SPDX-License-Identifier: Apache-2.0 */
#include "note.h"

#include <stdlib.h>

#include "repeat.h"

/* Without a look at the socket now and then, a program that only sends would leave so many answers there that the daemon has to
 * queue them. */
#define MOST_UNREAD 64

struct note {
    struct pending pending;
    struct repeat *repeat;
};

static void finish(rdt *conn, struct note *note)
{
    conn->calls.n_notes--;
    repeat_unref(note->repeat);
    free(note);
}

static void on_frame(rdt *conn, struct pending *pending, struct frame *frame)
{
    finish(conn, container_of(pending, struct note, pending));
}

static void on_lost(rdt *conn, struct pending *pending, const struct rdt_error *why)
{
    finish(conn, container_of(pending, struct note, pending));
}

static void on_resumed(rdt *conn, struct pending *pending)
{
    struct note *note = container_of(pending, struct note, pending);

    if (connection_send_packed(conn, note->repeat->type, pending->id, note->repeat->payload, note->repeat->bytes, NULL) ==
        RDT_OK)
        pending_add(&conn->calls.pending, pending);
    else
        finish(conn, note);
}

static const struct pending_ops ops = {on_frame, on_lost, on_resumed};

static struct note *create(rdt *conn, enum rdt_message type, const ProtobufCMessage *message)
{
    struct note *note = malloc(sizeof *note);

    if (!note)
        return NULL;
    note->repeat = repeat_create(conn, (uint16_t)type, message, false);
    if (!note->repeat) {
        free(note);
        return NULL;
    }
    note->pending.ops = &ops;
    note->pending.id = connection_id(conn);
    return note;
}

static enum rdt_status send_with(rdt *conn, enum rdt_message type, uint64_t id, const ProtobufCMessage *message, bool soon,
                                 struct rdt_error *err)
{
    return soon ? connection_release(conn, (uint16_t)type, id, message, err)
                : connection_send(conn, (uint16_t)type, id, message, true, err);
}

enum rdt_status note_send(rdt *conn, enum rdt_message type, const ProtobufCMessage *message, bool soon, struct rdt_error *err)
{
    struct note *note;
    enum rdt_status status;

    if (!conn->session.kept)
        return send_with(conn, type, 0, message, soon, err);
    note = create(conn, type, message);
    if (!note)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a request");
    conn->calls.n_notes++;
    status = send_with(conn, type, note->pending.id, message, soon, err);
    if (status != RDT_OK) {
        finish(conn, note);
        return status;
    }
    pending_add(&conn->calls.pending, &note->pending);
    if (conn->calls.n_notes % MOST_UNREAD == 0 && !conn->waiters.polling)
        connection_poll(conn);
    return RDT_OK;
}
