/* SPDX-License-Identifier: Apache-2.0 */
/* The default of memory_limit: half of the smaller of RAM and the limits of the daemon's control groups. */
#include <unistd.h>

#include "daemon/base/memory_room.h"
#include "daemon/config/options_keys.h"

uint64_t options_effective_memory_limit(const struct options *options)
{
    if (options->memory_limit_bytes != 0)
        return options->memory_limit_bytes;
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t ram = pages > 0 ? (uint64_t)pages * (uint64_t)page_bytes : UINT64_MAX;
    uint64_t group = memory_group_limit_bytes("/proc/self/cgroup", "/sys/fs/cgroup");
    return (group < ram ? group : ram) / 2;
}

uint64_t options_effective_cache_max(const struct options *options, uint64_t memory_limit)
{
    return options->cache_max_bytes != 0 ? options->cache_max_bytes : memory_limit / 2;
}
