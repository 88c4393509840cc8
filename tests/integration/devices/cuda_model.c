/* SPDX-License-Identifier: Apache-2.0 */
/* A model of 300 tensors on a GPU, as torch has it: what its share, its fetch and its publication cost in calls of the driver.
 * Only the fake driver counts them.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_model)

#ifndef RDT_WITHOUT_CUDA
#include <unistd.h>

#include "tests/support/actor.h"

#define SEGMENTS 300u
#define EACH (2 * MIB)
#define FEW 1000u /* bytes of each segment that are written and compared */

static void *segments[SEGMENTS];
static struct rdt_tensor tensors[SEGMENTS];

static void begin_model(void)
{
    begin_with(NULL, (const char *const[]){"--pool-idle=1s", NULL});
}

/* chunks: virtual memory of the driver, which is shared by descriptors; else that of cudaMalloc, by handles. */
static void allocate(bool chunks, uint32_t seed)
{
    for (unsigned i = 0; i < SEGMENTS; i++) {
        segments[i] = chunks ? gpu_alloc_chunks(EACH, 1, true) : gpu_alloc_whole(EACH);
        gpu_fill(segments[i], FEW, seed + i);
        tensors[i] = bytes_at(segments[i], EACH);
    }
}

static void deallocate(bool chunks)
{
    for (unsigned i = 0; i < SEGMENTS; i++) {
        if (chunks)
            gpu_free_chunks(segments[i], EACH, 1);
        else
            gpu_free(segments[i]);
    }
}

static struct rdt_ref put_model(void)
{
    struct rdt_cuda_put_options options = {.struct_size = sizeof options};
    struct rdt_ref ref;

    must_ok(rdt_cuda_put(gpu_a, tensors, SEGMENTS, &options, &ref, &err));
    return ref;
}

/* ---- a reader in a process of its own ---- */

struct told {
    char dir[128];
    struct rdt_ref ref;
};

static rdt *reader;
static rdt_cuda *gpu_reader;

static struct rdt_ref connect_reader(struct actor *self)
{
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = "s"};
    struct told told;
    const char *why;

    actor_recv(self, &told, sizeof told);
    (void)fake_gpu_load();
    must_say(gpu_there(&why), "%s", why);
    must(chdir(told.dir) == 0);
    must_ok(rdt_connect(&options, &reader, &err));
    must_ok(rdt_cuda_open(reader, &gpu_reader, &err));
    gpu_use(0);
    return told.ref;
}

static void disconnect_reader(void)
{
    rdt_cuda_close(gpu_reader);
    rdt_close(reader);
}

static void tell(struct actor *actor, const struct rdt_ref *ref)
{
    struct told told = {.ref = *ref};

    (void)snprintf(told.dir, sizeof told.dir, "%s", node.dir);
    actor_send(actor, &told, sizeof told);
}

/* ---- share ---- */

#define ROUNDS 3u

static int share_in_rounds(struct actor *self, void *arg)
{
    struct rdt_ref ref = connect_reader(self);
    rdt_object *object;

    for (unsigned round = 0; round < ROUNDS; round++) {
        must_ok(fetch_to(reader, &ref, NULL, NULL, &object, &err));
        actor_step(self);
        actor_await(self);
        must_go_by("local/share", object);
        for (unsigned i = 0; i < SEGMENTS; i++)
            must_say(gpu_holds(tensor_of(object, i).data, FEW, 1 + i), "wrong bytes in segment %u", i);
        rdt_release(object);
        actor_step(self);
        actor_await(self);
    }
    disconnect_reader();
    return 0;
}

/* Each fetch asks whether the process has begun to use another GPU, which is no work for the driver. */
static unsigned calls_of(pid_t pid)
{
    return fake_gpu_calls(pid, 0, NULL) - fake_gpu_calls(pid, 0, "cuDevicePrimaryCtxGetState");
}

static void expect_second_share_without_calls(bool chunks)
{
    struct actor actor;

    count_calls();
    actor_start(&actor, share_in_rounds, NULL);
    begin_model();
    allocate(chunks, 1);
    struct rdt_ref ref = put_model();
    tell(&actor, &ref);
    for (unsigned round = 0; round < ROUNDS; round++) {
        actor_await(&actor);
        must_say(round == 0 || calls_of(actor.pid) == 0, "%u calls of the reader in round %u", calls_of(actor.pid), round);
        must_say(round == 0 || calls_of(node.pid) == 0, "%u calls of the daemon in round %u", calls_of(node.pid), round);
        actor_step(&actor);
        actor_await(&actor); /* it has released the object */
        fake_gpu_trace_clear();
        actor_step(&actor);
    }
    actor_wait(&actor);
    let_go(&ref);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    deallocate(chunks);
    end_of_count();
}

Test(cuda_model, second_share_of_handles_calls_no_driver)
{
    if (handles_are_refused())
        cr_skip_test("the daemon cannot map this process's memory");
    expect_second_share_without_calls(false);
}

Test(cuda_model, second_share_of_chunks_calls_no_driver)
{
    expect_second_share_without_calls(true);
}

/* ---- the end of memory that a reader keeps mapped ---- */

static int share_and_sleep(struct actor *self, void *arg)
{
    struct rdt_ref ref = connect_reader(self);
    rdt_object *object;

    must_ok(fetch_to(reader, &ref, NULL, NULL, &object, &err));
    must_go_by("local/share", object);
    rdt_release(object);
    must_ok(rdt_ping(reader, LONG, &err));
    actor_step(self);
    actor_await(self); /* it makes no calls meanwhile */
    disconnect_reader();
    return 0;
}

/* As long as a reader has it mapped, the driver frees nothing. So the memory stays charged, until the reader, which makes no
 * calls, has unmapped it. */
Test(cuda_model, memory_that_a_reader_keeps_mapped_stays_charged)
{
    struct actor actor;
    void *addr;

    if (gpu_is_real())
        cr_skip_test("needs the fake driver, whose library may be loaded before a fork");
    actor_start(&actor, share_and_sleep, NULL);
    begin();
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
    struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    tell(&actor, &ref);
    actor_await(&actor);
    actor_freeze(&actor);
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    must_say(device(0).used_bytes >= BYTES, "%llu bytes are charged", (unsigned long long)device(0).used_bytes);
    actor_thaw(&actor);
    wait_until(20 * SEC, device(0).used_bytes == 0);
    actor_step(&actor);
    actor_wait(&actor);
    end();
}

/* Nobody waits for it: the reader may never unmap it. */
Test(cuda_model, allocations_do_not_wait_for_a_reader_that_is_frozen)
{
    struct actor actor;
    void *addr, *more;

    if (gpu_is_real())
        cr_skip_test("needs the fake driver, whose library may be loaded before a fork");
    actor_start(&actor, share_and_sleep, NULL);
    begin_with(NULL, (const char *const[]){"--pool-idle=1s", "--device-limit=64MiB", NULL});
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), 40 * MIB, &addr, &err));
    struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    tell(&actor, &ref);
    actor_await(&actor);
    actor_freeze(&actor);
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    must_refuse(RDT_LIMIT, "device_limit", rdt_cuda_alloc(gpu_a, gpu_uuid(0), 40 * MIB, &addr, &err));
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), 10 * MIB, &more, &err));
    actor_thaw(&actor);
    wait_until(20 * SEC, rdt_cuda_alloc(gpu_a, gpu_uuid(0), 40 * MIB, &addr, NULL) == RDT_OK);
    must_ok(rdt_dealloc(a, addr, &err));
    must_ok(rdt_dealloc(a, more, &err));
    actor_step(&actor);
    actor_wait(&actor);
    end();
}

Test(cuda_model, memory_that_a_killed_reader_kept_mapped_is_freed)
{
    struct actor actor;
    void *addr;

    if (gpu_is_real())
        cr_skip_test("needs the fake driver, whose library may be loaded before a fork");
    actor_start(&actor, share_and_sleep, NULL);
    begin();
    must_ok(rdt_cuda_alloc(gpu_a, gpu_uuid(0), BYTES, &addr, &err));
    struct rdt_ref ref = put_at(addr, BYTES, RDT_CUDA_KNOWN);
    tell(&actor, &ref);
    actor_await(&actor);
    actor_freeze(&actor);
    must_ok(rdt_dealloc(a, addr, &err));
    let_go(&ref);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    must(device(0).used_bytes >= BYTES);
    actor_kill(&actor, SIGKILL);
    wait_until(20 * SEC, device(0).used_bytes == 0);
    end();
}
#endif
