/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed memfds of a client that speaks the protocol by itself: descriptors that only resemble sealed memfds, and requests that
 * contradict themselves, are refused by name; and a client cannot change the memfd that it has handed over. */
#include <fcntl.h>
#include <sys/socket.h>

#include "tests/integration/memory/snapshot.h"

#define MADE_MAX (4 * MIB)
#define ALL_SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW)

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

Test(put_sealed_hostile, other_files_are_refused_by_name)
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

Test(put_sealed_hostile, requests_that_contradict_themselves_are_refused)
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
Test(put_sealed_hostile, its_maker_cannot_change_it)
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
