/* SPDX-License-Identifier: Apache-2.0 */
/* How two nodes meet: listening, hellos, and which connection stays when there are two.
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

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"

#define BACKLOG 128

static void warn_of_stranger(struct peers *peers, const char *remote, const char *text)
{
    char who[128];

    snprintf(who, sizeof who, "connection from %.100s", remote);
    log_warn_rarely(&peers->stranger_warnings, who, text);
}

void peer_meet_drop(struct peers *peers, struct peer_link *link, const char *reason)
{
    list_remove(&link->node);
    strangers_remove(&peers->strangers, &link->stranger);
    if (link->peer && link->peer->dial->link == link)
        link->peer->dial->link = NULL;
    peer_link_close(link, reason);
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
        link->hello_sent = true;
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

static void take(struct peer_link *link)
{
    bool restarted = memcmp(link->peer->boot_id, link->hello->boot_id.data, sizeof link->peer->boot_id) != 0;
    struct rdt_error why_old;

    rdt_error_set(&why_old, RDT_PEER_LOST, "%s",
                  restarted ? "it restarted" : "it dialled again, because the connection was dead for it");
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

    node_hex(link->hello->node_uuid.data, found);
    node_hex(peer->uuid, expected);
    return rdt_error_set(err, RDT_INVALID, "the node at %s is %s, not %s%s", link->remote, found, expected,
                         peer->dial->proof == PROOF_FILE                         ? " as the nodes file says"
                         : peer->dial->proof == PROOF_REF || peer->dial->at_hint ? " as a ref says"
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
        status = peer_add(old->peers, link->hello->node_uuid.data, PROOF_HELLO, old->name, old->address, NULL, &now, err);
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
    if (!dial->at_hint)
        return;
    if (strcmp(peer->name, peer->address) == 0 || !peer->name[0])
        snprintf(peer->name, sizeof peer->name, "%s", dial->hint);
    snprintf(peer->address, sizeof peer->address, "%s", dial->hint);
    dial->hint[0] = 0;
    dial->at_hint = false;
    peer_emit(peer, "renamed");
}

/* The dialling end knows whom it reached, and decides whether it wants the link. */
static enum rdt_status meet_acceptor(struct peer_link *link, struct rdt_error *err)
{
    struct peers *peers = peers_of(link);
    const Rdt__Pb__LinkHello *hello = link->hello;
    struct peer *peer = link->peer, *known = map_get(&peers->by_uuid, hello->node_uuid.data, 16);
    enum rdt_status status = RDT_OK;
    bool goes_on = true;

    if (!peer_is_known(peer) && !known) {
        status = peer_identify(peer, hello->node_uuid.data, PROOF_HELLO, err);
    } else if (!peer_is_known(peer)) {
        goes_on = peer_merge(peer, known);
        merged(peer, known);
    } else if (known == peer) {
        on_met(peer);
    } else if (peer->dial->proof == PROOF_HELLO && !peer->dial->at_hint) {
        status = replace(link, known, &goes_on, err);
    } else {
        status = wrong_node(link, err);
    }
    if (status != RDT_OK || !goes_on)
        return status;
    peer = link->peer;
    if (peer->link_up && memcmp(peer->boot_id, hello->boot_id.data, 16) == 0) {
        peer_meet_drop(peers, link, NULL);
        return RDT_OK;
    }
    return send_hello(link, err);
}

static void drop_held(struct peer *peer)
{
    list_for_each_safe (node, &peer->peers->links) {
        struct peer_link *link = container_of(node, struct peer_link, node);

        if (link->held && link->peer == peer)
            peer_meet_drop(peer->peers, link, NULL);
    }
}

static void on_confirmed(struct peer_link *link)
{
    drop_held(link->peer);
    take(link);
}

/* ---- the end that accepted ---- */

static void learn_address(struct peer *peer, const struct peer_link *link)
{
    const char *said = link->hello->address;
    const char *port_of_remote = strrchr(link->remote, ':');
    char address[65 + 65], host[65];
    uint16_t port;

    if (peer->dial->listed)
        return;
    if (said[0] == ':' && port_of_remote)
        snprintf(address, sizeof address, "%.*s%s", (int)(port_of_remote - link->remote), link->remote, said);
    else
        snprintf(address, sizeof address, "%s", said);
    if (strlen(address) >= sizeof peer->address || options_split_address(address, host, &port, NULL) != RDT_OK || port == 0)
        return; /* only the peer dials */
    memcpy(peer->address, address, strlen(address) + 1);
    if (strcmp(peer->name, peer->address) == 0)
        return;
    memcpy(peer->name, peer->address, sizeof peer->name);
    peer_emit(peer, "renamed");
}

/* Dials the node that was at this peer's address before: whoever answers there gets the name. */
static void dial_predecessor(const struct peer *peer)
{
    list_for_each_safe (node, &peer->peers->all) {
        struct peer *other = container_of(node, struct peer, link);
        if (other != peer && other->state == PEER_BACKOFF && peer->address[0] && strcmp(other->address, peer->address) == 0)
            peer_dial_now(other);
    }
}

/* The accepting end decides about a link that the caller wants: take it now, hold it, or close it. */
static void decide(struct peer_link *link)
{
    struct peer *peer = link->peer;
    const struct peer_link *own = peer->dial->link;

    /* A caller that gave up the link in use connects after that came up. This older connection is left
     * over from both nodes dialling at once. */
    if (peer->link_up && link->accepted_ns < peer->since_ns) {
        peer_meet_drop(peer->peers, link, NULL);
        return;
    }
    link->held = !peer->link_up && own && own->hello_sent && memcmp(peer->peers->node->uuid, peer->uuid, 16) < 0;
    if (link->held)
        return;
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
        snprintf(dial->hint, sizeof dial->hint, "%s", peer->address);
        dial->hint_secret = dial->secret;
        account_unref(dial->hint_by);
        dial->hint_by = dial->address_by;
        dial->address_by = NULL;
        peer->address[0] = 0;
    }
    dial->secret = false;
}

static enum rdt_status meet_dialler(struct peer_link *link, struct rdt_error *err)
{
    struct peers *peers = peers_of(link);
    struct peer *peer = map_get(&peers->by_uuid, link->hello->node_uuid.data, 16);
    enum rdt_status status = RDT_OK;

    if (!peer)
        status = peer_add(peers, link->hello->node_uuid.data, PROOF_HELLO, link->remote, "", NULL, &peer, err);
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

    if (dial->at_hint)
        return;
    dial->n_sources = 0;
    for (const struct addrinfo *info = link->found; info && dial->n_sources < DIAL_SOURCES; info = info->ai_next) {
        struct sockaddr_storage address = {0};

        memcpy(&address, info->ai_addr, info->ai_addrlen < sizeof address ? info->ai_addrlen : sizeof address);
        strangers_source(&address, dial->sources[dial->n_sources++]);
    }
}

static void on_secure(struct peer_link *link)
{
    struct rdt_error err;

    if (!link->accepted_ns || send_hello(link, &err) == RDT_OK)
        return;
    log_error("connection from %s: no hello can be sent: %s", link->remote, err.msg);
    peer_meet_drop(peers_of(link), link, NULL);
}

static enum rdt_status on_hello(struct peer_link *link, struct rdt_error *err)
{
    struct peers *peers = peers_of(link);
    const struct node *self = peers->node;
    enum rdt_status status = check_hello(link->hello, err);

    if (status == RDT_OK)
        status = tls_check_uuid(&link->tls, link->hello->node_uuid.data, err);
    if (status != RDT_OK)
        return status;
    if (memcmp(link->hello->node_uuid.data, self->uuid, 16) == 0) {
        if (memcmp(link->hello->boot_id.data, self->boot_id, 16) != 0)
            return rdt_error_set(err, RDT_INVALID, "the node at %s has this node's uuid: two nodes share one state_dir",
                                 link->remote);
        if (link->accepted_ns) {
            peer_meet_drop(peers, link, NULL);
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
    return link->accepted_ns ? meet_dialler(link, err) : meet_acceptor(link, err);
}

static enum rdt_status on_frame(struct peer_link *link, const struct frame *frame, struct rdt_error *err)
{
    struct peers *peers = peers_of(link);

    return peers->callbacks.on_frame(peers->callbacks.arg, link->peer, frame, err);
}

static struct peer_link *find_held(const struct peer *peer)
{
    list_for_each (node, &peer->peers->links) {
        struct peer_link *link = container_of(node, struct peer_link, node);

        if (link->held && link->peer == peer)
            return link;
    }
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
    strangers_remove(&peers_of(link)->strangers, &link->stranger);
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
        warn_of_stranger(peers_of(link), link->remote, why->msg);
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

/* ---- listening ---- */

static void on_connection(uv_stream_t *listener, int uv_status);

static void on_turned_away(uv_handle_t *handle)
{
    struct peers *peers = handle->data;

    peers->turning_away = false;
    if (peers->left_waiting && !peers->closing) {
        peers->left_waiting = false;
        on_connection((uv_stream_t *)&peers->listener, 0);
    }
    peers_handle_closed(peers);
}

/* libuv accepts no further connection before this one is accepted. */
static void refuse_connection(struct peers *peers)
{
    if (peers->turning_away) {
        peers->left_waiting = true;
        return;
    }
    uv_tcp_init(peers->loop, &peers->turned_away);
    peers->turned_away.data = peers;
    peers->turning_away = true;
    peers->n_open++;
    (void)uv_accept((uv_stream_t *)&peers->listener, (uv_stream_t *)&peers->turned_away);
    uv_close((uv_handle_t *)&peers->turned_away, on_turned_away);
}

static bool has_source(const struct peer *peer, const uint8_t source[16])
{
    struct sockaddr_storage address = {0};
    uint8_t own[16];
    char host[65];
    uint16_t port;

    for (unsigned i = 0; i < peer->dial->n_sources; i++)
        if (memcmp(peer->dial->sources[i], source, 16) == 0)
            return true;
    if (options_split_address(peer->address, host, &port, NULL) != RDT_OK ||
        (uv_ip4_addr(host, port, (struct sockaddr_in *)&address) != 0 &&
         uv_ip6_addr(host, port, (struct sockaddr_in6 *)&address) != 0))
        return false;
    strangers_source(&address, own);
    return memcmp(own, source, sizeof own) == 0;
}

/* Whether the source is an address of the nodes file, or one where a node is met now. */
static bool is_listed(const struct peers *peers, const uint8_t source[16])
{
    list_for_each (node, &peers->all) {
        const struct peer *peer = container_of(node, struct peer, link);

        if ((peer->dial->listed || peer->state == PEER_UP) && has_source(peer, source))
            return true;
    }
    return false;
}

/* Admits a connection that has not said which node it is from. */
static void admit_stranger(struct peers *peers, struct peer_link *link)
{
    struct sockaddr_storage address = {0};
    int bytes = sizeof address;
    struct stranger *goes;

    (void)uv_tcp_getpeername(&link->tcp, (struct sockaddr *)&address, &bytes);
    strangers_source(&address, link->stranger.source);
    goes = strangers_admit(&peers->strangers, &link->stranger, is_listed(peers, link->stranger.source));
    if (!goes)
        return;
    link = container_of(goes, struct peer_link, stranger);
    warn_of_stranger(peers, link->remote, "closed: too many others have connected and not said who they are");
    peer_meet_drop(peers, link, NULL);
}

static void on_connection(uv_stream_t *listener, int uv_status)
{
    struct peers *peers = listener->data;
    struct peer_link *link;
    struct rdt_error err;

    if (uv_status < 0) {
        warn_of_stranger(peers, "?", uv_strerror(uv_status));
    } else if (peer_link_accept(&peers->config, listener, &link, &err) != RDT_OK) {
        warn_of_stranger(peers, "?", err.msg);
        refuse_connection(peers);
    } else {
        list_append(&peers->links, &link->node);
        peers->n_open++;
        admit_stranger(peers, link);
    }
}

/* Writes "host:port". false: it is too long. */
static bool join_address(const char *host, unsigned port, char text_p[65])
{
    int n = snprintf(text_p, 65, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);

    return n > 0 && n < 65;
}

static enum rdt_status own_address(const struct options *options, const char *listen_host, unsigned port, char *address_p,
                                   char *hello_address_p, struct rdt_error *err)
{
    char host[65] = "";
    bool any = strcmp(listen_host, "0.0.0.0") == 0 || strcmp(listen_host, "::") == 0;
    uint16_t advertised;

    if (options->advertise[0]) {
        enum rdt_status status = options_split_address(options->advertise, host, &advertised, err);

        if (status != RDT_OK)
            return status;
        if (advertised)
            port = advertised;
    } else if (!any) {
        snprintf(host, sizeof host, "%s", listen_host);
    } else if (gethostname(host, sizeof host - 1) < 0) {
        return rdt_error_sys(err, errno, "this host has no name; set advertise");
    }
    if (!join_address(host, port, address_p))
        return rdt_error_set(err, RDT_INVALID, "this host's name %s is too long for refs; set advertise", host);
    /* The peer sees the source address of the connection, which is more reliable than a name that only
     * this node may know. */
    if (any && !options->advertise[0])
        snprintf(hello_address_p, 65, ":%u", port);
    else
        memcpy(hello_address_p, address_p, 65);
    return RDT_OK;
}

enum rdt_status peer_meet_bind(const struct options *options, char *address_p, char *hello_address_p, int *fd_p,
                               struct rdt_error *err)
{
    union {
        struct sockaddr any;
        struct sockaddr_in in4;
        struct sockaddr_in6 in6;
    } address;
    socklen_t bytes = sizeof address;
    char host[65];
    uint16_t port;
    int fd, on = 1;
    enum rdt_status status = options_split_address(options->listen, host, &port, err);

    if (status != RDT_OK)
        return status;
    memset(&address, 0, sizeof address);
    if (uv_ip4_addr(host, port, &address.in4) != 0 && uv_ip6_addr(host, port, &address.in6) != 0)
        return rdt_error_set(err, RDT_INVALID, "listen = %s: the address must be numeric", options->listen);
    fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return rdt_error_sys(err, errno, "listen = %s", options->listen);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, &address.any, address.any.sa_family == AF_INET6 ? sizeof address.in6 : sizeof address.in4) < 0 ||
        listen(fd, BACKLOG) < 0 || getsockname(fd, &address.any, &bytes) < 0) {
        status = rdt_error_sys(err, errno, "listen = %s", options->listen);
    } else {
        /* The port is at the same offset in both address structures. */
        status = own_address(options, host, ntohs(address.in4.sin_port), address_p, hello_address_p, err);
    }
    if (status != RDT_OK) {
        (void)close(fd);
        return status;
    }
    *fd_p = fd;
    return RDT_OK;
}

void peer_meet_listen(struct peers *peers, int take_fd)
{
    int rc = uv_tcp_open(&peers->listener, take_fd);

    if (rc < 0)
        (void)close(take_fd);
    else
        rc = uv_listen((uv_stream_t *)&peers->listener, BACKLOG, on_connection);
    if (rc < 0)
        log_error("cannot listen for other nodes: %s", uv_strerror(rc));
    else
        log_info("listening for other nodes at %s; refs say %s", peers->options->listen, peers->node->address);
}
