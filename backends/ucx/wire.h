/* SPDX-License-Identifier: Apache-2.0 */
/* The formats of what two ends of this transport send each other, read and written without UCX. The bytes that arrive may be
 * anybody's, so every function that reads them also checks them. */
#ifndef BACKENDS_UCX_WIRE_H
#define BACKENDS_UCX_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "rdt_backend.h"

#define TOKEN_BYTES 16

/* Returns the number that both ends derive from the token, and that tags each message of the connection. */
uint64_t conn_id_of(const uint8_t token[TOKEN_BYTES]);

/* ---- the blob of an offer: the address of a node, and a token that is valid once ---- */

/* Writes an offer and returns its length in bytes. The address is of AF_INET or AF_INET6. */
size_t wire_put_offer(const struct sockaddr_storage *address, const uint8_t token[TOKEN_BYTES],
                      uint8_t blob_p[RDT_OFFER_MAX_BYTES]);

/* Reads the first address: an earlier version may offer several, of which it uses as many as this end offers. PROTOCOL: the
 * offer has another length or version, or an address is malformed or has no port. */
enum rdt_status wire_read_offer(const void *blob, size_t bytes, struct sockaddr_storage *address_p,
                                uint8_t token_p[TOKEN_BYTES], struct rdt_error *err);

/* ---- keys of memory that the peer may read ---- */

#define WIRE_MAX_SLICES 128u

struct wire_rkey { /* UCX's own key of a registration */
    void *data;
    size_t bytes;
};

struct wire_key {
    uint64_t address, bytes; /* of the memory */
    uint64_t slice_bytes;    /* of each slice but the last, which has the rest; each has an rkey */
    const uint8_t *rkeys;    /* in the key that was read */
};

/* Writes a key of memory that is registered in slices, one for each of the rkeys [n], 1 to WIRE_MAX_SLICES, and returns its
 * length in bytes; 0: the rkeys are too long. A node of an earlier version reads keys of one slice only, and refuses others
 * with the sentence that the owner's memory has 0 bytes. */
size_t wire_put_key(uint64_t address, uint64_t bytes, uint64_t slice_bytes, const struct wire_rkey *rkeys, size_t n,
                    uint8_t key_p[RDT_KEY_MAX_BYTES]);

/* PROTOCOL: the key is malformed or damaged, which UCX does not check when it unpacks an rkey, or the range is not within the
 * memory. *key_p points into the key. */
enum rdt_status wire_read_key(const void *key, size_t key_bytes, uint64_t offset, uint64_t bytes, struct wire_key *key_p,
                              struct rdt_error *err);

/* Returns the rkey of the slice with that offset, which lies within the memory. *bytes_p: the bytes of the slice from there. */
const void *wire_rkey_at(const struct wire_key *key, uint64_t offset, uint64_t *bytes_p);

/* ---- headers of active messages ---- */

struct greeting {
    uint8_t version;
    uint8_t reserved[7];
    uint8_t secret[TOKEN_BYTES]; /* HELLO: the listener's token. WELCOME: its conn_id, then zeros */
    uint8_t unused[TOKEN_BYTES]; /* an earlier version names the dialler here; zeros */
};

void wire_put_greeting(struct greeting *greeting_p, const void *secret, size_t secret_bytes);

/* False: it is malformed. A greeting has no data, and is not announced before it is sent. */
bool wire_read_greeting(const void *header, size_t header_bytes, size_t data_bytes, bool announced,
                        struct greeting *greeting_p);
uint64_t wire_greeting_conn_id(const struct greeting *greeting); /* the conn_id in a WELCOME */

struct data_header {  /* of a data message; little-endian */
    uint64_t conn_id; /* conn_id_of() of the receiver's token */
    uint64_t transfer;
    uint64_t chunk;
    uint64_t bytes;
};

void wire_put_data(struct data_header *header_p, uint64_t conn_id, uint64_t transfer, uint64_t chunk, uint64_t bytes);

/* Converts to this machine's byte order. False: the length is wrong. */
bool wire_read_data(const void *header, size_t header_bytes, struct data_header *header_p);

#endif
