/* Short texts: into fixed arrays, on paths where snprintf would be a good part of the work; and made fit to be shown. */
#ifndef DAEMON_TEXT_H
#define DAEMON_TEXT_H

#include <string.h>

/* As much of `from` as fits, ended by 0. */
static inline void text_copy(char *to, size_t size, const char *from)
{
    size_t n = strnlen(from, size - 1);

    memcpy(to, from, n);
    to[n] = '\0';
}

/* How many bytes of UTF-8 the character at text has, of at most n; 0: it is none, or one that must not be shown: a control
 * character (of which terminals obey those from U+0080 on, too) or one that changes the direction of the text around it. */
static inline size_t text_character(const unsigned char *text, size_t n)
{
    size_t bytes = text[0] < 0x80 ? 1 : text[0] >> 5 == 6 ? 2 : text[0] >> 4 == 14 ? 3 : text[0] >> 3 == 30 ? 4 : 0;
    unsigned long c = bytes > 1 ? text[0] & (0x7fu >> bytes) : text[0];

    if (bytes == 0 || bytes > n)
        return 0;
    for (size_t i = 1; i < bytes; i++) {
        if (text[i] >> 6 != 2)
            return 0;
        c = c << 6 | (text[i] & 0x3f);
    }
    if (c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
        (c >= 0x2066 && c <= 0x2069))
        return 0;
    return bytes;
}

/* Replaces every byte that is not part of a character that may be shown by '?'. */
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

#endif
