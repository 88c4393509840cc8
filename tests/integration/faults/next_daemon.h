/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon that ends in either way, and the next one at the same socket with the same identity. */
#ifndef TESTS_INTEGRATION_FAULTS_NEXT_DAEMON_H
#define TESTS_INTEGRATION_FAULTS_NEXT_DAEMON_H

#include <signal.h>
#include <string.h>

#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

static struct test_node node;
static char state_dir[160], socket_path[160]; /* of the first daemon, and those after it */

static void start(void); /* start_next with the flags of the test */

static inline void start_next(const char *const *flags)
{
    node_start(&node, &(struct node_options){.flags = flags,
                                             .state_dir = state_dir[0] ? state_dir : NULL,
                                             .socket = socket_path[0] ? socket_path : NULL,
                                             .awaited = socket_path[0]}); /* sessions may go on already */
    memcpy(state_dir, node.state_dir, sizeof state_dir);
    memcpy(socket_path, node.socket, sizeof socket_path);
}

static inline void again(int signal)
{
    if (signal == SIGTERM)
        node_stop(&node);
    else
        node_kill(&node, signal);
    start();
}

static inline struct rdt_ref name_ref(const char *name)
{
    struct rdt_ref ref;

    must_ok(rdt_ref_from_name(name, 0, NULL, &ref, &err));
    return ref;
}

#endif
