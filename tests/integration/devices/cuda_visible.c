/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory on one node whose processes see different GPUs (CUDA_VISIBLE_DEVICES), as the actors of Ray, vLLM and SGLang do.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_visible)

#ifndef RDT_WITHOUT_CUDA
#include <dlfcn.h>
#include <sys/stat.h>

struct orders { /* to an actor that sees one GPU */
    char socket[200];
    struct rdt_ref ref;
    char other[48]; /* a GPU that it does not see */
};

struct findings {
    char memory[33], uuid[65], path[65], refused[256];
    bool holds;
};

static struct findings fetch_and_look(rdt *conn, const struct rdt_ref *ref, const char *memory)
{
    struct findings found = {.holds = false};
    const char *in, *on;
    rdt_object *object;

    must_ok(fetch_to(conn, ref, memory, NULL, &object, &err));
    must_ok(rdt_object_place(object, 0, &in, &on, &err));
    (void)snprintf(found.memory, sizeof found.memory, "%s", in);
    (void)snprintf(found.uuid, sizeof found.uuid, "%s", on ? on : "");
    (void)snprintf(found.path, sizeof found.path, "%s", info_of(object).path);
    void *data = tensor_of(object, 0).data;
    found.holds = strcmp(in, "cuda") == 0 ? gpu_holds(data, BYTES, 5) : holds_pattern(data, BYTES, 5);
    rdt_release(object);
    return found;
}

/* Sees the GPU with the number that arg is, and reports how it got the object: as the daemon likes, and on a GPU. */
static int reader(struct actor *self, void *arg)
{
    struct orders orders;
    struct rdt_error refusal;
    rdt_object *object;
    rdt_cuda *gpu;
    rdt *conn;

    must(setenv("CUDA_VISIBLE_DEVICES", arg, 1) == 0);
    actor_recv(self, &orders, sizeof orders);
    join_with_gpu(orders.socket, &conn, &gpu);
    struct findings found = fetch_and_look(conn, &orders.ref, NULL);
    actor_send(self, &found, sizeof found);
    if (strcmp(found.memory, "cuda") == 0) {
        found = fetch_and_look(conn, &orders.ref, "cuda"); /* the only one that it sees */
        must_be(RDT_UNSUPPORTED, fetch_to(conn, &orders.ref, "cuda", orders.other, &object, &refusal));
        (void)snprintf(found.refused, sizeof found.refused, "%.255s", refusal.msg);
        actor_send(self, &found, sizeof found);
    }
    rdt_cuda_close(gpu);
    rdt_close(conn);
    return 0;
}

static void *alloc_and_put(struct actor *actor, struct rdt_ref *ref_p)
{
    struct orders orders = {.other = ""};
    void *addr;

    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
    gpu_fill(addr, BYTES, 5);
    *ref_p = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    (void)snprintf(orders.socket, sizeof orders.socket, "%s", node.socket);
    (void)snprintf(orders.other, sizeof orders.other, "%s", gpu_uuid(0));
    orders.ref = *ref_p;
    actor_send(actor, &orders, sizeof orders);
    return addr;
}

Test(cuda_visible, what_lies_on_another_gpu_is_copied_to_the_readers)
{
    struct findings found;
    struct actor actor;
    struct rdt_ref ref;

    actor_start(&actor, reader, "1");
    begin();
    if (gpu_count() < 2) {
        actor_kill(&actor, SIGKILL);
        end();
        cr_skip_test("this machine has one GPU");
    }
    void *addr = alloc_and_put(&actor, &ref);
    actor_recv(&actor, &found, sizeof found);
    must_say(strcmp(found.memory, "cuda") == 0 && strcmp(found.uuid, gpu_uuid(1)) == 0, "it lies in %s %s", found.memory,
             found.uuid);
    must_say(found.holds && strcmp(found.path, "local/copy") == 0, "it came by %s", found.path);
    actor_recv(&actor, &found, sizeof found);
    must(found.holds && strcmp(found.uuid, gpu_uuid(1)) == 0);
    must_say(strstr(found.refused, "does not see") && strstr(found.refused, gpu_uuid(0)), "%s", found.refused);
    actor_wait(&actor);
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    end();
}

Test(cuda_visible, reader_whose_gpu_the_daemon_does_not_have_gets_host_memory)
{
    struct findings found;
    struct actor actor;
    struct rdt_ref ref;

    if (gpu_is_real())
        cr_skip_test("the daemon of a real GPU has them all");
    actor_start(&actor, reader, "1");
    begin_with("CUDA_VISIBLE_DEVICES=0", (const char *const[]){"--pool-idle=200ms", NULL});
    void *addr = alloc_and_put(&actor, &ref);
    actor_recv(&actor, &found, sizeof found);
    must_say(found.holds && strcmp(found.memory, "host") == 0, "it lies in %s %s", found.memory, found.uuid);
    actor_wait(&actor);
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    end();
}

/* Sees both GPUs, and uses the second one. A context on the other one would take memory there as long as the process lives. */
static int user_of_one_gpu(struct actor *self, void *arg)
{
    size_t (*held)(int number); /* bytes that this process has of a GPU */
    struct orders orders;
    rdt_object *object;
    const char *why;
    rdt_cuda *gpu;
    rdt *conn;

    actor_recv(self, &orders, sizeof orders);
    *(void **)&held = dlsym(fake_gpu_load(), "fake_cuda_held");
    must(held);
    must_say(gpu_there(&why), "%s", why);
    gpu_use(1);
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = orders.socket};
    must_ok(rdt_connect(&options, &conn, &err));
    must_ok(rdt_cuda_open(conn, &gpu, &err));
    struct findings found = fetch_and_look(conn, &orders.ref, NULL);
    must_say(found.holds && strcmp(found.uuid, gpu_uuid(1)) == 0, "it lies in %s %s", found.memory, found.uuid);
    found = fetch_and_look(conn, &orders.ref, "cuda"); /* the only one that it uses */
    must(found.holds && strcmp(found.uuid, gpu_uuid(1)) == 0);
    must_say(held(0) == 0, "%zu bytes of the GPU that the process does not use", held(0));
    must_ok(fetch_to(conn, &orders.ref, "cuda", gpu_uuid(0), &object, &err)); /* it wants to */
    must_go_by("local/share", object);
    must(held(0) > 0);
    rdt_release(object);
    found = fetch_and_look(conn, &orders.ref, NULL);
    must(found.holds && strcmp(found.uuid, gpu_uuid(0)) == 0);
    rdt_cuda_close(gpu);
    rdt_close(conn);
    return 0;
}

Test(cuda_visible, process_gets_no_context_on_a_gpu_that_it_does_not_use)
{
    struct actor actor;
    struct rdt_ref ref;

    if (gpu_is_real())
        cr_skip_test("a real driver does not say what a process has on a GPU");
    actor_start(&actor, user_of_one_gpu, NULL);
    begin();
    void *addr = alloc_and_put(&actor, &ref);
    actor_wait(&actor);
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    end();
}

static off_t bytes_of(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 ? st.st_size : 0;
}

/* Copies between GPUs do not go through host memory where the GPUs can reach one another: neither those into the daemon's
 * memory, nor those into an allocation that was imported by its handle. */
Test(cuda_visible, copies_between_gpus_use_peer_access)
{
    char path[200], setting[240];
    size_t count = 1;
    void *known, *own, *base;

    if (gpu_is_real())
        cr_skip_test("a real driver does not tell which way it copies");
    must(setenv("FAKE_CUDA_NO_IPC", "0", 1) == 0);
    (void)snprintf(path, sizeof path, "%s/staged", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    (void)snprintf(setting, sizeof setting, "FAKE_CUDA_STAGED=%s", path);
    begin_with(setting, (const char *const[]){"--pool-idle=200ms", NULL});
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &known, &err));
    gpu_fill(known, BYTES, 7);
    struct rdt_ref ref = put_at(known, BYTES, RDT_CUDA_KNOWN);
    expect(b, &ref, "cuda", gpu_uuid(1), 7, "local/copy");
    must_say(bytes_of(path) == 0, "the copy into the daemon's memory went through host memory");
    gpu_use(1);
    own = gpu_alloc_whole(BYTES);
    must_ok(rdt_cuda_offer(gpu_b, own, BYTES, &base, NULL, &err));
    struct rdt_tensor target = bytes_at(own, BYTES);
    const struct rdt_tensor *targets = &target;
    struct rdt_fetch_options how = {
        .struct_size = sizeof how, .targets = &targets, .target_counts = &count, .timeout_ns = LONG};
    rdt_object *object = fetch_as(b, &ref, &how);
    rdt_release(object);
    must(gpu_holds(own, BYTES, 7));
    must_say(bytes_of(path) == 0, "the copy into the client's memory went through host memory");
    must_ok(rdt_dealloc(b, base, &err));
    let_go(&ref);
    must_ok(rdt_dealloc(a, known, &err));
    wait_until(20 * SEC, device(1).used_bytes == 0);
    gpu_free(own);
    gpu_use(0);
    end();
}

/* Where the GPUs have no access to one another the copy is many times slower, and rdtctl says so. */
Test(cuda_visible, copy_through_host_memory_says_so)
{
    static const char *const ways[] = {"over peer access", "over host memory"};

    for (unsigned without = 0; without < 2; without++) {
        struct program program = {0};
        char text[RDT_REF_TEXT_BYTES];
        void *addr;
        if (gpu_is_real() && (without || gpu_count() < 2))
            cr_skip_test("this needs two GPUs, and a driver that can be told what to refuse");
        begin_with(without ? "FAKE_CUDA_NO_PEER=1" : NULL, (const char *const[]){"--pool-idle=200ms", NULL});
        must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
        gpu_fill(addr, BYTES, 8);
        struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
        expect(b, &ref, "cuda", gpu_uuid(1), 8, "local/copy");
        rdt_ref_to_text(&ref, text);
        program_run(&program, (const char *const[]){"rdtctl", "--socket", node.socket, "explain", text, NULL}, NULL);
        must_say(strstr(program.out, ways[without]), "explain: %s%s", program.out, program.err);
        program_free(&program);
        must_ok(rdt_dealloc(a, addr, &err));
        let_go(&ref);
        end();
    }
}
#endif
