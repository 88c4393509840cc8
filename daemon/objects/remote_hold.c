#include "daemon/objects/remote_hold.h"

#include <stdlib.h>

enum rdt_status remote_hold_take(struct client *client, uint64_t request_id, struct object *object, struct remote_hold **remote_hold_p,
                             struct rdt_error *err)
{
    struct remote_hold *keeping;
    enum rdt_status status;

    if (request_id == 0 || map_get_u64(&client->keeps, request_id))
        return rdt_error_set(err, RDT_INVALID, "a hold is known by the id of its request: %llu is %s",
                             (unsigned long long)request_id, request_id ? "that of another" : "none");
    status = account_take(client->account, USAGE_HOLDS, 1, err);
    if (status != RDT_OK)
        return status;
    keeping = calloc(1, sizeof *keeping);
    if (!keeping || !map_put_u64(&client->keeps, request_id, keeping)) {
        free(keeping);
        account_give(client->account, USAGE_HOLDS, 1);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a hold");
    }
    keeping->request_id = request_id;
    keeping->client = client;
    list_init(&keeping->by_object);
    if (object && !object_hold_by(object, HOLDER_REMOTE, &keeping->by_object)) {
        remote_hold_end(keeping);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a hold");
    }
    keeping->object = object;
    *remote_hold_p = keeping;
    return RDT_OK;
}

void remote_hold_end(struct remote_hold *keeping)
{
    (void)map_remove_u64(&keeping->client->keeps, keeping->request_id);
    account_give(keeping->client->account, USAGE_HOLDS, 1);
    if (keeping->far)
        keeping->release_far(keeping->far);
    if (keeping->object)
        object_drop_by(keeping->object, &keeping->by_object);
    free(keeping);
}

struct remote_hold *remote_hold_find(const struct client *client, uint64_t request_id)
{
    return map_get_u64(&client->keeps, request_id);
}

void remote_holds_object_freed(struct object *object)
{
    struct list *first;

    while ((first = list_first(object_holders(object, HOLDER_REMOTE)))) {
        struct remote_hold *keeping = container_of(first, struct remote_hold, by_object);
        keeping->object = NULL;
        object_drop_by(object, first);
    }
}
