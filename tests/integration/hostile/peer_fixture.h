/* SPDX-License-Identifier: Apache-2.0 */
/* Setup and checks of the tests with a node that has the key and lies. Only those tests include this header. */
#ifndef TESTS_PEER_FIXTURE_H
#define TESTS_PEER_FIXTURE_H

#include <unistd.h>

#include "proto/rdt_dtype.h"
#include "proto/wire_ref.h"
#include "tests/integration/hostile/protocol_fixture.h"
#include "tests/support/rogue_peer.h"

static const char *const meant[] = {"is lost",
                                    "rogue_peer",
                                    "is down",
                                    "protocol",
                                    "uses transfer number",
                                    "connection reset by peer",
                                    "longer than hold_grace",
                                    NULL};
static struct rogue_peer rogue_peer;
static rdt *reader; /* a client that fetches from the rogue_peer */

static inline void open_rogue_peer(void)
{
    rogue_peer_open(&rogue_peer, node.key_path, (uint16_t)atoi(strrchr(node.address, ':') + 1));
}

static inline void begin_with_insider(const char *const *flags)
{
    begin(&(struct node_options){.listen = "127.0.0.1:0", .flags = flags});
    open_rogue_peer();
    reader = node_client(&node, "reader");
}

static inline void end_with_insider(void)
{
    others_are_well();
    rogue_peer_close(&rogue_peer);
    rdt_close(reader);
    rdt_close(bystander);
    node_end(&node, meant);
}

/* The daemon's last word. */
static inline void shown_out(const char *says)
{
    Rdt__Pb__Goodbye *goodbye;

    must(rogue_peer_await(&rogue_peer, RDT_PEER_GOODBYE, 1));
    goodbye =
        rdt__pb__goodbye__unpack(NULL, rogue_peer.came[RDT_PEER_GOODBYE].bytes, rogue_peer.came[RDT_PEER_GOODBYE].payload);
    must_say(strstr(goodbye->reason, says), "'%s' instead of '%s'", goodbye->reason, says);
    rdt__pb__goodbye__free_unpacked(goodbye, NULL);
}

#endif
