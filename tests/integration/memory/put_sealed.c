/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots in memfds that their client creates and seals. Every reader gets the bytes that were put, by every path.
 * Without room a put waits like any other. Descriptors that only resemble sealed memfds are refused by name. */
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
#define ALL_SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW)

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

static void must_be_pattern(rdt *reader, const struct rdt_ref *ref, enum rdt_fetch_mode mode, size_t bytes, uint32_t seed)
{
    rdt_object *object = fetch_one(reader, ref, mode);
    struct rdt_tensor tensor = tensor_of(object, 0);

    must(elements_of(&tensor) == (int64_t)bytes && holds_pattern(tensor.data, bytes, seed));
    if (mode == RDT_FETCH_COW || mode == RDT_FETCH_COPY)
        memset(tensor.data, 0xee, bytes); /* its own */
    rdt_release(object);
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

/* ---- what only looks like it ---- */

struct made_put {
    Rdt__Pb__Put put;
    Rdt__Pb__TensorList list;
    Rdt__Pb__RegionUse use, *uses[1];
    uint32_t dtype, ndim, region_index, given;
    uint64_t shape, offset;
};

/* One tensor that takes all of it. */
static void made_init(struct made_put *made, size_t bytes)
{
    *made = (struct made_put){.put = RDT__PB__PUT__INIT, .list = RDT__PB__TENSOR_LIST__INIT, .use = RDT__PB__REGION_USE__INIT};
    made->dtype = RDT_U8;
    made->ndim = 1;
    made->shape = bytes;
    made->list.n_dtype = made->list.n_ndim = made->list.n_shape = made->list.n_offset = made->list.n_region_index = 1;
    made->list.dtype = &made->dtype;
    made->list.ndim = &made->ndim;
    made->list.shape = &made->shape;
    made->list.offset = &made->offset;
    made->list.region_index = &made->region_index;
    made->uses[0] = &made->use;
    made->put.tensors = &made->list;
    made->put.flags = RDT_PUT_SNAPSHOT;
    made->put.sealed_bytes = bytes;
    made->put.regions = made->uses;
}

static void must_fail(struct raw *raw, const struct made_put *made, const int *fds, unsigned n_fds, enum rdt_status expected,
                      const char *says)
{
    char text[256];
    enum rdt_status status;

    (void)raw_send(raw, RDT_MSG_PUT, &made->put.base, fds, n_fds);
    status = raw_error(raw, text);
    must_say(status == expected && strstr(text, says), "%s instead of \"%s\": %s", rdt_status_name(status), says, text);
}

static void must_succeed(struct raw *raw, const struct made_put *made, int fd)
{
    uint64_t id = raw_send(raw, RDT_MSG_PUT, &made->put.base, &fd, 1);

    protobuf_c_message_free_unpacked(raw_reply(raw, id, &rdt__pb__put_reply__descriptor), NULL);
}

static int made_memfd(size_t bytes, int seals)
{
    uint8_t *data = malloc(bytes);
    int fd = memfd_create("made", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    fill_pattern(data, bytes, 9);
    must(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes && fcntl(fd, F_ADD_SEALS, seals) == 0);
    free(data);
    return fd;
}

static int opened_as(int fd, int flags)
{
    char path[32];
    int again;

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    again = open(path, flags | O_CLOEXEC);
    must(again >= 0);
    return again;
}

#define FILE_BYTES ((size_t)40960) /* whole pages */

static int file_of_bytes(void)
{
    char name[] = "/tmp/made.XXXXXX";
    int fd = mkostemp(name, O_CLOEXEC);

    must(fd >= 0 && unlink(name) == 0 && ftruncate(fd, (off_t)FILE_BYTES) == 0);
    return fd;
}

static int with_holes(void)
{
    int fd = memfd_create("made", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    must(fd >= 0 && write(fd, "x", 1) == 1 && ftruncate(fd, (off_t)FILE_BYTES) == 0 && fcntl(fd, F_ADD_SEALS, ALL_SEALS) == 0);
    return fd;
}

/* The number of pages matches the size, but one page lies behind the end. */
static int with_a_hole_and_a_page_behind(void)
{
    int fd = made_memfd(FILE_BYTES, 0);

    must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, 4096) == 0);
    must(fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)FILE_BYTES, 4096) == 0 && fcntl(fd, F_ADD_SEALS, ALL_SEALS) == 0);
    return fd;
}

/* Pages that its size does not show. */
static int with_more_behind(void)
{
    int fd = made_memfd(FILE_BYTES, 0);

    must(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)(2 * MIB)) == 0 && fcntl(fd, F_ADD_SEALS, ALL_SEALS) == 0);
    return fd;
}

Test(put_sealed, other_files_are_refused_by_name)
{
    int good, pipes[2], sockets[2];
    struct raw raw;
    struct made_put made;

    begin(NULL);
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    good = made_memfd(FILE_BYTES, ALL_SEALS);
    must(pipe2(pipes, O_CLOEXEC) == 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
    const struct {
        int fd;
        const char *says;
    } rows[] = {{pipes[0], "not a memfd"},
                {pipes[1], "cannot be read"},
                {sockets[0], "not a memfd"},
                {raw.sock, "not a memfd"},
                {open("/dev/zero", O_RDWR | O_CLOEXEC), "not a memfd"},
                {open("/proc/self/maps", O_RDONLY | O_CLOEXEC), "not a memfd"},
                {file_of_bytes(), ""},
                {made_memfd(FILE_BYTES, 0), "lacks F_SEAL_WRITE"},
                {made_memfd(FILE_BYTES, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), "lacks F_SEAL_WRITE"},
                {made_memfd(FILE_BYTES, F_SEAL_WRITE | F_SEAL_GROW), "lacks F_SEAL_SHRINK"},
                {made_memfd(FILE_BYTES, F_SEAL_WRITE | F_SEAL_SHRINK), "lacks F_SEAL_GROW"},
                {with_holes(), "holes"},
                {with_a_hole_and_a_page_behind(), "has holes"},
                {with_more_behind(), "is shorter"},
                {made_memfd(FILE_BYTES - 1, ALL_SEALS), "40959 bytes, not the 40960"},
                {made_memfd(FILE_BYTES + 4096, ALL_SEALS), "45056 bytes, not the 40960"},
                {opened_as(good, O_PATH), "cannot be read"},
                {opened_as(good, O_WRONLY), "cannot be read"}};
    for (unsigned i = 0; i < sizeof(rows) / sizeof rows[0]; i++) {
        made_init(&made, FILE_BYTES);
        must_fail(&raw, &made, &rows[i].fd, 1, RDT_INVALID, rows[i].says);
        if (rows[i].fd != raw.sock)
            (void)close(rows[i].fd);
    }
    cr_assert_eq(status_now().regions, 0);
    cr_assert_eq(memory_now(), 0);
    made_init(&made, FILE_BYTES);
    must_succeed(&raw, &made, good);
    cr_assert_eq(status_now().regions, 1);
    close(good);
    close(pipes[1]);
    close(sockets[1]);
    raw_close(&raw);
    end();
}

Test(put_sealed, requests_that_contradict_themselves_are_refused)
{
    int fds[2];
    uint64_t region, generation;
    struct raw raw;
    struct made_put made;

    begin(NULL);
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    fds[0] = made_memfd(FILE_BYTES, ALL_SEALS);
    fds[1] = made_memfd(FILE_BYTES, ALL_SEALS);
    region = raw_alloc(&raw, 4096, NULL, &generation);
    made_init(&made, FILE_BYTES);
    must_fail(&raw, &made, NULL, 0, RDT_INVALID, "one fd, not 0");
    must_fail(&raw, &made, fds, 2, RDT_INVALID, "one fd, not 2");
    made.put.flags = 0;
    must_fail(&raw, &made, fds, 1, RDT_INVALID, "SNAPSHOT");
    made.put.flags = RDT_PUT_SNAPSHOT | RDT_PUT_PENDING;
    must_fail(&raw, &made, fds, 1, RDT_INVALID, "SNAPSHOT");
    made_init(&made, FILE_BYTES);
    made.put.inline_data = (ProtobufCBinaryData){4, (uint8_t *)"1234"};
    must_fail(&raw, &made, fds, 1, RDT_INVALID, "in the message");
    made_init(&made, FILE_BYTES);
    made.use.region = region;
    made.use.generation = generation;
    made.put.n_regions = made.put.n_given = 1;
    made.put.given = &made.given;
    must_fail(&raw, &made, fds, 1, RDT_INVALID, "must not hand over");
    made.put.n_given = 0; /* its tensor ends beyond the region */
    must_fail(&raw, &made, fds, 1, RDT_INVALID, "region");
    for (unsigned i = 0; i < 3; i++) {
        const uint64_t sizes[] = {MADE_MAX + 1, UINT64_MAX, (uint64_t)INT64_MAX + 1};
        made_init(&made, FILE_BYTES);
        made.put.sealed_bytes = sizes[i];
        must_fail(&raw, &made, fds, 1, RDT_LIMIT, "sealed_max");
    }
    made_init(&made, FILE_BYTES);
    made.offset = 1;
    must_fail(&raw, &made, fds, 1, RDT_INVALID, "ends at byte 40961");
    made.offset = 0;
    made.region_index = 1;
    must_fail(&raw, &made, fds, 1, RDT_INVALID, "tensor 0");
    cr_assert_eq(status_now().regions, 1, "what was to be given up is not");
    raw_close(&raw);
    close(fds[0]);
    close(fds[1]);
    end();
}

/* The client keeps the descriptor and tries to change the file: the objects, of which two share it, keep their bytes for
 * everybody. */
Test(put_sealed, its_maker_cannot_change_it)
{
    int fd, reopened;
    struct raw raw;
    struct made_put made;
    struct rdt_ref refs[2];
    rdt_object *held;

    begin(NULL);
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    fd = made_memfd(FILE_BYTES, ALL_SEALS);
    for (unsigned i = 0; i < 2; i++) {
        made_init(&made, FILE_BYTES);
        made.put.id = (ProtobufCBinaryData){1, (uint8_t *)(i ? "b" : "a")};
        must_succeed(&raw, &made, fd);
        refs[i] = ref_named(i ? "b" : "a");
    }
    held = fetch_one(conn, &refs[0], RDT_FETCH_SHARE);
    must(fchmod(fd, 0) == 0);
    (void)fcntl(fd, F_SETLEASE, F_WRLCK); /* where the kernel lets it */
    reopened = geteuid() == 0 ? opened_as(fd, O_RDWR | O_NONBLOCK) : dup(fd);
    cr_assert(write(fd, "evil", 4) < 0 && write(reopened, "evil", 4) < 0);
    cr_assert(ftruncate(fd, 0) < 0 && ftruncate(fd, MIB) < 0);
    cr_assert(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0);
    cr_assert(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)MIB) < 0);
    cr_assert_eq(mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    (void)lseek(fd, 100, SEEK_SET);
    for (unsigned i = 0; i < 2; i++)
        for (unsigned mode = 0; mode < 4; mode++)
            must_be_pattern(conn, &refs[i], (enum rdt_fetch_mode)mode, FILE_BYTES, 9);
    must_hold(held, 0, FILE_BYTES, 9);
    rdt_release(held);
    close(reopened);
    close(fd);
    raw_close(&raw);
    end();
}
