/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes that are asked about a name, which are its homes, and the messages to them. */
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "daemon/directory/names_impl.h"

bool directory_names_active(const struct directory_names *all)
{
    const struct options *options = all->options;

    return all->peers && strcmp(options->names, "nodes") == 0 &&
           (options->nodes[0] != '\0' || options->nodes_dns[0] != '\0' || options->etcd_endpoints[0] != '\0');
}

void name_key_make(struct name_key *key_p, const struct owner *owner, const uint8_t *id, size_t id_bytes)
{
    key_p->owner = *owner;
    key_p->id_bytes = id_bytes;
    key_p->bytes = owner_key(key_p->packed, owner, id, id_bytes);
}

/* ---- homes ---- */

/* The result is the same on every node. */
static uint64_t hash_of(const struct name_key *key)
{
    return XXH3_64bits(key->packed, key->bytes);
}

static uint64_t weight(uint64_t hash, const uint8_t uuid[16])
{
    return XXH3_64bits_withSeed(uuid, 16, hash);
}

static void consider(struct name_homes *homes, uint64_t weights[NAMES_HOMES], struct peer *peer, uint64_t of)
{
    unsigned at = homes->n;

    while (at > 0 && weights[at - 1] < of)
        at--;
    if (at == NAMES_HOMES)
        return;
    if (homes->n < NAMES_HOMES)
        homes->n++;
    for (unsigned i = homes->n - 1; i > at; i--) {
        homes->peer[i] = homes->peer[i - 1];
        weights[i] = weights[i - 1];
    }
    homes->peer[at] = peer;
    weights[at] = of;
}

/* Whether other nodes may act for the owner here: an answer about another owner's name would not be believed. */
static bool is_shared(const struct directory_names *all, const struct owner *owner)
{
    Rdt__Pb__Requester requester = RDT__PB__REQUESTER__INIT;
    struct owner same;

    requester.uid = owner->uid;
    requester.tenant = (char *)owner->tenant;
    return all->check_requester(all->arg, &requester, &same, NULL);
}

/* Of this node and the nodes of the table that were met at least once. */
void names_homes_of(const struct directory_names *all, const struct name_key *key, struct name_homes *homes_p)
{
    uint64_t weights[NAMES_HOMES], hash = hash_of(key);

    homes_p->n = 0;
    consider(homes_p, weights, NULL, weight(hash, all->node->uuid));
    if (all->peers && is_shared(all, &key->owner))
        list_each (struct peer, peer, peers_all(all->peers), link)
            if (peer->names && peer_listed_by(peer) >= 0)
                consider(homes_p, weights, peer, weight(hash, peer->uuid));
}

bool names_meet(const struct directory_names *all)
{
    if (!all->peers || uv_hrtime() - all->started_ns >= NAMES_MEET_NS)
        return false;
    list_each (struct peer, peer, peers_all(all->peers), link)
        if (peer_listed_by(peer) >= 0 && peer->epoch == 0 && peer->last_error[0] == '\0')
            return true;
    return false;
}

/* ---- messages ---- */

bool names_send(const struct directory_names *all, struct peer *peer, Rdt__Pb__NameAct act, const struct name_key *key,
                const struct name_place *place, uint64_t question)
{
    Rdt__Pb__Name message = RDT__PB__NAME__INIT;
    Rdt__Pb__Requester owner = RDT__PB__REQUESTER__INIT;

    if (peer->state != PEER_UP || !peer->names)
        return false;
    owner.tenant = (char *)key->owner.tenant;
    owner.uid = key->owner.uid;
    message.act = act;
    message.owner = &owner;
    message.question = question;
    message.name = (ProtobufCBinaryData){key->id_bytes, (uint8_t *)name_key_id(key)};
    if (place) {
        message.epoch = place->epoch;
        message.version = place->version;
        message.node = (ProtobufCBinaryData){16, (uint8_t *)place->node};
        message.address = (char *)place->address;
        message.published = place->published;
    }
    return peer_send(peer, RDT_PEER_NAME, &message.base, NULL) == RDT_OK;
}

/* ---- text ---- */

void names_describe(const struct directory_names *all, const struct name_place *place, char text[128])
{
    const struct peer *peer = all->peers ? peers_known(all->peers, place->node) : NULL;
    char hex[33];

    if (peer) {
        peer_describe(peer, text);
        return;
    }
    node_hex(place->node, hex);
    (void)snprintf(text, 128, "node %.8s at %s", hex, place->address);
}
