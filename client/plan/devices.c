/* SPDX-License-Identifier: Apache-2.0 */
#include "client/plan/devices.h"

#include <stdlib.h>
#include <string.h>

#include "client/session/clock.h"
#include "client/session/connection.h"

/* ---- where memory lies ---- */

static enum rdt_status add(struct plan_devices *devices, const struct mapper *mapper, const char *uuid, int *device_p,
                           struct rdt_error *err)
{
    struct plan_device *list;

    for (size_t i = 0; i < devices->n; i++)
        if (devices->list[i].writer == mapper->ops.writer && strcmp(devices->list[i].uuid, uuid) == 0) {
            *device_p = (int)i;
            return RDT_OK;
        }
    list = realloc(devices->list, (devices->n + 1) * sizeof *list);
    if (!list)
        return rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a plan");
    devices->list = list;
    list[devices->n] = (struct plan_device){.writer = mapper->ops.writer, .arg = mapper->ops.arg, .uuid = uuid};
    *device_p = (int)devices->n++;
    return RDT_OK;
}

/* Memory that the session knows, of a kind that nothing here writes. */
static enum rdt_status refuse_known(rdt *conn, const void *addr, struct rdt_error *err)
{
    const struct mapping *mapping;
    char device[sizeof mapping->device] = "";

    connection_lock(conn);
    mapping = memory_at(&conn->memory, (uintptr_t)addr, (uintptr_t)addr + 1);
    if (mapping)
        memcpy(device, mapping->device, sizeof device);
    connection_unlock(conn);
    if (device[0] == '\0')
        return RDT_OK;
    return rdt_error_set(err, RDT_UNSUPPORTED,
                         "it lies on device %s, whose memory no mapper of this process writes: give host memory, and copy from "
                         "there",
                         device);
}

enum rdt_status devices_find(struct plan_devices *devices, rdt *conn, const void *addr, int *device_p, struct rdt_error *err)
{
    const struct mapper *mapper;
    const char *uuid = NULL;

    *device_p = PLAN_HOST;
    connection_lock(conn);
    mapper = conn->memory.mappers; /* none is ever removed */
    connection_unlock(conn);
    for (; mapper; mapper = mapper->next) {
        enum rdt_status status = mapper->ops.writer ? mapper->ops.writer->find(mapper->ops.arg, addr, &uuid, err) : RDT_OK;

        if (status != RDT_OK)
            return status;
        if (uuid)
            return add(devices, mapper, uuid, device_p, err);
    }
    return refuse_known(conn, addr, err);
}

/* ---- writing ---- */

enum rdt_status devices_begin(struct plan_devices *devices, int64_t deadline_ns, struct rdt_error *err)
{
    enum rdt_status status = RDT_OK;

    for (size_t i = 0; i < devices->n && status == RDT_OK; i++) {
        struct plan_device *device = &devices->list[i];

        status = device->writer->begin(device->arg, device->uuid, &device->writing, err);
    }
    for (size_t i = 0; i < devices->n && status == RDT_OK; i++) {
        struct plan_device *device = &devices->list[i];

        if (device->n_streams > 0)
            status = device->writer->await(device->writing, device->streams, device->n_streams, clock_remaining_ns(deadline_ns),
                                           err);
    }
    return status == RDT_OK ? RDT_OK : devices_end(devices, status, err);
}

enum rdt_status devices_end(struct plan_devices *devices, enum rdt_status status, struct rdt_error *err)
{
    for (size_t i = 0; i < devices->n; i++) {
        struct plan_device *device = &devices->list[i];
        void *writing = device->writing;
        enum rdt_status ended = RDT_OK;

        device->writing = NULL;
        if (writing)
            ended = device->writer->end(writing, status == RDT_OK ? err : NULL);
        if (status == RDT_OK)
            status = ended;
    }
    return status;
}

void devices_fini(struct plan_devices *devices)
{
    free(devices->list);
    *devices = (struct plan_devices){0};
}

struct box { /* of a device's memory and of its source, with the dimension of the target's shortest stride last */
    uint32_t ndim;
    uint64_t count[RDT_MAX_NDIM];
    int64_t from[RDT_MAX_NDIM], to[RDT_MAX_NDIM]; /* strides in elements */
};

static uint64_t length(int64_t stride)
{
    return stride < 0 ? 0 - (uint64_t)stride : (uint64_t)stride;
}

/* Leaves out dimensions of one element. In order of the target's strides, rows of it are as long as can be, and a transposed
 * want costs the packing and not a copy for each element. */
static void make_box(struct box *box, uint32_t ndim, const uint64_t *count, const int64_t *from, const int64_t *to)
{
    box->ndim = 0;
    for (uint32_t d = 0; d < ndim; d++) {
        uint32_t at = box->ndim;

        if (count[d] == 1)
            continue;
        for (; at > 0 && length(box->to[at - 1]) < length(to[d]); at--) {
            box->count[at] = box->count[at - 1];
            box->from[at] = box->from[at - 1];
            box->to[at] = box->to[at - 1];
        }
        box->count[at] = count[d];
        box->from[at] = from[d];
        box->to[at] = to[d];
        box->ndim++;
    }
}

#define MOST_PITCH (UINT64_C(1) << 30) /* drivers refuse more */

/* Copies packed elements to the box at `to`, by as few copies as its strides allow. */
static enum rdt_status send_packed(const struct plan_device *device, const struct box *box, size_t bytes, const uint8_t *packed,
                                   uint8_t *to, struct rdt_error *err)
{
    size_t row = bytes, rows = 1, pitch = 0;
    uint64_t index[RDT_MAX_NDIM] = {0};
    uint32_t outer = box->ndim, d;
    enum rdt_status status = RDT_OK;

    while (outer > 0 && box->to[outer - 1] == (int64_t)(row / bytes)) /* the dimensions that one row has */
        row *= box->count[--outer];
    if (outer > 0 && box->to[outer - 1] > 0 && (uint64_t)box->to[outer - 1] * bytes <= MOST_PITCH) {
        outer--;
        rows = box->count[outer];
        pitch = (size_t)box->to[outer] * bytes;
    }
    do {
        d = outer;
        status = device->writer->copy(device->writing, packed, to, row, rows, pitch, err);
        packed += row * rows;
        for (; d > 0; d--) {
            to += box->to[d - 1] * (int64_t)bytes;
            if (++index[d - 1] < box->count[d - 1])
                break;
            to -= (int64_t)box->count[d - 1] * box->to[d - 1] * (int64_t)bytes;
            index[d - 1] = 0;
        }
    } while (d > 0 && status == RDT_OK);
    return status;
}

/* Copies a box, divided until it fits into the writer's room. */
static enum rdt_status copy_box(const struct plan_device *device, const struct box *box, const struct strided *from,
                                const struct strided *to, struct rdt_error *err)
{
    size_t from_bytes = rdt_dtype_bytes(from->dtype), bytes = rdt_dtype_bytes(to->dtype), room = device->writer->room_bytes;
    int64_t packed_strides[RDT_MAX_NDIM];
    uint64_t elems = 1, below;
    struct box part = *box;
    enum rdt_status status = RDT_OK;
    void *packed;

    for (uint32_t i = box->ndim; i-- > 0; elems *= box->count[i])
        packed_strides[i] = (int64_t)elems;
    if (elems <= room / bytes) {
        status = device->writer->room(device->writing, (size_t)elems * bytes, &packed, err);
        if (status != RDT_OK)
            return status;
        strided_copy(box->ndim, box->count, from, &(struct strided){to->dtype, packed, packed_strides});
        return send_packed(device, box, bytes, packed, to->data, err);
    }
    below = elems / box->count[0];
    for (uint64_t at = 0; at < box->count[0] && status == RDT_OK; at += part.count[0]) {
        uint64_t fit = room / bytes / below, left = box->count[0] - at;
        struct strided some_from = {from->dtype, from->data + (int64_t)at * box->from[0] * (int64_t)from_bytes, box->from};
        struct strided some_to = {to->dtype, to->data + (int64_t)at * box->to[0] * (int64_t)bytes, box->to};

        part.count[0] = fit == 0 ? 1 : fit < left ? fit : left;
        if (part.count[0] == 1) { /* rows that do not fit are divided along the next dimension */
            struct box row = {.ndim = box->ndim - 1};

            memcpy(row.count, box->count + 1, row.ndim * sizeof *row.count);
            memcpy(row.from, box->from + 1, row.ndim * sizeof *row.from);
            memcpy(row.to, box->to + 1, row.ndim * sizeof *row.to);
            some_from.strides = row.from;
            some_to.strides = row.to;
            status = copy_box(device, &row, &some_from, &some_to, err);
        } else {
            status = copy_box(device, &part, &some_from, &some_to, err);
        }
    }
    return status;
}

enum rdt_status devices_copy(struct plan_devices *devices, int device, uint32_t ndim, const uint64_t *count,
                             const struct strided *from, const struct strided *to, struct rdt_error *err)
{
    struct box box;
    struct strided some_from, some_to;

    for (uint32_t d = 0; d < ndim; d++)
        if (count[d] == 0)
            return RDT_OK;
    make_box(&box, ndim, count, from->strides, to->strides);
    some_from = (struct strided){from->dtype, from->data, box.from};
    some_to = (struct strided){to->dtype, to->data, box.to};
    return copy_box(&devices->list[device], &box, &some_from, &some_to, err);
}
