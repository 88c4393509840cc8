/* SPDX-License-Identifier: Apache-2.0 */
/* The shares of the daemon's memory, which is the smaller of RAM and the limits of its control groups: half is the default of
 * memory_limit, and a quarter is for the heap. The rest is for the daemon's code, its sockets, its backends, and free memory
 * that malloc cannot return. */
#include <unistd.h>

#include "daemon/base/memory_room.h"
#include "daemon/config/options_keys.h"

static uint64_t all_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t ram = pages > 0 ? (uint64_t)pages * (uint64_t)page_bytes : UINT64_MAX;
    uint64_t group = memory_group_limit_bytes("/proc/self/cgroup", "/sys/fs/cgroup");

    return group < ram ? group : ram;
}

uint64_t options_heap_limit(void)
{
    return all_memory() / 4;
}

uint64_t options_effective_memory_limit(const struct options *options)
{
    if (options->memory_limit_bytes != 0)
        return options->memory_limit_bytes;
    return all_memory() / 2;
}

uint64_t options_effective_cache_max(const struct options *options, uint64_t memory_limit)
{
    return options->cache_max_bytes != 0 ? options->cache_max_bytes : memory_limit / 2;
}
