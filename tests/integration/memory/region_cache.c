/* SPDX-License-Identifier: Apache-2.0 */
/* The region cache: released memory serves the client that had it again, without new pages, and serves no other client.
 * Also how cached memory is freed. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/call.h"
#include "rdt.pb-c.h"
#include "tests/support/cluster.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)

TestSuite(region_cache, .timeout = 240);

static struct test_node node;
static const char *const long_idle[] = {"--pool-idle=60s", NULL};

static struct node_status status_now(void)
{
    struct node_status status;

    node_status(&node, &status);
    return status;
}

static struct rdt_ref put_bytes(rdt *conn, size_t bytes, uint32_t seed)
{
    struct rdt_ref ref = put_pattern(conn, NULL, bytes, seed);
    return ref;
}

/* A private copy of it; the address and the inode are where it came to lie. */
static rdt_object *copy_of(rdt *conn, const struct rdt_ref *ref, size_t bytes, uint32_t seed, void **addr_p,
                           unsigned long *inode_p)
{
    rdt_object *object = fetch_one(conn, ref, RDT_FETCH_COPY);
    struct rdt_tensor tensor = tensor_of(object, 0);

    must(holds_pattern(tensor.data, bytes, seed));
    *addr_p = tensor.data;
    *inode_p = inode_at(tensor.data);
    must(*inode_p != 0);
    return object;
}

/* One node, a producer and a reader. */
static rdt *producer, *consumer;

static void start(const char *const *flags)
{
    node_start(&node, &(struct node_options){.flags = flags});
    producer = node_client(&node, "producer");
    consumer = node_client(&node, "consumer");
}

static void finish(void)
{
    static const char *const none[] = {NULL};

    rdt_close(producer);
    rdt_close(consumer);
    node_expect_idle(&node);
    node_kill(&node, SIGTERM); /* pooled memory would stay for a minute, so descriptors are not counted here */
    node_check_log(&node, none);
}

/* ---- sealed memory ---- */

Test(region_cache, snapshot_has_the_memory_of_an_earlier_one_that_all_readers_released)
{
    const size_t bytes = 3 * MIB;
    unsigned long inode = 0;
    uint8_t *memory;
    rdt_object *kept = NULL;

    start(long_idle);
    must_ok(rdt_alloc(producer, bytes, (void **)&memory, NULL));
    for (uint32_t i = 0; i < 6; i++) {
        struct rdt_put_options options = RDT_INIT(options);
        struct rdt_tensor tensor = VECTOR(RDT_U8, bytes, memory);
        struct rdt_ref ref;
        rdt_object *object;
        fill_pattern(memory, bytes, i);
        options.flags = RDT_PUT_SNAPSHOT;
        must_ok(rdt_put(producer, &tensor, 1, &options, &ref, NULL));
        object = fetch_one(consumer, &ref, RDT_FETCH_SHARE);
        tensor = tensor_of(object, 0);
        must(holds_pattern(tensor.data, bytes, i));
        must((inode_at(tensor.data) == inode) == (i != 0 && i != 3));
        inode = inode_at(tensor.data);
        if (i == 2) { /* one that is still held keeps its bytes, whatever comes after it */
            kept = object;
        } else if (i == 3) {
            struct rdt_tensor old = tensor_of(kept, 0);
            must(holds_pattern(old.data, bytes, 2));
            rdt_release(kept);
        }
        if (i != 2)
            rdt_release(object);
        must_ok(rdt_free(producer, &ref, false, NULL));
    }
    must(status_now().pool_hits >= 4);
    must_ok(rdt_dealloc(producer, memory, NULL));
    finish();
}

/* A snapshot for all owners in the memory of one that only its owner could read. Its readers have all of it mapped. */
Test(region_cache, snapshot_shows_no_bytes_of_an_earlier_one)
{
    const size_t bytes = 3 * MIB, first = 1000, second = 3 * MIB - 8 * 1024;
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_tensor tensors[2], tensor;
    struct rdt_ref ref;
    rdt_object *object;
    unsigned long inode;
    uint8_t *memory;
    const uint8_t *base;

    start(long_idle);
    must_ok(rdt_alloc(producer, bytes, (void **)&memory, NULL));
    memset(memory, 0xff, bytes);
    options.flags = RDT_PUT_SNAPSHOT;
    tensor = VECTOR(RDT_U8, bytes, memory);
    must_ok(rdt_put(producer, &tensor, 1, &options, &ref, NULL));
    object = fetch_one(consumer, &ref, RDT_FETCH_SHARE);
    inode = inode_at(tensor_of(object, 0).data);
    rdt_release(object);
    must_ok(rdt_free(producer, &ref, false, NULL));

    tensors[0] = VECTOR(RDT_U8, first, memory);
    tensors[1] = VECTOR(RDT_U8, second, memory + 1024);
    options.visibility = RDT_VISIBLE_TO_ALL;
    must_ok(rdt_put(producer, tensors, 2, &options, &ref, NULL));
    object = fetch_one(consumer, &ref, RDT_FETCH_SHARE);
    base = tensor_of(object, 0).data;
    must(inode_at(base) == inode);
    must((const uint8_t *)tensor_of(object, 1).data == base + 1024);
    for (size_t i = 0; i < bytes; i++)
        must(base[i] == (i < first || (i >= 1024 && i < 1024 + second) ? 0xff : 0));
    rdt_release(object);
    must_ok(rdt_free(producer, &ref, false, NULL));
    must_ok(rdt_dealloc(producer, memory, NULL));
    finish();
}

/* ---- to the same client ---- */

Test(region_cache, next_fetch_reuses_the_released_memory)
{
    unsigned long inode, first_inode = 0;
    void *addr, *first = NULL;

    start(long_idle);
    for (uint32_t i = 0; i < 20; i++) {
        size_t bytes = 3 * MIB - i * 4097; /* about the same */
        struct rdt_ref ref = put_bytes(producer, bytes, i);
        rdt_object *object = copy_of(consumer, &ref, bytes, i, &addr, &inode);
        cr_assert(i == 0 || (addr == first && inode == first_inode), "round %u", i);
        first = addr;
        first_inode = inode;
        rdt_release(object);
        must_ok(rdt_free(producer, &ref, false, &err));
    }
    cr_assert_eq(status_now().cache_hits, 2 * 19, "the copies, and what the puts lent");
    wait_until(20 * SEC, status_now().memory_bytes == 0);
    cr_assert_geq(status_now().cached_bytes, 2 * MIB);
    finish();
}

Test(region_cache, held_memory_is_not_reused)
{
    rdt_object *objects[8];
    unsigned long inodes[8];
    struct rdt_ref ref;
    void *addr;

    start(long_idle);
    ref = put_bytes(producer, MIB, 7);
    for (unsigned i = 0; i < 8; i++) {
        objects[i] = copy_of(consumer, &ref, MIB, 7, &addr, &inodes[i]);
        memset(addr, (int)i, MIB); /* private: nobody else sees it */
        for (unsigned j = 0; j < i; j++)
            cr_assert_neq(inodes[j], inodes[i]);
    }
    for (unsigned i = 0; i < 8; i++) {
        cr_assert(is_filled_with(tensor_of(objects[i], 0).data, MIB, (uint8_t)i));
        rdt_release(objects[i]);
    }
    for (unsigned i = 0; i < 8; i++) /* all of them come again */
        objects[i] = copy_of(consumer, &ref, MIB, 7, &addr, &inodes[i]);
    cr_assert_eq(status_now().cache_hits, 8);
    for (unsigned i = 0; i < 8; i++)
        rdt_release(objects[i]);
    finish();
}

Test(region_cache, alloc_after_dealloc_is_the_same_memory_zeroed)
{
    size_t sizes[] = {4096, 100000, 5 * MIB};

    start(long_idle);
    for (unsigned s = 0; s < 3; s++) {
        char *addr = alloc_memory(consumer, sizes[s]), *again;
        unsigned long inode = inode_at(addr);
        memset(addr, 0xee, sizes[s]);
        must_ok(rdt_dealloc(consumer, addr, &err));
        must_refuse(RDT_INVALID, "not the start", rdt_dealloc(consumer, addr, &err));
        again = alloc_memory(consumer, sizes[s]);
        cr_assert_eq(inode_at(again), inode);
        cr_assert(is_filled_with(again, sizes[s], 0));
        put_one(consumer, &VECTOR(RDT_U8, sizes[s], again), NULL);
        must_ok(rdt_dealloc(consumer, again, &err)); /* the object still lies there */
        addr = alloc_memory(consumer, sizes[s]);
        cr_assert_neq(inode_at(addr), inode);
        must_ok(rdt_dealloc(consumer, addr, &err));
    }
    finish();
}

/* Memory of an allocation that came again is its producer's like any other: what lies in it is shared. */
Test(region_cache, objects_in_reused_memory_are_shared)
{
    size_t sizes[] = {100000, 5 * MIB};

    start(long_idle);
    for (unsigned s = 0; s < 2; s++) {
        char *addr = alloc_memory(producer, sizes[s]);
        unsigned long inode = inode_at(addr);
        struct rdt_tensor tensor;
        struct rdt_ref ref;
        rdt_object *object;
        must_ok(rdt_dealloc(producer, addr, &err));
        addr = alloc_memory(producer, sizes[s]);
        cr_assert_eq(inode_at(addr), inode);
        fill_pattern((uint8_t *)addr, sizes[s], s);
        ref = put_one(producer, &VECTOR(RDT_U8, sizes[s], addr), NULL);
        object = fetch_one(consumer, &ref, RDT_FETCH_SHARE);
        tensor = tensor_of(object, 0);
        cr_assert(holds_pattern(tensor.data, sizes[s], s));
        cr_assert_eq(inode_at(tensor.data), inode);
        rdt_release(object);
        must_ok(rdt_free(producer, &ref, false, &err));
        must_ok(rdt_dealloc(producer, addr, &err)); /* another has seen it: it comes to nobody again */
        addr = alloc_memory(producer, sizes[s]);
        cr_assert_neq(inode_at(addr), inode);
        must_ok(rdt_dealloc(producer, addr, &err));
    }
    finish();
}

#define TAKEN 24u

/* Allocates everything that the pool has and releases nothing. Blocks that are still being zeroed are taken later. */
static int others_memory(struct actor *self, void *arg)
{
    struct rdt_ref *ref = arg;
    rdt *conn = node_client(&node, "other");
    rdt_object *objects[TAKEN];
    unsigned long inode;
    void *addr;

    for (unsigned i = 0; i < TAKEN; i++) {
        void *fresh = alloc_memory(conn, MIB);
        unsigned long other = inode_at(fresh);
        objects[i] = copy_of(conn, ref, MIB, 3, &addr, &inode);
        must(is_filled_with(fresh, MIB, 0));
        actor_send(self, &inode, sizeof inode);
        actor_send(self, &other, sizeof other);
        if (i % 2)
            must_ok(rdt_dealloc(conn, fresh, &err));
    }
    for (unsigned i = 0; i < TAKEN; i++)
        rdt_release(objects[i]);
    rdt_close(conn);
    return 0;
}

/* Memory that the first client had, held or released never serves another client, also after the first one has ended. */
Test(region_cache, no_other_client_gets_it)
{
    unsigned long had[40], inode;
    unsigned n_had = 0;
    struct actor actor;
    struct rdt_ref ref;
    void *addr;

    start(long_idle);
    ref = put_bytes(producer, MIB, 3);
    for (unsigned i = 0; i < 6; i++) {
        rdt_object *object = copy_of(consumer, &ref, MIB, 3, &addr, &had[n_had++]);
        void *own = alloc_memory(consumer, MIB);
        had[n_had++] = inode_at(own);
        memset(own, 0xee, MIB);
        if (i % 2)
            must_ok(rdt_dealloc(consumer, own, &err));
        else
            rdt_release(object);
    }
    for (unsigned round = 0; round < 2; round++) {
        actor_start_keeping(&actor, others_memory, &ref, -1);
        for (unsigned i = 0; i < 2 * TAKEN; i++) {
            actor_recv(&actor, &inode, sizeof inode);
            for (unsigned j = 0; j < n_had; j++)
                cr_assert_neq(inode, had[j], "memory of another client");
        }
        actor_wait(&actor);
        if (round == 0) {
            rdt_close(consumer);
            wait_until(20 * SEC, status_now().cached_bytes == 0);
            consumer = node_client(&node, "consumer");
        }
    }
    finish();
}

/* ---- identity ---- */

static Rdt__Pb__RegionReply *alloc_by_hand(rdt *conn, size_t bytes, int *fd_p)
{
    Rdt__Pb__Alloc request = RDT__PB__ALLOC__INIT;
    Rdt__Pb__RegionReply *reply = NULL;

    request.bytes = bytes;
    must_ok(call_fds(conn, RDT_MSG_ALLOC, &request.base, -1, now_ns() + LONG, (ProtobufCMessage **)(void *)&reply, fd_p, &err));
    return reply;
}

static bool release_by_hand(rdt *conn, uint64_t region, bool keep)
{
    Rdt__Pb__ReleaseRegion request = RDT__PB__RELEASE_REGION__INIT;
    Rdt__Pb__RegionReleased *reply = NULL;
    bool kept;

    request.region = region;
    request.keep_mapped = keep;
    must_ok(call(conn, RDT_MSG_RELEASE_REGION, &request.base, LONG, (ProtobufCMessage **)(void *)&reply, &err));
    kept = reply->keep_mapped;
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return kept;
}

/* An object of one byte in that region. */
static enum rdt_status put_in(rdt *conn, uint64_t region, uint64_t generation, struct rdt_error *err)
{
    Rdt__Pb__Put request = RDT__PB__PUT__INIT;
    Rdt__Pb__TensorList list = RDT__PB__TENSOR_LIST__INIT;
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT, *uses[] = {&use};
    uint32_t dtype = RDT_U8, ndim = 1, index = 0;
    uint64_t shape = 1, offset = 0;

    use.region = region;
    use.generation = generation;
    list.n_dtype = list.n_ndim = list.n_shape = list.n_region_index = list.n_offset = 1;
    list.dtype = &dtype;
    list.ndim = &ndim;
    list.shape = &shape;
    list.region_index = &index;
    list.offset = &offset;
    request.tensors = &list;
    request.regions = uses;
    request.n_regions = 1;
    return call(conn, RDT_MSG_PUT, &request.base, LONG, NULL, err);
}

Test(region_cache, old_generation_names_nothing)
{
    Rdt__Pb__RegionReply *first, *second;
    int fd;

    start(long_idle);
    first = alloc_by_hand(consumer, MIB, &fd);
    cr_assert(fd >= 0 && first->cacheable);
    close(fd);
    cr_assert(release_by_hand(consumer, first->region, true));
    must_refuse(RDT_NOT_FOUND, "", put_in(consumer, first->region, first->generation, &err)); /* while it waits */
    second = alloc_by_hand(consumer, MIB, &fd);
    cr_assert_eq(fd, -1, "it is mapped there still");
    cr_assert_eq(second->region, first->region);
    cr_assert_gt(second->generation, first->generation);
    must_refuse(RDT_NOT_FOUND, "", put_in(consumer, first->region, first->generation, &err));
    must_ok(put_in(consumer, second->region, second->generation, &err));
    must_refuse(RDT_NOT_FOUND, "", put_in(producer, second->region, second->generation, &err));
    cr_assert(!release_by_hand(consumer, second->region, true), "an object lies over it");
    protobuf_c_message_free_unpacked(&first->base, NULL);
    protobuf_c_message_free_unpacked(&second->base, NULL);
    finish();
}

Test(region_cache, memory_that_another_has_seen_is_not_cached)
{
    Rdt__Pb__RegionReply *reply;
    struct rdt_ref ref;
    rdt_object *object;
    unsigned long inode;
    void *addr;
    int fd;

    start(long_idle);
    reply = alloc_by_hand(consumer, MIB, &fd);
    close(fd);
    cr_assert(!release_by_hand(consumer, reply->region, false));
    protobuf_c_message_free_unpacked(&reply->base, NULL);

    addr = alloc_memory(consumer, MIB);
    inode = inode_at(addr);
    ref = put_one(consumer, &VECTOR(RDT_U8, MIB, addr), NULL);
    object = fetch_one(producer, &ref, RDT_FETCH_SHARE);
    rdt_release(object);
    must_ok(rdt_free(consumer, &ref, false, &err));
    must_ok(rdt_dealloc(consumer, addr, &err));
    addr = alloc_memory(consumer, MIB);
    cr_assert_neq(inode_at(addr), inode, "the other one may have it mapped yet");
    cr_assert_eq(status_now().cache_hits, 0);
    finish();
}

/* ---- how it goes ---- */

Test(region_cache, idle_memory_goes_and_is_unmapped)
{
    static const char *const short_idle[] = {"--pool-idle=50ms", NULL};
    struct rdt_ref ref;
    unsigned long inode;
    void *addr;

    start(short_idle);
    ref = put_bytes(producer, 2 * MIB, 1);
    rdt_release(copy_of(consumer, &ref, 2 * MIB, 1, &addr, &inode));
    wait_until(20 * SEC, status_now().cached_bytes == 0);
    must_ok(rdt_ping(consumer, LONG, &err)); /* hears of it */
    cr_assert_neq(inode_at(addr), inode, "still mapped");
    rdt_release(copy_of(consumer, &ref, 2 * MIB, 1, &addr, &inode)); /* and all is as before */
    finish();
}

Test(region_cache, idle_pool_memory_is_freed)
{
    static const char *const a_second[] = {"--pool-idle=1s", NULL};
    rdt_object *objects[3];
    unsigned long inode;
    struct rdt_ref ref;
    void *addr;

    start(a_second);
    ref = put_bytes(producer, 2 * MIB, 1);
    for (unsigned i = 0; i < 3; i++) /* wanted more than once: the next is made ahead */
        objects[i] = copy_of(consumer, &ref, 2 * MIB, 1, &addr, &inode);
    wait_until(20 * SEC, status_now().pool_bytes > 0);
    wait_until(20 * SEC, status_now().pool_bytes == 0);
    for (unsigned i = 0; i < 3; i++)
        rdt_release(objects[i]);
    finish();
}

Test(region_cache, cached_memory_is_freed_before_a_request_is_refused)
{
    static const char *const tight[] = {"--memory-limit=64MiB", "--cache-max=48MiB", "--pool-idle=60s", NULL};
    struct rdt_ref ref;
    unsigned long inode;
    void *addr, *all;

    start(tight);
    ref = put_bytes(producer, 20 * MIB, 1);
    rdt_release(copy_of(consumer, &ref, 20 * MIB, 1, &addr, &inode));
    must_ok(rdt_free(producer, &ref, false, &err));
    wait_until(20 * SEC, status_now().memory_bytes == 0);
    cr_assert_geq(status_now().cached_bytes, 20 * MIB);
    all = alloc_memory(producer, 60 * MIB);
    cr_assert_eq(status_now().cached_bytes, 0);
    must_be(RDT_NO_MEMORY, rdt_alloc(consumer, 8 * MIB, &addr, &err));
    must_ok(rdt_dealloc(producer, all, &err));
    finish();
}

Test(region_cache, bound_of_one_client_holds)
{
    static const char *const small[] = {"--cache-max=8MiB", "--pool-idle=60s", NULL};
    rdt_object *objects[6];
    struct rdt_ref ref;
    unsigned long inode;
    void *addr;

    start(small);
    ref = put_bytes(producer, 3 * MIB, 1);
    for (unsigned i = 0; i < 6; i++)
        objects[i] = copy_of(consumer, &ref, 3 * MIB, 1, &addr, &inode);
    for (unsigned i = 0; i < 6; i++)
        rdt_release(objects[i]);
    must_ok(rdt_ping(consumer, LONG, &err));
    cr_assert_leq(status_now().cached_bytes, 8 * MIB);
    cr_assert_geq(status_now().cached_bytes, 6 * MIB);
    finish();
}

static int die_in_the_middle(struct actor *self, void *arg)
{
    struct rdt_ref *ref = arg;
    rdt *conn = node_client(&node, "victim");
    unsigned long inode;
    void *addr;

    for (unsigned i = 0; i < 4; i++)
        rdt_release(copy_of(conn, ref, 32 * MIB, 9, &addr, &inode));
    (void)start_one(conn, ref, RDT_FOREVER); /* into warm memory */
    actor_step(self);
    (void)pause();
    return 1;
}

Test(region_cache, killed_client_leaves_nothing)
{
    struct actor actor;
    struct rdt_ref ref;

    start(long_idle);
    ref = put_bytes(producer, 32 * MIB, 9);
    for (unsigned i = 0; i < 5; i++) {
        actor_start_keeping(&actor, die_in_the_middle, &ref, -1);
        actor_await(&actor);
        actor_kill(&actor, SIGKILL);
    }
    wait_until(20 * SEC, status_now().cached_bytes == 0 && status_now().regions == 1);
    finish();
}

/* Cancelled at any moment: the memory comes again or goes, and never shows what it should not. */
Test(region_cache, cancelled_fetches_leave_it_usable)
{
    struct rdt_ref refs[2];
    unsigned long inode;
    uint64_t dice = 5;
    void *addr;

    start(long_idle);
    for (uint32_t i = 0; i < 2; i++)
        refs[i] = put_bytes(producer, 4 * MIB, i);
    for (unsigned round = 0; round < 60; round++) {
        uint32_t which = next_random(&dice) % 2;
        struct rdt_fetch_options options = RDT_INIT(options);
        rdt_request *request;

        options.mode = RDT_FETCH_COPY;
        must_ok(rdt_fetch_start(consumer, &refs[which], 1, &options, &request, &err));
        for (unsigned spins = next_random(&dice) % 4; spins > 0; spins--)
            must_ok(rdt_dispatch(consumer, NULL, &err));
        rdt_request_destroy(request);
        rdt_release(copy_of(consumer, &refs[1 - which], 4 * MIB, 1 - which, &addr, &inode));
    }
    cr_assert_gt(status_now().cache_hits, 0);
    finish();
}

/* ---- between nodes ---- */

Test(region_cache, fetches_from_another_node_come_to_the_same_memory)
{
    static const char *const flags[] = {"--pool-idle=60s", NULL};
    struct cluster cluster;
    unsigned long inode, first = 0;
    struct rdt_ref ref;
    rdt *owner, *reader;

    cluster_start(&cluster, 2, &(struct cluster_options){.flags = flags});
    owner = node_client(&cluster.node[0], "owner");
    reader = node_client(&cluster.node[1], "reader");
    for (uint32_t i = 0; i < 6; i++) {
        rdt_object *object;
        struct rdt_tensor tensor;
        ref = put_pattern(owner, NULL, 5 * MIB, i);
        object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
        tensor = tensor_of(object, 0);
        cr_assert(holds_pattern(tensor.data, 5 * MIB, i));
        inode = inode_at(tensor.data);
        cr_assert(i == 0 || inode == first, "round %u", i);
        first = inode;
        rdt_release(object);
        must_ok(rdt_free(owner, &ref, false, &err));
    }
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&cluster, NULL);
}
