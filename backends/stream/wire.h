/* SPDX-License-Identifier: Apache-2.0 */
/* The formats of what two ends of this transport send each other, read and written without sockets. The bytes that arrive
 * may be anybody's, so every function that reads them also checks them.
 *
 * An offer travels over the peer link and contains the secrets of one connection. On a channel (inside TLS, or unencrypted)
 * the dialler sends HELLO and the listener answers WELCOME. After that only one end sends, the dialler unless its HELLO says
 * that it takes: HEADER, the chunk's bytes, TRAILER, and so on; a header of kind BYE is the last. All numbers are
 * little-endian.
 */
#ifndef BACKENDS_STREAM_WIRE_H
#define BACKENDS_STREAM_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "rdt_backend.h"

#define WIRE_VERSION "wire 3" /* the core does not connect ends that differ */

#define ID_BYTES 16
#define TOKEN_BYTES 16
#define KEY_BYTES 32

/* Fresh for every connection, never used again. */
struct secrets {
    uint8_t id[ID_BYTES];       /* names the listener's connection; not a secret, since TLS sends it in clear */
    uint8_t key[KEY_BYTES];     /* pre-shared key of TLS */
    uint8_t proof[TOKEN_BYTES]; /* the listener shows it in WELCOME */
    uint8_t token[TOKEN_BYTES]; /* the dialler shows it in HELLO */
};

/* ---- the blob of an offer ---- */

/* Writes an offer and returns its length in bytes. The address is of AF_INET or AF_INET6. plain: the listener also accepts
 * connections without TLS. */
size_t wire_put_offer(const struct sockaddr_storage *address, const struct secrets *secrets, bool plain,
                      uint8_t blob_p[RDT_OFFER_MAX_BYTES]);

/* PROTOCOL: the blob has another length or version, or no address or port. */
enum rdt_status wire_read_offer(const void *blob, size_t bytes, struct sockaddr_storage *address_p, struct secrets *secrets_p,
                                bool *plain_p, struct rdt_error *err);

/* ---- greetings ---- */

#define HELLO_BYTES (8 + ID_BYTES + TOKEN_BYTES + 8)
#define WELCOME_BYTES (8 + TOKEN_BYTES)
#define TLS_HANDSHAKE 0x16 /* the first byte of TLS, and of no HELLO */

/* takes: the dialler takes the chunks of the channel, and the listener sends them. */
void wire_put_hello(const struct secrets *secrets, uint32_t number, bool takes, uint8_t hello_p[HELLO_BYTES]);
bool wire_read_hello(const uint8_t hello[HELLO_BYTES], uint8_t id_p[ID_BYTES], uint8_t token_p[TOKEN_BYTES], uint32_t *number_p,
                     bool *takes_p);
void wire_put_welcome(const struct secrets *secrets, uint8_t welcome_p[WELCOME_BYTES]);
bool wire_read_welcome(const uint8_t welcome[WELCOME_BYTES], uint8_t proof_p[TOKEN_BYTES]);

/* Compares in a time that does not depend on where the two differ. */
bool wire_same_secret(const uint8_t *a, const uint8_t *b, size_t bytes);

/* The channel numbers that were used with one token: each may be used once, and only if it is less than NUMBERS_BEHIND from the
 * highest. The dialler begins with a random one, so another process that shows the token is refused unless it was first. One
 * greeting may be completed after many later ones, when its thread stands still: with a small rekey_bytes a busy peer replaces
 * hundreds of channels in a second. */
#define NUMBERS_BEHIND 8192u /* a multiple of 64 */
#define NUMBERS_BEGIN_BELOW (UINT32_C(1) << 31)

struct numbers {
    uint64_t below; /* every used number is below this one; 0: none was used */
    /* bit n % NUMBERS_BEHIND: number n was used, of the numbers that are less than NUMBERS_BEHIND below */
    uint64_t used[NUMBERS_BEHIND / 64u];
};

/* Marks the number as used. False: it was used before, is too low to tell, or is not of the same dialler. */
bool numbers_take(struct numbers *numbers, uint32_t number);

/* ---- chunks ---- */

#define HEADER_BYTES 32
#define TRAILER_BYTES 8
#define MAX_CHUNK_BYTES ((uint64_t)1 << 40)

enum header_kind { HEADER_CHUNK = 1, HEADER_BYE = 2 };

struct header {
    enum header_kind kind;
    uint64_t transfer, chunk, bytes; /* all 0 for a BYE */
};

void wire_put_header(const struct header *header, uint8_t header_p[HEADER_BYTES]);
bool wire_read_header(const uint8_t bytes[HEADER_BYTES], struct header *header_p); /* false: it is malformed */

/* whole: all bytes of the chunk precede the trailer; otherwise the sender's operation ended early, and zeros stand for the
 * rest. */
void wire_put_trailer(bool whole, uint8_t trailer_p[TRAILER_BYTES]);
bool wire_read_trailer(const uint8_t bytes[TRAILER_BYTES], bool *whole_p);

#endif
