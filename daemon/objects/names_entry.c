/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of the table of names: their visibility, and when they are remembered, forgotten and freed. */
#include <stdlib.h>
#include <string.h>

#include "daemon/objects/names_impl.h"

#define REMEMBERED_MAX 4096u /* unpublished names whose versions are remembered one by one */

bool name_visible_to(const struct name *name, const struct owner *requester)
{
    if (owner_equal(&name->account->owner, requester) || name->visibility == RDT__PB__VISIBILITY__VISIBILITY_ALL)
        return true;
    return name->visibility == RDT__PB__VISIBILITY__VISIBILITY_TENANT &&
           strcmp(name->account->owner.tenant, requester->tenant) == 0;
}

void name_free(struct name *name)
{
    list_remove(&name->link);
    map_remove(&name->names->by_key, name->key, name->key_bytes);
    account_unref(name->account);
    free(name);
}

void name_settle(struct name *name)
{
    struct names *names = name->names;

    if (name->published || name->busy || name->n_waiters > 0 || !list_empty(&name->link))
        return;
    if (name->version == 0) {
        name_free(name);
        return;
    }
    list_append(&names->remembered, &name->link);
    names->n_remembered++;
    if (names->n_remembered > REMEMBERED_MAX) {
        struct name *oldest = container_of(list_first(&names->remembered), struct name, link);
        if (oldest->version > names->forgotten)
            names->forgotten = oldest->version;
        names->n_remembered--;
        name_free(oldest);
    }
}

void name_recall(struct name *name)
{
    if (name->published || list_empty(&name->link))
        return;
    list_remove(&name->link);
    name->names->n_remembered--;
}
