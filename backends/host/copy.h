/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between mapped host memory. */
#ifndef BACKENDS_HOST_COPY_H
#define BACKENDS_HOST_COPY_H

#include <stddef.h>

/* Copies bytes as memcpy does; copies of COPY_STREAM_BYTES and more bypass the caches. The ranges must not overlap. Any
 * thread. */
#define COPY_STREAM_BYTES ((size_t)4 << 20)
void copy_bytes(void *dst, const void *src, size_t bytes);

#endif
