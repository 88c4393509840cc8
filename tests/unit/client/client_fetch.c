/* SPDX-License-Identifier: Apache-2.0 */
/* librdt against a scripted fake daemon: the objects that a fetch returns, and the ends of fetches of several objects. */
#include <criterion/criterion.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/wire_limits.h"
#include "tests/support/fakes/fake_answer.h"

static struct rdt_error err;

static rdt_request *start(rdt *conn, const char *id, int64_t timeout_ns)
{
    struct rdt_ref ref = fake_ref(id);
    rdt_request *request;
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = timeout_ns};

    MUST(rdt_fetch_start(conn, &ref, 1, &options, &request, &err) == RDT_OK);
    return request;
}

/* ---- mapping ---- */

static void share_a_region_twice(struct fake *fake)
{
    struct fake_answer answer;
    int fd = fake_memfd(8192);

    for (unsigned i = 0; i < 2; i++) {
        fake_answer_init(&answer, fake_take_fetch(fake), 5 + i, 70, 8192, 0);
        fake_answer_add(&answer, 2, 3, 100, 1, 10);
        fake_answer_add(&answer, 0, 7, 7, 1, 0);
        fake_answer_add(&answer, 2, 2, -10, 2, 4010);
        answer.done.metadata.data = (uint8_t *)"meta";
        answer.done.metadata.len = 4;
        answer.done.transfer = 31;
        fake_event(fake, &answer.done, &fd, 1);
    }
    close(fd);
    fake_take_release(fake, 5);
    fake_take_release(fake, 6);
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
    struct rdt_ref ref = fake_ref("x");
    rdt_object *objects[2];
    struct fake fake;
    rdt *conn = fake_client(&fake, share_a_region_twice, NULL);

    for (unsigned i = 0; i < 2; i++) {
        assert_status(RDT_OK, rdt_fetch(conn, &ref, 1, NULL, &objects[i], &err));
        check_shared(objects[i]);
        assert_status(RDT_OK, rdt_object_tensor(objects[i], 0, &tensors[i], &err));
    }
    cr_assert_eq(tensors[0].data, tensors[1].data);
    rdt_release(objects[0]);
    check_shared(objects[1]);
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    unsigned fds = fake_count_fds();
    rdt_release(objects[1]);
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    cr_assert_eq(fake_count_fds(), fds);
    cr_assert_neq(msync((void *)((uintptr_t)tensors[1].data & ~(uintptr_t)4095), 4096, MS_ASYNC), 0, "still mapped");
    rdt_release(NULL);
    fake_end(&fake, conn);
}

static void give_own_memory(struct fake *fake)
{
    struct fake_answer answer;
    int fd = fake_memfd(8192);

    fake_take(fake, RDT_MSG_ALLOC);
    Rdt__Pb__RegionReply region = MESSAGE(region_reply, .region = 70, .generation = 1, .bytes = 8192);
    fake_reply_fd(fake, &region.base, fd);
    close(fd);
    fake_answer_init(&answer, fake_take_fetch(fake), 5, 70, 8192, -1);
    fake_answer_add(&answer, 4, 4, 4, 1, 100);
    fake_event(fake, &answer.done, NULL, 0);

    uint64_t handle = fake_take_fetch(fake);
    MUST(fake_take_any(fake) && fake->frame.type == RDT_MSG_RELEASE_REGION);
    /* Sent before the daemon heard that the client gave the region back. */
    fake_answer_init(&answer, handle, 6, 70, 8192, -1);
    fake_answer_add(&answer, 4, 4, 4, 1, 200);
    fake_event(fake, &answer.done, NULL, 0);
    fake_empty(fake);

    fake_answer_init(&answer, fake_take_fetch(fake), 7, 71, 8192, -1);
    fake_event(fake, &answer.done, NULL, 0);
    fake_take_release(fake, 7); /* of what could not be used */
    fake_serve(fake);
}

Test(client_fetch, own_memory_is_the_same_memory)
{
    struct rdt_ref ref = fake_ref("x");
    struct rdt_tensor tensor;
    struct rdt_object_info info;
    rdt_object *objects[2], *none;
    struct fake fake;
    uint8_t *memory;
    rdt *conn = fake_client(&fake, give_own_memory, NULL);

    assert_status(RDT_OK, rdt_alloc(conn, 8000, (void **)&memory, &err));
    assert_status(RDT_OK, rdt_fetch(conn, &ref, 1, NULL, &objects[0], &err));
    assert_status(RDT_OK, rdt_object_tensor(objects[0], 0, &tensor, &err));
    cr_assert_eq(tensor.data, memory + 100);
    rdt_object_info(objects[0], &info);
    cr_assert(info.writable);

    rdt_request *request = start(conn, "x", 0);
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
    assert_refused(RDT_PROTOCOL, "region 71", rdt_fetch(conn, &ref, 1, NULL, &none, &err));
    rdt_close(conn); /* with an object that was not released */
    fake_stop(&fake);
}

static void send_inline_and_nonsense(struct fake *fake)
{
    static const uint8_t bytes[6] = {1, 2, 3, 4, 5, 6};
    struct fake_answer answer;
    int fd = fake_memfd(4096);

    fake_answer_init(&answer, fake_take_fetch(fake), 0, 0, 0, 0);
    answer.done.n_regions = 0;
    answer.done.inline_data.data = (uint8_t *)bytes;
    answer.done.inline_data.len = sizeof bytes;
    answer.done.path = (char *)"inline";
    fake_answer_add(&answer, 2, 3, 3, 1, 0);
    fake_event(fake, &answer.done, NULL, 0);

    fake_answer_init(&answer, fake_take_fetch(fake), 8, 70, 4096, 0); /* beyond its region */
    fake_answer_add(&answer, 2, 3, 4094, 1, 0);
    fake_event(fake, &answer.done, &fd, 1);
    fake_take_release(fake, 8);

    fake_answer_init(&answer, fake_take_fetch(fake), 9, 70, 4097, 0); /* longer than its fd */
    fake_event(fake, &answer.done, &fd, 1);
    fake_take_release(fake, 9);

    fake_answer_init(&answer, fake_take_fetch(fake), 10, 70, 4096, 3); /* a fd that did not come */
    fake_event(fake, &answer.done, &fd, 1);
    close(fd);
    fake_take_release(fake, 10);
    fake_serve(fake);
}

Test(client_fetch, inline_object_is_private_and_nonsense_is_refused)
{
    struct rdt_ref ref = fake_ref("x");
    struct rdt_tensor tensor;
    struct rdt_object_info info;
    struct fake fake;
    rdt_object *object, *none;
    rdt *conn = fake_client(&fake, send_inline_and_nonsense, NULL);

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
    fake_end(&fake, conn);
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
    struct rdt_ref refs[3] = {fake_ref("x"), fake_ref("y"), fake_ref("x")};
    rdt_request *requests[3];
    struct fake fake;
    bool done[3];
    size_t n;
    rdt *conn = fake_client(&fake, refuse_all, NULL);

    assert_status(RDT_OK, rdt_fetch_start(conn, refs, 3, NULL, requests, &err));
    assert_status(RDT_LIMIT, rdt_wait(conn, requests, 3, RDT_WAIT_ALL, LONG_NS, done, &n, &err)); /* at the first failure */
    cr_assert(n >= 1 && n == (size_t)done[0] + done[1] + done[2]);
    for (unsigned i = 0; i < 3; i++) {
        assert_status(RDT_LIMIT, rdt_wait(conn, &requests[i], 1, 1, LONG_NS, NULL, NULL, &err));
        assert_status(RDT_LIMIT, rdt_request_status(requests[i], &err));
        rdt_request_destroy(requests[i]);
    }
    fake_end(&fake, conn);
}

#define MANY (RDT_MAX_FETCH_REFS + 3)

static void answer_many(struct fake *fake)
{
    unsigned answered = 0;

    while (answered < MANY) {
        fake_take(fake, RDT_MSG_FETCH);
        Rdt__Pb__Fetch *message = FAKE_MESSAGE(fake, Fetch);
        MUST(message->n_items <= RDT_MAX_FETCH_REFS && message->timeout_ns > 0);
        fake_empty(fake);
        for (size_t i = 0; i < message->n_items; i++, answered++) {
            struct fake_answer answer;

            fake_answer_init(&answer, message->items[i]->handle, 0, 0, 0, 0);
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
    struct rdt_object_info info;
    char id[32];
    struct fake fake;
    rdt *conn = fake_client(&fake, answer_many, NULL);

    for (unsigned i = 0; i < MANY; i++) {
        snprintf(id, sizeof id, "id-%u", i);
        refs[i] = fake_ref(id);
    }
    struct rdt_fetch_options options = {.struct_size = sizeof options, .timeout_ns = 10 * LONG_NS};
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
    fake_end(&fake, conn);
}

/* ---- a client that was busy ---- */

/* As a daemon whose answers fill the socket: the second one follows when the client has read the first. */
static void answer_as_the_client_reads(struct fake *fake)
{
    struct fake_answer answer;
    uint64_t handles[2];
    int unread = 1;

    for (unsigned i = 0; i < 2; i++)
        handles[i] = fake_take_fetch(fake);
    for (unsigned i = 0; i < 2; i++) {
        while (i > 0 && unread > 0)
            MUST(ioctl(fake->sock, SIOCOUTQ, &unread) == 0);
        fake_answer_init(&answer, handles[i], 0, 0, 0, 0);
        answer.done.n_regions = 0;
        answer.done.path = (char *)"inline";
        fake_answer_add(&answer, 0, 3, 3, 1, 0);
        fake_event(fake, &answer.done, NULL, 0);
    }
    fake_serve(fake);
}

Test(client_fetch, answers_that_the_socket_had_no_room_for_come_in_time)
{
    rdt_request *requests[2];
    struct fake fake;
    rdt *conn = fake_client(&fake, answer_as_the_client_reads, NULL);

    for (unsigned i = 0; i < 2; i++)
        requests[i] = start(conn, "x", 200000000);
    usleep(400000); /* the client is busy for longer than its requests have; nothing is awaited by this */
    assert_status(RDT_OK, rdt_wait(conn, requests, 2, RDT_WAIT_ALL, LONG_NS, NULL, NULL, &err));
    for (unsigned i = 0; i < 2; i++)
        rdt_request_destroy(requests[i]);
    fake_end(&fake, conn);
}

static void answer_second_then_fail_first(struct fake *fake)
{
    struct fake_answer answer;
    uint64_t first = fake_take_fetch(fake), second = fake_take_fetch(fake);

    fake_answer_init(&answer, second, 0, 0, 0, 0);
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
    rdt *conn = fake_client(&fake, answer_second_then_fail_first, NULL);

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
    fake_end(&fake, conn);
}

static void check_slices(struct fake *fake)
{
    fake_take(fake, RDT_MSG_FETCH);
    Rdt__Pb__Fetch *message = FAKE_MESSAGE(fake, Fetch);
    MUST(message->n_items == 2 && !message->items[0]->slice && message->items[1]->slice);
    Rdt__Pb__Slice *slice = message->items[1]->slice;
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
    struct rdt_ref refs[2] = {fake_ref("x"), fake_ref("y")};
    rdt_object *objects[2];
    struct fake fake;
    rdt *conn = fake_client(&fake, check_slices, NULL);
    struct rdt_fetch_options options = {
        .struct_size = sizeof options, .slices = lists, .slice_counts = list_counts, .transport = "ucx", .least_path = "copy"};

    assert_status(RDT_NO_PATH, rdt_fetch(conn, refs, 2, &options, objects, &err));

    slices[1].start = negative;
    assert_refused(RDT_INVALID, "ref 1: in the slice of tensor 1", rdt_fetch(conn, refs, 2, &options, objects, &err));
    options.slices = NULL;
    options.mode = (enum rdt_fetch_mode)4;
    assert_status(RDT_INVALID, rdt_fetch(conn, refs, 2, &options, objects, &err));
    options.mode = RDT_FETCH_AUTO;
    refs[1].id_bytes = 200;
    assert_status(RDT_INVALID, rdt_fetch(conn, refs, 2, &options, objects, &err));
    assert_status(RDT_OK, rdt_ping(conn, LONG_NS, &err));
    fake_end(&fake, conn);
}
