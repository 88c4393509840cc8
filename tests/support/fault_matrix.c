/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/fault_matrix.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/cluster.h"
#include "tests/support/fakes/badcable.h"
#include "tests/support/fault_agent.h"
#include "tests/support/keeper.h"

#define CHUNK ((size_t)64 << 10)
#define SMALL ((size_t)4 << 10)

static const char *const expected_warnings[] = {
    "is down: ", "is lost: ", "taken down and rebuilt: ", "refused",   "connection from", "not connected",  "shutting down",
    "reset",     "timed out", "no TLS handshake",         "no answer", "unreachable",     "the frame has ", "no connection to",
    NULL};

/* ---- a round ---- */

struct scene {
    const struct fault_cell *cell;
    struct cluster cluster;
    struct badcable badcable;     /* of the owner's node, for events that want one */
    struct test_keeper keeper[2]; /* of the nodes, for events that restart one */
    struct agent producer, consumer;
    struct agent hoarder; /* for events that want one */
    unsigned far;         /* the consumer's node */
    uint64_t random;
    unsigned round;
    size_t bytes;
    uint32_t seed;
    struct rdt_ref id, name, ref; /* the object's without generation, its name's, and with generation */
    bool was_put;
};

static unsigned below(struct scene *scene, unsigned n)
{
    return next_random(&scene->random) % n;
}

/* A moment that differs from round to round. */
static void linger(struct scene *scene, unsigned most_us)
{
    struct timespec pause = {.tv_nsec = (long)below(scene, most_us + 1) * 1000};

    (void)nanosleep(&pause, NULL);
}

/* Also says how the nodes find them. */
static void start_keepers(struct scene *scene, struct cluster_options *options)
{
    static char flag[2][200];
    static const char *flags[2][2];

    options->same_socket = true;
    for (unsigned i = 0; i <= scene->far; i++) {
        keeper_start(&scene->keeper[i]);
        (void)snprintf(flag[i], sizeof flag[i], "--keeper=%s", scene->keeper[i].socket);
        flags[i][0] = flag[i];
        options->flags_of[i] = flags[i];
    }
}

static void begin(struct scene *scene)
{
    static char peer_timeout[48], quiesce[48], sided[40], memory[48];
    const struct fault_cell *cell = scene->cell;
    const char *flags[] = {peer_timeout,
                           quiesce,
                           "--backoff-max=100ms",
                           "--connect-timeout=2s",
                           "--chunk=64KiB",
                           "--chunks-in-flight=2",
                           "--drain-timeout=100ms",
                           NULL,
                           NULL,
                           NULL,
                           NULL};
    unsigned n = 0; /* the first free place in flags */
    bool loopback = cell->place == FAULT_TWO_SIDED || cell->place == FAULT_ONE_SIDED || cell->place == FAULT_ORDERED;
    struct cluster_options options = {.cables = fault_wants_cable(cell->event),
                                      .loopback = loopback,
                                      .no_ucx = cell->place != FAULT_UCX,
                                      .stream = cell->place == FAULT_STREAM,
                                      .flags = flags};

    (void)snprintf(peer_timeout, sizeof peer_timeout, "--peer-timeout=%lldms", (long long)(patience(SEC) / MSEC));
    (void)snprintf(quiesce, sizeof quiesce, "--quiesce-grace=%lldms", (long long)(patience(300 * MSEC) / MSEC));
    (void)snprintf(sided, sizeof sided, "--set=loopback.sided=%s", cell->place == FAULT_ONE_SIDED ? "one" : "two");
    while (flags[n])
        n++;
    if (loopback)
        flags[n++] = sided;
    if (cell->place == FAULT_ORDERED)
        flags[n++] = "--set=loopback.ordered=yes";
    if (fault_hits_memory(cell->event)) {
        (void)snprintf(memory, sizeof memory, "--%s=96MiB",
                       cell->event == FAULT_NO_MEMORY ? "memory-limit" : "owner-max-bytes");
        flags[n++] = memory;
    }
    scene->far = cell->place == FAULT_SAME ? 0 : 1;
    if (fault_restarts(cell->event))
        start_keepers(scene, &options);
    cluster_start(&scene->cluster, scene->far + 1, &options);
    if (fault_wants_badcable(cell->event))
        badcable_put(&scene->badcable, &scene->cluster.net, 0, scene->random);
    scene->bytes = cell->place == FAULT_INLINE ? SMALL : cell->place == FAULT_SAME ? 128 * CHUNK : 48 * CHUNK;
    if (cell->step == FAULT_PUTTING && cell->place != FAULT_INLINE)
        scene->bytes = 256 * CHUNK;
}

static void set_faults(struct scene *scene, const char *lines)
{
    if (scene->cluster.options.loopback)
        for (unsigned i = 0; i < scene->cluster.n; i++)
            cluster_faults(&scene->cluster, i, lines);
}

static void producer_must(struct scene *scene, const struct agent_order *order)
{
    struct agent_report report;

    agent_order(&scene->producer, order);
    agent_report(&scene->producer, &report);
    must_say(report.status[0] == RDT_OK, "the producer: %s: %s", rdt_status_name(report.status[0]), report.msg[0]);
    if (order->verb == AGENT_PUT) {
        scene->ref = report.ref;
        scene->was_put = true;
    }
}

static struct agent_order put_order(const struct scene *scene, bool snapshot)
{
    return (struct agent_order){.verb = AGENT_PUT,
                                .ref = scene->id,
                                .bytes = scene->bytes,
                                .seed = scene->seed,
                                .snapshot = snapshot,
                                .timeout_ns = LONG};
}

static int64_t consumers_timeout(struct scene *scene)
{
    enum fault_event event = scene->cell->event;

    if (event == FAULT_DEADLINE)
        return scene->cell->step == FAULT_MOVING ? (1 + below(scene, 8)) * MSEC : (5 + below(scene, 30)) * MSEC;
    if (event == FAULT_CONSUMERS_NODE_FROZEN || (event == FAULT_OWNERS_NODE_FROZEN && scene->far == 0))
        return patience(SEC);
    return LONG;
}

static struct agent_order fetch_order(struct scene *scene)
{
    struct agent_order order = {.verb = AGENT_FETCH,
                                .ref = scene->was_put                           ? scene->ref
                                       : scene->cell->step == FAULT_NAME_PARKED ? scene->name
                                                                                : scene->id,
                                .bytes = scene->bytes,
                                .seed = scene->seed,
                                .timeout_ns = consumers_timeout(scene),
                                .cancel_after_ns = -1};

    if (scene->cell->event == FAULT_CANCEL)
        order.cancel_after_ns = below(scene, 8000) * 1000;
    if (scene->cluster.options.loopback)
        (void)snprintf(order.transport, sizeof order.transport, "loopback");
    return order;
}

static void publish(struct scene *scene)
{
    struct agent_order order = {.verb = AGENT_PUBLISH, .ref = scene->ref};

    (void)snprintf(order.name, sizeof order.name, "%s", scene->id.id);
    producer_must(scene, &order);
}

/* ---- somebody who takes all memory ---- */

/* Where the call that is to be struck allocates. */
static bool hoards_at_owners(const struct scene *scene)
{
    return scene->far == 0 || scene->cell->step == FAULT_PUTTING;
}

static void hoard(struct scene *scene)
{
    struct agent_report report;

    agent_order(&scene->hoarder, &(struct agent_order){.verb = AGENT_HOARD});
    agent_report(&scene->hoarder, &report); /* LIMIT of either: others wait for room already */
    must_say(report.status[0] == RDT_LIMIT || (report.status[0] == RDT_NO_MEMORY && scene->cell->event == FAULT_NO_MEMORY),
             "the hoarder: %s: %s", rdt_status_name(report.status[0]), report.msg[0]);
}

static void give_back(struct scene *scene)
{
    struct agent_report report;

    agent_order(&scene->hoarder, &(struct agent_order){.verb = AGENT_RELEASE});
    agent_report(&scene->hoarder, &report);
}

/* In half of the rounds it takes the room before the call; in the others during the call. */
static void hoard_early(struct scene *scene)
{
    struct agent_order order = {.verb = AGENT_PREPARE, .bytes = scene->bytes};
    struct agent_report report;

    if (!fault_hits_memory(scene->cell->event) || scene->round % 2)
        return;
    agent_order(&scene->consumer, &order);
    agent_report(&scene->consumer, &report);
    hoard(scene);
}

/* Brings the calls to the step; those that are to be struck are under way when it returns. */
static void reach(struct scene *scene)
{
    enum fault_event event = scene->cell->event;
    struct agent_order order;
    struct agent_report report;

    switch (scene->cell->step) {
    case FAULT_PUTTING:
        order = fetch_order(scene);
        agent_order(&scene->consumer, &order);
        order = put_order(scene, true);
        if (event == FAULT_DEADLINE)
            order.timeout_ns = (1 + below(scene, 5)) * MSEC;
        else if (event == FAULT_OWNERS_NODE_FROZEN)
            order.timeout_ns = patience(SEC);
        else if (fault_hits_memory(event)) /* it waits so long for room */
            order.timeout_ns = patience(100 * MSEC);
        agent_order(&scene->producer, &order);
        break;
    case FAULT_PARKED:
    case FAULT_NAME_PARKED:
        order = fetch_order(scene);
        agent_order(&scene->consumer, &order);
        break;
    case FAULT_MOVING:
    case FAULT_HELD:
    case FAULT_WAITING_FREED:
        order = put_order(scene, false);
        producer_must(scene, &order);
        if (event == FAULT_TRANSPORT_FAILS)
            set_faults(scene, scene->round % 2 ? "fail_every=7\ndelay_ms=1\n" : "fail_every=5\nno_abort=1\n");
        else if (scene->cell->step != FAULT_HELD && !fault_hits_memory(event))
            set_faults(scene, scene->round % 3 == 0 ? "delay_ms=5\nlate_ms=20\n" : "delay_ms=3\n");
        hoard_early(scene);
        order = fetch_order(scene);
        if (scene->cell->step == FAULT_HELD || (scene->cell->step == FAULT_WAITING_FREED && scene->far == 0))
            order.timeout_ns = LONG;
        agent_order(&scene->consumer, &order);
        if (scene->cell->step == FAULT_HELD || (scene->cell->step == FAULT_WAITING_FREED && scene->far == 0)) {
            agent_report(&scene->consumer, &report);
            for (unsigned i = 0; i < AGENT_ITEMS; i++)
                must_say(report.status[i] == RDT_OK, "fetch %u: %s", i, report.msg[i]);
        }
        if (scene->cell->step != FAULT_WAITING_FREED)
            break;
        producer_must(scene, &(struct agent_order){.verb = AGENT_FREE, .ref = scene->ref, .force = event == FAULT_FORCED_FREE});
        order = (struct agent_order){.verb = AGENT_WAIT_FREED, .ref = scene->ref, .timeout_ns = LONG};
        if (event == FAULT_DEADLINE || (event == FAULT_OWNERS_NODE_FROZEN))
            order.timeout_ns = event == FAULT_DEADLINE ? (1 + below(scene, 20)) * MSEC : patience(SEC);
        agent_order(&scene->producer, &order);
        break;
    case FAULT_WAITING:
        order = (struct agent_order){.verb = AGENT_WAIT_PUT, .ref = scene->id, .timeout_ns = consumers_timeout(scene)};
        agent_order(&scene->consumer, &order);
        break;
    case FAULT_FREEING:
        order = put_order(scene, false);
        producer_must(scene, &order);
        agent_order(&scene->consumer, &(struct agent_order){.verb = AGENT_FREE, .ref = scene->ref, .force = true});
        break;
    default:
        break;
    }
}

static void strike(struct scene *scene)
{
    struct cluster *cluster = &scene->cluster;
    struct test_node *near = &cluster->node[0], *far = &cluster->node[scene->far];

    linger(scene, scene->cell->step == FAULT_MOVING || scene->cell->step == FAULT_PUTTING ? 20000 : 2000);
    switch (scene->cell->event) {
    case FAULT_CONSUMER_KILLED:
        agent_kill(&scene->consumer);
        break;
    case FAULT_CONSUMER_FROZEN:
        agent_freeze(&scene->consumer);
        break;
    case FAULT_PRODUCER_KILLED:
        agent_kill(&scene->producer);
        break;
    case FAULT_PRODUCER_FROZEN:
        agent_freeze(&scene->producer);
        break;
    case FAULT_CONSUMERS_NODE_KILLED:
        node_kill(far, SIGKILL);
        break;
    case FAULT_CONSUMERS_NODE_FROZEN:
        node_freeze(far);
        break;
    case FAULT_CONSUMERS_NODE_STOPPED:
        node_stop(far);
        break;
    case FAULT_OWNERS_NODE_KILLED:
        node_kill(near, SIGKILL);
        break;
    case FAULT_OWNERS_NODE_FROZEN:
        node_freeze(near);
        break;
    case FAULT_OWNERS_NODE_STOPPED:
        node_stop(near);
        break;
    case FAULT_CABLE_CUT:
        net_cut(&cluster->net, 0);
        break;
    case FAULT_CABLE_UNPLUGGED:
        net_unplug(&cluster->net, 0);
        break;
    case FAULT_HALF_OPEN_OUT:
        badcable_set(&scene->badcable, BADCABLE_OUT, &(struct badcable_faults){.dead = true});
        break;
    case FAULT_HALF_OPEN_IN:
        badcable_set(&scene->badcable, BADCABLE_IN, &(struct badcable_faults){.dead = true});
        break;
    case FAULT_LOSSY:
        badcable_set(&scene->badcable, BADCABLE_WAYS,
                     &(struct badcable_faults){.loss_pm = 30, .duplicate_pm = 30, .reorder_pm = 50, .hold_us = 1000});
        break;
    case FAULT_FORCED_FREE:
        if (scene->cell->step != FAULT_WAITING_FREED) /* there it has happened */
            producer_must(scene, &(struct agent_order){.verb = AGENT_FREE, .ref = scene->ref, .force = true});
        break;
    case FAULT_GARBAGE:
        agent_send_garbage(near);
        agent_send_garbage(far);
        break;
    case FAULT_NO_MEMORY:
    case FAULT_OVER_LIMIT:
        hoard(scene);
        break;
    case FAULT_CONSUMERS_NODE_RESTARTED:
        node_kill(far, SIGKILL);
        cluster_restart(cluster, scene->far);
        break;
    case FAULT_OWNERS_NODE_RESTARTED:
        node_kill(near, SIGKILL);
        cluster_restart(cluster, 0);
        break;
    default: /* the call brings its own */
        break;
    }
}

/* ---- what follows ---- */

static void judge(struct scene *scene, struct agent *agent, unsigned items)
{
    bool producer = agent == &scene->producer;
    uint64_t may = fault_cell_explains(scene->cell, producer);
    struct agent_report report;

    if (!agent->alive || !agent->busy)
        return;
    agent_report(agent, &report);
    for (unsigned i = 0; i < items; i++)
        must_say(may & FAULT_MAY(report.status[i]), "round %u: the %s's call %u: %s: %s", scene->round, agent->name, i,
                 rdt_status_name(report.status[i]), report.msg[i]);
    if (producer && scene->cell->step == FAULT_PUTTING && report.status[0] == RDT_OK) {
        scene->ref = report.ref;
        scene->was_put = true;
    }
}

/* Whether the event ends the consumer's wait for an object that nobody has put. */
static bool ends_waiting(const struct scene *scene)
{
    enum fault_event event = scene->cell->event;

    return fault_hits_consumers_node(event) || fault_hits_owners_node(event) || fault_hits_cable(event) ||
           event == FAULT_DEADLINE || event == FAULT_CANCEL || event == FAULT_CONSUMER_KILLED;
}

static void put_after_all(struct scene *scene)
{
    struct agent_order order = put_order(scene, false);
    struct agent_report report;

    if (!scene->producer.alive)
        agent_start(&scene->producer, &scene->cluster.node[0], "producer");
    if (scene->producer.frozen)
        agent_thaw(&scene->producer);
    for (unsigned round = 0;; wait_pause(&round)) { /* the dead one's object may still be going */
        agent_order(&scene->producer, &order);
        agent_report(&scene->producer, &report);
        if (report.status[0] != RDT_EXISTS)
            break;
        must(round < 500);
    }
    must_say(report.status[0] == RDT_OK, "put after all: %s", report.msg[0]);
    scene->ref = report.ref;
    scene->was_put = true;
    if (scene->cell->step == FAULT_NAME_PARKED)
        publish(scene);
}

static void collect(struct scene *scene)
{
    enum fault_event event = scene->cell->event;
    enum fault_step step = scene->cell->step;
    unsigned items = step == FAULT_WAITING || step == FAULT_FREEING ? 1 : AGENT_ITEMS;
    bool parked = step == FAULT_PARKED || step == FAULT_WAITING || step == FAULT_NAME_PARKED || step == FAULT_PUTTING;

    if (event == FAULT_CONSUMER_FROZEN && step != FAULT_WAITING_FREED) { /* others go on meanwhile */
        if (step == FAULT_PUTTING)
            judge(scene, &scene->producer, 1);
        bystander_round(&scene->cluster, scene->far ? 3 : 1);
        agent_thaw(&scene->consumer);
    } else if (event == FAULT_PRODUCER_FROZEN && step != FAULT_PUTTING && step != FAULT_WAITING_FREED) {
        bystander_round(&scene->cluster, scene->far ? 3 : 1);
        if (!parked)
            judge(scene, &scene->consumer, items); /* needs nothing of its producer */
        agent_thaw(&scene->producer);
    } else if (scene->producer.frozen || scene->consumer.frozen) {
        bystander_round(&scene->cluster, scene->far ? 3 : 1);
        agent_thaw(scene->producer.frozen ? &scene->producer : &scene->consumer);
    }
    if (step == FAULT_PUTTING)
        judge(scene, &scene->producer, 1);
    if (fault_hits_memory(event) && hoards_at_owners(scene) && parked)
        give_back(scene); /* the put after all wants memory too */
    if (parked && !scene->was_put && !ends_waiting(scene))
        put_after_all(scene);
    if (step == FAULT_WAITING_FREED && scene->far == 0 && scene->consumer.alive && event != FAULT_OWNERS_NODE_KILLED) {
        struct agent_report report;
        if (event == FAULT_DEADLINE || fault_hits_owners_node(event)) /* it holds the object, so the wait ends without it */
            judge(scene, &scene->producer, 1);
        if (!fault_hits_owners_node(event)) {
            agent_order(&scene->consumer, &(struct agent_order){.verb = AGENT_RELEASE});
            agent_report(&scene->consumer, &report);
        }
    }
    judge(scene, &scene->consumer, items);
    if (fault_hits_memory(event)) {
        give_back(scene);
        bystander_round(&scene->cluster, scene->far ? 3 : 1);
    }
    if (step == FAULT_WAITING_FREED)
        judge(scene, &scene->producer, 1);
}

/* Those who wait for a node that is frozen or has ended got their error in `collect`; now the node returns. */
static void recover(struct scene *scene)
{
    struct cluster *cluster = &scene->cluster;
    enum fault_event event = scene->cell->event;
    unsigned struck = fault_hits_consumers_node(event) ? scene->far : 0;

    set_faults(scene, "");
    switch (event) {
    case FAULT_CONSUMERS_NODE_KILLED:
    case FAULT_CONSUMERS_NODE_STOPPED:
    case FAULT_OWNERS_NODE_KILLED:
    case FAULT_OWNERS_NODE_STOPPED:
        if (scene->far)
            bystander_round(cluster, 1u << (1 - struck));
        if (scene->far || scene->consumer.alive) { /* delivered bytes stay right without the daemon */
            struct agent *agent = struck == scene->far ? &scene->consumer : &scene->producer;
            agent_leave(agent);
            if (scene->far == 0)
                agent_leave(&scene->producer);
        }
        cluster_restart(cluster, struck);
        break;
    case FAULT_CONSUMERS_NODE_FROZEN:
    case FAULT_OWNERS_NODE_FROZEN:
        if (scene->far)
            bystander_round(cluster, 1u << (1 - struck));
        node_thaw(&cluster->node[struck]);
        break;
    case FAULT_CABLE_CUT:
        bystander_round(cluster, 1);
        bystander_round(cluster, 2);
        net_restore(&cluster->net, 0);
        break;
    case FAULT_CABLE_UNPLUGGED:
        bystander_round(cluster, 1);
        bystander_round(cluster, 2);
        net_plug(&cluster->net, 0);
        break;
    case FAULT_HALF_OPEN_OUT:
    case FAULT_HALF_OPEN_IN:
        bystander_round(cluster, 1);
        bystander_round(cluster, 2);
        badcable_heal(&scene->badcable);
        break;
    case FAULT_LOSSY:
        bystander_round(cluster, 3);
        badcable_heal(&scene->badcable);
        return;
    case FAULT_CONSUMERS_NODE_RESTARTED:
    case FAULT_OWNERS_NODE_RESTARTED:
        break;
    default:
        return;
    }
    cluster_meet(cluster);
}

static bool at_rest(const struct scene *scene)
{
    for (unsigned i = 0; i < scene->cluster.n; i++) {
        struct node_status status = node_now(&scene->cluster.node[i]);
        if (status.transfers_active > 0 || status.objects > 0 || pins_of(&scene->cluster.node[i]) > 0)
            return false;
    }
    return true;
}

static void leave_nothing(struct scene *scene)
{
    struct agent_report report;

    for (struct agent *agent = &scene->consumer;; agent = &scene->producer) {
        if (agent->alive) {
            if (agent == &scene->producer && scene->cell->step == FAULT_NAME_PARKED) { /* it may not be there */
                agent_order(agent, &(struct agent_order){.verb = AGENT_UNPUBLISH, .ref = scene->name});
                agent_report(agent, &report);
            }
            if (agent == &scene->producer && scene->was_put) {
                agent_order(agent,
                            &(struct agent_order){.verb = AGENT_FREE, .ref = scene->ref}); /* as far as it is still there */
                agent_report(agent, &report);
            }
            agent_order(agent, &(struct agent_order){.verb = AGENT_RELEASE});
            agent_report(agent, &report);
        }
        if (agent == &scene->producer)
            break;
    }
    wait_until(20 * SEC, at_rest(scene));
}

static void play(struct scene *scene)
{
    char id[32];

    if (!scene->producer.alive)
        agent_start(&scene->producer, &scene->cluster.node[0], "producer");
    if (!scene->consumer.alive)
        agent_start(&scene->consumer, &scene->cluster.node[scene->far], "consumer");
    if (fault_hits_memory(scene->cell->event) && !scene->hoarder.alive)
        agent_start(&scene->hoarder, &scene->cluster.node[hoards_at_owners(scene) ? 0 : scene->far], "hoarder");
    (void)snprintf(id, sizeof id, "w%u", scene->round);
    scene->id = scene->far ? ref_on(&scene->cluster.node[0], id) : ref_named(id);
    must_ok(rdt_ref_from_name(id, 0, scene->far ? &scene->id : NULL, &scene->name, &err));
    scene->seed = next_random(&scene->random);
    scene->was_put = false;
    reach(scene);
    strike(scene);
    collect(scene);
    recover(scene);
    leave_nothing(scene);
}

void fault_cell_run(const struct fault_cell *cell, unsigned rounds, uint64_t seed)
{
    struct scene scene = {.cell = cell, .random = seed};

    begin(&scene);
    for (scene.round = 0; scene.round < rounds; scene.round++)
        play(&scene);
    agent_leave(&scene.consumer);
    agent_leave(&scene.producer);
    agent_leave(&scene.hoarder);
    bystander_round(&scene.cluster, scene.far ? 3 : 1);
    if (fault_wants_badcable(cell->event))
        badcable_take(&scene.badcable);
    cluster_end(&scene.cluster, expected_warnings);
    for (unsigned i = 0; fault_restarts(cell->event) && i <= scene.far; i++)
        keeper_stop(&scene.keeper[i], SIGTERM);
}
