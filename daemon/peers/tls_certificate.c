/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates: reads this node's, and verifies those of others. The identity of a node is in the subject alternative names
 * of its certificate, as URIs (SPIFFE, urn:uuid:) or DNS names; the common name has no meaning. */
#include <string.h>
#include <strings.h>
#include <time.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "daemon/base/node.h"
#include "daemon/peers/tls_impl.h"

#define FILE_MAX_BYTES (1u << 20)
#define UUID_SCHEME "urn:uuid:"

/* ---- reading ---- */

static int64_t seconds_of(const ASN1_TIME *time)
{
    struct tm tm;

    return time && ASN1_TIME_to_tm(time, &tm) == 1 ? (int64_t)timegm(&tm) : 0;
}

/* One file, as a BIO over memory that stays until close_pem. */
struct pem {
    uint8_t *bytes;
    size_t n;
    BIO *bio;
};

static enum rdt_status open_pem(const char *what, const char *path, bool secret, EVP_MD_CTX *digest, struct pem *pem,
                                struct rdt_error *err)
{
    enum rdt_status status = tls_read_file(what, path, FILE_MAX_BYTES, secret, &pem->bytes, &pem->n, err);

    if (status != RDT_OK)
        return status;
    pem->bio = BIO_new_mem_buf(pem->bytes, (int)pem->n);
    if (!pem->bio || EVP_DigestUpdate(digest, &pem->n, sizeof pem->n) != 1 ||
        EVP_DigestUpdate(digest, pem->bytes, pem->n) != 1) {
        tls_free_secret(pem->bytes, pem->n);
        BIO_free(pem->bio);
        ERR_clear_error();
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for %s %s", what, path);
    }
    return RDT_OK;
}

static void close_pem(struct pem *pem)
{
    BIO_free(pem->bio);
    tls_free_secret(pem->bytes, pem->n);
    ERR_clear_error(); /* the end of a list of certificates is an error of OpenSSL */
}

static int no_passphrase(char *buf, int size, int rwflag, void *arg)
{
    return -1;
}

static enum rdt_status use_certificate(struct tls_context *context, const char *path, EVP_MD_CTX *digest, struct rdt_error *err)
{
    struct pem pem;
    X509 *certificate;
    bool ok;
    enum rdt_status status = open_pem("peer_cert", path, false, digest, &pem, err);

    if (status != RDT_OK)
        return status;
    certificate = PEM_read_bio_X509(pem.bio, NULL, no_passphrase, NULL);
    ok = certificate && SSL_CTX_use_certificate(context->ssl_ctx, certificate) == 1;
    if (!ok)
        status = rdt_error_set(err, RDT_INVALID, "peer_cert %s has no certificate in PEM format: %s", path, tls_reason());
    else
        context->expires = seconds_of(X509_get0_notAfter(certificate));
    X509_free(certificate);
    while (status == RDT_OK && (certificate = PEM_read_bio_X509(pem.bio, NULL, no_passphrase, NULL))) {
        if (SSL_CTX_add0_chain_cert(context->ssl_ctx, certificate) != 1) {
            X509_free(certificate);
            status = rdt_error_set(err, RDT_INVALID, "peer_cert %s: %s", path, tls_reason());
        }
    }
    close_pem(&pem);
    return status;
}

static enum rdt_status use_private_key(struct tls_context *context, const char *path, EVP_MD_CTX *digest, struct rdt_error *err)
{
    struct pem pem;
    EVP_PKEY *key;
    enum rdt_status status = open_pem("peer_key", path, true, digest, &pem, err);

    if (status != RDT_OK)
        return status;
    key = PEM_read_bio_PrivateKey(pem.bio, NULL, no_passphrase, NULL);
    if (!key)
        status = rdt_error_set(err, RDT_INVALID, "peer_key %s has no private key in PEM format without passphrase: %s", path,
                               tls_reason());
    else if (SSL_CTX_use_PrivateKey(context->ssl_ctx, key) != 1 || SSL_CTX_check_private_key(context->ssl_ctx) != 1)
        status = rdt_error_set(err, RDT_INVALID, "peer_key %s is not the key of the certificate in peer_cert: %s", path,
                               tls_reason());
    EVP_PKEY_free(key);
    close_pem(&pem);
    return status;
}

static enum rdt_status use_authorities(struct tls_context *context, const char *path, EVP_MD_CTX *digest, struct rdt_error *err)
{
    struct pem pem;
    X509 *certificate;
    unsigned n = 0;
    enum rdt_status status = open_pem("peer_ca", path, false, digest, &pem, err);

    if (status != RDT_OK)
        return status;
    while (status == RDT_OK && (certificate = PEM_read_bio_X509(pem.bio, NULL, no_passphrase, NULL))) {
        if (X509_STORE_add_cert(context->store, certificate) != 1 || SSL_CTX_add_client_CA(context->ssl_ctx, certificate) != 1)
            status = rdt_error_set(err, RDT_INVALID, "peer_ca %s: %s", path, tls_reason());
        X509_free(certificate);
        n++;
    }
    if (status == RDT_OK && n == 0)
        status = rdt_error_set(err, RDT_INVALID, "peer_ca %s has no certificate in PEM format", path);
    close_pem(&pem);
    return status;
}

static enum rdt_status use_revoked(struct tls_context *context, const char *path, EVP_MD_CTX *digest, struct rdt_error *err)
{
    struct pem pem;
    X509_CRL *list;
    unsigned n = 0;
    enum rdt_status status = open_pem("peer_crl", path, false, digest, &pem, err);

    if (status != RDT_OK)
        return status;
    while (status == RDT_OK && (list = PEM_read_bio_X509_CRL(pem.bio, NULL, no_passphrase, NULL))) {
        int64_t expires = seconds_of(X509_CRL_get0_nextUpdate(list));

        if (X509_STORE_add_crl(context->store, list) != 1)
            status = rdt_error_set(err, RDT_INVALID, "peer_crl %s: %s", path, tls_reason());
        if (expires && (!context->revoked_expires || expires < context->revoked_expires))
            context->revoked_expires = expires;
        X509_CRL_free(list);
        n++;
    }
    if (status == RDT_OK && n == 0)
        status = rdt_error_set(err, RDT_INVALID, "peer_crl %s has no list of revoked certificates in PEM format", path);
    close_pem(&pem);
    (void)X509_STORE_set_flags(context->store, X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL);
    return status;
}

/* Verifies a certificate as OpenSSL does in a handshake. */
static long verify(const struct tls_context *context, X509 *certificate, STACK_OF(X509) * chain)
{
    X509_STORE_CTX *judge = X509_STORE_CTX_new();
    long result = X509_V_ERR_OUT_OF_MEM;

    if (judge && X509_STORE_CTX_init(judge, context->store, certificate, chain) == 1) {
        (void)X509_VERIFY_PARAM_set1(X509_STORE_CTX_get0_param(judge), SSL_CTX_get0_param(context->ssl_ctx));
        (void)X509_verify_cert(judge);
        result = X509_STORE_CTX_get_error(judge);
    }
    X509_STORE_CTX_free(judge);
    ERR_clear_error();
    return result;
}

/* If no other node would accept this node's certificate, the start fails. One that is not valid yet will be, or the clock of
 * this machine has not been set yet. */
static enum rdt_status check_own(const struct tls_context *context, const struct tls_files *files, struct rdt_error *err)
{
    STACK_OF(X509) *chain = NULL;
    long result;

    (void)SSL_CTX_get0_chain_certs(context->ssl_ctx, &chain);
    result = verify(context, SSL_CTX_get0_certificate(context->ssl_ctx), chain);
    if (files->early_p && (result == X509_V_ERR_CERT_NOT_YET_VALID || result == X509_V_ERR_CRL_NOT_YET_VALID))
        *files->early_p = true;
    else if (result != X509_V_OK)
        return rdt_error_set(err, RDT_INVALID, "peer_cert %s is not accepted by peer_ca %s: %s", files->certificate,
                             files->authorities, X509_verify_cert_error_string(result));
    return RDT_OK;
}

enum rdt_status tls_use_certificates(struct tls_context *context, const struct tls_files *files, struct rdt_error *err)
{
    EVP_MD_CTX *digest = EVP_MD_CTX_new();
    const char *allow = files->allow ? files->allow : "";
    enum rdt_status status = RDT_OK;

    context->store = SSL_CTX_get_cert_store(context->ssl_ctx);
    context->allow = strdup(allow);
    if (!digest || !context->allow || EVP_DigestInit_ex(digest, EVP_sha256(), NULL) != 1 ||
        EVP_DigestUpdate(digest, allow, strlen(allow) + 1) != 1)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for TLS");
    if (status == RDT_OK)
        status = use_certificate(context, files->certificate, digest, err);
    if (status == RDT_OK)
        status = use_private_key(context, files->private_key, digest, err);
    if (status == RDT_OK)
        status = use_authorities(context, files->authorities, digest, err);
    if (status == RDT_OK && files->revoked && files->revoked[0])
        status = use_revoked(context, files->revoked, digest, err);
    if (status == RDT_OK)
        status = check_own(context, files, err);
    if (status == RDT_OK && EVP_DigestFinal_ex(digest, context->digest, NULL) != 1)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for TLS");
    EVP_MD_CTX_free(digest);
    return status;
}

int64_t tls_context_expires(const struct tls_context *context)
{
    return context->expires;
}

int64_t tls_context_revoked_expires(const struct tls_context *context)
{
    return context->revoked_expires;
}

/* ---- names ---- */

static bool matches(const char *pattern, size_t n, const char *name, char separator)
{
    if (n == 0)
        return name[0] == '\0';
    if (pattern[0] != '*')
        return name[0] != '\0' && (separator == '.' ? strncasecmp(pattern, name, 1) == 0 : pattern[0] == name[0]) &&
               matches(pattern + 1, n - 1, name + 1, separator);
    do {
        if (matches(pattern + 1, n - 1, name, separator))
            return true;
    } while (*name != '\0' && *name++ != separator);
    return false;
}

static bool is_allowed(const char *allow, const char *name, bool is_uri)
{
    while (*allow) {
        size_t n = strcspn(allow, ", ");
        bool for_uris = memmem(allow, n, ":", 1) != NULL;

        if (n && for_uris == is_uri && matches(allow, n, name, is_uri ? '/' : '.'))
            return true;
        allow += n;
        allow += strspn(allow, ", ");
    }
    return false;
}

/* The next name that is a URI or DNS name without control characters, and no longer than an identity; NULL: there are no
 * more. */
static const char *next_name(const GENERAL_NAMES *names, int *i, bool *is_uri_p)
{
    while (*i < sk_GENERAL_NAME_num(names)) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(names, (*i)++);
        const char *text;
        size_t n;

        if (name->type != GEN_URI && name->type != GEN_DNS)
            continue;
        text = (const char *)ASN1_STRING_get0_data(name->d.ia5);
        n = (size_t)ASN1_STRING_length(name->d.ia5);
        if (n == 0 || n >= TLS_IDENTITY_BYTES || strnlen(text, n) != n)
            continue;
        for (size_t k = 0; k < n && text; k++)
            if (text[k] <= ' ' || text[k] > '~')
                text = NULL;
        if (!text)
            continue;
        *is_uri_p = name->type == GEN_URI;
        return text;
    }
    return NULL;
}

static GENERAL_NAMES *names_of(X509 *certificate)
{
    return certificate ? X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL) : NULL;
}

static enum rdt_status check_allowed(const struct tls_context *context, X509 *certificate, struct rdt_error *err)
{
    GENERAL_NAMES *names;
    const char *name, *first = NULL;
    char shown[TLS_IDENTITY_BYTES];
    bool is_uri, ok = false;
    int i = 0;

    if (context->allow[0] == '\0')
        return RDT_OK;
    names = names_of(certificate);
    while (!ok && (name = next_name(names, &i, &is_uri))) {
        if (!first)
            first = name;
        ok = is_allowed(context->allow, name, is_uri);
    }
    snprintf(shown, sizeof shown, "%s", first ? first : "nobody (it has neither URI nor DNS name)");
    GENERAL_NAMES_free(names);
    if (!ok)
        return rdt_error_set(err, RDT_DENIED, "the certificate of the other end is of %s, which peer_allow does not allow",
                             shown);
    return RDT_OK;
}

void tls_identity(const struct tls *tls, char identity_p[TLS_IDENTITY_BYTES])
{
    GENERAL_NAMES *names = names_of(SSL_get0_peer_certificate(tls->ssl));
    const char *name;
    bool is_uri, have_uri = false;
    int i = 0;

    identity_p[0] = '\0';
    while (!have_uri && (name = next_name(names, &i, &is_uri))) {
        have_uri = is_uri && strncmp(name, UUID_SCHEME, strlen(UUID_SCHEME)) != 0;
        if (have_uri || (identity_p[0] == '\0' && !is_uri))
            snprintf(identity_p, TLS_IDENTITY_BYTES, "%s", name);
    }
    GENERAL_NAMES_free(names);
}

static enum rdt_status check_host(X509 *certificate, const char *host, struct rdt_error *err)
{
    GENERAL_NAMES *names = names_of(certificate);
    ASN1_OCTET_STRING *address = a2i_IPADDRESS(host);
    bool names_hosts = false, ok;

    for (int i = 0; i < sk_GENERAL_NAME_num(names); i++)
        names_hosts |= sk_GENERAL_NAME_value(names, i)->type == (address ? GEN_IPADD : GEN_DNS);
    ok = !names_hosts ||
         (address ? X509_check_ip_asc(certificate, host, 0) == 1
                  : X509_check_host(certificate, host, 0,
                                    X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS, NULL) == 1);
    GENERAL_NAMES_free(names);
    ASN1_OCTET_STRING_free(address);
    ERR_clear_error();
    if (!ok)
        return rdt_error_set(err, RDT_DENIED, "the certificate of the node at %s names other %s", host,
                             address ? "addresses" : "hosts");
    return RDT_OK;
}

enum rdt_status tls_check_peer(const struct tls *tls, const char *host, struct rdt_error *err)
{
    X509 *certificate = SSL_get0_peer_certificate(tls->ssl);
    enum rdt_status status;

    if (SSL_session_reused(tls->ssl) || !certificate)
        return RDT_OK;
    status = check_allowed(tls->context, certificate, err);
    return status == RDT_OK && host[0] != '\0' ? check_host(certificate, host, err) : status;
}

enum rdt_status tls_check_uuid(const struct tls *tls, const uint8_t uuid[16], struct rdt_error *err)
{
    GENERAL_NAMES *names = names_of(SSL_get0_peer_certificate(tls->ssl));
    char claimed[33], named[33];
    const char *name;
    bool is_uri, has_one = false, ok = false;
    int i = 0;

    node_hex(uuid, claimed);
    while (!ok && (name = next_name(names, &i, &is_uri))) {
        size_t n = 0;

        if (!is_uri || strncasecmp(name, UUID_SCHEME, strlen(UUID_SCHEME)) != 0)
            continue;
        for (name += strlen(UUID_SCHEME); *name && n < sizeof named - 1; name++)
            if (*name != '-')
                named[n++] = *name;
        named[n] = '\0';
        has_one = true;
        ok = strcasecmp(named, claimed) == 0;
    }
    GENERAL_NAMES_free(names);
    if (has_one && !ok)
        return rdt_error_set(err, RDT_DENIED, "the certificate of the other end is of node %s, and it claims to be %s", named,
                             claimed);
    return RDT_OK;
}

enum rdt_status tls_check_again(const struct tls *tls, const struct tls_context *context, struct rdt_error *err)
{
    X509 *certificate = SSL_get0_peer_certificate(tls->ssl);
    long result;

    if (SSL_session_reused(tls->ssl) || !certificate)
        return RDT_OK;
    if (!context->store)
        return rdt_error_set(err, RDT_DENIED, "this node no longer uses certificates");
    result = verify(context, certificate, SSL_get_peer_cert_chain(tls->ssl));
    if (result != X509_V_OK)
        return rdt_error_set(err, RDT_DENIED, "the certificate of the other end is no longer accepted: %s",
                             X509_verify_cert_error_string(result));
    return check_allowed(context, certificate, err);
}
