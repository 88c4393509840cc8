/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/conn_heap.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#define QUEUE_MAX_BYTES ((size_t)8 << 20) /* of answers that a client has not read */
#define QUEUE_MAX_FDS 256                 /* open in this process for answers that a client has not read */
#define GATHER_BYTES 16384u
#define GATHER_TURNS 8u

/* ---- messages ---- */

void conn_uncharge_frame(struct conn *conn)
{
    size_t bytes = conn->heap.frame;

    conn->heap.frame = 0;
    conn->heap.frame_taken = false;
    account_give(conn->client.account, USAGE_HEAP, bytes);
}

void conn_settle_frame(struct conn *conn)
{
    if (conn->heap.frame_taken && !conn->client.task)
        conn_uncharge_frame(conn);
}

void conn_admit_frame(struct conn *conn)
{
    struct rdt_error err;
    struct frame frame;
    size_t bytes;

    conn_settle_frame(conn); /* the previous large message may have been handled */
    bytes = conn->heap.frame == 0 ? frame_reader_large(&conn->reader) : 0;
    if (bytes <= account_uncounted_bytes(conn->client.account))
        return;
    if (account_take(conn->client.account, USAGE_HEAP, bytes, &err) == RDT_OK) {
        conn->heap.frame = bytes;
        return;
    }
    frame_reader_skip(&conn->reader, &frame);
    rdt_error_prefix(&err, "a message of %zu bytes", bytes);
    client_send_error(&conn->client, frame.type, frame.request_id, &err);
}

/* ---- descriptors ---- */

static bool admit_fds(struct fd_sink *sink, unsigned n)
{
    struct conn *conn = container_of(sink, struct conn, fds.sink);

    return account_check(conn->client.account, USAGE_FDS, n, NULL) == RDT_OK;
}

static void close_fd(struct fd_sink *sink, int take_fd)
{
    struct conn *conn = container_of(sink, struct conn, fds.sink);

    owner_work_close_fd(conn->rpc->owner_work, take_fd, conn->client.account);
}

void conn_forget_sent(struct conn *conn)
{
    account_person(conn->client.account)->share.sent_fds -= conn->fds.sent_n;
    conn->conns->sent_fds -= conn->fds.sent_n;
    conn->fds.sent_n = 0;
    list_remove(&conn->fds.sent);
}

bool conn_settle_sent(struct conn *conn)
{
    int unread = 0;

    if (conn->fds.sent_n > 0 && conn->sock >= 0 && ioctl(conn->sock, SIOCOUTQ, &unread) == 0 && unread > 0)
        return false;
    conn_forget_sent(conn);
    return true;
}

static bool settle_some(struct slice *slice, uint64_t until_ns)
{
    struct conns *conns = container_of(slice, struct conns, settle);

    while (conns->n_settle > 0 && !list_empty(&conns->sent)) {
        struct conn *conn = container_of(list_first(&conns->sent), struct conn, fds.sent);
        conns->n_settle--;
        if (!conn_settle_sent(conn)) {
            list_remove(&conn->fds.sent);
            list_append(&conns->sent, &conn->fds.sent);
        }
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

void conns_start_settling(struct conns *conns)
{
    list_init(&conns->sent);
    conns->settle.run = settle_some;
}

static bool has_room_on_the_way(const struct conn *conn, unsigned n)
{
    uint64_t most = conn->conns->open_files, all = conn->conns->sent_fds + n;
    const struct account_share *share = &account_person(conn->client.account)->share;

    return all <= most - most / 8 || (all <= most && share->sent_fds + n <= most / 64 + RDT_MAX_FRAME_FDS);
}

static bool may_send(struct fd_sink *sink, unsigned n)
{
    struct conn *conn = container_of(sink, struct conn, fds.sink);
    struct conns *conns = conn->conns;

    if (has_room_on_the_way(conn, n) || (conn_settle_sent(conn) && has_room_on_the_way(conn, n)))
        return true;
    if (!slice_waits(&conns->settle)) {
        conns->n_settle = conns->n;
        slice_start(&conn->rpc->deadlines->slices, &conns->settle);
    }
    return false;
}

static void sent(struct fd_sink *sink, unsigned n)
{
    struct conn *conn = container_of(sink, struct conn, fds.sink);

    conn->fds.sent_n += n;
    conn->conns->sent_fds += n;
    account_person(conn->client.account)->share.sent_fds += n;
    if (list_empty(&conn->fds.sent))
        list_append(&conn->conns->sent, &conn->fds.sent);
}

void conn_start_sink(struct conn *conn)
{
    conn->fds.sink = (struct fd_sink){.admit = admit_fds, .close = close_fd, .may_send = may_send, .sent = sent};
    conn->reader.sink = conn->writer.sink = &conn->fds.sink;
}

void conn_charge_fds(struct conn *conn)
{
    unsigned now = conn->reader.n_fds + conn->writer.queued_fds, before = conn->fds.charged;

    conn->fds.charged = now;
    if (now > before)
        account_add(conn->client.account, USAGE_FDS, now - before);
    else if (now < before)
        account_give(conn->client.account, USAGE_FDS, before - now);
}

bool conn_may_read(const struct conn *conn)
{
    const struct owner_work *owner_work = conn->rpc->owner_work;
    const struct account *node = &conn->rpc->objects->accounts->node;
    unsigned pending;

    if (owner_work_is_behind(owner_work, conn->client.account))
        return false;
    pending = owner_work_pending(owner_work);
    return pending == 0 || node->used[USAGE_FDS] + pending + FRAME_FDS_AT_ONCE <= conn->conns->open_files;
}

/* ---- answers ---- */

void conn_charge_queue(struct conn *conn)
{
    size_t now = conn->writer.queued_bytes > account_uncounted_bytes(conn->client.account) ? conn->writer.queued_bytes : 0,
           before = conn->heap.queue;

    conn->heap.queue = now;
    if (now > before)
        account_add(conn->client.account, USAGE_HEAP, now - before);
    else
        account_give(conn->client.account, USAGE_HEAP, before - now);
    conn_charge_fds(conn);
}

bool conn_has_room(const struct conn *conn, size_t bytes, struct rdt_error *err)
{
    if (bytes <= account_uncounted_bytes(conn->client.account) ||
        account_check(conn->client.account, USAGE_HEAP, bytes, err) == RDT_OK)
        return true;
    rdt_error_prefix(err, "an answer of %zu bytes", bytes);
    return false;
}

bool conn_queue_is_full(const struct conn *conn)
{
    if (conn->heap.queue > 0 && account_check(conn->client.account, USAGE_HEAP, 1, NULL) != RDT_OK)
        return true;
    if (conn->writer.queued_fds > 0 && account_check(conn->client.account, USAGE_FDS, 1, NULL) != RDT_OK)
        return true;
    return conn->writer.queued_bytes > QUEUE_MAX_BYTES || conn->writer.queued_fds > QUEUE_MAX_FDS;
}

bool conn_may_gather(struct conn *conn)
{
    const struct client_task *task = conn->client.task;

    if (task && !task->waits && !conn->turn.held && !conn_drains(conn) && conn->writer.queued_bytes < GATHER_BYTES &&
        conn->writer.queued_fds == 0 && ++conn->turn.gathered < GATHER_TURNS)
        return true;
    conn->turn.gathered = 0;
    return false;
}
