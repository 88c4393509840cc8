/* SPDX-License-Identifier: Apache-2.0 */
/* The operations that move chunks, and where in memory they find the bytes.
 *
 * A chunk is moved from or to the memory of its tensors without another copy (in place) if it is one piece there, or if the
 * transport takes a list of its pieces. Otherwise it goes through a buffer: the owner gathers it there, the reader scatters
 * it. */
#ifndef DAEMON_CHUNK_OP_H
#define DAEMON_CHUNK_OP_H

#include "daemon/base/work.h"
#include "daemon/memory/device_copy.h"
#include "daemon/memory/region.h"
#include "daemon/plugins/plugin.h"
#include "daemon/transports/chunk.h"

struct serve;
struct transfer;

/* The memory of a transfer at this end. */
struct chunk_ground {
    const struct layout *packed, *layout;
    /* Returns a region of the layout, which is mapped, and where it begins. */
    struct region *(*region_at)(const void *owner, uint32_t index, uint8_t **base_p);
    const void *owner;
    struct transport *transport;
    uint32_t max_pieces; /* of one operation (plugin_conn_pieces); 0: every chunk goes through a buffer */
    bool faults_allowed; /* the transport may touch memory whose pages can be missing */
};

/* One operation on a connection, which moves a chunk. */
struct chunk_op {
    struct plugin_op base;
    struct transfer *transfer; /* a receive or read of this transfer, or */
    struct serve *serve;       /* a send of this serve; the other is NULL */
    struct list posted;        /* a send that the transport has: in sending.posted */
    uint32_t chunk;
    bool in_place;
    uint8_t *staging;          /* NULL: the operation moves the chunk from or to its tensors directly */
    struct device_place place; /* the staging memory as one end of a device copy */
    struct device_copy *copy;
    struct work work;
    int failed;                          /* the errno of the copy from or to imported memory; 0: none */
    uint8_t padding[LAYOUT_ALIGN_BYTES]; /* sent, and received, between two tensors */
    struct rdt_piece pieces[];
};

/* Whether the chunk is moved in place. The answer is always the same for one ground. */
bool chunk_is_in_place(const struct chunk *chunk, const struct chunk_ground *ground);

/* Creates the operation of a chunk, to be freed with free(); NULL: no memory. If it is not in_place, or ground is NULL, the
 * caller adds the address of a buffer of chunk->bytes in host memory. */
struct chunk_op *chunk_op_create(const struct chunk *chunk, const struct chunk_ground *ground);

/* Which range of the tensors the chunk holds, for device copies. */
struct device_range chunk_range(const struct chunk *chunk, const struct layout *packed);

#endif
