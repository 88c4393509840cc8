#include "daemon/transports/turn.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BIT(state) (1u << (state))

struct turn_queue {
    struct list link;
    unsigned refs; /* places */
    struct list places;
    char name[]; /* "nccl/gpu0" */
};

struct turn_place {
    struct list link; /* in its queue from QUEUED on */
    struct turn_queue *queue;
    struct turn *turn;
};

static const struct sm_state states[] = {
    [TURN_IDLE] = {"idle", BIT(TURN_QUEUED) | BIT(TURN_GONE)},
    [TURN_QUEUED] = {"queued", BIT(TURN_HELD) | BIT(TURN_GONE)},
    [TURN_HELD] = {"held", BIT(TURN_POSTING) | BIT(TURN_GONE)},
    [TURN_POSTING] = {"posting", BIT(TURN_POSTED) | BIT(TURN_GONE)},
    [TURN_POSTED] = {"posted", BIT(TURN_GONE)},
    [TURN_GONE] = {"gone", 0},
};

void turns_init(struct turns *turns, void (*on_ready)(struct turns *))
{
    list_init(&turns->queues);
    list_init(&turns->all);
    turns->on_ready = on_ready;
}

void turns_fini(struct turns *turns)
{
    assert(list_empty(&turns->all) && list_empty(&turns->queues));
    (void)turns;
}

bool turn_is_first(const uint8_t here[16], const uint8_t there[16])
{
    return memcmp(here, there, 16) < 0;
}

/* ---- queues ---- */

static struct turn_queue *queue_get(struct turns *turns, const char *transport, const char *name)
{
    size_t front = strlen(transport), bytes = front + 1 + strlen(name) + 1;
    struct turn_queue *queue;

    list_for_each (node, &turns->queues) {
        queue = container_of(node, struct turn_queue, link);
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

static void queue_unref(struct turn_queue *queue)
{
    if (--queue->refs > 0)
        return;
    list_remove(&queue->link);
    free(queue);
}

static void free_places(struct turn *turn)
{
    for (unsigned i = 0; i < turn->n_places; i++) {
        list_remove(&turn->places[i].link);
        queue_unref(turn->places[i].queue);
    }
    free(turn->places);
    turn->places = NULL;
    turn->n_places = 0;
}

enum rdt_status turn_init(struct turn *turn, struct turns *turns, const struct turn_events *events, bool owner, bool first,
                          const char *transport, const char *const *names, unsigned n, struct rdt_error *err)
{
    *turn = (struct turn){.turns = turns, .events = events, .owner = owner, .first = first};
    assert(n <= TURN_MAX_QUEUES);
    turn->places = n > 0 ? calloc(n, sizeof *turn->places) : NULL;
    while ((turn->places || n == 0) && turn->n_places < n) {
        struct turn_place *place = &turn->places[turn->n_places];
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
    sm_init(&turn->sm, states, sizeof states / sizeof states[0], TURN_IDLE);
    list_append(&turns->all, &turn->link);
    return RDT_OK;
}

/* ---- whose turn it is ---- */

static bool is_next_in(const struct turn_place *place)
{
    unsigned under_way = 0;

    list_for_each (node, &place->queue->places) {
        const struct turn_place *at = container_of(node, struct turn_place, link);
        if (at == place)
            return under_way < TURN_DEPTH;
        if (at->turn->sm.state != TURN_POSTED)
            return false;
        under_way++;
    }
    return false;
}

static bool is_next(const struct turn *turn)
{
    for (unsigned i = 0; i < turn->n_places; i++)
        if (!is_next_in(&turn->places[i]))
            return false;
    return true;
}

static void post(struct turn *turn)
{
    sm_move(&turn->sm, TURN_POSTING);
    turn->events->post(turn);
}

static void take(struct turn *turn)
{
    sm_move(&turn->sm, TURN_HELD);
    if (turn->first || turn->owner)
        turn->events->say(turn, TURN_TAKEN);
    else
        post(turn); /* the owner has told already that it has its own */
}

static void queue_up(struct turn *turn)
{
    sm_move(&turn->sm, TURN_QUEUED);
    for (unsigned i = 0; i < turn->n_places; i++)
        list_append(&turn->places[i].queue->places, &turn->places[i].link);
    if (is_next(turn))
        take(turn);
}

static struct turn *find_next(const struct turns *turns)
{
    list_for_each (queue_node, &turns->queues) {
        list_for_each (node, &container_of(queue_node, struct turn_queue, link)->places) {
            struct turn *turn = container_of(node, struct turn_place, link)->turn;
            if (turn->sm.state == TURN_QUEUED && is_next(turn))
                return turn;
            if (turn->sm.state != TURN_POSTED)
                break;
        }
    }
    return NULL;
}

void turns_run(struct turns *turns)
{
    struct turn *turn;

    while ((turn = find_next(turns)))
        take(turn);
}

/* ---- the exchange ---- */

void turn_begin(struct turn *turn)
{
    assert(turn->owner && !turn->begun);
    turn->begun = true;
    if (turn->first)
        queue_up(turn);
    else
        turn->events->say(turn, TURN_READY);
}

enum rdt_status turn_hear(struct turn *turn, enum turn_word word, struct rdt_error *err)
{
    unsigned state = turn->sm.state;

    if (word == TURN_WAITING)
        return RDT_OK;
    if (word == TURN_READY && !turn->owner && turn->first && state == TURN_IDLE)
        queue_up(turn);
    else if (word == TURN_TAKEN && !turn->first && state == TURN_IDLE && (!turn->owner || turn->begun))
        queue_up(turn);
    else if ((word == TURN_TAKEN && !turn->owner && turn->first && state == TURN_HELD) ||
             (word == TURN_RECEIVES && turn->owner && state == TURN_HELD))
        post(turn);
    else
        return rdt_error_set(err, RDT_PROTOCOL, "word %d about a turn that is %s", (int)word, sm_name(&turn->sm));
    return RDT_OK;
}

void turn_receives_stand(struct turn *turn)
{
    assert(!turn->owner && turn->sm.state == TURN_POSTING);
    turn->events->say(turn, TURN_RECEIVES);
}

void turn_give(struct turn *turn)
{
    if (turn->sm.state != TURN_POSTING)
        return;
    sm_move(&turn->sm, TURN_POSTED);
    turn->turns->on_ready(turn->turns);
}

void turn_leave(struct turn *turn)
{
    bool stood = turn->n_places > 0;

    if (turn->sm.state == TURN_GONE)
        return;
    sm_move(&turn->sm, TURN_GONE);
    list_remove(&turn->link);
    free_places(turn);
    if (stood)
        turn->turns->on_ready(turn->turns);
}

bool turn_has_posted(const struct turn *turn)
{
    return turn->sm.state == TURN_POSTING || turn->sm.state == TURN_POSTED;
}

bool turn_holds_up(const struct turn *turn)
{
    for (unsigned i = 0; (turn->sm.state == TURN_HELD || turn_has_posted(turn)) && i < turn->n_places; i++)
        if (turn->places[i].link.next != &turn->places[i].queue->places)
            return true;
    return false;
}

const struct turn *turn_behind(const struct turn *turn, const char **queue_p)
{
    for (unsigned i = 0; i < turn->n_places; i++) {
        const struct turn_place *place = &turn->places[i];
        const struct turn_place *head;
        if (list_empty(&place->link) || list_first(&place->queue->places) == &place->link)
            continue;
        head = container_of(list_first(&place->queue->places), struct turn_place, link);
        *queue_p = place->queue->name;
        return head->turn;
    }
    return NULL;
}
