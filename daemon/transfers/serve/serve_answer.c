/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's answer to a pull: what the object is, its bytes if they are few, and which node's replica the
 * reader should pull instead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/memory/region_fill.h"
#include "daemon/transfers/peer_session.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/replica_directory.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_record.h"
#include "wire_ref.h"

static bool all_contiguous(const struct layout *layout)
{
    for (uint32_t i = 0; i < layout->count; i++)
        if (!layout_is_contiguous(layout, i))
            return false;
    return true;
}

static enum rdt_status gather_inline(struct serve *out, Rdt__Pb__PullMeta *meta, struct rdt_error *err)
{
    uint8_t *data = calloc(1, out->stream_bytes ? out->stream_bytes : 1);
    enum rdt_status status = data ? serve_map(out, err) : rdt_error_set(err, RDT_NO_MEMORY, "no memory for the bytes");

    if (status != RDT_OK) {
        free(data);
        return status;
    }
    object_pin(out->object);
    status = region_fill(out->object->uses, out->object->n_regions, out->source, &out->filled, NULL, NULL, err);
    for (uint32_t i = 0; i < out->source->count && status == RDT_OK; i++)
        if (layout_bytes(out->source, i) > 0)
            layout_gather(out->source, i, out->bases[out->source->region[i]], 0, layout_bytes(out->source, i),
                          data + out->packed->offset[i]);
    if (status == RDT_OK)
        status = serve_check(out, err);
    object_unpin(out->object);
    if (status != RDT_OK) {
        free(data);
        return status;
    }
    meta->has_inline = true;
    meta->inline_data = (ProtobufCBinaryData){out->stream_bytes, data};
    out->transfers->counts->bytes_out += out->stream_bytes;
    out->session->bytes_out += out->stream_bytes;
    out->record.bytes_done = out->stream_bytes;
    return RDT_OK;
}

/* Whether another node should rather serve the object: it is large, or this node has much to send already. */
static bool should_redirect(const struct serve *out)
{
    const struct transfers *transfers = out->transfers;
    uint64_t least = transfers->options->fanout_min_bytes, ahead = out->stream_bytes;

    if (least == 0 || out->no_redirect)
        return false;
    if (out->stream_bytes < FANOUT_CHUNK_MIN)
        return ahead >= least;
    list_each (const struct serve, other, &transfers->serves, record.link) {
        if (ahead >= least)
            return true;
        ahead += other == out ? 0 : other->stream_bytes;
    }
    return ahead >= least;
}

/* The reader will keep a replica: adds an entry for its node to the directory. The answer may redirect the
 * reader to another node's replica. */
static void add_replica_entry(struct serve *out, const struct object *object, Rdt__Pb__PullMeta *meta)
{
    struct transfers *transfers = out->transfers;
    struct peer_session *elsewhere = NULL;
    struct replica_entry *entry = NULL;
    bool is_new;

    if (out->keep && object->snapshot && !out->replica && !out->slice && !out->meta_only && !meta->has_inline)
        entry = replica_entry_add(&transfers->directory, out->session, object, &is_new);
    meta->replica_noted = entry != NULL;
    if (!entry)
        return;
    if ((is_new || (out->came_back && !entry->place.whole)) && should_redirect(out))
        elsewhere = replica_entry_redirect(entry, out->came_back ? out->left : NULL);
    else if (out->no_redirect && !entry->place.whole)
        replica_entry_serve_here(entry);
    if (!elsewhere)
        return;
    meta->redirect_node = (ProtobufCBinaryData){sizeof elsewhere->peer->uuid, elsewhere->peer->uuid};
    meta->redirect_address = elsewhere->peer->address;
    meta->redirect_depth = replica_entry_depth(entry);
    (void)snprintf(out->record.path, sizeof out->record.path, "redirect");
}

/* The memory kinds and devices of the tensors, for the answer. */
struct places {
    Rdt__Pb__Place rows[PLACING_MAX], *list[PLACING_MAX];
    uint32_t *of, n;
};

static bool places_fill(struct places *places, const struct serve *out, const struct object *object, Rdt__Pb__PullMeta *meta)
{
    const struct layout *source = out->source;

    places->of = calloc(source->count + 1u, sizeof *places->of);
    if (!places->of)
        return false;
    for (uint32_t i = 0; i < source->count; i++) {
        const struct region *region = layout_bytes(source, i) > 0 ? object_region(object, source->region[i]) : NULL;
        uint32_t k = 0;
        if (!region)
            continue;
        while (k < places->n && (strcmp(places->rows[k].memory, region->kind->name) != 0 ||
                                 strcmp(places->rows[k].device, region_device_uuid(region)) != 0))
            k++;
        if (k == PLACING_MAX)
            return false;
        if (k == places->n) {
            rdt__pb__place__init(&places->rows[k]);
            places->rows[k].memory = (char *)region->kind->name;
            places->rows[k].device = (char *)region_device_uuid(region);
            places->list[k] = &places->rows[k];
            places->n++;
        }
        places->of[i] = k;
    }
    meta->places = places->list;
    meta->n_places = places->n;
    meta->place = places->of;
    meta->n_place = source->count;
    return true;
}

void serve_answer(struct serve *out, struct object *object)
{
    Rdt__Pb__PullMeta meta = RDT__PB__PULL_META__INIT;
    Rdt__Pb__TensorList tensors;
    struct layout_rows rows;
    Rdt__Pb__Ref ref;
    struct rdt_error err = {0};
    bool on_device = object_on_device(object), more;
    struct places places = {0};
    enum rdt_status status;

    out->record.began_ns = uv_hrtime();
    if (!object_peer_hold(object)) {
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory to serve object \"%s\"", out->ref.id);
        serve_refuse(out, &err);
        return;
    }
    out->object = object;
    if (!out->replica)
        object_ref(object, &out->ref);
    out->record.ref = out->ref;
    if (out->sm.state == SERVE_PARKED)
        serve_set_state(out, SERVE_OFFERED);
    status = object_layout(object, out->slice, &out->source, &err);
    if (status == RDT_OK && out->select) {
        struct layout *all = out->source;
        out->source = NULL;
        status = layout_select(all, out->select, out->n_select, &out->source, &err);
        free(all);
    }
    if (status == RDT_OK)
        status = layout_packed(out->source, &out->packed, &out->stream_bytes, &err);
    out->record.bytes = out->stream_bytes;
    if (status == RDT_OK && !out->meta_only && !out->replica && (!on_device || out->stream_bytes == 0) &&
        out->stream_bytes <= out->inline_max_bytes)
        status = gather_inline(out, &meta, &err);
    if (status != RDT_OK) {
        serve_answer_error(out->session, out->number, &err);
        record_fail(&out->record, &err);
        serve_end(out);
        return;
    }
    if (on_device && !meta.has_inline && !places_fill(&places, out, object, &meta)) {
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory to answer");
        free(places.of);
        serve_refuse(out, &err);
        return;
    }
    wire_ref_from(&out->ref, &ref);
    layout_to_wire(out->packed, false, out->session->peer->tensor_runs ? &rows : NULL, &tensors);
    meta.transfer = out->number;
    meta.ref = &ref;
    meta.version = out->version;
    meta.metadata = (ProtobufCBinaryData){object->metadata_bytes, (uint8_t *)object_metadata(object)};
    meta.box_bytes = object->box_bytes;
    meta.tensors = &tensors;
    meta.bytes = out->stream_bytes;
    meta.transport = (char *)object->transport;
    meta.memory = object_n_places(object) > 0 ? (char *)object_region(object, 0)->kind->name : (char *)"host";
    /* No reader gets a key to the arena, or to a replica that is being filled. */
    meta.contiguous = !object->chunk && all_contiguous(out->source) && !(out->replica && out->replica->filling);
    if (object->producer && !out->replica && !list_empty(&out->transfers->groups->all))
        meta.producer = object->producer->name;
    meta.snapshot = object->snapshot;
    meta.visibility = object->visibility;
    if (places.n > 0)
        meta.memory = places.rows[0].memory;
    if (!on_device && !out->select && !out->expect)
        add_replica_entry(out, object, &meta);
    /* A reader that would keep a replica of the snapshot has not reserved memory for it yet, and asks again. */
    meta.started = !on_device && !out->select && !meta.has_inline && !out->meta_only && !(out->keep && object->snapshot) &&
                   serve_can_start(out);
    more = !out->meta_only && !meta.has_inline && meta.redirect_node.len == 0;
    if (out->meta_only || meta.has_inline)
        text_copy(out->record.path, sizeof out->record.path, out->meta_only ? "metadata" : "inline");
    status = peer_session_send(out->session, RDT_PEER_PULL_META, &meta.base, &err);
    free(places.of);
    free(meta.inline_data.data);
    if (status != RDT_OK && status != RDT_PEER_LOST)
        serve_answer_error(out->session, out->number, &err);
    if (status != RDT_OK)
        record_fail(&out->record, &err);
    if (!more || status != RDT_OK)
        serve_end(out);
    else if (meta.started)
        serve_begin(out, peer_transport_find(out->session, out->start_transport));
}
