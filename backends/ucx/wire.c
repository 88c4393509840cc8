/* SPDX-License-Identifier: Apache-2.0 */
/* See wire.h. */
#include "backends/ucx/wire.h"

#include <endian.h>
#include <string.h>

#include "backends/common/wire_address.h"

struct offer {
    uint8_t version;
    uint8_t n; /* addresses that follow; then comes the token */
    uint8_t reserved[2];
};
_Static_assert(sizeof(struct offer) + sizeof(struct wire_address) + TOKEN_BYTES <= RDT_OFFER_MAX_BYTES, "an offer fits");

#define OFFER_VERSION 2
#define GREETING_VERSION 2

uint64_t conn_id_of(const uint8_t token[TOKEN_BYTES])
{
    uint64_t words[2];

    memcpy(words, token, sizeof words);
    words[0] = le64toh(words[0]) ^ (le64toh(words[1]) * 0x9e3779b97f4a7c15u);
    words[0] = (words[0] ^ words[0] >> 32) * 0xd6e8feb86659fd93u;
    return words[0] ^ words[0] >> 32;
}

/* ---- offers ---- */

size_t wire_put_offer(const struct sockaddr_storage *address, const uint8_t token[TOKEN_BYTES],
                      uint8_t blob_p[RDT_OFFER_MAX_BYTES])
{
    const struct offer offer = {.version = OFFER_VERSION, .n = 1};
    const struct wire_address wire = wire_address_of(address);
    uint8_t *at = blob_p;

    memcpy(at, &offer, sizeof offer);
    at += sizeof offer;
    memcpy(at, &wire, sizeof wire);
    at += sizeof wire;
    memcpy(at, token, TOKEN_BYTES);
    return (size_t)(at - blob_p) + TOKEN_BYTES;
}

enum rdt_status wire_read_offer(const void *blob, size_t bytes, struct sockaddr_storage *address_p,
                                uint8_t token_p[TOKEN_BYTES], struct rdt_error *err)
{
    const uint8_t *at = blob;
    struct wire_address wire;
    struct offer offer;

    if (bytes < sizeof offer)
        return rdt_error_set(err, RDT_PROTOCOL, "the peer's offer has %zu bytes", bytes);
    memcpy(&offer, at, sizeof offer);
    if (offer.version != OFFER_VERSION)
        return rdt_error_set(err, RDT_PROTOCOL, "the peer's offer has version %u, but this end supports only %u", offer.version,
                             OFFER_VERSION);
    if (!offer.n || bytes != sizeof offer + offer.n * sizeof wire + TOKEN_BYTES)
        return rdt_error_set(err, RDT_PROTOCOL, "the peer's offer of %u addresses has %zu bytes", offer.n, bytes);
    memcpy(&wire, at + sizeof offer, sizeof wire);
    if (!wire_address_read(&wire, address_p))
        return rdt_error_set(err, RDT_PROTOCOL, "the peer's offer contains a malformed address");
    memcpy(token_p, at + bytes - TOKEN_BYTES, TOKEN_BYTES);
    return RDT_OK;
}

/* ---- keys ---- */

struct key {      /* little-endian; UCX's own key follows */
    uint64_t sum; /* of everything that follows it */
    uint64_t address, bytes;
};

/* Detects accidental damage. It need not detect forgery, because keys come from peers that are trusted. */
static uint64_t sum_of(const uint8_t *at, size_t bytes)
{
    uint64_t sum = 0xcbf29ce484222325u;

    for (size_t i = 0; i < bytes; i++)
        sum = (sum ^ at[i]) * 0x100000001b3u;
    return sum;
}

size_t wire_put_key(uint64_t address, uint64_t bytes, const void *rkey, size_t rkey_bytes, uint8_t key_p[RDT_KEY_MAX_BYTES])
{
    struct key key = {.address = htole64(address), .bytes = htole64(bytes)};

    if (rkey_bytes > RDT_KEY_MAX_BYTES - sizeof key)
        return 0;
    memcpy(key_p, &key, sizeof key);
    memcpy(key_p + sizeof key, rkey, rkey_bytes);
    key.sum = htole64(sum_of(key_p + sizeof key.sum, sizeof key - sizeof key.sum + rkey_bytes));
    memcpy(key_p, &key.sum, sizeof key.sum);
    return sizeof key + rkey_bytes;
}

enum rdt_status wire_read_key(const void *bytes_of_key, size_t key_bytes, uint64_t offset, uint64_t bytes, uint64_t *address_p,
                              const void **rkey_p, struct rdt_error *err)
{
    const uint8_t *at = bytes_of_key;
    struct key key;

    if (key_bytes <= sizeof key || key_bytes > RDT_KEY_MAX_BYTES)
        return rdt_error_set(err, RDT_PROTOCOL, "the owner's key has %zu bytes", key_bytes);
    memcpy(&key, at, sizeof key);
    if (le64toh(key.sum) != sum_of(at + sizeof key.sum, key_bytes - sizeof key.sum))
        return rdt_error_set(err, RDT_PROTOCOL, "the owner's key is damaged");
    if (offset > le64toh(key.bytes) || bytes > le64toh(key.bytes) - offset)
        return rdt_error_set(err, RDT_PROTOCOL, "the owner's memory has %llu bytes, too few for %llu at offset %llu",
                             (unsigned long long)le64toh(key.bytes), (unsigned long long)bytes, (unsigned long long)offset);
    *address_p = le64toh(key.address) + offset;
    *rkey_p = at + sizeof key;
    return RDT_OK;
}

/* ---- headers ---- */

void wire_put_greeting(struct greeting *greeting_p, const void *secret, size_t secret_bytes)
{
    memset(greeting_p, 0, sizeof *greeting_p);
    greeting_p->version = GREETING_VERSION;
    memcpy(greeting_p->secret, secret, secret_bytes);
}

bool wire_read_greeting(const void *header, size_t header_bytes, size_t data_bytes, bool announced, struct greeting *greeting_p)
{
    if (header_bytes != sizeof *greeting_p || data_bytes || announced)
        return false;
    memcpy(greeting_p, header, sizeof *greeting_p);
    return greeting_p->version == GREETING_VERSION;
}

uint64_t wire_greeting_conn_id(const struct greeting *greeting)
{
    uint64_t conn_id;

    memcpy(&conn_id, greeting->secret, sizeof conn_id);
    return le64toh(conn_id);
}

void wire_put_data(struct data_header *header_p, uint64_t conn_id, uint64_t transfer, uint64_t chunk, uint64_t bytes)
{
    *header_p = (struct data_header){
        .conn_id = htole64(conn_id), .transfer = htole64(transfer), .chunk = htole64(chunk), .bytes = htole64(bytes)};
}

bool wire_read_data(const void *header, size_t header_bytes, struct data_header *header_p)
{
    struct data_header raw;

    if (header_bytes != sizeof raw)
        return false;
    memcpy(&raw, header, sizeof raw);
    *header_p = (struct data_header){.conn_id = le64toh(raw.conn_id),
                                     .transfer = le64toh(raw.transfer),
                                     .chunk = le64toh(raw.chunk),
                                     .bytes = le64toh(raw.bytes)};
    return true;
}
