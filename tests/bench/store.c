/* SPDX-License-Identifier: Apache-2.0 */
/* A store: objects of ordinary memory under ids, as an engine's cache puts and replaces them.
 *
 *     store ROUNDS SOCKET
 */
#include "bench_client.h"

#define OBJECTS 64u

static const int64_t object_bytes = (int64_t)4 << 20;

struct store {
    rdt *conn;
    uint8_t *data;
    struct rdt_ref refs[OBJECTS];
};

static void put(struct store *store, unsigned i, uint32_t flags)
{
    const struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 1, .shape = &object_bytes, .data = store->data};
    struct rdt_put_options options = {.struct_size = sizeof options, .id = &i, .id_bytes = sizeof i, .flags = flags};

    must_ok(rdt_put(store->conn, &tensor, 1, &options, &store->refs[i], &err));
}

static void free_all(struct store *store)
{
    for (unsigned i = 0; i < OBJECTS; i++)
        must_ok(rdt_free(store->conn, &store->refs[i], false, &err));
}

/* Puts and frees all of them. ms. */
static double put_and_free(struct store *store, uint32_t flags)
{
    int64_t since = bench_now_ns();

    for (unsigned i = 0; i < OBJECTS; i++)
        put(store, i, flags);
    free_all(store);
    return (double)(bench_now_ns() - since) / 1e6;
}

static double replace_all(struct store *store, bool in_one_call)
{
    int64_t since = bench_now_ns();

    for (unsigned i = 0; i < OBJECTS; i++) {
        if (!in_one_call)
            must_ok(rdt_free(store->conn, &store->refs[i], false, &err));
        put(store, i, RDT_PUT_DETACHED | (in_one_call ? RDT_PUT_REPLACE : 0));
    }
    return (double)(bench_now_ns() - since) / 1e6;
}

static void measure(struct store *store, const char *name, uint32_t flags, unsigned rounds)
{
    (void)put_and_free(store, flags);
    (void)put_and_free(store, flags | RDT_PUT_DETACHED);
    for (unsigned i = 0; i < rounds; i++) {
        double ours = put_and_free(store, flags | RDT_PUT_DETACHED);

        bench_row(name, "", "ms", "lower", "1.2", ours, put_and_free(store, flags));
    }
}

int main(int argc, char **argv)
{
    struct store store = {0};

    if (argc != 3)
        bench_die("usage: store ROUNDS SOCKET");
    unsigned rounds = (unsigned)bench_number(argv[1]);
    store.conn = bench_connect(argv[2], "bench");
    store.data = malloc((size_t)object_bytes);
    if (!store.data)
        bench_die("no memory");
    memset(store.data, 1, (size_t)object_bytes);
    measure(&store, "store_64x4M_detached", 0, rounds);
    bench_note("store_64x4M_detached", "", "64 puts of 4 MiB, and their frees; reference: objects that end with the session");
    measure(&store, "store_64x4M_detached_snapshots", RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED, rounds);
    for (unsigned i = 0; i < OBJECTS; i++)
        put(&store, i, RDT_PUT_DETACHED);
    for (unsigned i = 0; i < rounds; i++) {
        double ours = replace_all(&store, true);

        bench_row("store_64x4M_replaced", "", "ms", "lower", "1.2", ours, replace_all(&store, false));
    }
    bench_note("store_64x4M_replaced", "", "each id in one call; reference: a free and a put of each");
    free_all(&store);
    free(store.data);
    rdt_close(store.conn);
    return 0;
}
