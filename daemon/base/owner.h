/* Whose things are whose: (tenant, uid), and what a caller may do. */
#ifndef DAEMON_OWNER_H
#define DAEMON_OWNER_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct owner {
    uint32_t uid;
    char tenant[33]; /* "" is the unnamed one */
};

static inline bool owner_equal(const struct owner *a, const struct owner *b)
{
    return a->uid == b->uid && strcmp(a->tenant, b->tenant) == 0;
}

#endif
