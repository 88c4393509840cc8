/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the transport "gloo" share: the transport, one rank of a group (party), and the other ranks as that rank
 * sees them (side). */
#ifndef GLOO_H
#define GLOO_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/common/threads.h"
#include "backends/gloo/mesh.h"
#include "rdt_backend.h"

struct gloo {
    struct rdt_host host;
    struct mesh_device *device;
};

struct head { /* precedes the bytes of each chunk */
    uint64_t transfer, chunk, bytes;
    uint64_t zero; /* was used for chunks of broadcasts, which no rank sends any more */
};

struct queue { /* of operations, linked by priv[0] */
    struct rdt_op *first, **last;
};

struct side { /* another rank; the conn of the core */
    struct party *party;
    uint32_t rank;
    struct queue sends, receives; /* posted, but not begun */
    struct rdt_op *sending, *receiving;
    pthread_cond_t more;
    pthread_t sender, receiver;
};

struct party { /* one rank of a group */
    struct gloo *gloo;
    void *ctx;
    uint32_t rank, size;
    struct mesh *mesh;
    struct side *sides; /* [size] */
    uint8_t **blobs;
    size_t *blob_bytes;
    pthread_mutex_t mutex; /* protects all fields below, and the queues */
    pthread_cond_t close;
    pthread_t main;
    bool started, closing, failed;
};

/* ---- queues; the caller holds the mutex ---- */

void queue_init(struct queue *queue);
void queue_add(struct queue *queue, struct rdt_op *op);

/* Removes and returns `op`, or, if op is NULL, the operation to which `head` belongs. NULL: it is not in the queue. */
struct rdt_op *queue_take(struct queue *queue, const struct rdt_op *op, const struct head *head);
void queue_end(struct queue *queue, const struct rdt_host *host); /* ends every operation with CANCELLED */

/* ---- threads (party.c) ---- */

void *party_main(void *party); /* connects, starts the sides' threads, and ends everything when the group closes */

#endif
