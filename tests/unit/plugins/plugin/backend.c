/* SPDX-License-Identifier: Apache-2.0 */
/* The backend that tests/unit/plugins/plugin.c loads: one memory kind that has no memory, and one transport that answers its
 * own posts from a thread. $BACKEND_FAULT says in which way it is wrong.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rdt_backend.h"

enum task_kind { TASK_SEND, TASK_CANCEL, TASK_FAIL, TASK_CLOSE, TASK_STOP };

struct task {
    enum task_kind kind;
    struct rdt_op *op;
    struct conn *conn;
    struct task *next;
};

struct conn {
    void *core;
    struct rdt_op *held[64]; /* the thread's */
};

static struct rdt_host the_host;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static struct task *first, **last = &first;
static pthread_t thread;
static char version_text[128];

static int fault(const char *name)
{
    const char *wanted = getenv("BACKEND_FAULT");
    return wanted && strcmp(wanted, name) == 0;
}

static void push(enum task_kind kind, struct conn *conn, struct rdt_op *op)
{
    struct task *task = malloc(sizeof(*task));
    *task = (struct task){.kind = kind, .conn = conn, .op = op};
    pthread_mutex_lock(&mutex);
    *last = task;
    last = &task->next;
    pthread_cond_signal(&more);
    pthread_mutex_unlock(&mutex);
}

static struct task pop(void)
{
    pthread_mutex_lock(&mutex);
    while (!first)
        pthread_cond_wait(&more, &mutex);
    struct task *task = first, copy = *task;
    first = task->next;
    if (!first)
        last = &first;
    pthread_mutex_unlock(&mutex);
    free(task);
    return copy;
}

/* Chunk 0 ends well, 1 fails, 2 waits for a cancel or the end. */
static void start(struct conn *conn, struct rdt_op *op)
{
    if (op->chunk == 1)
        the_host.op_done(op, RDT_TRANSPORT, "cable cut");
    else if (op->chunk == 2)
        for (int i = 0; i < 64; i++) {
            if (!conn->held[i]) {
                conn->held[i] = op;
                break;
            }
        }
    else
        the_host.op_done(op, RDT_OK, NULL);
}

static void end_held(struct conn *conn, struct rdt_op *op)
{
    for (int i = 0; i < 64; i++) {
        if (conn->held[i] && (!op || conn->held[i] == op)) {
            the_host.op_done(conn->held[i], RDT_CANCELLED, NULL);
            conn->held[i] = NULL;
        }
    }
}

static void *thread_main(void *arg)
{
    for (;;) {
        struct task task = pop();
        switch (task.kind) {
        case TASK_SEND:
            start(task.conn, task.op);
            break;
        case TASK_CANCEL:
            end_held(task.conn, task.op);
            break;
        case TASK_FAIL:
            the_host.conn_failed(task.conn->core, RDT_PEER_LOST, "peer gone");
            the_host.conn_failed(task.conn->core, RDT_PEER_LOST, "told twice");
            break;
        case TASK_CLOSE:
            end_held(task.conn, NULL);
            the_host.conn_closed(task.conn->core);
            break;
        case TASK_STOP:
            return arg;
        }
    }
}

static const char *say(const char *text)
{
    return text ? text : "(null)";
}

static enum rdt_status transport_open(const struct rdt_host *host, void **transport_p, struct rdt_error *err)
{
    if (fault("unsupported")) {
        strcpy(err->msg, "trusted_network is not set");
        return RDT_UNSUPPORTED;
    }
    if (fault("open fails")) {
        strcpy(err->msg, "no such device");
        return RDT_SYSTEM;
    }
    the_host = *host;
    snprintf(version_text, sizeof version_text, "%s %s %s %s %s %s", say(host->config(host->ctx, "delay")),
             say(host->config(host->ctx, "color")), say(host->config(host->ctx, "trusted_network")),
             say(host->config(host->ctx, "interfaces")), say(host->config(host->ctx, "listen_host")),
             say(host->config(host->ctx, "socket")));
    host->log(host->ctx, RDT_LOG_DEBUG, "open %d", 1);
    pthread_create(&thread, NULL, thread_main, NULL);
    *transport_p = &the_host;
    return RDT_OK;
}

static void transport_close(void *transport)
{
    push(TASK_STOP, NULL, NULL);
    pthread_join(thread, NULL);
}

static const char *transport_version(void *transport)
{
    return version_text;
}

static enum rdt_status conn_create(void *transport, const uint8_t peer_uuid[16], void *core, void **conn_p,
                                   struct rdt_error *err)
{
    struct conn *conn = calloc(1, sizeof(*conn));
    conn->core = core;
    *conn_p = conn;
    return RDT_OK;
}

static void conn_destroy(void *conn)
{
    free(conn);
}

static enum rdt_status conn_offer(void *conn, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p, struct rdt_error *err)
{
    *bytes_p = 0;
    return RDT_OK;
}

static enum rdt_status conn_connect(void *conn, const void *blob, size_t bytes, struct rdt_error *err)
{
    if (fault("connect fails at once"))
        the_host.conn_failed(((struct conn *)conn)->core, RDT_PEER_LOST, "peer gone");
    else
        push(TASK_FAIL, conn, NULL);
    return RDT_OK;
}

static uint32_t conn_sides(void *conn, const char *memory_kind)
{
    return RDT_TWO_SIDED;
}

static void conn_disconnect(void *conn)
{
    push(TASK_CLOSE, conn, NULL);
}

static enum rdt_status post(void *conn, struct rdt_op *op, struct rdt_error *err)
{
    for (int i = 0; i < 6; i++) {
        if (op->priv[i])
            return RDT_INTERNAL;
    }
    if (op->chunk == 99)
        return RDT_AGAIN;
    op->priv[0] = op;
    push(TASK_SEND, conn, op);
    return RDT_OK;
}

static void cancel(void *conn, struct rdt_op *op)
{
    push(TASK_CANCEL, conn, op);
}

static enum rdt_status memory_open(const struct rdt_host *host, void **memory_p, struct rdt_error *err)
{
    *memory_p = version_text;
    return RDT_OK;
}

static void memory_close(void *memory) {}

static enum rdt_status memory_alloc(void *memory, const char *device, uint64_t bytes, struct rdt_block *block_p,
                                    struct rdt_error *err)
{
    return RDT_NO_MEMORY;
}

static void memory_free(void *memory, struct rdt_block *block) {}

static enum rdt_status memory_map(void *memory, struct rdt_block *block, bool warm, struct rdt_error *err)
{
    return RDT_OK;
}

static enum rdt_status memory_copy(void *memory, void *dst, const void *src, uint64_t bytes, struct rdt_error *err)
{
    return RDT_OK;
}

static const char *const kinds[] = {"host", NULL};
static const struct rdt_config_key keys[] = {
    {"delay", "5", "milliseconds"}, {"color", "red", "of the wire"}, {NULL, NULL, NULL}};

static struct rdt_memory_ops memory_ops = {
    .struct_size = sizeof memory_ops,
    .name = "Host",
    .open = memory_open,
    .close = memory_close,
    .alloc = memory_alloc,
    .free = memory_free,
    .map = memory_map,
    .copy = memory_copy,
};

static struct rdt_transport_ops transport_ops = {
    .struct_size = sizeof transport_ops,
    .name = "Echo",
    .memory_kinds = kinds,
    .speed = 10,
    .open = transport_open,
    .close = transport_close,
    .version = transport_version,
    .connection_create = conn_create,
    .connection_destroy = conn_destroy,
    .offer = conn_offer,
    .connect = conn_connect,
    .sides = conn_sides,
    .disconnect = conn_disconnect,
    .post_send = post,
    .post_recv = post,
    .cancel = cancel,
};

static struct rdt_backend backend = {
    .abi_version = RDT_BACKEND_ABI,
    .struct_size = sizeof backend,
    .name = "Echo",
    .version = "1",
    .config_keys = keys,
    .memory = &memory_ops,
    .transport = &transport_ops,
};

/* rdt_NAME-SPEED.so has a transport of that name and speed, and no memory. */
static void take_name_of_file(void)
{
    static char name[32];
    Dl_info info;
    if (dladdr(&backend, &info) == 0 || !strrchr(info.dli_fname, '/'))
        return;
    if (sscanf(strrchr(info.dli_fname, '/'), "/rdt_%31[a-z]-%u.so", name, &transport_ops.speed) == 2) {
        backend.name = transport_ops.name = name;
        backend.memory = NULL;
    }
}

const struct rdt_backend *rdt_backend_init(void)
{
    take_name_of_file();
    if (fault("null"))
        return NULL;
    if (fault("abi"))
        backend.abi_version = RDT_BACKEND_ABI + 1;
    if (fault("empty"))
        backend.memory = NULL, backend.transport = NULL;
    if (fault("old"))
        transport_ops.struct_size = offsetof(struct rdt_transport_ops, cancel);
    if (fault("too old"))
        transport_ops.struct_size = offsetof(struct rdt_transport_ops, disconnect);
    if (fault("no sides"))
        transport_ops.sides = NULL;
    if (fault("no moves"))
        transport_ops.post_send = transport_ops.post_recv = NULL;
    if (fault("no recv"))
        transport_ops.post_recv = NULL;
    if (fault("no copy"))
        memory_ops.copy = NULL;
    if (fault("bad name"))
        backend.name = "a b";
    if (fault("reserved"))
        backend.name = "Network";
    return &backend;
}
