/* SPDX-License-Identifier: Apache-2.0 */
/* backends/stream: counts the strangers. The test takes the place of the data thread, so that nothing happens by itself. */
#include <criterion/criterion.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/stream/stream.h"

#define PUT_OUT 3u
#define KNOCKS (MAX_STRANGERS + PUT_OUT)

static struct transport transport;
static struct conn *conn;
static int socks[KNOCKS];

static void log_nothing(void *ctx, enum rdt_log_level level, const char *fmt, ...) {}

static void setup(void)
{
    struct rdt_error err = {0};

    transport = (struct transport){.host.log = log_nothing,
                                   .settings = {.listen = "127.0.0.1", .threads = 1, .connections = 1, .dead_after_s = 5},
                                   .listener = -1};
    (void)pthread_mutex_init(&transport.lock, NULL);
    ring_init(&transport.conns);
    strangers_init(&transport.strangers, MAX_STRANGERS, MAX_STRANGERS);
    transport.threads[0] = (struct thread){.transport = &transport, .epoll = -1, .wake = -1};
    ring_init(&transport.threads[0].attention);
    ring_init(&transport.threads[0].visits);
    ring_init(&transport.threads[0].ending);
    ring_init(&transport.threads[0].timed);
    ring_init(&transport.threads[0].runnable);
    cr_assert_eq(listen_open(&transport, &err), RDT_OK, "%s", err.msg);
    cr_assert_eq(conn_create(&transport, (const uint8_t[16]){0}, NULL, &conn, &err), RDT_OK, "%s", err.msg);
    conn->offered = true;
}

static void knock(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        socks[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        cr_assert_eq(connect(socks[i], (const struct sockaddr *)&transport.address, sizeof(struct sockaddr_in)), 0);
        listen_accept(&transport, &transport.threads[0]);
    }
}

/* Returns the channel that the data thread would handle next, or NULL. */
static struct channel *channel_waiting(void)
{
    struct ring *attention = &transport.threads[0].attention;

    return ring_empty(attention) ? NULL : container_of(attention->next, struct channel, attention);
}

static void leave(unsigned n)
{
    struct channel *channel;

    while ((channel = channel_waiting()))
        channel_free(channel);
    for (unsigned i = 0; i < n; i++)
        (void)close(socks[i]);
    cr_assert_eq(transport.strangers.n, 0, "%u are left", transport.strangers.n);
    (void)close(transport.listener);
    ring_remove(&conn->ring);
    free(conn);
    (void)pthread_mutex_destroy(&transport.lock);
}

TestSuite(stream_strangers, .init = setup, .timeout = 60);

/* A channel is evicted, and shows the right token before its thread has handled the eviction. */
Test(stream_strangers, friend_that_made_room_is_let_in_no_more_and_counted_once)
{
    knock(KNOCKS);
    cr_assert_eq(transport.strangers.n, MAX_STRANGERS);
    struct channel *channel = channel_waiting();
    cr_assert(channel && channel->evicted);
    const char *why_not = conn_take_channel(channel, conn->ours.id, conn->ours.token);
    cr_assert_not_null(why_not);
    cr_assert_str_eq(why_not, "it was closed to make room for others");
    cr_assert_eq(transport.strangers.n, MAX_STRANGERS, "%u", transport.strangers.n);
    cr_assert(!channel->conn && conn->n_in == 0);
    leave(KNOCKS);
}

Test(stream_strangers, friend_that_is_let_in_is_no_stranger)
{
    knock(2);
    struct channel *channel = channel_waiting();
    cr_assert_null(conn_take_channel(channel, conn->ours.id, conn->ours.token));
    cr_assert_eq(transport.strangers.n, 1);
    cr_assert(channel->conn == conn && conn->n_in == 1);
    cr_assert_not_null(conn_take_channel(channel, conn->ours.id, conn->ours.id)); /* a wrong token */
    leave(2);
    cr_assert_eq(transport.strangers.n, 0);
}
