/* SPDX-License-Identifier: Apache-2.0 */
/* A fetch reserves all of its memory before any byte moves, or none of it, and all of it is charged. Two nodes over ucx. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/integration/nodes/pair.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

TestSuite(reservation, .timeout = 240);

/* The reader's node has so little memory. */
static void begin(const char *limit)
{
    const char *flags[] = {limit, NULL};

    begin_pair(2, &(struct cluster_options){.flags_of = {NULL, flags}});
}

static struct node_status status_of_reader(void)
{
    return node_now(&c.node[1]);
}

/* ---- targets of many small tensors ---- */

#define SMALL 1024
#define N_SMALL 24000 /* 24 MiB in runs that no transport receives in place */

#define STEP (SMALL + 64) /* targets with gaps between them, so none can be received in place */

static void cut(struct rdt_tensor *tensors, uint8_t *memory, size_t n, size_t step)
{
    static const int64_t shape = SMALL;

    for (size_t i = 0; i < n; i++)
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = &shape, .data = memory + i * step};
}

static enum rdt_status fetch_small(const struct rdt_ref *ref, size_t n, uint8_t *into, struct rdt_error *err)
{
    struct rdt_tensor *tensors = calloc(n, sizeof *tensors);
    const struct rdt_tensor *targets[] = {tensors};
    rdt_object *object;

    must(tensors);
    cut(tensors, into, n, STEP);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .targets = targets, .target_counts = &n};
    enum rdt_status status = rdt_fetch(reader, ref, 1, &options, &object, err);
    if (status == RDT_OK)
        rdt_release(object);
    free(tensors);
    return status;
}

static struct rdt_ref put_small(size_t n, uint32_t seed)
{
    struct rdt_tensor *tensors = calloc(n, sizeof *tensors);
    uint8_t *memory = alloc_memory(owner, n * SMALL);

    must(tensors);
    fill_pattern(memory, n * SMALL, seed);
    cut(tensors, memory, n, SMALL);
    struct rdt_ref ref = put_as(owner, tensors, n, NULL);
    must_ok(rdt_dealloc(owner, memory, &err));
    free(tensors);
    return ref;
}

static bool arrived(const uint8_t *into, size_t n, uint32_t seed)
{
    uint8_t *expected = malloc(n * SMALL);
    bool same = expected;

    must(expected);
    fill_pattern(expected, n * SMALL, seed);
    for (size_t i = 0; i < n; i++)
        same = same && memcmp(into + i * STEP, expected + i * SMALL, SMALL) == 0;
    free(expected);
    return same;
}

Test(reservation, staging_counts_and_is_refused_before_anything_moves)
{
    begin("--memory-limit=40MiB");
    struct rdt_ref ref = put_small(N_SMALL, 3);
    struct rdt_ref little = put_small(200, 4);
    uint8_t *into = alloc_memory(reader, N_SMALL * STEP);
    must_refuse(RDT_NO_MEMORY, "too small to be received one by one", fetch_small(&ref, N_SMALL, into, &err));
    cr_assert(is_filled_with(into, N_SMALL * STEP, 0), "nothing was written");
    must_ok(fetch_small(&little, 200, into, &err));
    cr_assert(arrived(into, 200, 4));
    wait_until(20 * SEC, status_of_reader().memory_bytes <= N_SMALL * STEP + 4096);
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_free(owner, &little, false, &err));
    must_ok(rdt_dealloc(reader, into, &err));
    end(NULL);
}

Test(reservation, staged_bytes_arrive)
{
    begin("--memory-limit=200MiB");
    struct rdt_ref ref = put_small(N_SMALL, 3);
    uint8_t *into = alloc_memory(reader, N_SMALL * STEP);
    for (unsigned i = 0; i < 4; i++) {
        memset(into, 0, N_SMALL * STEP);
        must_ok(fetch_small(&ref, N_SMALL, into, &err));
        cr_assert(arrived(into, N_SMALL, 3));
    }
    for (size_t n = 1; n < 300; n = 2 * n + 1) { /* also memory that is staged on the heap */
        struct rdt_ref few = put_small(n, 9);
        must_ok(fetch_small(&few, n, into, &err));
        cr_assert(arrived(into, n, 9));
        must_ok(rdt_free(owner, &few, false, &err));
    }
    wait_until(20 * SEC, status_of_reader().memory_bytes <= N_SMALL * STEP + 4096);
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_dealloc(reader, into, &err));
    end(NULL);
}

/* ---- many objects in one fetch ---- */

#define BIG (8 * MIB)

static rdt_object *objects[8];
static struct rdt_ref refs[8];

static void put_big(rdt *conn, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        refs[i] = put_pattern(conn, NULL, BIG, i);
}

static void free_big(rdt *conn, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        must_ok(rdt_free(conn, &refs[i], false, &err));
}

static void expect_big(unsigned i)
{
    struct rdt_tensor tensor = tensor_of(objects[i], 0);

    must(holds_pattern(tensor.data, BIG, i));
    rdt_release(objects[i]);
}

/* Every one of them ends with this status. */
static void expect_all(rdt *conn, unsigned n, enum rdt_fetch_mode mode, enum rdt_status expected, const char *text)
{
    rdt_request *requests[8];
    struct rdt_fetch_options options = {.struct_size = sizeof options, .mode = mode};

    must_ok(rdt_fetch_start(conn, refs, n, &options, requests, &err));
    for (unsigned i = 0; i < n; i++) {
        (void)rdt_wait(conn, &requests[i], 1, RDT_WAIT_ALL, LONG, NULL, NULL, NULL);
        must_refuse(expected, text, rdt_request_status(requests[i], &err));
        rdt_request_destroy(requests[i]);
    }
}

Test(reservation, batch_from_another_node_is_all_or_none)
{
    begin("--memory-limit=40MiB");
    put_big(owner, 6);
    struct node_status before = status_of_reader();
    expect_all(reader, 6, RDT_FETCH_AUTO, RDT_LIMIT, "objects of this fetch need");
    cr_assert_eq(status_of_reader().bytes_in, before.bytes_in, "nothing moved");
    wait_until(20 * SEC, status_of_reader().memory_bytes == 0);
    must_ok(rdt_fetch(reader, refs, 4, NULL, objects, &err));
    refs[6] = refs[4];
    refs[7] = refs[5];
    expect_all(reader, 2, RDT_FETCH_AUTO, RDT_NO_MEMORY, "together");
    for (unsigned i = 0; i < 4; i++)
        expect_big(i);
    must_ok(rdt_fetch(reader, refs, 4, NULL, objects, &err)); /* warm memory is room */
    for (unsigned i = 0; i < 4; i++)
        expect_big(i);
    free_big(owner, 6);
    end(NULL);
}

/* Of the very first fetch, too. */
Test(reservation, batch_over_a_link_that_is_to_come_up_is_all_or_none)
{
    static const char *const flags[] = {"--memory-limit=40MiB", NULL};

    begin_pair(2, &(struct cluster_options){.flags_of = {NULL, flags}, .no_meeting = true});
    put_big(owner, 6);
    expect_all(reader, 6, RDT_FETCH_AUTO, RDT_LIMIT, "objects of this fetch need");
    cr_assert_eq(status_of_reader().bytes_in, 0, "nothing moved");
    must_ok(rdt_fetch(reader, refs, 4, NULL, objects, &err));
    for (unsigned i = 0; i < 4; i++)
        expect_big(i);
    free_big(owner, 6);
    end(NULL);
}

/* An object that is being pulled already, so that this fetch has to wait, counts like the others. */
Test(reservation, batch_of_what_another_asks_for_is_all_or_none)
{
    rdt_request *first[4], *second[4];

    begin("--memory-limit=40MiB");
    put_big(owner, 4);
    rdt *other = node_client(&c.node[1], "other");
    node_freeze(&c.node[0]);
    must_ok(rdt_fetch_start(other, refs, 4, NULL, first, &err));
    await_transfer(&c.node[1], "in", "asked");
    must_ok(rdt_ping(other, LONG, &err));
    must_ok(rdt_fetch_start(reader, refs, 4, NULL, second, &err));
    must_ok(rdt_ping(reader, LONG, &err));
    node_thaw(&c.node[0]);
    must_ok(rdt_wait(other, first, 4, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
    for (unsigned i = 0; i < 4; i++) {
        (void)rdt_wait(reader, &second[i], 1, RDT_WAIT_ALL, LONG, NULL, NULL, NULL);
        must_refuse(RDT_NO_MEMORY, "4 objects of this fetch need", rdt_request_status(second[i], &err));
        rdt_request_destroy(second[i]);
        rdt_request_destroy(first[i]);
    }
    rdt_close(other);
    free_big(owner, 4);
    end(NULL);
}

Test(reservation, batch_of_copies_on_one_node_is_all_or_none)
{
    begin("--memory-limit=60MiB");
    put_big(reader, 4);
    expect_all(reader, 4, RDT_FETCH_COPY, RDT_NO_MEMORY, "together");
    cr_assert_eq(status_of_reader().bytes_local, 0, "nothing was copied");
    cr_assert_leq(status_of_reader().memory_bytes, 4 * BIG + MIB);
    {
        struct rdt_fetch_options options = {.struct_size = sizeof options, .mode = RDT_FETCH_COPY};
        must_ok(rdt_fetch(reader, refs, 3, &options, objects, &err));
    }
    for (unsigned i = 0; i < 3; i++)
        expect_big(i);
    free_big(reader, 4);
    end(NULL);
}

/* Stored objects that nobody has mapped give up their memory for all items together, as for a single one. */
Test(reservation, batch_gets_the_memory_of_stored_objects)
{
    char store[160], flag[200], name[8];
    const char *flags[] = {"--memory-limit=40MiB", flag, NULL};

    (void)snprintf(store, sizeof store, "%.100s/store.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    must(mkdtemp(store));
    (void)snprintf(flag, sizeof flag, "--storage-dir=%s", store);
    begin_pair(2, &(struct cluster_options){.flags_of = {NULL, flags}});
    char *memory = malloc(BIG);
    must(memory);
    struct rdt_put_options options = {
        .struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT | RDT_PUT_DETACHED, .ttl_ns = 60 * SEC};
    for (unsigned i = 4; i < 8; i++) {
        (void)snprintf(name, sizeof name, "s%u", i);
        options.id = name;
        options.id_bytes = strlen(name);
        fill_pattern(memory, BIG, i);
        must_ok(rdt_put(reader, &VECTOR(RDT_U8, BIG, memory), 1, &options, &refs[i], &err));
        must_ok(rdt_store(reader, &refs[i], LONG, NULL, 0, &err));
    }
    put_big(owner, 3);
    must_ok(rdt_fetch(reader, refs, 3, NULL, objects, &err));
    for (unsigned i = 0; i < 3; i++)
        expect_big(i);
    for (unsigned i = 4; i < 8; i++) {
        must_ok(rdt_fetch(reader, &refs[i], 1, NULL, &objects[i], &err));
        expect_big(i);
        must_ok(rdt_free(reader, &refs[i], false, &err));
    }
    free(memory);
    free_big(owner, 3);
    end(NULL);
    char lock[200];
    (void)snprintf(lock, sizeof lock, "%s/storage.lock", store);
    must(unlink(lock) == 0);
    wait_until(LONG, rmdir(store) == 0);
}

/* An item that waits for a put leaves its group. */
Test(reservation, batch_does_not_wait_for_what_nobody_has_put)
{
    rdt_request *requests[4];
    struct rdt_ref late[2] = {ref_named("late"), ref_named("late")}; /* here and there */

    begin("--memory-limit=400MiB");
    late[1] = ref_on(&c.node[0], "late");
    refs[0] = put_pattern(owner, NULL, BIG, 0);
    refs[1] = put_pattern(reader, NULL, BIG, 1);
    refs[2] = late[0];
    refs[3] = late[1];
    struct rdt_fetch_options options = {.struct_size = sizeof options, .mode = RDT_FETCH_COPY};
    must_ok(rdt_fetch_start(reader, refs, 4, &options, requests, &err));
    must_ok(rdt_wait(reader, requests, 2, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
    must_be(RDT_AGAIN, rdt_request_status(requests[2], &err));
    must_be(RDT_AGAIN, rdt_request_status(requests[3], &err));
    refs[2] = put_pattern(reader, "late", BIG, 2);
    refs[3] = put_pattern(owner, "late", BIG, 3);
    must_ok(rdt_wait(reader, requests, 4, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
    for (unsigned i = 0; i < 4; i++) {
        must_ok(rdt_request_take_object(requests[i], &objects[i], &err));
        expect_big(i);
        rdt_request_destroy(requests[i]);
    }
    must_ok(rdt_free(owner, &refs[0], false, &err));
    must_ok(rdt_free(reader, &refs[1], false, &err));
    must_ok(rdt_free(reader, &refs[2], false, &err));
    must_ok(rdt_free(owner, &refs[3], false, &err));
    end(NULL);
}

/* Nor for what another fetch waits for, whether that has been told so already or is told later. */
Test(reservation, batch_does_not_wait_for_what_another_waits_for)
{
    rdt_request *first, *second[2], *third[2];

    begin("--memory-limit=400MiB");
    rdt *other = node_client(&c.node[1], "other");
    char *late = alloc_memory(owner, BIG);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_PENDING};
    must_ok(rdt_put(owner, &VECTOR(RDT_U8, BIG, late), 1, &options, &refs[0], &err));
    refs[1] = put_pattern(owner, NULL, BIG, 1);
    refs[2] = put_pattern(owner, NULL, BIG, 2);
    node_freeze(&c.node[0]);
    first = start_one(other, &refs[0], LONG);
    await_transfer(&c.node[1], "in", "asked");
    must_ok(rdt_fetch_start(reader, refs, 2, NULL, second, &err));
    must_ok(rdt_ping(reader, LONG, &err));
    node_thaw(&c.node[0]);
    must_ok(rdt_wait(reader, &second[1], 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(second[0]);
    must_ok(rdt_ping(reader, LONG, &err));
    must_ok(rdt_fetch_start(reader, (struct rdt_ref[]){refs[0], refs[2]}, 2, NULL, third, &err));
    must_ok(rdt_wait(reader, &third[1], 1, 1, LONG, NULL, NULL, &err));
    must_be(RDT_AGAIN, rdt_request_status(first, &err));
    must_be(RDT_AGAIN, rdt_request_status(third[0], &err));
    fill_pattern(late, BIG, 0);
    must_ok(rdt_ready(owner, &refs[0], &err));
    must_ok(rdt_wait(other, &first, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_wait(reader, third, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(third[0], &objects[0], &err));
    must_ok(rdt_request_take_object(second[1], &objects[1], &err));
    must_ok(rdt_request_take_object(third[1], &objects[2], &err));
    for (unsigned i = 0; i < 3; i++)
        expect_big(i);
    rdt_request_destroy(first);
    rdt_request_destroy(second[1]);
    rdt_request_destroy(third[0]);
    rdt_request_destroy(third[1]);
    rdt_close(other);
    free_big(owner, 3);
    must_ok(rdt_dealloc(owner, late, &err));
    end(NULL);
}

Test(reservation, batch_member_that_is_cancelled_does_not_hold_the_others)
{
    rdt_request *requests[4];
    unsigned round;

    begin("--memory-limit=400MiB");
    put_big(owner, 4);
    for (round = 0; round < 8; round++) {
        must_ok(rdt_fetch_start(reader, refs, 4, NULL, requests, &err));
        rdt_request_destroy(requests[round % 4]);
        requests[round % 4] = requests[3];
        must_ok(rdt_wait(reader, requests, 3, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
        for (unsigned i = 0; i < 3; i++)
            rdt_request_destroy(requests[i]);
    }
    free_big(owner, 4);
    end(NULL);
}
