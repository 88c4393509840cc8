/* SPDX-License-Identifier: Apache-2.0 */
/* From a FETCH message to transfers. Everything that a client says is checked here, before anything starts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/base/text.h"
#include "daemon/transfers/coalescer.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/replica.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_record.h"
#include "wire_ref.h"

#define MAPPED_DEVICE_MAX_BYTES 98u     /* of one "KIND:UUID" */
#define MAPPED_DEVICES_MAX_BYTES 16384u /* of all that a client names */

static bool same_slice(const Rdt__Pb__Slice *a, const Rdt__Pb__Slice *b)
{
    if (!a || !b)
        return a == b;
    return a->n_start == b->n_start && a->n_count == b->n_count && a->n_ndim == b->n_ndim &&
           (a->n_start == 0 || memcmp(a->start, b->start, a->n_start * sizeof *a->start) == 0) &&
           (a->n_count == 0 || memcmp(a->count, b->count, a->n_count * sizeof *a->count) == 0) &&
           (a->n_ndim == 0 || memcmp(a->ndim, b->ndim, a->n_ndim * sizeof *a->ndim) == 0);
}

bool fetch_joinable(const Rdt__Pb__Fetch *message, const Rdt__Pb__FetchItem *a, const Rdt__Pb__FetchItem *b)
{
    struct rdt_ref x, y;

    /* Each item needs memory of its own. */
    if (message->mode == RDT__PB__FETCH_MODE__FETCH_MODE_COPY || a->targets || b->targets)
        return false;
    /* Device memory cannot be mapped privately. */
    if (message->mode == RDT__PB__FETCH_MODE__FETCH_MODE_COW && message->n_maps > 0)
        return false;
    if (wire_ref_to(a->ref, &x, NULL) != RDT_OK || wire_ref_to(b->ref, &y, NULL) != RDT_OK)
        return false;
    return rdt_ref_equal(&x, &y) && same_slice(a->slice, b->slice);
}

/* ---- targets ---- */

static struct region *find_region(const struct client *client, const Rdt__Pb__RegionUse *use)
{
    struct region *region = map_get_u64(&client->regions, use->region);

    return region && region->generation == use->generation && region->state != REGION_RETURNED ? region : NULL;
}

/* Checks that every tensor lies in a region that the client may write. regions[n] are the client's regions,
 * NULL where it has none; spans[n] are filled with the bytes of each region that the tensors use. */
static enum rdt_status check_targets(const struct layout *layout, const Rdt__Pb__FetchItem *item, struct region *const *regions,
                                     struct region_span *spans, struct rdt_error *err)
{
    for (size_t r = 0; r < item->n_target_regions; r++)
        spans[r] = (struct region_span){.lo = UINT64_MAX};
    for (uint32_t i = 0; i < layout->count; i++) {
        uint64_t tensor_lo, tensor_hi;
        uint32_t r = layout->region[i];
        enum rdt_status status;

        if (!layout_is_contiguous(layout, i))
            return rdt_error_set(err, RDT_MISMATCH, "target %u is not contiguous", i);
        status = layout_extent(layout, i, &tensor_lo, &tensor_hi, err);
        if (status != RDT_OK)
            return status;
        if (tensor_lo == tensor_hi)
            continue;
        if (r >= item->n_target_regions)
            return rdt_error_set(err, RDT_INVALID, "target %u names region %u of %zu", i, r, item->n_target_regions);
        if (!regions[r])
            return rdt_error_set(err, RDT_NOT_FOUND, "target %u lies in region %llu, which this client does not have", i,
                                 (unsigned long long)item->target_regions[r]->region);
        if (regions[r]->block.read_only)
            return rdt_error_set(err, RDT_INVALID, "target %u lies in memory that was imported read-only", i);
        if (tensor_hi > regions[r]->bytes)
            return rdt_error_set(err, RDT_INVALID, "target %u ends at byte %llu of a region of %llu bytes", i,
                                 (unsigned long long)tensor_hi, (unsigned long long)regions[r]->bytes);
        region_span_add(&spans[r], i, tensor_lo, tensor_hi);
    }
    /* The answer lists all of them, so each must exist. */
    for (size_t r = 0; r < item->n_target_regions; r++)
        if (!regions[r])
            return rdt_error_set(err, RDT_NOT_FOUND, "this client has no region %llu, which its targets list",
                                 (unsigned long long)item->target_regions[r]->region);
    return RDT_OK;
}

static enum rdt_status target_create(struct client *client, const Rdt__Pb__FetchItem *item, struct target **target_p,
                                     struct rdt_error *err)
{
    struct target *target;
    struct region **regions;
    struct region_span *spans;
    enum rdt_status status = RDT_OK;

    if (item->n_target_regions > RDT_MAX_TARGET_REGIONS)
        return rdt_error_set(err, RDT_LIMIT, "the targets lie in %zu regions: at most %u are allowed", item->n_target_regions,
                             RDT_MAX_TARGET_REGIONS);
    target = calloc(1, sizeof *target);
    if (!target)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the targets");
    target->uses = calloc(item->n_target_regions + 1, sizeof *target->uses);
    regions = calloc(item->n_target_regions + 1, sizeof(struct region *));
    spans = calloc(item->n_target_regions + 1, sizeof *spans);
    if (!target->uses || !regions || !spans)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the targets");
    if (status == RDT_OK)
        status = layout_from_wire(item->targets, &target->layout, err);
    if (status == RDT_OK && layout_run_tensors(item->targets) > 0) {
        uint64_t bytes = layout_heap_bytes(target->layout);
        status = account_take(client->account, USAGE_HEAP, bytes, err);
        target->heap_bytes = status == RDT_OK ? bytes : 0;
    }
    for (size_t r = 0; status == RDT_OK && r < item->n_target_regions; r++)
        regions[r] = find_region(client, item->target_regions[r]);
    if (status == RDT_OK)
        status = check_targets(target->layout, item, regions, spans, err);
    if (status == RDT_OK) {
        target->n = (uint32_t)item->n_target_regions;
        for (uint32_t r = 0; r < target->n; r++) {
            region_pin(regions[r]);
            target->uses[r].region = regions[r];
        }
        region_uses_add(target->uses, target->n, target->layout, spans);
        *target_p = target;
    } else {
        account_give(client->account, USAGE_HEAP, target->heap_bytes);
        free(target->layout);
        free(target->uses);
        free(target);
    }
    free(regions);
    free(spans);
    return status;
}

/* ---- names whose ref leaves the node open ---- */

/* Such a fetch waits for the name on this node, and becomes a pull as soon as the name is found on another one. */
static void on_found(struct name_seeker *seeker, const uint8_t node[16], const char *address)
{
    struct transfer *transfer = container_of(seeker, struct transfer, local.seeker);

    transfer_set_state(transfer, TRANSFER_NEW); /* it goes on as if the ref had named the node from the start */
    memcpy(transfer->ref.node, node, sizeof transfer->ref.node);
    text_copy(transfer->ref.address, sizeof transfer->ref.address, address);
    transfer->record.ref = transfer->ref;
    transfer_become(transfer, &transfer_pull_kind);
    transfer->kind->start(transfer);
}

/* Writes the node of the name into the ref, if this node knows that it is another one. */
static void place_name(struct transfers *transfers, const struct client *client, struct rdt_ref *ref)
{
    struct owner owner = owner_of_ref(ref, &client->account->owner);

    if (transfers->directory_names && ref_is_unplaced(ref))
        (void)directory_names_find(transfers->directory_names, &owner, (const uint8_t *)ref->id, ref->id_bytes, ref->node,
                                   ref->address);
}

/* PARKED, in other states nothing: looks for the name at its homes. May fail the transfer. */
static void seek_name(struct transfer *transfer)
{
    struct directory_names *all = transfer->transfers->directory_names;
    struct owner owner = owner_of_ref(&transfer->ref, &transfer->account->owner);
    struct rdt_error err;

    if (transfer->sm.state != TRANSFER_PARKED || !all || !ref_is_unplaced(&transfer->ref) || !directory_names_active(all))
        return;
    transfer->local.seeker.on_found = on_found;
    if (directory_names_seek(all, &owner, (const uint8_t *)transfer->ref.id, transfer->ref.id_bytes, &transfer->local.seeker,
                             &err) != RDT_OK)
        transfer_fail_err(transfer, &err);
}

/* ---- starting ---- */

/* What nobody has done here, for a fetch that waited for it on this node. */
static void say_nobody_put_it(const struct fetch *fetch, char missing[480])
{
    const struct rdt_ref *ref = &fetch->transfer->ref;
    const struct owner *requester = &fetch->client->account->owner;
    const struct transfers *transfers = fetch->transfer->transfers;
    struct owner owner = owner_of_ref(ref, requester);
    char hint[200], away[280] = "";

    if (fetch->transfer->local.seeker.seek)
        directory_names_explain(transfers->directory_names, &owner, (const uint8_t *)ref->id, ref->id_bytes, away, sizeof away);
    if (ref->is_name)
        names_explain_name(transfers->names, transfers->objects, &owner, (const uint8_t *)ref->id, ref->id_bytes, requester,
                           hint, sizeof hint);
    else
        names_explain_object(transfers->names, &owner, (const uint8_t *)ref->id, ref->id_bytes, requester, hint, sizeof hint);
    (void)snprintf(missing, 480, "%s%s%s%s",
                   ref->is_name ? "nobody has published such a version of it" : "nobody has put an object with this id",
                   owner_equal(&owner, requester) ? "" : ", or its owner does not show it to you", hint, away);
}

/* How far a transfer from another node had come. */
static void say_how_far(const struct transfer *transfer, char missing[480])
{
    const char *node = transfer->pull.peer ? transfer->pull.peer->peer->name : "the object";
    char trouble[192] = "";

    switch ((enum transfer_state)transfer->sm.state) {
    case TRANSFER_LINK:
        (void)snprintf(missing, 480, "the link to node %s is not up: rdtctl peers says why", node);
        break;
    case TRANSFER_ASKED:
        if (transfer->pull.answer.state == ANSWER_PARKED)
            (void)snprintf(missing, 480, "on node %s nobody has %s, or its owner does not show it to you", node,
                           transfer->ref.is_name ? "published such a version of it" : "put an object with this id");
        else
            (void)snprintf(missing, 480, "node %s has not answered", node);
        break;
    case TRANSFER_MOVE:
        if (transfer->pull.path.connection)
            (void)plugin_conn_trouble(&transfer->pull.path.connection->conn, trouble, sizeof trouble);
        (void)snprintf(missing, 480, "%llu of %llu bytes had arrived from node %s%s%s%s",
                       (unsigned long long)transfer->record.bytes_done, (unsigned long long)transfer->record.bytes, node,
                       trouble[0] ? ", to which this one cannot connect (" : "", trouble, trouble[0] ? ")" : "");
        break;
    case TRANSFER_RESERVE:
        if (transfer->pull.delta == DELTA_MAKING)
            (void)snprintf(missing, 480, "it was being made of an earlier version and a delta from node %s", node);
        else
            (void)snprintf(missing, 480, "there was no memory yet for the %llu bytes",
                           (unsigned long long)transfer->record.bytes);
        break;
    case TRANSFER_CONNECT:
        (void)snprintf(missing, 480, "the transport's connection to node %s was not up", node);
        break;
    case TRANSFER_TICKET:
        (void)snprintf(missing, 480, "earlier transfers between node %s and this one had not ended", node);
        break;
    default:
        (void)snprintf(missing, 480, "it was %s", sm_name(&transfer->sm));
    }
}

#define NO_WAIT_NS 200000000 /* what a fetch that does not wait has for bytes that are there */

static void on_deadline(struct deadline *deadline)
{
    struct fetch *fetch = container_of(deadline, struct fetch, deadline);
    struct transfer *transfer = fetch->transfer;
    bool missed =
        fetch->no_wait && transfer->sm.state == TRANSFER_PARKED && !transfer->local.checks && !transfer->local.seeker.seek;
    struct rdt_error err;
    char missing[480];

    if (fetch_answer_now(fetch))
        return;
    if (fetch->no_wait && !fetch->extended &&
        (transfer->sm.state != TRANSFER_PARKED || transfer->local.seeker.seek ||
         transfer->local.checks)) { /* what is there may come */
        fetch->extended = true;
        if (deadline_set(transfer->transfers->deadlines, deadline, NO_WAIT_NS))
            return;
    }
    if (transfer->sm.state == TRANSFER_PARKED && transfer->local.checks)
        (void)snprintf(missing, sizeof missing, "its stored file was being compared with its checksums");
    else if (transfer->sm.state == TRANSFER_PARKED)
        say_nobody_put_it(fetch, missing);
    else if (transfer->kind->pulls)
        say_how_far(transfer, missing);
    else
        (void)snprintf(missing, sizeof missing, "%llu of %llu bytes were copied",
                       (unsigned long long)transfer->record.bytes_done, (unsigned long long)transfer->record.bytes);
    if (fetch->no_wait && transfer->kind->pulls && transfer->sm.state == TRANSFER_ASKED)
        missed = transfer->pull.answer.state == ANSWER_PARKED;
    (void)rdt_error_set(&err, missed ? RDT_NOT_PUT : RDT_TIMED_OUT, "the fetch of %s \"%s\" %s: %s",
                        transfer->ref.is_name ? "the name" : "object", transfer->ref.id,
                        missed ? "does not wait" : "did not end in time", missing);
    fetch_fail(fetch, &err);
}

static enum rdt_status join(struct client *client, struct transfer *transfer, const Rdt__Pb__Fetch *message,
                            const Rdt__Pb__FetchItem *item, bool joined, struct rdt_error *err)
{
    bool is_name = transfer->ref.is_name; /* All fetches that wait for a name want the same version. */
    struct fetch *fetch;

    if (account_take(client->account, USAGE_TRANSFERS, 1, err) != RDT_OK)
        return RDT_LIMIT;
    fetch = calloc(1, sizeof *fetch);
    if (!fetch) {
        account_give(client->account, USAGE_TRANSFERS, 1);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the fetch");
    }
    fetch->client = client;
    fetch->handle = item->handle;
    fetch->transfer = transfer;
    fetch->deadline.on_passed = on_deadline;
    fetch->joined = !joined ? FETCH_ALONE : is_name ? FETCH_JOINED : FETCH_MERGED;
    fetch->message = message->fds_once ? client->transfers.n_fetch_messages : 0;
    fetch->no_wait = message->timeout_ns == 0;
    fetch->cow = message->mode == RDT__PB__FETCH_MODE__FETCH_MODE_COW;
    if (!map_put_u64(&client->transfers.fetches, item->handle, fetch)) {
        account_give(client->account, USAGE_TRANSFERS, 1);
        free(fetch);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the fetch");
    }
    if (!deadline_set(transfer->transfers->deadlines, &fetch->deadline, message->timeout_ns)) {
        map_remove_u64(&client->transfers.fetches, item->handle);
        account_give(client->account, USAGE_TRANSFERS, 1);
        free(fetch);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the deadline");
    }
    list_append(&transfer->fetches, &fetch->by_transfer);
    transfer->n_fetches++;
    if (!transfer->client)
        transfer->client = client;
    return RDT_OK;
}

static bool wants_device(const Rdt__Pb__Fetch *message)
{
    return message->memory[0] != '\0' && strcasecmp(message->memory, "host") != 0;
}

/* Notes which memory kinds the client's process can map. It never loses one. */
static void note_maps(struct client *client, const Rdt__Pb__Fetch *message)
{
    for (size_t i = 0; i < message->n_maps; i++) {
        size_t used = strlen(client->transfers.maps);
        if (strlen(message->maps[i]) <= 32 && !client_maps(client, message->maps[i]) &&
            used + 40 < sizeof client->transfers.maps)
            (void)snprintf(client->transfers.maps + used, sizeof client->transfers.maps - used, " %s ", message->maps[i]);
    }
}

/* Notes which devices the client can map, if it says so. It never loses one. */
static enum rdt_status note_devices(struct client *client, const Rdt__Pb__Fetch *message, struct rdt_error *err)
{
    char *known = client->transfers.mapped_devices;
    size_t used = known ? strlen(known) : 0, bytes = used + 2;
    char *now;

    for (size_t i = 0; i < message->n_mapped_devices; i++) {
        const char *name = message->mapped_devices[i];
        if (strlen(name) > MAPPED_DEVICE_MAX_BYTES || !strchr(name, ':') || strchr(name, ' '))
            return rdt_error_set(err, RDT_INVALID, "device %zu that the client can map is not named \"KIND:UUID\"", i);
        bytes += strlen(name) + 1;
    }
    if (message->n_mapped_devices == 0)
        return RDT_OK;
    now = realloc(known, bytes);
    if (!now)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the devices that the client can map");
    if (!known)
        now[used++] = ' ';
    now[used] = '\0';
    client->transfers.mapped_devices = now;
    for (size_t i = 0; i < message->n_mapped_devices; i++) {
        char word[MAPPED_DEVICE_MAX_BYTES + 3];
        (void)snprintf(word, sizeof word, " %s ", message->mapped_devices[i]);
        if (strcasestr(now, word))
            continue;
        if (used + strlen(word) > MAPPED_DEVICES_MAX_BYTES)
            return rdt_error_set(err, RDT_LIMIT, "the client names more than %u bytes of devices that it can map",
                                 MAPPED_DEVICES_MAX_BYTES);
        (void)memcpy(now + used, word + 1, strlen(word));
        used += strlen(word) - 1;
    }
    return RDT_OK;
}

static enum rdt_status check_wishes(struct transfers *transfers, const Rdt__Pb__Fetch *message, struct rdt_error *err)
{
    char loaded[256];

    if (strlen(message->transport) > 64 || strlen(message->least_path) > 64 || strlen(message->group) > 64)
        return rdt_error_set(err, RDT_INVALID, "a path's name has at most 64 characters");
    if (strlen(message->memory) > 32 || strlen(message->device) > 64)
        return rdt_error_set(err, RDT_INVALID, "a kind of memory has at most 32 characters, a device's uuid 64");
    if (!wants_device(message) && message->device[0] != '\0' && strcmp(message->device, "cpu") != 0 &&
        strcmp(message->device, "host") != 0)
        return rdt_error_set(err, RDT_UNSUPPORTED, "device \"%s\" is named without its kind of memory", message->device);
    if (message->transport[0] != '\0' && !plugins_transport(transfers->plugins, message->transport) &&
        strcasecmp(message->transport, "inline") != 0 && strncmp(message->transport, "local", 5) != 0 &&
        strcmp(message->transport, "share") != 0 && strcmp(message->transport, "cow") != 0 &&
        strcmp(message->transport, "copy") != 0) {
        plugins_transport_names(transfers->plugins, loaded, sizeof loaded);
        return rdt_error_set(err, RDT_UNSUPPORTED, "transport \"%s\" is not loaded here; loaded: %s", message->transport,
                             loaded);
    }
    return RDT_OK;
}

/* Asking for a group asks for its transport too. */
static enum rdt_status check_group(const struct transfers *transfers, const struct client *client,
                                   const Rdt__Pb__Fetch *message, const struct group **group_p, struct rdt_error *err)
{
    const struct group *group = NULL;

    *group_p = NULL;
    if (message->group[0] == '\0')
        return RDT_OK;
    group = group_find(transfers->groups, &client->account->owner, message->group);
    if (!group)
        return rdt_error_set(err, RDT_NOT_FOUND, "this node has no member in a group \"%s\" of uid %u", message->group,
                             client->account->owner.uid);
    if (!group_has(group, transfers->node->uuid, client->name, NULL))
        return rdt_error_set(err, RDT_DENIED, "client \"%s\" is no member of group \"%s\"", client->name, message->group);
    if (message->transport[0] != '\0' && strcasecmp(message->transport, group->transport->name) != 0)
        return rdt_error_set(err, RDT_INVALID, "group \"%s\" is one of %s, not of %s", message->group, group->transport->name,
                             message->transport);
    *group_p = group;
    return RDT_OK;
}

/* Whether a snapshot that is fetched in this way may become a replica on this node: all of it, by any path,
 * in memory that others may read. */
static bool may_become_replica(const Rdt__Pb__Fetch *message, const Rdt__Pb__FetchItem *item)
{
    return !wants_device(message) &&
           (message->mode == RDT__PB__FETCH_MODE__FETCH_MODE_AUTO || message->mode == RDT__PB__FETCH_MODE__FETCH_MODE_COW) &&
           !message->meta_only && message->transport[0] == '\0' && message->group[0] == '\0' &&
           message->least_path[0] == '\0' && !item->targets && !item->slice;
}

static struct transfer *find_joinable(struct transfers *transfers, const struct client *client, const Rdt__Pb__Fetch *message,
                                      const Rdt__Pb__FetchItem *item, const struct rdt_ref *ref)
{
    const struct owner *requester = &client->account->owner;
    struct replica *replica = may_become_replica(message, item) ? replica_for(&transfers->replicas, ref, requester) : NULL;

    if (replica)
        return replica->filling; /* NULL: the replica is complete and serves at once. */
    return !wants_device(message) && coalescer_fits(message, item, ref) ? coalescer_open(transfers, ref, requester) : NULL;
}

bool transfers_has(const struct transfers *transfers, const struct client *client, const struct rdt_ref *ref)
{
    bool trusted;

    return replica_for(&transfers->replicas, ref, &client->account->owner) ||
           (transfers->held.find && transfers->held.find(transfers->held.follows, client, ref, &trusted));
}

enum rdt_status fetch_start(struct transfers *transfers, struct client *client, const Rdt__Pb__Fetch *message,
                            const Rdt__Pb__FetchItem *item, struct transfer *twin, struct transfer **transfer_p,
                            struct rdt_error *err)
{
    const struct group *group;
    struct transfer *transfer;
    struct rdt_ref ref;
    enum rdt_status status;
    struct object *held = NULL;
    bool joins = false, is_here, trusted = false;

    if (item->handle == 0 || map_get_u64(&client->transfers.fetches, item->handle))
        return rdt_error_set(err, RDT_INVALID, "fetch handle %llu is 0 or in use", (unsigned long long)item->handle);
    if ((unsigned)message->mode > RDT__PB__FETCH_MODE__FETCH_MODE_COW)
        return rdt_error_set(err, RDT_INVALID, "fetch mode %d is unknown", (int)message->mode);
    status = wire_ref_to(item->ref, &ref, err);
    if (status == RDT_OK)
        status = check_wishes(transfers, message, err);
    if (status == RDT_OK)
        status = check_group(transfers, client, message, &group, err);
    if (status == RDT_OK)
        status = note_devices(client, message, err);
    if (status != RDT_OK)
        return status;
    place_name(transfers, client, &ref);
    is_here = node_is_here(transfers->node, ref.node, ref.address);
    if (transfers->held.find)
        held = transfers->held.find(transfers->held.follows, client, &ref, &trusted);
    if (!twin && !is_here && !held) {
        twin = find_joinable(transfers, client, message, item, &ref);
        joins = twin;
        transfers->counts->fetches_joined += joins;
    }
    if (twin) {
        *transfer_p = NULL;
        return join(client, twin, message, item, joins, err);
    }
    transfer =
        transfer_new(transfers, is_here || held ? &transfer_local_kind : &transfer_pull_kind, client, client->account, &ref);
    if (!transfer)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the transfer");
    if (held)
        transfer_local_hold(transfer, held, trusted);
    transfer->wish.mode = message->mode;
    transfer->wish.meta_only = message->meta_only;
    transfer->wish.self_copy_bytes = message->self_copy_bytes;
    transfer->wish.copies_on_devices = message->copies_on_devices;
    client->mapped.moves |= message->moves_mappings;
    if (!wants_device(message) && coalescer_fits(message, item, &ref))
        transfer->wish.sharing = SHARES_REQUEST;
    else if (may_become_replica(message, item))
        transfer->wish.sharing = SHARES_REPLICA;
    text_copy(transfer->wish.memory, sizeof transfer->wish.memory, item->to_host ? "host" : message->memory);
    text_copy(transfer->wish.device, sizeof transfer->wish.device, item->to_host ? "" : message->device);
    transfer->wish.host_stays = message->host_stays;
    note_maps(client, message);
    memcpy(transfer->wish.transport, message->transport, strlen(message->transport) + 1);
    memcpy(transfer->wish.least, message->least_path, strlen(message->least_path) + 1);
    if (group) {
        text_copy(transfer->wish.transport, sizeof transfer->wish.transport, group->transport->name);
        text_copy(transfer->wish.group, sizeof transfer->wish.group, group->name);
    }
    if (item->slice && !(transfer->wish.slice = slice_dup(item->slice)))
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for the slice");
    if (status == RDT_OK)
        status = destination_check_wish(transfer, err);
    if (status == RDT_OK && item->targets)
        status = target_create(client, item, &transfer->move.target, err);
    if (status == RDT_OK)
        status = join(client, transfer, message, item, false, err);
    if (status != RDT_OK) {
        record_fail(&transfer->record, err);
        transfer_end(transfer);
        return status;
    }
    *transfer_p = transfer;
    return RDT_OK;
}

void transfer_go(struct transfer *transfer, struct reservation *reservation)
{
    struct transfers *transfers = transfer->transfers;
    uint64_t id = transfer->id;

    transfer->move.reserve.message = reservation;
    transfer->kind->start(transfer);
    transfer = transfers_find(transfers, id);
    if (!transfer)
        return;
    transfer->move.reserve.message = NULL; /* The transfer waits for an event. The reservation serves the other items. */
    seek_name(transfer);
}
