/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian numbers of 1 to 8 bytes in buffers without alignment. */
#ifndef RDT_PROTO_LITTLE_ENDIAN_H
#define RDT_PROTO_LITTLE_ENDIAN_H

#include <stdint.h>

static inline void put_le(uint8_t *out, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

static inline uint64_t get_le(const uint8_t *in, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)in[i] << (8 * i);
    return value;
}

#endif
