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

static void read_as_key(const uint8_t *bytes, size_t n, uint64_t offset)
{
    struct wire_key key;
    struct rdt_error err;
    uint64_t left;

    if (wire_read_key(bytes, n, offset, 1, &key, &err) != RDT_OK)
        return;
    fuzz_must(offset < key.bytes && key.slice_bytes > 0);
    const uint8_t *rkey = wire_rkey_at(&key, offset, &left);
    fuzz_must(rkey > bytes && rkey < bytes + n && left > 0 && left <= key.slice_bytes && left <= key.bytes - offset);
}

/* The bytes as UCX's part of a key of memory of 1000 bytes, or of each of two slices of it, whole and damaged. */
static void put_as_key(uint8_t *bytes, size_t n, uint64_t offset, unsigned slices)
{
    const uint64_t slice_bytes = slices == 1 ? 1000 : 600;
    const struct wire_rkey rkeys[2] = {{bytes, n}, {bytes, n}};
    uint8_t made[RDT_KEY_MAX_BYTES];
    size_t sealed_bytes = wire_put_key(1 << 20, 1000, slice_bytes, rkeys, slices, made);
    struct wire_key key;
    struct rdt_error err;
    uint64_t left;

    if (!sealed_bytes)
        return;
    if (n > 0)
        fuzz_must((wire_read_key(made, sealed_bytes, offset, 10, &key, &err) == RDT_OK) == (offset <= 990));
    if (n > 0 && offset <= 990) {
        fuzz_must(key.address == 1 << 20 && memcmp(wire_rkey_at(&key, offset, &left), bytes, n) == 0);
        fuzz_must(left == (offset < slice_bytes ? slice_bytes : 1000) - offset);
    }
    made[offset % sealed_bytes] ^= 1;
    fuzz_must(wire_read_key(made, sealed_bytes, 0, 10, &key, &err) != RDT_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *at = data, *end = data + bytes;
    uint8_t which = (uint8_t)fuzz_take(&at, end, 1);
    size_t data_bytes = fuzz_take(&at, end, 4), n = (size_t)(end - at);
    void *copy = fuzz_copy(at, n, false);

    if (which & 0x40) {
        read_as_key(copy, n, data_bytes);
        put_as_key(copy, n, data_bytes, 1);
        put_as_key(copy, n, data_bytes, 2);
    } else if (which % 3 == 0) {
        offer(copy, n);
    } else if (which % 3 == 1) {
        greeting(copy, n, data_bytes, which & 0x80);
    } else {
        data_header(copy, n);
    }
    free(copy);
    return 0;
}
