/* SPDX-License-Identifier: Apache-2.0 */
/* librdt against a scripted fake daemon: answers that cannot be mapped wait until cached mappings are given up (room.h). */
#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/fakes/fake_answer.h"

#define NEVER ((uint64_t)1 << 47) /* bytes that no process can map */
#define REUSED 70
#define GIVEN_UP 72
#define TOO_LARGE 71

static struct rdt_error err;

static rdt_request *start(rdt *conn)
{
    struct rdt_ref ref = fake_ref("x");
    rdt_request *request;

    MUST(rdt_fetch_start(conn, &ref, 1, NULL, &request, &err) == RDT_OK);
    return request;
}

static enum rdt_status await(rdt *conn, rdt_request *request)
{
    return rdt_wait(conn, &request, 1, 1, LONG_NS, NULL, NULL, &err);
}

/* ---- for scripts ---- */

static int huge_memfd(void)
{
    int fd = memfd_create("never", MFD_CLOEXEC);

    MUST(fd >= 0 && ftruncate(fd, (off_t)NEVER) == 0);
    return fd;
}

/* Gives memory that the client caches when it releases the object. */
static void give_cacheable(struct fake *fake, uint64_t region)
{
    struct fake_answer answer;
    int fd = fake_memfd(8192);

    fake_answer_init(&answer, fake_take_fetch(fake), region, region, 8192, 0);
    fake_answer_add(&answer, 2, 2, 2, 1, 0);
    answer.region.writable = answer.region.cacheable = true;
    fake_event(fake, &answer.done, &fd, 1);
    close(fd);
}

static void let_go(struct fake *fake)
{
    Rdt__Pb__RegionGone gone = MESSAGE(region_gone, .n_regions = 1, .regions = (uint64_t[]){GIVEN_UP});

    fake_take(fake, RDT_MSG_DROP_CACHED);
    fake_send(fake, RDT_EVENT_REGION_GONE, FRAME_EVENT, 0, &gone.base, NULL, 0);
    fake_empty(fake);
}

/* ---- mappings ---- */

static void reuse_beside_what_is_too_large(struct fake *fake)
{
    Rdt__Pb__SharedRegion *regions[2], large = RDT__PB__SHARED_REGION__INIT;
    struct fake_answer answer;
    int fd = huge_memfd();

    give_cacheable(fake, REUSED);
    give_cacheable(fake, GIVEN_UP);
    fake_answer_init(&answer, fake_take_fetch(fake), 9, REUSED, 8192, -1);
    fake_answer_add(&answer, 2, 2, 2, 1, 0);
    answer.region.generation = 2;
    answer.region.writable = true;
    large.region = TOO_LARGE;
    large.generation = 1;
    large.bytes = NEVER;
    regions[0] = &answer.region;
    regions[1] = &large;
    answer.done.regions = regions;
    answer.done.n_regions = 2;
    fake_event(fake, &answer.done, &fd, 1);
    close(fd);
    let_go(fake);
    fake_serve(fake);
}

/* The answer takes a mapping from the cache, and fails at the next one. When it is handled again, the first is still there. */
Test(client_room, mapping_that_an_answer_takes_from_the_cache_stays_while_the_answer_waits)
{
    struct rdt_ref ref = fake_ref("x");
    rdt_request *request;
    rdt_object *objects[2];
    struct fake fake;
    rdt *conn = fake_client(&fake, reuse_beside_what_is_too_large, NULL);

    for (unsigned i = 0; i < 2; i++)
        assert_status(RDT_OK, rdt_fetch(conn, &ref, 1, NULL, &objects[i], &err));
    for (unsigned i = 0; i < 2; i++)
        rdt_release(objects[i]);
    request = start(conn);
    assert_status(RDT_SYSTEM, await(conn, request));
    cr_assert(strstr(err.msg, "vm.max_map_count"), "%s", err.msg);
    rdt_request_destroy(request);
    fake_end(&fake, conn);
}

/* ---- descriptors ---- */

#define MANY 100
#define MOST 64

static void answer_many(struct fake *fake)
{
    struct fake_answer answer;
    uint64_t handles[MANY];
    int fd = huge_memfd();

    give_cacheable(fake, GIVEN_UP);
    for (unsigned i = 0; i < MANY; i++)
        handles[i] = fake_take_fetch(fake);
    for (unsigned i = 0; i < MANY; i++) {
        fake_answer_init(&answer, handles[i], 100 + i, 100 + i, NEVER, 0);
        fake_answer_add(&answer, 2, 2, 2, 1, 0);
        fake_event(fake, &answer.done, &fd, 1);
    }
    close(fd);
    MUST(sem_wait(&fake->step) == 0);
    let_go(fake);
    fake_serve(fake);
}

Test(client_room, answers_that_wait_have_a_quarter_of_the_descriptors_at_most)
{
    struct rlimit limit = {4 * MOST, 4 * MOST};
    struct rdt_ref ref = fake_ref("x");
    rdt_request *requests[MANY];
    rdt_object *object;
    struct fake fake;
    unsigned before;
    rdt *conn;

    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    conn = fake_client(&fake, answer_many, NULL);
    assert_status(RDT_OK, rdt_fetch(conn, &ref, 1, NULL, &object, &err));
    rdt_release(object);
    before = fake_count_fds();
    for (unsigned i = 0; i < MANY; i++)
        requests[i] = start(conn);
    assert_status(RDT_SYSTEM, await(conn, requests[MANY - 1])); /* at once: it has no room to wait */
    for (unsigned i = 0; i < MANY; i++)
        cr_assert_eq(rdt_request_status(requests[i], NULL), i < MOST ? RDT_AGAIN : RDT_SYSTEM, "request %u", i);
    cr_assert_leq(fake_count_fds(), before + MOST + 1);
    cr_assert_eq(sem_post(&fake.step), 0);
    for (unsigned i = 0; i < MANY; i++) {
        assert_status(RDT_SYSTEM, await(conn, requests[i]));
        rdt_request_destroy(requests[i]);
    }
    cr_assert_leq(fake_count_fds(), before);
    fake_end(&fake, conn);
}
