/* SPDX-License-Identifier: Apache-2.0 */
/* Two daemons that start at the same moment with the same port: one of them gets it. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/config/options.h"
#include "daemon/peers/peer_impl.h"

static char address_of_both[32];
static struct options options = {.listen = address_of_both, .advertise = (char[]){""}};
static bool met;
static int other_fd = -1;

static enum rdt_status listen_at_port(int *fd_p)
{
    char address[65], hello_address[65];
    struct rdt_error err = {0};

    return peer_listen_bind(&options, false, address, hello_address, fd_p, &err);
}

/* In place of the C library's: the other daemon does everything between the first one's bind and its listen. */
int listen(int fd, int backlog)
{
    if (!met) {
        met = true;
        (void)listen_at_port(&other_fd);
    }
    return (int)syscall(SYS_listen, fd, backlog);
}

Test(peer_listen, one_of_two_daemons_that_start_at_once_gets_the_port, .timeout = 60)
{
    struct sockaddr_in in4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof in4;
    int fd = -1, free_port = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert_eq(bind(free_port, (struct sockaddr *)&in4, bytes), 0);
    cr_assert_eq(getsockname(free_port, (struct sockaddr *)&in4, &bytes), 0);
    (void)close(free_port);
    (void)snprintf(address_of_both, sizeof address_of_both, "127.0.0.1:%u", ntohs(in4.sin_port));
    cr_assert_eq(listen_at_port(&fd), RDT_SYSTEM, "both have the port");
    cr_assert(met && other_fd >= 0);
    (void)close(other_fd);
}
