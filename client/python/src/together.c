/* A list of arrays or refs that goes lets go of each for itself, and each message would wake the daemon. So a connection that gives back one
 * thing right after another is corked (rdt_cork) until, whatever is first,
 *
 *   - the interpreter's main thread is between two instructions: of what one of its own drops at once that is right behind it;
 *   - a millisecond has passed: for other threads, and where no instruction follows for long, as in a call that blocks. A thread of this
 *     module sees to that. It sleeps while nothing is corked, touches nothing of Python's, and begins with the first connection that is;
 *   - librdt has something to ask the daemon for.
 */
#include "rdtpy.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#define CLOSE_NS 100000 /* between two that belong together, at most */
#define MOST_NS 1000000 /* that they are kept */

/* The lock is for all below, and for the corks themselves; librdt's is taken within. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t corked = PTHREAD_COND_INITIALIZER;
static struct conn *first; /* by ->corked; not owned: together_leave */
static bool begun;         /* the thread */
static bool awake;         /* it looks within a millisecond */
static bool asked;         /* the interpreter, to call when_between */

static void uncork_all(void)
{
    for (struct conn *conn = first; conn; conn = conn->corked) {
        rdt_uncork(conn->rdt);
        conn->is_corked = false;
    }
    first = NULL;
}

static int when_between(void *ignored)
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
    const struct timespec most = {.tv_nsec = MOST_NS};

    (void)pthread_mutex_lock(&lock);
    for (;;) {
        while (!awake)
            (void)pthread_cond_wait(&corked, &lock);
        (void)pthread_mutex_unlock(&lock);
        (void)nanosleep(&most, NULL);
        (void)pthread_mutex_lock(&lock);
        uncork_all();
        awake = false;
    }
    return ignored;
}

/* ---- a fork ---- */

static void before_fork(void)
{
    (void)pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    (void)pthread_mutex_unlock(&lock);
}

/* The connections are the parent's, and so is the thread. */
static void in_child(void)
{
    for (struct conn *conn = first; conn; conn = conn->corked)
        conn->is_corked = false;
    first = NULL;
    begun = awake = asked = false;
    (void)pthread_cond_init(&corked, NULL);
    (void)pthread_mutex_unlock(&lock);
}

/* ---- */

static bool begin(void)
{
    static bool watches_forks;
    sigset_t all, before;
    pthread_t thread;

    if (begun)
        return true;
    if (!watches_forks && pthread_atfork(before_fork, after_fork, in_child) != 0)
        return false;
    watches_forks = true;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for Python's threads */
    begun = pthread_create(&thread, NULL, run, NULL) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (begun)
        (void)pthread_detach(thread);
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
    if (!awake)
        (void)pthread_cond_signal(&corked);
    awake = true;
    ask = !asked;
    asked = true;
    (void)pthread_mutex_unlock(&lock);
    if (ask && Py_AddPendingCall(when_between, NULL) != 0) { /* too many have asked: the thread does it */
        (void)pthread_mutex_lock(&lock);
        asked = false;
        (void)pthread_mutex_unlock(&lock);
    }
}

void together(struct conn *conn)
{
    struct timespec now;
    int64_t now_ns;

    if (!conn->rdt)
        return;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    now_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    if (now_ns - conn->gave_back_ns < CLOSE_NS)
        cork(conn);
    conn->gave_back_ns = now_ns;
}

void together_leave(struct conn *conn)
{
    (void)pthread_mutex_lock(&lock);
    for (struct conn **at = &first; *at; at = &(*at)->corked) {
        if (*at != conn)
            continue;
        *at = conn->corked;
        conn->is_corked = false;
        rdt_uncork(conn->rdt);
        break;
    }
    (void)pthread_mutex_unlock(&lock);
}
