/* SPDX-License-Identifier: Apache-2.0 */
/* Files for the cache, which decides itself what is written and what leaves memory (objects/cache_spill.c). */
#include "daemon/persist/storage_impl.h"

static enum rdt_status begin(void *arg, struct object *object, uint64_t room, uint64_t *bytes_p)
{
    return storage_store_evictable(arg, object, room, bytes_p);
}

static bool give_up(void *arg, struct object *object)
{
    struct storage *storage = arg;
    struct stored *stored = storage->frozen ? NULL : stored_get(storage, object->generation);

    return stored && stored->state == STORED_DURABLE && !stored->damage && stored_move_to_file(storage, stored);
}

static void discard(void *arg, struct object *object)
{
    storage_discard(arg, object);
}

void storage_serve_cache(struct storage *storage)
{
    static const struct cache_files_ops ops = {begin, give_up, discard};

    if (!storage->helper)
        return;
    storage->objects->cache.files.ops = &ops;
    storage->objects->cache.files.arg = storage;
}
