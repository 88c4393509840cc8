/* SPDX-License-Identifier: Apache-2.0 */
/* librdt against a scripted fake daemon: fetches into the caller's own buffers. */
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/fakes/fake_answer.h"

static struct rdt_error err;

/* Answers so many fetches with a strided tensor of 3 x 2: bytes 10, 12, 20, 22, 30, 32 of the memfd. */
static void send_strided(struct fake *fake)
{
    int fd = fake_memfd(4096);

    for (unsigned i = 0; i < *(unsigned *)fake->arg; i++) {
        struct fake_answer answer;

        fake_answer_init(&answer, fake_take_fetch(fake), 5 + i, 70, 4096, 0);
        fake_answer_add(&answer, 3, 2, 10, 2, 10);
        fake_event(fake, &answer.done, &fd, 1);
        fake_take_release(fake, 5 + i); /* after the copy, or after the mismatch */
    }
    close(fd);
    fake_serve(fake);
}

static enum rdt_status fetch_into(rdt *conn, const struct rdt_tensor *targets, size_t count, rdt_object **object_p)
{
    struct rdt_ref ref = fake_ref("x");
    struct rdt_fetch_options options = {.struct_size = sizeof options,
                                        .targets = &targets,
                                        .target_counts = &count,
                                        .mode = RDT_FETCH_COPY,
                                        .timeout_ns = LONG_NS};

    return rdt_fetch(conn, &ref, 1, &options, object_p, &err);
}

Test(client_targets, target_of_ones_own_is_filled_by_a_copy)
{
    uint8_t bytes[6] = {0}, more[6];
    int64_t shape[] = {3, 2}, wrong[] = {2, 3}, gaps[] = {4, 1};
    struct rdt_tensor target = {.dtype = RDT_U8, .ndim = 2, .shape = shape, .data = bytes}, got;
    unsigned answers = 3;
    rdt_object *object;
    struct fake fake;
    rdt *conn = fake_client(&fake, send_strided, &answers);

    assert_status(RDT_OK, fetch_into(conn, &target, 1, &object));
    cr_assert_arr_eq(bytes, ((uint8_t[]){10, 12, 20, 22, 30, 32}), 6);
    assert_status(RDT_OK, rdt_object_tensor(object, 0, &got, &err));
    cr_assert(got.data == bytes && got.strides[0] == 2 && got.strides[1] == 1);
    rdt_release(object);
    memset(bytes, 0, sizeof bytes);

    target.shape = wrong;
    assert_refused(RDT_MISMATCH, "tensor 0", fetch_into(conn, &target, 1, &object));
    target.shape = shape;
    got = target;
    got.data = more;
    assert_status(RDT_MISMATCH, fetch_into(conn, (struct rdt_tensor[]){target, got}, 2, &object));
    cr_assert_eq(bytes[0], 0);

    target.strides = gaps; /* these never reach the daemon */
    assert_refused(RDT_MISMATCH, "not contiguous", fetch_into(conn, &target, 1, &object));
    target.strides = NULL;
    target.dtype = 99;
    assert_status(RDT_INVALID, fetch_into(conn, &target, 1, &object));
    fake_end(&fake, conn);
}

static void fill_targets(struct fake *fake)
{
    struct fake_answer answer;
    int fd = fake_memfd(4096);

    fake_take(fake, RDT_MSG_ALLOC);
    Rdt__Pb__RegionReply region = MESSAGE(region_reply, .region = 70, .generation = 3, .bytes = 4096);
    fake_reply_fd(fake, &region.base, fd);
    close(fd);

    fake_take(fake, RDT_MSG_FETCH);
    Rdt__Pb__Fetch *message = FAKE_MESSAGE(fake, Fetch);
    Rdt__Pb__FetchItem *item = message->items[0];
    MUST(item->n_target_regions == 1 && item->target_regions[0]->region == 70 && item->target_regions[0]->generation == 3);
    MUST(item->targets->n_dtype == 2 && item->targets->offset[0] == 64 && item->targets->offset[1] == 128);
    MUST(message->mode == RDT__PB__FETCH_MODE__FETCH_MODE_COPY);
    fake_answer_init(&answer, item->handle, 5, 70, 4096, -1);
    answer.done.n_regions = 0;
    fake_event(fake, &answer.done, NULL, 0);
    fake_free(message);
    fake_take_release(fake, 5);
    fake_serve(fake);
}

Test(client_targets, target_in_known_memory_is_the_daemons_to_fill)
{
    int64_t shape[] = {3, 2};
    struct rdt_tensor targets[2], got;
    rdt_object *object;
    struct fake fake;
    uint8_t *memory;
    rdt *conn = fake_client(&fake, fill_targets, NULL);

    assert_status(RDT_OK, rdt_alloc(conn, 4096, (void **)&memory, &err));
    for (unsigned i = 0; i < 2; i++)
        targets[i] = (struct rdt_tensor){.dtype = RDT_F32, .ndim = 2, .shape = shape, .data = memory + 64 + 64 * i};
    assert_status(RDT_OK, fetch_into(conn, targets, 2, &object));
    cr_assert_eq(rdt_object_count(object), 2);
    assert_status(RDT_OK, rdt_object_tensor(object, 1, &got, &err));
    cr_assert_eq(got.data, memory + 128);
    rdt_release(object);
    fake_end(&fake, conn);
}

#define LARGE ((size_t)64 << 20)

static void send_large(struct fake *fake)
{
    int fd = fake_memfd(LARGE);

    for (unsigned i = 0; i < 2; i++) {
        struct fake_answer answer;

        fake_answer_init(&answer, fake_take_fetch(fake), 0, 70 + i, LARGE, 0);
        fake_answer_add(&answer, 64, LARGE / 64, LARGE / 64, 1, 0);
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
Test(client_targets, copy_into_targets_respects_deadline_and_cancel)
{
    uint8_t *bytes = malloc(LARGE);
    int64_t shape[] = {64, LARGE / 64};
    struct rdt_tensor target = {.dtype = RDT_U8, .ndim = 2, .shape = shape, .data = bytes};
    const struct rdt_tensor *targets = &target;
    struct rdt_ref ref = fake_ref("x");
    size_t one = 1;
    enum rdt_status status;
    unsigned waits = 0;
    rdt_request *request;
    pthread_t thread;
    struct fake fake;
    rdt *conn = fake_client(&fake, send_large, NULL);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .targets = &targets, .target_counts = &one};

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
    fake_end(&fake, conn);
}

Test(client_targets, event_loop_copies_into_targets_part_by_part)
{
    uint8_t *bytes = malloc(LARGE);
    int64_t shape[] = {64, LARGE / 64};
    struct rdt_tensor target = {.dtype = RDT_U8, .ndim = 2, .shape = shape, .data = bytes};
    const struct rdt_tensor *targets = &target;
    struct rdt_ref ref = fake_ref("x");
    size_t one = 1, ended = 0;
    unsigned parts = 0;
    rdt_request *request;
    rdt_object *object;
    struct fake fake;
    rdt *conn = fake_client(&fake, send_large, NULL);

    (void)rdt_fd(conn);
    struct rdt_fetch_options options = {.struct_size = sizeof options, .targets = &targets, .target_counts = &one};
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
