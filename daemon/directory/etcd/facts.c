/* SPDX-License-Identifier: Apache-2.0 */
/* The content of the keys: the nodes. A key or value that makes no sense is left out; the state has the number of such keys,
 * and what is wrong with one of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "etcd.h"

#define SEND_EVERY_MS 50

static void bad(struct etcd *etcd, const uint8_t *key, int n, const char *why)
{
    char text[80];
    int used = n < 0 ? 0 : n < 79 ? n : 79;

    for (int i = 0; i < used; i++)
        text[i] = (char)(key[i] > 32 && key[i] < 127 ? key[i] : '?');
    text[used] = '\0';
    etcd->state.bad_keys++;
    (void)snprintf(etcd->bad_error, sizeof etcd->bad_error, "key %s: %s", text, why);
    etcd->state_changed = true;
}

static struct known_node *find_node(struct etcd *etcd, const uint8_t uuid[16])
{
    for (unsigned i = 0; i < etcd->known.n_nodes; i++)
        if (memcmp(etcd->known.nodes[i].uuid, uuid, 16) == 0)
            return &etcd->known.nodes[i];
    return NULL;
}

static void remove_node(struct etcd *etcd, struct known_node *node)
{
    *node = etcd->known.nodes[--etcd->known.n_nodes];
    etcd->known.full = false;
    etcd->known.changed = true;
}

static bool is_address(const char *text)
{
    const char *colon = text ? strrchr(text, ':') : NULL;

    return colon && colon > text && strlen(colon) <= 6 && strspn(colon + 1, "0123456789") == strlen(colon + 1) &&
           strtoul(colon + 1, NULL, 10) - 1 < 65535 && strlen(text) < sizeof((struct known_node *)0)->address &&
           strcspn(text, " \t\r\n/\"") == strlen(text);
}

static void take_node(struct etcd *etcd, const uint8_t uuid[16], const char *address, int64_t revision)
{
    struct known_node *node = find_node(etcd, uuid);

    if (!node && etcd->known.n_nodes == NODES_MAX) {
        etcd->known.full = true;
        return;
    }
    if (!node) {
        node = &etcd->known.nodes[etcd->known.n_nodes++];
        *node = (struct known_node){0};
        memcpy(node->uuid, uuid, sizeof node->uuid);
    }
    if (strcmp(node->address, address) != 0) {
        (void)snprintf(node->address, sizeof node->address, "%s", address);
        etcd->known.changed = true;
    }
    node->mod_revision = revision;
    node->generation = etcd->known.generation;
    node->gone_ms = 0;
    for (unsigned i = 0; i < etcd->known.n_nodes; i++) /* a node without its state has a new uuid at the same address */
        if (strcmp(etcd->known.nodes[i].address, address) == 0 && etcd->known.nodes[i].mod_revision < revision) {
            remove_node(etcd, &etcd->known.nodes[i]);
            break;
        }
}

/* Of a key ".../nodes/UUID". */
static void take_node_key(struct etcd *etcd, const char *key, const uint8_t uuid[16], const json_t *kv, bool deleted,
                          own_key_changed on_own_key)
{
    uint8_t text[VALUE_BYTES_MAX];
    int64_t revision = value_int(kv, "mod_revision");
    bool own = memcmp(uuid, etcd->config->node.data, 16) == 0;
    struct known_node *node;
    const char *address, *boot;
    char here[33];
    json_t *value;
    int n;

    if (deleted) {
        node = find_node(etcd, uuid);
        if (own && on_own_key)
            on_own_key(etcd, revision, true, false);
        else if (node && node->gone_ms == 0)
            node->gone_ms = now_ms();
        return;
    }
    n = value_bytes(json_object_get(kv, "value"), text, sizeof text);
    value = n < 0 ? NULL : json_loadb((const char *)text, (size_t)n, 0, NULL);
    address = json_string_value(json_object_get(value, "address"));
    boot = json_string_value(json_object_get(value, "boot"));
    value_to_hex(etcd->config->boot_id.data, here);
    if (!address || !boot || (address[0] != '\0' && !is_address(address)))
        bad(etcd, (const uint8_t *)key, (int)strlen(key), "the value of a node must be JSON with its address and boot");
    else if (own && on_own_key)
        on_own_key(etcd, revision, false, strcmp(boot, here) != 0);
    else if (!own && address[0] != '\0')
        take_node(etcd, uuid, address, revision);
    json_decref(value);
}

void facts_take(struct etcd *etcd, const json_t *kv, bool deleted, own_key_changed on_own_key)
{
    uint8_t key[VALUE_BYTES_MAX + 1], uuid[16];
    int n = value_bytes(json_object_get(kv, "key"), key, VALUE_BYTES_MAX);
    size_t prefix = strlen(etcd->config->prefix);
    const char *rest;

    if (n < 0 || (size_t)n <= prefix + 1 || memcmp(key, etcd->config->prefix, prefix) != 0 || key[prefix] != '/') {
        bad(etcd, key, n, "it is not below the prefix, or is no base64 of up to 1024 bytes");
        return;
    }
    key[n] = '\0';
    if (!revision_is_valid(value_int(kv, "mod_revision"))) {
        bad(etcd, key, n, "its revision is no number that etcd counts to");
        return;
    }
    rest = (const char *)key + prefix + 1;
    if (strncmp(rest, "nodes/", 6) == 0 && value_hex(rest + 6, uuid))
        take_node_key(etcd, (const char *)key, uuid, kv, deleted, on_own_key);
    else if (!deleted)
        bad(etcd, key, n, "rdtd has no such key");
}

void facts_begin(struct etcd *etcd)
{
    etcd->known.generation++;
    etcd->state.bad_keys = 0;
    etcd->bad_error[0] = '\0';
}

void facts_end(struct etcd *etcd)
{
    for (unsigned i = 0; i < etcd->known.n_nodes; i++)
        if (etcd->known.nodes[i].generation != etcd->known.generation && etcd->known.nodes[i].gone_ms == 0)
            etcd->known.nodes[i].gone_ms = now_ms();
}

void facts_tick(struct etcd *etcd)
{
    int64_t now = now_ms();

    if (etcd->phase != UP || now - etcd->up_ms < etcd->lease.ttl_ms)
        return; /* the others may have been cut off from etcd together with this node */
    for (unsigned i = etcd->known.n_nodes; i-- > 0;)
        if (etcd->known.nodes[i].gone_ms > 0 && now - etcd->known.nodes[i].gone_ms >= etcd->lease.ttl_ms)
            remove_node(etcd, &etcd->known.nodes[i]);
}

void facts_send(struct etcd *etcd)
{
    static Rdt__Pb__EtcdNode nodes[NODES_MAX], *rows[NODES_MAX];
    Rdt__Pb__EtcdNodes message = RDT__PB__ETCD_NODES__INIT;

    if (!etcd->known.changed || etcd->phase < WATCHING || now_ms() - etcd->known.sent_ms < SEND_EVERY_MS)
        return;
    for (unsigned i = 0; i < etcd->known.n_nodes; i++) {
        rdt__pb__etcd_node__init(&nodes[i]);
        nodes[i].node = (ProtobufCBinaryData){16, etcd->known.nodes[i].uuid};
        nodes[i].address = etcd->known.nodes[i].address;
        rows[i] = &nodes[i];
    }
    message.n_nodes = etcd->known.n_nodes;
    message.nodes = rows;
    etcd->known.changed = !tell(etcd, RDT__PB__ETCD_MESSAGE__ETCD_NODES, &message.base);
    etcd->known.sent_ms = now_ms();
}
