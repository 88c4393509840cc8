/* SPDX-License-Identifier: Apache-2.0 */
/* Makes text of others (ids, names, errors) safe for a terminal and a log by replacing characters that act
 * on either, and puts nouns behind numbers. */
#ifndef PROTO_PLAIN_TEXT_H
#define PROTO_PLAIN_TEXT_H

#include <stddef.h>
#include <stdint.h>

/* The number of bytes of the UTF-8 character at text, which has n bytes. 0: it is not a valid character,
 * or one that must not be shown: a control character (terminals obey those from U+0080 on, too), or one
 * that changes the direction of text. */
static inline size_t text_character(const unsigned char *text, size_t n)
{
    static const unsigned long least[] = {0, 0, 0x80, 0x800, 0x10000}; /* a longer form of a character is not valid */
    size_t bytes = text[0] < 0x80 ? 1 : text[0] >> 5 == 6 ? 2 : text[0] >> 4 == 14 ? 3 : text[0] >> 3 == 30 ? 4 : 0;
    unsigned long c = bytes > 1 ? text[0] & (0x7fu >> bytes) : text[0];

    if (bytes == 0 || bytes > n)
        return 0;
    for (size_t i = 1; i < bytes; i++) {
        if (text[i] >> 6 != 2)
            return 0;
        c = c << 6 | (text[i] & 0x3f);
    }
    if (c < least[bytes] || (c >= 0xd800 && c < 0xe000) || c > 0x10ffff)
        return 0;
    if (c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
        (c >= 0x2066 && c <= 0x2069))
        return 0;
    return bytes;
}

/* Replaces by '?' every byte that is not part of a character that may be shown. */
static inline void text_clean(char *text, size_t n)
{
    size_t i = 0;

    while (i < n) {
        size_t bytes = text_character((const unsigned char *)text + i, n - i);
        if (bytes == 0)
            text[i] = '?';
        i += bytes ? bytes : 1;
    }
}

/* The end of the noun that the number counts: 1 transfer, 2 transfers. */
static inline const char *text_plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

#endif
