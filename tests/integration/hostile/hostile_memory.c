/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that hand over descriptors that are not memory or not what they claim, and tensors outside their region. Each
 * refusal names the thing, the connection continues, and nothing is left behind. */
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/integration/hostile/protocol_fixture.h"

static int sealed_memfd(off_t bytes, int seals)
{
    int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    must(fd >= 0 && ftruncate(fd, bytes) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

/* Memory of the daemon's for a client that never maps it. */
static Rdt__Pb__RegionReply *alloc(struct raw *raw, uint64_t bytes)
{
    Rdt__Pb__Alloc message = MESSAGE(alloc, .bytes = bytes);
    ProtobufCMessage *reply =
        raw_reply(raw, raw_send(raw, RDT_MSG_ALLOC, &message.base, NULL, 0), &rdt__pb__region_reply__descriptor);
    frame_close_fds(&raw->frame);
    return (Rdt__Pb__RegionReply *)reply;
}

static Rdt__Pb__RegionReply import(struct raw *raw, const Rdt__Pb__Import *message, int fd)
{
    Rdt__Pb__RegionReply *reply = (Rdt__Pb__RegionReply *)raw_reply(raw, raw_send(raw, RDT_MSG_IMPORT, &message->base, &fd, 1),
                                                                    &rdt__pb__region_reply__descriptor),
                         copy = *reply;

    rdt__pb__region_reply__free_unpacked(reply, NULL);
    return copy;
}

/* ---- descriptors that are not memory ---- */

Test(hostile_memory, other_fds_are_no_memory)
{
    Rdt__Pb__Import message = RDT__PB__IMPORT__INIT;
    int memory = sealed_memfd(65536, F_SEAL_SHRINK), sockets[2], pipes[2];
    char path[64];
    struct raw raw;

    begin_greeted(&raw);
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0 && pipe2(pipes, O_CLOEXEC) == 0);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    const struct {
        int fd;
        const char *says;
    } wrong[] = {
        {sockets[0], "not a memfd"},
        {pipes[0], "not a memfd"},
        {pipes[1], "not a memfd"},
        {eventfd(1, EFD_CLOEXEC), "not a memfd"},
        {open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC), "not a memfd"},
        {open("/dev/null", O_RDWR | O_CLOEXEC), "not a memfd"},
        {open("/dev/zero", O_RDWR | O_CLOEXEC), "not a memfd"},
        {open("/proc/self/mem", O_RDWR | O_CLOEXEC), "not a memfd"},
        {open("/proc/self/maps", O_RDONLY | O_CLOEXEC), "not a memfd"},
        {open(path, O_PATH | O_CLOEXEC), ""},
        {open(path, O_WRONLY | O_CLOEXEC), "cannot be read"},
        {sealed_memfd(65536, F_SEAL_GROW), "F_SEAL_SHRINK"},
        {sealed_memfd(65536, F_SEAL_SEAL), "takes no more seals"},
        {sealed_memfd(65535, F_SEAL_SHRINK), "65535 bytes, fewer than the 65536"},
        {sealed_memfd(0, F_SEAL_SHRINK), "0 bytes, fewer than the 65536"},
    };
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        message.bytes = 65536;
        must_say(wrong[i].fd >= 0, "fd %u cannot be made", i);
        (void)raw_send(&raw, RDT_MSG_IMPORT, &message.base, &wrong[i].fd, 1);
        refuses(&raw, RDT_INVALID, wrong[i].says);
        close(wrong[i].fd);
    }
    ping_works(&raw);
    raw_close(&raw);
    close(memory);
    close(sockets[0]);
    close(sockets[1]);
    close(pipes[0]);
    close(pipes[1]);
    end();
}

Test(hostile_memory, imports_that_make_no_sense_are_refused)
{
    int memory = sealed_memfd(65536, F_SEAL_SHRINK), two[2] = {memory, memory}, many[64];
    uint64_t chunks[] = {UINT64_MAX, 2};
    char text[5000];
    struct raw raw;

    begin_greeted(&raw);
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    for (unsigned i = 0; i < 64; i++)
        many[i] = memory;
#define REFUSED(expected, says, fds, n_fds, ...)                         \
    do {                                                                 \
        Rdt__Pb__Import message = RDT__PB__IMPORT__INIT;                 \
        __VA_ARGS__;                                                     \
        (void)raw_send(&raw, RDT_MSG_IMPORT, &message.base, fds, n_fds); \
        refuses(&raw, expected, says);                                   \
    } while (0)
    REFUSED(RDT_INVALID, "one fd, not 0", NULL, 0, message.bytes = 4096);
    REFUSED(RDT_INVALID, "one fd, not 2", two, 2, message.bytes = 4096);
    REFUSED(RDT_INVALID, "one fd, not 64", many, 64, message.bytes = 4096);
    REFUSED(RDT_INVALID, "import 0 bytes", &memory, 1, message.bytes = 0);
    REFUSED(RDT_INVALID, "18446744073709551615 bytes", &memory, 1, message.bytes = UINT64_MAX);
    REFUSED(RDT_INVALID, "at offset 18446744073709547520", &memory, 1, message.bytes = 4096;
            message.offset = UINT64_MAX - 4095);
    REFUSED(RDT_INVALID, "fewer than the 65536 at offset 4096", &memory, 1, message.bytes = 65536; message.offset = 4096);
    REFUSED(RDT_INVALID, "multiple of its page size", &memory, 1, message.bytes = 4096; message.offset = 1);
    REFUSED(RDT_UNSUPPORTED, "\"rocm\"", &memory, 1, message.bytes = 4096; message.memory = (char *)"rocm");
    REFUSED(RDT_UNSUPPORTED, "\"xxx", &memory, 1, message.bytes = 4096; message.memory = text);
    REFUSED(RDT_UNSUPPORTED, "memfd only", &memory, 1, message.bytes = 4096; message.kind = (Rdt__Pb__RegionKind)99);
    REFUSED(RDT_UNSUPPORTED, "memfd only", &memory, 1, message.bytes = 4096;
            message.kind = RDT__PB__REGION_KIND__REGION_KIND_LEGACY_IPC);
    REFUSED(RDT_INVALID, "2 chunk sizes for 1 fds", &memory, 1, message.kind = RDT__PB__REGION_KIND__REGION_KIND_VMM;
            message.n_chunk_bytes = 2; message.chunk_bytes = chunks);
    REFUSED(RDT_UNSUPPORTED, "memfd only", two, 2, message.bytes = 4096; message.kind = RDT__PB__REGION_KIND__REGION_KIND_VMM;
            message.n_chunk_bytes = 2; message.chunk_bytes = chunks);
    ping_works(&raw);
    raw_close(&raw);
    close(memory);
    end();
}

/* Terabytes that are not there: no page of them is touched, and a slice of the end is served. */
Test(hostile_memory, huge_sparse_memory_costs_nothing)
{
    const uint64_t bytes = UINT64_C(1) << 40;
    int memory = sealed_memfd((off_t)bytes, F_SEAL_SHRINK | F_SEAL_GROW);
    struct raw raw;

    begin_greeted(&raw);
    size_t rss = rss_of(node.pid);
    Rdt__Pb__Import message = MESSAGE(import, .bytes = bytes);
    Rdt__Pb__RegionReply region = import(&raw, &message, memory);
    cr_assert_eq(region.bytes, bytes);
    others_are_well();
    cr_assert_lt(rss_of(node.pid), rss + 16 * MIB);
    raw_close(&raw);
    close(memory);
    end();
}

/* ---- what lies where it must not ---- */

struct wish { /* a put of one tensor with one fault */
    uint32_t dtype, ndim, region_index;
    uint64_t shape[2], offset;
    int64_t strides[2];
    size_t n_shape, n_strides;
    enum rdt_status status;
    const char *says;
};

Test(hostile_memory, tensors_outside_their_region_are_refused_by_name)
{
    static const struct wish wishes[] = {
        {RDT_U8, 1, 0, {4097}, 0, {0}, 1, 0, RDT_INVALID, "tensor 0 ends at byte 4097"},
        {RDT_U8, 1, 0, {1}, 4096, {0}, 1, 0, RDT_INVALID, "tensor 0 ends at byte 4097"},
        {RDT_U8, 1, 0, {1}, UINT64_MAX, {0}, 1, 0, RDT_INVALID, "tensor 0"},
        {RDT_F32, 1, 0, {2}, INT64_MAX - 3, {0}, 1, 0, RDT_INVALID, "tensor 0"},
        {RDT_U8, 1, 1, {1}, 0, {0}, 1, 0, RDT_INVALID, "tensor 0 names region 1 of 1"},
        {RDT_U8, 1, UINT32_MAX, {1}, 0, {0}, 1, 0, RDT_INVALID, "tensor 0 names region 4294967295"},
        {RDT_F32, 1, 0, {3}, 4, {-1}, 1, 1, RDT_INVALID, "tensor 0"},
        {RDT_U8, 1, 0, {2}, 0, {INT64_MIN}, 1, 1, RDT_INVALID, "tensor 0"},
        {RDT_U8, 1, 0, {2}, 0, {INT64_MAX}, 1, 1, RDT_INVALID, "tensor 0"},
        {RDT_F64, 2, 0, {UINT64_C(1) << 32, UINT64_C(1) << 32}, 0, {0}, 2, 0, RDT_INVALID, "tensor 0"},
        {RDT_U8, 2, 0, {UINT64_C(1) << 40, UINT64_C(1) << 40}, 0, {0, 0}, 2, 2, RDT_INVALID, "tensor 0"},
        {RDT_U8, 1, 0, {UINT64_MAX}, 0, {0}, 1, 0, RDT_INVALID, "tensor 0"},
        {0, 1, 0, {1}, 0, {0}, 1, 0, RDT_INVALID, "tensor 0"},
        {25, 1, 0, {1}, 0, {0}, 1, 0, RDT_INVALID, "tensor 0"},
        {UINT32_MAX, 1, 0, {1}, 0, {0}, 1, 0, RDT_INVALID, "tensor 0"},
        {RDT_U8, 33, 0, {1}, 0, {0}, 1, 0, RDT_INVALID, "33"},
        {RDT_U8, UINT32_MAX, 0, {1}, 0, {0}, 1, 0, RDT_INVALID, ""},
        {RDT_U8, 2, 0, {1}, 0, {0}, 1, 0, RDT_INVALID, "2 dimensions but 1 sizes"},
        {RDT_U8, 1, 0, {1, 1}, 0, {0}, 2, 0, RDT_INVALID, "1 dimensions but 2 sizes"},
        {RDT_U8, 2, 0, {1, 1}, 0, {1}, 2, 1, RDT_INVALID, "strides"},
    };
    Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT, *uses[] = {&use};
    struct raw raw;

    begin_greeted(&raw);
    Rdt__Pb__RegionReply *region = alloc(&raw, 4096);
    use.region = region->region;
    use.generation = region->generation;
    for (unsigned i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        struct wish wish = wishes[i];
        Rdt__Pb__TensorList tensors = MESSAGE(tensor_list, .dtype = &wish.dtype, .ndim = &wish.ndim,
                                              .region_index = &wish.region_index, .offset = &wish.offset);

        tensors.n_dtype = tensors.n_ndim = tensors.n_region_index = tensors.n_offset = 1;
        tensors.shape = wish.shape;
        tensors.n_shape = wish.n_shape;
        tensors.strides = wish.strides;
        tensors.n_strides = wish.n_strides;
        Rdt__Pb__Put put = MESSAGE(put, .tensors = &tensors, .regions = uses, .n_regions = 1);
        (void)raw_send(&raw, RDT_MSG_PUT, &put.base, NULL, 0);
        must_say(wish.says, "wish %u", i);
        refuses(&raw, wish.status, wish.says);
    }
    rdt__pb__region_reply__free_unpacked(region, NULL);
    ping_works(&raw);
    end_closed(&raw);
}

Test(hostile_memory, regions_that_are_not_ones_own_are_not_found)
{
    struct raw owner, thief;

    begin(NULL);
    greeted(&owner);
    greeted(&thief);
    Rdt__Pb__RegionReply *region = alloc(&owner, 4096);
    for (unsigned i = 0; i < 4; i++) { /* his, mine with a wrong generation, none, the largest */
        struct raw *who = i == 1 ? &owner : &thief;
        Rdt__Pb__RegionUse use = RDT__PB__REGION_USE__INIT, *uses[] = {&use};
        Rdt__Pb__WaitFreed wait = RDT__PB__WAIT_FREED__INIT;
        Rdt__Pb__ReleaseRegion release = RDT__PB__RELEASE_REGION__INIT;
        Rdt__Pb__FetchItem item = RDT__PB__FETCH_ITEM__INIT, *items[] = {&item};
        Rdt__Pb__TensorList none = RDT__PB__TENSOR_LIST__INIT;
        char text[32];

        use.region = i < 2 ? region->region : i == 2 ? 0 : UINT64_MAX;
        use.generation = region->generation + (i == 1);
        (void)snprintf(text, sizeof text, "no region %llu", (unsigned long long)use.region);
        Rdt__Pb__Put put = MESSAGE(put, .regions = uses, .n_regions = 1);
        (void)raw_send(who, RDT_MSG_PUT, &put.base, NULL, 0);
        refuses(who, RDT_NOT_FOUND, text);

        Rdt__Pb__Ref ref = MESSAGE(ref, .id = (ProtobufCBinaryData){6, (uint8_t *)"theirs"}, .any_owner = true);
        item.ref = &ref;
        item.handle = 1;
        item.targets = &none;
        item.target_regions = uses;
        item.n_target_regions = 1;
        Rdt__Pb__Fetch fetch = MESSAGE(fetch, .items = items, .n_items = 1);
        protobuf_c_message_free_unpacked(
            raw_reply(who, raw_send(who, RDT_MSG_FETCH, &fetch.base, NULL, 0), &rdt__pb__empty__descriptor), NULL);
        must(raw_next(who) && who->frame.type == RDT_EVENT_FETCH_DONE);
        Rdt__Pb__FetchDone *done = rdt__pb__fetch_done__unpack(NULL, who->frame.length, who->frame.payload);
        must_say(done->status == RDT_NOT_FOUND && strstr(done->message, text), "%d: %s", done->status, done->message);
        rdt__pb__fetch_done__free_unpacked(done, NULL);

        if (i != 2) { /* 0 is "no region" */
            wait.region = use.region;
            wait.generation = use.generation;
            wait.bytes = 1;
            (void)raw_send(who, RDT_MSG_WAIT_FREED, &wait.base, NULL, 0);
            refuses(who, RDT_NOT_FOUND, text);
        }
        if (i != 1) {
            release.region = use.region;
            (void)raw_send(who, RDT_MSG_RELEASE_REGION, &release.base, NULL, 0);
            refuses(who, RDT_NOT_FOUND, text);
        }
    }
    rdt__pb__region_reply__free_unpacked(region, NULL);
    ping_works(&owner);
    ping_works(&thief);
    raw_close(&owner);
    raw_close(&thief);
    end();
}
