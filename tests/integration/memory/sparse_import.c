/* SPDX-License-Identifier: Apache-2.0 */
/* Imported memory without pages. Whoever touches a page first pays for it. Where the daemon would be first, it charges the
 * pages to the client before it touches any, and refuses what exceeds a limit. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/integration/limits/limits.h"
#include "tests/support/cluster.h"

TestSuite(sparse_import, .timeout = 240);

struct sparse {
    int fd;
    uint8_t *addr;
    size_t bytes;
};

static uint64_t pages_bytes(const struct sparse *sparse)
{
    struct stat st;

    must(fstat(sparse->fd, &st) == 0);
    return (uint64_t)st.st_blocks * 512;
}

static void make_sparse(struct sparse *sparse, rdt *client, size_t bytes)
{
    sparse->bytes = bytes;
    sparse->fd = memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    must(sparse->fd >= 0 && ftruncate(sparse->fd, (off_t)bytes) == 0);
    must(fcntl(sparse->fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    sparse->addr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, sparse->fd, 0);
    must(sparse->addr != MAP_FAILED);
    must_ok(rdt_import(client, sparse->fd, sparse->addr, bytes, &err));
    must(pages_bytes(sparse) == 0);
}

static void drop_sparse(struct sparse *sparse, rdt *client)
{
    if (client)
        must_ok(rdt_dealloc(client, sparse->addr, &err));
    must(munmap(sparse->addr, sparse->bytes) == 0);
    must(close(sparse->fd) == 0);
}

static enum rdt_status fetch_into(rdt *client, const struct rdt_ref *ref, const struct rdt_tensor *targets, size_t n,
                                  struct rdt_error *err)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    rdt_object *object = NULL;
    enum rdt_status status;

    options.targets = &targets;
    options.target_counts = &n;
    options.timeout_ns = LONG;
    status = rdt_fetch(client, ref, 1, &options, &object, err);
    if (status == RDT_OK)
        rdt_release(object);
    return status;
}

/* ---- on one node ---- */

static uint64_t node_bytes(void)
{
    struct node_status status;

    node_status(&node, &status);
    return status.memory_bytes;
}

Test(sparse_import, target_of_a_copy_is_charged_for_the_pages_that_it_lacks)
{
    static const size_t sizes[] = {200 * 1024, 8 * MIB}; /* counted on the loop, and on the pool */
    struct sparse into;
    struct rdt_ref refs[2];

    begin(NULL);
    for (unsigned i = 0; i < 2; i++)
        refs[i] = put_pattern(other, NULL, sizes[i], 3);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t before = node_bytes();
        make_sparse(&into, conn, 64 * MIB);
        memset(into.addr, 1, 4096); /* its own */
        must_ok(fetch_into(conn, &refs[i], &VECTOR(RDT_U8, sizes[i], into.addr), 1, &err));
        cr_assert(holds_pattern(into.addr, sizes[i], 3));
        cr_assert_eq(used(session(conn), "bytes"), sizes[i] - 4096, "%llu", (unsigned long long)used(session(conn), "bytes"));
        cr_assert_eq(node_bytes() - before, sizes[i] - 4096);
        must_ok(fetch_into(conn, &refs[i], &VECTOR(RDT_U8, sizes[i], into.addr), 1, &err)); /* all are there now */
        cr_assert_eq(used(session(conn), "bytes"), sizes[i] - 4096);
        drop_sparse(&into, conn);
        wait_until(LONG, node_bytes() == before);
        cr_assert_eq(used(session(conn), "bytes"), 0);
    }
    for (unsigned i = 0; i < 2; i++) /* not before the last count: a worker gives the memory back after the answer */
        must_ok(rdt_free(other, &refs[i], false, &err));
    end(NULL);
}

Test(sparse_import, memory_with_all_its_pages_is_charged_nothing)
{
    struct sparse own;
    struct rdt_ref ref, mine;

    begin((const char *[]){"--client-max-bytes=6MiB", NULL});
    make_sparse(&own, conn, 12 * MIB);
    fill_pattern(own.addr, 12 * MIB, 5);
    ref = put_pattern(other, NULL, 5 * MIB, 3);
    mine = put_one(conn, &VECTOR(RDT_U8, 6 * MIB, own.addr + 6 * MIB), "mine");
    must_ok(fetch_into(conn, &ref, &VECTOR(RDT_U8, 5 * MIB, own.addr), 1, &err));
    must_ok(fetch(conn, &mine, RDT_FETCH_COPY, &err));
    cr_assert_eq(used(session(conn), "bytes"), 6 * MIB); /* the copy */
    rdt_release(no_object);
    drop_sparse(&own, conn);
    end(NULL);
}

static void refuses_target(const char *flag, enum rdt_status status, const char *text, size_t bytes)
{
    struct sparse into;
    struct rdt_ref ref;

    begin((const char *[]){flag, NULL});
    ref = put_pattern(other, NULL, bytes, 3);
    make_sparse(&into, conn, 64 * MIB);
    must_refuse(
        status, text,
        fetch_into(conn, &ref, &VECTOR(RDT_U8, bytes, into.addr + 2048), 1, &err)); /* it begins in mid-page: one more */
    cr_assert_eq(pages_bytes(&into), 0);
    cr_assert_eq(used(session(conn), "bytes"), 0);
    drop_sparse(&into, conn);
    end(NULL);
}

Test(sparse_import, target_beyond_a_clients_limit_is_refused_with_no_page_made)
{
    refuses_target("--client-max-bytes=5MiB", RDT_LIMIT, "client_max_bytes", 5 * MIB);
}

Test(sparse_import, little_target_beyond_a_limit_too)
{
    refuses_target("--client-max-bytes=100KiB", RDT_LIMIT, "imported without all of its pages", 100 * 1024);
}

Test(sparse_import, target_beyond_memory_limit_is_refused_with_no_page_made)
{
    refuses_target("--memory-limit=16MiB", RDT_NO_MEMORY, "memory_limit", 9 * MIB);
}

Test(sparse_import, source_of_a_tebibyte_is_read_where_it_is_wanted_and_refused_as_a_whole)
{
    struct sparse source;
    struct rdt_ref ref;
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_slice slice = {.ndim = 1, .start = (const int64_t[]){INT64_C(1) << 39}, .count = (const int64_t[]){4 * MIB}};
    const struct rdt_slice *slices = &slice;
    size_t count = 1;
    rdt_object *object;

    begin((const char *[]){"--memory-limit=32MiB", NULL});
    make_sparse(&source, conn, (size_t)1 << 40);
    memset(source.addr + slice.start[0] + MIB, 7, 1 * MIB);
    ref = put_one(conn, &VECTOR(RDT_U8, (size_t)1 << 40, source.addr), "tebibyte");
    must_refuse(RDT_LIMIT, "memory_limit", fetch(conn, &ref, RDT_FETCH_COPY, &err));
    cr_assert_eq(pages_bytes(&source), MIB);
    options.mode = RDT_FETCH_COPY;
    options.timeout_ns = LONG;
    options.slices = &slices;
    options.slice_counts = &count;
    must_ok(rdt_fetch(conn, &ref, 1, &options, &object, &err));
    must(is_filled_with(tensor_of(object, 0).data, MIB, 0));
    must(is_filled_with((uint8_t *)tensor_of(object, 0).data + MIB, MIB, 7));
    cr_assert_eq(used(session(conn), "bytes"), 4 * MIB, "the copy alone: nothing was created in the source");
    cr_assert_eq(pages_bytes(&source), MIB);
    rdt_release(object);
    drop_sparse(&source, conn);
    end(NULL);
}

Test(sparse_import, snapshot_of_memory_without_pages_makes_none_there)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct sparse source;
    struct rdt_ref ref;

    begin((const char *[]){"--client-max-bytes=12MiB", NULL});
    make_sparse(&source, conn, 64 * MIB);
    options.flags = RDT_PUT_SNAPSHOT;
    must_ok(rdt_put(conn, &VECTOR(RDT_U8, 11 * MIB, source.addr), 1, &options, &ref, &err));
    cr_assert_eq(pages_bytes(&source), 0);
    cr_assert_eq(used(session(conn), "bytes"), 11 * MIB);
    drop_sparse(&source, conn);
    end(NULL);
}

/* Every second column. */
Test(sparse_import, source_that_is_not_contiguous_is_read_with_no_page_made)
{
    static const int64_t shape[] = {2048, 1024}, strides[] = {4096, 2};
    struct rdt_tensor columns = {.dtype = RDT_U8, .ndim = 2, .shape = shape, .strides = strides};
    struct sparse source;
    struct rdt_ref ref;

    begin((const char *[]){"--client-max-bytes=6MiB", NULL});
    make_sparse(&source, conn, 64 * MIB);
    columns.data = source.addr;
    ref = put_one(conn, &columns, "columns");
    must_ok(fetch(conn, &ref, RDT_FETCH_COPY, &err));
    cr_assert_eq(pages_bytes(&source), 0);
    drop_sparse(&source, conn);
    end(NULL);
}

Test(sparse_import, pages_that_were_made_count_until_their_file_is_gone)
{
    struct sparse into;
    struct rdt_ref ref;
    void *memory = NULL;

    begin((const char *[]){"--memory-limit=24MiB", "--owner-max-bytes=18MiB", NULL});
    ref = put_pattern(other, NULL, 8 * MIB, 3);
    make_sparse(&into, conn, 64 * MIB);
    must_ok(fetch_into(conn, &ref, &VECTOR(RDT_U8, 8 * MIB, into.addr), 1, &err));
    must_ok(rdt_dealloc(conn, into.addr, &err)); /* and keeps it, with all its pages */
    must_ok(rdt_import(conn, into.fd, into.addr, into.bytes, &err));
    must_ok(
        fetch_into(conn, &ref, &VECTOR(RDT_U8, 8 * MIB, into.addr + 7 * MIB), 1, &err)); /* one of these pages exists already */
    must_ok(rdt_dealloc(conn, into.addr, &err));
    wait_until(LONG, used(0, "bytes") == 8 * MIB + 15 * MIB);
    must_refuse(RDT_LIMIT, "owner_max_bytes", rdt_alloc(conn, MIB, &memory, &err));
    drop_sparse(&into, NULL);
    wait_until(LONG, used(0, "bytes") == 8 * MIB);
    must_ok(rdt_alloc(conn, MIB, &memory, &err));
    end(NULL);
}

Test(sparse_import, pages_that_their_client_takes_away_are_given_back)
{
    struct sparse into;
    struct rdt_ref ref;

    begin((const char *[]){"--client-max-bytes=10MiB", NULL});
    ref = put_pattern(other, NULL, 8 * MIB, 3);
    make_sparse(&into, conn, 64 * MIB);
    for (unsigned i = 0; i < 4; i++) { /* else the second would be one too many */
        must_ok(fetch_into(conn, &ref, &VECTOR(RDT_U8, 8 * MIB, into.addr + 8 * i * MIB), 1, &err));
        cr_assert_eq(used(session(conn), "bytes"), 8 * MIB);
        must(fallocate(into.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)into.bytes) == 0);
    }
    drop_sparse(&into, conn);
    end(NULL);
}

/* ---- between nodes ---- */

static struct cluster c;
static rdt *owner, *reader;

static void begin_two(const char *flag)
{
    const char *flags[] = {flag, NULL};

    cluster_start(&c, 2, &(struct cluster_options){.flags = flags, .no_ucx = true, .stream = true});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
}

static void end_two(void)
{
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&c, NULL);
}

Test(sparse_import, target_of_a_fetch_from_another_node_is_limited)
{
    struct sparse into;
    struct rdt_ref ref;

    begin_two("--client-max-bytes=24MiB"); /* as much again is for bytes on their way */
    ref = put_pattern(owner, NULL, 12 * MIB, 3);
    make_sparse(&into, reader, 64 * MIB);
    must_ok(fetch_into(reader, &ref, &VECTOR(RDT_U8, 12 * MIB, into.addr), 1, &err));
    cr_assert(holds_pattern(into.addr, 12 * MIB, 3));
    must_refuse(RDT_LIMIT, "client_max_bytes", fetch_into(reader, &ref, &VECTOR(RDT_U8, 12 * MIB, into.addr + MIB), 1, &err));
    cr_assert_eq(pages_bytes(&into), 12 * MIB);
    cr_assert(holds_pattern(into.addr, 12 * MIB, 3));
    drop_sparse(&into, reader);
    end_two();
}

/* Each byte in a page of its own. */
static void scatter(struct rdt_tensor *tensors, uint8_t *memory, size_t n)
{
    static const int64_t one = 1;

    for (size_t i = 0; i < n; i++)
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = &one, .data = memory + i * 4096};
}

Test(sparse_import, few_bytes_that_come_with_the_answer_make_no_pages_beyond_a_limit)
{
    struct rdt_tensor tensors[512];
    static uint8_t bytes[512 * 4096];
    struct sparse into;
    struct rdt_ref ref;

    begin_two("--client-max-bytes=1536KiB");
    scatter(tensors, bytes, 512);
    must_ok(rdt_put(owner, tensors, 512, NULL, &ref, &err));
    make_sparse(&into, reader, 64 * MIB);
    scatter(tensors, into.addr, 512);
    must_refuse(RDT_LIMIT, "client_max_bytes", fetch_into(reader, &ref, tensors, 512, &err));
    cr_assert_eq(pages_bytes(&into), 0);
    memset(into.addr + MIB, 0, MIB / 2);
    must_ok(fetch_into(reader, &ref, tensors, 512, &err));
    cr_assert_eq(pages_bytes(&into), 2 * MIB);
    drop_sparse(&into, reader);
    end_two();
}

Test(sparse_import, source_that_another_node_wants_is_read_with_no_page_made)
{
    struct sparse source;
    struct rdt_ref ref;
    rdt_object *object;

    begin_two("--memory-limit=24MiB");
    make_sparse(&source, owner, 64 * MIB);
    ref = put_one(owner, &VECTOR(RDT_U8, 20 * MIB, source.addr), "holes");
    object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    must(is_filled_with(tensor_of(object, 0).data, 20 * MIB, 0));
    rdt_release(object);
    cr_assert_eq(pages_bytes(&source), 0);
    drop_sparse(&source, owner);
    end_two();
}
