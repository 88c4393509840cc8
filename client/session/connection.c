/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving; the loss of the socket and what follows; and the threads that take turns to wait on it. */
#include "connection.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "clock.h"
#include "interrupt.h"
#include "process.h"
#include "proto/messages.h"
#include "proto/wire_ref.h"
#include "rdt.pb-c.h"
#include "socket.h"

#define STALLED_NS 10000000    /* between two attempts to send a stalled message */
#define DRAIN_NS 500000000     /* how long connection_drain waits for a daemon that does not read */
#define RETURN_NS 2000000000   /* how long connection_return waits for the next daemon */
#define LOOK_NS 2000000000     /* how often a thread that waits looks whether another daemon serves the path */
#define CATCH_UP_NS 1000000000 /* how long requests whose time is over wait for answers that keep coming */
#define CATCH_UP_MS 100        /* how long they wait for the next of these answers */
#define MAX_READS 256          /* at a time, so that a daemon that sends without pause cannot hide a deadline */

bool connection_is_forked(const rdt *conn)
{
    return conn->pid != process_pid();
}

enum rdt_status connection_check(const rdt *conn, struct rdt_error *err)
{
    if (!conn)
        return rdt_error_set(err, RDT_INVALID, "there is no connection: rdt is NULL");
    if (connection_is_forked(conn))
        return rdt_error_set(err, RDT_FORKED, "this connection belongs to process %ld, this is %ld: connect anew after a fork",
                             (long)conn->pid, (long)process_pid());
    return RDT_OK;
}

enum rdt_status connection_error_reply(const struct frame *frame, struct rdt_error *err)
{
    Rdt__Pb__ErrorReply *reply = rdt__pb__error_reply__unpack(NULL, frame->length, frame->payload);
    enum rdt_status status;

    if (!reply)
        return rdt_error_set(err, RDT_PROTOCOL, "rdtd answered with an error that cannot be read");
    status = wire_error(reply->status, reply->sys_errno, reply->message, err);
    rdt__pb__error_reply__free_unpacked(reply, NULL);
    return status;
}

/* ---- the lock ---- */

void connection_locks_init(rdt *conn)
{
    pthread_condattr_t attr;

    (void)pthread_mutex_init(&conn->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&conn->changed, &attr);
    (void)pthread_cond_init(&conn->copied, &attr);
    (void)pthread_condattr_destroy(&attr);
}

void connection_locks_fini(rdt *conn)
{
    (void)pthread_cond_destroy(&conn->changed);
    (void)pthread_cond_destroy(&conn->copied);
    (void)pthread_mutex_destroy(&conn->lock);
}

void connection_lock(rdt *conn)
{
    (void)pthread_mutex_lock(&conn->lock);
}

void connection_copy_node(const rdt *conn, struct rdt_node_info *node_p)
{
    rdt *mutable = (rdt *)conn; /* the change is not visible to the caller */

    (void)pthread_mutex_lock(&mutable->lock);
    *node_p = conn->node;
    (void)pthread_mutex_unlock(&mutable->lock);
}

static void set_event(rdt *conn, bool readable)
{
    uint64_t count = 1;

    if (readable == conn->loop.has_event || !fds_have_loop(conn))
        return;
    conn->loop.has_event = readable;
    /* Neither call can fail: the counter is 0 or 1, and the fd does not block. */
    if (readable)
        (void)!write(conn->loop.event_fd, &count, sizeof count);
    else
        (void)!read(conn->loop.event_fd, &count, sizeof count);
}

/* The kernel may refuse to send fds while too many fds of this user are in flight in sockets, and no event tells when there
 * are fewer. Returns when to try such a stalled message again; CLOCK_NEVER: nothing is stalled. */
static int64_t retry_at_ns(const rdt *conn)
{
    return conn->sending.writer.queued_frames > 0 && conn->sending.writer.stalled ? clock_now_ns() + STALLED_NS : CLOCK_NEVER;
}

/* Brings up to date what rdt_fd watches. */
static void update_fd(rdt *conn)
{
    int64_t next_ns = expiry_next_ns(&conn->calls.expiries), retry_ns = retry_at_ns(conn), due_ns = socket_due_ns(conn);
    bool wants_out = conn->sending.writer.queued_frames > 0 && (conn->sending.corks == 0 || conn->sending.blocked) &&
                     retry_ns == CLOCK_NEVER && socket_is_open(conn);

    if (retry_ns < next_ns)
        next_ns = retry_ns;
    if (due_ns < next_ns)
        next_ns = due_ns;
    if (conn->calls.look_ns < next_ns)
        next_ns = conn->calls.look_ns;
    if (wants_out != conn->loop.wants_out && fds_have_loop(conn) && fds_have_socket(conn)) {
        struct epoll_event event = {.events = wants_out ? EPOLLIN | EPOLLOUT : EPOLLIN};

        (void)epoll_ctl(conn->loop.epoll_fd, EPOLL_CTL_MOD, conn->socket.fd, &event);
        conn->loop.wants_out = wants_out;
    }
    if (next_ns != conn->loop.timer_ns && fds_have_loop(conn)) {
        struct itimerspec at = {0};

        if (next_ns != CLOCK_NEVER)
            at.it_value = clock_timespec(next_ns);
        (void)timerfd_settime(conn->loop.timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
        conn->loop.timer_ns = next_ns;
    }
    set_event(conn, conn->loop.unseen > 0 || !list_empty(&conn->watch.events) || !list_empty(&conn->arrived) ||
                        (connection_has_ended(conn) && !conn->told_lost));
}

/* Wakes the threads that the latest changes concern. The leader is woken by an fd, because its poll does not see what other
 * threads do under the lock. */
static void wake(rdt *conn)
{
    if (conn->waiters.polling && conn->waiters.wake_leader) {
        if (fd_mark_fits(&conn->waiters.wake_mark, conn->waiters.waker_fd))
            (void)!write(conn->waiters.waker_fd, "", 1); /* if the pipe is full, it wakes the leader anyway */
        conn->waiters.wake_leader = false;
    }
    /* If there is no leader, one of the followers must become it. */
    if (conn->waiters.followers > 0 && (conn->waiters.wake_followers || !conn->waiters.polling))
        (void)pthread_cond_broadcast(&conn->changed);
    conn->waiters.wake_followers = false;
    if (conn->loop.used)
        update_fd(conn);
}

/* Says that what the daemon wanted unmapped is: it does not free memory of a device before. */
static void tell_unmapped(rdt *conn, uint64_t n_gones)
{
    Rdt__Pb__Release request = RDT__PB__RELEASE__INIT;

    request.gone_events = n_gones;
    connection_lock(conn);
    (void)connection_send(conn, RDT_MSG_RELEASE, 0, &request.base, true, NULL);
    connection_unlock(conn);
}

void connection_unlock(rdt *conn)
{
    struct mapping *retired = memory_take_retired(&conn->memory);
    bool tells = retired && conn->memory.left_device && conn->state == CONNECTION_UP;
    uint64_t n_gones = conn->memory.n_gones;

    if (tells)
        conn->memory.left_device = false;
    wake(conn);
    (void)pthread_mutex_unlock(&conn->lock);
    retired = memory_unmap_or_reset(retired);
    if (retired) {
        (void)pthread_mutex_lock(&conn->lock);
        memory_keep(&conn->memory, retired);
        retired = memory_take_retired(&conn->memory);
        (void)pthread_mutex_unlock(&conn->lock);
        memory_unmap(retired);
    }
    if (tells)
        tell_unmapped(conn, n_gones);
}

/* ---- the loss of the connection ---- */

void connection_lose(rdt *conn, const struct rdt_error *why)
{
    if (connection_has_ended(conn))
        return;
    conn->why.lost = *why;
    if (socket_is_open(conn) && fds_have_socket(conn)) {
        /* The fd stays open until rdt_close: another thread may be polling it. */
        (void)shutdown(conn->socket.fd, SHUT_RDWR);
        (void)epoll_ctl(conn->loop.epoll_fd, EPOLL_CTL_DEL, conn->socket.fd, NULL);
    }
    socket_move(conn, CONNECTION_ENDED);
    conn->loop.wants_out = false;
    frame_writer_fini(&conn->sending.writer);
    for (struct pending *pending = pending_take_all(&conn->calls.pending), *next; pending; pending = next) {
        next = pending->next;
        pending->ops->on_lost(conn, pending, &conn->why.lost);
    }
    connection_notify(conn);
}

/* False: this process has closed the socket by its number, so the connection has just ended. */
static bool has_its_socket(rdt *conn)
{
    struct rdt_error why;

    if (!socket_is_open(conn) || fds_have_socket(conn))
        return true;
    (void)rdt_error_set(&why, RDT_DISCONNECTED, "this process has closed descriptor %d, its socket", conn->socket.fd);
    connection_lose(conn, &why);
    return false;
}

void connection_hang_up(rdt *conn, const struct rdt_error *why)
{
    bool was_up = conn->state == CONNECTION_UP;

    if (!conn->session.kept) {
        connection_lose(conn, why);
        return;
    }
    (void)pending_take(&conn->calls.pending, conn->calls.handshake.id); /* it waited on that socket alone */
    socket_leave(conn);
    if (was_up)
        conn->on.away(conn);
    connection_notify(conn);
}

static int by_id(const void *a, const void *b)
{
    const struct pending *first = *(struct pending *const *)a, *second = *(struct pending *const *)b;

    return first->id < second->id ? -1 : first->id > second->id;
}

static void resume(rdt *conn, struct pending *pending)
{
    pending->ops->on_resumed(conn, pending);
}

void connection_up(rdt *conn)
{
    size_t count = conn->calls.pending.count, n = 0;
    struct pending *all = pending_take_all(&conn->calls.pending), **sorted = malloc((count + 1) * sizeof(struct pending *));

    socket_move(conn, CONNECTION_UP);
    frame_writer_append(&conn->sending.writer, &conn->sending.later);
    for (struct pending *pending = all, *next; pending; pending = next) {
        next = pending->next;
        if (sorted)
            sorted[n++] = pending;
        else
            resume(conn, pending); /* in any order, rather than not at all */
    }
    if (n > 0)
        qsort(sorted, n, sizeof *sorted, by_id);
    for (size_t i = 0; i < n; i++)
        resume(conn, sorted[i]);
    free(sorted);
    connection_flush(conn);
    connection_notify(conn);
}

/* Looks after a connection that is neither UP nor ENDED: dials, or gives it up. */
static void attend(rdt *conn)
{
    struct rdt_error why;
    int64_t now_ns;

    if (conn->state == CONNECTION_UP || connection_has_ended(conn))
        return;
    now_ns = clock_now_ns();
    if (socket_dial(conn, now_ns)) {
        conn->on.dialled(conn);
    } else if (now_ns - conn->session.away_ns >= conn->session.grace_ns) {
        bool refused = conn->state == CONNECTION_AWAY && conn->session.dial_err.status;
        (void)rdt_error_set(&why, RDT_RESTARTED, "rdtd at %s ended, and no daemon continued this session within %.3f s%s%s",
                            conn->path, (double)conn->session.grace_ns / 1e9, refused ? ": " : "",
                            refused ? conn->session.dial_err.msg : "");
        connection_lose(conn, &why);
    }
}

/* ---- draining, corks ---- */

/* The socket takes a few hundred messages; the rest stays in the queue. Without this wait, nobody would send the rest before
 * the next call. A program that releases a list of objects and then computes for an hour would hold them for that hour. */
void connection_drain(rdt *conn)
{
    int64_t deadline_ns;

    if (!conn->sending.blocked || conn->sending.not_read || conn->sending.corks > 0)
        return;
    deadline_ns = clock_now_ns() + DRAIN_NS;
    while (conn->sending.blocked && !connection_has_ended(conn) && !conn->sending.not_read) {
        enum rdt_status status = connection_step(conn, deadline_ns);

        if (status == RDT_CANCELLED)
            break;
        conn->sending.not_read = status == RDT_TIMED_OUT && conn->sending.blocked;
    }
}

/* The socket is lost, whether that has been read from it or not. */
static bool is_away(const rdt *conn)
{
    return !connection_has_ended(conn) && (conn->state != CONNECTION_UP || conn->why.unsent.status != RDT_OK);
}

/* A daemon that can be reached has the whole time to go on with the session. */
static int64_t return_until_ns(const rdt *conn, int64_t most_ns)
{
    int64_t until_ns = conn->state == CONNECTION_AWAY ? conn->session.away_ns + RETURN_NS : most_ns;

    return until_ns < most_ns ? until_ns : most_ns;
}

void connection_return(rdt *conn)
{
    int64_t most_ns = clock_deadline_ns(RETURN_NS);

    if (!conn->session.kept || conn->loop.used || !is_away(conn))
        return;
    if (!conn->waiters.polling)
        connection_poll(conn); /* reads that the socket is lost, and dials */
    while (is_away(conn) && clock_now_ns() < return_until_ns(conn, most_ns))
        if (connection_step(conn, return_until_ns(conn, most_ns)) == RDT_CANCELLED)
            break;
}

void rdt_cork(rdt *conn)
{
    if (connection_check(conn, NULL) != RDT_OK)
        return;
    connection_lock(conn);
    conn->sending.corks++;
    connection_unlock(conn);
}

void rdt_uncork(rdt *conn)
{
    if (connection_check(conn, NULL) != RDT_OK)
        return;
    connection_lock(conn);
    conn->sending.corks -= conn->sending.corks > 0;
    if (conn->sending.corks == 0)
        connection_flush(conn);
    connection_drain(conn);
    connection_unlock(conn);
}

/* ---- receiving ---- */

static void handle(rdt *conn, struct frame *frame)
{
    struct rdt_error err;
    struct pending *pending;

    if (frame->flags & FRAME_EVENT) {
        conn->on.event(conn, frame);
        return;
    }
    if (!(frame->flags & FRAME_REPLY)) {
        (void)rdt_error_set(&err, RDT_PROTOCOL, "rdtd sent a frame of type %u that is neither reply nor event", frame->type);
        connection_lose(conn, &err);
        return;
    }
    pending = pending_take(&conn->calls.pending, frame->request_id);
    if (pending) {
        pending->ops->on_frame(conn, pending, frame);
    } else if (frame->request_id == 0 && (frame->flags & FRAME_ERROR)) {
        /* An error that answers no request says why the daemon is about to close the connection. */
        (void)connection_error_reply(frame, &err);
        if (err.status == RDT_SHUTTING_DOWN)
            connection_hang_up(conn, &err);
        else
            connection_lose(conn, &err);
    } else {
        conn->on.late_reply(conn, frame);
    }
}

/* Handles every complete frame that has been read. False: there is no socket any more. */
static bool handle_frames(rdt *conn)
{
    while (socket_is_open(conn)) {
        struct frame frame;
        struct rdt_error err;
        enum rdt_status status = frame_reader_next(&conn->reader, &frame, &err);

        if (status == RDT_AGAIN)
            return true;
        if (status != RDT_OK) {
            connection_lose(conn, &err);
            return false;
        }
        handle(conn, &frame);
        frame_close_fds(&frame);
    }
    return false;
}

/* Reads and handles frames. Without `all` it stops after the first read that ends with a complete frame; with `all` it goes
 * on until the socket is empty. Returns how often it read something. */
static unsigned receive(rdt *conn, bool all)
{
    unsigned reads = 0;

    (void)has_its_socket(conn);
    while (socket_is_open(conn) && reads < MAX_READS) {
        struct rdt_error err = {0};
        size_t n;
        enum rdt_status status = frame_reader_recv(&conn->reader, conn->socket.fd, &n, &err);

        if (status == RDT_AGAIN)
            return reads;
        if (status == RDT_DISCONNECTED && conn->why.unsent.status != RDT_OK)
            err = conn->why.unsent;
        if (err.status == RDT_DISCONNECTED)
            connection_hang_up(conn, &err);
        else if (status != RDT_OK)
            connection_lose(conn, &err);
        if (status != RDT_OK)
            return reads;
        reads++;
        if (!handle_frames(conn))
            return reads;
        if (!all && conn->reader.start == conn->reader.end)
            break;
    }
    return reads;
}

/* A client that was busy for long finds more answers than the socket holds. The daemon sends the others as soon as there is
 * room, so they are waited for as long as some come. */
static void catch_up(rdt *conn)
{
    int64_t until_ns = clock_now_ns() + CATCH_UP_NS;
    int n = 1;

    while (n == 1 && receive(conn, true) > 0 && socket_is_open(conn) && clock_now_ns() < until_ns) {
        struct pollfd pollfd = {.fd = conn->socket.fd, .events = POLLIN};

        n = poll(&pollfd, 1, CATCH_UP_MS);
        if (n < 0)
            interrupt_signalled();
    }
}

static void expire(rdt *conn)
{
    int64_t now_ns;

    if (conn->calls.expiries.count == 0)
        return;
    now_ns = clock_now_ns();
    while (expiry_next_ns(&conn->calls.expiries) <= now_ns) {
        struct expiry *expiry = conn->calls.expiries.at[1];

        expiry_remove(&conn->calls.expiries, expiry);
        conn->on.expired(conn, expiry);
    }
}

void connection_poll(rdt *conn)
{
    connection_flush(conn);
    receive(conn, true);
    attend(conn);
    if (conn->calls.look_ns != CLOCK_NEVER && clock_now_ns() >= conn->calls.look_ns)
        conn->on.look(conn);
    expire(conn);
}

/* ---- waiting ---- */

/* Without the lock: polls without sleeping for look_ns, then sleeps until an fd is ready or until_ns. Returns as ppoll does.
 * *crowded_p becomes true, and the busy polling ends, if other threads need the processor. */
static int wait_for(struct pollfd fds[2], int64_t until_ns, int64_t look_ns, bool *crowded_p)
{
    int64_t now_ns = look_ns > 0 ? clock_now_ns() : 0, end_ns = now_ns + look_ns;
    struct timespec left;

    if (until_ns < end_ns)
        end_ns = until_ns;
    while (now_ns < end_ns && !*crowded_p) {
        int n;

        *crowded_p = !poll_rule_yield(&now_ns);
        n = poll(fds, 2, 0);
        if (n != 0)
            return n;
    }
    if (until_ns != CLOCK_NEVER)
        left = clock_timespec(clock_remaining_ns(until_ns));
    return ppoll(fds, 2, until_ns != CLOCK_NEVER ? &left : NULL, NULL);
}

/* A daemon that was killed may never close its end (rdt-concepts(7), FAULTS). */
static void look_for_next_daemon(rdt *conn)
{
    struct rdt_error why;

    if (clock_now_ns() < conn->socket.look_ns)
        return;
    conn->socket.look_ns = clock_now_ns() + LOOK_NS;
    if (conn->state != CONNECTION_UP || !socket_is_superseded(conn))
        return;
    (void)rdt_error_set(&why, RDT_DISCONNECTED, "another rdtd serves %s now", conn->path);
    connection_hang_up(conn, &why);
}

/* Polls as the leader until something happens or until_ns, and handles what happened. */
static void lead(rdt *conn, int64_t until_ns)
{
    int sock = socket_is_open(conn) ? conn->socket.fd : -1;
    struct pollfd fds[2] = {{.fd = sock, .events = POLLIN}, {.fd = conn->waiters.wake_fd, .events = POLLIN}};
    int64_t retry_ns = retry_at_ns(conn), due_ns = socket_due_ns(conn);
    bool crowded = false, polls = conn->waiters.rule.max_ns > 0 && conn->state == CONNECTION_UP;
    int64_t look_ns;
    int n;

    if (retry_ns < until_ns)
        until_ns = retry_ns;
    else if (conn->sending.writer.queued_frames > 0 && retry_ns == CLOCK_NEVER)
        fds[0].events |= POLLOUT;
    if (due_ns < until_ns)
        until_ns = due_ns;
    if (conn->socket.look_ns < until_ns)
        until_ns = conn->socket.look_ns;
    conn->waiters.polling = true;
    conn->waiters.wake_leader = false;
    look_ns = polls ? poll_rule_begin(&conn->waiters.rule, clock_now_ns()) : 0;
    connection_unlock(conn);

    n = wait_for(fds, until_ns, look_ns, &crowded);
    if (n < 0)
        interrupt_signalled();

    connection_lock(conn);
    conn->waiters.polling = false;
    socket_close_stale(conn);
    if (crowded)
        poll_rule_crowded(&conn->waiters.rule, clock_now_ns());
    if (polls && n > 0 && fds[0].revents & POLLIN)
        poll_rule_end(&conn->waiters.rule, clock_now_ns());
    if (retry_ns != CLOCK_NEVER)
        connection_flush(conn);
    if (n > 0 && fds[1].revents) {
        char wakes[64];

        if (fds_have_wake(conn))
            (void)!read(conn->waiters.wake_fd, wakes, sizeof wakes);
    }
    attend(conn);
    if (n == 0 && sock == conn->socket.fd)
        look_for_next_daemon(conn);
    if (n <= 0 || sock != conn->socket.fd)
        return; /* the time is over, a signal interrupted the poll, or the socket has been replaced */
    if (fds[0].revents & POLLOUT)
        connection_flush(conn);
    if (fds[0].revents & ~POLLOUT)
        receive(conn, false);
}

/* Sleeps as a follower until the leader wakes it or until_ns. */
static void follow(rdt *conn, int64_t until_ns)
{
    wake(conn);
    conn->waiters.followers++;
    if (until_ns == CLOCK_NEVER) {
        (void)pthread_cond_wait(&conn->changed, &conn->lock);
    } else {
        struct timespec until = clock_timespec(until_ns);

        (void)pthread_cond_timedwait(&conn->changed, &conn->lock, &until);
    }
    conn->waiters.followers--;
}

bool connection_is_interrupted(rdt *conn)
{
    int64_t due_ns = interrupt_due_ns();
    bool yes;

    if (due_ns == CLOCK_NEVER || clock_now_ns() < due_ns)
        return false;
    connection_unlock(conn);
    yes = interrupt_ask();
    connection_lock(conn);
    return yes;
}

enum rdt_status connection_step(rdt *conn, int64_t deadline_ns)
{
    int64_t until_ns = expiry_next_ns(&conn->calls.expiries), ask_ns = interrupt_due_ns();

    if (conn->sending.corks > 0)
        connection_flush(conn); /* a thread that waits sends the corked messages of all threads */
    if (ask_ns != CLOCK_NEVER && clock_now_ns() >= ask_ns)
        return connection_is_interrupted(conn) ? RDT_CANCELLED : RDT_OK;
    if (until_ns > deadline_ns)
        until_ns = deadline_ns;
    if (until_ns != CLOCK_NEVER && clock_now_ns() >= until_ns) {
        /* An answer that came in time counts, even if nobody has read it until now. */
        if (clock_now_ns() >= expiry_next_ns(&conn->calls.expiries))
            catch_up(conn);
        connection_poll(conn);
        return clock_now_ns() >= deadline_ns ? RDT_TIMED_OUT : RDT_OK;
    }
    if (until_ns > ask_ns)
        until_ns = ask_ns;
    if (conn->waiters.polling)
        follow(conn, until_ns);
    else if (has_its_socket(conn))
        lead(conn, until_ns);
    return RDT_OK;
}

void connection_close_early(struct connection_early *early)
{
    for (size_t i = 0; i < early->n; i++)
        if (early->fds[i] >= 0)
            (void)close(early->fds[i]);
    free(early->fds);
    *early = (struct connection_early){0};
}
