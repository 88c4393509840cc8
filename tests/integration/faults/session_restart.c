/* SPDX-License-Identifier: Apache-2.0 */
/* What a client of a daemon with a keeper notices of its end: nothing but a pause. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "tests/integration/faults/recovery.h"

TestSuite(session_restart, .timeout = SUITE_SECONDS(120));

static rdt *conn, *other; /* two clients */

static void begin_with_clients(void)
{
    begin();
    conn = node_client(&node, "one");
    other = node_client(&node, "other");
}

/* Ends the clients; nothing of them may be left. */
static void end_all(void)
{
    rdt_close(conn);
    rdt_close(other);
    node_expect_idle(&node);
    end();
}

static uint64_t session_of(rdt *client)
{
    struct rdt_node_info info;

    must_ok(rdt_node(client, &info, &err));
    return info.session;
}

/* ---- requests that wait ---- */

struct waiter {
    pthread_t thread;
    rdt *conn;
    rdt_request *request;
};

static void *wait_blocked(void *arg)
{
    struct waiter *waiter = arg;
    struct rdt_error why;

    if (rdt_wait(waiter->conn, &waiter->request, 1, 1, LONG, NULL, NULL, &why) != RDT_OK) {
        fprintf(stderr, "%s\n", why.msg);
        abort();
    }
    return NULL;
}

/* A wait, and a fetch, that are parked at the daemon, each with a thread that blocks on it. */
static void check_parked(int signal)
{
    struct waiter waiters[2] = {{.conn = conn}, {.conn = conn}};
    struct rdt_ref ref = ref_named("later");
    char bytes[1000];
    rdt_object *object;

    must_ok(rdt_wait_put_start(conn, &ref, LONG, &waiters[0].request, &err));
    waiters[1].request = start_one(conn, &ref, LONG);
    must_ok(rdt_ping(conn, LONG, &err)); /* the daemon has both */
    for (unsigned i = 0; i < 2; i++)
        must(pthread_create(&waiters[i].thread, NULL, wait_blocked, &waiters[i]) == 0);
    again(signal);
    fill_pattern(bytes, sizeof bytes, 5);
    (void)put_one(other, &VECTOR(RDT_U8, sizeof bytes, bytes), "later");
    for (unsigned i = 0; i < 2; i++)
        must(pthread_join(waiters[i].thread, NULL) == 0);
    must_ok(rdt_request_take_object(waiters[1].request, &object, &err));
    must(holds_pattern(tensor_of(object, 0).data, sizeof bytes, 5));
    rdt_release(object);
    for (unsigned i = 0; i < 2; i++)
        rdt_request_destroy(waiters[i].request);
    must_ok(rdt_free(other, &ref, false, &err));
}

Test(session_restart, parked_requests_of_blocked_threads_go_on)
{
    begin_with_clients();
    uint64_t session = session_of(conn);
    check_parked(SIGKILL);
    check_parked(SIGKILL);
    check_parked(SIGTERM);
    cr_assert_eq(session_of(conn), session);
    end_all();
}

/* The kernel has taken the messages, so librdt has nothing left to send: what a daemon has not read is sent to the next one. */
Test(session_restart, requests_that_the_daemon_had_not_read_go_on)
{
    struct waiter waiters[2];
    struct rdt_ref ref = ref_named("later");
    char bytes[1000] = "bytes";
    rdt_object *object;

    begin_with_clients();
    node_freeze(&node);
    for (unsigned i = 0; i < 2; i++)
        waiters[i].conn = conn;
    must_ok(rdt_wait_put_start(conn, &ref, LONG, &waiters[0].request, &err));
    waiters[1].request = start_one(conn, &ref, LONG);
    for (unsigned i = 0; i < 2; i++)
        must(pthread_create(&waiters[i].thread, NULL, wait_blocked, &waiters[i]) == 0);
    again(SIGKILL);
    (void)put_one(other, &VECTOR(RDT_U8, sizeof bytes, bytes), "later");
    for (unsigned i = 0; i < 2; i++)
        must(pthread_join(waiters[i].thread, NULL) == 0);
    must_ok(rdt_request_take_object(waiters[1].request, &object, &err));
    rdt_release(object);
    for (unsigned i = 0; i < 2; i++)
        rdt_request_destroy(waiters[i].request);
    must_ok(rdt_free(other, &ref, false, &err));
    end_all();
}

Test(session_restart, event_loop_goes_on)
{
    struct rdt_ref ref = ref_named("later");
    rdt_request *request;
    char byte = 1;

    begin_with_clients();
    struct pollfd loop = (struct pollfd){.fd = rdt_fd(conn), .events = POLLIN};
    must_ok(rdt_wait_put_start(conn, &ref, LONG, &request, &err));
    again(SIGKILL);
    (void)put_one(other, &VECTOR(RDT_U8, 1, &byte), "later");
    while (rdt_request_status(request, NULL) == RDT_AGAIN) {
        must(poll(&loop, 1, (int)(LONG / 1000000)) == 1);
        must_ok(rdt_dispatch(conn, NULL, &err));
    }
    must_ok(rdt_request_status(request, &err));
    rdt_request_destroy(request);
    must_ok(rdt_free(other, &ref, false, &err));
    end_all();
}

Test(session_restart, deadline_passes_while_the_daemon_is_away)
{
    struct rdt_ref ref = ref_named("never");
    rdt_object *object;

    begin_with_clients();
    node_kill(&node, SIGKILL);
    must_refuse(RDT_TIMED_OUT, "has not come back yet", rdt_ping(conn, 50 * MSEC, &err));
    must_be(RDT_TIMED_OUT, try_fetch(conn, &ref, RDT_FETCH_AUTO, 50 * MSEC, &object, &err));
    start();
    must_ok(rdt_ping(conn, LONG, &err));
    end_all();
}

/* ---- what a session has ---- */

Test(session_restart, memory_objects_and_holds_stay_where_they_are)
{
    const size_t bytes = 3 * MIB;
    rdt_object *shared, *read;
    rdt_request *hold;
    char *memory, *own = malloc(bytes);

    begin_with_clients();
    memory = alloc_memory(conn, bytes);
    fill_pattern(memory, bytes, 1);
    struct rdt_ref live = put_one(conn, &VECTOR(RDT_U8, bytes, memory), "live");
    fill_pattern(own, bytes, 2);
    struct rdt_ref copied = put_one(conn, &VECTOR(RDT_U8, bytes, own), "copied");
    struct rdt_ref small = put_one(conn, &VECTOR(RDT_U8, 100, own), "small");
    shared = fetch_one(other, &live, RDT_FETCH_SHARE);
    const char *seen = tensor_of(shared, 0).data;
    must_ok(rdt_hold(other, &copied, LONG, &hold, &err));
    for (unsigned round = 0; round < 3; round++) {
        again(SIGKILL);
        must_ok(rdt_ping(other, LONG, &err));
        cr_assert_eq(tensor_of(shared, 0).data, seen);
        memory[round] = (char)(100 + round); /* the same pages, before and after */
        cr_assert_eq(seen[round], 100 + round);
        read = fetch_one(other, &small, RDT_FETCH_AUTO);
        must(holds_pattern(tensor_of(read, 0).data, 100, 2));
        rdt_release(read);
    }
    must_ok(rdt_free(conn, &copied, false, &err)); /* the hold keeps it */
    again(SIGKILL);
    read = fetch_one(other, &copied, RDT_FETCH_AUTO);
    must(holds_pattern(tensor_of(read, 0).data, bytes, 2));
    rdt_release(read);
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(other, &copied, LONG, &err));
    rdt_release(shared);
    must_ok(rdt_free(conn, &live, false, &err));
    must_ok(rdt_wait_freed_range(conn, memory, bytes, LONG, &err));
    live = put_one(conn, &VECTOR(RDT_U8, bytes, memory), "live"); /* the region is still known */
    must_ok(rdt_free(conn, &live, false, &err));
    must_ok(rdt_dealloc(conn, memory, &err));
    must_ok(rdt_free(conn, &small, false, &err));
    free(own);
    end_all();
}

Test(session_restart, immutable_objects_stay_immutable)
{
    rdt_object *object;

    begin_with_clients();
    char *memory = alloc_memory(conn, MIB);
    fill_pattern(memory, MIB, 1);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_IMMUTABLE};
    struct rdt_ref ref = put_as(conn, &VECTOR(RDT_U8, MIB, memory), 1, &options);
    options.flags |= RDT_PUT_PENDING;
    struct rdt_ref pending = put_as(conn, &VECTOR(RDT_U8, MIB, memory), 1, &options);
    for (unsigned round = 0; round < 2; round++) {
        again(SIGKILL);
        object = fetch_one(other, &ref, RDT_FETCH_COW); /* refused for a live object */
        must(holds_pattern(tensor_of(object, 0).data, MIB, 1));
        rdt_release(object);
        must_ok(rdt_ping(conn, LONG, &err));
        if (round == 0)
            must_ok(rdt_ready(conn, &pending, &err));
        object = fetch_one(other, &pending, RDT_FETCH_SHARE);
        memory[5] ^= 1;
        cr_assert_eq(((const char *)tensor_of(object, 0).data)[5], memory[5], "it was copied");
        memory[5] ^= 1;
        rdt_release(object);
    }
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_free(conn, &pending, false, &err));
    must_ok(rdt_dealloc(conn, memory, &err));
    end_all();
}

/* A put with a timeout and one without have records of two kinds. */
Test(session_restart, unsealed_snapshots_stay_and_give_their_memory_back)
{
    uint8_t *data = malloc(MIB);
    struct rdt_ref refs[4];

    begin_with_clients();
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED};
    for (unsigned i = 0; i < 4; i++) {
        fill_pattern(data, MIB, i);
        options.flags |= i < 2 ? 0 : RDT_PUT_DETACHED;
        options.timeout_ns = i % 2 == 0 ? 0 : LONG;
        must_ok(rdt_put(conn, &VECTOR(RDT_U8, MIB, data), 1, &options, &refs[i], &err));
    }
    free(data);
    again(SIGKILL);
    for (unsigned i = 0; i < 4; i++) {
        rdt_object *object = fetch_one(other, &refs[i], RDT_FETCH_COW);
        must(holds_pattern(tensor_of(object, 0).data, MIB, i));
        rdt_release(object);
        must_ok(rdt_free(conn, &refs[i], false, &err));
        must_ok(rdt_wait_freed(conn, &refs[i], LONG, &err));
    }
    must_ok(rdt_ping(other, LONG, &err)); /* it unmaps what it kept mapped: memory of an earlier daemon counts until then */
    wait_until(LONG, node_now(&node).memory_bytes == 0);
    end_all();
}

Test(session_restart, what_was_given_back_while_the_daemon_was_away_is_gone)
{
    rdt_request *hold;

    begin_with_clients();
    char *memory = alloc_memory(conn, MIB);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, MIB, memory), "it");
    rdt_object *object = fetch_one(other, &ref, RDT_FETCH_SHARE);
    must_ok(rdt_hold(other, &ref, LONG, &hold, &err));
    node_kill(&node, SIGKILL);
    must_be(RDT_TIMED_OUT, rdt_ping(conn, MSEC, &err));
    rdt_release(object);
    rdt_request_destroy(hold);
    must_ok(rdt_drop(conn, &ref, &err));
    must_ok(rdt_dealloc_soon(conn, memory, &err));
    start();
    must_ok(rdt_ping(conn, LONG, &err));
    must_ok(rdt_ping(other, LONG, &err));
    must_ok(rdt_wait_freed(other, &ref, LONG, &err));
    end_all();
}

Test(session_restart, client_that_dies_while_the_daemon_is_away_is_noticed)
{
    struct rdt_ref ref = ref_named("orphan");
    rdt_object *object;
    int channel[2];
    char byte = 0;

    begin();
    must(pipe(channel) == 0);
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        rdt *mine = node_client(&node, "child");

        (void)put_one(mine, &VECTOR(RDT_U8, 1, &byte), "orphan");
        (void)!write(channel[1], &byte, 1);
        pause();
        _exit(1);
    }
    must(read(channel[0], &byte, 1) == 1);
    node_kill(&node, SIGKILL);
    must(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    start();
    other = node_client(&node, "other");
    must_be(RDT_NOT_PUT, try_fetch(other, &ref, RDT_FETCH_AUTO, RDT_NO_WAIT, &object, &err)); /* it waits for a new one */
    rdt_close(other);
    (void)close(channel[0]);
    (void)close(channel[1]);
    node_expect_idle(&node);
    end();
}

Test(session_restart, client_that_closes_while_the_daemon_is_away_ends)
{
    char byte = 0;

    begin_with_clients();
    (void)put_one(conn, &VECTOR(RDT_U8, 1, &byte), NULL);
    again(SIGKILL); /* the client has not noticed anything */
    end_all();
}

Test(session_restart, session_that_the_keeper_lost_too_ends_with_restarted)
{
    begin_with_clients();
    node_kill(&node, SIGKILL);
    keeper_stop(&keeper, SIGKILL);
    keeper_start(&keeper);
    start();
    must_refuse(RDT_RESTARTED, "connect anew; what this session put and held has ended", rdt_ping(conn, LONG, &err));
    end_all();
}

Test(session_restart, without_a_keeper_calls_are_disconnected)
{
    node_start(&node, NULL);
    conn = node_client(&node, "one");
    node_kill(&node, SIGKILL);
    must_be(RDT_DISCONNECTED, rdt_ping(conn, LONG, &err));
    rdt_close(conn);
}

/* ---- work under kills ---- */

enum { KILLS = 12, THREADS = 4, PUTS_AT_LEAST = 200 };

static atomic_bool kills_are_over;
static atomic_uint n_puts;

/* Puts, reads back and frees, by turns in each way that bytes take; every call must succeed. */
static void *work(void *arg)
{
    static const size_t sizes[] = {100, 100 * KIB, 3 * MIB};
    unsigned number = (unsigned)(uintptr_t)arg;
    char *memory = malloc(3 * MIB);

    for (unsigned i = 0; !atomic_load(&kills_are_over) || i < PUTS_AT_LEAST / THREADS; i++) {
        size_t bytes = sizes[i % 3];
        struct rdt_error why = {0};
        rdt_object *object = NULL;
        struct rdt_ref ref;
        int64_t shape[1] = {(int64_t)bytes};
        struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 1, .shape = shape, .data = memory};

        fill_pattern(memory, bytes, 1000 * number + i);
        struct rdt_put_options options = {.struct_size = sizeof options, .flags = i / 3 % 2 ? RDT_PUT_SNAPSHOT : 0};
        if (rdt_put(conn, &tensor, 1, &options, &ref, &why) != RDT_OK ||
            try_fetch(i % 2 ? conn : other, &ref, RDT_FETCH_AUTO, LONG, &object, &why) != RDT_OK ||
            !holds_pattern(tensor_of(object, 0).data, bytes, 1000 * number + i)) {
            fprintf(stderr, "thread %u, put %u: %s\n", number, i, why.msg);
            abort();
        }
        rdt_release(object);
        if (rdt_free(conn, &ref, false, &why) != RDT_OK) {
            fprintf(stderr, "thread %u, free %u: %s\n", number, i, why.msg);
            abort();
        }
        atomic_fetch_add(&n_puts, 1);
    }
    free(memory);
    return NULL;
}

Test(session_restart, threads_work_on_while_the_daemon_is_killed_again_and_again)
{
    pthread_t threads[THREADS];

    begin_with_clients();
    for (unsigned i = 0; i < THREADS; i++)
        must(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i) == 0);
    for (unsigned i = 0; i < KILLS; i++) {
        unsigned before = atomic_load(&n_puts);

        wait_until(LONG, atomic_load(&n_puts) >= before + 3 * THREADS); /* work goes on between two kills */
        again(i % 4 == 3 ? SIGTERM : SIGKILL);
    }
    atomic_store(&kills_are_over, true);
    for (unsigned i = 0; i < THREADS; i++)
        must(pthread_join(threads[i], NULL) == 0);
    end_all();
}

/* ---- names ---- */

static void *publish(void *arg)
{
    struct rdt_error why;

    if (rdt_publish(conn, "name", arg, NULL, NULL, &why) != RDT_OK) {
        fprintf(stderr, "%s\n", why.msg);
        abort();
    }
    return NULL;
}

/* The object's bytes come at a later daemon. */
Test(session_restart, publish_waits_for_a_put_across_restarts)
{
    pthread_t thread;

    begin_with_clients();
    char *memory = alloc_memory(other, MIB);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_PENDING};
    struct rdt_ref ref = put_as(other, &VECTOR(RDT_U8, MIB, memory), 1, &options), name = name_ref("name");
    must(pthread_create(&thread, NULL, publish, &ref) == 0);
    wait_until(LONG, stat_of(other, &ref).waiters == 1);
    again(SIGTERM);
    wait_until(LONG, stat_of(other, &ref).waiters == 1);
    again(SIGKILL);
    wait_until(LONG, stat_of(other, &ref).waiters == 1);
    fill_pattern(memory, MIB, 1);
    must_ok(rdt_ready(other, &ref, &err));
    must(pthread_join(thread, NULL) == 0);
    rdt_object *object = fetch_one(other, &name, RDT_FETCH_AUTO);
    must(holds_pattern(tensor_of(object, 0).data, MIB, 1));
    rdt_release(object);
    must_ok(rdt_unpublish(conn, &name, &err));
    must_ok(rdt_free(other, &ref, false, &err));
    must_ok(rdt_dealloc(other, memory, &err));
    end_all();
}

/* ---- many objects in one call ---- */

#define MANY 500u

static struct rdt_ref many[MANY];

/* Half of them in memory of `other`, half of them in the arena. */
static void put_numbers(void)
{
    uint32_t *memory = alloc_memory(other, MANY * sizeof *memory);

    for (uint32_t i = 0; i < MANY; i++) {
        memory[i] = i;
        many[i] = put_one(other, &VECTOR(RDT_U8, sizeof i, i % 2 ? (void *)&memory[i] : (void *)&i), NULL);
    }
}

static void *fetch_numbers(void *rounds)
{
    static rdt_object *objects[MANY];
    struct rdt_error why;

    for (uintptr_t round = 0; round < (uintptr_t)rounds; round++) {
        if (rdt_fetch(conn, many, MANY, NULL, objects, &why) != RDT_OK) {
            fprintf(stderr, "%s\n", why.msg);
            abort();
        }
        rdt_cork(conn);
        for (uint32_t i = 0; i < MANY; i++) {
            must(memcmp(tensor_of(objects[i], 0).data, &i, sizeof i) == 0);
            rdt_release(objects[i]);
        }
        rdt_uncork(conn);
    }
    return NULL;
}

/* What a killed daemon had handed out, and what it had not read, is asked for again; nothing is held twice. */
Test(session_restart, fetches_of_many_go_on)
{
    pthread_t thread;

    begin_with_clients();
    put_numbers();
    node_freeze(&node);
    must(pthread_create(&thread, NULL, fetch_numbers, (void *)1) == 0);
    again(SIGKILL);
    must(pthread_join(thread, NULL) == 0);
    must(pthread_create(&thread, NULL, fetch_numbers, (void *)300) == 0);
    for (unsigned i = 0; i < 4; i++)
        again(SIGKILL);
    must(pthread_join(thread, NULL) == 0);
    must_ok(rdt_ping(conn, LONG, &err));
    for (unsigned i = 0; i < MANY; i++)
        wait_until(LONG, stat_of(other, &many[i]).holds == 1);
    for (unsigned i = 0; i < MANY; i++)
        must_ok(rdt_free(other, &many[i], false, &err));
    end_all();
}
