/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory on one node: its owners, their limits, and what the daemon still holds of a client's own memory after that
 * client has ended.
 *
 * The leak checker of gcc 12: see cuda_fixture.h. lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_owners)

#ifndef RDT_WITHOUT_CUDA
#include <grp.h>
#include <unistd.h>

#define STRANGER 12345

static int put_as_another_user(struct actor *self, void *arg)
{
    enum rdt_cuda_how how;
    struct rdt_ref ref;
    rdt_object *object;
    const char *why;
    char dir[128];
    void *addr, *base;
    rdt_cuda *gpu;
    rdt *conn;

    actor_recv(self, dir, sizeof dir);
    (void)fake_gpu_load();
    must_say(gpu_there(&why), "%s", why);
    must(chdir(dir) == 0);
    must(setgroups(0, NULL) == 0 && setresgid(STRANGER, STRANGER, STRANGER) == 0 &&
         setresuid(STRANGER, STRANGER, STRANGER) == 0);
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = "s"};
    must_ok(rdt_connect(&options, &conn, &err));
    must_ok(rdt_cuda_open(conn, &gpu, &err));
    gpu_use(0);
    addr = gpu_alloc_whole(BYTES);
    gpu_fill(addr, BYTES, 6);
    struct rdt_tensor one = bytes_at(addr, BYTES);
    struct rdt_cuda_put_options put = {.struct_size = sizeof put, .how = &how};
    for (unsigned i = 0; i < 5; i++) { /* after three refusals it no longer asks the daemon */
        must_ok(rdt_cuda_put(gpu, &one, 1, &put, &ref, &err));
        must_say(how == RDT_CUDA_COPIED, "taken as %d", (int)how);
        must_ok(fetch_to(conn, &ref, NULL, NULL, &object, &err));
        must(gpu_holds(tensor_of(object, 0).data, BYTES, 6));
        rdt_release(object);
        must_ok(rdt_free(conn, &ref, false, &err));
    }
    must_be(RDT_UNSUPPORTED, rdt_cuda_offer(gpu, addr, BYTES, &base, NULL, &err));
    gpu_free(addr);
    rdt_cuda_close(gpu);
    rdt_close(conn);
    return 0;
}

/* The packaged daemon runs as a user of its own, so this is every actor's case. */
Test(cuda_owners, handle_of_another_users_process_is_refused_and_the_tensor_copied)
{
    struct actor actor;
    char dir[128];

    if (geteuid() != 0 || gpu_is_real())
        cr_skip_test("needs the fake driver, and root, to run as another user");
    actor_start(&actor, put_as_another_user, NULL);
    begin_with("FAKE_CUDA_IPC_SAME_UID=1", (const char *const[]){"--pool-idle=200ms", "--socket-mode=0666", NULL});
    (void)snprintf(dir, sizeof dir, "%s", node.dir);
    actor_send(&actor, dir, sizeof dir);
    actor_wait(&actor);
    end();
}

static void put_for_all(void *addr, enum rdt_cuda_how expected, struct rdt_ref *ref_p)
{
    struct rdt_tensor one = bytes_at(addr, BYTES);
    enum rdt_cuda_how how;
    struct rdt_put_options put = {.struct_size = sizeof put, .visibility = RDT_VISIBLE_TO_ALL};
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .put = &put, .how = &how};

    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, ref_p, &err));
    must(how == as_allowed(expected));
}

struct told {
    char dir[128];
    struct rdt_ref ref[2];
};

/* The daemon copies, and the reader maps nothing of the owner's. */
static void fetch_into_own_memory(rdt *conn, rdt_cuda *gpu, const struct rdt_ref *ref)
{
    struct into fetch;
    bool mapped;
    void *into;

    must_ok(rdt_cuda_alloc(gpu, gpu_uuid(0), BYTES, &into, &err));
    rdt_object *object = fetch_as(conn, ref, set_target(&fetch, into, BYTES, LONG));
    must(gpu_holds(into, BYTES, 1));
    must_ok(rdt_trim(conn, &mapped, &err));
    must(!mapped);
    rdt_release(object);
    must_ok(rdt_dealloc(conn, into, &err));
}

static int fetch_as_another_user(struct actor *self, void *arg)
{
    struct told told;
    rdt_object *object;
    rdt_cuda *gpu;
    rdt *conn;

    actor_recv(self, &told, sizeof told);
    load_driver();
    must(chdir(told.dir) == 0);
    must(setgroups(0, NULL) == 0 && setresgid(STRANGER, STRANGER, STRANGER) == 0 &&
         setresuid(STRANGER, STRANGER, STRANGER) == 0);
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = "s"};
    must_ok(rdt_connect(&options, &conn, &err));
    must_ok(rdt_cuda_open(conn, &gpu, &err));
    gpu_use(0);
    fetch_into_own_memory(conn, gpu, &told.ref[0]);
    struct rdt_fetch_options share = {.struct_size = sizeof share, .mode = RDT_FETCH_SHARE, .timeout_ns = LONG};
    for (unsigned i = 0; i < 2; i++) {
        must_ok(fetch_to(conn, &told.ref[i], NULL, NULL, &object, &err));
        must_go_by("local/copy", object);
        must_lie(object, 0, "cuda", gpu_uuid(0));
        must(gpu_holds(tensor_of(object, 0).data, BYTES, 1 + i));
        gpu_fill(tensor_of(object, 0).data, BYTES, 9); /* a copy, which this user may write */
        rdt_release(object);
        must_refuse(RDT_NO_PATH, "another owner", rdt_fetch(conn, &told.ref[i], 1, &share, &object, &err));
    }
    rdt_cuda_close(gpu);
    rdt_close(conn);
    return 0;
}

Test(cuda_owners, other_users_get_copies_and_nothing_to_map)
{
    struct told told;
    struct actor stranger;
    void *addr[2];

    need_root();
    actor_start(&stranger, fetch_as_another_user, NULL);
    begin();
    memset(&told, 0, sizeof told);
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr[0], &err));
    addr[1] = gpu_alloc_whole(BYTES);
    for (unsigned i = 0; i < 2; i++) {
        gpu_fill(addr[i], BYTES, 1 + i);
        put_for_all(addr[i], i ? RDT_CUDA_HANDLE : RDT_CUDA_KNOWN, &told.ref[i]);
    }
    (void)snprintf(told.dir, sizeof told.dir, "%s", node.dir);
    actor_send(&stranger, &told, sizeof told);
    actor_wait(&stranger);
    for (unsigned i = 0; i < 2; i++) {
        must(gpu_holds(addr[i], BYTES, 1 + i));
        let_go(&told.ref[i]);
    }
    must_ok(rdt_dealloc(a, addr[0], &err));
    end();
    gpu_free(addr[1]);
}

Test(cuda_owners, limit_that_is_reached_is_named)
{
    void *of_a, *of_b, *more;

    begin_with(NULL, (const char *const[]){"--pool-idle=200ms", "--device-limit=32MiB", "--client-max-device-bytes=8MiB",
                                           "--owner-max-device-bytes=12MiB", NULL});
    must_refuse(RDT_LIMIT, "device_limit", rdt_cuda_alloc(gpu_a, gpu_uuid(0), 40 * MIB, &more, &err));
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), 6 * MIB, &of_a, &err));
    must_refuse(RDT_LIMIT, "client_max_device_bytes", rdt_cuda_alloc(gpu_a, gpu_uuid(0), 4 * MIB, &more, &err));
    must_ok(rdt_cuda_alloc(gpu_b, gpu_uuid(gpu_count() - 1), 6 * MIB, &of_b, &err)); /* on whichever GPU */
    must_refuse(RDT_LIMIT, "owner_max_device_bytes", rdt_cuda_alloc(gpu_b, gpu_uuid(0), 2 * MIB, &more, &err));
    must_ok(rdt_dealloc(a, of_a, &err));
    must_ok(rdt_cuda_alloc(gpu_b, gpu_uuid(0), 2 * MIB, &more, &err));
    must_ok(rdt_dealloc(b, of_b, &err));
    must_ok(rdt_dealloc(b, more, &err));
    end();
}

static int lend_and_wait(struct actor *self, void *arg)
{
    struct rdt_ref ref;
    char socket[200];
    rdt_cuda *gpu;
    rdt *conn;

    actor_recv(self, socket, sizeof socket);
    join_with_gpu(socket, &conn, &gpu);
    void *addr = gpu_alloc_whole(BYTES);
    gpu_fill(addr, BYTES, 4);
    struct rdt_tensor one = bytes_at(addr, BYTES);
    must_ok(rdt_cuda_put(gpu, &one, 1, NULL, &ref, &err));
    actor_send(self, &ref, sizeof ref);
    actor_await(self);
    return 1;
}

/* The handle is closed after the copies that read its memory. The fake driver aborts its process if a copy finds no memory. */
Test(cuda_owners, lenders_handle_is_closed_behind_the_copies)
{
    struct actor lender;
    rdt_object *object;
    struct rdt_ref ref;
    char socket[200];

    actor_start(&lender, lend_and_wait, NULL);
    begin_with("FAKE_CUDA_COPY_US=300000", (const char *const[]){"--pool-idle=200ms", NULL});
    (void)snprintf(socket, sizeof socket, "%s", node.socket);
    actor_send(&lender, socket, sizeof socket);
    actor_recv(&lender, &ref, sizeof ref);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .memory = "host", .timeout_ns = LONG};
    rdt_request *request = start_as(b, &ref, &options);
    wait_until(20 * SEC, node_now(&node).transfers_active > 0 ||
                             /* the fetch may have ended before the first look */
                             rdt_wait(b, &request, 1, 1, 0, NULL, NULL, NULL) != RDT_TIMED_OUT);
    actor_kill(&lender, SIGKILL);
    if (rdt_wait(b, &request, 1, 1, LONG, NULL, NULL, NULL) == RDT_OK &&
        rdt_request_take_object(request, &object, NULL) == RDT_OK) {
        must(holds_pattern(tensor_of(object, 0).data, BYTES, 4));
        rdt_release(object);
    }
    rdt_request_destroy(request);
    end();
}

/* b fetches what the lender has put, by a handle that the driver closes only when no kernel runs. */
static void borrow(struct actor *lender)
{
    rdt_object *object;
    struct rdt_ref ref;
    char socket[200];

    actor_start(lender, lend_and_wait, NULL);
    begin();
    must(setenv("FAKE_CUDA_FREE_WAITS", "1", 1) == 0);
    (void)snprintf(socket, sizeof socket, "%s", node.socket);
    actor_send(lender, socket, sizeof socket);
    actor_recv(lender, &ref, sizeof ref);
    must_ok(fetch_to(b, &ref, NULL, NULL, &object, &err));
    must_go_by("local/share", object);
    must(gpu_holds(tensor_of(object, 0).data, BYTES, 4));
}

Test(cuda_owners, close_does_not_wait_for_a_kernel)
{
    struct actor lender;

    if (handles_are_refused())
        cr_skip_test("the fake driver refuses legacy handles");
    borrow(&lender);
    rdt_cuda_close(gpu_a); /* whose thread would close it */
    rdt_cuda_close(gpu_b);
    gpu_a = gpu_b = NULL;
    void *stream = gpu_stream_create();
    struct gpu_gate *gate = gpu_hold(stream);
    rdt_close(b);
    b = NULL;
    gpu_open(gate);
    gpu_stream_wait(stream);
    gpu_stream_destroy(stream);
    actor_kill(&lender, SIGKILL);
    end();
}

static void *close_gpu(void *cuda)
{
    rdt_cuda_close(cuda);
    return NULL;
}

/* The thread that closes handles goes on for a connection that comes meanwhile, so the close does not wait for its end. */
Test(cuda_owners, close_ends_beside_a_connection_that_comes_meanwhile)
{
    rdt_cuda *ended_gpu, *gpu;
    struct actor lender;
    rdt *ended, *conn;
    pthread_t thread;

    if (handles_are_refused())
        cr_skip_test("the fake driver refuses legacy handles");
    borrow(&lender);
    rdt_cuda_close(gpu_a);
    rdt_cuda_close(gpu_b);
    gpu_a = gpu_b = NULL;
    void *stream = gpu_stream_create();
    struct gpu_gate *gate = gpu_hold(stream);
    rdt_close(b); /* the thread closes the handle, and waits for the GPU */
    b = NULL;
    actor_kill(&lender, SIGKILL);
    wait_until(20 * SEC, node_now(&node).clients == 1);
    connect_with_gpu(&ended, &ended_gpu);
    must(pthread_create(&thread, NULL, close_gpu, ended_gpu) == 0);
    (void)usleep(300000); /* it waits for the thread then; otherwise nothing is tested */
    connect_with_gpu(&conn, &gpu);
    gpu_open(gate);
    gpu_stream_wait(stream);
    gpu_stream_destroy(stream);
    must(pthread_join(thread, NULL) == 0);
    rdt_close(ended);
    wait_until(20 * SEC, node_now(&node).clients == 2);
    rdt_cuda_close(gpu);
    rdt_close(conn);
    end();
}
#endif
