/* SPDX-License-Identifier: Apache-2.0 */
/* PUT and READY. A PUT creates an object from the client's memory, or a snapshot of that memory, in one round trip whatever
 * the number of tensors. READY ends the pending state of an object. */
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/calls/call.h"
#include "daemon/objects/snapshot.h"
#include "daemon/persist/storage.h"
#include "daemon/rpc/rpc.h"
#include "daemon/rpc/rpc_read.h"
#include "proto/boxes.h"
#include "rdt_put_flags.h"
#include "wire_ref.h"

#define MAX_REGIONS 4096u
#define DETACHED_TTL_NS UINT64_C(600000000000) /* time to live of a detached object whose put does not say one */

/* ---- layout and content, on any thread ---- */

void put_digest_make(struct put_digest *digest, const Rdt__Pb__Put *message)
{
    struct object_put put = {.metadata = message->metadata.data,
                             .metadata_bytes = message->metadata.len,
                             .n_regions = (uint32_t)message->n_regions,
                             .inline_data = message->inline_data.data,
                             .inline_bytes = message->inline_data.len};

    *digest = (struct put_digest){.status = RDT_OK};
    digest->status = layout_from_wire(message->tensors, &digest->layout, &digest->err);
    put.layout = digest->layout;
    if (digest->status == RDT_OK && message->box_bytes > message->metadata.len)
        digest->status = rdt_error_set(&digest->err, RDT_INVALID, "the boxes are longer than the metadata that contains them");
    if (digest->status == RDT_OK && message->box_bytes > 0)
        digest->status = boxes_check(message->metadata.data + message->metadata.len - message->box_bytes, message->box_bytes,
                                     digest->layout, &digest->err);
    if (digest->status == RDT_OK)
        digest->status = object_content_init(&digest->content, &put, &digest->err);
}

void put_digest_fini(struct put_digest *digest)
{
    free(digest->layout);
    object_content_fini(&digest->content);
}

/* ---- checks ---- */

/* Checks that every tensor lies within its region. */
static enum rdt_status check_places(const Rdt__Pb__Put *message, const struct region_span *spans, struct region **regions,
                                    struct rdt_error *err)
{
    for (size_t i = 0; i < message->n_regions; i++)
        if (spans[i].hi > regions[i]->bytes)
            return rdt_error_set(err, RDT_INVALID, "tensor %u ends at byte %llu of region %llu, which has %llu", spans[i].last,
                                 (unsigned long long)spans[i].hi, (unsigned long long)regions[i]->id,
                                 (unsigned long long)regions[i]->bytes);
    return RDT_OK;
}

/* Checks that the preferred transport is loaded and moves the memory of every tensor. Tensors inside the message are
 * in host memory. */
static enum rdt_status check_transport(const struct call *call, const Rdt__Pb__Put *message, struct region **regions,
                                       const char **name_p, struct rdt_error *err)
{
    const char *name = message->transport;
    struct transport *transport;
    char loaded[192];

    *name_p = "";
    if (name[0] == '\0')
        return RDT_OK;
    transport = plugins_transport(call->rpc->plugins, name);
    if (!transport) {
        plugins_transport_names(call->rpc->plugins, loaded, sizeof loaded);
        return rdt_error_set(err, RDT_UNSUPPORTED, "transport \"%.64s\" is not loaded; loaded: %s", name, loaded);
    }
    for (size_t i = 0; i < message->n_regions; i++)
        if (!transport_moves(transport, regions[i]->kind->name))
            return rdt_error_set(err, RDT_UNSUPPORTED, "transport %s does not move %s memory", transport->name,
                                 regions[i]->kind->name);
    if (message->inline_data.len > 0 && !transport_moves(transport, "host"))
        return rdt_error_set(err, RDT_UNSUPPORTED, "transport %s does not move host memory", transport->name);
    *name_p = transport->name;
    return RDT_OK;
}

static enum rdt_status find_regions(struct call *call, const Rdt__Pb__Put *message, struct region **regions,
                                    struct rdt_error *err)
{
    for (size_t i = 0; i < message->n_regions; i++) {
        const Rdt__Pb__RegionUse *use = message->regions[i];
        enum rdt_status status = client_region(call->client, use->region, use->generation, &regions[i], err);
        if (status != RDT_OK)
            return status;
    }
    for (size_t i = 0; i < message->n_given; i++)
        if (message->given[i] >= message->n_regions)
            return rdt_error_set(err, RDT_INVALID, "the message hands over region %u, but names only %zu", message->given[i],
                                 message->n_regions);
    return RDT_OK;
}

/* Only host memory that the client got by ALLOC can be loaned, because no other process writes there. */
static enum rdt_status check_loaned(const Rdt__Pb__Put *message, struct region **regions, struct rdt_error *err)
{
    for (size_t i = 0; i < message->n_loaned; i++) {
        uint32_t at = message->loaned[i];
        if (at >= message->n_regions || (i > 0 && at <= message->loaned[i - 1]))
            return rdt_error_set(err, RDT_INVALID,
                                 "the message loans region %u of %zu: name each loaned region once, in ascending order", at,
                                 message->n_regions);
        if (regions[at]->origin != REGION_ALLOCATED || !region_is_host(regions[at]))
            return rdt_error_set(err, RDT_INVALID, "region %llu cannot be loaned: only host memory from ALLOC can be",
                                 (unsigned long long)regions[at]->id);
    }
    return RDT_OK;
}

/* The put is done whether or not its object can be stored: rdt_store tells its caller. */
static void begin_to_store(struct call *call, struct object *object)
{
    struct rdt_error why;

    if (storage_store_soon(call->rpc->storage, object, &why) == RDT_OK)
        return;
    call->rpc->counts->stores_failed++;
    log_debug("obj %016llx of uid %u is not stored: %s", (unsigned long long)object->generation, object->account->owner.uid,
              why.msg);
}

static void reply_ref(struct call *call, const struct rdt_ref *ref)
{
    Rdt__Pb__PutReply reply = RDT__PB__PUT_REPLY__INIT;
    Rdt__Pb__Ref wire;

    wire_ref_from(ref, &wire);
    reply.ref = &wire;
    call_reply(call, &reply.base, NULL, 0);
}

/* The object may have been replaced, or evicted, meanwhile: it was put all the same. */
static void on_removed(struct call *call, void *of)
{
    struct rdt_ref *ref = of;

    if (call)
        reply_ref(call, ref);
    free(ref);
}

/* Waits until the file of the object that it replaces is gone: the next daemon would have that one again. */
static void answer(struct call *call, struct object *object)
{
    struct rdt_ref ref, *kept;

    if (call->put.stores)
        begin_to_store(call, object);
    call_note_answer(call, object->generation, 0, 0);
    if (call->client)
        call->client->rpc.put_bytes += object->bytes;
    object_ref(object, &ref);
    kept = object->access.took_file ? malloc(sizeof *kept) : NULL;
    if (kept) {
        *kept = ref;
        if (call_await_removals(call, 0, on_removed, kept))
            return;
        free(kept);
    }
    reply_ref(call, &ref);
}

/* Answers a PUT whose object an earlier daemon recorded, but whose answer was lost with that daemon. false: it is another. */
static bool answer_again(struct call *call, const Rdt__Pb__Put *message, struct rdt_error *err)
{
    uint64_t generation = (uintptr_t)map_get_u64(&call->client->session.answers, call->request_id);
    struct object *object = generation != 0 ? index_get(&call->rpc->objects->by_generation, generation) : NULL;

    if (generation == 0)
        return false;
    for (size_t i = 0; i < message->n_given; i++) { /* they belong to the object, even if their records did not say so yet */
        const Rdt__Pb__RegionUse *use = message->given[i] < message->n_regions ? message->regions[message->given[i]] : NULL;
        struct region *region = use ? map_get_u64(&call->client->regions, use->region) : NULL;
        if (!region)
            continue;
        client_forget_region(call->client, region);
        region_unref(region);
    }
    if (object)
        answer(call, object);
    else
        (void)rdt_error_set(err, RDT_FREED, "the object of this put has been freed meanwhile");
    return true;
}

/* ---- snapshots ---- */

static void on_snapshot(void *arg, struct object *object, const struct rdt_error *err)
{
    struct call *call = arg;

    call->on_end = NULL;
    if (err)
        call_fail(call, err);
    else
        answer(call, object);
}

static void on_end(struct call *call)
{
    snapshot_abandon(call->waiting, call->client->conn.gone ? OBJECT_END_OWNER_DIED : OBJECT_END_FREED);
}

static enum rdt_status fill(struct call *call, const Rdt__Pb__Put *message, struct object *object, const bool *given,
                            struct rdt_error *err)
{
    struct snapshot *snapshot;
    enum rdt_status status;

    call->put.handed_over = message->n_given > 0;
    for (size_t i = 0; i < message->n_given; i++) { /* they belong to the daemon now, even if the put fails */
        struct region *region = map_remove_u64(&call->client->regions, message->regions[message->given[i]]->region);
        if (region)
            region->client = 0;
        region_unref(region);
    }
    status = snapshot_start(call->rpc->regions, object, given,
                            message->timeout_ns > 0 && message->n_regions > 0 ? call->client : NULL, on_snapshot, call,
                            &snapshot, err);
    if (status == RDT_OK)
        answer(call, object);
    if (status != RDT_AGAIN)
        return status;
    call->waiting = snapshot;
    status = call_defer(call, message->timeout_ns > 0 ? message->timeout_ns : -1, on_end, err);
    if (status != RDT_OK)
        snapshot_abandon(snapshot, OBJECT_END_FREED);
    return status;
}

/* ---- the request ---- */

int64_t put_ttl_of(const struct call *call, uint32_t flags, int64_t ttl_ns)
{
    if (!(flags & RDT_PUT_DETACHED))
        return flags & RDT_PUT_EVICTABLE ? ttl_ns : 0;
    if (ttl_ns > 0)
        return ttl_ns;
    return (int64_t)(call->rpc->options->detached_max_ns < DETACHED_TTL_NS ? call->rpc->options->detached_max_ns
                                                                           : DETACHED_TTL_NS);
}

enum rdt_status put_check_ttl(const struct call *call, uint32_t flags, int64_t ttl_ns, struct rdt_error *err)
{
    if (ttl_ns < 0)
        return rdt_error_set(err, RDT_INVALID, "the time to live of an object must not be negative");
    if (ttl_ns > 0 && !(flags & (RDT_PUT_DETACHED | RDT_PUT_EVICTABLE)))
        return rdt_error_set(err, RDT_INVALID, "only DETACHED and EVICTABLE objects have a time to live");
    if ((uint64_t)ttl_ns > call->rpc->options->detached_max_ns)
        return rdt_error_set(err, RDT_LIMIT, "a time to live of %.3f s is above detached_ttl_max, %.3f s", (double)ttl_ns / 1e9,
                             (double)call->rpc->options->detached_max_ns / 1e9);
    return RDT_OK;
}

/* Whether the object becomes live only after the daemon has looked for a cancel by its client, because a put that timed out was
 * never put. That is so for librdt's copies; memory that the caller itself promises not to write is live at once. */
static bool may_be_given_up(const Rdt__Pb__Put *message)
{
    return message->n_loaned > 0 && message->n_loaned == message->n_regions && message->timeout_ns > 0;
}

static enum rdt_status check_replaces(const Rdt__Pb__Put *message, struct rdt_error *err)
{
    if (!(message->flags & RDT_PUT_REPLACE))
        return RDT_OK;
    if (message->id.len == 0)
        return rdt_error_set(err, RDT_INVALID, "a put that REPLACEs an object needs an id");
    if (message->flags & RDT_PUT_STORED)
        return rdt_error_set(err, RDT_INVALID,
                             "a STORED object cannot REPLACE another one, because the disk would have neither of them for a "
                             "moment: publish it under a name, whose earlier version stays until the new one is stored");
    return RDT_OK;
}

enum rdt_status put_check_evictable(uint32_t flags, uint32_t priority, struct rdt_error *err)
{
    if (priority > RDT_PRIORITY_MOST || (priority > 0 && !(flags & RDT_PUT_EVICTABLE)))
        return rdt_error_set(err, RDT_INVALID, "priority %u is above %u, or the object is not EVICTABLE", priority,
                             RDT_PRIORITY_MOST);
    if (flags & RDT_PUT_EVICTABLE && (!(flags & RDT_PUT_SNAPSHOT) || flags & (RDT_PUT_PENDING | RDT_PUT_STORED)))
        return rdt_error_set(err, RDT_INVALID, "only a SNAPSHOT that is neither PENDING nor STORED can be EVICTABLE");
    return RDT_OK;
}

static enum rdt_status check_on_host(const Rdt__Pb__Put *message, struct region *const *regions, struct rdt_error *err)
{
    for (size_t i = 0; message->flags & RDT_PUT_EVICTABLE && i < message->n_regions; i++)
        if (!region_is_host(regions[i]))
            return rdt_error_set(
                err, RDT_UNSUPPORTED,
                "an EVICTABLE object lies in host memory, and region %llu is on a device: copy its tensors first",
                (unsigned long long)regions[i]->id);
    return RDT_OK;
}

static enum rdt_status check_stored(const struct call *call, const Rdt__Pb__Put *message, struct rdt_error *err)
{
    if (!(message->flags & RDT_PUT_STORED))
        return RDT_OK;
    if (!(message->flags & RDT_PUT_SNAPSHOT) || message->flags & RDT_PUT_PENDING)
        return rdt_error_set(err, RDT_INVALID, "only a SNAPSHOT that is not PENDING can be STORED");
    if (call->rpc->options->storage_dir[0] == '\0')
        return rdt_error_set(err, RDT_UNSUPPORTED, "this daemon stores no objects: set storage_dir in [daemon] of rdtd.conf");
    return RDT_OK;
}

/* Older clients sent a memfd that they had filled and sealed (field 12 of Put). After this answer they put the same tensors in
 * another way. */
static enum rdt_status check_no_fds(const struct call *call, struct rdt_error *err)
{
    unsigned n = call->request.frame ? call->request.frame->nfds : 0;

    if (n == 0)
        return RDT_OK;
    return rdt_error_set(err, RDT_INVALID,
                         "a PUT carries no descriptors, and this one has %u: the tensors lie in the message, or in regions of "
                         "ALLOC or IMPORT",
                         n);
}

static enum rdt_status put(struct call *call, const Rdt__Pb__Put *message, struct put_digest *digest, struct region **regions,
                           bool *given, struct rdt_error *err)
{
    bool evictable = message->flags & RDT_PUT_EVICTABLE;
    struct object_put put = {.account = evictable ? account_owner(call->account) : call->account,
                             .eviction = evictable ? EVICTION_ALLOWED : EVICTION_NEVER,
                             .priority = message->priority,
                             .id = message->id.data,
                             .id_bytes = message->id.len,
                             .metadata = message->metadata.data,
                             .metadata_bytes = message->metadata.len,
                             .box_bytes = message->box_bytes,
                             .regions = regions,
                             .n_regions = (uint32_t)message->n_regions,
                             .inline_data = message->inline_data.data,
                             .inline_bytes = message->inline_data.len,
                             .visibility = message->visibility,
                             .producer = call->client,
                             .ttl_ns = put_ttl_of(call, message->flags, message->ttl_ns),
                             .pending = message->flags & RDT_PUT_PENDING,
                             .sum = message->sum,
                             .layout = digest->layout,
                             .content = &digest->content,
                             .promise = object_promise_of(message->flags),
                             .kept = object_promise_of(message->flags) == OBJECT_BY_WORD && !may_be_given_up(message),
                             .id_use = message->flags & RDT_PUT_REPLACE ? ID_IS_TAKEN : ID_MUST_BE_FREE,
                             .loaned = message->n_loaned > 0 && message->n_loaned == message->n_regions,
                             .request_id = call->request_id,
                             .loans = message->loaned,
                             .n_loans = message->n_loaned};
    struct object *object;
    enum rdt_status status = find_regions(call, message, regions, err);

    if (status == RDT_OK)
        status = check_loaned(message, regions, err);
    if (status == RDT_OK)
        status = check_on_host(message, regions, err);
    if (status == RDT_OK)
        status = check_transport(call, message, regions, &put.transport, err);
    if (status == RDT_OK && digest->status != RDT_OK)
        status = rdt_error_set(err, digest->status, "%s", digest->err.msg);
    if (status == RDT_OK)
        status = check_places(message, digest->content.spans, regions, err);
    /* the answer waits until the bytes have been copied */
    if (status == RDT_OK && put.promise != OBJECT_MAY_CHANGE && !put.kept && put.n_regions > 0 && !call_may_wait(call, err))
        status = RDT_LIMIT;
    if (status != RDT_OK)
        return status;
    for (size_t i = 0; i < message->n_given; i++)
        given[message->given[i]] = snapshot_may_take_over(regions[message->given[i]]);
    status = object_table_put(call->rpc->objects, &put, &object, err);
    if (status != RDT_OK)
        return status;
    digest->layout = NULL; /* the object has taken it */
    for (size_t i = 0; i < message->n_loaned; i++)
        region_set_state(regions[message->loaned[i]], REGION_LOANED);
    if (object->state == OBJECT_FILLING && !object->pending)
        return fill(call, message, object, given, err);
    answer(call, object);
    return RDT_OK;
}

enum rdt_status rpc_put(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Put *message = request;
    struct put_digest here;
    struct region **regions;
    enum rdt_status status;
    bool *given;

    call->put.stores = message->flags & RDT_PUT_STORED;
    if (map_count(&call->client->session.answers) > 0 && answer_again(call, message, err))
        return err->status;
    if (message->id.len > RDT_MAX_ID_BYTES)
        return rdt_error_set(err, RDT_INVALID, "the id has %zu bytes: at most %u are allowed", message->id.len,
                             RDT_MAX_ID_BYTES);
    if (message->metadata.len > RDT_MAX_METADATA_BYTES)
        return rdt_error_set(err, RDT_LIMIT, "the metadata has %zu bytes: at most %u are allowed", message->metadata.len,
                             RDT_MAX_METADATA_BYTES);
    if (message->inline_data.len > RDT_INLINE_MAX_BYTES)
        return rdt_error_set(err, RDT_LIMIT, "the tensors in the message have %zu bytes: it may carry at most %u",
                             message->inline_data.len, RDT_INLINE_MAX_BYTES);
    if (message->n_regions > MAX_REGIONS)
        return rdt_error_set(err, RDT_LIMIT, "the tensors are in %zu regions: at most %u are possible", message->n_regions,
                             MAX_REGIONS);
    if (message->n_given > 0 && !(message->flags & RDT_PUT_SNAPSHOT))
        return rdt_error_set(err, RDT_INVALID, "regions can be handed over only for snapshots");
    if (message->n_given > message->n_regions)
        return rdt_error_set(err, RDT_INVALID, "the message hands over %zu regions, but names only %zu", message->n_given,
                             message->n_regions);
    if (message->n_loaned > 0 && ((message->flags & ~(uint32_t)(RDT_PUT_IMMUTABLE | RDT_PUT_DETACHED | RDT_PUT_REPLACE)) != 0 ||
                                  message->visibility != RDT__PB__VISIBILITY__VISIBILITY_OWNER))
        return rdt_error_set(err, RDT_INVALID,
                             "regions can be loaned only to objects that only their owner may see, and that have no flags but "
                             "IMMUTABLE, DETACHED and REPLACE");
    if (message->flags & RDT_PUT_PENDING && (message->inline_data.len > 0 || message->n_given > 0))
        return rdt_error_set(err, RDT_INVALID, "a PENDING put must not have tensors in the message or hand over regions");
    if (message->flags & ~(uint32_t)RDT_PUT_FLAGS_ALL || (unsigned)message->visibility > RDT__PB__VISIBILITY__VISIBILITY_ALL)
        return rdt_error_set(err, RDT_INVALID, "unknown flags %u or visibility %d", message->flags, (int)message->visibility);
    status = put_check_ttl(call, message->flags, message->ttl_ns, err);
    if (status == RDT_OK)
        status = put_check_evictable(message->flags, message->priority, err);
    if (status == RDT_OK)
        status = check_stored(call, message, err);
    if (status == RDT_OK)
        status = check_replaces(message, err);
    if (status == RDT_OK)
        status = check_no_fds(call, err);
    if (status != RDT_OK)
        return status;
    regions = calloc(message->n_regions + 1, sizeof *regions);
    given = calloc(message->n_regions + 1, sizeof *given);
    if (!regions || !given) {
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the put");
    } else if (call->request.digest) {
        status = put(call, message, call->request.digest, regions, given, err);
    } else {
        put_digest_make(&here, message);
        status = put(call, message, &here, regions, given, err);
        put_digest_fini(&here);
    }
    free(regions);
    free(given);
    return status;
}

/* ---- READY: the end of the pending state ---- */

/* Returns the pending object that the caller has put; NULL, with err: another client has put it, or it is not pending. */
static struct object *find_pending(struct call *call, const Rdt__Pb__Ready *message, struct rdt_error *err)
{
    struct object *object;
    struct rdt_ref ref;
    enum rdt_status status;

    if (call_object_ref(message->ref, &ref, err) != RDT_OK)
        return NULL;
    status = object_table_find_any(call->rpc->objects, &ref, &call->account->owner, false, &object, err);
    if (status == RDT_AGAIN)
        (void)rdt_error_set(err, RDT_NOT_FOUND, "object \"%s\" was not put", ref.id);
    if (status != RDT_OK)
        return NULL;
    if (object->producer == call->client && object->state == OBJECT_FILLING && object->pending)
        return object;
    (void)rdt_error_set(err, RDT_NOT_FOUND, "object \"%s\" is not pending, or another client put it", ref.id);
    return NULL;
}

static void on_late_snapshot(void *arg, struct object *object, const struct rdt_error *err)
{
    /* the fetches that wait for the object get the error */
}

enum rdt_status rpc_ready(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Ready *message = request;
    struct object *object = find_pending(call, message, err);
    struct snapshot *snapshot;
    struct rdt_error why = {0};

    if (!object)
        return err->status;
    if (message->status != RDT_OK) {
        (void)wire_error(message->status, 0, message->message[0] ? message->message : "its producer could not write it", &why);
        object_fail(object, &why);
    } else if (object->changes.promise == OBJECT_SEALED && object->memory.layout) {
        (void)snapshot_start(call->rpc->regions, object, NULL, NULL, on_late_snapshot, NULL, &snapshot, &why);
    } else if (object_prepare_id(object, &why) == RDT_OK) {
        object_ready(object);
        object_take_id(object);
    } else {
        object_fail(object, &why);
    }
    call_reply_empty(call);
    return RDT_OK;
}
