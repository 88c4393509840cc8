/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/check.h"

/* The abstract socket of this name reserves the port. It stays open: the kernel frees the name when the process ends. */
static bool claim(uint16_t port)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int bytes = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "rdt-test-port-%u", port);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    must(fd >= 0);
    if (bind(fd, (const struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes)) ==
        0) {
        harness_fds++;
        return true;
    }
    must(errno == EADDRINUSE);
    (void)close(fd);
    return false;
}

static bool is_free(const char *address, uint16_t port)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    must(fd >= 0 && inet_pton(AF_INET, address, &in.sin_addr) == 1);
    bool is = bind(fd, (const struct sockaddr *)&in, sizeof in) == 0;
    must(is || errno == EADDRINUSE);
    (void)close(fd);
    return is;
}

uint16_t port_take(const char *address)
{
    uint16_t chance, port;

    do { /* below the ports that the system gives: a transport that listens on any must not get this one first */
        must(getrandom(&chance, sizeof chance, 0) == sizeof chance);
        port = (uint16_t)(20000 + chance % 12000);
    } while (!is_free(address, port) || !claim(port));
    return port;
}
