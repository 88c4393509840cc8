/* SPDX-License-Identifier: Apache-2.0 */
/* The answers of a transfer: gives each of its fetches the object, the received memory, or the metadata. */
#include <stdlib.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/transfers/remote.h"
#include "daemon/transfers/transfer_impl.h"
#include "daemon/transfers/transfer_record.h"
#include "wire_ref.h"

struct result {
    Rdt__Pb__FetchDone done;
    Rdt__Pb__Ref ref;
    Rdt__Pb__TensorList tensors;
    struct layout_rows rows; /* of tensors */
    Rdt__Pb__SharedRegion *regions, **region_list;
    struct region_share *shares; /* of the regions on devices; NULL: there are none */
    Rdt__Pb__SharedRegion one_region, *one_in_list;
    int few_fds[RDT_MAX_FRAME_FDS], *fds; /* fds: few_fds, or an array of its own */
    unsigned n_fds, room_fds, most_fds;   /* most_fds: of the client */
};

static void result_init(struct result *result, const struct fetch *fetch, const struct rdt_ref *ref)
{
    const struct transfer *transfer = fetch->transfer;

    rdt__pb__fetch_done__init(&result->done);
    wire_ref_from(ref, &result->ref);
    result->done.ref = &result->ref;
    result->done.transfer = transfer->id;
    result->done.version = transfer->version;
    result->done.path = (char *)transfer->record.path;
    result->done.pickles_trusted = transfer->answers.pickles_trusted;
    result->done.snapshot = transfer->answers.snapshot;
    result->done.elapsed_ns = (int64_t)(uv_hrtime() - transfer->record.began_ns);
    result->done.bytes_moved = transfer->answers.bytes_moved;
    result->regions = NULL;
    result->region_list = NULL;
    result->shares = NULL;
    result->fds = result->few_fds;
    result->n_fds = 0;
    result->room_fds = RDT_MAX_FRAME_FDS;
    result->most_fds = fetch->client->transfers.most_fds;
}

/* Makes room for n more fds. */
static enum rdt_status result_fd_room(struct result *result, unsigned n, struct rdt_error *err)
{
    unsigned room = result->room_fds;
    int *fds;

    if (n > result->most_fds - result->n_fds)
        return rdt_error_set(err, RDT_LIMIT, "the answer needs more than the %u file descriptors that the reader takes",
                             result->most_fds);
    while (room < result->n_fds + n)
        room *= 2;
    if (room == result->room_fds)
        return RDT_OK;
    fds = malloc(room * sizeof *fds);
    if (!fds)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for %u file descriptors", room);
    memcpy(fds, result->fds, result->n_fds * sizeof *fds);
    if (result->fds != result->few_fds)
        free(result->fds);
    result->fds = fds;
    result->room_fds = room;
    return RDT_OK;
}

static void result_drop_fds(struct result *result)
{
    while (result->n_fds > 0)
        (void)close(result->fds[--result->n_fds]);
}

enum share { SHARE_READ, SHARE_WRITE, SHARE_COW };

/* A descriptor of the object's region that has been opened for an answer; -1: none has. */
static int take_opened(struct transfer *transfer, uint32_t place)
{
    struct local_opening *opening = transfer->kind->pulls ? NULL : transfer->local.opening;

    for (uint32_t at = place; opening && at < opening->n; at += opening->n_regions) {
        int fd = opening->fds[at];
        opening->fds[at] = -1;
        if (fd >= 0)
            return fd;
    }
    return -1;
}

/* take_fd: opened for this; -1: it is opened here. */
static enum rdt_status result_add_region(struct result *result, struct region *region, uint64_t client, enum share how,
                                         bool with_fd, int take_fd, struct rdt_error *err)
{
    size_t n_at = result->done.n_regions;
    Rdt__Pb__SharedRegion *entry = &result->regions[n_at];
    /* Imported memory has no read-only fd. */
    bool writable_fd = how == SHARE_WRITE || region->origin == REGION_IMPORTED;

    rdt__pb__shared_region__init(entry);
    entry->region = region->id;
    entry->generation = region->generation;
    entry->bytes = region->room;
    entry->writable = how == SHARE_WRITE;
    entry->cow = how == SHARE_COW;
    entry->fd_index = -1;
    if (with_fd && region->reuse.keep_mapped && region->reach.exported_to == client) {
        region->reuse.keep_mapped = false; /* The client has mapped the region since it last got it. */
        entry->cacheable = true;
    } else if (with_fd && !region_is_host(region)) {
        unsigned n = 0;
        enum rdt_status status = region_share_fds(region, &n, err);
        if (status == RDT_OK)
            status = result_fd_room(result, n, err);
        if (status == RDT_OK)
            status = region_share(region, client, &result->shares[n_at], result->fds + result->n_fds,
                                  result->room_fds - result->n_fds, &n, err);
        if (status != RDT_OK)
            return status;
        entry->share = &result->shares[n_at].message;
        entry->fd_index = n > 0 ? (int32_t)result->n_fds : -1;
        entry->cow = false;
        result->n_fds += n;
    } else if (with_fd) {
        enum rdt_status status = result_fd_room(result, 1, err);
        if (status != RDT_OK && take_fd >= 0)
            (void)close(take_fd);
        else if (status == RDT_OK && take_fd >= 0)
            result->fds[result->n_fds] = take_fd;
        else if (status == RDT_OK)
            status = region_export_to(region, client, writable_fd, &result->fds[result->n_fds], err);
        if (status != RDT_OK)
            return status;
        entry->fd_index = (int32_t)result->n_fds++;
        entry->cacheable = entry->writable && region->origin == REGION_RECEIVED && region_may_be_cached(region, client);
    }
    result->region_list[n_at] = entry;
    result->done.n_regions++;
    result->done.regions = result->region_list;
    return RDT_OK;
}

static void result_set_tensors(struct result *result, const struct layout *layout, bool with_place, const struct client *client)
{
    layout_to_wire(layout, with_place, client->tensor_runs ? &result->rows : NULL, &result->tensors);
}

/* Whether the client has the region mapped for reading: it kept the mapping, or got the fd by an earlier
 * answer to the same message. */
static bool has_fd(const struct fetch *fetch, const struct region *region)
{
    const struct client_fd *out = &fetch->client->transfers.fds_out[region->id % CLIENT_FDS_OUT];

    if (fetch->client->transfers.maps_nothing || mapped_has(&fetch->client->mapped, region))
        return true;
    return fetch->message != 0 && out->message == fetch->message && out->region == region->id &&
           out->generation == region->generation;
}

static void note_fds(const struct fetch *fetch, const struct result *result)
{
    for (size_t i = 0; i < result->done.n_regions; i++) {
        const Rdt__Pb__SharedRegion *entry = &result->regions[i];
        if (entry->mapped_as != 0)
            mapped_told(&fetch->client->mapped, entry->region);
        if (fetch->message != 0 && entry->fd_index >= 0 && !entry->writable && !entry->cow)
            fetch->client->transfers.fds_out[entry->region % CLIENT_FDS_OUT] =
                (struct client_fd){entry->region, entry->generation, fetch->message};
    }
}

static bool result_make_regions(struct result *result, uint32_t n, bool on_devices)
{
    if (on_devices && !(result->shares = calloc(n ? n : 1, sizeof *result->shares)))
        return false;
    if (n <= 1) {
        result->regions = &result->one_region;
        result->region_list = &result->one_in_list;
        return true;
    }
    result->regions = calloc(n, sizeof *result->regions);
    result->region_list = calloc(n, sizeof *result->region_list);
    return result->regions && result->region_list;
}

static void result_fini(struct result *result)
{
    result_drop_fds(result);
    if (result->fds != result->few_fds)
        free(result->fds);
    free(result->shares);
    if (result->regions != &result->one_region) {
        free(result->regions);
        free(result->region_list);
    }
}

static size_t number_bytes(uint64_t number) /* A varint holds seven bits in each byte. */
{
    size_t n = 1;

    while (number >>= 7)
        n++;
    return n;
}

/* An upper limit of the message's size; the sender counts the real bytes. Texts are short, except those of
 * devices. */
static size_t result_at_most(const struct result *result)
{
    const Rdt__Pb__FetchDone *done = &result->done;
    const Rdt__Pb__TensorList *tensors = done->tensors;
    size_t bytes = 4096 + done->metadata.len + done->inline_data.len + 64 * done->n_regions;
    uint64_t shape = 0, offset = 0;

    if (result->shares)
        return SIZE_MAX;
    if (!tensors)
        return bytes;
    for (size_t i = 0; i < tensors->n_shape; i++)
        shape |= tensors->shape[i];
    for (size_t i = 0; i < tensors->n_offset; i++)
        offset |= tensors->offset[i];
    return bytes + 8 * tensors->n_dtype + 10 * tensors->n_step + number_bytes(offset) * tensors->n_offset +
           (number_bytes(shape) + (tensors->n_strides > 0 ? 10 : 0)) * tensors->n_shape;
}

/* Whether the answer is too large for the client: messages that the client has not read yet count as its
 * share of the heap. */
static bool is_too_much(const struct fetch *fetch, size_t bytes, struct rdt_error *err)
{
    size_t counted = fetch->transfer->metadata.own ? fetch->transfer->metadata.n_bytes : 0;

    if (bytes <= account_uncounted_bytes(fetch->client->account) ||
        account_check(fetch->client->account, USAGE_HEAP, bytes > counted ? bytes - counted : 0, err) == RDT_OK)
        return false;
    rdt_error_prefix(err, "the answer to the fetch of \"%s\"", fetch->transfer->ref.id);
    return true;
}

/* Sends the first fds, so that the frame of the answer can carry the others. Returns how many were sent. */
static unsigned result_send_first_fds(struct result *result, struct fetch *fetch)
{
    Rdt__Pb__FetchFds first = RDT__PB__FETCH_FDS__INIT;
    unsigned n = 0;

    first.handle = fetch->handle;
    for (; result->n_fds - n > RDT_MAX_FRAME_FDS; n += RDT_MAX_FRAME_FDS)
        fetch->client->conn.send(fetch->client, RDT_EVENT_FETCH_FDS, FRAME_EVENT, fetch->handle, &first.base, result->fds + n,
                                 RDT_MAX_FRAME_FDS);
    return n;
}

/* Sends one result to one fetch, with its own hold, and detaches the fetch. */
static void result_send(struct result *result, struct fetch *fetch, struct hold *hold)
{
    struct client *client = fetch->client;
    unsigned n_fds = result->n_fds, n_sent;
    struct rdt_error err;
    size_t bytes;

    result->done.handle = fetch->handle;
    result->done.hold = hold ? hold->id : 0;
    if (fetch->joined == FETCH_MERGED)
        result->done.version = fetch->version;
    bytes = result_at_most(result);
    if (bytes > account_uncounted_bytes(fetch->client->account))
        bytes = protobuf_c_message_get_packed_size(&result->done.base);
    if (bytes > RDT_MAX_FRAME_BYTES || is_too_much(fetch, bytes, &err)) {
        struct transfer *transfer = fetch->transfer;
        if (bytes > RDT_MAX_FRAME_BYTES)
            (void)rdt_error_set(
                &err, RDT_LIMIT,
                "the answer to the fetch of \"%s\" has %zu bytes, with %zu dimensions of %zu tensors and %zu bytes of "
                "metadata: at most %u fit into one message",
                transfer->ref.id, bytes, result->tensors.n_shape, result->tensors.n_dtype, result->done.metadata.len,
                RDT_MAX_FRAME_BYTES);
        record_fail(&transfer->record, &err);
        if (hold)
            client_release(hold);
        fetch_answer_error(client, fetch->handle, &err);
        fetch_detach(fetch);
        return; /* The caller closes the fds with the result. */
    }
    n_sent = result_send_first_fds(result, fetch);
    result->n_fds = 0; /* send() takes the fds. */
    note_fds(fetch, result);
    client->transfers.fetched_bytes += fetch->transfer->record.bytes;
    client->conn.send(client, RDT_EVENT_FETCH_DONE, FRAME_EVENT, fetch->handle, &result->done.base, result->fds + n_sent,
                      n_fds - n_sent);
    fetch_detach(fetch);
}

/* Whether the producer can still write the object. */
static bool may_be_written(const struct object *object)
{
    for (uint32_t i = 0; i < object->memory.n_regions; i++)
        if (object->memory.uses[i].region->client == object_producer_id(object) &&
            object->memory.uses[i].region->reach.writable_outside)
            return true;
    return false;
}

/* Tells the reader that the object may still be written. A reader is told once for each object. The log says
 * it once for each producer at level info, since there may be a million such objects, and then at level
 * debug. */
bool fetch_notice(const struct client *reader, struct object *object)
{
    struct client *producer = object->producer;

    if (object_is_constant(object) || object->changes.loaned || object->changes.notice_given || !producer ||
        producer == reader || !may_be_written(object))
        return false;
    object->changes.notice_given = true;
    log_at(producer->notice_given ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO,
           "obj %016llx is shared with client %llu while its producer, client %llu, may still write it",
           (unsigned long long)object->generation, (unsigned long long)reader->id, (unsigned long long)producer->id);
    producer->notice_given = true;
    return true;
}

static bool is_snapshot(const struct transfer *transfer)
{
    const struct object *object = transfer->answers.object;

    if (transfer->kind->pulls)
        return transfer->pull.answer.snapshot;
    return object && (object->memory.chunk || object_is_constant(object));
}

/* Notes what the transfer knows only until it ends. */
static void answer_all(struct transfer *transfer, void (*one)(struct fetch *))
{
    transfer->answers.snapshot = is_snapshot(transfer);
    transfer->answers.pickles_trusted = transfer->kind->pickles_trusted(transfer);
    transfer->answers.bytes_moved = transfer->record.bytes_done;
    transfer_answer(transfer, one);
}

/* The reader copies the object. A copy that a device makes goes on when the reader has given it up, for as long as the reader
 * has the hold. */
static enum rdt_status set_copying(const struct transfer *transfer, const struct object *object, struct hold *hold,
                                   struct rdt_error *err)
{
    const struct target *target = transfer->move.target;
    enum rdt_status status = RDT_OK;

    if (!object_on_device(object)) {
        client_set_copying(hold, transfer->record.bytes);
        return RDT_OK;
    }
    for (uint32_t i = 0; i < target->n && status == RDT_OK; i++)
        if (target->uses[i].lo < target->uses[i].hi)
            status = client_note_write(hold, target->uses[i].region, target->uses[i].lo, target->uses[i].hi, err);
    return status;
}

static void answer_object(struct fetch *fetch)
{
    struct transfer *transfer = fetch->transfer;
    struct object *object = transfer->answers.object;
    enum path_kind how = transfer->answers.how;
    struct rdt_error err = {0};
    enum rdt_status status = RDT_OK;
    struct hold *hold = NULL;
    struct result result;

    result_init(&result, fetch, &transfer->ref);
    result_set_tensors(&result, transfer->answers.layout, true, fetch->client);
    result.done.tensors = &result.tensors;
    result.done.metadata = (ProtobufCBinaryData){object->tail.metadata_bytes, (uint8_t *)object_metadata(object)};
    result.done.box_bytes = object->tail.box_bytes;
    result.done.mutable_shared = transfer->answers.notice;
    result.done.to_copy = how == PATH_COPY;
    transfer->answers.notice = false;
    if (!result_make_regions(&result, object->memory.n_regions, object_on_device(object)) ||
        !(hold = client_hold_object(fetch->client, fetch->handle, object)))
        status = rdt_error_set(&err, RDT_NO_MEMORY, "no memory to share object \"%s\"", transfer->ref.id);
    for (uint32_t i = 0; i < object->memory.n_regions && status == RDT_OK; i++) {
        struct region *region = object->memory.uses[i].region;
        bool cow = how == PATH_COW || (fetch->cow && how != PATH_COPY);
        enum share share = how == PATH_SAME ? SHARE_WRITE : cow ? SHARE_COW : SHARE_READ;

        bool with_fd = share != SHARE_READ || !has_fd(fetch, region);
        int opened = with_fd && region_is_host(region) && !region->reuse.keep_mapped ? take_opened(transfer, i) : -1;

        status = result_add_region(&result, region, fetch->client->id, share, with_fd, opened, &err);
        if (status == RDT_OK && share == SHARE_READ)
            result.regions[i].cacheable = mapped_may_keep(region);
        if (status == RDT_OK && !with_fd)
            result.regions[i].mapped_as = mapped_as(&fetch->client->mapped, region);
    }
    if (status == RDT_OK && how == PATH_COPY)
        status = set_copying(transfer, object, hold, &err);
    if (status == RDT_OK) {
        result_send(&result, fetch, hold);
    } else {
        bool last = list_first(&transfer->fetches)->next == &transfer->fetches;
        if (hold)
            client_release(hold);
        fetch_answer_error(fetch->client, fetch->handle, &err);
        fetch_detach(fetch);
        if (last)
            record_fail(&transfer->record, &err);
    }
    result_fini(&result);
}

void transfer_deliver_object(struct transfer *transfer, struct object *object, struct layout *layout, enum path_kind how)
{
    transfer->answers.notice = how == PATH_SHARE && fetch_notice(transfer->client, object);
    transfer->answers.layout = layout;
    transfer->answers.how = how;
    object_hold(object);
    transfer->answers.object = object;
    answer_all(transfer, answer_object);
}

/* How readers get host memory that was allocated for the fetch: a single reader may write it, several may
 * not. */
static enum share share_of(const struct transfer *transfer)
{
    if (transfer->n_fetches == 1)
        return SHARE_WRITE;
    return transfer->wish.mode == RDT__PB__FETCH_MODE__FETCH_MODE_COW ? SHARE_COW : SHARE_READ;
}

/* Fills in the result from memory on several devices, which several fetches of one client share. */
static enum rdt_status fill_devices(struct result *result, struct transfer *transfer, const struct fetch *fetch,
                                    struct hold **hold_p, struct rdt_error *err)
{
    const struct target *target = transfer->move.target;
    enum rdt_status status = RDT_OK;

    result_set_tensors(result, target->layout, true, fetch->client);
    if (!result_make_regions(result, target->n, true) ||
        !(*hold_p = client_hold_regions(fetch->client, fetch->handle, transfer->move.destination->regions, target->n)))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the answer");
    for (uint32_t i = 0; i < target->n && status == RDT_OK; i++) {
        struct region *region = target->uses[i].region;
        enum share how = region_is_host(region) ? share_of(transfer) : SHARE_WRITE;
        region_written(region);
        if (how != SHARE_WRITE)
            (void)region_seal(region, NULL);
        status = result_add_region(result, region, fetch->client->id, how, true, -1, err);
    }
    return status;
}

static enum rdt_status fill_received(struct result *result, struct transfer *transfer, const struct fetch *fetch,
                                     struct hold **hold_p, struct rdt_error *err)
{
    if (transfer->move.target_is_destination)
        return fill_devices(result, transfer, fetch, hold_p, err);
    if (transfer->move.target && !transfer->move.reader_writes) {
        if (!result_make_regions(result, transfer->move.target->n, false))
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the answer");
        result->done.tensors = NULL; /* The tensors are where the reader asked for. */
        for (uint32_t i = 0; i < transfer->move.target->n; i++)
            (void)result_add_region(result, transfer->move.target->uses[i].region, fetch->client->id, SHARE_WRITE, false, -1,
                                    err);
        return RDT_OK;
    }
    result_set_tensors(result, transfer->move.packed, true, fetch->client);
    if (transfer->move.is_inline) {
        result->done.inline_data = (ProtobufCBinaryData){transfer->move.stream_bytes, (uint8_t *)transfer->move.inline_data};
        result->done.to_copy = transfer->move.reader_writes;
        return RDT_OK;
    }
    if (!transfer->move.received) /* All tensors are empty. */
        return RDT_OK;
    /* Several fetches read the same memory, so none may write it, not even others of the same uid. */
    if (transfer->n_fetches > 1)
        (void)region_seal(transfer->move.received, NULL);
    if (!result_make_regions(result, 1, false) ||
        !(*hold_p = client_hold_region(fetch->client, fetch->handle, transfer->move.received)))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the answer");
    return result_add_region(result, transfer->move.received, fetch->client->id, share_of(transfer), true, -1, err);
}

static void answer_received(struct fetch *fetch)
{
    struct transfer *transfer = fetch->transfer;
    struct rdt_error err = {0};
    struct hold *hold = NULL;
    struct result result;

    result_init(&result, fetch, &transfer->ref);
    result.done.tensors = &result.tensors;
    result.done.metadata = (ProtobufCBinaryData){transfer->metadata.n_bytes, (uint8_t *)transfer->metadata.bytes};
    result.done.box_bytes = transfer->metadata.box_bytes;
    if (fill_received(&result, transfer, fetch, &hold, &err) == RDT_OK) {
        result_send(&result, fetch, hold);
    } else {
        if (hold)
            client_release(hold);
        fetch_answer_error(fetch->client, fetch->handle, &err);
        fetch_detach(fetch);
        record_fail(&transfer->record, &err);
    }
    result_fini(&result);
}

void transfer_deliver_received(struct transfer *transfer)
{
    answer_all(transfer, answer_received);
}

static void answer_meta(struct fetch *fetch)
{
    struct transfer *transfer = fetch->transfer;
    struct result result;

    result_init(&result, fetch, &transfer->ref);
    if (transfer->move.source) {
        result_set_tensors(&result, transfer->move.source, false, fetch->client);
        result.done.tensors = &result.tensors;
    }
    result.done.metadata = (ProtobufCBinaryData){transfer->metadata.n_bytes, (uint8_t *)transfer->metadata.bytes};
    result.done.box_bytes = transfer->metadata.box_bytes;
    result_send(&result, fetch, NULL);
}

void transfer_deliver_meta(struct transfer *transfer)
{
    answer_all(transfer, answer_meta);
}

void transfer_use_metadata(struct transfer *transfer, struct object *object)
{
    object_hold(object);
    transfer->answers.object = object;
    transfer->metadata.bytes = object_metadata(object);
    transfer->metadata.n_bytes = object->tail.metadata_bytes;
    transfer->metadata.box_bytes = object->tail.box_bytes;
}
