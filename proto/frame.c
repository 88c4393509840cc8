/* SPDX-License-Identifier: Apache-2.0 */
/* Frames and their fds: the bytes and descriptors between a socket and the code that decodes or encodes
 * messages.
 *
 * The reader does not grow for a frame before the announced length has been checked, and holds no more fds than frames can
 * announce. No fd is sent twice. Nothing here blocks or raises SIGPIPE. */
#include "frame.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "std_fds.h"

/* The initial size of a reader's buffer, and the most that one read returns, because the loop has other sockets to read. */
#define READ_BYTES ((size_t)64 << 10)
/* When so much of a frame has arrived, the reader reserves room for all of it. Pages are allocated as they are written. */
#define BELIEVE_BYTES ((size_t)192 << 10)
#define KEEP_BYTES ((size_t)1 << 20) /* an empty buffer larger than this is freed */
#define KERNEL_MAX_FDS 253u          /* SCM_MAX_FD: the most fds in one message of a Unix socket */
#define SEND_FRAMES 64               /* frames in one sendmsg */

_Static_assert(4 * RDT_MAX_FRAME_FDS >= KERNEL_MAX_FDS, "a reader has room for whatever one recvmsg can bring");
_Static_assert(RDT_MAX_FRAME_FDS <= KERNEL_MAX_FDS, "the fds of one frame fit into one sendmsg");

void frame_header_encode(uint8_t out[FRAME_HEADER_BYTES], uint32_t length, uint16_t type, uint8_t nfds, uint8_t flags,
                         uint64_t request_id)
{
    put_le(out, length, 4);
    put_le(out + 4, type, 2);
    out[6] = nfds;
    out[7] = flags;
    put_le(out + 8, request_id, 8);
}

static void close_all(struct fd_sink *sink, const int *fds, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (fds[i] >= 0 && sink)
            sink->close(sink, fds[i]);
        else if (fds[i] >= 0)
            (void)close(fds[i]);
    }
}

int frame_take_fd(struct frame *frame, unsigned i)
{
    int fd;

    if (i >= frame->nfds)
        return -1;
    fd = frame->fds[i];
    frame->fds[i] = -1;
    return fd;
}

void frame_close_fds(struct frame *frame)
{
    close_all(frame->sink, frame->fds, frame->nfds);
    frame->nfds = 0;
}

/* ---- reading ---- */

void frame_reader_init(struct frame_reader *reader, size_t max_payload)
{
    memset(reader, 0, sizeof *reader);
    reader->max_payload = max_payload;
}

void frame_reader_fini(struct frame_reader *reader)
{
    close_all(reader->sink, reader->fds, reader->n_fds);
    free(reader->buf);
    frame_reader_init(reader, reader->max_payload);
}

/* The size of the frame that is being received. 0: its header is not complete, or it is too long and gets
 * no room. */
static size_t frame_bytes_expected(const struct frame_reader *reader)
{
    size_t length;

    if (reader->end - reader->start < FRAME_HEADER_BYTES)
        return 0;
    length = get_le(reader->buf + reader->start, 4);
    return length > reader->max_payload ? 0 : FRAME_HEADER_BYTES + length;
}

static void compact(struct frame_reader *reader)
{
    if (reader->start == 0)
        return;
    memmove(reader->buf, reader->buf + reader->start, reader->end - reader->start);
    reader->end -= reader->start;
    reader->start = 0;
}

static bool resize(struct frame_reader *reader, size_t size)
{
    uint8_t *buf = realloc(reader->buf, size);

    if (!buf)
        return false;
    reader->buf = buf;
    reader->size = size;
    return true;
}

static void give_back_if_empty(struct frame_reader *reader)
{
    if (reader->start != reader->end)
        return;
    reader->start = reader->end = 0;
    if (reader->size > KEEP_BYTES) {
        free(reader->buf);
        reader->buf = NULL;
        reader->size = 0;
    }
}

uint8_t *frame_reader_space(struct frame_reader *reader, size_t want, size_t *have_p)
{
    give_back_if_empty(reader);
    if (reader->size - reader->end < want)
        compact(reader);
    if (!reader->buf || reader->size - reader->end < want) {
        size_t size = reader->size ? 2 * reader->size : READ_BYTES;

        if (size - reader->end < want) {
            if (want > SIZE_MAX - reader->end)
                return NULL;
            size = reader->end + want;
        }
        if (!resize(reader, size))
            return NULL;
    }
    *have_p = reader->size - reader->end;
    return reader->buf + reader->end;
}

void frame_reader_commit(struct frame_reader *reader, size_t n)
{
    assert(n <= reader->size - reader->end);
    reader->end += n;
}

/* Makes room for one read. The buffer doubles as bytes arrive, up to the size of the current frame, so that a header that
 * announces megabytes costs nothing by itself, and large frames are not moved again and again. */
static enum rdt_status make_room(struct frame_reader *reader, struct rdt_error *err)
{
    size_t expected, missing, unread;

    give_back_if_empty(reader);
    if (!reader->buf && !resize(reader, READ_BYTES))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to receive into");

    expected = frame_bytes_expected(reader);
    unread = reader->end - reader->start;
    missing = expected > unread ? expected - unread : 0;
    if (reader->size - reader->end < READ_BYTES / 4 || reader->size - reader->end < missing)
        compact(reader);
    if (reader->size - reader->end < missing && reader->size - reader->end < READ_BYTES / 4) {
        size_t size = expected;

        if (unread < BELIEVE_BYTES && 2 * reader->size < expected)
            size = 2 * reader->size;
        if (!resize(reader, size))
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a frame of %zu bytes", expected);
    }
    /* the buffer is full of whole frames (or has one that frame_reader_next refuses), which must be taken
     * first */
    return reader->end < reader->size ? RDT_OK : RDT_AGAIN;
}

static void pass_over(struct frame_reader *reader)
{
    size_t unread = reader->end - reader->start, n = reader->skip < unread ? reader->skip : unread;

    reader->start += n;
    reader->skip -= n;
}

/* Returns how many are left. */
static size_t avoid_std_fds(int *fds, size_t n)
{
    size_t left = 0;

    for (size_t i = 0; i < n; i++) {
        fds[left] = std_fds_avoid(fds[i]);
        left += fds[left] >= 0;
    }
    return left;
}

static enum rdt_status keep_fds(struct frame_reader *reader, struct msghdr *msg, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;
    bool lost = (msg->msg_flags & MSG_CTRUNC) != 0, refused = false;

    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
        int fds[KERNEL_MAX_FDS];
        size_t n, arrived;

        if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
            continue;
        arrived = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        assert(arrived <= KERNEL_MAX_FDS);
        memcpy(fds, CMSG_DATA(cmsg), arrived * sizeof(int));
        n = avoid_std_fds(fds, arrived);
        if (reader->n_lost > 0 || n < arrived) {
            /* Earlier fds were lost, or some of these, so they would be given to the wrong frame. */
            close_all(reader->sink, fds, (unsigned)n);
            lost = true;
        } else if (reader->sink && !reader->sink->admit(reader->sink, (unsigned)n)) {
            close_all(reader->sink, fds, (unsigned)n);
            lost = refused = true;
        } else if (n > sizeof reader->fds / sizeof reader->fds[0] - reader->n_fds) {
            close_all(reader->sink, fds, (unsigned)n);
            status = rdt_error_set(err, RDT_PROTOCOL, "%u fds arrived that no frame has announced", reader->n_fds);
        } else {
            memcpy(reader->fds + reader->n_fds, fds, n * sizeof(int));
            reader->n_fds += (unsigned)n;
        }
    }
    reader->n_lost += lost;                             /* those of one frame at a time */
    reader->refused = lost ? refused : reader->refused; /* the reason of the last loss */
    return status;
}

enum rdt_status frame_reader_recv(struct frame_reader *reader, int sock, size_t *n_p, struct rdt_error *err)
{
    union {
        struct cmsghdr align;
        /* Credentials are received as well if the socket's owner asked for them; they must not displace
         * fds. */
        char bytes[CMSG_SPACE(KERNEL_MAX_FDS * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
    } control;
    struct iovec iov;
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    enum rdt_status status;
    ssize_t n;

    status = make_room(reader, err);
    if (status != RDT_OK)
        return status;
    iov.iov_base = reader->buf + reader->end;
    iov.iov_len = reader->size - reader->end < READ_BYTES ? reader->size - reader->end : READ_BYTES;
    do {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);

    if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return RDT_AGAIN;
        if (errno == ECONNRESET || errno == EPIPE)
            return rdt_error_set(err, RDT_DISCONNECTED, "the other end reset the connection");
        return rdt_error_sys(err, errno, "recvmsg");
    }
    status = keep_fds(reader, &msg, err);
    if (status != RDT_OK)
        return status;
    if (n == 0)
        return rdt_error_set(err, RDT_DISCONNECTED, "the other end closed the connection");
    reader->end += (size_t)n;
    *n_p = (size_t)n;
    pass_over(reader);
    return RDT_OK;
}

size_t frame_reader_large(const struct frame_reader *reader)
{
    size_t unread = reader->end - reader->start, expected = frame_bytes_expected(reader);

    return unread >= BELIEVE_BYTES && unread < expected ? expected : 0;
}

/* the fds of a frame arrive with its first byte */
void frame_reader_skip(struct frame_reader *reader, struct frame *frame)
{
    const uint8_t *header = reader->buf + reader->start;
    unsigned n_fds = header[6] < reader->n_fds ? header[6] : reader->n_fds;

    memset(frame, 0, sizeof *frame);
    frame->type = (uint16_t)get_le(header + 4, 2);
    frame->flags = header[7];
    frame->request_id = get_le(header + 8, 8);
    reader->skip = frame_bytes_expected(reader);
    close_all(reader->sink, reader->fds, n_fds);
    reader->n_fds -= n_fds;
    memmove(reader->fds, reader->fds + n_fds, reader->n_fds * sizeof(int));
    pass_over(reader);
    free(reader->buf); /* nothing is unread, so its memory is freed at once */
    reader->buf = NULL;
    reader->size = reader->start = reader->end = 0;
}

enum rdt_status frame_reader_next(struct frame_reader *reader, struct frame *frame, struct rdt_error *err)
{
    const uint8_t *header;
    size_t length;
    unsigned nfds;

    if (reader->end - reader->start < FRAME_HEADER_BYTES)
        return RDT_AGAIN;

    header = reader->buf + reader->start;
    length = get_le(header, 4);
    nfds = header[6];
    if (length > reader->max_payload || nfds > RDT_MAX_FRAME_FDS || nfds > reader->n_fds) {
        memset(frame, 0, sizeof *frame);
        frame->type = (uint16_t)get_le(header + 4, 2);
        frame->flags = header[7];
        frame->request_id = get_le(header + 8, 8);
        if (length > reader->max_payload)
            return rdt_error_set(err, RDT_LIMIT, "the frame has %zu bytes: at most %zu are allowed", length,
                                 reader->max_payload);
        if (nfds > RDT_MAX_FRAME_FDS)
            return rdt_error_set(err, RDT_PROTOCOL, "the frame announces %u fds: at most %u are allowed", nfds,
                                 RDT_MAX_FRAME_FDS);
        /* fds arrive with the first byte, so no more will come for this frame */
        if (reader->n_lost > 0) {
            unsigned came = reader->n_fds;
            frame->passed_over = true;
            reader->n_lost--;
            reader->n_fds = 0;
            close_all(reader->sink, reader->fds, came);
            reader->skip = frame_bytes_expected(reader);
            pass_over(reader);
            if (reader->refused)
                return rdt_error_set(err, RDT_LIMIT,
                                     "the frame's %u fds were not accepted: the limit of file descriptors is reached", nfds);
            return rdt_error_set(
                err, RDT_LIMIT,
                "%u of the frame's %u fds were lost: this process has no fds left, its limit (ulimit -n) is reached",
                nfds - came, nfds);
        }
        return rdt_error_set(err, RDT_PROTOCOL, "the frame announces %u fds, but %u arrived", nfds, reader->n_fds);
    }
    if (reader->end - reader->start < FRAME_HEADER_BYTES + length)
        return RDT_AGAIN;

    frame->passed_over = false;
    frame->sink = reader->sink;
    frame->type = (uint16_t)get_le(header + 4, 2);
    frame->flags = header[7];
    frame->nfds = (uint8_t)nfds;
    frame->length = (uint32_t)length;
    frame->request_id = get_le(header + 8, 8);
    frame->payload = header + FRAME_HEADER_BYTES;
    memcpy(frame->fds, reader->fds, nfds * sizeof(int));
    reader->n_fds -= nfds;
    memmove(reader->fds, reader->fds + nfds, reader->n_fds * sizeof(int));
    reader->start += FRAME_HEADER_BYTES + length;
    return RDT_OK;
}

void *frame_reader_detach(struct frame_reader *reader)
{
    size_t unread = reader->end - reader->start;
    uint8_t *old = reader->buf, *fresh;

    if (unread > READ_BYTES || !(fresh = malloc(READ_BYTES)))
        return NULL;
    memcpy(fresh, old + reader->start, unread);
    reader->buf = fresh;
    reader->size = READ_BYTES;
    reader->start = 0;
    reader->end = unread;
    return old;
}

bool frame_reader_is_ready(const struct frame_reader *reader)
{
    const uint8_t *header = reader->buf + reader->start;
    size_t length;

    if (reader->end - reader->start < FRAME_HEADER_BYTES)
        return false;
    length = get_le(header, 4);
    return length > reader->max_payload || header[6] > reader->n_fds ||
           reader->end - reader->start >= FRAME_HEADER_BYTES + length;
}

size_t frame_reader_bytes(const struct frame_reader *reader)
{
    return reader->end - reader->start;
}

/* ---- writing ---- */

struct frame_chunk {
    struct frame_chunk *next;
    size_t size, sent; /* in bytes, header included */
    uint8_t *bytes;    /* behind the fds in the same allocation */
    unsigned n_fds;    /* unsent fds; 0 once they have been sent */
    int fds[];
};

void frame_writer_init(struct frame_writer *writer)
{
    memset(writer, 0, sizeof *writer);
}

static void drop_head(struct frame_writer *writer)
{
    struct frame_chunk *chunk = writer->head;

    close_all(writer->sink, chunk->fds, chunk->n_fds);
    writer->queued_fds -= chunk->n_fds;
    writer->queued_bytes -= chunk->size - chunk->sent;
    writer->queued_frames--;
    writer->head = chunk->next;
    if (!writer->head)
        writer->tail = NULL;
    free(chunk);
}

void frame_writer_fini(struct frame_writer *writer)
{
    while (writer->head)
        drop_head(writer);
}

void frame_writer_append(struct frame_writer *writer, struct frame_writer *take_from)
{
    if (!take_from->head)
        return;
    if (writer->tail)
        writer->tail->next = take_from->head;
    else
        writer->head = take_from->head;
    writer->tail = take_from->tail;
    writer->queued_bytes += take_from->queued_bytes;
    writer->queued_frames += take_from->queued_frames;
    writer->queued_fds += take_from->queued_fds;
    frame_writer_init(take_from);
}

enum rdt_status frame_writer_push(struct frame_writer *writer, uint16_t type, uint8_t flags, uint64_t request_id,
                                  uint32_t length, const int *take_fds, unsigned n_fds, uint8_t **payload_p)
{
    struct frame_chunk *chunk;

    if (length > RDT_MAX_FRAME_BYTES || n_fds > RDT_MAX_FRAME_FDS)
        return RDT_LIMIT;
    chunk = malloc(sizeof *chunk + n_fds * sizeof(int) + FRAME_HEADER_BYTES + length);
    if (!chunk)
        return RDT_NO_MEMORY;
    chunk->next = NULL;
    chunk->size = FRAME_HEADER_BYTES + (size_t)length;
    chunk->sent = 0;
    chunk->bytes = (uint8_t *)(chunk->fds + n_fds);
    chunk->n_fds = n_fds;
    if (n_fds > 0)
        memcpy(chunk->fds, take_fds, n_fds * sizeof(int));
    frame_header_encode(chunk->bytes, length, type, (uint8_t)n_fds, flags, request_id);

    if (writer->tail)
        writer->tail->next = chunk;
    else
        writer->head = chunk;
    writer->tail = chunk;
    writer->queued_bytes += chunk->size;
    writer->queued_frames++;
    writer->queued_fds += n_fds;
    if (payload_p)
        *payload_p = chunk->bytes + FRAME_HEADER_BYTES;
    return RDT_OK;
}

const uint8_t *frame_writer_peek(const struct frame_writer *writer, size_t *n_p)
{
    if (!writer->head)
        return NULL;
    *n_p = writer->head->size - writer->head->sent;
    return writer->head->bytes + writer->head->sent;
}

void frame_writer_consume(struct frame_writer *writer, size_t n)
{
    assert(n <= writer->queued_bytes);
    while (n > 0) {
        struct frame_chunk *chunk = writer->head;
        size_t part = chunk->size - chunk->sent;

        if (part > n)
            part = n;
        chunk->sent += part;
        writer->queued_bytes -= part;
        n -= part;
        if (chunk->sent == chunk->size)
            drop_head(writer);
    }
}

/* One sendmsg: the first frame with its fds, and the frames behind it up to the next that has fds. */
static ssize_t send_some(const struct frame_writer *writer, int sock)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(RDT_MAX_FRAME_FDS * sizeof(int))];
    } control;
    struct iovec iov[SEND_FRAMES];
    struct msghdr msg = {.msg_iov = iov};
    const struct frame_chunk *head = writer->head;
    ssize_t n;

    for (const struct frame_chunk *chunk = head; chunk && msg.msg_iovlen < SEND_FRAMES; chunk = chunk->next) {
        if (chunk != head && chunk->n_fds > 0)
            break;
        iov[msg.msg_iovlen].iov_base = chunk->bytes + chunk->sent;
        iov[msg.msg_iovlen].iov_len = chunk->size - chunk->sent;
        msg.msg_iovlen++;
    }
    if (head->n_fds > 0) {
        struct cmsghdr *cmsg;

        memset(&control, 0, sizeof control);
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(head->n_fds * sizeof(int));
        cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(head->n_fds * sizeof(int));
        memcpy(CMSG_DATA(cmsg), head->fds, head->n_fds * sizeof(int));
    }
    do {
        n = sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n;
}

enum rdt_status frame_writer_send(struct frame_writer *writer, int sock, struct rdt_error *err)
{
    struct fd_sink *sink = writer->waiting ? writer->sink : NULL;

    writer->stalled = false;
    while (writer->head) {
        unsigned n_fds = writer->head->n_fds;
        ssize_t n;

        if (n_fds > 0 && writer->sink && writer->sink->may_send && !writer->sink->may_send(writer->sink, n_fds)) {
            writer->waiting = writer->stalled = true;
            return RDT_AGAIN;
        }
        n = send_some(writer, sock);
        if (n < 0) {
            writer->waiting = true;
            /* other processes, or the receiver, have not received theirs yet */
            writer->stalled = errno == ETOOMANYREFS;
            if (writer->stalled || errno == EAGAIN || errno == EWOULDBLOCK)
                return RDT_AGAIN;
            if (errno == EPIPE || errno == ECONNRESET)
                return rdt_error_set(err, RDT_DISCONNECTED, "the other end closed the connection");
            return rdt_error_sys(err, errno, "sendmsg");
        }
        /* However many bytes were sent, the fds were sent with the first of them. */
        close_all(sink, writer->head->fds, n_fds);
        writer->queued_fds -= n_fds;
        writer->head->n_fds = 0;
        if (n_fds > 0 && writer->sink && writer->sink->sent)
            writer->sink->sent(writer->sink, n_fds);
        frame_writer_consume(writer, (size_t)n);
    }
    writer->waiting = false;
    return RDT_OK;
}
