/* SPDX-License-Identifier: Apache-2.0 */
/* Regions that are files of the daemon's own: read-only, never changed, and mapped like memory. Their bytes are in the page
 * cache if somebody has read them since the machine started, and else come from the disk, so they count under no limit of
 * memory: the kernel drops such pages when it needs room. A page that cannot be read raises SIGBUS, which the daemon survives
 * by its guard (region_may_fault); a client that has mapped the file gets the signal itself.
 *
 * When somebody first uses such a region, regions->file_pool reads all of it ahead in large pieces, because page faults
 * alone read a disk in small ones. Whoever uses the region does not wait for that.
 *
 * All calls are made in the loop thread. */
#ifndef DAEMON_REGION_FILE_H
#define DAEMON_REGION_FILE_H

#include "daemon/memory/region.h"

/* Makes a region of the first `bytes` of a file, which was opened for reading only. The descriptor is the region's on success.
 * One reference for the caller. INVALID (the file is too short, or no regular one), UNSUPPORTED, LIMIT, NO_MEMORY. */
enum rdt_status region_open_file(struct regions *regions, int take_fd, uint64_t bytes, struct account *account,
                                 struct region **region_p, struct rdt_error *err);

/* Begins to read it ahead, at the first call. */
void region_file_read_ahead(struct region *region);

#endif
