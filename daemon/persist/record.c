/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/persist/record.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/memory/slab.h"
#include "daemon/objects/detached.h"
#include "daemon/plugins/plugin.h"
#include "proto/boxes.h"
#include "proto/wire_limits.h"

static enum rdt_status invalid(struct rdt_error *err)
{
    return rdt_error_set(err, RDT_INVALID, "its record is invalid");
}

/* ---- owners ---- */

enum rdt_status record_owner(uint32_t uid, const char *tenant, struct owner *owner_p, struct rdt_error *err)
{
    *owner_p = (struct owner){.uid = uid};
    if (strlen(tenant) >= sizeof owner_p->tenant)
        return rdt_error_set(err, RDT_INVALID, "its record is invalid: no tenant has such a name");
    text_copy(owner_p->tenant, sizeof owner_p->tenant, tenant);
    return RDT_OK;
}

struct account *record_account(struct accounts *accounts, uint32_t uid, const char *tenant, struct rdt_error *err)
{
    struct owner owner;
    struct account *account;

    if (record_owner(uid, tenant, &owner, err) != RDT_OK)
        return NULL;
    account = account_get(accounts, &owner);
    if (!account)
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for its owner's account");
    return account;
}

/* ---- objects ---- */

void record_of_object(const struct object *object, Rdt__Pb__ObjectRecord *record_p)
{
    rdt__pb__object_record__init(record_p);
    record_p->generation = object->generation;
    record_p->uid = object->account->owner.uid;
    record_p->tenant = object->account->owner.tenant;
    record_p->id = (ProtobufCBinaryData){object->tail.id_bytes, (uint8_t *)object_id(object)};
    record_p->metadata = (ProtobufCBinaryData){object->tail.metadata_bytes, (uint8_t *)object_metadata(object)};
    record_p->box_bytes = object->tail.box_bytes;
    record_p->visibility = (Rdt__Pb__Visibility)object->access.visibility;
    record_p->transport = (char *)object_transport(object);
    record_p->evictable = cache_has(object);
    record_p->priority = cache_priority(object);
    record_p->detached_ttl_ns = object->survives.detached ? detached_ttl_ns(object) : 0;
}

enum rdt_status record_check_object(const Rdt__Pb__ObjectRecord *record, const struct layout *layout, struct rdt_error *err)
{
    struct owner owner;

    if (!rdt_generation_is_valid(record->generation) || record->id.len > RDT_MAX_ID_BYTES ||
        record->metadata.len > RDT_MAX_METADATA_BYTES || record->box_bytes > record->metadata.len ||
        record->detached_ttl_ns < 0 || (unsigned)record->visibility > RDT__PB__VISIBILITY__VISIBILITY_ALL ||
        record->promise > OBJECT_SEALED || record->priority > RDT_PRIORITY_MOST)
        return invalid(err);
    if (record_owner(record->uid, record->tenant, &owner, err) != RDT_OK)
        return RDT_INVALID;
    if (record->box_bytes == 0)
        return RDT_OK;
    return boxes_check(record->metadata.data + record->metadata.len - record->box_bytes, record->box_bytes, layout, err);
}

/* Whether the tensors lie in the object's regions and inline bytes. */
static enum rdt_status check_places(const struct object_put *put, struct rdt_error *err)
{
    struct region_span *spans = calloc(put->n_regions + 1, sizeof *spans);
    enum rdt_status status = spans ? region_spans(put->layout, spans, put->n_regions + 1, err)
                                   : rdt_error_set(err, RDT_NO_MEMORY, "no memory for the object");

    for (uint32_t i = 0; status == RDT_OK && i < put->n_regions; i++)
        if (spans[i].hi > put->regions[i]->bytes)
            status = rdt_error_set(err, RDT_INVALID, "tensor %u ends beyond its region", spans[i].last);
    if (status == RDT_OK && spans[put->n_regions].hi > put->inline_bytes)
        status = rdt_error_set(err, RDT_INVALID, "tensor %u ends beyond the object's bytes", spans[put->n_regions].last);
    free(spans);
    if (status == RDT_OK && (put->inline_bytes > SLAB_MAX_BYTES || (put->inline_bytes > 0 && put->n_regions > 0)))
        status = invalid(err);
    return status;
}

enum rdt_status record_restore_object(struct plugins *plugins, struct object_table *objects,
                                      const Rdt__Pb__ObjectRecord *record, struct object_put *put, struct object **object_p,
                                      struct rdt_error *err)
{
    const struct transport *transport = record->transport[0] != '\0' ? plugins_transport(plugins, record->transport) : NULL;
    enum rdt_status status = record_check_object(record, put->layout, err);

    put->id = record->id.data;
    put->id_bytes = record->id.len;
    put->metadata = record->metadata.data;
    put->metadata_bytes = record->metadata.len;
    put->box_bytes = record->box_bytes;
    put->visibility = record->visibility;
    put->transport = transport ? transport->name : "";
    put->generation = record->generation;
    if (status == RDT_OK)
        status = check_places(put, err);
    if (status == RDT_OK && !object_table_reserve(objects, put->generation)) /* so that no object of this daemon gets it */
        status = rdt_error_set(err, RDT_INVALID, "no earlier daemon of this node had such an object");
    if (status == RDT_OK)
        status = object_table_put(objects, put, object_p, err);
    if (status == RDT_OK && object_has_producer_hold(*object_p)) /* otherwise the put's own hold is that of the start */
        object_hold(*object_p);
    return status;
}

/* ---- names ---- */

void record_of_name(const struct name *name, Rdt__Pb__NameRecord *record_p)
{
    rdt__pb__name_record__init(record_p);
    record_p->uid = name->account->owner.uid;
    record_p->tenant = name->account->owner.tenant;
    record_p->id = (ProtobufCBinaryData){name->id_bytes, (uint8_t *)name_id(name)};
    record_p->version = name->version;
    record_p->generation = name->object->generation;
    record_p->visibility = name->visibility;
    record_p->ttl_ns = name->ttl_ns;
}

enum rdt_status record_check_name(const Rdt__Pb__NameRecord *record, struct rdt_error *err)
{
    struct owner owner;

    if (record->id.len == 0 || record->id.len > RDT_MAX_ID_BYTES || record->version == 0 ||
        !rdt_number_is_valid(record->version) || !rdt_generation_is_valid(record->generation) || record->ttl_ns < 0 ||
        (unsigned)record->visibility > RDT__PB__VISIBILITY__VISIBILITY_ALL)
        return invalid(err);
    return record_owner(record->uid, record->tenant, &owner, err);
}

enum rdt_status record_restore_name(struct names *names, const Rdt__Pb__NameRecord *record, struct object *object,
                                    struct name_publish *publish, struct name **name_p, struct rdt_error *err)
{
    enum rdt_status status = record_check_name(record, err);
    struct owner owner;

    if (status == RDT_OK)
        status = record_owner(record->uid, record->tenant, &owner, err);
    if (status != RDT_OK)
        return status;
    if (object->state != OBJECT_LIVE || !owner_equal(&owner, &object->account->owner))
        return rdt_error_set(err, RDT_INVALID, "its record is invalid: its object belongs to somebody else, or is not live");
    publish->id = record->id.data;
    publish->id_bytes = record->id.len;
    publish->object = object;
    publish->visibility = record->visibility;
    return names_restore(names, publish, record->version, name_p, err);
}
