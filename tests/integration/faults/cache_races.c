/* SPDX-License-Identifier: Apache-2.0 */
/* Twenty-four threads put, find, load, replace and free the same evictable objects while they are evicted, written to files and
 * evicted there: a reader gets the whole of what somebody has put under the id, or an error that says that it is gone. */
#include <pthread.h>

#include "client/rdt_info.h"
#include "client/rdt_many.h"
#include "tests/integration/faults/storage.h"
#include "tests/support/message.h"
#include "tests/support/raw.h"

enum { THREADS = 24, IDS = 40, TURNS = 120 };

TestSuite(cache_races, .timeout = SUITE_SECONDS(240));

struct engine {
    pthread_t thread;
    unsigned number;
    unsigned loaded, missed;
    struct rdt_error err;
    char failed[200]; /* "": nothing has; only the main thread may use Criterion's asserts */
};

static size_t bytes_of(unsigned id)
{
    return id % 4 == 0 ? 20 * KIB : (40 + id % 3 * 80) * KIB;
}

static bool is_gone(enum rdt_status status)
{
    return status == RDT_FREED || status == RDT_NOT_FOUND || status == RDT_NOT_PUT || status == RDT_TIMED_OUT ||
           status == RDT_LIMIT;
}

static enum rdt_status put_block(rdt *conn, struct engine *engine, unsigned id, uint8_t *memory)
{
    char name[16];
    struct rdt_put_options options = {.struct_size = sizeof options,
                                      .id = name,
                                      .id_bytes = (size_t)snprintf(name, sizeof name, "b%u", id),
                                      .flags = RDT_PUT_SNAPSHOT | RDT_PUT_EVICTABLE | RDT_PUT_REPLACE};
    struct rdt_ref ref;

    fill_pattern(memory, bytes_of(id), id);
    return rdt_put(conn, &VECTOR(RDT_U8, bytes_of(id), memory), 1, &options, &ref, &engine->err);
}

/* By two ways in turns. */
static enum rdt_status load_block(rdt *conn, struct engine *engine, const struct rdt_ref *ref, unsigned id, uint8_t *memory,
                                  bool many, bool *whole_p)
{
    const struct rdt_tensor target = VECTOR(RDT_U8, bytes_of(id), memory), *targets = &target;
    size_t one = 1;
    rdt_object *object;
    enum rdt_status status;

    *whole_p = true;
    if (many) {
        status = rdt_load_many(conn, ref, 1, &targets, &one, LONG, NULL, &engine->err);
        *whole_p = status != RDT_OK || holds_pattern(memory, bytes_of(id), id);
        return status;
    }
    status = try_fetch(conn, ref, RDT_FETCH_AUTO, LONG, &object, &engine->err);
    if (status != RDT_OK)
        return status;
    *whole_p = holds_pattern(tensor_of(object, 0).data, bytes_of(id), id);
    rdt_release(object);
    return RDT_OK;
}

static enum rdt_status find_and_load(rdt *conn, struct engine *engine, unsigned id, uint8_t *memory, unsigned how,
                                     bool *whole_p)
{
    char name[16];
    struct rdt_key key = {name, (size_t)snprintf(name, sizeof name, "b%u", id)};
    struct rdt_lookup_options options = {.struct_size = sizeof options, .lease_ns = how % 2 ? LONG : 0};
    struct rdt_ref ref;
    size_t n;
    enum rdt_status status = rdt_lookup(conn, &key, 1, &options, &ref, &n, &engine->err);

    *whole_p = true;
    if (status != RDT_OK)
        return status;
    engine->missed += n == 0;
    if (n == 0)
        return RDT_OK;
    status = load_block(conn, engine, &ref, id, memory, how % 3 == 0, whole_p);
    engine->loaded += status == RDT_OK;
    if (options.lease_ns > 0) { /* nothing takes what is leased, but a free by force */
        enum rdt_status ended = rdt_lease_end(conn, &ref, 1, &engine->err);
        return status == RDT_OK ? ended : status;
    }
    return status;
}

static enum rdt_status free_block(rdt *conn, struct engine *engine, unsigned id, bool force)
{
    char name[16];
    struct rdt_ref ref;
    int length = snprintf(name, sizeof name, "b%u", id);
    enum rdt_status status = rdt_ref_from_id(name, (size_t)length, &ref, &engine->err);

    return status == RDT_OK ? rdt_free(conn, &ref, force, &engine->err) : status;
}

static void *run(void *arg)
{
    struct engine *engine = arg;
    unsigned random = engine->number * 7919 + 1;
    uint8_t *memory = malloc(MIB);
    rdt *conn = node_client(&node, "engine");

    for (unsigned turn = 0; turn < TURNS && engine->failed[0] == '\0'; turn++) {
        unsigned id, what;
        enum rdt_status status;
        bool whole = true;

        random = random * 1103515245 + 12345;
        id = (random >> 8) % IDS;
        what = (random >> 20) % 16;
        if (what < 7)
            status = put_block(conn, engine, id, memory);
        else if (what < 14)
            status = find_and_load(conn, engine, id, memory, what, &whole);
        else if (what == 14)
            status = free_block(conn, engine, id, random & 1 << 16);
        else
            status = engine->number % 8 == 0 ? rdt_flush_cache(conn, false, NULL, NULL, &engine->err) : RDT_OK;
        if (!whole || (status != RDT_OK && !is_gone(status)))
            (void)snprintf(engine->failed, sizeof engine->failed, "turn %u, b%u, %u: %s, %s: %.100s", turn, id, what,
                           whole ? "whole" : "wrong bytes", rdt_status_name(status), engine->err.msg);
    }
    rdt_close(conn);
    free(memory);
    return NULL;
}

static void race(const char *files)
{
    static char limit[80];
    static struct engine engines[THREADS];
    unsigned loaded = 0, missed = 0;
    struct rdt_daemon_status status = {.struct_size = sizeof status};
    rdt *conn;

    (void)snprintf(limit, sizeof limit, "--set=daemon.cache_storage_limit=%s", files);
    more_flags[0] = "--set=daemon.cache_limit=1MiB";
    more_flags[1] = limit;
    conn = start_client("observer");
    memset(engines, 0, sizeof engines);
    for (unsigned i = 0; i < THREADS; i++) {
        engines[i].number = i;
        must(pthread_create(&engines[i].thread, NULL, run, &engines[i]) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        must(pthread_join(engines[i].thread, NULL) == 0);
        must_say(engines[i].failed[0] == '\0', "thread %u, %s", i, engines[i].failed);
        loaded += engines[i].loaded;
        missed += engines[i].missed;
    }
    must_ok(rdt_daemon_status(conn, &status, &err));
    must_say(loaded > 100 && missed > 10 && status.evictions > 10, "%u loaded, %u missed, %llu evictions", loaded, missed,
             (unsigned long long)status.evictions);
    must(strcmp(files, "0") == 0 || status.evictable_spilled > 0);
    for (status.evictable_objects = 1; status.evictable_objects > 0;) {
        must_ok(rdt_flush_cache(conn, false, NULL, NULL, &err));
        must_ok(rdt_daemon_status(conn, &status, &err));
    }
    must(status.evictable_bytes == 0 && status.evictable_files == 0 && status.evictable_file_bytes == 0);
    must_be_empty();
    end(conn, NULL);
}

Test(cache_races, objects_are_whole_or_gone)
{
    race("0");
}

Test(cache_races, objects_are_whole_or_gone_with_files)
{
    race("2MiB");
}

/* ---- replaced ---- */

static uint64_t send_put(struct raw *raw, const char *id)
{
    uint32_t dtype = RDT_U8, ndim = 1;
    uint64_t shape = 5, offset = 0;
    Rdt__Pb__TensorList list =
        MESSAGE(tensor_list, .n_dtype = 1, .dtype = &dtype, .n_ndim = 1, .ndim = &ndim, .n_shape = 1, .shape = &shape);
    Rdt__Pb__Put put = MESSAGE(put, .id = (ProtobufCBinaryData){strlen(id), (uint8_t *)(uintptr_t)id}, .tensors = &list,
                               .flags = RDT_PUT_SNAPSHOT | RDT_PUT_EVICTABLE | RDT_PUT_REPLACE,
                               .inline_data = (ProtobufCBinaryData){5, (uint8_t *)"bytes"});

    list.n_offset = 1;
    list.offset = &offset;
    return raw_send(raw, RDT_MSG_PUT, &put.base, NULL, 0);
}

/* Its file is going, because it was used, when it is replaced: the next daemon would have it again. */
Test(cache_races, put_is_answered_when_what_it_replaces_has_no_file)
{
    Rdt__Pb__List list = MESSAGE(list, .kind = RDT__PB__LIST_KIND__LIST_KIND_CLIENTS);
    struct rdt_ref first;
    struct rdt_stat stat;
    struct raw raw;
    char file[300];
    uint64_t put;
    rdt *conn;

    more_flags[0] = "--set=daemon.cache_limit=1MiB";
    more_flags[1] = "--set=daemon.cache_storage_limit=2MiB";
    conn = start_client("engine");
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    first = put_snapshot(conn, "b0", 100 * KIB, RDT_PUT_EVICTABLE, 0);
    for (unsigned i = 1; i < 10; i++) {
        char name[] = {'b', (char)('0' + i), 0};
        (void)put_snapshot(conn, name, 100 * KIB, RDT_PUT_EVICTABLE, i);
    }
    (void)snprintf(file, sizeof file, "%s/%016llx.cache.safetensors", store, (unsigned long long)first.generation);
    wait_until(LONG, count_files(".cache.safetensors") == 2); /* of the first two */
    must(access(file, F_OK) == 0);
    if (!node_hold_workers(&node))
        cr_skip_test("this process may not trace the daemon");
    rdt_release(fetch_one(conn, &first, RDT_FETCH_AUTO));
    wait_until(LONG, rdt_stat(conn, &first, &stat, NULL) == RDT_OK && stat.holds == 1);
    put = send_put(&raw, "b0");
    protobuf_c_message_free_unpacked(
        raw_reply(&raw, raw_send(&raw, RDT_MSG_LIST, &list.base, NULL, 0), &rdt__pb__list_reply__descriptor), NULL);
    node_release_workers(&node);
    protobuf_c_message_free_unpacked(raw_reply(&raw, put, &rdt__pb__put_reply__descriptor), NULL);
    must(access(file, F_OK) != 0);
    raw_close(&raw);
    must(rdt_flush_cache(conn, false, NULL, NULL, NULL) == RDT_OK);
    end(conn, NULL);
}
