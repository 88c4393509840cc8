/* SPDX-License-Identifier: Apache-2.0 */
/* Users who store more than there is room for, and objects that are freed while they are written. */
#include <sys/mman.h>

#include "proto/wire_ref.h"
#include "tests/integration/faults/storage.h"
#include "tests/support/raw.h"

TestSuite(storage_hostile, .timeout = SUITE_SECONDS(240));

#define PAGE 4096u
#define HUGE (UINT64_C(1) << 62)

/* ---- freed while it is written ---- */

/* When a free has been answered, a daemon that is killed cannot bring the object back: there is no file, and will be none. */
static void check_freed(bool force)
{
    struct rdt_ref ref;
    rdt *conn = start_client("client");

    for (unsigned round = 0; round < 2; round++) {
        ref = put_snapshot(conn, "freed", 64 * MIB, RDT_PUT_DETACHED | RDT_PUT_STORED, round);
        wait_until(LONG, count_files(".tmp") + count_files(".safetensors") > 0);
        must_ok(rdt_free(conn, &ref, force, &err));
        cr_assert_eq(count_files(".tmp") + count_files(".safetensors"), 0u, "round %u", round);
    }
    end(conn, NULL);
}

Test(storage_hostile, free_is_answered_when_the_object_is_not_written_any_more)
{
    check_freed(false);
}

Test(storage_hostile, forced_free_is_answered_when_the_object_is_not_written_any_more)
{
    check_freed(true);
}

/* Whoever else holds the object keeps it, and its file. */
Test(storage_hostile, free_does_not_end_the_writing_of_what_others_hold)
{
    struct rdt_ref ref, name = name_ref("weights");
    rdt *conn = start_client("trainer");

    ref = put_snapshot(conn, NULL, 64 * MIB, RDT_PUT_STORED, 1);
    must_ok(rdt_publish(conn, "weights", &ref, NULL, NULL, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_store(conn, &name, LONG, NULL, 0, &err));
    conn = restart(conn, SIGKILL, "sampler");
    must_have(conn, &name, 64 * MIB, 1);
    must_ok(rdt_unpublish(conn, &name, &err));
    must_be_empty();
    end(conn, NULL);
}

/* A put of 5 bytes; its number. */
static uint64_t send_put(struct raw *raw, uint32_t flags)
{
    Rdt__Pb__TensorList list = RDT__PB__TENSOR_LIST__INIT;
    uint32_t dtype = RDT_U8, ndim = 1;
    uint64_t shape = 5, offset = 0;

    list.n_dtype = list.n_ndim = list.n_shape = list.n_offset = 1;
    list.dtype = &dtype;
    list.ndim = &ndim;
    list.shape = &shape;
    list.offset = &offset;
    Rdt__Pb__Put put = MESSAGE(put, .id = (ProtobufCBinaryData){7, (uint8_t *)"revived"}, .tensors = &list,
                               .flags = RDT_PUT_SNAPSHOT | flags, .inline_data = (ProtobufCBinaryData){5, (uint8_t *)"bytes"});
    return raw_send(raw, RDT_MSG_PUT, &put.base, NULL, 0);
}

static Rdt__Pb__PutReply *read_put(struct raw *raw, uint64_t id)
{
    return (Rdt__Pb__PutReply *)raw_reply(raw, id, &rdt__pb__put_reply__descriptor);
}

/* Handles everything that the connection has sent before. */
static void barrier(struct raw *raw)
{
    Rdt__Pb__List list = MESSAGE(list, .kind = RDT__PB__LIST_KIND__LIST_KIND_CLIENTS);
    protobuf_c_message_free_unpacked(
        raw_reply(raw, raw_send(raw, RDT_MSG_LIST, &list.base, NULL, 0), &rdt__pb__list_reply__descriptor), NULL);
}

/* The free stops the writing, but before the thread has noticed, another client holds the object, and a third has it stored. */
Test(storage_hostile, object_that_is_held_again_while_its_writing_stops_is_stored)
{
    struct rdt_ref ref = {.id = "revived", .id_bytes = 7, .any_owner = 1};
    Rdt__Pb__Free free_message = RDT__PB__FREE__INIT;
    Rdt__Pb__Store store_message = RDT__PB__STORE__INIT;
    struct raw producer, storer;
    rdt_request *hold;
    rdt *conn = start_client("reader");

    raw_connect(&producer, node.socket);
    raw_hello(&producer);
    raw_connect(&storer, node.socket);
    raw_hello(&storer);
    if (!node_hold_workers(&node))
        cr_skip_test("this process may not trace the daemon");
    Rdt__Pb__PutReply *put = read_put(&producer, send_put(&producer, RDT_PUT_STORED));
    free_message.ref = store_message.ref = put->ref;
    store_message.timeout_ns = LONG;
    uint64_t freed = raw_send(&producer, RDT_MSG_FREE, &free_message.base, NULL, 0);
    barrier(&producer);
    must_ok(rdt_hold_start(conn, &ref, LONG, &hold, &err));
    must_ok(rdt_wait(conn, &hold, 1, 1, LONG, NULL, NULL, &err));
    uint64_t stored = raw_send(&storer, RDT_MSG_STORE, &store_message.base, NULL, 0);
    barrier(&storer);
    node_release_workers(&node);
    protobuf_c_message_free_unpacked(raw_reply(&storer, stored, &rdt__pb__store_reply__descriptor), NULL);
    protobuf_c_message_free_unpacked(raw_reply(&producer, freed, &rdt__pb__empty__descriptor), NULL);
    cr_assert_eq(count_files(".safetensors"), 1u);
    protobuf_c_message_free_unpacked(&put->base, NULL);
    rdt_request_destroy(hold);
    must_be_empty();
    raw_close(&producer);
    raw_close(&storer);
    end(conn, NULL);
}

/* ---- more than there is room for ---- */

/* A page of memory, whose first byte is a tensor of 2^62 bytes. */
static void put_huge(struct raw *raw, const char *id)
{
    Rdt__Pb__TensorList list = RDT__PB__TENSOR_LIST__INIT;
    uint32_t dtype = RDT_U8, ndim = 1, region = 0;
    Rdt__Pb__RegionUse use = MESSAGE(region_use, .region = 0), *uses = &use;
    uint64_t shape = HUGE, offset = 0, request;
    uint32_t given = 0;
    int64_t stride = 0;

    use.region = raw_alloc(raw, PAGE, NULL, &use.generation);
    list.n_dtype = list.n_ndim = list.n_shape = list.n_strides = list.n_offset = list.n_region_index = 1;
    list.dtype = &dtype;
    list.ndim = &ndim;
    list.shape = &shape;
    list.strides = &stride;
    list.offset = &offset;
    list.region_index = &region;
    Rdt__Pb__Put put = MESSAGE(put, .id = (ProtobufCBinaryData){strlen(id), (uint8_t *)id}, .tensors = &list,
                               .flags = RDT_PUT_SNAPSHOT, .n_regions = 1, .regions = &uses, .n_given = 1, .given = &given);
    request = raw_send(raw, RDT_MSG_PUT, &put.base, NULL, 0);
    protobuf_c_message_free_unpacked(raw_reply(raw, request, &rdt__pb__put_reply__descriptor), NULL);
}

/* The answer to the first one waits until the old file is gone. By then the second one has taken the id. */
Test(storage_hostile, put_whose_object_is_replaced_before_its_answer_has_succeeded)
{
    struct raw first, second;
    struct rdt_ref ref;
    rdt *conn = start_client("store");

    ref = put_snapshot(conn, "revived", MIB, RDT_PUT_DETACHED | RDT_PUT_STORED, 1);
    must_ok(rdt_store(conn, &ref, LONG, NULL, 0, &err));
    raw_connect(&first, node.socket);
    raw_hello(&first);
    raw_connect(&second, node.socket);
    raw_hello(&second);
    if (!node_hold_workers(&node))
        cr_skip_test("this process may not trace the daemon");
    uint64_t one = send_put(&first, RDT_PUT_DETACHED | RDT_PUT_REPLACE);
    barrier(&first);
    Rdt__Pb__PutReply *put = read_put(&second, send_put(&second, RDT_PUT_DETACHED | RDT_PUT_REPLACE));
    node_release_workers(&node);
    protobuf_c_message_free_unpacked(&put->base, NULL);
    put = read_put(&first, one);
    cr_assert_eq(put->ref->id.len, 7u);
    protobuf_c_message_free_unpacked(&put->base, NULL);
    raw_close(&first);
    raw_close(&second);
    ref.generation = 0;
    must_ok(rdt_free(conn, &ref, false, &err));
    end(conn, NULL);
}

/* Four times 2^62 bytes are as many as none. */
Test(storage_hostile, bytes_that_no_number_counts_are_refused)
{
    static const char *const declared[] = {"the object stays in memory", NULL};
    static const char *const ids[] = {"a", "b", "c", "d", "e"};
    struct rdt_ref refs[5];
    Rdt__Pb__Ref name;
    Rdt__Pb__Store store_message = MESSAGE(store, .ref = &name, .timeout_ns = LONG);
    struct raw raw;

    rdt *conn = start_client("client");
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    for (unsigned i = 0; i < 5; i++) {
        put_huge(&raw, ids[i]);
        refs[i] = ref_named(ids[i]);
    }
    if (!node_hold_workers(&node))
        cr_skip_test("this process may not hold the daemon's threads");
    wire_ref_from(&refs[0], &name);
    (void)raw_send(&raw, RDT_MSG_STORE, &store_message.base, NULL, 0); /* a thread would write it */
    barrier(&raw);
    for (unsigned i = 1; i < 5; i++)
        must_refuse(RDT_LIMIT, "no file system has room", rdt_store(conn, &refs[i], LONG, NULL, 0, &err));
    node_release_workers(&node);
    must(rdt_store(conn, &refs[0], LONG, NULL, 0, NULL) != RDT_OK); /* it was written in vain */
    raw_close(&raw);
    must_be_empty();
    end(conn, declared);
}

static uint64_t bytes_of_files(void)
{
    DIR *dir = opendir(store);
    const struct dirent *entry;
    uint64_t bytes = 0;
    struct stat file;

    must(dir);
    while ((entry = readdir(dir)))
        if (entry->d_name[0] != '.' && fstatat(dirfd(dir), entry->d_name, &file, 0) == 0)
            bytes += (uint64_t)file.st_size;
    (void)closedir(dir);
    return bytes;
}

/* What waits for the disk counts with its header, which metadata make large. */
Test(storage_hostile, metadata_count_before_they_are_written)
{
    enum { OBJECTS = 12 };
    static char metadata[4 * MIB];
    struct rdt_ref large, refs[OBJECTS];
    const uint64_t limit = 80 * MIB;

    more_flags[0] = "--owner-max-stored-bytes=80MiB";
    rdt *conn = start_client("client");
    large = put_snapshot(conn, "large", 64 * MIB, RDT_PUT_STORED, 1); /* keeps the disk busy */
    struct rdt_put_options options = {.struct_size = sizeof options,
                                      .flags = RDT_PUT_SNAPSHOT | RDT_PUT_STORED,
                                      .metadata = metadata,
                                      .metadata_bytes = sizeof metadata};
    for (unsigned i = 0; i < OBJECTS; i++)
        must_ok(rdt_put(conn, NULL, 0, &options, &refs[i], &err));
    must_ok(rdt_store(conn, &large, LONG, NULL, 0, &err));
    for (unsigned i = 0; i < OBJECTS; i++)
        (void)rdt_store(conn, &refs[i], LONG, NULL, 0, NULL);
    cr_assert_leq(bytes_of_files(), limit);
    cr_assert_geq(count_files(".safetensors"), 2u);
    for (unsigned i = 0; i < OBJECTS; i++)
        must_ok(rdt_free(conn, &refs[i], false, &err));
    must_ok(rdt_free(conn, &large, false, &err));
    must_be_empty();
    end(conn, NULL);
}
