/* SPDX-License-Identifier: Apache-2.0 */
/* Sending: a header, the operation's bytes directly from its memory, in one piece or several, and a trailer.
 *
 * sendmsg copies the bytes into the kernel, so that the memory may be written or freed as soon as the operation has ended.
 * MSG_ZEROCOPY, splice and sendfile would read the memory again with every retransmission, long after that; sendfile was not
 * faster on loopback either (0.86 times).
 *
 * PART_BYTES was measured with chunks of 4 MiB between two daemons, each on a core of its own, against a plain socket that
 * does nothing else: with 256 KiB for each call 0.75 times its speed, with 512 KiB 0.9, with 1 MiB 1.0 to 1.2. Shorter parts
 * at only one of the two ends are as slow.
 */
#include <string.h>
#include <sys/socket.h>

#include "backends/stream/stream.h"

#define BUDGET_BYTES ((size_t)4 << 20) /* that a lane moves before other lanes have their turn */

static const uint8_t zeros[RECORD_BYTES * 4];

/* Returns the length of what is sent for a chunk: [header | bytes | trailer]. lane->chunk.at bytes of it have been sent; header
 * and trailer lie in lane->small. */
static uint64_t total(const struct lane *lane)
{
    return lane->chunk.header.kind == HEADER_BYE ? HEADER_BYTES : HEADER_BYTES + lane->chunk.bytes + TRAILER_BYTES;
}

static bool start_next(struct lane *lane)
{
    if (lane->tls.ssl && lane->sent >= lane->transport->settings.rekey_bytes) {
        lane->chunk.header = (struct header){.kind = HEADER_BYE};
        lane->chunk.bytes = 0;
        conn_lane_leaves(lane);
    } else {
        const struct rdt_op *op;

        lane->chunk.operation = op_take_send(lane);
        if (!lane->chunk.operation)
            return false;
        op = lane->chunk.operation->op;
        lane->chunk.header =
            (struct header){.kind = HEADER_CHUNK, .transfer = op->transfer, .chunk = op->chunk, .bytes = op->piece.bytes};
        lane->chunk.bytes = op->piece.bytes;
        lane->chunk.memory = pieces_of(op);
    }
    wire_put_header(&lane->chunk.header, lane->small);
    wire_put_trailer(true, lane->small + HEADER_BYTES);
    lane->chunk.at = 0;
    lane->chunk.sending = true;
    return true;
}

/* Returns what is to be sent from byte `at` on, as far as it lies in one place. memory: of the lane, or a copy of that. */
static struct iovec part_at(struct lane *lane, struct pieces *memory, uint64_t at)
{
    uint64_t end = HEADER_BYTES + lane->chunk.bytes;

    if (at < HEADER_BYTES)
        return (struct iovec){lane->small + at, HEADER_BYTES - at};
    if (at >= end)
        return (struct iovec){lane->small + HEADER_BYTES + (at - end), TRAILER_BYTES - (at - end)};
    if (memory->list)
        return pieces_at(memory, at - HEADER_BYTES);
    return (struct iovec){(uint8_t *)(uintptr_t)zeros, end - at < sizeof zeros ? end - at : sizeof zeros};
}

/* Fills iov_p with what follows lane->chunk.at, as much as one system call sends. Returns the number of parts. */
static unsigned parts_of(struct lane *lane, struct iovec iov_p[MAX_PARTS])
{
    uint64_t at = lane->chunk.at, most = at + HEADER_BYTES + PART_BYTES + TRAILER_BYTES,
             end = total(lane) < most ? total(lane) : most;
    struct pieces memory;
    unsigned n = 0;

    (void)part_at(lane, &lane->chunk.memory, at);
    memory = lane->chunk.memory; /* a copy runs ahead of what is sent */
    for (; at < end && n < MAX_PARTS; n++) {
        iov_p[n] = part_at(lane, &memory, at);
        if (iov_p[n].iov_len > end - at)
            iov_p[n].iov_len = end - at;
        at += iov_p[n].iov_len;
    }
    return n;
}

/* Returns the payload of the next TLS record, copied into one piece if necessary. Its length depends on lane->chunk.at alone,
 * as channel_write demands. */
static struct iovec record(struct lane *lane)
{
    uint64_t rest = total(lane) - lane->chunk.at, n = rest < RECORD_BYTES ? rest : RECORD_BYTES, at = 0;
    struct iovec part = part_at(lane, &lane->chunk.memory, lane->chunk.at);

    if (part.iov_len >= n)
        return (struct iovec){part.iov_base, n};
    for (; at < n; at += part.iov_len) {
        part = part_at(lane, &lane->chunk.memory, lane->chunk.at + at);
        if (part.iov_len > n - at)
            part.iov_len = n - at;
        memcpy(lane->thread->staging + at, part.iov_base, part.iov_len);
    }
    return (struct iovec){lane->thread->staging, n};
}

static void finish(struct lane *lane)
{
    lane->chunk.sending = false;
    (void)shutdown(lane->fd, SHUT_WR);
    lane_leave(lane);
}

/* All bytes of the operation have been sent; only the trailer, which is the lane's, may be left. */
static void end_operation(struct lane *lane)
{
    struct operation *operation = lane->chunk.operation;

    lane->chunk.operation = NULL;
    lane->chunk.memory = (struct pieces){0};
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

    while (lane->ready.writable && lane->state == LANE_READY) {
        struct iovec iov[MAX_PARTS];
        unsigned n_iov = 1;
        ssize_t n;

        if (lane->chunk.sending && lane->chunk.at == total(lane)) { /* a BYE of which some is still gathered */
            if (flushed(lane))
                finish(lane);
            return;
        }
        if (!lane->chunk.sending && !start_next(lane)) {
            (void)flushed(lane);
            return;
        }
        if (lane->tls.ssl && !lane->tls.in_kernel)
            iov[0] = record(lane);
        else
            n_iov = parts_of(lane, iov);
        n = channel_write(lane, iov, n_iov);
        thread_yield(lane->thread);
        if (n < 0) {
            lane_fail(lane, NULL, 0);
            return;
        }
        lane->chunk.at += (uint64_t)n;
        lane->sent += (uint64_t)n;
        if (lane->chunk.operation && lane->chunk.at >= HEADER_BYTES + lane->chunk.bytes)
            end_operation(lane);
        if (lane->chunk.at == total(lane) && lane->chunk.header.kind == HEADER_CHUNK)
            lane->chunk.sending = false;
        if ((size_t)n >= budget) {
            thread_run_again(lane);
            return;
        }
        budget -= (size_t)n;
    }
}
