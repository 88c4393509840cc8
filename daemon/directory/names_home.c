/* SPDX-License-Identifier: Apache-2.0 */
/* This node as a home: which node has registered which name, and which nodes wait for one. */
#include <stdlib.h>

#include "daemon/directory/names_impl.h"

#define SEEKERS_MAX 4096u
#define SWEEP 4096u                     /* records that a tick looks at */
#define SEEKER_NS UINT64_C(15000000000) /* a node that waits repeats its question every 5 s */

struct seeker {
    uint8_t node[16];
    uint64_t until_ns;
};

struct name_record {
    struct name_key key;
    struct list idle;        /* in all->idle while no node has the name */
    struct name_place place; /* of the last node that had it */
    bool held;               /* false: no node has it; epoch and version are remembered */
    uint64_t heard_ns;
    struct seeker *seekers; /* [n_seekers] */
    unsigned n_seekers;
};

static void record_free(struct directory_names *all, struct name_record *record)
{
    (void)map_remove(&all->records, record->key.packed, record->key.bytes);
    list_remove(&record->idle);
    free(record->seekers);
    free(record);
}

/* A record of a name that no node has is replaced by a new one, because anyone may look for names that are never published,
 * and publish names for a moment. */
static struct name_record *record_get(struct directory_names *all, const struct name_key *key)
{
    struct name_record *record = map_get(&all->records, key->packed, key->bytes);

    if (record)
        return record;
    if (map_count(&all->records) >= NAMES_RECORDS_MAX && !list_empty(&all->idle))
        record_free(all, container_of(list_first(&all->idle), struct name_record, idle));
    if (map_count(&all->records) >= NAMES_RECORDS_MAX)
        return NULL;
    record = calloc(1, sizeof *record);
    if (!record)
        return NULL;
    record->key = *key;
    if (!map_put(&all->records, record->key.packed, record->key.bytes, record)) {
        free(record);
        return NULL;
    }
    list_append(&all->idle, &record->idle);
    return record;
}

/* Whether another node may take the name over, because the node that has it has been away for too long, or has come back
 * without the name. */
static bool is_stale(const struct directory_names *all, const struct name_record *record)
{
    const struct peer *peer = all->peers ? peers_known(all->peers, record->place.node) : NULL;
    uint64_t now = uv_hrtime();

    if (now - record->heard_ns <= NAMES_STALE_NS)
        return false;
    return !peer || peer->state != PEER_UP || (peer->since_ns > record->heard_ns && now - peer->since_ns > NAMES_STALE_NS);
}

static void tell_seekers(struct directory_names *all, struct name_record *record)
{
    uint64_t now = uv_hrtime();

    for (unsigned i = 0; i < record->n_seekers; i++) {
        struct peer *peer = peers_known(all->peers, record->seekers[i].node);
        if (peer && record->seekers[i].until_ns > now)
            (void)names_send(all, peer, RDT__PB__NAME_ACT__NAME_ACT_FOUND, &record->key, &record->place, 0);
    }
    free(record->seekers);
    record->seekers = NULL;
    record->n_seekers = 0;
}

/* Whether the name stays with the node that has it. One that has published it takes it back from one that has only claimed it,
 * because this home did not know better. */
static bool keeps(const struct directory_names *all, const struct name_record *record, const struct name_place *claim)
{
    if (!record->held) /* the other node lost the name, and the one that took it has ended it */
        return claim->epoch > 0 && claim->epoch < record->place.epoch;
    if (!record->place.published && claim->version > 0 && claim->epoch == record->place.epoch)
        return false;
    return claim->epoch <= record->place.epoch && !(claim->epoch == 0 && is_stale(all, record));
}

enum rdt_status names_home_register(struct directory_names *all, struct peer *from, const struct name_key *key,
                                    const struct name_place *claim, struct name_place *place_p)
{
    const uint8_t *node = from ? from->uuid : all->node->uuid;
    struct name_record *record = record_get(all, key);
    bool same;

    if (!record) { /* no room: this home does not object */
        *place_p = *claim;
        return RDT_LIMIT;
    }
    same = memcmp(record->place.node, node, sizeof record->place.node) == 0;
    if (!same && keeps(all, record, claim)) {
        *place_p = record->place;
        return RDT_EXISTS;
    }
    if (claim->epoch > record->place.epoch)
        record->place.epoch = claim->epoch;
    else if (!same || record->place.epoch == 0)
        record->place.epoch = name_number_after(record->place.epoch);
    if (claim->version > record->place.version)
        record->place.version = claim->version;
    memcpy(record->place.node, node, sizeof record->place.node);
    memcpy(record->place.address, claim->address, sizeof record->place.address);
    record->place.published = claim->version > 0;
    record->held = true;
    list_remove(&record->idle);
    record->heard_ns = uv_hrtime();
    *place_p = record->place;
    if (claim->version > 0 && all->peers) /* a claim alone has no version to read yet */
        tell_seekers(all, record);
    return RDT_OK;
}

void names_home_end(struct directory_names *all, const struct name_key *key, const struct name_place *claim)
{
    struct name_record *record = map_get(&all->records, key->packed, key->bytes);

    if (!record || memcmp(record->place.node, claim->node, sizeof claim->node) != 0)
        return;
    if (claim->version > record->place.version)
        record->place.version = claim->version;
    record->held = record->place.published = false;
    list_remove(&record->idle);
    list_append(&all->idle, &record->idle);
}

static void note_seeker(struct name_record *record, const struct peer *from)
{
    uint64_t now = uv_hrtime();
    struct seeker *grown;
    unsigned free_at = record->n_seekers;

    for (unsigned i = 0; i < record->n_seekers; i++) {
        if (memcmp(record->seekers[i].node, from->uuid, 16) == 0) {
            record->seekers[i].until_ns = now + SEEKER_NS;
            return;
        }
        if (record->seekers[i].until_ns < now)
            free_at = i;
    }
    if (free_at == record->n_seekers) {
        grown = record->n_seekers < SEEKERS_MAX ? realloc(record->seekers, (record->n_seekers + 1) * sizeof *grown) : NULL;
        if (!grown)
            return; /* the node asks again */
        record->seekers = grown;
        record->n_seekers++;
    }
    memcpy(record->seekers[free_at].node, from->uuid, 16);
    record->seekers[free_at].until_ns = now + SEEKER_NS;
}

enum rdt_status names_home_seek(struct directory_names *all, struct peer *from, const struct name_key *key,
                                struct name_place *place_p)
{
    struct name_record *record = from ? record_get(all, key) : map_get(&all->records, key->packed, key->bytes);

    if (record && record->held && record->place.version > 0) {
        *place_p = record->place;
        return RDT_OK;
    }
    if (record && from)
        note_seeker(record, from);
    *place_p = record && record->held ? record->place : (struct name_place){0};
    return RDT_AGAIN;
}

static bool is_sought(const struct name_record *record, uint64_t now)
{
    for (unsigned i = 0; i < record->n_seekers; i++)
        if (record->seekers[i].until_ns > now)
            return true;
    return false;
}

void names_home_tick(struct directory_names *all, uint64_t now_ns)
{
    struct name_record *record;

    for (unsigned i = 0; i < SWEEP; i++) {
        record = map_next(&all->records, &all->sweep);
        if (!record) {
            all->sweep = 0;
            return;
        }
        if (record->place.epoch == 0 && !is_sought(record, now_ns))
            record_free(all, record);
    }
}

void names_home_close(struct directory_names *all)
{
    struct name_record *record;
    size_t cursor = 0;

    while ((record = map_next(&all->records, &cursor)))
        record_free(all, record);
    map_fini(&all->records);
}
