/* What goes over the wire between two ends of this transport, read and written without sockets: whatever
 * arrives is bytes of somebody, and is judged here before anything follows from it.
 *
 * An offer travels over the peer link and brings the secrets of one connection. On a connection of TCP
 * (inside TLS, or bare) the one who dialled says HELLO, the one who listened WELCOME; then only the former
 * speaks: HEADER, the chunk's bytes, TRAILER, and so on; a header of kind BYE is the last. All numbers are
 * little-endian.
 */
#ifndef BACKENDS_STREAM_WIRE_H
#define BACKENDS_STREAM_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "rdt_backend.h"

#define WIRE_VERSION "wire 2" /* ends that differ do not connect: the core compares it */

#define ID_BYTES 16
#define TOKEN_BYTES 16
#define KEY_BYTES 32

/* Fresh for every connection, never used again. */
struct secrets {
    uint8_t id[ID_BYTES];       /* says which of the listener's connections is meant; no secret: TLS sends it in clear */
    uint8_t key[KEY_BYTES];     /* pre-shared key of TLS */
    uint8_t proof[TOKEN_BYTES]; /* what the listener answers to */
    uint8_t token[TOKEN_BYTES]; /* what the dialler shows */
};

/* ---- the blob of an offer ---- */

/* The address is of AF_INET or AF_INET6. plain: the listener takes connections without TLS too. Returns how
 * many bytes it has. */
size_t wire_put_offer(const struct sockaddr_storage *address, const struct secrets *secrets, bool plain,
                      uint8_t blob_p[RDT_OFFER_MAX_BYTES]);

/* RDT_PROTOCOL: another length, another version, no address or no port. */
enum rdt_status wire_read_offer(const void *blob, size_t bytes, struct sockaddr_storage *address_p, struct secrets *secrets_p,
                                bool *plain_p, struct rdt_error *err);

/* ---- greetings ---- */

#define HELLO_BYTES (8 + ID_BYTES + TOKEN_BYTES + 8)
#define WELCOME_BYTES (8 + TOKEN_BYTES)
#define TLS_HANDSHAKE 0x16 /* the first byte of TLS, and of no HELLO */

void wire_put_hello(const struct secrets *secrets, uint32_t number, uint8_t hello_p[HELLO_BYTES]);
bool wire_read_hello(const uint8_t hello[HELLO_BYTES], uint8_t id_p[ID_BYTES], uint8_t token_p[TOKEN_BYTES],
                     uint32_t *number_p);
void wire_put_welcome(const struct secrets *secrets, uint8_t welcome_p[WELCOME_BYTES]);
bool wire_read_welcome(const uint8_t welcome[WELCOME_BYTES], uint8_t proof_p[TOKEN_BYTES]);

/* The time taken tells nothing of where they differ. */
bool wire_same_secret(const uint8_t *a, const uint8_t *b, size_t bytes);

/* Which numbers of one secret were used: each at most once, and none that lies 64 behind the highest. */
struct numbers {
    uint64_t below;  /* all numbers from here on are unused */
    uint64_t behind; /* bit i: below - 1 - i was used */
};
bool numbers_take(struct numbers *numbers, uint32_t number); /* false: it was used, or is too old to tell */

/* ---- chunks ---- */

#define HEADER_BYTES 32
#define TRAILER_BYTES 8
#define MAX_CHUNK_BYTES ((uint64_t)1 << 40)

enum header_kind { HEADER_CHUNK = 1, HEADER_BYE = 2 };

struct header {
    enum header_kind kind;
    uint64_t transfer, chunk, bytes; /* 0 of a BYE */
};

void wire_put_header(const struct header *header, uint8_t header_p[HEADER_BYTES]);
bool wire_read_header(const uint8_t bytes[HEADER_BYTES], struct header *header_p); /* false: it is none */

/* whole: the bytes before it are the chunk's, all of them; else the sender gave up on the way and filled up
 * with zeros. */
void wire_put_trailer(bool whole, uint8_t trailer_p[TRAILER_BYTES]);
bool wire_read_trailer(const uint8_t bytes[TRAILER_BYTES], bool *whole_p);

#endif
