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
        {{HOST, 1, 13, true}, false},        /* Debian's */
        {{HOST, 1, 22, true}, false},        /* without its CUDA module, or without a driver */
        {{0, 1, 22, true}, false},           /* the query failed */
        {{HOST | ROCM, 1, 22, true}, false}, /* another vendor's */
        {{HOST | CUDA, 1, 13, true}, false}, /* too old for the data threads, which use no GPU */
        {{HOST | CUDA, 1, 20, true}, false}, {{HOST | CUDA, 1, 21, true}, true},
        {{HOST | CUDA, 1, 22, true}, true},  {{HOST | CUDA, 2, 0, true}, true},
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

Test(ucx_memory, transports_of_the_cuda_module_are_added_where_they_serve)
{
    static const struct {
        struct ucx_memory ucx;
        const char *tls, *expected;
    } rows[] = {
        {{HOST, 1, 21, true}, "tcp", "tcp,cuda_copy,cuda_ipc"},
        {{HOST, 1, 22, true}, "rc,tcp", "rc,tcp,cuda_copy,cuda_ipc"},
        {{HOST, 1, 20, true}, "tcp", "tcp"},
        {{HOST, 1, 22, false}, "tcp", "tcp"},
        {{HOST, 1, 22, true}, "tcp,cuda_copy", "tcp,cuda_copy"}, /* somebody has chosen */
        {{HOST, 1, 22, true}, "^ib", "^ib"},
        {{HOST, 1, 22, true}, "all", "all"},
        {{HOST, 1, 22, true}, "", ""},
    };
    char text[80];

    for (size_t i = 0; i < sizeof(rows) / sizeof rows[0]; i++) {
        ucx_add_cuda(&rows[i].ucx, rows[i].tls, text, sizeof text);
        cr_assert_str_eq(text, rows[i].expected, "row %zu", i);
    }
}

Test(ucx_memory, reason_says_what_is_missing)
{
    static const struct {
        struct ucx_memory ucx;
        const char *expected;
    } rows[] = {
        {{HOST, 1, 13, false}, "UCX 1.13 is loaded, and this needs 1.21 or later"},
        {{HOST, 1, 13, true}, "needs 1.21 or later"},
        {{HOST, 1, 22, false}, "without libuct_cuda"},
        {{HOST, 1, 22, true}, "is there a driver"},
    };
    char text[160];

    for (size_t i = 0; i < sizeof(rows) / sizeof rows[0]; i++) {
        ucx_why_not(&rows[i].ucx, text, sizeof text);
        cr_assert(strstr(text, rows[i].expected), "row %zu: %s", i, text);
    }
}
