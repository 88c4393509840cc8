/* SPDX-License-Identifier: Apache-2.0 */
/* The frame reader: streams that are cut anywhere, with and without descriptors, hostile headers, and descriptors that are
 * lost or left over. */
#include "tests/unit/proto/frame.h"

Test(frame, header_is_little_endian)
{
    static const uint8_t expected[] = {4, 3, 2, 1, 6, 5, 7, 8, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11};
    uint8_t header[FRAME_HEADER_BYTES];

    frame_header_encode(header, 0x01020304, 0x0506, 7, 8, 0x1112131415161718);
    cr_assert_eq(memcmp(header, expected, sizeof expected), 0);
}

Test(frame, taken_fd_is_gone)
{
    struct frame frame = {.nfds = 1, .fds = {fd_with_size(1)}};
    int fd = frame_take_fd(&frame, 0);

    cr_assert_geq(fd, 0);
    cr_assert_eq(frame_take_fd(&frame, 0), -1);
    cr_assert_eq(frame_take_fd(&frame, 1), -1);
    cr_assert_eq(frame_take_fd(&frame, 1000), -1);
    frame_close_fds(&frame);
    cr_assert_eq(close(fd), 0);
}

Test(frame_reader, empty_has_no_frame)
{
    struct frame_reader reader;
    struct frame frame;

    frame_reader_init(&reader, 100);
    cr_assert_eq(frame_reader_next(&reader, &frame, NULL), RDT_AGAIN);
    frame_reader_fini(&reader);
}

Test(frame_reader, quiet_socket_is_again_and_closed_is_disconnected)
{
    struct frame_reader reader;
    struct rdt_error err;
    int socks[2];
    size_t n = 5;

    make_pair(socks);
    frame_reader_init(&reader, 100);
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, &err), RDT_AGAIN);
    cr_assert_eq(n, 5);
    close(socks[1]);
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, &err), RDT_DISCONNECTED);
    close(socks[0]);
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, &err), RDT_SYSTEM);
    cr_assert_eq(err.sys_errno, EBADF);
    frame_reader_fini(&reader);
}

Test(frame_reader, byte_by_byte_is_one_frame)
{
    uint8_t bytes[FRAME_HEADER_BYTES + 5];
    struct frame_reader reader;
    struct frame frame;

    frame_header_encode(bytes, 5, 3, 0, FRAME_REPLY, 42);
    memcpy(bytes + FRAME_HEADER_BYTES, "hello", 5);
    frame_reader_init(&reader, 5);
    for (size_t i = 0; i < sizeof bytes; i++) {
        size_t have;
        uint8_t *space = frame_reader_space(&reader, 1, &have);

        cr_assert_eq(frame_reader_next(&reader, &frame, NULL), RDT_AGAIN);
        cr_assert_geq(have, 1);
        *space = bytes[i];
        frame_reader_commit(&reader, 1);
    }
    cr_assert_eq(frame_reader_next(&reader, &frame, NULL), RDT_OK);
    cr_assert_eq(frame.type, 3);
    cr_assert_eq(frame.flags, FRAME_REPLY);
    cr_assert_eq(frame.request_id, 42);
    cr_assert_eq(frame.length, 5);
    cr_assert_eq(memcmp(frame.payload, "hello", 5), 0);
    cr_assert_eq(frame_reader_next(&reader, &frame, NULL), RDT_AGAIN);
    frame_reader_fini(&reader);
}

Test(frame_reader, space_is_as_large_as_asked)
{
    struct frame_reader reader;
    size_t have;
    uint8_t *space;

    frame_reader_init(&reader, 1 << 20);
    for (size_t want = 1; want < 3000000; want = want * 3 + 1) {
        space = frame_reader_space(&reader, want, &have);
        cr_assert_not_null(space);
        cr_assert_geq(have, want);
        memset(space, 0, have);
        frame_reader_commit(&reader, 1);
    }
    cr_assert_null(frame_reader_space(&reader, SIZE_MAX, &have));
    frame_reader_fini(&reader);
}

Test(frame_reader, too_long_is_refused_before_it_grows)
{
    struct frame_reader reader;
    struct frame frame;
    struct rdt_error err;
    int socks[2];
    size_t n;

    make_pair(socks);
    frame_reader_init(&reader, 100000);
    send_header(socks[1], 100001, 0, NULL, 0);
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, &err), RDT_OK);
    cr_assert_eq(frame_reader_next(&reader, &frame, &err), RDT_LIMIT);
    cr_assert_eq(frame.type, 9);
    cr_assert_eq(frame.request_id, 77);
    cr_assert_eq(frame.nfds, 0);
    cr_assert_leq(reader.size, 65536);
    cr_assert_eq(frame_reader_next(&reader, &frame, &err), RDT_LIMIT, "the stream stays lost");
    frame_reader_fini(&reader);
    close_pair(socks);
}

Test(frame_reader, announced_bytes_cost_nothing_until_they_come)
{
    struct frame_reader reader;
    struct frame frame;
    int socks[2];
    size_t n;

    make_pair(socks);
    frame_reader_init(&reader, RDT_MAX_FRAME_BYTES);
    send_header(socks[1], RDT_MAX_FRAME_BYTES, 0, NULL, 0);
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, NULL), RDT_OK);
    cr_assert_eq(frame_reader_next(&reader, &frame, NULL), RDT_AGAIN);
    send_raw(socks[1], "x", 1, NULL, 0);
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, NULL), RDT_OK);
    cr_assert_leq(reader.size, 65536);
    frame_reader_fini(&reader);
    close_pair(socks);
}

Test(frame_reader, large_buffer_is_given_back)
{
    struct frame_reader reader;
    struct frame frame;
    size_t have;

    frame_reader_init(&reader, 4 << 20);
    frame_header_encode(frame_reader_space(&reader, FRAME_HEADER_BYTES + (4 << 20), &have), 4 << 20, 1, 0, 0, 1);
    frame_reader_commit(&reader, FRAME_HEADER_BYTES + (4 << 20));
    cr_assert_eq(frame_reader_next(&reader, &frame, NULL), RDT_OK);
    cr_assert_not_null(frame_reader_space(&reader, 1, &have));
    cr_assert_leq(reader.size, 65536);
    frame_reader_fini(&reader);
}

/* What was read stays as it is for whoever has it, while the reader goes on. */
Test(frame_reader, detached_payload_stays)
{
    static uint8_t bytes[3 * FRAME_HEADER_BYTES + 70000 + 10 + 66000];
    struct frame_reader reader;
    struct frame first, second, third;
    size_t have;

    memset(bytes, 7, sizeof bytes);
    frame_header_encode(bytes, 70000, 1, 0, 0, 1);
    frame_header_encode(bytes + FRAME_HEADER_BYTES + 70000, 10, 1, 0, 0, 2);
    frame_header_encode(bytes + 2 * FRAME_HEADER_BYTES + 70010, 66000, 1, 0, 0, 3);
    frame_reader_init(&reader, RDT_MAX_FRAME_BYTES);
    memcpy(frame_reader_space(&reader, sizeof bytes, &have), bytes, sizeof bytes);
    frame_reader_commit(&reader, sizeof bytes);
    cr_assert_eq(frame_reader_next(&reader, &first, NULL), RDT_OK);
    cr_assert_null(frame_reader_detach(&reader), "as much again would be copied");
    cr_assert_eq(frame_reader_next(&reader, &second, NULL), RDT_OK);
    cr_assert_eq(frame_reader_next(&reader, &third, NULL), RDT_OK);
    void *mine = frame_reader_detach(&reader);
    cr_assert_not_null(mine);
    cr_assert_eq(frame_reader_bytes(&reader), 0u);
    memset(frame_reader_space(&reader, 66000, &have), 8, 66000);
    frame_reader_fini(&reader);
    cr_assert_eq(third.request_id, 3u);
    for (unsigned i = 0; i < 66000; i++)
        cr_assert_eq(third.payload[i], 7);
    free(mine);
}

Test(frame_reader, what_came_behind_the_detached_goes_on)
{
    uint8_t bytes[2 * FRAME_HEADER_BYTES + 200];
    struct frame_reader reader;
    struct frame frame;
    size_t have;

    memset(bytes, 5, sizeof bytes);
    frame_header_encode(bytes, 100, 1, 0, 0, 1);
    frame_header_encode(bytes + FRAME_HEADER_BYTES + 100, 100, 1, 0, 0, 2);
    frame_reader_init(&reader, 1000);
    memcpy(frame_reader_space(&reader, sizeof bytes, &have), bytes, sizeof bytes);
    frame_reader_commit(&reader, sizeof bytes - 50);
    cr_assert_eq(frame_reader_next(&reader, &frame, NULL), RDT_OK);
    void *mine = frame_reader_detach(&reader);
    cr_assert_not_null(mine);
    cr_assert_eq(frame_reader_next(&reader, &frame, NULL), RDT_AGAIN);
    memset(frame_reader_space(&reader, 50, &have), 5, 50);
    frame_reader_commit(&reader, 50);
    cr_assert_eq(frame_reader_next(&reader, &frame, NULL), RDT_OK);
    cr_assert_eq(frame.request_id, 2u);
    cr_assert_eq(frame.payload[99], 5);
    frame_reader_fini(&reader);
    free(mine);
}

Test(frame_reader, full_of_whole_frames_waits)
{
    uint8_t bytes[65536] = {0};
    struct frame_reader reader;
    struct frame frame;
    int socks[2];
    size_t n;
    unsigned frames = 0;

    for (size_t at = 0; at < sizeof bytes; at += FRAME_HEADER_BYTES)
        frame_header_encode(bytes + at, 0, 1, 0, 0, at);
    make_pair(socks);
    frame_reader_init(&reader, 1000);
    send_raw(socks[1], bytes, sizeof bytes, NULL, 0);
    send_raw(socks[1], bytes, FRAME_HEADER_BYTES, NULL, 0);
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, NULL), RDT_OK);
    cr_assert_eq(n, sizeof bytes);
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, NULL), RDT_AGAIN);
    while (frame_reader_next(&reader, &frame, NULL) == RDT_OK)
        frames++;
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, NULL), RDT_OK);
    cr_assert_eq(frame_reader_next(&reader, &frame, NULL), RDT_OK);
    cr_assert_eq(frames, sizeof bytes / FRAME_HEADER_BYTES);
    frame_reader_fini(&reader);
    close_pair(socks);
}

Test(frame_reader, claimed_fds_that_did_not_come_are_a_protocol_error)
{
    unsigned before = open_fds();
    int fd = fd_with_size(1), socks[2];
    struct frame_reader reader;
    struct frame frame;
    size_t n;

    make_pair(socks);
    frame_reader_init(&reader, 100);
    send_header(socks[1], 50, 2, &fd, 1);
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, NULL), RDT_OK);
    cr_assert_eq(frame_reader_next(&reader, &frame, NULL), RDT_PROTOCOL, "known before the payload is there");
    cr_assert_eq(frame.request_id, 77);
    frame_close_fds(&frame);
    frame_reader_fini(&reader);
    close(fd);
    close_pair(socks);
    cr_assert_eq(open_fds(), before);
}

Test(frame_reader, more_fds_than_a_frame_may_have_are_a_protocol_error)
{
    unsigned before = open_fds();
    int fds[253], fd = fd_with_size(1), socks[2];
    struct frame_reader reader;
    struct frame frame;
    size_t n;

    for (size_t i = 0; i < 253; i++)
        fds[i] = fd;
    make_pair(socks);
    frame_reader_init(&reader, 100);
    send_header(socks[1], 0, 65, fds, 65);
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, NULL), RDT_OK);
    cr_assert_eq(frame_reader_next(&reader, &frame, NULL), RDT_PROTOCOL);
    send_header(socks[1], 0, 0, fds, 253);
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, NULL), RDT_PROTOCOL, "no room for what nobody claims");
    frame_reader_fini(&reader);
    close(fd);
    close_pair(socks);
    cr_assert_eq(open_fds(), before);
}

Test(frame_reader, fds_lost_to_our_own_limit_are_said_so)
{
    unsigned before = open_fds();
    int fds[8], socks[2];
    struct frame_reader reader;
    struct frame frame;
    struct rdt_error err;
    struct rlimit limit, old;
    size_t n;

    make_pair(socks);
    for (int i = 0; i < 8; i++)
        fds[i] = fd_with_size(i + 1);
    frame_reader_init(&reader, 100);
    send_header(socks[1], 0, 1, fds, 1);
    send_header(socks[1], 0, 4, fds, 4);
    send_header(socks[1], 0, 1, fds + 7, 1);
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, &err), RDT_OK);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    limit = old;
    limit.rlim_cur = (rlim_t)dup(0) + 2; /* two more: dup gave us the lowest free number */
    close((int)limit.rlim_cur - 2);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, &err), RDT_OK);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, &err), RDT_OK);

    cr_assert_eq(frame_reader_next(&reader, &frame, &err), RDT_OK, "complete before the loss");
    cr_assert_eq(size_of_fd(frame.fds[0]), 1);
    frame_close_fds(&frame);
    cr_assert_eq(frame_reader_next(&reader, &frame, &err), RDT_LIMIT, "and never the fds of a later frame");
    cr_assert(frame.request_id == 77 && frame.passed_over);
    cr_assert_eq(frame_reader_next(&reader, &frame, &err), RDT_LIMIT, "nor is that given others'");
    cr_assert(frame.passed_over);
    send_header(socks[1], 0, 1, fds + 6, 1);
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, &err), RDT_OK);
    cr_assert_eq(frame_reader_next(&reader, &frame, &err), RDT_OK, "and the stream goes on");
    cr_assert_eq(size_of_fd(frame.fds[0]), 7);
    frame_close_fds(&frame);
    frame_reader_fini(&reader);
    for (int i = 0; i < 8; i++)
        close(fds[i]);
    close_pair(socks);
    cr_assert_eq(open_fds(), before);
}

Test(frame_reader, received_fds_are_close_on_exec)
{
    int fd = fd_with_size(1), socks[2];
    struct frame_reader reader;
    struct frame frame;
    size_t n;

    make_pair(socks);
    frame_reader_init(&reader, 100);
    send_header(socks[1], 0, 1, &fd, 1);
    cr_assert_eq(frame_reader_recv(&reader, socks[0], &n, NULL), RDT_OK);
    cr_assert_eq(frame_reader_next(&reader, &frame, NULL), RDT_OK);
    cr_assert(fcntl(frame.fds[0], F_GETFD) & FD_CLOEXEC);
    frame_close_fds(&frame);
    frame_reader_fini(&reader);
    close(fd);
    close_pair(socks);
}
