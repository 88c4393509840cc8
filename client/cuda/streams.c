/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h. A completion is events, one recorded in each stream that it waits for. The notifier, a thread of this library,
 * asks the driver whether they have occurred, and then acts. There is no callback in the caller's streams: a stream stands
 * still while its callback waits for a processor. The notifier asks every 20 us at first, and every millisecond at last.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "client/cuda/gpu.h"

#define POLL_MIN_NS 20000
#define POLL_MAX_NS 1000000

#define MAX_MARKS (CUDA_MAX_GPUS > COMPLETION_MAX_STREAMS ? CUDA_MAX_GPUS : COMPLETION_MAX_STREAMS)

struct mark { /* in one stream */
    CUcontext context;
    CUevent event;
};

struct completion {
    struct notifier *notifier;
    struct completion *next;
    struct rdt_ref ref;
    bool has_ref;
    struct mark marks[MAX_MARKS];
    unsigned n_marks;
    void **buffers; /* the stream copies into them, so they stay mapped until it has */
    size_t n_buffers;
    void (*then)(void *arg);
    void *arg;
};

struct notifier {
    rdt *conn;
    struct cuda_driver *driver;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t more;
    struct completion *added; /* since the thread looked last */
    bool end;
};

static void forget_marks(struct completion *completion)
{
    for (unsigned i = 0; i < completion->n_marks; i++)
        (void)completion->notifier->driver->cuEventDestroy(completion->marks[i].event);
    completion->n_marks = 0;
}

void completion_destroy(struct completion *completion)
{
    if (!completion)
        return;
    forget_marks(completion);
    free(completion->buffers);
    free(completion);
}

/* ---- the thread ---- */

/* Returns NOT_READY, SUCCESS, or the error of a stream. */
static CUresult query(const struct completion *completion)
{
    const struct cuda_driver *driver = completion->notifier->driver;
    CUresult result = CUDA_SUCCESS;

    for (unsigned i = 0; result == CUDA_SUCCESS && i < completion->n_marks; i++) {
        result = driver->cuCtxSetCurrent(completion->marks[i].context);
        if (result == CUDA_SUCCESS)
            result = driver->cuEventQuery(completion->marks[i].event);
    }
    return result;
}

static void act(const struct completion *completion, CUresult result)
{
    struct notifier *notifier = completion->notifier;
    struct rdt_error err;

    /* The daemon reads this before the object can be read: the library has given up writing its memory by then. */
    for (size_t i = 0; i < completion->n_buffers; i++)
        buffer_release(notifier->conn, completion->buffers[i]);
    if (completion->has_ref && result == CUDA_SUCCESS) {
        (void)rdt_ready(notifier->conn, &completion->ref, NULL);
    } else if (completion->has_ref) {
        (void)cuda_failed(notifier->driver, result, &err, "the producer's stream failed before the bytes were there");
        (void)rdt_fail(notifier->conn, &completion->ref, RDT_SYSTEM, err.msg, NULL);
    }
    if (completion->then)
        completion->then(completion->arg);
}

/* Acts on what has come. Returns whether there was any. */
static bool check_all(struct completion **first)
{
    bool any = false;

    for (struct completion **at = first; *at;) {
        struct completion *completion = *at;
        CUresult result = query(completion);
        if (result == CUDA_ERROR_NOT_READY) {
            at = &completion->next;
            continue;
        }
        *at = completion->next;
        act(completion, result);
        completion_destroy(completion);
        any = true;
    }
    return any;
}

/* After the end only completions whose memory a stream still uses are waited for. */
static void drop_harmless(struct completion **first)
{
    for (struct completion **at = first; *at;) {
        struct completion *completion = *at;
        if (completion->n_buffers > 0 || completion->then) {
            at = &completion->next;
            continue;
        }
        *at = completion->next;
        completion_destroy(completion);
    }
}

/* Waits for new completions, until the time has passed if some are waiting. Appends the new ones. Returns whether the end has
 * come. */
static bool take_added(struct notifier *notifier, struct completion **first, int64_t *poll_ns)
{
    struct timespec until = clock_timespec(clock_now_ns() + *poll_ns);
    int over = 0;
    bool end;

    (void)pthread_mutex_lock(&notifier->mutex);
    while (!notifier->added && !notifier->end && !*first)
        (void)pthread_cond_wait(&notifier->more, &notifier->mutex);
    while (!notifier->added && over == 0)
        over = pthread_cond_timedwait(&notifier->more, &notifier->mutex, &until);
    if (notifier->added)
        *poll_ns = POLL_MIN_NS;
    while (*first)
        first = &(*first)->next;
    *first = notifier->added;
    notifier->added = NULL;
    end = notifier->end;
    (void)pthread_mutex_unlock(&notifier->mutex);
    return end;
}

static void *run(void *arg)
{
    struct notifier *notifier = arg;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    struct completion *first = NULL;
    int64_t poll_ns = POLL_MIN_NS;
    bool end = false;

    (void)notifier->driver->cuThreadExchangeStreamCaptureMode(&mode);
    while (!end || first) {
        end = take_added(notifier, &first, &poll_ns);
        if (check_all(&first))
            poll_ns = POLL_MIN_NS;
        else if (poll_ns < POLL_MAX_NS)
            poll_ns += poll_ns / 2;
        if (end)
            drop_harmless(&first);
    }
    (void)notifier->driver->cuCtxSetCurrent(NULL);
    return NULL;
}

static void notifier_free(struct notifier *notifier)
{
    (void)pthread_cond_destroy(&notifier->more);
    (void)pthread_mutex_destroy(&notifier->mutex);
    free(notifier);
}

/* Starts the notifier with the first completion of the connection. It blocks all signals, which are the program's. */
static enum rdt_status get_notifier(struct streams *streams, struct notifier **notifier_p, struct rdt_error *err)
{
    pthread_condattr_t monotonic;
    sigset_t all, before;
    struct notifier *notifier;
    int error = 0;

    (void)pthread_mutex_lock(&streams->mutex);
    if (!streams->notifier && (notifier = calloc(1, sizeof *notifier)) != NULL) {
        notifier->conn = streams->conn;
        notifier->driver = streams->driver;
        (void)pthread_mutex_init(&notifier->mutex, NULL);
        (void)pthread_condattr_init(&monotonic);
        (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        (void)pthread_cond_init(&notifier->more, &monotonic);
        (void)pthread_condattr_destroy(&monotonic);
        (void)sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, &before);
        error = pthread_create(&notifier->thread, NULL, run, notifier);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (error)
            notifier_free(notifier);
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
        (void)pthread_mutex_lock(&notifier->mutex);
        notifier->end = true;
        (void)pthread_cond_signal(&notifier->more);
        (void)pthread_mutex_unlock(&notifier->mutex);
        (void)pthread_join(notifier->thread, NULL);
        notifier_free(notifier);
    }
    (void)pthread_mutex_destroy(&streams->mutex);
}

/* The mutexes and the condition stay as they are: the parent's threads may have held them, or slept there. */
void streams_forget(struct streams *streams)
{
    free(streams->notifier);
}

/* ---- completions ---- */

/* An event in the context that is current. */
static CUresult add_mark(struct completion *completion)
{
    const struct cuda_driver *driver = completion->notifier->driver;
    struct mark *mark = &completion->marks[completion->n_marks];
    CUresult result = driver->cuCtxGetCurrent(&mark->context);

    if (result == CUDA_SUCCESS)
        result = driver->cuEventCreate(&mark->event, CU_EVENT_DISABLE_TIMING);
    completion->n_marks += result == CUDA_SUCCESS;
    return result;
}

enum rdt_status completion_create(struct streams *streams, unsigned n_streams, struct completion **completion_p,
                                  struct rdt_error *err)
{
    struct completion *completion = calloc(1, sizeof *completion);
    CUresult result = CUDA_SUCCESS;
    enum rdt_status status = completion ? get_notifier(streams, &completion->notifier, err)
                                        : rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for a stream");

    while (status == RDT_OK && result == CUDA_SUCCESS && completion->n_marks < n_streams)
        result = add_mark(completion);
    if (result != CUDA_SUCCESS)
        status = cuda_failed(streams->driver, result, err, "creating an event to wait for a stream");
    if (status == RDT_OK)
        *completion_p = completion;
    else if (completion && completion->notifier)
        completion_destroy(completion);
    else
        free(completion);
    return status;
}

enum rdt_status completion_add_gpu(struct completion *completion, struct rdt_error *err)
{
    CUresult result = completion->n_marks < MAX_MARKS ? add_mark(completion) : CUDA_ERROR_INVALID_VALUE;

    return result == CUDA_SUCCESS
               ? RDT_OK
               : cuda_failed(completion->notifier->driver, result, err, "creating an event to wait for a stream");
}

bool stream_is_default(CUstream stream)
{
    return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

static enum rdt_status refuse_captured(struct rdt_error *err)
{
    return rdt_error_set(err, RDT_INVALID, "the stream is being captured into a CUDA graph: call this before or after that");
}

/* Records each event in the stream of its context, and ends in the first one. CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: nothing was
 * recorded in the context where that would spoil a capture. */
static CUresult record_marks(const struct completion *completion, CUstream stream)
{
    const struct cuda_driver *driver = completion->notifier->driver;
    CUresult result = CUDA_SUCCESS;

    for (unsigned i = completion->n_marks; result == CUDA_SUCCESS && i-- > 0;) {
        if (completion->n_marks > 1)
            result = driver->cuCtxSetCurrent(completion->marks[i].context);
        if (result == CUDA_SUCCESS && stream_is_default(stream) && stream_is_captured(driver, stream))
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        if (result == CUDA_SUCCESS)
            result = driver->cuEventRecord(completion->marks[i].event, stream);
    }
    return result;
}

/* Hands the completion over to the notifier. */
static void add(struct completion *completion)
{
    struct notifier *notifier = completion->notifier;

    (void)pthread_mutex_lock(&notifier->mutex);
    completion->next = notifier->added;
    notifier->added = completion;
    (void)pthread_cond_signal(&notifier->more);
    (void)pthread_mutex_unlock(&notifier->mutex);
}

enum rdt_status completion_enqueue(struct completion *take_completion, CUstream stream, const struct rdt_ref *ref,
                                   void **take_buffers, size_t n_buffers, struct rdt_error *err)
{
    struct cuda_driver *driver = take_completion->notifier->driver;
    CUresult result = record_marks(take_completion, stream);

    if (result != CUDA_SUCCESS) {
        completion_destroy(take_completion);
        return result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ? refuse_captured(err)
                                                            : cuda_failed(driver, result, err, "waiting for a stream");
    }
    take_completion->has_ref = ref;
    if (ref)
        take_completion->ref = *ref;
    take_completion->buffers = take_buffers;
    take_completion->n_buffers = n_buffers;
    add(take_completion);
    return RDT_OK;
}

bool stream_is_captured(const struct cuda_driver *driver, CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = driver->cuStreamIsCapturing(stream, &status);

    /* The legacy stream waits for a stream that is being captured: a call in it would spoil that capture. */
    return result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE);
}

#define SPIN_NS 50000                   /* for so long without a pause: most streams are about to end */
#define ASK_NS (INT64_C(100) * 1000000) /* between two questions whether to stop */

/* cuStreamSynchronize has no deadline and cannot be interrupted. */
enum rdt_status stream_await(struct cuda_driver *driver, const struct cuda_gpu *gpu, CUstream stream, int64_t deadline_ns,
                             struct rdt_error *err)
{
    int64_t began_ns = clock_now_ns(), asked_ns = began_ns, now_ns = began_ns;
    struct timespec pause = {.tv_nsec = POLL_MIN_NS};
    CUevent event = NULL;
    CUresult result;
    enum rdt_status status = RDT_OK;

    if (stream_is_captured(driver, stream))
        return refuse_captured(err);
    result = driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (result == CUDA_SUCCESS)
        result = driver->cuEventRecord(event, stream);
    while (result == CUDA_SUCCESS && status == RDT_OK && (result = driver->cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {
        result = CUDA_SUCCESS;
        now_ns = clock_now_ns();
        if (now_ns >= deadline_ns)
            status = rdt_error_set(err, RDT_TIMED_OUT, "a stream of GPU %s did not come so far in time", gpu->uuid);
        if (now_ns - began_ns < SPIN_NS || status != RDT_OK)
            continue;
        if (now_ns - asked_ns >= ASK_NS && rdt_interrupted())
            status = rdt_error_set(err, RDT_CANCELLED, "interrupted while waiting for a stream of GPU %s", gpu->uuid);
        if (now_ns - asked_ns >= ASK_NS)
            asked_ns = now_ns;
        (void)nanosleep(&pause, NULL);
        if (pause.tv_nsec < POLL_MAX_NS)
            pause.tv_nsec += pause.tv_nsec / 2;
    }
    if (event)
        (void)driver->cuEventDestroy(event); /* may be destroyed before it occurs */
    return result == CUDA_SUCCESS ? status : cuda_gpu_failed(driver, gpu, result, err, "waiting for a stream");
}

/* When all work that is in the streams now has finished: calls `then`, in a thread of the library. Takes the completion. */
static enum rdt_status completion_then(struct completion *take_completion, void *const *streams, void (*then)(void *arg),
                                       void *arg, struct rdt_error *err)
{
    struct cuda_driver *driver = take_completion->notifier->driver;
    CUresult result = CUDA_SUCCESS;

    for (unsigned i = 0; result == CUDA_SUCCESS && i < take_completion->n_marks; i++)
        if (!stream_is_captured(driver, streams[i])) /* an event that was never recorded counts as one that has come */
            result = driver->cuEventRecord(take_completion->marks[i].event, streams[i]);
        else if (stream_is_default(streams[i])) /* it may have work, and waits for the one that is being captured */
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (result != CUDA_SUCCESS) {
        completion_destroy(take_completion);
        return result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ? refuse_captured(err)
                                                            : cuda_failed(driver, result, err, "waiting for a stream");
    }
    take_completion->then = then;
    take_completion->arg = arg;
    add(take_completion);
    return RDT_OK;
}

enum rdt_status rdt_cuda_after(rdt_cuda *cuda, int ordinal, void *const *streams, size_t n, void (*run_then)(void *arg),
                               void *arg, struct rdt_error *err)
{
    struct completion *completion = NULL;
    struct cuda_gpu *gpu = NULL;
    struct entered entered;
    enum rdt_status status;

    if (cuda_check(cuda, err) != RDT_OK)
        return cuda ? RDT_FORKED : RDT_INVALID;
    if (!run_then || n > COMPLETION_MAX_STREAMS || (n > 0 && !streams))
        return rdt_error_set(err, RDT_INVALID, "streams or the function is NULL, or there are more than %u streams",
                             COMPLETION_MAX_STREAMS);
    for (unsigned i = 0; i < cuda->driver->n_gpus; i++)
        if (cuda->driver->gpu[i].device == ordinal)
            gpu = &cuda->driver->gpu[i];
    if (!gpu)
        return rdt_error_set(err, RDT_NOT_FOUND, "this process sees no GPU %d", ordinal);
    status = gpu_enter(cuda->driver, gpu, &entered, err);
    if (status != RDT_OK)
        return status;
    status = completion_create(&((struct handle *)cuda)->streams, (unsigned)n, &completion, err);
    if (status == RDT_OK)
        status = completion_then(completion, streams, run_then, arg, err);
    gpu_leave(cuda->driver, &entered);
    return status;
}
