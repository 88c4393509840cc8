/* SPDX-License-Identifier: Apache-2.0 */
/* Calls for many objects and names on one node: each has a status of its own. */
#include "client/rdt_many.h"
#include "tests/integration/calls/names.h"

TestSuite(many, .timeout = 120);

#define MANY 20000u /* more than one message has */

static const int64_t one[] = {1};

static struct rdt_ref id_ref(const char *word, unsigned i)
{
    struct rdt_ref ref = {0};
    char id[64];

    (void)snprintf(id, sizeof id, "%s-%u", word, i);
    must_ok(rdt_ref_from_id(id, strlen(id), &ref, &err));
    return ref;
}

/* ---- put ---- */

static void fill_values(struct rdt_value *values, struct rdt_tensor *tensors, uint32_t *data, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        data[i] = i;
        tensors[i] = VECTOR(RDT_U32, 1, &data[i]);
        tensors[i].shape = one;
        values[i] = (struct rdt_value){.tensors = &tensors[i], .count = 1};
    }
}

Test(many, put_many_makes_objects_of_their_own)
{
    static struct rdt_value values[5000];
    static struct rdt_tensor tensors[5000];
    static struct rdt_ref refs[5000];
    static uint32_t data[5000];
    static enum rdt_status statuses[5000];
    struct node_status before, after;
    rdt_object *object;

    begin(NULL);
    fill_values(values, tensors, data, 5000);
    values[7].id = "seven";
    values[7].id_bytes = 5;
    values[8].metadata = "eight";
    values[8].metadata_bytes = 5;
    must_ok(rdt_put_many(trainer, values, 5000, NULL, refs, statuses, &err));
    node_status(&node, &before);
    cr_assert_eq(before.objects, 5000u);
    for (unsigned i = 0; i < 5000; i += 619) {
        object = fetch_one(sampler, &refs[i], RDT_FETCH_AUTO);
        cr_assert_eq(*(const uint32_t *)tensor_of(object, 0).data, i);
        rdt_release(object);
    }
    object = fetch_one(sampler, &(struct rdt_ref){.any_owner = 1, .id_bytes = 5, .id = "seven"}, RDT_FETCH_AUTO);
    cr_assert_eq(*(const uint32_t *)tensor_of(object, 0).data, 7);
    cr_assert_eq(info_of(object).ref.generation, refs[7].generation);
    rdt_release(object);
    object = fetch_one(sampler, &refs[8], RDT_FETCH_AUTO);
    cr_assert(memcmp(rdt_object_metadata(object, &(size_t){0}), "eight", 5) == 0);
    rdt_release(object);
    for (unsigned i = 0; i < 5000; i += 2)
        must_ok(rdt_free(trainer, &refs[i], false, &err));
    node_status(&node, &after);
    cr_assert_eq(after.objects, 2500u);
    object = fetch_one(sampler, &refs[4999], RDT_FETCH_AUTO);
    cr_assert_eq(*(const uint32_t *)tensor_of(object, 0).data, 4999u);
    rdt_release(object);
    end();
}

/* Tensors of any strides, several in a value, none, large ones, and memory of the daemon. */
Test(many, put_many_takes_what_put_takes)
{
    static uint8_t big[100 * 1024];
    uint32_t square[9] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    const int64_t shape[] = {3, 3}, transposed[] = {1, 3}, zero[] = {0}, all[] = {sizeof big};
    struct rdt_tensor pair[2] = {{RDT_U32, 2, shape, transposed, square}, {RDT_U32, 1, zero, NULL, NULL}};
    struct rdt_tensor large = {RDT_U8, 1, all, NULL, big}, ours, small = {RDT_U32, 2, shape, NULL, square};
    uint32_t *memory;
    struct rdt_value values[8] = {{pair, 2, NULL, 0, NULL, 0},   {NULL, 0, NULL, 0, NULL, 0},   {&large, 1, NULL, 0, NULL, 0},
                                  {&ours, 1, NULL, 0, NULL, 0},  {&small, 1, NULL, 0, NULL, 0}, {&small, 1, NULL, 0, NULL, 0},
                                  {&small, 1, NULL, 0, NULL, 0}, {&small, 1, NULL, 0, NULL, 0}};
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_ref refs[8];
    rdt_object *object;

    begin(NULL);
    fill_pattern(big, sizeof big, 3);
    memory = alloc_memory(trainer, 4096);
    memory[0] = 5;
    ours = small;
    ours.data = memory;
    options.flags = RDT_PUT_SUM;
    must_ok(rdt_put_many(trainer, values, 8, &options, refs, NULL, &err));
    object = fetch_one(sampler, &refs[0], RDT_FETCH_AUTO);
    cr_assert_eq(rdt_object_count(object), 2u);
    cr_assert_eq(((const uint32_t *)tensor_of(object, 0).data)[1], 3u);
    must_ok(rdt_verify(object, LONG, &err));
    rdt_release(object);
    object = fetch_one(sampler, &refs[1], RDT_FETCH_AUTO);
    cr_assert_eq(rdt_object_count(object), 0u);
    rdt_release(object);
    object = fetch_one(sampler, &refs[2], RDT_FETCH_AUTO);
    cr_assert(holds_pattern(tensor_of(object, 0).data, sizeof big, 3));
    rdt_release(object);
    memory[0] = 6;
    object = fetch_one(sampler, &refs[3], RDT_FETCH_AUTO);
    cr_assert_eq(*(const uint32_t *)tensor_of(object, 0).data, 6u, "memory of rdt_alloc is not copied");
    rdt_release(object);
    must_ok(rdt_dealloc(trainer, memory, &err));
    end();
}

Test(many, put_many_says_which_failed)
{
    static struct rdt_value values[300];
    static struct rdt_tensor tensors[300];
    static struct rdt_ref refs[300];
    static uint32_t data[300];
    static enum rdt_status statuses[300];
    struct rdt_put_options options = RDT_INIT(options);

    begin(NULL);
    fill_values(values, tensors, data, 300);
    (void)put_one(trainer, &tensors[0], "taken");
    values[40].id = values[50].id = "taken";
    values[40].id_bytes = values[50].id_bytes = 5;
    values[60].id = "empty";
    must_refuse(RDT_EXISTS, "value 40", rdt_put_many(trainer, values, 300, NULL, refs, statuses, &err));
    for (unsigned i = 0; i < 300; i++)
        cr_assert_eq(statuses[i],
                     i == 40 || i == 50 ? RDT_EXISTS
                     : i == 60          ? RDT_INVALID
                                        : RDT_OK,
                     "value %u: %s", i, rdt_status_name(statuses[i]));
    cr_assert_eq(node_now(&node).objects, 298u);
    must_refuse(RDT_EXISTS, "value 40", rdt_put_many(trainer, values, 300, NULL, refs, NULL, &err));
    wait_until(LONG, node_now(&node).objects == 298);
    options.id = "one";
    must_refuse(RDT_INVALID, "for one object", rdt_put_many(trainer, values, 300, &options, refs, NULL, &err));
    options = (struct rdt_put_options)RDT_INIT(options);
    options.ttl_ns = SEC;
    must_refuse(RDT_INVALID, "time to live", rdt_put_many(trainer, values, 10, &options, refs, statuses, &err));
    options.flags = RDT_PUT_PENDING;
    options.ttl_ns = 0;
    must_refuse(RDT_INVALID, "PENDING", rdt_put_many(trainer, values, 10, &options, refs, statuses, &err));
    must_ok(rdt_put_many(trainer, NULL, 0, NULL, NULL, NULL, &err));
    end();
}

Test(many, put_many_at_a_limit_puts_what_fits)
{
    static const char *const flags[] = {"--set", "limits.owner_max_objects=100", NULL};
    static struct rdt_value values[300];
    static struct rdt_tensor tensors[300];
    static struct rdt_ref refs[300];
    static uint32_t data[300];
    static enum rdt_status statuses[300];

    begin(flags);
    fill_values(values, tensors, data, 300);
    must_refuse(RDT_LIMIT, "owner_max_objects", rdt_put_many(trainer, values, 300, NULL, refs, statuses, &err));
    for (unsigned i = 0; i < 300; i++)
        cr_assert_eq(statuses[i], i < 100 ? RDT_OK : RDT_LIMIT);
    end();
}

/* The region in which they travel is one region too many. */
Test(many, put_many_without_a_region_puts_one_by_one)
{
    static const char *const flags[] = {"--set", "limits.client_max_regions=2", NULL};
    static struct rdt_value values[300];
    static struct rdt_tensor tensors[300];
    static struct rdt_ref refs[300];
    static uint32_t data[300];

    begin(flags);
    (void)alloc_memory(trainer, 4096);
    (void)alloc_memory(trainer, 4096);
    fill_values(values, tensors, data, 300);
    must_ok(rdt_put_many(trainer, values, 300, NULL, refs, NULL, &err));
    cr_assert_eq(node_now(&node).objects, 300u);
    must_ok(rdt_put_many(trainer, values, 2, NULL, refs, NULL, &err));
    end();
}

static Rdt__Pb__PutMany put_of(Rdt__Pb__RegionUse *use, Rdt__Pb__TensorList *list, uint32_t *count)
{
    Rdt__Pb__PutMany message = RDT__PB__PUT_MANY__INIT;

    message.region = use;
    message.tensors = list;
    message.count = count;
    message.n_count = 2;
    return message;
}

static void must_refuse_put(struct raw *raw, const Rdt__Pb__PutMany *message, enum rdt_status expected)
{
    enum rdt_status status;
    char text[256];

    (void)raw_send(raw, RDT_MSG_PUT_MANY, &message->base, NULL, 0);
    status = raw_error(raw, text);
    must_say(status == expected, "%s: %s", rdt_status_name(status), text);
}

Test(many, put_many_of_a_client_that_lies_is_refused)
{
    Rdt__Pb__TensorList list = RDT__PB__TENSOR_LIST__INIT;
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT;
    Rdt__Pb__PutManyReply *reply;
    Rdt__Pb__PutMany message;
    uint32_t dtype[] = {RDT_U8, RDT_U8}, ndim[] = {1, 1}, index[] = {0, 0}, count[] = {1, 1}, bytes[] = {3, 200};
    uint64_t shape[] = {4096, 4096}, offset[] = {0, 0};
    struct raw raw;

    node_start(&node, &(struct node_options){0});
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    list.n_dtype = list.n_ndim = list.n_region_index = list.n_offset = list.n_shape = 2;
    list.dtype = dtype;
    list.ndim = ndim;
    list.region_index = index;
    list.offset = offset;
    list.shape = shape;
    message = put_of(&use, &list, count);
    must_refuse_put(&raw, &message, RDT_NOT_FOUND); /* the region */
    use.region = raw_alloc(&raw, 8192, NULL, &use.generation);
    count[1] = 2;
    must_refuse_put(&raw, &message, RDT_INVALID);
    count[1] = UINT32_MAX;
    must_refuse_put(&raw, &message, RDT_INVALID);
    count[1] = 1;
    offset[1] = 4097;
    must_refuse_put(&raw, &message, RDT_INVALID);
    offset[1] = UINT64_MAX - 1;
    must_refuse_put(&raw, &message, RDT_INVALID);
    offset[1] = 0;
    index[1] = 1;
    must_refuse_put(&raw, &message, RDT_INVALID);
    index[1] = 0;
    shape[1] = 33000;
    must_refuse_put(&raw, &message, RDT_INVALID);
    shape[1] = 4096;
    message.flags = RDT_PUT_PENDING;
    must_refuse_put(&raw, &message, RDT_INVALID);
    message.flags = 0;
    message.id_bytes = bytes;
    message.n_id_bytes = 1;
    must_refuse_put(&raw, &message, RDT_INVALID);
    message.n_id_bytes = 2;
    must_refuse_put(&raw, &message, RDT_INVALID); /* too long */
    bytes[1] = 3;
    must_refuse_put(&raw, &message, RDT_INVALID); /* not there */
    message.n_id_bytes = 0;
    message.metadata_bytes = bytes;
    message.n_metadata_bytes = 2;
    must_refuse_put(&raw, &message, RDT_INVALID);
    bytes[1] = RDT_MAX_METADATA_BYTES + 1;
    message.metadata = (ProtobufCBinaryData){bytes[0] + bytes[1], calloc(1, bytes[0] + bytes[1])};
    must(message.metadata.data);
    must_refuse_put(&raw, &message, RDT_LIMIT);
    free(message.metadata.data);
    message.metadata = (ProtobufCBinaryData){0, NULL};
    message.n_metadata_bytes = 0;
    message.transport = (char *)"none";
    must_refuse_put(&raw, &message, RDT_UNSUPPORTED);
    message.transport = (char *)"";
    cr_assert_eq(node_now(&node).objects, 0u);
    (void)raw_send(&raw, RDT_MSG_PUT_MANY, &message.base, NULL, 0);
    must(raw_next(&raw) && raw.frame.type == RDT_EVENT_REGION_BACK);
    reply = (Rdt__Pb__PutManyReply *)raw_reply(&raw, raw.last_id, &rdt__pb__put_many_reply__descriptor);
    cr_assert_eq(reply->n_generation, 2u);
    rdt__pb__put_many_reply__free_unpacked(reply, NULL);
    raw_close(&raw);
    node_end(&node, NULL);
}

static int put_and_die(struct actor *self, void *arg)
{
    static struct rdt_value values[50000];
    static struct rdt_tensor tensors[50000];
    static struct rdt_ref refs[50000];
    static uint32_t data[50000];
    rdt *conn = node_client(&node, "putter");

    fill_values(values, tensors, data, 50000);
    actor_step(self);
    for (;;)
        must_ok(rdt_put_many(conn, values, 50000, NULL, refs, NULL, &err));
}

Test(many, putter_that_is_killed_leaves_nothing)
{
    struct actor putter;

    begin(NULL);
    for (int i = 0; i < 5; i++) {
        actor_start(&putter, put_and_die, NULL);
        actor_await(&putter);
        wait_until(LONG, node_now(&node).objects > 1000);
        actor_kill(&putter, SIGKILL);
        wait_until(LONG, node_now(&node).objects == 0);
    }
    end();
}

static int free_them(struct actor *self, void *arg)
{
    rdt *conn = node_client(&node, "freer");

    actor_step(self);
    for (;;)
        must_ok(rdt_free_prefix(conn, "both-", false, NULL, &err));
}

Test(many, free_prefix_of_what_others_end)
{
    static struct rdt_value values[3000];
    static struct rdt_tensor tensors[3000];
    static struct rdt_ref refs[3000];
    static uint32_t data[3000];
    static char ids[3000][16];
    struct rdt_put_options options = RDT_INIT(options);
    struct actor freer;

    begin(NULL);
    fill_values(values, tensors, data, 3000);
    for (unsigned i = 0; i < 3000; i++) {
        values[i].id = ids[i];
        values[i].id_bytes = (size_t)snprintf(ids[i], sizeof ids[i], "both-%u", i);
    }
    options.flags = RDT_PUT_DETACHED;
    actor_start(&freer, free_them, NULL);
    actor_await(&freer);
    for (int i = 0; i < 30; i++) {
        must_ok(rdt_put_many(trainer, values, 3000, &options, refs, NULL, &err));
        must_ok(rdt_free_prefix(trainer, "both-", false, NULL, &err));
        wait_until(LONG, node_now(&node).objects == 0);
    }
    actor_kill(&freer, SIGKILL);
    end();
}

/* ---- exists ---- */

Test(many, exists_tells_objects_names_and_what_has_ended)
{
    enum rdt_status statuses[7];
    struct rdt_ref refs[7], gone;
    uint8_t byte = 1;

    begin(NULL);
    refs[0] = put_one(trainer, &VECTOR(RDT_U8, 1, &byte), "here-0");
    refs[1] = id_ref("here", 0);
    refs[2] = id_ref("missing", 0);
    (void)publish_pattern(trainer, "weights", 1);
    refs[3] = name_ref("weights", 0);
    refs[4] = name_ref("weights", 1);
    refs[5] = name_ref("nothing", 0);
    gone = put_one(trainer, &VECTOR(RDT_U8, 1, &byte), NULL);
    must_ok(rdt_free(trainer, &gone, false, &err));
    refs[6] = gone;
    must_ok(rdt_exists(sampler, refs, 7, statuses, &err));
    cr_assert_eq(statuses[0], RDT_OK);
    cr_assert_eq(statuses[1], RDT_OK);
    cr_assert_eq(statuses[2], RDT_NOT_PUT);
    cr_assert_eq(statuses[3], RDT_OK);
    cr_assert_eq(statuses[4], RDT_NOT_PUT, "there is no version above 1");
    cr_assert_eq(statuses[5], RDT_NOT_PUT);
    cr_assert_eq(statuses[6], RDT_FREED);
    must_ok(rdt_exists(sampler, NULL, 0, NULL, &err));
    unpublish(trainer, "weights");
    must_ok(rdt_exists(sampler, &refs[4], 1, statuses, &err));
    cr_assert_eq(statuses[0], RDT_FREED);
    end();
}

Test(many, exists_of_more_than_one_message_is_in_order)
{
    enum rdt_status *statuses = calloc(MANY, sizeof *statuses);
    struct rdt_ref *refs = calloc(MANY, sizeof *refs);
    uint8_t byte = 1;

    begin(NULL);
    for (unsigned i = 0; i < MANY; i++) {
        char id[32];
        refs[i] = id_ref("object", i);
        (void)snprintf(id, sizeof id, "object-%u", i);
        if (i % 1000 == 7)
            (void)put_one(trainer, &VECTOR(RDT_U8, 1, &byte), id);
    }
    must_ok(rdt_exists(sampler, refs, MANY, statuses, &err));
    for (unsigned i = 0; i < MANY; i++)
        cr_assert_eq(statuses[i], i % 1000 == 7 ? RDT_OK : RDT_NOT_PUT, "object %u: %s", i, rdt_status_name(statuses[i]));
    refs[3].id_bytes = 0;
    memset(statuses, 0, MANY * sizeof *statuses);
    must_refuse(RDT_INVALID, "ref 3", rdt_exists(sampler, refs, MANY, statuses, &err));
    for (unsigned i = 0; i < MANY; i++)
        cr_assert_eq(statuses[i], RDT_INVALID, "nothing is said to exist");
    must_be(RDT_INVALID, rdt_exists(sampler, NULL, 1, statuses, &err));
    free(refs);
    free(statuses);
    end();
}

struct hidden {
    struct rdt_ref refs[4];
};

static int ask_as_stranger(struct actor *self, void *arg)
{
    const struct hidden *hidden = arg;
    enum rdt_status statuses[4];
    rdt *conn;

    must(setgroups(0, NULL) == 0 && setresgid(STRANGER, STRANGER, STRANGER) == 0 &&
         setresuid(STRANGER, STRANGER, STRANGER) == 0);
    node_connect(&node, &conn);
    must_ok(rdt_exists(conn, hidden->refs, 4, statuses, &err));
    must(statuses[0] == RDT_NOT_PUT && statuses[1] == RDT_NOT_PUT);
    must(statuses[2] == RDT_OK && statuses[3] == RDT_OK);
    rdt_close(conn);
    return 0;
}

Test(many, exists_shows_nothing_that_others_hide)
{
    struct rdt_publish_options for_all = RDT_INIT(for_all);
    struct rdt_put_options shown = RDT_INIT(shown);
    struct hidden hidden;
    struct actor stranger;
    uint8_t byte = 1;

    need_root();
    begin(NULL);
    hidden.refs[0] = put_one(trainer, &VECTOR(RDT_U8, 1, &byte), "hidden");
    hidden.refs[0].generation = 0;
    must_ok(rdt_publish(trainer, "hidden", &hidden.refs[0], NULL, NULL, &err));
    must_ok(rdt_ref_from_name("hidden", 0, &hidden.refs[0], &hidden.refs[1], &err));
    shown.visibility = RDT_VISIBLE_TO_ALL;
    hidden.refs[2] = put_as(trainer, &VECTOR(RDT_U8, 1, &byte), 1, &shown);
    for_all.visibility = RDT_VISIBLE_TO_ALL;
    for_all.name_ref = &hidden.refs[3];
    must_ok(rdt_publish(trainer, "shown", &hidden.refs[2], &for_all, NULL, &err));
    actor_start(&stranger, ask_as_stranger, &hidden);
    actor_wait(&stranger);
    unpublish(trainer, "hidden");
    unpublish(trainer, "shown");
    end();
}

static void must_refuse_list(struct raw *raw, const Rdt__Pb__RefList *refs, enum rdt_status expected)
{
    Rdt__Pb__Exists message = RDT__PB__EXISTS__INIT;
    enum rdt_status status;
    char text[256];

    message.refs = (Rdt__Pb__RefList *)refs;
    (void)raw_send(raw, RDT_MSG_EXISTS, &message.base, NULL, 0);
    status = raw_error(raw, text);
    must_say(status == expected, "%s: %s", rdt_status_name(status), text);
}

Test(many, lists_of_a_client_that_lies_are_refused)
{
    static uint32_t many[RDT_MAX_FETCH_REFS + 1];
    Rdt__Pb__PublishMany publish = RDT__PB__PUBLISH_MANY__INIT;
    Rdt__Pb__RefList list = RDT__PB__REF_LIST__INIT;
    Rdt__Pb__Exists none = RDT__PB__EXISTS__INIT;
    Rdt__Pb__Ref like = RDT__PB__REF__INIT, *likes[] = {&like};
    uint32_t bytes[] = {1, 1}, index[] = {0, 1}, long_one[] = {200, 200};
    uint64_t generation[] = {1, 1};
    uint8_t ids[] = "ab";
    enum rdt_status status;
    char text[256];
    struct raw raw;

    node_start(&node, &(struct node_options){0});
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    list.ids = (ProtobufCBinaryData){2, ids};
    list.id_bytes = bytes;
    list.n_id_bytes = 2;
    must_refuse_list(&raw, &list, RDT_INVALID); /* like what? */
    list.like = likes;
    list.n_like = 1;
    list.like_index = index;
    list.n_like_index = 2;
    must_refuse_list(&raw, &list, RDT_INVALID);
    list.n_like_index = 1;
    must_refuse_list(&raw, &list, RDT_INVALID);
    list.n_like_index = 0;
    list.generation = generation;
    list.n_generation = 1;
    must_refuse_list(&raw, &list, RDT_INVALID);
    list.n_generation = 0;
    list.ids.len = 1;
    must_refuse_list(&raw, &list, RDT_INVALID);
    list.ids.len = 2;
    list.id_bytes = long_one;
    must_refuse_list(&raw, &list, RDT_INVALID);
    list.id_bytes = many;
    list.n_id_bytes = RDT_MAX_FETCH_REFS + 1;
    must_refuse_list(&raw, &list, RDT_LIMIT);
    list.n_id_bytes = 2;
    list.id_bytes = bytes;
    publish.objects = &list;
    publish.names = list.ids;
    publish.name_bytes = bytes;
    for (publish.n_name_bytes = 1; publish.n_name_bytes <= 2;
         publish.n_name_bytes++) { /* one name; objects that nobody has put */
        (void)raw_send(&raw, RDT_MSG_PUBLISH_MANY, &publish.base, NULL, 0);
        status = raw_error(&raw, text);
        must_say(status == (publish.n_name_bytes == 1 ? RDT_INVALID : RDT_NOT_FOUND), "%s: %s", rdt_status_name(status), text);
    }
    publish.n_name_bytes = 2;
    ids[1] = 'a';
    (void)raw_send(&raw, RDT_MSG_PUBLISH_MANY, &publish.base, NULL, 0);
    cr_assert_eq(raw_error(&raw, text), RDT_INVALID);
    cr_assert(strstr(text, "twice"), "%s", text);
    protobuf_c_message_free_unpacked(
        raw_reply(&raw, raw_send(&raw, RDT_MSG_EXISTS, &none.base, NULL, 0), &rdt__pb__exists_reply__descriptor), NULL);
    raw_close(&raw);
    node_end(&node, NULL);
}

/* ---- fetch, wait ---- */

Test(many, fetch_each_brings_what_there_is)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    enum rdt_status statuses[4];
    rdt_object *objects[4];
    struct rdt_ref refs[4];
    uint8_t bytes[2] = {5, 6};
    void *live;

    begin(NULL);
    refs[0] = put_one(trainer, &VECTOR(RDT_U8, 1, &bytes[0]), NULL);
    refs[1] = id_ref("missing", 0);
    refs[2] = put_one(trainer, &VECTOR(RDT_U8, 1, &bytes[1]), NULL);
    must_ok(rdt_free(trainer, &refs[2], false, &err));
    refs[3] = put_one(trainer, &VECTOR(RDT_U8, 1, &bytes[1]), "last");
    options.timeout_ns = RDT_NO_WAIT;
    must_refuse(RDT_NOT_PUT, "missing", rdt_fetch_each(sampler, refs, 4, &options, objects, statuses, &err));
    cr_assert_eq(statuses[0], RDT_OK);
    cr_assert_eq(statuses[1], RDT_NOT_PUT);
    cr_assert_eq(statuses[2], RDT_FREED);
    cr_assert_eq(statuses[3], RDT_OK);
    cr_assert_eq(*(const uint8_t *)tensor_of(objects[0], 0).data, 5);
    cr_assert_eq(*(const uint8_t *)tensor_of(objects[3], 0).data, 6);
    cr_assert(!objects[1] && !objects[2]);
    rdt_release(objects[0]);
    rdt_release(objects[3]);
    options.verify = true;
    must_ok(rdt_alloc(trainer, 1u << 20, &live, &err));
    refs[3] = put_one(trainer, &VECTOR(RDT_U8, 1u << 20, live), NULL);
    must_refuse(RDT_UNSUPPORTED, "checksum", rdt_fetch_each(sampler, &refs[3], 1, &options, objects, NULL, &err));
    cr_assert(!objects[0]);
    refs[1].id_bytes = 0;
    memset(statuses, 0, sizeof statuses);
    objects[0] = objects[3] = (rdt_object *)statuses;
    must_refuse(RDT_INVALID, "ref 1", rdt_fetch_each(sampler, refs, 4, NULL, objects, statuses, &err));
    for (int i = 0; i < 4; i++)
        cr_assert(statuses[i] == RDT_INVALID && !objects[i]);
    end();
}

static bool stop(void *arg)
{
    return true;
}

Test(many, interrupted_fetch_each_says_so_of_each)
{
    enum rdt_status statuses[2];
    rdt_object *objects[2];
    struct rdt_ref refs[2];
    uint8_t byte = 1;

    begin(NULL);
    refs[0] = put_one(trainer, &VECTOR(RDT_U8, 1, &byte), NULL);
    must_ok(rdt_free(trainer, &refs[0], false, &err));
    refs[1] = id_ref("never", 0);
    rdt_interrupt_by(stop, NULL);
    must_refuse(RDT_CANCELLED, "interrupted", rdt_fetch_each(sampler, refs, 2, NULL, objects, statuses, &err));
    rdt_interrupt_by(NULL, NULL);
    cr_assert(statuses[0] == RDT_FREED || statuses[0] == RDT_CANCELLED);
    cr_assert_eq(statuses[1], RDT_CANCELLED);
    end();
}

Test(many, wait_each_goes_on_after_a_failure)
{
    enum rdt_status statuses[3];
    rdt_request *requests[3];
    struct rdt_ref ref;
    uint8_t byte = 1;

    begin(NULL);
    ref = put_one(trainer, &VECTOR(RDT_U8, 1, &byte), NULL);
    must_ok(rdt_free(trainer, &ref, false, &err));
    requests[0] = start_one(sampler, &ref, RDT_FOREVER);
    ref = id_ref("later", 0);
    requests[1] = start_one(sampler, &ref, RDT_FOREVER);
    ref = id_ref("never", 0);
    requests[2] = start_one(sampler, &ref, RDT_FOREVER);
    must_ok(rdt_wait_each(sampler, requests, 3, 1, LONG, statuses, &err));
    cr_assert_eq(statuses[0], RDT_FREED);
    cr_assert_eq(statuses[1], RDT_AGAIN);
    (void)put_one(trainer, &VECTOR(RDT_U8, 1, &byte), "later-0");
    must_ok(rdt_wait_each(sampler, requests, 3, 2, LONG, statuses, &err));
    cr_assert_eq(statuses[1], RDT_OK);
    must_be(RDT_TIMED_OUT, rdt_wait_each(sampler, requests, 3, RDT_WAIT_ALL, MSEC, statuses, &err));
    cr_assert_eq(statuses[2], RDT_AGAIN);
    rdt_cancel(requests[2]);
    must_ok(rdt_wait_each(sampler, requests, 3, RDT_WAIT_ALL, LONG, statuses, &err));
    cr_assert_eq(statuses[2], RDT_CANCELLED);
    for (int i = 0; i < 3; i++)
        rdt_request_destroy(requests[i]);
    must_refuse(RDT_INVALID, "how_many", rdt_wait_each(sampler, requests, 0, 1, 0, NULL, &err));
    requests[0] = NULL;
    must_be(RDT_INVALID, rdt_wait_each(sampler, requests, 1, 1, 0, statuses, &err));
    cr_assert_eq(statuses[0], RDT_INVALID);
    end();
}
