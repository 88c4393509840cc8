/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes by etcd: starts the program rdtd-etcd (daemon/directory/etcd/), and takes what it says.
 *
 *   posix_spawn --> CONFIG --> it tells STATE each second, NODES when they change --> it ends, or is silent: SIGKILL
 *        ^                                                                                        |
 *        +------------------------------------ a pause, up to 10 s -------------------------------+
 *
 * It is a weak dependency: without the program, or while it does not work, the provider fails and nothing else does. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "daemon/directory/directory_impl.h"
#include "proto/container_of.h"
#include "proto/frame.h"
#include "proto/layout.h"
#include "rdt_etcd.pb-c.h"

#define PROGRAM "rdtd-etcd"
#define SOCKET_FD 3
#define PAUSE_MIN_NS INT64_C(200000000)
#define PAUSE_MAX_NS INT64_C(10000000000)
#define SILENCE_NS INT64_C(10000000000) /* it speaks each second */
#define LEAVE_NS INT64_C(3000000000)    /* for it to end by itself */
#define DECODED_BYTES ((size_t)8 << 20)

struct etcd_program {
    struct list link;            /* in etcd_left */
    struct directory *directory; /* NULL: only its end is awaited */
    pid_t pid;
    bool killed;
    int sock, pidfd;
    uv_poll_t sock_poll, pid_poll;
    unsigned open_handles;
    struct deadlines *deadlines;
    struct deadline silence;
    struct frame_reader reader;
    struct frame_writer writer;
    uint8_t *config; /* packed, as it was sent */
    size_t config_bytes;
    uint64_t began_ns;
    Rdt__Pb__EtcdInfo before; /* of earlier programs */
};

static void start(struct directory *directory);

static struct directory_provider *provider_of(struct directory *directory)
{
    return &directory->providers[DIRECTORY_ETCD];
}

/* ---- its end ---- */

static void on_handle_closed(uv_handle_t *handle)
{
    struct etcd_program *program = handle->data;

    if (--program->open_handles > 0)
        return;
    (void)close(program->sock);
    (void)close(program->pidfd);
    frame_reader_fini(&program->reader);
    frame_writer_fini(&program->writer);
    free(program->config);
    free(program);
}

static void on_start(struct deadline *deadline)
{
    start(container_of(deadline, struct directory, etcd_start));
}

static void start_later(struct directory *directory)
{
    directory->etcd_pause_ns = directory->etcd_pause_ns * 2 < PAUSE_MIN_NS   ? PAUSE_MIN_NS
                               : directory->etcd_pause_ns * 2 > PAUSE_MAX_NS ? PAUSE_MAX_NS
                                                                             : directory->etcd_pause_ns * 2;
    directory->etcd_start.on_passed = on_start;
    (void)deadline_set(directory->deadlines, &directory->etcd_start, directory->etcd_pause_ns);
}

/* Its end is not awaited any more. */
static void let_go(struct etcd_program *program)
{
    list_remove(&program->link);
    deadline_unset(program->deadlines, &program->silence);
    uv_close((uv_handle_t *)&program->sock_poll, on_handle_closed);
    uv_close((uv_handle_t *)&program->pid_poll, on_handle_closed);
}

static void on_process_end(uv_poll_t *poll, int uv_status, int events)
{
    struct etcd_program *program = poll->data;
    struct directory *directory = program->directory;
    struct rdt_error err;
    int status = 0;

    (void)waitpid(program->pid, &status, WNOHANG);
    let_go(program);
    if (!directory)
        return;
    (void)rdt_error_set(&err, RDT_SYSTEM,
                        WIFSIGNALED(status) ? PROGRAM " was ended by signal %d" : PROGRAM " ended with status %d",
                        WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    directory_note(provider_of(directory), &err);
    directory->etcd = NULL;
    directory->etcd_info.up = false;
    if (uv_hrtime() - program->began_ns > 3 * (uint64_t)PAUSE_MAX_NS)
        directory->etcd_pause_ns = 0;
    start_later(directory);
}

static void on_silence(struct deadline *deadline)
{
    struct etcd_program *program = container_of(deadline, struct etcd_program, silence);

    if (program->directory)
        log_warn("directory etcd: " PROGRAM " (pid %d) is silent and is killed", (int)program->pid);
    (void)kill(program->pid, SIGKILL); /* on_process_end follows */
}

/* ---- what it says ---- */

/* Adds all counters of earlier programs. */
static void add_counters(Rdt__Pb__EtcdInfo *info, const Rdt__Pb__EtcdInfo *before)
{
    for (unsigned i = 0; i < rdt__pb__etcd_info__descriptor.n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &rdt__pb__etcd_info__descriptor.fields[i];
        if (field->type == PROTOBUF_C_TYPE_UINT64)
            *(uint64_t *)(void *)((char *)info + field->offset) +=
                *(const uint64_t *)(const void *)((const char *)before + field->offset);
    }
}

static void take_state(struct etcd_program *program, const Rdt__Pb__EtcdState *state)
{
    struct directory *directory = program->directory;
    struct directory_provider *provider = provider_of(directory);
    const Rdt__Pb__EtcdInfo none = RDT__PB__ETCD_INFO__INIT, *info = state->info ? state->info : &none;
    struct rdt_error err;

    directory->etcd_info = *info;
    directory->etcd_info.base.n_unknown_fields = 0; /* of a later version of the program; they are freed with the message */
    directory->etcd_info.endpoint = directory->etcd_endpoint;
    text_copy(directory->etcd_endpoint, sizeof directory->etcd_endpoint, info->endpoint);
    add_counters(&directory->etcd_info, &program->before);
    if (state->error[0] == '\0') {
        if (info->up)
            directory_note(provider, NULL);
        return;
    }
    if (info->up)
        provider->confirmed_ns = uv_hrtime(); /* something else is wrong in etcd */
    if (strncmp(provider->error, state->error, sizeof provider->error - 1) == 0)
        return;
    (void)rdt_error_set(&err, RDT_SYSTEM, "%s", state->error);
    directory_note(provider, &err);
}

static enum rdt_status take_nodes(struct etcd_program *program, const Rdt__Pb__EtcdNodes *message, struct rdt_error *err)
{
    struct node_entry *first = NULL, **last = &first;

    if (message->n_nodes > DIRECTORY_NODES_MAX)
        return rdt_error_set(err, RDT_LIMIT, "etcd names more than %u nodes", DIRECTORY_NODES_MAX);
    for (size_t i = 0; i < message->n_nodes; i++) {
        const Rdt__Pb__EtcdNode *node = message->nodes[i];
        char host[65];
        uint16_t port;
        if (node->node.len != 16 || options_split_address(node->address, host, &port, NULL) != RDT_OK || port == 0)
            continue;
        *last = calloc(1, sizeof **last);
        if (!*last) {
            options_free_nodes(first);
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the nodes that etcd names");
        }
        text_copy((*last)->name, sizeof(*last)->name, node->address);
        text_copy((*last)->address, sizeof(*last)->address, node->address);
        memcpy((*last)->uuid, node->node.data, 16);
        last = &(*last)->next;
    }
    directory_take(provider_of(program->directory), first);
    return RDT_OK;
}

static const ProtobufCMessageDescriptor *descriptor_of(uint16_t type)
{
    return type == RDT__PB__ETCD_MESSAGE__ETCD_STATE   ? &rdt__pb__etcd_state__descriptor
           : type == RDT__PB__ETCD_MESSAGE__ETCD_NODES ? &rdt__pb__etcd_nodes__descriptor
                                                       : NULL;
}

static enum rdt_status take(struct etcd_program *program, const struct frame *frame, struct rdt_error *err)
{
    const ProtobufCMessageDescriptor *type = descriptor_of(frame->type);
    ProtobufCMessage *message;
    struct arena arena;
    enum rdt_status status;

    if (!type)
        return rdt_error_set(err, RDT_PROTOCOL, PROGRAM " sends a message of type %u", frame->type);
    arena_init(&arena, DECODED_BYTES);
    status = arena_unpack(&arena, type, frame->payload, frame->length, PROGRAM, &message, err);
    if (status == RDT_OK && frame->type == RDT__PB__ETCD_MESSAGE__ETCD_STATE)
        take_state(program, (const Rdt__Pb__EtcdState *)message);
    else if (status == RDT_OK)
        status = take_nodes(program, (const Rdt__Pb__EtcdNodes *)message, err);
    arena_fini(&arena);
    return status;
}

static void on_socket(uv_poll_t *poll, int uv_status, int events);

static void set_events(struct etcd_program *program)
{
    int events = (program->directory ? UV_READABLE : 0) | (program->writer.queued_frames > 0 ? UV_WRITABLE : 0);

    if (program->killed)
        return;
    if (events)
        (void)uv_poll_start(&program->sock_poll, events, on_socket);
    else
        (void)uv_poll_stop(&program->sock_poll);
}

/* Its end follows by on_process_end. */
static void kill_for(struct etcd_program *program, enum rdt_status status, const struct rdt_error *why)
{
    if (status != RDT_DISCONNECTED && program->directory)
        log_warn("directory etcd: " PROGRAM " (pid %d) is killed: %s", (int)program->pid, why->msg);
    program->killed = true;
    (void)uv_poll_stop(&program->sock_poll);
    (void)kill(program->pid, SIGKILL);
}

static enum rdt_status read_socket(struct etcd_program *program, struct rdt_error *err)
{
    enum rdt_status status;
    struct frame frame;
    size_t n = 0;

    status = frame_reader_recv(&program->reader, program->sock, &n, err);
    if (n > 0)
        (void)deadline_set(program->deadlines, &program->silence, SILENCE_NS);
    while (status == RDT_OK && (status = frame_reader_next(&program->reader, &frame, err)) == RDT_OK)
        status = take(program, &frame, err);
    return status;
}

static void on_socket(uv_poll_t *poll, int uv_status, int events)
{
    struct etcd_program *program = poll->data;
    enum rdt_status status = uv_status < 0 ? RDT_DISCONNECTED : RDT_OK;
    struct rdt_error err = {.msg = "its socket is closed"};

    if (status == RDT_OK && (events & UV_READABLE) && program->directory)
        status = read_socket(program, &err);
    if ((status == RDT_OK || status == RDT_AGAIN) && program->writer.queued_frames > 0)
        status = frame_writer_send(&program->writer, program->sock, &err);
    if (status != RDT_OK && status != RDT_AGAIN)
        kill_for(program, status, &err);
    else
        set_events(program);
}

static void tell(struct etcd_program *program, enum _Rdt__Pb__EtcdMessage type, const uint8_t *packed, size_t bytes)
{
    uint8_t *payload;
    struct rdt_error err;

    if (frame_writer_push(&program->writer, (uint16_t)type, 0, 0, (uint32_t)bytes, NULL, 0, &payload) != RDT_OK)
        return;
    if (bytes > 0)
        memcpy(payload, packed, bytes);
    (void)frame_writer_send(&program->writer, program->sock, &err); /* on_socket detects an error, too */
    set_events(program);
}

/* ---- its start ---- */

/* Beside the daemon's own file. */
static bool find_program(char path[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - sizeof "/" PROGRAM);
    char *slash;

    if (n <= 0)
        return false;
    path[n] = '\0';
    slash = strrchr(path, '/');
    if (!slash)
        return false;
    (void)strcpy(slash + 1, PROGRAM);
    return true;
}

static uint8_t *pack_config(const struct directory *directory, size_t *bytes_p)
{
    const struct options *options = directory->options;
    Rdt__Pb__EtcdConfig config = RDT__PB__ETCD_CONFIG__INIT;
    char *endpoints = strdup(options->etcd_endpoints), *rows[64], *at = endpoints, *row;
    uint8_t *packed;

    if (!endpoints)
        return NULL;
    while (config.n_endpoints < sizeof rows / sizeof *rows && (row = strsep(&at, ",")))
        if (row[0] != '\0')
            rows[config.n_endpoints++] = row;
    config.endpoints = rows;
    config.prefix = options->etcd_prefix;
    config.ca = options->etcd_ca;
    config.cert = options->etcd_cert;
    config.key = options->etcd_key;
    config.user = options->etcd_user;
    config.password_file = options->etcd_password_file;
    config.ttl_ns = (int64_t)options->etcd_ttl_ns;
    config.node = (ProtobufCBinaryData){16, (uint8_t *)directory->node->uuid};
    config.boot_id = (ProtobufCBinaryData){16, (uint8_t *)directory->node->boot_id};
    config.address = (char *)directory->node->address;
    packed = malloc(rdt__pb__etcd_config__get_packed_size(&config));
    *bytes_p = packed ? rdt__pb__etcd_config__pack(&config, packed) : 0;
    free(endpoints);
    return packed;
}

static enum rdt_status spawn(struct etcd_program *program, const char *path, int theirs, struct rdt_error *err)
{
    char *argv[] = {(char *)PROGRAM, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;
    int rc;

    (void)sigemptyset(&none);
    (void)sigfillset(&defaults);
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawnattr_init(&attributes);
    (void)posix_spawnattr_setsigmask(&attributes, &none);
    (void)posix_spawnattr_setsigdefault(&attributes, &defaults);
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    (void)posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    (void)posix_spawn_file_actions_adddup2(&actions, 2, 1);
    (void)posix_spawn_file_actions_adddup2(&actions, theirs, SOCKET_FD);
    (void)posix_spawn_file_actions_addclosefrom_np(&actions, SOCKET_FD + 1);
    rc = posix_spawn(&program->pid, path, &actions, &attributes, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)posix_spawnattr_destroy(&attributes);
    if (rc == ENOENT)
        return rdt_error_set(err, RDT_NOT_FOUND, "%s is not installed (Debian package " PROGRAM ")", path);
    return rc == 0 ? RDT_OK : rdt_error_sys(err, rc, "cannot start %s", path);
}

static enum rdt_status open_program(struct etcd_program *program, struct rdt_error *err)
{
    char path[PATH_MAX];
    enum rdt_status status;
    int pair[2];

    if (!find_program(path))
        return rdt_error_sys(err, errno, "cannot find the folder of " PROGRAM);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return rdt_error_sys(err, errno, "cannot make a socket for " PROGRAM);
    status = spawn(program, path, pair[1], err);
    (void)close(pair[1]);
    if (status == RDT_OK && (program->pidfd = (int)syscall(SYS_pidfd_open, program->pid, 0)) < 0) {
        status = rdt_error_sys(err, errno, "cannot watch " PROGRAM);
        (void)kill(program->pid, SIGKILL);
        (void)waitpid(program->pid, NULL, 0);
    }
    if (status == RDT_OK)
        program->sock = pair[0];
    else
        (void)close(pair[0]);
    return status;
}

static void watch(struct etcd_program *program, uv_loop_t *loop)
{
    frame_reader_init(&program->reader, RDT_MAX_FRAME_BYTES);
    frame_writer_init(&program->writer);
    (void)uv_poll_init(loop, &program->sock_poll, program->sock);
    (void)uv_poll_init(loop, &program->pid_poll, program->pidfd);
    program->sock_poll.data = program->pid_poll.data = program;
    program->open_handles = 2;
    program->silence.on_passed = on_silence;
    (void)deadline_set(program->deadlines, &program->silence, SILENCE_NS);
    (void)uv_poll_start(&program->pid_poll, UV_READABLE, on_process_end);
}

static void start(struct directory *directory)
{
    struct etcd_program *program = calloc(1, sizeof *program);
    struct rdt_error err = {.status = RDT_NO_MEMORY, .msg = "no memory for " PROGRAM};

    if (program)
        program->config = pack_config(directory, &program->config_bytes);
    if (!program || !program->config || open_program(program, &err) != RDT_OK) {
        free(program ? program->config : NULL);
        free(program);
        directory_note(provider_of(directory), &err);
        start_later(directory);
        return;
    }
    list_init(&program->link);
    program->directory = directory;
    program->deadlines = directory->deadlines;
    program->began_ns = uv_hrtime();
    directory->etcd_info.programs++;
    program->before = directory->etcd_info;
    directory->etcd = program;
    watch(program, directory->loop);
    tell(program, RDT__PB__ETCD_MESSAGE__ETCD_CONFIG, program->config, program->config_bytes);
}

/* Its own struct waits for its end. */
static void leave(struct directory *directory, bool comes_back)
{
    struct etcd_program *program = directory->etcd;

    if (!directory->etcd_left.next)
        list_init(&directory->etcd_left);
    deadline_unset(directory->deadlines, &directory->etcd_start);
    directory->etcd = NULL;
    directory->etcd_pause_ns = 0;
    directory->etcd_info.up = false;
    if (!program)
        return;
    program->directory = NULL;
    list_append(&directory->etcd_left, &program->link);
    if (!comes_back)
        tell(program, RDT__PB__ETCD_MESSAGE__ETCD_LEAVE, NULL, 0);
    (void)shutdown(program->sock, SHUT_WR);
    (void)deadline_set(program->deadlines, &program->silence, LEAVE_NS);
    set_events(program);
}

void directory_etcd_begin(struct directory_provider *provider)
{
    struct directory *directory = provider->directory;
    size_t bytes = 0;
    uint8_t *config = provider->active ? pack_config(directory, &bytes) : NULL;
    bool same = config && directory->etcd && bytes == directory->etcd->config_bytes &&
                memcmp(config, directory->etcd->config, bytes) == 0;

    free(config);
    if (same)
        return;
    leave(directory, provider->active);
    if (provider->active)
        start(directory);
}

/* The daemon ends, so nobody waits for the programs' ends. */
void directory_etcd_close(struct directory *directory, bool comes_back)
{
    leave(directory, comes_back);
    while (!list_empty(&directory->etcd_left))
        let_go(container_of(list_first(&directory->etcd_left), struct etcd_program, link));
}
