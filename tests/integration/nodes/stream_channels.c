/* SPDX-License-Identifier: Apache-2.0 */
/* The connections of the transport "stream", with one instance of it in this process: what a peer that has the secrets, or
 * a stranger, can do to them at the worst moment. stream.c tests it between daemons. */
#include <criterion/criterion.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../../backends/stream/wire.c"
#include "tests/support/backend_host.h"
#include "tests/support/check.h"

TestSuite(stream_channels, .timeout = 120);

#define SOON_MS 5000

static struct backend_host host;

static void open_with(const struct config_pair *config)
{
    char path[512];

    (void)snprintf(path, sizeof path, "%s/backends/rdt_stream.so", getenv("RDT_BUILD_DIR"));
    must_ok(backend_host_load(&host, path, &err));
    must_ok(backend_host_open(&host, config, &err));
}

/* ---- a friend by hand: it has what the offer says ---- */

struct friend
{
    struct sockaddr_storage address;
    struct secrets secrets;
    int sock;
};

static int knock(const struct sockaddr_storage *address)
{
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), little = 4096; /* soon full of what it does not read */

    must(sock >= 0 && setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &little, sizeof little) == 0);
    must(connect(sock, (const struct sockaddr *)address, sizeof(struct sockaddr_in)) == 0);
    return sock;
}

static void make_friend(struct host_conn *conn, struct friend *friend)
{
    uint8_t blob[RDT_OFFER_MAX_BYTES];
    size_t bytes;
    bool plain;

    must_ok(host_conn_create(&host, conn, &err));
    must_ok(host.ops->offer(conn->handle, blob, &bytes, &err));
    must_ok(wire_read_offer(blob, bytes, &friend->address, &friend->secrets, &plain, &err));
}

static void befriend(struct host_conn *conn, struct friend *friend)
{
    make_friend(conn, friend);
    friend->sock = knock(&friend->address);
}

static void leave(struct host_conn *conn)
{
    must(host_conn_disconnect(conn, SOON_MS));
    host_conn_destroy(conn);
}

static bool is_closed(int sock, int ms)
{
    struct pollfd pollfd = {.fd = sock, .events = POLLIN};
    uint8_t bytes[4096];

    for (;;) {
        if (poll(&pollfd, 1, patience_ms(ms)) != 1)
            return false;
        if (recv(sock, bytes, sizeof bytes, 0) <= 0)
            return true;
    }
}

/* ---- ends ---- */

/* All that it says, and its end, are there before anybody listens: there is one edge for everything. */
Test(stream_channels, end_that_comes_with_the_last_bytes_is_seen)
{
    enum { BYTES = 1000, ROUNDS = 20 };
    const struct header header = {.kind = HEADER_CHUNK, .transfer = 1, .chunk = 0, .bytes = BYTES};
    uint8_t memory[BYTES], message[HELLO_BYTES + HEADER_BYTES + BYTES + 3] = {0};

    open_with(NULL);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct friend friend;
        struct host_conn conn;
        struct host_op op;

        make_friend(&conn, &friend);
        host_op_fill(&op, 1, 0, memory, BYTES);
        must_ok(host_op_post(&conn, &op, POST_RECV, &err));
        wire_put_hello(&friend.secrets, 0, false, message);
        wire_put_header(&header, message + HELLO_BYTES); /* and all of the chunk, but not all of its trailer */
        friend.sock = knock(&friend.address);
        must(send(friend.sock, message, sizeof message, MSG_MORE) == sizeof message);
        must(shutdown(friend.sock, SHUT_WR) == 0);
        must(host_conn_wait_failed(&conn, SOON_MS));
        must(host_op_wait(&op, SOON_MS) && op.status == RDT_TRANSPORT);
        leave(&conn);
        (void)close(friend.sock);
    }
    backend_host_close(&host);
}

/* ---- TLS that begins anew ---- */

static const uint8_t *psk_id, *psk_key;

static int use_key(SSL *ssl, const EVP_MD *md, const unsigned char **id_p, size_t *id_bytes_p, SSL_SESSION **session_p)
{
    static const unsigned char suite[2] = {0x13, 0x01};
    SSL_SESSION *session = SSL_SESSION_new();

    must(session && SSL_SESSION_set1_master_key(session, psk_key, KEY_BYTES) &&
         SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, suite)) &&
         SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION));
    *session_p = session;
    *id_p = psk_id;
    *id_bytes_p = ID_BYTES;
    return 1;
}

/* OpenSSL would serve it for as long as it asks. */
Test(stream_channels, peer_that_changes_keys_is_thrown_out)
{
    const struct config_pair tls[] = {{"encrypt", "always"}, {"threads", "1"}, {"dead_after", "3600"}, {NULL, NULL}};
    uint8_t hello[HELLO_BYTES], welcome[WELCOME_BYTES], memory[1000], from[1000];
    struct backend_host other;
    struct host_conn conn, a, b;
    struct host_op send_op, recv_op;
    struct friend friend;
    char path[512];
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());

    open_with(tls);
    befriend(&conn, &friend);
    psk_id = friend.secrets.id, psk_key = friend.secrets.key;
    SSL_CTX_set_psk_use_session_callback(ctx, use_key);
    (void)SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256");
    SSL *ssl = SSL_new(ctx);
    must(ssl && SSL_set_fd(ssl, friend.sock) && SSL_connect(ssl) == 1);
    wire_put_hello(&friend.secrets, 0, false, hello);
    must(SSL_write(ssl, hello, sizeof hello) == sizeof hello && SSL_read(ssl, welcome, sizeof welcome) == sizeof welcome);
    must(SSL_key_update(ssl, SSL_KEY_UPDATE_REQUESTED) == 1 && SSL_do_handshake(ssl) == 1);
    must(host_conn_wait_failed(&conn, SOON_MS));
    must(SSL_read(ssl, welcome, sizeof welcome) <= 0); /* nor is it answered */

    /* The thread that had it goes on with others. */
    (void)snprintf(path, sizeof path, "%s/backends/rdt_stream.so", getenv("RDT_BUILD_DIR"));
    must_ok(backend_host_load(&other, path, &err));
    must_ok(backend_host_open(&other, tls, &err));
    must_ok(host_conn_create(&host, &a, &err));
    must_ok(host_conn_create(&other, &b, &err));
    must_ok(host_conn_join(&a, &b, &err));
    pattern_fill(from, sizeof from, 1);
    host_op_fill(&recv_op, 1, 0, memory, sizeof memory);
    host_op_fill(&send_op, 1, 0, from, sizeof from);
    must_ok(host_op_post(&a, &recv_op, POST_RECV, &err));
    must_ok(host_op_post(&b, &send_op, POST_SEND, &err));
    must(host_op_wait(&recv_op, SOON_MS) && recv_op.status == RDT_OK && pattern_holds(memory, sizeof memory, 1));
    leave(&a);
    leave(&b);
    leave(&conn);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    (void)close(friend.sock);
    backend_host_close(&other);
    backend_host_close(&host);
}

/* ---- a crowd at the port ---- */

struct crowd {
    struct sockaddr_storage address;
    atomic_bool enough;
    pthread_t thread;
};

static void *push(void *arg)
{
    enum { AT_ONCE = 200 }; /* more than there is room for */
    struct crowd *crowd = arg;
    int socks[AT_ONCE];

    while (!atomic_load(&crowd->enough)) {
        for (unsigned i = 0; i < AT_ONCE; i++) {
            socks[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
            (void)connect(socks[i], (const struct sockaddr *)&crowd->address, sizeof(struct sockaddr_in));
        }
        for (unsigned i = 0; i < AT_ONCE; i++)
            (void)close(socks[i]);
    }
    return NULL;
}

static void gather(struct crowd *crowd, const struct sockaddr_storage *address)
{
    crowd->address = *address;
    atomic_store(&crowd->enough, false);
    must(pthread_create(&crowd->thread, NULL, push, crowd) == 0);
}

static void disperse(struct crowd *crowd)
{
    atomic_store(&crowd->enough, true);
    must(pthread_join(crowd->thread, NULL) == 0);
}

/* A regression: a connection that was closed in the moment of its greeting was counted twice, until the count reached zero
 * and no connection was closed any more. */
Test(stream_channels, friends_in_a_crowd_are_let_in_or_put_out_and_counted_once)
{
    enum { ROUNDS = 600 };
    const struct config_pair threads[] = {{"threads", "3"}, {NULL, NULL}};
    uint8_t hello[HELLO_BYTES], welcome[WELCOME_BYTES];
    struct friend friend;
    struct host_conn conn;
    struct crowd crowd;
    unsigned in = 0;

    open_with(threads);
    befriend(&conn, &friend);
    gather(&crowd, &friend.address);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        int sock = knock(&friend.address);
        int64_t at = now_ns() + (i % 64) * 30000; /* each waits a little longer at the door */

        wire_put_hello(&friend.secrets, i, false, hello);
        while (now_ns() < at)
            ;
        (void)send(sock, hello, sizeof hello, MSG_NOSIGNAL);
        in += recv(sock, welcome, sizeof welcome, MSG_WAITALL) == sizeof welcome;
        (void)close(sock);
        if (host_conn_wait_failed(&conn, 0)) { /* the connection failed with its end, so a new one is made */
            leave(&conn);
            (void)close(friend.sock);
            befriend(&conn, &friend);
        }
    }
    disperse(&crowd);
    must_say(in > 0, "nobody was let in");
    leave(&conn);
    (void)close(friend.sock);
    befriend(&conn, &friend); /* and the door is as wide as before */
    wire_put_hello(&friend.secrets, 0, false, hello);
    must(send(friend.sock, hello, sizeof hello, 0) == sizeof hello);
    must(recv(friend.sock, welcome, sizeof welcome, MSG_WAITALL) == sizeof welcome);
    leave(&conn);
    (void)close(friend.sock);
    backend_host_close(&host);
}

/* A connection that was accepted while the transport stopped is closed too. */
Test(stream_channels, stop_in_a_crowd_leaves_no_descriptor)
{
    enum { ROUNDS = 30 };
    const struct config_pair threads[] = {{"threads", "4"}, {NULL, NULL}};
    unsigned before = count_fds();

    for (unsigned i = 0; i < ROUNDS; i++) {
        struct friend friend;
        struct host_conn conn;
        struct crowd crowd;

        open_with(threads);
        befriend(&conn, &friend);
        gather(&crowd, &friend.address);
        must(is_closed(friend.sock, SOON_MS)); /* the crowd is there: it had to make room */
        leave(&conn);
        host.ops->close(host.transport);
        host.transport = NULL;
        disperse(&crowd);
        (void)close(friend.sock);
        must_say(count_fds() <= before + 1, "%u descriptors, %u before", count_fds(), before);
    }
}
