/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/limits.h"

#include <stdio.h>
#include <sys/resource.h>

#define OWN_FDS 256u /* listeners, peers, backends, logs */
/* descriptors that clients may send before the daemon can refuse them, so that the kernel never drops one */
#define SENT_FDS 1024u

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

/* The kernel watches so many files for the user of this daemon: orphaned memory takes one each. */
static uint64_t max_watches(void)
{
    FILE *file = fopen("/proc/sys/fs/inotify/max_user_watches", "re");
    unsigned long long watches = 0;

    if (file && fscanf(file, "%llu", &watches) != 1)
        watches = 0;
    if (file)
        (void)fclose(file);
    return watches > 0 ? watches : 8192;
}

static uint64_t seven_eighths(uint64_t all)
{
    return all - all / 8;
}

void limits_derive(const struct options *options, uint64_t open_files, struct account_limits *limits)
{
    uint64_t reserve = OWN_FDS + SENT_FDS + 2ull * options->max_clients; /* a socket and a pidfd each */

    if (reserve > open_files / 2)
        reserve = open_files / 2;
    *limits = (struct account_limits){.node[USAGE_FDS] = open_files - reserve,
                                      .node[USAGE_OBJECTS] = options->max_objects,
                                      .node[USAGE_GROUPS] = LIMITS_GROUPS,
                                      .node[USAGE_STORED_BYTES] = options->storage_max_bytes};
    for (unsigned i = 0; i < USAGE_COUNT; i++) {
        limits->client[i] = options->client_max[i];
        limits->owner[i] = options->owner_max[i];
    }
    if (limits->client[USAGE_OBJECTS] == 0)
        limits->client[USAGE_OBJECTS] = seven_eighths(options->max_objects);
    if (limits->owner[USAGE_OBJECTS] == 0)
        limits->owner[USAGE_OBJECTS] = options->max_objects;
    if (limits->client[USAGE_FDS] == 0)
        limits->client[USAGE_FDS] = seven_eighths(limits->node[USAGE_FDS]);
    if (limits->owner[USAGE_ORPHANS] == 0)
        limits->owner[USAGE_ORPHANS] = max_watches() / 4;
    if (limits->owner[USAGE_FDS] == 0)
        limits->owner[USAGE_FDS] = limits->node[USAGE_FDS];
}
