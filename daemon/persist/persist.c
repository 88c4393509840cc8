/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/persist/persist.h"

#include <inttypes.h>

#include "daemon/base/log.h"
#include "daemon/persist/recovery_impl.h"
#include "daemon/persist/storage_impl.h"
#include "proto/plain_text.h"

/* An object without a producer has lost it with the earlier daemon. A put that has not ended never will if its session's record
 * is gone: when a client ends, its session's record is removed first, and the daemon may have been killed before the object
 * ended. */
static void set_end(struct object *object)
{
    const struct journal_slot *slot = object->record; /* NULL: there is no journal, or no room in it */

    if (object->producer)
        return;
    if (object_outlives_session(object) || object->state == OBJECT_FILLING)
        object_producer_ended(object);
    else if (!object->access.forced)
        object->end = slot && slot->flags & OBJECT_IS_FREED ? OBJECT_END_FREED : OBJECT_END_OWNER_DIED;
}

/* Ends the holds of record_restore_object. What nobody else holds ends, and its file is removed by storage_serve. */
static void end_holds(struct object_table *objects)
{
    struct object *object;

    for (uint64_t at = 0; (object = index_next(&objects->by_generation, at, &at)); at++) {
        set_end(object);
        object_drop(object);
    }
}

static enum rdt_status restore_files(struct storage *storage, struct rdt_error *err)
{
    uint64_t began_ns = uv_hrtime();
    enum rdt_status status = storage_restore(storage, err);

    if (status == RDT_OK)
        log_info("%s: restored %" PRIu64 " object%s and %" PRIu64 " name%s (%" PRIu64 " bytes) in %.1f ms%s",
                 storage->directory, storage->counts->storage_restored, text_plural(storage->counts->storage_restored),
                 storage->n_names, text_plural(storage->n_names), storage->accounts->node.used[USAGE_STORED_BYTES],
                 (double)(uv_hrtime() - began_ns) / 1e6,
                 storage->counts->storage_bad_files > 0 ? "; some files are not usable, see above" : "");
    return status;
}

enum rdt_status persist_restore(struct recovery *recovery, struct storage *storage, bool earlier, struct map *held,
                                struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    recovery->accounts->unlimited = recovery->regions->restoring = true;
    if (earlier)
        status = recovery_restore(recovery, held, err);
    if (status == RDT_OK)
        recovery_begin(recovery, held);
    if (status == RDT_OK && storage->helper)
        status = restore_files(storage, err);
    recovery->accounts->unlimited = recovery->regions->restoring = false;
    recovery->frozen = status != RDT_OK;
    end_holds(recovery->objects);
    return status;
}

enum rdt_status persist_start(struct recovery *recovery, struct storage *storage, uv_loop_t *loop, bool may_take_uuid,
                              struct rdt_error *err)
{
    struct map held;
    bool earlier;
    enum rdt_status status;

    storage_init(storage);
    status = recovery_open(recovery, may_take_uuid, &held, &earlier, err);
    if (status == RDT_OK)
        status = storage_open(storage, loop, err);
    if (status == RDT_OK)
        status = persist_restore(recovery, storage, earlier, &held, err);
    if (status == RDT_OK) {
        recovery_serve(recovery, loop);
        storage_serve(storage);
        storage_serve_cache(storage);
    } else {
        recovery_give_up(recovery, &held);
    }
    return status;
}
