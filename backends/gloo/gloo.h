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
    uint64_t root; /* of a broadcast: the root's rank + 1; of a send: 0 */
};

struct queue { /* of operations, linked by priv[0]; priv[1] is head.root */
    struct rdt_op *first, **last;
};

struct relay_link { /* a relayed chunk that is still to be sent to one rank */
    struct relay_link *next;
    struct relay *relay;
};

/* A chunk of a broadcast that this rank sends or passes on to others. */
struct relay {
    struct relay *next; /* in party->relays */
    struct head head;
    struct rdt_op *op; /* the operation from whose memory the chunk is sent; NULL: it is sent from `own` */
    uint8_t *own;
    uint32_t n, left; /* to how many ranks this rank sends it; how many have not received it yet */
    struct relay_link links[];
};

struct side { /* another rank; the conn of the core */
    struct party *party;
    uint32_t rank;
    struct queue sends, receives; /* posted, but not begun */
    struct relay_link *relays, **last_relay;
    bool relay_was_last; /* the sender's last chunk was a relayed one */
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
    pthread_mutex_t mutex;   /* protects all fields below, and the queues */
    struct queue broadcasts; /* posted operations of members, for which no bytes have arrived yet */
    struct relay *relays;    /* chunks that at least one rank has not received yet */
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

/* ---- broadcasts (relay.c) ---- */

enum rdt_status relay_post(void *party, uint32_t root, struct rdt_op *op, struct rdt_error *err);
void relay_cancel(void *party, struct rdt_op *op);

/* Reads the bytes that follow a head and passes them on. False: nothing more can be received from that rank; `why` says
 * why. */
bool relay_receive(struct side *side, const struct head *head, char why[MESH_WHY_BYTES]);

struct relay_link *relay_take(struct side *side);              /* returns the next chunk to relay, or NULL; with the mutex */
void relay_sent(struct party *party, struct relay_link *link); /* without the mutex */
void relay_end(struct party *party);                           /* after every thread has ended */

#endif
