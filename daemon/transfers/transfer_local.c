/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches of objects on this node: waiting until the object is there, and choosing between the memory itself,
 * a read-only mapping of it, the bytes in the answer, and a copy (transfer_local_copy.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/text.h"
#include "daemon/memory/copy.h"
#include "daemon/transfers/peer_transport.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/reservation.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_record.h"

/* The reader's thread gets this many bytes for each byte of the pool, whose threads and loop must be woken first. */
#define READERS_SHARE 2
#define MANY_REGIONS 8u /* of an object: more are opened in slices */

static const char live_why_not[] = "the object is live: later writes of its producer would show in a private mapping of it";

static void on_put(struct object_waiter *waiter, struct object *object, const struct rdt_error *why);

/* Whether the reader copies the bytes itself. For objects of a middle size that is faster than the pool,
 * whose threads must be woken, and for small ones than an owner's threads. But a reader is one thread: of
 * several copies at once the pool gets its share. */
static bool reader_copies(const struct transfer *transfer, const struct object *object)
{
    uint64_t bytes = layout_total_bytes(transfer->move.source);
    bool loop_copies = bytes <= COPY_SMALL_BYTES;

    if (!transfer->move.target || bytes > transfer->wish.self_copy_bytes || transfer->move.source->count > MAX_READER_TENSORS)
        return false;
    for (uint32_t i = 0; i < object->memory.n_regions; i++) {
        const struct region *region = object->memory.uses[i].region;
        /* The reader would have to map the region for each copy; or reading it may fault, which only the
         * daemon can survive. */
        if (!mapped_may_keep(region) || !region_is_host(region) || region_may_fault(region))
            return false;
        loop_copies = loop_copies && !region_may_wait(region);
    }
    for (uint32_t i = 0; i < transfer->move.target->n; i++) {
        const struct region *region = transfer->move.target->uses[i].region;
        /* The daemon writes little of imported memory itself, because it charges the client for the pages that it creates. */
        if (!region_is_host(region) || region_may_fault(region) || (bytes <= COPY_SMALL_BYTES && region_is_by_fd(region)))
            return false;
        loop_copies = loop_copies && !region_may_wait(region);
    }
    return !loop_copies && transfer->client->holds.copying_bytes <= READERS_SHARE * transfer->transfers->load.copying_bytes;
}

/* Whether the reader copies in a stream of its own, from memory of a device that it maps, and keeps mapped, to memory of its
 * own there. The daemon then needs no context, and the reader's work on the device does not take turns with it. */
static bool reader_copies_on_device(const struct transfer *transfer, const struct object *object)
{
    const struct layout *source = transfer->move.source;
    const struct target *target = transfer->move.target;
    const struct memory_device *device = object->memory.n_regions > 0 ? object->memory.uses[0].region->device : NULL;

    if (!transfer->wish.copies_on_devices || !device || !target || target->layout->count != source->count)
        return false;
    for (uint32_t i = 0; i < object->memory.n_regions; i++)
        if (object->memory.uses[i].region->device != device || !mapped_may_keep(object->memory.uses[i].region))
            return false;
    for (uint32_t i = 0; i < target->n; i++)
        if (target->uses[i].region->device != device)
            return false;
    for (uint32_t i = 0; i < source->count; i++)
        if (!layout_is_contiguous(source, i))
            return false;
    return layout_total_bytes(source) > 0;
}

static void let_reader_copy(struct transfer *transfer, struct object *object)
{
    struct rdt_error err = {0};

    if (layout_same_shape(transfer->move.source, transfer->move.target->layout, &err) != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    transfer->record.bytes = transfer->record.bytes_done = layout_total_bytes(transfer->move.source);
    transfer->transfers->counts->bytes_local += transfer->record.bytes;
    transfer_deliver_object(transfer, object, transfer->move.source, PATH_COPY);
    transfer_end(transfer);
}

#define MOST_PAIRS 65536u /* of a tensor and a target, which are compared in the loop; 256 tensors have as many */

/* Whether writing target i would change tensor k of the object before it is read. A tensor is its own target if it is to be
 * written to where it lies. */
static bool overwrites(const struct transfer *transfer, const struct object *object, uint32_t i, uint32_t k)
{
    const struct layout *source = transfer->move.source, *target = transfer->move.target->layout;
    uint64_t lo, hi, target_lo, target_hi;

    if (layout_bytes(source, k) == 0 || layout_bytes(target, i) == 0 ||
        object->memory.uses[source->region[k]].region != transfer->move.target->uses[target->region[i]].region ||
        layout_extent(source, k, &lo, &hi, NULL) != RDT_OK ||
        layout_extent(target, i, &target_lo, &target_hi, NULL) != RDT_OK || hi <= target_lo || target_hi <= lo)
        return false;
    return i != k || lo != target_lo || !layout_is_contiguous(source, k);
}

static int by_region(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)(*(struct region_use *const *)a)->region, y = (uintptr_t)(*(struct region_use *const *)b)->region;

    return x < y ? -1 : x > y;
}

/* Whether the two may share memory. Both lists may have thousands of regions; a client may have named one several times. */
static bool share_a_range(const struct transfer *transfer, const struct object *object)
{
    const struct target *target = transfer->move.target;
    uint32_t n = object->memory.n_regions;
    struct region_use **uses = target ? calloc(n + 1u, sizeof(struct region_use *)) : NULL;
    bool shares = target && !uses; /* without memory for the list the tensors are compared */

    for (uint32_t k = 0; uses && k < n; k++)
        uses[k] = &object->memory.uses[k];
    if (uses)
        qsort(uses, n, sizeof(struct region_use *), by_region);
    for (uint32_t i = 0; uses && !shares && i < target->n; i++) {
        struct region_use *wanted = &target->uses[i];
        struct region_use **found = bsearch(&wanted, uses, n, sizeof(struct region_use *), by_region);
        bool again = found && ((found > uses && found[-1]->region == wanted->region) ||
                               (found + 1 < uses + n && found[1]->region == wanted->region));
        shares = found && (again || ((*found)->lo < wanted->hi && wanted->lo < (*found)->hi));
    }
    free(uses);
    return shares;
}

/* The targets may lie in the memory of a live object. */
static enum rdt_status check_targets(const struct transfer *transfer, const struct object *object, struct rdt_error *err)
{
    uint32_t n = transfer->move.source->count;
    bool all_pairs = (uint64_t)n * n <= MOST_PAIRS, own = true;

    if (!share_a_range(transfer, object) || transfer->move.target->layout->count != n)
        return RDT_OK; /* another count is a mismatch */
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = all_pairs ? 0 : i; k < (all_pairs ? n : i + 1); k++)
            if (overwrites(transfer, object, i, k))
                return rdt_error_set(err, RDT_INVALID,
                                     "target tensor %u shares memory with tensor %u of the object, which would be overwritten: "
                                     "put a snapshot, or give other targets",
                                     i, k);
        own = own &&
              object->memory.uses[transfer->move.source->region[i]].region ==
                  transfer->move.target->uses[transfer->move.target->layout->region[i]].region &&
              transfer->move.source->offset[i] == transfer->move.target->layout->offset[i];
    }
    return all_pairs || own
               ? RDT_OK
               : rdt_error_set(err, RDT_INVALID,
                               "the %u target tensors lie between the tensors of the object: put a snapshot, or give "
                               "targets in other memory",
                               n);
}

/* Answers with the bytes of a small object from the arena. Nothing is held or registered. */
static void reply_inline(struct transfer *transfer, struct object *object)
{
    struct rdt_error err = {0};
    const struct layout *source = transfer->move.source;
    uint8_t *data = slab_addr(object_piece(object));
    enum rdt_status status = RDT_OK;

    transfer_use_metadata(transfer, object);
    if (transfer->wish.slice) {
        status = layout_packed(source, &transfer->move.packed, &transfer->move.stream_bytes, &err);
        transfer->move.own_inline = status == RDT_OK ? calloc(1, transfer->move.stream_bytes + 1) : NULL;
        if (status == RDT_OK && !transfer->move.own_inline)
            status = rdt_error_set(&err, RDT_NO_MEMORY, "no memory for the bytes");
        for (uint32_t i = 0; status == RDT_OK && i < source->count; i++)
            if (layout_bytes(source, i) > 0)
                layout_gather(source, i, data, 0, layout_bytes(source, i),
                              transfer->move.own_inline + transfer->move.packed->offset[i]);
        transfer->move.inline_data = transfer->move.own_inline;
    } else { /* The bytes are sent as they lie in the arena. */
        uint32_t last = source->count - 1;
        transfer->move.packed = transfer->move.source;
        transfer->move.stream_bytes = source->offset[last] + layout_bytes(source, last);
        transfer->move.inline_data = data;
    }
    if (status == RDT_OK) {
        transfer->move.is_inline = true;
        transfer->record.bytes = transfer->record.bytes_done = transfer->move.stream_bytes;
        transfer->transfers->counts->bytes_local += transfer->move.stream_bytes;
        transfer_deliver_received(transfer);
    }
    if (status == RDT_OK)
        transfer_end(transfer);
    else
        transfer_fail_err(transfer, &err);
}

/* How many fds the answer needs to share the object's regions: none for memory on a device that is shared by a handle. */
static uint64_t n_fds_of(const struct object *object)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < object->memory.n_regions; i++) {
        struct region *region = object->memory.uses[i].region;
        unsigned fds = 1;
        n += region_is_host(region) || region_share_fds(region, &fds, NULL) == RDT_OK ? fds : 0;
    }
    return n;
}

/* Those of one frame are always sent. More of them are open here, and charged, until the reader takes them. */
static bool needs_too_many_fds(const struct client *client, const struct object *object)
{
    uint64_t n = n_fds_of(object);

    return n > client->transfers.most_fds ||
           (n > RDT_MAX_FRAME_FDS && account_check(client->account, USAGE_FDS, n, NULL) != RDT_OK);
}

/* ---- objects of many regions ----
 *
 * To open the descriptors of thousands of regions takes tens of milliseconds. So they are opened in slices before the
 * answer. */

static void opening_free(struct local_opening *opening)
{
    struct transfer *transfer = opening->transfer;

    transfer->local.opening = NULL;
    slice_stop(&opening->slice);
    account_give(transfer->account, USAGE_FDS, opening->charged);
    for (uint32_t i = 0; i < opening->n; i++)
        if (opening->fds[i] >= 0)
            (void)close(opening->fds[i]); /* the object, which is held, has its file open, too */
    free(opening);
}

static enum rdt_status open_one(struct local_opening *opening, struct rdt_error *err)
{
    struct transfer *transfer = opening->transfer;
    struct region *region = transfer->local.object->memory.uses[opening->next % opening->n_regions].region;
    bool mapped = opening->how == PATH_SHARE && mapped_has(&transfer->client->mapped, region);

    if (mapped || !region_is_host(region) || region->reuse.keep_mapped)
        return RDT_OK; /* the answer sees to it */
    return region_export_to(region, transfer->client->id, opening->how == PATH_SAME || region->origin == REGION_IMPORTED,
                            &opening->fds[opening->next], err);
}

static bool open_some(struct slice *slice, uint64_t until_ns)
{
    struct local_opening *opening = container_of(slice, struct local_opening, slice);
    struct transfer *transfer = opening->transfer;
    struct rdt_error err = {0};

    while (opening->next < opening->n) {
        if (open_one(opening, &err) != RDT_OK) {
            transfer_fail_err(transfer, &err);
            return true;
        }
        if (++opening->next < opening->n && uv_hrtime() >= until_ns)
            return false;
    }
    account_give(transfer->account, USAGE_FDS, opening->charged); /* the queue of the client's answers charges them */
    opening->charged = 0;
    transfer_deliver_object(transfer, transfer->local.object, transfer->move.source, opening->how);
    transfer->record.bytes_done = transfer->record.bytes;
    transfer_end(transfer);
    return true;
}

/* Opens them for all answers, which are open at the same time; then the transfer goes on. */
static void open_regions(struct transfer *transfer, struct object *object, enum path_kind how)
{
    uint32_t n = object->memory.n_regions * transfer->n_fetches;
    struct local_opening *opening = calloc(1, sizeof *opening + n * sizeof opening->fds[0]);
    enum rdt_status status = RDT_OK;
    struct rdt_error err = {0};

    if (!opening)
        status = rdt_error_set(&err, RDT_NO_MEMORY, "no memory for %u file descriptors", n);
    else if (object->memory.n_regions > RDT_MAX_FRAME_FDS) /* as needs_too_many_fds, which has looked at one answer */
        status = account_check(transfer->account, USAGE_FDS, n, &err);
    if (status != RDT_OK) {
        free(opening);
        transfer_fail_err(transfer, &err);
        return;
    }
    *opening = (struct local_opening){
        .slice.run = open_some, .transfer = transfer, .how = how, .charged = n, .n = n, .n_regions = object->memory.n_regions};
    for (uint32_t i = 0; i < n; i++)
        opening->fds[i] = -1;
    account_add(transfer->account, USAGE_FDS, n);
    transfer->local.opening = opening;
    transfer->local.object = object;
    object_hold(object);
    object_pin(object);
    transfer_set_state(transfer, TRANSFER_RESERVE);
    slice_begin(&transfer->transfers->deadlines->slices, &opening->slice);
}

/* Whether the reader's process exported the region's handle, which it cannot open itself. */
static bool is_own_handle(const struct region *region, const struct client *client)
{
    unsigned fds;

    return !region_is_host(region) && region->origin == REGION_IMPORTED && region->creator == client->id &&
           region->client != client->id && region_share_fds((struct region *)(uintptr_t)region, &fds, NULL) == RDT_OK &&
           fds == 0;
}

/* Decides where the tensors go, and notes for the query why the reader cannot have them where they are.
 * unshared_p holds the text. */
static enum rdt_status place_tensors(struct transfer *transfer, struct object *object, struct path_local *local,
                                     struct rdt_error *unshared_p, struct rdt_error *err)
{
    const struct layout *source = transfer->move.source;
    struct memory_device **from;
    bool elsewhere = false;
    enum rdt_status status = RDT_OK;

    for (uint32_t i = 0; i < object->memory.n_regions && !local->stay_why_not; i++) {
        struct region *region = object->memory.uses[i].region;
        unsigned fds;
        if (!region_is_host(region) && !client_maps(transfer->client, region->kind->name))
            local->stay_why_not = "it is on a device, whose memory the reader's process does not map";
        else if (!region_is_host(region) && !client_maps_device(transfer->client, region->device))
            local->stay_why_not = "it is on a device that the reader's process does not see";
        else if (is_own_handle(region, transfer->client))
            local->stay_why_not = "it is the reader's own memory, whose handle its own process cannot open";
        else if (!region_is_host(region) && region_share_fds(region, &fds, unshared_p) != RDT_OK)
            local->stay_why_not = unshared_p->msg[0] ? unshared_p->msg : "its memory cannot be shared";
    }
    if (transfer->wish.memory[0] == '\0' && !object_on_device(object))
        return RDT_OK; /* All tensors are in host memory and stay there. */
    from = calloc(source->count + 1u, sizeof *from);
    if (!from)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the tensors' placement");
    for (uint32_t i = 0; i < source->count; i++)
        from[i] =
            !object->memory.chunk && layout_bytes(source, i) > 0 ? object->memory.uses[source->region[i]].region->device : NULL;
    status = destination_plan(transfer, from, false, &elsewhere, err);
    free(from);
    if (elsewhere && !local->stay_why_not)
        local->stay_why_not = "the reader wants it in other memory than it lies in";
    return status;
}

/* false: the bytes of the object, which lie in a stored file, are being checked, or they are damaged. */
static bool is_checked(struct transfer *transfer, struct object *object)
{
    struct rdt_error err = {0};
    enum rdt_status status;

    if (!object->file.unchecked || transfer->wish.meta_only)
        return true;
    transfer->local.waiter.on_event = on_put;
    status = object_check(object, &transfer->account->owner, &transfer->local.waiter, &err);
    if (status == RDT_OK)
        return true;
    if (status == RDT_AGAIN) {
        transfer->local.checks = true;
        reservation_leave(transfer); /* The other items need not wait for a disk. */
        transfer_set_state(transfer, TRANSFER_PARKED);
    } else {
        transfer_fail_err(transfer, &err);
    }
    return false;
}

void transfer_local_serve(struct transfer *transfer, struct object *object)
{
    struct path_query query = {
        .same_node = true,
        .local.from_replica = transfer->local.from_replica,
        .mode = transfer->wish.mode,
        .transport = transfer->wish.transport,
        /* Every path of one node is faster than any transport. */
        .least = plugins_transport(transfer->transfers->plugins, transfer->wish.least) ? "" : transfer->wish.least,
        .preferred = "",
        .has_target = transfer->move.target};
    struct path_local *local = &query.local;
    struct rdt_error err = {0}, unshared = {0};
    const char *why_not = NULL;
    const struct path_candidate *chosen;

    if (!is_checked(transfer, object))
        return;
    transfer->record.began_ns = uv_hrtime();
    if (!transfer->local.from_replica)
        object_ref(object, &transfer->ref);
    transfer->record.ref = transfer->ref;
    if (object_layout(object, transfer->wish.slice, &transfer->move.source, &err) != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    if (transfer->wish.meta_only) {
        transfer_use_metadata(transfer, object);
        (void)snprintf(transfer->record.path, sizeof transfer->record.path, "metadata");
        transfer_deliver_meta(transfer);
        transfer_end(transfer);
        return;
    }
    if (transfer_group_is_local(transfer, object))
        query.transport = ""; /* No bytes move between nodes. */
    if (!object_may_show(object, &transfer->account->owner, &why_not))
        local->show_why_not = why_not;
    if (!object_is_constant(object) && !object->changes.loaned)
        local->cow_why_not = live_why_not;
    else if (object_on_device(object))
        local->cow_why_not = "it is on a device, where no mapping is private";
    if (place_tensors(transfer, object, local, &unshared, &err) != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    query.has_inline = object->memory.chunk;
    local->too_many_fds = needs_too_many_fds(transfer->client, object);
    local->same_client = !local->too_many_fds && object->memory.n_regions > 0;
    for (uint32_t i = 0; i < object->memory.n_regions; i++)
        local->same_client = local->same_client && object->memory.uses[i].region->client == transfer->client->id &&
                             object->memory.uses[i].region->origin != REGION_RECEIVED &&
                             object->memory.uses[i].region->state != REGION_LOANED;
    if (record_decide(transfer->transfers, &transfer->record, &query, &err) != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    chosen = record_chosen(&transfer->record);
    memcpy(transfer->record.path, chosen->name, sizeof chosen->name);
    if (chosen->kind == PATH_INLINE) {
        reply_inline(transfer, object);
        return;
    }
    if (chosen->kind == PATH_COPY && check_targets(transfer, object, &err) != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    if (chosen->kind == PATH_COPY) {
        if (!local->show_why_not && !local->too_many_fds &&
            (reader_copies(transfer, object) || (!local->stay_why_not && reader_copies_on_device(transfer, object))))
            let_reader_copy(transfer, object);
        else
            transfer_local_copy(transfer, object);
        return;
    }
    transfer->record.bytes = transfer->wish.slice ? layout_total_bytes(transfer->move.source) : object->bytes;
    if (object->memory.n_regions > MANY_REGIONS) {
        open_regions(transfer, object, chosen->kind);
        return;
    }
    transfer_deliver_object(transfer, object, transfer->move.source, chosen->kind);
    transfer->record.bytes_done = transfer->record.bytes; /* All bytes are there, although none moved. */
    transfer_end(transfer);
}

static void on_wake(struct client_wake *wake)
{
    struct transfer *transfer = container_of(wake, struct transfer, local.wake);
    struct object *object = transfer->local.woken;

    transfer->local.woken = NULL;
    transfer_local_serve(transfer, object);
    object_drop(object);
}

/* The wait for the object has ended: serves the fetch in its client's slice of the loop. */
static void wake_fetch(struct transfer *transfer, struct object *object)
{
    object_hold(object);
    transfer->local.woken = object;
    transfer->local.wake.run = on_wake;
    client_wake(transfer->client, &transfer->local.wake);
}

static void on_put(struct object_waiter *waiter, struct object *object, const struct rdt_error *why)
{
    struct transfer *transfer = container_of(waiter, struct transfer, local.waiter);

    transfer->record.awaits_put = false;
    transfer_set_state(transfer, TRANSFER_NEW); /* The transfer goes on as if it had just begun. */
    transfer->local.checks = false;
    if (why) {
        transfer_fail_err(transfer, why);
        return;
    }
    wake_fetch(transfer, object);
}

static void on_published(struct name_waiter *waiter, struct object *object, uint64_t version, const struct rdt_error *err)
{
    struct transfer *transfer = container_of(waiter, struct transfer, local.named);

    name_seeker_remove(&transfer->local.seeker);
    transfer->record.awaits_put = false;
    transfer_set_state(transfer, TRANSFER_NEW);
    transfer->version = version;
    if (!object) {
        transfer_fail_err(transfer, err);
        return;
    }
    wake_fetch(transfer, object);
}

static void start_named(struct transfer *transfer)
{
    struct names *names = transfer->transfers->names;
    struct rdt_error err = {0};
    struct object *object;
    enum rdt_status status = names_find(names, &transfer->ref, &transfer->account->owner, &object, &transfer->version, &err);

    if (status == RDT_AGAIN) {
        transfer->local.named.on_event = on_published;
        status = names_wait(names, &transfer->ref, &transfer->account->owner, &transfer->local.named, &err);
        if (status == RDT_OK) {
            transfer->record.awaits_put = true;
            transfer_set_state(transfer, TRANSFER_PARKED);
            return;
        }
    }
    if (status == RDT_OK)
        transfer_local_serve(transfer, object);
    else
        transfer_fail_err(transfer, &err);
}

void transfer_local_hold(struct transfer *transfer, struct object *object, bool pickles_trusted)
{
    object_hold(object);
    transfer->local.woken = object;
    transfer->local.from_replica = object->kind == OBJECT_REPLICA;
    transfer->local.pickles_trusted = pickles_trusted;
}

static void start(struct transfer *transfer)
{
    struct object_table *objects = transfer->transfers->objects;
    struct rdt_error err = {0};
    struct object *object;
    enum rdt_status status;

    if (transfer->local.woken) {
        reservation_join(transfer, NULL);
        on_wake(&transfer->local.wake);
        return;
    }
    if (transfer->ref.is_name) {
        start_named(transfer);
        return;
    }
    status = object_table_find(objects, &transfer->ref, &transfer->account->owner, &object, &err);
    if (status == RDT_AGAIN) {
        transfer->local.waiter.on_event = on_put;
        status = object_table_wait(objects, &transfer->ref, &transfer->account->owner, &transfer->local.waiter, &err);
        if (status == RDT_OK) {
            transfer->record.awaits_put = true;
            transfer_set_state(transfer, TRANSFER_PARKED);
            return;
        }
    }
    if (status != RDT_OK) {
        transfer_fail_err(transfer, &err);
        return;
    }
    reservation_join(transfer, NULL);
    transfer_local_serve(transfer, object);
}

static void init(struct transfer *transfer)
{
    list_init(&transfer->local.wake.link);
}

static bool pickles_trusted(const struct transfer *transfer)
{
    return transfer->local.pickles_trusted;
}

static void release(struct transfer *transfer)
{
    if (transfer->local.opening)
        opening_free(transfer->local.opening);
    object_waiter_remove(&transfer->local.waiter);
    name_waiter_remove(&transfer->local.named);
    name_seeker_remove(&transfer->local.seeker);
    list_remove(&transfer->local.wake.link);
    if (transfer->local.woken)
        object_drop(transfer->local.woken);
    if (transfer->local.object) {
        object_unpin(transfer->local.object);
        object_drop(transfer->local.object);
    }
}

const struct transfer_kind transfer_local_kind = {.init = init,
                                                  .start = start,
                                                  .abort = transfer_local_abort,
                                                  .settled = transfer_end,
                                                  .release = release,
                                                  .pickles_trusted = pickles_trusted};

/* ---- many in one answer ---- */

struct transfer_record *transfers_hand_out(struct transfers *transfers, const struct client *client, struct object *object,
                                           Rdt__Pb__FetchMode mode)
{
    const struct owner *requester = &client->account->owner;
    struct path_query query = {.same_node = true, .mode = mode, .transport = "", .preferred = "", .least = ""};
    struct transfer_record *record = calloc(1, sizeof *record);
    const char *why_not = NULL;
    struct rdt_ref ref;

    if (!record)
        return NULL;
    object_ref(object, &ref);
    record_start(record, ids_next(&transfers->ids, client->account), requester, &ref, "local", "new");
    record->client = client->id;
    record->began_ns = record->since_ns;
    query.has_inline = object->memory.chunk;
    if (!object_may_show(object, requester, &why_not))
        query.local.show_why_not = why_not;
    if (!object_is_constant(object) && !object->changes.loaned)
        query.local.cow_why_not = live_why_not;
    if (record_decide(transfers, record, &query, NULL) == RDT_OK)
        text_copy(record->path, sizeof record->path, record_chosen(record)->name);
    record_stage_at(transfers, record, record->since_ns);
    event(transfers->events, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "began", record);
    return record;
}

struct transfer_record *transfers_hand_over(struct transfers *transfers, const struct client *client, struct account *account,
                                            const struct peer *peer, const struct rdt_ref *ref)
{
    static const struct path_query query = {.remote = {.source_memory = "host", .target_memory = "host"},
                                            .has_inline = true,
                                            .transport = "",
                                            .preferred = "",
                                            .least = ""};
    struct transfer_record *record = calloc(1, sizeof *record);

    if (!record)
        return NULL;
    record_start(record, ids_next(&transfers->ids, account), &account->owner, ref, client ? "in" : "out", "new");
    record->client = client ? client->id : 0;
    record->began_ns = record->since_ns;
    text_copy(record->peer, sizeof record->peer, peer->name);
    text_copy(record->path, sizeof record->path, "inline");
    if (client) /* the reader's node chooses the path */
        (void)record_decide(transfers, record, &query, NULL);
    record_stage_at(transfers, record, record->since_ns);
    event(transfers->events, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "began", record);
    return record;
}

static void count_bytes(struct transfers *transfers, struct peer *peer, bool comes, uint64_t bytes)
{
    struct remote *remote = remote_get(transfers, peer);

    if (comes)
        transfers->counts->bytes_in += bytes;
    else
        transfers->counts->bytes_out += bytes;
    if (remote && comes)
        remote->counts.bytes_pulled += bytes;
    else if (remote)
        remote->counts.bytes_served += bytes;
}

uint64_t transfers_handed_out(struct transfers *transfers, struct transfer_record *take_record, struct peer *peer, uint32_t n,
                              uint64_t bytes, const struct rdt_error *why)
{
    uint64_t id = take_record->id;

    if (peer && !why)
        count_bytes(transfers, peer, take_record->client != 0, bytes);

    (void)snprintf(take_record->route, sizeof take_record->route, "%u objects in one answer", n);
    take_record->bytes = bytes;
    take_record->bytes_done = why ? 0 : bytes;
    if (why)
        record_fail(take_record, why);
    record_finish(transfers, take_record);
    free(take_record);
    return id;
}
