/* SPDX-License-Identifier: Apache-2.0 */
/* Casts against a slow reference in double precision: every 16-bit source, f32 sources around every value and every tie of the
 * target, and random ones. Both compilations of the loops are compared. tests/python/shards.py compares with torch. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/plan/cast.h"
#include "client/rdt_plan.h"
#include "tests/support/tensors.h"

struct format {
    enum rdt_dtype dtype;
    unsigned exponent_bits, mantissa_bits;
    bool finite_only; /* no infinities: all bits set is NaN */
};

static const struct format formats[] = {{RDT_F32, 8, 23, false},
                                        {RDT_BF16, 8, 7, false},
                                        {RDT_F16, 5, 10, false},
                                        {RDT_F8_E4M3FN, 4, 3, true},
                                        {RDT_F8_E5M2, 5, 2, false}};

static double value_of(const struct format *format, uint32_t bits)
{
    int bias = (1 << (format->exponent_bits - 1)) - 1;
    uint32_t mantissa = bits & ((1u << format->mantissa_bits) - 1);
    uint32_t exponent = (bits >> format->mantissa_bits) & ((1u << format->exponent_bits) - 1);
    uint32_t top = (1u << format->exponent_bits) - 1;
    double sign = bits >> (format->exponent_bits + format->mantissa_bits) & 1 ? -1 : 1;

    if (format->finite_only ? exponent == top && mantissa == (1u << format->mantissa_bits) - 1 : exponent == top && mantissa)
        return (double)NAN;
    if (!format->finite_only && exponent == top)
        return sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - (int)format->mantissa_bits);
    return sign * ldexp(1 + ldexp(mantissa, -(int)format->mantissa_bits), (int)exponent - bias);
}

/* Finds the nearest by bisection over the positive bit patterns, which grow with their values. */
static uint32_t nearest(const struct format *format, double value)
{
    uint32_t bits = format->exponent_bits + format->mantissa_bits, sign = signbit(value) ? 1u << bits : 0;
    uint32_t largest =
        format->finite_only ? (1u << bits) - 2 : (((1u << format->exponent_bits) - 1) << format->mantissa_bits) - 1;
    uint32_t low = 0, high = largest;
    double size = fabs(value), step, below, above;

    step = value_of(format, largest) - value_of(format, largest - 1);
    step = value_of(format, largest) + step / 2; /* a tie goes to the even pattern, which may be the one above: no number */
    if (size > step || (size == step && largest % 2 == 1))
        return sign | (format->finite_only ? largest : largest + 1); /* or infinity */
    while (low < high) {                                             /* the largest pattern whose value is at most `size` */
        uint32_t middle = low + (high - low + 1) / 2;
        if (value_of(format, middle) <= size)
            low = middle;
        else
            high = middle - 1;
    }
    if (low == largest)
        return sign | low;
    below = size - value_of(format, low);
    above = value_of(format, low + 1) - size;
    return sign | (below < above || (below == above && low % 2 == 0) ? low : low + 1);
}

static uint32_t load(const struct format *format, const void *at)
{
    uint32_t bits = 0;

    memcpy(&bits, at, rdt_dtype_bytes(format->dtype));
    return bits;
}

static void check(const struct format *from, const struct format *to, const void *data, size_t n)
{
    size_t from_bytes = rdt_dtype_bytes(from->dtype), to_bytes = rdt_dtype_bytes(to->dtype);
    uint8_t *fast = malloc(n * to_bytes), *plain = malloc(n * to_bytes);

    cast_run(from->dtype, data, to->dtype, fast, n);
    cast_run_plain(from->dtype, data, to->dtype, plain, n);
    must(memcmp(fast, plain, n * to_bytes) == 0);
    for (size_t i = 0; i < n; i++) {
        uint32_t source = load(from, (const uint8_t *)data + i * from_bytes), got = load(to, fast + i * to_bytes);
        double value = value_of(from, source);

        if (isnan(value))
            must_say(isnan(value_of(to, got)), "%s %x became %s %x", rdt_dtype_name(from->dtype), source,
                     rdt_dtype_name(to->dtype), got);
        else
            must_say(got == nearest(to, value), "%s %x became %s %x, not %x", rdt_dtype_name(from->dtype), source,
                     rdt_dtype_name(to->dtype), got, nearest(to, value));
    }
    free(fast);
    free(plain);
}

/* The next float in size, above (1) or below (-1) a positive one. */
static float beside(float value, int step)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    bits = bits == 0 && step < 0 ? 0 : bits + (uint32_t)step;
    memcpy(&value, &bits, sizeof value);
    return value;
}

Test(plan_cast, every_16_bit_source_is_rounded_to_the_nearest)
{
    uint16_t *all = malloc(65536 * sizeof *all);

    for (uint32_t i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (size_t f = 1; f <= 2; f++)
        for (size_t t = 0; t < sizeof formats / sizeof formats[0]; t++)
            if (t != f)
                check(&formats[f], &formats[t], all, 65536);
    free(all);
}

Test(plan_cast, f32_is_rounded_at_and_beside_every_tie)
{
    for (size_t t = 1; t < sizeof formats / sizeof formats[0]; t++) {
        const struct format *to = &formats[t];
        uint32_t patterns = 1u << (to->exponent_bits + to->mantissa_bits);
        float *data = malloc(8 * (size_t)patterns * sizeof *data);
        size_t n = 0;

        for (uint32_t i = 0; i + 1 < patterns; i++) {
            double low = value_of(to, i), high = value_of(to, i + 1);
            float middle = (float)((low + high) / 2), value = (float)low;

            data[n++] = value;
            data[n++] = -value;
            data[n++] = middle;
            data[n++] = beside(middle, 1);
            data[n++] = beside(middle, -1);
            data[n++] = -beside(middle, -1);
        }
        check(&formats[0], to, data, n);
        free(data);
    }
}

Test(plan_cast, random_f32_are_rounded_to_the_nearest)
{
    uint64_t seed = 3;
    size_t n = 300000;
    uint32_t *data = malloc(n * sizeof *data);

    for (size_t i = 0; i < n; i++)
        data[i] = next_random(&seed) ^ next_random(&seed) << 16;
    for (size_t t = 1; t < sizeof formats / sizeof formats[0]; t++)
        check(&formats[0], &formats[t], data, n);
    free(data);
}

Test(plan_cast, refuses_other_casts_with_a_sentence)
{
    uint8_t bytes[16] = {0};

    must_refuse(RDT_UNSUPPORTED, "no cast from f64 to f32", rdt_cast(RDT_F64, bytes, RDT_F32, bytes + 8, 1, &err));
    must_be(RDT_UNSUPPORTED, rdt_cast(RDT_F8_E5M2, bytes, RDT_F32, bytes + 8, 1, &err));
    must(!rdt_can_cast(RDT_F32, RDT_I8) && rdt_can_cast(RDT_I8, RDT_I8) && rdt_can_cast(RDT_F32, RDT_F8_E4M3FN));
    must_ok(rdt_cast(RDT_F32, NULL, RDT_BF16, NULL, 0, &err));
}
