/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces daemon/peers/tls.h in the fuzz targets by plain bytes, so that a run tests the readers of the bytes and spends
 * no time in handshakes. Whoever dials first sends one byte, which stands for the key. unit/peers/tls tests TLS itself. */
#include "daemon/peers/tls.h"

#include <stdlib.h>
#include <string.h>

struct bytes {
    uint8_t *data;
    size_t at, n, size;
};

struct ssl_st {
    struct bytes in, out;
    bool server, done;
};

struct tls_context {
    bool unused;
};

static bool push(struct bytes *bytes, const void *data, size_t n)
{
    if (bytes->at == bytes->n)
        bytes->at = bytes->n = 0;
    if (bytes->n + n > bytes->size) {
        size_t size = 2 * (bytes->n + n);
        uint8_t *more = realloc(bytes->data, size);

        if (!more)
            return false;
        bytes->data = more;
        bytes->size = size;
    }
    if (n)
        memcpy(bytes->data + bytes->n, data, n);
    bytes->n += n;
    return true;
}

static size_t pull(struct bytes *bytes, void *data, size_t size)
{
    size_t n = bytes->n - bytes->at;

    if (n > size)
        n = size;
    if (n)
        memcpy(data, bytes->data + bytes->at, n);
    bytes->at += n;
    return n;
}

enum rdt_status tls_context_create(const struct tls_files *files, struct tls_context **context_p, struct rdt_error *err)
{
    (void)files;
    *context_p = calloc(1, sizeof **context_p);
    return *context_p ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory");
}

void tls_context_destroy(struct tls_context *context)
{
    free(context);
}

bool tls_context_same(const struct tls_context *a, const struct tls_context *b)
{
    (void)a;
    (void)b;
    return true;
}

int64_t tls_context_expires(const struct tls_context *context)
{
    (void)context;
    return 0;
}

int64_t tls_context_revoked_expires(const struct tls_context *context)
{
    (void)context;
    return 0;
}

void tls_identity(const struct tls *tls, char identity_p[TLS_IDENTITY_BYTES])
{
    (void)tls;
    identity_p[0] = '\0';
}

enum rdt_status tls_check_peer(const struct tls *tls, const char *host, struct rdt_error *err)
{
    (void)tls, (void)host, (void)err;
    return RDT_OK;
}

enum rdt_status tls_check_uuid(const struct tls *tls, const uint8_t uuid[16], struct rdt_error *err)
{
    (void)tls, (void)uuid, (void)err;
    return RDT_OK;
}

enum rdt_status tls_check_again(const struct tls *tls, const struct tls_context *context, struct rdt_error *err)
{
    (void)tls, (void)context, (void)err;
    return RDT_OK;
}

enum rdt_status tls_init(struct tls *tls, struct tls_context *context, bool server, struct rdt_error *err)
{
    (void)context;
    *tls = (struct tls){.ssl = calloc(1, sizeof *tls->ssl)};
    if (!tls->ssl)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory");
    tls->ssl->server = server;
    return RDT_OK;
}

void tls_fini(struct tls *tls)
{
    if (tls->ssl) {
        free(tls->ssl->in.data);
        free(tls->ssl->out.data);
        free(tls->ssl);
    }
    *tls = (struct tls){0};
}

enum rdt_status tls_feed(struct tls *tls, const void *bytes, size_t n, struct rdt_error *err)
{
    return push(&tls->ssl->in, bytes, n) ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory");
}

enum rdt_status tls_handshake(struct tls *tls, struct rdt_error *err)
{
    uint8_t hail = 1;

    if (!tls->ssl->done) {
        if (tls->ssl->server ? pull(&tls->ssl->in, &hail, 1) == 0 : !push(&tls->ssl->out, &hail, 1))
            return RDT_AGAIN;
        if (hail != 1)
            return rdt_error_set(err, RDT_DENIED, "no TLS");
        tls->ssl->done = true;
    }
    return RDT_OK;
}

bool tls_has_input(const struct tls *tls)
{
    return tls->ssl->in.n > tls->ssl->in.at;
}

enum rdt_status tls_read(struct tls *tls, void *buf, size_t size, size_t *n_p, struct rdt_error *err)
{
    (void)err;
    *n_p = pull(&tls->ssl->in, buf, size);
    return *n_p > 0 ? RDT_OK : RDT_AGAIN;
}

enum rdt_status tls_write(struct tls *tls, const void *bytes, size_t n, struct rdt_error *err)
{
    return push(&tls->ssl->out, bytes, n) ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory");
}

size_t tls_pending(const struct tls *tls)
{
    return tls->ssl->out.n - tls->ssl->out.at;
}

size_t tls_take(struct tls *tls, void *buf, size_t size)
{
    return pull(&tls->ssl->out, buf, size);
}
