/* SPDX-License-Identifier: Apache-2.0 */
/* TLS 1.3 with a pre-shared key, between memory and memory: ciphertext goes in, plaintext comes out, and the reverse.
 * Owns the key and OpenSSL's state; knows no socket, and never blocks.
 *
 * Refuses everything but what two nodes with the same key need: no certificates, no earlier version, no
 * session tickets, no early data, one cipher suite, a fresh Diffie-Hellman exchange each time (a key that
 * leaks later opens no old recording).
 */
#ifndef DAEMON_TLS_H
#define DAEMON_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdt_status.h"

#define TLS_RECORD_BYTES 16384u /* plaintext of one record, at most */

struct tls_context; /* the key, and what all connections share */

/* Reads the key: the file's content without trailing white space. INVALID: shorter than 16 bytes, not a
 * file, or readable by others; SYSTEM: it cannot be read. */
enum rdt_status tls_context_create(const char *key_file, struct tls_context **context_p, struct rdt_error *err);
void tls_context_destroy(struct tls_context *context); /* its connections keep what they need of it */
bool tls_context_same_key(const struct tls_context *a, const struct tls_context *b);

struct tls {
    struct tls_context *context; /* a reference */
    struct ssl_st *ssl;
    struct bio_st *in, *out; /* ciphertext; owned by ssl */
    uint64_t records;        /* written with the present key */
};

/* The end that accepted the connection is the server. Error: NO_MEMORY. */
enum rdt_status tls_init(struct tls *tls, struct tls_context *context, bool server, struct rdt_error *err);
void tls_fini(struct tls *tls); /* accepts a zeroed struct */

/* Adds ciphertext from the other end. Error: NO_MEMORY. */
enum rdt_status tls_feed(struct tls *tls, const void *bytes, size_t n, struct rdt_error *err);

/* RDT_OK: the other end has proved that it holds the key; RDT_AGAIN: feed more; RDT_DENIED: it has not. Each
 * time there may be something to send. */
enum rdt_status tls_handshake(struct tls *tls, struct rdt_error *err);

/* After the handshake. RDT_OK: *n_p > 0 bytes; RDT_AGAIN: no whole record yet; RDT_DISCONNECTED: the other
 * end has ended the stream; RDT_PROTOCOL: a record was forged or damaged. */
enum rdt_status tls_read(struct tls *tls, void *buf, size_t size, size_t *n_p, struct rdt_error *err);

/* After the handshake: encrypts all of it. NO_MEMORY, INTERNAL. */
enum rdt_status tls_write(struct tls *tls, const void *bytes, size_t n, struct rdt_error *err);

/* tls_pending: the number of ciphertext bytes to send. tls_take moves up to `size` of them out. */
size_t tls_pending(const struct tls *tls);
size_t tls_take(struct tls *tls, void *buf, size_t size);

#endif
