/* SPDX-License-Identifier: Apache-2.0 */
/* TLS 1.3 with a pre-shared key over memory BIOs: see tls.h for what it refuses. */
#include "daemon/peers/tls.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/ssl.h>

#define KEY_FILE_MIN_BYTES 16u
#define KEY_FILE_MAX_BYTES 4096u
#define PSK_BYTES 32u

/* AES-GCM may encrypt some 2^24 records under one key (RFC 8446, 5.5), and OpenSSL does not change the key
 * by itself. */
#define RECORDS_PER_KEY (UINT64_C(1) << 23)

static const char identity[] = "rdtd";
static const char suite[] = "TLS_AES_128_GCM_SHA256";
static const unsigned char suite_id[2] = {0x13, 0x01};

struct tls_context {
    unsigned refs; /* the creator's, and one of each connection */
    SSL_CTX *ssl_ctx;
    uint8_t psk[PSK_BYTES];
};

/* Returns OpenSSL's sentence for the last error, and empties its queue. */
static const char *reason(void)
{
    unsigned long code = ERR_peek_last_error();
    const char *text = code ? ERR_reason_error_string(code) : NULL;

    ERR_clear_error();
    return text ? text : "no reason given";
}

static bool is_space(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Fills buf, which has KEY_FILE_MAX_BYTES + 1 bytes. */
static enum rdt_status read_key_file(const char *path, uint8_t *buf, size_t *n_p, struct rdt_error *err)
{
    /* O_NONBLOCK: a FIFO must not stop the daemon's start. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    enum rdt_status status = RDT_OK;
    struct stat st;
    size_t n = 0;

    if (fd < 0)
        return rdt_error_sys(err, errno, "key file %s", path);
    if (fstat(fd, &st) < 0)
        status = rdt_error_sys(err, errno, "key file %s", path);
    else if (!S_ISREG(st.st_mode))
        status = rdt_error_set(err, RDT_INVALID, "key file %s is not a regular file", path);
    else if (st.st_mode & (S_IRWXG | S_IRWXO))
        status = rdt_error_set(err, RDT_INVALID, "key file %s is open to others (mode %04o): chmod 600 %s", path,
                               (unsigned)st.st_mode & 07777u, path);
    while (status == RDT_OK && n <= KEY_FILE_MAX_BYTES) {
        ssize_t got = read(fd, buf + n, KEY_FILE_MAX_BYTES + 1 - n);

        if (got == 0)
            break;
        if (got > 0)
            n += (size_t)got;
        else if (errno != EINTR)
            status = rdt_error_sys(err, errno, "key file %s", path);
    }
    (void)close(fd);
    if (status != RDT_OK)
        return status;

    if (n > KEY_FILE_MAX_BYTES)
        return rdt_error_set(err, RDT_INVALID, "key file %s has more than %u bytes", path, KEY_FILE_MAX_BYTES);
    while (n && is_space(buf[n - 1]))
        n--;
    if (n < KEY_FILE_MIN_BYTES)
        return rdt_error_set(err, RDT_INVALID,
                             "key file %s has %zu bytes, at least %u are needed (head -c 32 /dev/urandom | base64)", path, n,
                             KEY_FILE_MIN_BYTES);
    *n_p = n;
    return RDT_OK;
}

/* Derives the key of TLS by HKDF, so that it has the right length whatever the file contains, and serves
 * nothing else. */
static bool derive(const uint8_t *content, size_t n, uint8_t psk_p[PSK_BYTES])
{
    static char hash[] = "SHA256", salt[] = "rdtd", info[] = "peer link tls 1.3 psk";
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
    EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, hash, 0),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)content, n),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt, sizeof salt - 1),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, sizeof info - 1),
        OSSL_PARAM_construct_end(),
    };
    bool ok = ctx && EVP_KDF_derive(ctx, psk_p, PSK_BYTES, params) == 1;

    EVP_KDF_CTX_free(ctx);
    EVP_KDF_free(kdf);
    return ok;
}

/* OpenSSL represents an external key of TLS 1.3 as a session that nobody negotiated. NULL: out of memory. */
static SSL_SESSION *make_session(SSL *ssl)
{
    const struct tls_context *context = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, suite_id);
    SSL_SESSION *session = SSL_SESSION_new();

    if (session && cipher && SSL_SESSION_set1_master_key(session, context->psk, PSK_BYTES) &&
        SSL_SESSION_set_cipher(session, cipher) && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

static int offer_psk(SSL *ssl, const EVP_MD *md, const unsigned char **id_p, size_t *id_bytes_p, SSL_SESSION **session_p)
{
    *session_p = NULL;
    /* A different hash was agreed on, so the server is not rdtd. Without a key the handshake ends there. */
    if (md && !EVP_MD_is_a(md, "SHA256"))
        return 1;
    *session_p = make_session(ssl);
    *id_p = (const unsigned char *)identity;
    *id_bytes_p = sizeof identity - 1;
    return *session_p != NULL;
}

static int find_psk(SSL *ssl, const unsigned char *id, size_t id_bytes, SSL_SESSION **session_p)
{
    *session_p = NULL;
    if (id_bytes != sizeof identity - 1 || memcmp(id, identity, id_bytes) != 0)
        return 1;
    *session_p = make_session(ssl);
    return *session_p != NULL;
}

static SSL_CTX *make_ssl_ctx(struct tls_context *context)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());

    if (!ctx)
        return NULL;
    if (SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) != 1 || SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(ctx, suite) != 1 || SSL_CTX_set_num_tickets(ctx, 0) != 1 ||
        SSL_CTX_set_max_early_data(ctx, 0) != 1) {
        SSL_CTX_free(ctx);
        return NULL;
    }
    SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_app_data(ctx, context);
    SSL_CTX_set_psk_use_session_callback(ctx, offer_psk);
    SSL_CTX_set_psk_find_session_callback(ctx, find_psk);
    return ctx;
}

enum rdt_status tls_context_create(const char *key_file, struct tls_context **context_p, struct rdt_error *err)
{
    uint8_t content[KEY_FILE_MAX_BYTES + 1];
    struct tls_context *context;
    enum rdt_status status;
    size_t n = 0;

    context = calloc(1, sizeof *context);
    if (!context)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for TLS");
    context->refs = 1;
    status = read_key_file(key_file, content, &n, err);
    if (status == RDT_OK) {
        if (!derive(content, n, context->psk))
            status = rdt_error_set(err, RDT_INTERNAL, "cannot derive the key of the peer link: %s", reason());
        else if (!(context->ssl_ctx = make_ssl_ctx(context)))
            status = rdt_error_set(err, RDT_INTERNAL, "cannot set up TLS 1.3 with %s: %s", suite, reason());
    }
    OPENSSL_cleanse(content, sizeof content);
    if (status != RDT_OK) {
        tls_context_destroy(context);
        return status;
    }
    *context_p = context;
    return RDT_OK;
}

void tls_context_destroy(struct tls_context *context)
{
    if (!context || --context->refs > 0)
        return;
    SSL_CTX_free(context->ssl_ctx);
    OPENSSL_cleanse(context->psk, sizeof context->psk);
    free(context);
}

bool tls_context_same_key(const struct tls_context *a, const struct tls_context *b)
{
    return CRYPTO_memcmp(a->psk, b->psk, PSK_BYTES) == 0;
}

enum rdt_status tls_init(struct tls *tls, struct tls_context *context, bool server, struct rdt_error *err)
{
    SSL *ssl = SSL_new(context->ssl_ctx);
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());

    if (!ssl || !in || !out) {
        ERR_clear_error();
        SSL_free(ssl);
        BIO_free(in);
        BIO_free(out);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a TLS connection");
    }
    SSL_set_bio(ssl, in, out);
    if (server) {
        /* The server has no certificate, so that there is no handshake without the key. */
        SSL_set_accept_state(ssl);
    } else {
        /* Nobody is trusted by certificate, so a server that shows one instead of the key fails here. */
        SSL_set_verify(ssl, SSL_VERIFY_PEER, NULL);
        SSL_set_connect_state(ssl);
    }
    context->refs++;
    *tls = (struct tls){.context = context, .ssl = ssl, .in = in, .out = out};
    return RDT_OK;
}

void tls_fini(struct tls *tls)
{
    SSL_free(tls->ssl);
    tls_context_destroy(tls->context);
    *tls = (struct tls){0};
}

enum rdt_status tls_feed(struct tls *tls, const void *bytes, size_t n, struct rdt_error *err)
{
    size_t written = 0;

    if (n && (!BIO_write_ex(tls->in, bytes, n, &written) || written != n)) {
        ERR_clear_error();
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for %zu bytes of TLS", n);
    }
    return RDT_OK;
}

enum rdt_status tls_handshake(struct tls *tls, struct rdt_error *err)
{
    int result;

    ERR_clear_error();
    result = SSL_do_handshake(tls->ssl);
    if (result != 1) {
        if (SSL_get_error(tls->ssl, result) == SSL_ERROR_WANT_READ)
            return RDT_AGAIN;
        return rdt_error_set(err, RDT_DENIED, "no TLS: the other end has another key, or is not rdtd (%s)", reason());
    }
    /* The setup in tls_init already refuses ends without the key; this check does not depend on it. */
    if (!SSL_session_reused(tls->ssl))
        return rdt_error_set(err, RDT_DENIED, "no TLS: the other end did not use the key");
    return RDT_OK;
}

enum rdt_status tls_read(struct tls *tls, void *buf, size_t size, size_t *n_p, struct rdt_error *err)
{
    /* OpenSSL takes longer to report this than to decrypt a small record. */
    if (BIO_ctrl_pending(tls->in) == 0 && !SSL_has_pending(tls->ssl))
        return SSL_get_shutdown(tls->ssl) & SSL_RECEIVED_SHUTDOWN
                   ? rdt_error_set(err, RDT_DISCONNECTED, "the other end closed the connection")
                   : RDT_AGAIN;
    ERR_clear_error();
    if (SSL_read_ex(tls->ssl, buf, size, n_p))
        return RDT_OK;
    switch (SSL_get_error(tls->ssl, 0)) {
    case SSL_ERROR_WANT_READ:
        return RDT_AGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return rdt_error_set(err, RDT_DISCONNECTED, "the other end closed the connection");
    default:
        return rdt_error_set(err, RDT_PROTOCOL, "TLS broke: %s", reason());
    }
}

enum rdt_status tls_write(struct tls *tls, const void *bytes, size_t n, struct rdt_error *err)
{
    uint64_t records = (n + TLS_RECORD_BYTES - 1) / TLS_RECORD_BYTES;
    size_t written = 0;

    ERR_clear_error();
    if (tls->records + records > RECORDS_PER_KEY) {
        if (SSL_key_update(tls->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1)
            return rdt_error_set(err, RDT_INTERNAL, "cannot change the key of a TLS connection: %s", reason());
        tls->records = 0;
    }
    tls->records += records;
    if (n && (!SSL_write_ex(tls->ssl, bytes, n, &written) || written != n))
        return rdt_error_set(err, RDT_INTERNAL, "cannot encrypt: %s", reason());
    return RDT_OK;
}

size_t tls_pending(const struct tls *tls)
{
    return BIO_ctrl_pending(tls->out);
}

size_t tls_take(struct tls *tls, void *buf, size_t size)
{
    size_t n = 0;

    if (size && BIO_ctrl_pending(tls->out) && !BIO_read_ex(tls->out, buf, size, &n))
        n = 0;
    return n;
}
