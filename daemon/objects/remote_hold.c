/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/remote_hold.h"

#include <stdlib.h>

#include "proto/frame.h"
#include "proto/messages.h"

enum rdt_status remote_hold_take(struct client *client, uint64_t request_id, struct object *object,
                                 struct remote_hold **remote_hold_p, struct rdt_error *err)
{
    struct remote_hold *hold;
    enum rdt_status status;

    if (request_id == 0 || map_get_u64(&client->holds.remote, request_id))
        return rdt_error_set(err, RDT_INVALID, "request id %llu cannot name a hold: it is %s", (unsigned long long)request_id,
                             request_id ? "that of another hold" : "not a valid id");
    status = account_take(client->account, USAGE_HOLDS, 1, err);
    if (status != RDT_OK)
        return status;
    hold = calloc(1, sizeof *hold);
    if (!hold || !map_put_u64(&client->holds.remote, request_id, hold)) {
        free(hold);
        account_give(client->account, USAGE_HOLDS, 1);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a hold");
    }
    hold->request_id = request_id;
    hold->client = client;
    list_init(&hold->by_object);
    if (object && !object_hold_by(object, HOLDER_REMOTE, &hold->by_object)) {
        remote_hold_end(hold);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a hold");
    }
    hold->object = object;
    if (object && client->session.lasting)
        client->session.lasting->on_remote_hold(client->session.lasting->arg, hold);
    *remote_hold_p = hold;
    return RDT_OK;
}

void remote_hold_end(struct remote_hold *hold)
{
    if (hold->record)
        hold->client->session.lasting->on_remote_hold_end(hold->client->session.lasting->arg, hold);
    (void)map_remove_u64(&hold->client->holds.remote, hold->request_id);
    hold->client->holds.n_lost -= hold->lost != RDT_OK;
    account_give(hold->client->account, USAGE_HOLDS, 1);
    if (hold->far)
        hold->release_far(hold->far);
    if (hold->object)
        object_drop_by(hold->object, HOLDER_REMOTE, &hold->by_object);
    free(hold);
}

static void tell_lost(const struct remote_hold *hold, const struct rdt_error *why)
{
    Rdt__Pb__ErrorReply reply = RDT__PB__ERROR_REPLY__INIT;

    reply.status = hold->lost;
    reply.message = (char *)why->msg;
    hold->client->conn.send(hold->client, RDT_EVENT_HOLD_LOST, FRAME_EVENT, hold->request_id, &reply.base, NULL, 0);
}

void remote_hold_lose(struct remote_hold *hold, const struct rdt_error *why)
{
    if (hold->far)
        hold->release_far(hold->far);
    hold->far = NULL;
    hold->lost = why->status;
    hold->client->holds.n_lost++;
    tell_lost(hold, why);
}

enum rdt_status remote_hold_why_lost(const struct remote_hold *hold, struct rdt_error *err)
{
    return rdt_error_set(err, hold->lost, "the hold could not be taken again after the daemon's restart");
}

void remote_holds_tell_lost(struct client *client)
{
    const struct remote_hold *hold;
    struct rdt_error why;
    size_t cursor = 0;

    while (client->holds.n_lost > 0 && (hold = map_next(&client->holds.remote, &cursor)))
        if (hold->lost != RDT_OK) {
            (void)remote_hold_why_lost(hold, &why);
            tell_lost(hold, &why);
        }
}

struct remote_hold *remote_hold_find(const struct client *client, uint64_t request_id)
{
    return map_get_u64(&client->holds.remote, request_id);
}

bool remote_holds_object_freed(struct object *object, uint64_t until_ns)
{
    struct list *first;

    while ((first = list_first(object_holders(object, HOLDER_REMOTE)))) {
        struct remote_hold *hold = container_of(first, struct remote_hold, by_object);
        hold->object = NULL;
        hold->client->holds.freed = hold->request_id;
        object_drop_by(object, HOLDER_REMOTE, first);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    return true;
}
