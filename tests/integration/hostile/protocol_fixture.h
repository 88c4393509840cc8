/* SPDX-License-Identifier: Apache-2.0 */
/* Setup and checks of the tests of hostile clients: a node, a bystander whose work must continue, and refusals that are
 * compared word by word. Only those tests include this header. */
#ifndef TESTS_PROTOCOL_FIXTURE_H
#define TESTS_PROTOCOL_FIXTURE_H

#include <criterion/criterion.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/call.h"
#include "proto/wire_limits.h"
#include "tests/support/raw.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)

static const char *const declared[] = {"(pid ", NULL}; /* what the daemon logs about such a client */
static struct test_node node;
static rdt *bystander;
static struct rdt_ref theirs;

static inline void begin(const struct node_options *options)
{
    node_start(&node, options);
    bystander = node_client(&node, "bystander");
    char *addr = alloc_memory(bystander, 4096);
    fill_pattern(addr, 4096, 1);
    theirs = put_one(bystander, &VECTOR(RDT_U8, 4096, addr), "theirs");
}

/* Somebody else's work goes on. */
static inline void others_are_well(void)
{
    rdt_object *object = fetch_one(bystander, &theirs, RDT_FETCH_COPY);

    cr_assert(holds_pattern(tensor_of(object, 0).data, 4096, 1));
    rdt_release(object);
    must_ok(rdt_ping(bystander, LONG, &err));
}

static inline void end(void)
{
    others_are_well();
    rdt_close(bystander);
    node_end(&node, declared);
}

static inline void greeted(struct raw *raw)
{
    raw_connect(raw, node.socket);
    raw_hello(raw);
}

static inline void begin_greeted(struct raw *raw)
{
    begin(NULL);
    greeted(raw);
}

static inline void end_closed(struct raw *raw)
{
    raw_close(raw);
    end();
}

static inline void ping_works(struct raw *raw)
{
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;

    ping.data.data = (uint8_t *)"echo";
    ping.data.len = 4;
    Rdt__Pb__Ping *pong =
        (Rdt__Pb__Ping *)raw_reply(raw, raw_send(raw, RDT_MSG_PING, &ping.base, NULL, 0), &rdt__pb__ping__descriptor);
    cr_assert(pong->data.len == 4 && memcmp(pong->data.data, "echo", 4) == 0);
    rdt__pb__ping__free_unpacked(pong, NULL);
}

static inline void refuses(struct raw *raw, enum rdt_status expected, const char *text)
{
    char said[256];
    enum rdt_status status = raw_error(raw, said);

    must_say(status == expected && strstr(said, text), "%s: %s", rdt_status_name(status), said);
}

static inline void refuses_and_closes(struct raw *raw, enum rdt_status expected, const char *text)
{
    refuses(raw, expected, text);
    raw_expect_closed(raw);
    raw_close(raw);
    others_are_well();
}

/* ---- who does not read ---- */

/* An actor that asks and never reads an answer, until it is killed; a step when some are on their way. */
static inline int never_read(struct actor *self, void *arg)
{
    uint8_t *data = calloc(1, 128 * 1024);
    struct raw raw;

    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    Rdt__Pb__Ping ping = MESSAGE(ping, .data = (ProtobufCBinaryData){128 * 1024, data});
    for (unsigned i = 0;; i++) {
        struct pollfd fd = {.fd = raw.sock, .events = POLLOUT};
        if (i == 50)
            actor_step(self);         /* more than 6 MB are on the way */
        while (poll(&fd, 1, -1) != 1) /* ends when the test kills it */
            continue;
        (void)raw_send(&raw, RDT_MSG_PING, &ping.base, NULL, 0);
    }
    return 0;
}

/* At the client that has left most unread. */
#define UNREAD_MAX (8 * MIB) /* QUEUE_MAX_BYTES of daemon/conn_heap.c */

static inline uint64_t most_queued(void)
{
    Rdt__Pb__ListReply *reply;
    uint64_t most = 0;
    Rdt__Pb__List list = MESSAGE(list, .kind = RDT__PB__LIST_KIND__LIST_KIND_CLIENTS);

    must_ok(call(bystander, RDT_MSG_LIST, &list.base, LONG, (ProtobufCMessage **)(void *)&reply, &err));
    for (size_t i = 0; i < reply->n_clients; i++)
        most = reply->clients[i]->queued_bytes > most ? reply->clients[i]->queued_bytes : most;
    rdt__pb__list_reply__free_unpacked(reply, NULL);
    return most;
}

#endif
