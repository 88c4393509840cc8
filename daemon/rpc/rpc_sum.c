/* SPDX-License-Identifier: Apache-2.0 */
/* SUM: the checksum of an object, for readers that compare what they got with it. */
#include <stdlib.h>

#include "daemon/calls/call.h"
#include "daemon/objects/object_sum.h"

struct asking {
    struct object_sum_waiter sum;
    struct object_waiter checked; /* the object lies in a stored file, whose bytes are being checked */
    struct call *call;
};

static void answer(struct call *call, uint64_t sum)
{
    Rdt__Pb__SumReply reply = RDT__PB__SUM_REPLY__INIT;

    reply.sum = sum;
    call_reply(call, &reply.base, NULL, 0);
}

static void asking_end(struct call *call)
{
    struct asking *asking = call->waiting;

    list_remove(&asking->sum.link);
    object_waiter_remove(&asking->checked);
    free(asking);
    call->waiting = NULL;
}

static struct call *leave(struct asking *asking)
{
    struct call *call = asking->call;

    call->on_end = NULL;
    asking_end(call);
    return call;
}

static void on_sum(struct object_sum_waiter *waiter, uint64_t sum, const struct rdt_error *err)
{
    struct call *call = leave(container_of(waiter, struct asking, sum));

    if (sum)
        answer(call, sum);
    else
        call_fail(call, err);
}

static void on_checked(struct object_waiter *waiter, struct object *object, const struct rdt_error *why)
{
    struct asking *asking = container_of(waiter, struct asking, checked);
    struct rdt_error err = {0};
    enum rdt_status status = why ? why->status : object_sum(object, &asking->sum, &err);

    if (status == RDT_AGAIN)
        return;
    if (status == RDT_OK)
        answer(leave(asking), object->sum);
    else
        call_fail(leave(asking), why ? why : &err);
}

static enum rdt_status find(struct call *call, const struct rdt_ref *ref, struct object **object_p, struct rdt_error *err)
{
    const struct owner *requester = &call->account->owner;
    enum rdt_status status = object_table_find(call->rpc->objects, ref, requester, object_p, err);

    return status == RDT_AGAIN ? object_table_not_put(ref, requester, err) : status;
}

enum rdt_status rpc_sum(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Sum *message = request;
    struct asking *asking;
    struct object *object;
    struct rdt_ref ref;
    enum rdt_status status = call_object_ref(message->ref, &ref, err);

    if (status != RDT_OK)
        return status;
    if (call_is_remote(call, &ref))
        return call_forward(call, &ref, &message->base, message->timeout_ns, err);
    status = find(call, &ref, &object, err);
    if (status != RDT_OK)
        return status;
    asking = calloc(1, sizeof *asking);
    if (!asking)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to wait for a checksum");
    asking->sum.on_sum = on_sum;
    asking->checked.on_event = on_checked;
    asking->call = call;
    list_init(&asking->sum.link);
    list_init(&asking->checked.link);
    status = object_check(object, &call->account->owner, &asking->checked, err);
    if (status == RDT_OK)
        status = object_sum(object, &asking->sum, err);
    if (status == RDT_AGAIN) {
        call->waiting = asking;
        status = call_defer(call, message->timeout_ns, asking_end, err);
        if (status != RDT_OK)
            asking_end(call);
        return status;
    }
    free(asking);
    if (status == RDT_OK)
        answer(call, object->sum);
    return status;
}
