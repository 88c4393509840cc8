/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes and descriptors that arrive in the wrong way: frames that never end, frames in very small pieces from many clients
 * at once, greetings that never end, and descriptors that are lost on the way. */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/integration/hostile/protocol_fixture.h"

/* Closed by the daemon, seen without waiting. */
static bool is_closed(const struct raw *raw)
{
    char byte[4096];
    ssize_t n;

    do {
        n = recv(raw->sock, byte, sizeof byte, MSG_DONTWAIT);
    } while (n > 0);
    return n == 0;
}

/* The daemon closes a connection without a complete HELLO in time, even if it sends a byte now and then. */
Test(hostile_frames, slow_greetings_end_in_time, .timeout = 120)
{
    enum { SILENT, HEADER, CRUMBS, KINDS };
    uint8_t hello[1000] = {0};
    struct raw raws[KINDS];
    size_t sent = 0;

    begin(NULL);
    for (unsigned i = 0; i < KINDS; i++)
        raw_connect(&raws[i], node.socket);
    frame_header_encode(hello, sizeof hello - FRAME_HEADER_BYTES, RDT_MSG_HELLO, 0, 0, 1);
    must(raw_bytes(&raws[HEADER], hello, FRAME_HEADER_BYTES));
    int64_t start = now_ns();
    for (unsigned closed = 0; closed != (1u << KINDS) - 1;) {
        struct pollfd fds[KINDS];

        if (!(closed & 1u << CRUMBS) && sent < sizeof hello - 1)
            (void)!send(raws[CRUMBS].sock, hello + sent++, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        for (unsigned i = 0; i < KINDS; i++)
            fds[i] = (struct pollfd){.fd = closed & 1u << i ? -1 : raws[i].sock, .events = POLLIN};
        (void)poll(fds, KINDS, 50); /* the pace of the crumbs */
        for (unsigned i = 0; i < KINDS; i++)
            if (fds[i].revents && is_closed(&raws[i]))
                closed |= 1u << i;
        must_ok(rdt_ping(bystander, LONG, &err));
        must_say(now_ns() - start < LONG + 10 * SEC, "still open: %x", closed);
    }
    for (unsigned i = 0; i < KINDS; i++)
        raw_close(&raws[i]);
    end();
}

/* The daemon was stopped: a HELLO that is in the socket when it continues is in time. */
Test(hostile_frames, greeting_that_waited_for_the_daemon_is_in_time, .timeout = 120)
{
    Rdt__Pb__Hello hello = RDT__PB__HELLO__INIT;
    struct raw raw;

    begin(NULL);
    raw_connect(&raw, node.socket);
    must_ok(rdt_ping(bystander, LONG, &err)); /* it was accepted */
    must_ok(rdt_ping(bystander, LONG, &err));
    node_freeze(&node);
    hello.protocol_min = hello.protocol_max = 1;
    uint64_t id = raw_send(&raw, RDT_MSG_HELLO, &hello.base, NULL, 0);
    struct pollfd quiet = (struct pollfd){.fd = raw.sock, .events = POLLIN};
    cr_assert_eq(poll(&quiet, 1, 10500), 0); /* longer than a greeting may take */
    node_thaw(&node);
    protobuf_c_message_free_unpacked(raw_reply(&raw, id, &rdt__pb__hello_reply__descriptor), NULL);
    ping_works(&raw);
    end_closed(&raw);
}

/* A client that broke the framing, does not read the refusal and keeps its end open is closed all the same. */
Test(hostile_frames, broken_client_that_does_not_read_is_closed_in_time, .timeout = 120)
{
    static uint8_t data[200000];
    struct raw raw;

    begin_greeted(&raw);
    Rdt__Pb__Ping ping = MESSAGE(ping, .data = (ProtobufCBinaryData){sizeof data, data});
    for (unsigned i = 0; i < 8; i++) /* more than the socket takes */
        (void)raw_send(&raw, RDT_MSG_PING, &ping.base, NULL, 0);
    must(raw_frame(&raw, UINT32_MAX, RDT_MSG_PING, 0, 0, 4711, "", 0, NULL, 0));
    wait_until(40 * SEC, node_now(&node).clients == 1); /* the bystander */
    end_closed(&raw);
}

Test(hostile_frames, announced_bytes_that_never_come_cost_nothing)
{
    enum { N = 40 };
    struct raw raws[N];

    begin(NULL);
    for (unsigned i = 0; i < N; i++)
        greeted(&raws[i]);
    size_t rss = rss_of(node.pid);
    for (unsigned i = 0; i < N; i++) /* 640 MiB are promised */
        must(raw_frame(&raws[i], RDT_MAX_FRAME_BYTES, RDT_MSG_PUT, 0, 0, 1, "\x0a", 1, NULL, 0));
    for (unsigned i = 0; i < 20; i++)
        others_are_well();
    cr_assert_lt(rss_of(node.pid), rss + 64 * MIB);
    for (unsigned i = 0; i < N; i++) {
        cr_assert(!is_closed(&raws[i])); /* it may still come */
        raw_close(&raws[i]);
    }
    end();
}

Test(hostile_frames, crumbs_of_many_clients_at_once_are_put_together)
{
    enum { N = 12, BYTES = 3000 };
    uint8_t frames[N][FRAME_HEADER_BYTES + BYTES];
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;
    size_t sent[N] = {0}, total[N], left = N;
    struct raw raws[N];
    uint64_t random = 11;

    begin(NULL);
    for (unsigned i = 0; i < N; i++) {
        uint8_t data[BYTES - 8];
        greeted(&raws[i]);
        fill_pattern(data, sizeof data, i);
        ping.data = (ProtobufCBinaryData){sizeof data, data};
        total[i] = FRAME_HEADER_BYTES + rdt__pb__ping__pack(&ping, frames[i] + FRAME_HEADER_BYTES);
        frame_header_encode(frames[i], (uint32_t)(total[i] - FRAME_HEADER_BYTES), RDT_MSG_PING, 0, 0, 900 + i);
    }
    while (left > 0) {
        unsigned i = next_random(&random) % N;
        size_t n = 1 + next_random(&random) % 97;

        if (sent[i] == total[i])
            continue;
        n = n < total[i] - sent[i] ? n : total[i] - sent[i];
        must(raw_bytes(&raws[i], frames[i] + sent[i], n));
        sent[i] += n;
        left -= sent[i] == total[i];
    }
    for (unsigned i = 0; i < N; i++) {
        Rdt__Pb__Ping *pong = (Rdt__Pb__Ping *)raw_reply(&raws[i], 900 + i, &rdt__pb__ping__descriptor);
        cr_assert(pong->data.len == BYTES - 8 && holds_pattern(pong->data.data, pong->data.len, i));
        rdt__pb__ping__free_unpacked(pong, NULL);
        raw_close(&raws[i]);
    }
    end();
}

/* The kernel drops what does not fit below the receiver's limit: the request is answered, the stream of fds is lost. */
/* Of that one request. */
Test(hostile_frames, fds_lost_to_the_daemons_limit_are_a_limit)
{
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;
    struct rlimit old, tight;
    struct raw raw;
    int fds[40];

    begin_greeted(&raw);
    for (unsigned i = 0; i < 40; i++)
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    must(prlimit(node.pid, RLIMIT_NOFILE, NULL, &old) == 0);
    tight = old;
    tight.rlim_cur = fds_of(node.pid) + 4;
    must(prlimit(node.pid, RLIMIT_NOFILE, &tight, NULL) == 0);
    must(raw_frame(&raw, 0, RDT_MSG_IMPORT, 40, 0, 77, "", 0, fds, 40));
    refuses(&raw, RDT_LIMIT, "limit");
    cr_assert_eq(raw.frame.request_id, 77);
    must(prlimit(node.pid, RLIMIT_NOFILE, &old, NULL) == 0);
    protobuf_c_message_free_unpacked(
        raw_reply(&raw, raw_send(&raw, RDT_MSG_PING, &ping.base, NULL, 0), &rdt__pb__ping__descriptor), NULL);
    raw_close(&raw);
    for (unsigned i = 0; i < 40; i++)
        close(fds[i]);
    end();
}

static int fetch_without_fds(struct actor *self, void *arg)
{
    const struct rdt_ref *ref = arg;
    struct rlimit limit;
    rdt_object *object;
    rdt *conn;

    node_connect(&node, &conn);
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    int last = dup(0);
    close(last);
    limit.rlim_cur = (rlim_t)last; /* nothing more can be opened */
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    must_refuse(RDT_LIMIT, "limit", rdt_fetch(conn, ref, 1, NULL, &object, &err));
    rdt_close(conn);
    limit.rlim_cur = limit.rlim_max;
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    node_connect(&node, &conn);
    must_ok(rdt_fetch(conn, ref, 1, NULL, &object, &err));
    rdt_release(object);
    rdt_close(conn);
    return 0;
}

Test(hostile_frames, fds_lost_to_the_librarys_limit_are_a_limit)
{
    struct actor actor;

    begin(NULL);
    actor_start(&actor, fetch_without_fds, &theirs);
    actor_wait(&actor);
    end();
}

/* A frame that says it has fds, with more of them than it says: the surplus is the next frame's, or nobody's. */
Test(hostile_frames, surplus_fds_go_with_nobody)
{
    Rdt__Pb__Ping ping = RDT__PB__PING__INIT;
    struct raw raw;
    int fds[8];

    begin(NULL);
    for (unsigned i = 0; i < 8; i++)
        fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    greeted(&raw);
    unsigned before = fds_of(node.pid);
    for (unsigned i = 0; i < 10; i++) {
        must(raw_frame(&raw, 0, RDT_MSG_PING, 2, 0, 50 + i, "", 0, fds, 8));
        protobuf_c_message_free_unpacked(raw_reply(&raw, 50 + i, &rdt__pb__ping__descriptor), NULL);
    }
    (void)raw_send(&raw, RDT_MSG_PING, &ping.base, NULL, 0);
    raw_close(&raw); /* 60 wait for a frame that never comes */
    wait_until(LONG, fds_of(node.pid) < before);
    for (unsigned i = 0; i < 8; i++)
        close(fds[i]);
    end();
}

/* The name of a client cannot forge a line of the log. */
Test(hostile_frames, names_break_no_line_of_the_log)
{
    Rdt__Pb__Hello hello = RDT__PB__HELLO__INIT;
    char name[2000];
    struct raw raw;

    begin(NULL);
    hello.protocol_min = hello.protocol_max = 1;
    for (unsigned i = 0; i < 3; i++) {
        raw_connect(&raw, node.socket);
        memset(name, i == 1 ? '\xff' : 'n', sizeof name);
        (void)snprintf(name, i == 0 ? sizeof name : 64, "x\n2026-01-01T00:00:00.000Z warn: forged %s", "by a client");
        name[sizeof name - 1] = '\0';
        hello.client_name = name;
        protobuf_c_message_free_unpacked(
            raw_reply(&raw, raw_send(&raw, RDT_MSG_HELLO, &hello.base, NULL, 0), &rdt__pb__hello_reply__descriptor), NULL);
        ping_works(&raw);
        raw_close(&raw);
    }
    cr_assert(!node_log_has(&node, "\n2026-01-01T"));
    others_are_well();
    rdt_close(bystander);
    node_end(&node, (const char *const[]){"forged by a client", NULL});
}
