/* What goes over the wire between two ends of this transport, read and written without UCX: whatever arrives
 * is bytes of somebody, and is judged here before anything follows from it. */
#ifndef BACKENDS_UCX_WIRE_H
#define BACKENDS_UCX_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "rdt_backend.h"

#define TOKEN_BYTES 16
#define MAX_ENGINES 8u

/* Both ends can tell the number from the token; it tags each message of the session. */
uint64_t session_of(const uint8_t token[TOKEN_BYTES]);

/* ---- the blob of an offer: where each of a node's engines listens, and the one-time token that serves once at each ---- */

/* The addresses are of AF_INET or AF_INET6. Returns how many bytes the blob has. */
size_t wire_put_offer(const struct sockaddr_storage *addresses, unsigned n, const uint8_t token[TOKEN_BYTES],
                      uint8_t blob_p[RDT_OFFER_MAX_BYTES]);

/* RDT_PROTOCOL: of another length, another version, an address that is none or has no port. */
enum rdt_status wire_read_offer(const void *blob, size_t bytes, struct sockaddr_storage addresses_p[MAX_ENGINES], unsigned *n_p,
                                uint8_t token_p[TOKEN_BYTES], struct rdt_error *err);

/* ---- keys of memory that the peer may read ---- */

/* Returns how many bytes the key has; 0: UCX's is too long. */
size_t wire_put_key(uint64_t address, uint64_t bytes, const void *rkey, size_t rkey_bytes, uint8_t key_p[RDT_KEY_MAX_BYTES]);

/* RDT_PROTOCOL: it is none of those, or was changed on its way (UCX believes what it unpacks), or the range
 * is not all in the memory. The rkey points into the key. */
enum rdt_status wire_read_key(const void *key, size_t key_bytes, uint64_t offset, uint64_t bytes, uint64_t *address_p,
                              const void **rkey_p, struct rdt_error *err);

/* ---- headers of active messages ---- */

struct greeting { /* HELLO: secret is the one-time token of the one who listens. WELCOME: its session number, then zeros */
    uint8_t version;
    uint8_t reserved[7];
    uint8_t secret[TOKEN_BYTES];
    uint8_t dialler
        [TOKEN_BYTES]; /* HELLO: the same at each engine: whoever came first with the token has all of them. Else zeros */
};

/* dialler: NULL for a WELCOME. */
void wire_put_greeting(struct greeting *greeting_p, const void *secret, size_t secret_bytes, const uint8_t *dialler);

/* A greeting has no data, and comes with its first word. */
bool wire_read_greeting(const void *header, size_t header_bytes, size_t data_bytes, bool announced,
                        struct greeting *greeting_p);
uint64_t wire_greeting_session(const struct greeting *greeting); /* of a WELCOME */

struct data_header {  /* of a data message; little-endian */
    uint64_t session; /* session_of() the receiver's token */
    uint64_t transfer;
    uint64_t chunk;
    uint64_t bytes;
};

void wire_put_data(struct data_header *header_p, uint64_t session, uint64_t transfer, uint64_t chunk, uint64_t bytes);

/* In this machine's order; false: it is not as long as one. */
bool wire_read_data(const void *header, size_t header_bytes, struct data_header *header_p);

#endif
