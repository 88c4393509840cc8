/* Host memory that bytes pass through between a device and a transport that does not move its memory: a few slots of one size, pinned once
 * for the device's kind where its plug-in can pin, so that copies run while other slots are on the wire. One for each transfer at each end.
 *
 * Loop thread only.
 */
#ifndef DAEMON_STAGE_H
#define DAEMON_STAGE_H

#include "daemon/memory/region.h"

#define STAGE_MAX_SLOTS 32u

struct stage {
    struct memory_kind *kind; /* it is pinned for: counted as a user */
    struct region *region;
    void *pin; /* NULL: it could not be */
    bool pinned;
    uint32_t slots, busy; /* busy: bits */
    uint64_t slot_bytes;
};

typedef void (*stage_ready)(void *arg, struct stage *stage, const struct rdt_error *err);

/* AGAIN: on_ready comes. NO_MEMORY, LIMIT (memory_limit). */
enum rdt_status stage_get(struct regions *regions, struct memory_kind *kind, uint32_t slots, uint64_t slot_bytes,
                          struct account *account, stage_ready on_ready, void *arg, struct rdt_error *err);

/* No slot of it is used any more. NULL is fine. */
void stage_put(struct stage *stage);

uint8_t *stage_take(struct stage *stage); /* NULL: all are in use */
void stage_give(struct stage *stage, const uint8_t *slot);
unsigned stage_free_slots(const struct stage *stage);

#endif
