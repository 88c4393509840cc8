/* Snapshots: what was put stays as it was, whoever writes whatever afterwards, and however it is read. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/call.h"
#include "rdt.pb-c.h"
#include "tests/support/raw.h"
#include "tests/support/rdtd.h"
#include "tests/support/tensors.h"

#define MIB ((size_t)1 << 20)
#define BYTES (3 * MIB + 5)

static struct test_node node;
static rdt *conn;

static void begin(const struct node_options *options)
{
    node_start(&node, options);
    conn = node_client(&node, "producer");
}

static void end(void)
{
    rdt_close(conn);
    node_end(&node, NULL);
}

static struct rdt_ref put_snapshot(const struct rdt_tensor *tensors, size_t count, const char *id)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_ref ref;

    options.flags = RDT_PUT_SNAPSHOT;
    options.timeout_ns = LONG;
    options.id = id;
    options.id_bytes = id ? strlen(id) : 0;
    must_ok(rdt_put(conn, tensors, count, &options, &ref, &err));
    return ref;
}

static void must_hold(rdt_object *object, size_t i, size_t bytes, uint32_t seed)
{
    struct rdt_tensor tensor = tensor_of(object, i);

    cr_assert_eq(elements_of(&tensor), (int64_t)bytes);
    cr_assert(holds_pattern(tensor.data, bytes, seed), "tensor %zu by %s has changed", i, info_of(object).path);
}

static bool is_asked_for(void)
{
    struct node_status status;

    node_status(&node, &status);
    return status.transfers_active == 1;
}

/* A daemon that stands still reads a put only after its producer has given it up, and written on: nobody may get that. */
Test(snapshot, put_given_up_before_it_was_read_is_never_seen)
{
    size_t sizes[] = {5000, 100000, 4 * MIB};

    begin(NULL);
    for (unsigned i = 0; i < 3; i++) {
        rdt *reader = node_client(&node, "reader");
        uint8_t *memory = alloc_memory(conn, sizes[i]);
        struct rdt_put_options options = RDT_INIT(options);
        struct rdt_tensor tensor = VECTOR(RDT_U8, sizes[i], memory);
        struct rdt_ref name = ref_named("late"), ref;
        rdt_request *request;
        rdt_object *object;

        must_ok(rdt_fetch_start(reader, &name, 1, NULL, &request, &err));
        wait_until(LONG, is_asked_for());
        options.flags = RDT_PUT_SNAPSHOT;
        options.timeout_ns = 20 * MSEC;
        options.id = "late";
        options.id_bytes = 4;
        node_freeze(&node);
        must_be(RDT_TIMED_OUT, rdt_put(conn, &tensor, 1, &options, &ref, &err));
        memset(memory, 0xee, sizes[i]);
        node_thaw(&node);
        fill_pattern(memory, sizes[i], i);
        (void)put_snapshot(&tensor, 1, "late");
        must_ok(rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err)); /* it waited for the one that was put */
        must_ok(rdt_request_take_object(request, &object, &err));
        must_hold(object, 0, sizes[i], i);
        rdt_release(object);
        rdt_request_destroy(request);
        rdt_close(reader);
        must_ok(rdt_free(conn, &name, true, &err));
        must_ok(rdt_dealloc(conn, memory, &err));
    }
    end();
}

static void must_read(rdt *reader, const struct rdt_ref *ref, enum rdt_fetch_mode mode, const char *path, uint32_t seed)
{
    rdt_object *object = fetch_one(reader, ref, mode);

    must_go_by(path, object);
    cr_assert_eq(info_of(object).writable, mode != RDT_FETCH_SHARE && mode != RDT_FETCH_AUTO);
    cr_assert_not(info_of(object).mutable_shared);
    must_hold(object, 0, BYTES, seed);
    rdt_release(object);
}

static uint64_t memory_now(void)
{
    struct node_status status;

    node_status(&node, &status);
    return status.memory_bytes;
}

/* ---- what was put stays ---- */

static void check_scribbler(char *memory)
{
    struct rdt_tensor tensor = VECTOR(RDT_U8, BYTES, memory);
    rdt *reader = node_client(&node, "reader");
    struct rdt_ref ref;

    fill_pattern(memory, BYTES, 1);
    ref = put_snapshot(&tensor, 1, NULL);
    memset(memory, 0xee, BYTES);
    must_read(reader, &ref, RDT_FETCH_AUTO, "local/share", 1);
    must_read(reader, &ref, RDT_FETCH_SHARE, "local/share", 1);
    must_read(reader, &ref, RDT_FETCH_COW, "local/cow", 1);
    must_read(reader, &ref, RDT_FETCH_COPY, "local/copy", 1);
    must_read(conn, &ref, RDT_FETCH_AUTO, "local/share", 1); /* its producer too reads only */
    must_read(conn, &ref, RDT_FETCH_COW, "local/cow", 1);
    must_ok(rdt_free(conn, &ref, false, &err));
    rdt_close(reader);
}

Test(snapshot, of_daemon_memory_stays_while_its_writer_scribbles)
{
    char *memory;

    begin(NULL);
    memory = alloc_memory(conn, BYTES);
    check_scribbler(memory);
    must_ok(rdt_dealloc(conn, memory, &err));
    end();
}

Test(snapshot, of_imported_memory_stays)
{
    int fd = memfd_create("own", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    char *memory;

    cr_assert(ftruncate(fd, (off_t)BYTES) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    begin(NULL);
    must_ok(rdt_import(conn, fd, memory, BYTES, &err));
    check_scribbler(memory);
    must_ok(rdt_dealloc(conn, memory, &err));
    end();
    munmap(memory, BYTES);
    close(fd);
}

/* What librdt copied in anyway is not copied again: the memory is there once. */
Test(snapshot, of_heap_memory_stays_and_is_there_once)
{
    char *memory = malloc(BYTES);
    struct rdt_tensor tensor = VECTOR(RDT_U8, BYTES, memory);
    struct rdt_ref ref;

    begin(NULL);
    check_scribbler(memory);
    wait_until(LONG, memory_now() == 0);
    ref = put_snapshot(&tensor, 1, NULL);
    cr_assert_eq(memory_now(), (BYTES + 4095) / 4096 * 4096);
    must_ok(rdt_free(conn, &ref, false, &err));
    end();
    free(memory);
}

Test(snapshot, of_tensors_here_and_there_is_packed)
{
    static const int64_t shape[] = {3, 100}, strides[] = {7, -20}, none[] = {0, 4};
    size_t sizes[] = {1, 700, 40000, 200000};
    char *memory, *heap = malloc(300000);
    rdt *reader;

    begin(NULL);
    reader = node_client(&node, "reader");
    memory = alloc_memory(conn, 600000);
    for (unsigned i = 0; i < 4; i++) {
        struct rdt_tensor tensors[6];
        struct rdt_ref ref;
        rdt_object *object;
        char *was[6];
        fill_pattern(memory, 600000, i);
        fill_pattern(heap, 300000, i + 50);
        tensors[0] = VECTOR(RDT_U8, sizes[i], memory + 300001);
        tensors[1] = VECTOR(RDT_U8, sizes[i], heap + 3);
        tensors[2] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 2, .shape = shape, .strides = strides, .data = memory + 5000};
        tensors[3] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 2, .shape = shape, .strides = strides, .data = heap + 5000};
        tensors[4] = (struct rdt_tensor){.dtype = RDT_F32, .ndim = 2, .shape = none};
        tensors[5] = VECTOR(RDT_U8, sizes[i], memory + 300001); /* again */
        ref = put_snapshot(tensors, 6, NULL);
        for (unsigned mode = 0; mode < 4; mode++) {
            object = fetch_one(reader, &ref, (enum rdt_fetch_mode)mode);
            cr_assert_eq(rdt_object_count(object), 6);
            for (unsigned t = 0; t < 6; t++) {
                struct rdt_tensor seen = tensor_of(object, t);
                cr_assert(tensors_equal(&seen, &tensors[t]), "tensor %u, size %zu, mode %u", t, sizes[i], mode);
                cr_assert(is_row_major(&seen));
                was[t] = seen.data;
            }
            cr_assert_eq((uintptr_t)was[0] % 64, 0);
            rdt_release(object);
        }
        must_ok(rdt_free(conn, &ref, false, &err));
    }
    must_ok(rdt_dealloc(conn, memory, &err));
    rdt_close(reader);
    free(heap);
    end();
}

Test(snapshot, of_nothing_has_its_metadata)
{
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_tensor empty = VECTOR(RDT_F32, 0, NULL);
    struct rdt_ref ref;
    rdt_object *object;
    size_t bytes;

    begin(NULL);
    options.flags = RDT_PUT_SNAPSHOT;
    options.metadata = "hello";
    options.metadata_bytes = 5;
    for (unsigned n = 0; n < 2; n++) {
        must_ok(rdt_put(conn, &empty, n, &options, &ref, &err));
        for (unsigned mode = 0; mode < 4; mode++) {
            object = fetch_one(conn, &ref, (enum rdt_fetch_mode)mode);
            cr_assert_eq(rdt_object_count(object), n);
            cr_assert_arr_eq(rdt_object_metadata(object, &bytes), "hello", 5);
            rdt_release(object);
        }
    }
    end();
}

Test(snapshot, source_range_is_free_when_put_has_returned)
{
    struct rdt_stat stat;
    struct rdt_ref ref;
    char *memory;

    begin(NULL);
    memory = alloc_memory(conn, BYTES);
    ref = put_snapshot(&VECTOR(RDT_U8, BYTES, memory), 1, NULL);
    must_ok(rdt_wait_freed_range(conn, memory, BYTES, 0, &err));
    must_ok(rdt_stat(conn, &ref, &stat, &err));
    cr_assert_str_eq(stat.state, "live");
    must_ok(rdt_dealloc(conn, memory, &err));
    end();
}

/* ---- nobody can write it ---- */

/* The fd of the shared region as the daemon sends it. */
static int shared_fd(struct raw *raw, const struct rdt_ref *ref, Rdt__Pb__FetchMode mode, size_t *bytes_p)
{
    Rdt__Pb__Fetch fetch = RDT__PB__FETCH__INIT;
    Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items = &item;
    Rdt__Pb__Ref name = RDT__PB__REF__INIT;
    Rdt__Pb__FetchDone *done;
    int fd;

    name.id = (ProtobufCBinaryData){ref->id_bytes, (uint8_t *)ref->id};
    name.any_owner = true;
    item.handle = 99;
    item.ref = &name;
    fetch.items = &items;
    fetch.n_items = 1;
    fetch.mode = mode;
    fetch.timeout_ns = -1;
    (void)raw_send(raw, RDT_MSG_FETCH, &fetch.base, NULL, 0);
    do
        cr_assert(raw_next(raw));
    while (raw->frame.type != RDT_EVENT_FETCH_DONE);
    done = rdt__pb__fetch_done__unpack(NULL, raw->frame.length, raw->frame.payload);
    cr_assert(done && done->status == 0 && done->n_regions == 1, "%s", done ? done->message : "");
    cr_assert_eq(done->regions[0]->cow, mode == RDT__PB__FETCH_MODE__FETCH_MODE_COW);
    cr_assert_not(done->regions[0]->writable);
    *bytes_p = done->regions[0]->bytes;
    fd = frame_take_fd(&raw->frame, 0);
    rdt__pb__fetch_done__free_unpacked(done, NULL);
    return fd;
}

/* Everything that a process of the same uid, here root, may try with a descriptor. */
static void attack_by(int fd, size_t bytes)
{
    struct iovec iov = {.iov_base = (char *)"evil", .iov_len = 4}, there = {.iov_len = 4};
    char *mapped;
    int mem, pipes[2];

    cr_assert_eq(write(fd, "evil", 4), -1);
    cr_assert_eq(pwrite(fd, "evil", 4, 0), -1);
    cr_assert_eq(pwritev(fd, &iov, 1, 0), -1);
    cr_assert_eq(ftruncate(fd, 0), -1);
    cr_assert_eq(ftruncate(fd, (off_t)bytes + 4096), -1);
    cr_assert_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
    cr_assert_eq(fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, 4096), -1);
    cr_assert_eq(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), -1);
    cr_assert_eq(pipe(pipes), 0);
    cr_assert_eq(write(pipes[1], "evil", 4), 4);
    cr_assert_eq(splice(pipes[0], NULL, fd, &(off_t){0}, 4, 0), -1);
    close(pipes[0]);
    close(pipes[1]);
    cr_assert_eq(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    cr_assert_eq(mmap(NULL, bytes, PROT_WRITE, MAP_SHARED_VALIDATE, fd, 0), MAP_FAILED);
    mapped = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return; /* before Linux 6.7: writable descriptors of sealed memory cannot be mapped shared at all */
    cr_assert_eq(mprotect(mapped, bytes, PROT_READ | PROT_WRITE), -1);
    cr_assert_eq(madvise(mapped, 4096, MADV_REMOVE), -1);
    there.iov_base = mapped;
    cr_assert_eq(process_vm_writev(getpid(), &iov, 1, &there, 1, 0), -1);
    mem = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    cr_assert_geq(mem, 0);
    cr_assert_eq(pwrite(mem, "evil", 4, (off_t)(uintptr_t)mapped), -1);
    close(mem);
    munmap(mapped, bytes);
}

static void attack(int fd, size_t bytes)
{
    char path[32];

    attack_by(fd, bytes);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    for (unsigned i = 0; i < 2; i++) {
        int again = open(path, i ? O_WRONLY | O_CLOEXEC : O_RDWR | O_CLOEXEC);
        cr_assert_geq(again, 0, "the same uid may open it, and gains nothing by it");
        attack_by(again, bytes);
        cr_assert_eq(fcntl(again, F_ADD_SEALS, F_SEAL_SEAL), -1);
        close(again);
    }
    cr_assert_eq(open(path, O_RDWR | O_TRUNC | O_CLOEXEC), -1);
}

Test(snapshot, nobody_writes_through_the_descriptor_the_same_uid_neither)
{
    char *memory, *heap = malloc(BYTES);
    struct rdt_ref refs[2];
    struct raw raw;

    begin(NULL);
    memory = alloc_memory(conn, BYTES);
    fill_pattern(memory, BYTES, 1);
    fill_pattern(heap, BYTES, 1);
    refs[0] = put_snapshot(&VECTOR(RDT_U8, BYTES, memory), 1, "copied");
    refs[1] = put_snapshot(&VECTOR(RDT_U8, BYTES, heap), 1, "taken");
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    for (unsigned i = 0; i < 2; i++)
        for (unsigned cow = 0; cow < 2; cow++) {
            size_t bytes;
            int fd = shared_fd(&raw, &refs[i],
                               cow ? RDT__PB__FETCH_MODE__FETCH_MODE_COW : RDT__PB__FETCH_MODE__FETCH_MODE_SHARE, &bytes);
            attack(fd, bytes);
            close(fd);
            must_read(conn, &refs[i], RDT_FETCH_SHARE, "local/share", 1);
        }
    raw_close(&raw);
    must_ok(rdt_dealloc(conn, memory, &err));
    free(heap);
    end();
}

/* ---- what is given up ---- */

static uint64_t raw_alloc(struct raw *raw, size_t bytes, int *fd_p, uint64_t *generation_p)
{
    Rdt__Pb__Alloc request = RDT__PB__ALLOC__INIT;
    Rdt__Pb__RegionReply *reply;
    uint64_t region, id;

    request.bytes = bytes;
    id = raw_send(raw, RDT_MSG_ALLOC, &request.base, NULL, 0);
    reply = (Rdt__Pb__RegionReply *)raw_reply(raw, id, &rdt__pb__region_reply__descriptor);
    *fd_p = frame_take_fd(&raw->frame, 0);
    *generation_p = reply->generation;
    region = reply->region;
    rdt__pb__region_reply__free_unpacked(reply, NULL);
    return region;
}

static void raw_put_given(struct raw *raw, uint64_t region, uint64_t generation, size_t bytes, const char *name)
{
    Rdt__Pb__Put put = RDT__PB__PUT__INIT;
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT, *uses = &use;
    Rdt__Pb__TensorList list = RDT__PB__TENSOR_LIST__INIT;
    uint32_t dtype = RDT_U8, ndim = 1, given = 0;
    uint64_t shape = bytes, offset = 0, id;
    uint32_t index = 0;

    use.region = region;
    use.generation = generation;
    list.n_dtype = list.n_ndim = list.n_shape = list.n_offset = list.n_region_index = 1;
    list.dtype = &dtype;
    list.ndim = &ndim;
    list.shape = &shape;
    list.offset = &offset;
    list.region_index = &index;
    put.id = (ProtobufCBinaryData){strlen(name), (uint8_t *)name};
    put.flags = RDT_PUT_SNAPSHOT;
    put.regions = &uses;
    put.n_regions = 1;
    put.tensors = &list;
    put.given = &given;
    put.n_given = 1;
    id = raw_send(raw, RDT_MSG_PUT, &put.base, NULL, 0);
    rdt__pb__put_reply__free_unpacked((Rdt__Pb__PutReply *)raw_reply(raw, id, &rdt__pb__put_reply__descriptor), NULL);
}

/* It says that it has unmapped it, and has not: the daemon does not take its word. With the descriptor alone it is the kernel that
 * forbids. */
Test(snapshot, giver_that_keeps_a_mapping_or_the_descriptor_changes_nothing)
{
    struct raw raw;

    begin(NULL);
    raw_connect(&raw, node.socket);
    raw_hello(&raw);
    for (unsigned i = 0; i < 4; i++) {
        size_t bytes = i < 2 ? 50000 : BYTES;
        bool keeps_mapping = i % 2;
        struct rdt_ref ref;
        rdt_object *object;
        uint64_t generation;
        int fd;
        uint64_t region = raw_alloc(&raw, bytes, &fd, &generation);
        char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        char id[2] = {(char)('a' + i), 0};
        cr_assert_neq(memory, MAP_FAILED);
        fill_pattern(memory, bytes, 5);
        if (!keeps_mapping)
            munmap(memory, bytes);
        raw_put_given(&raw, region, generation, bytes, id);
        ref = ref_named(id);
        if (keeps_mapping)
            memset(memory, 0xee, bytes);
        else
            attack(fd, bytes);
        object = fetch_one(conn, &ref, RDT_FETCH_AUTO);
        must_go_by("local/share", object);
        must_hold(object, 0, bytes, 5);
        rdt_release(object);
        if (keeps_mapping)
            munmap(memory, bytes);
        close(fd);
    }
    raw_close(&raw);
    end();
}

/* ---- limits ---- */

Test(snapshot, heap_memory_needs_room_for_one_copy_daemon_memory_for_two)
{
    const char *flags[] = {"--memory-limit=5MiB", "--set", "daemon.warm_max=1", NULL};
    struct rdt_put_options options = RDT_INIT(options);
    char *heap = malloc(BYTES), *memory;
    rdt_request *waiting;
    rdt_object *object;
    struct rdt_ref ref;

    begin(&(struct node_options){.flags = flags});
    fill_pattern(heap, BYTES, 1);
    ref = put_snapshot(&VECTOR(RDT_U8, BYTES, heap), 1, "heap");
    must_read(conn, &ref, RDT_FETCH_COW, "local/cow", 1);
    must_ok(rdt_free(conn, &ref, false, &err));
    wait_until(LONG, memory_now() == 0);
    memory = alloc_memory(conn, BYTES);
    options.flags = RDT_PUT_SNAPSHOT;
    options.id = "w";
    options.id_bytes = 1;
    ref = ref_named("w");
    must_refuse(RDT_NO_MEMORY, "memory_limit", rdt_put(conn, &VECTOR(RDT_U8, BYTES, memory), 1, &options, &ref, &err));
    must_be(RDT_NOT_FOUND, rdt_stat(conn, &ref, &(struct rdt_stat){.bytes = 0}, &err)); /* the id is free again */
    waiting = start_one(conn, &ref, LONG);
    must_refuse(RDT_NO_MEMORY, "memory_limit", rdt_put(conn, &VECTOR(RDT_U8, BYTES, memory), 1, &options, &ref, &err));
    must_be(RDT_TIMED_OUT, rdt_wait(conn, &waiting, 1, 1, 0, NULL, NULL, &err)); /* a put that was refused is none */
    must_ok(rdt_wait_freed_range(conn, memory, BYTES, 0, &err));
    options.flags = 0;
    must_ok(rdt_put(conn, &VECTOR(RDT_U8, BYTES, memory), 1, &options, &ref, &err));
    must_ok(rdt_wait(conn, &waiting, 1, 1, LONG, NULL, NULL, &err));
    must_ok(rdt_request_take_object(waiting, &object, &err));
    rdt_release(object);
    rdt_request_destroy(waiting);
    must_ok(rdt_dealloc(conn, memory, &err));
    must_ok(rdt_free(conn, &ref, false, &err));
    free(heap);
    end();
}

/* ---- copy on write ---- */

static int write_cow(struct actor *self, void *arg)
{
    rdt *client = node_client(&node, "writer");
    struct rdt_ref ref = ref_named("w");
    rdt_object *object[3];
    struct rdt_tensor tensor[3];
    pid_t child;
    int status;

    (void)arg;
    actor_await(self);
    object[0] = fetch_one(client, &ref, RDT_FETCH_COW);
    object[1] = fetch_one(client, &ref, RDT_FETCH_SHARE);
    object[2] = fetch_one(client, &ref, RDT_FETCH_COW); /* of the same region: another mapping */
    for (unsigned i = 0; i < 3; i++)
        tensor[i] = tensor_of(object[i], 0);
    must(tensor[0].data != tensor[1].data && tensor[0].data != tensor[2].data && tensor[1].data != tensor[2].data);
    memset(tensor[0].data, 0x11, BYTES);
    must(holds_pattern(tensor[1].data, BYTES, 1) && holds_pattern(tensor[2].data, BYTES, 1));
    memset(tensor[2].data, 0x22, BYTES / 2);
    must(is_filled_with(tensor[0].data, BYTES, 0x11) && holds_pattern(tensor[1].data, BYTES, 1));
    child = fork();
    if (child == 0) { /* has its own from now on */
        memset(tensor[0].data, 0x33, BYTES);
        _exit(is_filled_with(tensor[0].data, BYTES, 0x33) && holds_pattern(tensor[1].data, BYTES, 1) ? 0 : 1);
    }
    must(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    must(is_filled_with(tensor[0].data, BYTES, 0x11));
    rdt_release(object[0]);
    must(holds_pattern(tensor[1].data, BYTES, 1) && is_filled_with(tensor[2].data, BYTES / 2, 0x22));
    actor_step(self);
    actor_await(self);
    must(is_filled_with(tensor[2].data, BYTES / 2, 0x22)); /* also after the object was freed */
    rdt_release(object[1]);
    rdt_release(object[2]);
    rdt_close(client);
    return 0;
}

Test(snapshot, cow_mappings_are_each_ones_own)
{
    struct actor writers[2];
    char *heap = malloc(BYTES);
    struct rdt_ref ref;

    node_start(&node, NULL);
    for (unsigned i = 0; i < 2; i++)
        actor_start(&writers[i], write_cow, NULL);
    conn = node_client(&node, "producer");
    fill_pattern(heap, BYTES, 1);
    ref = put_snapshot(&VECTOR(RDT_U8, BYTES, heap), 1, "w");
    for (unsigned i = 0; i < 2; i++)
        actor_step(&writers[i]);
    for (unsigned i = 0; i < 2; i++)
        actor_await(&writers[i]);
    must_read(conn, &ref, RDT_FETCH_SHARE, "local/share", 1);
    must_ok(rdt_free(conn, &ref, false, &err));
    for (unsigned i = 0; i < 2; i++) {
        actor_step(&writers[i]);
        actor_wait(&writers[i]);
    }
    free(heap);
    end();
}

/* Equal refs of one call share the transfer: each still has memory of its own. */
Test(snapshot, cow_of_equal_refs_in_one_fetch)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    char *heap = malloc(BYTES);
    struct rdt_ref refs[3];
    rdt_object *objects[3];

    begin(NULL);
    fill_pattern(heap, BYTES, 1);
    refs[0] = refs[1] = refs[2] = put_snapshot(&VECTOR(RDT_U8, BYTES, heap), 1, "w");
    options.mode = RDT_FETCH_COW;
    options.timeout_ns = LONG;
    must_ok(rdt_fetch(conn, refs, 3, &options, objects, &err));
    for (unsigned i = 0; i < 3; i++) {
        must_hold(objects[i], 0, BYTES, 1);
        memset(tensor_of(objects[i], 0).data, (int)i + 1, BYTES);
    }
    for (unsigned i = 0; i < 3; i++) {
        cr_assert(is_filled_with(tensor_of(objects[i], 0).data, BYTES, (uint8_t)(i + 1)));
        rdt_release(objects[i]);
    }
    free(heap);
    end();
}
