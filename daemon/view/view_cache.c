/* SPDX-License-Identifier: Apache-2.0 */
/* CACHE: what owners have in the cache of evictable objects, the caller's own row first. */
#include "daemon/view/view.h"

#define MOST_ROWS 1024u    /* in one answer */
#define MOST_LOOKED 16384u /* owners that are looked at for it */

/* What evictions give beside memory. */
static const enum usage others[] = {USAGE_OBJECTS, USAGE_REGIONS, USAGE_FDS, USAGE_MAPPINGS, USAGE_MAPPED_BYTES, USAGE_HEAP};
#define N_OTHERS (sizeof others / sizeof *others)

static bool add(Rdt__Pb__CacheReply *reply, struct arena *arena, const struct cache_owner *owner)
{
    Rdt__Pb__CacheInfo *info = arena_message(arena, &rdt__pb__cache_info__descriptor);

    if (!info)
        return false;
    info->tenant = owner->account->owner.tenant;
    info->uid = owner->account->owner.uid;
    info->objects = owner->sums.n;
    info->bytes = owner->sums.bytes;
    info->idle_objects = owner->sums.n_idle;
    info->idle_bytes = owner->sums.idle_bytes;
    info->hits = owner->counts.hits;
    info->misses = owner->counts.misses;
    info->evictions = owner->counts.evictions;
    info->evicted_bytes = owner->counts.evicted_bytes;
    info->spilled_objects = owner->sums.n_spilled;
    info->files = owner->sums.n_files;
    info->file_bytes = owner->sums.file_bytes;
    info->spilled = owner->counts.spilled;
    info->file_hits = owner->counts.file_hits;
    info->far_hits = owner->counts.far_hits;
    info->unspilled_late = owner->counts.unspilled_late;
    info->unspilled_failed = owner->counts.unspilled_failed;
    info->unspilled_small = owner->counts.unspilled_small;
    reply->owners[reply->n_owners++] = info;
    return true;
}

/* Objects may be evicted long before the memory is used up, and who reads how much memory there may be is to see why. */
static void add_full(Rdt__Pb__CacheReply *reply, struct call *call, char (*texts)[ACCOUNT_FULL_BYTES])
{
    const struct accounts *accounts = call->rpc->objects->accounts;

    for (size_t i = 0; i < N_OTHERS; i++)
        if (account_is_full(&accounts->node, others[i], texts[i]) ||
            account_is_full(account_owner(call->account), others[i], texts[i]))
            reply->full[reply->n_full++] = texts[i];
}

enum rdt_status rpc_cache(struct call *call, const void *request, struct rdt_error *err)
{
    const struct cache *cache = &call->rpc->objects->cache;
    const struct cache_owner *own = account_owner(call->account)->cache_owner;
    Rdt__Pb__CacheReply reply = RDT__PB__CACHE_REPLY__INIT;
    struct arena *arena = call->request.arena;
    char texts[N_OTHERS][ACCOUNT_FULL_BYTES], *full[N_OTHERS];
    unsigned n_looked = 0;
    bool whole = (reply.owners = arena_alloc(arena, MOST_ROWS * sizeof *reply.owners));

    if (whole && own)
        whole = add(&reply, arena, own);
    list_each (const struct cache_owner, owner, &cache->owners, link) {
        if (!whole || ++n_looked > MOST_LOOKED)
            break;
        if (owner == own || !call_may_see(call, &owner->account->owner))
            continue;
        if (reply.n_owners < MOST_ROWS)
            whole = add(&reply, arena, owner);
        else
            reply.more++;
    }
    if (!whole)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the list of owners");
    reply.limit_bytes = cache->limit_bytes ? cache->limit_bytes : call->rpc->regions->limit_bytes;
    reply.owner_limit_bytes = cache->owner_limit_bytes ? cache->owner_limit_bytes : reply.limit_bytes;
    reply.file_limit_bytes = cache->files.limit_bytes;
    reply.owner_file_limit_bytes = cache->files.owner_limit_bytes ? cache->files.owner_limit_bytes : reply.file_limit_bytes;
    reply.full = full;
    if (cache->counts.evictions > 0)
        add_full(&reply, call, texts);
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}
