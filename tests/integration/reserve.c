/* Memory for fetches is there before anything moves, all of it or none, and all of it counts. Two nodes over ucx. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cluster.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

TestSuite(reserve, .timeout = 240);

static struct cluster c;
static rdt *owner, *reader;

/* The reader's node has so little memory. */
static void begin(const char *limit)
{
    const char *flags[] = {limit, NULL};

    cluster_start(&c, 2, &(struct cluster_options){.flags_of = {NULL, flags}});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
}

static void end(void)
{
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&c, NULL);
}

static struct node_status status_of_reader(void)
{
    struct node_status status;

    node_status(&c.node[1], &status);
    return status;
}

/* ---- targets of many small tensors ---- */

#define SMALL 4096
#define N_SMALL 6000 /* 24 MiB in runs that no transport can receive in place */

static void cut(struct rdt_tensor *tensors, uint8_t *memory, size_t n)
{
    static const int64_t shape = SMALL;

    for (size_t i = 0; i < n; i++)
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = &shape, .data = memory + i * SMALL};
}

static enum rdt_status fetch_small(const struct rdt_ref *ref, size_t n, uint8_t *into, struct rdt_error *err)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_tensor *tensors = calloc(n, sizeof *tensors);
    const struct rdt_tensor *targets[] = {tensors};
    rdt_object *object;
    enum rdt_status status;

    must(tensors != NULL);
    cut(tensors, into, n);
    options.targets = targets;
    options.target_counts = &n;
    status = rdt_fetch(reader, ref, 1, &options, &object, err);
    if (status == RDT_OK)
        rdt_release(object);
    free(tensors);
    return status;
}

static struct rdt_ref put_small(size_t n, uint32_t seed)
{
    struct rdt_tensor *tensors = calloc(n, sizeof *tensors);
    uint8_t *memory = alloc_memory(owner, n * SMALL);
    struct rdt_ref ref;

    must(tensors != NULL);
    fill_pattern(memory, n * SMALL, seed);
    cut(tensors, memory, n);
    must_ok(rdt_put(owner, tensors, n, NULL, &ref, &err));
    must_ok(rdt_dealloc(owner, memory, &err));
    free(tensors);
    return ref;
}

Test(reserve, staging_counts_and_is_refused_before_anything_moves)
{
    struct rdt_ref ref, little;
    uint8_t *into;

    begin("--memory-limit=40MiB");
    ref = put_small(N_SMALL, 3);
    little = put_small(200, 4);
    into = alloc_memory(reader, N_SMALL * SMALL);
    must_refuse(RDT_NO_MEMORY, "too small to be received one by one", fetch_small(&ref, N_SMALL, into, &err));
    cr_assert(is_filled_with(into, N_SMALL * SMALL, 0), "nothing was written");
    must_ok(fetch_small(&little, 200, into, &err));
    cr_assert(holds_pattern(into, 200 * SMALL, 4));
    wait_until(20 * SEC, status_of_reader().memory_bytes <= N_SMALL * SMALL + 4096);
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_free(owner, &little, false, &err));
    must_ok(rdt_dealloc(reader, into, &err));
    end();
}

Test(reserve, staged_bytes_arrive)
{
    struct rdt_ref ref;
    uint8_t *into;

    begin("--memory-limit=200MiB");
    ref = put_small(N_SMALL, 3);
    into = alloc_memory(reader, N_SMALL * SMALL);
    for (unsigned i = 0; i < 4; i++) {
        memset(into, 0, N_SMALL * SMALL);
        must_ok(fetch_small(&ref, N_SMALL, into, &err));
        cr_assert(holds_pattern(into, N_SMALL * SMALL, 3));
    }
    for (size_t n = 1; n < 300; n = 2 * n + 1) { /* also what is staged on the heap, and started early */
        struct rdt_ref few = put_small(n, 9);
        must_ok(fetch_small(&few, n, into, &err));
        cr_assert(holds_pattern(into, n * SMALL, 9));
        must_ok(rdt_free(owner, &few, false, &err));
    }
    wait_until(20 * SEC, status_of_reader().memory_bytes <= N_SMALL * SMALL + 4096);
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_dealloc(reader, into, &err));
    end();
}
