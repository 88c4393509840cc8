/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/backend_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_OPS 1024
#define ANSWER_MS 60000

enum verb { OFFER, CONNECT, SEND, SEND_MANY, RECV, WAIT, WAIT_FAILED, DISCONNECT, SERVE, UNSERVE, STOP };

struct request {
    enum verb verb;
    uint64_t transfer, chunk, bytes;
    uint32_t seed, n;
    int ms;
    size_t blob_bytes;
    uint8_t blob[RDT_OFFER_MAX_BYTES];
};

struct answer {
    enum rdt_status status;
    size_t blob_bytes;
    uint8_t blob[RDT_OFFER_MAX_BYTES];
};

/* ---- the peer's own process ---- */

struct posted {
    struct host_op op;
    struct guarded memory;
    bool is_recv;
};

struct peer_process {
    struct backend_host host;
    struct host_conn conn;
    struct posted *ops[MAX_OPS];
    unsigned n_ops;
    struct guarded served;
    void *registration;
};

/* From the memory that posted has. */
static enum rdt_status post_one(struct peer_process *process, struct posted *posted, const struct request *request,
                                uint64_t chunk, void *addr)
{
    host_op_fill(&posted->op, request->transfer, chunk, addr, request->bytes);
    process->ops[process->n_ops++] = posted;
    enum rdt_status status = host_op_post(&process->conn, &posted->op, posted->is_recv ? POST_RECV : POST_SEND, NULL);
    if (status != RDT_OK)
        posted->op.n_done = 1, posted->op.status = status;
    return status;
}

static enum rdt_status do_post(struct peer_process *process, const struct request *request)
{
    uint32_t n = request->verb == SEND_MANY ? request->n : 1;
    void *addr = NULL;
    enum rdt_status status = RDT_OK;

    for (uint32_t i = 0; i < n && status == RDT_OK; i++) {
        struct posted *posted = calloc(1, sizeof *posted);

        if (!posted || process->n_ops == MAX_OPS || (!addr && !guarded_create(&posted->memory, request->bytes))) {
            free(posted);
            return RDT_NO_MEMORY;
        }
        posted->is_recv = request->verb == RECV;
        if (!addr) {
            addr = posted->memory.addr;
            if (!posted->is_recv)
                pattern_fill(addr, request->bytes, request->seed);
        }
        status = post_one(process, posted, request, request->chunk + i, addr);
    }
    return status;
}

static enum rdt_status do_wait(struct peer_process *process, const struct request *request)
{
    for (unsigned i = process->n_ops; i-- > 0;) {
        struct posted *posted = process->ops[i];

        if (posted->op.op.transfer != request->transfer || posted->op.op.chunk != request->chunk)
            continue;
        if (!host_op_wait(&posted->op, request->ms))
            return RDT_TIMED_OUT;
        if (posted->is_recv && posted->op.status == RDT_OK &&
            (!pattern_holds(posted->memory.addr, posted->memory.bytes, request->seed) ||
             !guarded_margins_hold(&posted->memory)))
            return RDT_MISMATCH;
        return posted->op.status;
    }
    return RDT_NOT_FOUND;
}

static enum rdt_status do_serve(struct peer_process *process, const struct request *request, struct answer *answer)
{
    const struct rdt_transport_ops *ops = process->host.ops;

    if (!guarded_create(&process->served, request->bytes))
        return RDT_NO_MEMORY;
    pattern_fill(process->served.addr, request->bytes, request->seed);
    enum rdt_status status = ops->register_memory(process->host.transport, process->served.addr, request->bytes, "host",
                                                  &process->registration, NULL);
    if (status == RDT_OK)
        status = ops->pack_key(process->host.transport, process->registration, answer->blob, &answer->blob_bytes, NULL);
    return status;
}

static enum rdt_status serve(struct peer_process *process, const struct request *request, struct answer *answer)
{
    const struct rdt_transport_ops *ops = process->host.ops;

    switch (request->verb) {
    case OFFER:
        return ops->offer(process->conn.handle, answer->blob, &answer->blob_bytes, NULL);
    case CONNECT:
        return ops->connect(process->conn.handle, request->blob, request->blob_bytes, NULL);
    case SEND:
    case SEND_MANY:
    case RECV:
        return do_post(process, request);
    case WAIT:
        return do_wait(process, request);
    case WAIT_FAILED:
        return host_conn_wait_failed(&process->conn, request->ms) ? RDT_OK : RDT_TIMED_OUT;
    case DISCONNECT:
        return host_conn_disconnect(&process->conn, 10000) ? RDT_OK : RDT_TIMED_OUT;
    case SERVE:
        return do_serve(process, request, answer);
    case UNSERVE:
        ops->unregister_memory(process->host.transport, process->registration);
        process->registration = NULL;
        return RDT_OK;
    case STOP:
        break;
    }
    return RDT_OK;
}

static int leave(struct peer_process *process)
{
    if (process->conn.n_closed == 0 && !host_conn_disconnect(&process->conn, 10000))
        return 3;
    if (process->registration)
        process->host.ops->unregister_memory(process->host.transport, process->registration);
    guarded_destroy(&process->served);
    host_conn_destroy(&process->conn);
    backend_host_close(&process->host);
    for (unsigned i = 0; i < process->n_ops; i++) {
        guarded_destroy(&process->ops[i]->memory);
        free(process->ops[i]);
    }
    return process->host.n_errors ? 4 : 0;
}

static int peer_main(int fd, const char *so)
{
    static struct peer_process process;
    struct rdt_error err;
    struct request request = {.verb = OFFER};

    if (backend_host_load(&process.host, so, &err) != RDT_OK || backend_host_open(&process.host, NULL, &err) != RDT_OK ||
        host_conn_create(&process.host, &process.conn, &err) != RDT_OK) {
        (void)fprintf(stderr, "the peer process: %s\n", err.msg);
        return 1;
    }
    while (request.verb != STOP) {
        struct answer answer = {0};

        if (recv(fd, &request, sizeof request, 0) != sizeof request)
            return 2;
        answer.status = serve(&process, &request, &answer);
        if (request.verb == STOP) {
            int rc = leave(&process);

            answer.status = rc ? RDT_INTERNAL : RDT_OK;
            (void)send(fd, &answer, sizeof answer, MSG_NOSIGNAL);
            return rc;
        }
        if (send(fd, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer)
            return 2;
    }
    return 0;
}

/* ---- the test's side ---- */

/* A peer is this program once more: it gets here before main, and never gets there. */
__attribute__((constructor)) static void become_peer(void)
{
    const char *fd = getenv("RDT_TEST_PEER_FD"), *so = getenv("RDT_TEST_PEER_SO");

    if (fd && so)
        _exit(peer_main(atoi(fd), so));
}

/* Ours, but for what would tell the test framework that the child is one of its own. */
static char **peer_environment(const char *so, int fd)
{
    size_t n = 0, kept = 0;
    char **all;

    while (environ[n])
        n++;
    all = calloc(n + 3, sizeof *all);
    for (size_t i = 0; all && i < n; i++)
        if (strncmp(environ[i], "BXF", 3) && strncmp(environ[i], "CRITERION", 9))
            all[kept++] = environ[i];
    if (!all || asprintf(&all[kept++], "RDT_TEST_PEER_FD=%d", fd) < 0 || asprintf(&all[kept++], "RDT_TEST_PEER_SO=%s", so) < 0)
        abort();
    return all;
}

bool backend_peer_start(struct backend_peer *peer, const char *so)
{
    char *args[] = {"peer", NULL}, **environment;
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds))
        return false;
    environment = peer_environment(so, fds[1]);
    peer->pid = fork();
    if (peer->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)fcntl(fds[1], F_SETFD, 0);
        (void)execve("/proc/self/exe", args, environment);
        _exit(127);
    }
    for (char **at = environment; *at; at++)
        if (!strncmp(*at, "RDT_TEST_PEER_", 14))
            free(*at);
    free(environment);
    (void)close(fds[1]);
    peer->fd = fds[0];
    return peer->pid > 0;
}

static bool reap(struct backend_peer *peer)
{
    int status;

    if (peer->pid <= 0)
        return false;
    while (waitpid(peer->pid, &status, 0) < 0)
        if (errno != EINTR)
            return false;
    (void)close(peer->fd);
    peer->pid = -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void backend_peer_kill(struct backend_peer *peer)
{
    if (peer->pid <= 0) /* it is gone; kill(-1) would end everybody else */
        return;
    (void)kill(peer->pid, SIGKILL);
    (void)reap(peer);
}

static enum rdt_status ask(struct backend_peer *peer, const struct request *request, struct answer *answer_p)
{
    struct pollfd pollfd = {.fd = peer->fd, .events = POLLIN};

    if (send(peer->fd, request, sizeof *request, MSG_NOSIGNAL) != sizeof *request)
        return RDT_DISCONNECTED;
    if (poll(&pollfd, 1, patience_ms(ANSWER_MS)) != 1)
        return RDT_TIMED_OUT;
    if (recv(peer->fd, answer_p, sizeof *answer_p, 0) != sizeof *answer_p)
        return RDT_DISCONNECTED;
    return answer_p->status;
}

static bool order(struct backend_peer *peer, const struct request *request)
{
    struct answer answer;

    return ask(peer, request, &answer) == RDT_OK;
}

bool backend_peer_stop(struct backend_peer *peer)
{
    bool ok = order(peer, &(struct request){.verb = STOP});

    return reap(peer) && ok;
}

bool backend_peer_offer(struct backend_peer *peer, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p)
{
    struct answer answer;

    if (ask(peer, &(struct request){.verb = OFFER}, &answer) != RDT_OK)
        return false;
    memcpy(blob, answer.blob, answer.blob_bytes);
    *bytes_p = answer.blob_bytes;
    return true;
}

bool backend_peer_connect(struct backend_peer *peer, const void *blob, size_t bytes)
{
    struct request request = {.verb = CONNECT, .blob_bytes = bytes};

    memcpy(request.blob, blob, bytes);
    return order(peer, &request);
}

bool backend_peer_join(struct backend_peer *peer, struct host_conn *conn)
{
    uint8_t blob[RDT_OFFER_MAX_BYTES];
    size_t bytes;

    return backend_peer_offer(peer, blob, &bytes) && conn->host->ops->connect(conn->handle, blob, bytes, NULL) == RDT_OK &&
           conn->host->ops->offer(conn->handle, blob, &bytes, NULL) == RDT_OK && backend_peer_connect(peer, blob, bytes);
}

bool backend_peer_send(struct backend_peer *peer, uint64_t transfer, uint64_t chunk, uint64_t bytes, uint32_t seed)
{
    return order(peer, &(struct request){.verb = SEND, .transfer = transfer, .chunk = chunk, .bytes = bytes, .seed = seed});
}

bool backend_peer_send_many(struct backend_peer *peer, uint64_t transfer, uint32_t n, uint64_t bytes, uint32_t seed)
{
    return order(peer, &(struct request){.verb = SEND_MANY, .transfer = transfer, .n = n, .bytes = bytes, .seed = seed});
}

bool backend_peer_recv(struct backend_peer *peer, uint64_t transfer, uint64_t chunk, uint64_t bytes)
{
    return order(peer, &(struct request){.verb = RECV, .transfer = transfer, .chunk = chunk, .bytes = bytes});
}

enum rdt_status backend_peer_wait(struct backend_peer *peer, uint64_t transfer, uint64_t chunk, uint32_t seed, int ms)
{
    struct request request = {.verb = WAIT, .transfer = transfer, .chunk = chunk, .seed = seed, .ms = ms};
    struct answer answer;

    return ask(peer, &request, &answer);
}

bool backend_peer_wait_failed(struct backend_peer *peer, int ms)
{
    return order(peer, &(struct request){.verb = WAIT_FAILED, .ms = ms});
}

bool backend_peer_disconnect(struct backend_peer *peer)
{
    return order(peer, &(struct request){.verb = DISCONNECT});
}

bool backend_peer_serve(struct backend_peer *peer, uint64_t bytes, uint32_t seed, uint8_t key[RDT_KEY_MAX_BYTES],
                        size_t *key_bytes_p)
{
    struct answer answer;

    if (ask(peer, &(struct request){.verb = SERVE, .bytes = bytes, .seed = seed}, &answer) != RDT_OK)
        return false;
    memcpy(key, answer.blob, answer.blob_bytes);
    *key_bytes_p = answer.blob_bytes;
    return true;
}

bool backend_peer_unserve(struct backend_peer *peer)
{
    return order(peer, &(struct request){.verb = UNSERVE});
}
