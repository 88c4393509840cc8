/* SPDX-License-Identifier: Apache-2.0 */
/* PING, STATUS and STAT. */
#include "daemon/view/view.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/calls/call.h"
#include "daemon/memory/region_orphans.h"
#include "daemon/objects/detached.h"
#include "daemon/persist/recovery.h"
#include "daemon/persist/storage.h"
#include "wire_ref.h"

enum rdt_status rpc_ping(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Ping *ping = request;
    Rdt__Pb__Ping reply = RDT__PB__PING__INIT;

    reply.data = ping->data;
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}

enum rdt_status rpc_status(struct call *call, const void *request, struct rdt_error *err)
{
    const struct rpc *rpc = call->rpc;
    const struct cache *cache = &rpc->objects->cache;
    struct recovery_counts kept = recovery_counts(call->rpc->recovery);
    Rdt__Pb__StatusReply reply = *rpc->counts;
    char uuid[33], boot[33];
    size_t n = 0;

    transfers_status(rpc->transfers, &reply);
    node_hex(rpc->node->uuid, uuid);
    node_hex(rpc->node->boot_id, boot);
    reply.version = (char *)RDTD_VERSION;
    reply.node = uuid;
    reply.boot_id = boot;
    reply.address = (char *)rpc->node->address;
    reply.state = (char *)(rpc->intake.draining ? "draining" : rpc->intake.drained ? "drained" : "serving");
    reply.uptime_ns = (int64_t)(uv_hrtime() - rpc->meters.started_ns);
    reply.pid = getpid();
    reply.clients = rpc->clients.n;
    reply.objects = rpc->objects->by_generation.used;
    reply.regions = rpc->regions->by_id.used;
    reply.memory_bytes = regions_used_bytes(rpc->regions);
    reply.pool_bytes = rpc->regions->free_pool.bytes + rpc->regions->caches.sealed.bytes;
    reply.pool_hits = rpc->regions->free_pool.hits + rpc->regions->caches.sealed_hits;
    reply.pool_misses = rpc->regions->free_pool.misses;
    reply.cached_bytes = rpc->regions->caches.bytes - rpc->regions->caches.sealed.bytes;
    reply.cache_hits = rpc->regions->caches.hits;
    if (rpc->peers)
        peers_certificate_expires(rpc->peers, &reply.certificate_expires_s, &reply.crl_expires_s);
    reply.keeper_up = recovery_keeper_is_up(call->rpc->recovery);
    reply.shard_pending = shards_n_filling(rpc->shards);
    reply.kept_objects = kept.objects;
    reply.kept_names = kept.names;
    reply.kept_bytes = kept.bytes;
    reply.restored_objects = kept.restored;
    reply.unkept_objects = kept.lost;
    reply.kept_sessions = kept.sessions;
    reply.kept_holds = kept.holds;
    reply.restored_sessions = kept.restored_sessions;
    reply.waiting_sessions = rpc->clients.n_waiting;
    reply.freeing_bytes = rpc->regions->freeing.leaving_bytes;
    reply.orphaned_bytes = region_orphans_bytes(rpc->regions->orphans);
    reply.memory_limit_bytes = rpc->regions->limit_bytes;
    if (rpc->peers)
        list_for_each (node, peers_all(rpc->peers)) {
            reply.peers_known++;
            reply.peers_up += container_of(node, struct peer, link)->state == PEER_UP;
        }
    reply.busy_polls = rpc->meters.busy_poll.rule.n_found + rpc->meters.busy_poll.rule.n_missed;
    reply.busy_polls_missed = rpc->meters.busy_poll.rule.n_missed;
    reply.log_lines_dropped = log_lines_dropped();
    reply.storage_dir = rpc->options->storage_dir;
    reply.stored_objects = rpc->storage->n_objects;
    reply.stored_names = rpc->storage->n_names;
    reply.stored_bytes = rpc->objects->accounts->node.used[USAGE_STORED_BYTES];
    reply.followed_bytes = rpc->objects->accounts->node.used[USAGE_FOLLOWED_BYTES];
    reply.evictable_objects = cache->sums.n;
    reply.evictable_bytes = cache->sums.bytes;
    reply.evictable_idle_bytes = cache->sums.idle_bytes;
    reply.evictable_hits = cache->counts.hits;
    reply.evictable_misses = cache->counts.misses;
    reply.evictions = cache->counts.evictions;
    reply.evictable_files = cache->sums.n_files;
    reply.evictable_file_bytes = cache->sums.file_bytes;
    reply.evictable_spilled = cache->counts.spilled;
    reply.evictable_spilled_bytes = cache->counts.spilled_bytes;
    reply.evictable_file_hits = cache->counts.file_hits;
    reply.evictable_far_hits = cache->counts.far_hits;
    reply.evictable_unspilled_late = cache->counts.unspilled_late;
    reply.evictable_unspilled_failed = cache->counts.unspilled_failed;
    reply.evictable_unspilled_small = cache->counts.unspilled_small;
    reply.evicted_bytes = cache->counts.evicted_bytes;
    reply.socket = rpc->options->socket;
    list_for_each (node, plugins_memory_kinds(rpc->plugins))
        n += container_of(node, struct memory_kind, link)->available;
    list_for_each (node, plugins_transports(rpc->plugins))
        n += container_of(node, struct transport, link)->available;
    reply.backends = arena_alloc(call->request.arena, (n + 1) * sizeof(char *));
    if (!reply.backends)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the answer");
    list_for_each (node, plugins_memory_kinds(rpc->plugins))
        if (container_of(node, struct memory_kind, link)->available)
            reply.backends[reply.n_backends++] = (char *)container_of(node, struct memory_kind, link)->name;
    list_for_each (node, plugins_transports(rpc->plugins))
        if (container_of(node, struct transport, link)->available)
            reply.backends[reply.n_backends++] = (char *)container_of(node, struct transport, link)->name;
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}

/* ---- one object ---- */

static const char *const visibility[] = {"owner", "tenant", "all"};

/* Whether it lies on a device, and not in memory that a client has exported. */
static bool is_copied_on_device(const struct object *object)
{
    bool on_device = false;

    for (uint32_t i = 0; i < object->memory.n_regions; i++) {
        if (object->memory.uses[i].region->origin == REGION_IMPORTED)
            return false;
        on_device = on_device || !region_is_host(object->memory.uses[i].region);
    }
    return on_device;
}

void object_view_fill(struct object_view *view, struct object *object)
{
    struct rdt_ref ref;
    Rdt__Pb__ObjectInfo *info = &view->info;

    rdt__pb__object_info__init(info);
    object_ref(object, &ref);
    rdt_ref_to_text(&ref, view->ref);
    wire_ref_id_text(object_id(object), object->tail.id_bytes, view->id);
    info->ref = view->ref;
    info->id = view->id;
    info->generation = object->generation;
    info->state = (char *)object_state_name(object);
    info->tenant = object->account->owner.tenant;
    info->uid = object->account->owner.uid;
    info->producer = object_producer_id(object);
    info->visibility = (char *)visibility[object->access.visibility];
    info->transport = (char *)object_transport(object);
    info->bytes = object->bytes;
    info->snapshot = object_is_constant(object);
    info->detached = object->survives.detached;
    info->evictable = cache_has(object);
    info->kept = object->record && object->kind != OBJECT_REPLICA;
    if (object->file.stored != OBJECT_NOT_STORED) {
        (void)snprintf(view->stored_file, sizeof view->stored_file, "%016" PRIx64 "%s.safetensors", object->generation,
                       cache_has(object) ? ".cache" : "");
        info->stored_dir = (char *)object->table->files.dir;
        info->stored_file = view->stored_file;
        info->storing = object->file.stored == OBJECT_STORING;
    }
    info->ttl_left_ns = object->survives.detached ? detached_left_ns(object) : -1;
    info->tensors = object_n_tensors(object);
    info->metadata_bytes = object->tail.metadata_bytes - object->tail.box_bytes;
    info->holds = object->holds;
    info->pins = object->pins;
    info->boxed = object->tail.box_bytes > 0;
    info->manifest = object->kind == OBJECT_MANIFEST;
    info->waiters = object_n_waiters(object);
    info->age_ns = (int64_t)(uv_hrtime() - object->since_ns);
    if (object->producer && object->producer->rpc.refused && is_copied_on_device(object)) {
        info->refusals = object->producer->rpc.refused->times;
        info->refusal = object->producer->rpc.refused->why;
        info->refusal_age_ns = (int64_t)(uv_hrtime() - object->producer->rpc.refused->since_ns);
    }
}

void name_view_fill(struct name_view *view, const struct name *name)
{
    Rdt__Pb__NameInfo *info = &view->info;
    struct rdt_ref ref;

    rdt__pb__name_info__init(info);
    view->ref[0] = '\0';
    wire_ref_id_text(name_id(name), name->id_bytes, view->name);
    info->name = view->name;
    info->tenant = (char *)name->account->owner.tenant;
    info->uid = name->account->owner.uid;
    info->version = name->version;
    info->ref = view->ref;
    info->waiters = name->n_waiters;
    info->visibility = (char *)visibility[name->visibility];
    info->age_ns = (int64_t)(uv_hrtime() - name->since_ns);
    info->lease_client = name->publisher ? name->publisher->id : 0;
    info->ttl_left_ns = deadline_left_ns(&name->expiry);
    if (!name->object)
        return;
    object_ref(name->object, &ref);
    rdt_ref_to_text(&ref, view->ref);
    info->bytes = name->object->bytes;
}

/* The object that is published under the name now, whatever its version. */
static enum rdt_status find_named(const struct call *call, const struct rdt_ref *ref, struct object **object_p,
                                  struct rdt_error *err)
{
    struct rdt_ref any = *ref;
    uint64_t version;
    enum rdt_status status;

    any.after = 0;
    status = names_find(call->rpc->names, &any, &call->account->owner, object_p, &version, err);
    if (status == RDT_AGAIN) {
        char why[200];
        struct owner owner = owner_of_ref(ref, &call->account->owner);
        names_explain_name(call->rpc->names, call->rpc->objects, &owner, (const uint8_t *)ref->id, ref->id_bytes,
                           &call->account->owner, why, sizeof why);
        return rdt_error_set(err, RDT_NOT_FOUND, "nothing is published under the name \"%s\"%s", ref->id, why);
    }
    return status;
}

/* Adds to a NOT_FOUND that a name of this id is published, as a user who mixes up the two needs to know. */
static enum rdt_status hint_at_name(const struct call *call, const struct rdt_ref *ref, enum rdt_status status,
                                    struct rdt_error *err)
{
    const struct owner *requester = &call->account->owner;
    struct owner owner = owner_of_ref(ref, requester);
    char hint[200];

    if (status != RDT_NOT_FOUND || ref->is_name)
        return status;
    names_explain_object(call->rpc->names, &owner, (const uint8_t *)ref->id, ref->id_bytes, requester, hint, sizeof hint);
    (void)strncat(err->msg, hint, sizeof err->msg - strlen(err->msg) - 1);
    return status;
}

enum rdt_status rpc_stat(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Stat *message = request;
    struct holders *holders;
    struct object_view view;
    struct object *object;
    struct rdt_ref ref;
    enum rdt_status status = call_ref(message->ref, &ref, err);

    if (status == RDT_OK)
        status = call_place_name(call, &ref, err);
    if (status != RDT_OK)
        return status == RDT_AGAIN ? RDT_OK : status;
    if (call_is_remote(call, &ref))
        return call_forward(call, &ref, &message->base, -1, err);
    if (ref.is_name)
        status = find_named(call, &ref, &object, err);
    else
        status = object_table_find_any(call->rpc->objects, &ref, &call->account->owner, call->admin, &object, err);
    if (status == RDT_AGAIN && (!object || !call_may_see(call, &object->account->owner)))
        status = object_table_not_put(&ref, &call->account->owner, err);
    if (status != RDT_OK && status != RDT_AGAIN)
        return hint_at_name(call, &ref, status, err);
    holders = holders_create(call->rpc, object, &call->account->owner, call->admin);
    if (!holders)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to list who holds \"%s\"", ref.id);
    object_view_fill(&view, object);
    holders_fill(holders, &view.info);
    call_reply(call, &view.info.base, NULL, 0);
    holders_destroy(holders);
    return RDT_OK;
}
