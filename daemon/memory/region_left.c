/* SPDX-License-Identifier: Apache-2.0 */
/* Imported memory that its client has left behind. A client pays for the pages of its memory as long as it lives. When it has
 * ended, or has released the region, and something still uses the region, the daemon's descriptor keeps the pages. So they are
 * charged to the region's owner and to memory_limit then, each file once for each owner, until the last such region of the file
 * ends. Who still has the file may add pages to it, and remove some, so each file is looked at again and again.
 *
 *   region_left --> new ---> fits <-------> does not fit ---> has no room: regions->left.on_no_room
 *                                   a look                a second look
 */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/memory/region_impl.h"
#include "daemon/memory/region_orphans.h"

#define LOOK_NS UINT64_C(1000000000) /* between two looks at a file */
#define LOOKS_AT_ONCE 256u           /* in one turn of the loop */

struct left_region {
    struct list by_file; /* in left_file.regions */
    struct region *region;
    struct left_file *file;
};

struct left_file {
    struct list link; /* in regions->left.files */
    struct left_key {
        uint64_t device, inode;
        struct account *owner; /* one reference */
    } key;
    struct list regions;    /* struct left_region.by_file */
    uint64_t bytes;         /* charged to the owner and to memory_limit */
    uint64_t filled_bytes;  /* of them: pages that the daemon created (region_fill.h) */
    uint64_t looked_ns;     /* 0: never */
    bool lacks_room, ended; /* at the last look, and at the one before, too */
};

/* The file of a region. NULL: there is no memory for it, or it is not known. */
static struct left_file *file_of(const struct region *region)
{
    struct regions_left *left = &region->regions->left;
    struct left_key key = {.owner = account_owner(region->account)};
    struct left_file *file;
    struct stat st;

    if (fstat(region->block.fd, &st))
        return NULL;
    key.device = st.st_dev;
    key.inode = st.st_ino;
    file = map_get(&left->by_key, &key, sizeof key);
    if (file)
        return file;
    file = calloc(1, sizeof *file);
    if (!file)
        return NULL;
    file->key = key;
    if (!map_put(&left->by_key, &file->key, sizeof file->key, file)) {
        free(file);
        return NULL;
    }
    (void)account_ref(key.owner);
    list_init(&file->regions);
    list_prepend(&left->files, &file->link); /* before those that have been looked at */
    return file;
}

/* The file's charge includes the pages that the daemon has created for this region. */
static void take_over_filled(struct left_file *file, struct region *region)
{
    const uint64_t had[USAGE_COUNT] = {[USAGE_BYTES] = region->imported.filled_bytes};

    account_undo(region->account, had);
    account_add(file->key.owner, USAGE_BYTES, region->imported.filled_bytes);
    file->bytes += region->imported.filled_bytes;
    file->filled_bytes += region->imported.filled_bytes;
    region->imported.filled_bytes = region->imported.unmade_bytes = 0;
}

static struct left_region *find(const struct region *region)
{
    return region_is_by_fd(region) ? map_get_u64(&region->regions->left.by_region, region->id) : NULL;
}

/* Does nothing while regions are left in the file. Returns what it was charged. */
static uint64_t forget_file(struct regions_left *left, struct left_file *file)
{
    uint64_t bytes = file->bytes;

    if (!list_empty(&file->regions))
        return 0;
    list_remove(&file->link);
    (void)map_remove(&left->by_key, &file->key, sizeof file->key);
    account_give(file->key.owner, USAGE_BYTES, bytes);
    account_unref(file->key.owner);
    free(file);
    return bytes;
}

/* false: there is no memory for it, or its file is not known. */
static bool add(struct region *region)
{
    struct regions_left *left = &region->regions->left;
    struct left_file *file = file_of(region);
    struct left_region *added = file ? malloc(sizeof *added) : NULL;

    if (!added || !map_put_u64(&left->by_region, region->id, added)) {
        free(added);
        if (file)
            (void)forget_file(left, file);
        return false;
    }
    *added = (struct left_region){.region = region, .file = file};
    list_append(&file->regions, &added->by_file);
    take_over_filled(file, region);
    return true;
}

void region_left(struct region *region)
{
    struct regions *regions = region->regions;
    const struct left_region *had;

    if (region->client != 0 || !region_is_by_fd(region) || !regions->left.on_no_room || !regions->deadlines || regions->ending)
        return;
    had = find(region);
    if (had && had->file->ended) /* a client has kept an object there until now */
        regions->left.on_no_room(regions->left.arg);
    if (had || region->pins > 0 || !add(region)) /* a transfer may be creating pages; region_unpin comes here again */
        return;
    if (regions->restoring) /* no limit refuses it, so it is charged before anybody else asks for room */
        regions_look_at_left(regions);
    else
        (void)deadline_set(regions->deadlines, &regions->left.look, 0);
}

bool region_has_no_room(const struct region *region)
{
    const struct left_region *had = find(region);

    return had && had->file->ended;
}

/* A process that has the file may keep the pages that the daemon created. */
static bool watch_filled(const struct region *region, const struct left_file *file)
{
    const struct orphaned orphaned = {
        .fd = region->block.fd, .account = region->account, .bytes = file->filled_bytes, .charged = true};

    return region_orphans_watch(region->regions->orphans, &orphaned);
}

uint64_t region_end_left(struct region *region)
{
    struct left_region *had = find(region);
    struct left_file *file = had ? had->file : NULL;
    uint64_t watched = 0;

    if (!had)
        return 0;
    (void)map_remove_u64(&region->regions->left.by_region, region->id);
    list_remove(&had->by_file);
    free(had);
    if (list_empty(&file->regions) && file->filled_bytes > 0 && watch_filled(region, file))
        watched = file->filled_bytes;
    return forget_file(&region->regions->left, file) - watched;
}

/* ---- looking ---- */

static enum rdt_status take(struct regions *regions, struct left_file *file, uint64_t bytes, struct rdt_error *err)
{
    enum rdt_status status = account_take(file->key.owner, USAGE_BYTES, bytes, err);

    if (status == RDT_OK && (status = regions->left.charge(regions, bytes, err)) != RDT_OK) {
        const uint64_t had[USAGE_COUNT] = {[USAGE_BYTES] = bytes};
        account_undo(file->key.owner, had);
    }
    if (status == RDT_OK)
        file->bytes += bytes;
    return status;
}

static void has_no_room(struct regions *regions, struct left_file *file, uint64_t bytes, const struct rdt_error *why)
{
    char who[32], text[sizeof why->msg + 300];

    (void)snprintf(who, sizeof who, "uid %u", file->key.owner->owner.uid);
    (void)snprintf(
        text, sizeof text,
        "%llu bytes of memory that a client imported and left behind do not fit, so rdtd frees the objects there that have no "
        "client: %s",
        (unsigned long long)bytes, why->msg);
    if (!file->ended)
        log_warn_rarely(&regions->left.said, who, text);
    file->ended = true;
    regions->left.on_no_room(regions->left.arg);
}

/* Charges what the file has now. */
static void look_at(struct regions *regions, struct left_file *file)
{
    const struct region *region = container_of(list_first(&file->regions), struct left_region, by_file)->region;
    struct rdt_error err = {0};
    struct stat st;
    uint64_t there, less;

    if (fstat(region->block.fd, &st))
        return;
    there = (uint64_t)st.st_blocks * 512;
    if (there > file->bytes && take(regions, file, there - file->bytes, &err) != RDT_OK) {
        if (file->lacks_room) /* for a second, in which others may have freed what they had */
            has_no_room(regions, file, there, &err);
        file->lacks_room = true;
        return;
    }
    file->lacks_room = file->ended = false;
    less = file->bytes - there;
    file->bytes = there;
    file->filled_bytes = there < file->filled_bytes ? there : file->filled_bytes;
    account_give(file->key.owner, USAGE_BYTES, less);
    regions_uncharge(regions, less);
}

void regions_look_at_left(struct regions *regions)
{
    struct regions_left *left = &regions->left;
    uint64_t now = uv_hrtime(), in_ns = 0;

    for (unsigned i = 0; !list_empty(&left->files); i++) {
        struct left_file *file = container_of(list_first(&left->files), struct left_file, link);
        if (file->looked_ns != 0 && now - file->looked_ns < LOOK_NS) {
            in_ns = file->looked_ns + LOOK_NS - now;
            break;
        }
        if (i == LOOKS_AT_ONCE) {
            in_ns = 0;
            break;
        }
        list_remove(&file->link);
        list_append(&left->files, &file->link);
        file->looked_ns = now;
        look_at(regions, file);
    }
    if (!list_empty(&left->files))
        (void)deadline_set(regions->deadlines, &left->look, (int64_t)in_ns);
    regions->on_freed(regions, NULL);
}

static void on_look(struct deadline *deadline)
{
    regions_look_at_left(container_of(deadline, struct regions, left.look));
}

void regions_left_init(struct regions *regions)
{
    map_init(&regions->left.by_region);
    map_init(&regions->left.by_key);
    list_init(&regions->left.files);
    regions->left.look.on_passed = on_look;
    regions->left.said.every_ns = UINT64_C(1000000000);
}
