/* For who writes a transport: what nearly every one of them would write again. Installed beside rdt_backend.h; header only, needs
 * -pthread, and nobody has to use it.
 *
 * struct rdt_ops keeps the operations of one connection between the core's loop thread, which posts and cancels them, and one thread
 * of the plug-in's, which moves their bytes:
 *
 *     loop thread                          the plug-in's thread
 *     post_send    rdt_ops_send            while (rdt_ops_wait(&ops, fd, timeout_ms)) {
 *     post_recv    rdt_ops_recv                rdt_ops_next_send: moves it out, host->op_done
 *     cancel       rdt_ops_cancel              something comes in: rdt_ops_match, moves it in, host->op_done
 *     disconnect   rdt_ops_close           }
 *                                          rdt_ops_end: whatever is left; then host->conn_closed
 *
 * Operations are listed by their priv[0] from the post until the thread takes them. What is cancelled before that ends as CANCELLED,
 * inside rdt_ops_wait or rdt_ops_next_send; what the thread has taken ends as it does. The lock is held during no call of the host.
 */
#ifndef RDT_PLUGIN_H
#define RDT_PLUGIN_H

#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "rdt_backend.h"

/* Fills err (may be NULL) and returns status. */
__attribute__((format(printf, 3, 4))) static inline enum rdt_status rdt_fail(struct rdt_error *err, enum rdt_status status,
                                                                             const char *fmt, ...)
{
    va_list args;

    if (!err)
        return status;
    err->status = status;
    err->sys_errno = 0;
    va_start(args, fmt);
    (void)vsnprintf(err->msg, sizeof err->msg, fmt, args);
    va_end(args);
    return status;
}

struct rdt_op_list {
    struct rdt_op *first, *last; /* the oldest first */
};

struct rdt_ops {
    const struct rdt_host *host; /* outlives it */
    pthread_mutex_t lock;
    int wake; /* readable: the thread has something new to look at */
    bool closing;
    struct rdt_op_list sends, recvs, cancelled;
};

static inline enum rdt_status rdt_ops_init(struct rdt_ops *ops, const struct rdt_host *host, struct rdt_error *err)
{
    memset(ops, 0, sizeof *ops);
    ops->host = host;
    ops->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ops->wake < 0)
        return rdt_fail(err, RDT_SYSTEM, "no descriptor to wake a thread by");
    (void)pthread_mutex_init(&ops->lock, NULL);
    return RDT_OK;
}

/* The thread has been joined. */
static inline void rdt_ops_fini(struct rdt_ops *ops)
{
    (void)close(ops->wake);
    (void)pthread_mutex_destroy(&ops->lock);
}

/* ---- lists; the lock is held ---- */

static inline void rdt_ops_append_(struct rdt_op_list *list, struct rdt_op *op)
{
    op->priv[0] = NULL;
    if (list->last)
        list->last->priv[0] = op;
    else
        list->first = op;
    list->last = op;
}

/* Off the list: this one, or the first one with the key, or with neither the first; NULL: it is not there. */
static inline struct rdt_op *rdt_ops_take_(struct rdt_op_list *list, const struct rdt_op *op, const uint64_t key[2])
{
    struct rdt_op *before = NULL, *at = list->first;

    while (at && ((op && at != op) || (key && (at->transfer != key[0] || at->chunk != key[1]))))
        before = at, at = (struct rdt_op *)at->priv[0];
    if (!at)
        return NULL;
    if (before)
        before->priv[0] = at->priv[0];
    else
        list->first = (struct rdt_op *)at->priv[0];
    if (list->last == at)
        list->last = before;
    return at;
}

static inline struct rdt_op *rdt_ops_take_locked_(struct rdt_ops *ops, struct rdt_op_list *list, const uint64_t key[2])
{
    (void)pthread_mutex_lock(&ops->lock);
    struct rdt_op *op = rdt_ops_take_(list, NULL, key);
    (void)pthread_mutex_unlock(&ops->lock);
    return op;
}

/* ---- loop thread ---- */

static inline enum rdt_status rdt_ops_post_(struct rdt_ops *ops, struct rdt_op_list *list, struct rdt_op *op, struct rdt_error *err)
{
    (void)pthread_mutex_lock(&ops->lock);
    bool closing = ops->closing;
    if (!closing)
        rdt_ops_append_(list, op);
    (void)pthread_mutex_unlock(&ops->lock);
    if (closing)
        return rdt_fail(err, RDT_PEER_LOST, "the connection is closing");
    (void)eventfd_write(ops->wake, 1);
    return RDT_OK;
}

static inline enum rdt_status rdt_ops_send(struct rdt_ops *ops, struct rdt_op *op, struct rdt_error *err)
{
    return rdt_ops_post_(ops, &ops->sends, op, err);
}

static inline enum rdt_status rdt_ops_recv(struct rdt_ops *ops, struct rdt_op *op, struct rdt_error *err)
{
    return rdt_ops_post_(ops, &ops->recvs, op, err);
}

/* Nothing if the thread has it, or it has ended. */
static inline void rdt_ops_cancel(struct rdt_ops *ops, struct rdt_op *op)
{
    (void)pthread_mutex_lock(&ops->lock);
    if (rdt_ops_take_(&ops->recvs, op, NULL) || rdt_ops_take_(&ops->sends, op, NULL))
        rdt_ops_append_(&ops->cancelled, op);
    (void)pthread_mutex_unlock(&ops->lock);
    (void)eventfd_write(ops->wake, 1);
}

static inline void rdt_ops_close(struct rdt_ops *ops)
{
    (void)pthread_mutex_lock(&ops->lock);
    ops->closing = true;
    (void)pthread_mutex_unlock(&ops->lock);
    (void)eventfd_write(ops->wake, 1);
}

/* ---- the plug-in's thread ---- */

static inline void rdt_ops_report_cancelled_(struct rdt_ops *ops)
{
    for (struct rdt_op *op; (op = rdt_ops_take_locked_(ops, &ops->cancelled, NULL));)
        ops->host->op_done(op, RDT_CANCELLED, NULL);
}

/* Sleeps until something was posted, cancelled or closed, the descriptor is readable (-1: none), or the time is over (-1: never); not at
 * all if something has been since the last time. False: it is to be closed. */
static inline bool rdt_ops_wait(struct rdt_ops *ops, int fd, int timeout_ms)
{
    struct pollfd fds[2] = {{ops->wake, POLLIN, 0}, {fd, POLLIN, 0}};
    eventfd_t ignored;

    (void)poll(fds, 2, timeout_ms);
    (void)eventfd_read(ops->wake, &ignored);
    rdt_ops_report_cancelled_(ops);
    (void)pthread_mutex_lock(&ops->lock);
    bool closing = ops->closing;
    (void)pthread_mutex_unlock(&ops->lock);
    return !closing;
}

/* The thread's own until it ends it; NULL: there is none. */
static inline struct rdt_op *rdt_ops_next_send(struct rdt_ops *ops)
{
    rdt_ops_report_cancelled_(ops);
    return rdt_ops_take_locked_(ops, &ops->sends, NULL);
}

/* The receive that such a chunk was posted for, likewise; NULL: nobody wants it. Whether it has as many bytes is for the caller to see. */
static inline struct rdt_op *rdt_ops_match(struct rdt_ops *ops, uint64_t transfer, uint64_t chunk)
{
    const uint64_t key[2] = {transfer, chunk};

    return rdt_ops_take_locked_(ops, &ops->recvs, key);
}

/* After rdt_ops_wait has said false. */
static inline void rdt_ops_end(struct rdt_ops *ops)
{
    struct rdt_op_list *lists[] = {&ops->cancelled, &ops->sends, &ops->recvs};

    for (int i = 0; i < 3; i++)
        for (struct rdt_op *op; (op = rdt_ops_take_locked_(ops, lists[i], NULL));)
            ops->host->op_done(op, RDT_CANCELLED, "disconnected");
}

#endif
