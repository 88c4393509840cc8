/* LIST and EXPLAIN: pages of every table. A page token is the place after which the next page starts; tables may change between pages,
 * so a row can be missed or seen twice, never wrong. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/rpc_view.h"

/* Everything a page points to, freed at once. */
struct page {
    Rdt__Pb__ListReply reply;
    struct arena arena;
    void **rows;
    size_t n, max;
    bool failed;
};

static void *page_alloc(struct page *page, size_t bytes)
{
    void *memory = arena_alloc(&page->arena, bytes);

    page->failed = page->failed || !memory;
    return memory;
}

static char *page_text(struct page *page, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = page_alloc(page, bytes);

    return copy ? memcpy(copy, text, bytes) : (char *)"";
}

static bool page_full(const struct page *page)
{
    return page->n == page->max || page->failed;
}

static void page_add(struct page *page, void *row)
{
    if (row)
        page->rows[page->n++] = row;
}

/* ---- objects: in order of generation ---- */

static int by_number(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* The smallest `max` + 1 numbers above `after` would do; sorting what passes is quick enough up to a million. */
static uint64_t *sorted_numbers(const struct map *map, uint64_t after, uint64_t (*number)(const void *), size_t *n_p)
{
    uint64_t *numbers = malloc((map_count(map) + 1) * sizeof *numbers);
    size_t cursor = 0, n = 0;
    const void *value;

    while (numbers && (value = map_next(map, &cursor)))
        if (number(value) > after)
            numbers[n++] = number(value);
    if (numbers)
        qsort(numbers, n, sizeof *numbers, by_number);
    *n_p = n;
    return numbers;
}

static uint64_t region_number(const void *region)
{
    return ((const struct region *)region)->id;
}

#define AWAITED_PAGES (1ull << 63) /* page tokens from here on count awaited objects, which have no generation yet */

/* false: it does not fit any more. */
static bool add_object(struct call *call, const Rdt__Pb__List *list, struct object *object, struct page *page)
{
    struct object_view *view;
    size_t prefix = strlen(list->id_prefix);

    if (!call_may_see(call, &object->account->owner) && !object_visible_to(object, &call->account->owner))
        return true;
    if (prefix > object->id_bytes || memcmp(object_id(object), list->id_prefix, prefix) != 0)
        return true;
    if (list->state[0] && strcmp(list->state, object_state_name(object)) != 0)
        return true;
    if (list->client != 0 && list->client != object->producer_id)
        return true;
    if (page_full(page))
        return false;
    view = page_alloc(page, sizeof *view);
    if (view) {
        object_view_fill(view, call->rpc, object, false);
        page_add(page, &view->info);
    }
    return true;
}

static void list_awaited(struct call *call, const Rdt__Pb__List *list, uint64_t after, struct page *page)
{
    size_t cursor = 0;
    struct object *object;
    uint64_t place = 0;

    while ((object = map_next(&call->rpc->objects->by_name, &cursor))) {
        if (object->generation != 0 || ++place <= after)
            continue;
        if (!add_object(call, list, object, page)) {
            page->reply.next = AWAITED_PAGES + place - 1;
            return;
        }
    }
}

static void list_objects(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    const struct object_table *table = call->rpc->objects;
    uint64_t generation = list->after;
    bool more = false;
    struct object *object;

    while (list->after < AWAITED_PAGES && !more && (object = index_next(&table->by_generation, generation + 1, &generation)))
        if (!add_object(call, list, object, page)) {
            page->reply.next = generation - 1;
            more = true;
        }
    if (!more)
        list_awaited(call, list, list->after < AWAITED_PAGES ? 0 : list->after - AWAITED_PAGES, page);
    page->reply.objects = (Rdt__Pb__ObjectInfo **)page->rows;
    page->reply.n_objects = page->n;
}

static const char *const origins[] = {"allocated", "imported", "received"};

static void list_regions(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    const struct regions *regions = call->rpc->regions;
    size_t n;
    uint64_t *ids = sorted_numbers(&regions->by_id, list->after, region_number, &n);

    page->failed = !ids;
    for (size_t i = 0; i < n && ids; i++) {
        const struct region *region = map_get_u64(&regions->by_id, ids[i]);
        Rdt__Pb__RegionInfo *info;
        if (!call_may_see(call, &region->account->owner) || (list->client != 0 && list->client != region->client))
            continue;
        if (page_full(page)) {
            page->reply.next = ids[i] - 1;
            break;
        }
        info = page_alloc(page, sizeof *info);
        if (!info)
            break;
        rdt__pb__region_info__init(info);
        info->region = region->id;
        info->generation = region->generation;
        info->memory = (char *)region->kind->name;
        info->device = (char *)region->device;
        info->origin = (char *)origins[region->origin];
        info->bytes = region->bytes;
        info->tenant = (char *)region->account->owner.tenant;
        info->uid = region->account->owner.uid;
        info->client = region->client;
        info->refs = region->refs;
        info->pins = region->pins;
        info->registered = page_alloc(page, REGION_MAX_REGISTRATIONS * sizeof(char *));
        for (unsigned r = 0; info->registered && r < region->n_registrations; r++)
            info->registered[info->n_registered++] = (char *)region->registrations[r].transport->name;
        page_add(page, info);
    }
    free(ids);
    page->reply.regions = (Rdt__Pb__RegionInfo **)page->rows;
    page->reply.n_regions = page->n;
}

/* ---- clients ---- */

static void list_clients(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    list_for_each (node, &call->rpc->clients) /* in order of id: they are appended */
    {
        const struct client *client = list_entry(node, struct client, link);
        Rdt__Pb__ClientInfo *info;
        if (client->id <= list->after || !call_may_see(call, &client->account->owner))
            continue;
        if (page_full(page)) {
            page->reply.next = client->id - 1;
            break;
        }
        info = page_alloc(page, sizeof *info);
        if (!info)
            break;
        rdt__pb__client_info__init(info);
        info->client = client->id;
        info->name = (char *)client->name;
        info->tenant = (char *)client->account->owner.tenant;
        info->uid = client->account->owner.uid;
        info->gid = client->gid;
        info->pid = client->pid;
        info->objects = client->n_objects;
        info->regions = (uint32_t)map_count(&client->regions);
        info->holds = (uint32_t)map_count(&client->holds);
        info->requests = (uint32_t)map_count(&client->fetches) + client->n_calls;
        info->queued_bytes = client->queued_bytes(client);
        info->age_ns = (int64_t)(uv_hrtime() - client->since_ns);
        page_add(page, info);
    }
    page->reply.clients = (Rdt__Pb__ClientInfo **)page->rows;
    page->reply.n_clients = page->n;
}

/* ---- names ---- */

static void list_names(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    size_t prefix = strlen(list->id_prefix);

    list_for_each (node, &call->rpc->names->published) /* in order of number: they are appended */
    {
        const struct name *name = list_entry(node, struct name, link);
        struct name_view *view;
        if (name->number <= list->after ||
            (!call_may_see(call, &name->account->owner) && !name_visible_to(name, &call->account->owner)))
            continue;
        if (prefix > name->id_bytes || memcmp(name_id(name), list->id_prefix, prefix) != 0)
            continue;
        if (page_full(page)) {
            page->reply.next = name->number - 1;
            break;
        }
        view = page_alloc(page, sizeof *view);
        if (!view)
            break;
        name_view_fill(view, name);
        page_add(page, &view->info);
    }
    page->reply.names = (Rdt__Pb__NameInfo **)page->rows;
    page->reply.n_names = page->n;
}

/* ---- peers ---- */

static void fill_peer(struct page *page, Rdt__Pb__PeerInfo *info, const struct peer *peer)
{
    uint64_t now = uv_hrtime();
    char hex[33];
    struct peer_summary summary;

    rdt__pb__peer_info__init(info);
    node_hex(peer->uuid, hex);
    info->uuid = page_text(page, hex);
    node_hex(peer->boot_id, hex);
    info->boot_id = page_text(page, hex);
    info->name = (char *)peer->name;
    info->address = (char *)peer->address;
    info->state = (char *)peer_state_name(peer->state);
    info->version = (char *)peer->version;
    info->rtt_ns = (int64_t)peer->rtt_ns;
    info->since_ns = (int64_t)(now - peer->since_ns);
    if (peer->state == PEER_BACKOFF && peer->retry_at_ns > now)
        info->retry_in_ns = (int64_t)(peer->retry_at_ns - now);
    if (peer->state != PEER_UP)
        info->last_error = (char *)peer->last_error;
    transfers_peer_summary(peer, &summary);
    info->transfers_in = summary.transfers_in;
    info->transfers_out = summary.transfers_out;
    info->bytes_in = summary.bytes_in;
    info->bytes_out = summary.bytes_out;
    info->transports = page_alloc(page, PATH_MAX_CANDIDATES * sizeof(char *));
    for (unsigned i = 0; info->transports && i < summary.n_transports; i++)
        info->transports[info->n_transports++] = (char *)summary.transports[i];
}

static void list_peers(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    uint64_t place = 0;

    if (call->rpc->peers)
        list_for_each (node, peers_all(call->rpc->peers)) {
            Rdt__Pb__PeerInfo *info;
            if (++place <= list->after)
                continue;
            if (page_full(page)) {
                page->reply.next = place - 1;
                break;
            }
            info = page_alloc(page, sizeof *info);
            if (!info)
                break;
            fill_peer(page, info, list_entry(node, struct peer, link));
            page_add(page, info);
        }
    page->reply.peers = (Rdt__Pb__PeerInfo **)page->rows;
    page->reply.n_peers = page->n;
}

/* ---- backends: few, one page ---- */

static Rdt__Pb__BackendInfo *new_backend(struct page *page, const char *name, const char *kind, const char *path,
                                         bool available, const char *why_not)
{
    Rdt__Pb__BackendInfo *info = page_full(page) ? NULL : page_alloc(page, sizeof *info);

    if (!info)
        return NULL;
    rdt__pb__backend_info__init(info);
    info->name = (char *)name;
    info->kind = (char *)kind;
    info->path = (char *)path;
    info->available = available;
    info->why_not = (char *)why_not;
    page_add(page, info);
    return info;
}

static void list_backends(struct call *call, struct page *page)
{
    list_for_each (node, plugins_memory_kinds(call->rpc->plugins)) {
        const struct memory_kind *kind = list_entry(node, struct memory_kind, link);
        (void)new_backend(page, kind->name, "memory", kind->path, kind->available, kind->why_not);
    }
    list_for_each (transport_node, plugins_transports(call->rpc->plugins)) {
        const struct transport *transport = list_entry(transport_node, struct transport, link);
        Rdt__Pb__BackendInfo *info =
            new_backend(page, transport->name, "transport", transport->path, transport->available, transport->why_not);
        if (!info)
            break;
        info->version = (char *)transport->version;
        info->sided = (char *)transport_sided(transport);
        info->can_abort = transport->ops.cancel != NULL;
        info->ops_active = transport->ops_active;
        info->bytes = transport->bytes_done;
        info->memory = (char **)transport->ops.memory_kinds;
        while (info->memory && info->memory[info->n_memory])
            info->n_memory++;
    }
    page->reply.backends = (Rdt__Pb__BackendInfo **)page->rows;
    page->reply.n_backends = page->n;
}

/* ---- transfers: those under way, then the latest that ended ---- */

static void add_record(struct page *page, const struct transfer_record *record)
{
    Rdt__Pb__TransferInfo *info = page_alloc(page, sizeof *info);
    Rdt__Pb__Candidate *candidates = page_alloc(page, PATH_MAX_CANDIDATES * sizeof *candidates);
    Rdt__Pb__Candidate **list = page_alloc(page, PATH_MAX_CANDIDATES * sizeof *list);
    char *ref = page_alloc(page, RDT_REF_TEXT_BYTES);

    if (!info || !candidates || !list || !ref)
        return;
    transfer_record_to_wire(record, info, ref);
    for (unsigned i = 0; i < record->decision.n; i++) {
        rdt__pb__candidate__init(&candidates[i]);
        candidates[i].path = (char *)record->decision.candidates[i].name;
        candidates[i].chosen = (int)i == record->decision.chosen;
        candidates[i].reason = (char *)record->decision.candidates[i].reason;
        list[i] = &candidates[i];
    }
    info->n_candidates = record->decision.n;
    info->candidates = list;
    page_add(page, info);
}

struct record_filter {
    uint64_t transfer, client;
    const struct rdt_ref *ref;
    const char *state;
};

static bool passes(const struct call *call, const struct record_filter *filter, const struct transfer_record *record)
{
    if (!call_may_see(call, &record->requester))
        return false;
    if (filter->transfer != 0 && filter->transfer != record->id)
        return false;
    if (filter->client != 0 && filter->client != record->client)
        return false;
    if (filter->state && filter->state[0] && strcmp(filter->state, record->state) != 0)
        return false;
    if (filter->ref && filter->ref->generation != 0 && filter->ref->generation != record->ref.generation)
        return false;
    return !filter->ref || (filter->ref->id_bytes == record->ref.id_bytes &&
                            memcmp(filter->ref->id, record->ref.id, filter->ref->id_bytes) == 0);
}

static void list_records(struct call *call, const struct record_filter *filter, struct page *page)
{
    const struct transfers *transfers = call->rpc->transfers;
    const struct transfer_record *record;
    struct list *cursor = NULL;

    while (!page_full(page) && (record = transfers_next_active(transfers, &cursor)))
        if (passes(call, filter, record))
            add_record(page, record);
    for (uint64_t i = 0; i < TRANSFER_HISTORY && i < transfers->n_history; i++) {
        record = &transfers->history[(transfers->n_history - 1 - i) % TRANSFER_HISTORY];
        if (page_full(page))
            break;
        if (passes(call, filter, record))
            add_record(page, record);
    }
    page->reply.transfers = (Rdt__Pb__TransferInfo **)page->rows;
    page->reply.n_transfers = page->n;
}

/* ---- the requests ---- */

static enum rdt_status page_init(struct page *page, uint32_t max, struct rdt_error *err)
{
    rdt__pb__list_reply__init(&page->reply);
    arena_init(&page->arena, RDT_MAX_DECODED_BYTES);
    page->n = 0;
    page->failed = false;
    page->max = max == 0 || max > RDT_MAX_PAGE ? RDT_MAX_PAGE : max;
    page->rows = arena_alloc(&page->arena, page->max * sizeof *page->rows);
    return page->rows ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory for a page");
}

static enum rdt_status page_send(struct page *page, struct call *call, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    if (page->failed && page->n == 0)
        status = rdt_error_set(err, RDT_NO_MEMORY, "no memory for a page");
    else
        call_reply(call, &page->reply.base, NULL, 0);
    arena_fini(&page->arena);
    return status;
}

enum rdt_status rpc_list(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__List *list = request;
    struct record_filter filter = {.client = list->client, .state = list->state};
    struct page page;
    enum rdt_status status = page_init(&page, list->max, err);

    if (status != RDT_OK)
        return status;
    switch (list->kind) {
    case RDT__PB__LIST_KIND__LIST_KIND_OBJECTS:
        list_objects(call, list, &page);
        break;
    case RDT__PB__LIST_KIND__LIST_KIND_REGIONS:
        list_regions(call, list, &page);
        break;
    case RDT__PB__LIST_KIND__LIST_KIND_CLIENTS:
        list_clients(call, list, &page);
        break;
    case RDT__PB__LIST_KIND__LIST_KIND_PEERS:
        list_peers(call, list, &page);
        break;
    case RDT__PB__LIST_KIND__LIST_KIND_BACKENDS:
        list_backends(call, &page);
        break;
    case RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS:
        list_records(call, &filter, &page);
        break;
    case RDT__PB__LIST_KIND__LIST_KIND_NAMES:
        list_names(call, list, &page);
        break;
    default:
        arena_fini(&page.arena);
        return rdt_error_set(err, RDT_INVALID, "there is no list %d", (int)list->kind);
    }
    return page_send(&page, call, err);
}

enum rdt_status rpc_explain(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Explain *message = request;
    struct record_filter filter = {.transfer = message->transfer};
    struct rdt_ref ref;
    struct page page;
    enum rdt_status status = RDT_OK;

    if (message->ref)
        status = call_object_ref(message->ref, &ref, err);
    else if (message->transfer == 0)
        status = rdt_error_set(err, RDT_INVALID, "explain needs a transfer or a ref");
    if (status == RDT_OK)
        status = page_init(&page, 64, err);
    if (status != RDT_OK)
        return status;
    filter.ref = message->ref ? &ref : NULL;
    list_records(call, &filter, &page);
    if (page.n == 0) {
        arena_fini(&page.arena);
        return rdt_error_set(err, RDT_NOT_FOUND,
                             "no transfer of that number or object is known here any more (the latest %u are kept)",
                             TRANSFER_HISTORY);
    }
    return page_send(&page, call, err);
}
