/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of an earlier daemon: their manifests have survived, and list the parts to be held again. Parts of this node are
 * held at once, those of other nodes when these nodes can be asked (call_retake.c). */
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/versions/shards_impl.h"
#include "proto/manifest.h"
#include "proto/wire_limits.h"
#include "wire_ref.h"

static enum rdt_status restore_part(struct version *version, const Rdt__Pb__ManifestPart *message, struct rdt_error *err)
{
    struct shards *shards = version->shards;
    struct shard_part from = {.rank = message->rank, .bytes = message->bytes};
    const struct rdt_ref *ref = &from.object;
    struct object *object;
    struct part *part = NULL;
    enum rdt_status status = wire_ref_to(message->ref, &from.object, err);
    bool here;

    from.piece = version->ranks[message->rank].n_pieces + 1;
    if (status == RDT_OK)
        status = version_add_part(version, &from, &part, err);
    if (status != RDT_OK)
        return status;
    version->ranks[part->rank].of = from.piece;
    here = node_is_here(shards->node, ref->node, ref->address);
    object = here ? index_get(&shards->objects->by_generation, ref->generation) : NULL;
    if (here && (!object || object->state != OBJECT_LIVE)) {
        log_warn("the part of rank %u of step %llu of \"%.*s\" did not survive the earlier daemon: readers of it fail until "
                 "the next version is published",
                 part->rank, (unsigned long long)version->step, version->name->id_bytes, shard_name_id(version->name));
        return RDT_OK;
    }
    return here ? version_hold_part(version, part, object, err) : version_retake_part(version, part, message->ref, err);
}

/* Of a version that was complete every rank has a part, and they are listed in order. 0: this is no such list. */
static uint32_t count_ranks(const Rdt__Pb__Manifest *manifest)
{
    uint32_t of = 0;

    for (size_t i = 0; i < manifest->n_parts; i++) {
        if (manifest->parts[i]->rank != of && (of == 0 || manifest->parts[i]->rank != of - 1))
            return 0;
        of = manifest->parts[i]->rank + 1;
    }
    return of;
}

static enum rdt_status restore(struct shards *shards, struct object *object, const Rdt__Pb__Manifest *manifest,
                               struct rdt_error *err)
{
    struct shard_part first = {.step = manifest->step,
                               .of = count_ranks(manifest),
                               .visibility = (Rdt__Pb__Visibility)object->access.visibility,
                               .name.id_bytes = (uint8_t)manifest->name.len};
    struct version *version;
    enum rdt_status status = RDT_OK;

    if (manifest->name.len == 0 || manifest->name.len > RDT_MAX_ID_BYTES || first.of == 0 || first.of > SHARDS_MAX_RANKS ||
        manifest->n_parts > SHARDS_MAX_PIECES)
        return rdt_error_set(err, RDT_INVALID, "its manifest is invalid");
    memcpy(first.name.id, manifest->name.data, manifest->name.len);
    version = version_restore(shards, &first, object);
    if (!version)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a version");
    version->n_parts = version->of;
    version->number = manifest->version;
    for (size_t i = 0; i < manifest->n_parts && status == RDT_OK; i++)
        status = restore_part(version, manifest->parts[i], err);
    if (status != RDT_OK)
        version_end(version);
    return status;
}

void shards_restore(void *shards, struct object *object)
{
    const size_t magic = MANIFEST_MAGIC_BYTES;
    Rdt__Pb__Manifest *manifest = NULL;
    struct arena arena;
    struct rdt_error err;

    arena_init(&arena, 0);
    if (object->tail.metadata_bytes > magic && (memcmp(object_metadata(object), MANIFEST_MAGIC, magic) == 0 ||
                                                memcmp(object_metadata(object), MANIFEST_LARGE, magic) == 0))
        (void)manifest_unpack(&arena, object_metadata(object) + magic, object->tail.metadata_bytes - magic, &manifest, &err);
    if (!manifest)
        log_error(
            "obj %016llx is the manifest of a version, whose parts are no longer held: it is invalid, or has the format of "
            "another release. Publish the next version",
            (unsigned long long)object->generation);
    else if (restore(shards, object, manifest, &err) == RDT_OK)
        log_debug("version %llu of \"%.*s\" has survived the earlier daemon", (unsigned long long)manifest->version,
                  (int)manifest->name.len, (const char *)manifest->name.data);
    else
        log_error("the parts of version %llu of \"%.*s\" are no longer held: %s", (unsigned long long)manifest->version,
                  (int)manifest->name.len, (const char *)manifest->name.data, err.msg);
    arena_fini(&arena);
}
