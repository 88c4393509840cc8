/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's answer to a pull: what the object is, its bytes if they are few, and which node's replica the
 * reader should pull instead. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/owner_work.h"
#include "daemon/base/text.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/replica_directory.h"
#include "daemon/transfers/serve/serve.h"
#include "daemon/transfers/transfer_record.h"
#include "wire_ref.h"

/* Of answers on their way to one node, which carry small objects, metadata and lists of tensors. A node may ask for thousands,
 * nobody is charged for what its link has not taken, and above its limit the link would end. */
#define ANSWERS_BYTES (UINT64_C(4) << 20)
#define READING_NS UINT64_C(20000000) /* how long what threads read keeps other answers waiting */

static bool all_contiguous(const struct layout *layout)
{
    for (uint32_t i = 0; i < layout->count; i++)
        if (!layout_is_contiguous(layout, i))
            return false;
    return true;
}

/* The bytes of an answer that carries them. A client can hold up whoever touches memory that it can write (region_may_wait).
 * Such memory is read on a thread of its owner, and the serve stays until that has ended. */
struct gather {
    struct work work;     /* first */
    struct serve *serve;  /* its object is pinned */
    const uint8_t **base; /* [places of the object] */
    unsigned round;       /* of remote->answers when it began */
    uint8_t *data; /* [serve->stream_bytes] since it runs: those that wait for a thread need no memory. NULL: there was none, or
                    * the room is others' */
};

static void answer(struct serve *serve, struct gather *gather);
static bool link_is_full(const struct remote *remote);
static void hold(struct serve *serve);

static void gather_free(struct gather *gather)
{
    if (!gather)
        return;
    object_unpin(gather->serve->object);
    free(gather->base);
    free(gather->data);
    free(gather);
}

/* Whether the room of its answer has been given to others meanwhile. Any thread may ask. */
static bool is_late(const struct gather *gather)
{
    return gather->round != atomic_load(&gather->serve->remote->answers.round);
}

static void run_gather(struct work *work)
{
    struct gather *gather = (struct gather *)work;
    const struct layout *source = gather->serve->source, *packed = gather->serve->packed;

    if (is_late(gather)) /* it would have to be read again */
        return;
    gather->data = calloc(1, gather->serve->stream_bytes + 1); /* zeroes: the padding is sent too */
    for (uint32_t i = 0; gather->data && i < source->count; i++)
        if (layout_bytes(source, i) > 0)
            layout_gather(source, i, gather->base[source->region[i]], 0, layout_bytes(source, i),
                          gather->data + packed->offset[i]);
}

static void done_gather(struct work *work)
{
    struct gather *gather = (struct gather *)work;
    struct serve *serve = gather->serve;
    struct remote_answers *answers = &serve->remote->answers;
    bool late = is_late(gather);

    serve->gathering = false;
    answers->reading_bytes -= late ? 0 : serve->stream_bytes;
    serve->sending.n_ops--;
    if (serve->sm.state == SERVE_OFFERED && late && (!gather->data || link_is_full(serve->remote))) {
        gather_free(gather);
        hold(serve);
    } else if (serve->sm.state == SERVE_OFFERED) {
        answer(serve, gather);
    } else {
        gather_free(gather);
        serve_settle(serve);
    }
}

static struct gather *gather_create(struct serve *serve, struct rdt_error *err)
{
    const struct layout *source = serve->source;
    struct gather *gather = calloc(1, sizeof *gather);
    enum rdt_status status = RDT_OK;

    if (!gather) {
        (void)rdt_error_set(err, RDT_NO_MEMORY, "no memory for the bytes");
        return NULL;
    }
    gather->work = (struct work){.run = run_gather, .done = done_gather};
    gather->serve = serve;
    gather->round = serve->remote->answers.round;
    gather->base = calloc(object_n_places(serve->object) + 1u, sizeof *gather->base);
    object_pin(serve->object);
    if (!gather->base)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the bytes");
    for (uint32_t i = 0; i < source->count && status == RDT_OK; i++)
        if (layout_bytes(source, i) > 0 &&
            !(gather->base[source->region[i]] = object_base(serve->object, source->region[i], err)))
            status = err->status;
    if (status == RDT_OK)
        return gather;
    gather_free(gather);
    return NULL;
}

/* Whether the reader gets the bytes with the answer. */
static bool answer_has_bytes(const struct serve *serve)
{
    return serve->request.wish != WISH_METADATA && !serve->replica &&
           (!object_on_device(serve->object) || serve->stream_bytes == 0) &&
           serve->stream_bytes <= serve->request.inline_max_bytes &&
           !object_slow_owner(serve->object, serve->source); /* imported memory is staged */
}

static void begin_reading(struct serve *serve)
{
    struct remote_answers *answers = &serve->remote->answers;

    serve->gathering = true;
    if (answers->reading_bytes == 0)
        answers->reading_since_ns = uv_hrtime();
    answers->reading_bytes += serve->stream_bytes;
}

/* Reads the bytes of the answer, then answers. */
static void answer_with_bytes(struct serve *serve)
{
    struct account *reads_owner = object_reads_owner(serve->object);
    struct rdt_error err = {0};
    struct gather *gather = gather_create(serve, &err);

    if (!gather) {
        serve_refuse(serve, &err);
    } else if (reads_owner) {
        begin_reading(serve);
        serve->sending.n_ops++;
        owner_work_submit(serve->transfers->regions->owner_work, &gather->work, reads_owner, true);
    } else {
        run_gather(&gather->work);
        answer(serve, gather);
    }
}

/* Whether another node should rather serve the object: it is large, or this node has much to send already. */
static bool should_redirect(const struct serve *serve)
{
    const struct transfers *transfers = serve->transfers;
    uint64_t least = transfers->options->fanout_min_bytes, ahead = serve->stream_bytes;

    if (least == 0 || serve->request.no_redirect)
        return false;
    if (serve->stream_bytes >= FANOUT_CHUNK_MIN)
        ahead = transfers->load.serving_bytes; /* which includes its own */
    return ahead >= least;
}

/* The reader will keep a replica: adds an entry for its node to the directory. The answer may redirect the
 * reader to another node's replica. */
static void add_replica_entry(struct serve *serve, struct object *object, Rdt__Pb__PullMeta *meta)
{
    struct transfers *transfers = serve->transfers;
    struct remote *elsewhere = NULL;
    struct replica_entry *entry = NULL;
    bool is_new, follows;
    uint64_t sum;

    if (serve->request.wish == WISH_REPLICA && object_is_constant(object) && !serve->replica && !serve->request.slice &&
        !meta->has_inline)
        entry = replica_entry_add(&transfers->directory, serve->remote, object, &is_new);
    meta->replica_noted = entry != NULL;
    if (!entry)
        return;
    meta->replica_note = replica_entry_noted(entry);
    replica_directory_sum(serve->remote, object, &sum, &follows);
    meta->sum = sum;
    meta->sum_follows = follows;
    if ((is_new || (serve->request.came_back && !entry->place.whole)) && should_redirect(serve))
        elsewhere =
            replica_entry_redirect(entry, &serve->account->owner, serve->request.came_back ? serve->request.left : NULL);
    else if (serve->request.no_redirect && !entry->place.whole)
        replica_entry_serve_here(entry);
    if (!elsewhere)
        return;
    meta->redirect_node = (ProtobufCBinaryData){sizeof elsewhere->peer->uuid, elsewhere->peer->uuid};
    meta->redirect_address = elsewhere->peer->address;
    meta->redirect_depth = replica_entry_depth(entry);
    (void)snprintf(serve->record.path, sizeof serve->record.path, "redirect");
}

/* The memory kinds and devices of the tensors, for the answer. */
struct places {
    Rdt__Pb__Place rows[PLACING_MAX], *list[PLACING_MAX];
    uint32_t *of, n;
};

static bool places_fill(struct places *places, const struct serve *serve, const struct object *object, Rdt__Pb__PullMeta *meta)
{
    const struct layout *source = serve->source;

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

/* false: the bytes of the object, which lie in a stored file, are being checked, or they are damaged. */
static bool is_checked(struct serve *serve, struct object *object)
{
    struct rdt_error err = {0};
    enum rdt_status status =
        serve->request.wish == WISH_METADATA ? RDT_OK : object_check(object, &serve->account->owner, &serve->waiter, &err);

    if (status != RDT_OK && status != RDT_AGAIN)
        serve_refuse(serve, &err);
    return status == RDT_OK;
}

/* gather: the bytes that the answer carries; NULL: it carries none. */
static void answer(struct serve *serve, struct gather *gather)
{
    Rdt__Pb__PullMeta meta = RDT__PB__PULL_META__INIT;
    Rdt__Pb__TensorList tensors;
    struct layout_rows rows;
    Rdt__Pb__Ref ref;
    struct rdt_error err = {0};
    struct object *object = serve->object;
    bool on_device = object_on_device(object), more;
    struct places places = {0};
    enum rdt_status status = RDT_OK;

    if (gather) {
        status = gather->data ? serve_check(serve, &err) : rdt_error_set(&err, RDT_NO_MEMORY, "no memory for the bytes");
        meta.has_inline = true;
        meta.inline_data = (ProtobufCBinaryData){serve->stream_bytes, gather->data};
    }
    if (status == RDT_OK && on_device && !gather && !places_fill(&places, serve, object, &meta))
        status = rdt_error_set(&err, RDT_NO_MEMORY, "no memory to answer");
    if (status != RDT_OK) {
        free(places.of);
        gather_free(gather);
        serve_refuse(serve, &err);
        return;
    }
    if (gather) {
        serve->transfers->counts->bytes_out += serve->stream_bytes;
        serve->remote->counts.bytes_served += serve->stream_bytes;
        serve->record.bytes_done = serve->stream_bytes;
    }
    wire_ref_from(&serve->ref, &ref);
    layout_to_wire(serve->packed, false, serve->remote->peer->tensor_runs ? &rows : NULL, &tensors);
    meta.transfer = serve->number;
    meta.ref = &ref;
    meta.version = serve->version;
    meta.metadata = (ProtobufCBinaryData){object->tail.metadata_bytes, (uint8_t *)object_metadata(object)};
    meta.box_bytes = object->tail.box_bytes;
    meta.tensors = &tensors;
    meta.bytes = serve->stream_bytes;
    meta.transport = (char *)object_transport(object);
    meta.memory = object_n_places(object) > 0 ? (char *)object_region(object, 0)->kind->name : (char *)"host";
    /* No reader gets a key to the arena, to imported memory, or to a replica that is being filled. */
    meta.contiguous = !object->memory.chunk && !object_slow_owner(object, serve->source) && all_contiguous(serve->source) &&
                      !(serve->replica && serve->replica->filling);
    if (object->producer && !serve->replica && !list_empty(&serve->transfers->groups->all))
        meta.producer = object->producer->name;
    meta.snapshot = object_is_constant(object);
    meta.visibility = object->access.visibility;
    if (places.n > 0)
        meta.memory = places.rows[0].memory;
    if (!on_device && !serve->request.select)
        add_replica_entry(serve, object, &meta);
    more = serve->request.wish != WISH_METADATA && !meta.has_inline && meta.redirect_node.len == 0;
    if (serve->request.wish == WISH_METADATA || meta.has_inline)
        text_copy(serve->record.path, sizeof serve->record.path, serve->request.wish == WISH_METADATA ? "metadata" : "inline");
    status = serve_send(serve, RDT_PEER_PULL_META, &meta.base, &err);
    free(places.of);
    gather_free(gather);
    if (status != RDT_OK)
        serve_refuse(serve, &err);
    else if (!more)
        serve_end(serve);
}

/* ---- room in the link ---- */

static bool link_is_full(const struct remote *remote)
{
    return !remote->transfers->closing && peer_queued_bytes(remote->peer) + remote->answers.reading_bytes >= ANSWERS_BYTES;
}

static void answer_now(struct serve *serve)
{
    if (answer_has_bytes(serve))
        answer_with_bytes(serve);
    else
        answer(serve, NULL);
}

/* The ping is queued behind the answers, so its own answer says that the node has read them. */
static void hold(struct serve *serve)
{
    struct remote *remote = serve->remote;

    list_append(&remote->answers.held, &serve->held);
    if (!remote->ping.due)
        remote_ping(remote);
}

/* The object may have been freed by force meanwhile, and the reader's node must not be noted for a replica then. */
static void answer_later(struct serve *serve)
{
    struct rdt_error err;

    if (!serve->object->access.forced) {
        answer_now(serve);
        return;
    }
    (void)object_error_ended(OBJECT_END_FREED, serve->ref.id, (int)serve->ref.id_bytes, &err);
    serve_refuse(serve, &err);
}

/* A client can hold up the threads that read its memory. Its answers lose their room then, so that those of other users do not
 * wait for them. */
static void forget_reading(struct remote_answers *answers)
{
    if (answers->reading_bytes == 0 || uv_hrtime() - answers->reading_since_ns < READING_NS)
        return;
    answers->reading_bytes = 0;
    atomic_fetch_add(&answers->round, 1);
}

static bool answer_some(struct slice *slice, uint64_t until_ns)
{
    struct remote *remote = container_of(slice, struct remote, answers.slice);

    forget_reading(&remote->answers);
    while (!list_empty(&remote->answers.held) && !link_is_full(remote)) {
        struct serve *serve = container_of(list_first(&remote->answers.held), struct serve, held);
        list_remove(&serve->held);
        answer_later(serve);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    if (!list_empty(&remote->answers.held) && !remote->ping.due)
        remote_ping(remote);
    return true;
}

void serve_answer_held(struct remote *remote)
{
    if (list_empty(&remote->answers.held))
        return;
    remote->answers.slice.run = answer_some;
    slice_begin(remote_slices(remote), &remote->answers.slice);
}

void serve_answer(struct serve *serve, struct object *object)
{
    struct rdt_error err = {0};
    enum rdt_status status;

    if (!is_checked(serve, object))
        return;
    serve->record.began_ns = uv_hrtime();
    if (!object_peer_hold(object)) {
        (void)rdt_error_set(&err, RDT_NO_MEMORY, "no memory to serve object \"%s\"", serve->ref.id);
        serve_refuse(serve, &err);
        return;
    }
    serve->object = object;
    if (!serve->replica)
        object_ref(object, &serve->ref);
    serve->record.ref = serve->ref;
    if (serve->sm.state == SERVE_PARKED)
        serve_set_state(serve, SERVE_OFFERED);
    status = object_layout(object, serve->request.slice, &serve->source, &err);
    if (status == RDT_OK && serve->request.select) {
        struct layout *all = serve->source;
        serve->source = NULL;
        status = layout_select(all, serve->request.select, serve->request.n_select, &serve->source, &err);
        free(all);
    }
    if (status == RDT_OK)
        status = layout_packed(serve->source, &serve->packed, &serve->stream_bytes, &err);
    serve->record.bytes = serve->stream_bytes;
    serve->transfers->load.serving_bytes += serve->stream_bytes;
    if (status != RDT_OK)
        serve_refuse(serve, &err);
    else if (link_is_full(serve->remote) || !list_empty(&serve->remote->answers.held))
        hold(serve);
    else
        answer_now(serve);
}
