/* SPDX-License-Identifier: Apache-2.0 */
/* backends/stream: a peer's offer, and the first bytes, headers and trailers of a connection.
 *
 *   | which 1 | it |
 */
#include <arpa/inet.h>
#include <netinet/in.h>

#include "../../backends/stream/wire.c"
#include "tests/fuzz/harness/fuzz.h"

static void offer(const void *blob, size_t n)
{
    struct sockaddr_storage address, address_again;
    struct secrets secrets, secrets_again;
    uint8_t again[RDT_OFFER_MAX_BYTES];
    struct rdt_error err;
    bool plain, plain_again;
    enum rdt_status status = wire_read_offer(blob, n, &address, &secrets, &plain, &err);
    size_t bytes;

    if (status != RDT_OK) {
        fuzz_refused(status, &err);
        return;
    }
    fuzz_must(address.ss_family == AF_INET || address.ss_family == AF_INET6);
    bytes = wire_put_offer(&address, &secrets, plain, again);
    fuzz_must(bytes == n && wire_read_offer(again, bytes, &address_again, &secrets_again, &plain_again, &err) == RDT_OK);
    fuzz_must(memcmp(&address, &address_again, sizeof address) == 0 && memcmp(&secrets, &secrets_again, sizeof secrets) == 0);
    fuzz_must(plain == plain_again);
}

static void greetings(const uint8_t *bytes, size_t n)
{
    struct secrets secrets = {.key = {0}};
    uint8_t hello[HELLO_BYTES], welcome[WELCOME_BYTES];
    uint32_t number;
    bool takes;

    if (n == HELLO_BYTES && wire_read_hello(bytes, secrets.id, secrets.token, &number, &takes)) {
        fuzz_must(bytes[0] != TLS_HANDSHAKE);
        wire_put_hello(&secrets, number, takes, hello);
        fuzz_must(memcmp(hello, bytes, n) == 0);
    }
    if (n == WELCOME_BYTES && wire_read_welcome(bytes, secrets.proof)) {
        wire_put_welcome(&secrets, welcome);
        fuzz_must(memcmp(welcome, bytes, n) == 0);
    }
}

static void chunks(const uint8_t *bytes, size_t n)
{
    uint8_t again[HEADER_BYTES], trailer[TRAILER_BYTES];
    struct header header;
    bool whole;

    if (n == HEADER_BYTES && wire_read_header(bytes, &header)) {
        fuzz_must(header.kind == HEADER_CHUNK || header.kind == HEADER_BYE);
        fuzz_must(header.bytes <= MAX_CHUNK_BYTES);
        wire_put_header(&header, again);
        fuzz_must(memcmp(again, bytes, n) == 0);
    }
    if (n == TRAILER_BYTES && wire_read_trailer(bytes, &whole)) {
        wire_put_trailer(whole, trailer);
        fuzz_must(memcmp(trailer, bytes, n) == 0);
    }
}

/* In any order of the numbers none is accepted twice, and a new number that is not too far from the highest is accepted. */
static void numbers(const uint8_t *at, const uint8_t *end)
{
    static bool seen[UINT16_MAX + 1];
    struct numbers taken = {0};
    uint32_t highest = 0;
    bool any = false;

    memset(seen, 0, sizeof seen);
    while (at < end) {
        uint32_t number = (uint32_t)fuzz_take(&at, end, 2);
        bool took = numbers_take(&taken, number);
        bool far = any && (highest >= number ? highest - number >= NUMBERS_BEHIND : number - highest > NUMBERS_BEHIND);

        fuzz_must(!took || !seen[number]);
        fuzz_must(took ? !far : seen[number] || far);
        any = any || took;
        seen[number] = seen[number] || took;
        if (took && number > highest)
            highest = number;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *at = data, *end = data + bytes;
    uint8_t which = (uint8_t)fuzz_take(&at, end, 1);
    size_t n = (size_t)(end - at);
    void *copy = fuzz_copy(at, n, false);

    switch (which % 4) {
    case 0:
        offer(copy, n);
        break;
    case 1:
        greetings(copy, n);
        break;
    case 2:
        chunks(copy, n);
        break;
    default:
        numbers(copy, (uint8_t *)copy + n);
        break;
    }
    free(copy);
    return 0;
}
