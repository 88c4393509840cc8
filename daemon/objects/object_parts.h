/* What of a put grows with its tensors, its metadata and the bytes that came with it, as its object will keep it. No table is touched: any
 * thread may make them, so that nobody else waits for an object of many tensors (rpc_read.h). */
#ifndef DAEMON_OBJECT_PARTS_H
#define DAEMON_OBJECT_PARTS_H

#include "daemon/objects/object_table.h"

#define OBJECT_APART_BYTES (16u << 10) /* metadata and shapes of more than this have memory of their own */

struct object_parts { /* not to be moved */
    struct region_span *spans; /* of the layout: [n_regions], and one of the bytes that came with it */
    struct region_span few[3];
    uint64_t bytes;            /* of all tensors */
    uint8_t *packed;           /* without regions: the tensors as they lie in the arena; NULL: none has bytes */
    uint64_t packed_bytes;
    size_t shapes_bytes;       /* without regions */
    uint8_t *apart;            /* metadata, then shapes; NULL: they lie in the object. The object takes it */
};

/* Of a put's layout, n_regions, metadata and inline data. INVALID names the tensor that lies in no region, begins before it or ends beyond
 * the bytes that came (regions' own ends: the caller's to check); LIMIT: too many bytes came; NO_MEMORY. */
enum rdt_status object_parts_make(struct object_parts *parts, const struct object_put *put, struct rdt_error *err);

void object_parts_fini(struct object_parts *parts); /* what nobody took; fine if all of it is zero */

#endif
