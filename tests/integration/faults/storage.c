/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon with storage_dir is killed, and nothing but its directory is left: what was stored is served by the next daemon,
 * with the same ids, names, versions and bytes. A daemon that is killed while it writes leaves a whole object or none. */
#include <sys/mman.h>
#include <sys/resource.h>

#include "tests/integration/faults/storage.h"

#include "client/rdt_info.h"
#include "daemon/persist/journal.h"
#include "tests/support/keeper.h"

#define STRANGER 12345

TestSuite(storage, .timeout = SUITE_SECONDS(240));

static const struct {
    const char *id;
    size_t bytes;
} objects[] = {{"empty", 0}, {"small", 100}, {"inline", 20 * KIB}, {"sealed", MIB}, {"large", 9 * MIB + 5}};
#define OBJECTS (sizeof objects / sizeof objects[0])

/* ---- what comes back ---- */

static void check_detached(int signal)
{
    struct rdt_ref refs[OBJECTS], of_session;
    struct rdt_stat stat;
    char file[300];
    rdt *conn = start_client("producer");

    for (unsigned i = 0; i < OBJECTS; i++) {
        refs[i] = put_snapshot(conn, objects[i].id, objects[i].bytes, RDT_PUT_DETACHED | RDT_PUT_STORED, i);
        must_ok(rdt_store(conn, &refs[i], LONG, file, sizeof file, &err));
        cr_assert_eq(access(file, R_OK), 0, "%s", file);
    }
    of_session = put_snapshot(conn, "of the session", MIB, RDT_PUT_STORED, 7);
    must_ok(rdt_store(conn, &of_session, LONG, NULL, 0, &err));
    cr_assert_eq(count_files(".safetensors"), OBJECTS + 1);
    for (unsigned round = 0; round < 2; round++) {
        again(signal);
        rdt_close(conn);
        conn = node_client(&node, "reader");
        for (unsigned i = 0; i < OBJECTS; i++)
            must_have(conn, &refs[i], objects[i].bytes, i);
        cr_assert_neq(rdt_stat(conn, &of_session, &stat, NULL), RDT_OK, "it ended with its session");
        wait_until(LONG, count_files(".safetensors") == OBJECTS);
        must_ok(rdt_stat(conn, &refs[1], &stat, &err));
        cr_assert(stat.detached && stat.snapshot);
    }
    for (unsigned i = 0; i < OBJECTS; i++)
        must_ok(rdt_free(conn, &refs[i], false, &err));
    cr_assert_eq(count_files(".safetensors"), 0, "a free is answered when the file is gone");
    end(conn, NULL);
}

Test(storage, detached_objects_survive_a_killed_daemon_without_a_keeper)
{
    check_detached(SIGKILL);
}

Test(storage, detached_objects_survive_a_stopped_daemon_without_a_keeper)
{
    check_detached(SIGTERM);
}

Test(storage, names_come_back_with_their_newest_version_only)
{
    rdt *conn = start_client("trainer");
    for (uint32_t version = 1; version <= 3; version++)
        cr_assert_eq(publish_stored(conn, "weights", 2 * MIB, version), version);
    cr_assert_eq(publish_stored(conn, "other", 100, 9), 1u);
    wait_until(LONG, count_files(".safetensors") == 2);
    conn = restart(conn, SIGKILL, "sampler");
    struct rdt_ref ref = name_ref("weights");
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
    cr_assert_eq(info_of(object).version, 3u);
    must_go_by("local/share", object);
    cr_assert(holds_pattern(tensor_of(object, 0).data, 2 * MIB, 3));
    rdt_release(object);
    cr_assert_eq(publish_stored(conn, "weights", MIB, 4), 4u);
    wait_until(LONG, count_files(".safetensors") == 2);
    must_ok(rdt_unpublish(conn, &ref, &err));
    cr_assert_eq(count_files(".name"), 1u, "an unpublish is answered when the record is gone");
    ref = name_ref("other");
    must_have(conn, &ref, 100, 9);
    must_ok(rdt_unpublish(conn, &ref, &err));
    must_be_empty();
    end(conn, NULL);
}

/* The newest version is in memory only: after a reboot the name has the newest one that was stored. */
Test(storage, name_falls_back_to_the_newest_version_that_was_stored)
{
    struct rdt_ref ref, stored = name_ref("weights");
    rdt *conn = start_client("trainer");

    (void)publish_stored(conn, "weights", MIB, 1);
    ref = put_snapshot(conn, NULL, MIB, 0, 2);
    must_ok(rdt_publish(conn, "weights", &ref, NULL, NULL, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    must_have(conn, &stored, MIB, 2);
    conn = restart(conn, SIGKILL, "sampler");
    must_have(conn, &stored, MIB, 1);
    must_ok(rdt_unpublish(conn, &stored, &err));
    must_be_empty();
    end(conn, NULL);
}

/* What an object's tensors are boxes of is no part of its metadata. */
Test(storage, boxes_come_back_with_their_tensors)
{
    static const char metadata[] = "weights";
    int64_t global[2] = {4, MIB}, start_at[2] = {2, 0}, shape[2] = {2, MIB};
    struct rdt_shard shard = {"w", global, start_at};
    struct rdt_put_options options = {.struct_size = sizeof options,
                                      .flags = RDT_PUT_SNAPSHOT | RDT_PUT_DETACHED | RDT_PUT_STORED};
    struct rdt_fetch_options verify = {.struct_size = sizeof verify, .timeout_ns = LONG, .verify = true};
    rdt *conn = start_client("producer");
    uint8_t *bytes = calloc(2, MIB);
    struct rdt_tensor tensor = {.data = bytes, .dtype = RDT_U8, .ndim = 2, .shape = shape};
    struct rdt_ref ref;
    rdt_object *object;
    size_t n;

    cr_assert(bytes);
    memset(bytes, 3, 2 * MIB);
    options.metadata = metadata;
    options.metadata_bytes = sizeof metadata;
    options.shards = &shard;
    must_ok(rdt_put(conn, &tensor, 1, &options, &ref, &err));
    must_ok(rdt_store(conn, &ref, LONG, NULL, 0, &err));
    conn = restart(conn, SIGKILL, "reader");
    must_ok(rdt_fetch(conn, &ref, 1, &verify, &object, &err));
    cr_assert_arr_eq(rdt_object_metadata(object, &n), metadata, sizeof metadata);
    cr_assert_eq(n, sizeof metadata);
    must_ok(rdt_object_shard(object, 0, &shard, &err));
    cr_assert(strcmp(shard.key, "w") == 0 && shard.global_shape[0] == 4 && shard.start[0] == 2);
    rdt_release(object);
    must_ok(rdt_free(conn, &ref, false, &err));
    free(bytes);
    end(conn, NULL);
}

/* Tensors with holes, of several sizes of elements, a scalar and an empty one are packed into the file and come back. */
Test(storage, tensors_of_all_shapes_are_stored)
{
    int64_t turned[] = {1, 64};
    struct rdt_tensor tensors[5];
    rdt *conn = start_client("producer");
    float *memory = alloc_memory(conn, MIB);

    fill_pattern(memory, MIB, 1);
    tensors[0] = VECTOR(RDT_U8, 3, memory);
    tensors[1] = MATRIX(RDT_F32, 64, 64, memory + 1024);
    tensors[1].strides = turned;
    tensors[2] = (struct rdt_tensor){.dtype = RDT_C128, .ndim = 0, .data = memory + 16};
    tensors[3] = VECTOR(RDT_BF16, 0, NULL);
    tensors[4] = VECTOR(RDT_F8_E4M3FNUZ, 100000, memory + 8192);
    struct rdt_put_options options = {.struct_size = sizeof options,
                                      .flags = RDT_PUT_SNAPSHOT | RDT_PUT_STORED | RDT_PUT_DETACHED};
    struct rdt_ref ref = put_as(conn, tensors, 5, &options);
    must_ok(rdt_store(conn, &ref, LONG, NULL, 0, &err));
    node_kill(&node, SIGKILL);
    start();
    rdt_close(conn); /* the tensors above stay where they are: the session's memory is this process's until then */
    conn = node_client(&node, "reader");
    memory = malloc(MIB);
    fill_pattern(memory, MIB, 1);
    tensors[0].data = memory;
    tensors[1].data = memory + 1024;
    tensors[2].data = memory + 16;
    tensors[4].data = memory + 8192;
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
    for (size_t i = 0; i < 5; i++) {
        struct rdt_tensor got = tensor_of(object, i);
        cr_assert(tensors_equal(&got, &tensors[i]), "tensor %zu", i);
        cr_assert(elements_of(&got) == 0 || (uintptr_t)got.data % rdt_dtype_bytes(got.dtype) == 0, "tensor %zu", i);
    }
    rdt_release(object);
    must_ok(rdt_free(conn, &ref, false, &err));
    free(memory);
    end(conn, NULL);
}

/* With a keeper the objects are in memory after a crash, and the files still belong to them. */
Test(storage, keeper_and_files_fit_together)
{
    static char flag[200];
    struct test_keeper keeper = {0};
    struct rdt_ref ref, name = name_ref("weights");

    keeper_start(&keeper);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    more_flags[0] = flag;
    rdt *conn = start_client("trainer");
    (void)publish_stored(conn, "weights", MIB, 1);
    ref = put_snapshot(conn, "detached", MIB, RDT_PUT_DETACHED | RDT_PUT_STORED, 2);
    must_ok(rdt_store(conn, &ref, LONG, NULL, 0, &err));
    rdt_close(conn);
    again(SIGKILL); /* the keeper has everything */
    struct node_status status = node_now(&node);
    cr_assert_eq(status.objects, 2u);
    conn = node_client(&node, "reader");
    must_have(conn, &name, MIB, 1);
    must_have(conn, &ref, MIB, 2);
    rdt_close(conn);
    node_kill(&node, SIGKILL); /* and now it has nothing */
    keeper_stop(&keeper, SIGKILL);
    keeper_start(&keeper);
    conn = start_client("reader");
    must_have(conn, &name, MIB, 1);
    must_have(conn, &ref, MIB, 2);
    rdt_close(conn);
    again(SIGKILL); /* the keeper has the descriptors of the files */
    conn = node_client(&node, "reader");
    must_have(conn, &name, MIB, 1);
    must_have(conn, &ref, MIB, 2);
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_unpublish(conn, &name, &err));
    must_be_empty();
    rdt_close(conn);
    node_stop(&node);
    keeper_stop(&keeper, SIGTERM);
    remove_store();
}

/* Nobody has freed it: its producer ended with an earlier daemon. */
Test(storage, object_from_a_file_has_not_been_freed)
{
    enum { RECORD_OBJECT = 10, IS_FREED = 8 };
    static char flag[200];
    struct test_keeper keeper = {0};
    struct journal *journal;
    const struct journal_slot *slot;
    unsigned n = 0;

    rdt *conn = start_client("producer");
    (void)publish_stored(conn, "weights", MIB, 1);
    rdt_close(conn);
    node_kill(&node, SIGKILL);
    keeper_start(&keeper);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    more_flags[0] = flag;
    start();
    node_kill(&node, SIGKILL);
    must_ok(journal_open(keeper_look(&keeper, 1, NULL), &journal, &err));
    for (uint64_t cursor = 0; (slot = journal_next(journal, &cursor));) {
        if (slot->kind != RECORD_OBJECT)
            continue;
        cr_assert_eq(slot->flags & IS_FREED, 0u);
        n++;
    }
    cr_assert_eq(n, 1u);
    journal_close(journal);
    keeper_stop(&keeper, SIGTERM);
    (void)snprintf(flag, sizeof flag, "rm -r '%s'", store);
    must(system(flag) == 0);
}

/* The daemon is killed after it has freed the object by force, and before the file and that of its name are removed. A reader
 * keeps the object, and nobody its files, from which a later daemon would make both again. */
Test(storage, files_of_an_object_that_was_freed_by_force_go_at_the_next_start)
{
    static char flag[200];
    struct test_keeper keeper = {0};
    char file[300], copy[200], command[1000];

    keeper_start(&keeper);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    more_flags[0] = flag;
    rdt *conn = start_client("producer");
    rdt *reader = node_client(&node, "reader");
    struct rdt_ref ref = put_snapshot(conn, "forced", MIB, RDT_PUT_DETACHED | RDT_PUT_STORED, 1);
    must_ok(rdt_publish(conn, "weights", &ref, NULL, NULL, &err));
    must_ok(rdt_store(conn, &ref, LONG, file, sizeof file, &err));
    rdt_object *object = fetch_one(reader, &ref, RDT_FETCH_SHARE);
    (void)snprintf(copy, sizeof copy, "%s.copy", store);
    (void)snprintf(command, sizeof command, "cp -rp '%s' '%s'", store, copy);
    must(system(command) == 0);
    must_ok(rdt_free(conn, &ref, true, &err));
    must_be_empty();
    node_kill(&node, SIGKILL);
    (void)snprintf(command, sizeof command, "mv '%s'/*.safetensors '%s'/*.name '%s' && rm -r '%s'", copy, copy, store, copy);
    must(system(command) == 0);
    start();
    must_be_empty();
    must_ok(rdt_ping(reader, LONG, &err));
    cr_assert(!node_log_has(&node, "is ignored"));
    cr_assert(holds_pattern(tensor_of(object, 0).data, MIB, 1));
    rdt_release(object);
    rdt_close(reader);
    rdt_close(conn);
    node_stop(&node);
    keeper_stop(&keeper, SIGTERM);
    remove_store();
}

/* The keeper has a lot that no record names, because it has lost the journal: that takes nothing from the files. */
Test(storage, descriptors_that_nothing_needs_are_closed_before_files_are_opened)
{
    enum { FILES = 200, HELD = 350, MOST = 480 };
    static char flag[200];
    struct test_keeper keeper = {0};
    struct keeper_message message;
    struct rlimit limit, few;
    struct node_status status;
    int link, fd = memfd_create("held", MFD_CLOEXEC);

    rdt *conn = start_client("producer");
    for (uint32_t i = 0; i < FILES; i++) {
        struct rdt_ref ref = put_snapshot(conn, NULL, 100 * KIB, RDT_PUT_DETACHED | RDT_PUT_STORED, i);
        must_ok(rdt_store(conn, &ref, LONG, NULL, 0, &err));
    }
    rdt_close(conn);
    node_stop(&node);
    keeper_start(&keeper);
    link = keeper_dial(&keeper);
    must(fd >= 0 && keeper_greet(link, &message) == KEEPER_READY);
    for (uint64_t i = 0; i < HELD; i++)
        keeper_send(link, KEEPER_STORE, &(uint64_t){16 + i}, &fd, 1);
    close(link);
    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    more_flags[0] = flag;
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    few = (struct rlimit){MOST, MOST};
    must(setrlimit(RLIMIT_NOFILE, &few) == 0);
    start();
    status = node_now(&node);
    cr_assert_eq(status.objects, FILES);
    node_stop(&node);
    keeper_stop(&keeper, SIGTERM);
    (void)snprintf(flag, sizeof flag, "rm -r '%s'", store);
    must(system(flag) == 0);
}

/* ---- what is refused ---- */

Test(storage, what_cannot_be_stored_is_refused_with_a_reason)
{
    struct rdt_ref ref, missing = ref_named("missing");

    more_flags[0] = "--storage-max=1048576";
    rdt *conn = start_client("client");
    ref = put_one(conn, &VECTOR(RDT_U8, 3, "abc"), "live");
    must_refuse(RDT_INVALID, "only snapshots", rdt_store(conn, &ref, LONG, NULL, 0, &err));
    must_refuse(RDT_NOT_FOUND, "missing", rdt_store(conn, &missing, LONG, NULL, 0, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_STORED};
    must_refuse(RDT_INVALID, "only a SNAPSHOT", rdt_put(conn, &VECTOR(RDT_U8, 3, "abc"), 1, &options, &ref, &err));
    ref = put_snapshot(conn, "too large", 2 * MIB, 0, 1);
    must_refuse(RDT_LIMIT, "storage_max", rdt_store(conn, &ref, LONG, NULL, 0, &err));
    must_have(conn, &ref, 2 * MIB, 1);
    must_ok(rdt_free(conn, &ref, false, &err));
    end(conn, NULL);
}

static void must_store(rdt *conn, const struct rdt_ref *ref)
{
    must_ok(rdt_store(conn, ref, LONG, NULL, 0, &err));
}

/* The limit is that of the node's user, whichever client and daemon stores; an object that ends gives its part back. */
Test(storage, user_at_the_limit_of_stored_bytes_is_refused_until_a_file_is_gone)
{
    more_flags[0] = "--owner-max-stored-bytes=3MiB";
    rdt *conn = start_client("first");
    struct rdt_ref first = put_snapshot(conn, "first", 2 * MIB, RDT_PUT_DETACHED, 1);
    must_store(conn, &first);
    must_store(conn, &first); /* is charged once */
    rdt_close(conn);
    conn = node_client(&node, "second");
    struct rdt_ref second = put_snapshot(conn, "second", 2 * MIB, RDT_PUT_DETACHED, 2);
    must_refuse(RDT_LIMIT, "raise owner_max_stored_bytes", rdt_store(conn, &second, LONG, NULL, 0, &err));
    conn = restart(conn, SIGKILL, "third");
    must_have(conn, &first, 2 * MIB, 1);
    second = put_snapshot(conn, "second", 2 * MIB, RDT_PUT_DETACHED, 2);
    must_refuse(RDT_LIMIT, "raise owner_max_stored_bytes", rdt_store(conn, &second, LONG, NULL, 0, &err));
    must_ok(rdt_free(conn, &first, false, &err));
    must_store(conn, &second);
    must_ok(rdt_free(conn, &second, false, &err));
    must_be_empty();
    end(conn, NULL);
}

/* A put that stores waits for nothing, and the files of evictable objects make room for its own. */
Test(storage, put_that_stores_makes_room_among_the_files_of_the_cache)
{
    more_flags[0] = "--owner-max-stored-bytes=6MiB";
    more_flags[1] = "--set=daemon.cache_limit=16MiB";
    more_flags[2] = "--set=daemon.cache_storage_limit=1GiB";
    rdt *conn = start_client("client");
    for (unsigned i = 0; count_files(".cache.safetensors") < 5; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "block %u", i);
        must(i < 1000);
        (void)put_snapshot(conn, id, MIB, RDT_PUT_EVICTABLE, i);
        wait_until(LONG, count_files(".tmp") == 0);
    }
    struct rdt_ref ref = put_snapshot(conn, "stored", 3 * MIB, RDT_PUT_STORED, 1);
    wait_until(LONG, count_files(".safetensors") > count_files(".cache.safetensors"));
    must_store(conn, &ref);
    must_ok(rdt_free(conn, &ref, false, &err));
    more_flags[1] = more_flags[2] = NULL;
    rdt_close(conn);
    node_stop(&node);
}

static uint64_t stored_bytes(rdt *conn)
{
    struct rdt_daemon_status status = {.struct_size = sizeof status};

    must_ok(rdt_daemon_status(conn, &status, &err));
    return status.stored_bytes;
}

/* The file of an object that gave up its memory is what its readers map. */
Test(storage, file_that_a_reader_keeps_stays_charged_until_it_is_closed)
{
    more_flags[0] = "--owner-max-stored-bytes=9MiB";
    more_flags[1] = "--memory-limit=12MiB";
    rdt *conn = start_client("client");
    struct rdt_ref first = put_snapshot(conn, "first", 6 * MIB, RDT_PUT_DETACHED, 1);
    must_store(conn, &first);
    struct rdt_ref second = put_snapshot(conn, "second", 8 * MIB, RDT_PUT_DETACHED, 2); /* wants its memory */
    rdt_object *object = fetch_one(conn, &first, RDT_FETCH_SHARE);
    void *kept = mremap(tensor_of(object, 0).data, 0, 6 * MIB, MREMAP_MAYMOVE); /* another mapping of the file */
    must(kept != MAP_FAILED);
    rdt_release(object);
    must_ok(rdt_free(conn, &first, false, &err));
    must_be_empty();
    wait_until(LONG, stored_bytes(conn) >= 6 * MIB); /* it is too late to be on its way back */
    must_refuse(RDT_LIMIT, "raise owner_max_stored_bytes", rdt_store(conn, &second, LONG, NULL, 0, &err));
    must(munmap(kept, 6 * MIB) == 0);
    wait_until(LONG, stored_bytes(conn) == 0);
    must_store(conn, &second);
    must_ok(rdt_free(conn, &second, false, &err));
    must_be_empty();
    end(conn, NULL);
}

Test(storage, one_user_cannot_fill_storage_max_for_all)
{
    struct rdt_ref refs[16], other;
    struct rdt_error why = {0};
    unsigned n = 0;

    need_root();
    more_flags[0] = "--storage-max=16MiB";
    start();
    must(seteuid(STRANGER) == 0);
    rdt *stranger = node_client(&node, "stranger");
    must(seteuid(0) == 0);
    rdt *conn = node_client(&node, "client");
    do
        refs[n] = put_snapshot(conn, NULL, MIB, 0, n);
    while (rdt_store(conn, &refs[n++], LONG, NULL, 0, &why) == RDT_OK && n < 16);
    must_say(why.status == RDT_LIMIT && strstr(why.msg, "for users that have few") && strstr(why.msg, "raise storage_max"),
             "%s", why.msg);
    cr_assert_eq(n, 14u, "fourteen sixteenths, less a header for each");
    other = put_snapshot(stranger, "other", 100 * KIB, 0, 99);
    must_store(stranger, &other);
    must_ok(rdt_free(stranger, &other, false, &err));
    while (n > 0)
        must_ok(rdt_free(conn, &refs[--n], false, &err));
    must_be_empty();
    rdt_close(stranger);
    end(conn, NULL);
}

Test(storage, daemon_without_a_directory_stores_nothing)
{
    struct rdt_ref ref;

    node_start(&node, &(struct node_options){0});
    rdt *conn = node_client(&node, "client");
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT | RDT_PUT_STORED};
    must_refuse(RDT_UNSUPPORTED, "storage_dir", rdt_put(conn, &VECTOR(RDT_U8, 3, "abc"), 1, &options, &ref, &err));
    ref = put_snapshot(conn, "kept", MIB, 0, 1);
    must_refuse(RDT_UNSUPPORTED, "storage_dir", rdt_store(conn, &ref, LONG, NULL, 0, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    rdt_close(conn);
    node_end(&node, NULL);
}

static void refuses_to_start(const char *text)
{
    static struct test_node refused;
    char flag[200];
    const char *flags[] = {flag, NULL};
    int status = 0;

    (void)snprintf(flag, sizeof flag, "--storage-dir=%s", store);
    must_say(!node_try_start(&refused, &(struct node_options){.flags = flags, .name = "refused"}, &status), "it started");
    cr_assert_eq(status, 1);
    cr_assert(node_log_has(&refused, text), "%s", text);
}

Test(storage, directory_that_others_can_enter_ends_the_start)
{
    choose_store();
    must(chmod(store, 0755) == 0);
    refuses_to_start("with mode 0700");
    must(chmod(store, 0700) == 0);
    if (geteuid() == 0) {
        must(chown(store, 65534, 65534) == 0);
        refuses_to_start("belongs to uid 65534");
    }
    remove_store();
}

Test(storage, two_daemons_cannot_have_one_directory)
{
    start();
    refuses_to_start("another rdtd uses storage_dir");
    node_end(&node, NULL);
    remove_store();
}

/* ---- killed while it writes ---- */

static size_t file_bytes(const struct rdt_ref *object, const char *suffix)
{
    char path[240];
    struct stat file;

    (void)snprintf(path, sizeof path, "%s/%016llx.safetensors%s", store, (unsigned long long)object->generation, suffix);
    return stat(path, &file) == 0 ? (size_t)file.st_size : 0;
}

/* Points 0 to 5: so many fifths of the object are written, at least; 6: its file is whole. */
static bool is_written(const struct rdt_ref *object, size_t bytes, unsigned point)
{
    return file_bytes(object, "") > 0 || (point < 6 && file_bytes(object, ".tmp") >= bytes * point / 5);
}

/* The daemon is killed at points that move through the writing of the second version. The name then has the first or the second
 * one, whole; and the second one if the client was told that it is stored. */
Test(storage, killed_daemon_leaves_a_whole_version_or_the_one_before)
{
    const size_t bytes = 8 * MIB;
    struct rdt_ref name = name_ref("weights");
    unsigned n_first = 0, n_second = 0;

    for (unsigned round = 0; round < 24; round++) {
        bool told = round % 8 == 7;
        rdt *conn = start_client("trainer");

        (void)publish_stored(conn, "weights", bytes, 1);
        struct rdt_ref ref = put_snapshot(conn, NULL, bytes, RDT_PUT_STORED, 2);
        must_ok(rdt_publish(conn, "weights", &ref, NULL, NULL, &err));
        if (told)
            must_ok(rdt_store(conn, &name, LONG, NULL, 0, &err));
        else
            wait_until(LONG, is_written(&ref, bytes, round % 8));
        conn = restart(conn, SIGKILL, "sampler");
        rdt_object *object = fetch_one(conn, &name, RDT_FETCH_AUTO);
        uint64_t version = info_of(object).version;
        cr_assert(version == 1 || version == 2);
        cr_assert(!told || version == 2);
        cr_assert(holds_pattern(tensor_of(object, 0).data, bytes, (uint32_t)version), "version %llu is torn",
                  (unsigned long long)version);
        n_first += version == 1;
        n_second += version == 2;
        rdt_release(object);
        cr_assert_eq(count_files(".tmp"), 0u);
        wait_until(LONG, count_files(".safetensors") == 1);
        must_ok(rdt_unpublish(conn, &name, &err));
        must_be_empty();
        rdt_close(conn);
        node_stop(&node);
    }
    cr_log_info("%u times the first version, %u times the second", n_first, n_second);
    remove_store();
}

/* ---- memory is wanted ---- */

static rdt_object *fetch_newest(rdt *conn, const char *name, uint64_t version)
{
    struct rdt_ref ref = name_ref(name);
    rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_AUTO);

    cr_assert_eq(info_of(object).version, version);
    return object;
}

/* Four stored objects of 8 MiB under a memory_limit of 20 MiB. One that somebody has mapped keeps its memory. */
static void check_spill(bool with_keeper)
{
    static char flag[200];
    static const char *const names[] = {"a", "b", "c", "d"};
    struct test_keeper keeper = {0};
    rdt_object *mapped = NULL;
    struct rdt_ref ref;

    more_flags[0] = "--memory-limit=20971520";
    if (with_keeper) {
        keeper_start(&keeper);
        (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
        more_flags[1] = flag;
    }
    rdt *conn = start_client("trainer");
    for (uint32_t i = 0; i < 4; i++) {
        (void)publish_stored(conn, names[i], 8 * MIB, i);
        if (i == 0)
            mapped = fetch_newest(conn, "a", 1);
    }
    struct node_status status = node_now(&node);
    cr_assert_leq(status.memory_bytes, 20 * MIB);
    cr_assert_geq(status.memory_bytes, 8 * MIB, "what is mapped stays in memory");
    for (uint32_t i = 0; i < 4; i++) {
        ref = name_ref(names[i]);
        must_have(conn, &ref, 8 * MIB, i);
    }
    if (with_keeper) {
        rdt_release(mapped);
        rdt_close(conn);
        again(SIGKILL);
        conn = node_client(&node, "sampler");
        for (uint32_t i = 0; i < 4; i++) {
            ref = name_ref(names[i]);
            must_have(conn, &ref, 8 * MIB, i);
        }
    } else {
        cr_assert(holds_pattern(tensor_of(mapped, 0).data, 8 * MIB, 0));
        rdt_release(mapped);
    }
    for (uint32_t i = 0; i < 4; i++) {
        ref = name_ref(names[i]);
        must_ok(rdt_unpublish(conn, &ref, &err));
    }
    must_be_empty();
    rdt_close(conn);
    if (with_keeper) {
        node_stop(&node);
        keeper_stop(&keeper, SIGTERM);
    } else {
        node_end(&node, NULL);
    }
    remove_store();
}

Test(storage, stored_objects_give_up_their_memory_when_it_is_wanted)
{
    check_spill(false);
}

Test(storage, objects_that_gave_up_their_memory_survive_with_a_keeper)
{
    check_spill(true);
}

/* For a moment such an object has two regions. */
Test(storage, owners_at_a_limit_give_up_memory_too)
{
    struct rdt_ref ref;
    char name[16];
    void *room;

    more_flags[0] = "--memory-limit=16777216";
    more_flags[1] = "--client-max-regions=12";
    rdt *conn = start_client("trainer");
    rdt *other = node_client(&node, "other");
    for (uint32_t i = 0; i < 12; i++) {
        (void)snprintf(name, sizeof name, "n%u", i);
        (void)publish_stored(conn, name, MIB, i);
    }
    must_ok(rdt_alloc(other, 8 * MIB, &room, &err));
    must_ok(rdt_dealloc(other, room, &err));
    for (uint32_t i = 0; i < 12; i++) {
        (void)snprintf(name, sizeof name, "n%u", i);
        ref = name_ref(name);
        must_have(conn, &ref, MIB, i);
        must_ok(rdt_unpublish(conn, &ref, &err));
    }
    must_be_empty();
    rdt_close(conn);
    rdt_close(other);
    node_end(&node, NULL);
    remove_store();
}

/* A file that cannot be opened costs only the memory of its own object. */
Test(storage, memory_comes_from_the_objects_whose_files_are_there)
{
    char file[3][300], away[310];
    struct rdt_ref refs[4];
    void *room;

    more_flags[0] = "--memory-limit=20971520";
    rdt *conn = start_client("trainer");
    for (uint32_t i = 0; i < 4; i++) {
        refs[i] = put_snapshot(conn, NULL, 4 * MIB, RDT_PUT_STORED, i);
        must_ok(rdt_store(conn, &refs[i], LONG, i < 3 ? file[i] : NULL, i < 3 ? sizeof file[i] : 0, &err));
    }
    for (uint32_t i = 0; i < 3; i++) {
        (void)snprintf(away, sizeof away, "%.299s.away", file[i]);
        must(rename(file[i], away) == 0);
    }
    must_ok(rdt_alloc(conn, 8 * MIB, &room, &err));
    must_ok(rdt_dealloc(conn, room, &err));
    for (uint32_t i = 0; i < 3; i++) {
        (void)snprintf(away, sizeof away, "%.299s.away", file[i]);
        must(rename(away, file[i]) == 0);
    }
    for (uint32_t i = 0; i < 4; i++) {
        must_have(conn, &refs[i], 4 * MIB, i);
        must_ok(rdt_free(conn, &refs[i], false, &err));
    }
    must_be_empty();
    end(conn, (const char *const[]){"its file cannot be opened", NULL});
}
