/* Fetches from another node that begin before the answer, in memory for what their client's fetches usually bring: when they do, and that
 * a wrong guess changes nothing but the time. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/integration/nodes/nodes_fixture.h"

#define BYTES (300 * KIB)

TestSuite(guess, .timeout = 240);

/* What a client has let go of stays warm, however slow the test is. Nothing else is kept: it would be missed at the end. */
static void begin_warm(bool stream)
{
    static const char *const flags[] = {"--pool-idle=60s", "--set=daemon.pool_max=1", NULL};

    begin_with(2, &(struct cluster_options){.stream = stream, .flags = flags});
}

static struct node_status status_now(void)
{
    struct node_status status;

    node_status(&c.node[1], &status);
    return status;
}

static void expect_guesses(uint64_t guessed, uint64_t misguessed)
{
    struct node_status status = status_now();

    must_say(status.guessed == guessed && status.misguessed == misguessed, "%llu guesses and %llu in vain, not %llu and %llu",
             (unsigned long long)status.guessed, (unsigned long long)status.misguessed, (unsigned long long)guessed,
             (unsigned long long)misguessed);
}

static struct rdt_ref put_snapshot(size_t bytes, uint32_t seed)
{
    struct rdt_put_options options = RDT_INIT(options);
    uint8_t *data = malloc(bytes);
    struct rdt_tensor tensor = VECTOR(RDT_U8, bytes, data);
    struct rdt_ref ref;

    fill_pattern(data, bytes, seed);
    options.flags = RDT_PUT_SNAPSHOT;
    must_ok(rdt_put(owner, &tensor, 1, &options, &ref, &err));
    free(data);
    return ref;
}

static void check(rdt_object *object, size_t bytes, uint32_t seed)
{
    struct rdt_tensor tensor = tensor_of(object, 0);

    must(tensor.shape[0] == (int64_t)bytes);
    must_say(holds_pattern(tensor.data, bytes, seed), "%zu bytes of pattern %u are not that", bytes, seed);
    rdt_release(object);
}

/* A new object, fetched once by the transport ("": any). */
static void fetch_new(const char *transport, size_t bytes, uint32_t seed)
{
    struct rdt_ref ref = put_pattern(owner, NULL, bytes, seed);
    struct rdt_fetch_options options = within(LONG);
    rdt_object *object;

    options.transport = transport;
    must_ok(rdt_fetch(reader, &ref, 1, &options, &object, &err));
    check(object, bytes, seed);
    must_ok(rdt_free(owner, &ref, false, &err));
}

/* From here on the reader's next fetch is guessed to be one of so many bytes, after so many wrong guesses in a row. */
static void make_usual_after(unsigned wrong, size_t bytes)
{
    for (uint32_t i = 0; i < 2u << wrong; i++)
        fetch_new(NULL, bytes, i);
}

static void make_usual(size_t bytes)
{
    make_usual_after(0, bytes);
}

Test(guess, third_of_the_same_shapes_begins_before_the_answer)
{
    static const char *const transports[] = {"ucx", "stream"};

    begin_warm(true);
    for (uint32_t k = 0; k < 2; k++) {
        uint64_t before;
        unsigned first = 2u << k;
        fetch_new(NULL, 2 * BYTES, 90); /* the second time a wrong guess */
        before = status_now().guessed;
        for (uint32_t i = 0; i < first + 4; i++) {
            fetch_new(transports[k], BYTES, 10 * k + i);
            expect_guesses(before + (i < first ? 0 : i + 1 - first), k);
        }
    }
    end(NULL);
}

Test(guess, small_and_other_ones_in_turns_are_not_guessed_about)
{
    begin_warm(false);
    for (uint32_t i = 0; i < 6; i++) {
        fetch_new(NULL, BYTES, i);
        fetch_new(NULL, i % 2 ? 100 : 2 * BYTES, i);
    }
    expect_guesses(0, 0);
    end(NULL);
}

Test(guess, object_of_other_shapes_arrives_all_the_same)
{
    static const size_t others[] = {BYTES - 64, BYTES + 1, 5 * MIB, 1, 0};
    uint64_t warm;

    begin_warm(false);
    for (uint32_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        make_usual_after(i, BYTES);
        expect_guesses(i, i);
        warm = status_now().warm_bytes;
        fetch_new(NULL, others[i], 20 + i);
        expect_guesses(i + 1, i + 1);
        wait_until(LONG, status_now().warm_bytes >= warm); /* what the guess had taken is there again */
    }
    fetch_new(NULL, BYTES, 40);
    expect_guesses(5, 5); /* it has to learn anew */
    end(NULL);
}

Test(guess, shapes_count_and_not_bytes_alone)
{
    uint8_t data[BYTES];
    int64_t shape[] = {2, BYTES / 8};
    struct rdt_tensor tensor = {.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = data}, seen;
    rdt_object *object;
    struct rdt_ref ref;

    begin_warm(false);
    make_usual(BYTES);
    fill_pattern(data, BYTES, 3);
    ref = put_one(owner, &tensor, NULL);
    object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    seen = tensor_of(object, 0);
    cr_assert(seen.dtype == RDT_F32 && seen.ndim == 2 && seen.shape[0] == 2);
    cr_assert(holds_pattern(seen.data, BYTES, 3));
    rdt_release(object);
    expect_guesses(1, 1);
    end(NULL);
}

/* One copy for the whole node, which other nodes may be sent to. */
Test(guess, snapshot_is_kept_for_everybody_here)
{
    struct rdt_ref ref;
    rdt *another;

    begin_warm(false);
    another = node_client(&c.node[1], "another");
    make_usual(BYTES);
    ref = put_snapshot(BYTES, 7);
    check(fetch_one(reader, &ref, RDT_FETCH_AUTO), BYTES, 7);
    expect_guesses(1, 1);
    cr_assert_eq(status_now().copies, 1);
    check(fetch_one(another, &ref, RDT_FETCH_AUTO), BYTES, 7);
    cr_assert_eq(status_now().from_copies, 1);
    rdt_close(another);
    end(NULL);
}

/* Nobody knows how long it takes: no memory waits for it. */
Test(guess, what_is_not_ready_yet_holds_no_memory)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_tensor tensor;
    struct rdt_ref ref;
    rdt_object *object;
    rdt_request *request;
    uint64_t warm;
    char *memory;

    begin_warm(false);
    memory = alloc_memory(owner, BYTES);
    tensor = VECTOR(RDT_U8, BYTES, memory);
    options.flags = RDT_PUT_PENDING;
    must_ok(rdt_put(owner, &tensor, 1, &options, &ref, &err));
    make_usual(BYTES);
    wait_until(LONG, status_now().warm_bytes > 0);
    warm = status_now().warm_bytes;
    request = start_one(reader, &ref, LONG);
    wait_until(LONG, status_now().misguessed == 1);
    wait_until(LONG, status_now().warm_bytes == warm);
    fill_pattern(memory, BYTES, 5);
    must_ok(rdt_ready(owner, &ref, &err));
    must_ok(rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
    check(object, BYTES, 5);
    rdt_request_destroy(request);
    end(NULL);
}

Test(guess, freed_object_is_freed)
{
    struct rdt_ref ref;
    rdt_object *object;
    uint64_t warm;

    begin_warm(false);
    ref = put_pattern(owner, NULL, BYTES, 1);
    must_ok(rdt_free(owner, &ref, true, &err));
    make_usual(BYTES);
    wait_until(LONG, status_now().warm_bytes > 0);
    warm = status_now().warm_bytes;
    must_be(RDT_FREED, try_fetch(reader, &ref, RDT_FETCH_AUTO, LONG, &object, &err));
    wait_until(LONG, status_now().warm_bytes >= warm);
    fetch_new(NULL, BYTES, 2);
    expect_guesses(2, 0);
    end(NULL);
}

/* The caller is free at its deadline, and the memory with it; what the owner sends when it goes on lands nowhere. */
Test(guess, owner_that_stands_still_is_not_waited_for)
{
    struct rdt_ref ref, other;
    rdt_object *object;
    uint64_t warm;

    begin_warm(false);
    ref = put_pattern(owner, NULL, BYTES, 1);
    other = put_pattern(owner, NULL, BYTES, 2);
    make_usual(BYTES);
    wait_until(LONG, status_now().warm_bytes > 0);
    warm = status_now().warm_bytes;
    node_freeze(&c.node[0]);
    must_be(RDT_TIMED_OUT, try_fetch(reader, &ref, RDT_FETCH_AUTO, 100 * MSEC, &object, &err));
    wait_until(LONG, status_now().warm_bytes >= warm);
    node_thaw(&c.node[0]);
    check(fetch_one(reader, &other, RDT_FETCH_AUTO), BYTES, 2);
    expect_guesses(2, 0);
    end(NULL);
}

/* Right guesses and wrong ones, cancelled at any moment, several at a time, snapshots among them. */
Test(guess, storm_leaves_nothing)
{
    enum { KINDS = 6, AT_ONCE = 3 };
    static const size_t sizes[KINDS] = {BYTES, BYTES, BYTES, BYTES, 2 * BYTES, BYTES};
    struct rdt_ref refs[KINDS];
    uint64_t dice = 11;

    begin_warm(false);
    for (uint32_t i = 0; i < KINDS; i++)
        refs[i] = i == KINDS - 1 ? put_snapshot(sizes[i], i) : put_pattern(owner, NULL, sizes[i], i);
    for (unsigned round = 0; round < 300; round++) {
        rdt_request *requests[AT_ONCE];
        uint32_t which[AT_ONCE];
        for (unsigned k = 0; k < AT_ONCE; k++) {
            which[k] = (uint32_t)(next_random(&dice) % 4 ? next_random(&dice) % 4 : next_random(&dice) % KINDS);
            requests[k] = start_one(reader, &refs[which[k]], LONG);
        }
        for (unsigned k = 0; k < AT_ONCE; k++) {
            rdt_object *object;
            if (next_random(&dice) % 4 == 0) {
                rdt_request_destroy(requests[k]);
                continue;
            }
            must_ok(rdt_wait(reader, &requests[k], 1, 1, LONG, NULL, NULL, &err));
            must_ok(rdt_request_take_object(requests[k], &object, &err));
            check(object, sizes[which[k]], which[k]);
            rdt_request_destroy(requests[k]);
        }
    }
    cr_assert_gt(status_now().guessed, 0);
    cr_assert_gt(status_now().misguessed, 0);
    end(NULL);
}

/* The owner starts no fetch that a transport which it does not prefer would bring: each guess is in vain. */
Test(guess, who_is_wrong_again_and_again_is_ever_more_seldom)
{
    enum { N = 40 };
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_tensor tensor;
    uint8_t *data = malloc(BYTES);
    uint64_t wrong;

    begin_warm(true);
    options.transport = "stream";
    fill_pattern(data, BYTES, 7);
    tensor = VECTOR(RDT_U8, BYTES, data);
    for (uint32_t i = 0; i < N; i++) {
        struct rdt_ref ref;
        must_ok(rdt_put(owner, &tensor, 1, &options, &ref, &err));
        check(fetch_one(reader, &ref, RDT_FETCH_AUTO), BYTES, 7);
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    wrong = status_now().misguessed;
    must_say(wrong >= 1 && wrong <= 4, "%llu of %u guesses in vain", (unsigned long long)wrong, N);
    free(data);
    end(NULL);
}
