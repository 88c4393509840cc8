/* SPDX-License-Identifier: Apache-2.0 */
/* STORE and SCRUB, and the answers of requests that remove stored objects. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/persist/storage.h"
#include "daemon/rpc/rpc.h"

struct storing {
    struct storage_waiter waiter;
    struct call *call;
    uint64_t generation, version;
};

static void answer(struct call *call, uint64_t generation, uint64_t version)
{
    Rdt__Pb__StoreReply reply = RDT__PB__STORE_REPLY__INIT;
    char file[PATH_MAX + 64];

    (void)snprintf(file, sizeof file, "%s/%016" PRIx64 ".safetensors", call->rpc->storage->directory, generation);
    reply.file = file;
    reply.version = version;
    call_reply(call, &reply.base, NULL, 0);
}

static void storing_end(struct call *call)
{
    struct storing *storing = call->waiting;

    list_remove(&storing->waiter.link);
    free(storing);
    call->waiting = NULL;
}

static void on_done(struct storage_waiter *waiter, const struct rdt_error *err)
{
    struct storing *storing = container_of(waiter, struct storing, waiter);
    struct call *call = storing->call;
    uint64_t generation = storing->generation, version = storing->version;

    call->on_end = NULL;
    call->waiting = NULL;
    free(storing);
    if (err)
        call_fail(call, err);
    else
        answer(call, generation, version);
}

/* Finds the object of the ref; for a name, that of its newest version. */
static enum rdt_status find(struct call *call, const struct rdt_ref *ref, struct object **object_p, uint64_t *version_p,
                            struct rdt_error *err)
{
    const struct owner *requester = &call->account->owner;
    enum rdt_status status;

    *version_p = 0;
    status = ref->is_name ? names_find(call->rpc->names, ref, requester, object_p, version_p, err)
                          : object_table_find_any(call->rpc->objects, ref, requester, call->admin, object_p, err);
    if (status == RDT_AGAIN && ref->is_name)
        return rdt_error_set(err, RDT_NOT_FOUND,
                             "no version of the name \"%s\" above %" PRIu64 " is published, or it is hidden", ref->id,
                             ref->after);
    if (status == RDT_AGAIN)
        return object_table_not_put(ref, requester, err);
    if (status == RDT_OK && !call_may_see(call, &(*object_p)->account->owner))
        return rdt_error_set(err, RDT_DENIED, "object \"%s\" belongs to uid %u: only that user or root may store it", ref->id,
                             (*object_p)->account->owner.uid);
    return status;
}

static enum rdt_status wait(struct call *call, const struct object *object, uint64_t version, int64_t timeout_ns,
                            struct rdt_error *err)
{
    struct storing *storing = calloc(1, sizeof *storing);
    enum rdt_status status;

    if (!storing)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for the disk");
    storing->waiter.on_done = on_done;
    storing->call = call;
    storing->generation = object->generation;
    storing->version = version;
    list_init(&storing->waiter.link);
    if (!storage_wait(call->rpc->storage, object, &storing->waiter)) {
        free(storing);
        answer(call, object->generation, version);
        return RDT_OK;
    }
    call->waiting = storing;
    status = call_defer(call, timeout_ns, storing_end, err);
    if (status != RDT_OK)
        storing_end(call);
    return status;
}

enum rdt_status rpc_store(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Store *message = request;
    struct object *object;
    struct rdt_ref ref;
    uint64_t version;
    enum rdt_status status = call_ref(message->ref, &ref, err);

    if (status != RDT_OK)
        return status;
    if (call_is_remote(call, &ref))
        return call_forward(call, &ref, &message->base, message->timeout_ns, err);
    status = find(call, &ref, &object, &version, err);
    if (status == RDT_OK)
        status = storage_store(call->rpc->storage, object, err);
    return status == RDT_OK ? wait(call, object, version, message->timeout_ns, err) : status;
}

/* ---- scrubs ---- */

struct scrubbing {
    struct storage_scrub scrub; /* first */
    struct call *call;
};

static void on_scrubbed(struct storage_scrub *scrub)
{
    struct scrubbing *scrubbing = (struct scrubbing *)scrub;
    Rdt__Pb__ScrubReply reply = RDT__PB__SCRUB_REPLY__INIT;
    struct call *call = scrubbing->call;

    reply.checked = scrub->checked;
    reply.damaged = scrub->damaged;
    reply.without_sums = scrub->without_sums;
    reply.failed = scrub->failed;
    reply.bytes = scrub->bytes;
    free(scrubbing);
    call->on_end = NULL;
    call->waiting = NULL;
    call_reply(call, &reply.base, NULL, 0);
}

static void scrubbing_end(struct call *call)
{
    storage_scrub_stop(call->rpc->storage);
    free(call->waiting);
    call->waiting = NULL;
}

enum rdt_status rpc_scrub(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Scrub *message = request;
    struct scrubbing *scrubbing = calloc(1, sizeof *scrubbing);
    enum rdt_status status;

    if (!scrubbing)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a scrub");
    scrubbing->scrub.on_done = on_scrubbed;
    scrubbing->call = call;
    status = storage_scrub(call->rpc->storage, &scrubbing->scrub, err);
    if (status != RDT_OK) {
        free(scrubbing);
        return status;
    }
    call->waiting = scrubbing;
    status = call_defer(call, message->timeout_ns, scrubbing_end, err);
    if (status != RDT_OK)
        scrubbing_end(call);
    return status;
}

/* ---- removals ---- */

struct removing {
    struct storage_barrier barrier; /* first */
    struct call *call;
    void (*then)(struct call *call, void *of);
    void *of;
};

static void removing_end(struct call *call)
{
    struct removing *removing = call->waiting;

    removing->barrier.abandoned = true;
    call->waiting = NULL;
}

static void on_removed(struct storage_barrier *barrier)
{
    struct removing *removing = (struct removing *)barrier;
    struct call *call = barrier->abandoned ? NULL : removing->call;
    void (*then)(struct call *, void *) = removing->then;
    void *of = removing->of;

    free(removing);
    if (call) {
        call->on_end = NULL;
        call->waiting = NULL;
    }
    then(call, of);
}

/* If the call cannot wait, it is answered at once, because its work is done. */
bool call_await_removals(struct call *call, uint64_t generation, void (*then)(struct call *call, void *of), void *of)
{
    struct removing *removing = call->request_id != 0 || call->peer ? calloc(1, sizeof *removing) : NULL;
    struct rdt_error err;

    if (!removing || !call_may_wait(call, &err) || call_defer(call, -1, NULL, &err) != RDT_OK) {
        free(removing);
        return false;
    }
    *removing = (struct removing){.barrier.on_done = on_removed, .call = call, .then = then, .of = of};
    if (!storage_barrier(call->rpc->storage, generation, &removing->barrier)) {
        free(removing);
        return false;
    }
    call->waiting = removing;
    call->on_end = removing_end;
    return true;
}

static void reply_empty(struct call *call, void *of)
{
    if (call)
        call_reply_empty(call);
}

void call_reply_removed(struct call *call, uint64_t generation)
{
    if (!call_await_removals(call, generation, reply_empty, NULL))
        call_reply_empty(call);
}
