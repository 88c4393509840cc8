#include "daemon/copy.h"

#include <stdlib.h>

bool copy_init(struct copy *copy, const struct layout *source, uint32_t n_from, const struct layout *target, uint32_t n_to)
{
    *copy = (struct copy){.source = source, .target = target};
    copy->from = calloc(n_from + 1u, sizeof *copy->from);
    copy->to = calloc(n_to + 1u, sizeof *copy->to);
    if (copy->from && copy->to)
        return true;
    copy_fini(copy);
    return false;
}

void copy_fini(struct copy *copy)
{
    free(copy->from);
    free(copy->to);
    copy->from = copy->to = NULL;
}

enum rdt_status copy_place(struct copy_place *place, struct region *region, struct rdt_error *err)
{
    place->base = region_addr(region, err);
    place->kind = region->kind;
    return place->base ? RDT_OK : err->status;
}

static void copy_piece(const struct copy *copy, uint32_t i, uint64_t bytes)
{
    const struct copy_place *from = &copy->from[copy->source->region[i]], *to = &copy->to[copy->target->region[i]];
    uint8_t *where = to->base + copy->target->offset[i] + copy->at;

    if (layout_is_contiguous(copy->source, i)) /* the memory's own way is the fastest */
        (void)from->kind->ops.copy(from->kind->instance, where, from->base + copy->source->offset[i] + copy->at, bytes, NULL);
    else
        layout_gather(copy->source, i, from->base, copy->at, bytes, where);
}

void copy_step(struct copy *copy)
{
    copy->copied = 0;
    while (copy->tensor < copy->source->count && copy->copied < COPY_STEP_BYTES) {
        uint32_t i = copy->tensor;
        uint64_t bytes = layout_bytes(copy->source, i), left = bytes - copy->at;
        uint64_t now = left < COPY_STEP_BYTES - copy->copied ? left : COPY_STEP_BYTES - copy->copied;
        if (bytes > 0 && !copy->to[copy->target->region[i]].base) {
            now = left; /* left out */
        } else if (now > 0) {
            copy_piece(copy, i, now);
            copy->copied += now;
        }
        copy->at += now;
        if (now == left) {
            copy->tensor++;
            copy->at = 0;
        }
    }
}

bool copy_ended(const struct copy *copy)
{
    return copy->tensor == copy->source->count;
}
