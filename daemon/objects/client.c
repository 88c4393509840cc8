/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/client.h"

#include <stdlib.h>

#include "daemon/base/ids.h"
#include "daemon/base/sm.h"
#include "daemon/base/text.h"
#include "daemon/objects/object.h"
#include "daemon/objects/remote_hold.h"

/* Every allowed move. client.h draws them. */
static const struct sm_state session_states[] = {
    [CLIENT_SESSION_NEW] = {"new", 1u << CLIENT_SESSION_WAITING},
    [CLIENT_SESSION_WAITING] = {"waiting", 1u << CLIENT_SESSION_RETURNED | 1u << CLIENT_SESSION_LAPSED},
    [CLIENT_SESSION_RETURNED] = {"returned", 1u << CLIENT_SESSION_RESUMED},
    [CLIENT_SESSION_RESUMED] = {"resumed", 0},
    [CLIENT_SESSION_LAPSED] = {"lapsed", 0},
};

void client_move_session(struct client *client, enum client_session_state state)
{
    sm_move_byte(session_states, sizeof session_states / sizeof session_states[0], &client->session.state, state);
}

/* Ids are unique in the daemon, so that a late release never ends a hold of another client. */
static struct ids *hold_ids(void)
{
    static struct ids ids;

    if (ids.base == 0)
        ids_init(&ids, IDS_HOLDS, IDS_HALF_BITS, IDS_FIRST);
    return &ids;
}

void client_save_hold_ids(uint64_t *next_p)
{
    ids_save(hold_ids(), next_p);
}

void client_init(struct client *client, uint64_t id)
{
    client->id = id;
    client->transfers.most_fds = RDT_MAX_FRAME_FDS;
    client->since_ns = uv_hrtime();
    list_init(&client->link);
    list_init(&client->objects);
    list_init(&client->leases);
    list_init(&client->followers);
    list_init(&client->rpc.calls);
    list_init(&client->wakes);
    list_init(&client->read_barriers);
    map_init(&client->regions);
    map_init(&client->holds.by_id);
    map_init(&client->holds.remote);
    map_init(&client->transfers.fetches);
    map_init(&client->session.answers);
}

bool client_returns(const struct client *client, const struct rdt_error *err)
{
    return client->session.lasting && client->session.lasting->ending && err->status == RDT_SHUTTING_DOWN;
}

void client_send_error(struct client *client, uint16_t type, uint64_t request_id, const struct rdt_error *err)
{
    Rdt__Pb__ErrorReply reply = RDT__PB__ERROR_REPLY__INIT;

    reply.status = err->status;
    reply.sys_errno = err->sys_errno;
    reply.message = (char *)err->msg;
    client->conn.send(client, type, FRAME_REPLY | FRAME_ERROR, request_id, &reply.base, NULL, 0);
}

static uint64_t tell_gone(struct client *client, uint64_t region)
{
    Rdt__Pb__RegionGone gone = RDT__PB__REGION_GONE__INIT;

    client->n_region_gone_events++;
    gone.n_regions = 1;
    gone.regions = &region;
    client->conn.send(client, RDT_EVENT_REGION_GONE, FRAME_EVENT, 0, &gone.base, NULL, 0);
    return client->n_region_gone_events;
}

static void on_drop(struct region_cache *cache, uint64_t region)
{
    (void)tell_gone(container_of(cache, struct client, cache), region);
}

static void on_returned(struct region_cache *cache, uint64_t region, bool gone)
{
    struct client *client = container_of(cache, struct client, cache);
    Rdt__Pb__RegionBack back = RDT__PB__REGION_BACK__INIT;

    back.n_regions = 1;
    back.regions = &region;
    back.gone = gone;
    client->conn.send(client, RDT_EVENT_REGION_BACK, FRAME_EVENT, 0, &back.base, NULL, 0);
}

static void forget_region(struct region_cache *cache, uint64_t region)
{
    (void)map_remove_u64(&container_of(cache, struct client, cache)->regions, region);
}

static const struct region_cache_ops cache_ops = {on_drop, on_returned, forget_region};

static uint64_t on_unmapped(struct mapped *mapped, uint64_t region)
{
    return tell_gone(container_of(mapped, struct client, mapped), region);
}

void client_start_caches(struct client *client, struct regions *regions)
{
    mapped_start(&client->mapped, client->account, on_unmapped);
    region_cache_start(&client->cache, regions, client->id, &client->account->owner, &cache_ops);
}

void client_note_import(struct client *client, const struct rdt_error *err)
{
    struct client_refusal *refused = client->rpc.refused;

    if (!err) {
        free(refused);
        client->rpc.refused = NULL;
        return;
    }
    if (err->status != RDT_SYSTEM && err->status != RDT_INVALID && err->status != RDT_UNSUPPORTED)
        return;
    if (!refused) {
        refused = client->rpc.refused = calloc(1, sizeof *refused);
        if (!refused)
            return; /* it is only told to people */
        refused->since_ns = uv_hrtime();
    }
    refused->times++;
    text_copy(refused->why, sizeof refused->why, err->msg);
}

enum rdt_status client_region(struct client *client, uint64_t id, uint64_t generation, struct region **region_p,
                              struct rdt_error *err)
{
    struct region *region = map_get_u64(&client->regions, id);

    if (!region || region->generation != generation)
        return rdt_error_set(err, RDT_NOT_FOUND, "this client has no region %llu", (unsigned long long)id);
    *region_p = region;
    return region->state == REGION_RETURNED ? region_cache_resume(&client->cache, region, err) : RDT_OK;
}

void client_drop_import(struct client *client)
{
    struct import_chunks *chunks = client->import;

    client->import = NULL;
    if (!chunks)
        return;
    for (uint32_t i = 0; i < chunks->n; i++)
        if (chunks->fds[i] >= 0)
            owner_work_close_fd(client->owner_work, chunks->fds[i], client->account);
    account_give(client->account, USAGE_FDS, chunks->charged);
    free(chunks);
}

/* The client never released the hold, so it may still read the memory. */
static void abandon(struct hold *hold)
{
    for (uint32_t i = 0; hold->object && i < hold->object->memory.n_regions; i++)
        region_mark_abandoned(hold->object->memory.uses[i].region);
    for (uint32_t i = 0; i < hold->n_regions; i++)
        region_mark_abandoned(hold->regions[i]);
    if (hold->region)
        region_mark_abandoned(hold->region);
    client_release(hold);
}

bool client_fini(struct client *client, uint64_t until_ns)
{
    struct hold *hold;
    struct remote_hold *remote_hold;
    struct region *region;

    client_drop_import(client);
    mapped_stop(&client->mapped);
    /* before the releases below, so that their regions are not cached for this client again */
    region_cache_stop(&client->cache);
    while ((hold = map_next(&client->holds.by_id, &client->holds.reaped))) {
        abandon(hold);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    while ((remote_hold = map_next(&client->holds.remote, &client->holds.reaped_remote))) {
        remote_hold_end(remote_hold);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    while ((region = map_next(&client->regions, &client->reaped_regions))) {
        client_forget_region(client, region);
        /* librdt does not tell its user where a loaned region is mapped, so nobody uses the pages any more */
        if (region->state != REGION_LOANED)
            region_mark_abandoned(region);
        region_unref(region);
        if (uv_hrtime() >= until_ns)
            return false;
    }
    free(client->rpc.refused);
    map_fini(&client->holds.by_id);
    map_fini(&client->holds.remote);
    map_fini(&client->regions);
    map_fini(&client->transfers.fetches);
    free(client->transfers.mapped_devices);
    map_fini(&client->session.answers);
    return true;
}

void client_wake(struct client *client, struct client_wake *wake)
{
    list_append(&client->wakes, &wake->link);
    client->conn.want_turn(client);
}

enum rdt_status client_read_barrier_add(struct client *client, struct client_read_barrier *barrier)
{
    barrier->after_bytes = client->conn.bytes_received(client);
    if (barrier->after_bytes == 0)
        return RDT_OK;
    list_append(&client->read_barriers, &barrier->link);
    return RDT_AGAIN;
}

void client_read_barriers_run(struct client *client, uint64_t bytes)
{
    while (!list_empty(&client->read_barriers)) { /* barriers are in the order of their after_bytes */
        struct client_read_barrier *barrier =
            container_of(list_first(&client->read_barriers), struct client_read_barrier, link);
        if (barrier->after_bytes > bytes)
            return;
        list_remove(&barrier->link);
        barrier->run(barrier);
    }
}

bool client_work(struct client *client, uint64_t until_ns)
{
    struct client_task *task;

    list_drain (struct client_wake, wake, &client->wakes, link) {
        list_remove(&wake->link);
        wake->run(wake);
        if (uv_hrtime() >= until_ns)
            return list_empty(&client->wakes) && !client->task;
    }
    task = client->task;
    if (!task || task->waits)
        return !task;
    client->task = NULL; /* the task may set another one before it ends */
    if (!task->step(task, until_ns))
        client->task = task;
    return !client->task;
}

bool client_add_region(struct client *client, struct region *take_region)
{
    if (!map_put_u64(&client->regions, take_region->id, take_region))
        return false;
    if (client->session.lasting)
        client->session.lasting->on_region(client->session.lasting->arg, client, take_region);
    return true;
}

void client_forget_region(struct client *client, struct region *region)
{
    (void)map_remove_u64(&client->regions, region->id);
    region->client = 0; /* the client does not write there any more */
    if (client->session.lasting)
        client->session.lasting->on_region_released(client->session.lasting->arg, region);
    if (region->refs > 1)
        region_left(region);
}

/* The hold that answers a fetch is found by the fetch's handle, too: its id is the handle with this bit, which no other id
 * has. */
#define HOLD_OF_FETCH (UINT64_C(1) << 59) /* a valid number still: rdt_number_is_valid */

/* id 0: the next one */
static struct hold *hold_new(struct client *client, uint64_t id)
{
    struct hold *hold = calloc(1, sizeof *hold);

    if (!hold)
        return NULL;
    hold->id = id ? id : ids_next(hold_ids(), client->account);
    hold->client = client;
    list_init(&hold->by_object);
    if (!map_put_u64(&client->holds.by_id, hold->id, hold)) {
        free(hold);
        return NULL;
    }
    return hold;
}

static struct hold *hold_object(struct client *client, uint64_t id, struct object *object)
{
    struct hold *hold = hold_new(client, id);

    if (hold && !object_hold_by(object, HOLDER_READER, &hold->by_object)) {
        client_release(hold);
        return NULL;
    }
    if (hold)
        hold->object = object;
    return hold;
}

static struct hold *record(struct hold *hold)
{
    if (hold && hold->client->session.lasting)
        hold->client->session.lasting->on_hold(hold->client->session.lasting->arg, hold);
    return hold;
}

/* 0: the next one, because the client has used the handle for a fetch whose hold it still has */
static uint64_t id_for(const struct client *client, uint64_t handle)
{
    uint64_t id = handle | HOLD_OF_FETCH;

    return handle >= HOLD_OF_FETCH || map_get_u64(&client->holds.by_id, id) ? 0 : id;
}

struct hold *client_hold_of_fetch(const struct client *client, uint64_t handle)
{
    return handle < HOLD_OF_FETCH ? map_get_u64(&client->holds.by_id, handle | HOLD_OF_FETCH) : NULL;
}

struct hold *client_hold_object(struct client *client, uint64_t handle, struct object *object)
{
    return record(hold_object(client, id_for(client, handle), object));
}

static struct hold *hold_region(struct client *client, uint64_t id, struct region *region)
{
    struct hold *hold = hold_new(client, id);

    if (hold) {
        hold->region = region;
        region_ref(region);
    }
    return hold;
}

static struct hold *hold_regions(struct client *client, uint64_t id, struct region *const *regions, uint32_t n)
{
    struct region **copy;
    struct hold *hold;

    if (n == 1)
        return hold_region(client, id, regions[0]);
    copy = calloc(n + 1u, sizeof(struct region *));
    hold = copy ? hold_new(client, id) : NULL;
    if (!hold) {
        free(copy);
        return NULL;
    }
    hold->regions = copy;
    for (; hold->n_regions < n; hold->n_regions++)
        copy[hold->n_regions] = region_ref(regions[hold->n_regions]);
    return hold;
}

struct hold *client_hold_region(struct client *client, uint64_t handle, struct region *region)
{
    return client_hold_regions(client, handle, &region, 1);
}

struct hold *client_hold_regions(struct client *client, uint64_t handle, struct region *const *regions, uint32_t n)
{
    return record(hold_regions(client, id_for(client, handle), regions, n));
}

struct hold *client_restore_hold(struct client *client, uint64_t id, struct object *object, struct region *const *regions,
                                 uint32_t n_regions)
{
    if (map_get_u64(&client->holds.by_id, id))
        return NULL;
    if (!(id & HOLD_OF_FETCH))
        ids_above(hold_ids(), id); /* the journal says so, too, but it may be wrong */
    return object ? hold_object(client, id, object) : hold_regions(client, id, regions, n_regions);
}

void client_set_copying(struct hold *hold, uint64_t bytes)
{
    hold->copying_bytes = bytes;
    hold->client->holds.copying_bytes += bytes;
}

struct hold_write {
    struct hold_write *next;
    struct region_use use; /* with a reference and a pin of its region */
};

enum rdt_status client_note_write(struct hold *hold, struct region *region, uint64_t lo, uint64_t hi, struct rdt_error *err)
{
    struct hold_write *write;
    enum rdt_status status = account_take(hold->client->account, USAGE_HEAP, sizeof *write, err);

    if (status != RDT_OK)
        return status;
    write = calloc(1, sizeof *write);
    if (!write) {
        account_give(hold->client->account, USAGE_HEAP, sizeof *write);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to note what the client writes");
    }
    region_pin(region);
    write->use.region = region;
    region_use_add(&write->use, lo, hi);
    write->next = hold->writes;
    hold->writes = write;
    return RDT_OK;
}

static void end_writes(struct hold *hold)
{
    while (hold->writes) {
        struct hold_write *write = hold->writes;
        struct region *region = write->use.region;
        hold->writes = write->next;
        region_use_remove(&write->use);
        region_unpin(region);
        account_give(hold->client->account, USAGE_HEAP, sizeof *write);
        free(write);
    }
}

void client_release(struct hold *hold)
{
    struct region **regions = hold->regions;
    uint32_t n_regions = hold->n_regions;
    struct object *object = hold->object;
    struct region *region = hold->region;

    end_writes(hold);
    if (hold->record)
        hold->client->session.lasting->on_hold_end(hold->client->session.lasting->arg, hold);
    map_remove_u64(&hold->client->holds.by_id, hold->id);
    hold->client->holds.copying_bytes -= hold->copying_bytes;
    if (object)
        object_drop_by(object, HOLDER_READER, &hold->by_object);
    free(hold);
    region_unref(region);
    for (uint32_t i = 0; i < n_regions; i++)
        region_unref(regions[i]);
    free(regions);
}
