/* SPDX-License-Identifier: Apache-2.0 */
/* TLS 1.3 on memory buffers: ciphertext goes in and plaintext comes out, and the reverse. Both ends prove their identity, by a
 * key that all nodes share (tls.c) or by certificates (tls_certificate.c). Owns the key, the certificates and OpenSSL's
 * state; knows no socket, and never blocks.
 *
 *   this node has      the other has      they use
 *   key                key                the key
 *   certificate        certificate        certificates, of both ends
 *   key, certificate   key, certificate   the key
 *   key, certificate   certificate        certificates, of both ends
 *   key                certificate        nothing: DENIED at both
 *
 * So nodes can change from the key to certificates one after the other: first all nodes get a certificate beside the key, then
 * the key is removed from each. A node without a key never accepts one.
 *
 * Allows only what two nodes need: no earlier version, no session tickets, no early data, one cipher suite, no end that does
 * not prove its identity, and a new Diffie-Hellman exchange each time (a key that leaks later does not decrypt old traffic).
 */
#ifndef DAEMON_TLS_H
#define DAEMON_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdt_status.h"

#define TLS_RECORD_BYTES 16384u /* plaintext of one record, at most */

#define TLS_IDENTITY_BYTES 256u

struct tls_context; /* the key, the certificates, and what all connections share */

/* How this node proves its identity, and which nodes it accepts. Paths of files; "" or NULL: none. There must be a key, or all
 * of certificate, private_key and authorities. */
struct tls_files {
    const char *key;         /* content without trailing white space, at least 16 bytes */
    const char *certificate; /* PEM: this node's, then those of intermediate authorities */
    const char *private_key; /* PEM, of that certificate */
    const char *authorities; /* PEM: the certificates that the other end's must lead to */
    const char *revoked;     /* PEM: a list of revoked certificates (CRL) of each authority; "": nothing is revoked */
    /* No path: patterns separated by commas. One of the DNS names or URIs in the other end's certificate must match one of
     * them; * stands for any characters but a dot in a DNS name, and any but a slash in a URI. "": any name is accepted. */
    const char *allow;
    bool *early_p; /* NULL: a certificate that is not valid yet is refused; otherwise set to true for one */
};

/* Reads the files. INVALID: the key is shorter than 16 bytes; a key or private key is not a file, or is readable by
 * others; a file is not what it should be; the private key is of another certificate; the certificate has expired or does
 * not lead to the authorities. SYSTEM: a file cannot be read. The sentence names the file. */
enum rdt_status tls_context_create(const struct tls_files *files, struct tls_context **context_p, struct rdt_error *err);
void tls_context_destroy(struct tls_context *context);                           /* its connections keep their references */
bool tls_context_same(const struct tls_context *a, const struct tls_context *b); /* their files have the same content */

/* When this node's certificate and its list of revoked certificates expire, in seconds since 1970; 0: it has none. */
int64_t tls_context_expires(const struct tls_context *context);
int64_t tls_context_revoked_expires(const struct tls_context *context);

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

/* RDT_OK: the other end has proved that it holds the key, or a certificate that this node accepts; RDT_AGAIN: feed more;
 * RDT_DENIED: it has not. Each time there may be something to send. An end that connected may get RDT_OK before the other
 * end has checked its certificate; tls_read then reports a refusal. */
enum rdt_status tls_handshake(struct tls *tls, struct rdt_error *err);

/* After the handshake: the identity in the other end's certificate, its first URI or else DNS name; "": it used the key. */
void tls_identity(const struct tls *tls, char identity_p[TLS_IDENTITY_BYTES]);

/* After the handshake, of the other end's certificate; an end that used the key passes. DENIED: none of its names is allowed;
 * or it has names of hosts (addresses, if `host` is one), and `host`, which this end dialled, is not among them. host "": this
 * end accepted the connection. */
enum rdt_status tls_check_peer(const struct tls *tls, const char *host, struct rdt_error *err);

/* After the handshake. DENIED: the other end's certificate is of a node with another uuid: it has a URI "urn:uuid:...". */
enum rdt_status tls_check_uuid(const struct tls *tls, const uint8_t uuid[16], struct rdt_error *err);

/* DENIED: an existing connection would not be accepted with these files, because the other end's certificate has been
 * revoked, its name is no longer allowed, or its authority was removed. A connection that uses the key stays. */
enum rdt_status tls_check_again(const struct tls *tls, const struct tls_context *context, struct rdt_error *err);

/* After the handshake. RDT_OK: *n_p > 0 bytes; RDT_AGAIN: no whole record yet; RDT_DISCONNECTED: the other
 * end has ended the stream; RDT_DENIED: it refuses this node's certificate; RDT_PROTOCOL: a record was forged or
 * damaged. */
enum rdt_status tls_read(struct tls *tls, void *buf, size_t size, size_t *n_p, struct rdt_error *err);

/* After the handshake: encrypts all of it. NO_MEMORY, INTERNAL. */
enum rdt_status tls_write(struct tls *tls, const void *bytes, size_t n, struct rdt_error *err);

/* Whether tls_read may return anything but AGAIN. */
bool tls_has_input(const struct tls *tls);

/* tls_pending: the number of ciphertext bytes to send. tls_take moves up to `size` of them out. */
size_t tls_pending(const struct tls *tls);
size_t tls_take(struct tls *tls, void *buf, size_t size);

#endif
