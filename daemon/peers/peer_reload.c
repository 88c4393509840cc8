/* SPDX-License-Identifier: Apache-2.0 */
/* Applies a changed configuration: the key, and the listed nodes. */
#include <stdio.h>
#include <string.h>

#include "daemon/peers/peer_impl.h"

static const uint8_t nobody[16];

/* ---- the key and the certificates ---- */

enum rdt_status peers_open_tls(const struct options *options, struct tls_context **context_p, struct rdt_error *err)
{
    const struct tls_files files = {.key = options->key_file,
                                    .certificate = options->peer_cert,
                                    .private_key = options->peer_key,
                                    .authorities = options->peer_ca,
                                    .revoked = options->peer_crl,
                                    .allow = options->peer_allow};

    return tls_context_create(&files, context_p, err);
}

bool peers_is_new_key(const struct peers *peers, const struct tls_context *key)
{
    return !tls_context_same(key, peers->tls);
}

void peers_certificate_expires(const struct peers *peers, int64_t *certificate_p, int64_t *crl_p)
{
    *certificate_p = peers->tls ? tls_context_expires(peers->tls) : 0;
    *crl_p = peers->tls ? tls_context_revoked_expires(peers->tls) : 0;
}

void peers_drop_key(struct tls_context *take_key)
{
    tls_context_destroy(take_key);
}

/* Existing links continue with their keys, unless the other end's certificate is no longer accepted. */
static void end_refused_links(struct peers *peers)
{
    list_each_safe (struct peer_link, link, &peers->links, node) {
        struct rdt_error why;
        if (peer_link_state(link) != LINK_UP || tls_check_again(&link->tls, peers->tls, &why) == RDT_OK)
            continue;
        log_warn("node %s: %s", link->peer->name, why.msg);
        peer_link_refuse(link, &why);
    }
}

/* ---- the nodes ---- */

void peer_add_listed(struct peers *peers, const struct node_entry *entry)
{
    bool named = memcmp(entry->uuid, nobody, sizeof nobody) != 0;
    struct rdt_error err;
    struct peer *peer;

    /* one nodes file may serve all nodes */
    if (named ? memcmp(entry->uuid, peers->node->uuid, 16) == 0 : strcmp(entry->address, peers->node->address) == 0)
        return;
    if (named && map_get(&peers->by_uuid, entry->uuid, 16)) {
        log_error("node %s: the nodes file has its uuid twice; only the first line counts", entry->name);
        return;
    }
    if (peer_add(peers, named ? entry->uuid : NULL, PROOF_FILE, entry->name, entry->address, NULL, &peer, &err) != RDT_OK) {
        log_error("node %s of the nodes file is ignored: %s", entry->name, err.msg);
        return;
    }
    peer->dial->listed = true;
    if (peer_start_dial(peer, &err) != RDT_OK) {
        log_warn("node %s: %s", entry->name, err.msg);
        peer_move(peer, PEER_CONNECTING);
        peer_back_off(peer);
    }
}

static bool names_uuid(const struct node_entry *entry)
{
    return memcmp(entry->uuid, nobody, sizeof nobody) != 0;
}

/* Whether this line of the nodes file is about the peer. */
static bool is_about(const struct node_entry *entry, const struct peer *peer)
{
    if (names_uuid(entry) && peer_is_known(peer))
        return memcmp(entry->uuid, peer->uuid, sizeof entry->uuid) == 0;
    return strcmp(entry->address, peer->address) == 0;
}

static const struct node_entry *entry_of(const struct node_entry *entries, const struct peer *peer)
{
    while (entries && !is_about(entries, peer))
        entries = entries->next;
    return entries;
}

static void unlist(struct peer *peer)
{
    peer->dial->listed = false;
    peer->dial->n_sources = 0;
    if (peer->dial->proof == PROOF_FILE)
        peer->dial->proof = peer->epoch > 0 ? PROOF_HELLO : PROOF_REF;
    snprintf(peer->name, sizeof peer->name, "%s", peer->address);
    peer_emit(peer, "renamed");
}

/* Updates a known peer from the line. */
static void list(struct peer *peer, const struct node_entry *entry)
{
    struct peer_dial *dial = peer->dial;
    struct rdt_error err;
    bool moved = strcmp(peer->address, entry->address) != 0, renamed = strcmp(peer->name, entry->name) != 0;

    snprintf(peer->name, sizeof peer->name, "%s", entry->name);
    snprintf(peer->address, sizeof peer->address, "%s", entry->address);
    dial->listed = true;
    dial->secret = false;
    if (moved)
        dial->hint[0] = '\0';
    if (names_uuid(entry) && peer_is_known(peer))
        dial->proof = PROOF_FILE;
    else if (names_uuid(entry) && peer_identify(peer, entry->uuid, PROOF_FILE, &err) != RDT_OK)
        log_error("node %s: %s", entry->name, err.msg);
    if (renamed || moved)
        peer_emit(peer, "renamed");
    if (moved && peer->state == PEER_BACKOFF) {
        peer_dial_now(peer);
    } else if (peer->state == PEER_IDLE && peer_start_dial(peer, &err) != RDT_OK) {
        peer_move(peer, PEER_CONNECTING);
        peer_failed(peer, &err);
    }
}

static struct peer *find(struct peers *peers, const struct node_entry *entry)
{
    list_each (struct peer, peer, &peers->all, link)
        if (is_about(entry, peer))
            return peer;
    return NULL;
}

void peers_reload(struct peers *peers, struct tls_context *take_key)
{
    if (take_key) {
        tls_context_destroy(peers->tls);
        peers->tls = peers->config.tls = take_key;
        end_refused_links(peers);
    }
}

struct peer *peers_known(const struct peers *peers, const uint8_t uuid[16])
{
    return map_get(&peers->by_uuid, uuid, 16);
}

bool peer_is_listed(const struct peer *peer)
{
    return peer->dial->listed;
}

bool peer_is_listed_as(const struct peer *peer, const struct node_entry *entry)
{
    return peer->dial->listed && is_about(entry, peer);
}

void peers_set_nodes(struct peers *peers, const struct node_entry *entries)
{
    if (!peers->tls || peers->closing)
        return;
    list_each (struct peer, peer, &peers->all, link)
        if (peer->dial->listed && !entry_of(entries, peer))
            unlist(peer);
    for (const struct node_entry *entry = entries; entry; entry = entry->next) {
        struct peer *peer = find(peers, entry);
        if (peer)
            list(peer, entry);
        else
            peer_add_listed(peers, entry);
    }
}
