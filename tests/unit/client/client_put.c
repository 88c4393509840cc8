/* SPDX-License-Identifier: Apache-2.0 */
/* librdt against a scripted fake daemon: the client's memory, and how a put finds and sends the bytes of its tensors. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/rdt_many.h"
#include "proto/wire_limits.h"
#include "tests/support/fakes/fake_daemon.h"

static struct rdt_error err;

/* Answers an ALLOC with a region; returns the daemon's view of it. */
static uint8_t *give_region(struct fake *fake, uint64_t region, size_t bytes)
{
    int fd = fake_memfd(bytes);
    uint8_t *view = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);

    MUST(view != MAP_FAILED);
    Rdt__Pb__RegionReply reply = MESSAGE(region_reply, .region = region, .generation = region + 1000, .bytes = bytes);
    fake_reply_fd(fake, &reply.base, fd);
    close(fd);
    return view;
}

static Rdt__Pb__Put *take_put(struct fake *fake)
{
    fake_take(fake, RDT_MSG_PUT);
    fake_reply_put(fake);
    return FAKE_MESSAGE(fake, Put);
}

static void take_release_region(struct fake *fake, uint64_t region)
{
    fake_take(fake, RDT_MSG_RELEASE_REGION);
    Rdt__Pb__ReleaseRegion *release = FAKE_MESSAGE(fake, ReleaseRegion);
    MUST(release->region == region);
    fake_free(release);
    fake_empty(fake);
}

/* ---- known memory ---- */

static void check_places(struct fake *fake)
{
    fake_take(fake, RDT_MSG_ALLOC);
    munmap(give_region(fake, 70, 8192), 8192);
    fake_take(fake, RDT_MSG_IMPORT);
    Rdt__Pb__Import *import = FAKE_MESSAGE(fake, Import);
    MUST(import->bytes == 4096 && fake->frame.nfds == 1);
    fake_free(import);
    Rdt__Pb__RegionReply imported = MESSAGE(region_reply, .region = 71, .bytes = 4096);
    fake_reply(fake, &imported.base);

    Rdt__Pb__Put *put = take_put(fake);
    MUST(put->n_regions == 2 && put->regions[0]->region == 70 && put->regions[0]->generation == 1070);
    MUST(put->regions[1]->region == 71);
    MUST(put->tensors->n_dtype == 5 && put->tensors->n_region_index == 5);
    MUST(put->tensors->region_index[0] == 0 && put->tensors->offset[0] == 16);
    MUST(put->tensors->region_index[1] == 1 && put->tensors->offset[1] == 0);
    MUST(put->tensors->region_index[2] == 0 && put->tensors->offset[2] == 8188);
    MUST(put->tensors->strides[2] == -1);
    MUST(put->tensors->offset[3] == 16 && put->tensors->offset[4] == 0);
    MUST(put->id.len == 3 && put->metadata.len == 2 && strcmp(put->transport, "ucx") == 0);
    MUST(put->visibility == RDT__PB__VISIBILITY__VISIBILITY_ALL);
    fake_free(put);
    fake_serve(fake);
}

Test(client_put, known_memory_is_not_copied)
{
    int64_t shape[] = {2, 3}, line[] = {2047}, backwards[] = {-1}, none[] = {0, 3};
    enum rdt_memory how[5];
    struct rdt_tensor tensors[5];
    uint8_t *memory, *own;
    struct rdt_ref ref;
    struct fake fake;
    int fd = fake_memfd(4096);
    rdt *conn = fake_client(&fake, check_places, NULL);

    assert_status(RDT_OK, rdt_alloc(conn, 8192, (void **)&memory, &err));
    own = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_status(RDT_OK, rdt_import(conn, fd, own, 4096, &err));
    close(fd);
    tensors[0] = (struct rdt_tensor){.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = memory + 16};
    tensors[1] = (struct rdt_tensor){.dtype = RDT_F64, .data = own};
    tensors[2] = (struct rdt_tensor){.dtype = RDT_F32, .ndim = 1, .shape = line, .strides = backwards, .data = memory + 8188};
    tensors[3] = tensors[0];
    tensors[4] = (struct rdt_tensor){.dtype = RDT_F32, .ndim = 2, .shape = none};
    struct rdt_put_options options = {.struct_size = sizeof options,
                                      .how = how,
                                      .id = "abc",
                                      .id_bytes = 3,
                                      .metadata = "md",
                                      .metadata_bytes = 2,
                                      .transport = "ucx",
                                      .visibility = RDT_VISIBLE_TO_ALL};
    assert_status(RDT_OK, rdt_put(conn, tensors, 5, &options, &ref, &err));
    cr_assert(how[0] == RDT_MEMORY_DAEMON && how[1] == RDT_MEMORY_IMPORTED && how[2] == RDT_MEMORY_DAEMON);
    cr_assert_str_eq(ref.id, "made");
    cr_assert_eq(ref.generation, 3);

    line[0] = 2048; /* now it begins one element before memory + 0 ... */
    tensors[2].data = memory + 8184;
    assert_refused(RDT_INVALID, "tensor 2", rdt_put(conn, tensors, 5, NULL, &ref, &err));
    tensors[2].data = memory + 8188;
    tensors[0].data = memory + 8180; /* ... and this one ends behind it */
    assert_refused(RDT_INVALID, "tensor 0", rdt_put(conn, tensors, 5, NULL, &ref, &err));
    assert_status(RDT_OK, rdt_dealloc(conn, own, &err));
    own[0] = 1; /* the caller's mapping is the caller's */
    rdt_close(conn);
    own[0] = 2;
    munmap(own, 4096);
    fake_stop(&fake);
}

#define TOGETHER 6u

/* All of them come before one is answered. */
static void take_together(struct fake *fake)
{
    uint64_t ids[TOGETHER];

    fake_take(fake, RDT_MSG_ALLOC);
    munmap(give_region(fake, 70, 8192), 8192);
    for (unsigned i = 0; i < TOGETHER; i++) {
        fake_take(fake, RDT_MSG_PUT);
        Rdt__Pb__Put *put = FAKE_MESSAGE(fake, Put);
        MUST(put->n_regions == 1 && put->regions[0]->region == 70 && put->tensors->offset[0] == i * 64);
        MUST(put->flags == 0 && put->inline_data.len == 0);
        ids[i] = fake->frame.request_id;
        fake_free(put);
    }
    for (unsigned i = 0; i < TOGETHER; i++) {
        fake->frame.request_id = ids[i];
        fake_reply_put(fake);
    }
    fake_serve(fake);
}

Test(client_put, live_values_in_known_memory_are_put_together)
{
    int64_t shape[] = {64};
    struct rdt_tensor tensors[TOGETHER];
    struct rdt_value values[TOGETHER];
    struct rdt_ref refs[TOGETHER];
    uint8_t *memory;
    struct fake fake;
    rdt *conn = fake_client(&fake, take_together, NULL);

    assert_status(RDT_OK, rdt_alloc(conn, 8192, (void **)&memory, &err));
    for (unsigned i = 0; i < TOGETHER; i++) {
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = shape, .data = memory + i * 64};
        values[i] = (struct rdt_value){.tensors = &tensors[i], .count = 1};
    }
    assert_status(RDT_OK, rdt_put_many(conn, values, TOGETHER, NULL, refs, NULL, &err));
    cr_assert_eq(refs[TOGETHER - 1].generation, 3);
    fake_end(&fake, conn);
}

/* ---- copying in ---- */

static void check_copies(struct fake *fake)
{
    fake_take(fake, RDT_MSG_ALLOC);
    Rdt__Pb__Alloc *alloc = FAKE_MESSAGE(fake, Alloc);
    MUST(alloc->bytes == 64 + 8);
    fake_free(alloc);
    uint8_t *view = give_region(fake, 80, 4096);
    Rdt__Pb__Put *put = take_put(fake);
    MUST(put->n_regions == 1 && put->regions[0]->region == 80);
    MUST(put->tensors->offset[0] == 0 && put->tensors->offset[1] == 64);
    MUST(put->tensors->n_strides == 0 || (put->tensors->strides[0] == 2 && put->tensors->strides[1] == 1));
    MUST(memcmp(view, (uint8_t[]){11, 9, 8, 6, 5, 3}, 6) == 0);
    MUST(memcmp(view + 64, "12345678", 8) == 0);
    MUST(munmap(view, 4096) == 0);
    fake_free(put);
    take_release_region(fake, 80); /* at once: the object keeps it */

    put = take_put(fake);
    MUST(put->n_regions == 0 && put->tensors->n_dtype == 1);
    fake_free(put);
    put = take_put(fake);
    MUST(put->n_regions == 0 && (!put->tensors || put->tensors->n_dtype == 0));
    fake_free(put);
    fake_serve(fake);
}

Test(client_put, other_memory_is_copied_once_and_packed)
{
    static uint8_t bytes[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    int64_t shape[] = {3, 2}, strides[] = {-3, -2}, none[] = {0};
    enum rdt_memory how[2];
    struct rdt_tensor tensors[2] = {
        {.dtype = RDT_U8, .ndim = 2, .shape = shape, .strides = strides, .data = bytes + 11},
        {.dtype = RDT_I64, .data = (void *)"12345678"},
    };
    struct rdt_tensor empty = {.dtype = RDT_U8, .ndim = 1, .shape = none};
    struct rdt_ref ref;
    struct fake fake;

    rdt *conn = fake_client(&fake, check_copies, NULL);
    struct rdt_put_options options = {.struct_size = sizeof options, .how = how};
    assert_status(RDT_OK, rdt_put(conn, tensors, 2, &options, &ref, &err));
    cr_assert(how[0] == RDT_MEMORY_COPIED && how[1] == RDT_MEMORY_COPIED);
    assert_status(RDT_OK, rdt_put(conn, &empty, 1, NULL, &ref, &err));
    assert_status(RDT_OK, rdt_put(conn, NULL, 0, NULL, &ref, &err));
    fake_end(&fake, conn);
}

static void refuse_put(struct fake *fake)
{
    fake_take(fake, RDT_MSG_ALLOC);
    munmap(give_region(fake, 80, 4096), 4096);
    fake_take(fake, RDT_MSG_PUT);
    fake_error(fake, RDT_EXISTS, "object \"abc\" exists");
    take_release_region(fake, 80);
    fake_take(fake, RDT_MSG_ALLOC);
    fake_error(fake, RDT_NO_MEMORY, "the daemon's memory limit is reached");
    fake_serve(fake);
}

/* ---- snapshots ---- */

static void offers_to_take_memfds(struct fake *fake)
{
    static uint8_t most[] = {0x80, 0x80, 0x40}; /* 1 MiB */
    ProtobufCMessageUnknownField field = {.tag = 14, .len = sizeof most, .data = most};
    size_t bytes = 60032 + 30000;
    uint8_t *view;

    fake_take(fake, RDT_MSG_HELLO);
    Rdt__Pb__HelloReply hello = MESSAGE(hello_reply, .inline_max_bytes = 32768);
    hello.base.n_unknown_fields = 1;
    hello.base.unknown_fields = &field;
    fake_welcome(fake, hello);
    fake_take(fake, RDT_MSG_ALLOC);
    view = give_region(fake, 70, bytes);
    Rdt__Pb__Put *put = take_put(fake);
    MUST(fake->frame.nfds == 0 && put->base.n_unknown_fields == 0);
    MUST(put->n_regions == 1 && put->regions[0]->region == 70 && put->n_given == 1 && put->given[0] == 0);
    MUST(put->tensors->n_offset == 2 && put->tensors->offset[0] == 0 && put->tensors->offset[1] == 60032);
    MUST(view[0] == 1 && view[59999] == 1 && view[60032] == 2 && view[90031] == 2);
    munmap(view, bytes);
    fake_free(put);
    fake_serve(fake);
}

/* An older daemon also took snapshots in memfds that their client had sealed. */
Test(client_put, snapshot_lies_in_the_daemons_memory_whatever_else_it_offers)
{
    static const int64_t sizes[2][1] = {{60000}, {30000}};
    static uint8_t a[60000], b[30000];
    struct rdt_tensor tensors[2] = {{.dtype = RDT_U8, .ndim = 1, .shape = sizes[0], .data = a},
                                    {.dtype = RDT_U8, .ndim = 1, .shape = sizes[1], .data = b}};
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = RDT_PUT_SNAPSHOT};
    struct rdt_ref ref;
    struct fake fake;

    memset(a, 1, sizeof a);
    memset(b, 2, sizeof b);
    fake_start_raw(&fake, offers_to_take_memfds, NULL);
    rdt *conn = fake_connect(&fake);
    assert_status(RDT_OK, rdt_put(conn, tensors, 2, &options, &ref, &err));
    fake_end(&fake, conn);
}

Test(client_put, failed_put_gives_its_memory_back)
{
    struct rdt_tensor tensor = {.dtype = RDT_I64, .data = (void *)"12345678"};
    struct rdt_ref ref;
    struct fake fake;
    rdt *conn = fake_client(&fake, refuse_put, NULL);
    unsigned fds = fake_count_fds();

    assert_status(RDT_EXISTS, rdt_put(conn, &tensor, 1, NULL, &ref, &err));
    assert_status(RDT_NO_MEMORY, rdt_put(conn, &tensor, 1, NULL, &ref, &err));
    cr_assert_eq(fake_count_fds(), fds);
    fake_end(&fake, conn);
}

/* ---- what never reaches the daemon ---- */

static void serve(struct fake *fake)
{
    fake_serve(fake);
}

static void check_invalid(rdt *conn, const struct rdt_tensor *tensor, const char *words)
{
    struct rdt_tensor good = {.dtype = RDT_U8, .data = (void *)"x"}, both[2];
    struct rdt_ref ref;

    both[0] = good;
    both[1] = *tensor;
    assert_status(RDT_INVALID, rdt_put(conn, both, 2, NULL, &ref, &err));
    cr_assert(strstr(err.msg, "tensor 1") && strstr(err.msg, words), "%s", err.msg);
}

Test(client_put, wrong_tensors_are_named)
{
    int64_t negative[] = {2, -3}, huge[] = {INT64_MAX, 2}, shape[] = {2, 2}, far[] = {INT64_MAX / 2, 1};
    struct rdt_tensor tensor = {.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = (void *)"x"}, wrong;
    struct rdt_ref ref;
    struct fake fake;
    size_t bytes;
    rdt *conn = fake_client(&fake, serve, NULL);

    check_invalid(conn, &(struct rdt_tensor){.dtype = 77, .data = (void *)"x"}, "dtype 77");
    check_invalid(conn, &(struct rdt_tensor){.dtype = RDT_U8, .ndim = 33, .shape = shape}, "33 dimensions");
    check_invalid(conn, &(struct rdt_tensor){.dtype = RDT_U8, .ndim = 2}, "no shape");
    check_invalid(conn, &(struct rdt_tensor){.dtype = RDT_U8}, "no data");
    wrong = tensor, wrong.shape = negative;
    check_invalid(conn, &wrong, "dimension 1 has the size -3");
    wrong = tensor, wrong.shape = huge;
    check_invalid(conn, &wrong, "overflows");
    wrong = tensor, wrong.strides = far;
    check_invalid(conn, &wrong, "2^63");

    assert_status(RDT_OK, rdt_tensor_bytes(&tensor, &bytes, &err));
    cr_assert_eq(bytes, 16);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = 1u << 30};
    assert_status(RDT_UNSUPPORTED, rdt_put(conn, NULL, 0, &options, &ref, &err));
    options.flags = 0;
    options.metadata = "x";
    options.metadata_bytes = RDT_MAX_METADATA_BYTES + 1;
    assert_status(RDT_LIMIT, rdt_put(conn, NULL, 0, &options, &ref, &err));
    options.metadata_bytes = 0;
    options.id = "x";
    assert_status(RDT_INVALID, rdt_put(conn, NULL, 0, &options, &ref, &err));
    assert_status(RDT_LIMIT, rdt_put(conn, &tensor, RDT_MAX_TENSORS + 1, NULL, &ref, &err));
    fake_end(&fake, conn);
}

Test(client_put, wrong_imports_are_refused)
{
    struct fake fake;
    int unsealed = memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING), pipes[2], sealed = fake_memfd(4096);
    void *addr;
    rdt *conn = fake_client(&fake, serve, NULL);

    cr_assert_eq(ftruncate(unsealed, 4096), 0);
    cr_assert_eq(pipe(pipes), 0);
    assert_refused(RDT_INVALID, "F_SEAL_SHRINK", rdt_import(conn, unsealed, &fake, 4096, &err));
    assert_status(RDT_INVALID, rdt_import(conn, pipes[0], &fake, 4096, &err));
    assert_status(RDT_INVALID, rdt_import(conn, sealed, &fake, 4097, &err));
    assert_status(RDT_INVALID, rdt_import(conn, sealed, NULL, 4096, &err));
    assert_status(RDT_INVALID, rdt_import(conn, -1, &fake, 4096, &err));
    assert_status(RDT_INVALID, rdt_alloc(conn, 0, &addr, &err));
    assert_status(RDT_INVALID, rdt_wait_freed_range(conn, &fake, 1, 0, &err));
    assert_status(RDT_OK, rdt_wait_freed_range(conn, &fake, 0, 0, &err));
    close(unsealed);
    close(pipes[0]);
    close(pipes[1]);
    close(sealed);
    fake_end(&fake, conn);
}

static void check_range(struct fake *fake)
{
    fake_take(fake, RDT_MSG_ALLOC);
    munmap(give_region(fake, 70, 8192), 8192);
    fake_take(fake, RDT_MSG_WAIT_FREED);
    Rdt__Pb__WaitFreed *wait = FAKE_MESSAGE(fake, WaitFreed);
    MUST(!wait->ref && wait->region == 70 && wait->generation == 1070 && wait->offset == 100 && wait->bytes == 200);
    MUST(wait->timeout_ns == -1);
    fake_free(wait);
    fake_empty(fake);
    fake_serve(fake);
}

Test(client_put, wait_freed_range_names_region_and_offset)
{
    uint8_t *memory;
    struct fake fake;
    rdt *conn = fake_client(&fake, check_range, NULL);

    assert_status(RDT_OK, rdt_alloc(conn, 8192, (void **)&memory, &err));
    assert_status(RDT_OK, rdt_wait_freed_range(conn, memory + 100, 200, RDT_FOREVER, &err));
    assert_status(RDT_INVALID, rdt_wait_freed_range(conn, memory + 100, 8192, 0, &err));
    fake_end(&fake, conn);
}

/* ---- many ---- */

#define TENSORS 10000

static void take_many(struct fake *fake)
{
    fake_take(fake, RDT_MSG_ALLOC);
    munmap(give_region(fake, 70, TENSORS * 64), TENSORS * 64);
    for (;;) {
        if (!fake_take_any(fake))
            return;
        if (fake->frame.type == RDT_MSG_PUT)
            fake_reply_put(fake);
        else
            fake_empty(fake);
    }
}

Test(client_put, ten_thousand_tensors_are_cheap)
{
    static struct rdt_tensor tensors[TENSORS];
    int64_t shape[] = {2, 2, 2}, start_ns, best_ns = INT64_MAX;
    struct rdt_ref ref;
    struct fake fake;
    uint8_t *memory;
    rdt *conn = fake_client(&fake, take_many, NULL);

    assert_status(RDT_OK, rdt_alloc(conn, TENSORS * 64, (void **)&memory, &err));
    for (size_t i = 0; i < TENSORS; i++)
        tensors[i] = (struct rdt_tensor){.dtype = RDT_F32, .ndim = 3, .shape = shape, .data = memory + 64 * i};
    for (unsigned i = 0; i < 20; i++) {
        start_ns = fake_now_ns();
        assert_status(RDT_OK, rdt_put(conn, tensors, TENSORS, NULL, &ref, &err));
        if (fake_now_ns() - start_ns < best_ns)
            best_ns = fake_now_ns() - start_ns;
    }
    printf("a put of %d tensors: %.3f ms\n", TENSORS, (double)best_ns / 1e6);
    cr_assert_lt(best_ns, 500 * MS);
    fake_end(&fake, conn);
}

/* ---- many tensors ---- */

#define MANY 1000u
#define ROOM_BYTES (21 * 8 * MANY) /* of what is put, and of the targets of 20 fetches */

static void answer_hello(struct fake *fake)
{
    fake_take(fake, RDT_MSG_HELLO);
    Rdt__Pb__Hello *hello = FAKE_MESSAGE(fake, Hello);
    MUST(hello->tensor_runs);
    fake_free(hello);
    Rdt__Pb__HelloReply reply = MESSAGE(hello_reply, .tensor_runs = *(bool *)fake->arg);
    fake_welcome(fake, reply);
}

static void check_rows(struct fake *fake)
{
    bool runs = *(bool *)fake->arg;
    Rdt__Pb__Fetch *fetch;

    answer_hello(fake);
    fake_take(fake, RDT_MSG_ALLOC);
    munmap(give_region(fake, 70, ROOM_BYTES), ROOM_BYTES);
    Rdt__Pb__Put *put = take_put(fake);
    MUST(put->tensors->n_dtype == (runs ? 1 : MANY) && put->tensors->n_run == (runs ? 1 : 0) &&
         put->tensors->n_step == (runs ? 1 : 0));
    MUST(!runs || (put->tensors->run[0] == MANY && put->tensors->step[0] == 8));
    fake_free(put);
    for (unsigned i = 0; i < 2; i++) {
        fake_take(fake, RDT_MSG_FETCH);
        fetch = FAKE_MESSAGE(fake, Fetch);
        Rdt__Pb__FetchItem *item = fetch->items[0];
        MUST(item->targets->n_dtype ==
             (runs && i == 0 ? 1 : MANY)); /* all of them together may be no more than one message's */
        fake_free(fetch);
    }
    fake_serve(fake);
}

static void put_and_fetch_many(bool runs)
{
    static const int64_t size[] = {8};
    const struct rdt_tensor *targets[20];
    size_t counts[20];
    rdt_request *requests[20];
    struct rdt_tensor tensors[MANY];
    static struct rdt_tensor into[20][MANY];
    struct rdt_ref ref, refs[20];
    uint8_t *memory;
    struct fake fake;

    fake_start_raw(&fake, check_rows, &runs);
    rdt *conn = fake_connect(&fake);
    cr_assert_eq(rdt_alloc(conn, ROOM_BYTES, (void **)&memory, &err), RDT_OK, "%s", err.msg);
    for (unsigned i = 0; i < MANY; i++)
        tensors[i] = (struct rdt_tensor){.dtype = RDT_U8, .ndim = 1, .shape = size, .data = memory + 8 * i};
    cr_assert_eq(rdt_put(conn, tensors, MANY, NULL, &ref, &err), RDT_OK, "%s", err.msg);
    for (unsigned i = 0; i < 20; i++) {
        for (unsigned j = 0; j < MANY; j++) {
            into[i][j] = tensors[j];
            into[i][j].data = memory + 8 * ((i + 1) * MANY + j);
        }
        targets[i] = into[i];
        counts[i] = MANY;
        refs[i] = ref;
    }
    struct rdt_fetch_options options = {
        .struct_size = sizeof options, .mode = RDT_FETCH_COPY, .targets = targets, .target_counts = counts};
    cr_assert_eq(rdt_fetch_start(conn, refs, 1, &options, requests, &err), RDT_OK, "%s", err.msg);
    rdt_request_destroy(requests[0]);
    cr_assert_eq(rdt_fetch_start(conn, refs, 20, &options, requests, &err), RDT_OK, "%s", err.msg);
    for (unsigned i = 0; i < 20; i++)
        rdt_request_destroy(requests[i]);
    fake_end(&fake, conn);
}

Test(client_put, similar_tensors_travel_as_runs)
{
    put_and_fetch_many(true);
}

Test(client_put, a_daemon_that_knows_no_runs_is_told_each_tensor)
{
    put_and_fetch_many(false);
}

/* ---- time-outs ---- */

static void take_forever(struct fake *fake)
{
    fake_take(fake, RDT_MSG_ALLOC);
    Rdt__Pb__Alloc *alloc = FAKE_MESSAGE(fake, Alloc);
    MUST(alloc->timeout_ns > 0);
    fake_free(alloc);
    munmap(give_region(fake, 80, 1 << 20), 1 << 20);
    Rdt__Pb__Put *put = take_put(fake);
    MUST(put->timeout_ns > 0);
    fake_free(put);
    fake_serve(fake);
}

/* As large as Python's timeout=1e10 becomes. */
Test(client_put, largest_time_out_waits_for_room)
{
    static uint8_t bytes[1 << 20];
    int64_t shape[] = {sizeof bytes};
    struct rdt_tensor one = {.dtype = RDT_U8, .ndim = 1, .shape = shape, .data = bytes};
    struct rdt_put_options options = {.struct_size = sizeof options, .timeout_ns = INT64_MAX, .flags = RDT_PUT_SNAPSHOT};
    struct rdt_ref ref;
    struct fake fake;
    rdt *conn = fake_client(&fake, take_forever, NULL);

    assert_status(RDT_OK, rdt_put(conn, &one, 1, &options, &ref, &err));
    fake_end(&fake, conn);
}

/* ---- releasing ---- */

static bool is_mapped(void *page)
{
    unsigned char resident;

    return mincore(page, 4096, &resident) == 0;
}

static bool stop_at_once(void *arg)
{
    return true;
}

/* Answers three releases after their callers have gone: the region is kept, it is not, and an error. */
static void release_late(struct fake *fake)
{
    for (unsigned i = 0; i < 3; i++) {
        fake_take(fake, RDT_MSG_ALLOC);
        int fd = fake_memfd(4096);
        Rdt__Pb__RegionReply region =
            MESSAGE(region_reply, .region = 90 + i, .generation = 1, .bytes = 4096, .cacheable = true);
        fake_reply_fd(fake, &region.base, fd);
        close(fd);
        fake_take(fake, RDT_MSG_RELEASE_REGION);
        Rdt__Pb__ReleaseRegion *release = FAKE_MESSAGE(fake, ReleaseRegion);
        MUST(release->region == 90 + i && release->keep_mapped);
        fake_free(release);
        MUST(sem_wait(&fake->step) == 0);
        Rdt__Pb__RegionReleased reply = MESSAGE(region_released, .keep_mapped = i == 0);
        if (i < 2)
            fake_reply(fake, &reply.base);
        else
            fake_error(fake, RDT_NOT_FOUND, "no such region");
    }
    fake_serve(fake);
}

Test(client_put, late_answer_to_a_release_ends_the_mapping_unless_it_is_kept)
{
    struct fake fake;
    rdt *conn = fake_client(&fake, release_late, NULL);
    void *page;

    for (unsigned i = 0; i < 3; i++) {
        assert_status(RDT_OK, rdt_alloc(conn, 4096, &page, &err));
        rdt_interrupt_by(stop_at_once, NULL);
        assert_status(RDT_CANCELLED, rdt_dealloc(conn, page, &err));
        rdt_interrupt_by(NULL, NULL);
        cr_assert(is_mapped(page), "the daemon may keep the region");
        sem_post(&fake.step);
        assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
        cr_assert_eq(is_mapped(page), i == 0, "release %u", i);
    }
    fake_end(&fake, conn);
}
