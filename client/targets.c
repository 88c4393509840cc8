/* SPDX-License-Identifier: Apache-2.0 */
/* Checks target tensors, and finds out whether the daemon can write into them itself. */
#include "targets.h"

#include <stdlib.h>

#include "proto/grow.h"
#include "tensor.h"

void targets_destroy(rdt *conn, struct targets *targets)
{
    if (!targets)
        return;
    for (uint32_t i = 0; i < targets->n_mappings; i++)
        memory_unref(&conn->memory, targets->mappings[i]);
    free(targets->mappings);
    free(targets->data);
    free(targets->layout);
    free(targets);
}

static enum rdt_status fill(struct targets *targets, const struct rdt_tensor *tensors, size_t count, struct rdt_error *err)
{
    enum rdt_status status = tensor_layout(tensors, count, &targets->layout, err);

    if (status != RDT_OK) {
        rdt_error_prefix(err, "the targets");
        return status;
    }
    for (uint32_t i = 0; i < targets->layout->count; i++) {
        if (!tensors[i].strides)
            continue; /* it is row-major already */
        if (!layout_is_contiguous(targets->layout, i))
            return rdt_error_set(err, RDT_MISMATCH, "target tensor %u is not contiguous", i);
        layout_set_row_major(targets->layout, i);
    }
    targets->data = malloc((count + 1) * sizeof *targets->data);
    if (!targets->data)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for %zu target tensors", count);
    for (uint32_t i = 0; i < targets->layout->count; i++)
        targets->data[i] = tensors[i].data;
    return RDT_OK;
}

static bool add_mapping(struct targets *targets, struct mapping *mapping, size_t *room)
{
    struct mapping **mappings = array_grow(targets->mappings, targets->n_mappings, room, sizeof *mappings);

    if (!mappings)
        return false;
    targets->mappings = mappings;
    mapping->index = targets->n_mappings;
    memory_ref(mapping);
    targets->mappings[targets->n_mappings++] = mapping;
    return true;
}

/* Says whether every tensor lies in memory that the daemon knows, and writes its region and offset. False also if there is no
 * memory: librdt then copies the bytes itself, which always works. */
static bool find_places(rdt *conn, struct targets *targets)
{
    struct layout *layout = targets->layout;
    uint64_t mark = memory_mark(&conn->memory);
    struct mapping *mapping = NULL; /* of the previous target; the next one often lies there too */
    size_t room = 0;
    bool all = true;

    for (uint32_t i = 0; i < layout->count; i++) {
        uint64_t lo = layout->offset[i], bytes = layout_bytes(layout, i);

        layout->offset[i] = 0;
        if (bytes == 0)
            continue;
        if (!mapping || !memory_contains(mapping, lo, lo + bytes))
            mapping = memory_at(&conn->memory, lo, lo + bytes);
        targets->on_device |= mapping && mapping->mapper;
        if (!mapping || !memory_contains(mapping, lo, lo + bytes)) {
            all = false;
            continue;
        }
        if (mapping->mark != mark && !add_mapping(targets, mapping, &room))
            return false;
        mapping->mark = mark;
        layout->region[i] = mapping->index;
        layout->offset[i] = lo - (uintptr_t)mapping->addr;
    }
    return all && targets->n_mappings > 0;
}

enum rdt_status targets_create(rdt *conn, const struct rdt_tensor *tensors, size_t count, struct targets **targets_p,
                               struct rdt_error *err)
{
    struct targets *targets = calloc(1, sizeof *targets);
    enum rdt_status status;

    if (!targets)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for %zu target tensors", count);
    status = fill(targets, tensors, count, err);
    connection_lock(conn);
    if (status == RDT_OK)
        targets->direct = find_places(conn, targets);
    else
        targets_destroy(conn, targets);
    if (status == RDT_OK && targets->on_device && !targets->direct) {
        targets_destroy(conn, targets);
        status = rdt_error_set(err, RDT_INVALID,
                               "some targets are on a device, and others in memory that the daemon does not know: rdt_alloc or "
                               "rdt_import it");
    }
    connection_unlock(conn);
    if (status == RDT_OK)
        *targets_p = targets;
    return status;
}
