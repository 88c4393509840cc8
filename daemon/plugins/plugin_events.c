/* The one queue in which the reports of plug-ins' threads come to the loop: in the order in which they were made, so that a
 * connection's last operation is known to have ended before its close is. And what is reported about: connections and operations. */
#include "daemon/plugins/plugin_events.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/plugins/plugin.h"

/* After so many the loop sees to its sockets again. */
#define EVENTS_PER_TURN 512

/* Each wake-up of the loop costs more than what there is to do about one end, for the sleepers behind it too: its clients, the peer.
 * Where many operations are under way and end fast, a few ends share one: a quarter of those under way, and no more than come in
 * GATHER_NS. (1 MiB a fetch, 32 under way, 5 GB/s: 45 us of the loop's time instead of 90 for each.) */
#define GATHER_AMONG 8 /* under way; else the first end wakes the loop */
#define GATHER_MOST 16
#define GATHER_NS 1000000
#define LOOK_MS 1 /* while they gather the loop looks by itself: the next one may not come */
#define UNGATHERED_MOST 1023 /* looks after one in vain: 1 ms in 50, where each comes after 50 us */

/* ---- reports of foreign threads ---- */

/* Under the mutex. True: the loop must be woken, once the mutex is free. */
static bool queue_event(struct plugin_events *events, struct plugin_event *event)
{
    bool wake = !events->woken;
    list_append(&events->queue, &event->link);
    events->woken = true;
    return wake;
}

/* The same for an operation that has ended well: others may be about to. */
static bool queue_done(struct plugin_events *events, struct plugin_event *event)
{
    if (!events->woken && ++events->gathered < events->gather) {
        list_append(&events->queue, &event->link);
        return false;
    }
    return queue_event(events, event);
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

/* A fetch after the other, beside transfers that stand still, comes fast too, and each that waited would have waited in vain. After
 * each time in vain, in a row, twice as many looks go by before there is another. */
static bool in_vain(struct plugin_events *events, unsigned ended, uint64_t most)
{
    if (events->gather > 0 && ended >= events->gather)
        events->vain = 0;
    else if (events->gather > 0 && most < 2)
        events->ungathered = events->vain = events->vain < UNGATHERED_MOST ? 2 * events->vain + 1 : UNGATHERED_MOST;
    return events->ungathered > 0 && events->ungathered-- > 0;
}

/* How many ends may wait for one another, after a look that found so many. Under the mutex. */
static unsigned may_gather(struct plugin_events *events, unsigned ended)
{
    uint64_t since_ns = events->looked_ns, now_ns, most;
    events->looked_ns = 0;
    if (events->outstanding < GATHER_AMONG)
        return 0;
    events->looked_ns = now_ns = uv_hrtime();
    if (since_ns == 0)
        return 0;
    if (ended == 0) { /* both woken and looking by itself */
        if (now_ns - since_ns > GATHER_NS)
            return 0;
        events->looked_ns = since_ns;
        return events->gather;
    }
    most = GATHER_NS / ((now_ns - since_ns) / ended + 1);
    if (in_vain(events, ended, most))
        return 0;
    if (most > events->outstanding / 4)
        most = events->outstanding / 4;
    return most < 2 ? 0 : most < GATHER_MOST ? (unsigned)most : GATHER_MOST;
}

static void look(struct plugin_events *events);

static void on_look(uv_timer_t *timer)
{
    look(timer->data);
}

static void look(struct plugin_events *events)
{
    unsigned ended = 0;
    pthread_mutex_lock(&events->mutex);
    events->woken = true; /* by ourselves: nobody needs to */
    for (unsigned i = 0; i < EVENTS_PER_TURN; i++) {
        struct list *node = list_first(&events->queue);
        if (!node) {
            unsigned gather = may_gather(events, ended);
            events->woken = false;
            events->gathered = 0;
            events->gather = gather;
            pthread_mutex_unlock(&events->mutex);
            if (gather > 0 && !uv_is_closing((uv_handle_t *)&events->look))
                (void)uv_timer_start(&events->look, on_look, LOOK_MS, 0);
            else
                (void)uv_timer_stop(&events->look);
            return;
        }
        list_remove(node);
        pthread_mutex_unlock(&events->mutex);
        struct plugin_event *event = container_of(node, struct plugin_event, link);
        event->deliver(event);
        ended++;
        pthread_mutex_lock(&events->mutex);
    }
    pthread_mutex_unlock(&events->mutex);
    wake_send(&events->wake);
}

static void on_wake(struct wake *wake)
{
    look(container_of(wake, struct plugin_events, wake));
}

/* Loop thread: an operation is the plug-in's, or is not any more. */
static void count(struct transport *transport, int by)
{
    transport->ops_active += (uint64_t)by;
    transport->events->outstanding += (unsigned)by;
}

static void deliver_done(struct plugin_event *event)
{
    struct plugin_op *op = container_of(event, struct plugin_op, done);
    char *msg = op->msg;
    op->msg = NULL;
    count(op->transport, -1);
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
    bool again = !list_empty(&op->done.link), wake = false;
    if (!again) {
        op->status = status;
        op->msg = copy;
        wake = status == RDT_OK ? queue_done(events, &op->done) : queue_event(events, &op->done);
    }
    pthread_mutex_unlock(&events->mutex);
    if (wake)
        wake_send(&events->wake);
    if (again) {
        log_error("bug in transport %s: an operation ended twice", op->transport->name);
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
        log_error("bug in transport %s: a connection closed that nobody disconnected", conn->transport->name);
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

/* ---- the queue's life ---- */

enum rdt_status plugin_events_init(struct plugin_events *events, uv_loop_t *loop, struct rdt_error *err)
{
    enum rdt_status status = wake_init(&events->wake, loop, on_wake, "the backends", err);
    if (status != RDT_OK)
        return status;
    (void)uv_timer_init(loop, &events->look);
    events->look.data = events;
    pthread_mutex_init(&events->mutex, NULL);
    list_init(&events->queue);
    return RDT_OK;
}

static void handle_closed(struct plugin_events *events)
{
    if (--events->open_handles > 0)
        return;
    pthread_mutex_destroy(&events->mutex);
    events->on_closed(events);
}

static void on_wake_closed(struct wake *wake)
{
    handle_closed(container_of(wake, struct plugin_events, wake));
}

static void on_look_closed(uv_handle_t *look)
{
    handle_closed(look->data);
}

void plugin_events_close(struct plugin_events *events, void (*on_closed)(struct plugin_events *))
{
    events->on_closed = on_closed;
    events->open_handles = 2;
    wake_close(&events->wake, on_wake_closed);
    uv_close((uv_handle_t *)&events->look, on_look_closed);
}

void plugin_events_host(struct rdt_host *host)
{
    host->op_done = host_op_done;
    host->conn_failed = host_conn_failed;
    host->conn_closed = host_conn_closed;
    plugin_group_host(host);
    plugin_memory_host(host);
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
    drop_events(conn); /* after it: the plug-in's threads report until then */
}

void plugin_conn_describe(const struct plugin_conn *conn, char *text_p, size_t size)
{
    text_p[0] = 0;
    if (conn->handle && conn->transport->ops.describe && conn->transport->ops.describe(conn->handle, text_p, size) != RDT_OK)
        text_p[0] = 0;
    text_p[size - 1] = 0; /* whatever a plug-in takes for text */
}

const char *plugin_conn_queue(const struct plugin_conn *conn, const char *memory_kind, const char *device)
{
    return conn->handle && conn->transport->ops.queue ? conn->transport->ops.queue(conn->handle, memory_kind, device) : NULL;
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
    count(transport, 1);
}

typedef enum rdt_status (*post_fn)(void *conn, struct rdt_op *op, struct rdt_error *err);

enum rdt_status plugin_group_broadcast(struct plugin_group *group, uint32_t root, struct plugin_op *op, struct rdt_error *err)
{
    struct transport *transport = group->transport;
    if (!transport->ops.post_broadcast)
        return rdt_error_set(err, RDT_UNSUPPORTED, "%s has no broadcast of its own", transport->name);
    op_begin(op, transport);
    enum rdt_status status = transport->ops.post_broadcast(group->handle, root, &op->op, err);
    if (status != RDT_OK)
        count(transport, -1);
    return status;
}

static enum rdt_status post(struct plugin_conn *conn, struct plugin_op *op, post_fn post_op, const char *what,
                            struct rdt_error *err)
{
    struct transport *transport = conn->transport;
    if (!post_op)
        return rdt_error_set(err, RDT_UNSUPPORTED, "%s cannot %s", transport->name, what);
    op_begin(op, transport);
    enum rdt_status status = post_op(conn->handle, &op->op, err);
    if (status != RDT_OK)
        count(transport, -1);
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

/* It may end right now: a plug-in looks an op up before it cancels it. */
void plugin_op_cancel(struct plugin_conn *conn, struct plugin_op *op)
{
    if (conn->transport->ops.cancel && !has_ended(conn->transport, op))
        conn->transport->ops.cancel(conn->handle, &op->op);
}

void plugin_group_cancel_broadcast(struct plugin_group *group, struct plugin_op *op)
{
    if (group->transport->ops.cancel_broadcast && !has_ended(group->transport, op))
        group->transport->ops.cancel_broadcast(group->handle, &op->op);
}
