/* SPDX-License-Identifier: Apache-2.0 */
/* Copies on this node between imported memory and devices. A device's copies need memory that the daemon has mapped, which
 * imported memory is not (imported.h), so the bytes go through a stage: threads of the memory's owner copy between it and the
 * slots, and the device between the slots and its own memory, several chunks at a time.
 *
 * All calls are made in the loop thread.
 */
#ifndef DAEMON_STAGED_COPY_H
#define DAEMON_STAGED_COPY_H

#include "daemon/memory/device_copy.h"
#include "daemon/memory/imported.h"
#include "daemon/transfers/transfer.h"

struct staged_copy;

/* One end: the tensors' regions, by the layout's region indices, and for imported ones their memory. All are borrowed until
 * the copy has ended, and the regions pinned. */
struct staged_end {
    const struct layout *layout;
    const struct device_place *regions;
    struct memory_place *(*memory_at)(void *arg, uint32_t index);
};

/* Begins to copy all tensors of which one end is imported memory and the other one on a device. *copy_p is NULL if there are
 * none. Otherwise on_done(arg, err) follows, err NULL on success. The slots are charged to the account. NO_MEMORY, LIMIT. */
enum rdt_status staged_copy_start(struct transfers *transfers, const struct staged_end *from, const struct staged_end *to,
                                  struct account *account, void (*on_done)(void *arg, const struct rdt_error *err), void *arg,
                                  struct staged_copy **copy_p, struct rdt_error *err);

void staged_copy_stop(struct staged_copy *copy); /* no more chunks begin; on_done follows all the same */
uint64_t staged_copy_bytes(const struct staged_copy *copy);

#endif
