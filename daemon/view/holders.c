/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/view/view.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/objects/detached.h"
#include "daemon/objects/transit.h"
#include "wire_ref.h"

#define SAID_MAX 3u /* rows whose sentences holders_say writes */

struct row {
    Rdt__Pb__HoldInfo info;
    const void *who;                     /* the holder; the row counts its holds of the kind info.kind */
    char text[3 * RDT_MAX_ID_BYTES + 1]; /* info.name or info.peer */
    const struct replica_entry *replica; /* of a replica that is being filled */
    char sentence[3 * RDT_MAX_ID_BYTES + 224];
};

struct holders {
    const struct owner *owner;  /* of the object */
    const struct owner *viewer; /* NULL: the caller may see everything */
    size_t n;
    uint64_t counted;                 /* sum of the holds in the rows */
    struct row rows[HOLDERS_MAX + 1]; /* one more, for the holds that the other rows leave out */
    Rdt__Pb__HoldInfo *list[HOLDERS_MAX + 1];
};

/* ---- rows ---- */

static bool may_see(const struct holders *holders, const struct owner *owner)
{
    return !holders->viewer || owner_equal(owner, holders->viewer);
}

/* Counts one hold of this kind and holder, and returns its row; NULL: there is no room for a new row. */
static struct row *count_one(struct holders *holders, const char *kind, const void *who)
{
    struct row *row = NULL;

    for (size_t i = holders->n; i-- > 0 && !row;)
        if (holders->rows[i].who == who && strcmp(holders->rows[i].info.kind, kind) == 0)
            row = &holders->rows[i];
    if (!row && holders->n == HOLDERS_MAX)
        return NULL;
    if (!row) {
        row = &holders->rows[holders->n++];
        rdt__pb__hold_info__init(&row->info);
        row->info.kind = (char *)kind;
        row->info.sentence = row->sentence;
        row->who = who;
    }
    row->info.count++;
    holders->counted++;
    return row;
}

static void set_client(struct row *row, const struct client *client, uint64_t hold)
{
    row->info.client = client->id;
    row->info.client_name = (char *)client->name;
    row->info.pid = client->pid;
    row->info.uid = client->account->owner.uid;
    row->info.tenant = (char *)client->account->owner.tenant;
    row->info.hold = row->info.count == 1 ? hold : 0;
}

static void add_producer(struct holders *holders, const struct object *object)
{
    struct row *row = object_has_producer_hold(object) && may_see(holders, holders->owner)
                          ? count_one(holders, object->producer ? "producer" : "detached", object)
                          : NULL;

    if (row && object->producer)
        set_client(row, object->producer, 0);
    if (row)
        row->info.client = object_producer_id(object);
}

static void add_clients(struct holders *holders, const struct object *object)
{
    size_t examined = 0;

    list_each (const struct hold, hold, object_holders(object, HOLDER_READER), by_object) {
        struct row *row = may_see(holders, &hold->client->account->owner) ? count_one(holders, "reader", hold->client) : NULL;
        if (row)
            set_client(row, hold->client, hold->id);
        if (++examined == HOLDERS_EXAMINED)
            break;
    }
    examined = 0;
    list_each (const struct remote_hold, hold, object_holders(object, HOLDER_REMOTE), by_object) {
        struct row *row = may_see(holders, &hold->client->account->owner) ? count_one(holders, "hold", hold->client) : NULL;
        if (row)
            set_client(row, hold->client, hold->request_id);
        if (++examined == HOLDERS_EXAMINED)
            break;
    }
}

static void set_node(struct row *row, const uint8_t *uuid, const char *name)
{
    node_hex(uuid, row->text);
    row->info.peer = row->text;
    row->info.peer_name = (char *)name;
}

static void add_nodes(struct holders *holders, const struct object *object)
{
    size_t examined = 0;

    list_each (const struct node_hold, hold, object_holders(object, HOLDER_NODE), by_object) {
        struct row *row = may_see(holders, &hold->account->owner) ? count_one(holders, "node", node_hold_node(hold)) : NULL;
        if (row)
            set_node(row, node_hold_uuid(hold), node_hold_name(hold));
        if (++examined == HOLDERS_EXAMINED)
            break;
    }
}

static void add_names(struct holders *holders, const struct rpc *rpc, const struct object *object)
{
    struct list *cursor = NULL;
    const struct name *name;

    for (size_t i = 0; i < HOLDERS_MAX && (name = names_of_object(rpc->names, object, &cursor)); i++) {
        struct row *row = holders->viewer && !name_visible_to(name, holders->viewer) ? NULL : count_one(holders, "name", name);
        if (!row)
            continue;
        wire_ref_id_text(name_id(name), name->id_bytes, row->text);
        row->info.name = row->text;
        row->info.version = name->version;
    }
}

/* Holds that belong to no client: refs in transit and transfers to other nodes; and the pins of transfers. */
static void add_daemons(struct holders *holders, const struct object *object)
{
    struct row *row;

    if (!holders->viewer && object->survives.in_transit)
        (void)count_one(holders, "in transit", object);
    if (!holders->viewer && object_peer_holds(object) > 0 && (row = count_one(holders, "transfer", object))) {
        row->info.count = object_peer_holds(object);
        holders->counted += row->info.count - 1;
    }
    if (object->pins > 0 && (row = count_one(holders, "pins", object))) {
        row->info.count = object->pins;
        holders->counted--; /* a pin is not a hold */
    }
}

/* Nodes with a replica, which is not a hold: the object may end before the replica. */
static void add_replicas(struct holders *holders, const struct rpc *rpc, const struct object *object)
{
    struct list *cursor = NULL;
    const struct replica_entry *entry;

    while (!holders->viewer && holders->n < HOLDERS_MAX &&
           (entry = replica_directory_next(&rpc->transfers->directory, object->generation, &cursor))) {
        struct row *row = count_one(holders, entry->place.whole ? "replica" : "replica being filled", entry);
        row->info.count = 0;
        holders->counted--;
        row->replica = entry;
        set_node(row, replica_entry_peer(entry)->uuid, replica_entry_peer(entry)->name);
    }
}

static void add_others(struct holders *holders, const struct object *object)
{
    struct row *row = &holders->rows[holders->n];

    if (object->holds <= holders->counted)
        return;
    rdt__pb__hold_info__init(&row->info);
    row->info.kind = (char *)"others";
    row->info.sentence = row->sentence;
    row->info.count = (uint32_t)(object->holds - holders->counted);
    holders->n++;
}

/* ---- sentences ---- */

static void say(struct row *row, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct row *row, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(row->sentence, sizeof row->sentence, format, arguments);
    va_end(arguments);
}

/* Writes a sentence that begins with the client, as in: client 7 "eval" (pid 222, uid 1001). The uid is left out if it is
 * the object's. `does` is the rest. */
static void say_client(const struct holders *holders, struct row *row, const char *does)
{
    char uid[24] = "", times[32] = "";

    if (row->info.uid != holders->owner->uid)
        (void)snprintf(uid, sizeof uid, ", uid %" PRIu32, row->info.uid);
    if (row->info.count > 1)
        (void)snprintf(times, sizeof times, ", by %" PRIu32 " holds", row->info.count);
    say(row, "client %" PRIu64 " \"%s\" (pid %" PRId32 "%s) %s%s", row->info.client, row->info.client_name, row->info.pid, uid,
        does, times);
}

static void say_producer(const struct holders *holders, struct row *row, const struct object *object)
{
    char does[80] = "put it and has not freed it";

    if (object->survives.detached)
        (void)snprintf(does, sizeof does, "put it and has not freed it, and it is detached for %.1f s more",
                       (double)detached_left_ns(object) / 1e9);
    say_client(holders, row, does);
}

static void say_row(const struct holders *holders, struct row *row, const struct object *object)
{
    const char *kind = row->info.kind, *s = row->info.count == 1 ? "" : "s";
    int64_t left_ns;

    if (strcmp(kind, "producer") == 0)
        say_producer(holders, row, object);
    else if (strcmp(kind, "detached") == 0)
        say(row, "it is detached for %.1f s more; client %" PRIu64 ", which put it, is gone",
            (double)detached_left_ns(object) / 1e9, row->info.client);
    else if (strcmp(kind, "reader") == 0)
        say_client(holders, row, "reads it");
    else if (strcmp(kind, "hold") == 0)
        say_client(holders, row, "holds it to fetch it later");
    else if (strcmp(kind, "node") == 0)
        say(row, "node %s holds it for its clients, by %" PRIu32 " hold%s", row->info.peer_name, row->info.count, s);
    else if (strcmp(kind, "name") == 0)
        say(row, "it is published as \"%s\", version %" PRIu64, row->info.name, row->info.version);
    else if (strcmp(kind, "in transit") == 0) {
        unsigned leases, refs = transit_count(object, &leases, &left_ns);
        refs -= leases;
        if (refs == 0)
            say(row, "%u look-up%s leased it, for %.1f s at most", leases, leases == 1 ? " has" : "s have",
                (double)left_ns / 1e9);
        else if (leases == 0)
            say(row, "%u ref%s on the way to another process, for %.1f s at most", refs, refs == 1 ? " is" : "s are",
                (double)left_ns / 1e9);
        else
            say(row, "%u ref%s on the way to another process, and %u look-up%s leased it, for %.1f s at most", refs,
                refs == 1 ? " is" : "s are", leases, leases == 1 ? " has" : "s have", (double)left_ns / 1e9);
    } else if (strcmp(kind, "transfer") == 0)
        say(row, "%" PRIu32 " transfer%s to other nodes", row->info.count, s);
    else if (strcmp(kind, "pins") == 0)
        say(row, "%" PRIu32 " transfer%s still touch%s its memory", row->info.count, s, row->info.count == 1 ? "es" : "");
    else if (strcmp(kind, "others") == 0 && holders->viewer)
        say(row, "%" PRIu32 " hold%s that uid %" PRIu32 " may see", row->info.count, s, holders->owner->uid);
    else if (strcmp(kind, "others") == 0)
        say(row, "%" PRIu32 " more hold%s", row->info.count, s);
    else if (strcmp(kind, "replica") == 0)
        say(row, "node %s has a replica of it, which does not hold it", row->info.peer_name);
    else
        say(row, "node %s is receiving a replica of it from %s%s%s, which does not hold it", row->info.peer_name,
            replica_entry_source(row->replica) ? "node " : "this node",
            replica_entry_source(row->replica) ? replica_entry_source(row->replica)->name : "",
            replica_entry_pace(row->replica));
}

/* ---- all rows ---- */

struct holders *holders_create(const struct rpc *rpc, const struct object *object, const struct owner *viewer, bool admin)
{
    struct holders *holders = calloc(1, sizeof *holders);

    if (!holders)
        return NULL;
    holders->owner = &object->account->owner;
    holders->viewer = admin || owner_equal(viewer, holders->owner) ? NULL : viewer;
    add_producer(holders, object);
    add_names(holders, rpc, object);
    add_clients(holders, object);
    add_nodes(holders, object);
    add_daemons(holders, object);
    add_replicas(holders, rpc, object);
    add_others(holders, object);
    for (size_t i = 0; i < holders->n; i++) {
        say_row(holders, &holders->rows[i], object);
        holders->list[i] = &holders->rows[i].info;
    }
    return holders;
}

void holders_destroy(struct holders *holders)
{
    free(holders);
}

void holders_fill(struct holders *holders, Rdt__Pb__ObjectInfo *info)
{
    info->n_holders = holders->n;
    info->holders = holders->list;
}

void holders_say(const struct holders *holders, char *text, size_t room)
{
    size_t used = 0, said = 0, left = 0;

    text[0] = '\0';
    for (size_t i = 0; i < holders->n; i++) {
        const struct row *row = &holders->rows[i];
        size_t bytes = strlen(row->sentence) + 2;
        bool others = strcmp(row->info.kind, "others") == 0;

        if (row->info.count == 0) /* a replica is not a hold */
            continue;
        if ((said < SAID_MAX || (others && left == 0)) && used + bytes < room) {
            (void)snprintf(text + used, room - used, "%s%s", used ? "; " : "", row->sentence);
            used += strlen(text + used);
            said++;
        } else {
            left += row->info.count;
        }
    }
    if (left > 0 && used < room)
        (void)snprintf(text + used, room - used, "%s%zu more hold%s", used ? "; and " : "", left, left == 1 ? "" : "s");
}
