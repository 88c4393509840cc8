/* SPDX-License-Identifier: Apache-2.0 */
#include "rdt_dtype.h"

const struct rdt_dtype_row *rdt_dtype_row(enum rdt_dtype dtype)
{
    static const struct rdt_dtype_row rows[] = {
#define ROW(X, number, NAME, bytes, text, safetensors, array_name, kind, format, dlpack) \
    [number] = {text, safetensors, array_name, format, bytes, dlpack, kind},
        RDT_DTYPE_ROWS(ROW, )
#undef ROW
    };

    return dtype > 0 && (size_t)dtype < sizeof rows / sizeof *rows ? &rows[dtype] : NULL;
}

size_t rdt_dtype_bytes(enum rdt_dtype dtype)
{
    const struct rdt_dtype_row *row = rdt_dtype_row(dtype);

    return row ? row->bytes : 0;
}

const char *rdt_dtype_name(enum rdt_dtype dtype)
{
    const struct rdt_dtype_row *row = rdt_dtype_row(dtype);

    return row ? row->name : NULL;
}
