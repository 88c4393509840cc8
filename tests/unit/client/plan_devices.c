/* SPDX-License-Identifier: Apache-2.0 */
/* devices.h: boxes of any strides reach memory of a device as strided_copy would write them, whatever room the writer has. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "client/plan/devices.h"
#include "tests/support/check.h"

TestSuite(plan_devices, .timeout = SUITE_SECONDS(60));

#define DIMS 4u
#define MOST 6u /* elements of a dimension */
#define AREA (1u << 16)
#define ROUNDS 5000u

static struct {
    uint8_t room[512]; /* of a slot */
    size_t used, n_copies;
} device;

static enum rdt_status room(void *writing, size_t bytes, void **room_p, struct rdt_error *err)
{
    (void)writing;
    (void)err;
    cr_assert_leq(bytes, sizeof device.room);
    device.used = bytes;
    memset(device.room, 0xee, sizeof device.room);
    *room_p = device.room;
    return RDT_OK;
}

static enum rdt_status copy(void *writing, const void *from, void *to, size_t row_bytes, size_t rows, size_t pitch,
                            struct rdt_error *err)
{
    const uint8_t *source = from;

    (void)writing;
    (void)err;
    cr_assert(source >= device.room && source + row_bytes * rows <= device.room + device.used);
    cr_assert(rows == 1 || pitch >= row_bytes, "drivers refuse rows of %zu bytes with a pitch of %zu", row_bytes, pitch);
    for (size_t i = 0; i < rows; i++)
        memcpy((uint8_t *)to + i * pitch, source + i * row_bytes, row_bytes);
    device.n_copies++;
    return RDT_OK;
}

static uint32_t below(unsigned *seed, uint32_t n)
{
    return (uint32_t)rand_r(seed) % n;
}

/* Strides of dimensions in any order, with gaps and signs; returns where the first element lies. */
static int64_t make_strides(unsigned *seed, uint32_t ndim, const uint64_t *count, int64_t *strides_p)
{
    uint32_t left[DIMS] = {0, 1, 2, 3};
    int64_t stride = 1, first = 0;

    for (uint32_t n = ndim; n > 0; n--) {
        uint32_t at = below(seed, n), d = left[at];
        left[at] = left[n - 1];
        stride *= 1 + (below(seed, 3) == 0);
        strides_p[d] = below(seed, 4) == 0 ? -stride : stride;
        first += strides_p[d] < 0 ? stride * (int64_t)(count[d] - 1) : 0;
        stride *= (int64_t)count[d];
    }
    return first;
}

Test(plan_devices, any_box_is_written_as_strided_copy_writes_it)
{
    static const enum rdt_dtype dtypes[][2] = {{RDT_F32, RDT_F32}, {RDT_F32, RDT_BF16}, {RDT_BF16, RDT_F32}, {RDT_U8, RDT_U8}};
    static uint8_t source[AREA], wanted[AREA], got[AREA];
    struct rdt_writer writer = {.struct_size = sizeof writer, .room = room, .copy = copy};
    struct plan_device one = {.writer = &writer};
    struct plan_devices devices = {.list = &one, .n = 1};
    unsigned seed = 1;

    for (unsigned round = 0; round < ROUNDS; round++) {
        uint32_t ndim = below(&seed, DIMS + 1), kind = below(&seed, 4);
        uint64_t count[DIMS];
        int64_t from_strides[DIMS], to_strides[DIMS];
        for (uint32_t d = 0; d < ndim; d++)
            count[d] = 1 + below(&seed, MOST);
        for (uint32_t i = 0; round == 0 && i < AREA / 4; i++) { /* no element is a NaN */
            float value = (float)(int)below(&seed, 1000);
            memcpy(source + 4 * i, &value, sizeof value);
        }
        size_t from_bytes = rdt_dtype_bytes(dtypes[kind][0]), bytes = rdt_dtype_bytes(dtypes[kind][1]);
        int64_t from_first = make_strides(&seed, ndim, count, from_strides),
                first = make_strides(&seed, ndim, count, to_strides);
        struct strided from = {dtypes[kind][0], source + from_first * (int64_t)from_bytes, from_strides};
        struct strided to = {dtypes[kind][1], wanted + first * (int64_t)bytes, to_strides};
        memset(wanted, 0x55, sizeof wanted);
        memset(got, 0x55, sizeof got);
        strided_copy(ndim, count, &from, &to);
        to.data = got + first * (int64_t)bytes;
        writer.room_bytes = bytes + below(&seed, (uint32_t)(sizeof device.room - bytes));
        must_ok(devices_copy(&devices, 0, ndim, count, &from, &to, &err));
        cr_assert(memcmp(wanted, got, sizeof got) == 0, "round %u: %u dimensions, room for %zu bytes", round, ndim,
                  writer.room_bytes);
    }
    cr_assert_gt(device.n_copies, ROUNDS);
}
