/* Frames over a real Unix socket: cut anywhere, with and without fds, hostile headers, fds lost or left over. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/frame.h"

#define ROUNDS 300

static unsigned open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static int fd_with_size(off_t size)
{
    int fd = memfd_create("test", MFD_CLOEXEC);

    cr_assert_geq(fd, 0);
    cr_assert_eq(ftruncate(fd, size), 0);
    return fd;
}

static off_t size_of_fd(int fd)
{
    struct stat st;

    cr_assert_eq(fstat(fd, &st), 0);
    return st.st_size;
}

static void make_pair(int socks[2])
{
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socks), 0);
}

static void close_pair(const int socks[2])
{
    close(socks[0]);
    close(socks[1]);
}

/* Sends bytes with fds attached, whatever the frame says. */
static void send_raw(int sock, const void *bytes, size_t n, const int *fds, unsigned n_fds)
{
    char control[CMSG_SPACE(253 * sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec iov = {(void *)bytes, n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (n_fds) {
        struct cmsghdr *cmsg = (struct cmsghdr *)(void *)control;

        msg.msg_control = control;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
    }
    cr_assert_eq(sendmsg(sock, &msg, MSG_NOSIGNAL), (ssize_t)n);
}

static void send_header(int sock, uint32_t length, uint8_t nfds, const int *fds, unsigned n_fds)
{
    uint8_t header[FRAME_HEADER_BYTES];

    frame_header_encode(header, length, 9, nfds, FRAME_EVENT, 77);
    send_raw(sock, header, sizeof header, fds, n_fds);
}

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
    void *mine;
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
    mine = frame_reader_detach(&reader);
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
    void *mine;
    size_t have;

    memset(bytes, 5, sizeof bytes);
    frame_header_encode(bytes, 100, 1, 0, 0, 1);
    frame_header_encode(bytes + FRAME_HEADER_BYTES + 100, 100, 1, 0, 0, 2);
    frame_reader_init(&reader, 1000);
    memcpy(frame_reader_space(&reader, sizeof bytes, &have), bytes, sizeof bytes);
    frame_reader_commit(&reader, sizeof bytes - 50);
    cr_assert_eq(frame_reader_next(&reader, &frame, NULL), RDT_OK);
    mine = frame_reader_detach(&reader);
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
    cr_assert_eq(frame.request_id, 77);
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
        enum rdt_status status;
        struct frame frame;
        size_t n;

        while (pushed < ROUNDS && pushed - got < 40 && rand() % 8) {
            struct plan *plan = &plans[pushed];

            plan->length = (uint32_t)(rand() % 10 == 0 ? rand() % 300000 : rand() % 3 ? rand() % 300 : 0);
            plan->n_fds = (unsigned)(rand() % 3 == 0 ? rand() % 65 : 0);
            push_planned(&writer, plan, pushed++);
        }
        status = frame_writer_send(&writer, socks[1], NULL);
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
