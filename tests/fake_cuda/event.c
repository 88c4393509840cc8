/* SPDX-License-Identifier: Apache-2.0 */
/* Events, and functions that streams call. See fake_stream.h. */
#include "tests/fake_cuda/fake_stream.h"

#include <stdlib.h>

static bool early; /* fake_events_early */

void fake_event_unref(struct fake_event *event)
{
    if (--event->refs == 0)
        free(event);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    return fake_queue(stream, &(struct work){.kind = WORK_AWAIT, .event = (struct fake_event *)event});
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn call, void *arg)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    return fake_queue(stream, &(struct work){.kind = WORK_CALL, .call = call, .arg = arg});
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

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!callback)
        return CUDA_ERROR_INVALID_VALUE;
    *callback = (struct callback){stream, call, arg};
    CUresult result = cuLaunchHostFunc(stream, call_back, callback);
    if (result != CUDA_SUCCESS)
        free(callback);
    return result;
}

CUresult cuEventCreate(CUevent *event_p, unsigned flags)
{
    struct fake_event *event = fake_current() < 0 ? NULL : calloc(1, sizeof *event);

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!event)
        return CUDA_ERROR_INVALID_CONTEXT;
    event->refs = 1;
    *event_p = (CUevent)event;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&fake_streams_mutex);
    fake_event_unref((struct fake_event *)event);
    pthread_mutex_unlock(&fake_streams_mutex);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (fake_refused(__func__) != CUDA_SUCCESS)
        return fake_refused(__func__);
    return fake_queue(stream, &(struct work){.kind = WORK_RECORD, .event = (struct fake_event *)event});
}

void fake_events_early(void)
{
    pthread_mutex_lock(&fake_streams_mutex);
    early = true;
    pthread_mutex_unlock(&fake_streams_mutex);
}

CUresult cuEventQuery(CUevent given)
{
    struct fake_event *event = (struct fake_event *)given;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (fake_is_unsafe())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pthread_mutex_lock(&fake_streams_mutex);
    if (event->captured) {
        pthread_mutex_unlock(&fake_streams_mutex);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    bool done = event->done >= event->recorded || early;
    pthread_mutex_unlock(&fake_streams_mutex);
    if (fake_broken() != CUDA_SUCCESS)
        return fake_broken();
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent given)
{
    struct fake_event *event = (struct fake_event *)given;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&fake_streams_mutex);
    uint64_t until = event->recorded;
    while (event->done < until)
        pthread_cond_wait(&fake_streams_change, &fake_streams_mutex);
    pthread_mutex_unlock(&fake_streams_mutex);
    return fake_broken();
}
