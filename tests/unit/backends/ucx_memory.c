/* SPDX-License-Identifier: Apache-2.0 */
/* backends/ucx/memory.c: which memory types are given to UCX, depending on what it reports to support. */
#include <criterion/criterion.h>

#include "../../../backends/ucx/memory.c"

#define HOST (UINT64_C(1) << UCS_MEMORY_TYPE_HOST)
#define CUDA (UINT64_C(1) << UCS_MEMORY_TYPE_CUDA)
#define ROCM (UINT64_C(1) << UCS_MEMORY_TYPE_ROCM)

Test(ucx_memory, gpu_memory_only_where_ucx_says_so)
{
    static const struct {
        struct ucx_memory ucx;
        bool cuda;
    } rows[] = {
        {{HOST, 1, 13}, false},        /* Debian's */
        {{HOST, 1, 22}, false},        /* without its CUDA module, or without a driver */
        {{0, 1, 22}, false},           /* the query failed */
        {{HOST | ROCM, 1, 22}, false}, /* another vendor's */
        {{HOST | CUDA, 1, 13}, false}, /* too old for the data threads, which use no GPU */
        {{HOST | CUDA, 1, 20}, false}, {{HOST | CUDA, 1, 21}, true}, {{HOST | CUDA, 1, 22}, true}, {{HOST | CUDA, 2, 0}, true},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof rows[0]; i++) {
        cr_assert(ucx_moves(&rows[i].ucx, "host"));
        cr_assert(ucx_moves(&rows[i].ucx, "cuda") == rows[i].cuda, "row %zu", i);
        cr_assert(ucx_moves(&rows[i].ucx, "CUDA") == rows[i].cuda, "row %zu", i);
        cr_assert_not(ucx_moves(&rows[i].ucx, "rocm"));
        cr_assert_not(ucx_moves(&rows[i].ucx, ""));
    }
}

Test(ucx_memory, type_is_stated_for_every_kind)
{
    cr_assert_eq(ucx_memory_type(NULL), UCS_MEMORY_TYPE_HOST);
    cr_assert_eq(ucx_memory_type("host"), UCS_MEMORY_TYPE_HOST);
    cr_assert_eq(ucx_memory_type("Cuda"), UCS_MEMORY_TYPE_CUDA);
}
