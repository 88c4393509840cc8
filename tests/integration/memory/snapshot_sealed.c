/* SPDX-License-Identifier: Apache-2.0 */
/* Nobody can write a snapshot: not through its descriptor, and not the client that handed over the memory and kept a
 * mapping of it. */
#include "proto/wire_ref.h"
#include "tests/integration/memory/snapshot.h"

/* ---- nobody can write it ---- */

/* The fd of the shared region as the daemon sends it. */
static int shared_fd(struct raw *raw, const struct rdt_ref *ref, Rdt__Pb__FetchMode mode, size_t *bytes_p)
{
    Rdt__Pb__Fetch fetch = RDT__PB__FETCH__INIT;
    Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items = &item;
    Rdt__Pb__Ref name = RDT__PB__REF__INIT;
    Rdt__Pb__FetchDone *done;
    int fd;

    wire_ref_from(ref, &name);
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

Test(snapshot_sealed, nobody_writes_through_the_descriptor_the_same_uid_neither)
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

/* ---- memory that its client hands over ---- */

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

/* The client claims that it has unmapped the memory and has not: the daemon checks. With only the descriptor, the kernel
 * refuses the write. */
Test(snapshot_sealed, giver_that_keeps_a_mapping_or_the_descriptor_changes_nothing)
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

/* ---- memory that is used again ---- */

/* A user gets a snapshot for everybody in memory that had a private one of another user, and maps the whole descriptor. */
Test(snapshot_sealed, other_user_sees_no_byte_of_an_earlier_private_snapshot)
{
    const size_t first = 1000, second = BYTES - 100000;
    struct rdt_put_options options = RDT_INIT(options);
    struct rdt_tensor tensors[2];
    struct stat whole;
    struct rdt_ref ref;
    struct raw strange;
    rdt_object *object;
    rdt *reader;
    unsigned long inode;
    char *memory, *mapped;
    size_t bytes;
    int fd;

    if (geteuid() != 0) {
        cr_skip_test("needs root, to become another user");
        return;
    }
    begin(&(struct node_options){.flags = (const char *const[]){"--pool-idle=3s", NULL}});
    must(chdir(node.dir) == 0);
    must(seteuid(12345) == 0);
    raw_connect(&strange, "s");
    must(seteuid(0) == 0);
    raw_hello(&strange);
    reader = node_client(&node, "reader");
    memory = alloc_memory(conn, BYTES);
    memset(memory, 0xff, BYTES);
    ref = put_snapshot(&VECTOR(RDT_U8, BYTES, memory), 1, "private");
    object = fetch_one(reader, &ref, RDT_FETCH_SHARE);
    inode = inode_at(tensor_of(object, 0).data);
    rdt_release(object);
    must_ok(rdt_free(conn, &ref, false, &err));

    memset(memory, 0x55, BYTES);
    tensors[0] = VECTOR(RDT_U8, first, memory);
    tensors[1] = VECTOR(RDT_U8, second, memory);
    options.flags = RDT_PUT_SNAPSHOT;
    options.visibility = RDT_VISIBLE_TO_ALL;
    must_ok(rdt_put(conn, tensors, 2, &options, &ref, &err));
    fd = shared_fd(&strange, &ref, RDT__PB__FETCH_MODE__FETCH_MODE_SHARE, &bytes);
    must(fstat(fd, &whole) == 0);
    cr_assert_eq(whole.st_ino, inode, "the memory was not used again");
    mapped = mmap(NULL, (size_t)whole.st_size, PROT_READ, MAP_SHARED, fd, 0);
    cr_assert_neq(mapped, MAP_FAILED);
    for (size_t i = 0, n = 0; i < (size_t)whole.st_size; i++) {
        n += mapped[i] == 0x55;
        cr_assert(mapped[i] == 0 || mapped[i] == 0x55, "byte %zu of %zu", i, (size_t)whole.st_size);
        cr_assert(i + 1 < (size_t)whole.st_size || n == first + second);
    }
    munmap(mapped, (size_t)whole.st_size);
    close(fd);
    raw_close(&strange);
    rdt_close(reader);
    must_ok(rdt_free(conn, &ref, false, &err));
    must_ok(rdt_dealloc(conn, memory, &err));
    end();
}
