/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/base/reserve: when the address space is full, libuv still gets memory, once. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "daemon/base/reserve.h"

#define MIB ((size_t)1 << 20)
#define MOST 4096u

static void *filler[MOST];

/* Takes what is left of the address space, in pieces that become smaller. */
static unsigned fill(void)
{
    unsigned n = 0;

    for (size_t bytes = 64 * MIB; bytes >= 4096; bytes /= 2)
        while (n < MOST && (filler[n] = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED)
            n++;
    return n;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LIMITED 0 /* a sanitizer needs more address space than there is to limit */
#else
#define LIMITED 1
#endif

Test(reserve, is_used_when_nothing_else_is_left_and_taken_again_later)
{
    const struct rlimit little = {2048 * MIB, 2048 * MIB};

    if (!LIMITED)
        cr_skip_test("a sanitizer needs the address space");
    cr_assert(reserve_hold());
    cr_assert_eq(setrlimit(RLIMIT_AS, &little), 0);
    cr_assert_gt(fill(), 0);
    cr_assert_null(malloc(2 * MIB));
    void *memory = reserve_realloc(NULL, 2 * MIB);
    cr_assert_not_null(memory);
    cr_assert_null(reserve_realloc(NULL, 64 * MIB), "it is used up");
    (void)munmap(filler[0], 64 * MIB);
    cr_assert(reserve_hold());
    cr_assert(reserve_hold(), "it is held already");
    free(memory);
}
