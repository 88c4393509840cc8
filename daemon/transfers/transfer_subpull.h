/* Pulls of objects whose tensors lie, or shall lie, in several kinds of memory. The reader asks once for the
 * whole object and reserves memory. Then it pulls all tensors with the same source and target memory by a
 * transfer of its own, a sub-pull (the drawing is in transfer_subpull.c). */
#ifndef DAEMON_TRANSFER_SUBPULL_H
#define DAEMON_TRANSFER_SUBPULL_H

#include "daemon/memory/device_copy.h"
#include "daemon/memory/placing.h"
#include "daemon/transports/chunk.h"
#include "rdt_peer.pb-c.h"

struct transfer;

/* The memory kinds and devices of the tensors of an object on another node. */
struct memory_placement {
    char memory[PLACING_MAX][33];
    char device[PLACING_MAX][65]; /* uuids of devices of the owner's node */
    uint32_t of[];                /* [n tensors] index into the two */
};

/* The part of a transfer that only a sub-pull uses. It is all zero in every other transfer. */
struct subpull {
    struct transfer *parent; /* the pull that it belongs to, which ends later; NULL: the transfer is no sub-pull */
    struct list link;        /* in parent->pull.subpulls */
    uint32_t *select;        /* [n_select] the tensors of the parent that it moves; owned */
    uint32_t n_select;
    bool done; /* all its bytes are there */
};

/* Reads where the owner says that the tensors lie into transfer->pull.placement. PROTOCOL, NO_MEMORY. */
enum rdt_status subpulls_read_places(struct transfer *transfer, const Rdt__Pb__PullMeta *meta, struct rdt_error *err);

/* Whether the reader wants tensors on devices of this node. */
bool subpulls_wanted_here(const struct transfer *transfer);

/* Whether the answer, which has come, makes sub-pulls necessary. */
bool subpulls_needed(const struct transfer *transfer);

/* RESERVE: reserves memory for the whole object and then starts the sub-pulls. The transfer ends with the
 * last of them, or with the first that fails. */
void subpulls_begin(struct transfer *whole);

/* Aborts all sub-pulls. The whole ends when the last of them has ended. */
void subpulls_abort(struct transfer *whole);

/* Frees what the transfer has as a whole or as a sub-pull. No sub-pull is left. */
void subpulls_free(struct transfer *transfer);

/* The memory kind of a sub-pull's targets; "host" for every other transfer. */
const char *transfer_target_memory(const struct transfer *transfer);

/* The uuid of the device that a sub-pull moves from (on the other node), or to (on this node); "": host memory. */
const char *transfer_source_device(const struct transfer *transfer);
const char *transfer_target_device(const struct transfer *transfer);

/* Reserves pinned slots for a sub-pull that goes through host memory here. AGAIN: on_ready is called later
 * with the transfer. */
enum rdt_status transfer_reserve_stage(struct transfer *transfer, region_ready on_ready, struct rdt_error *err);

/* Whether another chunk can be received: there is a free slot, or none is needed. */
bool transfer_has_slot(const struct transfer *transfer);

#endif
