/* SPDX-License-Identifier: Apache-2.0 */
/* METRICS: counters that neither STATUS nor the lists have. A client joins them with these (client/metrics.c). */
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/view/view.h"

static Rdt__Pb__Histogram *histogram(struct arena *arena, struct histogram *from)
{
    Rdt__Pb__Histogram *to = arena_message(arena, &rdt__pb__histogram__descriptor);

    if (!to)
        return NULL;
    to->n_counts = HISTOGRAM_BUCKETS;
    to->counts = from->counts;
    to->sum_ns = from->sum_ns;
    return to;
}

static uint64_t total(const struct histogram *histogram)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++)
        n += histogram->counts[i];
    return n;
}

static bool add_failures(struct arena *arena, const struct request_metrics *from, Rdt__Pb__VerbMetrics *to)
{
    to->failures = arena_messages(arena, &rdt__pb__failures__descriptor, RPC_STATUSES);
    for (unsigned i = 1; to->failures && i < RPC_STATUSES; i++) {
        if (from->failures[i] == 0)
            continue;
        to->failures[to->n_failures]->status = -(int32_t)i;
        to->failures[to->n_failures++]->count = from->failures[i];
    }
    return to->failures != NULL;
}

static bool add_verbs(struct arena *arena, struct rpc *rpc, Rdt__Pb__MetricsReply *reply)
{
    reply->verbs = arena_messages(arena, &rdt__pb__verb_metrics__descriptor, RPC_VERBS);
    for (unsigned type = 0; reply->verbs && type < RPC_VERBS; type++) {
        struct request_metrics *from = &rpc->meters.requests[type];
        Rdt__Pb__VerbMetrics *row = reply->verbs[reply->n_verbs];

        if (total(&from->duration) == 0)
            continue;
        row->verb = (char *)verb_find(type)->name;
        row->duration = histogram(arena, &from->duration);
        if (!row->duration || !add_failures(arena, from, row))
            return false;
        reply->n_verbs++;
    }
    return reply->verbs != NULL;
}

static bool add_paths(struct arena *arena, struct transfers *transfers, Rdt__Pb__MetricsReply *reply)
{
    reply->paths = arena_messages(arena, &rdt__pb__path_metrics__descriptor, TRANSFER_PATHS);
    for (unsigned i = 0; reply->paths && i < TRANSFER_PATHS; i++) {
        struct transfer_path *from = &transfers->past.paths[i];
        Rdt__Pb__PathMetrics *row = reply->paths[reply->n_paths];

        if (!from->direction)
            continue;
        row->path = from->name;
        row->direction = (char *)from->direction;
        row->bytes = from->bytes;
        row->duration = histogram(arena, &from->duration);
        if (!row->duration)
            return false;
        row->failed = from->ended[TRANSFER_FAILED];
        row->cancelled = from->ended[TRANSFER_CANCELLED];
        row->timed_out = from->ended[TRANSFER_TIMED_OUT];
        reply->n_paths++;
    }
    return reply->paths != NULL;
}

static void add_process(Rdt__Pb__MetricsReply *reply)
{
    FILE *file = fopen("/proc/self/statm", "re");
    struct rusage usage;
    uint64_t pages;

    if (file && fscanf(file, "%*u %" SCNu64, &pages) == 1)
        reply->resident_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    if (file)
        (void)fclose(file);
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        reply->cpu_ns = ((uint64_t)usage.ru_utime.tv_sec + (uint64_t)usage.ru_stime.tv_sec) * 1000000000u +
                        ((uint64_t)usage.ru_utime.tv_usec + (uint64_t)usage.ru_stime.tv_usec) * 1000u;
}

enum rdt_status rpc_metrics(struct call *call, const void *request, struct rdt_error *err)
{
    Rdt__Pb__MetricsReply reply = RDT__PB__METRICS_REPLY__INIT;
    uint64_t bounds_ns[HISTOGRAM_BUCKETS - 1];
    struct rpc *rpc = call->rpc;
    Rdt__Pb__EtcdInfo etcd = rpc->directory->etcd_info;

    for (unsigned i = 0; i < HISTOGRAM_BUCKETS - 1; i++)
        bounds_ns[i] = histogram_bound_ns(i);
    reply.n_bounds_ns = HISTOGRAM_BUCKETS - 1;
    reply.bounds_ns = bounds_ns;
    reply.loop_busy = histogram(call->request.arena, &rpc->meters.loop_meter.busy);
    if (!reply.loop_busy || !add_verbs(call->request.arena, rpc, &reply) ||
        !add_paths(call->request.arena, rpc->transfers, &reply))
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the metrics");
    reply.waited_for_room = rpc->objects->accounts->n_waited;
    reply.waiting_for_room = rpc->objects->accounts->n_waiting;
    reply.providers = nodes_providers(rpc->directory, call->request.arena, &reply.n_providers);
    if (!reply.providers)
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for the metrics");
    if (rpc->directory->providers[DIRECTORY_ETCD].active)
        reply.etcd = &etcd;
    reply.names_found = rpc->directory_names->n_found;
    reply.names_missing = rpc->directory_names->n_missing;
    reply.names_remembered = rpc->directory_names->n_by_memory;
    reply.names_refused = rpc->directory_names->n_refused;
    add_process(&reply);
    call_reply(call, &reply.base, NULL, 0);
    return RDT_OK;
}
