/* SPDX-License-Identifier: Apache-2.0 */
/* Makes an object that never changes from memory that may change. The tensors are copied, packed, into regions of their
 * own, which are then sealed for ever. Two kinds of regions become part of the snapshot without a copy: a region that is
 * already sealed, and one that its client has unmapped and handed over, if the kernel can prove that nobody else can write it.
 *
 *   PROVE (regions handed over) -> RESERVE -> COPY -> BARRIER (the client's messages up to now) -> the object is live
 *
 * The object is FILLING meanwhile. When it ends (its client ends, it is freed, the copy fails), the work stops at the next
 * step.
 */
#ifndef DAEMON_SNAPSHOT_H
#define DAEMON_SNAPSHOT_H

#include "daemon/base/work.h"
#include "daemon/objects/client.h"
#include "daemon/objects/object_table.h"

struct snapshot;

/* err NULL: the object is live. Otherwise it has failed, and its waiters have been told. */
typedef void (*snapshot_done)(void *arg, struct object *object, const struct rdt_error *err);

/* Whether the memory of a region that its client hands over could become the snapshot without a copy:
 * nothing else refers to the region, and no transfer or registration uses it. */
bool snapshot_may_take_over(const struct region *region);

/* Starts a snapshot of a FILLING object whose layout describes the memory to be copied.
 *
 * handed_over, if not NULL, is [n_regions]: true for regions that the client has handed over, to which
 * only the object refers. client, if not NULL, put the object and may have cancelled that by a message
 * that has not been read yet, and changed the memory since: the object becomes live only after everything
 * that the client has sent has been handled.
 *
 * RDT_OK: the object is live. RDT_AGAIN: on_done will be called, and *snapshot_p may be passed to
 * snapshot_abandon until then. Otherwise the object is a pending one that has failed, or its put was
 * withdrawn and waiters for its id keep waiting. */
enum rdt_status snapshot_start(struct regions *table, struct object *object, const bool *handed_over, struct client *client,
                               snapshot_done on_done, void *arg, struct snapshot **snapshot_p, struct rdt_error *err);

/* The client that put the object has ended (OWNER_DIED) or cancelled the put (any other end, after which
 * it is as if the object had never been put). on_done will not be called. */
void snapshot_abandon(struct snapshot *snapshot, enum object_end end);

#endif
