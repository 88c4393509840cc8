#include "daemon/transports/ticket.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BIT(state) (1u << (state))

struct ticket_queue {
    struct list link;
    unsigned refs; /* places */
    struct list places;
    char name[]; /* "nccl/gpu0" */
};

struct ticket_place {
    struct list link; /* in its queue from QUEUED on */
    struct ticket_queue *queue;
    struct ticket *turn;
};

static const struct sm_state states[] = {
    [TICKET_IDLE] = {"idle", BIT(TICKET_QUEUED) | BIT(TICKET_GONE)},
    [TICKET_QUEUED] = {"queued", BIT(TICKET_HELD) | BIT(TICKET_GONE)},
    [TICKET_HELD] = {"held", BIT(TICKET_POSTING) | BIT(TICKET_GONE)},
    [TICKET_POSTING] = {"posting", BIT(TICKET_POSTED) | BIT(TICKET_GONE)},
    [TICKET_POSTED] = {"posted", BIT(TICKET_GONE)},
    [TICKET_GONE] = {"gone", 0},
};

void tickets_init(struct tickets *turns, void (*on_ready)(struct tickets *))
{
    list_init(&turns->queues);
    list_init(&turns->all);
    turns->on_ready = on_ready;
}

void tickets_fini(struct tickets *turns)
{
    assert(list_empty(&turns->all) && list_empty(&turns->queues));
    (void)turns;
}

bool ticket_is_first(const uint8_t here[16], const uint8_t there[16])
{
    return memcmp(here, there, 16) < 0;
}

/* ---- queues ---- */

static struct ticket_queue *queue_get(struct tickets *turns, const char *transport, const char *name)
{
    size_t front = strlen(transport), bytes = front + 1 + strlen(name) + 1;
    struct ticket_queue *queue;

    list_for_each (node, &turns->queues) {
        queue = container_of(node, struct ticket_queue, link);
        if (strncmp(queue->name, transport, front) == 0 && queue->name[front] == '/' &&
            strcmp(queue->name + front + 1, name) == 0) {
            queue->refs++;
            return queue;
        }
    }
    queue = malloc(sizeof *queue + bytes);
    if (!queue)
        return NULL;
    queue->refs = 1;
    memcpy(queue->name, transport, front);
    queue->name[front] = '/';
    memcpy(queue->name + front + 1, name, bytes - front - 1);
    list_init(&queue->places);
    list_append(&turns->queues, &queue->link);
    return queue;
}

static void queue_unref(struct ticket_queue *queue)
{
    if (--queue->refs > 0)
        return;
    list_remove(&queue->link);
    free(queue);
}

static void free_places(struct ticket *turn)
{
    for (unsigned i = 0; i < turn->n_places; i++) {
        list_remove(&turn->places[i].link);
        queue_unref(turn->places[i].queue);
    }
    free(turn->places);
    turn->places = NULL;
    turn->n_places = 0;
}

enum rdt_status ticket_init(struct ticket *turn, struct tickets *turns, const struct ticket_events *events, bool owner, bool first,
                          const char *transport, const char *const *names, unsigned n, struct rdt_error *err)
{
    *turn = (struct ticket){.turns = turns, .events = events, .owner = owner, .first = first};
    assert(n <= TICKET_MAX_QUEUES);
    turn->places = n > 0 ? calloc(n, sizeof *turn->places) : NULL;
    while ((turn->places || n == 0) && turn->n_places < n) {
        struct ticket_place *place = &turn->places[turn->n_places];
        place->turn = turn;
        list_init(&place->link);
        place->queue = queue_get(turns, transport, names[turn->n_places]);
        if (!place->queue)
            break;
        turn->n_places++;
    }
    if (turn->n_places < n) {
        free_places(turn);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a turn of %s", transport);
    }
    sm_init(&turn->sm, states, sizeof states / sizeof states[0], TICKET_IDLE);
    list_append(&turns->all, &turn->link);
    return RDT_OK;
}

/* ---- whose turn it is ---- */

static bool is_next_in(const struct ticket_place *place)
{
    unsigned under_way = 0;

    list_for_each (node, &place->queue->places) {
        const struct ticket_place *at = container_of(node, struct ticket_place, link);
        if (at == place)
            return under_way < TICKET_DEPTH;
        if (at->turn->sm.state != TICKET_POSTED)
            return false;
        under_way++;
    }
    return false;
}

static bool is_next(const struct ticket *turn)
{
    for (unsigned i = 0; i < turn->n_places; i++)
        if (!is_next_in(&turn->places[i]))
            return false;
    return true;
}

static void post(struct ticket *turn)
{
    sm_move(&turn->sm, TICKET_POSTING);
    turn->events->post(turn);
}

static void take(struct ticket *turn)
{
    sm_move(&turn->sm, TICKET_HELD);
    if (turn->first || turn->owner)
        turn->events->say(turn, TICKET_TAKEN);
    else
        post(turn); /* the owner has told already that it has its own */
}

static void queue_up(struct ticket *turn)
{
    sm_move(&turn->sm, TICKET_QUEUED);
    for (unsigned i = 0; i < turn->n_places; i++)
        list_append(&turn->places[i].queue->places, &turn->places[i].link);
    if (is_next(turn))
        take(turn);
}

static struct ticket *find_next(const struct tickets *turns)
{
    list_for_each (queue_node, &turns->queues) {
        list_for_each (node, &container_of(queue_node, struct ticket_queue, link)->places) {
            struct ticket *turn = container_of(node, struct ticket_place, link)->turn;
            if (turn->sm.state == TICKET_QUEUED && is_next(turn))
                return turn;
            if (turn->sm.state != TICKET_POSTED)
                break;
        }
    }
    return NULL;
}

void tickets_run(struct tickets *turns)
{
    struct ticket *turn;

    while ((turn = find_next(turns)))
        take(turn);
}

/* ---- the exchange ---- */

void ticket_begin(struct ticket *turn)
{
    assert(turn->owner && !turn->begun);
    turn->begun = true;
    if (turn->first)
        queue_up(turn);
    else
        turn->events->say(turn, TICKET_READY);
}

enum rdt_status ticket_hear(struct ticket *turn, enum ticket_word word, struct rdt_error *err)
{
    unsigned state = turn->sm.state;

    if (word == TICKET_WAITING)
        return RDT_OK;
    if (word == TICKET_READY && !turn->owner && turn->first && state == TICKET_IDLE)
        queue_up(turn);
    else if (word == TICKET_TAKEN && !turn->first && state == TICKET_IDLE && (!turn->owner || turn->begun))
        queue_up(turn);
    else if ((word == TICKET_TAKEN && !turn->owner && turn->first && state == TICKET_HELD) ||
             (word == TICKET_RECEIVES && turn->owner && state == TICKET_HELD))
        post(turn);
    else
        return rdt_error_set(err, RDT_PROTOCOL, "word %d about a turn that is %s", (int)word, sm_name(&turn->sm));
    return RDT_OK;
}

void ticket_receives_stand(struct ticket *turn)
{
    assert(!turn->owner && turn->sm.state == TICKET_POSTING);
    turn->events->say(turn, TICKET_RECEIVES);
}

void ticket_give(struct ticket *turn)
{
    if (turn->sm.state != TICKET_POSTING)
        return;
    sm_move(&turn->sm, TICKET_POSTED);
    turn->turns->on_ready(turn->turns);
}

void ticket_leave(struct ticket *turn)
{
    bool stood = turn->n_places > 0;

    if (turn->sm.state == TICKET_GONE)
        return;
    sm_move(&turn->sm, TICKET_GONE);
    list_remove(&turn->link);
    free_places(turn);
    if (stood)
        turn->turns->on_ready(turn->turns);
}

bool ticket_has_posted(const struct ticket *turn)
{
    return turn->sm.state == TICKET_POSTING || turn->sm.state == TICKET_POSTED;
}

bool ticket_holds_up(const struct ticket *turn)
{
    for (unsigned i = 0; (turn->sm.state == TICKET_HELD || ticket_has_posted(turn)) && i < turn->n_places; i++)
        if (turn->places[i].link.next != &turn->places[i].queue->places)
            return true;
    return false;
}

const struct ticket *ticket_behind(const struct ticket *turn, const char **queue_p)
{
    for (unsigned i = 0; i < turn->n_places; i++) {
        const struct ticket_place *place = &turn->places[i];
        const struct ticket_place *head;
        if (list_empty(&place->link) || list_first(&place->queue->places) == &place->link)
            continue;
        head = container_of(list_first(&place->queue->places), struct ticket_place, link);
        *queue_p = place->queue->name;
        return head->turn;
    }
    return NULL;
}
