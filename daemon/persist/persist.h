/* SPDX-License-Identifier: Apache-2.0 */
/* The room of what survives: one record of an object, a name or a session, and two places for it.
 *
 *   place                  what it survives            what is there
 *   the keeper's memory    the end of this process     every object and name that survives it (objects/lasting.h), the
 *   (recovery.h)                                       regions of those objects, sessions with all that they hold, holds of
 *                                                      other nodes, groups
 *   the disk               a reboot of the machine     objects that were stored, and the names that lead to them
 *   (storage.h)
 *
 * The start restores everything that an earlier daemon left:
 *
 *   recovery_open ──► storage_open                     what cannot be opened ends the start, and nothing has changed
 *     │
 *     ▼  recovery_restore, in this order               a record that cannot be restored is lost, and nothing else is
 *   sessions ─► regions ─► objects ─► names ─► answers to PUBLISHes ─► holds ─► holds without data ─► holds of other nodes
 *            ─► groups
 *     │
 *     ▼  recovery_begin                                from now on the journal records what changes
 *     ▼  storage_restore: what the memory did not have a file that cannot be used stays where it is
 *   objects ─► names
 *     │
 *     ▼  the holds of the start end                    an object that nobody else holds has lost its producer, and ends
 *   recovery_serve, storage_serve
 *
 * Each record and each file is restored under a guard (restore_guard.h): what does not fit into memory is left out, and what
 * ended an earlier start is set aside.
 *
 * The memory has what is newer, so it comes first: an object or a version of a name that it has is not made again from its
 * file, and only gets the file. */
#ifndef DAEMON_PERSIST_H
#define DAEMON_PERSIST_H

#include "daemon/persist/recovery.h"
#include "daemon/persist/storage.h"

/* Opens both places and restores the state of an earlier daemon; the public fields of both must be set. Blocks for some
 * seconds at most, and for about 10 microseconds for each object; reads the headers of all files, and no tensor. With an empty
 * state_dir the node gets the uuid of the earlier daemon. Nothing may have been put or published before. Errors, which end
 * the start: DISCONNECTED, BUSY, PROTOCOL (the keeper); INVALID (the journal is of another node, or the directory's owner or
 * mode); BUSY (another daemon uses the directory); NO_MEMORY, SYSTEM. */
enum rdt_status persist_start(struct recovery *recovery, struct storage *storage, uv_loop_t *loop, bool may_take_uuid,
                              struct rdt_error *err);

/* Only restores, for tests: earlier: the journal has records, and `held` (id -> struct held) the descriptors for them. */
enum rdt_status persist_restore(struct recovery *recovery, struct storage *storage, bool earlier, struct map *held,
                                struct rdt_error *err);

#endif
