/* SPDX-License-Identifier: Apache-2.0 */
/* Listening for other nodes: the socket and this node's address, and admitting connections of nodes that have not said yet who
 * they are. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/peers/peer_impl.h"

#ifndef IPV6_FREEBIND
#define IPV6_FREEBIND 78 /* of linux/in6.h, which netinet/in.h excludes */
#endif

#define BACKLOG 128

static void on_connection(uv_stream_t *listener, int uv_status);

static void on_turned_away(uv_handle_t *handle)
{
    struct peers *peers = handle->data;

    peers->door.turning_away = false;
    if (peers->door.left_waiting && !peers->closing) {
        peers->door.left_waiting = false;
        on_connection((uv_stream_t *)&peers->door.listener, 0);
    }
    peers_handle_closed(peers);
}

/* libuv accepts no further connection before this one is accepted. */
static void refuse_connection(struct peers *peers)
{
    if (peers->door.turning_away) {
        peers->door.left_waiting = true;
        return;
    }
    uv_tcp_init(peers->loop, &peers->door.turned_away);
    peers->door.turned_away.data = peers;
    peers->door.turning_away = true;
    peers->n_open++;
    (void)uv_accept((uv_stream_t *)&peers->door.listener, (uv_stream_t *)&peers->door.turned_away);
    uv_close((uv_handle_t *)&peers->door.turned_away, on_turned_away);
}

/* Admits a connection that has not said which node it is from. */
static void admit_stranger(struct peers *peers, struct peer_link *link)
{
    struct sockaddr_storage address = {0};
    int bytes = sizeof address;
    struct stranger *goes;

    (void)uv_tcp_getpeername(&link->tcp, (struct sockaddr *)&address, &bytes);
    strangers_source(&address, link->meeting.stranger.source);
    goes = strangers_admit(&peers->door.strangers, &link->meeting.stranger,
                           peers_know_source(peers, link->meeting.stranger.source));
    if (!goes)
        return;
    link = container_of(goes, struct peer_link, meeting.stranger);
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
    const char *hint = sys_errno == EADDRINUSE ? " (another program listens there: choose another port)" : "";

    return rdt_error_sys(err, sys_errno, "listen = %s%s", listen, hint);
}

/* An address that an interface gets later, such as that of DHCP or of a bond at boot, can be bound now: other nodes reach this
 * one from then on, and its own clients do not wait for it. */
static int bind_anyway(int fd, const struct sockaddr *address, socklen_t bytes)
{
    int on = 1;

    if (bind(fd, address, bytes) == 0)
        return 0;
    if (errno != EADDRNOTAVAIL)
        return -1;
    if (address->sa_family == AF_INET6 ? setsockopt(fd, IPPROTO_IPV6, IPV6_FREEBIND, &on, sizeof on)
                                       : setsockopt(fd, IPPROTO_IP, IP_FREEBIND, &on, sizeof on))
        return -1;
    return bind(fd, address, bytes);
}

bool peers_listen_is_away(const struct options *options)
{
    struct sockaddr_storage address = {0};
    char host[65];
    uint16_t port;
    bool away;
    int fd;

    if (!options->listen[0] || options_split_address(options->listen, host, &port, NULL) != RDT_OK ||
        (uv_ip4_addr(host, 0, (struct sockaddr_in *)&address) != 0 &&
         uv_ip6_addr(host, 0, (struct sockaddr_in6 *)&address) != 0))
        return false;
    fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    away = fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof address) != 0 && errno == EADDRNOTAVAIL;
    if (fd >= 0)
        (void)close(fd);
    return away;
}

/* Whether an interface is up, or an RDMA device, which has a port in its name, exists. */
static bool has_interface(const struct ifaddrs *all, const char *name)
{
    char path[64];

    for (const struct ifaddrs *at = all; at; at = at->ifa_next)
        if (strcmp(at->ifa_name, name) == 0 && (at->ifa_flags & IFF_UP) && (at->ifa_flags & IFF_RUNNING))
            return true;
    (void)snprintf(path, sizeof path, "/sys/class/infiniband/%.*s", (int)strcspn(name, ":"), name);
    return access(path, F_OK) == 0;
}

static bool names_interface(const char *list, const char *name)
{
    size_t n = strlen(name);

    for (; *list; list += strcspn(list, ","), list += *list == ',')
        if (strcspn(list, ",") == n && strncmp(list, name, n) == 0)
            return true;
    return false;
}

/* Whether one of the interfaces, of any but loopback if none is named, has an address that other nodes can reach. */
static bool has_address(const struct ifaddrs *all, const char *interfaces)
{
    for (const struct ifaddrs *at = all; at; at = at->ifa_next) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)at->ifa_addr;
        bool wanted = *interfaces ? names_interface(interfaces, at->ifa_name) : !(at->ifa_flags & IFF_LOOPBACK);

        if (in6 && wanted && (at->ifa_flags & IFF_UP) &&
            (in6->sin6_family == AF_INET || (in6->sin6_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr))))
            return true;
    }
    return false;
}

bool peers_network_is_away(const struct options *options, char *what_p, size_t size)
{
    bool any = strncmp(options->listen, "0.0.0.0:", 8) == 0 || strncmp(options->listen, "[::]:", 5) == 0, away = false;
    const char *rest = options->interfaces;
    struct ifaddrs *all = NULL;
    char name[IF_NAMESIZE + 16];

    if (getifaddrs(&all) != 0)
        return false;
    for (; *rest && !away; rest += strcspn(rest, ","), rest += *rest == ',') {
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(rest, ","), rest);
        away = name[0] && !has_interface(all, name);
        if (away)
            (void)snprintf(what_p, size, "interfaces: this machine has no network interface \"%s\" that is up", name);
    }
    if (!away && !any && peers_listen_is_away(options)) {
        away = true;
        (void)snprintf(what_p, size,
                       "listen = %s: no interface has this address (behind NAT, set advertise to it, and listen to an address "
                       "of this machine)",
                       options->listen);
    }
    if (!away && any && !has_address(all, options->interfaces)) {
        away = true;
        (void)snprintf(what_p, size, "no interface%s%s has an address for other nodes", *options->interfaces ? " of " : "",
                       options->interfaces);
    }
    freeifaddrs(all);
    return away;
}

/* ---- a port that the earlier daemon still has ----
 *
 * The kernel does not close the sockets of a daemon that is dying (node.h). Sockets of one user with SO_REUSEPORT may listen at
 * one port, and a filter says which of them gets a connection: the last one. All set the option, but only when they listen,
 * except for a daemon whose predecessor is dying; so two daemons that live cannot have one port, even if they start at once. */

/* How many sockets listen at that address: the kernel numbers them from 0. */
static uint32_t count_listeners(const struct sockaddr *address)
{
    const struct sockaddr_in *in4 = (const struct sockaddr_in *)(const void *)address;
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)address;
    const uint32_t *words = address->sa_family == AF_INET6 ? in6->sin6_addr.s6_addr32 : &in4->sin_addr.s_addr;
    FILE *file = fopen(address->sa_family == AF_INET6 ? "/proc/net/tcp6" : "/proc/net/tcp", "re");
    char line[512], ours[48], theirs[48];
    unsigned state;
    uint32_t n = 0;
    size_t used = 0;

    for (unsigned i = 0; i < (address->sa_family == AF_INET6 ? 4u : 1u); i++)
        used += (size_t)snprintf(ours + used, sizeof ours - used, "%08X", words[i]);
    (void)snprintf(ours + used, sizeof ours - used, ":%04X", ntohs(in4->sin_port));
    while (file && fgets(line, sizeof line, file))
        n += sscanf(line, "%*s %47s %*s %x", theirs, &state) == 2 && state == TCP_LISTEN && strcmp(ours, theirs) == 0;
    if (file)
        (void)fclose(file);
    return n;
}

static int take_connections(int fd, const struct sockaddr *address)
{
    struct sock_filter choose = {.code = BPF_RET | BPF_K, .k = count_listeners(address) - 1};
    struct sock_fprog filter = {.len = 1, .filter = &choose};

    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &filter, sizeof filter);
}

/* shares: a daemon that is dying may have the port. */
static int bind_and_listen(int fd, const struct sockaddr *address, socklen_t bytes, bool shares)
{
    int on = 1;
    bool shared = false;

    if (bind_anyway(fd, address, bytes) < 0) {
        shared = shares && errno == EADDRINUSE;
        if (!shared || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) < 0 || bind_anyway(fd, address, bytes) < 0)
            return -1;
    }
    if (listen(fd, BACKLOG) < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    return shared ? take_connections(fd, address) : 0;
}

enum rdt_status peer_listen_bind(const struct options *options, bool shares, char *address_p, char *hello_address_p, int *fd_p,
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
    if (bind_and_listen(fd, &address.any, address.any.sa_family == AF_INET6 ? sizeof address.in6 : sizeof address.in4, shares) <
            0 ||
        getsockname(fd, &address.any, &bytes) < 0) {
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

/* Whether /etc/hosts leads this node's own name to its loopback interface, as Debian's does. Only that file is read: a DNS
 * server need not answer yet at the start. */
static bool leads_to_loopback(const char *address, char text_p[INET6_ADDRSTRLEN])
{
    const struct hostent *entry;
    char host[65];
    uint16_t port;
    bool found = false;

    if (options_split_address(address, host, &port, NULL) != RDT_OK)
        return false;
    sethostent(0);
    while (!found && (entry = gethostent())) {
        bool is = entry->h_addrtype == AF_INET && (uint8_t)entry->h_addr_list[0][0] == IN_LOOPBACKNET;
        bool names = strcasecmp(entry->h_name, host) == 0;

        for (char **alias = entry->h_aliases; *alias; alias++)
            names |= strcasecmp(*alias, host) == 0;
        found = is && names && inet_ntop(AF_INET, entry->h_addr_list[0], text_p, INET6_ADDRSTRLEN);
    }
    endhostent();
    return found;
}

const char *peers_loopback(const struct peers *peers)
{
    return peers->door.loopback;
}

void peer_listen(struct peers *peers, int take_fd)
{
    int rc = uv_tcp_open(&peers->door.listener, take_fd);

    if (rc < 0)
        (void)close(take_fd);
    else
        rc = uv_listen((uv_stream_t *)&peers->door.listener, BACKLOG, on_connection);
    if (rc < 0)
        log_error("cannot listen for other nodes: %s", uv_strerror(rc));
    else
        log_info("listening for other nodes at %s; refs carry %s", peers->options->listen, peers->node->address);
    if (rc == 0 && peers->hello_address[0] == ':' && leads_to_loopback(peers->node->address, peers->door.loopback))
        log_warn("refs carry %s, which leads to %s in /etc/hosts: a node that resolves it so reaches itself instead of this "
                 "one; set "
                 "advertise",
                 peers->node->address, peers->door.loopback);
}
