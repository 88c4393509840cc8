/* SPDX-License-Identifier: Apache-2.0 */
/* RDT_PUT_REPLACE: an object takes the place of the one that has its id, in one step. */
#include <criterion/criterion.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "client/call.h"
#include "client/rdt_info.h"
#include "client/rdt_many.h"
#include "proto/wire_ref.h"
#include "rdt.pb-c.h"
#include "tests/support/message.h"
#include "tests/support/raw.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

TestSuite(replace, .timeout = 120);

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define STRANGER 12345

static struct test_node node;
static rdt *conn, *other;

static void begin(const struct node_options *options)
{
    node_start(&node, options);
    conn = node_client(&node, "store");
    other = node_client(&node, "reader");
}

static void end(void)
{
    rdt_close(conn);
    rdt_close(other);
    node_end(&node, NULL);
}

static enum rdt_status try_put(rdt *client, const char *id, size_t bytes, uint32_t flags, int64_t timeout_ns, uint32_t seed,
                               struct rdt_ref *ref_p, struct rdt_error *why)
{
    char *data = malloc(bytes);
    struct rdt_put_options options = {
        .struct_size = sizeof options, .id = id, .id_bytes = strlen(id), .flags = flags, .timeout_ns = timeout_ns};
    enum rdt_status status;

    fill_pattern(data, bytes, seed);
    status = rdt_put(client, &VECTOR(RDT_U8, bytes, data), 1, &options, ref_p, why);
    free(data);
    return status;
}

static struct rdt_ref put(rdt *client, const char *id, size_t bytes, uint32_t flags, uint32_t seed)
{
    struct rdt_ref ref;

    must_ok(try_put(client, id, bytes, flags, 0, seed, &ref, &err));
    return ref;
}

static void must_get(rdt *client, const struct rdt_ref *ref, size_t bytes, uint32_t seed)
{
    rdt_object *object = fetch_one(client, ref, RDT_FETCH_AUTO);
    struct rdt_tensor tensor = tensor_of(object, 0);

    must_say((size_t)elements_of(&tensor) == bytes && holds_pattern(tensor.data, bytes, seed), "object %u has other bytes",
             seed);
    rdt_release(object);
}

static const struct {
    size_t bytes;
    uint32_t flags;
    bool waits; /* is filling for a moment */
} kinds[] = {
    {100, RDT_PUT_DETACHED, false},
    {100, 0, false},
    {MIB, RDT_PUT_DETACHED, false},
    {MIB, 0, false},
    {MIB, RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED | RDT_PUT_DETACHED, false},
    {MIB, RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED, true},
    {MIB, RDT_PUT_SNAPSHOT | RDT_PUT_DETACHED, false}, /* sealed */
};
#define KINDS (sizeof kinds / sizeof kinds[0])

/* Each kind in the place of each. */
Test(replace, new_object_has_the_id_and_readers_keep_the_earlier_one)
{
    struct rdt_ref id = ref_named("key"), before, ref;
    rdt_object *held;

    begin(NULL);
    for (unsigned old = 0; old < KINDS; old++) {
        for (unsigned new = 0; new < KINDS; new ++) {
            must_ok(try_put(conn, "key", kinds[old].bytes, kinds[old].flags, kinds[old].waits ? LONG : 0, old, &before, &err));
            held = fetch_one(other, &before, RDT_FETCH_AUTO);
            must_be(RDT_EXISTS, try_put(conn, "key", 10, 0, 0, 0, &ref, &err));
            must_ok(try_put(conn, "key", kinds[new].bytes, kinds[new].flags | RDT_PUT_REPLACE, kinds[new].waits ? LONG : 0,
                            100 + new, &ref, &err));
            must_get(other, &id, kinds[new].bytes, 100 + new);
            must_get(other, &ref, kinds[new].bytes, 100 + new);
            must(holds_pattern(tensor_of(held, 0).data, kinds[old].bytes, old));
            if (kinds[old].bytes > 32 * KIB) /* as after a free, while somebody holds it; a small one came in a message */
                must_get(other, &before, kinds[old].bytes, old);
            must_be(RDT_FREED, rdt_free(conn, &before, false, &err));
            rdt_release(held);
            must_be(RDT_FREED, rdt_stat(other, &before, &(struct rdt_stat){0}, &err));
            must_ok(rdt_free(conn, &ref, false, &err));
            must_be(RDT_NOT_FOUND, rdt_stat(other, &id, &(struct rdt_stat){0}, &err));
        }
    }
    wait_until(LONG, node_now(&node).memory_bytes == 0);
    end();
}

Test(replace, without_an_earlier_object_it_is_a_put_like_any)
{
    struct rdt_ref id = ref_named("key"), ref;
    rdt_request *request;
    rdt_object *object;

    begin(NULL);
    request = start_one(other, &id, 0);
    ref = put(conn, "key", MIB, RDT_PUT_REPLACE, 1);
    object = await_object(other, request);
    must(holds_pattern(tensor_of(object, 0).data, MIB, 1));
    rdt_release(object);
    rdt_request_destroy(request);
    must_ok(rdt_free(conn, &ref, false, &err));
    must_refuse(RDT_INVALID, "needs an id",
                rdt_put(conn, &VECTOR(RDT_U8, 3, "abc"), 1,
                        &(struct rdt_put_options){.struct_size = sizeof(struct rdt_put_options), .flags = RDT_PUT_REPLACE},
                        &ref, &err));
    end();
}

/* A hold and a name mean the object that they were made for. */
Test(replace, holds_and_names_keep_the_earlier_object)
{
    struct rdt_ref before, name, id = ref_named("key");
    rdt_request *hold;

    begin(NULL);
    before = put(conn, "key", MIB, RDT_PUT_DETACHED, 1);
    must_ok(rdt_hold(other, &before, LONG, &hold, &err));
    (void)put(conn, "key", MIB, RDT_PUT_DETACHED | RDT_PUT_REPLACE, 2);
    must_get(other, &before, MIB, 1);
    must_ok(rdt_ref_from_name("name", 0, NULL, &name, &err));
    must_ok(rdt_publish(conn, "name", &before, NULL, NULL, &err));
    rdt_request_destroy(hold);
    must_get(other, &name, MIB, 1);
    before = put(conn, "key", MIB, RDT_PUT_DETACHED | RDT_PUT_REPLACE, 3);
    must_ok(rdt_publish(conn, "name", &before, NULL, NULL, &err)); /* the first object ends */
    (void)put(conn, "key", MIB, RDT_PUT_DETACHED | RDT_PUT_REPLACE, 4);
    must_get(other, &name, MIB, 3);
    must_get(other, &id, MIB, 4);
    must_ok(rdt_unpublish(conn, &name, &err));
    must_be(RDT_FREED, rdt_stat(conn, &before, &(struct rdt_stat){0}, &err));
    must_ok(rdt_free(conn, &id, false, &err));
    end();
}

/* It frees only what a free without force would. */
Test(replace, object_that_another_session_holds_is_refused)
{
    struct rdt_ref id = ref_named("key"), ref;

    begin(NULL);
    (void)put(other, "key", MIB, 0, 1);
    must_refuse(RDT_EXISTS, "is held by its producer", try_put(conn, "key", MIB, RDT_PUT_REPLACE, 0, 2, &ref, &err));
    must_get(conn, &id, MIB, 1);
    (void)put(other, "key", MIB, RDT_PUT_REPLACE | RDT_PUT_DETACHED, 3);
    ref = put(conn, "key", MIB, RDT_PUT_REPLACE | RDT_PUT_DETACHED, 4);
    must_get(other, &id, MIB, 4);
    must_ok(rdt_free(other, &ref, false, &err));
    end();
}

/* ---- objects that are not there yet ---- */

static struct rdt_ref put_pending(rdt *client, void *memory, uint32_t flags)
{
    struct rdt_put_options options = {
        .struct_size = sizeof options, .id = "key", .id_bytes = 3, .flags = RDT_PUT_PENDING | RDT_PUT_REPLACE | flags};
    return put_as(client, &VECTOR(RDT_U8, MIB, memory), 1, &options);
}

Test(replace, earlier_object_has_the_id_until_the_new_one_is_there)
{
    struct rdt_ref id = ref_named("key"), ref;
    rdt_request *request;
    rdt_object *object;

    begin(NULL);
    char *memory = alloc_memory(conn, MIB);
    for (unsigned i = 0; i < 4; i++) {
        struct rdt_ref before = put(conn, "key", MIB, RDT_PUT_DETACHED, 1);
        ref = put_pending(conn, memory, i % 2 ? RDT_PUT_SNAPSHOT : 0);
        must_get(other, &id, MIB, 1);
        request = start_one(other, &ref, 0); /* waits for this one */
        if (i >= 2) {                        /* somebody else frees the earlier one, and puts another */
            must_ok(rdt_free(other, &before, false, &err));
            must_be(RDT_NOT_FOUND, rdt_stat(other, &id, &(struct rdt_stat){0}, &err));
            if (i == 3)
                (void)put(conn, "key", 50, RDT_PUT_DETACHED, 7);
        }
        fill_pattern(memory, MIB, 10 + i);
        must_ok(rdt_ready(conn, &ref, &err));
        object = await_object(other, request);
        must(holds_pattern(tensor_of(object, 0).data, MIB, 10 + i));
        rdt_release(object);
        rdt_request_destroy(request);
        must_get(other, &id, MIB, 10 + i);
        must_ok(rdt_free(conn, &ref, false, &err));
        must_be(RDT_NOT_FOUND, rdt_stat(other, &id, &(struct rdt_stat){0}, &err));
    }
    must_ok(rdt_dealloc(conn, memory, &err));
    end();
}

/* What may be replaced is asked again then, because it may be another object. */
Test(replace, object_that_another_session_put_meanwhile_is_not_replaced)
{
    struct rdt_ref id = ref_named("key"), before, ref;
    rdt_request *request;

    begin(NULL);
    char *memory = alloc_memory(conn, MIB);
    for (unsigned i = 0; i < 2; i++) {
        before = put(conn, "key", MIB, 0, 1);
        ref = put_pending(conn, memory, i ? RDT_PUT_SNAPSHOT : 0);
        request = start_one(other, &ref, 0);
        must_ok(rdt_free(conn, &before, false, &err));
        before = put(other, "key", MIB, 0, 2); /* `conn` could not free it */
        must_ok(rdt_ready(conn, &ref, &err));
        must_refuse(RDT_EXISTS, "is held by its producer", rdt_wait(other, &request, 1, 1, LONG, NULL, NULL, &err));
        rdt_request_destroy(request);
        must_get(conn, &id, MIB, 2);
        must_ok(rdt_free(other, &before, false, &err));
    }
    must_ok(rdt_dealloc(conn, memory, &err));
    end();
}

static int puts_pending(struct actor *self, void *arg)
{
    rdt *mine = node_client(&node, "dies");
    void *memory = alloc_memory(mine, MIB);
    struct rdt_ref ref = put_pending(mine, memory, *(const uint32_t *)arg);

    actor_send(self, &ref, sizeof ref);
    actor_await(self);
    return 0;
}

Test(replace, put_that_fails_changes_nothing)
{
    struct rdt_ref id = ref_named("key"), before, ref;
    uint32_t flags[] = {0, RDT_PUT_SNAPSHOT};
    struct actor actor;

    begin(&(struct node_options){.flags = (const char *[]){"--owner-max-bytes=8M", NULL}});
    before = put(conn, "key", MIB, RDT_PUT_DETACHED, 1);
    char *memory = alloc_memory(conn, MIB);
    ref = put_pending(conn, memory, 0);
    must_ok(rdt_fail(conn, &ref, RDT_INVALID, "for a test", &err));
    must_get(other, &id, MIB, 1);
    must_ok(rdt_dealloc(conn, memory, &err));
    must_be(RDT_LIMIT, try_put(conn, "key", 9 * MIB, RDT_PUT_DETACHED | RDT_PUT_REPLACE, 0, 2, &ref, &err));
    must_get(other, &id, MIB, 1);
    for (unsigned i = 0; i < 2; i++) { /* killed before it was ready */
        actor_start_keeping(&actor, puts_pending, &flags[i], -1);
        actor_recv(&actor, &ref, sizeof ref);
        must_get(other, &id, MIB, 1);
        actor_kill(&actor, SIGKILL);
        wait_until(LONG, rdt_stat(other, &ref, &(struct rdt_stat){0}, NULL) == RDT_OWNER_DIED);
        must_get(other, &id, MIB, 1);
    }
    must_ok(rdt_free(conn, &before, false, &err));
    rdt_close(conn);
    rdt_close(other);
    node_end(&node, (const char *[]){"(pid ", NULL});
}

/* The one that is ready later is there for those who wait for it, and ends then: the other one was ready first, and yet was put
 * after it. */
Test(replace, object_that_lost_its_id_while_it_was_filled_ends_when_it_is_there)
{
    struct rdt_ref id = ref_named("key"), first, second;
    rdt_request *request, *by_id;
    rdt_object *object;

    begin(NULL);
    char *memory = alloc_memory(conn, 2 * MIB);
    first = put_pending(conn, memory, 0);
    second = put_pending(conn, memory + MIB, 0);
    request = start_one(other, &first, 0);
    by_id = start_one(other, &id, 0);
    fill_pattern(memory, MIB, 1);
    fill_pattern(memory + MIB, MIB, 2);
    must_ok(rdt_ping(other, LONG, &err)); /* the daemon has both fetches */
    must_ok(rdt_ready(conn, &second, &err));
    object = await_object(other, by_id); /* it need not wait for the first */
    must(holds_pattern(tensor_of(object, 0).data, MIB, 2));
    rdt_release(object);
    rdt_request_destroy(by_id);
    must_get(other, &id, MIB, 2);
    must_ok(rdt_ready(conn, &first, &err));
    object = await_object(other, request);
    must(holds_pattern(tensor_of(object, 0).data, MIB, 1));
    must_get(other, &id, MIB, 2);
    rdt_release(object);
    rdt_request_destroy(request);
    must_be(RDT_FREED, rdt_stat(other, &first, &(struct rdt_stat){0}, &err));
    must_ok(rdt_free(conn, &second, false, &err));
    must_ok(rdt_dealloc(conn, memory, &err));
    end();
}

static int publishes(struct actor *self, void *arg)
{
    rdt *mine = node_client(&node, "publisher");
    struct rdt_ref ref;

    (void)arg;
    actor_recv(self, &ref, sizeof ref);
    must_ok(rdt_publish(mine, "name", &ref, NULL, NULL, &err)); /* waits for the bytes */
    rdt_close(mine);
    return 0;
}

/* Those who wait for the new object may end the earlier one as soon as they are told. */
Test(replace, name_that_alone_keeps_the_earlier_object_goes_on_to_the_new_one)
{
    struct rdt_ref id = ref_named("key"), before, ref, name;
    struct actor actor;

    begin(NULL);
    before = put(conn, "key", MIB, RDT_PUT_DETACHED, 1);
    must_ok(rdt_publish(conn, "name", &before, NULL, NULL, &err));
    must_ok(rdt_free(conn, &before, false, &err));
    char *memory = alloc_memory(conn, MIB);
    ref = put_pending(conn, memory, 0);
    actor_start_keeping(&actor, publishes, NULL, -1);
    actor_send(&actor, &ref, sizeof ref);
    wait_until(LONG, stat_of(conn, &ref).waiters == 1);
    fill_pattern(memory, MIB, 2);
    must_ok(rdt_ready(conn, &ref, &err));
    actor_wait(&actor);
    must_be(RDT_FREED, rdt_stat(conn, &before, &(struct rdt_stat){0}, &err));
    must_ok(rdt_ref_from_name("name", 0, NULL, &name, &err));
    must_get(other, &name, MIB, 2);
    must_get(other, &id, MIB, 2);
    must_ok(rdt_unpublish(conn, &name, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_dealloc(conn, memory, &err));
    end();
}

/* ---- those who wait and may not see it ---- */

static int stranger_waits(struct actor *self, void *arg)
{
    must(chdir(node.dir) == 0 && setgroups(0, NULL) == 0 && setresgid(STRANGER, STRANGER, STRANGER) == 0 &&
         setresuid(STRANGER, STRANGER, STRANGER) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = "s", .timeout_ns = LONG};
    struct rdt_ref id = ref_named("key");
    rdt_request *request;
    rdt_object *object;
    rdt *mine;

    must_ok(rdt_connect(&options, &mine, &err));
    id.uid = (uint32_t)(uintptr_t)arg;
    id.any_owner = 0;
    request = start_one(mine, &id, 0);
    must_ok(rdt_ping(mine, LONG, &err));
    actor_step(self);
    object = await_object(mine, request);
    must(holds_pattern(tensor_of(object, 0).data, 1000, 3));
    rdt_release(object);
    rdt_request_destroy(request);
    rdt_close(mine);
    return 0;
}

Test(replace, stranger_who_waits_gets_the_first_object_that_it_may_see)
{
    struct actor actor;
    struct rdt_put_options options = {
        .struct_size = sizeof options, .id = "key", .id_bytes = 3, .flags = RDT_PUT_REPLACE, .visibility = RDT_VISIBLE_TO_ALL};
    char data[1000];

    need_root();
    begin(NULL);
    (void)put(conn, "key", MIB, RDT_PUT_DETACHED, 1);
    actor_start_keeping(&actor, stranger_waits, (void *)(uintptr_t)geteuid(), -1);
    actor_await(&actor);
    (void)put(conn, "key", MIB, RDT_PUT_DETACHED | RDT_PUT_REPLACE, 2);
    char *memory = alloc_memory(conn, MIB); /* one that it may not see either, for which others wait */
    struct rdt_ref pending = put_pending(conn, memory, 0);
    rdt_request *request = start_one(other, &pending, 0);
    must_ok(rdt_ping(other, LONG, &err));
    must_ok(rdt_ready(conn, &pending, &err));
    rdt_release(await_object(other, request));
    rdt_request_destroy(request);
    fill_pattern(data, sizeof data, 3);
    struct rdt_ref ref = put_as(conn, &VECTOR(RDT_U8, sizeof data, data), 1, &options);
    actor_wait(&actor);
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_dealloc(conn, memory, &err));
    end();
}

/* ---- many at once ---- */

enum { PUTTERS = 2, ROUNDS = 300, KEYS = 3 };

static int replaces_again_and_again(struct actor *self, void *arg)
{
    rdt *mine = node_client(&node, "putter");
    uint64_t random = (uintptr_t)arg + 1;

    for (unsigned i = 0; i < ROUNDS; i++) {
        uint32_t kind = next_random(&random) % KINDS;
        char id[] = {(char)('a' + next_random(&random) % KEYS), 0};
        struct rdt_ref ref;
        must_ok(try_put(mine, id, kinds[kind].bytes, kinds[kind].flags | RDT_PUT_REPLACE | RDT_PUT_DETACHED,
                        kinds[kind].waits ? LONG : 0, next_random(&random) % 1000, &ref, &err));
        if (i == 20)
            actor_step(self);
    }
    rdt_close(mine);
    return 0;
}

/* Its pattern is that of its first bytes. */
static void must_be_whole(rdt_object *object)
{
    struct rdt_tensor tensor = tensor_of(object, 0);
    size_t bytes = (size_t)elements_of(&tensor);
    uint8_t *data = tensor.data, *expected = malloc(bytes);
    uint32_t seed = 0;

    do {
        must(seed < 1000);
        fill_pattern(expected, 64, seed);
    } while (memcmp(expected, data, 64) != 0 && ++seed);
    must(holds_pattern(data, bytes, seed));
    free(expected);
}

/* Whoever fetches the id finds an object, and a whole one, at every moment. */
Test(replace, readers_always_find_one_whole_object_while_many_replace_it)
{
    struct actor actors[PUTTERS];
    unsigned ended = 0, found = 0;

    begin(NULL);
    for (unsigned i = 0; i < KEYS; i++)
        (void)put(conn, (char[]){(char)('a' + i), 0}, MIB, RDT_PUT_DETACHED, i);
    for (unsigned i = 0; i < PUTTERS; i++)
        actor_start_keeping(&actors[i], replaces_again_and_again, (void *)(uintptr_t)i, -1);
    for (unsigned i = 0; i < PUTTERS; i++)
        actor_await(&actors[i]);
    while (ended < PUTTERS) {
        char id[] = {(char)('a' + found++ % KEYS), 0};
        struct rdt_ref ref = ref_named(id);
        rdt_object *object;
        must_ok(try_fetch(other, &ref, RDT_FETCH_AUTO, RDT_NO_WAIT, &object, &err));
        must_be_whole(object);
        rdt_release(object);
        if (poll(&(struct pollfd){.fd = actors[ended].pidfd, .events = POLLIN}, 1, 0) == 1)
            actor_wait(&actors[ended++]);
    }
    for (unsigned i = 0; i < KEYS; i++) {
        struct rdt_ref ref = ref_named((char[]){(char)('a' + i), 0});
        must_ok(rdt_free(conn, &ref, false, &err));
    }
    wait_until(LONG, node_now(&node).memory_bytes == 0);
    end();
}

/* ---- a caller that stops waiting ---- */

Test(replace, object_of_a_put_that_is_given_up_stays_if_it_has_replaced_another)
{
    Rdt__Pb__Put message = RDT__PB__PUT__INIT;
    Rdt__Pb__TensorList tensors = RDT__PB__TENSOR_LIST__INIT;
    Rdt__Pb__CancelRequest cancel = RDT__PB__CANCEL_REQUEST__INIT;
    uint64_t shape[] = {3}, offset[] = {0};
    uint32_t ndim[] = {1}, index[] = {0}, dtypes[] = {RDT_U8};
    struct rdt_ref id = ref_named("key");
    struct raw raw;

    begin(NULL);
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    tensors.shape = shape;
    tensors.ndim = ndim;
    tensors.offset = offset;
    tensors.region_index = index;
    tensors.dtype = dtypes;
    tensors.n_shape = tensors.n_ndim = tensors.n_offset = tensors.n_region_index = tensors.n_dtype = 1;
    message.tensors = &tensors;
    message.id = (ProtobufCBinaryData){3, (uint8_t *)"key"};
    message.inline_data = (ProtobufCBinaryData){3, (uint8_t *)"abc"};
    message.flags = RDT_PUT_REPLACE | RDT_PUT_DETACHED;
    for (unsigned i = 0; i < 3; i++) { /* the first one replaces nothing */
        uint64_t request = raw_send(&raw, RDT_MSG_PUT, &message.base, NULL, 0);
        protobuf_c_message_free_unpacked(raw_reply(&raw, request, &rdt__pb__put_reply__descriptor), NULL);
        cancel.request_id = request;
        protobuf_c_message_free_unpacked(
            raw_reply(&raw, raw_send(&raw, RDT_MSG_CANCEL_REQUEST, &cancel.base, NULL, 0), &rdt__pb__empty__descriptor), NULL);
        must_be(i == 0 ? RDT_NOT_FOUND : RDT_OK, rdt_stat(conn, &id, &(struct rdt_stat){0}, &err));
        if (i == 0)
            (void)put(conn, "key", 100, RDT_PUT_DETACHED, 1);
    }
    must_ok(rdt_free(conn, &id, false, &err));
    raw_close(&raw);
    end();
}

/* Whether the daemon has answered all requests of the client of this name. */
static bool all_answered(const char *name)
{
    Rdt__Pb__List request = MESSAGE(list, .kind = RDT__PB__LIST_KIND__LIST_KIND_CLIENTS);
    ProtobufCMessage *answer;
    bool all = true;

    must_ok(call(other, RDT_MSG_LIST, &request.base, LONG, &answer, &err));
    const Rdt__Pb__ListReply *reply = (const Rdt__Pb__ListReply *)answer;
    for (size_t i = 0; i < reply->n_clients; i++)
        all = all && (strcmp(reply->clients[i]->name, name) != 0 || reply->clients[i]->requests == 0);
    protobuf_c_message_free_unpacked(answer, NULL);
    return all;
}

/* The answers come when their callers have gone, and librdt gives back what they bring. */
Test(replace, late_answers_leave_the_id_one_of_the_two_objects)
{
    static char data[100];
    const char *ids[] = {"alone", "first", "second", "third", "fourth"}; /* the last ones are put in one message */
    struct rdt_tensor tensor = VECTOR(RDT_U8, sizeof data, data);
    struct rdt_value values[4] = {{0}};
    struct rdt_put_options options = {
        .struct_size = sizeof options, .flags = RDT_PUT_REPLACE | RDT_PUT_DETACHED, .timeout_ns = 50 * MSEC};
    struct rdt_ref refs[4], ref, again[4];

    begin(NULL);
    for (unsigned i = 0; i < 5; i++)
        (void)put(conn, ids[i], sizeof data, RDT_PUT_DETACHED, 1);
    for (unsigned i = 0; i < 4; i++)
        values[i] = (struct rdt_value){.tensors = &tensor, .count = 1, .id = ids[i + 1], .id_bytes = strlen(ids[i + 1])};
    must_ok(rdt_put_many(conn, values, 4, &options, again, NULL, &err)); /* it has memory for the next ones */
    fill_pattern(data, sizeof data, 2);
    node_freeze(&node);
    must_be(RDT_TIMED_OUT, try_put(conn, "alone", sizeof data, options.flags, options.timeout_ns, 2, &ref, &err));
    must_be(RDT_TIMED_OUT, rdt_put_many(conn, values, 4, &options, refs, NULL, &err));
    node_thaw(&node);
    must_ok(rdt_ping(conn, LONG, &err)); /* the daemon has begun what came before it */
    wait_until(LONG, all_answered("store"));
    must_ok(rdt_ping(conn, LONG, &err)); /* reads the answers, */
    must_ok(rdt_ping(conn, LONG, &err)); /* and this one comes behind what that sends */
    for (unsigned i = 0; i < 5; i++) {
        struct rdt_ref id = ref_named(ids[i]);
        struct rdt_stat stat;
        must_ok(rdt_stat(other, &id, &stat, &err));
        must_ok(rdt_free(conn, &id, false, &err));
    }
    end();
}

/* Without statuses, those that were put are freed if one cannot be put. */
Test(replace, many_of_which_one_fails_leave_each_id_one_of_the_two_objects)
{
    static char data[100], longest[200];
    const char *ids[] = {"first", "second", "third", "fourth"};
    struct rdt_tensor tensor = VECTOR(RDT_U8, sizeof data, data);
    struct rdt_value values[5] = {{0}};
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_REPLACE | RDT_PUT_DETACHED};
    struct rdt_ref refs[5];

    begin(NULL);
    for (unsigned i = 0; i < 5; i++)
        values[i] = (struct rdt_value){.tensors = &tensor, .count = 1, .id = longest, .id_bytes = sizeof longest};
    for (unsigned i = 0; i < 4; i++) {
        (void)put(conn, ids[i], sizeof data, RDT_PUT_DETACHED, 1);
        values[i].id = ids[i];
        values[i].id_bytes = strlen(ids[i]);
    }
    must_be(RDT_INVALID, rdt_put_many(conn, values, 5, &options, refs, NULL, &err));
    must_ok(rdt_ping(conn, LONG, &err));
    for (unsigned i = 0; i < 4; i++) {
        struct rdt_ref id = ref_named(ids[i]);
        struct rdt_stat stat;
        must_ok(rdt_stat(other, &id, &stat, &err));
        must_ok(rdt_free(conn, &id, false, &err));
    }
    end();
}
