/* SPDX-License-Identifier: Apache-2.0 */
/* Element types of tensors: what safetensors and DLPack name. Installed; numbers are fixed for ever and on the wire. */
#ifndef RDT_DTYPE_H
#define RDT_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Everything that a dtype has, in one row: Y(X, number, NAME, bytes of one element, name in text, name in safetensors files or
 * NULL, name in numpy, ml_dtypes and torch, numpy's kind or 0, format of the struct module or NULL, DLPack's type code).
 * Further columns are added at the end. */
#define RDT_DTYPE_ROWS(Y, X)                                                              \
    Y(X, 1, BOOL, 1, "bool", "BOOL", "bool", 'b', "?", 6)                                 \
    Y(X, 2, U8, 1, "u8", "U8", "uint8", 'u', "B", 1)                                      \
    Y(X, 3, I8, 1, "i8", "I8", "int8", 'i', "b", 0)                                       \
    Y(X, 4, U16, 2, "u16", "U16", "uint16", 'u', "H", 1)                                  \
    Y(X, 5, I16, 2, "i16", "I16", "int16", 'i', "h", 0)                                   \
    Y(X, 6, U32, 4, "u32", "U32", "uint32", 'u', "I", 1)                                  \
    Y(X, 7, I32, 4, "i32", "I32", "int32", 'i', "i", 0)                                   \
    Y(X, 8, U64, 8, "u64", "U64", "uint64", 'u', "Q", 1)                                  \
    Y(X, 9, I64, 8, "i64", "I64", "int64", 'i', "q", 0)                                   \
    Y(X, 10, F16, 2, "f16", "F16", "float16", 'f', "e", 2)                                \
    Y(X, 11, BF16, 2, "bf16", "BF16", "bfloat16", 0, NULL, 4)                             \
    Y(X, 12, F32, 4, "f32", "F32", "float32", 'f', "f", 2)                                \
    Y(X, 13, F64, 8, "f64", "F64", "float64", 'f', "d", 2)                                \
    Y(X, 14, F8_E4M3FN, 1, "f8_e4m3fn", "F8_E4M3", "float8_e4m3fn", 0, NULL, 10)          \
    Y(X, 15, F8_E5M2, 1, "f8_e5m2", "F8_E5M2", "float8_e5m2", 0, NULL, 12)                \
    Y(X, 16, F8_E4M3FNUZ, 1, "f8_e4m3fnuz", NULL, "float8_e4m3fnuz", 0, NULL, 11)         \
    Y(X, 17, F8_E5M2FNUZ, 1, "f8_e5m2fnuz", NULL, "float8_e5m2fnuz", 0, NULL, 13)         \
    Y(X, 18, F8_E4M3B11FNUZ, 1, "f8_e4m3b11fnuz", NULL, "float8_e4m3b11fnuz", 0, NULL, 9) \
    Y(X, 19, F8_E4M3, 1, "f8_e4m3", NULL, "float8_e4m3", 0, NULL, 8)                      \
    Y(X, 20, F8_E3M4, 1, "f8_e3m4", NULL, "float8_e3m4", 0, NULL, 7)                      \
    Y(X, 21, F8_E8M0FNU, 1, "f8_e8m0fnu", "F8_E8M0", "float8_e8m0fnu", 0, NULL, 14)       \
    Y(X, 22, C32, 4, "c32", NULL, "complex32", 0, NULL, 5)                                \
    Y(X, 23, C64, 8, "c64", "C64", "complex64", 'c', "Zf", 5)                             \
    Y(X, 24, C128, 16, "c128", NULL, "complex128", 'c', "Zd", 5)

/* X(number, NAME, bytes of one element, name in text, name in safetensors files or NULL) */
#define RDT_DTYPE_MAP(X) RDT_DTYPE_ROWS(RDT_DTYPE_BRIEF, X)
#define RDT_DTYPE_BRIEF(X, number, name, bytes, text, safetensors, ...) X(number, name, bytes, text, safetensors)

enum rdt_dtype {
#define X(number, name, bytes, text, safetensors) RDT_##name = (number),
    RDT_DTYPE_MAP(X)
#undef X
};

struct rdt_dtype_row {
    const char *name;        /* such as "bf16" */
    const char *safetensors; /* in safetensors files; NULL: the format lacks it */
    const char *array_name;  /* in those of numpy, ml_dtypes and torch that have it, such as "bfloat16" */
    const char *format;      /* of Python's struct module and the buffer protocol; NULL: they lack it */
    uint8_t bytes;           /* of one element */
    uint8_t dlpack;          /* DLPack's type code */
    char kind;               /* in numpy's typestr, such as 'f' in "<f4"; 0: numpy itself lacks it */
};

/* Returns the row of a dtype; NULL for an unknown number. The known ones are 1, 2, ... without a gap. Static storage. */
const struct rdt_dtype_row *rdt_dtype_row(enum rdt_dtype dtype);

/* Returns the size of one element in bytes; 0 for an unknown number. */
size_t rdt_dtype_bytes(enum rdt_dtype dtype);

/* Returns the name, such as "bf16"; NULL for an unknown number. Static storage. */
const char *rdt_dtype_name(enum rdt_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
