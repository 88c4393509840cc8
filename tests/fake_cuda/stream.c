/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of the fake driver. A stream is a thread that runs its queued work in order. There are two kinds of default streams:
 * the legacy one of each GPU (NULL, CU_STREAM_LEGACY), whose work follows all earlier work of the GPU's blocking streams and
 * comes before all later work of theirs; and one for each thread (CU_STREAM_PER_THREAD), which is an ordinary blocking stream.
 * See fake_stream.h.
 */
#include "tests/fake_cuda/fake_stream.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>

pthread_mutex_t fake_streams_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_streams_change = PTHREAD_COND_INITIALIZER;
struct fake_stream *fake_streams;
static struct fake_stream *legacy[FAKE_MAX_GPUS]; /* the default streams (NULL) */
static uint64_t last_order;

#define CALLBACK_US 2000 /* until the thread of a callback runs */

/* Returns whether this thread is a stream's, which runs host functions: they may not call the driver. The threads are compared,
 * because the leak checker of gcc 12 fails on the thread-local memory of threads that still run at exit. */
bool fake_in_call(void)
{
    bool is = false;

    pthread_mutex_lock(&fake_streams_mutex);
    for (struct fake_stream *stream = fake_streams; stream && !is; stream = stream->next)
        is = pthread_equal(stream->thread, pthread_self()) != 0;
    pthread_mutex_unlock(&fake_streams_mutex);
    return is;
}

static char *reach(CUdeviceptr address, size_t bytes)
{
    return fake_is_device(address) ? fake_cuda_reach(address, bytes) : (char *)address;
}

void fake_take_us(long us)
{
    if (us > 0)
        (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

/* ---- contexts of several processes take turns (FAKE_CUDA_TURNS) ---- */

#define NO_TURN                         \
    {                                   \
        PTHREAD_MUTEX_INITIALIZER, 0, 0 \
    }
static struct {
    pthread_mutex_t mutex; /* held while the process waits for its turn */
    int fd;                /* of the GPU's file, which is locked while work of this process runs; 0: not open */
    unsigned running;      /* streams of this process that work */
} turns[FAKE_MAX_GPUS] = {NO_TURN, NO_TURN, NO_TURN, NO_TURN, NO_TURN, NO_TURN, NO_TURN, NO_TURN};

static const char *turns_prefix(void)
{
    const char *prefix = getenv("FAKE_CUDA_TURNS");

    return prefix && prefix[0] ? prefix : NULL;
}

static void begin_turn(CUdevice device)
{
    const char *prefix = turns_prefix();
    char path[256];

    pthread_mutex_lock(&turns[device].mutex);
    if (turns[device].fd == 0 && prefix) {
        (void)snprintf(path, sizeof path, "%s.%d", prefix, fake_gpu[device].number);
        turns[device].fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (turns[device].fd < 0)
            abort();
    }
    if (turns[device].running++ == 0 && turns[device].fd > 0 && flock(turns[device].fd, LOCK_EX) != 0)
        abort();
    pthread_mutex_unlock(&turns[device].mutex);
}

static void end_turn(CUdevice device)
{
    pthread_mutex_lock(&turns[device].mutex);
    if (--turns[device].running == 0 && turns[device].fd > 0)
        (void)flock(turns[device].fd, LOCK_UN);
    pthread_mutex_unlock(&turns[device].mutex);
}

static struct fake_meeting copies = FAKE_MEETING; /* from one GPU to another */

static void do_work(struct work *work)
{
    char *to, *from;

    if (fake_broken() != CUDA_SUCCESS)
        return;
    switch (work->kind) {
    case WORK_COPY:
        if (work->across)
            fake_meet(&copies, "FAKE_CUDA_COPIES_MEET");
        fake_take_us(fake_setting("FAKE_CUDA_COPY_US", 0));
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
        if (fake_unkind("FAKE_CUDA_SLOW_CALLBACKS"))
            fake_take_us(CALLBACK_US);
        work->call(work->arg);
        break;
    default:
        break;
    }
}

/* A host function stands for a kernel. */
static bool takes_time(const struct work *work)
{
    return work->kind == WORK_COPY || work->kind == WORK_SET || work->kind == WORK_CALL;
}

/* Whether earlier work of another stream must end first, because one of the two is the legacy default stream. */
static bool must_wait(const struct fake_stream *stream, const struct work *work)
{
    for (const struct fake_stream *other = fake_streams; other && stream->kind != STREAM_FREE; other = other->next)
        if (other->device == stream->device && other->kind != STREAM_FREE && other->kind != stream->kind && other->first &&
            other->first->order < work->order)
            return true;
    return false;
}

static void *run(void *arg)
{
    struct fake_stream *stream = arg;

    pthread_mutex_lock(&fake_streams_mutex);
    for (;;) {
        while (!stream->first && !stream->end)
            pthread_cond_wait(&fake_streams_change, &fake_streams_mutex);
        struct work *work = stream->first;
        if (!work)
            break;
        while (must_wait(stream, work) || (work->kind == WORK_AWAIT && work->event->done < work->number))
            pthread_cond_wait(&fake_streams_change, &fake_streams_mutex);
        pthread_mutex_unlock(&fake_streams_mutex);
        if (takes_time(work))
            begin_turn(stream->device);
        do_work(work);
        if (takes_time(work))
            end_turn(stream->device);
        pthread_mutex_lock(&fake_streams_mutex);
        if (work->kind == WORK_RECORD && work->event->done < work->number)
            work->event->done = work->number;
        if (work->event)
            fake_event_unref(work->event);
        stream->first = work->next;
        if (!stream->first)
            stream->last = &stream->first;
        stream->done++;
        free(work);
        pthread_cond_broadcast(&fake_streams_change);
    }
    pthread_mutex_unlock(&fake_streams_mutex);
    return NULL;
}

/* The caller holds the mutex. */
static struct fake_stream *stream_new(CUdevice device, enum stream_kind kind)
{
    struct fake_stream *stream = calloc(1, sizeof *stream);

    if (!stream)
        return NULL;
    stream->device = device;
    stream->kind = kind;
    stream->last = &stream->first;
    if (pthread_create(&stream->thread, NULL, run, stream)) {
        free(stream);
        return NULL;
    }
    stream->next = fake_streams;
    fake_streams = stream;
    return stream;
}

static struct fake_stream *thread_stream(CUdevice device)
{
    struct fake_stream *stream = fake_streams;

    while (stream && !(stream->of_thread && stream->device == device && pthread_equal(stream->user, pthread_self())))
        stream = stream->next;
    if (!stream && (stream = stream_new(device, STREAM_BLOCKING)) != NULL) {
        stream->of_thread = true;
        stream->user = pthread_self();
    }
    return stream;
}

struct fake_stream *fake_stream_of(CUstream given)
{
    CUdevice device = fake_current();
    struct fake_stream *stream = (struct fake_stream *)given;

    if (device < 0)
        return NULL;
    if (given && given != CU_STREAM_LEGACY && given != CU_STREAM_PER_THREAD)
        return stream;
    pthread_mutex_lock(&fake_streams_mutex);
    if (given != CU_STREAM_PER_THREAD && !legacy[device])
        legacy[device] = stream_new(device, STREAM_LEGACY);
    stream = given == CU_STREAM_PER_THREAD ? thread_stream(device) : legacy[device];
    pthread_mutex_unlock(&fake_streams_mutex);
    return stream;
}

CUresult fake_queue(CUstream given, const struct work *values)
{
    struct fake_stream *stream = fake_stream_of(given);
    struct work *work = stream ? malloc(sizeof *work) : NULL;

    if (!work)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_broken() != CUDA_SUCCESS) {
        free(work);
        return fake_broken();
    }
    *work = *values;
    work->next = NULL;
    pthread_mutex_lock(&fake_streams_mutex);
    if (fake_is_implicit(given)) {
        for (struct fake_stream *other = fake_streams; other; other = other->next)
            other->invalid |= other->captured;
        pthread_mutex_unlock(&fake_streams_mutex);
        free(work);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (work->kind == WORK_RECORD)
        work->event->captured = stream->captured;
    if (stream->captured) { /* the work belongs to the graph, which is never launched */
        pthread_mutex_unlock(&fake_streams_mutex);
        free(work);
        return CUDA_SUCCESS;
    }
    if (work->kind == WORK_RECORD)
        work->number = ++work->event->recorded;
    if (work->kind == WORK_AWAIT)
        work->number = work->event->recorded;
    if (work->event)
        work->event->refs++;
    work->order = ++last_order;
    *stream->last = work;
    stream->last = &work->next;
    stream->queued++;
    pthread_cond_broadcast(&fake_streams_change);
    pthread_mutex_unlock(&fake_streams_mutex);
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream_p, unsigned flags)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (fake_current() < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_broken() != CUDA_SUCCESS)
        return fake_broken();
    pthread_mutex_lock(&fake_streams_mutex);
    struct fake_stream *stream = stream_new(fake_current(), flags & CU_STREAM_NON_BLOCKING ? STREAM_FREE : STREAM_BLOCKING);
    pthread_mutex_unlock(&fake_streams_mutex);
    *stream_p = (CUstream)stream;
    return stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamDestroy(CUstream given)
{
    struct fake_stream *stream = (struct fake_stream *)given;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&fake_streams_mutex);
    for (struct fake_stream **at = &fake_streams; *at; at = &(*at)->next) {
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    }
    stream->end = true;
    pthread_cond_broadcast(&fake_streams_change);
    pthread_mutex_unlock(&fake_streams_mutex);
    (void)pthread_join(stream->thread, NULL);
    free(stream);
    return CUDA_SUCCESS;
}

/* A call that waits for a stream that is being captured spoils the capture, in whichever mode. */
static bool spoils(struct fake_stream *stream)
{
    pthread_mutex_lock(&fake_streams_mutex);
    bool captured = stream->captured;
    stream->invalid |= captured;
    pthread_mutex_unlock(&fake_streams_mutex);
    return captured;
}

void fake_stream_await(struct fake_stream *stream)
{
    pthread_mutex_lock(&fake_streams_mutex);
    uint64_t until = stream->queued;
    while (stream->done < until && !stream->captured)
        pthread_cond_wait(&fake_streams_change, &fake_streams_mutex);
    pthread_mutex_unlock(&fake_streams_mutex);
}

CUresult cuStreamQuery(CUstream given)
{
    struct fake_stream *stream = fake_stream_of(given);

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_is_unsafe() || spoils(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&fake_streams_mutex);
    bool idle = stream->done == stream->queued;
    pthread_mutex_unlock(&fake_streams_mutex);
    if (fake_broken() != CUDA_SUCCESS)
        return fake_broken();
    return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream given)
{
    struct fake_stream *stream = fake_stream_of(given);

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_is_unsafe() || spoils(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    fake_stream_await(stream);
    return fake_broken();
}

static bool idle_on(CUdevice device)
{
    for (struct fake_stream *stream = fake_streams; stream; stream = stream->next)
        if (stream->device == device && stream->first)
            return false;
    return true;
}

void fake_await_kernels(CUdevice device)
{
    if (device < 0 || !fake_unkind("FAKE_CUDA_FREE_WAITS"))
        return;
    pthread_mutex_lock(&fake_streams_mutex);
    while (!idle_on(device))
        pthread_cond_wait(&fake_streams_change, &fake_streams_mutex);
    pthread_mutex_unlock(&fake_streams_mutex);
}

CUresult cuCtxSynchronize(void)
{
    CUdevice device = fake_current();
    bool captured = false;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (device < 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&fake_streams_mutex);
    for (struct fake_stream *stream = fake_streams; stream; stream = stream->next)
        if (stream->captured && stream->device == device) {
            stream->invalid = captured = true;
        }
    while (!captured && !idle_on(device))
        pthread_cond_wait(&fake_streams_change, &fake_streams_mutex);
    pthread_mutex_unlock(&fake_streams_mutex);
    return captured ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : fake_broken();
}

CUresult cuStreamGetCtx(CUstream given, CUcontext *context_p)
{
    struct fake_stream *stream = fake_stream_of(given);

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!stream)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context_p = (CUcontext)&fake_gpu[stream->device];
    return CUDA_SUCCESS;
}
