/* A stage: host memory that bytes pass through between a device and a transport that does not move the device's
 * memory. It has a few slots of one size, so that copies run while other slots are on the wire, and it is pinned once
 * for the device's kind where that plug-in can pin. Each transfer has one at each end that needs it.
 *
 * Loop thread only.
 */
#ifndef DAEMON_STAGE_H
#define DAEMON_STAGE_H

#include "daemon/memory/region.h"

#define STAGE_MAX_SLOTS 32u

struct stage {
    struct memory_kind *kind; /* the kind it is pinned for; the stage counts as a user of it */
    struct region *region;
    void *pin; /* what unpin receives, if it is pinned */
    bool pinned;
    uint32_t slots, busy; /* busy: a bit for each slot */
    uint64_t slot_bytes;
};

typedef void (*stage_ready)(void *arg, struct stage *stage, const struct rdt_error *err);

/* Begins to create a stage whose memory is charged to `account`. AGAIN: on_ready follows, with the stage or an error.
 * Errors, after which on_ready does not come: NO_MEMORY, LIMIT (memory_limit). */
enum rdt_status stage_create(struct regions *regions, struct memory_kind *kind, uint32_t slots, uint64_t slot_bytes,
                          struct account *account, stage_ready on_ready, void *arg, struct rdt_error *err);

/* Frees a stage of which no slot is in use; NULL is allowed. */
void stage_destroy(struct stage *stage);

uint8_t *stage_take_slot(struct stage *stage); /* returns a free slot; NULL: all are in use */
void stage_return_slot(struct stage *stage, const uint8_t *slot);
unsigned stage_free_slots(const struct stage *stage);

#endif
