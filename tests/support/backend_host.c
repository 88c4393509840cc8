/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/backend_host.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* op_done passes only the operation, so all hosts of the process share one lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init_changed(void)
{
    pthread_condattr_t attr;

    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&changed, &attr);
    (void)pthread_condattr_destroy(&attr);
}

int patience_ms(int ms)
{
#if defined(__SANITIZE_THREAD__)
    return ms * 10;
#elif defined(__SANITIZE_ADDRESS__)
    return ms * 3;
#else
    return ms;
#endif
}

static struct timespec deadline_in(int ms)
{
    struct timespec at;

    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += ms / 1000;
    at.tv_nsec += (long)(ms % 1000) * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

/* The lock is held. */
static bool wait_until(const unsigned *number, int ms)
{
    struct timespec deadline = deadline_in(patience_ms(ms));

    while (!*number)
        if (pthread_cond_timedwait(&changed, &lock, &deadline) == ETIMEDOUT)
            return *number != 0;
    return true;
}

/* ---- the host's table ---- */

static void on_log(void *ctx, enum rdt_log_level level, const char *fmt, ...)
{
    struct backend_host *host = ctx;
    va_list args;

    (void)pthread_mutex_lock(&lock);
    host->n_errors += level == RDT_LOG_ERROR;
    host->n_lines += level <= RDT_LOG_INFO && !host->opening;
    (void)pthread_mutex_unlock(&lock);
    if (level != RDT_LOG_ERROR && !getenv("RDT_TEST_LOG"))
        return;
    flockfile(stderr);
    (void)fprintf(stderr, "[%d] ", level);
    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    (void)fputc('\n', stderr);
    funlockfile(stderr);
}

/* The value of key in "key=value,key=value"; in the caller's buffer, which lives as long as the thread. */
static const char *config_of_environment(const char *key)
{
    static _Thread_local char value[128];
    const char *at = getenv("RDT_BACKEND_CONFIG");
    size_t bytes = strlen(key);

    for (; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (!strncmp(at, key, bytes) && at[bytes] == '=') {
            at += bytes + 1;
            (void)snprintf(value, sizeof value, "%.*s", (int)strcspn(at, ","), at);
            return value;
        }
    return NULL;
}

static const char *on_config(void *ctx, const char *key)
{
    static const struct config_pair defaults[] = {
        {"trusted_network", "yes"}, {"interfaces", "lo"}, {"listen_host", "127.0.0.1"}, {NULL, NULL}};
    struct backend_host *host = ctx;
    const char *value = config_of_environment(key);

    if (!host->opening)
        return NULL; /* the contract: only inside open */
    for (const struct config_pair *at = host->config; !value && at && at->key; at++)
        if (!strcmp(at->key, key))
            value = at->value;
    for (const struct rdt_config_key *at = host->backend->config_keys; !value && at && at->name; at++)
        if (!strcmp(at->name, key))
            value = at->fallback;
    for (const struct config_pair *at = defaults; !value && at->key; at++)
        if (!strcmp(at->key, key))
            value = at->value;
    return value;
}

static void on_op_done(struct rdt_op *rdt_op, enum rdt_status status, const char *msg)
{
    struct host_op *op = (struct host_op *)(void *)((char *)rdt_op - offsetof(struct host_op, op));

    (void)pthread_mutex_lock(&lock);
    op->n_done++;
    if (op->posting && pthread_equal(op->poster, pthread_self()))
        op->ended_in_post = true; /* of this thread, which reads it without the lock */
    op->conn->n_open_ops--;
    op->status = status;
    (void)snprintf(op->msg, sizeof op->msg, "%s", msg ? msg : "");
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
}

static void on_copy_done(struct rdt_memory_copy *rdt_copy, enum rdt_status status, const char *msg)
{
    struct host_copy *copy = (struct host_copy *)(void *)((char *)rdt_copy - offsetof(struct host_copy, copy));

    (void)pthread_mutex_lock(&lock);
    copy->n_done++;
    copy->status = status;
    (void)snprintf(copy->msg, sizeof copy->msg, "%s", msg ? msg : "");
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
}

bool host_copy_wait(struct host_copy *copy, int ms)
{
    (void)pthread_mutex_lock(&lock);
    bool done = wait_until(&copy->n_done, ms);
    (void)pthread_mutex_unlock(&lock);
    return done;
}

static void on_conn_failed(void *conn_ctx, enum rdt_status status, const char *msg)
{
    struct host_conn *conn = conn_ctx;

    (void)pthread_mutex_lock(&lock);
    conn->n_failed++;
    conn->status = status;
    (void)snprintf(conn->msg, sizeof conn->msg, "%s", msg ? msg : "");
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
}

static void on_conn_closed(void *conn_ctx)
{
    struct host_conn *conn = conn_ctx;

    (void)pthread_mutex_lock(&lock);
    if (++conn->n_closed == 2)
        conn->host->n_closed_twice++;
    conn->open_at_close = conn->n_open_ops;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
}

static void tell(unsigned *number)
{
    (void)pthread_mutex_lock(&lock);
    ++*number;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
}

static void on_group_ready(void *group_ctx)
{
    tell(&((struct host_group *)group_ctx)->n_ready);
}

static void on_group_failed(void *group_ctx, enum rdt_status status, const char *msg)
{
    struct host_group *group = group_ctx;

    (void)pthread_mutex_lock(&lock);
    (void)snprintf(group->msg, sizeof group->msg, "%s: %s", rdt_status_name(status), msg ? msg : "");
    (void)pthread_mutex_unlock(&lock);
    tell(&group->n_failed);
}

static void on_group_closed(void *group_ctx)
{
    struct host_group *group = group_ctx;

    (void)pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < group->size; i++)
        group->open_at_close += group->conns[i].n_open_ops;
    (void)pthread_mutex_unlock(&lock);
    tell(&group->n_closed);
}

/* ---- loading ---- */

static void copy_table(void *ours, size_t our_bytes, const void *theirs, uint32_t their_bytes)
{
    memset(ours, 0, our_bytes);
    memcpy(ours, theirs, their_bytes < our_bytes ? their_bytes : our_bytes);
}

enum rdt_status backend_host_load(struct backend_host *host, const char *path, struct rdt_error *err)
{
    const struct rdt_backend *(*init)(void), *theirs;

    (void)pthread_once(&once, init_changed);
    /* Like rdtd at its start: some vendors' libraries handle fatal signals in their constructors. */
    (void)setenv("UCX_HANDLE_ERRORS", "none", 0);
    memset(host, 0, sizeof *host);
    host->table = (struct rdt_host){
        .abi_version = RDT_BACKEND_ABI,
        .struct_size = sizeof host->table,
        .ctx = host,
        .log = on_log,
        .config = on_config,
        .op_done = on_op_done,
        .copy_done = on_copy_done,
        .conn_failed = on_conn_failed,
        .conn_closed = on_conn_closed,
        .group_ready = on_group_ready,
        .group_failed = on_group_failed,
        .group_closed = on_group_closed,
    };
    host->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!host->library)
        return rdt_error_set(err, RDT_NOT_FOUND, "%s", dlerror());
    *(void **)(&init) = dlsym(host->library, "rdt_backend_init");
    theirs = init ? init() : NULL;
    if (!theirs)
        return rdt_error_set(err, RDT_INVALID, "%s is no backend: %s", path,
                             init ? "rdt_backend_init gives nothing" : "it exports no rdt_backend_init");
    copy_table(&host->own_backend, sizeof host->own_backend, theirs, theirs->struct_size);
    host->backend = &host->own_backend;
    if (host->backend->memory) {
        copy_table(&host->own_memory, sizeof host->own_memory, host->backend->memory, host->backend->memory->struct_size);
        host->backend->memory = &host->own_memory;
    }
    if (host->backend->transport) {
        copy_table(&host->own_transport, sizeof host->own_transport, host->backend->transport,
                   host->backend->transport->struct_size);
        host->backend->transport = host->ops = &host->own_transport;
    }
    return RDT_OK;
}

enum rdt_status backend_host_open(struct backend_host *host, const struct config_pair *config, struct rdt_error *err)
{
    host->config = config;
    host->opening = true;
    enum rdt_status status = host->ops->open(&host->table, &host->transport, err);
    host->opening = false;
    return status;
}

void backend_host_close(struct backend_host *host)
{
    if (host->transport)
        host->ops->close(host->transport);
    host->transport = NULL;
    if (host->library)
        (void)dlclose(host->library);
    host->library = NULL;
}

/* ---- connections ---- */

enum rdt_status host_conn_create(struct backend_host *host, struct host_conn *conn, struct rdt_error *err)
{
    static const uint8_t uuid[16] = {1, 2, 3};

    memset(conn, 0, sizeof *conn);
    conn->host = host;
    return host->ops->connection_create(host->transport, uuid, conn, &conn->handle, err);
}

enum rdt_status host_conn_join(struct host_conn *a, struct host_conn *b, struct rdt_error *err)
{
    uint8_t blob_a[RDT_OFFER_MAX_BYTES], blob_b[RDT_OFFER_MAX_BYTES];
    size_t bytes_a, bytes_b;
    enum rdt_status status = a->host->ops->offer(a->handle, blob_a, &bytes_a, err);

    if (status == RDT_OK)
        status = b->host->ops->offer(b->handle, blob_b, &bytes_b, err);
    if (status == RDT_OK)
        status = a->host->ops->connect(a->handle, blob_b, bytes_b, err);
    if (status == RDT_OK)
        status = b->host->ops->connect(b->handle, blob_a, bytes_a, err);
    return status;
}

bool host_conn_wait_failed(struct host_conn *conn, int ms)
{
    (void)pthread_mutex_lock(&lock);
    bool failed = wait_until(&conn->n_failed, ms);
    (void)pthread_mutex_unlock(&lock);
    return failed;
}

bool host_conn_disconnect(struct host_conn *conn, int ms)
{
    conn->host->ops->disconnect(conn->handle);
    (void)pthread_mutex_lock(&lock);
    bool closed = wait_until(&conn->n_closed, ms);
    (void)pthread_mutex_unlock(&lock);
    return closed;
}

void host_conn_destroy(struct host_conn *conn)
{
    conn->host->ops->connection_destroy(conn->handle);
    conn->handle = NULL;
}

/* ---- posting ---- */

static void op_begin(struct host_conn *conn, struct host_op *op)
{
    op->conn = conn;
    op->n_done = 0;
    op->ended_in_post = false;
    op->poster = pthread_self();
    op->posting = true;
    memset(op->op.priv, 0, sizeof op->op.priv);
    (void)pthread_mutex_lock(&lock);
    conn->n_open_ops++;
    (void)pthread_mutex_unlock(&lock);
}

static void op_posted(struct host_conn *conn, struct host_op *op, enum rdt_status status)
{
    (void)pthread_mutex_lock(&lock);
    op->posting = false;
    conn->n_open_ops -= status != RDT_OK;
    (void)pthread_mutex_unlock(&lock);
}

/* ---- groups ---- */

enum rdt_status host_group_create(struct backend_host *host, struct host_group *group, uint32_t rank, uint32_t size,
                                  struct rdt_error *err)
{
    struct rdt_group_member members[HOST_GROUP_MAX];
    struct rdt_group_desc desc = {.struct_size = sizeof desc,
                                  .name = "checked",
                                  .epoch = 1,
                                  .rank = rank,
                                  .size = size,
                                  .members = members,
                                  .token = {7}};

    memset(group, 0, sizeof *group);
    group->host = host;
    group->rank = rank;
    group->size = size;
    for (uint32_t i = 0; i < size; i++)
        members[i] = (struct rdt_group_member){.node_uuid = {1, (uint8_t)i}, .device = ""};
    for (uint32_t i = 0; i < size; i++)
        group->conns[i].host = host;
    return host->ops->group_create(host->transport, &desc, group, &group->handle, err);
}

static bool wait_for(unsigned *number, int ms)
{
    (void)pthread_mutex_lock(&lock);
    bool there = wait_until(number, ms);
    (void)pthread_mutex_unlock(&lock);
    return there;
}

bool host_group_wait_ready(struct host_group *group, int ms)
{
    return wait_for(&group->n_ready, ms);
}

bool host_group_wait_failed(struct host_group *group, int ms)
{
    return wait_for(&group->n_failed, ms);
}

void host_group_take_conns(struct host_group *group)
{
    for (uint32_t i = 0; i < group->size; i++)
        if (i != group->rank)
            group->conns[i].handle = group->host->ops->group_conn(group->handle, i);
}

void host_group_close(struct host_group *group)
{
    group->host->ops->group_close(group->handle);
}

bool host_group_wait_closed(struct host_group *group, int ms)
{
    return wait_for(&group->n_closed, ms);
}

/* ---- operations ---- */

void host_op_fill(struct host_op *op, uint64_t transfer, uint64_t chunk, void *addr, uint64_t bytes)
{
    memset(op, 0, sizeof *op);
    op->op.transfer = transfer;
    op->op.chunk = chunk;
    op->op.piece.addr = addr;
    op->op.piece.bytes = bytes;
}

enum rdt_status host_op_post(struct host_conn *conn, struct host_op *op, enum post post, struct rdt_error *err)
{
    const struct rdt_transport_ops *ops = conn->host->ops;
    enum rdt_status status;

    op_begin(conn, op);
    if (post == POST_SEND)
        status = ops->post_send(conn->handle, &op->op, err);
    else if (post == POST_RECV)
        status = ops->post_recv(conn->handle, &op->op, err);
    else
        status = ops->post_read(conn->handle, &op->op, err);
    op_posted(conn, op, status);
    return status;
}

bool host_op_wait(struct host_op *op, int ms)
{
    (void)pthread_mutex_lock(&lock);
    bool done = wait_until(&op->n_done, ms);
    (void)pthread_mutex_unlock(&lock);
    return done;
}

bool host_op_ended(struct host_op *op)
{
    (void)pthread_mutex_lock(&lock);
    bool done = op->n_done > 0;
    (void)pthread_mutex_unlock(&lock);
    return done;
}

void host_op_cancel(struct host_op *op)
{
    if (op->conn->host->ops->cancel)
        op->conn->host->ops->cancel(op->conn->handle, &op->op);
}

/* ---- bytes ---- */

static uint64_t pattern_word(uint64_t index, uint32_t seed)
{
    uint64_t word = (index + 1) * 0x9e3779b97f4a7c15u + seed * 0xd6e8feb86659fd93u;

    return word ^ word >> 29;
}

void pattern_fill(void *addr, uint64_t bytes, uint32_t seed)
{
    uint8_t *at = addr;

    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t word = pattern_word(i, seed);

        memcpy(at + i, &word, bytes - i < 8 ? bytes - i : 8);
    }
}

bool pattern_holds(const void *addr, uint64_t bytes, uint32_t seed)
{
    const uint8_t *at = addr;

    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t word = pattern_word(i, seed);

        if (memcmp(at + i, &word, bytes - i < 8 ? bytes - i : 8))
            return false;
    }
    return true;
}

bool guarded_create(struct guarded *guarded, uint64_t bytes)
{
    guarded->base = malloc(bytes + 2 * GUARD_BYTES);
    if (!guarded->base)
        return false;
    guarded->addr = guarded->base + GUARD_BYTES;
    guarded->bytes = bytes;
    memset(guarded->base, CANARY, bytes + 2 * GUARD_BYTES);
    return true;
}

/* The check may read posted memory while a thread of the plug-in writes it, because that write is what it looks for. */
__attribute__((no_sanitize("thread"))) static bool all_canary(const volatile uint8_t *addr, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        if (addr[i] != CANARY)
            return false;
    return true;
}

bool guarded_margins_hold(const struct guarded *guarded)
{
    return all_canary(guarded->base, GUARD_BYTES) && all_canary(guarded->addr + guarded->bytes, GUARD_BYTES);
}

bool guarded_untouched(const struct guarded *guarded)
{
    return all_canary(guarded->base, guarded->bytes + 2 * GUARD_BYTES);
}

void guarded_destroy(struct guarded *guarded)
{
    free(guarded->base);
    guarded->base = guarded->addr = NULL;
}

unsigned count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    if (!dir)
        return 0;
    while (readdir(dir))
        n++;
    (void)closedir(dir);
    return n;
}
