/* SPDX-License-Identifier: Apache-2.0 */
/* librdt against a scripted fake daemon: snapshots in memfds that librdt creates and seals, and what it does when the
 * daemon does not take them. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/fakes/fake_daemon.h"

#define BYTES ((size_t)131072)
#define WHOLE_BYTES ((size_t)sysconf(_SC_PAGESIZE) * ((90031 / (size_t)sysconf(_SC_PAGESIZE)) + 1))
#define SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW)

static struct rdt_error err;

static void answer_hello(struct fake *fake)
{
    fake_take(fake, RDT_MSG_HELLO);
    Rdt__Pb__HelloReply reply = MESSAGE(hello_reply, .inline_max_bytes = 32768, .sealed_max_bytes = *(uint64_t *)fake->arg);
    fake_welcome(fake, reply);
}

static void answer_alloc(struct fake *fake, uint64_t region)
{
    int fd = fake_memfd(BYTES);

    fake_take(fake, RDT_MSG_ALLOC);
    Rdt__Pb__RegionReply reply = MESSAGE(region_reply, .region = region, .generation = 1, .bytes = BYTES);
    fake_reply_fd(fake, &reply.base, fd);
    close(fd);
}

/* A put of two tensors, 60000 bytes and 30000, that comes with its memory. */
static void take_made(struct fake *fake)
{
    static uint8_t seen[BYTES];
    struct stat st;

    fake_take(fake, RDT_MSG_PUT);
    Rdt__Pb__Put *put = FAKE_MESSAGE(fake, Put);
    MUST(put->sealed_bytes == 60032 + 30000 && put->n_regions == 0 && put->n_given == 0 && put->inline_data.len == 0);
    MUST(put->tensors->n_offset == 2 && put->tensors->offset[0] == 0 && put->tensors->offset[1] == 60032);
    MUST(put->tensors->n_region_index == 0); /* all of them lie there */
    MUST(fake->frame.nfds == 1 && fcntl(fake->frame.fds[0], F_GET_SEALS) >= 0);
    MUST((fcntl(fake->frame.fds[0], F_GET_SEALS) & SEALS) == SEALS);
    MUST(fstat(fake->frame.fds[0], &st) == 0 && (size_t)st.st_size == WHOLE_BYTES && (st.st_mode & 0444) == 0444);
    MUST(pread(fake->frame.fds[0], seen, BYTES, 0) == (ssize_t)WHOLE_BYTES);
    MUST(seen[0] == 1 && seen[59999] == 1 && seen[60000] == 0 && seen[60031] == 0 && seen[60032] == 2 && seen[90031] == 2);
    fake_free(put);
}

static void take_given(struct fake *fake, uint64_t region)
{
    answer_alloc(fake, region);
    fake_take(fake, RDT_MSG_PUT);
    Rdt__Pb__Put *put = FAKE_MESSAGE(fake, Put);
    MUST(put->sealed_bytes == 0 && put->n_regions == 1 && put->regions[0]->region == region && put->n_given == 1);
    MUST(put->tensors->n_offset == 2 && put->tensors->offset[0] == 0 && put->tensors->offset[1] == 60032);
    MUST(fake->frame.nfds == 0);
    fake_free(put);
    fake_reply_put(fake);
}

static void put_two(rdt *conn, uint32_t flags)
{
    static const int64_t sizes[2][1] = {{60000}, {30000}};
    static uint8_t a[60000], b[30000];
    struct rdt_tensor tensors[2] = {{.dtype = RDT_U8, .ndim = 1, .shape = sizes[0], .data = a},
                                    {.dtype = RDT_U8, .ndim = 1, .shape = sizes[1], .data = b}};
    struct rdt_ref ref;

    memset(a, 1, sizeof a);
    memset(b, 2, sizeof b);
    struct rdt_put_options options = {.struct_size = sizeof options, .flags = flags};
    cr_assert_eq(rdt_put(conn, tensors, 2, &options, &ref, &err), RDT_OK, "%s", err.msg);
}

static void run(void (*script)(struct fake *fake), uint64_t sealed_max, unsigned puts)
{
    struct fake fake;

    fake_start_raw(&fake, script, &sealed_max);
    rdt *conn = fake_connect(&fake);
    for (unsigned i = 0; i < puts; i++)
        put_two(conn, RDT_PUT_SNAPSHOT);
    fake_end(&fake, conn);
}

static void takes_it(struct fake *fake)
{
    answer_hello(fake);
    take_made(fake);
    fake_reply_put(fake);
    fake_serve(fake);
}

Test(client_sealed, snapshot_comes_with_its_memory)
{
    run(takes_it, 1 << 20, 1);
    run(takes_it, 90032, 1);
}

static void knows_none(struct fake *fake)
{
    answer_hello(fake);
    take_given(fake, 70);
    fake_serve(fake);
}

Test(client_sealed, daemon_that_does_not_say_so_gets_none)
{
    run(knows_none, 0, 1);
    run(knows_none, 90031, 1);
}

static void has_no_room(struct fake *fake)
{
    answer_hello(fake);
    take_made(fake);
    fake_error(fake, RDT_NO_MEMORY, "no room");
    take_given(fake, 70);
    take_made(fake);
    fake_error(fake, RDT_LIMIT, "no room");
    take_given(fake, 71);
    fake_serve(fake);
}

Test(client_sealed, without_room_it_is_put_the_other_way_each_time)
{
    run(has_no_room, 1 << 20, 2);
}

static void cannot_take_it(struct fake *fake)
{
    answer_hello(fake);
    take_made(fake);
    fake_error(fake, RDT_INVALID, "may not be read by others");
    take_given(fake, 70);
    take_given(fake, 71);
    fake_serve(fake);
}

Test(client_sealed, refused_once_is_not_tried_again)
{
    run(cannot_take_it, 1 << 20, 2);
}

static void takes_no_live_ones(struct fake *fake)
{
    answer_hello(fake);
    answer_alloc(fake, 70);
    fake_take(fake, RDT_MSG_PUT);
    Rdt__Pb__Put *put = FAKE_MESSAGE(fake, Put);
    MUST(put->sealed_bytes == 0 && put->n_regions == 1 && put->n_given == 0);
    fake_free(put);
    fake_reply_put(fake);
    fake_serve(fake);
}

Test(client_sealed, live_object_is_none)
{
    uint64_t sealed_max = 1 << 20;
    struct fake fake;

    fake_start_raw(&fake, takes_no_live_ones, &sealed_max);
    rdt *conn = fake_connect(&fake);
    put_two(conn, 0);
    fake_end(&fake, conn);
}
