/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of TLS share: tls.c (connections), above tls_certificate.c (certificates), above tls_file.c (reading
 * files). */
#ifndef DAEMON_TLS_IMPL_H
#define DAEMON_TLS_IMPL_H

#include <openssl/ssl.h>

#include "daemon/peers/tls.h"

#define TLS_PSK_BYTES 32u

struct tls_context {
    unsigned refs; /* the creator's, and one of each connection */
    SSL_CTX *ssl_ctx;
    bool has_key;
    uint8_t psk[TLS_PSK_BYTES];
    /* The rest is tls_certificate.c's. */
    X509_STORE *store; /* borrowed of ssl_ctx; NULL: no certificates */
    char *allow;
    int64_t expires, revoked_expires;
    uint8_t digest[32]; /* of all files and patterns */
};

/* Returns OpenSSL's sentence for the last error, and empties its queue. */
const char *tls_reason(void);

/* Reads a whole file, at most max_bytes. *bytes_p is the caller's: tls_free_secret. INVALID: not a regular file, longer, or
 * `secret` and readable by others; SYSTEM. `what` begins the sentence: "key file". */
enum rdt_status tls_read_file(const char *what, const char *path, size_t max_bytes, bool secret, uint8_t **bytes_p, size_t *n_p,
                              struct rdt_error *err);
void tls_free_secret(uint8_t *bytes, size_t n); /* NULL is allowed */

/* Adds the certificate, the authorities and the rest to context->ssl_ctx, which uses them from now on. */
enum rdt_status tls_use_certificates(struct tls_context *context, const struct tls_files *files, struct rdt_error *err);

#endif
