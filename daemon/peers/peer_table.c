/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the other nodes: their identities and addresses, which requests may add entries, and when they are forgotten.
 * peer.h has the rules. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/peers/peer_impl.h"

#define MET_MAX 4096u       /* above that, nodes that are away and unused are forgotten */
#define UNMET_MAX 1024u     /* of all users together */
#define UNMET_OWNER_MAX 64u /* of one user */
#define HIDDEN_MAX 256u
#define FORGET_NS UINT64_C(60000000000)   /* an unmet node that no request needs is forgotten after this time */
#define SWEEP_NS UINT64_C(1000000000)     /* between two searches for such nodes */
#define DIAL_EVERY_NS UINT64_C(250000000) /* the average rate of one user's dials of unlisted addresses */
#define DIAL_BURST 64u

static const uint8_t nobody[16];

/* ---- entries ---- */

static void word_remove(struct map *by_word, struct peer_word *word)
{
    size_t bytes = strlen(word->text);
    struct peer_word *next = container_of(word->same.next, struct peer_word, same);

    if (map_get(by_word, word->text, bytes) == word) {
        if (next != word)
            map_replace(by_word, next->text, bytes, next);
        else
            (void)map_remove(by_word, word->text, bytes);
    }
    list_remove(&word->same);
}

static void word_add(struct map *by_word, struct peer_word *word)
{
    size_t bytes = strlen(word->text);
    struct peer_word *first = bytes > 0 ? map_get(by_word, word->text, bytes) : NULL;

    if (first)
        list_append(&first->same, &word->same);
    else if (bytes > 0)
        (void)map_put(by_word, word->text, bytes, word);
}

void peer_set_address(struct peer *peer, const char *address)
{
    struct sockaddr_storage numeric = {0};
    char host[65];
    uint16_t port;

    word_remove(&peer->peers->by_word, &peer->dial->by_address);
    (void)snprintf(peer->address, sizeof peer->address, "%s", address);
    word_add(&peer->peers->by_word, &peer->dial->by_address);
    peer->dial->where.numeric = options_split_address(peer->address, host, &port, NULL) == RDT_OK &&
                                (uv_ip4_addr(host, port, (struct sockaddr_in *)&numeric) == 0 ||
                                 uv_ip6_addr(host, port, (struct sockaddr_in6 *)&numeric) == 0);
    if (peer->dial->where.numeric)
        strangers_source(&numeric, peer->dial->where.host);
    peer_settle_sources(peer);
}

void peer_set_name(struct peer *peer, const char *name)
{
    word_remove(&peer->peers->by_word, &peer->dial->by_name);
    (void)snprintf(peer->name, sizeof peer->name, "%s", name);
    word_add(&peer->peers->by_word, &peer->dial->by_name);
}

/* No look-up finds the entry any more, except by its uuid. */
static void leave_tables(struct peer *peer)
{
    word_remove(&peer->peers->by_word, &peer->dial->by_address);
    word_remove(&peer->peers->by_word, &peer->dial->by_name);
    if (!peer->dial->hidden)
        (void)index_remove(&peer->peers->by_number, peer->number);
    list_remove(&peer->dial->to_dial);
    list_remove(&peer->link);
}

struct peer_word *peers_word(const struct peers *peers, const char *text)
{
    return map_get(&peers->by_word, text, strlen(text));
}

struct peer_word *peers_next_word(const struct peers *peers, struct peer_word *at)
{
    struct peer_word *next = container_of(at->same.next, struct peer_word, same);

    return next == map_get(&peers->by_word, at->text, strlen(at->text)) ? NULL : next;
}

void peer_set_listed(struct peer *peer, bool listed)
{
    list_remove(&peer->dial->table.by_listed);
    if (listed)
        list_append(&peer->peers->table.listed, &peer->dial->table.by_listed);
    peer->dial->table.listed = listed;
    peer_settle_sources(peer);
}

enum rdt_status peer_identify(struct peer *peer, const uint8_t uuid[16], enum peer_proof proof, struct rdt_error *err)
{
    memcpy(peer->uuid, uuid, sizeof peer->uuid);
    if (!map_put(&peer->peers->by_uuid, peer->uuid, sizeof peer->uuid, peer)) {
        memset(peer->uuid, 0, sizeof peer->uuid);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for another node");
    }
    peer->dial->proof = proof;
    if (proof >= PROOF_HELLO)
        peer->dial->secret = false;
    return RDT_OK;
}

/* Its timer must be closed. */
static void peer_free(struct peer *peer)
{
    account_unref(peer->dial->account);
    account_unref(peer->dial->address_by);
    account_unref(peer->dial->hint.by);
    peer->dial->table.listed = false;
    peer->state = PEER_IDLE;
    peer_settle_sources(peer);
    free(peer->dial);
}

static void free_entries(struct list *head)
{
    list_for_each_safe (node, head)
        peer_free(container_of(node, struct peer, link));
}

void peers_handle_closed(struct peers *peers)
{
    if (--peers->n_open || !peers->closing)
        return;
    peers->on_closed(peers->on_closed_arg);
    free_entries(&peers->all);
    free_entries(&peers->hidden);
    map_fini(&peers->by_uuid);
    map_fini(&peers->by_word);
    map_fini(&peers->by_source);
    index_fini(&peers->by_number);
    tls_context_destroy(peers->tls);
    free(peers->read_buf);
    free(peers);
}

static void on_forgotten(uv_handle_t *handle)
{
    struct peer_dial *dial = handle->data;
    struct peers *peers = dial->peer.peers;

    peer_free(&dial->peer);
    peers_handle_closed(peers);
}

/* Whether nothing uses the entry now. Unmet entries are in back-off or idle most of the time. */
static bool is_idle(const struct peer *peer)
{
    return !peer->dial->table.listed && !peer->dial->link && (peer->state == PEER_IDLE || peer->state == PEER_BACKOFF);
}

/* Returns a hidden entry that leads to this one, or NULL. */
static struct peer *alias_of(const struct peer *peer)
{
    list_each (struct peer, alias, &peer->peers->hidden, link)
        if (alias->dial->same == peer)
            return alias;
    return NULL;
}

/* Frees the entry and all that lead to it. false: something above still refers to it. */
static bool forget(struct peer *peer)
{
    struct peers *peers = peer->peers;
    struct peer *alias;

    while ((alias = alias_of(peer))) {
        if (!forget(alias))
            return false;
    }
    if (!peers->callbacks.may_forget || !peers->callbacks.may_forget(peers->callbacks.arg, peer))
        return false;
    assert(!peer->remote && !peer->holds);
    if (peer_is_known(peer) && map_get(&peers->by_uuid, peer->uuid, 16) == peer)
        map_remove(&peers->by_uuid, peer->uuid, 16);
    leave_tables(peer);
    list_remove(&peer->dial->table.by_listed);
    peers->n_peers--;
    if (!peer->dial->hidden)
        peer_emit(peer, "gone");
    uv_close((uv_handle_t *)&peer->dial->timer, on_forgotten);
    return true;
}

static bool is_of(const struct peer *peer, bool met, struct account *account)
{
    if (peer_has_been_met(peer) != met)
        return false;
    return !account || (peer->dial->account && account_person(peer->dial->account) == account_person(account));
}

/* The number of entries that were met, or not; account not NULL: only those that requests of that person
 * added. */
static unsigned count_peers(const struct peers *peers, bool met, struct account *account)
{
    unsigned n = 0;

    list_for_each (node, &peers->all)
        n += is_of(container_of(node, struct peer, link), met, account);
    return n;
}

/* Forgets the entry that has been idle longest, among those that count_peers() counts. false: all are in use. */
static bool forget_oldest(struct peers *peers, bool met, struct account *account)
{
    uint64_t after = 0;

    for (;;) { /* from the oldest on, until one can be forgotten */
        struct peer *oldest = NULL;

        list_each (struct peer, peer, &peers->all, link)
            if (is_of(peer, met, account) && is_idle(peer) && peer->since_ns > after &&
                (!oldest || peer->since_ns < oldest->since_ns))
                oldest = peer;
        if (!oldest || forget(oldest))
            return oldest;
        after = oldest->since_ns;
    }
}

/* Forgets nodes that users named long ago, and entries that have long been hidden. */
static void forget_old(struct peers *peers)
{
    uint64_t now = uv_hrtime();
    unsigned n_hidden = 0;
    struct list none;

    list_init(&none);
    list_each_safe (struct peer, peer, now - peers->swept_ns < SWEEP_NS ? &none : &peers->all, link)
        if (!peer_has_been_met(peer) && is_idle(peer) && !peer->dial->wanted && now - peer->since_ns > FORGET_NS)
            (void)forget(peer);
    if (now - peers->swept_ns >= SWEEP_NS)
        peers->swept_ns = now;
    list_for_each (node, &peers->hidden)
        n_hidden++;
    if (n_hidden > HIDDEN_MAX) /* one for each that is added */
        (void)forget(container_of(list_first(&peers->hidden), struct peer, link));
}

/* Makes room for an entry that only a request names. */
static enum rdt_status make_room(struct peers *peers, struct account *account, struct rdt_error *err)
{
    unsigned of_user = account ? count_peers(peers, false, account) : 0;

    if (of_user >= UNMET_OWNER_MAX && !forget_oldest(peers, false, account))
        return rdt_error_set(err, RDT_LIMIT,
                             "requests of uid %u already wait for %u nodes that have not answered: let some of them end",
                             account->owner.uid, of_user);
    if (peers->n_peers >= UNMET_MAX && count_peers(peers, false, NULL) >= UNMET_MAX && !forget_oldest(peers, false, NULL))
        return rdt_error_set(err, RDT_LIMIT, "requests wait for %u nodes that have not answered yet: try again later",
                             UNMET_MAX);
    return RDT_OK;
}

enum rdt_status peer_add(struct peers *peers, const uint8_t *uuid, enum peer_proof proof, const char *name, const char *address,
                         struct account *account, struct peer **peer_p, struct rdt_error *err)
{
    struct peer_dial *dial;
    struct peer *peer;
    enum rdt_status status = RDT_OK;

    forget_old(peers);
    if (proof < PROOF_HELLO)
        status = make_room(peers, account, err);
    else if (peers->n_peers >= MET_MAX && count_peers(peers, true, NULL) >= MET_MAX)
        (void)forget_oldest(peers, true, NULL); /* a node that holds the key always gets room */
    dial = status == RDT_OK ? calloc(1, sizeof *dial) : NULL;
    if (!dial)
        return status != RDT_OK ? status : rdt_error_set(err, RDT_NO_MEMORY, "no memory for another node");
    peer = &dial->peer;
    peer->peers = peers;
    peer->dial = dial;
    peer->since_ns = uv_hrtime();
    list_init(&peer->calls.here);
    list_init(&peer->calls.unsent);
    list_init(&peer->calls.there);
    list_init(&peer->calls.held_back);
    list_init(&peer->calls.failing);
    list_init(&peer->calls.dropping);
    list_init(&peer->calls.ending);
    list_init(&dial->table.by_listed);
    list_init(&dial->to_dial);
    dial->by_address = (struct peer_word){.peer = peer, .text = peer->address};
    dial->by_name = (struct peer_word){.peer = peer, .text = peer->name};
    list_init(&dial->by_address.same);
    list_init(&dial->by_name.same);
    dial->proof = PROOF_NONE;
    peer->number = ++peers->last_number;
    if (!index_put(&peers->by_number, peer->number, peer))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for another node");
    else if (uuid && (status = peer_identify(peer, uuid, proof, err)) != RDT_OK)
        (void)index_remove(&peers->by_number, peer->number);
    if (status != RDT_OK) {
        free(dial);
        return status;
    }
    dial->account = account ? account_ref(account) : NULL;
    uv_timer_init(peers->loop, &dial->timer);
    dial->timer.data = dial;
    peers->n_open++;
    peer_set_address(peer, address);
    peer_set_name(peer, name);
    list_append(&peers->all, &peer->link);
    peers->n_peers++;
    peer_emit(peer, "new");
    *peer_p = peer;
    return RDT_OK;
}

/* ---- when two entries are one node, or another node has an address ---- */

void peer_hide(struct peer *peer, struct peer *same)
{
    struct peers *peers = peer->peers;

    uv_timer_stop(&peer->dial->timer);
    if (peer->dial->link)
        peer_drop_link(peer->peers, peer->dial->link, NULL);
    if (peer->state != PEER_IDLE)
        peer_move(peer, PEER_IDLE);
    peer_set_listed(peer, false);
    leave_tables(peer);
    list_append(&peers->hidden, &peer->link);
    peer->dial->hidden = true;
    peer->dial->same = same;
    peer_emit(peer, "gone");
}

/* Moves address, name and the place in the node table to `into`. */
static void move_identity(struct peer *from, struct peer *into)
{
    peer_set_name(into, from->name);
    peer_set_address(into, from->dial->hint.dialled ? from->dial->hint.text : from->address);
    if (from->dial->table.listed && !into->dial->table.listed) {
        into->dial->table.listed = true;
        into->dial->table.source = from->dial->table.source;
        list_append(&from->dial->table.by_listed, &into->dial->table.by_listed);
    }
    memcpy(into->dial->where.sources, from->dial->where.sources, sizeof into->dial->where.sources);
    into->dial->where.n_sources = from->dial->where.n_sources;
    peer_settle_sources(into);
    into->dial->secret = false;
}

/* The link that one entry has dialled leads to the node of another. false: the other entry's own dial has
 * progressed further. */
static bool move_link(struct peer *from, struct peer *into)
{
    struct peer_link *link = from->dial->link;

    if (into->dial->link && into->dial->link->meeting.hello_sent)
        return false;
    from->dial->link = NULL;
    if (into->dial->link)
        peer_drop_link(into->peers, into->dial->link, NULL);
    into->dial->link = link;
    link->peer = into;
    if (into->state == PEER_BACKOFF) {
        uv_timer_stop(&into->dial->timer);
        peer_move(into, PEER_IDLE);
    }
    if (into->state == PEER_IDLE)
        peer_move(into, PEER_CONNECTING);
    return true;
}

bool peer_merge(struct peer *from, struct peer *into)
{
    bool goes_on;

    memcpy(from->boot_id, from->dial->link->meeting.hello->boot_id.data, sizeof from->boot_id);
    move_identity(from, into);
    goes_on = move_link(from, into);
    peer_hide(from, into);
    peer_emit(into, "renamed");
    return goes_on;
}

struct peer *peer_take_listed(struct peer *peer, const uint8_t boot_id[16])
{
    struct peer_word *word = peers_word(peer->peers, peer->address);
    struct peer *listed;

    while (word && (word->text != word->peer->address || !word->peer->dial->table.listed || peer_is_known(word->peer)))
        word = peers_next_word(peer->peers, word);
    if (!word || peer->dial->table.listed)
        return NULL;
    listed = word->peer;
    memcpy(listed->boot_id, boot_id, sizeof listed->boot_id);
    move_identity(listed, peer);
    peer_hide(listed, peer);
    peer_emit(peer, "renamed");
    return listed;
}

/* Another node has taken an address of the peer, so the next request by any other of its addresses dials. */
static void distrust_aliases(const struct peer *peer)
{
    list_each (struct peer, alias, &peer->peers->hidden, link)
        if (alias->dial->same == peer)
            memset(alias->boot_id, 0, sizeof alias->boot_id);
}

bool peer_replace(struct peer *from, struct peer *into)
{
    bool goes_on;
    char hex[33];

    move_identity(from, into);
    goes_on = move_link(from, into);
    if (!goes_on)
        peer_drop_link(from->peers, from->dial->link, NULL);
    node_hex(from->uuid, hex);
    peer_set_name(from, hex);
    peer_set_address(from, "");
    from->dial->hint.text[0] = 0;
    peer_set_listed(from, false);
    distrust_aliases(from);
    peer_emit(from, "renamed");
    peer_emit(into, "renamed");
    return goes_on;
}

/* ---- finding ---- */

struct list *peers_all(struct peers *peers)
{
    return &peers->all;
}

struct peer *peers_next(const struct peers *peers, uint64_t after)
{
    uint64_t number;

    return index_next(&peers->by_number, after + 1, &number);
}

/* *peer_p NULL: no known node. false: it is this node itself. A hidden entry leads to its node only while the link to the
 * daemon that answered there is up. */
static bool find_by_address(struct peers *peers, const char *address, struct peer **peer_p)
{
    *peer_p = NULL;
    for (struct peer_word *word = peers_word(peers, address); word; word = peers_next_word(peers, word)) {
        struct peer *peer = word->peer;
        /* a uuid from a ref gives no information about an address */
        if (peer->dial->proof == PROOF_REF || (*peer_p && peer->state != PEER_UP))
            continue;
        *peer_p = peer;
        if (peer->state == PEER_UP) /* it is reachable there now, whichever node was there before */
            return true;
    }
    if (*peer_p)
        return true;
    list_for_each_safe (hidden_node, &peers->hidden) {
        struct peer *alias = container_of(hidden_node, struct peer, link), *same = alias->dial->same;
        if (strcmp(alias->address, address) != 0)
            continue;
        if (!same || (same->state == PEER_UP && memcmp(alias->boot_id, same->boot_id, sizeof alias->boot_id) == 0)) {
            *peer_p = same;
            return same;
        }
        (void)forget(alias); /* another node may be there now: the caller dials the address */
    }
    return true;
}

/* Whether this user may cause a dial of an address that is not in the nodes file. */
static enum rdt_status may_dial(const struct peers *peers, const char *address, struct account *account, struct rdt_error *err)
{
    uint64_t now = uv_hrtime(), burst_ns = (DIAL_BURST - 1) * DIAL_EVERY_NS;
    struct account *person;

    if (strcmp(peers->options->dial, "listed") == 0)
        return rdt_error_set(err, RDT_DENIED,
                             "%s is not in the nodes file, and this daemon dials only nodes of that file (dial = listed)",
                             address);
    if (account_is_admin(account))
        return RDT_OK;
    person = account_person(account);
    if (person->dialled_ns > now + burst_ns)
        return rdt_error_set(err, RDT_LIMIT,
                             "uid %u has had %u unlisted addresses dialled, and %u more a second are allowed: try again in "
                             "%.1f s, or list the nodes in "
                             "the nodes file",
                             account->owner.uid, DIAL_BURST, (unsigned)(1000000000 / DIAL_EVERY_NS),
                             (double)(person->dialled_ns - now - burst_ns) / 1e9);
    person->dialled_ns = (person->dialled_ns > now ? person->dialled_ns : now) + DIAL_EVERY_NS;
    return RDT_OK;
}

static void set_namer(struct account **by_p, struct account *account)
{
    struct account *owner = account ? account_owner(account) : NULL; /* NULL: of nobody */

    if (owner == *by_p)
        return;
    account_unref(*by_p);
    *by_p = owner ? account_ref(owner) : NULL;
}

/* Looks up the names of the requester on its own threads, so that it does not wait for other users' look-ups. */
static void note_namer(struct peer *peer, const char *address, struct account *account)
{
    struct peer_dial *dial = peer->dial;

    if (!address[0])
        return;
    if (!peer_has_been_met(peer) && strcmp(peer->address, address) == 0)
        set_namer(&dial->address_by, account);
    if (strcmp(dial->hint.text, address) == 0)
        set_namer(&dial->hint.by, account);
    if (peer->state == PEER_CONNECTING && dial->link)
        peer_link_look_up_too(dial->link, peer_look_up_account(peer));
}

static enum rdt_status check_address(const char *address, struct rdt_error *err)
{
    char host[65];
    uint16_t port;
    enum rdt_status status = options_split_address(address, host, &port, err);

    if (status != RDT_OK && !strchr(address, ':'))
        return rdt_error_set(err, RDT_INVALID, "'%s' is neither HOST:PORT nor a name in the nodes file", address);
    if (status == RDT_OK && port == 0)
        return rdt_error_set(err, RDT_INVALID, "address %s: port 0 cannot be dialled", address);
    return status;
}

bool peers_boot(const struct peers *peers, const uint8_t uuid[16], uint8_t boot_id_p[16])
{
    const struct peer *peer = map_get(&peers->by_uuid, uuid, 16);

    if (!peer || peer->state != PEER_UP)
        return false;
    memcpy(boot_id_p, peer->boot_id, sizeof peer->boot_id);
    return true;
}

enum rdt_status peers_check_address(struct peers *peers, const uint8_t uuid[16], const char *address, struct rdt_error *err)
{
    bool named = memcmp(uuid, nobody, sizeof nobody) != 0;
    struct peer *peer = named ? map_get(&peers->by_uuid, uuid, 16) : NULL;
    bool here = !named && !find_by_address(peers, address, &peer);

    if (here || !address[0] || (peer && (!named || peer->state == PEER_UP)))
        return RDT_OK;
    return check_address(address, err);
}

#define HINTS_IN_A_ROW 2u

/* The node may have moved to the address in this request. That address is dialled at once, even if the node could not be
 * reached elsewhere. But after HINTS_IN_A_ROW such dials the node's own address comes first, so that no user can keep others
 * from the node by hints. The address changes only when the node has been met there. */
static enum rdt_status take_hint(struct peer *peer, const char *address, struct account *account, struct rdt_error *err)
{
    struct peer_dial *dial = peer->dial;
    enum rdt_status status;

    if (strcmp(dial->hint.text, address) == 0)
        dial->hint.secret |= !account_is_admin(account);
    if (dial->table.listed || peer->state == PEER_CONNECTING || strcmp(peer->address, address) == 0 ||
        strcmp(dial->hint.text, address) == 0)
        return RDT_OK;
    status = may_dial(peer->peers, address, account, err);
    if (status != RDT_OK)
        return status;
    snprintf(dial->hint.text, sizeof dial->hint.text, "%s", address);
    dial->hint.secret = !account_is_admin(account);
    if (dial->hint.n_dials < HINTS_IN_A_ROW)
        dial->hint.dialled = false; /* `hint` is dialled next */
    if (peer->state == PEER_BACKOFF) {
        uv_timer_stop(&dial->timer);
        peer_move(peer, PEER_IDLE);
    }
    return RDT_OK;
}

/* Finds the peer's entry, or adds one. */
static enum rdt_status look_up(struct peers *peers, const uint8_t uuid[16], const char *address, struct account *account,
                               struct peer **peer_p, struct rdt_error *err)
{
    bool named = memcmp(uuid, nobody, sizeof nobody) != 0;
    struct peer *peer = named ? map_get(&peers->by_uuid, uuid, 16) : NULL;
    enum rdt_status status = RDT_OK;
    char hex[33];

    if (peer && peer->state == PEER_UP) { /* the link is up, so the address does not matter */
        *peer_p = peer;
        return RDT_OK;
    }
    if (!named && !find_by_address(peers, address, &peer))
        return rdt_error_set(err, RDT_INVALID, "the node at %s is this node itself", address);
    if (address[0] && (named || !peer))
        status = check_address(address, err);
    if (status == RDT_OK && !peer && !address[0]) {
        node_hex(uuid, hex);
        return rdt_error_set(err, RDT_NOT_FOUND, "node %s is unknown, and the ref has no address of it", hex);
    }
    if (status == RDT_OK && !peer && named && strcmp(address, peers->node->address) == 0)
        return rdt_error_set(
            err, RDT_NOT_FOUND,
            "the ref is of an earlier life of this node (without a state_dir each start has a new uuid), whose objects have "
            "ended; or another node says this node's address, %s, of itself: set advertise there",
            address);
    if (status == RDT_OK && !peer) {
        status = may_dial(peers, address, account, err);
        if (status == RDT_OK)
            status =
                peer_add(peers, named ? uuid : NULL, named ? PROOF_REF : PROOF_NONE, address, address, account, &peer, err);
    } else if (status == RDT_OK && named && address[0]) {
        status = take_hint(peer, address, account, err);
    }
    if (status != RDT_OK)
        return status;
    if (!peer_has_been_met(peer) && !account_is_admin(account))
        peer->dial->secret = true;
    *peer_p = peer;
    return RDT_OK;
}

enum rdt_status peers_find(struct peers *peers, const uint8_t uuid[16], const char *address, struct account *account,
                           struct peer **peer_p, struct rdt_error *err)
{
    enum rdt_status status;
    struct peer *peer = NULL;
    char who[128];

    if (!peers->tls)
        return rdt_error_set(err, RDT_UNSUPPORTED, "this node has no peer link: neither key_file nor peer_cert is set");
    if (peers->closing)
        return rdt_error_set(err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    if (memcmp(uuid, peers->node->uuid, 16) == 0)
        return rdt_error_set(err, RDT_INVALID, "the address is that of this node itself");
    if (strlen(address) >= sizeof peer->address)
        return rdt_error_set(err, RDT_INVALID, "the address has %zu bytes: at most 64 are allowed", strlen(address));
    status = look_up(peers, uuid, address, account, &peer, err);
    if (status != RDT_OK)
        return status;
    note_namer(peer, address, account);
    if (peer->state == PEER_BACKOFF)
        peer->dial->wanted = true;
    if (peer->state == PEER_IDLE && !peer_can_be_dialled(peer)) {
        peer_describe(peer, who);
        return rdt_error_set(err, RDT_PEER_LOST, "%s is not connected, and its address is not known", who);
    }
    if (peer->state == PEER_IDLE)
        status = peer_start_dial(peer, err);
    if (status == RDT_OK)
        *peer_p = peer;
    return status;
}

void peers_hear_of(struct peers *peers, const uint8_t uuid[16], const char *address)
{
    struct peer *peer = map_get(&peers->by_uuid, uuid, 16);

    if (!peer || peer->state != PEER_BACKOFF || peers_find(peers, uuid, address, NULL, &peer, NULL) != RDT_OK ||
        peer->state != PEER_BACKOFF || !peer_can_be_dialled(peer))
        return;
    peer_dial_now(peer);
}
