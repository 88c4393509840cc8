/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches of one object by several clients of a node: which of them the daemon joins into one transfer, and which it must
 * not join. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "tests/integration/nodes/nodes_fixture.h"

TestSuite(coalescing, .timeout = 240);

/* ---- a live object is never served stale ---- */

enum { READERS = 8 }; /* on each of two nodes */

struct book {
    struct rdt_ref ref;
    uint64_t *words; /* the writer's: all hold one number, or the next while it writes */
    size_t n;
    atomic_uint_fast64_t written; /* every word is at least this */
    atomic_uint readers, rounds;
    atomic_uint goal; /* fetches in all; grows until some have joined */
};

struct page_reader {
    struct book *book;
    pthread_t thread;
    rdt *conn;
    char wrong[160]; /* "": nothing */
};

static bool look(struct page_reader *one)
{
    struct book *book = one->book;
    uint64_t least = atomic_load(&book->written);
    struct rdt_fetch_options options = within(LONG);
    struct rdt_tensor tensor;
    struct rdt_error err = {0};
    rdt_object *object;

    if (rdt_fetch(one->conn, &book->ref, 1, &options, &object, &err) != RDT_OK ||
        rdt_object_tensor(object, 0, &tensor, &err) != RDT_OK) {
        (void)snprintf(one->wrong, sizeof one->wrong, "%s: %.120s", rdt_status_name(err.status), err.msg);
        return false;
    }
    for (size_t i = 0; i < book->n && !one->wrong[0]; i++)
        if (((const uint64_t *)tensor.data)[i] < least)
            (void)snprintf(one->wrong, sizeof one->wrong, "word %zu is %llu, was told %llu", i,
                           (unsigned long long)((const uint64_t *)tensor.data)[i], (unsigned long long)least);
    rdt_release(object);
    return !one->wrong[0];
}

static void *read_on(void *arg)
{
    struct page_reader *one = arg;

    while (atomic_fetch_add(&one->book->rounds, 1) < atomic_load(&one->book->goal) && look(one))
        ;
    atomic_fetch_sub(&one->book->readers, 1);
    return NULL;
}

static uint64_t joined_on(unsigned i)
{
    return node_now(&c.node[i]).joined;
}

/* Whether fetches meet is chance. While the owner's daemon stands still, the fetches of a node gather behind the first that
 * asked it, except those whose bytes are under way: they go on and try again, within bounds, until some have met on both
 * nodes. */
static void let_fetches_meet(struct book *book, unsigned more)
{
    node_freeze(&c.node[0]);
    for (unsigned i = 0; i < 50 && (joined_on(1) == 0 || joined_on(2) == 0); i++)
        (void)usleep(10000);
    node_thaw(&c.node[0]);
    atomic_fetch_add(&book->goal, more);
}

/* The writer goes on to write until all readers have ended. */
static void check_never_stale(size_t bytes, unsigned goal)
{
    struct page_reader readers[2 * READERS];
    struct node_status status;
    struct book book = {.n = bytes / 8, .goal = goal};

    begin(3);
    book.words = alloc_memory(owner, bytes);
    memset(book.words, 0, bytes);
    struct rdt_tensor tensor = VECTOR(RDT_U64, book.n, book.words);
    book.ref = put_one(owner, &tensor, "book");
    atomic_store(&book.readers, 2 * READERS);
    for (unsigned i = 0; i < 2 * READERS; i++) {
        readers[i] = (struct page_reader){.book = &book, .conn = node_client(&c.node[1 + i % 2], "page reader")};
        must(pthread_create(&readers[i].thread, NULL, read_on, &readers[i]) == 0);
    }
    for (uint64_t number = 1; atomic_load(&book.readers) > 0; number++) {
        if (atomic_load(&book.rounds) > atomic_load(&book.goal) / 2 && atomic_load(&book.goal) < 16 * goal &&
            (joined_on(1) == 0 || joined_on(2) == 0))
            let_fetches_meet(&book, goal);
        for (size_t i = 0; i < book.n; i++)
            ((volatile uint64_t *)book.words)[i] = number;
        atomic_store(&book.written, number);
    }
    for (unsigned i = 0; i < 2 * READERS; i++) {
        must(pthread_join(readers[i].thread, NULL) == 0);
        must_say(!readers[i].wrong[0], "reader %u: %s", i, readers[i].wrong);
        rdt_close(readers[i].conn);
    }
    for (unsigned i = 1; i <= 2; i++) {
        status = node_now(&c.node[i]);
        must_say(status.joined > 0, "no fetch on node %u joined another", i);
    }
    must_ok(rdt_free(owner, &book.ref, false, &err));
    end(NULL);
}

Test(coalescing, small_live_object_is_never_stale)
{
    check_never_stale(4 * KIB, 6000);
}

Test(coalescing, large_live_object_is_never_stale)
{
    check_never_stale(2 * MIB, 400);
}

/* ---- each fetch is its own ---- */

/* While the owner's node stands still: the first asks, the second waits for its answer, the others join the second. */
Test(coalescing, fetches_of_one_object_share_a_transfer_and_end_separately)
{
    enum { N = 6 };
    rdt *conns[N];
    rdt_request *requests[N];
    rdt_object *objects[N];

    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, 3 * MIB, 7);
    for (unsigned i = 0; i < N; i++)
        conns[i] = node_client(&c.node[1], "one of many");
    struct node_status before = node_now(&c.node[1]);
    node_freeze(&c.node[0]);
    for (unsigned i = 0; i < N; i++)
        requests[i] = start_one(conns[i], &ref, i == 3 ? 2 * SEC : LONG);
    wait_until(5 * SEC, joined_on(1) - before.joined == N - 2);
    rdt_cancel(requests[1]);
    must_be(RDT_CANCELLED, rdt_wait(conns[1], &requests[1], 1, 1, LONG, NULL, NULL, &err));
    rdt_close(conns[2]); /* with its request */
    must_be(RDT_TIMED_OUT, rdt_wait(conns[3], &requests[3], 1, 1, LONG, NULL, NULL, &err));
    node_thaw(&c.node[0]);
    for (unsigned i = 0; i < N; i++) {
        if (i >= 1 && i <= 3)
            continue;
        objects[i] = await_object(conns[i], requests[i]);
        struct rdt_tensor tensor = tensor_of(objects[i], 0);
        must(holds_pattern(tensor.data, 3 * MIB, 7));
    }
    wait_until(LONG, node_now(&c.node[1]).transfers_done - before.transfers_done == 2); /* after the answers */
    must(node_now(&c.node[1]).bytes_in - before.bytes_in == 6 * MIB);
    for (unsigned i = 0; i < N; i++) {
        if (i < 1 || i > 3)
            rdt_release(objects[i]);
        if (i != 2) {
            rdt_request_destroy(requests[i]);
            rdt_close(conns[i]);
        }
    }
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

/* More than one turn of the loop answers: the memory stays until the last has its answer, and clients may end meanwhile. */
static void check_many(size_t bytes)
{
    enum { MANY = 900 };
    rdt_request *requests[MANY], *left[MANY / 3];

    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, bytes, 7);
    rdt *conn = node_client(&c.node[1], "one with many");
    rdt *leaver = node_client(&c.node[1], "one that leaves");
    uint64_t before = joined_on(1);
    node_freeze(&c.node[0]);
    for (unsigned i = 0; i < MANY; i++) /* the bytes of all are compared before the last is asked for */
        requests[i] = start_one(conn, &ref, 10 * LONG);
    for (unsigned i = 0; i < MANY / 3; i++)
        left[i] = start_one(leaver, &ref, 10 * LONG);
    /* the waits send what did not fit into the sockets */
    wait_until(20 * SEC, rdt_wait(conn, requests, 1, 1, 0, NULL, NULL, NULL) == RDT_TIMED_OUT &&
                             rdt_wait(leaver, left, 1, 1, 0, NULL, NULL, NULL) == RDT_TIMED_OUT &&
                             joined_on(1) - before >= 1000);
    node_thaw(&c.node[0]);
    must_ok(rdt_wait(conn, &requests[0], 1, 1, LONG, NULL, NULL, &err));
    rdt_close(leaver);
    for (unsigned i = 0; i < MANY; i++) {
        rdt_object *object = await_object(conn, requests[i]);
        struct rdt_tensor tensor = tensor_of(object, 0);
        must(holds_pattern(tensor.data, bytes, 7));
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
    rdt_close(conn);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

Test(coalescing, hundreds_of_joined_fetches_of_a_live_object_are_answered)
{
    check_many(3 * MIB);
}

Test(coalescing, hundreds_of_joined_fetches_of_a_small_object_are_answered)
{
    check_many(512);
}

/* The first one's end, before it was answered, lets the next one ask. */
Test(coalescing, end_of_the_first_fetch_lets_the_next_pull)
{
    rdt *conns[3];
    rdt_request *requests[3];

    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, MIB, 7);
    for (unsigned i = 0; i < 3; i++)
        conns[i] = node_client(&c.node[1], "one of many");
    node_freeze(&c.node[0]);
    uint64_t before = joined_on(1);
    for (unsigned i = 0; i < 3; i++)
        requests[i] = start_one(conns[i], &ref, LONG);
    wait_until(5 * SEC, joined_on(1) - before == 1);
    rdt_cancel(requests[0]);
    must_be(RDT_CANCELLED, rdt_wait(conns[0], &requests[0], 1, 1, LONG, NULL, NULL, &err));
    node_thaw(&c.node[0]);
    for (unsigned i = 0; i < 3; i++) {
        if (i > 0)
            must_ok(rdt_wait(conns[i], &requests[i], 1, 1, LONG, NULL, NULL, &err));
        rdt_request_destroy(requests[i]);
        rdt_close(conns[i]);
    }
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

/* Their owner's end is everybody's failure, each with its own answer. */
Test(coalescing, lost_owner_fails_all_joined_fetches)
{
    rdt *conns[4];
    rdt_request *requests[4];

    begin(2);
    struct rdt_ref ref = put_pattern(owner, NULL, MIB, 7);
    for (unsigned i = 0; i < 4; i++)
        conns[i] = node_client(&c.node[1], "one of many");
    node_freeze(&c.node[0]);
    uint64_t before = joined_on(1);
    for (unsigned i = 0; i < 4; i++)
        requests[i] = start_one(conns[i], &ref, LONG);
    wait_until(5 * SEC, joined_on(1) - before == 2);
    rdt_close(owner);
    node_kill(&c.node[0], SIGKILL);
    for (unsigned i = 0; i < 4; i++) {
        must_be(RDT_PEER_LOST, rdt_wait(conns[i], &requests[i], 1, 1, LONG, NULL, NULL, &err));
        rdt_request_destroy(requests[i]);
        rdt_close(conns[i]);
    }
    cluster_restart(&c, 0);
    owner = node_client(&c.node[0], "owner");
    end((const char *const[]){"is lost", "cannot be reached", "refused", "taken down and rebuilt", NULL});
}

/* ---- by name ---- */

static bool by_address; /* the readers know where the name is, and no ref from there */

static struct rdt_ref name_of(uint64_t after)
{
    struct rdt_ref near = ref_on(&c.node[0], "any"), ref = {0};

    must_ok(rdt_ref_from_name("weights", after, by_address ? NULL : &near, &ref, &err));
    if (by_address)
        must_ok(rdt_ref_set_address(&ref, c.node[0].address, &err));
    return ref;
}

/* Of each version a pattern with its number. */
static void publish(bool snapshot, size_t bytes, uint64_t expected)
{
    struct rdt_tensor tensor = VECTOR(RDT_U8, bytes, alloc_memory(owner, bytes));
    uint64_t version;

    fill_pattern(tensor.data, bytes, (uint32_t)expected);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = snapshot ? RDT_PUT_SNAPSHOT : 0};
    struct rdt_ref ref = put_as(owner, &tensor, 1, &options);
    must_ok(rdt_publish(owner, "weights", &ref, NULL, &version, &err));
    must(version == expected);
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_dealloc(owner, tensor.data, &err));
}

static void unpublish(void)
{
    struct rdt_ref name = name_of(0);

    must_ok(rdt_unpublish(owner, &name, &err));
}

/* Those that have read the same version wait for the next by one question, and by one more for all that came later; a
 * snapshot's bytes come once, those of a live object once for the first and once for the others. Who has read another
 * version waits for himself. */
static void check_samplers(bool snapshot, uint64_t copies)
{
    enum { N = 6, BYTES = 3 * MIB };
    rdt *conns[N + 1];
    rdt_request *requests[N + 1];

    begin(2);
    publish(snapshot, BYTES, 1);
    for (unsigned i = 0; i < N + 1; i++)
        conns[i] = node_client(&c.node[1], "sampler");
    for (uint64_t version = 2; version < 6; version++) {
        struct node_status before = node_now(&c.node[1]);
        for (unsigned i = 0; i < N + 1; i++) {
            struct rdt_ref ref = name_of(i < N ? version - 1 : version); /* the last one is one ahead */
            requests[i] = start_one(conns[i], &ref, LONG);
        }
        wait_until(5 * SEC, joined_on(1) - before.joined == N - 2);
        publish(snapshot, BYTES, version);
        for (unsigned i = 0; i < N; i++) {
            rdt_object *object = await_object(conns[i], requests[i]);
            must_say(info_of(object).version == version, "version %llu", (unsigned long long)info_of(object).version);
            must(holds_pattern(tensor_of(object, 0).data, BYTES, (uint32_t)version));
            rdt_release(object);
            rdt_request_destroy(requests[i]);
        }
        must_be(RDT_AGAIN, rdt_request_status(requests[N], &err));
        rdt_request_destroy(requests[N]);
        struct node_status after = node_now(&c.node[1]);
        must_say(after.bytes_in - before.bytes_in == copies * BYTES, "%llu bytes came",
                 (unsigned long long)(after.bytes_in - before.bytes_in));
    }
    for (unsigned i = 0; i < N + 1; i++)
        rdt_close(conns[i]);
    unpublish();
    end(NULL);
}

Test(coalescing, samplers_of_one_node_pull_a_snapshot_once)
{
    check_samplers(true, 1);
}

Test(coalescing, samplers_that_know_an_address_only_pull_a_snapshot_once)
{
    by_address = true;
    check_samplers(true, 1);
}

Test(coalescing, samplers_of_one_node_pull_a_live_version_twice)
{
    check_samplers(false, 2);
}

/* No reader gets a version older than the newest one at the time of its request, or a version that it has read already. */
struct follower {
    pthread_t thread;
    rdt *conn;
    atomic_uint_fast64_t *newest;
    uint64_t last;
    char wrong[160];
};

static void *follow(void *arg)
{
    struct follower *one = arg;
    uint64_t after = 0;

    while (after < one->last && !one->wrong[0]) {
        uint64_t least = atomic_load(one->newest), version;
        struct rdt_ref ref = name_of(after);
        struct rdt_fetch_options options = within(LONG);
        struct rdt_error why = {0};
        rdt_object *object;

        if (rdt_fetch(one->conn, &ref, 1, &options, &object, &why) != RDT_OK) {
            (void)snprintf(one->wrong, sizeof one->wrong, "%s: %.120s", rdt_status_name(why.status), why.msg);
            break;
        }
        version = info_of(object).version;
        if (version <= after || version < least || !holds_pattern(tensor_of(object, 0).data, 100 * KIB, (uint32_t)version))
            (void)snprintf(one->wrong, sizeof one->wrong, "version %llu after %llu, when %llu was there",
                           (unsigned long long)version, (unsigned long long)after, (unsigned long long)least);
        rdt_release(object);
        after = version;
    }
    return NULL;
}

Test(coalescing, nobody_gets_an_older_version_than_was_there)
{
    enum { N = 12, LAST = 300 };
    struct follower followers[N];
    atomic_uint_fast64_t newest = 0;

    begin(3);
    for (unsigned i = 0; i < N; i++) {
        followers[i] = (struct follower){.conn = node_client(&c.node[1 + i % 2], "follower"), .newest = &newest, .last = LAST};
        must(pthread_create(&followers[i].thread, NULL, follow, &followers[i]) == 0);
    }
    for (uint64_t version = 1; version <= LAST; version++) {
        publish(version % 2, 100 * KIB, version);
        atomic_store(&newest, version);
    }
    for (unsigned i = 0; i < N; i++) {
        must(pthread_join(followers[i].thread, NULL) == 0);
        must_say(!followers[i].wrong[0], "follower %u: %s", i, followers[i].wrong);
        rdt_close(followers[i].conn);
    }
    must_say(joined_on(1) > 0, "nobody joined");
    unpublish();
    end(NULL);
}
