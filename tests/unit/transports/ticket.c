/* daemon/turn: whose turn it is, the words of both ends, and what no schedule may lead to: transfers that hold each other up. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/transports/ticket.h"

/* ---- one node ---- */

static struct tickets turns;
static unsigned n_ready;
static struct rdt_error err;

struct end {
    struct ticket turn;
    unsigned n_posts, n_said[4];
};

static void on_ready(struct tickets *t)
{
    cr_assert_eq(t, &turns);
    n_ready++;
}

static void say(struct ticket *turn, enum ticket_message word)
{
    ((struct end *)turn)->n_said[word]++;
}

static void post(struct ticket *turn)
{
    ((struct end *)turn)->n_posts++;
}

static const struct ticket_events events = {say, post};

static void setup(void)
{
    tickets_init(&turns, on_ready);
}

static void teardown(void)
{
    tickets_fini(&turns);
}

TestSuite(ticket, .init = setup, .fini = teardown);

static void make(struct end *end, bool owner, bool first, const char *const *names, unsigned n)
{
    memset(end, 0, sizeof *end);
    cr_assert_eq(ticket_init(&end->turn, &turns, &events, owner, first, "t", names, n, &err), RDT_OK);
}

static const char *const a[] = {"a"}, *const b[] = {"b"}, *const ab[] = {"a", "b"};

/* An owner that goes first, in its turn as soon as there is one. */
static void queue_up(struct end *end, const char *const *names, unsigned n)
{
    make(end, true, true, names, n);
    ticket_begin(&end->turn);
}

static bool holds(const struct end *end)
{
    return end->n_said[TICKET_TAKEN] == 1;
}

static void hear(struct end *end, enum ticket_message word)
{
    cr_assert_eq(ticket_receive(&end->turn, word, &err), RDT_OK, "%s", err.msg);
}

static void goes_on(struct end *end) /* it posts, and has posted all */
{
    hear(end, TICKET_RECEIVES);
    cr_assert_eq(end->n_posts, 1);
    ticket_give(&end->turn);
}

Test(ticket, smaller_uuid_goes_first)
{
    const uint8_t low[16] = {1, 0xff}, high[16] = {2};

    cr_assert(ticket_is_first(low, high));
    cr_assert_not(ticket_is_first(high, low));
}

Test(ticket, owner_first_takes_tells_and_sends)
{
    struct end owner, reader;

    make(&reader, false, false, b, 1);
    queue_up(&owner, a, 1);
    cr_assert(holds(&owner) && owner.n_posts == 0);
    hear(&reader, TICKET_TAKEN);
    cr_assert(reader.n_posts == 1 && reader.n_said[TICKET_TAKEN] == 0);
    ticket_receives_posted(&reader.turn);
    cr_assert_eq(reader.n_said[TICKET_RECEIVES], 1);
    hear(&owner, TICKET_RECEIVES);
    cr_assert_eq(owner.n_posts, 1);
    ticket_leave(&owner.turn);
    ticket_leave(&reader.turn);
}

Test(ticket, reader_first_waits_for_the_owner_before_it_posts)
{
    struct end owner, reader;

    make(&reader, false, true, b, 1);
    make(&owner, true, false, a, 1);
    ticket_begin(&owner.turn);
    cr_assert(owner.n_said[TICKET_READY] == 1 && !holds(&owner));
    hear(&reader, TICKET_READY);
    cr_assert(holds(&reader) && reader.n_posts == 0);
    hear(&owner, TICKET_TAKEN);
    cr_assert(holds(&owner) && owner.n_posts == 0);
    hear(&reader, TICKET_TAKEN);
    cr_assert_eq(reader.n_posts, 1);
    ticket_receives_posted(&reader.turn);
    hear(&owner, TICKET_RECEIVES);
    cr_assert_eq(owner.n_posts, 1);
    ticket_leave(&owner.turn);
    ticket_leave(&reader.turn);
}

Test(ticket, turns_come_in_order)
{
    struct end e[4];

    for (unsigned i = 0; i < 4; i++)
        queue_up(&e[i], a, 1);
    for (unsigned i = 0; i < 4; i++) {
        cr_assert(holds(&e[i]));
        cr_assert(i == 3 || !holds(&e[i + 1]), "two have the turn");
        goes_on(&e[i]);
        ticket_leave(&e[i].turn);
        tickets_run(&turns);
    }
}

/* Nothing happens inside turn_give and turn_leave: who calls may be in the middle of an end. */
Test(ticket, next_one_comes_by_run_only)
{
    struct end e[2];

    queue_up(&e[0], a, 1);
    queue_up(&e[1], a, 1);
    goes_on(&e[0]);
    cr_assert(n_ready == 1 && !holds(&e[1]));
    tickets_run(&turns);
    cr_assert(holds(&e[1]));
    ticket_leave(&e[0].turn);
    ticket_leave(&e[1].turn);
    cr_assert_eq(n_ready, 3);
}

Test(ticket, few_stand_behind_what_is_under_way)
{
    struct end e[TICKET_DEPTH + 1];

    for (unsigned i = 0; i < TICKET_DEPTH + 1; i++)
        queue_up(&e[i], a, 1);
    for (unsigned i = 0; i < TICKET_DEPTH; i++) {
        cr_assert(holds(&e[i]));
        goes_on(&e[i]);
        tickets_run(&turns);
    }
    cr_assert_not(holds(&e[TICKET_DEPTH]), "posted behind %u that are under way", TICKET_DEPTH);
    ticket_leave(&e[1].turn);
    tickets_run(&turns);
    cr_assert(holds(&e[TICKET_DEPTH]));
    for (unsigned i = 0; i < TICKET_DEPTH + 1; i++)
        ticket_leave(&e[i].turn); /* once more does nothing */
}

Test(ticket, who_gives_up_in_the_queue_or_with_the_turn_lets_others_go_on)
{
    struct end e[3];

    for (unsigned i = 0; i < 3; i++)
        queue_up(&e[i], a, 1);
    ticket_leave(&e[1].turn);
    ticket_leave(&e[0].turn);
    tickets_run(&turns);
    cr_assert(holds(&e[2]) && !holds(&e[1]));
    ticket_leave(&e[2].turn);
}

Test(ticket, several_queues_are_taken_together)
{
    struct end one, both, other, none;
    const char *queue;

    queue_up(&one, a, 1);
    queue_up(&both, ab, 2);
    queue_up(&other, b, 1); /* behind `both`, which waits for a */
    make(&none, true, true, NULL, 0);
    ticket_begin(&none.turn);
    cr_assert(holds(&one) && !holds(&both) && !holds(&other) && holds(&none));
    cr_assert_eq(ticket_find_blocker(&both.turn, &queue), &one.turn);
    cr_assert_str_eq(queue, "t/a");
    cr_assert_eq(ticket_find_blocker(&other.turn, &queue), &both.turn);
    cr_assert_null(ticket_find_blocker(&none.turn, &queue));
    ticket_leave(&one.turn);
    tickets_run(&turns);
    cr_assert(holds(&both) && !holds(&other));
    goes_on(&both);
    tickets_run(&turns);
    cr_assert(holds(&other));
    ticket_leave(&both.turn);
    ticket_leave(&other.turn);
    ticket_leave(&none.turn);
}

/* Queues of one name of two transports are two. */
Test(ticket, transports_do_not_meet)
{
    struct end one, two;

    queue_up(&one, a, 1);
    memset(&two, 0, sizeof two);
    cr_assert_eq(ticket_init(&two.turn, &turns, &events, true, true, "u", a, 1, &err), RDT_OK);
    ticket_begin(&two.turn);
    cr_assert(holds(&one) && holds(&two));
    ticket_leave(&one.turn);
    ticket_leave(&two.turn);
}

Test(ticket, words_out_of_place_are_refused)
{
    struct end e;

    make(&e, true, false, a, 1); /* an owner whose memory is not ready */
    cr_assert_eq(ticket_receive(&e.turn, TICKET_TAKEN, &err), RDT_PROTOCOL);
    cr_assert_eq(ticket_receive(&e.turn, TICKET_RECEIVES, &err), RDT_PROTOCOL);
    cr_assert_eq(ticket_receive(&e.turn, TICKET_READY, &err), RDT_PROTOCOL);
    hear(&e, TICKET_WAITING);
    ticket_begin(&e.turn);
    cr_assert_eq(ticket_receive(&e.turn, TICKET_RECEIVES, &err), RDT_PROTOCOL, "receives stand without turns");
    hear(&e, TICKET_TAKEN);
    cr_assert_eq(ticket_receive(&e.turn, TICKET_TAKEN, &err), RDT_PROTOCOL);
    hear(&e, TICKET_RECEIVES);
    cr_assert_eq(ticket_receive(&e.turn, TICKET_RECEIVES, &err), RDT_PROTOCOL);
    cr_assert_eq(ticket_receive(&e.turn, (enum ticket_message)17, &err), RDT_PROTOCOL);
    cr_assert_eq(e.n_posts, 1);
    ticket_leave(&e.turn);
    make(&e, false, true, a, 1);
    cr_assert_eq(ticket_receive(&e.turn, TICKET_TAKEN, &err), RDT_PROTOCOL);
    cr_assert_eq(ticket_receive(&e.turn, TICKET_RECEIVES, &err), RDT_PROTOCOL);
    ticket_leave(&e.turn);
    make(&e, false, false, a, 1);
    cr_assert_eq(ticket_receive(&e.turn, TICKET_READY, &err), RDT_PROTOCOL);
    ticket_leave(&e.turn);
}

/* ---- many nodes: a model of links, of queues that really block, of cancels and of deaths ---- */

enum { NODES = 5, QUEUES = 2, TRANSFERS = 60, CHUNKS = 5, WINDOW = 2, MESSAGES = 8192 };

struct move;

struct side {
    struct ticket turn;
    struct move *move;
    unsigned node, queues[QUEUES], n_queues;
    bool owner, gone, stopped; /* stopped: posts no more; gone once its operations are taken out */
    unsigned next;             /* chunk to post */
};

struct move {
    struct side reader, owner;
    unsigned done;
    bool started;
};

struct message {
    struct side *to;
    int word; /* enum turn_word, START or ABORT */
};
enum { START = 100, ABORT };

struct op {
    struct side *side;
    unsigned chunk;
};

static struct {
    bool naive;
    struct tickets turns[NODES];
    bool ready[NODES], dead[NODES];
    struct op queue[NODES][QUEUES][2 * TRANSFERS * CHUNKS];
    unsigned n_queue[NODES][QUEUES];
    struct message link[NODES][NODES][MESSAGES]; /* from, to */
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

static void tell(struct side *from, int word)
{
    struct side *to = other(from);

    cr_assert_lt(m.sent[from->node][to->node], MESSAGES);
    m.link[from->node][to->node][m.sent[from->node][to->node]++] = (struct message){to, word};
}

static void model_ready(struct tickets *t)
{
    m.ready[t - m.turns] = true;
}

static void model_say(struct ticket *turn, enum ticket_message word)
{
    tell((struct side *)turn, (int)word);
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
    if (side->next == CHUNKS && !m.naive)
        ticket_give(&side->turn);
}

static void receive_all(struct side *side)
{
    while (side->next < CHUNKS)
        enqueue(side);
}

static void model_post(struct ticket *turn)
{
    struct side *side = (struct side *)turn;

    if (side->owner) {
        send_more(side);
        return;
    }
    receive_all(side);
    ticket_receives_posted(turn);
}

static const struct ticket_events model_events = {model_say, model_post};

static void take_out(struct side *side)
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
    if (!m.naive)
        ticket_leave(&side->turn);
}

static void hear_word(struct side *side, int word)
{
    if (m.dead[side->node] || side->gone || side->stopped)
        return;
    if (word == ABORT) {
        side->stopped = true;
    } else if (word == START && m.naive) {
        send_more(side);
    } else if (word == START) {
        ticket_begin(&side->turn);
    } else {
        cr_assert_eq(ticket_receive(&side->turn, (enum ticket_message)word, &err), RDT_OK, "%s", err.msg);
    }
}

/* The heads of two queues that match go. */
static bool move_bytes(void)
{
    unsigned first = roll(NODES * QUEUES);

    for (unsigned k = 0; k < NODES * QUEUES; k++) {
        unsigned node = (first + k) % (NODES * QUEUES) / QUEUES, q = (first + k) % QUEUES;
        struct op *head = m.queue[node][q], *there;
        struct side *peer;
        unsigned there_q;
        if (m.n_queue[node][q] == 0 || head->side->stopped || m.dead[node])
            continue;
        peer = other(head->side);
        there_q = peer->queues[head->chunk % peer->n_queues];
        there = m.queue[peer->node][there_q];
        if (m.dead[peer->node] || peer->stopped || m.n_queue[peer->node][there_q] == 0 || there->side != peer ||
            there->chunk != head->chunk)
            continue;
        struct move *move = peer->move;
        memmove(head, head + 1, --m.n_queue[node][q] * sizeof *head);
        memmove(there, there + 1, --m.n_queue[peer->node][there_q] * sizeof *there);
        move->done++;
        if (!m.naive && CHUNKS - move->done <= WINDOW)
            ticket_give(&move->reader.turn);
        send_more(&move->owner);
        if (move->done == CHUNKS) {
            take_out(&move->reader);
            take_out(&move->owner);
        }
        return true;
    }
    return false;
}

static void begin_move(struct move *move)
{
    move->started = true;
    if (m.dead[move->reader.node] || m.dead[move->owner.node]) {
        take_out(&move->reader);
        take_out(&move->owner);
        return;
    }
    if (m.naive)
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
        hear_word(message->to, message->word);
        return true;
    }
    if (kind < 60) {
        if (!m.ready[from])
            return false;
        m.ready[from] = false;
        if (!m.dead[from])
            tickets_run(&m.turns[from]);
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
    /* what has stopped comes to rest, sooner or later; with a peer that is dead it is stopped */
    for (unsigned k = 0; k < 2; k++) {
        struct side *side = k == 0 ? &move->reader : &move->owner;
        if (!move->started || side->gone)
            continue;
        side->stopped = side->stopped || m.dead[other(side)->node] || m.dead[side->node];
        if (side->stopped) {
            take_out(side);
            return true;
        }
    }
    return false;
}

static void model_begin(uint64_t seed, bool naive, bool ring)
{
    memset(&m, 0, sizeof m);
    m.dice = seed;
    m.naive = naive;
    for (unsigned i = 0; i < NODES; i++)
        tickets_init(&m.turns[i], model_ready);
    for (unsigned i = 0; i < TRANSFERS; i++) {
        struct side *sides[] = {&m.moves[i].reader, &m.moves[i].owner};
        sides[0]->node = roll(NODES);
        sides[1]->node = (sides[0]->node + 1 + (ring ? 0 : roll(NODES - 1))) % NODES;
        for (unsigned k = 0; k < 2; k++) {
            const char *names[QUEUES];
            sides[k]->move = &m.moves[i];
            sides[k]->owner = k == 1;
            sides[k]->n_queues = 1 + roll(QUEUES);
            for (unsigned q = 0; q < sides[k]->n_queues; q++) {
                sides[k]->queues[q] = q == 0 ? roll(QUEUES) : 1 - sides[k]->queues[0];
                names[q] = sides[k]->queues[q] ? "b" : "a";
            }
            if (!naive)
                cr_assert_eq(ticket_init(&sides[k]->turn, &m.turns[sides[k]->node], &model_events, k == 1,
                                       sides[k]->node < sides[1 - k]->node, "t", names, sides[k]->n_queues, &err),
                             RDT_OK);
        }
    }
}

static unsigned left(void)
{
    unsigned n = 0;

    for (unsigned i = 0; i < TRANSFERS; i++)
        n += !m.moves[i].reader.gone || !m.moves[i].owner.gone;
    return n;
}

/* Until nothing has happened for very long; how many transfers have not ended. */
static unsigned model_run(unsigned cancels, unsigned deaths)
{
    unsigned idle = 0;

    for (unsigned step = 0; idle < 20000 && left() > 0; step++) {
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
    for (unsigned i = 0; i < NODES && left() == 0 && !m.naive; i++)
        tickets_fini(&m.turns[i]);
    return left();
}

Test(ticket, every_schedule_ends)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        model_begin(seed, false, seed % 3 == 0);
        unsigned stuck = model_run(0, 0);
        cr_assert_eq(stuck, 0, "seed %llu: %u transfers hold each other up", (unsigned long long)seed, stuck);
    }
}

Test(ticket, every_schedule_ends_with_cancels_and_deaths)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        model_begin(seed, false, seed % 3 == 0);
        unsigned stuck = model_run(30, seed % 3);
        cr_assert_eq(stuck, 0, "seed %llu: %u transfers hold each other up", (unsigned long long)seed, stuck);
    }
}

/* The model sees what it is there for. */
Test(ticket, without_turns_the_model_stands_still)
{
    unsigned stuck = 0;

    for (uint64_t seed = 1; seed <= 20; seed++) {
        model_begin(seed, true, true);
        stuck += model_run(0, 0) > 0;
    }
    cr_assert_gt(stuck, 10);
}
