/* SPDX-License-Identifier: Apache-2.0 */
/* TLS 1.3 over memory BIOs, and the pre-shared key. tls.h lists what it refuses. */
#include "daemon/peers/tls_impl.h"

#include <stdlib.h>
#include <string.h>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/ssl.h>

#define KEY_FILE_MIN_BYTES 16u
#define KEY_FILE_MAX_BYTES 4096u

/* AES-GCM may encrypt some 2^24 records under one key (RFC 8446, 5.5), and OpenSSL does not change the key
 * by itself. */
#define RECORDS_PER_KEY (UINT64_C(1) << 23)

static const char identity[] = "rdtd";
static const char suite[] = "TLS_AES_128_GCM_SHA256";
static const unsigned char suite_id[2] = {0x13, 0x01};

static bool is_space(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Derives the key of TLS by HKDF, so that it has the right length whatever the file contains, and serves
 * nothing else. */
static bool derive(const uint8_t *content, size_t n, uint8_t psk_p[TLS_PSK_BYTES])
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
    bool ok = ctx && EVP_KDF_derive(ctx, psk_p, TLS_PSK_BYTES, params) == 1;

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

    if (session && cipher && SSL_SESSION_set1_master_key(session, context->psk, TLS_PSK_BYTES) &&
        SSL_SESSION_set_cipher(session, cipher) && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) &&
        SSL_SESSION_set1_id_context(session, (const unsigned char *)identity, sizeof identity - 1))
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
    /* An end that verifies the other one refuses sessions without such a context, and a key is a session to OpenSSL. */
    (void)SSL_CTX_set_session_id_context(ctx, (const unsigned char *)identity, sizeof identity - 1);
    return ctx;
}

static enum rdt_status use_key(struct tls_context *context, const char *path, struct rdt_error *err)
{
    uint8_t *content;
    size_t n;
    enum rdt_status status = tls_read_file("key file", path, KEY_FILE_MAX_BYTES, true, &content, &n, err);

    if (status != RDT_OK)
        return status;
    while (n && is_space(content[n - 1]))
        n--;
    if (n < KEY_FILE_MIN_BYTES)
        status = rdt_error_set(err, RDT_INVALID,
                               "key file %s has %zu bytes, at least %u are needed (head -c 32 /dev/urandom | base64)", path, n,
                               KEY_FILE_MIN_BYTES);
    else if (!derive(content, n, context->psk))
        status = rdt_error_set(err, RDT_INTERNAL, "cannot derive the key of the peer link: %s", tls_reason());
    tls_free_secret(content, n);
    if (status != RDT_OK)
        return status;
    SSL_CTX_set_psk_use_session_callback(context->ssl_ctx, offer_psk);
    SSL_CTX_set_psk_find_session_callback(context->ssl_ctx, find_psk);
    context->has_key = true;
    return RDT_OK;
}

enum rdt_status tls_context_create(const struct tls_files *files, struct tls_context **context_p, struct rdt_error *err)
{
    struct tls_context *context = calloc(1, sizeof *context);
    enum rdt_status status = RDT_OK;

    if (!context)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for TLS");
    context->refs = 1;
    context->ssl_ctx = make_ssl_ctx(context);
    if (!context->ssl_ctx)
        status = rdt_error_set(err, RDT_INTERNAL, "cannot set up TLS 1.3 with %s: %s", suite, tls_reason());
    if (status == RDT_OK && files->key && files->key[0])
        status = use_key(context, files->key, err);
    if (status == RDT_OK && files->certificate && files->certificate[0])
        status = tls_use_certificates(context, files, err);
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
    free(context->allow);
    free(context);
}

bool tls_context_same(const struct tls_context *a, const struct tls_context *b)
{
    return a->has_key == b->has_key && CRYPTO_memcmp(a->psk, b->psk, TLS_PSK_BYTES) == 0 &&
           memcmp(a->digest, b->digest, sizeof a->digest) == 0;
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
        /* A server without certificate completes no handshake without the key. One with a certificate demands the other's. */
        SSL_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
        SSL_set_accept_state(ssl);
    } else {
        /* Without authorities no certificate is accepted, so a server that shows one instead of the key fails here. */
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
        long verified = SSL_get_verify_result(tls->ssl);

        if (SSL_get_error(tls->ssl, result) == SSL_ERROR_WANT_READ)
            return RDT_AGAIN;
        if (verified != X509_V_OK && tls->context->store)
            return rdt_error_set(err, RDT_DENIED, "no TLS: the certificate of the other end is not accepted: %s",
                                 X509_verify_cert_error_string(verified));
        if (!tls->context->store && !tls->context->has_key)
            return rdt_error_set(err, RDT_DENIED, "no TLS: this node waits for a missing file of its key or certificates");
        return rdt_error_set(err, RDT_DENIED, "no TLS: the other end has another %s, or is not rdtd (%s)",
                             tls->context->store ? "authority or key" : "key", tls_reason());
    }
    /* The setup in tls_init already refuses ends that do not prove their identity; these checks do not depend on it. */
    if (SSL_session_reused(tls->ssl))
        return tls->context->has_key ? RDT_OK : rdt_error_set(err, RDT_DENIED, "no TLS: the other end used a key");
    if (!tls->context->store || !SSL_get0_peer_certificate(tls->ssl) || SSL_get_verify_result(tls->ssl) != X509_V_OK)
        return rdt_error_set(err, RDT_DENIED, "no TLS: the other end used neither the key nor a certificate");
    return RDT_OK;
}

/* The other end of TLS 1.3 looks at this end's certificate after this end has completed the handshake. */
static bool is_refusal(unsigned long code)
{
    int reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) - SSL_AD_REASON_OFFSET : -1;

    return reason == SSL_AD_UNKNOWN_CA || reason == SSL_AD_BAD_CERTIFICATE || reason == SSL_AD_CERTIFICATE_REVOKED ||
           reason == SSL_AD_CERTIFICATE_EXPIRED || reason == SSL_AD_CERTIFICATE_UNKNOWN ||
           reason == SSL_AD_CERTIFICATE_REQUIRED || reason == SSL_AD_UNSUPPORTED_CERTIFICATE ||
           reason == SSL_AD_ACCESS_DENIED || reason == SSL_AD_DECRYPT_ERROR;
}

bool tls_has_input(const struct tls *tls)
{
    return BIO_ctrl_pending(tls->in) != 0 || SSL_has_pending(tls->ssl);
}

enum rdt_status tls_read(struct tls *tls, void *buf, size_t size, size_t *n_p, struct rdt_error *err)
{
    /* OpenSSL takes longer to report this than to decrypt a small record. */
    if (!tls_has_input(tls))
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
        if (tls->context->store && SSL_get_shutdown(tls->ssl) & SSL_RECEIVED_SHUTDOWN && is_refusal(ERR_peek_last_error()))
            return rdt_error_set(err, RDT_DENIED, "the other end does not accept this node's certificate (%s)", tls_reason());
        return rdt_error_set(err, RDT_PROTOCOL, "TLS broke: %s", tls_reason());
    }
}

enum rdt_status tls_write(struct tls *tls, const void *bytes, size_t n, struct rdt_error *err)
{
    uint64_t records = (n + TLS_RECORD_BYTES - 1) / TLS_RECORD_BYTES;
    size_t written = 0;

    ERR_clear_error();
    if (tls->records + records > RECORDS_PER_KEY) {
        if (SSL_key_update(tls->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1)
            return rdt_error_set(err, RDT_INTERNAL, "cannot change the key of a TLS connection: %s", tls_reason());
        tls->records = 0;
    }
    tls->records += records;
    if (n && (!SSL_write_ex(tls->ssl, bytes, n, &written) || written != n))
        return rdt_error_set(err, RDT_INTERNAL, "cannot encrypt: %s", tls_reason());
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
