/* SPDX-License-Identifier: Apache-2.0 */
/* The listening socket. Each accepted connection becomes a channel that has to greet before its deadline.
 *
 * Connections that have not greeted yet (strangers) cost little and delay nobody: there are at most MAX_STRANGERS of them,
 * one of them makes room for the next (strangers.h), and each must complete its greeting within HELLO_NS (run.c).
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/common/address.h"
#include "backends/stream/stream.h"

#define BACKLOG 256
#define ACCEPTS_PER_TURN 64

static bool bind_one(struct transport *transport, struct sockaddr_storage *address, uint16_t port)
{
    socklen_t bytes = address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

    ((struct sockaddr_in *)address)->sin_port = htons(port); /* the port has the same offset in both kinds of address */
    return !bind(transport->listener, (const struct sockaddr *)address, bytes) && !listen(transport->listener, BACKLOG);
}

static enum rdt_status open_socket(struct transport *transport, struct sockaddr_storage *address, struct rdt_error *err)
{
    const int on = 1, off = 0;

    transport->listener = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (transport->listener < 0 && errno == EAFNOSUPPORT && address_is_wildcard(transport->settings.listen)) {
        (void)snprintf(transport->settings.listen, sizeof transport->settings.listen, "0.0.0.0");
        (void)address_parse(transport->settings.listen, address);
        transport->listener = socket(address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    }
    if (transport->listener < 0)
        return rdt_error_sys(err, errno, "creating a socket for peers");
    (void)setsockopt(transport->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->ss_family == AF_INET6)
        (void)setsockopt(transport->listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    return RDT_OK;
}

enum rdt_status listen_open(struct transport *transport, struct rdt_error *err)
{
    const struct settings *settings = &transport->settings;
    struct sockaddr_storage address;
    socklen_t bytes = sizeof transport->address;
    unsigned port = settings->first_port;
    enum rdt_status status;

    (void)address_parse(settings->listen, &address);
    for (;; port++) {
        status = open_socket(transport, &address, err);
        if (status != RDT_OK)
            return status;
        if (bind_one(transport, &address, (uint16_t)port))
            break;
        if (errno != EADDRINUSE || port >= settings->last_port)
            return rdt_error_set(err, RDT_UNSUPPORTED, "cannot listen on %s port %u: %s", settings->listen, port,
                                 strerror(errno));
        (void)close(transport->listener);
        transport->listener = -1;
    }
    if (getsockname(transport->listener, (struct sockaddr *)&transport->address, &bytes))
        return rdt_error_sys(err, errno, "asking for the address of the listening socket");
    return RDT_OK;
}

static void set_address(struct sockaddr_storage *to, const struct sockaddr_storage *address)
{
    uint16_t port = ((const struct sockaddr_in *)to)->sin_port;

    *to = *address;
    ((struct sockaddr_in *)to)->sin_port = port;
}

/* This node's end of the peer link. False: it is not known. */
static bool link_address(const struct transport *transport, void *conn_ctx, struct sockaddr_storage *address_p)
{
    const struct rdt_host *host = &transport->host;
    bool knows_link = host->struct_size >= offsetof(struct rdt_host, conn_address) + sizeof host->conn_address;
    char text[INET6_ADDRSTRLEN] = "";

    if (knows_link && host->conn_address)
        host->conn_address(conn_ctx, text, sizeof text);
    return address_parse(text, address_p);
}

void listen_address(const struct transport *transport, void *conn_ctx, struct sockaddr_storage *address_p)
{
    const struct sockaddr_storage *advertise = &transport->settings.advertise;
    char text[INET6_ADDRSTRLEN] = "";
    struct sockaddr_storage address;

    *address_p = transport->address;
    if (advertise->ss_family != AF_UNSPEC) {
        set_address(address_p, advertise);
    } else if (address_is_wildcard(transport->settings.listen)) {
        if (link_address(transport, conn_ctx, &address) || (address_of_interfaces("", text) && address_parse(text, &address)))
            set_address(address_p, &address);
    }
    if (((const struct sockaddr_in *)advertise)->sin_port)
        ((struct sockaddr_in *)address_p)->sin_port = ((const struct sockaddr_in *)advertise)->sin_port;
}

/* ---- the peer's address ---- */

enum reach { NOBODY, THIS_MACHINE, THIS_WIRE, ANYWHERE }; /* who can have the address */

static enum reach reach_v4(uint32_t address)
{
    if (address >> 24 == 0 || address >> 28 >= 0xe) /* "this" network, multicast, reserved, broadcast */
        return NOBODY;
    if (address >> 24 == 127)
        return THIS_MACHINE;
    return address >> 16 == 0xa9fe ? THIS_WIRE : ANYWHERE; /* 169.254.0.0/16 */
}

static enum reach reach_of(const struct sockaddr_storage *address)
{
    const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
    uint32_t four;

    if (address->ss_family == AF_INET)
        return reach_v4(ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr));
    if (IN6_IS_ADDR_V4MAPPED(six)) {
        memcpy(&four, six->s6_addr + 12, sizeof four);
        return reach_v4(ntohl(four));
    }
    if (IN6_IS_ADDR_UNSPECIFIED(six) || IN6_IS_ADDR_MULTICAST(six))
        return NOBODY;
    if (IN6_IS_ADDR_LOOPBACK(six))
        return THIS_MACHINE;
    return IN6_IS_ADDR_LINKLOCAL(six) ? THIS_WIRE : ANYWHERE;
}

enum rdt_status listen_may_dial(const struct transport *transport, void *conn_ctx, const struct sockaddr_storage *address,
                                struct rdt_error *err)
{
    enum reach reach = reach_of(address);
    struct sockaddr_storage own;

    if (reach == ANYWHERE || (reach != NOBODY && (!link_address(transport, conn_ctx, &own) || reach_of(&own) == reach)))
        return RDT_OK;
    return rdt_error_set(err, RDT_PROTOCOL, "the peer offers %s, at which it cannot be met: correct its listen or advertise",
                         reach == NOBODY         ? "an address that no machine can have"
                         : reach == THIS_MACHINE ? "an address of the loopback interface, which its link does not use"
                                                 : "a link-local address, which its link does not use");
}

/* ---- accepting ---- */

/* Adds the channel to the strangers, of whom another may have to make room. The caller holds the lock. */
static void admit(struct channel *channel, const struct sockaddr_storage *address)
{
    struct stranger *evicted;

    strangers_source(address, channel->stranger.source);
    evicted = strangers_admit(&channel->transport->strangers, &channel->stranger, false);
    if (!evicted)
        return;
    channel = container_of(evicted, struct channel, stranger);
    channel->evicted = true;
    thread_attend(channel);
}

void listen_accept(struct transport *transport, struct thread *thread)
{
    for (unsigned i = 0; i < ACCEPTS_PER_TURN; i++) {
        struct sockaddr_storage address = {0};
        socklen_t bytes = sizeof address;
        int fd = accept4(transport->listener, (struct sockaddr *)&address, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
        struct channel *channel;

        if (fd < 0) {
            /* Without descriptors or memory nothing can be accepted: the thread tries again at its next tick. */
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                thread->listener_paused = true;
                (void)epoll_ctl(thread->epoll, EPOLL_CTL_DEL, transport->listener, NULL);
            }
            return; /* otherwise no connection is waiting, or the one that was has gone again */
        }
        channel_socket(fd, &transport->settings);
        (void)pthread_mutex_lock(&transport->lock);
        channel = channel_accept(transport, fd);
        if (channel) {
            admit(channel, &address);
            thread_attend(channel);
        }
        (void)pthread_mutex_unlock(&transport->lock);
        if (!channel)
            (void)close(fd);
    }
}
