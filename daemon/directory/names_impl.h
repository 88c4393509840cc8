/* SPDX-License-Identifier: Apache-2.0 */
/* What the files about names share. Private to the room. From the top down, each calls only those on lower lines:
 *
 *   directory_names.c   messages from other nodes
 *   names_seek.c        readers of this node
 *   names_claim.c       the names that are published here
 *   names_home.c        this node as a home
 *   names_send.c        which nodes are asked about a name, and the messages to them */
#ifndef DAEMON_NAMES_IMPL_H
#define DAEMON_NAMES_IMPL_H

#include <string.h>

#include "daemon/directory/directory_names.h"
#include "proto/wire_limits.h"

/* Returns the next epoch. The present one comes from another node, so it may already be the highest. */
static inline uint64_t name_number_after(uint64_t number)
{
    return number < RDT_MAX_NUMBER ? number + 1 : RDT_MAX_NUMBER;
}

/* Owner and name as a key of a map. */
struct name_key {
    struct owner owner;
    size_t id_bytes, bytes;
    uint8_t packed[OWNER_KEY_MAX_BYTES]; /* [bytes], which end with the name */
};

static inline const uint8_t *name_key_id(const struct name_key *key)
{
    return key->packed + key->bytes - key->id_bytes;
}

void name_key_make(struct name_key *key_p, const struct owner *owner, const uint8_t *id, size_t id_bytes);

struct name_homes {
    unsigned n;
    struct peer *peer[NAMES_HOMES]; /* NULL: this node itself */
};
void names_homes_of(const struct directory_names *all, const struct name_key *key, struct name_homes *homes_p);

/* Whether this node was started a moment ago and has yet to meet nodes of the table, which may be homes. A node that did not
 * answer its first dial is not waited for. */
bool names_meet(const struct directory_names *all);

struct name_place { /* the node that has a name */
    uint64_t epoch, version;
    uint8_t node[16];
    char address[65];
    bool published; /* it has told a version to the home; otherwise the version is an earlier node's, or 0 */
};

static inline bool name_place_is_set(const struct name_place *place)
{
    static const uint8_t nobody[16];

    return memcmp(place->node, nobody, sizeof nobody) != 0;
}

/* ---- names_send.c ---- */

/* Sends a message about the name. question: its number, or that of the question that it answers; 0: none. false: the link is
 * not up. */
bool names_send(const struct directory_names *all, struct peer *peer, Rdt__Pb__NameAct act, const struct name_key *key,
                const struct name_place *place, uint64_t question);

/* Writes which node a place is at, for an error or a log line. */
void names_describe(const struct directory_names *all, const struct name_place *place, char text[128]);

/* ---- names_home.c: this node as a home ---- */

/* Handles a registration. OK: granted; LIMIT: this home has no room for it, and does not object; EXISTS: refused. *place_p
 * receives what this home knows now. from NULL: this node. */
enum rdt_status names_home_register(struct directory_names *all, struct peer *from, const struct name_key *key,
                                    const struct name_place *claim, struct name_place *place_p);
void names_home_end(struct directory_names *all, const struct name_key *key, const struct name_place *claim);

/* Handles a look-up. from NULL: a reader of this node, to which no message is sent. AGAIN: no node has registered a version of
 * the name; *place_p is the node that has claimed it, or zero. */
enum rdt_status names_home_seek(struct directory_names *all, struct peer *from, const struct name_key *key,
                                struct name_place *place_p);
/* Forgets a few of the names that were only looked up, and for which nobody waits any more. */
void names_home_tick(struct directory_names *all, uint64_t now_ns);
void names_home_close(struct directory_names *all);

/* ---- names_claim.c: the names that are published here ---- */

/* question: that the home answers; 0: it does not say. */
void names_claim_answer(struct directory_names *all, struct peer *from, const struct name_key *key,
                        const struct name_place *place, bool granted, uint64_t question);

/* The node, which may be a home of the name, can say nothing of its owner. */
void names_claim_away(struct directory_names *all, const struct peer *from, const struct name_key *key, uint64_t question);

/* Whether another node has taken the name over. */
bool names_claim_lost(const struct directory_names *all, const struct name_key *key, struct name_place *place_p);
bool names_claim_held(const struct directory_names *all, const struct name_key *key);
void names_claims_flush(struct deadline *deadline);
void names_claims_tick(struct directory_names *all, uint64_t now_ns);
void names_claims_tell_again(struct directory_names *all); /* all of them, in steps */
void names_claims_close(struct directory_names *all);

/* ---- names_seek.c: readers of this node ---- */

void names_seek_found(struct directory_names *all, const struct name_key *key, const struct name_place *place);
/* Notifies the seekers with on_missing when every home that can be asked has answered MISSING to a question that was sent for
 * them or later. question: as in names_claim_answer. */
void names_seek_missing(struct directory_names *all, const struct peer *from, const struct name_key *key,
                        const struct name_place *claimed, uint64_t question);
void names_seeks_tick(struct directory_names *all);
void names_seeks_peer_up(struct directory_names *all, struct peer *peer);
void names_seeks_close(struct directory_names *all);

#endif
