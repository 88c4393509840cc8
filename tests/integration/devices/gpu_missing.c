/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon whose machine lacks something that GPUs need: a line of `rdtctl backends` says what, a request for it gets a typed
 * error, and everything else works. A library that must not be found is hidden behind an empty file of its name.
 * lsan: use_tls=0
 */
#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/cluster.h"
#include "tests/support/fakes/fake_gpu.h"
#include "tests/support/program.h"

TestSuite(gpu_missing, .timeout = 60);

static struct test_node node;
static rdt *conn;

/* Returns "LD_LIBRARY_PATH=..." with a folder in which `one` and `two` (may be NULL) are empty files. The folders of `others`,
 * another such variable, come first. */
static const char *hiding(const char *one, const char *two, const char *others)
{
    static char text[1200];
    const char *tmp = getenv("TMPDIR"), *names[] = {one, two};
    char dir[200], path[300];

    (void)snprintf(dir, sizeof dir, "%s/hidden", tmp ? tmp : "/tmp");
    (void)mkdir(dir, 0700);
    for (unsigned i = 0; i < 2 && names[i]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        write_file(path, "");
    }
    (void)snprintf(text, sizeof text, "%s%s%s", others ? others : "LD_LIBRARY_PATH=", others ? ":" : "", dir);
    return text;
}

static enum rdt_status never_map(void *arg, const struct rdt_shared *shared, void **addr_p, void **mapping_p,
                                 struct rdt_error *err)
{
    return rdt_error_set(err, RDT_INTERNAL, "there is no memory to map");
}

static void never_unmap(void *arg, void *addr, void *mapping) {}

static void begin(const char *path, const char *more)
{
    static const char *env[3];

    if (!fake_gpu_built())
        cr_skip_test("cuda.h was not there when this was built: make cuda-headers");
    env[0] = path;
    env[1] = more;
    node_start(&node, &(struct node_options){.env = env, .trusted_network = true, .interfaces = "lo", .listen = "127.0.0.1:0"});
    node_connect(&node, &conn);
    struct rdt_mapper mapper = {.struct_size = sizeof mapper, .memory = "cuda", .map = never_map, .unmap = never_unmap};
    must_ok(rdt_map_by(conn, &mapper, &err));
}

static void end(void)
{
    struct rdt_ref ref = put_pattern(conn, NULL, 100000, 1); /* everything else works */

    fetch_pattern(conn, &ref, 100000, 1, NULL);
    must_ok(rdt_free(conn, &ref, false, &err));
    rdt_close(conn);
    node_end(&node, NULL);
}

/* Returns the row of a backend in `rdtctl backends`, borrowed from *all_p. */
static json_t *backend_row(const char *name, json_t **all_p)
{
    struct program program = {0};
    json_t *row;
    size_t i;

    program_run(&program, (const char *const[]){"rdtctl", "--json", "--socket", node.socket, "backends", NULL}, NULL);
    must_say(program.status == 0, "%s", program.err);
    *all_p = json_loads(program.out, 0, NULL);
    program_free(&program);
    must(*all_p);
    json_array_foreach(json_object_get(*all_p, "backends"), i,
                       row) if (strcmp(json_string_value(json_object_get(row, "name")), name) == 0) return row;
    fail("rdtctl backends does not list %s", name);
}

static void must_be_missing(const char *name, const char *why)
{
    struct program program = {0};
    json_t *all, *row = backend_row(name, &all);

    must_say(!json_is_true(json_object_get(row, "available")), "%s is available", name);
    must_say(strstr(json_string_value(json_object_get(row, "why_not")), why), "%s: %s", name,
             json_string_value(json_object_get(row, "why_not")));
    json_decref(all);
    program_run(&program, (const char *const[]){"rdtctl", "--socket", node.socket, "backends", NULL}, NULL);
    must_say(program.status == 0 && strstr(program.out, why), "%s%s", program.out, program.err);
    program_free(&program);
}

static void must_refuse_memory(const char *why)
{
    rdt_object *object;
    void *addr;
    struct rdt_alloc_options options = {.struct_size = sizeof options, .memory = "cuda"};

    must_refuse(RDT_UNSUPPORTED, why, rdt_alloc_with(conn, 4096, &options, &addr, &err));
    struct rdt_ref ref = put_pattern(conn, NULL, 4096, 2);
    struct rdt_fetch_options fetch = {.struct_size = sizeof fetch, .memory = "cuda", .timeout_ns = LONG};
    must_refuse(RDT_UNSUPPORTED, "cuda", rdt_fetch(conn, &ref, 1, &fetch, &object, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
}

static void must_refuse_group(const char *why)
{
    struct rdt_member members[] = {{.client = "a", .device = FAKE_GPU_0}, {.client = "b", .device = FAKE_GPU_1}};

    must_refuse(RDT_UNSUPPORTED, why, rdt_group_create(conn, "g", "nccl", members, 2, NULL, &err));
}

/* The doctor asks NVML, which is the fake's. */
static void doctor_must_say(const char *text, const char *fake)
{
    const char *const env[] = {fake_gpu_env(), fake, NULL};
    struct program program = {0};

    program_run(&program, (const char *const[]){"rdtctl", "--socket", node.socket, "doctor", NULL}, env);
    must_say(strstr(program.out, text), "no '%s': %s%s", text, program.out, program.err);
    program_free(&program);
}

Test(gpu_missing, doctor_looks_at_the_gpus)
{
    begin(fake_gpu_env(), NULL);
    doctor_must_say("ok    RDT080 gpu-memory", NULL);
    doctor_must_say("ok    RDT081 gpu-mode", NULL);
    doctor_must_say("ok    RDT082 gpu-peers        All GPUs have peer access", NULL);
    doctor_must_say("warn  RDT080 gpu-memory       GPU " FAKE_GPU_0
                    " has 50.0 MiB free, and device_limit lets the daemon take ",
                    "FAKE_NVML_FREE_MIB=50");
    doctor_must_say("warn  RDT081 gpu-mode         GPU " FAKE_GPU_0 " is in the mode EXCLUSIVE_PROCESS", "FAKE_NVML_MODE=3");
    doctor_must_say("warn  RDT082 gpu-peers        GPUs " FAKE_GPU_0 " and " FAKE_GPU_1 " have no peer access, so",
                    "FAKE_NVML_PEERS=5");
    end();
}

/* It serves the processes of one user at a time. */
Test(gpu_missing, mps_of_another_user)
{
    static char text[300];
    char dir[200], path[250];
    const char *tmp = getenv("TMPDIR");

    if (geteuid() != 0)
        cr_skip_test("only root can make a file of another user");
    (void)snprintf(dir, sizeof dir, "%s/mps", tmp ? tmp : "/tmp");
    (void)snprintf(path, sizeof path, "%s/control", dir);
    (void)mkdir(dir, 0755);
    write_file(path, "");
    must(chown(path, 12345, 12345) == 0);
    (void)snprintf(text, sizeof text, "CUDA_MPS_PIPE_DIRECTORY=%s", dir);
    begin(fake_gpu_env(), text);
    must_be_missing("cuda", "an NVIDIA MPS of uid 12345");
    must_refuse_memory("one user at a time");
    doctor_must_say("warn  RDT081 gpu-mode         This machine has GPUs, and the daemon serves none: ", NULL);
    end();
    (void)unlink(path);
}

Test(gpu_missing, no_driver)
{
    begin(hiding("libcuda.so.1", NULL, NULL), NULL);
    must_be_missing("cuda", "there is no NVIDIA driver");
    must_refuse_memory("there is no NVIDIA driver");
    end();
}

Test(gpu_missing, stub_of_a_driver)
{
    begin(stub_cuda_env(), NULL);
    must_be_missing("cuda", "is the CUDA toolkit's stub");
    must_refuse_memory("stub");
    end();
}

Test(gpu_missing, driver_that_does_not_start)
{
    begin(fake_gpu_env(), "FAKE_CUDA_INIT=803");
    must_be_missing("cuda", "the NVIDIA driver does not start");
    must_refuse_memory("does not start");
    end();
}

Test(gpu_missing, driver_without_a_gpu)
{
    begin(fake_gpu_env(), "FAKE_CUDA_GPUS=0");
    must_be_missing("cuda", "sees no GPU");
    must_refuse_memory("no GPU");
    end();
}

Test(gpu_missing, nccl)
{
    begin(hiding("libnccl.so.2", NULL, fake_gpu_env()), NULL);
    must_be_missing("nccl", "there is no NCCL");
    must_refuse_group("there is no NCCL");
    end();
}

Test(gpu_missing, nccl_and_driver)
{
    begin(hiding("libnccl.so.2", "libcuda.so.1", NULL), NULL);
    must_be_missing("cuda", "there is no NVIDIA driver");
    must_be_missing("nccl", "there is no NCCL");
    must_refuse_memory("there is no NVIDIA driver");
    must_refuse_group("there is no NCCL");
    end();
}

/* UCX without CUDA names host memory as its only memory type, so it is given no GPU memory. */
Test(gpu_missing, ucx_for_gpu_memory)
{
    json_t *all, *row, *memory;

    begin(fake_gpu_env(), NULL);
    row = backend_row("ucx", &all);
    memory = json_object_get(row, "memory");
    must(json_is_true(json_object_get(row, "available")));
    must_say(json_array_size(memory) == 1 && strcmp(json_string_value(json_array_get(memory, 0)), "host") == 0,
             "ucx moves %zu kinds", json_array_size(memory));
    json_decref(all);
    doctor_must_say("warn  RDT028 device-transports Transport ucx: cuda memory is not moved: ", NULL);
    end();
}
