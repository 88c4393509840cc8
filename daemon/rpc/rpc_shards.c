/* SPDX-License-Identifier: Apache-2.0 */
/* PUBLISH_PART, GROWING and SHARDS: versions of a name that consist of many objects (shards.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/calls/call.h"
#include "daemon/rpc/rpc.h"
#include "proto/manifest.h"
#include "proto/wire_limits.h"
#include "wire_ref.h"

#define BOXES_FIELD 5u    /* of PartDescription */
#define MANIFEST_FIELD 1u /* of ShardsReply */

/* The description of the object by the daemon of its node. */
struct description {
    struct rdt_ref ref;
    struct layout *layout; /* owned */
    uint64_t bytes;
    const uint8_t *boxes; /* [box_bytes], packed; the object's, or `own` */
    size_t box_bytes;
    uint8_t *own;
};

/* Of an object of this node, whose put has checked the boxes. */
static enum rdt_status describe(struct description *description, const struct object *object, struct rdt_error *err)
{
    enum rdt_status status = object_layout(object, NULL, &description->layout, err);

    object_ref(object, &description->ref);
    description->bytes = object->bytes;
    description->boxes = object_metadata(object) + object->tail.metadata_bytes - object->tail.box_bytes;
    description->box_bytes = object->tail.box_bytes;
    if (status == RDT_OK && object->tail.box_bytes == 0 && description->layout->count > 0) /* a rank may have no tensors */
        return rdt_error_set(
            err, RDT_INVALID,
            "object \"%s\" cannot be a part of a version: its put did not say what its tensors are boxes of (shards)",
            description->ref.id);
    return status;
}

/* The same by what another node says. */
static enum rdt_status take_description(struct description *description, const Rdt__Pb__PartDescription *part,
                                        struct rdt_error *err)
{
    enum rdt_status status = layout_from_wire(part->tensors, &description->layout, err);

    description->bytes = part->bytes;
    if (status != RDT_OK || !part->boxes)
        return status;
    description->box_bytes = rdt__pb__boxes__get_packed_size(part->boxes);
    description->boxes = description->own = malloc(description->box_bytes + 1);
    if (!description->own)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the boxes of a part");
    (void)rdt__pb__boxes__pack(part->boxes, description->own);
    return RDT_OK;
}

static void description_fini(struct description *description)
{
    free(description->layout);
    free(description->own);
}

/* A field of a message that is packed already, because decoding it would take long. */
struct packed_field {
    ProtobufCMessageUnknownField field;
    uint8_t *data; /* its length and its bytes */
};

static enum rdt_status packed_field_init(struct packed_field *packed, ProtobufCMessage *in, uint32_t tag, const uint8_t *bytes,
                                         size_t n, struct rdt_error *err)
{
    size_t left = n, at = 0;

    packed->data = malloc(n + 10);
    if (!packed->data)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a message of %zu bytes", n);
    for (; left >= 0x80; left >>= 7)
        packed->data[at++] = (uint8_t)(left | 0x80);
    packed->data[at++] = (uint8_t)left;
    memcpy(packed->data + at, bytes, n);
    packed->field = (ProtobufCMessageUnknownField){
        .tag = tag, .wire_type = PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED, .len = at + n, .data = packed->data};
    in->unknown_fields = &packed->field;
    in->n_unknown_fields = 1;
    return RDT_OK;
}

struct described { /* the description as a message */
    Rdt__Pb__PartDescription part;
    Rdt__Pb__TensorList tensors;
    Rdt__Pb__Ref ref;
    struct packed_field boxes;
};

static enum rdt_status describe_in(struct described *described, const struct description *description, uint32_t rank,
                                   struct rdt_error *err)
{
    rdt__pb__part_description__init(&described->part);
    rdt__pb__tensor_list__init(&described->tensors);
    wire_ref_from(&description->ref, &described->ref);
    layout_to_wire(description->layout, false, NULL, &described->tensors);
    described->tensors.n_strides = 0;
    described->part.ref = &described->ref;
    described->part.rank = rank;
    described->part.bytes = description->bytes;
    described->part.tensors = &described->tensors;
    return packed_field_init(&described->boxes, &described->part.base, BOXES_FIELD, description->boxes, description->box_bytes,
                             err);
}

/* Finds the live object of this node, which the caller must be allowed to publish for those readers. AGAIN: the object is still
 * being put, and *object_p is it. */
static enum rdt_status find_object(const struct call *call, const struct rdt_ref *ref, Rdt__Pb__Visibility visibility,
                                   struct object **object_p, struct rdt_error *err)
{
    const struct owner *requester = &call->account->owner;
    enum rdt_status status = object_table_find(call->rpc->objects, ref, requester, object_p, err);

    if (status == RDT_AGAIN) {
        status = object_table_find_any(call->rpc->objects, ref, requester, false, object_p, err);
        if (status != RDT_OK || (*object_p)->state != OBJECT_FILLING)
            return object_table_not_put(ref, requester, err);
    }
    if (status == RDT_OK && !call_may_see(call, &(*object_p)->account->owner))
        status = rdt_error_set(err, RDT_DENIED, "object \"%s\" belongs to uid %u: only that user may publish it", ref->id,
                               (*object_p)->account->owner.uid);
    if (status == RDT_OK && (int)visibility > (*object_p)->access.visibility)
        status =
            rdt_error_set(err, RDT_INVALID,
                          "the version is visible to more readers than its part \"%s\": put it with that visibility", ref->id);
    return status == RDT_OK && (*object_p)->state == OBJECT_FILLING ? RDT_AGAIN : status;
}

static bool makes_sense(const Rdt__Pb__PublishPart *message)
{
    if (message->again)
        return message->of == 0 && message->growing == 0 && message->object;
    if (message->growing == 0)
        return message->piece == 0 && message->pieces == 0;
    return message->publisher != 0 && (message->piece > 0) == (message->object != NULL) &&
           (message->piece == 0 || message->pieces == 0);
}

/* 0: the message brings no object. */
static uint32_t piece_of(const Rdt__Pb__PublishPart *message)
{
    return message->growing > 0 || (message->again && message->piece > 0) ? message->piece : 1;
}

/* Errors: INVALID, DENIED. */
static enum rdt_status check(const struct call *call, const Rdt__Pb__PublishPart *message, const struct rdt_ref *name,
                             struct rdt_error *err)
{
    if (!name->is_name)
        return rdt_error_set(err, RDT_INVALID, "\"%s\" is the ref of an object, not of a name", name->id);
    if ((unsigned)message->visibility > RDT__PB__VISIBILITY__VISIBILITY_ALL)
        return rdt_error_set(err, RDT_INVALID, "unknown visibility %d", (int)message->visibility);
    if (!makes_sense(message))
        return rdt_error_set(err, RDT_INVALID, "piece %u of %u of a part of \"%s\" makes no sense", message->piece,
                             message->pieces, name->id);
    if (!name->any_owner && (name->uid != call->account->owner.uid || strcmp(name->tenant, call->account->owner.tenant) != 0))
        return rdt_error_set(err, RDT_DENIED,
                             "name \"%s\" belongs to uid %u of tenant \"%s\": only that user may publish its parts", name->id,
                             name->uid, name->tenant);
    return RDT_OK;
}

/* The rest of the time that the other parts may take. */
static int64_t left_ns(const struct call *call, int64_t timeout_ns)
{
    int64_t spent_ns = (int64_t)(uv_hrtime() - call->began_ns);

    return timeout_ns < 0 ? timeout_ns : timeout_ns > spent_ns ? timeout_ns - spent_ns : timeout_ns > 0;
}

/* The object of a part has ended although the name's node holds it or will: it was freed by force. That node tells the other
 * publishers that this rank no longer waits. */
static void on_part_gone(struct object_waiter *waiter, struct object *object, const struct rdt_error *why)
{
    struct call *call = container_of(waiter, struct call, waits.object);
    struct rdt_error err;

    (void)rdt_error_set(&err, RDT_FREED, "the object of the part was freed before its version was complete");
    if (call->on_end)
        call->on_end(call);
    call->on_end = NULL;
    call_fail(call, &err);
}

/* The name is on another node: sends that node the description of the object. */
static enum rdt_status forward(struct call *call, const Rdt__Pb__PublishPart *message, const struct rdt_ref *name,
                               const struct rdt_ref *ref, struct rdt_error *err)
{
    Rdt__Pb__PublishPart filled = *message;
    struct description description = {0};
    struct described described = {0};
    struct object *object;
    enum rdt_status status;

    filled.timeout_ns = left_ns(call, message->timeout_ns);
    if (!message->object || call_is_remote(call, ref)) /* the object may be on the name's node, which then finds it */
        return call_forward(call, name, &filled.base, filled.timeout_ns, err);
    status = find_object(call, ref, message->visibility, &object, err);
    if (status != RDT_OK)
        return status;
    status = describe(&description, object, err);
    if (status == RDT_OK)
        status = describe_in(&described, &description, message->rank, err);
    call->waits.object.on_event = on_part_gone;
    if (status == RDT_OK && !object_wait_freed(object, &call->waits.object))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for a part");
    if (status == RDT_OK) {
        filled.part = &described.part;
        filled.object = &described.ref;
        status = call_forward(call, name, &filled.base, filled.timeout_ns, err);
    }
    free(described.boxes.data);
    description_fini(&description);
    return status;
}

/* Claims the name for this node. If another node has it and the ref leaves the node open, that node is written into the ref.
 * AGAIN: the homes are being asked. */
static enum rdt_status claim(struct call *call, struct rdt_ref *name, struct rdt_error *err)
{
    struct directory_names *names = call->rpc->directory_names;
    const struct owner *owner = &call->account->owner;
    const uint8_t *id = (const uint8_t *)name->id;
    enum rdt_status status;

    call->waits.claim.on_decided = call_on_claim;
    status = directory_names_claim(names, owner, id, name->id_bytes, &call->waits.claim, err);
    if (status == RDT_EXISTS && call->client && ref_is_unplaced(name) &&
        directory_names_find(names, owner, id, name->id_bytes, name->node, name->address) == RDT_OK)
        return RDT_OK;
    return status;
}

static void reply_version(struct call *call, uint64_t version)
{
    Rdt__Pb__PublishPartReply reply = RDT__PB__PUBLISH_PART_REPLY__INIT;

    reply.version = version;
    call_reply(call, &reply.base, NULL, 0);
}

static void on_settled(struct part_waiter *waiter, uint64_t version, const struct rdt_error *why)
{
    struct call *call = container_of(waiter, struct call, waits.part);

    call->on_end = NULL;
    if (version == 0)
        call_fail(call, why);
    else
        reply_version(call, version);
}

/* The publisher's session or link ended, its request was cancelled, or its time-out has passed. */
static void on_publisher_end(struct call *call)
{
    char lacks[512], *why;

    part_waiter_leave(&call->waits.part, lacks, sizeof lacks);
    if (lacks[0] == '\0' || asprintf(&why, "%s in time: %s", call->verb->unmet, lacks) < 0)
        return;
    free(call->why);
    call->why = why; /* if it was the deadline */
}

/* Describes the object of the part, which is on this node, or which the message describes. */
static enum rdt_status fill_object(const struct call *call, const Rdt__Pb__PublishPart *message, struct shard_part *part,
                                   struct description *description_p, struct rdt_error *err)
{
    enum rdt_status status;

    if (part->here) {
        status = describe(description_p, part->here, err);
        part->object = description_p->ref;
    } else if (call->client || !message->part || !message->part->tensors || part->object.generation == 0) {
        status =
            rdt_error_set(err, RDT_INVALID,
                          "object \"%s\" is on another node than its publisher and the name: publish it from a client there",
                          part->object.id);
    } else {
        status = take_description(description_p, message->part, err);
    }
    part->bytes = description_p->bytes;
    part->layout = description_p->layout;
    part->boxes = description_p->boxes;
    part->box_bytes = description_p->box_bytes;
    return status;
}

static enum rdt_status add_part(struct call *call, const struct shard_part *part, bool again, int64_t timeout_ns,
                                struct rdt_error *err)
{
    uint64_t version = part->piece > 0 ? shards_version_with(call->rpc->shards, call->account, part) : 0;
    enum rdt_status status;

    if (version != 0) { /* a daemon has ended before its publisher had the answer */
        reply_version(call, version);
        return RDT_OK;
    }
    if (again)
        return rdt_error_set(err, RDT_RESTARTED,
                             "a daemon restarted before step %llu of \"%s\" was complete: let all ranks publish it again",
                             (unsigned long long)part->step, part->name.id);
    status = call_defer(call, timeout_ns, NULL, err);

    call->waits.part.on_settled = on_settled;
    if (status == RDT_OK)
        status = shards_add(call->rpc->shards, call->account, part, &call->waits.part, err);
    if (status == RDT_OK)
        call->on_end = on_publisher_end;
    return status;
}

/* The publisher has no part: the others are told. */
static enum rdt_status give_up(struct call *call, const Rdt__Pb__PublishPart *message, struct shard_part *part,
                               int64_t timeout_ns, struct rdt_error *err)
{
    Rdt__Pb__PublishPartReply reply = RDT__PB__PUBLISH_PART_REPLY__INIT;
    enum rdt_status status = call_is_remote(call, &part->name) ? RDT_OK : claim(call, &part->name, err);
    struct rdt_error why;

    if (status == RDT_AGAIN)
        return call_wait_for_claim(call, timeout_ns, err);
    call->forwarded.patient = true; /* the daemon of the name may restart just now, which may be why */
    if (status == RDT_OK && call_is_remote(call, &part->name))
        return call_forward(call, &part->name, &message->base, timeout_ns, err);
    (void)wire_error(message->gave_up, 0, message->why[0] ? message->why : "it did not say why", &why);
    if (status == RDT_OK)
        status = shards_give_up(call->rpc->shards, call->account, part, why.msg, err);
    if (status == RDT_OK)
        call_reply(call, &reply.base, NULL, 0);
    return status;
}

enum rdt_status rpc_publish_part(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__PublishPart *message = request;
    struct shard_part part = {.step = message->step,
                              .rank = message->rank,
                              .of = message->growing > 0 ? message->growing : message->of,
                              .piece = piece_of(message),
                              .pieces = message->growing > 0 ? message->pieces : 1,
                              .publisher = message->publisher,
                              .visibility = message->visibility,
                              .others = message->others,
                              .n_others = message->n_others};
    struct description description = {0};
    int64_t timeout_ns = left_ns(call, message->timeout_ns);
    enum rdt_status status = call_ref(message->name, &part.name, err);

    if (status == RDT_OK)
        status = check(call, message, &part.name, err);
    if (status == RDT_OK && message->gave_up != 0)
        return give_up(call, message, &part, timeout_ns, err);
    if (status == RDT_OK && part.piece > 0)
        status = call_object_ref(message->object, &part.object, err);
    call->forwarded.patient = message->again; /* the daemon of the name may restart just now */
    if (status == RDT_OK && call->rpc->intake.drained && !message->again && !call_is_remote(call, &part.name))
        return rpc_refuse_drained(err);
    if (status == RDT_OK && part.piece > 0 && node_is_here(call->rpc->node, part.object.node, part.object.address))
        status = find_object(call, &part.object, message->visibility, &part.here, err);
    if (status == RDT_AGAIN)
        return call_wait_for_put(call, part.here, timeout_ns, err);
    if (status != RDT_OK)
        return status;
    if (call_is_remote(call, &part.name))
        return forward(call, message, &part.name, &part.object, err);
    if (part.piece > 0)
        status = fill_object(call, message, &part, &description, err);
    if (status == RDT_OK)
        status = claim(call, &part.name, err);
    if (status == RDT_OK && !call_is_remote(call, &part.name))
        status = add_part(call, &part, message->again, timeout_ns, err);
    else if (status == RDT_OK)
        status = forward(call, message, &part.name, &part.object, err);
    else if (status == RDT_AGAIN)
        status = call_wait_for_claim(call, timeout_ns, err);
    description_fini(&description);
    return status;
}

/* ---- GROWING ---- */

struct growing { /* what a deferred call asks for */
    struct rdt_ref name;
    uint64_t growth;
    uint32_t from;
};

static void reply_growth(struct call *call, const struct growth *growth)
{
    Rdt__Pb__GrowingReply reply = RDT__PB__GROWING_REPLY__INIT;
    Rdt__Pb__Ref parts[GROWTH_PARTS], *list[GROWTH_PARTS];
    uint64_t bytes[GROWTH_PARTS];

    for (uint32_t i = 0; i < growth->n; i++) {
        wire_ref_from(&growth->parts[i].ref, &parts[i]);
        list[i] = &parts[i];
        bytes[i] = growth->parts[i].bytes;
    }
    reply.growth = growth->number;
    reply.step = growth->step;
    reply.parts = list;
    reply.bytes = bytes;
    reply.n_parts = reply.n_bytes = growth->n;
    reply.ended = growth->ended;
    reply.version = growth->version;
    call_reply(call, &reply.base, NULL, 0);
}

static void on_growing_end(struct call *call)
{
    free(call->waiting);
    call->waiting = NULL;
}

static void on_news(struct growth_waiter *waiter)
{
    struct call *call = container_of(waiter, struct call, waits.growth);
    const struct growing *growing = call->waiting;
    struct growth growth;
    struct rdt_error err;
    enum rdt_status status = shards_growth(call->rpc->shards, &growing->name, call->account, growing->growth, growing->from,
                                           &call->waits.growth, &growth, &err);

    if (status == RDT_AGAIN)
        return;
    on_growing_end(call);
    call->on_end = NULL;
    if (status == RDT_OK)
        reply_growth(call, &growth);
    else
        call_fail(call, &err);
}

enum rdt_status rpc_growing(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Growing *message = request;
    struct growing *growing;
    struct growth growth;
    struct rdt_ref ref;
    enum rdt_status status = call_ref(message->name, &ref, err);

    if (status == RDT_OK && !ref.is_name)
        status = rdt_error_set(err, RDT_INVALID, "\"%s\" is the ref of an object, not of a name", ref.id);
    if (status != RDT_OK)
        return status;
    growth_waiter_remove(&call->waits.growth); /* if the name has been looked for meanwhile */
    if (call->waiting)
        on_growing_end(call);
    (void)call_place_known(call, &ref);
    if (call_is_remote(call, &ref))
        return call_forward(call, &ref, &message->base, message->timeout_ns, err);
    call->waits.growth.on_news = on_news;
    status = shards_growth(call->rpc->shards, &ref, call->account, message->growth, message->from, &call->waits.growth, &growth,
                           err);
    if (status == RDT_OK)
        reply_growth(call, &growth);
    if (status != RDT_AGAIN)
        return status;
    growing = malloc(sizeof *growing);
    if (!growing)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for parts");
    *growing = (struct growing){ref, message->growth, message->from};
    call->waiting = growing;
    status = call_defer(call, message->timeout_ns, on_growing_end, err);
    if (status == RDT_OK)
        status = call_seek_name(call, &ref, err);
    if (status != RDT_OK)
        on_growing_end(call);
    return status;
}

enum rdt_status rpc_shards(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Shards *message = request;
    Rdt__Pb__ShardsReply reply;
    struct packed_field manifest = {0};
    const size_t magic = MANIFEST_MAGIC_BYTES;
    struct object *object = NULL;
    struct owner owner;
    struct rdt_ref ref;
    uint64_t version = 0;
    enum rdt_status status = call_ref(message->name, &ref, err);

    if (status == RDT_OK && !ref.is_name)
        status = rdt_error_set(err, RDT_INVALID, "\"%s\" is the ref of an object, not of a name", ref.id);
    if (status != RDT_OK)
        return status;
    status = call_place_name(call, &ref, err);
    if (status != RDT_OK)
        return status == RDT_AGAIN ? RDT_OK : status;
    if (call_is_remote(call, &ref))
        return call_forward(call, &ref, &message->base, -1, err);
    owner = owner_of_ref(&ref, &call->account->owner);
    ref.after = 0;
    (void)names_find(call->rpc->names, &ref, &call->account->owner, &object, &version, NULL);
    rdt__pb__shards_reply__init(&reply);
    if (call_may_see(call, &owner))
        status = shards_view(call->rpc->shards, &owner, &ref, &reply, err);
    if (status == RDT_OK && object && object->kind == OBJECT_MANIFEST)
        status = packed_field_init(&manifest, &reply.base, MANIFEST_FIELD, object_metadata(object) + magic,
                                   object->tail.metadata_bytes - magic, err);
    if (status == RDT_OK && object && !manifest.data)
        status = rdt_error_set(err, RDT_INVALID, "version %llu of \"%s\" is one object, not many parts: see rdtctl stat",
                               (unsigned long long)version, ref.id);
    if (status == RDT_OK && !manifest.data && reply.n_pending == 0 && reply.failure[0] == '\0')
        status = rdt_error_set(err, RDT_NOT_FOUND, "nobody has published a part of \"%s\", or uid %u may not see it", ref.id,
                               call->account->owner.uid);
    if (status == RDT_OK)
        call_reply(call, &reply.base, NULL, 0);
    shards_view_fini(&reply);
    free(manifest.data);
    return status;
}

/* ---- for struct shards.above ---- */

enum rdt_status rpc_hold_part(void *arg, struct client *holder, uint64_t id, const struct rdt_ref *ref, struct rdt_error *err)
{
    struct rpc *rpc = arg;
    struct call *call = call_create(rpc, holder, NULL, RDT_MSG_HOLD, id);
    Rdt__Pb__Hold message = RDT__PB__HOLD__INIT;
    Rdt__Pb__Ref wire;
    enum rdt_status status;

    if (!call)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to hold object \"%s\"", ref->id);
    wire_ref_from(ref, &wire);
    message.ref = &wire;
    message.timeout_ns = 0;
    status = call_forward(call, ref, &message.base, (int64_t)rpc->options->connect_timeout_ns, err);
    if (status != RDT_OK) {
        call->request_id = 0; /* the caller gets this error as a result, not as an answer */
        call_fail(call, err);
    }
    return status;
}

bool rpc_holder_gone(void *rpc, struct client *holder, uint64_t until_ns)
{
    return calls_client_gone(rpc, holder, until_ns);
}

/* ---- for struct follows.above ---- */

bool rpc_ask_growing(void *arg, struct client *holder, uint64_t id, const struct rdt_ref *name, uint64_t growth, uint32_t from)
{
    struct call *call = call_create(arg, holder, NULL, RDT_MSG_GROWING, id);
    Rdt__Pb__Growing message = RDT__PB__GROWING__INIT;
    uint8_t packed[1024];
    Rdt__Pb__Ref wire;

    if (!call)
        return false;
    wire_ref_from(name, &wire);
    message.name = &wire;
    message.growth = growth;
    message.from = from;
    message.timeout_ns = -1;
    call->rpc->above.dispatch(call, packed, rdt__pb__growing__pack(&message, packed));
    return true;
}
