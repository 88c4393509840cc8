/* SPDX-License-Identifier: Apache-2.0 */
/* Plans and commits that write memory of GPUs.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_plans)

#ifndef RDT_WITHOUT_CUDA
#include <fcntl.h>
#include <unistd.h>

#include "client/rdt_follow.h"

#define ROWS 96
#define COLUMNS 40
#define LONG_ELEMS ((int64_t)(5 << 20)) /* 20 MiB of floats: more than the library has room for at a time */

static const struct rdt_ref *policy(void)
{
    static struct rdt_ref name;

    must_ok(rdt_ref_from_name("policy", 0, NULL, &name, &err));
    return &name;
}

static float element(uint64_t step, int64_t at)
{
    return (float)(step * 1000 + (uint64_t)(at % 8191));
}

/* A version in one part: "w" [ROWS, COLUMNS], and "long" [LONG_ELEMS]. */
static void publish(uint64_t step)
{
    int64_t shape[2] = {ROWS, COLUMNS}, length[1] = {LONG_ELEMS}, zero[2] = {0, 0};
    float *w = malloc(ROWS * COLUMNS * sizeof *w), *all = malloc((size_t)LONG_ELEMS * sizeof *all);
    struct rdt_tensor two[2] = {{.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = w},
                                {.dtype = RDT_F32, .ndim = 1, .shape = length, .data = all}};
    struct rdt_shard shards[2] = {{"w", shape, zero}, {"long", length, zero}};
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT, .shards = shards};

    for (int64_t i = 0; i < ROWS * COLUMNS; i++)
        w[i] = element(step, i);
    for (int64_t i = 0; i < LONG_ELEMS; i++)
        all[i] = element(step, i);
    struct rdt_ref ref = put_as(a, two, 2, &options);
    must_ok(rdt_publish_part(a, policy(), step, 0, 1, &ref, NULL, LONG, NULL, &err));
    must_ok(rdt_free(a, &ref, false, &err));
    free(w);
    free(all);
}

static struct {
    float *w, *turned, *first, *all; /* on GPUs, but for `first` in host memory */
    uint16_t *half;
    rdt_plan *plan;
} reader;

static const int64_t whole[2] = {ROWS, COLUMNS}, length[1] = {LONG_ELEMS}, by_columns[2] = {1, ROWS}, wide[2] = {64, 1};
static const int64_t row_start[2] = {3, 0}, row_count[2] = {5, COLUMNS};

static void open_plan(bool on_other_gpu)
{
    static float row[5 * COLUMNS];
    unsigned other = on_other_gpu ? gpu_count() - 1 : 0;

    reader.w = gpu_alloc(ROWS * 64 * sizeof(float)); /* rows of 64 elements, of which 40 are the want's */
    reader.turned = gpu_alloc(ROWS * COLUMNS * sizeof(float));
    reader.half = gpu_alloc(ROWS * COLUMNS * sizeof(uint16_t));
    reader.first = row;
    gpu_use(other);
    reader.all = gpu_alloc_chunks(2 * MIB, 10, false);
    gpu_use(0);
    gpu_fill(reader.w, ROWS * 64 * sizeof(float), 5);
    struct rdt_want wants[5] = {{"w", 2, NULL, whole, RDT_F32, reader.w, wide},
                                {"w", 2, NULL, whole, RDT_F32, reader.turned, by_columns},
                                {"w", 2, NULL, whole, RDT_BF16, reader.half, NULL},
                                {"w", 2, row_start, row_count, RDT_F32, reader.first, NULL},
                                {"long", 1, NULL, length, RDT_F32, reader.all, NULL}};
    must_ok(rdt_plan_create(b, policy(), wants, 5, NULL, &reader.plan, &err));
}

static void close_plan(bool on_other_gpu)
{
    rdt_plan_destroy(reader.plan);
    gpu_free(reader.w);
    gpu_free(reader.turned);
    gpu_free(reader.half);
    gpu_use(on_other_gpu ? gpu_count() - 1 : 0);
    gpu_free_chunks(reader.all, 2 * MIB, 10);
    gpu_use(0);
}

/* The wants have this step, and the memory between them what it had. */
static void expect_step(uint64_t step)
{
    static float w[ROWS * 64], turned[ROWS * COLUMNS];
    static uint16_t half[ROWS * COLUMNS];
    float *all = malloc((size_t)LONG_ELEMS * sizeof *all);
    uint8_t *before = malloc(sizeof w);

    fill_pattern(before, sizeof w, 5);
    gpu_read(w, reader.w, sizeof w);
    gpu_read(turned, reader.turned, sizeof turned);
    gpu_read(half, reader.half, sizeof half);
    gpu_read(all, reader.all, (size_t)LONG_ELEMS * sizeof *all);
    for (int64_t r = 0; r < ROWS; r++) {
        must(memcmp(&w[r * 64 + COLUMNS], before + (r * 64 + COLUMNS) * 4, (64 - COLUMNS) * 4) == 0);
        for (int64_t k = 0; k < COLUMNS; k++) {
            float value = element(step, r * COLUMNS + k);
            uint16_t cast = 0;
            must_ok(rdt_cast(RDT_F32, &value, RDT_BF16, &cast, 1, &err));
            must(w[r * 64 + k] == value && turned[k * ROWS + r] == value && half[r * COLUMNS + k] == cast);
            must(r < 3 || r >= 8 || reader.first[(r - 3) * COLUMNS + k] == value);
        }
    }
    for (int64_t i = 0; i < LONG_ELEMS; i++)
        must_say(all[i] == element(step, i), "element %lld", (long long)i);
    free(all);
    free(before);
}

static void end_plans(void)
{
    must_ok(rdt_unpublish(a, policy(), &err));
    end();
}

static void expect_versions(bool on_other_gpu)
{
    struct rdt_plan_run run = {0};

    begin();
    if (on_other_gpu && gpu_count() < 2) {
        end();
        cr_skip_test("there is one GPU");
    }
    publish(1);
    open_plan(on_other_gpu);
    for (uint64_t step = 1; step <= 3; step++) {
        must_ok(rdt_plan_run(reader.plan, run.version, LONG, &run, &err));
        must(run.step == step && run.planned == (step == 1) &&
             run.bytes == 3u * ROWS * COLUMNS * 4 - ROWS * COLUMNS * 2 + 5 * COLUMNS * 4 + (uint64_t)LONG_ELEMS * 4);
        expect_step(step);
        if (step < 3)
            publish(step + 1);
    }
    close_plan(on_other_gpu);
    end_plans();
}

Test(cuda_plans, versions_are_written_to_a_gpu_and_cast)
{
    expect_versions(false);
}

Test(cuda_plans, wants_of_one_plan_lie_on_several_gpus)
{
    expect_versions(true);
}

/* Kernels that still read the model are not disturbed: the time passes, and nothing has been written. */
Test(cuda_plans, run_waits_for_the_streams_that_use_its_wants)
{
    struct rdt_plan_run run = {0};

    begin();
    publish(1);
    open_plan(false);
    must_ok(rdt_plan_run(reader.plan, 0, LONG, &run, &err));
    publish(2);
    void *stream = gpu_stream_create();
    struct gpu_gate *gate = gpu_hold(stream);
    struct rdt_plan_stream order[2] = {{gpu_uuid(0), stream}, {"GPU-of another plan", NULL}};
    must_ok(rdt_plan_order(reader.plan, order, 2, &err));
    must_be(RDT_TIMED_OUT, rdt_plan_run(reader.plan, 1, 300 * MSEC, NULL, &err)); /* whatever it waits for by then */
    expect_step(1);
    gpu_open(gate);
    must_ok(rdt_plan_run(reader.plan, 1, LONG, &run, &err));
    expect_step(2);
    publish(3);
    gpu_capture(stream);
    must_refuse(RDT_INVALID, "being captured into a CUDA graph", rdt_plan_run(reader.plan, 2, LONG, NULL, &err));
    must(gpu_end_capture(stream));
    must_ok(rdt_plan_order(reader.plan, NULL, 0, &err));
    must_ok(rdt_plan_run(reader.plan, 2, LONG, NULL, &err));
    expect_step(3);
    gpu_stream_destroy(stream);
    close_plan(false);
    end_plans();
}

static bool always(void *arg)
{
    (void)arg;
    return true;
}

Test(cuda_plans, interruption_ends_the_wait_for_a_stream)
{
    begin();
    publish(1);
    open_plan(false);
    void *stream = gpu_stream_create();
    struct gpu_gate *gate = gpu_hold(stream);
    struct rdt_plan_stream order = {gpu_uuid(0), stream};
    must_ok(rdt_plan_order(reader.plan, &order, 1, &err));
    rdt_interrupt_by(always, NULL);
    must_refuse(RDT_CANCELLED, "interrupted while waiting for a stream", rdt_cuda_wait_stream(gpu_b, 0, stream, &err));
    rdt_interrupt_by(NULL, NULL);
    gpu_open(gate);
    must_ok(rdt_cuda_wait_stream(gpu_b, 0, stream, &err));
    must_ok(rdt_plan_run(reader.plan, 0, LONG, NULL, &err));
    expect_step(1);
    gpu_stream_destroy(stream);
    close_plan(false);
    end_plans();
}

static rdt_follower *follow_prepared(const struct rdt_ref *name)
{
    rdt_follower *follower = NULL;

    must_ok(rdt_follow(b, name, NULL, &follower, &err));
    must_ok(rdt_follower_prepare(follower, LONG, NULL, &err));
    return follower;
}

Test(cuda_plans, commit_writes_a_gpu)
{
    struct rdt_commit commit = {0};

    begin();
    publish(1);
    open_plan(false);
    rdt_follower *follower = follow_prepared(policy());
    struct rdt_commit_options options = {.struct_size = sizeof options, .plan = reader.plan};
    must_ok(rdt_follower_commit(follower, &options, &commit, &err));
    must(commit.version == 1);
    expect_step(1);
    publish(2);
    must_ok(rdt_follower_prepare(follower, LONG, NULL, &err));
    must_ok(rdt_follower_commit(follower, &options, &commit, &err));
    must(commit.version == 2);
    expect_step(2);
    rdt_follower_close(follower);
    close_plan(false);
    end_plans();
}

Test(cuda_plans, commit_of_a_single_object_writes_a_gpu)
{
    uint8_t *host = malloc(BYTES), *target = NULL;
    struct rdt_ref name;

    begin();
    fill_pattern(host, BYTES, 8);
    struct rdt_tensor source = bytes_at(host, BYTES);
    struct rdt_put_options put = {.struct_size = sizeof put, .flags = RDT_PUT_SNAPSHOT};
    struct rdt_ref ref = put_as(a, &source, 1, &put);
    must_ok(rdt_publish(a, "single", &ref, NULL, NULL, &err));
    must_ok(rdt_ref_from_name("single", 0, NULL, &name, &err));
    target = gpu_alloc(BYTES);
    rdt_follower *follower = follow_prepared(&name);
    struct rdt_tensor one = bytes_at(target, BYTES);
    struct rdt_commit_options options = {.struct_size = sizeof options, .targets = &one, .n_targets = 1};
    must_ok(rdt_follower_commit(follower, &options, NULL, &err));
    must(gpu_holds(target, BYTES, 8));
    rdt_follower_close(follower);
    must_ok(rdt_unpublish(a, &name, &err));
    let_go(&ref);
    gpu_free(target);
    free(host);
    end();
}

/* The version stays prepared, and is not counted as committed. */
Test(cuda_plans, commit_to_a_gpu_that_fails_is_none)
{
    char broken[] = "/tmp/rdt-broken-XXXXXX";
    struct rdt_commit_options options = {.struct_size = sizeof options};
    struct rdt_follower_info info;

    if (gpu_is_real())
        cr_skip_test("a real GPU cannot be told to fail");
    int fd = mkstemp(broken);
    must(fd >= 0 && close(fd) == 0 && unlink(broken) == 0);
    must(setenv("FAKE_CUDA_BREAK", broken, 1) == 0);
    begin_with("FAKE_CUDA_BREAK=", (const char *const[]){"--pool-idle=200ms", NULL}); /* not for the daemon */
    publish(1);
    open_plan(false);
    rdt_follower *follower = follow_prepared(policy());
    options.plan = reader.plan;
    fd = open(broken, O_CREAT | O_CLOEXEC | O_WRONLY, 0600);
    must(fd >= 0 && close(fd) == 0);
    must_be(RDT_SYSTEM, rdt_follower_commit(follower, &options, NULL, &err));
    must_ok(rdt_follower_info(follower, &info, &err));
    must(info.committed == 0);
    rdt_follower_close(follower);
    uint8_t host[64]; /* which needs no GPU */
    struct rdt_want want = {.key = "w", .dtype = RDT_U8, .ndim = 1, .count = (const int64_t[]){sizeof host}, .data = host};
    rdt_plan *of_host;
    must_ok(rdt_plan_create(b, policy(), &want, 1, NULL, &of_host, &err));
    rdt_plan_destroy(of_host);
    rdt_plan_destroy(reader.plan); /* the driver frees no memory of a context that has failed */
    end_plans();
    must(unlink(broken) == 0);
}

/* ---- what an update of a model costs ---- */

#define MODEL 300u
#define ELEMS 16500              /* of a tensor: 64 KiB and more */
#define APART ((size_t)18 << 10) /* elements from one tensor to the next: they do not touch */

static struct {
    float *trainer, *sampler;
    char names[MODEL][8];
    struct rdt_tensor tensors[MODEL];
    struct rdt_shard shards[MODEL];
    struct rdt_want wants[MODEL];
} model;

static const int64_t elems[1] = {ELEMS}, origin[1] = {0};

static void allocate_model(void)
{
    model.trainer = gpu_alloc(MODEL * APART * sizeof(float));
    model.sampler = gpu_alloc(MODEL * APART * sizeof(float));
    for (unsigned i = 0; i < MODEL; i++) {
        (void)snprintf(model.names[i], sizeof model.names[i], "w%u", i);
        model.tensors[i] = (struct rdt_tensor){.dtype = RDT_F32, .ndim = 1, .shape = elems, .data = model.trainer + i * APART};
        model.shards[i] = (struct rdt_shard){model.names[i], elems, origin};
        model.wants[i] = (struct rdt_want){model.names[i], 1, NULL, elems, RDT_F32, model.sampler + i * APART, NULL};
    }
}

static void publish_model(void *stream, uint64_t step)
{
    struct rdt_put_options put = {
        .struct_size = sizeof put, .flags = RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED, .shards = model.shards};
    struct rdt_cuda_put_options options = {
        .struct_size = sizeof options, .put = &put, .has_stream = true, .stream = stream, .to_host = true};
    struct rdt_ref ref;

    for (unsigned i = 0; i < MODEL; i++)
        gpu_fill(model.trainer + i * APART, ELEMS * sizeof(float), (uint32_t)step * 1000 + i);
    fake_gpu_trace_clear();
    must_ok(rdt_cuda_put(gpu_a, model.tensors, MODEL, &options, &ref, &err));
    must_ok(rdt_publish_part(a, policy(), step, 0, 1, &ref, NULL, LONG, NULL, &err));
    must_ok(rdt_free(a, &ref, false, &err));
}

static unsigned calls(const char *function)
{
    return fake_gpu_calls(getpid(), 0, function);
}

/* A version passes from the trainer's GPU to host memory, and from there to the sampler's. Both copies are asynchronous; the
 * sampler waits for its stream once for each 4 MiB of host memory that it fills again, and at the end. */
Test(cuda_plans, publish_and_update_copy_each_byte_once)
{
    const uint64_t bytes = (uint64_t)MODEL * ELEMS * sizeof(float);
    struct rdt_plan_run run = {0};

    count_calls();
    begin();
    allocate_model();
    void *stream = gpu_stream_create();
    for (uint64_t step = 1; step <= 3; step++) {
        publish_model(stream, step);
        if (step == 1)
            must_ok(rdt_plan_create(b, policy(), model.wants, MODEL, NULL, &reader.plan, &err));
        must_say(fake_gpu_copied(getpid()) == bytes, "publish copied %llu bytes",
                 (unsigned long long)fake_gpu_copied(getpid()));
        fake_gpu_trace_clear();
        must_ok(rdt_plan_run(reader.plan, run.version, LONG, &run, &err));
        must(run.step == step && run.bytes == bytes);
        must_say(fake_gpu_copied(getpid()) == bytes, "update copied %llu bytes", (unsigned long long)fake_gpu_copied(getpid()));
        must(calls("cuMemcpyAsync") == MODEL && calls("cuMemcpy2DAsync") == 0 && calls("cuStreamSynchronize") == 0);
        must_say(calls("cuEventSynchronize") <= bytes / (4 * MIB) + 2, "%u waits", calls("cuEventSynchronize"));
        if (step > 1)
            must(calls("cuMemHostRegister") + calls("cuStreamCreate") + calls("cuMemAlloc") + calls("cuMemCreate") == 0);
        must(fake_gpu_copied(node.pid) == 0);
        for (unsigned i = 0; i < MODEL; i++)
            must_say(gpu_holds(model.sampler + i * APART, ELEMS * sizeof(float), (uint32_t)step * 1000 + i), "tensor %u", i);
    }
    rdt_plan_destroy(reader.plan);
    gpu_free(model.trainer);
    gpu_free(model.sampler);
    gpu_stream_destroy(stream);
    must_ok(rdt_unpublish(a, policy(), &err));
    end_of_count();
}

/* A part on a GPU is read as any other: the daemon copies it to host memory for each run. */
Test(cuda_plans, part_on_a_gpu_is_copied_to_host_memory_for_a_run)
{
    const uint64_t bytes = (uint64_t)MODEL * ELEMS * sizeof(float);
    struct rdt_put_options put = {
        .struct_size = sizeof put, .flags = RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED, .shards = model.shards};
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .put = &put, .copy = true};
    static float first[ELEMS];
    struct rdt_ref ref;

    count_calls();
    begin();
    allocate_model();
    model.wants[0].data = first; /* in host memory */
    for (unsigned i = 0; i < MODEL; i++)
        gpu_fill(model.trainer + i * APART, ELEMS * sizeof(float), i);
    must_ok(rdt_cuda_put(gpu_a, model.tensors, MODEL, &options, &ref, &err));
    must_ok(rdt_publish_part(a, policy(), 1, 0, 1, &ref, NULL, LONG, NULL, &err));
    must_ok(rdt_free(a, &ref, false, &err));
    must_ok(rdt_plan_create(b, policy(), model.wants, MODEL, NULL, &reader.plan, &err));
    for (unsigned round = 0; round < 2; round++) {
        fake_gpu_trace_clear();
        must_ok(rdt_plan_run(reader.plan, 0, LONG, NULL, &err));
        must(fake_gpu_copied(node.pid) == bytes && fake_gpu_copied(getpid()) == bytes - sizeof first);
        must(holds_pattern(first, sizeof first, 0));
        for (unsigned i = 1; i < MODEL; i++)
            must_say(gpu_holds(model.sampler + i * APART, ELEMS * sizeof(float), i), "tensor %u", i);
    }
    rdt_plan_destroy(reader.plan);
    gpu_free(model.trainer);
    gpu_free(model.sampler);
    must_ok(rdt_unpublish(a, policy(), &err));
    end_of_count();
}
#endif
