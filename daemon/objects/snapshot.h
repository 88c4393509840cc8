/* What makes an object that never changes out of memory that may: its tensors are copied, packed, into a region of their own,
 * which is then sealed for ever. A region that its client has unmapped and given up is not copied: if the kernel can prove that
 * nobody else may write it either, it becomes the snapshot as it is; so does one that is sealed already.
 *
 *   PROVE (given regions) -> RESERVE -> COPY -> HEAR -> the object is live
 *
 * The object is `filling` meanwhile. Its end (the client's death, a free, a failed copy) stops the work at the next step.
 */
#ifndef DAEMON_SNAPSHOT_H
#define DAEMON_SNAPSHOT_H

#include "daemon/objects/client.h"
#include "daemon/objects/object_table.h"
#include "daemon/base/work.h"

struct snapshot;

/* err NULL: the object is live. Else it has failed, and whoever waited for it was told. */
typedef void (*snapshot_done)(void *arg, struct object *object, const struct rdt_error *err);

/* May this region be given up? Nobody else refers to it, and no engine is at it. */
bool snapshot_may_take(const struct region *region);

/* For an object that was put as filling, over the memory that is to be copied. given, if not NULL, is [n_regions]: those given
 * up, with no other reference than the object's. RDT_OK: it is live. RDT_AGAIN: on_done comes later. Else it was
 * withdrawn: who waited for its id waits on; or it has failed, if it was pending, which it is no more. impatient, if not NULL, put it and may have gone on without it, with word of that
 * still unread and the memory changed: it is heard before the object is live. */
enum rdt_status snapshot_start(struct regions *table, struct object *object, const bool *given, struct client *impatient,
                               snapshot_done on_done, void *arg, struct snapshot **snapshot_p, struct rdt_error *err);

/* Whoever put it has gone, or given up: on_done does not come, and the object ends; was it given up, then as if it had never been put. */
void snapshot_abandon(struct snapshot *snapshot, enum object_end end);

#endif
