/* SPDX-License-Identifier: Apache-2.0 */
/* What a client of one node is told when the machine lacks something, and what the use of a GPU costs.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_missing)

#ifndef RDT_WITHOUT_CUDA
Test(cuda_missing, sentence_says_what_is_missing)
{
    static const char *env[2];
    struct test_node bare;
    rdt_cuda *gpu;
    void *addr;
    rdt *conn;

    env[0] = stub_cuda_env();
    node_start(&bare, &(struct node_options){.env = env, .name = "stub"});
    if (!gpu_is_real())
        (void)fake_gpu_load();
    node_connect(&bare, &conn);
    must_ok(rdt_cuda_open(conn, &gpu, &err));
    must_refuse(RDT_UNSUPPORTED, "stub", rdt_cuda_alloc(gpu, NULL, BYTES, &addr, &err));
    must_refuse(RDT_EXISTS, "cuda", rdt_cuda_open(conn, &gpu, &err));
    rdt_cuda_close(gpu);
    rdt_close(conn);
    node_end(&bare, NULL);
}

/* The memory that a context takes is what NVML lists for the process; where NVML does not know the process, it is the
 * difference of the GPU's free memory, or unknown. */
static void expect_overhead(const char *setting, uint64_t expected, const char *shown)
{
    static const char *env[3];
    struct program program = {0};
    struct test_node other;
    struct rdt_device_info devices[16];
    size_t n = 0;
    rdt_cuda *gpu;
    void *addr;
    rdt *conn;

    if (!gpu_is_real())
        (void)fake_gpu_load();
    env[0] = gpu_is_real() ? setting : fake_gpu_env();
    env[1] = gpu_is_real() ? NULL : setting;
    node_start(&other, &(struct node_options){.env = env, .name = "held"});
    node_connect(&other, &conn);
    must_ok(rdt_cuda_open(conn, &gpu, &err));
    must_ok(rdt_devices(conn, devices, 16, &n, &err));
    for (size_t i = 0; i < n && i < 16; i++)
        must_say(!devices[i].opened && devices[i].overhead_bytes == 0, "%s is in use by an idle daemon", devices[i].uuid);
    must_ok(rdt_cuda_alloc(gpu, devices[0].uuid, BYTES, &addr, &err));
    must_ok(rdt_devices(conn, devices, 16, &n, &err));
    must_say(devices[0].overhead_bytes == expected ||
                 (gpu_is_real() && devices[0].overhead_bytes > MIB && devices[0].overhead_bytes < 4096 * MIB),
             "a context takes %llu bytes", (unsigned long long)devices[0].overhead_bytes);
    program_run(&program, (const char *const[]){"rdtctl", "--socket", other.socket, "backends", NULL}, NULL);
    must_say(program.status == 0 && (gpu_is_real() || strstr(program.out, shown)), "%s%s", program.out, program.err);
    program_free(&program);
    must_ok(rdt_dealloc(conn, addr, &err));
    rdt_cuda_close(gpu);
    rdt_close(conn);
    node_end(&other, NULL);
}

Test(cuda_missing, idle_daemon_holds_nothing_and_tells_what_a_context_takes)
{
    expect_overhead(NULL, 256 * MIB, "256.0 MiB overhead");
    if (gpu_is_real())
        return;
    expect_overhead("FAKE_NVML_PROCESSES=0", 256 * MIB, "256.0 MiB overhead");
    expect_overhead("FAKE_NVML_INIT=999", UINT64_MAX, "overhead unknown");
}

/* At boot the fabric manager (802) or a module (999) may come later than the daemon. */
Test(cuda_missing, driver_that_is_ready_later_is_used)
{
    if (gpu_is_real())
        cr_skip_test("a real driver cannot be told to be late");
    must(setenv("FAKE_CUDA_INIT_TIMES", "2", 1) == 0 && setenv("FAKE_CUDA_INIT", "0", 1) == 0);
    begin_with("FAKE_CUDA_INIT=802", (const char *const[]){"--pool-idle=200ms", NULL});
    must(!device(0).opened);
    end();
}

static int late_client(struct actor *self, void *arg)
{
    rdt_cuda *gpu;
    char socket[200];
    rdt *conn;

    must(setenv("FAKE_CUDA_INIT_TIMES", "1", 1) == 0 && setenv("FAKE_CUDA_INIT", "999", 1) == 0);
    actor_recv(self, socket, sizeof socket);
    (void)fake_gpu_load();
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = socket};
    must_ok(rdt_connect(&options, &conn, &err));
    must_refuse(RDT_UNSUPPORTED, "cuInit", rdt_cuda_open(conn, &gpu, &err));
    must_ok(rdt_cuda_open(conn, &gpu, &err)); /* the next call asks again */
    rdt_cuda_close(gpu);
    rdt_close(conn);
    return 0;
}

Test(cuda_missing, client_asks_a_driver_again_that_was_not_ready)
{
    struct actor actor;
    char socket[200];

    if (gpu_is_real())
        cr_skip_test("a real driver cannot be told to be late");
    actor_start(&actor, late_client, NULL);
    begin();
    (void)snprintf(socket, sizeof socket, "%s", node.socket);
    actor_send(&actor, socket, sizeof socket);
    actor_wait(&actor);
    end();
}

Test(cuda_missing, part_of_a_gpu_has_the_name_that_nvidia_smi_shows)
{
    void *addr;

    if (gpu_is_real())
        cr_skip_test("needs GPUs that are divided");
    must(setenv("FAKE_CUDA_MIG", "1", 1) == 0);
    begin();
    must_ok(rdt_cuda_alloc(gpu_a, "MIG-66616b65-0000-0000-0000-000000000001", BYTES, &addr, &err));
    must(strcmp(device(0).uuid, "MIG-66616b65-0000-0000-0000-000000000001") == 0 && device(0).overhead_bytes == 256 * MIB);
    must_ok(rdt_dealloc(a, addr, &err));
    end();
}

Test(cuda_missing, client_without_a_driver_is_told)
{
    struct test_node bare;
    rdt_cuda *gpu;
    const char *why;
    rdt *conn;

    if (gpu_there(&why))
        cr_skip_test("this machine has a driver");
    node_start(&bare, &(struct node_options){.name = "bare"});
    node_connect(&bare, &conn);
    must_refuse(RDT_UNSUPPORTED, "there is no NVIDIA driver", rdt_cuda_open(conn, &gpu, &err));
    rdt_close(conn);
    node_end(&bare, NULL);
}
#endif
