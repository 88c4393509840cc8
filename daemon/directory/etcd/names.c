/* SPDX-License-Identifier: Apache-2.0 */
/* Names in etcd: how they are written, and what the list and the watch say of them.
 *
 *   PREFIX/names/UID@TENANT/NAME  {"node", "address", "epoch", "version", "held"}, the words escaped as in URLs
 *
 * Keys of names live a day longer than what renews them: a held one with its node, an ended one by itself, so that versions go
 * on when another node publishes the name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "etcd.h"

#define NUMBER_MAX (INT64_C(1) << 62)

/* ---- keys and values ---- */

static char *escape(char *to, const char *end, const uint8_t *from, size_t n)
{
    for (size_t i = 0; i < n && end - to > 3; i++) {
        bool plain = (from[i] >= 'a' && from[i] <= 'z') || (from[i] >= 'A' && from[i] <= 'Z') ||
                     (from[i] >= '0' && from[i] <= '9') || from[i] == '-' || from[i] == '_' || from[i] == '.';
        to += snprintf(to, 4, plain ? "%c" : "%%%02x", from[i]);
    }
    return to;
}

static int unescape(const char *from, const char *end, uint8_t *out_p, size_t size)
{
    size_t n = 0;

    for (; from < end; from++, n++) {
        char pair[3] = {0}, *stop;
        if (n == size)
            return -1;
        out_p[n] = (uint8_t)*from;
        if (*from != '%')
            continue;
        if (end - from < 3)
            return -1;
        memcpy(pair, from + 1, 2);
        out_p[n] = (uint8_t)strtoul(pair, &stop, 16);
        if (stop != pair + 2)
            return -1;
        from += 2;
    }
    return (int)n;
}

json_t *key_of_name(const struct etcd *etcd, const Rdt__Pb__Name *name)
{
    char key[VALUE_BYTES_MAX], *end = key + sizeof key;
    char *at = key + snprintf(key, sizeof key, "%.200s/names/%u@", etcd->config->prefix, name->owner->uid);

    at = escape(at, end, (const uint8_t *)name->owner->tenant, strlen(name->owner->tenant));
    *at++ = '/';
    at = escape(at, end, name->name.data, name->name.len);
    return value_base64(key, (size_t)(at - key));
}

bool parse_place(const json_t *kv, struct place *place_p)
{
    uint8_t text[VALUE_BYTES_MAX], uuid[16];
    int n = value_bytes(json_object_get(kv, "value"), text, sizeof text);
    json_t *value = n < 0 ? NULL : json_loadb((const char *)text, (size_t)n, 0, NULL);
    const char *node = json_string_value(json_object_get(value, "node"));
    const char *address = json_string_value(json_object_get(value, "address"));
    bool fine = node && address && value_hex(node, uuid) && strlen(address) < sizeof place_p->address;

    *place_p = (struct place){.epoch = value_int(value, "epoch"), .version = value_int(value, "version")};
    fine =
        fine && place_p->epoch > 0 && place_p->epoch <= NUMBER_MAX && place_p->version >= 0 && place_p->version <= NUMBER_MAX;
    place_p->held = json_is_true(json_object_get(value, "held"));
    if (fine) {
        (void)snprintf(place_p->node, sizeof place_p->node, "%s", node);
        (void)snprintf(place_p->address, sizeof place_p->address, "%s", address);
    }
    json_decref(value);
    return fine;
}

void tell_name(struct etcd *etcd, const Rdt__Pb__Name *about, Rdt__Pb__NameAct act, const struct place *place, int64_t revision)
{
    Rdt__Pb__EtcdName message = RDT__PB__ETCD_NAME__INIT;
    Rdt__Pb__Name name = *about;
    uint8_t node[16];

    name.act = act;
    if (place && value_hex(place->node, node)) {
        name.node = (ProtobufCBinaryData){16, node};
        name.address = (char *)place->address;
        name.epoch = (uint64_t)place->epoch;
        name.version = (uint64_t)place->version;
    }
    message.name = &name;
    message.revision = revision;
    (void)tell(etcd, RDT__PB__ETCD_MESSAGE__ETCD_NAME, &message.base);
}

/* ---- what the list and the watch say ---- */

bool names_take(struct etcd *etcd, const char *rest, const json_t *kv, bool deleted)
{
    Rdt__Pb__Name name = RDT__PB__NAME__INIT;
    Rdt__Pb__Requester owner = RDT__PB__REQUESTER__INIT;
    const char *at = strchr(rest, '@'), *slash = at ? strchr(at, '/') : NULL;
    uint8_t tenant[33], id[128];
    struct place place;
    char *end;
    int n, m;

    if (!slash)
        return false;
    owner.uid = (uint32_t)strtoul(rest, &end, 10);
    n = unescape(at + 1, slash, tenant, sizeof tenant - 1);
    m = unescape(slash + 1, slash + strlen(slash), id, sizeof id);
    if (end != at || n < 0 || m <= 0 || memchr(tenant, 0, (size_t)n) || (!deleted && !parse_place(kv, &place)))
        return false;
    tenant[n] = '\0';
    owner.tenant = (char *)tenant;
    name.owner = &owner;
    name.name = (ProtobufCBinaryData){(size_t)m, id};
    tell_name(etcd, &name, deleted || !place.held ? RDT__PB__NAME_ACT__NAME_ACT_END : RDT__PB__NAME_ACT__NAME_ACT_FOUND,
              deleted ? NULL : &place, value_int(kv, "mod_revision"));
    return true;
}
