/* rdt_dir.so: a transport through a folder that both nodes see. Each end of a connection has a folder of its own in it; who sends puts
 * one file there for each chunk. Slow, and complete: whatever the interface asks of a two-sided transport is here. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <rdt_backend.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

struct transport { struct rdt_host host; int root; };
struct conn {
    struct transport *t;
    void *ctx;                                    /* the core's name for it */
    char in_name[33], out_name[33];               /* of the two folders: what the offers carry */
    int in, out, alive, peer_alive, notify, wake;
    pthread_t thread;
    pthread_mutex_t lock;                         /* of what follows; the thread does all that touches files */
    struct rdt_op *sends, *recvs, *cancelled;     /* ours from their post to op_done; linked by priv[0] */
    bool connected, failed, closing, silent;
};

static enum rdt_status fail(struct rdt_error *err, enum rdt_status status, const char *why) {
    if (err) { err->status = status; err->sys_errno = 0; snprintf(err->msg, sizeof err->msg, "%s", why); }
    return status;
}
static void push(struct rdt_op **list, struct rdt_op *op) { op->priv[0] = *list; *list = op; }
static struct rdt_op *pop(struct rdt_op **list, const struct rdt_op *op) { /* op NULL: any */
    while (*list && op && *list != op) list = (struct rdt_op **)&(*list)->priv[0];
    struct rdt_op *found = *list;
    if (found) *list = found->priv[0];
    return found;
}
static void wake(struct conn *c) { eventfd_write(c->wake, 1); }

/* ---- the thread of a connection ---- */
static void lost(struct conn *c, const char *why) {
    pthread_mutex_lock(&c->lock);
    bool tell = !c->failed && !c->closing;
    c->failed = true;
    pthread_mutex_unlock(&c->lock);
    if (tell) c->t->host.conn_failed(c->ctx, RDT_PEER_LOST, why); /* the core disconnects, and builds it anew */
}
static bool move(int fd, char *at, uint64_t bytes, bool out) {
    for (ssize_t n; bytes > 0; at += n, bytes -= (uint64_t)n)
        if ((n = out ? write(fd, at, bytes) : read(fd, at, bytes)) <= 0) return false;
    return true;
}
static bool find_peer(struct conn *c) { /* an offer serves one connection: who comes second finds it claimed */
    int claim = -1;
    if ((c->out = openat(c->t->root, c->out_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) >= 0)
        claim = openat(c->out, "claimed", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (claim < 0) return false;
    close(claim);
    c->peer_alive = openat(c->out, "alive", O_RDONLY | O_CLOEXEC);
    return c->peer_alive >= 0 && flock(c->peer_alive, LOCK_SH | LOCK_NB) != 0; /* its holder lives */
}
static void send_chunk(struct conn *c, struct rdt_op *op) {
    char part[48], whole[40];
    snprintf(whole, sizeof whole, "%016" PRIx64 "-%016" PRIx64, op->transfer, op->chunk);
    snprintf(part, sizeof part, ".%s", whole);
    int fd = openat(c->out, part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool sent = fd >= 0 && move(fd, op->piece.addr, op->piece.bytes, true) && !renameat(c->out, part, c->out, whole);
    if (fd >= 0) close(fd);
    c->t->host.op_done(op, sent ? RDT_OK : RDT_TRANSPORT, sent ? NULL : "the peer's folder cannot be written");
    if (!sent) lost(c, "the peer's folder cannot be written");
}
static void receive_chunk(struct conn *c, const char *name) {
    uint64_t transfer, chunk;
    struct stat st;
    int fd = openat(c->in, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || sscanf(name, "%16" SCNx64 "-%16" SCNx64, &transfer, &chunk) != 2) { if (fd >= 0) close(fd); return; }
    pthread_mutex_lock(&c->lock);
    struct rdt_op *op = c->recvs;
    while (op && (op->transfer != transfer || op->chunk != chunk)) op = op->priv[0];
    if (op) pop(&c->recvs, op); /* from here on it is too late to cancel it */
    pthread_mutex_unlock(&c->lock);
    bool good = op && !fstat(fd, &st) && (uint64_t)st.st_size == op->piece.bytes && move(fd, op->piece.addr, op->piece.bytes, false);
    if (op) c->t->host.op_done(op, good ? RDT_OK : RDT_TRANSPORT, good ? NULL : "the peer sent another length");
    close(fd); /* without a receive nobody wants it: it is dropped */
    unlinkat(c->in, name, 0);
}
static void each_file(struct conn *c, void (*with)(struct conn *, const char *)) {
    int fd = openat(c->in, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir));) if (e->d_name[0] != '.' || with != receive_chunk) with(c, e->d_name);
    if (dir) closedir(dir);
}
static void unlink_one(struct conn *c, const char *name) { unlinkat(c->in, name, 0); }

static void *run(void *arg) {
    struct conn *c = arg;
    struct pollfd fds[] = {{.fd = c->wake, .events = POLLIN}, {.fd = c->notify, .events = POLLIN}};
    char events[4096];
    pthread_mutex_lock(&c->lock);
    while (!c->closing) {
        bool ready = c->connected && !c->failed;
        struct rdt_op *over = pop(&c->cancelled, NULL), *send = ready && c->peer_alive >= 0 && !over ? pop(&c->sends, NULL) : NULL;
        pthread_mutex_unlock(&c->lock); /* never call the host with a lock that the operations take */
        if (over) c->t->host.op_done(over, RDT_CANCELLED, NULL);
        else if (send) send_chunk(c, send);
        else if (ready && c->peer_alive < 0) { if (!find_peer(c)) lost(c, "the peer's folder is gone, or another has it"); }
        else {
            if (poll(fds, 2, 100) == 0 && ready && flock(c->peer_alive, LOCK_SH | LOCK_NB) == 0) lost(c, "the peer is gone");
            if (fds[0].revents) eventfd_read(c->wake, &(eventfd_t){0});
            if (fds[1].revents && read(c->notify, events, sizeof events) > 0) each_file(c, receive_chunk);
        }
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    struct rdt_op **lists[] = {&c->sends, &c->recvs, &c->cancelled};
    for (int i = 0; i < 3; i++)
        for (struct rdt_op *op; (op = pop(lists[i], NULL));) c->t->host.op_done(op, RDT_CANCELLED, "disconnected");
    each_file(c, unlink_one);
    unlinkat(c->t->root, c->in_name, AT_REMOVEDIR);
    if (!c->silent) c->t->host.conn_closed(c->ctx); /* last: nothing touches anybody's memory any more */
    return NULL;
}

/* ---- the operations ---- */
static enum rdt_status t_open(const struct rdt_host *host, void **transport_p, struct rdt_error *err) {
    struct transport *t = calloc(1, sizeof *t);
    if (!t) return fail(err, RDT_NO_MEMORY, "no memory");
    t->host = *host;
    t->root = open(host->config(host->ctx, "directory"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (t->root < 0) { free(t); return fail(err, RDT_UNSUPPORTED, "directory: set it to a folder that both nodes see"); }
    *transport_p = t;
    return RDT_OK;
}
static void t_close(void *t) { close(((struct transport *)t)->root); free(t); }

static void release(struct conn *c) {
    int fds[] = {c->in, c->out, c->alive, c->peer_alive, c->notify, c->wake};
    for (int i = 0; i < 6; i++) if (fds[i] >= 0) close(fds[i]);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
static enum rdt_status create(void *t, const uint8_t peer[16], void *ctx, void **conn_p, struct rdt_error *err) {
    struct conn *c = calloc(1, sizeof *c);
    uint8_t token[16];
    char path[40];
    (void)peer;
    if (!c || getrandom(token, 16, 0) != 16) { free(c); return fail(err, RDT_NO_MEMORY, "no memory"); }
    *c = (struct conn){.t = t, .ctx = ctx, .in = -1, .out = -1, .alive = -1, .peer_alive = -1, .notify = -1, .wake = -1};
    pthread_mutex_init(&c->lock, NULL);
    for (int i = 0; i < 16; i++) snprintf(c->in_name + 2 * i, 3, "%02x", token[i]);
    if (mkdirat(c->t->root, c->in_name, 0700) == 0) c->in = openat(c->t->root, c->in_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", c->in);
    if (c->in < 0 || (c->alive = openat(c->in, "alive", O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) < 0 ||
        flock(c->alive, LOCK_EX | LOCK_NB) || (c->notify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) < 0 ||
        inotify_add_watch(c->notify, path, IN_MOVED_TO) < 0 || (c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0 ||
        pthread_create(&c->thread, NULL, run, c)) {
        if (c->in >= 0) each_file(c, unlink_one);
        unlinkat(c->t->root, c->in_name, AT_REMOVEDIR);
        release(c);
        return fail(err, RDT_SYSTEM, "a folder for the connection cannot be made");
    }
    *conn_p = c;
    return RDT_OK;
}
static void stop(struct conn *c, bool silent) {
    pthread_mutex_lock(&c->lock);
    if (!c->closing) c->silent = silent;
    c->closing = true;
    pthread_mutex_unlock(&c->lock);
    wake(c);
}
static void disconnect(void *c) { stop(c, false); }
static void destroy(void *conn) { struct conn *c = conn; stop(c, true); pthread_join(c->thread, NULL); release(c); }
static enum rdt_status offer(void *conn, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err) {
    (void)err;
    memcpy(blob, ((struct conn *)conn)->in_name, *bytes_p = 32);
    return RDT_OK;
}
static enum rdt_status join(void *conn, const void *blob, size_t bytes, struct rdt_error *err) { /* what a peer says is judged */
    struct conn *c = conn;
    if (bytes != 32 || strspn(memcpy((char[33]){0}, blob, 32), "0123456789abcdef") != 32) return fail(err, RDT_PROTOCOL, "this is no offer");
    pthread_mutex_lock(&c->lock);
    memcpy(c->out_name, blob, 32);
    c->connected = true;
    pthread_mutex_unlock(&c->lock);
    wake(c);
    return RDT_OK;
}
static uint32_t sides(void *conn, const char *memory_kind) { (void)conn; return strcmp(memory_kind, "host") ? 0 : RDT_TWO_SIDED; }
static enum rdt_status post(struct conn *c, struct rdt_op **list, struct rdt_op *op) {
    pthread_mutex_lock(&c->lock);
    push(list, op);
    pthread_mutex_unlock(&c->lock);
    wake(c);
    return RDT_OK;
}
static enum rdt_status post_send(void *c, struct rdt_op *op, struct rdt_error *err) { (void)err; return post(c, &((struct conn *)c)->sends, op); }
static enum rdt_status post_recv(void *c, struct rdt_op *op, struct rdt_error *err) { (void)err; return post(c, &((struct conn *)c)->recvs, op); }
static void cancel(void *conn, struct rdt_op *op) {
    struct conn *c = conn;
    pthread_mutex_lock(&c->lock);
    if (pop(&c->recvs, op) || pop(&c->sends, op)) push(&c->cancelled, op); /* else it is under way, or has ended: it ends as it does */
    pthread_mutex_unlock(&c->lock);
    wake(c);
}

const struct rdt_backend *rdt_backend_init(void) {
    static const char *const kinds[] = {"host", NULL};
    static const struct rdt_config_key keys[] = {{"directory", "/dev/shm", "folder that both nodes see"}, {NULL, NULL, NULL}};
    static const struct rdt_transport_ops transport = {
        .struct_size = sizeof transport, .name = "dir", .memory_kinds = kinds, .speed = 1, .open = t_open, .close = t_close,
        .connection_create = create, .connection_destroy = destroy, .offer = offer, .connect = join, .sides = sides,
        .disconnect = disconnect, .post_send = post_send, .post_recv = post_recv, .cancel = cancel};
    static const struct rdt_backend backend = {.abi_version = RDT_BACKEND_ABI, .struct_size = sizeof backend, .name = "dir",
                                               .version = "1", .config_keys = keys, .transport = &transport};
    return &backend;
}
