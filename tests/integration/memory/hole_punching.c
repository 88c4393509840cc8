/* SPDX-License-Identifier: Apache-2.0 */
/* A client removes pages of its memory while others read it: a hugetlb memfd with a hole and no page to fill it. The
 * readers get zeros, as of any hole, and nobody else is affected. The tests reserve huge pages of the machine for a moment,
 * and are skipped where that is not allowed. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/cluster.h"

#define MIB ((size_t)1 << 20)
#define HUGE_BYTES (2 * MIB)
#define POOL "/proc/sys/vm/nr_hugepages"

TestSuite(hole_punching, .timeout = 240);

/* ---- the machine's pool ---- */

static long pool_before = -1;

static long pool_read(const char *path)
{
    FILE *file = fopen(path, "re");
    long n = -1;

    if (file && fscanf(file, "%ld", &n) != 1)
        n = -1;
    if (file)
        (void)fclose(file);
    return n;
}

static void pool_set(long n)
{
    FILE *file = fopen(POOL, "we");

    if (!file)
        return;
    (void)fprintf(file, "%ld\n", n);
    (void)fclose(file);
}

static void pool_restore(void)
{
    if (pool_before >= 0)
        pool_set(pool_before);
}

/* Skips the test where there are no pages to be had. */
static void borrow_pages(long n)
{
    long before = pool_read(POOL);

    if (before != 0 || pool_read("/proc/sys/vm/nr_overcommit_hugepages") != 0 || geteuid() != 0)
        cr_skip("the machine's huge pages are in use, or not ours to set");
    pool_set(n);
    pool_before = before;
    (void)atexit(pool_restore);
    if (pool_read(POOL) != n) {
        pool_restore();
        cr_skip("no %ld huge pages to be had", n);
    }
}

/* ---- memory with holes ---- */

struct holey {
    int fd;
    uint8_t *addr;
    size_t bytes;
};

static void make_holey(struct holey *holey, unsigned pages, uint32_t seed)
{
    holey->bytes = pages * HUGE_BYTES;
    holey->fd = memfd_create("holey", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    must(holey->fd >= 0 && ftruncate(holey->fd, (off_t)holey->bytes) == 0);
    must(fcntl(holey->fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    holey->addr = mmap(NULL, holey->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, holey->fd, 0);
    must(holey->addr != MAP_FAILED);
    fill_pattern(holey->addr, holey->bytes, seed);
}

/* Page i goes, and with it what the pool had left. */
static void punch(const struct holey *holey, unsigned i)
{
    must(fallocate(holey->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(i * HUGE_BYTES), (off_t)HUGE_BYTES) == 0);
    pool_set(0);
}

static void drop_holey(rdt *conn, struct holey *holey)
{
    must_ok(rdt_dealloc(conn, holey->addr, &err));
    (void)munmap(holey->addr, holey->bytes);
    (void)close(holey->fd);
}

/* Page i of the object is a hole. */
static void expect_hole(rdt *conn, const struct rdt_ref *ref, unsigned i, uint32_t seed)
{
    rdt_object *object = fetch_one(conn, ref, RDT_FETCH_COPY);
    const uint8_t *data = tensor_of(object, 0).data;

    must(is_filled_with(data + i * HUGE_BYTES, HUGE_BYTES, 0) && holds_pattern(data, i * HUGE_BYTES, seed));
    rdt_release(object);
}

/* A put, a copy, a check: all is well for the others. */
static void expect_service(rdt *from, rdt *to)
{
    struct rdt_ref ref = put_pattern(from, NULL, 3 * MIB, 9);
    rdt_object *object = fetch_one(to, &ref, RDT_FETCH_COPY);

    must(holds_pattern(tensor_of(object, 0).data, 3 * MIB, 9));
    rdt_release(object);
    must_ok(rdt_free(from, &ref, false, &err));
}

Test(hole_punching, copy_of_punched_memory_has_zeros_there)
{
    struct test_node node;
    struct holey good, bad;
    struct rdt_ref good_ref, bad_ref;
    rdt *owner, *reader;
    rdt_object *object;

    borrow_pages(8);
    node_start(&node, NULL);
    owner = node_client(&node, "owner");
    reader = node_client(&node, "reader");
    make_holey(&good, 2, 1);
    make_holey(&bad, 4, 2);
    must_ok(rdt_import(owner, good.fd, good.addr, good.bytes, &err));
    must_ok(rdt_import(owner, bad.fd, bad.addr, bad.bytes, &err));
    good_ref = put_one(owner, &VECTOR(RDT_U8, good.bytes, good.addr), "good");
    bad_ref = put_one(owner, &VECTOR(RDT_U8, bad.bytes, bad.addr), "bad");
    object = fetch_one(reader, &bad_ref, RDT_FETCH_COPY);
    must(holds_pattern(tensor_of(object, 0).data, bad.bytes, 2));
    rdt_release(object);

    punch(&bad, 2);
    expect_hole(reader, &bad_ref, 2, 2);
    object = fetch_one(reader, &good_ref, RDT_FETCH_COPY);
    must(holds_pattern(tensor_of(object, 0).data, good.bytes, 1));
    rdt_release(object);
    expect_service(owner, reader);
    must_ok(rdt_free(owner, &bad_ref, false, &err));
    must_ok(rdt_free(owner, &good_ref, false, &err));
    drop_holey(owner, &bad);
    drop_holey(owner, &good);
    rdt_close(owner);
    rdt_close(reader);
    node_end(&node, NULL);
    pool_restore();
}

Test(hole_punching, memory_in_huge_pages_is_no_target)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    const struct rdt_tensor *targets[1];
    const size_t count = 1;
    struct rdt_tensor target;
    struct test_node node;
    struct holey bad;
    struct rdt_ref ref;
    rdt_object *object;
    rdt *owner, *reader;

    borrow_pages(4);
    node_start(&node, NULL);
    owner = node_client(&node, "owner");
    reader = node_client(&node, "reader");
    make_holey(&bad, 2, 2);
    must_ok(rdt_import(reader, bad.fd, bad.addr, bad.bytes, &err));
    ref = put_pattern(owner, NULL, bad.bytes, 5);
    target = VECTOR(RDT_U8, bad.bytes, bad.addr);
    targets[0] = &target;
    options.targets = targets;
    options.target_counts = &count;
    must_refuse(RDT_UNSUPPORTED, "lies in huge pages", rdt_fetch(reader, &ref, 1, &options, &object, &err));
    must(holds_pattern(bad.addr, bad.bytes, 2));
    expect_service(owner, reader);
    must_ok(rdt_free(owner, &ref, false, &err));
    drop_holey(reader, &bad);
    rdt_close(owner);
    rdt_close(reader);
    node_end(&node, NULL);
    pool_restore();
}

Test(hole_punching, other_nodes_get_zeros_and_their_connection_stays)
{
    struct cluster cluster;
    struct rdt_ref ref, small, before;
    struct holey bad;
    rdt *owner, *reader;
    rdt_object *object;

    borrow_pages(8);
    cluster_start(&cluster, 2, &(struct cluster_options){0});
    owner = node_client(&cluster.node[0], "owner");
    reader = node_client(&cluster.node[1], "reader");
    make_holey(&bad, 4, 2);
    must_ok(rdt_import(owner, bad.fd, bad.addr, bad.bytes, &err));
    ref = put_one(owner, &VECTOR(RDT_U8, bad.bytes, bad.addr), "bad");
    small = put_one(owner, &VECTOR(RDT_U8, 1000, bad.addr + 2 * HUGE_BYTES), "small");
    before = put_pattern(owner, NULL, 48 * MIB, 3);
    fetch_pattern(reader, &ref, bad.bytes, 2, "ucx");

    punch(&bad, 2);
    { /* another transfer on the same connection is under way */
        rdt_request *request = start_one(reader, &before, RDT_FOREVER);
        expect_hole(reader, &ref, 2, 2);
        object = fetch_one(reader, &small, RDT_FETCH_AUTO);
        must(is_filled_with(tensor_of(object, 0).data, 1000, 0));
        rdt_release(object);
        must_ok(rdt_wait(reader, &request, 1, RDT_WAIT_ALL, LONG, NULL, NULL, &err));
        must_ok(rdt_request_take_object(request, &object, &err));
        must(holds_pattern(tensor_of(object, 0).data, 48 * MIB, 3));
        rdt_release(object);
        rdt_request_destroy(request);
    }
    must(!node_log_has(&cluster.node[0], "taken down") && !node_log_has(&cluster.node[1], "taken down"));
    fetch_pattern(reader, &before, 48 * MIB, 3, "ucx");
    must_ok(rdt_free(owner, &ref, false, &err));
    must_ok(rdt_free(owner, &small, false, &err));
    must_ok(rdt_free(owner, &before, false, &err));
    drop_holey(owner, &bad);
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&cluster, NULL);
    pool_restore();
}

/* ---- the daemon's own memory on huge pages ---- */

static long free_pages(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128];
    long n = -1;

    while (file && fgets(line, sizeof line, file) && sscanf(line, "HugePages_Free: %ld", &n) != 1)
        continue;
    if (file)
        (void)fclose(file);
    return n;
}

Test(hole_punching, daemon_on_huge_pages_gives_them_all_back)
{
    static const char *const flags[] = {"--set", "host.huge_pages=require", "--pool-idle=200ms", NULL};
    struct cluster cluster;
    struct rdt_ref ref;
    rdt *owner, *reader;
    uint8_t *memory;

    borrow_pages(40);
    cluster_start(&cluster, 2, &(struct cluster_options){.flags = flags});
    owner = node_client(&cluster.node[0], "owner");
    reader = node_client(&cluster.node[1], "reader");
    for (uint32_t i = 0; i < 3; i++) {
        memory = alloc_memory(owner, 5 * MIB); /* no whole number of pages */
        must(free_pages() < 40);
        fill_pattern(memory, 5 * MIB, i);
        ref = put_one(owner, &VECTOR(RDT_U8, 5 * MIB, memory), NULL);
        fetch_pattern(reader, &ref, 5 * MIB, i, "ucx");
        fetch_pattern(reader, &ref, 5 * MIB, i, "ucx"); /* into memory that came again */
        must_ok(rdt_free(owner, &ref, false, &err));
        must_ok(rdt_dealloc(owner, memory, &err));
    }
    must_refuse(RDT_NO_MEMORY, "nr_hugepages", rdt_alloc(owner, 100 * MIB, (void **)&memory, &err));
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&cluster, NULL);
    wait_until(20 * SEC, free_pages() == 40);
    pool_restore();
}
