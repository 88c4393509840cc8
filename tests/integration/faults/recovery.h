/* SPDX-License-Identifier: Apache-2.0 */
/* The keeper and the daemon that tests of recovery use, and how they start the next daemon. */
#ifndef TESTS_INTEGRATION_FAULTS_RECOVERY_H
#define TESTS_INTEGRATION_FAULTS_RECOVERY_H

#include <criterion/criterion.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/keeper.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define KEEPER_JOURNAL 1u

static struct test_keeper keeper;
static struct test_node node;
static char state_dir[160], socket_path[160]; /* of the first daemon, and those after it */

static inline void start(void)
{
    static char flag[200];
    static const char *flags[] = {flag, NULL};

    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    node_start(&node, &(struct node_options){.flags = flags,
                                             .state_dir = state_dir[0] ? state_dir : NULL,
                                             .socket = socket_path[0] ? socket_path : NULL,
                                             .awaited = socket_path[0]}); /* sessions may go on already */
    memcpy(state_dir, node.state_dir, sizeof state_dir);
    memcpy(socket_path, node.socket, sizeof socket_path);
}

static inline void begin(void)
{
    keeper_start(&keeper);
    start();
}

static inline void again(int signal)
{
    if (signal == SIGTERM)
        node_stop(&node);
    else
        node_kill(&node, signal);
    start();
}

/* The session goes on at the daemon that runs now, and ends. */
static inline void leave(rdt *conn)
{
    must_ok(rdt_ping(conn, LONG, &err));
    rdt_close(conn);
}

static inline void end(void)
{
    node_stop(&node);
    keeper_stop(&keeper, SIGTERM);
}

static inline struct rdt_ref put_detached(rdt *conn, const char *id, size_t bytes, uint32_t flags, uint32_t seed)
{
    struct rdt_put_options options = RDT_INIT(options);
    char *memory = malloc(bytes);
    struct rdt_ref ref;

    fill_pattern(memory, bytes, seed);
    options.id = id;
    options.id_bytes = strlen(id);
    options.metadata = id;
    options.metadata_bytes = strlen(id) + 1;
    options.flags = RDT_PUT_DETACHED | flags;
    must_ok(rdt_put(conn, &VECTOR(RDT_U8, bytes, memory), 1, &options, &ref, &err));
    free(memory);
    return ref;
}

static inline void must_have(rdt *conn, const struct rdt_ref *ref, const char *id, size_t bytes, uint32_t seed)
{
    rdt_object *object = fetch_one(conn, ref, RDT_FETCH_AUTO);
    size_t metadata_bytes;

    cr_assert(holds_pattern(tensor_of(object, 0).data, bytes, seed), "%s", id);
    cr_assert_str_eq(rdt_object_metadata(object, &metadata_bytes), id);
    rdt_release(object);
}

static inline struct rdt_ref name_ref(const char *name)
{
    struct rdt_ref ref;

    must_ok(rdt_ref_from_name(name, 0, NULL, &ref, &err));
    return ref;
}

#endif
