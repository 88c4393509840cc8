/* SPDX-License-Identifier: Apache-2.0 */
/* A client of rdtd for the bench's programs. Every failure ends the program. */
#ifndef TESTS_BENCH_BENCH_CLIENT_H
#define TESTS_BENCH_BENCH_CLIENT_H

#include "bench.h"
#include "client/rdt.h"

#define BENCH_TIMEOUT_NS INT64_C(30000000000)

#define must_ok(call)                            \
    do {                                         \
        struct rdt_error err = {0};              \
        if ((call) != RDT_OK)                    \
            bench_die("%s: %s", #call, err.msg); \
    } while (0)

static inline rdt *bench_connect(const char *socket, const char *name)
{
    rdt *conn;
    struct rdt_connect_options options = {.struct_size = sizeof options, .socket = socket, .name = name};

    must_ok(rdt_connect(&options, &conn, &err));
    return conn;
}

/* Bytes of daemon memory, touched: none of its pages is new to the daemon or to us. *bytes must outlive the tensor. */
static inline void bench_tensor(rdt *conn, const int64_t *bytes, int fill, struct rdt_tensor *tensor_p)
{
    *tensor_p = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = bytes};
    must_ok(rdt_alloc(conn, (size_t)*bytes, &tensor_p->data, &err));
    memset(tensor_p->data, fill, (size_t)*bytes);
}

static inline void bench_put(rdt *conn, const struct rdt_tensor *tensors, size_t count, struct rdt_ref *ref_p)
{
    must_ok(rdt_put(conn, tensors, count, NULL, ref_p, &err));
}

/* Every fetch must have gone the way that is being measured. */
static inline void bench_check_path(const rdt_object *object, const char *path)
{
    struct rdt_object_info info;

    rdt_object_info(object, &info);
    if (strcmp(info.path, path) != 0)
        bench_die("a fetch went by %s, not %s", info.path, path);
}

/* One fetch, into `targets` unless n_targets is 0. */
static inline rdt_object *bench_fetch(rdt *conn, const struct rdt_ref *ref, enum rdt_fetch_mode mode,
                                      const struct rdt_tensor *targets, size_t n_targets, const char *path)
{
    rdt_object *object;
    struct rdt_fetch_options options = {.struct_size = sizeof options,
                                        .mode = mode,
                                        .timeout_ns = BENCH_TIMEOUT_NS,
                                        .targets = n_targets ? &targets : NULL,
                                        .target_counts = n_targets ? &n_targets : NULL};

    must_ok(rdt_fetch(conn, ref, 1, &options, &object, &err));
    bench_check_path(object, path);
    return object;
}

#endif
