/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/rdtd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/call.h"
#include "proto/messages.h"
#include "rdt.pb-c.h"
#include "tests/support/gpu.h"
#include "tests/support/memory_group.h"
#include "tests/support/netns.h"
#include "tests/support/port.h"

#define MAX_FLAGS 64
#define START_NS (10 * SEC)

/* ---- files ---- */

const char *build_path(const char *relative)
{
    static char paths[8][PATH_MAX];
    static unsigned next;
    char *path = paths[next++ % 8];
    const char *build = getenv("RDT_BUILD_DIR");

    must_say(build && build[0] == '/', "RDT_BUILD_DIR is not an absolute path");
    (void)snprintf(path, PATH_MAX, "%s/%s", build, relative);
    return path;
}

static const char *tmp_dir(void)
{
    const char *dir = getenv("TMPDIR");

    return dir ? dir : "/tmp";
}

static void full_path(const char *path, char full_p[PATH_MAX])
{
    if (path[0] == '/')
        (void)snprintf(full_p, PATH_MAX, "%s", path);
    else
        (void)snprintf(full_p, PATH_MAX, "%s/%s", tmp_dir(), path);
}

void write_file(const char *path, const char *text)
{
    char full[PATH_MAX];

    full_path(path, full);
    FILE *file = fopen(full, "we");
    must_say(file, "cannot write %s", full);
    must(fchmod(fileno(file), 0600) == 0); /* keys must be */
    must(fputs(text, file) >= 0 && fclose(file) == 0);
}

char *read_file(const char *path, size_t *bytes_p)
{
    char full[PATH_MAX], *text = NULL;
    size_t bytes = 0, room = 0;

    full_path(path, full);
    FILE *file = fopen(full, "re");
    must_say(file, "cannot read %s", full);
    do {
        room = bytes + 65536;
        text = realloc(text, room + 1);
        must(text);
        bytes += fread(text + bytes, 1, room - bytes, file);
    } while (bytes == room);
    (void)fclose(file);
    text[bytes] = '\0';
    if (bytes_p)
        *bytes_p = bytes;
    return text;
}

/* ---- starting ---- */

static int notify_socket(const struct test_node *node)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    must((size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s/notify", node->dir) < sizeof address.sun_path);
    must(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

struct flags {
    const char *at[MAX_FLAGS + 1];
    unsigned n;
};

static void add_flag(struct flags *flags, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add_flag(struct flags *flags, const char *fmt, ...)
{
    va_list args;
    char *text;

    must(flags->n < MAX_FLAGS);
    va_start(args, fmt);
    must(vasprintf(&text, fmt, args) > 0);
    va_end(args);
    flags->at[flags->n++] = text;
}

static void make_flags(struct test_node *node, const struct node_options *options, struct flags *flags)
{
    bool networked = options->listen || options->nodes || options->key;

    add_flag(flags, "%s", build_path("rdtd"));
    add_flag(flags, "--config=");
    add_flag(flags, "--socket=%s", node->socket);
    add_flag(flags, "--state-dir=%s", node->state_dir);
    add_flag(flags, "--backend-dir=%s", options->no_backend_dir ? "" : build_path("backends"));
    add_flag(flags, "--log-level=%s", options->log ? options->log : "info");
    add_flag(flags, "--pool-idle=100ms"); /* cached memory holds descriptors, and every test counts them at its end */
    if (options->loopback)
        add_flag(flags, "--backend=%s", build_path("tests/rdt_loopback.so"));
    if (options->listen)
        add_flag(flags, "--listen=%s", options->listen);
    if (options->advertise)
        add_flag(flags, "--advertise=%s", options->advertise);
    if (networked) {
        write_file(node->key_path, options->key ? options->key : TEST_KEY);
        add_flag(flags, "--key-file=%s", node->key_path);
    }
    if (options->nodes) {
        node_write_nodes(node, options->nodes);
        add_flag(flags, "--nodes=%s", node->nodes_path);
    }
    if (options->trusted_network)
        add_flag(flags, "--trusted-network=yes");
    if (options->interfaces)
        add_flag(flags, "--interfaces=%s", options->interfaces);
    for (unsigned i = 0; options->flags && options->flags[i]; i++)
        add_flag(flags, "%s", options->flags[i]);
}

/* Fds from 3 on, in order, whatever numbers they have now. */
static void pass_fds(const int *fds)
{
    int high[16];
    unsigned n = 0;

    for (; fds[n] >= 0 && n < 16; n++)
        high[n] = fcntl(fds[n], F_DUPFD_CLOEXEC, 100);
    for (unsigned i = 0; i < n; i++)
        (void)dup2(high[i], (int)(3 + i));
    char number[16];
    (void)snprintf(number, sizeof number, "%d", (int)getpid());
    (void)setenv("LISTEN_PID", number, 1);
    (void)snprintf(number, sizeof number, "%u", n);
    (void)setenv("LISTEN_FDS", number, 1);
    (void)close_range(3 + n, ~0u, CLOSE_RANGE_CLOEXEC);
}

static void run_daemon(const struct test_node *node, const struct node_options *options, const struct flags *flags,
                       pid_t parent)
{
    char notify[sizeof node->dir + 16];
    int log = open(node->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    sigset_t none;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || log < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0)
        _exit(CHECK_FAILED);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    for (int number = 1; number < 32; number++)
        (void)signal(number, SIG_DFL);
    if (options->netns)
        net_enter(options->netns);
    if (options->memory_group)
        memory_group_enter(options->memory_group);
    (void)snprintf(notify, sizeof notify, "%s/notify", node->dir);
    (void)setenv("NOTIFY_SOCKET", notify, 1);
    if (options->watchdog_usec) {
        char text[32];
        (void)snprintf(text, sizeof text, "%llu", (unsigned long long)options->watchdog_usec);
        (void)setenv("WATCHDOG_USEC", text, 1);
        (void)snprintf(text, sizeof text, "%d", (int)getpid());
        (void)setenv("WATCHDOG_PID", text, 1);
    }
    for (unsigned i = 0; options->env && options->env[i]; i++)
        (void)putenv((char *)(uintptr_t)options->env[i]);
    if (options->pass_fds)
        pass_fds(options->pass_fds);
    else
        (void)close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
    (void)execv(flags->at[0], (char *const *)(uintptr_t)flags->at);
    (void)fprintf(stderr, "cannot run %s: %s\n", flags->at[0], strerror(errno));
    _exit(127);
}

void node_spawn(struct test_node *node, const struct node_options *options)
{
    static const struct node_options none;
    struct flags flags = {0};
    pid_t parent = getpid();

    if (!options)
        options = &none;
    *node = (struct test_node){.pid = -1, .pidfd = -1, .notify = -1};
    (void)snprintf(node->name, sizeof node->name, "%s", options->name ? options->name : "node");
    (void)snprintf(node->dir, sizeof node->dir, "%.80s/%.20s.XXXXXX", tmp_dir(), node->name);
    must_say(mkdtemp(node->dir), "cannot make %s", node->dir);
    must(chmod(node->dir, 0755) == 0); /* other users' actors come in */
    (void)chmod(tmp_dir(), 0755);
    (void)snprintf(node->socket, sizeof node->socket, "%s/s", node->dir);
    if (options->socket)
        (void)snprintf(node->socket, sizeof node->socket, "%s", options->socket);
    (void)snprintf(node->log, sizeof node->log, "%s/log", node->dir);
    (void)snprintf(node->state_dir, sizeof node->state_dir, "%s/state", node->dir);
    if (options->state_dir)
        (void)snprintf(node->state_dir, sizeof node->state_dir, "%s", options->state_dir);
    (void)snprintf(node->nodes_path, sizeof node->nodes_path, "%s/nodes", node->dir);
    (void)snprintf(node->key_path, sizeof node->key_path, "%s/key", node->dir);
    make_flags(node, options, &flags);
    node->notify = notify_socket(node);
    (void)fflush(NULL);
    node->pid = fork();
    must(node->pid >= 0);
    if (node->pid == 0)
        run_daemon(node, options, &flags, parent);
    for (unsigned i = 0; i < flags.n; i++)
        free((char *)(uintptr_t)flags.at[i]);
    node->pidfd = (int)syscall(SYS_pidfd_open, node->pid, 0);
    must(node->pidfd >= 0);
    harness_fds += 2;
    node->own_fds = fds_of(0);
}

/* 1: a datagram that holds the text came; 0: the daemon ended; -1: neither within ns. */
static int await(struct test_node *node, const char *text, int64_t ns)
{
    int64_t deadline = now_ns() + ns, left;

    while ((left = deadline - now_ns()) > 0) {
        struct pollfd fds[] = {{.fd = node->notify, .events = POLLIN}, {.fd = node->pidfd, .events = POLLIN}};
        char datagram[1024];

        if (poll(fds, 2, (int)(left / MSEC) + 1) < 0 && errno != EINTR)
            return -1;
        ssize_t n = recv(node->notify, datagram, sizeof datagram - 1, MSG_DONTWAIT);
        if (n >= 0) {
            datagram[n] = '\0';
            if (strstr(datagram, text))
                return 1;
        } else if (fds[1].revents) {
            return 0;
        }
    }
    return -1;
}

void node_await_notify(struct test_node *node, const char *text)
{
    int came = await(node, text, LONG);

    if (came != 1)
        node_print_log(node);
    must_say(came == 1, "%s %s instead of saying %s", node->name, came == 0 ? "ended" : "stayed silent", text);
}

static void introduce(struct test_node *node)
{
    struct rdt_node_info info;
    rdt *conn;

    node_connect(node, &conn);
    must_ok(rdt_node(conn, &info, &err));
    rdt_close(conn);
    memcpy(node->uuid_bytes, info.node, 16);
    for (unsigned i = 0; i < 16; i++)
        (void)snprintf(node->uuid + 2 * i, 3, "%02x", info.node[i]);
    (void)snprintf(node->address, sizeof node->address, "%s", info.address);
}

bool node_try_start(struct test_node *node, const struct node_options *options, int *exit_p)
{
    node_spawn(node, options);
    int came = await(node, "READY=1", patience(START_NS));
    if (came == 0) {
        *exit_p = node_result(node);
        return false;
    }
    if (came < 0)
        node_print_log(node);
    must_say(came == 1, "%s is not ready in time", node->name);
    node->fds = fds_of(node->pid);
    introduce(node);
    if (!options || !options->awaited)
        node_expect_fds(node, 0);
    return true;
}

void node_start(struct test_node *node, const struct node_options *options)
{
    int status = 0;

    if (!node_try_start(node, options, &status)) {
        node_print_log(node);
        fail("%s ended with %d instead of getting ready", node->name, status);
    }
}

/* ---- ending ---- */

int node_result(struct test_node *node)
{
    int status = -1;
    bool ended = child_ends(node->pid, node->pidfd, LONG, &status);

    if (!ended)
        node_print_log(node);
    must_say(ended, "%s does not end", node->name);
    (void)close(node->pidfd);
    (void)close(node->notify);
    harness_fds -= 2;
    node->pid = node->pidfd = node->notify = -1;
    return status;
}

/* A node that has ended has the pid -1, with which kill() would signal every process of the machine. */
static void node_signal(const struct test_node *node, int signal)
{
    must_say(node->pid > 0, "%s has ended before", node->name);
    must(kill(node->pid, signal) == 0);
}

void node_kill(struct test_node *node, int signal)
{
    node_signal(node, signal);
    (void)node_result(node);
}

void node_stop(struct test_node *node)
{
    node_signal(node, SIGTERM);
    int status = node_result(node);
    if (status != 0)
        node_print_log(node);
    must_say(status == 0, "%s ended with %d", node->name, status);
}

void node_freeze(struct test_node *node)
{
    int status;

    node_signal(node, SIGSTOP);
    must(waitpid(node->pid, &status, WUNTRACED) == node->pid && WIFSTOPPED(status));
}

void node_thaw(struct test_node *node)
{
    node_signal(node, SIGCONT);
}

/* ---- looking ---- */

rdt *node_client(const struct test_node *node, const char *name)
{
    rdt *conn = NULL;
    struct rdt_connect_options options = {
        .struct_size = sizeof options, .socket = node->socket, .name = name, .timeout_ns = LONG};

    must_ok(rdt_connect(&options, &conn, &err));
    return conn;
}

void node_connect(const struct test_node *node, rdt **rdt_p)
{
    *rdt_p = node_client(node, "test");
}

void node_status(const struct test_node *node, struct node_status *status_p)
{
    Rdt__Pb__Status request = RDT__PB__STATUS__INIT;
    Rdt__Pb__StatusReply *reply = NULL;
    rdt *conn = node_client(node, "onlooker");

    must_ok(call(conn, RDT_MSG_STATUS, &request.base, LONG, (ProtobufCMessage **)(void *)&reply, &err));
    *status_p = (struct node_status){
        .objects = reply->objects,
        .regions = reply->regions,
        .memory_bytes = reply->memory_bytes,
        .memory_limit_bytes = reply->memory_limit_bytes,
        .transfers_done = reply->transfers_done,
        .pool_bytes = reply->pool_bytes,
        .pool_hits = reply->pool_hits,
        .cached_bytes = reply->cached_bytes,
        .cache_hits = reply->cache_hits,
        .orphaned_bytes = reply->orphaned_bytes,
        .bytes_in = reply->bytes_in,
        .bytes_out = reply->bytes_out,
        .bytes_local = reply->bytes_local,
        .joined = reply->fetches_joined,
        .transfers_failed = reply->transfers_failed,
        .transfers_cancelled = reply->transfers_cancelled,
        .transfers_timed_out = reply->transfers_timed_out,
        .fell_back = reply->fell_back,
        .copies = reply->replicas,
        .replica_bytes = reply->replica_bytes,
        .from_copies = reply->fetches_from_replicas,
        .redirected = reply->redirected,
        .busy_polls = reply->busy_polls,
        .busy_polls_missed = reply->busy_polls_missed,
        .clients = reply->clients - 1,
        .transfers_active = reply->transfers_active,
        .peers_up = reply->peers_up,
        .peers_known = reply->peers_known,
    };
    (void)snprintf(status_p->state, sizeof status_p->state, "%s", reply->state);
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    rdt_close(conn);
}

struct node_status node_now(const struct test_node *node)
{
    struct node_status status;

    node_status(node, &status);
    return status;
}

void node_expect_idle(const struct test_node *node)
{
    int64_t deadline = now_ns() + LONG;
    struct node_status status;

    for (unsigned round = 0;; wait_pause(&round)) {
        node_status(node, &status);
        if (status.objects == 0 && status.regions == 0 && status.memory_bytes == 0 && status.cached_bytes == 0 &&
            status.transfers_active == 0 && status.clients == 0)
            return;
        if (now_ns() > deadline) {
            node_print_log(node);
            fail("%s is left with %llu objects, %llu regions, %llu bytes, %u transfers, %u clients", node->name,
                 (unsigned long long)status.objects, (unsigned long long)status.regions,
                 (unsigned long long)status.memory_bytes, status.transfers_active, status.clients);
        }
    }
}

void node_expect_fds(const struct test_node *node, unsigned slack)
{
    int64_t deadline = now_ns() + LONG;

    if (gpu_is_real()) /* the driver has descriptors of its own, from cuInit on */
        return;
    for (unsigned round = 0; fds_of(node->pid) > node->fds + slack; wait_pause(&round))
        must_say(now_ns() < deadline, "%s has %u fds open, %u at its start", node->name, fds_of(node->pid), node->fds);
}

static bool line_is_declared(const char *line, const char *const *declared)
{
    for (unsigned i = 0; declared && declared[i]; i++)
        if (strstr(line, declared[i]))
            return true;
    return false;
}

void node_check_log(const struct test_node *node, const char *const *declared)
{
    char *text = read_file(node->log, NULL), *rest = text, *line;

    while ((line = strsep(&rest, "\n"))) {
        bool bad = strstr(line, "Z error: ") || strstr(line, "ERROR: ") || strstr(line, "runtime error");
        bool warning = strstr(line, "Z warn: ") || strstr(line, "WARN");
        must_say((!bad && !warning) || line_is_declared(line, declared), "%s logs: %s", node->name, line);
    }
    free(text);
}

unsigned node_log_count(const struct test_node *node, const char *text)
{
    char *log = read_file(node->log, NULL);
    unsigned n = 0;

    for (char *at = log; (at = strstr(at, text)); at += strlen(text))
        n++;
    free(log);
    return n;
}

bool node_log_has(const struct test_node *node, const char *text)
{
    char *log = read_file(node->log, NULL);
    bool has = strstr(log, text);

    free(log);
    return has;
}

void node_print_log(const struct test_node *node)
{
    char *log = read_file(node->log, NULL);

    (void)fprintf(stderr, "---- the log of %s:\n%s----\n", node->name, log);
    free(log);
}

void node_end(struct test_node *node, const char *const *declared)
{
    must_say(gpu_is_real() || fds_of(0) <= node->own_fds, "the test has %u fds open, %u at its start", fds_of(0),
             node->own_fds);
    node_expect_idle(node);
    node_expect_fds(node, 0);
    node_stop(node);
    node_check_log(node, declared);
}

void node_write_nodes(const struct test_node *node, const char *text)
{
    write_file(node->nodes_path, text);
}

void free_address(int netns, const char *address, char text_p[65])
{
    int home = -1;

    if (netns) {
        home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
        net_enter(netns);
    }
    (void)snprintf(text_p, 65, "%s:%u", address, port_take(address));
    if (netns) {
        net_enter(home);
        (void)close(home);
    }
}
