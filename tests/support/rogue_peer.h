/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that has the key and sends what the test tells it to, true or false: for tests of what a daemon believes. Its own
 * failures abort the process, because fuzz targets use it too. */
#ifndef TESTS_SUPPORT_INSIDER_H
#define TESTS_SUPPORT_INSIDER_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/peers/tls.h"
#include "proto/frame.h"
#include "proto/messages.h"
#include "rdt_peer.pb-c.h"
#include "tests/support/message.h"

#define INSIDER_ASKED 16
#define INSIDER_TYPES 64

extern const uint8_t rogue_peer_uuid[16];
extern uint8_t rogue_peer_boot_id[16]; /* another one: it has restarted */

/* poll(), or what takes its place where the daemon is in the same process. */
extern int (*rogue_peer_poll)(struct pollfd *fds, nfds_t n, int timeout_ms);

struct rogue_peer {
    int sock; /* -1: closed, by whomever */
    struct tls_context *context;
    struct tls tls;
    bool secure; /* the handshake is over */
    struct frame_reader reader;
    struct { /* received messages by type: how many, and the latest */
        unsigned n;
        uint8_t *payload;
        size_t bytes;
    } came[INSIDER_TYPES];
    uint64_t pulls[INSIDER_ASKED], calls[INSIDER_ASKED]; /* numbers that the daemon asked with */
    unsigned n_pulls, n_calls;
};

/* Dials 127.0.0.1:port; the link is up. */
void rogue_peer_open(struct rogue_peer *rogue_peer, const char *key_path, uint16_t port);
void rogue_peer_close(struct rogue_peer *rogue_peer);

/* Reads what has come, for a moment if there is nothing. */
void rogue_peer_listen(struct rogue_peer *rogue_peer, int timeout_ms);

/* Sends a frame. If `known` is set and the payload is that type's message, small numbers of transfers and calls that the daemon
 * asked with become the real ones. */
void rogue_peer_say(struct rogue_peer *rogue_peer, uint16_t type, uint8_t flags, const uint8_t *payload, size_t n, bool known);

/* The same with a complete message. */
void rogue_peer_send(struct rogue_peer *rogue_peer, uint16_t type, const ProtobufCMessage *message);

/* A header that claims so many bytes, and the first few of them. */
void rogue_peer_begin_frame(struct rogue_peer *rogue_peer, uint16_t type, uint32_t claimed, size_t n);

/* Reads until so many of a type have come; false: the daemon closed before. */
bool rogue_peer_await(struct rogue_peer *rogue_peer, uint16_t type, unsigned n);

/* Until the daemon has read all that was said, or closed. */
void rogue_peer_flush(struct rogue_peer *rogue_peer);

#endif
