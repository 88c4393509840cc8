/* SPDX-License-Identifier: Apache-2.0 */
/* Cancelled transfers: the caller returns at once, and memory that the transport may still write stays in quarantine until
 * it no longer can. The test transport ignores cancels, writes late and closes slowly; patterns show where its late bytes
 * land. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "tests/integration/nodes/pair.h"

TestSuite(quiesce, .timeout = 240);

#define CHUNK ((size_t)64 << 10)
#define BYTES (40 * CHUNK)
#define LATE_BYTE 0xee /* the pattern of late writes */

static const char *const rebuilt[] = {"taken down and rebuilt", NULL};
static const char *const sides[] = {"one", "two"};

static void begin(unsigned n, const char *sided, const char *grace)
{
    char set[64], quiesce[64];
    const char *flags[] = {"--chunk=64KiB", "--chunks-in-flight=4", set, quiesce, NULL};

    (void)snprintf(set, sizeof set, "--set=loopback.sided=%s", sided);
    (void)snprintf(quiesce, sizeof quiesce, "--quiesce-grace=%s", grace);
    begin_pair(n, &(struct cluster_options){.loopback = true, .no_ucx = true, .flags = flags});
}

static void set_faults(const char *lines)
{
    for (unsigned i = 0; i < c.n; i++)
        cluster_faults(&c, i, lines);
}

/* Each chunk takes so long, and is held for so long when it is cancelled, that a deadline or what the test
 * does, which sanitizers lengthen, comes in the middle. */
static void slow_down(unsigned i, int64_t delay_ns, int64_t late_ns)
{
    char lines[96];

    (void)snprintf(lines, sizeof lines, "delay_ms=%lld\nlate_ms=%lld\n", (long long)(patience(delay_ns) / MSEC),
                   (long long)(patience(late_ns) / MSEC));
    cluster_faults(&c, i, lines);
}

static void set_slow(int64_t delay_ns, int64_t late_ns)
{
    for (unsigned i = 0; i < c.n; i++)
        slow_down(i, delay_ns, late_ns);
}

/* One tensor of BYTES at each address; NULL: the daemon's memory. */
static rdt_request *start_into(const struct rdt_ref *ref, void *address, int64_t timeout_ns)
{
    struct rdt_tensor target = VECTOR(RDT_U8, BYTES, address);
    const struct rdt_tensor *targets = &target;
    size_t one = 1;
    struct rdt_fetch_options options = {.struct_size = sizeof options,
                                        .timeout_ns = timeout_ns,
                                        .targets = address ? &targets : NULL,
                                        .target_counts = address ? &one : NULL};
    rdt_request *request = start_as(reader, ref, &options);

    return request;
}

/* Cancelled at once, or by its deadline. */
static void give_up(rdt_request *request, bool by_deadline)
{
    int64_t start = now_ns();

    if (!by_deadline)
        rdt_cancel(request);
    must_be(by_deadline ? RDT_TIMED_OUT : RDT_CANCELLED, rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    must_be_within(start, 2 * SEC);
    start = now_ns();
    rdt_request_destroy(request);
    must_be_within(start, 1 * SEC);
}

static bool all_at_rest(void)
{
    struct node_status status;

    for (unsigned i = 0; i < c.n; i++) {
        status = node_now(&c.node[i]);
        if (status.transfers_active > 0 || pins_of(&c.node[i]) > 0)
            return false;
    }
    return true;
}

static bool loopback_stands(void)
{
    struct peer_view view;

    return peer_seen(&c.node[0], &c.node[1], &view) && view.loopback && peer_seen(&c.node[1], &c.node[0], &view) &&
           view.loopback;
}

/* Newly allocated memory is never written by anybody else. */
struct innocent {
    uint8_t *fresh; /* rdt_alloc'ed after the give-up */
    struct canary plain;
};

static void innocent_begin(struct innocent *innocent)
{
    innocent->fresh = alloc_memory(reader, BYTES);
    fill_pattern(innocent->fresh, BYTES, 77);
    canary_create(&innocent->plain, BYTES);
}

static void innocent_end(struct innocent *innocent)
{
    must_say(holds_pattern(innocent->fresh, BYTES, 77), "late bytes in a new allocation");
    must_say(canary_untouched(&innocent->plain), "late bytes in plain memory");
    must_ok(rdt_dealloc(reader, innocent->fresh, &err));
    canary_destroy(&innocent->plain);
}

/* ---- late writes ---- */

/* The engine holds a cancelled operation for a while and writes its memory just before it ends. wait_freed_range
 * returns after that; then the buffer is the user's, put again and never written. */
static void check_late_write(const char *sided, bool by_deadline)
{
    struct innocent innocent;

    begin(2, sided, "20s");
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    uint8_t *memory = alloc_memory(reader, BYTES);
    memset(memory, 0, BYTES);
    set_slow(150 * MSEC, 1500 * MSEC);
    rdt_request *request = start_into(&ref, memory, by_deadline ? patience(SEC) : LONG);
    await_engine(&c.node[1]);
    int64_t given_up = now_ns();
    give_up(request, by_deadline);
    await_transfer(&c.node[1], "in", "aborting");
    must_say(pins_of(&c.node[1]) > 0, "the target is not pinned while the engine has it");
    must_be(RDT_TIMED_OUT, rdt_wait_freed_range(reader, memory, BYTES, 30 * MSEC, &err));
    innocent_begin(&innocent);
    must_ok(rdt_wait_freed_range(reader, memory, BYTES, LONG, &err));
    must_say(now_ns() - given_up >= 300 * MSEC, "given back before the engine was done");
    must_say(memchr(memory, LATE_BYTE, BYTES) && pins_of(&c.node[1]) == 0, "nothing was written late, or something still may");

    fill_pattern(memory, BYTES, 5);
    struct rdt_tensor tensor = VECTOR(RDT_U8, BYTES, memory);
    struct rdt_ref again = put_one(reader, &tensor, NULL);
    wait_until(20 * SEC, all_at_rest());
    set_faults("");
    rdt_object *object = fetch_one(reader, &again, RDT_FETCH_COPY);
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 5));
    rdt_release(object);
    fetch_pattern(owner, &again, BYTES, 5, "loopback");
    fetch_pattern(reader, &ref, BYTES, 1, "loopback");
    must(holds_pattern(memory, BYTES, 5));
    innocent_end(&innocent);
    must_ok(rdt_free(reader, &again, false, &err));
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_dealloc(reader, memory, &err));
    end(NULL);
}

Test(quiesce, late_read_after_cancel_stays_in_quarantine)
{
    check_late_write("one", false);
}

Test(quiesce, late_receive_after_cancel_stays_in_quarantine)
{
    check_late_write("two", false);
}

Test(quiesce, late_read_after_timeout_stays_in_quarantine)
{
    check_late_write("one", true);
}

Test(quiesce, late_receive_after_timeout_stays_in_quarantine)
{
    check_late_write("two", true);
}

/* The memory is given back to the daemon while the engine still has it: it serves nobody else, and counts until it is
 * free. */
Test(quiesce, memory_given_back_early_serves_nobody)
{
    for (unsigned s = 0; s < 2; s++)
        for (unsigned own = 0; own < 2; own++) { /* the user's allocation, or the daemon's own */
            struct innocent innocent;
            uint8_t *memory = NULL;

            begin(2, sides[s], "20s");
            struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
            if (own)
                memory = alloc_memory(reader, BYTES);
            set_slow(150 * MSEC, 1500 * MSEC);
            rdt_request *request = start_into(&ref, memory, LONG);
            await_engine(&c.node[1]);
            give_up(request, false);
            if (own)
                must_ok(rdt_dealloc(reader, memory, &err));
            innocent_begin(&innocent);
            struct node_status status = node_now(&c.node[1]);
            must_say(status.memory_bytes >= 2 * BYTES && status.transfers_active > 0, "%llu bytes are counted",
                     (unsigned long long)status.memory_bytes);
            wait_until(20 * SEC, all_at_rest());
            wait_until(5 * SEC, node_now(&c.node[1]).memory_bytes == BYTES); /* innocent's */
            innocent_end(&innocent);
            set_faults("");
            fetch_pattern(reader, &ref, BYTES, 1, "loopback");
            must_ok(rdt_free(owner, &ref, false, &err));
            end(NULL);
        }
}

/* The client's end is a cancel too. */
struct leaving {
    const struct test_node *node;
    struct rdt_ref ref;
};

static int fetch_and_stay(struct actor *self, void *arg)
{
    const struct leaving *leaving = arg;
    rdt *conn = node_client(leaving->node, "leaver");
    uint8_t *memory = alloc_memory(conn, BYTES);
    struct rdt_tensor target = VECTOR(RDT_U8, BYTES, memory);
    const struct rdt_tensor *targets = &target;
    size_t one = 1;
    struct rdt_fetch_options options = {.struct_size = sizeof options, .targets = &targets, .target_counts = &one};
    (void)start_as(conn, &leaving->ref, &options);

    actor_await(self); /* until it is killed */
    return 0;
}

Test(quiesce, killed_client_leaves_memory_until_engine_is_done)
{
    for (unsigned s = 0; s < 2; s++) {
        struct innocent innocent;
        struct leaving leaving;
        struct actor actor;

        begin(2, sides[s], "20s");
        leaving = (struct leaving){&c.node[1], put_pattern(owner, NULL, BYTES, 1)};
        set_slow(150 * MSEC, 1500 * MSEC);
        actor_start(&actor, fetch_and_stay, &leaving);
        await_engine(&c.node[1]);
        actor_kill(&actor, SIGKILL);
        await_transfer(&c.node[1], "in", "aborting");
        innocent_begin(&innocent);
        struct node_status status = node_now(&c.node[1]);
        must(status.memory_bytes >= 2 * BYTES && pins_of(&c.node[1]) > 0);
        wait_until(20 * SEC, all_at_rest());
        wait_until(5 * SEC, node_now(&c.node[1]).memory_bytes == BYTES);
        innocent_end(&innocent);
        must_ok(rdt_free(owner, &leaving.ref, false, &err));
        end(NULL);
    }
}

/* Plain memory is never the engine's: the caller may use it the moment the call has ended. */
Test(quiesce, plain_target_untouched_after_cancel)
{
    for (unsigned s = 0; s < 2; s++) {
        struct canary canary;

        begin(2, sides[s], "20s");
        struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
        canary_create(&canary, BYTES);
        set_slow(100 * MSEC, 300 * MSEC);
        rdt_request *request = start_into(&ref, canary.addr, LONG);
        await_engine(&c.node[1]);
        give_up(request, false);
        must(canary_untouched(&canary));
        wait_until(20 * SEC, all_at_rest());
        must(canary_untouched(&canary));
        canary_destroy(&canary);
        must_ok(rdt_free(owner, &ref, false, &err));
        end(NULL);
    }
}

/* ---- isolation ---- */

/* The transport does not abort: after the grace time its connection is taken down. Memory is free when that is done,
 * not before, and not when it was asked for: closing takes its time. */
static void check_isolation(const char *sided)
{
    struct innocent innocent;
    rdt_object *object;
    char closing[64], lines[96];

    begin(3, sided, "200ms");
    rdt *other = node_client(&c.node[2], "other");
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    struct rdt_ref third = put_pattern(other, NULL, BYTES, 3);
    uint8_t *memory = alloc_memory(reader, BYTES);
    memset(memory, 0, BYTES);
    (void)snprintf(closing, sizeof closing, "no_abort=1\ndisconnect_delay_ms=%lld\n", (long long)(patience(600 * MSEC) / MSEC));
    (void)snprintf(lines, sizeof lines, "delay_ms=100000\n%s", closing);
    set_faults(lines);
    rdt_request *request = start_into(&ref, memory, LONG);
    rdt_request *neighbour = start_into(&ref, NULL, LONG);
    await_engine(&c.node[1]);
    cluster_faults(&c, 2, "delay_ms=20\n");
    (void)snprintf(lines, sizeof lines, "delay_ms=20\n%s", closing);
    if (strcmp(sided, "one") == 0)
        cluster_faults(&c, 1, lines);
    rdt_request *elsewhere = start_into(&third, NULL, LONG); /* over the connection to the third node */
    give_up(request, false);
    must(pins_of(&c.node[1]) > 0);
    innocent_begin(&innocent);

    wait_until(10 * SEC, node_log_has(&c.node[1], "taken down and rebuilt"));
    must_be(RDT_TIMED_OUT, rdt_wait_freed_range(reader, memory, BYTES, 100 * MSEC, &err)); /* the connection still closes */
    must_ok(rdt_wait_freed_range(reader, memory, BYTES, LONG, &err));
    /* The other transfer was on that connection. */
    must_refuse(RDT_TRANSPORT, "aborted transfer do", rdt_wait(reader, &neighbour, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(neighbour);
    must_ok(rdt_wait(reader, &elsewhere, 1, 1, LONG, NULL, NULL, &err)); /* it was on another connection */
    must_ok(rdt_request_take_object(elsewhere, &object, &err));
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 3));
    rdt_release(object);
    rdt_request_destroy(elsewhere);

    fill_pattern(memory, BYTES, 6);
    set_faults("");
    wait_until(20 * SEC, all_at_rest());
    wait_until(20 * SEC, loopback_stands());
    fetch_pattern(reader, &ref, BYTES, 1, "loopback");
    must(holds_pattern(memory, BYTES, 6));
    innocent_end(&innocent);
    rdt_close(other);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(rebuilt);
}

Test(quiesce, one_sided_isolation_fails_only_its_own)
{
    check_isolation("one");
}

Test(quiesce, two_sided_isolation_fails_only_its_own)
{
    check_isolation("two");
}

/* Again and again: each time under a new epoch. */
Test(quiesce, rebuilt_as_often_as_needed)
{
    for (unsigned s = 0; s < 2; s++) {
        begin(2, sides[s], "50ms");
        struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
        for (unsigned i = 0; i < 4; i++) {
            set_faults("delay_ms=100000\nno_abort=1\n");
            rdt_request *request = start_into(&ref, NULL, LONG);
            await_engine(&c.node[1]);
            give_up(request, false);
            wait_until(20 * SEC, all_at_rest());
            set_faults("");
            wait_until(20 * SEC, loopback_stands());
            fetch_pattern(reader, &ref, BYTES, 1, "loopback");
        }
        must_ok(rdt_free(owner, &ref, false, &err));
        end(rebuilt);
    }
}

/* Operations that never end, on either side, are ended by taking the connection down. */
static void check_lost(const char *sided, unsigned where)
{
    begin(2, sided, "150ms");
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    cluster_faults(&c, where, "lose_every=1\n");
    rdt_request *request = start_into(&ref, NULL, LONG);
    await_engine(&c.node[1]);
    /* The owner has begun, or is already done: what it sent is lost at the reader's. */
    wait_until(5 * SEC, node_now(&c.node[0]).bytes_out > 0 || pins_of(&c.node[0]) > 0);
    give_up(request, false);
    wait_until(20 * SEC, all_at_rest());
    cluster_faults(&c, where, "");
    wait_until(20 * SEC, loopback_stands());
    fetch_pattern(reader, &ref, BYTES, 1, "loopback");
    must_ok(rdt_free(owner, &ref, false, &err));
    end(rebuilt);
}

Test(quiesce, lost_reads_end_with_connection)
{
    check_lost("one", 1);
}

Test(quiesce, lost_receives_end_with_connection)
{
    check_lost("two", 1);
}

Test(quiesce, lost_sends_end_with_connection)
{
    check_lost("two", 0);
}

/* ---- the owner's side ---- */

/* The reader has given up, its engine has not finished reading: the owner's memory stays what it was until then. */
Test(quiesce, owner_pinned_until_readers_engine_is_done)
{
    for (unsigned s = 0; s < 2; s++) {
        begin(2, sides[s], "20s");
        uint8_t *memory = alloc_memory(owner, BYTES);
        fill_pattern(memory, BYTES, 1);
        struct rdt_tensor tensor = VECTOR(RDT_U8, BYTES, memory);
        struct rdt_ref ref = put_one(owner, &tensor, NULL);
        if (s == 0) /* reads that are late; sends that cannot be called back */
            slow_down(1, 150 * MSEC, 1500 * MSEC);
        else
            cluster_faults(&c, 0, "delay_ms=1500\nno_abort=1\n");
        rdt_request *request = start_into(&ref, NULL, LONG);
        await_transfer(&c.node[0], "out", "sending");
        if (s == 0)
            await_engine(&c.node[1]); /* before it has read anything there is nothing to wait for */
        else
            wait_until(20 * SEC, operations_of(&c.node[0]) > 0);
        give_up(request, false);
        must_ok(rdt_free(owner, &ref, false, &err));
        must_be(RDT_TIMED_OUT, rdt_wait_freed(owner, &ref, 50 * MSEC, &err));
        must(pins_of(&c.node[0]) > 0);
        must_ok(rdt_wait_freed(owner, &ref, LONG, &err));
        must_ok(rdt_wait_freed_range(owner, memory, BYTES, 0, &err));
        wait_until(20 * SEC, all_at_rest());
        must_ok(rdt_dealloc(owner, memory, &err));
        end(NULL);
    }
}

static bool none_aborts(const struct test_node *node)
{
    struct transfer_view views[64];
    unsigned n = transfers_of(node, views, 64);

    for (unsigned i = 0; i < n; i++)
        if (views[i].elapsed_ns == 0 && strcmp(views[i].state, "aborting") == 0)
            return false;
    return true;
}

/* A reader that leaves its source and comes back to it uses the same connection, on which the old sends end one by one. */
Test(quiesce, sends_that_end_slowly_leave_the_next_fetch_its_connection)
{
    begin(2, "two", "2s");
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 1);
    cluster_faults(&c, 0, "delay_ms=800\nno_abort=1\n"); /* each of four */
    rdt_request *request = start_into(&ref, NULL, LONG);
    await_engine(&c.node[1]);
    wait_until(20 * SEC, operations_of(&c.node[0]) > 0);
    give_up(request, false);
    await_transfer(&c.node[0], "out", "aborting");
    request = start_into(&ref, NULL, LONG);
    wait_until(20 * SEC, none_aborts(&c.node[0]));
    set_faults("");
    rdt_object *object = await_object(reader, request);
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 1));
    rdt_release(object);
    rdt_request_destroy(request);
    must_ok(rdt_free(owner, &ref, false, &err));
    end(NULL);
}

/* The transport that readers are to prefer. */
static struct rdt_ref put_pattern_by(const char *transport, rdt *conn, size_t bytes, uint32_t seed)
{
    struct rdt_put_options options = {.struct_size = sizeof options, .transport = transport};
    uint8_t *memory = alloc_memory(conn, bytes);
    struct rdt_tensor tensor = VECTOR(RDT_U8, bytes, memory);
    struct rdt_ref ref;

    fill_pattern(memory, bytes, seed);
    must_ok(rdt_put(conn, &tensor, 1, &options, &ref, &err));
    must_ok(rdt_dealloc(conn, memory, &err));
    return ref;
}

static bool only_reader_is_connected(void)
{
    struct peer_view view;

    return peer_seen(&c.node[0], &c.node[1], &view) && !view.loopback && peer_seen(&c.node[1], &c.node[0], &view) &&
           view.loopback;
}

/* The owner takes its connection down, and the reader does not know it yet. The fetch goes by another transport. */
Test(quiesce, fetch_passes_over_a_connection_that_the_owner_rebuilds)
{
    static const char *const flags[] = {"--chunk=64KiB", "--set=loopback.sided=two", "--quiesce-grace=200ms", NULL};
    char lines[80];

    begin_pair(2, &(struct cluster_options){.loopback = true, .no_ucx = true, .stream = true, .flags = flags});
    struct rdt_ref ref = put_pattern_by("loopback", owner, BYTES, 1);
    (void)snprintf(lines, sizeof lines, "lose_every=1\nno_abort=1\ndisconnect_delay_ms=%lld\n",
                   (long long)(patience(6 * SEC) / MSEC));
    cluster_faults(&c, 0, lines);
    rdt_request *request = start_into(&ref, NULL, LONG);
    wait_until(20 * SEC, operations_of(&c.node[0]) > 0);
    give_up(request, false);
    wait_until(20 * SEC, only_reader_is_connected());
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    must_say(only_reader_is_connected(), "the owner's connection was rebuilt before the fetch ended");
    must_go_by("stream", object);
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 1));
    rdt_release(object);
    set_faults("");
    must_ok(rdt_free(owner, &ref, false, &err));
    end(rebuilt);
}

/* ---- every step ---- */

/* Given up at each step of a fetch, by cancel and by deadline: typed, at once, nothing left, nothing written. */
Test(quiesce, given_up_at_each_step)
{
    enum { PARKED, MOVING, DELIVERED };

    for (unsigned s = 0; s < 2; s++) {
        begin(2, sides[s], "500ms");
        for (unsigned step = PARKED; step <= DELIVERED; step++)
            for (unsigned by_deadline = 0; by_deadline < 2; by_deadline++)
                for (unsigned direct = 0; direct < 2; direct++) {
                    struct rdt_ref ref = ref_on(&c.node[0], "w");
                    struct canary canary;
                    uint8_t *memory = NULL, *at;

                    canary_create(&canary, BYTES);
                    if (direct)
                        memory = alloc_memory(reader, BYTES + 2 * CHUNK);
                    at = direct ? memory + CHUNK : canary.addr;
                    if (direct)
                        memset(memory, CANARY_BYTE, BYTES + 2 * CHUNK);
                    if (step != PARKED)
                        ref = put_pattern(owner, "w", BYTES, 1);
                    if (step == MOVING)
                        set_slow(150 * MSEC, 0);
                    rdt_request *request = start_into(&ref, at, by_deadline ? patience(800 * MSEC) : LONG);
                    if (step != DELIVERED) {
                        if (step == PARKED)
                            await_transfer(&c.node[0], "out", "parked");
                        else
                            await_engine(&c.node[1]);
                        give_up(request, by_deadline);
                    } else { /* a cancel that comes too late is none */
                        must_ok(rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
                        rdt_cancel(request);
                        must_be(RDT_OK, rdt_request_status(request, &err));
                        rdt_request_destroy(request);
                        must(holds_pattern(at, BYTES, 1));
                    }
                    set_faults("");
                    if (direct) {
                        must_ok(rdt_wait_freed_range(reader, memory, BYTES + 2 * CHUNK, LONG, &err));
                        must(is_filled_with(memory, CHUNK, CANARY_BYTE) && is_filled_with(at + BYTES, CHUNK, CANARY_BYTE));
                        must(step != PARKED || is_filled_with(at, BYTES, CANARY_BYTE));
                        must(canary_untouched(&canary));
                        must_ok(rdt_dealloc(reader, memory, &err));
                    } else {
                        must(canary_alive(&canary) && (step == DELIVERED || canary_untouched(&canary)));
                    }
                    wait_until(20 * SEC, all_at_rest());
                    if (step != PARKED)
                        must_ok(rdt_free(owner, &ref, false, &err));
                    canary_destroy(&canary);
                    wait_until(20 * SEC, loopback_stands());
                    bystander_round(&c, 3);
                }
        end(rebuilt);
    }
}
