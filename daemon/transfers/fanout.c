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
#define STRETCHES 5u
#define WINDOW_CHUNKS 32u  /* that have come to the source in one window */
#define BACKLOG_CHUNKS 24u /* more than the chunks under way: the reader lacks nothing */
#define SLOW_RATIO 3u      /* a healthy reader on a busy machine may fall to half of its share for a while */

#define MAX_LEFT_WHOLE 2u /* sources with all bytes that a reader leaves before it reads from the owner */

#define MARK_NS UINT64_C(4000000)

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

static void move_on(struct fanout_place *place, enum fanout_asked why, fanout_ask_again *ask_again, void *arg)
{
    place->asked = why;
    ask_again(place, arg);
}

/* Slow readers leave the source of a reader that is not, because they would keep a part of its bandwidth. */
static void displace_slow(const struct fanout_place *reader, fanout_ask_again *ask_again, void *arg)
{
    list_each_safe (struct fanout_place, place, reader->source ? &reader->source->readers : &reader->fanout->direct, by_source)
        if (place->pace != FANOUT_FAIR && place->asked == FANOUT_NOT_ASKED && place->n_left_whole < MAX_LEFT_WHOLE)
            move_on(place, FANOUT_ASKED_READER, ask_again, arg);
}

struct fanout_place *fanout_choose(struct fanout_place *reader, fanout_can_read *can_read, fanout_ask_again *ask_again,
                                   void *arg)
{
    struct fanout *fanout = reader->fanout;
    uint64_t least = load(&fanout->direct, fanout, reader);
    struct fanout_place *best = NULL;

    if (reader->comparison == FANOUT_COMPARE_NEXT || reader->n_left_whole >= MAX_LEFT_WHOLE) {
        if (reader->comparison == FANOUT_COMPARE_NEXT)
            reader->comparison = FANOUT_COMPARED;
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
    if (reader->pace == FANOUT_FAIR)
        displace_slow(reader, ask_again, arg);
    return best;
}

/* A node that lags goes behind those that read from it, so it waits until they have come to its source (displace_slow). */
static void move_on_if_free(struct fanout_place *place, fanout_ask_again *ask_again, void *arg)
{
    const struct fanout *fanout = place->fanout;
    bool alone = !place->source && fanout->direct.next == fanout->direct.prev; /* at the owner's node */

    list_each (const struct fanout_place, reader, &place->readers, by_source)
        if (reader->pace != FANOUT_SLOW)
            return;
    if (receives(place) && !alone)
        move_on(place, FANOUT_ASKED_READER, ask_again, arg);
}

void fanout_demote(struct fanout_place *place, enum fanout_verdict pace, fanout_ask_again *ask_again, void *arg)
{
    enum fanout_verdict was = place->pace;

    if (pace <= was)
        return;
    place->pace = pace;
    if (was == FANOUT_FAIR) {
        place->avoids = place->source;
        if (!place->source) { /* The other one of the two stays at the owner. */
            place->fanout->compared = NULL;
            place->fanout->n_compared = COMPARE_TIMES;
        }
        list_each_safe (struct fanout_place, reader, &place->readers, by_source)
            if (reader->pace != FANOUT_SLOW)
                move_on(reader, FANOUT_ASKED_SOURCE, ask_again, arg);
    }
    move_on_if_free(place, ask_again, arg);
}

void fanout_left(struct fanout_place *reader, fanout_ask_again *ask_again, void *arg)
{
    struct fanout_place *source = reader->source;
    bool asked = reader->asked != FANOUT_NOT_ASKED;

    reader->spares_owner = true;
    enter(reader, NULL);
    if (!source || asked)
        return;
    if (source->whole) { /* Nothing would end that it lags: it becomes whole once only. */
        reader->avoids = source;
        reader->n_left_whole++;
    } else
        fanout_demote(source, FANOUT_LAGS, ask_again, arg);
}

static struct fanout_place *next_to_compare(const struct fanout *fanout)
{
    list_each (struct fanout_place, place, &fanout->places, link)
        if (place->source && place->pace == FANOUT_FAIR && !place->whole && place->comparison == FANOUT_NOT_COMPARED)
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
        second->comparison = FANOUT_COMPARE_NEXT;
        fanout->compared = second;
        fanout->n_compared++;
        fanout->compare_until = sent + COMPARE_CHUNKS * fanout->chunk_bytes;
        move_on(second, FANOUT_ASKED_COMPARE, ask_again, arg);
    }
}

/* ---- pace ---- */

/* What could be had since then: at the usual rate, or as much as came. */
static uint64_t could_have(const struct fanout_window *since, const struct fanout_seen *now)
{
    if (now->usual == 0)
        return now->at.had - since->had;
    return (uint64_t)((double)now->usual * (double)(now->at.since_ns - since->since_ns) / 1e9);
}

/* The most that the source's node is known to have been able to send since then, to all its readers. */
static uint64_t could_send(const struct fanout_window *since, const struct fanout_seen *now)
{
    uint64_t could = could_have(since, now), in = now->at.received - since->received, out = now->at.sent_all - since->sent_all;

    could = in > could ? in : could;
    return out > could ? out : could;
}

/* Whether the reader took less than a third of what it could have had. That is an equal share, or what the others left. */
static bool lags_since(const struct fanout_window *since, const struct fanout_seen *now)
{
    uint64_t took = now->at.sent - since->sent, all = now->at.sent_all - since->sent_all, others = all > took ? all - took : 0;
    uint64_t could = could_have(since, now), most = could_send(since, now),
             share = most / (now->sharing > 0 ? now->sharing : 1);

    if (most > others && most - others > share)
        share = most - others;
    return took * SLOW_RATIO < (share < could ? share : could);
}

/* The reader lags as far as its source can see. What its node receives from others decides. */
static void suspect(struct fanout_pace *pace, enum fanout_verdict verdict, const struct fanout_window *since,
                    const struct fanout_seen *now)
{
    pace->suspected = verdict;
    pace->ask = true;
    pace->asked_ns = now->at.since_ns;
    pace->over_ns = now->at.since_ns - since->since_ns;
    pace->could = could_send(since, now);
}

enum fanout_verdict fanout_pace(struct fanout_pace *pace, const struct fanout_seen *now)
{
    struct fanout_window *stretch = &pace->stretch, *window = &pace->window;
    bool lacks = now->at.had < now->at.sent + BACKLOG_CHUNKS * now->chunk_bytes; /* The reader may wait for the source. */

    if (window->since_ns == 0)
        *stretch = *window = now->at;
    if (lacks)
        *window = now->at;
    if (pace->suspected != FANOUT_FAIR)
        return now->at.since_ns - pace->asked_ns < FANOUT_SILENCE_NS ? FANOUT_FAIR : fanout_answered(pace, 0, 0);
    if (pace->told == FANOUT_FAIR && now->at.sent - stretch->sent >= now->chunk_bytes &&
        now->at.since_ns - stretch->since_ns >= STRETCH_NS) {
        if (!lags_since(stretch, now))
            pace->n_slow = 0;
        else if (pace->n_slow++ == 0)
            pace->lags = *stretch;
        *stretch = now->at;
        if (pace->n_slow >= STRETCHES && !lacks) {
            pace->n_slow = 0;
            suspect(pace, FANOUT_LAGS, &pace->lags, now);
            return FANOUT_FAIR;
        }
    }
    if (pace->told == FANOUT_SLOW || now->at.since_ns - window->since_ns < WINDOW_NS ||
        could_have(window, now) < WINDOW_CHUNKS * now->chunk_bytes)
        return FANOUT_FAIR;
    if (lags_since(window, now))
        suspect(pace, FANOUT_SLOW, window, now);
    *window = now->at;
    return FANOUT_FAIR;
}

enum fanout_verdict fanout_answered(struct fanout_pace *pace, uint64_t over_ns, uint64_t received)
{
    enum fanout_verdict verdict = pace->suspected;
    double would = over_ns > 0 ? (double)received * (double)pace->over_ns / (double)over_ns : 0;

    pace->suspected = FANOUT_FAIR;
    if (verdict == FANOUT_FAIR || would * SLOW_RATIO >= (double)pace->could)
        return FANOUT_FAIR;
    return pace->told = verdict;
}

/* ---- what a node receives ---- */

void fanout_received(struct fanout_intake *intake, uint64_t now_ns, uint64_t bytes)
{
    const struct fanout_mark *last = &intake->marks[(intake->n - 1) % FANOUT_MARKS];

    intake->bytes += bytes;
    if (intake->n == 0 || now_ns - last->at_ns >= MARK_NS)
        intake->marks[intake->n++ % FANOUT_MARKS] = (struct fanout_mark){now_ns, intake->bytes};
}

uint64_t fanout_received_in(const struct fanout_intake *intake, uint64_t now_ns, uint64_t *over_ns)
{
    uint64_t least = intake->n > FANOUT_MARKS ? intake->n - FANOUT_MARKS : 0;

    for (uint64_t i = intake->n; i-- > least;) {
        const struct fanout_mark *mark = &intake->marks[i % FANOUT_MARKS];
        if (now_ns - mark->at_ns >= *over_ns)
            return intake->bytes - mark->bytes;
    }
    if (least == 0) /* Nothing was received before the first mark. */
        return intake->bytes;
    *over_ns = now_ns - intake->marks[least % FANOUT_MARKS].at_ns;
    return intake->bytes - intake->marks[least % FANOUT_MARKS].bytes;
}
