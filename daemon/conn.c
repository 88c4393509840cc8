/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/conn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/config/limits.h"
#include "daemon/conn_heap.h"
#include "daemon/conn_identity.h"
#include "daemon/conn_share.h"
#include "daemon/objects/names.h"
#include "daemon/objects/object.h"
#include "daemon/rpc/rpc.h"

#define SHORT_READ_BYTES 16384
#define RETRY_NS 10000000ll
#define RETRY_DOUBLINGS 3u
#define END_DOUBLINGS 7u /* of a session that waits for its client to receive what it was sent */
#define ENDS_PER_TURN 16u

#define TO(state) (1u << (state))

static const struct sm_state states[] = {
    [CONN_GREETING] = {"greeting", TO(CONN_SERVED) | TO(CONN_REFUSED) | TO(CONN_CLOSING)},
    [CONN_SERVED] = {"served", TO(CONN_BROKEN) | TO(CONN_CLOSING)},
    [CONN_REFUSED] = {"refused", TO(CONN_CLOSING)},
    [CONN_BROKEN] = {"broken", TO(CONN_CLOSING)},
    [CONN_CLOSING] = {"closing", 0},
};

static bool is_served(const struct conn *conn)
{
    return conn->sm.state == CONN_SERVED || conn->sm.state == CONN_BROKEN;
}

static void on_socket(uv_poll_t *poll, int status, int events);

static void on_prepare(uv_prepare_t *prepare);

static void on_work_ended(void *arg);

static bool close_some(struct slice *slice, uint64_t until_ns);

static void take_turn(struct conn *conn, bool readable);

void conns_init(struct conns *conns, struct rpc *rpc, uint64_t open_files)
{
    FILE *file = fopen("/proc/sys/kernel/overflowuid", "re");

    *conns = (struct conns){.rpc = rpc, .open_files = open_files, .refusals.every_ns = UINT64_C(1000000000)};
    owner_work_watch(rpc->owner_work, on_work_ended, conns);
    ids_init(&conns->ids, IDS_SESSIONS, IDS_HALF_BITS, IDS_FIRST);
    list_init(&conns->all);
    map_init(&conns->tokens);
    list_init(&conns->unflushed);
    list_init(&conns->ending);
    conns->close.run = close_some;
    conns_start_settling(conns);
    shares_init(conns, take_turn);
    (void)uv_prepare_init(rpc->loop, &conns->prepare);
    (void)uv_prepare_start(&conns->prepare, on_prepare);
    conns->prepare.data = conns;
    busy_poll_init(&rpc->meters.busy_poll, rpc->loop, rpc->options->busy_poll_ns);
    loop_meter_start(&rpc->meters.loop_meter, rpc->loop);
    if (!file || fscanf(file, "%u", &conns->overflow_uid) != 1)
        conns->overflow_uid = 65534;
    if (file)
        (void)fclose(file);
}

/* ---- the end ---- */

static void retry_soon(struct conn *conn, unsigned most_doublings)
{
    (void)deadline_set(conn->rpc->deadlines, &conn->fds.retry, RETRY_NS << conn->fds.retries);
    conn->fds.retries += conn->fds.retries < most_doublings;
}

static void conn_free(struct conn *conn)
{
    struct conns *conns = conn->conns;

    conn_forget_sent(conn);
    deadline_unset(conn->rpc->deadlines, &conn->fds.retry);
    if (conn->sock >= 0) /* with its unread descriptors, unless a session that came back goes on with it */
        (conn->session.moved ? owner_work_close_fd : owner_work_close_socket)(conn->rpc->owner_work, conn->sock,
                                                                              conn->client.account);
    if (conn->pidfd >= 0)
        (void)close(conn->pidfd);
    frame_reader_fini(&conn->reader);
    frame_writer_fini(&conn->writer);
    account_give(conn->client.account, USAGE_FDS, conn->fds.charged);
    list_remove(&conn->link);
    conns->n--;
    account_give(conn->client.account, USAGE_SESSIONS, conn->greeting.counted);
    conns->n_refused -= !conn->greeting.counted;
    conn_uncharge_frame(conn);
    account_give(conn->client.account, USAGE_FDS, CONN_FDS);
    account_unref(conn->client.account);
    free(conn->greeting.refusal);
    free(conn);
    if (conns->n == 0 && conns->on_empty) {
        map_fini(&conns->tokens);
        conns->on_empty(conns->arg);
    }
}

/* Waits for the client to receive the last answers with descriptors, or to close its end. */
static void free_when_settled(struct conn *conn)
{
    if (conn->conns->on_empty || conn->session.moved || conn_settle_sent(conn))
        conn_free(conn);
    else
        retry_soon(conn, END_DOUBLINGS);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct conn *conn = handle->data;

    if (--conn->open_handles == 0) {
        conn->fds.retries = 0;
        free_when_settled(conn);
    }
}

static void on_turn(uv_idle_t *turn);

static void want_turn(struct client *client)
{
    struct conn *conn = container_of(client, struct conn, client);

    if (!uv_is_closing((uv_handle_t *)&conn->turn.idle))
        (void)uv_idle_start(&conn->turn.idle, on_turn);
}

/* Releases a part of what the client held. Returns true when everything has been released. */
static bool release_some(struct conn *conn, uint64_t until_ns)
{
    struct client *client = &conn->client;

    if (client->task && !client->task->drop(client->task)) {
        rpc_postpone_waits(client); /* until they are dropped, its requests that wait for room must not keep others from it */
        (void)uv_idle_stop(&conn->turn.idle);
        return false;
    }
    client->task = NULL;
    if (!transfers_client_gone(conn->rpc->transfers, client, until_ns) || !calls_client_gone(conn->rpc, client, until_ns))
        return false;
    if (!names_client_gone(client, until_ns) || !followers_client_gone(client, until_ns))
        return false;
    while (!list_empty(&client->objects)) {
        object_producer_ended(container_of(list_first(&client->objects), struct object, by_producer));
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return client_fini(client, until_ns);
}

/* Ends the connection. Everything that the client held is released in later turns, so that the end of a client with many
 * objects does not delay the others. The struct is freed in the close callback of its last handle. */
void conn_close(struct conn *conn, const char *why)
{
    struct client *client = &conn->client;
    bool was_served = is_served(conn);

    if (conn->sm.state == CONN_CLOSING)
        return;
    sm_move(&conn->sm, CONN_CLOSING);
    client->conn.gone = true;
    conn->conns->n_behind -= conn->fds.behind;
    deadline_unset(conn->rpc->deadlines, &conn->greeting.deadline);
    list_remove(&conn->unflushed);
    list_remove(&conn->ending);
    deadline_unset(conn->rpc->deadlines, &conn->fds.retry);
    if (was_served) {
        log_debug("client %llu (%s, pid %d, uid %u) ends: %s; %u objects, %zu holds, %zu fetches",
                  (unsigned long long)client->id, client->name, (int)client->pid, client->account->owner.uid, why,
                  client->n_objects, map_count(&client->holds.by_id) + map_count(&client->holds.remote),
                  map_count(&client->transfers.fetches));
        conn->conns->on_end(conn);
        list_remove(&client->link);
        conn->rpc->clients.n--;
        watch_end(conn->rpc, client);
        event(&conn->rpc->events, RDT__PB__LIST_KIND__LIST_KIND_CLIENTS, "gone", client);
    }
    frame_writer_fini(&conn->writer);
    conn_charge_queue(conn);
    if (conn->sock >= 0 && !conn->session.moved)
        (void)shutdown(conn->sock, SHUT_RDWR); /* a forked child may hold the other end open, and must notice the end, too */
    if (conn->sock >= 0)
        uv_close((uv_handle_t *)&conn->sock_poll, on_handle_closed);
    if (conn->pidfd >= 0)
        uv_close((uv_handle_t *)&conn->pid_poll, on_handle_closed);
    want_turn(client);
}

static bool close_some(struct slice *slice, uint64_t until_ns)
{
    struct conns *conns = container_of(slice, struct conns, close);

    list_drain (struct conn, conn, &conns->ending, ending) {
        conn_close(conn, conn->why_ending);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

/* The other end has gone. A process may have thousands of connections, which end at once. */
static void end_soon(struct conn *conn, const char *why)
{
    struct conns *conns = conn->conns;

    if (conn->sm.state == CONN_CLOSING || !list_empty(&conn->ending))
        return;
    if (conns->n_ended < ENDS_PER_TURN && list_empty(&conns->ending)) {
        conns->n_ended++;
        conn_close(conn, why);
        return;
    }
    if (conn->sock >= 0)
        (void)uv_poll_stop(&conn->sock_poll);
    if (conn->pidfd >= 0)
        (void)uv_poll_stop(&conn->pid_poll);
    conn->events = 0;
    conn->why_ending = why;
    list_append(&conns->ending, &conn->ending);
    slice_start(&conn->rpc->deadlines->slices, &conns->close);
}

static void end_client(struct client *client, const char *why)
{
    end_soon(container_of(client, struct conn, client), why);
}

/* ---- writing ---- */

static void set_events(struct conn *conn)
{
    bool waits_long = !list_empty(&conn->turn.waiting) && conn->conns->shares.n_persons > FEW_PERSONS;
    int events = 0;

    if (conn->sm.state == CONN_CLOSING || conn->sock < 0 || !list_empty(&conn->ending))
        return;
    /* The daemon reads no requests of a client that does not read its answers, or whose task continues in later turns.
     * While received frames wait for the next turn, on_socket ignores the event: that costs less than two system calls. */
    if (!conn_drains(conn) && !conn->fds.behind && !waits_long && !conn->client.task && !conn_queue_is_full(conn))
        events |= UV_READABLE;
    if ((conn->writer.queued_frames > 0 || conn_drains(conn)) && conn->fds.retry.index == 0)
        events |= UV_WRITABLE;
    if (events == conn->events)
        return;
    if (events)
        (void)uv_poll_start(&conn->sock_poll, events, on_socket);
    else
        (void)uv_poll_stop(&conn->sock_poll);
    conn->events = events;
}

static void on_retry(struct deadline *deadline)
{
    struct conn *conn = container_of(deadline, struct conn, fds.retry);

    if (conn->open_handles == 0)
        free_when_settled(conn);
    else
        set_events(conn);
}

/* Returns false if it has closed the connection. */
static bool flush(struct conn *conn)
{
    struct rdt_error err = {0};
    enum rdt_status status = RDT_OK;

    if (conn->writer.queued_frames > 0)
        status = frame_writer_send(&conn->writer, conn->sock, &err);
    conn_charge_queue(conn);
    if (status != RDT_OK && status != RDT_AGAIN) {
        conn_close(conn, "its socket was closed");
        return false;
    }
    if (conn_drains(conn) && status == RDT_OK) {
        conn_close(conn, "it broke the protocol");
        return false;
    }
    if (status != RDT_AGAIN || !conn->writer.stalled)
        conn->fds.retries = 0;
    else if (conn->fds.retry.index == 0)
        retry_soon(conn, RETRY_DOUBLINGS);
    if (conn->client.rpc.watch && conn->writer.queued_frames == 0)
        watch_on_room(&conn->client);
    if (conn->turn.held && !conn_queue_is_full(conn)) {
        conn->turn.held = false;
        want_turn(&conn->client);
    }
    set_events(conn);
    return true;
}

/* Runs before the loop sleeps: sends what is queued, with one write for each client, without waiting for a socket event. */
static void on_prepare(uv_prepare_t *prepare)
{
    struct conns *conns = prepare->data;

    conns->n_ended = 0;
    conns->shares.turn++;
    list_drain (struct conn, conn, &conns->unflushed, unflushed) {
        list_remove(&conn->unflushed);
        (void)flush(conn);
    }
    busy_poll_wait(&conns->rpc->meters.busy_poll);
}

/* After an answer was queued: on_prepare sends it, unless the end of the turn does, or a full socket has room again. */
static void flush_soon(struct conn *conn)
{
    if (!conn->turn.in_read && !(conn->events & UV_WRITABLE) && list_empty(&conn->unflushed))
        list_append(&conn->conns->unflushed, &conn->unflushed);
}

/* If an answer is too long for a frame, only its request fails. */
static void send_too_large(struct client *client, uint16_t type, uint8_t flags, uint64_t request_id, size_t bytes)
{
    struct rdt_error err;

    (void)rdt_error_set(&err, RDT_LIMIT, "the answer has %zu bytes: at most %u fit into one message", bytes,
                        RDT_MAX_FRAME_BYTES);
    if (flags & FRAME_REPLY)
        client_send_error(client, type, request_id, &err);
    else
        log_error("client %llu: an event of %zu bytes is too long for a message and was not sent",
                  (unsigned long long)client->id, bytes);
}

/* The regions may have ended meanwhile, and the last close of a memfd frees its pages, which takes time. */
static void drop_fds(struct conn *conn, const int *take_fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        owner_work_close_fd(conn->rpc->owner_work, take_fds[i], conn->client.account);
}

/* Queues a frame and returns where its payload goes. NULL: the connection ends. */
static uint8_t *push(struct conn *conn, uint16_t type, uint8_t flags, uint64_t request_id, size_t bytes, const int *take_fds,
                     unsigned n_fds)
{
    uint8_t *payload;

    if (conn->sm.state != CONN_CLOSING &&
        frame_writer_push(&conn->writer, type, flags, request_id, (uint32_t)bytes, take_fds, n_fds, &payload) == RDT_OK)
        return payload;
    drop_fds(conn, take_fds, n_fds);
    if (conn->sm.state != CONN_CLOSING) {
        log_error("client %llu: no memory to queue an answer of %zu bytes: the connection ends",
                  (unsigned long long)conn->client.id, bytes);
        conn_stop_reading(conn);
        flush_soon(conn);
    }
    return NULL;
}

static void send_message(struct client *client, uint16_t type, uint8_t flags, uint64_t request_id,
                         const ProtobufCMessage *message, const int *take_fds, unsigned n_fds)
{
    struct conn *conn = container_of(client, struct conn, client);
    size_t bytes = protobuf_c_message_get_packed_size(message);
    struct rdt_error err;
    uint8_t *payload;

    if (conn->sock < 0) { /* the client of a waiting session learns of changes through RESUME */
        drop_fds(conn, take_fds, n_fds);
        return;
    }
    if (bytes > RDT_MAX_FRAME_BYTES) {
        drop_fds(conn, take_fds, n_fds);
        send_too_large(client, type, flags, request_id, bytes);
        return;
    }
    if ((flags & FRAME_REPLY) && !(flags & FRAME_ERROR) && bytes > client->conn.reserved && !conn_has_room(conn, bytes, &err)) {
        drop_fds(conn, take_fds, n_fds);
        client_send_error(client, type, request_id, &err);
        return;
    }
    payload = push(conn, type, flags, request_id, bytes, take_fds, n_fds);
    if (!payload)
        return;
    protobuf_c_message_pack(message, payload);
    /* Now the caller's regions still have the files of the descriptors open. Later this could close them for the last time,
     * which frees the memory on the loop, so the sink closes descriptors that must wait. flush() handles errors. */
    if (n_fds > 0 && !conn->writer.waiting)
        (void)frame_writer_send(&conn->writer, conn->sock, NULL);
    conn_charge_queue(conn);
    flush_soon(conn);
}

static void send_event(struct client *client, uint16_t type, const uint8_t *head, size_t head_bytes, const uint8_t *rest,
                       size_t rest_bytes)
{
    struct conn *conn = container_of(client, struct conn, client);
    size_t bytes = head_bytes + rest_bytes;
    uint8_t *payload;

    if (conn->sock < 0)
        return;
    payload = push(conn, type, FRAME_EVENT, 0, bytes, NULL, 0);
    if (!payload)
        return;
    memcpy(payload, head, head_bytes);
    memcpy(payload + head_bytes, rest, rest_bytes);
    conn_charge_queue(conn);
    flush_soon(conn);
}

static size_t queued_bytes(const struct client *client)
{
    return (container_of(client, struct conn, client))->writer.queued_bytes;
}

static uint64_t bytes_received(const struct client *client)
{
    const struct conn *conn = container_of(client, struct conn, client);
    int unread = 0;

    if (ioctl(conn->sock, FIONREAD, &unread))
        unread = 0; /* the connection has ended */
    return unread > 0 || frame_reader_bytes(&conn->reader) > 0 ? conn->received_bytes + (uint64_t)unread : 0;
}

/* ---- turns ---- */

/* Handles the next frame, if it has been received as a whole. */
static void handle_frame(struct conn *conn)
{
    struct rdt_error err = {0};
    struct frame frame;
    enum rdt_status status = frame_reader_next(&conn->reader, &frame, &err);
    bool was_served = is_served(conn);

    conn_charge_fds(conn); /* handlers charge the descriptors that they take, and owner_work charges those that it closes */
    if (status == RDT_AGAIN) {
        conn->more = false;
        return;
    }
    conn->heap.frame_taken = conn->heap.frame > 0;
    if (status == RDT_OK) {
        if (!was_served)
            conn->conns->on_hello(conn, &frame);
        else
            status = rpc_handle(conn->rpc, &conn->client, &frame,
                                frame.length > RPC_AT_ONCE_BYTES ? frame_reader_detach(&conn->reader) : NULL, &err);
    }
    if (status != RDT_OK && frame.passed_over && was_served && frame.request_id != 0)
        /* The reader has skipped this frame, and the next one begins where it ends, so only the request fails. */
        client_send_error(&conn->client, frame.type, frame.request_id, &err);
    else if (status != RDT_OK)
        conn_refuse(conn, &frame, &err);
    conn->more = frame_reader_is_ready(&conn->reader);
}

/* Reads once from the socket. Returns true if there may be more to read. */
static bool receive(struct conn *conn)
{
    struct rdt_error err = {0};
    size_t n;
    enum rdt_status status;

    if (!conn_may_read(conn)) {
        conn->conns->n_behind += !conn->fds.behind;
        conn->fds.behind = true; /* on_work_ended reads again */
        return false;
    }
    conn_admit_frame(conn);
    status = frame_reader_recv(&conn->reader, conn->sock, &n, &err);
    conn_charge_fds(conn);
    if (status == RDT_OK) {
        busy_poll_received(&conn->rpc->meters.busy_poll);
        conn->received_bytes += n;
        conn->more = frame_reader_is_ready(&conn->reader);
        return n >= SHORT_READ_BYTES; /* a short read has emptied the socket, so a second read would be wasted */
    }
    if (status == RDT_PROTOCOL) {
        struct frame none = {0};
        conn_refuse(conn, &none, &err);
    } else if (status != RDT_AGAIN) {
        end_soon(conn, status == RDT_DISCONNECTED ? "end of file" : "its socket failed");
    }
    return false;
}

static bool has_work(const struct conn *conn)
{
    const struct client *client = &conn->client;

    if (client->task)
        return !client->task->waits || !list_empty(&client->wakes);
    return conn->more || !list_empty(&client->wakes);
}

/* One turn: events for the client, its task, received frames, and then new bytes of the socket. */
static void work(struct conn *conn, bool readable)
{
    uint64_t until_ns = uv_hrtime() + share_conn_ns(conn->conns);

    conn->turn.in_read = true; /* the answers of this turn, except those with descriptors, are sent with one write, below */
    while ((conn->sm.state == CONN_GREETING || conn->sm.state == CONN_SERVED) && !conn->conns->stopped) {
        conn->turn.held = conn_queue_is_full(conn);
        if (conn->turn.held || !client_work(&conn->client, until_ns))
            break;
        if (conn->more && conn->client.rpc.watch && !watch_catch_up(&conn->client, until_ns))
            break;
        if (conn->more)
            handle_frame(conn);
        else if (readable)
            readable = receive(conn);
        else
            break;
        if (!list_empty(&conn->client.read_barriers))
            client_read_barriers_run(&conn->client, conn->received_bytes - frame_reader_bytes(&conn->reader));
        if (uv_hrtime() >= until_ns)
            break;
    }
    conn->turn.in_read = false;
    if (conn->sm.state == CONN_CLOSING)
        return;
    if (conn->turn.held || conn_drains(conn))
        rpc_postpone_waits(&conn->client);
    if (has_work(conn) && !conn->turn.held && !conn_drains(conn) && !conn->conns->stopped)
        want_turn(&conn->client);
    else
        (void)uv_idle_stop(&conn->turn.idle);
    conn_settle_frame(conn);
    if (!conn_may_gather(conn))
        (void)flush(conn);
}

static void take_turn(struct conn *conn, bool readable)
{
    if (conn->sm.state != CONN_CLOSING) {
        work(conn, readable);
        return;
    }
    (void)uv_idle_start(&conn->turn.idle, on_turn); /* it may have waited for this turn */
    if (release_some(conn, uv_hrtime() + share_conn_ns(conn->conns)))
        uv_close((uv_handle_t *)&conn->turn.idle, on_handle_closed);
}

static void on_turn(uv_idle_t *turn)
{
    share_turn(turn->data, false);
}

static void on_socket(uv_poll_t *poll, int uv_status, int events)
{
    struct conn *conn = poll->data;

    if (uv_status < 0) {
        end_soon(conn, "its socket was reset"); /* which libuv reports as EBADF */
        return;
    }
    if (events & UV_WRITABLE && !flush(conn))
        return;
    /* with an active turn handle, on_turn reads in the next turn */
    if (!(events & UV_READABLE) || conn_drains(conn) || uv_is_active((uv_handle_t *)&conn->turn.idle))
        return;
    share_turn(conn, true);
    if (!list_empty(&conn->turn.waiting))
        set_events(conn);
}

static void on_hello_timeout(struct deadline *deadline)
{
    struct conn *conn = container_of(deadline, struct conn, greeting.deadline);

    if (conn->sm.state == CONN_GREETING)
        work(conn, true); /* if the loop was delayed, HELLO may be waiting in the socket */
    if (conn->sm.state == CONN_GREETING && conn->more)
        work(conn, false); /* the turn ended after it had been read */
    if (conn->sm.state == CONN_CLOSING || conn->sm.state == CONN_SERVED)
        return;
    conn_close(conn, is_served(conn) ? "it broke the protocol, and does not read the answer that says so"
                                     : "it did not send HELLO in time");
}

static void on_process_end(uv_poll_t *poll, int status, int events)
{
    end_soon(poll->data, "its process has ended");
}

/* ---- reading again after a pause ---- */

/* Work of owners has ended: their connections may be read again. */
static void on_work_ended(void *arg)
{
    struct conns *conns = arg;

    if (conns->n_behind == 0)
        return;
    list_each (struct conn, conn, &conns->all, link) {
        if (!conn->fds.behind || conn->sm.state == CONN_CLOSING || !conn_may_read(conn))
            continue;
        conn->fds.behind = false;
        conns->n_behind--;
        set_events(conn);
    }
}

/* ---- the beginning ---- */

struct conn *conn_new(struct conns *conns)
{
    struct conn *conn = calloc(1, sizeof *conn);

    if (!conn)
        return NULL;
    sm_init(&conn->sm, states, sizeof states / sizeof states[0], CONN_GREETING);
    conn->rpc = conns->rpc;
    conn->conns = conns;
    conn->sock = conn->pidfd = -1;
    list_init(&conn->unflushed);
    list_init(&conn->ending);
    list_init(&conn->turn.waiting);
    list_init(&conn->fds.sent);
    return conn;
}

static void watch_process(struct conn *conn)
{
    (void)uv_poll_init(conn->rpc->loop, &conn->pid_poll, conn->pidfd);
    conn->pid_poll.data = conn;
    conn->open_handles++;
    (void)uv_poll_start(&conn->pid_poll, UV_READABLE, on_process_end);
}

void conn_list(struct conn *conn)
{
    struct conns *conns = conn->conns;

    conn->client.owner_work = conns->rpc->owner_work;
    conn->client.conn.send = send_message;
    conn->client.conn.send_event = send_event;
    conn->client.conn.queued_bytes = queued_bytes;
    conn->client.conn.end = end_client;
    conn->client.conn.bytes_received = bytes_received;
    conn->client.conn.want_turn = want_turn;
    frame_reader_init(&conn->reader, RDT_MAX_FRAME_BYTES);
    frame_writer_init(&conn->writer);
    conn_start_sink(conn);
    conn->greeting.deadline.on_passed = on_hello_timeout;
    (void)uv_idle_init(conns->rpc->loop, &conn->turn.idle);
    conn->turn.idle.data = conn;
    conn->fds.retry.on_passed = on_retry;
    conn->open_handles = 1;
    if (conn->pidfd >= 0)
        watch_process(conn);
    list_append(&conns->all, &conn->link);
    conns->n++;
}

void conn_attach(struct conn *conn, int take_sock, int pidfd)
{
    conn->sock = take_sock;
    (void)uv_poll_init(conn->rpc->loop, &conn->sock_poll, take_sock);
    conn->sock_poll.data = conn;
    conn->open_handles++;
    if (pidfd >= 0) {
        conn->pidfd = pidfd;
        watch_process(conn);
    }
    set_events(conn);
}

void conn_serve(struct conn *conn)
{
    struct client *client = &conn->client;
    struct rpc *rpc = conn->rpc;

    sm_move(&conn->sm, CONN_SERVED);
    client_start_caches(client, rpc->regions);
    deadline_unset(rpc->deadlines, &conn->greeting.deadline);
    client->number = ++rpc->clients.n_served;
    list_append(&rpc->clients.all, &client->link);
    rpc->clients.n++;
}

void conn_start(struct conns *conns, int take_sock)
{
    struct conn *conn = conns->n < conns->rpc->options->max_clients + 2 * LIMITS_MORE_CONNECTIONS ? conn_new(conns) : NULL;

    if (!conn) {
        conn_turn_away(conns, take_sock);
        return;
    }
    conn->sock = take_sock;
    if (!conn_identify(conn)) {
        free(conn->greeting.refusal);
        free(conn);
        conn_turn_away(conns, take_sock);
        return;
    }
    client_init(&conn->client, conn->client.account->client);
    conn_list(conn);
    conn_attach(conn, take_sock, -1);
    (void)deadline_set(conns->rpc->deadlines, &conn->greeting.deadline, HELLO_TIMEOUT_NS);
}

void conns_stop(struct conns *conns)
{
    conns->stopped = true;
}

void conns_save_ids(struct conns *conns, uint64_t *next_p)
{
    ids_save(&conns->ids, next_p);
}

void conns_close(struct conns *conns, void (*on_empty)(void *arg), void *arg)
{
    list_each_safe (struct conn, conn, &conns->all, link)
        if (conn->sm.state == CONN_CLOSING && conn->open_handles == 0)
            conn_free(conn);
    conns->on_empty = on_empty;
    conns->arg = arg;
    ids_save(&conns->ids, NULL);
    slice_stop(&conns->close);
    slice_stop(&conns->settle);
    shares_close(conns);
    uv_close((uv_handle_t *)&conns->prepare, NULL);
    busy_poll_close(&conns->rpc->meters.busy_poll);
    loop_meter_close(&conns->rpc->meters.loop_meter);
    list_each_safe (struct conn, conn, &conns->all, link) {
        /* the last answers: bytes that the socket does not accept now are lost */
        if (conn->sm.state != CONN_CLOSING && conn->sock >= 0 && conn->writer.queued_frames > 0)
            (void)frame_writer_send(&conn->writer, conn->sock, NULL);
        conn_close(conn, "the daemon shuts down");
    }
    if (conns->n == 0) {
        map_fini(&conns->tokens);
        on_empty(arg);
    }
}
