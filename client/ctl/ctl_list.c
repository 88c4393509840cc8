/* SPDX-License-Identifier: Apache-2.0 */
/* rdtctl objects, regions, clients, names, groups, peers, backends and transfers: print the pages of a LIST as a table or as
 * {"objects": [...]}; and rdtctl followers and cache. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/rdt_info.h"
#include "ctl.h"
#include "ctl_commands.h"
#include "ctl_json.h"
#include "ctl_table.h"
#include "proto/grow.h"
#include "rdt.pb-c.h"
#include "wire_limits.h"

struct view {
    Rdt__Pb__ListKind kind;
    const char *field; /* of ListReply; also the key of the JSON object */
    const struct ctl_column *columns;
    unsigned n_columns;
    void (*add_row)(struct ctl_table *table, const ProtobufCMessage *row);
    const char *nothing; /* printed if there are no rows */
    /* For qsort, of pointers to rows; NULL: they stay in the daemon's order. */
    int (*compare)(const void *a, const void *b);
};

#define COLUMNS(array) (array), sizeof(array) / sizeof *(array)

/* Adds "1000" or "tenant:1000". */
static void add_owner(struct ctl_table *table, const char *tenant, uint32_t uid)
{
    ctl_table_add(table, "%s%s%" PRIu32, tenant, *tenant ? ":" : "", uid);
}

static void add_strings(struct ctl_table *table, char *const *strings, size_t count)
{
    char text[256] = "";
    size_t used = 0;

    for (size_t i = 0; i < count && used + 1 < sizeof text; i++) {
        int n = snprintf(text + used, sizeof text - used, "%s%s", i ? "," : "", strings[i]);

        used += n > 0 ? (size_t)n : 0;
    }
    ctl_table_add(table, "%s", text);
}

static const struct ctl_column wide_object_columns[] = {
    {"OBJECT", false}, {"STATE", false}, {"OWNER", false}, {"BYTES", true}, {"TENSORS", true}, {"HOLDS", true},
    {"PINS", true},    {"WAITS", true},  {"CLIENT", true}, {"AGE", true},   {"MARKS", false},  {"REF", false},
};

enum { N_OBJECT_COLUMNS = sizeof wide_object_columns / sizeof *wide_object_columns - 1 }; /* without REF */

static void add_object(struct ctl_table *table, const ProtobufCMessage *row)
{
    const Rdt__Pb__ObjectInfo *o = (const Rdt__Pb__ObjectInfo *)row;
    char text[CTL_HUMAN_BYTES], id[64];
    const char *stored = !*o->stored_file ? "" : o->storing ? ", being stored" : ", stored"; /* only snapshots are */

    ctl_table_add(table, "%s", ctl_plain(o->id, id, sizeof id));
    ctl_table_add(table, "%s", o->state);
    add_owner(table, o->tenant, o->uid);
    ctl_table_add(table, "%s", ctl_human_bytes(o->bytes, text));
    ctl_table_add(table, "%" PRIu64, o->tensors);
    ctl_table_add(table, "%" PRIu32, o->holds);
    ctl_table_add(table, "%" PRIu32, o->pins);
    ctl_table_add(table, "%" PRIu32, o->waiters);
    ctl_table_add(table, "%" PRIu64, o->producer);
    ctl_table_add(table, "%s", ctl_human_duration(o->age_ns, text));
    if (o->evictable)
        ctl_table_add(table, "snapshot, evictable%s%s", o->kept ? ", kept" : "", stored);
    else if (o->detached && o->ttl_left_ns >= 0)
        ctl_table_add(table, "%sdetached, %s left%s%s", o->snapshot ? "snapshot, " : "",
                      ctl_human_duration(o->ttl_left_ns, text), o->kept ? ", kept" : "", stored);
    else
        ctl_table_add(table, "%s%s%s%s%s", o->snapshot ? "snapshot" : "", o->snapshot && o->detached ? ", " : "",
                      o->detached ? "detached" : "",
                      !o->kept                     ? ""
                      : o->snapshot || o->detached ? ", kept"
                                                   : "kept",
                      stored);
}

static void add_wide_object(struct ctl_table *table, const ProtobufCMessage *row)
{
    add_object(table, row);
    ctl_table_add(table, "%s", ((const Rdt__Pb__ObjectInfo *)row)->ref);
}

static int by_bytes(const void *a, const void *b)
{
    const Rdt__Pb__ObjectInfo *const *one = a, *const *other = b;

    return ((*one)->bytes < (*other)->bytes) - ((*one)->bytes > (*other)->bytes);
}

static int by_holds(const void *a, const void *b)
{
    const Rdt__Pb__ObjectInfo *const *one = a, *const *other = b;

    return ((*one)->holds < (*other)->holds) - ((*one)->holds > (*other)->holds);
}

static const struct ctl_column region_columns[] = {
    {"REGION", true}, {"MEMORY", false}, {"ORIGIN", false}, {"BYTES", true},       {"OWNER", false},
    {"CLIENT", true}, {"REFS", true},    {"PINS", true},    {"REGISTERED", false},
};

static void add_region(struct ctl_table *table, const ProtobufCMessage *row)
{
    const Rdt__Pb__RegionInfo *r = (const Rdt__Pb__RegionInfo *)row;
    char text[CTL_HUMAN_BYTES];

    ctl_table_add(table, "%" PRIu64, r->region);
    ctl_table_add(table, "%s%s%s", r->memory, *r->device ? " " : "", r->device);
    ctl_table_add(table, "%s", r->origin);
    ctl_table_add(table, "%s", ctl_human_bytes(r->bytes, text));
    add_owner(table, r->tenant, r->uid);
    ctl_table_add(table, "%" PRIu64, r->client);
    ctl_table_add(table, "%" PRIu32, r->refs);
    ctl_table_add(table, "%" PRIu32, r->pins);
    add_strings(table, r->registered, r->n_registered);
}

static const struct ctl_column client_columns[] = {
    {"CLIENT", true}, {"NAME", false},    {"PID", true},    {"OWNER", false}, {"OBJECTS", true},  {"REGIONS", true},
    {"HOLDS", true},  {"REQUESTS", true}, {"UNREAD", true}, {"AGE", true},    {"SESSION", false},
};

static void add_client(struct ctl_table *table, const ProtobufCMessage *row)
{
    const Rdt__Pb__ClientInfo *c = (const Rdt__Pb__ClientInfo *)row;
    char text[CTL_HUMAN_BYTES], name[64];

    ctl_table_add(table, "%" PRIu64, c->client);
    ctl_table_add(table, "%s", ctl_plain(c->name, name, sizeof name));
    ctl_table_add(table, "%" PRId32, c->pid);
    add_owner(table, c->tenant, c->uid);
    ctl_table_add(table, "%" PRIu32, c->objects);
    ctl_table_add(table, "%" PRIu32, c->regions);
    ctl_table_add(table, "%" PRIu32, c->holds);
    ctl_table_add(table, "%" PRIu32, c->requests);
    ctl_table_add(table, "%s", ctl_human_bytes(c->queued_bytes, text));
    ctl_table_add(table, "%s", ctl_human_duration(c->age_ns, text));
    ctl_table_add(table, "%s", c->session);
}

static const struct ctl_column cluster_name_columns[] = {
    {"NODE", false}, {"NAME", false}, {"VERSION", true}, {"OWNER", false},  {"VISIBLE TO", false},
    {"BYTES", true}, {"WAITS", true}, {"AGE", true},     {"OBJECT", false}, {"ENDS", false},
};

enum { N_NAME_COLUMNS = sizeof cluster_name_columns / sizeof *cluster_name_columns - 1 }; /* without NODE */

static void add_name(struct ctl_table *table, const ProtobufCMessage *row)
{
    const Rdt__Pb__NameInfo *n = (const Rdt__Pb__NameInfo *)row;
    char text[CTL_HUMAN_BYTES], word[160];

    ctl_table_add(table, "%s", ctl_plain(n->name, word, sizeof word));
    ctl_table_add(table, "%" PRIu64, n->version);
    add_owner(table, n->tenant, n->uid);
    ctl_table_add(table, "%s", n->visibility);
    ctl_table_add(table, "%s", ctl_human_bytes(n->bytes, text));
    ctl_table_add(table, "%" PRIu32, n->waiters);
    ctl_table_add(table, "%s", ctl_human_duration(n->age_ns, text));
    ctl_table_add(table, "%s", *n->ref ? ctl_id_of(n->ref, word, sizeof word) : "");
    if (n->lease_client)
        ctl_table_add(table, "with client %" PRIu64, n->lease_client);
    else if (n->ttl_left_ns >= 0)
        ctl_table_add(table, "in %s", ctl_human_duration(n->ttl_left_ns, text));
    else
        ctl_table_add(table, "%s", "");
}

static void add_cluster_name(struct ctl_table *table, const ProtobufCMessage *row)
{
    const Rdt__Pb__NameInfo *n = (const Rdt__Pb__NameInfo *)row;
    char word[80];
    struct rdt_ref ref;

    ctl_table_add(table, "%s",
                  *n->ref && rdt_ref_from_text(n->ref, &ref, NULL) == RDT_OK ? ctl_plain(ref.address, word, sizeof word) : "");
    add_name(table, row);
}

static const struct ctl_column group_columns[] = {
    {"GROUP", false}, {"TRANSPORT", false}, {"STATE", false},    {"EPOCH", true},    {"RANKS", true},
    {"OWNER", false}, {"SINCE", true},      {"TRANSFERS", true}, {"MEMBERS", false}, {"WHY", false},
};

static void add_group(struct ctl_table *table, const ProtobufCMessage *row)
{
    const Rdt__Pb__GroupInfo *g = (const Rdt__Pb__GroupInfo *)row;
    char text[CTL_HUMAN_BYTES], word[80], members[512] = "";
    size_t used = 0;

    for (size_t i = 0; i < g->n_members && used + 1 < sizeof members; i++) {
        int n = snprintf(members + used, sizeof members - used, "%s%s@%s", i ? "," : "",
                         ctl_plain(g->members[i]->client, word, sizeof word), g->members[i]->address);

        used += n > 0 ? (size_t)n : 0;
    }
    ctl_table_add(table, "%s", ctl_plain(g->name, word, sizeof word));
    ctl_table_add(table, "%s", g->transport);
    ctl_table_add(table, "%s", g->state);
    ctl_table_add(table, "%" PRIu32, g->epoch);
    ctl_table_add(table, "%" PRIu32, g->ranks);
    add_owner(table, g->tenant, g->uid);
    ctl_table_add(table, "%s", ctl_human_duration(g->since_ns, text));
    ctl_table_add(table, "%" PRIu32, g->transfers);
    ctl_table_add(table, "%s", members);
    ctl_table_add(table, "%s", g->why);
}

static const struct ctl_column peer_columns[] = {
    {"PEER", false}, {"NAME", false}, {"ADDRESS", false},    {"STATE", false},    {"SINCE", true},       {"RTT", true},
    {"IN", true},    {"OUT", true},   {"TRANSPORTS", false}, {"IDENTITY", false}, {"LAST ERROR", false},
};

/* Adds "ucx (tcp/eth0),stream", or "stream; not ucx: the library's versions differ: ...". */
static void add_transports(struct ctl_table *table, const Rdt__Pb__PeerInfo *p)
{
    char text[2048] = "", plain[384];
    size_t used = 0;

    for (size_t i = 0; i < p->n_transports && used + 1 < sizeof text; i++) {
        bool known = i < p->n_routes && *p->routes[i];
        int n = snprintf(text + used, sizeof text - used, "%s%s%s%s%s", i ? "," : "", p->transports[i], known ? " (" : "",
                         known ? ctl_plain(p->routes[i], plain, sizeof plain) : "", known ? ")" : "");

        used += n > 0 ? (size_t)n : 0;
    }
    for (size_t i = 0; i < p->n_unusable && used + 1 < sizeof text; i++) {
        int n = snprintf(text + used, sizeof text - used, "%snot %s", used ? "; " : "",
                         ctl_plain(p->unusable[i], plain, sizeof plain));

        used += n > 0 ? (size_t)n : 0;
    }
    if (p->fell_back > 0 && used + 1 < sizeof text)
        (void)snprintf(text + used, sizeof text - used, "; %" PRIu64 " transfers took a slower one", p->fell_back);
    ctl_table_add(table, "%s", text);
}

static void add_peer(struct ctl_table *table, const ProtobufCMessage *row)
{
    const Rdt__Pb__PeerInfo *p = (const Rdt__Pb__PeerInfo *)row;
    char text[CTL_HUMAN_BYTES];

    ctl_table_add(table, "%s", p->uuid);
    ctl_table_add(table, "%s", p->name);
    ctl_table_add(table, "%s", p->address);
    if (p->retry_in_ns > 0)
        ctl_table_add(table, "%s, again in %s", p->state, ctl_human_duration(p->retry_in_ns, text));
    else
        ctl_table_add(table, "%s", p->state);
    ctl_table_add(table, "%s", ctl_human_duration(p->since_ns, text));
    ctl_table_add(table, "%s", ctl_human_duration(p->rtt_ns > 0 ? p->rtt_ns : -1, text));
    ctl_table_add(table, "%s", ctl_human_bytes(p->bytes_in, text));
    ctl_table_add(table, "%s", ctl_human_bytes(p->bytes_out, text));
    add_transports(table, p);
    ctl_table_add(table, "%s", *p->identity ? p->identity : "-");
    ctl_table_add(table, "%s", p->last_error);
}

static const struct ctl_column backend_columns[] = {
    {"BACKEND", false}, {"KIND", false},  {"VERSION", false}, {"SIDED", false},     {"MEMORY", false},
    {"ABORT", false},   {"ACTIVE", true}, {"BYTES", true},    {"AVAILABLE", false},
};

/* Adds a row below the device's memory kind: the memory that is allocated on it, its limit, what of it is in the free pool, and
 * what using the device costs beside that. */
static void add_device(struct ctl_table *table, const Rdt__Pb__DeviceInfo *d)
{
    char used[CTL_HUMAN_BYTES], limit[CTL_HUMAN_BYTES], pool[CTL_HUMAN_BYTES], text[CTL_HUMAN_BYTES];

    ctl_table_add(table, "  %s", d->uuid);
    ctl_table_add(table, "%s", "device");
    ctl_table_add(table, "%s", d->name);
    ctl_table_add(table, "%s", "");
    ctl_table_add(table, "%s", d->memory);
    ctl_table_add(table, "%s", "");
    ctl_table_add(table, "%" PRIu64, d->regions);
    if (d->pool_bytes > 0)
        ctl_table_add(table, "%s of %s (%s in the free pool)", ctl_human_bytes(d->used_bytes, used),
                      ctl_human_bytes(d->limit_bytes, limit), ctl_human_bytes(d->pool_bytes, pool));
    else
        ctl_table_add(table, "%s of %s", ctl_human_bytes(d->used_bytes, used), ctl_human_bytes(d->limit_bytes, limit));
    if (*d->why_not)
        ctl_table_add(table, "no: %s", d->why_not);
    else if (d->opened && d->overhead_bytes == UINT64_MAX)
        ctl_table_add(table, "%s", "yes, in use (overhead unknown)");
    else if (d->opened)
        ctl_table_add(table, "yes, in use (%s overhead)", ctl_human_bytes(d->overhead_bytes, text));
    else
        ctl_table_add(table, "%s", "yes");
}

static void add_backend(struct ctl_table *table, const ProtobufCMessage *row)
{
    const Rdt__Pb__BackendInfo *b = (const Rdt__Pb__BackendInfo *)row;
    char text[CTL_HUMAN_BYTES];

    ctl_table_add(table, "%s", b->name);
    ctl_table_add(table, "%s", b->kind);
    ctl_table_add(table, "%s", b->version);
    ctl_table_add(table, "%s", b->sided);
    add_strings(table, b->memory, b->n_memory);
    ctl_table_add(table, "%s", b->can_abort ? "yes" : "no");
    ctl_table_add(table, "%" PRIu64, b->ops_active);
    ctl_table_add(table, "%s", ctl_human_bytes(b->bytes, text));
    ctl_table_add(table, "%s%s%s%s%s", b->available ? "yes" : "no", *b->why_not ? ": " : "", b->why_not,
                  *b->last_crash ? "; " : "", b->last_crash);
    for (size_t i = 0; i < b->n_devices; i++)
        add_device(table, b->devices[i]);
}

static const struct ctl_column transfer_columns[] = {
    {"TRANSFER", true}, {"OBJECT", false}, {"DIRECTION", false}, {"PEER", false}, {"STATE", false},          {"PATH", false},
    {"BYTES", true},    {"DONE", true},    {"TOOK", true},       {"RATE", true},  {"WAITS OR ERROR", false},
};

static void add_transfer(struct ctl_table *table, const ProtobufCMessage *row)
{
    const Rdt__Pb__TransferInfo *t = (const Rdt__Pb__TransferInfo *)row;
    int64_t ns = t->elapsed_ns > 0 ? t->elapsed_ns : t->age_ns;
    char text[CTL_HUMAN_BYTES], id[64];

    ctl_table_add(table, "%" PRIu64, t->transfer);
    ctl_table_add(table, "%s", ctl_id_of(t->ref, id, sizeof id));
    ctl_table_add(table, "%s", t->direction);
    ctl_table_add(table, "%s", t->peer);
    ctl_table_add(table, "%s", t->state);
    ctl_table_add(table, "%s", t->path);
    ctl_table_add(table, "%s", ctl_human_bytes(t->bytes, text));
    if (t->bytes)
        ctl_table_add(table, "%.0f%%", (double)t->bytes_done * 100 / (double)t->bytes);
    else
        ctl_table_add(table, "%s", "");
    ctl_table_add(table, "%s", ctl_human_duration(ns, text));
    ctl_table_add(table, "%s", ctl_human_rate(t->bytes_done, ns, text));
    ctl_table_add(table, "%s", *t->error ? t->error : t->waits);
}

/* ---- all rows ---- */

struct rows {
    json_t *array; /* NULL: the table is shown */
    struct ctl_table table;
    /* Only with view->compare. */
    Rdt__Pb__ListReply **pages;
    size_t n_pages, room_for_pages;
    ProtobufCMessage **all; /* the rows of the pages */
    size_t n, room;
};

static void rows_fini(struct rows *rows)
{
    for (size_t i = 0; i < rows->n_pages; i++)
        ctl_reply_free(&rows->pages[i]->base);
    free(rows->pages);
    free(rows->all);
    json_decref(rows->array);
    ctl_table_fini(&rows->table);
}

static void add_row(const struct view *view, const ProtobufCMessage *row, struct rows *rows)
{
    if (rows->array)
        json_array_append_new(rows->array, ctl_json(row));
    else
        view->add_row(&rows->table, row);
}

/* Adds at most `left` rows of the page, or, if they are to be sorted, takes it. Returns how many it added; 0 and a full
 * *no_memory_p if there is no memory to sort. */
static uint64_t add_page(const struct view *view, Rdt__Pb__ListReply *take_page, uint64_t left, struct rows *rows,
                         bool *no_memory_p)
{
    const ProtobufCFieldDescriptor *field =
        protobuf_c_message_descriptor_get_field_by_name(&rdt__pb__list_reply__descriptor, view->field);
    const char *base = (const char *)take_page;
    ProtobufCMessage **list;
    size_t count;

    memcpy(&count, base + field->quantifier_offset, sizeof count);
    memcpy(&list, base + field->offset, sizeof(list));
    if (!view->compare) {
        if (count > left)
            count = (size_t)left;
        for (size_t i = 0; i < count; i++)
            add_row(view, list[i], rows);
        ctl_reply_free(&take_page->base);
        return count;
    }
    void *pages = array_grow(rows->pages, rows->n_pages, &rows->room_for_pages, sizeof *rows->pages);
    if (pages) {
        rows->pages = pages;
        rows->pages[rows->n_pages++] = take_page;
    } else {
        ctl_reply_free(&take_page->base);
    }
    *no_memory_p = !pages;
    for (size_t i = 0; i < count && !*no_memory_p; i++) {
        ProtobufCMessage **all = array_grow(rows->all, rows->n, &rows->room, sizeof(*rows->all));

        *no_memory_p = !all;
        if (all) {
            rows->all = all;
            rows->all[rows->n++] = list[i];
        }
    }
    return 0;
}

static enum rdt_status add_all(struct ctl *ctl, const struct view *view, Rdt__Pb__List *request, uint64_t limit,
                               struct rows *rows, struct rdt_error *err)
{
    uint64_t left = limit ? limit : UINT64_MAX;
    bool no_memory = false;

    do {
        Rdt__Pb__ListReply *page;
        enum rdt_status status;

        request->max = left < RDT_MAX_PAGE && !view->compare ? (uint32_t)left : 0;
        status = ctl_page(ctl, ctl_timeout(ctl, CTL_DEFAULT_TIMEOUT_NS), request, &page, err);
        if (status)
            return status;
        left -= add_page(view, page, left, rows, &no_memory);
    } while (request->after && left && !no_memory);
    if (no_memory)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory to sort the rows");
    if (view->compare && rows->n > 0)
        qsort(rows->all, rows->n, sizeof(*rows->all), view->compare);
    for (size_t i = 0; i < rows->n && i < left; i++)
        add_row(view, rows->all[i], rows);
    return RDT_OK;
}

static bool parse_uuid(const char *hex, uint8_t uuid_p[16])
{
    unsigned byte;

    for (unsigned i = 0; i < 16; i++, uuid_p[i - 1] = (uint8_t)byte)
        if (sscanf(hex + 2 * (size_t)i, "%2x", &byte) != 1)
            return false;
    return true;
}

/* The same of every node whose link is up; the others are named on stderr. */
static enum rdt_status add_all_nodes(struct ctl *ctl, const struct view *view, const Rdt__Pb__List *request, uint64_t limit,
                                     struct rows *rows, struct rdt_error *err)
{
    Rdt__Pb__Nodes question = RDT__PB__NODES__INIT;
    ProtobufCMessage *reply;
    const Rdt__Pb__NodesReply *nodes;
    enum rdt_status status = ctl_call(ctl, RDT_MSG_NODES, &question.base, &reply, err);

    if (status != RDT_OK)
        return status;
    nodes = (const Rdt__Pb__NodesReply *)reply;
    for (size_t i = 0; i < nodes->n_nodes; i++) {
        const Rdt__Pb__NodeInfo *node = nodes->nodes[i];
        Rdt__Pb__List at = *request;
        char word[80], why[200];
        uint8_t uuid[16];

        if (strlen(node->node) != 32 || !parse_uuid(node->node, uuid))
            status = rdt_error_set(err, RDT_PEER_LOST, "it has not been reached yet");
        else if (strcmp(node->state, "up") != 0 && strcmp(node->state, "here") != 0)
            status = rdt_error_set(err, RDT_PEER_LOST, "%s", node->error);
        else
            at.node = (ProtobufCBinaryData){sizeof uuid, uuid};
        if (at.node.len > 0)
            status = add_all(ctl, view, &at, limit, rows, err);
        if (status == RDT_OK)
            continue;
        if (strcmp(node->state, "here") == 0)
            break;
        (void)fprintf(stderr, "rdtctl: names: node %s was not asked: %s\n", ctl_plain(node->name, word, sizeof word),
                      ctl_plain(err->msg, why, sizeof why));
        status = RDT_OK;
    }
    ctl_reply_free(reply);
    return status;
}

static int show_of(struct ctl *ctl, const struct view *view, Rdt__Pb__List *request, uint64_t limit, bool cluster)
{
    struct rows rows = {.array = ctl->json ? json_array() : NULL};
    struct rdt_error err = {0};
    enum rdt_status status;
    int code = CTL_OK;

    ctl_table_init(&rows.table, view->columns, view->n_columns);
    request->kind = view->kind;
    status = cluster ? add_all_nodes(ctl, view, request, limit, &rows, &err) : add_all(ctl, view, request, limit, &rows, &err);
    if (status == RDT_OK && rows.array)
        code = ctl_print_json(json_pack("{s:O}", view->field, rows.array));
    else if (status == RDT_OK && !ctl_table_print(&rows.table, view->nothing, stdout))
        status = rdt_error_set(&err, RDT_NO_MEMORY, "there is no memory for the table");
    if (status)
        code = ctl_fail(ctl, &err);
    rows_fini(&rows);
    return code;
}

static int show(struct ctl *ctl, const struct view *view, Rdt__Pb__List *request, uint64_t limit)
{
    return show_of(ctl, view, request, limit, false);
}

/* Copies the word at `index` of "a|b|c" to word_p. */
static char *word_of(const char *words, int index, char word_p[24])
{
    while (index-- > 0)
        words = strchr(words, '|') + 1;
    (void)snprintf(word_p, 24, "%.*s", (int)strcspn(words, "|"), words);
    return word_p;
}

int ctl_objects(struct ctl *ctl, int argc, char **argv)
{
    struct view view = {.kind = RDT__PB__LIST_KIND__LIST_KIND_OBJECTS,
                        .field = "objects",
                        .columns = wide_object_columns,
                        .nothing = "no objects",
                        NULL};
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    static const char states[] = "awaited|filling|live|draining";
    static int (*const orders[])(const void *, const void *) = {by_bytes, by_holds};
    const char *prefix = "";
    char word[24];
    int state = -1, order = -1;
    bool wide = false;
    uint64_t client = 0, limit = 0;
    const struct ctl_option options[] = {
        {0, "state", CTL_CHOICE, states, "only rows in this state", &state},
        {0, "prefix", CTL_TEXT, "TEXT", "only ids that begin with TEXT", &prefix},
        {0, "client", CTL_NUMBER, "N", "only objects that client N put", &client},
        {0, "limit", CTL_NUMBER, "N", "at most N rows", &limit},
        {'s', "sort", CTL_CHOICE, "bytes|holds", "the largest first, or those that most hold (the oldest first)", &order},
        {'w', "wide", CTL_FLAG, NULL, "show the refs, too", &wide},
        {0},
    };
    int code = ctl_parse(ctl, options, argc, argv, 0, 0, NULL, NULL);

    if (code != CTL_GO)
        return code;
    if (state >= 0)
        request.state = word_of(states, state, word);
    view.n_columns = N_OBJECT_COLUMNS + wide;
    view.add_row = wide ? add_wide_object : add_object;
    view.compare = order >= 0 ? orders[order] : NULL;
    request.id_prefix = (char *)prefix;
    request.client = client;
    return show(ctl, &view, &request, limit);
}

/* Below the names: those that somebody waits for and that have no such version. arg: the prefix that is asked for. */
static void print_awaited(void *arg, const char *ref, const char *who, const char *waits)
{
    const char *prefix = *(const char **)arg;
    char id[160];

    ctl_id_of(ref, id, sizeof id);
    if (strncmp(id, prefix, strlen(prefix)) == 0)
        ctl_line("%s is awaited: %s %s", id, who, waits);
}

int ctl_names(struct ctl *ctl, int argc, char **argv)
{
    static const struct view view = {
        RDT__PB__LIST_KIND__LIST_KIND_NAMES, "names", cluster_name_columns + 1, N_NAME_COLUMNS, add_name, "no names", NULL};
    static const struct view cluster_view = {
        RDT__PB__LIST_KIND__LIST_KIND_NAMES, "names", COLUMNS(cluster_name_columns), add_cluster_name, "no names", NULL};
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    const char *prefix = "";
    struct rdt_error err = {0};
    bool cluster = false;
    uint64_t limit = 0;
    const struct ctl_option options[] = {
        {0, "cluster", CTL_FLAG, NULL, "the names of every node whose link is up", &cluster},
        {0, "prefix", CTL_TEXT, "TEXT", "only names that begin with TEXT", &prefix},
        {0, "limit", CTL_NUMBER, "N", "at most N rows (of each node)", &limit},
        {0},
    };
    int code = ctl_parse(ctl, options, argc, argv, 0, 0, NULL, NULL);

    if (code != CTL_GO)
        return code;
    request.id_prefix = (char *)prefix;
    code = show_of(ctl, cluster ? &cluster_view : &view, &request, limit, cluster);
    if (code == CTL_OK && !ctl->json && ctl_awaited(ctl, NULL, print_awaited, &prefix, &err))
        code = ctl_fail(ctl, &err);
    return code;
}

int ctl_transfers(struct ctl *ctl, int argc, char **argv)
{
    static const struct view view = {
        RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "transfers", COLUMNS(transfer_columns), add_transfer, "no transfers", NULL};
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    static const char states[] = "new|parked|link|queued|asked|reserving|connecting|ticket|moving|rewinding|offered"
                                 "|preparing|sending|aborting|done|failed|cancelled|timed_out";
    char word[24];
    int state = -1;
    uint64_t limit = 0;
    const struct ctl_option options[] = {
        {0, "state", CTL_CHOICE, states, "only rows in this state", &state},
        {0, "limit", CTL_NUMBER, "N", "at most N rows", &limit},
        {0},
    };
    int code = ctl_parse(ctl, options, argc, argv, 0, 0, NULL, NULL);

    if (code != CTL_GO)
        return code;
    if (state >= 0)
        request.state = word_of(states, state, word);
    return show(ctl, &view, &request, limit);
}

static int show_all(struct ctl *ctl, const struct view *view, int argc, char **argv)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    int code = ctl_parse(ctl, NULL, argc, argv, 0, 0, NULL, NULL);

    return code == CTL_GO ? show(ctl, view, &request, 0) : code;
}

int ctl_regions(struct ctl *ctl, int argc, char **argv)
{
    static const struct view view = {
        RDT__PB__LIST_KIND__LIST_KIND_REGIONS, "regions", COLUMNS(region_columns), add_region, "no regions", NULL};
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    bool orphaned = false;
    const struct ctl_option options[] = {
        {0, "orphaned", CTL_FLAG, NULL, "memory of ended regions, and the processes that keep it", &orphaned},
        {0},
    };
    int code = ctl_parse(ctl, options, argc, argv, 0, 0, NULL, NULL);

    if (code != CTL_GO)
        return code;
    return orphaned ? ctl_list_orphans(ctl) : show(ctl, &view, &request, 0);
}

static int end_client(struct ctl *ctl, const char *number)
{
    Rdt__Pb__EndClient request = RDT__PB__END_CLIENT__INIT;
    struct rdt_error err = {0};
    ProtobufCMessage *reply;

    if (!ctl_transfer(number, &request.client))
        return ctl_usage_error(ctl, "'%.60s' is no client: `rdtctl clients` shows their numbers", number);
    if (ctl_call(ctl, RDT_MSG_END_CLIENT, &request.base, &reply, &err))
        return ctl_fail(ctl, &err);
    ctl_reply_free(reply);
    if (ctl->json)
        return ctl_print_json(json_pack("{s:I, s:b}", "client", (json_int_t)request.client, "ended", 1));
    if (!ctl->quiet)
        printf("client %s has been ended\n", number);
    return CTL_OK;
}

int ctl_clients(struct ctl *ctl, int argc, char **argv)
{
    static const struct view view = {
        RDT__PB__LIST_KIND__LIST_KIND_CLIENTS, "clients", COLUMNS(client_columns), add_client, "no clients", NULL};
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    char **words;
    int count, code = ctl_parse(ctl, NULL, argc, argv, 0, 2, &words, &count);

    if (code != CTL_GO)
        return code;
    if (count == 0)
        return show(ctl, &view, &request, 0);
    if (count == 2 && strcmp(words[0], "end") == 0)
        return end_client(ctl, words[1]);
    return ctl_usage_error(ctl, "needs no arguments, or end CLIENT");
}

int ctl_peers(struct ctl *ctl, int argc, char **argv)
{
    static const struct view view = {
        RDT__PB__LIST_KIND__LIST_KIND_PEERS, "peers", COLUMNS(peer_columns), add_peer, "no peers", NULL};
    return show_all(ctl, &view, argc, argv);
}

int ctl_list_groups(struct ctl *ctl)
{
    static const struct view view = {
        RDT__PB__LIST_KIND__LIST_KIND_GROUPS, "groups", COLUMNS(group_columns), add_group, "no groups", NULL};
    Rdt__Pb__List request = RDT__PB__LIST__INIT;

    return show(ctl, &view, &request, 0);
}

int ctl_backends(struct ctl *ctl, int argc, char **argv)
{
    static const struct view view = {
        RDT__PB__LIST_KIND__LIST_KIND_BACKENDS, "backends", COLUMNS(backend_columns), add_backend, "no backends", NULL};
    return show_all(ctl, &view, argc, argv);
}

/* ---- followers, which FOLLOWERS lists ---- */

static const struct ctl_column follower_columns[] = {
    {"NAME", false},  {"CLIENT", true}, {"CLIENT NAME", false}, {"UID", true},  {"COMMITTED", true}, {"PREPARED", true},
    {"NEWEST", true}, {"LAG", true},    {"FOR", true},          {"KEPT", true}, {"STATE", false},    {"WHY", false},
};

static void add_version(struct ctl_table *table, uint64_t version)
{
    if (version)
        ctl_table_add(table, "%llu", (unsigned long long)version);
    else
        ctl_table_add(table, "%s", "");
}

static void add_follower(struct ctl_table *table, const Rdt__Pb__FollowerInfo *f)
{
    char text[CTL_HUMAN_BYTES], word[128];

    ctl_table_add(table, "%s", ctl_plain(f->name, word, sizeof word));
    ctl_table_add(table, "%llu", (unsigned long long)f->client);
    ctl_table_add(table, "%s", ctl_plain(f->client_name, word, sizeof word));
    ctl_table_add(table, "%u", f->uid);
    add_version(table, f->committed);
    add_version(table, f->prepared);
    add_version(table, f->newest);
    ctl_table_add(table, "%llu", (unsigned long long)f->lag);
    ctl_table_add(table, "%s", f->lag > 0 ? ctl_human_duration(f->lag_ns, text) : "");
    ctl_table_add(table, "%s", ctl_human_bytes(f->bytes, text));
    ctl_table_add(table, "%s", f->state);
    ctl_table_add(table, "%s", ctl_plain(f->failure, word, sizeof word));
}

static int print_followers(struct ctl *ctl, const ProtobufCMessage *reply)
{
    const Rdt__Pb__FollowersReply *followers = (const Rdt__Pb__FollowersReply *)reply;
    struct ctl_table table;
    bool printed;

    ctl_table_init(&table, COLUMNS(follower_columns));
    for (size_t i = 0; i < followers->n_followers; i++)
        add_follower(&table, followers->followers[i]);
    printed = ctl_table_print(&table, "nobody follows a name", stdout);
    ctl_table_fini(&table);
    if (followers->more > 0)
        ctl_line("and %llu more", (unsigned long long)followers->more);
    return printed ? CTL_OK : CTL_FAILED;
}

int ctl_followers(struct ctl *ctl, int argc, char **argv)
{
    Rdt__Pb__Followers request = RDT__PB__FOLLOWERS__INIT;
    int code = ctl_parse(ctl, NULL, argc, argv, 0, 0, NULL, NULL);

    return code == CTL_GO ? ctl_show(ctl, RDT_MSG_FOLLOWERS, &request.base, print_followers) : code;
}

/* ---- the cache ---- */

static const struct ctl_column cache_columns[] = {
    {"OWNER", false},    {"OBJECTS", true}, {"BYTES", true},   {"IDLE", true},  {"HITS", true}, {"MISSES", true},
    {"EVICTIONS", true}, {"EVICTED", true}, {"SPILLED", true}, {"FILES", true}, {"FAR", true},
};

static void add_cache(struct ctl_table *table, const Rdt__Pb__CacheInfo *info)
{
    char text[CTL_HUMAN_BYTES], tenant[128];

    ctl_table_add(table, "%s%s%" PRIu32, ctl_plain(info->tenant, tenant, sizeof tenant), *info->tenant ? ":" : "", info->uid);
    ctl_table_add(table, "%" PRIu64, info->objects);
    ctl_table_add(table, "%s", ctl_human_bytes(info->bytes, text));
    ctl_table_add(table, "%s", ctl_human_bytes(info->idle_bytes, text));
    ctl_table_add(table, "%" PRIu64, info->hits);
    ctl_table_add(table, "%" PRIu64, info->misses);
    ctl_table_add(table, "%" PRIu64, info->evictions);
    ctl_table_add(table, "%s", ctl_human_bytes(info->evicted_bytes, text));
    ctl_table_add(table, "%" PRIu64, info->spilled_objects);
    ctl_table_add(table, "%s", ctl_human_bytes(info->file_bytes, text));
    ctl_table_add(table, "%" PRIu64, info->far_hits);
}

static void print_files(const Rdt__Pb__CacheReply *cache)
{
    char limit[CTL_HUMAN_BYTES], of_owner[CTL_HUMAN_BYTES];
    uint64_t late = 0, failed = 0, small = 0;

    if (cache->file_limit_bytes == 0)
        return;
    for (size_t i = 0; i < cache->n_owners; i++) {
        late += cache->owners[i]->unspilled_late;
        failed += cache->owners[i]->unspilled_failed;
        small += cache->owners[i]->unspilled_small;
    }
    ctl_line("files: at most %s, and %s for each user; evicted without one: %" PRIu64 " before the disk had them, %" PRIu64
             " without room there, %" PRIu64 " small ones",
             ctl_human_bytes(cache->file_limit_bytes, limit), ctl_human_bytes(cache->owner_file_limit_bytes, of_owner), late,
             failed, small);
}

static int print_cache(struct ctl *ctl, const ProtobufCMessage *reply)
{
    const Rdt__Pb__CacheReply *cache = (const Rdt__Pb__CacheReply *)reply;
    char limit[CTL_HUMAN_BYTES], of_owner[CTL_HUMAN_BYTES], text[256];
    struct ctl_table table;
    bool printed;

    ctl_table_init(&table, COLUMNS(cache_columns));
    for (size_t i = 0; i < cache->n_owners; i++)
        add_cache(&table, cache->owners[i]);
    printed = ctl_table_print(&table, "nothing is in the cache", stdout);
    ctl_table_fini(&table);
    if (cache->more > 0)
        ctl_line("and %" PRIu64 " more", cache->more);
    ctl_line("at most %s, and %s for each user", ctl_human_bytes(cache->limit_bytes, limit),
             ctl_human_bytes(cache->owner_limit_bytes, of_owner));
    print_files(cache);
    for (size_t i = 0; i < cache->n_full; i++)
        ctl_line("objects are evicted although memory may be left: %s", ctl_plain(cache->full[i], text, sizeof text));
    return printed ? CTL_OK : CTL_FAILED;
}

static int flush_cache(struct ctl *ctl, bool all)
{
    char text[CTL_HUMAN_BYTES];
    struct rdt_error err = {0};
    uint64_t n, bytes;

    if (ctl_connect(ctl, &err) || rdt_flush_cache(ctl->rdt, all, &n, &bytes, &err))
        return ctl_fail(ctl, &err);
    if (ctl->json)
        return ctl_print_json(json_pack("{s:I, s:I}", "objects", (json_int_t)n, "bytes", (json_int_t)bytes));
    if (!ctl->quiet)
        printf("%" PRIu64 " objects with %s were evicted\n", n, ctl_human_bytes(bytes, text));
    return CTL_OK;
}

int ctl_cache(struct ctl *ctl, int argc, char **argv)
{
    Rdt__Pb__Cache request = RDT__PB__CACHE__INIT;
    bool flushes = false, all = false;
    const struct ctl_option options[] = {
        {0, "flush", CTL_FLAG, NULL, "evict your objects that nobody holds", &flushes},
        {0, "all", CTL_FLAG, NULL, "with --flush: those of all users, for root and the daemon's own user", &all},
        {0},
    };
    int code = ctl_parse(ctl, options, argc, argv, 0, 0, NULL, NULL);

    if (code != CTL_GO)
        return code;
    if (all && !flushes)
        return ctl_usage_error(ctl, "--all needs --flush: give both");
    return flushes ? flush_cache(ctl, all) : ctl_show(ctl, RDT_MSG_CACHE, &request.base, print_cache);
}
