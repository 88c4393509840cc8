/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all fuzz targets. A target is tests/fuzz/NAME.c with LLVMFuzzerTestOneInput(). `make fuzz` links it to
 * libFuzzer; `make test` links it to replay.c, which runs each file of its corpus once. Every input must end in a return;
 * any fault aborts. */
#ifndef TESTS_FUZZ_HARNESS_FUZZ_H
#define TESTS_FUZZ_HARNESS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/rdt_status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Checks what a parser promises. */
#define fuzz_must(condition)                                                        \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                \
        }                                                                           \
    } while (0)

/* A refusal has a status, and a sentence that is text. */
static inline void fuzz_refused(enum rdt_status status, const struct rdt_error *err)
{
    fuzz_must(status < 0 && err->status == status);
    fuzz_must(err->msg[0] != '\0' && memchr(err->msg, '\0', sizeof err->msg));
}

/* Numbers off the front of an input; zeros behind its end. */
static inline uint64_t fuzz_take(const uint8_t **at, const uint8_t *end, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes && *at < end; i++)
        value |= (uint64_t) * (*at)++ << 8 * i;
    return value;
}

/* The bytes in memory of their own, so that AddressSanitizer sees one step beyond; plus a zero if `terminated`. free() it. */
static inline void *fuzz_copy(const void *bytes, size_t n, bool terminated)
{
    char *copy = malloc(n + terminated + (n + terminated == 0));

    fuzz_must(copy);
    if (n)
        memcpy(copy, bytes, n);
    if (terminated)
        copy[n] = '\0';
    return copy;
}

/* A memfd that holds them, to be closed. */
int fuzz_file(const void *bytes, size_t n);

/* No fd more is open than after the first input, when *most is 0; else they are listed. */
void fuzz_check_fds(unsigned *most);

#endif
