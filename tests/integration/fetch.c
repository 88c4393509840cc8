/* Fetching on one node: the same pointers, a shared look, a copy, targets, slices, many at once, and waiting for what is not yet. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/call.h"
#include "rdt.pb-c.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)

static struct test_node node;
static rdt *conn, *reader;

static void begin(const struct node_options *options)
{
    node_start(&node, options);
    conn = node_client(&node, "producer");
    reader = node_client(&node, "reader");
}

static void end(void)
{
    rdt_close(conn);
    rdt_close(reader);
    node_end(&node, NULL);
}

static struct rdt_ref put_pattern(char *addr, size_t bytes, uint32_t seed)
{
    fill_pattern(addr, bytes, seed);
    return put_one(conn, &VECTOR(RDT_U8, bytes, addr), NULL);
}

/* ---- the three paths ---- */

Test(fetch, same_client_gets_the_same_memory)
{
    struct rdt_tensor seen;
    rdt_object *object;
    struct rdt_ref ref;
    char *addr;

    begin(NULL);
    addr = alloc_memory(conn, MIB);
    ref = put_pattern(addr, MIB, 1);
    object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
    seen = tensor_of(object, 0);
    cr_assert_eq(seen.data, addr);
    must_go_by("local/same", object);
    cr_assert(info_of(object).writable);
    cr_assert_not(info_of(object).mutable_shared);
    cr_assert_eq(info_of(object).bytes_moved, 0);
    must_ok(rdt_dealloc(conn, addr, &err)); /* the object still looks at it */
    cr_assert(holds_pattern(seen.data, MIB, 1));
    rdt_release(object);
    cr_assert_eq(msync(addr, 1, MS_ASYNC), -1, "still mapped");
    end();
}

static int write_to_shared(struct actor *self, void *arg)
{
    rdt *client = node_client(arg, "vandal");
    struct rdt_ref ref;
    struct rdt_tensor seen;
    rdt_object *object;

    actor_recv(self, &ref, sizeof ref);
    object = fetch_one(client, &ref, RDT_FETCH_SHARE);
    seen = tensor_of(object, 0);
    must(holds_pattern(seen.data, 4096, 1));
    must(!info_of(object).writable);
    *(volatile char *)seen.data = 1;
    return 0;
}

static int make_writable(struct actor *self, void *arg)
{
    rdt *client = node_client(arg, "vandal");
    struct rdt_ref ref;
    struct rdt_tensor seen;
    rdt_object *object;

    actor_recv(self, &ref, sizeof ref);
    object = fetch_one(client, &ref, RDT_FETCH_SHARE);
    seen = tensor_of(object, 0);
    must(mprotect(seen.data, 4096, PROT_READ | PROT_WRITE) == -1);
    rdt_release(object);
    rdt_close(client);
    return 0;
}

Test(fetch, writing_into_shared_memory_is_a_fault)
{
    struct actor actors[2];
    struct rdt_ref ref;
    int status;

    node_start(&node, NULL);
    actor_start(&actors[0], write_to_shared, &node);
    actor_start(&actors[1], make_writable, &node);
    conn = node_client(&node, "producer");
    reader = node_client(&node, "reader");
    ref = put_pattern(alloc_memory(conn, 4096), 4096, 1);
    actor_send(&actors[0], &ref, sizeof ref);
    actor_send(&actors[1], &ref, sizeof ref);
    status = actor_result(&actors[0]);
    /* A sanitizer catches the fault and ends the actor itself. */
    cr_assert(status == 128 + SIGSEGV ||
                  (getenv("RDT_VARIANT") && strcmp(getenv("RDT_VARIANT"), "release") != 0 && status != 0),
              "ended with %d", status);
    actor_wait(&actors[1]);
    end();
}

Test(fetch, another_actor_shares_live_memory)
{
    struct rdt_tensor seen;
    rdt_object *object;
    struct rdt_ref ref;
    char *addr;

    begin(NULL);
    addr = alloc_memory(conn, MIB);
    ref = put_pattern(addr, MIB, 1);
    object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    must_go_by("local/share", object);
    cr_assert_not(info_of(object).writable);
    cr_assert_eq(info_of(object).bytes_moved, 0);
    seen = tensor_of(object, 0);
    cr_assert(holds_pattern(seen.data, MIB, 1));
    fill_pattern(addr, MIB, 2);
    cr_assert(holds_pattern(seen.data, MIB, 2), "later writes are not seen");
    rdt_release(object);
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_dealloc(conn, addr, &err));
    must_ok(rdt_ping(reader, LONG, &err)); /* it hears that the region is gone */
    cr_assert_eq(msync(seen.data, 1, MS_ASYNC), -1, "still mapped");
    end();
}

Test(fetch, sharing_is_one_path_at_every_size)
{
    size_t sizes[] = {1, 4096, 100000, 8 * MIB, 256 * MIB};
    struct node_status before, after;

    begin(NULL);
    for (unsigned i = 0; i < 5; i++) {
        char *addr = alloc_memory(conn, sizes[i]);
        struct rdt_ref ref;
        rdt_object *object;
        struct rdt_tensor seen;
        addr[sizes[i] - 1] = 42;
        ref = put_one(conn, &VECTOR(RDT_U8, sizes[i], addr), NULL);
        node_status(&node, &before);
        object = fetch_one(reader, &ref, RDT_FETCH_SHARE);
        node_status(&node, &after);
        cr_assert_eq(before.memory_bytes, after.memory_bytes);
        must_go_by("local/share", object);
        cr_assert_eq(info_of(object).bytes_moved, 0);
        seen = tensor_of(object, 0);
        cr_assert_eq(((char *)seen.data)[sizes[i] - 1], 42);
        rdt_release(object);
        must_ok(rdt_free(conn, &ref, false, &err));
        must_ok(rdt_dealloc(conn, addr, &err));
    }
    end();
}

Test(fetch, notice_of_mutability_comes_once_per_object)
{
    rdt_object *objects[3];
    struct rdt_ref live, copied, second;
    char *addr, heap[4096];
    rdt *third;

    begin(NULL);
    third = node_client(&node, "third");
    addr = alloc_memory(conn, 4096);
    live = put_pattern(addr, 4096, 1);
    second = put_one(conn, &VECTOR(RDT_U8, 4096, addr), NULL);
    copied = put_pattern(heap, 4096, 1);
    objects[0] = fetch_one(conn, &live, RDT_FETCH_AUTO);
    cr_assert_not(info_of(objects[0]).mutable_shared, "the producer knows");
    rdt_release(objects[0]);
    objects[0] = fetch_one(reader, &live, RDT_FETCH_COPY);
    cr_assert_not(info_of(objects[0]).mutable_shared, "a copy does not change");
    rdt_release(objects[0]);
    objects[0] = fetch_one(reader, &live, RDT_FETCH_AUTO);
    objects[1] = fetch_one(reader, &live, RDT_FETCH_AUTO);
    objects[2] = fetch_one(third, &live, RDT_FETCH_AUTO);
    cr_assert_eq(info_of(objects[0]).mutable_shared + info_of(objects[1]).mutable_shared + info_of(objects[2]).mutable_shared,
                 1);
    cr_assert(info_of(objects[0]).mutable_shared);
    for (unsigned i = 0; i < 3; i++)
        rdt_release(objects[i]);
    objects[0] = fetch_one(reader, &second, RDT_FETCH_AUTO);
    cr_assert(info_of(objects[0]).mutable_shared, "each object says it");
    objects[1] = fetch_one(reader, &copied, RDT_FETCH_AUTO);
    cr_assert_not(info_of(objects[1]).mutable_shared, "nobody can write what was copied in");
    rdt_release(objects[0]);
    rdt_release(objects[1]);
    rdt_close(third);
    end();
}

Test(fetch, copy_is_private_and_writable)
{
    size_t sizes[] = {1, 1000, 300000, 80 * MIB + 3};

    begin(NULL);
    for (unsigned i = 0; i < 4; i++) {
        char *addr = alloc_memory(conn, sizes[i]);
        struct rdt_ref ref = put_pattern(addr, sizes[i], i);
        rdt_object *object = fetch_one(i % 2 ? conn : reader, &ref, RDT_FETCH_COPY);
        struct rdt_tensor seen = tensor_of(object, 0);
        must_go_by("local/copy", object);
        cr_assert(info_of(object).writable);
        cr_assert_eq(info_of(object).bytes_moved, sizes[i]);
        cr_assert_not(info_of(object).mutable_shared);
        memset(addr, 0, sizes[i]);
        cr_assert(holds_pattern(seen.data, sizes[i], i));
        memset(seen.data, 0xff, sizes[i]);
        cr_assert(is_filled_with(addr, sizes[i], 0));
        must_ok(rdt_free(conn, &ref, false, &err));
        must_ok(rdt_dealloc(conn, addr, &err));
        cr_assert(is_filled_with(seen.data, sizes[i], 0xff));
        rdt_release(object);
    }
    end();
}

/* Several threads share a large copy, and tensors that lie in a row go together: none is forgotten, none is copied to another's place. */
Test(fetch, copy_of_many_tensors_is_whole)
{
    enum { TENSORS = 3000 };
    static int64_t shapes[TENSORS][2], strides[TENSORS][2];
    static struct rdt_tensor tensors[TENSORS];
    size_t at = 0;
    struct rdt_ref ref;
    rdt_object *object;
    char *addr;

    begin(NULL);
    addr = alloc_memory(conn, 64 * MIB);
    fill_pattern(addr, 64 * MIB, 5);
    for (unsigned i = 0; i < TENSORS; i++) { /* most in a row; some with holes, some empty, a few large */
        int64_t columns = i % 97 == 0 ? 0 : i % 1000 == 7 ? 5 << 20 : 1 + (int64_t)(i * 7919 % 9000);
        shapes[i][0] = i % 31 == 0 ? 2 : 1;
        shapes[i][1] = columns;
        strides[i][0] = i % 62 == 0 ? columns + 3 : columns;
        strides[i][1] = 1;
        tensors[i] =
            (struct rdt_tensor){.dtype = RDT_U8, .ndim = 2, .shape = shapes[i], .strides = strides[i], .data = addr + at};
        at += (size_t)(columns * shapes[i][0]) + (i % 62 == 0 ? 3 : 0) + (i % 5 == 0 ? 64 : 0);
    }
    cr_assert_leq(at, 64 * MIB);
    must_ok(rdt_put(conn, tensors, TENSORS, NULL, &ref, &err));
    object = fetch_one(reader, &ref, RDT_FETCH_COPY);
    must_go_by("local/copy", object);
    for (unsigned i = 0; i < TENSORS; i++) {
        struct rdt_tensor seen = tensor_of(object, i);
        for (int64_t r = 0; r < shapes[i][0] && shapes[i][1] > 0; r++)
            cr_assert_arr_eq((char *)seen.data + r * shapes[i][1], (char *)tensors[i].data + r * strides[i][0],
                             (size_t)shapes[i][1], "row %d of tensor %u", (int)r, i);
    }
    rdt_release(object);
    end();
}

Test(fetch, wishes_that_no_path_meets_say_why)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    rdt_object *object = NULL;
    struct rdt_ref ref;

    begin(NULL);
    ref = put_pattern(alloc_memory(conn, 4096), 4096, 1);
    options.timeout_ns = LONG;
    options.least_path = "share";
    must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
    rdt_release(object);
    options.mode = RDT_FETCH_COPY;
    must_refuse(RDT_NO_PATH, "slower than share", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    options.mode = RDT_FETCH_AUTO;
    options.least_path = "bicycle";
    must_refuse(RDT_INVALID, "\"bicycle\"", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    options.least_path = NULL;
    options.transport = "copy";
    must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
    must_go_by("local/copy", object);
    rdt_release(object);
    options.transport = "bicycle";
    must_refuse(RDT_UNSUPPORTED, "ucx", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    options.transport = "ucx";
    must_refuse(RDT_NO_PATH, "ucx only", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    options.transport = NULL;
    options.mode = RDT_FETCH_COW;
    options.least_path = "cow";
    must_refuse(RDT_NO_PATH, "the object is live", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    options.least_path = NULL;
    must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
    must_go_by("local/copy", object);
    rdt_release(object);
    end();
}

/* ---- targets ---- */

static enum rdt_status fetch_into(const struct rdt_ref *ref, const struct rdt_tensor *targets, size_t count,
                                  rdt_object **object_p, struct rdt_error *err)
{
    struct rdt_fetch_options options = RDT_INIT(options);

    options.targets = &targets;
    options.target_counts = &count;
    options.timeout_ns = LONG;
    return rdt_fetch(reader, ref, 1, &options, object_p, err);
}

Test(fetch, targets_in_any_memory_are_filled_and_nothing_else)
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
        must(object == NULL);
        must(canary_untouched(canary));
        must(is_filled_with(own, 4096, CANARY_BYTE));
    }
}

Test(fetch, targets_that_do_not_fit_are_named_and_untouched)
{
    static const int64_t shape[] = {4, 4}, other[] = {4, 5}, flat[] = {16}, holes[] = {8, 1}, reversed[] = {-4, 1};
    float values[2][16];
    struct rdt_tensor tensors[3] = {{.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = values[0]},
                                    {.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = values[1]}};
    struct rdt_tensor bad[3];
    struct canary canary;
    struct rdt_ref ref;
    char *own;

    begin(NULL);
    own = alloc_memory(reader, 4096);
    memset(own, CANARY_BYTE, 4096);
    canary_create(&canary, 4096);
    must_ok(rdt_put(conn, tensors, 2, NULL, &ref, &err));
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

/* A client that is not librdt names memory that is not its own. */
Test(fetch, targets_by_hand_must_be_the_clients_own)
{
    Rdt__Pb__Fetch fetch = RDT__PB__FETCH__INIT;
    Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items = &item;
    Rdt__Pb__Ref wire = RDT__PB__REF__INIT;
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT, *uses = &use;
    Rdt__Pb__TensorList targets = RDT__PB__TENSOR_LIST__INIT;
    uint32_t dtype = RDT_U8, ndim = 1;
    uint64_t shape = 4096;
    struct rdt_ref ref;
    char *mine;

    begin(NULL);
    mine = alloc_memory(conn, 4096);
    ref = put_pattern(mine, 4096, 1);
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
        struct node_status before, after;
        node_status(&node, &before);
        must_ok(call(reader, RDT_MSG_FETCH, &fetch.base, &rdt__pb__empty__descriptor, LONG, NULL, &err));
        item.handle++;
        node_status(&node, &after);
        cr_assert_eq(after.transfers_failed - before.transfers_failed, 1);
    }
    cr_assert(holds_pattern(mine, 4096, 1));
    end();
}

/* ---- slices ---- */

Test(fetch, slices_match_a_naive_slicer)
{
    uint64_t random = 42;
    char *memory, *own;

    begin(NULL);
    memory = alloc_memory(conn, MIB);
    own = alloc_memory(reader, MIB);
    fill_pattern(memory, MIB, 1);
    for (unsigned round = 0; round < 150; round++) {
        static const enum rdt_dtype dtypes[] = {RDT_U8, RDT_F16, RDT_F32, RDT_F64, RDT_C128};
        int64_t shape[4], strides[4], start[4], count[4], span = 1;
        uint32_t ndim = 1 + next_random(&random) % 4;
        struct rdt_tensor tensor = {.dtype = dtypes[next_random(&random) % 5], .ndim = ndim, .shape = shape}, seen;
        struct rdt_slice slice = {.ndim = ndim, .start = start, .count = count};
        const struct rdt_slice *slices = &slice;
        struct rdt_fetch_options options = RDT_INIT(options);
        size_t one = 1;
        rdt_object *object;
        struct rdt_ref ref;

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
        ref = put_one(conn, &tensor, NULL);
        options.slices = &slices;
        options.slice_counts = &one;
        options.timeout_ns = LONG;
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

Test(fetch, slices_out_of_range_are_invalid)
{
    int64_t start[2] = {0, 0}, count[2] = {4, 4};
    struct rdt_slice slice[2] = {{.ndim = 2, .start = start, .count = count}, {0}};
    const struct rdt_slice *slices = slice;
    struct rdt_fetch_options options = RDT_INIT(options);
    size_t n = 1;
    rdt_object *object = NULL;
    struct rdt_ref ref;
    float values[16];

    begin(NULL);
    ref = put_one(conn, &MATRIX(RDT_F32, 4, 4, values), NULL);
    options.slices = &slices;
    options.slice_counts = &n;
    options.timeout_ns = LONG;
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
    slice[0].ndim = 1;
    must_refuse(RDT_INVALID, "tensor 0", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    slice[0].ndim = 2;
    n = 2; /* more than there are tensors */
    must_be(RDT_INVALID, rdt_fetch(reader, &ref, 1, &options, &object, &err));
    n = 1;
    slice[0].ndim = 0; /* the whole */
    must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
    rdt_release(object);
    end();
}

/* ---- several at once ---- */

Test(fetch, list_of_refs_comes_in_order)
{
    enum { N = 50 };
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref refs[N];
    rdt_object *objects[N];
    uint32_t *values;

    begin(NULL);
    values = alloc_memory(conn, N * sizeof *values);
    options.timeout_ns = LONG;
    for (unsigned i = 0; i < N; i++) {
        values[i] = 1000 + i;
        refs[i] = put_one(conn, &VECTOR(RDT_U32, 1, &values[i]), NULL);
    }
    for (unsigned mode = 0; mode < 3; mode++) {
        options.mode = (enum rdt_fetch_mode)mode;
        must_ok(rdt_fetch(reader, refs, N, &options, objects, &err));
        for (unsigned i = 0; i < N; i++) {
            struct rdt_tensor seen = tensor_of(objects[i], 0);
            cr_assert_eq(*(uint32_t *)seen.data, values[i]);
            rdt_release(objects[i]);
        }
    }
    must_ok(rdt_fetch(reader, NULL, 0, &options, NULL, &err));
    must_ok(rdt_fetch(reader, refs, 0, NULL, objects, &err));
    end();
}

/* Two objects in one region by one fetch: the second comes without a fd, and finds what the first had mapped. */
static void fetch_two(bool seen)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref refs[2];
    rdt_request *requests[2];
    struct rdt_tensor tensor;
    rdt_object *object;
    struct rdt_ref later;
    char *addr;

    begin(NULL);
    addr = alloc_memory(conn, 8192);
    refs[0] = put_pattern(addr, 4096, 1);
    refs[1] = ref_named("later");
    options.timeout_ns = LONG;
    must_ok(rdt_fetch_start(reader, refs, 2, &options, requests, &err));
    if (seen) {
        must_ok(rdt_wait(reader, requests, 1, 1, LONG, NULL, NULL, &err));
        must_ok(rdt_request_take_object(requests[0], &object, &err));
        rdt_release(object);
    }
    rdt_request_destroy(requests[0]);
    must_ok(rdt_ping(reader, LONG, &err)); /* the first answer has come, and the daemon has heard what became of it */
    fill_pattern(addr + 4096, 4096, 2);
    later = put_one(conn, &VECTOR(RDT_U8, 4096, addr + 4096), "later");
    must_ok(rdt_wait(reader, &requests[1], 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(requests[1], &object, &err));
    tensor = tensor_of(object, 0);
    cr_assert(holds_pattern(tensor.data, 4096, 2));
    must_go_by("local/share", object);
    rdt_release(object);
    must_ok(rdt_free(conn, &refs[0], false, &err));
    must_ok(rdt_free(conn, &later, false, &err));
    must_ok(rdt_dealloc(conn, addr, &err));
    must_ok(rdt_ping(reader, LONG, &err)); /* it hears that the region is gone */
    cr_assert_eq(msync((char *)tensor.data - 4096, 1, MS_ASYNC), -1, "still mapped");
    rdt_request_destroy(requests[1]);
    end();
}

Test(fetch, region_of_a_list_stays_mapped_until_all_have_come)
{
    fetch_two(true);
}

Test(fetch, region_of_a_list_is_mapped_by_an_answer_to_a_cancelled_item)
{
    fetch_two(false);
}

Test(fetch, list_of_which_every_third_is_cancelled_is_whole)
{
    enum { N = 600 };
    struct rdt_fetch_options options = RDT_INIT(options);
    static struct rdt_ref refs[N];
    static rdt_request *requests[N];
    uint32_t *values;

    begin(NULL);
    values = alloc_memory(conn, N * sizeof *values);
    options.timeout_ns = LONG;
    for (unsigned i = 0; i < N; i++) {
        values[i] = 1000 + i;
        refs[i] = put_one(conn, &VECTOR(RDT_U32, 1, &values[i]), NULL);
    }
    must_ok(rdt_fetch_start(reader, refs, N, &options, requests, &err));
    for (unsigned i = 0; i < N; i += 3)
        rdt_request_destroy(requests[i]);
    for (unsigned i = 0; i < N; i++) {
        struct rdt_tensor seen;
        rdt_object *object;

        if (i % 3 == 0)
            continue;
        must_ok(rdt_wait(reader, &requests[i], 1, 1, LONG, NULL, NULL, &err));
        must_ok(rdt_request_take_object(requests[i], &object, &err));
        seen = tensor_of(object, 0);
        cr_assert_eq(*(uint32_t *)seen.data, values[i]);
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
    end();
}

Test(fetch, equal_refs_share_one_transfer)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref refs[4];
    rdt_object *objects[4];
    struct node_status before, after;

    begin(NULL);
    refs[0] = refs[2] = refs[3] = put_pattern(alloc_memory(conn, 4096), 4096, 1);
    refs[1] = put_pattern(alloc_memory(conn, 4096), 4096, 2);
    node_status(&node, &before);
    options.timeout_ns = LONG;
    must_ok(rdt_fetch(reader, refs, 4, &options, objects, &err));
    node_status(&node, &after);
    cr_assert_eq(after.transfers_done - before.transfers_done, 2);
    for (unsigned i = 0; i < 4; i++) {
        struct rdt_tensor seen = tensor_of(objects[i], 0);
        cr_assert(holds_pattern(seen.data, 4096, i == 1 ? 2 : 1));
    }
    cr_assert_eq(info_of(objects[0]).transfer, info_of(objects[2]).transfer);
    cr_assert_eq(info_of(objects[0]).transfer, info_of(objects[3]).transfer);
    cr_assert_neq(info_of(objects[0]).transfer, info_of(objects[1]).transfer);
    for (unsigned i = 0; i < 4; i++)
        rdt_release(objects[i]);
    end();
}

Test(fetch, one_bad_ref_of_many_releases_the_others)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref refs[3];
    rdt_object *objects[3] = {NULL};
    struct rdt_stat stat;

    begin(NULL);
    refs[0] = put_pattern(alloc_memory(conn, 4096), 4096, 1);
    refs[1] = put_pattern(alloc_memory(conn, 4096), 4096, 1);
    refs[2] = refs[0];
    must_ok(rdt_free(conn, &refs[1], false, &err));
    options.timeout_ns = LONG;
    must_be(RDT_FREED, rdt_fetch(reader, refs, 3, &options, objects, &err));
    cr_assert(!objects[0] && !objects[1] && !objects[2]);
    wait_until(20 * SEC, rdt_stat(conn, &refs[0], &stat, NULL) == RDT_OK && stat.holds == 1);
    end();
}

/* ---- not yet there ---- */

static int fetch_early(struct actor *self, void *arg)
{
    rdt *client = node_client(arg, "early");
    struct rdt_ref ref = ref_named("later");
    rdt_request *request = start_one(client, &ref, LONG);
    struct rdt_tensor seen;
    rdt_object *object;

    must_ok(rdt_ping(client, LONG, &err)); /* the daemon has it */
    actor_step(self);
    must_ok(rdt_wait(client, &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
    seen = tensor_of(object, 0);
    must(holds_pattern(seen.data, 4096, 8));
    rdt_release(object);
    rdt_request_destroy(request);
    rdt_close(client);
    return 0;
}

Test(fetch, parks_until_it_is_put)
{
    struct actor actors[3];
    struct rdt_ref later = ref_named("later");
    struct rdt_stat stat;
    char memory[4096];

    node_start(&node, NULL);
    for (unsigned i = 0; i < 3; i++)
        actor_start(&actors[i], fetch_early, &node);
    conn = node_client(&node, "producer");
    reader = node_client(&node, "reader");
    for (unsigned i = 0; i < 3; i++)
        actor_await(&actors[i]);
    must_ok(rdt_stat(conn, &later, &stat, &err));
    cr_assert_str_eq(stat.state, "awaited");
    cr_assert_eq(stat.waiters, 3);
    fill_pattern(memory, 4096, 8);
    (void)put_one(conn, &VECTOR(RDT_U8, 4096, memory), "later");
    for (unsigned i = 0; i < 3; i++)
        actor_wait(&actors[i]);
    end();
}

Test(fetch, never_put_times_out_at_its_deadline)
{
    struct rdt_ref ref = ref_named("never");
    rdt_object *object = NULL;
    struct node_status status;
    int64_t start;

    begin(NULL);
    start = now_ns();
    must_refuse(RDT_TIMED_OUT, "never", try_fetch(reader, &ref, RDT_FETCH_AUTO, 200 * MSEC, &object, &err));
    cr_assert_geq(now_ns() - start, 200 * MSEC);
    must_be_within(start, 2 * SEC);
    start = now_ns();
    must_be(RDT_TIMED_OUT, rdt_wait_put(reader, &ref, 100 * MSEC, &err));
    cr_assert_geq(now_ns() - start, 100 * MSEC);
    must_be(RDT_TIMED_OUT, rdt_wait_put(reader, &ref, 0, &err));
    cr_assert_null(object);
    wait_until(20 * SEC, (node_status(&node, &status), status.objects == 0));
    end();
}

Test(fetch, wait_put_answers_when_it_is_there)
{
    struct rdt_ref ref = ref_named("w"), put;
    struct rdt_stat stat;

    begin(NULL);
    put = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "w");
    must_ok(rdt_wait_put(reader, &ref, LONG, &err));
    must_ok(rdt_wait_put(reader, &put, LONG, &err));
    must_ok(rdt_stat(reader, &ref, &stat, &err));
    cr_assert_str_eq(stat.state, "live");
    cr_assert_eq(stat.bytes, 5);
    cr_assert_eq(stat.tensors, 1);
    cr_assert_eq(stat.holds, 1);
    cr_assert_eq(stat.pins, 0);
    cr_assert_eq(stat.ref.generation, put.generation);
    must_ok(rdt_free(conn, &put, false, &err));
    must_be(RDT_FREED, rdt_wait_put(reader, &put, LONG, &err));
    end();
}
