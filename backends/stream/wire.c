/* SPDX-License-Identifier: Apache-2.0 */
/* See wire.h. */
#include "backends/stream/wire.h"

#include <endian.h>
#include <string.h>

#include "backends/common/wire_address.h"

/* ---- offers ---- */

struct offer {
    uint8_t version;
    uint8_t plain;
    uint8_t reserved[2];
    struct wire_address address;
    struct secrets secrets;
};
_Static_assert(sizeof(struct offer) == 24 + sizeof(struct secrets), "the blob has no padding");
_Static_assert(sizeof(struct secrets) == ID_BYTES + 2 * TOKEN_BYTES + KEY_BYTES, "nor do the secrets");

#define OFFER_VERSION 2

size_t wire_put_offer(const struct sockaddr_storage *address, const struct secrets *secrets, bool plain,
                      uint8_t blob_p[RDT_OFFER_MAX_BYTES])
{
    struct offer offer = {.version = OFFER_VERSION, .plain = plain, .address = wire_address_of(address), .secrets = *secrets};

    memcpy(blob_p, &offer, sizeof offer);
    explicit_bzero(&offer, sizeof offer);
    return sizeof(struct offer);
}

enum rdt_status wire_read_offer(const void *blob, size_t bytes, struct sockaddr_storage *address_p, struct secrets *secrets_p,
                                bool *plain_p, struct rdt_error *err)
{
    struct offer offer;

    if (bytes != sizeof offer)
        return rdt_error_set(err, RDT_PROTOCOL, "the peer's offer has %zu bytes instead of %zu", bytes, sizeof offer);
    memcpy(&offer, blob, sizeof offer);
    if (offer.version != OFFER_VERSION)
        return rdt_error_set(err, RDT_PROTOCOL, "the peer's offer has version %u, but this end supports only %u", offer.version,
                             OFFER_VERSION);
    if (!wire_address_read(&offer.address, address_p))
        return rdt_error_set(err, RDT_PROTOCOL, "the peer's offer contains no address");
    *secrets_p = offer.secrets;
    *plain_p = offer.plain == 1;
    explicit_bzero(&offer, sizeof offer);
    return RDT_OK;
}

/* ---- greetings ---- */

static const char hello_magic[8] = {'r', 'd', 't', 's', 'h', 'i', ' ', '1'};
static const char welcome_magic[8] = {'r', 'd', 't', 's', 'o', 'k', ' ', '1'};

static void put_u32(uint8_t *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof value);
}

static uint32_t read_u32(const uint8_t *at)
{
    uint32_t value;

    memcpy(&value, at, sizeof value);
    return le32toh(value);
}

static void put_u64(uint8_t *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof value);
}

static uint64_t read_u64(const uint8_t *at)
{
    uint64_t value;

    memcpy(&value, at, sizeof value);
    return le64toh(value);
}

#define HELLO_TAKES ((uint64_t)1 << 32)

void wire_put_hello(const struct secrets *secrets, uint32_t number, bool takes, uint8_t hello_p[HELLO_BYTES])
{
    memcpy(hello_p, hello_magic, 8);
    memcpy(hello_p + 8, secrets->id, ID_BYTES);
    memcpy(hello_p + 8 + ID_BYTES, secrets->token, TOKEN_BYTES);
    put_u64(hello_p + 8 + ID_BYTES + TOKEN_BYTES, number | (takes ? HELLO_TAKES : 0));
}

bool wire_read_hello(const uint8_t hello[HELLO_BYTES], uint8_t id_p[ID_BYTES], uint8_t token_p[TOKEN_BYTES], uint32_t *number_p,
                     bool *takes_p)
{
    uint64_t said = read_u64(hello + 8 + ID_BYTES + TOKEN_BYTES), number = said & ~HELLO_TAKES;

    if (memcmp(hello, hello_magic, 8) || number >= UINT32_MAX)
        return false;
    memcpy(id_p, hello + 8, ID_BYTES);
    memcpy(token_p, hello + 8 + ID_BYTES, TOKEN_BYTES);
    *number_p = (uint32_t)number;
    *takes_p = number != said;
    return true;
}

void wire_put_welcome(const struct secrets *secrets, uint8_t welcome_p[WELCOME_BYTES])
{
    memcpy(welcome_p, welcome_magic, 8);
    memcpy(welcome_p + 8, secrets->proof, TOKEN_BYTES);
}

bool wire_read_welcome(const uint8_t welcome[WELCOME_BYTES], uint8_t proof_p[TOKEN_BYTES])
{
    memcpy(proof_p, welcome + 8, TOKEN_BYTES);
    return !memcmp(welcome, welcome_magic, 8);
}

bool wire_same_secret(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    volatile uint8_t difference = 0;

    for (size_t i = 0; i < bytes; i++)
        difference |= a[i] ^ b[i];
    return !difference;
}

bool numbers_take(struct numbers *numbers, uint32_t number)
{
    uint64_t *word = &numbers->used[number % NUMBERS_BEHIND / 64], bit = (uint64_t)1 << number % 64;

    if (numbers->below > 0 && number >= numbers->below + NUMBERS_BEHIND)
        return false;
    if (number >= numbers->below + NUMBERS_BEHIND)
        memset(numbers->used, 0, sizeof numbers->used);
    else
        for (uint64_t skipped = numbers->below; skipped <= number;
             skipped++) /* their bits are of numbers that are too low now */
            numbers->used[skipped % NUMBERS_BEHIND / 64] &= ~((uint64_t)1 << skipped % 64);
    if (number >= numbers->below)
        numbers->below = (uint64_t)number + 1;
    else if (numbers->below - 1 - number >= NUMBERS_BEHIND || *word & bit)
        return false;
    *word |= bit;
    return true;
}

/* ---- chunks ---- */

#define HEADER_MAGIC 0x63747364u
#define TRAILER_MAGIC 0x74747364u

void wire_put_header(const struct header *header, uint8_t header_p[HEADER_BYTES])
{
    put_u32(header_p, HEADER_MAGIC);
    put_u32(header_p + 4, (uint32_t)header->kind);
    put_u64(header_p + 8, header->transfer);
    put_u64(header_p + 16, header->chunk);
    put_u64(header_p + 24, header->bytes);
}

bool wire_read_header(const uint8_t bytes[HEADER_BYTES], struct header *header_p)
{
    uint32_t kind = read_u32(bytes + 4);

    *header_p = (struct header){.kind = (enum header_kind)kind,
                                .transfer = read_u64(bytes + 8),
                                .chunk = read_u64(bytes + 16),
                                .bytes = read_u64(bytes + 24)};
    if (read_u32(bytes) != HEADER_MAGIC)
        return false;
    if (kind == HEADER_BYE)
        return !header_p->transfer && !header_p->chunk && !header_p->bytes;
    return kind == HEADER_CHUNK && header_p->bytes <= MAX_CHUNK_BYTES;
}

void wire_put_trailer(bool whole, uint8_t trailer_p[TRAILER_BYTES])
{
    put_u32(trailer_p, TRAILER_MAGIC);
    put_u32(trailer_p + 4, whole);
}

bool wire_read_trailer(const uint8_t bytes[TRAILER_BYTES], bool *whole_p)
{
    uint32_t whole = read_u32(bytes + 4);

    *whole_p = whole == 1;
    return read_u32(bytes) == TRAILER_MAGIC && whole <= 1;
}
