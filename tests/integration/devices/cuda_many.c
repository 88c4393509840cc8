/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory as torch has it for a model: hundreds of allocations, or one made of hundreds of chunks, whose tensors touch.
 *
 * The leak checker of gcc 12: see cuda_fixture.h.
 * lsan: use_tls=0
 */
#include "tests/integration/devices/cuda_fixture.h"

CUDA_SUITE(cuda_many)

#ifndef RDT_WITHOUT_CUDA
#include <dirent.h>
#include <sys/resource.h>

#define SEGMENTS 300u
#define EACH (2 * MIB)
#define FEW 1000u /* bytes of each segment that are written and compared */

static void *segments[SEGMENTS];
static struct rdt_tensor tensors[SEGMENTS];

static void allocate_segments(uint32_t seed)
{
    for (unsigned i = 0; i < SEGMENTS; i++) {
        segments[i] = gpu_alloc_whole(EACH);
        gpu_fill(segments[i], FEW, seed + i);
        tensors[i] = bytes_at(segments[i], EACH);
    }
}

static void free_segments(void)
{
    for (unsigned i = 0; i < SEGMENTS; i++)
        gpu_free(segments[i]);
}

static struct rdt_ref put_segments(unsigned n)
{
    struct rdt_cuda_put_options options = {.struct_size = sizeof options};
    struct rdt_ref ref;

    must_ok(rdt_cuda_put(gpu_a, tensors, n, &options, &ref, &err));
    return ref;
}

static unsigned open_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    unsigned n = 0;

    must(dir);
    while (readdir(dir))
        n++;
    (void)closedir(dir);
    return n;
}

/* Fetches to where the tensors lie, and expects the pattern at the first bytes of each. */
static void expect_each(rdt *conn, const struct rdt_ref *ref, const char *path, unsigned n, size_t step, uint32_t seed)
{
    rdt_object *object;

    must_ok(fetch_to(conn, ref, NULL, NULL, &object, &err));
    must_go_by(path, object);
    for (unsigned i = 0; i < n; i++) {
        const char *data = step ? (const char *)tensor_of(object, 0).data + i * step : tensor_of(object, i).data;
        must_say(gpu_holds(data, FEW, seed + i), "wrong bytes in segment %u", i);
    }
    rdt_release(object);
}

Test(cuda_many, hundreds_of_allocations_are_shared)
{
    if (handles_are_refused())
        cr_skip_test("the daemon cannot map this process's memory");
    begin();
    allocate_segments(1);
    struct rdt_ref ref = put_segments(SEGMENTS);
    expect_each(b, &ref, "local/share", SEGMENTS, 0, 1);
    expect_each(b, &ref, "local/share", SEGMENTS, 0, 1);
    let_go(&ref);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    free_segments();
    end();
}

/* The descriptors of the chunks do not fit into one message. */
Test(cuda_many, hundreds_of_chunks_are_shared)
{
    unsigned n = 200, before;

    begin();
    char *chunks = gpu_alloc_chunks(EACH, n, true);
    for (unsigned i = 0; i < n; i++)
        gpu_fill(chunks + i * EACH, FEW, i);
    struct rdt_tensor whole = bytes_at(chunks, n * EACH);
    struct rdt_ref ref;
    enum rdt_cuda_how how;
    struct rdt_cuda_put_options options = {.struct_size = sizeof options, .how = &how};
    must_ok(rdt_cuda_put(gpu_a, &whole, 1, &options, &ref, &err));
    must(how == RDT_CUDA_CHUNKS);
    expect_each(b, &ref, "local/share", n, EACH, 0);
    before = open_fds(); /* the fake's chunks have one each while they are mapped */
    for (unsigned round = 0; round < 3; round++)
        expect_each(b, &ref, "local/share", n, EACH, 0);
    must_say(open_fds() == before, "%u descriptors were open before, %u now", before, open_fds());
    let_go(&ref);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    gpu_free_chunks(chunks, EACH, n);
    end();
}

/* A fetch that nobody waits for any more when its descriptors come. */
Test(cuda_many, descriptors_of_a_cancelled_fetch_are_closed)
{
    struct rdt_fetch_options fetch = {.struct_size = sizeof fetch};
    unsigned n = 200, before;
    rdt_request *request;

    begin();
    char *chunks = gpu_alloc_chunks(EACH, n, true);
    struct rdt_tensor whole = bytes_at(chunks, n * EACH);
    struct rdt_cuda_put_options options = {.struct_size = sizeof options};
    struct rdt_ref ref;
    must_ok(rdt_cuda_put(gpu_a, &whole, 1, &options, &ref, &err));
    must_ok(rdt_ping(b, LONG, &err));
    before = open_fds();
    for (unsigned round = 0; round < 10; round++) {
        must_ok(rdt_fetch_start(b, &ref, 1, &fetch, &request, &err));
        rdt_request_destroy(request);
        must_ok(rdt_ping(b, LONG, &err));
    }
    must_say(open_fds() == before, "%u descriptors were open before, %u now", before, open_fds());
    let_go(&ref);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    gpu_free_chunks(chunks, EACH, n);
    end();
}

/* It takes a quarter of what its limit of open files allows, so that the session does not end for lack of descriptors. */
Test(cuda_many, process_with_few_descriptors_gets_a_copy)
{
    struct rlimit limit, low;
    unsigned n = 200;
    rdt *few;
    rdt_cuda *gpu_few;

    begin();
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    low = (struct rlimit){.rlim_cur = 4 * 150, .rlim_max = limit.rlim_max};
    char *chunks = gpu_alloc_chunks(EACH, n, true);
    for (unsigned i = 0; i < n; i++)
        gpu_fill(chunks + i * EACH, FEW, i);
    struct rdt_tensor whole = bytes_at(chunks, n * EACH);
    struct rdt_cuda_put_options options = {.struct_size = sizeof options};
    struct rdt_ref ref;
    must_ok(rdt_cuda_put(gpu_a, &whole, 1, &options, &ref, &err));
    must(setrlimit(RLIMIT_NOFILE, &low) == 0);
    node_connect(&node, &few);
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    must_ok(rdt_cuda_open(few, &gpu_few, &err));
    expect_each(few, &ref, "local/copy", n, EACH, 0);
    expect_each(b, &ref, "local/share", n, EACH, 0);
    rdt_cuda_close(gpu_few);
    rdt_close(few);
    let_go(&ref);
    must_ok(rdt_wait_freed(a, &ref, LONG, &err));
    gpu_free_chunks(chunks, EACH, n);
    end();
}

static struct rdt_object *fetch_into(rdt *conn, const struct rdt_ref *ref, const struct rdt_tensor *targets, size_t n)
{
    struct rdt_fetch_options options = {.struct_size = sizeof options, .targets = &targets, .target_counts = &n};
    rdt_object *object;

    must_ok(rdt_fetch(conn, ref, 1, &options, &object, &err));
    return object;
}

Test(cuda_many, hundreds_of_allocations_are_targets)
{
    static char host[SEGMENTS][FEW];
    static struct rdt_tensor sources[SEGMENTS];
    static void *bases[SEGMENTS];
    static enum rdt_cuda_how how[SEGMENTS];
    size_t n_bases = 0;

    if (handles_are_refused())
        cr_skip_test("the daemon cannot map this process's memory");
    begin();
    for (unsigned i = 0; i < SEGMENTS; i++) {
        fill_pattern(host[i], FEW, 7 + i);
        sources[i] = bytes_at(host[i], FEW);
    }
    struct rdt_ref ref = put_as(a, sources, SEGMENTS, NULL);
    allocate_segments(1000);
    for (unsigned i = 0; i < SEGMENTS; i++)
        tensors[i] = bytes_at(segments[i], FEW);
    for (unsigned round = 0; round < 2; round++) {
        must_ok(rdt_cuda_offer_tensors(gpu_b, tensors, SEGMENTS, bases, &n_bases, how, &err));
        must_say(n_bases == SEGMENTS, "%zu ranges were offered", n_bases);
        rdt_object *object = fetch_into(b, &ref, tensors, SEGMENTS);
        for (unsigned i = 0; i < SEGMENTS; i++)
            must(how[i] == RDT_CUDA_HANDLE && gpu_holds(segments[i], FEW, 7 + i));
        rdt_release(object);
        for (size_t i = 0; i < n_bases; i++)
            must_ok(rdt_dealloc_soon(b, bases[i], &err));
    }
    let_go(&ref);
    must_ok(rdt_ping(b, LONG, &err));
    free_segments();
    end();
}

/* Tensors of 3 MiB in chunks of 2 MiB, as in torch's expandable segments: each shares a chunk with the next one. */
Test(cuda_many, targets_that_share_chunks_are_written)
{
    unsigned n = 60;
    size_t bytes = 3 * MIB;
    struct rdt_tensor targets[60], sources[60];
    enum rdt_cuda_how how[60];
    void *bases[60], *known;
    size_t n_bases = 0;
    char *host = malloc(n * FEW);

    begin();
    must(host);
    char *chunks = gpu_alloc_chunks(EACH, 90, true), *other = gpu_alloc_chunks(EACH, 2, true);
    for (unsigned i = 0; i < n; i++) {
        fill_pattern(host + i * FEW, FEW, i);
        sources[i] = bytes_at(host + i * FEW, FEW);
        targets[i] = bytes_at(chunks + (n - 1 - i) * bytes + bytes - FEW, FEW); /* from the last chunk to the first */
    }
    targets[n - 1] = bytes_at(other, FEW);
    struct rdt_ref ref = put_as(a, sources, n, NULL);
    must_ok(rdt_cuda_offer(gpu_b, other, EACH, &known, NULL, &err));
    must_ok(rdt_cuda_offer_tensors(gpu_b, targets, n, bases, &n_bases, how, &err));
    must(n_bases >= 1 && n_bases < n && how[n - 1] == RDT_CUDA_KNOWN);
    rdt_object *object = fetch_into(b, &ref, targets, n);
    for (unsigned i = 0; i < n; i++)
        must_say(gpu_holds(targets[i].data, FEW, i), "target %u: taken as %d", i, (int)how[i]);
    rdt_release(object);
    for (size_t i = 0; i < n_bases; i++)
        must_ok(rdt_dealloc(b, bases[i], &err));
    /* What another call has offered in part is not offered again. */
    struct rdt_tensor two[2] = {bytes_at(other, 2 * EACH), bytes_at(other + EACH, FEW)};
    must_ok(rdt_cuda_offer_tensors(gpu_b, two, 2, bases, &n_bases, how, &err));
    must(how[0] == RDT_CUDA_COPIED && how[1] == RDT_CUDA_CHUNKS && n_bases == 1);
    must_ok(rdt_dealloc(b, bases[0], &err));
    must_ok(rdt_dealloc(b, known, &err));
    let_go(&ref);
    gpu_free_chunks(chunks, EACH, 90);
    gpu_free_chunks(other, EACH, 2);
    free(host);
    end();
}
#endif
