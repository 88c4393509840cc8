/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving: the bytes of a chunk are read directly into the memory of its receive.
 *
 * A chunk for which no receive is posted, or one of another length, is read into scratch memory and dropped.
 */
#include <string.h>

#include "backends/stream/stream.h"

#define BUDGET_BYTES ((size_t)4 << 20) /* that a lane moves before other lanes have their turn */

static void take_header(struct lane *lane)
{
    const struct rdt_host *host = &lane->transport->host;
    struct operation *operation;

    if (!wire_read_header(lane->small, &lane->chunk.header)) {
        lane_fail(lane, "its header is malformed", 0);
        return;
    }
    lane->small_n = 0;
    if (lane->chunk.header.kind == HEADER_BYE) {
        lane_leave(lane);
        return;
    }
    operation = op_take_recv(lane->conn, lane, &lane->chunk.header);
    if (operation && operation->op->piece.bytes != lane->chunk.header.bytes) {
        op_end(operation, RDT_TRANSPORT, "the peer's chunk has another length than the receive that was posted for it");
        operation = NULL;
    } else if (!operation) {
        host->log(host->ctx, RDT_LOG_DEBUG, "dropped chunk %llu of transfer %llu, for which no receive is posted",
                  (unsigned long long)lane->chunk.header.chunk, (unsigned long long)lane->chunk.header.transfer);
    }
    lane->chunk.operation = operation;
    lane->chunk.memory = operation ? pieces_of(operation->op) : (struct pieces){0};
    lane->chunk.bytes = lane->chunk.header.bytes;
    lane->chunk.at = 0;
    lane->chunk.stage = lane->chunk.bytes ? IN_BYTES : IN_TRAILER;
}

static void take_trailer(struct lane *lane)
{
    struct operation *operation = lane->chunk.operation;
    bool whole;

    if (!wire_read_trailer(lane->small, &whole)) {
        lane_fail(lane, "its trailer is malformed", 0);
        return;
    }
    lane->small_n -= TRAILER_BYTES;
    memmove(lane->small, lane->small + TRAILER_BYTES, lane->small_n); /* the start of the next header */
    lane->chunk.stage = IN_HEADER;
    lane->chunk.operation = NULL;
    lane->chunk.memory = (struct pieces){0};
    if (operation)
        op_end(operation, whole ? RDT_OK : RDT_TRANSPORT, whole ? NULL : "the sender ended the chunk early");
}

/* Reads a header or trailer into lane->small. True: it is complete. */
static bool read_small(struct lane *lane, size_t bytes)
{
    while (lane->small_n < bytes) {
        const struct iovec iov = {lane->small + lane->small_n, bytes - lane->small_n};
        ssize_t n;

        if (!lane->ready.readable)
            return false;
        n = channel_read(lane, &iov, 1);
        if (n < 0) {
            lane_fail(lane, NULL, 0);
            return false;
        }
        lane->small_n += (size_t)n;
    }
    return true;
}

/* Fills iov_p with the memory for the chunk's next bytes and, behind the last one, for its trailer and the next header. Returns
 * the number of parts. */
static unsigned parts_of(struct lane *lane, uint64_t rest, struct iovec iov_p[MAX_PARTS])
{
    uint64_t most = rest < PART_BYTES ? rest : PART_BYTES, bytes = 0;
    struct pieces memory;
    unsigned max = lane->tls.ssl ? 1 : MAX_PARTS - 1, n = 0; /* OpenSSL reads into one place */

    if (lane->chunk.memory.list)
        (void)pieces_at(&lane->chunk.memory, lane->chunk.at);
    memory = lane->chunk.memory; /* a copy runs ahead of what has arrived */
    for (; bytes < most && n < max; n++) {
        iov_p[n] =
            memory.list ? pieces_at(&memory, lane->chunk.at + bytes) : (struct iovec){lane->thread->scratch, SCRATCH_BYTES};
        if (iov_p[n].iov_len > most - bytes)
            iov_p[n].iov_len = most - bytes;
        bytes += iov_p[n].iov_len;
    }
    if (bytes == rest)
        iov_p[n++] = (struct iovec){lane->small, TRAILER_BYTES + HEADER_BYTES};
    return n;
}

/* Reads some of the chunk's bytes, and also its trailer and the next header if they have arrived already. Returns the number
 * of bytes. */
static size_t read_bytes(struct lane *lane)
{
    uint64_t rest = lane->chunk.bytes - lane->chunk.at;
    struct iovec iov[MAX_PARTS];
    unsigned parts = parts_of(lane, rest, iov);
    ssize_t n = channel_read(lane, iov, parts);

    if (n < 0) {
        lane_fail(lane, NULL, 0);
        return 0;
    }
    if ((uint64_t)n >= rest) {
        lane->small_n = (size_t)((uint64_t)n - rest);
        lane->chunk.at = lane->chunk.bytes;
        lane->chunk.stage = IN_TRAILER;
    } else {
        lane->chunk.at += (uint64_t)n;
    }
    return (size_t)n;
}

void receive_run(struct lane *lane)
{
    size_t budget = BUDGET_BYTES;

    while (lane->state == LANE_READY) {
        size_t n;

        switch (lane->chunk.stage) {
        case IN_HEADER:
            if (!read_small(lane, HEADER_BYTES))
                return;
            take_header(lane);
            break;
        case IN_BYTES:
            if (!lane->ready.readable)
                return;
            n = read_bytes(lane);
            thread_yield(lane->thread);
            if (n >= budget) {
                thread_run_again(lane);
                return;
            }
            budget -= n;
            break;
        case IN_TRAILER:
            if (!read_small(lane, TRAILER_BYTES))
                return;
            take_trailer(lane);
            break;
        }
    }
}
