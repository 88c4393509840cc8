/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of this node that look for a name, and the place where it was found last. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/directory/names_impl.h"

#define ASK_AGAIN_NS UINT64_C(5000000000)
#define MEMORY_MAX 65536u /* the most names whose place is remembered, in case no home answers */

struct name_seek {
    struct list link; /* in all->sought or all->to_ask, the one that was asked longest ago first */
    struct directory_names *all;
    struct name_key key;
    struct list seekers; /* struct name_seeker; this and the next three empty: the entry only remembers `place` */
    struct list later;   /* the same: they came during the present round of questions, whose answers say nothing to them */
    struct list unaware; /* the same: they have not been told yet that no home knows it */
    struct list found;   /* the same: nor that it is at found_at */
    struct list by_telling;
    struct name_place found_at;
    struct name_place place;   /* where it was found last; epoch 0: nowhere */
    struct name_place claimed; /* by a node of which no home knows that it has published the name; zero: none */
    bool busy;                 /* its seekers are being notified, so it must not be freed */
    uint64_t asked_ns;
    uint64_t asked; /* the number of the last question */
    uint64_t since; /* that of the first one of the present round; answers to earlier ones are passed over. 0: no round */
    unsigned n_missing;
    struct {
        uint8_t home[16];
        uint64_t question;
    } missing[NAMES_HOMES]; /* homes that did not know it when they had the question, one of this round */
};

static struct name_seek *seek_get(struct directory_names *all, const struct name_key *key)
{
    struct name_seek *seek = map_get(&all->seeks, key->packed, key->bytes);

    if (seek || !(seek = calloc(1, sizeof *seek)))
        return seek;
    seek->all = all;
    seek->key = *key;
    list_init(&seek->link);
    list_init(&seek->seekers);
    list_init(&seek->later);
    list_init(&seek->unaware);
    list_init(&seek->found);
    list_init(&seek->by_telling);
    if (!map_put(&all->seeks, seek->key.packed, seek->key.bytes, seek)) {
        free(seek);
        return NULL;
    }
    return seek;
}

static void settle(struct name_seek *seek)
{
    bool asks = !list_empty(&seek->seekers) || !list_empty(&seek->later) || !list_empty(&seek->unaware);

    if (!asks && !seek->busy)
        list_remove(&seek->link);
    if (seek->busy || asks || !list_empty(&seek->found) || (seek->place.epoch > 0 && map_count(&seek->all->seeks) < MEMORY_MAX))
        return;
    list_remove(&seek->by_telling);
    map_remove(&seek->all->seeks, seek->key.packed, seek->key.bytes);
    free(seek);
}

static bool can_ask(const struct name_homes *homes)
{
    for (unsigned i = 0; i < homes->n; i++)
        if (homes->peer[i] && homes->peer[i]->state == PEER_UP)
            return true;
    return false;
}

static bool is_here(const struct directory_names *all, const struct name_place *place)
{
    return memcmp(place->node, all->node->uuid, sizeof place->node) == 0;
}

enum rdt_status directory_names_find(struct directory_names *all, const struct owner *owner, const uint8_t *id, size_t id_bytes,
                                     uint8_t node_p[16], char address_p[65])
{
    const struct name_seek *seek;
    struct name_place place = {0};
    struct name_homes homes;
    struct name_key key;
    bool found;

    if (!directory_names_active(all))
        return RDT_NOT_FOUND;
    name_key_make(&key, owner, id, id_bytes);
    if (names_claim_held(all, &key))
        return RDT_NOT_FOUND;
    found = names_claim_lost(all, &key, &place) || names_home_seek(all, NULL, &key, &place) == RDT_OK;
    if (found && is_here(all, &place)) /* this daemon has restarted without the name */
        found = false;
    names_homes_of(all, &key, &homes);
    if (!found && can_ask(&homes))
        return RDT_AGAIN;
    seek = found ? NULL : map_get(&all->seeks, key.packed, key.bytes);
    if (seek && seek->place.epoch > 0) {
        place = seek->place;
        found = true;
        all->n_by_memory++;
    }
    if (!found)
        return RDT_NOT_FOUND;
    all->n_found++;
    memcpy(node_p, place.node, 16);
    text_copy(address_p, 65, place.address);
    return RDT_OK;
}

/* The last question is the first one of a round. */
static void begin_round(struct name_seek *seek)
{
    unsigned n = 0;

    list_splice(&seek->seekers, &seek->later);
    seek->since = seek->asked;
    for (unsigned k = 0; k < seek->n_missing; k++)
        if (seek->missing[k].question >= seek->since)
            seek->missing[n++] = seek->missing[k];
    seek->n_missing = n;
}

static void ask(struct name_seek *seek, bool anew)
{
    struct name_homes homes;

    seek->asked_ns = uv_hrtime();
    seek->asked = ++seek->all->telling.n_questions;
    if (anew) {
        seek->claimed = (struct name_place){0};
        begin_round(seek);
    }
    list_remove(&seek->link);
    list_append(&seek->all->sought, &seek->link);
    names_homes_of(seek->all, &seek->key, &homes);
    for (unsigned i = 0; i < homes.n; i++)
        if (homes.peer[i])
            (void)names_send(seek->all, homes.peer[i], RDT__PB__NAME_ACT__NAME_ACT_SEEK, &seek->key, NULL, seek->asked);
}

enum rdt_status directory_names_seek(struct directory_names *all, const struct owner *owner, const uint8_t *id, size_t id_bytes,
                                     struct name_seeker *seeker, struct rdt_error *err)
{
    struct name_seek *seek;
    struct name_key key;

    name_key_make(&key, owner, id, id_bytes);
    seek = seek_get(all, &key);
    if (!seek)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to look for a name");
    seeker->seek = seek;
    list_append(&seek->later, &seeker->link);
    ask(seek, seek->since == 0);
    return RDT_OK;
}

void name_seeker_remove(struct name_seeker *seeker)
{
    struct name_seek *seek = seeker->seek;

    if (!seeker->link.next)
        return;
    list_remove(&seeker->link);
    seeker->seek = NULL;
    if (seek)
        settle(seek);
}

static void tell_found(struct name_seek *seek, struct name_seeker *seeker)
{
    list_remove(&seeker->link);
    seeker->seek = NULL;
    seek->all->n_found++;
    seeker->on_found(seeker, seek->found_at.node, seek->found_at.address);
}

static void tell_missing(struct name_seek *seek, struct name_seeker *seeker)
{
    struct name_place place;
    bool claimed;

    list_remove(&seeker->link);
    list_append(&seek->seekers, &seeker->link);
    if (!name_place_is_set(&seek->claimed)) /* this node may be a home, too */
        (void)names_home_seek(seek->all, NULL, &seek->key, &seek->claimed);
    place = seek->claimed;
    claimed = name_place_is_set(&place) && !is_here(seek->all, &place);
    if (seeker->on_missing) /* which may remove it and any other */
        seeker->on_missing(seeker, claimed ? place.node : NULL, place.address);
}

/* Returns false if nobody is to be told. */
static bool tell_one(struct name_seek *seek)
{
    if (!list_empty(&seek->found))
        tell_found(seek, container_of(list_first(&seek->found), struct name_seeker, link));
    else if (!list_empty(&seek->unaware))
        tell_missing(seek, container_of(list_first(&seek->unaware), struct name_seeker, link));
    else
        return false;
    return true;
}

static bool tell_some(struct slice *slice, uint64_t until_ns)
{
    struct directory_names *all = container_of(slice, struct directory_names, telling.tell);

    list_drain (struct name_seek, seek, &all->telling.seeks, by_telling) {
        bool left;
        list_remove(&seek->by_telling);
        seek->busy = true;
        while ((left = tell_one(seek)) && uv_hrtime() < until_ns)
            ;
        seek->busy = false;
        if (left && list_empty(&seek->by_telling))
            list_append(&all->telling.seeks, &seek->by_telling);
        settle(seek);
        if (uv_hrtime() >= until_ns)
            break;
    }
    return list_empty(&all->telling.seeks);
}

/* Thousands may look for one name. */
static void begin_telling(struct name_seek *seek)
{
    struct directory_names *all = seek->all;

    if (list_empty(&seek->by_telling))
        list_append(&all->telling.seeks, &seek->by_telling);
    all->telling.tell.run = tell_some;
    slice_begin(&all->deadlines->slices, &all->telling.tell);
}

void names_seek_found(struct directory_names *all, const struct name_key *key, const struct name_place *place)
{
    struct name_seek *seek = map_get(&all->seeks, key->packed, key->bytes);

    if (!seek || is_here(all, place))
        return;
    seek->place = seek->found_at = *place;
    list_splice(&seek->found, &seek->unaware);
    list_splice(&seek->found, &seek->seekers);
    list_splice(&seek->found, &seek->later);
    seek->since = 0;
    begin_telling(seek);
}

/* Whether every home that can be asked has answered MISSING in this round. */
static bool all_missing(const struct name_seek *seek)
{
    struct name_homes homes;

    names_homes_of(seek->all, &seek->key, &homes);
    for (unsigned i = 0; i < homes.n; i++) {
        bool said = !homes.peer[i] || homes.peer[i]->state != PEER_UP;
        for (unsigned k = 0; k < seek->n_missing; k++)
            said |= homes.peer[i] && memcmp(seek->missing[k].home, homes.peer[i]->uuid, 16) == 0;
        if (!said)
            return false;
    }
    return seek->n_missing > 0;
}

/* While an answer is on its way, the name may be published, and looked for anew: that seeker waits for the next round, whose
 * questions have been sent already. */
void names_seek_missing(struct directory_names *all, const struct peer *from, const struct name_key *key,
                        const struct name_place *claimed, uint64_t question)
{
    struct name_seek *seek = map_get(&all->seeks, key->packed, key->bytes);
    unsigned k = 0;

    if (!seek || seek->since == 0 || (question > 0 && question < seek->since))
        return;
    while (k < seek->n_missing && memcmp(seek->missing[k].home, from->uuid, 16) != 0)
        k++;
    if (k == NAMES_HOMES)
        return;
    if (k == seek->n_missing)
        memcpy(seek->missing[seek->n_missing++].home, from->uuid, 16);
    seek->missing[k].question = question > 0 ? question : seek->asked;
    if (name_place_is_set(claimed))
        seek->claimed = *claimed;
    while (seek->since > 0 && all_missing(seek)) {
        all->n_missing++;
        list_splice(&seek->unaware, &seek->seekers);
        if (list_empty(&seek->later))
            seek->since = 0;
        else
            begin_round(seek);
    }
    if (!list_empty(&seek->unaware))
        begin_telling(seek); /* which may free it */
}

static bool ask_some(struct slice *slice, uint64_t until_ns)
{
    struct directory_names *all = container_of(slice, struct directory_names, asking);
    static const uint8_t nobody[16];
    bool only = memcmp(all->ask_only, nobody, sizeof nobody) != 0;
    struct peer *peer = only && all->peers ? peers_known(all->peers, all->ask_only) : NULL;

    while (!list_empty(&all->to_ask)) {
        struct name_seek *seek = container_of(list_first(&all->to_ask), struct name_seek, link);
        if (only) {
            list_remove(&seek->link);
            list_append(&all->sought, &seek->link);
            if (peer)
                (void)names_send(all, peer, RDT__PB__NAME_ACT__NAME_ACT_SEEK, &seek->key, NULL, seek->asked);
        } else {
            ask(seek, true);
        }
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

static void ask_all(struct directory_names *all, const struct peer *peer)
{
    if (!peer || !list_empty(&all->to_ask)) /* others are being asked already: all of them ask every home again */
        memset(all->ask_only, 0, sizeof all->ask_only);
    else
        memcpy(all->ask_only, peer->uuid, sizeof all->ask_only);
    list_splice(&all->to_ask, &all->sought);
    all->asking.run = ask_some;
    slice_begin(&all->deadlines->slices, &all->asking);
}

void names_seeks_tick(struct directory_names *all)
{
    uint64_t now = uv_hrtime();

    if (!list_empty(&all->sought) &&
        now - container_of(list_first(&all->sought), struct name_seek, link)->asked_ns > ASK_AGAIN_NS)
        ask_all(all, NULL);
}

void names_seeks_peer_up(struct directory_names *all, struct peer *peer)
{
    ask_all(all, peer);
}

/* A node that is listed and was not met since this daemon started has no uuid here, so it is nobody's home, and may know the
 * name all the same. */
static void explain_unmet(const struct directory_names *all, char *text_p, size_t size)
{
    static const uint8_t nobody[16];
    const struct peer *first = NULL;
    unsigned unmet = 0;

    list_each (const struct peer, peer, peers_all(all->peers), link)
        if (memcmp(peer->uuid, nobody, sizeof nobody) == 0 && peer->state != PEER_UP && peer_listed_by(peer) >= 0 &&
            unmet++ == 0)
            first = peer;
    if (unmet == 1)
        (void)snprintf(text_p, size, "; node %.40s at %.65s is listed, was not met yet and cannot be asked", first->name,
                       first->address);
    else if (unmet > 1)
        (void)snprintf(text_p, size, "; %u nodes are listed, were not met yet and cannot be asked, such as %.40s at %.65s",
                       unmet, first->name, first->address);
}

void directory_names_explain(const struct directory_names *all, const struct owner *owner, const uint8_t *id, size_t id_bytes,
                             char *text_p, size_t size)
{
    struct name_homes homes;
    struct name_key key;
    unsigned away = 0;
    const char *first = "";

    text_p[0] = '\0';
    if (!directory_names_active(all))
        return;
    name_key_make(&key, owner, id, id_bytes);
    names_homes_of(all, &key, &homes);
    for (unsigned i = 0; i < homes.n; i++)
        if (homes.peer[i] && homes.peer[i]->state != PEER_UP && away++ == 0)
            first = homes.peer[i]->name;
    if (away > 0)
        (void)snprintf(text_p, size, "; %u of the %u nodes that would know the name cannot be asked (%.40s)", away, homes.n,
                       first);
    explain_unmet(all, text_p + strlen(text_p), size - strlen(text_p));
}

void names_seeks_close(struct directory_names *all)
{
    struct name_seek *seek;
    size_t cursor = 0;

    slice_stop(&all->asking);
    slice_stop(&all->telling.tell);
    while ((seek = map_next(&all->seeks, &cursor))) {
        list_splice(&seek->seekers, &seek->later);
        list_splice(&seek->seekers, &seek->unaware);
        list_splice(&seek->seekers, &seek->found);
        list_for_each_safe (node, &seek->seekers) {
            container_of(node, struct name_seeker, link)->seek = NULL;
            list_remove(node);
        }
        free(seek);
    }
    map_fini(&all->seeks);
}
