/* SPDX-License-Identifier: Apache-2.0 */
/* Casts between float formats, without branches in the loops so that compilers vectorise them. Rounding is to nearest, ties to
 * even. Each loop is compiled twice: for any processor, and for AVX2, which the first call looks for. The f16 conversions
 * follow M. Dukhan's FP16, the f8 ones c10/util/Float8_*.h of PyTorch. */
#include "client/plan/cast.h"

#include <stdint.h>
#include <string.h>

#include "client/rdt_plan.h"

static inline uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS uint16_t to_bf16(float value)
{
    uint32_t bits = bits_of(value), rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;

    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

ALWAYS float from_bf16(uint16_t half)
{
    return float_of((uint32_t)half << 16);
}

ALWAYS uint16_t to_f16(float value)
{
    uint32_t bits = bits_of(value), twice = bits + bits, sign = bits & 0x80000000, bias = twice & 0xff000000, mantissa;
    float base = (float_of(bits & 0x7fffffff) * 0x1.0p+112f) * 0x1.0p-110f;

    bias = bias < 0x71000000 ? 0x71000000 : bias;
    bits = bits_of(float_of((bias >> 1) + 0x07800000) + base);
    mantissa = ((bits >> 13) & 0x7c00) + (bits & 0xfff);
    return (uint16_t)((sign >> 16) | (twice > 0xff000000 ? 0x7e00 : mantissa));
}

ALWAYS float from_f16(uint16_t half)
{
    uint32_t wide = (uint32_t)half << 16, sign = wide & 0x80000000, twice = wide + wide;
    float normal = float_of((twice >> 4) + (UINT32_C(0xe0) << 23)) * 0x1.0p-112f;
    float small = float_of((twice >> 17) | (UINT32_C(126) << 23)) - 0.5f;

    return float_of(sign | (twice < (UINT32_C(1) << 27) ? bits_of(small) : bits_of(normal)));
}

ALWAYS uint8_t to_e4m3fn(float value)
{
    uint32_t bits = bits_of(value), sign = bits & 0x80000000, mask = UINT32_C(141) << 23, small, normal, result;

    bits ^= sign;
    small = bits_of(float_of(bits) + float_of(mask)) - mask;
    normal = (bits + ((uint32_t)(7 - 127) << 23) + 0x7ffff + ((bits >> 20) & 1)) >> 20;
    result = bits < (UINT32_C(121) << 23) ? small : normal;
    result = result > 0x7e ? 0x7e : result; /* 448, the largest number; there is no infinity */
    result = bits > 0x7f800000 ? 0x7f : result;
    return (uint8_t)(result | sign >> 24);
}

ALWAYS uint8_t to_e5m2(float value)
{
    uint32_t bits = bits_of(value), sign = bits & 0x80000000, mask = UINT32_C(134) << 23, small, normal, result;

    bits ^= sign;
    small = bits_of(float_of(bits) + float_of(mask)) - mask;
    normal = (bits + ((uint32_t)(15 - 127) << 23) + 0xfffff + ((bits >> 21) & 1)) >> 21;
    result = bits < (UINT32_C(113) << 23) ? small : normal;
    result = bits >= (UINT32_C(143) << 23) ? (bits > (UINT32_C(255) << 23) ? 0x7f : 0x7c) : result;
    return (uint8_t)(result | sign >> 24);
}

ALWAYS float from_f32(float value)
{
    return value;
}

ALWAYS float to_f32(float value)
{
    return value;
}

typedef void (*cast)(const void *from, void *to, size_t n);

#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_AVX2 1
#define AVX2 __attribute__((target("avx2")))
#else
#define HAVE_AVX2 0
#define AVX2
#endif
#if defined(__GNUC__) && !defined(__clang__)
#define O3 __attribute__((optimize("O3")))
#else
#define O3
#endif

#define LOOP(name, attributes, from_type, from_name, to_type, to_name)            \
    attributes static void name(const void *from_bytes, void *to_bytes, size_t n) \
    {                                                                             \
        const from_type *restrict from = from_bytes;                              \
        to_type *restrict to = to_bytes;                                          \
                                                                                  \
        for (size_t i = 0; i < n; i++)                                            \
            to[i] = to_##to_name(from_##from_name(from[i]));                      \
    }

/* X(dtype, its type, name; dtype, its type, name) */
#define CASTS(X)                                        \
    X(F32, float, f32, BF16, uint16_t, bf16)            \
    X(F32, float, f32, F16, uint16_t, f16)              \
    X(F32, float, f32, F8_E4M3FN, uint8_t, e4m3fn)      \
    X(F32, float, f32, F8_E5M2, uint8_t, e5m2)          \
    X(BF16, uint16_t, bf16, F32, float, f32)            \
    X(BF16, uint16_t, bf16, F16, uint16_t, f16)         \
    X(BF16, uint16_t, bf16, F8_E4M3FN, uint8_t, e4m3fn) \
    X(BF16, uint16_t, bf16, F8_E5M2, uint8_t, e5m2)     \
    X(F16, uint16_t, f16, F32, float, f32)              \
    X(F16, uint16_t, f16, BF16, uint16_t, bf16)         \
    X(F16, uint16_t, f16, F8_E4M3FN, uint8_t, e4m3fn)   \
    X(F16, uint16_t, f16, F8_E5M2, uint8_t, e5m2)

#define X(FROM, from_type, from_name, TO, to_type, to_name)                 \
    LOOP(from_name##_##to_name, O3, from_type, from_name, to_type, to_name) \
    LOOP(from_name##_##to_name##_avx2, O3 AVX2, from_type, from_name, to_type, to_name)
CASTS(X)
#undef X

static const struct row {
    enum rdt_dtype from, to;
    cast any, avx2;
} rows[] = {
#define X(FROM, from_type, from_name, TO, to_type, to_name) \
    {RDT_##FROM, RDT_##TO, from_name##_##to_name, from_name##_##to_name##_avx2},
    CASTS(X)
#undef X
};

static const struct row *find(enum rdt_dtype from, enum rdt_dtype to)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].from == from && rows[i].to == to)
            return &rows[i];
    return NULL;
}

bool rdt_can_cast(enum rdt_dtype from, enum rdt_dtype to)
{
    return from == to ? rdt_dtype_bytes(from) > 0 : find(from, to) != NULL;
}

enum rdt_status cast_check(enum rdt_dtype from, enum rdt_dtype to, struct rdt_error *err)
{
    if (rdt_can_cast(from, to))
        return RDT_OK;
    return rdt_error_set(
        err, RDT_UNSUPPORTED,
        "there is no cast from %s to %s: f32, f16 and bf16 can be cast to each other, to f8_e4m3fn and to f8_e5m2",
        rdt_dtype_name(from) ? rdt_dtype_name(from) : "an unknown dtype",
        rdt_dtype_name(to) ? rdt_dtype_name(to) : "an unknown dtype");
}

void cast_run(enum rdt_dtype from, const void *data, enum rdt_dtype to, void *data_p, size_t n)
{
    const struct row *row = find(from, to);

    if (from == to) {
        memcpy(data_p, data, n * rdt_dtype_bytes(from));
        return;
    }
#if HAVE_AVX2
    if (__builtin_cpu_supports("avx2")) {
        row->avx2(data, data_p, n);
        return;
    }
#endif
    row->any(data, data_p, n);
}

void cast_run_plain(enum rdt_dtype from, const void *data, enum rdt_dtype to, void *data_p, size_t n)
{
    find(from, to)->any(data, data_p, n);
}

enum rdt_status rdt_cast(enum rdt_dtype from, const void *data, enum rdt_dtype to, void *data_p, size_t n,
                         struct rdt_error *err)
{
    enum rdt_status status = cast_check(from, to, err);

    if (status == RDT_OK && n > 0 && (!data || !data_p))
        status = rdt_error_set(err, RDT_INVALID, "data or data_p is NULL");
    if (status == RDT_OK && n > 0)
        cast_run(from, data, to, data_p, n);
    return status;
}
