/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests and tests/preload/fail_alloc.c: both map this struct from the file that RDT_FAIL_ALLOC names. */
#ifndef TESTS_PRELOAD_FAIL_ALLOC_H
#define TESTS_PRELOAD_FAIL_ALLOC_H

#include <stdatomic.h>
#include <stdint.h>

struct fail_alloc {
    _Atomic uint32_t armed; /* the test sets it last and takes it back; nothing fails while it is 0 */
    _Atomic uint64_t nth;   /* which allocation fails, the first is 1 */
    _Atomic uint64_t count; /* allocations since then */
    _Atomic uint64_t failed;
};

#endif
