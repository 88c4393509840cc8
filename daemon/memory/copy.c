/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/copy.h"

#include <errno.h>
#include <stdlib.h>

#define BUFFER_BYTES ((uint64_t)256 << 10)

bool copy_init(struct copy *copy, const struct layout *source, uint32_t n_from, const struct layout *target, uint32_t n_to)
{
    *copy = (struct copy){.source = source, .target = target, .bytes = layout_total_bytes(source)};
    copy->step_bytes = copy->bytes < COPY_CACHED_BYTES ? COPY_CACHED_STEP_BYTES : COPY_STEP_BYTES;
    (void)pthread_mutex_init(&copy->mutex, NULL);
    copy->from = calloc(n_from + 1u, sizeof *copy->from);
    copy->to = calloc(n_to + 1u, sizeof *copy->to);
    copy->n_to = n_to;
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

/* A target's owner comes first: who writes to a file waits longer for its locks than who reads it. */
static enum rdt_status set_place(struct copy *copy, struct copy_place *place, struct region *region, bool first,
                                 struct rdt_error *err)
{
    place->kind = region->kind;
    if (region_may_wait(region) && (first || !copy->owner))
        copy->owner = region->account;
    return memory_place_of(region, &place->at, err);
}

enum rdt_status copy_from(struct copy *copy, uint32_t index, struct region *region, struct rdt_error *err)
{
    return set_place(copy, &copy->from[index], region, false, err);
}

enum rdt_status copy_to(struct copy *copy, uint32_t index, struct region *region, struct rdt_error *err)
{
    return set_place(copy, &copy->to[index], region, true, err);
}

bool copy_must_be_checked(const struct copy *copy)
{
    for (uint32_t i = 0; i < copy->n_to; i++)
        if (atomic_load(&copy->to[i].at.created_bytes) > 0)
            return true;
    return atomic_load(&copy->failed) != 0;
}

enum rdt_status copy_check(struct copy *copy, struct region *(*target)(void *arg, uint32_t index), void *arg,
                           struct rdt_error *err)
{
    int failed = atomic_load(&copy->failed);
    enum rdt_status status = RDT_OK;

    if (failed)
        return rdt_error_sys(err, failed, "reading or writing imported memory");
    for (uint32_t i = 0; i < copy->n_to && status == RDT_OK; i++)
        if (copy->to[i].at.by_fd)
            status = memory_place_charge(&copy->to[i].at, target(arg, i), err);
    return status;
}

/* ---- steps ---- */

static const struct copy_place *from_of(const struct copy *copy, uint32_t i)
{
    return &copy->from[copy->source->region[i]];
}

static struct copy_place *to_of(const struct copy *copy, uint32_t i)
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

/* Copies a part of tensor i by a buffer that stays in the processor's cache. Returns 0 or an errno. */
static int copy_through(struct copy *copy, uint32_t i, uint64_t at, uint64_t bytes)
{
    uint8_t *buffer = malloc(BUFFER_BYTES);
    int failed = buffer ? 0 : ENOMEM;

    for (uint64_t done = 0, n; done < bytes && !failed; done += n) {
        n = bytes - done < BUFFER_BYTES ? bytes - done : BUFFER_BYTES;
        failed = memory_place_gather(&from_of(copy, i)->at, copy->source, i, at + done, n, buffer);
        if (!failed)
            failed = memory_place_write(&to_of(copy, i)->at, copy->target->offset[i] + at + done, n, buffer);
    }
    free(buffer);
    return failed;
}

/* Copies bytes that adjoin in the source and in the target. Returns 0 or an errno. */
static int copy_contiguous(struct copy *copy, uint32_t i, uint64_t at, uint64_t bytes)
{
    const struct copy_place *from = from_of(copy, i);
    struct memory_place *to = &to_of(copy, i)->at;
    uint64_t there = copy->source->offset[i] + at, here = copy->target->offset[i] + at;

    if (to->by_fd)
        return memory_place_write(to, here, bytes, from->at.base + there);
    if (from->at.by_fd)
        return memory_place_read(&from->at, there, bytes, to->base + here);
    (void)from->kind->ops.copy(from->kind->instance, to->base + here, from->at.base + there, bytes, NULL);
    return 0;
}

/* Copies at most `most` bytes from byte `at` of tensor *i_p on. Adjoining tensors are copied as one. Returns the number of
 * bytes copied, with *i_p at the last tensor that it copied from. */
static uint64_t copy_piece(struct copy *copy, uint32_t *i_p, uint64_t at, uint64_t most)
{
    uint32_t i = *i_p;
    const struct memory_place *from = &from_of(copy, i)->at;
    struct memory_place *to = &to_of(copy, i)->at;
    uint64_t bytes = layout_bytes(copy->source, i) - at;
    bool contiguous = layout_is_contiguous(copy->source, i), through = to->by_fd && (from->by_fd || !contiguous);
    int failed;

    while (contiguous && !through && bytes < most && *i_p + 1 < copy->source->count && adjoins(copy, *i_p))
        bytes += layout_bytes(copy->source, ++*i_p);
    bytes = bytes < most ? bytes : most;
    if (through)
        failed = copy_through(copy, i, at, bytes);
    else if (contiguous)
        failed = copy_contiguous(copy, i, at, bytes);
    else
        failed = memory_place_gather(from, copy->source, i, at, bytes, to->base + copy->target->offset[i] + at);
    if (failed)
        atomic_store(&copy->failed, failed);
    return bytes;
}

static bool is_empty(const struct memory_place *place)
{
    return !place->base && !place->by_fd;
}

static bool is_left_out(const struct copy *copy, uint32_t i)
{
    return layout_bytes(copy->source, i) == 0 || is_empty(&to_of(copy, i)->at) || is_empty(&from_of(copy, i)->at);
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

bool copy_turn(struct copy *copy)
{
    bool more = copy_step(copy);

    for (unsigned i = 1; copy->owner && more && i < COPY_OWNER_STEPS && !copy_must_be_checked(copy); i++)
        more = copy_step(copy);
    return more;
}

void copy_submit(struct copy *copy, struct regions *regions, struct work *work)
{
    if (copy->owner && copy->bytes > copy->step_bytes)
        owner_work_submit_copy(regions->owner_work, work, copy->owner);
    else if (copy->owner)
        owner_work_submit(regions->owner_work, work, copy->owner, true);
    else
        work_submit(regions->pool, work);
}

unsigned copy_threads(const struct copy *copy, unsigned n)
{
    uint64_t steps = copy->bytes / copy->step_bytes;

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
