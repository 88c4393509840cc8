/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/copy.h"

#include <stdlib.h>

bool copy_init(struct copy *copy, const struct layout *source, uint32_t n_from, const struct layout *target, uint32_t n_to)
{
    uint64_t bytes = layout_total_bytes(source);

    *copy = (struct copy){.source = source, .target = target};
    copy->step_bytes = bytes < COPY_CACHED_BYTES ? COPY_CACHED_STEP_BYTES : COPY_STEP_BYTES;
    (void)pthread_mutex_init(&copy->mutex, NULL);
    copy->from = calloc(n_from + 1u, sizeof *copy->from);
    copy->to = calloc(n_to + 1u, sizeof *copy->to);
    if (copy->from && copy->to)
        return true;
    copy_fini(copy);
    return false;
}

void copy_fini(struct copy *copy)
{
    if (copy->source) /* it was initialised */
        (void)pthread_mutex_destroy(&copy->mutex);
    copy->source = NULL;
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

static const struct copy_place *from_of(const struct copy *copy, uint32_t i)
{
    return &copy->from[copy->source->region[i]];
}

static const struct copy_place *to_of(const struct copy *copy, uint32_t i)
{
    return &copy->to[copy->target->region[i]];
}

/* Whether tensor i + 1 begins where tensor i ends, in the source and in the target. */
static bool adjoins(const struct copy *copy, uint32_t i)
{
    const struct layout *source = copy->source, *target = copy->target;
    uint64_t bytes = layout_bytes(source, i);

    return source->region[i] == source->region[i + 1] && source->offset[i] + bytes == source->offset[i + 1] &&
           target->region[i] == target->region[i + 1] && target->offset[i] + bytes == target->offset[i + 1] &&
           layout_is_contiguous(source, i + 1);
}

/* Copies at most `most` bytes from byte `at` of tensor *i_p on. Adjoining tensors are copied as one. Returns the number of
 * bytes copied, with *i_p at the last tensor that it copied from. */
static uint64_t copy_piece(const struct copy *copy, uint32_t *i_p, uint64_t at, uint64_t most)
{
    uint32_t i = *i_p;
    const struct copy_place *from = from_of(copy, i), *to = to_of(copy, i);
    uint64_t bytes = layout_bytes(copy->source, i) - at;
    uint8_t *where = to->base + copy->target->offset[i] + at;

    if (!layout_is_contiguous(copy->source, i)) {
        bytes = bytes < most ? bytes : most;
        layout_gather(copy->source, i, from->base, at, bytes, where);
        return bytes;
    }
    while (bytes < most && *i_p + 1 < copy->source->count && adjoins(copy, *i_p))
        bytes += layout_bytes(copy->source, ++*i_p);
    bytes = bytes < most ? bytes : most;
    (void)from->kind->ops.copy(from->kind->instance, where, from->base + copy->source->offset[i] + at, bytes, NULL);
    return bytes;
}

static bool is_left_out(const struct copy *copy, uint32_t i)
{
    return layout_bytes(copy->source, i) == 0 || !to_of(copy, i)->base || !from_of(copy, i)->base;
}

struct step {
    uint32_t tensor;
    uint64_t at, bytes;
};

/* Takes the next step, which has 0 bytes if there is none. Returns whether another follows. */
static bool take_step(struct copy *copy, struct step *step_p)
{
    bool more;

    (void)pthread_mutex_lock(&copy->mutex);
    *step_p = (struct step){.tensor = copy->tensor, .at = copy->at};
    while (copy->tensor < copy->source->count && step_p->bytes < copy->step_bytes && !atomic_load(&copy->stop)) {
        uint64_t left = layout_bytes(copy->source, copy->tensor) - copy->at, room = copy->step_bytes - step_p->bytes;
        if (is_left_out(copy, copy->tensor) || left <= room) {
            step_p->bytes += is_left_out(copy, copy->tensor) ? 0 : left;
            copy->tensor++;
            copy->at = 0;
        } else {
            step_p->bytes += room;
            copy->at += room;
        }
    }
    more = copy->tensor < copy->source->count && !atomic_load(&copy->stop);
    (void)pthread_mutex_unlock(&copy->mutex);
    return more;
}

bool copy_step(struct copy *copy)
{
    struct step step;
    bool more = take_step(copy, &step);

    for (uint64_t done = 0; done < step.bytes; step.tensor++, step.at = 0)
        if (!is_left_out(copy, step.tensor))
            done += copy_piece(copy, &step.tensor, step.at, step.bytes - done);
    atomic_fetch_add(&copy->copied, step.bytes);
    return more;
}

unsigned copy_threads(const struct copy *copy, unsigned n)
{
    uint64_t steps = layout_total_bytes(copy->source) / copy->step_bytes;

    return steps < 2 ? 1 : steps < n ? (unsigned)steps : n;
}

bool copy_ended(struct copy *copy)
{
    bool ended;

    (void)pthread_mutex_lock(&copy->mutex);
    ended = copy->tensor == copy->source->count;
    (void)pthread_mutex_unlock(&copy->mutex);
    return ended;
}
