/* SPDX-License-Identifier: Apache-2.0 */
/* One stored object: its entry, its waiters, and the removal of its file. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/sm.h"
#include "daemon/memory/region_orphans.h"
#include "daemon/persist/storage_impl.h"

/* Every allowed move. storage_impl.h draws them. */
static const struct sm_state states[] = {
    [STORED_NEW] = {"new", 1u << STORED_QUEUED | 1u << STORED_DURABLE},
    [STORED_QUEUED] = {"queued", 1u << STORED_WRITING},
    [STORED_WRITING] = {"writing", 1u << STORED_DURABLE | 1u << STORED_QUEUED},
    [STORED_DURABLE] = {"durable", 1u << STORED_QUEUED},
};

static void set_state(struct stored *stored, enum stored_state state)
{
    sm_move_byte(states, sizeof states / sizeof states[0], &stored->state, state);
    if (stored->object)
        stored->object->file.stored = state == STORED_DURABLE ? OBJECT_STORED : OBJECT_STORING;
}

void stored_leave_object(struct stored *stored)
{
    if (stored->object)
        stored->object->file.stored = OBJECT_NOT_STORED;
    stored->object = NULL;
}

struct stored *stored_get(const struct storage *storage, uint64_t generation)
{
    return map_count(&storage->stored) > 0 ? map_get_u64(&storage->stored, generation) : NULL;
}

void stored_fail_waiters(struct stored *stored, const struct rdt_error *err)
{
    list_drain (struct storage_waiter, waiter, &stored->waiters, link) {
        list_remove(&waiter->link);
        waiter->on_done(waiter, err);
    }
}

/* ---- removing ---- */

struct removal {
    struct work work; /* first */
    struct storage *storage;
    struct account *account; /* one reference */
    uint64_t bytes;
    int fd; /* of the file; -1: it could not be opened */
    enum rdt_status status;
    struct rdt_error err;
    char file[STORAGE_FILE_NAME_BYTES];
};

static void run_removal(struct work *work)
{
    struct removal *removal = (struct removal *)work;

    removal->fd = openat(removal->storage->dir, removal->file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    removal->status = storage_remove_file(removal->storage->dir, removal->file, &removal->err);
}

/* A reader that still has the file keeps its room on the disk, which is charged until the last reader closes it. */
static void watch_removed(struct removal *removal)
{
    struct regions *regions = removal->storage->regions;
    const struct orphaned orphaned = {.fd = removal->fd, .account = removal->account, .bytes = removal->bytes, .stored = true};

    if (removal->status == RDT_OK)
        (void)region_orphans_watch(regions->orphans, &orphaned);
    owner_work_close_fd(regions->owner_work, removal->fd, removal->account);
}

static void done_removal(struct work *work)
{
    struct removal *removal = (struct removal *)work;

    removal->storage->n_removals--;
    if (removal->fd >= 0)
        watch_removed(removal);
    account_give(removal->account, USAGE_STORED_BYTES, removal->bytes);
    account_unref(removal->account);
    if (removal->status != RDT_OK)
        log_error("%s/%s could not be removed: %s. The next start would restore it: remove it by hand",
                  removal->storage->directory, removal->file, removal->err.msg);
    free(removal);
}

/* The helper removes the file. Then the charge is taken off the account, whose reference is taken. */
static void remove_file(struct storage *storage, const char *file, struct account *account, uint64_t bytes)
{
    struct removal *removal = calloc(1, sizeof *removal);

    if (!removal) {
        log_error("no memory to remove %s/%s: the next start would restore it", storage->directory, file);
        account_unref(account); /* the file still exists, so the node's account is still charged for it */
        return;
    }
    removal->storage = storage;
    removal->account = account;
    removal->bytes = bytes;
    memcpy(removal->file, file, sizeof removal->file);
    removal->work = (struct work){.run = run_removal, .done = done_removal, .lane = LANE_FILES};
    storage->n_removals++;
    work_submit(storage->helper, &removal->work);
}

/* ---- one object ---- */

/* The file may outlive the client, so its owner is charged for it. */
struct stored *stored_new(struct storage *storage, uint64_t generation, struct account *account, struct object *object,
                          uint64_t bytes)
{
    struct stored *stored = calloc(1, sizeof *stored);

    if (!stored || !map_put_u64(&storage->stored, generation, stored)) {
        free(stored);
        return NULL;
    }
    stored->storage = storage;
    stored->generation = generation;
    stored->object = object;
    stored->account = account_ref(account_owner(account));
    stored->bytes = bytes;
    list_init(&stored->queue);
    list_init(&stored->waiters);
    list_init(&stored->claims);
    list_init(&stored->barriers);
    account_add(stored->account, USAGE_STORED_BYTES, bytes);
    return stored;
}

static void run_nothing(struct work *work) {}

static void done_barrier(struct work *work)
{
    struct storage_barrier *barrier = (struct storage_barrier *)work;

    barrier->on_done(barrier);
}

void stored_submit_barrier(struct storage *storage, struct storage_barrier *barrier)
{
    barrier->work = (struct work){.run = run_nothing, .done = done_barrier, .lane = LANE_FILES};
    work_submit(storage->helper, &barrier->work);
}

/* The removal of its file has begun, or no file will be created. */
static void release_barriers(struct stored *stored)
{
    list_drain (struct storage_barrier, barrier, &stored->barriers, link) {
        list_remove(&barrier->link);
        stored_submit_barrier(stored->storage, barrier);
    }
}

void stored_queue(struct stored *stored)
{
    set_state(stored, STORED_QUEUED);
    release_barriers(stored);
    list_append(&stored->storage->queue, &stored->queue);
}

static void stop_check(struct stored *stored)
{
    if (!stored->check)
        return;
    stored->check->cancelled = true;
    stored->check->stored = NULL;
    stored->check = NULL;
}

void stored_free(struct stored *stored)
{
    struct storage *storage = stored->storage;

    release_barriers(stored);
    slice_stop(&stored->write);
    list_remove(&stored->queue);
    stored_leave_object(stored);
    stop_check(stored);
    free(stored->damage);
    (void)map_remove_u64(&storage->stored, stored->generation);
    free(stored);
}

void stored_set_writing(struct stored *stored)
{
    set_state(stored, STORED_WRITING);
}

void stored_set_durable(struct stored *stored)
{
    set_state(stored, STORED_DURABLE);
    stored->storage->n_objects++;
    if (stored_has_memory(stored))
        list_append(&stored->storage->in_memory, &stored->queue);
}

void stored_settle(struct stored *stored)
{
    struct storage *storage = stored->storage;
    char file[STORAGE_FILE_NAME_BYTES];

    if (stored->state != STORED_DURABLE || !list_empty(&stored->claims))
        return;
    stored_fail_waiters(stored, NULL);
    if (storage->frozen)
        return;
    if (stored->object || stored->n_names > 0) { /* it is in use again, or it is a version of a name */
        release_barriers(stored);
        return;
    }
    storage_object_file(stored->generation, storage_suffix(stored->for_cache), file);
    remove_file(storage, file, stored->account, stored->bytes);
    storage->n_objects--;
    stored_free(stored);
}
