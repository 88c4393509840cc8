/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_connect, rdt_close and rdt_node. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "call.h"
#include "fetch.h"
#include "fetched.h"
#include "memory/batch.h"
#include "memory/copying.h"
#include "memory/loans.h"
#include "memory/mappers.h"
#include "memory/room.h"
#include "options.h"
#include "proto/std_fds.h"
#include "proto/wire_limits.h"
#include "rdt.pb-c.h"
#include "request.h"
#include "resume.h"
#include "session/clock.h"
#include "session/connection.h"
#include "session/events.h"
#include "session/interrupt.h"
#include "session/process.h"
#include "session/server.h"
#include "session/socket.h"

#define DEFAULT_SOCKET "/run/rdtd/rdtd.sock"
#define DEFAULT_TIMEOUT_NS (INT64_C(10) * 1000000000)
#define RESTART_NS (INT64_C(2) * 1000000000) /* how long rdt_connect waits for the daemon that follows one that was killed */

/* ---- closing ---- */

static void close_fd(int fd)
{
    if (fd >= 0)
        (void)close(fd);
}

static void leave_open(struct fd_sink *sink, int take_fd) {}

/* If this process has closed descriptors by their numbers, those of messages on their way are not the connection's either. */
static void let_go_of_frames(rdt *conn)
{
    static struct fd_sink sink = {.close = leave_open};

    if (!fds_have_wake(conn)) {
        conn->reader.sink = conn->sending.writer.sink = conn->sending.later.sink = &sink;
        conn->calls.early.n = 0;
    }
    connection_close_early(&conn->calls.early);
    frame_writer_fini(&conn->sending.writer);
    frame_writer_fini(&conn->sending.later);
    frame_reader_fini(&conn->reader);
}

#define CLOSE_NS 1000000000                   /* how long rdt_close tries to tell the daemon, or the next one */
#define DEVICES_NS (INT64_C(10) * 1000000000) /* how long it waits for copies that devices make */

/* Ends and frees everything that lives on the connection, except the fds. Nothing is sent any more. */
static void free_all(rdt *conn)
{
    struct rdt_error why = {.status = RDT_DISCONNECTED, .msg = "rdt_close was called"};

    conn->state = CONNECTION_ENDED;
    conn->why.lost = why;
    if (conn->calls.pending.buckets) {
        for (struct pending *pending = pending_take_all(&conn->calls.pending), *next; pending; pending = next) {
            next = pending->next;
            pending->ops->on_lost(conn, pending, &why);
        }
    }
    list_drain (rdt_request, request, &conn->requests, link)
        request_destroy(request);
    copying_look(conn); /* none goes on (copying_await), so all are released */
    list_drain (rdt_object, object, &conn->objects, link)
        fetched_destroy(object);
    events_fini(conn);
    ids_fini(&conn->calls.abandoned);
    room_forget(conn);
    batches_fini(conn);
    loans_fini(conn);
    memory_fini(&conn->memory);
    pending_fini(&conn->calls.pending);
    expiry_fini(&conn->calls.expiries);
    let_go_of_frames(conn);
}

/* Closes a forked child's copy. The socket is the parent's, so nothing is sent on it and it is not shut down. The parent's
 * threads do not exist here. */
static void close_in_child(rdt *conn)
{
    if (pthread_mutex_trylock(&conn->lock) != 0) {
        fds_close(conn);
        return; /* one of them was changing the connection during the fork, so only its fds are in a known state */
    }
    pending_fini(&conn->calls.pending); /* its entries lie on the stacks of those threads */
    if (!pending_init(&conn->calls.pending)) {
        fds_close(conn);
        return;
    }
    list_each (rdt_request, request, &conn->requests, link)
        request->copying = false;
    free_all(conn);
    fds_close(conn);
    free(conn); /* The conditions are not destroyed: that would wait for threads that sleep on them in the parent. */
}

/* A session that outlasts its daemon ends when the daemon knows it, and not by the end of the socket, which a daemon that is
 * killed does not see: the next one would have the session until this process ends. */
static void say_close(rdt *conn, int64_t timeout_ns)
{
    Rdt__Pb__Close request = RDT__PB__CLOSE__INIT;

    if (conn->session.kept)
        (void)call(conn, RDT_MSG_CLOSE, &request.base, timeout_ns, NULL, NULL);
}

/* With the lock, which it releases. */
static void close_now(rdt *conn, int64_t timeout_ns)
{
    conn->sending.corks = 0;
    connection_flush(conn); /* a corked message may concern what outlives the session, such as a detached object */
    connection_unlock(conn);
    say_close(conn, timeout_ns);
    connection_lock(conn);
    free_all(conn);
    fds_close(conn);
    (void)pthread_mutex_unlock(&conn->lock);
    connection_locks_fini(conn);
    free(conn);
}

/* Those that were closed while a device did not make its copies. The daemon would give the memory of the copies to others once
 * it knew of the end, so the session goes on, and the device's mappings stay. Linked by calls.next_left. */
static _Atomic(rdt *) left_conns;

static void leave(rdt *conn)
{
    rdt *next = atomic_load(&left_conns);

    do
        conn->calls.next_left = next;
    while (!atomic_compare_exchange_weak(&left_conns, &next, conn));
}

/* Closes those whose devices have made their copies since, and in a forked child its copies of all of the parent's. */
static void close_left(int64_t deadline_ns)
{
    for (rdt *conn = atomic_exchange(&left_conns, NULL), *next; conn; conn = next) {
        next = conn->calls.next_left;
        if (connection_is_forked(conn)) {
            close_in_child(conn);
            continue;
        }
        connection_lock(conn);
        if (copying_await(conn, 0)) {
            close_now(conn, clock_remaining_ns(deadline_ns));
        } else {
            connection_unlock(conn);
            leave(conn);
        }
    }
}

/* Releases everything but what the copies use, the objects that streams may read as long as a mapper's library is busy, and the
 * memory and the objects of the session. With the lock, which it releases. Nobody will read what the daemon says, and it frees
 * no memory of a device that this process keeps mapped, so the daemon is told that nothing is kept. */
static void release_all(rdt *conn)
{
    Rdt__Pb__DropCached drop = RDT__PB__DROP_CACHED__INIT;
    Rdt__Pb__Release unmapped = RDT__PB__RELEASE__INIT;
    bool busy = mapper_is_busy(conn);

    list_drain (rdt_request, request, &conn->requests, link)
        request_destroy(request);
    list_each_safe (rdt_object, object, &conn->objects, link)
        if (!busy && !copying_reads(object))
            fetched_destroy(object);
    conn->sending.corks = 0;
    connection_flush(conn);
    memory_uncache_all(&conn->memory);
    connection_unlock(conn);
    (void)call(conn, RDT_MSG_DROP_CACHED, &drop.base, CLOSE_NS, NULL, NULL);
    connection_lock(conn);
    unmapped.gone_events = conn->memory.n_gones;
    (void)connection_send(conn, RDT_MSG_RELEASE, 0, &unmapped.base, true, NULL);
    connection_unlock(conn);
}

void rdt_close(rdt *conn)
{
    if (!conn)
        return;
    close_left(clock_deadline_ns(CLOSE_NS));
    if (connection_is_forked(conn)) {
        close_in_child(conn);
        return;
    }
    connection_lock(conn);
    if (copying_await(conn, clock_deadline_ns(DEVICES_NS))) {
        close_now(conn, CLOSE_NS);
        return;
    }
    release_all(conn);
    leave(conn);
}

/* ---- opening ---- */

static enum rdt_status open_fds(rdt *conn, int take_sock, struct rdt_error *err)
{
    int sys_errno;

    conn->socket.fd = take_sock;
    fd_mark_set(&conn->socket.mark, take_sock);
    conn->socket.n = 1;
    conn->socket.stale = conn->waiters.wake_fd = conn->waiters.waker_fd = -1;
    conn->loop.epoll_fd = conn->loop.timer_fd = conn->loop.event_fd = -1;
    sys_errno = fds_open(conn);
    if (sys_errno == 0 && !fds_watch(conn, conn->socket.fd, EPOLLIN))
        sys_errno = errno;
    if (sys_errno != 0)
        return rdt_error_sys(err, sys_errno, "cannot open the fds of a connection");
    return RDT_OK;
}

static void on_expired(rdt *conn, struct expiry *expiry)
{
    if (expiry == &conn->room.retry)
        room_retry(conn);
    else
        request_on_expired(conn, expiry);
}

/* Takes the socket, on an error too. */
static enum rdt_status create(int take_sock, const struct rdt_connect_options *options, rdt **conn_p, struct rdt_error *err)
{
    const char *name = options->name ? options->name : program_invocation_short_name;
    rdt *conn = calloc(1, sizeof *conn);
    enum rdt_status status;

    if (!conn) {
        close_fd(take_sock);
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a connection");
    }
    conn->pid = process_pid();
    (void)stpncpy(conn->name, name, sizeof conn->name - 1); /* calloc has terminated it */
    conn->daemon_uid = options->daemon_uid;
    conn->on.event = fetch_on_event;
    conn->on.late_reply = call_on_late_reply;
    conn->on.expired = on_expired;
    conn->on.look = copying_look;
    conn->on.away = resume_on_away;
    conn->on.dialled = resume_on_dialled;
    conn->loop.timer_ns = conn->calls.look_ns = CLOCK_NEVER;
    list_init(&conn->batches);
    list_init(&conn->room.answers);
    list_init(&conn->room.again);
    list_init(&conn->loans_idle);
    list_init(&conn->loans_active);
    list_init(&conn->requests);
    list_init(&conn->objects);
    list_init(&conn->arrived);
    list_init(&conn->calls.copies);
    list_init(&conn->watch.events);
    frame_reader_init(&conn->reader, RDT_MAX_FRAME_BYTES);
    frame_writer_init(&conn->sending.writer);
    frame_writer_init(&conn->sending.later);
    connection_locks_init(conn);
    status = open_fds(conn, take_sock, err);
    if (status == RDT_OK && (!pending_init(&conn->calls.pending) || !memory_init(&conn->memory)))
        status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a connection");
    if (status == RDT_OK)
        *conn_p = conn;
    else
        rdt_close(conn);
    return status;
}

static enum rdt_status refused(const char *path, int sys_errno, struct rdt_error *err)
{
    char reason[128];
    const char *hint = "";
    struct stat file;
    enum rdt_status status = RDT_SYSTEM;

    if (sys_errno == ECONNREFUSED && stat(path, &file) == 0 && !S_ISSOCK(file.st_mode))
        return rdt_error_set(err, RDT_DISCONNECTED, "cannot reach rdtd at %s: it is no socket (set RDT_SOCKET to the daemon's)",
                             path);
    switch (sys_errno) {
    case ENOENT:
    case ECONNREFUSED:
        status = RDT_DISCONNECTED;
        hint = " (is the daemon running? set RDT_SOCKET to another socket)";
        break;
    case EACCES:
    case EPERM:
        hint = " (this user may not open the socket)";
        break;
    default:
        break;
    }
    (void)rdt_error_set(err, status, "cannot reach rdtd at %s: %s%s", path, strerror_r(sys_errno, reason, sizeof reason), hint);
    if (err)
        err->sys_errno = sys_errno;
    return status;
}

/* Returns 0 or errno; EINTR: rdt_interrupt_by. A connect to a Unix socket waits for room in the daemon's backlog, as long as
 * SO_SNDTIMEO says. */
static int dial(int sock, const struct sockaddr_un *address, int64_t deadline_ns)
{
    for (;;) {
        int64_t left_ns = clock_remaining_ns(interrupt_due_ns() < deadline_ns ? interrupt_due_ns() : deadline_ns);
        struct timeval left = {.tv_sec = left_ns / 1000000000, .tv_usec = left_ns % 1000000000 / 1000};

        if (clock_remaining_ns(deadline_ns) == 0)
            return EAGAIN;
        if (left_ns >= 0 && left.tv_sec == 0 && left.tv_usec == 0)
            left.tv_usec = 1; /* 0 would mean without end */
        if (left_ns >= 0)
            (void)setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &left, sizeof left);
        if (connect(sock, (const struct sockaddr *)address, sizeof *address) == 0)
            return 0;
        if (errno == EINTR)
            interrupt_signalled();
        else if (errno != EAGAIN)
            return errno;
        if (interrupt_ask())
            return EINTR;
    }
}

/* A daemon that was killed leaves its socket there, and nobody accepts until the next one has started. */
static int dial_the_next(int sock, const struct sockaddr_un *address, int64_t deadline_ns)
{
    int64_t until_ns = clock_deadline_ns(RESTART_NS), delay_ns = 1000000;
    int sys_errno;

    while ((sys_errno = dial(sock, address, deadline_ns)) == ECONNREFUSED) {
        int64_t next_ns = clock_now_ns() + delay_ns;
        struct timespec delay = clock_timespec(delay_ns);

        if (next_ns > until_ns || next_ns > deadline_ns)
            break;
        if (nanosleep(&delay, NULL) < 0)
            interrupt_signalled();
        if (interrupt_ask())
            return EINTR;
        delay_ns = delay_ns < RESTART_NS / 20 ? 2 * delay_ns : delay_ns;
    }
    return sys_errno;
}

static enum rdt_status open_socket(const char *path, uint32_t daemon_uid, int64_t deadline_ns, int *sock_p,
                                   struct rdt_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t bytes = strlen(path);
    int sock, sys_errno;
    enum rdt_status status;

    if (bytes >= sizeof address.sun_path)
        return rdt_error_set(err, RDT_INVALID, "the socket's path is longer than %zu bytes: %s", sizeof address.sun_path - 1,
                             path);
    memcpy(address.sun_path, path, bytes + 1);
    sock = std_fds_avoid(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (sock < 0)
        return rdt_error_sys(err, errno, "socket");
    sys_errno = dial_the_next(sock, &address, deadline_ns);
    status = sys_errno == 0 ? server_check(sock, path, daemon_uid, err) : RDT_SYSTEM;
    if (status == RDT_OK) {
        *sock_p = sock; /* It stays blocking: reads and writes pass MSG_DONTWAIT. */
        return RDT_OK;
    }
    close_fd(sock);
    if (sys_errno == 0)
        return status;
    if (sys_errno == EINTR)
        return rdt_error_set(err, RDT_CANCELLED, "the call was interrupted while it connected to rdtd at %s", path);
    if (sys_errno == EAGAIN)
        return rdt_error_set(err, RDT_TIMED_OUT, "rdtd at %s did not accept the connection before the deadline", path);
    return refused(path, sys_errno, err);
}

static enum rdt_status say_hello(rdt *conn, int64_t deadline_ns, struct rdt_error *err)
{
    Rdt__Pb__Hello request;
    ProtobufCMessage *answer;
    uint64_t busy_poll_ns;
    enum rdt_status status;

    resume_fill_hello(conn, &request);
    status = call_fds(conn, RDT_MSG_HELLO, &request.base, -1, deadline_ns, &answer, NULL, err);
    if (status != RDT_OK)
        return status;
    status = resume_read_hello(conn, (const Rdt__Pb__HelloReply *)answer, err);
    conn->can.inline_max_bytes = ((const Rdt__Pb__HelloReply *)answer)->inline_max_bytes;
    if (conn->can.inline_max_bytes > RDT_INLINE_MAX_BYTES)
        conn->can.inline_max_bytes = RDT_INLINE_MAX_BYTES;
    conn->can.tensor_runs = ((const Rdt__Pb__HelloReply *)answer)->tensor_runs;
    conn->can.loans = ((const Rdt__Pb__HelloReply *)answer)->loans;
    busy_poll_ns = ((const Rdt__Pb__HelloReply *)answer)->busy_poll_ns;
    poll_rule_init(&conn->waiters.rule, busy_poll_ns < RDT_BUSY_POLL_MAX_NS ? (int64_t)busy_poll_ns : RDT_BUSY_POLL_MAX_NS);
    protobuf_c_message_free_unpacked(answer, NULL);
    return status;
}

/* Remembers where to dial again, wherever this process changes its working directory to. */
static void set_path(rdt *conn, const char *path)
{
    char here[sizeof conn->path];
    bool fits = path[0] != '/' && getcwd(here, sizeof here) && strlen(here) + 1 + strlen(path) < sizeof conn->path;

    (void)snprintf(conn->path, sizeof conn->path, "%s%s%s", fits ? here : "", fits ? "/" : "", path);
    socket_note_file(conn);
}

static const char *socket_path(const struct rdt_connect_options *options)
{
    const char *path = options->socket ? options->socket : getenv("RDT_SOCKET");

    return path && path[0] ? path : DEFAULT_SOCKET;
}

static enum rdt_status named_uid(uint32_t *uid_p, struct rdt_error *err)
{
    const char *text = secure_getenv("RDT_DAEMON_UID");
    unsigned long uid;
    char *end;

    if (!text || !text[0])
        return RDT_OK;
    errno = 0;
    uid = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || uid >= UINT32_MAX)
        return rdt_error_set(err, RDT_INVALID, "RDT_DAEMON_UID is \"%s\": set it to the number of the daemon's user", text);
    *uid_p = (uint32_t)uid;
    return RDT_OK;
}

static enum rdt_status connect_once(const char *path, const struct rdt_connect_options *options, int64_t deadline_ns,
                                    rdt **rdt_p, struct rdt_error *err)
{
    rdt *conn = NULL;
    int sock = -1;
    enum rdt_status status = open_socket(path, options->daemon_uid, deadline_ns, &sock, err);

    if (status == RDT_OK)
        status = create(sock, options, &conn, err);
    if (status != RDT_OK)
        return status;
    status = say_hello(conn, deadline_ns, err);
    if (status == RDT_OK) {
        set_path(conn, path);
        *rdt_p = conn;
    } else {
        rdt_error_prefix(err, "hello to rdtd at %s", path);
        rdt_close(conn);
        if (status == RDT_DISCONNECTED) /* the daemon ended meanwhile; AGAIN: the next one may be there soon */
            status = RDT_AGAIN;
    }
    return status;
}

enum rdt_status rdt_connect(const struct rdt_connect_options *options, rdt **rdt_p, struct rdt_error *err)
{
    struct rdt_connect_options own;
    int64_t deadline_ns, until_ns = clock_deadline_ns(RESTART_NS);
    enum rdt_status status = options_copy(&own, sizeof own, options, err);

    if (status == RDT_OK && !rdt_p)
        status = rdt_error_set(err, RDT_INVALID, "rdt_p is NULL");
    if (status == RDT_OK && own.daemon_uid == 0)
        status = named_uid(&own.daemon_uid, err);
    if (status != RDT_OK)
        return status;
    deadline_ns = clock_deadline_ns(own.timeout_ns == 0             ? DEFAULT_TIMEOUT_NS
                                    : own.timeout_ns == RDT_NO_WAIT ? CLOCK_NO_WAIT_NS
                                                                    : own.timeout_ns);
    if (until_ns > deadline_ns)
        until_ns = deadline_ns;
    close_left(until_ns);
    do
        status = connect_once(socket_path(&own), &own, deadline_ns, rdt_p, err);
    while (status == RDT_AGAIN && clock_now_ns() < until_ns);
    return status == RDT_AGAIN ? RDT_DISCONNECTED : status;
}

enum rdt_status rdt_node(rdt *conn, struct rdt_node_info *info_p, struct rdt_error *err)
{
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && !info_p)
        status = rdt_error_set(err, RDT_INVALID, "info_p is NULL");
    if (status == RDT_OK)
        connection_copy_node(conn, info_p);
    return status;
}
