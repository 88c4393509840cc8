/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory over a restart of the daemon, which a keeper survives: what the daemon allocated is there again, under the same
 * ids and in the same place.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_restart)

#ifndef RDT_WITHOUT_CUDA
#include "tests/support/keeper.h"

static struct test_keeper keeper;

/* fakes: of the fake driver of this daemon; NULL: nothing. The first daemon, or one that goes on with its sessions. */
static void start(const char *fakes)
{
    static char flag[200], state_dir[160], socket[160];
    const char *const flags[] = {flag, "--pool-idle=200ms", NULL};
    const char *const env[] = {gpu_is_real() ? NULL : fake_gpu_env(), fakes, NULL};
    bool first = state_dir[0] == '\0';

    (void)snprintf(flag, sizeof flag, "--keeper=%s", keeper.socket);
    node_start(&node, &(struct node_options){.flags = flags,
                                             .env = env,
                                             .state_dir = first ? NULL : state_dir,
                                             .socket = first ? NULL : socket,
                                             .awaited = !first});
    memcpy(state_dir, node.state_dir, sizeof state_dir);
    memcpy(socket, node.socket, sizeof socket);
}

static void open_clients(void)
{
    load_driver();
    keeper_start(&keeper);
    start(NULL);
    connect_clients();
}

static void again(int signal, const char *fakes)
{
    if (signal == SIGTERM)
        node_stop(&node);
    else
        node_kill(&node, signal);
    start(fakes);
}

static void close_clients(void)
{
    rdt_cuda_close(gpu_a);
    rdt_cuda_close(gpu_b);
    rdt_close(a);
    rdt_close(b);
}

static void finish(void)
{
    unsigned n;

    wait_until(20 * SEC, device(0).used_bytes == 0);
    wait_until(20 * SEC, device(gpu_count() - 1).used_bytes == 0);
    close_clients();
    node_expect_idle(&node);
    node_stop(&node);
    wait_until(LONG, (keeper_look(&keeper, 0, &n), n == 1)); /* the journal */
    keeper_stop(&keeper, SIGTERM);
}

static void go_on(int signal)
{
    struct rdt_ref ref, later;
    rdt_object *object;
    char *addr, *seen;

    open_clients();
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, (void **)&addr, &err));
    gpu_fill(addr, BYTES, 1);
    ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    must_ok(fetch_to(b, &ref, NULL, NULL, &object, &err));
    seen = tensor_of(object, 0).data;
    uint64_t used = device(0).used_bytes;
    for (unsigned round = 2; round < 5; round++) {
        again(signal, NULL);
        must_say(device(0).used_bytes == used, "%llu bytes are in use", (unsigned long long)device(0).used_bytes);
        must(gpu_holds(seen, BYTES, round - 1));
        gpu_fill(addr, BYTES, round); /* the mappings of both clients, and the daemon's new one, are of the same memory */
        must(gpu_holds(seen, BYTES, round));
        expect(b, &ref, "host", NULL, round, "local/copy");
        expect(b, &ref, NULL, NULL, round, "local/share");
        expect(a, &ref, NULL, NULL, round, "local/same");
        later = put_at(addr, BYTES, RDT_CUDA_KNOWN);
        expect(b, &later, "cuda", gpu_uuid(gpu_count() - 1), round, gpu_count() > 1 ? "local/copy" : "local/share");
        let_go(&later);
    }
    rdt_release(object);
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    finish();
}

Test(cuda_restart, memory_and_objects_stay_where_they_are_when_the_daemon_is_killed)
{
    go_on(SIGKILL);
}

Test(cuda_restart, memory_and_objects_stay_where_they_are_when_the_daemon_is_stopped)
{
    go_on(SIGTERM);
}

Test(cuda_restart, snapshots_copies_and_memory_of_several_gpus_survive)
{
    struct rdt_ref ref, snapshot;
    rdt_object *copy;
    void *first, *last;

    open_clients();
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &first, &err));
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(gpu_count() - 1), BYTES, &last, &err));
    gpu_fill(first, BYTES, 5);
    gpu_fill(last, BYTES, 6);
    struct rdt_put_options put = {.struct_size = sizeof put, .flags = RDT_PUT_SNAPSHOT | RDT_PUT_DETACHED};
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .put = &put};
    struct rdt_tensor one = bytes_at(first, BYTES);
    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &snapshot, &err));
    ref = put_at(last, BYTES, RDT_CUDA_KNOWN);
    must_ok(fetch_to(b, &ref, "cuda", gpu_uuid(0), &copy, &err));
    again(SIGKILL, NULL);
    gpu_fill(first, BYTES, 7);
    expect(b, &snapshot, "host", NULL, 5, "local/copy");
    expect(b, &ref, "host", NULL, 6, "local/copy");
    must(gpu_holds(tensor_of(copy, 0).data, BYTES, 6));
    rdt_release(copy);
    must_ok(rdt_dealloc(a, first, &err));
    must_ok(rdt_dealloc(a, last, &err));
    let_go(&ref);
    let_go(&snapshot);
    finish();
}

Test(cuda_restart, memory_that_cannot_be_imported_again_ends_the_session_that_had_it)
{
    rdt_object *object;
    void *addr;

    if (gpu_is_real())
        cr_skip_test("a real driver cannot be told what to refuse");
    open_clients();
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
    struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    again(SIGKILL, "FAKE_CUDA_NO_FD_IMPORT=1");
    must_refuse(RDT_RESTARTED, "lost a part of what this session had", rdt_ping(a, LONG, &err));
    must_ok(rdt_ping(b, LONG, &err)); /* it had nothing there */
    must(node_log_has(&node, "of the earlier daemon is lost: fd 0 is not exported GPU memory"));
    must_refuse(RDT_FREED, "ended before the last restart", fetch_to(b, &ref, NULL, NULL, &object, &err));
    close_clients();
    node_stop(&node);
    keeper_stop(&keeper, SIGTERM);
}

/* Client a's memory at addr, which it makes known in that way, is used by both clients over restarts. */
static void go_on_with(char *addr, enum rdt_cuda_how how)
{
    struct rdt_object_info info;
    struct rdt_ref ref, later;
    rdt_object *object;
    char *seen, path[65];

    gpu_fill(addr, BYTES, 1);
    ref = put_at(addr, BYTES, how);
    must_ok(fetch_to(a, &ref, NULL, NULL, &object, &err)); /* it cannot open a handle of its own */
    rdt_object_info(object, &info);
    (void)snprintf(path, sizeof path, "%s", info.path);
    rdt_release(object);
    must_ok(fetch_to(b, &ref, NULL, NULL, &object, &err));
    must_go_by("local/share", object);
    seen = tensor_of(object, 0).data;
    for (unsigned round = 2; round < 4; round++) {
        again(SIGKILL, NULL);
        must(gpu_holds(seen, BYTES, round - 1));
        gpu_fill(addr, BYTES, round);
        must(gpu_holds(seen, BYTES, round));
        expect(b, &ref, "host", NULL, round, "local/copy");
        expect(b, &ref, NULL, NULL, round, "local/share");
        expect(a, &ref, NULL, NULL, round, path);
        later = put_at(addr, BYTES, how);
        expect(b, &later, "host", NULL, round, "local/copy");
        let_go(&later);
    }
    rdt_release(object);
    let_go(&ref);
}

Test(cuda_restart, chunks_that_a_client_imported_survive)
{
    void *base;

    open_clients();
    char *addr = gpu_alloc_chunks(2 * MIB, 3, true);
    must_ok(rdt_cuda_offer(gpu_a, addr, 6 * MIB, &base, NULL, &err));
    go_on_with(addr + MIB, RDT_CUDA_KNOWN);
    must_ok(rdt_dealloc(a, base, &err));
    gpu_free_chunks(addr, 2 * MIB, 3);
    finish();
}

Test(cuda_restart, more_chunks_than_a_message_to_the_keeper_has_survive)
{
    const unsigned n = KEEPER_MAX_IDS + 50;
    void *base;

    open_clients();
    char *addr = gpu_alloc_chunks(2 * MIB, n, true);
    must_ok(rdt_cuda_offer(gpu_a, addr, n * 2 * MIB, &base, NULL, &err));
    gpu_fill(addr + (n - 3) * 2 * MIB, BYTES, 1);
    again(SIGKILL, NULL);
    struct rdt_ref ref = put_at(addr + (n - 3) * 2 * MIB, BYTES, RDT_CUDA_KNOWN);
    expect(b, &ref, "host", NULL, 1, "local/copy");
    let_go(&ref);
    must_ok(rdt_dealloc(a, base, &err));
    gpu_free_chunks(addr, 2 * MIB, n);
    finish();
}

Test(cuda_restart, chunks_that_only_an_object_uses_survive)
{
    open_clients();
    char *addr = gpu_alloc_chunks(2 * MIB, 3, true);
    go_on_with(addr + MIB, RDT_CUDA_CHUNKS);
    gpu_free_chunks(addr, 2 * MIB, 3);
    finish();
}

Test(cuda_restart, memory_of_a_legacy_handle_survives)
{
    if (handles_are_refused())
        cr_skip_test("the fake driver refuses legacy handles");
    open_clients();
    char *addr = gpu_alloc_whole(BYTES + MIB);
    go_on_with(addr + MIB / 2, RDT_CUDA_HANDLE);
    gpu_free(addr);
    finish();
}

Test(cuda_restart, imported_memory_that_cannot_be_imported_again_ends_its_session)
{
    void *addr, *base;

    if (gpu_is_real())
        cr_skip_test("a real driver cannot be told what to refuse");
    open_clients();
    addr = gpu_alloc_chunks(2 * MIB, 2, true);
    must_ok(rdt_cuda_offer(gpu_a, addr, 4 * MIB, &base, NULL, &err));
    again(SIGKILL, "FAKE_CUDA_NO_FD_IMPORT=1");
    must_refuse(RDT_RESTARTED, "lost a part of what this session had", rdt_ping(a, LONG, &err));
    must_ok(rdt_ping(b, LONG, &err));
    gpu_free_chunks(addr, 2 * MIB, 2);
    close_clients();
    node_stop(&node);
    keeper_stop(&keeper, SIGTERM);
}
/* The next daemon learns what the GPU still reads and writes for a fetch that was given up. */
Test(cuda_restart, memory_that_a_gpu_may_still_write_stays_in_use)
{
    make_gate();
    count_calls();
    open_clients();
    struct rdt_ref ref = put_new(BYTES, 3);
    void *into = target_on(gpu_b, BYTES);
    rdt_request *request = start_stopped(b, &ref, into, BYTES);
    rdt_request_destroy(request);
    again(SIGKILL, NULL);
    let_go(&ref);
    must_refuse(RDT_TIMED_OUT, "still touches it", rdt_wait_freed_range(b, into, BYTES, 50 * MSEC, &err));
    must_be(RDT_TIMED_OUT, rdt_wait_freed(a, &ref, 50 * MSEC, &err));
    start_gpu();
    must_ok(rdt_wait_freed_range(b, into, BYTES, LONG, &err));
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    must_ok(rdt_dealloc(b, into, &err));
    finish();
    (void)unlink(getenv("FAKE_CUDA_TRACE"));
    remove_gate();
}

/* The daemon keeps what the session of a process that lives has, although nobody goes on with it. */
Test(cuda_restart, session_that_was_left_beside_a_gpu_that_hangs_keeps_its_memory)
{
    rdt_cuda *gpu;
    rdt *conn;

    make_gate();
    count_calls();
    open_clients();
    connect_with_gpu(&conn, &gpu);
    struct rdt_ref ref = put_new(BYTES, 3);
    void *into = target_on(gpu, BYTES);
    uint64_t used = device(0).used_bytes;
    (void)start_stopped(conn, &ref, into, BYTES);
    rdt_cuda_close(gpu);
    rdt_close(conn);
    again(SIGKILL, NULL);
    let_go(&ref);
    must_be(RDT_TIMED_OUT, rdt_wait_freed(a, &ref, 50 * MSEC, &err));
    must(device(0).used_bytes == used);
    start_gpu();
    wait_until(20 * SEC, (node_connect(&node, &conn), rdt_close(conn), rdt_wait_freed(a, &ref, MSEC, NULL) == RDT_OK));
    finish();
    (void)unlink(getenv("FAKE_CUDA_TRACE"));
    remove_gate();
}
#endif
