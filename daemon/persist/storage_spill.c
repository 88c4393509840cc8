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
#include "daemon/persist/storage_impl.h"

#define MAX_FAILED 8u    /* attempts for one allocation, which waits: without descriptors or memory all of them fail */
#define MAX_IN_USE 4096u /* objects in use that are passed over for one allocation; the next one looks at others */

/* The number of holds that use no memory: those of the producer, of names, and of clients and nodes without its bytes. */
static uint32_t idle_holds(const struct storage *storage, const struct object *object)
{
    return object_has_producer_hold(object) + names_n_of_object(storage->names, object) +
           object_n_holders(object, HOLDER_REMOTE) + object_n_holders(object, HOLDER_NODE);
}

bool stored_has_memory(const struct stored *stored)
{
    const struct object *object = stored->object;

    if (!object || !object->memory.layout || stored->for_cache)
        return false;
    for (uint32_t i = 0; i < object->memory.n_regions; i++)
        if (!region_is_charged(object->memory.uses[i].region))
            return false;
    return object->memory.n_regions > 0;
}

/* The memory that the object would give up; 0: it is in use. */
static uint64_t spillable_bytes(const struct storage *storage, const struct stored *stored)
{
    const struct object *object = stored->object;
    uint64_t bytes = 0;

    if (object->state != OBJECT_LIVE || object->pins > 0)
        return 0;
    for (uint32_t i = 0; i < object->memory.n_regions; i++) {
        const struct region *region = object->memory.uses[i].region;
        if (region->refs != 1 || !list_empty(&region->readers))
            return 0;
        bytes += region->room;
    }
    return object->holds == idle_holds(storage, object) ? bytes : 0;
}

static enum rdt_status spill(struct storage *storage, struct stored *stored, struct rdt_error *err)
{
    struct object *object = stored->object;
    struct layout *layout = layout_dup(object->memory.layout);
    uint32_t *order = calloc(object->memory.layout->count + 1u, sizeof *order);
    char name[STORAGE_FILE_NAME_BYTES];
    struct region *region = NULL;
    enum rdt_status status = RDT_OK;
    uint64_t data_bytes;
    int fd = -1;

    storage_object_file(stored->generation, storage_suffix(stored->for_cache), name);
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
        object->file.unchecked |= status == RDT_OK && stored->has_sums;
    }
    region_unref(region); /* the object has its own reference */
    if (fd >= 0)
        (void)close(fd);
    free(layout);
    free(order);
    return status;
}

bool stored_move_to_file(struct storage *storage, struct stored *stored)
{
    struct rdt_error err;
    enum rdt_status status;
    char who[64];

    storage->accounts->unlimited = true; /* its owner may be at a limit, and gives back as much as it takes */
    status = spill(storage, stored, &err);
    storage->accounts->unlimited = false;
    if (status == RDT_OK)
        return true;
    (void)snprintf(who, sizeof who, "obj %016" PRIx64 " stays in memory", stored->generation);
    log_warn_rarely(&storage->spill_failures, who, err.msg);
    return false;
}

/* Moves objects whose memory can be freed from storage->in_memory to chosen, until they have `bytes`. Returns how many bytes
 * they have. */
static uint64_t choose(struct storage *storage, uint64_t bytes, struct list *chosen)
{
    struct list in_use;
    uint64_t there = 0;
    unsigned n_in_use = 0;

    list_init(&in_use);
    while (there < bytes && n_in_use < MAX_IN_USE && !list_empty(&storage->in_memory)) {
        struct stored *stored = container_of(list_first(&storage->in_memory), struct stored, queue);
        uint64_t room;
        list_remove(&stored->queue);
        if (!stored_has_memory(stored))
            continue;
        room = spillable_bytes(storage, stored);
        list_append(room > 0 ? chosen : &in_use, &stored->queue);
        n_in_use += room == 0;
        there += room;
    }
    list_splice(&storage->in_memory, &in_use);
    return there;
}

uint64_t storage_spill(struct storage *storage, uint64_t bytes)
{
    uint64_t there, done = 0;
    struct list chosen, unmoved;
    unsigned failed = 0;

    if (!storage->writer || storage->frozen)
        return 0;
    list_init(&chosen);
    list_init(&unmoved);
    there = choose(storage, bytes, &chosen);
    while (there >= bytes && done < bytes && failed < MAX_FAILED && !list_empty(&chosen)) {
        struct stored *stored = container_of(list_first(&chosen), struct stored, queue);
        uint64_t room = spillable_bytes(storage, stored);
        list_remove(&stored->queue);
        if (!stored_move_to_file(storage, stored)) {
            failed++;
            list_append(&unmoved, &stored->queue);
            (void)choose(storage, room, &chosen); /* others in its place */
            continue;
        }
        log_debug("obj %016" PRIx64 " gives up %" PRIu64 " bytes of memory for its file", stored->generation, room);
        storage->counts->spilled_objects++;
        storage->counts->spilled_bytes += room;
        done += room;
    }
    list_splice(&storage->in_memory, &chosen);
    list_splice(&storage->in_memory, &unmoved);
    return there < bytes ? there : done;
}
