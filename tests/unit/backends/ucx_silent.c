/* SPDX-License-Identifier: Apache-2.0 */
/* backends/ucx/link: a port that accepts connections and never answers. Whoever has bytes to send there is told after some
 * seconds; a connection whose link was only opened early goes on, for the bytes that come the other way. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "backends/ucx/wire.h"
#include "tests/support/backend_host.h"
#include "tests/support/rdtd.h"

#define PATIENCE_MS 30000 /* the plug-in waits for 10 s, and looks once a second */
#define LOOK_MS 3000      /* how much later the other connection would have failed at the latest */

static struct rdt_error err;
static struct backend_host node;

static int listen_silently(struct sockaddr_storage *address_p)
{
    struct sockaddr_in *in = (struct sockaddr_in *)address_p;
    socklen_t bytes = sizeof *in;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memset(address_p, 0, sizeof *address_p);
    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert(bind(fd, (struct sockaddr *)in, sizeof *in) == 0 && listen(fd, 16) == 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)in, &bytes), 0);
    return fd;
}

static void connect_to(struct host_conn *conn, const struct sockaddr_storage *address)
{
    uint8_t blob[RDT_OFFER_MAX_BYTES];
    static const uint8_t token[TOKEN_BYTES] = {1};
    size_t bytes;

    cr_assert_eq(host_conn_create(&node, conn, &err), RDT_OK, "%s", err.msg);
    bytes = wire_put_offer(address, token, blob);
    cr_assert_eq(node.ops->connect(conn->handle, blob, bytes, &err), RDT_OK, "%s", err.msg);
}

Test(ucx_silent, ends_only_the_connection_that_has_bytes_to_send, .timeout = 90)
{
    static const struct config_pair config[] = {{"one_sided", "always"}, {NULL, NULL}}; /* links are opened early */
    struct host_conn idle, busy;
    struct sockaddr_storage address;
    struct host_op send;
    uint8_t byte = 1;
    int fd = listen_silently(&address);

    cr_assert_eq(backend_host_load(&node, build_path("backends/rdt_ucx.so"), &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(backend_host_open(&node, config, &err), RDT_OK, "%s", err.msg);
    connect_to(&idle, &address);
    connect_to(&busy, &address);
    host_op_fill(&send, 1, 0, &byte, 1);
    cr_assert_eq(host_op_post(&busy, &send, POST_SEND, &err), RDT_OK, "%s", err.msg);

    cr_assert(host_conn_wait_failed(&busy, PATIENCE_MS), "nobody says that the port does not answer");
    cr_expect(strstr(busy.msg, "does not answer"), "%s", busy.msg);
    cr_expect(!host_conn_wait_failed(&idle, LOOK_MS), "a link that nothing waits for ends its connection: %s", idle.msg);

    (void)close(fd);
    cr_expect(host_conn_disconnect(&busy, PATIENCE_MS) && host_conn_disconnect(&idle, PATIENCE_MS));
    host_conn_destroy(&busy);
    host_conn_destroy(&idle);
    backend_host_close(&node);
}
