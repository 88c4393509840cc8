/* SPDX-License-Identifier: Apache-2.0 */
/* Restores what an earlier daemon stored. A file that cannot be used stays where it is; a line in the log names it, and the
 * other files are restored. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "daemon/memory/region_file.h"
#include "daemon/persist/restore_guard.h"
#include "daemon/persist/storage_impl.h"
#include "proto/frame.h"
#include "proto/grow.h"
#include "proto/wire_limits.h"

#define RESTORING \
    "storage.restoring" /* says which file is being restored, and how many starts in a row ended while they did so */
#define MAX_ENDED 2u    /* then the file is set aside; a start that is killed for another reason meets another file */
#define MAX_LOGGED 20u  /* bad files are logged one by one up to this many */

struct restoring {
    struct storage *storage;
    uint64_t *generations; /* [n_objects], ascending: twice the generation of each file of an object, + 1: of the cache */
    size_t n_objects, room_objects;
    char (*files)[STORAGE_FILE_NAME_BYTES]; /* [n_files]: the files of records */
    size_t n_files, room_files;
    uint64_t *versions; /* [n_versions], ascending: the generations in the records, once versions_read */
    size_t n_versions, room_versions;
    bool versions_read;
    struct restore_guard guard;
    int note;                           /* of RESTORING; -1: it cannot be written */
    char last[STORAGE_FILE_NAME_BYTES]; /* the file that the start before this one was restoring when it ended; "": none */
    unsigned n_ended;                   /* so many starts in a row ended there */
};

static void bad(struct storage *storage, const char *file, const struct rdt_error *why)
{
    if (++storage->counts->storage_bad_files <= MAX_LOGGED)
        log_error("%s/%s is ignored: %s", storage->directory, file, why->msg);
}

/* ---- files that end the daemon ---- */

static void note_file(void *arg, const void *file)
{
    const struct restoring *restoring = arg;
    char text[STORAGE_FILE_NAME_BYTES + 16] = "";

    if (file)
        (void)snprintf(text, sizeof text, "%u %s\n", strcmp(file, restoring->last) == 0 ? restoring->n_ended + 1 : 1,
                       (const char *)file);
    (void)!pwrite(restoring->note, text, sizeof text, 0); /* on a full disk, a file that ends the daemon is not noted */
}

static void begin_notes(struct restoring *restoring)
{
    struct storage *storage = restoring->storage;
    char text[STORAGE_FILE_NAME_BYTES + 16] = "";

    restoring->guard = (struct restore_guard){.room = &storage->regions->room, .note = note_file, .arg = restoring};
    restoring->note = openat(storage->dir, RESTORING, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (restoring->note < 0 || pread(restoring->note, text, sizeof text - 1, 0) <= 0 ||
        sscanf(text, "%u %79s", &restoring->n_ended, restoring->last) != 2)
        restoring->last[0] = '\0';
}

static void end_notes(const struct restoring *restoring)
{
    if (restoring->note >= 0)
        (void)close(restoring->note);
    (void)unlinkat(restoring->storage->dir, RESTORING, 0);
}

/* Whether the file must not be read: it gets another name. */
static bool set_aside(struct restoring *restoring, const char *file)
{
    struct storage *storage = restoring->storage;
    char aside[STORAGE_FILE_NAME_BYTES + 16];
    bool renamed;

    if (strcmp(file, restoring->last) != 0 || restoring->n_ended < MAX_ENDED)
        return false;
    (void)snprintf(aside, sizeof aside, "%.*s.damaged", (int)strcspn(file, "."), file);
    renamed = renameat(storage->dir, file, storage->dir, aside) == 0;
    storage->counts->storage_bad_files++;
    log_error("%u starts in a row ended while they restored %s/%s, which is %s%s, and is not restored: please report this",
              restoring->n_ended, storage->directory, file, renamed ? "now " : "left there because it cannot be renamed ",
              aside);
    return true;
}

/* ---- which files there are ---- */

static bool add_file(struct restoring *restoring, const char *name)
{
    struct storage *storage = restoring->storage;
    uint64_t generation;
    bool for_cache;
    struct rdt_error why;
    size_t length = strlen(name);
    void *grown;

    if (storage_is_object_file(name, &generation, &for_cache)) {
        grown = array_grow(restoring->generations, restoring->n_objects, &restoring->room_objects, sizeof generation);
        if (!grown)
            return false;
        restoring->generations = grown;
        restoring->generations[restoring->n_objects++] = generation << 1 | for_cache;
    } else if (storage_is_name_file(name)) {
        grown = array_grow(restoring->files, restoring->n_files, &restoring->room_files, sizeof *restoring->files);
        if (!grown)
            return false;
        restoring->files = grown;
        text_copy(restoring->files[restoring->n_files++], STORAGE_FILE_NAME_BYTES, name);
    } else if (length > 4 && strcmp(name + length - 4, ".tmp") == 0 && length < STORAGE_FILE_NAME_BYTES) {
        (void)unlinkat(storage->dir, name, 0); /* the earlier daemon ended while it wrote this file */
    } else if (length > 8 && strcmp(name + length - 8, ".damaged") == 0) {
        (void)rdt_error_set(&why, RDT_DAMAGED,
                            "an earlier rdtd has set the file aside, because its bytes had changed, or ended it: remove the "
                            "file when you have looked at it");
        bad(storage, name, &why);
        storage_restore_damage(storage, name);
    } else if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && strcmp(name, "lost+found") != 0 &&
               strncmp(name, STORAGE_LOCK, strlen(STORAGE_LOCK)) != 0 && strcmp(name, RESTORING) != 0) {
        (void)rdt_error_set(&why, RDT_INVALID, "rdtd does not write files with such names");
        bad(storage, name, &why);
    }
    return true;
}

static int compare(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return left > right ? 1 : left < right ? -1 : 0;
}

static enum rdt_status list_files(struct restoring *restoring, struct rdt_error *err)
{
    int fd = openat(restoring->storage->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    bool fits = true;

    if (!dir) {
        enum rdt_status status = rdt_error_sys(err, errno, "reading storage_dir %s", restoring->storage->directory);
        if (fd >= 0)
            (void)close(fd);
        return status;
    }
    while (fits && (entry = readdir(dir)))
        fits = add_file(restoring, entry->d_name);
    (void)closedir(dir);
    if (!fits)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to list storage_dir %s", restoring->storage->directory);
    if (restoring->n_objects > 0)
        qsort(restoring->generations, restoring->n_objects, sizeof *restoring->generations, compare);
    return RDT_OK;
}

static int open_file(const struct storage *storage, const char *name, struct rdt_error *err)
{
    int fd = openat(storage->dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

    if (fd < 0)
        (void)rdt_error_sys(err, errno, errno == ELOOP ? "it is a symbolic link" : "opening it");
    return fd;
}

/* ---- records of names ---- */

static enum rdt_status read_record(const struct storage *storage, const char *file, struct arena *arena,
                                   const Rdt__Pb__NameRecord **record_p, struct rdt_error *err)
{
    uint8_t text[STORAGE_MAX_NAME_BYTES];
    uint64_t bytes = 0;
    int fd = open_file(storage, file, err);
    enum rdt_status status = fd >= 0 ? storage_check_file(fd, &bytes, err) : RDT_SYSTEM;

    if (status == RDT_OK && (bytes > sizeof text || pread(fd, text, bytes, 0) != (ssize_t)bytes))
        status = rdt_error_set(err, RDT_INVALID, "it is too long, or cannot be read");
    if (status == RDT_OK)
        status = stored_name_parse(text, bytes, arena, record_p, err);
    if (fd >= 0)
        (void)close(fd);
    return status;
}

static void note_version(struct restoring *restoring, const char *file)
{
    const Rdt__Pb__NameRecord *record;
    struct arena arena;
    void *grown;

    arena_init(&arena, (size_t)4 * STORAGE_MAX_NAME_BYTES);
    if (read_record(restoring->storage, file, &arena, &record, NULL) == RDT_OK &&
        (grown = array_grow(restoring->versions, restoring->n_versions, &restoring->room_versions, sizeof(uint64_t)))) {
        restoring->versions = grown;
        restoring->versions[restoring->n_versions++] = record->generation;
    }
    arena_fini(&arena);
}

/* Whether a record refers to the object. The records are read when this is first asked. */
static bool is_of_name(struct restoring *restoring, uint64_t generation)
{
    if (!restoring->versions_read) {
        for (size_t i = 0; i < restoring->n_files; i++)
            note_version(restoring, restoring->files[i]);
        if (restoring->n_versions > 0)
            qsort(restoring->versions, restoring->n_versions, sizeof *restoring->versions, compare);
        restoring->versions_read = true;
    }
    return restoring->n_versions > 0 &&
           bsearch(&generation, restoring->versions, restoring->n_versions, sizeof *restoring->versions, compare);
}

/* ---- objects ---- */

/* The bytes of a small object go to the arena. */
static enum rdt_status read_bytes(int fd, struct stored_file *file, uint8_t *data, struct object_put *put,
                                  struct rdt_error *err)
{
    size_t bytes = file->facts->data_bytes;

    if (pread(fd, data, bytes, (off_t)file->header_bytes) != (ssize_t)bytes)
        return rdt_error_sys(err, errno ? errno : EIO, "reading it");
    if (storage_compare(fd, file, err) != RDT_OK)
        return err->status;
    for (uint32_t i = 0; i < file->layout->count; i++)
        file->layout->offset[i] -= file->header_bytes;
    put->inline_data = data;
    put->inline_bytes = bytes;
    return RDT_OK;
}

/* The object of another file that was restored before, with the same id; NULL: there is none. */
static const struct stored *find_rival(const struct storage *storage, const Rdt__Pb__ObjectRecord *facts,
                                       const struct account *account)
{
    const struct object *object = object_table_of_id(storage->objects, &account->owner, facts->id.data, facts->id.len);
    const struct stored *stored = object ? stored_get(storage, object->generation) : NULL;

    return stored && stored->from_file ? stored : NULL;
}

/* It has ended, but for the name whose version it is. */
static void lose_id(struct object *object)
{
    object_leave_id(object, false);
    object_free(object, false, OBJECT_END_FREED);
}

/* Puts the object. If one from another file has its id, the later one of the two has the id from then on, and the other one is
 * there for its name. Of two without an order, the first one keeps it, and the other one is refused. */
static enum rdt_status put_beside(const struct storage *storage, const Rdt__Pb__ObjectRecord *facts, struct object_put *put,
                                  struct object **object_p, struct rdt_error *err)
{
    const struct stored *rival = find_rival(storage, facts, put->account);
    bool is_earlier = rival && facts->order < rival->order;
    enum rdt_status status;

    if (is_earlier)
        object_leave_id(rival->object, true);
    else if (rival && rival->order < facts->order)
        lose_id(rival->object);
    status = record_restore_object(storage->plugins, storage->objects, facts, put, object_p, err);
    if (is_earlier && status == RDT_OK)
        lose_id(*object_p);
    if (is_earlier && object_prepare_id(rival->object, NULL) == RDT_OK)
        object_take_id(rival->object);
    return status;
}

/* Takes *fd if the object is served from the file. */
static enum rdt_status put_again(struct storage *storage, int *fd, struct stored_file *file, bool for_cache,
                                 struct object **object_p, struct rdt_error *err)
{
    const Rdt__Pb__ObjectRecord *facts = file->facts;
    struct account *account = record_account(storage->accounts, facts->uid, facts->tenant, err);
    struct region *region = NULL;
    struct object_put put = {.account = account,
                             .eviction = for_cache ? EVICTION_ALLOWED : EVICTION_NEVER,
                             .priority = for_cache ? facts->priority : 0,
                             .layout = file->layout,
                             .regions = &region,
                             .ttl_ns = facts->detached_ttl_ns,
                             .promise = OBJECT_SEALED,
                             .kept = true};
    uint8_t data[RDT_INLINE_MAX_BYTES];
    enum rdt_status status = account ? RDT_OK : err->status;

    if (status == RDT_OK && facts->data_bytes <= RDT_INLINE_MAX_BYTES) {
        status = read_bytes(*fd, file, data, &put, err);
    } else if (status == RDT_OK) {
        status = region_open_file(storage->regions, *fd, file->header_bytes + facts->data_bytes, account, &region, err);
        put.n_regions = 1;
        if (status == RDT_OK)
            *fd = -1;
    }
    if (status == RDT_OK && facts->n_sums > 0)
        put.sum = tensor_sum_object(file->layout, facts->sums, facts->metadata.data, facts->metadata.len - facts->box_bytes);
    if (status == RDT_OK)
        status = put_beside(storage, facts, &put, object_p, err);
    if (status == RDT_OK) {
        file->layout = NULL; /* the object has taken it */
        if (!(*object_p)->survives.detached)
            (*object_p)->end = OBJECT_END_OWNER_DIED;
        object_lasting_changed(*object_p); /* its record says that nobody has freed it */
    }
    region_unref(region);
    account_unref(account);
    return status;
}

static bool is_same(const struct object *object, const Rdt__Pb__ObjectRecord *facts)
{
    return object_is_constant(object) && object->account->owner.uid == facts->uid &&
           strcmp(object->account->owner.tenant, facts->tenant) == 0 && object->tail.id_bytes == facts->id.len &&
           memcmp(object_id(object), facts->id.data, facts->id.len) == 0;
}

/* The object of the file has ended: an object that was put later has its id. The earlier daemon did not come to remove the
 * file, or left it for the record of a name. Whoever freed the new object would have the old one back after the next start.
 * Of two files, `order` says which is the later one, and the other one goes, unless it is a version of a name: then it is
 * restored without its id (put_beside). */
static bool is_replaced(struct restoring *restoring, const Rdt__Pb__ObjectRecord *facts, const struct account *account)
{
    struct object_table *objects = restoring->storage->objects;
    const struct stored *rival = find_rival(restoring->storage, facts, account);

    if (!rival)
        return object_table_successor(objects, &account->owner, facts->id.data, facts->id.len, facts->generation);
    if (rival->order < facts->order && !is_of_name(restoring, rival->generation))
        object_free(rival->object, true, OBJECT_END_FREED);
    return rival->order > facts->order && !is_of_name(restoring, facts->generation);
}

/* Without an object: the file goes when everything is restored, unless a record refers to it. *replaced_p: this was done. */
static enum rdt_status restore_replaced(struct restoring *restoring, const struct stored_file *file, bool for_cache,
                                        bool *replaced_p, struct rdt_error *err)
{
    struct storage *storage = restoring->storage;
    const Rdt__Pb__ObjectRecord *facts = file->facts;
    struct account *account = record_account(storage->accounts, facts->uid, facts->tenant, err);
    struct stored *stored;
    enum rdt_status status = account ? RDT_OK : err->status;

    *replaced_p = account && is_replaced(restoring, facts, account);
    if (*replaced_p) {
        stored = stored_new(storage, facts->generation, account, NULL, file->header_bytes + facts->data_bytes);
        if (stored) {
            stored->has_sums = facts->n_sums > 0;
            stored->for_cache = for_cache;
            stored_set_durable(stored);
        } else {
            status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to remove it: its object has ended");
        }
    }
    account_unref(account);
    return status;
}

static enum rdt_status restore_object(struct restoring *restoring, uint64_t generation, bool for_cache, int *fd,
                                      struct stored_file *file, struct rdt_error *err)
{
    struct storage *storage = restoring->storage;
    struct object *object = index_get(&storage->objects->by_generation, generation); /* the keeper had it in memory */
    uint64_t bytes = file->header_bytes + file->facts->data_bytes;
    struct stored *stored;
    enum rdt_status status = RDT_OK;
    bool replaced = false, from_file = !object;

    if (file->facts->generation != generation || (for_cache && !file->facts->evictable) ||
        (object && !is_same(object, file->facts)))
        return rdt_error_set(err, RDT_INVALID, "it is the file of another object");
    if (storage->order < file->facts->order)
        storage->order = file->facts->order;
    if (!object)
        status = restore_replaced(restoring, file, for_cache, &replaced, err);
    if (status != RDT_OK || replaced)
        return status;
    if (!object) {
        status = put_again(storage, fd, file, for_cache, &object, err);
        if (status != RDT_OK)
            return status;
        storage->counts->storage_restored += object_outlives_session(object); /* others end, unless a name leads to them */
    } else if (object->sum == 0 && file->facts->n_sums > 0) {
        object->sum = tensor_sum_object(file->layout, file->facts->sums, object_metadata(object),
                                        object->tail.metadata_bytes - object->tail.box_bytes);
    }
    stored = stored_new(storage, generation, object->account, object, bytes);
    if (!stored)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to restore a stored object");
    stored->from_file = from_file;
    stored->for_cache = for_cache;
    stored->order = file->facts->order;
    stored->has_sums = file->facts->n_sums > 0;
    storage->counts->storage_without_sums += file->facts->n_sums == 0;
    for (uint32_t i = 0; i < object->memory.n_regions; i++)
        object->file.unchecked |= object->memory.uses[i].region->origin == REGION_FILE && file->facts->n_sums > 0;
    stored_set_durable(stored);
    /* it was freed by force, or replaced, and somebody keeps it; or it is evictable, and in memory: its file goes */
    if (object->access.key == KEY_NONE || (object->access.key == KEY_LOST && !from_file) ||
        (stored->for_cache && object->memory.n_regions > 0 && object->memory.uses[0].region->origin != REGION_FILE))
        storage_object_ended(storage, object);
    return RDT_OK;
}

/* What the header says of its own length; stored_file_read checks it. */
static uint64_t header_bytes(int fd)
{
    uint8_t length[8];
    uint64_t bytes = pread(fd, length, sizeof length, 0) == (ssize_t)sizeof length ? get_le(length, sizeof length) : 0;

    return bytes <= STORAGE_MAX_HEADER_BYTES ? bytes : 0;
}

/* Nobody misses what the cache has lost, as in a power failure. */
static void remove_bad(const struct storage *storage, const char *file, const struct rdt_error *why)
{
    bool removed = unlinkat(storage->dir, file, 0) == 0;

    log_info("%s/%s of the cache %s: %s", storage->directory, file, removed ? "is removed" : "cannot be removed", why->msg);
}

static void restore_object_file(struct restoring *restoring, uint64_t generation, bool for_cache)
{
    char name[STORAGE_FILE_NAME_BYTES];
    struct rdt_error why = {0};
    struct stored_file file;
    enum rdt_status status = RDT_SYSTEM;
    uint64_t bytes;
    int fd;

    storage_object_file(generation, storage_suffix(for_cache), name);
    if (set_aside(restoring, name))
        return;
    fd = open_file(restoring->storage, name, &why);
    bytes = fd >= 0 ? header_bytes(fd) : 0;
    if (fd >= 0)
        status = restore_guard_enter(&restoring->guard, name, bytes, &why);
    if (status == RDT_OK) {
        status = stored_file_read(fd, &file, &why);
        if (status == RDT_OK) {
            status = restore_object(restoring, generation, for_cache, &fd, &file, &why);
            stored_file_fini(&file);
        }
        restore_guard_leave(&restoring->guard, bytes);
    }
    if (status != RDT_OK && for_cache)
        remove_bad(restoring->storage, name, &why);
    else if (status != RDT_OK)
        bad(restoring->storage, name, &why);
    if (fd >= 0)
        (void)close(fd);
}

static void restore_objects(struct restoring *restoring)
{
    for (size_t i = 0; i < restoring->n_objects; i++)
        restore_object_file(restoring, restoring->generations[i] >> 1, restoring->generations[i] & 1);
}

/* ---- names ---- */

/* Whether the name was restored from the keeper, with this version or a later one. */
static bool is_published(const struct storage *storage, const struct owner *owner, const Rdt__Pb__NameRecord *record)
{
    struct rdt_ref ref = {.uid = owner->uid, .id_bytes = (uint8_t)record->id.len, .is_name = 1, .after = record->version - 1};
    struct object *object;
    uint64_t version;

    memcpy(ref.id, record->id.data, record->id.len);
    text_copy(ref.tenant, sizeof ref.tenant, owner->tenant);
    return names_find(storage->names, &ref, owner, &object, &version, NULL) == RDT_OK;
}

static enum rdt_status restore_record(struct storage *storage, const char *file, const Rdt__Pb__NameRecord *record,
                                      struct rdt_error *err)
{
    struct stored *stored = stored_get(storage, record->generation);
    uint8_t key[OWNER_KEY_MAX_BYTES];
    char expected[STORAGE_FILE_NAME_BYTES];
    struct name_publish publish = {.ttl_ns = record->ttl_ns};
    struct owner owner;
    struct name *name;
    bool published, stays;
    enum rdt_status status = record_owner(record->uid, record->tenant, &owner, err);

    if (status != RDT_OK)
        return status;
    storage_name_file(key, owner_key(key, &owner, record->id.data, record->id.len), expected);
    if (strcmp(file, expected) != 0)
        return rdt_error_set(err, RDT_INVALID, "it is the record of another name");
    if (!stored)
        return rdt_error_set(err, RDT_NOT_FOUND,
                             "the file of its object, %016" PRIx64 ".safetensors, is missing or was not usable",
                             record->generation);
    if (!owner_equal(&owner, &stored->account->owner))
        return rdt_error_set(err, RDT_INVALID, "its object belongs to somebody else");
    published = is_published(storage, &owner, record);
    if (!published && !stored->object) /* it was freed by force, and its name has nothing any more: the record goes, too */
        return storage_remove_file(storage->dir, file, err);
    if (!published) {
        stays = stored->object->survives.detached || stored->object->survives.published;
        status = record_restore_name(storage->names, record, stored->object, &publish, &name, err);
        storage->counts->storage_restored += status == RDT_OK && !stays;
    }
    if (status == RDT_OK && !stored_name_restore(storage, file, record->version, stored))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a name");
    return status;
}

static enum rdt_status restore_name_file(struct restoring *restoring, const char *file, struct rdt_error *err)
{
    const Rdt__Pb__NameRecord *record;
    struct arena arena;
    enum rdt_status status = restore_guard_enter(&restoring->guard, file, STORAGE_MAX_NAME_BYTES, err);

    if (status != RDT_OK)
        return status;
    arena_init(&arena, (size_t)4 * STORAGE_MAX_NAME_BYTES);
    status = read_record(restoring->storage, file, &arena, &record, err);
    if (status == RDT_OK)
        status = restore_record(restoring->storage, file, record, err);
    arena_fini(&arena);
    restore_guard_leave(&restoring->guard, STORAGE_MAX_NAME_BYTES);
    return status;
}

static void restore_names(struct restoring *restoring)
{
    for (size_t i = 0; i < restoring->n_files; i++) {
        struct rdt_error why = {0};

        if (!set_aside(restoring, restoring->files[i]) && restore_name_file(restoring, restoring->files[i], &why) != RDT_OK)
            bad(restoring->storage, restoring->files[i], &why);
    }
}

/* ---- all of it ---- */

static void say_removed(const struct storage *storage)
{
    const struct stored *stored;
    size_t cursor = 0, n = 0;
    uint64_t bytes = 0;

    while ((stored = map_next(&storage->stored, &cursor))) {
        if (stored->object || stored->n_names > 0)
            continue;
        log_debug("%s/%016" PRIx64 "%s is removed", storage->directory, stored->generation, storage_suffix(stored->for_cache));
        bytes += stored->bytes;
        n++;
    }
    if (n > 0)
        log_info("%s: %zu files (%" PRIu64 " bytes) are removed: their objects ended before the earlier daemon did",
                 storage->directory, n, bytes);
}

enum rdt_status storage_restore(struct storage *storage, struct rdt_error *err)
{
    struct restoring restoring = {.storage = storage};
    enum rdt_status status;

    storage->counts->storage_damaged_bytes = storage_prune_damaged(storage->dir);
    status = list_files(&restoring, err);
    if (status == RDT_OK) {
        begin_notes(&restoring);
        restore_objects(&restoring);
        restore_names(&restoring);
        say_removed(storage);
        end_notes(&restoring);
    }
    free(restoring.generations);
    free(restoring.files);
    free(restoring.versions);
    return status;
}
