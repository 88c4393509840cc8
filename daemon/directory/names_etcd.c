/* SPDX-License-Identifier: Apache-2.0 */
/* Names whose authoritative entries are in etcd. rdtd-etcd reports every name in etcd, so a look-up needs no message; only a
 * look-up that finds nothing asks etcd itself, because the watch may be a moment behind. While etcd is away, its last reports
 * stay in force, names that are published here get further versions, and the first publish of a name waits until its caller's
 * deadline. */
#include "daemon/base/text.h"
#include "daemon/directory/names_impl.h"
#include "wire_limits.h"

void directory_names_etcd_told(void *arg, const Rdt__Pb__EtcdName *message)
{
    struct directory_names *all = arg;
    const Rdt__Pb__Name *name = message->name;
    struct name_place place = {0};
    struct owner owner = {0};
    struct name_key key;

    if (!names_in_etcd(all) || !name || !name->owner || name->name.len == 0 || name->name.len > RDT_MAX_ID_BYTES ||
        strlen(name->owner->tenant) >= sizeof owner.tenant || strlen(name->address) >= sizeof place.address)
        return;
    owner.uid = name->owner->uid;
    text_copy(owner.tenant, sizeof owner.tenant, name->owner->tenant);
    name_key_make(&key, &owner, name->name.data, name->name.len);
    place.epoch = name->epoch;
    place.version = name->version;
    text_copy(place.address, sizeof place.address, name->address);
    if (name->node.len == sizeof place.node)
        memcpy(place.node, name->node.data, sizeof place.node);
    switch (name->act) {
    case RDT__PB__NAME_ACT__NAME_ACT_FOUND:
        names_home_told(all, &key, &place);
        names_claim_told(all, &key, &place, message->revision);
        if (place.version > 0)
            names_seek_found(all, &key, &place);
        break;
    case RDT__PB__NAME_ACT__NAME_ACT_END:
        names_home_told(all, &key, NULL);
        names_claim_told(all, &key, NULL, message->revision);
        break;
    case RDT__PB__NAME_ACT__NAME_ACT_GRANTED:
    case RDT__PB__NAME_ACT__NAME_ACT_REFUSED:
        names_claim_etcd_answer(all, &key, &place, name->act == RDT__PB__NAME_ACT__NAME_ACT_GRANTED, message->revision);
        break;
    case RDT__PB__NAME_ACT__NAME_ACT_MISSING:
        names_seek_missing_everywhere(all, &key);
        break;
    default:
        break;
    }
}

/* The names that are reported between two of these messages are complete when etcd is up again. */
void directory_names_etcd_state(void *arg, bool up)
{
    struct directory_names *all = arg;

    if (up == all->etcd_up)
        return;
    all->etcd_up = up;
    if (!up) {
        all->etcd_round++;
        names_claims_etcd_down(all);
        return;
    }
    names_home_prune(all);
    (void)deadline_set(all->deadlines, &all->tick, 0);
    names_claims_tell_again(all);
    names_seeks_ask(all);
}
