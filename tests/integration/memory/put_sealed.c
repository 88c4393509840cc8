/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots in memfds that their client creates and seals. Every reader gets the bytes that were put, by every path.
 * Without room a put waits like any other. */
#include <fcntl.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "tests/integration/memory/snapshot.h"
#include "tests/support/cluster.h"

#define KIB ((size_t)1024)
#define INLINE_MAX (32 * KIB)
#define MADE_MAX (4 * MIB)
#define STRANGER 12345

static void begin_with(const char *const *flags)
{
    begin(&(struct node_options){.log = "trace", .flags = flags});
}

/* Of all that was asked of the daemon there was no ALLOC: the memory was made elsewhere. */
static bool nothing_was_allocated(void)
{
    return !node_log_has(&node, "ALLOC from client");
}

static struct rdt_ref put_bytes(rdt *client, const void *data, size_t bytes)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_ref ref;
    enum rdt_memory how;

    options.flags = RDT_PUT_SNAPSHOT;
    options.how = &how;
    must_ok(rdt_put(client, &VECTOR(RDT_U8, bytes, (void *)data), 1, &options, &ref, &err));
    must(how == RDT_MEMORY_COPIED);
    return ref;
}

/* ---- the bytes that readers get ---- */

static void put_sizes(const size_t *sizes, size_t n)
{
    rdt *other = node_client(&node, "other");
    uint8_t *data = malloc(MADE_MAX + 64);

    for (size_t i = 0; i < n; i++) {
        struct rdt_ref ref;
        fill_pattern(data, sizes[i], (uint32_t)i);
        ref = put_bytes(conn, data, sizes[i]);
        memset(data, 0xee, sizes[i]);
        for (unsigned again = 0; again < 2; again++)
            for (unsigned mode = 0; mode < 4; mode++) {
                must_be_pattern(conn, &ref, (enum rdt_fetch_mode)mode, sizes[i], (uint32_t)i);
                must_be_pattern(other, &ref, (enum rdt_fetch_mode)mode, sizes[i], (uint32_t)i);
            }
        must_ok(rdt_free(conn, &ref, false, &err));
    }
    free(data);
    rdt_close(other);
}

Test(put_sealed, bytes_are_right_at_every_size)
{
    static const size_t sizes[] = {INLINE_MAX + 1, 9 * 4096 - 1, 9 * 4096,     9 * 4096 + 1,
                                   150000,         MIB + 13,     MADE_MAX - 1, MADE_MAX};

    begin_with(NULL);
    put_sizes(sizes, sizeof sizes / sizeof sizes[0]);
    cr_assert(nothing_was_allocated());
    end();
}

/* Above the limit, and of a daemon that offers none. */
Test(put_sealed, too_large_tensor_is_put_by_copy)
{
    const char *flags[] = {"--set", "transfer.sealed_max=0", NULL};
    size_t large = MADE_MAX + 1, small = 100000;

    begin_with(NULL);
    put_sizes(&large, 1);
    cr_assert_not(nothing_was_allocated());
    end();
    begin_with(flags);
    put_sizes(&small, 1);
    cr_assert_not(nothing_was_allocated());
    end();
}

static void put_many(size_t n, size_t most)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_tensor *tensors = calloc(n, sizeof *tensors);
    int64_t(*shapes)[2] = calloc(n, sizeof *shapes);
    uint8_t *data = malloc(n * most + 1);
    uint64_t state = n;
    struct rdt_ref ref;
    rdt_object *object;

    fill_pattern(data, n * most + 1, 3);
    for (size_t i = 0; i < n; i++) { /* at odd addresses, some without elements */
        shapes[i][0] = next_random(&state) % 8;
        shapes[i][1] = (int64_t)(next_random(&state) % (most / 8)) + 1;
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 2, .shape = shapes[i], .data = data + i * most + i % 2};
    }
    options.flags = RDT_PUT_SNAPSHOT;
    must_ok(rdt_put(conn, tensors, n, &options, &ref, &err));
    for (unsigned mode = 0; mode < 4; mode++) {
        object = fetch_one(conn, &ref, (enum rdt_fetch_mode)mode);
        cr_assert_eq(rdt_object_count(object), n);
        for (size_t i = 0; i < n; i++) {
            struct rdt_tensor seen = tensor_of(object, i);
            cr_assert(tensors_equal(&seen, &tensors[i]), "tensor %zu", i);
        }
        rdt_release(object);
    }
    must_ok(rdt_free(conn, &ref, false, &err));
    free(tensors);
    free(shapes);
    free(data);
}

Test(put_sealed, many_tensors_of_odd_sizes_and_places)
{
    begin_with(NULL);
    put_many(7, 40000);
    put_many(700, 2000);
    put_many(10000, 300);
    cr_assert(nothing_was_allocated());
    end();
}

/* Some of its tensors lie in the daemon's memory: those are copied by the daemon. */
Test(put_sealed, beside_memory_of_the_daemons)
{
    size_t bytes = 300000;
    uint8_t *memory, *heap = malloc(bytes);
    struct rdt_put_options options = RDT_INIT(options);
    enum rdt_memory how[3];
    struct rdt_ref ref;
    rdt_object *object;

    begin(NULL);
    memory = alloc_memory(conn, bytes);
    fill_pattern(memory, bytes, 1);
    fill_pattern(heap, bytes, 2);
    options.flags = RDT_PUT_SNAPSHOT;
    options.timeout_ns = LONG;
    options.how = how;
    must_ok(rdt_put(
        conn, (struct rdt_tensor[]){VECTOR(RDT_U8, 1000, heap), VECTOR(RDT_U8, bytes, memory), VECTOR(RDT_U8, bytes, heap)}, 3,
        &options, &ref, &err));
    cr_assert(how[0] == RDT_MEMORY_COPIED && how[1] == RDT_MEMORY_DAEMON && how[2] == RDT_MEMORY_COPIED);
    memset(memory, 0xee, bytes);
    for (unsigned mode = 0; mode < 4; mode++) {
        object = fetch_one(conn, &ref, (enum rdt_fetch_mode)mode);
        must_hold(object, 0, 1000, 2);
        must_hold(object, 1, bytes, 1);
        must_hold(object, 2, bytes, 2);
        rdt_release(object);
    }
    must_ok(rdt_dealloc(conn, memory, &err));
    free(heap);
    end();
}

/* ---- other readers ---- */

static int put_as_stranger(struct actor *self, void *arg)
{
    uint8_t *data = malloc(MIB);
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_connect_options here = RDT_INIT(here);
    rdt *client;
    struct rdt_ref ref;

    (void)arg;
    must(chdir(node.dir) == 0 && setgroups(0, NULL) == 0 && setresgid(STRANGER, STRANGER, STRANGER) == 0 &&
         setresuid(STRANGER, STRANGER, STRANGER) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
    here.socket = "s";
    must_ok(rdt_connect(&here, &client, &err));
    fill_pattern(data, MIB, 6);
    options.flags = RDT_PUT_SNAPSHOT | RDT_PUT_DETACHED;
    options.visibility = RDT_VISIBLE_TO_ALL;
    must_ok(rdt_put(client, &VECTOR(RDT_U8, MIB, data), 1, &options, &ref, &err));
    must_be_pattern(client, &ref, RDT_FETCH_SHARE, MIB, 6);
    rdt_close(client);
    actor_send(self, &ref, sizeof ref);
    return 0; /* at once */
}

Test(put_sealed, another_user_reads_it_after_its_clients_end)
{
    struct actor producer;
    struct rdt_ref ref;

    if (geteuid() != 0)
        cr_skip_test("needs root, to become another user");
    begin_with(NULL);
    actor_start(&producer, put_as_stranger, NULL);
    actor_recv(&producer, &ref, sizeof ref);
    actor_wait(&producer);
    for (unsigned mode = 0; mode < 4; mode++)
        must_be_pattern(conn, &ref, (enum rdt_fetch_mode)mode, MIB, 6);
    cr_assert(nothing_was_allocated());
    must_ok(rdt_free(conn, &ref, true, &err)); /* the daemon's own user may */
    end();
}

Test(put_sealed, another_node_fetches_it)
{
    static struct cluster c;
    rdt *owner, *reader;
    uint8_t *data = malloc(MIB);
    struct rdt_ref ref;

    cluster_start(&c, 2, &(struct cluster_options){0});
    owner = node_client(&c.node[0], "owner");
    reader = node_client(&c.node[1], "reader");
    fill_pattern(data, MIB, 8);
    ref = put_bytes(owner, data, MIB);
    for (unsigned mode = 0; mode < 4; mode++)
        must_be_pattern(reader, &ref, (enum rdt_fetch_mode)mode, MIB, 8);
    free(data);
    rdt_close(owner);
    rdt_close(reader);
    cluster_end(&c, NULL);
}

/* ---- room ---- */

Test(put_sealed, it_is_charged_like_the_daemons_memory)
{
    uint8_t *data = malloc(MIB);
    struct node_status before, now;
    struct rdt_ref ref;

    begin_with(NULL);
    before = status_now();
    fill_pattern(data, MIB, 1);
    ref = put_bytes(conn, data, 150000);
    now = status_now();
    cr_assert_eq(now.memory_bytes - before.memory_bytes, (150000 + 4095) / 4096 * 4096);
    cr_assert_eq(now.regions - before.regions, 1);
    must_ok(rdt_free(conn, &ref, false, &err));
    wait_until(LONG, memory_now() == before.memory_bytes);
    free(data);
    end();
}

static enum rdt_status put_within(const void *data, size_t bytes, int64_t timeout_ns, struct rdt_error *err)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_ref ref;

    options.flags = RDT_PUT_SNAPSHOT;
    options.timeout_ns = timeout_ns;
    return rdt_put(conn, &VECTOR(RDT_U8, bytes, (void *)data), 1, &options, &ref, err);
}

/* Refused as if the daemon were to make it. */
Test(put_sealed, without_room_the_put_is_refused_like_any_other)
{
    static const struct {
        const char *flag, *says;
        enum rdt_status status;
    } rows[] = {{"--memory-limit=4MiB", "memory_limit", RDT_NO_MEMORY},
                {"--client-max-bytes=4MiB", "client_max_bytes", RDT_LIMIT},
                {"--client-max-regions=1", "client_max_regions", RDT_LIMIT}};
    uint8_t *data = malloc(3 * MIB);
    void *taken;

    fill_pattern(data, 3 * MIB, 4);
    for (unsigned i = 0; i < 3; i++) {
        begin_with((const char *[]){rows[i].flag, NULL});
        taken = alloc_memory(conn, 2 * MIB);
        must_refuse(rows[i].status, rows[i].says, put_within(data, 3 * MIB, 0, &err));
        must_refuse(RDT_TIMED_OUT, rows[i].says, put_within(data, 3 * MIB, 300 * MSEC, &err));
        must_ok(rdt_dealloc(conn, taken, &err));
        must_ok(put_within(data, 3 * MIB, LONG, &err));
        end();
    }
    free(data);
}

static int put_patiently(struct actor *self, void *arg)
{
    uint8_t *data = malloc(3 * MIB);

    (void)arg;
    conn = node_client(&node, "patient");
    fill_pattern(data, 3 * MIB, 5);
    actor_step(self);
    must_ok(put_within(data, 3 * MIB, LONG, &err));
    rdt_close(conn);
    return 0;
}

Test(put_sealed, with_a_deadline_it_waits_for_room)
{
    struct actor patient;
    void *taken;

    begin_with((const char *[]){"--memory-limit=4MiB", NULL});
    taken = alloc_memory(conn, 2 * MIB);
    actor_start(&patient, put_patiently, NULL);
    actor_await(&patient);
    wait_until(LONG, node_log_has(&node, "PUT from client")); /* refused: it asks the other way, and waits */
    must_ok(rdt_dealloc(conn, taken, &err));
    actor_wait(&patient);
    end();
}

/* RLIMIT_FSIZE forbids larger files, and the kernel kills a process that writes more. librdt then copies into the daemon's
 * memory. */
static int put_without_files(struct actor *self, void *arg)
{
    const size_t sizes[] = {100000, MADE_MAX + 100000};
    uint8_t *data = malloc(MADE_MAX + 100000);
    struct rdt_ref ref;

    (void)self;
    (void)arg;
    conn = node_client(&node, "limited");
    must(setrlimit(RLIMIT_FSIZE, &(struct rlimit){4096, 4096}) == 0);
    for (unsigned i = 0; i < 2; i++) {
        fill_pattern(data, sizes[i], i);
        ref = put_bytes(conn, data, sizes[i]);
        must_be_pattern(conn, &ref, RDT_FETCH_SHARE, sizes[i], i);
    }
    rdt_close(conn);
    return 0;
}

Test(put_sealed, limit_of_files_harms_nobody)
{
    struct actor limited;

    begin(NULL);
    actor_start(&limited, put_without_files, NULL);
    actor_wait(&limited);
    end();
}
