/* SPDX-License-Identifier: Apache-2.0 */
/* A simulation of fan-out: simulated nodes read one version from one simulated owner, and the daemon's own code
 * (daemon/transfers/fanout.h) decides who reads from whom and who is slow. No daemon runs, and no byte moves.
 *
 *     fanout [-n NODES] [-k OBJECTS] [-s BYTES] [-b BYTES_PER_SECOND] [-l LOSS] [-w SLOW] [-r] [-d DEATHS] [-z FROZEN]
 *            [-a LATE] [-c BUSY] [-t CHANNELS] [-x SEED]
 *
 * Time passes in steps of half a chunk. In each step a node shares its upward bandwidth among the nodes that it sends to, and
 * its downward bandwidth among those that send to it; a reader that cannot take its share leaves it to the others. Between two
 * nodes there are CHANNELS connections, as the transport "stream" has them, which share that bandwidth at random. Each
 * carries one chunk at a time, and one that is free takes the next chunk that the source has. A node passes a chunk on when
 * it has all of it and HOP_NS have passed. What is simulated besides:
 *
 *   LOSS    one of LOSS times 512 KiB is delayed by LOSS_NS, as by a lost packet that TCP notices late, and so is the next
 *           chunk on that connection
 *   SLOW    one of SLOW nodes has a tenth of the bandwidth, both ways; with -r the owner knows them from an earlier version
 *   DEATHS  so many nodes die in the middle; their readers notice after KILL_NS
 *   FROZEN  so many nodes freeze in the middle; their readers notice after FANOUT_SILENCE_NS
 *   BUSY    one of BUSY nodes shares its processors: it stands still for a fifth of the time, BUSY_NS at a time on average
 *   LATE    one of LATE nodes comes late, up to half of the time that one reader needs
 *
 * Prints one line: time of the last healthy node over size / bandwidth; the same of the middle one; bytes that the owner sent
 * and that a node received at most, over the size; how often readers had to ask again, were found to lag or to be slow, and
 * how many of the slow ones are not (wronged). */
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
#define PENDING 32
#define MAX_CHANNELS 4u

enum { MISSING, RECEIVED, VISIBLE }; /* a chunk at a node: a VISIBLE one can be passed on */

struct flow { /* one object on its way to one node */
    struct fanout_place place;
    unsigned object;
    struct node *node, *source; /* source NULL: it asks */
    uint8_t *chunks;            /* [n_chunks] MISSING ... */
    bool *taken;                /* [n_chunks] received from this source or in a channel; true below `next`, too */
    unsigned next;              /* the first chunk that is not taken */
    unsigned n_received, n_visible, visible_end;
    unsigned had_all; /* it had taken all when its source had so many */
    double sent;      /* bytes for it from all sources */
    double asks_at;   /* 0: it does not ask */
    double began;     /* at its source */
    unsigned began_chunks;
    struct channel {
        bool busy;
        unsigned chunk;
        double left, weight, stalled_until;
    } channels[MAX_CHANNELS];
    struct {
        double at;
        unsigned chunk;
    } pending[PENDING]; /* chunks that become visible */
    unsigned n_pending;
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
    struct fanout_intake *intake; /* apart: the nodes are walked in each step */
    unsigned n_sharing;           /* readers that read from it */
    struct flow *flows;
};

static unsigned n_nodes = 8, n_objects = 1, n_slow_of, n_deaths, n_frozen, n_late_of, n_busy_of, seed = 1, loss_of;
static double size = 4294967296.0, bandwidth = 1.25e9;
static bool remembered;
static unsigned n_channels = 1, n_chunks;

static struct node *nodes; /* [n_nodes + 1]; the last is the owner */
static struct node *owner;
static struct fanout *objects;
static double chunk, object_bytes, now_ns, step_ns;
static unsigned asked_again, found_slow, lagged, wronged;

/* A node that has all stands still as soon as its last chunks can be passed on. */
static bool is_active(const struct node *node)
{
    return node->come && (node->done_at == 0 || now_ns <= node->done_at + 2 * (HOP_NS + LOSS_NS));
}

#define each_flow(flow)                                                                                                      \
    for (unsigned i_ = 0; i_ < n_nodes; i_++)                                                                                \
        for (struct flow *flow = is_active(&nodes[i_]) ? nodes[i_].flows : NULL; flow && flow < nodes[i_].flows + n_objects; \
             flow++)

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
    flow->source = NULL;
    for (unsigned i = 0; i < n_channels; i++)
        flow->channels[i] = (struct channel){0};
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
    source = fanout_choose(&flow->place, can_read, on_ask_again, NULL);
    flow->source = source ? flow_of(source)->node : owner;
    flow->pace = (struct fanout_pace){0};
    flow->began = now_ns;
    for (flow->next = 0; flow->next < n_chunks && flow->chunks[flow->next] != MISSING; flow->next++)
        ;
    flow->n_received = flow->began_chunks = flow->next;
    memset(flow->taken, 0, n_chunks * sizeof *flow->taken);
    flow->had_all = n_chunks + 1;
}

static unsigned has(const struct flow *flow) /* chunks that the flow's source could send */
{
    return flow->source == owner ? n_chunks : flow->source->flows[flow->object].n_visible;
}

static bool source_has(const struct flow *flow, unsigned i)
{
    return flow->source == owner || flow->source->flows[flow->object].chunks[i] == VISIBLE;
}

/* The next chunk that the source can send; n_chunks: none. */
static unsigned next_chunk(struct flow *flow)
{
    unsigned end = flow->source == owner ? n_chunks : flow->source->flows[flow->object].visible_end;

    if (flow->had_all == has(flow)) /* Nothing has come since. */
        return n_chunks;
    while (flow->next < n_chunks && flow->taken[flow->next])
        flow->next++;
    for (unsigned i = flow->next; i < end; i++)
        if (!flow->taken[i] && source_has(flow, i))
            return i;
    flow->had_all = has(flow);
    return n_chunks;
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
        double sent = (other->n_received - other->began_chunks) * chunk;
        if (other != flow && other->source == owner && sent >= FANOUT_RATE_CHUNKS * chunk &&
            sent / (now_ns - other->began) * 1e9 > rate)
            rate = sent / (now_ns - other->began) * 1e9;
    }
    return (uint64_t)rate;
}

/* Counts the readers that share each source, without those that it has found to take little. */
static void count_sharing(void)
{
    for (unsigned i = 0; i <= n_nodes; i++)
        nodes[i].n_sharing = 0;
    each_flow(flow) if (flow->source && !flow->done && !flow->node->dead && flow->pace.told == FANOUT_FAIR)
        flow->source->n_sharing++;
}

static enum fanout_verdict judge(struct flow *flow)
{
    struct fanout_seen seen = {.at = {.since_ns = (uint64_t)now_ns,
                                      .had = (uint64_t)(has(flow) * chunk),
                                      .sent = (uint64_t)(flow->n_received * chunk),
                                      .received = flow->source->intake->bytes,
                                      .sent_all = (uint64_t)flow->source->sent},
                               .usual = usual(flow),
                               .sharing = flow->source->n_sharing + (flow->pace.told != FANOUT_FAIR),
                               .chunk_bytes = (uint64_t)chunk};
    enum fanout_verdict verdict = fanout_pace(&flow->pace, &seen);
    uint64_t over_ns = flow->pace.over_ns, received;

    if (!flow->pace.ask)
        return verdict;
    flow->pace.ask = false;
    received = fanout_received_in(flow->node->intake, (uint64_t)now_ns, &over_ns);
    return fanout_answered(&flow->pace, over_ns, received);
}

static void review(void)
{
    count_sharing();
    each_flow(flow)
    {
        enum fanout_verdict verdict;
        if (!flow->source || flow->source->dead || flow->node->dead)
            continue;
        verdict = judge(flow);
        if (flow->source == owner && !remembered && !flow->done)
            fanout_compare(&flow->place, (uint64_t)(flow->n_received * chunk), on_ask_again, NULL);
        if (verdict == FANOUT_FAIR)
            continue;
        found_slow += verdict == FANOUT_SLOW;
        lagged += verdict == FANOUT_LAGS;
        wronged += verdict == FANOUT_SLOW && !flow->node->slow;
        if (verdict == FANOUT_SLOW)
            flow->node->known_slow = true;
        for (unsigned k = 0; k < n_objects; k++) /* It is about the node. */
            if (!flow->node->flows[k].done)
                fanout_demote(&flow->node->flows[k].place, verdict, on_ask_again, NULL);
    }
}

/* ---- one step ---- */

/* Gives each channel that is free a chunk. False: no channel moves. */
static bool fill_channels(struct flow *flow)
{
    bool moves = false;

    for (unsigned i = 0; i < n_channels; i++) {
        struct channel *channel = &flow->channels[i];
        if (!channel->busy) {
            unsigned next = next_chunk(flow);
            if (next == n_chunks)
                continue;
            flow->taken[next] = true;
            channel->busy = true;
            channel->chunk = next;
            channel->left = next == n_chunks - 1 ? object_bytes - chunk * (n_chunks - 1) : chunk;
            channel->weight = 0.5 + chance();
        }
        moves = moves || channel->stalled_until <= now_ns;
    }
    return moves;
}

static bool can_move(struct flow *flow)
{
    return flow->source && !flow->done && !flow->source->dead && !flow->node->dead && !flow->source->away &&
           !flow->node->away && fill_channels(flow);
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

static void chunk_arrived(struct flow *flow, struct channel *channel)
{
    channel->busy = false;
    flow->node->turn = (flow->object + 1) % n_objects;
    if (loss_of > 0 && chance() * loss_of * LOSS_BYTES < chunk)
        channel->stalled_until = now_ns + LOSS_NS;
    flow->n_received++;
    if (flow->chunks[channel->chunk] == MISSING) {
        flow->chunks[channel->chunk] = RECEIVED;
        if (flow->n_pending == PENDING)
            exit(3);
        flow->pending[flow->n_pending].at = now_ns + HOP_NS + (channel->stalled_until > now_ns ? LOSS_NS : 0);
        flow->pending[flow->n_pending++].chunk = channel->chunk;
    }
    if (flow->n_received == n_chunks)
        finish(flow);
}

/* Channels share what the flow gets. */
static void arrive(struct flow *flow, double bytes)
{
    while (bytes > 0.5 && !flow->done && fill_channels(flow)) {
        double weights = 0, part = bytes;
        for (unsigned i = 0; i < n_channels; i++)
            if (flow->channels[i].busy && flow->channels[i].stalled_until <= now_ns)
                weights += flow->channels[i].weight;
        for (unsigned i = 0; i < n_channels; i++) /* until the first of them has its chunk */
            if (flow->channels[i].busy && flow->channels[i].stalled_until <= now_ns &&
                flow->channels[i].left * weights / flow->channels[i].weight < part)
                part = flow->channels[i].left * weights / flow->channels[i].weight;
        bytes -= part;
        flow->source->sent += part;
        flow->sent += part;
        fanout_received(flow->node->intake, (uint64_t)now_ns, (uint64_t)part);
        for (unsigned i = 0; i < n_channels && !flow->done; i++) {
            struct channel *channel = &flow->channels[i];
            if (!channel->busy || channel->stalled_until > now_ns)
                continue;
            channel->left -= part * channel->weight / weights;
            if (channel->left < 0.5)
                chunk_arrived(flow, channel);
        }
    }
}

static void pass_on(struct flow *flow)
{
    for (unsigned i = 0; i < flow->n_pending;)
        if (flow->pending[i].at <= now_ns) {
            unsigned at = flow->pending[i].chunk;
            flow->chunks[at] = VISIBLE;
            flow->n_visible++;
            flow->visible_end = at + 1 > flow->visible_end ? at + 1 : flow->visible_end;
            flow->pending[i] = flow->pending[--flow->n_pending];
        } else {
            i++;
        }
}

static void move(void)
{
    bool more = true;

    for (unsigned i = 0; i <= n_nodes; i++)
        nodes[i].n_out = 0;
    for (unsigned i = 0; i < n_nodes; i++)
        if (is_active(&nodes[i]))
            open_connections(&nodes[i]);
    for (unsigned i = 0; i <= n_nodes; i++) {
        nodes[i].left = nodes[i].up;
        nodes[i].n_open = nodes[i].n_out;
    }
    for (unsigned pass = 0; pass < 3 && more; pass++) { /* Readers that take less than a share leave the rest to the others. */
        more = false;
        each_flow(flow) if (flow->chosen && flow->source->n_open > 0 && wants(flow) < flow->source->left / flow->source->n_open)
        {
            flow->source->left -= wants(flow);
            flow->source->n_open--;
            flow->chosen = NULL;
            arrive(flow, wants(flow) * step_ns / 1e9);
            more = true;
        }
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
            bytes += nodes[i].flows[k].sent;
        most = bytes > most ? bytes : most;
        if (nodes[i].dead || nodes[i].slow)
            continue;
        unfinished += nodes[i].done_at == 0;
        took[n++] = (nodes[i].done_at - nodes[i].comes_at) / bound;
    }
    qsort(took, n, sizeof *took, compare);
    printf("simulated nodes=%u objects=%u last=%.2f middle=%.2f owner_sent=%.2f node_received=%.3f asked_again=%u "
           "lagged=%u found_slow=%u wronged=%u unfinished=%u\n",
           n_nodes, n_objects, n ? took[n - 1] : 0, n ? took[n / 2] : 0, owner->sent / size, most / size, asked_again, lagged,
           found_slow, wronged, unfinished);
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
    n_chunks = (unsigned)((object_bytes + chunk - 1) / chunk);
    for (unsigned k = 0; k < n_objects; k++)
        fanout_init(&objects[k], (uint64_t)object_bytes, (uint64_t)chunk);
    for (unsigned i = 0; i <= n_nodes; i++) {
        nodes[i].up = nodes[i].down = bandwidth;
        nodes[i].intake = calloc(1, sizeof *nodes[i].intake);
        nodes[i].flows = i < n_nodes ? calloc(n_objects, sizeof *nodes[i].flows) : NULL;
        for (unsigned k = 0; i < n_nodes && k < n_objects; k++) {
            nodes[i].flows[k].chunks = calloc(n_chunks, 1);
            nodes[i].flows[k].taken = calloc(n_chunks, sizeof(bool));
        }
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

/* The options with a whole number. */
static const struct {
    char letter;
    unsigned *number;
} options[] = {{'n', &n_nodes},  {'k', &n_objects}, {'l', &loss_of},   {'w', &n_slow_of},  {'d', &n_deaths},
               {'z', &n_frozen}, {'a', &n_late_of}, {'c', &n_busy_of}, {'t', &n_channels}, {'x', &seed}};

int main(int argc, char **argv)
{
    int option;

    while ((option = getopt(argc, argv, "n:k:s:b:l:w:rd:z:a:c:x:t:")) != -1) {
        double number = optarg ? strtod(optarg, NULL) : 0;
        if (option == '?')
            return 2;
        if (option == 'r')
            remembered = true;
        else if (option == 's')
            size = number;
        else if (option == 'b')
            bandwidth = number;
        for (size_t i = 0; i < sizeof options / sizeof *options; i++)
            if (options[i].letter == option)
                *options[i].number = (unsigned)number;
    }
    set_up();
    simulate();
    report();
    return 0;
}
