/* SPDX-License-Identifier: Apache-2.0 */
/* librdt against a scripted fake daemon: loaned regions, into which it copies puts, and what it does when the daemon
 * returns or ends them. */
#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/fakes/fake_daemon.h"

#define BYTES ((size_t)70000)

static struct rdt_error err;
static uint8_t data[BYTES];

static void hello(struct fake *fake)
{
    fake_take(fake, RDT_MSG_HELLO);
    Rdt__Pb__HelloReply reply = MESSAGE(hello_reply, .inline_max_bytes = 32768, .loans = true);
    fake_welcome(fake, reply);
}

/* Returns the daemon's view. */
static const uint8_t *give(struct fake *fake, uint64_t region)
{
    int fd = fake_memfd(2 * BYTES);
    const uint8_t *view = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);

    MUST(view != MAP_FAILED);
    fake_take(fake, RDT_MSG_ALLOC);
    Rdt__Pb__Alloc *alloc = FAKE_MESSAGE(fake, Alloc);
    MUST(alloc->bytes == BYTES);
    fake_free(alloc);
    Rdt__Pb__RegionReply reply = MESSAGE(region_reply, .region = region, .generation = 1, .bytes = 2 * BYTES);
    fake_reply_fd(fake, &reply.base, fd);
    close(fd);
    return view;
}

/* The put of bytes that are all `fill` lies there, lent. */
static void take_lent(struct fake *fake, uint64_t region, const uint8_t *view, uint8_t fill)
{
    fake_take(fake, RDT_MSG_PUT);
    Rdt__Pb__Put *put = FAKE_MESSAGE(fake, Put);
    MUST(put->n_regions == 1 && put->regions[0]->region == region && put->regions[0]->generation == 1);
    MUST(put->n_loaned == 1 && put->loaned[0] == 0 && put->inline_data.len == 0);
    MUST(put->tensors->n_offset == 1 && put->tensors->offset[0] == 0);
    fake_free(put);
    for (size_t i = 0; i < BYTES; i++)
        MUST(view[i] == fill);
}

static void say_back(struct fake *fake, uint64_t region, bool gone)
{
    Rdt__Pb__RegionBack back = MESSAGE(region_back, .n_regions = 1, .regions = &region, .gone = gone);
    fake_send(fake, RDT_EVENT_REGION_BACK, FRAME_EVENT, 0, &back.base, NULL, 0);
}

static enum rdt_status put(rdt *conn, uint8_t fill)
{
    struct rdt_tensor tensor = {.dtype = RDT_U8, .ndim = 1, .shape = (const int64_t[]){BYTES}, .data = data};
    struct rdt_ref ref;

    memset(data, fill, BYTES);
    memset(&err, 0, sizeof err);
    return rdt_put(conn, &tensor, 1, NULL, &ref, &err);
}

/* ---- what comes back ---- */

static void comes_back(struct fake *fake)
{
    hello(fake);
    const uint8_t *first = give(fake, 90);
    take_lent(fake, 90, first, 1);
    fake_reply_put(fake);
    const uint8_t *second = give(fake, 91); /* the first has not come back */
    take_lent(fake, 91, second, 2);
    say_back(fake, 90, false);
    say_back(fake, 12345, false); /* nobody's */
    fake_reply_put(fake);
    take_lent(fake, 90, first, 3);
    say_back(fake, 90, false); /* before the answer: it was freed by force */
    fake_reply_put(fake);
    take_lent(fake, 90, first, 4);
    say_back(fake, 90, false);
    say_back(fake, 90, true); /* it was idle, and is gone */
    fake_reply_put(fake);
    const uint8_t *third = give(fake, 92);
    take_lent(fake, 92, third, 5);
    fake_reply_put(fake);
    fake_serve(fake);
}

Test(client_loans, next_put_uses_the_returned_region)
{
    struct fake fake;

    fake_start_raw(&fake, comes_back, NULL);
    rdt *conn = fake_connect(&fake);
    for (uint8_t i = 1; i <= 5; i++)
        assert_status(RDT_OK, put(conn, i));
    fake_end(&fake, conn);
}

/* ---- what the daemon has parted with meanwhile ---- */

static void parts_with_it(struct fake *fake)
{
    hello(fake);
    const uint8_t *view = give(fake, 90);
    take_lent(fake, 90, view, 1);
    say_back(fake, 90, false);
    fake_reply_put(fake);
    take_lent(fake, 90, view, 2);
    say_back(fake, 90, true); /* it crossed the put */
    fake_error(fake, RDT_NOT_FOUND, "this client has no region 90");
    view = give(fake, 91);
    take_lent(fake, 91, view, 2);
    say_back(fake, 91, false);
    fake_reply_put(fake);
    take_lent(fake, 91, view, 3);
    fake_error(fake, RDT_LIMIT, "it is larger than there may be");
    view = give(fake, 92);
    take_lent(fake, 92, view, 3);
    say_back(fake, 92, false);
    fake_reply_put(fake);
    take_lent(fake, 92, view, 4);
    fake_error(fake, RDT_EXISTS, "such an id");
    fake_take(fake, RDT_MSG_ALLOC); /* what was not put was given back */
    fake_error(fake, RDT_LIMIT, "no room for it");
    fake_serve(fake);
}

Test(client_loans, put_into_an_ended_region_is_repeated)
{
    struct fake fake;

    fake_start_raw(&fake, parts_with_it, NULL);
    rdt *conn = fake_connect(&fake);
    for (uint8_t i = 1; i <= 3; i++) {
        assert_status(RDT_OK, put(conn, i));
        cr_assert_eq(err.status, RDT_OK, "nothing of the first try is left");
    }
    assert_status(RDT_EXISTS, put(conn, 4));
    assert_status(RDT_LIMIT, put(conn, 5));
    cr_assert_str_eq(err.msg, "no room for it");
    fake_end(&fake, conn);
}
