/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots keep the bytes that were put, whoever writes the source afterwards, and by whichever path they are read. */
#include "tests/integration/memory/snapshot.h"

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
        must_ok(rdt_wait(reader, &request, 1, 1, LONG, NULL, NULL, &err)); /* the fetch waited for the put */
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

/* ---- a snapshot keeps its bytes ---- */

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
    must_read(conn, &ref, RDT_FETCH_AUTO, "local/share", 1); /* the producer can only read it, too */
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

/* Bytes that librdt has copied into the daemon's memory are not copied again, so the memory exists once. */
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

/* ---- limits ---- */

Test(snapshot, heap_memory_needs_room_for_one_copy_daemon_memory_for_two)
{
    const char *flags[] = {"--memory-limit=5MiB", "--set", "daemon.cache_max=1", NULL};
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
