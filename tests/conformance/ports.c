/* SPDX-License-Identifier: Apache-2.0 */
/* The ports that a transport opens: none where the daemon has no other nodes, and otherwise only at the
 * addresses that the configuration names. Checked for connections and for groups. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "tests/conformance/check.h"
#include "tests/support/backend_host.h"

static struct backend_host host;
static struct rdt_error err;

struct ports {
    unsigned n;        /* TCP sockets that listen, and UDP sockets that are bound */
    unsigned n_anyone; /* how many of these listen at every address of the node */
    char text[INET6_ADDRSTRLEN + 8];
};

static bool is_port(int fd, struct sockaddr_storage *address_p)
{
    int domain = 0, type = 0, listens = 0;
    socklen_t bytes = sizeof *address_p, length = sizeof(int);

    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) || (domain != AF_INET && domain != AF_INET6) ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) ||
        getsockname(fd, (struct sockaddr *)address_p, &bytes))
        return false;
    if (type == SOCK_DGRAM) /* the port of a sockaddr_in6 is at the same place */
        return ((struct sockaddr_in *)(void *)address_p)->sin_port != 0;
    return listens;
}

static struct ports ports_now(void)
{
    struct ports ports = {0};
    struct rlimit files;

    must_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    for (int fd = 3; fd < (int)(files.rlim_cur < 4096 ? files.rlim_cur : 4096); fd++) {
        struct sockaddr_storage address;
        const struct in6_addr *in6 = &((struct sockaddr_in6 *)(void *)&address)->sin6_addr;
        const struct in_addr *in = &((struct sockaddr_in *)(void *)&address)->sin_addr;

        if (!is_port(fd, &address))
            continue;
        bool v4 = address.ss_family == AF_INET;
        bool anyone = v4 ? in->s_addr == INADDR_ANY : IN6_IS_ADDR_UNSPECIFIED(in6);
        ports.n++;
        ports.n_anyone += anyone;
        if (anyone || ports.n_anyone == 0)
            (void)inet_ntop(address.ss_family, v4 ? (const void *)in : in6, ports.text, sizeof ports.text);
    }
    return ports;
}

static void load(void)
{
    must_eq(backend_host_load(&host, check_so, &err), RDT_OK, "%s", err.msg);
    if (!host.ops)
        check_skip("it has no transport");
}

/* Prepares whatever peers connect to, looks at the ports, and ends it. */
static struct ports ports_of_offers(void)
{
    static struct host_group group;
    static struct host_conn conn;
    uint8_t blob[RDT_OFFER_MAX_BYTES], group_blob[RDT_GROUP_OFFER_MAX_BYTES];
    size_t bytes;

    if (HAS_OP(host.ops, connection_create)) {
        must_eq(host_conn_create(&host, &conn, &err), RDT_OK, "%s", err.msg);
        must_eq(host.ops->offer(conn.handle, blob, &bytes, &err), RDT_OK, "%s", err.msg);
    }
    if (HAS_OP(host.ops, group_create)) {
        must_eq(host_group_create(&host, &group, 0, 2, &err), RDT_OK, "%s", err.msg);
        must_eq(host.ops->group_offer(group.handle, group_blob, &bytes, &err), RDT_OK, "%s", err.msg);
    }
    struct ports ports = ports_now();
    if (group.handle) {
        host_group_close(&group);
        must(host_group_wait_closed(&group, 20000), "group_closed did not come");
        host.ops->group_destroy(group.handle);
    }
    if (conn.handle) {
        must(host_conn_disconnect(&conn, 20000), "conn_closed did not come");
        host_conn_destroy(&conn);
    }
    backend_host_close(&host);
    return ports;
}

CHECK(ports, none_without_peers)
{
    static const struct config_pair config[] = {{"peers", "no"}, {NULL, NULL}};

    load();
    enum rdt_status status = backend_host_open(&host, config, &err);
    must(status == RDT_OK || status == RDT_UNSUPPORTED, "open fails: %s", err.msg);
    struct ports ports = status == RDT_OK ? ports_of_offers() : ports_now();
    must_eq(ports.n, 0, "it opens a port at %s though this node has no peers", ports.text);
}

/* The host says: interfaces = lo, and the peer link listens at 127.0.0.1. */
CHECK(ports, none_at_every_address)
{
    load();
    enum rdt_status status = backend_host_open(&host, NULL, &err);
    if (status == RDT_UNSUPPORTED)
        check_skip("it is not available here: %s", err.msg);
    must_eq(status, RDT_OK, "open fails: %s", err.msg);
    struct ports ports = ports_of_offers();
    must_eq(ports.n_anyone, 0, "it listens at %s, which is every address of the node", ports.text);
}
