/* SPDX-License-Identifier: Apache-2.0 */
/* Two clients on one node, and a function that asks what they use. */
#ifndef TESTS_INTEGRATION_LIMITS_H
#define TESTS_INTEGRATION_LIMITS_H

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "proto/layout.h"
#include "proto/wire_ref.h"
#include "tests/support/raw.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)

static struct test_node node;
static rdt *conn, *other;
static struct raw watcher; /* the client that asks for the use */

static inline void begin_alone(const char *const *flags)
{
    node_start(&node, &(struct node_options){.flags = flags});
    raw_connect(&watcher, node.socket);
    raw_hello(&watcher);
}

static inline void begin(const char *const *flags)
{
    begin_alone(flags);
    conn = node_client(&node, "greedy");
    other = node_client(&node, "other");
}

static inline void end(const char *const *declared)
{
    rdt_close(conn);
    rdt_close(other);
    raw_close(&watcher);
    node_end(&node, declared);
}

static inline uint64_t session(rdt *client)
{
    struct rdt_node_info info;

    must_ok(rdt_node(client, &info, &err));
    return info.session;
}

static inline Rdt__Pb__ListReply *list(struct raw *raw, Rdt__Pb__ListKind kind)
{
    Rdt__Pb__List request = MESSAGE(list, .kind = kind);
    return (Rdt__Pb__ListReply *)raw_reply(raw, raw_send(raw, RDT_MSG_LIST, &request.base, NULL, 0),
                                           &rdt__pb__list_reply__descriptor);
}

static inline uint64_t find(Rdt__Pb__Usage *const *usage, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(usage[i]->what, what) == 0)
            return usage[i]->used;
    fail("%s is not counted", what);
}

/* How much a client uses; client 0: all clients of this user without the watcher. */
static inline uint64_t used(uint64_t client, const char *what)
{
    uint64_t amount = UINT64_MAX;

    Rdt__Pb__ListReply *reply =
        list(&watcher, client ? RDT__PB__LIST_KIND__LIST_KIND_CLIENTS : RDT__PB__LIST_KIND__LIST_KIND_OWNERS);
    for (size_t i = 0; i < reply->n_clients; i++)
        if (reply->clients[i]->client == client)
            amount = find(reply->clients[i]->usage, reply->clients[i]->n_usage, what);
    for (size_t i = 0; i < reply->n_owners; i++)
        if (reply->owners[i]->uid == geteuid())
            amount = find(reply->owners[i]->usage, reply->owners[i]->n_usage, what) -
                     (strcmp(what, "sessions") == 0 ? 1u : 0u) - (strcmp(what, "fds") == 0 ? 2u : 0u);
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return amount;
}

static inline bool nothing_is_used(void)
{
    static const char *const all[] = {"bytes",   "objects", "regions", "fds",      "transfers",
                                      "waiters", "names",   "heap",    "sessions", "holds"};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (used(0, all[i]) != 0)
            return false;
    return true;
}

static rdt_object *no_object;

static inline enum rdt_status fetch(rdt *client, const struct rdt_ref *ref, enum rdt_fetch_mode mode, struct rdt_error *err)
{
    struct rdt_fetch_options options = {.struct_size = sizeof options, .mode = mode, .timeout_ns = LONG};
    return rdt_fetch(client, ref, 1, &options, &no_object, err);
}

static inline void greeted(struct raw *raw)
{
    raw_connect(raw, node.socket);
    raw_hello(raw);
}

#endif
