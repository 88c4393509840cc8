/* Copies between mapped host memory. */
#ifndef BACKENDS_HOST_COPY_H
#define BACKENDS_HOST_COPY_H

#include <stddef.h>

/* memcpy, which past COPY_STREAM_BYTES bypasses the caches. The ranges do not overlap. Any thread. */
#define COPY_STREAM_BYTES ((size_t)4 << 20)
void copy_bytes(void *dst, const void *src, size_t bytes);

#endif
