/* PUT: an object over memory that the client has, in one round trip whatever the number of tensors. */
#include <stdlib.h>

#include "daemon/rpc_call.h"
#include "wire_ref.h"

#define PUT_SNAPSHOT 1u
#define PUT_DETACHED 2u
#define MAX_REGIONS 4096u

/* Every tensor lies in a region of this client's. */
static enum rdt_status check_places(const struct layout *layout, struct region **regions, size_t n, struct rdt_error *err)
{
    for (uint32_t i = 0; i < layout->count; i++) {
        uint64_t lo, hi;
        enum rdt_status status = layout_extent(layout, i, &lo, &hi, err);
        if (status != RDT_OK)
            return status;
        if (lo == hi)
            continue; /* no elements: it needs no memory */
        if (layout->region[i] >= n)
            return rdt_error_set(err, RDT_INVALID, "tensor %u names region %u of %zu", i, layout->region[i], n);
        if (hi > regions[layout->region[i]]->bytes)
            return rdt_error_set(err, RDT_INVALID, "tensor %u ends at byte %llu of region %llu, which has %llu", i,
                                 (unsigned long long)hi, (unsigned long long)regions[layout->region[i]]->id,
                                 (unsigned long long)regions[layout->region[i]]->bytes);
    }
    return RDT_OK;
}

static enum rdt_status check_transport(const struct call *call, const char *name, struct region **regions, size_t n,
                                       const char **name_p, struct rdt_error *err)
{
    struct transport *transport;
    char names[192];

    *name_p = "";
    if (name[0] == '\0')
        return RDT_OK;
    transport = plugins_transport(call->rpc->plugins, name);
    if (!transport) {
        plugins_transport_names(call->rpc->plugins, names, sizeof names);
        return rdt_error_set(err, RDT_UNSUPPORTED, "transport \"%.64s\" is not loaded; loaded: %s", name, names);
    }
    for (size_t i = 0; i < n; i++)
        if (!transport_moves(transport, regions[i]->kind->name))
            return rdt_error_set(err, RDT_UNSUPPORTED, "transport %s does not move %s memory", transport->name,
                                 regions[i]->kind->name);
    *name_p = transport->name;
    return RDT_OK;
}

static enum rdt_status put(struct call *call, const Rdt__Pb__Put *message, struct region **regions, struct rdt_error *err)
{
    struct object_put put = {.account = call->account,
                             .id = message->id.data,
                             .id_bytes = message->id.len,
                             .metadata = message->metadata.data,
                             .metadata_bytes = message->metadata.len,
                             .regions = regions,
                             .n_regions = (uint32_t)message->n_regions,
                             .visibility = message->visibility,
                             .producer = call->client};
    Rdt__Pb__PutReply reply = RDT__PB__PUT_REPLY__INIT;
    Rdt__Pb__Ref wire;
    struct object *object;
    struct rdt_ref ref;
    enum rdt_status status;

    for (size_t i = 0; i < message->n_regions; i++) {
        const Rdt__Pb__RegionUse *use = message->regions[i];
        regions[i] = map_get_u64(&call->client->regions, use->region);
        if (!regions[i] || regions[i]->generation != use->generation)
            return rdt_error_set(err, RDT_NOT_FOUND, "this client has no region %llu", (unsigned long long)use->region);
    }
    status = check_transport(call, message->transport, regions, message->n_regions, &put.transport, err);
    if (status == RDT_OK)
        status = layout_from_wire(message->tensors, &put.layout, err);
    if (status != RDT_OK)
        return status;
    status = check_places(put.layout, regions, message->n_regions, err);
    if (status == RDT_OK)
        status = object_table_put(call->rpc->objects, &put, &object, err);
    if (status != RDT_OK) {
        free(put.layout);
        return status;
    }
    object_ref(object, &ref);
    wire_ref_from(&ref, &wire);
    reply.ref = &wire;
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}

enum rdt_status rpc_put(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Put *message = request;
    struct region **regions;
    enum rdt_status status;

    if (call->rpc->draining)
        return rdt_error_set(err, RDT_SHUTTING_DOWN, "the daemon is shutting down");
    if (message->id.len > RDT_MAX_ID_BYTES)
        return rdt_error_set(err, RDT_INVALID, "an id of %zu bytes: at most %u", message->id.len, RDT_MAX_ID_BYTES);
    if (message->metadata.len > RDT_MAX_METADATA_BYTES)
        return rdt_error_set(err, RDT_LIMIT, "metadata of %zu bytes: at most %u", message->metadata.len,
                             RDT_MAX_METADATA_BYTES);
    if (message->n_regions > MAX_REGIONS)
        return rdt_error_set(err, RDT_LIMIT, "tensors in %zu regions: at most %u", message->n_regions, MAX_REGIONS);
    if (message->flags & (PUT_SNAPSHOT | PUT_DETACHED))
        return rdt_error_set(err, RDT_UNSUPPORTED, "%s is not served by this version",
                             message->flags & PUT_SNAPSHOT ? "SNAPSHOT" : "DETACHED");
    if (message->flags != 0 || (unsigned)message->visibility > RDT__PB__VISIBILITY__VISIBILITY_ALL)
        return rdt_error_set(err, RDT_INVALID, "unknown flags %u or visibility %d", message->flags, (int)message->visibility);
    regions = calloc(message->n_regions + 1, sizeof *regions);
    if (!regions)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the put");
    status = put(call, message, regions, err);
    free(regions);
    return status;
}
