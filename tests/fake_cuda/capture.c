/* SPDX-License-Identifier: Apache-2.0 */
/* Captures of streams into graphs. There is no graph: work that is queued in a stream meanwhile is lost. See fake_stream.h. */
#include "tests/fake_cuda/fake_stream.h"

static _Thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode before = capture_mode;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* Whether the thread may not make calls that could wait now. Such a call spoils the capture. */
bool fake_is_unsafe(void)
{
    bool is = false;

    pthread_mutex_lock(&fake_streams_mutex);
    for (struct fake_stream *stream = fake_streams; stream && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED;
         stream = stream->next) {
        bool mine = pthread_equal(stream->capturer, pthread_self()) != 0;
        if (stream->captured &&
            (stream->mode == CU_STREAM_CAPTURE_MODE_GLOBAL ? mine || capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL
                                                           : stream->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && mine))
            is = stream->invalid = true;
    }
    pthread_mutex_unlock(&fake_streams_mutex);
    return is;
}

CUresult cuStreamBeginCapture(CUstream given, CUstreamCaptureMode mode)
{
    struct fake_stream *stream = (struct fake_stream *)given;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&fake_streams_mutex);
    stream->captured = true;
    stream->invalid = false;
    stream->mode = mode;
    stream->capturer = pthread_self();
    pthread_mutex_unlock(&fake_streams_mutex);
    return CUDA_SUCCESS;
}

/* There is no graph: *graph_p is NULL. */
CUresult cuStreamEndCapture(CUstream given, CUgraph *graph_p)
{
    struct fake_stream *stream = (struct fake_stream *)given;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    pthread_mutex_lock(&fake_streams_mutex);
    bool invalid = stream->invalid || !stream->captured;
    stream->captured = false;
    pthread_mutex_unlock(&fake_streams_mutex);
    *graph_p = NULL;
    return invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

bool fake_is_implicit(CUstream given)
{
    bool legacy = !given || given == CU_STREAM_LEGACY, is = false;

    for (struct fake_stream *stream = fake_streams; stream && legacy; stream = stream->next)
        is |= stream->captured && stream->kind == STREAM_BLOCKING && stream->device == fake_current();
    return is;
}

CUresult cuStreamIsCapturing(CUstream given, CUstreamCaptureStatus *status_p)
{
    const struct fake_stream *stream = (struct fake_stream *)given;

    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    *status_p = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!given || given == CU_STREAM_LEGACY || given == CU_STREAM_PER_THREAD) {
        pthread_mutex_lock(&fake_streams_mutex);
        bool implicit = fake_is_implicit(given);
        pthread_mutex_unlock(&fake_streams_mutex);
        return implicit ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
    }
    pthread_mutex_lock(&fake_streams_mutex);
    if (stream->captured)
        *status_p = stream->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    pthread_mutex_unlock(&fake_streams_mutex);
    return CUDA_SUCCESS;
}
