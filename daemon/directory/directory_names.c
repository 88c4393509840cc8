/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of other nodes about names, and the start and end of everything about names. */
#include "daemon/directory/directory_names.h"

#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "daemon/directory/names_impl.h"
#include "proto/wire_limits.h"

#define TICK_NS INT64_C(1000000000)

bool ref_is_unplaced(const struct rdt_ref *ref)
{
    static const uint8_t nobody[16];

    return ref->is_name && ref->address[0] == '\0' && memcmp(ref->node, nobody, sizeof nobody) == 0;
}

/* ---- messages ---- */

static void on_register(struct directory_names *all, struct peer *peer, const struct name_key *key, struct name_place *place,
                        uint64_t question)
{
    struct name_place known;
    enum rdt_status status;

    /* the node states its own address; without one, other nodes reach it only by the link that it dialled */
    memcpy(place->node, peer->uuid, sizeof place->node);
    if (place->address[0] == '\0')
        text_copy(place->address, sizeof place->address, peer->address);
    status = names_home_register(all, peer, key, place, &known);
    if (status == RDT_OK && place->version > 0)
        names_seek_found(all, key, &known);
    (void)names_send(all, peer,
                     status == RDT_EXISTS ? RDT__PB__NAME_ACT__NAME_ACT_REFUSED : RDT__PB__NAME_ACT__NAME_ACT_GRANTED, key,
                     &known, question);
}

static void on_seek(struct directory_names *all, struct peer *peer, const struct name_key *key, uint64_t question)
{
    struct name_place place;
    bool found = names_home_seek(all, peer, key, &place) == RDT_OK;

    (void)names_send(all, peer, found ? RDT__PB__NAME_ACT__NAME_ACT_FOUND : RDT__PB__NAME_ACT__NAME_ACT_MISSING, key,
                     found || name_place_is_set(&place) ? &place : NULL, question);
}

/* A node that may not act for an owner has no names of that owner, and is told so: it would wait. */
static void refuse_owner(struct directory_names *all, struct peer *peer, const Rdt__Pb__Name *message)
{
    struct owner owner = {.uid = message->owner->uid};
    struct name_key key;

    if (message->act != RDT__PB__NAME_ACT__NAME_ACT_REGISTER && message->act != RDT__PB__NAME_ACT__NAME_ACT_SEEK)
        return;
    text_copy(owner.tenant, sizeof owner.tenant, message->owner->tenant);
    name_key_make(&key, &owner, message->name.data, message->name.len);
    (void)names_send(all, peer, RDT__PB__NAME_ACT__NAME_ACT_NOT_SHARED, &key, NULL, message->question);
}

static void take(struct directory_names *all, struct peer *peer, const Rdt__Pb__Name *message)
{
    struct name_place place = {.epoch = message->epoch, .version = message->version, .published = message->published};
    struct owner owner;
    struct name_key key;

    if (!all->check_requester(all->arg, message->owner, &owner, NULL)) {
        refuse_owner(all, peer, message);
        return;
    }
    name_key_make(&key, &owner, message->name.data, message->name.len);
    if (message->node.len == sizeof place.node)
        memcpy(place.node, message->node.data, sizeof place.node);
    text_copy(place.address, sizeof place.address, message->address);
    switch (message->act) {
    case RDT__PB__NAME_ACT__NAME_ACT_REGISTER:
        on_register(all, peer, &key, &place, message->question);
        break;
    case RDT__PB__NAME_ACT__NAME_ACT_END:
        memcpy(place.node, peer->uuid, sizeof place.node);
        names_home_end(all, &key, &place);
        break;
    case RDT__PB__NAME_ACT__NAME_ACT_GRANTED:
    case RDT__PB__NAME_ACT__NAME_ACT_REFUSED:
        names_claim_answer(all, peer, &key, &place, message->act == RDT__PB__NAME_ACT__NAME_ACT_GRANTED, message->question);
        break;
    case RDT__PB__NAME_ACT__NAME_ACT_SEEK:
        on_seek(all, peer, &key, message->question);
        break;
    case RDT__PB__NAME_ACT__NAME_ACT_FOUND:
        names_seek_found(all, &key, &place);
        break;
    case RDT__PB__NAME_ACT__NAME_ACT_MISSING:
        names_seek_missing(all, peer, &key, &place, message->question);
        break;
    case RDT__PB__NAME_ACT__NAME_ACT_NOT_SHARED:
        names_claim_away(all, peer, &key, message->question);
        names_seek_missing(all, peer, &key, &(struct name_place){0}, message->question);
        break;
    default: /* of a later version */
        break;
    }
}

static enum rdt_status check(const Rdt__Pb__Name *message, struct rdt_error *err)
{
    if (message->name.len == 0 || message->name.len > RDT_MAX_ID_BYTES || !message->owner)
        return rdt_error_set(err, RDT_PROTOCOL, "a message about a name has no name or no owner");
    if (strlen(message->address) > RDT_MAX_ADDRESS_BYTES || strlen(message->owner->tenant) > 32)
        return rdt_error_set(err, RDT_PROTOCOL, "a message about a name has a text that is too long");
    return RDT_OK;
}

/* Whether the epoch and the version are in range. Otherwise the message is to be ignored, and a line in the log says so. */
static bool check_numbers(struct directory_names *all, const Rdt__Pb__Name *message, const char *from)
{
    char text[160];

    if (rdt_number_is_valid(message->version) && rdt_number_is_valid(message->epoch))
        return true;
    (void)snprintf(text, sizeof text, "it gives a name version %llu in epoch %llu, which no rdtd counts to: it is ignored",
                   (unsigned long long)message->version, (unsigned long long)message->epoch);
    log_warn_rarely(&all->impossible, from, text);
    return false;
}

enum rdt_status directory_names_on_message(struct directory_names *all, struct peer *peer, const Rdt__Pb__Name *message,
                                           struct rdt_error *err)
{
    enum rdt_status status = check(message, err);

    if (status == RDT_OK && check_numbers(all, message, peer->name))
        take(all, peer, message);
    return status;
}

void directory_names_peer_up(struct directory_names *all, struct peer *peer)
{
    if (!peer->names || !directory_names_active(all))
        return;
    names_claims_tell_again(all); /* not only those of which this node is a home now: the table may have changed */
    names_seeks_peer_up(all, peer);
}

/* ---- start and end ---- */

static void on_tick(struct deadline *deadline)
{
    struct directory_names *all = container_of(deadline, struct directory_names, tick);

    if (directory_names_active(all)) {
        names_claims_tick(all, uv_hrtime());
        names_seeks_tick(all);
        names_home_tick(all, uv_hrtime());
    }
    (void)deadline_set(all->deadlines, &all->tick, TICK_NS);
}

static void on_change(void *arg, struct name *name)
{
    directory_names_changed(arg, name);
}

void directory_names_start(struct directory_names *all)
{
    map_init(&all->records);
    map_init(&all->claims);
    map_init(&all->seeks);
    list_init(&all->sought);
    list_init(&all->telling.seeks);
    list_init(&all->telling.decided);
    list_init(&all->to_ask);
    list_init(&all->idle);
    list_init(&all->claimed);
    list_init(&all->dirty);
    all->impossible.every_ns = UINT64_C(60000000000);
    all->refused_lines.every_ns = UINT64_C(1000000000);
    all->started_ns = uv_hrtime();
    all->tick.on_passed = on_tick;
    all->flush.on_passed = names_claims_flush;
    if (!all->peers)
        return;
    for (struct name *name = names_next(all->names, 0); name; name = names_next(all->names, name->number))
        directory_names_changed(all, name);
    all->observer = (struct names_observer){.on_change = on_change, .arg = all};
    list_append(&all->names->observers, &all->observer.link);
    (void)deadline_set(all->deadlines, &all->tick, TICK_NS);
}

void directory_names_mute(struct directory_names *all)
{
    if (all->observer.on_change) /* NULL: no other node can be asked */
        list_remove(&all->observer.link);
}

void directory_names_close(struct directory_names *all)
{
    if (!all->tick.on_passed) /* it was never started */
        return;
    directory_names_mute(all);
    deadline_unset(all->deadlines, &all->tick);
    deadline_unset(all->deadlines, &all->flush);
    names_claims_close(all);
    names_seeks_close(all);
    names_home_close(all);
}

void claim_waiter_remove(struct claim_waiter *waiter)
{
    list_remove(&waiter->link);
}
