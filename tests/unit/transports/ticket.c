/* SPDX-License-Identifier: Apache-2.0 */
/* Queue tickets: which ticket comes up next, the messages of both ends, and a model of many nodes in which no schedule may
 * make transfers block each other.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/transports/ticket.h"

/* ---- one node ---- */

static struct tickets tickets;
static unsigned n_ready;
static struct rdt_error err;

struct end {
    struct ticket ticket;
    unsigned n_posts, n_sent[4];
};

static void on_ready(struct tickets *t)
{
    cr_assert_eq(t, &tickets);
    n_ready++;
}

static void on_send(struct ticket *ticket, enum ticket_message message)
{
    ((struct end *)ticket)->n_sent[message]++;
}

static void post(struct ticket *ticket)
{
    ((struct end *)ticket)->n_posts++;
}

static const struct ticket_events events = {on_send, post};

static void setup(void)
{
    tickets_init(&tickets, on_ready);
}

static void teardown(void)
{
    tickets_fini(&tickets);
}

TestSuite(ticket, .init = setup, .fini = teardown);

static void make(struct end *end, bool owner, bool first, const char *const *queues, unsigned n)
{
    memset(end, 0, sizeof *end);
    cr_assert_eq(ticket_init(&end->ticket, &tickets, &events, owner, first, "t", queues, n, &err), RDT_OK);
}

static const char *const a[] = {"a"}, *const b[] = {"b"}, *const ab[] = {"a", "b"};

/* An owner on the first node, which queues at once. */
static void queue_up(struct end *end, const char *const *queues, unsigned n)
{
    make(end, true, true, queues, n);
    ticket_begin(&end->ticket);
}

static bool holds(const struct end *end)
{
    return end->n_sent[TICKET_TAKEN] == 1;
}

static void receive(struct end *end, enum ticket_message message)
{
    cr_assert_eq(ticket_receive(&end->ticket, message, &err), RDT_OK, "%s", err.msg);
}

/* The end whose ticket has come up posts all its operations. */
static void posts_all(struct end *end)
{
    receive(end, TICKET_RECEIVES);
    cr_assert_eq(end->n_posts, 1);
    ticket_give(&end->ticket);
}

Test(ticket, smaller_uuid_goes_first)
{
    const uint8_t low[16] = {1, 0xff}, high[16] = {2};

    cr_assert(ticket_is_first(low, high));
    cr_assert_not(ticket_is_first(high, low));
}

Test(ticket, first_owner_takes_its_ticket_and_sends_after_receives_are_posted)
{
    struct end owner, reader;

    make(&reader, false, false, b, 1);
    queue_up(&owner, a, 1);
    cr_assert(holds(&owner) && owner.n_posts == 0);
    receive(&reader, TICKET_TAKEN);
    cr_assert(reader.n_posts == 1 && reader.n_sent[TICKET_TAKEN] == 0);
    ticket_receives_posted(&reader.ticket);
    cr_assert_eq(reader.n_sent[TICKET_RECEIVES], 1);
    receive(&owner, TICKET_RECEIVES);
    cr_assert_eq(owner.n_posts, 1);
    ticket_leave(&owner.ticket);
    ticket_leave(&reader.ticket);
}

Test(ticket, first_reader_posts_when_the_owner_has_its_ticket)
{
    struct end owner, reader;

    make(&reader, false, true, b, 1);
    make(&owner, true, false, a, 1);
    ticket_begin(&owner.ticket);
    cr_assert(owner.n_sent[TICKET_READY] == 1 && !holds(&owner));
    receive(&reader, TICKET_READY);
    cr_assert(holds(&reader) && reader.n_posts == 0);
    receive(&owner, TICKET_TAKEN);
    cr_assert(holds(&owner) && owner.n_posts == 0);
    receive(&reader, TICKET_TAKEN);
    cr_assert_eq(reader.n_posts, 1);
    ticket_receives_posted(&reader.ticket);
    receive(&owner, TICKET_RECEIVES);
    cr_assert_eq(owner.n_posts, 1);
    ticket_leave(&owner.ticket);
    ticket_leave(&reader.ticket);
}

Test(ticket, tickets_come_up_in_order)
{
    struct end e[4];

    for (unsigned i = 0; i < 4; i++)
        queue_up(&e[i], a, 1);
    for (unsigned i = 0; i < 4; i++) {
        cr_assert(holds(&e[i]));
        cr_assert(i == 3 || !holds(&e[i + 1]), "two tickets have come up");
        posts_all(&e[i]);
        ticket_leave(&e[i].ticket);
        tickets_run(&tickets);
    }
}

/* ticket_give and ticket_leave call no events but on_ready, because their caller may be ending a transfer. */
Test(ticket, next_ticket_comes_up_in_tickets_run_only)
{
    struct end e[2];

    queue_up(&e[0], a, 1);
    queue_up(&e[1], a, 1);
    posts_all(&e[0]);
    cr_assert(n_ready == 1 && !holds(&e[1]));
    tickets_run(&tickets);
    cr_assert(holds(&e[1]));
    ticket_leave(&e[0].ticket);
    ticket_leave(&e[1].ticket);
    cr_assert_eq(n_ready, 3);
}

Test(ticket, few_transfers_post_behind_those_under_way)
{
    struct end e[TICKET_DEPTH + 1];

    for (unsigned i = 0; i < TICKET_DEPTH + 1; i++)
        queue_up(&e[i], a, 1);
    for (unsigned i = 0; i < TICKET_DEPTH; i++) {
        cr_assert(holds(&e[i]));
        posts_all(&e[i]);
        tickets_run(&tickets);
    }
    cr_assert_not(holds(&e[TICKET_DEPTH]), "posted behind %u that are under way", TICKET_DEPTH);
    ticket_leave(&e[1].ticket);
    tickets_run(&tickets);
    cr_assert(holds(&e[TICKET_DEPTH]));
    for (unsigned i = 0; i < TICKET_DEPTH + 1; i++)
        ticket_leave(&e[i].ticket); /* a second call does nothing */
}

Test(ticket, ticket_that_is_left_before_posting_lets_others_come_up)
{
    struct end e[3];

    for (unsigned i = 0; i < 3; i++)
        queue_up(&e[i], a, 1);
    ticket_leave(&e[1].ticket);
    ticket_leave(&e[0].ticket);
    tickets_run(&tickets);
    cr_assert(holds(&e[2]) && !holds(&e[1]));
    ticket_leave(&e[2].ticket);
}

Test(ticket, ticket_of_several_queues_waits_for_all)
{
    struct end one, both, other, none;
    const char *queue;

    queue_up(&one, a, 1);
    queue_up(&both, ab, 2);
    queue_up(&other, b, 1); /* behind `both`, which waits for a */
    make(&none, true, true, NULL, 0);
    ticket_begin(&none.ticket);
    cr_assert(holds(&one) && !holds(&both) && !holds(&other) && holds(&none));
    cr_assert_eq(ticket_find_blocker(&both.ticket, &queue), &one.ticket);
    cr_assert_str_eq(queue, "t/a");
    cr_assert_eq(ticket_find_blocker(&other.ticket, &queue), &both.ticket);
    cr_assert_null(ticket_find_blocker(&none.ticket, &queue));
    ticket_leave(&one.ticket);
    tickets_run(&tickets);
    cr_assert(holds(&both) && !holds(&other));
    posts_all(&both);
    tickets_run(&tickets);
    cr_assert(holds(&other));
    ticket_leave(&both.ticket);
    ticket_leave(&other.ticket);
    ticket_leave(&none.ticket);
}

/* Queues of two transports are two queues, even with the same name. */
Test(ticket, queues_of_two_transports_are_apart)
{
    struct end one, two;

    queue_up(&one, a, 1);
    memset(&two, 0, sizeof two);
    cr_assert_eq(ticket_init(&two.ticket, &tickets, &events, true, true, "u", a, 1, &err), RDT_OK);
    ticket_begin(&two.ticket);
    cr_assert(holds(&one) && holds(&two));
    ticket_leave(&one.ticket);
    ticket_leave(&two.ticket);
}

Test(ticket, unexpected_messages_are_refused)
{
    struct end e;

    make(&e, true, false, a, 1); /* an owner whose memory is not ready */
    cr_assert_eq(ticket_receive(&e.ticket, TICKET_TAKEN, &err), RDT_PROTOCOL);
    cr_assert_eq(ticket_receive(&e.ticket, TICKET_RECEIVES, &err), RDT_PROTOCOL);
    cr_assert_eq(ticket_receive(&e.ticket, TICKET_READY, &err), RDT_PROTOCOL);
    receive(&e, TICKET_WAITING);
    ticket_begin(&e.ticket);
    cr_assert_eq(ticket_receive(&e.ticket, TICKET_RECEIVES, &err), RDT_PROTOCOL, "receives were posted without tickets");
    receive(&e, TICKET_TAKEN);
    cr_assert_eq(ticket_receive(&e.ticket, TICKET_TAKEN, &err), RDT_PROTOCOL);
    receive(&e, TICKET_RECEIVES);
    cr_assert_eq(ticket_receive(&e.ticket, TICKET_RECEIVES, &err), RDT_PROTOCOL);
    cr_assert_eq(ticket_receive(&e.ticket, (enum ticket_message)17, &err), RDT_PROTOCOL);
    cr_assert_eq(e.n_posts, 1);
    ticket_leave(&e.ticket);
    make(&e, false, true, a, 1);
    cr_assert_eq(ticket_receive(&e.ticket, TICKET_TAKEN, &err), RDT_PROTOCOL);
    cr_assert_eq(ticket_receive(&e.ticket, TICKET_RECEIVES, &err), RDT_PROTOCOL);
    ticket_leave(&e.ticket);
    make(&e, false, false, a, 1);
    cr_assert_eq(ticket_receive(&e.ticket, TICKET_READY, &err), RDT_PROTOCOL);
    ticket_leave(&e.ticket);
}

/* ---- many nodes: a model of links, of queues that really block, of cancels and of deaths ---- */

enum { NODES = 5, QUEUES = 2, TRANSFERS = 60, CHUNKS = 5, WINDOW = 2, MESSAGES = 8192 };

struct move;

struct side {
    struct ticket ticket;
    struct move *move;
    unsigned node, queues[QUEUES], n_queues;
    bool owner, gone, stopped; /* stopped: posts no more operations. gone: its operations have been removed, too */
    unsigned next;             /* the next chunk to post */
};

struct move {
    struct side reader, owner;
    unsigned done;
    bool started;
};

struct message {
    struct side *to;
    int message; /* enum ticket_message, START or ABORT */
};
enum { START = 100, ABORT };

struct op {
    struct side *side;
    unsigned chunk;
};

static struct {
    bool without_tickets;
    struct tickets tickets[NODES];
    bool ready[NODES], dead[NODES];
    struct op queue[NODES][QUEUES][2 * TRANSFERS * CHUNKS];
    unsigned n_queue[NODES][QUEUES];
    struct message link[NODES][NODES][MESSAGES]; /* [from][to] */
    unsigned sent[NODES][NODES], got[NODES][NODES];
    struct move moves[TRANSFERS];
    uint64_t dice;
} m;

static unsigned roll(unsigned n)
{
    m.dice = m.dice * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(m.dice >> 33) % n;
}

static struct side *other(struct side *side)
{
    return side->owner ? &side->move->reader : &side->move->owner;
}

static void tell(struct side *from, int message)
{
    struct side *to = other(from);

    cr_assert_lt(m.sent[from->node][to->node], MESSAGES);
    m.link[from->node][to->node][m.sent[from->node][to->node]++] = (struct message){to, message};
}

static void model_ready(struct tickets *t)
{
    m.ready[t - m.tickets] = true;
}

static void model_send(struct ticket *ticket, enum ticket_message message)
{
    tell((struct side *)ticket, (int)message);
}

static void enqueue(struct side *side)
{
    unsigned queue = side->queues[side->next % side->n_queues], *n = &m.n_queue[side->node][queue];

    m.queue[side->node][queue][(*n)++] = (struct op){side, side->next++};
}

static void send_more(struct side *side)
{
    if (side->stopped || !side->owner)
        return;
    while (side->next < CHUNKS && side->next - side->move->done < WINDOW)
        enqueue(side);
    if (side->next == CHUNKS && !m.without_tickets)
        ticket_give(&side->ticket);
}

static void receive_all(struct side *side)
{
    while (side->next < CHUNKS)
        enqueue(side);
}

static void model_post(struct ticket *ticket)
{
    struct side *side = (struct side *)ticket;

    if (side->owner) {
        send_more(side);
        return;
    }
    receive_all(side);
    ticket_receives_posted(ticket);
}

static const struct ticket_events model_events = {model_send, model_post};

static void remove_ops(struct side *side)
{
    for (unsigned q = 0; q < QUEUES; q++) {
        struct op *queue = m.queue[side->node][q];
        unsigned kept = 0;
        for (unsigned i = 0; i < m.n_queue[side->node][q]; i++)
            if (queue[i].side != side)
                queue[kept++] = queue[i];
        m.n_queue[side->node][q] = kept;
    }
    side->gone = true;
    if (!m.without_tickets)
        ticket_leave(&side->ticket);
}

static void handle(struct side *side, int message)
{
    if (m.dead[side->node] || side->gone || side->stopped)
        return;
    if (message == ABORT) {
        side->stopped = true;
    } else if (message == START && m.without_tickets) {
        send_more(side);
    } else if (message == START) {
        ticket_begin(&side->ticket);
    } else {
        cr_assert_eq(ticket_receive(&side->ticket, (enum ticket_message)message, &err), RDT_OK, "%s", err.msg);
    }
}

/* Moves one chunk whose operations are at the heads of both queues. */
static bool move_bytes(void)
{
    unsigned first = roll(NODES * QUEUES);

    for (unsigned k = 0; k < NODES * QUEUES; k++) {
        unsigned node = (first + k) % (NODES * QUEUES) / QUEUES, q = (first + k) % QUEUES;
        struct op *head = m.queue[node][q], *there;
        if (m.n_queue[node][q] == 0 || head->side->stopped || m.dead[node])
            continue;
        struct side *peer = other(head->side);
        unsigned there_q = peer->queues[head->chunk % peer->n_queues];
        there = m.queue[peer->node][there_q];
        if (m.dead[peer->node] || peer->stopped || m.n_queue[peer->node][there_q] == 0 || there->side != peer ||
            there->chunk != head->chunk)
            continue;
        struct move *move = peer->move;
        memmove(head, head + 1, --m.n_queue[node][q] * sizeof *head);
        memmove(there, there + 1, --m.n_queue[peer->node][there_q] * sizeof *there);
        move->done++;
        if (!m.without_tickets && CHUNKS - move->done <= WINDOW)
            ticket_give(&move->reader.ticket);
        send_more(&move->owner);
        if (move->done == CHUNKS) {
            remove_ops(&move->reader);
            remove_ops(&move->owner);
        }
        return true;
    }
    return false;
}

static void begin_move(struct move *move)
{
    move->started = true;
    if (m.dead[move->reader.node] || m.dead[move->owner.node]) {
        remove_ops(&move->reader);
        remove_ops(&move->owner);
        return;
    }
    if (m.without_tickets)
        receive_all(&move->reader);
    tell(&move->reader, START);
}

static bool random_step(void)
{
    unsigned kind = roll(100), from = roll(NODES), to = roll(NODES), i = roll(TRANSFERS);
    struct move *move = &m.moves[i];

    if (kind < 45) {
        if (m.got[from][to] == m.sent[from][to])
            return false;
        struct message *message = &m.link[from][to][m.got[from][to]++];
        handle(message->to, message->message);
        return true;
    }
    if (kind < 60) {
        if (!m.ready[from])
            return false;
        m.ready[from] = false;
        if (!m.dead[from])
            tickets_run(&m.tickets[from]);
        return true;
    }
    if (kind < 80)
        return move_bytes();
    if (kind < 90) {
        if (move->started)
            return false;
        begin_move(move);
        return true;
    }
    /* The operations of a stopped side end sooner or later. A side whose peer is dead is stopped. */
    for (unsigned k = 0; k < 2; k++) {
        struct side *side = k == 0 ? &move->reader : &move->owner;
        if (!move->started || side->gone)
            continue;
        side->stopped = side->stopped || m.dead[other(side)->node] || m.dead[side->node];
        if (side->stopped) {
            remove_ops(side);
            return true;
        }
    }
    return false;
}

static void model_begin(uint64_t seed, bool without_tickets, bool ring)
{
    memset(&m, 0, sizeof m);
    m.dice = seed;
    m.without_tickets = without_tickets;
    for (unsigned i = 0; i < NODES; i++)
        tickets_init(&m.tickets[i], model_ready);
    for (unsigned i = 0; i < TRANSFERS; i++) {
        struct side *sides[] = {&m.moves[i].reader, &m.moves[i].owner};
        sides[0]->node = roll(NODES);
        sides[1]->node = (sides[0]->node + 1 + (ring ? 0 : roll(NODES - 1))) % NODES;
        for (unsigned k = 0; k < 2; k++) {
            const char *queues[QUEUES];
            sides[k]->move = &m.moves[i];
            sides[k]->owner = k == 1;
            sides[k]->n_queues = 1 + roll(QUEUES);
            for (unsigned q = 0; q < sides[k]->n_queues; q++) {
                sides[k]->queues[q] = q == 0 ? roll(QUEUES) : 1 - sides[k]->queues[0];
                queues[q] = sides[k]->queues[q] ? "b" : "a";
            }
            if (!without_tickets)
                cr_assert_eq(ticket_init(&sides[k]->ticket, &m.tickets[sides[k]->node], &model_events, k == 1,
                                         sides[k]->node < sides[1 - k]->node, "t", queues, sides[k]->n_queues, &err),
                             RDT_OK);
        }
    }
}

static unsigned n_unended(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < TRANSFERS; i++)
        n += !m.moves[i].reader.gone || !m.moves[i].owner.gone;
    return n;
}

/* Runs until all transfers have ended, or nothing has happened for long. Returns how many have not ended. */
static unsigned model_run(unsigned cancels, unsigned deaths)
{
    unsigned idle = 0;

    for (unsigned step = 0; idle < 20000 && n_unended() > 0; step++) {
        if (step % 50 == 49 && cancels > 0) {
            struct move *move = &m.moves[roll(TRANSFERS)];
            cancels--;
            if (move->started && !move->reader.gone && !move->reader.stopped && !m.dead[move->reader.node]) {
                move->reader.stopped = true;
                tell(&move->reader, ABORT);
            }
        }
        if (step % 400 == 399 && deaths > 0) {
            deaths--;
            m.dead[roll(NODES)] = true;
        }
        idle = random_step() ? 0 : idle + 1;
    }
    for (unsigned i = 0; i < NODES && n_unended() == 0 && !m.without_tickets; i++)
        tickets_fini(&m.tickets[i]);
    return n_unended();
}

Test(ticket, every_schedule_ends)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        model_begin(seed, false, seed % 3 == 0);
        unsigned stuck = model_run(0, 0);
        cr_assert_eq(stuck, 0, "seed %llu: %u transfers block each other", (unsigned long long)seed, stuck);
    }
}

Test(ticket, every_schedule_ends_with_cancels_and_deaths)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        model_begin(seed, false, seed % 3 == 0);
        unsigned stuck = model_run(30, seed % 3);
        cr_assert_eq(stuck, 0, "seed %llu: %u transfers block each other", (unsigned long long)seed, stuck);
    }
}

/* The model does detect transfers that block each other. */
Test(ticket, model_blocks_without_tickets)
{
    unsigned stuck = 0;

    for (uint64_t seed = 1; seed <= 20; seed++) {
        model_begin(seed, true, true);
        stuck += model_run(0, 0) > 0;
    }
    cr_assert_gt(stuck, 10);
}
