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
