/* SPDX-License-Identifier: Apache-2.0 */
/* backends/ucx: a peer's offer, its keys, and the headers of its active messages.
 *
 *   | which 1, announced 1 | bytes of data, or offset of a read, 4 | it |
 */
#include <arpa/inet.h>
#include <netinet/in.h>

#include "../../backends/ucx/wire.c"
#include "tests/fuzz/harness/fuzz.h"

static void offer(const void *blob, size_t n)
{
    struct sockaddr_storage address, address_again;
    uint8_t token[TOKEN_BYTES], again[RDT_OFFER_MAX_BYTES], token_again[TOKEN_BYTES];
    struct rdt_error err;
    enum rdt_status status = wire_read_offer(blob, n, &address, token, &err);
    size_t bytes;

    if (status != RDT_OK) {
        fuzz_refused(status, &err);
        return;
    }
    fuzz_must(address.ss_family == AF_INET || address.ss_family == AF_INET6);
    bytes = wire_put_offer(&address, token, again);
    fuzz_must(bytes <= n && wire_read_offer(again, bytes, &address_again, token_again, &err) == RDT_OK);
    fuzz_must(memcmp(&address, &address_again, sizeof address) == 0);
    fuzz_must(memcmp(token, token_again, sizeof token) == 0);
}

static void greeting(const void *header, size_t n, size_t data_bytes, bool announced)
{
    struct greeting first, second;

    if (!wire_read_greeting(header, n, data_bytes, announced, &first))
        return;
    fuzz_must(data_bytes == 0 && !announced);
    wire_put_greeting(&second, first.secret, sizeof first.secret);
    fuzz_must(wire_greeting_conn_id(&first) == wire_greeting_conn_id(&second));
    fuzz_must(wire_read_greeting(&second, sizeof second, 0, false, &first));
    (void)conn_id_of(first.secret);
}

static void data_header(const void *header, size_t n)
{
    struct data_header first, raw, second;

    if (!wire_read_data(header, n, &first))
        return;
    wire_put_data(&raw, first.conn_id, first.transfer, first.chunk, first.bytes);
    fuzz_must(wire_read_data(&raw, sizeof raw, &second) && memcmp(&first, &second, sizeof first) == 0);
    fuzz_must(memcmp(&raw, header, n) == 0);
}

/* The bytes as a key, and as the UCX part of a key, whole and damaged. */
static void key(const uint8_t *bytes, size_t n, uint64_t offset)
{
    uint8_t made[RDT_KEY_MAX_BYTES];
    const void *rkey;
    uint64_t address;
    struct rdt_error err;
    size_t sealed_bytes = wire_put_key(1 << 20, 1000, bytes, n, made);

    if (wire_read_key(bytes, n, offset, 1, &address, &rkey, &err) == RDT_OK)
        fuzz_must((const uint8_t *)rkey > bytes && (const uint8_t *)rkey < bytes + n);
    if (!sealed_bytes)
        return;
    if (n > 0)
        fuzz_must((wire_read_key(made, sealed_bytes, offset, 10, &address, &rkey, &err) == RDT_OK) == (offset <= 990));
    if (n > 0 && offset <= 990)
        fuzz_must(address == (1 << 20) + offset && memcmp(rkey, bytes, n) == 0);
    made[offset % sealed_bytes] ^= 1;
    fuzz_must(wire_read_key(made, sealed_bytes, 0, 10, &address, &rkey, &err) != RDT_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *at = data, *end = data + bytes;
    uint8_t which = (uint8_t)fuzz_take(&at, end, 1);
    size_t data_bytes = fuzz_take(&at, end, 4), n = (size_t)(end - at);
    void *copy = fuzz_copy(at, n, false);

    if (which & 0x40)
        key(copy, n, data_bytes);
    else if (which % 3 == 0)
        offer(copy, n);
    else if (which % 3 == 1)
        greeting(copy, n, data_bytes, which & 0x80);
    else
        data_header(copy, n);
    free(copy);
    return 0;
}
