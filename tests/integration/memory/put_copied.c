/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of memory that the daemon does not know: librdt copies it into a region, which the daemon seals. Every reader gets
 * the bytes that were put, by every path. Without room a put waits; a put that timed out was never put. */
#include <fcntl.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/integration/memory/snapshot.h"
#include "tests/support/cluster.h"
#include "tests/support/message.h"

#define KIB ((size_t)1024)
#define INLINE_MAX (32 * KIB)
#define LARGE (4 * MIB)
#define STRANGER 12345
#define SOME ((size_t)100000)

static void begin_with(const char *const *flags)
{
    begin(&(struct node_options){.log = "trace", .flags = flags});
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
    uint8_t *data = malloc(LARGE + 64);

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

Test(put_copied, bytes_are_right_at_every_size)
{
    static const size_t sizes[] = {INLINE_MAX + 1, 9 * 4096 - 1, 9 * 4096, 9 * 4096 + 1, 150000,
                                   MIB + 13,       LARGE - 1,    LARGE,    LARGE + 1};

    begin_with(NULL);
    put_sizes(sizes, sizeof sizes / sizeof sizes[0]);
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

Test(put_copied, many_tensors_of_odd_sizes_and_places)
{
    begin_with(NULL);
    put_many(7, 40000);
    put_many(700, 2000);
    put_many(10000, 300);
    end();
}

/* Some of its tensors lie in the daemon's memory: those are copied by the daemon. */
Test(put_copied, beside_memory_of_the_daemons)
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

Test(put_copied, another_user_reads_it_after_its_clients_end)
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
    must_ok(rdt_free(conn, &ref, true, &err)); /* the daemon's own user may */
    end();
}

Test(put_copied, another_node_fetches_it)
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

Test(put_copied, its_pages_are_charged_once)
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

Test(put_copied, without_room_the_put_is_refused_like_any_other)
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

Test(put_copied, with_a_deadline_it_waits_for_room)
{
    struct actor patient;
    unsigned allocs;
    void *taken;

    begin_with((const char *[]){"--memory-limit=4MiB", NULL});
    taken = alloc_memory(conn, 2 * MIB);
    allocs = node_log_count(&node, "ALLOC from client");
    actor_start(&patient, put_patiently, NULL);
    actor_await(&patient);
    wait_until(LONG, node_log_count(&node, "ALLOC from client") > allocs);
    must_ok(rdt_dealloc(conn, taken, &err));
    actor_wait(&patient);
    end();
}

static int put_endlessly(struct actor *self, void *arg)
{
    static uint8_t data[MIB];
    struct rdt_ref ref;

    (void)arg;
    conn = node_client(&node, "endless");
    for (bool first = true;; first = false) {
        ref = put_bytes(conn, data, sizeof data);
        if (first)
            actor_step(self);
        must_ok(rdt_free(conn, &ref, false, &err));
    }
}

/* Wherever it was: it waits for room, it copies, or it has handed the memory over. */
Test(put_copied, client_that_is_killed_leaves_nothing)
{
    static const uint8_t zeros[3 * MIB];
    struct actor actor;
    unsigned allocs;
    void *taken;

    begin_with((const char *[]){"--memory-limit=4MiB", NULL});
    for (unsigned i = 0; i < 10; i++) {
        actor_start(&actor, put_endlessly, NULL);
        actor_await(&actor);
        actor_kill(&actor, SIGKILL);
        wait_until(LONG, status_now().objects == 0 && status_now().regions == 0 && memory_now() == 0);
    }
    taken = alloc_memory(conn, 2 * MIB);
    allocs = node_log_count(&node, "ALLOC from client");
    actor_start(&actor, put_patiently, NULL);
    actor_await(&actor);
    wait_until(LONG, node_log_count(&node, "ALLOC from client") > allocs);
    actor_kill(&actor, SIGKILL);
    wait_until(LONG, status_now().clients == 1);
    must_ok(rdt_dealloc(conn, taken, &err));
    must_ok(put_within(zeros, sizeof zeros, LONG, &err)); /* nobody has taken the room */
    end();
}

/* RLIMIT_FSIZE forbids larger files, and the kernel kills a process that writes more. librdt then copies through a
 * mapping. */
static int put_without_files(struct actor *self, void *arg)
{
    const size_t sizes[] = {100000, LARGE + 100000};
    uint8_t *data = malloc(LARGE + 100000);
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

Test(put_copied, limit_of_files_harms_nobody)
{
    struct actor limited;

    begin(NULL);
    actor_start(&limited, put_without_files, NULL);
    actor_wait(&limited);
    end();
}

/* ---- puts that fail ---- */

static bool is_asked_for(void)
{
    struct node_status status;

    node_status(&node, &status);
    return status.transfers_active == 1;
}

static uint32_t more_flags;

/* id: NULL: one of the daemon's. timeout_ns 0: none. */
static enum rdt_status put_some(const char *id, int64_t timeout_ns, uint32_t seed, struct rdt_ref *ref_p,
                                struct rdt_error *err_p)
{
    struct rdt_put_options options = RDT_INIT(options);
    uint8_t *data = malloc(SOME);
    enum rdt_status status;

    fill_pattern(data, SOME, seed);
    options.flags = RDT_PUT_SNAPSHOT | more_flags;
    options.timeout_ns = timeout_ns;
    options.id = id;
    options.id_bytes = id ? strlen(id) : 0;
    status = rdt_put(conn, &VECTOR(RDT_U8, SOME, data), 1, &options, ref_p, err_p);
    free(data);
    return status;
}

static void put_times_out(void)
{
    struct rdt_ref name = ref_named("late"), ref;
    rdt *reader;
    rdt_request *request;
    rdt_object *object;

    begin(NULL);
    reader = node_client(&node, "reader");
    must_ok(put_some(NULL, 0, 3, &ref, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_wait_freed(conn, &ref, LONG, &err)); /* the next unsealed put uses its memory again */
    must_ok(rdt_fetch_start(reader, &name, 1, NULL, &request, &err));
    wait_until(LONG, is_asked_for());
    node_freeze(&node);
    cr_assert_eq(put_some("late", 50 * MSEC, 1, &ref, NULL), RDT_TIMED_OUT);
    node_thaw(&node);
    must_ok(put_some("late", LONG, 2, &ref, &err));
    must_ok(rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(request, &object, &err));
    must_hold(object, 0, SOME, 2);
    rdt_release(object);
    rdt_request_destroy(request);
    rdt_close(reader);
    end();
}

Test(put_copied, put_that_timed_out_was_never_put)
{
    put_times_out();
}

Test(put_copied, unsealed_put_that_timed_out_was_never_put)
{
    more_flags = RDT_PUT_UNSEALED;
    put_times_out();
}

static unsigned lowest_free_fd(pid_t pid)
{
    char path[64];
    struct stat st;

    for (unsigned n = 0;; n++) {
        (void)snprintf(path, sizeof path, "/proc/%d/fd/%u", (int)pid, n);
        if (lstat(path, &st) < 0)
            return n;
    }
}

Test(put_copied, daemon_without_descriptors_refuses_the_put_and_nothing_else)
{
    struct rlimit old, low;
    struct rdt_ref ref, refused;
    struct rdt_error why;
    rdt_object *object;

    begin(NULL);
    must_ok(put_some(NULL, 0, 1, &ref, &err));
    must(prlimit(node.pid, RLIMIT_NOFILE, NULL, &old) == 0);
    low = old;
    low.rlim_cur = (rlim_t)lowest_free_fd(node.pid);
    must(prlimit(node.pid, RLIMIT_NOFILE, &low, NULL) == 0);
    must(put_some(NULL, 0, 2, &refused, &why) != RDT_OK);
    cr_assert_neq(why.status, RDT_DISCONNECTED, "%s", why.msg);
    must(prlimit(node.pid, RLIMIT_NOFILE, &old, NULL) == 0);
    object = fetch_one(conn, &ref, RDT_FETCH_SHARE);
    must_hold(object, 0, SOME, 1);
    rdt_release(object);
    must_ok(put_some(NULL, 0, 3, &ref, &err));
    end();
}

/* Where there is no huge page it has none. */
Test(put_copied, size_of_a_huge_page)
{
    static const char *const flags[] = {"--set", "host.huge_pages=require", NULL};
    uint8_t *data = malloc(2 * MIB);
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_error why;
    struct rdt_ref ref;
    enum rdt_status status;

    begin(&(struct node_options){.flags = flags});
    fill_pattern(data, 2 * MIB, 1);
    options.flags = RDT_PUT_SNAPSHOT;
    for (size_t bytes = 2 * MIB - 4096; bytes <= 2 * MIB; bytes += 4096) {
        status = rdt_put(conn, &VECTOR(RDT_U8, bytes, data), 1, &options, &ref, &why);
        must_say(status == RDT_OK || (bytes == 2 * MIB && status == RDT_NO_MEMORY), "%s", why.msg);
        if (status == RDT_OK)
            must_be_pattern(conn, &ref, RDT_FETCH_SHARE, bytes, 1);
    }
    free(data);
    end();
}

/* ---- older clients ---- */

/* They sent the tensors in a memfd that they had sealed, and its size in field 12. The answer makes them put another way. */
Test(put_copied, memory_that_comes_with_a_put_is_refused)
{
    static uint8_t size[] = {0xa0, 0x9c, 0x01}; /* 20000 */
    ProtobufCMessageUnknownField field = {.tag = 12, .len = sizeof size, .data = size};
    int fd = memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    uint32_t dtype = RDT_U8, ndim = 1, region = 0;
    uint64_t shape = 20000, offset = 0;
    Rdt__Pb__TensorList list =
        MESSAGE(tensor_list, .n_dtype = 1, .dtype = &dtype, .n_ndim = 1, .ndim = &ndim, .n_shape = 1, .shape = &shape,
                .n_offset = 1, .offset = &offset, .n_region_index = 1, .region_index = &region);
    Rdt__Pb__Put put = MESSAGE(put, .tensors = &list, .flags = RDT_PUT_SNAPSHOT);
    struct raw raw;
    char text[256];

    must(fd >= 0 && ftruncate(fd, 20480) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    begin(NULL);
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    put.base.n_unknown_fields = 1;
    put.base.unknown_fields = &field;
    (void)raw_send(&raw, RDT_MSG_PUT, &put.base, &fd, 1);
    must_be(RDT_INVALID, raw_error(&raw, text));
    must_say(strstr(text, "carries no descriptors"), "%s", text);
    cr_assert_eq(status_now().objects, 0);
    cr_assert_eq(memory_now(), 0);
    raw_close(&raw);
    close(fd);
    end();
}
