/* SPDX-License-Identifier: Apache-2.0 */
/* Explains why a wait for a name or an object was in vain: something similar exists that the requester may have meant. */
#include <stdio.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/objects/client.h"
#include "daemon/objects/names_impl.h"

#define EXPLAIN_MAX 256 /* the most names that are compared, because many waits may time out together */

/* NULL: nothing is published under it. Not name_find, which may end the name, and with it the wait that is being explained. */
static const struct name *find_published(const struct names *names, const struct owner *owner, const uint8_t *id,
                                         size_t id_bytes)
{
    uint8_t key[OWNER_KEY_MAX_BYTES];
    const struct name *name = map_get(&names->by_key, key, owner_key(key, owner, id, id_bytes));

    return name && name->published && !(name->publisher && name->publisher->gone) ? name : NULL;
}

void names_explain_object(struct names *names, const struct owner *owner, const uint8_t *id, size_t id_bytes,
                          const struct owner *requester, char *text, size_t size)
{
    const struct name *name = find_published(names, owner, id, id_bytes);

    text[0] = '\0';
    if (name && name_visible_to(name, requester))
        (void)snprintf(text, size, "; there is a name \"%.*s\", which is fetched as a name (rdtctl --name, Ref.from_name)",
                       (int)id_bytes, (const char *)id);
}

void names_explain_name(struct names *names, struct object_table *objects, const struct owner *owner, const uint8_t *id,
                        size_t id_bytes, const struct owner *requester, char *text, size_t size)
{
    const struct name *name = find_published(names, owner, id, id_bytes);
    struct rdt_ref ref = {.uid = owner->uid, .id_bytes = (uint8_t)id_bytes};
    struct object *object;
    unsigned compared = 0;

    text[0] = '\0';
    memcpy(ref.id, id, id_bytes);
    text_copy(ref.tenant, sizeof ref.tenant, owner->tenant);
    if (!name && object_table_find_any(objects, &ref, requester, false, &object, NULL) == RDT_OK) {
        (void)snprintf(text, size, "; there is an object \"%s\", which is fetched by its id, not as a name", ref.id);
        return;
    }
    if (!owner_equal(owner, requester))
        return;
    list_for_each (node, &names->published) {
        uint32_t uid;
        name = container_of(node, struct name, link);
        if (++compared > EXPLAIN_MAX)
            return;
        if (name->id_bytes != id_bytes || memcmp(name_id(name), id, id_bytes) != 0 ||
            owner_equal(&name->account->owner, requester) || !name_visible_to(name, requester))
            continue;
        uid = name->account->owner.uid;
        (void)snprintf(text, size,
                       "; uid %u has published version %llu of such a name: say whose it is (rdtctl --owner %u, owner=%u)", uid,
                       (unsigned long long)name->version, uid, uid);
        return;
    }
}
