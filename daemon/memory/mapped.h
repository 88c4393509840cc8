/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of other clients that a reader keeps mapped after it released what it fetched from them. Its next fetch
 * from such a region needs no descriptor, no mapping and no page fault. The reader says that it keeps a mapping by
 * keep_mapped_regions in RELEASE. The daemon says by REGION_GONE that a mapping is no longer useful: the region has
 * ended, or the reader keeps too many. When the region ends, its pages are removed at once although readers have them
 * mapped, because every reader has released it (otherwise it is abandoned, see region.h).
 *
 * The reader has every region of its list mapped at every point of the conversation. Only the daemon ends such a
 * mapping, REGION_GONE precedes every later answer, and a reader that says it keeps a region, but has not read all
 * REGION_GONE events, is sent another one.
 *
 * A mapping in this list holds neither the region nor its memory. Of host memory only that qualifies whose pages can be
 * removed below a mapping: memory that the daemon allocated for a client and that is not sealed.
 *
 * Memory of a device stays where it is while any process has it mapped. So its region may end, but the daemon frees and
 * uncharges its block only when the reader says by RELEASE that it has unmapped it (gone_events), or is gone. A reader has a
 * thread that looks for REGION_GONE while it does nothing else (client/cuda/closing.c). What a client imported is not the
 * daemon's, and waits for nobody; nor does a block that only the reader itself ever had.
 * Requests for memory of the device wait a second for it, as for other memory that is being freed, and then are refused; from
 * then on it is charged to the owner of the region, who is the readers' as well.
 *
 * A block that serves its owner again (device_pool.h) stays mapped in the pool, unless the client is an older one. When another
 * region gets the block, the reader has that region mapped already. The next answer says so (SharedRegion.mapped_as); until
 * then the client knows it by the region before. The pool gives such a block up as a region that ends.
 *
 *     kept ── the region ends, or there are too many ──► REGION_GONE sent ── RELEASE, gone_events ──► unmapped
 *     │  ▲                                                    ▲
 *     │  └── another region gets the block ──┐                │ it is freed
 *     └── the block goes to the pool ──────► pooled ──────────'
 *
 * All calls are made in the loop thread.
 */
#ifndef DAEMON_MAPPED_H
#define DAEMON_MAPPED_H

#include "daemon/memory/region.h"

struct mapped {              /* of one reader; all zero: it keeps nothing mapped */
    struct list lists[2];    /* struct reader.by_client of host memory, of devices; the most recently used last */
    unsigned n[2];           /* their lengths */
    struct list leaving;     /* struct reader.by_client: it was told, and device memory waits for it */
    struct map by_id;        /* region id -> struct reader, of both lists */
    bool moves;              /* the client understands SharedRegion.mapped_as */
    struct account *account; /* the reader's, charged for the bookkeeping */
    /* The mapping is no longer useful: tells the reader, and returns the number of that event. */
    uint64_t (*on_drop)(struct mapped *, uint64_t region);
};

void mapped_start(struct mapped *mapped, struct account *account, uint64_t (*on_drop)(struct mapped *, uint64_t region));
void mapped_stop(struct mapped *mapped); /* without on_drop, because the reader is gone */

/* Returns whether a reader may keep the region mapped. */
bool mapped_may_keep(const struct region *region);

/* The reader says that it keeps the region mapped. heard: it has read every REGION_GONE so far. Calls on_drop if it
 * must not keep the region, or if there is no memory to note it. Does nothing if the region is in the list. */
void mapped_keep(struct mapped *mapped, struct region *region, bool heard);

/* The reader releases something in the region without keeping it mapped. Returns true, after on_drop, if the region
 * was in the list. */
bool mapped_drop(struct mapped *mapped, const struct region *region);

/* The reader has no room for mappings: drops the whole list, with on_drop for each. What the reader uses stays mapped. */
void mapped_drop_all(struct mapped *mapped);

/* The reader has read that many REGION_GONE events, and has unmapped what they named. */
void mapped_unmapped(struct mapped *mapped, uint64_t gone_events);

/* Returns whether the reader has the region mapped, and marks it as used just now. */
bool mapped_has(struct mapped *mapped, const struct region *region);

/* The region by which the client knows the memory of one that it has mapped; 0: by this one. mapped_told: the client learns of
 * this one now. Does nothing if it does not have it mapped. */
uint64_t mapped_as(const struct mapped *mapped, const struct region *region);
void mapped_told(struct mapped *mapped, uint64_t region);

#endif
