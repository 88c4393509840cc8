/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's heap that a client occupies: incomplete messages, answers that nobody reads, and metadata in flight. All of
 * it is charged to the client, and a limit bounds it. */
#include "client/rdt_many.h"
#include "client/rdt_plan.h"
#include "tests/integration/limits/limits.h"
#include "tests/support/cluster.h"

TestSuite(limits_heap, .timeout = 120);

#define LONG_IDS 3000u
#define UNKNOWN 60000u /* no request has this number, so its message is read and refused */

/* Sends the first bytes of a message of `all` bytes. */
static void send_part(struct raw *raw, size_t all, size_t bytes)
{
    uint8_t *zeros = calloc(1, bytes);

    must(zeros && raw_frame(raw, (uint32_t)all, UNKNOWN, 0, 0, ++raw->last_id, zeros, bytes, NULL, 0));
    free(zeros);
}

static void send_rest(struct raw *raw, size_t bytes)
{
    uint8_t *zeros = calloc(1, bytes);

    must(zeros && raw_bytes(raw, zeros, bytes));
    free(zeros);
}

static void expect_refusal(struct raw *raw, enum rdt_status status, const char *text)
{
    char said[256];

    cr_assert_eq(raw_error(raw, said), status);
    cr_assert_eq(raw->frame.request_id, raw->last_id);
    cr_assert(strstr(said, text), "%s", said);
}

static void ping(struct raw *raw)
{
    Rdt__Pb__Ping request = RDT__PB__PING__INIT;

    protobuf_c_message_free_unpacked(
        raw_reply(raw, raw_send(raw, RDT_MSG_PING, &request.base, NULL, 0), &rdt__pb__empty__descriptor), NULL);
}

Test(limits_heap, messages_that_are_still_coming_are_their_owners)
{
    struct raw first, second;

    begin((const char *[]){"--owner-max-heap=8MiB", NULL});
    greeted(&first);
    greeted(&second);
    send_part(&first, 6 * MIB, 5 * MIB);
    wait_until(LONG, used(0, "heap") > 6 * MIB);
    send_part(&second, 4 * MIB, 3 * MIB);
    expect_refusal(&second, RDT_LIMIT, "owner_max_heap");
    send_rest(&second, MIB); /* it is passed over, and the connection goes on */
    ping(&second);
    send_rest(&first, MIB);
    expect_refusal(&first, RDT_UNSUPPORTED, "is unknown");
    wait_until(LONG, used(0, "heap") == 0);
    send_part(&second, 4 * MIB, 4 * MIB);
    expect_refusal(&second, RDT_UNSUPPORTED, "is unknown");
    send_part(&second, MIB, MIB);
    send_part(&second, 6 * MIB, 5 * MIB); /* comes while the one before is still counted */
    wait_until(LONG, used(0, "heap") > 6 * MIB);
    raw_close(&second); /* in mid-frame */
    wait_until(LONG, used(0, "heap") == 0);
    raw_close(&first);
    end(NULL);
}

/* The metadata of one object, so many times. */
static void ask_metadata(struct raw *raw, const struct rdt_ref *ref, unsigned n)
{
    Rdt__Pb__FetchItem items[32], *list[32];

    Rdt__Pb__Ref name =
        MESSAGE(ref, .id = (ProtobufCBinaryData){ref->id_bytes, (uint8_t *)(uintptr_t)ref->id}, .any_owner = true);
    for (unsigned i = 0; i < n; i++) {
        rdt__pb__fetch_item__init(&items[i]);
        items[i].handle = i + 1;
        items[i].ref = &name;
        list[i] = &items[i];
    }
    Rdt__Pb__Fetch fetch = MESSAGE(fetch, .items = list, .n_items = n, .mode = RDT__PB__FETCH_MODE__FETCH_MODE_COPY,
                                   .meta_only = true, .timeout_ns = -1);
    (void)raw_send(raw, RDT_MSG_FETCH, &fetch.base, NULL, 0);
}

/* How many of n answers bring it; the others say what there is no room for. */
static unsigned take_answers(struct raw *raw, unsigned n, const char *text)
{
    unsigned good = 0;

    for (unsigned i = 0; i < n; i++) {
        do
            cr_assert(raw_next(raw));
        while (raw->frame.type != RDT_EVENT_FETCH_DONE);
        Rdt__Pb__FetchDone *done = rdt__pb__fetch_done__unpack(NULL, raw->frame.length, raw->frame.payload);
        cr_assert_not_null(done);
        cr_assert(done->status == RDT_OK || (done->status == RDT_LIMIT && strstr(done->message, text)), "%d %s", done->status,
                  done->message);
        good += done->status == RDT_OK;
        rdt__pb__fetch_done__free_unpacked(done, NULL);
    }
    return good;
}

static struct rdt_ref put_metadata(rdt *client, size_t metadata_bytes, size_t bytes)
{
    char *metadata = calloc(1, metadata_bytes);
    struct rdt_put_options options = {.struct_size = sizeof options, .metadata = metadata, .metadata_bytes = metadata_bytes};
    struct rdt_ref ref = put_as(client, &VECTOR(RDT_U8, bytes, alloc_memory(client, bytes)), 1, &options);

    free(metadata);
    return ref;
}

Test(limits_heap, answers_that_nobody_reads_are_their_clients)
{
    struct raw idle;

    begin((const char *[]){"--client-max-heap=3500KiB", NULL});
    struct rdt_ref ref = put_metadata(other, MIB, 4096);
    greeted(&idle);
    ask_metadata(&idle, &ref, 20);
    wait_until(LONG, used(0, "transfers") == 0 && used(0, "heap") >= 2 * MIB + MIB);
    cr_assert_leq(used(0, "heap"), 3500 * 1024 + MIB + 8192); /* of the other: the object's */
    unsigned good = take_answers(&idle, 20, "client_max_heap");
    cr_assert(good >= 3 && good <= 4, "%u", good);
    ask_metadata(&idle, &ref, 2);
    cr_assert_eq(take_answers(&idle, 2, ""), 2);
    raw_close(&idle);
    end(NULL);
}

Test(limits_heap, metadata_from_another_node_is_its_readers_until_it_is_answered)
{
    const char *flags[] = {"--client-max-heap=10MiB", NULL};
    struct cluster c;
    struct rdt_ref refs[8];
    struct rdt_fetch_options options = RDT_INIT(options);
    rdt_object *objects[8] = {NULL};

    cluster_start(&c, 2, &(struct cluster_options){.flags_of = {NULL, flags}, .no_ucx = true, .stream = true});
    rdt *owner = node_client(&c.node[0], "owner");
    rdt *reader = node_client(&c.node[1], "reader");
    refs[0] = put_metadata(owner, 2 * MIB, 300000);
    for (unsigned i = 1; i < 8; i++)
        refs[i] = refs[0];
    options.mode = RDT_FETCH_COPY; /* each its own: none takes part in another's */
    options.timeout_ns = LONG;
    must_refuse(RDT_LIMIT, "client_max_heap", rdt_fetch(reader, refs, 8, &options, objects, &err));
    /* Other answers are charged to the reader until they are read, and cancelled transfers until they have stopped. */
    wait_until(LONG, rdt_fetch(reader, refs, 2, &options, objects, NULL) == RDT_OK);
    rdt_release(objects[0]);
    rdt_release(objects[1]);
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&c, NULL);
}

/* Puts n empty objects with long ids in one message. Returns of how many the answer speaks, and how many are there. */
static uint64_t put_long_ids(unsigned n, uint64_t *there_p)
{
    static uint8_t ids[LONG_IDS * RDT_MAX_ID_BYTES];
    static uint32_t counts[LONG_IDS], id_bytes[LONG_IDS];
    Rdt__Pb__TensorList list = RDT__PB__TENSOR_LIST__INIT;
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT;
    Rdt__Pb__PutManyReply *reply = NULL;
    uint64_t told = 0;
    struct raw raw;

    for (unsigned i = 0; i < n; i++) {
        id_bytes[i] = RDT_MAX_ID_BYTES;
        memset(ids + (size_t)i * RDT_MAX_ID_BYTES, 'x', RDT_MAX_ID_BYTES);
        memcpy(ids + (size_t)i * RDT_MAX_ID_BYTES, &(uint16_t){(uint16_t)i}, 2);
    }
    greeted(&raw);
    use.region = raw_alloc(&raw, 4096, NULL, &use.generation);
    Rdt__Pb__PutMany message = MESSAGE(put_many, .region = &use, .tensors = &list, .count = counts, .n_count = n,
                                       .id_bytes = id_bytes, .n_id_bytes = n, .ids = {(size_t)n * RDT_MAX_ID_BYTES, ids});
    (void)raw_send(&raw, RDT_MSG_PUT_MANY, &message.base, NULL, 0);
    do
        must(raw_next(&raw));
    while (raw.frame.type != RDT_MSG_PUT_MANY);
    if (!(raw.frame.flags & FRAME_ERROR))
        must(reply = rdt__pb__put_many_reply__unpack(NULL, raw.frame.length, raw.frame.payload));
    for (size_t i = 0; reply && i < reply->n_generation; i++)
        told += reply->generation[i] != 0;
    if (reply)
        rdt__pb__put_many_reply__free_unpacked(reply, NULL);
    *there_p = used(0, "objects");
    raw_close(&raw);
    wait_until(LONG, used(0, "objects") == 0);
    return told;
}

/* The answer repeats the ids, and there is less room for it the more objects there are. */
Test(limits_heap, clients_are_told_of_all_that_they_have_put)
{
    begin((const char *[]){"--client-max-heap=9500KiB", NULL});
    for (unsigned n = 500; n <= LONG_IDS; n += 500) {
        uint64_t there, told = put_long_ids(n, &there);
        must_say(there == told, "the answer speaks of %llu objects, and %llu are there", (unsigned long long)told,
                 (unsigned long long)there);
        cr_assert(n < LONG_IDS ? told > 0 : told == 0, "%llu of %u", (unsigned long long)told, n);
    }
    end(NULL);
}

/* Publishes so many names of the object, with a session of its own. *there_p: how many there are then. */
static enum rdt_status publish_names(const struct rdt_ref *ref, unsigned n, uint64_t *there_p)
{
    static char texts[RDT_PUBLISH_MOST][8];
    static const char *names[RDT_PUBLISH_MOST];
    static struct rdt_ref refs[RDT_PUBLISH_MOST];
    struct rdt_publish_options options = {.struct_size = sizeof options, .lease = true};
    rdt *publisher = node_client(&node, "publisher");

    for (unsigned i = 0; i < n; i++) {
        (void)snprintf(texts[i], sizeof texts[i], "n%u", i);
        names[i] = texts[i];
        refs[i] = *ref;
    }
    enum rdt_status status = rdt_publish_many(publisher, names, refs, n, &options, NULL, NULL);
    *there_p = used(0, "names");
    rdt_close(publisher);
    wait_until(LONG, used(0, "names") == 0);
    return status;
}

/* With so many clients a daemon counts answers of 2 KiB, unless the machine has much memory. Versions above 127 have 2 bytes
 * there. */
Test(limits_heap, clients_are_told_of_all_names_that_they_have_published)
{
    char byte = 1;
    unsigned n_told = 0, n_refused = 0;

    begin((const char *[]){"--owner-max-heap=500KiB", "--max-clients=1000000", NULL});
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, 1, &byte), NULL), name = {.is_name = 1};
    for (unsigned i = 0; i < 128; i++)
        must_ok(rdt_publish(conn, "early", &ref, NULL, NULL, &err));
    must_ok(rdt_ref_from_name("early", 0, NULL, &name, &err));
    must_ok(rdt_unpublish(conn, &name, &err));
    for (unsigned n = 700; n <= RDT_PUBLISH_MOST; n += 2) {
        uint64_t there;
        enum rdt_status status = publish_names(&ref, n, &there);
        must(status == RDT_OK || status == RDT_LIMIT);
        must_say(there == (status == RDT_OK ? n : 0), "the answer is %s, and %llu of %u names are there",
                 rdt_status_name(status), (unsigned long long)there, n);
        n_told += status == RDT_OK;
        n_refused += status == RDT_LIMIT;
    }
    cr_assert(n_told > 0 && n_refused > 0, "%u told, %u refused", n_told, n_refused);
    must_ok(rdt_free(conn, &ref, false, &err));
    end(NULL);
}

/* Whoever publishes the first part has the daemon make room for all. */
Test(limits_heap, versions_of_many_parts_are_their_publishers)
{
    const char *flags[] = {"--client-max-heap=100KiB", NULL};
    struct rdt_ref part, name;
    rdt_request *request;

    begin(flags);
    must_ok(rdt_ref_from_name("policy", 0, NULL, &name, &err));
    must_ok(rdt_put(conn, NULL, 0, NULL, &part, &err)); /* a rank may have no tensors */
    uint64_t before = used(session(conn), "heap");
    must_refuse(RDT_LIMIT, "client_max_heap", rdt_publish_part(conn, &name, 1, 0, 4096, &part, NULL, LONG, NULL, &err));
    wait_until(LONG, used(session(conn), "heap") == before);
    must_ok(rdt_publish_part_start(conn, &name, 1, 0, 1000, &part, NULL, LONG, &request, &err));
    wait_until(LONG, used(session(conn), "heap") >= before + 1000 * 32);
    rdt_request_destroy(request);
    wait_until(LONG, used(session(conn), "heap") == before);
    must_ok(rdt_free(conn, &part, false, &err));
    end((const char *const[]){"did not become a version", NULL});
}

/* What the daemon keeps of an EXISTS is the decoded message. With what is refused as a whole each ref has that status. */
Test(limits_heap, exists_is_its_askers)
{
    static struct rdt_ref refs[RDT_MAX_FETCH_REFS];
    static enum rdt_status statuses[RDT_MAX_FETCH_REFS];

    begin((const char *[]){"--client-max-heap=2500KiB", NULL});
    for (unsigned i = 0; i < RDT_MAX_FETCH_REFS; i++) {
        must_ok(rdt_ref_from_id("x", 1, &refs[i], &err));
        (void)snprintf(refs[i].address, sizeof refs[i].address, "n%u:1", i); /* nothing in common */
    }
    must_refuse(RDT_LIMIT, "client_max_heap", rdt_exists(conn, refs, RDT_MAX_FETCH_REFS, statuses, &err));
    for (unsigned i = 0; i < RDT_MAX_FETCH_REFS; i++)
        cr_assert_eq(statuses[i], RDT_LIMIT);
    for (unsigned i = 0; i < RDT_MAX_FETCH_REFS; i++)
        refs[i].address[0] = '\0';
    must_ok(rdt_exists(conn, refs, RDT_MAX_FETCH_REFS, statuses, &err));
    cr_assert_eq(statuses[7], RDT_NOT_PUT);
    end(NULL);
}
