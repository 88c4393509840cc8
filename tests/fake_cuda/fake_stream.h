/* SPDX-License-Identifier: Apache-2.0 */
/* What the fake driver's files on streams share.
 *
 *   stream.c   streams, and the queues of their threads
 *   capture.c  captures of streams into graphs
 *   event.c    events, and functions that streams call
 *   copy.c     copies
 */
#ifndef FAKE_CUDA_STREAM_H
#define FAKE_CUDA_STREAM_H

#include <stddef.h>

#include "tests/fake_cuda/fake_cuda.h"

enum work_kind { WORK_COPY, WORK_SET, WORK_RECORD, WORK_AWAIT, WORK_CALL };

struct fake_event {
    uint64_t recorded, done; /* protected by fake_streams_mutex */
    unsigned refs;
    bool captured; /* recorded last in a stream that was being captured */
};

struct work {
    enum work_kind kind;
    CUdeviceptr to, from;
    size_t bytes;
    unsigned char value;
    bool across; /* a copy from one GPU to another */
    struct fake_event *event;
    uint64_t number; /* of the event's recording */
    uint64_t order;  /* of all work that was queued in this process */
    CUhostFn call;
    void *arg;
    struct work *next;
};

enum stream_kind { STREAM_BLOCKING, STREAM_FREE, STREAM_LEGACY }; /* FREE: CU_STREAM_NON_BLOCKING */

struct fake_stream {
    CUdevice device;
    enum stream_kind kind;
    pthread_t thread;
    struct work *first, **last;
    uint64_t queued, done;
    bool end;
    bool captured, invalid; /* work goes to a graph; a call has spoilt the capture */
    CUstreamCaptureMode mode;
    pthread_t capturer;
    pthread_t user;           /* of a per-thread default stream */
    bool of_thread;           /* it is one */
    struct fake_stream *next; /* in fake_streams */
};

extern pthread_mutex_t fake_streams_mutex; /* protects all streams and events */
extern pthread_cond_t fake_streams_change;
extern struct fake_stream *fake_streams;

/* Returns whether this thread is a stream's, which runs host functions: they may not call the driver. */
bool fake_in_call(void);

/* Returns the stream; for the default streams that of the thread's context. NULL: the thread has no context. */
struct fake_stream *fake_stream_of(CUstream given);

void fake_stream_await(struct fake_stream *stream); /* until all its work that is queued now is done */
CUresult fake_queue(CUstream given, const struct work *values);

/* Whether the stream is the legacy one, and waits for a blocking stream of its GPU that is being captured: work in it spoils
 * that capture. The caller holds the mutex. */
bool fake_is_implicit(CUstream given);
void fake_event_unref(struct fake_event *event); /* the caller holds the mutex */

#endif
