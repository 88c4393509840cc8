/* SPDX-License-Identifier: Apache-2.0 */
/* rdt_verify: compares what this process got with the checksum of the object. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"
#include "fetched.h"
#include "rdt.pb-c.h"
#include "rdt_plan.h"
#include "session/clock.h"
#include "tensor.h"

static enum rdt_status check(const rdt_object *object, struct rdt_error *err)
{
    const char *id = object->info.ref.id, *memory;

    if (object->partial)
        return rdt_error_set(err, RDT_INVALID, "object \"%s\" was not fetched whole: only all of it has a checksum", id);
    for (uint32_t i = 0; i < object->layout->count; i++)
        if (rdt_object_place(object, i, &memory, NULL, err) != RDT_OK)
            return err ? err->status : RDT_INVALID;
        else if (strcmp(memory, "host") != 0)
            return rdt_error_set(err, RDT_UNSUPPORTED,
                                 "tensor %u of object \"%s\" lies in memory of kind %s: fetch it to host memory to verify it",
                                 i, id, memory);
    return RDT_OK;
}

/* Asks the daemon of the object. */
static enum rdt_status ask(const rdt_object *object, int64_t timeout_ns, uint64_t *sum_p, struct rdt_error *err)
{
    Rdt__Pb__Sum request = RDT__PB__SUM__INIT;
    ProtobufCMessage *reply;
    Rdt__Pb__Ref message;
    enum rdt_status status = call_wire_ref(object->conn, &object->info.ref, &message, err);

    if (status != RDT_OK)
        return status;
    request.ref = &message;
    request.timeout_ns = timeout_ns < 0 ? -1 : timeout_ns;
    status = call_fds(object->conn, RDT_MSG_SUM, &request.base, -1,
                      clock_after_answer_ns(clock_deadline_ns(timeout_ns), timeout_ns), &reply, NULL, err);
    if (status != RDT_OK)
        return status;
    *sum_p = ((const Rdt__Pb__SumReply *)reply)->sum;
    protobuf_c_message_free_unpacked(reply, NULL);
    return RDT_OK;
}

/* layout and data: of what is compared. whose: the words for it. */
static enum rdt_status verify(const rdt_object *object, const struct layout *layout, void *const *data, const char *whose,
                              int64_t timeout_ns, struct rdt_error *err)
{
    uint64_t expected = 0, found = 0;
    enum rdt_status status = ask(object, timeout_ns, &expected, err);

    if (status == RDT_OK)
        status = tensor_sum(layout, data, object->metadata, object->metadata_bytes, &found, err);
    if (status != RDT_OK || found == expected)
        return status;
    return rdt_error_set(err, RDT_DAMAGED,
                         "the bytes of object \"%s\" that this process %s by %s are not those that were put: their checksum is "
                         "%016" PRIx64 ", and should be %016" PRIx64,
                         object->info.ref.id, whose, object->info.path, found, expected);
}

static enum rdt_status check_object(const rdt_object *object, struct rdt_error *err)
{
    enum rdt_status status;

    if (!object)
        return rdt_error_set(err, RDT_INVALID, "object is NULL");
    status = connection_check(object->conn, err);
    if (status == RDT_OK && rdt_object_is_manifest(object))
        status = rdt_error_set(err, RDT_UNSUPPORTED,
                               "\"%s\" is a version of many parts, which has no checksum of its own: "
                               "verify its parts",
                               object->info.ref.id);
    if (status == RDT_OK)
        status = check(object, err);
    return status;
}

enum rdt_status rdt_verify(const rdt_object *object, int64_t timeout_ns, struct rdt_error *err)
{
    enum rdt_status status = check_object(object, err);

    return status == RDT_OK ? verify(object, object->layout, object->data, "got", timeout_ns, err) : status;
}

/* Whether both have the same dtypes and shapes. */
static enum rdt_status compare(const struct layout *object, const struct layout *copy, struct rdt_error *err)
{
    if (copy->count != object->count)
        return rdt_error_set(err, RDT_MISMATCH, "the copy has %" PRIu32 " tensors, and the object %" PRIu32, copy->count,
                             object->count);
    for (uint32_t i = 0; i < copy->count; i++)
        if (copy->dtype[i] != object->dtype[i] || copy->ndim[i] != object->ndim[i] ||
            memcmp(copy->shape + copy->first_dim[i], object->shape + object->first_dim[i],
                   copy->ndim[i] * sizeof *copy->shape) != 0)
            return rdt_error_set(err, RDT_MISMATCH,
                                 "tensor %" PRIu32 " of the copy has another dtype or shape than the object's", i);
    return RDT_OK;
}

enum rdt_status rdt_verify_copy(const rdt_object *object, const struct rdt_tensor *tensors, size_t count, int64_t timeout_ns,
                                struct rdt_error *err)
{
    struct layout *layout = NULL;
    void **data = NULL;
    enum rdt_status status = check_object(object, err);

    if (status == RDT_OK)
        status = tensor_layout(tensors, count, &layout, err);
    if (status == RDT_OK)
        status = compare(object->layout, layout, err);
    if (status == RDT_OK && !(data = calloc(count + 1, sizeof *data)))
        status = rdt_error_set(err, RDT_NO_MEMORY, "there is no memory for a list of %zu tensors", count);
    for (size_t i = 0; status == RDT_OK && i < count; i++)
        data[i] = tensors[i].data;
    if (status == RDT_OK)
        status = verify(object, layout, data, "has copied after it got them", timeout_ns, err);
    free(data);
    free(layout);
    return status;
}
