/* SPDX-License-Identifier: Apache-2.0 */
/* A reader's mapping stays when it releases the object, and its next fetch from that region reuses it. The mapping ends
 * with the region, whose pages are freed at once, or when others take its place. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/cluster.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define MOST 64 /* mappings that a client keeps */

TestSuite(mapped, .timeout = 120);

static struct test_node node;
static rdt *producer, *consumer;

static void start(void)
{
    node_start(&node, &(struct node_options){.flags = NULL});
    producer = node_client(&node, "producer");
    consumer = node_client(&node, "consumer");
}

static void finish(void)
{
    if (producer)
        rdt_close(producer);
    if (consumer)
        rdt_close(consumer);
    node_end(&node, NULL);
}

/* Whether all pages of the mapping exist. */
static bool has_pages(const void *addr, size_t bytes)
{
    unsigned char pages[256];
    bool any = false;

    must(bytes / 4096 <= sizeof pages && mincore((void *)(uintptr_t)addr, bytes, pages) == 0);
    for (size_t i = 0; i < bytes / 4096; i++)
        any = any || (pages[i] & 1);
    return any;
}

static unsigned clients_of(const struct test_node *of)
{
    struct node_status status;

    node_status(of, &status);
    return status.clients;
}

static const void *share(rdt *conn, const struct rdt_ref *ref, size_t bytes, uint32_t seed)
{
    rdt_object *object = fetch_one(conn, ref, RDT_FETCH_SHARE);
    const void *addr = tensor_of(object, 0).data;

    must(holds_pattern(addr, bytes, seed));
    rdt_release(object);
    return addr;
}

/* Memory of the producer, and an object that is all of it. */
static void *put_memory(size_t bytes, uint32_t seed, struct rdt_ref *ref_p)
{
    void *memory = alloc_memory(producer, bytes);

    fill_pattern(memory, bytes, seed);
    *ref_p = put_one(producer, &VECTOR(RDT_U8, bytes, memory), NULL);
    return memory;
}

Test(mapped, next_fetch_finds_the_same_mapping_and_what_is_there_now)
{
    struct rdt_ref ref;
    const void *first;
    uint8_t *memory;

    start();
    memory = put_memory(MIB, 1, &ref);
    first = share(consumer, &ref, MIB, 1);
    for (uint32_t i = 2; i < 6; i++) {
        cr_assert(is_mapped(first));
        must_ok(rdt_free(producer, &ref, false, &err));
        fill_pattern(memory, MIB, i);
        ref = put_one(producer, &VECTOR(RDT_U8, MIB, memory), NULL);
        cr_assert_eq(share(consumer, &ref, MIB, i), first);
    }
    finish();
}

Test(mapped, two_objects_of_one_region_share_it)
{
    struct rdt_ref refs[2];
    rdt_object *objects[2];
    uint8_t *memory;
    const uint8_t *first;

    start();
    memory = put_memory(MIB, 1, &refs[0]);
    refs[1] = put_one(producer, &VECTOR(RDT_U8, KIB, memory + 4096), NULL);
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 2; i++)
            objects[i] = fetch_one(consumer, &refs[i], RDT_FETCH_SHARE);
        first = tensor_of(objects[0], 0).data;
        cr_assert_eq(tensor_of(objects[1], 0).data, first + 4096);
        rdt_release(objects[round % 2]);
        cr_assert(holds_pattern(first, MIB, 1));
        rdt_release(objects[1 - round % 2]);
    }
    cr_assert(is_mapped(first));
    finish();
}

Test(mapped, end_of_the_region_takes_its_pages_and_then_the_mapping)
{
    struct node_status status;
    struct rdt_ref ref;
    const void *first;
    void *memory;

    start();
    memory = put_memory(MIB, 1, &ref);
    first = share(consumer, &ref, MIB, 1);
    cr_assert(has_pages(first, MIB));
    must_ok(rdt_free(producer, &ref, false, &err));
    cr_assert(has_pages(first, MIB), "the producer still has it");
    must_ok(rdt_dealloc(producer, memory, &err));
    wait_until(20 * SEC, !has_pages(first, MIB)); /* though its reader does nothing */
    wait_until(20 * SEC, (node_status(&node, &status), status.memory_bytes == 0));
    cr_assert(is_mapped(first));
    ref = put_pattern(producer, NULL, KIB, 2);
    fetch_pattern(consumer, &ref, KIB, 2, NULL); /* it looks at its socket */
    cr_assert(!is_mapped(first));
    finish();
}

Test(mapped, a_reader_that_holds_it_sees_it_to_the_end)
{
    struct rdt_ref ref;
    rdt_object *object;
    const void *addr;
    void *memory;

    start();
    memory = put_memory(MIB, 1, &ref);
    addr = share(consumer, &ref, MIB, 1);
    object = fetch_one(consumer, &ref, RDT_FETCH_SHARE);
    cr_assert_eq(tensor_of(object, 0).data, addr);
    must_ok(rdt_dealloc(producer, memory, &err));
    rdt_close(producer);
    producer = NULL;
    wait_until(20 * SEC, clients_of(&node) == 1);
    cr_assert_eq(share(consumer, &ref, MIB, 1), addr, "its hold keeps the object");
    cr_assert(holds_pattern(addr, MIB, 1));
    rdt_release(object);
    wait_until(20 * SEC, !has_pages(addr, MIB));
    finish();
}

/* ---- a holder never sees its pages removed ---- */

#define FDS 1024

static void find_sockets(bool *is_p)
{
    int domain;
    socklen_t bytes = sizeof domain;

    for (int fd = 0; fd < FDS; fd++)
        is_p[fd] = getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_UNIX;
}

/* A client, and the socket of its connection. */
static rdt *client_and_socket(const char *name, int *sock_p)
{
    static bool before[FDS], after[FDS];
    rdt *conn;

    find_sockets(before);
    conn = node_client(&node, name);
    find_sockets(after);
    *sock_p = -1;
    for (int fd = 0; fd < FDS; fd++)
        if (after[fd] && !before[fd])
            *sock_p = fd;
    must(*sock_p >= 0);
    return conn;
}

Test(mapped, memory_outlives_the_daemon)
{
    rdt *holder;
    rdt_object *object;
    struct rdt_ref ref, other;
    uint8_t *memory, *others;
    const void *addr, *held;

    node_start(&node, &(struct node_options){.flags = NULL});
    consumer = node_client(&node, "consumer");
    holder = node_client(&node, "holder");
    producer = node_client(&node, "producer");
    memory = put_memory(MIB, 1, &ref);
    others = put_memory(MIB, 2, &other);
    addr = share(consumer, &ref, MIB, 1);
    held = share(consumer, &other, MIB, 2);
    object = fetch_one(holder, &other, RDT_FETCH_SHARE);
    node_stop(&node);
    cr_assert(holds_pattern(memory, MIB, 1), "its owner still has it");
    cr_assert(holds_pattern(others, MIB, 2));
    cr_assert(holds_pattern(tensor_of(object, 0).data, MIB, 2), "and so has who holds it");
    cr_assert(is_mapped(addr) && is_mapped(held));
    rdt_close(holder);
    rdt_close(producer);
    rdt_close(consumer);
    node_check_log(&node, NULL);
}

Test(mapped, memory_outlives_the_connection_of_its_owner)
{
    struct node_status status;
    struct rdt_ref ref;
    uint8_t *memory;
    const void *addr;
    int sock;

    node_start(&node, &(struct node_options){.flags = NULL});
    consumer = node_client(&node, "consumer");
    producer = client_and_socket("producer", &sock);
    memory = put_memory(MIB, 1, &ref);
    addr = share(consumer, &ref, MIB, 1);
    must(shutdown(sock, SHUT_RDWR) == 0);
    wait_until(20 * SEC, clients_of(&node) == 1);
    wait_until(20 * SEC, (node_status(&node, &status), status.regions == 0 && status.memory_bytes == MIB));
    cr_assert_eq(status.orphaned_bytes, MIB, "it is counted while somebody has it");
    cr_assert(holds_pattern(memory, MIB, 1), "it never gave it back");
    ref = put_pattern(consumer, NULL, KIB, 2);
    fetch_pattern(consumer, &ref, KIB, 2, NULL);
    cr_assert(!is_mapped(addr), "but its reader hears of the end, and keeps nothing");
    cr_assert(holds_pattern(memory, MIB, 1));
    finish();
}

Test(mapped, memory_outlives_the_connection_of_one_who_holds_it)
{
    struct node_status status;
    struct rdt_ref ref;
    rdt *holder;
    rdt_object *object;
    const void *held;
    void *memory;
    int sock;

    start();
    holder = client_and_socket("holder", &sock);
    memory = put_memory(MIB, 1, &ref);
    (void)share(consumer, &ref, MIB, 1);
    object = fetch_one(holder, &ref, RDT_FETCH_SHARE);
    held = tensor_of(object, 0).data;
    must(shutdown(sock, SHUT_RDWR) == 0);
    wait_until(20 * SEC, clients_of(&node) == 2);
    must_ok(rdt_free(producer, &ref, false, &err));
    must_ok(rdt_dealloc(producer, memory, &err));
    wait_until(20 * SEC, (node_status(&node, &status), status.regions == 0 && status.memory_bytes == MIB));
    cr_assert_eq(status.orphaned_bytes, MIB, "it is counted while somebody has it");
    cr_assert(holds_pattern(held, MIB, 1), "it never let go");
    rdt_release(object);
    rdt_close(holder);
    finish();
}

/* ---- both ends agree about the mappings ---- */

Test(mapped, too_many_at_once_are_fetched_again_and_again)
{
    static struct rdt_ref refs[2 * MOST];
    static rdt_object *objects[2 * MOST];
    static const uint32_t n[] = {MOST + 1, MOST + 1, MOST + 1, MOST, MOST + 1, 2 * MOST, 2 * MOST, 1, MOST};

    start();
    for (uint32_t i = 0; i < 2 * MOST; i++)
        (void)put_memory(4 * KIB, i, &refs[i]);
    for (unsigned round = 0; round < sizeof n / sizeof n[0]; round++) {
        for (uint32_t i = 0; i < n[round]; i++) {
            objects[i] = fetch_one(consumer, &refs[i], RDT_FETCH_SHARE);
            cr_assert(holds_pattern(tensor_of(objects[i], 0).data, 4 * KIB, i));
        }
        for (uint32_t i = 0; i < n[round]; i++)
            rdt_release(objects[round % 4 == 3 ? n[round] - 1 - i : i]);
    }
    finish();
}

Test(mapped, region_that_its_owner_released_is_mapped_again)
{
    struct rdt_tensor tensors[2];
    struct rdt_ref ref;
    uint8_t *memory[2];
    rdt_object *object;

    start();
    for (uint32_t i = 0; i < 2; i++) {
        memory[i] = alloc_memory(producer, MIB);
        fill_pattern(memory[i], MIB, i);
    }
    tensors[0] = VECTOR(RDT_U8, MIB, memory[0]);
    tensors[1] = VECTOR(RDT_U8, MIB, memory[1]);
    must_ok(rdt_put(producer, tensors, 2, NULL, &ref, &err));
    must_ok(rdt_dealloc(producer, memory[1], &err));
    for (unsigned round = 0; round < 4; round++) {
        object = fetch_one(producer, &ref, RDT_FETCH_SHARE);
        cr_assert(holds_pattern(tensor_of(object, 0).data, MIB, 0) && holds_pattern(tensor_of(object, 1).data, MIB, 1));
        rdt_release(object);
        if (round == 1)
            must_ok(rdt_dealloc(producer, memory[0], &err));
    }
    finish();
}

Test(mapped, too_many_push_out_the_one_that_was_not_used_for_longest)
{
    static struct rdt_ref refs[MOST + 1];
    const void *places[MOST + 1];

    start();
    (void)put_memory(4 * KIB, 0, &refs[0]);
    for (uint32_t i = 0; i <= MOST; i++)
        (void)put_memory(4 * KIB, i, &refs[i]);
    for (uint32_t i = 0; i < MOST; i++)
        places[i] = share(consumer, &refs[i], 4 * KIB, i);
    for (uint32_t i = 0; i < MOST; i++)
        cr_assert(is_mapped(places[i]));
    cr_assert_eq(share(consumer, &refs[0], 4 * KIB, 0), places[0]);
    places[MOST] = share(consumer, &refs[MOST], 4 * KIB, MOST);
    cr_assert_eq(share(consumer, &refs[0], 4 * KIB, 0), places[0]);
    cr_assert(!is_mapped(places[1]));
    cr_assert(is_mapped(places[2]) && is_mapped(places[MOST]));
    (void)share(consumer, &refs[1], 4 * KIB, 1);
    finish();
}

Test(mapped, mappings_of_snapshots_do_not_stay)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_ref ref;
    struct rdt_tensor tensor;
    const void *addr;

    start();
    tensor = VECTOR(RDT_U8, MIB, alloc_memory(producer, MIB));
    fill_pattern(tensor.data, MIB, 3);
    options.flags = RDT_PUT_SNAPSHOT;
    must_ok(rdt_put(producer, &tensor, 1, &options, &ref, &err));
    addr = share(consumer, &ref, MIB, 3);
    cr_assert(!is_mapped(addr), "nobody could take its pages from under it");
    finish();
}

Test(mapped, ended_readers_are_not_notified)
{
    struct rdt_ref ref;
    void *memory;

    start();
    memory = put_memory(MIB, 1, &ref);
    (void)share(consumer, &ref, MIB, 1);
    rdt_close(consumer);
    consumer = node_client(&node, "another");
    (void)share(consumer, &ref, MIB, 1);
    must_ok(rdt_free(producer, &ref, false, &err));
    must_ok(rdt_dealloc(producer, memory, &err));
    finish();
}

/* ---- a process without room for more mappings ---- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which need more themselves */

/* Lets this process map so many bytes more, and not one more than that. */
static void leave_room_for(size_t bytes)
{
    unsigned long pages = 0;
    FILE *statm = fopen("/proc/self/statm", "r");

    must(statm && fscanf(statm, "%lu", &pages) == 1);
    (void)fclose(statm);
    must(setrlimit(RLIMIT_AS, &(struct rlimit){pages * 4096 + bytes, RLIM_INFINITY}) == 0);
}

static void lift_limit(void)
{
    must(setrlimit(RLIMIT_AS, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}) == 0);
}

Test(mapped, process_without_address_space_gives_up_what_it_only_caches)
{
    enum { CACHED = 8 };
    struct rdt_ref refs[CACHED], large;

    start();
    for (uint32_t i = 0; i < CACHED; i++)
        (void)put_memory(16 * MIB, i, &refs[i]);
    (void)put_memory(64 * MIB, CACHED, &large);
    for (uint32_t i = 0; i < CACHED; i++)
        (void)share(consumer, &refs[i], 16 * MIB, i);
    leave_room_for(32 * MIB);
    (void)share(consumer, &large, 64 * MIB, CACHED);
    lift_limit();
    for (uint32_t i = 0; i < CACHED; i++)
        (void)share(consumer, &refs[i], 16 * MIB, i); /* whose fd comes again */
    finish();
}

Test(mapped, answers_of_one_message_wait_together_for_room)
{
    struct rdt_ref refs[5];
    rdt_object *objects[5];
    uint8_t *large;

    start();
    for (uint32_t i = 0; i < 2; i++)
        (void)put_memory(32 * MIB, i, &refs[4 * i]);
    large = put_memory(64 * MIB, 2, &refs[1]);
    refs[2] = put_one(producer, &VECTOR(RDT_U8, 64 * MIB, large), NULL); /* the fd comes with the first of them only */
    refs[3] = put_pattern(producer, NULL, KIB, 3);
    (void)share(consumer, &refs[0], 32 * MIB, 0);
    (void)share(consumer, &refs[4], 32 * MIB, 1);
    for (unsigned round = 0; round < 3; round++) {
        struct rdt_ref ask[] = {refs[1], refs[2], refs[0], refs[3]};

        leave_room_for(48 * MIB);
        must_ok(rdt_fetch(consumer, ask, 4, NULL, objects, &err));
        lift_limit();
        cr_assert(holds_pattern(tensor_of(objects[0], 0).data, 64 * MIB, 2));
        cr_assert_eq(tensor_of(objects[1], 0).data, tensor_of(objects[0], 0).data);
        cr_assert(holds_pattern(tensor_of(objects[2], 0).data, 32 * MIB, 0));
        cr_assert(holds_pattern(tensor_of(objects[3], 0).data, KIB, 3));
        for (unsigned i = 0; i < 4; i++)
            rdt_release(objects[i]);
        (void)share(consumer, &refs[4], 32 * MIB, 1);
        must_ok(rdt_dealloc(producer, large, &err));
        for (unsigned i = 1; i < 3; i++)
            must_ok(rdt_free(producer, &refs[i], false, &err));
        large = put_memory(64 * MIB, 2, &refs[1]);
        refs[2] = put_one(producer, &VECTOR(RDT_U8, 64 * MIB, large), NULL);
    }
    finish();
}

Test(mapped, allocation_gives_up_cached_memory_and_idle_loans)
{
    struct rdt_tensor tensor;
    struct rdt_error why;
    struct rdt_ref ref;
    void *own;

    node_start(&node, &(struct node_options){.flags = (const char *const[]){"--pool-idle=60s", NULL}});
    producer = node_client(&node, "producer");
    consumer = node_client(&node, "consumer");
    own = alloc_memory(producer, 5 * MIB);
    must_ok(rdt_dealloc(producer, own, &err)); /* the mapping stays for the next allocation of that size */
    cr_assert(is_mapped(own));
    tensor = VECTOR(RDT_U8, 8 * MIB, malloc(8 * MIB));
    fill_pattern(tensor.data, 8 * MIB, 1);
    ref = put_one(producer, &tensor, NULL);
    must_ok(rdt_free(producer, &ref, false, &err)); /* and that of the loan for the next put */
    leave_room_for(4 * MIB);
    own = alloc_memory(producer, 15 * MIB);
    fill_pattern(own, 15 * MIB, 2);
    cr_assert_eq(rdt_alloc(producer, 15 * MIB, &own, &why), RDT_SYSTEM);
    lift_limit();
    cr_assert_eq(why.sys_errno, ENOMEM);
    cr_assert(strstr(why.msg, "vm.max_map_count"), "%s", why.msg);
    ref = put_one(producer, &tensor, NULL);
    (void)share(consumer, &ref, 8 * MIB, 1);
    free(tensor.data);
    finish();
}

#endif
