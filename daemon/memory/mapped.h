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
 * A mapping in this list holds neither the region nor its memory. Only memory whose pages can be removed below a
 * mapping qualifies: memory that the daemon allocated for a client and that is not sealed.
 *
 * All calls are made in the loop thread.
 */
#ifndef DAEMON_MAPPED_H
#define DAEMON_MAPPED_H

#include "daemon/memory/region.h"

struct mapped {                                        /* of one reader; all zero: it keeps nothing mapped */
    struct list list;                                  /* struct reader.by_client, the most recently used last */
    struct map by_id;                                  /* region id -> struct reader */
    void (*on_drop)(struct mapped *, uint64_t region); /* the mapping is no longer useful: tell the reader */
};

void mapped_start(struct mapped *mapped, void (*on_drop)(struct mapped *, uint64_t region));
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

/* Returns whether the reader has the region mapped, and marks it as used just now. */
bool mapped_has(struct mapped *mapped, const struct region *region);

#endif
