/* SPDX-License-Identifier: Apache-2.0 */
/* Owners: (tenant, uid). Every object, name and group belongs to one. */
#ifndef DAEMON_OWNER_H
#define DAEMON_OWNER_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "proto/wire_limits.h"
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

#define OWNER_KEY_MAX_BYTES (4u + sizeof((struct owner *)0)->tenant + RDT_MAX_ID_BYTES)

/* Writes the key by which maps find what this owner has under the id, of at most RDT_MAX_ID_BYTES: uid, tenant with its zero,
 * and id. Returns its length. */
static inline size_t owner_key(uint8_t key_p[OWNER_KEY_MAX_BYTES], const struct owner *owner, const uint8_t *id,
                               size_t id_bytes)
{
    size_t tenant = strlen(owner->tenant) + 1;

    memcpy(key_p, &owner->uid, 4);
    memcpy(key_p + 4, owner->tenant, tenant);
    if (id_bytes > 0)
        memcpy(key_p + 4 + tenant, id, id_bytes);
    return 4 + tenant + id_bytes;
}

#endif
