/* SPDX-License-Identifier: Apache-2.0 */
/* LIST and EXPLAIN: pages of every table. A page token is the place after which the next page starts. A table may change
 * between two pages, so a row can be missing or appear twice, but each row is correct when it is sent. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/view/view.h"

#define PAGE_NS 20000
#define MIN_ROWS 16u      /* a page with fewer rows is not ended by PAGE_NS */
#define EXAMINED_MIN 128u /* nor is one for which less was examined */

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

/* Whether so much was examined that the page ends, even with no rows, because a filter may select few. The next one goes on. */
static bool page_over(const struct page *page, size_t examined)
{
    return examined % EXAMINED_MIN == 0 && examined > 0 && uv_hrtime() >= page->until_ns;
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
/* Adds the row if the filter selects it. Returns false if it does not fit into the page. */
static bool add_object(struct call *call, const Rdt__Pb__List *list, struct object *object, struct page *page)
{
    size_t prefix = strlen(list->id_prefix);

    if (!is_for(call, list->kind, object))
        return true;
    if (prefix > object->tail.id_bytes || memcmp(object_id(object), list->id_prefix, prefix) != 0)
        return true;
    if (list->state[0] && strcmp(list->state, object_state_name(object)) != 0)
        return true;
    if (list->client != 0 && list->client != object_producer_id(object))
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

    for (;;) {
        struct object *object = map_next(by_name, &cursor);
        if (!object)
            return;
        if (page_over(page, examined++) || (object->generation == 0 && !add_object(call, list, object, page))) {
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
        if (page_over(page, examined++) || !add_object(call, list, object, page)) {
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
        if (page_over(page, examined++) || (wanted && page_full(page))) {
            page->reply.next = last;
            break;
        }
        if (wanted)
            page_add(page, row_region(&page->arena, region));
        last = id;
    }
}

/* The page begins at the slot of the table where the one before ended. */
static void list_orphans(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    size_t cursor = (size_t)list->after, before = cursor, examined = 0;
    struct orphan_row row;

    for (; region_orphans_next(call->rpc->regions->orphans, &cursor, &row); before = cursor) {
        bool wanted = call_may_see(call, &row.account->owner);
        if ((page_over(page, examined++) || (wanted && page_full(page))) && before > 0) {
            page->reply.next = before;
            break;
        }
        if (wanted)
            page_add(page, row_orphan(&page->arena, &row));
    }
}

/* ---- requests that wait for a put or a publish ---- */

static void list_waits(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    uint64_t last = list->after, number;
    const struct call *waiting;
    size_t examined = 0;

    for (; (waiting = index_next(&call->rpc->calls.waiting, last + 1, &number)); last = number) {
        /* without either, what it waits for has come, or another node is asked */
        bool wanted =
            (waiting->waits.named.name || waiting->waits.object.object) && call_may_see(call, &waiting->account->owner);
        if (page_over(page, examined++) || (wanted && page_full(page))) {
            page->reply.next = last;
            return;
        }
        if (wanted)
            page_add(page, row_wait(&page->arena, waiting));
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
    list_each (const struct client, client, &call->rpc->clients.all, link) /* in order of number: they are appended */ {
        if (client->number <= list->after || !is_for(call, list->kind, client))
            continue;
        if (!page_has_room(page, client->number - 1))
            break;
        page_add(page, row_client(&page->arena, client));
    }
}

/* ---- names ---- */

static void list_names(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    size_t prefix = strlen(list->id_prefix), examined = 0;
    uint64_t last = list->after;

    for (const struct name *name; (name = names_next(call->rpc->names, last)); last = name->number) {
        bool wanted =
            is_for(call, list->kind, name) && prefix <= name->id_bytes && memcmp(name_id(name), list->id_prefix, prefix) == 0;
        if (page_over(page, examined++) || (wanted && page_full(page))) {
            page->reply.next = last;
            break;
        }
        if (wanted)
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
    const struct peer *peer = call->rpc->peers ? peers_next(call->rpc->peers, list->after) : NULL;

    for (; peer && page_has_room(page, peer->number - 1); peer = peers_next(call->rpc->peers, peer->number))
        page_add(page, row_peer(&page->arena, peer, call->admin));
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
    if (filter->transfer != 0 && filter->transfer != record->id && filter->transfer != record->parent)
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

#define ENDED_PAGES (1ull << 63) /* larger page tokens are for transfers that have ended: how many had before the next row */

/* From the latest on, or from the one before which n had ended. */
static void add_ended(const struct call *call, const struct record_filter *filter, uint64_t n, struct page *page)
{
    const struct transfers *transfers = call->rpc->transfers;
    const struct transfer_record *record;

    for (uint64_t i = n < transfers->past.n ? transfers->past.n - n : 0; (record = transfers_history(transfers, i)); i++) {
        if (!passes(call, filter, record))
            continue;
        if (page_full(page)) {
            page->reply.next = ENDED_PAGES + transfers->past.n - i;
            return;
        }
        page_add(page, row_transfer(&page->arena, record));
    }
}

static void list_transfers(struct call *call, const Rdt__Pb__List *list, struct page *page)
{
    const struct record_filter filter = {.client = list->client, .state = list->state};
    const struct transfers *transfers = call->rpc->transfers;
    const struct transfer_record *record;
    uint64_t last = list->after;
    size_t examined = 0;

    for (; last < ENDED_PAGES && (record = transfers_next_active(transfers, last)); last = record->id) {
        bool wanted = passes(call, &filter, record);
        if (page_over(page, examined++) || (wanted && page_full(page))) {
            page->reply.next = last;
            return;
        }
        if (wanted)
            page_add(page, row_transfer(&page->arena, record));
    }
    add_ended(call, &filter, last < ENDED_PAGES ? UINT64_MAX : last - ENDED_PAGES, page);
}

/* ---- the requests ---- */

/* Where the reply has the rows of a list, and their number. */
#define ROWS(member) offsetof(Rdt__Pb__ListReply, member), offsetof(Rdt__Pb__ListReply, n_##member)

static const struct listing {
    size_t rows_at, n_at;
    void (*list)(struct call *call, const Rdt__Pb__List *list, struct page *page);
    bool counts; /* its pages begin after numbers that count what all users have: nobody sees them */
} listings[] = {
    [RDT__PB__LIST_KIND__LIST_KIND_OBJECTS] = {ROWS(objects), list_objects},
    [RDT__PB__LIST_KIND__LIST_KIND_REGIONS] = {ROWS(regions), list_regions},
    [RDT__PB__LIST_KIND__LIST_KIND_CLIENTS] = {ROWS(clients), list_clients, true},
    [RDT__PB__LIST_KIND__LIST_KIND_PEERS] = {ROWS(peers), list_peers, true},
    [RDT__PB__LIST_KIND__LIST_KIND_BACKENDS] = {ROWS(backends), list_backends},
    [RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS] = {ROWS(transfers), list_transfers, true},
    [RDT__PB__LIST_KIND__LIST_KIND_NAMES] = {ROWS(names), list_names, true},
    [RDT__PB__LIST_KIND__LIST_KIND_GROUPS] = {ROWS(groups), list_groups, true},
    [RDT__PB__LIST_KIND__LIST_KIND_OWNERS] = {ROWS(owners), list_owners, true},
    [RDT__PB__LIST_KIND__LIST_KIND_ORPHANS] = {ROWS(orphans), list_orphans, true},
    [RDT__PB__LIST_KIND__LIST_KIND_WAITS] = {ROWS(waits), list_waits, true},
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
    Rdt__Pb__List copy = *(const Rdt__Pb__List *)request, *list = &copy;
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
    if (list->kind != RDT__PB__LIST_KIND__LIST_KIND_BACKENDS) /* they have only one page */
        page.until_ns = uv_hrtime() + PAGE_NS;
    if (listing->counts && list->after > 0)
        list->after = permutation_back(&call->rpc->page_tokens, list->after);
    listing->list(call, list, &page);
    if (listing->counts && page.reply.next > 0)
        page.reply.next = permutation_of(&call->rpc->page_tokens, page.reply.next);
    return page_send(&page, listing, call, err);
}

/* EXPLAIN has only one page, so its client's turns look for the rows. */
#define EXPLAINED_MAX 64u

struct explaining {
    struct client_task task;
    struct call *call;
    struct record_filter filter;
    struct rdt_ref ref;            /* of the filter */
    uint64_t last;                 /* the id of the last transfer that was examined */
    uint64_t found[EXPLAINED_MAX]; /* their ids */
    unsigned n;
};

static enum rdt_status explain(const struct explaining *explaining, struct rdt_error *err)
{
    struct call *call = explaining->call;
    const struct transfer_record *record;
    struct page page;
    enum rdt_status status = page_init(&page, EXPLAINED_MAX, err);

    if (status != RDT_OK)
        return status;
    for (unsigned i = 0; i < explaining->n; i++)
        if ((record = transfers_active_record(call->rpc->transfers, explaining->found[i])))
            page_add(&page, row_transfer(&page.arena, record));
    add_ended(call, &explaining->filter, UINT64_MAX, &page);
    page.reply.next = 0;
    if (page.n > 0 || page.failed)
        return page_send(&page, &listings[RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS], call, err);
    arena_fini(&page.arena);
    return rdt_error_set(err, RDT_NOT_FOUND,
                         "this node knows no transfer of that number or object (it keeps the records of the latest %u)",
                         TRANSFER_HISTORY);
}

static bool explain_step(struct client_task *task, uint64_t until_ns)
{
    struct explaining *explaining = (struct explaining *)task;
    struct rdt_error err;

    do {
        const struct transfer_record *record = transfers_next_active(explaining->call->rpc->transfers, explaining->last);
        if (!record || explaining->n == EXPLAINED_MAX) {
            if (explain(explaining, &err) != RDT_OK)
                call_fail(explaining->call, &err);
            free(explaining);
            return true;
        }
        if (passes(explaining->call, &explaining->filter, record))
            explaining->found[explaining->n++] = record->id;
        explaining->last = record->id;
    } while (uv_hrtime() < until_ns);
    return false;
}

static bool explain_drop(struct client_task *task)
{
    struct explaining *explaining = (struct explaining *)task;

    call_drop(explaining->call);
    free(explaining);
    return true;
}

enum rdt_status rpc_explain(struct call *call, const void *request, struct rdt_error *err)
{
    const Rdt__Pb__Explain *message = request;
    struct client *client = call->client;
    struct explaining *explaining;
    struct rdt_ref ref;
    enum rdt_status status = RDT_OK;

    if (message->ref)
        status = call_object_ref(message->ref, &ref, err);
    else if (message->transfer == 0)
        status = rdt_error_set(err, RDT_INVALID, "EXPLAIN needs the number of a transfer or a ref");
    if (status != RDT_OK)
        return status;
    explaining = calloc(1, sizeof *explaining);
    if (!explaining)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to look for transfers");
    explaining->task = (struct client_task){.step = explain_step, .drop = explain_drop};
    explaining->call = call;
    explaining->filter.transfer = message->transfer;
    if (message->ref) {
        explaining->ref = ref;
        explaining->filter.ref = &explaining->ref;
    }
    if (!explain_step(&explaining->task, uv_hrtime() + PAGE_NS)) {
        client->task = &explaining->task;
        client->conn.want_turn(client);
    }
    return RDT_OK;
}
