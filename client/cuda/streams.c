/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h. When a stream comes to a completion, the driver calls back in a thread of its own, which may neither call CUDA
 * nor wait for a lock. The callback therefore only puts the completion on a list, and the notifier, a thread of this library,
 * tells the daemon.
 */
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>

#include "client/cuda/gpu.h"

struct completion {
    struct notifier *notifier;
    struct completion *next;
    struct rdt_ref ref;
    bool has_ref;
    CUresult result;
    void **buffers; /* the stream copies into them, so they stay mapped until it has */
    size_t n_buffers;
};

struct notifier { /* lives until the last callback has returned, which may be after its connection's handle */
    rdt *conn;
    struct cuda_driver *driver;
    _Atomic(struct completion *) reached; /* completions that streams have come to, the latest first */
    sem_t some;
    atomic_uint refs; /* the handle's, and one for each callback that has not returned */
    atomic_bool end;
    sem_t copied;        /* posted once for each completion with buffers that a stream has come to */
    atomic_uint copying; /* how many such completions were enqueued */
    pthread_t thread;
};

void completion_destroy(struct completion *completion)
{
    if (completion)
        free(completion->buffers);
    free(completion);
}

/* Takes all completions off the list and returns them with the oldest first. */
static struct completion *take_reached(struct notifier *notifier)
{
    struct completion *latest = atomic_exchange(&notifier->reached, NULL), *first = NULL;

    while (latest) {
        struct completion *next = latest->next;
        latest->next = first;
        first = latest;
        latest = next;
    }
    return first;
}

/* The last reference also frees the completions that no thread has taken. */
static void notifier_unref(struct notifier *notifier)
{
    if (atomic_fetch_sub(&notifier->refs, 1) != 1)
        return;
    for (struct completion *completion = take_reached(notifier), *next; completion; completion = next) {
        next = completion->next;
        completion_destroy(completion);
    }
    (void)sem_destroy(&notifier->some);
    (void)sem_destroy(&notifier->copied);
    free(notifier);
}

/* ---- the thread ---- */

static void notify_daemon(struct notifier *notifier, const struct completion *completion)
{
    struct rdt_error err;

    if (completion->has_ref && completion->result == CUDA_SUCCESS) {
        (void)rdt_ready(notifier->conn, &completion->ref, NULL);
    } else if (completion->has_ref) {
        (void)cuda_failed(notifier->driver, completion->result, &err,
                          "the producer's stream failed before the bytes were there");
        (void)rdt_fail(notifier->conn, &completion->ref, RDT_SYSTEM, err.msg, NULL);
    }
    for (size_t i = 0; i < completion->n_buffers; i++)
        (void)rdt_dealloc_soon(notifier->conn, completion->buffers[i], NULL);
}

static void *run(void *arg)
{
    struct notifier *notifier = arg;
    bool end;

    do {
        while (sem_wait(&notifier->some) && errno == EINTR)
            ;
        end = atomic_load(&notifier->end); /* read before the list, so that the daemon hears of all that came before the end */
        for (struct completion *completion = take_reached(notifier), *next; completion; completion = next) {
            next = completion->next;
            notify_daemon(notifier, completion);
            completion_destroy(completion);
        }
    } while (!end);
    return NULL;
}

/* Starts the notifier with the first completion of the connection. It blocks all signals, which are the program's. */
static enum rdt_status get_notifier(struct streams *streams, struct notifier **notifier_p, struct rdt_error *err)
{
    sigset_t all, before;
    struct notifier *notifier;
    int error = 0;

    (void)pthread_mutex_lock(&streams->mutex);
    if (!streams->notifier && (notifier = calloc(1, sizeof *notifier)) != NULL) {
        notifier->conn = streams->conn;
        notifier->driver = streams->driver;
        atomic_init(&notifier->refs, 1);
        (void)sem_init(&notifier->some, 0, 0);
        (void)sem_init(&notifier->copied, 0, 0);
        (void)sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &before);
        error = pthread_create(&notifier->thread, NULL, run, notifier);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (error)
            notifier_unref(notifier);
        else
            streams->notifier = notifier;
    }
    *notifier_p = streams->notifier;
    (void)pthread_mutex_unlock(&streams->mutex);
    return *notifier_p ? RDT_OK : rdt_error_sys(err, error ? error : ENOMEM, "starting a thread that waits for streams");
}

void streams_init(struct streams *streams, rdt *conn, struct cuda_driver *driver)
{
    *streams = (struct streams){.conn = conn, .driver = driver};
    (void)pthread_mutex_init(&streams->mutex, NULL);
}

void streams_fini(struct streams *streams)
{
    struct notifier *notifier = streams->notifier;

    if (notifier) {
        for (unsigned n = atomic_load(&notifier->copying); n > 0; n--) /* rdt_close unmaps the buffers next */
            while (sem_wait(&notifier->copied) && errno == EINTR)
                ;
        atomic_store(&notifier->end, true);
        (void)sem_post(&notifier->some);
        (void)pthread_join(notifier->thread, NULL);
        notifier_unref(notifier);
    }
    (void)pthread_mutex_destroy(&streams->mutex);
}

/* ---- completions ---- */

enum rdt_status completion_create(struct streams *streams, struct completion **completion_p, struct rdt_error *err)
{
    struct completion *completion = calloc(1, sizeof *completion);
    enum rdt_status status = completion ? get_notifier(streams, &completion->notifier, err)
                                        : rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for a stream");

    if (status == RDT_OK)
        *completion_p = completion;
    else
        free(completion);
    return status;
}

/* The notifier may free the completion as soon as it is on the list; the notifier itself stays until this function returns. */
static void CUDA_CB on_stream(CUstream stream, CUresult result, void *arg)
{
    struct completion *completion = arg;
    struct notifier *notifier = completion->notifier;
    bool copied = completion->n_buffers > 0;

    (void)stream;
    completion->result = result;
    completion->next = atomic_load(&notifier->reached);
    while (!atomic_compare_exchange_weak(&notifier->reached, &completion->next, completion))
        ;
    (void)sem_post(&notifier->some);
    if (copied)
        (void)sem_post(&notifier->copied);
    notifier_unref(notifier);
}

enum rdt_status completion_enqueue(struct completion *take_completion, CUstream stream, const struct rdt_ref *ref,
                                   void **take_buffers, size_t n_buffers, struct rdt_error *err)
{
    struct notifier *notifier = take_completion->notifier;
    CUresult result;

    take_completion->has_ref = ref;
    if (ref)
        take_completion->ref = *ref;
    take_completion->buffers = take_buffers;
    take_completion->n_buffers = n_buffers;
    atomic_fetch_add(&notifier->refs, 1);
    atomic_fetch_add(&notifier->copying, n_buffers > 0);
    result = notifier->driver->cuStreamAddCallback(stream, on_stream, take_completion, 0);
    if (result == CUDA_SUCCESS)
        return RDT_OK;
    atomic_fetch_sub(&notifier->copying, n_buffers > 0);
    take_completion->buffers = NULL;
    completion_destroy(take_completion);
    notifier_unref(notifier);
    return cuda_failed(notifier->driver, result, err, "waiting for a stream");
}
