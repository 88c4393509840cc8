/* SPDX-License-Identifier: Apache-2.0 */
/* A version of a followed name, from what its publisher says of it to the objects that are here. */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/node.h"
#include "daemon/follows/follow_impl.h"
#include "daemon/versions/shards.h"
#include "proto/manifest.h"
#include "wire_ref.h"

#define FOLLOWERS_ASKED 64u            /* whether they need a version; with more of them, it is fetched */
#define MOST_BYTES (UINT64_C(1) << 60) /* of a version: more is not a number that anybody has put */

static void make_key(const struct rdt_ref *ref, uint8_t key[16 + 8])
{
    memcpy(key, ref->node, 16);
    memcpy(key + 16, &ref->generation, 8);
}

static enum rdt_status set_object(struct follow_version *version, uint32_t i, const struct rdt_ref *ref, uint64_t bytes,
                                  struct rdt_error *err)
{
    struct follow_object *object = &version->objects[i];

    if (ref->is_name || ref->generation == 0 || bytes > MOST_BYTES || version->bytes > MOST_BYTES)
        return rdt_error_set(err, RDT_INVALID, "it names an object that cannot be fetched");
    object->ref = *ref;
    object->bytes = bytes;
    version->bytes += bytes;
    make_key(ref, object->key);
    if (map_get(&version->by_ref, object->key, sizeof object->key))
        return rdt_error_set(err, RDT_INVALID, "it names object \"%s\" twice", ref->id);
    if (!map_put(&version->by_ref, object->key, sizeof object->key, object))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for its objects");
    return RDT_OK;
}

static enum rdt_status read_parts(struct follow_version *version, const Rdt__Pb__Manifest *manifest, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (size_t i = 0; i < manifest->n_parts && status == RDT_OK; i++) {
        struct rdt_ref ref;

        status = wire_ref_to(manifest->parts[i]->ref, &ref, err);
        if (status == RDT_OK)
            status = set_object(version, (uint32_t)i + 1, &ref, manifest->parts[i]->bytes, err);
    }
    return status;
}

/* The version's own object with `more` parts. */
static enum rdt_status make(struct follow *follow, uint64_t heap_bytes, uint32_t more, struct follow_version **version_p,
                            struct rdt_error *err)
{
    struct follow_version *version;
    enum rdt_status status;

    heap_bytes += sizeof *version + (more + 1) * (sizeof *version->objects + 4 * sizeof(void *));
    status = account_take(follow->account, USAGE_HEAP, heap_bytes, err);
    if (status != RDT_OK)
        return status;
    version = calloc(1, sizeof *version);
    if (!version || !(version->objects = calloc(more + 1u, sizeof *version->objects))) {
        free(version);
        account_give(follow->account, USAGE_HEAP, heap_bytes);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a version of %u parts", more);
    }
    version->follow = follow;
    version->refs = 1;
    version->heap_bytes = heap_bytes;
    version->n_objects = more + 1;
    list_init(&version->link);
    map_init(&version->by_ref);
    *version_p = version;
    return RDT_OK;
}

static enum rdt_status tensor_bytes(const Rdt__Pb__TensorList *tensors, uint64_t *bytes_p, struct rdt_error *err)
{
    struct layout *layout;
    enum rdt_status status = layout_from_wire(tensors, &layout, err);

    if (status != RDT_OK)
        return status;
    *bytes_p = layout_total_bytes(layout);
    free(layout);
    return RDT_OK;
}

/* Reads a number of a packed message, and goes behind it. */
static bool skip_number(const uint8_t **at, const uint8_t *end, uint64_t *number_p)
{
    uint64_t number = 0;

    for (unsigned shift = 0; *at < end && shift < 64; shift += 7) {
        uint8_t byte = *(*at)++;

        number |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *number_p = number;
            return true;
        }
    }
    return false;
}

/* Counts the parts of a packed manifest up to one more than can be followed, before it is decoded, which takes long. It ends at
 * what cannot be read: decoding that says so. */
static size_t count_parts(const uint8_t *at, size_t bytes)
{
    enum { NUMBER = 0, BYTES = 2, PARTS = 3 << 3 | BYTES }; /* types of fields, and the field `parts` */
    const uint8_t *end = at + bytes;
    uint64_t tag, number;
    size_t n = 0;

    while (n < FOLLOW_MAX_OBJECTS && skip_number(&at, end, &tag) && ((tag & 7) == NUMBER || (tag & 7) == BYTES) &&
           skip_number(&at, end, &number)) {
        if ((tag & 7) == NUMBER)
            continue;
        if (number > (uint64_t)(end - at))
            break;
        at += number;
        n += tag == PARTS;
    }
    return n;
}

/* arena: for the manifest */
static enum rdt_status create(struct follow *follow, const Rdt__Pb__FetchDone *done, const struct rdt_ref *ref,
                              struct arena *arena, struct follow_version **version_p, struct rdt_error *err)
{
    ProtobufCMessage *manifest = NULL;
    struct follow_version *version = NULL;
    const uint8_t *packed = done->metadata.data;
    size_t n_bytes = done->metadata.len, n_parts = 0;
    uint64_t bytes = 0;
    bool is_manifest = manifest_has_magic(packed, n_bytes) && (memcmp(packed, MANIFEST_MAGIC, MANIFEST_MAGIC_BYTES) == 0 ||
                                                               memcmp(packed, MANIFEST_LARGE, MANIFEST_MAGIC_BYTES) == 0);
    enum rdt_status status;

    if (!done->snapshot)
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "it is not a snapshot, and could change while it is fetched: publish snapshots");
    status = tensor_bytes(done->tensors, &bytes, err);
    if (status == RDT_OK && is_manifest)
        n_parts = count_parts(packed + MANIFEST_MAGIC_BYTES, n_bytes - MANIFEST_MAGIC_BYTES);
    if (status == RDT_OK && is_manifest && n_parts < FOLLOW_MAX_OBJECTS)
        status = arena_unpack(arena, &rdt__pb__manifest__descriptor, packed + MANIFEST_MAGIC_BYTES,
                              n_bytes - MANIFEST_MAGIC_BYTES, "its manifest", &manifest, err);
    if (status == RDT_PROTOCOL || (status == RDT_LIMIT && is_manifest)) /* it will never be read */
        err->status = status = RDT_INVALID;
    if (status == RDT_OK && manifest)
        n_parts = ((const Rdt__Pb__Manifest *)manifest)->n_parts;
    if (status == RDT_OK && n_parts >= FOLLOW_MAX_OBJECTS)
        status = rdt_error_set(err, RDT_INVALID, "it has more than %u parts, which is the most that can be followed",
                               FOLLOW_MAX_OBJECTS - 1);
    if (status == RDT_OK)
        status = make(follow, n_bytes, (uint32_t)n_parts, &version, err);
    if (status != RDT_OK)
        return status;
    version->number = done->version;
    version->is_manifest = manifest;
    status = set_object(version, 0, ref, bytes, err);
    if (status == RDT_OK && manifest)
        status = read_parts(version, (const Rdt__Pb__Manifest *)manifest, err);
    if (status != RDT_OK) {
        version_unref(version);
        return status;
    }
    *version_p = version;
    return RDT_OK;
}

enum rdt_status version_create(struct follow *follow, const Rdt__Pb__FetchDone *done, const struct rdt_ref *ref,
                               struct follow_version **version_p, struct rdt_error *err)
{
    struct arena arena;
    enum rdt_status status;

    arena_init(&arena, RDT_MAX_DECODED_BYTES);
    status = create(follow, done, ref, &arena, version_p, err);
    arena_fini(&arena);
    return status;
}

struct follow_version *version_ref(struct follow_version *version)
{
    version->refs++;
    return version;
}

void version_unref(struct follow_version *version)
{
    if (!version || --version->refs > 0)
        return;
    version->next = 0;
    list_append(&version->follow->dying, &version->link);
    follow_look(version->follow);
}

bool version_drop_some(struct follow_version *version, uint64_t until_ns)
{
    struct account *account = version->follow->account;

    for (; version->next < version->n_objects; version->next++) {
        if (uv_hrtime() >= until_ns)
            return false;
        if (version->objects[version->next].object)
            object_drop(version->objects[version->next].object);
        version->objects[version->next].object = NULL;
    }
    list_remove(&version->link);
    account_give(account, USAGE_FOLLOWED_BYTES, version->charged);
    account_give(account, USAGE_HEAP, version->heap_bytes);
    map_fini(&version->by_ref);
    free(version->objects);
    free(version);
    return true;
}

/* ---- objects that have come ---- */

/* Bytes that came in a message get memory of their own, which followers can map. */
static enum rdt_status copy_inline(struct follow *follow, const ProtobufCBinaryData *bytes, struct region **region_p,
                                   struct rdt_error *err)
{
    struct regions *regions = follow->follows->regions;
    uint8_t *addr;
    enum rdt_status status = region_alloc_now(regions, "host", bytes->len, REGION_ALLOCATED, follow->account, region_p, err);

    if (status != RDT_OK)
        return status;
    addr = region_addr(*region_p, err);
    if (!addr) {
        region_unref(*region_p);
        return err->status;
    }
    memcpy(addr, bytes->data, bytes->len);
    (void)region_seal(*region_p, NULL);
    return RDT_OK;
}

/* Makes an object of what came without one: bytes in the answer, memory that became no replica, or nothing at all. */
static enum rdt_status adopt(struct follow_version *version, struct follow_object *object, const Rdt__Pb__FetchDone *done,
                             const struct hold *hold, struct rdt_error *err)
{
    struct follow *follow = version->follow;
    struct object_put put = {.account = follow->account,
                             .id = (const uint8_t *)object->ref.id,
                             .id_bytes = object->ref.id_bytes,
                             .metadata = done->metadata.data,
                             .metadata_bytes = done->metadata.len,
                             .box_bytes = done->box_bytes,
                             .transport = "",
                             .promise = OBJECT_SEALED};
    struct region *region = NULL;
    enum rdt_status status;

    if (hold && hold->n_regions > 0)
        return rdt_error_set(err, RDT_UNSUPPORTED, "object \"%s\" lies in several kinds of memory", object->ref.id);
    status = account_take(follow->account, USAGE_HEAP, done->metadata.len, err);
    if (status != RDT_OK)
        return status;
    version->heap_bytes += done->metadata.len;
    status = layout_from_wire(done->tensors, &put.layout, err);
    if (status != RDT_OK)
        return status;
    if (hold && hold->region)
        region = region_ref(hold->region);
    else if (done->inline_data.len > 0)
        status = copy_inline(follow, &done->inline_data, &region, err);
    if (status == RDT_OK)
        status = object_table_adopt(follow->follows->objects, &put, &object->object, err);
    if (status != RDT_OK)
        free(put.layout);
    else if (region)
        status = object_attach(object->object, &region, 1, err);
    if (region)
        region_unref(region);
    if (status != RDT_OK && object->object) {
        object_drop(object->object);
        object->object = NULL;
    }
    return status;
}

enum rdt_status version_take(struct follow_version *version, uint32_t i, const Rdt__Pb__FetchDone *done, struct hold *hold,
                             struct rdt_error *err)
{
    struct follow_object *object = &version->objects[i];
    const struct follow *follow = version->follow;
    enum rdt_status status = RDT_OK;

    if (!done->snapshot)
        status = rdt_error_set(err, RDT_UNSUPPORTED,
                               "its object \"%s\" is not a snapshot, and could change while it is fetched: publish snapshots",
                               object->ref.id);
    else if (hold && hold->object)
        object_hold(object->object = hold->object);
    else
        status = adopt(version, object, done, hold, err);
    if (hold)
        client_release(hold);
    if (status == RDT_OK && object->object->bytes != object->bytes) {
        status = rdt_error_set(err, RDT_INVALID, "its object \"%s\" has %llu bytes, not %llu as its publisher says",
                               object->ref.id, (unsigned long long)object->object->bytes, (unsigned long long)object->bytes);
        object_drop(object->object);
        object->object = NULL;
    }
    if (status != RDT_OK)
        return status;
    object->trusted = done->pickles_trusted;
    version->n_here++;
    /* Also an object of this node may come "inline". */
    if (strncmp(done->path, "local/", 6) != 0 && !node_is_here(follow->follows->node, object->ref.node, object->ref.address))
        version->bytes_moved += done->bytes_moved;
    return RDT_OK;
}

struct follow_object *version_find(const struct follow_version *version, const struct rdt_ref *ref)
{
    uint8_t key[16 + 8];

    make_key(ref, key);
    return map_get(&version->by_ref, key, sizeof key);
}

/* ---- who has what ---- */

bool follower_has(const struct follower *follower, const struct rdt_ref *ref, uint64_t version)
{
    const struct rdt_ref *newest_ref = &follower->follow->newest_ref;

    if (follower->committed_generation == 0) /* the node of a name whose newest version is below that counts anew */
        return version <= follower->committed &&
               (newest_ref->generation == 0 || follower->follow->newest >= follower->committed);
    return follower->committed_generation == ref->generation &&
           memcmp(follower->committed_node, ref->node, sizeof ref->node) == 0;
}

bool follow_needed(const struct follow *follow, const struct rdt_ref *ref, uint64_t version)
{
    if (follow->n_followers > FOLLOWERS_ASKED)
        return true;
    list_each (const struct follower, follower, &follow->followers, by_follow)
        if (!follower_has(follower, ref, version))
            return true;
    return false;
}
