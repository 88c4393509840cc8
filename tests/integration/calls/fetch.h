/* SPDX-License-Identifier: Apache-2.0 */
/* A producer and a reader on one node. */
#ifndef TESTS_INTEGRATION_FETCH_H
#define TESTS_INTEGRATION_FETCH_H

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/call.h"
#include "rdt.pb-c.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)

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

static inline struct rdt_ref put_pattern(char *addr, size_t bytes, uint32_t seed)
{
    fill_pattern(addr, bytes, seed);
    return put_one(conn, &VECTOR(RDT_U8, bytes, addr), NULL);
}

#endif
