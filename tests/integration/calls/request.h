/* SPDX-License-Identifier: Apache-2.0 */
/* One node, a producer and a reader, for tests of requests. */
#ifndef TESTS_INTEGRATION_REQUEST_H
#define TESTS_INTEGRATION_REQUEST_H

#include "tests/integration/calls/fetch.h"

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
