/* SPDX-License-Identifier: Apache-2.0 */
/* See stage.h. Pinning and unpinning run on the work pool, because the time they take grows with the memory. */
#include "daemon/transports/stage.h"

#include <stdlib.h>

struct stage_work {
    struct work work; /* first */
    struct stage *stage;
    stage_ready on_ready;
    void *arg;
};

/* ---- destroying ---- */

static void run_unpin(struct work *work)
{
    struct stage *stage = ((struct stage_work *)work)->stage;

    stage->kind->ops.unpin(stage->kind->instance, stage->pin);
}

static void free_stage(struct stage *stage)
{
    memory_kind_unuse(stage->kind);
    region_unref(stage->region);
    free(stage);
}

static void done_unpin(struct work *work)
{
    free_stage(((struct stage_work *)work)->stage);
    free(work);
}

void stage_destroy(struct stage *stage)
{
    struct stage_work *unpinning;

    if (!stage)
        return;
    unpinning = stage->pinned ? calloc(1, sizeof *unpinning) : NULL;
    if (unpinning) {
        unpinning->work = (struct work){.run = run_unpin, .done = done_unpin};
        unpinning->stage = stage;
        work_submit(stage->region->regions->pool, &unpinning->work);
        return;
    }
    if (stage->pinned)
        stage->kind->ops.unpin(stage->kind->instance, stage->pin);
    free_stage(stage);
}

/* ---- creating ---- */

static void run_pin(struct work *work)
{
    struct stage *stage = ((struct stage_work *)work)->stage;
    const struct rdt_memory_ops *ops = &stage->kind->ops;

    stage->pinned = ops->pin && ops->pin(stage->kind->instance, stage->region->block.addr, stage->region->room, &stage->pin,
                                         NULL) == RDT_OK;
}

static void done_pin(struct work *work)
{
    struct stage_work *creation = (struct stage_work *)work;

    creation->on_ready(creation->arg, creation->stage, NULL);
    free(creation);
}

static void pin(struct stage_work *creation)
{
    creation->work = (struct work){.run = run_pin, .done = done_pin};
    work_submit(creation->stage->region->regions->pool, &creation->work);
}

static void on_memory(void *arg, struct region *region, const struct rdt_error *err)
{
    struct stage_work *creation = arg;
    struct rdt_error why = {0};

    creation->stage->region = region;
    if (!err && region_addr(region, &why)) {
        pin(creation);
        return;
    }
    creation->on_ready(creation->arg, NULL, err ? err : &why);
    free_stage(creation->stage);
    free(creation);
}

enum rdt_status stage_create(struct regions *regions, struct memory_kind *kind, uint32_t slots, uint64_t slot_bytes,
                             struct account *account, stage_ready on_ready, void *arg, struct rdt_error *err)
{
    struct stage *stage;
    struct stage_work *creation;
    enum rdt_status status;

    if (slots > STAGE_MAX_SLOTS)
        slots = STAGE_MAX_SLOTS;
    stage = calloc(1, sizeof *stage);
    creation = calloc(1, sizeof *creation);
    if (!stage || !creation) {
        free(stage);
        free(creation);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to stage tensors of a device");
    }
    stage->kind = kind;
    memory_kind_use(kind);
    stage->slots = slots;
    stage->slot_bytes = slot_bytes;
    *creation = (struct stage_work){.stage = stage, .on_ready = on_ready, .arg = arg};
    status = region_alloc(regions, "host", "", slots * slot_bytes, REGION_STAGING, account, 0, &stage->region, on_memory,
                          creation, err);
    if (status == RDT_AGAIN)
        return status;
    if (status == RDT_OK && !region_addr(stage->region, err))
        status = err ? err->status : RDT_SYSTEM;
    if (status != RDT_OK) {
        rdt_error_prefix(err, "cannot stage tensors of a device");
        free_stage(stage);
        free(creation);
        return status;
    }
    pin(creation);
    return RDT_AGAIN;
}

/* ---- slots ---- */

uint8_t *stage_take_slot(struct stage *stage)
{
    for (uint32_t i = 0; i < stage->slots; i++)
        if (!(stage->busy & 1u << i)) {
            stage->busy |= 1u << i;
            return (uint8_t *)stage->region->block.addr + i * stage->slot_bytes;
        }
    return NULL;
}

void stage_return_slot(struct stage *stage, const uint8_t *slot)
{
    stage->busy &= ~(1u << (uint64_t)(slot - (uint8_t *)stage->region->block.addr) / stage->slot_bytes);
}

unsigned stage_free_slots(const struct stage *stage)
{
    return stage->slots - (unsigned)__builtin_popcount(stage->busy);
}
