/* SPDX-License-Identifier: Apache-2.0 */
/* Sending: a header, the operation's bytes directly from its memory, and a trailer.
 *
 * sendmsg copies the bytes into the kernel, so that the memory may be written or freed as soon as the operation has ended.
 * MSG_ZEROCOPY, splice and sendfile would read the memory again with every retransmission, long after that; sendfile was not
 * faster on loopback either (0.86 times).
 *
 * PIECE_BYTES was measured with chunks of 4 MiB between two daemons, each on a core of its own, against a plain socket that
 * does nothing else: with 256 KiB for each call 0.75 times its speed, with 512 KiB 0.9, with 1 MiB 1.0 to 1.2. Shorter pieces
 * at only one of the two ends are as slow.
 */
#include <string.h>
#include <sys/socket.h>

#include "backends/stream/stream.h"

#define BUDGET_BYTES ((size_t)4 << 20) /* that a lane moves before other lanes have their turn */

static const uint8_t zeros[RECORD_BYTES * 4];

/* Returns the length of what is sent for a chunk: [header | bytes | trailer]. lane->at bytes of it have been sent; header and
 * trailer lie in lane->small. */
static uint64_t total(const struct lane *lane)
{
    return lane->header.kind == HEADER_BYE ? HEADER_BYTES : HEADER_BYTES + lane->bytes + TRAILER_BYTES;
}

static bool start_next(struct lane *lane)
{
    if (lane->ssl && lane->sent >= lane->transport->settings.rekey_bytes) {
        lane->header = (struct header){.kind = HEADER_BYE};
        lane->bytes = 0;
        conn_lane_leaves(lane);
    } else {
        const struct rdt_op *op;

        lane->operation = op_take_send(lane);
        if (!lane->operation)
            return false;
        op = lane->operation->op;
        lane->header =
            (struct header){.kind = HEADER_CHUNK, .transfer = op->transfer, .chunk = op->chunk, .bytes = op->piece.bytes};
        lane->bytes = op->piece.bytes;
        lane->memory = op->piece.addr;
    }
    wire_put_header(&lane->header, lane->small);
    wire_put_trailer(true, lane->small + HEADER_BYTES);
    lane->at = 0;
    lane->sending = true;
    return true;
}

/* Fills iov_p with what follows lane->at: the header, at most a piece of the bytes, and the trailer. Returns the number of
 * parts. */
static unsigned parts_of(struct lane *lane, struct iovec iov_p[3])
{
    uint64_t end = HEADER_BYTES + lane->bytes;
    unsigned n = 0;

    if (lane->at < HEADER_BYTES)
        iov_p[n++] = (struct iovec){lane->small + lane->at, HEADER_BYTES - lane->at};
    if (lane->header.kind == HEADER_BYE)
        return n;
    if (lane->at < end) {
        uint64_t done = lane->at > HEADER_BYTES ? lane->at - HEADER_BYTES : 0, rest = lane->bytes - done;
        uint64_t max = lane->memory ? PIECE_BYTES : sizeof zeros, now = rest < max ? rest : max;

        iov_p[n++] = (struct iovec){lane->memory ? lane->memory + done : (uint8_t *)(uintptr_t)zeros, now};
        if (now < rest)
            return n;
    }
    end = lane->at > end ? lane->at - end : 0;
    iov_p[n++] = (struct iovec){lane->small + HEADER_BYTES + end, TRAILER_BYTES - end};
    return n;
}

/* Returns the payload of the next TLS record, copied into one piece if necessary. Its length depends on lane->at alone, as
 * channel_write demands. */
static struct iovec record(struct lane *lane)
{
    uint64_t rest = total(lane) - lane->at, n = rest < RECORD_BYTES ? rest : RECORD_BYTES;
    struct iovec parts[3], whole = {lane->thread->staging, n};
    unsigned count = parts_of(lane, parts);
    uint8_t *to = lane->thread->staging;

    if (parts[0].iov_len >= n)
        return (struct iovec){parts[0].iov_base, n};
    for (unsigned i = 0; i < count && n > 0; i++) {
        size_t bytes = parts[i].iov_len < n ? parts[i].iov_len : n;

        memcpy(to, parts[i].iov_base, bytes);
        to += bytes;
        n -= bytes;
    }
    return whole;
}

static void finish(struct lane *lane)
{
    lane->sending = false;
    (void)shutdown(lane->fd, SHUT_WR);
    lane_leave(lane);
}

/* All bytes of the operation have been sent; only the trailer, which is the lane's, may be left. */
static void end_operation(struct lane *lane)
{
    struct operation *operation = lane->operation;

    lane->operation = NULL;
    lane->memory = NULL;
    op_end(operation, RDT_OK, NULL);
}

/* Sends the gathered records. False: some are left, or the lane has failed. */
static bool flushed(struct lane *lane)
{
    ssize_t n = channel_flush(lane);

    thread_yield(lane->thread);
    if (n < 0)
        lane_fail(lane, NULL, 0);
    return n == 1;
}

void send_run(struct lane *lane)
{
    size_t budget = BUDGET_BYTES;

    while (lane->writable && lane->state == LANE_READY) {
        struct iovec iov[3];
        unsigned n_iov = 1;
        ssize_t n;

        if (lane->sending && lane->at == total(lane)) { /* a BYE of which some is still gathered */
            if (flushed(lane))
                finish(lane);
            return;
        }
        if (!lane->sending && !start_next(lane)) {
            (void)flushed(lane);
            return;
        }
        if (lane->ssl && !lane->kernel_tls)
            iov[0] = record(lane);
        else
            n_iov = parts_of(lane, iov);
        n = channel_write(lane, iov, n_iov);
        thread_yield(lane->thread);
        if (n < 0) {
            lane_fail(lane, NULL, 0);
            return;
        }
        lane->at += (uint64_t)n;
        lane->sent += (uint64_t)n;
        if (lane->operation && lane->at >= HEADER_BYTES + lane->bytes)
            end_operation(lane);
        if (lane->at == total(lane) && lane->header.kind == HEADER_CHUNK)
            lane->sending = false;
        if ((size_t)n >= budget) {
            thread_run_again(lane);
            return;
        }
        budget -= (size_t)n;
    }
}
