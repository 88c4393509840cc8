/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers, names and sentences of the statuses; how an error is filled, cut and prefixed. Also the element types. */
#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "proto/rdt_dtype.h"
#include "proto/rdt_status.h"

#define STRESS_BYTES 1000

Test(status, numbers_are_the_published_ones)
{
    cr_assert_eq(RDT_OK, 0);
    cr_assert_eq(RDT_AGAIN, -1);
    cr_assert_eq(RDT_NO_MEMORY, -3);
    cr_assert_eq(RDT_PEER_LOST, -10);
    cr_assert_eq(RDT_PROTOCOL, -17);
    cr_assert_eq(RDT_SYSTEM, -23);
    cr_assert_eq(RDT_INTERNAL, -24);
}

Test(status, known_has_name_and_sentence)
{
    cr_assert_str_eq(rdt_status_name(RDT_TIMED_OUT), "TIMED_OUT");
    cr_assert_str_eq(rdt_status_sentence(RDT_TIMED_OUT), "the deadline passed");
    for (int number = 0; number >= -24; number--) {
        cr_assert_str_neq(rdt_status_name((enum rdt_status)number), "UNKNOWN", "%d", number);
        cr_assert_gt(strlen(rdt_status_sentence((enum rdt_status)number)), 0);
    }
}

Test(status, unknown_has_name_and_sentence)
{
    cr_assert_str_eq(rdt_status_name((enum rdt_status)1), "UNKNOWN");
    cr_assert_str_eq(rdt_status_name((enum rdt_status) - 10000), "UNKNOWN");
    cr_assert_not_null(rdt_status_sentence((enum rdt_status) - 10000));
}

Test(error, set_fills_and_returns)
{
    struct rdt_error err = {.sys_errno = 7};

    cr_assert_eq(rdt_error_set(&err, RDT_LIMIT, "%d of %s", 3, "these"), RDT_LIMIT);
    cr_assert_eq(err.status, RDT_LIMIT);
    cr_assert_eq(err.sys_errno, 0);
    cr_assert_str_eq(err.msg, "3 of these");
}

Test(error, null_is_accepted)
{
    cr_assert_eq(rdt_error_set(NULL, RDT_LIMIT, "x"), RDT_LIMIT);
    cr_assert_eq(rdt_error_sys(NULL, EPERM, "x"), RDT_SYSTEM);
    rdt_error_prefix(NULL, "x");
}

Test(error, sys_appends_the_reason)
{
    struct rdt_error err;

    cr_assert_eq(rdt_error_sys(&err, ENOENT, "open %s", "/nowhere"), RDT_SYSTEM);
    cr_assert_eq(err.status, RDT_SYSTEM);
    cr_assert_eq(err.sys_errno, ENOENT);
    cr_assert_str_eq(err.msg, "open /nowhere: No such file or directory");
}

Test(error, prefix_goes_before)
{
    struct rdt_error err;

    rdt_error_set(&err, RDT_INVALID, "too long");
    rdt_error_prefix(&err, "tensor %d", 4);
    cr_assert_str_eq(err.msg, "tensor 4: too long");
    cr_assert_eq(err.status, RDT_INVALID);
}

Test(error, overlong_is_cut_and_terminated)
{
    char text[STRESS_BYTES + 1];
    struct rdt_error err;

    memset(text, 'x', STRESS_BYTES);
    text[STRESS_BYTES] = '\0';
    rdt_error_set(&err, RDT_INVALID, "%s", text);
    cr_assert_eq(strlen(err.msg), sizeof err.msg - 1);
    rdt_error_prefix(&err, "first");
    cr_assert_eq(strlen(err.msg), sizeof err.msg - 1);
    cr_assert_eq(strncmp(err.msg, "first: xxx", 10), 0);
    rdt_error_prefix(&err, "%s", text);
    cr_assert_eq(strlen(err.msg), sizeof err.msg - 1);
    rdt_error_sys(&err, EIO, "%s", text);
    cr_assert_eq(strlen(err.msg), sizeof err.msg - 1);
}

Test(dtype, known_has_size_and_name)
{
    cr_assert_eq(rdt_dtype_bytes(RDT_BF16), 2);
    cr_assert_eq(rdt_dtype_bytes(RDT_C128), 16);
    cr_assert_str_eq(rdt_dtype_name(RDT_F8_E4M3FN), "f8_e4m3fn");
    for (int number = 1; number <= RDT_C128; number++)
        cr_assert_gt(rdt_dtype_bytes((enum rdt_dtype)number), 0);
}

Test(dtype, row_is_found_by_each_name_and_code)
{
    const struct rdt_dtype_row *row = rdt_dtype_row(RDT_F32), *other;

    cr_assert_str_eq(row->array_name, "float32");
    cr_assert_str_eq(row->safetensors, "F32");
    cr_assert_str_eq(row->format, "f");
    cr_assert(row->kind == 'f' && row->dlpack == 2);
    for (int a = 1; (row = rdt_dtype_row((enum rdt_dtype)a)); a++) {
        cr_assert_eq(!row->kind, !row->format, "%s", row->name);
        for (int b = 1; b < a; b++) {
            other = rdt_dtype_row((enum rdt_dtype)b);
            cr_assert(strcmp(row->name, other->name) != 0 && strcmp(row->array_name, other->array_name) != 0);
            cr_assert(row->dlpack != other->dlpack || row->bytes != other->bytes, "%s", row->name);
            cr_assert(!row->kind || row->kind != other->kind || row->bytes != other->bytes, "%s", row->name);
            cr_assert(!row->safetensors || !other->safetensors || strcmp(row->safetensors, other->safetensors) != 0);
        }
    }
}

Test(dtype, unknown_has_neither)
{
    cr_assert_eq(rdt_dtype_bytes((enum rdt_dtype)0), 0);
    cr_assert_eq(rdt_dtype_bytes((enum rdt_dtype)25), 0);
    cr_assert_null(rdt_dtype_name((enum rdt_dtype)0));
    cr_assert_null(rdt_dtype_row((enum rdt_dtype)25));
}
