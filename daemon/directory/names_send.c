/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes that are asked about a name, which are its homes, and the messages to them. */
#include <stdio.h>
#include <stdlib.h>
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
            if (peer->names.understood && peer_listed_by(peer) >= 0)
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

/* Messages to one node that have everything but these columns in common. */
struct name_list {
    struct list link;
    struct peer *peer;
    Rdt__Pb__NameAct act;
    struct owner owner;
    bool placed; /* they have node, address and published of `place` */
    struct name_place place;
    size_t n, bytes;
    uint32_t name_bytes[RDT_MAX_NAME_LIST];
    uint64_t epoch[RDT_MAX_NAME_LIST], version[RDT_MAX_NAME_LIST], question[RDT_MAX_NAME_LIST];
    uint8_t names[RDT_MAX_NAME_LIST * RDT_MAX_ID_BYTES];
};

/* What the messages of a list have in common. */
static Rdt__Pb__Name make_like(Rdt__Pb__NameAct act, const struct owner *owner, const struct name_place *place,
                               Rdt__Pb__Requester *requester)
{
    Rdt__Pb__Name message = RDT__PB__NAME__INIT;

    *requester = (Rdt__Pb__Requester)RDT__PB__REQUESTER__INIT;
    requester->tenant = (char *)owner->tenant;
    requester->uid = owner->uid;
    message.act = act;
    message.owner = requester;
    if (place) {
        message.node = (ProtobufCBinaryData){16, (uint8_t *)place->node};
        message.address = (char *)place->address;
        message.published = place->published;
    }
    return message;
}

static bool send_one(struct peer *peer, Rdt__Pb__NameAct act, const struct name_key *key, const struct name_place *place,
                     uint64_t question)
{
    Rdt__Pb__Requester requester;
    Rdt__Pb__Name message = make_like(act, &key->owner, place, &requester);

    message.name = (ProtobufCBinaryData){key->id_bytes, (uint8_t *)name_key_id(key)};
    message.question = question;
    if (place) {
        message.epoch = place->epoch;
        message.version = place->version;
    }
    return peer_send(peer, RDT_PEER_NAME, &message.base, NULL) == RDT_OK;
}

/* Not of an empty list. If the link has failed, the other end has not heard of it, as of what was sent just before. */
static void send_list(struct name_list *list)
{
    Rdt__Pb__Requester requester;
    Rdt__Pb__Name like = make_like(list->act, &list->owner, list->placed ? &list->place : NULL, &requester);
    Rdt__Pb__NameList message = RDT__PB__NAME_LIST__INIT;

    message.like = &like;
    message.names = (ProtobufCBinaryData){list->bytes, list->names};
    message.name_bytes = list->name_bytes;
    message.epoch = list->epoch;
    message.version = list->version;
    message.question = list->question;
    message.n_name_bytes = message.n_epoch = message.n_version = message.n_question = list->n;
    (void)peer_send(list->peer, RDT_PEER_NAME_LIST, &message.base, NULL);
    list->n = list->bytes = 0;
}

static bool is_alike(const struct name_list *list, Rdt__Pb__NameAct act, const struct owner *owner,
                     const struct name_place *place)
{
    return list->act == act && owner_equal(&list->owner, owner) && list->placed == (place != NULL) &&
           (!place || (list->place.published == place->published && memcmp(list->place.node, place->node, 16) == 0 &&
                       strcmp(list->place.address, place->address) == 0));
}

/* false: no memory. */
static bool cork(struct directory_names *all, struct peer *peer, Rdt__Pb__NameAct act, const struct name_key *key,
                 const struct name_place *place, uint64_t question)
{
    struct name_list *list = peer->names.corked;

    if (!list) {
        list = malloc(sizeof *list);
        if (!list)
            return false;
        peer->names.corked = list;
        list->peer = peer;
        list->n = list->bytes = 0;
        list_init(&list->link);
        list_append(&all->telling.corked, &list->link);
    }
    if (list->n > 0 && (list->n == RDT_MAX_NAME_LIST || !is_alike(list, act, &key->owner, place)))
        send_list(list);
    if (list->n == 0) {
        list->act = act;
        list->owner = key->owner;
        list->placed = place != NULL;
        list->place = place ? *place : (struct name_place){0};
    }
    memcpy(list->names + list->bytes, name_key_id(key), key->id_bytes);
    list->bytes += key->id_bytes;
    list->name_bytes[list->n] = (uint32_t)key->id_bytes;
    list->epoch[list->n] = place ? place->epoch : 0;
    list->version[list->n] = place ? place->version : 0;
    list->question[list->n++] = question;
    return true;
}

bool names_send(struct directory_names *all, struct peer *peer, Rdt__Pb__NameAct act, const struct name_key *key,
                const struct name_place *place, uint64_t question)
{
    if (peer->state != PEER_UP || !peer->names.understood)
        return false;
    return (all->telling.n_corks > 0 && peer->names.lists && cork(all, peer, act, key, place, question)) ||
           send_one(peer, act, key, place, question);
}

void directory_names_cork(struct directory_names *all)
{
    all->telling.n_corks++;
}

void directory_names_uncork(struct directory_names *all)
{
    if (--all->telling.n_corks > 0)
        return;
    list_drain (struct name_list, list, &all->telling.corked, link) {
        list_remove(&list->link);
        list->peer->names.corked = NULL;
        send_list(list);
        free(list);
    }
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
