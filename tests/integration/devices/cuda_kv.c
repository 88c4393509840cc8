/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a KV cache on a GPU: an engine makes one region known, once, and moves thousands of blocks of it in a call.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_kv)

#ifndef RDT_WITHOUT_CUDA
#include "client/rdt_many.h"

#define BLOCKS 2000u
#define BLOCK ((size_t)16384)
#define STEP ((size_t)24576) /* blocks do not touch, so no copy takes two of them */
#define CACHE (BLOCKS * STEP)
#define CHUNK (2 * MIB)
#define CHUNKS ((unsigned)((CACHE + CHUNK - 1) / CHUNK))
#define BATCH 512u /* blocks of one message, and of one copy of the daemon */
#define BATCHES ((BLOCKS + BATCH - 1) / BATCH)
#define SPREAD 1201u /* a prime, so that each place comes once */

static const int64_t shape[1] = {BLOCK};
static struct rdt_tensor tensors[BLOCKS];
static const struct rdt_tensor *targets[BLOCKS];
static size_t counts[BLOCKS];
static struct rdt_ref refs[BLOCKS];
static enum rdt_status statuses[BLOCKS];

static char *place_of(char *cache, unsigned i)
{
    return cache + (size_t)(i * SPREAD % BLOCKS) * STEP;
}

/* The blocks in an order that is not that of their addresses. */
static void aim_at(char *cache)
{
    for (unsigned i = 0; i < BLOCKS; i++) {
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = shape, .data = place_of(cache, i)};
        targets[i] = &tensors[i];
        counts[i] = 1;
    }
}

struct engine_cache {
    char *memory;
    void *base;
};

/* The memory of an engine, made known to the daemon. */
static struct engine_cache offer_cache(rdt_cuda *gpu)
{
    struct engine_cache cache = {.memory = gpu_alloc_chunks(CHUNK, CHUNKS, true)};
    enum rdt_cuda_how how;

    must_ok(rdt_cuda_offer(gpu, cache.memory, CACHE, &cache.base, &how, &err));
    must(how == RDT_CUDA_CHUNKS);
    return cache;
}

static void end_cache(rdt *conn, struct engine_cache *cache)
{
    must_ok(rdt_dealloc(conn, cache->base, &err));
    gpu_free_chunks(cache->memory, CHUNK, CHUNKS);
}

static void load(rdt *conn, char *cache)
{
    aim_at(cache);
    must_ok(rdt_load_many(conn, refs, BLOCKS, targets, counts, LONG, statuses, &err));
    for (unsigned i = 0; i < BLOCKS; i++)
        must(statuses[i] == RDT_OK);
}

static void expect_blocks(char *cache, uint32_t seed)
{
    for (unsigned i = 0; i < BLOCKS; i += 7)
        must_say(gpu_holds(place_of(cache, i), BLOCK, seed + i), "wrong bytes in block %u", i);
}

/* The daemon was asked by a few messages, queued a copy for each block, and waited for some hundred at a time. */
static void expect_few_calls(const char *copies)
{
    unsigned calls;

    must(fake_gpu_calls(node.pid, 0, copies) == BLOCKS);
    calls = fake_gpu_calls(node.pid, 0, "cuEventRecord");
    must_say(calls <= 2 * BATCHES, "%u events for %u blocks", calls, BLOCKS);
    must(fake_gpu_calls(node.pid, 0, "cuStreamSynchronize") + fake_gpu_calls(node.pid, 0, "cuCtxSynchronize") == 0);
    must(fake_gpu_calls(node.pid, 0, "cuMemCreate") + fake_gpu_calls(node.pid, 0, "cuMemMap") == 0);
    must(fake_gpu_calls(node.pid, node.pid, NULL) == 0); /* the loop */
}

static void put_in_host_cache(uint32_t seed)
{
    static uint8_t memory[BLOCKS][BLOCK];
    static struct rdt_value values[BLOCKS];
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT | RDT_PUT_EVICTABLE};

    for (unsigned i = 0; i < BLOCKS; i++) {
        fill_pattern(memory[i], BLOCK, seed + i);
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = shape, .data = memory[i]};
        values[i] = (struct rdt_value){.tensors = &tensors[i], .count = 1};
    }
    must_ok(rdt_put_many(a, values, BLOCKS, &options, refs, statuses, &err));
}

/* Each block is an object in the memory of the engine, where it lies. */
static void put_where_they_lie(char *cache, uint32_t seed)
{
    static struct rdt_value values[BLOCKS];

    aim_at(cache);
    for (unsigned i = 0; i < BLOCKS; i++) {
        gpu_fill(tensors[i].data, BLOCK, seed + i);
        values[i] = (struct rdt_value){.tensors = &tensors[i], .count = 1};
    }
    must_ok(rdt_put_many(a, values, BLOCKS, NULL, refs, statuses, &err));
}

static void free_blocks(void)
{
    must_ok(rdt_free_many(a, refs, BLOCKS, true, NULL, &err));
}

Test(cuda_kv, blocks_of_the_host_cache_are_loaded_by_a_few_messages)
{
    count_calls();
    begin();
    put_in_host_cache(1);
    struct engine_cache cache = offer_cache(gpu_b);
    for (unsigned round = 0; round < 2; round++) {
        uint64_t before = node_now(&node).transfers_done;
        fake_gpu_trace_clear();
        load(b, cache.memory);
        expect_few_calls("cuMemcpyAsync");
        must_say(node_now(&node).transfers_done == before, "blocks were fetched one by one");
        expect_blocks(cache.memory, 1);
    }
    free_blocks();
    end_cache(b, &cache);
    end_of_count();
}

/* From the memory of one engine to that of another one on the same GPU. */
Test(cuda_kv, blocks_of_another_engine_are_loaded_on_the_gpu)
{
    count_calls();
    begin();
    struct engine_cache from = offer_cache(gpu_a), to = offer_cache(gpu_b);
    put_where_they_lie(from.memory, 5);
    uint64_t before = node_now(&node).transfers_done;
    fake_gpu_trace_clear();
    load(b, to.memory);
    expect_few_calls("cuMemcpyAsync");
    must(node_now(&node).transfers_done == before);
    expect_blocks(to.memory, 5);
    free_blocks();
    end_cache(a, &from);
    end_cache(b, &to);
    end_of_count();
}

Test(cuda_kv, blocks_on_a_gpu_are_loaded_into_host_memory)
{
    uint8_t *host;

    count_calls();
    begin();
    struct engine_cache from = offer_cache(gpu_a);
    put_where_they_lie(from.memory, 9);
    must_ok(rdt_alloc(b, CACHE, (void **)&host, &err));
    uint64_t before = node_now(&node).transfers_done;
    fake_gpu_trace_clear();
    load(b, (char *)host);
    expect_few_calls("cuMemcpyAsync");
    must(node_now(&node).transfers_done == before);
    for (unsigned i = 0; i < BLOCKS; i++)
        must_say(holds_pattern(place_of((char *)host, i), BLOCK, 9 + i), "wrong bytes in block %u", i);
    must_ok(rdt_dealloc(b, host, &err));
    free_blocks();
    end_cache(a, &from);
    end_of_count();
}

/* A model has memory of its own for each layer, and an object has a tensor of each. */
Test(cuda_kv, blocks_of_many_layers_are_loaded_by_a_few_messages)
{
    enum { LAYERS = 80, EACH_LAYER = 50, N = LAYERS * EACH_LAYER };
    static struct rdt_tensor parts[N], *list[EACH_LAYER];
    static uint8_t host[N][100];
    static struct rdt_value values[EACH_LAYER];
    static const int64_t small[1] = {100};
    struct engine_cache layers[LAYERS];

    count_calls();
    begin();
    for (unsigned i = 0; i < N; i++) {
        fill_pattern(host[i], 100, i);
        parts[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = small, .data = host[i]};
        values[i / LAYERS] = (struct rdt_value){.tensors = &parts[i / LAYERS * LAYERS], .count = LAYERS};
    }
    must_ok(rdt_put_many(a, values, EACH_LAYER, NULL, refs, NULL, &err));
    for (unsigned i = 0; i < LAYERS; i++) {
        layers[i].memory = gpu_alloc_chunks(CHUNK, 1, true);
        must_ok(rdt_cuda_offer(gpu_b, layers[i].memory, CHUNK, &layers[i].base, NULL, &err));
    }
    for (unsigned i = 0; i < N; i++) {
        parts[i].data = layers[i % LAYERS].memory + i / LAYERS * STEP;
        list[i / LAYERS] = &parts[i / LAYERS * LAYERS];
        targets[i / LAYERS] = list[i / LAYERS];
        counts[i / LAYERS] = LAYERS;
    }
    uint64_t before = node_now(&node).transfers_done;
    fake_gpu_trace_clear();
    must_ok(rdt_load_many(b, refs, EACH_LAYER, targets, counts, LONG, NULL, &err));
    must_say(node_now(&node).transfers_done == before, "blocks were fetched one by one");
    must(fake_gpu_calls(node.pid, 0, "cuMemcpyAsync") == N);
    unsigned calls = fake_gpu_calls(node.pid, 0, "cuEventRecord");
    must_say(calls <= LAYERS, "%u events for %u layers", calls, LAYERS);
    for (unsigned i = 0; i < N; i += 3)
        must_say(gpu_holds(parts[i].data, 100, i), "wrong bytes in tensor %u", i);
    must_ok(rdt_free_many(a, refs, EACH_LAYER, true, NULL, &err));
    for (unsigned i = 0; i < LAYERS; i++) {
        must_ok(rdt_dealloc(b, layers[i].base, &err));
        gpu_free_chunks(layers[i].memory, CHUNK, 1);
    }
    end_of_count();
}

/* Some come from the host, some from the GPU, one is gone and one has another shape. */
Test(cuda_kv, every_block_has_a_status_of_its_own)
{
    enum { GONE = 3, OTHER = 700 };
    static const int64_t half[1] = {BLOCK / 2};
    static struct rdt_ref on_gpu[BLOCKS];

    begin();
    struct engine_cache from = offer_cache(gpu_a), to = offer_cache(gpu_b);
    put_where_they_lie(from.memory, 20);
    memcpy(on_gpu, refs, sizeof refs);
    put_in_host_cache(20);
    for (unsigned i = 0; i < BLOCKS; i += 2) {
        struct rdt_ref ref = refs[i];
        refs[i] = on_gpu[i];
        on_gpu[i] = ref;
    }
    must_ok(rdt_free(a, &refs[GONE], true, &err));
    aim_at(to.memory);
    tensors[OTHER].shape = half;
    must_be(RDT_FREED, rdt_load_many(b, refs, BLOCKS, targets, counts, LONG, statuses, &err));
    for (unsigned i = 0; i < BLOCKS; i++) {
        if (i == GONE || i == OTHER)
            must(statuses[i] == (i == GONE ? RDT_FREED : RDT_MISMATCH));
        else
            must_say(statuses[i] == RDT_OK && gpu_holds(place_of(to.memory, i), BLOCK, 20 + i), "block %u: %d", i,
                     (int)statuses[i]);
    }
    (void)rdt_free_many(a, refs, BLOCKS, true, statuses, NULL);
    must_ok(rdt_free_many(a, on_gpu, BLOCKS, true, NULL, &err));
    end_cache(a, &from);
    end_cache(b, &to);
    end();
}

/* ---- out of a GPU ---- */

static const struct rdt_put_options cached = {.struct_size = sizeof cached, .flags = RDT_PUT_EVICTABLE};

/* Blocks of memory that cannot be exported. */
static const struct rdt_value *blocks_of(char *cache)
{
    static struct rdt_value values[BLOCKS];

    aim_at(cache);
    for (unsigned i = 0; i < BLOCKS; i++)
        values[i] = (struct rdt_value){.tensors = &tensors[i], .count = 1};
    return values;
}

static void fill_blocks(char *cache, uint32_t seed)
{
    for (unsigned i = 0; i < BLOCKS; i++)
        gpu_fill(place_of(cache, i), BLOCK, seed + i);
}

/* The process copies them itself, so the daemon does not use the GPU, and the memory need not be known. */
Test(cuda_kv, blocks_go_to_the_host_cache_by_one_copy_each)
{
    uint8_t *host;

    count_calls();
    begin();
    char *cache = gpu_alloc_chunks(CHUNK, CHUNKS, false);
    must_ok(rdt_alloc(b, CACHE, (void **)&host, &err));
    for (unsigned round = 0; round < 3; round++) {
        fill_blocks(cache, 30 * round);
        wait_until(LONG, node_now(&node).objects == 0);
        fake_gpu_trace_clear();
        must_ok(rdt_cuda_put_many(gpu_a, blocks_of(cache), BLOCKS, &cached, refs, round == 0 ? statuses : NULL, &err));
        must(fake_gpu_calls(getpid(), 0, "cuMemcpyAsync") == BLOCKS);
        must(fake_gpu_calls(getpid(), 0, "cuMemHostRegister") ==
             (round == 0 ? 2 : 0)); /* a buffer is filled while one is put */
        must(fake_gpu_calls(getpid(), 0, "cuEventRecord") <= 3);
        must(fake_gpu_calls_before(getpid(), "cuMemcpyAsync", "cuEventRecord") < BLOCKS); /* and not waited for before */
        must(fake_gpu_calls(node.pid, 0, NULL) == 0);
        load(b, (char *)host);
        for (unsigned i = 0; i < BLOCKS; i++)
            must_say(holds_pattern(place_of((char *)host, i), BLOCK, 30 * round + i), "wrong bytes in block %u", i);
        free_blocks();
    }
    must_ok(rdt_dealloc(b, host, &err));
    gpu_free_chunks(cache, CHUNK, CHUNKS);
    end_of_count();
}

/* Also in a later group of blocks, whose error says which of all it is. */
Test(cuda_kv, every_block_that_is_put_has_a_status_of_its_own)
{
    enum { TAKEN = 1500, LARGE_BYTES = 20 << 20 };
    static const int64_t large[1] = {LARGE_BYTES};
    static uint8_t mine[100];
    struct rdt_put_options one = {.struct_size = sizeof one, .id = "taken", .id_bytes = 5};
    struct rdt_tensor in_host = bytes_at(mine, sizeof mine), other = {.dtype = RDT_U8, .ndim = 1, .shape = large};
    struct rdt_value values[BLOCKS];
    struct rdt_ref taken;

    begin();
    char *cache = gpu_alloc_chunks(CHUNK, CHUNKS, false);
    fill_blocks(cache, 3);
    memcpy(values, blocks_of(cache), sizeof values);
    must_ok(rdt_put(a, &in_host, 1, &one, &taken, &err));
    values[TAKEN].id = "taken";
    values[TAKEN].id_bytes = 5;
    values[7].tensors = &in_host; /* one that is not on the GPU */
    other.data = cache;
    values[8].tensors = &other; /* larger than a group */
    for (unsigned all = 0; all < 2; all++) {
        must_refuse(RDT_EXISTS, "value 1500: object \"taken\" exists",
                    rdt_cuda_put_many(gpu_a, values, BLOCKS, &cached, refs, all ? NULL : statuses, &err));
        for (unsigned i = 0; i < BLOCKS && !all; i++)
            must_say(statuses[i] == (i == TAKEN ? RDT_EXISTS : RDT_OK), "block %u: %d", i, (int)statuses[i]);
        if (!all) {
            rdt_object *object;
            must_ok(fetch_to(b, &refs[8], NULL, NULL, &object, &err));
            must(tensor_of(object, 0).shape[0] == LARGE_BYTES);
            must(holds_pattern((char *)tensor_of(object, 0).data + (place_of(cache, 5) - cache), BLOCK, 3 + 5));
            rdt_release(object);
            refs[TAKEN] = refs[0];
            must_ok(rdt_free(a, &refs[0], true, &err));
            refs[0] = refs[1];
            (void)rdt_free_many(a, refs, BLOCKS, true, statuses, NULL);
        }
    }
    wait_until(LONG, node_now(&node).objects == 1);
    must_be(RDT_INVALID, rdt_cuda_put_many(gpu_a, values, BLOCKS,
                                           &(struct rdt_put_options){.struct_size = sizeof one, .flags = RDT_PUT_PENDING}, refs,
                                           NULL, &err));
    must_ok(rdt_free(a, &taken, false, &err));
    gpu_free_chunks(cache, CHUNK, CHUNKS);
    end();
}

/* One block of the second group cannot be put. */
Test(cuda_kv, failed_put_of_blocks_leaves_what_has_replaced_others)
{
    static uint8_t mine[100];
    static char ids[BLOCKS][16];
    struct rdt_put_options one = {.struct_size = sizeof one, .id = "held", .id_bytes = 4}, replacing = cached;
    struct rdt_ref by_id = {.id = "block 0", .id_bytes = 7}, held;
    struct rdt_tensor in_host = bytes_at(mine, sizeof mine);
    struct rdt_value values[BLOCKS];
    rdt_object *object;

    begin();
    char *cache = gpu_alloc_chunks(CHUNK, CHUNKS, false);
    fill_blocks(cache, 3);
    memcpy(values, blocks_of(cache), sizeof values);
    must_ok(rdt_put(b, &in_host, 1, &one, &held, &err));
    for (unsigned i = 0; i < BLOCKS; i++) {
        values[i].id_bytes = (size_t)snprintf(ids[i], sizeof ids[i], "block %u", i);
        values[i].id = ids[i];
    }
    must_ok(rdt_cuda_put_many(gpu_a, values, 1, &cached, refs, NULL, &err));
    values[BLOCKS - 1].id = "held"; /* by a client that is alive */
    values[BLOCKS - 1].id_bytes = 4;
    replacing.flags |= RDT_PUT_REPLACE;
    must_be(RDT_EXISTS, rdt_cuda_put_many(gpu_a, values, BLOCKS, &replacing, refs, NULL, &err));
    must_ok(fetch_to(a, &by_id, NULL, NULL, &object, &err));
    must(holds_pattern(tensor_of(object, 0).data, BLOCK, 3));
    rdt_release(object);
    must_ok(rdt_free(b, &held, false, &err));
    must_ok(rdt_free_many(a, refs, BLOCKS - 1, true, NULL, &err));
    gpu_free_chunks(cache, CHUNK, CHUNKS);
    end();
}

Test(cuda_kv, put_of_blocks_ends_at_its_deadline)
{
    struct rdt_put_options soon = cached;

    if (gpu_is_real())
        cr_skip_test("a real driver cannot be slowed down");
    must(setenv("FAKE_CUDA_COPY_US", "1000", 1) == 0);
    begin();
    char *cache = gpu_alloc_chunks(CHUNK, CHUNKS, false);
    soon.timeout_ns = SEC / 5;
    must_be(RDT_TIMED_OUT, rdt_cuda_put_many(gpu_a, blocks_of(cache), BLOCKS, &soon, refs, statuses, &err));
    for (unsigned i = 0; i < BLOCKS; i++)
        must(statuses[i] == RDT_TIMED_OUT);
    must(node_now(&node).objects == 0);
    must_ok(rdt_cuda_wait_all(gpu_a, 0, &err)); /* the GPU still reads what it was asked to copy */
    gpu_free_chunks(cache, CHUNK, CHUNKS);
    end();
}

/* A GPU is busy: the call ends in time all the same, and the daemon goes on to serve others. */
static struct engine_cache load_too_slowly(rdt *conn, rdt_cuda *gpu)
{
    struct engine_cache cache = offer_cache(gpu);

    put_in_host_cache(1);
    aim_at(cache.memory);
    must_be(RDT_TIMED_OUT, rdt_load_many(conn, refs, BLOCKS, targets, counts, SEC / 5, statuses, &err));
    must_ok(rdt_ping(conn, LONG, &err));
    return cache;
}

static void begin_slowly(void)
{
    if (gpu_is_real())
        cr_skip_test("a real driver cannot be slowed down");
    begin_with("FAKE_CUDA_COPY_US=1000", (const char *const[]){"--pool-idle=200ms", NULL});
}

Test(cuda_kv, load_ends_at_its_deadline)
{
    begin_slowly();
    struct engine_cache cache = load_too_slowly(b, gpu_b);
    free_blocks();
    end_cache(b, &cache); /* waits until nobody writes there */
    end();
}

Test(cuda_kv, copies_end_after_their_client)
{
    rdt *engine;
    rdt_cuda *gpu;

    begin_slowly();
    node_connect(&node, &engine);
    must_ok(rdt_cuda_open(engine, &gpu, &err));
    struct engine_cache cache = load_too_slowly(engine, gpu);
    rdt_cuda_close(gpu);
    rdt_close(engine);
    gpu_free_chunks(cache.memory, CHUNK, CHUNKS); /* the daemon has its own descriptors of them */
    free_blocks();
    end();
}

Test(cuda_kv, daemon_ends_after_its_copies)
{
    begin_slowly();
    struct engine_cache cache = load_too_slowly(b, gpu_b);
    rdt_cuda_close(gpu_a);
    rdt_cuda_close(gpu_b);
    rdt_close(a);
    rdt_close(b);
    node_stop(&node); /* exits with 0 */
    gpu_free_chunks(cache.memory, CHUNK, CHUNKS);
}
#endif
