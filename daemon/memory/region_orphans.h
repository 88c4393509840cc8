/* Orphaned memory: memory whose region has ended but that a process outside may still have open or mapped. Its pages cannot be removed, because it is
 * sealed, because its client ended without releasing it, or because it is imported memory to which the daemon added pages (region_fill.h). A descriptor
 * cannot be taken back, so its bytes stay charged, to memory_limit and to their owner, until the kernel reports that nobody has it any more (inotify
 * reports the end of a file without a name).
 *
 * All calls are made in the loop thread.
 */
#ifndef DAEMON_REGION_LEFT_H
#define DAEMON_REGION_LEFT_H

#include "daemon/memory/region.h"

struct region_orphans;

/* From now on what is left is counted. false: no memory, and it is not. */
bool region_orphans_create(struct regions *regions, uv_loop_t *loop);

/* Counts nothing any more, and frees it; NULL is fine. A handle of it closes in the loop. */
void region_orphans_close(struct region_orphans *left);

/* The region ends, and this daemon closes its memory next. True: so many bytes of it are given back when nobody has it; at once, if charged is false,
 * and taken again if it is not gone soon. False: nobody watches (the kernel has no room for that, or nothing is counted). */
bool region_orphans_watch(struct region_orphans *left, const struct region *region, uint64_t bytes, bool charged);

uint64_t region_orphans_bytes(const struct region_orphans *left); /* NULL: 0 */

#endif
