/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of many MiB by stores that bypass the caches.
 *
 * memcpy reads each cache line of the destination before it writes it, unless the copy is larger than memcpy's own
 * threshold (three quarters of the shared cache, which is hundreds of MiB on large servers). Median GB/s of memcpy, 16-byte
 * and 32-byte streaming stores between two warm memfds on a two-core Xeon guest: 4 MiB 34, 27, 27; 16 MiB 17, 23, 26;
 * 64 MiB 14, 17, 21; 1 GiB 13, 18, 21. The core splits a large copy into several calls, so COPY_STREAM_BYTES is lower than
 * would be best for a copy in one call.
 *
 * Between pieces of PIECE_BYTES the thread yields the processor, so that no other thread waits for a whole copy. After 100 us
 * only, small operations of others wait twice as long beside copies (tests/bench/DECISIONS.md).
 */
#include "backends/host/copy.h"

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define PIECE_BYTES ((size_t)512 << 10) /* takes some tens of microseconds */

#ifdef __x86_64__
#include <immintrin.h>

#define STEP_BYTES 128

static void stream_sse2(char *dst, const char *src, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += STEP_BYTES / 2) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(src + at));
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(src + at + 16));
        __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(src + at + 32));
        __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(src + at + 48));
        _mm_stream_si128((__m128i *)(void *)(dst + at), a);
        _mm_stream_si128((__m128i *)(void *)(dst + at + 16), b);
        _mm_stream_si128((__m128i *)(void *)(dst + at + 32), c);
        _mm_stream_si128((__m128i *)(void *)(dst + at + 48), d);
    }
    _mm_sfence();
}

__attribute__((target("avx2"))) static void stream_avx2(char *dst, const char *src, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += STEP_BYTES) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(src + at));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(src + at + 32));
        __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(src + at + 64));
        __m256i d = _mm256_loadu_si256((const __m256i *)(const void *)(src + at + 96));
        _mm256_stream_si256((__m256i *)(void *)(dst + at), a);
        _mm256_stream_si256((__m256i *)(void *)(dst + at + 32), b);
        _mm256_stream_si256((__m256i *)(void *)(dst + at + 64), c);
        _mm256_stream_si256((__m256i *)(void *)(dst + at + 96), d);
    }
    _mm_sfence();
}

static void stream(char *dst, const char *src, size_t bytes)
{
    size_t head = -(uintptr_t)dst % STEP_BYTES;
    size_t body = (bytes - head) / STEP_BYTES * STEP_BYTES;

    memcpy(dst, src, head);
    if (__builtin_cpu_supports("avx2"))
        stream_avx2(dst + head, src + head, body);
    else
        stream_sse2(dst + head, src + head, body);
    memcpy(dst + head + body, src + head + body, bytes - head - body);
}

static void copy_piece(char *dst, const char *src, size_t bytes, bool streams)
{
    if (streams && bytes > STEP_BYTES) /* a shorter piece may end before the first aligned address */
        stream(dst, src, bytes);
    else
        memcpy(dst, src, bytes);
}

#else

static void copy_piece(char *dst, const char *src, size_t bytes, bool streams)
{
    (void)streams;
    memcpy(dst, src, bytes);
}

#endif

void copy_bytes(void *dst, const void *src, size_t bytes)
{
    bool streams = bytes >= COPY_STREAM_BYTES;

    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        if (at > 0)
            (void)sched_yield();
        copy_piece((char *)dst + at, (const char *)src + at, bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES, streams);
    }
}
