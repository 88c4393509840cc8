/* Missing pages of imported memory. The file belongs to the client, but the kernel charges a page to the process that touches it first, which would be
 * the daemon. So before a copy or a transfer touches imported memory, its missing pages are counted and charged to the region's account and to
 * memory_limit, like memory that the daemon allocates. The charge lasts as long as the file, since a descriptor cannot be taken back and a client may
 * keep the pages after the region's end (region_orphans.h).
 *
 * A client may remove pages again after the count. The daemon then creates them again, uncounted, but no more than were there a moment ago.
 *
 * All calls are made in the loop thread.
 */
#ifndef DAEMON_REGION_FILL_H
#define DAEMON_REGION_FILL_H

#include "daemon/memory/region_use.h"

/* The layout's tensors, which name uses[n] by index, are about to be read or written: the caller has pinned those regions once. OK: what of them lies in imported memory has its
 * pages, or they are charged. LIMIT, NO_MEMORY: of the region at uses[*next_p], and nothing was touched. AGAIN: somebody counts, and
 * on_ready comes (its region borrowed); call again then. *next_p begins with 0. on_ready NULL: never AGAIN; where counting would take too long
 * the most that may be missing is charged. */
enum rdt_status region_fill(struct region_use *uses, uint32_t n, const struct layout *layout, uint32_t *next_p,
                            region_ready on_ready, void *arg, struct rdt_error *err);

/* Some page of theirs may be missing. */
bool region_fill_is_needed(const struct region_use *uses, uint32_t n);

/* Nobody touches it now: what was charged and was not made after all is given back. */
void region_fill_settle(struct region *region);

#endif
