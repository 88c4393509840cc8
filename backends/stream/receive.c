/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving: the bytes of a chunk are read directly into the memory of its receive.
 *
 * A chunk for which no receive is posted, or one of another length, is read into scratch memory and dropped.
 */
#include <stdlib.h>
#include <string.h>

#include "backends/common/states.h"
#include "backends/stream/stream.h"

#define BUDGET_BYTES ((size_t)4 << 20) /* that a channel moves before other channels have their turn */

/* The table has the moves of the drawing in stream.h; any other move is a bug, and aborts the process. */
static void set_stage(struct channel *channel, enum in_stage to)
{
    static const struct sm_state states[] = {
        [IN_HEADER] = {"header of a chunk", 1u << IN_BYTES | 1u << IN_TRAILER},
        [IN_BYTES] = {"bytes of a chunk", 1u << IN_TRAILER},
        [IN_TRAILER] = {"trailer of a chunk", 1u << IN_HEADER},
    };

    states_check(&channel->transport->host, states, IN_TRAILER + 1, channel->chunk.stage, to);
    channel->chunk.stage = to;
}

static void take_header(struct channel *channel)
{
    const struct rdt_host *host = &channel->transport->host;
    struct operation *operation;

    if (!wire_read_header(channel->small, &channel->chunk.header)) {
        channel_fail(channel, "its header is malformed", 0);
        return;
    }
    channel->small_n = 0;
    if (channel->chunk.header.kind == HEADER_BYE) {
        channel_leave(channel);
        /* The sender may be unable to dial. Who has sent nothing that was wanted gets no other channel: it could ask for
         * ever. */
        if (!channel->incoming && channel->chunk.received)
            conn_channel_leaves(channel);
        return;
    }
    operation = op_take_recv(channel->conn, channel, &channel->chunk.header);
    channel->chunk.received = channel->chunk.received || operation;
    if (operation && operation->op->piece.bytes != channel->chunk.header.bytes) {
        op_end(operation, RDT_TRANSPORT, "the peer's chunk has another length than the receive that was posted for it");
        operation = NULL;
    } else if (!operation) {
        host->log(host->ctx, RDT_LOG_DEBUG, "dropped chunk %llu of transfer %llu, for which no receive is posted",
                  (unsigned long long)channel->chunk.header.chunk, (unsigned long long)channel->chunk.header.transfer);
    }
    channel->chunk.operation = operation;
    channel->chunk.memory = operation ? pieces_of(operation->op) : (struct pieces){0};
    channel->chunk.bytes = channel->chunk.header.bytes;
    channel->chunk.at = 0;
    set_stage(channel, channel->chunk.bytes ? IN_BYTES : IN_TRAILER);
}

static void take_trailer(struct channel *channel)
{
    struct operation *operation = channel->chunk.operation;
    bool whole;

    if (!wire_read_trailer(channel->small, &whole)) {
        channel_fail(channel, "its trailer is malformed", 0);
        return;
    }
    channel->small_n -= TRAILER_BYTES;
    memmove(channel->small, channel->small + TRAILER_BYTES, channel->small_n); /* the start of the next header */
    set_stage(channel, IN_HEADER);
    channel->chunk.operation = NULL;
    channel->chunk.memory = (struct pieces){0};
    if (operation)
        op_end(operation, whole ? RDT_OK : RDT_TRANSPORT, whole ? NULL : "the sender ended the chunk early");
}

/* Reads a header or trailer into channel->small. True: it is complete. */
static bool read_small(struct channel *channel, size_t bytes)
{
    while (channel->small_n < bytes) {
        const struct iovec iov = {channel->small + channel->small_n, bytes - channel->small_n};
        ssize_t n;

        if (!channel->ready.readable)
            return false;
        n = channel_read(channel, &iov, 1);
        if (n < 0) {
            channel_fail(channel, NULL, 0);
            return false;
        }
        channel->small_n += (size_t)n;
    }
    return true;
}

/* Fills iov_p with the memory for the chunk's next bytes and, behind the last one, for its trailer and the next header. Returns
 * the number of iovecs. */
static unsigned iovecs_of(struct channel *channel, uint64_t rest, struct iovec iov_p[MAX_IOVECS])
{
    uint64_t most = rest < CALL_BYTES ? rest : CALL_BYTES, bytes = 0;
    struct pieces memory;
    unsigned max = channel->tls.ssl ? 1 : MAX_IOVECS - 1, n = 0; /* OpenSSL reads into one place */

    if (channel->chunk.memory.list)
        (void)pieces_at(&channel->chunk.memory, channel->chunk.at);
    memory = channel->chunk.memory; /* a copy runs ahead of what has arrived */
    for (; bytes < most && n < max; n++) {
        iov_p[n] = memory.list ? pieces_at(&memory, channel->chunk.at + bytes)
                               : (struct iovec){channel->thread->scratch, SCRATCH_BYTES};
        if (iov_p[n].iov_len > most - bytes)
            iov_p[n].iov_len = most - bytes;
        bytes += iov_p[n].iov_len;
    }
    if (bytes == rest)
        iov_p[n++] = (struct iovec){channel->small, TRAILER_BYTES + HEADER_BYTES};
    return n;
}

/* Reads some of the chunk's bytes, and also its trailer and the next header if they have arrived already. Returns the number
 * of bytes. */
static size_t read_bytes(struct channel *channel)
{
    uint64_t rest = channel->chunk.bytes - channel->chunk.at;
    struct iovec iov[MAX_IOVECS];
    unsigned n_iovecs = iovecs_of(channel, rest, iov);
    ssize_t n = channel_read(channel, iov, n_iovecs);

    if (n < 0) {
        channel_fail(channel, NULL, 0);
        return 0;
    }
    if ((uint64_t)n >= rest) {
        channel->small_n = (size_t)((uint64_t)n - rest);
        channel->chunk.at = channel->chunk.bytes;
        set_stage(channel, IN_TRAILER);
    } else {
        channel->chunk.at += (uint64_t)n;
    }
    return (size_t)n;
}

void receive_run(struct channel *channel)
{
    size_t budget = BUDGET_BYTES;

    while (channel->state == CHANNEL_READY) {
        size_t n;

        switch (channel->chunk.stage) {
        case IN_HEADER:
            if (!read_small(channel, HEADER_BYTES))
                return;
            take_header(channel);
            break;
        case IN_BYTES:
            if (!channel->ready.readable)
                return;
            n = read_bytes(channel);
            thread_yield(channel->thread);
            if (n >= budget) {
                thread_run_again(channel);
                return;
            }
            budget -= n;
            break;
        case IN_TRAILER:
            if (!read_small(channel, TRAILER_BYTES))
                return;
            take_trailer(channel);
            break;
        }
    }
}
