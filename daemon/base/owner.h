/* SPDX-License-Identifier: Apache-2.0 */
/* Owners: (tenant, uid). Every object, name and group belongs to one. */
#ifndef DAEMON_OWNER_H
#define DAEMON_OWNER_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "rdt_ref.h"

struct owner {
    uint32_t uid;
    char tenant[33]; /* "" is the unnamed tenant */
};

static inline bool owner_equal(const struct owner *a, const struct owner *b)
{
    return a->uid == b->uid && strcmp(a->tenant, b->tenant) == 0;
}

/* The owner whose ids the ref refers to: the one in the ref, or the requester if the ref has none. */
static inline struct owner owner_of_ref(const struct rdt_ref *ref, const struct owner *requester)
{
    struct owner owner = *requester;

    if (!ref->any_owner) {
        owner.uid = ref->uid;
        memcpy(owner.tenant, ref->tenant, sizeof owner.tenant);
    }
    return owner;
}

#endif
