/* SPDX-License-Identifier: Apache-2.0 */
/* The work of this room's threads on files. A file gets its name when all of it is on the disk, so that a daemon that is
 * killed leaves a complete file or a temporary one. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/persist/storage_impl.h"
#include "proto/grow.h"

#define TURN_BYTES (UINT64_C(32) << 20) /* written in one turn */
#define BUFFER_BYTES (UINT64_C(1) << 20)
#define TMP ".tmp"

static int create(int dir, const char *name)
{
    (void)unlinkat(dir, name, 0); /* of an attempt that failed */
    return openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400);
}

static enum rdt_status write_all(int fd, const uint8_t *data, uint64_t bytes, uint64_t at, struct rdt_error *err)
{
    while (bytes > 0) {
        ssize_t n = pwrite(fd, data, bytes, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return rdt_error_sys(err, n < 0 ? errno : ENOSPC, "writing");
        data += n;
        at += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return RDT_OK;
}

/* Closes the file, which is complete, and gives it its name. An older file with that name gets the temporary one, and is
 * removed once the new file is on the disk. If that fails, the older file gets its name back, because it still describes the
 * state that the daemon has; where the file system cannot exchange names, it is lost. Takes fd in any case. After an
 * error, the caller removes the file with the temporary name. */
static enum rdt_status finish(int dir, int fd, const char *temporary, const char *name, struct rdt_error *err)
{
    int failed = fsync(fd) != 0 ? errno : 0;
    bool exchanged, stays = false;

    if (close(fd) != 0 && failed == 0)
        failed = errno;
    exchanged = failed == 0 && renameat2(dir, temporary, dir, name, RENAME_EXCHANGE) == 0;
    if (failed == 0 && !exchanged && renameat(dir, temporary, dir, name) != 0) {
        failed = errno;
    } else if (failed == 0 && fsync(dir) != 0) {
        failed = errno;
        stays = exchanged ? renameat2(dir, temporary, dir, name, RENAME_EXCHANGE) != 0 : unlinkat(dir, name, 0) != 0;
    } else if (exchanged) {
        (void)unlinkat(dir, temporary, 0);
    }
    if (failed == 0)
        return RDT_OK;
    return rdt_error_sys(
        err, failed, stays ? "writing the file, which cannot be removed and would be restored at the next start" : "writing");
}

/* The same for a file of the cache, which is new, and which nobody misses after a power failure. */
static enum rdt_status finish_unsynced(int dir, int fd, const char *temporary, const char *name, struct rdt_error *err)
{
    if (close(fd) == 0 && renameat(dir, temporary, dir, name) == 0)
        return RDT_OK;
    return rdt_error_sys(err, errno, "writing");
}

enum rdt_status storage_write_file(int dir, const char *name, const void *content, size_t bytes, struct rdt_error *err)
{
    char temporary[STORAGE_FILE_NAME_BYTES + sizeof TMP];
    enum rdt_status status;
    int fd;

    (void)snprintf(temporary, sizeof temporary, "%s" TMP, name);
    fd = create(dir, temporary);
    if (fd < 0)
        return rdt_error_sys(err, errno, "creating");
    status = write_all(fd, content, bytes, 0, err);
    if (status == RDT_OK)
        status = finish(dir, fd, temporary, name, err);
    else
        (void)close(fd);
    if (status != RDT_OK)
        (void)unlinkat(dir, temporary, 0);
    return status;
}

/* ---- damaged files ---- */

#define DAMAGED_FILES 16u                 /* that are kept */
#define DAMAGED_BYTES (UINT64_C(1) << 30) /* of them, unless the newest alone has more */

struct damaged {
    char name[STORAGE_FILE_NAME_BYTES];
    struct timespec since; /* when it got that name */
    uint64_t bytes;
};

static int newest_first(const void *a, const void *b)
{
    const struct timespec *left = &((const struct damaged *)a)->since, *right = &((const struct damaged *)b)->since;

    if (left->tv_sec != right->tv_sec)
        return left->tv_sec > right->tv_sec ? -1 : 1;
    return left->tv_nsec > right->tv_nsec ? -1 : left->tv_nsec < right->tv_nsec;
}

static size_t list_damaged(int dir, struct damaged **files_p)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
    struct damaged *files = NULL, *grown;
    const struct dirent *entry;
    size_t n = 0, room = 0;
    struct stat st;

    if (fd >= 0 && !list)
        (void)close(fd);
    while (list && (entry = readdir(list))) {
        if (strspn(entry->d_name, "0123456789abcdef") != 16 || strcmp(entry->d_name + 16, ".damaged") != 0 ||
            fstatat(dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        grown = array_grow(files, n, &room, sizeof *files);
        if (!grown)
            break;
        files = grown;
        files[n] = (struct damaged){.since = st.st_ctim, .bytes = (uint64_t)st.st_size};
        memcpy(files[n++].name, entry->d_name, sizeof "0123456789abcdef.damaged");
    }
    if (list)
        (void)closedir(list);
    *files_p = files;
    return n;
}

uint64_t storage_prune_damaged(int dir)
{
    struct damaged *files;
    size_t n = list_damaged(dir, &files);
    uint64_t bytes = 0;

    if (n > 0)
        qsort(files, n, sizeof *files, newest_first);
    for (size_t i = 0; i < n; i++) {
        bool stays = i == 0 || (i < DAMAGED_FILES && bytes + files[i].bytes <= DAMAGED_BYTES);
        if (stays || unlinkat(dir, files[i].name, 0) != 0)
            bytes += files[i].bytes;
    }
    free(files);
    return bytes;
}

/* ---- removing ---- */

enum rdt_status storage_remove_file(int dir, const char *name, struct rdt_error *err)
{
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
        return RDT_OK;
    return rdt_error_sys(err, errno, "removing");
}

/* ---- objects ---- */

static enum rdt_status begin(struct store_work *store, struct rdt_error *err)
{
    char temporary[STORAGE_FILE_NAME_BYTES];
    enum rdt_status status = stored_plan_init(&store->plan, &store->record, store->layout, NULL, err);
    uint64_t bytes;

    if (status != RDT_OK)
        return status;
    store->sum = byte_sum_create();
    store->sums = calloc(store->layout->count + 1u, sizeof *store->sums);
    if (!store->sum || !store->sums)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the checksums of %u tensors", store->layout->count);
    storage_object_file(store->record.generation, TMP, temporary);
    store->fd = create(store->dir, temporary);
    if (store->fd < 0)
        return rdt_error_sys(err, errno, "creating");
    /* So that a lack of space is known before anything is written; not every file system can do that. */
    bytes = store->plan.header_bytes + store->plan.data_bytes;
    if (fallocate(store->fd, 0, 0, (off_t)bytes) != 0 && errno != EOPNOTSUPP && errno != EINTR)
        return rdt_error_sys(err, errno, "reserving %llu bytes", (unsigned long long)bytes);
    store->file_at = store->plan.header_bytes;
    return RDT_OK;
}

/* Writes up to `most` bytes of the present tensor; *written_p: how many. */
static enum rdt_status write_tensor(struct store_work *store, uint64_t most, uint64_t *written_p, struct rdt_error *err)
{
    const struct layout *layout = store->layout;
    uint32_t i = store->plan.order[store->at];
    uint64_t left = layout_bytes(layout, i) - store->from, bytes = left < most ? left : most;
    const uint8_t *data = NULL;
    enum rdt_status status;

    if (bytes > 0 && layout_is_contiguous(layout, i)) {
        data = store->bases[layout->region[i]] + layout->offset[i] + store->from;
    } else if (bytes > 0) {
        if (!store->buffer && !(store->buffer = malloc(BUFFER_BYTES)))
            return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a buffer");
        bytes = bytes < BUFFER_BYTES ? bytes : BUFFER_BYTES;
        layout_gather(layout, i, store->bases[layout->region[i]], store->from, bytes, store->buffer);
        data = store->buffer;
    }
    status = write_all(store->fd, data, bytes, store->file_at, err);
    if (status != RDT_OK)
        return status;
    byte_sum_add(store->sum, data, bytes);
    store->file_at += bytes;
    store->from += bytes;
    *written_p = bytes;
    if (bytes == left) {
        store->sums[i] = byte_sum_end(store->sum);
        store->at++;
        store->from = 0;
    }
    return RDT_OK;
}

/* Begins to write the bytes to the disk, so that less is left for fsync. */
static enum rdt_status write_turn(struct store_work *store, struct rdt_error *err)
{
    uint64_t began = store->file_at, done = 0, written = 0;
    enum rdt_status status = RDT_OK;

    while (status == RDT_OK && store->at < store->layout->count && done < TURN_BYTES) {
        status = write_tensor(store, TURN_BYTES - done, &written, err);
        done += written;
    }
    (void)sync_file_range(store->fd, (off_t)began, (off_t)(store->file_at - began), SYNC_FILE_RANGE_WRITE);
    return status;
}

/* The header comes last, because it has the checksums of what was written. */
static enum rdt_status write_header(struct store_work *store, struct rdt_error *err)
{
    enum rdt_status status;

    stored_plan_fini(&store->plan);
    status = stored_plan_init(&store->plan, &store->record, store->layout, store->sums, err);
    return status == RDT_OK ? write_all(store->fd, store->plan.header, store->plan.header_bytes, 0, err) : status;
}

static enum rdt_status end(struct store_work *store, struct rdt_error *err)
{
    char temporary[STORAGE_FILE_NAME_BYTES], name[STORAGE_FILE_NAME_BYTES];
    enum rdt_status status = write_header(store, err);
    int fd = store->fd;

    if (status != RDT_OK)
        return status;
    storage_object_file(store->record.generation, TMP, temporary);
    storage_object_file(store->record.generation, storage_suffix(store->record.evictable), name);
    store->fd = -1;
    return store->record.evictable ? finish_unsynced(store->dir, fd, temporary, name, err)
                                   : finish(store->dir, fd, temporary, name, err);
}

void run_store(struct work *work)
{
    struct store_work *store = (struct store_work *)work;
    struct rdt_error *err = &store->err;
    char temporary[STORAGE_FILE_NAME_BYTES];

    if (store->cancelled)
        store->status = rdt_error_set(err, RDT_CANCELLED, "it was given up");
    else if (!store->began)
        store->status = begin(store, err);
    else if (store->at < store->layout->count)
        store->status = write_turn(store, err);
    else
        store->status = end(store, err);
    store->synced = store->began && store->status == RDT_OK && store->fd < 0;
    store->began = true;
    if (store->status == RDT_OK && !store->synced) {
        work->again = true;
        return;
    }
    if (store->fd >= 0)
        (void)close(store->fd);
    storage_object_file(store->record.generation, TMP, temporary);
    if (store->status != RDT_OK)
        (void)unlinkat(store->dir, temporary, 0);
    free(store->buffer);
    byte_sum_destroy(store->sum);
    store->sum = NULL;
    store->buffer = NULL;
    store->fd = -1;
}
