/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest of a complete version: an object without tensors, whose metadata lists the parts. */
#include <stdlib.h>
#include <string.h>

#include "daemon/rpc/shards/shards_impl.h"
#include "proto/wire_limits.h"

#define PARTS_FIELD 3u /* of Manifest */

/* The tag and the length of a field that is a message. Returns their bytes. */
static size_t put_head(uint8_t *to, unsigned field, size_t bytes)
{
    size_t at = 1;

    to[0] = (uint8_t)(field << 3 | 2);
    for (; bytes >= 0x80; bytes >>= 7)
        to[at++] = (uint8_t)(bytes | 0x80);
    to[at++] = (uint8_t)bytes;
    return at;
}

/* The parts are packed already, and a repeated field is its messages one after the other, each behind its tag and length. */
static uint8_t *pack_manifest(const struct version *version, uint64_t number, size_t *bytes_p, struct rdt_error *err)
{
    Rdt__Pb__Manifest manifest = RDT__PB__MANIFEST__INIT;
    size_t magic = strlen(SHARDS_MAGIC), bytes;
    uint8_t *packed, head[16];

    manifest.step = version->step;
    manifest.version = number;
    manifest.name = (ProtobufCBinaryData){version->name->id_bytes, (uint8_t *)shard_name_id(version->name)};
    bytes = magic + protobuf_c_message_get_packed_size(&manifest.base);
    for (uint32_t i = 0; i < version->of; i++)
        bytes += put_head(head, PARTS_FIELD, version->parts[i]->packed_bytes) + version->parts[i]->packed_bytes;
    if (bytes > RDT_MAX_METADATA_BYTES) {
        (void)rdt_error_set(err, RDT_LIMIT,
                            "its manifest has %zu bytes, more than the limit of %u: publish fewer or larger tensors", bytes,
                            RDT_MAX_METADATA_BYTES);
        return NULL;
    }
    packed = malloc(bytes);
    if (!packed) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the manifest");
        return NULL;
    }
    *bytes_p = bytes;
    memcpy(packed, SHARDS_MAGIC, magic);
    bytes = magic + protobuf_c_message_pack(&manifest.base, packed + magic);
    for (uint32_t i = 0; i < version->of; i++) {
        const struct part *part = version->parts[i];
        bytes += put_head(packed + bytes, PARTS_FIELD, part->packed_bytes);
        memcpy(packed + bytes, part->packed, part->packed_bytes);
        bytes += part->packed_bytes;
    }
    return packed;
}

enum rdt_status version_publish(struct version *version, uint64_t *number_p, struct rdt_error *err)
{
    struct shard_name *name = version->name;
    struct rpc *rpc = name->shards->rpc;
    struct name_publish next = {
        .id = (const uint8_t *)shard_name_id(name), .id_bytes = name->id_bytes, .visibility = version->visibility};
    struct object_put put = {.account = version->account, .visibility = version->visibility, .transport = "", .snapshot = true};
    uint64_t number = names_next_version(rpc->names, &version->account->owner, next.id, next.id_bytes);
    uint8_t *metadata = pack_manifest(version, number, &put.metadata_bytes, err);
    enum rdt_status status = metadata ? RDT_OK : err->status;

    put.metadata = metadata;
    if (status == RDT_OK && !(put.layout = layout_create(0, 0)))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the manifest");
    if (status == RDT_OK)
        status = object_table_put(rpc->objects, &put, &next.object, err);
    if (status != RDT_OK) {
        free(put.layout);
    } else {
        next.object->manifest = true;
        status = names_publish(rpc->names, &next, number_p, err);
        if (status == RDT_OK && !object_wait_freed(next.object, &version->manifest))
            status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the manifest");
        if (status != RDT_OK)
            object_free(next.object, true, OBJECT_END_FREED);
        object_drop(next.object); /* the name has a hold of its own */
    }
    free(metadata);
    return status;
}
