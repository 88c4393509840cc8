#include "daemon/conn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/conn_heap.h"
#include "daemon/conn_identity.h"
#include "daemon/base/log.h"
#include "proto/plain_text.h"
#include "daemon/objects/names.h"
#include "daemon/objects/object.h"
#include "daemon/rpc/rpc_watch.h"
#include "wire_ref.h"

#define HELLO_TIMEOUT_NS 10000000000ll
#define SHORT_READ_BYTES 16384
#define RETRY_NS 10000000ll

static void on_socket(uv_poll_t *poll, int status, int events);

static void on_prepare(uv_prepare_t *prepare);

static void on_ended_some(void *arg);

void conns_init(struct conns *conns, struct rpc *rpc, uint64_t open_files)
{
    FILE *file = fopen("/proc/sys/kernel/overflowuid", "re");

    *conns = (struct conns){.rpc = rpc, .next_id = 1, .open_files = open_files, .refusals.every_ns = UINT64_C(1000000000)};
    owner_work_watch(rpc->owner_work, on_ended_some, conns);
    list_init(&conns->all);
    list_init(&conns->unflushed);
    (void)uv_prepare_init(rpc->loop, &conns->prepare);
    (void)uv_prepare_start(&conns->prepare, on_prepare);
    conns->prepare.data = conns;
    busy_poll_init(&rpc->busy_poll, rpc->loop, rpc->options->busy_poll_ns);
    if (!file || fscanf(file, "%u", &conns->overflow_uid) != 1)
        conns->overflow_uid = 65534;
    if (file)
        (void)fclose(file);
}

/* ---- the end ---- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct conn *conn = handle->data;
    struct conns *conns = conn->conns;

    if (--conn->open_handles > 0)
        return;
    owner_work_close_fd(conn->rpc->owner_work, conn->sock, conn->client.account); /* with the descriptors that wait in it */
    if (conn->pidfd >= 0)
        (void)close(conn->pidfd);
    frame_reader_fini(&conn->reader);
    frame_writer_fini(&conn->writer);
    account_give(conn->client.account, USAGE_FDS, conn->fds_charged);
    list_remove(&conn->link);
    conns->n--;
    account_give(conn->client.account, USAGE_SESSIONS, conn->counted);
    conns->n_refused -= !conn->counted;
    conn_uncharge_frame(conn);
    account_give(conn->client.account, USAGE_FDS, CONN_FDS);
    account_unref(conn->client.account);
    free(conn);
    if (conns->n == 0 && conns->on_empty)
        conns->on_empty(conns->arg);
}

static void on_turn(uv_idle_t *turn);

static void want_turn(struct client *client)
{
    struct conn *conn = container_of(client, struct conn, client);

    if (!uv_is_closing((uv_handle_t *)&conn->turn))
        (void)uv_idle_start(&conn->turn, on_turn);
}

/* Releases a part of what the client held. true: everything has been released. */
static bool reap(struct conn *conn, uint64_t until_ns)
{
    struct client *client = &conn->client;

    if (client->task && !client->task->drop(client->task)) {
        rpc_postpone_waits(client); /* its requests are dropped after that, and must not block those of other clients */
        (void)uv_idle_stop(&conn->turn);
        return false;
    }
    client->task = NULL;
    if (!transfers_client_gone(conn->rpc->transfers, client, until_ns) || !calls_client_gone(conn->rpc, client, until_ns))
        return false;
    if (!names_client_gone(client, until_ns))
        return false;
    while (!list_empty(&client->objects)) {
        object_producer_ended(container_of(list_first(&client->objects), struct object, by_producer));
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return client_fini(client, until_ns);
}

/* What the client held goes in the turns to come, so that the end of a great one is no pause for others; the
 * struct with its last handle. */
static void conn_close(struct conn *conn, const char *why)
{
    struct client *client = &conn->client;

    if (conn->closing)
        return;
    conn->closing = true;
    client->gone = true;
    conn->conns->n_behind -= conn->behind;
    deadline_unset(conn->rpc->deadlines, &conn->hello);
    list_remove(&conn->unflushed);
    deadline_unset(conn->rpc->deadlines, &conn->retry);
    if (conn->greeted) {
        log_debug("client %llu (%s, pid %d, uid %u) ends: %s; %u objects, %zu holds, %zu fetches",
                 (unsigned long long)client->id, client->name, (int)client->pid, client->account->owner.uid, why,
                 client->n_objects, map_count(&client->holds) + map_count(&client->remote_holds),
                 map_count(&client->transfers.fetches));
        list_remove(&client->link);
        conn->rpc->n_clients--;
        watch_end(conn->rpc, client);
        event(&conn->rpc->events, RDT__PB__LIST_KIND__LIST_KIND_CLIENTS, "gone", client);
    }
    frame_writer_fini(&conn->writer);
    conn_charge_queue(conn);
    (void)shutdown(conn->sock, SHUT_RDWR); /* a forked child may hold the other end open: it must see the end too */
    uv_close((uv_handle_t *)&conn->sock_poll, on_handle_closed);
    if (conn->pidfd >= 0)
        uv_close((uv_handle_t *)&conn->pid_poll, on_handle_closed);
    want_turn(client);
}

/* ---- writing ---- */

static void set_events(struct conn *conn)
{
    int events = 0;

    if (conn->closing)
        return;
    /* Who does not read is not read, nor is who has a task. Frames that wait for the next turn change nothing
     * here: on_socket looks away meanwhile, which costs less than to tell the kernel twice. */
    if (!conn->draining && !conn->behind && !conn->client.task && !conn_queue_is_full(conn))
        events |= UV_READABLE;
    if ((conn->writer.queued_frames > 0 || conn->draining) && conn->retry.index == 0)
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
    set_events(container_of(deadline, struct conn, retry));
}

/* false: the connection has been closed. */
static bool flush(struct conn *conn)
{
    struct rdt_error err = {0};
    enum rdt_status status = RDT_OK;

    if (conn->writer.queued_frames > 0)
        status = frame_writer_send(&conn->writer, conn->sock, &err);
    conn_charge_queue(conn);
    if (status != RDT_OK && status != RDT_AGAIN) {
        conn_close(conn, "its socket is closed");
        return false;
    }
    if (conn->draining && status == RDT_OK) {
        conn_close(conn, "it broke the protocol");
        return false;
    }
    if (status == RDT_AGAIN && conn->writer.stalled)
        (void)deadline_set(conn->rpc->deadlines, &conn->retry, RETRY_NS);
    if (conn->client.rpc.watch && conn->writer.queued_frames == 0)
        watch_on_room(&conn->client);
    if (conn->held && !conn_queue_is_full(conn)) {
        conn->held = false;
        want_turn(&conn->client);
    }
    set_events(conn);
    return true;
}

/* Before the loop sleeps: sends everything that was queued, in one write, without waiting for a socket event. */
static void on_prepare(uv_prepare_t *prepare)
{
    struct conns *conns = prepare->data;

    while (!list_empty(&conns->unflushed)) {
        struct conn *conn = container_of(list_first(&conns->unflushed), struct conn, unflushed);
        list_remove(&conn->unflushed);
        (void)flush(conn);
    }
    busy_poll_wait(&conns->rpc->busy_poll);
}

/* Something is queued. on_socket flushes for itself, and a socket that was full tells when it has room. */
static void flush_soon(struct conn *conn)
{
    if (!conn->in_read && !(conn->events & UV_WRITABLE) && list_empty(&conn->unflushed))
        list_append(&conn->conns->unflushed, &conn->unflushed);
}

static void send_message(struct client *client, uint16_t type, uint8_t flags, uint64_t request_id,
                         const ProtobufCMessage *message, const int *take_fds, unsigned n_fds);

static void send_error(struct client *client, uint16_t type, uint8_t flags, uint64_t request_id, const struct rdt_error *err)
{
    Rdt__Pb__ErrorReply reply = RDT__PB__ERROR_REPLY__INIT;

    reply.status = err->status;
    reply.sys_errno = err->sys_errno;
    reply.message = (char *)err->msg;
    send_message(client, type, flags | FRAME_ERROR, request_id, &reply.base, NULL, 0);
}

/* An answer that is too long for a frame fails only its request. */
static void send_too_large(struct client *client, uint16_t type, uint8_t flags, uint64_t request_id, size_t bytes)
{
    struct rdt_error err;

    (void)rdt_error_set(&err, RDT_LIMIT, "the answer has %zu bytes: at most %u fit into one message", bytes, RDT_MAX_FRAME_BYTES);
    if (flags & FRAME_REPLY)
        send_error(client, type, FRAME_REPLY, request_id, &err);
    else
        log_error("client %llu: an event of %zu bytes cannot be sent", (unsigned long long)client->id, bytes);
}

/* The regions behind them may have ended: the last close of a memfd frees its pages. */
static void drop_fds(struct conn *conn, const int *take_fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        owner_work_close_fd(conn->rpc->owner_work, take_fds[i], conn->client.account);
}

static void send_message(struct client *client, uint16_t type, uint8_t flags, uint64_t request_id,
                         const ProtobufCMessage *message, const int *take_fds, unsigned n_fds)
{
    struct conn *conn = container_of(client, struct conn, client);
    size_t bytes = protobuf_c_message_get_packed_size(message);
    struct rdt_error err;
    uint8_t *payload;

    if (bytes > RDT_MAX_FRAME_BYTES) {
        drop_fds(conn, take_fds, n_fds);
        send_too_large(client, type, flags, request_id, bytes);
        return;
    }
    if ((flags & FRAME_REPLY) && !(flags & FRAME_ERROR) && !conn_has_room(conn, bytes, &err)) {
        drop_fds(conn, take_fds, n_fds);
        send_error(client, type, FRAME_REPLY, request_id, &err);
        return;
    }
    if (conn->closing ||
        frame_writer_push(&conn->writer, type, flags, request_id, (uint32_t)bytes, take_fds, n_fds, &payload) != RDT_OK) {
        drop_fds(conn, take_fds, n_fds);
        if (!conn->closing) {
            log_error("client %llu: an answer of %zu bytes cannot be queued: the connection ends",
                      (unsigned long long)client->id, bytes);
            conn->draining = true;
            flush_soon(conn);
        }
        return;
    }
    protobuf_c_message_pack(message, payload);
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
        unread = 0; /* the connection is at its end */
    return unread > 0 || frame_reader_bytes(&conn->reader) > 0 ? conn->received_bytes + (uint64_t)unread : 0;
}

/* ---- hello ---- */

static void refuse(struct conn *conn, const struct frame *frame, const struct rdt_error *err)
{
    char who[80];

    send_error(&conn->client, frame->type, FRAME_REPLY, frame->request_id, err);
    (void)snprintf(who, sizeof who, "client %llu (pid %d, uid %u)", (unsigned long long)conn->client.id, (int)conn->client.pid,
                   conn->client.account->owner.uid);
    log_warn_rarely(&conn->conns->refusals, who, err->msg);
    conn->draining = true;
    (void)deadline_set(conn->rpc->deadlines, &conn->hello, HELLO_TIMEOUT_NS); /* the time for the client to read the answer */
}

static void on_hello(struct conn *conn, struct frame *frame)
{
    struct rpc *rpc = conn->rpc;
    struct client *client = &conn->client;
    Rdt__Pb__HelloReply reply = RDT__PB__HELLO_REPLY__INIT;
    ProtobufCMessage *message = NULL;
    const Rdt__Pb__Hello *hello;
    struct rdt_error err = conn->refusal;
    struct arena arena;

    frame_close_fds(frame);
    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    if (err.status == RDT_OK && frame->type != RDT_MSG_HELLO)
        (void)rdt_error_set(&err, RDT_PROTOCOL, "the first message must be HELLO");
    if (err.status == RDT_OK)
        (void)arena_unpack(&arena, &rdt__pb__hello__descriptor, frame->payload, frame->length, "HELLO", &message, &err);
    hello = (const Rdt__Pb__Hello *)message;
    if (err.status == RDT_OK && (hello->protocol_min > RDT_PROTOCOL_MAX || hello->protocol_max < RDT_PROTOCOL_MIN))
        (void)rdt_error_set(&err, RDT_PROTOCOL,
                            "the library speaks protocols %u to %u, this daemon %u to %u: install the same version",
                            hello->protocol_min, hello->protocol_max, RDT_PROTOCOL_MIN, RDT_PROTOCOL_MAX);
    if (err.status == RDT_OK && rpc->draining)
        (void)rdt_error_set(&err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    if (err.status != RDT_OK) {
        refuse(conn, frame, &err);
        arena_fini(&arena);
        return;
    }
    (void)snprintf(client->name, sizeof client->name, "%s", hello->client_name);
    text_clean(client->name, strlen(client->name));
    client->tensor_runs = hello->tensor_runs;
    conn->greeted = true;
    client_start_caches(client, rpc->regions);
    deadline_unset(rpc->deadlines, &conn->hello);
    list_append(&rpc->clients, &client->link);
    rpc->n_clients++;
    event(&rpc->events, RDT__PB__LIST_KIND__LIST_KIND_CLIENTS, "connected", client);
    log_trace("client %llu (%s, pid %d, uid %u) connects", (unsigned long long)client->id, client->name, (int)client->pid,
              client->account->owner.uid);
    reply.protocol = RDT_PROTOCOL_MAX;
    reply.daemon_version = (char *)RDTD_VERSION;
    reply.node_uuid = (ProtobufCBinaryData){16, (uint8_t *)rpc->node->uuid};
    reply.boot_id = (ProtobufCBinaryData){16, (uint8_t *)rpc->node->boot_id};
    reply.node_address = (char *)rpc->node->address;
    reply.session_id = client->id;
    reply.tenant = client->account->owner.tenant;
    reply.uid = client->account->owner.uid;
    reply.max_frame_bytes = RDT_MAX_FRAME_BYTES;
    reply.max_frame_fds = RDT_MAX_FRAME_FDS;
    reply.inline_max_bytes = rpc->options->inline_max_bytes;
    reply.tensor_runs = true;
    reply.sealed_max_bytes = regions_take_max(rpc->regions, rpc->options->sealed_max_bytes);
    reply.busy_poll_ns = rpc->options->busy_poll_ns;
    reply.loans = rpc->regions->cached_max_bytes > 0 && client->cache.regions;
    send_message(client, RDT_MSG_HELLO, FRAME_REPLY, frame->request_id, &reply.base, NULL, 0);
    arena_fini(&arena);
}

/* ---- turns ---- */

/* Handles the next whole frame, if one has come. */
static void handle_frame(struct conn *conn)
{
    struct rdt_error err = {0};
    struct frame frame;
    enum rdt_status status = frame_reader_next(&conn->reader, &frame, &err);

    conn_charge_fds(conn); /* a handler charges what it takes, and owner_work what nobody takes */
    if (status == RDT_AGAIN) {
        conn->more = false;
        return;
    }
    conn->frame_taken = conn->frame_heap > 0;
    if (status == RDT_OK) {
        if (!conn->greeted)
            on_hello(conn, &frame);
        else
            status = rpc_handle(conn->rpc, &conn->client, &frame, frame.length > RPC_AT_ONCE_BYTES ? frame_reader_detach(&conn->reader) : NULL,
                                &err);
    }
    if (status != RDT_OK && frame.passed_over && conn->greeted && frame.request_id != 0)
        /* That request's, and the session goes on */
        send_error(&conn->client, frame.type, FRAME_REPLY, frame.request_id, &err);
    else if (status != RDT_OK)
        refuse(conn, &frame, &err);
    conn->more = frame_reader_is_ready(&conn->reader);
}

/* Reads once from the socket. true: there may be more to read. */
static bool receive(struct conn *conn)
{
    struct rdt_error err = {0};
    size_t n;
    enum rdt_status status;

    if (!conn_may_read(conn)) {
        conn->conns->n_behind += !conn->behind;
        conn->behind = true; /* on_ended_some goes on */
        return false;
    }
    conn_admit_frame(conn);
    status = frame_reader_recv(&conn->reader, conn->sock, &n, &err);
    conn_charge_fds(conn);
    if (status == RDT_OK) {
        busy_poll_received(&conn->rpc->busy_poll);
        conn->received_bytes += n;
        conn->more = frame_reader_is_ready(&conn->reader);
        return n >= SHORT_READ_BYTES; /* a short read has emptied the socket, so a second read would be wasted */
    }
    if (status == RDT_PROTOCOL) {
        struct frame none = {0};
        refuse(conn, &none, &err);
    } else if (status != RDT_AGAIN) {
        conn_close(conn, status == RDT_DISCONNECTED ? "end of file" : "its socket failed");
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
    uint64_t until_ns = uv_hrtime() + CONN_TURN_NS;

    conn->in_read = true; /* one write for all answers of this turn */
    while (!conn->closing && !conn->draining) {
        conn->held = conn_queue_is_full(conn);
        if (conn->held || !client_work(&conn->client, until_ns))
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
    conn->in_read = false;
    if (conn->closing)
        return;
    if (conn->held || conn->draining)
        rpc_postpone_waits(&conn->client);
    if (has_work(conn) && !conn->held && !conn->draining)
        want_turn(&conn->client);
    else
        (void)uv_idle_stop(&conn->turn);
    conn_settle_frame(conn);
    if (!conn_may_gather(conn))
        (void)flush(conn);
}

static void on_turn(uv_idle_t *turn)
{
    struct conn *conn = turn->data;

    if (!conn->closing)
        work(conn, false);
    else if (reap(conn, uv_hrtime() + CONN_TURN_NS))
        uv_close((uv_handle_t *)turn, on_handle_closed);
}

static void on_socket(uv_poll_t *poll, int uv_status, int events)
{
    struct conn *conn = poll->data;

    if (uv_status < 0) {
        conn_close(conn, "its socket was reset"); /* libuv says EBADF for it */
        return;
    }
    if (events & UV_WRITABLE && !flush(conn))
        return;
    /* Otherwise its turn comes anyway */
    if (events & UV_READABLE && !conn->draining && !uv_is_active((uv_handle_t *)&conn->turn))
        work(conn, true);
}

static void on_hello_timeout(struct deadline *deadline)
{
    struct conn *conn = container_of(deadline, struct conn, hello);

    if (!conn->greeted && !conn->draining)
        work(conn, true); /* if the daemon itself stood still, the hello may be waiting in the socket */
    if (!conn->closing && !conn->greeted && !conn->draining && conn->more)
        work(conn, false); /* its turn was over when it had been read */
    if (conn->closing || (conn->greeted && !conn->draining))
        return;
    conn_close(conn, conn->greeted ? "it broke the protocol, and does not read that it did" : "it never said hello");
}

static void on_process_end(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    conn_close(poll->data, "its process is gone");
}

/* ---- going on after a pause ---- */

/* Work of owners has ended: their connections are read again. */
static void on_ended_some(void *arg)
{
    struct conns *conns = arg;

    if (conns->n_behind == 0)
        return;
    list_for_each (node, &conns->all) {
        struct conn *conn = container_of(node, struct conn, link);

        if (!conn->behind || conn->closing || !conn_may_read(conn))
            continue;
        conn->behind = false;
        conns->n_behind--;
        set_events(conn);
    }
}

/* ---- the beginning ---- */

void conn_start(struct conns *conns, int sock)
{
    struct conn *conn = calloc(1, sizeof *conn);

    if (!conn || conns->n >= conns->rpc->options->max_clients + 64u) {
        free(conn);
        conn_turn_away(conns, sock);
        return;
    }
    conn->rpc = conns->rpc;
    conn->conns = conns;
    conn->sock = sock;
    conn->pidfd = -1;
    list_init(&conn->unflushed);
    if (!conn_identify(conn)) {
        free(conn);
        conn_turn_away(conns, sock);
        return;
    }
    client_init(&conn->client, conns->next_id++);
    conn->client.owner_work = conns->rpc->owner_work;
    conn->client.send = send_message;
    conn->client.queued_bytes = queued_bytes;
    conn->client.bytes_received = bytes_received;
    conn->client.want_turn = want_turn;
    frame_reader_init(&conn->reader, RDT_MAX_FRAME_BYTES);
    frame_writer_init(&conn->writer);
    conn_start_sink(conn);
    conn->hello.on_passed = on_hello_timeout;
    (void)uv_poll_init(conns->rpc->loop, &conn->sock_poll, sock);
    conn->sock_poll.data = conn;
    (void)uv_idle_init(conns->rpc->loop, &conn->turn);
    conn->turn.data = conn;
    conn->retry.on_passed = on_retry;
    conn->open_handles = 2;
    if (conn->pidfd >= 0) {
        (void)uv_poll_init(conns->rpc->loop, &conn->pid_poll, conn->pidfd);
        conn->pid_poll.data = conn;
        conn->open_handles = 3;
        (void)uv_poll_start(&conn->pid_poll, UV_READABLE, on_process_end);
    }
    list_append(&conns->all, &conn->link);
    conns->n++;
    (void)deadline_set(conns->rpc->deadlines, &conn->hello, HELLO_TIMEOUT_NS);
    set_events(conn);
}

void conns_close(struct conns *conns, void (*on_empty)(void *arg), void *arg)
{
    conns->on_empty = on_empty;
    conns->arg = arg;
    uv_close((uv_handle_t *)&conns->prepare, NULL);
    busy_poll_close(&conns->rpc->busy_poll);
    list_for_each_safe (node, &conns->all) {
        struct conn *conn = container_of(node, struct conn, link);
        /* The last answers; bytes that the socket does not take are lost */
        if (!conn->closing && conn->writer.queued_frames > 0)
            (void)frame_writer_send(&conn->writer, conn->sock, NULL);
        conn_close(conn, "the daemon shuts down");
    }
    if (conns->n == 0)
        on_empty(arg);
}
