/* A list of arrays or refs that goes lets go of each for itself, and each message would wake the daemon. So a connection that gives back one
 * thing right after another in the main thread is corked (rdt_cork) until, whatever is first,
 *
 *   - the interpreter looks for signals in the main thread: behind its next call, or turn of a loop;
 *   - a millisecond has passed, where neither follows, as in a call of C that blocks. A thread of this module sees to that. It sleeps while
 *     nothing is corked, calls nothing of Python's, begins with the first connection that is, and ends before a fork, which is one of a process
 *     with one thread less;
 *   - this connection is asked for anything that goes to the daemon, or another one is.
 *
 * In other threads nothing is corked: the interpreter calls nobody there.
 */
#include "rdtpy.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CLOSE_NS 100000 /* between two that belong together, at most */
#define MOST_NS 1000000 /* that they are kept */

/* The lock is for all below, and for the corks themselves; librdt's is taken within. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed; /* by CLOCK_MONOTONIC */
static struct conn *first; /* by ->corked; not owned: together_end */
static atomic_bool any;    /* there is one; also read without the lock */
static pthread_t thread;   /* if begun */
static bool begun, ends;
static bool awake;         /* it looks within a millisecond */
static bool asked;         /* the interpreter, to call when_it_looks */

static void uncork_all(void)
{
    for (struct conn *conn = first; conn; conn = conn->corked) {
        rdt_uncork(conn->rdt);
        conn->is_corked = false;
    }
    first = NULL;
    any = false;
}

static int when_it_looks(void *ignored)
{
    (void)ignored;
    (void)pthread_mutex_lock(&lock);
    asked = false;
    uncork_all();
    (void)pthread_mutex_unlock(&lock);
    return 0;
}

static void *run(void *ignored)
{
    (void)pthread_mutex_lock(&lock);
    while (!ends) {
        struct timespec until;

        if (!awake) {
            (void)pthread_cond_wait(&changed, &lock);
            continue;
        }
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += MOST_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        while (!ends && pthread_cond_timedwait(&changed, &lock, &until) == 0)
            ;
        uncork_all();
        awake = asked = false; /* an interpreter that was ended has forgotten it */
    }
    (void)pthread_mutex_unlock(&lock);
    return ignored;
}

/* ---- a fork ---- */

/* The thread's end is waited for without the lock; meanwhile nobody begins another, for `begun` stays. */
static void before_fork(void)
{
    (void)pthread_mutex_lock(&lock);
    uncork_all();
    if (begun && !ends) {
        ends = true;
        (void)pthread_cond_broadcast(&changed);
        (void)pthread_mutex_unlock(&lock);
        (void)pthread_join(thread, NULL);
        (void)pthread_mutex_lock(&lock);
        begun = ends = awake = false;
    }
}

static void after_fork(void)
{
    (void)pthread_mutex_unlock(&lock);
}

static bool make_condition(void)
{
    pthread_condattr_t attr;
    bool made;

    if (pthread_condattr_init(&attr) != 0)
        return false;
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    made = pthread_cond_init(&changed, &attr) == 0;
    (void)pthread_condattr_destroy(&attr);
    return made;
}

/* The thread is the parent's, if another fork crossed this one, and so is who waits for its condition. */
static void in_child(void)
{
    begun = ends = awake = asked = false;
    (void)make_condition();
    (void)pthread_mutex_unlock(&lock);
}

bool together_init(void)
{
    static bool done; /* the module may be made again */

    if (!done)
        done = make_condition() && pthread_atfork(before_fork, after_fork, in_child) == 0;
    return done;
}

/* ---- */

static bool begin(void)
{
    sigset_t all, before;

    if (begun)
        return !ends;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for Python's threads */
    begun = pthread_create(&thread, NULL, run, NULL) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return begun;
}

static void cork(struct conn *conn)
{
    bool ask;

    (void)pthread_mutex_lock(&lock);
    if (conn->is_corked || !begin()) {
        (void)pthread_mutex_unlock(&lock);
        return;
    }
    rdt_cork(conn->rdt);
    conn->is_corked = true;
    conn->corked = first;
    first = conn;
    any = true;
    if (!awake)
        (void)pthread_cond_broadcast(&changed);
    awake = true;
    ask = !asked;
    asked = true;
    (void)pthread_mutex_unlock(&lock);
    if (ask && Py_AddPendingCall(when_it_looks, NULL) != 0) { /* too many have asked: the thread does it */
        (void)pthread_mutex_lock(&lock);
        asked = false;
        (void)pthread_mutex_unlock(&lock);
    }
}

void together(struct conn *conn)
{
    struct timespec now;
    int64_t now_ns;
    pid_t pid = getpid();

    if (!conn->rdt || conn->pid != pid)
        return;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    now_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    if (now_ns - conn->gave_back_ns < CLOSE_NS && syscall(SYS_gettid) == pid)
        cork(conn);
    conn->gave_back_ns = now_ns;
}

void together_end(struct conn *conn)
{
    if (!any)
        return;
    (void)pthread_mutex_lock(&lock);
    for (struct conn **at = &first; *at; at = &(*at)->corked) {
        if (*at != conn)
            continue;
        *at = conn->corked;
        conn->is_corked = false;
        any = first;
        rdt_uncork(conn->rdt);
        break;
    }
    (void)pthread_mutex_unlock(&lock);
}

void together_end_others(const struct conn *conn)
{
    if (!any)
        return;
    (void)pthread_mutex_lock(&lock);
    if (first && (first != conn || first->corked))
        uncork_all();
    (void)pthread_mutex_unlock(&lock);
}
