/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes the bytes of tensors in files. */
#include "ctl_bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wire_limits.h"

#define SLICE_BYTES (4u << 20) /* of one write; between two writes progress is shown and signals are noticed */

enum rdt_status bytes_read(int fd, void *buf, size_t bytes, off_t offset, const char *what, struct rdt_error *err)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, (char *)buf + done, bytes - done, offset + (off_t)done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return rdt_error_sys(err, errno, "reading %s", what);
        if (n == 0)
            return rdt_error_set(err, RDT_INVALID, "the file ended within %s: it was truncated while it was read", what);
        done += (size_t)n;
    }
    return RDT_OK;
}

enum rdt_status bytes_write(const struct bytes_sink *sink, const void *data, size_t bytes, struct rdt_error *err)
{
    for (size_t done = 0; done < bytes;) {
        size_t want = bytes - done < SLICE_BYTES ? bytes - done : SLICE_BYTES;
        ssize_t n = write(sink->fd, (const char *)data + done, want);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return rdt_error_sys(err, errno, "writing");
        done += (size_t)n;
        if (sink->on_written && !sink->on_written(sink->context, (size_t)n))
            return rdt_error_set(err, RDT_CANCELLED, "interrupted while writing");
    }
    return RDT_OK;
}

/* Finds the last dimensions whose elements lie row-major without gaps: a run. Returns the number of the other dimensions;
 * *run_bytes_p receives the bytes of a run. */
static uint32_t inner_run(const struct rdt_tensor *t, size_t *run_bytes_p)
{
    size_t elems = 1;
    uint32_t d = t->ndim;

    while (d > 0 && (!t->strides || t->shape[d - 1] == 1 || t->strides[d - 1] == (int64_t)elems))
        elems *= (size_t)t->shape[--d];
    *run_bytes_p = elems * rdt_dtype_bytes(t->dtype);
    return d;
}

static enum rdt_status write_tensor(const struct bytes_sink *sink, const struct rdt_tensor *t, char *buf, struct rdt_error *err)
{
    size_t bytes, run_bytes, used = 0, elem_bytes = rdt_dtype_bytes(t->dtype);
    enum rdt_status status = rdt_tensor_bytes(t, &bytes, err);
    int64_t at[RDT_MAX_NDIM] = {0}, elem = 0;
    uint32_t outer;

    if (status || bytes == 0)
        return status;
    outer = inner_run(t, &run_bytes);
    for (size_t left = bytes / run_bytes; left > 0; left--) {
        const char *from = (const char *)t->data + elem * (int64_t)elem_bytes;
        uint32_t d = outer;

        if (run_bytes > SLICE_BYTES / 2) {
            status = bytes_write(sink, from, run_bytes, err);
        } else {
            memcpy(buf + used, from, run_bytes);
            used += run_bytes;
            if (used > SLICE_BYTES - run_bytes || left == 1) {
                status = bytes_write(sink, buf, used, err);
                used = 0;
            }
        }
        if (status)
            return status;
        while (d-- > 0) { /* moves to the next run: the outer dimensions count up like an odometer */
            elem += t->strides[d];
            if (++at[d] < t->shape[d])
                break;
            elem -= t->shape[d] * t->strides[d];
            at[d] = 0;
        }
    }
    return RDT_OK;
}

enum rdt_status bytes_write_tensors(const struct bytes_sink *sink, const struct rdt_tensor *tensors, size_t count,
                                    struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;
    char *buf = malloc(SLICE_BYTES);

    if (!buf)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a buffer");
    for (size_t i = 0; status == RDT_OK && i < count; i++)
        status = write_tensor(sink, &tensors[i], buf, err);
    free(buf);
    return status;
}
