/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of tensors to, from and between devices. A copy is cut into batches, each of which the plug-in carries out by itself.
 * A few batches run at a time, so that a copy that is stopped ends after those, and not after all of its bytes. The tensors, of
 * which there may be very many, are looked at in slices. Those with both ends in host memory are ignored: copy.h copies them.
 * So are those with an end in imported host memory, which the daemon does not map (imported.h).
 *
 * All calls are made in the loop thread.
 */
#ifndef DAEMON_DEVICE_COPY_H
#define DAEMON_DEVICE_COPY_H

#include "daemon/memory/region.h"
#include "proto/layout.h"

#define DEVICE_COPY_BATCH_BYTES (32ull << 20)
#define DEVICE_COPY_BATCH_PIECES 512u
#define DEVICE_COPY_AT_ONCE 4u

/* The memory of one region index of a layout. */
struct device_place {
    struct region *region; /* NULL: host memory at base */
    uint8_t *base;         /* region and base are both NULL: its tensors are not copied */
};

struct device_copy;

/* All batches have ended. err: NULL, or the first failure (CANCELLED if the copy was stopped before its end). The
 * copy is freed after the call. */
typedef void (*device_copy_done)(void *arg, const struct rdt_error *err);

/* A range of the packed stream of a layout: `bytes` bytes from byte `at` of tensor `first` on. */
struct device_range {
    uint32_t first;
    uint64_t at, bytes;
};

/* Starts to copy the tensors of source to those of target, which has the same shapes and is row-major. range: copies
 * only that range; NULL: all. pinned: the host memory at either end is pinned for the device's kind. The layouts and
 * places are borrowed until on_done, and the memory that they name must stay pinned until then. on_done is called
 * later, exactly once. *copy_p is NULL if it was soon seen that there is nothing to copy; on_done is not called then. Errors,
 * after which on_done is not called: those of the first batch, namely UNSUPPORTED (a tensor would go from a device of one kind
 * to one of another), NO_MEMORY, or what the plug-in returned. Those of later batches come by on_done. */
enum rdt_status device_copy_start(const struct layout *source, const struct device_place *from, const struct layout *target,
                                  const struct device_place *to, const struct device_range *range, bool pinned,
                                  device_copy_done on_done, void *arg, struct device_copy **copy_p, struct rdt_error *err);

/* Starts no further batches: on_done is called when the running ones have ended. */
void device_copy_stop(struct device_copy *copy);

/* From now on `wanted` is called with on_done's arg whenever a batch has ended; if it returns false, the copy is stopped. */
void device_copy_set_wanted(struct device_copy *copy, bool (*wanted)(void *arg));

/* Returns the number of bytes copied so far. */
uint64_t device_copy_bytes(const struct device_copy *copy);

#endif
