/* Short texts into fixed arrays, on paths where snprintf would be a good part of the work. */
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

#endif
