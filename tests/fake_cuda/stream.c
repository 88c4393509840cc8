/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events of the fake driver. A stream is a thread that runs its queued work in order. The default stream (NULL)
 * of each GPU is an ordinary stream.
 */
#include "tests/fake_cuda/fake_cuda.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum work_kind { WORK_COPY, WORK_SET, WORK_RECORD, WORK_AWAIT, WORK_CALL };

struct fake_event {
    uint64_t recorded, done; /* protected by `mutex` */
    unsigned refs;
    bool captured; /* recorded last in a stream that was being captured */
};

struct work {
    enum work_kind kind;
    CUdeviceptr to, from;
    size_t bytes;
    unsigned char value;
    struct fake_event *event;
    uint64_t number;
    CUhostFn call;
    void *arg;
    struct work *next;
};

struct fake_stream {
    CUdevice device;
    pthread_t thread;
    struct work *first, **last;
    uint64_t queued, done;
    bool end;
    bool captured, invalid; /* work goes to a graph; a call has spoilt the capture */
    CUstreamCaptureMode mode;
    pthread_t capturer;
    struct fake_stream *next; /* in `all` */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects all streams and events */
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static struct fake_stream *defaults[FAKE_MAX_GPUS];
static struct fake_stream *all;

/* Returns whether this thread is a stream's, which runs host functions: they may not call the driver. The threads are compared,
 * because the leak checker of gcc 12 fails on the thread-local memory of threads that still run at exit. */
static bool in_call(void)
{
    bool is = false;

    pthread_mutex_lock(&mutex);
    for (struct fake_stream *stream = all; stream && !is; stream = stream->next)
        is = pthread_equal(stream->thread, pthread_self()) != 0;
    pthread_mutex_unlock(&mutex);
    return is;
}

/* ---- captures ---- */

static _Thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode before = capture_mode;

    capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* Whether the thread may not make calls that could wait now. Such a call spoils the capture. */
bool fake_is_unsafe(void)
{
    bool is = false;

    pthread_mutex_lock(&mutex);
    for (struct fake_stream *stream = all; stream && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED; stream = stream->next) {
        bool mine = pthread_equal(stream->capturer, pthread_self()) != 0;
        if (stream->captured &&
            (stream->mode == CU_STREAM_CAPTURE_MODE_GLOBAL ? mine || capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL
                                                           : stream->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && mine))
            is = stream->invalid = true;
    }
    pthread_mutex_unlock(&mutex);
    return is;
}

CUresult cuStreamBeginCapture(CUstream given, CUstreamCaptureMode mode)
{
    struct fake_stream *stream = (struct fake_stream *)given;

    pthread_mutex_lock(&mutex);
    stream->captured = true;
    stream->invalid = false;
    stream->mode = mode;
    stream->capturer = pthread_self();
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

/* There is no graph: *graph_p is NULL. */
CUresult cuStreamEndCapture(CUstream given, CUgraph *graph_p)
{
    struct fake_stream *stream = (struct fake_stream *)given;
    bool invalid;

    pthread_mutex_lock(&mutex);
    invalid = stream->invalid || !stream->captured;
    stream->captured = false;
    pthread_mutex_unlock(&mutex);
    *graph_p = NULL;
    return invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream given, CUstreamCaptureStatus *status_p)
{
    const struct fake_stream *stream = (struct fake_stream *)given;

    *status_p = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!given || given == CU_STREAM_LEGACY || given == CU_STREAM_PER_THREAD)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&mutex);
    if (stream->captured)
        *status_p = stream->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

static char *reach(CUdeviceptr address, size_t bytes)
{
    return fake_is_device(address) ? fake_cuda_reach(address, bytes) : (char *)address;
}

static void event_unref(struct fake_event *event)
{
    if (--event->refs == 0)
        free(event);
}

static void take_time(void)
{
    static long us = -1;

    if (us < 0)
        us = fake_setting("FAKE_CUDA_COPY_US", 0);
    if (us > 0)
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

static void do_work(struct work *work)
{
    char *to, *from;

    switch (work->kind) {
    case WORK_COPY:
        take_time();
        to = reach(work->to, work->bytes);
        from = reach(work->from, work->bytes);
        if (!to || !from)
            abort(); /* freed while a copy was queued: a real driver would fail the whole context */
        memmove(to, from, work->bytes);
        break;
    case WORK_SET:
        to = reach(work->to, work->bytes);
        if (!to)
            abort();
        memset(to, work->value, work->bytes);
        break;
    case WORK_CALL:
        work->call(work->arg);
        break;
    default:
        break;
    }
}

static void *run(void *arg)
{
    struct fake_stream *stream = arg;

    pthread_mutex_lock(&mutex);
    for (;;) {
        struct work *work;
        while (!stream->first && !stream->end)
            pthread_cond_wait(&change, &mutex);
        work = stream->first;
        if (!work)
            break;
        if (work->kind == WORK_AWAIT)
            while (work->event->done < work->number)
                pthread_cond_wait(&change, &mutex);
        pthread_mutex_unlock(&mutex);
        do_work(work);
        pthread_mutex_lock(&mutex);
        if (work->kind == WORK_RECORD && work->event->done < work->number)
            work->event->done = work->number;
        if (work->event)
            event_unref(work->event);
        stream->first = work->next;
        if (!stream->first)
            stream->last = &stream->first;
        stream->done++;
        free(work);
        pthread_cond_broadcast(&change);
    }
    pthread_mutex_unlock(&mutex);
    return NULL;
}

/* The caller holds `mutex`. */
static struct fake_stream *stream_new(CUdevice device)
{
    struct fake_stream *stream = calloc(1, sizeof *stream);

    if (!stream)
        return NULL;
    stream->device = device;
    stream->last = &stream->first;
    if (pthread_create(&stream->thread, NULL, run, stream)) {
        free(stream);
        return NULL;
    }
    stream->next = all;
    all = stream;
    return stream;
}

/* Returns the stream; for NULL the default stream of the thread's context. NULL: the thread has no context, or runs a host
 * function. */
static struct fake_stream *stream_of(CUstream given)
{
    CUdevice device = fake_current();
    struct fake_stream *stream = (struct fake_stream *)given;

    if (device < 0 || in_call())
        return NULL;
    if (given && given != CU_STREAM_LEGACY && given != CU_STREAM_PER_THREAD)
        return stream;
    pthread_mutex_lock(&mutex);
    if (!defaults[device])
        defaults[device] = stream_new(device);
    stream = defaults[device];
    pthread_mutex_unlock(&mutex);
    return stream;
}

static CUresult queue(CUstream given, const struct work *values)
{
    struct fake_stream *stream = stream_of(given);
    struct work *work = stream ? malloc(sizeof *work) : NULL;

    if (!work)
        return CUDA_ERROR_INVALID_CONTEXT;
    *work = *values;
    work->next = NULL;
    pthread_mutex_lock(&mutex);
    if (work->kind == WORK_RECORD)
        work->event->captured = stream->captured;
    if (stream->captured) { /* the work belongs to the graph, which is never launched */
        pthread_mutex_unlock(&mutex);
        free(work);
        return CUDA_SUCCESS;
    }
    if (work->kind == WORK_RECORD)
        work->number = ++work->event->recorded;
    if (work->kind == WORK_AWAIT)
        work->number = work->event->recorded;
    if (work->event)
        work->event->refs++;
    *stream->last = work;
    stream->last = &work->next;
    stream->queued++;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream_p, unsigned flags)
{
    struct fake_stream *stream;

    (void)flags;
    if (fake_current() < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    stream = stream_new(fake_current());
    pthread_mutex_unlock(&mutex);
    *stream_p = (CUstream)stream;
    return stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamDestroy(CUstream given)
{
    struct fake_stream *stream = (struct fake_stream *)given;

    pthread_mutex_lock(&mutex);
    for (struct fake_stream **at = &all; *at; at = &(*at)->next) {
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    }
    stream->end = true;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&mutex);
    (void)pthread_join(stream->thread, NULL);
    free(stream);
    return CUDA_SUCCESS;
}

/* A call that waits for a stream that is being captured spoils the capture, in whichever mode. */
static bool spoils(struct fake_stream *stream)
{
    bool captured;

    pthread_mutex_lock(&mutex);
    captured = stream->captured;
    stream->invalid |= captured;
    pthread_mutex_unlock(&mutex);
    return captured;
}

CUresult cuStreamQuery(CUstream given)
{
    struct fake_stream *stream = stream_of(given);
    bool idle;

    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_is_unsafe() || spoils(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&mutex);
    idle = stream->done == stream->queued;
    pthread_mutex_unlock(&mutex);
    return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream given)
{
    struct fake_stream *stream = stream_of(given);
    uint64_t until;

    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_is_unsafe() || spoils(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&mutex);
    until = stream->queued;
    while (stream->done < until)
        pthread_cond_wait(&change, &mutex);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

static bool idle_on(CUdevice device)
{
    for (struct fake_stream *stream = all; stream; stream = stream->next)
        if (stream->device == device && stream->first)
            return false;
    return true;
}

CUresult cuCtxSynchronize(void)
{
    CUdevice device = fake_current();
    bool captured = false;

    if (device < 0 || in_call())
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&mutex);
    for (struct fake_stream *stream = all; stream; stream = stream->next)
        if (stream->captured && stream->device == device) {
            stream->invalid = captured = true;
        }
    while (!captured && !idle_on(device))
        pthread_cond_wait(&change, &mutex);
    pthread_mutex_unlock(&mutex);
    return captured ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream given, CUcontext *context_p)
{
    struct fake_stream *stream = stream_of(given);

    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context_p = (CUcontext)&fake_gpu[stream->device];
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    return queue(stream, &(struct work){.kind = WORK_AWAIT, .event = (struct fake_event *)event});
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn call, void *arg)
{
    return queue(stream, &(struct work){.kind = WORK_CALL, .call = call, .arg = arg});
}

struct callback {
    CUstream stream;
    CUstreamCallback call;
    void *arg;
};

static void call_back(void *arg)
{
    struct callback callback = *(struct callback *)arg;

    free(arg);
    callback.call(callback.stream, CUDA_SUCCESS, callback.arg);
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback call, void *arg, unsigned flags)
{
    struct callback *callback = flags ? NULL : malloc(sizeof *callback);
    CUresult result;

    if (!callback)
        return CUDA_ERROR_INVALID_VALUE;
    *callback = (struct callback){stream, call, arg};
    result = cuLaunchHostFunc(stream, call_back, callback);
    if (result != CUDA_SUCCESS)
        free(callback);
    return result;
}

CUresult cuEventCreate(CUevent *event_p, unsigned flags)
{
    struct fake_event *event = fake_current() < 0 || in_call() ? NULL : calloc(1, sizeof *event);

    (void)flags;
    if (!event)
        return CUDA_ERROR_INVALID_CONTEXT;
    event->refs = 1;
    *event_p = (CUevent)event;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
    pthread_mutex_lock(&mutex);
    event_unref((struct fake_event *)event);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return queue(stream, &(struct work){.kind = WORK_RECORD, .event = (struct fake_event *)event});
}

CUresult cuEventQuery(CUevent given)
{
    struct fake_event *event = (struct fake_event *)given;
    bool done;

    if (in_call())
        return CUDA_ERROR_NOT_PERMITTED;
    if (fake_is_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&mutex);
    if (event->captured) {
        pthread_mutex_unlock(&mutex);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    done = event->done >= event->recorded || getenv("FAKE_CUDA_EVENTS_AT_ONCE");
    pthread_mutex_unlock(&mutex);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent given)
{
    struct fake_event *event = (struct fake_event *)given;
    uint64_t until;

    if (in_call())
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&mutex);
    until = event->recorded;
    while (event->done < until)
        pthread_cond_wait(&change, &mutex);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

/* ---- copies ---- */

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    if (bytes > 0 && (!reach(to, bytes) || !reach(from, bytes)))
        return CUDA_ERROR_INVALID_VALUE;
    return queue(stream, &(struct work){.kind = WORK_COPY, .to = to, .from = from, .bytes = bytes});
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                           CUstream stream)
{
    struct fake_stream *in = stream_of(stream);
    const char *path = getenv("FAKE_CUDA_STAGED");

    if (!to_context || !from_context || !in)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (path && !(fake_reaches(in->device, to) && fake_reaches(in->device, from))) {
        int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, "x", 1) != 1)
            abort();
        (void)close(fd);
    }
    return cuMemcpyAsync(to, from, bytes, stream);
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *copy, CUstream stream)
{
    CUdeviceptr to = copy->dstMemoryType == CU_MEMORYTYPE_HOST ? (CUdeviceptr)copy->dstHost : copy->dstDevice;
    CUdeviceptr from = copy->srcMemoryType == CU_MEMORYTYPE_HOST ? (CUdeviceptr)copy->srcHost : copy->srcDevice;
    CUresult result = CUDA_SUCCESS;

    if (copy->WidthInBytes > copy->dstPitch || copy->WidthInBytes > copy->srcPitch)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t row = 0; result == CUDA_SUCCESS && row < copy->Height; row++)
        result = cuMemcpyAsync(to + row * copy->dstPitch, from + row * copy->srcPitch, copy->WidthInBytes, stream);
    return result;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
    if (bytes > 0 && (!fake_is_device(to) || !reach(to, bytes)))
        return CUDA_ERROR_INVALID_VALUE;
    return queue(stream, &(struct work){.kind = WORK_SET, .to = to, .bytes = bytes, .value = value});
}
