/* SPDX-License-Identifier: Apache-2.0 */
/* Small objects: their bytes travel inside the messages of put and fetch, and lie in the daemon's arena in between. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cluster.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define INLINE_MAX 32768u
#define PEER_INLINE_MAX 65536u

static struct test_node node;
static rdt *conn, *reader;

static void begin(const char *const *flags)
{
    node_start(&node, &(struct node_options){.flags = flags});
    conn = node_client(&node, "producer");
    reader = node_client(&node, "reader");
}

static void end(void)
{
    rdt_close(conn);
    rdt_close(reader);
    node_end(&node, NULL);
}

static struct node_status status_now(void)
{
    return node_now(&node);
}

static struct rdt_ref put_small(size_t bytes, uint32_t seed, enum rdt_memory *how_p)
{
    enum rdt_memory how;
    uint8_t *data = malloc(bytes);

    must(data);
    fill_pattern(data, bytes, seed);
    struct rdt_put_options options = {.struct_size = sizeof options, .how = how_p ? how_p : &how};
    struct rdt_ref ref = put_as(conn, &VECTOR(RDT_U8, bytes, data), 1, &options);
    memset(data, 0, bytes); /* it is the caller's again */
    free(data);
    return ref;
}

TestSuite(small, .timeout = 120);

Test(small, bytes_travel_in_both_messages)
{
    static const size_t sizes[] = {1, 63, 64, 65, 4096, 4097, INLINE_MAX - 1, INLINE_MAX};
    static const enum rdt_fetch_mode modes[] = {RDT_FETCH_AUTO, RDT_FETCH_COPY};

    begin(NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (size_t m = 0; m < 2; m++) {
            enum rdt_memory how = RDT_MEMORY_DAEMON;
            struct rdt_ref ref = put_small(sizes[i], (uint32_t)i, &how);
            rdt_object *object = fetch_one(m ? conn : reader, &ref, modes[m]);
            struct rdt_tensor seen = tensor_of(object, 0);
            cr_assert_eq(how, RDT_MEMORY_COPIED);
            must_go_by("inline", object);
            cr_assert(holds_pattern(seen.data, sizes[i], (uint32_t)i));
            cr_assert_eq((uintptr_t)seen.data % 64, 0u);
            cr_assert(info_of(object).writable, "it is the reader's own copy");
            cr_assert_not(info_of(object).mutable_shared);
            must_ok(rdt_free(conn, &ref, false, &err));
            cr_assert(holds_pattern(seen.data, sizes[i], (uint32_t)i), "nothing of the daemon is in it");
            rdt_release(object);
        }
    end();
}

Test(small, larger_ones_take_a_region)
{
    enum rdt_memory how;

    begin(NULL);
    struct rdt_ref ref = put_small(INLINE_MAX + 1, 3, &how);
    cr_assert_eq(how, RDT_MEMORY_COPIED);
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    must_go_by("local/share", object);
    cr_assert(holds_pattern(tensor_of(object, 0).data, INLINE_MAX + 1, 3));
    rdt_release(object);
    end();
}

Test(small, sharing_is_refused_by_reason)
{
    rdt_object *object = NULL;

    begin(NULL);
    struct rdt_ref ref = put_small(100, 1, NULL);
    must_refuse(RDT_NO_PATH, "arena", try_fetch(reader, &ref, RDT_FETCH_SHARE, LONG, &object, &err));
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG, .least_path = "share"};
    must_refuse(RDT_NO_PATH, "arena", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    for (unsigned i = 0; i < 2; i++) {
        options.least_path = i ? "copy" : "inline";
        must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
        must_go_by("inline", object);
        rdt_release(object);
    }
    options.least_path = NULL;
    options.transport = "copy"; /* a copy by way of memory of the daemon, if it must be */
    must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
    must_go_by("local/copy", object);
    cr_assert(holds_pattern(tensor_of(object, 0).data, 100, 1));
    rdt_release(object);
    end();
}

Test(small, targets_receive)
{
    static const char *const least[] = {NULL, "inline", "copy"};

    begin(NULL);
    for (unsigned i = 0; i < 3; i++) {
        struct rdt_ref ref = put_small(5000, 4, NULL);
        uint8_t *direct = alloc_memory(reader, 5000);
        struct canary plain;
        struct rdt_tensor tensors[2];
        const struct rdt_tensor *targets[2] = {&tensors[0], &tensors[1]};
        const struct rdt_ref refs[2] = {ref, ref};
        size_t counts[2] = {1, 1};
        rdt_object *objects[2];

        canary_create(&plain, 5000);
        tensors[0] = VECTOR(RDT_U8, 5000, plain.addr);
        tensors[1] = VECTOR(RDT_U8, 5000, direct);
        struct rdt_fetch_options options = {.struct_size = sizeof options,
                                            .timeout_ns = LONG,
                                            .targets = targets,
                                            .target_counts = counts,
                                            .least_path = least[i]};
        must_ok(rdt_fetch(reader, refs, 2, &options, objects, &err));
        cr_assert(canary_alive(&plain) && holds_pattern(plain.addr, 5000, 4));
        cr_assert(holds_pattern(direct, 5000, 4));
        must_go_by("local/copy", objects[1]);
        rdt_release(objects[0]);
        rdt_release(objects[1]);
        canary_destroy(&plain);
        must_ok(rdt_dealloc(reader, direct, &err));
    }
    end();
}

Test(small, many_tensors_slices_and_odd_shapes)
{
    double numbers[6][7];
    float column[5];
    uint16_t scalar = 77;
    struct rdt_tensor tensors[4] = {
        MATRIX(RDT_F64, 6, 7, numbers),
        {.dtype = RDT_F32, .ndim = 2, .shape = (const int64_t[]){0, 9}},
        {.dtype = RDT_U16, .data = &scalar},
        {.dtype = RDT_F32, .ndim = 1, .shape = (const int64_t[]){3}, .strides = (const int64_t[]){-2}, .data = column + 4}};
    struct rdt_slice slice[4] = {{.ndim = 2, .start = (const int64_t[]){1, 2}, .count = (const int64_t[]){4, 3}}};
    const struct rdt_slice *slices = slice;
    size_t n_slices = 4;
    struct rdt_tensor seen;

    begin(NULL);
    for (unsigned i = 0; i < 42; i++)
        numbers[i / 7][i % 7] = i * 1.5;
    for (unsigned i = 0; i < 5; i++)
        column[i] = (float)i;
    struct rdt_ref ref = put_as(conn, tensors, 4, NULL);
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    must_go_by("inline", object);
    cr_assert_eq(rdt_object_count(object), 4u);
    for (unsigned i = 0; i < 4; i++) {
        seen = tensor_of(object, i);
        cr_assert(tensors_equal(&seen, &tensors[i]), "tensor %u", i);
        cr_assert(is_row_major(&seen));
    }
    rdt_release(object);
    struct rdt_fetch_options options = {
        .struct_size = sizeof options, .timeout_ns = LONG, .slices = &slices, .slice_counts = &n_slices};
    must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
    must_go_by("inline", object);
    seen = tensor_of(object, 0);
    cr_assert(equals_slice(&seen, &tensors[0], &slice[0]));
    seen = tensor_of(object, 3);
    cr_assert(tensors_equal(&seen, &tensors[3]));
    rdt_release(object);
    end();
}

/* Some of its tensors in memory of the daemon, some not: the small part gets a region of its own in the same round trip. */
Test(small, mixed_objects_can_be_shared)
{
    enum rdt_memory how[2];
    struct rdt_tensor tensors[2], seen;
    uint32_t little[3] = {7, 8, 9};
    rdt_object *object;

    begin(NULL);
    uint8_t *much = alloc_memory(conn, 100000);
    fill_pattern(much, 100000, 5);
    tensors[0] = VECTOR(RDT_U8, 100000, much);
    tensors[1] = VECTOR(RDT_U32, 3, little);
    struct rdt_put_options options = {.struct_size = sizeof options, .how = how};
    struct rdt_ref ref = put_as(conn, tensors, 2, &options);
    cr_assert(how[0] == RDT_MEMORY_DAEMON && how[1] == RDT_MEMORY_COPIED);
    for (enum rdt_fetch_mode mode = RDT_FETCH_AUTO; mode <= RDT_FETCH_COPY; mode++) {
        object = fetch_one(reader, &ref, mode);
        must_go_by(mode == RDT_FETCH_COPY ? "local/copy" : "local/share", object);
        for (unsigned i = 0; i < 2; i++) {
            seen = tensor_of(object, i);
            cr_assert(tensors_equal(&seen, &tensors[i]));
        }
        rdt_release(object);
    }
    must_ok(rdt_dealloc(conn, much, &err));
    end();
}

Test(small, memory_is_few_regions_and_goes_back)
{
    enum { N = 3000 };
    static struct rdt_ref refs[N];

    begin(NULL);
    for (unsigned i = 0; i < N; i++)
        refs[i] = put_small(200, i, NULL);
    struct node_status status = status_now();
    cr_assert_eq(status.objects, N);
    cr_assert_leq(status.regions, 10u);
    cr_assert_leq(status.memory_bytes, N * 256u * 2u + (128u << 10));
    for (unsigned i = 0; i < N; i += 2)
        must_ok(rdt_free(conn, &refs[i], i % 4 == 0, &err));
    for (unsigned i = 1; i < N; i += 2) {
        rdt_object *object = fetch_one(reader, &refs[i], RDT_FETCH_AUTO);
        cr_assert(holds_pattern(tensor_of(object, 0).data, 200, i));
        rdt_release(object);
    }
    rdt_close(conn); /* the rest goes with its producer */
    wait_until(20 * SEC, (status = status_now(), status.objects == 0 && status.memory_bytes == 0 && status.regions == 0));
    conn = node_client(&node, "another");
    end();
}

Test(small, over_memory_limit_is_refused)
{
    static const char *const flags[] = {"--memory-limit", "4MiB", NULL};
    unsigned n = 0;
    uint8_t data[4096] = {1};

    begin(flags);
    for (;; n++) {
        struct rdt_error err = {0};
        struct rdt_ref ref;
        enum rdt_status status = rdt_put(conn, &VECTOR(RDT_U8, sizeof data, data), 1, NULL, &ref, &err);
        if (status == RDT_OK)
            continue;
        cr_assert_eq(status, RDT_NO_MEMORY, "%s: %s", rdt_status_name(status), err.msg);
        cr_assert(strstr(err.msg, "memory_limit"), "%s", err.msg);
        break;
    }
    cr_assert(n >= 500 && n <= 1024, "%u objects of 4 KiB in 4 MiB", n);
    end();
}

Test(small, waiters_and_equal_refs_are_served)
{
    uint32_t value = 4711;
    struct rdt_ref ref = ref_named("later"), refs[3] = {ref, ref, ref}, made;
    rdt_object *objects[3];

    begin(NULL);
    rdt_request *request = start_one(reader, &ref, LONG);
    struct rdt_put_options put = {
        .struct_size = sizeof put, .id = "later", .id_bytes = 5, .metadata = "m", .metadata_bytes = 1};
    must_ok(rdt_put(conn, &VECTOR(RDT_U32, 1, &value), 1, &put, &made, &err));
    objects[0] = await_object(reader, request);
    must_go_by("inline", objects[0]);
    cr_assert_eq(*(uint32_t *)tensor_of(objects[0], 0).data, value);
    rdt_release(objects[0]);
    rdt_request_destroy(request);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG};
    must_ok(rdt_fetch(reader, refs, 3, &options, objects, &err));
    for (unsigned i = 0; i < 3; i++) {
        size_t bytes;
        const char *metadata = rdt_object_metadata(objects[i], &bytes);
        cr_assert(bytes == 1 && metadata[0] == 'm');
        cr_assert_eq(*(uint32_t *)tensor_of(objects[i], 0).data, value);
        cr_assert_eq(info_of(objects[i]).transfer, info_of(objects[0]).transfer);
        *(uint32_t *)tensor_of(objects[i], 0).data = i; /* each its own */
    }
    for (unsigned i = 0; i < 3; i++)
        rdt_release(objects[i]);
    end();
}

Test(small, thousand_in_one_call)
{
    enum { N = 1000 };
    static struct rdt_ref refs[N];
    static rdt_object *objects[N];

    begin(NULL);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG};
    for (unsigned i = 0; i < N; i++)
        refs[i] = put_small(4096, i, NULL);
    must_ok(rdt_fetch(reader, refs, N, &options, objects, &err));
    for (unsigned i = 0; i < N; i++) {
        cr_assert(holds_pattern(tensor_of(objects[i], 0).data, 4096, i), "%u", i);
        rdt_release(objects[i]);
    }
    end();
}

/* ---- another node ---- */

Test(small, other_nodes_get_it_inline_or_by_transport)
{
    static const char *const transports[] = {NULL, "inline", "loopback"};
    static const size_t sizes[] = {10, 5000, INLINE_MAX};
    struct cluster cluster;

    cluster_start(&cluster, 2, &(struct cluster_options){.loopback = true});
    rdt *owner = conn = node_client(&cluster.node[0], "owner");
    rdt *other = node_client(&cluster.node[1], "reader");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (size_t t = 0; t < 3; t++) {
            struct rdt_ref ref = put_small(sizes[i], (uint32_t)i, NULL);
            struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG, .transport = transports[t]};
            rdt_object *object = fetch_as(other, &ref, &options);
            must_go_by(t == 2 ? "loopback" : "inline", object);
            cr_assert(holds_pattern(tensor_of(object, 0).data, sizes[i], (uint32_t)i));
            rdt_release(object);
            must_ok(rdt_free(owner, &ref, false, &err));
        }
    rdt_close(owner);
    rdt_close(other);
    cluster_end(&cluster, NULL);
}

/* A reader with memory of its own gets more in the answer where nodes encrypt all that they send. */
Test(small, own_memory_on_another_node_gets_64_KiB_inline)
{
    static const struct {
        size_t bytes;
        bool target;
        const char *path;
    } cases[] = {
        {PEER_INLINE_MAX, true, "inline"},
        {PEER_INLINE_MAX + 1, true, "stream"},
        {INLINE_MAX, false, "inline"},
        {INLINE_MAX + 1, false, "stream"},
    };
    struct cluster cluster;

    cluster_start(&cluster, 2, &(struct cluster_options){.no_ucx = true, .stream = true});
    rdt *owner = conn = node_client(&cluster.node[0], "owner");
    rdt *other = node_client(&cluster.node[1], "reader");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t *memory = cases[i].target ? alloc_memory(other, cases[i].bytes) : NULL;
        struct rdt_tensor target = VECTOR(RDT_U8, cases[i].bytes, memory);
        const struct rdt_tensor *targets = &target;
        struct rdt_ref ref = put_small(cases[i].bytes, (uint32_t)i, NULL);
        const size_t one = 1;
        struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG};

        if (memory) {
            options.targets = &targets;
            options.target_counts = &one;
        }
        rdt_object *object = fetch_as(other, &ref, &options);
        must_go_by(cases[i].path, object);
        cr_assert(holds_pattern(memory ? memory : tensor_of(object, 0).data, cases[i].bytes, (uint32_t)i));
        rdt_release(object);
        if (memory)
            must_ok(rdt_dealloc(other, memory, &err));
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    rdt_close(owner);
    rdt_close(other);
    cluster_end(&cluster, NULL);
}
