/* SPDX-License-Identifier: Apache-2.0 */
/* The single queue that brings reports of plug-ins' threads to the loop, in the order in which they were
 * made, so that the last operation of a connection is reported before its close. Also the calls for
 * connections and operations. */
#include "daemon/plugins/plugin_events.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/plugins/plugin.h"

/* so that the loop reads its sockets in between */
#define EVENTS_PER_ITERATION 512

/* ---- reports of foreign threads ---- */

/* Under the mutex. Returns true if the loop must be woken, which is done after the mutex is released. */
static bool queue_event(struct plugin_events *events, struct plugin_event *event)
{
    bool wake = !events->woken;
    list_append(&events->queue, &event->link);
    events->woken = true;
    return wake;
}

void plugin_events_add(struct plugin_events *events, struct plugin_event *event)
{
    if (queue_event(events, event))
        wake_send(&events->wake);
}

void plugin_events_queue(struct plugin_events *events, struct plugin_event *event)
{
    list_init(&event->link);
    pthread_mutex_lock(&events->mutex);
    plugin_events_add(events, event);
    pthread_mutex_unlock(&events->mutex);
}

static void deliver_events(struct plugin_events *events)
{
    pthread_mutex_lock(&events->mutex);
    for (unsigned i = 0; i < EVENTS_PER_ITERATION; i++) {
        struct list *node = list_first(&events->queue);
        if (!node) {
            events->woken = false;
            pthread_mutex_unlock(&events->mutex);
            return;
        }
        list_remove(node);
        pthread_mutex_unlock(&events->mutex);
        struct plugin_event *event = container_of(node, struct plugin_event, link);
        event->deliver(event);
        pthread_mutex_lock(&events->mutex);
    }
    pthread_mutex_unlock(&events->mutex);
    wake_send(&events->wake);
}

static void on_wake(struct wake *wake)
{
    deliver_events(container_of(wake, struct plugin_events, wake));
}

/* Loop thread: operations that the plug-in has been given and not reported. */
static void count_op(struct transport *transport, int by)
{
    transport->ops_active += (uint64_t)by;
}

static void deliver_done(struct plugin_event *event)
{
    struct plugin_op *op = container_of(event, struct plugin_op, done);
    char *msg = op->msg;
    op->msg = NULL;
    count_op(op->transport, -1);
    if (op->status == RDT_OK)
        op->transport->bytes_done += op->op.piece.bytes;
    op->on_done(op, op->status, msg ? msg : rdt_status_sentence(op->status));
    free(msg);
}

static void host_op_done(struct rdt_op *rdt_op, enum rdt_status status, const char *msg)
{
    struct plugin_op *op = container_of(rdt_op, struct plugin_op, op);
    struct plugin_events *events = op->transport->events;
    char *copy = msg && msg[0] != 0 ? strdup(msg) : NULL;
    pthread_mutex_lock(&events->mutex);
    bool twice = !list_empty(&op->done.link), wake = false;
    if (!twice) {
        op->status = status;
        op->msg = copy;
        wake = queue_event(events, &op->done);
    }
    pthread_mutex_unlock(&events->mutex);
    if (wake)
        wake_send(&events->wake);
    if (twice) {
        log_error("bug in transport %s: it reported the end of an operation twice", op->transport->name);
        free(copy);
    }
}

static void deliver_failed(struct plugin_event *event)
{
    struct plugin_conn *conn = container_of(event, struct plugin_conn, failed);
    if (!conn->disconnecting)
        conn->on_failed(conn, conn->status, conn->msg);
}

static void host_conn_failed(void *conn_ctx, enum rdt_status status, const char *msg)
{
    struct plugin_conn *conn = conn_ctx;
    struct plugin_events *events = conn->transport->events;
    bool wake = false;
    pthread_mutex_lock(&events->mutex);
    if (!conn->has_failed) {
        conn->has_failed = true;
        conn->status = status;
        snprintf(conn->msg, sizeof conn->msg, "%s", msg && msg[0] != 0 ? msg : rdt_status_sentence(status));
        wake = queue_event(events, &conn->failed);
    }
    pthread_mutex_unlock(&events->mutex);
    if (wake)
        wake_send(&events->wake);
}

static void deliver_closed(struct plugin_event *event)
{
    struct plugin_conn *conn = container_of(event, struct plugin_conn, closed);
    if (conn->disconnecting)
        conn->on_closed(conn);
    else
        log_error("bug in transport %s: it reported the close of a connection that was not being closed",
                  conn->transport->name);
}

static void host_conn_closed(void *conn_ctx)
{
    struct plugin_conn *conn = conn_ctx;
    struct plugin_events *events = conn->transport->events;
    pthread_mutex_lock(&events->mutex);
    bool wake = list_empty(&conn->closed.link) && queue_event(events, &conn->closed);
    pthread_mutex_unlock(&events->mutex);
    if (wake)
        wake_send(&events->wake);
}

static void host_conn_address(void *conn_ctx, char *text_p, size_t size)
{
    const struct plugin_conn *conn = conn_ctx;
    text_p[0] = 0;
    if (conn->address)
        conn->address(conn, text_p, size);
}

/* ---- the queue's life ---- */

enum rdt_status plugin_events_init(struct plugin_events *events, uv_loop_t *loop, struct rdt_error *err)
{
    enum rdt_status status = wake_init(&events->wake, loop, on_wake, "the backends", err);
    if (status != RDT_OK)
        return status;
    pthread_mutex_init(&events->mutex, NULL);
    list_init(&events->queue);
    return RDT_OK;
}

static void on_wake_closed(struct wake *wake)
{
    struct plugin_events *events = container_of(wake, struct plugin_events, wake);

    pthread_mutex_destroy(&events->mutex);
    events->on_closed(events);
}

void plugin_events_close(struct plugin_events *events, void (*on_closed)(struct plugin_events *))
{
    events->on_closed = on_closed;
    wake_close(&events->wake, on_wake_closed);
}

void plugin_events_host(struct rdt_host *host)
{
    host->op_done = host_op_done;
    host->conn_failed = host_conn_failed;
    host->conn_closed = host_conn_closed;
    host->conn_address = host_conn_address;
}

/* ---- connections ---- */

static void drop_events(struct plugin_conn *conn)
{
    struct plugin_events *events = conn->transport->events;
    pthread_mutex_lock(&events->mutex);
    list_remove(&conn->failed.link);
    list_remove(&conn->closed.link);
    pthread_mutex_unlock(&events->mutex);
}

enum rdt_status plugin_conn_create(struct plugin_conn *conn, struct transport *transport, const uint8_t peer_uuid[16],
                                   struct rdt_error *err)
{
    assert(conn->on_failed && conn->on_closed);
    if (!transport->available)
        return rdt_error_set(err, RDT_UNSUPPORTED, "%s: %s", transport->name, transport->why_not);
    conn->transport = transport;
    conn->handle = NULL;
    conn->failed.deliver = deliver_failed;
    conn->closed.deliver = deliver_closed;
    list_init(&conn->failed.link);
    list_init(&conn->closed.link);
    conn->has_failed = conn->disconnecting = false;
    void *handle;
    enum rdt_status status = transport->ops.connection_create(transport->instance, peer_uuid, conn, &handle, err);
    if (status != RDT_OK) {
        drop_events(conn);
        return status;
    }
    conn->handle = handle;
    return RDT_OK;
}

void plugin_conn_disconnect(struct plugin_conn *conn)
{
    if (conn->disconnecting)
        return;
    conn->disconnecting = true;
    conn->transport->ops.disconnect(conn->handle);
}

void plugin_conn_destroy(struct plugin_conn *conn)
{
    if (!conn->handle)
        return;
    conn->transport->ops.connection_destroy(conn->handle);
    conn->handle = NULL;
    drop_events(conn); /* after connection_destroy, since the plug-in's threads may report until then */
}

void plugin_conn_describe(const struct plugin_conn *conn, char *text_p, size_t size)
{
    text_p[0] = 0;
    if (conn->handle && conn->transport->ops.describe && conn->transport->ops.describe(conn->handle, text_p, size) != RDT_OK)
        text_p[0] = 0;
    text_p[size - 1] = 0; /* whatever the plug-in wrote */
}

enum rdt_status plugin_conn_trouble(const struct plugin_conn *conn, char *text_p, size_t size)
{
    enum rdt_status status =
        conn->handle && conn->transport->ops.trouble ? conn->transport->ops.trouble(conn->handle, text_p, size) : RDT_AGAIN;
    if (status == RDT_AGAIN)
        text_p[0] = 0;
    text_p[size - 1] = 0; /* whatever the plug-in wrote */
    return status;
}

const char *plugin_conn_queue(const struct plugin_conn *conn, const char *memory_kind, const char *device)
{
    return conn->handle && conn->transport->ops.queue ? conn->transport->ops.queue(conn->handle, memory_kind, device) : NULL;
}

uint32_t plugin_conn_pieces(const struct plugin_conn *conn, const char *memory_kind)
{
    uint32_t most =
        conn->handle && conn->transport->ops.max_pieces ? conn->transport->ops.max_pieces(conn->handle, memory_kind) : 1;
    return most > 1 ? most : 1;
}

/* ---- operations ---- */

static void op_begin(struct plugin_op *op, struct transport *transport)
{
    assert(op->on_done);
    op->transport = transport;
    op->done.deliver = deliver_done;
    list_init(&op->done.link);
    op->status = RDT_OK;
    op->msg = NULL;
    memset(op->op.priv, 0, sizeof op->op.priv);
    count_op(transport, 1);
}

typedef enum rdt_status (*post_fn)(void *conn, struct rdt_op *op, struct rdt_error *err);

static enum rdt_status post(struct plugin_conn *conn, struct plugin_op *op, post_fn post_op, const char *what,
                            struct rdt_error *err)
{
    struct transport *transport = conn->transport;
    if (!post_op)
        return rdt_error_set(err, RDT_UNSUPPORTED, "%s cannot %s", transport->name, what);
    op_begin(op, transport);
    enum rdt_status status = post_op(conn->handle, &op->op, err);
    if (status != RDT_OK)
        count_op(transport, -1);
    return status;
}

enum rdt_status plugin_op_send(struct plugin_conn *conn, struct plugin_op *op, struct rdt_error *err)
{
    return post(conn, op, conn->transport->ops.post_send, "send", err);
}

enum rdt_status plugin_op_recv(struct plugin_conn *conn, struct plugin_op *op, struct rdt_error *err)
{
    return post(conn, op, conn->transport->ops.post_recv, "receive", err);
}

enum rdt_status plugin_op_read(struct plugin_conn *conn, struct plugin_op *op, struct rdt_error *err)
{
    return post(conn, op, conn->transport->ops.post_read, "read", err);
}

static bool has_ended(const struct transport *transport, const struct plugin_op *op)
{
    pthread_mutex_lock(&transport->events->mutex);
    bool ended = !list_empty(&op->done.link);
    pthread_mutex_unlock(&transport->events->mutex);
    return ended;
}

/* The operation may end during the call: a plug-in looks it up before it cancels it. */
void plugin_op_cancel(struct plugin_conn *conn, struct plugin_op *op)
{
    if (conn->transport->ops.cancel && !has_ended(conn->transport, op))
        conn->transport->ops.cancel(conn->handle, &op->op);
}
