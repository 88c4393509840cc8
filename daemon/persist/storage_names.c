/* SPDX-License-Identifier: Apache-2.0 */
/* The records of names. A record says which stored object is a name's newest version on the disk. It is replaced when a newer
 * version is there, and removed when the name ends; the versions of a name that nobody stores leave it as it is. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/persist/storage_impl.h"

/* A version of a name whose object is stored, and whose record is to be written. */
struct claim {
    struct list link; /* in stored->claims, or storage->dropped */
    struct stored *stored;
    uint64_t generation; /* of `stored`, which may have ended */
    struct stored_name *name;
    uint64_t version;
    bool submitted;
    size_t bytes;
    uint8_t record[]; /* [bytes]: the content of the file */
};

struct record_work {
    struct work work; /* first */
    struct stored_name *name;
    struct claim *claim; /* NULL: the record is removed */
    int dir;
    enum rdt_status status;
    struct rdt_error err;
};

static struct stored_name *name_get(struct storage *storage, const char *file)
{
    return map_get(&storage->by_name, file, strlen(file));
}

static struct stored_name *name_new(struct storage *storage, const char *file)
{
    struct stored_name *name = calloc(1, sizeof *name);

    if (!name)
        return NULL;
    name->storage = storage;
    memcpy(name->file, file, sizeof name->file);
    if (map_put(&storage->by_name, name->file, strlen(name->file), name))
        return name;
    free(name);
    return NULL;
}

static void name_settle(struct stored_name *name)
{
    if (name->refs > 0 || name->version > 0)
        return;
    (void)map_remove(&name->storage->by_name, name->file, strlen(name->file));
    free(name);
}

static void claim_free(struct claim *claim)
{
    struct stored_name *name = claim->name;

    if (name->claimed == claim->generation && name->claimed_version == claim->version)
        name->claimed = 0;
    list_remove(&claim->link);
    free(claim);
    name->refs--;
    name_settle(name);
}

static struct slices *slices_of(const struct storage *storage)
{
    return storage->objects->deadlines ? &storage->objects->deadlines->slices : NULL;
}

static bool drop_some(struct slice *slice, uint64_t until_ns)
{
    struct storage *storage = container_of(slice, struct storage, drop);

    list_drain (struct claim, claim, &storage->dropped, link) {
        claim_free(claim);
        if (uv_hrtime() >= until_ns)
            break;
    }
    return list_empty(&storage->dropped);
}

void stored_drop_claims(struct stored *stored)
{
    struct storage *storage = stored->storage;

    list_splice(&storage->dropped, &stored->claims);
    storage->drop.run = drop_some;
    slice_begin(slices_of(storage), &storage->drop);
}

void storage_free_claims(struct storage *storage)
{
    slice_stop(&storage->drop);
    (void)drop_some(&storage->drop, UINT64_MAX);
}

/* ---- what a record refers to ---- */

/* The record on the disk now has this version; version 0: there is no record. */
static void set_record(struct stored_name *name, uint64_t version, struct stored *stored)
{
    struct storage *storage = name->storage;
    struct stored *before = name->version > 0 ? stored_get(storage, name->generation) : NULL;

    storage->n_names += (version > 0) - (uint64_t)(name->version > 0);
    name->version = version;
    name->generation = stored ? stored->generation : 0;
    if (stored)
        stored->n_names++;
    if (before) {
        before->n_names--;
        stored_settle(before);
    }
}

bool stored_name_restore(struct storage *storage, const char *file, uint64_t version, struct stored *stored)
{
    struct stored_name *name = name_new(storage, file);

    if (!name)
        return false;
    name->asked = version;
    set_record(name, version, stored);
    return true;
}

/* ---- writing and removing records ---- */

static void run_record(struct work *work)
{
    struct record_work *record = (struct record_work *)work;

    if (record->claim)
        record->status =
            storage_write_file(record->dir, record->name->file, record->claim->record, record->claim->bytes, &record->err);
    else
        record->status = storage_remove_file(record->dir, record->name->file, &record->err);
}

static void done_write(struct record_work *record)
{
    struct stored_name *name = record->name;
    struct storage *storage = name->storage;
    struct claim *claim = record->claim;
    struct stored *stored = claim->stored;

    if (record->status == RDT_OK) {
        set_record(name, claim->version, stored);
    } else {
        storage->counts->stores_failed++;
        rdt_error_prefix(&record->err, "storing version %" PRIu64 " of a name in %s/%s", claim->version, storage->directory,
                         name->file);
        if (storage->counts->stores_failed <= STORAGE_MAX_WARNED)
            log_warn("%s; it is published, but not stored", record->err.msg);
        if (name->asked == claim->version) /* otherwise a newer record is on its way */
            name->asked = name->version;
        stored_fail_waiters(stored, &record->err);
    }
    claim_free(claim);
    stored_settle(stored);
}

static void done_record(struct work *work)
{
    struct record_work *record = (struct record_work *)work;
    struct stored_name *name = record->name;
    struct storage *storage = name->storage;

    if (record->claim) {
        done_write(record);
    } else {
        storage->n_removals--;
        if (record->status != RDT_OK)
            log_error("%s/%s could not be removed: %s. The next start would publish the name again: remove the file by hand",
                      storage->directory, name->file, record->err.msg);
        if (name->version > 0)
            set_record(name, 0, NULL);
    }
    name->refs--;
    name_settle(name);
    free(record);
}

static bool submit(struct stored_name *name, struct claim *claim)
{
    struct record_work *record = calloc(1, sizeof *record);

    if (!record)
        return false;
    record->name = name;
    record->claim = claim;
    record->dir = name->storage->dir;
    record->work = (struct work){.run = run_record, .done = done_record, .lane = LANE_FILES};
    name->refs++;
    name->storage->n_removals += !claim;
    work_submit(name->storage->helper, &record->work);
    return true;
}

static void write_claim(struct claim *claim)
{
    struct stored *stored = claim->stored;
    struct stored_name *name = claim->name;
    struct rdt_error err;

    if (claim->version <= name->asked || claim->version <= name->ended) { /* a newer one was faster, or the name has ended */
        claim_free(claim);
    } else if (submit(name, claim)) {
        name->asked = claim->version;
        claim->submitted = true;
        list_remove(&claim->link);
        list_append(&stored->claims, &claim->link);
    } else {
        stored->storage->counts->stores_failed++;
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory to store a name");
        stored_fail_waiters(stored, &err);
        claim_free(claim);
    }
}

/* Returns true when the records of all its claims are being written. */
static bool write_claims(struct stored *stored, uint64_t until_ns)
{
    list_drain (struct claim, claim, &stored->claims, link) {
        if (claim->submitted)
            return true;
        if (uv_hrtime() >= until_ns)
            return false;
        write_claim(claim);
    }
    return true;
}

static bool write_some(struct slice *slice, uint64_t until_ns)
{
    struct stored *stored = container_of(slice, struct stored, write);

    if (!write_claims(stored, until_ns))
        return false;
    stored_settle(stored);
    return true;
}

void stored_write_claims(struct stored *stored)
{
    struct slices *slices = slices_of(stored->storage);

    stored->write.run = write_some;
    if (!slice_waits(&stored->write) && !write_claims(stored, slices ? uv_hrtime() + SLICES_TURN_NS : UINT64_MAX))
        slice_start(slices, &stored->write);
}

/* ---- names change ---- */

static bool claim_add(struct stored *stored, const struct name *name, const char *file)
{
    struct stored_name *stored_name = name_get(stored->storage, file);
    Rdt__Pb__NameRecord record;
    uint8_t text[STORAGE_MAX_NAME_BYTES];
    struct claim *claim;
    size_t bytes;

    if (stored_name && (stored_name->version >= name->version || stored_name->asked >= name->version))
        return true;
    if (stored_name && stored_name->claimed == stored->generation && stored_name->claimed_version >= name->version)
        return true;
    record_of_name(name, &record);
    bytes = stored_name_pack(&record, text, sizeof text);
    if (!stored_name)
        stored_name = name_new(stored->storage, file);
    claim = stored_name && bytes > 0 ? malloc(sizeof *claim + bytes) : NULL;
    if (!claim) {
        if (stored_name)
            name_settle(stored_name);
        return false;
    }
    *claim = (struct claim){
        .stored = stored, .generation = stored->generation, .name = stored_name, .version = name->version, .bytes = bytes};
    memcpy(claim->record, text, bytes);
    stored_name->refs++;
    stored_name->claimed = stored->generation;
    stored_name->claimed_version = name->version;
    list_prepend(&stored->claims, &claim->link);
    return true;
}

/* Names that end with a session are not stored. */
static bool is_stored(const struct name *name)
{
    return name->published && name->object && !name->publisher;
}

bool stored_claim_names(struct stored *stored)
{
    const struct name *name;
    struct list *cursor = NULL;
    char file[STORAGE_FILE_NAME_BYTES];

    while ((name = names_of_object(stored->storage->names, stored->object, &cursor))) {
        if (!is_stored(name))
            continue;
        storage_name_file(name->key, name->key_bytes, file);
        if (!claim_add(stored, name, file))
            return false;
    }
    return true;
}

void storage_name_changed(void *arg, struct name *name)
{
    struct storage *storage = arg;
    bool may_be_stored = name->object && !cache_has(name->object); /* the files of the cache have no names */
    struct stored *stored = may_be_stored ? stored_get(storage, name->object->generation) : NULL;
    struct stored_name *stored_name;
    char file[STORAGE_FILE_NAME_BYTES];

    if (storage->frozen || (!stored && map_count(&storage->by_name) == 0))
        return;
    storage_name_file(name->key, name->key_bytes, file);
    stored_name = name_get(storage, file);
    if (!name->published || !name->object) {
        if (!stored_name)
            return;
        stored_name->ended = name->version;
        if ((stored_name->version > 0 || stored_name->asked > 0) && !submit(stored_name, NULL))
            log_error("no memory to remove %s/%s: the next start would publish the name again", storage->directory, file);
        return;
    }
    if (!stored || !is_stored(name))
        return;
    if (!claim_add(stored, name, file))
        log_error("no memory to store version %" PRIu64 " of a name in %s/%s", name->version, storage->directory, file);
    if (stored->state == STORED_DURABLE)
        stored_write_claims(stored);
}
