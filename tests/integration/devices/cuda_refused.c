/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory on one node: what the driver refuses, and memory that must not be exported.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_refused)

#ifndef RDT_WITHOUT_CUDA
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void begin_fake(const char *fakes)
{
    if (gpu_is_real())
        cr_skip_test("a real driver cannot be told what to refuse");
    begin_with(fakes, (const char *const[]){"--pool-idle=200ms", NULL});
}

/* Of the object, if there is one. */
static void ctl_must_say(const char *command, const struct rdt_ref *ref, const char *text)
{
    struct program program = {0};
    char of[RDT_REF_TEXT_BYTES];

    if (ref)
        rdt_ref_to_text(ref, of);
    program_run(&program, (const char *const[]){"rdtctl", "--socket", node.socket, command, ref ? of : NULL, NULL}, NULL);
    must_say(strstr(program.out, text), "rdtctl %s: %s%s", command, program.out, program.err);
    program_free(&program);
}

/* A handle of cudaMalloc shares the whole block, with the memory of others in it. */
Test(cuda_refused, small_allocations_are_copied_and_their_block_is_not_shared)
{
    void *addr[2], *base;
    struct rdt_ref ref;

    must(setenv("FAKE_CUDA_SHARED_BLOCKS", "1", 1) == 0);
    begin();
    for (unsigned i = 0; i < 2; i++) {
        enum rdt_cuda_how how;
        rdt_object *object;
        addr[i] = gpu_alloc(65536);
        gpu_fill(addr[i], 65536, 20 + i);
        struct rdt_tensor one = bytes_at(addr[i], 65536);
        struct rdt_cuda_put_options options = {.struct_size = sizeof options, .how = &how};
        must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
        must_say(how == RDT_CUDA_COPIED, "taken as %d", (int)how);
        must_ok(fetch_to(b, &ref, NULL, NULL, &object, &err));
        must(gpu_holds(tensor_of(object, 0).data, 65536, 20 + i));
        rdt_release(object);
        let_go(&ref);
        must_be(RDT_UNSUPPORTED, rdt_cuda_offer(gpu_a, addr[i], 65536, &base, NULL, &err));
    }
    gpu_free(addr[0]);
    gpu_free(addr[1]);
    end();
}

Test(cuda_refused, refused_handle_is_a_copy)
{
    void *addr, *base, *buffer, *stream;
    struct rdt_tensor target;
    size_t count = 1;

    begin_fake("FAKE_CUDA_NO_IPC=1");
    addr = gpu_alloc_whole(BYTES);
    gpu_fill(addr, BYTES, 3);
    struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_COPIED);
    expect(b, &ref, NULL, NULL, 3, "local/share");
    ctl_must_say("stat", &ref, "not shared  rdtd cannot map memory of client ");
    ctl_must_say("explain", &ref, "  not shared: rdtd cannot map memory of client ");
    ctl_must_say("doctor", NULL, "warn  RDT025 devices          Memory of client ");
    gpu_fill(addr, BYTES, 4);
    must_be(RDT_UNSUPPORTED, rdt_cuda_offer(gpu_b, addr, BYTES, &base, NULL, &err));

    /* A target: the fetch writes memory of the daemon, and the caller's stream copies it. */
    must_ok(rdt_cuda_alloc(gpu_b, gpu_uuid(0), BYTES, &buffer, &err));
    target = bytes_at(buffer, BYTES);
    const struct rdt_tensor *targets = &target;
    struct rdt_fetch_options how = {
        .struct_size = sizeof how, .targets = &targets, .target_counts = &count, .timeout_ns = LONG};
    rdt_object *object = fetch_as(b, &ref, &how);
    rdt_release(object);
    stream = gpu_stream_create();
    struct gpu_gate *gate = gpu_hold(stream);
    must_ok(rdt_cuda_deliver(gpu_b, buffer, addr, BYTES, stream, &err));
    must(gpu_holds(addr, BYTES, 4));
    gpu_open(gate);
    gpu_stream_wait(stream);
    must(gpu_holds(addr, BYTES, 3));
    gpu_stream_destroy(stream);
    let_go(&ref);
    must_refuse(RDT_INVALID, "not memory of a GPU", rdt_cuda_deliver(gpu_b, addr, &count, 8, NULL, &err));
    gpu_free(addr);
    end();
}

/* The driver goes through host memory between GPUs without peer access, if it is told the contexts of both. */
Test(cuda_refused, delivery_from_a_gpu_without_peer_access)
{
    char path[] = "/tmp/rdt-staged-XXXXXX";
    void *buffer, *addr, *stream;
    struct stat before, after;

    if (gpu_is_real())
        cr_skip_test("a real driver has the peer access that it has");
    int fd = mkstemp(path);
    must(fd >= 0 && setenv("FAKE_CUDA_STAGED", path, 1) == 0);
    begin();
    must_ok(rdt_cuda_alloc(gpu_b, gpu_uuid(1), BYTES, &buffer, &err));
    gpu_use(1);
    gpu_fill(buffer, BYTES, 5);
    gpu_use(0);
    addr = gpu_alloc_whole(BYTES);
    stream = gpu_stream_create();
    must(fstat(fd, &before) == 0);
    must_ok(rdt_cuda_deliver(gpu_b, buffer, addr, BYTES, stream, &err));
    gpu_stream_wait(stream);
    must(gpu_holds(addr, BYTES, 5));
    must(fstat(fd, &after) == 0 && after.st_size > before.st_size);
    gpu_stream_destroy(stream);
    gpu_free(addr);
    end();
    must(close(fd) == 0 && unlink(path) == 0);
}

Test(cuda_refused, chunks_that_cannot_be_exported_again_are_copied)
{
    uint8_t *host = malloc(BYTES);
    rdt_object *object;

    if (gpu_is_real())
        cr_skip_test("a real driver cannot be told what to refuse");
    must(host && setenv("FAKE_CUDA_NO_REEXPORT", "1", 1) == 0);
    begin();
    fill_pattern(host, BYTES, 8);
    struct rdt_ref ref = put_at(host, BYTES, RDT_CUDA_HOST);
    must_ok(fetch_to(a, &ref, "cuda", gpu_uuid(0), &object, &err));
    struct rdt_ref again = put_at(tensor_of(object, 0).data, BYTES, RDT_CUDA_COPIED);
    rdt_release(object);
    expect(b, &again, NULL, NULL, 8, "local/share");
    let_go(&ref);
    let_go(&again);
    free(host);
    end();
}

Test(cuda_refused, handle_of_another_gpu_is_refused)
{
    struct rdt_shared shared = {.struct_size = sizeof shared, .memory = "cuda", .kind = RDT_SHARED_LEGACY_IPC};
    char handle[64];
    void *addr;

    begin_fake("FAKE_CUDA_NO_IPC=0");
    if (gpu_count() > 1) {
        addr = gpu_alloc_whole(BYTES);
        gpu_ipc_handle(addr, handle);
        shared.device = gpu_uuid(1);
        shared.handle = handle;
        shared.handle_bytes = sizeof handle;
        shared.bytes = 4 * MIB;
        must_refuse(RDT_INVALID, "another GPU", rdt_import_shared(a, &shared, addr, &err));
        gpu_free(addr);
    }
    end();
}

static void *put_without_a_context(void *arg)
{
    struct rdt_tensor one = bytes_at(arg, BYTES);
    enum rdt_cuda_how how;
    struct rdt_ref ref;
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .how = &how};

    must_ok(rdt_cuda_put(gpu_a, &one, 1, &options, &ref, &err));
    must(how == RDT_CUDA_KNOWN || how == RDT_CUDA_CHUNKS);
    let_go(&ref);
    return NULL;
}

/* Memory of which the driver cannot tell is not taken for host memory. */
Test(cuda_refused, query_that_fails_is_an_error)
{
    struct rdt_ref ref;
    pthread_t thread;
    int ordinal;

    if (gpu_is_real())
        cr_skip_test("a real driver cannot be told what to refuse");
    must(setenv("FAKE_CUDA_POINTER_CONTEXT", "1", 1) == 0);
    begin();
    char *addr = gpu_alloc_chunks(4 * MIB, 1, true);
    must(pthread_create(&thread, NULL, put_without_a_context, addr) == 0 && pthread_join(thread, NULL) == 0);
    struct rdt_tensor one = bytes_at(addr, BYTES);
    gpu_refuse("cuPointerGetAttribute", 700);
    must_refuse(RDT_SYSTEM, "in whose memory", rdt_cuda_put(gpu_a, &one, 1, NULL, &ref, &err));
    must_be(RDT_SYSTEM, rdt_cuda_where(gpu_a, addr, &ordinal, &err));
    gpu_refuse("cuPointerGetAttribute", 0);
    must_ok(rdt_cuda_where(gpu_a, &ordinal, &ordinal, &err));
    must(ordinal == -1);
    gpu_free_chunks(addr, 4 * MIB, 1);
    end();
}

/* ---- another PID namespace ---- */

struct answer {
    enum rdt_cuda_how how; /* 0: there are no namespaces here */
    struct rdt_ref ref;
};

/* The first process of a PID namespace: puts memory of cudaMalloc, and ends when the pipe is closed. */
static void put_as_first_process(const char *socket, int answer_fd, int end_fd)
{
    struct answer answer = {0};
    const char *why;
    rdt_cuda *gpu;
    rdt *conn;
    char end;

    (void)fake_gpu_load();
    must_say(gpu_there(&why), "%s", why);
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = socket};
    must_ok(rdt_connect(&options, &conn, &err));
    must_ok(rdt_cuda_open(conn, &gpu, &err));
    gpu_use(0);
    struct rdt_tensor one = bytes_at(gpu_alloc_whole(BYTES), BYTES);
    gpu_fill(one.data, BYTES, 6);
    struct rdt_cuda_put_options put = {.struct_size = sizeof put, .how = &answer.how};
    must_ok(rdt_cuda_put(gpu, &one, 1, &put, &answer.ref, &err));
    must(write(answer_fd, &answer, sizeof answer) == sizeof answer);
    must(read(end_fd, &end, 1) == 0);
    rdt_cuda_close(gpu);
    rdt_close(conn);
}

static int in_another_namespace(struct actor *self, void *arg)
{
    struct answer answer = {0};
    int answers[2], ends[2];
    char socket[200];
    pid_t child;

    actor_recv(self, socket, sizeof socket);
    must(pipe2(answers, O_CLOEXEC) == 0 && pipe2(ends, O_CLOEXEC) == 0);
    if (unshare(CLONE_NEWPID) == 0) {
        child = fork();
        must(child >= 0);
        if (child == 0) {
            (void)close(ends[1]);
            put_as_first_process(socket, answers[1], ends[0]);
            _exit(0);
        }
        (void)close(answers[1]);
        must(read(answers[0], &answer, sizeof answer) == sizeof answer);
    }
    actor_send(self, &answer, sizeof answer);
    actor_recv(self, arg, 1);
    (void)close(ends[1]);
    while (wait(NULL) > 0)
        ;
    return 0;
}

/* The driver knows processes by numbers that mean another process in another PID namespace, and returns INVALID_CONTEXT. */
Test(cuda_refused, handle_of_another_pid_namespace_is_a_copy)
{
    static char byte;
    struct answer answer;
    struct actor actor;
    char socket[200];

    actor_start(&actor, in_another_namespace, &byte);
    begin_fake("FAKE_CUDA_IPC_SAME_PID_NS=1");
    (void)snprintf(socket, sizeof socket, "%s", node.socket);
    actor_send(&actor, socket, sizeof socket);
    actor_recv(&actor, &answer, sizeof answer);
    if (answer.how != 0) {
        must_say(answer.how == RDT_CUDA_COPIED, "taken as %d", (int)answer.how);
        expect(b, &answer.ref, NULL, NULL, 6, "local/share");
    }
    actor_send(&actor, &byte, 1);
    actor_wait(&actor);
    end();
    if (answer.how == 0)
        cr_skip_test("no PID namespace can be created here");
}

/* ---- a GPU that has failed ---- */

static void break_daemons_gpus(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    must(fd >= 0);
    (void)close(fd);
}

static void expect_doctor(const char *text, bool there)
{
    struct program program = {0};

    program_run(&program, (const char *const[]){"rdtctl", "--socket", node.socket, "doctor", NULL}, NULL);
    must_say(!strstr(program.out, text) == !there, "doctor: %s%s", program.out, program.err);
    program_free(&program);
}

#define FAILED "cannot be used: its context has failed (FAKE_CUDA_ERROR_700"

/* After an access to a wrong address every call in the context fails for ever. Requests for GPU memory then fail and say so,
 * and doctor does; the daemon goes on to serve host memory, and gives back what it had on the GPU. Then it tries a new
 * context. */
Test(cuda_refused, failed_gpu_fails_its_requests_only_until_a_new_context_works)
{
    static char fakes[300];
    const char *path = fakes + strlen("FAKE_CUDA_BREAK=");
    rdt_object *object;
    void *addr, *other;

    (void)snprintf(fakes, sizeof fakes, "FAKE_CUDA_BREAK=%s/broken-%d", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp",
                   (int)getpid());
    begin_fake(fakes);
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
    gpu_fill(addr, BYTES, 7);
    struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    expect(b, &ref, "host", NULL, 7, "local/copy");
    expect_doctor(FAILED, false);
    break_daemons_gpus(path);
    must_refuse(RDT_SYSTEM, "FAKE_CUDA_ERROR_700", fetch_to(b, &ref, "host", NULL, &object, &err));
    must_refuse(RDT_SYSTEM, FAILED, fetch_to(b, &ref, "host", NULL, &object, &err));
    must_refuse(RDT_UNSUPPORTED, FAILED, rdt_cuda_alloc(gpu_a, gpu_uuid(0), 8 * BYTES, &other, &err));
    expect_doctor(FAILED, true);
    expect(b, &ref, NULL, NULL, 7, "local/share"); /* the reader's own GPU works */
    uint8_t *bytes = malloc(BYTES);
    must(bytes);
    fill_pattern(bytes, BYTES, 8);
    struct rdt_ref host = put_at(bytes, BYTES, RDT_CUDA_HOST);
    must_ok(fetch_to(b, &host, NULL, NULL, &object, &err));
    must(holds_pattern(tensor_of(object, 0).data, BYTES, 8));
    rdt_release(object);
    let_go(&host);
    free(bytes);
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    wait_until(20 * SEC, !device(0).opened);
    must_refuse(RDT_UNSUPPORTED, FAILED, rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err)); /* a new context fails, too */
    (void)unlink(path);
    wait_until(20 * SEC, rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, NULL) == RDT_OK);
    expect_doctor(FAILED, false);
    gpu_fill(addr, BYTES, 9);
    ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    expect(b, &ref, "host", NULL, 9, "local/copy");
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    end_with((const char *const[]){FAILED + strlen("cannot be used: "), NULL});
}

/* A copy between two GPUs is queued at its source. It fails with the target's error, and the source goes on. */
Test(cuda_refused, copy_to_a_gpu_that_has_failed_names_that_one)
{
    static char fakes[300];
    const char *path = fakes + strlen("FAKE_CUDA_BREAK=");
    char says[80];
    size_t count = 1;
    void *addr, *failed, *into;

    (void)snprintf(fakes, sizeof fakes, "FAKE_CUDA_BREAK=%s/broken-%d", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp",
                   (int)getpid());
    must(setenv("FAKE_CUDA_BREAK_ONLY", "1", 1) == 0);
    begin_fake(fakes);
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
    gpu_fill(addr, BYTES, 7);
    struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(1), BYTES, &failed, &err));
    struct rdt_ref other = put_at(failed, BYTES, RDT_CUDA_KNOWN);
    must_ok(rdt_cuda_alloc(gpu_b, gpu_uuid(1), BYTES, &into, &err));
    struct rdt_tensor target = bytes_at(into, BYTES);
    const struct rdt_tensor *targets = &target;
    struct rdt_fetch_options how = {
        .struct_size = sizeof how, .targets = &targets, .target_counts = &count, .timeout_ns = LONG};
    rdt_object *object = fetch_as(b, &ref, &how);
    must(gpu_holds(into, BYTES, 7));
    rdt_release(object);
    break_daemons_gpus(path);
    must_refuse(RDT_SYSTEM, "FAKE_CUDA_ERROR_700", fetch_to(b, &other, "host", NULL, &object, &err));
    (void)snprintf(says, sizeof says, "%s (", gpu_uuid(1));
    must_refuse(RDT_SYSTEM, says, rdt_fetch(b, &ref, 1, &how, &object, &err));
    expect(b, &ref, "host", NULL, 7, "local/copy");
    must_ok(rdt_dealloc(b, into, &err));
    let_go(&other);
    let_go(&ref);
    must_ok(rdt_dealloc(a, failed, &err));
    must_ok(rdt_dealloc(a, addr, &err));
    (void)unlink(path);
    end_with((const char *const[]){FAILED + strlen("cannot be used: "), NULL});
}

/* Pinning is for all GPUs, so one that has failed is no reason to leave memory unpinned. */
Test(cuda_refused, memory_is_pinned_through_a_gpu_that_works)
{
    static char fakes[300], trace[300];
    const char *path = fakes + strlen("FAKE_CUDA_BREAK="), *folder = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
    rdt_object *object;
    void *addr;

    (void)snprintf(fakes, sizeof fakes, "FAKE_CUDA_BREAK=%s/broken-%d", folder, (int)getpid());
    (void)snprintf(trace, sizeof trace, "%s/calls-%d", folder, (int)getpid());
    must(setenv("FAKE_CUDA_TRACE", trace, 1) == 0 && setenv("FAKE_CUDA_BREAK_ONLY", "0", 1) == 0);
    begin_fake(fakes);
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
    gpu_fill(addr, BYTES, 7);
    struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    uint8_t *memory = alloc_memory(a, BYTES);
    fill_pattern(memory, BYTES, 8);
    struct rdt_ref host = put_at(memory, BYTES, RDT_CUDA_HOST);
    break_daemons_gpus(path);
    must_refuse(RDT_SYSTEM, "FAKE_CUDA_ERROR_700", fetch_to(b, &ref, "host", NULL, &object, &err));
    for (unsigned i = 0; i < 3; i++)
        expect(b, &host, "cuda", gpu_uuid(1), 8, "local/copy");
    wait_until(20 * SEC, fake_gpu_calls(node.pid, 0, "cuMemHostRegister") == 1);
    let_go(&host);
    let_go(&ref);
    must_ok(rdt_dealloc(a, memory, &err));
    must_ok(rdt_dealloc(a, addr, &err));
    (void)unlink(path);
    end_with((const char *const[]){FAILED + strlen("cannot be used: "), NULL});
    (void)unlink(trace);
}
#endif
