/* SPDX-License-Identifier: Apache-2.0 */
/* A whole daemon and two hostile clients. They send what the input says, with descriptors, and can refer to what the daemon
 * gave them.
 *
 *   | type 6, known 1, who 1 | fds 6, request flags 1, close first 1 | bytes 14, again 1, padded 1 | message | next ...
 *
 * again: the message many times over, which is one whose lists are as much longer; padded: with a field that nobody knows.
 * Both are large requests, which the pool reads.
 *
 * The daemon must answer everything or close, and hold nothing when both are gone.
 */
#include "tests/fuzz/harness/client.h"
#include "daemon/rpc/rpc.h"
#include "tests/fuzz/harness/daemon.h"

#define MOST_REQUESTS 24
#define LARGE_BYTES (RPC_AT_ONCE_BYTES + 1024u)
#define AGAIN 0x4000u
#define PADDED 0x8000u

/* To be freed. */
static uint8_t *enlarge(const uint8_t *message, size_t *n_p, unsigned how)
{
    static const uint8_t unknown[] = {0x82, 0x7d}; /* field 2000, bytes */
    size_t n = *n_p, times = how & AGAIN && n > 0 ? LARGE_BYTES / n + 1 : 1, padding = how & PADDED ? LARGE_BYTES : 0;
    uint8_t *large = calloc(1, times * n + padding + sizeof unknown + 3), *at = large;

    fuzz_must(large);
    for (size_t i = 0; i < times; i++, at += n)
        if (n > 0)
            memcpy(at, message, n);
    if (padding > 0) {
        memcpy(at, unknown, sizeof unknown);
        at += sizeof unknown;
        *at++ = (uint8_t)(padding & 0x7f) | 0x80;
        *at++ = (uint8_t)(padding >> 7 & 0x7f) | 0x80;
        *at++ = (uint8_t)(padding >> 14);
        at += padding;
    }
    *n_p = (size_t)(at - large);
    return large;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *at = data, *end = data + bytes;
    struct fuzz_client clients[2];
    bool open[2] = {false};

    fuzz_daemon_start(false);
    for (unsigned i = 0; at < end && i < MOST_REQUESTS; i++) {
        uint8_t what = (uint8_t)fuzz_take(&at, end, 1), how = (uint8_t)fuzz_take(&at, end, 1), who = what >> 7;
        size_t n = fuzz_take(&at, end, 2), bytes_said;
        unsigned larger = n & (AGAIN | PADDED);
        uint8_t *large = NULL;

        n &= AGAIN - 1;
        if (n > (size_t)(end - at))
            n = (size_t)(end - at);
        if (open[who] && (how & 0x80 || clients[who].sock < 0)) {
            fuzz_client_close(&clients[who]);
            open[who] = false;
        }
        if (!open[who])
            fuzz_client_open(&clients[who]);
        open[who] = true;
        bytes_said = n;
        if (larger)
            large = enlarge(at, &bytes_said, larger);
        fuzz_client_say(&clients[who], fuzz_request_type(what & 0x3f), how & 0x40 ? FRAME_EVENT : 0, larger ? large : at,
                        bytes_said, how & 0x3f, what & 0x40);
        free(large);
        at += n;
    }
    for (unsigned who = 0; who < 2; who++)
        if (open[who])
            fuzz_client_close(&clients[who]);
    fuzz_daemon_settle();
    return 0;
}
