/* SPDX-License-Identifier: Apache-2.0 */
/* rdtd-exporter: the metrics of this node's rdtd over HTTP, for Prometheus and its kind.
 *
 * A process of its own, so that no stranger at its port reaches the daemon, and so that a scrape of a daemon that hangs or is
 * gone says so. Every connection has a thread and asks the daemon on a session of its own. It serves GET /metrics and nothing
 * else, keeps nothing between two scrapes, and needs no configuration file. */
#include <errno.h>
#include <getopt.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "client/rdt_info.h"
#include "proto/container_of.h"
#include "proto/std_fds.h"
#include "proto/strangers.h"

#define DEFAULT_LISTEN "127.0.0.1:9464"
/* A new connection is always accepted. The oldest one of its address, or of the address with most, makes room for it, so slow
 * strangers cannot keep a scrape away, which takes milliseconds. */
#define CONNECTIONS_MAX 64u
#define CONNECTIONS_OF_ADDRESS 16u
#define CONNECTION_SECONDS 30u           /* from the connection to the end of the answer, which also ends the connection */
#define REQUEST_BYTES ((size_t)16 << 10) /* the most bytes of a request's line and headers */
#define STACK_BYTES ((size_t)256 << 10)
#define INHERITED_FD 3 /* of systemd's socket activation */

#define OPENMETRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"
#define PROMETHEUS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* ---- connections ---- */

struct visit {
    struct stranger stranger;
    int fd;
    time_t since_s;
};

static struct strangers visits; /* of struct visit.stranger; under the mutex */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static time_t now_s(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* Under the mutex. The connection's thread notices, and closes it. */
static void end_visit(const struct stranger *stranger)
{
    (void)shutdown(container_of(stranger, struct visit, stranger)->fd, SHUT_RDWR);
}

static void begin_visit(struct MHD_Connection *connection, void **visit_p)
{
    const union MHD_ConnectionInfo *fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    const struct sockaddr *address = NULL;
    const union MHD_ConnectionInfo *client = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    struct sockaddr_storage from = {0};
    struct visit *visit = calloc(1, sizeof *visit);
    struct stranger *goes;

    *visit_p = visit;
    if (!fd || !visit) {
        if (fd)
            (void)shutdown(fd->connect_fd, SHUT_RDWR);
        return;
    }
    address = client ? client->client_addr : NULL;
    if (address && address->sa_family == AF_INET)
        memcpy(&from, address, sizeof(struct sockaddr_in));
    else if (address && address->sa_family == AF_INET6)
        memcpy(&from, address, sizeof(struct sockaddr_in6));
    strangers_source(&from, visit->stranger.source);
    visit->fd = fd->connect_fd;
    visit->since_s = now_s();
    (void)pthread_mutex_lock(&mutex);
    if (visits.n == 0)
        (void)alarm(CONNECTION_SECONDS);
    goes = strangers_admit(&visits, &visit->stranger, false);
    if (goes)
        end_visit(goes);
    (void)pthread_mutex_unlock(&mutex);
}

static void on_connection(void *arg, struct MHD_Connection *connection, void **visit_p,
                          enum MHD_ConnectionNotificationCode what)
{
    struct visit *visit = *visit_p;

    (void)arg;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        begin_visit(connection, visit_p);
    } else if (visit) {
        (void)pthread_mutex_lock(&mutex);
        strangers_remove(&visits, &visit->stranger);
        (void)pthread_mutex_unlock(&mutex);
        free(visit);
    }
}

/* Ends the connections whose time is over, and sets the alarm for the next one. */
static void end_late_visits(void)
{
    time_t now = now_s();

    (void)pthread_mutex_lock(&mutex);
    while (visits.n > 0) {
        struct stranger *oldest = visits.list.next;
        time_t until = container_of(oldest, struct visit, stranger)->since_s + CONNECTION_SECONDS;
        if (until > now) {
            (void)alarm((unsigned)(until - now));
            break;
        }
        end_visit(oldest);
        strangers_remove(&visits, oldest);
    }
    (void)pthread_mutex_unlock(&mutex);
}

/* ---- requests ---- */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type, const char *text)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
    enum MHD_Result result;

    if (!response)
        return MHD_NO;
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection, const char *path, const char *method,
                                  const char *version, const char *upload, size_t *upload_bytes, void **state)
{
    const char *accept = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT);
    bool openmetrics = accept && strstr(accept, "application/openmetrics-text");
    struct rdt_connect_options options = RDT_INIT(options);
    enum MHD_Result result;
    struct rdt_error err;
    enum rdt_status status;
    char *text = NULL;
    rdt *conn = NULL;

    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "text/plain", "only GET is served\n");
    if (strcmp(path, "/metrics") != 0)
        return answer(connection, MHD_HTTP_NOT_FOUND, "text/plain", "the metrics of rdtd are at /metrics\n");
    options.socket = arg;
    options.name = "rdtd-exporter";
    status = rdt_connect(&options, &conn, &err);
    if (status == RDT_OK)
        status = rdt_metrics(conn, openmetrics ? RDT_METRICS_OPENMETRICS : RDT_METRICS_PROMETHEUS, &text, &err);
    if (status == RDT_OK) {
        result = answer(connection, MHD_HTTP_OK, openmetrics ? OPENMETRICS_TYPE : PROMETHEUS_TYPE, text);
    } else {
        char why[sizeof err.msg + 64];
        (void)snprintf(why, sizeof why, "%s: %s\n", rdt_status_name(status), err.msg);
        result = answer(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", why);
    }
    free(text);
    rdt_close(conn);
    return result;
}

/* ---- the listening socket ---- */

static int listen_at_path(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd;

    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    (void)stpcpy(address.sun_path, path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
        (void)close(fd);
        errno = EADDRINUSE;
        return -1;
    }
    if (errno == ECONNREFUSED)
        (void)unlink(path); /* what an earlier run has left */
    if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    (void)close(fd);
    return -1;
}

static int listen_at_address(const struct addrinfo *address)
{
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    (void)close(fd);
    return -1;
}

/* "HOST:PORT", "[HOST]:PORT" or "unix:PATH". -1: it has said why. */
static int open_listener(const char *where)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    const char *colon = strrchr(where, ':');
    char host[256] = "";
    struct addrinfo *found;
    size_t length = colon ? (size_t)(colon - where) : 0;
    int fd, why;

    if (strncmp(where, "unix:", 5) == 0) {
        fd = listen_at_path(where + 5);
        if (fd < 0)
            fprintf(stderr, "rdtd-exporter: cannot listen at %s: %s\n", where + 5, strerror(errno));
        return fd;
    }
    if (length > 1 && where[0] == '[' && where[length - 1] == ']') {
        where++;
        length -= 2;
    }
    if (!colon || length == 0 || length >= sizeof host) {
        fprintf(stderr, "rdtd-exporter: --listen %s: expected HOST:PORT, [HOST]:PORT or unix:PATH\n", where);
        return -1;
    }
    memcpy(host, where, length);
    why = getaddrinfo(host, colon + 1, &hints, &found);
    if (why != 0) {
        fprintf(stderr, "rdtd-exporter: --listen: %s port %s: %s\n", host, colon + 1, gai_strerror(why));
        return -1;
    }
    fd = listen_at_address(found);
    if (fd < 0)
        fprintf(stderr, "rdtd-exporter: cannot listen at %s port %s: %s\n", host, colon + 1, strerror(errno));
    freeaddrinfo(found);
    return fd;
}

/* systemd's socket, if it gave exactly one to this process. */
static int inherited_listener(void)
{
    const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");

    return pid && fds && atol(pid) == (long)getpid() && strcmp(fds, "1") == 0 ? INHERITED_FD : -1;
}

/* ---- the program ---- */

static const char help[] = "usage: rdtd-exporter [options]\n"
                           "\n"
                           "serves the metrics of this node's rdtd over HTTP, at /metrics\n"
                           "\n"
                           "options:\n"
                           "      --listen ADDRESS   HOST:PORT, [HOST]:PORT or unix:PATH (" DEFAULT_LISTEN ")\n"
                           "      --socket PATH      the daemon's socket ($RDT_SOCKET, else /run/rdtd/rdtd.sock)\n"
                           "  -h, --help             print this help\n"
                           "  -V, --version          print the version\n";

int main(int argc, char **argv)
{
    static const struct option options[] = {{"listen", required_argument, NULL, 'l'},
                                            {"socket", required_argument, NULL, 's'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"version", no_argument, NULL, 'V'},
                                            {0}};
    const char *where = DEFAULT_LISTEN, *socket_path = NULL;
    struct MHD_Daemon *server;
    sigset_t ends;
    bool inherited;
    int option, fd, signal_number = 0;

    std_fds_open();
    (void)signal(SIGXFSZ, SIG_IGN);
    while ((option = getopt_long(argc, argv, "hV", options, NULL)) != -1) {
        switch (option) {
        case 'l':
            where = optarg;
            break;
        case 's':
            socket_path = optarg;
            break;
        case 'h':
            fputs(help, stdout);
            return 0;
        case 'V':
            puts("rdtd-exporter " RDT_VERSION);
            return 0;
        default:
            return 2;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "rdtd-exporter: unexpected argument '%s'\n", argv[optind]);
        return 2;
    }
    (void)sigemptyset(&ends);
    (void)sigaddset(&ends, SIGINT);
    (void)sigaddset(&ends, SIGTERM);
    (void)sigaddset(&ends, SIGALRM);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)pthread_sigmask(SIG_BLOCK, &ends, NULL); /* before there are threads */
    fd = inherited_listener();
    inherited = fd >= 0;
    if (!inherited)
        fd = open_listener(where);
    if (fd < 0)
        return 2;
    strangers_init(&visits, CONNECTIONS_MAX, CONNECTIONS_OF_ADDRESS);
    server = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL, 0, NULL, NULL,
                              on_request, (void *)(uintptr_t)socket_path, MHD_OPTION_LISTEN_SOCKET, fd,
                              MHD_OPTION_NOTIFY_CONNECTION, on_connection, NULL, MHD_OPTION_CONNECTION_LIMIT,
                              4 * CONNECTIONS_MAX, MHD_OPTION_CONNECTION_MEMORY_LIMIT, REQUEST_BYTES,
                              MHD_OPTION_THREAD_STACK_SIZE, STACK_BYTES, MHD_OPTION_END);
    if (!server) {
        fprintf(stderr, "rdtd-exporter: cannot start the HTTP server\n");
        return 1;
    }
    while (sigwait(&ends, &signal_number) == 0 && signal_number == SIGALRM)
        end_late_visits();
    MHD_stop_daemon(server);
    if (!inherited && strncmp(where, "unix:", 5) == 0)
        (void)unlink(where + 5);
    return 0;
}
