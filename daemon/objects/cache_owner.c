/* SPDX-License-Identifier: Apache-2.0 */
/* The owners of evictable objects, and the persons that they belong to, in the order of what they have. */
#include <stdlib.h>

#include "daemon/objects/cache_impl.h"

struct cache_standing { /* of a person, by memory or by files */
    struct list link;   /* in a list of cache_ranks, while the person has such objects */
    struct list owners; /* struct cache_owner.by_person */
    uint64_t n, bytes;
    unsigned rank;
};

struct cache_person {        /* exists while one of its owners does */
    struct account *account; /* a reference */
    uint64_t n_owners;
    struct cache_standing standings[CACHE_ORDERS];
};

static struct cache_person *person_of(struct account *account)
{
    struct account *of = account_person(account);
    struct cache_person *person = of->cache_person;

    if (person)
        return person;
    person = calloc(1, sizeof *person);
    if (!person)
        return NULL;
    for (unsigned k = 0; k < CACHE_ORDERS; k++) {
        list_init(&person->standings[k].link);
        list_init(&person->standings[k].owners);
    }
    person->account = account_ref(of);
    of->cache_person = person;
    return person;
}

struct cache_owner *cache_owner_of(struct cache *cache, struct account *account)
{
    struct account *of = account_owner(account);
    struct cache_owner *owner = of->cache_owner;
    struct cache_person *person;

    if (owner)
        return owner;
    owner = calloc(1, sizeof *owner);
    person = owner ? person_of(of) : NULL;
    if (!person) {
        free(owner);
        return NULL;
    }
    owner->cache = cache;
    owner->account = account_ref(of);
    owner->person = person;
    person->n_owners++;
    list_append(&cache->owners, &owner->link);
    list_init(&owner->pressed);
    list_init(&owner->near);
    for (unsigned k = 0; k < CACHE_ORDERS; k++)
        list_init(&owner->by_person[k]);
    cache_queue_init(&owner->queue);
    of->cache_owner = owner;
    return owner;
}

void cache_owner_unref(struct cache_owner *owner)
{
    struct cache_person *person = owner->person;

    if (--owner->n_objects > 0)
        return;
    list_remove(&owner->link);
    list_remove(&owner->pressed);
    list_remove(&owner->near);
    owner->account->cache_owner = NULL;
    account_unref(owner->account);
    free(owner);
    if (--person->n_owners > 0)
        return;
    person->account->cache_person = NULL;
    account_unref(person->account);
    free(person);
}

/* Of persons with about as much as each other, the one that was here first is first. */
static void rank(struct cache_ranks *ranks, struct cache_standing *standing)
{
    unsigned rank = 63u - (unsigned)__builtin_clzll(standing->bytes | 1);

    if (standing->n > 0 && !list_empty(&standing->link) && rank == standing->rank)
        return;
    list_remove(&standing->link);
    if (list_empty(&ranks->ranks[standing->rank]))
        ranks->used &= ~(UINT64_C(1) << standing->rank);
    if (standing->n == 0)
        return;
    standing->rank = rank;
    list_append(&ranks->ranks[rank], &standing->link);
    ranks->used |= UINT64_C(1) << rank;
}

void cache_stand(struct cache_owner *owner, enum cache_order order, bool joins, uint64_t n, uint64_t bytes)
{
    struct cache_standing *standing = &owner->person->standings[order];

    if (joins && n == 1)
        list_append(&standing->owners, &owner->by_person[order]);
    else if (!joins && n == 0)
        list_remove(&owner->by_person[order]);
    standing->n += joins ? 1 : UINT64_MAX;
    standing->bytes += joins ? bytes : -bytes;
    rank(&owner->cache->orders[order], standing);
}

struct cache_owner *cache_owner_with_most(const struct cache *cache, enum cache_order order)
{
    unsigned rank = 63u - (unsigned)__builtin_clzll(cache->orders[order].used);
    const struct cache_standing *standing =
        container_of(list_first(&cache->orders[order].ranks[rank]), struct cache_standing, link);

    return container_of(list_first(&standing->owners), struct cache_owner, by_person[order]);
}

void cache_end_turn(struct cache_owner *owner)
{
    for (unsigned k = 0; k < CACHE_ORDERS; k++) {
        if (list_empty(&owner->by_person[k]))
            continue;
        list_remove(&owner->by_person[k]);
        list_append(&owner->person->standings[k].owners, &owner->by_person[k]);
    }
}
