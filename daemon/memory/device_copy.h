/* Copies of tensors to, from and between devices: cut into batches that the plug-in carries out by itself, a few at a time, so that
 * whoever gives up waits for those that run, and for no more. Tensors whose both ends are host memory are somebody else's (copy.h).
 *
 * Loop thread only.
 */
#ifndef DAEMON_DEVICE_COPY_H
#define DAEMON_DEVICE_COPY_H

#include "daemon/memory/region.h"
#include "proto/layout.h"

#define DEVICE_COPY_BATCH_BYTES (32ull << 20)
#define DEVICE_COPY_BATCH_PIECES 512u
#define DEVICE_COPY_AT_ONCE 4u

/* A place of a layout's region index. */
struct device_place {
    struct region *region; /* NULL: host memory at base, or nothing */
    uint8_t *base;         /* host memory; NULL: its tensors are left out */
};

struct device_copy;

/* Everything has ended that was started: OK, or the first failure (also CANCELLED, after device_copy_stop). It is freed then. */
typedef void (*device_copied)(void *arg, const struct rdt_error *err);

/* What of the tensors: from byte `at` of the packed stream of tensor `first` on so many bytes. */
struct device_part {
    uint32_t first;
    uint64_t at, bytes;
};

/* Copies the tensors of source (part: of that only; NULL: all) to those of target, which has the same shapes and is row-major, as far as
 * one end is on a device. pinned: the host ends are. Layouts and places are borrowed, and what they name stays pinned, until on_done, which
 * never comes inside this call. UNSUPPORTED: from one kind's device to another's. *copy_p NULL: there is nothing to do, and on_done does
 * not come. */
enum rdt_status device_copy_start(const struct layout *source, const struct device_place *from, const struct layout *target,
                                  const struct device_place *to, const struct device_part *part, bool pinned, device_copied on_done,
                                  void *arg, struct device_copy **copy_p, struct rdt_error *err);

/* No more is started. */
void device_copy_stop(struct device_copy *copy);

/* Before each further batch it asks on_done's arg whether anybody wants it still; if not it stops. */
void device_copy_ask(struct device_copy *copy, bool (*wanted)(void *arg));

uint64_t device_copy_bytes(const struct device_copy *copy); /* copied so far */

#endif
