/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_metrics: the daemon's counters as the text that Prometheus and its kind read.
 *
 * The two formats differ in the names of the TYPE lines and in the last line only. Labels are bounded: verbs, statuses, paths
 * and transports by what exists, owners by OWNERS_MAX, nodes by NODES_MAX. No label names an object, a name or a client. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "call.h"
#include "rdt.pb-c.h"
#include "rdt_info.h"
#include "session/connection.h"

#define OWNERS_MAX 64u /* further ones are added up as uid="other" */
#define NODES_MAX 256u /* further ones are in rdtd_nodes only */
#define USAGE_MAX 32u

struct text {
    FILE *file;
    bool openmetrics;
};

enum type { COUNTER, GAUGE, HISTOGRAM, INFO };

/* ---- lines ---- */

/* name without the suffix _total or _info; unit "" or "seconds" or "bytes", which the name then ends in. */
static void family(const struct text *text, enum type type, const char *name, const char *unit, const char *help)
{
    static const char *const types[] = {"counter", "gauge", "histogram", "info"};
    const char *suffix = text->openmetrics ? "" : type == COUNTER ? "_total" : type == INFO ? "_info" : "";

    fprintf(text->file, "# HELP %s%s %s\n", name, suffix, help);
    fprintf(text->file, "# TYPE %s%s %s\n", name, suffix, type == INFO && !text->openmetrics ? "gauge" : types[type]);
    if (text->openmetrics && unit[0])
        fprintf(text->file, "# UNIT %s %s\n", name, unit);
}

struct family { /* one that has a sample for each row of a list */
    const char *name, *unit, *help;
    enum type type;
};

/* Returns the suffix of its samples. */
static const char *begin(const struct text *text, const struct family *of)
{
    family(text, of->type, of->name, of->unit, of->help);
    return of->type == COUNTER ? "_total" : "";
}

static void put_value(const struct text *text, const char *value)
{
    for (const char *c = value; *c; c++) {
        if (*c == '\n')
            fputs("\\n", text->file);
        else if (*c == '"' || *c == '\\')
            fprintf(text->file, "\\%c", *c);
        else
            fputc(*c, text->file);
    }
}

/* labels: NULL-terminated pairs of a name and a value. `more` is a further label as text, or "". */
static void put_labels(const struct text *text, const char *const *labels, const char *more)
{
    const char *between = "{";

    for (; labels && labels[0]; labels += 2, between = ",") {
        fprintf(text->file, "%s%s=\"", between, labels[0]);
        put_value(text, labels[1]);
        fputc('"', text->file);
    }
    if (more[0]) {
        fprintf(text->file, "%s%s", between, more);
        between = ",";
    }
    if (between[0] == ',')
        fputc('}', text->file);
}

static void sample(const struct text *text, const char *name, const char *suffix, const char *const *labels, double value)
{
    fprintf(text->file, "%s%s", name, suffix);
    put_labels(text, labels, "");
    fprintf(text->file, " %.15g\n", value);
}

static void number(const struct text *text, const char *name, const char *suffix, const char *const *labels, uint64_t value)
{
    fprintf(text->file, "%s%s", name, suffix);
    put_labels(text, labels, "");
    fprintf(text->file, " %" PRIu64 "\n", value);
}

#define LABELS(...) ((const char *const[]){__VA_ARGS__, NULL})

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), n_end = strlen(end);

    return n >= n_end && strcmp(name + n - n_end, end) == 0;
}

/* A metric of one sample. Its type and unit follow from its name: counters, and only they, end in _total. */
static void plain(const struct text *text, const char *name, const char *help, uint64_t value)
{
    bool counts = ends_in(name, "_total");
    char base[64];
    const char *unit;

    (void)snprintf(base, sizeof base, "%.*s", (int)(strlen(name) - (counts ? strlen("_total") : 0)), name);
    unit = ends_in(base, "_bytes") ? "bytes" : ends_in(base, "_seconds") ? "seconds" : "";
    family(text, counts ? COUNTER : GAUGE, base, unit, help);
    number(text, base, counts ? "_total" : "", NULL, value);
}

static void histogram(const struct text *text, const char *name, const char *const *labels, const Rdt__Pb__Histogram *from,
                      const Rdt__Pb__MetricsReply *reply)
{
    uint64_t count = 0;
    char le[48];

    for (size_t i = 0; from && i < from->n_counts && i <= reply->n_bounds_ns; i++) {
        count += from->counts[i];
        if (i < reply->n_bounds_ns)
            (void)snprintf(le, sizeof le, "le=\"%.9g\"", (double)reply->bounds_ns[i] / 1e9);
        else
            (void)snprintf(le, sizeof le, "le=\"+Inf\"");
        fprintf(text->file, "%s_bucket", name);
        put_labels(text, labels, le);
        fprintf(text->file, " %" PRIu64 "\n", count);
    }
    number(text, name, "_count", labels, count);
    sample(text, name, "_sum", labels, from ? (double)from->sum_ns / 1e9 : 0);
}

/* The files ..._metrics.h are made from the comments in proto/rdt.proto. */
#define METRIC(name, help, field) plain(text, #name, help, (uint64_t)from->field);

/* ---- what STATUS says ---- */

static void put_status(const struct text *text, const Rdt__Pb__StatusReply *from)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    family(text, INFO, "rdtd_build", "", "The daemon's version and its node's uuid.");
    number(text, "rdtd_build", "_info", LABELS("version", from->version, "node", from->node), 1);
    family(text, GAUGE, "process_start_time_seconds", "seconds", "When the daemon started, in seconds since 1970.");
    sample(text, "process_start_time_seconds", "", NULL,
           (double)now.tv_sec + (double)now.tv_nsec / 1e9 - (double)from->uptime_ns / 1e9);
    plain(text, "rdtd_draining", "1 while the daemon shuts down.", strcmp(from->state, "draining") == 0);
#include "status_metrics.h"
}

/* ---- what METRICS says ---- */

static void put_requests(const struct text *text, const Rdt__Pb__MetricsReply *from)
{
    family(text, COUNTER, "rdtd_requests", "", "Answered requests by type and status.");
    for (size_t i = 0; i < from->n_verbs; i++) {
        const Rdt__Pb__VerbMetrics *verb = from->verbs[i];
        uint64_t all = 0, failed = 0;

        for (size_t k = 0; verb->duration && k < verb->duration->n_counts; k++)
            all += verb->duration->counts[k];
        for (size_t k = 0; k < verb->n_failures; k++) {
            const char *status = rdt_status_name((enum rdt_status)verb->failures[k]->status);

            failed += verb->failures[k]->count;
            number(text, "rdtd_requests", "_total", LABELS("verb", verb->verb, "status", status), verb->failures[k]->count);
        }
        number(text, "rdtd_requests", "_total", LABELS("verb", verb->verb, "status", "OK"), all - failed);
    }
    family(text, HISTOGRAM, "rdtd_request_duration_seconds", "seconds",
           "From the arrival of a request until its answer is queued, waits included.");
    for (size_t i = 0; i < from->n_verbs; i++)
        histogram(text, "rdtd_request_duration_seconds", LABELS("verb", from->verbs[i]->verb), from->verbs[i]->duration, from);
}

static void put_transfers(const struct text *text, const Rdt__Pb__MetricsReply *from)
{
    family(text, COUNTER, "rdtd_transfers", "", "Ended transfers by path, direction and outcome.");
    for (size_t i = 0; i < from->n_paths; i++) {
        const Rdt__Pb__PathMetrics *path = from->paths[i];
        const char *const outcomes[] = {"done", "failed", "cancelled", "timed_out"};
        uint64_t counts[] = {0, path->failed, path->cancelled, path->timed_out};

        for (size_t k = 0; path->duration && k < path->duration->n_counts; k++)
            counts[0] += path->duration->counts[k];
        for (size_t k = 0; k < 4; k++)
            number(text, "rdtd_transfers", "_total",
                   LABELS("path", path->path, "direction", path->direction, "outcome", outcomes[k]), counts[k]);
    }
    family(text, COUNTER, "rdtd_transfer_bytes", "bytes", "Bytes of transfers that are done.");
    for (size_t i = 0; i < from->n_paths; i++)
        number(text, "rdtd_transfer_bytes", "_total",
               LABELS("path", from->paths[i]->path, "direction", from->paths[i]->direction), from->paths[i]->bytes);
    family(text, HISTOGRAM, "rdtd_transfer_duration_seconds", "seconds",
           "Duration of transfers that are done, from the time when the object was found.");
    for (size_t i = 0; i < from->n_paths; i++)
        histogram(text, "rdtd_transfer_duration_seconds",
                  LABELS("path", from->paths[i]->path, "direction", from->paths[i]->direction), from->paths[i]->duration, from);
}

static void put_process(const struct text *text, const Rdt__Pb__MetricsReply *from)
{
    family(text, HISTOGRAM, "rdtd_loop_busy_seconds", "seconds",
           "How long the daemon worked between two waits for events; nobody is served meanwhile.");
    histogram(text, "rdtd_loop_busy_seconds", NULL, from->loop_busy, from);
    family(text, COUNTER, "process_cpu_seconds", "seconds", "User and system time of the daemon.");
    sample(text, "process_cpu_seconds", "_total", NULL, (double)from->cpu_ns / 1e9);
#include "reply_metrics.h"
}

static void put_directory(const struct text *text, const Rdt__Pb__MetricsReply *from)
{
    static const struct family families[] = {
        {"rdtd_directory_nodes", "", "Nodes in the last good list of a provider of the node table.", GAUGE},
        {"rdtd_directory_failing", "", "1 while the provider cannot be read.", GAUGE},
        {"rdtd_directory_age_seconds", "seconds", "How long ago the provider was last read.", GAUGE},
        {"rdtd_directory_errors", "", "Readings of the provider that failed.", COUNTER},
    };

    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        const char *suffix = begin(text, &families[f]);

        for (size_t i = 0; i < from->n_providers; i++) {
            const Rdt__Pb__ProviderInfo *row = from->providers[i];
            const double values[] = {row->nodes, row->error[0] != '\0', row->age_ns < 0 ? -1 : (double)row->age_ns / 1e9,
                                     (double)row->errors};
            sample(text, families[f].name, suffix, LABELS("source", row->source), values[f]);
        }
    }
}

static void put_etcd(const struct text *text, const Rdt__Pb__EtcdInfo *from)
{
    const Rdt__Pb__EtcdInfo none = RDT__PB__ETCD_INFO__INIT;

    from = from ? from : &none;
#include "etcd_metrics.h"
}

static void put_lookups(const struct text *text, const Rdt__Pb__MetricsReply *from)
{
    family(text, COUNTER, "rdtd_name_lookups", "", "Look-ups of names whose node was not given, by outcome.");
    number(text, "rdtd_name_lookups", "_total", LABELS("outcome", "found"), from->names_found);
    number(text, "rdtd_name_lookups", "_total", LABELS("outcome", "missing"), from->names_missing);
    number(text, "rdtd_name_lookups", "_total", LABELS("outcome", "remembered"), from->names_remembered);
}

static void put_followers(const struct text *text, const Rdt__Pb__FollowersReply *from)
{
    static const struct family families[] = {
        {"rdtd_follower_committed_version", "", "The version that the follower has committed.", GAUGE},
        {"rdtd_follower_prepared_version", "", "The version that is whole on this node for the follower; 0: none.", GAUGE},
        {"rdtd_follower_lag_versions", "", "How many versions the follower is behind the newest one.", GAUGE},
        {"rdtd_follower_lag_seconds", "seconds", "Since when the daemon has known of the newest version; 0: it is committed.",
         GAUGE},
    };

    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        const char *suffix = begin(text, &families[f]);

        for (size_t i = 0; i < from->n_followers; i++) {
            const Rdt__Pb__FollowerInfo *row = from->followers[i];
            const double values[] = {(double)row->committed, (double)row->prepared, (double)row->lag,
                                     (double)row->lag_ns / 1e9};
            char client[24], number[24];

            (void)snprintf(client, sizeof client, "%" PRIu64, row->client);
            (void)snprintf(number, sizeof number, "%" PRIu64, row->follower);
            sample(text, families[f].name, suffix, LABELS("name", row->name, "client", client, "follower", number), values[f]);
        }
    }
}

/* ---- lists ---- */

struct pages {
    Rdt__Pb__ListReply **page;
    size_t n;
};

static void pages_fini(struct pages *pages)
{
    for (size_t i = 0; i < pages->n; i++)
        rdt__pb__list_reply__free_unpacked(pages->page[i], NULL);
    free(pages->page);
}

static enum rdt_status pages_get(struct pages *pages, rdt *conn, Rdt__Pb__ListKind kind, struct rdt_error *err)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;

    request.kind = kind;
    do {
        Rdt__Pb__ListReply **grown = realloc(pages->page, (pages->n + 1) * sizeof(Rdt__Pb__ListReply *));
        enum rdt_status status;

        if (!grown)
            return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the metrics");
        pages->page = grown;
        status = call_list(conn, &request, CALL_TIMEOUT_NS, &grown[pages->n], err);
        if (status != RDT_OK)
            return status;
        pages->n++;
    } while (request.after);
    return RDT_OK;
}

/* One family for each resource that is limited: rows are owners, the last one the sum of those beyond OWNERS_MAX. */
static void put_owners(const struct text *text, const struct pages *pages)
{
    const Rdt__Pb__OwnerInfo *first = pages->n && pages->page[0]->n_owners ? pages->page[0]->owners[0] : NULL;

    for (size_t u = 0; first && u < first->n_usage && u < USAGE_MAX; u++) {
        const char *what = first->usage[u]->what;
        bool bytes = strcmp(what, "bytes") == 0 || strcmp(what, "heap") == 0 || strcmp(what, "device_bytes") == 0 ||
                     strcmp(what, "stored_bytes") == 0 || strcmp(what, "followed_bytes") == 0;
        uint64_t others = 0;
        unsigned n = 0;
        char name[64], help[160];

        (void)snprintf(name, sizeof name, "rdtd_owner_%s",
                       strcmp(what, "bytes") == 0          ? "memory_bytes"
                       : strcmp(what, "heap") == 0         ? "heap_bytes"
                       : strcmp(what, "device_bytes") == 0 ? "device_memory_bytes"
                                                           : what);
        (void)snprintf(help, sizeof help, "How much an owner (uid, tenant) uses of what owner_max_%s limits.", what);
        family(text, GAUGE, name, bytes ? "bytes" : "", help);
        for (size_t i = 0; i < pages->n; i++) {
            for (size_t k = 0; k < pages->page[i]->n_owners; k++) {
                const Rdt__Pb__OwnerInfo *owner = pages->page[i]->owners[k];
                uint64_t used = u < owner->n_usage ? owner->usage[u]->used : 0;
                char uid[16];

                (void)snprintf(uid, sizeof uid, "%" PRIu32, owner->uid);
                if (n++ < OWNERS_MAX)
                    number(text, name, "", LABELS("uid", uid, "tenant", owner->tenant), used);
                else
                    others += used;
            }
        }
        if (n > OWNERS_MAX)
            number(text, name, "", LABELS("uid", "other", "tenant", ""), others);
    }
}

static void put_nodes(const struct text *text, const struct pages *pages)
{
    static const char *const states[] = {"idle", "connecting", "up", "backoff"};
    static const struct family families[] = {
        {"rdtd_node_up", "", "1 while the link to the node is up.", GAUGE},
        {"rdtd_node_round_trip_seconds", "seconds", "Latest round trip on the link to the node.", GAUGE},
        {"rdtd_node_received_bytes", "bytes", "Bytes of tensors that came from the node.", COUNTER},
        {"rdtd_node_sent_bytes", "bytes", "Bytes of tensors that went to the node.", COUNTER},
    };
    uint64_t in_state[4] = {0};

    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        const char *suffix = begin(text, &families[f]);
        unsigned n = 0;

        for (size_t i = 0; i < pages->n; i++) {
            for (size_t k = 0; k < pages->page[i]->n_peers && n < NODES_MAX; k++, n++) {
                const Rdt__Pb__PeerInfo *node = pages->page[i]->peers[k];
                const double values[] = {strcmp(node->state, "up") == 0, (double)node->rtt_ns / 1e9, (double)node->bytes_in,
                                         (double)node->bytes_out};

                sample(text, families[f].name, suffix, LABELS("node", node->name, "address", node->address, "uuid", node->uuid),
                       values[f]);
            }
        }
    }
    for (size_t i = 0; i < pages->n; i++)
        for (size_t k = 0; k < pages->page[i]->n_peers; k++)
            for (size_t s = 0; s < 4; s++)
                in_state[s] += strcmp(pages->page[i]->peers[k]->state, states[s]) == 0;
    family(text, GAUGE, "rdtd_nodes", "", "Other nodes that this one knows, by the state of the link.");
    for (size_t s = 0; s < 4; s++)
        number(text, "rdtd_nodes", "", LABELS("state", states[s]), in_state[s]);
}

static void put_device_family(const struct text *text, const struct pages *pages, const char *name, const char *help,
                              int member)
{
    family(text, GAUGE, name, "bytes", help);
    for (size_t i = 0; i < pages->n; i++) {
        for (size_t k = 0; k < pages->page[i]->n_backends; k++) {
            const Rdt__Pb__BackendInfo *backend = pages->page[i]->backends[k];

            for (size_t d = 0; d < backend->n_devices; d++) {
                const Rdt__Pb__DeviceInfo *device = backend->devices[d];
                uint64_t value = member == 0 ? device->used_bytes : member == 1 ? device->limit_bytes : device->pool_bytes;

                number(text, name, "", LABELS("memory", device->memory, "device", device->uuid), value);
            }
        }
    }
}

static void put_backends(const struct text *text, const struct pages *pages)
{
    static const struct family families[] = {
        {"rdtd_transport_available", "", "1 if the transport can be used.", GAUGE},
        {"rdtd_transport_operations_active", "", "Operations that the transport has not ended.", GAUGE},
        {"rdtd_transport_bytes", "bytes", "Bytes that the transport moved.", COUNTER},
    };

    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        const char *suffix = begin(text, &families[f]);

        for (size_t i = 0; i < pages->n; i++) {
            for (size_t k = 0; k < pages->page[i]->n_backends; k++) {
                const Rdt__Pb__BackendInfo *backend = pages->page[i]->backends[k];
                const uint64_t values[] = {backend->available, backend->ops_active, backend->bytes};

                if (strcmp(backend->kind, "transport") == 0)
                    number(text, families[f].name, suffix, LABELS("transport", backend->name), values[f]);
            }
        }
    }
    put_device_family(text, pages, "rdtd_device_memory_used_bytes", "Memory of the device that the daemon has allocated.", 0);
    put_device_family(text, pages, "rdtd_device_memory_limit_bytes",
                      "The most memory of the device that the daemon may allocate.", 1);
    put_device_family(text, pages, "rdtd_device_memory_pool_bytes", "Memory of the device in the free pool.", 2);
}

/* ---- the whole ---- */

struct answers {
    ProtobufCMessage *status, *metrics, *followers;
    struct pages owners, nodes, backends;
};

static enum rdt_status ask(struct answers *answers, rdt *conn, struct rdt_error *err)
{
    Rdt__Pb__Status status_request = RDT__PB__STATUS__INIT;
    Rdt__Pb__Metrics metrics_request = RDT__PB__METRICS__INIT;
    Rdt__Pb__Followers followers_request = RDT__PB__FOLLOWERS__INIT;
    enum rdt_status status = call(conn, RDT_MSG_STATUS, &status_request.base, CALL_TIMEOUT_NS, &answers->status, err);

    if (status == RDT_OK)
        status = call(conn, RDT_MSG_METRICS, &metrics_request.base, CALL_TIMEOUT_NS, &answers->metrics, err);
    if (status == RDT_OK)
        status = call(conn, RDT_MSG_FOLLOWERS, &followers_request.base, CALL_TIMEOUT_NS, &answers->followers, err);
    if (status == RDT_UNSUPPORTED) /* an earlier daemon, which has none */
        status = RDT_OK;
    if (status == RDT_OK)
        status = pages_get(&answers->owners, conn, RDT__PB__LIST_KIND__LIST_KIND_OWNERS, err);
    if (status == RDT_OK)
        status = pages_get(&answers->nodes, conn, RDT__PB__LIST_KIND__LIST_KIND_PEERS, err);
    if (status == RDT_OK)
        status = pages_get(&answers->backends, conn, RDT__PB__LIST_KIND__LIST_KIND_BACKENDS, err);
    return status;
}

static enum rdt_status write_text(const struct answers *answers, enum rdt_metrics_format format, char **text_p,
                                  struct rdt_error *err)
{
    const Rdt__Pb__MetricsReply *metrics = (const Rdt__Pb__MetricsReply *)answers->metrics;
    char *bytes = NULL;
    size_t size;
    struct text text = {.file = open_memstream(&bytes, &size), .openmetrics = format == RDT_METRICS_OPENMETRICS};

    if (text.file) {
        put_status(&text, (const Rdt__Pb__StatusReply *)answers->status);
        put_process(&text, metrics);
        put_directory(&text, metrics);
        put_etcd(&text, metrics->etcd);
        put_lookups(&text, metrics);
        put_requests(&text, metrics);
        put_transfers(&text, metrics);
        put_owners(&text, &answers->owners);
        put_nodes(&text, &answers->nodes);
        put_backends(&text, &answers->backends);
        if (answers->followers)
            put_followers(&text, (const Rdt__Pb__FollowersReply *)answers->followers);
        if (text.openmetrics)
            fputs("# EOF\n", text.file);
    }
    if (!text.file || fclose(text.file) != 0) {
        free(bytes);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the metrics");
    }
    *text_p = bytes;
    return RDT_OK;
}

enum rdt_status rdt_metrics(rdt *conn, enum rdt_metrics_format format, char **text_p, struct rdt_error *err)
{
    struct answers answers = {0};
    enum rdt_status status = connection_check(conn, err);

    if (status == RDT_OK && !text_p)
        status = rdt_error_set(err, RDT_INVALID, "text_p is NULL");
    if (status == RDT_OK && format != RDT_METRICS_OPENMETRICS && format != RDT_METRICS_PROMETHEUS)
        status = rdt_error_set(err, RDT_INVALID, "metrics format %d is unknown", (int)format);
    if (status == RDT_OK)
        status = ask(&answers, conn, err);
    if (status == RDT_OK)
        status = write_text(&answers, format, text_p, err);
    if (answers.status)
        protobuf_c_message_free_unpacked(answers.status, NULL);
    if (answers.metrics)
        protobuf_c_message_free_unpacked(answers.metrics, NULL);
    if (answers.followers)
        protobuf_c_message_free_unpacked(answers.followers, NULL);
    pages_fini(&answers.owners);
    pages_fini(&answers.nodes);
    pages_fini(&answers.backends);
    return status;
}
