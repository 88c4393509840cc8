/* See stage.h. Pinning and unpinning run on the work pool, because the time they take grows with the memory. */
#include "daemon/transports/stage.h"

#include <stdlib.h>

struct making {
    struct work work; /* first */
    struct stage *stage;
    stage_ready on_ready;
    void *arg;
};

/* ---- the end ---- */

static void run_unpin(struct work *work)
{
    struct stage *stage = ((struct making *)work)->stage;

    stage->kind->ops.unpin(stage->kind->instance, stage->pin);
}

static void finish(struct stage *stage)
{
    memory_kind_unuse(stage->kind);
    region_unref(stage->region);
    free(stage);
}

static void done_unpin(struct work *work)
{
    finish(((struct making *)work)->stage);
    free(work);
}

void stage_put(struct stage *stage)
{
    struct making *ending;

    if (!stage)
        return;
    ending = stage->pinned ? calloc(1, sizeof *ending) : NULL;
    if (ending) {
        ending->work = (struct work){.run = run_unpin, .done = done_unpin};
        ending->stage = stage;
        work_submit(stage->region->regions->pool, &ending->work);
        return;
    }
    if (stage->pinned)
        stage->kind->ops.unpin(stage->kind->instance, stage->pin);
    finish(stage);
}

/* ---- making ---- */

static void run_pin(struct work *work)
{
    struct stage *stage = ((struct making *)work)->stage;
    const struct rdt_memory_ops *ops = &stage->kind->ops;

    stage->pinned = ops->pin && ops->pin(stage->kind->instance, stage->region->block.addr, stage->region->room, &stage->pin,
                                         NULL) == RDT_OK;
}

static void done_pin(struct work *work)
{
    struct making *making = (struct making *)work;

    making->on_ready(making->arg, making->stage, NULL);
    free(making);
}

static void pin(struct making *making)
{
    making->work = (struct work){.run = run_pin, .done = done_pin};
    work_submit(making->stage->region->regions->pool, &making->work);
}

static void on_memory(void *arg, struct region *region, const struct rdt_error *err)
{
    struct making *making = arg;
    struct rdt_error why = {0};

    making->stage->region = region;
    if (!err && region_addr(region, &why)) {
        pin(making);
        return;
    }
    making->on_ready(making->arg, NULL, err ? err : &why);
    finish(making->stage);
    free(making);
}

enum rdt_status stage_get(struct regions *regions, struct memory_kind *kind, uint32_t slots, uint64_t slot_bytes,
                          struct account *account, stage_ready on_ready, void *arg, struct rdt_error *err)
{
    struct stage *stage;
    struct making *making;
    enum rdt_status status;

    if (slots > STAGE_MAX_SLOTS)
        slots = STAGE_MAX_SLOTS;
    stage = calloc(1, sizeof *stage);
    making = calloc(1, sizeof *making);
    if (!stage || !making) {
        free(stage);
        free(making);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to stage what lies on a device");
    }
    stage->kind = kind;
    memory_kind_use(kind);
    stage->slots = slots;
    stage->slot_bytes = slot_bytes;
    *making = (struct making){.stage = stage, .on_ready = on_ready, .arg = arg};
    status = region_alloc(regions, "host", "", slots * slot_bytes, REGION_STAGING, account, 0, &stage->region, on_memory,
                          making, err);
    if (status == RDT_AGAIN)
        return status;
    if (status == RDT_OK && !region_addr(stage->region, err))
        status = err ? err->status : RDT_SYSTEM;
    if (status != RDT_OK) {
        rdt_error_prefix(err, "to stage what lies on a device");
        finish(stage);
        free(making);
        return status;
    }
    pin(making);
    return RDT_AGAIN;
}

/* ---- slots ---- */

uint8_t *stage_take(struct stage *stage)
{
    for (uint32_t i = 0; i < stage->slots; i++)
        if (!(stage->busy & 1u << i)) {
            stage->busy |= 1u << i;
            return (uint8_t *)stage->region->block.addr + i * stage->slot_bytes;
        }
    return NULL;
}

void stage_give(struct stage *stage, const uint8_t *slot)
{
    stage->busy &= ~(1u << (uint64_t)(slot - (uint8_t *)stage->region->block.addr) / stage->slot_bytes);
}

unsigned stage_free_slots(const struct stage *stage)
{
    return stage->slots - (unsigned)__builtin_popcount(stage->busy);
}
