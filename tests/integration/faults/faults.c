/* SPDX-License-Identifier: Apache-2.0 */
/* A process dies, freezes or is cut off at a known step of a fetch. Those who wait get the right status in time, nobody
 * else is affected, nothing is left behind, and a process that returns works again. The test transport's delays and SIGSTOP
 * keep a step open; the records of transfers tell which step it is. */
#include "tests/integration/faults/faults.h"

TestSuite(faults, .timeout = SUITE_SECONDS(280));

enum step { PARKED, ASKED, OFFERED, RESERVING, MOVING, DELIVERED };
enum victim { READER, PRODUCER, READERS_NODE, OWNERS_NODE };

/* ---- the reader: two fetches of one ref, into plain memory and into the daemon's ---- */

struct reading {
    struct rdt_ref ref;
    int64_t timeout_ns;
};

struct report {
    enum rdt_status status[2];
    char msg[2][sizeof((struct rdt_error *)0)->msg];
    int64_t elapsed_ns;
    bool margins, right[2], untouched;
};

static void look(struct report *report, const struct canary *plain, const uint8_t *direct)
{
    report->margins = canary_alive(plain) && is_filled_with(direct, CHUNK, CANARY_BYTE) &&
                      is_filled_with(direct + CHUNK + BYTES, CHUNK, CANARY_BYTE);
    report->right[0] = holds_pattern(plain->addr, BYTES, 1);
    report->right[1] = holds_pattern(direct + CHUNK, BYTES, 1);
    report->untouched = canary_untouched(plain);
}

static int read_twice(struct actor *self, void *arg)
{
    const struct reading *reading = arg;
    rdt *conn = node_client(&c.node[1], "reader");
    uint8_t *direct = alloc_memory(conn, BYTES + 2 * CHUNK);
    struct report report = {0};
    struct rdt_tensor tensors[2];
    const struct rdt_tensor *targets[] = {&tensors[0], &tensors[1]};
    const size_t counts[] = {1, 1};
    const struct rdt_ref refs[] = {reading->ref, reading->ref};
    rdt_request *requests[2];
    struct canary plain;

    canary_create(&plain, BYTES);
    memset(direct, CANARY_BYTE, BYTES + 2 * CHUNK);
    tensors[0] = VECTOR(RDT_U8, BYTES, plain.addr);
    tensors[1] = VECTOR(RDT_U8, BYTES, direct + CHUNK);
    struct rdt_fetch_options options = {
        .struct_size = sizeof options, .targets = targets, .target_counts = counts, .timeout_ns = reading->timeout_ns};
    actor_step(self);
    actor_await(self); /* now */
    int64_t start = now_ns();
    must_ok(rdt_fetch_start(conn, refs, 2, &options, requests, &err));
    actor_step(self);
    for (unsigned i = 0; i < 2; i++) {
        struct rdt_error err = {0};
        report.status[i] = rdt_wait(conn, &requests[i], 1, 1, LONG, NULL, NULL, &err);
        (void)snprintf(report.msg[i], sizeof report.msg[i], "%s", err.msg);
    }
    report.elapsed_ns = now_ns() - start;
    look(&report, &plain, direct);
    actor_send(self, &report, sizeof report);
    actor_await(self); /* a process may have died meanwhile; delivered bytes stay */
    look(&report, &plain, direct);
    actor_send(self, &report, sizeof report);
    for (unsigned i = 0; i < 2; i++)
        rdt_request_destroy(requests[i]);
    rdt_close(conn);
    return 0;
}

static int produce(struct actor *self, void *arg)
{
    const struct reading *reading = arg;
    rdt *conn = node_client(&c.node[0], "producer");
    uint8_t *memory = alloc_memory(conn, BYTES);
    struct rdt_tensor tensor = VECTOR(RDT_U8, BYTES, memory);

    fill_pattern(memory, BYTES, 1);
    actor_step(self);
    actor_await(self);
    (void)put_one(conn, &tensor, reading->ref.id);
    actor_step(self);
    actor_await(self);
    rdt_close(conn);
    return 0;
}

static int keep_pool_busy(struct actor *self, void *arg)
{
    rdt *conn = node_client(&c.node[1], "busy");
    void *addr;

    actor_step(self);
    (void)rdt_alloc(conn, BUSY_BYTES, &addr, NULL); /* its node may be the one that dies */
    rdt_close(conn);
    return 0;
}

/* ---- one scene ---- */

struct scene {
    enum step step;
    enum victim victim;
    int signal; /* SIGKILL or SIGSTOP */
    struct reading reading;
    struct actor reader, producer, busy;
    bool put, busy_runs;
    bool replaced; /* another producer has put in the place of the one that died */
    bool held[2];  /* nodes that stand still to hold the step open */
    bool reported;
    struct report report;
    char boot_id[33];
};

static void put_now(struct scene *scene)
{
    actor_step(&scene->producer);
    actor_await(&scene->producer);
    scene->put = true;
}

static void read_now(struct scene *scene)
{
    actor_step(&scene->reader);
    actor_await(&scene->reader);
}

static void hold(struct scene *scene, unsigned i)
{
    node_freeze(&c.node[i]);
    scene->held[i] = true;
}

static void await_report(struct scene *scene)
{
    if (!scene->reported)
        actor_recv(&scene->reader, &scene->report, sizeof scene->report);
    scene->reported = true;
}

/* Brings the fetches to the step. */
static void reach(struct scene *scene)
{
    static unsigned number;
    char id[16];

    (void)snprintf(id, sizeof id, "w%u", ++number);
    scene->reading.ref = ref_on(&c.node[0], id);
    scene->reading.timeout_ns = scene->victim == READERS_NODE && scene->signal == SIGSTOP ? patience(3 * SEC) : LONG;
    actor_start(&scene->producer, produce, &scene->reading);
    actor_await(&scene->producer);
    actor_start(&scene->reader, read_twice, &scene->reading);
    actor_await(&scene->reader);
    switch (scene->step) {
    case PARKED:
        read_now(scene);
        wait_until(10 * SEC, outgoing_in("parked") == 2);
        break;
    case ASKED:
        put_now(scene);
        hold(scene, 0);
        read_now(scene);
        await_transfer(&c.node[1], "in", "asked");
        break;
    case OFFERED:
        read_now(scene);
        wait_until(10 * SEC, outgoing_in("parked") == 2);
        hold(scene, 1);
        put_now(scene);
        wait_until(10 * SEC, outgoing_in("offered") + outgoing_in("sending") == 2);
        break;
    case RESERVING: /* if the test sees it: the step may be over before the test looks */
        put_now(scene);
        set_faults("delay_ms=100\n");
        actor_start(&scene->busy, keep_pool_busy, NULL);
        scene->busy_runs = true;
        actor_await(&scene->busy);
        read_now(scene);
        await_transfer(&c.node[1], "in", "reserving|moving");
        break;
    case MOVING:
        put_now(scene);
        set_faults("delay_ms=150\n");
        read_now(scene);
        await_engine(&c.node[1]);
        break;
    case DELIVERED:
        put_now(scene);
        read_now(scene);
        await_report(scene);
        break;
    }
}

static unsigned node_of(enum victim victim)
{
    return victim == READERS_NODE ? 1 : 0;
}

static bool is_node(enum victim victim)
{
    return victim == READERS_NODE || victim == OWNERS_NODE;
}

static void strike(struct scene *scene)
{
    struct peer_view view;

    if (is_node(scene->victim)) {
        unsigned i = node_of(scene->victim), other = 1 - i;
        if (!scene->held[other]) {
            must(peer_seen(&c.node[other], &c.node[i], &view));
            (void)snprintf(scene->boot_id, sizeof scene->boot_id, "%s", view.boot_id);
        }
        if (scene->signal == SIGKILL)
            node_kill(&c.node[i], SIGKILL);
        else if (!scene->held[i])
            node_freeze(&c.node[i]);
        scene->held[i] = false;
    } else {
        struct actor *actor = scene->victim == READER ? &scene->reader : &scene->producer;
        if (scene->signal == SIGKILL)
            actor_kill(actor, SIGKILL);
        else
            actor_freeze(actor);
    }
    for (unsigned i = 0; i < 2; i++) /* the process that only kept the step open goes on */
        if (scene->held[i])
            node_thaw(&c.node[i]);
}

/* ---- what follows ---- */

static void must_have_read(const struct scene *scene)
{
    for (unsigned i = 0; i < 2; i++)
        must_say(scene->report.status[i] == RDT_OK && scene->report.right[i], "step %d, fetch %u: %s: %s", scene->step, i,
                 rdt_status_name(scene->report.status[i]), scene->report.msg[i]);
    must(scene->report.margins);
}

static void must_have_failed(const struct scene *scene, enum rdt_status expected)
{
    for (unsigned i = 0; i < 2; i++)
        must_say(scene->report.status[i] == expected, "step %d, fetch %u: %s instead of %s: %s", scene->step, i,
                 rdt_status_name(scene->report.status[i]), rdt_status_name(expected), scene->report.msg[i]);
    must(scene->report.margins && scene->report.untouched);
}

static void reader_struck(struct scene *scene)
{
    bystander_round(&c, 3);
    if (scene->signal == SIGSTOP) { /* the fetches go on without it */
        if (scene->step == PARKED)
            put_now(scene);
        set_faults("");
        wait_until(20 * SEC, at_rest(0) && at_rest(1));
        actor_thaw(&scene->reader);
        await_report(scene);
        must_have_read(scene);
        return;
    }
    wait_until(20 * SEC, at_rest(0) && at_rest(1)); /* those bytes that are under way arrive in peace */
    set_faults("");
}

/* Does the owner's node, or will it, wait for somebody to put? Also if it hears of the producer's end before
 * it hears the question. */
static bool waits_for_put(const struct scene *scene)
{
    if (scene->step == ASKED)
        wait_until(20 * SEC, outgoing_in("parked") > 0 || (at_rest(0) && at_rest(1)));
    return scene->step == PARKED || (scene->step == ASKED && outgoing_in("parked") > 0);
}

static void producer_struck(struct scene *scene)
{
    bystander_round(&c, 3);
    if (scene->signal == SIGSTOP) {
        if (scene->step == PARKED) { /* no object is put meanwhile */
            must(outgoing_in("parked") == 2);
            actor_thaw(&scene->producer);
            put_now(scene);
        }
        set_faults("");
        await_report(scene);
        must_have_read(scene);
        if (scene->step != PARKED)
            actor_thaw(&scene->producer);
        return;
    }
    set_faults("");
    if (waits_for_put(scene)) { /* another one puts */
        actor_start(&scene->producer, produce, &scene->reading);
        actor_await(&scene->producer);
        put_now(scene);
        scene->replaced = true;
    }
    await_report(scene);
    for (unsigned i = 0; i < 2; i++) {
        enum rdt_status status = scene->report.status[i];
        must_say((status == RDT_OK && scene->report.right[i]) || (status == RDT_OWNER_DIED && scene->step != PARKED),
                 "step %d, fetch %u: %s: %s", scene->step, i, rdt_status_name(status), scene->report.msg[i]);
    }
    must(scene->report.margins);
}

static void node_struck(struct scene *scene)
{
    unsigned i = node_of(scene->victim), other = 1 - i;
    int64_t struck = now_ns();

    bystander_round(&c, 1u << other);
    if (scene->step != DELIVERED) {
        await_report(scene);
        if (scene->victim == OWNERS_NODE) {
            must_have_failed(scene, RDT_PEER_LOST);
            must_be_within(struck, scene->signal == SIGKILL ? SEC : PEER_TIMEOUT + SEC);
            must_say(strstr(scene->report.msg[0], c.node[0].address), "which node? %s", scene->report.msg[0]);
        } else {
            must_have_failed(scene, scene->signal == SIGKILL ? RDT_DISCONNECTED : RDT_TIMED_OUT);
            must_say(scene->signal == SIGKILL || scene->report.elapsed_ns < scene->reading.timeout_ns + patience(SEC),
                     "too late");
        }
    }
    wait_until(PEER_TIMEOUT + 5 * SEC, at_rest(other)); /* also while the other one stands still */
    bystander_round(&c, 1u << other);
    set_faults("");
    if (scene->signal == SIGKILL)
        cluster_restart(&c, i);
    else
        node_thaw(&c.node[i]);
}

static void check_boot(const struct scene *scene)
{
    unsigned i = node_of(scene->victim);
    struct peer_view view;

    must(peer_seen(&c.node[1 - i], &c.node[i], &view));
    if (scene->boot_id[0])
        must_say((strcmp(view.boot_id, scene->boot_id) != 0) == (scene->signal == SIGKILL), "the boot id is %s, was %s",
                 view.boot_id, scene->boot_id);
}

/* Ends the actors that are left. */
static void leave(struct scene *scene)
{
    bool reader_died = scene->victim == READER && scene->signal == SIGKILL;
    bool producer_died = scene->victim == PRODUCER && scene->signal == SIGKILL && !scene->replaced;

    if (!reader_died) {
        struct report second;
        await_report(scene);
        actor_step(&scene->reader);
        actor_recv(&scene->reader, &second, sizeof second);
        must_say(second.margins, "step %d: bytes beyond the targets", scene->step);
        for (unsigned i = 0; i < 2; i++)
            must_say(scene->report.status[i] != RDT_OK || second.right[i], "step %d: what was delivered has changed",
                     scene->step);
        must(scene->report.status[0] == RDT_OK || second.untouched);
        actor_wait(&scene->reader);
    }
    if (!producer_died && !scene->put)
        actor_kill(&scene->producer, SIGKILL);
    else if (!producer_died) {
        actor_step(&scene->producer);
        actor_wait(&scene->producer);
    }
    if (scene->busy_runs)
        actor_wait(&scene->busy);
}

static void check_step(enum victim victim, int signal, enum step step)
{
    struct scene scene = {.step = step, .victim = victim, .signal = signal};

    reach(&scene);
    strike(&scene);
    if (is_node(victim))
        node_struck(&scene);
    else if (victim == READER)
        reader_struck(&scene);
    else
        producer_struck(&scene);
    leave(&scene);

    cluster_expect_idle(&c);
    cluster_meet(&c);
    if (is_node(victim))
        check_boot(&scene);
    rdt *owner = node_client(&c.node[0], "owner");
    rdt *reader = node_client(&c.node[1], "reader");
    struct rdt_ref ref = put_pattern(owner, NULL, BYTES, 4);
    fetch_pattern(reader, &ref, BYTES, 4, "loopback");
    rdt_close(reader);
    rdt_close(owner);
    bystander_round(&c, 3);
    cluster_expect_idle(&c);
}

static void check_all_steps(enum victim victim, int signal)
{
    begin(2, "two");
    for (enum step step = PARKED; step <= DELIVERED; step++)
        check_step(victim, signal, step);
    cluster_end(&c, expected_warnings);
}

Test(faults, reader_killed)
{
    check_all_steps(READER, SIGKILL);
}

Test(faults, reader_frozen)
{
    check_all_steps(READER, SIGSTOP);
}

Test(faults, producer_killed)
{
    check_all_steps(PRODUCER, SIGKILL);
}

Test(faults, producer_frozen)
{
    check_all_steps(PRODUCER, SIGSTOP);
}

Test(faults, readers_node_killed)
{
    check_all_steps(READERS_NODE, SIGKILL);
}

Test(faults, readers_node_frozen)
{
    check_all_steps(READERS_NODE, SIGSTOP);
}

Test(faults, owners_node_killed)
{
    check_all_steps(OWNERS_NODE, SIGKILL);
}

Test(faults, owners_node_frozen)
{
    check_all_steps(OWNERS_NODE, SIGSTOP);
}

/* One-sided reads: only the step MOVE differs. */
Test(faults, one_sided_killed_while_moving)
{
    begin(2, "one");
    for (enum victim victim = READER; victim <= OWNERS_NODE; victim++)
        check_step(victim, SIGKILL, MOVING);
    cluster_end(&c, expected_warnings);
}

Test(faults, one_sided_frozen_while_moving)
{
    begin(2, "one");
    for (enum victim victim = READER; victim <= OWNERS_NODE; victim++)
        check_step(victim, SIGSTOP, MOVING);
    cluster_end(&c, expected_warnings);
}
