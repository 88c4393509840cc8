/* SPDX-License-Identifier: Apache-2.0 */
/* Loaned regions: librdt copies a put into memory that it keeps and loans it to the object. The next put reuses it, and
 * readers of the earlier object are not affected. It is charged while it is loaned, and freed when nobody needs it or
 * others need the room. */
#include <sys/mman.h>

#include "tests/integration/limits/limits.h"
#include "tests/support/cluster.h"

TestSuite(loans, .timeout = 120);

static const char *const long_idle[] = {"--pool-idle=60s", NULL};

static struct node_status status_now(void)
{
    struct node_status status;

    node_status(&node, &status);
    return status;
}

/* The other client reads the object, and the test learns its address. The notice that a loaned region is back comes before
 * any later answer. */
static unsigned long read_by_other(const struct rdt_ref *ref, enum rdt_fetch_mode mode, const char *path, size_t bytes,
                                   uint32_t seed)
{
    rdt_object *object = fetch_one(other, ref, mode);
    struct rdt_tensor tensor = tensor_of(object, 0);
    unsigned long inode = inode_at(tensor.data);

    must_go_by(path, object);
    must(holds_pattern(tensor.data, bytes, seed));
    if (mode == RDT_FETCH_COW)
        memset(tensor.data, 0xee, bytes); /* its own */
    rdt_release(object);
    must_ok(rdt_ping(other, LONG, &err));
    return inode;
}

static void free_and_hear(const struct rdt_ref *ref)
{
    must_ok(rdt_free(conn, ref, false, &err));
    must_ok(rdt_wait_freed(conn, ref, LONG, &err));
}

static void cacheable(enum rdt_fetch_mode mode, const char *path, uint32_t flags)
{
    struct rdt_put_options options = RDT_INIT(options);
    static const size_t sizes[] = {100000, MIB, 9 * MIB};

    begin(long_idle);
    for (unsigned s = 0; s < 3; s++) {
        unsigned long inode, first = 0;
        for (uint32_t i = 0; i < 10; i++) {
            size_t bytes = sizes[s] - 97 * i; /* about the same */
            uint8_t *data = malloc(bytes);
            struct rdt_ref ref;
            options.flags = flags;
            fill_pattern(data, bytes, i);
            must_ok(rdt_put(conn, &VECTOR(RDT_U8, (int64_t)bytes, data), 1, &options, &ref, &err));
            memset(data, 0xee, bytes);
            inode = read_by_other(&ref, mode, path, bytes, i);
            free(data);
            cr_assert(i == 0 || inode == first, "size %u, round %u", s, i);
            first = inode;
            free_and_hear(&ref);
        }
    }
    cr_assert_eq(status_now().memory_bytes, 0);
    cr_assert_geq(status_now().cached_bytes, 10 * MIB);
    end(NULL);
}

Test(loans, puts_reuse_the_same_memory)
{
    cacheable(RDT_FETCH_SHARE, "local/share", 0);
}

Test(loans, unsealed_snapshots_reuse_the_same_memory)
{
    cacheable(RDT_FETCH_SHARE, "local/share", RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED);
    cacheable(RDT_FETCH_COW, "local/cow", RDT_PUT_IMMUTABLE);
}

Test(loans, detached_objects_reuse_the_same_memory)
{
    cacheable(RDT_FETCH_SHARE, "local/share", RDT_PUT_DETACHED);
    cacheable(RDT_FETCH_COW, "local/cow", RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED | RDT_PUT_DETACHED);
    cacheable(RDT_FETCH_COW, "local/cow", RDT_PUT_IMMUTABLE | RDT_PUT_DETACHED);
}

/* They must be sealed: others may see them, or they are the user's own memory. */
Test(loans, snapshots_that_must_be_sealed_are)
{
    static const struct {
        uint32_t flags;
        enum rdt_visibility visibility;
        bool own;
    } cases[] = {
        {0, RDT_VISIBLE_TO_ALL, false}, {RDT_PUT_DETACHED, RDT_VISIBLE_TO_ALL, false}, {0, RDT_VISIBLE_TO_OWNER, true}};
    struct rdt_put_options options = RDT_INIT(options);
    uint8_t *ordinary = malloc(MIB), *own;

    begin((const char *[]){"--pool-idle=1s", NULL});
    own = alloc_memory(conn, MIB);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *data = cases[i].own ? own : ordinary;
        struct rdt_ref ref;
        rdt_object *object;

        fill_pattern(data, MIB, 1);
        options.flags = RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED | cases[i].flags;
        options.visibility = cases[i].visibility;
        must_ok(rdt_put(conn, &VECTOR(RDT_U8, MIB, data), 1, &options, &ref, &err));
        memset(data, 0xee, MIB);
        object = fetch_one(other, &ref, RDT_FETCH_SHARE);
        cr_assert(holds_pattern(tensor_of(object, 0).data, MIB, 1), "case %zu", i);
        rdt_release(object);
        must_ok(rdt_free(conn, &ref, false, &err));
        cr_assert(cases[i].own || status_now().cached_bytes == 0, "case %zu was loaned", i);
    }
    options = (struct rdt_put_options)RDT_INIT(options);
    options.flags = RDT_PUT_UNSEALED;
    must_refuse(RDT_INVALID, "only a SNAPSHOT",
                rdt_put(conn, &VECTOR(RDT_U8, MIB, ordinary), 1, &options, &(struct rdt_ref){0}, &err));
    must_ok(rdt_dealloc(conn, own, &err));
    free(ordinary);
    end(NULL);
}

Test(loans, they_are_mapped_privately_without_a_copy)
{
    cacheable(RDT_FETCH_COW, "local/cow", 0);
}

/* However it is read: the memory is not filled anew before the last has let go. */
Test(loans, reader_keeps_its_bytes)
{
    static const enum rdt_fetch_mode modes[] = {RDT_FETCH_AUTO, RDT_FETCH_SHARE, RDT_FETCH_COPY, RDT_FETCH_COW};
    rdt_object *objects[64];

    begin((const char *[]){"--pool-idle=1s", NULL});
    for (uint32_t i = 0; i < 64; i++) {
        struct rdt_ref ref = put_pattern(conn, NULL, MIB / 4, i);
        objects[i] = fetch_one(i % 2 ? other : conn, &ref, modes[i / 2 % 4]);
        must_ok(rdt_free(conn, &ref, false, &err));
        for (uint32_t j = i > 16 ? i - 16 : 0; j <= i; j++)
            cr_assert(holds_pattern(tensor_of(objects[j], 0).data, MIB / 4, j), "object %u after put %u", j, i);
        if (i >= 16)
            rdt_release(objects[i - 16]);
    }
    for (uint32_t i = 48; i < 64; i++)
        rdt_release(objects[i]);
    end(NULL);
}

/* The producer fetches the object like everybody else; if it could write there, others would see it. */
Test(loans, its_producer_cannot_write_it)
{
    struct rdt_ref ref;
    rdt_object *mine, *cow;

    begin(long_idle);
    ref = put_pattern(conn, NULL, MIB, 1);
    cow = fetch_one(other, &ref, RDT_FETCH_COW);
    mine = fetch_one(conn, &ref, RDT_FETCH_AUTO);
    must_go_by("local/share", mine);
    cr_assert(!info_of(mine).writable);
    cr_assert(holds_pattern(tensor_of(mine, 0).data, MIB, 1));
    cr_assert_eq(mprotect((void *)((uintptr_t)tensor_of(mine, 0).data & ~(uintptr_t)4095), MIB, PROT_READ | PROT_WRITE), -1);
    rdt_release(mine);
    mine = fetch_one(conn, &ref, RDT_FETCH_COW);
    memset(tensor_of(mine, 0).data, 0xee, MIB);
    cr_assert(holds_pattern(tensor_of(cow, 0).data, MIB, 1));
    rdt_release(mine);
    rdt_release(cow);
    end(NULL);
}

/* A region that the producer has mapped for reading is not the loan's mapping. */
Test(loans, region_returns_to_a_producer_that_reads_it_too)
{
    static const enum rdt_fetch_mode modes[] = {RDT_FETCH_SHARE, RDT_FETCH_COW, RDT_FETCH_SHARE, RDT_FETCH_COPY};
    unsigned long inode = 0, first = 0;

    begin(long_idle);
    for (uint32_t i = 0; i < 24; i++) {
        struct rdt_ref ref = put_pattern(conn, NULL, MIB, i);
        for (unsigned j = 0; j < 8; j++) {
            rdt_object *object = fetch_one(conn, &ref, modes[(i + j / 2) % 4]);
            cr_assert(holds_pattern(tensor_of(object, 0).data, MIB, i));
            if (!info_of(object).writable)
                inode = inode_at(tensor_of(object, 0).data);
            else
                memset(tensor_of(object, 0).data, 0xee, MIB);
            rdt_release(object);
        }
        first = first ? first : inode;
        cr_assert_eq(inode, first, "round %u", i);
        free_and_hear(&ref);
    }
    end(NULL);
}

/* The object is as live as the part that its producer may write. */
Test(loans, partly_copied_object_is_copied_for_a_private_reader)
{
    struct rdt_ref ref;
    uint8_t *copied = malloc(MIB), *own;
    rdt_object *object;

    begin(long_idle);
    own = alloc_memory(conn, MIB);
    fill_pattern(copied, MIB, 1);
    for (unsigned i = 0; i < 3; i++) {
        fill_pattern(own, MIB, 2);
        must_ok(
            rdt_put(conn, (struct rdt_tensor[]){VECTOR(RDT_U8, MIB, copied), VECTOR(RDT_U8, MIB, own)}, 2, NULL, &ref, &err));
        object = fetch_one(other, &ref, RDT_FETCH_COW);
        must_go_by("local/copy", object);
        memset(own, 0xee, MIB);
        cr_assert(holds_pattern(tensor_of(object, 0).data, MIB, 1) && holds_pattern(tensor_of(object, 1).data, MIB, 2));
        rdt_release(object);
        free_and_hear(&ref);
    }
    free(copied);
    end(NULL);
}

/* ---- many at once ---- */

enum { THREADS = 4, ROUNDS = 150 };

static void *put_and_read(void *arg)
{
    static const enum rdt_fetch_mode modes[] = {RDT_FETCH_SHARE, RDT_FETCH_COW, RDT_FETCH_COPY};
    uint64_t random = (uintptr_t)arg;
    rdt_object *kept[3] = {NULL};
    size_t kept_bytes[3] = {0};
    uint32_t kept_seed[3] = {0};

    for (unsigned i = 0; i < ROUNDS; i++) {
        size_t bytes = 40000 + next_random(&random) % 200000;
        uint32_t seed = next_random(&random);
        unsigned at = next_random(&random) % 3;
        struct rdt_ref ref = put_pattern(conn, NULL, bytes, seed);

        if (kept[at]) {
            must(holds_pattern(tensor_of(kept[at], 0).data, kept_bytes[at], kept_seed[at]));
            rdt_release(kept[at]);
        }
        kept[at] = fetch_one(next_random(&random) % 2 ? other : conn, &ref, modes[at]);
        kept_bytes[at] = bytes;
        kept_seed[at] = seed;
        must_ok(rdt_drop(conn, &ref, &err));
    }
    for (unsigned at = 0; at < 3; at++) {
        if (!kept[at])
            continue;
        must(holds_pattern(tensor_of(kept[at], 0).data, kept_bytes[at], kept_seed[at]));
        rdt_release(kept[at]);
    }
    return NULL;
}

/* The daemon ends idle loans all the time. */
Test(loans, threads_that_put_and_read_at_once_read_what_was_put)
{
    pthread_t threads[THREADS];

    begin((const char *[]){"--pool-idle=1ms", "--cache-max=1MiB", NULL});
    for (uintptr_t i = 0; i < THREADS; i++)
        must(pthread_create(&threads[i], NULL, put_and_read, (void *)(i + 1)) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        (void)pthread_join(threads[i], NULL);
    end(NULL);
}

/* ---- how it goes ---- */

/* The producer does not hear of it, and puts where nothing is any more. */
Test(loans, region_that_the_daemon_freed_is_allocated_again)
{
    struct rdt_ref ref;
    int64_t shape[] = {300, 400};
    uint8_t *data = malloc(300 * 900);

    begin((const char *[]){"--pool-idle=200ms", NULL});
    fill_pattern(data, 300 * 900, 5);
    for (unsigned i = 0; i < 3; i++) {
        struct rdt_tensor strided = {
            .dtype = RDT_U8, .ndim = 2, .shape = shape, .strides = (const int64_t[]){900, 2}, .data = data};
        rdt_object *object;
        struct rdt_tensor tensor;
        ref = put_one(conn, &strided, NULL);
        object = fetch_one(other, &ref, RDT_FETCH_SHARE);
        tensor = tensor_of(object, 0);
        cr_assert(tensors_equal(&tensor, &strided));
        rdt_release(object);
        must_ok(rdt_ping(other, LONG, &err));
        free_and_hear(&ref);
        wait_until(LONG, status_now().cached_bytes == 0);
    }
    wait_until(LONG, used(session(conn), "regions") == 0);
    free(data);
    end(NULL);
}

Test(loans, idle_region_is_freed_before_a_request_is_refused)
{
    struct rdt_ref ref;
    void *memory;

    begin((const char *[]){"--pool-idle=60s", "--memory-limit=16MiB", "--cache-max=16MiB", NULL});
    for (unsigned i = 0; i < 3; i++) {
        ref = put_pattern(conn, NULL, 9 * MIB, i);
        (void)read_by_other(&ref, RDT_FETCH_SHARE, "local/share", 9 * MIB, i);
        free_and_hear(&ref);
        cr_assert_geq(status_now().cached_bytes, 9 * MIB);
        memory = alloc_memory(other, 15 * MIB);
        cr_assert_eq(status_now().cached_bytes, 0);
        must_ok(rdt_dealloc(other, memory, &err));
    }
    end(NULL);
}

/* Idle it is nobody's bytes; lent it is its client's. */
Test(loans, loaned_region_is_charged)
{
    struct rdt_ref ref, second;
    void *memory = malloc(9 * MIB);

    begin((const char *[]){"--pool-idle=60s", "--client-max-bytes=16MiB", NULL});
    memset(memory, 1, 9 * MIB);
    for (unsigned i = 0; i < 3; i++) {
        ref = put_pattern(conn, NULL, 9 * MIB, i);
        cr_assert_geq(used(session(conn), "bytes"), 9 * MIB);
        must_refuse(RDT_LIMIT, "client_max_bytes", rdt_put(conn, &VECTOR(RDT_U8, 9 * MIB, memory), 1, NULL, &second, &err));
        free_and_hear(&ref);
        wait_until(LONG, used(session(conn), "bytes") == 0);
        wait_until(LONG, used(session(conn), "regions") == 0);
    }
    free(memory);
    end(NULL);
}

/* Whether something fits does not depend on what lay there before, nor on how sizes are rounded. */
Test(loans, loans_respect_the_memory_limit)
{
    struct rdt_ref ref, five[5];
    void *memory;

    begin((const char *[]){"--pool-idle=60s", "--client-max-bytes=17MiB", NULL});
    ref = put_pattern(conn, NULL, 17 * MIB - 4096, 1);
    free_and_hear(&ref);
    ref = put_pattern(conn, NULL, 10 * MIB, 2);
    free_and_hear(&ref);
    memory = alloc_memory(conn, 8 * MIB);
    ref = put_pattern(conn, NULL, 9 * MIB, 3);
    free_and_hear(&ref);
    must_ok(rdt_dealloc(conn, memory, &err));
    memory = alloc_memory(conn, 7 * MIB + MIB / 2);
    ref = put_pattern(conn, NULL, 9 * MIB + MIB / 2, 4);
    free_and_hear(&ref);
    must_ok(rdt_dealloc(conn, memory, &err));
    for (unsigned i = 0; i < 5; i++)
        five[i] = put_pattern(conn, NULL, 17 * MIB / 5, i);
    for (unsigned i = 0; i < 5; i++)
        free_and_hear(&five[i]);
    end(NULL);
}

/* Idle loans never use more than half of the descriptors. */
Test(loans, loans_use_no_scarce_descriptors)
{
    struct rdt_ref refs[30];
    void *memory[18];

    begin((const char *[]){"--pool-idle=60s", "--client-max-fds=40", NULL});
    for (unsigned i = 0; i < 30; i++)
        refs[i] = put_pattern(conn, NULL, MIB / 4, i);
    for (unsigned i = 0; i < 30; i++)
        free_and_hear(&refs[i]);
    for (unsigned i = 0; i < 18; i++)
        memory[i] = alloc_memory(conn, 2 * MIB);
    for (unsigned i = 0; i < 18; i++)
        must_ok(rdt_dealloc(conn, memory[i], &err));
    end(NULL);
}

/* ---- deaths ---- */

static int reads_and_stays(struct actor *self, void *arg)
{
    const struct rdt_ref *ref = arg;
    rdt *mine = node_client(&node, "reader");
    rdt_object *object = fetch_one(mine, ref, RDT_FETCH_SHARE);
    unsigned long inode = inode_at(tensor_of(object, 0).data);

    actor_send(self, &inode, sizeof inode);
    actor_await(self);
    return 0;
}

/* The client may have children that still read it. */
Test(loans, region_of_a_killed_reader_is_not_filled_again)
{
    struct actor actor;
    unsigned long inode;
    struct rdt_ref ref;

    begin(long_idle);
    ref = put_pattern(conn, NULL, MIB, 1);
    actor_start_keeping(&actor, reads_and_stays, &ref, -1);
    actor_recv(&actor, &inode, sizeof inode);
    actor_kill(&actor, SIGKILL);
    free_and_hear(&ref);
    for (uint32_t i = 0; i < 4; i++) {
        ref = put_pattern(conn, NULL, MIB, i);
        cr_assert_neq(read_by_other(&ref, RDT_FETCH_SHARE, "local/share", MIB, i), inode);
        free_and_hear(&ref);
    }
    end((const char *[]){"(pid ", NULL});
}

static struct rdt_ref put_flags(rdt *client, uint32_t flags, uint32_t seed)
{
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = flags};
    uint8_t *data = malloc(MIB);
    struct rdt_ref ref;

    fill_pattern(data, MIB, seed);
    ref = put_as(client, &VECTOR(RDT_U8, MIB, data), 1, &options);
    free(data);
    return ref;
}

/* arg: the flags of the last put */
static int puts_and_stays(struct actor *self, void *arg)
{
    rdt *mine = node_client(&node, "producer");
    struct rdt_ref ref;

    for (uint32_t i = 0; i < 4; i++) { /* the region has been loaned before */
        ref = put_pattern(mine, NULL, MIB, i);
        must_ok(rdt_free(mine, &ref, false, &err));
        must_ok(rdt_wait_freed(mine, &ref, LONG, &err));
    }
    ref = put_flags(mine, *(const uint32_t *)arg, 9);
    actor_send(self, &ref, sizeof ref);
    actor_await(self);
    return 0;
}

Test(loans, region_of_a_killed_producer_stays_for_its_readers)
{
    struct actor actor;
    struct rdt_ref ref;
    rdt_object *shared, *cow;

    begin(long_idle);
    actor_start_keeping(&actor, puts_and_stays, &(uint32_t){0}, -1);
    actor_recv(&actor, &ref, sizeof ref);
    shared = fetch_one(conn, &ref, RDT_FETCH_SHARE);
    cow = fetch_one(other, &ref, RDT_FETCH_COW);
    actor_kill(&actor, SIGKILL);
    wait_until(LONG, status_now().clients == 3); /* with the watcher */
    cr_assert(holds_pattern(tensor_of(shared, 0).data, MIB, 9));
    cr_assert(holds_pattern(tensor_of(cow, 0).data, MIB, 9));
    rdt_release(shared);
    rdt_release(cow);
    wait_until(LONG, used(0, "bytes") == 0); /* though they have it mapped yet */
    cr_assert_eq(status_now().orphaned_bytes, 0);
    end((const char *[]){"(pid ", NULL});
}

/* The object has the region alone from then on, and it is freed with the object: nobody else gets memory that the producer's
 * children may still have mapped. */
Test(loans, region_of_a_killed_producer_stays_for_a_detached_object)
{
    static const uint32_t flags[] = {RDT_PUT_DETACHED, RDT_PUT_DETACHED | RDT_PUT_SNAPSHOT | RDT_PUT_UNSEALED};

    begin(long_idle);
    for (unsigned i = 0; i < 2; i++) {
        struct actor actor;
        struct rdt_ref ref;
        actor_start_keeping(&actor, puts_and_stays, (void *)&flags[i], -1);
        actor_recv(&actor, &ref, sizeof ref);
        actor_kill(&actor, SIGKILL);
        wait_until(LONG, status_now().clients == 3); /* with the watcher */
        rdt_object *object = fetch_one(conn, &ref, RDT_FETCH_COW);
        must_go_by("local/cow", object);
        cr_assert(holds_pattern(tensor_of(object, 0).data, MIB, 9));
        rdt_release(object);
        must_ok(rdt_free(other, &ref, false, &err));
        must_ok(rdt_wait_freed(other, &ref, LONG, &err));
        wait_until(LONG, used(0, "bytes") == 0);
    }
    cr_assert_eq(status_now().orphaned_bytes, 0);
    end((const char *[]){"(pid ", NULL});
}

/* Another session of the user frees the object, and the one that put it has its memory back. */
Test(loans, detached_object_that_another_session_frees_gives_its_memory_back)
{
    unsigned long inode, first = 0;

    begin(long_idle);
    for (uint32_t i = 0; i < 4; i++) {
        struct rdt_ref ref = put_flags(conn, RDT_PUT_DETACHED, i);
        inode = read_by_other(&ref, RDT_FETCH_SHARE, "local/share", MIB, i);
        cr_assert(i == 0 || inode == first);
        first = inode;
        must_ok(rdt_free(other, &ref, false, &err));
        must_ok(rdt_wait_freed(other, &ref, LONG, &err));
        must_ok(rdt_ping(conn, LONG, &err));
    }
    end(NULL);
}

/* ---- memory that is never loaned ---- */

Test(loans, region_that_others_may_see_is_never_loaned)
{
    struct rdt_put_options options = RDT_INIT(options);
    uint8_t *data = malloc(MIB);

    begin(long_idle);
    memset(data, 1, MIB);
    options.visibility = RDT_VISIBLE_TO_ALL;
    for (unsigned i = 0; i < 3; i++) {
        struct rdt_ref ref;
        rdt_object *object;
        must_ok(rdt_put(conn, &VECTOR(RDT_U8, MIB, data), 1, &options, &ref, &err));
        object = fetch_one(other, &ref, RDT_FETCH_COW);
        must_go_by("local/copy", object);
        rdt_release(object);
        object = fetch_one(other, &ref, RDT_FETCH_SHARE);
        rdt_release(object);
        free_and_hear(&ref);
    }
    cr_assert_eq(status_now().cache_hits, 2, "of the reader's copies");
    free(data);
    end(NULL);
}

/* ---- who says wrong things of what it lends ---- */

static void refuses(struct raw *raw, const Rdt__Pb__Put *put, enum rdt_status status, const char *says)
{
    char text[256];

    (void)raw_send(raw, RDT_MSG_PUT, &put->base, NULL, 0);
    cr_assert_eq(raw_error(raw, text), status);
    must_say(strstr(text, says), "\"%s\" does not say \"%s\"", text, says);
}

static Rdt__Pb__PutReply *puts_in(struct raw *raw, const Rdt__Pb__Put *put)
{
    return (Rdt__Pb__PutReply *)raw_reply(raw, raw_send(raw, RDT_MSG_PUT, &put->base, NULL, 0),
                                          &rdt__pb__put_reply__descriptor);
}

Test(loans, false_loans_are_refused)
{
    uint64_t shape[] = {8192}, offset[] = {0};
    uint32_t ndim[] = {1}, index[] = {0}, dtypes[] = {RDT_U8}, lent[] = {0, 0, 7};
    Rdt__Pb__TensorList tensors = RDT__PB__TENSOR_LIST__INIT;
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT, *uses[] = {&use};
    Rdt__Pb__ReleaseRegion release = RDT__PB__RELEASE_REGION__INIT;
    Rdt__Pb__Put put = RDT__PB__PUT__INIT;
    Rdt__Pb__PutReply *reply;
    Rdt__Pb__RegionBack *back = NULL;
    Rdt__Pb__Free drop = RDT__PB__FREE__INIT;
    struct raw raw;

    begin(long_idle);
    greeted(&raw);
    use.region = raw_alloc(&raw, 8192, NULL, &use.generation);
    tensors.shape = shape;
    tensors.ndim = ndim;
    tensors.offset = offset;
    tensors.region_index = index;
    tensors.dtype = dtypes;
    tensors.n_shape = tensors.n_ndim = tensors.n_offset = tensors.n_region_index = tensors.n_dtype = 1;
    put.tensors = &tensors;
    put.regions = uses;
    put.n_regions = 1;
    put.loaned = lent;
    put.n_loaned = 2;
    refuses(&raw, &put, RDT_INVALID, "in ascending order");
    put.loaned = lent + 2;
    put.n_loaned = 1;
    refuses(&raw, &put, RDT_INVALID, "loans region 7 of 1");
    put.loaned = lent;
    put.flags = RDT_PUT_SNAPSHOT;
    refuses(&raw, &put, RDT_INVALID, "no flags but IMMUTABLE");
    put.flags = RDT_PUT_IMMUTABLE;
    put.visibility = RDT__PB__VISIBILITY__VISIBILITY_ALL;
    refuses(&raw, &put, RDT_INVALID, "only their owner");
    put.visibility = RDT__PB__VISIBILITY__VISIBILITY_OWNER;
    for (unsigned i = 0; i < 3; i++) { /* lent, back, lent again */
        reply = puts_in(&raw, &put);
        drop.ref = reply->ref;
        (void)raw_send(&raw, RDT_MSG_FREE, &drop.base, NULL, 0);
        for (unsigned frames = 0; frames < 2; frames++) { /* the answer, and the word that it is back */
            must(raw_next(&raw));
            if (!(raw.frame.flags & FRAME_EVENT))
                continue;
            cr_assert_eq(raw.frame.type, RDT_EVENT_REGION_BACK);
            back = rdt__pb__region_back__unpack(NULL, raw.frame.length, raw.frame.payload);
        }
        cr_assert(back && back->n_regions == 1 && back->regions[0] == use.region);
        rdt__pb__region_back__free_unpacked(back, NULL);
        back = NULL;
        rdt__pb__put_reply__free_unpacked(reply, NULL);
        wait_until(LONG, used(0, "regions") == 0);
    }
    release.region = use.region; /* RETURNED, and released */
    protobuf_c_message_free_unpacked(
        raw_reply(&raw, raw_send(&raw, RDT_MSG_RELEASE_REGION, &release.base, NULL, 0), &rdt__pb__region_released__descriptor),
        NULL);
    refuses(&raw, &put, RDT_NOT_FOUND, "has no region");
    wait_until(LONG, status_now().cached_bytes == 0);
    raw_close(&raw);
    end(NULL);
}
