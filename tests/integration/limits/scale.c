/* SPDX-License-Identifier: Apache-2.0 */
/* Very many objects, clients and waiters at the same time on one node: answers stay right, a client does not wait long for
 * the work of others, and nothing is left behind. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/call.h"
#include "rdt.pb-c.h"
#include "tests/support/actor.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

static struct test_node node;

TestSuite(scale, .timeout = 240);

static struct node_status status_now(void)
{
    struct node_status status;

    node_status(&node, &status);
    return status;
}

static struct rdt_ref put_number(rdt *conn, uint32_t number)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_ref ref;
    char id[16];

    options.id = id;
    options.id_bytes = (size_t)snprintf(id, sizeof id, "n%u", number);
    must_ok(rdt_put(conn, &VECTOR(RDT_U32, 1, &number), 1, &options, &ref, &err));
    return ref;
}

/* No other client keeps messages in its queue. */
static unsigned waiting(rdt *conn)
{
    must_ok(rdt_dispatch(conn, NULL, &err));
    return status_now().transfers_active;
}

static struct rdt_ref numbered(uint32_t number)
{
    char id[16];

    (void)snprintf(id, sizeof id, "n%u", number);
    return ref_named(id);
}

static unsigned n_pages; /* of the latest list */

/* All pages of the list of objects; how many rows, each generation above the one before. */
static unsigned list_all(rdt *conn, const char *prefix, unsigned max)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    uint64_t last = 0;
    unsigned n = 0;

    request.kind = RDT__PB__LIST_KIND__LIST_KIND_OBJECTS;
    request.max = max;
    request.id_prefix = (char *)prefix;
    n_pages = 0;
    do {
        ProtobufCMessage *answer;
        const Rdt__Pb__ListReply *reply;
        must_ok(call(conn, RDT_MSG_LIST, &request.base, LONG, &answer, &err));
        reply = (const Rdt__Pb__ListReply *)answer;
        must(reply->n_objects <= max);
        for (size_t i = 0; i < reply->n_objects; i++) {
            must(reply->objects[i]->generation > last);
            last = reply->objects[i]->generation;
        }
        n += (unsigned)reply->n_objects;
        n_pages++;
        request.after = reply->next;
        protobuf_c_message_free_unpacked(answer, NULL);
    } while (request.after != 0);
    return n;
}

static unsigned list_names(rdt *conn, const char *prefix)
{
    Rdt__Pb__List request = RDT__PB__LIST__INIT;
    unsigned n = 0;

    request.kind = RDT__PB__LIST_KIND__LIST_KIND_NAMES;
    request.id_prefix = (char *)prefix;
    n_pages = 0;
    do {
        ProtobufCMessage *answer;
        must_ok(call(conn, RDT_MSG_LIST, &request.base, LONG, &answer, &err));
        n += (unsigned)((const Rdt__Pb__ListReply *)answer)->n_names;
        n_pages++;
        request.after = ((const Rdt__Pb__ListReply *)answer)->next;
        protobuf_c_message_free_unpacked(answer, NULL);
    } while (request.after != 0);
    return n;
}

Test(scale, ten_thousand_names)
{
    enum { N = 10000 };
    struct rdt_publish_options options = RDT_INIT(options);
    struct rdt_ref ref;
    uint64_t version;
    char name[16];
    rdt *conn;

    node_start(&node, &(struct node_options){.flags = (const char *const[]){"--owner-max-names=20000", NULL}});
    conn = node_client(&node, "publisher");
    ref = put_number(conn, 1);
    options.lease = true;
    for (uint32_t i = 0; i < N; i++) {
        (void)snprintf(name, sizeof name, "n%u", i);
        must_ok(rdt_publish(conn, name, &ref, &options, &version, &err));
    }
    cr_assert_eq(list_names(conn, ""), N);
    cr_assert_eq(list_names(conn, "n777"), 11u);
    cr_assert_gt(n_pages, 1u, "a page that finds little ends in time, too");
    must_ok(rdt_free(conn, &ref, false, &err));
    rdt_close(conn); /* ends the names */
    node_end(&node, NULL);
}

Test(scale, twenty_thousand_objects)
{
    enum { N = 20000 };
    rdt *conn, *reader;
    int64_t since;

    node_start(&node, NULL);
    conn = node_client(&node, "producer");
    reader = node_client(&node, "reader");
    for (uint32_t i = 0; i < N; i++)
        (void)put_number(conn, i);
    cr_assert_eq(status_now().objects, N);
    for (uint32_t i = 0; i < N; i += 97) {
        struct rdt_ref ref = numbered(i);
        rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
        cr_assert_eq(*(uint32_t *)tensor_of(object, 0).data, i);
        rdt_release(object);
    }
    cr_assert_eq(list_all(reader, "", 1000), N);
    cr_assert_eq(list_all(reader, "n1999", 7), 11u, "n1999 and n19990 to n19999");
    cr_assert_eq(list_all(reader, "n77777", 1000), 0u);
    cr_assert_gt(n_pages, 5u, "a page that finds nothing ends in time, too");
    for (uint32_t i = 0; i < N; i += 2) {
        struct rdt_ref ref = numbered(i);
        must_ok(rdt_free(conn, &ref, i % 4 == 0, &err));
    }
    cr_assert_eq(list_all(reader, "", 1000), N / 2);
    since = now_ns();
    rdt_close(conn);
    /* Others no longer see its objects as soon as its end is noticed, although the daemon frees the rest over many turns. */
    wait_until(20 * SEC, status_now().clients == 1);
    {
        struct rdt_ref ref = numbered(N - 1);
        struct rdt_stat stat;
        must_be(RDT_NOT_FOUND, rdt_stat(reader, &ref, &stat, &err));
        (void)put_number(reader, N - 3); /* its names are free */
        cr_assert_eq(list_all(reader, "", 1000), 1u);
    }
    wait_until(20 * SEC, status_now().objects == 1);
    must_be_within(since, 20 * SEC);
    rdt_close(reader);
    node_end(&node, NULL);
}

Test(scale, ten_thousand_waiters_of_one_id)
{
    enum { N = 10000 };
    static rdt_request *requests[N];
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref ref = numbered(7);
    rdt *conn, *reader;

    node_start(&node, NULL);
    conn = node_client(&node, "producer");
    reader = node_client(&node, "reader");
    options.timeout_ns = 5 * LONG;
    for (unsigned i = 0; i < N; i++)
        must_ok(rdt_fetch_start(reader, &ref, 1, &options, &requests[i], &err));
    wait_until(20 * SEC, waiting(reader) == N);
    (void)put_number(conn, 7);
    must_ok(rdt_wait(reader, requests, N, N, LONG, NULL, NULL, &err));
    for (unsigned i = 0; i < N; i++) {
        rdt_object *object;
        must_ok(rdt_request_take_object(requests[i], &object, &err));
        cr_assert_eq(*(uint32_t *)tensor_of(object, 0).data, 7u);
        rdt_release(object);
        rdt_request_destroy(requests[i]);
    }
    rdt_close(conn);
    rdt_close(reader);
    node_end(&node, NULL);
}

/* Waiters whose client ends, and those whose deadline passes, leave no trace. */
Test(scale, waiters_that_leave)
{
    enum { N = 5000 };
    static rdt_request *requests[N];
    struct rdt_fetch_options options = RDT_INIT(options);
    rdt *reader, *patient;
    rdt_request *last;
    struct rdt_ref ref = numbered(0);

    node_start(&node, NULL);
    reader = node_client(&node, "reader");
    patient = node_client(&node, "patient");
    last = start_one(patient, &ref, LONG);
    for (unsigned i = 0; i < N; i++) {
        struct rdt_ref other = numbered(i / 2);
        options.timeout_ns = i % 2 ? MSEC : LONG;
        must_ok(rdt_fetch_start(reader, &other, 1, &options, &requests[i], &err));
    }
    wait_until(20 * SEC, waiting(reader) == N / 2 + 1);
    rdt_close(reader);
    wait_until(20 * SEC, status_now().transfers_active == 1);
    must_be(RDT_AGAIN, rdt_request_status(last, &err));
    (void)put_number(patient, 0);
    must_ok(rdt_wait(patient, &last, 1, 1, LONG, NULL, NULL, &err));
    rdt_request_destroy(last);
    rdt_close(patient);
    node_end(&node, NULL);
}

Test(scale, two_hundred_clients)
{
    enum { N = 200, EACH = 20 };
    static rdt *clients[N];
    struct rlimit files;

    (void)getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    node_start(&node, NULL);
    for (uint32_t i = 0; i < N; i++) {
        clients[i] = node_client(&node, "one of many");
        for (uint32_t k = 0; k < EACH; k++)
            (void)put_number(clients[i], i * EACH + k);
    }
    cr_assert_eq(status_now().clients, N);
    cr_assert_eq(status_now().objects, N * EACH);
    for (uint32_t i = 0; i < N; i++) {
        struct rdt_fetch_options options = RDT_INIT(options);
        struct rdt_ref refs[EACH];
        rdt_object *objects[EACH];
        options.timeout_ns = LONG;
        for (uint32_t k = 0; k < EACH; k++)
            refs[k] = numbered((i + 1) % N * EACH + k);
        must_ok(rdt_fetch(clients[i], refs, EACH, &options, objects, &err));
        for (uint32_t k = 0; k < EACH; k++) {
            cr_assert_eq(*(uint32_t *)tensor_of(objects[k], 0).data, (i + 1) % N * EACH + k);
            rdt_release(objects[k]);
        }
    }
    for (uint32_t i = 0; i < N; i++)
        rdt_close(clients[i]);
    node_end(&node, NULL);
}

#define WATCHERS 1000u

/* A process whose sessions all watch each other's ends. */
static int watch_many(struct actor *self, void *arg)
{
    struct rlimit files;

    (void)arg;
    (void)getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    for (unsigned i = 0; i < WATCHERS; i++)
        must_ok(rdt_watch(node_client(&node, "watcher"), RDT_KIND_CLIENTS | RDT_KIND_OBJECTS, &err));
    actor_step(self);
    (void)pause();
    return 0;
}

/* The daemon ends the sessions over many turns: another client is answered in between, and sees how far it is. */
Test(scale, end_of_many_watching_sessions_takes_turns)
{
    struct actor watchers;
    unsigned before, now, in_between = 0;

    node_start(&node, NULL);
    actor_start(&watchers, watch_many, NULL);
    actor_await(&watchers);
    before = status_now().clients;
    actor_signal(&watchers, SIGKILL);
    while ((now = status_now().clients) > before - WATCHERS)
        in_between += now < before;
    (void)actor_result(&watchers);
    cr_assert_gt(in_between, 5u);
    node_end(&node, NULL);
}

#define HOLDERS 100u
#define HELD 200u

static int put_much(struct actor *self, void *arg)
{
    (void)arg;
    for (uint32_t i = 0; i < HOLDERS; i++) {
        rdt *conn = node_client(&node, "holder");
        for (uint32_t k = 0; k < HELD; k++)
            (void)put_number(conn, i * HELD + k);
    }
    actor_step(self);
    (void)pause();
    return 0;
}

/* The ends of many sessions of one user, each with much to release, share the user's part of each turn. */
Test(scale, end_of_many_sessions_with_objects_is_complete)
{
    struct actor holders;
    rdt *reader;

    node_start(&node, NULL);
    reader = node_client(&node, "reader");
    actor_start(&holders, put_much, NULL);
    actor_await(&holders);
    cr_assert_eq(status_now().objects, HOLDERS * HELD);
    actor_signal(&holders, SIGKILL);
    (void)actor_result(&holders);
    wait_until(60 * SEC, status_now().objects == 0);
    cr_assert_eq(list_all(reader, "", 1000), 0u);
    rdt_close(reader);
    node_end(&node, NULL);
}

Test(scale, ten_thousand_tensors_in_a_thousand_regions)
{
    enum { REGIONS = 1000, EACH = 10 };
    static struct rdt_tensor tensors[REGIONS * EACH];
    static const int64_t shape[] = {3};
    static uint32_t *regions[REGIONS];
    struct rdt_ref ref;
    rdt *conn, *reader;
    rdt_object *object;

    node_start(&node, NULL);
    conn = node_client(&node, "producer");
    reader = node_client(&node, "reader");
    for (uint32_t r = 0; r < REGIONS; r++) {
        regions[r] = alloc_memory(conn, EACH * 3 * sizeof(uint32_t));
        for (uint32_t k = 0; k < EACH; k++) {
            regions[r][3 * k] = r * EACH + k;
            tensors[k * REGIONS + r] =
                (struct rdt_tensor){.dtype = RDT_U32, .ndim = 1, .shape = shape, .data = &regions[r][3 * k]};
        }
    }
    must_ok(rdt_put(conn, tensors, REGIONS * EACH, NULL, &ref, &err));
    object = fetch_one(reader, &ref, RDT_FETCH_COPY);
    cr_assert_eq(rdt_object_count(object), REGIONS * EACH);
    for (uint32_t i = 0; i < REGIONS * EACH; i++) {
        struct rdt_tensor seen = tensor_of(object, i);
        cr_assert(tensors_equal(&seen, &tensors[i]), "tensor %u", i);
    }
    rdt_release(object);
    must_be(RDT_TIMED_OUT, rdt_wait_freed_range(conn, regions[5], 12, MSEC, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_wait_freed_range(conn, regions[5], 12, LONG, &err));
    for (uint32_t r = 0; r < REGIONS; r++)
        must_ok(rdt_dealloc(conn, regions[r], &err));
    rdt_close(conn);
    rdt_close(reader);
    node_end(&node, NULL);
}
