/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/peers/tls: only two holders of the same key connect, and each receives exactly what the other sent. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "daemon/peers/tls.h"

static const char key_text[] = "0123456789abcdef0123456789abcdef";

static char dir[] = "/tmp/rdt_tls.XXXXXX";
static char key_path[64];

static void write_key(const char *text, mode_t mode)
{
    (void)unlink(key_path);
    FILE *file = fopen(key_path, "w");
    cr_assert_not_null(file);
    fputs(text, file);
    fclose(file);
    cr_assert_eq(chmod(key_path, mode), 0);
}

static struct tls_context *context_of(const char *text)
{
    struct tls_context *context = NULL;
    struct rdt_error err = {0};

    write_key(text, 0600);
    cr_assert_eq(tls_context_create(&(struct tls_files){.key = key_path}, &context, &err), RDT_OK, "%s", err.msg);
    return context;
}

static void setup(void)
{
    cr_assert_not_null(mkdtemp(dir));
    snprintf(key_path, sizeof key_path, "%s/key", dir);
}

static void teardown(void)
{
    (void)unlink(key_path);
    (void)rmdir(key_path);
    (void)rmdir(dir);
}

TestSuite(tls, .init = setup, .fini = teardown, .timeout = 30);

/* Everything that one end has to send goes to the other, at most step bytes at a time. */
static void carry(struct tls *from, struct tls *to, size_t step)
{
    uint8_t buf[4096];
    size_t n;

    while ((n = tls_take(from, buf, step)) > 0)
        cr_assert_eq(tls_feed(to, buf, n, NULL), RDT_OK);
}

struct pair {
    struct tls client, server;
    enum rdt_status client_status, server_status;
    struct rdt_error client_err, server_err;
};

static void shake(struct pair *pair, size_t step)
{
    pair->client_status = pair->server_status = RDT_AGAIN;
    for (int i = 0; i < 10; i++) {
        if (pair->client_status == RDT_AGAIN)
            pair->client_status = tls_handshake(&pair->client, &pair->client_err);
        carry(&pair->client, &pair->server, step);
        if (pair->server_status == RDT_AGAIN)
            pair->server_status = tls_handshake(&pair->server, &pair->server_err);
        carry(&pair->server, &pair->client, step);
    }
}

static void meet(struct pair *pair, struct tls_context *client, struct tls_context *server, size_t step)
{
    memset(pair, 0, sizeof *pair);
    cr_assert_eq(tls_init(&pair->client, client, false, NULL), RDT_OK);
    cr_assert_eq(tls_init(&pair->server, server, true, NULL), RDT_OK);
    shake(pair, step);
}

static void close_pair(struct pair *pair)
{
    tls_fini(&pair->client);
    tls_fini(&pair->server);
}

static void expect(struct tls *from, struct tls *to, const char *text)
{
    char buf[64] = "";
    size_t n = 0;

    cr_assert_eq(tls_write(from, text, strlen(text), NULL), RDT_OK);
    carry(from, to, 4096);
    cr_assert_eq(tls_read(to, buf, sizeof buf, &n, NULL), RDT_OK);
    cr_assert_eq(n, strlen(text));
    cr_assert_eq(memcmp(buf, text, n), 0);
    cr_assert_eq(tls_read(to, buf, sizeof buf, &n, NULL), RDT_AGAIN);
}

Test(tls, same_key_talks_both_ways)
{
    struct tls_context *a = context_of(key_text), *b = context_of(key_text);
    struct pair pair;

    meet(&pair, a, b, 4096);
    cr_assert_eq(pair.client_status, RDT_OK, "%s", pair.client_err.msg);
    cr_assert_eq(pair.server_status, RDT_OK, "%s", pair.server_err.msg);
    cr_assert_str_eq(SSL_get_version(pair.client.ssl), "TLSv1.3");
    cr_assert_str_eq(SSL_get_cipher_name(pair.client.ssl), "TLS_AES_128_GCM_SHA256");
    expect(&pair.client, &pair.server, "there");
    expect(&pair.server, &pair.client, "and back");
    close_pair(&pair);
    tls_context_destroy(a);
    tls_context_destroy(b);
}

Test(tls, byte_by_byte_is_the_same)
{
    struct tls_context *context = context_of(key_text);
    struct pair pair;

    meet(&pair, context, context, 1);
    cr_assert_eq(pair.client_status, RDT_OK);
    cr_assert_eq(pair.server_status, RDT_OK);
    expect(&pair.client, &pair.server, "there");
    close_pair(&pair);
    tls_context_destroy(context);
}

Test(tls, white_space_behind_the_key_does_not_count)
{
    struct tls_context *a = context_of("0123456789abcdef"), *b = context_of("0123456789abcdef \r\n\n");
    struct pair pair;

    meet(&pair, a, b, 4096);
    cr_assert_eq(pair.client_status, RDT_OK);
    cr_assert_eq(pair.server_status, RDT_OK);
    close_pair(&pair);
    tls_context_destroy(a);
    tls_context_destroy(b);
}

Test(tls, other_key_denied_at_both_ends)
{
    struct tls_context *a = context_of(key_text), *b = context_of("another key of enough bytes");
    struct pair pair;

    meet(&pair, a, b, 4096);
    cr_assert_eq(pair.server_status, RDT_DENIED);
    cr_assert_eq(pair.client_status, RDT_DENIED);
    cr_assert_not_null(strstr(pair.client_err.msg, "another key"), "%s", pair.client_err.msg);
    close_pair(&pair);
    tls_context_destroy(a);
    tls_context_destroy(b);
}

Test(tls, garbage_denied)
{
    struct tls_context *context = context_of(key_text);
    struct rdt_error err;
    struct tls tls;

    cr_assert_eq(tls_init(&tls, context, true, NULL), RDT_OK);
    cr_assert_eq(tls_feed(&tls, "GET / HTTP/1.1\r\n\r\n", 18, NULL), RDT_OK);
    cr_assert_eq(tls_handshake(&tls, &err), RDT_DENIED);
    tls_fini(&tls);
    tls_context_destroy(context);
}

/* A TLS end that is not ours: it does not use its context. */
static void init_foreign(struct tls *tls, SSL_CTX *ctx, bool server)
{
    tls->context = context_of(key_text);
    tls->ssl = SSL_new(ctx);
    tls->in = BIO_new(BIO_s_mem());
    tls->out = BIO_new(BIO_s_mem());
    SSL_set_bio(tls->ssl, tls->in, tls->out);
    if (server)
        SSL_set_accept_state(tls->ssl);
    else
        SSL_set_connect_state(tls->ssl);
}

Test(tls, tls_1_2_denied)
{
    struct tls_context *context = context_of(key_text);
    SSL_CTX *old = SSL_CTX_new(TLS_method());
    struct pair pair = {0};

    SSL_CTX_set_max_proto_version(old, TLS1_2_VERSION);
    init_foreign(&pair.client, old, false);
    cr_assert_eq(tls_init(&pair.server, context, true, NULL), RDT_OK);
    shake(&pair, 4096);
    cr_assert_eq(pair.server_status, RDT_DENIED);
    close_pair(&pair);
    SSL_CTX_free(old);
    tls_context_destroy(context);
}

Test(tls, client_without_key_denied)
{
    struct tls_context *context = context_of(key_text);
    SSL_CTX *stranger = SSL_CTX_new(TLS_method());
    struct pair pair = {0};

    init_foreign(&pair.client, stranger, false);
    cr_assert_eq(tls_init(&pair.server, context, true, NULL), RDT_OK);
    shake(&pair, 4096);
    cr_assert_eq(pair.server_status, RDT_DENIED);
    close_pair(&pair);
    SSL_CTX_free(stranger);
    tls_context_destroy(context);
}

/* Whoever answers with a certificate has not shown that he holds the key. */
Test(tls, server_with_certificate_instead_of_key_denied)
{
    struct tls_context *context = context_of(key_text);
    SSL_CTX *stranger = SSL_CTX_new(TLS_method());
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    struct pair pair = {0};

    X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    cr_assert_gt(X509_sign(certificate, key, EVP_sha256()), 0);
    cr_assert_eq(SSL_CTX_use_certificate(stranger, certificate), 1);
    cr_assert_eq(SSL_CTX_use_PrivateKey(stranger, key), 1);

    init_foreign(&pair.server, stranger, true);
    cr_assert_eq(tls_init(&pair.client, context, false, NULL), RDT_OK);
    shake(&pair, 4096);
    cr_assert_eq(pair.client_status, RDT_DENIED, "%s", rdt_status_name(pair.client_status));
    close_pair(&pair);
    X509_free(certificate);
    EVP_PKEY_free(key);
    SSL_CTX_free(stranger);
    tls_context_destroy(context);
}

Test(tls, damaged_record_is_noticed)
{
    struct tls_context *context = context_of(key_text);
    uint8_t record[256], buf[64];
    struct rdt_error err;
    struct pair pair;
    size_t n, got;

    meet(&pair, context, context, 4096);
    cr_assert_eq(tls_write(&pair.client, "0123456789", 10, NULL), RDT_OK);
    n = tls_take(&pair.client, record, sizeof record);
    cr_assert_gt(n, 10);
    record[n - 1] ^= 1;
    cr_assert_eq(tls_feed(&pair.server, record, n, NULL), RDT_OK);
    cr_assert_eq(tls_read(&pair.server, buf, sizeof buf, &got, &err), RDT_PROTOCOL);
    close_pair(&pair);
    tls_context_destroy(context);
}

Test(tls, large_data_arrives_whole)
{
    enum { BYTES = 1 << 20 };
    struct tls_context *context = context_of(key_text);
    uint8_t *sent = malloc(BYTES), *got = malloc(BYTES);
    struct pair pair;
    size_t done = 0, n;

    for (size_t i = 0; i < BYTES; i++)
        sent[i] = (uint8_t)(i * 7 + i / 251);
    meet(&pair, context, context, 4096);
    cr_assert_eq(tls_write(&pair.server, sent, BYTES, NULL), RDT_OK);
    cr_assert_gt(tls_pending(&pair.server), BYTES);
    carry(&pair.server, &pair.client, 4096);
    while (done < BYTES && tls_read(&pair.client, got + done, BYTES - done, &n, NULL) == RDT_OK)
        done += n;
    cr_assert_eq(done, BYTES);
    cr_assert_eq(memcmp(sent, got, BYTES), 0);
    close_pair(&pair);
    free(sent);
    free(got);
    tls_context_destroy(context);
}

Test(tls, keys_change_before_they_wear_out)
{
    struct tls_context *context = context_of(key_text);
    struct pair pair;

    meet(&pair, context, context, 4096);
    pair.client.records = UINT64_C(1) << 23;
    expect(&pair.client, &pair.server, "under a new key");
    cr_assert_eq(pair.client.records, 1);
    expect(&pair.server, &pair.client, "and back");
    close_pair(&pair);
    tls_context_destroy(context);
}

/* ---- key files ---- */

static void refused(enum rdt_status status, const char *words)
{
    struct tls_context *context = NULL;
    struct rdt_error err = {0};

    cr_assert_eq(tls_context_create(&(struct tls_files){.key = key_path}, &context, &err), status, "%s", err.msg);
    cr_assert_null(context);
    cr_assert_not_null(strstr(err.msg, words), "%s", err.msg);
    cr_assert_not_null(strstr(err.msg, key_path), "%s", err.msg);
}

Test(tls, key_file_missing_refused)
{
    refused(RDT_SYSTEM, "No such file");
}

Test(tls, key_file_open_to_others_refused)
{
    write_key(key_text, 0640);
    refused(RDT_INVALID, "chmod 600");
    write_key(key_text, 0604);
    refused(RDT_INVALID, "chmod 600");
}

Test(tls, key_file_short_refused)
{
    write_key("0123456789abcde\n\n\n", 0600);
    refused(RDT_INVALID, "15 bytes");
    write_key("", 0600);
    refused(RDT_INVALID, "0 bytes");
}

Test(tls, key_file_long_refused)
{
    char text[5000];

    memset(text, 'k', sizeof text - 1);
    text[sizeof text - 1] = 0;
    write_key(text, 0600);
    refused(RDT_INVALID, "more than");
}

Test(tls, key_file_that_is_none_refused)
{
    cr_assert_eq(mkdir(key_path, 0700), 0);
    refused(RDT_INVALID, "not a regular file");
    cr_assert_eq(rmdir(key_path), 0);
    cr_assert_eq(mkfifo(key_path, 0600), 0);
    refused(RDT_INVALID, "not a regular file");
}
