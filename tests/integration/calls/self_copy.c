/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches into targets that librdt copies itself, from memory that the daemon shares with it for the duration of the copy. */
#include <criterion/criterion.h>
#include <poll.h>
#include <string.h>

#include "tests/support/cluster.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

TestSuite(self_copy, .timeout = 120);

static struct test_node node;
static rdt *producer, *consumer;

static void start(void)
{
    node_start(&node, &(struct node_options){.flags = NULL});
    producer = node_client(&node, "producer");
    consumer = node_client(&node, "consumer");
}

static void finish(void)
{
    rdt_close(producer);
    rdt_close(consumer);
    node_end(&node, NULL);
}

static struct rdt_ref put_memory(size_t bytes, uint32_t seed, void **memory_p)
{
    *memory_p = alloc_memory(producer, bytes);
    fill_pattern(*memory_p, bytes, seed);
    return put_one(producer, &VECTOR(RDT_U8, bytes, *memory_p), NULL);
}

static rdt_request *start_into(const struct rdt_ref *ref, const struct rdt_tensor *target)
{
    const size_t one = 1;
    struct rdt_fetch_options options = {
        .struct_size = sizeof options, .mode = RDT_FETCH_COPY, .timeout_ns = LONG, .targets = &target, .target_counts = &one};
    rdt_request *request = start_as(consumer, ref, &options);

    return request;
}

static rdt_object *taken(rdt_request *request)
{
    rdt_object *object;

    must_ok(rdt_request_take_object(request, &object, &err));
    rdt_request_destroy(request);
    return object;
}

static void await(rdt_request *request)
{
    must_ok(rdt_wait(consumer, &request, 1, 1, LONG, NULL, NULL, &err));
}

Test(self_copy, bytes_are_private_and_reported_like_any_copy)
{
    const size_t bytes = 3 * MIB + 77;
    struct transfer_view view;
    struct rdt_object_info info;
    rdt_object *object;
    void *memory, *to;

    start();
    struct rdt_ref ref = put_memory(bytes, 1, &memory);
    to = alloc_memory(consumer, bytes + 64);
    for (uint32_t i = 1; i < 4; i++) {
        struct rdt_tensor target = VECTOR(RDT_U8, bytes, (uint8_t *)to + 13);

        fill_pattern(memory, bytes, i);
        memset(to, 0xee, bytes + 64);
        rdt_request *request = start_into(&ref, &target);
        await(request);
        object = taken(request);
        info = info_of(object);
        must_go_by("local/copy", object);
        cr_assert(info.writable && !info.mutable_shared);
        cr_assert_eq(info.bytes_moved, bytes);
        cr_assert_eq(tensor_of(object, 0).data, target.data);
        fill_pattern(memory, bytes, 99);
        cr_assert(holds_pattern(target.data, bytes, i));
        cr_assert(is_filled_with(to, 13, 0xee) && is_filled_with((uint8_t *)to + 13 + bytes, 64 - 13, 0xee));
        view = transfer_numbered(&node, info.transfer);
        cr_assert_str_eq(view.path, "local/copy");
        cr_assert_eq(view.bytes_done, bytes);
        rdt_release(object);
        cr_assert(holds_pattern(target.data, bytes, i), "the target is the caller's");
    }
    finish();
}

Test(self_copy, many_at_once_of_every_size_are_whole)
{
    enum { N = 48 };
    static rdt_request *requests[N];
    static struct rdt_ref refs[N];
    static struct rdt_tensor targets[N];
    static int64_t shapes[N];
    void *memory;

    start();
    for (uint32_t i = 0; i < N; i++) { /* some by the loop, some by the pool, some here */
        shapes[i] = (int64_t)(200 * KIB + i * 113 * KIB + i);
        refs[i] = put_memory((size_t)shapes[i], i, &memory);
        targets[i] = (struct rdt_tensor){
            .dtype = RDT_U8, .ndim = 1, .shape = &shapes[i], .data = alloc_memory(consumer, (size_t)shapes[i])};
    }
    for (unsigned round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < N; i++) {
            memset(targets[i].data, 0, (size_t)shapes[i]);
            requests[i] = start_into(&refs[i], &targets[i]);
        }
        for (uint32_t i = round; i < N; i += 7) /* a cancelled fetch disturbs nobody */
            rdt_cancel(requests[i]);
        for (uint32_t i = 0; i < N; i++) {
            if (i >= round && (i - round) % 7 == 0) {
                rdt_request_destroy(requests[i]);
                continue;
            }
            await(requests[i]);
            cr_assert(holds_pattern(targets[i].data, (size_t)shapes[i], i), "object %u", i);
            rdt_release(taken(requests[i]));
        }
    }
    finish();
}

Test(self_copy, strided_source_comes_row_major)
{
    static const int64_t shape[2] = {700, 500}, strides[2] = {1, 700};
    struct rdt_tensor source = {.dtype = RDT_F32, .ndim = 2, .shape = shape, .strides = strides},
                      target = {.dtype = RDT_F32, .ndim = 2, .shape = shape};

    start();
    source.data = alloc_memory(producer, 700 * 500 * 4);
    fill_pattern(source.data, 700 * 500 * 4, 5);
    struct rdt_ref ref = put_one(producer, &source, NULL);
    target.data = alloc_memory(consumer, 700 * 500 * 4);
    rdt_request *request = start_into(&ref, &target);
    await(request);
    cr_assert(tensors_equal(&source, &target));
    rdt_release(taken(request));
    finish();
}

Test(self_copy, shape_that_differs_is_refused_and_the_target_untouched)
{
    void *memory;

    start();
    struct rdt_ref ref = put_memory(MIB, 1, &memory);
    struct rdt_tensor target = VECTOR(RDT_U8, MIB - 1, alloc_memory(consumer, MIB));
    memset(target.data, 7, MIB);
    rdt_request *request = start_into(&ref, &target);
    must_refuse(RDT_MISMATCH, "", rdt_wait(consumer, &request, 1, 1, LONG, NULL, NULL, &err));
    cr_assert(is_filled_with(target.data, MIB, 7));
    rdt_request_destroy(request);
    finish();
}

Test(self_copy, producer_may_write_again_when_it_has_been_copied)
{
    void *memory;

    start();
    struct rdt_ref ref = put_memory(MIB, 1, &memory);
    struct rdt_tensor target = VECTOR(RDT_U8, MIB, alloc_memory(consumer, MIB));
    rdt_request *request = start_into(&ref, &target);
    must_ok(rdt_ping(consumer, LONG, &err)); /* the answer is here, and nobody has copied */
    must_ok(rdt_free(producer, &ref, false, &err));
    must_refuse(RDT_TIMED_OUT, "", rdt_wait_freed(producer, &ref, SEC / 10, &err));
    await(request);
    cr_assert(holds_pattern(target.data, MIB, 1));
    must_ok(rdt_wait_freed(producer, &ref, LONG, &err));
    rdt_release(taken(request));
    finish();
}

Test(self_copy, event_loop_copies_by_dispatch)
{
    void *memory;
    int64_t deadline = now_ns() + LONG;

    start();
    struct rdt_ref ref = put_memory(4 * MIB, 1, &memory);
    struct rdt_tensor target = VECTOR(RDT_U8, 4 * MIB, alloc_memory(consumer, 4 * MIB));
    rdt_request *request = start_into(&ref, &target);
    while (rdt_request_status(request, NULL) == RDT_AGAIN) {
        struct pollfd fd = {.fd = rdt_fd(consumer), .events = POLLIN};

        must(now_ns() < deadline && poll(&fd, 1, 20000) == 1);
        must_ok(rdt_dispatch(consumer, NULL, &err));
    }
    must_ok(rdt_request_status(request, &err));
    cr_assert(holds_pattern(target.data, 4 * MIB, 1));
    rdt_release(taken(request));
    finish();
}

/* A live object in memory into which it is fetched itself. */
Test(self_copy, targets_in_the_memory_of_the_object_are_its_own_or_refused)
{
    static const size_t sizes[] = {100, 64 * KIB, 1 * MIB, 9 * MIB};

    start();
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t bytes = sizes[i] & ~(size_t)3;
        int64_t quarters[] = {2, (int64_t)bytes / 4}, turned[] = {1, 2}, count = (int64_t)bytes / 2;
        char *memory = alloc_memory(producer, 4 * bytes);

        fill_pattern(memory, bytes, 7);
        struct rdt_tensor tensors[2] = {VECTOR(RDT_U8, count, memory), VECTOR(RDT_U8, count, memory + bytes / 2)};
        struct rdt_ref ref = put_as(producer, tensors, 2, NULL);
        const struct {
            size_t first, second;
            bool allowed;
        } rows[] = {
            {0, bytes / 2, true},  {2 * bytes, 3 * bytes, true}, {bytes, bytes + bytes / 2, true}, {bytes / 2, 0, false},
            {1, 2 * bytes, false}, {2 * bytes, 1, false},        {2 * bytes, bytes / 2 - 1, false}};
        for (unsigned k = 0; k < sizeof rows / sizeof rows[0]; k++) {
            struct rdt_tensor targets[2] = {VECTOR(RDT_U8, count, memory + rows[k].first),
                                            VECTOR(RDT_U8, count, memory + rows[k].second)};
            const struct rdt_tensor *list = targets;
            const size_t two = 2;
            struct rdt_fetch_options options = {.struct_size = sizeof options,
                                                .mode = RDT_FETCH_COPY,
                                                .timeout_ns = LONG,
                                                .targets = &list,
                                                .target_counts = &two};
            rdt_object *object = NULL;

            if (rows[k].allowed) {
                must_ok(rdt_fetch(producer, &ref, 1, &options, &object, &err));
                rdt_release(object);
                must(holds_pattern(memory + rows[k].first, bytes / 2, 7));
            } else {
                must_refuse(RDT_INVALID, "shares memory with tensor", rdt_fetch(producer, &ref, 1, &options, &object, &err));
            }
            must(holds_pattern(memory, bytes, 7));
        }
        must_ok(rdt_free(producer, &ref, false, &err));
        /* a strided object, in place */
        struct rdt_tensor columns = {.dtype = RDT_U16, .ndim = 2, .shape = quarters, .strides = turned, .data = memory};
        struct rdt_tensor rows_of = {.dtype = RDT_U16, .ndim = 2, .shape = quarters, .data = memory};
        const struct rdt_tensor *list = &rows_of;
        const size_t one = 1;
        struct rdt_fetch_options options = {
            .struct_size = sizeof options, .mode = RDT_FETCH_COPY, .timeout_ns = LONG, .targets = &list, .target_counts = &one};
        rdt_object *object = NULL;
        ref = put_one(producer, &columns, NULL);
        must_refuse(RDT_INVALID, "target tensor 0 shares memory with tensor 0 of the object",
                    rdt_fetch(producer, &ref, 1, &options, &object, &err));
        must(holds_pattern(memory, bytes, 7));
        must_ok(rdt_free(producer, &ref, false, &err));
    }
    finish();
}
