/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches on one node into memory that the caller names, and fetches of slices. */
#include "tests/integration/calls/fetch.h"

/* ---- targets ---- */

static enum rdt_status fetch_into(const struct rdt_ref *ref, const struct rdt_tensor *targets, size_t count,
                                  rdt_object **object_p, struct rdt_error *err)
{
    struct rdt_fetch_options options = {
        .struct_size = sizeof options, .targets = &targets, .target_counts = &count, .timeout_ns = LONG};
    return rdt_fetch(reader, ref, 1, &options, object_p, err);
}

Test(fetch_targets, targets_in_any_memory_are_filled_and_nothing_else)
{
    size_t sizes[] = {4096 + 12, 12 * MIB + 4};
    begin(NULL);

    for (unsigned i = 0; i < 2; i++) {
        size_t bytes = sizes[i];
        char *source = alloc_memory(conn, bytes), *own = alloc_memory(reader, bytes + 8192);
        struct rdt_ref ref = put_pattern(source, bytes, 1);
        struct rdt_tensor target = VECTOR(RDT_U8, bytes, own + 4096), seen;
        struct canary canary;
        rdt_object *object;

        memset(own, CANARY_BYTE, bytes + 8192);
        must_ok(fetch_into(&ref, &target, 1, &object, &err));
        seen = tensor_of(object, 0);
        cr_assert_eq(seen.data, target.data);
        cr_assert(info_of(object).writable);
        cr_assert(holds_pattern(target.data, bytes, 1));
        cr_assert(is_filled_with(own, 4096, CANARY_BYTE));
        cr_assert(is_filled_with(own + 4096 + bytes, 4096, CANARY_BYTE));
        rdt_release(object);
        cr_assert(holds_pattern(target.data, bytes, 1));

        canary_create(&canary, bytes);
        target.data = canary.addr;
        must_ok(fetch_into(&ref, &target, 1, &object, &err));
        cr_assert(holds_pattern(canary.addr, bytes, 1));
        cr_assert(canary_alive(&canary));
        memset(source, 0, bytes);
        cr_assert(holds_pattern(canary.addr, bytes, 1));
        rdt_release(object);
        canary_destroy(&canary);
        must_ok(rdt_dealloc(reader, own, &err));
        must_ok(rdt_dealloc(conn, source, &err));
        must_ok(rdt_free(conn, &ref, false, &err));
    }
    end();
}

/* Daemon memory and the heap both refuse, and neither is written. */
static void mismatch(const struct rdt_ref *ref, const struct rdt_tensor *shape_of, size_t count, char *own,
                     struct canary *canary, const char *text)
{
    for (unsigned heap = 0; heap < 2; heap++) {
        struct rdt_tensor targets[3];
        rdt_object *object = NULL;
        for (size_t i = 0; i < count; i++) {
            targets[i] = shape_of[i];
            targets[i].data = (heap ? (char *)canary->addr : own) + 256 * i;
        }
        must_refuse(RDT_MISMATCH, text, fetch_into(ref, targets, count, &object, &err));
        must(!object);
        must(canary_untouched(canary));
        must(is_filled_with(own, 4096, CANARY_BYTE));
    }
}

Test(fetch_targets, targets_that_do_not_fit_are_named_and_untouched)
{
    static const int64_t shape[] = {4, 4}, other[] = {4, 5}, flat[] = {16}, holes[] = {8, 1}, reversed[] = {-4, 1};
    float values[2][16];
    struct rdt_tensor tensors[3] = {{.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = values[0]},
                                    {.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = values[1]}};
    struct rdt_tensor bad[3];
    struct canary canary;

    begin(NULL);
    char *own = alloc_memory(reader, 4096);
    memset(own, CANARY_BYTE, 4096);
    canary_create(&canary, 4096);
    struct rdt_ref ref = put_as(conn, tensors, 2, NULL);
    memcpy(bad, tensors, sizeof bad);
    mismatch(&ref, bad, 1, own, &canary, "");
    bad[2] = bad[1];
    mismatch(&ref, bad, 3, own, &canary, "");
    bad[1].shape = other;
    mismatch(&ref, bad, 2, own, &canary, "tensor 1");
    bad[1].shape = flat;
    bad[1].ndim = 1;
    mismatch(&ref, bad, 2, own, &canary, "tensor 1");
    bad[1] = tensors[1];
    bad[1].dtype = RDT_I32;
    mismatch(&ref, bad, 2, own, &canary, "tensor 1");
    bad[1] = tensors[1];
    bad[1].strides = holes;
    mismatch(&ref, bad, 2, own, &canary, "tensor 1");
    bad[1].strides = reversed;
    mismatch(&ref, bad, 2, own, &canary, "tensor 1");
    mismatch(&ref, bad, 0, own, &canary, "");
    canary_destroy(&canary);
    end();
}

Test(fetch_targets, targets_that_share_memory_are_named_and_untouched)
{
    int64_t shape[] = {4, 4};
    float values[2][16] = {{0}}, own[32];
    struct rdt_tensor tensors[2] = {{.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = values[0]},
                                    {.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = values[1]}};
    struct rdt_tensor targets[2];

    begin(NULL);
    char *known = alloc_memory(reader, 4096);
    memcpy(targets, tensors, sizeof targets);
    for (unsigned i = 0; i < 2; i++) { /* the daemon writes there itself, or librdt does */
        char *memory = i == 0 ? (char *)own : known;
        struct rdt_ref refs[2] = {put_as(conn, tensors, 2, NULL), put_as(conn, tensors, 1, NULL)};
        const struct rdt_tensor *lists[2] = {targets, targets + 1};
        size_t counts[2] = {2, 1};
        struct rdt_fetch_options options = {
            .struct_size = sizeof options, .targets = lists, .target_counts = counts, .timeout_ns = LONG};
        rdt_object *objects[2] = {NULL};

        memset(memory, CANARY_BYTE, sizeof own);
        targets[0].data = memory;
        targets[1].data = memory + 60;
        must_refuse(RDT_INVALID, "ref 0: target tensor 1 shares memory with target tensor 0, so one would overwrite the other",
                    rdt_fetch(reader, refs, 1, &options, objects, &err));
        targets[1].data = memory;
        must_refuse(RDT_INVALID, "target tensor 1 shares memory with target tensor 0",
                    rdt_fetch(reader, refs, 1, &options, objects, &err));
        targets[1].data = memory + 64;
        must_refuse(RDT_INVALID, "ref 1: target tensor 0 shares memory with target tensor 1 of ref 0",
                    rdt_fetch(reader, refs, 2, &options, objects, &err));
        must(is_filled_with(memory, sizeof own, CANARY_BYTE));
        must_ok(rdt_fetch(reader, refs, 1, &options, objects, &err));
        rdt_release(objects[0]);
    }
    end();
}

/* A client that is not librdt names memory that is not its own. */
Test(fetch_targets, targets_by_hand_must_be_the_clients_own)
{
    Rdt__Pb__Fetch fetch = RDT__PB__FETCH__INIT;
    Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items = &item;
    Rdt__Pb__Ref wire = RDT__PB__REF__INIT;
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT, *uses = &use;
    Rdt__Pb__TensorList targets = RDT__PB__TENSOR_LIST__INIT;
    uint32_t dtype = RDT_U8, ndim = 1;
    uint64_t shape = 4096;

    begin(NULL);
    char *mine = alloc_memory(conn, 4096);
    struct rdt_ref ref = put_pattern(mine, 4096, 1);
    wire.id.data = (uint8_t *)ref.id;
    wire.id.len = ref.id_bytes;
    wire.any_owner = true;
    item.handle = 1000001;
    item.ref = &wire;
    item.target_regions = &uses;
    item.n_target_regions = 1;
    item.targets = &targets;
    targets.dtype = &dtype;
    targets.ndim = &ndim;
    targets.shape = &shape;
    targets.n_dtype = targets.n_ndim = targets.n_shape = 1;
    fetch.items = &items;
    fetch.n_items = 1;
    fetch.timeout_ns = -1;
    use.generation = 1;
    for (use.region = 0; use.region < 5; use.region++) { /* 1 is the producer's */
        struct node_status before = node_now(&node);
        must_ok(call(reader, RDT_MSG_FETCH, &fetch.base, LONG, NULL, &err));
        item.handle++;
        struct node_status after = node_now(&node);
        cr_assert_eq(after.transfers_failed - before.transfers_failed, 1);
    }
    cr_assert(holds_pattern(mine, 4096, 1));
    end();
}

/* ---- slices ---- */

Test(fetch_targets, slices_match_a_naive_slicer)
{
    uint64_t random = 42;

    begin(NULL);
    char *memory = alloc_memory(conn, MIB);
    char *own = alloc_memory(reader, MIB);
    fill_pattern(memory, MIB, 1);
    for (unsigned round = 0; round < 150; round++) {
        static const enum rdt_dtype dtypes[] = {RDT_U8, RDT_F16, RDT_F32, RDT_F64, RDT_C128};
        int64_t shape[4], strides[4], start[4], count[4], span = 1;
        uint32_t ndim = 1 + next_random(&random) % 4;
        struct rdt_tensor tensor = {.dtype = dtypes[next_random(&random) % 5], .ndim = ndim, .shape = shape}, seen;
        struct rdt_slice slice = {.ndim = ndim, .start = start, .count = count};
        const struct rdt_slice *slices = &slice;
        size_t one = 1;
        rdt_object *object;

        for (uint32_t d = ndim; d-- > 0;) {
            shape[d] = 1 + next_random(&random) % 9;
            start[d] = next_random(&random) % (uint32_t)(shape[d] + 1);
            count[d] = next_random(&random) % (uint32_t)(shape[d] - start[d] + 1);
            if (round % 7 != 0 && count[d] == 0) { /* mostly something */
                start[d] = 0;
                count[d] = shape[d];
            }
            strides[d] = span;
            span *= shape[d] + (next_random(&random) % 3 == 0 ? 2 : 0);
            if (next_random(&random) % 4 == 0)
                strides[d] = -strides[d];
            else if (next_random(&random) % 8 == 0)
                strides[d] = 0;
        }
        if (round % 3)
            tensor.strides = strides;
        tensor.data = memory + MIB / 2;
        struct rdt_ref ref = put_one(conn, &tensor, NULL);
        struct rdt_fetch_options options = {
            .struct_size = sizeof options, .slices = &slices, .slice_counts = &one, .timeout_ns = LONG};
        for (unsigned mode = 0; mode < 3; mode++) {
            options.mode = (enum rdt_fetch_mode)mode;
            must_ok(rdt_fetch(mode == 1 ? conn : reader, &ref, 1, &options, &object, &err));
            seen = tensor_of(object, 0);
            cr_assert(equals_slice(&seen, &tensor, &slice), "round %u, mode %u, %u dimensions", round, mode, ndim);
            rdt_release(object);
        }
        for (unsigned heap = 0; heap < 2; heap++) { /* into targets */
            struct canary canary;
            struct rdt_tensor target = {.dtype = tensor.dtype, .ndim = ndim, .shape = count};
            const struct rdt_tensor *targets = &target;
            size_t bytes;
            must_ok(rdt_tensor_bytes(&target, &bytes, &err));
            canary_create(&canary, bytes);
            memset(own, CANARY_BYTE, bytes + 128);
            target.data = heap ? (char *)canary.addr : own + 64;
            options.mode = RDT_FETCH_AUTO;
            options.targets = &targets;
            options.target_counts = &one;
            must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
            cr_assert(equals_slice(&target, &tensor, &slice), "round %u into targets", round);
            cr_assert(canary_alive(&canary));
            cr_assert(is_filled_with(own, 64, CANARY_BYTE) && is_filled_with(own + 64 + (heap ? 0 : bytes), 64, CANARY_BYTE));
            rdt_release(object);
            canary_destroy(&canary);
        }
        must_ok(rdt_free(conn, &ref, false, &err));
    }
    end();
}

Test(fetch_targets, slices_out_of_range_are_invalid)
{
    int64_t start[2] = {0, 0}, count[2] = {4, 4};
    struct rdt_slice slice[2] = {{.ndim = 2, .start = start, .count = count}, {0}};
    const struct rdt_slice *slices = slice;
    size_t n = 1;
    rdt_object *object = NULL;
    float values[16];

    begin(NULL);
    struct rdt_ref ref = put_one(conn, &MATRIX(RDT_F32, 4, 4, values), NULL);
    struct rdt_fetch_options options = {
        .struct_size = sizeof options, .slices = &slices, .slice_counts = &n, .timeout_ns = LONG};
    must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
    rdt_release(object);
    object = NULL;
    start[1] = 1;
    must_refuse(RDT_INVALID, "tensor 0", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    start[1] = INT64_MAX;
    must_refuse(RDT_INVALID, "tensor 0", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    start[1] = -1;
    must_refuse(RDT_INVALID, "tensor 0", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    start[1] = 5;
    count[1] = 0;
    must_refuse(RDT_INVALID, "tensor 0", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    start[1] = 0;
    count[1] = INT64_MAX;
    must_refuse(RDT_INVALID, "tensor 0", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    count[1] = 4;
    slice[0] = (struct rdt_slice){3, (const int64_t[]){0, 0, 0}, (const int64_t[]){1, 1, 1}};
    must_refuse(RDT_INVALID, "tensor 0", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    slice[0] = (struct rdt_slice){1, (const int64_t[]){1}, (const int64_t[]){2}}; /* all of the second dimension */
    must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
    cr_assert(tensor_of(object, 0).shape[0] == 2 && tensor_of(object, 0).shape[1] == 4);
    rdt_release(object);
    object = NULL;
    slice[0] = (struct rdt_slice){2, start, count};
    n = 2; /* more than there are tensors */
    must_be(RDT_INVALID, rdt_fetch(reader, &ref, 1, &options, &object, &err));
    n = 1;
    slice[0].ndim = 0; /* the whole */
    must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
    rdt_release(object);
    end();
}

/* ---- checksums of copies ---- */

Test(fetch_targets, copy_of_an_object_is_compared_with_its_checksum)
{
    enum { ROWS = 300, COLUMNS = 50 };
    static float matrix[ROWS][COLUMNS], copy[COLUMNS][ROWS]; /* the copy is transposed */
    char text[] = "metadata counts, too", word[8] = "abcdefg", own[8];
    struct rdt_put_options options = {
        .struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .metadata = text, .metadata_bytes = sizeof text};
    rdt_object *object;

    begin(NULL);
    fill_pattern(matrix, sizeof matrix, 1);
    struct rdt_tensor tensors[] = {MATRIX(RDT_F32, ROWS, COLUMNS, matrix), VECTOR(RDT_U8, sizeof word, word)};
    struct rdt_tensor copies[] = {MATRIX(RDT_F32, ROWS, COLUMNS, copy), VECTOR(RDT_U8, sizeof own, own)};
    copies[0].strides = (const int64_t[]){1, ROWS};
    struct rdt_ref ref = put_as(conn, tensors, 2, &options);
    object = fetch_one(reader, &ref, RDT_FETCH_SHARE);
    must_ok(rdt_verify(object, LONG, &err));
    for (unsigned i = 0; i < ROWS; i++)
        for (unsigned j = 0; j < COLUMNS; j++)
            copy[j][i] = matrix[i][j];
    memcpy(own, word, sizeof own);
    must_ok(rdt_verify_copy(object, copies, 2, LONG, &err));
    own[3] ^= 1;
    must_refuse(RDT_DAMAGED, "has copied", rdt_verify_copy(object, copies, 2, LONG, &err));
    own[3] ^= 1;
    copy[7][9] = -copy[7][9];
    must_be(RDT_DAMAGED, rdt_verify_copy(object, copies, 2, LONG, &err));
    must_refuse(RDT_MISMATCH, "1 tensors, and the object 2", rdt_verify_copy(object, copies, 1, LONG, &err));
    copies[1].dtype = RDT_I8;
    must_refuse(RDT_MISMATCH, "tensor 1 of the copy", rdt_verify_copy(object, copies, 2, LONG, &err));
    must_be(RDT_INVALID, rdt_verify_copy(NULL, copies, 2, LONG, &err));
    rdt_release(object);
    must_ok(rdt_free(conn, &ref, false, &err));
    end();
}
