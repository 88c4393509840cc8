/* librdt against a scripted fake daemon: what a fetch brings, where it goes, and how several of them end. */
#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/wire_limits.h"
#include "tests/support/fake_daemon.h"

#define assert_status(expected, call)                                                                                  \
    do {                                                                                                               \
        enum rdt_status status_ = (call);                                                                              \
        cr_assert_eq(status_, expected, "%s: %s instead of %s: %s", #call, rdt_status_name(status_),                   \
                     rdt_status_name(expected), err.msg);                                                              \
    } while (0)

static struct rdt_error err;

static void setup(void)
{
    memset(&err, 0, sizeof err);
}

TestSuite(client_fetch, .init = setup);

static struct rdt_ref ref_of(const char *id)
{
    struct rdt_ref ref;

    MUST(rdt_ref_from_id(id, strlen(id), &ref, NULL) == RDT_OK);
    return ref;
}

static rdt_request *start(rdt *conn, const char *id, int64_t timeout_ns)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref ref = ref_of(id);
    rdt_request *request;

    options.timeout_ns = timeout_ns;
    MUST(rdt_fetch_start(conn, &ref, 1, &options, &request, &err) == RDT_OK);
    return request;
}

/* ---- what the fake sends: an object of u8 tensors of one shape in one region ---- */

struct answer {
    Rdt__Pb__FetchDone done;
    Rdt__Pb__Ref ref;
    Rdt__Pb__TensorList tensors;
    Rdt__Pb__SharedRegion region, *regions;
    uint32_t dtype[4], ndim[4];
    uint64_t shape[8], offset[4];
    int64_t strides[8];
};

static void add_tensor(struct answer *answer, uint64_t rows, uint64_t columns, int64_t row_stride, int64_t column_stride,
                       uint64_t offset)
{
    size_t i = answer->tensors.n_dtype;

    answer->dtype[i] = RDT_U8;
    answer->ndim[i] = 2;
    answer->shape[2 * i] = rows;
    answer->shape[2 * i + 1] = columns;
    answer->strides[2 * i] = row_stride;
    answer->strides[2 * i + 1] = column_stride;
    answer->offset[i] = offset;
    answer->tensors.n_dtype = answer->tensors.n_ndim = answer->tensors.n_offset = i + 1;
    answer->tensors.n_shape = answer->tensors.n_strides = 2 * (i + 1);
}

static void answer_init(struct answer *answer, uint64_t handle, uint64_t hold, uint64_t region, uint64_t bytes, int fd_index)
{
    memset(answer, 0, sizeof *answer);
    rdt__pb__fetch_done__init(&answer->done);
    rdt__pb__ref__init(&answer->ref);
    rdt__pb__tensor_list__init(&answer->tensors);
    rdt__pb__shared_region__init(&answer->region);
    answer->done.handle = handle;
    answer->done.hold = hold;
    answer->done.ref = &answer->ref;
    answer->done.tensors = &answer->tensors;
    answer->done.path = (char *)"local/share";
    answer->ref.id.data = (uint8_t *)"x";
    answer->ref.id.len = 1;
    answer->ref.generation = 9;
    answer->tensors.dtype = answer->dtype;
    answer->tensors.ndim = answer->ndim;
    answer->tensors.shape = answer->shape;
    answer->tensors.strides = answer->strides;
    answer->tensors.offset = answer->offset;
    answer->region.region = region;
    answer->region.generation = 1;
    answer->region.bytes = bytes;
    answer->region.fd_index = fd_index;
    answer->regions = &answer->region;
    answer->done.regions = &answer->regions;
    answer->done.n_regions = 1;
}

/* Takes a FETCH of one item and answers it as a whole. */
static uint64_t take_one(struct fake *fake)
{
    Rdt__Pb__Fetch *message;
    uint64_t handle;

    fake_take(fake, RDT_MSG_FETCH);
    message = FAKE_MESSAGE(fake, Fetch);
    MUST(message->n_items == 1);
    handle = message->items[0]->handle;
    fake_free(message);
    fake_empty(fake);
    return handle;
}

static void take_release(struct fake *fake, uint64_t hold)
{
    Rdt__Pb__Release *release;

    fake_take(fake, RDT_MSG_RELEASE);
    release = FAKE_MESSAGE(fake, Release);
    MUST(release->hold == hold);
    fake_free(release);
    fake_empty(fake);
}

/* ---- mapping ---- */

static void share_a_region_twice(struct fake *fake)
{
    struct answer answer;
    int fd = fake_memfd(8192);

    for (unsigned i = 0; i < 2; i++) {
        answer_init(&answer, take_one(fake), 5 + i, 70, 8192, 0);
        add_tensor(&answer, 2, 3, 100, 1, 10);
        add_tensor(&answer, 0, 7, 7, 1, 0);
        add_tensor(&answer, 2, 2, -10, 2, 4010);
        answer.done.metadata.data = (uint8_t *)"meta";
        answer.done.metadata.len = 4;
        answer.done.transfer = 31;
        fake_event(fake, &answer.done, &fd, 1);
    }
    close(fd);
    take_release(fake, 5);
    take_release(fake, 6);
    fake_serve(fake);
}

static void check_shared(const rdt_object *object)
{
    struct rdt_object_info info;
    struct rdt_tensor tensor;
    size_t bytes;

    cr_assert_eq(rdt_object_count(object), 3);
    assert_status(RDT_OK, rdt_object_tensor(object, 0, &tensor, &err));
    cr_assert_eq(tensor.dtype, RDT_U8);
    cr_assert(tensor.ndim == 2 && tensor.shape[0] == 2 && tensor.shape[1] == 3 && tensor.strides[0] == 100);
    cr_assert_eq(((uint8_t *)tensor.data)[102], 112);
    assert_status(RDT_OK, rdt_object_tensor(object, 1, &tensor, &err));
    cr_assert(tensor.shape[0] == 0 && tensor.strides);
    assert_status(RDT_OK, rdt_object_tensor(object, 2, &tensor, &err));
    cr_assert_eq(((uint8_t *)tensor.data)[-8], 4002 % 251);
    assert_status(RDT_INVALID, rdt_object_tensor(object, 3, &tensor, &err));
    cr_assert_arr_eq(rdt_object_metadata(object, &bytes), "meta", 4);
    cr_assert_eq(bytes, 4);
    rdt_object_info(object, &info);
    cr_assert_str_eq(info.path, "local/share");
    cr_assert(info.ref.generation == 9 && info.transfer == 31 && !info.writable);
}

Test(client_fetch, region_is_mapped_once)
{
    struct rdt_tensor tensors[2];
    struct rdt_ref ref = ref_of("x");
    rdt_object *objects[2];
    struct fake fake;
    unsigned fds;
    rdt *conn;

    fake_start(&fake, share_a_region_twice, NULL);
    conn = fake_connect(&fake);
    for (unsigned i = 0; i < 2; i++) {
        assert_status(RDT_OK, rdt_fetch(conn, &ref, 1, NULL, &objects[i], &err));
        check_shared(objects[i]);
        assert_status(RDT_OK, rdt_object_tensor(objects[i], 0, &tensors[i], &err));
    }
    cr_assert_eq(tensors[0].data, tensors[1].data);
    rdt_release(objects[0]);
    check_shared(objects[1]);
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    fds = fake_count_fds();
    rdt_release(objects[1]);
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    cr_assert_eq(fake_count_fds(), fds);
    cr_assert_neq(msync((void *)((uintptr_t)tensors[1].data & ~(uintptr_t)4095), 4096, MS_ASYNC), 0, "still mapped");
    rdt_release(NULL);
    rdt_close(conn);
    fake_stop(&fake);
}

static void give_own_memory(struct fake *fake)
{
    Rdt__Pb__RegionReply region = RDT__PB__REGION_REPLY__INIT;
    struct answer answer;
    uint64_t handle;
    int fd = fake_memfd(8192);

    fake_take(fake, RDT_MSG_ALLOC);
    region.region = 70;
    region.generation = 1;
    region.bytes = 8192;
    fake_reply_fd(fake, &region.base, fd);
    close(fd);
    answer_init(&answer, take_one(fake), 5, 70, 8192, -1);
    add_tensor(&answer, 4, 4, 4, 1, 100);
    fake_event(fake, &answer.done, NULL, 0);

    handle = take_one(fake);
    MUST(fake_take_any(fake) && fake->frame.type == RDT_MSG_RELEASE_REGION);
    /* Sent before the daemon heard that the client gave the region back. */
    answer_init(&answer, handle, 6, 70, 8192, -1);
    add_tensor(&answer, 4, 4, 4, 1, 200);
    fake_event(fake, &answer.done, NULL, 0);
    fake_empty(fake);

    answer_init(&answer, take_one(fake), 7, 71, 8192, -1);
    fake_event(fake, &answer.done, NULL, 0);
    take_release(fake, 7); /* of what could not be used */
    fake_serve(fake);
}

Test(client_fetch, own_memory_is_the_same_memory)
{
    struct rdt_ref ref = ref_of("x");
    struct rdt_tensor tensor;
    struct rdt_object_info info;
    rdt_request *request;
    rdt_object *objects[2], *none;
    struct fake fake;
    uint8_t *memory;
    rdt *conn;

    fake_start(&fake, give_own_memory, NULL);
    conn = fake_connect(&fake);
    assert_status(RDT_OK, rdt_alloc(conn, 8000, (void **)&memory, &err));
    assert_status(RDT_OK, rdt_fetch(conn, &ref, 1, NULL, &objects[0], &err));
    assert_status(RDT_OK, rdt_object_tensor(objects[0], 0, &tensor, &err));
    cr_assert_eq(tensor.data, memory + 100);
    rdt_object_info(objects[0], &info);
    cr_assert(info.writable);

    request = start(conn, "x", 0);
    assert_status(RDT_OK, rdt_dealloc(conn, memory, &err));
    assert_status(RDT_INVALID, rdt_dealloc(conn, memory, &err));
    assert_status(RDT_OK, rdt_wait(conn, &request, 1, 1, LONG_NS, NULL, NULL, &err));
    assert_status(RDT_OK, rdt_request_take_object(request, &objects[1], &err));
    assert_status(RDT_INVALID, rdt_request_take_object(request, &none, &err));
    rdt_request_destroy(request);
    rdt_release(objects[0]);
    assert_status(RDT_OK, rdt_object_tensor(objects[1], 0, &tensor, &err));
    cr_assert_eq(*(uint8_t *)tensor.data, 200, "memory of a fetched object outlives rdt_dealloc");
    cr_assert_eq(tensor.data, memory + 200);
    assert_status(RDT_PROTOCOL, rdt_fetch(conn, &ref, 1, NULL, &none, &err));
    cr_assert(strstr(err.msg, "region 71"), "%s", err.msg);
    rdt_close(conn); /* with an object that was not released */
    fake_stop(&fake);
}

static void send_inline_and_nonsense(struct fake *fake)
{
    static const uint8_t bytes[6] = {1, 2, 3, 4, 5, 6};
    struct answer answer;
    int fd = fake_memfd(4096);

    answer_init(&answer, take_one(fake), 0, 0, 0, 0);
    answer.done.n_regions = 0;
    answer.done.inline_data.data = (uint8_t *)bytes;
    answer.done.inline_data.len = sizeof bytes;
    answer.done.path = (char *)"inline";
    add_tensor(&answer, 2, 3, 3, 1, 0);
    fake_event(fake, &answer.done, NULL, 0);

    answer_init(&answer, take_one(fake), 8, 70, 4096, 0); /* beyond its region */
    add_tensor(&answer, 2, 3, 4094, 1, 0);
    fake_event(fake, &answer.done, &fd, 1);
    take_release(fake, 8);

    answer_init(&answer, take_one(fake), 9, 70, 4097, 0); /* longer than its fd */
    fake_event(fake, &answer.done, &fd, 1);
    take_release(fake, 9);

    answer_init(&answer, take_one(fake), 10, 70, 4096, 3); /* a fd that did not come */
    fake_event(fake, &answer.done, &fd, 1);
    close(fd);
    take_release(fake, 10);
    fake_serve(fake);
}

Test(client_fetch, inline_object_is_private_and_nonsense_is_refused)
{
    struct rdt_ref ref = ref_of("x");
    struct rdt_tensor tensor;
    struct rdt_object_info info;
    struct fake fake;
    rdt_object *object, *none;
    rdt *conn;

    fake_start(&fake, send_inline_and_nonsense, NULL);
    conn = fake_connect(&fake);
    assert_status(RDT_OK, rdt_fetch(conn, &ref, 1, NULL, &object, &err));
    assert_status(RDT_OK, rdt_object_tensor(object, 0, &tensor, &err));
    cr_assert_eq(((uint8_t *)tensor.data)[5], 6);
    ((uint8_t *)tensor.data)[0] = 9;
    rdt_object_info(object, &info);
    cr_assert(info.writable);
    for (unsigned i = 0; i < 3; i++)
        assert_status(RDT_PROTOCOL, rdt_fetch(conn, &ref, 1, NULL, &none, &err));
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    rdt_release(object);
    rdt_close(conn);
    fake_stop(&fake);
}

/* ---- targets ---- */

/* Answers so many fetches with a strided tensor of 3 x 2: bytes 10, 12, 20, 22, 30, 32 of the memfd. */
static void send_strided(struct fake *fake)
{
    int fd = fake_memfd(4096);

    for (unsigned i = 0; i < *(unsigned *)fake->arg; i++) {
        struct answer answer;

        answer_init(&answer, take_one(fake), 5 + i, 70, 4096, 0);
        add_tensor(&answer, 3, 2, 10, 2, 10);
        fake_event(fake, &answer.done, &fd, 1);
        take_release(fake, 5 + i); /* after the copy, or after the mismatch */
    }
    close(fd);
    fake_serve(fake);
}

static enum rdt_status fetch_into(rdt *conn, const struct rdt_tensor *targets, size_t count, rdt_object **object_p)
{
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref ref = ref_of("x");

    options.targets = &targets;
    options.target_counts = &count;
    options.mode = RDT_FETCH_COPY;
    options.timeout_ns = LONG_NS;
    return rdt_fetch(conn, &ref, 1, &options, object_p, &err);
}

Test(client_fetch, target_of_ones_own_is_filled_by_a_copy)
{
    uint8_t bytes[6] = {0};
    int64_t shape[] = {3, 2}, wrong[] = {2, 3}, gaps[] = {4, 1};
    struct rdt_tensor target = {.dtype = RDT_U8, .ndim = 2, .shape = shape, .data = bytes}, got;
    unsigned answers = 3;
    rdt_object *object;
    struct fake fake;
    rdt *conn;

    fake_start(&fake, send_strided, &answers);
    conn = fake_connect(&fake);
    assert_status(RDT_OK, fetch_into(conn, &target, 1, &object));
    cr_assert_arr_eq(bytes, ((uint8_t[]){10, 12, 20, 22, 30, 32}), 6);
    assert_status(RDT_OK, rdt_object_tensor(object, 0, &got, &err));
    cr_assert(got.data == bytes && got.strides[0] == 2 && got.strides[1] == 1);
    rdt_release(object);
    memset(bytes, 0, sizeof bytes);

    target.shape = wrong;
    assert_status(RDT_MISMATCH, fetch_into(conn, &target, 1, &object));
    cr_assert(strstr(err.msg, "tensor 0"), "%s", err.msg);
    target.shape = shape;
    assert_status(RDT_MISMATCH, fetch_into(conn, (struct rdt_tensor[]){target, target}, 2, &object));
    cr_assert_eq(bytes[0], 0);

    target.strides = gaps; /* these never reach the daemon */
    assert_status(RDT_MISMATCH, fetch_into(conn, &target, 1, &object));
    cr_assert(strstr(err.msg, "not contiguous"), "%s", err.msg);
    target.strides = NULL;
    target.dtype = 99;
    assert_status(RDT_INVALID, fetch_into(conn, &target, 1, &object));
    rdt_close(conn);
    fake_stop(&fake);
}

static void fill_targets(struct fake *fake)
{
    Rdt__Pb__RegionReply region = RDT__PB__REGION_REPLY__INIT;
    Rdt__Pb__Fetch *message;
    Rdt__Pb__FetchItem *item;
    struct answer answer;
    int fd = fake_memfd(4096);

    fake_take(fake, RDT_MSG_ALLOC);
    region.region = 70;
    region.generation = 3;
    region.bytes = 4096;
    fake_reply_fd(fake, &region.base, fd);
    close(fd);

    fake_take(fake, RDT_MSG_FETCH);
    message = FAKE_MESSAGE(fake, Fetch);
    item = message->items[0];
    MUST(item->n_target_regions == 1 && item->target_regions[0]->region == 70 && item->target_regions[0]->generation == 3);
    MUST(item->targets->n_dtype == 2 && item->targets->offset[0] == 64 && item->targets->offset[1] == 128);
    MUST(message->mode == RDT__PB__FETCH_MODE__FETCH_MODE_COPY);
    answer_init(&answer, item->handle, 5, 70, 4096, -1);
    answer.done.n_regions = 0;
    fake_event(fake, &answer.done, NULL, 0);
    fake_free(message);
    take_release(fake, 5);
    fake_serve(fake);
}

Test(client_fetch, target_in_known_memory_is_the_daemons_to_fill)
{
    int64_t shape[] = {3, 2};
    struct rdt_tensor targets[2], got;
    rdt_object *object;
    struct fake fake;
    uint8_t *memory;
    rdt *conn;

    fake_start(&fake, fill_targets, NULL);
    conn = fake_connect(&fake);
    assert_status(RDT_OK, rdt_alloc(conn, 4096, (void **)&memory, &err));
    for (unsigned i = 0; i < 2; i++)
        targets[i] = (struct rdt_tensor){.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = memory + 64 + 64 * i};
    assert_status(RDT_OK, fetch_into(conn, targets, 2, &object));
    cr_assert_eq(rdt_object_count(object), 2);
    assert_status(RDT_OK, rdt_object_tensor(object, 1, &got, &err));
    cr_assert_eq(got.data, memory + 128);
    rdt_release(object);
    rdt_close(conn);
    fake_stop(&fake);
}

#define LARGE ((size_t)64 << 20)

static void send_large(struct fake *fake)
{
    int fd = fake_memfd(LARGE);

    for (unsigned i = 0; i < 2; i++) {
        struct answer answer;

        answer_init(&answer, take_one(fake), 0, 70 + i, LARGE, 0);
        add_tensor(&answer, 64, LARGE / 64, LARGE / 64, 1, 0);
        fake_event(fake, &answer.done, &fd, 1);
    }
    close(fd);
    fake_serve(fake);
}

static void *cancel_and_destroy(void *arg)
{
    rdt_cancel(arg);
    return NULL;
}

/* A large copy goes on over several waits, and a cancel in the middle of it holds. */
Test(client_fetch, copy_into_targets_respects_deadline_and_cancel)
{
    uint8_t *bytes = malloc(LARGE);
    int64_t shape[] = {64, LARGE / 64};
    struct rdt_tensor target = {.dtype = RDT_U8, .ndim = 2, .shape = shape, .data = bytes};
    const struct rdt_tensor *targets = &target;
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref ref = ref_of("x");
    size_t one = 1;
    enum rdt_status status;
    unsigned waits = 0;
    rdt_request *request;
    pthread_t thread;
    struct fake fake;
    rdt *conn;

    fake_start(&fake, send_large, NULL);
    conn = fake_connect(&fake);
    options.targets = &targets;
    options.target_counts = &one;
    assert_status(RDT_OK, rdt_fetch_start(conn, &ref, 1, &options, &request, &err));
    do {
        status = rdt_wait(conn, &request, 1, 1, 0, NULL, NULL, &err);
        waits++;
    } while (status == RDT_TIMED_OUT);
    cr_assert_eq(status, RDT_OK);
    cr_assert_geq(waits, 8);
    for (size_t i = 0; i < LARGE; i += 4099)
        cr_assert_eq(bytes[i], i % 251);
    rdt_request_destroy(request);

    assert_status(RDT_OK, rdt_fetch_start(conn, &ref, 1, &options, &request, &err));
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    cr_assert_eq(pthread_create(&thread, NULL, cancel_and_destroy, request), 0);
    status = rdt_wait(conn, &request, 1, 1, RDT_FOREVER, NULL, NULL, &err);
    cr_assert(status == RDT_CANCELLED || status == RDT_OK);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    rdt_request_destroy(request);
    free(bytes);
    rdt_close(conn);
    fake_stop(&fake);
}

Test(client_fetch, event_loop_copies_into_targets_part_by_part)
{
    uint8_t *bytes = malloc(LARGE);
    int64_t shape[] = {64, LARGE / 64};
    struct rdt_tensor target = {.dtype = RDT_U8, .ndim = 2, .shape = shape, .data = bytes};
    const struct rdt_tensor *targets = &target;
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref ref = ref_of("x");
    size_t one = 1, ended = 0;
    unsigned parts = 0;
    rdt_request *request;
    rdt_object *object;
    struct fake fake;
    rdt *conn;

    fake_start(&fake, send_large, NULL);
    conn = fake_connect(&fake);
    (void)rdt_fd(conn);
    options.targets = &targets;
    options.target_counts = &one;
    assert_status(RDT_OK, rdt_fetch_start(conn, &ref, 1, &options, &request, &err));
    while (ended == 0) {
        assert_status(RDT_OK, rdt_dispatch(conn, &ended, &err));
        parts++;
    }
    cr_assert_geq(parts, 8);
    cr_assert_eq(bytes[LARGE - 1], (LARGE - 1) % 251);
    assert_status(RDT_OK, rdt_request_take_object(request, &object, &err));
    rdt_request_destroy(request);
    assert_status(RDT_OK, rdt_fetch_start(conn, &ref, 1, NULL, &request, &err));
    rdt_close(conn); /* ends the request and the object */
    free(bytes);
    fake_stop(&fake);
}

/* ---- many ---- */

static void refuse_all(struct fake *fake)
{
    fake_take(fake, RDT_MSG_FETCH);
    fake_error(fake, RDT_LIMIT, "too many requests in flight");
    fake_serve(fake);
}

Test(client_fetch, refused_message_fails_all_its_requests)
{
    struct rdt_ref refs[3] = {ref_of("x"), ref_of("y"), ref_of("x")};
    rdt_request *requests[3];
    struct fake fake;
    bool done[3];
    size_t n;
    rdt *conn;

    fake_start(&fake, refuse_all, NULL);
    conn = fake_connect(&fake);
    assert_status(RDT_OK, rdt_fetch_start(conn, refs, 3, NULL, requests, &err));
    assert_status(RDT_LIMIT, rdt_wait(conn, requests, 3, RDT_WAIT_ALL, LONG_NS, done, &n, &err));
    cr_assert(n == 3 && done[0] && done[1] && done[2]);
    for (unsigned i = 0; i < 3; i++) {
        assert_status(RDT_LIMIT, rdt_request_status(requests[i], &err));
        rdt_request_destroy(requests[i]);
    }
    rdt_close(conn);
    fake_stop(&fake);
}

#define MANY (RDT_MAX_FETCH_REFS + 3)

static void answer_many(struct fake *fake)
{
    unsigned answered = 0;

    while (answered < MANY) {
        Rdt__Pb__Fetch *message;

        fake_take(fake, RDT_MSG_FETCH);
        message = FAKE_MESSAGE(fake, Fetch);
        MUST(message->n_items <= RDT_MAX_FETCH_REFS && message->timeout_ns > 0);
        fake_empty(fake);
        for (size_t i = 0; i < message->n_items; i++, answered++) {
            struct answer answer;

            answer_init(&answer, message->items[i]->handle, 0, 0, 0, 0);
            answer.done.n_regions = 0;
            answer.ref.id = message->items[i]->ref->id;
            fake_event(fake, &answer.done, NULL, 0);
        }
        fake_free(message);
    }
    fake_serve(fake);
}

Test(client_fetch, many_refs_go_in_several_frames)
{
    struct rdt_ref *refs = calloc(MANY, sizeof *refs);
    rdt_object **objects = calloc(MANY, sizeof(rdt_object *));
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_object_info info;
    char id[32];
    struct fake fake;
    rdt *conn;

    fake_start(&fake, answer_many, NULL);
    conn = fake_connect(&fake);
    for (unsigned i = 0; i < MANY; i++) {
        snprintf(id, sizeof id, "id-%u", i);
        refs[i] = ref_of(id);
    }
    options.timeout_ns = 10 * LONG_NS;
    assert_status(RDT_OK, rdt_fetch(conn, refs, MANY, &options, objects, &err));
    for (unsigned i = 0; i < MANY; i++) {
        rdt_object_info(objects[i], &info);
        cr_assert_str_eq(info.ref.id, refs[i].id);
        rdt_release(objects[i]);
    }
    assert_status(RDT_OK, rdt_fetch(conn, NULL, 0, NULL, NULL, &err));
    assert_status(RDT_OK, rdt_wait(conn, NULL, 0, RDT_WAIT_ALL, 0, NULL, NULL, &err));
    free(refs);
    free(objects);
    rdt_close(conn);
    fake_stop(&fake);
}

static void answer_second_then_fail_first(struct fake *fake)
{
    struct answer answer;
    uint64_t first = take_one(fake), second = take_one(fake);

    answer_init(&answer, second, 0, 0, 0, 0);
    answer.done.n_regions = 0;
    fake_event(fake, &answer.done, NULL, 0);
    MUST(sem_wait(&fake->step) == 0);
    rdt__pb__fetch_done__init(&answer.done);
    answer.done.handle = first;
    answer.done.status = RDT_OWNER_DIED;
    answer.done.message = (char *)"the producer of \"x\" is gone";
    fake_event(fake, &answer.done, NULL, 0);
    fake_serve(fake);
}

Test(client_fetch, wait_returns_the_first_failure_at_once)
{
    rdt_request *requests[3];
    struct fake fake;
    bool done[3];
    size_t n;
    rdt *conn;

    fake_start(&fake, answer_second_then_fail_first, NULL);
    conn = fake_connect(&fake);
    requests[0] = start(conn, "x", 0);
    requests[1] = start(conn, "y", 0);
    assert_status(RDT_OK, rdt_wait(conn, requests, 2, 1, LONG_NS, done, &n, &err));
    cr_assert(n == 1 && !done[0] && done[1]);
    assert_status(RDT_TIMED_OUT, rdt_wait(conn, requests, 2, 2, 10 * MS, done, &n, &err));
    cr_assert(n == 1 && !done[0] && done[1]);
    assert_status(RDT_INVALID, rdt_wait(conn, requests, 2, 3, 0, NULL, NULL, &err));
    sem_post(&fake.step);
    assert_status(RDT_OWNER_DIED, rdt_wait(conn, requests, 2, RDT_WAIT_ALL, RDT_FOREVER, done, &n, &err));
    cr_assert(n == 2 && done[0]);
    cr_assert_str_eq(err.msg, "the producer of \"x\" is gone");
    rdt_request_destroy(requests[0]);
    rdt_request_destroy(requests[1]);
    rdt_request_destroy(NULL);
    rdt_close(conn);
    fake_stop(&fake);
}

static void check_slices(struct fake *fake)
{
    Rdt__Pb__Fetch *message;
    Rdt__Pb__Slice *slice;

    fake_take(fake, RDT_MSG_FETCH);
    message = FAKE_MESSAGE(fake, Fetch);
    MUST(message->n_items == 2 && !message->items[0]->slice && message->items[1]->slice);
    slice = message->items[1]->slice;
    MUST(slice->n_ndim == 2 && slice->ndim[0] == 0 && slice->ndim[1] == 2);
    MUST(slice->n_start == 2 && slice->start[0] == 1 && slice->start[1] == 2 && slice->count[0] == 3 && slice->count[1] == 4);
    MUST(strcmp(message->transport, "ucx") == 0 && strcmp(message->least_path, "copy") == 0 && message->timeout_ns == -1);
    fake_free(message);
    fake_error(fake, RDT_NO_PATH, "no");
    fake_serve(fake);
}

Test(client_fetch, options_reach_the_daemon)
{
    int64_t start_at[] = {1, 2}, counts[] = {3, 4}, negative[] = {-1, 2};
    struct rdt_slice slices[2] = {{.ndim = 0}, {.ndim = 2, .start = start_at, .count = counts}};
    const struct rdt_slice *lists[2] = {NULL, slices};
    size_t list_counts[2] = {0, 2};
    struct rdt_fetch_options options = RDT_INIT(options);
    struct rdt_ref refs[2] = {ref_of("x"), ref_of("y")};
    rdt_object *objects[2];
    struct fake fake;
    rdt *conn;

    fake_start(&fake, check_slices, NULL);
    conn = fake_connect(&fake);
    options.slices = lists;
    options.slice_counts = list_counts;
    options.transport = "ucx";
    options.least_path = "copy";
    assert_status(RDT_NO_PATH, rdt_fetch(conn, refs, 2, &options, objects, &err));

    slices[1].start = negative;
    assert_status(RDT_INVALID, rdt_fetch(conn, refs, 2, &options, objects, &err));
    cr_assert(strstr(err.msg, "ref 1: slice of tensor 1"), "%s", err.msg);
    options.slices = NULL;
    options.mode = RDT_FETCH_COW;
    assert_status(RDT_UNSUPPORTED, rdt_fetch(conn, refs, 2, &options, objects, &err));
    options.mode = RDT_FETCH_AUTO;
    refs[1].id_bytes = 200;
    assert_status(RDT_INVALID, rdt_fetch(conn, refs, 2, &options, objects, &err));
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    rdt_close(conn);
    fake_stop(&fake);
}
