/* What a fetch that stays must not cost others, and must not get ahead of: memory that is freed goes, limits are kept, and what its own
 * connection said before comes first. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "tests/integration/calls/board.h"

TestSuite(board_gone, .timeout = 120);

/* ---- memory ---- */

static rdt_request *never;
static _Atomic pid_t waiter;

static void wait_for_what_never_comes(void)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref ref = ref_named("never");

    must_ok(rdt_fetch_start(reader, &ref, 1, &options, &never, &err));
}

static void *wait_on(void *arg)
{
    (void)arg;
    atomic_store(&waiter, gettid());
    (void)rdt_wait(reader, &never, 1, 1, LONG, NULL, NULL, NULL);
    return NULL;
}

static bool waiter_sleeps(void)
{
    char path[64], state = 0;
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)atomic_load(&waiter));
    file = fopen(path, "re");
    if (file) {
        must(fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
        (void)fclose(file);
    }
    return state == 'S';
}

static void free_for_good(const struct rdt_ref *ref)
{
    must_ok(rdt_free(producer, ref, false, &err));
    must_ok(rdt_wait_freed(producer, ref, LONG, &err));
}

Test(board_gone, reader_who_waits_for_another_thing_keeps_no_memory)
{
    struct rdt_ref ref;
    pthread_t thread;

    start();
    ref = put_snapshot(producer, NULL, MIB, 1);
    make_stay(&ref, RDT_FETCH_COW, MIB, 1);
    wait_for_what_never_comes();
    must(pthread_create(&thread, NULL, wait_on, NULL) == 0);
    wait_until(20 * SEC, waiter_sleeps());
    free_for_good(&ref);
    wait_until(20 * SEC, status_now().orphaned_bytes == 0);
    rdt_cancel(never);
    must(pthread_join(thread, NULL) == 0);
    rdt_request_destroy(never);
    finish();
}

Test(board_gone, reader_in_an_event_loop_keeps_no_memory)
{
    struct pollfd fd = {.events = POLLIN};
    struct rdt_ref ref;

    start();
    ref = put_snapshot(producer, NULL, MIB, 1);
    make_stay(&ref, RDT_FETCH_AUTO, MIB, 1);
    fd.fd = rdt_fd(reader);
    must_ok(rdt_dispatch(reader, NULL, &err));
    cr_assert_eq(poll(&fd, 1, 0), 0);
    free_for_good(&ref);
    cr_assert_eq(poll(&fd, 1, 20000), 1, "it is told");
    must_ok(rdt_dispatch(reader, NULL, &err));
    wait_until(20 * SEC, status_now().orphaned_bytes == 0);
    finish();
}

/* Both sides count what was told: mappings of live memory go on staying after it. */
Test(board_gone, live_memory_stays_mapped_as_before)
{
    struct rdt_ref ref, live;
    uint8_t *memory;
    void *addr = NULL;

    start();
    memory = alloc_memory(producer, SHARED);
    fill_pattern(memory, SHARED, 5);
    live = put_one(producer, &VECTOR(RDT_U8, SHARED, memory), NULL);
    for (uint32_t i = 0; i < 3; i++) {
        ref = put_snapshot(producer, NULL, SHARED, i);
        make_stay(&ref, RDT_FETCH_COW, SHARED, i);
        free_for_good(&ref);
    }
    for (unsigned i = 0; i < 4; i++) {
        rdt_object *object = fetch_one(reader, &live, RDT_FETCH_SHARE);

        cr_assert(is_right(object, SHARED, 5));
        if (i == 2)
            addr = tensor_of(object, 0).data;
        if (i == 3)
            cr_assert_eq(tensor_of(object, 0).data, addr);
        rdt_release(object);
    }
    finish();
}

/* Nobody need read what he is told, for it to go. */
Test(board_gone, live_memory_goes_with_its_object)
{
    struct rdt_ref ref, other;
    rdt_object *object;
    uint8_t *memory;
    void *addr;

    start();
    memory = alloc_memory(producer, 8 * MIB);
    fill_pattern(memory, MIB, 1);
    fill_pattern(memory + MIB, MIB, 2);
    ref = put_one(producer, &VECTOR(RDT_U8, MIB, memory), NULL);
    other = put_one(producer, &VECTOR(RDT_U8, MIB, memory + MIB), NULL);
    make_stay(&ref, RDT_FETCH_AUTO, MIB, 1);
    cr_assert(stays(&ref, RDT_FETCH_AUTO, MIB, 1));
    object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    addr = tensor_of(object, 0).data;
    must_ok(rdt_free(producer, &ref, false, &err));
    must_be(RDT_TIMED_OUT, rdt_wait_freed(producer, &ref, 50 * MSEC, &err));
    cr_assert(is_right(object, MIB, 1));
    rdt_release(object);
    must_ok(rdt_wait_freed(producer, &ref, LONG, &err));
    must_be(RDT_FREED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));

    make_stay(&other, RDT_FETCH_AUTO, MIB, 2);
    object = fetch_one(reader, &other, RDT_FETCH_AUTO);
    cr_assert_eq(tensor_of(object, 0).data, (uint8_t *)addr + MIB, "the region has stayed mapped");
    rdt_release(object);
    must_ok(rdt_free(producer, &other, false, &err));
    must_ok(rdt_dealloc(producer, memory, &err));
    wait_until(20 * SEC, status_now().memory_bytes == 0 && status_now().orphaned_bytes == 0);
    must_be(RDT_FREED, try_fetch(reader, &other, RDT_FETCH_AUTO, LONG, &object, &err));
    finish();
}

#define MOST_MAPPED 64 /* that stay mapped at a reader, by its word */

/* Where it looks no pages are taken away. */
static int hold_until_killed(struct actor *self, void *arg)
{
    rdt *conn = node_client(&node, "killed");
    struct rdt_ref ref;

    (void)arg;
    actor_recv(self, &ref, sizeof ref);
    (void)fetch_one(conn, &ref, RDT_FETCH_SHARE);
    actor_step(self);
    actor_await(self);
    return 0;
}

Test(board_gone, idle_reader_lets_go_of_what_one_that_was_killed_had)
{
    struct actor killed;
    struct rdt_ref ref, kept, others[MOST_MAPPED];
    pthread_t thread;
    uint8_t *memory, *more;

    node_start(&node, &(struct node_options){.flags = NULL});
    actor_start(&killed, hold_until_killed, NULL);
    producer = node_client(&node, "producer");
    reader = node_client(&node, "reader");
    memory = alloc_memory(producer, 8 * MIB);
    fill_pattern(memory, MIB, 1);
    ref = put_one(producer, &VECTOR(RDT_U8, MIB, memory), NULL);
    kept = put_one(producer, &VECTOR(RDT_U8, MIB, memory + MIB), NULL);
    make_stay(&ref, RDT_FETCH_SHARE, MIB, 1);
    for (unsigned i = 0; i < MOST_MAPPED; i++) { /* now it is mapped for the idle fetch only */
        more = alloc_memory(producer, SHARED);
        others[i] = put_one(producer, &VECTOR(RDT_U8, SHARED, more), NULL);
        rdt_release(fetch_one(reader, &others[i], RDT_FETCH_SHARE));
    }
    must_ok(rdt_ping(reader, LONG, &err));
    cr_assert(stays(&ref, RDT_FETCH_SHARE, MIB, 1));
    wait_for_what_never_comes();
    must(pthread_create(&thread, NULL, wait_on, NULL) == 0);
    wait_until(20 * SEC, waiter_sleeps());
    actor_send(&killed, &kept, sizeof kept);
    actor_await(&killed);
    must_ok(rdt_free(producer, &ref, false, &err));
    must_ok(rdt_free(producer, &kept, false, &err));
    must_ok(rdt_dealloc(producer, memory, &err));
    actor_kill(&killed, SIGKILL);
    must_ok(rdt_wait_freed(producer, &kept, LONG, &err));
    wait_until(20 * SEC, status_now().orphaned_bytes == 0);
    rdt_cancel(never);
    must(pthread_join(thread, NULL) == 0);
    rdt_request_destroy(never);
    finish();
}

Test(board_gone, nothing_is_mapped_where_bytes_are_limited)
{
    static const char *const limits[] = {"--owner-max-bytes=16MiB", "--client-max-bytes=16MiB"};

    for (unsigned i = 0; i < 2; i++) {
        const char *const flags[] = {limits[i], NULL};
        struct rdt_ref shared, little;

        start_with(flags);
        shared = put_snapshot(producer, NULL, SHARED, 1);
        little = put_snapshot(producer, NULL, LITTLE, 2);
        make_stay(&shared, RDT_FETCH_COW, SHARED, 1);
        make_stay(&little, RDT_FETCH_COW, LITTLE, 2);
        cr_assert_not(stays(&shared, RDT_FETCH_COW, SHARED, 1), "%s", limits[i]);
        cr_assert(stays(&little, RDT_FETCH_COW, LITTLE, 2), "%s", limits[i]);
        finish();
    }
}

/* A sixteenth: 2 MiB. */
Test(board_gone, all_readers_together_keep_little_of_the_limit)
{
    static const char *const flags[] = {"--memory-limit=32MiB", NULL};
    struct rdt_ref refs[2], mine;
    rdt *other;

    start_with(flags);
    other = node_client(&node, "other");
    mine = put_snapshot(producer, NULL, MIB, 7);
    for (uint32_t i = 0; i < 2; i++) {
        refs[i] = put_snapshot(producer, NULL, MIB, i);
        for (unsigned k = 0; k < 2; k++)
            rdt_release(fetch_one(other, &refs[i], RDT_FETCH_COW));
    }
    make_stay(&mine, RDT_FETCH_COW, MIB, 7);
    cr_assert_not(stays(&mine, RDT_FETCH_COW, MIB, 7), "what others may have mapped counts");
    for (uint32_t i = 0; i < 2; i++)
        free_for_good(&refs[i]);
    cr_assert_eq(status_now().orphaned_bytes, 2 * MIB);
    read_once(&mine, RDT_FETCH_COW, MIB, 7);
    cr_assert_not(stays(&mine, RDT_FETCH_COW, MIB, 7), "and what is left of it");
    must_ok(rdt_ping(other, LONG, &err));
    wait_until(20 * SEC, status_now().orphaned_bytes == 0);
    read_once(&mine, RDT_FETCH_COW, MIB, 7);
    cr_assert(stays(&mine, RDT_FETCH_COW, MIB, 7));
    for (uint32_t i = 0; i < 4; i++) { /* what its reader has let go of makes room */
        refs[0] = put_snapshot(producer, NULL, MIB, i);
        make_stay(&refs[0], RDT_FETCH_COW, MIB, i);
        cr_assert(stays(&refs[0], RDT_FETCH_COW, MIB, i));
    }
    rdt_close(other);
    finish();
}

Test(board_gone, what_can_have_no_room_takes_none)
{
    struct rdt_ref used[4], idle, more;
    rdt_object *objects[4];

    start();
    for (uint32_t i = 0; i < 4; i++) {
        used[i] = put_snapshot(producer, NULL, i < 3 ? MIB : SHARED, i);
        make_stay(&used[i], RDT_FETCH_COW, i < 3 ? MIB : SHARED, i);
        objects[i] = fetch_one(reader, &used[i], RDT_FETCH_COW);
    }
    idle = put_snapshot(producer, NULL, SHARED, 8);
    make_stay(&idle, RDT_FETCH_COW, SHARED, 8);
    more = put_snapshot(producer, NULL, MIB, 9);
    make_stay(&more, RDT_FETCH_COW, MIB, 9);
    cr_assert(stays(&idle, RDT_FETCH_COW, SHARED, 8));
    for (uint32_t i = 0; i < 4; i++)
        rdt_release(objects[i]);
    finish();
}

/* ---- what was said before ---- */

/* It asks the daemon, which does not answer. */
static void must_ask(const struct rdt_ref *ref)
{
    rdt_object *object;

    must_be(RDT_TIMED_OUT, try_fetch(reader, ref, RDT_FETCH_COW, 50 * MSEC, &object, &err));
}

Test(board_gone, fetch_comes_after_the_drop_before_it)
{
    static const size_t sizes[] = {LITTLE, SHARED};
    rdt_object *object = NULL;

    start();
    for (unsigned i = 0; i < 6; i++) {
        size_t bytes = sizes[i % 2];
        struct rdt_ref ref = put_snapshot(reader, i / 2 == 1 ? "known" : NULL, bytes, i), freed = ref;

        if (i / 2 == 1)
            ref = ref_named("known"); /* of whatever generation */
        make_stay(&ref, RDT_FETCH_COW, bytes, i);
        if (i / 2 == 2)
            object = fetch_one(reader, &ref, RDT_FETCH_COW);
        node_freeze(&node);
        must_ok(rdt_drop(reader, &freed, &err));
        if (i / 2 == 2)
            rdt_release(object);
        must_ask(&ref);
        node_thaw(&node);
        must_ok(rdt_ping(reader, LONG, &err));
        must_be(RDT_FREED, try_fetch(reader, &freed, RDT_FETCH_COW, LONG, &object, &err));
        cr_assert_eq(status_now().objects, 0);
    }
    wait_until(20 * SEC, status_now().orphaned_bytes == 0);
    finish();
}

Test(board_gone, fetch_comes_after_the_end_of_its_own_hold)
{
    static const size_t sizes[] = {LITTLE, SHARED};
    rdt_object *object;
    rdt_request *hold;

    start();
    for (uint32_t i = 0; i < 2; i++) {
        struct rdt_ref ref = put_snapshot(producer, NULL, sizes[i], i);

        must_ok(rdt_hold(reader, &ref, LONG, &hold, &err));
        make_stay(&ref, RDT_FETCH_COW, sizes[i], i);
        must_ok(rdt_free(producer, &ref, false, &err));
        read_once(&ref, RDT_FETCH_COW, sizes[i], i);
        node_freeze(&node);
        rdt_request_destroy(hold);
        must_ask(&ref);
        node_thaw(&node);
        must_be(RDT_FREED, try_fetch(reader, &ref, RDT_FETCH_COW, LONG, &object, &err));
    }
    finish();
}

/* ---- its reader ---- */

Test(board_gone, what_its_reader_protected_is_as_it_was)
{
    struct rdt_ref ref;
    rdt_object *object;
    void *at;

    start();
    ref = put_snapshot(producer, NULL, SHARED, 1);
    for (unsigned cow = 0; cow < 2; cow++) {
        enum rdt_fetch_mode mode = cow ? RDT_FETCH_COW : RDT_FETCH_SHARE;

        make_stay(&ref, mode, SHARED, 1);
        object = fetch_one(reader, &ref, mode);
        at = tensor_of(object, 0).data;
        at = (void *)((uintptr_t)at & ~(uintptr_t)4095);
        must(mprotect(at, 4096, cow ? PROT_READ : PROT_NONE) == 0);
        rdt_release(object);
        cr_assert(stays(&ref, mode, SHARED, 1));
        object = fetch_one(reader, &ref, mode);
        cr_assert_eq(is_read_only(tensor_of(object, 0).data), !cow);
        rdt_release(object);
    }
    finish();
}

Test(board_gone, call_that_failed_leaves_no_news)
{
    enum { DIMS = 32, TENSORS = 65536 };
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_slice *slices = calloc(TENSORS, sizeof *slices);
    const struct rdt_slice *of[2] = {NULL, slices};
    size_t counts[2] = {0, TENSORS}, n;
    int64_t far[DIMS];
    struct pollfd fd = {.events = POLLIN};
    struct rdt_ref refs[2];
    rdt_request *requests[2];

    start();
    for (uint32_t i = 0; i < 2; i++)
        refs[i] = put_snapshot(producer, NULL, SHARED, i);
    make_stay(&refs[0], RDT_FETCH_COW, SHARED, 0);
    for (unsigned d = 0; d < DIMS; d++)
        far[d] = INT64_MAX / 2;
    for (size_t i = 0; i < TENSORS; i++)
        slices[i] = (struct rdt_slice){.ndim = DIMS, .start = far, .count = far};
    options.mode = RDT_FETCH_COW;
    options.slices = of;
    options.slice_counts = counts;
    fd.fd = rdt_fd(reader);
    must_ok(rdt_dispatch(reader, NULL, &err));
    must_be(RDT_LIMIT, rdt_fetch_start(reader, refs, 2, &options, requests, &err)); /* the first had ended, the second fits into no message */
    cr_assert_eq(poll(&fd, 1, 0), 0);
    must_ok(rdt_dispatch(reader, &n, &err));
    cr_assert_eq(n, 0);
    cr_assert(stays(&refs[0], RDT_FETCH_COW, SHARED, 0));
    free(slices);
    finish();
}
