/* What the files of this transport share: a transport, one rank of a group (party), and the other ranks as it
 * sees them (side). */
#ifndef GLOO_H
#define GLOO_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backends/gloo/mesh.h"
#include "rdt_backend.h"

struct gloo {
    struct rdt_host host;
    struct mesh_device *device;
};

struct head {
    uint64_t transfer, chunk, bytes;
    uint64_t root; /* of a broadcast: its rank + 1; 0: it is a send */
};

struct queue { /* of ops, by priv[0]; priv[1] is head.root */
    struct rdt_op *first, **last;
};

struct relay_link { /* a chunk on its way to one rank */
    struct relay_link *next;
    struct relay *relay;
};

/* A chunk of a broadcast that this rank passes on to others. */
struct relay {
    struct relay *next; /* party->relays */
    struct head head;
    struct rdt_op *op; /* the operation whose memory it is sent from; NULL: `own` */
    uint8_t *own;
    uint32_t n, left; /* left: ranks that have not received it yet */
    struct relay_link links[];
};

struct side { /* another rank: the conn */
    struct party *party;
    uint32_t rank;
    struct queue sends, receives; /* posted, and not begun */
    struct relay_link *relays, **last_relay;
    bool relay_was_last;
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
    struct queue broadcasts; /* posted members of broadcasts for which no bytes have come yet */
    struct relay *relays;    /* chunks that some rank has not received yet */
    pthread_cond_t close;
    pthread_t main;
    bool started, closing, failed;
};

/* ---- queues; the mutex is held ---- */

void queue_init(struct queue *queue);
void queue_add(struct queue *queue, struct rdt_op *op);

/* Removes and returns `op`, or, if op is NULL, the operation that `head` belongs to. NULL: it is not in the queue. */
struct rdt_op *queue_take(struct queue *queue, const struct rdt_op *op, const struct head *head);
void queue_end(struct queue *queue, const struct rdt_host *host); /* ends every operation as CANCELLED */

/* ---- threads (party.c) ---- */

bool party_start_thread(pthread_t *thread, void *(*run)(void *), void *arg);
void *party_main(void *party); /* connects, starts the threads of the sides, and ends everything when the group closes */

/* ---- broadcasts (relay.c) ---- */

enum rdt_status relay_post(void *party, uint32_t root, struct rdt_op *op, struct rdt_error *err);
void relay_cancel(void *party, struct rdt_op *op);

/* Reads the bytes that follow a head and passes them on. False: `why` says why nothing more can be received
 * from that rank. */
bool relay_receive(struct side *side, const struct head *head, char why[MESH_WHY_BYTES]);

/* Returns the next chunk to send, or NULL. The mutex is held. */
struct relay_link *relay_take(struct side *side);
void relay_sent(struct party *party, struct relay_link *link); /* the mutex is not held */
void relay_end(struct party *party);                           /* after every thread has ended */

#endif
