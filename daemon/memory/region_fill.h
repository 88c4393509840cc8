/* SPDX-License-Identifier: Apache-2.0 */
/* Charges for the missing pages of imported memory.
 *
 * A client may import a file that is larger than its pages: it is not charged for pages that do not exist. The kernel
 * charges a page to the process that touches it first, and when the daemon reads or writes imported memory that
 * process is the daemon. Without this file a client could make the daemon allocate any amount of memory that no limit
 * counts. So before a copy or a transfer touches imported memory, its missing pages are counted and charged to the
 * region's account and to memory_limit, like memory that the daemon allocates. The charge lasts as long as the file,
 * since a descriptor cannot be taken back and a client may keep the pages after the region's end (region_orphans.h).
 *
 * A client may remove pages again after the count. The daemon then creates them again without a charge, but no more
 * pages than existed a moment ago.
 *
 * All calls are made in the loop thread.
 */
#ifndef DAEMON_REGION_FILL_H
#define DAEMON_REGION_FILL_H

#include "daemon/memory/region_use.h"

/* Charges for the missing pages of a layout's tensors, which are about to be read or written. The tensors name
 * uses[n] by index, and the caller has pinned each region once. *next_p, the index of the first use that has not been
 * handled yet, starts at 0 and is kept by the caller between calls.
 *
 * RDT_OK: the pages exist or are charged. RDT_AGAIN: the work pool counts, and calls on_ready with the region
 * (borrowed) or an error; after the region, call again. Errors, after which nothing may be touched: LIMIT and
 * NO_MEMORY (for the region of uses[*next_p]), SYSTEM. on_ready NULL: never RDT_AGAIN; if counting would take too
 * long, the most that can be missing is charged. */
enum rdt_status region_fill(struct region_use *uses, uint32_t n, const struct layout *layout, uint32_t *next_p,
                            region_ready on_ready, void *arg, struct rdt_error *err);

/* Returns whether pages of these regions may be missing. */
bool region_fill_is_needed(const struct region_use *uses, uint32_t n);

#endif
