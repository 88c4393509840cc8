/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/tensors.h"

#include <string.h>

struct rdt_tensor bytes_at(void *addr, size_t bytes)
{
    static _Thread_local int64_t shapes[64][1];
    static _Thread_local unsigned next;
    int64_t *shape = shapes[next++ % 64];

    shape[0] = (int64_t)bytes;
    return (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = shape, .data = addr};
}

int64_t elements_of(const struct rdt_tensor *tensor)
{
    int64_t n = 1;

    for (uint32_t d = 0; d < tensor->ndim; d++)
        n *= tensor->shape[d];
    return n;
}

/* Index of element i in dimension d. */
static int64_t index_in(const int64_t *shape, uint32_t ndim, int64_t i, uint32_t d)
{
    for (uint32_t inner = ndim - 1; inner > d; inner--)
        i /= shape[inner];
    return i % shape[d];
}

static int64_t row_major_stride(const struct rdt_tensor *tensor, uint32_t d)
{
    int64_t stride = 1;

    for (uint32_t inner = d + 1; inner < tensor->ndim; inner++)
        stride *= tensor->shape[inner];
    return stride;
}

static int64_t stride_of(const struct rdt_tensor *tensor, uint32_t d)
{
    return tensor->strides ? tensor->strides[d] : row_major_stride(tensor, d);
}

void *element_of(const struct rdt_tensor *tensor, int64_t i)
{
    int64_t at = 0;

    for (uint32_t d = 0; d < tensor->ndim; d++)
        at += index_in(tensor->shape, tensor->ndim, i, d) * stride_of(tensor, d);
    return (char *)tensor->data + at * (int64_t)rdt_dtype_bytes(tensor->dtype);
}

bool tensors_equal(const struct rdt_tensor *a, const struct rdt_tensor *b)
{
    if (a->dtype != b->dtype || a->ndim != b->ndim)
        return false;
    for (uint32_t d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d])
            return false;
    for (int64_t i = 0; i < elements_of(a); i++)
        if (memcmp(element_of(a, i), element_of(b, i), rdt_dtype_bytes(a->dtype)) != 0)
            return false;
    return true;
}

bool is_row_major(const struct rdt_tensor *tensor)
{
    if (elements_of(tensor) == 0)
        return true;
    for (uint32_t d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] > 1 && stride_of(tensor, d) != row_major_stride(tensor, d))
            return false;
    return true;
}

bool equals_slice(const struct rdt_tensor *part, const struct rdt_tensor *whole, const struct rdt_slice *slice)
{
    if (part->dtype != whole->dtype || part->ndim != whole->ndim || slice->ndim != whole->ndim)
        return false;
    for (uint32_t d = 0; d < part->ndim; d++)
        if (part->shape[d] != slice->count[d])
            return false;
    for (int64_t i = 0; i < elements_of(part); i++) {
        int64_t at = 0;
        for (uint32_t d = 0; d < part->ndim; d++)
            at += (slice->start[d] + index_in(part->shape, part->ndim, i, d)) * stride_of(whole, d);
        if (memcmp(element_of(part, i), (char *)whole->data + at * (int64_t)rdt_dtype_bytes(whole->dtype),
                   rdt_dtype_bytes(whole->dtype)) != 0)
            return false;
    }
    return true;
}

struct rdt_ref put_shown(rdt *conn, const struct rdt_tensor *tensor, const char *id, enum rdt_visibility visibility)
{
    struct rdt_ref ref = {0};
    struct rdt_put_options options = {
        .struct_size = sizeof options, .id = id, .id_bytes = id ? strlen(id) : 0, .visibility = visibility, .timeout_ns = LONG};

    must_ok(rdt_put(conn, tensor, 1, &options, &ref, &err));
    return ref;
}

struct rdt_ref put_one(rdt *conn, const struct rdt_tensor *tensor, const char *id)
{
    return put_shown(conn, tensor, id, RDT_VISIBLE_TO_OWNER);
}

enum rdt_status try_fetch(rdt *conn, const struct rdt_ref *ref, enum rdt_fetch_mode mode, int64_t timeout_ns,
                          rdt_object **object_p, struct rdt_error *err)
{
    struct rdt_fetch_options options = {.struct_size = sizeof options, .mode = mode, .timeout_ns = timeout_ns};
    rdt_object *unwanted = NULL;
    enum rdt_status status = rdt_fetch(conn, ref, 1, &options, object_p ? object_p : &unwanted, err);

    rdt_release(unwanted);
    return status;
}

struct rdt_ref put_half(rdt *conn, uint32_t rank, size_t bytes)
{
    static uint8_t zeros[1 << 16];
    struct rdt_tensor tensor = MATRIX(RDT_U8, 1, (int64_t)bytes, zeros);
    struct rdt_shard shard = {"x", (const int64_t[]){2, (int64_t)bytes}, (const int64_t[]){rank, 0}};
    struct rdt_ref ref;

    must(bytes <= sizeof zeros);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .shards = &shard};
    must_ok(rdt_put(conn, &tensor, 1, &options, &ref, &err));
    return ref;
}

rdt_object *fetch_one(rdt *conn, const struct rdt_ref *ref, enum rdt_fetch_mode mode)
{
    rdt_object *object = NULL;

    must_ok(try_fetch(conn, ref, mode, LONG, &object, &err));
    return object;
}

enum rdt_status fetch_to(rdt *conn, const struct rdt_ref *ref, const char *memory, const char *device, rdt_object **object_p,
                         struct rdt_error *err)
{
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG, .memory = memory, .device = device};
    return rdt_fetch(conn, ref, 1, &options, object_p, err);
}

rdt_request *start_one(rdt *conn, const struct rdt_ref *ref, int64_t timeout_ns)
{
    rdt_request *request = NULL;
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = timeout_ns};

    must_ok(rdt_fetch_start(conn, ref, 1, &options, &request, &err));
    return request;
}

struct rdt_ref put_as(rdt *conn, const struct rdt_tensor *tensors, size_t n, const struct rdt_put_options *options)
{
    struct rdt_ref ref;

    must_ok(rdt_put(conn, tensors, n, options, &ref, &err));
    return ref;
}

rdt_object *fetch_as(rdt *conn, const struct rdt_ref *ref, const struct rdt_fetch_options *options)
{
    rdt_object *object;

    must_ok(rdt_fetch(conn, ref, 1, options, &object, &err));
    return object;
}

rdt_request *start_as(rdt *conn, const struct rdt_ref *ref, const struct rdt_fetch_options *options)
{
    rdt_request *request;

    must_ok(rdt_fetch_start(conn, ref, 1, options, &request, &err));
    return request;
}

struct rdt_stat stat_of(rdt *conn, const struct rdt_ref *ref)
{
    struct rdt_stat stat;

    must_ok(rdt_stat(conn, ref, &stat, &err));
    return stat;
}

rdt_object *await_object(rdt *conn, rdt_request *request)
{
    rdt_object *object = NULL;

    must_ok(rdt_wait(conn, &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
    return object;
}

struct rdt_tensor tensor_of(const rdt_object *object, size_t i)
{
    struct rdt_tensor tensor = {0};

    must_ok(rdt_object_tensor(object, i, &tensor, &err));
    return tensor;
}

void must_lie(const rdt_object *object, size_t i, const char *memory, const char *device)
{
    const char *in, *on;

    must_ok(rdt_object_place(object, i, &in, &on, &err));
    must_say(strcmp(in, memory) == 0 && strcmp(on, device) == 0, "tensor %zu lies in %s %s, not in %s %s", i, in, on, memory,
             device);
}

struct rdt_object_info info_of(const rdt_object *object)
{
    struct rdt_object_info info;

    rdt_object_info(object, &info);
    return info;
}

struct rdt_ref ref_named(const char *id)
{
    struct rdt_ref ref = {0};

    must_ok(rdt_ref_from_id(id, strlen(id), &ref, &err));
    return ref;
}

void *alloc_memory(rdt *conn, size_t bytes)
{
    void *addr = NULL;

    must_ok(rdt_alloc(conn, bytes, &addr, &err));
    return addr;
}

uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}
