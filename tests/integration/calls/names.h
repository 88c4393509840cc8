/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer and a sampler on one node. */
#ifndef TESTS_INTEGRATION_NAMES_H
#define TESTS_INTEGRATION_NAMES_H

#include <criterion/criterion.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/support/raw.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define KIB ((size_t)1024)
#define BYTES (64 * KIB)
#define STRANGER 12345

static struct test_node node;
static rdt *trainer, *sampler;

static inline void begin(const char *const *flags)
{
    node_start(&node, &(struct node_options){.flags = flags});
    trainer = node_client(&node, "trainer");
    sampler = node_client(&node, "sampler");
}

static inline void end(void)
{
    rdt_close(trainer);
    rdt_close(sampler);
    node_end(&node, NULL);
}

static inline struct rdt_ref name_ref(const char *name, uint64_t after)
{
    struct rdt_ref ref = {0};

    must_ok(rdt_ref_from_name(name, after, NULL, &ref, &err));
    return ref;
}

/* Puts a pattern of the seed, publishes it and lets go of it; which version it is. */
static inline uint64_t publish_pattern(rdt *conn, const char *name, uint32_t seed)
{
    struct rdt_ref ref;
    uint64_t version = 0;
    char *addr = alloc_memory(conn, BYTES);

    fill_pattern(addr, BYTES, seed);
    ref = put_one(conn, &VECTOR(RDT_U8, BYTES, addr), NULL);
    must_ok(rdt_publish(conn, name, &ref, NULL, &version, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_dealloc(conn, addr, &err));
    return version;
}

/* The newest version above `after`, which must be `version` and hold the pattern of that seed. */
static inline rdt_object *fetch_version(rdt *conn, const char *name, uint64_t after, uint64_t version, uint32_t seed)
{
    struct rdt_ref ref = name_ref(name, after);
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
    struct rdt_object_info info = info_of(object);

    must_say(info.version == version, "version %llu instead of %llu", (unsigned long long)info.version,
             (unsigned long long)version);
    must(!info.ref.is_name && info.ref.generation != 0);
    must(holds_pattern(tensor_of(object, 0).data, BYTES, seed));
    return object;
}

static inline void unpublish(rdt *conn, const char *name)
{
    struct rdt_ref ref = name_ref(name, 0);

    must_ok(rdt_unpublish(conn, &ref, &err));
}

static inline uint32_t waiters_of(const char *name)
{
    struct raw raw;
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    ProtobufCMessage *reply;
    uint32_t waiters = 0;

    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    request.kind = RDT__PB__LIST_KIND__LIST_KIND_NAMES;
    reply = raw_reply(&raw, raw_send(&raw, RDT_MSG_LIST, &request.base, NULL, 0), &rdt__pb__list_reply__descriptor);
    for (size_t i = 0; i < ((Rdt__Pb__ListReply *)reply)->n_names; i++) {
        const Rdt__Pb__NameInfo *info = ((Rdt__Pb__ListReply *)reply)->names[i];
        if (strcmp(info->name, name) == 0)
            waiters = info->waiters;
    }
    protobuf_c_message_free_unpacked(reply, NULL);
    raw_close(&raw);
    return waiters;
}

static inline unsigned transfers_waiting(void)
{
    struct node_status status;

    node_status(&node, &status);
    return status.transfers_active;
}

#endif
