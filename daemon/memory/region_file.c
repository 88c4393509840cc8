/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/region_file.h"

#include <stdlib.h>

#include "daemon/memory/region_impl.h"

#define PIECE_BYTES (UINT64_C(8) << 20) /* read ahead in one turn of the pool */

enum rdt_status region_open_file(struct regions *regions, int take_fd, uint64_t bytes, struct account *account,
                                 struct region **region_p, struct rdt_error *err)
{
    struct memory_kind *kind;
    struct region *region;
    enum rdt_status status = regions_find_kind(regions, "host", &kind, err);

    if (status == RDT_OK && !kind->ops.restore)
        status = rdt_error_set(err, RDT_UNSUPPORTED, "memory kind %s cannot map files", kind->name);
    if (status == RDT_OK)
        status = region_new(regions, kind, NULL, bytes, REGION_FILE, account, 0, 1, &region, err);
    if (status != RDT_OK)
        return status;
    status = kind->ops.restore(kind->instance, RDT_RESTORE_FILE, take_fd, 0, bytes, &region->block, err);
    if (status != RDT_OK) {
        region_cancel(region);
        return status;
    }
    region->reach.seal = REGION_SEALED;
    *region_p = region;
    return RDT_OK;
}

struct reading {
    struct work work; /* first */
    struct region *region;
    uint64_t at;
};

static void run_reading(struct work *work)
{
    struct reading *reading = (struct reading *)work;
    struct region *region = reading->region;
    uint64_t left = region->bytes - reading->at, bytes = left < PIECE_BYTES ? left : PIECE_BYTES;

    if (region->regions->files_closed)
        return;
    (void)readahead(region->block.fd, (off_t)reading->at, bytes);
    reading->at += bytes;
    work->again = reading->at < region->bytes;
}

static void done_reading(struct work *work)
{
    region_unref(((struct reading *)work)->region);
    free(work);
}

void region_file_read_ahead(struct region *region)
{
    struct work_pool *pool = region->regions->file_pool;
    struct reading *reading;

    if (region->read_ahead || !pool || region->regions->files_closed)
        return;
    reading = calloc(1, sizeof *reading);
    if (!reading)
        return; /* page faults will read it */
    region->read_ahead = true;
    reading->region = region_ref(region);
    reading->work = (struct work){.run = run_reading, .done = done_reading, .lane = region->id};
    work_submit(pool, &reading->work);
}
