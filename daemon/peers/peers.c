/* SPDX-License-Identifier: Apache-2.0 */
/* The start and the end of the room. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/peers/peer_impl.h"

#define PEERS_STRANGERS_MAX 64u       /* connections whose node is not known yet */
#define PEERS_STRANGERS_OF_SOURCE 32u /* the same, from one address that the nodes file does not list */

/* *missing_p: a file is missing, as one of a volume that is mounted late. The context then accepts nobody. */
static enum rdt_status open_tls_at_start(const struct options *options, struct tls_context **context_p, bool *missing_p,
                                         struct rdt_error *err)
{
    const struct tls_files none = {.key = NULL};
    bool early = false;
    enum rdt_status status = peers_open_tls(options, context_p, &early, err);

    *missing_p = status != RDT_OK && err->sys_errno == ENOENT;
    if (*missing_p) {
        log_warn("%s: this node and others reach each other when it is there", err->msg);
        status = tls_context_create(&none, context_p, err);
    }
    if (status == RDT_OK && early)
        log_warn(
            "peer_cert %s, or what peer_ca and peer_crl have for it, is not valid yet: other nodes refuse this one until it "
            "is, or until the clock of this machine is set",
            options->peer_cert);
    return status;
}

enum rdt_status peers_check(const struct options *options, struct rdt_error *err)
{
    struct options any_port = *options;
    char address[65], hello_address[65], host[65], listen[72];
    struct tls_context *tls = NULL;
    uint16_t port;
    enum rdt_status status = RDT_OK;
    bool missing;
    int fd;

    if (options_have_peers(options))
        status = open_tls_at_start(options, &tls, &missing, err);
    tls_context_destroy(tls);
    if (status != RDT_OK || !options->listen[0])
        return status;
    status = options_split_address(options->listen, host, &port, err);
    if (status != RDT_OK)
        return status;
    snprintf(listen, sizeof listen, strchr(host, ':') ? "[%s]:0" : "%s:0", host);
    any_port.listen = listen;
    status = peer_listen_bind(&any_port, false, address, hello_address, &fd, err);
    if (status == RDT_OK)
        (void)close(fd);
    else if (err && err->sys_errno != 0)
        status = peer_listen_error(options->listen, err->sys_errno, err);
    return status;
}

enum rdt_status peers_create(uv_loop_t *loop, const struct options *options, struct node *node,
                             const struct peers_callbacks *callbacks, struct peers **peers_p, struct rdt_error *err)
{
    struct peers *peers = calloc(1, sizeof *peers);
    uint8_t *read_buf = malloc(PEER_LINK_READ_BYTES);
    enum rdt_status status = RDT_OK;
    bool missing = false;
    int listen_fd = -1;

    node->address[0] = 0;
    if (!peers || !read_buf)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the peer link");
    else if (options_have_peers(options))
        status = open_tls_at_start(options, &peers->tls, &missing, err);
    else if (options->listen[0])
        log_warn("there is no peer link: listen is set, but neither key_file nor peer_cert is");
    if (status == RDT_OK && peers->tls && options->listen[0])
        status = peer_listen_bind(options, node->dying != 0, node->address, peers->hello_address, &listen_fd, err);
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
    list_init(&peers->queues.links);
    list_init(&peers->queues.young);
    peers->queues.max_bytes = options_heap_limit() / 4;
    if (peers->queues.max_bytes < 2 * (size_t)RDT_MAX_FRAME_BYTES) /* one link of several needs room for a message */
        peers->queues.max_bytes = 2 * (size_t)RDT_MAX_FRAME_BYTES;
    peers->config = (struct peer_link_config){
        .queues = &peers->queues,
        .loop = loop,
        .slices = callbacks->slices,
        .tls = peers->tls,
        .ping_interval_ns = options->peer_timeout_ns / OPTIONS_PINGS,
        .peer_timeout_ns = options->peer_timeout_ns,
        .connect_timeout_ns = options->connect_timeout_ns,
        .owner_work = callbacks->owner_work,
        .busy_poll = callbacks->busy_poll,
        .events = &peer_meet_events,
        .arg = peers,
        .read_buf = read_buf,
    };
    list_init(&peers->all);
    list_init(&peers->hidden);
    strangers_init(&peers->door.strangers, PEERS_STRANGERS_MAX, PEERS_STRANGERS_OF_SOURCE);
    peers->door.stranger_warnings.every_ns = UINT64_C(1000000000);
    peers->unmet_warnings.every_ns = UINT64_C(60000000000);
    list_init(&peers->links);
    map_init(&peers->by_uuid);
    map_init(&peers->by_word);
    map_init(&peers->by_source);
    index_init(&peers->by_number, 1);
    list_init(&peers->table.listed);
    list_init(&peers->table.unlisting);
    list_init(&peers->to_dial);
    peers->table.take.run = peers_set_some;
    peers->dial.run = peers_dial_some;
    uv_tcp_init(loop, &peers->door.listener);
    peers->door.listener.data = peers;
    peers->n_open = 1;
    if (listen_fd >= 0)
        peer_listen(peers, listen_fd);
    for (const struct node_entry *entry = peers->tls ? options->node_list : NULL; entry; entry = entry->next)
        peer_add_listed(peers, entry);
    if (missing)
        peers_await_key(peers);
    *peers_p = peers;
    return RDT_OK;
}

static void on_listener_closed(uv_handle_t *handle)
{
    peers_handle_closed(handle->data);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct peer_dial *dial = handle->data;

    peers_handle_closed(dial->peer.peers);
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
    peers_stop_awaiting_key(peers);
    slice_stop(&peers->table.take);
    slice_stop(&peers->dial);
    peers->on_closed = on_closed;
    peers->on_closed_arg = arg;
    rdt_error_set(&why, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    list_drain (struct peer_link, link, &peers->links, node) {
        struct peer *peer = link->peer;
        bool was_up = peer && peer->link_up == link;

        peer_drop_link(peers, link, peer_link_state(link) == LINK_UP ? "the daemon is shutting down" : NULL);
        if (was_up)
            peer_lost(peer, &why);
    }
    slice_stop(&peers->queues.turn);
    close_timers(&peers->all);
    close_timers(&peers->hidden);
    uv_close((uv_handle_t *)&peers->door.listener, on_listener_closed);
}
