/* SPDX-License-Identifier: Apache-2.0 */
/* What the files share that write and read the journal:
 *
 *   recovery.c                             the start and the end
 *   lasting.c | restore.c                  writing what changes | reading it
 *   sessions.c, node_records.c             both, of sessions and their holds | of holds of other nodes, and groups
 *   slots.c                                a record: its slot, its charge, its payload, its descriptors
 *   journal.c, keeper_link.c, record.c     the memory, the process that holds it, and what is said of an object or a name */
#ifndef DAEMON_RECOVERY_IMPL_H
#define DAEMON_RECOVERY_IMPL_H

#include "daemon/persist/journal.h"
#include "daemon/persist/record.h"
#include "daemon/persist/recovery.h"

enum record_kind {
    RECORD_REGION = 1,
    RECORD_OBJECT_V3, /* of an earlier version of the journal */
    RECORD_NAME_V3,
    RECORD_SESSION,
    RECORD_HOLD,
    RECORD_REMOTE_HOLD,
    RECORD_NODE_HOLD,
    RECORD_GROUP,
    RECORD_PUBLISHED,
    RECORD_OBJECT,
    RECORD_NAME
};

/* The numbers of a record of an object, of a region, and the first of a name's, and an object's flags: rdt_persist.proto. */
enum { NUMBER_DETACHED_UNTIL, NUMBER_TRANSIT_UNTIL, NUMBER_TRANSIT_COUNT };
#define LEASES_SHIFT 32 /* of NUMBER_TRANSIT_COUNT: how many of them are leases */
enum { NUMBER_NAME_UNTIL, NUMBER_NAME_SESSION, NUMBER_NAME_REQUEST };
enum { NUMBER_PUBLISHED_SESSION, NUMBER_PUBLISHED_REQUEST };
/* The flags of such a record: which kind of request it was. Earlier versions say 0 of both. */
enum published_kind { PUBLISHED_NAME, PUBLISHED_HAND_ON, PUBLISHED_KINDS };
enum { NUMBER_REGION_GENERATION, NUMBER_REGION_SESSION, NUMBER_REGION_BYTES };
enum {
    OBJECT_HAS_PRODUCER = 1,
    OBJECT_IS_PENDING = 2,
    OBJECT_IS_FORCED = 4,
    OBJECT_IS_FREED = 8,
    OBJECT_IS_MANIFEST = 16,
    OBJECT_TAKES_ID = 32,
    OBJECT_LOST_ID = 64,
    OBJECT_TOOK_ID = 128
};
#define NEVER_BEGAN UINT64_MAX

/* Under which numbers the keeper has things. */
#define KEEPER_JOURNAL 1u
#define KEEPER_SET_ASIDE 2u     /* a journal that crashed the daemon */
#define KEEPER_FIRST_REGION 16u /* plus the region's id, and its chunk's number above that */
#define KEEPER_CHUNK_SHIFT 48

static inline uint64_t keeper_id(uint64_t region, uint32_t chunk)
{
    return KEEPER_FIRST_REGION + region + ((uint64_t)chunk << KEEPER_CHUNK_SHIFT);
}

static inline uint64_t keeper_region(uint64_t id)
{
    return (id & ((UINT64_C(1) << KEEPER_CHUNK_SHIFT) - 1)) - KEEPER_FIRST_REGION;
}

struct held { /* by the keeper */
    uint64_t id;
    int fd;
};

/* ---- slots.c ---- */

/* Descriptors that are about to be sent to the keeper, in as few packets as possible. */
struct storing {
    uint64_t ids[KEEPER_MAX_IDS];
    int fds[KEEPER_MAX_IDS]; /* borrowed */
    unsigned n;
};

void recovery_store(struct recovery *recovery, struct storing *storing, uint64_t id, int fd);
void recovery_store_region(struct recovery *recovery, struct storing *storing, const struct region *region);
void recovery_store_end(struct recovery *recovery, struct storing *storing);

/* Takes the descriptor from the map, to which it belonged; -1: it is not there. */
int recovery_take_held(struct map *held, uint64_t id);

/* Adds a record, and charges its bytes to the owner of that account. NULL account: they are charged with the thing itself,
 * as those of an object's record are. NULL: it is too large, or the journal has no room, which is logged. numbers NULL: all
 * are 0. */
struct journal_slot *recovery_add_record(struct recovery *recovery, struct account *account, enum record_kind kind,
                                         uint64_t key, const ProtobufCMessage *message, uint32_t flags,
                                         const uint64_t *numbers);
bool recovery_has_little(struct account *account); /* its person may have the last eighth of the journal; NULL is allowed */
void recovery_charge(struct account *account, const struct journal_slot *slot);
void recovery_remove_record(struct recovery *recovery, struct account *account, struct journal_slot *slot);

/* Checks the id of a session, region or hold, or the version of a name, which a faulty daemon may have written: ids that grow
 * from it must not reach 0, which means none. false: err says so. */
bool restore_check_id(uint64_t id, struct rdt_error *err);

/* Decodes the payload; valid until arena_fini, which always follows. NULL: it is damaged. */
const void *restore_unpack(struct arena *arena, const struct journal_slot *slot, const ProtobufCMessageDescriptor *type,
                           struct rdt_error *err);

/* The kind of the record, whatever the version of the journal. */
enum record_kind restore_kind(const struct journal_slot *slot);

/* Decode such records of any version; valid until arena_fini, which always follows. false: it is damaged. */
bool restore_read_object(struct arena *arena, const struct journal_slot *slot, Rdt__Pb__ObjectRecord *record_p,
                         struct rdt_error *err);
bool restore_read_name(struct arena *arena, const struct journal_slot *slot, Rdt__Pb__NameRecord *record_p,
                       struct rdt_error *err);

/* ---- lasting.c ---- */

/* From now on changes are recorded. */
void recovery_record(struct recovery *recovery);

/* Records an object that is held, which must exist as long as the hold. false: the object cannot be kept. */
bool recovery_keep_held(struct recovery *recovery, struct object *object);

/* Notes that the region has a record already. false: no memory. */
bool recovery_add_region(struct recovery *recovery, struct region *region, struct journal_slot *slot);

/* Removes the region's record, and the keeper's descriptors. */
void recovery_drop_region(struct recovery *recovery, struct region *region);

/* ---- sessions.c, node_records.c: writing ---- */

/* The name whose record will be removed has a newer version, or has ended: remembers for the session what its PUBLISH did. */
void recovery_remember_published(struct recovery *recovery, const struct journal_slot *name);

/* The same of a request that has changed an object. */
void recovery_remember_request(struct recovery *recovery, const struct client *client, uint64_t request, uint64_t generation);

/* Only writes the record of that name, for restore_published. NULL: there is nothing to remember, or no memory. */
struct journal_slot *recovery_write_published(struct recovery *recovery, const struct journal_slot *name);

void recovery_fini_published(struct recovery *recovery);

/* ---- restore.c ---- */

struct restoring {
    struct recovery *recovery;
    struct map *held;            /* id -> struct held */
    struct journal_slot **slots; /* [n_slots]: the records of one kind */
    size_t n_slots, room;
};

/* Restores the records of the journal, in the order that persist.h shows; the descriptors that are used are removed from
 * `held`. NO_MEMORY, after which nothing has been removed from the journal. */
enum rdt_status recovery_restore(struct recovery *recovery, struct map *held, struct rdt_error *err);

/* Each restores a record. false: it is lost, and err says why; if err is RDT_OK, the record was no longer needed. */
bool restore_session(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err);
bool restore_published(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err);
bool restore_hold(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err);
bool restore_remote_hold(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err);
bool restore_node_hold(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err);
bool restore_group(struct restoring *restoring, struct journal_slot *slot, struct rdt_error *err);

/* ---- recovery.c ---- */

/* Connects to the keeper, and opens its journal or makes a new one. *earlier_p: an earlier daemon's records wait to be
 * restored; *held_p: id -> struct held, what the keeper has, for recovery_begin or recovery_give_up. Errors as
 * persist_start. */
enum rdt_status recovery_open(struct recovery *recovery, bool may_take_uuid, struct map *held_p, bool *earlier_p,
                              struct rdt_error *err);

/* The journal has been read: from now on changes are recorded. The keeper drops what is left in `held`, which no record names,
 * and whose ids may be given again. */
void recovery_begin(struct recovery *recovery, struct map *held);

/* The start is over. */
void recovery_serve(struct recovery *recovery, uv_loop_t *loop);

/* The start has failed for another reason than the journal, which the next start finds unchanged. */
void recovery_give_up(struct recovery *recovery, struct map *held);

#endif
