/* SPDX-License-Identifier: Apache-2.0 */
/* The records of transfers that rdtctl shows, their path decisions and their history. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/transfers/transfer_record.h"

void record_start(struct transfer_record *record, uint64_t id, const struct owner *requester, const struct rdt_ref *ref,
                  const char *direction, const char *state)
{
    record->id = id;
    record->requester = *requester;
    record->ref = *ref;
    record->direction = direction;
    record->state = state;
    record->since_ns = uv_hrtime();
}

void record_stage_at(struct transfers *transfers, const struct transfer_record *record, uint64_t at_ns)
{
    struct trace_record *entry = trace_next(&transfers->past.trace);

    _Static_assert(sizeof record->path >= sizeof entry->path && sizeof record->peer >= sizeof entry->peer &&
                       sizeof record->ref.id >= sizeof entry->id,
                   "the copies below read as much as they write");
    entry->at_ns = at_ns;
    entry->transfer = record->id;
    entry->generation = record->ref.generation;
    memcpy(&entry->node, record->ref.node, sizeof entry->node);
    entry->bytes = record->bytes_done;
    entry->stage = record->state;
    entry->direction = record->direction;
    entry->uid = record->requester.uid;
    entry->tenant = trace_tenant(record->requester.tenant);
    memcpy(entry->path, record->path, sizeof entry->path);
    memcpy(entry->peer, record->peer, sizeof entry->peer);
    memcpy(entry->id, record->ref.id, sizeof entry->id);
}

void record_stage(struct transfers *transfers, const struct transfer_record *record)
{
    record_stage_at(transfers, record, uv_hrtime());
}

void record_drop_decision(struct path_decision *decision)
{
    if (decision && --decision->refs == 0)
        free(decision);
}

/* Whether the query consists of a few texts at most, so that it can be compared with the next one. */
static bool is_common(const struct path_query *query)
{
    const struct path_local *local = &query->local;

    return query->same_node && !local->stay_why_not && !local->copy_why_not && !query->transport[0] && !query->least[0];
}

static bool is_same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

/* Copies a text; NULL stays NULL. A text that is too long is cut and equals no other. */
static const char *keep_text(char copy[192], const char *text)
{
    if (!text)
        return NULL;
    text_copy(copy, 192, text);
    return copy;
}

static bool is_same(const struct path_query *a, const struct path_query *b)
{
    const struct path_local *x = &a->local, *y = &b->local;

    return x->same_client == y->same_client && x->from_replica == y->from_replica && a->has_target == b->has_target &&
           x->too_many_fds == y->too_many_fds && a->mode == b->mode && a->has_inline == b->has_inline &&
           is_same_text(x->show_why_not, y->show_why_not) && is_same_text(x->cow_why_not, y->cow_why_not);
}

enum rdt_status record_decide(struct transfers *transfers, struct transfer_record *record, const struct path_query *query,
                              struct rdt_error *err)
{
    bool common = is_common(query);
    struct path_decision decision, *copy;
    enum rdt_status status;
    size_t bytes;

    if (common && transfers->decided.decision && is_same(query, &transfers->decided.query)) {
        record_drop_decision(record->decision);
        record->decision = transfers->decided.decision;
        record->decision->refs++;
        return RDT_OK;
    }
    status = path_choose(query, &decision, err);
    bytes = offsetof(struct path_decision, candidates) + decision.n * sizeof decision.candidates[0];
    copy = malloc(bytes);
    if (!copy)
        return status == RDT_OK ? rdt_error_set(err, RDT_NO_MEMORY, "no memory for the transfer") : status;
    memcpy(copy, &decision, bytes);
    copy->refs = 1;
    record_drop_decision(record->decision);
    record->decision = copy;
    if (common && status == RDT_OK) {
        record_drop_decision(transfers->decided.decision);
        transfers->decided.decision = copy;
        transfers->decided.query = *query;
        transfers->decided.query.local.show_why_not = keep_text(transfers->decided.show, query->local.show_why_not);
        transfers->decided.query.local.cow_why_not = keep_text(transfers->decided.cow, query->local.cow_why_not);
        copy->refs++;
    }
    return status;
}

const struct path_candidate *record_chosen(const struct transfer_record *record)
{
    return &record->decision->candidates[record->decision->chosen];
}

void record_route(struct transfer_record *record, const struct plugin_conn *conn)
{
    if (!record->route[0])
        plugin_conn_describe(conn, record->route, sizeof record->route);
}

void record_devices(struct transfer_record *record, const struct memory_device *from, const struct memory_device *to)
{
    const struct memory_kind *kind = from->kind;

    if (!record->route[0] && kind->ops.describe_copy)
        kind->ops.describe_copy(kind->instance, from->uuid, to->uuid, record->route, sizeof record->route);
}

void record_fail(struct transfer_record *record, const struct rdt_error *err)
{
    if (record->status != RDT_OK)
        return;
    record->status = err->status == RDT_OK ? RDT_INTERNAL : err->status;
    (void)snprintf(record->error, sizeof record->error, "%s: %s", rdt_status_name(record->status), err->msg);
}

static struct transfer_path *path_of(struct transfers *transfers, const struct transfer_record *record)
{
    struct transfer_path *path = transfers->past.paths;

    for (unsigned i = 0; i < TRANSFER_PATHS - 1; i++, path++) {
        if (!path->direction) {
            (void)snprintf(path->name, sizeof path->name, "%s", record->path);
            path->direction = record->direction;
            return path;
        }
        if (strcmp(path->direction, record->direction) == 0 && strcmp(path->name, record->path) == 0)
            return path;
    }
    (void)snprintf(path->name, sizeof path->name, "other");
    path->direction = "";
    return path;
}

void record_source_left(struct transfer_record *record, const char *why)
{
    struct transfer_source *grown = realloc(record->sources, (record->n_sources + 1u) * sizeof *grown), *source;

    if (!grown)
        return;
    record->sources = grown;
    source = &grown[record->n_sources++];
    text_copy(source->peer, sizeof source->peer, record->peer);
    text_copy(source->left, sizeof source->left, why);
    source->bytes = record->bytes_done > record->source_from ? record->bytes_done - record->source_from : 0;
}

void record_finish(struct transfers *transfers, struct transfer_record *record)
{
    static const char *const states[TRANSFER_OUTCOMES] = {"done", "failed", "cancelled", "timed_out"};
    enum transfer_outcome outcome = record->status == RDT_OK                                           ? TRANSFER_DONE
                                    : record->status == RDT_CANCELLED                                  ? TRANSFER_CANCELLED
                                    : record->status == RDT_TIMED_OUT || record->status == RDT_NOT_PUT ? TRANSFER_TIMED_OUT
                                                                                                       : TRANSFER_FAILED;
    uint64_t now_ns = uv_hrtime();
    struct transfer_path *path;
    struct transfer_record *place = &transfers->past.records[transfers->past.n++ % TRANSFER_HISTORY];

    record->state = states[outcome];
    record_stage_at(transfers, record, now_ns);
    record->elapsed_ns = now_ns - (record->began_ns ? record->began_ns : record->since_ns);
    if (record->elapsed_ns == 0)
        record->elapsed_ns = 1;
    record_drop_decision(place->decision);
    free(place->sources);
    memcpy(place, record, offsetof(struct transfer_record, error) + strlen(record->error) + 1);
    place->ticket = NULL;
    event(transfers->events, RDT__PB__LIST_KIND__LIST_KIND_TRANSFERS, "ended", record);
    record->decision = NULL; /* The history owns these now. */
    record->sources = NULL;
    path = path_of(transfers, record);
    path->ended[outcome]++;
    if (outcome == TRANSFER_DONE) {
        path->bytes += record->bytes_done;
        histogram_add(&path->duration, record->elapsed_ns);
    }
}

static void *copy_column(const void *column, size_t bytes)
{
    void *copy = malloc(bytes ? bytes : 1);

    if (copy && bytes)
        memcpy(copy, column, bytes);
    return copy;
}

Rdt__Pb__Slice *slice_dup(const Rdt__Pb__Slice *slice)
{
    Rdt__Pb__Slice *copy;

    if (!slice)
        return NULL;
    copy = malloc(sizeof *copy);
    if (!copy)
        return NULL;
    rdt__pb__slice__init(copy);
    copy->start = copy_column(slice->start, slice->n_start * sizeof *slice->start);
    copy->count = copy_column(slice->count, slice->n_count * sizeof *slice->count);
    copy->ndim = copy_column(slice->ndim, slice->n_ndim * sizeof *slice->ndim);
    if (!copy->start || !copy->count || !copy->ndim) {
        free(copy->start);
        free(copy->count);
        free(copy->ndim);
        free(copy);
        return NULL;
    }
    copy->n_start = slice->n_start;
    copy->n_count = slice->n_count;
    copy->n_ndim = slice->n_ndim;
    return copy;
}
