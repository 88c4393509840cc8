/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of work of the data threads, and the call that wakes a thread.
 *
 * This is the lowest of the files that know channels: the files above put work into these lists, and thread.c takes it out.
 */
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "backends/stream/stream.h"

#define YIELD_AFTER_NS 50000

void thread_yield(struct thread *thread)
{
    if (monotonic_ns() - thread->yielded_ns < YIELD_AFTER_NS)
        return;
    (void)sched_yield();
    thread->yielded_ns = monotonic_ns();
}

void thread_wake(struct thread *thread)
{
    if (!thread->asleep)
        return;
    thread->asleep = false; /* one write is enough to wake it */
    (void)eventfd_write(thread->wake, 1);
}

void thread_attend(struct channel *channel)
{
    if (ring_empty(&channel->attention))
        ring_append(&channel->thread->attention, &channel->attention);
    thread_wake(channel->thread);
}

struct thread *thread_next(struct transport *transport)
{
    return &transport->threads[transport->next_thread++ % transport->settings.threads];
}

void thread_run_again(struct channel *channel)
{
    if (ring_empty(&channel->runnable))
        ring_append(&channel->thread->runnable, &channel->runnable);
}

void thread_visit(struct conn *conn)
{
    if (ring_empty(&conn->visit))
        ring_append(&conn->home->visits, &conn->visit);
    thread_wake(conn->home);
}

bool thread_watch(struct channel *channel)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = channel};

    return !epoll_ctl(channel->thread->epoll, EPOLL_CTL_ADD, channel->fd, &event);
}
