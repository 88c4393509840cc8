/* SPDX-License-Identifier: Apache-2.0 */
/* Real daemons for tests: a node is one rdtd process with a folder of its own below $TMPDIR (socket, state, log), which dies
 * with the test. Readiness comes through NOTIFY_SOCKET. A test of a node ends with node_end.
 *
 *     struct test_node node;
 *     node_start(&node, &(struct node_options){.log = "debug"});      ...      node_end(&node, NULL);
 */
#ifndef TESTS_SUPPORT_RDTD_H
#define TESTS_SUPPORT_RDTD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/rdt.h"
#include "tests/support/actor.h"
#include "tests/support/check.h"

struct node_options {
    const char *name;         /* of its folder and in messages; NULL: "node" */
    int netns;                /* fd of the network namespace it runs in; 0: the test's */
    const char *memory_group; /* folder of the control group it runs in (memory_group.h); NULL: the test's */
    const char *listen;       /* "127.0.0.1:0"; NULL: no peer link */
    const char *advertise;
    const char *key;   /* text of the key file; NULL: TEST_KEY if it listens or has nodes */
    const char *nodes; /* text of the nodes file; NULL: none. node_write_nodes writes it anew */
    bool trusted_network;
    const char *interfaces;   /* NULL: any */
    bool loopback;            /* loads tests/rdt_loopback.so */
    bool no_backend_dir;      /* only what flags load */
    const char *log;          /* log level; NULL: "info" */
    const char *const *flags; /* further ones, NULL at the end */
    const char *const *env;   /* "NAME=VALUE", NULL at the end */
    const char *state_dir;    /* NULL: its own; of an earlier node: a restart of the same one */
    const char *socket;       /* NULL: its own */
    const int *pass_fds;      /* as LISTEN_FDS, -1 at the end; NULL: none */
    uint64_t watchdog_usec;   /* 0: none */
    bool awaited;             /* other nodes dial it as soon as it is there: its fds at the start are not known */
};

#define TEST_KEY "cmR0ZCB0ZXN0cyBzaGFyZSB0aGlzIGtleSBvZiAzMiBieXRlcw==\n"

struct test_node {
    char name[32];
    pid_t pid;
    int pidfd;
    pid_t held[64]; /* threads that node_hold_threads holds */
    unsigned n_held;
    int notify; /* the datagrams of NOTIFY_SOCKET */
    char dir[128], socket[160], log[160], state_dir[160], nodes_path[160], key_path[160];
    char address[65]; /* of its peer link; "" if it has none */
    char uuid[33];    /* in hex */
    uint8_t uuid_bytes[16];
    unsigned fds;     /* when it was ready and nobody was connected */
    unsigned own_fds; /* the test's own descriptors at that time */
};

/* The answer of STATUS, without the connection that asks. */
struct node_status {
    char state[16];
    uint64_t objects, regions, memory_bytes, memory_limit_bytes, pool_bytes, pool_hits, cached_bytes, cache_hits,
        orphaned_bytes, transfers_done, transfers_failed, transfers_cancelled, transfers_timed_out, bytes_in, bytes_out,
        bytes_local, joined, fell_back, copies, replica_bytes, from_copies, redirected, busy_polls, busy_polls_missed;
    unsigned clients, transfers_active, peers_up, peers_known;
};

/* Starts and waits for READY=1; fails the test, showing the log, if it does not come within 10 s (longer under sanitizers). */
void node_start(struct test_node *node, const struct node_options *options);

/* The same, for a daemon that may refuse: true when ready; false: it ended, with *exit_p. The log stays. */
bool node_try_start(struct test_node *node, const struct node_options *options, int *exit_p);

/* Both, without waiting for readiness (node_await_notify does). */
void node_spawn(struct test_node *node, const struct node_options *options);

/* Waits for a datagram that holds the text. */
void node_await_notify(struct test_node *node, const char *text);

void node_stop(struct test_node *node);             /* SIGTERM; must end with 0 */
void node_kill(struct test_node *node, int signal); /* and waits for its end */
int node_result(struct test_node *node);            /* waits for its end; exit status or 128 + signal */
void node_freeze(struct test_node *node);
void node_thaw(struct test_node *node);
/* All threads but the loop's stand still where they wait for work, until node_release_workers. false: this process may not
 * trace. */
bool node_hold_workers(struct test_node *node);
bool node_hold_threads(struct test_node *node, const char *name); /* only those whose names begin so */
void node_release_workers(struct test_node *node);

void node_connect(const struct test_node *node, rdt **rdt_p);
rdt *node_client(const struct test_node *node, const char *name);

void node_status(const struct test_node *node, struct node_status *status_p);
struct node_status node_now(const struct test_node *node); /* the same */

/* Waits until nobody is connected, nothing is left of anyone and nothing runs. */
void node_expect_idle(const struct test_node *node);

/* No fd more than when it was ready, sooner or later. */
void node_expect_fds(const struct test_node *node, unsigned slack);

/* No error line, and no warning that holds none of the declared texts (NULL at the end; NULL: none is declared). */
void node_check_log(const struct test_node *node, const char *const *declared);
bool node_log_has(const struct test_node *node, const char *text);
unsigned node_log_count(const struct test_node *node, const char *text); /* how often the log has the text */
void node_print_log(const struct test_node *node);

/* How most tests end: idle, no fd more there and here, a clean log, stopped with 0. */
void node_end(struct test_node *node, const char *const *declared);

/* "NAME ADDRESS:PORT" lines of others; takes effect at the next start (node_options.nodes does at this one). */
void node_write_nodes(const struct test_node *node, const char *text);

/* Absolute path below the build folder. Static storage, a few at a time. */
const char *build_path(const char *relative);

/* A port of the address that is this process's alone (port.h), "ADDRESS:PORT"; netns 0: the test's. */
void free_address(int netns, const char *address, char text_p[65]);

/* Text to a file below $TMPDIR (or an absolute path). */
void write_file(const char *path, const char *text);
char *read_file(const char *path, size_t *bytes_p); /* malloc'ed, zero-terminated */

#endif
