/* SPDX-License-Identifier: Apache-2.0 */
/* Applies a changed configuration: the key, and the listed nodes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/peers/peer_impl.h"

static const uint8_t nobody[16];

/* ---- the key and the certificates ---- */

enum rdt_status peers_open_tls(const struct options *options, struct tls_context **context_p, bool *early_p,
                               struct rdt_error *err)
{
    const struct tls_files files = {.key = options->key_file,
                                    .certificate = options->peer_cert,
                                    .private_key = options->peer_key,
                                    .authorities = options->peer_ca,
                                    .revoked = options->peer_crl,
                                    .allow = options->peer_allow,
                                    .early_p = early_p};

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

/* ---- files that were missing at the start ---- */

#define LOOK_MS 1000u

struct late_key {
    struct peers *peers;
    uv_timer_t timer;
    struct work read;
    bool reading;
    struct options paths; /* of the start; only those of the key and the certificates */
    struct tls_context *key;
    struct rdt_error why; /* the last look has found no key */
    char said[sizeof((struct rdt_error *)0)->msg];
};

static void late_key_free(struct late_key *late)
{
    free(late->paths.key_file);
    free(late->paths.peer_cert);
    free(late->paths.peer_key);
    free(late->paths.peer_ca);
    free(late->paths.peer_crl);
    free(late->paths.peer_allow);
    free(late);
}

static void on_late_timer_closed(uv_handle_t *handle)
{
    struct late_key *late = handle->data;
    struct peers *peers = late->peers;

    late_key_free(late);
    peers_handle_closed(peers);
}

void peers_stop_awaiting_key(struct peers *peers)
{
    struct late_key *late = peers->late_key;

    peers->late_key = NULL;
    if (late && !late->reading) /* otherwise done_reading closes it */
        uv_close((uv_handle_t *)&late->timer, on_late_timer_closed);
}

static void run_reading(struct work *work)
{
    struct late_key *late = container_of(work, struct late_key, read);
    bool early;

    (void)peers_open_tls(&late->paths, &late->key, &early, &late->why);
}

static void on_look(uv_timer_t *timer);

static void done_reading(struct work *work)
{
    struct late_key *late = container_of(work, struct late_key, read);
    struct peers *peers = late->peers;

    late->reading = false;
    if (peers->late_key != late) { /* the daemon ends, or a reload has brought a key */
        tls_context_destroy(late->key);
        uv_close((uv_handle_t *)&late->timer, on_late_timer_closed);
    } else if (late->key) {
        log_info("the key and certificate files of the peer link are there now");
        peers_reload(peers, late->key);
        list_each (struct peer, peer, &peers->all, link)
            if (peer->state == PEER_BACKOFF)
                peer_dial_now(peer);
    } else {
        if (late->why.sys_errno != ENOENT && strcmp(late->said, late->why.msg) != 0)
            log_warn("%s", late->why.msg);
        memcpy(late->said, late->why.msg, sizeof late->said);
        (void)uv_timer_start(&late->timer, on_look, LOOK_MS, 0);
    }
}

static void on_look(uv_timer_t *timer)
{
    struct late_key *late = timer->data;

    late->reading = true;
    owner_work_submit(late->peers->callbacks.owner_work, &late->read, NULL, true);
}

void peers_await_key(struct peers *peers)
{
    const struct options *options = peers->options;
    struct late_key *late = calloc(1, sizeof *late);

    if (!late)
        return;
    late->paths.key_file = strdup(options->key_file);
    late->paths.peer_cert = strdup(options->peer_cert);
    late->paths.peer_key = strdup(options->peer_key);
    late->paths.peer_ca = strdup(options->peer_ca);
    late->paths.peer_crl = strdup(options->peer_crl);
    late->paths.peer_allow = strdup(options->peer_allow);
    if (!late->paths.key_file || !late->paths.peer_cert || !late->paths.peer_key || !late->paths.peer_ca ||
        !late->paths.peer_crl || !late->paths.peer_allow) {
        late_key_free(late);
        return;
    }
    late->peers = peers;
    late->read = (struct work){.run = run_reading, .done = done_reading};
    (void)uv_timer_init(peers->loop, &late->timer);
    late->timer.data = late;
    peers->n_open++;
    peers->late_key = late;
    (void)uv_timer_start(&late->timer, on_look, LOOK_MS, 0);
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
    peer_set_listed(peer, true);
    peer->dial->table.source = entry->source;
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

static void unlist(struct peer *peer)
{
    peer_set_listed(peer, false);
    peer->dial->where.n_sources = 0;
    peer_settle_sources(peer);
    if (peer->dial->proof == PROOF_FILE)
        peer->dial->proof = peer->epoch > 0 ? PROOF_HELLO : PROOF_REF;
    peer_set_name(peer, peer->address);
    peer_emit(peer, "renamed");
}

/* Updates a known peer from the line. */
static void list(struct peer *peer, const struct node_entry *entry)
{
    struct peer_dial *dial = peer->dial;
    struct rdt_error err;
    bool moved = strcmp(peer->address, entry->address) != 0, renamed = strcmp(peer->name, entry->name) != 0;

    peer_set_name(peer, entry->name);
    peer_set_address(peer, entry->address);
    peer_set_listed(peer, true);
    dial->table.source = entry->source;
    dial->secret = false;
    if (moved)
        dial->hint.text[0] = '\0';
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

/* The peer that this entry is about: the one with its uuid or, if one of the two uuids is not known, with its address. */
static struct peer *find(const struct peers *peers, const struct node_entry *entry)
{
    struct peer *peer = names_uuid(entry) ? map_get(&peers->by_uuid, entry->uuid, sizeof entry->uuid) : NULL;
    struct peer_word *word;

    if (peer && peer->dial->hidden)
        peer = NULL;
    word = peer ? NULL : peers_word(peers, entry->address);
    for (; word && !peer; word = peers_next_word(peers, word))
        if (word->text == word->peer->address && !(names_uuid(entry) && peer_is_known(word->peer)))
            peer = word->peer;
    return peer;
}

void peers_reload(struct peers *peers, struct tls_context *take_key)
{
    if (take_key) {
        peers_stop_awaiting_key(peers);
        tls_context_destroy(peers->tls);
        peers->tls = peers->config.tls = take_key;
        end_refused_links(peers);
    }
}

struct peer *peers_known(const struct peers *peers, const uint8_t uuid[16])
{
    return map_get(&peers->by_uuid, uuid, 16);
}

int peer_listed_by(const struct peer *peer)
{
    return peer->dial->table.listed ? peer->dial->table.source : -1;
}

/* Compares 32 hex digits, between which dashes may stand. */
static bool is_uuid(const uint8_t uuid[16], const char *text, size_t length)
{
    char digits[33] = "", own[33];
    size_t n = 0;

    for (size_t i = 0; i < length; i++) {
        if (text[i] == '-')
            continue;
        if (n == 32)
            return false;
        digits[n++] = text[i];
    }
    for (unsigned i = 0; i < 16; i++)
        (void)snprintf(own + 2 * i, 3, "%02x", uuid[i]);
    return n == 32 && strncasecmp(digits, own, 32) == 0;
}

static bool is_word(const char *name, const char *word, size_t length)
{
    return name[0] != '\0' && strlen(name) == length && memcmp(name, word, length) == 0;
}

bool peer_is_one_of(const struct peer *peer, const char *words)
{
    for (const char *at = words + strspn(words, ", \t"); *at; at += strspn(at, ", \t")) {
        size_t length = strcspn(at, ", \t");

        if ((peer->dial->table.listed && is_word(peer->name, at, length)) || is_uuid(peer->uuid, at, length) ||
            is_word(peer->identity, at, length))
            return true;
        at += length;
    }
    return false;
}

bool peers_set_some(struct slice *slice, uint64_t until_ns)
{
    struct peers *peers = container_of(slice, struct peers, table.take);

    do {
        const struct node_entry *entry = peers->table.next_entry;
        struct peer *peer = entry ? find(peers, entry) : NULL;
        if (peer)
            list(peer, entry);
        else if (entry)
            peer_add_listed(peers, entry);
        else if (!list_empty(&peers->table.unlisting))
            unlist(&container_of(list_first(&peers->table.unlisting), struct peer_dial, table.by_listed)->peer);
        else
            return true;
        if (entry)
            peers->table.next_entry = entry->next;
    } while (uv_hrtime() < until_ns);
    return false;
}

void peers_set_nodes(struct peers *peers, const struct node_entry *entries)
{
    if (!peers->tls || peers->closing)
        return;
    list_splice(&peers->table.unlisting, &peers->table.listed);
    peers->table.next_entry = entries;
    slice_begin(peers->callbacks.slices, &peers->table.take);
}
