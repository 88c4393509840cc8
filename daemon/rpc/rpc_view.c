/* PING, STATUS and STAT. */
#include "daemon/rpc/rpc_view.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/objects/detached.h"
#include "daemon/objects/transit.h"
#include "daemon/memory/region_orphans.h"
#include "wire_ref.h"

enum rdt_status rpc_ping(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Ping *ping = request;
    Rdt__Pb__Ping reply = RDT__PB__PING__INIT;

    (void)err;
    reply.data = ping->data;
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}

enum rdt_status rpc_status(struct call *call, const void *request, struct rdt_error *err)
{
    const struct rpc *rpc = call->rpc;
    Rdt__Pb__StatusReply reply = RDT__PB__STATUS_REPLY__INIT;
    char uuid[33], boot[33], *backends[16];
    struct transfers_stats transfers;

    (void)request;
    (void)err;
    node_hex(rpc->node->uuid, uuid);
    node_hex(rpc->node->boot_id, boot);
    reply.version = (char *)RDTD_VERSION;
    reply.node = uuid;
    reply.boot_id = boot;
    reply.address = (char *)rpc->node->address;
    reply.state = (char *)(rpc->draining ? "draining" : "serving");
    reply.uptime_ns = (int64_t)(uv_hrtime() - rpc->started_ns);
    reply.pid = getpid();
    reply.clients = rpc->n_clients;
    reply.objects = rpc->objects->by_generation.used;
    reply.regions = rpc->regions->by_id.used;
    reply.memory_bytes = regions_used_bytes(rpc->regions);
    reply.pool_bytes = rpc->regions->ready.bytes;
    reply.pool_hits = rpc->regions->ready.hits;
    reply.pool_misses = rpc->regions->ready.misses;
    reply.cached_bytes = rpc->regions->cached_bytes;
    reply.cache_hits = rpc->regions->cached_hits;
    reply.orphaned_bytes = region_orphans_bytes(rpc->regions->left);
    reply.memory_limit_bytes = rpc->regions->limit_bytes;
    if (rpc->peers)
        list_for_each (node, peers_all(rpc->peers)) {
            reply.peers_known++;
            reply.peers_up += container_of(node, struct peer, link)->state == PEER_UP;
        }
    transfers_stats(rpc->transfers, &transfers);
    reply.transfers_active = transfers.active;
    reply.transfers_done = transfers.done;
    reply.transfers_failed = transfers.failed;
    reply.busy_polls = rpc->busy_poll.rule.n_found + rpc->busy_poll.rule.n_missed;
    reply.busy_polls_missed = rpc->busy_poll.rule.n_missed;
    reply.bytes_in = transfers.bytes_in;
    reply.bytes_out = transfers.bytes_out;
    reply.bytes_local = transfers.bytes_local;
    reply.fetches_joined = transfers.fetches_joined;
    reply.fell_back = transfers.fell_back;
    reply.replicas = transfers.replicas;
    reply.replica_bytes = transfers.replica_bytes;
    reply.fetches_from_replicas = transfers.replica_fetches;
    reply.redirected = transfers.redirected;
    reply.socket = rpc->options->socket;
    reply.backends = backends;
    list_for_each (node, plugins_memory_kinds(rpc->plugins)) {
        if (reply.n_backends < 16)
            backends[reply.n_backends++] = (char *)container_of(node, struct memory_kind, link)->name;
    }
    list_for_each (transport_node, plugins_transports(rpc->plugins)) {
        if (reply.n_backends < 16 && container_of(transport_node, struct transport, link)->available)
            backends[reply.n_backends++] = (char *)container_of(transport_node, struct transport, link)->name;
    }
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}

/* ---- one object ---- */

static const char *const visibility[] = {"owner", "tenant", "all"};

static size_t count_names(const struct rpc *rpc, const struct object *object)
{
    struct list *cursor = NULL;
    size_t n = 0;

    while (names_of_object(rpc->names, object, &cursor))
        n++;
    return n;
}

static size_t count_holders(const struct object *object, enum holder_kind kind)
{
    size_t n = 0;

    list_for_each (node, object_holders(object, kind))
        n++;
    return n;
}

/* One row for each node that holds the object, up to max; uuids receives the nodes' names. Returns the number of rows. */
static size_t fill_nodes(Rdt__Pb__HoldInfo *rows, char (*uuids)[33], size_t max, const struct object *object)
{
    char uuid[33];
    size_t n = 0;

    list_for_each (node, object_holders(object, HOLDER_NODE)) {
        size_t row = 0;
        node_hex(node_hold_peer(container_of(node, struct node_hold, by_object))->uuid, uuid);
        while (row < n && strcmp(uuids[row], uuid) != 0)
            row++;
        if (row == max)
            continue;
        if (row == n) {
            memcpy(uuids[n], uuid, sizeof uuid);
            rdt__pb__hold_info__init(&rows[n]);
            rows[n].kind = (char *)"peer";
            rows[n].peer = uuids[n];
            n++;
        }
        rows[row].count++;
    }
    return n;
}

static void fill_holders(struct object_view *view, const struct rpc *rpc, struct object *object, size_t n_names)
{
    size_t n = 0, max = object_is_kept(object) + object->in_transit + 1u + n_names;
    struct list *cursor = NULL, *copy_cursor = NULL;
    const struct replica_entry *entry;
    const struct name *name;
    size_t n_copies = 0, n_nodes = 0, n_node_holds = count_holders(object, HOLDER_NODE);

    if (rpc->peers)
        list_for_each (node, peers_all(rpc->peers))
            n_nodes++;
    if (n_nodes > n_node_holds)
        n_nodes = n_node_holds;
    max += n_nodes + count_holders(object, HOLDER_READER) + count_holders(object, HOLDER_REMOTE);
    while (replica_directory_next(&rpc->transfers->directory, object->generation, &copy_cursor))
        n_copies++;
    max += n_copies;
    view->holds = calloc(max, sizeof *view->holds);
    view->hold_list = calloc(max, sizeof *view->hold_list);
    view->names = calloc(n_names + 1, sizeof *view->names);
    view->copies = calloc(n_copies + n_nodes + 1, sizeof *view->copies);
    if (!view->holds || !view->hold_list || !view->names || !view->copies)
        return;
    if (object_is_kept(object)) {
        rdt__pb__hold_info__init(&view->holds[n]);
        view->holds[n].kind = (char *)(object->producer ? "producer" : "detached");
        view->holds[n++].client = object->producer_id;
    }
    list_for_each (node, object_holders(object, HOLDER_READER)) {
        const struct hold *hold = container_of(node, struct hold, by_object);
        rdt__pb__hold_info__init(&view->holds[n]);
        view->holds[n].hold = hold->id;
        view->holds[n].kind = (char *)"client";
        view->holds[n++].client = hold->client->id;
    }
    list_for_each (remote_hold_node, object_holders(object, HOLDER_REMOTE)) {
        const struct remote_hold *keeping = container_of(remote_hold_node, struct remote_hold, by_object);
        rdt__pb__hold_info__init(&view->holds[n]);
        view->holds[n].hold = keeping->request_id;
        view->holds[n].kind = (char *)"keeping";
        view->holds[n++].client = keeping->client->id;
    }
    if (object->in_transit) {
        rdt__pb__hold_info__init(&view->holds[n]);
        view->holds[n++].kind = (char *)"in transit";
    }
    n += fill_nodes(&view->holds[n], view->copies + n_copies, n_nodes, object);
    for (size_t i = 0; (name = names_of_object(rpc->names, object, &cursor)); i++) {
        rdt__pb__hold_info__init(&view->holds[n]);
        wire_ref_id_text(name_id(name), name->id_bytes, view->names[i]);
        view->holds[n].kind = (char *)"name";
        view->holds[n].name = view->names[i];
        view->holds[n++].version = name->version;
    }
    copy_cursor = NULL;
    for (size_t i = 0; (entry = replica_directory_next(&rpc->transfers->directory, object->generation, &copy_cursor)); i++) {
        rdt__pb__hold_info__init(&view->holds[n]);
        node_hex(replica_entry_peer(entry)->uuid, view->copies[i]);
        view->holds[n].kind = (char *)(entry->whole ? "copy" : "copy being made");
        view->holds[n++].peer = view->copies[i];
    }
    for (size_t i = 0; i < n; i++)
        view->hold_list[i] = &view->holds[i];
    view->info.n_holders = n;
    view->info.holders = view->hold_list;
}

static void fill_why(struct object_view *view, const struct object *object, size_t n_names)
{
    size_t readers = count_holders(object, HOLDER_READER), keeping = count_holders(object, HOLDER_REMOTE),
           nodes = count_holders(object, HOLDER_NODE);
    size_t n = 0;

    if (object->producer)
        (void)snprintf(view->why[n++], sizeof view->why[0], "client %llu put it and has not freed it",
                       (unsigned long long)object->producer_id);
    else if (object->detached)
        (void)snprintf(view->why[n++], sizeof view->why[0], "it is detached: client %llu put it and is gone, %.1f s are left",
                       (unsigned long long)object->producer_id, (double)detached_left_ns(object) / 1e9);
    if (n_names > 0)
        (void)snprintf(view->why[n++], sizeof view->why[0], "it is the newest version of %zu published name%s", n_names,
                       n_names == 1 ? "" : "s");
    if (readers > 0)
        (void)snprintf(view->why[n++], sizeof view->why[0], "%zu reader%s on this node", readers, readers == 1 ? "" : "s");
    if (keeping > 0)
        (void)snprintf(view->why[n++], sizeof view->why[0], "%zu hold%s of clients of this node that may fetch it yet", keeping,
                       keeping == 1 ? "" : "s");
    if (object->in_transit) {
        int64_t left_ns;
        unsigned refs = transit_count(object, &left_ns);

        (void)snprintf(view->why[n++], sizeof view->why[0], "%u ref%s on the way to another process, for %.1f s at most", refs,
                       refs == 1 ? "" : "s", (double)left_ns / 1e9);
    }
    if (nodes > 0)
        (void)snprintf(view->why[n++], sizeof view->why[0], "%zu hold%s of clients of other nodes that may fetch it yet", nodes,
                       nodes == 1 ? "" : "s");
    if (object_peer_holds(object) > 0)
        (void)snprintf(view->why[n++], sizeof view->why[0], "%u transfer%s to other nodes", object_peer_holds(object),
                       object_peer_holds(object) == 1 ? "" : "s");
    if (object->pins > 0)
        (void)snprintf(view->why[n++], sizeof view->why[0], "%u engine%s at its memory", object->pins,
                       object->pins == 1 ? "" : "s");
    for (size_t i = 0; i < n; i++)
        view->why_list[i] = view->why[i];
    view->info.n_why = n;
    view->info.why = view->why_list;
}

void object_view_fill(struct object_view *view, const struct rpc *rpc, struct object *object, bool with_holders)
{
    struct rdt_ref ref;
    Rdt__Pb__ObjectInfo *info = &view->info;

    rdt__pb__object_info__init(info);
    view->holds = NULL;
    view->names = NULL;
    view->hold_list = NULL;
    view->copies = NULL;
    object_ref(object, &ref);
    rdt_ref_to_text(&ref, view->ref);
    wire_ref_id_text(object_id(object), object->id_bytes, view->id);
    info->ref = view->ref;
    info->id = view->id;
    info->generation = object->generation;
    info->state = (char *)object_state_name(object);
    info->tenant = object->account->owner.tenant;
    info->uid = object->account->owner.uid;
    info->producer = object->producer_id;
    info->visibility = (char *)visibility[object->visibility];
    info->transport = (char *)object->transport;
    info->bytes = object->bytes;
    info->snapshot = object->snapshot;
    info->detached = object->detached;
    info->ttl_left_ns = object->detached ? detached_left_ns(object) : -1;
    info->tensors = object_n_tensors(object);
    info->metadata_bytes = object->metadata_bytes;
    info->holds = object->holds;
    info->pins = object->pins;
    info->waiters = object_n_waiters(object);
    info->age_ns = (int64_t)(uv_hrtime() - object->since_ns);
    if (with_holders) {
        size_t n_names = count_names(rpc, object);
        fill_holders(view, rpc, object, n_names);
        fill_why(view, object, n_names);
    }
}

void object_view_fini(struct object_view *view)
{
    free(view->holds);
    free(view->hold_list);
    free(view->names);
    free(view->copies);
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
    return status == RDT_AGAIN ? rdt_error_set(err, RDT_NOT_FOUND, "nothing is published under the name \"%s\"", ref->id)
                               : status;
}

enum rdt_status rpc_stat(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Stat *message = request;
    struct object_view view;
    struct object *object;
    struct rdt_ref ref;
    enum rdt_status status = call_ref(message->ref, &ref, err);

    if (status != RDT_OK)
        return status;
    if (call_is_remote(call, &ref))
        return call_forward(call, &ref, &message->base, -1, err);
    if (ref.is_name)
        status = find_named(call, &ref, &object, err);
    else
        status = object_table_find_any(call->rpc->objects, &ref, &call->account->owner, &object, err);
    if (status == RDT_AGAIN && !object)
        return rdt_error_set(err, RDT_NOT_FOUND, "nobody has put object \"%s\", or it has ended", ref.id);
    if (status != RDT_OK && status != RDT_AGAIN)
        return status;
    if (!call->admin && !object_visible_to(object, &call->account->owner))
        return rdt_error_set(err, RDT_DENIED, "object \"%s\" is not visible to uid %u", ref.id, call->account->owner.uid);
    object_view_fill(&view, call->rpc, object, call_may_see(call, &object->account->owner));
    call_reply(call, &view.info.base, NULL, 0);
    object_view_fini(&view);
    return RDT_OK;
}
