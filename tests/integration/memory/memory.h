/* SPDX-License-Identifier: Apache-2.0 */
/* One node and one client, for tests of the memory that tensors lie in. */
#ifndef TESTS_INTEGRATION_MEMORY_H
#define TESTS_INTEGRATION_MEMORY_H

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/call.h"
#include "rdt.pb-c.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)

static struct test_node node;
static rdt *conn;

static inline void begin(const struct node_options *options)
{
    node_start(&node, options);
    conn = node_client(&node, "producer");
}

static inline void end(void)
{
    rdt_close(conn);
    node_end(&node, NULL);
}

static inline struct node_status status_now(void)
{
    struct node_status status;

    node_status(&node, &status);
    return status;
}

#endif
