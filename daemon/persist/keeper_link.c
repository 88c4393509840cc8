/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/persist/keeper_link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/persist/keeper_packet.h"

#define START_MS 5000       /* how long the daemon's start waits for each packet of the keeper */
#define RETRY_NS 1000000000 /* between attempts to connect, and for the keeper's greeting */
#define FLUSH_NS 5000000    /* how long drops are collected */
#define MAX_QUEUED 4096u    /* packets; a keeper that leaves more of them unread has hung */

/* A handle of libuv, which outlives the connection by one turn of the loop. */
struct keeper_watch {
    uv_poll_t poll;
    int fd;
};

struct packet {
    struct work work; /* first */
    struct list link;
    struct keeper_message *message; /* [keeper_message_bytes(n)], behind this struct */
    unsigned n_fds;
    int *fds; /* [n_fds], behind the message */
};

static void go_down(struct keeper_link *link, const char *why);

/* Receives one packet of the keeper. As keeper_packet_receive; a packet with descriptors that it should not have is EPROTO. */
static int receive_packet(int fd, struct keeper_message *message_p, int *fds_p)
{
    int n = keeper_packet_receive(fd, message_p, fds_p);

    if (n < 0 || n == (message_p->type == KEEPER_FDS ? message_p->n : 0))
        return n;
    while (n > 0)
        (void)close(fds_p[--n]);
    errno = EPROTO;
    return -1;
}

/* ---- the start, which waits ---- */

/* The keeper gets the memory of all users, and says what their objects were. */
static enum rdt_status check_server(const struct keeper_link *link, struct rdt_error *err)
{
    struct ucred server;
    socklen_t bytes = sizeof server;

    if (getsockopt(link->fd, SOL_SOCKET, SO_PEERCRED, &server, &bytes) != 0)
        return rdt_error_sys(err, errno, "cannot find out who serves the keeper's socket %s", link->path);
    if (server.uid == 0 || server.uid == geteuid())
        return RDT_OK;
    return rdt_error_set(err, RDT_DENIED,
                         "uid %u serves the keeper's socket %s: run rdtd-keeper as this daemon's user, uid %u, or as root, and "
                         "put its socket where nobody else can write",
                         server.uid, link->path, geteuid());
}

/* On Linux, connect to a Unix socket with room in its backlog does not wait. */
static enum rdt_status connect_keeper(struct keeper_link *link, struct rdt_error *err)
{
    struct keeper_message hello = {.type = KEEPER_HELLO, .value = KEEPER_VERSION, .count = (uint64_t)getpid()};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    enum rdt_status status = RDT_OK;
    int error;

    if (strlen(link->path) >= sizeof address.sun_path)
        return rdt_error_set(err, RDT_INVALID, "the path of the keeper's socket is longer than %zu bytes",
                             sizeof address.sun_path - 1);
    memcpy(address.sun_path, link->path, strlen(link->path) + 1);
    link->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    error = link->fd < 0 || connect(link->fd, (struct sockaddr *)&address, sizeof address) ? errno : 0;
    if (error == 0)
        status = check_server(link, err);
    if (error == 0 && status == RDT_OK)
        error = keeper_packet_send(link->fd, &hello, NULL);
    if (error == 0 && status == RDT_OK)
        return RDT_OK;
    if (link->fd >= 0)
        (void)close(link->fd);
    link->fd = -1;
    if (status != RDT_OK)
        return status;
    (void)rdt_error_sys(err, error, "the keeper at %s does not answer (start rdtd-keeper, or set keeper to nothing)",
                        link->path);
    if (err)
        err->status = RDT_DISCONNECTED;
    return RDT_DISCONNECTED;
}

static enum rdt_status check_greeting(struct keeper_link *link, const struct keeper_message *message, struct rdt_error *err)
{
    if (message->type == KEEPER_BUSY)
        return rdt_error_set(err, RDT_BUSY, "the keeper at %s serves another daemon, process %u: give each daemon its own",
                             link->path, message->value);
    if (message->type != KEEPER_READY || message->value != KEEPER_VERSION)
        return rdt_error_set(err, RDT_PROTOCOL, "the keeper at %s speaks version %u, and this rdtd version %u: restart it",
                             link->path, message->value, KEEPER_VERSION);
    link->n_held = message->count;
    link->greeted = true;
    return RDT_OK;
}

static enum rdt_status await_packet(struct keeper_link *link, struct keeper_message *message_p, int *fds_p, int *n_p,
                                    struct rdt_error *err)
{
    struct pollfd wait = {.fd = link->fd, .events = POLLIN};
    int ready;

    do {
        ready = poll(&wait, 1, START_MS);
    } while (ready < 0 && errno == EINTR);
    *n_p = ready > 0 ? receive_packet(link->fd, message_p, fds_p) : -1;
    if (*n_p >= 0)
        return RDT_OK;
    return rdt_error_set(err, RDT_DISCONNECTED, "the keeper at %s %s", link->path,
                         ready == 0 ? "does not answer (is it stopped?)" : "has closed the connection");
}

enum rdt_status keeper_link_open(struct keeper_link *link, const char *path, struct rdt_error *err)
{
    struct keeper_message message;
    int fds[KEEPER_MAX_IDS], n;
    enum rdt_status status;

    *link = (struct keeper_link){.path = path, .fd = -1, .drops = {.type = KEEPER_DROP}};
    list_init(&link->queue);
    status = connect_keeper(link, err);
    if (status != RDT_OK)
        return status;
    status = await_packet(link, &message, fds, &n, err);
    if (status == RDT_OK) {
        while (n > 0)
            (void)close(fds[--n]);
        status = check_greeting(link, &message, err);
    }
    if (status != RDT_OK) {
        (void)close(link->fd);
        link->fd = -1;
    }
    return status;
}

enum rdt_status keeper_link_fetch(struct keeper_link *link, void (*on_fd)(void *arg, uint64_t id, int take_fd), void *arg,
                                  struct rdt_error *err)
{
    struct keeper_message message = {.type = KEEPER_FETCH};
    int fds[KEEPER_MAX_IDS], n, error = keeper_packet_send(link->fd, &message, NULL);
    enum rdt_status status;

    if (error != 0)
        return rdt_error_sys(err, error, "asking the keeper at %s", link->path);
    do {
        status = await_packet(link, &message, fds, &n, err);
        for (int i = 0; status == RDT_OK && i < n; i++)
            on_fd(arg, message.ids[i], fds[i]);
    } while (status == RDT_OK && (n > 0 || message.type != KEEPER_FDS));
    return status;
}

/* ---- sending ---- */

static void run_free(struct work *work)
{
    struct packet *packet = (struct packet *)work;

    for (unsigned i = 0; i < packet->n_fds; i++)
        (void)close(packet->fds[i]);
    free(packet);
}

static void free_packet(struct keeper_link *link, struct packet *packet)
{
    packet->work = (struct work){.run = run_free};
    work_submit(link->pool, &packet->work);
}

static void queue_packet(struct keeper_link *link, const struct keeper_message *message, const int *fds, unsigned n_fds)
{
    size_t bytes = keeper_message_bytes(message->n);
    struct packet *packet = link->n_queued < MAX_QUEUED ? malloc(sizeof *packet + bytes + n_fds * sizeof(int)) : NULL;

    if (!packet) {
        go_down(link, "it does not read");
        return;
    }
    packet->message = (struct keeper_message *)(packet + 1);
    memcpy(packet->message, message, bytes);
    packet->fds = (int *)((uint8_t *)packet->message + bytes);
    packet->n_fds = 0;
    while (packet->n_fds < n_fds) {
        int fd = fcntl(fds[packet->n_fds], F_DUPFD_CLOEXEC, 0);
        if (fd < 0) {
            free_packet(link, packet);
            go_down(link, "no descriptor is left for a queued message");
            return;
        }
        packet->fds[packet->n_fds++] = fd;
    }
    list_append(&link->queue, &packet->link);
    link->n_queued++;
}

static void watch(struct keeper_link *link);

static void send_or_queue(struct keeper_link *link, const struct keeper_message *message, const int *fds, unsigned n_fds)
{
    int error = list_empty(&link->queue) ? keeper_packet_send(link->fd, message, n_fds > 0 ? fds : NULL) : EAGAIN;

    if (error == EAGAIN) {
        queue_packet(link, message, fds, n_fds);
        if (link->fd >= 0)
            watch(link);
    } else if (error != 0) {
        go_down(link, strerror(error));
    }
}

static void flush_drops(struct keeper_link *link)
{
    struct keeper_message drops = link->drops;

    link->drops.n = 0;
    if (drops.n > 0 && link->fd >= 0)
        send_or_queue(link, &drops, NULL, 0);
}

static void on_flush(struct deadline *deadline)
{
    flush_drops(container_of(deadline, struct keeper_link, flush));
}

static bool waits_to_drop(const struct keeper_link *link, const uint64_t *ids, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        for (unsigned k = 0; k < link->drops.n; k++)
            if (ids[i] == link->drops.ids[k])
                return true;
    return false;
}

void keeper_link_store(struct keeper_link *link, const uint64_t *ids, const int *fds, unsigned n)
{
    struct keeper_message message = {.type = KEEPER_STORE, .n = (uint16_t)n};

    if (waits_to_drop(link, ids, n)) /* a region whose record could not be written may get one after all */
        flush_drops(link);
    if (!keeper_link_is_up(link))
        return;
    memcpy(message.ids, ids, n * sizeof *ids);
    send_or_queue(link, &message, fds, n);
}

void keeper_link_drop(struct keeper_link *link, uint64_t id)
{
    if (!keeper_link_is_up(link))
        return;
    link->drops.ids[link->drops.n++] = id;
    if (link->drops.n == KEEPER_MAX_IDS || !link->deadlines ||
        (link->flush.index == 0 && !deadline_set(link->deadlines, &link->flush, FLUSH_NS)))
        flush_drops(link);
}

/* ---- the loop ---- */

static void send_queued(struct keeper_link *link)
{
    list_drain (struct packet, packet, &link->queue, link) {
        int error = keeper_packet_send(link->fd, packet->message, packet->n_fds > 0 ? packet->fds : NULL);
        if (error == EAGAIN)
            return;
        if (error != 0) {
            go_down(link, strerror(error));
            return;
        }
        list_remove(&packet->link);
        link->n_queued--;
        free_packet(link, packet);
    }
}

static void come_up(struct keeper_link *link)
{
    struct keeper_message fetch = {.type = KEEPER_FETCH};

    deadline_unset(link->deadlines, &link->retry);
    link->on_up(link->arg);
    log_info("the keeper at %s answers again and has everything", link->path);
    if (link->n_held > 0 && link->fd >= 0)
        send_or_queue(link, &fetch, NULL, 0); /* so that it drops the descriptors of what has ended meanwhile */
}

static void handle(struct keeper_link *link, const struct keeper_message *message, const int *fds, int n)
{
    struct rdt_error err;

    for (int i = 0; i < n; i++) {
        (void)close(fds[i]);
        if (!link->is_kept(link->arg, message->ids[i]))
            keeper_link_drop(link, message->ids[i]);
    }
    if (!link->greeted && check_greeting(link, message, &err) != RDT_OK) {
        go_down(link, err.msg);
    } else if (message->type == KEEPER_READY) {
        come_up(link);
    } else if (message->type == KEEPER_FULL) {
        if (link->n_refused == 0)
            log_error(
                "the keeper has no room for more descriptors: raise its limit of open files. Objects in memory that it does "
                "not hold are lost when rdtd restarts");
        link->n_refused += message->n;
    }
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct keeper_link *link = poll->data;
    struct keeper_message message;
    int fds[KEEPER_MAX_IDS], n = -1;

    if (status < 0) {
        go_down(link, uv_strerror(status));
        return;
    }
    if (events & (UV_READABLE | UV_DISCONNECT)) {
        n = receive_packet(link->fd, &message, fds);
        if (n >= 0)
            handle(link, &message, fds, n);
        else if (errno != EAGAIN)
            go_down(link, errno == EPROTO || errno == EPIPE ? "it has closed the connection" : strerror(errno));
    }
    if (link->fd >= 0 && (events & UV_WRITABLE))
        send_queued(link);
    if (link->fd >= 0)
        watch(link);
}

static void watch(struct keeper_link *link)
{
    if (link->watch)
        (void)uv_poll_start(&link->watch->poll, UV_READABLE | UV_DISCONNECT | (list_empty(&link->queue) ? 0 : UV_WRITABLE),
                            on_poll);
}

static bool start_watch(struct keeper_link *link)
{
    link->watch = calloc(1, sizeof *link->watch);
    if (link->watch && uv_poll_init(link->loop, &link->watch->poll, link->fd) != 0) {
        free(link->watch);
        link->watch = NULL;
    }
    if (!link->watch)
        return false;
    link->watch->fd = link->fd;
    link->watch->poll.data = link;
    watch(link);
    return true;
}

static void on_watch_closed(uv_handle_t *handle)
{
    struct keeper_watch *watch = container_of(handle, struct keeper_watch, poll);

    (void)close(watch->fd);
    free(watch);
}

static void disconnect(struct keeper_link *link)
{
    if (link->watch)
        uv_close((uv_handle_t *)&link->watch->poll, on_watch_closed);
    else if (link->fd >= 0)
        (void)close(link->fd);
    link->watch = NULL;
    link->fd = -1;
    link->greeted = false;
    link->drops.n = 0;
    list_drain (struct packet, packet, &link->queue, link) {
        list_remove(&packet->link);
        free_packet(link, packet);
    }
    link->n_queued = 0;
}

static void go_down(struct keeper_link *link, const char *why)
{
    if (keeper_link_is_up(link))
        log_error("lost the keeper at %s: %s. Until it is back, nothing survives a crash of rdtd", link->path, why);
    disconnect(link);
    if (link->deadlines)
        (void)deadline_set(link->deadlines, &link->retry, RETRY_NS);
}

/* It is time to try again, or the last attempt has brought no greeting. */
static void on_retry(struct deadline *deadline)
{
    struct keeper_link *link = container_of(deadline, struct keeper_link, retry);

    disconnect(link);
    if (connect_keeper(link, NULL) == RDT_OK && !start_watch(link))
        disconnect(link);
    (void)deadline_set(link->deadlines, &link->retry, RETRY_NS);
}

void keeper_link_start(struct keeper_link *link, uv_loop_t *loop, struct deadlines *deadlines)
{
    link->loop = loop;
    link->deadlines = deadlines;
    link->retry.on_passed = on_retry;
    link->flush.on_passed = on_flush;
    if (!start_watch(link))
        go_down(link, "there is no memory");
}

void keeper_link_close(struct keeper_link *link)
{
    if (link->fd >= 0 && link->greeted) {
        flush_drops(link);
        if (link->fd >= 0)
            send_queued(link);
    }
    if (link->deadlines) {
        deadline_unset(link->deadlines, &link->retry);
        deadline_unset(link->deadlines, &link->flush);
    }
    link->deadlines = NULL;
    disconnect(link);
}

bool keeper_link_is_up(const struct keeper_link *link)
{
    return link->fd >= 0 && link->greeted;
}
