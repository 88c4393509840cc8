/* SPDX-License-Identifier: Apache-2.0 */
/* proto/frame: a stream gives the same frames wherever it is cut, from memory and from a socket with descriptors.
 *
 *   | limit 2 | cuts: n, then n bytes | the stream |
 */
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/frame.h"
#include "tests/fuzz/harness/fuzz.h"

#define MOST_FRAMES 64

struct seen {
    unsigned n;
    uint64_t hashes[MOST_FRAMES];
    enum rdt_status end;
};

static uint64_t hash(uint64_t h, const void *data, size_t n)
{
    const uint8_t *bytes = data;

    for (size_t i = 0; i < n; i++)
        h = (h ^ bytes[i]) * 0x100000001b3;
    return h;
}

/* Takes the complete frames. false: the stream is broken, or enough frames were taken. */
static bool take_frames(struct frame_reader *reader, struct seen *seen)
{
    struct frame frame;
    struct rdt_error err;
    enum rdt_status status;

    while (seen->n < MOST_FRAMES && (status = frame_reader_next(reader, &frame, &err)) != RDT_AGAIN) {
        if (status != RDT_OK) {
            fuzz_refused(status, &err);
            seen->end = status;
            return false;
        }
        fuzz_must(frame.length <= reader->max_payload && frame.nfds <= RDT_MAX_FRAME_FDS);
        seen->hashes[seen->n] = hash(frame.request_id ^ frame.type ^ (uint64_t)frame.flags << 48, frame.payload, frame.length);
        seen->n++;
        if (frame.nfds > 0)
            close(frame_take_fd(&frame, 0));
        frame_close_fds(&frame);
    }
    return seen->n < MOST_FRAMES;
}

static void from_memory(const uint8_t *stream, size_t n, size_t limit, const uint8_t *cuts, size_t n_cuts, struct seen *seen)
{
    struct frame_reader reader;
    size_t done = 0, have;

    *seen = (struct seen){0};
    frame_reader_init(&reader, limit);
    for (size_t i = 0; done < n; i++) {
        size_t want = n_cuts ? cuts[i % n_cuts] + 1u : n;
        uint8_t *space;

        if (want > n - done)
            want = n - done;
        space = frame_reader_space(&reader, want, &have);
        fuzz_must(space && have >= want);
        memcpy(space, stream + done, want);
        frame_reader_commit(&reader, want);
        done += want;
        if (!take_frames(&reader, seen))
            break;
    }
    frame_reader_fini(&reader);
}

/* Each cut also says how many fds ride with it. */
static void from_socket(const uint8_t *stream, size_t n, size_t limit, const uint8_t *cuts, size_t n_cuts)
{
    struct frame_reader reader;
    struct seen seen = {0};
    bool going = true;
    int socks[2];
    int fds[16], null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    fuzz_must(null >= 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socks) == 0);
    for (unsigned i = 0; i < 16; i++)
        fds[i] = null;
    frame_reader_init(&reader, limit);
    for (size_t i = 0, done = 0; going && done < n; i++) {
        size_t want = n_cuts ? cuts[i % n_cuts] + 1u : 256, n_fds = want % 17, got;
        char control[CMSG_SPACE(sizeof fds)] = {0};
        struct iovec iov = {.iov_base = (void *)(uintptr_t)(stream + done), .iov_len = want < n - done ? want : n - done};
        struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

        if (n_fds > 0) {
            struct cmsghdr *cmsg = (struct cmsghdr *)(void *)control;

            msg.msg_control = control;
            msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
            cmsg->cmsg_level = SOL_SOCKET;
            cmsg->cmsg_type = SCM_RIGHTS;
            cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
            memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
        }
        fuzz_must(sendmsg(socks[0], &msg, MSG_NOSIGNAL) == (ssize_t)iov.iov_len);
        done += iov.iov_len;
        do {
            struct rdt_error err;
            enum rdt_status status = frame_reader_recv(&reader, socks[1], &got, &err);

            if (status == RDT_AGAIN)
                break;
            if (status != RDT_OK)
                fuzz_refused(status, &err);
            going = status == RDT_OK && take_frames(&reader, &seen);
        } while (going);
    }
    frame_reader_fini(&reader);
    close(socks[0]);
    close(socks[1]);
    close(null);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static unsigned most;
    const uint8_t *at = data, *end = data + bytes, *cuts;
    size_t limit = fuzz_take(&at, end, 2), n_cuts = fuzz_take(&at, end, 1);
    struct seen whole, cut;

    if (n_cuts > (size_t)(end - at))
        n_cuts = (size_t)(end - at);
    cuts = at;
    at += n_cuts;
    from_memory(at, (size_t)(end - at), limit, NULL, 0, &whole);
    from_memory(at, (size_t)(end - at), limit, cuts, n_cuts, &cut);
    fuzz_must(whole.n == cut.n && whole.end == cut.end &&
              memcmp(whole.hashes, cut.hashes, whole.n * sizeof *whole.hashes) == 0);
    from_socket(at, (size_t)(end - at), limit, cuts, n_cuts);
    fuzz_check_fds(&most);
    return 0;
}
