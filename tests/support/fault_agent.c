/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/fault_agent.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/raw.h"
#include "tests/support/tensors.h"

#define MARGIN ((size_t)4096)
#define POISON 0xa5
#define HOARD_MAX 1024
#define HOARD_MOST ((size_t)16 << 20)
#define HOARD_LEAST ((size_t)16 << 10)

struct memory { /* a target between margins */
    uint8_t *base;
    size_t bytes;
    bool poisoned;
};

struct self {
    const struct test_node *node;
    rdt *conn;
    uint8_t *source; /* the latest object */
    size_t fetched_bytes;
    uint32_t fetched_seed;
    rdt_object *objects[AGENT_ITEMS];
    bool delivered[AGENT_ITEMS];
    struct memory plain, direct;
    bool prepared;          /* the targets are those of the next fetch */
    void *hoard[HOARD_MAX]; /* [n_hoard] */
    unsigned n_hoard;
};

/* ---- looking ---- */

static bool margins_hold(const struct memory *memory)
{
    return is_filled_with(memory->base, MARGIN, CANARY_BYTE) &&
           is_filled_with(memory->base + MARGIN + memory->bytes, MARGIN, CANARY_BYTE);
}

static void look_at_memory(const struct self *self, const struct memory *memory, bool delivered, const char *what,
                           struct agent_report *report)
{
    const char *wrong = NULL;

    if (!memory->base)
        return;
    if (!margins_hold(memory))
        wrong = "bytes were written beside it";
    else if (delivered && !holds_pattern(memory->base + MARGIN, memory->bytes, self->fetched_seed))
        wrong = "it holds wrong bytes";
    else if (memory->poisoned && !is_filled_with(memory->base + MARGIN, memory->bytes, POISON))
        wrong = "it was written after its request had ended";
    if (wrong && report->right) {
        report->right = false;
        (void)snprintf(report->wrong, sizeof report->wrong, "%s: %s", what, wrong);
    }
}

static void look(const struct self *self, struct agent_report *report)
{
    report->right = true;
    for (unsigned i = 0; i < AGENT_ITEMS; i++) {
        if (!self->objects[i])
            continue;
        struct rdt_tensor tensor = tensor_of(self->objects[i], 0);
        if (report->right && !holds_pattern(tensor.data, self->fetched_bytes, self->fetched_seed)) {
            report->right = false;
            (void)snprintf(report->wrong, sizeof report->wrong, "what fetch %u brought holds wrong bytes", i);
        }
    }
    look_at_memory(self, &self->plain, self->delivered[1], "the malloc'ed target", report);
    look_at_memory(self, &self->direct, self->delivered[2], "the target in a region", report);
}

static void forget(struct self *self)
{
    for (unsigned i = 0; i < AGENT_ITEMS; i++) {
        rdt_release(self->objects[i]);
        self->objects[i] = NULL;
        self->delivered[i] = false;
    }
    free(self->plain.base);
    if (self->direct.base)
        (void)rdt_dealloc(self->conn, self->direct.base, NULL);
    self->plain = self->direct = (struct memory){0};
    self->prepared = false;
}

static void release(struct self *self)
{
    forget(self);
    while (self->n_hoard > 0)
        (void)rdt_dealloc(self->conn, self->hoard[--self->n_hoard], NULL);
    if (self->source)
        (void)rdt_dealloc(self->conn, self->source, NULL);
    self->source = NULL;
}

/* ---- verbs ---- */

static void put(struct self *self, const struct agent_order *order, struct actor *channel, struct agent_report *report)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_error err = {0};
    struct rdt_tensor tensor;
    void *memory;

    if (self->source)
        (void)rdt_dealloc(self->conn, self->source, NULL);
    self->source = NULL;
    report->status[0] = rdt_alloc(self->conn, order->bytes, &memory, &err);
    actor_step(channel);
    if (report->status[0] == RDT_OK) {
        self->source = memory;
        fill_pattern(memory, order->bytes, order->seed);
        tensor = VECTOR(RDT_U8, order->bytes, memory);
        options.id = order->ref.id_bytes ? order->ref.id : NULL;
        options.id_bytes = order->ref.id_bytes;
        options.flags = order->snapshot ? RDT_PUT_SNAPSHOT : 0;
        options.timeout_ns = order->timeout_ns;
        report->status[0] = rdt_put(self->conn, &tensor, 1, &options, &report->ref, &err);
        if (order->snapshot) /* the fetch must not depend on the option */
            memset(memory, POISON, order->bytes);
    }
    (void)snprintf(report->msg[0], sizeof report->msg[0], "%s", err.msg);
}

/* Takes large pieces first, then small ones. */
/* By halves. Where more than two of a size are had, somebody gave memory back meanwhile: that is taken in large pieces
 * again, or there would be thousands of small ones. */
static void hoard(struct self *self, struct agent_report *report, struct rdt_error *err)
{
    unsigned had = 0;

    for (size_t bytes = HOARD_MOST; bytes >= HOARD_LEAST;) {
        must(self->n_hoard < HOARD_MAX);
        report->status[0] = rdt_alloc(self->conn, bytes, &self->hoard[self->n_hoard], err);
        if (report->status[0] == RDT_OK) {
            self->n_hoard++;
            if (++had > 2 && bytes < HOARD_MOST) {
                bytes *= 2;
                had = 0;
            }
        } else if (report->status[0] == RDT_NO_MEMORY || report->status[0] == RDT_LIMIT) {
            bytes /= 2;
            had = 0;
        } else {
            break;
        }
    }
}

static void make_targets(struct self *self, const struct agent_order *order)
{
    if (self->prepared) {
        must(self->plain.bytes == order->bytes);
        self->prepared = false;
        return;
    }
    forget(self);
    self->plain = (struct memory){.base = malloc(order->bytes + 2 * MARGIN), .bytes = order->bytes};
    self->direct = (struct memory){.base = alloc_memory(self->conn, order->bytes + 2 * MARGIN), .bytes = order->bytes};
    must(self->plain.base);
    memset(self->plain.base, CANARY_BYTE, order->bytes + 2 * MARGIN);
    memset(self->direct.base, CANARY_BYTE, order->bytes + 2 * MARGIN);
}

/* Memory that a failed fetch must not write any more. A region is safe only when the daemon says so. */
static void poison(struct self *self, struct memory *memory, bool region)
{
    uint8_t *addr = memory->base + MARGIN;

    if (region && rdt_wait_freed_range(self->conn, addr, memory->bytes, patience(SEC), NULL) != RDT_OK)
        return; /* its daemon has ended or is frozen, and may still write there */
    memset(addr, POISON, memory->bytes);
    memory->poisoned = true;
}

static void fetch(struct self *self, const struct agent_order *order, struct actor *channel, struct agent_report *report)
{
    const struct rdt_ref refs[AGENT_ITEMS] = {order->ref, order->ref, order->ref};
    struct rdt_tensor tensors[2];
    const struct rdt_tensor *targets[AGENT_ITEMS] = {NULL, &tensors[0], &tensors[1]};
    const size_t counts[AGENT_ITEMS] = {0, 1, 1};
    rdt_request *requests[AGENT_ITEMS] = {0};
    struct rdt_error err = {0};

    make_targets(self, order);
    self->fetched_bytes = order->bytes;
    self->fetched_seed = order->seed;
    tensors[0] = VECTOR(RDT_U8, order->bytes, self->plain.base + MARGIN);
    tensors[1] = VECTOR(RDT_U8, order->bytes, self->direct.base + MARGIN);
    struct rdt_fetch_options options = {.struct_size = sizeof options,
                                        .targets = targets,
                                        .target_counts = counts,
                                        .timeout_ns = order->timeout_ns,
                                        .transport = order->transport[0] ? order->transport : NULL};
    enum rdt_status status = rdt_fetch_start(self->conn, refs, AGENT_ITEMS, &options, requests, &err);
    actor_step(channel);
    if (status == RDT_OK && order->cancel_after_ns >= 0) {
        for (unsigned i = 0; i < AGENT_ITEMS; i++)
            (void)rdt_wait(self->conn, &requests[i], 1, 1, i == 0 ? order->cancel_after_ns : 0, NULL, NULL, NULL);
        for (unsigned i = 0; i < AGENT_ITEMS; i++)
            rdt_cancel(requests[i]);
    }
    for (unsigned i = 0; i < AGENT_ITEMS; i++) {
        report->status[i] = status;
        if (status == RDT_OK) {
            report->status[i] = rdt_wait(self->conn, &requests[i], 1, 1, LONG, NULL, NULL, &err);
            if (report->status[i] == RDT_OK)
                report->status[i] = rdt_request_take_object(requests[i], &self->objects[i], &err);
        }
        self->delivered[i] = report->status[i] == RDT_OK;
        if (!self->delivered[i])
            (void)snprintf(report->msg[i], sizeof report->msg[i], "%s", err.msg);
    }
    for (unsigned i = 0; i < AGENT_ITEMS; i++)
        rdt_request_destroy(requests[i]);
    if (!self->delivered[1])
        poison(self, &self->plain, false);
    if (!self->delivered[2])
        poison(self, &self->direct, true);
}

static int run(struct actor *channel, void *arg)
{
    struct self self = {.node = arg};

    self.conn = node_client(self.node, "agent");
    actor_step(channel);
    for (;;) {
        struct agent_order order;
        struct agent_report report = {.right = true};
        struct rdt_error err = {0};
        int64_t start = now_ns();

        actor_recv(channel, &order, sizeof order);
        if (order.verb != AGENT_FETCH && order.verb != AGENT_PUT) /* they report it later */
            actor_step(channel);
        switch (order.verb) {
        case AGENT_PUT:
            put(&self, &order, channel, &report);
            break;
        case AGENT_FETCH:
            fetch(&self, &order, channel, &report);
            break;
        case AGENT_PREPARE:
            make_targets(&self, &order);
            self.prepared = true;
            break;
        case AGENT_HOARD:
            hoard(&self, &report, &err);
            break;
        case AGENT_WAIT_PUT:
            report.status[0] = rdt_wait_put(self.conn, &order.ref, order.timeout_ns, &err);
            break;
        case AGENT_WAIT_FREED:
            report.status[0] = rdt_wait_freed(self.conn, &order.ref, order.timeout_ns, &err);
            break;
        case AGENT_FREE:
            report.status[0] = rdt_free(self.conn, &order.ref, order.force, &err);
            break;
        case AGENT_PUBLISH:
            report.status[0] = rdt_publish(self.conn, order.name, &order.ref, NULL, NULL, &err);
            break;
        case AGENT_UNPUBLISH:
            report.status[0] = rdt_unpublish(self.conn, &order.ref, &err);
            break;
        case AGENT_RELEASE:
        case AGENT_LOOK:
        case AGENT_LEAVE:
            break;
        }
        if (err.msg[0])
            (void)snprintf(report.msg[0], sizeof report.msg[0], "%s", err.msg);
        look(&self, &report);
        if (order.verb == AGENT_RELEASE || order.verb == AGENT_LEAVE)
            release(&self);
        report.elapsed_ns = now_ns() - start;
        actor_send(channel, &report, sizeof report);
        if (order.verb == AGENT_LEAVE)
            break;
    }
    rdt_close(self.conn);
    return 0;
}

/* ---- from outside ---- */

void agent_start(struct agent *agent, const struct test_node *node, const char *name)
{
    *agent = (struct agent){.name = name, .alive = true};
    actor_start(&agent->actor, run, (void *)node);
    actor_await(&agent->actor);
}

void agent_order(struct agent *agent, const struct agent_order *order)
{
    must_say(agent->alive && !agent->frozen && !agent->busy, "the %s can take no order", agent->name);
    actor_send(&agent->actor, order, sizeof *order);
    actor_await(&agent->actor);
    agent->busy = true;
}

void agent_report(struct agent *agent, struct agent_report *report_p)
{
    must_say(agent->alive && agent->busy, "the %s has nothing to report", agent->name);
    actor_recv(&agent->actor, report_p, sizeof *report_p);
    agent->busy = false;
    must_say(report_p->right, "the %s: %s", agent->name, report_p->wrong);
}

void agent_kill(struct agent *agent)
{
    actor_kill(&agent->actor, SIGKILL);
    agent->alive = false;
}

void agent_freeze(struct agent *agent)
{
    actor_freeze(&agent->actor);
    agent->frozen = true;
}

void agent_thaw(struct agent *agent)
{
    actor_thaw(&agent->actor);
    agent->frozen = false;
}

void agent_leave(struct agent *agent)
{
    struct agent_report report;

    if (!agent->alive)
        return;
    if (agent->frozen)
        agent_thaw(agent);
    if (agent->busy)
        agent_report(agent, &report);
    agent_order(agent, &(struct agent_order){.verb = AGENT_LEAVE});
    agent_report(agent, &report);
    agent->alive = false;
    actor_wait(&agent->actor);
}

void agent_send_garbage(const struct test_node *node)
{
    struct raw raw;
    uint8_t noise[256];

    for (unsigned i = 0; i < sizeof noise; i++)
        noise[i] = (uint8_t)(0xff - i);
    raw_connect(&raw, node->socket);
    (void)raw_bytes(&raw, noise, sizeof noise);
    raw_close(&raw);
}
