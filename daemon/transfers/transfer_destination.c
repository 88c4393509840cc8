/* SPDX-License-Identifier: Apache-2.0 */
/* Decides where the tensors of a fetch without targets go, by what its reader wishes and can map. Tensors in
 * host memory get one range (transfer->move.received). If some of them go to devices, each device gets a region of
 * its own (transfer->move.destination), and together the regions become a target that the daemon made. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/transfers/transfer_impl.h"

static bool wants_kind(const struct transfer *transfer)
{
    return transfer->wish.memory[0] != '\0' && strcasecmp(transfer->wish.memory, "host") != 0;
}

bool client_maps(const struct client *client, const char *kind)
{
    char word[40];

    (void)snprintf(word, sizeof word, " %.36s ", kind);
    return strcasestr(client->transfers.maps, word);
}

/* Returns whether the client has said which devices of that kind it can map. */
static bool lists_devices(const struct client *client, const char *kind)
{
    char word[40];

    (void)snprintf(word, sizeof word, " %.36s:", kind);
    return client->transfers.mapped_devices && strcasestr(client->transfers.mapped_devices, word);
}

bool client_maps_device(const struct client *client, const struct memory_device *device)
{
    char word[112];

    if (!client_maps(client, device->kind->name))
        return false;
    if (!lists_devices(client, device->kind->name))
        return true;
    (void)snprintf(word, sizeof word, " %.36s:%.64s ", device->kind->name, device->uuid);
    return strcasestr(client->transfers.mapped_devices, word);
}

/* Returns the first device of the client's list that this node has; NULL: there is none. *n_p: how many there are. */
static struct memory_device *own_device(const struct client *client, const struct memory_kind *kind, unsigned *n_p)
{
    struct memory_device *first = NULL;
    const char *first_at = NULL;

    *n_p = 0;
    for (unsigned i = 0; client && lists_devices(client, kind->name) && i < kind->n_devices; i++) {
        char word[112];
        const char *at;
        (void)snprintf(word, sizeof word, " %.36s:%.64s ", kind->name, kind->devices[i].uuid);
        at = strcasestr(client->transfers.mapped_devices, word);
        *n_p += at != NULL;
        if (at && (!first || at < first_at)) {
            first = &kind->devices[i];
            first_at = at;
        }
    }
    return first;
}

/* Finds the wished kind and device. They were checked when the fetch came, but the kind may have been
 * unloaded since. */
static enum rdt_status find_wish(const struct transfer *transfer, struct memory_device **device_p, struct rdt_error *err)
{
    struct rdt_error why = {0};
    const struct memory_kind *kind;
    struct memory_device *own;
    unsigned n_own;

    *device_p = NULL;
    if (!wants_kind(transfer))
        return RDT_OK;
    kind = plugins_memory_kind(transfer->transfers->plugins, transfer->wish.memory);
    if (!kind || !kind->available || memory_kind_is_host(kind))
        return rdt_error_set(err, RDT_UNSUPPORTED, "no memory kind \"%s\" is loaded here%s%s", transfer->wish.memory,
                             kind && kind->why_not[0] ? ": " : "", kind ? kind->why_not : "");
    own = own_device(transfer->client, kind, &n_own);
    *device_p = transfer->wish.device[0] == '\0' && n_own == 1 ? own : memory_kind_device(kind, transfer->wish.device, &why);
    if (*device_p)
        return RDT_OK;
    if (err)
        *err = why;
    return why.status;
}

enum rdt_status destination_check_wish(const struct transfer *transfer, struct rdt_error *err)
{
    struct memory_device *device;
    enum rdt_status status = find_wish(transfer, &device, err);

    if (status == RDT_OK && device && !client_maps(transfer->client, device->kind->name))
        status = rdt_error_set(err, RDT_UNSUPPORTED, "this process has not said how it maps %s memory (rdt_map_by)",
                               device->kind->name);
    else if (status == RDT_OK && device && !client_maps_device(transfer->client, device))
        status = rdt_error_set(err, RDT_UNSUPPORTED,
                               "this process does not see %s, so it cannot receive tensors there: name a device that it sees",
                               device->uuid);
    return status;
}

static struct memory_device *place_for(const struct transfer *transfer, struct memory_device *from, bool on_device,
                                       struct memory_device *wish)
{
    unsigned ignored;

    /* On this node the tensors stay where they are, if the reader can map that. */
    if (transfer->wish.memory[0] == '\0' && from && transfer->client && client_maps(transfer->client, from->kind->name))
        return client_maps_device(transfer->client, from) ? from : own_device(transfer->client, from->kind, &ignored);
    if (transfer->wish.memory[0] == '\0')
        return NULL;
    return on_device || !transfer->wish.host_stays ? wish : NULL;
}

/* A kind that a plan names stays loaded, although nothing may lie there for a while. */
static void use_kinds(const struct placing *placing, void (*use)(struct memory_kind *))
{
    for (uint32_t i = 0; i < placing->n; i++)
        if (placing->at[i].device)
            use(placing->at[i].device->kind);
}

static void drop_plan(struct transfer *transfer)
{
    free(transfer->move.destination);
    transfer->move.destination = NULL;
}

enum rdt_status destination_plan(struct transfer *transfer, struct memory_device *const *from, bool always, bool *elsewhere_p,
                                 struct rdt_error *err)
{
    const struct layout *source = transfer->move.source;
    struct memory_device *wish, **to;
    bool any = false;
    enum rdt_status status = find_wish(transfer, &wish, err);

    *elsewhere_p = false;
    if (status != RDT_OK || transfer->move.destination)
        return status;
    to = calloc(source->count + 1u, sizeof *to);
    if (!to)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the tensors' placement");
    for (uint32_t i = 0; i < source->count; i++) {
        struct memory_device *at = from ? from[i] : NULL;
        bool on_device = from ? at != NULL
                              : transfer->pull.placement &&
                                    strcmp(transfer->pull.placement->memory[transfer->pull.placement->of[i]], "host") != 0;
        if (layout_bytes(source, i) == 0)
            continue;
        to[i] = place_for(transfer, at, on_device, wish);
        any |= to[i] || always;
        *elsewhere_p |= to[i] != at;
    }
    if (any && !transfer->move.target) {
        transfer->move.destination = calloc(1, sizeof *transfer->move.destination);
        status = transfer->move.destination
                     ? placing_make(source, to, &transfer->move.destination->placing, &transfer->move.destination->layout, err)
                     : rdt_error_set(err, RDT_NO_MEMORY, "no memory for the tensors' placement");
        if (status == RDT_OK)
            use_kinds(&transfer->move.destination->placing, memory_kind_use);
        else
            drop_plan(transfer);
    }
    free(to);
    return status;
}

void destination_free(struct transfer *transfer)
{
    struct device_destination *destination = transfer->move.destination;

    transfer->move.destination = NULL;
    if (!destination)
        return;
    for (uint32_t i = 0; i < destination->n_ready; i++)
        region_unref(destination->regions[i]);
    use_kinds(&destination->placing, memory_kind_unuse);
    free(destination->layout);
    free(destination);
}

/* Checks before any byte is copied that the answer can hold all handles by which the reader maps the
 * regions. */
static enum rdt_status check_answer(const struct transfer *transfer, struct rdt_error *err)
{
    const struct device_destination *destination = transfer->move.destination;
    unsigned all = 0;

    for (uint32_t i = 0; i < destination->n_ready; i++) {
        unsigned n = destination->regions[i]->reuse.keep_mapped ? 0 : 1;
        enum rdt_status status =
            region_is_host(destination->regions[i]) ? RDT_OK : region_share_fds(destination->regions[i], &n, err);
        if (status != RDT_OK)
            return status;
        all += n;
    }
    if (all <= transfer->client->transfers.most_fds)
        return RDT_OK;
    return rdt_error_set(
        err, RDT_LIMIT,
        "the memory for the object is made of %u chunks on %u devices and in host memory, and the reader takes "
        "%u file descriptors in one answer, a quarter of its limit of open files: fetch fewer tensors at once",
        all, destination->n_ready, transfer->client->transfers.most_fds);
}

/* All regions are allocated: they become the transfer's target. */
static enum rdt_status become_target(struct transfer *transfer, struct rdt_error *err)
{
    struct device_destination *destination = transfer->move.destination;
    enum rdt_status status = transfer->client ? check_answer(transfer, err) : RDT_OK;
    struct target *target = status == RDT_OK ? calloc(1, sizeof *target) : NULL;

    if (status != RDT_OK)
        return status;
    if (!target || !(target->uses = calloc(destination->n_ready + 1u, sizeof *target->uses))) {
        free(target);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the tensors' placement");
    }
    target->layout = destination->layout;
    destination->layout = NULL;
    target->n = destination->n_ready;
    for (uint32_t i = 0; i < target->n; i++) {
        region_pin(destination->regions[i]);
        target->uses[i].region = destination->regions[i];
    }
    region_uses_add(target->uses, target->n, target->layout, NULL);
    transfer->move.target = target;
    transfer->move.target_is_destination = true;
    return RDT_OK;
}

enum rdt_status destination_reserve(struct transfer *transfer, region_ready on_ready, struct rdt_error *err)
{
    struct device_destination *destination = transfer->move.destination;
    /* Memory that several fetches share belongs to no client. */
    bool own = transfer->client && transfer->n_fetches == 1;
    enum rdt_status status = RDT_OK;

    while (status == RDT_OK && destination->n_ready < destination->placing.n) {
        struct memory_device *device = destination->placing.at[destination->n_ready].device;
        uint64_t bytes = destination->placing.at[destination->n_ready].bytes;
        struct region *region = own && !device ? region_cache_take(&transfer->client->cache, bytes, REGION_RECEIVED) : NULL;

        if (device)
            status = region_alloc_to_write(transfer->transfers->regions, device, bytes,
                                           &destination->placing.at[destination->n_ready].gaps, REGION_RECEIVED,
                                           transfer->account, own ? transfer->client->id : 0, &region, on_ready, transfer, err);
        else if (!region)
            status = region_alloc(transfer->transfers->regions, "host", "", bytes, REGION_RECEIVED, transfer->account,
                                  own ? transfer->client->id : 0, &region, on_ready, transfer, err);
        if (status == RDT_OK)
            destination_take(transfer, region);
    }
    if (status == RDT_OK && !transfer->move.target)
        status = become_target(transfer, err);
    return status;
}

void destination_take(struct transfer *transfer, struct region *region)
{
    if (region)
        transfer->move.destination->regions[transfer->move.destination->n_ready++] = region;
}

/* ---- the memory of sub-pulls ---- */

const char *transfer_source_device(const struct transfer *transfer)
{
    const struct memory_placement *places = transfer->pull.subpull.parent && transfer->pull.subpull.n_select > 0
                                                ? transfer->pull.subpull.parent->pull.placement
                                                : NULL;

    return places ? places->device[places->of[transfer->pull.subpull.select[0]]] : "";
}

const char *transfer_target_device(const struct transfer *transfer)
{
    return transfer->pull.subpull.parent && transfer->move.target->n > 0
               ? region_device_uuid(transfer->move.target->uses[0].region)
               : "";
}

const char *transfer_target_memory(const struct transfer *transfer)
{
    const struct region *region =
        transfer->pull.subpull.parent && transfer->move.target->n > 0 ? transfer->move.target->uses[0].region : NULL;

    return region ? region->kind->name : "host";
}
