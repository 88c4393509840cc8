/* SPDX-License-Identifier: Apache-2.0 */
/* The other node of a transport test: a process of its own that holds one connection and obeys the test. It runs the test's
 * own program, which environment variables tell to act as the peer. */
#ifndef TESTS_SUPPORT_BACKEND_PEER_H
#define TESTS_SUPPORT_BACKEND_PEER_H

#include <sys/types.h>

#include "tests/support/backend_host.h"

struct backend_peer {
    pid_t pid;
    int fd;
};

bool backend_peer_start(struct backend_peer *peer, const char *so);
void backend_peer_kill(struct backend_peer *peer); /* -9, and waits for its end */
bool backend_peer_stop(struct backend_peer *peer); /* false: it did not end well */

/* Receives the peer's offer, and sends ours. */
bool backend_peer_offer(struct backend_peer *peer, uint8_t blob[RDT_OFFER_MAX_BYTES], size_t *bytes_p);
bool backend_peer_connect(struct backend_peer *peer, const void *blob, size_t bytes);
bool backend_peer_join(struct backend_peer *peer, struct host_conn *conn); /* both ways */

/* Posts; true if the plug-in took it. The memory is the peer's own: a send's holds the pattern of the seed. */
bool backend_peer_send(struct backend_peer *peer, uint64_t transfer, uint64_t chunk, uint64_t bytes, uint32_t seed);
/* Chunks 0 to n - 1, all of the same bytes, posted in one go. */
bool backend_peer_send_many(struct backend_peer *peer, uint64_t transfer, uint32_t n, uint64_t bytes, uint32_t seed);
bool backend_peer_recv(struct backend_peer *peer, uint64_t transfer, uint64_t chunk, uint64_t bytes);

/* The status that the op ended with; RDT_TIMED_OUT: it did not. For a receive that ended OK: RDT_MISMATCH unless its
 * memory holds the pattern and its margins are intact. */
enum rdt_status backend_peer_wait(struct backend_peer *peer, uint64_t transfer, uint64_t chunk, uint32_t seed, int ms);
bool backend_peer_wait_failed(struct backend_peer *peer, int ms);
bool backend_peer_disconnect(struct backend_peer *peer);

/* One-sided: registers memory with the pattern of the seed, and packs its key; takes it back. */
bool backend_peer_serve(struct backend_peer *peer, uint64_t bytes, uint32_t seed, uint8_t key[RDT_KEY_MAX_BYTES],
                        size_t *key_bytes_p);
bool backend_peer_unserve(struct backend_peer *peer);

#endif
