/* SPDX-License-Identifier: Apache-2.0 */
/* Fetched objects: mapping what the daemon sent, releasing it, and what rdt.h shows of it. */
#include "fetched.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/mappers.h"
#include "proto/boxes.h"
#include "proto/grow.h"
#include "proto/messages.h"
#include "proto/wire_ref.h"

/* keep_mapped: the object's one region is cached as a writable one. regions [n_regions]: those that are cached for reading,
 * in the order of the answer. later: sends by connection_send_later. */
static void release_hold(rdt *conn, uint64_t hold, bool keep_mapped, uint64_t *regions, size_t n_regions, bool later)
{
    Rdt__Pb__Release request = RDT__PB__RELEASE__INIT;

    if (hold == 0)
        return;
    if (!keep_mapped && connection_gather_release(conn, hold, regions, n_regions))
        return;
    request.hold = hold;
    request.keep_mapped = keep_mapped;
    request.keep_mapped_regions = regions;
    request.n_keep_mapped_regions = n_regions;
    request.gone_events = conn->memory.n_gones;
    if (later)
        connection_send_later(conn, RDT_MSG_RELEASE, &request.base);
    else
        (void)connection_release(conn, RDT_MSG_RELEASE, 0, &request.base, NULL);
}

void fetched_release_unseen(rdt *conn, const Rdt__Pb__FetchDone *done)
{
    uint64_t regions[RDT_MAX_KEPT_REGIONS]; /* those that stay mapped */
    size_t n = 0;

    for (size_t i = 0; i < done->n_regions && n < RDT_MAX_KEPT_REGIONS; i++) {
        const Rdt__Pb__SharedRegion *shared = done->regions[i];
        const struct mapping *mapping = memory_find(&conn->memory, shared->region, shared->generation, false);

        if (mapping && mapping->caching == MAPPING_CACHED)
            regions[n++] = shared->region;
    }
    release_hold(conn, done->hold, done->n_regions == 1 && memory_is_cached(&conn->memory, done->regions[0]->region), regions,
                 n, false);
}

/* ---- releasing ---- */

/* Whether the object is one allocation: its layout follows it, and everything else that it has (fetched_create_row). */
static bool is_compact(const rdt_object *object)
{
    return object->layout == (const struct layout *)(const void *)(object + 1);
}

/* Drops the hold at the daemon and the references to the object's memory, all but the metadata. */
static void release(rdt_object *object, bool later)
{
    rdt *conn = object->conn;
    bool compact = is_compact(object);
    bool cached = object->hold != 0 && conn->state == CONNECTION_UP && object->n_mappings == 1 &&
                  memory_may_cache(object->mappings[0], MAPPING_FETCHED);
    uint64_t regions[RDT_MAX_KEPT_REGIONS]; /* cached for reading */
    size_t n_regions = 0;

    if (cached)
        memory_cache(&conn->memory, object->mappings[0]);
    for (uint32_t i = 0; i < object->n_mappings && !cached; i++) {
        if (object->hold != 0 && conn->state == CONNECTION_UP && n_regions < RDT_MAX_KEPT_REGIONS &&
            memory_cache_readable(object->mappings[i]))
            regions[n_regions++] = object->mappings[i]->region;
        memory_unref(&conn->memory, object->mappings[i]);
    }
    release_hold(conn, object->hold, cached, regions, n_regions, later);
    if (!compact) {
        free(object->mappings);
        free(object->inline_data);
    }
    object->hold = 0;
    object->n_mappings = 0;
    object->mappings = NULL;
    object->inline_data = NULL;
    if (!object->targets && !compact) {
        free(object->layout);
        free(object->data);
    }
    object->layout = NULL;
    object->data = NULL;
}

void fetched_destroy(rdt_object *object)
{
    bool compact;

    if (!object)
        return;
    compact = is_compact(object);
    release(object, false);
    targets_destroy(object->conn, object->targets);
    list_remove(&object->link);
    if (object->boxes)
        rdt__pb__boxes__free_unpacked(object->boxes, NULL);
    free(object->first_box_dim);
    if (!compact)
        free(object->metadata);
    free(object);
}

void fetched_move_to(rdt_object *object, struct targets *take_targets, bool later)
{
    release(object, later);
    object->targets = take_targets;
    object->layout = take_targets->layout;
    object->data = take_targets->data;
    object->info.writable = true;
}

/* ---- fds ---- */

enum rdt_status fetched_fds_early(rdt *conn, uint64_t handle, struct frame *frame, struct rdt_error *err)
{
    struct connection_early *early = &conn->calls.early;

    if (early->n > 0 && early->handle != handle)
        return rdt_error_set(err, RDT_PROTOCOL, "rdtd sent fds for fetch %llu within the answer to fetch %llu",
                             (unsigned long long)handle, (unsigned long long)early->handle);
    if (early->n + frame->nfds > RDT_MAX_ANSWER_FDS)
        return rdt_error_set(err, RDT_PROTOCOL, "rdtd sent more than %u fds for one fetch", RDT_MAX_ANSWER_FDS);
    early->handle = handle;
    for (unsigned i = 0; i < frame->nfds; i++) {
        int *fds = array_grow(early->fds, early->n, &early->room, sizeof *fds);
        if (!fds)
            return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the fds of a fetch");
        early->fds = fds;
        early->fds[early->n++] = frame_take_fd(frame, i);
    }
    return RDT_OK;
}

enum rdt_status fetched_fds_all(rdt *conn, uint64_t handle, struct frame *frame, struct answer_fds *fds_p,
                                struct rdt_error *err)
{
    const struct connection_early *early = &conn->calls.early;
    enum rdt_status status = RDT_OK;

    *fds_p = (struct answer_fds){frame->fds, frame->nfds};
    if (early->n == 0)
        return RDT_OK;
    status = fetched_fds_early(conn, handle, frame, err);
    *fds_p = status == RDT_OK ? (struct answer_fds){early->fds, early->n} : (struct answer_fds){NULL, 0};
    return status;
}

/* ---- creating ---- */

static enum rdt_status fill_info(rdt_object *object, const Rdt__Pb__FetchDone *done, struct rdt_error *err)
{
    struct rdt_object_info *info = &object->info;

    (void)snprintf(info->path, sizeof info->path, "%s", done->path);
    info->transfer = done->transfer;
    info->bytes_moved = done->bytes_moved;
    info->elapsed_ns = done->elapsed_ns;
    info->mutable_shared = done->mutable_shared;
    info->version = done->version;
    object->pickles_trusted = done->pickles_trusted;
    info->writable = true; /* map_all clears it if a region is read-only */
    if (done->box_bytes > done->metadata.len)
        return rdt_error_set(err, RDT_PROTOCOL, "rdtd sent boxes that are longer than the metadata that contains them");
    object->metadata_bytes = done->metadata.len - done->box_bytes;
    if (object->metadata_bytes > 0) {
        object->metadata = malloc(object->metadata_bytes);
        if (!object->metadata)
            return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for %zu bytes of metadata", object->metadata_bytes);
        memcpy(object->metadata, done->metadata.data, object->metadata_bytes);
    }
    return wire_ref_to(done->ref, &info->ref, err);
}

/* Memory of a device: one fd for each chunk. */
static enum rdt_status map_on_device(rdt *conn, const Rdt__Pb__SharedRegion *shared, const struct answer_fds *fds,
                                     struct mapping **mapping_p, struct rdt_error *err)
{
    size_t first = shared->fd_index >= 0 ? (size_t)shared->fd_index : 0;
    size_t n = shared->fd_index >= 0 ? shared->share->n_chunk_bytes : 0;

    if (n > fds->n || first > fds->n - n)
        return rdt_error_set(err, RDT_PROTOCOL, "the fds of region %llu did not come", (unsigned long long)shared->region);
    return mapper_map_share(conn, shared->region, shared->generation, shared->bytes, shared->share, fds->fds + first,
                            (unsigned)n, MAPPING_FETCHED, mapping_p, err);
}

enum rdt_status fetched_map(rdt *conn, const Rdt__Pb__SharedRegion *shared, const struct answer_fds *fds,
                            struct mapping **mapping_p, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;
    int fd;

    *mapping_p = NULL;
    fd = shared->fd_index >= 0 && (size_t)shared->fd_index < fds->n ? fds->fds[shared->fd_index] : -1;
    if (shared->share) {
        status = map_on_device(conn, shared, fds, mapping_p, err);
    } else if (shared->fd_index < 0) {
        *mapping_p = memory_find(&conn->memory, shared->region, shared->generation, false);
        if (*mapping_p)
            memory_ref(*mapping_p);
        else
            *mapping_p = memory_take_cached(&conn->memory, shared->region, shared->generation, MAPPING_FETCHED);
        if (!*mapping_p)
            status = rdt_error_set(err, RDT_PROTOCOL, "rdtd says that region %llu is mapped here, but it is not",
                                   (unsigned long long)shared->region);
    } else if (fd < 0) {
        status = rdt_error_set(err, RDT_PROTOCOL, "fd %d of %zu of region %llu did not come", shared->fd_index, fds->n,
                               (unsigned long long)shared->region);
    } else if (shared->bytes > SIZE_MAX / 2) {
        status = rdt_error_set(err, RDT_PROTOCOL, "region %llu has %llu bytes", (unsigned long long)shared->region,
                               (unsigned long long)shared->bytes);
    } else if (shared->bytes > 0 && shared->cow) {
        status = memory_map_cow(&conn->memory, shared->region, shared->generation, fd, shared->bytes, mapping_p, err);
    } else if (shared->bytes > 0) {
        status = memory_map(&conn->memory, shared->region, shared->generation, fd, shared->bytes, shared->writable,
                            MAPPING_FETCHED, mapping_p, err);
    }
    if (*mapping_p && shared->cacheable && !shared->cow && (*mapping_p)->caching == MAPPING_UNCACHED)
        (*mapping_p)->caching = MAPPING_CACHEABLE;
    return status;
}

/* Lets a private mapping of an object of this node be kept when it is released. The daemon says `cacheable` only of mappings
 * for reading. It refuses to let sealed regions be kept (mapped_may_keep), so that is not tried. */
static void let_keep(rdt_object *object, struct mapping *mapping, int fd)
{
    int seals;

    if (!mapping || mapping->access != MAPPING_COW ||
        (strcmp(object->info.path, "local/cow") != 0 && strcmp(object->info.path, "local/share") != 0))
        return;
    seals = fcntl(fd, F_GET_SEALS);
    if (seals >= 0 && !(seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)))
        memory_pair(&object->conn->memory, mapping, fd);
}

/* Memory of a device cannot be mapped read-only, so it is a matter of this library's word. */
static bool is_read_only(const Rdt__Pb__FetchDone *done, size_t i, const struct mapping *mapping)
{
    return mapping->access == MAPPING_READABLE || (mapping->mapper && done->snapshot && !done->regions[i]->writable);
}

static enum rdt_status map_all(rdt_object *object, const Rdt__Pb__FetchDone *done, const struct answer_fds *fds,
                               struct rdt_error *err)
{
    object->mappings = calloc(done->n_regions + 1, sizeof(struct mapping *));
    if (!object->mappings)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for %zu regions", done->n_regions);
    for (size_t i = 0; i < done->n_regions; i++) {
        enum rdt_status status = fetched_map(object->conn, done->regions[i], fds, &object->mappings[i], err);

        if (status != RDT_OK)
            return status;
        object->n_mappings++;
        if (done->regions[i]->cow && done->regions[i]->fd_index >= 0)
            let_keep(object, object->mappings[i], fds->fds[done->regions[i]->fd_index]);
        if (object->mappings[i] && is_read_only(done, i, object->mappings[i]))
            object->info.writable = false;
    }
    return RDT_OK;
}

/* Computes the address of tensor i's first element. Checks that all its bytes lie in the region or the inline data. */
static enum rdt_status find_data(rdt_object *object, uint32_t i, size_t inline_bytes, struct rdt_error *err)
{
    const struct layout *layout = object->layout;
    uint8_t *base = object->inline_data;
    uint64_t lo, hi, bytes = inline_bytes;
    enum rdt_status status;

    object->data[i] = NULL;
    status = layout_extent(layout, i, &lo, &hi, err);
    if (status != RDT_OK || lo == hi)
        return status; /* a tensor without elements has no address */
    if (!base && layout->region[i] < object->n_mappings && object->mappings[layout->region[i]]) {
        base = object->mappings[layout->region[i]]->addr;
        bytes = object->mappings[layout->region[i]]->bytes;
    }
    if (!base || hi > bytes)
        return rdt_error_set(err, RDT_PROTOCOL, "tensor %u ends at byte %llu of region %u, which has %llu", i,
                             (unsigned long long)hi, layout->region[i], (unsigned long long)(base ? bytes : 0));
    object->data[i] = base + layout->offset[i];
    return RDT_OK;
}

static enum rdt_status fill_tensors(rdt_object *object, const Rdt__Pb__FetchDone *done, const struct answer_fds *fds,
                                    enum fetched_content content, struct rdt_error *err)
{
    enum rdt_status status = layout_from_wire(done->tensors, &object->layout, err);

    if (status != RDT_OK)
        return status;
    object->data = calloc((size_t)object->layout->count + 1, sizeof *object->data);
    if (!object->data)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for %u tensors", object->layout->count);
    if (content == FETCHED_METADATA)
        return RDT_OK;
    if (done->inline_data.len > 0) {
        object->inline_data = aligned_alloc(LAYOUT_ALIGN_BYTES, (done->inline_data.len + LAYOUT_ALIGN_BYTES - 1) /
                                                                    LAYOUT_ALIGN_BYTES * LAYOUT_ALIGN_BYTES);
        if (!object->inline_data)
            return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for %zu bytes", done->inline_data.len);
        memcpy(object->inline_data, done->inline_data.data, done->inline_data.len);
    }
    status = map_all(object, done, fds, err);
    for (uint32_t i = 0; i < object->layout->count && status == RDT_OK; i++)
        status = find_data(object, i, done->inline_data.len, err);
    return status;
}

/* With the layout of the whole object. */
static enum rdt_status read_boxes(rdt_object *object, const Rdt__Pb__FetchDone *done, struct rdt_error *err)
{
    const uint8_t *packed = done->metadata.data + object->metadata_bytes;
    uint32_t at = 0;
    enum rdt_status status = boxes_check(packed, done->box_bytes, object->layout, err);

    if (status != RDT_OK)
        return status;
    object->boxes = rdt__pb__boxes__unpack(NULL, done->box_bytes, packed);
    object->first_box_dim = malloc((object->layout->count + 1) * sizeof *object->first_box_dim);
    if (!object->boxes || !object->first_box_dim)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the boxes of %u tensors", object->layout->count);
    for (uint32_t i = 0; i < object->layout->count; i++) {
        object->first_box_dim[i] = at;
        at += object->boxes->key[i][0] ? object->layout->ndim[i] : 0;
    }
    return RDT_OK;
}

enum rdt_status fetched_create(rdt *conn, const Rdt__Pb__FetchDone *done, const struct answer_fds *fds,
                               enum fetched_content content, bool sliced, rdt_object **object_p, struct rdt_error *err)
{
    rdt_object *object = calloc(1, sizeof *object);
    enum rdt_status status;

    if (!object)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for an object");
    object->conn = conn;
    object->to_copy = done->to_copy;
    object->partial = sliced || content == FETCHED_METADATA;
    list_init(&object->link);
    status = fill_info(object, done, err);
    if (status == RDT_OK && content != FETCHED_IN_TARGETS)
        status = fill_tensors(object, done, fds, content, err);
    if (status == RDT_OK && done->box_bytes > 0 && content != FETCHED_IN_TARGETS && !sliced)
        status = read_boxes(object, done, err);
    if (status != RDT_OK) {
        fetched_destroy(object);
        return status;
    }
    object->hold = done->hold;
    list_append(&conn->objects, &object->link);
    *object_p = object;
    return RDT_OK;
}

/* ---- one of many ---- */

static size_t align(size_t bytes)
{
    return (bytes + LAYOUT_ALIGN_BYTES - 1) & ~(size_t)(LAYOUT_ALIGN_BYTES - 1);
}

/* Lays out what follows a compact object, with the tensors of the row. */
static void copy_tensors(rdt_object *object, const struct fetched_row *row, uint32_t n_dims)
{
    const struct layout *all = row->all;
    struct layout *layout = (struct layout *)(void *)(object + 1);
    uint32_t from = row->count > 0 ? all->first_dim[row->first] : 0;
    size_t words = row->count * sizeof(uint32_t);

    *layout = (struct layout){.count = row->count, .n_dims = n_dims};
    layout->offset = (uint64_t *)(void *)(layout + 1);
    layout->shape = layout->offset + row->count;
    layout->strides = (int64_t *)(layout->shape + n_dims);
    object->data = (void **)(void *)(layout->strides + n_dims);
    object->mappings = (struct mapping **)(void *)(object->data + row->count);
    layout->dtype = (uint32_t *)(void *)(object->mappings + 1);
    layout->ndim = layout->dtype + row->count;
    layout->first_dim = layout->ndim + row->count;
    layout->region = layout->first_dim + row->count;
    memcpy(layout->offset, all->offset + row->first, row->count * sizeof *layout->offset);
    memcpy(layout->shape, all->shape + from, n_dims * sizeof *layout->shape);
    memcpy(layout->strides, all->strides + from, n_dims * sizeof *layout->strides);
    memcpy(layout->dtype, all->dtype + row->first, words);
    memcpy(layout->ndim, all->ndim + row->first, words);
    for (uint32_t i = 0; i < row->count; i++) {
        layout->first_dim[i] = all->first_dim[row->first + i] - from;
        layout->region[i] = 0;
    }
    object->layout = layout;
}

static void fill_row_info(rdt_object *object, const struct fetched_row *row)
{
    static const uint8_t nobody[16];
    const struct rdt_node_info *node = &object->conn->node;
    struct rdt_object_info *info = &object->info;

    info->ref = *row->ref;
    info->ref.generation = row->generation;
    info->ref.after = 0;
    if (memcmp(info->ref.node, nobody, sizeof nobody) == 0 || memcmp(info->ref.node, node->node, sizeof node->node) == 0) {
        memcpy(info->ref.node, node->node, sizeof info->ref.node);
        memcpy(info->ref.address, node->address, sizeof node->address);
    }
    if (row->ref->any_owner) {
        info->ref.any_owner = 0;
        info->ref.uid = node->uid;
        memcpy(info->ref.tenant, node->tenant, sizeof node->tenant);
    }
    if (row->inline_bytes > 0)
        memcpy(info->path, "inline", sizeof "inline");
    else
        memcpy(info->path, "local/share", sizeof "local/share");
    info->transfer = row->transfer;
    info->bytes_moved = row->inline_bytes;
    info->elapsed_ns = row->elapsed_ns;
    info->mutable_shared = row->mutable_shared;
    info->writable = !row->mapping || row->mapping->access != MAPPING_READABLE;
    object->pickles_trusted = row->pickles_trusted;
}

enum rdt_status fetched_create_row(rdt *conn, const struct fetched_row *row, rdt_object **object_p, struct rdt_error *err)
{
    uint32_t last = row->first + row->count - 1,
             n_dims = row->count > 0 ? row->all->first_dim[last] + row->all->ndim[last] - row->all->first_dim[row->first] : 0;
    size_t tensors = sizeof(rdt_object) + sizeof(struct layout) + sizeof(struct mapping *) +
                     row->count * (sizeof(uint64_t) + sizeof(void *) + 4 * sizeof(uint32_t)) + n_dims * 2 * sizeof(uint64_t);
    size_t bytes = tensors + row->metadata_bytes;
    rdt_object *object = malloc(bytes + (row->inline_bytes > 0 ? LAYOUT_ALIGN_BYTES - 1 + row->inline_bytes : 0));
    enum rdt_status status = RDT_OK;

    if (!object)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for an object");
    memset(object, 0, sizeof *object);
    object->conn = conn;
    list_init(&object->link);
    copy_tensors(object, row, n_dims);
    object->mappings[0] = row->mapping;
    if (row->metadata_bytes > 0) {
        object->metadata = (uint8_t *)object + tensors;
        object->metadata_bytes = row->metadata_bytes;
        memcpy(object->metadata, row->metadata, row->metadata_bytes);
    }
    if (row->inline_bytes > 0) {
        object->inline_data = (uint8_t *)align((uintptr_t)object + bytes);
        memcpy(object->inline_data, row->inline_data, row->inline_bytes);
    } else if (row->mapping) {
        object->n_mappings = 1;
    }
    for (uint32_t i = 0; i < row->count && status == RDT_OK; i++)
        status = find_data(object, i, row->inline_bytes, err);
    if (status != RDT_OK) {
        free(object);
        return status;
    }
    if (row->mapping)
        memory_ref(row->mapping);
    fill_row_info(object, row);
    object->hold = row->hold;
    list_append(&conn->objects, &object->link);
    *object_p = object;
    return RDT_OK;
}

/* ---- public calls ---- */

size_t rdt_object_count(const rdt_object *object)
{
    return object && object->layout ? object->layout->count : 0;
}

enum rdt_status rdt_object_tensor(const rdt_object *object, size_t i, struct rdt_tensor *tensor_p, struct rdt_error *err)
{
    const struct layout *layout;
    enum rdt_status status;

    if (!object || !tensor_p)
        return rdt_error_set(err, RDT_INVALID, "object or tensor_p is NULL");
    status = connection_check(object->conn, err);
    if (status != RDT_OK)
        return status;
    layout = object->layout;
    if (i >= layout->count)
        return rdt_error_set(err, RDT_INVALID, "tensor %zu of an object that has %u", i, layout->count);
    tensor_p->dtype = (enum rdt_dtype)layout->dtype[i];
    tensor_p->ndim = layout->ndim[i];
    /* layout_from_wire has checked that sizes are below 2^63, so they fit int64_t. */
    tensor_p->shape = layout->ndim[i] ? (const int64_t *)layout->shape + layout->first_dim[i] : NULL;
    tensor_p->strides = layout->ndim[i] ? layout->strides + layout->first_dim[i] : NULL;
    tensor_p->data = object->data[i];
    return RDT_OK;
}

enum rdt_status rdt_object_place(const rdt_object *object, size_t i, const char **memory_p, const char **device_p,
                                 struct rdt_error *err)
{
    const struct mapping *mapping = NULL;
    struct rdt_tensor tensor;
    enum rdt_status status = rdt_object_tensor(object, i, &tensor, err);
    uint32_t region;

    if (status != RDT_OK)
        return status;
    region = object->layout->region[i];
    if (tensor.data && object->targets && object->targets->direct && region < object->targets->n_mappings)
        mapping = object->targets->mappings[region];
    else if (tensor.data && !object->targets && !object->inline_data && region < object->n_mappings)
        mapping = object->mappings[region];
    if (memory_p)
        *memory_p = mapping && mapping->mapper ? mapping->mapper->memory : "host";
    if (device_p)
        *device_p = mapping ? mapping->device : "";
    return RDT_OK;
}

enum rdt_status rdt_object_shard(const rdt_object *object, size_t i, struct rdt_shard *shard_p, struct rdt_error *err)
{
    struct rdt_tensor tensor;
    enum rdt_status status = rdt_object_tensor(object, i, &tensor, err);

    if (status == RDT_OK && !shard_p)
        status = rdt_error_set(err, RDT_INVALID, "shard_p is NULL");
    if (status != RDT_OK)
        return status;
    *shard_p = (struct rdt_shard){0};
    if (!object->boxes || !object->boxes->key[i][0])
        return RDT_OK;
    shard_p->key = object->boxes->key[i];
    /* boxes_check has checked that the numbers fit int64_t */
    shard_p->global_shape = (const int64_t *)object->boxes->global_shape + object->first_box_dim[i];
    shard_p->start = (const int64_t *)object->boxes->start + object->first_box_dim[i];
    return RDT_OK;
}

const void *rdt_object_metadata(const rdt_object *object, size_t *bytes_p)
{
    if (bytes_p)
        *bytes_p = object ? object->metadata_bytes : 0;
    return object ? object->metadata : NULL;
}

void rdt_object_info(const rdt_object *object, struct rdt_object_info *info_p)
{
    if (object)
        *info_p = object->info;
    else
        memset(info_p, 0, sizeof *info_p);
}

bool rdt_object_pickles_trusted(const rdt_object *object)
{
    return object && object->pickles_trusted;
}

void rdt_release(rdt_object *object)
{
    rdt *conn = object ? object->conn : NULL;

    if (!conn || connection_is_forked(conn))
        return; /* in a forked child rdt_close unmaps */
    connection_lock(conn);
    if (object->shared > 0)
        object->shared--;
    else
        fetched_destroy(object);
    connection_drain(conn);
    connection_unlock(conn);
}
