/* SPDX-License-Identifier: Apache-2.0 */
/* rdtd-keeper: holds the descriptors of rdtd's memory and of its journal while no rdtd runs (keeper_packet.h). It owns a table
 * of descriptors by number, and nothing else. It does not interpret what it holds, has one thread, never blocks, and never
 * maps memory. One daemon uses it at a time; when that daemon ends, the keeper keeps everything. When the keeper itself ends,
 * everything is lost. With a command it also starts that command, which is the daemon, and starts it again when it dies: for
 * containers, whose first process it can be. */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/node.h"
#include "daemon/base/process/process.h"
#include "daemon/base/sdnotify.h"
#include "daemon/persist/keeper_packet.h"
#include "proto/std_fds.h"

#define DEFAULT_SOCKET "/run/rdtd-keeper/socket"
#define MAX_PEERS 8u
#define HEAD_ROOM (2 * KEEPER_MAX_IDS + 64) /* descriptors that stay free, so that none is lost while it is received */
#define EXIT_USAGE 2
#define FIRST_PAUSE_MS 200 /* before the command is started again; doubled up to LAST_PAUSE_MS while it dies early */
#define LAST_PAUSE_MS 5000
#define LONG_LIFE_MS 10000
#define LOOK_MS 1000  /* how often the keeper looks whether its command is dying */
#define DYING_MS 5000 /* a command that has been dying so long is not waited for */

/* ---- what is held ---- */

struct entry {
    uint64_t id; /* 0: the entry is free */
    int fd;
};

static struct table {
    struct entry *entries; /* [size], a power of 2; open addressing without gaps */
    size_t size, n, max;
} held;

static size_t place_of(uint64_t id)
{
    return (size_t)((id * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (held.size - 1);
}

static struct entry *find(uint64_t id)
{
    size_t i = place_of(id);

    while (held.entries[i].id != 0 && held.entries[i].id != id)
        i = (i + 1) & (held.size - 1);
    return &held.entries[i];
}

static bool grow(void)
{
    struct table old = held;
    struct entry *entries = calloc(old.size ? 2 * old.size : 1024, sizeof *entries);

    if (!entries)
        return false;
    held.entries = entries;
    held.size = old.size ? 2 * old.size : 1024;
    for (size_t i = 0; i < old.size; i++)
        if (old.entries[i].id != 0)
            *find(old.entries[i].id) = old.entries[i];
    free(old.entries);
    return true;
}

/* Takes the descriptor. false: there is no room for it. */
static bool store(uint64_t id, int take_fd)
{
    struct entry *entry = id != 0 ? find(id) : NULL;

    if (!entry || (entry->id == 0 && (held.n >= held.max || (2 * held.n >= held.size && !grow())))) {
        (void)close(take_fd);
        return false;
    }
    entry = find(id); /* the table may have grown */
    if (entry->id != 0)
        (void)close(entry->fd);
    else
        held.n++;
    *entry = (struct entry){.id = id, .fd = take_fd};
    return true;
}

/* Moves the entries behind it up, so that a search never meets a gap. */
static void drop(uint64_t id)
{
    struct entry *gap = id != 0 ? find(id) : NULL;

    if (!gap || gap->id == 0)
        return;
    (void)close(gap->fd);
    held.n--;
    for (size_t i = (size_t)(gap - held.entries);;) {
        size_t home;
        i = (i + 1) & (held.size - 1);
        if (held.entries[i].id == 0)
            break;
        home = place_of(held.entries[i].id);
        if (((i - home) & (held.size - 1)) < ((i - (size_t)(gap - held.entries)) & (held.size - 1)))
            continue; /* it lies between the gap and its home */
        *gap = held.entries[i];
        gap = &held.entries[i];
    }
    gap->id = 0;
}

/* ---- peers ---- */

struct peer {
    int fd;      /* -1: free */
    bool greets; /* it has said HELLO, and may store */
    pid_t pid;
    bool fetches;
    size_t fetched; /* entries before this one have been sent */
};

static struct peer peers[MAX_PEERS];
static struct log_rare strangers = {.every_ns = 60000000000u};

static void hang_up(struct peer *peer)
{
    (void)close(peer->fd);
    *peer = (struct peer){.fd = -1};
}

/* Sends as much as the peer takes; an empty packet ends it. */
static void send_held(struct peer *peer)
{
    while (peer->fetches) {
        struct keeper_message message = {.type = KEEPER_FDS};
        int fds[KEEPER_MAX_IDS], error;
        size_t i = peer->fetched;
        for (; i < held.size && message.n < KEEPER_MAX_IDS; i++)
            if (held.entries[i].id != 0) {
                message.ids[message.n] = held.entries[i].id;
                fds[message.n++] = held.entries[i].fd;
            }
        error = keeper_packet_send(peer->fd, &message, fds);
        if (error != 0 && error != EAGAIN)
            hang_up(peer);
        if (error != 0)
            return;
        peer->fetched = i;
        peer->fetches = message.n > 0;
    }
}

/* Whether that connection's process has ended, or will never send anything again, or has closed the connection. */
static bool has_ended(const struct peer *peer)
{
    struct pollfd ended = {.fd = peer->fd};

    return (poll(&ended, 1, 0) > 0 && ended.revents & (POLLHUP | POLLERR)) || process_is_dying(peer->pid, 0);
}

static bool receive(struct peer *peer);

static void greet(struct peer *peer, const struct keeper_message *hello)
{
    struct keeper_message reply = {.type = KEEPER_READY, .value = KEEPER_VERSION};

    for (unsigned i = 0; i < MAX_PEERS; i++) {
        struct peer *other = &peers[i];
        if (other == peer || other->fd < 0 || !other->greets)
            continue;
        if (has_ended(other)) {
            while (receive(other)) /* what it sent last is stored first */
                ;
            if (other->fd >= 0)
                hang_up(other);
            continue;
        }
        reply.type = KEEPER_BUSY;
        reply.value = (uint32_t)other->pid;
    }
    peer->greets = reply.type == KEEPER_READY && hello->value == KEEPER_VERSION;
    if (peer->greets)
        log_info("process %d uses this keeper, which holds %zu descriptors", (int)peer->pid, held.n);
    reply.count = held.n;
    (void)keeper_packet_send(peer->fd, &reply, NULL);
}

/* false: the peer's message makes no sense. Takes the descriptors. */
static bool handle(struct peer *peer, const struct keeper_message *message, const int *take_fds, unsigned n_fds)
{
    struct keeper_message full = {.type = KEEPER_FULL};

    if (message->type == KEEPER_STORE && peer->greets && n_fds == message->n) {
        for (unsigned i = 0; i < n_fds; i++)
            if (!store(message->ids[i], take_fds[i]))
                full.ids[full.n++] = message->ids[i];
        if (full.n > 0)
            (void)keeper_packet_send(peer->fd, &full, NULL); /* a peer that does not read is not told */
        return true;
    }
    for (unsigned i = 0; i < n_fds; i++)
        (void)close(take_fds[i]);
    if (n_fds > 0)
        return false;
    if (message->type == KEEPER_HELLO && !peer->greets) {
        greet(peer, message);
        return true;
    }
    if (!peer->greets || (message->type != KEEPER_FETCH && message->type != KEEPER_DROP))
        return false;
    if (message->type == KEEPER_DROP) {
        for (unsigned i = 0; i < message->n; i++)
            drop(message->ids[i]);
        return true;
    }
    peer->fetches = true;
    peer->fetched = 0;
    return true;
}

/* Returns whether a packet came. */
static bool receive(struct peer *peer)
{
    struct keeper_message message;
    int fds[KEEPER_MAX_IDS], n = keeper_packet_receive(peer->fd, &message, fds);

    if (n < 0 && errno == EAGAIN)
        return false;
    if (n >= 0 && handle(peer, &message, fds, (unsigned)n))
        return true;
    if (n >= 0)
        log_warn("process %d sent a message of type %u that is not expected here: its connection is closed", (int)peer->pid,
                 message.type);
    else if (errno == EPROTO)
        log_warn("process %d sent something that is not a message for a keeper: its connection is closed", (int)peer->pid);
    hang_up(peer);
    return false;
}

/* Only processes of the same user and of root may use it: what it holds is everybody's memory. */
static void accept_peer(int listener)
{
    struct ucred who;
    socklen_t size = sizeof who;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct peer *free_peer = NULL;
    char text[64];

    for (unsigned i = 0; i < MAX_PEERS && !free_peer; i++)
        if (peers[i].fd < 0)
            free_peer = &peers[i];
    if (fd >= 0 && free_peer && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 &&
        (who.uid == geteuid() || who.uid == 0)) {
        *free_peer = (struct peer){.fd = fd, .pid = who.pid};
        return;
    }
    if (fd < 0)
        return;
    (void)snprintf(text, sizeof text, "process %d of uid %u", (int)who.pid, who.uid);
    log_warn_rarely(&strangers, text, free_peer ? "it may not use this keeper" : "too many connections");
    (void)close(fd);
}

/* ---- the command ---- */

static struct command {
    char **argv; /* NULL: there is none */
    pid_t pid;   /* 0: it does not run */
    uint64_t started_ms, start_at_ms, pause_ms;
    uint64_t dying_ms; /* since when it has been dying; 0: it is not */
    bool stopping;
    int status; /* the keeper's own in the end */
} command;

static uint64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void start_command(void)
{
    sigset_t none;

    command.started_ms = now_ms();
    command.dying_ms = 0;
    command.pid = fork();
    if (command.pid == 0) {
        (void)sigemptyset(&none);
        (void)sigprocmask(SIG_SETMASK, &none, NULL);
        (void)signal(SIGPIPE, SIG_DFL);
        (void)execvp(command.argv[0], command.argv);
        log_fatal("cannot start the command");
        _exit(127);
    }
    if (command.pid < 0) {
        log_error("rdtd-keeper cannot start %s and tries again in %d s: %m", command.argv[0], LAST_PAUSE_MS / 1000);
        command.pid = 0;
        command.status = 1;
        command.start_at_ms = now_ms() + LAST_PAUSE_MS;
    }
}

static void start_command_again(void)
{
    command.pid = 0;
    command.pause_ms =
        now_ms() - command.started_ms > LONG_LIFE_MS || command.pause_ms == 0 ? FIRST_PAUSE_MS : 2 * command.pause_ms;
    if (command.pause_ms > LAST_PAUSE_MS)
        command.pause_ms = LAST_PAUSE_MS;
    command.start_at_ms = now_ms() + command.pause_ms;
}

/* Returns whether the keeper ends. */
static bool command_ended(int status)
{
    bool fine =
        WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == EXIT_USAGE || WEXITSTATUS(status) == 127);

    command.pid = 0;
    command.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (fine || command.stopping)
        return true;
    start_command_again();
    log_warn("%s ended with %s %d and is started again; %zu descriptors are held for it", command.argv[0],
             WIFEXITED(status) ? "status" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), held.n);
    return false;
}

/* The kernel reports the end of a process when its last thread has ended, which may be never (base/process/folder_lock.h).
 * Returns whether the keeper ends. */
static bool look_at_command(void)
{
    pid_t pid = command.pid;

    if (pid <= 0)
        return false;
    if (!process_is_dying(pid, 0)) {
        command.dying_ms = 0;
        return false;
    }
    if (command.dying_ms == 0)
        command.dying_ms = now_ms();
    if (now_ms() - command.dying_ms < DYING_MS)
        return false;
    command.status = 1;
    if (command.stopping)
        return true;
    start_command_again();
    log_warn(
        "%s (process %d) was killed and does not end, because the kernel waits for a file system or writes a core dump. It "
        "is started again; %zu descriptors are held for it",
        command.argv[0], (int)pid, held.n);
    return false;
}

/* Returns whether the keeper ends. */
static bool on_signal(int signals)
{
    struct signalfd_siginfo info;
    int status;
    pid_t pid;

    if (read(signals, &info, sizeof info) != (ssize_t)sizeof info)
        return false;
    if (info.ssi_signo != SIGCHLD) {
        if (info.ssi_signo != SIGHUP)
            command.stopping = true;
        if (command.pid > 0)
            (void)kill(command.pid, (int)info.ssi_signo);
        return info.ssi_signo != SIGHUP && command.pid == 0;
    }
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) /* as the first process of a container it inherits other processes */
        if (pid == command.pid && command_ended(status))
            return true;
    return false;
}

/* ---- start and loop ---- */

static int make_listener(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t mask = umask(0177);
    bool bound;

    if (strlen(path) >= sizeof address.sun_path || fd < 0) {
        log_fatal("the path of the socket is too long");
        return -1;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
        log_fatal("another keeper listens at %s: give each its own --socket", path);
        return -1;
    }
    if (errno == ECONNREFUSED)
        (void)unlink(path); /* of a keeper that has ended */
    bound = bind(fd, (struct sockaddr *)&address, sizeof address) == 0 && listen(fd, MAX_PEERS) == 0;
    (void)umask(mask);
    if (bound)
        return fd;
    log_fatal("cannot listen at %s: %s (give --socket PATH in a directory that this user may write)", path, strerror(errno));
    return -1;
}

static int make_signals(void)
{
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGHUP);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void raise_open_files(void)
{
    struct rlimit limit = {.rlim_cur = 1024};

    (void)getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    held.max = limit.rlim_cur > 2 * HEAD_ROOM ? (size_t)limit.rlim_cur - HEAD_ROOM : HEAD_ROOM / 2;
}

/* In milliseconds; -1: no command will be started. */
static int until_start(void)
{
    uint64_t now = now_ms();

    if (!command.argv || command.pid > 0)
        return -1;
    return command.start_at_ms > now ? (int)(command.start_at_ms - now) : 0;
}

/* Until a signal ends it. */
static void serve(int listener, int signals)
{
    struct pollfd polls[2 + MAX_PEERS];

    for (;;) {
        polls[0] = (struct pollfd){.fd = listener, .events = POLLIN};
        polls[1] = (struct pollfd){.fd = signals, .events = POLLIN};
        for (unsigned i = 0; i < MAX_PEERS; i++)
            polls[2 + i] = (struct pollfd){.fd = peers[i].fd, .events = (short)(POLLIN | (peers[i].fetches ? POLLOUT : 0))};
        if (poll(polls, 2 + MAX_PEERS, command.pid > 0 ? LOOK_MS : until_start()) < 0 && errno != EINTR)
            return;
        if ((polls[1].revents && on_signal(signals)) || look_at_command())
            return;
        if (until_start() == 0)
            start_command();
        for (unsigned i = 0; i < MAX_PEERS; i++) {
            if (peers[i].fd >= 0 && polls[2 + i].revents & (POLLIN | POLLHUP | POLLERR))
                while (receive(&peers[i]))
                    ;
            if (peers[i].fd >= 0 && peers[i].fetches)
                send_held(&peers[i]);
        }
        if (polls[0].revents)
            accept_peer(listener);
    }
}

static const char usage[] = "usage: rdtd-keeper [--socket PATH] [-- COMMAND [ARG...]]\n"
                            "Holds the memory of rdtd's objects while rdtd restarts.\n\n"
                            "  --socket PATH  where rdtd connects to the keeper; default " DEFAULT_SOCKET "\n"
                            "  --help, --version\n"
                            "  COMMAND        is started, and started again when it dies; RDTD_KEEPER names the socket to it\n";

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"socket", required_argument, NULL, 's'}, {"help", no_argument, NULL, 'h'}, {"version", no_argument, NULL, 'v'}, {0}};
    const char *path = DEFAULT_SOCKET;
    int listener, signals, option;

    std_fds_open();
    opterr = 0;
    while ((option = getopt_long(argc, argv, "+", options, NULL)) != -1) {
        if (option == 's') {
            path = optarg;
        } else if (option == 'h') {
            fputs(usage, stdout);
            return 0;
        } else if (option == 'v') {
            printf("rdtd-keeper %s\n", RDTD_VERSION);
            return 0;
        } else {
            log_fatal("%s is unknown or lacks its value; see rdtd-keeper --help", argv[optind - 1]);
            return EXIT_USAGE;
        }
    }
    if (optind < argc && strcmp(argv[optind - 1], "--") != 0) {
        log_fatal("%s: a command follows after --", argv[optind]);
        return EXIT_USAGE;
    }
    if (optind < argc)
        command.argv = argv + optind;
    (void)signal(SIGPIPE, SIG_IGN); /* of a log whose reader has ended */
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)signal(SIGCHLD, SIG_DFL); /* if whoever started the keeper ignores it, the end of the command would not be noticed */
    raise_open_files();
    for (unsigned i = 0; i < MAX_PEERS; i++)
        peers[i].fd = -1;
    signals = make_signals();
    listener = grow() && signals >= 0 ? make_listener(path) : -1;
    if (listener < 0)
        return EXIT_USAGE;
    (void)setenv("RDTD_KEEPER", path, 1);
    log_info("rdtd-keeper %s holds at most %zu descriptors for the rdtd that connects to %s", RDTD_VERSION, held.max, path);
    sdnotify("READY=1");
    serve(listener, signals);
    (void)unlink(path);
    if (held.n > 0)
        log_info("rdtd-keeper ends, and the %zu descriptors that it held are closed", held.n);
    return command.argv ? command.status : 0;
}
