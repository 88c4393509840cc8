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
#define MOST_PART_BYTES 4096u          /* of a part in a manifest, which consists of a ref and four numbers */
#define MOST_PART_ROOM (64u << 10)     /* to decode it */
#define FIELDS_AT_ONCE 16u             /* of a manifest, between two looks at the clock */
#define OBJECT_BYTES (sizeof(struct follow_object) + 4 * sizeof(void *)) /* with its entry in the map */

static enum rdt_status no_memory(struct rdt_error *err)
{
    return rdt_error_set(err, RDT_NO_MEMORY, "no memory for its objects");
}

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
        return no_memory(err);
    return RDT_OK;
}

/* With the version's own object alone. */
static enum rdt_status make(struct follow *follow, uint64_t heap_bytes, struct follow_version **version_p,
                            struct rdt_error *err)
{
    struct follow_version *version;
    enum rdt_status status;

    heap_bytes += sizeof *version + OBJECT_BYTES;
    status = account_take(follow->account, USAGE_HEAP, heap_bytes, err);
    if (status != RDT_OK)
        return status;
    version = calloc(1, sizeof *version);
    if (!version || !(version->objects = calloc(1, sizeof *version->objects))) {
        free(version);
        account_give(follow->account, USAGE_HEAP, heap_bytes);
        return no_memory(err);
    }
    version->follow = follow;
    version->refs = 1;
    version->heap_bytes = heap_bytes;
    version->n_objects = 1;
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

enum { NUMBER = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5, PARTS = 3 << 3 | BYTES }; /* types of fields, and the field `parts` */

/* Goes behind the next field of the manifest. *part_p: the packed ManifestPart [*bytes_p]; NULL: it is another field. */
static bool next_field(struct version_reading *reading, const uint8_t **part_p, size_t *bytes_p)
{
    const uint8_t *at = reading->packed + reading->at, *end = reading->packed + reading->n_bytes;
    uint64_t tag, number, bytes = 0;
    bool fits = skip_number(&at, end, &tag);

    if (fits && (tag & 7) == NUMBER)
        fits = skip_number(&at, end, &number);
    else if (fits && (tag & 7) == BYTES)
        fits = skip_number(&at, end, &bytes);
    else
        bytes = (tag & 7) == FIXED64 ? 8 : (tag & 7) == FIXED32 ? 4 : UINT64_MAX;
    if (!fits || bytes > (uint64_t)(end - at))
        return false;
    *part_p = tag == PARTS ? at : NULL;
    *bytes_p = bytes;
    reading->at = (size_t)(at + bytes - reading->packed);
    return true;
}

static enum rdt_status read_part(struct follow_version *version, const uint8_t *packed, size_t bytes, struct rdt_error *err)
{
    ProtobufCMessage *message = NULL;
    uint8_t buffer[2048];
    struct arena arena;
    struct rdt_ref ref;
    enum rdt_status status;

    arena_init_with(&arena, MOST_PART_ROOM, buffer, sizeof buffer);
    status = bytes > MOST_PART_BYTES
                 ? rdt_error_set(err, RDT_INVALID, "it has a part with %zu bytes in its manifest", bytes)
                 : arena_unpack(&arena, &rdt__pb__manifest_part__descriptor, packed, bytes, "its manifest", &message, err);
    if (status == RDT_OK)
        status = wire_ref_to(((const Rdt__Pb__ManifestPart *)message)->ref, &ref, err);
    if (status == RDT_OK)
        status = set_object(version, ++version->reading.n_parts, &ref, ((const Rdt__Pb__ManifestPart *)message)->bytes, err);
    arena_fini(&arena);
    if (status == RDT_PROTOCOL || status == RDT_LIMIT) /* it will never be read */
        err->status = status = RDT_INVALID;
    return status;
}

/* Counts the parts, or reads them. AGAIN: until_ns has passed. */
static enum rdt_status read_some(struct follow_version *version, uint64_t until_ns, struct rdt_error *err)
{
    struct version_reading *reading = &version->reading;
    enum rdt_status status = RDT_OK;

    for (unsigned n = 1; reading->at < reading->n_bytes && status == RDT_OK; n++) {
        const uint8_t *part;
        size_t bytes;

        if (!next_field(reading, &part, &bytes))
            return rdt_error_set(err, RDT_INVALID, "its manifest cannot be read");
        if (part && reading->counted)
            status = read_part(version, part, bytes, err);
        else if (part && ++reading->n_parts == FOLLOW_MAX_OBJECTS)
            status = rdt_error_set(err, RDT_INVALID, "it has more than %u parts, which is the most that can be followed",
                                   FOLLOW_MAX_OBJECTS - 1);
        if (status == RDT_OK && n % FIELDS_AT_ONCE == 0 && uv_hrtime() >= until_ns)
            status = RDT_AGAIN;
    }
    return status;
}

/* Makes room for the parts that were counted. */
static enum rdt_status make_objects(struct follow_version *version, struct rdt_error *err)
{
    uint64_t heap_bytes = version->reading.n_parts * OBJECT_BYTES;
    enum rdt_status status = account_take(version->follow->account, USAGE_HEAP, heap_bytes, err);
    struct follow_object *objects = NULL;

    if (status != RDT_OK)
        return status;
    version->heap_bytes += heap_bytes;
    objects = calloc(version->reading.n_parts + 1u, sizeof *objects);
    if (!objects)
        return no_memory(err);
    objects[0] = version->objects[0];
    map_fini(&version->by_ref);
    map_init(&version->by_ref);
    free(version->objects);
    version->objects = objects;
    version->n_objects = version->reading.n_parts + 1;
    return map_put(&version->by_ref, objects[0].key, sizeof objects[0].key, &objects[0]) ? RDT_OK : no_memory(err);
}

static void end_reading(struct follow_version *version)
{
    struct version_reading *reading = &version->reading;

    if (!reading->packed)
        return;
    work_free(version->follow->follows->regions->pool, reading->packed, reading->n_bytes);
    account_give(version->follow->account, USAGE_HEAP, reading->n_bytes);
    version->heap_bytes -= reading->n_bytes;
    reading->packed = NULL;
}

enum rdt_status version_read_some(struct follow_version *version, uint64_t until_ns, struct rdt_error *err)
{
    struct version_reading *reading = &version->reading;
    enum rdt_status status = reading->packed ? read_some(version, until_ns, err) : RDT_OK;

    if (status == RDT_OK && reading->packed && !reading->counted) {
        status = make_objects(version, err);
        reading->counted = true;
        reading->at = reading->n_parts = 0;
        if (status == RDT_OK)
            status = read_some(version, until_ns, err);
    }
    if (status == RDT_OK)
        end_reading(version);
    return status;
}

enum rdt_status version_create(struct follow *follow, const Rdt__Pb__FetchDone *done, const struct rdt_ref *ref,
                               struct follow_version **version_p, struct rdt_error *err)
{
    struct follow_version *version = NULL;
    const uint8_t *packed = done->metadata.data;
    size_t n_bytes = done->metadata.len;
    uint64_t bytes = 0;
    bool is_manifest = manifest_has_magic(packed, n_bytes) && (memcmp(packed, MANIFEST_MAGIC, MANIFEST_MAGIC_BYTES) == 0 ||
                                                               memcmp(packed, MANIFEST_LARGE, MANIFEST_MAGIC_BYTES) == 0);
    enum rdt_status status;

    if (!done->snapshot)
        return rdt_error_set(err, RDT_UNSUPPORTED,
                             "it is not a snapshot, and could change while it is fetched: publish snapshots");
    n_bytes = is_manifest ? n_bytes - MANIFEST_MAGIC_BYTES : 0;
    status = tensor_bytes(done->tensors, &bytes, err);
    if (status == RDT_PROTOCOL) /* it will never be read */
        err->status = status = RDT_INVALID;
    if (status == RDT_OK)
        status = make(follow, n_bytes, &version, err);
    if (status != RDT_OK)
        return status;
    version->number = done->version;
    version->is_manifest = is_manifest;
    version->reading.n_bytes = n_bytes;
    version->reading.packed = is_manifest ? malloc(n_bytes + 1) : NULL;
    if (version->reading.packed)
        memcpy(version->reading.packed, packed + MANIFEST_MAGIC_BYTES, n_bytes);
    status = is_manifest && !version->reading.packed ? no_memory(err) : set_object(version, 0, ref, bytes, err);
    if (status == RDT_OK)
        *version_p = version;
    else
        version_unref(version);
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
    end_reading(version);
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

bool follow_is_settled(const struct follow *follow)
{
    return (follow->whole && follow_same_object(&follow->newest_ref, version_ref_of(follow->whole))) ||
           follow_same_object(&follow->newest_ref, &follow->hopeless) ||
           !follow_needed(follow, &follow->newest_ref, follow->newest);
}
