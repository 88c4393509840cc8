/* SPDX-License-Identifier: Apache-2.0 */
/* A few daemons that know each other, on separate cables or on 127.0.0.1. Waits until they have met, and until nothing is
 * left between them. Returns the lists of daemons as plain structs.
 *
 *     struct cluster c;
 *     cluster_start(&c, 2, &(struct cluster_options){.loopback = true});   ...   cluster_end(&c, declared);
 */
#ifndef TESTS_SUPPORT_CLUSTER_H
#define TESTS_SUPPORT_CLUSTER_H

#include "tests/support/netns.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define CLUSTER_MAX 9
#define CLUSTER_MAX_FLAGS 24

struct cluster_options {
    bool cables;                              /* network namespaces; the test is skipped where they cannot be */
    bool loopback;                            /* tests/rdt_loopback.so is loaded */
    bool grouped;                             /* tests/rdt_grouped.so is, and has the same faults */
    bool no_ucx;                              /* trusted_network = no */
    bool stream;                              /* the transport of that name is on: bytes that ucx does not move go by it */
    bool same_socket;                         /* a restarted node has the socket that it had, so sessions may go on */
    bool table;                               /* each has a nodes file with all of them, so names are found from any node */
    bool no_meeting;                          /* the nodes connect only when the test makes them */
    const char *const *flags;                 /* of all nodes, NULL at the end */
    const char *const *flags_of[CLUSTER_MAX]; /* further ones of one */
    const char *const *env_of[CLUSTER_MAX];   /* "NAME=VALUE", NULL at the end; lives as long as the cluster */
};

struct cluster {
    struct cluster_options options;
    unsigned n;
    struct test_net net;
    struct test_node node[CLUSTER_MAX];
    char table[CLUSTER_MAX * 80];
    char listen[CLUSTER_MAX][65], faults[CLUSTER_MAX][192];
    char *flags[CLUSTER_MAX][CLUSTER_MAX_FLAGS + 1]; /* copies: a restart needs them again */
    unsigned fds[CLUSTER_MAX];                       /* the descriptors of each, when all had met */
    bool met;                                        /* once */
};

void cluster_start(struct cluster *cluster, unsigned n, const struct cluster_options *options);

/* Starts a node that has ended again: same address, same uuid. */
void cluster_restart(struct cluster *cluster, unsigned i);

/* Sets the faults of the loopback transport of node i from its next operation on: "delay_ms=10\nno_abort=1\n"; "" means
 * none. */
void cluster_faults(struct cluster *cluster, unsigned i, const char *lines);

/* Until every pair of nodes is connected, by each transport that they have. */
void cluster_meet(struct cluster *cluster);

/* Nothing is left on any node; no fd more than when all had met; clean logs; each stops with 0. Declared: texts of
 * warnings that were meant; those that a node's ordinary end causes on the others need not be. */
void cluster_expect_idle(struct cluster *cluster);
void cluster_end(struct cluster *cluster, const char *const *declared);

/* ---- what a node shows ---- */

struct transfer_view {
    uint64_t id, client, bytes, bytes_done;
    int64_t elapsed_ns; /* 0: not ended */
    char direction[8], state[16], path[65], route[64], error[256], waits[192], peer[65];
    char left[192]; /* why it has left its first source; "": it has not */
    unsigned n_candidates;
    struct {
        char path[65], reason[192];
        bool chosen;
    } candidates[12];
};

/* The transfers of a node, those under way first, latest first; how many (at most max). */
unsigned transfers_of(const struct test_node *node, struct transfer_view *views_p, unsigned max);

/* The one of that direction ("in", "out", "local") which has not ended; false: there is none. */
bool transfer_under_way(const struct test_node *node, const char *direction, struct transfer_view *view_p);

/* The one with this number, ended or not; fails the test if it is not known. */
struct transfer_view transfer_numbered(const struct test_node *node, uint64_t id);

/* Waits until a transfer of that direction is in one of the states ("moving" or "moving|reserving"). */
void await_transfer(const struct test_node *node, const char *direction, const char *states);

/* Operations that the loopback transport of the node has now. */
unsigned operations_of(const struct test_node *node);

/* Waits until a transfer to the node is moving and its loopback transport is at it. */
void await_engine(const struct test_node *node);

/* Waits until no node has a transfer under way; objects and clients may stay. */
void cluster_expect_idle_of_transfers(const struct cluster *cluster);

unsigned pins_of(const struct test_node *node); /* of all regions */

struct peer_view {
    char state[16], last_error[192], boot_id[33], name[65];
    int64_t retry_in_ns;
    bool loopback, ucx, stream; /* connected */
    char ucx_route[161];        /* its description of the connection */
    unsigned transfers_in, transfers_out;
};
/* How `node` sees `other`; false: it does not know it. */
bool peer_seen(const struct test_node *node, const struct test_node *other, struct peer_view *view_p);

/* ---- in a line ---- */

/* One tensor of `bytes` bytes of that pattern, copied into the daemon; id NULL: generated. */
struct rdt_ref put_pattern(rdt *conn, const char *id, size_t bytes, uint32_t seed);

/* A fetch of it into fresh memory: bytes as expected, path as given (NULL: any); released. */
void fetch_pattern(rdt *conn, const struct rdt_ref *ref, size_t bytes, uint32_t seed, const char *path);

/* The ref of a name on a node that nobody need have put yet. */
struct rdt_ref ref_on(const struct test_node *node, const char *id);

/* A put and fetches on each of the nodes, and across those of `mask` (bits), small ones: others are not disturbed. */
void bystander_round(struct cluster *cluster, unsigned mask);

#endif
