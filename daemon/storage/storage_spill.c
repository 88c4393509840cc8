/* SPDX-License-Identifier: Apache-2.0 */
/* Frees the memory of stored objects, which are then served from their files, when the memory is needed. Only objects that
 * nobody reads, maps or transfers are moved, because nothing but the object refers to their memory. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/memory/region_file.h"
#include "daemon/storage/storage_impl.h"

#define MAX_FAILED 8u /* attempts for one allocation, which waits: without descriptors or memory all would fail */
#define FAILURE_LINES_NS UINT64_C(1000000000)

static uint32_t count_list(const struct list *list)
{
    uint32_t n = 0;

    list_for_each (node, list)
        n++;
    return n;
}

/* The number of holds that use no memory: those of the producer, of names, and of clients and nodes without its bytes. */
static uint32_t idle_holds(const struct storage *storage, const struct object *object)
{
    struct list *cursor = NULL;
    uint32_t n = object_has_producer_hold(object);

    while (names_of_object(storage->names, object, &cursor))
        n++;
    return n + count_list(object_holders(object, HOLDER_REMOTE)) + count_list(object_holders(object, HOLDER_NODE));
}

/* The memory that would be freed; 0: the object is in use, or already in its file. */
static uint64_t spillable_bytes(const struct storage *storage, const struct stored *stored)
{
    const struct object *object = stored->object;
    uint64_t bytes = 0;

    if (stored->state != STORED_DURABLE || !object || !object->layout || object->state != OBJECT_LIVE || object->pins > 0)
        return 0;
    for (uint32_t i = 0; i < object->n_regions; i++) {
        const struct region *region = object->uses[i].region;
        if (region->refs != 1 || !list_empty(&region->readers) || !region_is_charged(region))
            return 0;
        bytes += region->room;
    }
    return bytes > 0 && object->holds == idle_holds(storage, object) ? bytes : 0;
}

static enum rdt_status spill(struct storage *storage, struct stored *stored, struct rdt_error *err)
{
    struct object *object = stored->object;
    struct layout *layout = layout_dup(object->layout);
    uint32_t *order = calloc(object->layout->count + 1u, sizeof *order);
    char name[STORAGE_FILE_NAME_BYTES];
    struct region *region = NULL;
    enum rdt_status status = RDT_OK;
    uint64_t data_bytes;
    int fd = -1;

    storage_object_file(stored->generation, ".safetensors", name);
    if (!layout || !order)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for its tensors");
    if (status == RDT_OK && (fd = openat(storage->dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC)) < 0)
        status = rdt_error_set(err, RDT_SYSTEM, "its file cannot be opened");
    if (status == RDT_OK)
        status = region_open_file(storage->regions, fd, stored->bytes, object->account, &region, err);
    if (status == RDT_OK) {
        fd = -1;
        data_bytes = storage_place_tensors(layout, order);
        for (uint32_t i = 0; i < layout->count; i++)
            layout->offset[i] += stored->bytes - data_bytes;
        status = object_move(object, layout, region, err);
        layout = status == RDT_OK ? NULL : layout;
    }
    region_unref(region); /* the object has its own reference */
    if (fd >= 0)
        (void)close(fd);
    free(layout);
    free(order);
    return status;
}

uint64_t storage_spill(struct storage *storage, uint64_t bytes)
{
    uint64_t there = 0, done = 0;
    struct stored *stored;
    struct rdt_error err;
    unsigned failed = 0;
    size_t cursor = 0;

    if (!storage->writer || storage->frozen || map_count(&storage->stored) == 0)
        return 0;
    storage->spill_failures.every_ns = FAILURE_LINES_NS;
    while (there < bytes && (stored = map_next(&storage->stored, &cursor)))
        there += spillable_bytes(storage, stored);
    if (there < bytes)
        return there;
    cursor = 0;
    while (done < bytes && failed < MAX_FAILED && (stored = map_next(&storage->stored, &cursor))) {
        uint64_t room = spillable_bytes(storage, stored);
        enum rdt_status status;
        if (room == 0)
            continue;
        storage->accounts->unlimited = true; /* its owner may be at a limit, and gives back as much as it takes */
        status = spill(storage, stored, &err);
        storage->accounts->unlimited = false;
        if (status != RDT_OK) {
            char who[64];
            (void)snprintf(who, sizeof who, "obj %016" PRIx64 " stays in memory", stored->generation);
            log_warn_rarely(&storage->spill_failures, who, err.msg);
            failed++;
            continue;
        }
        log_debug("obj %016" PRIx64 " gives up %" PRIu64 " bytes of memory for its file", stored->generation, room);
        storage->n_spilled++;
        storage->spilled_bytes += room;
        done += room;
    }
    return done;
}
