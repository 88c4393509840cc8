/* SPDX-License-Identifier: Apache-2.0 */
/* The data threads. Each sleeps in its own epoll, runs in turn the channels that can move bytes, and does what the loop thread
 * has asked for. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "backends/stream/stream.h"

#define TICK_MS 200 /* how often a thread checks deadlines, while a channel has one */
#define EVENTS 64

static bool watch(struct thread *thread, int fd, uint32_t events, void *what)
{
    struct epoll_event event = {.events = events, .data.ptr = what};

    return !epoll_ctl(thread->epoll, EPOLL_CTL_ADD, fd, &event);
}

/* ---- the loop ---- */

static void attend_all(struct thread *thread)
{
    struct transport *transport = thread->transport;

    (void)pthread_mutex_lock(&transport->lock);
    while (!ring_empty(&thread->attention)) {
        struct channel *channel = container_of(thread->attention.next, struct channel, attention);

        ring_remove(&channel->attention);
        (void)pthread_mutex_unlock(&transport->lock);
        channel_attend(channel);
        (void)pthread_mutex_lock(&transport->lock);
    }
    (void)pthread_mutex_unlock(&transport->lock);
}

static void run_all(struct thread *thread)
{
    struct ring now;

    if (ring_empty(&thread->runnable))
        return;
    now = thread->runnable; /* a channel that asks for another turn waits for the next round */
    now.next->prev = now.prev->next = &now;
    ring_init(&thread->runnable);
    while (!ring_empty(&now)) {
        struct channel *channel = container_of(now.next, struct channel, runnable);

        ring_remove(&channel->runnable);
        channel_run(channel);
    }
}

static void expire(struct thread *thread)
{
    uint64_t now_ns = monotonic_ns();

    for (struct ring *at = thread->timed.next, *next; at != &thread->timed; at = next) {
        struct channel *channel = container_of(at, struct channel, timed);

        next = at->next;
        if (now_ns < channel->deadline_ns)
            continue;
        channel_expire(channel);
    }
    if (thread->listener_paused)
        thread->listener_paused = !watch(thread, thread->transport->listener, EPOLLIN, &thread->transport->listener);
}

/* True: there is nothing to do, and from now on new work wakes the thread. */
static bool fall_asleep(struct thread *thread, bool *stopping_p)
{
    struct transport *transport = thread->transport;
    bool quiet;

    (void)pthread_mutex_lock(&transport->lock);
    *stopping_p = transport->stopping;
    quiet = thread->asleep = ring_empty(&thread->attention) && ring_empty(&thread->visits) && ring_empty(&thread->ending) &&
                             ring_empty(&thread->runnable) && !transport->stopping;
    (void)pthread_mutex_unlock(&transport->lock);
    return quiet;
}

static void await(struct thread *thread, bool asleep)
{
    struct transport *transport = thread->transport;
    struct epoll_event events[EVENTS];
    bool ticking = !ring_empty(&thread->timed) || thread->listener_paused;
    int n = epoll_wait(thread->epoll, events, EVENTS, !asleep ? 0 : ticking ? TICK_MS : -1);

    (void)pthread_mutex_lock(&transport->lock);
    thread->asleep = false;
    (void)pthread_mutex_unlock(&transport->lock);
    for (int i = 0; i < n; i++) {
        struct channel *channel = events[i].data.ptr;
        eventfd_t ignored;

        if (events[i].data.ptr == &thread->wake) {
            (void)eventfd_read(thread->wake, &ignored);
        } else if (events[i].data.ptr == &transport->listener) {
            listen_accept(transport, thread);
        } else {
            channel->ready.readable =
                channel->ready.readable || events[i].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR);
            channel->ready.hung_up = channel->ready.hung_up || events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);
            channel->ready.writable = channel->ready.writable || events[i].events & (EPOLLOUT | EPOLLHUP | EPOLLERR);
            thread_run_again(channel);
        }
    }
    if (ticking)
        expire(thread);
}

static void *thread_main(void *arg)
{
    struct thread *thread = arg;
    bool stopping, asleep;

    for (;;) {
        attend_all(thread);
        run_all(thread);
        ops_report_ended(thread);
        conns_close(thread);
        asleep = fall_asleep(thread, &stopping);
        if (stopping)
            break;
        await(thread, asleep);
    }
    attend_all(thread);
    while (!ring_empty(&thread->timed)) /* strangers; other channels have gone with their connections */
        channel_free(container_of(thread->timed.next, struct channel, timed));
    return NULL;
}

/* ---- start and stop ---- */

static void thread_fini(struct thread *thread)
{
    if (thread->epoll >= 0)
        (void)close(thread->epoll);
    if (thread->wake >= 0)
        (void)close(thread->wake);
    free(thread->scratch);
    free(thread->staging);
}

static enum rdt_status thread_init(struct transport *transport, struct thread *thread, struct rdt_error *err)
{
    thread->transport = transport;
    ring_init(&thread->attention);
    ring_init(&thread->visits);
    ring_init(&thread->ending);
    ring_init(&thread->timed);
    ring_init(&thread->runnable);
    thread->epoll = epoll_create1(EPOLL_CLOEXEC);
    thread->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    thread->scratch = malloc(SCRATCH_BYTES);
    thread->staging = malloc(RECORD_BYTES);
    if (thread->epoll >= 0 && thread->wake >= 0 && thread->scratch && thread->staging &&
        watch(thread, thread->wake, EPOLLIN, &thread->wake) &&
        (thread != transport->threads || watch(thread, transport->listener, EPOLLIN, &transport->listener)))
        return RDT_OK;
    return rdt_error_sys(err, errno, "preparing a data thread");
}

static void stop(struct transport *transport, unsigned started, unsigned prepared)
{
    (void)pthread_mutex_lock(&transport->lock);
    transport->stopping = true;
    for (unsigned i = 0; i < started; i++)
        thread_wake(&transport->threads[i]);
    (void)pthread_mutex_unlock(&transport->lock);
    for (unsigned i = 0; i < started; i++)
        (void)pthread_join(transport->threads[i].id, NULL);
    for (unsigned i = 0; i < started; i++) /* channels that were accepted for a thread that had ended already */
        while (!ring_empty(&transport->threads[i].attention))
            channel_free(container_of(transport->threads[i].attention.next, struct channel, attention));
    for (unsigned i = 0; i < prepared; i++)
        thread_fini(&transport->threads[i]);
}

enum rdt_status threads_start(struct transport *transport, struct rdt_error *err)
{
    unsigned n = transport->settings.threads, prepared = 0, started = 0;
    enum rdt_status status = RDT_OK;

    while (prepared < n && status == RDT_OK)
        status = thread_init(transport, &transport->threads[prepared++], err);
    while (started < n && status == RDT_OK) {
        struct thread *thread = &transport->threads[started];
        int error = thread_create(&thread->id, thread_main, thread); /* it blocks SIGPIPE, which OpenSSL's writes raise */
        char name[32];

        if (error) {
            status = rdt_error_sys(err, error, "starting a data thread");
            break;
        }
        (void)snprintf(name, sizeof name, "rdt-stream-%u", started++);
        (void)pthread_setname_np(thread->id, name);
    }
    if (status != RDT_OK)
        stop(transport, started, prepared);
    return status;
}

void threads_stop(struct transport *transport)
{
    stop(transport, transport->settings.threads, transport->settings.threads);
}
