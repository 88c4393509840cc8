/* The other nodes: the table of them, their states, when each is dialled. How two nodes meet is in peer_meet.c, one
 * connection in peer_link.c.
 *
 * An entry is never freed before all are, because the layer above keeps pointers; so their number is bounded.
 */
#include "daemon/peers/peer_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/base/log.h"

#define PEERS_MAX 4096u
#define BACKOFF_FIRST_NS UINT64_C(100000000)
#define STEADY_NS UINT64_C(2000000000) /* a link that lived so long ends a row of failures */

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

void peer_tell(const struct peer *peer, const char *what)
{
    event(peer->peers->callbacks.events, RDT__PB__LIST_KIND__LIST_KIND_PEERS, what, peer);
}

static void move(struct peer *peer, enum peer_state to)
{
    struct sm sm;

    sm_init(&sm, states, sizeof states / sizeof states[0], peer->state);
    sm_move(&sm, to);
    peer->state = to;
    peer->since_ns = uv_hrtime();
    if (to != PEER_BACKOFF)
        peer_tell(peer, states[to].name);
}

bool peer_is_known(const struct peer *peer)
{
    static const uint8_t zero[16];

    return memcmp(peer->uuid, zero, sizeof zero) != 0;
}

void peer_describe(const struct peer *peer, char *text_p)
{
    char hex[33];

    if (!peer_is_known(peer)) {
        snprintf(text_p, 128, "node %s", peer->name);
        return;
    }
    node_hex(peer->uuid, hex);
    snprintf(text_p, 128, "node %s (%.8s)", peer->name, hex);
}

/* ---- back-off ---- */

static void on_backoff_over(uv_timer_t *timer);

static void back_off(struct peer *peer)
{
    struct peer_dial *dial = peer->dial;
    uint64_t most_ns = peer->peers->options->backoff_max_ns, wait_ns = BACKOFF_FIRST_NS;
    uint32_t dice;

    for (unsigned i = 0; i < dial->failures && wait_ns < most_ns; i++)
        wait_ns *= 2;
    if (wait_ns > most_ns)
        wait_ns = most_ns;
    /* Half to whole: nodes that lost the same peer at the same moment must not return to it at the same moment. */
    if (getrandom(&dice, sizeof dice, GRND_NONBLOCK) != sizeof dice)
        dice = UINT32_MAX / 2;
    wait_ns = wait_ns / 2 + (uint64_t)((double)(wait_ns / 2) * ((double)dice / (double)UINT32_MAX));
    dial->failures++;
    move(peer, PEER_BACKOFF);
    peer->retry_at_ns = uv_hrtime() + wait_ns;
    uv_update_time(peer->peers->loop);
    uv_timer_start(&dial->timer, on_backoff_over, wait_ns / 1000000 + 1, 0);
}

static void on_backoff_over(uv_timer_t *timer)
{
    struct peer_dial *dial = timer->data;
    struct peer *peer = &dial->peer;
    struct rdt_error err;

    move(peer, PEER_IDLE);
    if (!peer->address[0] || !(dial->listed || dial->wanted))
        return;
    if (peer_start_dial(peer, &err) != RDT_OK) {
        move(peer, PEER_CONNECTING);
        peer_failed(peer, &err);
    }
}

enum rdt_status peer_start_dial(struct peer *peer, struct rdt_error *err)
{
    struct peers *peers = peer->peers;
    char host[65];
    uint16_t port;
    enum rdt_status status = options_split_address(peer->address, host, &port, err);

    if (status == RDT_OK)
        status = peer_link_dial(&peers->config, host, port, &peer->dial->link, err);
    if (status != RDT_OK)
        return status;
    peer->dial->wanted = false;
    peer->dial->link->peer = peer;
    list_append(&peers->links, &peer->dial->link->node);
    peers->n_open++;
    move(peer, PEER_CONNECTING);
    log_debug("%s: dialling %s", peer->name, peer->address);
    return RDT_OK;
}

void peer_failed(struct peer *peer, const struct rdt_error *why)
{
    bool news = strncmp(peer->last_error, why->msg, sizeof peer->last_error - 1) != 0;
    char who[128];

    peer_describe(peer, who);
    /* One line for a node that is away, not one for each time it is still away. */
    log_at(news ? LOG_LEVEL_WARN : LOG_LEVEL_DEBUG, "%s: %s", who, why->msg);
    snprintf(peer->last_error, sizeof peer->last_error, "%.191s", why->msg);
    back_off(peer);
    peer_tell(peer, "unreachable");
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
    log_debug("%s is down: %s", who, lost.msg); /* on_down's receiver says it to people */
    snprintf(peer->last_error, sizeof peer->last_error, "%.191s", lost.msg);
    back_off(peer);
    peer_tell(peer, "down");
    if (peers->callbacks.on_down)
        peers->callbacks.on_down(peers->callbacks.arg, peer, true, &lost);
}

void peer_take_link(struct peer *peer, struct peer_link *link, const struct rdt_error *why_old)
{
    struct peers *peers = peer->peers;
    const Rdt__Pb__LinkHello *hello = link->hello;
    bool boot_changed = peer->epoch && memcmp(peer->boot_id, hello->boot_id.data, sizeof peer->boot_id) != 0;
    char who[128];

    if (peer->link_up) {
        peer_meet_drop(peers, peer->link_up, NULL);
        peer_lost(peer, why_old);
        if (peers->closing) /* the layer above had enough */
            return;
    }
    if (peer->dial->link && peer->dial->link != link)
        peer_meet_drop(peers, peer->dial->link, NULL);
    peer->dial->link = NULL;
    peer->dial->wanted = false;
    uv_timer_stop(&peer->dial->timer);

    memcpy(peer->boot_id, hello->boot_id.data, sizeof peer->boot_id);
    snprintf(peer->version, sizeof peer->version, "%.31s", hello->version);
    peer->tensor_runs = hello->tensor_runs;
    peer->last_error[0] = 0;
    peer->rtt_ns = 0;
    peer->confirmed_ns = peer->answered_ns = 0;
    peer->patience_ns = (uint64_t)hello->peer_timeout_ms * 1000000u;
    peer->epoch++;
    peer->link_up = link;
    link->peer = peer;
    move(peer, PEER_UP);
    peer_link_up(link);

    peer_describe(peer, who);
    log_debug("%s is up: %s %s, version %s%s", who, link->accepted_ns ? "from" : "at", link->remote, peer->version,
              boot_changed ? ", restarted" : "");
    if (peers->callbacks.on_up)
        peers->callbacks.on_up(peers->callbacks.arg, peer, hello, boot_changed);
    peer_link_forget_hello(link);
}

/* ---- the table ---- */

enum rdt_status peer_identify(struct peer *peer, const uint8_t uuid[16], struct rdt_error *err)
{
    memcpy(peer->uuid, uuid, sizeof peer->uuid);
    if (!map_put(&peer->peers->by_uuid, peer->uuid, sizeof peer->uuid, peer)) {
        memset(peer->uuid, 0, sizeof peer->uuid);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for another node");
    }
    return RDT_OK;
}

enum rdt_status peer_add(struct peers *peers, const uint8_t *uuid, const char *name, const char *address, struct peer **peer_p,
                         struct rdt_error *err)
{
    struct peer_dial *dial;
    struct peer *peer;

    if (peers->n_peers >= PEERS_MAX)
        return rdt_error_set(err, RDT_LIMIT, "%u other nodes are known, no more fit", PEERS_MAX);
    dial = calloc(1, sizeof *dial);
    if (!dial)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for another node");
    peer = &dial->peer;
    peer->peers = peers;
    peer->dial = dial;
    peer->since_ns = uv_hrtime();
    snprintf(peer->name, sizeof peer->name, "%s", name);
    snprintf(peer->address, sizeof peer->address, "%s", address);
    if (uuid && peer_identify(peer, uuid, err) != RDT_OK) {
        free(dial);
        return RDT_NO_MEMORY;
    }
    uv_timer_init(peers->loop, &dial->timer);
    dial->timer.data = dial;
    peers->n_open++;
    list_append(&peers->all, &peer->link);
    peers->n_peers++;
    peer_tell(peer, "new");
    *peer_p = peer;
    return RDT_OK;
}

void peer_hide(struct peer *peer, struct peer *same)
{
    struct peers *peers = peer->peers;

    uv_timer_stop(&peer->dial->timer);
    if (peer->dial->link)
        peer_meet_drop(peer->peers, peer->dial->link, NULL);
    if (peer->state != PEER_IDLE)
        move(peer, PEER_IDLE);
    peer->dial->listed = false;
    list_remove(&peer->link);
    list_append(&peers->hidden, &peer->link);
    peer->dial->same = same;
    peer_tell(peer, "gone");
}

bool peer_merge(struct peer *from, struct peer *into)
{
    struct peer_link *link = from->dial->link;
    bool keeps_own = into->dial->link && into->dial->link->hello_sent;

    snprintf(into->name, sizeof into->name, "%s", from->name);
    snprintf(into->address, sizeof into->address, "%s", from->address);
    into->dial->listed |= from->dial->listed;
    if (!keeps_own)
        from->dial->link = NULL;
    peer_hide(from, into);
    peer_tell(into, "renamed");
    if (keeps_own)
        return false;
    if (into->dial->link)
        peer_meet_drop(into->peers, into->dial->link, NULL);
    into->dial->link = link;
    link->peer = into;
    if (into->state == PEER_BACKOFF) {
        uv_timer_stop(&into->dial->timer);
        move(into, PEER_IDLE);
    }
    if (into->state == PEER_IDLE)
        move(into, PEER_CONNECTING);
    return true;
}

struct list *peers_all(struct peers *peers)
{
    return &peers->all;
}

/* false: it is this node itself. *peer_p NULL: nobody that is known. */
static bool find_by_address(struct peers *peers, const char *address, struct peer **peer_p)
{
    *peer_p = NULL;
    list_for_each (node, &peers->all) {
        struct peer *peer = container_of(node, struct peer, link);
        if (strcmp(peer->address, address) == 0 || strcmp(peer->name, address) == 0) {
            *peer_p = peer;
            return true;
        }
    }
    list_for_each (hidden_node, &peers->hidden) {
        struct peer *peer = container_of(hidden_node, struct peer, link);
        if (strcmp(peer->address, address) != 0)
            continue;
        while (peer && peer->dial->same)
            peer = peer->dial->same;
        *peer_p = peer_is_known(peer) ? peer : NULL;
        return *peer_p;
    }
    return true;
}

enum rdt_status peers_find(struct peers *peers, const uint8_t uuid[16], const char *address, struct peer **peer_p,
                           struct rdt_error *err)
{
    static const uint8_t zero[16];
    bool named = memcmp(uuid, zero, sizeof zero) != 0;
    struct peer *peer = named ? map_get(&peers->by_uuid, uuid, 16) : NULL;
    enum rdt_status status = RDT_OK;
    char host[65], hex[33];
    uint16_t port;

    if (!peers->tls)
        return rdt_error_set(err, RDT_UNSUPPORTED, "this node has no peer link: key_file is not set");
    if (peers->closing)
        return rdt_error_set(err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    if (memcmp(uuid, peers->node->uuid, 16) == 0)
        return rdt_error_set(err, RDT_INVALID, "this node is not its own peer");
    if (strlen(address) >= sizeof peer->address)
        return rdt_error_set(err, RDT_INVALID, "an address of %zu bytes", strlen(address));
    if (peer && peer->state == PEER_UP) { /* where it is does not matter */
        *peer_p = peer;
        return RDT_OK;
    }
    if (!named && !find_by_address(peers, address, &peer))
        return rdt_error_set(err, RDT_INVALID, "the node at %s is this node itself", address);
    if (address[0] && (named || !peer)) {
        status = options_split_address(address, host, &port, err);
        if (status != RDT_OK && !strchr(address, ':'))
            status = rdt_error_set(err, RDT_INVALID, "'%s' is neither HOST:PORT nor a name in the nodes file", address);
        if (status == RDT_OK && port == 0)
            status = rdt_error_set(err, RDT_INVALID, "address %s: port 0 cannot be dialled", address);
        if (status != RDT_OK)
            return status;
    }
    node_hex(uuid, hex);
    if (!peer) {
        if (!address[0])
            return rdt_error_set(err, RDT_NOT_FOUND, "node %s is unknown, and the ref has no address of it", hex);
        status = peer_add(peers, named ? uuid : NULL, address, address, &peer, err);
        if (status != RDT_OK)
            return status;
    } else if (named && address[0] && !peer->dial->listed && peer->state != PEER_UP && peer->state != PEER_CONNECTING) {
        /* The node may have moved; what the nodes file says stays. */
        snprintf(peer->address, sizeof peer->address, "%s", address);
    }

    if (peer->state == PEER_BACKOFF)
        peer->dial->wanted = true;
    if (peer->state == PEER_IDLE) {
        if (!peer->address[0])
            return rdt_error_set(err, RDT_PEER_LOST, "node %s is not connected, and where it listens is not known", hex);
        status = peer_start_dial(peer, err);
        if (status != RDT_OK)
            return status;
    }
    *peer_p = peer;
    return RDT_OK;
}

void peers_hear_of(struct peers *peers, const uint8_t uuid[16], const char *address)
{
    struct peer *peer = map_get(&peers->by_uuid, uuid, 16);

    if (!peer || peer->state != PEER_BACKOFF || peers_find(peers, uuid, address, &peer, NULL) != RDT_OK || !peer->address[0])
        return;
    uv_timer_stop(&peer->dial->timer);
    move(peer, PEER_IDLE);
    if (peer_start_dial(peer, NULL) == RDT_OK)
        return;
    move(peer, PEER_CONNECTING); /* it is away as before: whoever told of it is in the middle of something, and nobody waits yet */
    back_off(peer);
}

enum rdt_status peer_away(const struct peer *peer, struct rdt_error *err)
{
    uint64_t now = uv_hrtime();

    return rdt_error_set(err, RDT_PEER_LOST, "node %s cannot be reached: %.120s (next try in %.1f s)", peer->name,
                         peer->last_error, peer->retry_at_ns > now ? (double)(peer->retry_at_ns - now) / 1e9 : 0.0);
}

enum rdt_status peer_send(struct peer *peer, enum rdt_peer_message type, const ProtobufCMessage *message, struct rdt_error *err)
{
    char who[128];

    if (peer->state == PEER_UP && !peer->link_up->failed)
        return peer_link_send(peer->link_up, type, message, err);
    peer_describe(peer, who);
    if (peer->last_error[0])
        return rdt_error_set(err, RDT_PEER_LOST, "%s is not connected: %.120s", who, peer->last_error);
    return rdt_error_set(err, RDT_PEER_LOST, "%s is not connected", who);
}

void peer_ask(struct peer *peer)
{
    if (peer->state == PEER_UP)
        peer_link_ask(peer->link_up);
}

size_t peer_queued_bytes(const struct peer *peer)
{
    return peer->link_up ? peer_link_queued_bytes(peer->link_up) : 0;
}

/* ---- start and end ---- */

static void add_listed(struct peers *peers, const struct node_entry *entry)
{
    static const uint8_t zero[16];
    bool named = memcmp(entry->uuid, zero, sizeof zero) != 0;
    struct rdt_error err;
    struct peer *peer;

    /* One file may serve all nodes. */
    if (named ? memcmp(entry->uuid, peers->node->uuid, 16) == 0 : strcmp(entry->address, peers->node->address) == 0)
        return;
    if (named && map_get(&peers->by_uuid, entry->uuid, 16)) {
        log_error("node %s: the nodes file has its uuid twice; only the first line counts", entry->name);
        return;
    }
    if (peer_add(peers, named ? entry->uuid : NULL, entry->name, entry->address, &peer, &err) != RDT_OK) {
        log_error("node %s is left out: %s", entry->name, err.msg);
        return;
    }
    peer->dial->listed = true;
    if (peer_start_dial(peer, &err) != RDT_OK) {
        log_warn("node %s: %s", entry->name, err.msg);
        move(peer, PEER_CONNECTING);
        back_off(peer);
    }
}

enum rdt_status peers_create(uv_loop_t *loop, const struct options *options, struct node *node,
                             const struct peers_callbacks *callbacks, struct peers **peers_p, struct rdt_error *err)
{
    struct peers *peers = calloc(1, sizeof *peers);
    uint8_t *read_buf = malloc(PEER_LINK_READ_BYTES);
    enum rdt_status status = RDT_OK;
    int listen_fd = -1;

    node->address[0] = 0;
    if (!peers || !read_buf)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the peer link");
    else if (options->key_file[0])
        status = tls_context_create(options->key_file, &peers->tls, err);
    else if (options->listen[0])
        log_warn("there is no peer link: listen is set, but key_file is not");
    if (status == RDT_OK && peers->tls && options->listen[0])
        status = peer_meet_bind(options, node->address, peers->hello_address, &listen_fd, err);
    if (status != RDT_OK) {
        if (peers)
            tls_context_destroy(peers->tls);
        free(peers);
        free(read_buf);
        return status;
    }

    peers->loop = loop;
    peers->options = options;
    peers->node = node;
    peers->callbacks = *callbacks;
    peers->read_buf = read_buf;
    peers->config = (struct peer_link_config){
        .loop = loop,
        .tls = peers->tls,
        .ping_interval_ns = options->peer_timeout_ns / OPTIONS_PINGS,
        .peer_timeout_ns = options->peer_timeout_ns,
        .connect_timeout_ns = options->connect_timeout_ns,
        .events = &peer_meet_events,
        .arg = peers,
        .read_buf = read_buf,
    };
    list_init(&peers->all);
    list_init(&peers->hidden);
    list_init(&peers->links);
    map_init(&peers->by_uuid);
    uv_tcp_init(loop, &peers->listener);
    peers->listener.data = peers;
    peers->n_open = 1;
    if (listen_fd >= 0)
        peer_meet_listen(peers, listen_fd);
    for (const struct node_entry *entry = peers->tls ? options->node_list : NULL; entry; entry = entry->next)
        add_listed(peers, entry);
    *peers_p = peers;
    return RDT_OK;
}

static void free_entries(struct list *head)
{
    list_for_each_safe (node, head)
        free(container_of(node, struct peer, link)->dial);
}

void peers_unopen(struct peers *peers)
{
    if (--peers->n_open || !peers->closing)
        return;
    peers->on_closed(peers->on_closed_arg);
    free_entries(&peers->all);
    free_entries(&peers->hidden);
    map_fini(&peers->by_uuid);
    tls_context_destroy(peers->tls);
    free(peers->read_buf);
    free(peers);
}

static void on_listener_closed(uv_handle_t *handle)
{
    peers_unopen(handle->data);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct peer_dial *dial = handle->data;

    peers_unopen(dial->peer.peers);
}

static void close_timers(struct list *head)
{
    list_for_each (node, head)
        uv_close((uv_handle_t *)&container_of(node, struct peer, link)->dial->timer, on_timer_closed);
}

void peers_close(struct peers *peers, void (*on_closed)(void *arg), void *arg)
{
    struct rdt_error why;

    peers->closing = true;
    peers->on_closed = on_closed;
    peers->on_closed_arg = arg;
    rdt_error_set(&why, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    while (!list_empty(&peers->links)) {
        struct peer_link *link = container_of(list_first(&peers->links), struct peer_link, node);
        struct peer *peer = link->peer;
        bool was_up = peer && peer->link_up == link;

        peer_meet_drop(peers, link, peer_link_state(link) == LINK_UP ? "the daemon is shutting down" : NULL);
        if (was_up)
            peer_lost(peer, &why);
    }
    close_timers(&peers->all);
    close_timers(&peers->hidden);
    uv_close((uv_handle_t *)&peers->listener, on_listener_closed);
}
