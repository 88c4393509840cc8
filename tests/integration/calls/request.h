/* SPDX-License-Identifier: Apache-2.0 */
/* One node, a producer and a reader, for tests of requests. */
#ifndef TESTS_INTEGRATION_REQUEST_H
#define TESTS_INTEGRATION_REQUEST_H

#include <criterion/criterion.h>

#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

static struct test_node node;
static rdt *conn, *reader;

static inline void begin(const struct node_options *options)
{
    node_start(&node, options);
    conn = node_client(&node, "producer");
    reader = node_client(&node, "reader");
}

static inline void end(void)
{
    rdt_close(conn);
    rdt_close(reader);
    node_end(&node, NULL);
}

static inline rdt_request *park(const char *id, int64_t timeout_ns)
{
    struct rdt_ref ref = ref_named(id);

    return start_one(reader, &ref, timeout_ns);
}

static inline void put_named(const char *id)
{
    (void)put_one(conn, &VECTOR(RDT_U8, 5, "hello"), id);
}

#endif
