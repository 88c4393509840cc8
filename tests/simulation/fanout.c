/* SPDX-License-Identifier: Apache-2.0 */
/* A simulation of fan-out: simulated nodes read one version from one simulated owner, and the daemon's own code
 * (daemon/transfers/fanout.h) decides who reads from whom and who is slow. No daemon runs, and no byte moves.
 *
 *     fanout [-n NODES] [-k OBJECTS] [-s BYTES] [-b BYTES_PER_SECOND] [-l LOSS] [-w SLOW] [-r] [-d DEATHS] [-z FROZEN]
 *            [-a LATE] [-c BUSY] [-x SEED] [-p]
 *
 * Time passes in steps of half a chunk. In each step a node shares its upward bandwidth among the nodes that it sends to, and
 * its downward bandwidth among those that send to it; a reader that cannot take its share leaves it to the others. A node
 * passes a chunk on when it has all of it and HOP_NS have passed. What is simulated besides:
 *
 *   LOSS    one of LOSS times 512 KiB is delayed by LOSS_NS, as by a lost packet that TCP notices late
 *   SLOW    one of SLOW nodes has a tenth of the bandwidth, both ways; with -r the owner knows them from an earlier version
 *   DEATHS  so many nodes die in the middle; their readers notice after KILL_NS
 *   FROZEN  so many nodes freeze in the middle; their readers notice after FANOUT_SILENCE_NS
 *   BUSY    one of BUSY nodes shares its processors: it stands still for a fifth of the time, BUSY_NS at a time on average
 *   LATE    one of LATE nodes comes late, up to half of the time that one reader needs
 *
 * Prints one line: time of the last healthy node over size / bandwidth; the same of the middle one; bytes that the owner sent
 * and that a node received at most, over the size; how often readers had to ask again. With -p a second line says where the
 * time of the last node went: from its last byte back to the owner's first, always to the node that the next one waited for. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/transfers/fanout.h"

#define HOP_NS 100000.0  /* from the last byte of a chunk until the next node can send it */
#define ASK_NS 1000000.0 /* asking the owner again, and beginning at the new source */
#define LOSS_NS 5000000.0
#define KILL_NS 5000000.0
#define BUSY_NS 10000000.0
#define REVIEW_NS 1000000.0
#define LOSS_BYTES 524288.0
#define PENDING 8

struct flow { /* one object on its way to one node */
    struct fanout_place place;
    unsigned object;
    struct node *node, *source; /* source NULL: it asks */
    double bytes, visible;      /* received; whole chunks that it can pass on */
    double wasted;              /* received twice */
    double asks_at;             /* 0: it does not ask */
    double stalled_until;
    double began, began_bytes; /* at its source */
    struct {
        double at, bytes;
    } pending[PENDING]; /* chunks that become visible */
    unsigned first, n;
    struct fanout_pace pace;
    bool done;
    double done_at;
    struct flow *chosen; /* scratch: whether this flow's connection carries it in this step */
};

struct node {
    double up, down, comes_at, ends_at, done_at; /* ends_at: dies or freezes; 0: does not */
    double turns_at;                             /* busy: its processors go to others, or come back */
    bool slow, known_slow, busy, away, frozen, dead, come;
    unsigned turn, n_in, n_out;
    double left; /* scratch: upward bandwidth that no reader has taken */
    unsigned n_open;
    double sent;
    struct flow *flows;
};

static unsigned n_nodes = 8, n_objects = 1, n_slow_of, n_deaths, n_frozen, n_late_of, n_busy_of, seed = 1, loss_of;
static double size = 4294967296.0, bandwidth = 1.25e9;
static bool remembered;

static struct node *nodes; /* [n_nodes + 1]; the last is the owner */
static struct node *owner;
static struct fanout *objects;
static double chunk, object_bytes, now_ns, step_ns;
static unsigned asked_again, found_slow, lagged;

/* With -p: what each node did in each step, and from which node it received. */
enum { MOVES, SHARES, SLOW_MOVES, STALLS, ASKS, LEFT_ALONE, AWAY, WAITS, N_STATES };
static const char *const state_names[N_STATES] = {"moves", "moves_at_a_share", "moves_slowly",      "lost_packet",
                                                  "asks",  "source_is_gone",   "processor_is_away", "waits"};
struct moment {
    uint8_t state;
    uint16_t source;
};
static bool explains;
static struct moment *history; /* [n_steps][n_nodes] */
static size_t n_steps;

static double chance(void)
{
    return (double)rand_r(&seed) / ((double)RAND_MAX + 1);
}

static struct flow *flow_of(struct fanout_place *place)
{
    return container_of(place, struct flow, place);
}

static bool can_read(const struct fanout_place *reader, const struct fanout_place *source, void *arg)
{
    (void)reader, (void)arg;
    return !container_of(source, struct flow, place)->node->dead;
}

static void ask_at(struct flow *flow, double at)
{
    if (flow->done || flow->node->dead || (flow->asks_at > 0 && flow->asks_at <= at))
        return;
    flow->wasted += flow->bytes - (double)(uint64_t)(flow->bytes / chunk) * chunk;
    flow->bytes -= flow->bytes - (double)(uint64_t)(flow->bytes / chunk) * chunk;
    flow->source = NULL;
    flow->asks_at = at;
}

static void on_ask_again(struct fanout_place *place, void *arg)
{
    (void)arg;
    if (flow_of(place)->node->dead)
        return;
    asked_again++;
    ask_at(flow_of(place), now_ns + ASK_NS);
}

static void choose(struct flow *flow)
{
    struct fanout_place *source;

    if (flow->asks_at > 0)
        fanout_left(&flow->place, on_ask_again, NULL);
    flow->asks_at = 0;
    source = fanout_choose(&flow->place, can_read, NULL);
    flow->source = source ? flow_of(source)->node : owner;
    flow->pace = (struct fanout_pace){0};
    flow->began = now_ns;
    flow->began_bytes = flow->bytes;
}

static double has(const struct flow *flow) /* what the flow's source could send */
{
    return flow->source == owner ? object_bytes : flow->source->flows[flow->object].visible;
}

/* ---- events ---- */

static void come(struct node *node)
{
    node->come = true;
    for (unsigned k = 0; k < n_objects; k++) {
        struct flow *flow = &node->flows[k];
        flow->node = node;
        flow->object = k;
        fanout_join(&objects[k], &flow->place, node->known_slow);
        choose(flow);
    }
}

static void end(struct node *node)
{
    node->dead = true;
    for (unsigned k = 0; k < n_objects; k++) {
        for (unsigned i = 0; i < n_nodes; i++) {
            struct flow *flow = &nodes[i].flows[k];
            if (!nodes[i].come || flow->source != node || flow->done || nodes[i].dead)
                continue;
            asked_again++;
            ask_at(flow, now_ns + (node->frozen ? (double)FANOUT_SILENCE_NS : KILL_NS) + ASK_NS);
        }
        if (!node->frozen)
            fanout_leave(&node->flows[k].place);
    }
}

static void finish(struct flow *flow)
{
    bool all = true;

    flow->done = true;
    flow->done_at = now_ns;
    flow->source = NULL;
    fanout_set_whole(&flow->place);
    for (unsigned k = 0; k < n_objects; k++)
        all = all && flow->node->flows[k].done;
    if (all)
        flow->node->done_at = now_ns;
}

/* The readers of the flow's object that share its source, without those that the source has found to take little. */
static unsigned n_readers(const struct flow *flow)
{
    const struct list *readers =
        flow->source == owner ? &objects[flow->object].direct : &flow->source->flows[flow->object].place.readers;
    unsigned n = 0;

    list_for_each (node, readers)
        n += flow_of(container_of(node, struct fanout_place, by_source))->pace.told == FANOUT_FAIR;
    return n;
}

/* What the flow could take from its source, as that knows from an earlier version, from how the bytes came, or from its other
 * reader; 0: as much as comes there. */
static uint64_t usual(const struct flow *flow)
{
    double rate = remembered ? bandwidth / n_objects : 0;

    if (flow->source != owner) {
        const struct flow *there = &flow->source->flows[flow->object];
        return there->done ? (uint64_t)(object_bytes / (there->done_at - there->node->comes_at) * 1e9) : 0;
    }
    list_for_each (node, &objects[flow->object].direct) {
        const struct flow *other = flow_of(container_of(node, struct fanout_place, by_source));
        double sent = other->bytes - other->began_bytes;
        if (other != flow && other->source == owner && sent >= FANOUT_RATE_CHUNKS * chunk &&
            sent / (now_ns - other->began) * 1e9 > rate)
            rate = sent / (now_ns - other->began) * 1e9;
    }
    return (uint64_t)rate;
}

static void review(void)
{
    for (unsigned i = 0; i < n_nodes; i++)
        for (unsigned k = 0; k < n_objects && nodes[i].come; k++) {
            struct flow *flow = &nodes[i].flows[k];
            enum fanout_verdict verdict;
            if (!flow->source || flow->source->dead || nodes[i].dead)
                continue;
            verdict = fanout_pace(&flow->pace, (uint64_t)now_ns, (uint64_t)has(flow), (uint64_t)flow->bytes, usual(flow),
                                  n_readers(flow), (uint64_t)chunk);
            if (flow->source == owner && !remembered && !flow->done)
                fanout_compare(&flow->place, (uint64_t)flow->bytes, on_ask_again, NULL);
            if (verdict == FANOUT_FAIR)
                continue;
            found_slow += verdict == FANOUT_SLOW;
            lagged += verdict == FANOUT_LAGS;
            if (verdict == FANOUT_SLOW)
                nodes[i].known_slow = true;
            for (unsigned j = 0; j < n_objects; j++)
                if (!nodes[i].flows[j].done)
                    fanout_demote(&nodes[i].flows[j].place, verdict, on_ask_again, NULL);
        }
}

/* ---- one step ---- */

static bool can_move(const struct flow *flow)
{
    return flow->source && !flow->done && !flow->source->dead && !flow->node->dead && !flow->source->away &&
           !flow->node->away && flow->stalled_until <= now_ns && flow->bytes < has(flow);
}

/* Each connection carries one chunk at a time, of its objects in turn. */
static void open_connections(struct node *node)
{
    node->n_in = 0;
    for (unsigned i = 0; i < n_objects; i++) {
        struct flow *flow = &node->flows[(node->turn + i) % n_objects];
        bool taken = !can_move(flow);
        for (unsigned j = 0; j < i && !taken; j++) {
            const struct flow *other = &node->flows[(node->turn + j) % n_objects];
            taken = other->chosen && other->source == flow->source;
        }
        flow->chosen = taken ? NULL : flow;
        if (!taken) {
            node->n_in++;
            flow->source->n_out++;
        }
    }
}

static double wants(const struct flow *flow)
{
    return flow->node->down / flow->node->n_in;
}

static void arrive(struct flow *flow, double bytes)
{
    double limit = has(flow), before = (double)(uint64_t)(flow->bytes / chunk), after;

    bytes = bytes < limit - flow->bytes ? bytes : limit - flow->bytes;
    flow->source->sent += bytes;
    flow->bytes += bytes;
    after = (double)(uint64_t)((flow->bytes + 0.5) / chunk);
    if (after > before || flow->bytes + 0.5 >= object_bytes) {
        flow->node->turn = (flow->object + 1) % n_objects;
        if (loss_of > 0 && chance() * loss_of * LOSS_BYTES < chunk)
            flow->stalled_until = now_ns + LOSS_NS;
        if (flow->n < PENDING) {
            unsigned slot = (flow->first + flow->n++) % PENDING;
            flow->pending[slot].at = now_ns + HOP_NS + (flow->stalled_until > now_ns ? LOSS_NS : 0);
            flow->pending[slot].bytes = flow->bytes + 0.5 >= object_bytes ? object_bytes : after * chunk;
        }
    }
    if (flow->bytes + 0.5 >= object_bytes)
        finish(flow);
}

/* Before bytes move: what the node will do in this step. */
static void note(const struct node *node, struct moment *moment)
{
    const struct flow *flow = node->flows;
    const struct node *source = flow->source;

    moment->source = (uint16_t)(source ? source - nodes : owner - nodes);
    moment->state = node->slow ? SLOW_MOVES : MOVES;
    if (!source)
        moment->state = ASKS;
    else if (source->dead)
        moment->state = LEFT_ALONE;
    else if (source->away || node->away)
        moment->state = AWAY;
    else if (flow->stalled_until > now_ns)
        moment->state = STALLS;
    else if (flow->bytes >= has(flow))
        moment->state = WAITS;
    else if (source->n_out > 1)
        moment->state = SHARES;
}

static void note_all(void)
{
    struct moment *row;

    if (!explains)
        return;
    history = realloc(history, (n_steps + 1) * n_nodes * sizeof *history);
    if (!history)
        exit(2);
    row = &history[n_steps++ * n_nodes];
    for (unsigned i = 0; i < n_nodes; i++)
        if (nodes[i].come && !nodes[i].flows->done)
            note(&nodes[i], &row[i]);
}

static void print_path(void)
{
    unsigned last = n_nodes, hops = 0;
    double in[N_STATES] = {0};

    for (unsigned i = 0; explains && i < n_nodes; i++)
        if (!nodes[i].dead && !nodes[i].slow && (last == n_nodes || nodes[i].done_at > nodes[last].done_at))
            last = i;
    if (last == n_nodes)
        return;
    for (size_t step = (size_t)(nodes[last].done_at / step_ns); step-- > 0;) {
        const struct moment *moment = &history[step * n_nodes + last];
        while (moment->state == WAITS && moment->source != owner - nodes && nodes[moment->source].flows->bytes > 0 &&
               (nodes[moment->source].done_at == 0 || nodes[moment->source].done_at > (double)step * step_ns)) {
            last = moment->source;
            moment = &history[step * n_nodes + last];
            hops++;
        }
        in[moment->state] += step_ns;
    }
    printf("path hops=%u", hops);
    for (unsigned i = 0; i < N_STATES; i++)
        printf(" %s=%.3f", state_names[i], in[i] / (size / bandwidth * 1e9));
    printf("\n");
}

static void pass_on(struct flow *flow)
{
    while (flow->n > 0 && flow->pending[flow->first].at <= now_ns) {
        flow->visible = flow->pending[flow->first].bytes;
        flow->first = (flow->first + 1) % PENDING;
        flow->n--;
    }
}

#define each_flow(flow)                       \
    for (unsigned i_ = 0; i_ < n_nodes; i_++) \
        for (struct flow *flow = nodes[i_].come ? nodes[i_].flows : NULL; flow && flow < nodes[i_].flows + n_objects; flow++)

static void move(void)
{
    for (unsigned i = 0; i <= n_nodes; i++)
        nodes[i].n_out = 0;
    for (unsigned i = 0; i < n_nodes; i++)
        if (nodes[i].come)
            open_connections(&nodes[i]);
    for (unsigned i = 0; i <= n_nodes; i++) {
        nodes[i].left = nodes[i].up;
        nodes[i].n_open = nodes[i].n_out;
    }
    note_all();
    for (unsigned pass = 0; pass < 3; pass++) /* Readers that take less than a share leave the rest to the others. */
        each_flow(flow) if (flow->chosen && flow->source->n_open > 0 && wants(flow) < flow->source->left / flow->source->n_open)
        {
            flow->source->left -= wants(flow);
            flow->source->n_open--;
            flow->chosen = NULL;
            arrive(flow, wants(flow) * step_ns / 1e9);
        }
    each_flow(flow) if (flow->chosen)
    {
        struct node *source = flow->source;
        double rate = source->left / (source->n_open ? source->n_open : 1);
        flow->chosen = NULL;
        arrive(flow, (wants(flow) < rate ? wants(flow) : rate) * step_ns / 1e9);
    }
    each_flow(flow) pass_on(flow);
}

static bool busy(void)
{
    for (unsigned i = 0; i < n_nodes; i++)
        if (!nodes[i].dead && nodes[i].done_at == 0)
            return true;
    return false;
}

static void simulate(void)
{
    double review_at = 0;

    for (; busy() && now_ns < 200e9 * size / bandwidth; now_ns += step_ns) {
        for (unsigned i = 0; i < n_nodes; i++) {
            if (!nodes[i].come && nodes[i].comes_at <= now_ns)
                come(&nodes[i]);
            if (nodes[i].come && !nodes[i].dead && nodes[i].ends_at > 0 && nodes[i].ends_at <= now_ns)
                end(&nodes[i]);
            if (nodes[i].busy && nodes[i].turns_at <= now_ns) {
                nodes[i].away = !nodes[i].away;
                nodes[i].turns_at = now_ns + chance() * 2 * BUSY_NS * (nodes[i].away ? 1 : 4);
            }
        }
        each_flow(flow) if (flow->asks_at > 0 && flow->asks_at <= now_ns && !flow->node->dead) choose(flow);
        move();
        if (now_ns >= review_at) {
            review();
            review_at = now_ns + REVIEW_NS;
        }
    }
}

/* ---- the line ---- */

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void report(void)
{
    double *took = calloc(n_nodes + 1, sizeof *took), most = 0, bound = size / bandwidth * 1e9;
    unsigned n = 0, unfinished = 0;

    for (unsigned i = 0; i < n_nodes; i++) {
        double bytes = 0;
        for (unsigned k = 0; k < n_objects; k++)
            bytes += nodes[i].flows[k].bytes + nodes[i].flows[k].wasted;
        most = bytes > most ? bytes : most;
        if (nodes[i].dead || nodes[i].slow)
            continue;
        unfinished += nodes[i].done_at == 0;
        took[n++] = (nodes[i].done_at - nodes[i].comes_at) / bound;
    }
    qsort(took, n, sizeof *took, compare);
    printf("simulated nodes=%u objects=%u last=%.2f middle=%.2f owner_sent=%.2f node_received=%.3f asked_again=%u "
           "lagged=%u found_slow=%u unfinished=%u\n",
           n_nodes, n_objects, n ? took[n - 1] : 0, n ? took[n / 2] : 0, owner->sent / size, most / size, asked_again, lagged,
           found_slow, unfinished);
    free(took);
}

static void set_up(void)
{
    nodes = calloc(n_nodes + 1u, sizeof *nodes);
    objects = calloc(n_objects, sizeof *objects);
    if (!nodes || !objects)
        exit(2);
    owner = &nodes[n_nodes];
    object_bytes = size / n_objects;
    chunk = (double)fanout_chunk_bytes((uint64_t)object_bytes, UINT64_C(4) << 20);
    step_ns = chunk / bandwidth * 1e9 / 2;
    for (unsigned k = 0; k < n_objects; k++)
        fanout_init(&objects[k], (uint64_t)object_bytes, (uint64_t)chunk);
    for (unsigned i = 0; i <= n_nodes; i++) {
        nodes[i].up = nodes[i].down = bandwidth;
        nodes[i].flows = i < n_nodes ? calloc(n_objects, sizeof *nodes[i].flows) : NULL;
        if (i < n_nodes && !nodes[i].flows)
            exit(2);
    }
    for (unsigned i = 0; n_slow_of && i < n_nodes / n_slow_of; i++) {
        struct node *node = &nodes[(unsigned)(chance() * n_nodes)];
        if (node->slow) {
            i--;
            continue;
        }
        node->slow = true;
        node->known_slow = remembered;
        node->up = node->down = bandwidth / 10;
    }
    for (unsigned i = 0; i < n_deaths + n_frozen; i++) {
        struct node *node = &nodes[(unsigned)(chance() * n_nodes)];
        if (node->slow || node->ends_at > 0) {
            i--;
            continue;
        }
        node->ends_at = (0.2 + 0.6 * chance()) * size / bandwidth * 1e9;
        node->frozen = i >= n_deaths;
    }
    for (unsigned i = 0; n_late_of && i < n_nodes; i++)
        if (chance() * n_late_of < 1)
            nodes[i].comes_at = chance() * 0.5 * size / bandwidth * 1e9;
    for (unsigned i = 0; n_busy_of && i < n_nodes; i++)
        nodes[i].busy = chance() * n_busy_of < 1;
}

int main(int argc, char **argv)
{
    int option;

    while ((option = getopt(argc, argv, "n:k:s:b:l:w:rd:z:a:c:x:p")) != -1) {
        double number = optarg ? strtod(optarg, NULL) : 0;
        switch (option) {
        case 'n':
            n_nodes = (unsigned)number;
            break;
        case 'k':
            n_objects = (unsigned)number;
            break;
        case 's':
            size = number;
            break;
        case 'b':
            bandwidth = number;
            break;
        case 'l':
            loss_of = (unsigned)number;
            break;
        case 'w':
            n_slow_of = (unsigned)number;
            break;
        case 'r':
            remembered = true;
            break;
        case 'd':
            n_deaths = (unsigned)number;
            break;
        case 'z':
            n_frozen = (unsigned)number;
            break;
        case 'a':
            n_late_of = (unsigned)number;
            break;
        case 'c':
            n_busy_of = (unsigned)number;
            break;
        case 'p':
            explains = n_objects == 1;
            break;
        case 'x':
            seed = (unsigned)number;
            break;
        default:
            return 2;
        }
    }
    set_up();
    simulate();
    report();
    print_path();
    return 0;
}
