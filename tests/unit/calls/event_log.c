/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/rpc/event_log: what an event costs, and what each watcher is sent. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/calls/event_log.h"

#define OBJECTS RDT__PB__LIST_KIND__LIST_KIND_OBJECTS
#define CLIENTS RDT__PB__LIST_KIND__LIST_KIND_CLIENTS

static uv_loop_t loop;
static struct slices slices;
static struct event_log *event_log;
static const struct owner alice = {.uid = 1000, .tenant = "a"}, bob = {.uid = 1001, .tenant = "a"},
                          carol = {.uid = 1000, .tenant = "c"};
static unsigned n_sent, n_looks; /* by all watchers: sent events, and looks whether a client reads */

struct reader {
    struct event_watcher base;
    bool full;
    uint64_t n, lost, sequence;
    char last[16];
};

static bool has_room(struct event_watcher *watcher)
{
    n_looks++;
    return !container_of(watcher, struct reader, base)->full;
}

static void on_send(struct event_watcher *watcher, const uint8_t *rest, size_t bytes)
{
    struct reader *reader = container_of(watcher, struct reader, base);
    Rdt__Pb__Event *event = rdt__pb__event__unpack(NULL, bytes, rest);

    cr_assert_not_null(event);
    n_sent++;
    reader->n += strcmp(event->what, "lost") != 0;
    reader->lost += watcher->lost;
    reader->sequence = watcher->sequence;
    (void)snprintf(reader->last, sizeof reader->last, "%s", event->what);
    rdt__pb__event__free_unpacked(event, NULL);
}

static void setup(void)
{
    cr_assert_eq(uv_loop_init(&loop), 0);
    slices_init(&slices, &loop);
    event_log = malloc(sizeof *event_log);
    cr_assert_not_null(event_log);
    event_log_init(event_log, &slices);
    n_sent = n_looks = 0;
}

static void teardown(void)
{
    cr_assert_eq(event_log_watched(event_log), 0u);
    cr_assert_eq(map_count(&event_log->counts), 0u, "an audience is left");
    event_log_fini(event_log);
    free(event_log);
    slices_close(&slices);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0);
}

TestSuite(event_log, .init = setup, .fini = teardown, .timeout = 60);

static void start(struct reader *reader, const struct owner *owner, bool admin, uint32_t kinds)
{
    *reader = (struct reader){.base = {.owner = owner, .admin = admin, .kinds = kinds, .has_room = has_room, .send = on_send}};
    cr_assert_eq(event_watcher_start(event_log, &reader->base, NULL), RDT_OK);
}

static bool emit(Rdt__Pb__ListKind kind, enum row_visibility visibility, const struct owner *owner, const char *what)
{
    struct row_audience audience = {visibility, owner};
    Rdt__Pb__Event message = RDT__PB__EVENT__INIT;

    if (!event_log_wanted(event_log, kind, &audience))
        return false;
    message.what = (char *)what;
    message.kind = kind;
    event_log_add(event_log, kind, &audience, &message);
    return true;
}

static void run(void)
{
    while (!list_empty(&slices.waiting))
        (void)uv_run(&loop, UV_RUN_NOWAIT);
}

/* The cost of an event does not depend on how many watch: they are served in turns, some in each. */
Test(event_log, many_watchers_are_served_in_turns)
{
    enum { N = 3500 };
    struct reader *readers = calloc(N, sizeof *readers);
    unsigned turns = 0;

    for (unsigned i = 0; i < N; i++)
        start(&readers[i], &alice, false, 1u << OBJECTS);
    cr_assert(emit(OBJECTS, ROW_OWNER, &alice, "put") && emit(OBJECTS, ROW_OWNER, &alice, "gone"));
    cr_assert(n_sent == 0 && n_looks == 0, "nobody is looked at when an event happens");
    for (; !list_empty(&slices.waiting); turns++) {
        unsigned before = n_sent;
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        cr_assert_leq(n_sent - before, 2 * EVENT_WATCHERS_PER_TURN);
    }
    cr_assert_eq(n_sent, 2u * N);
    cr_assert_geq(turns, N / EVENT_WATCHERS_PER_TURN);
    for (unsigned i = 0; i < N; i++) {
        cr_assert(readers[i].n == 2 && readers[i].sequence == 2 && strcmp(readers[i].last, "gone") == 0);
        event_watcher_stop(&readers[i].base);
    }
    free(readers);
}

/* Sessions that watch each other end at once: the end of each is an event for those that are left. */
Test(event_log, end_of_many_watchers_looks_at_none_of_the_others)
{
    enum { N = 3500 };
    struct reader *readers = calloc(N, sizeof *readers);

    for (unsigned i = 0; i < N; i++)
        start(&readers[i], &alice, false, 1u << CLIENTS);
    for (unsigned i = 0; i < N; i++) {
        event_watcher_stop(&readers[i].base);
        cr_assert_eq(emit(CLIENTS, ROW_OWNER, &alice, "gone"), i + 1 < N);
    }
    cr_assert(n_sent == 0 && n_looks == 0);
    run();
    cr_assert(n_sent == 0 && n_looks == 0);
    free(readers);
}

Test(event_log, watchers_that_do_not_read_cost_nothing)
{
    enum { N = 1000, EVENTS = 20000 };
    struct reader *readers = calloc(N, sizeof *readers);

    for (unsigned i = 0; i < N; i++) {
        start(&readers[i], &alice, false, 1u << OBJECTS);
        readers[i].full = true;
    }
    for (unsigned i = 0; i < EVENTS; i++) {
        cr_assert(emit(OBJECTS, ROW_OWNER, &alice, "put"));
        if (i % 16 == 0)
            run();
    }
    run();
    cr_assert_eq(n_sent, 0u);
    cr_assert_leq(n_looks, 4u * N, "each was found full once");
    for (unsigned i = 0; i < N; i++) {
        readers[i].full = false;
        event_watcher_unblock(&readers[i].base);
    }
    run();
    for (unsigned i = 0; i < N; i++) {
        cr_assert(readers[i].n + readers[i].lost == EVENTS && readers[i].sequence == EVENTS);
        event_watcher_stop(&readers[i].base);
    }
    free(readers);
}

/* Lost events are counted for each watcher as if it had been sent them, although nobody has looked at them for it. */
Test(event_log, each_watcher_is_sent_or_loses_what_it_may_see)
{
    static const struct owner *const owners[] = {&alice, &bob, &carol};
    static struct reader readers[8];
    uint64_t expected[8] = {0};
    uint64_t seed = 1;

    for (unsigned i = 0; i < 8; i++) {
        start(&readers[i], owners[i % 3], i >= 6, i % 2 ? 1u << OBJECTS : 1u << OBJECTS | 1u << CLIENTS);
        readers[i].full = i % 4 >= 2; /* some read only at the end */
    }
    for (unsigned n = 0; n < 3 * EVENT_LOG_ENTRIES; n++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const struct owner *owner = owners[(seed >> 33) % 3];
        struct row_audience audience = (struct row_audience){(enum row_visibility)((seed >> 40) % 3), owner};
        Rdt__Pb__ListKind kind = (seed >> 50) % 2 ? OBJECTS : CLIENTS;
        (void)emit(kind, audience.visibility, owner, "put");
        for (unsigned i = 0; i < 8; i++)
            expected[i] += (readers[i].base.kinds >> kind & 1u) &&
                           (readers[i].base.admin || row_audience_has(&audience, readers[i].base.owner));
        if (n % 50 == 0)
            run();
    }
    for (unsigned i = 0; i < 8; i++) {
        readers[i].full = false;
        event_watcher_unblock(&readers[i].base);
    }
    run();
    for (unsigned i = 0; i < 8; i++) {
        cr_expect(readers[i].n + readers[i].lost == expected[i] && readers[i].sequence == expected[i],
                  "watcher %u: %llu and %llu lost of %llu, sequence %llu", i, (unsigned long long)readers[i].n,
                  (unsigned long long)readers[i].lost, (unsigned long long)expected[i],
                  (unsigned long long)readers[i].sequence);
        cr_expect(i % 4 < 2 ? readers[i].lost == 0 : readers[i].lost > 0, "watcher %u lost %llu", i,
                  (unsigned long long)readers[i].lost);
        event_watcher_stop(&readers[i].base);
    }
}

Test(event_log, events_that_nobody_may_see_are_not_kept)
{
    struct reader reader;

    cr_assert(!emit(OBJECTS, ROW_ALL, &alice, "put"), "nobody watches");
    start(&reader, &alice, false, 1u << OBJECTS);
    cr_assert(!emit(OBJECTS, ROW_OWNER, &bob, "put") && !emit(CLIENTS, ROW_OWNER, &alice, "gone"));
    cr_assert(!emit(OBJECTS, ROW_TENANT, &carol, "put") && emit(OBJECTS, ROW_TENANT, &bob, "put"));
    cr_assert(emit(OBJECTS, ROW_ALL, NULL, "put"));
    (void)event_watcher_serve(&reader.base, UINT64_MAX);
    cr_assert(reader.n == 2 && reader.sequence == 2);
    event_watcher_stop(&reader.base);
    run();
}
