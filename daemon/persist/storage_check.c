/* SPDX-License-Identifier: Apache-2.0 */
/* Compares files with the checksums of their tensors: before an object is first served from its file, and when an
 * administrator asks for a scrub. The helper does it, in turns, so that a long file delays no other.
 *
 *   object_check, scrub ──► the helper reads the file ──► the bytes are right: from now on the page cache is trusted
 *                                     │
 *                                     │  a checksum differs: the file gets the name GENERATION.damaged
 *                                     ├────────────────────────► the object is in memory: its file is written again
 *                                     ├────────────────────────► it is not: each fetch of it fails with DAMAGED
 *                                     └────────────────────────► it is evictable: the fetches that wait fail, and it ends
 *
 * A disk that does not answer is another failure: the file keeps its name, and the next fetch tries again. A file of an
 * earlier rdtd has no checksums; its objects are served as they are, and counted. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/persist/storage_impl.h"
#include "proto/grow.h"

#define TURN_BYTES (UINT64_C(8) << 20) /* read in one turn of the helper */
#define BUFFER_BYTES (UINT64_C(1) << 20)

/* ---- on the thread ---- */

/* Reads up to `most` more bytes. */
static enum rdt_status compare_some(struct check_work *check, uint64_t most, struct rdt_error *err)
{
    const struct stored_file *file = &check->file;
    const struct layout *layout = file->layout;
    enum rdt_status status = RDT_OK;

    for (uint64_t done = 0; status == RDT_OK && check->tensor < layout->count && done < most;) {
        uint32_t i = check->tensor;
        uint64_t left = layout_bytes(layout, i) - check->from, n = left < BUFFER_BYTES ? left : BUFFER_BYTES, found;
        status = storage_read_at(check->fd, check->buffer, n, layout->offset[i] + check->from, err);
        if (status != RDT_OK)
            break;
        byte_sum_add(check->sum, check->buffer, n);
        check->from += n;
        check->bytes += n;
        done += n + 1;
        if (n < left)
            continue;
        found = byte_sum_end(check->sum);
        if (found != file->facts->sums[i])
            status = stored_file_damaged(file, i, found, err);
        check->tensor++;
        check->from = 0;
    }
    return status;
}

static enum rdt_status prepare(struct check_work *check, struct rdt_error *err)
{
    check->sum = byte_sum_create();
    check->buffer = malloc(BUFFER_BYTES);
    return check->sum && check->buffer ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory to check a stored file");
}

static enum rdt_status begin(struct check_work *check, struct rdt_error *err)
{
    char name[STORAGE_FILE_NAME_BYTES];
    enum rdt_status status = prepare(check, err);

    storage_object_file(check->generation, check->suffix, name);
    if (status == RDT_OK && check->fd < 0)
        check->fd = openat(check->storage->dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (status == RDT_OK && check->fd < 0)
        return rdt_error_sys(err, errno, "opening it");
    if (status == RDT_OK && check->at_rest)
        (void)posix_fadvise(check->fd, 0, 0, POSIX_FADV_DONTNEED);
    if (status == RDT_OK) {
        (void)posix_fadvise(check->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        status = stored_file_read(check->fd, &check->file, err);
        check->began = status == RDT_OK;
    }
    if (status == RDT_OK && check->file.facts->generation != check->generation)
        status = rdt_error_set(err, RDT_INVALID, "it is the file of another object");
    if (status == RDT_OK && check->file.facts->n_sums == 0)
        check->tensor = check->file.layout->count; /* it has no checksums */
    return status;
}

static void set_aside(struct check_work *check)
{
    char name[STORAGE_FILE_NAME_BYTES], other[STORAGE_FILE_NAME_BYTES];

    storage_object_file(check->generation, check->suffix, name);
    storage_object_file(check->generation, ".damaged", other);
    check->aside.renamed = renameat(check->storage->dir, name, check->storage->dir, other) == 0;
    check->aside.damaged_bytes = storage_prune_damaged(check->storage->dir);
    (void)fsync(check->storage->dir);
}

static void run_check(struct work *work)
{
    struct check_work *check = (struct check_work *)work;

    if (check->cancelled || check->storage->regions->files_closed)
        check->status = rdt_error_set(&check->err, RDT_CANCELLED, "the check was given up");
    else if (!check->began)
        check->status = begin(check, &check->err);
    else
        check->status = compare_some(check, TURN_BYTES, &check->err);
    if (check->status == RDT_INVALID) /* its header, or its length */
        check->status = check->err.status = RDT_DAMAGED;
    work->again = check->status == RDT_OK && check->tensor < check->file.layout->count;
    if (check->status == RDT_DAMAGED)
        set_aside(check);
}

enum rdt_status storage_compare(int fd, const struct stored_file *file, struct rdt_error *err)
{
    struct check_work check = {.fd = fd, .file = *file};
    enum rdt_status status = file->facts->n_sums > 0 ? prepare(&check, err) : RDT_OK;

    if (status == RDT_OK && file->facts->n_sums > 0)
        status = compare_some(&check, UINT64_MAX, err);
    byte_sum_destroy(check.sum);
    free(check.buffer);
    return status;
}

/* ---- the end of a check ---- */

static void check_free(struct check_work *check)
{
    if (check->began)
        stored_file_fini(&check->file);
    if (check->fd >= 0)
        (void)close(check->fd);
    byte_sum_destroy(check->sum);
    free(check->buffer);
    free(check);
}

/* Whether the bytes of the object are in memory, and not in its file only. */
static bool is_in_memory(const struct object *object)
{
    for (uint32_t i = 0; object && i < object->memory.n_regions; i++)
        if (object->memory.uses[i].region->origin == REGION_FILE)
            return false;
    return object && object->state == OBJECT_LIVE;
}

static void name_file(const struct check_work *check, struct rdt_error *err)
{
    const struct object *object = check->stored ? check->stored->object : check->object;

    if (check->status == RDT_DAMAGED && check->aside.renamed && !is_in_memory(object))
        rdt_error_prefix(err,
                         "object \"%.*s\" cannot be read from %s/%016" PRIx64 "%s, which is %016" PRIx64
                         ".damaged now: put the object again",
                         object ? (int)object->tail.id_bytes : 0, object ? (const char *)object_id(object) : "",
                         check->storage->directory, check->generation, check->suffix, check->generation);
    else
        rdt_error_prefix(err, "object \"%.*s\" in %s/%016" PRIx64 "%s", object ? (int)object->tail.id_bytes : 0,
                         object ? (const char *)object_id(object) : "", check->storage->directory, check->generation,
                         check->suffix);
}

static void note_damage(struct check_work *check)
{
    struct storage *storage = check->storage;
    struct stored *stored = check->stored;

    storage->counts->storage_damaged_bytes = check->aside.damaged_bytes;
    if (++storage->counts->storage_damaged <= STORAGE_MAX_WARNED)
        log_error("%s", check->err.msg);
    if (!stored)
        return;
    if (is_in_memory(stored->object)) {
        log_info("obj %016" PRIx64 " is in memory, and its file is written again", stored->generation);
        storage->write_again(stored);
    } else {
        free(stored->damage);
        stored->damage = strdup(check->err.msg);
        if (stored->object)
            stored->object->file.unchecked = true; /* a scrub has found what an earlier check did not */
    }
}

/* What the cache has in a damaged file only ends, so that it can be put again. Returns it, with a hold; NULL: there is none. */
static struct object *lost_object(const struct check_work *check)
{
    struct object *object = check->status == RDT_DAMAGED && check->stored ? check->stored->object : NULL;

    if (!object || !cache_has(object) || is_in_memory(object))
        return NULL;
    object_hold(object);
    return object;
}

static void add_to_scrub(struct storage *storage, const struct check_work *check)
{
    struct storage_scrub *scrub = storage->scrub;

    scrub->bytes += check->bytes;
    if (check->status == RDT_DAMAGED)
        scrub->damaged++;
    else if (check->status == RDT_OK && check->file.facts->n_sums == 0)
        scrub->without_sums++;
    else if (check->status == RDT_OK)
        scrub->checked++;
    else if (check->status != RDT_CANCELLED)
        scrub->failed++;
}

static void scrub_next(struct storage *storage);

/* Its scrub was stopped, and somebody has fetched the object before the thread noticed. false: this is the end. */
static bool is_begun_anew(struct check_work *check)
{
    enum rdt_status status;

    if (check->status != RDT_CANCELLED || !check->stored)
        return false;
    status = storage_check(check->storage, check->object, &check->err);
    if (status != RDT_AGAIN)
        check->status = status;
    return status == RDT_AGAIN;
}

static void done_check(struct work *work)
{
    struct check_work *check = (struct check_work *)work;
    struct storage *storage = check->storage;
    struct object *object = check->object, *lost = lost_object(check);
    bool scrubs = storage->scrub && storage->scrub->check == check;

    if (scrubs)
        storage->scrub->check = NULL;
    if (check->stored)
        check->stored->check = NULL;
    if (check->status != RDT_OK)
        name_file(check, &check->err);
    storage->counts->storage_checked += check->status == RDT_OK && check->file.facts->n_sums > 0;
    if (check->status == RDT_DAMAGED)
        note_damage(check);
    if (scrubs)
        add_to_scrub(storage, check);
    if (object && !is_begun_anew(check)) {
        if (check->status == RDT_CANCELLED)
            (void)object_why_ended(object, &check->err);
        object_checked(object, check->status == RDT_OK ? NULL : &check->err);
    }
    if (object) {
        object_unpin(object);
        object_drop(object);
    }
    if (lost) {
        object_free(lost, true, OBJECT_END_EVICTED);
        object_drop(lost);
    }
    check_free(check);
    if (scrubs && storage->scrub)
        scrub_next(storage);
}

static struct check_work *check_new(struct storage *storage, struct stored *stored)
{
    struct check_work *check = calloc(1, sizeof *check);

    if (!check)
        return NULL;
    *check = (struct check_work){.work = {.run = run_check, .done = done_check, .lane = stored->generation},
                                 .storage = storage,
                                 .stored = stored,
                                 .generation = stored->generation,
                                 .suffix = storage_suffix(stored->for_cache),
                                 .fd = -1};
    stored->check = check;
    return check;
}

/* ---- before a file is first served ---- */

enum rdt_status storage_check(void *arg, struct object *object, struct rdt_error *err)
{
    struct storage *storage = arg;
    struct stored *stored = stored_get(storage, object->generation);
    struct check_work *check;

    if (!stored || storage->frozen) /* the daemon is shutting down */
        return RDT_OK;
    if (stored->damage)
        return rdt_error_set(err, RDT_DAMAGED, "%s", stored->damage);
    if (stored->check && stored->check->object)
        return RDT_AGAIN;
    if (stored->check) { /* a scrub reads the file */
        check = stored->check;
    } else {
        check = check_new(storage, stored);
        if (!check)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory to check a stored file");
        /* The file that is mapped, whatever its name leads to by now. */
        for (uint32_t i = 0; i < object->memory.n_regions && check->fd < 0; i++)
            if (object->memory.uses[i].region->origin == REGION_FILE)
                check->fd = fcntl(object->memory.uses[i].region->block.fd, F_DUPFD_CLOEXEC, 0);
        work_submit(storage->helper, &check->work);
    }
    check->object = object;
    object_hold(object);
    object_pin(object);
    return RDT_AGAIN;
}

/* ---- files that an earlier daemon has found to be damaged ---- */

void storage_restore_damage(struct storage *storage, const char *name)
{
    uint64_t generation = strtoull(name, NULL, 16);
    struct object *object = index_get(&storage->objects->by_generation, generation);
    struct stored *stored;
    struct rdt_error why;
    struct stat st;

    if (strspn(name, "0123456789abcdef") != 16 || !object || object->memory.n_regions == 0 ||
        object->memory.uses[0].region->origin != REGION_FILE || fstatat(storage->dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    stored = stored_new(storage, generation, object->account, object, (uint64_t)st.st_size);
    if (!stored) {
        (void)rdt_error_set(&why, RDT_NO_MEMORY, "no memory to restore a stored object");
        object_fail(object, &why);
        return;
    }
    (void)rdt_error_set(&why, RDT_DAMAGED,
                        "object \"%.*s\" cannot be read from %s/%016" PRIx64
                        ".safetensors, which is %s now: put the object again",
                        (int)object->tail.id_bytes, (const char *)object_id(object), storage->directory, generation, name);
    stored->damage = strdup(why.msg);
    stored->for_cache = cache_has(object);
    object->file.unchecked = true;
    stored_set_durable(stored);
}

/* ---- scrubs ---- */

static void scrub_end(struct storage *storage)
{
    struct storage_scrub *scrub = storage->scrub;

    storage->scrub = NULL;
    free(scrub->generations);
    scrub->generations = NULL;
    scrub->on_done(scrub);
}

/* One file at a time. Files that are being checked because somebody fetches them are checked anyway. */
static void scrub_next(struct storage *storage)
{
    struct storage_scrub *scrub = storage->scrub;

    while (scrub->next < scrub->n) {
        struct stored *stored = stored_get(storage, scrub->generations[scrub->next++]);
        struct check_work *check;
        if (!stored || stored->state != STORED_DURABLE || storage->frozen)
            continue;
        if (stored->damage) {
            scrub->damaged++;
            continue;
        }
        if (stored->check) {
            scrub->checked++;
            continue;
        }
        check = check_new(storage, stored);
        if (!check) {
            scrub->failed++;
            continue;
        }
        check->at_rest = true;
        scrub->check = check;
        work_submit(storage->helper, &check->work);
        return;
    }
    scrub_end(storage);
}

static void run_nothing(struct work *work) {}

static void done_start(struct work *work)
{
    struct storage *storage = container_of(work, struct storage, scrub_start);

    storage->scrub_start.run = NULL;
    if (storage->scrub)
        scrub_next(storage);
}

enum rdt_status storage_scrub(struct storage *storage, struct storage_scrub *scrub, struct rdt_error *err)
{
    struct stored *stored;
    size_t cursor = 0;

    if (!storage->writer)
        return rdt_error_set(err, RDT_UNSUPPORTED, "this daemon stores no objects: set storage_dir in [daemon] of rdtd.conf");
    if (storage->frozen)
        return rdt_error_set(err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    if (storage->scrub || storage->scrub_start.run)
        return rdt_error_set(err, RDT_BUSY, "a scrub is running already: wait for its end");
    scrub->generations = calloc(map_count(&storage->stored) + 1, sizeof *scrub->generations);
    if (!scrub->generations)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to list the stored files");
    scrub->next = scrub->n = 0;
    while ((stored = map_next(&storage->stored, &cursor)))
        scrub->generations[scrub->n++] = stored->generation;
    storage->scrub = scrub;
    storage->scrub_start = (struct work){.run = run_nothing, .done = done_start, .lane = LANE_FILES};
    work_submit(storage->helper, &storage->scrub_start); /* so that on_done is never called in here */
    return RDT_OK;
}

void storage_scrub_stop(struct storage *storage)
{
    struct storage_scrub *scrub = storage->scrub;

    if (!scrub)
        return;
    storage->scrub = NULL;
    free(scrub->generations);
    scrub->generations = NULL;
    if (scrub->check && !scrub->check->object)
        scrub->check->cancelled = true;
    scrub->check = NULL;
}
