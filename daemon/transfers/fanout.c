/* SPDX-License-Identifier: Apache-2.0 */
/* See fanout.h. */
#include "daemon/transfers/fanout.h"

#include <stddef.h>

/* A slow reader takes a part of its source's bandwidth only. */
#define SLOW_SHARE 8u

#define WINDOW_NS UINT64_C(500000000)
/* A reader lags after STRETCHES slow stretches in succession. A node that only stands still for a while takes many chunks
 * quickly between two such stretches. The least time covers chunks that end together because the kernel took them together. */
#define STRETCH_NS UINT64_C(2000000)
#define STRETCHES 4u
#define WINDOW_CHUNKS 32u  /* that have come to the source in one window */
#define BACKLOG_CHUNKS 24u /* more than the chunks under way: the reader lacks nothing */
#define SLOW_RATIO 3u      /* a healthy reader on a busy machine may fall to half of its share for a while */

#define COMPARE_AFTER 16u  /* chunks that the first reader has taken alone */
#define COMPARE_CHUNKS 64u /* that it takes meanwhile: time enough for a second one that is slow to take STRETCHES stretches */
#define COMPARE_TIMES 2u   /* both the first reader and the one it is compared with may be slow */
#define COMPARE_MIN 2048u  /* chunks of an object for which it pays */

void fanout_init(struct fanout *fanout, uint64_t bytes, uint64_t chunk_bytes)
{
    *fanout = (struct fanout){.bytes = bytes, .chunk_bytes = chunk_bytes};
    list_init(&fanout->places);
    list_init(&fanout->direct);
}

uint64_t fanout_chunk_bytes(uint64_t bytes, uint64_t most)
{
    uint64_t chunk = bytes / FANOUT_CHUNKS;

    if (chunk < FANOUT_CHUNK_MIN)
        chunk = FANOUT_CHUNK_MIN;
    chunk = (chunk + 4095) & ~UINT64_C(4095);
    return chunk < most ? chunk : most;
}

/* ---- the tree ---- */

static bool receives(const struct fanout_place *place)
{
    return !list_empty(&place->by_source);
}

/* Calls `visit` for the place and all places below it, each before its readers. The tree may be a chain of thousands, so
 * this walks and does not call itself. */
static void walk(struct fanout_place *top, void (*visit)(struct fanout_place *))
{
    struct fanout_place *place = top;

    for (;;) {
        visit(place);
        if (!list_empty(&place->readers)) {
            place = container_of(place->readers.next, struct fanout_place, by_source);
            continue;
        }
        while (place != top && place->by_source.next == &place->source->readers)
            place = place->source;
        if (place == top)
            return;
        place = container_of(place->by_source.next, struct fanout_place, by_source);
    }
}

static void find_depth(struct fanout_place *place)
{
    place->depth = place->source ? place->source->depth + 1 : 0;
}

static void enter(struct fanout_place *place, struct fanout_place *source)
{
    list_remove(&place->by_source);
    place->source = source;
    place->asked = FANOUT_NOT_ASKED;
    list_append(source ? &source->readers : &place->fanout->direct, &place->by_source);
    walk(place, find_depth);
}

void fanout_join(struct fanout *fanout, struct fanout_place *place, bool slow)
{
    *place = (struct fanout_place){.fanout = fanout, .pace = slow ? FANOUT_SLOW : FANOUT_FAIR};
    list_init(&place->by_source);
    list_init(&place->readers);
    list_append(&fanout->places, &place->link);
    enter(place, NULL);
}

static void release_readers(struct fanout_place *place)
{
    list_for_each_safe (node, &place->readers)
        enter(container_of(node, struct fanout_place, by_source), NULL);
}

void fanout_leave(struct fanout_place *place)
{
    release_readers(place);
    if (place->fanout->compared == place)
        place->fanout->compared = NULL;
    list_remove(&place->by_source);
    list_remove(&place->link);
    place->source = NULL;
    place->fanout = NULL;
}

void fanout_set_whole(struct fanout_place *place)
{
    list_remove(&place->by_source);
    place->source = NULL;
    place->whole = true;
    if (place->pace == FANOUT_LAGS) /* It may have stood still for a moment only. */
        place->pace = FANOUT_FAIR;
    walk(place, find_depth);
}

void fanout_serve_here(struct fanout_place *place)
{
    place->whole = false;
    enter(place, NULL);
}

/* ---- choosing ---- */

/* The bytes that a source sends to these readers, except to one, and to those that were asked to leave it. */
static uint64_t load(const struct list *readers, const struct fanout *fanout, const struct fanout_place *except)
{
    uint64_t bytes = 0;

    list_each (const struct fanout_place, place, readers, by_source)
        if (place != except && place->asked == FANOUT_NOT_ASKED)
            bytes += place->pace != FANOUT_FAIR ? fanout->bytes / SLOW_SHARE : fanout->bytes;
    return bytes;
}

static void mark_below(struct fanout_place *place)
{
    place->below = true;
}

static void unmark_below(struct fanout_place *place)
{
    place->below = false;
}

struct fanout_place *fanout_choose(struct fanout_place *reader, fanout_can_read *can_read, void *arg)
{
    struct fanout *fanout = reader->fanout;
    uint64_t least = load(&fanout->direct, fanout, reader);
    struct fanout_place *best = NULL;

    if (reader->compare) {
        reader->compare = false;
        enter(reader, NULL);
        return NULL;
    }
    walk(reader, mark_below);
    list_each (struct fanout_place, other, &fanout->places, link) {
        uint64_t cost;
        if (other->below || other == reader->avoids || (other->pace != FANOUT_FAIR && reader->pace != FANOUT_SLOW) ||
            (!other->whole && !receives(other)))
            continue;
        cost = load(&other->readers, fanout, reader);
        if (!other->whole)
            cost += (uint64_t)(other->depth + 1) * fanout->chunk_bytes;
        if ((cost < least || (cost == least && !best && reader->spares_owner)) && can_read(reader, other, arg)) {
            least = cost;
            best = other;
        }
    }
    walk(reader, unmark_below);
    enter(reader, best);
    return best;
}

static void move_on(struct fanout_place *place, enum fanout_asked why, fanout_ask_again *ask_again, void *arg)
{
    place->asked = why;
    ask_again(place, arg);
}

void fanout_demote(struct fanout_place *place, enum fanout_verdict pace, fanout_ask_again *ask_again, void *arg)
{
    bool was_fair = place->pace == FANOUT_FAIR;

    place->pace = pace > place->pace ? pace : place->pace;
    if (!was_fair)
        return;
    place->avoids = place->source;
    if (!place->source) { /* The other one of the two stays at the owner. */
        place->fanout->compared = NULL;
        place->fanout->n_compared = COMPARE_TIMES;
    }
    list_each_safe (struct fanout_place, reader, &place->readers, by_source)
        if (reader->pace != FANOUT_SLOW)
            move_on(reader, FANOUT_ASKED_SOURCE, ask_again, arg);
    if (receives(place) &&
        place->source) /* Leaving the owner's node gains nothing, and sends to a slow node take long to end. */
        move_on(place, FANOUT_ASKED_READER, ask_again, arg);
}

void fanout_left(struct fanout_place *reader, fanout_ask_again *ask_again, void *arg)
{
    struct fanout_place *source = reader->source;
    bool asked = reader->asked != FANOUT_NOT_ASKED;

    reader->spares_owner = true;
    enter(reader, NULL);
    if (!source || asked)
        return;
    if (source->whole) /* Nothing would end that it lags: it becomes whole once only. */
        reader->avoids = source;
    else
        fanout_demote(source, FANOUT_LAGS, ask_again, arg);
}

static struct fanout_place *next_to_compare(const struct fanout *fanout)
{
    list_each (struct fanout_place, place, &fanout->places, link)
        if (place->source && place->pace == FANOUT_FAIR && !place->whole && !place->was_compared)
            return place;
    return NULL;
}

void fanout_compare(struct fanout_place *first, uint64_t sent, fanout_ask_again *ask_again, void *arg)
{
    struct fanout *fanout = first->fanout;
    struct fanout_place *second = fanout->compared;

    if (first->source || first->whole || first == second || fanout->bytes < COMPARE_MIN * fanout->chunk_bytes)
        return;
    if (second && sent >= fanout->compare_until) {
        fanout->compared = NULL;
        move_on(second, FANOUT_ASKED_COMPARE, ask_again, arg);
    } else if (!second && fanout->n_compared < COMPARE_TIMES &&
               sent >= fanout->compare_until + COMPARE_AFTER * fanout->chunk_bytes && (second = next_to_compare(fanout))) {
        second->compare = second->was_compared = true;
        fanout->compared = second;
        fanout->n_compared++;
        fanout->compare_until = sent + COMPARE_CHUNKS * fanout->chunk_bytes;
        move_on(second, FANOUT_ASKED_COMPARE, ask_again, arg);
    }
}

/* ---- pace ---- */

/* Whether the reader took less than a third of its share since the window began, in which `could` bytes were to be had. */
static bool is_slow_in(const struct fanout_window *window, uint64_t sent, uint64_t could, unsigned readers)
{
    return (sent - window->sent) * SLOW_RATIO * (readers > 0 ? readers : 1) < could;
}

enum fanout_verdict fanout_pace(struct fanout_pace *pace, uint64_t now_ns, uint64_t have, uint64_t sent, uint64_t usual,
                                unsigned readers, uint64_t chunk_bytes)
{
    struct fanout_window now = {.since_ns = now_ns, .had = have, .sent = sent}, *stretch = &pace->stretch,
                         *window = &pace->window;
    bool lacks = have < sent + BACKLOG_CHUNKS * chunk_bytes; /* The reader may wait for the source. */
    uint64_t could;

    if (window->since_ns == 0)
        *stretch = *window = now;
    if (pace->told == FANOUT_FAIR && sent - stretch->sent >= chunk_bytes && now_ns - stretch->since_ns >= STRETCH_NS) {
        could = usual > 0 ? (uint64_t)((double)usual * (double)(now_ns - stretch->since_ns) / 1e9) : have - stretch->had;
        pace->n_slow = is_slow_in(stretch, sent, could, readers) ? pace->n_slow + 1 : 0;
        *stretch = now;
        if (pace->n_slow >= STRETCHES && !lacks)
            return pace->told = FANOUT_LAGS;
    }
    if (lacks) {
        *window = now;
        return FANOUT_FAIR;
    }
    could = usual > 0 ? (uint64_t)((double)usual * (double)(now_ns - window->since_ns) / 1e9) : have - window->had;
    if (pace->told == FANOUT_SLOW || now_ns - window->since_ns < WINDOW_NS || could < WINDOW_CHUNKS * chunk_bytes)
        return FANOUT_FAIR;
    if (is_slow_in(window, sent, could, readers))
        return pace->told = FANOUT_SLOW;
    *window = now;
    return FANOUT_FAIR;
}
