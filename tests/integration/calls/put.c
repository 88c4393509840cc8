/* SPDX-License-Identifier: Apache-2.0 */
/* Puts: ids, metadata, many tensors, and every refusal with its sentence. Refs travel as text and as bytes. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/call.h"
#include "rdt.pb-c.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)

static struct test_node node;
static rdt *conn;

static void begin(const struct node_options *options)
{
    node_start(&node, options);
    conn = node_client(&node, "producer");
}

static void end(void)
{
    rdt_close(conn);
    node_end(&node, NULL);
}

static uint64_t objects_now(void)
{
    return node_now(&node).objects;
}

static enum rdt_status put_id(const void *id, size_t id_bytes, struct rdt_ref *ref_p, struct rdt_error *err)
{
    struct rdt_put_options options = {.struct_size = sizeof options, .id = id, .id_bytes = id_bytes};
    return rdt_put(conn, NULL, 0, &options, ref_p, err);
}

/* ---- names ---- */

Test(put, own_id_is_kept_whatever_its_bytes)
{
    char long_id[129], zeros[3] = {0, 1, 0};
    struct rdt_ref ref;

    begin(NULL);
    memset(long_id, 'x', sizeof long_id);
    must_ok(put_id(long_id, 128, &ref, &err));
    cr_assert_eq(ref.id_bytes, 128);
    cr_assert_arr_eq(ref.id, long_id, 128);
    cr_assert_arr_eq(ref.node, node.uuid_bytes, 16);
    cr_assert_neq(ref.generation, 0);
    cr_assert_eq(ref.uid, getuid());
    must_ok(put_id(zeros, 3, &ref, &err));
    cr_assert_arr_eq(ref.id, zeros, 3);
    must_ok(rdt_ref_from_id(zeros, 3, &ref, &err));
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
    rdt_release(object);
    must_refuse(RDT_INVALID, "129", put_id(long_id, 129, &ref, &err));
    end();
}

Test(put, generated_ids_are_all_different)
{
    enum { N = 300 };
    struct rdt_ref refs[N];

    begin(NULL);
    for (unsigned i = 0; i < N; i++) {
        must_ok(rdt_put(conn, NULL, 0, NULL, &refs[i], &err));
        cr_assert_gt(refs[i].id_bytes, 0);
        for (unsigned j = 0; j < i; j++)
            cr_assert(refs[i].id_bytes != refs[j].id_bytes || memcmp(refs[i].id, refs[j].id, refs[i].id_bytes) != 0);
    }
    cr_assert_eq(objects_now(), N);
    for (unsigned i = 0; i < N; i++)
        must_ok(rdt_free(conn, &refs[i], false, &err));
    cr_assert_eq(objects_now(), 0);
    end();
}

Test(put, taken_id_exists_until_it_is_freed)
{
    struct rdt_ref first, second = {0};
    struct rdt_put_options options = {.struct_size = sizeof options, .id = "w", .id_bytes = 1};

    begin(NULL);
    must_ok(put_id("w", 1, &first, &err));
    must_refuse(RDT_EXISTS, "\"w\"", put_id("w", 1, &second, &err));
    cr_assert_eq(second.generation, 0, "a result was written");
    rdt *other = node_client(&node, "other");
    must_refuse(RDT_EXISTS, "\"w\"", rdt_put(other, NULL, 0, &options, &second, &err));
    cr_assert_eq(objects_now(), 1);
    must_ok(rdt_free(conn, &first, false, &err));
    must_ok(put_id("w", 1, &second, &err));
    cr_assert_gt(second.generation, first.generation);
    rdt_close(other);
    end();
}

/* ---- metadata ---- */

Test(put, metadata_of_every_size_up_to_8_mib)
{
    size_t sizes[] = {0, 1, 255, 65536, 8 * MIB};
    struct rdt_put_options options = RDT_INIT(options);
    char *metadata = malloc(8 * MIB + 1);
    struct rdt_ref ref;

    begin(NULL);
    fill_pattern(metadata, 8 * MIB + 1, 7);
    for (unsigned i = 0; i < 5; i++) {
        size_t bytes;
        options.metadata = metadata;
        options.metadata_bytes = sizes[i];
        must_ok(rdt_put(conn, NULL, 0, &options, &ref, &err));
        rdt_object *object = fetch_one(conn, &ref, (enum rdt_fetch_mode)(i % 3));
        const void *seen = rdt_object_metadata(object, &bytes);
        cr_assert_eq(bytes, sizes[i]);
        cr_assert_eq(seen == NULL, bytes == 0);
        cr_assert(bytes == 0 || memcmp(seen, metadata, bytes) == 0);
        struct rdt_stat stat = stat_of(conn, &ref);
        cr_assert_eq(stat.metadata_bytes, sizes[i]);
        rdt_release(object);
        must_ok(rdt_free(conn, &ref, false, &err));
    }
    options.metadata_bytes = 8 * MIB + 1;
    must_refuse(RDT_LIMIT, "8388609", rdt_put(conn, NULL, 0, &options, &ref, &err));
    cr_assert_eq(objects_now(), 0);
    must_ok(rdt_ping(conn, LONG, &err));
    free(metadata);
    end();
}

Test(put, metadata_comes_without_bytes_if_only_it_is_asked_for)
{
    const struct rdt_tensor *const targets[] = {NULL};
    float *memory, heap[6] = {0};
    struct rdt_object_info info;
    size_t bytes;

    begin(NULL);
    memory = alloc_memory(conn, 4096);
    struct rdt_tensor tensors[] = {bytes_at(memory, 4096),
                                   {.dtype = RDT_F32, .ndim = 2, .shape = (const int64_t[]){2, 3}, .data = heap}};
    struct rdt_put_options options = {.struct_size = sizeof options, .metadata = "said", .metadata_bytes = 4};
    struct rdt_ref ref = put_as(conn, tensors, 2, &options);
    struct rdt_fetch_options fetch = {.struct_size = sizeof fetch, .metadata_only = true};
    rdt_object *object = fetch_as(conn, &ref, &fetch);
    cr_assert(memcmp(rdt_object_metadata(object, &bytes), "said", 4) == 0 && bytes == 4);
    cr_assert_eq(rdt_object_count(object), 2);
    cr_assert_null(tensor_of(object, 0).data);
    cr_assert(tensor_of(object, 1).ndim == 2 && tensor_of(object, 1).shape[1] == 3 && !tensor_of(object, 1).data);
    rdt_object_info(object, &info);
    cr_assert(rdt_ref_equal(&info.ref, &ref));
    must_ok(rdt_free(conn, &ref, false, &err)); /* the fetched metadata holds nothing */
    cr_assert_eq(objects_now(), 0);
    rdt_release(object);
    fetch.targets = targets;
    must_refuse(RDT_INVALID, "metadata_only", rdt_fetch(conn, &ref, 1, &fetch, &object, &err));
    end();
}

/* ---- many tensors ---- */

Test(put, ten_thousand_tensors_in_one_put)
{
    enum { N = 10000 };
    struct rdt_tensor *tensors = calloc(N, sizeof *tensors);
    enum rdt_memory *how = calloc(N, sizeof *how);
    static const int64_t shape[] = {4, 4};
    float *memory, heap[16];

    begin(NULL);
    memory = alloc_memory(conn, N * 64);
    fill_pattern(memory, N * 64, 1);
    fill_pattern(heap, sizeof heap, 2);
    for (unsigned i = 0; i < N; i++)
        tensors[i] =
            (struct rdt_tensor){.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = i % 100 == 99 ? heap : memory + 16 * i};
    struct rdt_put_options options = {.struct_size = sizeof options, .how = how};
    struct rdt_ref ref = put_as(conn, tensors, N, &options);
    rdt *reader = node_client(&node, "reader");
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    cr_assert_eq(rdt_object_count(object), N);
    for (unsigned i = 0; i < N; i++) {
        struct rdt_tensor seen = tensor_of(object, i);
        cr_assert_eq(how[i], i % 100 == 99 ? RDT_MEMORY_COPIED : RDT_MEMORY_DAEMON);
        cr_assert(tensors_equal(&seen, &tensors[i]), "tensor %u", i);
    }
    rdt_release(object);
    rdt_close(reader);
    free(tensors);
    free(how);
    end();
}

Test(put, tensors_in_hundreds_of_regions)
{
    enum { N = 300 }; /* more fds than a frame carries, and than a reader with few descriptors takes */
    static const int64_t shape[] = {4096};
    struct rdt_tensor tensors[N];
    struct rlimit limit, other;
    rdt_object *object;

    begin(NULL);
    for (unsigned i = 0; i < N; i++) {
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = shape, .data = alloc_memory(conn, 4096)};
        fill_pattern(tensors[i].data, 4096, i);
    }
    struct rdt_ref ref = put_as(conn, tensors, N, NULL);
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    other = limit;
    for (unsigned few = 0; few < 2; few++) {
        other.rlim_cur = few ? 4 * N - 4 : 4 * N;
        must(setrlimit(RLIMIT_NOFILE, &other) == 0);
        rdt *reader = node_client(&node, "reader");
        must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        for (unsigned mode = 0; mode < 3; mode += 2) {
            object = fetch_one(reader, &ref, (enum rdt_fetch_mode)mode);
            must_go_by(few || mode == RDT_FETCH_COPY ? "local/copy" : "local/share", object);
            for (unsigned i = 0; i < N; i++) {
                struct rdt_tensor seen = tensor_of(object, i);
                cr_assert(tensors_equal(&seen, &tensors[i]));
            }
            rdt_release(object);
        }
        if (few)
            must_refuse(RDT_NO_PATH, "more file descriptors", try_fetch(reader, &ref, RDT_FETCH_SHARE, LONG, &object, &err));
        rdt_close(reader);
    }
    end();
}

Test(put, too_many_tensors_are_a_limit)
{
    enum { MOST = 131072 };
    struct rdt_tensor *tensors = calloc(MOST + 1, sizeof *tensors);
    char byte = 1;
    struct rdt_ref ref;

    begin(NULL);
    for (unsigned i = 0; i <= MOST; i++)
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U8, .data = &byte};
    must_refuse(RDT_LIMIT, "131073", rdt_put(conn, tensors, MOST + 1, NULL, &ref, &err));
    must_ok(rdt_put(conn, tensors, MOST, NULL, &ref, &err));
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_COPY);
    cr_assert_eq(rdt_object_count(object), MOST);
    rdt_release(object);
    free(tensors);
    end();
}

/* ---- refusals ---- */

static void refuses(struct rdt_tensor bad, enum rdt_status expected)
{
    float values[4] = {0};
    struct rdt_tensor tensors[3] = {VECTOR(RDT_F32, 4, values), bad, VECTOR(RDT_F32, 4, values)};
    struct rdt_ref ref = {0};

    must_refuse(expected, "tensor 1", rdt_put(conn, tensors, 3, NULL, &ref, &err));
    must(ref.generation == 0);
}

Test(put, bad_layouts_name_the_tensor)
{
    static const int64_t negative[] = {2, -1}, huge[] = {INT64_MAX, 2}, big[] = {INT64_MAX / 4 + 1}, ones[33] = {1},
                         two[] = {2, 2}, far[] = {INT64_MAX / 2, 1};
    float values[4] = {0};

    begin(NULL);
    char *memory = alloc_memory(conn, 8192);
    refuses((struct rdt_tensor){.dtype = 0, .ndim = 2, .shape = two, .data = values}, RDT_INVALID);
    refuses((struct rdt_tensor){.dtype = 999, .ndim = 2, .shape = two, .data = values}, RDT_INVALID);
    refuses((struct rdt_tensor){.dtype = RDT_F32, .ndim = 2, .shape = negative, .data = values}, RDT_INVALID);
    refuses((struct rdt_tensor){.dtype = RDT_F32, .ndim = 2, .shape = huge, .data = values}, RDT_INVALID);
    refuses((struct rdt_tensor){.dtype = RDT_F32, .ndim = 1, .shape = big, .data = values}, RDT_INVALID);
    refuses((struct rdt_tensor){.dtype = RDT_F32, .ndim = 33, .shape = ones, .data = values}, RDT_INVALID);
    refuses((struct rdt_tensor){.dtype = RDT_F32, .ndim = 2, .shape = NULL, .data = values}, RDT_INVALID);
    refuses((struct rdt_tensor){.dtype = RDT_F32, .ndim = 2, .shape = two, .data = NULL}, RDT_INVALID);
    refuses((struct rdt_tensor){.dtype = RDT_F32, .ndim = 2, .shape = two, .strides = far, .data = values}, RDT_INVALID);
    refuses(VECTOR(RDT_U8, 8193, memory), RDT_INVALID);
    refuses(VECTOR(RDT_U8, 2, memory - 1), RDT_INVALID);
    cr_assert_eq(objects_now(), 0);
    end();
}

/* The same, from a client that is not librdt. */
struct raw_put {
    Rdt__Pb__Put put;
    Rdt__Pb__TensorList list;
    Rdt__Pb__RegionUse use, *uses[1];
    uint32_t dtype[2], ndim[2], region_index[2];
    uint64_t shape[4], offset[2];
    int64_t strides[4];
};

static void raw_init(struct raw_put *raw, uint64_t region)
{
    *raw = (struct raw_put){.put = RDT__PB__PUT__INIT,
                            .list = RDT__PB__TENSOR_LIST__INIT,
                            .use = RDT__PB__REGION_USE__INIT,
                            .dtype = {RDT_F32, RDT_F32},
                            .ndim = {2, 2},
                            .shape = {4, 4, 4, 4},
                            .strides = {4, 1, 4, 1}};
    raw->use.region = region;
    raw->use.generation = 1;
    raw->uses[0] = &raw->use;
    raw->put.regions = raw->uses;
    raw->put.n_regions = 1;
    raw->put.tensors = &raw->list;
    raw->list.dtype = raw->dtype;
    raw->list.ndim = raw->ndim;
    raw->list.shape = raw->shape;
    raw->list.strides = raw->strides;
    raw->list.region_index = raw->region_index;
    raw->list.offset = raw->offset;
    raw->list.n_dtype = raw->list.n_ndim = raw->list.n_region_index = raw->list.n_offset = 2;
    raw->list.n_shape = raw->list.n_strides = 4;
}

static enum rdt_status send_raw(struct raw_put *raw, struct rdt_error *err)
{
    return call(conn, RDT_MSG_PUT, &raw->put.base, LONG, NULL, err);
}

#define FIELD(field) offsetof(struct raw_put, field), sizeof((struct raw_put *)NULL)->field
static const struct {
    enum rdt_status status;
    const char *says;
    size_t at, bytes; /* of the field */
    int64_t value;
} wrong[] = {
    {RDT_NOT_FOUND, "region", FIELD(use.generation), 2},
    {RDT_INVALID, "tensor 1", FIELD(region_index[1]), 1},
    {RDT_INVALID, "tensor 1", FIELD(offset[1]), 4096 - 63},
    {RDT_INVALID, "tensor 1", FIELD(offset[1]), -1},
    {RDT_INVALID, "tensor 1", FIELD(strides[2]), -4}, /* in front of the region */
    {RDT_INVALID, "tensor 1", FIELD(strides[2]), INT64_MIN},
    {RDT_INVALID, "tensor 1", FIELD(shape[2]), -1},
    {RDT_INVALID, "tensor 1", FIELD(ndim[1]), 33},
    {RDT_INVALID, "tensor 1", FIELD(dtype[1]), 77},
    {RDT_INVALID, "flags", FIELD(put.flags), 64},
    {RDT_INVALID, "DETACHED", FIELD(put.ttl_ns), 1},
    {RDT_INVALID, "visibility", FIELD(put.visibility), 9},
};

Test(put, by_hand_bad_columns_are_refused)
{
    Rdt__Pb__Alloc alloc = RDT__PB__ALLOC__INIT;
    Rdt__Pb__RegionReply *reply;
    struct raw_put raw;
    int fd;

    begin(NULL);
    alloc.bytes = 4096;
    must_ok(call_fds(conn, RDT_MSG_ALLOC, &alloc.base, -1, now_ns() + LONG, (ProtobufCMessage **)(void *)&reply, &fd, &err));
    uint64_t region = reply->region;
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    close(fd);

    raw_init(&raw, region + 1);
    must_refuse(RDT_NOT_FOUND, "region", send_raw(&raw, &err));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        raw_init(&raw, region);
        memcpy((char *)&raw + wrong[i].at, &wrong[i].value, wrong[i].bytes); /* the machine is little-endian */
        must_refuse(wrong[i].status, wrong[i].says, send_raw(&raw, &err));
    }
    for (unsigned column = 0; column < 6; column++) {
        size_t *lengths[] = {&raw.list.n_dtype,   &raw.list.n_ndim,         &raw.list.n_shape,
                             &raw.list.n_strides, &raw.list.n_region_index, &raw.list.n_offset};
        raw_init(&raw, region);
        --*lengths[column];
        must_be(RDT_INVALID, send_raw(&raw, &err));
    }
    for (unsigned i = 0; i < 3; i++) {
        uint32_t given[2] = {0, 0};
        raw_init(&raw, region);
        raw.put.given = given;
        raw.put.n_given = i == 1 ? 2 : 1; /* more than there are */
        raw.put.flags = i > 0;            /* not of live objects */
        given[0] = i == 2;                /* none of those listed */
        must_refuse(RDT_INVALID, i > 0 ? "hands over" : "handed over", send_raw(&raw, &err));
    }
    raw_init(&raw, region);
    raw.put.tensors = NULL; /* no tensors: an object of metadata alone */
    must_ok(send_raw(&raw, &err));
    raw_init(&raw, region);
    must_ok(send_raw(&raw, &err));
    cr_assert_eq(objects_now(), 2);
    end();
}

Test(put, unknown_transport_lists_those_loaded)
{
    struct rdt_ref ref;
    float value = 1;

    begin(&(struct node_options){.loopback = true});
    struct rdt_put_options options = {.struct_size = sizeof options, .transport = "warp"};
    must_refuse(RDT_UNSUPPORTED, "loopback", rdt_put(conn, &VECTOR(RDT_F32, 1, &value), 1, &options, &ref, &err));
    must_refuse(RDT_UNSUPPORTED, "\"warp\"", rdt_put(conn, NULL, 0, &options, &ref, &err));
    options.transport = "loopback";
    must_ok(rdt_put(conn, &VECTOR(RDT_F32, 1, &value), 1, &options, &ref, &err));
    options.transport = "ucx";
    must_ok(rdt_put(conn, &VECTOR(RDT_F32, 1, &value), 1, &options, &ref, &err));
    cr_assert_eq(objects_now(), 2);
    end();
}

Test(put, unknown_flags_are_unsupported)
{
    struct rdt_ref ref;

    begin(NULL);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = 1u << 20};
    must_refuse(RDT_UNSUPPORTED, "flags 0x100000", rdt_put(conn, NULL, 0, &options, &ref, &err));
    cr_assert_eq(objects_now(), 0);
    end();
}

Test(put, too_many_objects_name_max_objects)
{
    const char *flags[] = {"--max-objects=5", NULL};
    struct rdt_ref refs[6];

    begin(&(struct node_options){.flags = flags});
    for (unsigned i = 0; i < 5; i++)
        must_ok(rdt_put(conn, NULL, 0, NULL, &refs[i], &err));
    must_refuse(RDT_LIMIT, "max_objects", rdt_put(conn, NULL, 0, NULL, &refs[5], &err));
    must_ok(rdt_free(conn, &refs[0], false, &err));
    must_ok(rdt_put(conn, NULL, 0, NULL, &refs[5], &err));
    end();
}

/* ---- refs travel ---- */

static int read_by_text_and_bytes(struct actor *self, void *arg)
{
    rdt *reader = node_client(arg, "reader");
    char text[RDT_REF_TEXT_BYTES];
    uint8_t packed[RDT_REF_PACKED_BYTES];
    struct rdt_ref refs[2];
    size_t bytes;

    actor_recv(self, text, sizeof text);
    actor_recv(self, &bytes, sizeof bytes);
    actor_recv(self, packed, bytes);
    must_ok(rdt_ref_from_text(text, &refs[0], &err));
    must_ok(rdt_ref_unpack(packed, bytes, &refs[1], &err));
    must(rdt_ref_equal(&refs[0], &refs[1]));
    for (unsigned i = 0; i < 2; i++) {
        rdt_object *object = fetch_one(reader, &refs[i], RDT_FETCH_AUTO);
        struct rdt_tensor seen = tensor_of(object, 0);
        struct rdt_ref true_ref = info_of(object).ref;
        must(holds_pattern(seen.data, 4096, 3));
        must(rdt_ref_equal(&true_ref, &refs[i]));
        rdt_release(object);
    }
    rdt_close(reader);
    return 0;
}

Test(put, refs_travel_as_text_and_as_bytes)
{
    uint8_t packed[RDT_REF_PACKED_BYTES], memory[4096];
    char text[RDT_REF_TEXT_BYTES] = "";
    struct actor actor;

    node_start(&node, NULL);
    actor_start(&actor, read_by_text_and_bytes, &node);
    conn = node_client(&node, "producer");
    fill_pattern(memory, sizeof memory, 3);
    struct rdt_ref ref = put_one(conn, &VECTOR(RDT_U8, sizeof memory, memory), "layer 0/é?&=%\x01");
    rdt_ref_to_text(&ref, text);
    size_t bytes = rdt_ref_pack(&ref, packed);
    actor_send(&actor, text, sizeof text);
    actor_send(&actor, &bytes, sizeof bytes);
    actor_send(&actor, packed, bytes);
    actor_wait(&actor);
    end();
}
