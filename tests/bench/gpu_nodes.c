/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory between two daemons on this machine, beside plain CUDA and the same transport between host memories, in the
 * same run: tests/gpu/run bench. Staged transfers go from GPU to GPU through pinned host memory, beside the slowest of
 * their parts alone. Transfers by NCCL stay within a group, beside a plain copy from GPU to GPU. */
#include <stdio.h>
#include <stdlib.h>

#ifdef RDT_WITHOUT_CUDA
int main(void)
{
    (void)fputs("this was built without cuda.h: make cuda-headers\n", stderr);
    return 2;
}
#else
#include "tests/bench/bench_gpu.h"
#include "tests/gpu/nodes_fixture.h"

/* Seconds of one fetch by the reader, until its tensor may be used. *path_p: by which it went. */
static double fetched(const struct rdt_ref *ref, const struct rdt_fetch_options *options, char path_p[64])
{
    int64_t since = now_ns();
    rdt_object *object = fetch_as(conn[READER], ref, options);
    double seconds = (double)(now_ns() - since) / 1e9;

    (void)snprintf(path_p, 64, "%s", info_of(object).path);
    rdt_release(object);
    return seconds;
}

/* In turns, so that whatever else the machine does falls on all of them. */
static void staged(const char *transport, size_t bytes)
{
    enum { FETCH, DOWN, UP, WIRE, WAYS };
    struct rdt_fetch_options to_gpu = to("cuda", other_gpu()), to_host = to(NULL, NULL);
    unsigned reader = gpu_count() > 1 ? 1 : 0;
    double seconds[WAYS][ROUNDS], median[WAYS], slowest = 0;
    void *addr, *there, *here, *host = aligned_alloc(4096, bytes);
    char path[64], wire[64], what[160];
    struct rdt_ref on_gpu = put_on_gpu(bytes, 1, &addr), in_host = put_pattern(conn[OWNER], NULL, bytes, 2);

    must(host);
    memset(host, 1, bytes);
    gpu_use(reader);
    here = gpu_alloc(bytes);
    gpu_use(0);
    there = gpu_alloc(bytes);
    gpu_pin(host, bytes);
    to_gpu.transport = to_host.transport = transport;
    (void)fetched(&on_gpu, &to_gpu, path); /* creates what the first use creates */
    (void)fetched(&in_host, &to_host, wire);
    for (unsigned i = 0; i < ROUNDS; i++) {
        seconds[FETCH][i] = fetched(&on_gpu, &to_gpu, path);
        seconds[DOWN][i] = bench_gpu_plain(host, there, bytes);
        gpu_use(reader);
        seconds[UP][i] = bench_gpu_plain(here, host, bytes);
        gpu_use(0);
        seconds[WIRE][i] = fetched(&in_host, &to_host, wire);
    }
    for (unsigned way = 0; way < WAYS; way++) {
        median[way] = bench_median(seconds[way], ROUNDS);
        slowest = way != FETCH && median[way] > slowest ? median[way] : slowest;
    }
    (void)snprintf(what, sizeof what, "GPU to GPU between daemons, %s", path);
    bench_gpu_row(what, bytes, median[FETCH], slowest);
    (void)printf("  its parts alone, GB/s: GPU to pinned memory %.2f, pinned memory to GPU %.2f, host to host by %s %.2f; "
                 "goal: ratio 0.85\n",
                 (double)bytes / median[DOWN] / 1e9, (double)bytes / median[UP] / 1e9, wire,
                 (double)bytes / median[WIRE] / 1e9);
    gpu_unpin(host);
    gpu_free(there);
    gpu_use(reader);
    gpu_free(here);
    gpu_use(0);
    free(host);
    drop(&in_host, NULL);
    drop(&on_gpu, addr);
}

static void by_nccl(size_t bytes)
{
    struct rdt_fetch_options options = to("cuda", other_gpu());
    double ours[ROUNDS], plain[ROUNDS];
    void *addr, *from = gpu_alloc(bytes), *copy;
    char path[64], what[160];
    struct rdt_ref ref = put_on_gpu(bytes, 1, &addr);

    gpu_use(gpu_count() > 1 ? 1 : 0);
    copy = gpu_alloc(bytes);
    gpu_use(0);
    options.group = "g";
    options.least_path = "direct";
    (void)fetched(&ref, &options, path);
    for (unsigned i = 0; i < ROUNDS; i++) {
        ours[i] = fetched(&ref, &options, path);
        plain[i] = bench_gpu_plain(copy, from, bytes);
    }
    (void)snprintf(what, sizeof what, "GPU to GPU between daemons, %s", path);
    bench_gpu_row(what, bytes, bench_median(ours, ROUNDS), bench_median(plain, ROUNDS));
    gpu_free(from);
    gpu_use(gpu_count() > 1 ? 1 : 0);
    gpu_free(copy);
    gpu_use(0);
    drop(&ref, addr);
}

int main(void)
{
    static const char *const transports[] = {"stream", "ucx"};
    struct rdt_error why = {0};
    size_t n;

    bench_gpu_begin();
    begin_with(true, NULL, NULL);
    const size_t *sizes = bench_gpu_sizes(&n);
    for (unsigned t = 0; t < 2; t++)
        for (size_t i = 0; i < n; i++)
            staged(transports[t], sizes[i]);
    enum rdt_status status = form(other_gpu(), &why);
    if (status == RDT_OK) {
        for (size_t i = 0; i < n; i++)
            by_nccl(sizes[i]);
        must_ok(rdt_group_destroy(conn[OWNER], "g", &err));
    } else if (status == RDT_UNSUPPORTED || status == RDT_TRANSPORT) {
        (void)printf("GPU to GPU between daemons, nccl: skipped: %s\n", why.msg);
    } else {
        fail("the group: %s: %s", rdt_status_name(status), why.msg);
    }
    end(status == RDT_OK ? NULL : refused);
    return 0;
}
#endif
