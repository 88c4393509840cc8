/* SPDX-License-Identifier: Apache-2.0 */
/* A stage: host memory through which bytes pass between a device and a transport that does not move the device's
 * memory. It has a few slots of one size, so that copies run while other slots are on the wire, and it is pinned for the
 * device's kind where that plug-in can pin. It lies on the device's NUMA node. Each transfer has one at each end that needs
 * it. The memory comes from the pool, and goes back there pinned, so a later stage of that size and node is ready at once.
 *
 * All calls are made in the loop thread.
 */
#ifndef DAEMON_STAGE_H
#define DAEMON_STAGE_H

#include "daemon/memory/region.h"

#define STAGE_MAX_SLOTS 32u

struct stage {
    struct memory_kind *kind; /* the kind it is pinned for; the stage counts as a user of it */
    struct region *region;
    uint32_t slots, busy; /* busy: a bit for each slot that is in use */
    uint64_t slot_bytes;
};

/* The result of stage_create: the stage, or NULL and the error. */
typedef void (*stage_ready)(void *arg, struct stage *stage, const struct rdt_error *err);

/* Begins to create a stage of at most STAGE_MAX_SLOTS slots for copies from or to that region, charged to `account`. Returns
 * RDT_AGAIN: on_ready is called later. Errors, after which on_ready is not called: NO_MEMORY, LIMIT (of memory_limit or the
 * account), UNSUPPORTED. */
enum rdt_status stage_create(struct regions *regions, const struct region *region, uint32_t slots, uint64_t slot_bytes,
                             struct account *account, stage_ready on_ready, void *arg, struct rdt_error *err);

/* Frees a stage of which no slot is in use; NULL is allowed. */
void stage_destroy(struct stage *stage);

/* Take and return slots of slot_bytes bytes each. stage_take_slot returns NULL if all are in use. */
uint8_t *stage_take_slot(struct stage *stage);
void stage_return_slot(struct stage *stage, const uint8_t *slot);
unsigned stage_free_slots(const struct stage *stage);

bool stage_is_pinned(const struct stage *stage);

#endif
