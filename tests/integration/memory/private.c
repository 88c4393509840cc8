/* SPDX-License-Identifier: Apache-2.0 */
/* A reader's private mapping stays when it releases the object, and its next private fetch from that region reuses it: with the
 * bytes of the new object where it wrote into the old one, and with nothing of what it wrote. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/cluster.h"

#define MIB ((size_t)1 << 20)
#define PAGE 4096u
#define BYTES (6 * MIB)

TestSuite(private, .timeout = 120);

static struct test_node node;
static rdt *producer, *consumer;

static void start(void)
{
    node_start(&node, &(struct node_options){.flags = (const char *[]){"--pool-idle=60s", NULL}});
    producer = node_client(&node, "producer");
    consumer = node_client(&node, "consumer");
}

static void finish(void)
{
    if (producer)
        rdt_close(producer);
    rdt_close(consumer);
    node_end(&node, NULL);
}

static unsigned clients_now(void)
{
    struct node_status status;

    node_status(&node, &status);
    return status.clients;
}

/* Of ordinary memory, which librdt copies into a region that it loans again and again. */
static struct rdt_ref put_version(size_t bytes, uint32_t seed, uint32_t flags)
{
    struct rdt_put_options options = RDT_INIT(options);
    uint8_t *data = malloc(bytes);
    struct rdt_ref ref;

    must(data);
    fill_pattern(data, bytes, seed);
    options.flags = flags;
    must_ok(rdt_put(producer, &VECTOR(RDT_U8, (int64_t)bytes, data), 1, &options, &ref, &err));
    free(data);
    return ref;
}

static struct rdt_ref put_loaned(size_t bytes, uint32_t seed)
{
    return put_version(bytes, seed, RDT_PUT_IMMUTABLE);
}

static uint8_t *fetch_cow(const struct rdt_ref *ref, size_t bytes, uint32_t seed, rdt_object **object_p)
{
    uint8_t *data;

    *object_p = fetch_one(consumer, ref, RDT_FETCH_COW);
    must_go_by("local/cow", *object_p);
    data = tensor_of(*object_p, 0).data;
    must(holds_pattern(data, bytes, seed));
    return data;
}

static void must_be_shown(const struct rdt_ref *ref, size_t bytes, uint32_t seed)
{
    rdt *reader = node_client(&node, "another");
    rdt_object *object = fetch_one(reader, ref, RDT_FETCH_SHARE);

    must(holds_pattern(tensor_of(object, 0).data, bytes, seed));
    rdt_release(object);
    rdt_close(reader);
}

/* Ends the object, so that the next put has its region. */
static void end_version(const struct rdt_ref *ref)
{
    must_ok(rdt_ping(consumer, LONG, &err)); /* behind its RELEASE */
    must_ok(rdt_free(producer, ref, false, &err));
    must_ok(rdt_wait_freed(producer, ref, LONG, &err));
}

static void write_some(uint8_t *data, size_t bytes, uint32_t version)
{
    size_t n = bytes / PAGE;

    if (version % 5 == 4) {
        memset(data, 0xee, bytes);
        return;
    }
    data[0] = data[bytes - 1] = 0xee;
    for (size_t i = 0; i < 40; i++)
        memset(data + (i * i * 7 + version) % n * PAGE, 0xee, i % 3 ? 1 : PAGE);
}

Test(private, each_version_is_whole_where_the_one_before_was_written)
{
    uint8_t *data, *first = NULL;
    rdt_object *object;

    start();
    for (uint32_t version = 0; version < 20; version++) {
        struct rdt_ref ref = put_loaned(BYTES, version);

        data = fetch_cow(&ref, BYTES, version, &object);
        first = first ? first : data;
        cr_assert_eq(data, first, "version %u", version);
        write_some(data, BYTES, version);
        must_be_shown(&ref, BYTES, version);
        rdt_release(object);
        cr_assert(is_mapped(data));
        end_version(&ref);
    }
    finish();
}

/* As a follower does: the version before is released when the next one is there. */
Test(private, version_that_is_held_does_not_change_while_others_are_put)
{
    struct rdt_ref refs[20];
    rdt_object *before = NULL, *object;
    uint8_t *old = NULL, *data, *expected = malloc(BYTES);

    start();
    for (uint32_t version = 0; version < 20; version++) {
        refs[version] = put_loaned(BYTES, version);
        data = fetch_cow(&refs[version], BYTES, version, &object);
        if (before) {
            must_ok(rdt_free(producer, &refs[version - 1], false, &err));
            fill_pattern(expected, BYTES, version - 1);
            for (size_t i = 0; i < BYTES; i += 2 * PAGE)
                expected[i] = 0xee;
            cr_assert_eq(memcmp(old, expected, BYTES), 0, "version %u after version %u", version - 1, version);
            rdt_release(before);
        }
        for (size_t i = 0; i < BYTES; i += 2 * PAGE)
            data[i] = 0xee;
        before = object;
        old = data;
    }
    rdt_release(before);
    free(expected);
    finish();
}

Test(private, two_of_one_region_are_each_ones_own)
{
    struct rdt_ref ref;
    rdt_object *objects[2];
    uint8_t *data[2];

    start();
    for (uint32_t version = 0; version < 6; version++) {
        ref = put_loaned(BYTES, version);
        for (unsigned i = 0; i < 2; i++)
            data[i] = fetch_cow(&ref, BYTES, version, &objects[i]);
        cr_assert_neq(data[0], data[1]);
        memset(data[0], 0xee, BYTES);
        cr_assert(holds_pattern(data[1], BYTES, version));
        data[1][PAGE] = 0xdd;
        cr_assert_eq(data[0][PAGE], 0xee);
        rdt_release(objects[version % 2]);
        cr_assert_eq(data[1 - version % 2][PAGE], version % 2 ? 0xee : 0xdd);
        rdt_release(objects[1 - version % 2]);
        end_version(&ref);
    }
    finish();
}

Test(private, fetch_for_reading_sees_nothing_of_it)
{
    struct rdt_ref ref;
    rdt_object *object, *shared;

    start();
    for (uint32_t version = 0; version < 4; version++) {
        ref = put_loaned(BYTES, version);
        memset(fetch_cow(&ref, BYTES, version, &object), 0xee, BYTES);
        for (unsigned i = 0; i < 2; i++) {
            shared = fetch_one(consumer, &ref, RDT_FETCH_SHARE);
            cr_assert(!info_of(shared).writable && holds_pattern(tensor_of(shared, 0).data, BYTES, version));
            rdt_release(shared);
            if (i == 0)
                rdt_release(object);
        }
        end_version(&ref);
    }
    finish();
}

static size_t anonymous_bytes(void)
{
    FILE *status = fopen("/proc/self/status", "r");
    unsigned long kib = 0;
    char line[256];

    must(status);
    while (fgets(line, sizeof line, status) && sscanf(line, "RssAnon: %lu", &kib) != 1)
        ;
    (void)fclose(status);
    return (size_t)kib * 1024;
}

Test(private, what_was_written_takes_no_memory_afterwards)
{
    struct rdt_ref ref;
    rdt_object *object;
    size_t before;
    uint8_t *data;

    start();
    ref = put_loaned(64 * MIB, 1);
    data = fetch_cow(&ref, 64 * MIB, 1, &object);
    before = anonymous_bytes();
    memset(data, 0xee, 64 * MIB);
    cr_assert_gt(anonymous_bytes(), before + 32 * MIB);
    rdt_release(object);
    cr_assert(is_mapped(data));
    cr_assert_lt(anonymous_bytes(), before + 16 * MIB);
    finish();
}

/* The child has what it had at the fork. */
Test(private, child_keeps_what_its_parent_wrote)
{
    struct rdt_ref ref;
    rdt_object *object;
    int ends[2], status;
    uint8_t *data;
    pid_t child;

    start();
    ref = put_loaned(BYTES, 1);
    data = fetch_cow(&ref, BYTES, 1, &object);
    memset(data, 0xee, MIB);
    must(pipe(ends) == 0);
    child = fork();
    if (child == 0) {
        char go;
        bool ok = read(ends[0], &go, 1) == 1;

        for (size_t i = 0; i < MIB; i++)
            ok = ok && data[i] == 0xee;
        _exit(ok ? 0 : 1);
    }
    rdt_release(object);
    for (uint32_t version = 2; version < 5; version++) {
        end_version(&ref);
        ref = put_loaned(BYTES, version);
        cr_assert_eq(fetch_cow(&ref, BYTES, version, &object), data);
        data[0] = 0xdd;
        rdt_release(object);
    }
    must(write(ends[1], "", 1) == 1 && waitpid(child, &status, 0) == child);
    cr_assert_eq(status, 0);
    (void)close(ends[0]);
    (void)close(ends[1]);
    finish();
}

static void *take_and_release(void *arg)
{
    const struct rdt_ref *refs = arg;

    for (uint32_t i = 0; i < 24; i++) {
        rdt_object *object;
        uint8_t *data = fetch_cow(&refs[i % 2], BYTES, i % 2, &object);

        memset(data + i * PAGE, 0xee, 8 * PAGE);
        rdt_release(object);
    }
    return NULL;
}

Test(private, threads_never_have_the_same)
{
    struct rdt_ref refs[2];
    pthread_t threads[4];

    start();
    for (uint32_t i = 0; i < 2; i++)
        refs[i] = put_loaned(BYTES, i);
    for (unsigned i = 0; i < 4; i++)
        must(pthread_create(&threads[i], NULL, take_and_release, refs) == 0);
    for (unsigned i = 0; i < 4; i++)
        must(pthread_join(threads[i], NULL) == 0);
    finish();
}

enum touch { PROTECT, UNMAP, LOCK, NO_DESCRIPTORS, TOUCHES };

static void touch(enum touch how, uint8_t *data)
{
    if (how == PROTECT)
        must(mprotect(data, MIB, PROT_NONE) == 0 && mprotect(data + 2 * MIB, PAGE, PROT_READ) == 0);
    else if (how == UNMAP)
        must(munmap(data + MIB, PAGE) == 0);
    else if (how == LOCK)
        must(mlock(data + MIB, 4 * PAGE) == 0);
}

/* The mapping is as a new one afterwards, or it is a new one. */
Test(private, what_the_caller_did_with_the_memory_is_undone)
{
    struct rdt_ref ref;
    rdt_object *object;

    start();
    for (uint32_t version = 0; version < 3 * TOUCHES; version++) {
        enum touch how = (enum touch)(version % TOUCHES);
        struct rlimit limit, none;
        uint8_t *data;

        ref = put_loaned(BYTES, version);
        data = fetch_cow(&ref, BYTES, version, &object);
        memset(data, 0xee, BYTES);
        touch(how, data);
        must(getrlimit(RLIMIT_NOFILE, &limit) == 0);
        none = (struct rlimit){0, limit.rlim_max};
        if (how == NO_DESCRIPTORS)
            must(setrlimit(RLIMIT_NOFILE, &none) == 0);
        rdt_release(object);
        must(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        end_version(&ref);
    }
    finish();
}

Test(private, mapping_ends_with_its_region)
{
    struct rdt_ref ref;
    rdt_object *object;
    uint8_t *data;

    start();
    ref = put_loaned(BYTES, 1);
    data = fetch_cow(&ref, BYTES, 1, &object);
    rdt_release(object);
    end_version(&ref);
    cr_assert(is_mapped(data));
    rdt_close(producer);
    producer = NULL;
    wait_until(20 * SEC, clients_now() == 1);
    must_ok(rdt_ping(consumer, LONG, &err));
    cr_assert(!is_mapped(data));
    finish();
}

static void leaves_nothing(size_t bytes, uint32_t flags)
{
    struct rdt_ref ref = put_version(bytes, 1, flags);
    rdt_object *object;
    uint8_t *data = fetch_cow(&ref, bytes, 1, &object);

    rdt_release(object);
    cr_assert(!is_mapped(data));
}

/* A sealed region is another object's only after its end; a small mapping is made as fast as it is reset. */
Test(private, mappings_of_sealed_and_small_objects_do_not_stay)
{
    start();
    leaves_nothing(BYTES, RDT_PUT_SNAPSHOT);
    leaves_nothing(MIB / 4, RDT_PUT_IMMUTABLE);
    finish();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which need more themselves */
Test(private, process_without_address_space_gives_them_up)
{
    enum { KEPT = 4 };
    struct rdt_ref refs[KEPT], large;
    rdt_object *object;
    unsigned long pages = 0;
    FILE *statm;

    start();
    for (uint32_t i = 0; i < KEPT; i++)
        refs[i] = put_loaned(16 * MIB, i);
    large = put_loaned(48 * MIB, KEPT);
    for (unsigned round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < KEPT; i++) {
            memset(fetch_cow(&refs[i], 16 * MIB, i, &object), 0xee, MIB);
            rdt_release(object);
        }
        statm = fopen("/proc/self/statm", "r");
        must(statm && fscanf(statm, "%lu", &pages) == 1);
        (void)fclose(statm);
        must(setrlimit(RLIMIT_AS, &(struct rlimit){pages * PAGE + 16 * MIB, RLIM_INFINITY}) == 0);
        memset(fetch_cow(&large, 48 * MIB, KEPT, &object), 0xee, MIB);
        rdt_release(object);
        must(setrlimit(RLIMIT_AS, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}) == 0);
    }
    finish();
}
#endif
