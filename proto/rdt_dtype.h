/* SPDX-License-Identifier: Apache-2.0 */
/* Element types of tensors: what safetensors and DLPack name. Installed; numbers are fixed for ever and on the wire. */
#ifndef RDT_DTYPE_H
#define RDT_DTYPE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(number, NAME, bytes of one element, name in text, name in safetensors files or NULL) */
#define RDT_DTYPE_MAP(X)                             \
    X(1, BOOL, 1, "bool", "BOOL")                    \
    X(2, U8, 1, "u8", "U8")                          \
    X(3, I8, 1, "i8", "I8")                          \
    X(4, U16, 2, "u16", "U16")                       \
    X(5, I16, 2, "i16", "I16")                       \
    X(6, U32, 4, "u32", "U32")                       \
    X(7, I32, 4, "i32", "I32")                       \
    X(8, U64, 8, "u64", "U64")                       \
    X(9, I64, 8, "i64", "I64")                       \
    X(10, F16, 2, "f16", "F16")                      \
    X(11, BF16, 2, "bf16", "BF16")                   \
    X(12, F32, 4, "f32", "F32")                      \
    X(13, F64, 8, "f64", "F64")                      \
    X(14, F8_E4M3FN, 1, "f8_e4m3fn", "F8_E4M3")      \
    X(15, F8_E5M2, 1, "f8_e5m2", "F8_E5M2")          \
    X(16, F8_E4M3FNUZ, 1, "f8_e4m3fnuz", NULL)       \
    X(17, F8_E5M2FNUZ, 1, "f8_e5m2fnuz", NULL)       \
    X(18, F8_E4M3B11FNUZ, 1, "f8_e4m3b11fnuz", NULL) \
    X(19, F8_E4M3, 1, "f8_e4m3", NULL)               \
    X(20, F8_E3M4, 1, "f8_e3m4", NULL)               \
    X(21, F8_E8M0FNU, 1, "f8_e8m0fnu", "F8_E8M0")    \
    X(22, C32, 4, "c32", NULL)                       \
    X(23, C64, 8, "c64", "C64")                      \
    X(24, C128, 16, "c128", NULL)

enum rdt_dtype {
#define X(number, name, bytes, text, safetensors) RDT_##name = (number),
    RDT_DTYPE_MAP(X)
#undef X
};

/* Returns the size of one element in bytes; 0 for an unknown number. */
size_t rdt_dtype_bytes(enum rdt_dtype dtype);

/* Returns the name, such as "bf16"; NULL for an unknown number. Static storage. */
const char *rdt_dtype_name(enum rdt_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
