/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding: numbers in groups of seven bits, with the high bit set in all but the last byte. The sequence
 * is count, sum of ndim, then for each tensor dtype, ndim and shape. */
#include "daemon/base/shapes.h"

static size_t number_bytes(uint64_t number)
{
    size_t n = 1;

    while (number >>= 7)
        n++;
    return n;
}

static uint8_t *put_number(uint8_t *at, uint64_t number)
{
    for (; number >= 0x80; number >>= 7)
        *at++ = (uint8_t)(number | 0x80);
    *at++ = (uint8_t)number;
    return at;
}

static uint64_t take_number(const uint8_t **at)
{
    uint64_t number = 0;
    unsigned shift = 0;

    for (; **at & 0x80; shift += 7)
        number |= (uint64_t)(*(*at)++ & 0x7f) << shift;
    return number | (uint64_t) * (*at)++ << shift;
}

size_t shapes_bytes(const struct layout *layout)
{
    size_t bytes = number_bytes(layout->count) + number_bytes(layout->n_dims);

    for (uint32_t i = 0; i < layout->count; i++) {
        bytes += number_bytes(layout->dtype[i]) + number_bytes(layout->ndim[i]);
        for (uint32_t d = 0; d < layout->ndim[i]; d++)
            bytes += number_bytes(layout->shape[layout->first_dim[i] + d]);
    }
    return bytes;
}

void shapes_pack(const struct layout *layout, uint8_t *at)
{
    at = put_number(at, layout->count);
    at = put_number(at, layout->n_dims);
    for (uint32_t i = 0; i < layout->count; i++) {
        at = put_number(at, layout->dtype[i]);
        at = put_number(at, layout->ndim[i]);
        for (uint32_t d = 0; d < layout->ndim[i]; d++)
            at = put_number(at, layout->shape[layout->first_dim[i] + d]);
    }
}

uint32_t shapes_count(const uint8_t *shapes)
{
    return (uint32_t)take_number(&shapes);
}

struct layout *shapes_unpack(const uint8_t *shapes)
{
    uint32_t count = (uint32_t)take_number(&shapes), dim = 0;
    struct layout *layout = layout_create(count, (uint32_t)take_number(&shapes));
    uint64_t at = 0;

    for (uint32_t i = 0; layout && i < count; i++) {
        layout->dtype[i] = (uint32_t)take_number(&shapes);
        layout->ndim[i] = (uint32_t)take_number(&shapes);
        layout->first_dim[i] = dim;
        layout->region[i] = 0;
        for (uint32_t d = 0; d < layout->ndim[i]; d++)
            layout->shape[dim + d] = take_number(&shapes);
        layout_set_row_major(layout, i);
        dim += layout->ndim[i];
        at = (at + LAYOUT_ALIGN_BYTES - 1) & ~(uint64_t)(LAYOUT_ALIGN_BYTES - 1);
        layout->offset[i] = at;
        at += layout_bytes(layout, i);
    }
    return layout;
}
