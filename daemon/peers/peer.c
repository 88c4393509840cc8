/* SPDX-License-Identifier: Apache-2.0 */
/* The other nodes: their states, and when each is dialled. peer_table.c has their identities, peer_meet.c decides how two
 * nodes meet, and peer_link.c is one connection. */
#include "daemon/peers/peer_impl.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "daemon/base/log.h"

#define BACKOFF_FIRST_NS UINT64_C(100000000)
#define TWIN_NS UINT64_C(600000000000)
#define STEADY_NS UINT64_C(2000000000) /* a link that lasted so long ends a series of failures */

static const struct sm_state states[] = {
    [PEER_IDLE] = {"idle", 1u << PEER_CONNECTING | 1u << PEER_UP},
    [PEER_CONNECTING] = {"connecting", 1u << PEER_UP | 1u << PEER_BACKOFF | 1u << PEER_IDLE},
    [PEER_UP] = {"up", 1u << PEER_BACKOFF},
    [PEER_BACKOFF] = {"backoff", 1u << PEER_IDLE | 1u << PEER_UP},
};

const char *peer_state_name(enum peer_state state)
{
    return states[state].name;
}

void peer_move(struct peer *peer, enum peer_state to)
{
    struct sm sm;

    sm_init(&sm, states, sizeof states / sizeof states[0], peer->state);
    sm_move(&sm, to);
    peer->state = to;
    peer->since_ns = uv_hrtime();
    peer_settle_sources(peer);
    if (to != PEER_BACKOFF)
        peer_emit(peer, states[to].name);
}

/* ---- back-off ---- */

static void on_backoff_over(uv_timer_t *timer);

void peer_back_off(struct peer *peer)
{
    struct peer_dial *dial = peer->dial;
    uint64_t most_ns = peer->peers->options->backoff_max_ns, wait_ns = BACKOFF_FIRST_NS;
    uint32_t dice;

    for (unsigned i = 0; i < dial->failures && wait_ns < most_ns; i++)
        wait_ns *= 2;
    if (wait_ns > most_ns)
        wait_ns = most_ns;
    /* Between half of the delay and all of it, so that nodes that lost the same peer do not return at the
     * same moment. */
    if (getrandom(&dice, sizeof dice, GRND_NONBLOCK) != sizeof dice)
        dice = UINT32_MAX / 2;
    wait_ns = wait_ns / 2 + (uint64_t)((double)(wait_ns / 2) * ((double)dice / (double)UINT32_MAX));
    dial->failures++;
    peer_move(peer, PEER_BACKOFF);
    peer->retry_at_ns = uv_hrtime() + wait_ns;
    uv_update_time(peer->peers->loop);
    uv_timer_start(&dial->timer, on_backoff_over, wait_ns / 1000000 + 1, 0);
}

static void on_backoff_over(uv_timer_t *timer)
{
    struct peer_dial *dial = timer->data;
    struct peers *peers = dial->peer.peers;

    peer_move(&dial->peer, PEER_IDLE);
    list_append(&peers->to_dial, &dial->to_dial);
    slice_start(peers->callbacks.slices, &peers->dial);
}

bool peers_dial_some(struct slice *slice, uint64_t until_ns)
{
    struct peers *peers = container_of(slice, struct peers, dial);
    struct rdt_error err;

    list_drain (struct peer_dial, dial, &peers->to_dial, to_dial) {
        struct peer *peer = &dial->peer;
        list_remove(&dial->to_dial);
        if (peer->state == PEER_IDLE && peer_can_be_dialled(peer) && (dial->table.listed || dial->wanted) &&
            peer_start_dial(peer, &err) != RDT_OK) {
            peer_move(peer, PEER_CONNECTING);
            peer_failed(peer, &err);
        }
        if (uv_hrtime() >= until_ns)
            return list_empty(&peers->to_dial);
    }
    return true;
}

void peer_dial_now(struct peer *peer)
{
    uv_timer_stop(&peer->dial->timer);
    peer_move(peer, PEER_IDLE);
    if (peer_start_dial(peer, NULL) == RDT_OK)
        return;
    peer_move(peer, PEER_CONNECTING); /* not peer_failed, because no request waits for this dial */
    peer_back_off(peer);
}

struct account *peer_look_up_account(const struct peer *peer)
{
    const struct peer_dial *dial = peer->dial;

    if (dial->hint.dialled)
        return dial->hint.by;
    return peer_has_been_met(peer) ? NULL : dial->address_by;
}

enum rdt_status peer_start_dial(struct peer *peer, struct rdt_error *err)
{
    struct peers *peers = peer->peers;
    struct peer_dial *dial = peer->dial;
    const char *address;
    char host[65];
    uint16_t port;
    enum rdt_status status;

    /* Alternates between the address that a request named and the one where the node was met before. */
    dial->hint.dialled = dial->hint.text[0] && (!peer->address[0] || !dial->hint.dialled);
    dial->hint.n_dials = dial->hint.dialled ? dial->hint.n_dials + 1 : 0;
    address = dial->hint.dialled ? dial->hint.text : peer->address;
    status = options_split_address(address, host, &port, err);
    if (status == RDT_OK)
        status = peer_link_dial(&peers->config, host, port, peer_look_up_account(peer), &dial->link, err);
    if (status != RDT_OK)
        return status;
    dial->wanted = false;
    dial->link->peer = peer;
    list_append(&peers->links, &dial->link->node);
    peers->n_open++;
    peer_move(peer, PEER_CONNECTING);
    log_debug("%s: dialling %s", peer->name, address);
    return RDT_OK;
}

/* Logs one line when a node is lost, and not one for each failed attempt. Nodes and addresses that only users have named
 * share one line at a limited rate. */
static void log_failure(struct peer *peer, const struct rdt_error *why)
{
    bool users = peer->dial->hint.dialled || !peer_has_been_met(peer);
    bool news = peer->dial->hint.dialled || strncmp(peer->dial->logged, why->msg, sizeof peer->dial->logged - 1) != 0;
    char who[128];

    peer_describe(peer, who);
    if (!peer->dial->hint.dialled)
        snprintf(peer->dial->logged, sizeof peer->dial->logged, "%.191s", why->msg);
    if (news && users)
        log_warn_rarely(&peer->peers->unmet_warnings, who, why->msg);
    else
        log_at(news ? LOG_LEVEL_WARN : LOG_LEVEL_DEBUG, "%s: %s", who, why->msg);
}

/* The sentence for users about an address that is not in the nodes file and where no node was met. */
static const char secret_error[] = "no node with this node's key answers there";

void peer_failed(struct peer *peer, const struct rdt_error *cause)
{
    const struct peer_dial *dial = peer->dial;
    struct rdt_error hidden, *why = &hidden;

    log_failure(peer, cause);
    peer->last_error_secret = dial->hint.dialled || !peer_has_been_met(peer);
    snprintf(peer->last_error, sizeof peer->last_error, "%.191s", cause->msg);
    if (dial->secret || (dial->hint.dialled && dial->hint.secret))
        rdt_error_set(why, RDT_PEER_LOST, "%s", secret_error);
    else
        *why = *cause;
    peer_back_off(peer);
    peer_emit(peer, "unreachable");
    if (peer->peers->callbacks.on_down)
        peer->peers->callbacks.on_down(peer->peers->callbacks.arg, peer, false, why);
}

/* ---- up and down ---- */

void peer_lost(struct peer *peer, const struct rdt_error *why)
{
    struct peers *peers = peer->peers;
    struct rdt_error lost = *why;
    char who[128];

    if (uv_hrtime() - peer->since_ns > STEADY_NS)
        peer->dial->failures = 0;
    peer->link_up = NULL;
    peer_describe(peer, who);
    if (lost.status != RDT_LIMIT && lost.status != RDT_PROTOCOL && lost.status != RDT_SHUTTING_DOWN)
        lost.status = RDT_PEER_LOST;
    log_debug("%s is down: %s", who, lost.msg); /* the receiver of on_down logs it */
    snprintf(peer->last_error, sizeof peer->last_error, "%.191s", lost.msg);
    peer->last_error_secret = false;
    peer_back_off(peer);
    peer_emit(peer, "down");
    if (peers->callbacks.on_down)
        peers->callbacks.on_down(peers->callbacks.arg, peer, true, &lost);
}

void peer_drop_link(struct peers *peers, struct peer_link *link, const char *reason)
{
    list_remove(&link->node);
    strangers_remove(&peers->door.strangers, &link->meeting.stranger);
    if (link->peer && link->peer->dial->link == link)
        link->peer->dial->link = NULL;
    peer_link_close(link, reason);
}

void peer_take_link(struct peer *peer, struct peer_link *link, const struct rdt_error *why_old)
{
    struct peers *peers = peer->peers;
    const Rdt__Pb__LinkHello *hello = link->meeting.hello;
    bool boot_changed = peer->epoch && memcmp(peer->boot_id, hello->boot_id.data, sizeof peer->boot_id) != 0;
    char who[128];

    if (peer->link_up) {
        peer_drop_link(peers, peer->link_up, NULL);
        peer_lost(peer, why_old);
        if (peers->closing) /* the rooms above have been closed */
            return;
    }
    if (peer->dial->link && peer->dial->link != link)
        peer_drop_link(peers, peer->dial->link, NULL);
    peer->dial->link = NULL;
    peer->dial->wanted = false;
    uv_timer_stop(&peer->dial->timer);

    if (boot_changed)
        memcpy(peer->dial->twin.former_boot_id, peer->boot_id, sizeof peer->boot_id);
    memcpy(peer->boot_id, hello->boot_id.data, sizeof peer->boot_id);
    snprintf(peer->version, sizeof peer->version, "%.31s", hello->version);
    tls_identity(&link->tls, peer->identity);
    peer->tensor_runs = hello->tensor_runs;
    peer->names = hello->names;
    peer->last_error[0] = 0;
    peer->rtt_ns = 0;
    peer->clock_rtt_ns = 0; /* the machine may have rebooted */
    peer->confirmed_ns = peer->answered_ns = 0;
    peer->patience_ns = (uint64_t)hello->peer_timeout_ms * 1000000u;
    peer->epoch++;
    peer->link_up = link;
    link->peer = peer;
    strangers_remove(&peers->door.strangers, &link->meeting.stranger);
    peer_move(peer, PEER_UP);
    peer_link_up(link);

    peer_describe(peer, who);
    log_debug("%s is up: %s %s, version %s%s", who, link->meeting.accepted_ns ? "from" : "at", link->remote, peer->version,
              boot_changed ? ", restarted" : "");
    if (peers->callbacks.on_up)
        peers->callbacks.on_up(peers->callbacks.arg, peer, hello, boot_changed);
    peer_link_forget_hello(link);
}

/* ---- what others see of a peer ---- */

const char *peer_why_away(const struct peer *peer, bool admin)
{
    return peer->last_error_secret && !admin ? secret_error : peer->last_error;
}

static const char *recent(const struct peer_twin *twin)
{
    return twin->text[0] && uv_hrtime() - twin->seen_ns < TWIN_NS ? twin->text : "";
}

const char *peer_twin(const struct peer *peer)
{
    return recent(&peer->dial->twin);
}

const char *peers_twin(const struct peers *peers)
{
    return recent(&peers->twin);
}

enum rdt_status peer_away(const struct peer *peer, const struct account *account, struct rdt_error *err)
{
    const char *why = peer_why_away(peer, account_is_admin(account));
    uint64_t now = uv_hrtime();

    return rdt_error_set(err, RDT_PEER_LOST, "node %s cannot be reached: %.191s (next try in %.1f s)", peer->name, why,
                         peer->retry_at_ns > now ? (double)(peer->retry_at_ns - now) / 1e9 : 0.0);
}

enum rdt_status peer_send(struct peer *peer, enum rdt_peer_message type, const ProtobufCMessage *message, struct rdt_error *err)
{
    char who[128];

    if (peer->state == PEER_UP && !peer->link_up->failed)
        return peer_link_send(peer->link_up, type, message, err);
    peer_describe(peer, who);
    if (peer->last_error[0])
        return rdt_error_set(err, RDT_PEER_LOST, "%s is not connected: %.120s", who, peer_why_away(peer, false));
    return rdt_error_set(err, RDT_PEER_LOST, "%s is not connected", who);
}

size_t peer_queued_bytes(const struct peer *peer)
{
    return peer->state == PEER_UP ? peer_link_queued_bytes(peer->link_up) : 0;
}

void peer_probe(struct peer *peer)
{
    if (peer->state == PEER_UP)
        peer_link_probe(peer->link_up);
}
