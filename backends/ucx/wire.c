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

/*  | sum | address | bytes | rkey |                                            one slice
 *  | sum | address |   0   | bytes | slice_bytes | length, rkey | ... |         several */
struct key {      /* little-endian */
    uint64_t sum; /* of everything that follows it */
    uint64_t address, bytes;
};

struct slices { /* little-endian */
    uint64_t bytes, slice_bytes;
};

#define LENGTH_BYTES 2u /* of the length of an rkey, little-endian */

/* Detects accidental damage. It need not detect forgery, because keys come from peers that are trusted. */
static uint64_t sum_of(const uint8_t *at, size_t bytes)
{
    uint64_t sum = 0xcbf29ce484222325u;

    for (size_t i = 0; i < bytes; i++)
        sum = (sum ^ at[i]) * 0x100000001b3u;
    return sum;
}

size_t wire_put_key(uint64_t address, uint64_t bytes, uint64_t slice_bytes, const struct wire_rkey *rkeys, size_t n,
                    uint8_t key_p[RDT_KEY_MAX_BYTES])
{
    struct key key = {.address = htole64(address), .bytes = n == 1 ? htole64(bytes) : 0};
    const struct slices slices = {.bytes = htole64(bytes), .slice_bytes = htole64(slice_bytes)};
    size_t at = sizeof key, length_bytes = n == 1 ? 0 : LENGTH_BYTES;

    if (n > 1) {
        memcpy(key_p + at, &slices, sizeof slices);
        at += sizeof slices;
    }
    for (size_t i = 0; i < n; i++) {
        const uint8_t length[LENGTH_BYTES] = {(uint8_t)rkeys[i].bytes, (uint8_t)(rkeys[i].bytes >> 8)};

        if (rkeys[i].bytes > RDT_KEY_MAX_BYTES - at || length_bytes > RDT_KEY_MAX_BYTES - at - rkeys[i].bytes)
            return 0;
        memcpy(key_p + at, length, length_bytes);
        memcpy(key_p + at + length_bytes, rkeys[i].data, rkeys[i].bytes);
        at += length_bytes + rkeys[i].bytes;
    }
    memcpy(key_p, &key, sizeof key);
    key.sum = htole64(sum_of(key_p + sizeof key.sum, at - sizeof key.sum));
    memcpy(key_p, &key.sum, sizeof key.sum);
    return at;
}

/* Returns what follows the rkey. NULL: it does not end before `end`, or has no bytes. */
static const uint8_t *skip_rkey(const uint8_t *at, const uint8_t *end)
{
    size_t bytes;

    if ((size_t)(end - at) <= LENGTH_BYTES)
        return NULL;
    bytes = at[0] | (size_t)at[1] << 8;
    at += LENGTH_BYTES;
    return bytes > 0 && bytes <= (size_t)(end - at) ? at + bytes : NULL;
}

static bool read_slices(const uint8_t *at, const uint8_t *end, struct wire_key *key_p)
{
    struct slices slices;
    uint64_t n;

    if ((size_t)(end - at) < sizeof slices)
        return false;
    memcpy(&slices, at, sizeof slices);
    key_p->bytes = le64toh(slices.bytes);
    key_p->slice_bytes = le64toh(slices.slice_bytes);
    if (key_p->slice_bytes == 0 || key_p->slice_bytes >= key_p->bytes)
        return false;
    n = (key_p->bytes - 1) / key_p->slice_bytes + 1;
    at += sizeof slices;
    key_p->rkeys = at;
    while (n > 0 && at) {
        at = skip_rkey(at, end);
        n--;
    }
    return at == end;
}

enum rdt_status wire_read_key(const void *bytes_of_key, size_t key_bytes, uint64_t offset, uint64_t bytes,
                              struct wire_key *key_p, struct rdt_error *err)
{
    const uint8_t *at = bytes_of_key, *end = at + key_bytes;
    struct wire_key read;
    struct key key;

    if (key_bytes <= sizeof key || key_bytes > RDT_KEY_MAX_BYTES)
        return rdt_error_set(err, RDT_PROTOCOL, "the owner's key has %zu bytes", key_bytes);
    memcpy(&key, at, sizeof key);
    if (le64toh(key.sum) != sum_of(at + sizeof key.sum, key_bytes - sizeof key.sum))
        return rdt_error_set(err, RDT_PROTOCOL, "the owner's key is damaged");
    at += sizeof key;
    read = (struct wire_key){le64toh(key.address), le64toh(key.bytes), le64toh(key.bytes), at};
    if (read.bytes == 0 && !read_slices(at, end, &read))
        return rdt_error_set(err, RDT_PROTOCOL, "the owner's key of memory in slices is malformed");
    if (offset > read.bytes || bytes > read.bytes - offset)
        return rdt_error_set(err, RDT_PROTOCOL, "the owner's memory has %llu bytes, too few for %llu at offset %llu",
                             (unsigned long long)read.bytes, (unsigned long long)bytes, (unsigned long long)offset);
    *key_p = read;
    return RDT_OK;
}

const void *wire_rkey_at(const struct wire_key *key, uint64_t offset, uint64_t *bytes_p)
{
    uint64_t slice = offset / key->slice_bytes, left = key->slice_bytes - offset % key->slice_bytes;
    const uint8_t *at = key->rkeys;

    *bytes_p = left < key->bytes - offset ? left : key->bytes - offset;
    if (key->slice_bytes == key->bytes) /* the rkey is the rest of the key */
        return at;
    for (; slice > 0; slice--)
        at += LENGTH_BYTES + (at[0] | (size_t)at[1] << 8);
    return at + LENGTH_BYTES;
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
