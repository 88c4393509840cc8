/* SPDX-License-Identifier: Apache-2.0 */
/* Questions and ends of many objects or names, in one message or a few. */
#include "client/rdt_many.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/call.h"
#include "client/options.h"
#include "client/request.h"
#include "client/session/clock.h"
#include "client/session/connection.h"
#include "proto/wire_limits.h"
#include "proto/wire_ref.h"

static enum rdt_status check_refs(const rdt *conn, const struct rdt_ref *refs, size_t count, const void *results,
                                  struct rdt_error *err)
{
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && count > 0 && (!refs || !results))
        status = rdt_error_set(err, RDT_INVALID, "%s is NULL, and count is %zu", refs ? "statuses_p" : "refs", count);
    for (size_t i = 0; status == RDT_OK && i < count; i++) {
        status = options_check_ref(&refs[i], err);
        if (status != RDT_OK)
            rdt_error_prefix(err, "ref %zu", i);
    }
    return status;
}

/* ---- exists ---- */

static bool is_known(enum rdt_status status)
{
    return status == RDT_OK || status == RDT_NOT_PUT || status == RDT_FREED || status == RDT_OWNER_DIED ||
           status == RDT_NOT_FOUND;
}

/* Of refs [n], at most RDT_MAX_FETCH_REFS. *why_p is filled by the first of all of which nothing is known. */
static enum rdt_status ask(rdt *conn, const struct rdt_ref *refs, size_t n, int64_t deadline_ns, enum rdt_status *statuses,
                           struct rdt_error *why_p, struct rdt_error *err)
{
    Rdt__Pb__Exists request = RDT__PB__EXISTS__INIT;
    const Rdt__Pb__ExistsReply *reply;
    ProtobufCMessage *answer = NULL;
    struct arena arena;
    enum rdt_status status;

    arena_init(&arena, SIZE_MAX / 2);
    request.timeout_ns = clock_remaining_ns(deadline_ns);
    status = request.timeout_ns > 0 ? ref_list_make(&arena, refs, NULL, n, &request.refs, err)
                                    : rdt_error_set(err, RDT_TIMED_OUT, "there was no time left to ask for the other refs");
    if (status == RDT_OK)
        status = call_fds(conn, RDT_MSG_EXISTS, &request.base, -1, clock_after_answer_ns(deadline_ns, request.timeout_ns),
                          &answer, NULL, err);
    arena_fini(&arena);
    if (status != RDT_OK)
        return status;
    reply = (const Rdt__Pb__ExistsReply *)answer;
    if (reply->n_status != n)
        status = rdt_error_set(err, RDT_PROTOCOL, "rdtd answered EXISTS for %zu of %zu refs", reply->n_status, n);
    for (size_t i = 0; status == RDT_OK && i < n; i++) {
        struct rdt_error why;

        statuses[i] = (enum rdt_status)reply->status[i];
        if (is_known(statuses[i]))
            continue;
        statuses[i] = wire_error(reply->status[i], 0, reply->why, &why);
        if (why_p->status == RDT_OK)
            *why_p = why;
    }
    protobuf_c_message_free_unpacked(answer, NULL);
    return status;
}

enum rdt_status rdt_exists(rdt *conn, const struct rdt_ref *refs, size_t count, enum rdt_status *statuses_p,
                           struct rdt_error *err)
{
    struct rdt_error why = {0}, lost;
    int64_t deadline_ns = clock_deadline_ns(CALL_TIMEOUT_NS);
    enum rdt_status status = check_refs(conn, refs, count, statuses_p, err);

    if (status != RDT_OK)
        return request_statuses(statuses_p, count, status);
    for (size_t first = 0; status == RDT_OK && first < count; first += RDT_MAX_FETCH_REFS) {
        size_t n = count - first < RDT_MAX_FETCH_REFS ? count - first : RDT_MAX_FETCH_REFS;
        status = ask(conn, refs + first, n, deadline_ns, statuses_p + first, &why, &lost);
        if (status != RDT_OK)
            (void)request_statuses(statuses_p + first, count - first, status);
    }
    if (status != RDT_OK && why.status == RDT_OK)
        why = lost;
    if (why.status == RDT_OK)
        return RDT_OK;
    if (err)
        *err = why;
    return why.status;
}

/* ---- names ---- */

_Static_assert(RDT_PUBLISH_MOST == RDT_MAX_PUBLISH_NAMES, "what rdt_many.h says");

static enum rdt_status check_names(const char *const *names, size_t count, size_t *bytes_p, struct rdt_error *err)
{
    *bytes_p = 0;
    if (count > RDT_PUBLISH_MOST)
        return rdt_error_set(err, RDT_INVALID, "%zu names are more than the %u that are published at once", count,
                             RDT_PUBLISH_MOST);
    if (count > 0 && !names)
        return rdt_error_set(err, RDT_INVALID, "names is NULL, and count is %zu", count);
    for (size_t i = 0; i < count; i++) {
        size_t bytes = names[i] ? strnlen(names[i], RDT_ID_MAX_BYTES + 1) : 0;
        if (bytes == 0 || bytes > RDT_ID_MAX_BYTES)
            return rdt_error_set(err, RDT_INVALID, "name %zu is empty, or has more than %u bytes", i, RDT_ID_MAX_BYTES);
        *bytes_p += bytes;
    }
    return RDT_OK;
}

static enum rdt_status fill_publish(struct arena *arena, const char *const *names, const struct rdt_ref *refs, size_t count,
                                    size_t bytes, const struct rdt_publish_options *options, Rdt__Pb__PublishMany *message,
                                    struct rdt_error *err)
{
    enum rdt_status status = ref_list_make(arena, refs, NULL, count, &message->objects, err);

    message->names.data = arena_alloc(arena, bytes + 1);
    message->name_bytes = arena_alloc(arena, (count + 1) * sizeof *message->name_bytes);
    if (status == RDT_OK && (!message->names.data || !message->name_bytes))
        status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory to publish %zu names", count);
    if (status != RDT_OK)
        return status;
    for (size_t i = 0; i < count; i++) {
        message->name_bytes[i] = (uint32_t)strlen(names[i]);
        memcpy(message->names.data + message->names.len, names[i], message->name_bytes[i]);
        message->names.len += message->name_bytes[i];
    }
    message->n_name_bytes = count;
    message->visibility = (Rdt__Pb__Visibility)options->visibility;
    message->lease = options->lease;
    message->ttl_ns = options->ttl_ns;
    return RDT_OK;
}

enum rdt_status rdt_publish_many(rdt *conn, const char *const *names, const struct rdt_ref *refs, size_t count,
                                 const struct rdt_publish_options *options, uint64_t *versions_p, struct rdt_error *err)
{
    Rdt__Pb__PublishMany message = RDT__PB__PUBLISH_MANY__INIT;
    struct rdt_publish_options own;
    ProtobufCMessage *answer = NULL;
    const Rdt__Pb__PublishManyReply *reply;
    struct waiting *waiting;
    struct arena arena;
    size_t bytes;
    enum rdt_status status = check_refs(conn, refs, count, &own, err);

    if (status == RDT_OK)
        status = options_copy(&own, sizeof own, options, err);
    if (status == RDT_OK && (own.name_ref || (unsigned)own.visibility > RDT_VISIBLE_TO_ALL || own.ttl_ns < 0))
        status = rdt_error_set(err, RDT_INVALID, "name_ref is set, visibility %d is unknown, or ttl_ns, %lld, is negative",
                               (int)own.visibility, (long long)own.ttl_ns);
    if (status == RDT_OK)
        status = check_names(names, count, &bytes, err);
    if (status != RDT_OK || count == 0)
        return status;
    arena_init(&arena, SIZE_MAX / 2);
    status = fill_publish(&arena, names, refs, count, bytes, &own, &message, err);
    if (status == RDT_OK)
        status = call_begin(conn, RDT_MSG_PUBLISH_MANY, &message.base, NULL, 0, (unsigned)count, &waiting, err);
    if (status == RDT_OK)
        status = call_end(conn, waiting, clock_deadline_ns(CALL_TIMEOUT_NS), &answer, err);
    arena_fini(&arena);
    if (status != RDT_OK)
        return status;
    reply = (const Rdt__Pb__PublishManyReply *)answer;
    if (reply->n_version != count)
        status = rdt_error_set(err, RDT_PROTOCOL, "rdtd answered PUBLISH_MANY of %zu names for %zu", count, reply->n_version);
    for (size_t i = 0; status == RDT_OK && versions_p && i < count; i++)
        versions_p[i] = reply->version[i];
    protobuf_c_message_free_unpacked(answer, NULL);
    return status;
}

/* ---- ends ---- */

#define ENDS_AT_ONCE 256u

struct ending { /* of one object or name */
    struct waiting *waiting;
    Rdt__Pb__Ref ref;
    union {
        Rdt__Pb__Free object;
        Rdt__Pb__Unpublish name;
    } request;
};

static enum rdt_status end_begin(rdt *conn, const struct rdt_ref *ref, bool force, struct ending *ending, struct rdt_error *err)
{
    wire_ref_from(ref, &ending->ref);
    if (ref->is_name) {
        rdt__pb__unpublish__init(&ending->request.name);
        ending->request.name.name = &ending->ref;
        return call_begin(conn, RDT_MSG_UNPUBLISH, &ending->request.name.base, NULL, 0, 1, &ending->waiting, err);
    }
    rdt__pb__free__init(&ending->request.object);
    ending->request.object.ref = &ending->ref;
    ending->request.object.force = force;
    return call_begin(conn, RDT_MSG_FREE, &ending->request.object.base, NULL, 0, 1, &ending->waiting, err);
}

/* Somebody else has ended it. */
static bool is_gone(enum rdt_status status)
{
    return status == RDT_FREED || status == RDT_NOT_FOUND || status == RDT_OWNER_DIED;
}

/* Ends refs [n], at most ENDS_AT_ONCE: all are sent before the first answer is waited for. *why_p is that of the first of all
 * that failed; with `listed`, those that have ended since they were listed have not. */
static void end_some(rdt *conn, const struct rdt_ref *refs, size_t n, bool force, bool listed, enum rdt_status *statuses,
                     struct rdt_error *why_p)
{
    struct ending endings[ENDS_AT_ONCE];
    struct rdt_error why = {0};
    int64_t deadline_ns = clock_deadline_ns(CALL_TIMEOUT_NS);

    for (size_t i = 0; i < n; i++) {
        endings[i].waiting = NULL;
        statuses[i] = end_begin(conn, &refs[i], force, &endings[i], &why);
        if (statuses[i] != RDT_OK && why_p->status == RDT_OK)
            *why_p = why;
    }
    for (size_t i = 0; i < n; i++) {
        if (!endings[i].waiting)
            continue;
        statuses[i] = call_end(conn, endings[i].waiting, deadline_ns, NULL, &why);
        if (statuses[i] != RDT_OK && !(listed && is_gone(statuses[i])) && why_p->status == RDT_OK)
            *why_p = why;
    }
}

enum rdt_status rdt_free_many(rdt *conn, const struct rdt_ref *refs, size_t count, bool force, enum rdt_status *statuses_p,
                              struct rdt_error *err)
{
    enum rdt_status few[ENDS_AT_ONCE], status = check_refs(conn, refs, count, few, err);
    struct rdt_error why = {0};

    for (size_t i = 0; status == RDT_OK && i < count; i++)
        if (refs[i].is_name)
            status = rdt_error_set(err, RDT_INVALID, "ref %zu is that of a name: rdt_unpublish it", i);
    if (status != RDT_OK)
        return status;
    for (size_t first = 0; first < count; first += ENDS_AT_ONCE) {
        size_t n = count - first < ENDS_AT_ONCE ? count - first : ENDS_AT_ONCE;
        end_some(conn, refs + first, n, force, false, statuses_p ? statuses_p + first : few, &why);
    }
    if (why.status != RDT_OK && err)
        *err = why;
    return why.status;
}

/* Whether the row is of this user, and whether its end can succeed: *ref_p is then its ref. */
static bool is_to_end(const struct rdt_node_info *node, const Rdt__Pb__ObjectInfo *object, bool force, struct rdt_ref *ref_p)
{
    if (object->uid != node->uid || strcmp(object->tenant, node->tenant) != 0 || object->generation == 0 ||
        strcmp(object->state, "draining") == 0)
        return false;
    return (force || object->detached || object->evictable || object->producer == node->session) &&
           rdt_ref_from_text(object->ref, ref_p, NULL) == RDT_OK;
}

/* Undoes what lists do to bytes that do not print: they become %XX. INVALID: it is no such text. */
static enum rdt_status name_of_text(const char *text, const struct rdt_ref *near, struct rdt_ref *ref_p)
{
    char name[RDT_ID_MAX_BYTES + 1];
    size_t n = 0;

    for (; *text && n < sizeof name - 1; text++, n++) {
        unsigned byte = (unsigned char)*text;
        if (byte == '%' && sscanf(text + 1, "%2x", &byte) == 1)
            text += 2;
        name[n] = (char)byte;
    }
    name[n] = '\0';
    return rdt_ref_from_name(name, 0, near, ref_p, NULL);
}

static bool is_to_unpublish(const struct rdt_node_info *node, const Rdt__Pb__NameInfo *name, struct rdt_ref *ref_p)
{
    struct rdt_ref near = {.uid = node->uid};

    if (name->uid != node->uid || strcmp(name->tenant, node->tenant) != 0)
        return false;
    memcpy(near.node, node->node, sizeof near.node);
    memcpy(near.address, node->address, sizeof near.address);
    memcpy(near.tenant, node->tenant, sizeof near.tenant);
    return name_of_text(name->name, &near, ref_p) == RDT_OK;
}

/* The refs of a page of a list: [n], at most RDT_MAX_PAGE. */
static size_t refs_of(const Rdt__Pb__ListReply *page, const struct rdt_node_info *node, bool force, struct rdt_ref *refs)
{
    size_t n = 0;

    for (size_t i = 0; i < page->n_objects && n < RDT_MAX_PAGE; i++)
        n += is_to_end(node, page->objects[i], force, &refs[n]);
    for (size_t i = 0; i < page->n_names && n < RDT_MAX_PAGE; i++)
        n += is_to_unpublish(node, page->names[i], &refs[n]);
    return n;
}

static enum rdt_status end_prefix(rdt *conn, Rdt__Pb__ListKind kind, const char *prefix, bool force, size_t *n_p,
                                  struct rdt_error *err)
{
    Rdt__Pb__List list = RDT__PB__LIST__INIT;
    struct rdt_ref *refs = malloc(RDT_MAX_PAGE * sizeof *refs);
    struct rdt_error why = {0};
    struct rdt_node_info node;
    size_t n_ended = 0;
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && (!prefix || prefix[0] == '\0'))
        status = rdt_error_set(err, RDT_INVALID, "the prefix is empty: that would end everything of this user");
    if (status == RDT_OK)
        status = options_check_text(prefix, RDT_ID_MAX_BYTES, "the prefix", err);
    if (status == RDT_OK && !refs)
        status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a list");
    if (status == RDT_OK)
        connection_copy_node(conn, &node);
    list.kind = kind;
    list.id_prefix = (char *)(uintptr_t)prefix;
    for (bool more = status == RDT_OK; more && status == RDT_OK; more = list.after != 0) {
        Rdt__Pb__ListReply *page;
        size_t n;
        status = call_list(conn, &list, CALL_TIMEOUT_NS, &page, err);
        if (status != RDT_OK)
            break;
        n = refs_of(page, &node, force, refs);
        rdt__pb__list_reply__free_unpacked(page, NULL);
        for (size_t first = 0; first < n; first += ENDS_AT_ONCE) {
            enum rdt_status statuses[ENDS_AT_ONCE];
            size_t some = n - first < ENDS_AT_ONCE ? n - first : ENDS_AT_ONCE;
            end_some(conn, refs + first, some, force, true, statuses, &why);
            for (size_t i = 0; i < some; i++)
                n_ended += statuses[i] == RDT_OK;
        }
    }
    free(refs);
    if (n_p && (status == RDT_OK || n_ended > 0))
        *n_p = n_ended;
    if (status != RDT_OK || why.status == RDT_OK)
        return status;
    if (err)
        *err = why;
    return why.status;
}

enum rdt_status rdt_free_prefix(rdt *conn, const char *prefix, bool force, size_t *n_p, struct rdt_error *err)
{
    return end_prefix(conn, RDT__PB__LIST_KIND__LIST_KIND_OBJECTS, prefix, force, n_p, err);
}

enum rdt_status rdt_unpublish_prefix(rdt *conn, const char *prefix, size_t *n_p, struct rdt_error *err)
{
    return end_prefix(conn, RDT__PB__LIST_KIND__LIST_KIND_NAMES, prefix, false, n_p, err);
}
