/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots on a GPU, which the readers of their owner map, and copy from in streams of their own: what that costs, and what
 * becomes of the memory from version to version.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_shares)

#ifndef RDT_WITHOUT_CUDA
#include <stdlib.h>

#include "client/rdt_info.h"

#define BLOCK (4 * MIB) /* what BYTES take on the GPU */
#define WARM 5u         /* versions, after which the blocks of the pool serve */

enum how { BY_DAEMON, BY_LIBRARY }; /* copies the snapshot */

static void begin_counted(const char *more)
{
    count_calls();
    begin_with(NULL, (const char *const[]){"--pool-idle=4s", more, NULL});
}

static void *source_of_a(void)
{
    void *addr;

    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
    return addr;
}

/* A snapshot of BYTES at addr, memory of the daemon. */
static struct rdt_ref put_snapshot(void *addr, uint32_t seed, enum how how, enum rdt_visibility visibility)
{
    const uint32_t flags = RDT_PUT_SNAPSHOT | (how == BY_LIBRARY ? RDT_PUT_UNSEALED : 0);
    struct rdt_put_options put = {.struct_size = sizeof put, .flags = flags, .visibility = visibility};
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .put = &put, .copy = how == BY_LIBRARY};
    struct rdt_tensor one = bytes_at(addr, BYTES);
    struct rdt_ref ref;

    gpu_fill(addr, BYTES, seed);
    if (how == BY_LIBRARY)
        must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
    else
        ref = put_as(a, &one, 1, &put);
    return ref;
}

static void share(const struct rdt_ref *ref, uint32_t seed)
{
    rdt_object *object = fetch_one(b, ref, RDT_FETCH_AUTO);
    struct rdt_object_info info;

    must_go_by("local/share", object);
    must_lie(object, 0, "cuda", gpu_uuid(0));
    rdt_object_info(object, &info);
    must(!info.writable);
    must(gpu_holds(tensor_of(object, 0).data, BYTES, seed));
    rdt_release(object);
    must_ok(rdt_ping(b, LONG, &err)); /* the release has been handled */
}

static void copy_into(const struct rdt_ref *ref, void *into, uint32_t seed)
{
    struct into fetch;
    rdt_object *object = fetch_as(b, ref, set_target(&fetch, into, BYTES, LONG));

    must_go_by("local/copy", object);
    rdt_release(object);
    must_ok(rdt_ping(b, LONG, &err));
    must(gpu_holds(into, BYTES, seed));
}

static uint64_t requests(const char *verb)
{
    char label[80], *text;
    const char *at;
    uint64_t n;

    (void)snprintf(label, sizeof label, "rdtd_requests_total{verb=\"%s\",status=\"OK\"} ", verb);
    must_ok(rdt_metrics(a, RDT_METRICS_PROMETHEUS, &text, &err));
    at = strstr(text, label);
    n = at ? strtoull(at + strlen(label), NULL, 10) : 0;
    free(text);
    return n;
}

static unsigned mapped_calls(pid_t pid)
{
    return fake_gpu_calls(pid, 0, "cuMemMap") + fake_gpu_calls(pid, 0, "cuMemUnmap") +
           fake_gpu_calls(pid, 0, "cuMemImportFromShareableHandle") + fake_gpu_calls(pid, 0, "cuMemSetAccess") +
           fake_gpu_calls(pid, 0, "cuIpcOpenMemHandle");
}

static unsigned waits(pid_t pid)
{
    return fake_gpu_calls(pid, 0, "cuStreamSynchronize") + fake_gpu_calls(pid, 0, "cuEventSynchronize") +
           fake_gpu_calls(pid, 0, "cuCtxSynchronize");
}

static void free_and_wait(struct rdt_ref *ref)
{
    let_go(ref);
    must_ok(rdt_wait_freed(a, ref, LONG, &err));
}

/* But for the question whether the program has begun to use the other GPU. */
Test(cuda_shares, second_share_of_a_snapshot_calls_no_driver)
{
    begin_counted(NULL);
    void *addr = source_of_a();
    for (unsigned how = BY_DAEMON; how <= BY_LIBRARY; how++) {
        struct rdt_ref ref = put_snapshot(addr, 3, (enum how)how, RDT_VISIBLE_TO_OWNER);
        gpu_fill(addr, BYTES, 4); /* the snapshot does not change */
        share(&ref, 3);
        fake_gpu_trace_clear();
        rdt_object *object = fetch_one(b, &ref, RDT_FETCH_SHARE);
        rdt_release(object);
        must_ok(rdt_ping(b, LONG, &err));
        unsigned calls = fake_gpu_calls(getpid(), 0, NULL);
        must_say(calls == fake_gpu_calls(getpid(), 0, "cuDevicePrimaryCtxGetState"), "the reader calls the driver");
        must_say(fake_gpu_calls(node.pid, 0, NULL) == 0, "the daemon calls the driver");
        free_and_wait(&ref);
    }
    must_ok(rdt_dealloc(a, addr, &err));
    end_of_count();
}

/* From the fifth version on, the reader has the memory of each new version mapped already. */
static void update_often(enum how how)
{
    begin_counted(NULL);
    void *addr = source_of_a(), *into;
    must_ok(rdt_cuda_alloc(gpu_b, gpu_uuid(0), BYTES, &into, &err));
    for (uint32_t version = 1; version <= 2 * WARM; version++) {
        struct rdt_ref ref = put_snapshot(addr, version, how, RDT_VISIBLE_TO_OWNER), name;
        must_ok(rdt_publish(a, "weights", &ref, NULL, NULL, &err));
        let_go(&ref);
        must_ok(rdt_ref_from_name("weights", 0, NULL, &name, &err));
        must_ok(rdt_ping(a, LONG, &err));
        uint64_t fetches = requests("FETCH"), imports = requests("IMPORT");
        gpu_fill(into, BYTES, 99);
        fake_gpu_trace_clear();
        struct into fetch;
        rdt_object *object = fetch_as(b, &name, set_target(&fetch, into, BYTES, LONG));
        unsigned copies = fake_gpu_calls(getpid(), 0, "cuMemcpyAsync"), maps = mapped_calls(getpid());
        must_say(copies == 1, "%u copies", copies);
        must(waits(getpid()) == 0);
        must_say(fake_gpu_calls(node.pid, 0, "cuMemcpyAsync") == 0, "the daemon copies");
        must_say(version <= WARM || maps == 0, "version %u: %u calls to map it", version, maps);
        rdt_release(object);
        must(gpu_holds(into, BYTES, version));
        must(requests("FETCH") == fetches + 1 && requests("IMPORT") == imports);
    }
    struct rdt_ref name;
    must_ok(rdt_ref_from_name("weights", 0, NULL, &name, &err));
    must_ok(rdt_unpublish(a, &name, &err));
    must_ok(rdt_dealloc(b, into, &err));
    must_ok(rdt_dealloc(a, addr, &err));
    end_of_count();
}

Test(cuda_shares, update_from_a_snapshot_is_one_request_and_one_copy)
{
    update_often(BY_DAEMON);
}

Test(cuda_shares, update_from_what_the_library_copied_is_one_request_and_one_copy)
{
    update_often(BY_LIBRARY);
}

/* The reader shares or copies each version while the one before is still there. */
static void publish_often(enum how how, bool copies)
{
    struct rdt_ref before = {0};
    uint64_t most = 0;
    void *into = NULL;

    begin_counted(NULL);
    void *addr = source_of_a();
    if (copies)
        must_ok(rdt_cuda_alloc(gpu_b, gpu_uuid(0), BYTES, &into, &err));
    for (uint32_t version = 1; version <= 100; version++) {
        if (version == WARM + 1)
            fake_gpu_trace_clear();
        struct rdt_ref ref = put_snapshot(addr, version, how, RDT_VISIBLE_TO_OWNER);
        if (copies)
            copy_into(&ref, into, version);
        else
            share(&ref, version);
        if (version > 1)
            free_and_wait(&before);
        before = ref;
        uint64_t used = device(0).used_bytes;
        most = used > most ? used : most;
    }
    must_say(most <= (3 + copies) * BLOCK, "%llu bytes for versions of %zu", (unsigned long long)most, BYTES);
    must_say(fake_gpu_calls(node.pid, 0, "cuMemCreate") == 0, "the daemon allocates for each version");
    must(how == BY_LIBRARY || mapped_calls(getpid()) == 0); /* the library maps what it copies into */
    free_and_wait(&before);
    if (copies)
        must_ok(rdt_dealloc(b, into, &err));
    must_ok(rdt_dealloc(a, addr, &err));
    end_of_count();
}

Test(cuda_shares, hundred_snapshots_that_are_shared_take_the_memory_of_two)
{
    publish_often(BY_DAEMON, false);
}

Test(cuda_shares, hundred_snapshots_that_are_copied_take_the_memory_of_two)
{
    publish_often(BY_DAEMON, true);
}

Test(cuda_shares, hundred_versions_of_the_library_that_are_shared_take_the_memory_of_two)
{
    publish_often(BY_LIBRARY, false);
}

Test(cuda_shares, hundred_versions_of_the_library_that_are_copied_take_the_memory_of_two)
{
    publish_often(BY_LIBRARY, true);
}

/* Others do not depend on the word of the owner's programs: what they may see never lies where these could write. */
Test(cuda_shares, snapshot_that_others_may_see_is_in_memory_that_nobody_had)
{
    begin_counted(NULL);
    void *addr = source_of_a();
    struct rdt_ref own = put_snapshot(addr, 1, BY_DAEMON, RDT_VISIBLE_TO_OWNER), shown;
    share(&own, 1);
    free_and_wait(&own); /* its memory may serve the next one of the owner */
    fake_gpu_trace_clear();
    shown = put_snapshot(addr, 2, BY_DAEMON, RDT_VISIBLE_TO_ALL);
    must(fake_gpu_calls(node.pid, 0, "cuMemCreate") == 1);
    struct rdt_fetch_options strict = {.struct_size = sizeof strict, .mode = RDT_FETCH_SHARE, .timeout_ns = LONG};
    rdt_object *object;
    must_refuse(RDT_NO_PATH, "others may see", rdt_fetch(b, &shown, 1, &strict, &object, &err));
    object = fetch_one(b, &shown, RDT_FETCH_AUTO);
    must_go_by("local/copy", object);
    must(gpu_holds(tensor_of(object, 0).data, BYTES, 2));
    rdt_release(object);
    fake_gpu_trace_clear();
    own = put_snapshot(addr, 3, BY_DAEMON, RDT_VISIBLE_TO_OWNER);
    must(fake_gpu_calls(node.pid, 0, "cuMemCreate") == 0);
    share(&own, 3);
    free_and_wait(&own);
    free_and_wait(&shown);
    must_ok(rdt_dealloc(a, addr, &err));
    end_of_count();
}

/* A request waits until the reader, which makes no calls meanwhile, has unmapped what it keeps. */
Test(cuda_shares, memory_that_a_reader_keeps_mapped_makes_room)
{
    void *more;

    begin_counted("--device-limit=16MiB");
    void *addr = source_of_a();
    struct rdt_ref ref = put_snapshot(addr, 1, BY_DAEMON, RDT_VISIBLE_TO_OWNER);
    share(&ref, 1);
    free_and_wait(&ref);
    must(device(0).used_bytes == 2 * BLOCK);
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), 12 * MIB, &more, &err));
    must(device(0).used_bytes == 4 * BLOCK);
    must_ok(rdt_dealloc(a, more, &err));
    must_ok(rdt_dealloc(a, addr, &err));
    end_of_count();
}

/* ---- readers that do not answer ---- */

struct told {
    char socket[200];
    struct rdt_ref ref;
};

static int share_and_stay(struct actor *self, void *arg)
{
    struct told told;
    rdt_cuda *gpu;
    rdt *conn;

    actor_recv(self, &told, sizeof told);
    join_with_gpu(told.socket, &conn, &gpu);
    for (unsigned i = 0; i < 2; i++) { /* the second time it holds the object */
        rdt_object *object = fetch_one(conn, &told.ref, RDT_FETCH_SHARE);
        must(gpu_holds(tensor_of(object, 0).data, BYTES, 1));
        if (i == 0)
            rdt_release(object);
        must_ok(rdt_ping(conn, LONG, &err));
        actor_step(self);
        actor_await(self);
    }
    return 0;
}

static void begin_with_reader(struct actor *reader, struct rdt_ref *ref_p, void **addr_p)
{
    struct told told;

    actor_start(reader, share_and_stay, NULL);
    begin_with(NULL, (const char *const[]){"--pool-idle=200ms", "--owner-max-device-bytes=16MiB", NULL});
    *addr_p = source_of_a();
    *ref_p = put_snapshot(*addr_p, 1, BY_DAEMON, RDT_VISIBLE_TO_OWNER);
    memset(&told, 0, sizeof told);
    (void)snprintf(told.socket, sizeof told.socket, "%s", node.socket);
    told.ref = *ref_p;
    actor_send(reader, &told, sizeof told);
    actor_await(reader); /* it has shared and released the snapshot */
}

static bool owner_has_room(size_t bytes)
{
    struct rdt_error why;
    void *more;

    if (rdt_cuda_alloc(gpu_a, gpu_uuid(0), bytes, &more, &why) == RDT_OK) {
        must_ok(rdt_dealloc(a, more, &err));
        return true;
    }
    must_say(why.status == RDT_LIMIT && strstr(why.msg, "owner_max_device_bytes"), "%s", why.msg);
    return false;
}

/* What a frozen reader keeps mapped serves the next versions. Once it is to be freed, and cannot, its owner is charged. */
Test(cuda_shares, frozen_reader_costs_its_owner_what_it_keeps_mapped)
{
    struct actor reader;
    struct rdt_ref ref;
    uint64_t most = 0;
    void *addr;

    begin_with_reader(&reader, &ref, &addr);
    actor_freeze(&reader);
    free_and_wait(&ref);
    for (uint32_t version = 2; version <= 20; version++) {
        ref = put_snapshot(addr, version, BY_DAEMON, RDT_VISIBLE_TO_OWNER);
        uint64_t used = device(0).used_bytes;
        most = used > most ? used : most;
        free_and_wait(&ref);
    }
    must_say(most <= 3 * BLOCK, "%llu bytes", (unsigned long long)most);
    wait_until(20 * SEC, !owner_has_room(10 * MIB)); /* with 4 MiB at addr and what the reader keeps */
    must(owner_has_room(6 * MIB));
    actor_thaw(&reader);
    wait_until(20 * SEC, owner_has_room(10 * MIB));
    actor_kill(&reader, SIGKILL);
    must_ok(rdt_dealloc(a, addr, &err));
    end();
}

Test(cuda_shares, killed_reader_leaves_nothing)
{
    struct actor reader;
    struct rdt_ref ref;
    void *addr;

    begin_with_reader(&reader, &ref, &addr);
    actor_step(&reader);
    actor_await(&reader); /* it holds the snapshot */
    let_go(&ref);
    must_be(RDT_TIMED_OUT, rdt_wait_freed(a, &ref, 50 * MSEC, &err));
    actor_kill(&reader, SIGKILL);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    wait_until(20 * SEC, device(0).used_bytes == BLOCK);
    must_ok(rdt_dealloc(a, addr, &err));
    end();
}
#endif
