/* SPDX-License-Identifier: Apache-2.0 */
/* One message and its fds: the framing of the Unix socket and of the peer link.
 *
 *   0        4      6     7     8                16
 *   | length | type | nfd | flg |   request id    | payload: one protobuf message, `length` bytes | next frame ...
 *
 * Numbers are little-endian. A request with id 0 gets no answer; every other request gets exactly one. An error
 * with id 0 says why the connection is going to be closed. Fds are sent with the first byte of their frame. The
 * reader owns every fd that it has received until frame_take_fd() hands it over; fds that nobody took are closed
 * with the frame or with the reader. This file knows no message contents.
 */
#ifndef PROTO_FRAME_H
#define PROTO_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdt_status.h"
#include "wire_limits.h"

#define FRAME_HEADER_BYTES 16u

enum frame_flags {
    FRAME_REPLY = 1, /* answers the request with the same id */
    FRAME_ERROR = 2, /* with FRAME_REPLY: the payload is an ErrorReply */
    FRAME_EVENT = 4, /* not an answer; the id is that of the request it belongs to, or 0 */
};

/* Where a reader or writer sends descriptors that nobody took. Closing a descriptor from an untrusted
 * process may block, so a process that must not block closes it on another thread. */
struct fd_sink {
    bool (*admit)(struct fd_sink *, unsigned n); /* whether the reader may keep n more, which have just arrived */
    void (*close)(struct fd_sink *, int take_fd);
    /* NULL: the writer sends as many as the kernel accepts. Otherwise whether it may send n now (if not, it has stalled), and
     * afterwards how many it has sent */
    bool (*may_send)(struct fd_sink *, unsigned n);
    void (*sent)(struct fd_sink *, unsigned n);
};

struct frame {
    uint16_t type;
    uint8_t flags;
    uint8_t nfds;
    bool passed_over; /* frame_reader_next refused the frame and continues behind it */
    uint32_t length;
    uint64_t request_id;
    const uint8_t *payload; /* borrowed from the reader until its next call */
    int fds[RDT_MAX_FRAME_FDS];
    struct fd_sink *sink; /* that of the reader */
};

/* Moves fd i of the frame to the caller; -1 if there is none or it was taken before. */
int frame_take_fd(struct frame *frame, unsigned i);

/* Closes the fds that nobody took. */
void frame_close_fds(struct frame *frame);

void frame_header_encode(uint8_t out[FRAME_HEADER_BYTES], uint32_t length, uint16_t type, uint8_t nfds, uint8_t flags,
                         uint64_t request_id);

/* ---- reading ---- */

struct frame_reader {
    uint8_t *buf;
    size_t size, start, end; /* unread bytes are buf[start..end) */
    size_t max_payload;
    int fds[4 * RDT_MAX_FRAME_FDS];
    unsigned n_fds;
    /* Number of coming frames that have lost their fds: the kernel dropped these (MSG_CTRUNC), or those of
     * an earlier frame */
    unsigned n_lost;
    size_t skip; /* bytes still to come of a frame that is skipped */
    /* the last fds were lost because the sink did not admit them, and not because the kernel dropped them */
    bool refused;
    struct fd_sink *sink; /* set after init, borrowed; NULL: close(2) */
};

void frame_reader_init(struct frame_reader *reader, size_t max_payload);
void frame_reader_fini(struct frame_reader *reader); /* closes fds that no frame claimed */

/* Reads once from a Unix stream socket, without blocking. RDT_OK: *n_p bytes were read. RDT_AGAIN: there
 * is nothing to read, or no room until frame_reader_next has returned the whole frames that fill the
 * buffer. RDT_DISCONNECTED: end of file. RDT_PROTOCOL: more fds than any frames could claim.
 * RDT_NO_MEMORY, RDT_SYSTEM. */
enum rdt_status frame_reader_recv(struct frame_reader *reader, int sock, size_t *n_p, struct rdt_error *err);

/* For bytes from elsewhere (TLS): returns room for at least `want` bytes, or NULL if out of memory. The
 * caller writes n bytes there and calls frame_reader_commit. */
uint8_t *frame_reader_space(struct frame_reader *reader, size_t want, size_t *have_p);
void frame_reader_commit(struct frame_reader *reader, size_t n);

/* Returns the next whole frame. RDT_AGAIN: it is not whole yet. RDT_LIMIT: it is longer than max_payload,
 * or its fds were lost to this process's limit or not admitted by the sink. RDT_PROTOCOL: it claims fds
 * that did not arrive. After an error *frame has type and request id for an answer; the stream is lost
 * then and the connection must close, unless the frame was passed over because its fds were lost. */
enum rdt_status frame_reader_next(struct frame_reader *reader, struct frame *frame, struct rdt_error *err);

/* After frame_reader_next has returned OK: passes the memory with the payload to the caller, who frees it;
 * the reader continues with a copy of the bytes behind the frame. NULL: the payload stays in the reader
 * until its next call, because there are many such bytes or memory is short. */
void *frame_reader_detach(struct frame_reader *reader);

/* Whether frame_reader_next would return anything but AGAIN. */
bool frame_reader_is_ready(const struct frame_reader *reader);

size_t frame_reader_bytes(const struct frame_reader *reader); /* received, but not yet returned in a frame */

/* The size of an incomplete frame for which the reader has reserved its whole room. 0: there is no such
 * frame, or too little of it has arrived. */
size_t frame_reader_large(const struct frame_reader *reader);

/* Skips that frame with the bytes that are still to come, and describes it in *frame. The stream continues
 * behind it. */
void frame_reader_skip(struct frame_reader *reader, struct frame *frame);

/* ---- writing ---- */

struct frame_writer {
    struct frame_chunk *head, *tail; /* one encoded frame each, with its fds */
    size_t queued_bytes;
    unsigned queued_frames;
    unsigned queued_fds; /* open in this process until their frames have been sent */
    /* Set after init, borrowed: for fds that were never sent, or that had to wait: the receiver may drop its own at once, so
     * these may be the last ones of their files. NULL: close(2) */
    struct fd_sink *sink;
    bool waiting; /* a send has failed, and not everything has been sent since */
    bool stalled; /* the last AGAIN was due to too many fds in flight, whose arrival no event reports */
};

void frame_writer_init(struct frame_writer *writer);
void frame_writer_fini(struct frame_writer *writer); /* drops queued frames and closes their fds */
void frame_writer_append(struct frame_writer *writer, struct frame_writer *take_from); /* queues all frames of another */

/* Queues a frame. The caller writes its payload into *payload_p (length bytes, uninitialised). Takes the
 * fds only on success. RDT_NO_MEMORY and RDT_LIMIT change nothing. */
enum rdt_status frame_writer_push(struct frame_writer *writer, uint16_t type, uint8_t flags, uint64_t request_id,
                                  uint32_t length, const int *take_fds, unsigned n_fds, uint8_t **payload_p);

/* Writes to a Unix stream socket without blocking, in one call several frames up to the next that has fds.
 * RDT_OK: everything has been sent. RDT_AGAIN: the socket is full, or (stalled) the kernel accepts no more
 * fds from this user, or the sink none from this writer: try again soon. RDT_DISCONNECTED, RDT_SYSTEM. Closes the fds that it
 * has sent: with close(2), if the writer was not `waiting` before, so that a caller who must not close a file for the last time
 * sends while the file is open elsewhere. */
enum rdt_status frame_writer_send(struct frame_writer *writer, int sock, struct rdt_error *err);

/* For another way of sending: the oldest unsent bytes, or NULL. Then the caller reports how many it has
 * sent. */
const uint8_t *frame_writer_peek(const struct frame_writer *writer, size_t *n_p);
void frame_writer_consume(struct frame_writer *writer, size_t n);

/* Little-endian numbers of 1 to 8 bytes in buffers without alignment. */
static inline void put_le(uint8_t *out, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

static inline uint64_t get_le(const uint8_t *in, unsigned bytes)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)in[i] << (8 * i);
    return value;
}

#endif
