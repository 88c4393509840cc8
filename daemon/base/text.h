/* SPDX-License-Identifier: Apache-2.0 */
/* Copies short texts into fixed arrays where snprintf would take a large part of the time. */
#ifndef DAEMON_TEXT_H
#define DAEMON_TEXT_H

#include <string.h>

/* Copies as much of `from` as fits, and a final 0. */
static inline void text_copy(char *to, size_t size, const char *from)
{
    size_t n = strnlen(from, size - 1);

    memcpy(to, from, n);
    to[n] = '\0';
}

#endif
