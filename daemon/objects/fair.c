/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/fair.h"

#include <stdlib.h>

void fair_init(struct fair *fair, unsigned max)
{
    *fair = (struct fair){.max = max};
    list_init(&fair->entries);
    map_init(&fair->owners);
    list_init(&fair->common.entries);
}

void fair_fini(struct fair *fair)
{
    map_fini(&fair->owners);
}

static struct fair_owner *owner_get(struct fair *fair, const struct owner *owner)
{
    uint8_t key[OWNER_KEY_MAX_BYTES];
    size_t key_bytes = owner_key(key, owner, NULL, 0);
    struct fair_owner *found = map_get(&fair->owners, key, key_bytes);

    if (found)
        return found;
    found = calloc(1, sizeof *found);
    if (!found)
        return &fair->common;
    list_init(&found->entries);
    found->key_bytes = (uint8_t)key_bytes;
    memcpy(found->key, key, key_bytes);
    if (map_put(&fair->owners, found->key, key_bytes, found))
        return found;
    free(found);
    return &fair->common;
}

void fair_remove(struct fair *fair, struct fair_entry *entry)
{
    struct fair_owner *owner = entry->owner;

    if (!owner)
        return;
    list_remove(&entry->link);
    list_remove(&entry->by_owner);
    entry->owner = NULL;
    fair->n--;
    if (--owner->n > 0 || owner == &fair->common)
        return;
    (void)map_remove(&fair->owners, owner->key, owner->key_bytes);
    free(owner);
}

/* The oldest of all entries goes, unless the newest one's owner has more than the oldest one's: then it loses its own. */
static struct fair_entry *choose(const struct fair *fair, const struct fair_owner *newest)
{
    struct fair_entry *oldest = container_of(list_first(&fair->entries), struct fair_entry, link);

    return newest->n > oldest->owner->n ? container_of(list_first(&newest->entries), struct fair_entry, by_owner) : oldest;
}

struct fair_entry *fair_add(struct fair *fair, struct fair_entry *entry, const struct owner *owner)
{
    struct fair_owner *of = owner_get(fair, owner);
    struct fair_entry *lost = NULL;

    list_init(&entry->link);
    list_init(&entry->by_owner);
    list_append(&fair->entries, &entry->link);
    list_append(&of->entries, &entry->by_owner);
    entry->owner = of;
    of->n++;
    if (++fair->n > fair->max) {
        lost = choose(fair, of);
        fair_remove(fair, lost);
    }
    return lost;
}
