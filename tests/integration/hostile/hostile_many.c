/* SPDX-License-Identifier: Apache-2.0 */
/* LOAD_MANY between nodes: a node that has the key and answers nonsense, an older one that does not know the request, and one
 * that asks for what it may not have. Objects about which the answer is worth nothing are fetched one by one. */
#include <signal.h>

#include "client/rdt_many.h"
#include "tests/integration/hostile/peer_fixture.h"
#include "tests/support/cluster.h"

TestSuite(hostile_many, .timeout = 120);

#define N 16u
#define GENERATION 7u

static const char *const none[] = {NULL};
static struct rdt_ref refs[N];
static rdt_object *objects[N];
static enum rdt_status statuses[N];
static struct raw watcher;
static unsigned n_calls, n_pulls; /* that the daemon has sent so far */
static uint64_t waiters, heap;    /* before anything was asked */

static void begin_many(void)
{
    begin_with_insider(none);
    greeted(&watcher);
    waiters = raw_used(&watcher, "waiters");
    heap = raw_used(&watcher, "heap");
    for (unsigned i = 0; i < N; i++) {
        char id[8];
        (void)snprintf(id, sizeof id, "x%u", i);
        must_ok(rdt_ref_from_id(id, strlen(id), &refs[i], &err));
        memcpy(refs[i].node, rogue_peer_uuid, sizeof refs[i].node);
        (void)snprintf(refs[i].address, sizeof refs[i].address, "rogue:1");
        refs[i].generation = i % 2 ? GENERATION : 0;
    }
}

static void end_many(void)
{
    wait_until(LONG, raw_used(&watcher, "waiters") == waiters && raw_used(&watcher, "heap") == heap);
    raw_close(&watcher);
    end_with_insider();
}

static uint64_t ask(struct raw *raw)
{
    Rdt__Pb__LoadMany request = MESSAGE(load_many, .refs = NULL);
    struct arena arena;
    uint64_t id;

    arena_init(&arena, SIZE_MAX / 2);
    must_ok(ref_list_make(&arena, refs, NULL, N, &request.refs, &err));
    id = raw_send(raw, RDT_MSG_LOAD_MANY, &request.base, NULL, 0);
    arena_fini(&arena);
    return id;
}

/* The next call of the daemon, which is a LOAD_MANY; its number. */
static uint64_t question(void)
{
    Rdt__Pb__Call *call;
    Rdt__Pb__LoadMany *message;
    uint64_t number;

    must(rogue_peer_await(&rogue_peer, RDT_PEER_CALL, ++n_calls));
    call = rdt__pb__call__unpack(NULL, rogue_peer.came[RDT_PEER_CALL].bytes, rogue_peer.came[RDT_PEER_CALL].payload);
    must_say(call->type == RDT_MSG_LOAD_MANY, "type %u", call->type);
    message = rdt__pb__load_many__unpack(NULL, call->request.len, call->request.data);
    must(message && message->refs && message->refs->n_id_bytes == N && !message->region);
    must(
        !memmem(call->request.data, call->request.len, "rogue:1", 7)); /* what the client calls the node is nobody's business */
    number = call->call;
    rdt__pb__load_many__free_unpacked(message, NULL);
    rdt__pb__call__free_unpacked(call, NULL);
    return number;
}

static void reply(uint64_t number, const ProtobufCMessage *answer, enum rdt_status status, const char *text)
{
    static uint8_t packed[1 << 20];
    Rdt__Pb__CallReply message = MESSAGE(call_reply, .call = number, .status = status, .message = (char *)text);

    if (answer)
        message.reply = (ProtobufCBinaryData){protobuf_c_message_pack(answer, packed), packed};
    rogue_peer_send(&rogue_peer, RDT_PEER_CALL_REPLY, &message.base);
}

/* A good answer: of each object one tensor of four bytes. */
struct answer {
    Rdt__Pb__LoadManyReply message;
    Rdt__Pb__TensorList tensors;
    int32_t status[N];
    uint32_t count[N], inline_bytes[N], dtype[N], ndim[N], metadata_bytes[N];
    uint64_t hold[N], generation[N], offset[N], shape[N];
    uint8_t data[64 * N], metadata[N];
    Rdt__Pb__SharedRegion region, *regions[1];
};

static void answer_init(struct answer *answer)
{
    memset(answer, 0, sizeof *answer);
    rdt__pb__load_many_reply__init(&answer->message);
    rdt__pb__tensor_list__init(&answer->tensors);
    for (unsigned i = 0; i < N; i++) {
        answer->count[i] = answer->ndim[i] = answer->metadata_bytes[i] = 1;
        answer->inline_bytes[i] = 4;
        answer->dtype[i] = RDT_U8;
        answer->generation[i] = GENERATION;
        answer->shape[i] = 4;
        answer->metadata[i] = (uint8_t)('a' + i);
        fill_pattern(answer->data + 64 * i, 4, i);
    }
    answer->tensors.n_dtype = answer->tensors.n_ndim = answer->tensors.n_shape = answer->tensors.n_offset = N;
    answer->tensors.dtype = answer->dtype;
    answer->tensors.ndim = answer->ndim;
    answer->tensors.shape = answer->shape;
    answer->tensors.offset = answer->offset;
    answer->message.tensors = &answer->tensors;
    answer->message.status = answer->status;
    answer->message.n_count = answer->message.n_inline_bytes = answer->message.n_hold = answer->message.n_generation = N;
    answer->message.n_metadata_bytes = N;
    answer->message.count = answer->count;
    answer->message.inline_bytes = answer->inline_bytes;
    answer->message.hold = answer->hold;
    answer->message.generation = answer->generation;
    answer->message.metadata_bytes = answer->metadata_bytes;
    answer->message.metadata = (ProtobufCBinaryData){N, answer->metadata};
    answer->message.inline_data = (ProtobufCBinaryData){sizeof answer->data, answer->data};
}

static Rdt__Pb__LoadManyReply *passed_on(struct raw *raw, uint64_t id)
{
    return (Rdt__Pb__LoadManyReply *)raw_reply(raw, id, &rdt__pb__load_many_reply__descriptor);
}

/* ---- answers ---- */

/* What another node says of holds, memory, transfers and trust is not passed on. */
Test(hostile_many, an_answer_has_nothing_but_bytes_for_the_client)
{
    Rdt__Pb__LoadManyReply *seen;
    static struct answer answer;
    struct raw raw;
    uint64_t id;

    begin_many();
    greeted(&raw);
    id = ask(&raw);
    answer_init(&answer);
    for (unsigned i = 0; i < N; i++)
        answer.hold[i] = 100 + i;
    rdt__pb__shared_region__init(&answer.region);
    answer.regions[0] = &answer.region;
    answer.message.n_regions = 1;
    answer.message.regions = answer.regions;
    answer.message.n_mutable_shared = N;
    answer.message.mutable_shared = answer.count;
    answer.message.inline_transfer = answer.message.shared_transfer = 4711;
    answer.message.pickles_trusted = true;
    reply(question(), &answer.message.base, RDT_OK, "");
    seen = passed_on(&raw, id);
    must(seen->n_status == 0 && seen->n_count == N && seen->n_hold == N && seen->n_regions == 0 && seen->n_mutable_shared == 0);
    must(seen->inline_transfer != 0 && seen->inline_transfer != 4711 && seen->shared_transfer == 0 && !seen->pickles_trusted);
    for (unsigned i = 0; i < N; i++)
        must(seen->hold[i] == 0 && seen->generation[i] == GENERATION && holds_pattern(seen->inline_data.data + 64 * i, 4, i));
    must(seen->metadata.len == N && memcmp(seen->metadata.data, answer.metadata, N) == 0);
    rdt__pb__load_many_reply__free_unpacked(seen, NULL);
    raw_close(&raw);
    end_many();
}

static void too_few_statuses(struct answer *answer)
{
    answer->message.n_status = N - 1;
}

static void fewer_columns(struct answer *answer)
{
    answer->message.n_hold = N - 1;
}

static void columns_of_one_more(struct answer *answer)
{
    answer->status[3] = RDT_AGAIN;
    answer->message.n_status = N;
}

static void another_generation(struct answer *answer)
{
    answer->generation[1] = GENERATION + 1;
}

static void no_generation(struct answer *answer)
{
    answer->generation[2] = 0;
}

static void no_bytes(struct answer *answer)
{
    answer->inline_bytes[N - 1] = 0;
    answer->message.inline_data.len -= 64;
}

static void bytes_of_the_next_one(struct answer *answer)
{
    answer->offset[4] = 64;
}

static void more_bytes_than_came(struct answer *answer)
{
    answer->message.inline_data.len -= 64;
}

static void bytes_of_nobody(struct answer *answer)
{
    answer->inline_bytes[0] = UINT32_MAX;
}

static void too_many_tensors(struct answer *answer)
{
    answer->count[0] = 2;
}

static void tensors_of_nobody(struct answer *answer)
{
    answer->message.tensors = NULL;
}

static void unknown_dtype(struct answer *answer)
{
    answer->dtype[5] = 250;
}

static void more_text_than_came(struct answer *answer)
{
    answer->metadata_bytes[0] = UINT32_MAX;
}

static void more_than_an_answer_has(struct answer *answer)
{
    static uint8_t much[256u << 10];

    answer->inline_bytes[0] = sizeof much - 64 * (N - 1);
    answer->message.inline_data = (ProtobufCBinaryData){sizeof much, much};
}

Test(hostile_many, answers_that_do_not_fit_are_worth_nothing)
{
    static void (*const lies[])(struct answer *) = {
        too_few_statuses,  fewer_columns,   columns_of_one_more,   another_generation,     no_generation,
        no_bytes,          bytes_of_nobody, bytes_of_the_next_one, more_bytes_than_came,   too_many_tensors,
        tensors_of_nobody, unknown_dtype,   more_text_than_came,   more_than_an_answer_has};
    static struct answer answer;
    Rdt__Pb__LoadManyReply *seen;
    struct raw raw;

    begin_many();
    greeted(&raw);
    for (size_t k = 0; k < sizeof lies / sizeof *lies; k++) {
        uint64_t id = ask(&raw);
        answer_init(&answer);
        lies[k](&answer);
        reply(question(), &answer.message.base, RDT_OK, "");
        seen = passed_on(&raw, id);
        must_say(seen->n_status == N && seen->n_count == 0 && seen->inline_data.len == 0, "lie %zu", k);
        for (unsigned i = 0; i < N; i++)
            must_say(seen->status[i] == RDT_UNSUPPORTED, "lie %zu: %d", k, seen->status[i]);
        rdt__pb__load_many_reply__free_unpacked(seen, NULL);
    }
    raw_close(&raw);
    end_many();
}

/* Statuses of which nobody has heard, and an answer in which nothing fitted. */
Test(hostile_many, objects_without_bytes_are_left_out)
{
    static const enum rdt_status codes[] = {RDT_FREED, (enum rdt_status)12345, (enum rdt_status) - 12345, RDT_NOT_PUT};
    Rdt__Pb__LoadManyReply *seen;
    static struct answer answer;
    struct raw raw;
    uint64_t id;

    begin_many();
    greeted(&raw);
    id = ask(&raw);
    answer_init(&answer);
    for (unsigned i = 0; i < N; i++)
        answer.status[i] = codes[i % 4];
    rdt__pb__load_many_reply__init(&answer.message);
    answer.message.status = answer.status;
    answer.message.n_status = N;
    reply(question(), &answer.message.base, RDT_OK, "");
    seen = passed_on(&raw, id);
    for (unsigned i = 0; i < N; i++)
        must(seen->status[i] == RDT_UNSUPPORTED);
    must(seen->n_count == 0 && seen->inline_transfer == 0);
    rdt__pb__load_many_reply__free_unpacked(seen, NULL);
    raw_close(&raw);
    end_many();
}

/* ---- one by one ---- */

static int fetch_all(struct actor *self, void *arg)
{
    rdt *conn = node_client(&node, "asker");
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG};

    actor_step(self);
    must_be(RDT_FREED, rdt_fetch_each(conn, refs, N, &options, objects, statuses, &err));
    for (unsigned i = 0; i < N; i++)
        must(statuses[i] == RDT_FREED);
    rdt_close(conn);
    return 0;
}

/* Answers every pull of the actor's that comes. */
static void refuse_pulls(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        Rdt__Pb__PullMeta meta = MESSAGE(pull_meta, .status = RDT_FREED, .message = (char *)"it was freed");
        must(rogue_peer_await(&rogue_peer, RDT_PEER_PULL, ++n_pulls));
        meta.transfer = rogue_peer.pulls[(n_pulls - 1) % INSIDER_ASKED];
        rogue_peer_send(&rogue_peer, RDT_PEER_PULL_META, &meta.base);
    }
}

/* A daemon of an older version refuses the request, and one that lies gets no other chance. */
Test(hostile_many, what_the_node_does_not_hand_out_is_pulled)
{
    static struct answer answer;
    struct actor asker;

    begin_many();
    for (unsigned older = 0; older < 2; older++) {
        actor_start(&asker, fetch_all, NULL);
        actor_await(&asker);
        answer_init(&answer);
        another_generation(&answer);
        if (older)
            reply(question(), NULL, RDT_DENIED, "another node may not send request 91");
        else
            reply(question(), &answer.message.base, RDT_OK, "");
        refuse_pulls(N);
        actor_wait(&asker);
    }
    end_many();
}

static int ask_and_die(struct actor *self, void *arg)
{
    rdt *conn = node_client(&node, "asker");

    actor_step(self);
    (void)rdt_fetch(conn, refs, N, NULL, objects, NULL);
    return 0;
}

Test(hostile_many, asker_that_is_killed_leaves_nothing)
{
    static struct answer answer;
    Rdt__Pb__Call *call;
    struct actor asker;
    uint64_t number;

    begin_many();
    actor_start(&asker, ask_and_die, NULL);
    actor_await(&asker);
    number = question();
    must_say(raw_used(&watcher, "waiters") == waiters + 2, "the request and its question");
    must(raw_used(&watcher, "heap") > heap);
    actor_kill(&asker, SIGKILL);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_CALL, ++n_calls));
    call = rdt__pb__call__unpack(NULL, rogue_peer.came[RDT_PEER_CALL].bytes, rogue_peer.came[RDT_PEER_CALL].payload);
    must(call->type == RDT_MSG_CANCEL_REQUEST && call->call == number);
    rdt__pb__call__free_unpacked(call, NULL);
    answer_init(&answer);
    reply(number, &answer.message.base, RDT_OK, ""); /* nobody waits for it */
    rogue_peer_flush(&rogue_peer);
    end_many();
}

/* Many answers are as much as a link's queue may have: the node is asked for them as it answers. */
Test(hostile_many, answers_leave_room_on_the_link)
{
    enum { ASKS = 60 };
    Rdt__Pb__Stat stat = MESSAGE(stat, .ref = NULL);
    static struct answer answer;
    Rdt__Pb__Ref wire;
    struct raw raw, other;
    uint64_t number;

    begin_many();
    greeted(&raw);
    greeted(&other);
    for (unsigned i = 0; i < ASKS; i++)
        (void)ask(&raw);
    number = question();
    wait_until(LONG, raw_used(&watcher, "waiters") == waiters + 2 * ASKS);
    wire_ref_from(&refs[0], &wire);
    stat.ref = &wire;
    (void)raw_send(&other, RDT_MSG_STAT, &stat.base, NULL, 0);
    do {
        must(rogue_peer_await(&rogue_peer, RDT_PEER_CALL, rogue_peer.came[RDT_PEER_CALL].n + 1));
    } while (memmem(rogue_peer.came[RDT_PEER_CALL].payload, rogue_peer.came[RDT_PEER_CALL].bytes, "x1x2x3", 6));
    must_say(rogue_peer.came[RDT_PEER_CALL].n <= 20, "%u answers of 256 KiB may come", rogue_peer.came[RDT_PEER_CALL].n);
    answer_init(&answer);
    for (unsigned i = 0; i < ASKS; i++) {
        must(rogue_peer_await(&rogue_peer, RDT_PEER_CALL, i + 1));
        reply(number + i, &answer.message.base, RDT_OK, "");
    }
    for (unsigned i = 0; i < ASKS; i++) {
        must(raw_next(&raw));
        must(raw.frame.type == RDT_MSG_LOAD_MANY && raw.frame.flags == FRAME_REPLY);
    }
    raw_close(&raw);
    raw_close(&other);
    end_many();
}

/* Nobody is asked with more than one node's refs, by name, or for more than an answer has. */
Test(hostile_many, only_refs_of_one_node_are_asked_for)
{
    enum { MORE = 257 };
    static struct rdt_ref many[MORE];
    Rdt__Pb__LoadMany request = MESSAGE(load_many, .refs = NULL);
    Rdt__Pb__LoadManyReply *seen;
    struct arena arena;
    struct raw raw;

    begin_many();
    greeted(&raw);
    refs[N - 1].node[0] ^= 1;
    seen = passed_on(&raw, ask(&raw));
    must(seen->n_status == N && seen->status[0] == RDT_UNSUPPORTED);
    rdt__pb__load_many_reply__free_unpacked(seen, NULL);
    refs[N - 1] = refs[0];
    must_ok(rdt_ref_from_name("named", 0, NULL, &refs[3], &err));
    memcpy(refs[3].node, rogue_peer_uuid, sizeof refs[3].node);
    seen = passed_on(&raw, ask(&raw));
    must(seen->n_status == N && seen->status[0] == RDT_UNSUPPORTED);
    rdt__pb__load_many_reply__free_unpacked(seen, NULL);
    for (unsigned i = 0; i < MORE; i++)
        many[i] = refs[0];
    arena_init(&arena, SIZE_MAX / 2);
    must_ok(ref_list_make(&arena, many, NULL, MORE, &request.refs, &err));
    (void)raw_send(&raw, RDT_MSG_LOAD_MANY, &request.base, NULL, 0);
    refuses(&raw, RDT_LIMIT, "257 objects: at most 256");
    arena_fini(&arena);
    must(rogue_peer.came[RDT_PEER_CALL].n == 0);
    raw_close(&raw);
    end_many();
}

/* ---- a node that asks ---- */

static Rdt__Pb__CallReply *ask_daemon(const ProtobufCMessage *request)
{
    static uint8_t packed[4096];
    static uint64_t number;
    Rdt__Pb__Requester requester = MESSAGE(requester, .uid = geteuid());
    Rdt__Pb__Call call = MESSAGE(call, .call = ++number, .type = RDT_MSG_LOAD_MANY, .requester = &requester);

    call.request = (ProtobufCBinaryData){protobuf_c_message_pack(request, packed), packed};
    rogue_peer_send(&rogue_peer, RDT_PEER_CALL, &call.base);
    must(rogue_peer_await(&rogue_peer, RDT_PEER_CALL_REPLY, (unsigned)number));
    return rdt__pb__call_reply__unpack(NULL, rogue_peer.came[RDT_PEER_CALL_REPLY].bytes,
                                       rogue_peer.came[RDT_PEER_CALL_REPLY].payload);
}

/* Another node gets bytes, and no memory, of what the user may see here. */
Test(hostile_many, a_node_gets_neither_memory_nor_what_it_loads_into_it)
{
    Rdt__Pb__RegionUse use = MESSAGE(region_use, .region = 1, .generation = 1);
    Rdt__Pb__LoadMany request = MESSAGE(load_many, .region = &use);
    Rdt__Pb__LoadManyReply *seen;
    Rdt__Pb__CallReply *answer;
    uint8_t *memory;
    struct arena arena;

    begin_many();
    answer = ask_daemon(&request.base);
    must_say(answer->status == RDT_DENIED && strstr(answer->message, "no region here"), "%s", answer->message);
    rdt__pb__call_reply__free_unpacked(answer, NULL);
    memory = alloc_memory(bystander, 4096);
    refs[0] = put_one(bystander, &VECTOR(RDT_U8, 4096, memory), "shared");
    refs[1] = put_pattern(bystander, "small", 100, 3);
    refs[2] = refs[1];
    refs[2].generation++;
    arena_init(&arena, SIZE_MAX / 2);
    request.region = NULL;
    must_ok(ref_list_make(&arena, refs, NULL, 3, &request.refs, &err));
    answer = ask_daemon(&request.base);
    must_say(answer->status == RDT_OK, "%s", answer->message);
    seen = rdt__pb__load_many_reply__unpack(NULL, answer->reply.len, answer->reply.data);
    must(seen && seen->n_status == 3 && seen->n_count == 1 && seen->hold[0] == 0 && seen->n_regions == 0);
    must(seen->status[0] == RDT_UNSUPPORTED && seen->status[1] == RDT_OK && seen->status[2] == RDT_UNSUPPORTED);
    must(seen->inline_bytes[0] == 100 && holds_pattern(seen->inline_data.data, 100, 3));
    rdt__pb__load_many_reply__free_unpacked(seen, NULL);
    rdt__pb__call_reply__free_unpacked(answer, NULL);
    arena_fini(&arena);
    must_ok(rdt_free(bystander, &refs[0], false, &err));
    must_ok(rdt_free(bystander, &refs[1], false, &err));
    must_ok(rdt_dealloc(bystander, memory, &err));
    end_many();
}
