/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the programs of the bench: the clock, medians, rows, and the framing of the reference, which is as simple as
 * possible: a header of 16 bytes like rdtd's and one protobuf message. rdtd and librdt use nothing of it. */
#ifndef TESTS_BENCH_BENCH_H
#define TESTS_BENCH_BENCH_H

#include <protobuf-c/protobuf-c.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BENCH_BUFFER_BYTES 65536u
#define BENCH_SMALL_BYTES 4096u
#define BENCH_BIG_BYTES ((size_t)1 << 30)

/* Requests of the reference; PUT, FREE and their replies are rdt.proto's. */
enum bench_message {
    BENCH_PUT = 1,     /* Put -> PutReply */
    BENCH_FREE = 2,    /* Free -> Empty */
    BENCH_PASS_FD = 3, /* Ping -> Ping, with the fd of BENCH_BIG_BYTES of memory */
    BENCH_READ = 4,    /* Ping -> Ping with BENCH_SMALL_BYTES of data */
    BENCH_PING = 5,    /* Ping -> Ping, the same */
};

struct bench_header {
    uint32_t bytes; /* the length of the message that follows */
    uint16_t type;
    uint8_t n_fds, flags;
    uint64_t id;
};
_Static_assert(sizeof(struct bench_header) == 16, "as long as rdtd's");

__attribute__((format(printf, 1, 2), noreturn)) static inline void bench_die(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)fputs("bench: ", stderr);
    (void)vfprintf(stderr, fmt, args);
    (void)fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static inline int64_t bench_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline unsigned long bench_number(const char *text)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);

    if (end == text || *end)
        bench_die("\"%s\" is no number", text);
    return number;
}

static inline int bench_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts them. */
static inline double bench_median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, bench_compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* The value that `share` (0.99: the 99th percentile) of them do not pass. Sorts them. */
static inline double bench_percentile(double *values, size_t n, double share)
{
    size_t at = (size_t)(share * (double)n);

    qsort(values, n, sizeof *values, bench_compare);
    return values[at < n ? at : n - 1];
}

/* One round of a row. better: "lower" or "higher"; goal: a number, or "null" for a row that is reported, not judged. */
static inline void bench_row(const char *name, const char *suffix, const char *unit, const char *better, const char *goal,
                             double ours, double reference)
{
    (void)printf("%s%s\t%s\t%s\t%s\t%.4f\t%.4f\n", name, suffix, unit, better, goal, ours, reference);
}

/* A note for the reader of the row. */
static inline void bench_note(const char *name, const char *suffix, const char *text)
{
    (void)printf("note\t%s%s\t%s\n", name, suffix, text);
}

/* Header and message, at `to`; returns how many bytes they take. */
static inline size_t bench_pack(uint8_t *to, size_t room, uint16_t type, uint64_t id, const ProtobufCMessage *message)
{
    struct bench_header header = {.bytes = (uint32_t)protobuf_c_message_get_packed_size(message), .type = type, .id = id};

    if (sizeof header + header.bytes > room)
        bench_die("a message of %u bytes", header.bytes);
    memcpy(to, &header, sizeof header);
    (void)protobuf_c_message_pack(message, to + sizeof header);
    return sizeof header + header.bytes;
}

#endif
