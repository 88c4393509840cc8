/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of the fake driver. See fake_stream.h. */
#include "tests/fake_cuda/fake_stream.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static char *reach(CUdeviceptr address, size_t bytes)
{
    return fake_is_device(address) ? fake_cuda_reach(address, bytes) : (char *)address;
}

static bool is_pageable(CUdeviceptr address, size_t bytes)
{
    return bytes > 0 && !fake_is_device(address) && !fake_host_registered((void *)(uintptr_t)address, bytes);
}

/* An unpinned copy blocks its caller until the stream has carried it out. */
static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, bool across, CUstream stream)
{
    bool pageable = is_pageable(to, bytes) || is_pageable(from, bytes);

    if (bytes > 0 && (!reach(to, bytes) || !reach(from, bytes)))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result =
        fake_queue(stream, &(struct work){.kind = WORK_COPY, .to = to, .from = from, .bytes = bytes, .across = across});
    if (result == CUDA_SUCCESS && pageable && fake_unkind("FAKE_CUDA_UNPINNED_BLOCKS"))
        fake_stream_await(fake_stream_of(stream));
    return result;
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    if (!fake_call_of(__func__, bytes))
        return CUDA_ERROR_NOT_PERMITTED;
    return copy(to, from, bytes, false, stream);
}

/* Notes a copy for which a GPU may not reach the other's memory. */
static void note_staged(CUdevice in, CUdeviceptr to, CUdeviceptr from)
{
    const char *path = getenv("FAKE_CUDA_STAGED");

    if (path && !(fake_reaches(in, to) && fake_reaches(in, from))) {
        int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0 || write(fd, "x", 1) != 1)
            abort();
        (void)close(fd);
    }
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes,
                           CUstream stream)
{
    struct fake_stream *in = fake_stream_of(stream);

    if (!fake_call_of(__func__, bytes))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!to_context || !from_context || !in)
        return CUDA_ERROR_INVALID_CONTEXT;
    note_staged(in->device, to, from);
    return copy(to, from, bytes, true, stream);
}

static CUresult copy_rows(CUdeviceptr to, size_t to_pitch, CUdeviceptr from, size_t from_pitch, size_t bytes, size_t rows,
                          bool across, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;

    if (bytes > to_pitch || bytes > from_pitch)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t row = 0; result == CUDA_SUCCESS && row < rows; row++)
        result = copy(to + row * to_pitch, from + row * from_pitch, bytes, across, stream);
    return result;
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *plane, CUstream stream)
{
    CUdeviceptr to = plane->dstMemoryType == CU_MEMORYTYPE_HOST ? (CUdeviceptr)plane->dstHost : plane->dstDevice;
    CUdeviceptr from = plane->srcMemoryType == CU_MEMORYTYPE_HOST ? (CUdeviceptr)plane->srcHost : plane->srcDevice;

    if (!fake_call_of(__func__, plane->WidthInBytes * plane->Height))
        return CUDA_ERROR_NOT_PERMITTED;
    return copy_rows(to, plane->dstPitch, from, plane->srcPitch, plane->WidthInBytes, plane->Height, false, stream);
}

/* Only planes of device memory. */
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *peers, CUstream stream)
{
    struct fake_stream *in = fake_stream_of(stream);

    if (!fake_call_of(__func__, peers->WidthInBytes * peers->Height * peers->Depth))
        return CUDA_ERROR_NOT_PERMITTED;
    if (!peers->dstContext || !peers->srcContext || !in)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (peers->srcMemoryType != CU_MEMORYTYPE_DEVICE || peers->dstMemoryType != CU_MEMORYTYPE_DEVICE || peers->Depth != 1 ||
        peers->srcXInBytes + peers->srcY + peers->srcZ + peers->dstXInBytes + peers->dstY + peers->dstZ > 0)
        return CUDA_ERROR_INVALID_VALUE;
    note_staged(in->device, peers->dstDevice, peers->srcDevice);
    return copy_rows(peers->dstDevice, peers->dstPitch, peers->srcDevice, peers->srcPitch, peers->WidthInBytes, peers->Height,
                     true, stream);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
    if (!fake_call(__func__))
        return CUDA_ERROR_NOT_PERMITTED;
    if (bytes > 0 && (!fake_is_device(to) || !reach(to, bytes)))
        return CUDA_ERROR_INVALID_VALUE;
    return fake_queue(stream, &(struct work){.kind = WORK_SET, .to = to, .bytes = bytes, .value = value});
}
