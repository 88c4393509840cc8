/* SPDX-License-Identifier: Apache-2.0 */
/* How two nodes meet: hellos, and which connection stays when there are two.
 *
 *     dialler                                        acceptor
 *       | <------------- hello (to whoever it is) ------ |   once TLS is up
 *       | ------------- hello (if it wants the link) --> |   decides: take, hold or close
 *       | <-------------------------------------- ping - |   taken
 *
 * - The dialler silently closes a connection that leads to a node whose link is up, or to this node itself.
 * - A node that dials again has given up the link in use, so the acceptor replaces that.
 * - If both dialled at once, the node with the higher uuid takes the connection that it accepted. The other one, once it
 *   has sent hello on its own connection, holds the accepted one until its own is taken (then it closes the held one) or
 *   fails (then it takes the held one).
 */
#include "daemon/peers/peer_impl.h"

#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"

void peers_warn_of_stranger(struct peers *peers, const char *remote, const char *text)
{
    char who[128];

    snprintf(who, sizeof who, "connection from %.100s", remote);
    log_warn_rarely(&peers->door.stranger_warnings, who, text);
}

static struct peers *peers_of(const struct peer_link *link)
{
    return link->config->arg;
}

/* ---- hellos ---- */

static enum rdt_status send_hello(struct peer_link *link, struct rdt_error *err)
{
    struct peers *peers = peers_of(link);
    Rdt__Pb__LinkHello hello = RDT__PB__LINK_HELLO__INIT;
    enum rdt_status status;

    hello.protocol_min = RDT_PROTOCOL_MIN;
    hello.protocol_max = RDT_PROTOCOL_MAX;
    hello.node_uuid = (ProtobufCBinaryData){sizeof peers->node->uuid, peers->node->uuid};
    hello.boot_id = (ProtobufCBinaryData){sizeof peers->node->boot_id, peers->node->boot_id};
    hello.address = peers->hello_address;
    hello.ping_interval_ms = (uint32_t)(peers->options->peer_timeout_ns / OPTIONS_PINGS / 1000000);
    hello.peer_timeout_ms = (uint32_t)(peers->options->peer_timeout_ns / 1000000);
    if (peers->callbacks.fill_hello)
        peers->callbacks.fill_hello(peers->callbacks.arg, link->peer, &hello);
    status = peer_link_send(link, RDT_PEER_HELLO, &hello.base, err);
    if (status == RDT_OK)
        link->meeting.hello_sent = true;
    return status;
}

static bool is_printable(const char *text)
{
    for (; *text; text++) {
        if (*text < ' ' || *text > '~')
            return false;
    }
    return true;
}

static enum rdt_status check_hello(const Rdt__Pb__LinkHello *hello, struct rdt_error *err)
{
    static const uint8_t zero[16];

    if (hello->node_uuid.len != 16 || hello->boot_id.len != 16 || memcmp(hello->node_uuid.data, zero, 16) == 0)
        return rdt_error_set(err, RDT_PROTOCOL, "its hello has no uuid or boot id");
    if (strlen(hello->address) > RDT_MAX_ADDRESS_BYTES || !is_printable(hello->address) || !is_printable(hello->version))
        return rdt_error_set(err, RDT_PROTOCOL, "the address or version in its hello is not valid");
    if (hello->protocol_max < RDT_PROTOCOL_MIN || hello->protocol_min > RDT_PROTOCOL_MAX)
        return rdt_error_set(err, RDT_UNSUPPORTED, "version %.31s speaks protocol %u to %u, the other node %d to %d",
                             hello->version, hello->protocol_min, hello->protocol_max, RDT_PROTOCOL_MIN, RDT_PROTOCOL_MAX);
    return RDT_OK;
}

static const char twin_reason[] =
    "two nodes have this uuid, because one state_dir was copied: remove node_uuid from it there, and "
    "start rdtd again";

/* Whether the node's link is one to another daemon with that uuid, which has not ended: the link that is up stays then.
 * Otherwise each would take the place of the other again and again. */
static bool is_twin(struct peer_link *link)
{
    struct peer *peer = link->peer;
    struct peer_twin *twin = &peer->dial->twin;
    const struct peer_link *up = peer->link_up;
    const char *said = link->meeting.hello->address;
    char who[128];

    if (peer->epoch < 2 || memcmp(link->meeting.hello->boot_id.data, twin->former_boot_id, 16) != 0 ||
        memcmp(link->meeting.hello->boot_id.data, peer->boot_id, 16) == 0)
        return false;
    peer_describe(peer, who);
    twin->seen_ns = uv_hrtime();
    (void)snprintf(twin->text, sizeof twin->text, "two daemons have the uuid of %.60s, one at %.50s and one at %.50s", who,
                   said[0] && said[0] != ':' ? said : link->remote, up ? up->remote : peer->address);
    log_warn_rarely(&peer->peers->unmet_warnings, who, twin->text);
    return up;
}

static void take(struct peer_link *link)
{
    bool restarted = memcmp(link->peer->boot_id, link->meeting.hello->boot_id.data, sizeof link->peer->boot_id) != 0;
    struct rdt_error why_old;

    rdt_error_set(&why_old, RDT_PEER_LOST, "%s",
                  restarted ? "it restarted" : "it connected again, because this connection was dead at its end");
    peer_take_link(link->peer, link, &why_old);
}

/* ---- the end that dialled ---- */

static void merged(struct peer *from, struct peer *into)
{
    struct peers *peers = from->peers;

    if (peers->callbacks.on_merged)
        peers->callbacks.on_merged(peers->callbacks.arg, from, into);
}

static enum rdt_status wrong_node(const struct peer_link *link, struct rdt_error *err)
{
    const struct peer *peer = link->peer;
    char found[33], expected[33];

    node_hex(link->meeting.hello->node_uuid.data, found);
    node_hex(peer->uuid, expected);
    if (memcmp(link->meeting.hello->node_uuid.data, peer->peers->node->uuid, 16) == 0)
        return rdt_error_set(
            err, RDT_INVALID,
            "%s leads to this node itself, at %s, and not to %.8s: set advertise on that node to an address that "
            "others reach",
            peer->dial->hint.dialled ? peer->dial->hint.text : peer->address, link->remote, expected);
    return rdt_error_set(err, RDT_INVALID, "the node at %s is %s, not %s%s; without a state_dir each start is another node",
                         link->remote, found, expected,
                         peer->dial->proof == PROOF_FILE                              ? " as the nodes file says"
                         : peer->dial->proof == PROOF_REF || peer->dial->hint.dialled ? " as a ref says"
                                                                                      : ", which was there before");
}

/* Another node answers where link->peer was met before. Requests that name no uuid continue with that
 * node; those that name the old node's uuid fail. *goes_on_p false: the link is closed. */
static enum rdt_status replace(struct peer_link *link, struct peer *known, bool *goes_on_p, struct rdt_error *err)
{
    struct peer *old = link->peer, *now = known;
    struct rdt_error why;
    enum rdt_status status = RDT_OK;

    (void)wrong_node(link, &why);
    if (!now)
        status =
            peer_add(old->peers, link->meeting.hello->node_uuid.data, PROOF_HELLO, old->name, old->address, NULL, &now, err);
    if (status != RDT_OK)
        return status;
    *goes_on_p = peer_replace(old, now);
    merged(old, now);
    peer_failed(old, &why);
    return RDT_OK;
}

/* The dialled node has answered at the dialled address. */
static void on_met(struct peer *peer)
{
    struct peer_dial *dial = peer->dial;

    if (dial->proof < PROOF_HELLO)
        dial->proof = PROOF_HELLO;
    dial->secret = false;
    if (!dial->hint.dialled)
        return;
    if (strcmp(peer->name, peer->address) == 0 || !peer->name[0])
        peer_set_name(peer, dial->hint.text);
    peer_set_address(peer, dial->hint.text);
    dial->hint.text[0] = 0;
    dial->hint.dialled = false;
    peer_emit(peer, "renamed");
}

/* The dialling end knows whom it reached, and decides whether it wants the link. */
static enum rdt_status meet_acceptor(struct peer_link *link, struct rdt_error *err)
{
    struct peers *peers = peers_of(link);
    const Rdt__Pb__LinkHello *hello = link->meeting.hello;
    struct peer *peer = link->peer, *known = map_get(&peers->by_uuid, hello->node_uuid.data, 16);
    enum rdt_status status = RDT_OK;
    bool goes_on = true;

    if (!peer_is_known(peer) && !known) {
        status = peer_identify(peer, hello->node_uuid.data, PROOF_HELLO, err);
    } else if (!peer_is_known(peer)) {
        goes_on = peer_merge(peer, known);
        merged(peer, known);
    } else if (known == peer) {
        struct peer *listed;
        on_met(peer);
        listed = peer_take_listed(peer, hello->boot_id.data);
        if (listed)
            merged(listed, peer);
    } else if (peer->dial->proof == PROOF_HELLO && !peer->dial->hint.dialled) {
        status = replace(link, known, &goes_on, err);
    } else {
        status = wrong_node(link, err);
    }
    if (status != RDT_OK || !goes_on)
        return status;
    peer = link->peer;
    if (peer->link_up && memcmp(peer->boot_id, hello->boot_id.data, 16) == 0) {
        peer_drop_link(peers, link, NULL);
        return RDT_OK;
    }
    return send_hello(link, err);
}

static void drop_held(struct peer *peer)
{
    list_each_safe (struct peer_link, link, &peer->peers->links, node)
        if (link->meeting.held && link->peer == peer)
            peer_drop_link(peer->peers, link, NULL);
}

static void on_confirmed(struct peer_link *link)
{
    drop_held(link->peer);
    if (is_twin(link))
        peer_drop_link(peers_of(link), link, twin_reason);
    else
        take(link);
}

/* ---- the end that accepted ---- */

static void learn_address(struct peer *peer, const struct peer_link *link)
{
    const char *said = link->meeting.hello->address;
    const char *port_of_remote = strrchr(link->remote, ':');
    char address[65 + 65], host[65];
    uint16_t port;

    if (peer->dial->table.listed)
        return;
    if (said[0] == ':' && port_of_remote)
        snprintf(address, sizeof address, "%.*s%s", (int)(port_of_remote - link->remote), link->remote, said);
    else
        snprintf(address, sizeof address, "%s", said);
    if (strlen(address) >= sizeof peer->address || options_split_address(address, host, &port, NULL) != RDT_OK || port == 0)
        return; /* only the peer dials */
    peer_set_address(peer, address);
    if (strcmp(peer->name, peer->address) == 0)
        return;
    peer_set_name(peer, peer->address);
    peer_emit(peer, "renamed");
}

/* Dials the node that was at this peer's address before: whoever answers there gets the name. */
static void dial_predecessor(const struct peer *peer)
{
    for (struct peer_word *word = peers_word(peer->peers, peer->address); word; word = peers_next_word(peer->peers, word))
        if (word->peer != peer && word->peer->state == PEER_BACKOFF && word->text == word->peer->address)
            peer_dial_now(word->peer);
}

/* The accepting end decides about a link that the caller wants: take it now, hold it, or close it. */
static void decide(struct peer_link *link)
{
    struct peer *peer = link->peer;
    const struct peer_link *own = peer->dial->link;

    /* A caller that gave up the link in use connects after that came up. This older connection is left
     * over from both nodes dialling at once. */
    if (peer->link_up && link->meeting.accepted_ns < peer->since_ns) {
        peer_drop_link(peer->peers, link, NULL);
        return;
    }
    link->meeting.held =
        !peer->link_up && own && own->meeting.hello_sent && memcmp(peer->peers->node->uuid, peer->uuid, 16) < 0;
    if (link->meeting.held)
        return;
    if (is_twin(link)) {
        peer_drop_link(peer->peers, link, twin_reason);
        return;
    }
    learn_address(peer, link);
    take(link);
    dial_predecessor(peer);
}

/* The peer has dialled, and so has proved that it holds the key. An address that a ref gave for it was
 * never verified. */
static void confirm_identity(struct peer *peer)
{
    struct peer_dial *dial = peer->dial;

    if (dial->proof == PROOF_REF) {
        dial->proof = PROOF_HELLO;
        snprintf(dial->hint.text, sizeof dial->hint.text, "%s", peer->address);
        dial->hint.secret = dial->secret;
        account_unref(dial->hint.by);
        dial->hint.by = dial->address_by;
        dial->address_by = NULL;
        peer_set_address(peer, "");
    }
    dial->secret = false;
}

static enum rdt_status meet_dialler(struct peer_link *link, struct rdt_error *err)
{
    struct peers *peers = peers_of(link);
    struct peer *peer = map_get(&peers->by_uuid, link->meeting.hello->node_uuid.data, 16);
    enum rdt_status status = RDT_OK;

    if (!peer)
        status = peer_add(peers, link->meeting.hello->node_uuid.data, PROOF_HELLO, link->remote, "", NULL, &peer, err);
    else
        confirm_identity(peer);
    if (status != RDT_OK)
        return status;
    drop_held(peer); /* of several connections from one node, only the last one counts */
    link->peer = peer;
    decide(link);
    return RDT_OK;
}

/* ---- events of links ---- */

static void on_looked_up(struct peer_link *link)
{
    struct peer_dial *dial = link->peer->dial;

    if (dial->hint.dialled)
        return;
    dial->where.n_sources = 0;
    for (const struct addrinfo *info = link->dialling.found; info && dial->where.n_sources < DIAL_SOURCES;
         info = info->ai_next) {
        struct sockaddr_storage address = {0};

        memcpy(&address, info->ai_addr, info->ai_addrlen < sizeof address ? info->ai_addrlen : sizeof address);
        strangers_source(&address, dial->where.sources[dial->where.n_sources++]);
    }
    peer_settle_sources(link->peer);
}

static void on_secure(struct peer_link *link)
{
    struct rdt_error err;

    if (!link->meeting.accepted_ns || send_hello(link, &err) == RDT_OK)
        return;
    log_error("connection from %s: no hello can be sent: %s", link->remote, err.msg);
    peer_drop_link(peers_of(link), link, NULL);
}

static enum rdt_status on_hello(struct peer_link *link, struct rdt_error *err)
{
    struct peers *peers = peers_of(link);
    const struct node *self = peers->node;
    enum rdt_status status = check_hello(link->meeting.hello, err);

    if (status == RDT_OK)
        status = tls_check_uuid(&link->tls, link->meeting.hello->node_uuid.data, err);
    if (status != RDT_OK)
        return status;
    if (memcmp(link->meeting.hello->node_uuid.data, self->uuid, 16) == 0) {
        if (memcmp(link->meeting.hello->boot_id.data, self->boot_id, 16) != 0) {
            (void)rdt_error_set(
                err, RDT_INVALID,
                "the node at %s has this node's uuid: two nodes share one state_dir, or a copy; remove node_uuid "
                "from one",
                link->remote);
            peers->twin.seen_ns = uv_hrtime();
            (void)snprintf(peers->twin.text, sizeof peers->twin.text, "%.239s", err->msg);
            return RDT_INVALID;
        }
        if (link->meeting.accepted_ns) {
            peer_drop_link(peers, link, NULL);
        } else if (peer_is_known(link->peer)) {
            return wrong_node(link, err);
        } else {
            struct peer *itself = link->peer;
            log_debug("node %s is this node itself", itself->name);
            peer_hide(itself, NULL);
            merged(itself, NULL);
        }
        return RDT_OK;
    }
    return link->meeting.accepted_ns ? meet_dialler(link, err) : meet_acceptor(link, err);
}

static enum rdt_status on_frame(struct peer_link *link, const struct frame *frame, struct rdt_error *err)
{
    const struct peers_callbacks *callbacks = &peers_of(link)->callbacks;
    struct peer *peer = link->peer;
    struct peer_message message;
    enum rdt_status status;
    struct arena arena;

    if (frame->type == RDT_PEER_PULL_ABORTED)
        return RDT_OK;
    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    status = peer_link_decode(frame, &arena, &message, err);
    if (status == RDT_OK)
        status = callbacks->on_message(callbacks->arg, peer, &message, err);
    if (status != RDT_OK)
        rdt_error_prefix(err, "node %s", peer->name);
    arena_fini(&arena);
    return status;
}

static struct peer_link *find_held(const struct peer *peer)
{
    list_each (struct peer_link, link, &peer->peers->links, node)
        if (link->meeting.held && link->peer == peer)
            return link;
    return NULL;
}

static void on_answer(struct peer_link *link)
{
    struct peers *peers = peers_of(link);

    if (peers->callbacks.on_answer && link->peer->link_up == link)
        peers->callbacks.on_answer(peers->callbacks.arg, link->peer);
}

static void on_end(struct peer_link *link, const struct rdt_error *why)
{
    struct peer *peer = link->peer;

    list_remove(&link->node);
    strangers_remove(&peers_of(link)->door.strangers, &link->meeting.stranger);
    if (peer && peer->link_up == link) {
        if (link->ended_there)
            peer->answered_ns = 0;
        peer_lost(peer, why);
    } else if (peer && peer->dial->link == link) {
        struct peer_link *held = find_held(peer);

        peer->dial->link = NULL;
        if (held)
            decide(held);
        else if (peer->state == PEER_CONNECTING)
            peer_failed(peer, why);
    } else if (why->status == RDT_DISCONNECTED) {
        log_debug("connection from %s: %s", link->remote, why->msg); /* a probe, or one of two that were dialled at once */
    } else {
        peers_warn_of_stranger(peers_of(link), link->remote, why->msg);
    }
}

static void on_freed(void *arg)
{
    peers_handle_closed(arg);
}

const struct peer_link_events peer_meet_events = {
    .on_looked_up = on_looked_up,
    .on_secure = on_secure,
    .on_hello = on_hello,
    .on_confirmed = on_confirmed,
    .on_frame = on_frame,
    .on_answer = on_answer,
    .on_end = on_end,
    .on_freed = on_freed,
};
