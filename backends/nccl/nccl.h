/* The transport "nccl": CUDA memory between the ranks of a group. What its files share.
 *
 *   nccl.c   the table, the groups as the core sees them; loop thread
 *   lane.c   one GPU's thread, which makes all calls to NCCL and the driver for it
 *   door.c   the port at which the ranks of a group meet
 *
 * A communicator belongs to the thread of its rank's GPU, which alone calls NCCL for it: makes it, posts,
 * polls, aborts. All groups of one GPU share that thread, one stream and one queue, in the order in which the
 * core posts, because NCCL's operations on one device must be in one order on all of its communicators
 * (ticket.h of the daemon sees to it that it is the same order everywhere).
 */
#ifndef NCCL_H
#define NCCL_H

#include <pthread.h>
#include <stdbool.h>

#include "backends/nccl/door.h"
#include "backends/nccl/nccl_api.h"
#include "backends/common/ring.h"
#include "rdt_backend.h"

struct lane;

struct nccl {
    struct rdt_host host;
    struct cuda_driver *driver;
    const struct nccl_api *api;
    struct ring lanes; /* struct lane.ring; loop thread */
};

struct side { /* another rank: the conn */
    struct party *party;
    uint32_t rank;
};

enum party_state {
    PARTY_IDLE,       /* group_connect was not called yet */
    PARTY_WANTED,     /* the lane must create its communicator */
    PARTY_CONNECTING, /* NCCL is creating the communicator */
    PARTY_READY,
    PARTY_FAILED, /* reported to the core; nothing is posted any more */
    PARTY_CLOSED, /* the communicator is gone, no operation is left */
};

struct party { /* one rank of a group */
    struct nccl *nccl;
    struct lane *lane;
    void *ctx;
    uint32_t rank, size;
    struct nccl_id id;
    struct side *sides; /* [size] */
    bool connected;     /* group_connect was called; loop thread */
    int door;           /* rank 0, until all ranks have come: see door.h. The lane's thread's once it is connected */
    /* Under the lane's mutex: */
    struct ring ring; /* lane->parties, from group_connect on */
    enum party_state state;
    bool closing;
    /* The lane's thread's: */
    nccl_comm comm;
    unsigned n_batches;
    bool aborted;
};

/* Returns the lane of a GPU. The first group that needs it creates and starts it; it stays, with the GPU's
 * context, until the transport is closed. */
enum rdt_status lane_get(struct nccl *nccl, const char *uuid, struct lane **lane_p, struct rdt_error *err);
void lane_end(struct lane *lane); /* every party of the lane must be closed */
struct lane *lane_first(const struct nccl *nccl); /* NULL: there is none */
const char *lane_uuid(const struct lane *lane);

void lane_connect(struct lane *lane, struct party *party);
void lane_close(struct lane *lane, struct party *party);

/* Queues an operation, which belongs to the lane until op_done. On an error (TRANSPORT) it stays the caller's. */
enum rdt_status lane_post(struct lane *lane, struct side *side, struct rdt_op *op, bool send, struct rdt_error *err);

#endif
