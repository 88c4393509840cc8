/* SPDX-License-Identifier: Apache-2.0 */
/* The frame writer, and random traffic between both ends of a socket. */
#include "tests/unit/proto/frame.h"

#define ROUNDS 300

Test(frame_writer, too_much_is_refused_and_changes_nothing)
{
    int fds[65] = {0};
    struct frame_writer writer;
    uint8_t *payload = NULL;
    size_t n;

    frame_writer_init(&writer);
    cr_assert_eq(frame_writer_push(&writer, 1, 0, 1, RDT_MAX_FRAME_BYTES + 1, NULL, 0, &payload), RDT_LIMIT);
    cr_assert_eq(frame_writer_push(&writer, 1, 0, 1, 0, fds, 65, &payload), RDT_LIMIT);
    cr_assert_null(payload);
    cr_assert_eq(writer.queued_frames, 0);
    cr_assert_eq(writer.queued_bytes, 0);
    cr_assert_null(frame_writer_peek(&writer, &n));
    frame_writer_fini(&writer);
}

Test(frame_writer, fini_closes_what_was_not_sent)
{
    unsigned before = open_fds();
    struct frame_writer writer;
    uint8_t *payload;
    int fd = fd_with_size(1);

    frame_writer_init(&writer);
    cr_assert_eq(frame_writer_push(&writer, 1, 0, 1, 3, &fd, 1, &payload), RDT_OK);
    frame_writer_fini(&writer);
    cr_assert_eq(open_fds(), before);
}

struct counting_sink {
    struct fd_sink sink;
    unsigned n_closed;
};

static void count_and_close(struct fd_sink *sink, int take_fd)
{
    ((struct counting_sink *)sink)->n_closed++;
    close(take_fd);
}

/* An fd that waited may be the last one of its file when it is sent, so the sink closes it. */
Test(frame_writer, sink_closes_the_fds_that_waited)
{
    struct counting_sink counting = {.sink.close = count_and_close};
    unsigned before = open_fds();
    struct frame_writer writer;
    uint8_t *payload, *received = malloc(1 << 20);
    int fd, socks[2];

    make_pair(socks);
    frame_writer_init(&writer);
    writer.sink = &counting.sink;
    for (unsigned round = 0; round < 2; round++) {
        counting.n_closed = 0;
        fd = fd_with_size(1);
        cr_assert_eq(frame_writer_push(&writer, 1, 0, 1, 0, &fd, 1, &payload), RDT_OK);
        cr_assert_eq(frame_writer_send(&writer, socks[0], NULL), RDT_OK);
        cr_assert_eq(counting.n_closed, 0, "it was sent at once");
        do {
            fd = fd_with_size(1);
            cr_assert_eq(frame_writer_push(&writer, 1, 0, 1, 65536, NULL, 0, &payload), RDT_OK);
            memset(payload, 0, 65536);
            cr_assert_eq(frame_writer_push(&writer, 1, 0, 1, 0, &fd, 1, &payload), RDT_OK);
        } while (frame_writer_send(&writer, socks[0], NULL) == RDT_OK);
        cr_assert_eq(counting.n_closed, 0);
        cr_assert_eq(writer.queued_fds, 1);
        do
            cr_assert_gt(recv(socks[1], received, 1 << 20, 0), 0);
        while (frame_writer_send(&writer, socks[0], NULL) != RDT_OK);
        cr_assert_eq(counting.n_closed, 1);
        while (recv(socks[1], received, 1 << 20, MSG_DONTWAIT) > 0)
            continue;
    }
    frame_writer_fini(&writer);
    close_pair(socks);
    free(received);
    cr_assert_eq(open_fds(), before);
}

/* The kernel counts fds under way per user; who has no privileges may have as many of them as open files. */
Test(frame_writer, too_many_fds_under_way_is_again)
{
    const struct rlimit limit = {64, 64};
    struct frame_writer writer;
    struct frame_reader reader;
    struct frame frame;
    uint8_t *payload;
    int fd = fd_with_size(1), socks[2];
    unsigned arrived = 0;
    size_t n;

    make_pair(socks);
    frame_reader_init(&reader, 100);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (geteuid() == 0)
        cr_assert_eq(setresuid(54321, 54321, 54321), 0);
    frame_writer_init(&writer);
    for (unsigned i = 0; i < 10; i++) {
        int fds[8];
        for (unsigned f = 0; f < 8; f++)
            cr_assert_geq(fds[f] = dup(fd), 0);
        cr_assert_eq(frame_writer_push(&writer, 1, 0, i + 1, 0, fds, 8, &payload), RDT_OK);
        cr_assert_eq(writer.queued_fds, 8);
        if (frame_writer_send(&writer, socks[0], NULL) != RDT_OK)
            break;
        cr_assert_eq(writer.queued_fds, 0);
    }
    cr_assert(writer.stalled, "66 to 80 fds were under way at a limit of 64");
    cr_assert_eq(writer.queued_fds, 8);
    while (frame_reader_recv(&reader, socks[1], &n, NULL) == RDT_OK)
        while (frame_reader_next(&reader, &frame, NULL) == RDT_OK) {
            frame_close_fds(&frame);
            arrived++;
        }
    cr_assert_eq(frame_writer_send(&writer, socks[0], NULL), RDT_OK, "they have arrived");
    cr_assert(!writer.stalled && writer.queued_fds == 0);
    cr_assert_eq(frame_reader_recv(&reader, socks[1], &n, NULL), RDT_OK);
    cr_assert_eq(frame_reader_next(&reader, &frame, NULL), RDT_OK);
    cr_assert_eq(frame.request_id, arrived + 1);
    frame_close_fds(&frame);
    frame_reader_fini(&reader);
    frame_writer_fini(&writer);
    close(fd);
    close_pair(socks);
}

Test(frame_writer, dead_socket_is_disconnected_without_a_signal)
{
    struct frame_writer writer;
    struct rdt_error err;
    uint8_t *payload;
    int socks[2];

    make_pair(socks);
    close(socks[1]);
    frame_writer_init(&writer);
    cr_assert_eq(frame_writer_push(&writer, 1, 0, 1, 0, NULL, 0, &payload), RDT_OK);
    cr_assert_eq(frame_writer_send(&writer, socks[0], &err), RDT_DISCONNECTED);
    close(socks[0]);
    cr_assert_eq(frame_writer_send(&writer, socks[0], &err), RDT_SYSTEM);
    frame_writer_fini(&writer);
}

Test(frame_writer, peek_and_consume_give_the_same_stream)
{
    struct frame_writer writer;
    struct frame_reader reader;
    struct frame frame;
    uint8_t *payload;
    unsigned got = 0;
    size_t n, have;

    srand(1);
    frame_writer_init(&writer);
    frame_reader_init(&reader, 10000);
    for (unsigned i = 0; i < 100; i++) {
        cr_assert_eq(frame_writer_push(&writer, (uint16_t)i, 0, i, i * 37, NULL, 0, &payload), RDT_OK);
        memset(payload, (int)i, i * 37);
    }
    while (writer.head) {
        const uint8_t *bytes = frame_writer_peek(&writer, &n);

        n = 1 + (size_t)rand() % n;
        memcpy(frame_reader_space(&reader, n, &have), bytes, n);
        frame_reader_commit(&reader, n);
        frame_writer_consume(&writer, n);
        while (frame_reader_next(&reader, &frame, NULL) == RDT_OK) {
            cr_assert_eq(frame.request_id, got);
            cr_assert_eq(frame.length, got * 37);
            for (unsigned b = 0; b < frame.length; b++)
                cr_assert(frame.payload[b] == (uint8_t)got);
            got++;
        }
    }
    cr_assert_eq(got, 100);
    cr_assert_eq(writer.queued_bytes, 0);
    cr_assert_eq(writer.queued_frames, 0);
    frame_reader_fini(&reader);
    frame_writer_fini(&writer);
}

/* ---- both ends, at random ---- */

struct plan {
    uint32_t length;
    unsigned n_fds;
};

static uint8_t byte_of(unsigned i, uint32_t at)
{
    return (uint8_t)(i * 31 + at * 7);
}

static void push_planned(struct frame_writer *writer, const struct plan *plan, unsigned i)
{
    int fds[RDT_MAX_FRAME_FDS];
    uint8_t *payload;

    for (unsigned f = 0; f < plan->n_fds; f++)
        fds[f] = fd_with_size((off_t)(i * 100 + f));
    cr_assert_eq(frame_writer_push(writer, (uint16_t)i, 0, i, plan->length, fds, plan->n_fds, &payload), RDT_OK);
    for (uint32_t at = 0; at < plan->length; at++)
        payload[at] = byte_of(i, at);
}

static void check_planned(struct frame *frame, const struct plan *plan, unsigned i)
{
    bool same = true;

    cr_assert_eq(frame->request_id, i);
    cr_assert_eq(frame->length, plan->length);
    cr_assert_eq(frame->nfds, plan->n_fds);
    for (uint32_t at = 0; at < plan->length; at++)
        same = same && frame->payload[at] == byte_of(i, at);
    cr_assert(same);
    for (unsigned f = 0; f < plan->n_fds; f++)
        cr_assert_eq(size_of_fd(frame->fds[f]), (off_t)(i * 100 + f));
    if (plan->n_fds > 0 && i % 2)
        close(frame_take_fd(frame, plan->n_fds - 1));
    frame_close_fds(frame);
}

Test(frame, random_traffic_arrives_as_it_was_sent, .timeout = 120)
{
    unsigned before = open_fds();
    unsigned pushed = 0, got = 0;
    struct plan plans[ROUNDS];
    struct frame_reader reader;
    struct frame_writer writer;
    int socks[2], small = 4096;

    srand(7);
    make_pair(socks);
    /* A small send buffer makes partial writes the rule. */
    cr_assert_eq(setsockopt(socks[1], SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    frame_reader_init(&reader, RDT_MAX_FRAME_BYTES);
    frame_writer_init(&writer);
    while (got < ROUNDS) {
        struct frame frame;
        size_t n;

        while (pushed < ROUNDS && pushed - got < 40 && rand() % 8) {
            struct plan *plan = &plans[pushed];

            plan->length = (uint32_t)(rand() % 10 == 0 ? rand() % 300000 : rand() % 3 ? rand() % 300 : 0);
            plan->n_fds = (unsigned)(rand() % 3 == 0 ? rand() % 65 : 0);
            push_planned(&writer, plan, pushed++);
        }
        enum rdt_status status = frame_writer_send(&writer, socks[1], NULL);
        cr_assert(status == RDT_OK || status == RDT_AGAIN);
        do {
            status = frame_reader_recv(&reader, socks[0], &n, NULL);
            cr_assert(status == RDT_OK || status == RDT_AGAIN);
            while (frame_reader_next(&reader, &frame, NULL) == RDT_OK) {
                check_planned(&frame, &plans[got], got);
                got++;
            }
        } while (status == RDT_OK);
    }
    cr_assert_eq(reader.n_fds, 0);
    cr_assert_eq(writer.queued_frames, 0);
    cr_assert_eq(writer.queued_bytes, 0);
    frame_reader_fini(&reader);
    frame_writer_fini(&writer);
    close_pair(socks);
    cr_assert_eq(open_fds(), before);
}

Test(frame, largest_frame_passes, .timeout = 60)
{
    struct plan plan = {RDT_MAX_FRAME_BYTES, RDT_MAX_FRAME_FDS};
    struct frame_reader reader;
    struct frame_writer writer;
    struct frame frame;
    int socks[2];
    size_t n;

    make_pair(socks);
    frame_reader_init(&reader, RDT_MAX_FRAME_BYTES);
    frame_writer_init(&writer);
    push_planned(&writer, &plan, 0);
    while (frame_reader_next(&reader, &frame, NULL) == RDT_AGAIN) {
        cr_assert_neq(frame_writer_send(&writer, socks[1], NULL), RDT_SYSTEM);
        cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, NULL), RDT_OK);
    }
    check_planned(&frame, &plan, 0);
    cr_assert_leq(reader.size, FRAME_HEADER_BYTES + RDT_MAX_FRAME_BYTES);
    frame_reader_fini(&reader);
    frame_writer_fini(&writer);
    close_pair(socks);
}
