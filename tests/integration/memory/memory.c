/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of one client: rdt_alloc, rdt_import, copies, the limit of memory, and tensors of every shape. */
#include "tests/integration/memory/memory.h"

/* ALLOC by hand, to look at the fd itself. */
static int alloc_fd(rdt *client, size_t bytes, uint64_t *region_p)
{
    Rdt__Pb__Alloc request = RDT__PB__ALLOC__INIT;
    Rdt__Pb__RegionReply *reply = NULL;
    int fd = -1;

    request.bytes = bytes;
    must_ok(
        call_fds(client, RDT_MSG_ALLOC, &request.base, -1, now_ns() + LONG, (ProtobufCMessage **)(void *)&reply, &fd, &err));
    *region_p = reply->region;
    must(reply->bytes >= bytes);
    protobuf_c_message_free_unpacked(&reply->base, NULL);
    return fd;
}

static void release_region(rdt *client, uint64_t region)
{
    Rdt__Pb__ReleaseRegion request = RDT__PB__RELEASE_REGION__INIT;

    request.region = region;
    must_ok(call(client, RDT_MSG_RELEASE_REGION, &request.base, LONG, NULL, &err));
}

Test(memory, alloc_is_sealed_private_and_reserved)
{
    size_t sizes[] = {1, 4096, 100000, 3 * MIB + 5};
    struct stat st;
    uint64_t region;

    begin(NULL);
    for (unsigned i = 0; i < 4; i++) {
        int fd = alloc_fd(conn, sizes[i], &region), seals = fcntl(fd, F_GET_SEALS);
        cr_assert_eq(seals & (F_SEAL_SHRINK | F_SEAL_GROW), F_SEAL_SHRINK | F_SEAL_GROW, "seals %x of %zu bytes", seals,
                     sizes[i]);
        cr_assert_eq(fstat(fd, &st), 0);
        cr_assert_eq(st.st_mode & 07777, 0600);
        cr_assert_geq((size_t)st.st_size, sizes[i]);
        cr_assert_geq((size_t)st.st_blocks * 512, sizes[i], "%lld blocks for %zu bytes", (long long)st.st_blocks, sizes[i]);
        cr_assert_eq(ftruncate(fd, 0), -1);
        cr_assert_eq(ftruncate(fd, (off_t)(64 * MIB)), -1);
        close(fd);
        release_region(conn, region);
    }
    end();
}

Test(memory, alloc_is_zeroed_aligned_and_counted_until_dealloc)
{
    size_t sizes[] = {1, 4097, 3 * MIB};
    void *addr[3];
    size_t total = 0;

    begin(NULL);
    for (unsigned i = 0; i < 3; i++) {
        addr[i] = alloc_memory(conn, sizes[i]);
        cr_assert_eq((uintptr_t)addr[i] % (uintptr_t)sysconf(_SC_PAGESIZE), 0);
        cr_assert(is_filled_with(addr[i], sizes[i], 0));
        fill_pattern(addr[i], sizes[i], i);
        total += sizes[i];
    }
    cr_assert_eq(status_now().regions, 3);
    cr_assert_geq(status_now().memory_bytes, total);
    must_refuse(RDT_INVALID, "not the start", rdt_dealloc(conn, (char *)addr[1] + 1, &err));
    must_refuse(RDT_INVALID, "at least 1 byte", rdt_alloc(conn, 0, &addr[0], &err));
    for (unsigned i = 0; i < 3; i++) {
        cr_assert(holds_pattern(addr[i], sizes[i], i));
        must_ok(rdt_dealloc(conn, addr[i], &err));
        must_refuse(RDT_INVALID, "not the start", rdt_dealloc(conn, addr[i], &err));
    }
    wait_until(20 * SEC, status_now().memory_bytes == 0);
    end();
}

Test(memory, dealloc_leaves_it_to_the_object)
{
    struct rdt_tensor tensor;
    struct rdt_ref ref;
    rdt_object *object;
    rdt *reader;
    void *addr;

    begin(NULL);
    addr = alloc_memory(conn, 2 * MIB);
    fill_pattern(addr, 2 * MIB, 5);
    ref = put_one(conn, &VECTOR(RDT_U8, 2 * MIB, addr), "w");
    must_ok(rdt_dealloc(conn, addr, &err));
    cr_assert_geq(status_now().memory_bytes, 2 * MIB);
    reader = node_client(&node, "reader");
    object = fetch_one(reader, &ref, RDT_FETCH_AUTO);
    tensor = tensor_of(object, 0);
    cr_assert(holds_pattern(tensor.data, 2 * MIB, 5));
    must_ok(rdt_free(conn, &ref, false, &err));
    cr_assert(holds_pattern(tensor.data, 2 * MIB, 5));
    rdt_release(object);
    wait_until(20 * SEC, status_now().memory_bytes == 0);
    rdt_close(reader);
    end();
}

/* ---- import ---- */

static int make_memfd(size_t bytes, unsigned seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    must(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    must(seals == 0 || fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static void *map(int fd, size_t bytes)
{
    void *addr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    must(addr != MAP_FAILED);
    return addr;
}

Test(memory, import_refuses_what_could_vanish)
{
    int ends[2], unsealed, sealed, dir, closed;
    char page[4096];

    begin(NULL);
    unsealed = make_memfd(4096, 0);
    sealed = make_memfd(4096, F_SEAL_SHRINK);
    dir = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must(pipe2(ends, O_CLOEXEC) == 0);
    closed = dup(sealed);
    close(closed);
    must_refuse(RDT_INVALID, "F_SEAL_SHRINK", rdt_import(conn, unsealed, page, 4096, &err));
    must_refuse(RDT_INVALID, "not a memfd", rdt_import(conn, ends[0], page, 4096, &err));
    must_refuse(RDT_INVALID, "not a memfd", rdt_import(conn, dir, page, 4096, &err));
    must_refuse(RDT_INVALID, "not open", rdt_import(conn, closed, page, 4096, &err));
    must_refuse(RDT_INVALID, "4096 bytes, not 4097", rdt_import(conn, sealed, page, 4097, &err));
    must_refuse(RDT_INVALID, "at least 1 byte", rdt_import(conn, sealed, page, 0, &err));
    must_refuse(RDT_INVALID, "NULL", rdt_import(conn, sealed, NULL, 4096, &err));
    cr_assert_eq(status_now().regions, 0);
    close(unsealed);
    close(sealed);
    close(dir);
    close(ends[0]);
    close(ends[1]);
    end();
}

/* A client that is not librdt: the daemon itself must look. */
static enum rdt_status import_raw(int fd, uint64_t bytes, struct rdt_error *err)
{
    Rdt__Pb__Import request = RDT__PB__IMPORT__INIT;

    request.bytes = bytes;
    return call_fds(conn, RDT_MSG_IMPORT, &request.base, fd, now_ns() + LONG, NULL, NULL, err);
}

Test(memory, import_by_hand_is_refused_too)
{
    char path[256];
    int ends[2], fd;

    begin(NULL);
    fd = make_memfd(4096, 0);
    must_refuse(RDT_INVALID, "F_SEAL_SHRINK", import_raw(fd, 4096, &err));
    close(fd);
    fd = make_memfd(4096, F_SEAL_SHRINK);
    must_refuse(RDT_INVALID, "4096", import_raw(fd, 4097, &err));
    must_refuse(RDT_INVALID, "", import_raw(fd, UINT64_MAX, &err));
    must_refuse(RDT_INVALID, "0 bytes", import_raw(fd, 0, &err));
    must_refuse(RDT_INVALID, "one fd", import_raw(-1, 4096, &err));
    close(fd);
    must(pipe2(ends, O_CLOEXEC) == 0);
    must_refuse(RDT_INVALID, "memfd", import_raw(ends[0], 4096, &err));
    close(ends[0]);
    close(ends[1]);
    fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    must_refuse(RDT_INVALID, "memfd", import_raw(fd, 4096, &err));
    close(fd);
    (void)snprintf(path, sizeof path, "%s/file", node.dir);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    must(ftruncate(fd, 8192) == 0);
    must_refuse(RDT_INVALID, "memfd", import_raw(fd, 4096, &err));
    close(fd);
    fd = make_memfd(4096, F_SEAL_SHRINK); /* read-only */
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ends[0] = open(path, O_RDONLY | O_CLOEXEC);
    (void)import_raw(ends[0], 4096, NULL); /* either answer is right */
    close(ends[0]);
    close(fd);
    end();
}

Test(memory, import_is_shared_without_a_copy)
{
    struct rdt_put_options options = RDT_INIT(options);
    enum rdt_memory how[2] = {0};
    struct rdt_tensor tensors[2], seen;
    struct rdt_ref ref;
    rdt_object *object;
    rdt *reader;
    char *addr;
    int fd;

    begin(NULL);
    fd = make_memfd(MIB, F_SEAL_SHRINK);
    addr = map(fd, MIB);
    must_ok(rdt_import(conn, fd, addr, MIB, &err));
    close(fd);
    fill_pattern(addr, MIB, 1);
    tensors[0] = VECTOR(RDT_U8, 4096, addr);
    tensors[1] = VECTOR(RDT_F32, (MIB - 4096) / 4, addr + 4096);
    options.how = how;
    must_ok(rdt_put(conn, tensors, 2, &options, &ref, &err));
    cr_assert_eq(how[0], RDT_MEMORY_IMPORTED);
    cr_assert_eq(how[1], RDT_MEMORY_IMPORTED);
    cr_assert_eq(status_now().memory_bytes, 0, "it is the client's memory");
    reader = node_client(&node, "reader");
    object = fetch_one(reader, &ref, RDT_FETCH_SHARE);
    seen = tensor_of(object, 1);
    cr_assert(tensors_equal(&seen, &tensors[1]));
    addr[5000] ^= 0x55;
    cr_assert(tensors_equal(&seen, &tensors[1]), "not the same memory");
    rdt_release(object);
    must_ok(rdt_dealloc(conn, addr, &err));
    addr[0] = 7; /* the mapping is the caller's */
    rdt_close(reader);
    must_ok(rdt_free(conn, &ref, false, &err));
    munmap(addr, MIB);
    end();
}

Test(memory, import_overlapping_a_known_range_is_refused)
{
    int fd, other;
    char *addr;

    begin(NULL);
    fd = make_memfd(MIB, F_SEAL_SHRINK);
    other = make_memfd(MIB, F_SEAL_SHRINK);
    addr = map(fd, MIB);
    must_ok(rdt_import(conn, fd, addr, MIB, &err));
    must_refuse(RDT_INVALID, "overlaps", rdt_import(conn, other, addr + 4096, 4096, &err));
    must_ok(rdt_dealloc(conn, addr, &err));
    must_ok(rdt_import(conn, fd, addr, MIB, &err));
    close(fd);
    close(other);
    rdt_close(conn);
    munmap(addr, MIB);
    node_end(&node, NULL);
}

/* The seal against shrinking does not stop hole punching: readers by copy must survive it. */
Test(memory, hole_in_imported_memory_harms_nobody)
{
    struct rdt_tensor seen;
    struct rdt_ref ref;
    rdt_object *object;
    rdt *reader;
    char *addr;
    int fd;

    begin(NULL);
    fd = make_memfd(MIB, F_SEAL_SHRINK);
    addr = map(fd, MIB);
    memset(addr, 1, MIB);
    must_ok(rdt_import(conn, fd, addr, MIB, &err));
    ref = put_one(conn, &VECTOR(RDT_U8, MIB, addr), NULL);
    must(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)MIB) == 0);
    reader = node_client(&node, "reader");
    object = fetch_one(reader, &ref, RDT_FETCH_COPY);
    seen = tensor_of(object, 0);
    cr_assert(is_filled_with(seen.data, MIB, 0));
    rdt_release(object);
    rdt_close(reader);
    rdt_close(conn);
    munmap(addr, MIB);
    close(fd);
    node_end(&node, NULL);
}

/* ---- copied in ---- */

Test(memory, malloc_memory_is_copied_once_and_says_so)
{
    struct rdt_put_options options = RDT_INIT(options);
    enum rdt_memory how[3] = {0};
    struct rdt_tensor tensors[3], seen[3];
    char *heap = malloc(MIB), *daemon_memory;
    struct rdt_ref ref;
    rdt_object *object;

    begin(NULL);
    daemon_memory = alloc_memory(conn, MIB);
    fill_pattern(heap, MIB, 1);
    fill_pattern(daemon_memory, MIB, 2);
    tensors[0] = VECTOR(RDT_U8, 1000, heap + 1); /* at an odd address */
    tensors[1] = VECTOR(RDT_U8, MIB, daemon_memory);
    tensors[2] = VECTOR(RDT_U8, MIB, heap);
    options.how = how;
    must_ok(rdt_put(conn, tensors, 3, &options, &ref, &err));
    cr_assert_eq(how[0], RDT_MEMORY_COPIED);
    cr_assert_eq(how[1], RDT_MEMORY_DAEMON);
    cr_assert_eq(how[2], RDT_MEMORY_COPIED);
    memset(heap, 0, MIB);
    daemon_memory[0] ^= 1;
    object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
    for (unsigned i = 0; i < 3; i++)
        seen[i] = tensor_of(object, i);
    fill_pattern(heap, MIB, 1);
    cr_assert(tensors_equal(&seen[0], &tensors[0]));
    cr_assert(tensors_equal(&seen[2], &tensors[2]));
    cr_assert(tensors_equal(&seen[1], &tensors[1]), "live memory was copied");
    free(heap);
    rdt_release(object);
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_dealloc(conn, daemon_memory, &err));
    wait_until(20 * SEC, status_now().memory_bytes == 0);
    end();
}

/* ---- nothing of anybody's ever shows up elsewhere ---- */

static int see_only_zeros(struct actor *self, void *arg)
{
    rdt *other = node_client(arg, "other");

    (void)self;
    for (unsigned i = 0; i < 40; i++) {
        size_t bytes = (size_t)4096 << (i % 10);
        void *addr = alloc_memory(other, bytes);
        must(is_filled_with(addr, bytes, 0));
        must_ok(rdt_dealloc(other, addr, &err));
    }
    rdt_close(other);
    return 0;
}

Test(memory, exported_memory_serves_nobody_else)
{
    struct actor actor;
    char *mine, *fresh;
    uint64_t region;
    int fd;

    begin(NULL);
    fd = alloc_fd(conn, MIB, &region);
    mine = map(fd, MIB); /* like a client that keeps a mapping of released memory */
    memset(mine, 0xee, MIB);
    release_region(conn, region);
    for (unsigned i = 0; i < 10; i++) {
        void *addr = alloc_memory(conn, (size_t)4096 << i);
        memset(addr, 0xee, (size_t)4096 << i);
        must_ok(rdt_dealloc(conn, addr, &err));
    }
    actor_start(&actor, see_only_zeros, &node);
    actor_wait(&actor);
    mine[0] = 1;
    fresh = alloc_memory(conn, MIB);
    memset(mine, 0xee, MIB);
    cr_assert(is_filled_with(fresh, MIB, 0), "memory that was given back is still seen");
    must_ok(rdt_dealloc(conn, fresh, &err));
    munmap(mine, MIB);
    close(fd);
    end();
}

/* ---- the limit ---- */

static enum rdt_status put_bytes(const void *data, size_t bytes, struct rdt_error *err)
{
    struct rdt_ref ref;

    return rdt_put(conn, &VECTOR(RDT_U8, bytes, (void *)(uintptr_t)data), 1, NULL, &ref, err);
}

Test(memory, limit_is_named_and_changes_nothing)
{
    const char *flags[] = {"--memory-limit=4MiB", NULL};
    char *heap = calloc(1, 8 * MIB), *addr;
    struct node_status before, after;
    rdt_object *object = NULL;
    struct rdt_ref ref;
    void *more = heap;

    begin(&(struct node_options){.flags = flags});
    cr_assert_eq(status_now().memory_limit_bytes, 4 * MIB);
    must_refuse(RDT_LIMIT, "memory_limit", rdt_alloc(conn, 4 * MIB + 1, &more, &err));
    must_refuse(RDT_LIMIT, "memory_limit", put_bytes(heap, 5 * MIB, &err));
    cr_assert_eq(more, heap, "a result was written");
    cr_assert_eq(status_now().memory_bytes, 0);
    addr = alloc_memory(conn, 3 * MIB);
    fill_pattern(addr, 3 * MIB, 1);
    ref = put_one(conn, &VECTOR(RDT_U8, 3 * MIB, addr), "w");
    before = status_now();
    must_refuse(RDT_NO_MEMORY, "memory_limit", rdt_alloc(conn, 2 * MIB, &more, &err));
    must_refuse(RDT_NO_MEMORY, "memory_limit", put_bytes(heap, 2 * MIB, &err));
    must_refuse(RDT_NO_MEMORY, "memory_limit", try_fetch(conn, &ref, RDT_FETCH_COPY, LONG, &object, &err));
    cr_assert_null(object);
    after = status_now();
    cr_assert_eq(after.memory_bytes, before.memory_bytes);
    cr_assert_eq(after.objects, before.objects);
    cr_assert_eq(after.regions, before.regions);
    must_refuse(RDT_LIMIT, "memory_limit", rdt_alloc(conn, SIZE_MAX / 2, &more, &err));
    object = fetch_one(conn, &ref, RDT_FETCH_SHARE); /* calls that need no memory still work */
    rdt_release(object);
    must_ok(rdt_alloc(conn, MIB, &more, &err));
    must_ok(rdt_dealloc(conn, more, &err));
    must_ok(rdt_dealloc(conn, addr, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    wait_until(20 * SEC, status_now().memory_bytes == 0);
    must_ok(rdt_alloc(conn, 4 * MIB, &more, &err));
    free(heap);
    end();
}

/* Many ask at once for what only some can have: nobody hangs, the sum stays below the limit. */
static int grab(struct actor *self, void *arg)
{
    rdt *client = node_client(arg, "grabber");

    actor_await(self);
    for (unsigned i = 0; i < 50; i++) {
        void *addr = NULL;
        enum rdt_status status = rdt_alloc(client, MIB, &addr, NULL);
        must(status == RDT_OK || status == RDT_NO_MEMORY);
        if (status == RDT_OK) {
            must(is_filled_with(addr, MIB, 0));
            memset(addr, 0xff, MIB);
            must_ok(rdt_dealloc(client, addr, &err));
        }
    }
    rdt_close(client);
    return 0;
}

Test(memory, limit_holds_under_a_crowd)
{
    const char *flags[] = {"--memory-limit=3MiB", "--chunk=1MiB", NULL};
    struct actor actors[6];

    begin(&(struct node_options){.flags = flags});
    for (unsigned i = 0; i < 6; i++)
        actor_start(&actors[i], grab, &node);
    for (unsigned i = 0; i < 6; i++)
        actor_step(&actors[i]);
    for (unsigned i = 0; i < 6; i++) {
        cr_assert_leq(status_now().memory_bytes, 3 * MIB);
        actor_wait(&actors[i]);
    }
    end();
}
