#include "daemon/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/object.h"
#include "wire_ref.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif
#define HELLO_TIMEOUT_NS 10000000000ll
#define READS_PER_TURN 4
#define SHORT_READ_BYTES 16384

static void on_socket(uv_poll_t *poll, int status, int events);

static void on_prepare(uv_prepare_t *prepare);

void conns_init(struct conns *conns, struct rpc *rpc)
{
    *conns = (struct conns){.rpc = rpc, .next_id = 1};
    list_init(&conns->all);
    list_init(&conns->unflushed);
    (void)uv_prepare_init(rpc->loop, &conns->prepare);
    (void)uv_prepare_start(&conns->prepare, on_prepare);
    conns->prepare.data = conns;
}

/* ---- the end ---- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct conn *conn = handle->data;
    struct conns *conns = conn->conns;

    if (--conn->open_handles > 0)
        return;
    (void)close(conn->sock);
    if (conn->pidfd >= 0)
        (void)close(conn->pidfd);
    frame_reader_fini(&conn->reader);
    frame_writer_fini(&conn->writer);
    list_remove(&conn->link);
    conns->n--;
    account_unref(conn->client.account);
    free(conn);
    if (conns->n == 0 && conns->on_empty)
        conns->on_empty(conns->arg);
}

/* What the client held goes now; the struct with its last handle. */
static void conn_close(struct conn *conn, const char *why)
{
    struct client *client = &conn->client;

    if (conn->closing)
        return;
    conn->closing = true;
    client->gone = true;
    deadline_unset(conn->rpc->deadlines, &conn->hello);
    list_remove(&conn->unflushed);
    if (conn->greeted) {
        log_info("client %llu (%s, pid %d, uid %u) ends: %s; %u objects, %zu holds, %zu fetches",
                 (unsigned long long)client->id, client->name, (int)client->pid, client->account->owner.uid, why,
                 client->n_objects, map_count(&client->holds), map_count(&client->fetches));
        list_remove(&client->link);
        conn->rpc->n_clients--;
    }
    transfers_client_gone(conn->rpc->transfers, client);
    calls_client_gone(conn->rpc, client);
    while (!list_empty(&client->objects))
        object_free(list_entry(list_first(&client->objects), struct object, by_producer), false, OBJECT_END_OWNER_DIED);
    client_fini(client);
    (void)shutdown(conn->sock, SHUT_RDWR); /* a forked child may hold the other end open: it must see the end too */
    uv_close((uv_handle_t *)&conn->sock_poll, on_handle_closed);
    if (conn->pidfd >= 0)
        uv_close((uv_handle_t *)&conn->pid_poll, on_handle_closed);
}

/* ---- writing ---- */

static void set_events(struct conn *conn)
{
    size_t limit = conn->rpc->options->client_queue_bytes;
    int events = 0;

    if (conn->closing)
        return;
    if (!conn->draining && conn->writer.queued_bytes <= limit) /* who does not read is not read */
        events |= UV_READABLE;
    if (conn->writer.queued_frames > 0 || conn->held || conn->draining) /* the last two: what is left to do needs a turn */
        events |= UV_WRITABLE;
    if (events != conn->events)
        (void)uv_poll_start(&conn->sock_poll, events, on_socket);
    conn->events = events;
}

/* false: the connection is no more. */
static bool flush(struct conn *conn)
{
    struct rdt_error err = {0};
    enum rdt_status status = RDT_OK;

    if (conn->writer.queued_frames > 0)
        status = frame_writer_send(&conn->writer, conn->sock, &err);
    if (status != RDT_OK && status != RDT_AGAIN) {
        conn_close(conn, "its socket is closed");
        return false;
    }
    if (conn->draining && status == RDT_OK) {
        conn_close(conn, "it broke the protocol");
        return false;
    }
    set_events(conn);
    return true;
}

/* Before the loop sleeps: one write for all that was queued since, and no wait for a socket that has room. */
static void on_prepare(uv_prepare_t *prepare)
{
    struct conns *conns = prepare->data;

    while (!list_empty(&conns->unflushed)) {
        struct conn *conn = list_entry(list_first(&conns->unflushed), struct conn, unflushed);
        list_remove(&conn->unflushed);
        (void)flush(conn);
    }
}

/* Something is queued. on_socket flushes for itself, and a socket that was full tells when it has room. */
static void flush_soon(struct conn *conn)
{
    if (!conn->in_read && !(conn->events & UV_WRITABLE) && list_empty(&conn->unflushed))
        list_append(&conn->conns->unflushed, &conn->unflushed);
}

static void send_message(struct client *client, uint16_t type, uint8_t flags, uint64_t request_id,
                         const ProtobufCMessage *message, const int *take_fds, unsigned n_fds)
{
    struct conn *conn = (struct conn *)((char *)client - offsetof(struct conn, client));
    size_t bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *payload;

    if (conn->closing || bytes > RDT_MAX_FRAME_BYTES ||
        frame_writer_push(&conn->writer, type, flags, request_id, (uint32_t)bytes, take_fds, n_fds, &payload) != RDT_OK) {
        for (unsigned i = 0; i < n_fds; i++)
            (void)close(take_fds[i]);
        if (!conn->closing) {
            log_error("client %llu: an answer of %zu bytes cannot be queued: the connection ends",
                      (unsigned long long)client->id, bytes);
            conn->draining = true;
            flush_soon(conn);
        }
        return;
    }
    protobuf_c_message_pack(message, payload);
    flush_soon(conn);
}

static size_t queued_bytes(const struct client *client)
{
    return ((const struct conn *)((const char *)client - offsetof(struct conn, client)))->writer.queued_bytes;
}

/* ---- hello ---- */

static void refuse(struct conn *conn, const struct frame *frame, const struct rdt_error *err)
{
    Rdt__Pb__ErrorReply reply = RDT__PB__ERROR_REPLY__INIT;

    reply.status = err->status;
    reply.sys_errno = err->sys_errno;
    reply.message = (char *)err->msg;
    send_message(&conn->client, frame->type, FRAME_REPLY | FRAME_ERROR, frame->request_id, &reply.base, NULL, 0);
    log_warn("client %llu (pid %d, uid %u): %s", (unsigned long long)conn->client.id, (int)conn->client.pid,
             conn->client.account->owner.uid, err->msg);
    conn->draining = true;
}

static void on_hello(struct conn *conn, struct frame *frame)
{
    struct rpc *rpc = conn->rpc;
    struct client *client = &conn->client;
    Rdt__Pb__HelloReply reply = RDT__PB__HELLO_REPLY__INIT;
    Rdt__Pb__Hello *hello;
    struct rdt_error err = conn->refusal;
    struct arena arena;

    frame_close_fds(frame);
    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    hello = frame->type == RDT_MSG_HELLO ? rdt__pb__hello__unpack(&arena.allocator, frame->length, frame->payload) : NULL;
    if (err.status == RDT_OK && !hello)
        (void)rdt_error_set(&err, RDT_PROTOCOL, "the first message must be HELLO");
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
    conn->greeted = true;
    deadline_unset(rpc->deadlines, &conn->hello);
    list_append(&rpc->clients, &client->link);
    rpc->n_clients++;
    log_info("client %llu (%s, pid %d, uid %u) connects", (unsigned long long)client->id, client->name, (int)client->pid,
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
    send_message(client, RDT_MSG_HELLO, FRAME_REPLY, frame->request_id, &reply.base, NULL, 0);
    arena_fini(&arena);
}

static void on_hello_timeout(struct deadline *deadline)
{
    conn_close((struct conn *)((char *)deadline - offsetof(struct conn, hello)), "it never said hello");
}

/* ---- reading ---- */

/* Whole frames that have come. false: stop reading. */
static bool handle_frames(struct conn *conn)
{
    for (;;) {
        struct rdt_error err = {0};
        enum rdt_status status;
        struct frame frame;

        conn->held = conn->writer.queued_bytes > conn->rpc->options->client_queue_bytes;
        if (conn->held)
            return false;
        status = frame_reader_next(&conn->reader, &frame, &err);
        if (status == RDT_AGAIN)
            return true;
        if (status == RDT_OK) {
            if (!conn->greeted)
                on_hello(conn, &frame);
            else
                status = rpc_handle(conn->rpc, &conn->client, &frame, &err);
        }
        if (status != RDT_OK)
            refuse(conn, &frame, &err);
        if (conn->draining)
            return false;
    }
}

static void on_socket(uv_poll_t *poll, int uv_status, int events)
{
    struct conn *conn = poll->data;
    const char *end = NULL;

    if (uv_status < 0) {
        conn_close(conn, "its socket was reset"); /* libuv says EBADF for it */
        return;
    }
    if (events & UV_WRITABLE && !flush(conn))
        return;
    conn->in_read = true;
    /* First what back-pressure left: the socket may have nothing more to say. */
    if ((conn->held || events & UV_READABLE) && !conn->draining && handle_frames(conn) && events & UV_READABLE)
        for (int turn = 0; turn < READS_PER_TURN; turn++) {
            struct rdt_error err = {0};
            size_t n;
            enum rdt_status status = frame_reader_recv(&conn->reader, conn->sock, &n, &err);
            if (status == RDT_AGAIN)
                break;
            if (status != RDT_OK)
                end = status == RDT_DISCONNECTED ? "end of file" : "its socket failed";
            if (status == RDT_PROTOCOL) {
                struct frame none = {0};
                refuse(conn, &none, &err);
                end = NULL;
            }
            if (status != RDT_OK || !handle_frames(conn) || n < SHORT_READ_BYTES)
                break; /* a short read has drained the socket: asking once more would only cost a call */
        }
    conn->in_read = false;
    if (end)
        conn_close(conn, end);
    else if (!conn->closing)
        (void)flush(conn);
}

static void on_process_end(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    conn_close(poll->data, "its process is gone");
}

/* ---- the beginning ---- */

/* false: no memory. */
static bool identify(struct conn *conn)
{
    const struct options *options = conn->rpc->options;
    struct owner owner = {0};
    struct client *client = &conn->client;
    struct ucred cred = {.pid = 0, .uid = (uid_t)-1, .gid = (gid_t)-1};
    socklen_t bytes = sizeof cred;
    unsigned overflow = 65534;
    FILE *file = fopen("/proc/sys/kernel/overflowuid", "re");

    if (file) {
        if (fscanf(file, "%u", &overflow) != 1)
            overflow = 65534;
        (void)fclose(file);
    }
    if (getsockopt(conn->sock, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) != 0)
        (void)rdt_error_sys(&conn->refusal, errno, "the kernel does not say who this client is");
    client->pid = cred.pid;
    client->gid = cred.gid;
    owner.uid = cred.uid;
    (void)snprintf(owner.tenant, sizeof owner.tenant, "%s", options->tenant);
    client->account = account_get(conn->rpc->objects->accounts, &owner);
    if (!client->account)
        return false;
    client->admin = cred.uid == 0 || cred.uid == geteuid();
    if (cred.uid == overflow && !options->allow_overflow_uid)
        (void)rdt_error_set(
            &conn->refusal, RDT_DENIED,
            "uid %u is what the kernel shows for users it cannot map: such clients are refused (allow_overflow_uid)", overflow);
    if (conn->rpc->n_clients >= options->max_clients)
        (void)rdt_error_set(&conn->refusal, RDT_LIMIT, "this daemon serves max_clients of %u already", options->max_clients);
    bytes = sizeof conn->pidfd;
    if (getsockopt(conn->sock, SOL_SOCKET, SO_PEERPIDFD, &conn->pidfd, &bytes) != 0)
        conn->pidfd = cred.pid > 0 ? (int)syscall(SYS_pidfd_open, cred.pid, 0) : -1; /* kernels before 6.5 */
    if (conn->pidfd >= 0)
        (void)fcntl(conn->pidfd, F_SETFD, FD_CLOEXEC);
    return true;
}

void conn_start(struct conns *conns, int sock)
{
    struct conn *conn = calloc(1, sizeof *conn);

    if (!conn || conns->n >= conns->rpc->options->max_clients + 64u) {
        free(conn);
        (void)close(sock);
        return;
    }
    conn->rpc = conns->rpc;
    conn->conns = conns;
    conn->sock = sock;
    conn->pidfd = -1;
    list_init(&conn->unflushed);
    if (!identify(conn)) {
        free(conn);
        (void)close(sock);
        return;
    }
    client_init(&conn->client, conns->next_id++);
    conn->client.send = send_message;
    conn->client.queued_bytes = queued_bytes;
    frame_reader_init(&conn->reader, RDT_MAX_FRAME_BYTES);
    frame_writer_init(&conn->writer);
    conn->hello.on_passed = on_hello_timeout;
    (void)uv_poll_init(conns->rpc->loop, &conn->sock_poll, sock);
    conn->sock_poll.data = conn;
    conn->open_handles = 1;
    if (conn->pidfd >= 0) {
        (void)uv_poll_init(conns->rpc->loop, &conn->pid_poll, conn->pidfd);
        conn->pid_poll.data = conn;
        conn->open_handles = 2;
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
    list_for_each_safe (node, &conns->all) {
        struct conn *conn = list_entry(node, struct conn, link);
        if (!conn->closing && conn->writer.queued_frames > 0) /* the last answers; what the socket does not take is lost */
            (void)frame_writer_send(&conn->writer, conn->sock, NULL);
        conn_close(conn, "the daemon shuts down");
    }
    if (conns->n == 0)
        on_empty(arg);
}
