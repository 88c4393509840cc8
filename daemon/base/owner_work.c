/* SPDX-License-Identifier: Apache-2.0 */
/* A queue for each person, threads that are started and end with demand, and a tick while anything is
 * queued. */
#include "daemon/base/owner_work.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/map.h"
#include "daemon/base/wake.h"
#include "proto/list.h"

#define SURE_THREADS 128u
#define MAX_THREADS (SURE_THREADS + 6u * OWNER_WORK_SHARED_THREADS)
#define STACK_BYTES ((size_t)256 << 10)
#define IDLE_S 2      /* a thread without work ends after this time, except the last one: there may be none later */
#define LATE_TICKS 5u /* a close that takes longer is charged */
#define WAKE_AT 64u   /* if so many descriptors are queued, a thread is woken before the next tick */
#define RESERVE 64u   /* structs in reserve for when memory is short */
#define END_TICKS (1000 / OWNER_WORK_TICK_MS)

/* What has threads of its own. None can take those of another kind. */
enum kind {
    SURE, /* closes that always end, and the work of the daemon itself */
    CLOSES,
    COPIES,
    WORKS,
    KINDS
};

static const unsigned most_running[KINDS] = {[SURE] = SURE_THREADS,
                                             [CLOSES] = 2 * OWNER_WORK_SHARED_THREADS,
                                             [COPIES] = 2 * OWNER_WORK_SHARED_THREADS,
                                             [WORKS] = 2 * OWNER_WORK_SHARED_THREADS};

/* The work of one kind of one person. It exists while any of it is queued, runs, or waits for the loop. */
struct lane {
    struct list link; /* in pool->unserved or pool->served: it has work, and may use another thread */
    enum kind kind;
    struct account *account; /* of the person; one reference */
    struct work_queue queue;
    unsigned n_running;
    unsigned n_late;  /* of those that run: long copies that have not returned for OWNER_WORK_TICK_MS */
    unsigned n_items; /* loop thread: submitted, and the loop has not seen their end */
};

struct thread {
    struct list link; /* pool->threads */
    struct owner_work *pool;
    pthread_t id;
    const struct work *work; /* that it runs; NULL: none */
    uint64_t since_ns;       /* when that began */
    bool late;               /* it counts in the lane's n_late */
};

struct owner_work {
    struct wake wake;
    uv_timer_t tick;           /* active while anything is queued or runs */
    unsigned n_copies_at_once; /* of one person */
    pthread_mutex_t mutex;
    pthread_cond_t more;
    /* Under the mutex. */
    struct list unserved[KINDS], served[KINDS]; /* struct lane.link: no thread works for the lane; some do */
    struct list threads;
    struct work_queue finished;
    unsigned n_threads, n_idle, n_queued, n_running[KINDS];
    bool stop; /* threads end after what they are running */
    /* Loop thread. */
    struct map lanes;          /* lane_key -> struct lane */
    struct lane common[KINDS]; /* for the daemon, and for persons without memory for a lane */
    struct list open;          /* struct descriptor.link */
    struct list reserve;       /* struct descriptor.link: the reserve */
    unsigned n_reserve;
    unsigned n_descriptors, n_works, n_optional; /* submitted, and not yet ended on the loop */
    unsigned n_ticks;                            /* since owner_work_close */
    bool closing;
    struct log_rare starved;
    void (*on_ended_some)(void *arg);
    struct {
        void (*on_none)(void *arg); /* NULL: nobody waits for the end of all works */
        void *arg;
    } await;
    void *watch_arg;
    void (*on_closed)(void *arg);
    void *arg;
};

struct descriptor {
    struct work work;
    struct list link; /* pool->open, oldest first */
    int fd;
    struct account *account; /* one reference; charged once the close is late */
    unsigned ticks;          /* number of ticks since it was submitted */
};

static struct lane *lane_of(const struct work *work)
{
    return (struct lane *)(uintptr_t)work->lane;
}

/* ---- threads ---- */

/* Under the mutex. */
static bool may_run_more(const struct owner_work *pool, const struct lane *lane)
{
    return lane->n_running < OWNER_WORK_THREADS &&
           (lane->kind != COPIES || lane->n_running - lane->n_late < pool->n_copies_at_once);
}

/* Under the mutex, after the lane has changed. */
static void lane_queue(struct owner_work *pool, struct lane *lane)
{
    list_remove(&lane->link);
    if (lane->queue.first && may_run_more(pool, lane))
        list_append(lane->n_running > 0 ? &pool->served[lane->kind] : &pool->unserved[lane->kind], &lane->link);
}

/* Under the mutex: how many more threads the lanes of this kind may use for which threads work already. */
static unsigned room_of_served(const struct owner_work *pool, unsigned kind)
{
    return pool->n_running[kind] < most_running[kind] / 2 ? most_running[kind] / 2 - pool->n_running[kind] : 0;
}

/* Under the mutex. NULL: no lane may run anything now. */
static struct lane *next_lane(struct owner_work *pool)
{
    for (unsigned kind = KINDS; kind-- > 0;) {
        if (!list_empty(&pool->unserved[kind]) && pool->n_running[kind] < most_running[kind])
            return container_of(list_first(&pool->unserved[kind]), struct lane, link);
        if (!list_empty(&pool->served[kind]) && room_of_served(pool, kind) > 0)
            return container_of(list_first(&pool->served[kind]), struct lane, link);
    }
    return NULL;
}

static void run_next(struct owner_work *pool, struct thread *thread, struct lane *lane)
{
    struct work *work = work_queue_pop(&lane->queue);
    bool is_close = !work->done;

    lane->n_running++;
    pool->n_running[lane->kind]++;
    pool->n_queued--;
    lane_queue(pool, lane); /* behind the lanes of others */
    thread->work = work;
    thread->since_ns = uv_hrtime();
    pthread_mutex_unlock(&pool->mutex);
    work->run(work);
    pthread_mutex_lock(&pool->mutex);
    thread->work = NULL;
    lane->n_late -= thread->late;
    thread->late = false;
    lane->n_running--;
    pool->n_running[lane->kind]--;
    lane_queue(pool, lane);
    work_queue_push(&pool->finished, work);
    if (!is_close && !pool->stop)
        wake_send(&pool->wake); /* the tick collects descriptors */
}

static void *thread_main(void *arg)
{
    struct thread *thread = arg;
    struct owner_work *pool = thread->pool;
    bool idle_too_long = false;

    (void)pthread_setname_np(pthread_self(), "rdtd-owner");
    pthread_mutex_lock(&pool->mutex);
    while (!pool->stop && !idle_too_long) {
        struct lane *lane = next_lane(pool);
        struct timespec until;

        if (lane) {
            run_next(pool, thread, lane);
            continue;
        }
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += IDLE_S;
        pool->n_idle++;
        while (!next_lane(pool) && !pool->stop && !idle_too_long)
            if (pool->n_threads == 1)
                pthread_cond_wait(&pool->more, &pool->mutex);
            else
                idle_too_long = pthread_cond_timedwait(&pool->more, &pool->mutex, &until) != 0;
        pool->n_idle--;
        idle_too_long = idle_too_long && !next_lane(pool) && pool->n_threads > 1;
    }
    list_remove(&thread->link);
    pool->n_threads--;
    pthread_mutex_unlock(&pool->mutex);
    free(thread);
    return NULL;
}

/* Under the mutex. Returns the number of an error. After one, the next tick tries again. */
static int start_thread(struct owner_work *pool)
{
    struct thread *thread = calloc(1, sizeof *thread);
    pthread_attr_t attr;
    sigset_t all, before;
    int code;

    if (!thread)
        return ENOMEM;
    thread->pool = pool;
    list_init(&thread->link);
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    (void)sigfillset(&all);
    (void)sigdelset(&all, SIGURG);
    (void)sigdelset(&all, SIGBUS); /* sigbus_guard.h */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(&thread->id, &attr, thread_main, thread);
    if (code == 0) {
        list_append(&pool->threads, &thread->link);
        pool->n_threads++;
    } else {
        free(thread);
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    return code;
}

/* Under the mutex: starts up to n threads for the lanes in the list, less those that wait for work. */
static void add_threads_for(struct owner_work *pool, const struct list *lanes, unsigned n, unsigned *n_idle)
{
    char why[256];
    int code;

    for (const struct list *node = lanes->next; node != lanes && n > 0; node = node->next, n--)
        if (*n_idle > 0)
            --*n_idle;
        else if (pool->n_threads < MAX_THREADS && (code = start_thread(pool)) != 0) {
            (void)snprintf(why, sizeof why,
                           "no thread can be started beside %u (%s), so work and closes wait for each other: raise the "
                           "limit of threads (TasksMax=, ulimit -u)",
                           pool->n_threads, strerror(code));
            log_warn_rarely(&pool->starved, "work of users", why);
            return;
        }
}

/* Under the mutex: starts a thread for each lane with work, because the running threads may be in a close
 * that does not return. */
static void add_threads(struct owner_work *pool)
{
    unsigned n_idle = pool->n_idle;

    for (unsigned kind = 0; kind < KINDS; kind++) {
        add_threads_for(pool, &pool->unserved[kind], most_running[kind] - pool->n_running[kind], &n_idle);
        add_threads_for(pool, &pool->served[kind], room_of_served(pool, kind), &n_idle);
    }
    pthread_cond_broadcast(&pool->more);
}

/* Under the mutex, after new work. If one thread is not enough, the tick starts more. */
static void wake_one(struct owner_work *pool)
{
    if (pool->n_idle > 0)
        pthread_cond_signal(&pool->more);
}

/* The signal ends the wait for the peer of a lingering socket. It does not interrupt the freeing of pages. */
static void on_signal(int number) {}

/* Under the mutex: interrupts closes, and lets other copies of the person run beside those that may be held up. */
static void look_for_late(struct owner_work *pool)
{
    uint64_t now = uv_hrtime();

    list_each (struct thread, thread, &pool->threads, link) {
        if (!thread->work || now - thread->since_ns < OWNER_WORK_TICK_MS * 1000000ull)
            continue;
        if (!thread->work->done) {
            (void)pthread_kill(thread->id, SIGURG);
        } else if (lane_of(thread->work)->kind == COPIES && !thread->late) {
            thread->late = true;
            lane_of(thread->work)->n_late++;
            lane_queue(pool, lane_of(thread->work));
        }
    }
}

/* ---- on the loop ---- */

static void lane_init(struct lane *lane, enum kind kind)
{
    list_init(&lane->link);
    work_queue_init(&lane->queue);
    lane->kind = kind;
}

static uint64_t lane_key(const struct account *person, enum kind kind)
{
    _Static_assert(KINDS <= _Alignof(struct account), "the kind fits into the low bits of the address");
    return (uint64_t)(uintptr_t)person + kind;
}

static void lane_item_ended(struct owner_work *pool, struct lane *lane)
{
    if (--lane->n_items > 0 || lane == &pool->common[lane->kind])
        return;
    (void)map_remove_u64(&pool->lanes, lane_key(lane->account, lane->kind));
    account_unref(lane->account);
    free(lane);
}

static void reserve_put(struct owner_work *pool, struct descriptor *descriptor)
{
    if (pool->n_reserve == RESERVE) {
        free(descriptor);
        return;
    }
    pool->n_reserve++;
    list_append(&pool->reserve, &descriptor->link);
}

/* NULL: out of memory, and the reserve is used up. */
static struct descriptor *descriptor_new(struct owner_work *pool)
{
    struct descriptor *descriptor = malloc(sizeof *descriptor);

    if (!descriptor && pool->n_reserve > 0) {
        pool->n_reserve--;
        descriptor = container_of(list_first(&pool->reserve), struct descriptor, link);
        list_remove(&descriptor->link);
    }
    return descriptor;
}

static void finish_descriptor(struct owner_work *pool, struct work *work)
{
    struct descriptor *descriptor = container_of(work, struct descriptor, work);
    struct lane *lane = lane_of(work);

    list_remove(&descriptor->link);
    account_give(descriptor->account, USAGE_FDS, descriptor->ticks >= LATE_TICKS);
    account_unref(descriptor->account);
    reserve_put(pool, descriptor);
    pool->n_descriptors--;
    lane_item_ended(pool, lane);
}

static void finish_work(struct owner_work *pool, struct work *work)
{
    struct lane *lane = lane_of(work);

    *(work->again ? &pool->n_works : &pool->n_optional) -= 1;
    work->again = false;
    work->done(work);
    lane_item_ended(pool, lane);
}

static void tell_no_works(struct owner_work *pool)
{
    void (*on_none)(void *arg) = pool->await.on_none;

    if (!on_none || pool->n_works > 0)
        return;
    pool->await.on_none = NULL;
    on_none(pool->await.arg);
}

static void collect(struct owner_work *pool)
{
    struct work *work;
    bool some = false;

    do {
        pthread_mutex_lock(&pool->mutex);
        work = work_queue_pop(&pool->finished);
        pthread_mutex_unlock(&pool->mutex);
        some = some || work;
        if (work && work->done)
            finish_work(pool, work);
        else if (work)
            finish_descriptor(pool, work);
    } while (work);
    if (some && pool->on_ended_some)
        pool->on_ended_some(pool->watch_arg);
    tell_no_works(pool);
}

/* A pool that a blocked thread still used when the daemon ended. It ends with the process; a leak checker finds it here. */
static struct owner_work *volatile used_to_the_end;

static void on_all_closed(struct wake *wake)
{
    struct owner_work *pool = container_of(wake, struct owner_work, wake);
    void (*on_closed)(void *arg) = pool->on_closed;
    void *arg = pool->arg;
    bool last;

    map_fini(&pool->lanes);
    list_drain (struct descriptor, descriptor, &pool->reserve, link) {
        list_remove(&descriptor->link);
        free(descriptor);
    }
    pthread_mutex_lock(&pool->mutex);
    last = pool->n_threads == 0;
    pthread_mutex_unlock(&pool->mutex);
    if (last) {
        pthread_mutex_destroy(&pool->mutex);
        pthread_cond_destroy(&pool->more);
        free(pool);
    } else {
        used_to_the_end = pool;
    }
    if (on_closed)
        on_closed(arg);
}

static void on_tick_closed(uv_handle_t *handle)
{
    struct owner_work *pool = handle->data;

    wake_close(&pool->wake, on_all_closed);
}

/* The end: first the queued work, then the threads. Work that must end is waited for without a limit,
 * since plug-ins free memory there. */
static void end_step(struct owner_work *pool)
{
    bool late = ++pool->n_ticks > END_TICKS, gone;

    if (pool->n_works > 0 || (pool->n_descriptors + pool->n_optional > 0 && !late))
        return;
    pthread_mutex_lock(&pool->mutex);
    if (!pool->stop && pool->n_descriptors > 0)
        log_warn("%u descriptors of clients are still being closed: the process ends without waiting for them",
                 pool->n_descriptors);
    pool->stop = true;
    pthread_cond_broadcast(&pool->more);
    gone = pool->n_threads == 0;
    pthread_mutex_unlock(&pool->mutex);
    if (gone || late)
        uv_close((uv_handle_t *)&pool->tick, on_tick_closed);
}

static void charge_late(struct owner_work *pool)
{
    list_each (struct descriptor, descriptor, &pool->open, link)
        if (descriptor->ticks < LATE_TICKS && ++descriptor->ticks == LATE_TICKS)
            account_add(descriptor->account, USAGE_FDS, 1);
}

static void on_tick(uv_timer_t *tick)
{
    struct owner_work *pool = tick->data;

    collect(pool);
    charge_late(pool);
    pthread_mutex_lock(&pool->mutex);
    look_for_late(pool);
    add_threads(pool);
    pthread_mutex_unlock(&pool->mutex);
    if (pool->closing)
        end_step(pool);
    else if (owner_work_pending(pool) == 0)
        (void)uv_timer_stop(tick);
}

static void on_wake(struct wake *wake)
{
    collect(container_of(wake, struct owner_work, wake));
}

enum rdt_status owner_work_create(uv_loop_t *loop, unsigned n_copies_at_once, struct owner_work **pool_p, struct rdt_error *err)
{
    struct owner_work *pool = calloc(1, sizeof *pool);
    struct sigaction action = {.sa_handler = on_signal};
    pthread_condattr_t attr;
    enum rdt_status status;
    int code;

    if (!pool)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the threads of owners");
    status = wake_init(&pool->wake, loop, on_wake, "the work of owners", err);
    if (status != RDT_OK) {
        free(pool);
        return status;
    }
    (void)uv_timer_init(loop, &pool->tick);
    pool->tick.data = pool;
    list_init(&pool->open);
    list_init(&pool->reserve);
    for (unsigned i = 0; i < RESERVE; i++) {
        struct descriptor *descriptor = malloc(sizeof *descriptor);
        if (!descriptor)
            break;
        list_init(&descriptor->link);
        reserve_put(pool, descriptor);
    }
    list_init(&pool->threads);
    work_queue_init(&pool->finished);
    map_init(&pool->lanes);
    for (unsigned kind = 0; kind < KINDS; kind++) {
        list_init(&pool->unserved[kind]);
        list_init(&pool->served[kind]);
        lane_init(&pool->common[kind], (enum kind)kind);
    }
    pthread_mutex_init(&pool->mutex, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&pool->more, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)sigaction(SIGURG, &action, NULL);
    pool->n_copies_at_once = n_copies_at_once;
    pool->starved.every_ns = UINT64_C(1000000000);
    pthread_mutex_lock(&pool->mutex);
    code = start_thread(pool);
    pthread_mutex_unlock(&pool->mutex);
    if (code != 0) {
        owner_work_close(pool, NULL, NULL);
        return rdt_error_sys(err, code, "cannot start a thread for the work of owners");
    }
    *pool_p = pool;
    return RDT_OK;
}

void owner_work_watch(struct owner_work *pool, void (*on_ended_some)(void *arg), void *arg)
{
    pool->on_ended_some = on_ended_some;
    pool->watch_arg = arg;
}

static struct lane *lane_get(struct owner_work *pool, struct account *account, enum kind kind)
{
    struct account *person = account_person(account);
    struct lane *lane = map_get_u64(&pool->lanes, lane_key(person, kind));

    if (lane)
        return lane;
    lane = calloc(1, sizeof *lane);
    if (!lane || !map_put_u64(&pool->lanes, lane_key(person, kind), lane)) {
        free(lane);
        return &pool->common[kind];
    }
    lane_init(lane, kind);
    lane->account = account_ref(person);
    return lane;
}

static void submit(struct owner_work *pool, struct lane *lane, struct work *work)
{
    lane->n_items++;
    work->lane = (uint64_t)(uintptr_t)lane;
    pthread_mutex_lock(&pool->mutex);
    work_queue_push(&lane->queue, work);
    pool->n_queued++;
    if (list_empty(&lane->link))
        lane_queue(pool, lane);
    if (work->done || pool->n_queued >= WAKE_AT)
        wake_one(pool); /* otherwise the tick wakes a thread for everything that has been queued until then */
    pthread_mutex_unlock(&pool->mutex);
    if (!uv_is_active((uv_handle_t *)&pool->tick))
        (void)uv_timer_start(&pool->tick, on_tick, OWNER_WORK_TICK_MS / 4, OWNER_WORK_TICK_MS);
}

static void run_close(struct work *work)
{
    (void)close(container_of(work, struct descriptor, work)->fd);
}

static void close_as(struct owner_work *pool, int take_fd, struct account *account, enum kind kind)
{
    struct descriptor *descriptor = descriptor_new(pool);
    struct lane *lane;

    if (!descriptor) {
        account_add(account, USAGE_FDS, 1);
        log_error("out of memory: descriptor %d of uid %u stays open until rdtd ends", take_fd, account->owner.uid);
        return;
    }
    *descriptor = (struct descriptor){.work.run = run_close, .fd = take_fd, .account = account_ref(account)};
    list_init(&descriptor->link);
    list_append(&pool->open, &descriptor->link);
    lane = lane_get(pool, account, kind);
    pool->n_descriptors++;
    submit(pool, lane, &descriptor->work);
}

/* The kernel knows the seals of memfds only, and asks no file system for them. Closing a memfd frees pages, and waits for
 * nobody. */
void owner_work_close_fd(struct owner_work *pool, int take_fd, struct account *account)
{
    close_as(pool, take_fd, account, !account->parent || fcntl(take_fd, F_GET_SEALS) >= 0 ? SURE : CLOSES);
}

void owner_work_close_socket(struct owner_work *pool, int take_sock, struct account *account)
{
    int unread = 0;
    bool empty = shutdown(take_sock, SHUT_RDWR) == 0 && ioctl(take_sock, FIONREAD, &unread) == 0 && unread == 0;

    close_as(pool, take_sock, account, empty ? SURE : CLOSES);
}

/* work->again has no meaning in these two and stores must_end. */
void owner_work_submit(struct owner_work *pool, struct work *work, struct account *account, bool must_end)
{
    assert(work->done);
    work->again = must_end;
    *(must_end ? &pool->n_works : &pool->n_optional) += 1;
    submit(pool, account ? lane_get(pool, account, WORKS) : &pool->common[SURE], work);
}

void owner_work_submit_copy(struct owner_work *pool, struct work *work, struct account *account)
{
    assert(work->done);
    work->again = true;
    pool->n_works++;
    submit(pool, lane_get(pool, account, COPIES), work);
}

bool owner_work_is_behind(const struct owner_work *pool, struct account *account)
{
    unsigned n = 0;

    if (owner_work_pending(pool) < OWNER_WORK_MAX)
        return false;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        const struct lane *lane = map_get_u64(&pool->lanes, lane_key(account_person(account), (enum kind)kind));
        n += lane ? lane->n_items : 0;
    }
    return n >= OWNER_WORK_MAX;
}

void owner_work_await_works(struct owner_work *pool, void (*on_none)(void *arg), void *arg)
{
    assert(!pool->await.on_none);
    pool->await.on_none = on_none;
    pool->await.arg = arg;
    tell_no_works(pool);
}

unsigned owner_work_pending(const struct owner_work *pool)
{
    return pool->n_descriptors + pool->n_works + pool->n_optional;
}

void owner_work_close(struct owner_work *pool, void (*on_closed)(void *arg), void *arg)
{
    pool->on_closed = on_closed;
    pool->arg = arg;
    pool->closing = true;
    (void)uv_timer_start(&pool->tick, on_tick, 0, OWNER_WORK_TICK_MS);
}
