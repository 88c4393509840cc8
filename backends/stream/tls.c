/* SPDX-License-Identifier: Apache-2.0 */
/* TLS 1.3 with a key that both ends know from an offer: no certificates, no tickets, no early data, and a fresh
 * Diffie-Hellman exchange for each channel.
 *
 * A client without the key of a current offer gets no further than its ClientHello.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/stream/stream.h"

#ifndef TCP_ULP
#define TCP_ULP 31
#endif
#define READ_BUFFER_BYTES ((size_t)131072)

/* Returns whether this processor has instructions for AES. Without them ChaCha20 is several times as fast. The suite that the
 * dialler prefers is used, since the dialler encrypts. Both suites have the hash to which the key is bound. */
static bool has_aes(void)
{
#if defined __x86_64__ || defined __i386__
    return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined __aarch64__
    return getauxval(AT_HWCAP) & (1 << 3);
#else
    return false;
#endif
}

static const unsigned char suite_id[2] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256; it determines the hash */

/* OpenSSL represents an external key of TLS 1.3 by a session that was never negotiated. NULL: no memory. */
static SSL_SESSION *session_of(SSL *ssl, const uint8_t key[KEY_BYTES])
{
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, suite_id);
    SSL_SESSION *session = SSL_SESSION_new();

    if (session && cipher && SSL_SESSION_set1_master_key(session, key, KEY_BYTES) && SSL_SESSION_set_cipher(session, cipher) &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

static int use_key(SSL *ssl, const EVP_MD *md, const unsigned char **id_p, size_t *id_bytes_p, SSL_SESSION **session_p)
{
    const struct channel *channel = SSL_get_app_data(ssl);

    *session_p = NULL;
    if (md && !EVP_MD_is_a(md, "SHA256")) /* the hash is fixed already, and another one: the peer is not rdtd */
        return 1;
    *session_p = session_of(ssl, channel->conn->peer.secrets.key);
    *id_p = channel->conn->peer.secrets.id;
    *id_bytes_p = ID_BYTES;
    return *session_p != NULL;
}

static int find_key(SSL *ssl, const unsigned char *id, size_t id_bytes, SSL_SESSION **session_p)
{
    struct channel *channel = SSL_get_app_data(ssl);
    uint8_t key[KEY_BYTES];

    *session_p = NULL;
    if (id_bytes != ID_BYTES || !channel->transport->find_key(channel->transport, id, key))
        return 1;
    memcpy(channel->tls.id, id, ID_BYTES);
    *session_p = session_of(ssl, key);
    OPENSSL_cleanse(key, sizeof key);
    return *session_p != NULL;
}

/* Neither end changes keys; a channel is replaced instead. OpenSSL would serve a peer that asks for new keys again and again
 * inside one read, for as long as the peer likes, so the channel ends at the first such message. */
static void on_message(int is_sent, int version, int type, const void *message, size_t bytes, SSL *ssl, void *arg)
{
    struct channel *channel = SSL_get_app_data(ssl);

    (void)version;
    (void)arg;
    if (is_sent || type != SSL3_RT_HANDSHAKE || !bytes || *(const uint8_t *)message != SSL3_MT_KEY_UPDATE)
        return;
    channel->end.fault = "it asked for a change of TLS keys";
    (void)shutdown(channel->fd, SHUT_RDWR);
}

SSL_CTX *tls_create(struct rdt_error *err)
{
    const char *suites = has_aes() ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                   : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
    SSL_CTX *ctx = SSL_CTX_new(TLS_method());

    if (!ctx || SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) != 1 || SSL_CTX_set_ciphersuites(ctx, suites) != 1 ||
        SSL_CTX_set_num_tickets(ctx, 0) != 1 || SSL_CTX_set_max_early_data(ctx, 0) != 1) {
        (void)rdt_error_set(err, RDT_UNSUPPORTED, "OpenSSL cannot set up TLS 1.3: %s",
                            ERR_peek_last_error() ? ERR_reason_error_string(ERR_peek_last_error()) : "it gives no reason");
        ERR_clear_error();
        SSL_CTX_free(ctx);
        return NULL;
    }
    SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_ENABLE_KTLS |
                                 SSL_OP_IGNORE_UNEXPECTED_EOF); /* a truncated chunk has no trailer */
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    (void)SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    /* OpenSSL then reads several records by one read(), instead of one record by two. */
    SSL_CTX_set_read_ahead(ctx, 1);
    SSL_CTX_set_default_read_buffer_len(ctx, READ_BUFFER_BYTES);
    SSL_CTX_set_psk_use_session_callback(ctx, use_key);
    SSL_CTX_set_psk_find_session_callback(ctx, find_key);
    SSL_CTX_set_msg_callback(ctx, on_message);
    return ctx;
}

SSL *tls_start(struct channel *channel)
{
    SSL *ssl = SSL_new(channel->transport->ssl_ctx);

    if (!ssl || !SSL_set_fd(ssl, channel->fd) || !SSL_set_app_data(ssl, channel)) {
        ERR_clear_error();
        SSL_free(ssl);
        return NULL;
    }
    if (channel->incoming) {
        SSL_set_accept_state(ssl); /* without a certificate, no handshake succeeds without the key */
    } else {
        SSL_set_verify(ssl, SSL_VERIFY_PEER, NULL); /* a server that shows a certificate is not trusted */
        SSL_set_connect_state(ssl);
    }
    return ssl;
}

bool tls_has_key(const SSL *ssl)
{
    return SSL_session_reused(ssl) && SSL_version(ssl) == TLS1_3_VERSION;
}

/* If the kernel has the module, a socket that is not connected refuses it with ENOTCONN. */
const char *tls_kernel_state(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), error = 0;

    if (fd >= 0 && setsockopt(fd, SOL_TCP, TCP_ULP, "tls", sizeof "tls"))
        error = errno;
    if (fd >= 0)
        (void)close(fd);
    return error == ENOTCONN || !error ? "the kernel encrypts (kernel TLS)"
                                       : "the daemon encrypts, because the kernel lacks the module tls";
}
