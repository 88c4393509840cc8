/* SPDX-License-Identifier: Apache-2.0 */
/* PUBLISH_MANY: many names, which have their next versions in one turn of the loop.
 *
 * The homes of all names that are new here are asked at the same time, so that publishing them takes one round of questions.
 * The request is dispatched again when all have answered. Then every claim is held, or one is lost and nothing is published. */
#include <stdlib.h>
#include <string.h>

#include "daemon/calls/call.h"
#include "daemon/rpc/rpc.h"
#include "proto/wire_limits.h"
#include "wire_ref.h"

#define VERSION_BYTES 10u /* the most that a version takes in the answer, and more than the answer has besides */

struct claiming;

struct claim {
    struct claim_waiter waiter;
    struct claiming *claiming;
};

struct claiming { /* call->waiting, from the first question to the end of the call */
    struct call *call;
    unsigned n, n_asked;
    struct claim claims[];
};

static void on_end(struct call *call)
{
    struct claiming *claiming = call->waiting;

    for (unsigned i = 0; claiming && i < claiming->n; i++)
        claim_waiter_remove(&claiming->claims[i].waiter);
    free(claiming);
    call->waiting = NULL;
}

static void on_decided(struct claim_waiter *waiter)
{
    struct claiming *claiming = container_of(waiter, struct claim, waiter)->claiming;
    struct call *call = claiming->call;

    if (--claiming->n_asked > 0)
        return;
    deadline_unset(call->rpc->deadlines, &call->deadline); /* it was for the homes only */
    call->rpc->above.dispatch(call, call->copy.packed, call->copy.packed_bytes);
}

static enum rdt_status claiming_create(struct call *call, unsigned n, struct rdt_error *err)
{
    struct claiming *claiming = call->waiting;

    if (claiming)
        return RDT_OK;
    claiming = calloc(1, sizeof *claiming + n * sizeof claiming->claims[0]);
    if (!claiming)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to publish %u names", n);
    claiming->call = call;
    claiming->n = n;
    for (unsigned i = 0; i < n; i++) {
        claiming->claims[i].claiming = claiming;
        claiming->claims[i].waiter.on_decided = on_decided;
        list_init(&claiming->claims[i].waiter.link);
    }
    call->waiting = claiming;
    return RDT_OK;
}

/* AGAIN: the homes are being asked, and the call is dispatched again. */
static enum rdt_status claim_all(struct call *call, const struct name_publish *publishes, unsigned n, struct rdt_error *err)
{
    struct claiming *claiming;
    enum rdt_status status = claiming_create(call, n, err);

    if (status != RDT_OK)
        return status;
    claiming = call->waiting;
    claiming->n_asked = 0;
    for (unsigned i = 0; i < n; i++) {
        status = directory_names_claim(call->rpc->directory_names, &publishes[i].object->account->owner, publishes[i].id,
                                       publishes[i].id_bytes, &claiming->claims[i].waiter, err);
        if (status == RDT_AGAIN)
            claiming->n_asked++;
        else if (status != RDT_OK)
            return status;
    }
    if (claiming->n_asked == 0)
        return RDT_OK;
    status = call_wait_for_claim(call, -1, err);
    call->on_end = on_end;
    return status == RDT_OK ? RDT_AGAIN : status;
}

/* ---- the request ---- */

static enum rdt_status check_names(const Rdt__Pb__PublishMany *message, size_t n, struct rdt_error *err)
{
    struct map seen;
    size_t at = 0;
    enum rdt_status status = RDT_OK;

    map_init(&seen);
    for (size_t i = 0; status == RDT_OK && i < n; i++) {
        uint32_t bytes = message->name_bytes[i];
        if (bytes == 0 || bytes > RDT_MAX_ID_BYTES || bytes > message->names.len - at)
            status = rdt_error_set(err, RDT_INVALID, "name %zu has %u bytes: it must have 1 to %u", i, bytes, RDT_MAX_ID_BYTES);
        else if (map_get(&seen, message->names.data + at, bytes))
            status = rdt_error_set(err, RDT_INVALID, "name %zu, \"%.*s\", occurs twice", i, (int)bytes,
                                   (const char *)message->names.data + at);
        else if (!map_put(&seen, message->names.data + at, bytes, (void *)message))
            status = rdt_error_set(err, RDT_NO_MEMORY, "no memory to publish %zu names", n);
        at += bytes;
    }
    map_fini(&seen);
    return status;
}

static enum rdt_status check(const struct call *call, const Rdt__Pb__PublishMany *message, struct rdt_error *err)
{
    size_t n = message->objects ? message->objects->n_id_bytes : 0;
    enum rdt_status status = ref_list_check(message->objects, err);

    if (status != RDT_OK)
        return status;
    if (n > RDT_MAX_PUBLISH_NAMES)
        return rdt_error_set(err, RDT_LIMIT, "the message publishes %zu names: at most %u are published at once", n,
                             RDT_MAX_PUBLISH_NAMES);
    if (message->n_name_bytes != n)
        return rdt_error_set(err, RDT_INVALID, "the message has %zu names and %zu objects", message->n_name_bytes, n);
    if ((unsigned)message->visibility > RDT__PB__VISIBILITY__VISIBILITY_ALL)
        return rdt_error_set(err, RDT_INVALID, "unknown visibility %d", (int)message->visibility);
    if (message->ttl_ns < 0)
        return rdt_error_set(err, RDT_INVALID, "the time to live is %lld ns: it must not be negative",
                             (long long)message->ttl_ns);
    if (call->rpc->intake.draining)
        return rdt_error_set(err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    if (call->rpc->intake.drained)
        return rpc_refuse_drained(err);
    return call->waiting ? RDT_OK : check_names(message, n, err); /* set: the homes have been asked about these names */
}

/* The object of name i. AGAIN: its bytes are still being written. */
static enum rdt_status find(struct call *call, const Rdt__Pb__PublishMany *message, size_t i, size_t at,
                            struct object **object_p, struct rdt_error *err)
{
    struct rdt_ref ref;
    enum rdt_status status = ref_list_get(message->objects, i, at, &ref, err);

    if (status == RDT_OK && ref.is_name)
        status = rdt_error_set(err, RDT_INVALID, "\"%s\" is a name: this request needs the ref of an object", ref.id);
    if (status == RDT_OK && call_is_remote(call, &ref))
        status =
            rdt_error_set(err, RDT_UNSUPPORTED, "object \"%s\" is on another node: publish it by itself, or there", ref.id);
    if (status != RDT_OK)
        return status;
    status = object_table_find_any(call->rpc->objects, &ref, &call->account->owner, call->admin, object_p, err);
    if (status == RDT_AGAIN)
        return object_table_not_put(&ref, &call->account->owner, err);
    if (status == RDT_OK)
        status = publish_check_object(call, &ref, *object_p, err);
    return status == RDT_OK && (*object_p)->state == OBJECT_FILLING ? RDT_AGAIN : status;
}

static uint64_t version_before(const struct call *call, size_t i)
{
    const struct client *client = call->client;

    return map_count(&client->session.answers) > 0 ? (uintptr_t)map_get_u64(&client->session.answers, call->request_id + i) : 0;
}

/* What an earlier daemon has published already keeps its version. heap: charged for the answer. */
static enum rdt_status publish_left(struct call *call, const struct name_publish *publishes, size_t n, uint64_t heap,
                                    struct rdt_error *err)
{
    Rdt__Pb__PublishManyReply reply = RDT__PB__PUBLISH_MANY_REPLY__INIT;
    struct name_publish *left = calloc(n + 1, sizeof *left);
    uint64_t *versions = calloc(n + 1, sizeof *versions);
    size_t n_left = 0;
    enum rdt_status status = left && versions ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory to publish %zu names", n);

    for (size_t i = 0; status == RDT_OK && i < n; i++)
        if (version_before(call, i) == 0)
            left[n_left++] = publishes[i];
    if (status == RDT_OK)
        status = names_publish_all(call->rpc->names, left, n_left, versions, err);
    if (status == RDT_OK) {
        for (size_t i = n; i-- > 0;) /* from the end: versions has those of `left` at its beginning */
            versions[i] = version_before(call, i) ? version_before(call, i) : versions[--n_left];
        reply.n_version = n;
        reply.version = versions;
        on_end(call);
        call->on_end = NULL;
        call_reply_reserved(call, &reply.base, heap);
    }
    free(left);
    free(versions);
    return status;
}

/* Nothing is published without room for the answer. */
static enum rdt_status publish_all(struct call *call, const struct name_publish *publishes, size_t n, struct rdt_error *err)
{
    uint64_t heap = (n + 1) * VERSION_BYTES;
    enum rdt_status status = account_take(call->account, USAGE_HEAP, heap, err);
    struct account *account;

    if (status != RDT_OK)
        return status;
    account = account_ref(call->account); /* the answer frees the call */
    status = publish_left(call, publishes, n, heap, err);
    account_give(account, USAGE_HEAP, heap);
    account_unref(account);
    return status;
}

/* Finds the objects, and holds each: the end of another name may drop the last hold. *n_p: how many are held. AGAIN: the bytes
 * of *filling_p are still being written. */
static enum rdt_status find_all(struct call *call, const Rdt__Pb__PublishMany *message, struct name_publish *publishes,
                                size_t *n_p, struct object **filling_p, struct rdt_error *err)
{
    bool lasts = call->client->session.lasting;
    size_t ref_at = 0, name_at = 0;

    for (*n_p = 0; *n_p < message->n_name_bytes; ++*n_p) {
        size_t i = *n_p;
        struct name_publish *publish = &publishes[i];
        enum rdt_status status = find(call, message, i, ref_at, &publish->object, err);
        if (status == RDT_AGAIN)
            *filling_p = publish->object;
        else if (status != RDT_OK)
            rdt_error_prefix(err, "name %zu, \"%.*s\"", i, (int)message->name_bytes[i],
                             (const char *)message->names.data + name_at);
        if (status != RDT_OK)
            return status;
        object_hold(publish->object);
        publish->id = message->names.data + name_at;
        publish->id_bytes = message->name_bytes[i];
        publish->visibility = message->visibility;
        publish->lease = message->lease ? call->client : NULL;
        publish->ttl_ns = message->ttl_ns;
        publish->session = lasts ? call->client->id : 0;
        publish->request = lasts ? call->request_id + i : 0;
        ref_at += message->objects->id_bytes[i];
        name_at += message->name_bytes[i];
    }
    return RDT_OK;
}

enum rdt_status rpc_publish_many(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__PublishMany *message = request;
    struct object *filling = NULL;
    struct name_publish *publishes;
    bool answered = false;
    size_t n = 0;
    enum rdt_status status = check(call, message, err);

    if (status != RDT_OK)
        return status;
    publishes = calloc(message->n_name_bytes + 1, sizeof *publishes);
    if (!publishes)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to publish %zu names", message->n_name_bytes);
    status = find_all(call, message, publishes, &n, &filling, err);
    if (status == RDT_AGAIN) {
        on_end(call);
        status = call_wait_for_put(call, filling, PUT_WAIT_NS, err);
        answered = status == RDT_OK; /* it will be */
    } else if (status == RDT_OK) {
        status = claim_all(call, publishes, (unsigned)n, err);
        if (status == RDT_OK)
            status = publish_all(call, publishes, n, err);
        answered = status == RDT_OK || status == RDT_AGAIN;
    }
    for (size_t i = 0; i < n; i++)
        object_drop(publishes[i].object);
    free(publishes);
    if (!answered)
        on_end(call);
    return answered ? RDT_OK : status;
}
