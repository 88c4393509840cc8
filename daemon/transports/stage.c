/* SPDX-License-Identifier: Apache-2.0 */
/* See stage.h. */
#include "daemon/transports/stage.h"

#include <stdlib.h>

struct stage_work {
    struct stage *stage;
    stage_ready on_ready;
    void *arg;
};

static void free_stage(struct stage *stage)
{
    memory_kind_unuse(stage->kind);
    region_unref(stage->region);
    free(stage);
}

void stage_destroy(struct stage *stage)
{
    if (stage)
        free_stage(stage);
}

/* ---- creating ---- */

static void on_pinned(void *arg, struct region *region, const struct rdt_error *err)
{
    struct stage_work creation = *(struct stage_work *)arg;

    free(arg);
    creation.on_ready(creation.arg, creation.stage, NULL);
}

static void on_memory(void *arg, struct region *region, const struct rdt_error *err)
{
    struct stage_work *creation = arg;
    struct rdt_error why = {0};

    creation->stage->region = region;
    if (!err && region_addr(region, &why) &&
        region_pin_for(region, creation->stage->kind, on_pinned, creation, &why) == RDT_AGAIN)
        return;
    creation->on_ready(creation->arg, NULL, err ? err : &why);
    free_stage(creation->stage);
    free(creation);
}

enum rdt_status stage_create(struct regions *regions, const struct region *region, uint32_t slots, uint64_t slot_bytes,
                             struct account *account, stage_ready on_ready, void *arg, struct rdt_error *err)
{
    unsigned home = region->device ? (unsigned)(region->device->numa_node + 1) : 0;
    struct memory_kind *kind = region->kind;
    char node[HOME_TEXT_BYTES];
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
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory to stage tensors");
    }
    stage->kind = kind;
    memory_kind_use(kind);
    stage->slots = slots;
    stage->slot_bytes = slot_bytes;
    *creation = (struct stage_work){.stage = stage, .on_ready = on_ready, .arg = arg};
    status = region_alloc(regions, "host", home_text(home, node), slots * slot_bytes, REGION_STAGE, account, 0, &stage->region,
                          on_memory, creation, err);
    if (status == RDT_AGAIN)
        return status;
    if (status == RDT_OK && !region_addr(stage->region, err))
        status = err ? err->status : RDT_SYSTEM;
    if (status == RDT_OK)
        status = region_pin_for(stage->region, kind, on_pinned, creation, err);
    if (status != RDT_AGAIN) {
        rdt_error_prefix(err, "cannot stage the tensors");
        free_stage(stage);
        free(creation);
    }
    return status;
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

bool stage_is_pinned(const struct stage *stage)
{
    return region_is_pinned_for(stage->region, stage->kind);
}
