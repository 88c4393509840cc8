/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes on separate cables: n network namespaces joined by a switch, each with eth0 at 10.77.0.(i + 1)/24. The namespaces
 * have no names and end with the test and its daemons. Needs root and `ip`; without them the test is skipped and says so.
 * badcable.h makes a cable bad instead of cutting it. */
#ifndef TESTS_SUPPORT_NETNS_H
#define TESTS_SUPPORT_NETNS_H

#define NET_MAX 9

struct test_net {
    unsigned n;
    int hub;                   /* fd of the switch's namespace */
    int ns[NET_MAX];           /* fds, for node_options.netns */
    char address[NET_MAX][16]; /* without port */
};

void net_create(struct test_net *net, unsigned n);
void net_destroy(struct test_net *net);

/* From now on nothing of node i arrives, silently: its own link stays up, as when a switch in between fails. */
void net_cut(struct test_net *net, unsigned i);
void net_restore(struct test_net *net, unsigned i);

/* The cable is out: its own link is down. */
void net_unplug(struct test_net *net, unsigned i);
void net_plug(struct test_net *net, unsigned i);

/* Runs a command there (`ns` an fd; by /bin/sh -c); returns its exit status. */
int net_run(int ns, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Enters the namespace; for forked children. */
void net_enter(int ns);

#endif
