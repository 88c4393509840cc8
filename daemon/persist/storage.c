/* SPDX-License-Identifier: Apache-2.0 */
/* The objects that are stored: their states, and the requests that wait for them. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/process/folder_lock.h"
#include "daemon/persist/storage_impl.h"
#include "proto/plain_text.h"

#define FAILURE_LINES_NS UINT64_C(1000000000)

static enum rdt_status start_next(struct storage *storage, uint64_t generation, struct rdt_error *err);

/* ---- who waits ---- */

bool storage_wait(struct storage *storage, const struct object *object, struct storage_waiter *waiter)
{
    struct stored *stored = stored_get(storage, object->generation);

    if (!stored || (stored->state == STORED_DURABLE && list_empty(&stored->claims)))
        return false;
    list_append(&stored->waiters, &waiter->link);
    return true;
}

/* Whether the object has ended, or ends when it has been written, because nobody else holds it. Its file may still be
 * created. */
static bool is_ending(const struct stored *stored)
{
    if (!stored->object)
        return stored->state == STORED_WRITING || !list_empty(&stored->claims);
    return stored->state == STORED_WRITING && stored->object->holds == 1 && list_empty(&stored->claims) && stored->n_names == 0;
}

bool storage_barrier(struct storage *storage, uint64_t generation, struct storage_barrier *barrier)
{
    bool serves = storage->helper && !storage->frozen;
    struct stored *stored = serves && generation != 0 ? stored_get(storage, generation) : serves ? storage->writing : NULL;

    if (stored && is_ending(stored)) {
        if (stored->state == STORED_WRITING)
            stored->work->cancelled = true;
        list_append(&stored->barriers, &barrier->link);
        return true;
    }
    if (!serves || storage->n_removals == 0)
        return false;
    stored_submit_barrier(storage, barrier);
    return true;
}

/* ---- the end of an object ---- */

/* It has no file, and will have none. */
static void give_up(struct stored *stored, const struct rdt_error *err)
{
    struct cache *cache = stored->for_cache ? &stored->storage->objects->cache : NULL;

    stored_fail_waiters(stored, err);
    stored_drop_claims(stored);
    account_give(stored->account, USAGE_STORED_BYTES, stored->bytes);
    account_unref(stored->account);
    stored_free(stored);
    if (cache)
        cache_written(cache, 0);
}

static void ended_error(const struct stored *stored, struct rdt_error *err)
{
    (void)rdt_error_set(err, RDT_FREED, "the object ended before it was stored in %s/%016" PRIx64 ".safetensors",
                        stored->storage->directory, stored->generation);
}

void storage_object_ended(struct storage *storage, const struct object *object)
{
    struct stored *stored = object->file.stored != OBJECT_NOT_STORED ? stored_get(storage, object->generation) : NULL;
    struct rdt_error err;

    if (!stored || stored->object != object)
        return;
    stored_leave_object(stored);
    if (storage->frozen)
        return;
    switch ((enum stored_state)stored->state) {
    case STORED_NEW: /* not yet: its object is held until it is QUEUED or DURABLE */
        break;
    case STORED_QUEUED:
        ended_error(stored, &err);
        give_up(stored, &err);
        break;
    case STORED_WRITING:
        stored->work->cancelled = true;
        break;
    case STORED_DURABLE:
        stored_settle(stored);
        break;
    }
}

void storage_discard(struct storage *storage, struct object *object)
{
    struct stored *stored = object->file.stored != OBJECT_NOT_STORED ? stored_get(storage, object->generation) : NULL;

    if (stored && stored->object == object && stored->state == STORED_WRITING)
        stored->work->cancelled = true;
    else
        storage_object_ended(storage, object);
}

/* ---- writing ---- */

static void work_free_all(struct store_work *store)
{
    stored_plan_fini(&store->plan);
    free(store->own_layout);
    free(store->sums);
    free(store->bases);
    free(store);
}

static void store_failed(struct stored *stored, struct store_work *store)
{
    struct storage *storage = stored->storage;
    struct rdt_error err = store->err;

    if (store->cancelled) {
        ended_error(stored, &err);
    } else {
        rdt_error_prefix(&err, "storing object \"%.*s\" in %s/%016" PRIx64 "%s", (int)store->record.id.len,
                         (const char *)store->record.id.data, storage->directory, stored->generation,
                         storage_suffix(stored->for_cache));
        if (stored->for_cache)
            log_warn_rarely(&storage->spill_failures, "an evictable object is not stored", err.msg);
        else if (++storage->counts->stores_failed <= STORAGE_MAX_WARNED)
            log_warn("%s; the object stays in memory", err.msg);
    }
    give_up(stored, &err);
}

/* The writing was stopped because nobody held the object, but somebody holds it again by now, and wants it stored. */
static bool is_wanted_again(const struct stored *stored)
{
    return !stored->storage->frozen && stored->object && stored->object->holds > 1 &&
           (!list_empty(&stored->waiters) || !list_empty(&stored->claims));
}

static void done_store(struct work *work)
{
    struct store_work *store = (struct store_work *)work;
    struct storage *storage = store->storage;
    struct stored *stored = store->stored;
    struct object *object = store->object;
    uint64_t generation = stored->generation, bytes = store->plan.header_bytes + store->plan.data_bytes;

    storage->writing = NULL;
    stored->work = NULL;
    if (store->status != RDT_OK && store->cancelled && is_wanted_again(stored)) {
        stored_queue(stored);
    } else if (store->status != RDT_OK) {
        store_failed(stored, store);
    } else {
        log_debug("obj %016" PRIx64 " is stored in %s (%" PRIu64 " bytes)", stored->generation, storage->directory, bytes);
        account_add(stored->account, USAGE_STORED_BYTES, bytes);
        account_give(stored->account, USAGE_STORED_BYTES, stored->bytes);
        stored->bytes = bytes;
        stored->has_sums = true;
        stored_set_durable(stored);
        stored_write_claims(stored);
        if (stored->for_cache) {
            cache_written(&storage->objects->cache, bytes); /* which may discard it */
        } else {
            storage->counts->stores_done++;
            storage->counts->stores_bytes += bytes;
        }
    }
    work_free_all(store);
    object_unpin(object); /* the object may have ended after this, and then storage_object_ended has been called */
    object->file.writing = false;
    object_drop(object);
    stored = stored_get(storage, generation);
    if (stored)
        stored_settle(stored);
    (void)start_next(storage, 0, NULL);
}

/* The properties of the object that the thread needs. */
static enum rdt_status prepare(struct store_work *store, struct object *object, struct rdt_error *err)
{
    uint32_t n = object_n_places(object);
    enum rdt_status status = RDT_OK;

    record_of_object(object, &store->record);
    store->layout = object->memory.layout;
    if (!store->layout) {
        status = object_layout(object, NULL, &store->own_layout, err);
        store->layout = store->own_layout;
    }
    store->bases = calloc(n + 1u, sizeof *store->bases);
    if (status == RDT_OK && !store->bases)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to store an object");
    for (uint32_t i = 0; status == RDT_OK && i < n; i++)
        if (!(store->bases[i] = object_base(object, i, err)))
            status = err->status;
    return status;
}

static enum rdt_status start(struct stored *stored, struct rdt_error *err)
{
    struct storage *storage = stored->storage;
    struct store_work *store = calloc(1, sizeof *store);

    list_remove(&stored->queue);
    if (!store || prepare(store, stored->object, err) != RDT_OK) {
        if (!store)
            (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory to store an object");
        storage->counts->stores_failed += !stored->for_cache;
        give_up(stored, err);
        if (store)
            work_free_all(store);
        return err->status;
    }
    store->storage = storage;
    store->stored = stored;
    store->object = stored->object;
    store->dir = storage->dir;
    store->record.order = ++storage->order;
    store->fd = -1;
    store->work = (struct work){.run = run_store, .done = done_store};
    stored_set_writing(stored);
    stored->work = store;
    storage->writing = stored;
    store->object->file.writing = true;
    object_hold(store->object);
    object_pin(store->object);
    work_submit(storage->writer, &store->work);
    return RDT_OK;
}

/* Returns why the object of that generation, whose turn it was, cannot be written. */
static enum rdt_status start_next(struct storage *storage, uint64_t generation, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    while (!storage->writing && !storage->frozen && !list_empty(&storage->queue)) {
        struct stored *stored = container_of(list_first(&storage->queue), struct stored, queue);
        bool is_it = stored->generation == generation;
        struct rdt_error why = {0};

        if (start(stored, &why) != RDT_OK && is_it)
            status = rdt_error_set(err, why.status, "%s", why.msg);
    }
    return status;
}

static enum rdt_status check(const struct storage *storage, const struct object *object, struct rdt_error *err)
{
    if (!storage->writer)
        return rdt_error_set(err, RDT_UNSUPPORTED, "this daemon stores no objects: set storage_dir in [daemon] of rdtd.conf");
    if (storage->frozen)
        return rdt_error_set(err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    if (object->access.key == KEY_LOST)
        return rdt_error_set(err, RDT_FREED, "the object cannot be stored any more, because another one has replaced it");
    if (object->state != OBJECT_LIVE || object->access.key != KEY_OWN)
        return rdt_error_set(err, RDT_INVALID, "the object is %s: it can be stored once it is live", object_state_name(object));
    if (!object_is_constant(object) || (object->changes.promise == OBJECT_BY_WORD && !object->changes.loaned))
        return rdt_error_set(err, RDT_INVALID,
                             "the object may change, and only snapshots can be stored: put it with RDT_PUT_SNAPSHOT");
    if (object_on_device(object))
        return rdt_error_set(err, RDT_UNSUPPORTED, "the object lies on a device: copy it to host memory to store it");
    if (object->kind == OBJECT_MANIFEST)
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "a version of many parts cannot be stored: fetch it (rdtctl fetch) and put it as one object");
    return RDT_OK;
}

/* Returns the greatest size that its file can have: the header has metadata and shapes in base64, and names and shapes as
 * text. */
static uint64_t most_bytes(const struct object *object)
{
    return object->bytes + STORAGE_ALIGN_BYTES + (uint64_t)object->tail.metadata_bytes * 7 / 3 +
           (uint64_t)(object->heap_bytes - object->tail.metadata_bytes) * 6;
}

/* Tensors can have more bytes than there is memory, if their strides are 0. */
static enum rdt_status check_room(const struct storage *storage, const struct object *object, uint64_t bytes,
                                  struct rdt_error *err)
{
    if (bytes > INT64_MAX || storage->accounts->node.used[USAGE_STORED_BYTES] > INT64_MAX - bytes)
        return rdt_error_set(err, RDT_LIMIT, "the tensors have %" PRIu64 " bytes: no file system has room for that",
                             object->bytes);
    return account_check(account_owner(object->account), USAGE_STORED_BYTES, bytes, err);
}

enum rdt_status storage_store_evictable(struct storage *storage, struct object *object, uint64_t room, uint64_t *bytes_p)
{
    struct rdt_error why;
    enum rdt_status status = check(storage, object, &why);
    struct stored *stored;

    *bytes_p = most_bytes(object);
    if (status == RDT_OK && object->file.stored != OBJECT_NOT_STORED) /* its file is just being given up */
        status = RDT_BUSY;
    if (status == RDT_OK && *bytes_p > room)
        status = RDT_AGAIN;
    if (status == RDT_OK)
        status = check_room(storage, object, *bytes_p, &why);
    if (status != RDT_OK)
        return status;
    stored = stored_new(storage, object->generation, object->account, object, *bytes_p);
    if (!stored)
        return RDT_NO_MEMORY;
    stored->for_cache = true;
    stored_queue(stored);
    return start_next(storage, object->generation, &why);
}

enum rdt_status storage_store(struct storage *storage, struct object *object, struct rdt_error *err)
{
    enum rdt_status status = check(storage, object, err);
    struct stored *stored = status == RDT_OK ? stored_get(storage, object->generation) : NULL;
    uint64_t bytes = most_bytes(object);

    if (status == RDT_OK && cache_has(object))
        status = rdt_error_set(err, RDT_INVALID,
                               "the object is evictable: such objects are stored when their memory is wanted, if "
                               "cache_storage_limit says so");
    if (status != RDT_OK)
        return status;
    if (!stored) {
        status = check_room(storage, object, bytes, err);
        if (status != RDT_OK)
            return status;
        stored = stored_new(storage, object->generation, object->account, object, bytes);
        if (!stored)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory to store an object");
        stored_queue(stored);
    }
    if (!stored_claim_names(stored))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to store a name");
    if (stored->state == STORED_DURABLE)
        stored_write_claims(stored);
    return start_next(storage, object->generation, err);
}

/* ---- puts that wait for room ---- */

#define LATER_HEAP_BYTES 192u
#define EVICTION_NS INT64_C(10000000000) /* more than evictions take */

struct store_later { /* an object that a put wants stored */
    struct account_wait room;
    struct list link; /* in storage->later.waiting, or in .may_try when there may be room */
    struct deadline deadline;
    struct storage *storage;
    uint64_t generation;
    struct account *account; /* charged; a reference */
};

static struct deadlines *deadlines_of(const struct storage *storage)
{
    return storage->objects->deadlines;
}

static void forget_later(struct store_later *later)
{
    struct storage *storage = later->storage;

    deadline_unset(deadlines_of(storage), &later->deadline);
    list_remove(&later->link);
    account_wait_end(storage->accounts, &later->room);
    account_give(later->account, USAGE_HEAP, LATER_HEAP_BYTES);
    account_unref(later->account);
    free(later);
}

/* later NULL: it is the put. *waits_p: files of the cache leave, and then there is room. */
static enum rdt_status try_to_store(struct storage *storage, struct object *object, struct store_later *later, bool *waits_p,
                                    struct rdt_error *err)
{
    enum rdt_status status;

    account_request_begin(storage->accounts, later ? &later->room : NULL);
    status = storage_store(storage, object, err);
    *waits_p = status == RDT_LIMIT && storage->accounts->full && cache_make_room(&storage->objects->cache);
    account_request_end(storage->accounts, later && *waits_p ? &later->room : NULL);
    return status;
}

static void on_room(struct account_wait *room)
{
    struct store_later *later = container_of(room, struct store_later, room);
    struct storage *storage = later->storage;

    list_remove(&later->link);
    list_append(&storage->later.may_try, &later->link);
    slice_start(&deadlines_of(storage)->slices, &storage->later.slice);
}

static void fail_later(struct store_later *later, const char *why)
{
    later->storage->counts->stores_failed++;
    log_debug("obj %016" PRIx64 " is not stored: %s", later->generation, why);
    forget_later(later);
}

static void on_too_late(struct deadline *deadline)
{
    fail_later(container_of(deadline, struct store_later, deadline), "files of the cache have made no room in time");
}

enum rdt_status storage_store_soon(struct storage *storage, struct object *object, struct rdt_error *err)
{
    struct account *account = account_owner(object->account);
    struct store_later *later;
    bool waits;
    enum rdt_status status = try_to_store(storage, object, NULL, &waits, err);

    if (!waits || account_take(account, USAGE_HEAP, LATER_HEAP_BYTES, err) != RDT_OK)
        return status;
    later = calloc(1, sizeof *later);
    if (!later || !deadline_set(deadlines_of(storage), &later->deadline, EVICTION_NS)) {
        free(later);
        account_give(account, USAGE_HEAP, LATER_HEAP_BYTES);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to store an object");
    }
    later->room.on_room = on_room;
    later->room.evicting = true;
    later->deadline.on_passed = on_too_late;
    later->storage = storage;
    later->generation = object->generation;
    later->account = account_ref(account);
    list_append(&storage->later.waiting, &later->link);
    account_request_end(storage->accounts, &later->room); /* accounts->full is still why it has failed */
    return RDT_OK;
}

static bool try_some(struct slice *slice, uint64_t until_ns)
{
    struct storage *storage = container_of(slice, struct storage, later.slice);

    list_drain (struct store_later, later, &storage->later.may_try, link) {
        struct object *object = index_get(&storage->objects->by_generation, later->generation);
        struct rdt_error why;
        bool waits = false;

        list_remove(&later->link);
        list_append(&storage->later.waiting, &later->link);
        if (object && try_to_store(storage, object, later, &waits, &why) != RDT_OK && !waits)
            fail_later(later, why.msg);
        else if (!waits)
            forget_later(later);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}

/* The daemon ends. */
static void forget_all_later(struct storage *storage)
{
    slice_stop(&storage->later.slice);
    list_splice(&storage->later.waiting, &storage->later.may_try);
    list_drain (struct store_later, later, &storage->later.waiting, link) {
        forget_later(later);
        list_splice(&storage->later.waiting, &storage->later.may_try); /* who waited behind it */
    }
    slice_stop(&storage->later.slice);
}

static void write_again(struct stored *stored)
{
    struct storage *storage = stored->storage;

    if (storage->frozen)
        return;
    if (stored->for_cache) {
        storage_discard(storage, stored->object);
        return;
    }
    list_remove(&stored->queue);
    storage->n_objects--;
    stored_queue(stored);
    (void)start_next(storage, 0, NULL);
}

/* ---- start and end ---- */

static enum rdt_status open_directory(struct storage *storage, struct rdt_error *err)
{
    const char *path = storage->directory;
    struct rdt_error why = {0};
    enum rdt_status status;
    struct stat st;
    pid_t dying = storage->objects->node->dying;

    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return rdt_error_sys(err, errno, "creating storage_dir %s", path);
    storage->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (storage->dir < 0 || fstat(storage->dir, &st) != 0)
        return rdt_error_sys(err, errno, "opening storage_dir %s", path);
    if (st.st_uid != geteuid() || st.st_mode & 077)
        return rdt_error_set(err, RDT_INVALID,
                             "storage_dir %s belongs to uid %u and has mode %04o: it must belong to the daemon's uid %u with "
                             "mode 0700, because its files are served as what users stored",
                             path, st.st_uid, st.st_mode & 07777, geteuid());
    status = folder_lock_take(path, STORAGE_LOCK, &storage->lock, &dying, &why);
    if (status == RDT_EXISTS)
        return rdt_error_set(err, RDT_BUSY, "another rdtd uses storage_dir %s (storage.lock: %s): give each its own", path,
                             why.msg);
    if (status != RDT_OK)
        return rdt_error_set(err, status, "storage_dir %s: %s", path, why.msg);
    if (dying != storage->objects->node->dying)
        log_warn("process %d, which used storage_dir %s, has been killed and does not end: this daemon takes its place",
                 (int)dying, path);
    return RDT_OK;
}

void storage_init(struct storage *storage)
{
    storage->dir = storage->lock = -1;
    storage->spill_failures.every_ns = FAILURE_LINES_NS;
    map_init(&storage->stored);
    map_init(&storage->by_name);
    list_init(&storage->queue);
    list_init(&storage->in_memory);
    list_init(&storage->dropped);
    list_init(&storage->later.waiting);
    list_init(&storage->later.may_try);
    storage->later.slice.run = try_some;
}

enum rdt_status storage_open(struct storage *storage, uv_loop_t *loop, struct rdt_error *err)
{
    enum rdt_status status;

    if (storage->directory[0] == '\0')
        return RDT_OK;
    status = open_directory(storage, err);
    if (status == RDT_OK)
        status = work_pool_create(loop, 1, &storage->writer, err);
    if (status == RDT_OK)
        status = work_pool_create(loop, 1, &storage->helper, err);
    storage->frozen = true;
    return status;
}

void storage_serve(struct storage *storage)
{
    struct stored *stored;
    size_t cursor = 0;

    if (!storage->helper)
        return;
    storage->frozen = false;
    while ((stored = map_next(&storage->stored, &cursor)))
        stored_settle(stored);
    storage->regions->file_pool = storage->helper;
    storage->objects->files.dir = storage->directory;
    storage->write_again = write_again;
    storage->objects->files.check = storage_check;
    storage->objects->files.check_arg = storage;
    storage->observer = (struct names_observer){.on_change = storage_name_changed, .arg = storage};
    list_append(&storage->names->observers, &storage->observer.link);
}

void storage_freeze(struct storage *storage)
{
    struct stored *stored;
    struct rdt_error err;
    size_t cursor = 0;

    if (!storage->writer || storage->frozen)
        return;
    storage->frozen = true;
    storage->regions->files_closed = true;
    if (storage->writing)
        storage->writing->work->cancelled = true;
    forget_all_later(storage);
    (void)rdt_error_set(&err, RDT_SHUTTING_DOWN, "the daemon is shutting down, and the object was not stored");
    while ((stored = map_next(&storage->stored, &cursor)))
        stored_fail_waiters(stored, &err);
    log_info("%s has %" PRIu64 " object%s (%" PRIu64 " bytes) and %" PRIu64 " name%s for the next start of rdtd",
             storage->directory, storage->n_objects, text_plural(storage->n_objects),
             storage->accounts->node.used[USAGE_STORED_BYTES], storage->n_names, text_plural(storage->n_names));
}

struct closing {
    struct storage *storage;
    void (*on_closed)(void *arg);
    void *arg;
};

static void on_helper_closed(void *arg)
{
    struct closing closing = *(struct closing *)arg;

    free(arg);
    closing.storage->helper = NULL;
    closing.on_closed(closing.arg);
}

static void on_writer_closed(void *arg)
{
    struct closing *closing = arg;

    closing->storage->writer = NULL;
    if (closing->storage->helper)
        work_pool_close(closing->storage->helper, on_helper_closed, closing);
    else
        on_helper_closed(closing);
}

void storage_close(struct storage *storage, void (*on_closed)(void *arg), void *arg)
{
    struct closing *closing = storage->writer ? malloc(sizeof *closing) : NULL;

    if (!closing) {
        on_closed(arg);
        return;
    }
    storage->regions->file_pool = NULL;
    *closing = (struct closing){storage, on_closed, arg};
    work_pool_close(storage->writer, on_writer_closed, closing);
}

void storage_fini(struct storage *storage)
{
    void *entry;
    size_t cursor = 0;

    if (!storage->directory) /* the daemon did not come that far */
        return;
    while ((entry = map_next(&storage->stored, &cursor))) {
        struct stored *stored = entry;
        while (!list_empty(&stored->barriers)) { /* the daemon has ended before the file did */
            struct storage_barrier *barrier = container_of(list_first(&stored->barriers), struct storage_barrier, link);
            list_remove(&barrier->link);
            barrier->on_done(barrier);
        }
        stored_drop_claims(stored);
        account_give(stored->account, USAGE_STORED_BYTES, stored->bytes);
        account_unref(stored->account);
        slice_stop(&stored->write);
        (void)map_remove_u64(&storage->stored, stored->generation);
        free(stored->damage);
        free(stored);
    }
    storage_free_claims(storage);
    cursor = 0;
    while ((entry = map_next(&storage->by_name, &cursor)))
        free(entry);
    map_fini(&storage->stored);
    map_fini(&storage->by_name);
    if (storage->dir >= 0)
        (void)close(storage->dir);
    if (storage->lock >= 0)
        (void)close(storage->lock);
    storage->dir = storage->lock = -1;
}
