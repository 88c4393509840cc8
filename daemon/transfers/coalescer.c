/* SPDX-License-Identifier: Apache-2.0 */
/* See coalescer.h. */
#include <assert.h>
#include <stdlib.h>

#include "daemon/transfers/coalescer.h"

#define JOINED_MAX 1024u /* fetches of one transfer */

_Static_assert(sizeof(struct coalesced_key) == 16 + 2 * 8 + 2 * 4 + 2 * 33 + 2 + 128 + 65 + 3,
               "bytes of the key that nobody sets");

/* The ref has an address but no node id. Only fetches of names do. */
static bool is_anywhere(const struct rdt_ref *ref)
{
    static const uint8_t nobody[16];

    return memcmp(ref->node, nobody, sizeof nobody) == 0;
}

static void make_key(const struct rdt_ref *ref, const struct owner *requester, struct coalesced_key *key)
{
    memset(key, 0, sizeof *key);
    memcpy(key->node, ref->node, sizeof key->node);
    key->generation = ref->generation;
    key->requester_uid = requester->uid;
    memcpy(key->requester, requester->tenant, strlen(requester->tenant));
    if (!ref->is_name)
        return;
    if (is_anywhere(ref))
        memcpy(key->address, ref->address, strlen(ref->address));
    key->after = ref->after;
    key->any_owner = ref->any_owner;
    key->uid = ref->any_owner ? 0 : ref->uid;
    if (!ref->any_owner)
        memcpy(key->tenant, ref->tenant, strlen(ref->tenant));
    key->id_bytes = ref->id_bytes;
    memcpy(key->id, ref->id, ref->id_bytes);
}

static struct coalesced *find(const struct transfers *transfers, const struct rdt_ref *ref, const struct owner *requester)
{
    struct coalesced_key key;

    make_key(ref, requester, &key);
    return map_get(&transfers->coalesced_requests, &key, sizeof key);
}

bool coalescer_fits(const Rdt__Pb__Fetch *message, const Rdt__Pb__FetchItem *item, const struct rdt_ref *ref)
{
    return (is_anywhere(ref) ? ref->is_name && ref->address[0] != '\0' : ref->generation != 0 || ref->is_name) &&
           message->mode == RDT__PB__FETCH_MODE__FETCH_MODE_AUTO && !message->meta_only && message->transport[0] == '\0' &&
           message->group[0] == '\0' && message->least_path[0] == '\0' && !item->targets && !item->slice;
}

static bool same_id(const struct rdt_ref *a, const struct rdt_ref *b)
{
    return a->id_bytes == b->id_bytes && memcmp(a->id, b->id, a->id_bytes) == 0;
}

struct transfer *coalescer_open(const struct transfers *transfers, const struct rdt_ref *ref, const struct owner *requester)
{
    const struct coalesced *coalesced = find(transfers, ref, requester);

    if (!coalesced || !coalesced->open || coalesced->open->n_fetches >= JOINED_MAX)
        return NULL;
    return same_id(&coalesced->open->ref, ref) ? coalesced->open : NULL;
}

bool coalescer_begin(struct transfer *transfer)
{
    struct coalesced *coalesced = find(transfer->transfers, &transfer->ref, &transfer->account->owner);

    if (!coalesced) {
        coalesced = calloc(1, sizeof *coalesced);
        if (!coalesced)
            return true; /* Without memory the transfer asks alone. */
        make_key(&transfer->ref, &transfer->account->owner, &coalesced->key);
        if (!map_put(&transfer->transfers->coalesced_requests, &coalesced->key, sizeof coalesced->key, coalesced)) {
            free(coalesced);
            return true;
        }
    }
    if (coalesced->open)
        return true; /* The ref has another id with the same generation: the owner's node will refuse it. */
    coalesced->open = transfer;
    transfer->pull.coalesced = coalesced;
    return !coalesced->asked;
}

void coalescer_asked(struct transfer *transfer)
{
    struct coalesced *coalesced = transfer->pull.coalesced;

    if (!coalesced)
        return;
    assert(coalesced->open == transfer && !coalesced->asked);
    coalesced->open = NULL;
    coalesced->asked = transfer;
}

uint64_t coalescer_close(struct transfer *transfer)
{
    struct coalesced *coalesced = transfer->pull.coalesced;
    bool was_asked;

    if (!coalesced)
        return 0;
    transfer->pull.coalesced = NULL;
    was_asked = coalesced->asked == transfer;
    if (was_asked)
        coalesced->asked = NULL;
    else
        coalesced->open = NULL;
    if (coalesced->asked || coalesced->open)
        return was_asked && coalesced->open ? coalesced->open->id : 0;
    map_remove(&transfer->transfers->coalesced_requests, &coalesced->key, sizeof coalesced->key);
    free(coalesced);
    return 0;
}
