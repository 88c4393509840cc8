/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the mappings that came with one message's answers until the last answer has come. */
#include "batch.h"

#include <stdlib.h>

#include "proto/grow.h"

struct batch {
    struct list link;          /* conn->batches */
    uint64_t first;            /* handle */
    size_t n, left;            /* fetches, and those without an answer */
    struct mapping **mappings; /* [n_mappings] one reference each */
    size_t n_mappings, room;
};

static struct batch *find(const rdt *conn, uint64_t handle)
{
    list_each (struct batch, batch, &conn->batches, link)
        if (handle - batch->first < batch->n)
            return batch;
    return NULL;
}

static void end(rdt *conn, struct batch *batch)
{
    for (size_t i = 0; i < batch->n_mappings; i++)
        memory_unref(&conn->memory, batch->mappings[i]);
    list_remove(&batch->link);
    free(batch->mappings);
    free(batch);
}

bool batch_begin(rdt *conn, uint64_t first, size_t n)
{
    struct batch *batch = calloc(1, sizeof *batch);

    if (!batch)
        return false;
    batch->first = first;
    batch->n = batch->left = n;
    list_append(&conn->batches, &batch->link);
    return true;
}

void batch_drop(rdt *conn, uint64_t first)
{
    struct batch *batch = find(conn, first);

    if (batch)
        end(conn, batch);
}

/* Takes the reference. Without memory for its record the reference is never dropped, and the mapping stays until
 * rdt_close. */
static void add(struct batch *batch, struct mapping *take_mapping)
{
    struct mapping **mappings = array_grow(batch->mappings, batch->n_mappings, &batch->room, sizeof *mappings);

    if (!mappings)
        return;
    batch->mappings = mappings;
    batch->mappings[batch->n_mappings++] = take_mapping;
}

void batch_on_answer(rdt *conn, const Rdt__Pb__FetchDone *done, const struct answer_fds *fds, const rdt_object *object,
                     bool again)
{
    struct batch *batch = find(conn, done->handle);

    if (!batch)
        return;
    for (size_t i = 0; i < done->n_regions; i++) {
        const Rdt__Pb__SharedRegion *shared = done->regions[i];
        struct mapping *mapping = NULL;

        if (shared->fd_index < 0 || shared->writable || shared->cow)
            continue;
        if (object && i < object->n_mappings && (mapping = object->mappings[i]))
            memory_ref(mapping);
        else if (!object)
            (void)fetched_map(conn, shared, fds, &mapping, NULL); /* if that fails, so do the later answers that need it */
        if (mapping)
            add(batch, mapping);
    }
    if (!again && --batch->left == 0)
        end(conn, batch);
}

void batches_fini(rdt *conn)
{
    list_drain (struct batch, batch, &conn->batches, link)
        end(conn, batch);
}
