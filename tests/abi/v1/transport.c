/* A transport by files: each end of a connection has a folder of its own below one that both nodes see, and whoever sends puts a file
 * there for each chunk, named by transfer and chunk. A lock that each end holds tells the other that it lives.
 *
 * Each connection has a thread, which does all that touches files; lists and flags are under the connection's mutex.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plugin.h"

#define NAME_CHARS 32
#define LOOK_MS 100 /* how often a peer's life is looked at */

struct transport {
    struct rdt_host host;
    int dir;
};

/* Linked by priv[0]; priv[1] is the status of one that has ended. */
struct ops {
    struct rdt_op *first;
};

struct conn {
    struct transport *transport;
    void *ctx;
    char inbox_name[NAME_CHARS + 1], outbox_name[NAME_CHARS + 1];
    int inbox, outbox, lock, peer_lock, notify, wake;
    pthread_t thread;
    pthread_mutex_t mutex;
    struct ops sends, recvs, ended;
    bool connected, failed, closing, silent;
};

/* ---- lists ---- */

static void append(struct ops *ops, struct rdt_op *op)
{
    struct rdt_op **at = &ops->first;

    while (*at)
        at = (struct rdt_op **)&(*at)->priv[0];
    op->priv[0] = NULL;
    *at = op;
}

/* op NULL: the first one. */
static struct rdt_op *take(struct ops *ops, const struct rdt_op *op)
{
    struct rdt_op **at = &ops->first, *taken;

    while (*at && op && *at != op)
        at = (struct rdt_op **)&(*at)->priv[0];
    taken = *at;
    if (taken)
        *at = taken->priv[0];
    return taken;
}

static struct rdt_op *take_key(struct ops *ops, uint64_t transfer, uint64_t chunk)
{
    struct rdt_op *op = ops->first;

    while (op && (op->transfer != transfer || op->chunk != chunk))
        op = op->priv[0];
    return op ? take(ops, op) : NULL;
}

static void wake(struct conn *conn)
{
    (void)eventfd_write(conn->wake, 1);
}

/* ---- the thread ---- */

static void fail(struct conn *conn, const char *why)
{
    bool tell;

    (void)pthread_mutex_lock(&conn->mutex);
    tell = !conn->failed && !conn->closing;
    conn->failed = true;
    (void)pthread_mutex_unlock(&conn->mutex);
    if (tell)
        conn->transport->host.conn_failed(conn->ctx, RDT_PEER_LOST, why);
}

static bool open_outbox(struct conn *conn)
{
    int claim;

    conn->outbox = openat(conn->transport->dir, conn->outbox_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (conn->outbox < 0)
        return false;
    claim = openat(conn->outbox, "claimed", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600); /* an offer is taken once */
    if (claim < 0)
        return false;
    (void)close(claim);
    conn->peer_lock = openat(conn->outbox, "alive", O_RDONLY | O_CLOEXEC);
    return conn->peer_lock >= 0 && flock(conn->peer_lock, LOCK_SH | LOCK_NB) != 0; /* its holder lives */
}

static bool move_all(int fd, void *addr, uint64_t bytes, bool out)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t n = out ? write(fd, (char *)addr + done, bytes - done) : read(fd, (char *)addr + done, bytes - done);

        if (n <= 0 && !(n < 0 && errno == EINTR))
            return false;
        done += n > 0 ? (uint64_t)n : 0;
    }
    return true;
}

static bool send_file(struct conn *conn, const struct rdt_op *op)
{
    char name[48], whole[40];
    int fd;
    bool sent;

    (void)snprintf(whole, sizeof whole, "%016" PRIx64 "-%016" PRIx64, op->transfer, op->chunk);
    (void)snprintf(name, sizeof name, ".%s", whole);
    fd = openat(conn->outbox, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    sent = fd >= 0 && move_all(fd, op->piece.addr, op->piece.bytes, true) &&
           renameat(conn->outbox, name, conn->outbox, whole) == 0;
    if (fd >= 0)
        (void)close(fd);
    return sent;
}

static void receive_file(struct conn *conn, const char *name)
{
    const struct rdt_host *host = &conn->transport->host;
    uint64_t transfer, chunk;
    struct rdt_op *op = NULL;
    struct stat st;
    int fd = -1;

    if (sscanf(name, "%16" SCNx64 "-%16" SCNx64, &transfer, &chunk) == 2)
        fd = openat(conn->inbox, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)pthread_mutex_lock(&conn->mutex);
    op = take_key(&conn->recvs, transfer, chunk);
    (void)pthread_mutex_unlock(&conn->mutex);
    if (op && (fstat(fd, &st) || (uint64_t)st.st_size != op->piece.bytes))
        host->op_done(op, RDT_TRANSPORT, "the peer sent another length");
    else if (op && !move_all(fd, op->piece.addr, op->piece.bytes, false))
        host->op_done(op, RDT_TRANSPORT, "reading what the peer sent");
    else if (op)
        host->op_done(op, RDT_OK, NULL);
    (void)close(fd);
    (void)unlinkat(conn->inbox, name, 0);
}

static void receive_files(struct conn *conn)
{
    union {
        struct inotify_event event;
        char bytes[8192];
    } buffer;
    ssize_t n;

    while ((n = read(conn->notify, &buffer, sizeof buffer)) > 0) {
        for (ssize_t at = 0; at < n;) {
            struct inotify_event event;
            const char *name = buffer.bytes + at + sizeof event;

            memcpy(&event, buffer.bytes + at, sizeof event);
            at += (ssize_t)(sizeof event + event.len);
            if (event.mask & IN_Q_OVERFLOW)
                fail(conn, "too much came at once");
            else if (event.len > 0 && name[0] != '.')
                receive_file(conn, name);
        }
    }
}

/* The mutex is held, and given up meanwhile. False: nothing to do. */
static bool do_one(struct conn *conn)
{
    const struct rdt_host *host = &conn->transport->host;
    struct rdt_op *op = take(&conn->ended, NULL);

    if (op) {
        (void)pthread_mutex_unlock(&conn->mutex);
        host->op_done(op, RDT_CANCELLED, NULL);
        (void)pthread_mutex_lock(&conn->mutex);
        return true;
    }
    if (!conn->connected || conn->failed)
        return false;
    if (conn->peer_lock < 0) {
        (void)pthread_mutex_unlock(&conn->mutex);
        if (!open_outbox(conn))
            fail(conn, "the peer's folder is not there, or another has it");
        (void)pthread_mutex_lock(&conn->mutex);
        return true;
    }
    op = take(&conn->sends, NULL);
    if (!op)
        return false;
    (void)pthread_mutex_unlock(&conn->mutex);
    if (send_file(conn, op)) {
        host->op_done(op, RDT_OK, NULL);
    } else {
        host->op_done(op, RDT_TRANSPORT, "writing into the peer's folder");
        fail(conn, "the peer's folder cannot be written");
    }
    (void)pthread_mutex_lock(&conn->mutex);
    return true;
}

static void clear_inbox(struct conn *conn)
{
    int fd = fcntl(conn->inbox, F_DUPFD_CLOEXEC, 0);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;

    while (dir && (entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)unlinkat(conn->inbox, entry->d_name, 0);
    if (dir)
        (void)closedir(dir);
    (void)unlinkat(conn->transport->dir, conn->inbox_name, AT_REMOVEDIR);
}

/* The mutex is held for the last time. */
static void end(struct conn *conn)
{
    struct ops *all[] = {&conn->ended, &conn->sends, &conn->recvs};
    bool silent = conn->silent;

    (void)pthread_mutex_unlock(&conn->mutex);
    for (unsigned i = 0; i < 3; i++)
        for (struct rdt_op *op; (op = take(all[i], NULL));)
            conn->transport->host.op_done(op, RDT_CANCELLED, "the connection was ended");
    clear_inbox(conn);
    if (!silent)
        conn->transport->host.conn_closed(conn->ctx);
}

static void *thread_main(void *arg)
{
    struct conn *conn = arg;
    struct pollfd fds[] = {{.fd = conn->wake, .events = POLLIN}, {.fd = conn->notify, .events = POLLIN}};
    eventfd_t count;

    (void)pthread_mutex_lock(&conn->mutex);
    while (!conn->closing) {
        int wait_ms = conn->connected && !conn->failed ? LOOK_MS : -1;

        if (do_one(conn))
            continue;
        (void)pthread_mutex_unlock(&conn->mutex);
        if (poll(fds, 2, wait_ms) == 0 && conn->peer_lock >= 0 && flock(conn->peer_lock, LOCK_SH | LOCK_NB) == 0)
            fail(conn, "the peer is gone");
        if (fds[0].revents)
            (void)eventfd_read(conn->wake, &count);
        if (fds[1].revents)
            receive_files(conn);
        (void)pthread_mutex_lock(&conn->mutex);
    }
    end(conn);
    return NULL;
}

/* ---- the transport ---- */

static enum rdt_status transport_open(const struct rdt_host *host, void **transport_p, struct rdt_error *err)
{
    const char *path = host->config(host->ctx, "directory");
    struct transport *transport = calloc(1, sizeof *transport);

    if (!transport)
        return frozen_error(err, RDT_NO_MEMORY, 0, "no memory");
    transport->host = *host;
    transport->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (transport->dir < 0) {
        free(transport);
        return frozen_error(err, RDT_UNSUPPORTED, errno, path);
    }
    *transport_p = transport;
    return RDT_OK;
}

static void transport_close(void *arg)
{
    struct transport *transport = arg;

    (void)close(transport->dir);
    free(transport);
}

static const char *transport_version(void *transport)
{
    (void)transport;
    return "1";
}

static void close_all(struct conn *conn)
{
    const int fds[] = {conn->inbox, conn->outbox, conn->lock, conn->peer_lock, conn->notify, conn->wake};

    for (unsigned i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    (void)pthread_mutex_destroy(&conn->mutex);
    free(conn);
}

static int make_inbox(struct conn *conn)
{
    int dir = conn->transport->dir;
    uint8_t token[NAME_CHARS / 2];
    char path[40];

    if (getrandom(token, sizeof token, 0) != sizeof token)
        return errno;
    for (unsigned i = 0; i < sizeof token; i++)
        (void)snprintf(conn->inbox_name + 2 * (size_t)i, 3, "%02x", token[i]);
    if (mkdirat(dir, conn->inbox_name, 0700) ||
        (conn->inbox = openat(dir, conn->inbox_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
        return errno;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", conn->inbox);
    if ((conn->lock = openat(conn->inbox, "alive", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0 ||
        flock(conn->lock, LOCK_EX | LOCK_NB) || (conn->notify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) < 0 ||
        inotify_add_watch(conn->notify, path, IN_MOVED_TO) < 0 || (conn->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        return errno;
    return 0;
}

static int start_thread(struct conn *conn)
{
    sigset_t all, before;
    int error;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&conn->thread, NULL, thread_main, conn);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static enum rdt_status connection_create(void *arg, const uint8_t peer_uuid[16], void *conn_ctx, void **conn_p,
                                         struct rdt_error *err)
{
    struct conn *conn = calloc(1, sizeof *conn);
    int error;

    (void)peer_uuid;
    if (!conn)
        return frozen_error(err, RDT_NO_MEMORY, 0, "no memory");
    conn->transport = arg;
    conn->ctx = conn_ctx;
    conn->inbox = conn->outbox = conn->lock = conn->peer_lock = conn->notify = conn->wake = -1;
    (void)pthread_mutex_init(&conn->mutex, NULL);
    error = make_inbox(conn);
    if (error == 0)
        error = start_thread(conn);
    if (error != 0) {
        if (conn->inbox >= 0)
            clear_inbox(conn);
        close_all(conn);
        return frozen_error(err, RDT_SYSTEM, error, "making a folder for the connection");
    }
    *conn_p = conn;
    return RDT_OK;
}

static void stop(struct conn *conn, bool silent)
{
    (void)pthread_mutex_lock(&conn->mutex);
    if (!conn->closing)
        conn->silent = silent;
    conn->closing = true;
    (void)pthread_mutex_unlock(&conn->mutex);
    wake(conn);
}

static void connection_destroy(void *arg)
{
    struct conn *conn = arg;

    stop(conn, true);
    (void)pthread_join(conn->thread, NULL);
    close_all(conn);
}

static enum rdt_status offer(void *arg, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err)
{
    const struct conn *conn = arg;

    (void)err;
    memcpy(blob, conn->inbox_name, NAME_CHARS);
    *bytes_p = NAME_CHARS;
    return RDT_OK;
}

static enum rdt_status connect_to(void *arg, const void *blob, size_t bytes, struct rdt_error *err)
{
    struct conn *conn = arg;

    if (bytes != NAME_CHARS)
        return frozen_error(err, RDT_PROTOCOL, 0, "the peer's offer has another length");
    for (size_t i = 0; i < bytes; i++)
        if (!strchr("0123456789abcdef", ((const char *)blob)[i]) || !((const char *)blob)[i])
            return frozen_error(err, RDT_PROTOCOL, 0, "the peer's offer is not the name of a folder");
    (void)pthread_mutex_lock(&conn->mutex);
    memcpy(conn->outbox_name, blob, NAME_CHARS);
    conn->connected = true;
    (void)pthread_mutex_unlock(&conn->mutex);
    wake(conn);
    return RDT_OK;
}

static uint32_t sides(void *conn, const char *memory_kind)
{
    (void)conn;
    return strcmp(memory_kind, "host") == 0 ? RDT_TWO_SIDED : 0;
}

static void disconnect(void *conn)
{
    stop(conn, false);
}

static enum rdt_status post(struct conn *conn, struct ops *ops, struct rdt_op *op)
{
    (void)pthread_mutex_lock(&conn->mutex);
    append(ops, op);
    (void)pthread_mutex_unlock(&conn->mutex);
    wake(conn);
    return RDT_OK;
}

static enum rdt_status post_send(void *arg, struct rdt_op *op, struct rdt_error *err)
{
    struct conn *conn = arg;

    (void)err;
    return post(conn, &conn->sends, op);
}

static enum rdt_status post_recv(void *arg, struct rdt_op *op, struct rdt_error *err)
{
    struct conn *conn = arg;

    (void)err;
    return post(conn, &conn->recvs, op);
}

static void cancel(void *arg, struct rdt_op *op)
{
    struct conn *conn = arg;
    struct rdt_op *taken;

    (void)pthread_mutex_lock(&conn->mutex);
    taken = take(&conn->recvs, op);
    if (!taken)
        taken = take(&conn->sends, op);
    if (taken)
        append(&conn->ended, taken);
    (void)pthread_mutex_unlock(&conn->mutex);
    wake(conn);
}

static const char *const memory_kinds[] = {"host", NULL};

const struct rdt_transport_ops frozen_transport = {
    .struct_size = sizeof frozen_transport,
    .name = "Frozen",
    .memory_kinds = memory_kinds,
    .speed = 10,
    .open = transport_open,
    .close = transport_close,
    .version = transport_version,
    .connection_create = connection_create,
    .connection_destroy = connection_destroy,
    .offer = offer,
    .connect = connect_to,
    .sides = sides,
    .disconnect = disconnect,
    .post_send = post_send,
    .post_recv = post_recv,
    .cancel = cancel,
};
