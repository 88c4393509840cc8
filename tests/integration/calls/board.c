/* Fetches that stay with their reader: the next one of the same says nothing to the daemon, brings the bytes as they were put, and keeps nothing
 * alive. */
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/integration/calls/board.h"

TestSuite(board, .timeout = 120);

#define MOST 16 /* that stay with one reader */

Test(board, third_fetch_needs_no_daemon)
{
    static const struct {
        size_t bytes;
        enum rdt_fetch_mode mode;
        const char *path;
        bool writable;
    } cases[] = {
        {4, RDT_FETCH_AUTO, "inline", true},
        {20000, RDT_FETCH_COW, "inline", true},
        {SHARED, RDT_FETCH_AUTO, "local/share", false},
        {SHARED, RDT_FETCH_SHARE, "local/share", false},
        {150000, RDT_FETCH_COW, "local/cow", true},
        {MIB, RDT_FETCH_COW, "local/cow", true},
        {MIB, RDT_FETCH_AUTO, "local/share", false},
    };
    struct rdt_object_info info;
    struct node_status before;

    start();
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rdt_ref ref = put_snapshot(producer, NULL, cases[i].bytes, i);
        rdt_object *object;

        cr_assert_not(stays(&ref, cases[i].mode, cases[i].bytes, i), "nobody has fetched it yet");
        make_stay(&ref, cases[i].mode, cases[i].bytes, i);
        cr_assert(stays(&ref, cases[i].mode, cases[i].bytes, i), "case %u", i);
        before = status_now();
        for (unsigned k = 0; k < 50; k++) {
            object = fetch_one(reader, &ref, cases[i].mode);
            cr_assert(is_right(object, cases[i].bytes, i));
            must_go_by(cases[i].path, object);
            cr_assert_eq(info_of(object).writable, cases[i].writable);
            info = info_of(object);
            cr_assert(rdt_ref_equal(&info.ref, &ref));
            rdt_release(object);
        }
        cr_assert_eq(status_now().transfers_done, before.transfers_done);
    }
    finish();
}

Test(board, what_its_reader_wrote_is_undone)
{
    static const size_t sizes[] = {LITTLE, SHARED, MIB};

    start();
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct rdt_ref ref = put_snapshot(producer, NULL, sizes[i], i);

        make_stay(&ref, RDT_FETCH_COW, sizes[i], i);
        for (unsigned k = 0; k < 5; k++) {
            rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_COW);

            cr_assert(is_right(object, sizes[i], i));
            memset(tensor_of(object, 0).data, 0xee, sizes[i]);
            rdt_release(object);
            cr_assert(stays(&ref, RDT_FETCH_COW, sizes[i], i));
        }
    }
    finish();
}

Test(board, shared_memory_is_read_only_yet)
{
    struct rdt_ref ref;
    rdt_object *object;

    start();
    ref = put_snapshot(producer, NULL, SHARED, 1);
    make_stay(&ref, RDT_FETCH_SHARE, SHARED, 1);
    object = fetch_one(reader, &ref, RDT_FETCH_SHARE);
    cr_assert(is_read_only(tensor_of(object, 0).data));
    cr_assert(is_right(object, SHARED, 1));
    rdt_release(object);
    finish();
}

/* ---- its end ---- */

Test(board, forced_free_is_seen_by_the_next_fetch)
{
    static const size_t sizes[] = {LITTLE, SHARED};
    rdt_object *object;

    start();
    for (uint32_t i = 0; i < 2; i++) {
        struct rdt_ref ref = put_snapshot(producer, NULL, sizes[i], i);

        make_stay(&ref, RDT_FETCH_COW, sizes[i], i);
        must_ok(rdt_free(producer, &ref, true, &err));
        must_be(RDT_FREED, try_fetch(reader, &ref, RDT_FETCH_COW, LONG, &object, &err));
        cr_assert_eq(status_now().objects, 0);
        wait_until(20 * SEC, status_now().orphaned_bytes == 0);
    }
    wait_until(20 * SEC, status_now().memory_bytes == 0);
    finish();
}

Test(board, idle_fetch_keeps_nothing_alive)
{
    static const size_t sizes[] = {LITTLE, SHARED};

    start();
    for (uint32_t i = 0; i < 2; i++) {
        struct rdt_ref ref = put_snapshot(producer, NULL, sizes[i], i), again;
        rdt_object *object;

        make_stay(&ref, RDT_FETCH_AUTO, sizes[i], i);
        wait_until(20 * SEC, holds_on(&ref) == 1);
        must_ok(rdt_free(producer, &ref, false, &err));
        cr_assert_eq(status_now().objects, 0);
        must_ok(rdt_wait_freed(producer, &ref, LONG, &err));
        must_be(RDT_FREED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));

        again = put_snapshot(producer, "same", sizes[i], 7); /* by id: what is under it now */
        ref = ref_named("same");
        make_stay(&ref, RDT_FETCH_AUTO, sizes[i], 7);
        must_ok(rdt_free(producer, &again, false, &err));
        again = put_snapshot(producer, "same", sizes[i], 8);
        read_once(&ref, RDT_FETCH_AUTO, sizes[i], 8);
        must_ok(rdt_free(producer, &again, false, &err));
    }
    finish();
}

Test(board, fetch_in_use_holds_until_its_release)
{
    struct rdt_ref ref;
    rdt_object *object;
    rdt_request *gone;

    start();
    for (unsigned forced = 0; forced < 2; forced++) {
        ref = put_snapshot(producer, NULL, SHARED, 3);
        make_stay(&ref, RDT_FETCH_AUTO, SHARED, 3);
        object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
        wait_until(20 * SEC, holds_on(&ref) == 2);
        must_ok(rdt_free(producer, &ref, forced, &err));
        must_ok(rdt_wait_freed_start(producer, &ref, LONG, &gone, &err));
        must_be(RDT_TIMED_OUT, rdt_wait(producer, &gone, 1, 1, 50 * MSEC, NULL, NULL, &err));
        cr_assert(is_right(object, SHARED, 3));
        rdt_release(object);
        must_ok(rdt_wait(producer, &gone, 1, 1, LONG, NULL, NULL, &err));
        rdt_request_destroy(gone);
        cr_assert_eq(status_now().objects, 0);
        must_be(RDT_FREED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    }
    ref = put_snapshot(producer, NULL, LITTLE, 3); /* what came in the message was never held */
    make_stay(&ref, RDT_FETCH_AUTO, LITTLE, 3);
    object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    wait_until(20 * SEC, holds_on(&ref) == 1);
    must_ok(rdt_free(producer, &ref, false, &err));
    cr_assert_eq(status_now().objects, 0);
    cr_assert(is_right(object, LITTLE, 3));
    rdt_release(object);
    must_be(RDT_FREED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    finish();
}

Test(board, producers_end_is_seen_by_the_next_fetch)
{
    rdt_object *object;
    struct rdt_ref shared, little;

    start();
    shared = put_snapshot(producer, NULL, SHARED, 1);
    little = put_snapshot(producer, NULL, LITTLE, 2);
    make_stay(&shared, RDT_FETCH_COW, SHARED, 1);
    make_stay(&little, RDT_FETCH_COW, LITTLE, 2);
    rdt_close(producer);
    producer = NULL;
    wait_until(20 * SEC, status_now().objects == 0);
    must_be(RDT_OWNER_DIED, try_fetch(reader, &shared, RDT_FETCH_COW, LONG, &object, &err));
    must_be(RDT_OWNER_DIED, try_fetch(reader, &little, RDT_FETCH_COW, LONG, &object, &err));
    finish();
}

/* The last who holds it, beside those who do not really, is another reader. */
Test(board, object_ends_with_the_last_true_hold)
{
    struct rdt_ref ref;
    rdt_object *kept, *object;
    rdt *other;

    start();
    other = node_client(&node, "other");
    ref = put_snapshot(producer, NULL, SHARED, 1);
    make_stay(&ref, RDT_FETCH_AUTO, SHARED, 1);
    kept = fetch_one(other, &ref, RDT_FETCH_AUTO);
    must_ok(rdt_free(producer, &ref, false, &err));
    read_once(&ref, RDT_FETCH_AUTO, SHARED, 1);
    cr_assert_eq(status_now().objects, 1);
    rdt_release(kept);
    wait_until(20 * SEC, status_now().objects == 0);
    must_be(RDT_FREED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    rdt_close(other);
    finish();
}

/* ---- how much stays ---- */

Test(board, more_than_may_stay_come_right)
{
    enum { N = 25 };
    struct rdt_ref refs[N];
    rdt_object *objects[N];
    unsigned n = 0;

    start();
    for (uint32_t i = 0; i < N; i++)
        refs[i] = put_snapshot(producer, NULL, i % 2 ? SHARED : LITTLE, i);
    for (unsigned round = 0; round < 5; round++)
        for (uint32_t i = 0; i < N; i++)
            read_once(&refs[i], RDT_FETCH_COW, i % 2 ? SHARED : LITTLE, i);
    for (uint32_t i = N; i-- > 0 && stays(&refs[i], RDT_FETCH_COW, i % 2 ? SHARED : LITTLE, i);) /* one that does not takes the place of another */
        n++;
    cr_assert(n > 0 && n <= MOST, "%u stay", n);
    for (unsigned round = 0; round < 3; round++) { /* all in use at once */
        for (uint32_t i = 0; i < N; i++)
            objects[i] = fetch_one(reader, &refs[i], RDT_FETCH_COW);
        for (uint32_t i = 0; i < N; i++) {
            cr_assert(is_right(objects[i], i % 2 ? SHARED : LITTLE, i));
            rdt_release(objects[i]);
        }
    }
    for (uint32_t i = 0; i < N; i++)
        wait_until(20 * SEC, holds_on(&refs[i]) == 1);
    finish();
}

Test(board, what_is_too_large_does_not_stay)
{
    enum { N = 8 };
    struct rdt_ref large, refs[N];
    unsigned n = 0;

    start();
    large = put_snapshot(producer, NULL, MIB + 1, 1);
    make_stay(&large, RDT_FETCH_COW, MIB + 1, 1);
    cr_assert_not(stays(&large, RDT_FETCH_COW, MIB + 1, 1));
    for (uint32_t i = 0; i < N; i++) {
        refs[i] = put_snapshot(producer, NULL, MIB, i);
        make_stay(&refs[i], RDT_FETCH_COW, MIB, i);
    }
    for (uint32_t i = N; i-- > 0 && stays(&refs[i], RDT_FETCH_COW, MIB, i);)
        n++;
    cr_assert(n > 0 && n <= 4, "%u stay", n);
    finish();
}

/* It is shared, so the next look at it is the same memory, whatever was written there meanwhile. */
Test(board, live_object_stays_where_it_is_shared)
{
    static const size_t sizes[] = {4, SHARED, 8 * MIB};
    static const enum rdt_fetch_mode modes[] = {RDT_FETCH_AUTO, RDT_FETCH_SHARE};

    start();
    for (uint32_t i = 0; i < 6; i++) {
        size_t bytes = sizes[i / 2];
        uint8_t *memory = alloc_memory(producer, bytes);
        struct rdt_object_info info;
        struct rdt_ref ref;
        rdt_object *object;

        fill_pattern(memory, bytes, i);
        ref = put_one(producer, &VECTOR(RDT_U8, bytes, memory), NULL);
        make_stay(&ref, modes[i % 2], bytes, i);
        for (uint32_t k = 0; k < 3; k++) {
            fill_pattern(memory, bytes, 10 * i + k);
            cr_assert(stays(&ref, modes[i % 2], bytes, 10 * i + k), "%zu bytes", bytes);
        }
        object = fetch_one(reader, &ref, modes[i % 2]);
        must_go_by("local/share", object);
        info = info_of(object);
        cr_assert_not(info.writable || info.mutable_shared);
        cr_assert(is_read_only(tensor_of(object, 0).data));
        rdt_release(object);
        wait_until(20 * SEC, holds_on(&ref) == 1);
    }
    finish();
}

Test(board, private_copy_of_a_live_object_is_made_anew)
{
    static const enum rdt_fetch_mode modes[] = {RDT_FETCH_COPY, RDT_FETCH_COW};
    uint8_t *memory;
    struct rdt_ref ref;

    start();
    memory = alloc_memory(producer, SHARED);
    ref = put_one(producer, &VECTOR(RDT_U8, SHARED, memory), NULL);
    for (uint32_t i = 0; i < 8; i++) {
        fill_pattern(memory, SHARED, i);
        read_once(&ref, modes[i % 2], SHARED, i);
    }
    for (uint32_t i = 0; i < 2; i++)
        cr_assert_not(stays(&ref, modes[i], SHARED, 7));
    finish();
}

Test(board, imported_memory_does_not_stay)
{
    struct rdt_ref ref;
    uint8_t *memory;
    int fd;

    start();
    fd = memfd_create("imported", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert(fd >= 0 && ftruncate(fd, (off_t)SHARED) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    memory = mmap(NULL, SHARED, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert_neq(memory, MAP_FAILED);
    fill_pattern(memory, SHARED, 1);
    must_ok(rdt_import(producer, fd, memory, SHARED, &err));
    ref = put_one(producer, &VECTOR(RDT_U8, SHARED, memory), NULL);
    make_stay(&ref, RDT_FETCH_SHARE, SHARED, 1);
    read_once(&ref, RDT_FETCH_SHARE, SHARED, 1);
    cr_assert_not(stays(&ref, RDT_FETCH_SHARE, SHARED, 1));
    (void)close(fd);
    finish();
    (void)munmap(memory, SHARED);
}

Test(board, second_fetch_beside_the_first_is_its_own)
{
    struct rdt_ref ref;
    rdt_object *objects[3];

    start();
    ref = put_snapshot(producer, NULL, SHARED, 1);
    make_stay(&ref, RDT_FETCH_COW, SHARED, 1);
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 3; i++)
            objects[i] = fetch_one(reader, &ref, RDT_FETCH_COW);
        memset(tensor_of(objects[0], 0).data, 0xee, SHARED);
        cr_assert(is_right(objects[1], SHARED, 1) && is_right(objects[2], SHARED, 1));
        wait_until(20 * SEC, holds_on(&ref) == 4);
        for (unsigned i = 0; i < 3; i++)
            rdt_release(objects[i]);
        wait_until(20 * SEC, holds_on(&ref) == 1);
    }
    cr_assert(stays(&ref, RDT_FETCH_COW, SHARED, 1));
    finish();
}

/* ---- requests ---- */

Test(board, requests_that_have_ended_at_once_are_told_as_others)
{
    enum { N = 4 };
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref refs[N];
    rdt_request *requests[N], *one;
    rdt_object *object;
    struct pollfd fd = {.events = POLLIN};
    size_t n;
    bool done[N];

    start();
    options.mode = RDT_FETCH_COW;
    for (uint32_t i = 0; i < N; i++) {
        refs[i] = put_snapshot(producer, NULL, SHARED, i);
        if (i % 2)
            make_stay(&refs[i], RDT_FETCH_COW, SHARED, i);
    }
    for (unsigned round = 0; round < 3; round++) { /* some of one call are here and others are not */
        must_ok(rdt_fetch_start(reader, refs, N, &options, requests, &err));
        must_ok(rdt_wait(reader, requests, N, RDT_WAIT_ALL, LONG, done, &n, &err));
        cr_assert_eq(n, N);
        for (uint32_t i = 0; i < N; i++) {
            must_ok(rdt_request_take_object(requests[i], &object, &err));
            cr_assert(is_right(object, SHARED, i));
            rdt_release(object);
            rdt_request_destroy(requests[i]);
        }
    }
    fd.fd = rdt_fd(reader);
    must_ok(rdt_dispatch(reader, NULL, &err));
    cr_assert_eq(poll(&fd, 1, 0), 0);
    node_freeze(&node);
    must_ok(rdt_fetch_start(reader, refs, 1, &options, &one, &err));
    cr_assert_eq(poll(&fd, 1, 0), 1);
    must_ok(rdt_dispatch(reader, &n, &err));
    cr_assert_eq(n, 1);
    cr_assert_eq(poll(&fd, 1, 0), 0);
    rdt_cancel(one);
    must_ok(rdt_request_status(one, &err));
    rdt_request_destroy(one); /* uncollected: it goes on staying */
    must_ok(rdt_fetch_start(reader, refs, 1, &options, &one, &err));
    must_ok(rdt_wait(reader, &one, 1, 1, 0, NULL, NULL, &err));
    rdt_request_destroy(one);
    node_thaw(&node);
    wait_until(20 * SEC, holds_on(&refs[0]) == 1);
    finish();
}

Test(board, cancelled_fetch_leaves_no_hold)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref refs[2];
    rdt_request *request;

    start();
    options.mode = RDT_FETCH_COW;
    refs[0] = put_snapshot(producer, NULL, SHARED, 0);
    refs[1] = put_snapshot(producer, NULL, LITTLE, 1);
    for (unsigned i = 0; i < 2; i++) {
        read_once(&refs[i], RDT_FETCH_COW, i ? LITTLE : SHARED, i);
        for (unsigned k = 0; k < 20; k++) { /* each would stay */
            must_ok(rdt_fetch_start(reader, &refs[i], 1, &options, &request, &err));
            rdt_request_destroy(request);
        }
        must_ok(rdt_wait_put(reader, &refs[i], LONG, &err)); /* all of that was heard */
        must_ok(rdt_wait_put(reader, &refs[i], LONG, &err));
        wait_until(20 * SEC, holds_on(&refs[i]) == 1);
        make_stay(&refs[i], RDT_FETCH_COW, i ? LITTLE : SHARED, i);
        cr_assert(stays(&refs[i], RDT_FETCH_COW, i ? LITTLE : SHARED, i));
    }
    finish();
}

/* ---- who has it ---- */

static void *read_much(void *arg)
{
    struct rdt_ref *refs = arg;

    for (unsigned round = 0; round < 300; round++) {
        uint32_t i = round % 3;
        rdt_object *object = NULL;

        if (try_fetch(reader, &refs[i], RDT_FETCH_COW, LONG, &object, NULL) != RDT_OK || !is_right(object, SHARED, i))
            return "a fetch went wrong";
        memset(tensor_of(object, 0).data, (int)round, 4096);
        rdt_release(object);
    }
    return NULL;
}

Test(board, threads_share_it)
{
    pthread_t threads[2];
    struct rdt_ref refs[3];
    void *said;

    start();
    for (uint32_t i = 0; i < 3; i++)
        refs[i] = put_snapshot(producer, NULL, SHARED, i);
    for (unsigned i = 0; i < 2; i++)
        must(pthread_create(&threads[i], NULL, read_much, refs) == 0);
    for (unsigned i = 0; i < 2; i++) {
        must(pthread_join(threads[i], &said) == 0);
        cr_assert_null(said);
    }
    for (uint32_t i = 0; i < 3; i++)
        wait_until(20 * SEC, holds_on(&refs[i]) == 1);
    finish();
}

Test(board, forked_child_touches_nothing)
{
    struct rdt_ref ref;
    rdt_object *used, *object;
    int status;
    pid_t child;

    start();
    ref = put_snapshot(producer, NULL, SHARED, 1);
    make_stay(&ref, RDT_FETCH_COW, SHARED, 1);
    for (unsigned in_use = 0; in_use < 2; in_use++) {
        used = in_use ? fetch_one(reader, &ref, RDT_FETCH_COW) : NULL;
        child = fork();
        if (child == 0) {
            enum rdt_status forked = try_fetch(reader, &ref, RDT_FETCH_COW, LONG, &object, NULL);

            rdt_release(used);
            rdt_close(reader);
            _exit(forked == RDT_FORKED ? 0 : 1);
        }
        must(waitpid(child, &status, 0) == child && status == 0);
        wait_until(20 * SEC, holds_on(&ref) == 1 + in_use);
        rdt_release(used);
        cr_assert(stays(&ref, RDT_FETCH_COW, SHARED, 1));
    }
    finish();
}

Test(board, lost_daemon_is_noticed_and_what_stayed_goes)
{
    struct rdt_ref ref;
    rdt_object *used, *object;

    start();
    ref = put_snapshot(producer, NULL, SHARED, 1);
    make_stay(&ref, RDT_FETCH_COW, SHARED, 1);
    used = fetch_one(reader, &ref, RDT_FETCH_COW);
    make_stay(&ref, RDT_FETCH_AUTO, SHARED, 1);
    node_kill(&node, SIGKILL);
    must_be(RDT_DISCONNECTED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    cr_assert(is_right(used, SHARED, 1));
    rdt_release(used);
    must_be(RDT_DISCONNECTED, try_fetch(reader, &ref, RDT_FETCH_COW, LONG, &object, &err));
    rdt_close(producer);
    rdt_close(reader);
}

Test(board, limits_of_bookkeeping_are_kept)
{
    static const char *const flags[] = {"--client-max-heap=1KiB", NULL};
    struct rdt_ref ref;

    start_with(flags);
    ref = put_snapshot(producer, NULL, SHARED, 1);
    for (unsigned i = 0; i < 4; i++)
        read_once(&ref, RDT_FETCH_COW, SHARED, 1);
    cr_assert_not(stays(&ref, RDT_FETCH_COW, SHARED, 1), "there is no room for a board");
    wait_until(20 * SEC, holds_on(&ref) == 1);
    finish();
}
