/* SPDX-License-Identifier: Apache-2.0 */
/* Places fetched or copied tensors on several devices and in host memory: packed, in one region for each place. */
#ifndef DAEMON_PLACING_H
#define DAEMON_PLACING_H

#include "daemon/memory/gaps.h"
#include "daemon/plugins/plugin.h"
#include "proto/layout.h"

#define PLACING_MAX 32u

struct placing {
    uint32_t n;
    struct {
        struct memory_device *device; /* NULL: host memory */
        uint64_t bytes;               /* the size of its region */
        struct gaps gaps;             /* between its tensors */
    } at[PLACING_MAX];
};

/* Makes room for `bytes` more bytes on that device: at *offset_p of region *region_p. Returns false if there are too
 * many places. */
bool placing_add(struct placing *placing, struct memory_device *device, uint64_t bytes, uint32_t *region_p, uint64_t *offset_p);

/* Places all tensors of a layout. to[i]: the device of tensor i; NULL: host memory. *layout_p: the same tensors,
 * row-major, whose region indices are those of placing_p->at; the caller frees it with free(). LIMIT (too many
 * places), NO_MEMORY. */
enum rdt_status placing_make(const struct layout *layout, struct memory_device *const *to, struct placing *placing_p,
                             struct layout **layout_p, struct rdt_error *err);

#endif
