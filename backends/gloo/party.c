/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of one rank of a group: a main thread that connects and finally ends everything, and for each other rank one
 * that sends and one that receives. A chunk consists of two messages: a head that names the chunk, then its bytes, which are
 * received directly into the memory of the chunk's receive, or into scratch memory if that was cancelled. */
#include <stdio.h>
#include <stdlib.h>

#include "backends/gloo/gloo.h"

#define HEAD_SLOT 0
#define BYTES_SLOT 1
#define MAX_CHUNK_BYTES ((uint64_t)1 << 32) /* a head with more is malformed */

/* ---- threads ---- */

/* Reports a failure of the group: once, and not while the group closes. The caller does not hold the mutex. */
static void fail(struct party *party, const char *what, uint32_t rank, const char *why)
{
    char text[MESH_WHY_BYTES + 64];
    bool report;

    (void)pthread_mutex_lock(&party->mutex);
    report = !party->closing && !party->failed;
    party->failed = true;
    (void)pthread_mutex_unlock(&party->mutex);
    (void)snprintf(text, sizeof text, "%s rank %u: %s", what, rank, why);
    if (report)
        party->gloo->host.group_failed(party->ctx, RDT_TRANSPORT, text);
}

static void *send_thread(void *arg)
{
    struct side *side = arg;
    struct party *party = side->party;
    char why[MESH_WHY_BYTES];

    (void)pthread_mutex_lock(&party->mutex);
    for (;;) {
        struct rdt_op *op;
        struct head head;
        while (!party->closing && !party->failed && !side->sends.first)
            (void)pthread_cond_wait(&side->more, &party->mutex);
        if (party->closing || party->failed)
            break;
        op = side->sending = queue_take(&side->sends, side->sends.first, NULL);
        (void)pthread_mutex_unlock(&party->mutex);
        head = (struct head){op->transfer, op->chunk, op->piece.bytes, 0};
        if (!mesh_send(party->mesh, side->rank, HEAD_SLOT, &head, sizeof head, why) ||
            !mesh_send(party->mesh, side->rank, BYTES_SLOT, op->piece.addr, head.bytes, why)) {
            fail(party, "sending to", side->rank, why);
            return NULL; /* party_main ends the operation */
        }
        (void)pthread_mutex_lock(&party->mutex);
        side->sending = NULL;
        (void)pthread_mutex_unlock(&party->mutex);
        party->gloo->host.op_done(op, RDT_OK, NULL);
        (void)pthread_mutex_lock(&party->mutex);
    }
    (void)pthread_mutex_unlock(&party->mutex);
    return NULL;
}

/* Receives one chunk. False: nothing more can be received from that rank; `why` says why. */
static bool receive_one(struct side *side, char why[MESH_WHY_BYTES])
{
    struct party *party = side->party;
    struct head head;
    struct rdt_op *op;
    void *scratch = NULL;
    bool good, fits;

    if (!mesh_recv(party->mesh, side->rank, HEAD_SLOT, &head, sizeof head, why))
        return false;
    if (head.bytes == 0 || head.bytes > MAX_CHUNK_BYTES) {
        (void)snprintf(why, MESH_WHY_BYTES, "the peer announced a chunk of %llu bytes", (unsigned long long)head.bytes);
        return false;
    }
    if (head.zero != 0) {
        (void)snprintf(why, MESH_WHY_BYTES, "the peer sent a chunk of a broadcast, which this version does not relay");
        return false;
    }
    (void)pthread_mutex_lock(&party->mutex);
    op = side->receiving = queue_take(&side->receives, NULL, &head);
    (void)pthread_mutex_unlock(&party->mutex);
    fits = op && op->piece.bytes == head.bytes;
    if (!fits && !(scratch = malloc(head.bytes))) {
        (void)snprintf(why, MESH_WHY_BYTES, "no memory for %llu bytes that are to be dropped", (unsigned long long)head.bytes);
        return false;
    }
    good = mesh_recv(party->mesh, side->rank, BYTES_SLOT, fits ? op->piece.addr : scratch, head.bytes, why);
    free(scratch);
    if (!good)
        return false;
    (void)pthread_mutex_lock(&party->mutex);
    side->receiving = NULL;
    (void)pthread_mutex_unlock(&party->mutex);
    if (op)
        party->gloo->host.op_done(op, fits ? RDT_OK : RDT_TRANSPORT,
                                  fits ? NULL : "the peer's chunk has another length than the receive that was posted for it");
    return true;
}

static void *receive_thread(void *arg)
{
    struct side *side = arg;
    char why[MESH_WHY_BYTES];

    while (receive_one(side, why))
        ;
    fail(side->party, "receiving from", side->rank, why);
    return NULL;
}

static bool is_closing(struct party *party)
{
    bool closing;

    (void)pthread_mutex_lock(&party->mutex);
    closing = party->closing;
    (void)pthread_mutex_unlock(&party->mutex);
    return closing;
}

static bool connect_all(struct party *party, char why[MESH_WHY_BYTES])
{
    for (uint32_t i = 0; i < party->size; i++) {
        if (i == party->rank)
            continue;
        if (is_closing(party))
            return false;
        if (!mesh_connect(party->mesh, i, party->blobs[i], party->blob_bytes[i], why)) {
            fail(party, "connecting to", i, why);
            return false;
        }
    }
    return true;
}

void *party_main(void *arg)
{
    struct party *party = arg;
    char why[MESH_WHY_BYTES];
    uint32_t senders = 0, receivers = 0;
    bool good = connect_all(party, why);

    for (uint32_t i = 0; good && i < party->size; i++) {
        if (i != party->rank) {
            good = thread_create(&party->sides[i].sender, send_thread, &party->sides[i]) == 0;
            senders += good;
        }
        if (good && i != party->rank) {
            good = thread_create(&party->sides[i].receiver, receive_thread, &party->sides[i]) == 0;
            receivers += good;
        }
        if (!good)
            fail(party, "starting a thread for", i, "the system refused");
    }
    if (good && !is_closing(party))
        party->gloo->host.group_ready(party->ctx);

    (void)pthread_mutex_lock(&party->mutex);
    while (!party->closing)
        (void)pthread_cond_wait(&party->close, &party->mutex);
    for (uint32_t i = 0; i < party->size; i++)
        (void)pthread_cond_broadcast(&party->sides[i].more);
    (void)pthread_mutex_unlock(&party->mutex);

    mesh_close(party->mesh);
    for (uint32_t i = 0; i < party->size; i++) {
        if (i == party->rank)
            continue;
        if (senders > 0) {
            senders--;
            (void)pthread_join(party->sides[i].sender, NULL);
        }
        if (receivers > 0) {
            receivers--;
            (void)pthread_join(party->sides[i].receiver, NULL);
        }
    }
    mesh_destroy(party->mesh);
    party->mesh = NULL;
    for (uint32_t i = 0; i < party->size; i++) {
        struct side *side = &party->sides[i];
        if (side->sending)
            party->gloo->host.op_done(side->sending, RDT_CANCELLED, NULL);
        if (side->receiving)
            party->gloo->host.op_done(side->receiving, RDT_CANCELLED, NULL);
        queue_end(&side->sends, &party->gloo->host);
        queue_end(&side->receives, &party->gloo->host);
    }
    party->gloo->host.group_closed(party->ctx);
    return NULL;
}
