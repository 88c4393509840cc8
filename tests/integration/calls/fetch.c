/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches on one node: shared memory, private mappings, copies, many objects in one fetch, and waiting for objects that are
 * not put yet. */
#include "tests/integration/calls/fetch.h"

/* ---- the three paths ---- */

Test(fetch, same_client_gets_the_same_memory)
{
    begin(NULL);
    char *addr = alloc_memory(conn, MIB);
    struct rdt_ref ref = put_pattern(addr, MIB, 1);
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
    struct rdt_tensor seen = tensor_of(object, 0);
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

    actor_recv(self, &ref, sizeof ref);
    rdt_object *object = fetch_one(client, &ref, RDT_FETCH_SHARE);
    struct rdt_tensor seen = tensor_of(object, 0);
    must(holds_pattern(seen.data, 4096, 1));
    must(!info_of(object).writable);
    *(volatile char *)seen.data = 1;
    return 0;
}

static int make_writable(struct actor *self, void *arg)
{
    rdt *client = node_client(arg, "vandal");
    struct rdt_ref ref;

    actor_recv(self, &ref, sizeof ref);
    rdt_object *object = fetch_one(client, &ref, RDT_FETCH_SHARE);
    struct rdt_tensor seen = tensor_of(object, 0);
    must(mprotect(seen.data, 4096, PROT_READ | PROT_WRITE) == -1);
    rdt_release(object);
    rdt_close(client);
    return 0;
}

Test(fetch, writing_into_shared_memory_is_a_fault)
{
    struct actor actors[2];

    node_start(&node, NULL);
    actor_start(&actors[0], write_to_shared, &node);
    actor_start(&actors[1], make_writable, &node);
    conn = node_client(&node, "producer");
    reader = node_client(&node, "reader");
    struct rdt_ref ref = put_pattern(alloc_memory(conn, 4096), 4096, 1);
    actor_send(&actors[0], &ref, sizeof ref);
    actor_send(&actors[1], &ref, sizeof ref);
    int status = actor_result(&actors[0]);
    /* A sanitizer catches the fault and ends the actor itself. */
    cr_assert(status == 128 + SIGSEGV ||
                  (getenv("RDT_VARIANT") && strcmp(getenv("RDT_VARIANT"), "release") != 0 && status != 0),
              "ended with %d", status);
    actor_wait(&actors[1]);
    end();
}

Test(fetch, another_actor_shares_live_memory)
{
    begin(NULL);
    char *addr = alloc_memory(conn, MIB);
    struct rdt_ref ref = put_pattern(addr, MIB, 1);
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    must_go_by("local/share", object);
    cr_assert_not(info_of(object).writable);
    cr_assert_eq(info_of(object).bytes_moved, 0);
    struct rdt_tensor seen = tensor_of(object, 0);
    cr_assert(holds_pattern(seen.data, MIB, 1));
    fill_pattern(addr, MIB, 2);
    cr_assert(holds_pattern(seen.data, MIB, 2), "later writes are not seen");
    rdt_release(object);
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_dealloc(conn, addr, &err));
    must_ok(rdt_ping(reader, LONG, &err)); /* the reader learns that the region has ended */
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
        addr[sizes[i] - 1] = 42;
        struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, sizes[i], addr), NULL);
        before = node_now(&node);
        rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_SHARE);
        after = node_now(&node);
        cr_assert_eq(before.memory_bytes, after.memory_bytes);
        must_go_by("local/share", object);
        cr_assert_eq(info_of(object).bytes_moved, 0);
        struct rdt_tensor seen = tensor_of(object, 0);
        cr_assert_eq(((char *)seen.data)[sizes[i] - 1], 42);
        rdt_release(object);
        must_ok(rdt_free(conn, &ref, false, &err));
        must_ok(rdt_dealloc(conn, addr, &err));
        wait_until(20 * SEC, node_now(&node).memory_bytes == 0); /* given back off the loop */
    }
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

/* Several threads share a large copy, and tensors that lie in a row go together: none is forgotten, none is copied to
 * another's place. */
Test(fetch, copy_of_many_tensors_is_whole)
{
    enum { TENSORS = 3000 };
    static int64_t shapes[TENSORS][2], strides[TENSORS][2];
    static struct rdt_tensor tensors[TENSORS];
    size_t at = 0;

    begin(NULL);
    char *addr = alloc_memory(conn, 64 * MIB);
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
    struct rdt_ref ref = put_as(conn, tensors, TENSORS, NULL);
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_COPY);
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
    rdt_object *object = NULL;

    begin(NULL);
    struct rdt_ref ref = put_pattern(alloc_memory(conn, 4096), 4096, 1);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG, .least_path = "share"};
    must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
    rdt_release(object);
    options.least_path = "ucx"; /* no transport is as fast as the paths of one node */
    must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
    must_go_by("local/share", object);
    rdt_release(object);
    options.least_path = "share";
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

/* ---- several at once ---- */

Test(fetch, list_of_refs_comes_in_order)
{
    enum { N = 50 };
    struct rdt_ref refs[N];
    rdt_object *objects[N];
    uint32_t *values;

    begin(NULL);
    values = alloc_memory(conn, N * sizeof *values);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG};
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
    struct rdt_ref refs[2];
    rdt_request *requests[2];
    rdt_object *object;

    begin(NULL);
    char *addr = alloc_memory(conn, 8192);
    refs[0] = put_pattern(addr, 4096, 1);
    refs[1] = ref_named("later");
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG};
    must_ok(rdt_fetch_start(reader, refs, 2, &options, requests, &err));
    if (seen) {
        must_ok(rdt_wait(reader, requests, 1, 1, LONG, NULL, NULL, &err));
        must_ok(rdt_request_take_object(requests[0], &object, &err));
        rdt_release(object);
    }
    rdt_request_destroy(requests[0]);
    must_ok(rdt_ping(reader, LONG, &err)); /* the first answer has come, and the daemon has heard what became of it */
    fill_pattern(addr + 4096, 4096, 2);
    struct rdt_ref later = put_one(conn, &VECTOR(RDT_U8, 4096, addr + 4096), "later");
    object = await_object(reader, requests[1]);
    struct rdt_tensor tensor = tensor_of(object, 0);
    cr_assert(holds_pattern(tensor.data, 4096, 2));
    must_go_by("local/share", object);
    rdt_release(object);
    must_ok(rdt_free(conn, &refs[0], false, &err));
    must_ok(rdt_free(conn, &later, false, &err));
    must_ok(rdt_dealloc(conn, addr, &err));
    must_ok(rdt_ping(reader, LONG, &err)); /* the reader learns that the region has ended */
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
    static struct rdt_ref refs[N];
    static rdt_request *requests[N];
    uint32_t *values;

    begin(NULL);
    values = alloc_memory(conn, N * sizeof *values);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG};
    for (unsigned i = 0; i < N; i++) {
        values[i] = 1000 + i;
        refs[i] = put_one(conn, &VECTOR(RDT_U32, 1, &values[i]), NULL);
    }
    must_ok(rdt_fetch_start(reader, refs, N, &options, requests, &err));
    for (unsigned i = 0; i < N; i += 3)
        rdt_request_destroy(requests[i]);
    for (unsigned i = 0; i < N; i++) {
        if (i % 3 == 0)
            continue;
        rdt_object *object = await_object(reader, requests[i]);
        struct rdt_tensor seen = tensor_of(object, 0);
        cr_assert_eq(*(uint32_t *)seen.data, values[i]);
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
    end();
}

/* A reader that polls, gives up, cancels or ends is no failure of the node's. */
Test(fetch, waits_that_end_are_no_failed_transfers)
{
    struct rdt_ref never = ref_named("never");
    struct node_status before, after;
    rdt_object *object;

    begin(NULL);
    before = node_now(&node);
    must_be(RDT_NOT_PUT, try_fetch(reader, &never, RDT_FETCH_AUTO, 1, &object, &err));
    must_be(RDT_TIMED_OUT, try_fetch(reader, &never, RDT_FETCH_AUTO, 20 * MSEC, &object, &err));
    rdt_request *request = start_one(reader, &never, LONG);
    must_ok(rdt_ping(reader, LONG, &err));
    rdt_request_destroy(request);
    rdt *other = node_client(&node, "other");
    (void)start_one(other, &never, LONG);
    must_ok(rdt_ping(other, LONG, &err));
    rdt_close(other); /* with its request */
    do
        after = node_now(&node);
    while (after.transfers_active > 0);
    cr_assert_eq(after.transfers_failed, before.transfers_failed);
    /* librdt cancels a fetch whose deadline has passed when the daemon's answer is late. */
    cr_assert_geq(after.transfers_cancelled - before.transfers_cancelled, 2);
    cr_assert_eq(
        after.transfers_cancelled + after.transfers_timed_out - before.transfers_cancelled - before.transfers_timed_out, 4);
    cr_assert_eq(after.transfers_done, before.transfers_done);
    end();
}

Test(fetch, equal_refs_share_one_transfer)
{
    struct rdt_ref refs[4];
    rdt_object *objects[4];

    begin(NULL);
    refs[0] = refs[2] = refs[3] = put_pattern(alloc_memory(conn, 4096), 4096, 1);
    refs[1] = put_pattern(alloc_memory(conn, 4096), 4096, 2);
    struct node_status before = node_now(&node);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG};
    must_ok(rdt_fetch(reader, refs, 4, &options, objects, &err));
    struct node_status after = node_now(&node);
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

/* Single refs are served at once, repeated ones when all of the list have started. Each item gets its object, and equal
 * refs share one transfer. */
Test(fetch, equal_refs_in_a_long_list_share_and_others_do_not)
{
    enum { N = 60 };
    struct rdt_ref refs[N], later = ref_named("later");
    rdt_request *requests[N];
    uint32_t *values;
    uint64_t shared[2];

    begin(NULL);
    values = alloc_memory(conn, N * sizeof *values);
    for (unsigned i = 0; i < N; i++) { /* of five: an equal ref, a ref that is put later, three others */
        values[i] = i % 5 == 0 ? 0 : i % 5 == 2 ? 2 : i;
        refs[i] = i % 5 == 2 ? later : i > 0 && i % 5 == 0 ? refs[0] : put_one(conn, &VECTOR(RDT_U32, 1, &values[i]), NULL);
    }
    struct node_status before = node_now(&node);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG};
    must_ok(rdt_fetch_start(reader, refs, N, &options, requests, &err));
    for (unsigned i = 0; i < N; i++)
        if (i % 5 != 2)
            must_ok(rdt_wait(reader, &requests[i], 1, 1, LONG, NULL, NULL, &err));
    (void)put_one(conn, &VECTOR(RDT_U32, 1, &values[2]), "later");
    must_ok(rdt_wait(reader, requests, N, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
    struct node_status after = node_now(&node);
    cr_assert_eq(after.transfers_done - before.transfers_done, N / 5 * 3 + 2);
    for (unsigned i = 0; i < N; i++) {
        rdt_object *object;
        must_ok(rdt_request_take_object(requests[i], &object, &err));
        cr_assert_eq(*(uint32_t *)tensor_of(object, 0).data, values[i], "object %u", i);
        if (i == 0 || i == 2)
            shared[i / 2] = info_of(object).transfer;
        if (i % 5 == 0 || i % 5 == 2)
            cr_assert_eq(info_of(object).transfer, shared[i % 5 / 2], "object %u", i);
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
    end();
}

Test(fetch, one_bad_ref_of_many_releases_the_others)
{
    struct rdt_ref refs[3];
    rdt_object *objects[3] = {NULL};
    struct rdt_stat stat;

    begin(NULL);
    refs[0] = put_pattern(alloc_memory(conn, 4096), 4096, 1);
    refs[1] = put_pattern(alloc_memory(conn, 4096), 4096, 1);
    refs[2] = refs[0];
    must_ok(rdt_free(conn, &refs[1], false, &err));
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG};
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

    must_ok(rdt_ping(client, LONG, &err)); /* the daemon has it */
    actor_step(self);
    rdt_object *object = await_object(client, request);
    struct rdt_tensor seen = tensor_of(object, 0);
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
    char memory[4096];

    node_start(&node, NULL);
    for (unsigned i = 0; i < 3; i++)
        actor_start(&actors[i], fetch_early, &node);
    conn = node_client(&node, "producer");
    reader = node_client(&node, "reader");
    for (unsigned i = 0; i < 3; i++)
        actor_await(&actors[i]);
    struct rdt_stat stat = stat_of(conn, &later);
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

    begin(NULL);
    int64_t start = now_ns();
    must_refuse(RDT_TIMED_OUT, "never", try_fetch(reader, &ref, RDT_FETCH_AUTO, 200 * MSEC, &object, &err));
    cr_assert_geq(now_ns() - start, 200 * MSEC);
    must_be_within(start, 2 * SEC);
    start = now_ns();
    must_be(RDT_TIMED_OUT, rdt_wait_put(reader, &ref, 100 * MSEC, &err));
    cr_assert_geq(now_ns() - start, 100 * MSEC);
    must_be(RDT_NOT_PUT, rdt_wait_put(reader, &ref, 0, &err));
    cr_assert_null(object);
    wait_until(20 * SEC, node_now(&node).objects == 0);
    end();
}

Test(fetch, wait_put_answers_when_it_is_there)
{
    struct rdt_ref ref = ref_named("w"), put;

    begin(NULL);
    put = put_one(conn, &VECTOR(RDT_U8, 5, "hello"), "w");
    must_ok(rdt_wait_put(reader, &ref, LONG, &err));
    must_ok(rdt_wait_put(reader, &put, LONG, &err));
    struct rdt_stat stat = stat_of(reader, &ref);
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

/* Programs that were built with the header of before `verify` have a shorter struct, whose last bytes nobody has set. */
Test(fetch, verify_is_not_read_from_options_of_an_earlier_version)
{
    rdt_object *object;

    begin(NULL);
    char *addr = alloc_memory(conn, MIB);
    struct rdt_ref ref = put_pattern(addr, MIB, 1); /* it may change, so it has no checksum */
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG, .verify = true};
    must_refuse(RDT_UNSUPPORTED, "has no checksum", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    options.struct_size = 104;
    memset((char *)&options + offsetof(struct rdt_fetch_options, metadata_only) + 1, 0xff,
           104 - offsetof(struct rdt_fetch_options, metadata_only) - 1);
    must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
    rdt_release(object);
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_dealloc(conn, addr, &err));
    end();
}
