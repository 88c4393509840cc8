/* SPDX-License-Identifier: Apache-2.0 */
/* Orphaned memory: memory whose region has ended, but that another process may still have open or mapped. Its pages
 * cannot be removed, because it is sealed (by the daemon, or by a client that had a writable descriptor), because its
 * client ended without releasing it, or because it is imported memory to which the daemon added pages (region_fill.h). A
 * descriptor cannot be taken back, so its bytes stay
 * charged, to memory_limit and to their owner, until the kernel reports that nobody has the file any more (inotify
 * reports the end of a file without a name). The kernel watches a limited number of files, so an owner with very many
 * such files gets no new regions (owner_max_orphans) and cannot take the watches of others.
 *
 * All calls are made in the loop thread.
 */
#ifndef DAEMON_REGION_ORPHANS_H
#define DAEMON_REGION_ORPHANS_H

#include "daemon/memory/region.h"

struct region_orphans;

/* Creates regions->orphans: from now on orphaned memory is counted. Returns false if there is no memory; it is not
 * counted then. */
bool region_orphans_create(struct regions *regions, uv_loop_t *loop);

/* Takes off all charges, stops counting and frees the struct. A libuv handle closes later in the loop. NULL is allowed. */
void region_orphans_close(struct region_orphans *orphans);

/* Watches the memory behind a descriptor of the daemon's, just before the daemon closes it: its region has ended. Returns
 * true if `bytes` bytes are given back when no process has the file any more. */
struct orphaned {
    int fd; /* borrowed */
    struct account *account;
    uint64_t bytes;
    bool stored;  /* it is the file of a stored object, which has been removed: room on the disk, and no memory */
    bool charged; /* the region's charge to memory_limit passes to this file; if false, it has been taken off, and is taken
                   * again when the account is charged */
    bool at_once; /* the account is charged now, not after a grace period: nobody is about to let go of the file */
};

/* Returns false if nothing is watched: orphans is NULL, there is no descriptor, or the kernel has no room for another watch. */
bool region_orphans_watch(struct region_orphans *orphans, const struct orphaned *orphaned);

struct orphan_row { /* a file that is watched */
    uint64_t device, inode;
    uint64_t bytes; /* of all regions that were in it */
    const struct account *account;
    uint64_t since_ns; /* of uv_hrtime */
    bool stored;
};

/* Fills in the next file. *cursor_p is 0 at first, and then where the walk has got to; a file that is added or ends meanwhile
 * may be missing or appear twice. Returns false after the last one; NULL: there is none. */
bool region_orphans_next(const struct region_orphans *orphans, size_t *cursor_p, struct orphan_row *row_p);

/* Returns the number of bytes that are watched; NULL: 0. */
uint64_t region_orphans_bytes(const struct region_orphans *orphans);

#endif
