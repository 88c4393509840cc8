/* Where tensors shall lie, when that is not one range of host memory: packed, in one region for each place. */
#ifndef DAEMON_PLACING_H
#define DAEMON_PLACING_H

#include "daemon/plugins/plugin.h"
#include "proto/layout.h"

#define PLACING_MAX 32u

struct placing {
    uint32_t n;
    struct {
        struct memory_device *device; /* NULL: host memory */
        uint64_t bytes;
    } at[PLACING_MAX];
};

/* Room for so many bytes more at that place: which region they go to, and where in it. false: there are too many places. */
bool placing_add(struct placing *placing, struct memory_device *device, uint64_t bytes, uint32_t *region_p, uint64_t *offset_p);

/* to[i]: of tensor i; NULL: host memory. *layout_p: the tensors row-major, each in the region that placing_p->at counts. LIMIT, NO_MEMORY. */
enum rdt_status placing_make(const struct layout *layout, struct memory_device *const *to, struct placing *placing_p,
                             struct layout **layout_p, struct rdt_error *err);

#endif
