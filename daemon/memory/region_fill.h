/* SPDX-License-Identifier: Apache-2.0 */
/* Charges for the pages that writes into imported memory will create.
 *
 * A client may import a file that is larger than its pages: it is not charged for pages that do not exist. The kernel
 * charges a page to the process that touches it first, and when the daemon writes imported memory that process is the daemon.
 * Without this file a client could make the daemon allocate any amount of memory that no limit counts. So before imported
 * memory is written, its missing pages are counted and charged to the region's account and to memory_limit, like memory that
 * the daemon allocates. The charge lasts as long as the file, since a descriptor cannot be taken back and a client may keep the
 * pages after the region's end (region_orphans.h). A read creates no pages.
 *
 * A client may remove pages again after the count. So each write notes what it has created (imported.h), and that is charged,
 * too.
 *
 * All calls are made in the loop thread.
 */
#ifndef DAEMON_REGION_FILL_H
#define DAEMON_REGION_FILL_H

#include "daemon/memory/region_use.h"

/* Charges for the missing pages of a layout's tensors, which are about to be written. The tensors name uses[n] by index, and
 * the caller has pinned each region once. *next_p, the index of the first use that has not been handled yet, starts at 0 and is
 * kept by the caller between calls.
 *
 * RDT_OK: their pages exist or are charged, as long as the region is pinned. RDT_AGAIN: the threads of the owner count, and
 * on_ready is called with the region (borrowed) or an error; after the region, call again. Errors, after which nothing may be
 * written: LIMIT and NO_MEMORY (for the region of uses[*next_p]), SYSTEM, UNSUPPORTED (memory in huge pages). */
enum rdt_status region_fill(struct region_use *uses, uint32_t n, const struct layout *layout, uint32_t *next_p,
                            region_ready on_ready, void *arg, struct rdt_error *err);

/* A write has created these pages: charges the region for them, unless region_fill has. LIMIT, NO_MEMORY. */
enum rdt_status region_fill_charge(struct region *region, uint64_t bytes, struct rdt_error *err);

#endif
