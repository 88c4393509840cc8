/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/process/process.h"
#include "daemon/base/reserve.h"
#include "daemon/base/sdnotify.h"

#define ACCEPTS_PER_TURN 64
#define PAUSE_NS 100000000ll
#define FAILURES_EVERY_NS UINT64_C(10000000000)

/* The kernel drops an urgent byte (MSG_OOB) that is not read inline, and its descriptors with it: it would close them inside
 * recvmsg, on the loop thread. */
static void take_urgent_inline(int sock)
{
    (void)setsockopt(sock, SOL_SOCKET, SO_OOBINLINE, &(int){1}, sizeof(int));
}

static void on_connection(uv_poll_t *poll, int status, int events)
{
    struct listener_socket *listening = poll->data;
    struct listener *listener = listening->listener;

    if (status < 0)
        return;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int sock = -1;
        if (reserve_hold())
            sock = accept4(listening->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        else
            errno = ENOMEM;
        if (sock >= 0) {
            take_urgent_inline(sock);
            conn_start(listener->conns, sock);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            log_warn_rarely(&listener->failures, "cannot accept a client", strerror(errno));
            for (unsigned s = 0; s < listener->n; s++)
                (void)uv_poll_stop(&listener->sockets[s].poll);
            (void)deadline_set(listener->conns->rpc->deadlines, &listener->pause, PAUSE_NS);
        }
        return; /* EAGAIN, or the client has closed its connection already */
    }
}

static void on_pause_over(struct deadline *deadline)
{
    struct listener *listener = container_of(deadline, struct listener, pause);

    for (unsigned i = 0; i < listener->n; i++)
        (void)uv_poll_start(&listener->sockets[i].poll, UV_READABLE, on_connection);
}

static void add_socket(struct listener *listener, int fd)
{
    struct listener_socket *listening = &listener->sockets[listener->n++];

    listening->fd = fd;
    listening->listener = listener;
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    (void)uv_poll_init(listener->conns->rpc->loop, &listening->poll, fd);
    listening->poll.data = listening;
    (void)uv_poll_start(&listening->poll, UV_READABLE, on_connection);
    listener->open++;
}

/* The service manager has made the sockets, so `socket` and `socket_mode` change nothing: the daemon does not start if they say
 * otherwise. A socket that is open to more users than socket_mode says must not be served. *named_p: it is at options->socket;
 * path_p: where it is, at least 108 bytes. */
static enum rdt_status check_passed(const struct options *options, int fd, bool *named_p, char *path_p, struct rdt_error *err)
{
    struct sockaddr_un address = {0};
    socklen_t bytes = sizeof address;
    mode_t mode = (mode_t)strtoul(options->socket_mode, NULL, 8);
    struct stat file;

    if (getsockname(fd, (struct sockaddr *)&address, &bytes) != 0 || address.sun_path[0] != '/')
        return RDT_OK;
    address.sun_path[sizeof address.sun_path - 1] = '\0';
    memcpy(path_p, address.sun_path, sizeof address.sun_path);
    *named_p = strcmp(address.sun_path, options->socket) == 0;
    if (options_is_set(options, "socket_mode") && stat(address.sun_path, &file) == 0 && (file.st_mode & 07777) != mode)
        return rdt_error_set(err, RDT_INVALID,
                             "socket_mode = %s, but the service manager has made %s with %04o: set SocketMode= of rdtd.socket "
                             "to that mode (systemctl edit rdtd.socket), or remove the key",
                             options->socket_mode, address.sun_path, (unsigned)(file.st_mode & 07777));
    return RDT_OK;
}

static enum rdt_status take_passed(struct listener *listener, int n, struct rdt_error *err)
{
    const struct options *options = listener->conns->rpc->options;
    char path[sizeof((struct sockaddr_un){0}).sun_path] = "";
    enum rdt_status status = RDT_OK;
    bool named = false;

    for (int i = 0; i < n; i++) {
        bool is_named = false;
        int fd = 3 + i, domain = 0, accepting = 0;
        socklen_t bytes = sizeof domain;
        if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0 || domain != AF_UNIX ||
            getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepting, &bytes) != 0 || !accepting)
            return rdt_error_set(err, RDT_INVALID,
                                 "fd %d (\"%s\") passed by the service manager is not a listening Unix socket", fd,
                                 sdnotify_fd_name(i));
        if (listener->n == LISTENER_MAX_SOCKETS)
            return rdt_error_set(err, RDT_LIMIT, "the service manager passed more than %d sockets", LISTENER_MAX_SOCKETS);
        status = check_passed(options, fd, &is_named, path, err);
        if (status != RDT_OK)
            return status;
        named = named || is_named;
        add_socket(listener, fd);
    }
    if (path[0] && !named && options_is_set(options, "socket"))
        return rdt_error_set(err, RDT_INVALID,
                             "socket = %s, but the service manager listens at %s: set ListenStream= of rdtd.socket to that "
                             "path (systemctl edit rdtd.socket), or remove the key",
                             options->socket, path);
    return RDT_OK;
}

/* Whether the process that listens there is the earlier daemon, or another one that can never accept a connection. A socket
 * with a full queue does not say whose it is. */
static bool is_of_the_dying(int probe, bool connected, const struct node *node)
{
    struct ucred server;
    socklen_t bytes = sizeof server;

    if (!connected)
        return node->dying != 0;
    return getsockopt(probe, SOL_SOCKET, SO_PEERCRED, &server, &bytes) == 0 && process_is_dying(server.pid, 0);
}

static enum rdt_status remove_stale(const struct sockaddr_un *address, const struct node *node, struct rdt_error *err)
{
    bool dying;
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct stat info;
    int failed;

    if (probe < 0)
        return rdt_error_sys(err, errno, "cannot create a socket");
    failed = connect(probe, (const struct sockaddr *)address, sizeof *address) == 0 ? 0 : errno;
    dying = (failed == 0 || failed == EAGAIN) && is_of_the_dying(probe, failed == 0, node);
    (void)close(probe);
    if ((failed == 0 || failed == EAGAIN) && !dying)
        return rdt_error_set(err, RDT_EXISTS, "another daemon serves %s: stop it, or give this one another --socket",
                             address->sun_path);
    if (failed == ENOENT)
        return RDT_OK;
    if (lstat(address->sun_path, &info) == 0 && !S_ISSOCK(info.st_mode))
        return rdt_error_set(err, RDT_EXISTS, "%s exists and is not a socket", address->sun_path);
    if (unlink(address->sun_path) != 0 && errno != ENOENT)
        return rdt_error_sys(err, errno, "cannot remove the stale socket %s", address->sun_path);
    return RDT_OK;
}

static enum rdt_status create_socket(struct listener *listener, const struct options *options, const struct node *node,
                                     struct rdt_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char folder[sizeof address.sun_path];
    mode_t mode = (mode_t)strtoul(options->socket_mode, NULL, 8);
    enum rdt_status status;
    int fd;

    if (strlen(options->socket) >= sizeof address.sun_path)
        return rdt_error_set(err, RDT_INVALID, "socket path %s is longer than %zu bytes", options->socket,
                             sizeof address.sun_path - 1);
    memcpy(address.sun_path, options->socket, strlen(options->socket) + 1);
    memcpy(folder, address.sun_path, sizeof folder);
    (void)mkdir(dirname(folder), 0755); /* of /run/rdtd, which exists if a systemd unit has started the daemon */
    status = remove_stale(&address, node, err);
    if (status != RDT_OK)
        return status;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return rdt_error_sys(err, errno, "cannot create a socket");
    (void)fchmod(fd, mode); /* before bind, so that the file never has other permissions */
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || chmod(address.sun_path, mode) != 0 ||
        listen(fd, 1024) != 0) {
        status = rdt_error_sys(err, errno, "cannot listen on %s", options->socket);
        (void)close(fd);
        return status;
    }
    memcpy(listener->path, address.sun_path, sizeof listener->path);
    add_socket(listener, fd);
    return RDT_OK;
}

enum rdt_status listener_start(struct listener *listener, struct conns *conns, struct rdt_error *err)
{
    int passed = sdnotify_listen_fds();

    *listener = (struct listener){.conns = conns, .failures.every_ns = FAILURES_EVERY_NS};
    listener->pause.on_passed = on_pause_over;
    return passed > 0 ? take_passed(listener, passed, err)
                      : create_socket(listener, conns->rpc->options, conns->rpc->node, err);
}

static void on_socket_closed(uv_handle_t *handle)
{
    struct listener_socket *listening = handle->data;
    struct listener *listener = listening->listener;

    /* The close of our own socket is its last, and ends connections that were never accepted, with all descriptors in them.
     * A socket of systemd stays, and takes connections for the next start. */
    if (listener->path[0])
        (void)shutdown(listening->fd, SHUT_RDWR); /* further connects are refused meanwhile */
    owner_work_close_fd(listener->conns->rpc->owner_work, listening->fd, &listener->conns->rpc->objects->accounts->node);
    if (--listener->open == 0)
        listener->on_closed(listener->arg);
}

void listener_close(struct listener *listener, void (*on_closed)(void *arg), void *arg)
{
    listener->on_closed = on_closed;
    listener->arg = arg;
    deadline_unset(listener->conns->rpc->deadlines, &listener->pause);
    if (listener->path[0])
        (void)unlink(listener->path);
    for (unsigned i = 0; i < listener->n; i++)
        uv_close((uv_handle_t *)&listener->sockets[i].poll, on_socket_closed);
    if (listener->n == 0)
        on_closed(arg);
}
