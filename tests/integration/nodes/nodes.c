/* SPDX-License-Identifier: Apache-2.0 */
/* Objects on one node and readers on another: what arrives, by which path, and which errors clients get. Over ucx, on
 * separate cables where the test may create them. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/integration/nodes/nodes_fixture.h"

TestSuite(nodes, .timeout = 240);

/* ---- bytes ---- */

Test(nodes, sizes_arrive)
{
    static const struct {
        size_t bytes;
        const char *path;
    } rows[] = {
        {0, "inline"},    {1, "inline"},    {32 * KIB, "inline"}, {32 * KIB + 1, "ucx"},
        {MIB - 1, "ucx"}, {5 * MIB, "ucx"}, {64 * MIB, "ucx"},
    };

    begin(2);
    for (size_t i = 0; i < sizeof(rows) / sizeof rows[0]; i++) {
        struct rdt_ref ref = put_pattern(owner, NULL, rows[i].bytes, (uint32_t)i);
        fetch_pattern(reader, &ref, rows[i].bytes, (uint32_t)i, rows[i].path);
        fetch_pattern(reader, &ref, rows[i].bytes, (uint32_t)i, rows[i].path); /* again, over warm memory */
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    end(NULL);
}

/* Puts `count` tensors in memory of the daemon, with various types, shapes and gaps between them. */
struct pile {
    struct rdt_tensor *tensors;
    int64_t (*shapes)[2];
    size_t count;
};

static void pile_up(struct pile *pile, rdt *conn, size_t count, size_t big_every, size_t big_bytes)
{
    static const enum rdt_dtype dtypes[] = {RDT_U8, RDT_BF16, RDT_F32, RDT_F64, RDT_BOOL};
    size_t bytes = 0, at = 0;
    uint64_t dice = 11;

    *pile = (struct pile){
        .tensors = calloc(count, sizeof *pile->tensors), .shapes = calloc(count, sizeof *pile->shapes), .count = count};
    must(pile->tensors && pile->shapes);
    for (size_t i = 0; i < count; i++) {
        struct rdt_tensor *tensor = &pile->tensors[i];
        tensor->dtype = dtypes[next_random(&dice) % 5];
        tensor->ndim = next_random(&dice) % 3;
        tensor->shape = pile->shapes[i];
        pile->shapes[i][0] = next_random(&dice) % 8; /* some are empty */
        pile->shapes[i][1] = 1 + next_random(&dice) % 8;
        if (big_every && i % big_every == 0) {
            tensor->ndim = 1;
            pile->shapes[i][0] = (int64_t)(big_bytes / rdt_dtype_bytes(tensor->dtype)) + (int64_t)i;
        }
        bytes += (size_t)elements_of(tensor) * rdt_dtype_bytes(tensor->dtype) + 16;
    }
    uint8_t *memory = alloc_memory(conn, bytes);
    fill_pattern(memory, bytes, 5);
    for (size_t i = 0; i < count; i++) {
        pile->tensors[i].data = memory + at;
        at += ((size_t)elements_of(&pile->tensors[i]) * rdt_dtype_bytes(pile->tensors[i].dtype) + 15) / 8 * 8;
    }
}

static void pile_fini(struct pile *pile)
{
    free(pile->tensors);
    free(pile->shapes);
}

static void check_pile_arrives(const struct pile *pile)
{
    struct rdt_ref ref = put_as(owner, pile->tensors, pile->count, NULL);
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    must_go_by("ucx", object);
    must(rdt_object_count(object) == pile->count);
    for (size_t i = 0; i < pile->count; i++) {
        struct rdt_tensor tensor = tensor_of(object, i);
        must_say(tensors_equal(&tensor, &pile->tensors[i]), "tensor %zu differs", i);
        must_say(is_row_major(&tensor), "tensor %zu has holes", i);
    }
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, false, &err));
}

Test(nodes, ten_thousand_small_tensors_arrive)
{
    struct pile pile;

    begin(2);
    pile_up(&pile, owner, 10000, 0, 0);
    check_pile_arrives(&pile);
    pile_fini(&pile);
    end(NULL);
}

Test(nodes, big_and_small_tensors_arrive)
{
    struct pile pile;

    begin(2);
    pile_up(&pile, owner, 300, 25, 3 * MIB);
    check_pile_arrives(&pile);
    pile_fini(&pile);
    end(NULL);
}

Test(nodes, strided_source_arrives_row_major)
{
    enum { ROWS = 700, COLUMNS = 900 };
    static const int64_t turned[] = {1, COLUMNS}, backwards[] = {-COLUMNS, -1}, holes[] = {2 * COLUMNS, 3}, same[] = {0, 1};
    const int64_t shape[] = {COLUMNS, ROWS}, plain[] = {ROWS, COLUMNS}, few[] = {ROWS / 2, COLUMNS / 3};
    struct rdt_tensor tensors[4];
    float *memory;

    begin(2);
    memory = alloc_memory(owner, ROWS * COLUMNS * sizeof *memory);
    fill_pattern(memory, ROWS * COLUMNS * sizeof *memory, 3);
    tensors[0] = (struct rdt_tensor){RDT_F32, 2, shape, turned, memory};
    tensors[1] = (struct rdt_tensor){RDT_F32, 2, plain, backwards, memory + ROWS * COLUMNS - 1};
    tensors[2] = (struct rdt_tensor){RDT_F32, 2, few, holes, memory + 1};
    tensors[3] = (struct rdt_tensor){RDT_F32, 2, plain, same, memory + 7};
    tensors[3].shape = (const int64_t[]){50, COLUMNS - 7};
    struct rdt_ref ref = put_as(owner, tensors, 4, NULL);
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    must_go_by("ucx", object);
    for (size_t i = 0; i < 4; i++) {
        struct rdt_tensor tensor = tensor_of(object, i);
        must_say(tensors_equal(&tensor, &tensors[i]) && is_row_major(&tensor), "tensor %zu", i);
    }
    rdt_release(object);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(nodes, slices_arrive)
{
    enum { ROWS = 2000, COLUMNS = 500 };
    static const struct {
        int64_t start[2], count[2];
        const char *path;
    } rows[] = {
        {{0, 0}, {ROWS, COLUMNS}, "ucx"}, {{10, 0}, {700, COLUMNS}, "ucx"}, {{0, 100}, {ROWS, 300}, "ucx"},
        {{1999, 499}, {1, 1}, "inline"},  {{5, 5}, {10, 10}, "inline"},     {{3, 3}, {0, 10}, "inline"},
    };
    uint32_t *memory;

    begin(2);
    memory = alloc_memory(owner, ROWS * COLUMNS * sizeof *memory);
    fill_pattern(memory, ROWS * COLUMNS * sizeof *memory, 3);
    struct rdt_tensor whole = MATRIX(RDT_U32, ROWS, COLUMNS, memory);
    struct rdt_ref ref = put_one(owner, &whole, NULL);
    for (size_t i = 0; i < sizeof(rows) / sizeof rows[0]; i++) {
        struct rdt_slice slice = {2, rows[i].start, rows[i].count};
        const struct rdt_slice *slices = &slice;
        size_t n_slices = 1;
        struct rdt_fetch_options options = within(LONG);

        options.slices = &slices;
        options.slice_counts = &n_slices;
        rdt_object *object = fetch_as(reader, &ref, &options);
        struct rdt_tensor part = tensor_of(object, 0);
        must_say(equals_slice(&part, &whole, &slice), "slice %zu", i);
        must_go_by(rows[i].path, object);
        rdt_release(object);
    }
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(nodes, slice_beyond_end_refused)
{
    const int64_t start[] = {90}, count[] = {11};
    struct rdt_slice slice = {1, start, count};
    const struct rdt_slice *slices = &slice;
    size_t n_slices = 1;
    struct rdt_fetch_options options = within(LONG);
    rdt_object *object;

    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, 100, 1);
    options.slices = &slices;
    options.slice_counts = &n_slices;
    must_be(RDT_INVALID, rdt_fetch(reader, &ref, 1, &options, &object, &err));
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(nodes, metadata_arrives)
{
    static const size_t sizes[] = {0, 1, 100, 40 * KIB, 4 * MIB};
    uint8_t *metadata = malloc(4 * MIB);

    begin(2);
    fill_pattern(metadata, 4 * MIB, 8);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t bytes;
        struct rdt_put_options options = {.struct_size = sizeof options, .metadata = metadata, .metadata_bytes = sizes[i]};
        struct rdt_ref ref = put_as(owner, NULL, 0, &options);
        rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_AUTO);

        must(rdt_object_count(object) == 0);
        const void *got = rdt_object_metadata(object, &bytes);
        must(bytes == sizes[i] && (bytes == 0 || memcmp(got, metadata, bytes) == 0));
        rdt_release(object);
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    free(metadata);
    end(NULL);
}

/* ---- targets ---- */

Test(nodes, targets_receive)
{
    static const size_t sizes[] = {100, 32 * KIB, 100 * KIB, 9 * MIB + 3};

    begin(2);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t bytes = sizes[i], margin = 8192;
        struct rdt_ref refs[2];
        struct canary canary;
        uint8_t *shared = alloc_memory(reader, bytes + 2 * margin);
        struct rdt_tensor plain, direct;
        const struct rdt_tensor *targets[2] = {&plain, &direct};
        size_t counts[2] = {1, 1};
        struct rdt_fetch_options options = within(LONG);
        rdt_object *objects[2];

        canary_create(&canary, bytes);
        memset(shared, CANARY_BYTE, bytes + 2 * margin);
        plain = VECTOR(RDT_U8, bytes, canary.addr);
        direct = VECTOR(RDT_U8, bytes, shared + margin);
        options.targets = targets;
        options.target_counts = counts;
        refs[0] = refs[1] = put_pattern(owner, NULL, bytes, 9);
        must_ok(rdt_fetch(reader, refs, 2, &options, objects, &err));
        must(holds_pattern(canary.addr, bytes, 9) && canary_alive(&canary));
        must(holds_pattern(shared + margin, bytes, 9));
        must(is_filled_with(shared, margin, CANARY_BYTE) && is_filled_with(shared + margin + bytes, margin, CANARY_BYTE));
        for (unsigned k = 0; k < 2; k++) {
            struct rdt_tensor tensor = tensor_of(objects[k], 0);
            must(tensor.data == targets[k]->data);
            rdt_release(objects[k]);
        }
        must(holds_pattern(shared + margin, bytes, 9)); /* it is the caller's memory, also after the release */
        must_ok(rdt_dealloc(reader, shared, &err));
        must_ok(rdt_free(owner, &refs[0], false, &err));
        canary_destroy(&canary);
    }
    end(NULL);
}

/* The first tensor fits, the second does not: nothing of either is written. */
Test(nodes, target_mismatch_writes_nothing)
{
    static const struct {
        enum rdt_dtype dtype;
        size_t elements, count;
    } rows[] = {{RDT_U8, 300001, 2}, {RDT_I8, 300000, 2}, {RDT_U8, 300000, 1}, {RDT_U8, 10, 2}};
    const size_t bytes = 300000;
    struct rdt_tensor source[2];

    begin(2);
    uint8_t *memory = alloc_memory(owner, 2 * bytes);
    source[0] = VECTOR(RDT_U8, bytes, memory);
    source[1] = VECTOR(RDT_U8, bytes, memory + bytes);
    struct rdt_ref ref = put_as(owner, source, 2, NULL);
    for (size_t i = 0; i < sizeof(rows) / sizeof rows[0]; i++)
        for (unsigned direct = 0; direct < 2; direct++) {
            struct canary canary;
            struct rdt_tensor target[2];
            const struct rdt_tensor *targets = target;
            size_t count = rows[i].count;
            struct rdt_fetch_options options = within(LONG);
            rdt_object *object;

            canary_create(&canary, 2 * (bytes + 1));
            uint8_t *at = direct ? alloc_memory(reader, canary.bytes) : canary.addr;
            memset(at, CANARY_BYTE, canary.bytes);
            target[0] = VECTOR(RDT_U8, bytes, at);
            target[1] = VECTOR(rows[i].dtype, rows[i].elements, at + bytes);
            options.targets = &targets;
            options.target_counts = &count;
            must_refuse(RDT_MISMATCH, count == 1 ? "tensors" : "tensor 1", rdt_fetch(reader, &ref, 1, &options, &object, &err));
            must(is_filled_with(at, canary.bytes, CANARY_BYTE));
            must(canary_untouched(&canary));
            if (direct) {
                must_ok(rdt_wait_freed_range(reader, at, canary.bytes, LONG, &err));
                must(is_filled_with(at, canary.bytes, CANARY_BYTE));
                must_ok(rdt_dealloc(reader, at, &err));
            }
            canary_destroy(&canary);
        }
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

/* ---- names ---- */

Test(nodes, refs_travel_as_text)
{
    struct rdt_ref ref, read;
    char text[RDT_REF_TEXT_BYTES];

    begin(2);
    ref = put_pattern(owner, "weights/7 %", 100000, 4);
    rdt_ref_to_text(&ref, text);
    must_ok(rdt_ref_from_text(text, &read, &err));
    fetch_pattern(reader, &read, 100000, 4, "ucx");
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

static void check_stat(rdt *conn, const struct rdt_ref *ref, const char *state, unsigned waiters)
{
    struct rdt_stat stat = stat_of(conn, ref);
    must_say(strcmp(stat.state, state) == 0 && stat.waiters == waiters, "%s with %u waiters", stat.state, stat.waiters);
}

Test(nodes, fetch_parks_until_put)
{
    static const size_t sizes[] = {100, 200000};

    begin(2);
    for (unsigned i = 0; i < 2; i++) {
        struct rdt_ref ref = ref_on(&c.node[0], "later"), put;
        rdt_request *request = start_one(reader, &ref, LONG);

        await_transfer(&c.node[0], "out", "parked");
        check_stat(owner, &ref, "awaited", 1);
        must_be(RDT_TIMED_OUT, rdt_wait(reader, &request, 1, 1, 0, NULL, NULL, &err));
        put = put_pattern(owner, "later", sizes[i], 2);
        rdt_object *object = await_object(reader, request);
        struct rdt_tensor tensor = tensor_of(object, 0);
        must(holds_pattern(tensor.data, sizes[i], 2));
        must(info_of(object).ref.generation == put.generation);
        rdt_release(object);
        rdt_request_destroy(request);
        must_ok(rdt_free(owner, &put, false, &err));
    }
    end(NULL);
}

Test(nodes, fetch_parks_until_deadline)
{
    rdt_object *object;
    struct rdt_stat stat;

    begin(2);
    struct rdt_ref ref = ref_on(&c.node[0], "never");
    int64_t start = now_ns();
    must_be(RDT_TIMED_OUT, try_fetch(reader, &ref, RDT_FETCH_AUTO, 200 * MSEC, &object, &err));
    must(now_ns() - start >= 200 * MSEC);
    must_be_within(start, 3 * SEC);
    wait_until(5 * SEC, rdt_stat(owner, &ref, &stat, NULL) == RDT_NOT_FOUND); /* the owner's node has no waiter either */
    end(NULL);
}

/* How a fetch that times out says what was missing. A loaded machine may miss the moment in which librdt waits for it. */
static bool misses(const struct rdt_ref *ref, const char *what)
{
    struct rdt_error why;
    rdt_object *object;

    return try_fetch(reader, ref, RDT_FETCH_AUTO, 200 * MSEC, &object, &why) == RDT_TIMED_OUT && strstr(why.msg, what);
}

Test(nodes, time_out_of_a_fetch_says_what_was_missing)
{
    begin(2);
    struct rdt_ref never = ref_on(&c.node[0], "never");
    wait_until(LONG, misses(&never, "nobody has put an object with this id"));
    struct rdt_ref name = ref_on(&c.node[0], "never");
    name.is_name = true;
    wait_until(LONG, misses(&name, "nobody has published such a version of it"));
    struct rdt_ref ref = put_pattern(owner, NULL, 100000, 1);
    node_freeze(&c.node[0]);
    wait_until(LONG, misses(&ref, "has not answered"));
    node_thaw(&c.node[0]);
    fetch_pattern(reader, &ref, 100000, 1, NULL);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(nodes, equal_refs_share_one_transfer)
{
    enum { N = 8 };
    struct rdt_ref ref, refs[N];
    rdt_object *objects[N];

    begin(2);
    ref = put_pattern(owner, NULL, 2 * MIB, 6);
    for (unsigned i = 0; i < N; i++)
        refs[i] = ref;
    struct node_status before = node_now(&c.node[0]);
    must_ok(rdt_fetch(reader, refs, N,
                      &(struct rdt_fetch_options){.struct_size = sizeof(struct rdt_fetch_options), .timeout_ns = LONG}, objects,
                      &err));
    cluster_expect_idle_of_transfers(&c); /* the owner hears of the end later */
    struct node_status after = node_now(&c.node[0]);
    must_say(after.bytes_out - before.bytes_out == 2 * MIB, "%llu bytes moved",
             (unsigned long long)(after.bytes_out - before.bytes_out));
    for (unsigned i = 0; i < N; i++) {
        struct rdt_tensor tensor = tensor_of(objects[i], 0);
        must(holds_pattern(tensor.data, 2 * MIB, 6));
        must(info_of(objects[i]).transfer == info_of(objects[0]).transfer);
        if (i > 0)
            rdt_release(objects[i]);
    }
    must(holds_pattern(tensor_of(objects[0], 0).data, 2 * MIB, 6)); /* each has a hold of its own */
    rdt_release(objects[0]);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(nodes, many_refs_at_once)
{
    enum { N = 600 };
    static struct rdt_ref refs[N];
    static rdt_object *objects[N];
    struct rdt_fetch_options options = within(LONG);

    begin(2);
    for (unsigned i = 0; i < N; i++)
        refs[i] = put_pattern(owner, NULL, i % 10 == 0 ? 100000 + i : 10 * i, i);
    must_ok(rdt_fetch(reader, refs, N, &options, objects, &err));
    for (unsigned i = 0; i < N; i++) {
        struct rdt_tensor tensor = tensor_of(objects[i], 0);
        size_t bytes = i % 10 == 0 ? 100000 + i : 10 * i;
        must(tensor.shape[0] == (int64_t)bytes && holds_pattern(tensor.data, bytes, i));
        rdt_release(objects[i]);
    }
    end(NULL);
}
