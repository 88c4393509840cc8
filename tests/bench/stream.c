/* SPDX-License-Identifier: Apache-2.0 */
/* The reference of bulk bytes: a blocking TCP connection between two processes; with "tls" inside TLS 1.3, by a key that
 * both know. The client asks for BYTES in a request of 8 bytes and reads them into memory that was touched before.
 *
 *     stream serve PORT [tls]                        until it is killed; says "ready"
 *     stream fetch PORT BYTES COUNT WINDOW [tls]     prints GB/s (1e9 bytes), WINDOW requests ahead
 */
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/mman.h>

#include "bench_socket.h"

static uint8_t *touched_memory(size_t bytes, int fill)
{
    int fd = memfd_create("stream", MFD_CLOEXEC); /* touched, as the daemons' memory is */

    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        bench_die("no memfd: %s", strerror(errno));
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        bench_die("no memory: %s", strerror(errno));
    memset(memory, fill, bytes);
    (void)close(fd);
    return memory;
}

/* ---- TLS: one suite, the key by hand, whole buffers in and out ---- */

#define READ_BUFFER_BYTES ((size_t)131072) /* several records by one read(): 1.1 times as fast as two reads for each */

static bool with_tls;
static SSL_CTX *ctx;

static SSL_SESSION *known_key(SSL *ssl)
{
    static const unsigned char suite[2] = {0x13, 0x01}, key[32] = "thirty-two bytes that both know";
    SSL_SESSION *session = SSL_SESSION_new();

    if (!session || !SSL_SESSION_set1_master_key(session, key, sizeof key) ||
        !SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, suite)) ||
        !SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
        bench_die("no key for TLS");
    return session;
}

static int use_key(SSL *ssl, const EVP_MD *md, const unsigned char **id_p, size_t *id_bytes_p, SSL_SESSION **session_p)
{
    *session_p = known_key(ssl);
    *id_p = (const unsigned char *)"bench";
    *id_bytes_p = 5;
    return 1;
}

static int find_key(SSL *ssl, const unsigned char *id, size_t id_bytes, SSL_SESSION **session_p)
{
    *session_p = known_key(ssl);
    return 1;
}

static void tls_init(void)
{
    ctx = SSL_CTX_new(TLS_method());
    if (!ctx || !SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256") || !SSL_CTX_set_num_tickets(ctx, 0))
        bench_die("no TLS");
    SSL_CTX_set_options(ctx, SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_read_ahead(ctx, 1);
    SSL_CTX_set_default_read_buffer_len(ctx, READ_BUFFER_BYTES);
    SSL_CTX_set_psk_use_session_callback(ctx, use_key);
    SSL_CTX_set_psk_find_session_callback(ctx, find_key);
    (void)signal(SIGPIPE, SIG_IGN);
}

/* ---- connections ---- */

struct wire {
    int sock;
    SSL *ssl; /* NULL: bare */
};

static struct wire wire_start(int sock, bool server)
{
    struct wire wire = {.sock = sock};

    if (!with_tls)
        return wire;
    wire.ssl = SSL_new(ctx);
    if (!wire.ssl || !SSL_set_fd(wire.ssl, sock) || (server ? SSL_accept(wire.ssl) : SSL_connect(wire.ssl)) != 1)
        bench_die("no TLS");
    return wire;
}

static void wire_end(struct wire *wire)
{
    SSL_free(wire->ssl);
    (void)close(wire->sock);
}

static bool write_all(struct wire *wire, const void *bytes, size_t n)
{
    size_t written;

    if (wire->ssl)
        return SSL_write_ex(wire->ssl, bytes, n, &written) == 1 && written == n;
    for (size_t at = 0; at < n;) {
        ssize_t sent = send(wire->sock, (const uint8_t *)bytes + at, n - at, MSG_NOSIGNAL);

        if (sent <= 0)
            return false;
        at += (size_t)sent;
    }
    return true;
}

static bool read_all(struct wire *wire, void *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t got = 0;
        ssize_t received;

        if (wire->ssl) {
            if (SSL_read_ex(wire->ssl, (uint8_t *)bytes + at, n - at, &got) != 1)
                return false;
        } else {
            received = recv(wire->sock, (uint8_t *)bytes + at, n - at, 0);
            if (received <= 0)
                return false;
            got = (size_t)received;
        }
        at += got;
    }
    return true;
}

static void serve(uint16_t port)
{
    int listener = bench_listen_tcp(port), on = 1;
    size_t room = 0;
    uint8_t *memory = NULL;

    (void)puts("ready");
    (void)fflush(stdout);
    for (;;) { /* one client after the other */
        int sock = accept(listener, NULL, NULL);
        uint64_t bytes;

        if (sock < 0)
            bench_die("accept: %s", strerror(errno));
        (void)setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        struct wire wire = wire_start(sock, true);
        while (read_all(&wire, &bytes, sizeof bytes)) {
            if (bytes > room) {
                if (memory)
                    (void)munmap(memory, room);
                memory = touched_memory(bytes, 1);
                room = bytes;
            }
            if (!write_all(&wire, memory, bytes))
                break;
        }
        wire_end(&wire);
    }
}

static void fetch(uint16_t port, uint64_t bytes, size_t count, size_t window)
{
    struct wire wire = wire_start(bench_connect_tcp(port), false);
    uint8_t *memory = touched_memory(bytes, 0);
    int64_t since = 0;
    size_t asked = 0;

    for (size_t got = 0; got <= count; got++) { /* the first is not timed: the server's memory is new */
        for (; asked <= count && asked < (got == 0 ? 1 : got + window); asked++)
            if (!write_all(&wire, &bytes, sizeof bytes))
                bench_die("the server has gone");
        if (!read_all(&wire, memory, bytes))
            bench_die("the server has gone");
        if (got == 0)
            since = bench_now_ns();
    }
    (void)printf("%.3f\n", (double)count * (double)bytes / (double)(bench_now_ns() - since));
    wire_end(&wire);
}

int main(int argc, char **argv)
{
    with_tls = argc > 3 && strcmp(argv[argc - 1], "tls") == 0;
    argc -= with_tls;
    if (with_tls)
        tls_init();
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        serve((uint16_t)bench_number(argv[2]));
    if (argc != 6 || strcmp(argv[1], "fetch") != 0)
        bench_die("usage: stream serve PORT [tls] | stream fetch PORT BYTES COUNT WINDOW [tls]");
    fetch((uint16_t)bench_number(argv[2]), bench_number(argv[3]), bench_number(argv[4]), bench_number(argv[5]));
    return 0;
}
