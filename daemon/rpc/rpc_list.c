/* SPDX-License-Identifier: Apache-2.0 */
/* LIST and EXPLAIN: pages of every table. A page token is the place after which the next page starts. A table may change
 * between two pages, so a row can be missing or appear twice, but each row is correct when it is sent. */
#include <stddef.h>
#include <string.h>

#include "daemon/rpc/rpc_row.h"

#define PAGE_NS 20000
#define MIN_ROWS 16u /* a page with fewer rows is not ended by PAGE_NS */

/* A page under construction, and the memory that its rows point to. */
struct page {
    Rdt__Pb__ListReply reply;
    struct arena arena;
    void **rows;
    size_t n, max;
    uint64_t until_ns; /* the page ends at this time even if it is not full, so that other clients need not wait for it */
    bool failed;       /* no memory for a row */
};

static bool page_full(const struct page *page)
{
    return page->n == page->max || page->failed || (page->n >= MIN_ROWS && uv_hrtime() >= page->until_ns);
}

/* Whether the page has room for a row. If not, the next page begins after this token. */
static bool page_has_room(struct page *page, uint64_t next)
{
    if (!page_full(page))
        return true;
    page->reply.next = next;
    return false;
}

static void page_add(struct page *page, void *row)
{
    if (row)
        page->rows[page->n++] = row;
    else
        page->failed = true;
}

static bool is_for(const struct call *call, Rdt__Pb__ListKind kind, const void *thing)
{
    return row_is_for(kind, thing, &call->account->owner, call->admin);
}

/* ---- objects: in order of generation ---- */

#define AWAITED_PAGES (1ull << 63) /* larger page tokens are for awaited objects, which have no generation yet */
/* the most objects that are examined for one page, because a filter may select few of them; the next page continues */
#define EXAMINED_MAX 20000u

/* Adds the row if the filter selects it. Returns false if it does not fit into the page. */
static bool add_object(struct call *call, const Rdt__Pb__List *list, struct object *object, struct page *page)
{
    size_t prefix = strlen(list->id_prefix);

    if (!is_for(call, list->kind, object))
        return true;
    if (prefix > object->id_bytes || memcmp(object_id(object), list->id_prefix, prefix) != 0)
        return true;
    if (list->state[0] && strcmp(list->state, object_state_name(object)) != 0)
        return true;
    if (list->client != 0 && list->client != object->producer_id)
        return true;
    if (page_full(page))
        return false;
    page_add(page, row_object(&page->arena, object));
    return true;
}

/* Starts at the slot of the table where the previous page ended. */
static void list_awaited(struct call *call, const Rdt__Pb__List *list, uint64_t after, size_t examined, struct page *page)
{
    const struct map *by_name = &call->rpc->objects->by_name;
    size_t cursor = (size_t)after;

    for (size_t last = cursor;; last = cursor) {
        struct object *object = map_next(by_name, &cursor);
        if (!object)
            return;
        examined += cursor - last;
        if (examined > EXAMINED_MAX || (object->generation == 0 && !add_object(call, list, object, page))) {
            page->reply.next = AWAITED_PAGES + cursor - 1;
            return;
        }
    }
}

static void list_objects(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    struct object_table *table = call->rpc->objects;
    uint64_t generation = list->after, last = generation;
    struct object *object = NULL;
    size_t examined = 0;

    while (list->after < AWAITED_PAGES && (object = object_table_next(table, last, &generation))) {
        if (examined++ == EXAMINED_MAX || !add_object(call, list, object, page)) {
            page->reply.next = last;
            break;
        }
        last = generation;
    }
    if (!object)
        list_awaited(call, list, list->after < AWAITED_PAGES ? 0 : list->after - AWAITED_PAGES, examined, page);
}

static void list_regions(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    const struct regions *regions = call->rpc->regions;
    uint64_t last = list->after, id = last;
    const struct region *region;
    size_t examined = 0;

    while ((region = index_next(&regions->by_id, last + 1, &id))) {
        bool wanted = is_for(call, list->kind, region) && (list->client == 0 || list->client == region->client);
        if (examined++ == EXAMINED_MAX || (wanted && page_full(page))) {
            page->reply.next = last;
            break;
        }
        if (wanted)
            page_add(page, row_region(&page->arena, region));
        last = id;
    }
}

/* ---- clients, owners ---- */

static void list_owners(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    struct accounts *accounts = call->rpc->objects->accounts;
    const struct account *account;
    size_t cursor = 0;
    uint64_t place = 0;

    while ((account = map_next(&accounts->by_owner, &cursor))) {
        if (++place <= list->after || !call_may_see(call, &account->owner))
            continue;
        if (!page_has_room(page, place - 1))
            break;
        page_add(page, row_owner(&page->arena, account));
    }
}

static void list_clients(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    list_each (const struct client, client, &call->rpc->clients, link) /* in order of id: they are appended */ {
        if (client->id <= list->after || !is_for(call, list->kind, client))
            continue;
        if (!page_has_room(page, client->id - 1))
            break;
        page_add(page, row_client(&page->arena, client));
    }
}

/* ---- names ---- */

static void list_names(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    size_t prefix = strlen(list->id_prefix);

    list_each (const struct name, name, &call->rpc->names->published, link) /* in order of number: they are appended */ {
        if (name->number <= list->after || !is_for(call, list->kind, name))
            continue;
        if (prefix > name->id_bytes || memcmp(name_id(name), list->id_prefix, prefix) != 0)
            continue;
        if (!page_has_room(page, name->number - 1))
            break;
        page_add(page, row_name(&page->arena, name));
    }
}

/* ---- groups ---- */

static void list_groups(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    list_each (const struct group, group, &call->rpc->groups->all, link) /* in order of number: they are appended */ {
        if (group->number <= list->after || !is_for(call, list->kind, group) ||
            strncmp(group->name, list->id_prefix, strlen(list->id_prefix)) != 0)
            continue;
        if (!page_has_room(page, group->number - 1))
            break;
        page_add(page, row_group(&page->arena, group));
    }
}

/* ---- peers ---- */

static void list_peers(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    uint64_t place = 0;

    if (call->rpc->peers)
        list_for_each (node, peers_all(call->rpc->peers)) {
            if (++place <= list->after)
                continue;
            if (!page_has_room(page, place - 1))
                break;
            page_add(page, row_peer(&page->arena, container_of(node, struct peer, link), call->admin));
        }
}

/* ---- backends: one page ---- */

static void list_backends(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    list_for_each (node, plugins_memory_kinds(call->rpc->plugins)) {
        if (!page_full(page))
            page_add(page, row_memory(&page->arena, container_of(node, struct memory_kind, link)));
    }
    list_for_each (transport_node, plugins_transports(call->rpc->plugins)) {
        if (!page_full(page))
            page_add(page, row_transport(&page->arena, container_of(transport_node, struct transport, link)));
    }
}

/* ---- transfers: those that are active, then the latest that have ended ---- */

struct record_filter {
    uint64_t transfer, client;
    const struct rdt_ref *ref;
    const char *state;
};

static bool passes(const struct call *call, const struct record_filter *filter, const struct transfer_record *record)
{
    if (!is_for(call, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, record))
        return false;
    if (filter->transfer != 0 && filter->transfer != record->id && filter->transfer != record->part_of)
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

static void add_records(struct call *call, const struct record_filter *filter, struct page *page)
{
    const struct transfers *transfers = call->rpc->transfers;
    const struct transfer_record *record;
    struct list *cursor = NULL;

    while (!page_full(page) && (record = transfers_next_active(transfers, &cursor)))
        if (passes(call, filter, record))
            page_add(page, row_transfer(&page->arena, record));
    for (uint64_t i = 0; !page_full(page) && (record = transfers_history(transfers, i)); i++)
        if (passes(call, filter, record))
            page_add(page, row_transfer(&page->arena, record));
}

static void list_transfers(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    add_records(call, &(struct record_filter){.client = list->client, .state = list->state}, page);
}

/* ---- the requests ---- */

/* Where the reply has the rows of a list, and their number. */
#define ROWS(member) offsetof(Rdt__Pb__ListReply, member), offsetof(Rdt__Pb__ListReply, n_##member)

static const struct listing {
    size_t rows_at, n_at;
    void (*list)(struct call *call, const Rdt__Pb__List *list, struct page *page);
} listings[] = {
    [RDT__PB__LIST_KIND__LIST_KIND_OBJECTS] = {ROWS(objects), list_objects},
    [RDT__PB__LIST_KIND__LIST_KIND_REGIONS] = {ROWS(regions), list_regions},
    [RDT__PB__LIST_KIND__LIST_KIND_CLIENTS] = {ROWS(clients), list_clients},
    [RDT__PB__LIST_KIND__LIST_KIND_PEERS] = {ROWS(peers), list_peers},
    [RDT__PB__LIST_KIND__LIST_KIND_BACKENDS] = {ROWS(backends), list_backends},
    [RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS] = {ROWS(transfers), list_transfers},
    [RDT__PB__LIST_KIND__LIST_KIND_NAMES] = {ROWS(names), list_names},
    [RDT__PB__LIST_KIND__LIST_KIND_GROUPS] = {ROWS(groups), list_groups},
    [RDT__PB__LIST_KIND__LIST_KIND_OWNERS] = {ROWS(owners), list_owners},
};

static enum rdt_status page_init(struct page *page, uint32_t max, struct rdt_error *err)
{
    rdt__pb__list_reply__init(&page->reply);
    arena_init(&page->arena, RDT_MAX_DECODED_BYTES);
    page->n = 0;
    page->failed = false;
    page->until_ns = UINT64_MAX;
    page->max = max == 0 || max > RDT_MAX_PAGE ? RDT_MAX_PAGE : max;
    page->rows = arena_alloc(&page->arena, page->max * sizeof *page->rows);
    return page->rows ? RDT_OK : rdt_error_set(err, RDT_NO_MEMORY, "no memory for a page");
}

static enum rdt_status page_send(struct page *page, const struct listing *listing, struct call *call, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    memcpy((char *)&page->reply + listing->rows_at, &page->rows, sizeof page->rows);
    memcpy((char *)&page->reply + listing->n_at, &page->n, sizeof page->n);
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
    const struct listing *listing;
    struct page page;
    struct rdt_ref at = {.id = "names", .id_bytes = 5, .any_owner = 1};
    enum rdt_status status;

    if ((!call->client || list->node.len > 0) && list->kind != RDT__PB__LIST_KIND__LIST_KIND_NAMES)
        return rdt_error_set(err, RDT_DENIED, "another node lists published names only");
    if (list->node.len == sizeof at.node)
        memcpy(at.node, list->node.data, sizeof at.node);
    else if (list->node.len > 0)
        return rdt_error_set(err, RDT_INVALID, "the node has %zu bytes, not %zu", list->node.len, sizeof at.node);
    if (call->client && call_is_remote(call, &at))
        return call_forward(call, &at, &list->base, -1, err);
    if ((unsigned)list->kind >= sizeof listings / sizeof *listings)
        return rdt_error_set(err, RDT_INVALID, "lists of kind %d are unknown", (int)list->kind);
    listing = &listings[list->kind];
    status = page_init(&page, list->max, err);
    if (status != RDT_OK)
        return status;
    if (list->kind != RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS && list->kind != RDT__PB__LIST_KIND__LIST_KIND_BACKENDS)
        page.until_ns = uv_hrtime() + PAGE_NS; /* the others have only one page */
    listing->list(call, list, &page);
    return page_send(&page, listing, call, err);
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
        status = rdt_error_set(err, RDT_INVALID, "EXPLAIN needs the number of a transfer or a ref");
    if (status == RDT_OK)
        status = page_init(&page, 64, err);
    if (status != RDT_OK)
        return status;
    filter.ref = message->ref ? &ref : NULL;
    add_records(call, &filter, &page);
    if (page.n == 0) {
        arena_fini(&page.arena);
        return rdt_error_set(err, RDT_NOT_FOUND,
                             "this node knows no transfer of that number or object (it keeps the records of the latest %u)",
                             TRANSFER_HISTORY);
    }
    return page_send(&page, &listings[RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS], call, err);
}
