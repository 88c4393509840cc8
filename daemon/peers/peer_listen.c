/* SPDX-License-Identifier: Apache-2.0 */
/* Listening for other nodes: the socket and this node's address, and admitting connections of nodes that have not said yet who
 * they are. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/peers/peer_impl.h"

#define BACKLOG 128

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
    list_each (const struct peer, peer, &peers->all, link)
        if ((peer->dial->listed || peer->state == PEER_UP) && has_source(peer, source))
            return true;
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
    peers_warn_of_stranger(peers, link->remote, "closed: too many other connections have not identified themselves");
    peer_drop_link(peers, link, NULL);
}

static void on_connection(uv_stream_t *listener, int uv_status)
{
    struct peers *peers = listener->data;
    struct peer_link *link;
    struct rdt_error err;

    if (uv_status < 0) {
        peers_warn_of_stranger(peers, "?", uv_strerror(uv_status));
    } else if (peer_link_accept(&peers->config, listener, &link, &err) != RDT_OK) {
        peers_warn_of_stranger(peers, "?", err.msg);
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

enum rdt_status peer_listen_error(const char *listen, int sys_errno, struct rdt_error *err)
{
    const char *hint = sys_errno == EADDRNOTAVAIL ? " (no interface has this address: behind NAT, set advertise to it)"
                       : sys_errno == EADDRINUSE  ? " (another program listens there: choose another port)"
                                                  : "";

    return rdt_error_sys(err, sys_errno, "listen = %s%s", listen, hint);
}

enum rdt_status peer_listen_bind(const struct options *options, char *address_p, char *hello_address_p, int *fd_p,
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
        status = peer_listen_error(options->listen, errno, err);
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

void peer_listen(struct peers *peers, int take_fd)
{
    int rc = uv_tcp_open(&peers->listener, take_fd);

    if (rc < 0)
        (void)close(take_fd);
    else
        rc = uv_listen((uv_stream_t *)&peers->listener, BACKLOG, on_connection);
    if (rc < 0)
        log_error("cannot listen for other nodes: %s", uv_strerror(rc));
    else
        log_info("listening for other nodes at %s; refs carry %s", peers->options->listen, peers->node->address);
}
