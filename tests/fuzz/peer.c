/* SPDX-License-Identifier: Apache-2.0 */
/* A whole daemon between a client and a hostile peer that has the key. The peer sends what the input says: as the owner of
 * objects that the client fetches, as the reader of objects that the client put, and as a caller. It can refer to what it
 * was asked.
 *
 *   | type 6, known 1, the client says it 1 | request flags 6 (of a client: fds), unused 2 | bytes 2 | message | next ...
 *
 * The daemon must answer the client or close the link, and hold nothing when both are gone.
 */
#include "tests/fuzz/harness/client.h"
#include "tests/fuzz/harness/daemon.h"
#include "tests/support/rogue_peer.h"

#define MOST_MESSAGES 24

/* "@" in place of a node means the peer's. */
static void say_as_client(struct fuzz_client *client, uint16_t type, const uint8_t *payload, size_t n, unsigned fds)
{
    static const uint8_t sign[16] = "@@@@@@@@@@@@@@@@";
    uint8_t *copy = fuzz_copy(payload, n, false);

    for (size_t i = 0; i + sizeof sign <= n; i++)
        if (memcmp(copy + i, sign, sizeof sign) == 0)
            memcpy(copy + i, rogue_peer_uuid, sizeof rogue_peer_uuid);
    fuzz_client_tell(client, type, copy, n, fds);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *at = data, *end = data + bytes;
    struct fuzz_client client;
    struct rogue_peer peer;
    static uint64_t boots;

    fuzz_daemon_start(true);
    fuzz_client_open(&client);
    boots++; /* the replicas of its earlier objects end */
    memcpy(rogue_peer_boot_id, &boots, sizeof boots);
    rogue_peer_open(&peer, fuzz_daemon_key, fuzz_daemon_port());
    for (unsigned i = 0; at < end && i < MOST_MESSAGES && peer.sock >= 0; i++) {
        uint8_t what = (uint8_t)fuzz_take(&at, end, 1), how = (uint8_t)fuzz_take(&at, end, 1);
        size_t n = fuzz_take(&at, end, 2);

        if (n > (size_t)(end - at))
            n = (size_t)(end - at);
        if (what & 0x80) {
            say_as_client(&client, fuzz_request_type(what & 0x3f), at, n, how & 0x3f);
            rogue_peer_listen(&peer, 1); /* what the daemon now asks of us */
        } else {
            rogue_peer_say(&peer, what & 0x3f, how & 0x3f, at, n, what & 0x40);
            rogue_peer_flush(&peer);
        }
        at += n;
    }
    rogue_peer_close(&peer);
    fuzz_client_close(&client);
    fuzz_daemon_settle();
    return 0;
}
