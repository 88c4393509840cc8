/* SPDX-License-Identifier: Apache-2.0 */
/* What recovery.c, which writes the journal, and restore.c, which reads it, share. */
#ifndef DAEMON_RECOVERY_IMPL_H
#define DAEMON_RECOVERY_IMPL_H

#include "daemon/recovery/journal.h"
#include "daemon/recovery/recovery.h"

enum record_kind { RECORD_REGION = 1, RECORD_OBJECT, RECORD_NAME };

/* The numbers of a record of an object, and the first of a name's: rdt_journal.proto. */
enum { NUMBER_DETACHED_UNTIL, NUMBER_TRANSIT_UNTIL, NUMBER_TRANSIT_COUNT };
enum { NUMBER_NAME_UNTIL };
#define NEVER_BEGAN UINT64_MAX

/* Under which numbers the keeper has things. */
#define KEEPER_JOURNAL 1u
#define KEEPER_SET_ASIDE 2u     /* a journal that crashed the daemon */
#define KEEPER_FIRST_REGION 16u /* plus the region's id */

struct kept_region {
    struct region *region; /* borrowed: the objects hold it */
    struct journal_slot *slot;
    unsigned n_uses; /* by objects */
};

struct kept_object {
    struct journal_slot *slot;
    uint32_t n_regions;
    uint64_t regions[]; /* ids, one for each of its places */
};

struct held { /* by the keeper */
    uint64_t id;
    int fd;
};

/* restore.c: makes again what the journal says; held: id -> struct held; what
 * is used is removed from it. NO_MEMORY, after which nothing has been removed from the journal. */
enum rdt_status recovery_restore(struct recovery *recovery, struct map *held, struct rdt_error *err);

/* From now on what changes is recorded. */
void recovery_record(struct recovery *recovery);

/* Takes the descriptor from the map, to which it belonged; -1: it is not there. */
int recovery_take_held(struct map *held, uint64_t id);

/* recovery.c, for restore.c: notes what has a record already. Uses of regions are the caller's to count. NULL, false: no
 * memory. */
struct kept_region *recovery_add_region(struct recovery *recovery, struct region *region, struct journal_slot *slot);
bool recovery_add_object(struct recovery *recovery, uint64_t generation, const uint64_t *regions, uint32_t n_regions,
                         struct journal_slot *slot);

#endif
