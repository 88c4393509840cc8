/* SPDX-License-Identifier: Apache-2.0 */
/* Sending: a header, the operation's bytes directly from its memory, in one piece or several, and a trailer.
 *
 * sendmsg copies the bytes into the kernel, so that the memory may be written or freed as soon as the operation has ended.
 * MSG_ZEROCOPY, splice and sendfile would read the memory again with every retransmission, long after that; sendfile was not
 * faster on loopback either (0.86 times).
 *
 * CALL_BYTES was measured with chunks of 4 MiB between two daemons, each on a core of its own, against a plain socket that
 * does nothing else: with 256 KiB for each call 0.75 times its speed, with 512 KiB 0.9, with 1 MiB 1.0 to 1.2. Shorter calls
 * at only one of the two ends are as slow.
 */
#include <string.h>
#include <sys/socket.h>

#include "backends/stream/stream.h"

#define BUDGET_BYTES ((size_t)4 << 20) /* that a channel moves before other channels have their turn */

static const uint8_t zeros[RECORD_BYTES * 4];

/* Returns the length of what is sent for a chunk: [header | bytes | trailer]. channel->chunk.at bytes of it have been
 * sent; header and trailer lie in channel->small. */
static uint64_t total(const struct channel *channel)
{
    return channel->chunk.header.kind == HEADER_BYE ? HEADER_BYTES : HEADER_BYTES + channel->chunk.bytes + TRAILER_BYTES;
}

static void start_bye(struct channel *channel)
{
    channel->chunk.header = (struct header){.kind = HEADER_BYE};
    channel->chunk.bytes = 0;
    conn_channel_leaves(channel);
}

static bool start_next(struct channel *channel)
{
    if (channel->tls.ssl && channel->sent >= channel->transport->settings.rekey_bytes) {
        start_bye(channel);
    } else if (!(channel->chunk.operation = op_take_send(channel))) {
        if (channel->probe == PROBE_NONE)
            return false;
        if (channel->probe == PROBE_SENT) {
            start_bye(channel);
        } else {
            probe_move(channel->transport, &channel->probe, PROBE_SENT);
            channel->chunk.header =
                (struct header){.kind = HEADER_CHUNK, .transfer = UINT64_MAX, .chunk = UINT64_MAX, .bytes = PROBE_BYTES};
            channel->chunk.bytes = PROBE_BYTES;
        }
    } else {
        const struct rdt_op *op;

        op = channel->chunk.operation->op;
        channel->chunk.header =
            (struct header){.kind = HEADER_CHUNK, .transfer = op->transfer, .chunk = op->chunk, .bytes = op->piece.bytes};
        channel->chunk.bytes = op->piece.bytes;
        channel->chunk.memory = pieces_of(op);
        conn_probe_ends(channel, NULL); /* what is sent shows the same */
    }
    wire_put_header(&channel->chunk.header, channel->small);
    wire_put_trailer(true, channel->small + HEADER_BYTES);
    channel->chunk.at = 0;
    channel->chunk.sending = true;
    return true;
}

/* Returns what is to be sent from byte `at` on, as far as it lies in one place. memory: of the channel, or a copy of that. */
static struct iovec iovec_at(struct channel *channel, struct pieces *memory, uint64_t at)
{
    uint64_t end = HEADER_BYTES + channel->chunk.bytes;

    if (at < HEADER_BYTES)
        return (struct iovec){channel->small + at, HEADER_BYTES - at};
    if (at >= end)
        return (struct iovec){channel->small + HEADER_BYTES + (at - end), TRAILER_BYTES - (at - end)};
    if (memory->list)
        return pieces_at(memory, at - HEADER_BYTES);
    return (struct iovec){(uint8_t *)(uintptr_t)zeros, end - at < sizeof zeros ? end - at : sizeof zeros};
}

/* Fills iov_p with what follows channel->chunk.at, as much as one system call sends. Returns the number of iovecs. */
static unsigned iovecs_of(struct channel *channel, struct iovec iov_p[MAX_IOVECS])
{
    uint64_t at = channel->chunk.at, most = at + HEADER_BYTES + CALL_BYTES + TRAILER_BYTES,
             end = total(channel) < most ? total(channel) : most;
    struct pieces memory;
    unsigned n = 0;

    (void)iovec_at(channel, &channel->chunk.memory, at);
    memory = channel->chunk.memory; /* a copy runs ahead of what is sent */
    for (; at < end && n < MAX_IOVECS; n++) {
        iov_p[n] = iovec_at(channel, &memory, at);
        if (iov_p[n].iov_len > end - at)
            iov_p[n].iov_len = end - at;
        at += iov_p[n].iov_len;
    }
    return n;
}

/* Returns the payload of the next TLS record, copied into one piece if necessary. Its length depends on channel->chunk.at
 * alone, as channel_write demands. */
static struct iovec record(struct channel *channel)
{
    uint64_t rest = total(channel) - channel->chunk.at, n = rest < RECORD_BYTES ? rest : RECORD_BYTES, at = 0;
    struct iovec piece = iovec_at(channel, &channel->chunk.memory, channel->chunk.at);

    if (piece.iov_len >= n)
        return (struct iovec){piece.iov_base, n};
    for (; at < n; at += piece.iov_len) {
        piece = iovec_at(channel, &channel->chunk.memory, channel->chunk.at + at);
        if (piece.iov_len > n - at)
            piece.iov_len = n - at;
        memcpy(channel->thread->staging + at, piece.iov_base, piece.iov_len);
    }
    return (struct iovec){channel->thread->staging, n};
}

static void finish(struct channel *channel)
{
    channel->chunk.sending = false;
    (void)shutdown(channel->fd, SHUT_WR);
    channel_leave(channel);
}

/* All bytes of the operation have been sent; only the trailer, which is the channel's, may be left. */
static void end_operation(struct channel *channel)
{
    struct operation *operation = channel->chunk.operation;

    channel->chunk.operation = NULL;
    channel->chunk.memory = (struct pieces){0};
    op_end(operation, RDT_OK, NULL);
}

/* Sends the gathered records. False: some are left, or the channel has failed. */
static bool flushed(struct channel *channel)
{
    ssize_t n = channel_flush(channel);

    thread_yield(channel->thread);
    if (n < 0)
        channel_fail(channel, NULL, 0);
    return n == 1;
}

void send_run(struct channel *channel)
{
    size_t budget = BUDGET_BYTES;

    while (channel->ready.writable && channel->state == CHANNEL_READY) {
        struct iovec iov[MAX_IOVECS];
        unsigned n_iov = 1;
        ssize_t n;

        if (channel->chunk.sending && channel->chunk.at == total(channel)) { /* a BYE of which some is still gathered */
            if (flushed(channel))
                finish(channel);
            return;
        }
        if (!channel->chunk.sending && !start_next(channel)) {
            (void)flushed(channel);
            return;
        }
        if (channel->tls.ssl && !channel->tls.in_kernel)
            iov[0] = record(channel);
        else
            n_iov = iovecs_of(channel, iov);
        n = channel_write(channel, iov, n_iov);
        thread_yield(channel->thread);
        if (n < 0) {
            channel_fail(channel, NULL, 0);
            return;
        }
        channel->chunk.at += (uint64_t)n;
        channel->sent += (uint64_t)n;
        if (channel->chunk.operation && channel->chunk.at >= HEADER_BYTES + channel->chunk.bytes)
            end_operation(channel);
        if (channel->chunk.at == total(channel) && channel->chunk.header.kind == HEADER_CHUNK)
            channel->chunk.sending = false;
        if ((size_t)n >= budget) {
            thread_run_again(channel);
            return;
        }
        budget -= (size_t)n;
    }
}
