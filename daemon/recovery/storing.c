/* SPDX-License-Identifier: Apache-2.0 */
/* Sends descriptors to the keeper, many in one packet. */
#include "daemon/memory/region.h"
#include "daemon/recovery/recovery_impl.h"

void recovery_store_end(struct recovery *recovery, struct storing *storing)
{
    if (storing->n > 0)
        keeper_link_store(&recovery->link, storing->ids, storing->fds, storing->n);
    storing->n = 0;
}

void recovery_store(struct recovery *recovery, struct storing *storing, uint64_t id, int fd)
{
    if (storing->n == KEEPER_MAX_IDS)
        recovery_store_end(recovery, storing);
    storing->ids[storing->n] = id;
    storing->fds[storing->n++] = fd;
}

void recovery_store_region(struct recovery *recovery, struct storing *storing, const struct region *region)
{
    const int *fds;
    uint32_t n;

    if (region_kept_fds(region, &fds, &n))
        for (uint32_t i = 0; i < n; i++)
            recovery_store(recovery, storing, keeper_id(region->id, i), fds[i]);
}
