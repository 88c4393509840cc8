/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets of the references. Every failure ends the program. */
#ifndef TESTS_BENCH_BENCH_SOCKET_H
#define TESTS_BENCH_BENCH_SOCKET_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "bench.h"

static inline int bench_connect_to(int family, const struct sockaddr *address, socklen_t bytes)
{
    int on = 1, sock = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (sock < 0 || connect(sock, address, bytes) != 0)
        bench_die("cannot connect: %s", strerror(errno));
    (void)setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* nothing to a Unix socket */
    return sock;
}

static inline int bench_connect_unix(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    return bench_connect_to(AF_UNIX, (struct sockaddr *)&address, sizeof address);
}

static inline int bench_connect_tcp(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    return bench_connect_to(AF_INET, (struct sockaddr *)&address, sizeof address);
}

static inline int bench_listen_unix(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (strlen(path) >= sizeof address.sun_path)
        bench_die("%s is too long", path);
    (void)strcpy(address.sun_path, path);
    if (sock < 0 || bind(sock, (struct sockaddr *)&address, sizeof address) != 0 || listen(sock, 64) != 0)
        bench_die("cannot listen at %s: %s", path, strerror(errno));
    return sock;
}

static inline int bench_listen_tcp(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1, sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (sock < 0 || bind(sock, (struct sockaddr *)&address, sizeof address) != 0 || listen(sock, 64) != 0)
        bench_die("cannot listen at port %u: %s", port, strerror(errno));
    return sock;
}

#endif
