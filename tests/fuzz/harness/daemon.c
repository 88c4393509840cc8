/* SPDX-License-Identifier: Apache-2.0 */
/* See daemon.h: the daemon itself, and waiting until it holds nothing. */
#include "tests/fuzz/harness/daemon.h"

#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/base/log.h"
#include "daemon/daemon.h"
#include "tests/fuzz/harness/client.h"
#include "tests/support/rogue_peer.h"

#define PATIENCE_S 30
#define MAX_FDS 4
#define LOOK_MS 5
#define MOST_MS 50
#define PATIENT_EVERY 512

char fuzz_daemon_key[64];

static struct options options;
static char dir[32], socket_path[64];
static pthread_t thread;
static uv_loop_t *loop; /* NULL: it runs by itself, or not at all */
static sem_t ready, ending;
static struct fuzz_client watcher;

/* ---- the loop, which the linker brings here (--wrap) ---- */

int __real_uv_run(uv_loop_t *its_loop, uv_run_mode mode);
int __wrap_uv_run(uv_loop_t *its_loop, uv_run_mode mode);

static void await(sem_t *sem)
{
    while (sem_wait(sem) != 0)
        ; /* libFuzzer's clock */
}

/* The daemon's thread starts and ends it; between that its turns are taken elsewhere. */
int __wrap_uv_run(uv_loop_t *its_loop, uv_run_mode mode)
{
    loop = its_loop;
    (void)sem_post(&ready);
    await(&ending);
    return __real_uv_run(its_loop, mode);
}

static int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Nothing has come for it and no time is over: the next turn does only what the last one left for it, as sending what it has
 * queued. What a turn's callbacks began to watch, libuv tells the kernel only in the next turn: its queue is empty when it
 * points to itself. */
static bool is_quiet(void)
{
    struct pollfd backend = {.fd = uv_backend_fd(loop), .events = POLLIN};
    void *first;

    memcpy(&first, &loop->watcher_queue, sizeof first);
    uv_update_time(loop);
    return first == &loop->watcher_queue && uv_backend_timeout(loop) != 0 && poll(&backend, 1, 0) == 0;
}

int fuzz_daemon_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
    int64_t left_ms = timeout_ms, before_ms = now_ms(), passed_ms;
    struct pollfd all[MAX_FDS + 1];

    if (!loop)
        return poll(fds, n, timeout_ms);
    fuzz_must(n <= MAX_FDS);
    for (;;) {
        bool quiet = is_quiet();
        int found;

        (void)__real_uv_run(loop, UV_RUN_NOWAIT);
        found = poll(fds, n, 0);
        if (found > 0)
            return found;
        if (!quiet)
            continue;
        passed_ms = now_ms() - before_ms;
        before_ms += passed_ms;
        left_ms -= passed_ms < MOST_MS ? passed_ms : MOST_MS; /* a fuzzer may stand still for long: that is nobody's silence */
        if (left_ms <= 0)
            return 0;
        if (n > 0)
            memcpy(all, fds, n * sizeof *fds);
        all[n] = (struct pollfd){.fd = uv_backend_fd(loop), .events = POLLIN};
        found = poll(all, n + 1, left_ms < LOOK_MS ? (int)left_ms : LOOK_MS); /* for timers, and what came since */
        if (n == 0 && found > 0)
            left_ms = 0;
    }
}

/* ---- the daemon ---- */

uint16_t fuzz_daemon_port(void)
{
    const char *colon = strrchr(watcher.node_address, ':');

    fuzz_must(colon);
    return (uint16_t)atoi(colon + 1);
}

static void *run(void *arg)
{
    struct rdt_error err = {0};

    (void)arg;
    if (daemon_run(&options, &err) != RDT_OK) {
        fprintf(stderr, "the daemon: %s\n", err.msg);
        abort();
    }
    return NULL;
}

static void stop(void)
{
    fuzz_client_close(&watcher);
    (void)kill(getpid(), SIGTERM);
    loop = NULL;
    (void)sem_post(&ending);
    fuzz_must(pthread_join(thread, NULL) == 0);
    options_fini(&options);
    (void)unlink(fuzz_daemon_key);
    (void)rmdir(dir);
}

int fuzz_daemon_connect(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(address.sun_path, socket_path, sizeof socket_path);
    if (sock < 0 || connect(sock, (const struct sockaddr *)&address, sizeof address) != 0) {
        if (sock >= 0)
            close(sock);
        return -1;
    }
    return sock;
}

void fuzz_daemon_start(bool with_link)
{
    static bool started;
    char exe[512] = {0}, *build, flags[5][640];
    char *argv[16];
    struct rdt_error err = {0};
    int argc = 0, fd;

    if (started)
        return;
    started = true;
    log_threshold = LOG_LEVEL_ERROR;
    fuzz_must(readlink("/proc/self/exe", exe, sizeof exe - 1) > 0);
    (void)snprintf(dir, sizeof dir, "/tmp/rdt_fuzz.XXXXXX"); /* BUILD/tests/fuzz/TARGET */
    fuzz_must(mkdtemp(dir));
    build = dirname(dirname(dirname(exe)));
    (void)snprintf(socket_path, sizeof socket_path, "%s/s", dir);
    (void)snprintf(fuzz_daemon_key, sizeof fuzz_daemon_key, "%s/key", dir);
    fd = open(fuzz_daemon_key, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    fuzz_must(fd >= 0 && write(fd, "a key of more than sixteen bytes", 32) == 32);
    close(fd);

    argv[argc++] = (char *)"rdtd";
    argv[argc++] = (char *)"--config=";
    argv[argc++] = (char *)"--state-dir=";
    argv[argc++] = (char *)"--backend-dir=";
    argv[argc++] = (char *)"--log-level=error";
    argv[argc++] = (char *)"--memory-limit=256MiB";
    (void)snprintf(flags[0], sizeof flags[0], "--backend=%s/backends/rdt_host.so", build);
    (void)snprintf(flags[1], sizeof flags[1], "--socket=%s", socket_path);
    argv[argc++] = flags[0];
    argv[argc++] = flags[1];
    if (with_link) {
        (void)snprintf(flags[2], sizeof flags[2], "--key-file=%s", fuzz_daemon_key);
        argv[argc++] = flags[2];
        argv[argc++] = (char *)"--listen=127.0.0.1:0";
        argv[argc++] = (char *)"--connect-timeout=10m"; /* a fuzzer may stand still for long */
        argv[argc++] = (char *)"--peer-timeout=10m";
        argv[argc++] = (char *)"--hold-grace=0s";
        (void)snprintf(flags[3], sizeof flags[3], "--backend=%s/tests/rdt_void.so", build);
        argv[argc++] = flags[3];
        (void)snprintf(flags[4], sizeof flags[4], "--backend=%s/tests/rdt_voidgroup.so", build);
        argv[argc++] = flags[4];
    }
    if (options_load(argc, argv, &options, &err) != RDT_OK) {
        fprintf(stderr, "options: %s\n", err.msg);
        abort();
    }
    fuzz_must(sem_init(&ready, 0, 0) == 0 && sem_init(&ending, 0, 0) == 0);
    fuzz_must(pthread_create(&thread, NULL, run, NULL) == 0);
    await(&ready);
    rogue_peer_poll = fuzz_daemon_poll;
    fuzz_client_open(&watcher);
    (void)atexit(stop);
}

/* ---- nothing is left ---- */

static void *ask(uint16_t type, const ProtobufCMessage *message, const ProtobufCMessageDescriptor *reply_type)
{
    uint64_t id = fuzz_client_send(&watcher, type, message);
    struct frame frame;

    fuzz_must(fuzz_client_await(&watcher, id, PATIENCE_S * 1000, &frame));
    if (frame.flags != FRAME_REPLY)
        return NULL;
    return protobuf_c_message_unpack(reply_type, NULL, frame.length, frame.payload);
}

/* Frees by force the objects that outlive their client: detached objects and those of names. */
static void free_objects(void)
{
    Rdt__Pb__List list = RDT__PB__LIST__INIT;
    Rdt__Pb__ListReply *objects = ask(RDT_MSG_LIST, &list.base, &rdt__pb__list_reply__descriptor);

    for (size_t i = 0; objects && i < objects->n_objects; i++) {
        Rdt__Pb__Free message = RDT__PB__FREE__INIT;
        Rdt__Pb__Ref ref = RDT__PB__REF__INIT;
        struct rdt_ref parsed;

        if (rdt_ref_from_text(objects->objects[i]->ref, &parsed, NULL) != RDT_OK)
            continue;
        wire_ref_from(&parsed, &ref);
        message.ref = &ref;
        message.force = true;
        rdt__pb__empty__free_unpacked(ask(RDT_MSG_FREE, &message.base, &rdt__pb__empty__descriptor), NULL);
    }
    if (objects)
        rdt__pb__list_reply__free_unpacked(objects, NULL);
}

/* Copies of a peer's objects stay until it comes back as another, and the arenas of small objects for a second when they are
 * empty. */
static unsigned count_staying(bool arenas)
{
    Rdt__Pb__List list = RDT__PB__LIST__INIT;
    Rdt__Pb__ListReply *reply;
    unsigned n = 0;

    list.kind = RDT__PB__LIST_KIND__LIST_KIND_REGIONS;
    reply = ask(RDT_MSG_LIST, &list.base, &rdt__pb__list_reply__descriptor);
    fuzz_must(reply);
    for (size_t i = 0; i < reply->n_regions; i++)
        n += strcmp(reply->regions[i]->origin, "replica") == 0 || (arenas && strcmp(reply->regions[i]->origin, "arena") == 0);
    rdt__pb__list_reply__free_unpacked(reply, NULL);
    return n;
}

void fuzz_daemon_settle(void)
{
    static unsigned inputs;
    bool patient = ++inputs % PATIENT_EVERY == 0; /* a piece that leaks keeps its arena */
    Rdt__Pb__Empty empty = RDT__PB__EMPTY__INIT;

    for (unsigned round = 0;; round++) {
        Rdt__Pb__StatusReply *status = ask(RDT_MSG_STATUS, &empty.base, &rdt__pb__status_reply__descriptor);
        bool idle =
            status && status->clients == 1 && status->objects == 0 && status->transfers_active == 0 && status->peers_up == 0;

        fuzz_must(status);
        if (idle && status->regions > 0)
            idle = count_staying(!patient) == status->regions;
        if (round > PATIENCE_S * 1000) {
            fprintf(stderr, "left: %u clients, %llu objects, %llu regions, %u transfers, %u peers\n", status->clients - 1,
                    (unsigned long long)status->objects, (unsigned long long)status->regions, status->transfers_active,
                    status->peers_up);
            abort();
        }
        rdt__pb__status_reply__free_unpacked(status, NULL);
        if (idle)
            return;
        if (round % 100 == 1)
            free_objects();
        if (round > 1)
            (void)fuzz_daemon_poll(NULL, 0, 1);
    }
}
