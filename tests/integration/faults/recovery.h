/* SPDX-License-Identifier: Apache-2.0 */
/* The keeper and the daemon that tests of recovery use, and how they start the next daemon. */
#ifndef TESTS_INTEGRATION_FAULTS_RECOVERY_H
#define TESTS_INTEGRATION_FAULTS_RECOVERY_H

#include <criterion/criterion.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/integration/faults/next_daemon.h"
#include "tests/support/keeper.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define KEEPER_JOURNAL 1u

static struct test_keeper keeper;

static void start(void)
{
    static char flag[200];
    static const char *flags[] = {flag, NULL};

    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    start_next(flags);
}

static inline void begin(void)
{
    keeper_start(&keeper);
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
    char *memory = malloc(bytes);

    fill_pattern(memory, bytes, seed);
    struct rdt_put_options options = {.struct_size = sizeof options,
                                      .id = id,
                                      .id_bytes = strlen(id),
                                      .metadata = id,
                                      .metadata_bytes = strlen(id) + 1,
                                      .flags = RDT_PUT_DETACHED | flags};
    struct rdt_ref ref = put_as(conn, &VECTOR(RDT_U8, bytes, memory), 1, &options);
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

#endif
