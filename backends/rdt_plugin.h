/* SPDX-License-Identifier: Apache-2.0 */
/* A helper for transport plug-ins: the queue of operations between the core and the plug-in's thread. Installed
 * beside rdt_backend.h. It is header-only and needs -pthread; a plug-in does not have to use it.
 *
 * struct rdt_ops keeps the operations of one connection. The core's loop thread posts and cancels them, and one
 * thread of the plug-in moves their bytes:
 *
 *     loop thread                          the plug-in's thread
 *     post_send    rdt_ops_send            while (rdt_ops_wait(&ops, fd, timeout_ms)) {
 *     post_recv    rdt_ops_recv                rdt_ops_next_send: sends the bytes, then host->op_done
 *     cancel       rdt_ops_cancel              a chunk comes in: rdt_ops_match, writes its bytes, host->op_done
 *     disconnect   rdt_ops_close           }
 *                                          rdt_ops_end: ends what is left; then host->conn_closed
 *
 * From the post until the thread takes it, an operation stands in a list that is linked through its priv[0]. An
 * operation that is cancelled before the thread takes it ends as RDT_CANCELLED, inside rdt_ops_wait or
 * rdt_ops_next_send. An operation that the thread has taken is the thread's to end. No function of the host is
 * called while the lock is held.
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

/* Fills *err with the status and the formatted sentence, and returns the status. err may be NULL. */
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
    struct rdt_op *first, *last; /* oldest first */
};

struct rdt_ops {
    const struct rdt_host *host; /* borrowed; valid until rdt_ops_fini */
    pthread_mutex_t lock;
    int wake; /* an eventfd, readable when the thread has something new to look at */
    bool closing;
    struct rdt_op_list sends, recvs, cancelled;
};

/* Prepares the queues of one connection; host is borrowed. SYSTEM: there is no descriptor left. Loop thread, inside
 * connection_create. */
static inline enum rdt_status rdt_ops_init(struct rdt_ops *ops, const struct rdt_host *host, struct rdt_error *err)
{
    memset(ops, 0, sizeof *ops);
    ops->host = host;
    ops->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (ops->wake < 0)
        return rdt_fail(err, RDT_SYSTEM, "cannot create the descriptor that wakes the connection's thread");
    (void)pthread_mutex_init(&ops->lock, NULL);
    return RDT_OK;
}

/* Frees what rdt_ops_init allocated. To be called when the thread has been joined. Loop thread, inside connection_destroy. */
static inline void rdt_ops_fini(struct rdt_ops *ops)
{
    (void)close(ops->wake);
    (void)pthread_mutex_destroy(&ops->lock);
}

/* ---- lists; the caller holds the lock ---- */

static inline void rdt_ops_append_(struct rdt_op_list *list, struct rdt_op *op)
{
    op->priv[0] = NULL;
    if (list->last)
        list->last->priv[0] = op;
    else
        list->first = op;
    list->last = op;
}

/* Removes and returns one operation of the list: `op`, or the first with the key {transfer, chunk}, or, if both are
 * NULL, the first. Returns NULL if there is none. */
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

/* ---- loop thread: inside post_send, post_recv, cancel and disconnect ---- */

static inline enum rdt_status rdt_ops_post_(struct rdt_ops *ops, struct rdt_op_list *list, struct rdt_op *op,
                                            struct rdt_error *err)
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

/* Queue a send or a receive. PEER_LOST after rdt_ops_close. */
static inline enum rdt_status rdt_ops_send(struct rdt_ops *ops, struct rdt_op *op, struct rdt_error *err)
{
    return rdt_ops_post_(ops, &ops->sends, op, err);
}

static inline enum rdt_status rdt_ops_recv(struct rdt_ops *ops, struct rdt_op *op, struct rdt_error *err)
{
    return rdt_ops_post_(ops, &ops->recvs, op, err);
}

/* Cancels an operation that the thread has not taken yet; does nothing otherwise. */
static inline void rdt_ops_cancel(struct rdt_ops *ops, struct rdt_op *op)
{
    (void)pthread_mutex_lock(&ops->lock);
    if (rdt_ops_take_(&ops->recvs, op, NULL) || rdt_ops_take_(&ops->sends, op, NULL))
        rdt_ops_append_(&ops->cancelled, op);
    (void)pthread_mutex_unlock(&ops->lock);
    (void)eventfd_write(ops->wake, 1);
}

/* Makes rdt_ops_wait return false, and refuses further posts. */
static inline void rdt_ops_close(struct rdt_ops *ops)
{
    (void)pthread_mutex_lock(&ops->lock);
    ops->closing = true;
    (void)pthread_mutex_unlock(&ops->lock);
    (void)eventfd_write(ops->wake, 1);
}

/* ---- the plug-in's thread: one for each struct rdt_ops ---- */

static inline void rdt_ops_report_cancelled_(struct rdt_ops *ops)
{
    for (struct rdt_op *op; (op = rdt_ops_take_locked_(ops, &ops->cancelled, NULL));)
        ops->host->op_done(op, RDT_CANCELLED, NULL);
}

/* Sleeps until something is posted, cancelled or closed, `fd` is readable (-1: no descriptor), or timeout_ms have
 * passed (-1: never). Returns at once if something was posted, cancelled or closed since the last call. Returns
 * false when the connection is to be closed: the thread then calls rdt_ops_end. */
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

/* Takes the oldest send, which the thread must end with op_done. Returns NULL if there is none. */
static inline struct rdt_op *rdt_ops_next_send(struct rdt_ops *ops)
{
    rdt_ops_report_cancelled_(ops);
    return rdt_ops_take_locked_(ops, &ops->sends, NULL);
}

/* Takes the receive that was posted for a chunk, which the thread must end with op_done. Returns NULL if no receive
 * is posted for it. The caller checks that the lengths agree. */
static inline struct rdt_op *rdt_ops_match(struct rdt_ops *ops, uint64_t transfer, uint64_t chunk)
{
    const uint64_t key[2] = {transfer, chunk};

    return rdt_ops_take_locked_(ops, &ops->recvs, key);
}

/* Ends every operation that the thread has not taken, as RDT_CANCELLED. To be called after rdt_ops_wait has returned
 * false. */
static inline void rdt_ops_end(struct rdt_ops *ops)
{
    struct rdt_op_list *lists[] = {&ops->cancelled, &ops->sends, &ops->recvs};

    for (int i = 0; i < 3; i++)
        for (struct rdt_op *op; (op = rdt_ops_take_locked_(ops, lists[i], NULL));)
            ops->host->op_done(op, RDT_CANCELLED, "disconnected");
}

#endif
