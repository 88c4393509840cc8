/* SPDX-License-Identifier: Apache-2.0 */
/* See ticket.h. Owns the ordered queues, and the place of each ticket in them. */
#include "daemon/transports/ticket.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BIT(state) (1u << (state))

struct ticket_queue {
    struct list link;
    unsigned refs;      /* the places in it, listed or not */
    struct list places; /* struct ticket_place.link, in the order in which they joined */
    char name[];        /* "nccl/gpu0" */
};

struct ticket_place {
    struct list link; /* in its queue from QUEUED on */
    struct ticket_queue *queue;
    struct ticket *ticket;
};

static const struct sm_state states[] = {
    [TICKET_IDLE] = {"idle", BIT(TICKET_QUEUED) | BIT(TICKET_GONE)},
    [TICKET_QUEUED] = {"queued", BIT(TICKET_HELD) | BIT(TICKET_GONE)},
    [TICKET_HELD] = {"held", BIT(TICKET_POSTING) | BIT(TICKET_GONE)},
    [TICKET_POSTING] = {"posting", BIT(TICKET_POSTED) | BIT(TICKET_GONE)},
    [TICKET_POSTED] = {"posted", BIT(TICKET_GONE)},
    [TICKET_GONE] = {"gone", 0},
};

void tickets_init(struct tickets *tickets, void (*on_ready)(struct tickets *))
{
    list_init(&tickets->queues);
    list_init(&tickets->all);
    tickets->on_ready = on_ready;
}

void tickets_fini(struct tickets *tickets)
{
    assert(list_empty(&tickets->all) && list_empty(&tickets->queues));
}

bool ticket_is_first(const uint8_t here[16], const uint8_t there[16])
{
    return memcmp(here, there, 16) < 0;
}

/* ---- queues ---- */

static struct ticket_queue *queue_get(struct tickets *tickets, const char *transport, const char *name)
{
    size_t front = strlen(transport), bytes = front + 1 + strlen(name) + 1;
    struct ticket_queue *queue;

    list_for_each (node, &tickets->queues) {
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
    list_append(&tickets->queues, &queue->link);
    return queue;
}

static void queue_unref(struct ticket_queue *queue)
{
    if (--queue->refs > 0)
        return;
    list_remove(&queue->link);
    free(queue);
}

static void free_places(struct ticket *ticket)
{
    for (unsigned i = 0; i < ticket->n_places; i++) {
        list_remove(&ticket->places[i].link);
        queue_unref(ticket->places[i].queue);
    }
    free(ticket->places);
    ticket->places = NULL;
    ticket->n_places = 0;
}

enum rdt_status ticket_init(struct ticket *ticket, struct tickets *tickets, const struct ticket_events *events, bool owner,
                            bool first, const char *transport, const char *const *queues, unsigned n, struct rdt_error *err)
{
    *ticket = (struct ticket){.tickets = tickets, .events = events, .owner = owner, .first = first};
    assert(n <= TICKET_MAX_QUEUES);
    ticket->places = n > 0 ? calloc(n, sizeof *ticket->places) : NULL;
    while ((ticket->places || n == 0) && ticket->n_places < n) {
        struct ticket_place *place = &ticket->places[ticket->n_places];
        place->ticket = ticket;
        list_init(&place->link);
        place->queue = queue_get(tickets, transport, queues[ticket->n_places]);
        if (!place->queue)
            break;
        ticket->n_places++;
    }
    if (ticket->n_places < n) {
        free_places(ticket);
        return rdt_error_set(err, RDT_NO_MEMORY, "no memory for a queue ticket of %s", transport);
    }
    sm_init(&ticket->sm, states, sizeof states / sizeof states[0], TICKET_IDLE);
    list_append(&tickets->all, &ticket->link);
    return RDT_OK;
}

/* ---- which ticket is next ---- */

/* Whether all tickets before this place have posted, and few of those are still under way. */
static bool is_next_in(const struct ticket_place *place)
{
    unsigned under_way = 0;

    list_each (const struct ticket_place, at, &place->queue->places, link) {
        if (at == place)
            return under_way < TICKET_DEPTH;
        if (at->ticket->sm.state != TICKET_POSTED)
            return false;
        under_way++;
    }
    return false;
}

static bool is_next(const struct ticket *ticket)
{
    for (unsigned i = 0; i < ticket->n_places; i++)
        if (!is_next_in(&ticket->places[i]))
            return false;
    return true;
}

static void post(struct ticket *ticket)
{
    sm_move(&ticket->sm, TICKET_POSTING);
    ticket->events->post(ticket);
}

/* The ticket has come up. */
static void take(struct ticket *ticket)
{
    sm_move(&ticket->sm, TICKET_HELD);
    if (ticket->first || ticket->owner)
        ticket->events->send(ticket, TICKET_TAKEN);
    else
        post(ticket); /* the owner has already sent TAKEN */
}

/* Joins the ends of all its queues. */
static void queue_up(struct ticket *ticket)
{
    sm_move(&ticket->sm, TICKET_QUEUED);
    for (unsigned i = 0; i < ticket->n_places; i++)
        list_append(&ticket->places[i].queue->places, &ticket->places[i].link);
    if (is_next(ticket))
        take(ticket);
}

static struct ticket *find_next(const struct tickets *tickets)
{
    list_for_each (queue_node, &tickets->queues) {
        list_for_each (node, &container_of(queue_node, struct ticket_queue, link)->places) {
            struct ticket *ticket = container_of(node, struct ticket_place, link)->ticket;
            if (ticket->sm.state == TICKET_QUEUED && is_next(ticket))
                return ticket;
            if (ticket->sm.state != TICKET_POSTED)
                break;
        }
    }
    return NULL;
}

void tickets_run(struct tickets *tickets)
{
    struct ticket *ticket;

    while ((ticket = find_next(tickets)))
        take(ticket);
}

/* ---- the exchange ---- */

void ticket_begin(struct ticket *ticket)
{
    assert(ticket->owner && !ticket->begun);
    ticket->begun = true;
    if (ticket->first)
        queue_up(ticket);
    else
        ticket->events->send(ticket, TICKET_READY);
}

enum rdt_status ticket_receive(struct ticket *ticket, enum ticket_message message, struct rdt_error *err)
{
    unsigned state = ticket->sm.state;

    if (message == TICKET_WAITING)
        return RDT_OK;
    if (message == TICKET_READY && !ticket->owner && ticket->first && state == TICKET_IDLE)
        queue_up(ticket);
    else if (message == TICKET_TAKEN && !ticket->first && state == TICKET_IDLE && (!ticket->owner || ticket->begun))
        queue_up(ticket);
    else if ((message == TICKET_TAKEN && !ticket->owner && ticket->first && state == TICKET_HELD) ||
             (message == TICKET_RECEIVES && ticket->owner && state == TICKET_HELD))
        post(ticket);
    else
        return rdt_error_set(err, RDT_PROTOCOL, "unexpected message %d about a queue ticket in state %s", (int)message,
                             sm_name(&ticket->sm));
    return RDT_OK;
}

void ticket_receives_posted(struct ticket *ticket)
{
    assert(!ticket->owner && ticket->sm.state == TICKET_POSTING);
    ticket->events->send(ticket, TICKET_RECEIVES);
}

void ticket_give(struct ticket *ticket)
{
    if (ticket->sm.state != TICKET_POSTING)
        return;
    sm_move(&ticket->sm, TICKET_POSTED);
    ticket->tickets->on_ready(ticket->tickets);
}

void ticket_leave(struct ticket *ticket)
{
    bool had_places = ticket->n_places > 0;

    if (ticket->sm.state == TICKET_GONE)
        return;
    sm_move(&ticket->sm, TICKET_GONE);
    list_remove(&ticket->link);
    free_places(ticket);
    if (had_places)
        ticket->tickets->on_ready(ticket->tickets);
}

bool ticket_has_posted(const struct ticket *ticket)
{
    return ticket->sm.state == TICKET_POSTING || ticket->sm.state == TICKET_POSTED;
}

bool ticket_blocks_others(const struct ticket *ticket)
{
    for (unsigned i = 0; (ticket->sm.state == TICKET_HELD || ticket_has_posted(ticket)) && i < ticket->n_places; i++)
        if (ticket->places[i].link.next != &ticket->places[i].queue->places)
            return true;
    return false;
}

const struct ticket *ticket_find_blocker(const struct ticket *ticket, const char **queue_p)
{
    for (unsigned i = 0; i < ticket->n_places; i++) {
        const struct ticket_place *place = &ticket->places[i];
        const struct ticket_place *head;
        if (list_empty(&place->link) || list_first(&place->queue->places) == &place->link)
            continue;
        head = container_of(list_first(&place->queue->places), struct ticket_place, link);
        *queue_p = place->queue->name;
        return head->ticket;
    }
    return NULL;
}
