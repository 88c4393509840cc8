/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_stat and the calls of rdt_info.h. Each row is a struct that points into the decoded answer, or its JSON. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "options.h"
#include "proto/verb.h"
#include "rdt.pb-c.h"
#include "rdt_info.h"
#include "session/connection.h"

#define TRANSPORTS_MAX 64u /* of one node, usable or not */

/* ---- any message as JSON ---- */

/* Returns the length of the UTF-8 character at text, which has `left` bytes; 0: it is not UTF-8. */
static size_t utf8_length(const unsigned char *text, size_t left)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = text[0] < 0x80 ? 1 : text[0] >> 5 == 6 ? 2 : text[0] >> 4 == 14 ? 3 : text[0] >> 3 == 30 ? 4 : 0;
    uint32_t point;

    if (length < 2)
        return length;
    if (length > left)
        return 0;
    point = text[0] & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (text[i] >> 6 != 2)
            return 0;
        point = point << 6 | (text[i] & 0x3Fu);
    }
    return point >= least[length] && point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF) ? length : 0;
}

void message_json_text(FILE *out, const char *text)
{
    size_t left = text ? strlen(text) : 0, length;

    fputc('"', out);
    while (left > 0) {
        const unsigned char *at = (const unsigned char *)text;

        for (length = 0; length < left && at[length] >= ' ' && at[length] < 0x80 && at[length] != '"' && at[length] != '\\';)
            length++; /* most text needs no escapes */
        (void)fwrite(text, 1, length, out);
        if (length == 0 && (*at == '"' || *at == '\\' || *at < ' ')) {
            fprintf(out, *at < ' ' ? "\\u%04x" : "\\%c", *at);
            length = 1;
        } else if (length == 0) {
            length = utf8_length(at, left);
            (void)fwrite(length > 0 ? text : "\xEF\xBF\xBD", 1, length > 0 ? length : 3, out);
            length = length > 0 ? length : 1;
        }
        text += length;
        left -= length;
    }
    fputc('"', out);
}

/* Returns the length of the prefix that the names of all values share, such as "LIST_KIND_". */
static size_t enum_prefix(const ProtobufCEnumDescriptor *descriptor)
{
    const char *first = descriptor->values[0].name;
    size_t n = strlen(first);

    for (unsigned i = 1; i < descriptor->n_values; i++) {
        size_t same = 0;
        while (same < n && descriptor->values[i].name[same] == first[same])
            same++;
        n = same;
    }
    while (n > 0 && first[n - 1] != '_')
        n--;
    return n;
}

/* Writes "clients" for LIST_KIND_CLIENTS. */
static void write_enum(FILE *out, const ProtobufCEnumDescriptor *descriptor, int value)
{
    const ProtobufCEnumValue *known = protobuf_c_enum_descriptor_get_value(descriptor, value);

    if (!known) {
        fprintf(out, "%d", value);
        return;
    }
    fputc('"', out);
    for (const char *c = known->name + enum_prefix(descriptor); *c; c++)
        fputc(*c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c, out);
    fputc('"', out);
}

static void write_hex(FILE *out, const ProtobufCBinaryData *data)
{
    fputc('"', out);
    for (size_t i = 0; i < data->len; i++)
        fprintf(out, "%02x", data->data[i]);
    fputc('"', out);
}

/* Writes one value, and returns its size in the message. */
static size_t write_value(FILE *out, const ProtobufCFieldDescriptor *field, const void *at)
{
    const ProtobufCMessage *inner;

    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        message_json_text(out, *(const char *const *)at);
        return sizeof(char *);
    case PROTOBUF_C_TYPE_MESSAGE:
        inner = *(const ProtobufCMessage *const *)at;
        if (inner)
            message_json(out, inner);
        else
            fputs("null", out);
        return sizeof inner;
    case PROTOBUF_C_TYPE_BYTES:
        write_hex(out, at);
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_BOOL:
        fputs(*(const protobuf_c_boolean *)at ? "true" : "false", out);
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_ENUM:
        write_enum(out, field->descriptor, *(const int *)at);
        return sizeof(int);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
        fprintf(out, *(const uint64_t *)at > INT64_MAX ? "\"%" PRIu64 "\"" : "%" PRIu64, *(const uint64_t *)at);
        return sizeof(uint64_t);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        fprintf(out, "%" PRId64, *(const int64_t *)at);
        return sizeof(int64_t);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        fprintf(out, "%" PRIu32, *(const uint32_t *)at);
        return sizeof(uint32_t);
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        fprintf(out, "%" PRId32, *(const int32_t *)at);
        return sizeof(int32_t);
    case PROTOBUF_C_TYPE_FLOAT: /* no message has one */
    case PROTOBUF_C_TYPE_DOUBLE:
        break;
    }
    abort();
}

/* Returns the number of the repeated field's values, and the first one in *values_p. */
static size_t values_of(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field, const char **values_p)
{
    size_t count;

    memcpy(&count, (const char *)message + field->quantifier_offset, sizeof count);
    memcpy(values_p, (const char *)message + field->offset, sizeof *values_p);
    return count;
}

void message_json(FILE *out, const ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        const char *at = (const char *)message + field->offset;

        fputs(i ? ",\"" : "{\"", out);
        fputs(field->name, out);
        fputs("\":", out);
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            fputc('[', out);
            for (size_t n = values_of(message, field, &at); n > 0; n--) {
                at += write_value(out, field, at);
                if (n > 1)
                    fputc(',', out);
            }
            fputc(']', out);
        } else {
            (void)write_value(out, field, at);
        }
    }
    fputs(message->descriptor->n_fields ? "}" : "{}", out);
}

static enum rdt_visibility visibility_of(const char *text)
{
    if (strcmp(text, "all") == 0)
        return RDT_VISIBLE_TO_ALL;
    return strcmp(text, "tenant") == 0 ? RDT_VISIBLE_TO_TENANT : RDT_VISIBLE_TO_OWNER;
}

static enum rdt_status read_ref(const char *text, const char *where, struct rdt_ref *ref_p, struct rdt_error *err)
{
    struct rdt_error why;
    enum rdt_status status = rdt_ref_from_text(text, ref_p, &why);

    return status == RDT_OK ? RDT_OK
                            : rdt_error_set(err, RDT_PROTOCOL, "rdtd's answer to %s cannot be read: %s", where, why.msg);
}

/* ---- one object ---- */

static enum rdt_status fill_stat(const Rdt__Pb__ObjectInfo *info, const char *where, struct rdt_stat *stat_p,
                                 struct rdt_error *err)
{
    enum rdt_status status;

    memset(stat_p, 0, sizeof *stat_p);
    status = read_ref(info->ref, where, &stat_p->ref, err);
    (void)snprintf(stat_p->state, sizeof stat_p->state, "%s", info->state);
    stat_p->bytes = info->bytes;
    stat_p->tensors = info->tensors;
    stat_p->metadata_bytes = info->metadata_bytes;
    stat_p->holds = info->holds;
    stat_p->pins = info->pins;
    stat_p->waiters = info->waiters;
    stat_p->age_ns = info->age_ns;
    stat_p->snapshot = info->snapshot;
    stat_p->detached = info->detached;
    stat_p->ttl_left_ns = info->ttl_left_ns;
    return status;
}

/* The caller frees *answer_p. */
static enum rdt_status ask_stat(rdt *conn, const struct rdt_ref *ref, ProtobufCMessage **answer_p, struct rdt_error *err)
{
    Rdt__Pb__Stat request = RDT__PB__STAT__INIT;
    Rdt__Pb__Ref message;
    enum rdt_status status = call_wire_ref(conn, ref, &message, err);

    request.ref = &message;
    return status == RDT_OK ? call(conn, RDT_MSG_STAT, &request.base, CALL_TIMEOUT_NS, answer_p, err) : status;
}

/* The caller frees *info_p by rdt__pb__object_info__free_unpacked. */
static enum rdt_status stat_object(rdt *conn, const struct rdt_ref *ref, struct rdt_stat *stat_p, Rdt__Pb__ObjectInfo **info_p,
                                   struct rdt_error *err)
{
    ProtobufCMessage *answer;
    enum rdt_status status = ask_stat(conn, ref, &answer, err);

    if (status != RDT_OK)
        return status;
    *info_p = (Rdt__Pb__ObjectInfo *)answer;
    status = fill_stat(*info_p, "STAT", stat_p, err);
    if (status != RDT_OK)
        rdt__pb__object_info__free_unpacked(*info_p, NULL);
    return status;
}

enum rdt_status rdt_stat(rdt *conn, const struct rdt_ref *ref, struct rdt_stat *stat_p, struct rdt_error *err)
{
    Rdt__Pb__ObjectInfo *info = NULL;
    struct rdt_stat stat;
    enum rdt_status status =
        stat_p ? stat_object(conn, ref, &stat, &info, err) : rdt_error_set(err, RDT_INVALID, "stat_p is NULL");

    if (status != RDT_OK)
        return status;
    rdt__pb__object_info__free_unpacked(info, NULL);
    *stat_p = stat;
    return RDT_OK;
}

enum rdt_status rdt_holders(rdt *conn, const struct rdt_ref *ref, struct rdt_stat *stat_p,
                            bool (*each)(void *arg, const struct rdt_holder *holder), void *arg, struct rdt_error *err)
{
    Rdt__Pb__ObjectInfo *info = NULL;
    struct rdt_stat stat;
    enum rdt_status status = each ? stat_object(conn, ref, &stat, &info, err) : rdt_error_set(err, RDT_INVALID, "each is NULL");

    if (status != RDT_OK)
        return status;
    if (stat_p)
        *stat_p = stat;
    for (size_t i = 0; i < info->n_holders; i++) {
        const Rdt__Pb__HoldInfo *from = info->holders[i];
        struct rdt_holder holder = {
            .kind = from->kind,
            .count = from->count,
            .client = from->client,
            .client_name = from->client_name,
            .pid = from->pid,
            .uid = from->uid,
            .node = from->peer_name,
            .node_uuid = from->peer,
            .name = from->name,
            .version = from->version,
            .sentence = from->sentence,
        };
        if (!each(arg, &holder))
            break;
    }
    rdt__pb__object_info__free_unpacked(info, NULL);
    return RDT_OK;
}

/* ---- lists ---- */

struct lister { /* one list while it runs */
    rdt *conn;
    Rdt__Pb__List request; /* for the next page */
    uint64_t left;         /* rows that the caller still wants */
    bool stop;             /* the caller wants no more, or there are no more */
    void *arg;
    union {
        bool (*object)(void *arg, const struct rdt_object_row *row);
        bool (*name)(void *arg, const struct rdt_name_row *row);
        bool (*node)(void *arg, const struct rdt_node_row *row);
    } each;
};

static enum rdt_status lister_init(struct lister *lister, rdt *conn, Rdt__Pb__ListKind kind,
                                   const struct rdt_list_options *options, bool has_each, void *arg, struct rdt_error *err)
{
    struct rdt_list_options own;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && !has_each)
        status = rdt_error_set(err, RDT_INVALID, "each is NULL");
    if (status == RDT_OK)
        status = options_copy(&own, sizeof own, options, err);
    if (status == RDT_OK && kind != RDT__PB__LIST_KIND__LIST_KIND_OBJECTS && (own.state || own.client))
        status = rdt_error_set(err, RDT_INVALID, "state and client are filters for objects only");
    if (status != RDT_OK)
        return status;
    *lister = (struct lister){.conn = conn, .left = own.limit ? own.limit : UINT64_MAX, .arg = arg};
    rdt__pb__list__init(&lister->request);
    lister->request.kind = kind;
    if (own.prefix)
        lister->request.id_prefix = (char *)(uintptr_t)own.prefix;
    if (own.state)
        lister->request.state = (char *)(uintptr_t)own.state;
    lister->request.client = own.client;
    return RDT_OK;
}

/* Fetches the next page, which the caller frees by rdt__pb__list_reply__free_unpacked. NULL with RDT_OK: the list is over. */
static enum rdt_status next_page(struct lister *lister, Rdt__Pb__ListReply **page_p, struct rdt_error *err)
{
    enum rdt_status status;

    *page_p = NULL;
    if (lister->stop || lister->left == 0)
        return RDT_OK;
    lister->request.max = lister->left < UINT32_MAX ? (uint32_t)lister->left : 0;
    status = call_list(lister->conn, &lister->request, CALL_TIMEOUT_NS, page_p, err);
    lister->stop = lister->request.after == 0;
    return status;
}

/* Counts one row. goes_on: what the caller's function returned for it. Returns false if the list is over. */
static bool count_row(struct lister *lister, bool goes_on)
{
    lister->left--;
    lister->stop = lister->stop || !goes_on;
    return goes_on && lister->left > 0;
}

/* Gives every page to `give`. status: of lister_init. */
static enum rdt_status give_pages(struct lister *lister, enum rdt_status status,
                                  enum rdt_status (*give)(struct lister *, const Rdt__Pb__ListReply *, struct rdt_error *),
                                  struct rdt_error *err)
{
    Rdt__Pb__ListReply *page;

    while (status == RDT_OK && (status = next_page(lister, &page, err)) == RDT_OK && page) {
        status = give(lister, page, err);
        rdt__pb__list_reply__free_unpacked(page, NULL);
    }
    return status;
}

static enum rdt_status give_objects(struct lister *lister, const Rdt__Pb__ListReply *page, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (size_t i = 0; i < page->n_objects && status == RDT_OK; i++) {
        const Rdt__Pb__ObjectInfo *from = page->objects[i];
        struct rdt_object_row row = {.id = from->id,
                                     .transport = from->transport,
                                     .visibility = visibility_of(from->visibility),
                                     .producer = from->producer};
        status = fill_stat(from, "LIST", &row.stat, err);
        if (status == RDT_OK && !count_row(lister, lister->each.object(lister->arg, &row)))
            break;
    }
    return status;
}

enum rdt_status rdt_each_object(rdt *conn, const struct rdt_list_options *options,
                                bool (*each)(void *arg, const struct rdt_object_row *row), void *arg, struct rdt_error *err)
{
    struct lister lister;
    enum rdt_status status = lister_init(&lister, conn, RDT__PB__LIST_KIND__LIST_KIND_OBJECTS, options, each != NULL, arg, err);

    if (status == RDT_OK)
        lister.each.object = each;
    return give_pages(&lister, status, give_objects, err);
}

static enum rdt_status give_names(struct lister *lister, const Rdt__Pb__ListReply *page, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (size_t i = 0; i < page->n_names && status == RDT_OK; i++) {
        const Rdt__Pb__NameInfo *from = page->names[i];
        struct rdt_name_row row = {
            .name = from->name,
            .version = from->version,
            .bytes = from->bytes,
            .waiters = from->waiters,
            .uid = from->uid,
            .tenant = from->tenant,
            .visibility = visibility_of(from->visibility),
            .age_ns = from->age_ns,
            .lease_client = from->lease_client,
            .ttl_left_ns = from->ttl_left_ns,
        };
        if (from->ref[0]) /* it is empty if the newest version was freed by force */
            status = read_ref(from->ref, "LIST", &row.object, err);
        if (status == RDT_OK && !count_row(lister, lister->each.name(lister->arg, &row)))
            break;
    }
    return status;
}

enum rdt_status rdt_each_name(rdt *conn, const struct rdt_list_options *options,
                              bool (*each)(void *arg, const struct rdt_name_row *row), void *arg, struct rdt_error *err)
{
    struct lister lister;
    enum rdt_status status = lister_init(&lister, conn, RDT__PB__LIST_KIND__LIST_KIND_NAMES, options, each != NULL, arg, err);

    if (status == RDT_OK)
        lister.each.name = each;
    return give_pages(&lister, status, give_names, err);
}

/* The daemon sends a uuid of zeros for a node that it has never reached. */
static const char *known_uuid(const char *hex)
{
    return strspn(hex, "0") == strlen(hex) ? "" : hex;
}

/* Writes the usable transports, then the others, to transports [TRANSPORTS_MAX], and returns their number. An unusable one is
 * "NAME: reason" in the answer, and is cut in two there. */
static size_t fill_transports(const Rdt__Pb__PeerInfo *from, struct rdt_node_transport *transports)
{
    size_t n = 0;

    for (size_t i = 0; i < from->n_transports && n < TRANSPORTS_MAX; i++)
        transports[n++] = (struct rdt_node_transport){
            .name = from->transports[i], .usable = true, .path = i < from->n_routes ? from->routes[i] : "", .why = ""};
    for (size_t i = 0; i < from->n_unusable && n < TRANSPORTS_MAX; i++) {
        char *colon = strstr(from->unusable[i], ": ");

        if (colon)
            *colon = '\0';
        transports[n++] =
            (struct rdt_node_transport){.name = from->unusable[i], .usable = false, .path = "", .why = colon ? colon + 2 : ""};
    }
    return n;
}

static enum rdt_status give_nodes(struct lister *lister, const Rdt__Pb__ListReply *page, struct rdt_error *err)
{
    struct rdt_node_transport transports[TRANSPORTS_MAX];

    for (size_t i = 0; i < page->n_peers; i++) {
        const Rdt__Pb__PeerInfo *from = page->peers[i];
        struct rdt_node_row row = {
            .uuid = known_uuid(from->uuid),
            .boot_id = known_uuid(from->boot_id),
            .name = from->name,
            .address = from->address,
            .state = from->state,
            .version = from->version,
            .rtt_ns = from->rtt_ns,
            .since_ns = from->since_ns,
            .retry_in_ns = from->retry_in_ns,
            .transfers_in = from->transfers_in,
            .transfers_out = from->transfers_out,
            .bytes_in = from->bytes_in,
            .bytes_out = from->bytes_out,
            .fell_back = from->fell_back,
            .last_error = from->last_error,
            .transports = transports,
            .n_transports = fill_transports(from, transports),
            .identity = from->identity,
        };
        if (!count_row(lister, lister->each.node(lister->arg, &row)))
            break;
    }
    return RDT_OK;
}

enum rdt_status rdt_each_node(rdt *conn, bool (*each)(void *arg, const struct rdt_node_row *row), void *arg,
                              struct rdt_error *err)
{
    struct lister lister;
    enum rdt_status status = lister_init(&lister, conn, RDT__PB__LIST_KIND__LIST_KIND_PEERS, NULL, each != NULL, arg, err);

    if (status == RDT_OK)
        lister.each.node = each;
    return give_pages(&lister, status, give_nodes, err);
}

/* ---- the daemon ---- */

static void fill_status(const Rdt__Pb__StatusReply *from, struct rdt_daemon_status *status)
{
    (void)snprintf(status->version, sizeof status->version, "%s", from->version);
    (void)snprintf(status->state, sizeof status->state, "%s", from->state);
    (void)snprintf(status->address, sizeof status->address, "%s", from->address);
    (void)snprintf(status->socket, sizeof status->socket, "%s", from->socket);
    (void)snprintf(status->node, sizeof status->node, "%s", from->node);
    (void)snprintf(status->boot_id, sizeof status->boot_id, "%s", from->boot_id);
    (void)snprintf(status->storage_dir, sizeof status->storage_dir, "%s", from->storage_dir);
    for (size_t i = 0, used = 0; i < from->n_backends && used < sizeof status->backends; i++)
        used +=
            (size_t)snprintf(status->backends + used, sizeof status->backends - used, "%s%s", i ? " " : "", from->backends[i]);
    status->pid = from->pid;
    status->uptime_ns = from->uptime_ns;
    status->nodes_up = from->peers_up;
    status->nodes_known = from->peers_known;
    status->transfers_done = from->transfers_done;
    status->transfers_failed = from->transfers_failed;
    status->transfers_cancelled = from->transfers_cancelled;
    status->transfers_timed_out = from->transfers_timed_out;
    status->bytes_in = from->bytes_in;
    status->bytes_out = from->bytes_out;
    status->bytes_local = from->bytes_local;
    status->busy_polls = from->busy_polls;
    status->busy_polls_missed = from->busy_polls_missed;
    status->kept_names = from->kept_names;
    status->kept_holds = from->kept_holds;
    status->restored_sessions = from->restored_sessions;
    /* The members for metrics have the names of their fields. */
#define METRIC(name, help, field) status->field = from->field;
#include "status_metrics.h" /* made from the comments in proto/rdt.proto */
#undef METRIC
}

enum rdt_status rdt_daemon_status(rdt *conn, struct rdt_daemon_status *status_p, struct rdt_error *err)
{
    Rdt__Pb__Status request = RDT__PB__STATUS__INIT;
    struct rdt_daemon_status own = RDT_INIT(own);
    ProtobufCMessage *answer;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && (!status_p || status_p->struct_size < sizeof status_p->struct_size))
        status = rdt_error_set(err, RDT_INVALID,
                               "status_p is NULL, or its struct_size is not set: initialise the struct with RDT_INIT");
    if (status == RDT_OK)
        status = call(conn, RDT_MSG_STATUS, &request.base, CALL_TIMEOUT_NS, &answer, err);
    if (status != RDT_OK)
        return status;
    fill_status((const Rdt__Pb__StatusReply *)answer, &own);
    rdt__pb__status_reply__free_unpacked((Rdt__Pb__StatusReply *)answer, NULL);
    own.struct_size = status_p->struct_size < sizeof own ? status_p->struct_size : sizeof own;
    memcpy(status_p, &own, own.struct_size);
    return RDT_OK;
}

/* ---- as JSON ---- */

struct rows { /* of a list, as they come */
    FILE *out;
    const char *field; /* of ListReply */
    bool any;
};

static enum rdt_status give_json(struct lister *lister, const Rdt__Pb__ListReply *page, struct rdt_error *err)
{
    struct rows *rows = lister->arg;
    const char *at = NULL;
    size_t n = values_of(&page->base, protobuf_c_message_descriptor_get_field_by_name(page->base.descriptor, rows->field), &at);

    for (size_t i = 0; i < n; i++) {
        fputc(rows->any ? ',' : '[', rows->out);
        rows->any = true;
        message_json(rows->out, ((const ProtobufCMessage *const *)(const void *)at)[i]);
        if (!count_row(lister, true))
            break;
    }
    return RDT_OK;
}

static enum rdt_status list_json(rdt *conn, const char *what, const struct rdt_list_options *options, FILE *out,
                                 struct rdt_error *err)
{
    static const struct {
        const char *what;
        Rdt__Pb__ListKind kind;
    } lists[] = {
        {"objects", RDT__PB__LIST_KIND__LIST_KIND_OBJECTS},
        {"names", RDT__PB__LIST_KIND__LIST_KIND_NAMES},
        {"peers", RDT__PB__LIST_KIND__LIST_KIND_PEERS},
        {"groups", RDT__PB__LIST_KIND__LIST_KIND_GROUPS},
    };
    struct rows rows = {.out = out, .field = what};
    struct lister lister;
    enum rdt_status status;

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (strcmp(lists[i].what, what) != 0)
            continue;
        status = lister_init(&lister, conn, lists[i].kind, options, true, &rows, err);
        status = give_pages(&lister, status, give_json, err);
        fputs(rows.any ? "]" : "[]", out);
        return status;
    }
    return rdt_error_set(err, RDT_INVALID,
                         "\"%.32s\" is neither stat, objects, names, peers, groups nor a request that shows "
                         "something, such as status",
                         what);
}

/* Writes "field=value" into the request: numbers in decimal digits, a truth as true or false. */
static enum rdt_status set_field(ProtobufCMessage *request, const char *text, struct rdt_error *err)
{
    const char *value = strchr(text, '=');
    const ProtobufCFieldDescriptor *field = NULL;
    unsigned long long number;
    uint32_t number32;
    protobuf_c_boolean truth;
    char name[64], *end, *copy;
    void *at;

    if (value && (size_t)(value - text) < sizeof name) {
        (void)snprintf(name, sizeof name, "%.*s", (int)(value - text), text);
        field = protobuf_c_message_descriptor_get_field_by_name(request->descriptor, name);
    }
    if (!field)
        return rdt_error_set(err, RDT_INVALID, "the request %s has no field as in \"%.64s\"", request->descriptor->short_name,
                             text);
    at = (char *)request + field->offset;
    value++;
    errno = 0;
    number = strtoull(value, &end, 10);
    number32 = (uint32_t)number;
    truth = strcmp(value, "true") == 0;
    if (field->type == PROTOBUF_C_TYPE_STRING && (copy = strdup(value))) {
        if (*(char **)at != protobuf_c_empty_string)
            free(*(char **)at);
        memcpy(at, &copy, sizeof copy);
    } else if (field->type == PROTOBUF_C_TYPE_BOOL && (truth || strcmp(value, "false") == 0)) {
        memcpy(at, &truth, sizeof truth);
    } else if (field->type == PROTOBUF_C_TYPE_UINT64 && *value >= '0' && *value <= '9' && !*end && errno == 0) {
        memcpy(at, &(uint64_t){number}, sizeof(uint64_t));
    } else if (field->type == PROTOBUF_C_TYPE_UINT32 && *value >= '0' && *value <= '9' && !*end && number == number32) {
        memcpy(at, &number32, sizeof number32);
    } else {
        return rdt_error_set(err, RDT_INVALID, "\"%.64s\": the field %s of %s is %s", text, field->name,
                             request->descriptor->short_name,
                             field->type == PROTOBUF_C_TYPE_BOOL     ? "true or false"
                             : field->type == PROTOBUF_C_TYPE_STRING ? "a text, for which there is no memory"
                                                                     : "a number from 0 that fits into it");
    }
    return RDT_OK;
}

/* Sends a request with these fields (NULL: without), as set_field reads them. The caller frees *answer_p. */
static enum rdt_status ask(rdt *conn, const struct verb *verb, const char *const *fields, ProtobufCMessage **answer_p,
                           struct rdt_error *err)
{
    ProtobufCMessage *request = protobuf_c_message_unpack(verb->request, NULL, 0, (const uint8_t *)"");
    enum rdt_status status = RDT_OK;

    if (!request)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the request");
    for (; status == RDT_OK && fields && *fields; fields++)
        status = set_field(request, *fields, err);
    if (status == RDT_OK)
        status = call(conn, (enum rdt_message)verb->type, request, CALL_TIMEOUT_NS, answer_p, err);
    protobuf_c_message_free_unpacked(request, NULL);
    return status;
}

enum rdt_status rdt_end_client(rdt *conn, uint64_t session, struct rdt_error *err)
{
    Rdt__Pb__EndClient request = RDT__PB__END_CLIENT__INIT;

    request.client = session;
    return call(conn, RDT_MSG_END_CLIENT, &request.base, CALL_TIMEOUT_NS, NULL, err);
}

enum rdt_status rdt_flush_cache(rdt *conn, bool all, uint64_t *n_p, uint64_t *bytes_p, struct rdt_error *err)
{
    Rdt__Pb__CacheFlush request = RDT__PB__CACHE_FLUSH__INIT;
    const Rdt__Pb__CacheFlushReply *reply;
    ProtobufCMessage *answer;
    enum rdt_status status;

    request.all = all;
    status = call(conn, RDT_MSG_CACHE_FLUSH, &request.base, CALL_TIMEOUT_NS, &answer, err);
    if (status != RDT_OK)
        return status;
    reply = (const Rdt__Pb__CacheFlushReply *)answer;
    if (n_p)
        *n_p = reply->objects;
    if (bytes_p)
        *bytes_p = reply->bytes;
    protobuf_c_message_free_unpacked(answer, NULL);
    return RDT_OK;
}

/* The caller frees *text_p. */
static enum rdt_status text_of(ProtobufCMessage *take_answer, char **text_p, struct rdt_error *err)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    bool written;

    if (out)
        message_json(out, take_answer);
    protobuf_c_message_free_unpacked(take_answer, NULL);
    written = out && fclose(out) == 0;
    if (!written) {
        free(text);
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the text");
    }
    *text_p = text;
    return RDT_OK;
}

enum rdt_status rdt_request_json(rdt *conn, const char *name, const char *const *fields, char **text_p, struct rdt_error *err)
{
    enum rdt_status status = connection_check(conn, err);
    const struct verb *verb = status == RDT_OK && name ? verb_named(name, VERB_PLAIN | VERB_SHOWS) : NULL;
    ProtobufCMessage *answer = NULL;

    if (status == RDT_OK && (!verb || !text_p))
        status = rdt_error_set(err, RDT_INVALID, "\"%.32s\" is no request with plain fields, or text_p is NULL",
                               name ? name : "NULL");
    if (status == RDT_OK)
        status = ask(conn, verb, fields, &answer, err);
    if (status != RDT_OK)
        return status;
    return text_of(answer, text_p, err);
}

enum rdt_status rdt_info_json(rdt *conn, const char *what, const struct rdt_ref *ref, const struct rdt_list_options *options,
                              char **text_p, struct rdt_error *err)
{
    enum rdt_status status = connection_check(conn, err);
    ProtobufCMessage *answer;
    char *text = NULL;
    size_t bytes;
    FILE *out;

    if (status == RDT_OK && (!what || !text_p))
        status = rdt_error_set(err, RDT_INVALID, "what or text_p is NULL");
    if (status != RDT_OK)
        return status;
    if (verb_named(what, VERB_SHOWS))
        return rdt_request_json(conn, what, NULL, text_p, err);
    if (strcmp(what, "stat") == 0) {
        status = ask_stat(conn, ref, &answer, err);
        return status == RDT_OK ? text_of(answer, text_p, err) : status;
    }
    out = open_memstream(&text, &bytes);
    if (!out)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the text");
    status = list_json(conn, what, options, out, err);
    if (fclose(out) != 0 && status == RDT_OK)
        status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for the text");
    if (status == RDT_OK)
        *text_p = text;
    else
        free(text);
    return status;
}
