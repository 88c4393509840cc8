/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/view/view.h"

#include "daemon/plugins/plugin_blame.h"

Rdt__Pb__ObjectInfo *row_object(struct arena *arena, struct object *object)
{
    struct object_view *view = arena_alloc(arena, sizeof *view);

    if (!view)
        return NULL;
    object_view_fill(view, object);
    return &view->info;
}

static const char *const origins[] = {
    [REGION_ALLOCATED] = "allocated", [REGION_IMPORTED] = "imported", [REGION_RECEIVED] = "received",
    [REGION_SNAPSHOT] = "snapshot",   [REGION_STAGING] = "staging",   [REGION_ARENA] = "arena",
    [REGION_REPLICA] = "replica",     [REGION_WRITTEN] = "allocated", [REGION_FILE] = "file",
    [REGION_STAGE] = "staging",
};

/* Memory that no client allocated to write it is a snapshot on a device. */
static const char *origin_of(const struct region *region)
{
    return origins[region->origin == REGION_WRITTEN && region->creator == 0 ? REGION_SNAPSHOT : region->origin];
}

Rdt__Pb__RegionInfo *row_region(struct arena *arena, const struct region *region)
{
    Rdt__Pb__RegionInfo *info = arena_message(arena, &rdt__pb__region_info__descriptor);

    if (!info)
        return NULL;
    info->region = region->id;
    info->generation = region->generation;
    info->memory = (char *)region->kind->name;
    info->device = (char *)region_device_uuid(region);
    info->origin = (char *)origin_of(region);
    info->bytes = region->bytes;
    info->tenant = (char *)region->account->owner.tenant;
    info->uid = region->account->owner.uid;
    info->client = region->client;
    info->refs = region->refs;
    info->pins = region->pins;
    info->registered = arena_alloc(arena, REGION_MAX_REGISTRATIONS * sizeof(char *));
    if (!info->registered)
        return NULL;
    for (unsigned r = 0; r < region->n_registrations; r++)
        info->registered[info->n_registered++] = (char *)region->registrations[r].transport->name;
    return info;
}

Rdt__Pb__WaitInfo *row_wait(struct arena *arena, const struct call *call)
{
    Rdt__Pb__WaitInfo *info = arena_message(arena, &rdt__pb__wait_info__descriptor);
    char *text = arena_alloc(arena, RDT_REF_TEXT_BYTES);
    const struct name *name = call->waits.named.name;
    struct rdt_ref ref = {.any_owner = true, .is_name = true};

    if (!info || !text)
        return NULL;
    if (name) {
        ref.id_bytes = name->id_bytes;
        memcpy(ref.id, name_id(name), name->id_bytes);
    } else {
        object_ref(call->waits.object.object, &ref);
    }
    rdt_ref_to_text(&ref, text);
    info->ref = text;
    info->client = call->client ? call->client->id : 0;
    info->peer = (char *)(call->peer ? call->peer->name : "");
    info->age_ns = (int64_t)(uv_hrtime() - call->began_ns);
    info->tenant = (char *)call->account->owner.tenant;
    info->uid = call->account->owner.uid;
    info->holds = call->type == RDT_MSG_HOLD;
    return info;
}

Rdt__Pb__OrphanInfo *row_orphan(struct arena *arena, const struct orphan_row *orphan)
{
    Rdt__Pb__OrphanInfo *info = arena_message(arena, &rdt__pb__orphan_info__descriptor);

    if (!info)
        return NULL;
    info->device = orphan->device;
    info->inode = orphan->inode;
    info->bytes = orphan->bytes;
    info->tenant = (char *)orphan->account->owner.tenant;
    info->uid = orphan->account->owner.uid;
    info->age_ns = (int64_t)(uv_hrtime() - orphan->since_ns);
    info->stored = orphan->stored;
    return info;
}

/* The usage of each limit, in the order of daemon/base/usage.h; 0: no memory. */
static size_t add_usage(struct arena *arena, const struct account *account, Rdt__Pb__Usage ***list_p)
{
    Rdt__Pb__Usage **list = arena_messages(arena, &rdt__pb__usage__descriptor, USAGE_COUNT);

    for (unsigned i = 0; list && i < USAGE_COUNT; i++) {
        list[i]->what = (char *)usage_name((enum usage)i);
        list[i]->used = account->used[i];
        list[i]->limit = account->limits ? account->limits[i] : 0;
    }
    *list_p = list;
    return list ? USAGE_COUNT : 0;
}

Rdt__Pb__ClientInfo *row_client(struct arena *arena, const struct client *client)
{
    Rdt__Pb__ClientInfo *info = arena_message(arena, &rdt__pb__client_info__descriptor);

    if (!info)
        return NULL;
    info->client = client->id;
    info->name = (char *)client->name;
    info->tenant = (char *)client->account->owner.tenant;
    info->uid = client->account->owner.uid;
    info->gid = client->gid;
    info->pid = client->pid;
    info->objects = client->n_objects;
    info->regions = (uint32_t)map_count(&client->regions);
    info->holds = (uint32_t)(map_count(&client->holds.by_id) + map_count(&client->holds.remote));
    info->requests = (uint32_t)map_count(&client->transfers.fetches) + client->rpc.n_calls;
    info->queued_bytes = client->conn.queued_bytes(client);
    info->age_ns = (int64_t)(uv_hrtime() - client->since_ns);
    info->session = (char *)(client->session.state == CLIENT_SESSION_WAITING ? "waiting"
                             : client_has_returned(client)                   ? "resumed"
                             : client->session.lasting                       ? "kept"
                                                                             : "");
    info->n_usage = add_usage(arena, client->account, &info->usage);
    info->requests_total = client->rpc.n_requests;
    info->put_bytes = client->rpc.put_bytes;
    info->fetched_bytes = client->transfers.fetched_bytes;
    return info;
}

Rdt__Pb__OwnerInfo *row_owner(struct arena *arena, const struct account *account)
{
    Rdt__Pb__OwnerInfo *info = arena_message(arena, &rdt__pb__owner_info__descriptor);

    if (!info)
        return NULL;
    info->tenant = (char *)account->owner.tenant;
    info->uid = account->owner.uid;
    if (account->parent->owner.uid != account->owner.uid)
        info->person = account->parent->owner.uid;
    info->clients = (uint32_t)account->used[USAGE_SESSIONS];
    info->n_usage = add_usage(arena, account, &info->usage);
    return info;
}

Rdt__Pb__NameInfo *row_name(struct arena *arena, const struct name *name)
{
    struct name_view *view = arena_alloc(arena, sizeof *view);

    if (!view)
        return NULL;
    name_view_fill(view, name);
    return &view->info;
}

Rdt__Pb__PeerInfo *row_peer(struct arena *arena, const struct peer *peer, bool admin)
{
    Rdt__Pb__PeerInfo *info = arena_message(arena, &rdt__pb__peer_info__descriptor);
    uint64_t now = uv_hrtime();
    char hex[33];
    struct peer_summary summary;

    if (!info)
        return NULL;
    node_hex(peer->uuid, hex);
    info->uuid = arena_text(arena, hex, SIZE_MAX);
    node_hex(peer->boot_id, hex);
    info->boot_id = arena_text(arena, hex, SIZE_MAX);
    info->name = (char *)peer->name;
    info->address = (char *)peer->address;
    info->state = (char *)peer_state_name(peer->state);
    info->version = (char *)peer->version;
    info->identity = (char *)peer->identity;
    info->rtt_ns = (int64_t)peer->rtt_ns;
    info->since_ns = (int64_t)(now - peer->since_ns);
    if (peer->state == PEER_BACKOFF && peer->retry_at_ns > now)
        info->retry_in_ns = (int64_t)(peer->retry_at_ns - now);
    if (peer->state != PEER_UP)
        info->last_error = (char *)peer_why_away(peer, admin);
    transfers_peer_summary(peer, &summary);
    info->transfers_in = summary.n_pulls;
    info->transfers_out = summary.n_serves;
    info->bytes_in = summary.bytes_pulled;
    info->bytes_out = summary.bytes_served;
    info->fell_back = summary.fell_back;
    info->transports = arena_alloc(arena, PATH_MAX_CANDIDATES * sizeof(char *));
    info->routes = arena_alloc(arena, PATH_MAX_CANDIDATES * sizeof(char *));
    info->unusable = arena_alloc(arena, 2 * PATH_MAX_CANDIDATES * sizeof(char *));
    if (!info->uuid || !info->boot_id || !info->transports || !info->routes || !info->unusable)
        return NULL;
    for (; info->n_unusable < summary.n_unusable; info->n_unusable++)
        if (!(info->unusable[info->n_unusable] = arena_text(arena, summary.unusable[info->n_unusable], SIZE_MAX)))
            return NULL;
    for (unsigned i = 0; i < summary.n_troubles; i++)
        if (!(info->unusable[info->n_unusable++] = arena_text(arena, summary.trouble[i], SIZE_MAX)))
            return NULL;
    for (unsigned i = 0; i < summary.n_transports; i++) {
        info->transports[info->n_transports++] = (char *)summary.transports[i];
        info->routes[info->n_routes] = arena_text(arena, summary.routes[i], SIZE_MAX);
        if (!info->routes[info->n_routes++])
            return NULL;
    }
    return info;
}

static Rdt__Pb__BackendInfo *row_backend(struct arena *arena, const char *name, const char *kind, const char *path,
                                         bool available, const char *why_not)
{
    Rdt__Pb__BackendInfo *info = arena_message(arena, &rdt__pb__backend_info__descriptor);
    struct plugin_crashes crashes;
    char text[200];

    if (!info)
        return NULL;
    info->name = (char *)name;
    info->kind = (char *)kind;
    info->path = (char *)path;
    info->available = available;
    info->why_not = (char *)why_not;
    if (plugin_blame_find(path, &crashes)) {
        plugin_blame_describe(&crashes, text, sizeof text);
        info->crashes = crashes.count;
        info->last_crash = arena_text(arena, text, SIZE_MAX);
        if (!info->last_crash)
            return NULL;
    }
    return info;
}

Rdt__Pb__BackendInfo *row_memory(struct arena *arena, const struct memory_kind *kind)
{
    Rdt__Pb__BackendInfo *info = row_backend(arena, kind->name, "memory", kind->path, kind->available, kind->why_not);

    if (!info || kind->n_devices == 0)
        return info;
    info->devices = arena_messages(arena, &rdt__pb__device_info__descriptor, kind->n_devices);
    for (unsigned i = 0; info->devices && i < kind->n_devices; i++) {
        const struct memory_device *device = &kind->devices[i];
        struct rdt_device now = memory_device_now(device);
        Rdt__Pb__DeviceInfo *row = info->devices[i];
        row->memory = (char *)kind->name;
        row->uuid = (char *)device->uuid;
        row->name = (char *)device->name;
        row->bytes = device->bytes;
        row->used_bytes = device->memory.used_bytes;
        row->limit_bytes = device->memory.limit_bytes;
        row->pool_bytes = device->memory.pooled_bytes;
        row->pool_max_bytes = device->memory.pool_max_bytes;
        row->pool_hits = device->memory.pool_hits;
        row->pool_misses = device->memory.pool_misses;
        row->imported_bytes = device->memory.imported_bytes;
        row->regions = device->memory.n_regions;
        row->opened = now.opened;
        row->overhead_bytes = now.overhead_bytes;
        row->why_not = (char *)(now.why_not ? now.why_not : "");
    }
    info->n_devices = kind->n_devices;
    return info->devices ? info : NULL;
}

Rdt__Pb__BackendInfo *row_transport(struct arena *arena, const struct transport *transport)
{
    Rdt__Pb__BackendInfo *info =
        row_backend(arena, transport->name, "transport", transport->path, transport->available, transport->why_not);

    if (!info)
        return NULL;
    info->version = (char *)transport->version;
    if (transport->available)
        info->why_not = (char *)transport->not_moved;
    info->sided = (char *)transport_sides(transport);
    info->can_abort = transport->ops.cancel != NULL;
    info->ops_active = transport->ops_active;
    info->bytes = transport->bytes_done;
    info->memory = (char **)transport->ops.memory_kinds;
    while (info->memory && info->memory[info->n_memory])
        info->n_memory++;
    return info;
}

Rdt__Pb__BackendInfo *row_role(struct arena *arena, const struct plugin_roles *roles)
{
    return roles->kind ? row_memory(arena, roles->kind) : row_transport(arena, roles->transport);
}

/* The nodes that the fetch has left, and the present one. */
static bool add_sources(struct arena *arena, const struct transfer_record *record, Rdt__Pb__TransferInfo *info)
{
    unsigned n = record->n_sources > 0 ? record->n_sources + 1 : 0;
    Rdt__Pb__TransferSource **list = arena_messages(arena, &rdt__pb__transfer_source__descriptor, n);

    if (!list)
        return false;
    for (unsigned i = 0; i < n; i++) {
        bool left = i < record->n_sources;
        list[i]->peer = (char *)(left ? record->sources[i].peer : record->peer);
        list[i]->left = (char *)(left ? record->sources[i].left : "");
        list[i]->bytes = left                                       ? record->sources[i].bytes
                         : record->bytes_done > record->source_from ? record->bytes_done - record->source_from
                                                                    : 0;
    }
    info->n_sources = n;
    info->sources = list;
    return true;
}

Rdt__Pb__TransferInfo *row_transfer(struct arena *arena, const struct transfer_record *record)
{
    Rdt__Pb__TransferInfo *info = arena_alloc(arena, sizeof *info);
    const struct path_decision *decision = record->decision;
    unsigned n = decision ? decision->n : 0;
    Rdt__Pb__Candidate **list = arena_messages(arena, &rdt__pb__candidate__descriptor, n);
    char *ref = arena_alloc(arena, RDT_REF_TEXT_BYTES);
    char *waits = arena_alloc(arena, RECORD_WAITS_BYTES);

    if (!info || !list || !ref || !waits)
        return NULL;
    transfer_record_to_wire(record, info, ref, waits);
    for (unsigned i = 0; i < n; i++) {
        list[i]->path = (char *)decision->candidates[i].name;
        list[i]->chosen = (int)i == decision->chosen;
        list[i]->reason = (char *)decision->candidates[i].reason;
    }
    info->n_candidates = n;
    info->candidates = list;
    return add_sources(arena, record, info) ? info : NULL;
}

static uint32_t transfers_in_group(const struct group *group)
{
    uint32_t n = 0;

    list_for_each (node, &group->connections)
        n += transfers_of_group_side(node);
    return n;
}

Rdt__Pb__GroupInfo *row_group(struct arena *arena, const struct group *group)
{
    Rdt__Pb__GroupInfo *info = arena_message(arena, &rdt__pb__group_info__descriptor);
    Rdt__Pb__GroupMember **members = group_list_members(group, arena);
    char *coordinator = arena_alloc(arena, 33);

    if (!info || !members || !coordinator)
        return NULL;
    node_hex(group->coordinator ? group->coordinator->uuid : group->groups->node->uuid, coordinator);
    info->name = (char *)group->name;
    info->tenant = (char *)group->owner.tenant;
    info->uid = group->owner.uid;
    info->transport = (char *)group->transport->name;
    info->state = (char *)group_state_name(group);
    info->epoch = group->epoch;
    info->why = (char *)group->why;
    info->since_ns = (int64_t)(uv_hrtime() - group->since_ns);
    info->coordinator = coordinator;
    info->ranks = group->n_ranks;
    info->transfers = transfers_in_group(group);
    info->n_members = group->n_members;
    info->members = members;
    return info;
}

static struct row_audience shown(Rdt__Pb__Visibility visibility, const struct account *account)
{
    enum row_visibility to = visibility == RDT__PB__VISIBILITY__VISIBILITY_ALL      ? ROW_ALL
                             : visibility == RDT__PB__VISIBILITY__VISIBILITY_TENANT ? ROW_TENANT
                                                                                    : ROW_OWNER;

    return (struct row_audience){to, &account->owner};
}

static struct row_audience only(const struct owner *owner)
{
    return (struct row_audience){ROW_OWNER, owner};
}

struct row_audience row_audience(Rdt__Pb__ListKind kind, const void *thing)
{
    const struct object *object = thing;
    const struct name *name = thing;

    switch (kind) {
    case RDT__PB__LIST_KIND__LIST_KIND_OBJECTS:
        return shown(object->access.visibility, object->account);
    case RDT__PB__LIST_KIND__LIST_KIND_REGIONS:
        return only(&((const struct region *)thing)->account->owner);
    case RDT__PB__LIST_KIND__LIST_KIND_CLIENTS:
        return only(&((const struct client *)thing)->account->owner);
    case RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS:
        return only(&((const struct transfer_record *)thing)->requester);
    case RDT__PB__LIST_KIND__LIST_KIND_NAMES:
        return shown(name->visibility, name->account);
    case RDT__PB__LIST_KIND__LIST_KIND_OWNERS:
        return only(&((const struct account *)thing)->owner);
    case RDT__PB__LIST_KIND__LIST_KIND_GROUPS:
        return only(&((const struct group *)thing)->owner);
    default: /* peers and backends */
        return (struct row_audience){ROW_ALL, NULL};
    }
}

bool row_is_for(Rdt__Pb__ListKind kind, const void *thing, const struct owner *who, bool admin)
{
    const struct row_audience audience = row_audience(kind, thing);

    return admin || row_audience_has(&audience, who);
}
