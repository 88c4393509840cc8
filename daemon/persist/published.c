/* SPDX-License-Identifier: Apache-2.0 */
/* The effects of a session's PUBLISHes whose versions are no longer the newest ones. If the answer to such a request is lost
 * with the daemon, the session sends the request again, and must get the same answer. A session has few requests without an
 * answer, so only the last ones are remembered. */
#include <stdlib.h>

#include "daemon/persist/recovery_impl.h"

#define MOST 64u /* of one session */

struct published {
    struct journal_slot *slots[MOST]; /* NULL: none */
    unsigned next;
};

static struct account *account_of(struct recovery *recovery, uint64_t session)
{
    struct client *client = map_get_u64(&recovery->sessions, session);

    return client ? client->account : NULL;
}

/* Notes that the session has this record. false: no memory. */
static bool add_published(struct recovery *recovery, struct journal_slot *slot)
{
    uint64_t session = slot->numbers[NUMBER_PUBLISHED_SESSION];
    struct published *published = map_get_u64(&recovery->published, session);
    struct journal_slot **at;

    if (!published) {
        published = calloc(1, sizeof *published);
        if (!published || !map_put_u64(&recovery->published, session, published)) {
            free(published);
            return false;
        }
    }
    at = &published->slots[published->next++ % MOST];
    if (*at)
        recovery_remove_record(recovery, account_of(recovery, session), *at);
    *at = slot;
    recovery_charge(account_of(recovery, session), slot);
    return true;
}

struct journal_slot *recovery_write_published(struct recovery *recovery, const struct journal_slot *name)
{
    const uint64_t numbers[JOURNAL_NUMBERS] = {[NUMBER_PUBLISHED_SESSION] = name->numbers[NUMBER_NAME_SESSION],
                                               [NUMBER_PUBLISHED_REQUEST] = name->numbers[NUMBER_NAME_REQUEST]};
    struct journal_slot *slot;

    if (numbers[NUMBER_PUBLISHED_REQUEST] == 0 || !map_get_u64(&recovery->sessions, numbers[NUMBER_PUBLISHED_SESSION]))
        return NULL;
    slot = journal_begin(recovery->journal, 0);
    if (slot)
        journal_commit(recovery->journal, slot, RECORD_PUBLISHED, name->key, 0, numbers);
    return slot;
}

void recovery_remember_published(struct recovery *recovery, const struct journal_slot *name)
{
    struct journal_slot *slot = recovery_write_published(recovery, name);

    if (slot && !add_published(recovery, slot))
        journal_remove(recovery->journal, slot);
}

void recovery_forget_published(struct recovery *recovery, uint64_t session)
{
    struct published *published = map_remove_u64(&recovery->published, session);

    for (unsigned i = 0; published && i < MOST; i++)
        if (published->slots[i])
            recovery_remove_record(recovery, account_of(recovery, session), published->slots[i]);
    free(published);
}

void recovery_fini_published(struct recovery *recovery)
{
    struct published *published;
    size_t cursor = 0;

    while ((published = map_next(&recovery->published, &cursor)))
        free(published);
    map_fini(&recovery->published);
}

bool restore_published(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err)
{
    struct client *client = map_get_u64(&restoring->sessions, slot->numbers[NUMBER_PUBLISHED_SESSION]);
    uint64_t request = slot->numbers[NUMBER_PUBLISHED_REQUEST];
    uint64_t version = client ? (uintptr_t)map_get_u64(&client->resumed, request) : 0; /* perhaps from the name's own record */

    if (!client) /* the session ended a moment before the earlier daemon did */
        return false;
    if (slot->key == 0 || request == 0 || (version != 0 && version != slot->key)) {
        (void)rdt_error_set(err, RDT_INVALID, "its record is invalid");
        return false;
    }
    if (!add_published(restoring->recovery, slot)) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for it");
        return false;
    }
    if (version == 0)
        (void)map_put_u64(&client->resumed, request, (void *)(uintptr_t)slot->key);
    return true;
}
