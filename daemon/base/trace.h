/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of records that is always on: when which transfer entered which stage. The newest records replace the oldest. Noting
 * one costs a look at the clock and a copy of two cache lines, without allocation; everything else is done by whoever reads the
 * ring. */
#ifndef DAEMON_TRACE_H
#define DAEMON_TRACE_H

#include <stdint.h>

#define TRACE_RECORDS 8192u /* 1 MiB: some seconds of a busy node, hours of an idle one */

struct trace_record {
    uint64_t at_ns, transfer, node, generation, bytes;
    const char *stage, *direction; /* texts that are never freed */
    char path[16], peer[16];       /* zero-terminated if they are shorter */
    char id[32];
    uint32_t uid, tenant; /* who may see it */
};

struct trace {
    struct trace_record records[TRACE_RECORDS];
    uint64_t n; /* that were noted since the start; record i is in slot i modulo TRACE_RECORDS */
};

/* The record to fill in. */
static inline struct trace_record *trace_next(struct trace *trace)
{
    return &trace->records[trace->n++ % TRACE_RECORDS];
}

/* The number of the oldest record that is still there. */
static inline uint64_t trace_oldest(const struct trace *trace)
{
    return trace->n > TRACE_RECORDS ? trace->n - TRACE_RECORDS : 0;
}

/* A tenant's name as a number (FNV-1a). */
static inline uint32_t trace_tenant(const char *tenant)
{
    uint32_t hash = 2166136261u;

    for (; *tenant; tenant++)
        hash = (hash ^ (unsigned char)*tenant) * 16777619u;
    return hash;
}

#endif
