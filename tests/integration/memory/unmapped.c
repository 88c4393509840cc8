/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon never maps memory that a client imported: the lock of the file's mappings is the client's to hold, and who maps
 * waits for it with the lock of the daemon's address space. What the daemon maps of its own memory is limited, and mapped
 * before a client has it. */
#include <fcntl.h>
#include <sys/mman.h>

#include "tests/integration/limits/limits.h"
#include "tests/support/cluster.h"

TestSuite(unmapped, .timeout = 120);

#define NAME "memfd:of-a-client"

struct import {
    int fd;
    uint8_t *addr;
    size_t bytes;
};

static void import(struct import *import, rdt *client, size_t bytes)
{
    import->bytes = bytes;
    import->fd = memfd_create("of-a-client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    must(import->fd >= 0 && ftruncate(import->fd, (off_t)bytes) == 0);
    must(fcntl(import->fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    import->addr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, import->fd, 0);
    must(import->addr != MAP_FAILED);
    must_ok(rdt_import(client, import->fd, import->addr, bytes, &err));
}

static void drop(struct import *import, rdt *client)
{
    must_ok(rdt_dealloc(client, import->addr, &err));
    must(munmap(import->addr, import->bytes) == 0 && close(import->fd) == 0);
}

static enum rdt_status fetch_into(rdt *client, const struct rdt_ref *ref, const struct rdt_tensor *tensors, size_t n,
                                  struct rdt_error *err)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    rdt_object *object;
    enum rdt_status status;

    options.targets = &tensors;
    options.target_counts = &n;
    options.timeout_ns = LONG;
    status = rdt_fetch(client, ref, 1, &options, &object, err);
    if (status == RDT_OK)
        rdt_release(object);
    return status;
}

/* A mapping that the daemon made for a copy would outlast it. */
static bool is_mapped_by(pid_t pid)
{
    char path[64], *text;
    bool found;

    (void)snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    text = read_file(path, NULL);
    found = strstr(text, NAME) != NULL;
    free(text);
    return found;
}

/* ---- on one node ---- */

/* A matrix of 16-bit numbers in `from`, as it is seen by shape and strides: compares what was fetched. */
static bool is_view_of(const uint16_t *packed, const uint16_t *from, const int64_t *shape, const int64_t *strides)
{
    for (int64_t r = 0; r < shape[0]; r++)
        for (int64_t c = 0; c < shape[1]; c++)
            if (packed[r * shape[1] + c] != from[r * strides[0] + c * strides[1]])
                return false;
    return true;
}

Test(unmapped, copies_of_any_layout_from_and_to_imports)
{
    static const struct {
        int64_t shape[2], strides[2], first;
    } views[] = {
        {{512, 1024}, {1024, 1}, 0},                 /* contiguous */
        {{1, 100}, {1024, 1}, 7},                    /* and little */
        {{512, 1000}, {1024, 1}, 5},                 /* rows */
        {{512, 300}, {1024, 3}, 1},                  /* every third column */
        {{1024, 512}, {1, 1024}, 0},                 /* transposed */
        {{64, 500}, {-1024, -2}, 511 * 1024 + 1000}, /* backwards */
        {{300, 200}, {0, 1}, 3},                     /* one row again and again */
        {{8, 9}, {60000, 7000}, 0},                  /* far apart */
    };
    struct rdt_put_options snapshot = RDT_INIT(snapshot);
    struct import source, into;

    begin(NULL);
    import(&source, conn, 4 * MIB);
    import(&into, other, 4 * MIB);
    fill_pattern(source.addr, source.bytes, 5);
    snapshot.flags = RDT_PUT_SNAPSHOT;
    for (unsigned i = 0; i < sizeof views / sizeof views[0]; i++) {
        const uint16_t *first = (const uint16_t *)(const void *)source.addr + views[i].first;
        struct rdt_tensor tensor = {.dtype = RDT_U16, .ndim = 2, .shape = views[i].shape, .strides = views[i].strides},
                          target = {.dtype = RDT_U16, .ndim = 2, .shape = views[i].shape, .data = into.addr + 100};
        struct rdt_ref live, still;
        rdt_object *object;

        tensor.data = (void *)(uintptr_t)first;
        live = put_one(conn, &tensor, NULL);
        must_ok(rdt_put(conn, &tensor, 1, &snapshot, &still, &err));
        object = fetch_one(other, &live, RDT_FETCH_COPY);
        cr_assert(is_view_of(tensor_of(object, 0).data, first, views[i].shape, views[i].strides), "copy %u", i);
        rdt_release(object);
        object = fetch_one(other, &still, RDT_FETCH_AUTO);
        cr_assert(is_view_of(tensor_of(object, 0).data, first, views[i].shape, views[i].strides), "snapshot %u", i);
        rdt_release(object);
        must_ok(fetch_into(other, &live, &target, 1, &err));
        cr_assert(is_view_of(target.data, first, views[i].shape, views[i].strides), "import to import %u", i);
        must_ok(fetch_into(other, &still, &target, 1, &err));
        cr_assert(is_view_of(target.data, first, views[i].shape, views[i].strides), "snapshot to import %u", i);
        cr_assert(!is_mapped_by(node.pid), "%u", i);
        must_ok(rdt_free(conn, &live, false, &err));
        must_ok(rdt_free(conn, &still, false, &err));
    }
    drop(&source, conn);
    drop(&into, other);
    end(NULL);
}

Test(unmapped, import_of_16_tebibytes_takes_no_address_space)
{
    const size_t tib = (size_t)1 << 40;
    struct import large;
    struct rdt_ref ref;

#ifdef __SANITIZE_THREAD__
    cr_skip_test("ThreadSanitizer leaves a process no 16 TiB of addresses");
#endif
    begin((const char *[]){"--client-max-mappings=1", "--client-max-mapped-bytes=8MiB", NULL});
    ref = put_pattern(other, NULL, MIB, 3);
    import(&large, conn, 16 * tib);
    for (unsigned i = 0; i < 3; i++) { /* the last one lies at the end */
        size_t at = i < 2 ? (i + 1) * 5 * tib + 4096 : 16 * tib - MIB;
        const struct rdt_tensor target = VECTOR(RDT_U8, MIB, large.addr + at);
        must_ok(fetch_into(conn, &ref, &target, 1, &err));
        cr_assert(holds_pattern(large.addr + at, MIB, 3));
    }
    cr_assert_eq(used(session(conn), "mappings") + used(session(conn), "mapped_bytes"), 0);
    drop(&large, conn);
    end(NULL);
}

/* ---- between nodes ---- */

Test(unmapped, fetches_between_nodes_from_and_to_imports)
{
    static const size_t sizes[] = {1000, 100 * 1000, 9 * MIB + 1};
    static const int64_t shape[] = {512, 1000}, strides[] = {2048, 1};
    struct rdt_tensor rows = {.dtype = RDT_U8, .ndim = 2, .shape = shape, .strides = strides};
    struct import source, into;
    struct rdt_tensor targets[2];
    struct cluster cluster;
    rdt *owner, *reader;
    struct rdt_ref ref;

    cluster_start(&cluster, 2, &(struct cluster_options){.no_ucx = true, .stream = true});
    owner = node_client(&cluster.node[0], "owner");
    reader = node_client(&cluster.node[1], "reader");
    import(&source, owner, 16 * MIB);
    import(&into, reader, 16 * MIB);
    fill_pattern(source.addr, source.bytes, 7);
    for (unsigned i = 0; i < 3; i++) {
        ref = put_one(owner, &VECTOR(RDT_U8, sizes[i], source.addr), NULL);
        fetch_pattern(reader, &ref, sizes[i], 7, "stream");
        targets[0] = VECTOR(RDT_U8, sizes[i], into.addr + 4097);
        must_ok(fetch_into(reader, &ref, targets, 1, &err));
        cr_assert(holds_pattern(targets[0].data, sizes[i], 7));
        must_ok(rdt_free(owner, &ref, false, &err));
        ref = put_pattern(owner, NULL, sizes[i], 8); /* the smaller ones come with the answer */
        must_ok(fetch_into(reader, &ref, targets, 1, &err));
        cr_assert(holds_pattern(targets[0].data, sizes[i], 8));
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    rows.data = source.addr;
    ref = put_one(owner, &rows, NULL);
    targets[0] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 2, .shape = shape, .data = into.addr};
    must_ok(fetch_into(reader, &ref, targets, 1, &err));
    for (int64_t r = 0; r < shape[0]; r++)
        cr_assert(memcmp(into.addr + r * shape[1], source.addr + r * strides[0], (size_t)shape[1]) == 0, "row %d", (int)r);
    cr_assert(!is_mapped_by(cluster.node[0].pid) && !is_mapped_by(cluster.node[1].pid));
    drop(&source, owner);
    drop(&into, reader);
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&cluster, NULL);
}

/* ---- the daemon's own memory ---- */

static unsigned n_mapped_by(pid_t pid)
{
    char path[64], *text;
    unsigned n = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    text = read_file(path, NULL);
    for (const char *at = text; (at = strstr(at, "memfd:rdtd")); at++)
        n++;
    free(text);
    return n;
}

/* Who maps a file waits while another process removes its pages, and whoever has a writable descriptor can do that for ever. */
Test(unmapped, allocated_memory_is_mapped_before_its_client_has_it)
{
    static const size_t sizes[] = {1000, 9 * MIB};

    begin(NULL);
    for (unsigned i = 0; i < 2; i++) {
        unsigned before = n_mapped_by(node.pid);
        void *memory = NULL;
        must_ok(rdt_alloc(conn, sizes[i], &memory, &err));
        cr_assert_eq(n_mapped_by(node.pid), before + 1, "%zu bytes", sizes[i]);
        must_ok(rdt_dealloc(conn, memory, &err));
    }
    end(NULL);
}

/* The same for a page fault, which the loop therefore does not risk for a single byte. The first copy starts a thread of the
 * owner, which lives for two seconds, and is held for the second one. If it has ended before, another one copies. */
Test(unmapped, loop_does_not_touch_memory_that_a_client_can_write)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    bool waits = false;
    struct rdt_ref ref;
    uint8_t *memory;

    begin(NULL);
    memory = alloc_memory(conn, 1000);
    fill_pattern(memory, 1000, 3);
    ref = put_one(conn, &VECTOR(RDT_U8, 1000, memory), NULL);
    options.mode = RDT_FETCH_COPY;
    for (unsigned i = 0; i < 20 && !waits; i++) {
        rdt_request *request;
        rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_COPY);
        cr_assert(holds_pattern(tensor_of(object, 0).data, 1000, 3));
        rdt_release(object);
        if (!node_hold_workers(&node))
            cr_skip_test("this process may not trace");
        must_ok(rdt_fetch_start(other, &ref, 1, &options, &request, &err));
        must_ok(rdt_ping(other, LONG, &err)); /* the daemon has read the fetch */
        waits = rdt_request_status(request, NULL) == RDT_AGAIN;
        node_release_workers(&node);
        rdt_request_destroy(request);
    }
    cr_assert(waits);
    end(NULL);
}

/* The same for the bytes of a small live object that another node asks for: they travel in the answer. */
Test(unmapped, loop_does_not_read_them_for_another_node)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    struct cluster cluster;
    rdt *owner, *reader;
    bool waits = false;
    struct rdt_ref ref;
    uint8_t *memory, *into;

    cluster_start(&cluster, 2, &(struct cluster_options){.no_ucx = true, .stream = true});
    owner = node_client(&cluster.node[0], "owner");
    reader = node_client(&cluster.node[1], "reader");
    memory = alloc_memory(owner, 1000);
    into = alloc_memory(reader, 1000);
    fill_pattern(memory, 1000, 3);
    ref = put_one(owner, &VECTOR(RDT_U8, 1000, memory), NULL);
    for (unsigned i = 0; i < 20 && !waits; i++) {
        rdt_request *request;
        memset(into, 0, 1000);
        must_ok(fetch_into(reader, &ref, &VECTOR(RDT_U8, 1000, into), 1, &err));
        cr_assert(holds_pattern(into, 1000, 3));
        fetch_pattern(reader, &ref, 1000, 3, "inline");
        if (!node_hold_workers(&cluster.node[0]))
            cr_skip_test("this process may not trace");
        must_ok(rdt_fetch_start(reader, &ref, 1, &options, &request, &err));
        wait_until(20 * SEC, ((void)rdt_dispatch(reader, NULL, NULL), waits = node_now(&cluster.node[0]).transfers_active > 0,
                              waits || rdt_request_status(request, NULL) != RDT_AGAIN));
        rdt_request_destroy(request); /* the owner hears that the reader has given up, while its thread is held */
        must_ok(rdt_ping(reader, LONG, &err));
        must_ok(rdt_ping(owner, LONG, &err));
        node_release_workers(&cluster.node[0]);
        wait_until(20 * SEC, node_now(&cluster.node[0]).transfers_active == 0);
    }
    cr_assert(waits);
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&cluster, NULL);
}

Test(unmapped, refused_mapping_names_each_limit)
{
    static const struct {
        const char *flag, *key;
    } limits[] = {{"--set=limits.client_max_mapped_bytes=8MiB", "client_max_mapped_bytes"},
                  {"--set=limits.owner_max_mapped_bytes=8MiB", "owner_max_mapped_bytes"},
                  {"--set=limits.client_max_mappings=1", "client_max_mappings"},
                  {"--set=limits.owner_max_mappings=1", "owner_max_mappings"}};
    struct import source;
    struct rdt_ref ref;

    for (unsigned i = 0; i < 4; i++) {
        rdt_object *object = NULL;
        void *memory;
        begin((const char *[]){limits[i].flag, NULL});
        import(&source, conn, MIB);
        ref = put_one(conn, &VECTOR(RDT_U8, MIB, source.addr), "source");
        if (i >= 2) /* the one mapping that there may be */
            object = fetch_one(conn, &ref, RDT_FETCH_COPY);
        must_refuse(RDT_LIMIT, limits[i].key, rdt_alloc(conn, 9 * MIB, &memory, &err));
        must_ok(rdt_ping(other, LONG, &err));
        rdt_release(object);
        drop(&source, conn);
        end(NULL);
    }
}
