/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/limits.h"

#include <stdio.h>
#include <sys/resource.h>

#define OWN_FDS 256u /* listeners, peers, backends, logs */
/* descriptors that clients may send before the daemon can refuse them, so that the kernel never drops one */
#define SENT_FDS 1024u
#define UNCOUNTED_BYTES (UINT64_C(256) << 10)
#define OWN_SPACE_BYTES (UINT64_C(512) << 20)   /* address space for libraries, threads, the heap and free memory */
#define ADDRESS_SPACE_BYTES (UINT64_C(1) << 47) /* of a process on x86-64; others have at least as much */

uint64_t limits_raise_open_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 1024;
    if (limit.rlim_cur < limit.rlim_max) {
        struct rlimit most = {limit.rlim_max, limit.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &most) == 0)
            limit = most;
    }
    return limit.rlim_cur;
}

static uint64_t kernel_limit(const char *path, uint64_t fallback)
{
    FILE *file = fopen(path, "re");
    unsigned long long limit = 0;

    if (file && fscanf(file, "%llu", &limit) != 1)
        limit = 0;
    if (file)
        (void)fclose(file);
    return limit > 0 ? limit : fallback;
}

uint64_t limits_file_bytes(void)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY ? limit.rlim_cur : UINT64_MAX;
}

/* The kernel watches so many files for the user of this daemon: orphaned memory takes one each. */
static uint64_t max_watches(void)
{
    return kernel_limit("/proc/sys/fs/inotify/max_user_watches", 8192);
}

static uint64_t three_quarters(uint64_t all)
{
    return all - all / 4;
}

/* Regions get three quarters of what the kernel lets this process map. Libraries, threads, the heap and the pool of free memory
 * need the rest. */
static uint64_t max_mappings(void)
{
    return three_quarters(kernel_limit("/proc/sys/vm/max_map_count", 65530));
}

/* Of little address space the daemon itself needs more than a quarter. */
static uint64_t max_mapped_bytes(void)
{
    struct rlimit limit;
    uint64_t most = ADDRESS_SPACE_BYTES, own;

    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < most)
        most = limit.rlim_cur;
    own = most / 4 > OWN_SPACE_BYTES ? most / 4 : most / 2 < OWN_SPACE_BYTES ? most / 2 : OWN_SPACE_BYTES;
    return most - own;
}

static uint64_t seven_eighths(uint64_t all)
{
    return all - all / 8;
}

void limits_derive(const struct options *options, uint64_t open_files, struct account_limits *limits)
{
    uint64_t heap = options_heap_limit(), share = heap / (4 * (uint64_t)options->max_clients);
    uint64_t reserve = OWN_FDS + SENT_FDS + 2ull * options->max_clients; /* a socket and a pidfd each */

    if (reserve > open_files / 2)
        reserve = open_files / 2;
    *limits = (struct account_limits){.node[USAGE_FDS] = open_files - reserve,
                                      .node[USAGE_OBJECTS] = options->max_objects,
                                      .node[USAGE_GROUPS] = LIMITS_GROUPS,
                                      .node[USAGE_SESSIONS] = options->max_clients + LIMITS_MORE_CONNECTIONS,
                                      .node[USAGE_HEAP] = heap,
                                      .uncounted_bytes = UNCOUNTED_BYTES,
                                      .node[USAGE_MAPPINGS] = max_mappings(),
                                      .node[USAGE_MAPPED_BYTES] = max_mapped_bytes(),
                                      .node[USAGE_ORPHANS] = seven_eighths(max_watches()),
                                      .node[USAGE_STORED_BYTES] = options->storage_max_bytes,
                                      .node[USAGE_FOLLOWED_BYTES] = options_effective_memory_limit(options)};
    for (unsigned i = 0; i < USAGE_COUNT; i++) {
        limits->client[i] = options->client_max[i];
        limits->owner[i] = options->owner_max[i];
    }
    if (limits->uncounted_bytes > share)
        limits->uncounted_bytes = share;
    /* What all users together may have bounds each of them, and the error then names that. */
    if (limits->owner[USAGE_HEAP] == 0 || limits->owner[USAGE_HEAP] > heap)
        limits->owner[USAGE_HEAP] = heap;
    if (limits->client[USAGE_HEAP] == 0 || limits->client[USAGE_HEAP] > heap)
        limits->client[USAGE_HEAP] = heap;
    if (limits->client[USAGE_OBJECTS] == 0)
        limits->client[USAGE_OBJECTS] = seven_eighths(options->max_objects);
    if (limits->owner[USAGE_OBJECTS] == 0)
        limits->owner[USAGE_OBJECTS] = options->max_objects;
    if (limits->owner[USAGE_NAMES] == 0) /* as many as a home of names has records, with the default of max_objects */
        limits->owner[USAGE_NAMES] = options->max_objects / 4 + 1;
    if (limits->client[USAGE_FDS] == 0)
        limits->client[USAGE_FDS] = seven_eighths(limits->node[USAGE_FDS]);
    for (unsigned i = USAGE_MAPPINGS; i <= USAGE_MAPPED_BYTES; i++) {
        limits->client[i] = limits->client[i] ? limits->client[i] : seven_eighths(limits->node[i]);
        limits->owner[i] = limits->owner[i] ? limits->owner[i] : limits->node[i];
    }
    if (limits->owner[USAGE_ORPHANS] == 0)
        limits->owner[USAGE_ORPHANS] = max_watches() / 4;
    if (limits->owner[USAGE_FOLLOWED_BYTES] == 0)
        limits->owner[USAGE_FOLLOWED_BYTES] = limits->node[USAGE_FOLLOWED_BYTES];
    if (limits->owner[USAGE_FDS] == 0)
        limits->owner[USAGE_FDS] = limits->node[USAGE_FDS];
}
