/* SPDX-License-Identifier: Apache-2.0 */
/* One node, a client that puts snapshots, and clients that read them. */
#ifndef TESTS_INTEGRATION_SNAPSHOT_H
#define TESTS_INTEGRATION_SNAPSHOT_H

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/call.h"
#include "rdt.pb-c.h"
#include "tests/integration/memory/memory.h"
#include "tests/support/raw.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define BYTES (3 * MIB + 5)

static inline struct rdt_ref put_snapshot(const struct rdt_tensor *tensors, size_t count, const char *id)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_ref ref;

    options.flags = RDT_PUT_SNAPSHOT;
    options.timeout_ns = LONG;
    options.id = id;
    options.id_bytes = id ? strlen(id) : 0;
    must_ok(rdt_put(conn, tensors, count, &options, &ref, &err));
    return ref;
}

static inline void must_hold(rdt_object *object, size_t i, size_t bytes, uint32_t seed)
{
    struct rdt_tensor tensor = tensor_of(object, i);

    cr_assert_eq(elements_of(&tensor), (int64_t)bytes);
    cr_assert(holds_pattern(tensor.data, bytes, seed), "tensor %zu by %s has changed", i, info_of(object).path);
}

static inline void must_read(rdt *reader, const struct rdt_ref *ref, enum rdt_fetch_mode mode, const char *path, uint32_t seed)
{
    rdt_object *object = fetch_one(reader, ref, mode);

    must_go_by(path, object);
    cr_assert_eq(info_of(object).writable, mode != RDT_FETCH_SHARE && mode != RDT_FETCH_AUTO);
    cr_assert_not(info_of(object).mutable_shared);
    must_hold(object, 0, BYTES, seed);
    rdt_release(object);
}

static inline uint64_t memory_now(void)
{
    struct node_status status;

    node_status(&node, &status);
    return status.memory_bytes;
}

/* Fetches the object, which must have the pattern, and overwrites the bytes if they are the reader's own. */
static inline void must_be_pattern(rdt *reader, const struct rdt_ref *ref, enum rdt_fetch_mode mode, size_t bytes,
                                   uint32_t seed)
{
    rdt_object *object = fetch_one(reader, ref, mode);
    struct rdt_tensor tensor = tensor_of(object, 0);

    must(elements_of(&tensor) == (int64_t)bytes && holds_pattern(tensor.data, bytes, seed));
    if (mode == RDT_FETCH_COW || mode == RDT_FETCH_COPY)
        memset(tensor.data, 0xee, bytes); /* its own */
    rdt_release(object);
}

#endif
