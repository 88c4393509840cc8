/* SPDX-License-Identifier: Apache-2.0 */
/* The plain TCP connection of rdtctl perf. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/ctl/perf/perf.h"

/* Splits "HOST:PORT", "[HOST]:PORT" or "PORT". False: it is none of these. */
static bool split(const char *address, char host_p[256], const char **port_p)
{
    const char *colon = strrchr(address, ':');
    size_t n = colon ? (size_t)(colon - address) : 0;

    *port_p = colon ? colon + 1 : address;
    if (n >= 2 && address[0] == '[' && address[n - 1] == ']') {
        address++;
        n -= 2;
    }
    if (n >= 256 || **port_p == '\0')
        return false;
    memcpy(host_p, address, n);
    host_p[n] = '\0';
    return true;
}

static int try_one(const struct addrinfo *info, bool listens)
{
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, saved;

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (listens ? bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, 4) == 0
                : connect(fd, info->ai_addr, info->ai_addrlen) == 0)
        return fd;
    saved = errno;
    (void)close(fd);
    errno = saved;
    return -1;
}

int perf_open(const char *address, bool listens, struct rdt_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = listens ? AI_PASSIVE : 0}, *found;
    char host[256];
    const char *port;
    int rc, fd = -1;

    if (!split(address, host, &port) || (!listens && host[0] == '\0')) {
        rdt_error_set(err, RDT_INVALID, "'%.200s' is no address: expected HOST:PORT%s", address, listens ? " or PORT" : "");
        return -1;
    }
    rc = getaddrinfo(host[0] ? host : NULL, port, &hints, &found);
    if (rc != 0) {
        rdt_error_set(err, RDT_INVALID, "%.200s: %s", address, gai_strerror(rc));
        return -1;
    }
    for (const struct addrinfo *info = found; info && fd < 0; info = info->ai_next)
        fd = try_one(info, listens);
    if (fd < 0)
        rdt_error_sys(err, errno,
                      listens ? "listening at %.200s" : "connecting to %.200s, where `rdtctl perf --serve` must run", address);
    freeaddrinfo(found);
    return fd;
}

static enum rdt_status await(int fd, short events, struct rdt_error *err)
{
    struct pollfd poll_fd = {.fd = fd, .events = events};
    int rc;

    do
        rc = poll(&poll_fd, 1, PERF_SILENCE_MS);
    while (rc < 0 && errno == EINTR);
    if (rc < 0)
        return rdt_error_sys(err, errno, "poll");
    return rc > 0 ? RDT_OK
                  : rdt_error_set(err, RDT_TIMED_OUT, "the other end has not answered for %d s", PERF_SILENCE_MS / 1000);
}

enum rdt_status perf_write(int fd, const void *bytes, size_t n, struct rdt_error *err)
{
    const char *at = bytes;

    while (n > 0) {
        ssize_t sent = send(fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        enum rdt_status status = RDT_OK;

        if (sent > 0) {
            at += sent;
            n -= (size_t)sent;
        } else if (errno == EAGAIN) {
            status = await(fd, POLLOUT, err);
        } else if (errno != EINTR) {
            status = rdt_error_set(err, RDT_DISCONNECTED, "the other end has closed the connection (%s)", strerror(errno));
        }
        if (status != RDT_OK)
            return status;
    }
    return RDT_OK;
}

enum rdt_status perf_read(int fd, void *bytes, size_t n, struct rdt_error *err)
{
    char *at = bytes;

    while (n > 0) {
        ssize_t got = recv(fd, at, n, MSG_DONTWAIT);
        enum rdt_status status = RDT_OK;

        if (got > 0) {
            at += got;
            n -= (size_t)got;
        } else if (got < 0 && errno == EAGAIN) {
            status = await(fd, POLLIN, err);
        } else if (got == 0 || errno != EINTR) {
            status = rdt_error_set(err, RDT_DISCONNECTED, "the other end has closed the connection");
        }
        if (status != RDT_OK)
            return status;
    }
    return RDT_OK;
}

enum rdt_status perf_read_line(int fd, char line_p[PERF_LINE_BYTES], struct rdt_error *err)
{
    for (size_t n = 0; n < PERF_LINE_BYTES; n++) {
        enum rdt_status status = perf_read(fd, line_p + n, 1, err); /* a line is short, and nothing follows it */

        if (status != RDT_OK)
            return status;
        if (line_p[n] == '\n') {
            line_p[n] = '\0';
            return RDT_OK;
        }
    }
    return rdt_error_set(err, RDT_PROTOCOL, "the other end is not rdtctl perf: its line is too long");
}
