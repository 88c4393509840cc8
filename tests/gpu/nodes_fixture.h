/* SPDX-License-Identifier: Apache-2.0 */
/* Setup and checks of tests and measurements of GPU memory between two daemons: on FAKES (tests/fake_cuda,
 * tests/fake_nccl), or on the machine's own GPUs if RDT_TEST_GPU is set. Its functions are static, because only its users
 * are linked with librdt-cuda. */
#ifndef TESTS_GPU_NODES_FIXTURE_H
#define TESTS_GPU_NODES_FIXTURE_H

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "client/cuda/rdt_cuda.h"
#include "tests/support/cluster.h"
#include "tests/support/fakes/fake_gpu.h"
#include "tests/support/gpu.h"

#define MIB ((size_t)1 << 20)
#define BYTES (3 * MIB + 520)
#define MAX_GPUS 16
#define UNUSED __attribute__((unused))

enum { OWNER, READER };

static struct cluster c;
static rdt *conn[2];
static rdt_cuda *gpu[2];

/* slow: what each copy on the owner's fake GPUs takes at least, "FAKE_CUDA_COPY_US=..."; NULL: nothing. flags: of both
 * daemons. */
static void begin_with(bool nccl, const char *slow, const char *const *flags)
{
    static const char *env[2][4];
    static const char *const names[] = {"owner", "reader"};
    struct cluster_options options = {.stream = true, .no_ucx = !nccl, .flags = flags};
    const char *why;

    for (unsigned i = 0; i < 2; i++) {
        unsigned n = 0;
        memset(env[i], 0, sizeof env[i]);
        if (!gpu_is_real())
            env[i][n++] = nccl ? fake_nccl_env() : fake_gpu_env();
        else if (nccl) /* so that NCCL takes them for two machines */
            env[i][n++] = i ? "NCCL_HOSTID=rdt-b" : "NCCL_HOSTID=rdt-a";
        if (!gpu_is_real() && slow && i == OWNER)
            env[i][n++] = slow;
        options.env_of[i] = env[i];
    }
    if (!gpu_is_real())
        (void)fake_gpu_load();
    must_say(gpu_there(&why), "%s", why);
    cluster_start(&c, 2, &options);
    for (unsigned i = 0; i < 2; i++) {
        conn[i] = node_client(&c.node[i], names[i]);
        must_ok(rdt_cuda_open(conn[i], &gpu[i], &err));
    }
    gpu_use(0);
}

UNUSED static void begin(bool nccl, const char *slow)
{
    begin_with(nccl, slow, (const char *const[]){"--chunk=256KiB", "--pool-idle=200ms", "--quiesce-grace=500ms", NULL});
}

static struct rdt_device_info device_of(unsigned side, const char *uuid)
{
    struct rdt_device_info devices[MAX_GPUS];
    size_t n = 0;

    must_ok(rdt_devices(conn[side], devices, MAX_GPUS, &n, &err));
    for (size_t i = 0; i < n && i < MAX_GPUS; i++)
        if (strcmp(devices[i].uuid, uuid) == 0)
            return devices[i];
    fail("node %u does not know %s", side, uuid);
}

static uint64_t used_bytes(unsigned side)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; i < gpu_count(); i++)
        bytes += device_of(side, gpu_uuid(i)).used_bytes;
    return bytes;
}

static void end(const char *const *declared)
{
    for (unsigned i = 0; i < 2; i++) {
        wait_until(LONG, used_bytes(i) == 0);
        rdt_cuda_close(gpu[i]);
        rdt_close(conn[i]);
    }
    cluster_end(&c, declared);
}

/* A second GPU, if there is one. */
UNUSED static const char *other_gpu(void)
{
    return gpu_uuid(gpu_count() > 1 ? 1 : 0);
}

/* Memory of the owner's on the first GPU, put. */
UNUSED static struct rdt_ref put_on_gpu(size_t bytes, uint32_t seed, void **addr_p)
{
    struct rdt_ref ref;

    must_ok(rdt_cuda_alloc(gpu[OWNER], gpu_uuid(0), bytes, addr_p, &err));
    gpu_fill(*addr_p, bytes, seed);
    struct rdt_tensor one = bytes_at(*addr_p, bytes);
    must_ok(rdt_cuda_put(gpu[OWNER], &one, 1, NULL, &ref, &err));
    return ref;
}

static void drop(struct rdt_ref *ref, void *addr)
{
    must_ok(rdt_free(conn[OWNER], ref, false, &err));
    if (addr)
        must_ok(rdt_dealloc(conn[OWNER], addr, &err));
}

static struct rdt_fetch_options to(const char *memory, const char *uuid)
{
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = LONG, .memory = memory, .device = uuid};
    return options;
}

static bool holds(const rdt_object *object, size_t i, size_t bytes, uint32_t seed)
{
    const char *in;
    void *data = tensor_of(object, i).data;

    must_ok(rdt_object_place(object, i, &in, NULL, &err));
    return strcmp(in, "cuda") == 0 ? gpu_holds(data, bytes, seed) : holds_pattern(data, bytes, seed);
}

/* A fetch by the reader brings the pattern there by that path. */
UNUSED static void expect(const struct rdt_ref *ref, const struct rdt_fetch_options *options, size_t bytes, uint32_t seed,
                          const char *path)
{
    const char *in, *on;
    rdt_object *object = fetch_as(conn[READER], ref, options);

    must_go_by(path, object);
    must_ok(rdt_object_place(object, 0, &in, &on, &err));
    must_say(strcmp(in, options->memory ? options->memory : "host") == 0, "it lies in %s memory", in);
    must(!options->device || strcmp(on, options->device) == 0);
    must(holds(object, 0, bytes, seed));
    rdt_release(object);
}

/* ---- groups ---- */

UNUSED static bool nccl_or_skip(void)
{
    if (!gpu_is_real() || dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL))
        return true;
    cr_skip_test("this machine has no NCCL");
    return false;
}

/* The group "g" of both clients, the reader's rank on that GPU, the owner's on the first. */
static enum rdt_status form(const char *readers, struct rdt_error *err)
{
    struct rdt_member members[] = {{.client = "owner", .device = gpu_uuid(0)}, {.client = "reader", .device = readers}};

    members[1].node = c.node[READER].address;
    return rdt_group_create(conn[OWNER], "g", "nccl", members, 2, NULL, err);
}

/* The warnings of a daemon when NCCL refuses. */
static const char *const refused[] = {"taken down", "is down: ", NULL};

/* false: this machine's NCCL refuses two ranks on one GPU, and the test is skipped with what NCCL said. Anything else must
 * go well. */
UNUSED static bool form_or_skip(const char *readers)
{
    struct rdt_error why = {0};
    enum rdt_status status = form(readers, &why);

    if (status == RDT_OK)
        return true;
    must_say(status == RDT_TRANSPORT && gpu_is_real() && strcmp(readers, gpu_uuid(0)) == 0, "%s: %s", rdt_status_name(status),
             why.msg);
    end(refused);
    cr_skip_test("%s", why.msg);
    return false;
}

#endif
