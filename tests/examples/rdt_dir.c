/* rdt_dir.so: a transport through a folder that both nodes see. Each end of a connection has a folder of its own in it, and the sender
 * writes one file for each chunk into the folder of the receiver. It is slow, and it is a complete two-sided transport. */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <rdt_plugin.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/random.h>
#include <sys/stat.h>

struct transport { struct rdt_host host; int root; };
struct conn {
    struct transport *t;
    void *ctx;                                /* the core's handle of the connection */
    char in_name[33], out_name[33];           /* the names of the two folders, which the offers carry */
    char taken[40];                           /* the name of our folder once the peer has taken it */
    int in, out, notify;
    atomic_bool connected;                    /* out_name is known */
    bool failed, silent;
    struct rdt_ops ops;                       /* posted operations that the thread has not taken yet */
    pthread_t thread;                         /* does all the work on files */
};

/* ---- the thread of a connection ---- */
static void lost(struct conn *c, const char *why) {
    if (!c->failed) c->t->host.conn_failed(c->ctx, RDT_PEER_LOST, why); /* the core disconnects, and creates a new connection */
    c->failed = true;
}
static bool move(int fd, char *at, uint64_t bytes, bool out) {
    for (ssize_t n; bytes > 0; at += n, bytes -= (uint64_t)n)
        if ((n = out ? write(fd, at, bytes) : read(fd, at, bytes)) <= 0) return false;
    return true;
}
static bool find_peer(struct conn *c) { /* an offer serves one connection: a second peer finds no folder of that name */
    char taken[40];
    snprintf(taken, sizeof taken, "%s.taken", c->out_name);
    if (!renameat(c->t->root, c->out_name, c->t->root, taken))
        c->out = openat(c->t->root, taken, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return c->out >= 0;
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
    if (sscanf(name, "%16" SCNx64 "-%16" SCNx64, &transfer, &chunk) != 2) return; /* it is still being written */
    int fd = openat(c->in, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    struct rdt_op *op = rdt_ops_match(&c->ops, transfer, chunk); /* from here on it cannot be cancelled */
    bool good = op && fd >= 0 && !fstat(fd, &st) && (uint64_t)st.st_size == op->piece.bytes &&
                move(fd, op->piece.addr, op->piece.bytes, false);
    if (op) c->t->host.op_done(op, good ? RDT_OK : RDT_TRANSPORT, good ? NULL : "the peer sent another length");
    if (fd >= 0) close(fd); /* without a receive the chunk is dropped */
    unlinkat(c->in, name, 0);
}
static void unlink_one(struct conn *c, const char *name) { unlinkat(c->in, name, 0); }
static void each_file(struct conn *c, void (*with)(struct conn *, const char *)) {
    int fd = openat(c->in, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    for (struct dirent *e; dir && (e = readdir(dir));) with(c, e->d_name);
    if (dir) closedir(dir);
}
static void *run(void *arg) {
    struct conn *c = arg;
    char events[4096];
    while (rdt_ops_wait(&c->ops, c->notify, 100)) { /* writes of another machine cause no events: hence the 100 ms */
        if (c->connected && !c->failed && c->out < 0 && !find_peer(c)) lost(c, "the peer's folder is gone, or another has it");
        if (c->out >= 0 && !flock(c->out, LOCK_SH | LOCK_NB)) lost(c, "the peer is gone"); /* a living peer holds this lock */
        for (struct rdt_op *op; !c->failed && c->out >= 0 && (op = rdt_ops_next_send(&c->ops));) send_chunk(c, op);
        while (read(c->notify, events, sizeof events) > 0) {}
        each_file(c, receive_chunk);
    }
    rdt_ops_end(&c->ops);
    each_file(c, unlink_one);
    unlinkat(c->t->root, c->in_name, AT_REMOVEDIR);
    unlinkat(c->t->root, c->taken, AT_REMOVEDIR);
    if (!c->silent) c->t->host.conn_closed(c->ctx); /* last: from here on nothing touches tensor memory */
    return NULL;
}

/* ---- the operations ---- */
static enum rdt_status t_open(const struct rdt_host *host, void **transport_p, struct rdt_error *err) {
    struct transport *t = calloc(1, sizeof *t);
    if (!t) return rdt_fail(err, RDT_NO_MEMORY, "no memory");
    t->host = *host;
    t->root = open(host->config(host->ctx, "directory"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (t->root < 0) { free(t); return rdt_fail(err, RDT_UNSUPPORTED, "directory: set it to a folder that both nodes see"); }
    *transport_p = t;
    return RDT_OK;
}
static void t_close(void *t) { close(((struct transport *)t)->root); free(t); }

static enum rdt_status create(void *transport, const uint8_t peer[16], void *ctx, void **conn_p, struct rdt_error *err) {
    struct transport *t = transport;
    struct conn *c = calloc(1, sizeof *c);
    uint64_t token[2];
    (void)peer;
    if (!c || getrandom(token, 16, 0) != 16 || rdt_ops_init(&c->ops, &t->host, NULL)) { free(c); return rdt_fail(err, RDT_NO_MEMORY, "no memory"); }
    c->t = t, c->ctx = ctx, c->out = -1;
    snprintf(c->in_name, sizeof c->in_name, "%016" PRIx64 "%016" PRIx64, token[0], token[1]);
    snprintf(c->taken, sizeof c->taken, "%s.taken", c->in_name);
    mkdirat(t->root, c->in_name, 0700);
    c->in = openat(t->root, c->in_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    c->notify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", c->in);
    if (flock(c->in, LOCK_EX | LOCK_NB) || inotify_add_watch(c->notify, path, IN_MOVED_TO) < 0 || pthread_create(&c->thread, NULL, run, c)) {
        unlinkat(t->root, c->in_name, AT_REMOVEDIR);
        close(c->in), close(c->notify), rdt_ops_fini(&c->ops), free(c);
        return rdt_fail(err, RDT_SYSTEM, "a folder for the connection cannot be made");
    }
    *conn_p = c;
    return RDT_OK;
}
static void disconnect(void *c) { rdt_ops_close(&((struct conn *)c)->ops); }
static void destroy(void *conn) {
    struct conn *c = conn;
    c->silent = true; /* the core does not expect conn_closed */
    disconnect(c);
    pthread_join(c->thread, NULL);
    close(c->in), close(c->notify), rdt_ops_fini(&c->ops);
    if (c->out >= 0) close(c->out);
    free(c);
}
static enum rdt_status offer(void *conn, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err) {
    (void)err;
    memcpy(blob, ((struct conn *)conn)->in_name, *bytes_p = 32);
    return RDT_OK;
}
static enum rdt_status join(void *conn, const void *blob, size_t bytes, struct rdt_error *err) { /* checks what the peer sent */
    struct conn *c = conn;
    if (c->connected || bytes != 32 || strspn(memcpy((char[33]){0}, blob, 32), "0123456789abcdef") != 32)
        return rdt_fail(err, RDT_PROTOCOL, "this is no offer");
    memcpy(c->out_name, blob, 32);
    c->connected = true;
    eventfd_write(c->ops.wake, 1);
    return RDT_OK;
}
static uint32_t sides(void *conn, const char *memory_kind) { (void)conn; return strcmp(memory_kind, "host") ? 0 : RDT_TWO_SIDED; }
static enum rdt_status post_send(void *c, struct rdt_op *op, struct rdt_error *err) { return rdt_ops_send(&((struct conn *)c)->ops, op, err); }
static enum rdt_status post_recv(void *c, struct rdt_op *op, struct rdt_error *err) { return rdt_ops_recv(&((struct conn *)c)->ops, op, err); }
static void cancel(void *c, struct rdt_op *op) { rdt_ops_cancel(&((struct conn *)c)->ops, op); }

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
