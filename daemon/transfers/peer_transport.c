/* SPDX-License-Identifier: Apache-2.0 */
/* Connections of transports to a peer. They are offered when the link is up, and rebuilt under a new epoch
 * when one fails or must be isolated. */
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "daemon/base/log.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/serve/serve.h"

#define RETRY_MIN_NS 50000000ll
#define RETRY_MAX_NS 5000000000ll

static const struct sm_state states[] = {
    [PT_NONE] = {"none", 1u << PT_OFFERED},
    [PT_OFFERED] = {"offered", 1u << PT_CONNECTED | 1u << PT_CLOSING | 1u << PT_NONE},
    [PT_CONNECTED] = {"connected", 1u << PT_CLOSING},
    [PT_CLOSING] = {"closing", 1u << PT_NONE},
};

static void peer_transport_open(struct peer_transport *pt);

static bool link_is_up(const struct peer_transport *pt)
{
    return pt->remote->peer->state == PEER_UP;
}

/* Whether a connection can be built: neither end has said that it will not take part. */
static bool may_open(const struct peer_transport *pt)
{
    return link_is_up(pt) && !pt->transport->unloading && pt->remote_why_not[0] == '\0';
}

/* Starts to disconnect. The operations under way end with this reason. */
static void close_connection(struct peer_transport *pt, const char *why)
{
    (void)snprintf(pt->broken, sizeof pt->broken, "the connection was taken down: %.150s", why);
    sm_move(&pt->sm, PT_CLOSING);
    plugin_conn_disconnect(&pt->conn);
}

void peer_transport_isolate(struct peer_transport *pt, const char *why)
{
    char who[sizeof pt->remote->peer->name + 80], line[512];

    if (pt->sm.state != PT_CONNECTED && pt->sm.state != PT_OFFERED)
        return;
    if (pt->group) {
        group_break(pt->group, why);
        return;
    }
    (void)snprintf(who, sizeof who, "%s to node %s", pt->transport->name, pt->remote->peer->name);
    (void)snprintf(line, sizeof line, "connection taken down and rebuilt: %s", why);
    log_warn_rarely(&pt->remote->rebuilt_lines, who, line);
    pt->failures++;
    close_connection(pt, why);
}

static void on_failed(struct plugin_conn *conn, enum rdt_status status, const char *msg)
{
    struct peer_transport *pt = container_of(conn, struct peer_transport, conn);
    char why[256];

    if (pt->transport->unloading && (pt->sm.state == PT_CONNECTED || pt->sm.state == PT_OFFERED)) {
        close_connection(pt, "the transport is being unloaded"); /* The other end knows already. */
        return;
    }
    (void)snprintf(why, sizeof why, "%s: %s", rdt_status_name(status), msg ? msg : "");
    peer_transport_isolate(pt, why);
}

static void on_closed(struct plugin_conn *conn)
{
    struct peer_transport *pt = container_of(conn, struct peer_transport, conn);
    bool closing;

    plugin_conn_destroy(conn);
    sm_move(&pt->sm, PT_NONE);
    pt->remote_epoch = 0;
    closing = pt->remote->transfers->closing;
    /* while the daemon closes its transfers, `pt` may be gone now */
    pt->remote->transfers->connections->on_closed(pt);
    if (!closing && may_open(pt)) {
        int64_t wait = RETRY_MIN_NS << (pt->failures < 8 ? pt->failures : 8);
        if (pt->failures <= 1)
            peer_transport_open(pt);
        else
            (void)deadline_set(pt->remote->transfers->deadlines, &pt->retry, wait < RETRY_MAX_NS ? wait : RETRY_MAX_NS);
    }
}

static void write_address(const struct plugin_conn *conn, char *text_p, size_t size)
{
    peer_own_address(container_of(conn, struct peer_transport, conn)->remote->peer, text_p, size);
}

/* The other end does not want the connection and says why. It is built again when that changes. */
static void take_down(struct peer_transport *pt)
{
    pt->blob_epoch = 0;
    deadline_unset(pt->remote->transfers->deadlines, &pt->retry);
    if (pt->sm.state == PT_CONNECTED || pt->sm.state == PT_OFFERED) {
        log_debug("%s to node %s is taken down: %s", pt->transport->name, pt->remote->peer->name, pt->remote_why_not);
        close_connection(pt, pt->remote_why_not);
    }
    pt->remote->transfers->connections->on_refused(pt);
}

static void on_retry(struct deadline *deadline)
{
    struct peer_transport *pt = container_of(deadline, struct peer_transport, retry);

    if (pt->sm.state == PT_NONE && may_open(pt))
        peer_transport_open(pt);
}

/* Two versions of one library may connect and then fail, or exchange wrong bytes. Such ends are not
 * connected. */
static bool versions_agree(struct peer_transport *pt)
{
    bool agree = strcmp(pt->transport->version, pt->remote_version) == 0;

    if (!agree && !pt->difference_logged)
        log_warn("%s is not used with node %s: the library or its settings differ: %s here, %s there", pt->transport->name,
                 pt->remote->peer->name, pt->transport->version, pt->remote_version);
    pt->difference_logged = !agree;
    return agree;
}

static void use_blob(struct peer_transport *pt)
{
    struct rdt_error err = {0};

    if (pt->sm.state != PT_OFFERED || pt->blob_epoch == 0 || !versions_agree(pt))
        return;
    pt->remote_epoch = pt->blob_epoch;
    pt->blob_epoch = 0;
    if (pt->transport->ops.connect(pt->conn.handle, pt->blob, pt->blob_bytes, &err) != RDT_OK) {
        peer_transport_isolate(pt, err.msg);
        return;
    }
    pt->broken[0] = '\0';
    sm_move(&pt->sm, PT_CONNECTED);
    pt->remote->transfers->connections->on_connected(pt);
}

/* Sends an offer; without a blob, the reason why there is none; without either, only that the offer will come
 * later. */
static void send_offer(struct peer_transport *pt, uint8_t *blob, size_t blob_bytes, const char *why_not)
{
    Rdt__Pb__Offer offer = RDT__PB__OFFER__INIT;
    char *memory[8];
    struct rdt_error err;

    offer.transport = (char *)pt->transport->name;
    offer.version = (char *)pt->transport->version;
    offer.epoch = blob || why_not[0] ? pt->epoch : 0;
    offer.why_not = (char *)why_not;
    offer.blob = (ProtobufCBinaryData){blob_bytes, blob};
    offer.memory = memory;
    for (const char *const *kind = pt->transport->ops.memory_kinds; kind && *kind && offer.n_memory < 8; kind++)
        memory[offer.n_memory++] = (char *)*kind;
    if (remote_send(pt->remote, RDT_PEER_OFFER, &offer.base, &err) != RDT_OK)
        log_debug("offer of %s to node %s: %s", pt->transport->name, pt->remote->peer->name, err.msg);
}

/* There is no connection by this transport, and the next link tries again: one line says so, not one for each try. */
static void warn_of_none(struct peer_transport *pt, const struct rdt_error *err)
{
    char who[sizeof pt->remote->peer->name + 80];

    (void)snprintf(who, sizeof who, "%s to node %s", pt->transport->name, pt->remote->peer->name);
    log_warn_rarely(&pt->remote->rebuilt_lines, who, err->msg);
}

static void peer_transport_open(struct peer_transport *pt)
{
    uint8_t blob[RDT_OFFER_MAX_BYTES];
    size_t bytes = 0;
    struct rdt_error err = {0};

    deadline_unset(pt->remote->transfers->deadlines, &pt->retry);
    if (!pt->transport->available) {
        send_offer(pt, NULL, 0, pt->transport->why_not);
        return;
    }
    pt->conn.on_failed = on_failed;
    pt->conn.on_closed = on_closed;
    pt->conn.address = write_address;
    if (plugin_conn_create(&pt->conn, pt->transport, pt->remote->peer->uuid, &err) != RDT_OK) {
        warn_of_none(pt, &err);
        send_offer(pt, NULL, 0, err.msg);
        return;
    }
    pt->epoch++;
    sm_move(&pt->sm, PT_OFFERED);
    if (pt->transport->ops.offer(pt->conn.handle, blob, &bytes, &err) != RDT_OK) {
        warn_of_none(pt, &err);
        plugin_conn_destroy(&pt->conn);
        sm_move(&pt->sm, PT_NONE);
        send_offer(pt, NULL, 0, err.msg);
        return;
    }
    send_offer(pt, blob, bytes, "");
    use_blob(pt);
}

struct peer_transport *peer_transport_find(struct remote *remote, const char *name)
{
    list_each (struct peer_transport, pt, &remote->transports, link)
        if (strcasecmp(pt->transport->name, name) == 0)
            return pt;
    return NULL;
}

static struct peer_transport *peer_transport_get(struct remote *remote, struct transport *transport)
{
    struct peer_transport *pt = peer_transport_find(remote, transport->name);

    if (pt)
        return pt;
    pt = calloc(1, sizeof *pt);
    if (!pt)
        return NULL;
    pt->remote = remote;
    pt->transport = transport;
    pt->retry.on_passed = on_retry;
    sm_init(&pt->sm, states, sizeof states / sizeof states[0], PT_NONE);
    list_init(&pt->pulls);
    list_init(&pt->serves);
    list_init(&pt->sending);
    cut_off_init(&pt->cut_off);
    list_append(&remote->transports, &pt->link);
    return pt;
}

void peer_transports_up(struct remote *remote)
{
    list_each (struct transport, transport, plugins_transports(remote->transfers->plugins), link) {
        struct peer_transport *pt = transport_is_grouped(transport) ? NULL : peer_transport_get(remote, transport);
        if (!pt)
            continue;
        pt->failures = 0;
        pt->remote_why_not[0] = '\0';
        if (pt->sm.state == PT_NONE)
            peer_transport_open(pt);
        else if (!transport->unloading)
            send_offer(pt, NULL, 0, ""); /* The offer comes when the old connection has closed. */
    }
}

void peer_transports_down(struct remote *remote)
{
    list_each (struct peer_transport, pt, &remote->transports, link) {
        pt->remote_known = false;
        pt->blob_epoch = 0;
        deadline_unset(remote->transfers->deadlines, &pt->retry);
        if (pt->sm.state == PT_OFFERED || pt->sm.state == PT_CONNECTED)
            close_connection(pt, "the link to the node ended");
    }
}

bool peer_transports_closed(const struct remote *remote)
{
    list_for_each (node, &remote->transports) {
        if (container_of(node, struct peer_transport, link)->sm.state != PT_NONE)
            return false;
    }
    return true;
}

/* Declines the offer of a transport that this node does not have, so that the other node closes its end. */
static void decline(struct remote *remote, const char *transport)
{
    Rdt__Pb__Offer offer = RDT__PB__OFFER__INIT;

    offer.transport = (char *)transport;
    offer.why_not = (char *)"it is not loaded there";
    (void)remote_send(remote, RDT_PEER_OFFER, &offer.base, NULL);
}

enum rdt_status peer_transport_on_offer(struct remote *remote, const Rdt__Pb__Offer *offer, struct rdt_error *err)
{
    struct peer_transport *pt = peer_transport_find(remote, offer->transport);

    if (!pt) { /* The transport is not loaded here. */
        log_debug("node %s offers %s, which is not loaded here", remote->peer->name, offer->transport);
        if (offer->why_not[0] == '\0')
            decline(remote, offer->transport);
        return RDT_OK;
    }
    if (offer->blob.len > RDT_OFFER_MAX_BYTES || strlen(offer->version) > 64)
        return rdt_error_set(err, RDT_PROTOCOL, "an offer of %s is too long", offer->transport);
    pt->remote_known = true;
    (void)snprintf(pt->remote_why_not, sizeof pt->remote_why_not, "%s", offer->why_not);
    (void)snprintf(pt->remote_version, sizeof pt->remote_version, "%s", offer->version);
    pt->remote_memory[0] = '\0';
    for (size_t i = 0; i < offer->n_memory; i++) {
        size_t used = strlen(pt->remote_memory);
        (void)snprintf(pt->remote_memory + used, sizeof pt->remote_memory - used, " %s ", offer->memory[i]);
    }
    if (offer->why_not[0] != '\0') {
        take_down(pt);
        return RDT_OK;
    }
    if (offer->epoch == 0)
        return RDT_OK;
    if (offer->blob.len > 0)
        memcpy(pt->blob, offer->blob.data, offer->blob.len);
    pt->blob_bytes = offer->blob.len;
    pt->blob_epoch = offer->epoch;
    if (pt->sm.state == PT_CONNECTED) /* The peer has built its end anew, so this node's end leads nowhere. */
        close_connection(pt, "the other node rebuilt its end");
    else if (pt->sm.state == PT_NONE && pt->transport->available && pt->retry.index == 0)
        peer_transport_open(pt); /* The transport was not there before. */
    else
        use_blob(pt);
    return RDT_OK;
}

bool peer_transport_is_coming(const struct peer_transport *pt)
{
    if (pt->remote_known && strcmp(pt->transport->version, pt->remote_version) != 0)
        return false;
    return pt->sm.state == PT_OFFERED || pt->sm.state == PT_CLOSING ||
           (pt->sm.state == PT_NONE && deadline_left_ns(&pt->retry) >= 0);
}

void peer_transport_why_not(const struct peer_transport *pt, char *text, size_t size)
{
    text[0] = '\0';
    if (!pt->transport->available || !pt->remote_known)
        return;
    if (pt->remote_why_not[0] != '\0')
        (void)snprintf(text, size, "%s: not available there: %s", pt->transport->name, pt->remote_why_not);
    else if (strcmp(pt->transport->version, pt->remote_version) != 0)
        (void)snprintf(text, size, "%s: the library or its settings differ: %s here, %s there", pt->transport->name,
                       pt->transport->version, pt->remote_version);
}

static bool has_word(const char *words, const char *word)
{
    char padded[70];

    (void)snprintf(padded, sizeof padded, " %s ", word);
    return strstr(words, padded);
}

void peer_transport_offer_to_path(const struct peer_transport *pt, const char *source_memory, const char *target_memory,
                                  struct path_offer *offer)
{
    *offer = (struct path_offer){.name = pt->transport->name,
                                 .speed = pt->transport->speed,
                                 .here_version = pt->transport->version,
                                 .there_version = pt->remote_version};
    if (!pt->transport->available)
        offer->here_why_not = pt->transport->why_not;
    if (!pt->remote_known)
        offer->there_why_not = "it does not offer the transport";
    else if (pt->remote_why_not[0] != '\0')
        offer->there_why_not = pt->remote_why_not;
    offer->source.moves = !pt->remote_known || has_word(pt->remote_memory, source_memory);
    offer->target.moves = transport_moves(pt->transport, target_memory);
    offer->source.stages = strcmp(source_memory, "host") != 0 && (!pt->remote_known || has_word(pt->remote_memory, "host"));
    offer->target.stages = strcmp(target_memory, "host") != 0 && transport_moves(pt->transport, "host");
    offer->connected = pt->sm.state == PT_CONNECTED;
    offer->sides = RDT_ONE_SIDED | RDT_TWO_SIDED;
    if (offer->connected)
        offer->sides = pt->transport->ops.sides(pt->conn.handle, offer->target.moves ? target_memory : "host");
    if (offer->sides == 0)
        plugin_conn_describe(&pt->conn, offer->refusal, sizeof offer->refusal);
}

/* ---- loading and unloading while links are up ---- */

void transfers_transport_loaded(struct transfers *transfers, struct transport *transport)
{
    list_each (struct remote, remote, &transfers->remotes, link) {
        struct peer_transport *pt =
            remote->peer->state == PEER_UP && !transport_is_grouped(transport) ? peer_transport_get(remote, transport) : NULL;
        if (pt && pt->sm.state == PT_NONE)
            peer_transport_open(pt);
    }
}

void peer_transport_use(struct peer_transport **at_p, struct peer_transport *pt)
{
    if (*at_p)
        (*at_p)->n_users--;
    if (pt)
        pt->n_users++;
    *at_p = pt;
}

void transfers_transport_leave(struct transfers *transfers, struct transport *transport)
{
    list_each (struct remote, remote, &transfers->remotes, link) {
        struct peer_transport *pt = peer_transport_find(remote, transport->name);
        if (!pt)
            continue;
        deadline_unset(transfers->deadlines, &pt->retry);
        if (link_is_up(pt))
            send_offer(pt, NULL, 0, "it was unloaded there");
        if (pt->sm.state == PT_OFFERED)
            close_connection(pt, "the transport is being unloaded");
    }
}

void transfers_transport_cut(struct transfers *transfers, const struct transport *transport)
{
    list_for_each (node, &transfers->remotes) {
        struct peer_transport *pt = peer_transport_find(container_of(node, struct remote, link), transport->name);
        if (pt && (pt->sm.state == PT_CONNECTED || pt->sm.state == PT_OFFERED))
            close_connection(pt, "the transport is being unloaded");
    }
}

void transfers_transport_forget(struct transfers *transfers, const struct transport *transport)
{
    list_for_each (node, &transfers->remotes) {
        struct peer_transport *pt = peer_transport_find(container_of(node, struct remote, link), transport->name);
        if (!pt)
            continue;
        deadline_unset(transfers->deadlines, &pt->retry);
        cut_off_stop(&pt->cut_off);
        list_remove(&pt->link);
        free(pt);
    }
}
